"""The topics of a topic ledger in the fold: their lifecycle, leaders, in-sync replicas and reassignments.

Source of the checks of a partition's change, and of their order: Kafka's ``ReplicationControlManager.alterPartition``.
A change is computed from one state of a partition and refused on any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import BrokerId, TopicId
from spark_replog.log import model
from spark_replog.log.fold.entry_fold import change
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.log.fold.paged_table import SectionPages
from spark_replog.log.fold.partition_state import NO_LEADER, PARTITION, Moves, PartitionState
from spark_replog.log.model import OK, CommandResult, DataObject, Outcome
from spark_replog.log.row_schema import ROW_SCHEMA_VERSIONS, RowSchema
from spark_replog.quorum import majority_of
from spark_replog.wire import BOOL, BROKER_ID, SINT, TEXT, UINT, Reader, Writer, fields, list_of, map_of, set_of

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
    schemas: tuple[RowSchema, ...] = ()
    """The versions 1 to N of its rows' columns; none: its rows are bytes."""
    mirror: str = ""
    """What it is a mirror of, whose offsets its rows have: only the mirror appends. '': ordinary writers do."""

    @property
    def schema(self) -> RowSchema | None:
        """Return the newest version of the columns; None: its rows are bytes."""
        return self.schemas[-1] if self.schemas else None

    def rows_of(self, schema_version: int) -> RowSchema | None:
        """Return the columns that the rows of an object have; None: they are bytes."""
        return self.schemas[schema_version - 1] if schema_version else None


