"""Records wait here until a data object is worth a put.

Source: Kafka ``RecordAccumulator``. A node is a set of roots that get the same object. Every put costs, so the two
owners differ in what makes a node ready:

* The plain ``Producer`` keeps Kafka's reasons: full batch, ``linger.ms``, exhausted memory, close, flush.
* A write task fills its requests (``fills_requests``): a full batch alone makes nothing ready, so a small task makes
  exactly one object per set of roots. ADR 0005.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_replog.clock import SYSTEM_CLOCK, Clock, ExponentialBackoff
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.row_schema import RowSchema
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.partitioner import StickyPartitioner
from spark_replog.write.producer_batch import (
    BatchState,
    Destination,
    Headers,
    Node,
    OpenRecords,
    PartitionQueue,
    ProducerBatch,
    ReadyCheck,
)
from spark_replog.write.record_handle import BatchResult, RecordHandle
from spark_replog.write.sequences import ProducerSequences


class RecordAccumulator:
    """A queue of batches per partition.

    Thread-safe: one lock, which is released while an append waits for memory.

    Invariants:
        Only the last batch of a queue is open to more records; no batch is empty.
        A batch is incomplete from its creation until it succeeds, fails or is aborted.

    Args:
        config: without ``linger.ms`` time alone makes nothing ready.
        sends_awaited: whether a batch that a caller waits for skips ``linger.ms`` once nothing is in flight. As in
            Nagle's algorithm, records that arrive in the meantime share the next object.
        fills_requests: a write task's rule of readiness, see above.
        wake_up: called, outside the lock, when a waiting sender may have work.
        on_failed: called with the number of records of a failed batch, before their handles fail.
        sequences: numbers the batches of an idempotent producer when they are drained.
    """

    def __init__(
        self,
        pool: BufferPool,
        config: ProducerConfig,
        *,
        sends_awaited: bool = False,
        fills_requests: bool = False,
        wake_up: Callable[[], None] | None = None,
        on_failed: Callable[[int], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        random_source: random.Random | None = None,
        sequences: ProducerSequences | None = None,
    ) -> None:
        self.pool = pool
        self.config = replace(config, batch_size_bytes=min(config.batch_size_bytes, config.max_request_size_bytes))
        self._sends_awaited = sends_awaited
        self._fills_requests = fills_requests
        draw = (random_source or random.Random()).random
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, draw)
        self._wake_up = wake_up or (lambda: None)
        self._on_failed = on_failed or (lambda _: None)
        self._clock = clock
        self._sequences = sequences
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._nodes: dict[Destination, Node] = {}
        self._incomplete: dict[ProducerBatch, None] = {}
        self._flush_count = 0
        self._is_closed = False
        self.waiting_count = 0
        """Batches in the queues. Read without the lock: whoever adds a batch wakes the sender afterwards."""

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return a partition's queue; always the same object, so callers may keep it."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            with self._lock:
                queue = self._queues.setdefault(topic_partition, PartitionQueue(topic_partition))
        return queue

    def assign(self, queue: PartitionQueue, destination: Destination) -> None:
        """Set where a partition's objects go. A change ends the pauses of its retries."""
        with self._lock:
            if destination == queue.destination:
                return
            orphans: list[ProducerBatch] = []
            if queue.destination is not None:
                if queue.destination.typed_topic != destination.typed_topic:  # another topic has the name now
                    orphans = list(queue.batches)
                    queue.batches, queue.columns = deque(), None
                    self.waiting_count -= len(orphans)
                self._nodes[queue.destination].queues.remove(queue)
                if not self._nodes[queue.destination].queues:
                    del self._nodes[queue.destination]
            self._nodes.setdefault(destination, Node()).queues.append(queue)
            queue.destination = destination
            queue.leader_epoch += 1
        self._abort(orphans, _renewed(queue.topic_partition))

    def append_record(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: Any,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
        max_block_ms: int,
        sticky: StickyPartitioner | None = None,
        schema: RowSchema | None = None,
        typed_topic: TopicId = "",
    ) -> RecordHandle:
        """Append one record to its partition: to the open batch, under the lock, or if it is full to a new one, whose
        buffer is allocated outside the lock. The fast path of ``Producer.send``.

        Args:
            queue: the partition's; ignored if ``sticky`` is given.
            value: bytes or None; with ``schema`` a typed row, see ``RowColumns.try_append``.
            timestamp_ms, size_bytes: 0 or later; ``producer_batch.record_size`` of the record.
            sticky: chooses the partition of a record without a key.
            schema, typed_topic: the columns of a typed row, and the topic that has them.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, larger than ``buffer.memory``.
            RetriableError: REPLOG_BUFFER_EXHAUSTED; nothing was appended.
            ReplogError: REPLOG_PRODUCER_CLOSED.
        """
        with self._lock:
            if sticky is not None:
                queue = sticky.queue
            columns = queue.columns
            if columns is not None and (columns.schema is schema or columns.schema == schema):
                index = columns.try_append(key, value, headers, timestamp_ms, size_bytes)
                if index >= 0:
                    if sticky is not None:
                        sticky.add(size_bytes)
                    return RecordHandle(columns.result, index)
                queue.columns = None
                queue.batches[-1].is_closed = True
            if self._is_closed:
                raise _closed()
        buffer_bytes = max(self.config.batch_size_bytes, size_bytes)
        buffer: bytearray | None = self.pool.allocate_buffer(buffer_bytes, max_block_ms)
        assert buffer is not None
        try:
            with self._lock:
                if self._is_closed:
                    raise _closed()
                if sticky is not None:
                    sticky.switch_if_due()  # a half-full batch delayed the switch until now
                    queue = sticky.queue
                columns = queue.columns
                index = -1
                if columns is not None and columns.schema == schema:
                    index = columns.try_append(key, value, headers, timestamp_ms, size_bytes)
                if columns is None or index < 0:
                    self._check_topic(queue, typed_topic)
                    batch, columns = self._new_batch(queue, buffer, schema)
                    index = columns.try_append(key, value, headers, timestamp_ms, size_bytes)
                    buffer = None  # the batch's, also if Ctrl-C comes before the queue has it
                    self._add(queue, batch, columns)
                if sticky is not None:
                    sticky.add(size_bytes)
        finally:
            if buffer is not None:
                self.pool.deallocate(len(buffer), buffer)
        if buffer is None:
            self._wake_up()
        return RecordHandle(columns.result, index)

    @staticmethod
    def _check_topic(queue: PartitionQueue, typed_topic: TopicId) -> None:
        """Refuse rows that were made for a topic which no longer has the name."""
        if queue.destination is not None and queue.destination.typed_topic != typed_topic:
            raise _renewed(queue.topic_partition)

    def _new_batch(
        self, queue: PartitionQueue, buffer: bytearray, schema: RowSchema | None
    ) -> tuple[ProducerBatch, OpenRecords]:
        limit_bytes, now_ms = self.config.batch_size_bytes, self._clock.monotonic_ms()
        batch = ProducerBatch.of_records(queue.topic_partition, limit_bytes, now_ms, buffer, self.pool, schema)
        assert isinstance(batch.contents, OpenRecords)
        return batch, batch.contents

    def append(
        self,
        queue: PartitionQueue,
        records: pa.RecordBatch,
        size_bytes: int,
        pinned: PinnedBytes,
        now_ms: int,
        record_size_max: int = 0,
        schema: RowSchema | None = None,
        typed_topic: TopicId = "",
    ) -> tuple[BatchResult, int]:
        """Append a slice of N >= 1 records in order; never waits.

        Args:
            size_bytes: of the slice; at most ``max.request.size`` unless it is one record.
            pinned: the reservation of the memory that the slice is part of.
            record_size_max: upper bound of the largest record's bytes; for metrics.
            schema, typed_topic: as in ``append_record``.

        Returns:
            The result of its batch, and the number of its first record there.

        Raises:
            ReplogError: REPLOG_PRODUCER_CLOSED, the accumulator is closed.
        """
        assert records.num_rows == 1 or size_bytes <= self.config.max_request_size_bytes, "appenders cut slices to fit"
        with self._lock:
            if self._is_closed:
                raise _closed()
            self._check_topic(queue, typed_topic)
            batch = queue.batches[-1] if queue.batches else None
            index = 0 if batch is None else batch.row_count
            is_new = batch is None or not batch.try_append(records, size_bytes, pinned, schema)
            if batch is None or is_new:
                index = 0
                batch = ProducerBatch(queue.topic_partition, self.config.batch_size_bytes, now_ms, schema)
                batch.try_append(records, size_bytes, pinned, schema)
                self._add(queue, batch, None)
            batch.contents.record_size_max = max(batch.contents.record_size_max, record_size_max)
        if is_new:
            self._wake_up()
        return batch.result, index

    def ready(self, now_ms: int, *, in_flight_count: int) -> ReadyCheck:
        """Return the destinations worth an object now, and when to ask again.

        A partition makes its node ready if it is not muted, its first batch is not backing off, and one of six reasons
        applies: a full batch (where requests are filled: ``max.request.size`` bytes in the node), ``linger.ms``, a
        caller that waits while nothing is in flight, exhausted memory, close, or a flush. Where requests are filled,
        exhausted memory makes only the largest node ready, and only while no request is in flight that would release
        memory: few large objects instead of many small ones.

        The destination drained longest ago comes first, so that destinations that share roots take turns.
        """
        with self._lock:
            fills = self._fills_requests
            is_urgent = self._is_closed or self._flush_count > 0 or (not fills and bool(self.pool.waiters))
            waits: list[int] = []
            sends_awaited = self._sends_awaited and in_flight_count == 0
            destinations = [
                name
                for name, node in self._nodes.items()
                if self._is_ready(node, now_ms, waits, is_urgent, sends_awaited)
            ]
            if not destinations and fills and in_flight_count == 0 and self.pool.waiters:
                sizes = {name: node.drainable_bytes(now_ms) for name, node in self._nodes.items()}
                destinations = sorted((name for name, size in sizes.items() if size), key=lambda name: -sizes[name])[:1]
            destinations.sort(key=lambda destination: self._nodes[destination].drained_no)
            return ReadyCheck(tuple(destinations), min(waits, default=None))

    def _is_ready(self, node: Node, now_ms: int, waits: list[int], is_urgent: bool, sends_awaited: bool) -> bool:
        """Return whether a node is worth an object; append to ``waits`` how long its batches still wait, in ms."""
        linger_ms = self.config.linger_ms
        if self._fills_requests and not is_urgent:
            is_urgent = node.drainable_bytes(now_ms) >= self.config.max_request_size_bytes
        for queue in node.queues:
            head = queue.head if queue.batches else None  # most queues are empty, and each call checks all of them
            if head is None:
                continue
            backoff_ms = head.backoff_left_ms(now_ms) if head.backoff_ms else 0
            if backoff_ms:
                waits.append(backoff_ms)
                continue
            is_full = not self._fills_requests and (len(queue.batches) > 1 or head.is_full)
            if is_urgent or is_full or (sends_awaited and head.result.is_awaited):
                return True
            if linger_ms is not None:
                waited_ms = max(0, now_ms - head.last_attempt_ms)
                if waited_ms >= linger_ms:
                    return True
                waits.append(linger_ms - waited_ms)
        return False

    def drain(self, destination: Destination, now_ms: int) -> list[ProducerBatch]:
        """Take the batches of one object and close them.

        Takes one batch per partition in turn, beginning where the last drain stopped (Kafka's ``drainIndex``), until
        the next batch would exceed ``max.request.size`` or none may be sent. Where requests are filled, that batch is
        still taken: a smaller object would only cost another put.

        Returns:
            The batches, in order within each partition; empty if none may be sent.
        """
        with self._lock:
            node = self._nodes.get(destination)
            if self._sequences is not None:
                self._sequences.begin_drain()
            taken: list[ProducerBatch] = []
            taken_bytes = 0
            idle_count = 0
            while node is not None and idle_count < len(node.queues):
                node.drain_index %= len(node.queues)
                queue = node.queues[node.drain_index]
                batch = queue.head if queue.batches else None
                if (
                    batch is None
                    or (batch.backoff_ms and batch.backoff_left_ms(now_ms))
                    or (self._sequences is not None and not self._sequences.may_drain(batch))
                ):
                    node.drain_index += 1
                    idle_count += 1
                    continue
                room_bytes = self.config.max_request_size_bytes - taken_bytes
                if taken and room_bytes < (1 if self._fills_requests else batch.size_bytes):
                    break
                node.drain_index += 1
                idle_count = 0
                taken.append(queue.pop_head())
                batch.typed_topic = destination.typed_topic
                self.waiting_count -= 1
                batch.is_closed = True
                batch.result.on_awaited = None
                if self._sequences is not None:
                    self._sequences.assign(batch)
                taken_bytes += batch.size_bytes
            if node is not None and taken:
                node.drained_no = 1 + max(other_node.drained_no for other_node in self._nodes.values())
            return taken

    def copy_wasteful(self) -> None:
        """Copy waiting slices out of memory of which they use less than half, as a drain may leave them."""
        with self._lock:
            for queue in self._queues.values():
                for batch in queue.batches:
                    batch.copy_wasteful(self.pool)

    def mute(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Exclude these partitions from ``ready`` and ``drain``, so that no batch overtakes one in flight."""
        with self._lock:
            for name in topic_partitions:
                self._queues[name].is_muted = True

    def unmute(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """End ``mute``."""
        with self._lock:
            for name in topic_partitions:
                self._queues[name].is_muted = False

    def reenqueue(self, batch: ProducerBatch, now_ms: int) -> None:
        """Put a drained batch back to the front of its queue for another attempt, after a pause."""
        with self._lock:
            queue = self._queues[batch.topic_partition]
            is_orphan = queue.destination is not None and queue.destination.typed_topic != batch.typed_topic
            if batch.state is BatchState.INCOMPLETE and not is_orphan:
                batch.backoff_ms = int(self._backoff.pause_ms(batch.attempts))
                batch.attempts += 1
                batch.last_attempt_ms = now_ms
                queue.insert(batch)
                self.waiting_count += 1
                if self._sends_awaited:
                    batch.result.on_awaited = self._wake_up
        if is_orphan:
            self.fail(batch, _renewed(batch.topic_partition), BatchState.ABORTED)

    def expired_batches(self, now_ms: int) -> list[ProducerBatch]:
        """Take the waiting batches whose ``delivery.timeout.ms`` is over, including those of muted partitions."""
        batches: list[ProducerBatch] = []
        with self._lock:
            for queue in self._queues.values():
                while queue.batches and queue.batches[0].has_expired(now_ms, self.config.delivery_timeout_ms):
                    batches.append(queue.pop_head())
                    self.waiting_count -= 1
        return batches

    def next_expiry_ms(self, now_ms: int) -> int | None:
        """Return in how many milliseconds the next waiting batch expires; None: none waits."""
        with self._lock:
            made = [queue.batches[0].created_ms for queue in self._queues.values() if queue.batches]
        return max(0, min(made) + self.config.delivery_timeout_ms - now_ms) if made else None

    def succeed(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int | None) -> bool:
        """Acknowledge a drained batch and release its memory; return False if it has already ended."""
        with self._lock:
            self._incomplete.pop(batch, None)
            if not batch.end(BatchState.SUCCEEDED):
                return False
        batch.result.decide(base_offset, log_append_time_ms)
        return True

    def fail(self, batch: ProducerBatch, error: ReplogError, state: BatchState = BatchState.FAILED) -> bool:
        """Fail a batch and release its memory; return False if it has already ended."""
        with self._lock:
            self._incomplete.pop(batch, None)
            if not batch.end(state):
                return False
        self._on_failed(batch.row_count)
        batch.result.decide(error=error)
        return True

    def begin_flush(self) -> list[BatchResult]:
        """Make every waiting batch ready until ``end_flush``; return the results that a flush waits for."""
        with self._lock:
            self._flush_count += 1
            results = [batch.result for batch in self._incomplete]
        self._wake_up()
        return results

    def end_flush(self) -> None:
        """End one ``begin_flush``."""
        with self._lock:
            self._flush_count -= 1

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Send the waiting records, and wait until each is acknowledged, parked or failed.

        Needs a sender on another thread. Returns False on timeout.
        """
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        results = self.begin_flush()
        try:
            for result in results:
                left_ms = None if deadline_ms is None else max(0, deadline_ms - self._clock.monotonic_ms())
                if not result.wait_until_settled(None if left_ms is None else left_ms / 1000):
                    return False
            return True
        finally:
            self.end_flush()

    def close(self) -> None:
        """Refuse appends, including those that wait for memory, and make every waiting batch ready."""
        with self._lock:
            self._is_closed = True
            for queue in self._queues.values():
                queue.columns = None
        self.pool.close()
        self._wake_up()

    def abort_incomplete(self, error: ReplogError) -> None:
        """Fail every batch that has not ended, waiting or drained; called by the sender's owner.

        Nothing can be appended afterwards: an append that waits for memory fails.
        """
        self.close()
        with self._lock:
            batches = list(self._incomplete)
            for queue in self._queues.values():
                queue.batches.clear()
            self.waiting_count = 0
        self._abort(batches, error)

    def abandon(self, error: ReplogError) -> None:
        """In a forked child: fail all batches, since only the parent's sender decides them. Takes no lock."""
        for batch in list(self._incomplete):
            batch.result.abandon(error)

    def abort_waiting(self, error: ReplogError) -> None:
        """Fail the batches in the queues, also those that wait for a retry."""
        batches: list[ProducerBatch] = []
        with self._lock:
            for queue in self._queues.values():
                batches += queue.batches
                queue.batches = deque()
                queue.columns = None
            self.waiting_count -= len(batches)
        self._abort(batches, error)

    @property
    def has_incomplete(self) -> bool:
        """Return whether any batch has not ended."""
        with self._lock:
            return bool(self._incomplete)

    def _add(self, queue: PartitionQueue, batch: ProducerBatch, columns: OpenRecords | None) -> None:
        """Make a batch with records the open one of its queue."""
        batch.leader_epoch = queue.leader_epoch
        if self._sends_awaited:
            batch.result.on_awaited = self._wake_up
        if queue.batches:
            queue.batches[-1].is_closed = True
        queue.columns = columns
        self._incomplete[batch] = None
        self.waiting_count += 1
        queue.batches.append(batch)  # last: Ctrl-C comes after calls, and the queue must not have what is not counted

    def _abort(self, batches: Iterable[ProducerBatch], error: ReplogError) -> None:
        for batch in batches:
            self.fail(batch, error, BatchState.ABORTED)


def _renewed(name: TopicPartition) -> ReplogError:
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_ID,
        f"topic '{name.topic}' was deleted and created again. Send the rows again, with its columns of now.",
        topic=name.topic,
    )


def _closed() -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_PRODUCER_CLOSED, "The producer was closed while a record was sent. Open a new one."
    )
