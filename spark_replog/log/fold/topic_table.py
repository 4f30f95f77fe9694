"""The topics of a topic ledger in the fold: creation, growth, settings, deletion. No clock."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.ids import BrokerId, TopicId
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.model import (
    OK,
    CommandResult,
    ConfigSet,
    LogStartAdvance,
    Outcome,
    PartitionsAdd,
    TopicClose,
    TopicInit,
)

LOG_APPEND_TIME = "LogAppendTime"
_Assignments = tuple[tuple[BrokerId, ...], ...]


@dataclass(slots=True)
class TopicState:
    """One topic. Mutable by the fold only; read it under the ledger's lock."""

    topic_id: TopicId
    name: str
    config: dict[str, str]
    closed: bool
    partitions: list[PartitionState]

    @property
    def log_append_time(self) -> bool:
        """Return whether rows show the time of their append."""
        return self.config.get("message.timestamp.type") == LOG_APPEND_TIME


class TopicTable:
    """All topics of one ledger, closed ones included.

    Attributes:
        topics: by id.
        partitions: by (topic id, partition).
    """

    __slots__ = ("partitions", "topics")

    def __init__(self) -> None:
        self.topics: dict[TopicId, TopicState] = {}
        self.partitions: dict[tuple[TopicId, int], PartitionState] = {}

    def apply_topic_init(self, command: TopicInit) -> CommandResult:
        """Fold a new topic."""
        if command.topic_id in self.topics:
            return CommandResult(Outcome.EXISTS, {}, f"topic id {command.topic_id} exists")
        if not command.assignments:
            return CommandResult(Outcome.INVALID, {}, "a topic needs a partition")
        invalid = find_bad_replicas(command.assignments)
        if invalid:
            return CommandResult(Outcome.INVALID, {}, invalid)
        topic = TopicState(command.topic_id, command.name, dict(command.config), False, [])
        self.topics[command.topic_id] = topic
        self._add_partitions(topic, command.assignments)
        return OK

    def apply_topic_close(self, command: TopicClose) -> CommandResult:
        """Fold a deletion: every later append is refused."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.EXISTS, {}, f"topic '{topic.name}' is closed already")
        topic.closed = True
        for partition in topic.partitions:
            partition.retired = True
        return OK

    def apply_partitions_add(self, command: PartitionsAdd) -> CommandResult:
        """Fold growth; existing partitions never move."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.TOPIC_CLOSED, {}, f"topic '{topic.name}' was deleted")
        count = len(topic.partitions)
        if command.total == count:
            return CommandResult(Outcome.EXISTS, {}, f"topic '{topic.name}' has {count} partitions")
        invalid = find_bad_replicas(command.assignments)
        if command.total < count or command.total - count != len(command.assignments) or invalid:
            detail = invalid or f"{len(command.assignments)} assignments take {count} partitions to {command.total}"
            return CommandResult(Outcome.INVALID, {}, detail)
        self._add_partitions(topic, command.assignments)
        return OK

    def apply_log_start_advance(self, command: LogStartAdvance) -> CommandResult:
        """Fold a trim: all of its partitions, or none where one contradicts the state."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.TOPIC_CLOSED, {}, f"topic '{topic.name}' was deleted")
        for number, offset in command.offsets:
            if number >= len(topic.partitions):
                return CommandResult(Outcome.INVALID, {}, f"topic '{topic.name}' has no partition {number}")
            if offset > topic.partitions[number].high_watermark:
                detail = f"offset {offset} of {topic.name}-{number} is above the high watermark"
                return CommandResult(Outcome.INVALID, {}, detail)
        moved = [
            topic.partitions[number].advance_log_start(offset, command.reason) for number, offset in command.offsets
        ]
        return OK if any(moved) else CommandResult(Outcome.EXISTS, {}, "the log starts there or later already")

    def apply_config_set(self, command: ConfigSet) -> CommandResult:
        """Fold changed settings."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        for key, value in command.changes:
            if value is None:
                topic.config.pop(key, None)
            else:
                topic.config[key] = value
        for partition in topic.partitions:
            partition.min_insync = min_insync_replicas(topic.config, len(partition.replicas) - len(partition.adding))
        return OK

    def _add_partitions(self, topic: TopicState, assignments: _Assignments) -> None:
        for replicas in assignments:
            partition = PartitionState(replicas, min_insync_replicas(topic.config, len(replicas)))
            self.partitions[topic.topic_id, len(topic.partitions)] = partition
            topic.partitions.append(partition)


def find_bad_replicas(assignments: _Assignments) -> str:
    """Return what is wrong with an assignment, '' when nothing is."""
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            return f"{replicas} is no replica set"
    return ""


def min_insync_replicas(config: dict[str, str], replication_factor: int) -> int:
    """Return the effective `min.insync.replicas`; never above the replication factor."""
    text = config.get("min.insync.replicas", "").lstrip("0")
    if len(text) > 9 and text.isdecimal():  # Python reads at most 4,300 digits
        return replication_factor
    value = int(text) if text.isdecimal() else 0
    return min(value, replication_factor) if value > 0 else replication_factor // 2 + 1
