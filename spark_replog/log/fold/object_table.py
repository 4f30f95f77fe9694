"""The data objects of a topic ledger in the fold: their holders, their missing copies, and what is stable.

Log ends and high watermarks follow from it; entries never carry them. Mutable by the fold only.

Also the rules of `Replace`: when other sections may replace those of a partition, with the same offsets. Nothing may
change for a reader: the inputs are the live sections, all readable, and every broker that must have the rows has the
outputs. The rules compare values and never depend on what a process happens to have in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.codec.snapshot import BASE, ObjectColumn, PageKind, Rows, damaged, some_of
from spark_replog.log.fold.frozen_topics import FrozenTopics
from spark_replog.log.fold.paged_table import Gone, ObjectPages, PageRows
from spark_replog.log.fold.partition_state import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_STORED_APPEND_TIME,
    ObjectRef,
    PartitionState,
    passes_high_watermark,
)
from spark_replog.log.fold.producer_state import UNDO, ProducerUndo, SequencedUndo
from spark_replog.log.fold.section_table import SectionRow, tuples_of
from spark_replog.log.model import (
    OK,
    CommandResult,
    DataObject,
    HoldersAdd,
    LogExtend,
    Outcome,
    Replace,
    Section,
    inputs_digest,
)
from spark_replog.wire import BROKER_ID, BYTES, SINT, TEXT, UINT, Reader, Writer, fields, list_of, map_of

Undo = ProducerUndo | SequencedUndo
Span = tuple[PartitionState, int, int]
"""The offsets [base, end) of a section."""


class MissingCopy(NamedTuple):
    """An object that replicas lack, and how `HoldersAdd` names it."""

    entry_index: int
    command_no: int
    object_no: int
    object: ObjectRef
    sections: tuple[Section, ...]
    """With their checksums, to verify a copy."""
    missing: tuple[BrokerId, ...]


class RecentWrites(NamedTuple):
    """Counts over a ledger's newest entries: those with objects that still have rows, the objects, bytes and copies.

    An inline object has no copy: the entry is its only create.
    """

    entry_count: int = 0
    object_count: int = 0
    size_bytes: int = 0
    copy_count: int = 0


class InlineSpan(NamedTuple):
    """The inline objects that a partition has rows in."""

    object_count: int
    first_offset: int


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
    schema_version: int = 0
    live_count: int = 0
    """Sections that name it, in memory and in pages; those in pages that are gone count until the next snapshot."""
    changed_index: int = 0
    """The entry that changed it last: its row in a page is older."""
    # Kept only while a replica lacks the object: which partitions need it for which offsets, and how to check a copy.
    # The partitions also of an inline object: its bytes are dropped with the last of them.
    partitions: dict[PartitionState, tuple[int, int]] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    inline: bytes = b""
    """Its bytes, if an entry carried them and a partition still has rows in them."""
    has_file: bool = True
    """Whether it has a file: no entry carried it."""


@dataclass(slots=True)
class Unstable:
    """Appends of one entry above the stable index."""

    index: int
    objects: dict[int, LogObject] = field(default_factory=dict)
    bases: dict[PartitionState, int] = field(default_factory=dict)
    ends: dict[PartitionState, int] = field(default_factory=dict)
    undo: list[Undo] = field(default_factory=list)

    def values(self) -> tuple[object, ...]:
        """Return the fields that a snapshot stores."""
        ends = {partition.slot: end for partition, end in self.ends.items()}
        bases = {partition.slot: base for partition, base in self.bases.items()}
        return self.index, list(self.objects), bases, ends, self.undo


ORDINAL_BITS = 24
"""Low bits of an object's number: its place in its entry, which has fewer objects. Above them is the entry's index."""
_NUMBERS = list_of(UINT)
_BY_SLOT = map_of(UINT, UINT)
_LACKED = list_of(UINT, list_of(UINT, UINT, UINT), list_of(TEXT, UINT, UINT, UINT, UINT, UINT, SINT, SINT))
_MISSING = map_of(BROKER_ID, _NUMBERS)
_UNSTABLE = list_of(UINT, _NUMBERS, _BY_SLOT, _BY_SLOT, list_of(UNDO))
_OPEN = fields(UINT, _LACKED, _MISSING, _UNSTABLE, list_of(UINT, BYTES))
_HAS_HEADERS, _HAS_OFFSETS, _SCHEMA_VERSION = 1, 2, 4
_REF_COLUMNS = (
    BASE,
    ObjectColumn.GENERATION,
    ObjectColumn.SIZE_BYTES,
    ObjectColumn.FLAGS,
    ObjectColumn.APPEND_TIME_MS,
)
"""What an `ObjectRef` and its time come from, in this order."""

INLINE_BYTES_MAX = 256 * 1024
"""Of objects that a ledger carries at one time: each process that folds it keeps them in memory, and each head of a
snapshot holds them. Writers look before they append, so several at once may pass it by one append each."""

DROPPED_MAX = 100_000
"""About 15 MB in memory, 8 MB in a head; an object that falls out is found below the floor."""
SectionLookup = Callable[[set[int]], Mapping[int, tuple[Section, ...]]]


class ObjectTable:
    """All data objects of one topic ledger, numbered in the order of the log.

    In memory are those that changed since they were written to pages, that a replica lacks, or that are inline: memory
    grows with missing copies, not with age.

    An inline object has no file. The ledger holds it for every replica of its partitions, so its holders always include
    them.

    Attributes:
        pages: the other objects.
        next_number: of the next object that is added.
        paged_below: objects of lower numbers may be in pages.
        now_ms: time of the last append.
        missing: broker -> the objects that it lacks and one of its partitions needs, oldest first.
        inline_numbers: the inline objects, oldest first.
        inline_bytes: of all of them.
        unstable: the appends that are not on every in-sync replica yet, and those after them, oldest first.
        dropped: the newest objects that lost their last row, oldest first, and when; until their files are deleted, or
            the floor passes them. No judgement depends on it: it tells garbage collection which unnamed objects no
            entry can name again. Objects of rows in pages come in with the next snapshot.
        gone: rows in pages that are gone, and that no live count leaves out yet.
    """

    def __init__(self, ledger_id: LedgerId, pages: ObjectPages) -> None:
        self._ledger_id = ledger_id
        self.pages = pages
        self.paged_below = 0
        self._objects: dict[int, LogObject] = {}
        self.next_number = 0
        self._numbers: dict[tuple[int, int, int], int] = {}
        self.missing: dict[BrokerId, dict[int, None]] = {}
        self.inline_numbers: dict[int, None] = {}
        self.inline_bytes = 0
        self.unstable: deque[Unstable] = deque()
        self.dropped: dict[ObjectId, int] = {}
        self.gone: list[Gone] = []
        self.now_ms = 0

    @property
    def settled_below(self) -> int:
        """Return the number below which rows of objects may go to pages: no truncation can cut them any more."""
        index = self.unstable[0].index if self.unstable else (self.next_number >> ORDINAL_BITS) + 1
        return index << ORDINAL_BITS

    @property
    def open_numbers(self) -> frozenset[int]:
        """Return the objects that stay in memory: a replica lacks them, or they are inline."""
        return frozenset(self._watched().union(number for number, item in self._objects.items() if item.partitions))

    def _watched(self) -> set[int]:
        """Return the objects whose partitions are kept."""
        return {number for numbers in self.missing.values() for number in numbers}.union(self.inline_numbers)

    def many(self, numbers: Collection[int]) -> dict[int, LogObject]:
        """Return objects by number, those in pages too; each number is given once."""
        objects = {number: self._objects[number] for number in numbers if number in self._objects}
        for rows in self._in_pages(numbers) if len(objects) < len(numbers) else ():
            objects.update(_objects_of(rows.take()))
        return objects

    def refs(self, numbers: Collection[int]) -> dict[int, tuple[ObjectRef, int]]:
        """Return objects as a reader needs them, and when each was appended, by number; those in pages too.

        Each number is given once.
        """
        in_memory = {number: self._objects[number] for number in numbers if number in self._objects}
        owner, items = self._ledger_id, in_memory.values()
        fields = [
            (owner, i.id, i.size_bytes, i.has_headers, i.holders, i.has_offsets, i.inline, i.schema_version)
            for i in items
        ]
        times = [item.place.append_time_ms for item in items]
        refs = dict(zip(in_memory, zip(tuples_of(ObjectRef, fields), times, strict=True), strict=True))
        for page, *span in self._in_pages(numbers) if len(in_memory) < len(numbers) else ():
            some = slice(*span)
            numbers_here, generations, sizes, flags, times = (page.columns[at][some].tolist() for at in _REF_COLUMNS)
            ids = tuples_of(ObjectId, zip(generations, some_of(page.names, some), strict=True))
            holders, owners = some_of(page.holders, some), repeat(owner, len(flags))
            has_headers, has_offsets = _bits(flags, _HAS_HEADERS), _bits(flags, _HAS_OFFSETS)
            no_bytes = repeat(b"", len(flags))  # inline objects are in memory
            versions = [flag // _SCHEMA_VERSION for flag in flags]
            rows = zip(owners, ids, sizes, has_headers, holders, has_offsets, no_bytes, versions, strict=True)
            refs.update(zip(numbers_here, zip(tuples_of(ObjectRef, rows), times, strict=True), strict=True))
        return refs

    def _in_pages(self, numbers: Iterable[int]) -> list[PageRows]:
        """Return the rows of the objects that are not in memory; reads each page once. Each number is given once."""
        wanted = sorted([number for number in numbers if number not in self._objects])
        parts = self.pages.find(wanted) if wanted else []
        missing = len(wanted) - sum([last - first for _, first, last in parts])
        if missing:
            raise damaged(f"{missing} objects are in no page")
        return parts

    def recent_writes(self, entry_count: int) -> RecentWrites:
        """Return counts of the objects that the newest entries named."""
        first = max(0, (self.next_number >> ORDINAL_BITS) + 1 - entry_count) << ORDINAL_BITS
        writes: dict[int, tuple[int, int]] = {}
        for part in self.pages.between(first, self.next_number) if self.pages.runs else ():
            rows = part.take()
            sizes = rows.cells[ObjectColumn.SIZE_BYTES].tolist()
            writes.update(zip(rows.cells[BASE].tolist(), zip(sizes, map(len, rows.holders), strict=True), strict=True))
        for number in [number for number in self._objects if number >= first]:
            item = self._objects[number]
            writes[number] = item.size_bytes, 0 if item.inline else len(item.holders)
            if not item.live_count:
                del writes[number]
        entries = {number >> ORDINAL_BITS for number in writes}
        return RecentWrites(len(entries), len(writes), *(sum(write[at] for write in writes.values()) for at in (0, 1)))

    def rows_in_memory(self) -> Rows:
        """Return a copy of the objects in memory, without their missing copies."""
        items = sorted(self._objects.items())
        cells = [
            (
                0,
                number,
                number + 1,
                item.id.generation,
                item.size_bytes,
                item.has_headers * _HAS_HEADERS
                | item.has_offsets * _HAS_OFFSETS
                | item.schema_version * _SCHEMA_VERSION,
                item.place.command_no,
                item.place.object_no,
                item.place.append_time_ms,
                item.live_count,
            )
            for number, item in items
        ]
        names, holders = [item.id.name for _, item in items], [item.holders for _, item in items]
        return Rows(PageKind.OBJECTS, np.array(cells, np.int64).reshape(-1, 10).T, names, holders)

    def take_rows(self, rows: Rows) -> None:
        """Take objects into memory."""
        for number, item in _objects_of(rows).items():
            self._keep(number, item)

    def _keep(self, number: int, item: LogObject) -> None:
        item.changed_index = self.next_number >> ORDINAL_BITS
        self._objects[number] = item
        self._numbers[item.place[:3]] = number

    def leave_to_pages(self, frozen: FrozenTopics) -> None:
        """Forget the objects that a snapshot has put in pages. Those that changed since are newer than their row."""
        made, below = frozen.made, frozen.tables.settled_below
        self.dropped.update(dict.fromkeys(made.dead, self.now_ms))
        del self.gone[: len(frozen.tables.gone)]
        for number, count in made.lost.items():
            item = self._objects.get(number)
            if item is not None:
                item.live_count -= count
                self._note_dropped(item)
        is_open = self.open_numbers
        for number in [number for number in self._objects if number < below and number not in is_open]:
            if self._objects[number].changed_index <= frozen.applied_index:
                del self._numbers[self._objects.pop(number).place[:3]]

    def write_open(self, writer: Writer) -> None:
        """Write the missing copies, the appends that may still be cut, and the inline bytes to a snapshot."""
        lacked = [
            (number, [(partition.slot, *span) for partition, span in item.partitions.items()], item.sections)
            for number, item in self._objects.items()
            if item.partitions or item.sections
        ]
        unstable = [append.values() for append in self.unstable]
        inline = [(number, self._objects[number].inline) for number in self.inline_numbers]
        _OPEN.write(writer, (self.paged_below, lacked, self.missing, unstable, inline))

    def read_open(self, reader: Reader, partitions: Mapping[int, PartitionState]) -> None:
        """Read what `write_open` wrote, after the objects."""
        self.paged_below, lacked, missing, unstable, inline_objects = _OPEN.read(reader)
        for number, spans, sections in lacked:
            item = self._objects[number]
            item.partitions = {partitions[slot]: (base, end) for slot, base, end in spans}
            item.sections = tuple(Section(*section) for section in sections)
        self.missing = {broker_id: dict.fromkeys(numbers) for broker_id, numbers in missing.items()}
        if not self._objects.keys() >= {number for numbers in self.missing.values() for number in numbers}:
            raise damaged("an object that a broker lacks is missing")
        for index, numbers, bases, ends, undo in unstable:
            pending = Unstable(index, {number: self._objects[number] for number in numbers})
            pending.bases = {partitions[slot]: base for slot, base in bases.items()}
            pending.ends = {partitions[slot]: end for slot, end in ends.items()}
            pending.undo = list(undo)
            self.unstable.append(pending)
        for number, inline in inline_objects:
            if number not in self._objects or not inline:
                raise damaged(f"inline object {number} is missing")
            self._carry(number, bytes(inline))

    def _carry(self, number: int, inline: bytes) -> None:
        self._objects[number].inline = inline
        self._objects[number].has_file = False
        self.inline_numbers[number] = None
        self.inline_bytes += len(inline)

    def drop_inline(self, number: int) -> None:
        """Drop an object's bytes, if it is inline: no partition has rows in it."""
        if number in self.inline_numbers:
            del self.inline_numbers[number]
            item = self._objects[number]
            self.inline_bytes -= len(item.inline)
            item.inline = b""

    def inline_spans(self) -> dict[PartitionState, InlineSpan]:
        """Return the partitions with rows in inline objects."""
        spans: dict[PartitionState, InlineSpan] = {}
        for number in self.inline_numbers:
            for partition, (base, _) in self._objects[number].partitions.items():
                span = spans.get(partition, InlineSpan(0, base))
                spans[partition] = InlineSpan(span.object_count + 1, min(span.first_offset, base))
        return spans

    def ref(self, item: LogObject) -> ObjectRef:
        """Return the object as a reader needs it."""
        flags = item.has_headers, item.holders, item.has_offsets, item.inline, item.schema_version
        return ObjectRef(self._ledger_id, item.id, item.size_bytes, *flags)

    def partitions_lacking(self, broker_id: BrokerId) -> set[PartitionState]:
        """Return the partitions that have rows in an object that the broker lacks."""
        return {p for number in self.missing.get(broker_id, {}) for p in self._objects[number].partitions}

    def under_replicated(self, find_sections: SectionLookup, *, include_out_of_sync: bool) -> list[MissingCopy]:
        """Return the objects that an in-sync replica (or any assigned one) lacks, oldest first.

        Args:
            find_sections: returns the sections of objects that were complete before.
            include_out_of_sync: whether out-of-sync replicas count.
        """
        wanted: dict[int, list[BrokerId]] = {}
        for broker_id in sorted(self.missing):
            for number in self.missing[broker_id]:
                for partition in self._objects[number].partitions if self._objects[number].live_count else ():
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
        """Begin an entry: its objects are numbered from here, the same in every process."""
        self.next_number = index << ORDINAL_BITS

    def begin_append(
        self, index: int, ranges: Iterable[tuple[PartitionState, tuple[int, int]]], undo: Undo | None
    ) -> None:
        """Begin an append: the next objects belong to it."""
        if not self.unstable or self.unstable[-1].index != index:
            self.unstable.append(Unstable(index))
        pending = self.unstable[-1]
        for partition, (base, end) in ranges:
            pending.bases.setdefault(partition, base)
            pending.ends[partition] = end
        if undo is not None:
            pending.undo.append(undo)

    def add(self, item: DataObject, place: ObjectPlace, spans: Sequence[Span], *, is_stable: bool = False) -> None:
        """Add an object; `spans` has the offsets of each of its sections.

        Args:
            is_stable: it replaces others, whose rows are stable; else it belongs to the append begun.
        """
        assert len(spans) == len(item.sections) and (is_stable or self.unstable), place
        number, self.next_number = self.next_number, self.next_number + 1
        fields = (item.id, item.size_bytes, item.has_headers, item.holders, place)
        added = LogObject(*fields, item.has_offsets, item.schema_version, len(spans))
        self._keep(number, added)
        lacking = {b for replicas in {partition.replicas for partition, *_ in spans} for b in replicas} - item.holders
        if item.inline:
            added.holders |= lacking
            self._carry(number, item.inline)
        if lacking or item.inline:
            for partition, base, end in spans:
                added.partitions[partition] = (added.partitions.get(partition, (base, end))[0], end)
        if lacking and not item.inline:
            added.sections = item.sections
            for broker_id in lacking:
                self.missing.setdefault(broker_id, {})[number] = None
        if not is_stable:
            self.unstable[-1].objects[number] = added

    def replace(
        self, partition: PartitionState, outputs: tuple[DataObject, ...], place: ObjectPlace, rows: Sequence[SectionRow]
    ) -> None:
        """Add the objects of a replacement, whose rows are stable; no replica needs the replaced sections any longer.

        `place` is that of the first object; `rows` are the new ones, in order.
        """
        self._shorten(partition, rows[0].base_offset, rows[-1].end_offset)
        at = 0
        for object_no, item in enumerate(outputs):
            spans = [(partition, row.base_offset, row.end_offset) for row in rows[at : at + len(item.sections)]]
            at += len(spans)
            self.add(item, place._replace(object_no=object_no), spans, is_stable=True)

    def _shorten(self, partition: PartitionState, first: int, end: int) -> None:
        """Note that objects no longer have rows in [first, end) of a partition.

        The rows of an object follow each other in a partition, so the rest of them does, too, or is on both sides.
        """
        for number in self._watched():
            item = self._objects[number]
            if partition not in item.partitions:
                continue
            base, stop = item.partitions[partition]
            if first <= base and stop <= end:
                self._leave(number, partition)
            elif first <= base < end:
                item.partitions[partition] = (end, stop)
            elif first < stop <= end:
                item.partitions[partition] = (base, first)

    def _leave(self, number: int, partition: PartitionState) -> None:
        """Note that a partition no longer has rows in an object: no replica needs it for that partition."""
        item = self._objects[number]
        del item.partitions[partition]
        item.sections = ()  # the remaining ones are looked up when they are needed
        item.changed_index = self.next_number >> ORDINAL_BITS
        for broker_id, numbers in self.missing.items():
            if not any(broker_id in other_partition.replicas for other_partition in item.partitions):
                numbers.pop(number, None)
        if not item.partitions:
            self.drop_inline(number)

    def drop_rows(self, ends: Mapping[PartitionState, int], numbers: Iterable[int]) -> None:
        """Note that partitions lost their rows below an offset for good: trimmed, or of a deleted topic.

        No replica needs an object for a partition without rows in it.

        Args:
            ends: partition -> the first offset that stays.
            numbers: objects of the sections that left memory, one for each section.
        """
        # All partitions in one pass: a broker that is away for a week lacks millions of objects.
        for number in self._watched():
            held = self._objects[number].partitions
            for partition in [state for state, (_, end) in held.items() if end <= ends.get(state, -1)]:
                self._leave(number, partition)
        self.count_off(numbers)

    def note_gone(self, partition: PartitionState, start_offset: int, end_offset: int) -> None:
        """Note that the rows of a partition go whose last offset is in [start, end): before they leave the partition.

        Which objects lose rows in pages is found when the next snapshot is made: here that would load the pages.
        """
        self.gone += [(partition.slot, *interval) for interval in partition.in_pages(start_offset, end_offset)]

    def count_off(self, numbers: Iterable[int], *, is_hint: bool = True) -> None:
        """Note that sections left memory, by the numbers of their objects; `is_hint`: none is ever named again."""
        for number in numbers:
            item = self._objects[number]
            item.live_count -= 1
            item.changed_index = self.next_number >> ORDINAL_BITS
            if is_hint:
                self._note_dropped(item)
            is_unstable = bool(self.unstable) and number >> ORDINAL_BITS >= self.unstable[0].index
            if item.live_count == 0 and number >= self.paged_below and not is_unstable:
                self._forget(number)
        while len(self.dropped) > DROPPED_MAX:
            del self.dropped[next(iter(self.dropped))]

    def _note_dropped(self, item: LogObject) -> None:
        if item.live_count == 0 and item.has_file:
            self.dropped[item.id] = self.now_ms

    def _forget(self, number: int) -> None:
        self.drop_inline(number)
        del self._numbers[self._objects.pop(number).place[:3]]
        for numbers in self.missing.values():
            numbers.pop(number, None)

    def referenced(self, generation: int) -> set[str]:
        """Return the names of a generation's objects with rows that a reader may need."""
        objects = self.pages.of_generation(generation)
        for number, item in self._objects.items():
            if item.id.generation == generation:
                objects[number] = (item.id.name, item.live_count)
        return {name for name, live_count in objects.values() if live_count}

    def truncate(self, after_index: int, undo: Callable[[Undo], None]) -> int:
        """Cut all appends after an entry, newest first, and forget their objects; return the number of rows cut.

        Args:
            undo: restores what an append changed at its producer.
        """
        ends: dict[PartitionState, int] = {}
        while self.unstable and self.unstable[-1].index > after_index:
            gone = self.unstable.pop()
            for change in reversed(gone.undo):
                undo(change)
            for partition, base in gone.bases.items():
                ends[partition] = min(base, ends.get(partition, base))
            for number in gone.objects:
                self._forget(number)
        cut_count = 0
        for partition, end_offset in ends.items():
            cut_count += partition.truncate(end_offset)
            partition.partition_epoch += 1
            partition.elect(partition.leader)
        return cut_count

    def lost_after(self, gone: frozenset[BrokerId]) -> int | None:
        """Return the last entry to keep if brokers are given up, None if nothing is lost with them.

        An object is lost if only these brokers hold it and another in-sync replica can lead. A partition
        without another in-sync replica waits for its own.
        """
        for pending in self.unstable:
            for item in pending.objects.values():
                goes_on = any(not p.retired and not gone.issuperset(p.isr) for p in item.partitions)
                if goes_on and item.holders <= gone:
                    return pending.index - 1
        return None

    def end_of(self, partition: PartitionState, broker_id: BrokerId) -> int:
        """Return where a replica's log ends: before the first object that it lacks."""
        spans = (self._objects[number].partitions.get(partition) for number in self.missing.get(broker_id, {}))
        return min((span[0] for span in spans if span is not None), default=partition.log_end_offset)

    def truncate_partition(self, partition: PartitionState, end_offset: int) -> int:
        """Cut one partition, stable rows too (an unclean election); return the number of rows cut."""
        if end_offset >= partition.log_end_offset:
            return 0
        self._shorten(partition, end_offset, partition.log_end_offset)
        self.note_gone(partition, end_offset, partition.log_end_offset)
        # Not a hint: their append may be cut later and then repeated.
        self.count_off(partition.sections.objects_from(end_offset), is_hint=False)
        for pending in self.unstable:
            if partition in pending.ends:
                pending.bases[partition] = min(pending.bases[partition], end_offset)
                pending.ends[partition] = min(pending.ends[partition], end_offset)
        return partition.truncate(end_offset)

    def expect(self, partition: PartitionState) -> None:
        """Note which objects the new replicas of a partition lack. Loads all of its pages: all of its rows move."""
        spans = partition.object_spans()
        for number, item in sorted(self.many(spans).items()):
            lacking = set(partition.replicas) - item.holders
            if not lacking:
                continue
            if item.inline:
                item.holders |= lacking
                continue
            if number not in self._objects:
                self._keep(number, item)
            item.partitions.setdefault(partition, spans[number])
            for broker_id in lacking:
                self.missing.setdefault(broker_id, {})[number] = None

    def apply_holders_add(self, command: HoldersAdd) -> CommandResult:
        """Fold that more brokers hold an object.

        An object that has no rows and is lacked nowhere gets the result of one that is not there: whether a process
        remembers it depends on the snapshot that it began with.
        """
        number = self._number_of(command)
        item = None if number is None else self._objects[number]
        is_needed = item is not None and (item.live_count or any(number in gaps for gaps in self.missing.values()))
        if number is None or item is None or not is_needed:
            detail = f"entry {command.entry_index} has no object {command.command_no}/{command.object_no}"
            return CommandResult(Outcome.INVALID, detail)
        added = frozenset(command.broker_ids) - item.holders
        if not added or item.inline:
            return CommandResult(Outcome.EXISTS, f"object '{item.id.name}' is known to be there")
        item.holders |= added
        item.changed_index = self.next_number >> ORDINAL_BITS
        for broker_id in added:
            self.missing.get(broker_id, {}).pop(number, None)
        if item.partitions and all(item.holders.issuperset(p.replicas) for p in item.partitions):
            item.partitions, item.sections = {}, ()
            for numbers in self.missing.values():  # brokers that are no longer replicas
                numbers.pop(number, None)
        return OK

    def _number_of(self, command: HoldersAdd) -> int | None:
        """Return the number of the object that a command names, once it is in memory."""
        known_number = self._numbers.get((command.entry_index, command.command_no, command.object_no))
        first = command.entry_index << ORDINAL_BITS
        if known_number is None and first < self.paged_below:
            for rows in self.pages.between(first, first + (1 << ORDINAL_BITS)):
                for number, item in _objects_of(rows.take()).items():
                    if item.place[1:3] == (command.command_no, command.object_no) and number not in self._objects:
                        self._keep(number, item)
                        return number
        return known_number

    def advance_stable(self) -> None:
        """Raise high watermarks over all entries that are on every in-sync replica now."""
        while self.unstable:
            head = self.unstable[0]
            for p, end in head.ends.items():  # objects that are not listed below are on every replica
                is_waiting = end > p.high_watermark and not p.retired  # False if all of its rows were cut
                if is_waiting and not passes_high_watermark(p.isr, p.isr, p.min_insync):
                    return
            for item in head.objects.values():
                for p in item.partitions:
                    if not p.retired and not passes_high_watermark(item.holders, p.isr, 0):
                        return
            for partition, end in head.ends.items():
                assert end <= partition.log_end_offset, (end, partition.log_end_offset)
                partition.high_watermark = end
            self.unstable.popleft()


