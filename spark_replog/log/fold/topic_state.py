"""The fold of a topic ledger: decided entries in, topics, offsets and high watermarks out.

Its parts: `topic_table` (topics, their partitions, ISR and leaders), `object_table` (data objects, holders, the stable
index), `partition_state` (offsets of one partition), `producer_state` (duplicates), `group_state` (consumer groups).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, NamedTuple, Self

import numpy as np

from spark_replog.errors import ErrorCode
from spark_replog.ids import BrokerId, LedgerId, ObjectId, PartitionKey, TopicId
from spark_replog.log import model
from spark_replog.log.codec.snapshot import SLOT, PageKind, SectionColumn, SnapshotPart, joined, no_rows
from spark_replog.log.fold import mirrored_topic
from spark_replog.log.fold.append_time import AGREED_TIME, APPEND_TIME, AgreedTime, AppendTime
from spark_replog.log.fold.entry_fold import FEATURE_LEVEL_MIRROR, Apply, EntryFold
from spark_replog.log.fold.frozen_topics import DROPPED, FrozenTopics, Tables, read_index
from spark_replog.log.fold.group_state import GROUPS, GroupTable
from spark_replog.log.fold.object_table import (
    INLINE_BYTES_MAX,
    InlineSpan,
    MissingCopy,
    ObjectPlace,
    ObjectTable,
    find_bad_outputs,
    judge_replace,
    output_rows,
)
from spark_replog.log.fold.paged_table import CACHE_BYTES, ObjectPages, PageCache, SectionPages
from spark_replog.log.fold.partition_state import ObjectRef, SectionRef
from spark_replog.log.fold.producer_state import PRODUCERS, ProducerTable
from spark_replog.log.fold.topic_table import Leadership, TopicState, TopicTable
from spark_replog.log.model import (
    OK,
    Append,
    CommandResult,
    DataObject,
    LogExtend,
    MirrorAppend,
    Outcome,
    Replace,
    Section,
)
from spark_replog.log.quotas import PRODUCE_RATES, ProduceRates
from spark_replog.snapshot import PageMissingError
from spark_replog.wire import COUNT_MAX, ID, SINT, TEXT, UINT, Reader, Writer, list_of, map_of, record

MINUTE_MS = 60_000
MINUTES_KEPT = 16
"""Fifteen full minutes and the current one."""
DAY_MINUTES = 24 * 60
PRODUCER_KEPT_MS = 3_600_000
"""Random producer ids are known at least this long, also if the floor has passed their objects: an append that the
floor refused is written again, in order, with the sequences that it had."""


class Traffic(NamedTuple):
    """How much was appended to a topic lately, by the time of entries. A few integers, whatever the topic's age.

    A value; the fold replaces it with each append.

    Attributes:
        last_append_ms: time of the newest append, 0 before the first.
        minutes: (minute since 1970, rows, bytes), ascending, empty ones left out. The newest MINUTES_KEPT are
            separate; older ones are summed under the first minute of their hour, for a day.
    """

    last_append_ms: int = 0
    minutes: tuple[tuple[int, int, int], ...] = ()

    def plus(self, append_ms: int, row_count: int, size_bytes: int) -> Traffic:
        """Return it with one more append; `append_ms` is not below the last one's."""
        minute = append_ms // MINUTE_MS
        kept = self.minutes
        if kept and kept[-1][0] == minute:
            row_count, size_bytes = kept[-1][1] + row_count, kept[-1][2] + size_bytes
            return Traffic(append_ms, (*kept[:-1], (minute, min(row_count, COUNT_MAX), min(size_bytes, COUNT_MAX))))
        old: dict[int, tuple[int, int]] = {}
        new = []
        for at, rows, sizes in kept:
            if at > minute - MINUTES_KEPT:
                new.append((at, rows, sizes))
            elif at > minute - DAY_MINUTES - 60:
                before = old.get(at // 60 * 60, (0, 0))
                old[at // 60 * 60] = (before[0] + rows, before[1] + sizes)
        hours = ((hour, min(rows, COUNT_MAX), min(sizes, COUNT_MAX)) for hour, (rows, sizes) in old.items())
        return Traffic(append_ms, (*hours, *new, (minute, min(row_count, COUNT_MAX), min(size_bytes, COUNT_MAX))))

    def bytes_by(self, step_minutes: int, count: int, now_ms: int) -> list[int]:
        """Return the bytes of the last steps, oldest first; the last one is the current step.

        Args:
            step_minutes: 1, for at most 15 steps, or 60, for at most 24.
        """
        now_step = max(now_ms, self.last_append_ms) // MINUTE_MS // step_minutes
        sizes = [0] * count
        for minute, _, size_bytes in self.minutes:
            if 0 <= (at := count - 1 - (now_step - minute // step_minutes)) < count:
                sizes[at] += size_bytes
        return sizes

    def day(self, now_ms: int) -> tuple[int, int]:
        """Return (rows, bytes) of the last 24 hours; the hour in which they begin counts whole."""
        first = (max(now_ms, self.last_append_ms) // MINUTE_MS - DAY_MINUTES) // 60 * 60
        kept = [minute for minute in self.minutes if minute[0] >= first]
        return sum(rows for _, rows, _ in kept), sum(size_bytes for _, _, size_bytes in kept)

    def rates(self, window_minutes: int, now_ms: int) -> tuple[float, float]:
        """Return (rows, bytes) per second over the last 1 to 15 minutes; rows spread evenly within their minute.

        If `now_ms` is before the last append, that append's time is used.
        """
        now_ms = max(now_ms, self.last_append_ms)
        minute, into_ms = divmod(now_ms, MINUTE_MS)
        part = 1.0 - into_ms / MINUTE_MS  # of the oldest minute that is still in the window
        rows = size_bytes = 0.0
        for at, row_count, byte_count in self.minutes:
            share = 1.0 if at > minute - window_minutes else part if at == minute - window_minutes else 0.0
            rows += row_count * share
            size_bytes += byte_count * share
        return rows / (window_minutes * 60), size_bytes / (window_minutes * 60)


NO_TRAFFIC = Traffic()


@dataclass(slots=True)
class Generations:
    """The folders of a ledger's data objects, numbered.

    Attributes:
        newest: the one for new objects.
        object_count: objects of the newest one that entries have named.
        floor: objects of lower ones are refused.
        began_ms: per generation not below the floor: the append time when it began.
    """

    newest: int = 0
    object_count: int = 0
    floor: int = 0
    began_ms: dict[int, int] = field(default_factory=dict)


_GENERATIONS = record(Generations, newest=UINT, object_count=UINT, floor=UINT, began_ms=map_of(UINT, SINT))
_MIRRORS = map_of(ID, TEXT)
"""Topic -> what it is a mirror of: in heads of `FEATURE_LEVEL_MIRROR` or above."""
_PARTS = {
    "generations": _GENERATIONS,
    "append_time": APPEND_TIME,
    "agreed_time": AGREED_TIME,
    "produce_rates": PRODUCE_RATES,
    "traffic": map_of(ID, record(Traffic, last_append_ms=SINT, minutes=list_of(SINT, UINT, UINT))),
    "producers": PRODUCERS,
    "groups": GROUPS,
}
"""Attributes of the state that a snapshot's head holds, in its order."""


class TopicLedgerState(EntryFold):
    """State of one topic ledger.

    Not thread safe: read and apply under the ledger's lock. Answers are values, safe to keep.

    Attributes:
        topics: by id, closed ones included.
        objects: the data objects that rows are in.
        leadership: which brokers are fenced, and when they left ISRs.
        produce_rates: bytes per second of each client, by the appends' times.
        traffic: recent appends by topic; none for a topic without appends.
        agreed_time: by which rows age.
    """

    _part = SnapshotPart.TOPIC_HEAD

    def __init__(self, ledger_id: LedgerId, cache_bytes: int = CACHE_BYTES) -> None:
        super().__init__(ledger_id)
        self.ledger_id = ledger_id
        self.page_cache = PageCache(ledger_id, lambda name: self.load_page(name), cache_bytes)
        self.objects = ObjectTable(ledger_id, ObjectPages(self.page_cache))
        self._topics = TopicTable(self.objects, SectionPages(self.page_cache))
        self.topics: dict[TopicId, TopicState] = self._topics.topics
        self.leadership = Leadership(self._topics, self.objects)
        self.generations = Generations()
        self.append_time = AppendTime()
        self.agreed_time = AgreedTime()
        self.produce_rates = ProduceRates()
        self.traffic: dict[TopicId, Traffic] = {}
        self.producers = ProducerTable()
        self.groups = GroupTable()
        self._frozen: FrozenTopics | None = None
        self._trims: dict[int, int] = {}

    def _write(self, writer: Writer) -> None:
        self._topics.write(writer)
        self.leadership.write(writer)
        for name, kind in _PARTS.items():
            kind.write(writer, getattr(self, name))
        if self.feature_level >= FEATURE_LEVEL_MIRROR:
            _MIRRORS.write(writer, {topic.topic_id: topic.mirror for topic in self.topics.values() if topic.mirror})

    def _read(self, reader: Reader) -> None:
        self._topics.read(reader)
        self.leadership.read(reader)
        for name, kind in _PARTS.items():
            setattr(self, name, kind.read(reader))
        for topic_id, mirror in (_MIRRORS.read(reader) if self.feature_level >= FEATURE_LEVEL_MIRROR else {}).items():
            self.topics[topic_id].mirror = mirror
        self.objects.now_ms = self.append_time.now_ms
        self.objects.begin_entry(max(self.applied_index, 0))
        partitions = {partition.slot: partition for partition in self._topics.every_partition()}
        section_runs, object_runs, sections, objects = read_index(reader)
        self.objects.dropped = DROPPED.read(reader)
        self._topics.pages.use(section_runs)
        self.objects.pages.use(object_runs)
        self.objects.take_rows(objects)
        self.objects.read_open(reader, partitions)
        for slot in np.unique(sections.cells[SLOT]).tolist():
            partitions[slot].sections.take_rows(sections.take(np.flatnonzero(sections.cells[SLOT] == slot)))

    def freeze(self) -> FrozenTopics:
        """Return the present state; its pages are made later, outside of the ledger's lock."""
        self._frozen = None  # if this fails, an older one is not adopted
        head, tail = Writer(), Writer()
        self._write_head(head)
        self.objects.paged_below = max(self.objects.paged_below, self.objects.settled_below)
        self.objects.write_open(tail)
        partitions = sorted(self._topics.every_partition(), key=lambda partition: partition.slot)
        trims = {partition.slot: partition.log_start_offset for partition in partitions if not partition.retired}
        self._frozen = FrozenTopics(
            self.applied_index,
            self.snapshot.no,
            self.page_cache,
            bytes(head.data),
            bytes(tail.data),
            Tables(
                self._topics.pages.runs,
                self.objects.pages.runs,
                joined([no_rows(PageKind.SECTIONS), *(state.sections.rows_in_memory() for state in partitions)]),
                self.objects.rows_in_memory(),
                {partition.slot: partition.bounds for partition in partitions},
                self.objects.settled_below,
                self.objects.open_numbers,
                trims != self._trims,
                tuple(self.objects.gone),
                dict(self.objects.dropped),
                self.objects.now_ms,
            ),
        )
        return self._frozen

    def page_names(self) -> Iterator[str]:
        """Yield the names of all pages that the state refers to. Loads the directories of runs of several pages."""
        for runs in (self._topics.pages.runs, self.objects.pages.runs):
            for run in runs:
                yield run.name
                if not run.is_page:
                    yield from self.page_cache.directory(run).pages

    def adopted(self, frozen: object) -> None:
        """Use the pages of the newest frozen state, and drop the rows in memory that they hold.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: it is not the newest, or was frozen before a `restore`: the rows
                in memory do not match its pages. Restore the state.
        """
        if not isinstance(frozen, FrozenTopics) or frozen is not self._frozen:
            raise PageMissingError(
                ErrorCode.REPLOG_SNAPSHOT_MISSING, "the decided snapshot was made from another state than this one."
            )
        self._frozen = None
        made, tables = frozen.made, frozen.tables
        self._topics.pages.use(made.section_runs)
        self.objects.pages.use(made.object_runs)
        if made.is_flushed:
            self._trims = {slot: low for slot, (low, high) in tables.bounds.items() if high}
            for partition in self._topics.every_partition():
                partition.sections.leave_to_pages(tables.settled_below)
            self.objects.leave_to_pages(frozen)

    def _become(self, fresh: Self, load_page: Callable[[str], bytes]) -> None:
        """See `EntryFold._become`. Pages are loaded when they are needed."""
        limit_bytes = self.page_cache.limit_bytes
        super()._become(fresh, load_page)
        self.page_cache.load, self.page_cache.limit_bytes = load_page, limit_bytes

    def doubtful(self, item: DataObject) -> frozenset[BrokerId]:
        """Return the holders of an undecided object that left since its puts began: their disk may be a new one."""
        return frozenset(owner for owner in item.holders if self.leadership.left_at.get(owner, -1) > item.after_index)

    @property
    def append_time_ms(self) -> int:
        """Return the time of the last append."""
        return self.append_time.now_ms

    @property
    def has_gaps(self) -> bool:
        """Return whether offsets without a row are no exception here: the ledger has, or had, mirrored topics."""
        return self.feature_level >= FEATURE_LEVEL_MIRROR

    @property
    def stable_index(self) -> int:
        """Return the largest index whose entries, and all before, are on every in-sync replica."""
        unstable = self.objects.unstable
        return unstable[0].index - 1 if unstable else self.applied_index

    def sections(self, topic_id: TopicId, partition: int, start_offset: int, end_offset: int) -> list[SectionRef]:
        """Return the sections that hold any offset in [start_offset, end_offset), in order.

        O(log n + result). Empty for an unknown partition; the caller must look for gaps.
        """
        state = self._topics.partitions.get((topic_id, partition))
        if state is None:
            return []
        rows = list(state.sections_between(start_offset, end_offset))
        refs = self.objects.refs({row.object_number for row in rows})
        found_refs = []
        for base, count, number, start, size, crc, low_ms, high_ms, kind, end in rows:
            ref, time_ms = refs[number]
            found_refs.append(SectionRef(base, count, ref, start, size, crc, low_ms, high_ms, time_ms, kind, end))
        return found_refs

    def newest_objects(self, broker_ids: Collection[BrokerId], count: int) -> dict[BrokerId, list[ObjectRef]]:
        """Return per broker the newest objects that it holds, newest first, at most `count`.

        Only objects with the last row of a partition; loads the pages of these rows.
        """
        ends = ((partition, partition.log_end_offset) for partition in self._topics.partitions.values())
        last_rows = (row for partition, end in ends for row in partition.sections_between(end - 1, end))
        numbers = sorted({row.object_number for row in last_rows}, reverse=True)
        objects: dict[BrokerId, list[ObjectRef]] = {broker_id: [] for broker_id in broker_ids}
        ahead = count * len(objects)  # enough where each object has one holder
        for some in (numbers[:ahead], numbers[ahead:]):
            if all(len(refs) == count for refs in objects.values()):
                break
            items = self.objects.many(some)
            for item in [items[number] for number in some if not items[number].inline]:
                for broker_id in item.holders & objects.keys():
                    if len(objects[broker_id]) < count:
                        objects[broker_id].append(self.objects.ref(item))
        return objects

    def offset_for_time(self, topic_id: TopicId, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset of the first section with a row at or after a time, None without one.

        The reader skips the earlier rows of that section.
        """
        state = self._topics.partitions.get((topic_id, partition))
        offset = None if state is None else state.offset_for_time(timestamp_ms)
        if state is None or offset is None or offset >= state.high_watermark:
            return None
        return max(offset, state.log_start_offset)

    def under_replicated(self, *, include_out_of_sync: bool = False) -> list[MissingCopy]:
        """Return the objects that an in-sync replica (or any assigned one) lacks, oldest first."""
        return self.objects.under_replicated(self._sections_of, include_out_of_sync=include_out_of_sync)

    def referenced_objects(self, generation: int) -> set[str]:
        """Return the names of a generation's objects with a row that a reader may need. O(objects of the ledger)."""
        if all(topic.closed for topic in self.topics.values()):
            return set()  # only a later merge counts off rows in pages, and such a ledger gets no more rows
        return self.objects.referenced(generation)

    def dropped_objects(self) -> dict[ObjectId, int]:
        """Return objects that lost their last row, oldest first, and the append time then: none is named again.

        Those of rows in pages come in with the next snapshot (`has_gone_rows`). At most `DROPPED_MAX`; others are found
        below the floor.
        """
        return dict(self.objects.dropped)

    def has_due_objects(self, due_ms: int) -> bool:
        """Return whether the oldest of ``dropped_objects`` lost its last row at this time or before."""
        return next(iter(self.objects.dropped.values()), due_ms + 1) <= due_ms

    def forget_dropped(self, ids: Iterable[ObjectId]) -> None:
        """Take objects out of ``dropped_objects`` once their files are deleted."""
        for object_id in ids:
            self.objects.dropped.pop(object_id, None)

    @property
    def has_gone_rows(self) -> bool:
        """Return whether rows in pages are gone whose objects only the next snapshot finds."""
        return bool(self.objects.gone)

    @property
    def fenced(self) -> frozenset[BrokerId]:
        """Return the brokers that are out of service."""
        return frozenset(self.leadership.fenced)

    def judge(self, append: Append) -> CommandResult:
        """Return the result of this append if it is decided next. Changes nothing."""
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in append.row_counts):
            topic = self._topics.open_topic(topic_id)
            if isinstance(topic, CommandResult):
                return topic
        return self.judge_decided(append)

    def judge_decided(self, append: Append) -> CommandResult:
        """Return the result as if no topic of the append was deleted: DUPLICATE if it is in the log.

        For an append that was decided, so that this ledger knows its topics.
        """
        mirror = append if isinstance(append, MirrorAppend) else None
        judged = self._judge_producer(append) if mirror is None else mirrored_topic.judge_place(mirror, self._topics)
        if judged is not None:
            return judged
        for item in append.objects:
            if item.id.generation < (floor := self.generations.floor):
                return CommandResult(Outcome.BELOW_FLOOR, f"generation {item.id.generation} is below the floor {floor}")
        refused = self.producers.judge_sequence(append) if mirror is None else None
        if refused is not None:
            return refused
        for item in append.objects:
            for section in item.sections:
                place = section.topic_id, section.partition
                if place not in self._topics.partitions:
                    return CommandResult(Outcome.INVALID, "topic id {} has no partition {}".format(*place))
                if section.row_count < 1:
                    invalid = f"a section of '{item.id.name}' has {section.row_count} rows"
                    return CommandResult(Outcome.INVALID, invalid)
            if invalid := self._topics.find_bad_schema(item):
                return CommandResult(Outcome.INVALID, invalid)
        if mirror is not None:
            invalid = mirrored_topic.find_bad_spans(mirror)
            if invalid:
                return CommandResult(Outcome.INVALID, invalid)
            return CommandResult(Outcome.APPLIED, "", mirrored_topic.ranges_of(mirror))
        ranges = {}
        for where, rows in append.row_counts.items():
            base = self._topics.partitions[where].log_end_offset
            ranges[where] = (base, base + rows)
        return CommandResult(Outcome.APPLIED, "", ranges)

    def _judge_producer(self, append: Append) -> CommandResult | None:
        """Return the result of a repeated append, or of one whose writer is fenced or may not append there; or None."""
        duplicate = self.producers.judge_duplicate(append)
        if duplicate is not None:
            return duplicate
        fenced = self.producers.judge_fenced(append)
        if fenced is not None:
            return CommandResult(Outcome.FENCED, fenced)
        return mirrored_topic.judge_ordinary(append, self._topics)

    def apply(self, index: int, payload: bytes) -> tuple[CommandResult, ...]:
        """Fold one decided entry; see `EntryFold.apply`. Then raise the high watermarks that it allows."""
        self.objects.begin_entry(index)
        results = super().apply(index, payload)
        self.objects.advance_stable()
        return results

    @property
    def inline_room_bytes(self) -> int:
        """Return how many bytes the ledger takes into entries now; see `INLINE_BYTES_MAX`."""
        return max(0, INLINE_BYTES_MAX - self.objects.inline_bytes)

    def inline_spans(self) -> dict[PartitionKey, InlineSpan]:
        """Return the partitions with rows in inline objects."""
        spans = self.objects.inline_spans()
        return {key: spans[partition] for key, partition in self._topics.partitions.items() if partition in spans}

    def _apply_snapshot_commit(self, command: model.SnapshotCommit, index: int) -> CommandResult:
        result = super()._apply_snapshot_commit(command, index)
        if result.outcome is Outcome.APPLIED:
            self.producers.forget_runs()
        return result

    def _apply_append(self, append: Append, index: int, number: int) -> CommandResult:
        judgement = self.judge(append)
        if judgement.outcome is not Outcome.APPLIED:
            return judgement
        identity, generations = append.identity, self.generations
        is_earlier = self.append_time.observe(append.append_time_ms)
        self.agreed_time.observe(identity.run_id or identity.producer_id, append.append_time_ms)
        now_ms = self.objects.now_ms = self.append_time.now_ms
        if is_earlier:
            self.agreed_time.go_back(now_ms)
            self.produce_rates = ProduceRates()
            self.traffic = {}
            generations.began_ms = {key: min(began_ms, now_ms) for key, began_ms in generations.began_ms.items()}
            self.objects.dropped = {object_id: min(at_ms, now_ms) for object_id, at_ms in self.objects.dropped.items()}
        if not generations.began_ms:
            generations.began_ms[generations.newest] = now_ms
        mirror = append if isinstance(append, MirrorAppend) else None
        undo = self.producers.record(append, judgement.base_offsets) if mirror is None else None
        ends = iter(() if mirror is None else mirror.ends)
        ranges = ((self._topics.partitions[where], range_) for where, range_ in judgement.base_offsets.items())
        self.objects.begin_append(index, ranges, undo)
        counts: dict[TopicId, tuple[int, int]] = {}
        for object_no, item in enumerate(append.objects):
            spans = []
            for section in item.sections:
                partition = self._topics.partitions[section.topic_id, section.partition]
                base = partition.log_end_offset
                if mirror is None:
                    partition.add(section, self.objects.next_number, now_ms)
                else:
                    number_of, is_append_time = self.objects.next_number, mirror.is_append_time
                    partition.add_mirrored(section, next(ends), number_of, is_append_time=is_append_time)
                spans.append((partition, base, partition.log_end_offset))
                row_count, size_bytes = counts.get(section.topic_id, (0, 0))
                counts[section.topic_id] = row_count + section.row_count, size_bytes + section.size_bytes
            self.objects.add(item, ObjectPlace(index, number, object_no, now_ms), spans)
            generations.object_count += item.id.generation == generations.newest and not item.inline
        for topic_id, (row_count, size_bytes) in counts.items():
            self.traffic[topic_id] = self.traffic.get(topic_id, NO_TRAFFIC).plus(now_ms, row_count, size_bytes)
        size_bytes = sum(totals[1] for totals in counts.values())
        self.produce_rates.record(append.principal, append.client_id, size_bytes, now_ms)
        return judgement

    def _apply_replace(self, command: Replace, index: int, number: int) -> CommandResult:
        topic = self._topics.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        floor = self.generations.floor
        if any(item.id.generation < floor for item in command.outputs):
            return CommandResult(Outcome.BELOW_FLOOR, f"an object is below the floor {floor}")
        partition = self._topics.partitions.get((command.topic_id, command.partition))
        first, end = command.first_offset, command.end_offset
        inputs = [] if partition is None or first >= end else list(partition.sections_between(first, end))
        bad_schemas = filter(None, map(self._topics.find_bad_schema, command.outputs))
        invalid = find_bad_outputs(command) or next(bad_schemas, "")
        if partition is None or invalid:
            return CommandResult(Outcome.INVALID, invalid or f"partition {command.partition} does not exist")
        objects = self.objects.many({row.object_number for row in inputs})
        items = [objects[row.object_number] for row in inputs]
        refused = judge_replace(command, partition, inputs, items)
        if refused:
            return CommandResult(Outcome.REFUSED, refused, error_code=ErrorCode.INVALID_UPDATE_VERSION)
        if isinstance(command, LogExtend):
            refusal = mirrored_topic.refuse_extension(command, topic, partition, self.objects)
            if refusal is not None:
                return refusal
            partition.extend(command.log_end_offset)
        rows = output_rows(command, inputs, self.objects.next_number)
        self.objects.note_gone(partition, first, end)
        gone = partition.replace(rows)
        time_ms = max(item.place.append_time_ms for item in items)
        self.objects.replace(partition, command.outputs, ObjectPlace(index, number, 0, time_ms), rows)
        self.objects.count_off(gone)
        self.objects.drop_rows({partition: partition.log_start_offset}, partition.cut_dead())
        return OK

    def _apply_truncate(self, command: model.Truncate, index: int, number: int) -> CommandResult:
        """Fold a truncation: not below the stable index, and not after an append of its own entry."""
        unstable = self.objects.unstable
        if command.after_index < self.stable_index:
            return CommandResult(Outcome.INVALID, f"entries up to {self.stable_index} are stable")
        if unstable and unstable[-1].index == index:
            return CommandResult(Outcome.INVALID, "an append of the same entry came before it")
        cut_count = self.objects.truncate(command.after_index, self.producers.undo)
        if not cut_count:
            return CommandResult(Outcome.EXISTS, f"no append follows entry {command.after_index}")
        return CommandResult(Outcome.APPLIED, f"{cut_count} rows were cut")

    def _apply_generation_advance(self, command: model.GenerationAdvance, index: int, number: int) -> CommandResult:
        generations = self.generations
        if command.floor > command.generation:
            return CommandResult(Outcome.INVALID, "the floor would be above the generation")
        if command.generation <= generations.newest and command.floor <= generations.floor:
            detail = f"generation {generations.newest}, floor {generations.floor}"
            return CommandResult(Outcome.EXISTS, detail)
        if command.generation > generations.newest:
            generations.newest, generations.object_count = command.generation, 0
        floor = generations.floor = max(generations.floor, command.floor)
        generations.began_ms.setdefault(generations.newest, max(self.append_time_ms, command.began_ms))
        kept_since_ms = self.append_time_ms - PRODUCER_KEPT_MS
        old = [generation for generation, began_ms in generations.began_ms.items() if began_ms <= kept_since_ms]
        generations.began_ms = {key: began_ms for key, began_ms in generations.began_ms.items() if key >= floor}
        dropped = self.objects.dropped.items()  # a listing of their generation finds those below the floor
        self.objects.dropped = {object_id: at_ms for object_id, at_ms in dropped if object_id.generation >= floor}
        self.producers.forget_one_shots(min(floor, max(old, default=0)))
        return OK

    def _apply_group_records(self, command: model.GroupRecords, index: int, number: int) -> CommandResult:
        topic = self._topics.open_topic(command.topic_id)
        if isinstance(topic, CommandResult):
            return topic
        return self.groups.apply(command)

    def _sections_of(self, object_numbers: set[int]) -> dict[int, tuple[Section, ...]]:
        """Return the live sections of objects, in the order of their bytes; one pass over all tables and pages."""
        sections: dict[int, set[Section]] = {number: set() for number in object_numbers}
        keys = {state.slot: (key, state) for key, state in self._topics.partitions.items()}
        wanted = np.array(sorted(object_numbers), np.int64)
        in_memory = (state.sections.rows_in_memory() for state in self._topics.partitions.values())
        for rows in chain(in_memory, self._topics.pages.every_row()):
            cells = rows.cells[:, np.isin(rows.cells[SectionColumn.OBJECT], wanted)]
            for slot, base, _, _, number, start_byte, *_ in cells.T.tolist():
                key, partition = keys[slot]
                at = max(base, partition.log_start_offset)
                for row in partition.sections_between(at, at + 1):  # another section if newer rows hide this one
                    if (row.object_number, row.start_byte) == (number, start_byte):
                        sections[number].add(Section(*key, row.row_count, *row[3:8]))
        return {number: tuple(sorted(rows, key=lambda row: row.start_byte)) for number, rows in sections.items()}

    _applies: ClassVar[Mapping[type, Apply]] = {
        Append: _apply_append,
        model.SequencedAppend: _apply_append,
        model.ProducerInit: lambda state, command, *_: state.producers.sequenced.apply_init(command),
        model.TopicInit: lambda state, command, *_: state._topics.apply_topic_init(command, state.fenced),
        model.SchemaEvolve: lambda state, command, *_: state._topics.apply_schema_evolve(command),
        model.TopicClose: lambda state, command, *_: state._topics.apply_topic_close(command),
        model.LogStartAdvance: lambda state, command, *_: state._topics.apply_log_start_advance(command),
        model.PartitionsAdd: lambda state, command, *_: state._topics.apply_partitions_add(command, state.fenced),
        model.ConfigSet: lambda state, command, *_: state._topics.apply_config_set(command),
        model.IsrChange: lambda state, command, index, _: state.leadership.apply_isr_change(command, index),
        model.BrokerFence: lambda state, command, *_: state.leadership.apply_broker_fence(command),
        model.PartitionChange: lambda state, command, *_: state.leadership.apply_partition_change(command),
        model.Truncate: _apply_truncate,
        model.HoldersAdd: lambda state, command, *_: state.objects.apply_holders_add(command),
        model.GenerationAdvance: _apply_generation_advance,
        Replace: _apply_replace,
        LogExtend: _apply_replace,
        MirrorAppend: _apply_append,
        model.MirrorSet: lambda state, command, *_: mirrored_topic.apply_mirror_set(command, state._topics),
        model.MirrorAdvance: lambda state, command, *_: mirrored_topic.apply_mirror_advance(
            command, state._topics, state.objects
        ),
        model.LogClean: lambda state, command, *_: state._topics.apply_log_clean(command),
        model.GroupRecords: _apply_group_records,
    }
