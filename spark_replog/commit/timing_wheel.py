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
NEVER_MS = -1


class TimerTask:
    """Something to run at a time. Belongs to one list at a time; subclasses say what ``run`` does.

    Attributes:
        expiry_ms: set when it is started.
        task_list: the list that holds it; None when it is not pending.
    """

    __slots__ = ("expiry_ms", "task_list")

    def __init__(self) -> None:
        self.expiry_ms = 0
        self.task_list: TimerTaskList | None = None

    def run(self) -> None:
        """Run in the thread that advances the timer."""


class CallbackTask(TimerTask):
    """Calls a function."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action

    def run(self) -> None:
        """Call it."""
        self._action()


class TimerTaskList:
    """One bucket of a wheel: the tasks that expire within one of its ticks. Guarded by the timer's lock.

    Attributes:
        expiry_ms: when the bucket is looked at; ``NEVER_MS`` while it is not queued.
        tasks: in the order in which they were added.
    """

    __slots__ = ("expiry_ms", "tasks")

    def __init__(self) -> None:
        self.expiry_ms = NEVER_MS
        self.tasks: dict[TimerTask, None] = {}

    def add(self, task: TimerTask) -> None:
        """Take the task in; it leaves the list that it was in."""
        owner = task.task_list
        if owner is not None:
            del owner.tasks[task]
        task.task_list = self
        self.tasks[task] = None

    def remove(self, task: TimerTask) -> bool:
        """Let the task go; False when it is not in this list."""
        if task.task_list is not self:
            return False
        del self.tasks[task]
        task.task_list = None
        return True

    def flush(self) -> list[TimerTask]:
        """Return all tasks and be empty and unqueued."""
        tasks = list(self.tasks)
        self.tasks = {}
        self.expiry_ms = NEVER_MS
        for task in tasks:
            task.task_list = None
        return tasks


class TimingWheel:
    """One level: ``size`` buckets of ``tick_ms`` each."""

    __slots__ = ("buckets", "current_ms", "interval_ms", "overflow", "size", "tick_ms")

    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.size = size
        self.interval_ms = tick_ms * size
        self.current_ms = start_ms - start_ms % tick_ms
        self.buckets = [TimerTaskList() for _ in range(size)]
        self.overflow: TimingWheel | None = None


class Timer:
    """Thread safe. Actions run in the thread that advances, outside the lock.

    Args:
        start_ms: the time now.
        tick_ms: resolution.
        size: buckets a level; level n has ticks of the whole interval of level n-1.

    Attributes:
        moved_count: how often a task was put into a bucket: once when it is added, and at most once a
            level on its way down. Says what advancing costs.
        flushed_count: buckets that ``advance`` looked at; an empty tick costs none.
    """

    def __init__(self, start_ms: int, *, tick_ms: int = TICK_MS, size: int = WHEEL_SIZE) -> None:
        self._wheel = TimingWheel(tick_ms, size, start_ms)
        self._due: list[tuple[int, int, TimerTaskList]] = []
        self._pushed = 0
        self._size = 0
        self._lock = threading.Lock()
        self.moved_count = 0
        self.flushed_count = 0

    @property
    def size(self) -> int:
        """Return how many tasks are pending."""
        return self._size

    def add(self, expiry_ms: int, action: Callable[[], None]) -> TimerTask:
        """Call a function at a time. One that is already due is called now, in this thread."""
        task = CallbackTask(action)
        self.start(task, expiry_ms)
        return task

    def start(self, task: TimerTask, expiry_ms: int) -> None:
        """Run a task at a time; one that is already due runs now, in this thread."""
        task.expiry_ms = expiry_ms
        with self._lock:
            is_pending = self._insert(task)
            self._size += is_pending
        if not is_pending:
            task.run()

    def cancel(self, task: TimerTask) -> bool:
        """Stop a timer; False when it already ran or was cancelled."""
        with self._lock:
            owner = task.task_list
            if owner is None:
                return False
            owner.remove(task)
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
                expiry_ms, _, bucket = heapq.heappop(self._due)
                self._advance_wheels(expiry_ms)
                self.flushed_count += 1
                for task in bucket.flush():
                    if not self._insert(task):
                        self._size -= 1
                        expired.append(task)
            self._advance_wheels(now_ms)
        for task in expired:
            task.run()
        return len(expired)

    def _advance_wheels(self, now_ms: int) -> None:
        wheel: TimingWheel | None = self._wheel
        while wheel is not None and now_ms >= wheel.current_ms + wheel.tick_ms:
            wheel.current_ms = now_ms - now_ms % wheel.tick_ms
            wheel = wheel.overflow

    def _insert(self, task: TimerTask) -> bool:
        """Put the task into a bucket; False when it is due."""
        wheel = self._wheel
        expiry_ms = task.expiry_ms
        if expiry_ms < wheel.current_ms + wheel.tick_ms:
            return False
        while expiry_ms >= wheel.current_ms + wheel.interval_ms:
            if wheel.overflow is None:
                wheel.overflow = TimingWheel(wheel.interval_ms, wheel.size, wheel.current_ms)
            wheel = wheel.overflow
        number = expiry_ms // wheel.tick_ms
        bucket = wheel.buckets[number % wheel.size]
        bucket_expiry_ms = number * wheel.tick_ms
        if bucket.expiry_ms != bucket_expiry_ms:
            bucket.expiry_ms = bucket_expiry_ms
            self._pushed += 1
            heapq.heappush(self._due, (bucket_expiry_ms, self._pushed, bucket))
        bucket.add(task)
        self.moved_count += 1
        return True
