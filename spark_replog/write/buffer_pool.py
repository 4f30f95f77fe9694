"""Limits the memory of a producer: ``buffer.memory``.

Source: Kafka ``BufferPool``. Two kinds of memory share the limit. Single records are written into
buffers of ``batch.size`` that the pool hands out and reuses. Arrow owns the memory of Arrow slices and
the pool only counts it: bytes are reserved before the memory is allocated, and returned when the last
slice that keeps the memory alive is released.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.process_state import in_each_child
from spark_replog.storage.direct_write import free_blocks

PAGES_KEPT_MS = 5_000
"""The next task of a Spark worker usually begins sooner."""


def trim_row_memory() -> None:
    """Return the pages that ``ROW_MEMORY`` keeps to the kernel. Arrow's ``release_unused`` does not do so for it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


class KeptPages:
    """Keeps the pages of released rows for the next task of this process; returns them once none has come.

    The kernel zeroes each page that it gives out again, which takes a fifth of a task's time.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again. A forked child has no thread, and may have inherited a held lock."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._due_ms = 0
        self._has_thread = False

    def keep(self) -> None:
        """Keep the pages for `PAGES_KEPT_MS` from now."""
        with self._lock:
            self._due_ms = SYSTEM_CLOCK.monotonic_ms() + PAGES_KEPT_MS
            if self._has_thread:
                return
            try:
                DaemonThread(self._run, name="replog-pages", stop=self._ending.set).start()
                self._has_thread = True
            except RuntimeError:  # without a thread they would never be returned
                self._give_back()

    def _run(self) -> None:
        while not self._ending.is_set():
            with self._lock:
                left_ms = self._due_ms - SYSTEM_CLOCK.monotonic_ms()
                if left_ms <= 0:
                    self._has_thread = False
                    self._give_back()
                    return
            self._ending.wait(left_ms / 1000)

    def _give_back(self) -> None:
        free_blocks.clear()
        trim_row_memory()


KEPT_PAGES = KeptPages()
"""This process's."""
in_each_child(KEPT_PAGES.forget)


class _Waiter:
    """One blocked allocation. It keeps the bytes it already got, so that a large one does not starve."""

    __slots__ = ("buffer", "condition", "missing_bytes", "size_bytes", "takes_buffer")

    def __init__(self, size_bytes: int, takes_buffer: bool, lock: threading.Lock) -> None:
        self.size_bytes = size_bytes
        self.missing_bytes = size_bytes
        self.takes_buffer = takes_buffer
        self.buffer: bytearray | None = None
        self.condition = threading.Condition(lock)


