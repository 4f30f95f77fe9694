"""Rows in pages: what a lookup loads, what a merge writes again, and bytes that are not what they should be."""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from spark_replog.errors import CorruptDataError, UnsupportedFormatError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.codec.snapshot import (
    Directory,
    PageKind,
    Rows,
    SnapshotPart,
    decode_page,
    encode_page,
    seal,
    unseal,
)
from spark_replog.log.fold import frozen_topics, paged_table, topic_state
from spark_replog.log.fold.paged_table import Piece
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    GenerationAdvance,
    HoldersAdd,
    IdentityKind,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    ProducerIdentity,
    Replace,
    Section,
    TopicClose,
    TopicInit,
    inputs_digest,
)
from spark_replog.read.fetch_plan import plan_fetch
from spark_replog.snapshot import PAGE_NAME, PageMissingError, is_named
from tests.examples import chunks

LEDGER, TOPIC = "12" * 16, "ab" * 16


class Life:
    """A ledger of one topic whose state is frozen now and then, and the pages that its snapshots name."""

    def __init__(self, partition_count=1, holders=(0,)):
        self.state, self.pages, self.loads, self.holders = TopicLedgerState(LEDGER), {}, [], frozenset(holders)
        self.state.load_page = self.load
        self.written, self.names = [], set()
        self.partition_count = partition_count
        self.entry(TopicInit(TOPIC, "t", ((0,),) * partition_count, ()))

    def load(self, name):
        self.loads.append(name)
        return self.pages[name]

    def entry(self, *commands):
        payload = encode_entry([encode_command(command) for command in commands])
        return self.state.apply(self.state.applied_index + 1, payload)

    def append(self, count=1, partitions=None):
        for _ in range(count):
            index = self.state.applied_index + 1
            sections = tuple(
                Section(TOPIC, number, 10, 100 * number, 100, index, index, index)
                for number in (range(self.partition_count) if partitions is None else partitions)
            )
            item = DataObject(ObjectId(0, f"o-{index}"), 100 * len(sections), False, self.holders, sections)
            self.names.add(item.id.name)
            identity = ProducerIdentity("q", "q", index, "r", IdentityKind.STREAM)
            self.entry(Append(identity, "", "", index, (item,)))

    def snapshot(self):
        frozen = self.state.freeze()
        self.written.append(sorted(frozen.pages))
        self.pages.update(frozen.pages)
        self.state.adopted(frozen)
        self.pages = {name: self.pages[name] for name in set(self.state.page_names())}
        self.loads.clear()
        return frozen

    def runs(self):
        return self.state._topics.pages.runs

    def partition(self, number=0):
        return self.state.topics[TOPIC].partitions[number]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(paged_table, "PAGE_ROWS", 8)
    monkeypatch.setattr(paged_table, "FLUSH_ROWS", 8)
    monkeypatch.setattr(frozen_topics, "FLUSH_ROWS", 8)


def aged(rounds=64, **life):
    made = Life(**life)
    for _ in range(rounds):
        made.append(8)
        made.snapshot()
    return made


def test_a_head_does_not_grow_with_the_log_and_a_snapshot_costs_what_is_new(small):
    life = aged(16)
    young = len(life.state.freeze().head)
    life = aged(128)
    assert len(life.state.freeze().head) < 1.5 * young
    written = sum(map(len, life.written))
    assert written < 128 * 8, "pages written: a row is written a few times, not once for each snapshot"
    assert not any(len(column) for column in life.partition().sections._columns)
    assert len(life.state.objects._objects) == 0


def test_full_pages_of_one_partition_are_taken_over_by_merges(small):
    life, born = Life(), {}
    for number in range(64):
        life.append(8)
        life.snapshot()
        for name in life.pages:
            born.setdefault(name, number)
    assert sum(1 for name in life.pages if born[name] < 48) > len(life.pages) // 2


