"""Threads for storage calls: daemons, one pool per process, one lane per root.

A hung mount blocks a thread for ever. Lanes keep that inside one root: every lane has
threads of its own, never more than ``lane_threads_max``. Threads are daemons, so a hung one
never keeps a Spark worker alive, and a forked child starts with a pool of its own.
When the process ends no further call begins: who asks for one, or waits for one, gets ``SystemExit``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from spark_replog.daemon_thread import PROCESS_ENDING, DaemonThread

P = ParamSpec("P")
T = TypeVar("T")

LANE_THREADS_MAX = 8
THREAD_IDLE_SECONDS_MAX = 60.0

_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class _Lane:
    """A queue and the threads that serve it."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._wake = threading.Condition(threading.Lock())
        self._jobs: deque[_Job] = deque()
        self._idle_count = 0
        self._thread_count = 0
        self._is_ended = False

    def put(self, job: _Job) -> None:
        with self._wake:
            if self._is_ended or PROCESS_ENDING.is_set():
                raise SystemExit
            self._jobs.append(job)
            if self._idle_count >= len(self._jobs):
                self._wake.notify()
                return
            if self._thread_count >= self._threads_max:
                return
            self._thread_count += 1
        thread = DaemonThread(self._serve, name=f"replog-io {self._name}", stop=self.end)
        try:
            thread.start()
        except RuntimeError:
            with self._wake:
                self._thread_count -= 1
                if self._thread_count == 0:
                    self._jobs.remove(job)
                    raise

    def end(self) -> None:
        """Begin no further job: the process ends."""
        with self._wake:
            self._is_ended = True
            left, self._jobs = self._jobs, deque()
            self._wake.notify_all()
        for future, *_ in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(SystemExit())

    def _next(self) -> _Job | None:
        with self._wake:
            while not self._jobs:
                if self._is_ended:
                    return None
                self._idle_count += 1
                woken = self._wake.wait(THREAD_IDLE_SECONDS_MAX)
                self._idle_count -= 1
                if not woken and not self._jobs:
                    self._thread_count -= 1
                    return None
            return self._jobs.popleft()

    def _serve(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            future, function, args, kwargs = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # the caller's to judge, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)
            # An idle thread must not keep the last body or memory map alive.
            del job, future, function, args, kwargs
            result = None


class IoPool:
    """Runs storage calls on daemon threads; never joined, never shut down.

    Args:
        lane_threads_max: threads that one lane (one root) may occupy.
    """

    def __init__(self, *, lane_threads_max: int = LANE_THREADS_MAX) -> None:
        self._lane_threads_max = lane_threads_max
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call on the lane that calls without a root share."""
        return self.submit_to("", function, *args, **kwargs)

    def submit_to(self, lane: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call on a lane: a root's URL, so that one hung root holds only its own threads.

        Returns:
            A future; cancelling works while the call waits for a thread.
        """
        future: Future[T] = Future()
        found = self._lanes.get(lane)
        if found is None:
            with self._lock:
                found = self._lanes.setdefault(lane, _Lane(lane, self._lane_threads_max))
        found.put((future, function, args, kwargs))
        return future


_lock = threading.Lock()
_pool: IoPool | None = None


def _forget_pool() -> None:
    # A forked child has none of the parent's threads, and may have inherited a held lock.
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def io_pool() -> IoPool:
    """Return this process's pool, made on first use."""
    global _pool
    pool = _pool
    if pool is None:
        with _lock:
            if _pool is None:
                _pool = IoPool()
            pool = _pool
    return pool
