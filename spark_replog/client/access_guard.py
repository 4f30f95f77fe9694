"""Who may call a consumer: one thread at a time, in the process that made it, until it is closed; and ``wakeup``.

Source: Kafka's ``KafkaConsumer.acquireAndEnsureOpen`` and ``WakeupException``. A call from within a listener or an
interceptor is the same thread's and so allowed.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from spark_replog.errors import ErrorCode, ReplogError


class AccessGuard:
    """One per consumer; ``with guard:`` around each call. ``wakeup`` alone is for other threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self._has_wakeup = threading.Event()
        self.is_closed = False

    @property
    def is_elsewhere(self) -> bool:
        """Return whether this is a forked child of the process that made the consumer."""
        return os.getpid() != self._process_id

    def __enter__(self) -> None:
        """Take the consumer.

        Raises:
            ReplogError: REPLOG_NOT_FORK_SAFE, REPLOG_CONCURRENT_ACCESS; INVALID_REQUEST: it is closed.
        """
        if self.is_elsewhere:
            raise ReplogError(
                ErrorCode.REPLOG_NOT_FORK_SAFE,
                f"this consumer was made in process {self._process_id}, before a fork. Make one in this process.",
            )
        if not self._lock.acquire(blocking=False):
            raise ReplogError(
                ErrorCode.REPLOG_CONCURRENT_ACCESS,
                "another thread is in a call of this consumer. Make one consumer for each thread; wakeup() is the"
                " only call for other threads.",
            )
        if self.is_closed:
            self._lock.release()
            raise ReplogError(ErrorCode.INVALID_REQUEST, "this consumer is closed. Make a new one.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self._lock.release()

    def wakeup(self) -> None:
        """End the poll that waits, or the next one."""
        self._has_wakeup.set()

    def check_wakeup(self) -> None:
        """Raise once what ``wakeup`` asked for.

        Raises:
            ReplogError: REPLOG_WAKEUP.
        """
        if self._has_wakeup.is_set():
            self._has_wakeup.clear()
            raise ReplogError(
                ErrorCode.REPLOG_WAKEUP, "wakeup() ended the poll; no record was lost. Poll again, or close."
            )


class Guarded(Protocol):
    """What has a guard."""

    _guard: AccessGuard


_Call = ParamSpec("_Call")
_Answer = TypeVar("_Answer")
_Owner = TypeVar("_Owner", bound=Guarded)


def guarded(method: Callable[Concatenate[_Owner, _Call], _Answer]) -> Callable[Concatenate[_Owner, _Call], _Answer]:
    """Make a method take its object's guard."""

    @functools.wraps(method)
    def call(self: _Owner, /, *args: _Call.args, **named: _Call.kwargs) -> _Answer:
        with self._guard:
            return method(self, *args, **named)

    return call
