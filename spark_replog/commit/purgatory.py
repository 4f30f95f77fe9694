"""Operations that wait for a condition or a timeout, the purgatory that holds them, and its timing wheel.

An operation completes exactly once, by whichever event comes first. The purgatory has no thread: a thread that waits
for an operation advances the timer. A timer costs O(1) to add and to cancel; a task runs at or after its expiry, at
most one tick of the finest wheel late.

Source: Kafka's ``DelayedOperation``, ``DelayedOperationPurgatory``, ``TimingWheel`` and ``SystemTimer``.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from spark_replog.clock import SYSTEM_CLOCK, Clock

TICK_MS = 1
WHEEL_SIZE = 20
PURGE_INTERVAL = 1000
WAIT_STEP_MS = 200
"""The longest nap of a waiting thread: bounds how late another thread's timer may fire."""
_NOT_QUEUED_MS = -1


class TimerTask:
    """A function to call at a time; a subclass may override ``run`` instead.

    Attributes:
        expiry_ms: set when it is started.
        bucket: the bucket that holds it; None while it is not pending.
    """

    __slots__ = ("_action", "bucket", "expiry_ms")

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        self._action = action
        self.expiry_ms = 0
        self.bucket: _Bucket | None = None

    def run(self) -> None:
        """Run in the thread that advances the timer."""
        self._action()


class _Bucket:
    """The tasks that expire within one tick of a wheel, in the order they were added. Guarded by the timer's lock."""

    __slots__ = ("expiry_ms", "tasks")

    def __init__(self) -> None:
        self.expiry_ms = _NOT_QUEUED_MS
        self.tasks: dict[TimerTask, None] = {}


