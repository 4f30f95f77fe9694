"""``spark.read``: a snapshot of the log, resolved once.

Spark plans a batch read once per DataFrame and uses the plan for every action on it, so that all
of them see the same offsets (Kafka's connector resolves ``latest`` anew in each task).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_replog.cluster.cluster import Cluster
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.source.data_loss import LossPolicy
from spark_replog.spark.source.read_bounds import check_resolved
from spark_replog.spark.source.read_plan import check_ranges, plan_partitions
from spark_replog.spark.source.splitting import OffsetRange
from spark_replog.spark.source.topics import LogView, offsets_for_times_of, view_topics

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Planned in Spark's planner process, pickled, then read in executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Resolve both ends and return the tasks.

        Raises:
            ReplogError: REPLOG_INVALID_OPTION, REPLOG_DATA_LOSS, UNKNOWN_TOPIC_OR_PARTITION.
        """
        options = self._options
        cluster = options.store.cluster()
        view = view_topics(cluster, options.subscription, principal=options.principal).require_all()
        lookup, now_ms = offsets_for_times_of(cluster, view), cluster.clock.now_ms()
        starts = options.starting.resolve(view.bounds, lookup, now_ms)
        ends = options.ending.resolve(view.bounds, lookup, now_ms)
        check_resolved(starts, ends)
        ranges = [OffsetRange(key, starts[key], ends[key]) for key in sorted(starts)]
        ranges = check_ranges(ranges, view, LossPolicy(fail=options.fail_on_data_loss))
        ranges = self.narrow(cluster, view, ranges)
        return list(plan_partitions(cluster, view, ranges, options, range_count=len(starts)))

    def narrow(self, cluster: Cluster, view: LogView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges to read: all, where no filter was pushed down."""
        return list(ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows. Executor."""
        if not isinstance(partition, ReadPartition):
            return iter(())  # Spark's stand-in for a read without partitions
        from spark_replog.spark.source.reading import read_partition

        return read_partition(partition, self._options)