def _bits(flags: list[int], bit: int) -> Iterable[bool]:
    """Return a flag of each row. Those of a log are the same in most of its rows."""
    if flags.count(flags[0]) == len(flags):
        return repeat(flags[0] & bit > 0, len(flags))
    return [flag & bit > 0 for flag in flags]


def _objects_of(rows: Rows) -> dict[int, LogObject]:
    """Return the objects of a page's rows by number."""
    objects = {}
    for cells, name, holders in zip(rows.cells.T.tolist(), rows.names, rows.holders, strict=True):
        _, number, _, generation, size_bytes, flags, command_no, object_no, time_ms, live_count = cells
        place = ObjectPlace(number >> ORDINAL_BITS, command_no, object_no, time_ms)
        objects[number] = LogObject(
            ObjectId(generation, name),
            size_bytes,
            bool(flags & _HAS_HEADERS),
            holders,
            place,
            bool(flags & _HAS_OFFSETS),
            flags // _SCHEMA_VERSION,
            live_count,
        )
    return objects


def find_bad_outputs(command: Replace) -> str:
    """Return why outputs contradict themselves, '' when they do not."""
    bases, end = command.base_offsets, command.end_offset
    sections = [(section, item.has_offsets) for item in command.outputs for section in item.sections]
    if (
        not sections
        or len(sections) != len(bases)
        or bases[0] != command.first_offset
        or end <= bases[-1]
        or end >= 2**63
    ):
        return f"{len(sections)} sections cannot hold offsets {command.first_offset} to {end} from {list(bases[:3])}"
    if any(not item.sections for item in command.outputs):
        return "an object has no section"
    if len({item.id for item in command.outputs}) < len(command.outputs):
        return "an object is named twice"
    for (section, has_offsets), (base, after) in zip(sections, pairwise((*bases, end)), strict=True):
        if (section.topic_id, section.partition) != (command.topic_id, command.partition):
            return f"a section is of partition {section.partition} of topic id {section.topic_id}"
        if not 1 <= section.row_count <= after - base or (section.row_count < after - base and not has_offsets):
            return f"{section.row_count} rows cannot hold offsets {base} to {after}"
    return ""