class TopicTable:
    """All topics of one ledger, closed ones included.

    Attributes:
        topics: by id.
        partitions: by (topic id, partition).
        pages: the sections that are in pages.
    """

    __slots__ = ("_objects", "pages", "partitions", "topics")

    def __init__(self, objects: ObjectTable, pages: SectionPages) -> None:
        self._objects = objects
        self.pages = pages
        self.topics: dict[TopicId, TopicState] = {}
        self.partitions: dict[tuple[TopicId, int], PartitionState] = {}

    def every_partition(self) -> list[PartitionState]:
        """Return all partitions."""
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def write(self, writer: Writer) -> None:
        """Write all topics to a snapshot."""
        topics = self.topics.values()
        _TOPICS.write(writer, [(t.topic_id, t.name, t.config, t.closed, t.partitions, t.schemas) for t in topics])

    def read(self, reader: Reader) -> None:
        """Read the topics from a snapshot."""
        for topic_id, name, config, closed, partitions, schemas in _TOPICS.read(reader):
            self.topics[topic_id] = TopicState(topic_id, name, config, closed, list(partitions), schemas)
            for number, partition in enumerate(partitions):
                partition.retired, partition.sections.pages = closed, self.pages
                _follow_config(partition, config)
                self.partitions[topic_id, number] = partition

    def apply_topic_init(self, command: model.TopicInit, fenced: Collection[BrokerId]) -> CommandResult:
        """Fold a new topic; fenced brokers are in none of its ISRs."""
        if command.topic_id in self.topics:
            return CommandResult(Outcome.EXISTS, f"topic id {command.topic_id} exists")
        if not command.assignments:
            return CommandResult(Outcome.INVALID, "a topic needs a partition")
        invalid = find_bad_replicas(command.assignments)
        if invalid:
            return CommandResult(Outcome.INVALID, invalid)
        schemas = () if command.schema is None else (command.schema,)
        topic = TopicState(command.topic_id, command.name, dict(command.config), False, [], schemas)
        self.topics[command.topic_id] = topic
        self._add_partitions(topic, command.assignments, fenced)
        return OK

    def open_topic(self, topic_id: TopicId) -> TopicState | CommandResult:
        """Return a topic that is not deleted, or the refusal of a command on it."""
        topic = self.topics.get(topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, f"topic id {topic_id} is not in this ledger")
        return CommandResult(Outcome.TOPIC_CLOSED, f"topic '{topic.name}' was deleted") if topic.closed else topic

    def apply_schema_evolve(self, command: model.SchemaEvolve) -> CommandResult:
        """Fold the next version of a topic's schema."""
        topic = self.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        newest = topic.schema
        if newest is None:
            detail = f"the rows of topic '{topic.name}' are bytes: it has no schema"
            return CommandResult(Outcome.REFUSED, detail, error_code=ErrorCode.REPLOG_INVALID_SCHEMA)
        if command.version != newest.version + 1:
            is_same = command.version == newest.version and command.schema.ddl == newest.ddl
            detail = f"the schema of topic '{topic.name}' is at version {newest.version}"
            return CommandResult(
                Outcome.EXISTS if is_same else Outcome.REFUSED, detail, error_code=ErrorCode.INVALID_UPDATE_VERSION
            )
        try:
            topic.schemas += (newest.evolve(command.schema),)
        except InvalidConfigError as error:
            return CommandResult(Outcome.REFUSED, str(error.args[0]), error_code=ErrorCode.REPLOG_INVALID_SCHEMA)
        return OK

    def find_bad_schema(self, item: DataObject) -> str:
        """Return why the columns of an object are not its topics', '' if they are.

        Typed rows of two topics are never in one object, so that its file has one schema.
        """
        topic_ids = {section.topic_id for section in item.sections}
        for topic_id in topic_ids:
            topic = self.topics.get(topic_id)
            count = 0 if topic is None else len(topic.schemas)
            if item.schema_version > count or (count and not item.schema_version):
                return f"object '{item.id.name}' has version {item.schema_version} of a schema, its topic has {count}"
        if item.schema_version and len(topic_ids) != 1:
            return f"object '{item.id.name}' has typed rows of {len(topic_ids)} topics"
        return ""

    def apply_topic_close(self, command: model.TopicClose) -> CommandResult:
        """Fold a deletion: every later append is refused."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.EXISTS, f"topic '{topic.name}' was deleted before")
        topic.closed = True
        ends = {partition: partition.log_end_offset for partition in topic.partitions}
        for partition, end in ends.items():
            self._objects.note_gone(partition, 0, end)
        self._objects.drop_rows(ends, [number for partition in ends for number in partition.retire()])
        return OK

    def apply_partitions_add(self, command: model.PartitionsAdd, fenced: Collection[BrokerId]) -> CommandResult:
        """Fold growth; existing partitions never move."""
        topic = self.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        count = len(topic.partitions)
        if command.total == count:
            return CommandResult(Outcome.EXISTS, f"topic '{topic.name}' has {count} partitions")
        invalid = find_bad_replicas(command.assignments)
        if command.total < count or command.total - count != len(command.assignments) or invalid:
            detail = invalid or f"{len(command.assignments)} assignments take {count} partitions to {command.total}"
            return CommandResult(Outcome.INVALID, detail)
        self._add_partitions(topic, command.assignments, fenced)
        return OK

    def apply_log_start_advance(self, command: model.LogStartAdvance) -> CommandResult:
        """Fold a trim: all of its partitions, or none if one contradicts the state."""
        topic = self.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        for number, offset in command.offsets:
            if number >= len(topic.partitions):
                return CommandResult(Outcome.INVALID, f"topic '{topic.name}' has no partition {number}")
            if offset > topic.partitions[number].high_watermark:
                detail = f"offset {offset} of {topic.name}-{number} is above the high watermark"
                return CommandResult(Outcome.INVALID, detail)
        ends: dict[PartitionState, int] = {}
        gone: list[int] = []
        for number, offset in command.offsets:
            partition = topic.partitions[number]
            if offset > partition.log_start_offset:
                self._objects.note_gone(partition, 0, offset)
                gone += partition.advance_log_start(offset, command.reason)
                ends[partition] = offset
        self._objects.drop_rows(ends, gone)
        return OK if ends else CommandResult(Outcome.EXISTS, "the log already starts there or later")

    def apply_log_clean(self, command: model.LogClean) -> CommandResult:
        """Fold how far a partition is clean."""
        topic = self.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        partition = self.partitions.get((command.topic_id, command.partition))
        if partition is None or command.clean_offset > partition.high_watermark:
            detail = f"{topic.name}-{command.partition} has no rows up to offset {command.clean_offset}"
            return CommandResult(Outcome.INVALID, detail)
        is_new = partition.clean(command.clean_offset, command.time_ms)
        return OK if is_new else CommandResult(Outcome.EXISTS, "the log is already clean up to there")

    def apply_config_set(self, command: model.ConfigSet) -> CommandResult:
        """Fold changed settings."""
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, command.topic_id)
        change(topic.config, command.changes)
        for partition in topic.partitions:
            _follow_config(partition, topic.config)
        return OK

    def _add_partitions(self, topic: TopicState, assignments: _Assignments, fenced: Collection[BrokerId]) -> None:
        for replicas in assignments:
            partition = PartitionState(replicas, len(self.partitions), self.pages)
            _follow_config(partition, topic.config)
            for broker_id in sorted(fenced):
                partition.fence(broker_id, fenced)
            self.partitions[topic.topic_id, len(topic.partitions)] = partition
            topic.partitions.append(partition)


_TOPICS = list_of(TEXT, TEXT, map_of(TEXT, TEXT), BOOL, list_of(PARTITION), ROW_SCHEMA_VERSIONS)


def _follow_config(partition: PartitionState, config: dict[str, str]) -> None:
    """Set the fields of a partition that follow from its topic's settings and its own number of replicas."""
    partition.min_insync = min_insync_replicas(config, len(partition.replicas) - len(partition.adding))
    partition.log_append_time = config.get("message.timestamp.type") == LOG_APPEND_TIME


