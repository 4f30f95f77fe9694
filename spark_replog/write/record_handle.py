"""The future that ``send()`` returns: a record's place in the result of its batch.

Source: Kafka ``ProduceRequestResult`` and ``FutureRecordMetadata``. A batch has one result, so a handle is two
references, and completing a batch costs the same for one record as for ten thousand.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable
from typing import NamedTuple

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import TopicPartition

logger = logging.getLogger(__name__)

UNKNOWN_OFFSET = -1
"""The offset with acks=0, and of a duplicate whose original offsets are forgotten."""


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is."""

    topic: str
    partition: int
    offset: int
    """``UNKNOWN_OFFSET`` if it is unknown."""
    timestamp_ms: int
    """The record's own, or the time of its append if the topic has LogAppendTime; -1: unknown."""


class BatchResult:
    """The outcome of one batch: set once, read by any number of handles.

    Thread-safe.
    """

    __slots__ = (
        "_callbacks",
        "_changed",
        "_is_settled",
        "_log_append_time_ms",
        "base_offset",
        "error",
        "is_awaited",
        "is_decided",
        "on_awaited",
        "timestamps",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.timestamps = array("q")
        """Milliseconds, one per single record; empty for batches of Arrow slices."""
        self.is_awaited = False
        """Whether a caller waits for it, so that lingering for more records only delays."""
        self.on_awaited: Callable[[], None] | None = None
        """Called when a caller begins to wait; None from the drain on: then nothing can be sent."""
        self.is_decided = False
        """Whether every record of the batch has its outcome."""
        self._is_settled = False
        self._changed = threading.Condition(threading.Lock())
        self._callbacks: list[tuple[int, Callable[[], object]]] = []
        self._log_append_time_ms: int | None = None
        self.base_offset = UNKNOWN_OFFSET
        """Of the first record; ``UNKNOWN_OFFSET`` until it is acknowledged."""
        self.error: ReplogError | None = None
        """Why the batch failed; None before that, and if it was acknowledged."""

    def abandon(self, error: ReplogError) -> None:
        """Fail in a forked child. Locks are replaced, since the fork may have copied them locked."""
        self.error = error
        self._callbacks = []
        self._changed = threading.Condition(threading.Lock())
        self.is_decided = self._is_settled = True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for the outcome of all records; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_decided, timeout_seconds)

    def await_now(self) -> None:
        """Note that a caller begins to wait for the outcome."""
        if not self.is_awaited and not self.is_decided:
            self.is_awaited = True
            on_awaited = self.on_awaited  # the sender's thread may set None
            if on_awaited is not None:
                on_awaited()

    def park(self) -> None:
        """Let ``flush`` return: only the end of the transaction is missing."""
        with self._changed:
            self._is_settled = True
            self._changed.notify_all()

    @property
    def is_parked(self) -> bool:
        """Return whether only the end of the transaction is missing."""
        return self._is_settled and not self.is_decided

    def wait_until_parked(self) -> bool:
        """Wait until all records have their outcome or are parked; return whether they are parked."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled or self.is_decided)
            return self.is_parked

    def wait_until_settled(self, timeout_seconds: float | None) -> bool:
        """Wait until the callbacks of all records are over or they are parked; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled, timeout_seconds)

    def on_decided(self, index: int, callback: Callable[[], object]) -> None:
        """Call back once record ``index`` has its outcome; at once if it already has."""
        with self._changed:
            if not self.is_decided:
                self._callbacks.append((index, callback))
                return
        _call(callback)

    def metadata_of(self, index: int) -> RecordMetadata:
        """Return where an acknowledged record is."""
        time_ms = self._log_append_time_ms
        if time_ms is None:
            time_ms = self.timestamps[index] if index < len(self.timestamps) else -1
        offset = self.base_offset + index if self.base_offset >= 0 else UNKNOWN_OFFSET
        return RecordMetadata(self.topic_partition.topic, self.topic_partition.partition, offset, time_ms)

    def decide(
        self,
        base_offset: int = UNKNOWN_OFFSET,
        log_append_time_ms: int | None = None,
        *,
        error: ReplogError | None = None,
    ) -> None:
        """Acknowledge every record, or fail every one.

        Resolves all handles first, then calls back in the order of the records, then lets ``flush`` return.

        Args:
            base_offset: the i-th record has this offset + i.
            log_append_time_ms: the time that replaces the records' own; None: it replaces none.
            error: why they fail; None: they are acknowledged.
        """
        self.base_offset, self._log_append_time_ms, self.error = base_offset, log_append_time_ms, error
        with self._changed:
            assert not self.is_decided, "a batch is decided once"
            self.is_decided = True
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        try:
            for _, callback in sorted(callbacks, key=lambda item: item[0]):
                _call(callback)
        finally:
            self.park()


class RecordHandle:
    """The future of one record. Thread-safe. It keeps nothing of the record alive.

    Args:
        index: the record's number in the batch.
    """

    __slots__ = ("_index", "batch_result")

    def __init__(self, result: BatchResult, index: int) -> None:
        self.batch_result = result
        """Of the batch that the record was appended to."""
        self._index = index

    def done(self) -> bool:
        """Return whether the record was acknowledged or failed."""
        return self.batch_result.is_decided

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement.

        Args:
            timeout: seconds to wait at most; None: until ``delivery.timeout.ms`` decides.

        Raises:
            TimeoutError: no outcome in time; it may still be acknowledged later.
            ReplogError: why the record failed, with Kafka's code.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.batch_result.metadata_of(self._index)

    def exception(self, timeout: float | None = None) -> ReplogError | None:
        """Wait as ``result`` does; return why the record failed, None if it was acknowledged.

        Raises:
            TimeoutError: no outcome in time.
            InvalidConfigError: INVALID_TXN_STATE: without a timeout, for a record that waits for the end of its
                transaction: a single-threaded program would wait for itself.
        """
        result = self.batch_result
        result.await_now()
        if timeout is None and result.wait_until_parked():
            raise InvalidConfigError(
                ErrorCode.INVALID_TXN_STATE,
                "A record of an open transaction gets its offset at commit_transaction(). Ask after the commit, or "
                "give a timeout.",
            )
        if not result.wait(timeout):
            where = result.topic_partition
            advice = "Ask again, or call flush() first."
            if result.is_parked:
                advice = "Ask after commit_transaction(): a record of an open transaction gets its offset there."
            raise TimeoutError(
                f"[{ErrorCode.REQUEST_TIMED_OUT.name}] A record for {where.topic}-{where.partition} was not "
                f"acknowledged within {timeout} s and still may be. {advice}"
            )
        return result.error

    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None:
        """Call ``callback(handle)`` once the outcome is known, on the sender's thread; at once if it already is.

        Callbacks of one batch run in the order of its records, after all its handles are done. An
        exception from a callback is logged.
        """
        self.batch_result.on_decided(self._index, lambda: callback(self))


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except KeyboardInterrupt:  # not a mistake of the callback; the sender's thread never gets it
        raise
    except BaseException:  # a user's mistake, as asking a cancelled future, must not stop the sender
        logger.exception("a callback of send() raised; the record itself is not affected")
