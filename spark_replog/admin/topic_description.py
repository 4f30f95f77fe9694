"""What admin commands tell about topics: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_replog.admin.assignment import Assignment
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.fold.topic_state import TopicState


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; offsets are exclusive ends."""

    partition: int
    leader: BrokerId
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a running reassignment brings; they are part of `replicas`."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that it takes away at its end; they are part of `replicas`."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic."""

    name: str
    topic_id: TopicId
    ledger_id: LedgerId
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str]
    """What was set on the topic; the rest has its default."""


@dataclass(frozen=True, slots=True)
class TopicListing:
    """One line of a topic list."""

    name: str
    topic_id: TopicId
    ledger_id: LedgerId
    partition_count: int
    replication_factor: int


def describe(handle: TopicHandle, topic: TopicState) -> TopicDescription:
    """Copy a topic's part of the fold into a plain value; call it under the ledger's lock."""
    partitions = tuple(
        PartitionDescription(
            partition=number,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            replicas=tuple(state.replicas),
            isr=tuple(state.isr),
            log_start_offset=state.log_start_offset,
            high_watermark=state.high_watermark,
            log_end_offset=state.log_end_offset,
            adding=tuple(state.adding),
            removing=tuple(state.removing),
        )
        for number, state in enumerate(topic.partitions)
    )
    return TopicDescription(handle.name, handle.topic_id, handle.ledger_id, partitions, dict(topic.config))


def would_be(name: str, assignment: Assignment, config: tuple[tuple[str, str], ...]) -> TopicDescription:
    """Return a topic as creating it would make it; it has no ids yet."""
    partitions = tuple(
        PartitionDescription(number, row[0], 0, row, row, 0, 0, 0) for number, row in enumerate(assignment)
    )
    return TopicDescription(name, "", "", partitions, dict(config))
