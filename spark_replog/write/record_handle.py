"""What ``send()`` gives back: a record's place in the result of its batch.

Source: Kafka ``ProduceRequestResult`` and ``FutureRecordMetadata``. A batch has one result, so that
a handle is two words and completing a batch costs the same for one record and for ten thousand.
"""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import TopicPartition

logger = logging.getLogger(__name__)

UNKNOWN_OFFSET = -1
"""With acks=0, and for a duplicate whose first offsets are forgotten."""


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is."""

    topic: str
    partition: int
    offset: int
    """``UNKNOWN_OFFSET`` where nobody knows it."""
    timestamp_ms: int
    """The record's own, or the time of its append where the topic says LogAppendTime."""


class BatchResult:
    """The outcome of one batch: decided once, told to any number of handles.

    Thread-safe. A batch that is split passes its records on to the results of its parts.

    Args:
        topic_partition: of the batch.
    """

    __slots__ = (
        "_base_offset",
        "_callbacks",
        "_decided",
        "_error",
        "_lock",
        "_log_append_time_ms",
        "_part_starts",
        "_parts",
        "_record_errors",
        "_settled",
        "timestamps",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.timestamps = array("q")
        """Milliseconds, one per single record; empty for batches of Arrow slices."""
        self._lock = threading.Lock()
        self._decided = threading.Event()
        self._settled = threading.Event()
        self._callbacks: list[tuple[int, Callable[[], object]]] = []
        self._base_offset = UNKNOWN_OFFSET
        self._log_append_time_ms: int | None = None
        self._error: ReplogError | None = None
        self._record_errors: Mapping[int, ReplogError] = {}
        self._parts: Sequence[BatchResult] = ()
        self._part_starts: list[int] = []

    @property
    def is_decided(self) -> bool:
        """Return whether every record of the batch has its outcome."""
        return self._decided.is_set() and all(part.is_decided for part in self._parts)

    @property
    def base_offset(self) -> int:
        """Return the offset of the first record; ``UNKNOWN_OFFSET`` until it is acknowledged."""
        return self._parts[0].base_offset if self._parts else self._base_offset

    @property
    def error(self) -> ReplogError | None:
        """Return why the batch, or the first part of it that did, failed."""
        return next((part.error for part in self._parts if part.error is not None), self._error)

    def succeed(self, base_offset: int, log_append_time_ms: int | None) -> None:
        """Acknowledge every record; the i-th has offset base + i. Callbacks run before it returns."""
        self._base_offset = base_offset
        self._log_append_time_ms = log_append_time_ms
        self._decide()

    def fail(self, error: ReplogError, record_errors: Mapping[int, ReplogError] | None = None) -> None:
        """Fail every record, those named with an error of their own. Callbacks run before it returns."""
        self._error = error
        self._record_errors = record_errors or {}
        self._decide()

    def abandon(self, error: ReplogError) -> None:
        """Fail in a forked child, whose parent decides: other threads' locks stayed locked, so all are new."""
        self._error = error
        self._callbacks = []
        self._lock = threading.Lock()
        self._decided, self._settled = threading.Event(), threading.Event()
        self._decided.set()
        self._settled.set()

    def split(self, parts: Sequence[BatchResult], starts: Sequence[int]) -> None:
        """Pass the records on: those from ``starts[i]`` have the outcome of ``parts[i]``."""
        with self._lock:
            self._parts = parts
            self._part_starts = list(starts)
            moved, self._callbacks = self._callbacks, []
            self._decided.set()
            self._settled.set()
        for index, callback in moved:
            self.on_decided(index, callback)

    def part(self, index: int) -> tuple[BatchResult, int]:
        """Return the result that decides a record, and the record's number there."""
        if not self._parts:
            return self, index
        number = bisect_right(self._part_starts, index) - 1
        return self._parts[number].part(index - self._part_starts[number])

    def is_record_decided(self, index: int) -> bool:
        """Return whether the record has its outcome."""
        part, _ = self.part(index)
        return part._decided.is_set()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for the outcome of all records, or for the split; returns False where time ran out."""
        return self._decided.wait(timeout_seconds)

    def wait_for_all(self) -> None:
        """Wait until every record, of parts too, has its outcome."""
        self._decided.wait()
        for part in self._parts:
            part.wait_for_all()

    def park(self) -> None:
        """Let ``flush`` pass: all that is missing is the end of the transaction."""
        self._settled.set()

    def wait_until_settled(self, timeout_seconds: float | None) -> bool:
        """Wait until all records, of parts too, have their outcome or are parked; False: time ran out."""
        deadline_ms = None if timeout_seconds is None else SYSTEM_CLOCK.monotonic_ms() + timeout_seconds * 1000
        if not self._settled.wait(timeout_seconds):
            return False
        return all(part.wait_until_settled(_left_seconds(deadline_ms)) for part in self._parts)

    def on_decided(self, index: int, callback: Callable[[], object]) -> None:
        """Call back once record ``index`` has its outcome: at once where it has."""
        while True:
            part, part_index = self.part(index)
            with part._lock:
                if part._parts:
                    continue
                if not part._decided.is_set():
                    part._callbacks.append((part_index, callback))
                    return
            _call(callback)
            return

    def error_of(self, index: int) -> ReplogError | None:
        """Return why a decided record failed."""
        return self._record_errors.get(index, self._error)

    def metadata_of(self, index: int) -> RecordMetadata:
        """Return where an acknowledged record is."""
        time_ms = self._log_append_time_ms
        if time_ms is None:
            time_ms = self.timestamps[index] if index < len(self.timestamps) else -1
        offset = self._base_offset + index if self._base_offset >= 0 else UNKNOWN_OFFSET
        return RecordMetadata(self.topic_partition.topic, self.topic_partition.partition, offset, time_ms)

    def _decide(self) -> None:
        """Resolve all handles first, then call back in the order of the records, then let ``flush`` pass."""
        with self._lock:
            assert not self._decided.is_set(), "a batch is decided once"
            self._decided.set()
            callbacks, self._callbacks = self._callbacks, []
        try:
            for _, callback in sorted(callbacks, key=lambda item: item[0]):
                _call(callback)
        finally:
            self._settled.set()


class RecordHandle:
    """The future of one record. Thread-safe; nothing of the record is kept alive by it.

    Args:
        result: of the record's batch.
        index: the record's number in it.
    """

    __slots__ = ("_index", "_result")

    def __init__(self, result: BatchResult, index: int) -> None:
        self._result = result
        self._index = index

    @property
    def batch_result(self) -> BatchResult:
        """Return the result of the batch that the record was appended to."""
        return self._result

    def done(self) -> bool:
        """Return whether the record was acknowledged or failed."""
        return self._result.is_record_decided(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement.

        Args:
            timeout: seconds to wait at most; None: until ``delivery.timeout.ms`` decides.

        Raises:
            TimeoutError: it was not decided in time; it still may be acknowledged later.
            ReplogError: why the record failed, with Kafka's code.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        part, index = self._result.part(self._index)
        return part.metadata_of(index)

    def exception(self, timeout: float | None = None) -> ReplogError | None:
        """Wait as ``result`` does; return why the record failed, None where it was acknowledged.

        Raises:
            TimeoutError: it was not decided in time.
            InvalidConfigError: INVALID_TXN_STATE: it waits for its transaction's end, and no timeout was
                given, so that a program with one thread would wait for itself.
        """
        deadline_ms = None if timeout is None else SYSTEM_CLOCK.monotonic_ms() + timeout * 1000
        while True:
            part, index = self._result.part(self._index)
            if timeout is None and part.wait_until_settled(None) and not part.is_decided:
                raise InvalidConfigError(
                    ErrorCode.INVALID_TXN_STATE,
                    "a record of an open transaction gets its offset at commit_transaction(). Ask behind it, or give a "
                    "timeout.",
                )
            if not part.wait(_left_seconds(deadline_ms)):
                where = part.topic_partition
                raise TimeoutError(
                    f"[{ErrorCode.REQUEST_TIMED_OUT.name}] a record for {where.topic}-{where.partition} was not "
                    f"decided within {timeout} s and may still be. Ask again, or flush() first."
                )
            if not part._parts:
                return part.error_of(index)

    def add_done_callback(self, callback: Callable[[RecordHandle], object]) -> None:
        """Call ``callback(handle)`` once decided, on the sender's thread, or at once where it is.

        Callbacks of one batch run in the order of its records, after all its handles are done. What
        a callback raises is logged.
        """
        self._result.on_decided(self._index, lambda: callback(self))


def _left_seconds(deadline_ms: float | None) -> float | None:
    return None if deadline_ms is None else max(0.0, (deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1000)


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except (Exception, SystemExit):  # a user's mistake must not stop the sender
        logger.exception("a callback of send() raised; the record itself is not concerned")


__all__ = ["UNKNOWN_OFFSET", "BatchResult", "RecordHandle", "RecordMetadata"]