def test_pages_and_memory_give_the_same_rows_however_many():
    life = Life()
    life.append(600)

    def lookups():
        return [life.state.sections(TOPIC, 0, *span) for span in ((0, 6000), (5, 95), (7, 4005), (5990, 6000))]

    in_memory = lookups()
    assert [[row.base_offset for row in rows] for rows in in_memory] == [
        list(range(0, 6000, 10)), list(range(0, 100, 10)), list(range(0, 4010, 10)), [5990]
    ]  # fmt: skip
    life.snapshot()
    assert life.runs()
    assert lookups() == in_memory


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("where", [0, 0.5, 1], ids=["earliest", "middle", "latest"])
def test_what_a_plan_loads_does_not_grow_with_the_log(small, where):
    loads = []
    for rounds in (16, 128):
        life = aged(rounds)
        end = life.partition().log_end_offset
        life.state.restore(life.snapshot().head, life.load)
        life.loads.clear()
        start = min(int(end * where), end - 20)
        assert life.state.sections(TOPIC, 0, start, start + 20)[0].base_offset == start
        loads.append(len(life.loads))
    assert max(loads) <= (2 if where == 0 else 8), loads  # the head says where the oldest rows are


def calls(action):
    """Return how many Python functions and generators this thread enters, the second time."""
    entered = []
    action()
    gc.disable()  # a collection would add the callbacks of other libraries
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(entered)


def plan(life, first, last):
    return plan_fetch(life.state, "t", TOPIC, 0, 10 * first, 10 * last)


@pytest.mark.parametrize("where", ["memory", "pages"])
def test_a_plan_calls_no_function_for_a_row(where):
    life = Life()
    life.append(1200)
    if where == "pages":
        life.snapshot()
        assert life.runs() and not any(len(column) for column in life.partition().sections._columns)
    few, many = (calls(lambda: plan(life, 0, count)) for count in (100, 1000))  # noqa: B023
    assert [len(plan(life, 0, count)) for count in (100, 1000)] == [100, 1000]
    assert many <= few + 5, "rows are made some at a time, each time eight times as many"


def test_a_plan_from_pages_costs_about_what_one_from_memory_does():
    """However many runs there are. These calls are of few rows; those of a micro-batch's look come to both."""
    young, old = Life(), Life()
    young.append(110)
    for _ in range(15):
        old.append(600)
        old.snapshot()
    assert len(old.runs()) >= 6
    plans = (young, 0), (old, 0), (old, 4100)
    in_memory, *in_pages = (calls(lambda: plan(life, first, first + 100)) for life, first in plans)  # noqa: B023
    assert in_memory <= 60 and max(in_pages) <= in_memory + 60, (in_memory, in_pages)