def judge_replace(
    command: Replace, partition: PartitionState, inputs: Sequence[SectionRow], objects: Sequence[LogObject]
) -> str:
    """Return why the state does not allow a replacement, '' when it does."""
    first, end = command.first_offset, command.end_offset
    if end > partition.high_watermark:
        return f"offset {end} is above the high watermark {partition.high_watermark}"
    # Compared as values: whether sections below the log start are still in a table must not matter.
    if not inputs or inputs[0].base_offset != first or inputs[0].end_offset <= partition.log_start_offset:
        return f"no live section begins at offset {first}"
    rows = zip(inputs, objects, strict=True)
    if inputs[-1].end_offset != end or command.inputs != inputs_digest(
        (item.id, row.start_byte, row.base_offset) for row, item in rows
    ):
        return f"the sections of offsets {first} to {end} are others by now"
    needed = set(partition.isr).union(*(item.holders for item in objects)) & set(partition.replicas)
    for item in command.outputs:
        if not item.holders >= needed:
            return f"brokers {sorted(needed - item.holders)} would lose their copy"
    return ""


def output_rows(command: Replace, inputs: Sequence[SectionRow], first_number: int) -> list[SectionRow]:
    """Return the rows of a replacement that is allowed; its objects are counted from `first_number`.

    Timestamps are of the last input's type: compaction joins inputs of another type only if none of their rows stays.
    """
    kind = TIMESTAMP_STORED_APPEND_TIME if inputs[-1].timestamp_type else TIMESTAMP_CREATE_TIME
    sections = [
        (first_number + object_no, section)
        for object_no, item in enumerate(command.outputs)
        for section in item.sections
    ]
    end = command.log_end_offset if isinstance(command, LogExtend) else command.end_offset
    ranges = pairwise((*command.base_offsets, end))
    return [
        SectionRow(base, section.row_count, number, *section[3:], kind, end)
        for (number, section), (base, end) in zip(sections, ranges, strict=True)
    ]
