"""How much one micro-batch takes: pure rules over positions, sizes and a given time.

Source: ``KafkaMicroBatchStream`` (``rateLimit``, ``delayBatch``). The limit of bytes is ours, shared by
the same idea. A limit is only ever applied because its option is set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_replog.ids import TopicPartition

DELAY_MS_DEFAULT = 15 * 60_000

Offsets = Mapping[TopicPartition, int]
EndWithinBytes = Callable[[TopicPartition, int, int, int], tuple[int, int]]
"""(partition, start, end, size in bytes) to (exclusive end, bytes up to it): how far that many bytes reach."""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """What bounds a micro-batch; None is no bound.

    Attributes:
        rows_max: ``maxOffsetsPerTrigger``.
        rows_min: ``minOffsetsPerTrigger``.
        delay_max_ms: ``maxTriggerDelay``: the longest that rows wait for ``rows_min``.
        size_max_bytes: ``maxBytesPerTrigger``, of stored bytes.
    """

    rows_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = DELAY_MS_DEFAULT
    size_max_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Return whether any option was given."""
        return not (self.rows_max is None and self.rows_min is None and self.size_max_bytes is None)


class BatchDelay:
    """Decides whether enough rows wait for a micro-batch. One per query process.

    Time is counted from the moment that unread rows were first seen, so that rows which come after a long
    silence wait together, and never longer than ``delay_max_ms``.
    """

    def __init__(self, rows_min: int, delay_max_ms: int) -> None:
        self._rows_min = rows_min
        self._delay_max_ms = delay_max_ms
        self._waiting_since_ms: int | None = None
        self._has_run = False

    def is_due(self, starts: Offsets, ends: Offsets, now_ms: int) -> bool:
        """Return whether to run a batch up to ``ends``; the first one after a start always runs.

        Args:
            starts: offsets reached; its keys include those of ``ends``.
            ends: offsets that could be read up to.
            now_ms: of a clock that never goes back.
        """
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
    """Return the ends that ``maxOffsetsPerTrigger`` allows, shared in proportion to what waits.

    A partition with data always advances by at least one offset, so the sum can pass the limit.

    Args:
        starts: offsets reached; a partition that is missing is a caller's mistake.
        ends: offsets that could be read up to; its keys are those of the result.
        rows_max: at least 1.
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


def limit_bytes(
    starts: Offsets, ends: Offsets, size_max_bytes: int, end_within: EndWithinBytes
) -> dict[TopicPartition, int]:
    """Return the ends that ``maxBytesPerTrigger`` allows, shared in proportion to the bytes that wait.

    What waits is counted up to the limit per partition, so the cost depends on the limit and not on how far
    behind the query is. A partition with data always advances by at least one offset.

    Args:
        starts: offsets reached.
        ends: offsets that could be read up to; its keys are those of the result.
        size_max_bytes: at least 1.
        end_within: looks into the fold.
    """
    waiting = {key: end_within(key, starts[key], end, size_max_bytes) for key, end in ends.items() if end > starts[key]}
    total = sum(size_bytes for _, size_bytes in waiting.values())
    is_whole = all(end == ends[key] for key, (end, _) in waiting.items())
    if is_whole and total <= size_max_bytes:
        return dict(ends)
    limited = dict(ends)
    for key, (_, size_bytes) in waiting.items():
        share = max(size_max_bytes * size_bytes // max(total, 1), 1)
        limited[key] = max(end_within(key, starts[key], ends[key], share)[0], starts[key] + 1)
    return limited
