"""Arrow batches into the accumulator: rows sorted by partition once, slices without copying.

The write task and ``Producer.send_arrow`` run it. Per range of rows: one stable sort by partition
and one ``take``. Memory is reserved before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from spark_replog.clock import Clock
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import PinnedBytes
from spark_replog.write.columns import Rows
from spark_replog.write.murmur2 import Int64Array
from spark_replog.write.record_handle import RecordHandle
from spark_replog.write.row_router import RowRouter, SlotRows

RANGE_BYTES_MAX = 8 * 1024 * 1024
"""Rows sorted and gathered together: small enough for the cache, large enough for few slices."""


class ArrowAppender:
    """Appends rows of Arrow batches. Not thread-safe.

    Args:
        router: finds each row's queue.
        accumulator: takes the slices.
        batch_size_bytes: ``batch.size``: slices of about so many bytes.
        max_block_ms: how long a reservation may wait for memory.
        clock: creation times of batches.
        make_progress: what a single-threaded owner does while memory is waited for; None: another
            thread runs the sender.
        after_range: called behind each range of rows.
    """

    def __init__(
        self,
        router: RowRouter,
        accumulator: RecordAccumulator,
        *,
        batch_size_bytes: int,
        max_block_ms: int,
        clock: Clock,
        make_progress: Callable[[int], None] | None = None,
        after_range: Callable[[], None] | None = None,
    ) -> None:
        self._router = router
        self._accumulator = accumulator
        self._pool = accumulator.pool
        self._range_bytes = max(1, min(RANGE_BYTES_MAX, self._pool.total_bytes // 8))
        self._batch_size_bytes = batch_size_bytes
        self._max_block_ms = max_block_ms
        self._clock = clock
        self._make_progress = make_progress
        self._after_range = after_range

    def append(self, rows: Rows) -> Iterator[tuple[RecordHandle, int]]:
        """Append N >= 1 rows; yields, for each slice, its first row's handle and its number of rows.

        Nothing is appended but what was yielded, so it must be run to its end.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION:
                nothing was appended.
            RetriableError: REPLOG_BUFFER_EXHAUSTED: the ranges before were appended.
        """
        slots = self._router.route(rows)
        ends = np.cumsum(rows.sizes)
        lone = slots.lone_slot
        record_size_max = int(rows.sizes.max())
        is_lean = rows.pinned_bytes <= min(2 * int(ends[-1]), self._pool.total_bytes // 4)
        if lone is not None and is_lean:
            pinned = self._reserve(rows.pinned_bytes)
            yield from self._append_slices(SlotRows.of_one(rows.data, lone, rows.sizes), pinned, record_size_max)
            pinned.release()
            return
        for start, stop in _ranges(ends, self._range_bytes):
            size_bytes = int(ends[stop - 1]) - (int(ends[start - 1]) if start else 0)
            pinned = self._reserve(size_bytes)
            yield from self._append_slices(slots.gather(rows, start, stop), pinned, record_size_max)
            pinned.release()
            if self._after_range is not None:
                self._after_range()

    def _append_slices(
        self, gathered: SlotRows, pinned: PinnedBytes, record_size_max: int
    ) -> Iterator[tuple[RecordHandle, int]]:
        now_ms = self._clock.monotonic_ms()
        for slot, start, stop, size_bytes in gathered.pieces(self._batch_size_bytes):
            route = self._router.slot(slot)
            handle = self._accumulator.append(
                route.topic_partition,
                route.destination,
                gathered.data.slice(start, stop - start),
                size_bytes,
                pinned,
                now_ms,
                record_size_max,
            )
            yield handle, stop - start

    def _reserve(self, size_bytes: int) -> PinnedBytes:
        self._pool.allocate(size_bytes, self._max_block_ms, self._make_progress)
        return PinnedBytes(self._pool, size_bytes)


def _ranges(ends: Int64Array, range_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) row ranges of at most ``range_bytes``, or one row where that is larger."""
    start, start_bytes = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, start_bytes + range_bytes, side="right")))
        yield start, stop
        start, start_bytes = stop, int(ends[stop - 1])


__all__ = ["ArrowAppender"]