def test_a_reader_that_goes_on_in_a_page_looks_at_no_directory_again(monkeypatch):
    life = Life()
    for _ in range(15):
        life.append(600)
        life.snapshot()
    assert not life.runs()[0].is_page
    looked, find = [], Directory.find
    monkeypatch.setattr(Directory, "find", lambda *asked: looked.append(asked[1:]) or find(*asked))
    counts = []
    for first in range(0, paged_table.PAGE_ROWS - 100, 100):
        looked.clear()
        assert [piece.start_offset // 10 for piece in plan(life, first, first + 100)] == list(range(first, first + 100))
        counts.append(len(looked))
    assert counts == [2] + [0] * (len(counts) - 1), "once for sections, once for objects"


@pytest.mark.parametrize("seed", chunks(8, 3))
def test_pages_answer_what_memory_does_whatever_has_changed(small, seed):
    """Reads that follow each other, with changes and snapshots between: a page that was found may be hidden by then."""
    chance = random.Random(seed)
    lives = paged, in_memory = Life(partition_count=2), Life(partition_count=2)
    start = 0
    for step in range(40):
        count = chance.randrange(1, 12)
        for life in lives:
            life.append(count)
        end = paged.partition().log_end_offset
        low = min(start + chance.randrange(1, 200), end - 10)
        if step % 7 == 3:
            start = min(start + 10 * chance.randrange(1, 20), low)
            start = max(start, paged.partition().log_start_offset + 1)
            for life in lives:
                life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, start),)))
        elif step % 3 == 1 and low > paged.partition().log_start_offset:
            taken = in_memory.state.sections(TOPIC, 0, low, min(low + 40, end))
            until = taken[-1].end_offset
            section = Section(TOPIC, 0, until - taken[0].base_offset, 0, 7, 1, 0, 9)
            item = DataObject(ObjectId(0, f"c-{step}"), 7, False, frozenset((0,)), (section,))
            digest = inputs_digest((source.object.id, source.start_byte, source.base_offset) for source in taken)
            base = taken[0].base_offset
            replaced = [life.entry(Replace(TOPIC, 0, base, until, digest, (item,), (base,))) for life in lives]
            assert replaced[0] == replaced[1]
        else:
            index = chance.randrange(1, paged.state.applied_index + 1)
            for life in lives:
                life.entry(HoldersAdd(index, 0, 0, (3,)))
        if chance.random() < 0.5:
            paged.snapshot()
        at = paged.partition().log_start_offset
        while at < end:
            stop = min(end, at + chance.randrange(1, 60))
            sections = [[life.state.sections(TOPIC, number, at, stop) for number in (0, 1)] for life in lives]
            assert sections[0] == sections[1]
            at = stop
    assert len(paged.runs()) > 1


def answers(state, ranges):
    return [
        [(row.base_offset, row.row_count, row.object.id.name) for row in state.sections(TOPIC, number, start, end)]
        for number in range(2)
        for start, end in ranges
    ]


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_the_first_pieces_in_a_head_answer_what_directories_do(small, is_trimmed):
    life = aged(24, partition_count=2)
    if is_trimmed:
        life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 45), (1, 30))))
    frozen = life.snapshot()
    head, oldest = frozen.head, (frozen.made.section_runs[0], frozen.made.object_runs[0])
    assert all(len(run.firsts) == len(run.spans) and not run.is_page for run in oldest)
    edges = sorted({edge for run in oldest for piece in run.firsts for edge in piece[:2] if edge < 2000})
    points = sorted({max(0, edge + step) for edge in [0, *edges] for step in (-10, -1, 0, 1, 10, 200)})
    ranges = [(start, end) for start in points for end in points if start < end]
    life.state.restore(head, life.load)
    tables = life.state.freeze().tables
    assert [runs[0].firsts for runs in (tables.section_runs, tables.object_runs)] == [run.firsts for run in oldest]
    expected = answers(life.state, ranges)
    frozen = life.state.freeze()
    runs = [tuple(run._replace(firsts=()) for run in made_runs) for made_runs in frozen.made[:2]]
    frozen.__dict__["made"] = frozen.made._replace(section_runs=runs[0], object_runs=runs[1])
    life.state.restore(frozen.head, life.load)
    assert not life.runs()[0].firsts
    assert expected == answers(life.state, ranges)


def test_bytes_need_no_page_but_those_of_a_run_that_the_log_start_cuts(small):
    for rounds in (16, 128):
        life = aged(rounds, partition_count=3)
        life.append(5)
        life.state.restore(life.snapshot().head, life.load)
        assert len(life.runs()) > 1
        assert [life.partition(number).live_bytes for number in range(3)] == [100 * (8 * rounds + 5)] * 3
        assert life.loads == []
        life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((1, 55),)))
        assert life.partition(1).live_bytes == 100 * (8 * rounds)  # the section of row 55 is there as a whole
        assert len(life.loads) <= 2, "the directory of the oldest run, and the page that is cut"


