"""Topics and their partitions as plain values, copied from a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.fold.topic_state import NO_TRAFFIC, TopicLedgerState, Traffic


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; offsets are exclusive ends.

    Attributes:
        isr: in-sync replicas.
        fenced: replicas on fenced brokers, which do not count as in sync.
        min_insync: effective ``min.insync.replicas``.
        size_bytes: of the rows from the log start on, in one copy; a section that is partly trimmed counts in full.
        adding, removing: replicas that a running reassignment adds, and removes at its end.
    """

    partition: int
    leader: BrokerId
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    fenced: tuple[BrokerId, ...] = ()
    min_insync: int = 1
    size_bytes: int = 0

    @property
    def in_sync(self) -> list[BrokerId]:
        """Return the in-sync replicas on brokers that are not fenced."""
        return [each for each in self.isr if each not in self.fenced]

    @property
    def out_of_sync(self) -> list[BrokerId]:
        """Return the replicas that are not in sync, or fenced."""
        return sorted(set(self.replicas) - set(self.in_sync))

    @property
    def is_offline(self) -> bool:
        """Return whether writes fail because there is no leader."""
        return self.leader == NO_LEADER

    @property
    def is_under_min_isr(self) -> bool:
        """Return whether writes with acks=all are refused."""
        return len(self.in_sync) < self.min_insync

    @property
    def row_count(self) -> int:
        """Return the number of readable rows."""
        return self.high_watermark - self.log_start_offset


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic.

    Attributes:
        config: the settings of the topic itself; all others have their defaults.
        traffic: the recent appends.
    """

    name: str
    topic_id: TopicId
    ledger_id: LedgerId
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str]
    traffic: Traffic = NO_TRAFFIC

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of the first partition."""
        return len(self.partitions[0].replicas)

    @property
    def row_count(self) -> int:
        """Return the number of readable rows of all partitions."""
        return sum(each.row_count for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all partitions, in one copy."""
        return sum(each.size_bytes for each in self.partitions)


def describe(state: TopicLedgerState, topic_id: TopicId, name: str) -> TopicDescription:
    """Copy a topic out of the fold; call it under the ledger's lock."""
    topic = state.topics[topic_id]
    fenced = state.fenced
    partitions = tuple(
        PartitionDescription(
            number,
            each.leader,
            each.leader_epoch,
            each.replicas,
            each.isr,
            each.log_start_offset,
            each.high_watermark,
            each.log_end_offset,
            each.adding,
            each.removing,
            tuple(broker_id for broker_id in each.replicas if broker_id in fenced),
            each.min_insync,
            each.live_bytes,
        )
        for number, each in enumerate(topic.partitions)
    )
    traffic = state.traffic.get(topic_id, NO_TRAFFIC)
    return TopicDescription(name, topic_id, state.ledger_id, partitions, dict(topic.config), traffic)


def describe_ledger(state: TopicLedgerState) -> list[TopicDescription]:
    """Copy all existing topics of a ledger, by name; call it under the ledger's lock."""
    live = sorted((topic.name, topic.topic_id) for topic in state.topics.values() if not topic.closed)
    return [describe(state, topic_id, name) for name, topic_id in live]


def would_be(
    name: str, assignment: Sequence[tuple[BrokerId, ...]], config: tuple[tuple[str, str], ...]
) -> TopicDescription:
    """Return the description that a new topic would have; it has no ids yet."""
    partitions = tuple(PartitionDescription(number, row[0], 0, row, row) for number, row in enumerate(assignment))
    return TopicDescription(name, "", "", partitions, dict(config))
