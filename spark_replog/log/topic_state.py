"""The fold of a topic ledger: decided entries in, topics, offsets and high watermarks out.

Deterministic and total: the same entries give the same state in every process, a command that
contradicts the state is a no-op with a reason, and only a format of a newer release raises. No clock.
LEO and high watermark are derived here, never carried (DESIGN 6.6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.commands import decode_command
from spark_replog.log.entry import decode_entry
from spark_replog.log.group_state import GroupTable
from spark_replog.log.model import (
    Append,
    ConfigSet,
    DataObject,
    GenerationAdvance,
    GroupRecords,
    HoldersAdd,
    IsrChange,
    PartitionsAdd,
    Section,
    TopicClose,
    TopicInit,
)
from spark_replog.log.partition_state import ObjectRef, PartitionState, SectionRef
from spark_replog.log.producer_state import ProducerTable, row_counts
from spark_replog.log.results import OK, CommandResult, Judgement, Outcome

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


class MissingCopy(NamedTuple):
    """An object that replicas lack, and how `HoldersAdd` names it."""

    entry_index: int
    command_no: int
    object_no: int
    object: ObjectRef
    sections: tuple[Section, ...]
    """With their checksums, to verify a copy."""
    missing: tuple[BrokerId, ...]


@dataclass(slots=True)
class _LogObject:
    generation: int
    name: str
    size_bytes: int
    has_headers: bool
    holders: frozenset[BrokerId]
    entry_index: int
    command_no: int
    object_no: int
    append_time_ms: int
    # Kept only while a replica lacks the object: who needs it, and how to check a copy.
    partitions: tuple[PartitionState, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(slots=True)
class _Unstable:
    """Appends of one entry above the stable index."""

    index: int
    objects: list[_LogObject] = field(default_factory=list)
    ends: dict[PartitionState, int] = field(default_factory=dict)


class TopicLedgerState:
    """State of one topic ledger; `ledger.types.LedgerState`.

    Not thread safe: read and apply under the ledger's lock. Answers are values, safe to keep.

    Attributes:
        applied_index: last folded entry, -1 before the first.
        topics: by id, closed ones included.
        generation: data folder for new objects.
        gc_floor: objects of lower generations are refused.
        append_time_ms: of the last append; never falls.
        last_shrink_ms: broker -> time of the last change that took it out of an ISR.
    """

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.applied_index = -1
        self.topics: dict[TopicId, TopicState] = {}
        self.generation = 0
        self.gc_floor = 0
        self.append_time_ms = 0
        self.last_shrink_ms: dict[BrokerId, int] = {}
        self.producers = ProducerTable()
        self.groups = GroupTable()
        self._partitions: dict[tuple[TopicId, int], PartitionState] = {}
        self._objects: list[_LogObject] = []
        self._first_object: dict[tuple[int, int], tuple[int, int]] = {}
        self._missing: dict[BrokerId, dict[int, None]] = {}
        self._unstable: deque[_Unstable] = deque()
        self._fold: dict[type, Callable[[Any, int, int], CommandResult]] = {
            Append: self._apply_append,
            TopicInit: self._apply_topic_init,
            TopicClose: self._apply_topic_close,
            PartitionsAdd: self._apply_partitions_add,
            ConfigSet: self._apply_config_set,
            IsrChange: self._apply_isr_change,
            HoldersAdd: self._apply_holders_add,
            GenerationAdvance: self._apply_generation_advance,
            GroupRecords: self._apply_group_records,
        }

    # ------------------------------------------------------------------------------------ questions

    @property
    def stable_index(self) -> int:
        """Return the largest index whose entries, and all before, are on every in-sync replica."""
        return self._unstable[0].index - 1 if self._unstable else self.applied_index

    def sections(self, topic_id: TopicId, partition: int, start_offset: int, end_offset: int) -> list[SectionRef]:
        """Return the sections that hold any offset in [start_offset, end_offset), in order.

        O(log n + result). Empty for an unknown partition; gaps are the caller's to find.
        """
        found = self._partitions.get((topic_id, partition))
        if found is None:
            return []
        refs: dict[int, ObjectRef] = {}
        answer = []
        for row in found.sections_between(start_offset, end_offset):
            item = self._objects[row.object_number]
            ref = refs.get(row.object_number)
            if ref is None:
                ref = refs[row.object_number] = self._object_ref(item)
            answer.append(
                SectionRef(
                    row.base_offset,
                    row.row_count,
                    ref,
                    row.start_byte,
                    row.size_bytes,
                    row.crc32c,
                    row.min_timestamp_ms,
                    row.max_timestamp_ms,
                    item.append_time_ms,
                    row.timestamp_type,
                )
            )
        return answer

    def offset_for_time(self, topic_id: TopicId, partition: int, timestamp_ms: int) -> int | None:
        """Return where to start reading for rows at or after a time: the first section that has one.

        Rows before it in that section are the reader's to skip. None: no readable row is that late.
        """
        found = self._partitions.get((topic_id, partition))
        offset = None if found is None else found.offset_for_time(timestamp_ms)
        if found is None or offset is None or offset >= found.high_watermark:
            return None
        return max(offset, found.log_start_offset)

    def under_replicated(self, *, include_out_of_sync: bool = False) -> list[MissingCopy]:
        """Return the objects that an in-sync replica (or any assigned one) lacks, oldest first."""
        wanted: dict[int, list[BrokerId]] = {}
        for broker_id in sorted(self._missing):
            for number in self._missing[broker_id]:
                for partition in self._objects[number].partitions:
                    members = partition.replicas if include_out_of_sync else partition.isr
                    if broker_id in members and not partition.retired:
                        wanted.setdefault(number, []).append(broker_id)
                        break
        answer = []
        for number in sorted(wanted):
            item = self._objects[number]
            answer.append(
                MissingCopy(
                    item.entry_index,
                    item.command_no,
                    item.object_no,
                    self._object_ref(item),
                    item.sections,
                    tuple(wanted[number]),
                )
            )
        return answer

    def judge(self, append: Append) -> Judgement:
        """Return what the fold answers if this append is decided next. Changes nothing."""
        for topic_id in dict.fromkeys(s.topic_id for item in append.objects for s in item.sections):
            topic = self.topics.get(topic_id)
            if topic is None:
                return Judgement(Outcome.UNKNOWN_TOPIC, f"topic id {topic_id} is not in this ledger")
            if topic.closed:
                return Judgement(Outcome.TOPIC_CLOSED, f"topic '{topic.name}' was deleted")
        duplicate = self.producers.judge_duplicate(append)
        if duplicate is not None:
            return Judgement(*duplicate)
        fenced = self.producers.judge_fenced(append)
        if fenced is not None:
            return Judgement(Outcome.FENCED, fenced)
        for item in append.objects:
            if item.generation < self.gc_floor:
                return Judgement(
                    Outcome.BELOW_FLOOR, f"generation {item.generation} is below the floor {self.gc_floor}"
                )
        refused = self.producers.judge_sequence(append)
        if refused is not None:
            return Judgement(*refused)
        invalid = self._find_contradiction(append)
        if invalid:
            return Judgement(Outcome.INVALID, invalid)
        ranges = {}
        for where, rows in row_counts(append).items():
            base = self._partitions[where].log_end_offset
            ranges[where] = (base, base + rows)
        return Judgement(Outcome.APPLIED, "", ranges)

    # ---------------------------------------------------------------------------------------- fold

    def apply(self, index: int, payload: bytes) -> tuple[CommandResult, ...]:
        """Fold one decided entry; return one result per command, in order.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION: nothing was changed.
            CorruptDataError: CORRUPT_MESSAGE: nothing was changed.
            ReplogError: UNKNOWN_SERVER_ERROR: the entry is not the next one; a defect of the caller.
        """
        if index != self.applied_index + 1:
            raise ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"entry {index} was folded after {self.applied_index}. This is a defect: report it.",
            )
        commands = [decode_command(data) for data in decode_entry(payload)]
        self.applied_index = index
        results = []
        for number, command in enumerate(commands):
            fold = self._fold.get(type(command))
            if fold is None:
                results.append(CommandResult(Outcome.INVALID, {}, "a cluster command in a topic ledger"))
            else:
                results.append(fold(command, index, number))
        self._advance_stable()
        return tuple(results)

    def _apply_append(self, append: Append, index: int, number: int) -> CommandResult:
        judgement = self.judge(append)
        if judgement.outcome is not Outcome.APPLIED:
            return CommandResult(judgement.outcome, judgement.ranges, judgement.detail)
        self.append_time_ms = max(self.append_time_ms, append.append_time_ms)
        self._first_object[index, number] = (len(self._objects), len(append.objects))
        if not self._unstable or self._unstable[-1].index != index:
            self._unstable.append(_Unstable(index))
        pending = self._unstable[-1]
        log_times = {
            topic_id: self.append_time_ms if self.topics[topic_id].log_append_time else None
            for topic_id in {where[0] for where in judgement.ranges}
        }
        for object_no, item in enumerate(append.objects):
            pending.objects.append(self._add_object(item, index, number, object_no, log_times))
        for where, (_, end) in judgement.ranges.items():
            pending.ends[self._partitions[where]] = end
        self.producers.record(append, judgement.ranges)
        return CommandResult(Outcome.APPLIED, judgement.ranges)

    def _add_object(
        self, item: DataObject, index: int, number: int, object_no: int, log_times: dict[TopicId, int | None]
    ) -> _LogObject:
        object_number = len(self._objects)
        added = _LogObject(
            item.generation,
            item.name,
            item.size_bytes,
            item.has_headers,
            item.holders,
            index,
            number,
            object_no,
            self.append_time_ms,
        )
        self._objects.append(added)
        partitions = []
        for section in item.sections:
            partition = self._partitions[section.topic_id, section.partition]
            partition.add(section, object_number, log_times[section.topic_id])
            partitions.append(partition)
        lacking = {b for replicas in {p.replicas for p in partitions} for b in replicas} - item.holders
        if lacking:
            added.partitions, added.sections = tuple(partitions), item.sections
            for broker_id in lacking:
                self._missing.setdefault(broker_id, {})[object_number] = None
        return added

    def _apply_topic_init(self, command: TopicInit, index: int, number: int) -> CommandResult:
        if command.topic_id in self.topics:
            return CommandResult(Outcome.EXISTS, {}, f"topic id {command.topic_id} exists")
        if not command.assignments:
            return CommandResult(Outcome.INVALID, {}, "a topic needs a partition")
        invalid = _find_bad_replicas(command.assignments)
        if invalid:
            return CommandResult(Outcome.INVALID, {}, invalid)
        topic = TopicState(command.topic_id, command.name, dict(command.config), False, [])
        self.topics[command.topic_id] = topic
        self._add_partitions(topic, command.assignments)
        return OK

    def _apply_topic_close(self, command: TopicClose, index: int, number: int) -> CommandResult:
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.EXISTS, {}, f"topic '{topic.name}' is closed already")
        topic.closed = True
        for partition in topic.partitions:
            partition.retired = True
        return OK

    def _apply_partitions_add(self, command: PartitionsAdd, index: int, number: int) -> CommandResult:
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.TOPIC_CLOSED, {}, f"topic '{topic.name}' was deleted")
        count = len(topic.partitions)
        if command.total == count:
            return CommandResult(Outcome.EXISTS, {}, f"topic '{topic.name}' has {count} partitions")
        invalid = _find_bad_replicas(command.assignments)
        if command.total < count or command.total - count != len(command.assignments) or invalid:
            detail = invalid or f"{len(command.assignments)} assignments take {count} partitions to {command.total}"
            return CommandResult(Outcome.INVALID, {}, detail)
        self._add_partitions(topic, command.assignments)
        return OK

    def _add_partitions(self, topic: TopicState, assignments: _Assignments) -> None:
        for replicas in assignments:
            partition = PartitionState(replicas, _min_insync(topic.config, len(replicas)))
            self._partitions[topic.topic_id, len(topic.partitions)] = partition
            topic.partitions.append(partition)

    def _apply_config_set(self, command: ConfigSet, index: int, number: int) -> CommandResult:
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        for key, value in command.changes:
            if value is None:
                topic.config.pop(key, None)
            else:
                topic.config[key] = value
        for partition in topic.partitions:
            partition.min_insync = _min_insync(topic.config, len(partition.replicas))
        return OK

    def _apply_isr_change(self, command: IsrChange, index: int, number: int) -> CommandResult:
        if command.topic_id is not None and command.topic_id not in self.topics:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        topics = self.topics.values() if command.topic_id is None else (self.topics[command.topic_id],)
        lacking = self._partitions_lacking(command.broker_id) if command.in_sync else set()
        changed = kept_out = 0
        leader_changes = []
        for topic in topics:
            for number_in_topic, partition in enumerate(topic.partitions):
                if command.in_sync:
                    behind = partition in lacking
                    kept_out += behind and command.broker_id not in partition.isr
                    changed += not behind and partition.grow(command.broker_id)
                    continue
                leader = partition.leader
                changed += partition.shrink(command.broker_id)
                if partition.leader != leader:
                    leader_changes.append((topic.topic_id, number_in_topic, partition.leader))
        if changed and not command.in_sync:
            before_ms = self.last_shrink_ms.get(command.broker_id, command.time_ms)
            self.last_shrink_ms[command.broker_id] = max(before_ms, command.time_ms)
        detail = f"broker {command.broker_id} lacks objects of {kept_out} partitions" if kept_out else ""
        outcome = Outcome.APPLIED if changed else Outcome.SKIPPED
        return CommandResult(outcome, {}, detail, tuple(leader_changes))

    def _apply_holders_add(self, command: HoldersAdd, index: int, number: int) -> CommandResult:
        first, count = self._first_object.get((command.entry_index, command.command_no), (0, 0))
        if command.object_no >= count:
            detail = f"entry {command.entry_index} has no object {command.command_no}/{command.object_no}"
            return CommandResult(Outcome.INVALID, {}, detail)
        object_number = first + command.object_no
        item = self._objects[object_number]
        added = frozenset(command.broker_ids) - item.holders
        if not added:
            return CommandResult(Outcome.EXISTS, {}, f"object '{item.name}' is known to be there")
        item.holders |= added
        for broker_id in added:
            self._missing.get(broker_id, {}).pop(object_number, None)
        if item.partitions and all(item.holders.issuperset(p.replicas) for p in item.partitions):
            item.partitions, item.sections = (), ()
        return OK

    def _apply_generation_advance(self, command: GenerationAdvance, index: int, number: int) -> CommandResult:
        if command.floor > command.generation:
            return CommandResult(Outcome.INVALID, {}, "the floor would be above the generation")
        if command.generation <= self.generation and command.floor <= self.gc_floor:
            return CommandResult(Outcome.EXISTS, {}, f"generation {self.generation}, floor {self.gc_floor}")
        self.generation = max(self.generation, command.generation)
        self.gc_floor = max(self.gc_floor, command.floor)
        self.producers.forget_one_shots(self.gc_floor)
        return OK

    def _apply_group_records(self, command: GroupRecords, index: int, number: int) -> CommandResult:
        topic = self.topics.get(command.topic_id)
        if topic is None:
            return CommandResult(Outcome.UNKNOWN_TOPIC, {}, command.topic_id)
        if topic.closed:
            return CommandResult(Outcome.TOPIC_CLOSED, {}, f"topic '{topic.name}' was deleted")
        return self.groups.apply(command)

    # ------------------------------------------------------------------------------------- helpers

    def _advance_stable(self) -> None:
        while self._unstable:
            head = self._unstable[0]
            if any(len(p.isr) < p.min_insync and not p.retired for p in head.ends):
                return
            for item in head.objects:
                for partition in item.partitions:
                    if not partition.retired and not item.holders.issuperset(partition.isr):
                        return
            for partition, end in head.ends.items():
                partition.high_watermark = end
            self._unstable.popleft()

    def _partitions_lacking(self, broker_id: BrokerId) -> set[PartitionState]:
        return {p for number in self._missing.get(broker_id, {}) for p in self._objects[number].partitions}

    def _find_contradiction(self, append: Append) -> str:
        for item in append.objects:
            for section in item.sections:
                if (section.topic_id, section.partition) not in self._partitions:
                    return f"topic id {section.topic_id} has no partition {section.partition}"
                if section.row_count < 1:
                    return f"a section of '{item.name}' has {section.row_count} rows"
        return ""

    def _object_ref(self, item: _LogObject) -> ObjectRef:
        return ObjectRef(self.ledger_id, item.generation, item.name, item.size_bytes, item.has_headers, item.holders)


def _find_bad_replicas(assignments: _Assignments) -> str:
    for replicas in assignments:
        if not replicas or len(set(replicas)) != len(replicas):
            return f"{replicas} is no replica set"
    return ""


def _min_insync(config: dict[str, str], replication_factor: int) -> int:
    """Return the effective `min.insync.replicas`; never above the replication factor."""
    text = config.get("min.insync.replicas", "")
    if not text.isdecimal() or int(text) < 1:
        return replication_factor // 2 + 1
    return min(int(text), replication_factor)


__all__ = [
    "CommandResult",
    "Judgement",
    "MissingCopy",
    "ObjectRef",
    "Outcome",
    "PartitionState",
    "SectionRef",
    "TopicLedgerState",
    "TopicState",
]
