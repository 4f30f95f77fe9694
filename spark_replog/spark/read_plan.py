"""From offset ranges to Spark's input partitions, with the checks that ``failOnDataLoss`` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_replog.coordinator.cluster import Cluster
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.splitting import OffsetRange, split_ranges
from spark_replog.spark.topics import LogView, data_loss, plan_range


def check_ranges(ranges: Iterable[OffsetRange], view: LogView, *, fail: bool) -> list[OffsetRange]:
    """Return the ranges cut down to what the log holds now.

    Raises:
        ReplogError: REPLOG_DATA_LOSS: a range begins before the log or ends behind its high watermark.
    """
    result: list[OffsetRange] = []
    for item in ranges:
        key = item.topic_partition
        log_start, high_watermark = view.bounds[key]
        start, end = max(item.start, log_start), min(item.end, high_watermark)
        if item.start < log_start and item.row_count > 0:
            data_loss(
                f"offsets {item.start} to {log_start} of {key.topic}-{key.partition} were removed by retention "
                "or a trim before they were read.",
                fail=fail,
            )
        if item.end > high_watermark or item.start > high_watermark:
            data_loss(
                f"offset {max(item.start, item.end)} of {key.topic}-{key.partition} is past the end "
                f"{high_watermark} of the log: the position was set too high.",
                fail=fail,
            )
        if end > start:
            result.append(OffsetRange(key, start, end))
    return result


def plan_partitions(
    cluster: Cluster, view: LogView, ranges: Sequence[OffsetRange], options: SourceOptions
) -> list[ReadPartition]:
    """Return one input partition per range, more where ``minPartitions`` or its like ask for them."""
    pieces = split_ranges(
        ranges,
        partitions_min=options.partitions_min,
        rows_per_partition_max=options.rows_per_partition_max,
    )
    partitions = []
    for piece in pieces:
        handle = view.handles[piece.topic_partition.topic]
        partitions.append(
            ReadPartition(
                topic=handle.name,
                topic_id=handle.topic_id,
                ledger_id=handle.ledger_id,
                partition=piece.topic_partition.partition,
                start=piece.start,
                end=piece.end,
                slices=plan_range(cluster, handle, piece),
                brokers=cluster.brokers,
            )
        )
    return partitions
