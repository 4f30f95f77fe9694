"""Where records wait until a data object is worth a put.

Source: Kafka ``RecordAccumulator``. Two things differ, for passive storage. A node is a set of
roots that get the same object. And a full batch alone makes no node ready: an object is worth a
put when ``max.request.size`` bytes wait for it, since every put costs and a small task must make
exactly one object per set of roots.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_replog.ids import BrokerId, LedgerId, TopicPartition
from spark_replog.producer.buffer_pool import BufferPool, PinnedBytes
from spark_replog.producer.producer_batch import BatchState, ProducerBatch


@dataclass(frozen=True, slots=True)
class Destination:
    """What one data object may hold together: Kafka's node, for passive roots."""

    ledger_id: LedgerId
    generation: int
    brokers: tuple[BrokerId, ...]
    """The in-sync replicas, ascending; every one gets the object."""
    leader: BrokerId | None
    """Who must hold it with acks=1; None with acks=all, where leaders share objects."""
    compression: str


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """What ``ready`` found."""

    destinations: tuple[Destination, ...]
    next_check_ms: int | None
    """When a batch's ``linger.ms`` ends next, from now; None where time alone changes nothing."""


@dataclass(slots=True)
class _Node:
    """The queues of one destination; partitions in order of first appearance."""

    partitions: list[TopicPartition] = field(default_factory=list)
    drainable_bytes: int = 0
    drain_index: int = 0


