"""Where the batches of a partition wait, where they go, and when a destination is worth a data object."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_replog.ids import BrokerId, LedgerId, TopicPartition
from spark_replog.write.producer_batch import ProducerBatch, RecordColumns


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
    spares: tuple[BrokerId, ...] = ()
    """With acks=all the replicas out of sync, ascending: they get it where too few in-sync ones take it."""


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """What ``ready`` found."""

    destinations: tuple[Destination, ...]
    next_check_ms: int | None
    """When a batch's wait ends next, from now; None where time alone changes nothing."""


class PartitionQueue:
    """The batches of one partition. The accumulator's lock guards it.

    Args:
        topic_partition: whose.
    """

    __slots__ = ("batches", "columns", "destination", "is_muted", "leader_epoch", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: deque[ProducerBatch] = deque()
        self.columns: RecordColumns | None = None
        """The open end for single records; None where the last batch takes none."""
        self.destination: Destination | None = None
        """Where its objects go; None until it is assigned, and nothing is drained before."""
        self.leader_epoch = 0
        """How often that changed."""
        self.is_muted = False

    @property
    def all_batches_full(self) -> bool:
        """Return whether a record appended now would open a batch (when a sticky partition may change)."""
        return not self.batches or self.batches[-1].is_full

    def may_drain(self, now_ms: int) -> bool:
        """Return whether its first batch may go: neither muted, nor in a pause that no new leader ended."""
        if self.is_muted or not self.batches:
            return False
        self.batches[0].note_leader_epoch(self.leader_epoch)
        return not self.batches[0].is_backing_off(now_ms)

    def close_for_appends(self) -> None:
        """Let the last batch take no more single records."""
        self.columns = None
        self.batches[-1].is_closed = True

    def pop_head(self) -> ProducerBatch:
        """Take the first batch off."""
        batch = self.batches.popleft()
        if not self.batches:
            self.columns = None
        return batch

    def take_head(self, now_ms: int) -> ProducerBatch:
        """Take the first batch off to be sent."""
        batch = self.pop_head()
        batch.is_closed = True
        batch.drained_ms = now_ms
        return batch

    def insert(self, batch: ProducerBatch) -> None:
        """Put a batch in front of those that were never sent, and in order among those that were."""
        place = 0
        if batch.has_sequence:
            while (
                place < len(self.batches) and self.batches[place].has_sequence and self.batches[place].precedes(batch)
            ):
                place += 1
        self.batches.insert(place, batch)


@dataclass(slots=True)
class Node:
    """The queues of one destination, in order of first appearance."""

    queues: list[PartitionQueue] = field(default_factory=list)
    drain_index: int = 0
    drained_no: int = 0
    """Number of the accumulator's drain that last took a batch from here; 0: none did."""


@dataclass(slots=True)
class Waits:
    """The shortest wait that a round over partitions met."""

    least_ms: int | None = None

    def note(self, wait_ms: int) -> None:
        """Keep it where it is the shortest."""
        self.least_ms = wait_ms if self.least_ms is None else min(self.least_ms, wait_ms)


class Readiness:
    """The rules of ``RecordAccumulator.ready``. Stateless; called under the accumulator's lock.

    Args:
        linger_ms: ``linger.ms``; None: time alone makes nothing ready.
        max_request_size_bytes: ``max.request.size``.
        fills_requests: whether a put is saved rather than a row sent early.
    """

    def __init__(self, linger_ms: int | None, max_request_size_bytes: int, *, fills_requests: bool) -> None:
        self._linger_ms = linger_ms
        self._max_request_size_bytes = max_request_size_bytes
        self._fills_requests = fills_requests

    def ready_nodes(
        self,
        nodes: Mapping[Destination, Node],
        now_ms: int,
        waits: Waits,
        *,
        is_urgent: bool,
        is_exhausted: bool,
        in_flight_count: int,
    ) -> list[Destination]:
        """Return the destinations worth an object now.

        Args:
            nodes: all of them.
            now_ms: the time.
            waits: told after which time a batch may be ready.
            is_urgent: closed or flushing: all that may go goes.
            is_exhausted: somebody waits for memory.
            in_flight_count: requests that will give memory back.
        """
        if not self._fills_requests:
            is_urgent = is_urgent or is_exhausted
        found = [name for name, node in nodes.items() if self._is_ready(node, now_ms, waits, is_urgent)]
        if not found and self._fills_requests and is_exhausted and in_flight_count == 0:
            return self._largest(nodes, now_ms)
        return found

    def has_request_room(self, taken_bytes: int, next_bytes: int) -> bool:
        """Return whether a drain that took something takes one more batch."""
        if self._fills_requests:
            return taken_bytes < self._max_request_size_bytes
        return taken_bytes + next_bytes <= self._max_request_size_bytes

    def _is_ready(self, node: Node, now_ms: int, waits: Waits, is_urgent: bool) -> bool:
        if self._fills_requests and not is_urgent:
            is_urgent = _drainable_bytes(node, now_ms) >= self._max_request_size_bytes
        for queue in node.queues:
            if queue.is_muted or not queue.batches:
                continue
            head = queue.batches[0]
            head.note_leader_epoch(queue.leader_epoch)
            waited_ms = head.waited_ms(now_ms)
            if head.is_backing_off(now_ms):
                waits.note(head.backoff_ms - waited_ms)
                continue
            is_full = not self._fills_requests and (len(queue.batches) > 1 or head.is_full)
            if is_urgent or is_full:
                return True
            if self._linger_ms is not None:
                if waited_ms >= self._linger_ms:
                    return True
                waits.note(self._linger_ms - waited_ms)
        return False

    def _largest(self, nodes: Mapping[Destination, Node], now_ms: int) -> list[Destination]:
        sizes = {name: _drainable_bytes(node, now_ms) for name, node in nodes.items()}
        largest = max(sizes, key=lambda name: sizes[name], default=None)
        return [largest] if largest is not None and sizes[largest] else []


def _drainable_bytes(node: Node, now_ms: int) -> int:
    return sum(batch.size_bytes for queue in node.queues if queue.may_drain(now_ms) for batch in queue.batches)


__all__ = ["Destination", "Node", "PartitionQueue", "Readiness", "ReadyCheck", "Waits"]
