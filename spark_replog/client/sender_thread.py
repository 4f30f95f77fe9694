"""The thread of a plain producer: runs the sender, and refreshes metadata and partition loads between its rounds."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from spark_replog.client.producer_metadata import ProducerMetadata
from spark_replog.clock import Clock
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.partitioner import NodeAvailability
from spark_replog.write.sender import Sender
from spark_replog.write.transport import PutTransport

logger = logging.getLogger(__name__)


class SenderThread:
    """A daemon that runs ``Sender.run_once`` until it is closed and nothing is left.

    Args:
        is_delivered: whether the delivery has nothing left to do.
        availability_timeout_ms: ``partitioner.availability.timeout.ms``.
    """

    def __init__(
        self,
        sender: Sender,
        accumulator: RecordAccumulator,
        transport: PutTransport,
        metadata: ProducerMetadata,
        is_delivered: Callable[[], bool],
        clock: Clock,
        *,
        availability_timeout_ms: int,
        name: str,
    ) -> None:
        self._sender = sender
        self._accumulator = accumulator
        self._transport = transport
        self._metadata = metadata
        self._is_delivered = is_delivered
        self._clock = clock
        self._availability = NodeAvailability(availability_timeout_ms)
        self._tasks: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._is_closing = False
        self._is_forced = threading.Event()
        self._ended = threading.Event()
        self._thread = DaemonThread(self._run, name=name, stop=self._is_forced.set)
        self.error: ReplogError | None = None
        """Why it ended early."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs on this thread, as in a callback."""
        return threading.current_thread() is self._thread

    def call(self, task: Callable[[], object]) -> None:
        """Run a task between two rounds; return when it is done."""
        done: Future[object] = Future()
        self._tasks.append((task, done))
        self._transport.wake()
        if self._ended.is_set():
            self._run_tasks()
        done.result()

    def close(self, timeout_seconds: float | None) -> bool:
        """Send remaining records and end; return False on timeout."""
        self._is_closing = True
        self._transport.wake()
        return self._ended.wait(timeout_seconds)

    def force(self, error: ReplogError) -> None:
        """End now; remaining records fail."""
        self.error = self.error or error
        self._is_forced.set()
        self.close(None if not self.is_current else 0)

    def _run(self) -> None:
        try:
            while not self._is_forced.is_set():
                now_ms = self._clock.monotonic_ms()
                wait_ms = self._sender.run_once(now_ms)
                self._run_tasks()
                self._refresh_topics(now_ms)
                if self._is_closing and self._is_finished():
                    break
                self._transport.wait(wait_ms)
        except Exception as error:
            logger.exception("the sender's thread ended")
            self.error = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"The producer's sender ended with {error!r}. Report it."
            )
        finally:
            left = self.error or ReplogError(ErrorCode.REPLOG_PRODUCER_CLOSED, "The producer was closed.")
            self._accumulator.abort_incomplete(left)
            self._ended.set()
            self._run_tasks()

    def _is_finished(self) -> bool:
        is_empty = not self._accumulator.waiting_count and not self._sender.has_open_requests
        return is_empty and self._is_delivered() and not self._accumulator.has_incomplete

    def _run_tasks(self) -> None:
        while self._tasks:
            task, done = self._tasks.popleft()
            try:
                done.set_result(task())
            except BaseException as error:  # the caller's
                done.set_exception(error)

    def _refresh_topics(self, now_ms: int) -> None:
        if self._metadata.is_due(now_ms, is_suspect=self._sender.wants_metadata):
            self._sender.wants_metadata = False
            self._metadata.refresh()
        entries = list(self._metadata.topics.values())
        if not any(entry.sticky.is_adaptive and len(entry.queues) > 1 for entry in entries):
            return
        self._availability.note(self._accumulator.ready(now_ms, in_flight_count=0).destinations, now_ms)
        for entry in entries:
            unavailable = frozenset(
                number
                for number, queue in enumerate(entry.queues)
                if not self._availability.is_available(queue.destination, now_ms)
            )
            entry.sticky.update_loads([len(queue.batches) for queue in entry.queues], unavailable)
