"""Computes how much one micro-batch reads, and how its rows are shared among tasks. Pure arithmetic.

Sources: ``KafkaMicroBatchStream`` (``rateLimit``, ``delayBatch``) and ``KafkaOffsetRangeCalculator``: options tuned for
Spark's Kafka connector give the same batches and tasks here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_replog.ids import TopicPartition

Offsets = Mapping[TopicPartition, int]
EndWithin = Callable[[TopicPartition, int, int, int], tuple[int, int]]
"""(partition, start, end, amount: bytes, or rows) to (exclusive end of that amount, amount up to it)."""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of a micro-batch; None: not limited.

    Attributes:
        rows_max: ``maxOffsetsPerTrigger``.
        rows_min: ``minOffsetsPerTrigger``.
        delay_max_ms: ``maxTriggerDelay``: the longest that rows wait for ``rows_min``.
        size_max_bytes: ``maxBytesPerTrigger``, of stored bytes.
    """

    rows_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = 0
    size_max_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Return whether any option was given."""
        return not (self.rows_max is None and self.rows_min is None and self.size_max_bytes is None)


class BatchDelay:
    """Decides whether enough rows wait for a micro-batch. One per query process.

    The time starts when unread rows are first seen, so rows that arrive after a long pause wait together, at most
    ``delay_max_ms``.
    """

    def __init__(self, rows_min: int, delay_max_ms: int) -> None:
        self._rows_min = rows_min
        self._delay_max_ms = delay_max_ms
        self._waiting_since_ms: int | None = None
        self._has_run = False

    def is_due(self, starts: Offsets, ends: Offsets, now_ms: int) -> bool:
        """Return whether to run a batch up to ``ends`` (exclusive); the first one after a start always runs."""
        pending = sum(max(end - starts[key], 0) for key, end in ends.items())
        if self._has_run and pending < self._rows_min:
            if pending == 0:
                self._waiting_since_ms = None
                return False
            if self._waiting_since_ms is None:
                self._waiting_since_ms = now_ms
            if now_ms - self._waiting_since_ms < self._delay_max_ms:
                return False
        self._has_run = True
        self._waiting_since_ms = None
        return True


def limit_rows(starts: Offsets, ends: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Return the ends that ``maxOffsetsPerTrigger`` allows, in proportion to the unread offsets.

    A partition with data always advances by at least one offset, so the sum can exceed the limit. Ends are exclusive.
    """
    sizes = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
    total = sum(sizes.values())
    limited: dict[TopicPartition, int] = {}
    for key, end in ends.items():
        size = sizes.get(key)
        if size is None:
            limited[key] = end
            continue
        share = rows_max * (size / total)
        take = math.ceil(share) if share < 1 else math.floor(share)
        limited[key] = min(end, starts[key] + take)
    return limited


def limit_amount(starts: Offsets, ends: Offsets, amount_max: int, end_within: EndWithin) -> dict[TopicPartition, int]:
    """Return the ends that a limit allows, in proportion to what is unread. Ends are exclusive.

    For ``maxBytesPerTrigger``, and for ``maxOffsetsPerTrigger`` where offsets have gaps.

    The backlog is counted up to the limit per partition, so the cost depends on the limit and not on the lag. A
    partition with data always advances by at least one offset.
    """
    waiting = {key: end_within(key, starts[key], end, amount_max) for key, end in ends.items() if end > starts[key]}
    total = sum(amount for _, amount in waiting.values())
    is_whole = all(end == ends[key] for key, (end, _) in waiting.items())
    if is_whole and total <= amount_max:
        return dict(ends)
    limited = dict(ends)
    for key, (_, amount) in waiting.items():
        share = max(amount_max * amount // max(total, 1), 1)
        limited[key] = max(end_within(key, starts[key], ends[key], share)[0], starts[key] + 1)
    return limited


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
        partitions_min: ``minPartitions``, a hint.
        rows_per_partition_max: ``maxRecordsPerPartition``.
        range_count: number of ranges that ``partitions_min`` must exceed before any is cut. In the connector a
            batch read counts empty ranges too, a stream does not.
    """
    pieces = [item for item in ranges if item.end > item.start]
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
    count = min(count, item.row_count)  # further pieces would be empty
    for index in range(count):
        end = start + (item.end - start) // (count - index)
        pieces.append(OffsetRange(item.topic_partition, start, end))
        start = end
    return pieces


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)
