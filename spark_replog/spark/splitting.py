"""How the rows of one read are shared among tasks and triggers: pure arithmetic on offset ranges.

Source of both rules: Spark's Kafka connector, ``KafkaOffsetRangeCalculator`` and
``KafkaMicroBatchStream.rateLimit``; users who tuned the Kafka options get the same tasks here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_replog.ids import TopicPartition

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def row_count(self) -> int:
        """Return the number of offsets."""
        return self.end - self.start


def split_ranges(
    ranges: Sequence[OffsetRange], *, partitions_min: int | None, rows_per_partition_max: int | None
) -> list[OffsetRange]:
    """Return one range per task, in the order given; empty ranges get none.

    Args:
        ranges: one range per topic-partition.
        partitions_min: ``minPartitions``, a hint.
        rows_per_partition_max: ``maxRecordsPerPartition``.
    """
    pieces = [item for item in ranges if item.row_count > 0]
    if rows_per_partition_max is not None:
        pieces = [piece for item in pieces for piece in _cut(item, -(-item.row_count // rows_per_partition_max))]
    if partitions_min is None or partitions_min <= len(pieces):
        return pieces
    total = sum(piece.row_count for piece in pieces)
    small = {
        piece.topic_partition
        for piece in pieces
        if max(_round_half_up(piece.row_count / total * partitions_min), 1) == 1
    }
    small_pieces = [piece for piece in pieces if piece.topic_partition in small]
    rest_total = total - sum(piece.row_count for piece in small_pieces)
    rest_target = max(partitions_min - len(small_pieces), 1)
    result: list[OffsetRange] = []
    for piece in pieces:
        if piece.topic_partition in small:
            result.append(piece)
            continue
        result.extend(_cut(piece, max(_round_half_up(piece.row_count / rest_total * rest_target), 1)))
    return result


def limit_ends(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], row_limit: int
) -> dict[TopicPartition, int]:
    """Return the ends that ``maxOffsetsPerTrigger`` allows, shared in proportion to what waits.

    A partition with data always advances by at least one offset, so the sum can pass the limit.

    Args:
        starts: offsets reached; a partition that is missing is a caller's mistake.
        ends: offsets that could be read up to; its keys are those of the result.
        row_limit: at least 1.
    """
    sizes = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
    total = sum(sizes.values())
    if total == 0:
        return dict(ends)
    limited: dict[TopicPartition, int] = {}
    for key, end in ends.items():
        size = sizes.get(key)
        if size is None:
            limited[key] = end
            continue
        share = row_limit * (size / total)
        take = math.ceil(share) if share < 1 else math.floor(share)
        limited[key] = min(end, starts[key] + take, OFFSET_MAX)
    return limited


def _cut(item: OffsetRange, count: int) -> list[OffsetRange]:
    """Cut into ``count`` pieces, the smaller ones first; empty ones are dropped."""
    pieces: list[OffsetRange] = []
    start = item.start
    for index in range(count):
        end = start + (item.end - start) // (count - index)
        if end > start:
            pieces.append(OffsetRange(item.topic_partition, start, end))
        start = end
    return pieces


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)