class _Wheel:
    """One level: ``size`` buckets of ``tick_ms`` each."""

    __slots__ = ("buckets", "current_ms", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms, self.size, self.interval_ms = tick_ms, size, tick_ms * size
        self.current_ms = start_ms - start_ms % tick_ms
        self.buckets = [_Bucket() for _ in range(size)]
        self.overflow: _Wheel | None = None


class Timer:
    """Thread safe. Actions run in the thread that advances, outside the lock.

    Args:
        size: buckets a level; level n has ticks of the whole interval of level n-1.

    Attributes:
        size: pending tasks.
    """

    def __init__(self, start_ms: int, *, tick_ms: int = TICK_MS, size: int = WHEEL_SIZE) -> None:
        self._wheel = _Wheel(tick_ms, size, start_ms)
        self._due: list[tuple[int, int, _Bucket]] = []
        self._pushed = 0
        self._lock = threading.Lock()
        self.size = 0

    def add(self, expiry_ms: int, action: Callable[[], None]) -> TimerTask:
        """Call a function at a time; one that is already due is called now, in this thread."""
        task = TimerTask(action)
        self.start(task, expiry_ms)
        return task

    def start(self, task: TimerTask, expiry_ms: int) -> None:
        """Run a task at a time; one that is already due runs now, in this thread."""
        task.expiry_ms = expiry_ms
        with self._lock:
            is_pending = self._insert(task)
            self.size += is_pending
        if not is_pending:
            task.run()

    def cancel(self, task: TimerTask) -> bool:
        """Stop a timer; False when it already ran or was cancelled."""
        with self._lock:
            if task.bucket is None:
                return False
            del task.bucket.tasks[task]
            task.bucket = None
            self.size -= 1
            return True

    def next_expiry_ms(self) -> int | None:
        """Return when ``advance`` next has work; None when nothing is pending."""
        with self._lock:
            return self._due[0][0] if self._due and self.size else None

    def advance(self, now_ms: int) -> int:
        """Move to ``now_ms`` and run what is due; return how many ran."""
        expired: list[TimerTask] = []
        with self._lock:
            while self._due and self._due[0][0] <= now_ms:
                expiry_ms, _, bucket = heapq.heappop(self._due)
                self._turn_wheels(expiry_ms)
                tasks, bucket.tasks, bucket.expiry_ms = bucket.tasks, {}, _NOT_QUEUED_MS
                for task in tasks:
                    task.bucket = None
                    if not self._insert(task):
                        expired.append(task)
            self.size -= len(expired)
            self._turn_wheels(now_ms)
        for task in expired:
            task.run()
        return len(expired)

    def _turn_wheels(self, now_ms: int) -> None:
        wheel: _Wheel | None = self._wheel
        while wheel is not None and now_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = now_ms - now_ms % wheel.tick_ms
            wheel = wheel.overflow

    def _insert(self, task: TimerTask) -> bool:
        """Put the task into a bucket; False when it is due."""
        assert task.bucket is None
        wheel = self._wheel
        expiry_ms = task.expiry_ms
        if expiry_ms < wheel.current_ms + wheel.tick_ms:
            return False
        while expiry_ms >= wheel.current_ms + wheel.interval_ms:
            if wheel.overflow is None:
                wheel.overflow = _Wheel(wheel.interval_ms, wheel.size, wheel.current_ms)
            wheel = wheel.overflow
        number = expiry_ms // wheel.tick_ms
        bucket = wheel.buckets[number % wheel.size]
        if bucket.expiry_ms != number * wheel.tick_ms:
            bucket.expiry_ms = number * wheel.tick_ms
            self._pushed += 1
            heapq.heappush(self._due, (bucket.expiry_ms, self._pushed, bucket))
        bucket.tasks[task] = None
        task.bucket = bucket
        return True


class DelayedOperation(TimerTask):
    """Something that completes once: by its condition, by force, or by its timeout.

    Subclasses override ``try_complete`` (the condition), ``on_complete`` and ``on_expiration``.
    """

    __slots__ = ("_claim", "_finished", "_is_finished", "_timer", "lock", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        super().__init__()
        self.timeout_ms = timeout_ms
        self.lock = threading.RLock()
        self._timer: Timer | None = None
        self._claim = threading.Lock()
        self._is_finished = False
        # Made by the first waiter: most operations of a busy process are never waited for.
        self._finished: threading.Event | None = None

    @property
    def is_completed(self) -> bool:
        """Return whether it has been completed (``on_complete`` may still be running)."""
        return self._claim.locked()

    def try_complete(self) -> bool:
        """Check the condition; complete when it holds. Called under ``self.lock``."""
        return False

    def on_complete(self) -> None:
        """Run once, in the thread that completed the operation."""

    def on_expiration(self) -> None:
        """Run after ``on_complete`` when the timeout completed it."""

    def force_complete(self) -> bool:
        """Complete now; False when it already was."""
        if not self._claim.acquire(blocking=False):
            return False
        if self._timer is not None:
            self._timer.cancel(self)
        try:
            self.on_complete()
        finally:
            self._is_finished = True
            finished = self._finished
            if finished is not None:
                finished.set()
        return True

    def safe_try_complete(self) -> bool:
        """Check the condition under the operation's lock."""
        with self.lock:
            return not self._claim.locked() and self.try_complete()

    def safe_try_complete_or_else(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Check; when it does not hold call ``action`` and check again, all under the lock."""
        with self.lock:
            if self.safe_try_complete():
                return True
            action(*arguments)
            return self.safe_try_complete()

    def wait(self, timeout_ms: float) -> bool:
        """Wait until ``on_complete`` has run."""
        with self.lock:
            if self._finished is None:
                self._finished = threading.Event()
            finished = self._finished
        # A completion that looked for the event before it existed has set the flag by now.
        return self._is_finished or finished.wait(timeout_ms / 1000.0)

    def run(self) -> None:
        """Complete by timeout."""
        if self.force_complete():
            self.on_expiration()

    def start_timer(self, timer: Timer, expiry_ms: int) -> None:
        """Start the timeout; a completion that came meanwhile stops it again."""
        self._timer = timer
        timer.start(self, expiry_ms)
        if self._claim.locked():
            timer.cancel(self)


class DelayedOperationPurgatory:
    """Watch lists by key, completed operations not yet purged included, and the timer of the timeouts. Thread safe.

    Call ``check_and_complete`` without holding a lock that some operation's condition needs.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, purge_interval: int = PURGE_INTERVAL) -> None:
        self._clock = clock
        self._purge_interval = purge_interval
        self.timer = Timer(clock.monotonic_ms())
        self._lock = threading.Lock()
        """Guards the watch lists: never held while a condition is checked."""
        self.watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._registered_count = self._registered_at_purge = 0

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> bool:
        """Complete the operation, or watch it under every key; return whether it completed in this call.

        It is tried again after it is registered, so no event between the two is missed.
        """
        if not keys:
            raise ValueError("a delayed operation needs at least one key to be found by")
        if operation.safe_try_complete_or_else(self._watch, operation, keys):
            return True
        if not operation.is_completed:
            operation.start_timer(self.timer, self._clock.monotonic_ms() + operation.timeout_ms)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation watched under the key, oldest first; return how many this call completed."""
        with self._lock:
            watched = list(self.watchers.get(key, ()))
        finished, completed_here = [], 0
        for operation in watched:
            is_completed = operation.is_completed
            if is_completed or operation.safe_try_complete():
                finished.append(operation)
                completed_here += not is_completed
        if finished:
            with self._lock:
                self._drop(key, finished)
        return completed_here

    def advance(self) -> int:
        """Run the timeouts that are due, and purge when enough operations may have completed."""
        expired_count = self.timer.advance(self._clock.monotonic_ms())
        if self._registered_count - self._registered_at_purge - self.timer.size > self._purge_interval:
            self.purge()
        return expired_count

    def purge(self) -> int:
        """Drop completed operations from all lists; return how many (key, operation) pairs were dropped."""
        purged_count = 0
        with self._lock:
            self._registered_at_purge = self._registered_count - self.timer.size
            for key, operations in list(self.watchers.items()):
                purged_count += self._drop(key, [operation for operation in operations if operation.is_completed])
        return purged_count

    def await_completion(
        self, operation: DelayedOperation, look: Callable[[], None], look_interval_ms: int, first_look_ms: int
    ) -> None:
        """Return once the operation has completed; meanwhile advance the timer, and call ``look`` at each interval.

        The first look comes ``first_look_ms`` from now.
        """
        next_look_ms = self._clock.monotonic_ms() + first_look_ms
        while not operation.is_completed:
            self.advance()
            if not operation.is_completed and self._clock.monotonic_ms() >= next_look_ms:
                look()
                next_look_ms = self._clock.monotonic_ms() + look_interval_ms
            next_ms = self.timer.next_expiry_ms()
            nap_ms = WAIT_STEP_MS if next_ms is None else next_ms - self._clock.monotonic_ms()
            if nap_ms > 0:
                operation.wait(min(nap_ms, WAIT_STEP_MS))
        while not operation.wait(WAIT_STEP_MS):
            self.advance()

    def _watch(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> None:
        with self._lock:
            self._registered_count += 1
            for key in keys:
                self.watchers.setdefault(key, {})[operation] = None

    def _drop(self, key: Hashable, operations: Sequence[DelayedOperation]) -> int:
        """Take operations off a list, under the lock; return how many were on it."""
        watchers = self.watchers.get(key, {})
        dropped_count = sum(watchers.pop(operation, self) is None for operation in operations)
        if not watchers:
            self.watchers.pop(key, None)
        return dropped_count
