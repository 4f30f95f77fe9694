from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from spark_replog.errors import ReplogError, UnsupportedFormatError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold import partition_state, section_table
from spark_replog.log.fold.object_table import ORDINAL_BITS
from spark_replog.log.fold.section_table import tuples_of
from spark_replog.log.model import (
    Append,
    BrokerFence,
    BrokerRegister,
    ConfigSet,
    DataObject,
    GenerationAdvance,
    HoldersAdd,
    IsrChange,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    PartitionsAdd,
    Section,
    TopicClose,
    TopicInit,
)


@pytest.mark.guarantee("G1")
def test_offsets_are_prefix_sums_in_task_order(kit):
    log = kit.Log()
    first = kit.data_object({0: 3, 1: 1}, name="a")
    second = kit.data_object({0: 2}, name="b")
    result = log.one(Append(kit.identity(0), "p", "c", 5, (first, second)))
    assert result.base_offsets == {(kit.TOPIC, 0): (0, 5), (kit.TOPIC, 1): (0, 1)}
    result = log.one(kit.append({1: 4}, 1))
    assert result.base_offsets == {(kit.TOPIC, 1): (1, 5)}
    assert [(s.base_offset, s.row_count, s.object.id.name) for s in log.state.sections(kit.TOPIC, 0, 0, 5)] == [
        (0, 3, "a"),
        (3, 2, "b"),
    ]


@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [(0, 9, [0, 3, 6]), (0, 3, [0]), (2, 4, [0, 3]), (3, 4, [3]), (8, 9, [6]), (9, 20, []), (5, 5, [])],
)
def test_sections_between_offsets(kit, start, end, bases):
    log = kit.Log()
    for sequence in range(3):
        log.one(kit.append({0: 3}, sequence))
    sections = log.state.sections(kit.TOPIC, 0, start, end)
    assert [s.base_offset for s in sections if s.base_offset < end] == bases


@pytest.mark.guarantee("G2")
def test_rows_are_readable_when_every_in_sync_replica_holds_them(kit):
    log = kit.Log()
    log.one(kit.append({0: 3}, 0, holders=(0, 1)))
    assert (log.ends(), log.marks(), log.state.stable_index) == ([3, 0], [0, 0], 0)
    log.one(kit.append({1: 2}, 1))
    assert (log.ends(), log.marks(), log.state.stable_index) == ([3, 2], [0, 0], 0)
    (lacking,) = log.state.under_replicated()
    assert (lacking.entry_index, lacking.command_no, lacking.object_no, lacking.missing) == (1, 0, 0, (2,))
    assert lacking.sections[0].row_count == 3
    log.one(HoldersAdd(1, 0, 0, (2,)))
    assert (log.marks(), log.state.stable_index) == ([3, 2], 3)
    assert log.state.under_replicated() == []
    assert log.state.sections(kit.TOPIC, 0, 0, 3)[0].object.holders == {0, 1, 2}


def test_a_shrink_in_the_same_entry_comes_before_the_append(kit):
    log = kit.Log()
    results = log.entry(IsrChange(None, 2, False, 50), kit.append({0: 3}, 0, holders=(0, 1)))
    assert [r.outcome for r in results] == [Outcome.APPLIED, Outcome.APPLIED]
    assert (log.marks(), log.state.stable_index) == ([3, 0], 1)
    assert log.state.topics[kit.TOPIC].partitions[0].isr == (0, 1)
    assert log.state.leadership.last_shrink_ms == {2: 50}
    assert log.state.under_replicated() == []
    (behind,) = log.state.under_replicated(include_out_of_sync=True)
    assert behind.missing == (2,)


