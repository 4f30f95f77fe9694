"""The sender's way to the roots: puts on the I/O threads, answers in a queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import Buffer, CreateOutcome


@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to one attempt."""

    sequence: int
    """Which request."""
    broker_id: BrokerId
    attempt: int
    is_checked: bool
    """Whether the root was found to be the right one before the put."""
    error: ReplogError | None
    """None: the object is on the root, durably."""


class PutTransport:
    """Puts objects on roots in parallel. One owner submits and polls; never blocks it but in ``wait``.

    Args:
        brokers: the roots.
    """

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers
        self._answers: deque[PutResult] = deque()
        self._has_answer = threading.Event()

    def put(
        self,
        broker_id: BrokerId,
        key: str,
        buffers: Sequence[Buffer],
        *,
        sequence: int,
        attempt: int,
        check_root: bool,
    ) -> None:
        """Start creating the object on one root.

        Args:
            broker_id: which root.
            key: of the object; the same bytes under it on every attempt.
            buffers: the body's pieces.
            sequence: returned in the answer.
            attempt: returned in the answer.
            check_root: read ``replog.json`` first, since this root gave an error before.
        """

        def answer(done: Future[None]) -> None:
            error = done.exception()
            if error is not None and not isinstance(error, ReplogError):
                error = _unexpected(broker_id, error)
            self._answers.append(PutResult(sequence, broker_id, attempt, check_root, error))
            self._has_answer.set()

        future = io_pool().submit_to(self._brokers.url(broker_id), self._put, broker_id, key, buffers, check_root)
        future.add_done_callback(answer)

    def delete(self, broker_id: BrokerId, key: str) -> Future[None]:
        """Start deleting an object that no message names."""
        return io_pool().submit_to(self._brokers.url(broker_id), self._brokers.store(broker_id).delete, key)

    def poll(self) -> list[PutResult]:
        """Return the answers since the last call, without waiting."""
        self._has_answer.clear()
        answers: list[PutResult] = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def wake(self) -> None:
        """End a ``wait``; called by any thread."""
        self._has_answer.set()

    def wait(self, timeout_ms: float) -> None:
        """Wait for an answer that was not polled yet."""
        self._has_answer.wait(timeout_ms / 1000)

    def _put(self, broker_id: BrokerId, key: str, buffers: Sequence[Buffer], check_root: bool) -> None:
        try:
            if check_root:
                self._brokers.check_root(broker_id)
            outcome = self._brokers.store(broker_id).create(key, buffers, make_parent=True)
        except ReplogError as error:
            if error.code is not ErrorCode.REPLOG_ROOT_STALE:
                self._raise_if_stale(broker_id)
            raise
        if outcome is CreateOutcome.EXISTS:
            raise ReplogError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"other bytes hold the name of a new data object on broker {broker_id}. Run replog store verify.",
                key=key,
            )

    def _raise_if_stale(self, broker_id: BrokerId) -> None:
        """Tell a root that is gone or replaced from one that only failed: the former gets no retry."""
        try:
            self._brokers.check_root(broker_id)
        except ReplogError as error:
            if error.code is ErrorCode.REPLOG_ROOT_STALE:
                raise


def _unexpected(broker_id: BrokerId, error: BaseException) -> ReplogError:
    wrapped = ReplogError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the put on broker {broker_id} ended with {type(error).__name__}: {error}. Please report it.",
    )
    wrapped.__cause__ = error
    return wrapped


__all__ = ["PutResult", "PutTransport"]
