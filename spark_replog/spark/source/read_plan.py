"""From offset ranges to Spark's input partitions, with the checks that ``failOnDataLoss`` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.quota_manager import ClientQuotaManager
from spark_replog.read.fetch_plan import in_log_order
from spark_replog.spark.messages import ReadPartition, ReadRange
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.source.discovery import Loss, LossPolicy, offset_changed, removed_offsets, undecided_tail
from spark_replog.spark.source.sizing import OffsetRange, coalesce, split_ranges
from spark_replog.spark.source.topics import LogView, plan_range


def check_ranges(ranges: Iterable[OffsetRange], view: LogView, losses: LossPolicy) -> list[OffsetRange]:
    """Return the ranges cut down to what the log holds now.

    Raises:
        ReplogError: REPLOG_DATA_LOSS: a range begins before the log or ends after its high watermark.
        RetriableError: REPLOG_TAIL_UNDECIDED: it ends after the high watermark that is known while too few roots
            answer.
    """
    result: list[OffsetRange] = []
    for item in ranges:
        key = item.topic_partition
        log_start, high_watermark = view.bounds[key]
        start, end = max(item.start, log_start), min(item.end, high_watermark)
        if item.start < log_start and item.row_count > 0:
            gone = min(item.end, log_start)
            losses.report(
                Loss.COULD_NOT_READ_OFFSET_RANGE,
                f"Could not read records: offsets {item.start} to {gone} (exclusive) of {key.topic}-{key.partition} "
                + removed_offsets(log_start, is_trimmed=key in view.trimmed),
            )
        if max(item.start, item.end) > high_watermark:
            if key.topic in view.unclear:
                raise undecided_tail(key.topic)
            losses.report(
                Loss.PARTITION_OFFSET_CHANGED,
                offset_changed(key.topic, key.partition, max(item.start, item.end), high_watermark),
            )
        if end > start:
            result.append(OffsetRange(key, start, end))
    return result


def plan_partitions(
    cluster: Cluster, view: LogView, ranges: Sequence[OffsetRange], options: SourceOptions, *, range_count: int = 0
) -> list[ReadPartition]:
    """Return one input partition per range, more or fewer where the options ask for them.

    Args:
        cluster: the store.
        view: has the topics of the ranges.
        ranges: of the log as it is.
        options: of the read.
        range_count: see ``split_ranges``.
    """
    pieces = split_ranges(
        ranges,
        partitions_min=options.partitions_min,
        rows_per_partition_max=options.rows_per_partition_max,
        range_count=range_count,
    )
    principal = Authorizer(cluster, options.principal).principal
    quota = ClientQuotaManager(cluster).fetch_quota(principal, options.client_id)
    partitions = []
    for group in coalesce(pieces, options.partitions_max):
        handles = [view.handles[piece.topic_partition.topic] for piece in group]
        partitions.append(
            ReadPartition(
                ranges=tuple(
                    ReadRange(
                        handle.name,
                        handle.topic_id,
                        handle.ledger_id,
                        piece.topic_partition.partition,
                        piece.start,
                        piece.end,
                    )
                    for piece, handle in zip(group, handles, strict=True)
                ),
                slices=in_log_order(
                    [plan_range(cluster, handle, piece) for piece, handle in zip(group, handles, strict=True)]
                ),
                brokers=cluster.brokers,
                quota=quota,
            )
        )
    return partitions
