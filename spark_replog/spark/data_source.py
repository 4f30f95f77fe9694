"""``format("replog")``: the class that Spark looks up, the schema of reads, and the columns that may be written.

Spark instantiates the class in several processes, so it only keeps options. Source of the schema and of the checks:
Spark's Kafka connector, ``KafkaRecordToRowConverter`` and ``KafkaWriter``.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import zipimport
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_replog.errors import ErrorCode, InvalidConfigError, invalid_option
from spark_replog.logs import Once
from spark_replog.spark.compat import PUSH_DOWN_WORKER, freeze_garbage, is_worker, patch_zipimport_if_asked
from spark_replog.spark.options import asked_columns, check_schema_options, parse_sink_options, parse_source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_replog.spark.sink.sink import BatchWriter, StreamWriter
    from spark_replog.spark.source.batch_reader import BatchReader
    from spark_replog.spark.source.stream_reader import StreamReader


_LOG = logging.getLogger(__name__)
_shipped: set[tuple[int, str]] = set()
patch_zipimport_if_asked()

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_WRITTEN: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "partition": ((IntegerType,), "int"),
}
"""The types of the columns that are written, in the order of Kafka's checks."""
WARNED_TYPES = Once()


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


def read_schema(*, include_headers: bool, columns: tuple[str, ...] | None = None) -> StructType:
    """Return the fixed schema of a read, or these columns of it; every field is nullable."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", _HEADERS))
    return StructType([field for field in fields if columns is None or field.name in columns])


def check_read_schema(schema: StructType, *, include_headers: bool, columns: tuple[str, ...] | None = None) -> None:
    """Refuse a user's schema that differs from the fixed one. Raises REPLOG_INVALID_SCHEMA."""
    expected = read_schema(include_headers=include_headers, columns=columns)
    if schema.simpleString() != expected.simpleString():
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            "replog has a fixed schema. Remove schema(...) and cast the columns in a select.",
            given=schema.simpleString(),
            expected=expected.simpleString(),
        )


def check_write_schema(schema: StructType, *, topic: str | None) -> None:
    """Refuse a DataFrame that cannot be written, before any row moves.

    Columns are found by exact name. Other columns are ignored, and a topic column too if the option names the topic.
    The order of the checks is Kafka's. Kafka's sink ignores every ``timestamp`` column; here it is ignored only if its
    type is not TIMESTAMP, and logged once per process.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, or REPLOG_MISSING_OPTION if no topic is named.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name, (allowed, text) in _WRITTEN.items():
        data_type = types.get(name)
        if name == "topic" and topic is not None:
            continue
        if data_type is None and name == "topic":
            raise InvalidConfigError(
                ErrorCode.REPLOG_MISSING_OPTION,
                "topic option required when no 'topic' attribute is present. Use option('topic', ...).",
            )
        if data_type is None and name == "value":
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                "Required attribute 'value' not found. Select a string or binary column as value.",
                columns=",".join(types),
            )
        is_right = isinstance(data_type, allowed) and (not isinstance(data_type, ArrayType) or _are_headers(data_type))
        if data_type is not None and not is_right:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) {text}. "
                f"Cast the column '{name}'.",
            )
    if not isinstance(types.get("timestamp", TimestampType()), TimestampType):
        given = types["timestamp"].simpleString()  # the same rule on Arrow types is ``write.columns.is_time``
        if WARNED_TYPES.is_first(given):
            _LOG.warning(
                "the column 'timestamp' has type %s and is ignored, as by Kafka's sink: the rows get the time of the "
                "write. Cast it to TIMESTAMP to keep its times, or drop it.",
                given,
            )


def _are_headers(given: ArrayType) -> bool:
    if not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


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
        """Return the fixed schema, after the checks that do not depend on the mode."""
        freeze_garbage()
        options = dict(self.options)
        return read_schema(include_headers=check_schema_options(options), columns=asked_columns(options))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of ``spark.read``. Spark's planner process."""
        from spark_replog.spark.source.batch_reader import BatchReader, FilteringBatchReader

        options = parse_source_options(dict(self.options), streaming=False)
        check_read_schema(schema, include_headers=options.include_headers, columns=options.columns)
        if options.push_down_filters and is_worker(PUSH_DOWN_WORKER):
            return FilteringBatchReader(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of ``spark.readStream``. The query's own Python process, and the planner's."""
        from spark_replog.spark.source.stream_reader import StreamReader

        options = parse_source_options(dict(self.options), streaming=True)
        check_read_schema(schema, include_headers=options.include_headers, columns=options.columns)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of ``df.write``; the same object goes to tasks and to the commit.

        Checks in the order of Kafka's connector: the save mode, the options, the columns.
        """
        from spark_replog.spark.sink.sink import BatchWriter

        if overwrite:
            raise invalid_option(
                "save mode Overwrite not allowed for Kafka's log: a write never truncates it. Use mode('append')."
            )
        options = parse_sink_options(dict(self.options), streaming=False)
        check_write_schema(schema, topic=options.topic)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of ``df.writeStream``; Spark calls this twice per micro-batch.

        ``overwrite`` (output mode complete) appends, as Kafka's sink does: a log is never truncated.
        """
        from spark_replog.spark.sink.sink import StreamWriter

        options = parse_sink_options(dict(self.options), streaming=True)
        check_write_schema(schema, topic=options.topic)
        return StreamWriter(options)