@pytest.mark.case("kafka-99-100")
def test_the_isr_grows_on_proof_only(kit):
    log = kit.Log()
    log.entry(IsrChange(None, 2, False, 50), kit.append({0: 3}, 0, holders=(0, 1)))
    grown = log.one(IsrChange(None, 2, True, 90))
    assert grown.outcome is Outcome.APPLIED  # partition 1 is complete
    assert "lacks objects of 1 partitions" in grown.detail
    partitions = log.state.topics[kit.TOPIC].partitions
    assert [p.isr for p in partitions] == [(0, 1), (0, 1, 2)]
    assert log.one(IsrChange(None, 2, True, 91)).outcome is Outcome.SKIPPED
    log.one(HoldersAdd(1, 1, 0, (2,)))
    assert log.one(IsrChange(kit.TOPIC, 2, True, 92)).outcome is Outcome.APPLIED
    assert [p.isr for p in partitions] == [(0, 1, 2), (0, 1, 2)]


def test_a_leader_that_leaves_is_followed_by_the_next_in_sync_replica(kit):
    log = kit.Log(partitions=1)
    (partition,) = log.state.topics[kit.TOPIC].partitions
    log.one(IsrChange(None, 1, False, 1))
    assert (partition.leader, partition.leader_epoch, partition.isr) == (0, 0, (0, 2))
    log.one(IsrChange(None, 0, False, 2))
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2,))
    assert log.one(IsrChange(None, 2, False, 3)).outcome is Outcome.SKIPPED  # the last one stays
    assert log.one(IsrChange(None, 7, False, 3)).outcome is Outcome.SKIPPED  # no replica


@pytest.mark.guarantee("G2")
def test_the_high_watermark_rests_below_min_insync(kit):
    log = kit.Log(partitions=1, config=(("min.insync.replicas", "2"),))
    log.entry(IsrChange(None, 1, False, 1), IsrChange(None, 2, False, 1), kit.append({0: 2}, 0, holders=(0,)))
    assert (log.ends(), log.marks()) == ([2], [0])
    log.one(ConfigSet(kit.TOPIC, (("min.insync.replicas", "1"),)))
    assert log.marks() == [2]


def test_min_insync_is_a_majority_unless_set_and_never_above_the_replicas(kit):
    for config, expected in (((), 2), ((("min.insync.replicas", "9"),), 3), ((("min.insync.replicas", "1"),), 1)):
        log = kit.Log(partitions=1, config=config)
        assert log.state.topics[kit.TOPIC].partitions[0].min_insync == expected


def test_a_micro_batch_becomes_visible_at_once(kit):
    log = kit.Log()
    objects = (
        kit.data_object({0: 1}, name="a", holders=(0, 1, 2)),
        kit.data_object({1: 1}, name="b", holders=(0,)),
    )
    log.one(Append(kit.identity(0), "p", "c", 5, objects))
    assert log.marks() == [0, 0]
    log.one(HoldersAdd(1, 0, 1, (1, 2)))
    assert log.marks() == [1, 1]


@pytest.mark.guarantee("G3")
def test_appends_are_atomic_over_the_topics_of_a_ledger(kit):
    log = kit.Log(topics=((kit.TOPIC, "a"), (kit.OTHER, "b")))
    both = {(kit.TOPIC, 0): 2, (kit.OTHER, 1): 3}
    result = log.one(kit.append(both, 0))
    assert result.base_offsets == {(kit.TOPIC, 0): (0, 2), (kit.OTHER, 1): (0, 3)}
    log.one(TopicClose(kit.OTHER))
    assert log.one(kit.append(both, 1)).outcome is Outcome.TOPIC_CLOSED
    assert log.ends() == [2, 0]
    assert log.one(kit.append({0: 1}, 1)).outcome is Outcome.APPLIED


def test_a_deleted_topic_holds_nothing_back(kit):
    log = kit.Log(topics=((kit.TOPIC, "a"), (kit.OTHER, "b")))
    log.one(kit.append({(kit.OTHER, 0): 2}, 0, holders=(0,)))
    log.one(kit.append({0: 1}, 1))
    assert log.marks() == [0, 0]
    log.one(TopicClose(kit.OTHER))
    assert log.marks() == [1, 0]
    assert log.state.under_replicated(include_out_of_sync=True) == []


def test_one_refused_append_does_not_touch_its_neighbours(kit):
    log = kit.Log()
    good, bad, other = kit.append({0: 1}, 0), kit.append({9: 1}, 0, producer="x"), kit.append({1: 1}, 0, producer="y")
    outcomes = [r.outcome for r in log.entry(good, bad, other)]
    assert outcomes == [Outcome.APPLIED, Outcome.INVALID, Outcome.APPLIED]
    assert log.ends() == [1, 1]


