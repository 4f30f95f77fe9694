"""The data objects of a topic ledger in the fold: who holds which, who lacks which, what is stable.

Log ends and high watermarks follow from it; entries never carry them. Mutable by the fold only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.codec.snapshot import read_table, read_texts, write_table, write_texts
from spark_replog.log.codec.wire import BROKER_ID, SINT, TEXT, UINT, Reader, Writer, list_of, map_of
from spark_replog.log.fold.partition_state import ObjectRef, PartitionState
from spark_replog.log.fold.producer_state import UNDO, ProducerUndo, SequencedUndo
from spark_replog.log.model import OK, CommandResult, DataObject, HoldersAdd, Outcome, Section

Undo = ProducerUndo | SequencedUndo


class MissingCopy(NamedTuple):
    """An object that replicas lack, and how `HoldersAdd` names it."""

    entry_index: int
    command_no: int
    object_no: int
    object: ObjectRef
    sections: tuple[Section, ...]
    """With their checksums, to verify a copy."""
    missing: tuple[BrokerId, ...]


class ObjectPlace(NamedTuple):
    """Where an object was named, and when its append was folded."""

    entry_index: int
    command_no: int
    object_no: int
    append_time_ms: int


@dataclass(slots=True)
class LogObject:
    """One data object of the log."""

    id: ObjectId
    size_bytes: int
    has_headers: bool
    holders: frozenset[BrokerId]
    place: ObjectPlace
    has_offsets: bool = False
    live_count: int = 0
    """Sections of it with rows that a reader may need."""
    # Kept only while a replica lacks the object: who needs it, and how to check a copy.
    partitions: tuple[PartitionState, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(slots=True)
class _Unstable:
    """Appends of one entry above the stable index."""

    index: int
    objects: dict[int, LogObject] = field(default_factory=dict)
    bases: dict[PartitionState, int] = field(default_factory=dict)
    ends: dict[PartitionState, int] = field(default_factory=dict)
    undo: list[Undo] = field(default_factory=list)

    def values(self, slots: Mapping[PartitionState, int]) -> tuple[object, ...]:
        """Return what a snapshot holds of it."""
        ends = {slots[partition]: end for partition, end in self.ends.items()}
        bases = {slots[partition]: base for partition, base in self.bases.items()}
        return self.index, list(self.objects), bases, ends, self.undo


ORDINAL_BITS = 24
"""An object's number is its entry's index, and its own number in the entry in so many bits: more than fit in one."""
_COLUMN_COUNT = 10
_NUMBERS = list_of(UINT)
_BY_SLOT = map_of(UINT, UINT)
_HOLDERS = list_of(list_of(BROKER_ID))
_LACKED = list_of(UINT, _NUMBERS, list_of(TEXT, UINT, UINT, UINT, UINT, UINT, SINT, SINT))
_MISSING = map_of(BROKER_ID, _NUMBERS)
_UNSTABLE = list_of(UINT, _NUMBERS, _BY_SLOT, _BY_SLOT, list_of(UNDO))

DROPPED_MAX = 100_000
"""About 15 MB; an object that falls out is found below the floor."""
SectionLookup = Callable[[set[int]], Mapping[int, tuple[Section, ...]]]


class ObjectTable:
    """All data objects of one topic ledger, numbered in the order of the log.

    Attributes:
        now_ms: time of the last append.
        dropped: the newest objects that lost their last row, oldest first, and when. Not part of the state: a hint for
            garbage collection, which finds the others below the floor.
    """

    __slots__ = (
        "_ledger_id",
        "_missing",
        "_next_number",
        "_numbers",
        "_objects",
        "_undo",
        "_unstable",
        "dropped",
        "now_ms",
    )

    def __init__(self, ledger_id: LedgerId, undo: Callable[[Undo], None]) -> None:
        self._ledger_id = ledger_id
        self._undo = undo
        self._objects: dict[int, LogObject] = {}
        self._next_number = 0
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._missing: dict[BrokerId, dict[int, None]] = {}
        self._unstable: deque[_Unstable] = deque()
        self.dropped: dict[ObjectId, int] = {}
        self.now_ms = 0

    @property
    def next_number(self) -> int:
        """Return the number of the next object that is added."""
        return self._next_number

    def __getitem__(self, object_number: int) -> LogObject:
        return self._objects[object_number]

    def write(self, writer: Writer, slots: Mapping[PartitionState, int]) -> None:
        """Write all objects as a snapshot holds them; `slots` numbers the partitions."""
        items = list(self._objects.items())
        holder_sets = list(dict.fromkeys(item.holders for _, item in items))
        numbers = {holders: number for number, holders in enumerate(holder_sets)}
        _HOLDERS.write(writer, [sorted(holders) for holders in holder_sets])
        rows = [
            (
                number,
                each.id[0],
                each.size_bytes,
                each.has_headers,
                each.has_offsets,
                numbers[each.holders],
                *each.place,
            )
            for number, each in items
        ]
        write_table(writer, list(np.array(rows, np.int64).reshape(-1, _COLUMN_COUNT).T))
        write_texts(writer, [item.id.name for _, item in items])
        lacked = [(n, [slots[p] for p in o.partitions], o.sections) for n, o in items if o.partitions or o.sections]
        _LACKED.write(writer, lacked)
        _MISSING.write(writer, self._missing)
        _UNSTABLE.write(writer, [each.values(slots) for each in self._unstable])

    def read(self, reader: Reader, partitions: Sequence[PartitionState]) -> None:
        """Take the objects of a snapshot."""
        holder_sets = [frozenset(each) for each in _HOLDERS.read(reader)]
        rows = zip(*(column.tolist() for column in read_table(reader, _COLUMN_COUNT)), strict=True)
        names = read_texts(reader)
        for name, (number, generation, size, headers, offsets, holders, *place) in zip(names, rows, strict=True):
            where, held_by = ObjectPlace(*place), holder_sets[holders]
            item = LogObject(ObjectId(generation, name), size, bool(headers), held_by, where, bool(offsets))
            self._objects[number] = item
            self._numbers[where[:3]] = number
        for number, slots, sections in _LACKED.read(reader):
            self._objects[number].partitions = tuple(partitions[slot] for slot in slots)
            self._objects[number].sections = tuple(Section(*section) for section in sections)
        self._missing = {broker_id: dict.fromkeys(numbers) for broker_id, numbers in _MISSING.read(reader).items()}
        for values in _UNSTABLE.read(reader):
            index, numbers, bases, ends, undo = values
            pending = _Unstable(index, {number: self._objects[number] for number in numbers})
            pending.bases = {partitions[slot]: base for slot, base in bases.items()}
            pending.ends = {partitions[slot]: end for slot, end in ends.items()}
            pending.undo = list(undo)
            self._unstable.append(pending)

    def stable_index(self, applied_index: int) -> int:
        """Return the largest index whose entries, and all before, are on every in-sync replica."""
        return self._unstable[0].index - 1 if self._unstable else applied_index

    def ref(self, item: LogObject) -> ObjectRef:
        """Return the object as a reader needs it."""
        return ObjectRef(self._ledger_id, item.id, item.size_bytes, item.has_headers, item.holders, item.has_offsets)

    @property
    def has_missing(self) -> bool:
        """Return whether some assigned replica lacks some object."""
        return any(self._missing.values())

    def partitions_lacking(self, broker_id: BrokerId) -> set[PartitionState]:
        """Return the partitions that have rows in an object that the broker lacks."""
        return {p for number in self._missing.get(broker_id, {}) for p in self._objects[number].partitions}

    def under_replicated(self, find_sections: SectionLookup, *, include_out_of_sync: bool) -> list[MissingCopy]:
        """Return the objects that an in-sync replica (or any assigned one) lacks, oldest first.

        Args:
            find_sections: returns the sections of objects that were complete before.
            include_out_of_sync: whether out-of-sync replicas count.
        """
        wanted: dict[int, list[BrokerId]] = {}
        for broker_id in sorted(self._missing):
            for number in self._missing[broker_id]:
                for partition in self._objects[number].partitions:
                    members = partition.replicas if include_out_of_sync else partition.isr
                    if broker_id in members and not partition.retired:
                        wanted.setdefault(number, []).append(broker_id)
                        break
        unknown = {number for number in wanted if not self._objects[number].sections}
        for number, sections in find_sections(unknown).items() if unknown else ():
            self._objects[number].sections = sections
        answer = []
        for number in sorted(wanted):
            item = self._objects[number]
            answer.append(MissingCopy(*item.place[:3], self.ref(item), item.sections, tuple(wanted[number])))
        return answer

    def begin_entry(self, index: int) -> None:
        """Begin an entry: its objects are numbered from here, in every process alike."""
        self._next_number = index << ORDINAL_BITS

    def begin_append(self, index: int) -> None:
        """Begin an append: the next objects belong to it."""
        if not self._unstable or self._unstable[-1].index != index:
            self._unstable.append(_Unstable(index))

    def add(self, item: DataObject, place: ObjectPlace, partitions: tuple[PartitionState, ...]) -> None:
        """Add an object of the append begun; `partitions` has the partition of each of its sections."""
        assert len(partitions) == len(item.sections) and self._unstable, place
        number = self._next_number
        self._unstable[-1].objects[number] = self._add(item, place, partitions)

    def _add(self, item: DataObject, place: ObjectPlace, partitions: tuple[PartitionState, ...]) -> LogObject:
        number, self._next_number = self._next_number, self._next_number + 1
        fields = (item.id, item.size_bytes, item.has_headers, item.holders, place, item.has_offsets)
        added = LogObject(*fields, len(partitions))
        self._objects[number] = added
        self._numbers[place[:3]] = number
        lacking = {b for replicas in {p.replicas for p in partitions} for b in replicas} - item.holders
        if lacking:
            added.partitions, added.sections = partitions, item.sections
            for broker_id in lacking:
                self._missing.setdefault(broker_id, {})[number] = None
        return added

    def replace(self, partition: PartitionState, outputs: tuple[DataObject, ...], place: ObjectPlace) -> None:
        """Add the objects of a replacement, whose rows are stable, and forget who lacked what it replaced.

        Call it once the partition's rows are the new ones; `place` is that of the first object.
        """
        for object_no, item in enumerate(outputs):
            self._add(item, place._replace(object_no=object_no), (partition,) * len(item.sections))
        for number in {number for numbers in self._missing.values() for number in numbers}:
            item_before = self._objects[number]
            if partition in item_before.partitions and partition.base_of_object(number) is None:
                self._leave(number, partition)

    def _leave(self, number: int, partition: PartitionState) -> None:
        """Note that a partition has no rows in an object any more: nobody needs it for its sake."""
        item = self._objects[number]
        item.partitions = tuple(each for each in item.partitions if each is not partition)
        item.sections = ()  # those that are left are looked up when they are needed
        for broker_id, numbers in self._missing.items():
            if not any(broker_id in each.replicas for each in item.partitions):
                numbers.pop(number, None)

    def end_append(self, ranges: Iterable[tuple[PartitionState, tuple[int, int]]], undo: Undo) -> None:
        """End the append begun: its offsets, and how to undo what its producer is known by."""
        pending = self._unstable[-1]
        for partition, (base, end) in ranges:
            pending.bases.setdefault(partition, base)
            pending.ends[partition] = end
        pending.undo.append(undo)

    def count_rows(self, partitions: Iterable[PartitionState]) -> None:
        """Count the rows that objects have in partitions that a snapshot has just given."""
        for partition in partitions:
            for row in partition.live_sections():
                self._objects[row.object_number].live_count += 1

    def drop_rows(self, object_numbers: Iterable[int]) -> None:
        """Note that sections of objects lost their rows for good: below the log start, of a deleted topic, or replaced.

        An object without rows is needed on no replica.
        """
        for number in object_numbers:
            item = self._objects[number]
            item.live_count -= 1
            if item.live_count == 0:
                item.partitions, item.sections = (), ()
                for lacking in self._missing.values():
                    lacking.pop(number, None)
                self.dropped[item.id] = self.now_ms
        while len(self.dropped) > DROPPED_MAX:
            del self.dropped[next(iter(self.dropped))]

    def referenced(self, generation: int) -> set[str]:
        """Return the names of a generation's objects with rows that a reader may need."""
        return {item.id.name for item in self._objects.values() if item.live_count and item.id.generation == generation}

    def truncate(self, after_index: int) -> int:
        """Cut all appends after an entry, newest first, and forget their objects; return the number of rows cut."""
        ends: dict[PartitionState, int] = {}
        while self._unstable and self._unstable[-1].index > after_index:
            gone = self._unstable.pop()
            for undo in reversed(gone.undo):
                self._undo(undo)
            for partition, base in gone.bases.items():
                ends[partition] = min(base, ends.get(partition, base))
            for number in gone.objects:
                del self._numbers[self._objects.pop(number).place[:3]]
                for numbers in self._missing.values():
                    numbers.pop(number, None)
        cut_count = 0
        for partition, end_offset in ends.items():
            cut_count += partition.truncate(end_offset)
            partition.partition_epoch += 1
            partition.elect(partition.leader)
        return cut_count

    def has_append(self, index: int) -> bool:
        """Return whether an unstable append belongs to the entry."""
        return bool(self._unstable) and self._unstable[-1].index == index

    def lost_after(self, gone: frozenset[BrokerId]) -> int | None:
        """Return the last entry to keep if brokers are given up, None where nothing is lost with them.

        An object is lost where only these brokers hold it and another in-sync replica can lead. A partition
        without another in-sync replica waits for its own.
        """
        for pending in self._unstable:
            for item in pending.objects.values():
                goes_on = any(not p.retired and not gone.issuperset(p.isr) for p in item.partitions)
                if goes_on and item.holders <= gone:
                    return pending.index - 1
        return None

    def end_of(self, partition: PartitionState, broker_id: BrokerId) -> int:
        """Return where a replica's log ends: before the first object that it lacks."""
        bases = (
            partition.base_of_object(number)
            for number in self._missing.get(broker_id, {})
            if partition in self._objects[number].partitions
        )
        return min((base for base in bases if base is not None), default=partition.log_end_offset)

    def truncate_partition(self, partition: PartitionState, end_offset: int) -> int:
        """Cut one partition, stable rows too (an unclean election); return the number of rows cut."""
        if end_offset >= partition.log_end_offset:
            return 0
        for number in partition.object_numbers(end_offset):
            item = self._objects[number]
            item.partitions = tuple(each for each in item.partitions if each is not partition)
        if not partition.retired:
            # Not dropped: an append of them that is cut later may be repeated.
            start_offset = max(end_offset, partition.log_start_offset)
            for row in partition.sections_between(start_offset, partition.log_end_offset):
                self._objects[row.object_number].live_count -= 1
        for pending in self._unstable:
            if partition in pending.ends:
                pending.bases[partition] = min(pending.bases[partition], end_offset)
                pending.ends[partition] = min(pending.ends[partition], end_offset)
        return partition.truncate(end_offset)

    def expect(self, partition: PartitionState) -> None:
        """Note which objects the new replicas of a partition lack."""
        for number in partition.object_numbers(partition.log_start_offset):
            item = self._objects[number]
            lacking = set(partition.replicas) - item.holders
            if lacking and partition not in item.partitions:
                item.partitions = (*item.partitions, partition)
            for broker_id in lacking:
                self._missing.setdefault(broker_id, {})[number] = None

    def apply_holders_add(self, command: HoldersAdd) -> CommandResult:
        """Fold that more brokers hold an object."""
        object_number = self._numbers.get((command.entry_index, command.command_no, command.object_no))
        if object_number is None:
            detail = f"entry {command.entry_index} has no object {command.command_no}/{command.object_no}"
            return CommandResult(Outcome.INVALID, {}, detail)
        item = self._objects[object_number]
        added = frozenset(command.broker_ids) - item.holders
        if not added:
            return CommandResult(Outcome.EXISTS, {}, f"object '{item.id.name}' is known to be there")
        item.holders |= added
        for broker_id in added:
            self._missing.get(broker_id, {}).pop(object_number, None)
        if item.partitions and all(item.holders.issuperset(p.replicas) for p in item.partitions):
            item.partitions, item.sections = (), ()
        return OK

    def advance_stable(self) -> None:
        """Raise high watermarks over all entries that are on every in-sync replica now."""
        while self._unstable:
            head = self._unstable[0]
            if any(
                end > p.high_watermark and len(p.isr) < p.min_insync and not p.retired for p, end in head.ends.items()
            ):  # a partition whose rows were all cut holds nothing back
                return
            for item in head.objects.values():
                for partition in item.partitions:
                    if not partition.retired and not item.holders.issuperset(partition.isr):
                        return
            for partition, end in head.ends.items():
                assert end <= partition.log_end_offset, (end, partition.log_end_offset)
                partition.high_watermark = end
            self._unstable.popleft()
