"""How the rows of one read are shared among tasks: pure arithmetic on offset ranges.

Source of the rule: Spark's Kafka connector, ``KafkaOffsetRangeCalculator``; users who tuned the Kafka
options get the same tasks here. Fewer tasks than partitions (``coalesce``) are ours.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_replog.ids import TopicPartition


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
    ranges: Sequence[OffsetRange],
    *,
    partitions_min: int | None,
    rows_per_partition_max: int | None,
    range_count: int = 0,
) -> list[OffsetRange]:
    """Return one range per task, in the order given; empty ranges get none.

    Args:
        ranges: one range per topic-partition.
        partitions_min: ``minPartitions``, a hint.
        rows_per_partition_max: ``maxRecordsPerPartition``.
        range_count: the ranges that ``partitions_min`` must exceed before anything is cut. A batch of the
            connector counts empty ones too, a stream does not.
    """
    pieces = [item for item in ranges if item.row_count > 0]
    if rows_per_partition_max is None and partitions_min is not None and partitions_min <= range_count:
        return pieces
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


def coalesce(pieces: Sequence[OffsetRange], partitions_max: int | None) -> list[list[OffsetRange]]:
    """Return the ranges of each task: one each, or at most ``partitions_max`` tasks that share them by size.

    Deterministic; the ranges of a task keep the order given.
    """
    if partitions_max is None or len(pieces) <= partitions_max:
        return [[piece] for piece in pieces]
    loads = [(0, number) for number in range(partitions_max)]
    groups: list[list[int]] = [[] for _ in range(partitions_max)]
    for at in sorted(range(len(pieces)), key=lambda at: (-pieces[at].row_count, at)):
        load, number = heapq.heappop(loads)
        groups[number].append(at)
        heapq.heappush(loads, (load + pieces[at].row_count, number))
    return [[pieces[at] for at in sorted(group)] for group in groups]


def _cut(item: OffsetRange, count: int) -> list[OffsetRange]:
    """Cut into ``count`` pieces, the smaller ones first; empty ones are dropped."""
    pieces: list[OffsetRange] = []
    start = item.start
    count = min(count, item.row_count)  # what else would be cut is empty
    for index in range(count):
        end = start + (item.end - start) // (count - index)
        pieces.append(OffsetRange(item.topic_partition, start, end))
        start = end
    return pieces


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)
