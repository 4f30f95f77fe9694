"""``format("replog")``: the class that Spark looks up, and nothing else.

Spark makes it anew in several processes, so it keeps options only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.spark.compat import in_push_down_worker, patch_zipimport_if_asked
from spark_replog.spark.options import check_schema_options, parse_sink_options, parse_source_options
from spark_replog.spark.source.schema import check_read_schema, check_write_schema, read_schema

if TYPE_CHECKING:
    from spark_replog.spark.sink.sink import BatchWriter, StreamWriter
    from spark_replog.spark.source.batch_reader import BatchReader
    from spark_replog.spark.source.stream_reader import StreamReader

patch_zipimport_if_asked()


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
        """Return the fixed schema, having checked what can be checked without knowing the mode."""
        return read_schema(include_headers=check_schema_options(dict(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of ``spark.read``. Spark's planner process."""
        from spark_replog.spark.source.batch_reader import BatchReader

        options = parse_source_options(dict(self.options), streaming=False)
        check_read_schema(schema, include_headers=options.include_headers)
        if options.push_down_filters and in_push_down_worker():
            from spark_replog.spark.source.batch_reader import FilteringBatchReader

            return FilteringBatchReader(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of ``spark.readStream``. The query's own Python process, and the planner's."""
        from spark_replog.spark.source.stream_reader import StreamReader

        options = parse_source_options(dict(self.options), streaming=True)
        check_read_schema(schema, include_headers=options.include_headers)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of ``df.write``; the same object goes to tasks and to the commit.

        Refuses in the order of Kafka's connector: the save mode, the options, the columns.
        """
        from spark_replog.spark.sink.sink import BatchWriter

        if overwrite:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                "save mode Overwrite not allowed for Kafka's log, which a write never truncates. Use mode('append').",
            )
        options = parse_sink_options(dict(self.options), streaming=False)
        check_write_schema(schema, topic=options.topic)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of ``df.writeStream``; Spark asks twice per micro-batch.

        ``overwrite`` (output mode complete) appends, as Kafka's sink does: a log is never truncated.
        """
        from spark_replog.spark.sink.sink import StreamWriter

        options = parse_sink_options(dict(self.options), streaming=True)
        check_write_schema(schema, topic=options.topic)
        return StreamWriter(options)