@pytest.mark.parametrize("huge_count", [2, 5])
def test_an_append_that_claims_more_bytes_than_64_bits_hold_does_not_end_snapshots(small, huge_count):
    life = Life()
    claimed = tuple(
        DataObject(ObjectId(0, f"o{number}"), 2**62, False, life.holders, (Section(TOPIC, 0, 5, 0, 2**62, 7, 1, 1),))
        for number in range(huge_count)
    )
    identity = ProducerIdentity("q", "q", 0, "r", IdentityKind.STREAM)
    for index in (0, 1):
        (result,) = life.entry(Append(replace(identity, sequence=index), "User:a", "c", 1, claimed))
        assert result.outcome is Outcome.APPLIED
        claimed = tuple(replace(data_object, id=ObjectId(0, f"{data_object.id.name}-again")) for data_object in claimed)
    frozen = None
    for _ in range(10):
        life.append(8)
        frozen = life.snapshot()
        assert life.partition().live_bytes > 0
    again = Life()
    again.pages = life.pages
    again.state.restore(frozen.head, again.load)
    assert again.state.freeze().head == life.state.freeze().head


def test_a_replacement_that_leaves_as_many_sections_counts_bytes_in_pages_again(small):
    life = aged(1)
    life.append(2)
    for end, size_bytes in ((10, 7), (20, 9)):
        taken = life.state.sections(TOPIC, 0, 0, end)
        output = Section(TOPIC, 0, end, 0, size_bytes, 1, 0, 9)
        item = DataObject(ObjectId(0, f"c-{end}"), size_bytes, False, life.holders, (output,))
        digest = inputs_digest((source.object.id, source.start_byte, source.base_offset) for source in taken)
        (result,) = life.entry(Replace(TOPIC, 0, 0, end, digest, (item,), (0,)))
        assert result.outcome is Outcome.APPLIED
        assert life.partition().live_bytes == size_bytes + (100 - end) * 10


def test_a_run_of_more_partitions_than_its_head_names_may_hide_any_other(small, monkeypatch):
    monkeypatch.setattr(paged_table, "SPANS_MAX", 1)
    life = Life(partition_count=2)
    life.append(8, partitions=[0])
    life.snapshot()
    taken = life.state.sections(TOPIC, 0, 0, 80)
    item = DataObject(ObjectId(0, "c"), 7, False, life.holders, (Section(TOPIC, 0, 80, 0, 7, 1, 0, 9),))
    digest = inputs_digest((source.object.id, source.start_byte, source.base_offset) for source in taken)
    (result,) = life.entry(Replace(TOPIC, 0, 0, 80, digest, (item,), (0,)))
    assert result.outcome is Outcome.APPLIED
    life.append(8)
    life.snapshot()
    assert [bool(run.spans) for run in life.runs()] == [True, False]
    assert [life.partition(number).live_bytes for number in range(2)] == [7 + 800, 800]


def head_with(life, **changes):
    """A head that says something else of its oldest run of sections."""
    frozen = life.state.freeze()
    run, *others = frozen.made.section_runs
    frozen.__dict__["made"] = frozen.made._replace(section_runs=(run._replace(**changes), *others))
    return frozen.head


def test_a_restored_state_has_the_bytes_and_the_first_pieces_of_the_head(small):
    life = aged(24)
    runs = life.runs()
    life.state.restore(life.state.freeze().head, life.load)
    assert life.runs() == (runs[0], *(run._replace(firsts=()) for run in runs[1:]))
    assert all(len(run.sizes) == len(run.spans) == 1 for run in runs) and runs[0].firsts