class BufferPool:
    """Counts bytes and keeps buffers; serves blocked allocations strictly in order of arrival.

    Thread-safe: one lock, one condition per waiter.

    Invariants:
        available = total - allocated - charged - what waiters hold already.
        available = unallocated + free buffers x ``poolable_bytes``.
        Only the head of the queue gets memory. While an allocation waits, nothing is available.

    Args:
        total_bytes: ``buffer.memory``.
        poolable_bytes: ``batch.size``: buffers of this size are kept for reuse; 0: none are.
        on_wait: called after each blocked allocation: for how many milliseconds, and whether memory stayed exhausted.

    Attributes:
        unallocated_bytes: available bytes outside the free buffers (Kafka ``unallocatedMemory``).
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        clock: Clock,
        poolable_bytes: int = 0,
        on_wait: Callable[[int, bool], None] = lambda _waited_ms, _is_exhausted: None,
    ) -> None:
        self.total_bytes = total_bytes
        self.poolable_bytes = poolable_bytes
        self._clock = clock
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self.unallocated_bytes = total_bytes
        self._free: deque[bytearray] = deque()
        self.waiters: deque[_Waiter] = deque()
        """The blocked allocations, oldest first."""
        self._is_closed = False
        self._wait_ms = 0
        self._exhausted_count = 0

    @property
    def available_bytes(self) -> int:
        """Return the bytes that can be allocated now; negative while charges exceed the total."""
        return self.unallocated_bytes + len(self._free) * self.poolable_bytes

    def metrics(self) -> dict[str, float]:
        """Return the pool's figures by Kafka's names."""
        with self._lock:
            return {
                "buffer-total-bytes": self.total_bytes,
                "buffer-available-bytes": self.available_bytes,
                "waiting-threads": len(self.waiters),
                "bufferpool-wait-time-ns-total": self._wait_ms * 1_000_000,
                "buffer-exhausted-total": self._exhausted_count,
            }

    def allocate(
        self,
        size_bytes: int,
        max_block_ms: int,
        run_once: Callable[[int], None] | None = None,
        *,
        takes_buffer: bool = False,
    ) -> bytearray | None:
        """Reserve bytes, waiting until enough are returned; return a used buffer if one was taken, else None.

        Args:
            run_once: runs the sender of a single-threaded owner and may wait for its answers; called repeatedly
                with the milliseconds left. None: another thread runs the sender.
            takes_buffer: take a free buffer if ``size_bytes`` is ``batch.size``.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, more than the pool will ever have.
            RetriableError: REPLOG_BUFFER_EXHAUSTED after ``max_block_ms``; nothing is held.
            ReplogError: REPLOG_PRODUCER_CLOSED, the pool was closed; nothing is held.
        """
        if size_bytes > self.total_bytes:
            raise InvalidConfigError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{size_bytes} bytes are more than all of buffer.memory ({self.total_bytes}). Raise buffer.memory.",
                size_bytes=size_bytes,
            )
        with self._lock:
            if self._is_closed:
                raise _closed()
            if takes_buffer and size_bytes == self.poolable_bytes and self._free:
                return self._free.popleft()
            if self.available_bytes >= size_bytes:
                if self._free:
                    self._free_up(size_bytes)
                self.unallocated_bytes -= size_bytes
                return None
            waiter = _Waiter(size_bytes, takes_buffer, self._lock)
            self.waiters.append(waiter)
            self._serve_head()
        try:
            self._wait(waiter, max_block_ms, run_once)
        except BaseException:
            with self._lock:
                self._withdraw(waiter)
            raise
        return waiter.buffer

    def allocate_buffer(self, size_bytes: int, max_block_ms: int) -> bytearray:
        """Reserve bytes and return a buffer of them with any contents; a used one if its size is ``batch.size``.

        Raises:
            InvalidConfigError, RetriableError, ReplogError: as ``allocate``.
            MemoryError: the process has no memory left; nothing is held.
        """
        buffer = self.allocate(size_bytes, max_block_ms, takes_buffer=True)
        if buffer is not None:
            return buffer
        try:
            return self._new_buffer(size_bytes)
        except BaseException:
            self.deallocate(size_bytes)
            raise

    def charge(self, size_bytes: int) -> PinnedBytes:
        """Reserve bytes that exist already, without waiting: a copy made to release a larger original."""
        with self._lock:
            self.unallocated_bytes -= size_bytes
        return PinnedBytes(self, size_bytes)

    def deallocate(self, size_bytes: int, buffer: bytearray | None = None) -> None:
        """Give bytes back; works after ``close`` too.

        Args:
            buffer: the buffer of these bytes, for reuse; None if something may still read it.
        """
        with self._lock:
            if buffer is not None and size_bytes == self.poolable_bytes == len(buffer) and not self._is_closed:
                self._free.append(buffer)
            else:
                self.unallocated_bytes += size_bytes
            assert self.available_bytes <= self.total_bytes, "more was given back than taken"
            if self.waiters:
                self._serve_head()

    def close(self) -> None:
        """Refuse new allocations and fail the blocked ones."""
        with self._lock:
            self._is_closed = True
            for waiter in self.waiters:
                waiter.condition.notify()

    def _new_buffer(self, size_bytes: int) -> bytearray:
        return bytearray(size_bytes)

    def _wait(self, waiter: _Waiter, max_block_ms: int, run_once: Callable[[int], None] | None) -> None:
        start_ms = self._clock.monotonic_ms()
        deadline_ms = start_ms + max_block_ms
        while True:
            now_ms = self._clock.monotonic_ms()
            left_ms = deadline_ms - now_ms
            with self._lock:
                if waiter.missing_bytes == 0:
                    self._wait_ms += now_ms - start_ms
                    self._on_wait(now_ms - start_ms, False)
                    return
                if self._is_closed:
                    raise _closed()
                if left_ms <= 0:
                    self._wait_ms += now_ms - start_ms
                    self._exhausted_count += 1
                    self._on_wait(now_ms - start_ms, True)
                    raise self._exhausted(waiter, max_block_ms)
                if run_once is None:
                    waiter.condition.wait(min(left_ms / 1000, threading.TIMEOUT_MAX))
            if run_once is not None:
                run_once(left_ms)

    def _serve_head(self) -> None:
        while self.waiters and self.available_bytes > 0:
            head = self.waiters[0]
            wants_buffer = head.takes_buffer and head.missing_bytes == head.size_bytes == self.poolable_bytes
            if wants_buffer and self._free:
                head.buffer = self._free.popleft()
                head.missing_bytes = 0
            else:
                self._free_up(head.missing_bytes)
                given_bytes = min(self.unallocated_bytes, head.missing_bytes)
                self.unallocated_bytes -= given_bytes
                head.missing_bytes -= given_bytes
            if head.missing_bytes:
                return
            self.waiters.popleft()
            head.condition.notify()

    def _free_up(self, size_bytes: int) -> None:
        """Drop free buffers, the most recently used first, until ``size_bytes`` are unallocated."""
        while self._free and self.unallocated_bytes < size_bytes:
            self._free.pop()
            self.unallocated_bytes += self.poolable_bytes

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        if waiter.buffer is not None:
            self._free.append(waiter.buffer)
        else:
            self.unallocated_bytes += waiter.size_bytes - waiter.missing_bytes
        self._serve_head()

    def _exhausted(self, waiter: _Waiter, max_block_ms: int) -> RetriableError:
        return RetriableError(
            ErrorCode.REPLOG_BUFFER_EXHAUSTED,
            f"{waiter.size_bytes} bytes of buffer.memory ({self.total_bytes}) did not become free within max.block.ms "
            f"({max_block_ms}): rows arrive faster than the roots store them. Raise max.block.ms or buffer.memory.",
        )


def _closed() -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_PRODUCER_CLOSED,
        "The producer was closed while an append waited for memory. Open a new one.",
    )


class PinnedBytes:
    """A reservation shared by all slices of one piece of Arrow memory; the last slice gives it back.

    Args:
        pool: already counts ``size_bytes``.
        size_bytes: memory that stays alive as long as any slice does.
        buffer: the pool's own buffer of these bytes, to be reused.
    """

    __slots__ = ("_buffer", "_holder_count", "_lock", "_pool", "live_bytes", "size_bytes")

    def __init__(self, pool: BufferPool, size_bytes: int, buffer: bytearray | None = None) -> None:
        self._pool = pool
        self._buffer = buffer
        self._lock = threading.Lock()
        self._holder_count = 1
        self.size_bytes = size_bytes
        self.live_bytes = 0

    @property
    def is_wasteful(self) -> bool:
        """Return whether the slices keep more than twice their own bytes alive."""
        return self.size_bytes > 2 * self.live_bytes

    def retain(self, slice_bytes: int) -> None:
        """Add a slice."""
        with self._lock:
            assert self._holder_count > 0, "given back already"
            self._holder_count += 1
            self.live_bytes += slice_bytes

    def release(self, slice_bytes: int = 0) -> None:
        """Drop a slice, or without a size the creator's own hold; the last hold gives the bytes back."""
        with self._lock:
            self._holder_count -= 1
            self.live_bytes -= slice_bytes
            is_last = self._holder_count == 0
        if is_last:
            buffer, self._buffer = self._buffer, None
            self._pool.deallocate(self.size_bytes, buffer)

    def forbid_reuse(self) -> None:
        """Keep the buffer from being reused: a put that cannot be stopped may still read it."""
        self._buffer = None
