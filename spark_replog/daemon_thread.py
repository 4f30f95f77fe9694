"""Daemon threads that end before the interpreter does.

A daemon thread that is in Arrow's C++ code when the interpreter ends crashes the whole process
(``terminate called without an active exception``, exit code 134), although the program's work is done. A thread
that is not a daemon would keep the process alive for ever if a mount hangs. So threads are daemons, and at exit all
are asked to stop and joined, for ``EXIT_WAIT_SECONDS`` in all: a thread that hangs in a system call does no harm.

Work that still needs threads, such as a producer's last sends, runs before that: ``run_before_exit``.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  registers its own end first, so that pools serve `run_before_exit`
import threading
import weakref
from collections.abc import Callable

from spark_replog.clock import SYSTEM_CLOCK

EXIT_WAIT_SECONDS = 2.0


class DaemonThread(threading.Thread):
    """A daemon thread that is asked to stop when the process ends.

    Args:
        target: function to run.
        stop: called once at exit, in the main thread; must not wait. None: the thread ends soon by itself.
    """

    def __init__(self, target: Callable[[], object], *, name: str, stop: Callable[[], object] | None = None) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.stop = stop or (lambda: None)
        _threads.add(self)


_threads: weakref.WeakSet[DaemonThread] = weakref.WeakSet()
PROCESS_ENDING = threading.Event()
"""Threads have been asked to stop: nothing new may begin."""


def _stop_all() -> None:
    PROCESS_ENDING.set()
    alive = [daemon for daemon in list(_threads) if daemon.is_alive()]
    for thread in alive:
        thread.stop()
    deadline_ms = SYSTEM_CLOCK.monotonic_ms() + EXIT_WAIT_SECONDS * 1000.0
    for thread in alive:
        thread.join(max(0.0, deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1000.0)


atexit.register(_stop_all)


def run_before_exit(call: Callable[[], object]) -> None:
    """Run a call in the main thread when the program ends, while threads can still be started.

    Python 3.12 refuses new threads in ``atexit``. This hook, which ``concurrent.futures`` uses too, runs before that,
    and in the children of ``multiprocessing`` as well.
    """
    threading._register_atexit(call)  # type: ignore[attr-defined]
