"""Daemon threads for storage calls: one pool per process, one lane per root.

A hung mount blocks a thread for ever. Lanes confine that to one root: each lane has its own threads, at most
``lane_threads_max``. Threads are daemons, so a hung one never keeps a Spark worker alive. A forked child starts with
its own pool. When the process ends, no further call begins: submitting one, or waiting for one, raises
``SystemExit``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from spark_replog.daemon_thread import PROCESS_ENDING, DaemonThread
from spark_replog.process_state import in_each_child

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

LANE_THREADS_MAX = 8
THREAD_IDLE_SECONDS_MAX = 60.0

_Job = tuple["Future[Any] | None", Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""The future is None for a background call."""


class _Lane:
    """A queue and its threads: as many as there are open jobs, up to a limit."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._open_count = 0
        """Jobs waiting or running."""
        self._thread_count = 0
        self._is_ended = False

    def put(self, job: _Job) -> None:
        with self._lock:
            if self._is_ended or PROCESS_ENDING.is_set():
                raise SystemExit
            self._open_count += 1
            self._jobs.put(job)
            if self._thread_count >= min(self._open_count, self._threads_max):
                return
            # Under the lock: else each of two calls that get no thread could rely on the other's.
            thread = DaemonThread(self._serve, name=f"replog-io {self._name}", stop=self.end)
            try:
                thread.start()
            except RuntimeError:
                if self._thread_count == 0:
                    self._open_count -= 1
                    self._jobs.get_nowait()  # this job: without a thread there is no other one
                    raise
            else:
                self._thread_count += 1

    def end(self) -> None:
        """Begin no further job, because the process ends."""
        with self._lock:
            self._is_ended = True
            left: list[_Job | None] = []
            with suppress(Empty):  # the lane's threads take jobs meanwhile
                while True:
                    left.append(self._jobs.get_nowait())
            for _ in range(self._thread_count):
                self._jobs.put(None)
        for job in left:
            if job is not None and job[0] is not None and job[0].set_running_or_notify_cancel():
                job[0].set_exception(SystemExit())

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=THREAD_IDLE_SECONDS_MAX)
            except Empty:
                with self._lock:
                    if self._thread_count <= self._open_count:
                        continue
                    self._thread_count -= 1
                    return
            if job is None:
                return
            future, function, args, kwargs = job
            result, error = None, None
            is_wanted = future is None or future.set_running_or_notify_cancel()
            try:
                if is_wanted:
                    result = function(*args, **kwargs)
            except BaseException as raised:  # the caller gets it, whatever it is
                error = raised
            with self._lock:  # before the answer: whoever gets it may submit the next job
                self._open_count -= 1
            if future is None:
                if error is not None and not isinstance(error, SystemExit):  # as a call that the process's end stops
                    _log.error("A background call failed. Report it.", exc_info=error)
            elif error is not None:
                future.set_exception(error)
            elif is_wanted:
                future.set_result(result)
            # An idle thread must not keep the last body or memory map alive.
            del job, future, function, args, kwargs
            result = error = None


class _Lanes(dict[str, _Lane]):
    """Lanes by name, made on first use. If two threads make one, one of the two is kept."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max

    def __missing__(self, name: str) -> _Lane:
        return self.setdefault(name, _Lane(name, self._threads_max))


class IoPool:
    """Runs storage calls on daemon threads; never joined, never shut down.

    Args:
        lane_threads_max: threads that one lane (one root) may occupy.
    """

    def __init__(self, *, lane_threads_max: int = LANE_THREADS_MAX) -> None:
        self._lane_threads_max = lane_threads_max
        self.forget()

    def forget(self) -> None:
        """Drop all lanes. A forked child has none of the parent's threads, and may have inherited a held lock."""
        self._lanes = _Lanes(self._lane_threads_max)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call on the lane shared by calls without a root."""
        return self.submit_to("", function, *args, **kwargs)

    def submit_to(self, lane: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call on a lane: a root's URL, so that a hung root blocks only its own threads.

        Returns:
            A future; it can be cancelled while the call waits for a thread.
        """
        future: Future[T] = Future()
        self._lanes[lane].put((future, function, args, kwargs))
        return future

    def post_to(self, lane: str, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the call on a lane, in the background. An error that it raises is logged."""
        self._lanes[lane].put((None, function, args, kwargs))


IO_POOL = IoPool()
"""This process's pool."""
in_each_child(IO_POOL.forget)