def test_append_time_never_falls(kit):
    log = kit.Log(partitions=1)
    for sequence, time_ms in enumerate((500, 400, 600)):
        log.one(kit.append({0: 1}, sequence, time_ms=time_ms))
    sections = log.state.sections(kit.TOPIC, 0, 0, 3)
    assert [s.append_time_ms for s in sections] == [500, 500, 600]
    assert [s.timestamp_type for s in sections] == [0, 0, 0]


def test_log_append_time_topics_show_the_append(kit):
    log = kit.Log(partitions=1, config=(("message.timestamp.type", "LogAppendTime"),))
    log.one(kit.append({0: 5}, 0, time_ms=500))
    log.one(ConfigSet(kit.TOPIC, (("message.timestamp.type", None),)))
    log.one(kit.append({0: 5}, 1, time_ms=900))
    first, second = log.state.sections(kit.TOPIC, 0, 0, 10)
    assert (first.timestamp_type, first.min_timestamp_ms, first.max_timestamp_ms) == (1, 500, 500)
    assert (second.timestamp_type, second.min_timestamp_ms, second.max_timestamp_ms) == (0, 900, 905)


def test_offset_for_time_is_the_first_section_that_is_late_enough(kit):
    log = kit.Log(partitions=1)
    for sequence, time_ms in enumerate((100, 50, 300)):
        log.one(kit.append({0: 10}, sequence, time_ms=time_ms))  # rows span time_ms .. time_ms + 10
    offsets = [log.state.offset_for_time(kit.TOPIC, 0, t) for t in (0, 105, 110, 111, 310, 311)]
    assert offsets == [0, 0, 0, 20, 20, None]
    log.one(kit.append({0: 1}, 3, time_ms=900, holders=(0,)))
    assert log.state.offset_for_time(kit.TOPIC, 0, 800) is None  # above the high watermark
    assert log.state.offset_for_time(kit.TOPIC, 5, 0) is None


def test_partitions_are_added_once(kit):
    log = kit.Log()
    grow = PartitionsAdd(kit.TOPIC, 3, ((1, 2, 0),))
    assert log.one(grow).outcome is Outcome.APPLIED
    assert log.one(grow).outcome is Outcome.EXISTS
    assert log.one(PartitionsAdd(kit.TOPIC, 2, ())).outcome is Outcome.INVALID
    assert log.one(PartitionsAdd(kit.TOPIC, 6, ((0,),))).outcome is Outcome.INVALID
    assert log.one(PartitionsAdd(kit.OTHER, 6, ((0,),))).outcome is Outcome.UNKNOWN_TOPIC
    assert log.state.topics[kit.TOPIC].partitions[2].leader == 1
    assert log.one(kit.append({2: 1}, 0)).outcome is Outcome.APPLIED


def test_topic_steps_can_be_repeated(kit):
    log = kit.Log()
    assert log.one(TopicInit(kit.TOPIC, "orders", ((0,),), ())).outcome is Outcome.EXISTS
    assert log.one(TopicInit(kit.OTHER, "bad", ((0, 0),), ())).outcome is Outcome.INVALID
    assert log.one(TopicInit(kit.OTHER, "bad", (), ())).outcome is Outcome.INVALID
    assert log.one(TopicClose(kit.OTHER)).outcome is Outcome.UNKNOWN_TOPIC
    assert log.one(TopicClose(kit.TOPIC)).outcome is Outcome.APPLIED
    assert log.one(TopicClose(kit.TOPIC)).outcome is Outcome.EXISTS
    assert log.one(PartitionsAdd(kit.TOPIC, 3, ((0,),))).outcome is Outcome.TOPIC_CLOSED
    assert log.one(ConfigSet(kit.OTHER, ())).outcome is Outcome.UNKNOWN_TOPIC
    assert log.one(IsrChange(kit.OTHER, 0, True, 0)).outcome is Outcome.UNKNOWN_TOPIC


