"""Guards a consumer's calls: one thread at a time, in the process that made it, until it is closed; and ``wakeup``.

Source: Kafka's ``KafkaConsumer.acquireAndEnsureOpen`` and ``WakeupException``. Listeners and interceptors run in the
same thread, so their calls are allowed.
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
                "another thread uses this consumer now. Make one consumer per thread; only wakeup() may be called from"
                " other threads.",
            )
        if self.is_closed:
            self._lock.release()
            raise ReplogError(ErrorCode.INVALID_REQUEST, "this consumer is closed. Make a new one.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the consumer."""
        self._lock.release()

    def wakeup(self) -> None:
        """End the waiting poll, or the next one."""
        self._has_wakeup.set()

    def forget_wakeup(self) -> None:
        """Take back a ``wakeup`` that no poll has met yet."""
        self._has_wakeup.clear()

    def check_wakeup(self) -> None:
        """Raise once after ``wakeup``.

        Raises:
            ReplogError: REPLOG_WAKEUP.
        """
        if self._has_wakeup.is_set():
            self._has_wakeup.clear()
            raise ReplogError(
                ErrorCode.REPLOG_WAKEUP, "wakeup() ended the poll; no record was lost. Poll again, or close."
            )


class Guarded(Protocol):
    """An object with a guard."""

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