class RecordAccumulator:
    """A queue of batches per partition.

    Thread-safe by one lock; memory is reserved by the caller before, outside of it.

    Invariants:
        Only the last batch of a queue is open to more records; no batch is empty.
        A batch is incomplete from its creation until it is completed or aborted.

    Args:
        pool: counts the memory.
        batch_size_bytes: ``batch.size``.
        max_request_size_bytes: ``max.request.size``: so many bytes make a destination ready.
        linger_ms: ``linger.ms``; None: batches wait for one of the other reasons.
    """

    def __init__(
        self, pool: BufferPool, *, batch_size_bytes: int, max_request_size_bytes: int, linger_ms: int | None
    ) -> None:
        self.pool = pool
        self._batch_size_bytes = batch_size_bytes
        self._max_request_size_bytes = max_request_size_bytes
        self._linger_ms = linger_ms
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._nodes: dict[Destination, _Node] = {}
        self._incomplete: set[ProducerBatch] = set()
        self._is_closed = False

    def append(
        self,
        topic_partition: TopicPartition,
        destination: Destination,
        records: pa.RecordBatch,
        size_bytes: int,
        pinned: PinnedBytes,
        now_ms: int,
    ) -> None:
        """Add a slice of N >= 1 records, in order, behind what the partition has.

        Memory is reserved already, so nothing here waits; whatever was drained while the caller
        waited for memory is simply no longer the last batch (Kafka's second phase).

        Args:
            topic_partition: where to.
            destination: where the partition's objects go; the same for all its slices.
            records: the slice.
            size_bytes: its bytes.
            pinned: the reservation of the memory it is a slice of.
            now_ms: the creation time of a new batch.
        """
        with self._lock:
            assert not self._is_closed, "no appends behind close"
            queue = self._queues.get(topic_partition)
            if queue is None:
                queue = self._queues[topic_partition] = deque()
                self._nodes.setdefault(destination, _Node()).partitions.append(topic_partition)
            if not queue or not queue[-1].try_append(records, size_bytes, pinned):
                batch = ProducerBatch(topic_partition, self._batch_size_bytes, now_ms)
                batch.try_append(records, size_bytes, pinned)
                queue.append(batch)
                self._incomplete.add(batch)
            self._nodes[destination].drainable_bytes += size_bytes

    def ready(self, now_ms: int, *, in_flight_count: int) -> ReadyCheck:
        """Return the destinations worth an object now.

        Reasons: ``max.request.size`` bytes, close, ``linger.ms``, or somebody waits for
        memory that no request in flight will give back; then the largest one goes, so that
        memory pressure makes few objects and no crumbs.
        """
        with self._lock:
            waiting = {key: node for key, node in self._nodes.items() if node.drainable_bytes > 0}
            if self._is_closed:
                return ReadyCheck(tuple(waiting), None)
            found = [key for key, node in waiting.items() if node.drainable_bytes >= self._max_request_size_bytes]
            next_check_ms: int | None = None
            if self._linger_ms is not None:
                for key, node in waiting.items():
                    left_ms = self._linger_left_ms(node, now_ms)
                    if key in found:
                        continue
                    if left_ms <= 0:
                        found.append(key)
                    else:
                        next_check_ms = left_ms if next_check_ms is None else min(next_check_ms, left_ms)
            if not found and waiting and self.pool.queued_count and in_flight_count == 0:
                found.append(max(waiting, key=lambda key: waiting[key].drainable_bytes))
            return ReadyCheck(tuple(found), next_check_ms)

    def drain(self, destination: Destination) -> list[ProducerBatch]:
        """Take the batches of one object: ``max.request.size`` bytes, at most one batch more.

        Goes round the partitions, one batch each, beginning where the last drain stopped (Kafka's
        drainIndex), and again until there are enough bytes or no more batches.

        Returns:
            Batches, each partition's in order; empty where nothing waits.
        """
        with self._lock:
            node = self._nodes[destination]
            taken: list[ProducerBatch] = []
            taken_bytes = 0
            idle_count = 0
            while taken_bytes < self._max_request_size_bytes and idle_count < len(node.partitions):
                node.drain_index %= len(node.partitions)
                queue = self._queues[node.partitions[node.drain_index]]
                node.drain_index += 1
                if not queue:
                    idle_count += 1
                    continue
                idle_count = 0
                batch = queue.popleft()
                batch.is_closed = True
                taken.append(batch)
                taken_bytes += batch.size_bytes
            node.drainable_bytes -= taken_bytes
            assert node.drainable_bytes >= 0
            return taken

    def copy_wasteful(self) -> None:
        """Copy waiting slices out of memory of which they are less than half, so that it can go.

        Called behind drains: what was drained leaves the rest of its memory to the few that wait.
        """
        with self._lock:
            for batch in self._waiting():
                if batch.is_wasteful:
                    batch.copy_slices(self.pool)

    def complete(self, batch: ProducerBatch, state: BatchState) -> None:
        """End a drained batch and give its memory back."""
        with self._lock:
            if batch.complete(state):
                self._incomplete.discard(batch)

    def abort_incomplete(self) -> None:
        """Drop every batch that has not ended, waiting or drained."""
        with self._lock:
            self._is_closed = True
            for batch in list(self._incomplete):
                batch.complete(BatchState.ABORTED)
            self._incomplete.clear()
            self._queues.clear()
            self._nodes.clear()

    def close(self) -> None:
        """Refuse appends and make all that waits ready."""
        with self._lock:
            self._is_closed = True

    @property
    def has_undrained(self) -> bool:
        """Return whether any batch waits."""
        with self._lock:
            return any(node.drainable_bytes for node in self._nodes.values())

    @property
    def has_incomplete(self) -> bool:
        """Return whether any batch has not ended."""
        with self._lock:
            return bool(self._incomplete)

    def _waiting(self) -> Iterator[ProducerBatch]:
        for queue in self._queues.values():
            yield from queue

    def _linger_left_ms(self, node: _Node, now_ms: int) -> int:
        assert self._linger_ms is not None
        heads = [self._queues[name][0] for name in node.partitions if self._queues[name]]
        oldest_ms = min(batch.created_ms for batch in heads)
        return max(0, oldest_ms + self._linger_ms - now_ms)


__all__ = ["Destination", "ReadyCheck", "RecordAccumulator"]