def test_holders_of_unknown_objects_are_refused(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 0))
    assert log.one(HoldersAdd(1, 0, 1, (3,))).outcome is Outcome.INVALID
    assert log.one(HoldersAdd(1, 1, 0, (3,))).outcome is Outcome.INVALID
    assert log.one(HoldersAdd(1, 0, 0, (2,))).outcome is Outcome.EXISTS
    assert log.one(GenerationAdvance(1, 2)).outcome is Outcome.INVALID
    assert log.one(GenerationAdvance(0, 0)).outcome is Outcome.EXISTS
    # Two coordinators advance the same store: each part that is newer counts, and neither goes back.
    for generation, floor, outcome, expected in [
        (3, 0, Outcome.APPLIED, (3, 0)),
        (3, 2, Outcome.APPLIED, (3, 2)),
        (4, 1, Outcome.APPLIED, (4, 2)),
        (4, 2, Outcome.EXISTS, (4, 2)),
        (2, 1, Outcome.EXISTS, (4, 2)),
    ]:
        assert log.one(GenerationAdvance(generation, floor)).outcome is outcome
        assert (log.state.generations.newest, log.state.generations.floor) == expected


def test_a_newer_entry_changes_nothing(kit):
    log = kit.Log()
    good = encode_entry([encode_command(kit.append({0: 1}, 0))])
    with pytest.raises(UnsupportedFormatError):
        log.state.apply(1, b"\x09" + good[1:])
    newer = encode_entry([encode_command(kit.append({0: 1}, 0)), b"\xee\x01"])
    with pytest.raises(UnsupportedFormatError):
        log.state.apply(1, newer)
    assert (log.ends(), log.state.applied_index) == ([0, 0], 0)
    with pytest.raises(ReplogError, match="folded after"):
        log.state.apply(2, good)
    assert log.state.apply(1, good)[0].outcome is Outcome.APPLIED


def test_a_command_of_the_other_ledger_is_a_no_op(kit):
    assert kit.Log().one(BrokerRegister(0, "u", None, "")).outcome is Outcome.INVALID


def test_a_full_micro_batch_folds(kit):
    """16 tasks x 64 partitions; `benchmarks/log_fold.py` measures the same."""
    log = kit.Log(partitions=64)
    sections = tuple(Section(kit.TOPIC, p, 100, 8 + p * 64, 64, p * 7919, 5, 9) for p in range(64))
    objects = tuple(
        DataObject(ObjectId(0, f"q-1-{task}-{task:032x}.arrow"), 9999, False, frozenset((0, 1, 2)), sections)
        for task in range(16)
    )
    for sequence in range(5):
        payload = encode_entry([encode_command(Append(kit.identity(sequence), "p", "c", 5, objects))])
        log.state.apply(sequence + 1, payload)
    assert log.marks() == [8000] * 64


@pytest.mark.guarantee("G9")
def test_lookups_do_not_depend_on_the_length_of_the_log(kit, monkeypatch):
    log = kit.Log(partitions=1)
    log.one(kit.append({0: 1}, 0))
    partition = log.state.topics[kit.TOPIC].partitions[0]
    section = Section(kit.TOPIC, 0, 10, 0, 8, 0, 0, 0)
    for _ in range(50_000):
        partition.add(section, 1 << ORDINAL_BITS, 0)
    looked_at = []

    def counted(kind, rows):
        rows = list(rows)
        looked_at.extend(rows)
        return tuples_of(kind, rows)

    monkeypatch.setattr(section_table, "tuples_of", counted)
    sections = log.state.sections(kit.TOPIC, 0, 250_005, 250_006)

    assert len(sections) == 1
    assert len(looked_at) == 1


