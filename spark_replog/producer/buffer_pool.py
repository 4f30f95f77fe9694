"""The bound on what a producer keeps in memory: ``buffer.memory``.

Source: Kafka ``BufferPool``. Arrow owns the bytes here, so the pool counts them and hands out
none: an allocation is a reservation, made before the memory is, and given back when the last
slice that keeps it alive is gone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from spark_replog.clock import Clock
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError


class _Waiter:
    """One blocked allocation; keeps what it got so far, so that a large one cannot starve."""

    __slots__ = ("condition", "missing_bytes", "size_bytes")

    def __init__(self, size_bytes: int, lock: threading.Lock) -> None:
        self.size_bytes = size_bytes
        self.missing_bytes = size_bytes
        self.condition = threading.Condition(lock)


class BufferPool:
    """Counts bytes; blocked allocations are served strictly in order of arrival.

    Thread-safe: one lock, one condition per waiter.

    Invariants:
        available = total - allocated - charged - what waiters hold already.
        Only the head of the queue is given memory.

    Args:
        total_bytes: ``buffer.memory``.
        clock: measures how long an allocation was blocked.
    """

    def __init__(self, total_bytes: int, *, clock: Clock) -> None:
        self.total_bytes = total_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._available_bytes = total_bytes
        self._waiters: deque[_Waiter] = deque()
        self._is_closed = False

    @property
    def available_bytes(self) -> int:
        """Return what can be allocated now; negative while charges exceed the total."""
        return self._available_bytes

    @property
    def queued_count(self) -> int:
        """Return how many allocations are blocked."""
        return len(self._waiters)

    def allocate(self, size_bytes: int, max_block_ms: int, run_once: Callable[[int], None] | None = None) -> None:
        """Reserve bytes, waiting for others to give theirs back.

        Args:
            size_bytes: how many.
            max_block_ms: how long to wait at most (``max.block.ms``).
            run_once: a single-threaded owner's way forward: called again and again with the
                milliseconds that are left, it moves the sender and may wait for its answers.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, more than the pool will ever have.
            RetriableError: REPLOG_BUFFER_EXHAUSTED after ``max_block_ms``; nothing is held.
            ReplogError: INVALID_REQUEST, the pool was closed; nothing is held.
        """
        if size_bytes > self.total_bytes:
            raise InvalidConfigError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{size_bytes} bytes are asked for at once, more than buffer.memory ({self.total_bytes}). "
                "Raise buffer.memory.",
                size_bytes=size_bytes,
            )
        with self._lock:
            self._check_open()
            if self._available_bytes >= size_bytes:
                self._available_bytes -= size_bytes
                return
            waiter = _Waiter(size_bytes, self._lock)
            self._waiters.append(waiter)
            self._serve_head()
        try:
            self._wait(waiter, max_block_ms, run_once)
        except BaseException:
            with self._lock:
                self._withdraw(waiter)
            raise

    def charge(self, size_bytes: int) -> None:
        """Count bytes that exist already, without waiting: the copy that lets a larger original go."""
        with self._lock:
            self._available_bytes -= size_bytes

    def deallocate(self, size_bytes: int) -> None:
        """Give bytes back; works after ``close`` too."""
        with self._lock:
            self._available_bytes += size_bytes
            assert self._available_bytes <= self.total_bytes, "more was given back than taken"
            self._serve_head()

    def close(self) -> None:
        """Refuse new allocations and fail the blocked ones."""
        with self._lock:
            self._is_closed = True
            for waiter in self._waiters:
                waiter.condition.notify()

    def _wait(self, waiter: _Waiter, max_block_ms: int, run_once: Callable[[int], None] | None) -> None:
        deadline_ms = self._clock.monotonic_ms() + max_block_ms
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            with self._lock:
                if waiter.missing_bytes == 0:
                    return
                self._check_open()
                if left_ms <= 0:
                    raise self._exhausted(waiter, max_block_ms)
                if run_once is None:
                    waiter.condition.wait(left_ms / 1000)
            if run_once is not None:
                run_once(left_ms)

    def _serve_head(self) -> None:
        while self._waiters and self._available_bytes > 0:
            head = self._waiters[0]
            given_bytes = min(self._available_bytes, head.missing_bytes)
            self._available_bytes -= given_bytes
            head.missing_bytes -= given_bytes
            if head.missing_bytes:
                return
            self._waiters.popleft()
            head.condition.notify()

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._available_bytes += waiter.size_bytes - waiter.missing_bytes
        self._serve_head()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReplogError(
                ErrorCode.INVALID_REQUEST,
                "the producer was closed while memory was asked for. Open a new one.",
            )

    def _exhausted(self, waiter: _Waiter, max_block_ms: int) -> RetriableError:
        return RetriableError(
            ErrorCode.REPLOG_BUFFER_EXHAUSTED,
            f"no {waiter.size_bytes} bytes of buffer.memory ({self.total_bytes}) became free within max.block.ms "
            f"({max_block_ms}): the roots take data slower than rows arrive. Raise max.block.ms or buffer.memory.",
        )


class PinnedBytes:
    """A reservation shared by all slices of one piece of Arrow memory, given back with the last one.

    Args:
        pool: which already counts ``size_bytes``.
        size_bytes: what stays alive as long as any slice does.
    """

    __slots__ = ("_holder_count", "_lock", "_pool", "live_bytes", "size_bytes")

    def __init__(self, pool: BufferPool, size_bytes: int) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._holder_count = 1
        self.size_bytes = size_bytes
        self.live_bytes = 0

    @property
    def is_wasteful(self) -> bool:
        """Return whether more than twice the slices' own bytes are kept alive by them."""
        return self.size_bytes > 2 * self.live_bytes

    def retain(self, slice_bytes: int) -> None:
        """Add a slice."""
        with self._lock:
            assert self._holder_count > 0, "given back already"
            self._holder_count += 1
            self.live_bytes += slice_bytes

    def release(self, slice_bytes: int = 0) -> None:
        """Drop a slice, or without a size the maker's own hold; the last one gives the bytes back."""
        with self._lock:
            self._holder_count -= 1
            self.live_bytes -= slice_bytes
            is_last = self._holder_count == 0
        if is_last:
            self._pool.deallocate(self.size_bytes)


__all__ = ["BufferPool", "PinnedBytes"]
