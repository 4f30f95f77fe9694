"""Hierarchical timing wheel: timers that cost O(1) to add and to cancel.

Source: Kafka's ``TimingWheel``, ``TimerTaskList``, ``SystemTimer``. It owns no thread and
no clock: whoever waits advances it to the time it has read. A task runs at or after its
expiry, never before, and at most one tick of the finest wheel late.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

TICK_MS = 1
WHEEL_SIZE = 20


class TimerTask:
    """One timer. Belongs to one bucket at a time."""

    __slots__ = ("action", "bucket", "cancelled", "expiry_ms")

    def __init__(self, expiry_ms: int, action: Callable[[], None]) -> None:
        self.expiry_ms = expiry_ms
        self.action = action
        self.bucket: dict[TimerTask, None] | None = None
        self.cancelled = False


class _Wheel:
    """One level: ``size`` buckets of ``tick_ms`` each."""

    __slots__ = ("buckets", "current_ms", "expiries", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.size = size
        self.interval_ms = tick_ms * size
        self.current_ms = start_ms - start_ms % tick_ms
        self.buckets: list[dict[TimerTask, None]] = [{} for _ in range(size)]
        self.expiries: list[int] = [-1] * size
        self.overflow: _Wheel | None = None


class Timer:
    """Thread safe. Actions run in the thread that advances, outside the lock.

    Args:
        start_ms: the time now.
        tick_ms: resolution.
        size: buckets a level; level n has ticks of the whole interval of level n-1.
    """

    def __init__(self, start_ms: int, *, tick_ms: int = TICK_MS, size: int = WHEEL_SIZE) -> None:
        self._wheel = _Wheel(tick_ms, size, start_ms)
        self._due: list[tuple[int, int, _Wheel, int]] = []
        self._pushed = 0
        self._size = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Return how many tasks are pending."""
        return self._size

    def add(self, expiry_ms: int, action: Callable[[], None]) -> TimerTask:
        """Start a timer. One that is already due runs at once, in this thread."""
        task = TimerTask(expiry_ms, action)
        with self._lock:
            is_pending = self._insert(task)
            self._size += is_pending
        if not is_pending:
            task.action()
        return task

    def cancel(self, task: TimerTask) -> bool:
        """Stop a timer; False when it already ran or was cancelled."""
        with self._lock:
            task.cancelled = True
            if task.bucket is None:
                return False
            del task.bucket[task]
            task.bucket = None
            self._size -= 1
            return True

    def next_expiry_ms(self) -> int | None:
        """Return when ``advance`` has something to look at; None when nothing is pending."""
        with self._lock:
            return self._due[0][0] if self._due and self._size else None

    def advance(self, now_ms: int) -> int:
        """Move to ``now_ms`` and run what is due; return how many ran."""
        expired: list[TimerTask] = []
        with self._lock:
            while self._due and self._due[0][0] <= now_ms:
                expiry_ms, _, wheel, slot = heapq.heappop(self._due)
                self._advance_wheels(expiry_ms)
                bucket = wheel.buckets[slot]
                wheel.buckets[slot] = {}
                wheel.expiries[slot] = -1
                for task in bucket:
                    task.bucket = None
                    if not self._insert(task):
                        self._size -= 1
                        expired.append(task)
            self._advance_wheels(now_ms)
        for task in expired:
            task.action()
        return len(expired)

    def _advance_wheels(self, now_ms: int) -> None:
        wheel: _Wheel | None = self._wheel
        while wheel is not None and now_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = now_ms - now_ms % wheel.tick_ms
            wheel = wheel.overflow

    def _insert(self, task: TimerTask) -> bool:
        """Put the task into a bucket; False when it is due."""
        wheel = self._wheel
        if task.expiry_ms < wheel.current_ms + wheel.tick_ms:
            return False
        while task.expiry_ms >= wheel.current_ms + wheel.interval_ms:
            if wheel.overflow is None:
                wheel.overflow = _Wheel(wheel.interval_ms, wheel.size, wheel.current_ms)
            wheel = wheel.overflow
        number = task.expiry_ms // wheel.tick_ms
        slot = number % wheel.size
        bucket_expiry_ms = number * wheel.tick_ms
        if wheel.expiries[slot] != bucket_expiry_ms:
            wheel.expiries[slot] = bucket_expiry_ms
            self._pushed += 1
            heapq.heappush(self._due, (bucket_expiry_ms, self._pushed, wheel, slot))
        task.bucket = wheel.buckets[slot]
        task.bucket[task] = None
        return True