@pytest.mark.case("server-5-10-delete-records-up-high")
def test_a_trim_moves_the_log_start_and_never_past_what_can_be_read(kit):
    log = kit.Log(partitions=3)
    log.one(kit.append({0: 10, 1: 5}))
    log.one(kit.append({1: 5}, 1, holders=(0,)))

    def starts():
        return [p.log_start_offset for p in log.state.topics[kit.TOPIC].partitions]

    def trim(*offsets):
        return log.one(LogStartAdvance(kit.TOPIC, LogStartReason.DELETE_RECORDS, offsets)).outcome

    assert trim((0, 4)) is Outcome.APPLIED
    assert trim((0, 4), (1, 0)) is Outcome.EXISTS
    assert trim((0, 3), (1, 5)) is Outcome.APPLIED
    assert starts() == [4, 5, 0]
    assert trim((0, 5), (1, 6)) is Outcome.INVALID, "6 is above the high watermark; nothing of the command holds"
    assert trim((7, 0)) is Outcome.INVALID
    assert starts() == [4, 5, 0]
    assert log.state.offset_for_time(kit.TOPIC, 0, 0) == 4
    assert log.one(LogStartAdvance(kit.OTHER, LogStartReason.RETENTION, ((0, 1),))).outcome is Outcome.UNKNOWN_TOPIC
    log.one(TopicClose(kit.TOPIC))
    assert trim((0, 5)) is Outcome.TOPIC_CLOSED


@pytest.mark.parametrize(
    ("start", "end", "size", "expected"),
    [
        (0, 20, 1000, (20, 160)),
        (0, 20, 160, (20, 160)),
        (0, 20, 159, (19, 159)),
        (0, 20, 40, (5, 40)),
        (3, 20, 40, (8, 40)),
        (3, 12, 1000, (12, 72)),
        (12, 20, 8, (13, 8)),
        (4, 20, 7, (4, 7)),
        (20, 20, 5, (20, 0)),
    ],
)
def test_how_far_bytes_reach(kit, start, end, size, expected):
    """Two sections of ten rows of eight bytes."""
    log = kit.Log(partitions=1)
    log.one(kit.append({0: 10}))
    log.one(kit.append({0: 10}, 1))
    assert log.state.topics[kit.TOPIC].partitions[0].end_within_bytes(start, end, size) == expected


@pytest.mark.parametrize("command", [TopicClose, LogStartAdvance])
def test_a_trim_of_many_partitions_looks_at_each_missing_copy_once(kit, command):
    """A broker that is away for a week lacks millions of objects, and all processes fold what retention writes."""
    count, partitions = 400, 100
    log = kit.Log(partitions=partitions, replicas=(0, 1), config=(("min.insync.replicas", "1"),))
    log.one(BrokerFence(1, True))
    for number in range(count):
        sent = kit.append({number % partitions: 1}, number, holders=(0,))
        item = replace(sent.objects[0], id=ObjectId(0, f"o-{number}"))
        log.one(replace(sent, objects=(item,)))
    assert len(log.state.under_replicated(include_out_of_sync=True)) == count
    trim = LogStartAdvance(kit.TOPIC, LogStartReason.RETENTION, tuple((part, 1) for part in range(partitions)))
    looks = 0

    def look(frame: object, event: str, function: object) -> None:
        nonlocal looks
        looks += event == "c_call" and getattr(function, "__name__", "") == "get"

    sys.setprofile(look)
    try:
        log.one(trim if command is LogStartAdvance else TopicClose(kit.TOPIC))
    finally:
        sys.setprofile(None)
    left = count - partitions if command is LogStartAdvance else 0
    assert len(log.state.under_replicated(include_out_of_sync=True)) == left
    assert looks < 10 * count


def test_a_log_that_is_cut_below_its_start_begins_at_its_end():
    """An unclean election may cut a section in whose middle the log began."""
    partition = partition_state.PartitionState((0, 1))
    for number in range(2):
        partition.add(Section("ab" * 16, 0, 10, 0, 10, 7, 1, 1), number, 0)
    partition.high_watermark = 20
    partition.advance_log_start(15, LogStartReason.RETENTION)
    assert partition.truncate(10) == 10
    assert partition.bounds == (10, 10) and partition.high_watermark == 10
    partition.add(Section("ab" * 16, 0, 3, 0, 10, 7, 1, 1), 2, 0)
    assert [row.base_offset for row in partition.live_sections()] == [10]