@pytest.mark.parametrize(
    "said",
    [[(1, 10, 1)], [(0, 10**6, 1)], [(0, 0, 1)], [(0, 10, 1), (0, 10, 1)], [(0, 10, 2**63)]],
    ids=["another base", "beyond the run", "empty", "one too many", "too large"],
)
def test_first_pieces_that_do_not_fit_the_run_are_damage(small, said):
    life = aged(24)
    pieces = [Piece(base, end, "p", 0, 1, size_bytes, 0) for base, end, size_bytes in said]
    life.state.restore(head_with(life, firsts=(Piece(0, 10, "p", 0, 1, 1, 0),)), life.load)
    assert life.runs()[0].firsts[0].page == "p"
    with pytest.raises(CorruptDataError, match="CORRUPT_MESSAGE"):
        life.state.restore(head_with(life, firsts=tuple(pieces)), life.load)


@pytest.mark.parametrize("sizes", [(), (5, 5)])
def test_bytes_that_do_not_fit_the_run_are_damage(small, sizes):
    life = aged(1)
    assert len(life.runs()) == 1
    life.state.restore(head_with(life, sizes=(5,)), life.load)
    assert life.partition().live_bytes == 5
    with pytest.raises(CorruptDataError, match="CORRUPT_MESSAGE"):
        life.state.restore(head_with(life, sizes=sizes), life.load)
    assert life.partition().live_bytes == 5, "the state is the old one"


def test_memory_for_pages_is_bounded_and_what_was_left_out_is_loaded_again(small):
    life = aged(64)
    life.state.page_cache.limit_bytes = 20_000
    end = life.partition().log_end_offset
    everything = life.state.sections(TOPIC, 0, 0, end)
    assert len(everything) == end // 10
    first = len(life.loads)
    assert life.state.page_cache.size_bytes <= 20_000
    assert life.state.sections(TOPIC, 0, 0, end) == everything
    assert len(life.loads) > first


def test_rows_below_the_log_start_leave_the_pages_and_their_objects_are_dropped(small):
    life = aged(32)
    before = len(life.pages)
    end = life.partition().high_watermark
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, end - 80),)))
    for _ in range(4):
        life.append(8)
        life.snapshot()
    named = life.state.referenced_objects(0)
    live = {row.object.id.name for row in life.state.sections(TOPIC, 0, 0, 10**9)}
    assert named == live
    assert {object_id.name for object_id in life.state.dropped_objects()} | named == life.names
    assert len(life.pages) < before // 2


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("command", ["trim", "delete"])
def test_one_snapshot_finds_every_object_without_rows_and_its_head_tells_other_processes(small, command):
    """However few rows there are since the last one; no merge is due."""
    life = aged(12)
    life.append(3)
    end = life.partition().high_watermark
    trim = LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, end - 15),))
    life.entry(trim if command == "trim" else TopicClose(TOPIC))
    live = {row.object.id.name for row in life.state.sections(TOPIC, 0, 0, 10**9)}
    assert len(live) == (2 if command == "trim" else 0)
    assert life.state.has_gone_rows and not life.loads
    head = life.snapshot().head
    other = TopicLedgerState(LEDGER)
    other.restore(head, life.load)
    for state in (life.state, other):
        assert {object_id.name for object_id in state.dropped_objects()} == life.names - live
        assert state.objects.referenced(0) == live
        assert not state.has_gone_rows
    life.state.forget_dropped(list(life.state.dropped_objects()))
    life.append(1)
    other.restore(life.snapshot().head, life.load)
    assert other.dropped_objects() == {}


def test_the_floor_takes_objects_off_those_to_delete_by_name(small):
    life = aged(2)
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 100),)))
    life.snapshot()
    assert life.state.dropped_objects()
    life.entry(GenerationAdvance(1, 1))
    assert life.state.dropped_objects() == {}


def test_the_rows_of_a_deleted_topic_leave_the_pages(small):
    life = aged(16)
    life.entry(TopicInit("cd" * 16, "u", ((0,),), ()))
    life.entry(TopicClose(TOPIC))
    assert life.state.sections(TOPIC, 0, 0, 10**9) == []
    for number in range(16):
        index = life.state.applied_index + 1
        item = DataObject(
            ObjectId(0, f"n-{index}"), 8, False, frozenset({0}), (Section("cd" * 16, 0, 1, 0, 8, 1, 0, 0),)
        )
        life.entry(Append(ProducerIdentity("p", "p", number, "r", IdentityKind.STREAM), "", "", 0, (item,)))
    life.snapshot()
    assert {name[0] for name in life.state.referenced_objects(0)} == {"n"}


