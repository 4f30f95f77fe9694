"""The plan that write tasks follow: folded once in the driver and sent to the tasks.

Write tasks never read a ledger: everything here is a plain value, so a plan pickles and costs
O(partitions). Leader first in every replica set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_replog.errors import (
    AuthorizationError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    command_line,
)
from spark_replog.ids import TOPIC_NAME_LENGTH_MAX, BrokerId, LedgerId, ObjectId, TopicId, is_valid_topic_name
from spark_replog.log.row_schema import RowSchema


def unknown_topic(name: str, path: str) -> ReplogError:
    """Return the error: UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION if no topic could have the name."""
    if not is_valid_topic_name(name):
        return InvalidConfigError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic '{name}' is invalid: no topic can have this name. "
            f"Use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ - and not '.' or '..'.",
            topic=name,
        )
    return NotFoundError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"this store does not host this topic-partition: it has no topic '{name}'. "
        f"Create it: {command_line(path, 'topic', 'create', name, '-p', '1')}, or correct the name: "
        f"{command_line(path, 'topic', 'list')} shows those that there are.",
        topic=name,
    )


TIME_UNBOUNDED_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic as the fold showed it when the plan was made."""

    name: str
    topic_id: TopicId
    ledger_id: LedgerId
    generation: int
    """The ledger's data generation: the folder that new objects go to."""
    replica_sets: tuple[tuple[BrokerId, ...], ...]
    """Per partition: the assigned brokers, leader first."""
    in_sync: tuple[tuple[BrokerId, ...], ...]
    """Per partition: the in-sync brokers, leader first; never empty."""
    min_insync: int
    """``min.insync.replicas`` of the first partition, already clamped to its number of replicas."""
    compression: str
    """none, lz4 or zstd."""
    max_message_bytes: int
    fenced: frozenset[BrokerId] = frozenset()
    """Brokers out of service: a copy on one never counts."""
    is_compacted: bool = False
    """Whether compaction keeps the latest row of each key: rows without a key are refused."""
    offline: frozenset[int] = frozenset()
    """Partitions without a leader: the commit refuses their rows."""
    fold_index: int = field(default=-1, compare=False)
    """The ledger's last entry that the plan knows; -1: none."""
    timestamp_before_max_ms: int = TIME_UNBOUNDED_MS
    """How much older than its write a row may be, and how much later; LogAppendTime topics have no bounds."""
    timestamp_after_max_ms: int = TIME_UNBOUNDED_MS
    min_insyncs: tuple[int, ...] = ()
    """Per partition, if they differ, as while replicas are added to one partition after another."""
    schema: RowSchema | None = None
    """The newest columns of a typed topic; None: rows have a key and a value."""

    def copies_needed(self, partition: int) -> int:
        """Return how many copies acks=all needs."""
        return self.min_insyncs[partition] if self.min_insyncs else self.min_insync

    def spares(self, partition: int) -> tuple[BrokerId, ...]:
        """Return the assigned brokers that are out of sync and that a commit may let join, ascending.

        Their copies count like those of the in-sync replicas. A fenced broker can lead nothing and join nothing.
        """
        replicas, in_sync = self.replica_sets[partition], self.in_sync[partition]
        if len(in_sync) == len(replicas):
            return ()
        return tuple(sorted(replica for replica in replicas if replica not in in_sync and replica not in self.fenced))


class PlannedCopy(NamedTuple):
    """A data object that replicas miss, for a task to copy after its own rows."""

    ledger_id: LedgerId
    id: ObjectId
    size_bytes: int
    checksums: tuple[tuple[int, int, int], ...]
    """Per section: start byte, size, CRC32C."""
    sources: tuple[BrokerId, ...]
    targets: tuple[BrokerId, ...]


class MadeCopy(NamedTuple):
    """A copy that a task has made (or found whole) and verified."""

    ledger_id: LedgerId
    id: ObjectId
    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class WritePlan:
    """All that the tasks of one micro-batch carry. Picklable; made by ``commit.write_plan``."""

    path: str
    topics: tuple[TopicPlan, ...]
    """The one topic asked for, or every topic when rows name their topic."""
    principal: str
    made_at_ms: int
    refused: tuple[tuple[str, str], ...] = ()
    """Topics that the principal may not write, each with the text of the refusal."""
    missing_copies: tuple[PlannedCopy, ...] = ()
    """The oldest objects that replicas miss, a bounded number of them; usually none."""
    _by_name: dict[str, TopicPlan] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {topic.name: topic for topic in self.topics})

    def topic(self, name: str) -> TopicPlan:
        """Return the plan of a topic.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            InvalidConfigError: INVALID_TOPIC_EXCEPTION: no topic can have the name.
        """
        topic = self._by_name.get(name)
        if topic is None:
            for refused, why in self.refused:
                if refused == name:
                    raise AuthorizationError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
        if topic is None:
            raise unknown_topic(name, self.path)
        return topic
