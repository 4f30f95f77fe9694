"""Where the batches of a partition wait, and where they go."""

from __future__ import annotations

from collections import deque
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
    """The batches of one partition. The accumulator's lock guards it."""

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

    @property
    def head(self) -> ProducerBatch | None:
        """Return the first batch, None if there is none or the partition is muted."""
        if self.is_muted or not self.batches:
            return None
        head = self.batches[0]
        if head.leader_epoch != self.leader_epoch:
            head.note_leader_epoch(self.leader_epoch)
        return head

    def close_for_appends(self) -> None:
        """Close the last batch for single records."""
        self.columns = None
        self.batches[-1].is_closed = True

    def pop_head(self) -> ProducerBatch:
        """Take the first batch off."""
        batch = self.batches.popleft()
        if not self.batches:
            self.columns = None
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

    def drainable_bytes(self, now_ms: int) -> int:
        """Return the bytes of all partitions whose first batch may go now."""
        return sum(
            batch.size_bytes
            for queue in self.queues
            if (head := queue.head) is not None and not (head.backoff_ms and head.backoff_left_ms(now_ms))
            for batch in queue.batches
        )