def find_bad_replicas(assignments: _Assignments) -> str:
    """Return what is wrong with an assignment, '' for nothing."""
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            return f"{replicas} is not a list of different brokers"
    return ""


def min_insync_replicas(config: dict[str, str], replication_factor: int) -> int:
    """Return the effective `min.insync.replicas`; never above the replication factor."""
    text = config.get("min.insync.replicas", "").lstrip("0")
    if len(text) > 9 and text.isdecimal():  # Python reads at most 4,300 digits
        return replication_factor
    value = int(text) if text.isdecimal() else 0
    return min(value, replication_factor) if value > 0 else majority_of(replication_factor)


_BROKERS = fields(map_of(BROKER_ID, SINT), map_of(BROKER_ID, UINT), set_of(BROKER_ID))
UNCLEAN_KEY = "unclean.leader.election.enable"


class Leadership:
    """In-sync replicas and leaders. Mutable by the fold only.

    Attributes:
        last_shrink_ms: broker -> time of the last change that took it out of an ISR.
        left_at: broker -> the last entry that took it out of every ISR, or found it in none: its disk may have lost
            what was put there before.
        fenced: brokers out of service: they join no ISR and lead nothing.
    """

    def __init__(self, topics: TopicTable, objects: ObjectTable) -> None:
        self._topics = topics
        self._objects = objects
        self.last_shrink_ms: dict[BrokerId, int] = {}
        self.left_at: dict[BrokerId, int] = {}
        self.fenced: set[BrokerId] = set()

    def write(self, writer: Writer) -> None:
        """Write the brokers' part to a snapshot."""
        _BROKERS.write(writer, (self.last_shrink_ms, self.left_at, self.fenced))

    def read(self, reader: Reader) -> None:
        """Read the brokers' part from a snapshot."""
        last_shrink_ms, left_at, self.fenced = _BROKERS.read(reader)
        self.last_shrink_ms.update(last_shrink_ms)
        self.left_at.update(left_at)

    def apply_isr_change(self, command: model.IsrChange, index: int) -> CommandResult:
        """Fold that a broker left or joined the in-sync replicas of one topic, or of all."""
        if command.topic_id is not None and command.topic_id not in self._topics.topics:
            return CommandResult(Outcome.UNKNOWN_TOPIC, command.topic_id)
        if command.in_sync and command.broker_id in self.fenced:
            return _refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {command.broker_id} is fenced")
        if command.topic_id is None and not command.in_sync:
            self.left_at[command.broker_id] = index
        if command.topic_id is None:
            partitions = self._topics.every_partition()
        else:
            partitions = self._topics.topics[command.topic_id].partitions
        lacking = self._objects.partitions_lacking(command.broker_id) if command.in_sync else set()
        changed = kept_out = 0
        for partition in partitions:
            if not command.in_sync:
                changed += partition.shrink(command.broker_id)
                continue
            is_lacking = partition in lacking
            kept_out += is_lacking and command.broker_id not in partition.isr
            if not is_lacking and partition.grow(command.broker_id):
                changed += 1
                partition.elect_if_offline(self.fenced)
        if changed and not command.in_sync:
            before_ms = self.last_shrink_ms.get(command.broker_id, command.time_ms)
            self.last_shrink_ms[command.broker_id] = max(before_ms, command.time_ms)
        detail = f"broker {command.broker_id} lacks objects of {kept_out} partitions" if kept_out else ""
        outcome = Outcome.APPLIED if changed else Outcome.SKIPPED
        return CommandResult(outcome, detail)

    def apply_broker_fence(self, command: model.BrokerFence) -> CommandResult:
        """Fold that a broker is out of service, or back; a fenced broker leads nothing."""
        if (command.broker_id in self.fenced) == command.is_fenced:
            place = "fenced" if command.is_fenced else "in service"
            return CommandResult(Outcome.EXISTS, f"broker {command.broker_id} is already {place}")
        self.fenced ^= {command.broker_id}
        for partition in self._topics.every_partition():
            if command.is_fenced:
                partition.fence(command.broker_id, self.fenced)
            else:
                partition.elect_if_offline(self.fenced)
        return OK

    def apply_partition_change(self, command: model.PartitionChange) -> CommandResult:
        """Fold one partition's new leader, ISR and replicas."""
        topic = self._topics.topics.get(command.topic_id)
        if topic is None or topic.closed:
            return _refused(ErrorCode.UNKNOWN_TOPIC_ID, command.topic_id)
        if command.partition >= len(topic.partitions):
            detail = f"topic '{topic.name}' has no partition {command.partition}"
            return _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        partition = topic.partitions[command.partition]
        refused = self._judge(command, topic, partition)
        if refused is not None:
            return _refused(*refused)
        is_new_replica = not set(command.replicas) <= set(partition.replicas)
        partition.partition_epoch += 1
        partition.replicas, partition.isr = command.replicas, command.isr
        partition.moves = Moves(command.adding, command.removing)
        _follow_config(partition, topic.config)
        cut_count = 0
        if command.is_unclean:
            end_offset = self._objects.end_of(partition, command.leader)
            cut_count = self._objects.truncate_partition(partition, end_offset)
        if is_new_replica:
            self._objects.expect(partition)
        if partition.leader != command.leader:
            partition.elect(command.leader)
        return CommandResult(Outcome.APPLIED, f"{cut_count} rows are lost" if cut_count else "")

    def _judge(
        self, command: model.PartitionChange, topic: TopicState, partition: PartitionState
    ) -> tuple[ErrorCode, str] | None:
        epochs = f"leader epoch {partition.leader_epoch}, partition epoch {partition.partition_epoch}"
        if command.leader_epoch > partition.leader_epoch or command.partition_epoch > partition.partition_epoch:
            return ErrorCode.NOT_CONTROLLER, f"the change was computed from a newer state than {epochs}"
        if command.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, f"the partition is at {epochs}"
        if command.partition_epoch < partition.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION, f"the partition is at {epochs}"
        isr, replicas = command.isr, command.replicas
        if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(replicas):
            return ErrorCode.INVALID_REQUEST, f"ISR {isr} must list some of the replicas {replicas}, each once"
        if not set(command.adding) <= set(replicas) or not set(command.removing) <= set(replicas):
            return (
                ErrorCode.INVALID_REQUEST,
                f"adding {command.adding} and removing {command.removing} must be replicas",
            )
        if len(set(replicas)) != len(replicas):
            return ErrorCode.INVALID_REQUEST, f"{replicas} names a broker twice"
        if command.leader != NO_LEADER and command.leader not in isr:
            return ErrorCode.INVALID_REQUEST, f"the leader {command.leader} is not in the ISR {isr}"
        joining = set(isr) - set(partition.isr)
        if joining & self.fenced:
            return ErrorCode.INELIGIBLE_REPLICA, f"brokers {sorted(joining & self.fenced)} are fenced"
        if command.is_unclean:
            if topic.config.get(UNCLEAN_KEY, "").lower() != "true":
                return ErrorCode.INVALID_REQUEST, f"topic '{topic.name}' has {UNCLEAN_KEY}=false"
            is_alone = isr == (command.leader,)
            return None if is_alone else (ErrorCode.INVALID_REQUEST, "an unclean leader is alone in the ISR")
        for broker_id in sorted(joining):
            if partition in self._objects.partitions_lacking(broker_id):
                return ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} lacks objects of the partition"
        if not set(isr) & set(partition.isr):
            return ErrorCode.INVALID_REQUEST, f"no member of the ISR {partition.isr} would stay"
        return None


def _refused(code: ErrorCode, detail: str) -> CommandResult:
    return CommandResult(Outcome.REFUSED, detail, error_code=code)