def test_a_copy_of_an_old_object_is_noted(small):
    life = aged(16)
    assert life.entry(HoldersAdd(5, 0, 0, (3,)))[0].outcome is Outcome.APPLIED
    assert life.entry(HoldersAdd(5, 0, 0, (3,)))[0].outcome is Outcome.EXISTS
    assert life.entry(HoldersAdd(5, 0, 1, (3,)))[0].outcome is Outcome.INVALID
    assert life.state.sections(TOPIC, 0, 40, 41)[0].object.holders == {0, 3}
    life.append(8)
    life.snapshot()
    assert not life.state.objects._objects
    assert life.state.sections(TOPIC, 0, 40, 41)[0].object.holders == {0, 3}


def test_what_changes_while_a_snapshot_is_stored_is_kept(small):
    life = aged(2)
    life.append(8)
    frozen = life.state.freeze()
    life.entry(HoldersAdd(18, 0, 0, (3,)))
    life.pages.update(frozen.pages)
    life.state.adopted(frozen)
    assert life.state.sections(TOPIC, 0, 170, 171)[0].object.holders == {0, 3}


def test_a_row_that_goes_while_its_page_is_stored_is_counted_off_once(small):
    """Objects have a row in each of two partitions; one of them is trimmed between the freeze and its adoption."""
    life = Life(partition_count=2)
    life.append(16)
    frozen = life.state.freeze()
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 160),)))
    life.pages.update(frozen.pages)
    life.state.adopted(frozen)
    for _ in range(8):
        life.append(8)
        life.snapshot()
    live = {row.object.id.name for row in life.state.sections(TOPIC, 1, 0, 10**9)}
    assert life.state.referenced_objects(0) >= live == life.names
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 800), (1, 800))))
    life.append(8)
    life.snapshot()
    assert life.state.referenced_objects(0) == {f"o-{index}" for index in range(83, 91)}


def test_a_freeze_that_fails_takes_no_row_off_twice(small, monkeypatch):
    """As MemoryError or Ctrl-C ends it, while an older frozen state waits for its entry."""
    life = Life(partition_count=2)
    life.append(16)
    waiting = life.state.freeze()
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 160),)))

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(topic_state, "Tables", fail)
        life.state.freeze()
    life.pages.update(waiting.pages)
    try:
        life.state.adopted(waiting)
    except PageMissingError:
        life.state.restore(waiting.head, life.load)
        life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 160),)))
    for _ in range(8):
        life.append(8)
        life.snapshot()
    live = {row.object.id.name for row in life.state.sections(TOPIC, 1, 0, 10**9)}
    assert live == life.names
    assert life.state.referenced_objects(0) >= live


def test_a_page_that_is_gone_is_told_and_nothing_is_answered(small):
    life = aged(16)
    life.state.restore(life.snapshot().head, life.load)

    def gone(name):
        raise PageMissingError(0, name)

    life.state.load_page = life.state.page_cache.load = gone
    for question in (
        lambda: life.state.sections(TOPIC, 0, 0, 10),
        lambda: life.state.offset_for_time(TOPIC, 0, 5),
        lambda: life.state.referenced_objects(0),
        lambda: life.entry(HoldersAdd(5, 0, 0, (3,))),
    ):
        with pytest.raises(PageMissingError):
            question()


def test_a_frozen_state_that_is_not_the_newest_is_not_taken_for_this_one(small):
    life = aged(2)
    old = life.state.freeze()
    life.append(8)
    new = life.state.freeze()
    with pytest.raises(PageMissingError):
        life.state.adopted(old)
    life.state.restore(new.head, life.load)
    with pytest.raises(PageMissingError):
        life.state.adopted(new)


