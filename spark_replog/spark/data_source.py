"""``format("replog")``: the class that Spark looks up, and the schema of reads.

Spark instantiates the class in several processes, so it only keeps options. Source of the schema of topics of bytes:
Spark's Kafka connector, ``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_replog.errors import invalid_option
from spark_replog.spark.compat import PUSH_DOWN_WORKER, freeze_garbage, is_worker, patch_zipimport_if_asked
from spark_replog.spark.options import SchemaRequest, parse_schema_options, parse_sink_options, parse_source_options
from spark_replog.spark.row_form import RowForm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_replog.spark.sink.sink import BatchWriter, StreamWriter
    from spark_replog.spark.source.batch_reader import BatchReader
    from spark_replog.spark.source.stream_reader import StreamReader


_LOG = logging.getLogger(__name__)
_shipped: set[tuple[int, str]] = set()
patch_zipimport_if_asked()


def register(spark: SparkSession) -> None:
    """Make ``format("replog")`` work in this session, classic or Connect. May be called repeatedly.

    Spark finds an installed package by itself (``pyspark_replog``). A wheel from ``--py-files`` must be registered:
    Spark puts zips on its workers' path, but not wheels.
    """
    _ship_wheel(spark)
    try:
        spark.dataSource.register(ReplogDataSource)
    except Exception as error:  # 4.0 refuses a name that its own lookup has found, which is this class
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def use_session(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, so that its writes find the format.

    A write looks the format up in the active session of its JVM thread (``DataSource.lookupDataSource``), which Spark
    only sets in the thread that made the session. Takes a few milliseconds. No effect on Spark Connect.
    """
    spark.createDataFrame([], "unused int")  # the public call that activates its session; runs no job


def _ship_wheel(spark: SparkSession) -> None:
    """Give workers the package under a name that Spark puts on their path."""
    loader = globals().get("__loader__")
    if not isinstance(loader, zipimport.zipimporter) or not loader.archive.endswith(".whl"):
        return
    try:
        context = spark.sparkContext
    except Exception:  # Connect's session raises its own error here, whose class may not be importable
        _LOG.debug("no SparkContext: the package must be installed where the Connect server runs")
        return
    if (id(context), loader.archive) in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="replog-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / f"{Path(loader.archive).stem}.zip"
    shutil.copyfile(loader.archive, copy)
    context.addPyFile(str(copy))
    _shipped.add((id(context), loader.archive))


def read_schema(*, include_headers: bool) -> StructType:
    """Return the schema of a read of topics of bytes; every field is nullable."""
    return RowForm(include_headers=include_headers).kafka_schema


class ReplogDataSource(DataSource):
    """Kafka's log without Kafka's servers.

    Examples:
        >>> spark.readStream.format("replog").option("subscribe", "orders").load("/data/store")
        >>> df.writeStream.format("replog").option("topic", "orders").start("/data/store")
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "replog"

    def schema(self) -> StructType:
        """Return the schema of a read, or of a view to insert into: Kafka's columns, or those of typed topics. Spark's
        planner process.

        Opens the store and folds the topics' ledgers once, to learn whether they are typed. A read with a schema of its
        own (``.schema(...)``) is spared that: Spark asks for none, and the reader compares it.

        Raises:
            ReplogError: an option is wrong, or the store does not answer; UNKNOWN_TOPIC_OR_PARTITION: an option asks
                for more than topics of bytes have, and a topic does not exist. Without such an option it may be made
                later, as a topic of bytes.
        """
        freeze_garbage()
        return _schema_of(parse_schema_options(dict(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of ``spark.read``. Spark's planner process.

        ``schema``: the DataFrame's. ``partitions`` refuses it if it is not a topic's.
        """
        from spark_replog.spark.source.batch_reader import BatchReader, FilteringBatchReader

        options = parse_source_options(dict(self.options), streaming=False)
        if options.push_down_filters and is_worker(PUSH_DOWN_WORKER):
            return FilteringBatchReader(options, schema)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of ``spark.readStream``. The query's own Python process, and the planner's.

        ``schema``: the DataFrame's. Offsets and plans refuse it if it is not a topic's.
        """
        from spark_replog.spark.source.stream_reader import StreamReader

        return StreamReader(parse_source_options(dict(self.options), streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of ``df.write``; the same object goes to tasks and to the commit.

        Checks in the order of Kafka's connector: the save mode, the options, the columns.
        """
        from spark_replog.spark.sink.sink import BatchWriter

        if overwrite:
            raise invalid_option(
                "save mode Overwrite not allowed for Kafka's log: a write never truncates it. Use mode('append')."
            )
        return BatchWriter(parse_sink_options(dict(self.options), streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of ``df.writeStream``; Spark calls this twice per micro-batch.

        ``overwrite`` (output mode complete) appends, as Kafka's sink does: a log is never truncated.
        """
        from spark_replog.spark.sink.sink import StreamWriter

        return StreamWriter(parse_sink_options(dict(self.options), streaming=True), schema)


def _schema_of(request: SchemaRequest) -> StructType:
    if request.written is not None:
        from spark_replog.spark.sink.sink import topic_columns

        rows = topic_columns(*request.written)
        return request.form.kafka_schema if rows is None else request.form.typed_schema(rows)
    if request.topics is None:
        return request.form.schema({})
    from spark_replog.spark.source.topics import view_topics

    store, subscription, principal = request.topics
    view = view_topics(store.cluster(), subscription, principal=principal)
    if not view.schemas and not request.form.fits_bytes:
        view.require_all()
    return request.form.schema(view.schemas)
