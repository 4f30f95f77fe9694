"""What admin commands tell about topics: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_replog.ids import BrokerId, LedgerId, TopicId


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