def some_pages():
    numbers = np.arange(40)
    sections = np.stack([numbers // 20, numbers % 20 * 10, numbers % 20 * 10 + 10, *[numbers * 7 + 1] * 8])
    objects = np.stack([numbers * 0, numbers * 2**24, numbers * 2**24 + 1, *[numbers] * 7])
    pieces = np.stack([numbers // 20, numbers % 20, numbers % 20 + 1, *[numbers % 2] * 5])
    names, holders = [f"o-{number}" for number in range(40)], [frozenset({number % 3}) for number in range(40)]
    return [
        encode_page(LEDGER, Rows(PageKind.SECTIONS, sections, [], [])),
        encode_page(LEDGER, Rows(PageKind.OBJECTS, objects, names, holders)),
        encode_page(LEDGER, Directory(pieces, ["a", "b"])),
    ]


@pytest.mark.parametrize("data", some_pages(), ids=["sections", "objects", "directory"])
def test_no_damage_of_a_page_is_taken_for_rows(data):
    decode_page(LEDGER, "p", data)
    flips = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    for broken in [*flips, *(data[:at] for at in range(len(data)))]:
        with pytest.raises(CorruptDataError):
            decode_page(LEDGER, "p", broken)


@pytest.mark.parametrize("data", some_pages(), ids=["sections", "objects", "directory"])
def test_bytes_of_a_page_that_no_release_wrote_are_refused_although_their_checksum_fits(data):
    body = unseal(SnapshotPart.PAGE, data).rest()
    dice = random.Random(5)
    for _ in range(300):
        broken = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            broken[dice.randrange(len(broken))] = dice.choice((0, 0x7F, 0xFF, dice.randrange(256)))
        try:
            decode_page(LEDGER, "p", seal(SnapshotPart.PAGE, bytes(broken)))
        except (CorruptDataError, UnsupportedFormatError):
            continue


def test_a_page_of_another_ledger_is_refused():
    with pytest.raises(CorruptDataError, match="another"):
        decode_page("34" * 16, "p", some_pages()[0])


def test_a_page_is_named_by_its_bytes(small):
    life = aged(16)
    assert len(life.pages) > 4
    for name, data in life.pages.items():
        assert PAGE_NAME.fullmatch(name) and is_named(name, data)
        assert not is_named(name, b"") and not is_named(name, data[:-1]) and not is_named(name, data[1:])
        assert all(is_named(name, other) == (other == data) for other in life.pages.values())


def test_the_newest_objects_of_each_broker_are_found_in_pages_and_in_memory(small):
    life, made = Life(5), []
    for round_ in range(40):
        index, holders = life.state.applied_index + 1, frozenset([{0}, {0, 1}, {0}, {0, 1}][round_ % 4])
        section = Section(TOPIC, round_ % 5, 10, 0, 100, index, index, index)
        item = DataObject(ObjectId(0, f"o-{index}"), 100, False, holders, (section,))
        life.entry(Append(ProducerIdentity("q", "q", index, "r", IdentityKind.STREAM), "", "", index, (item,)))
        made.append((item.id, holders))
        if round_ in (20, 36):
            life.snapshot()
    last_rows = made[-5:]  # one of each partition: some in pages, some in memory
    newest = life.state.newest_objects([0, 1, 7], 2)
    assert [len(part.sections._columns.bases) > 0 for part in life.state._topics.partitions.values()].count(False) == 2
    for broker_id in (0, 1, 7):
        wanted = [item for item, holders in reversed(last_rows) if broker_id in holders][:2]
        assert [data_object.id for data_object in newest[broker_id]] == wanted
    life.entry(TopicClose(TOPIC))
    assert life.state.newest_objects([0], 2) == {0: []}
