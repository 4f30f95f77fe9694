"""`Replace`: nothing changes for a reader, of two compactors one wins, and no broker loses a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.ids import ObjectId
from spark_replog.log.model import (
    BrokerFence,
    ConfigSet,
    DataObject,
    GenerationAdvance,
    HoldersAdd,
    IsrChange,
    LogClean,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    PartitionChange,
    Replace,
    Section,
    TopicClose,
    Truncate,
    inputs_digest,
)

ALL = frozenset((0, 1, 2))


def replacement(
    log, kit, first, end, *, bases=None, rows=None, name="c.arrow", holders=ALL, generation=0, times=(0, 9)
):
    """The command of a compactor that saw the log as it is now."""
    inputs = log.state.sections(kit.TOPIC, 0, first, end)
    digest = inputs_digest((source.object.id, source.start_byte, source.base_offset) for source in inputs)
    bases = bases or [first]
    ends = [*bases[1:], end]
    rows = rows or [after - base for base, after in zip(bases, ends, strict=True)]
    sections = tuple(Section(kit.TOPIC, 0, count, 8 + 100 * at, 100, at, *times) for at, count in enumerate(rows))
    has_gaps = any(count < after - base for count, base, after in zip(rows, bases, ends, strict=True))
    item = DataObject(ObjectId(generation, name), 1000, False, holders, sections, has_gaps)
    return Replace(kit.TOPIC, 0, first, end, digest, (item,), tuple(bases))


@pytest.fixture
def log(kit):
    """Partition 0: offsets 0 to 2, 2 to 5, 5 to 9, 9 to 10; all readable."""
    log = kit.Log()
    for sequence, count in enumerate((2, 3, 4, 1)):
        log.one(kit.append({0: count, 1: 1}, sequence, time_ms=1000 + sequence))
    return log


def spans(log, kit, partition=0, start=0, end=100):
    rows = log.state.sections(kit.TOPIC, partition, start, end)
    return [(row.base_offset, row.end_offset, row.row_count, row.object.id.name) for row in rows]


def test_sections_become_one(kit, log):
    before = log.state.sections(kit.TOPIC, 1, 0, 9)
    assert log.one(replacement(log, kit, 2, 9)).outcome is Outcome.APPLIED
    assert spans(log, kit) == [(0, 2, 2, "o.arrow"), (2, 9, 7, "c.arrow"), (9, 10, 1, "o.arrow")]
    assert log.state.sections(kit.TOPIC, 1, 0, 9) == before
    assert log.ends() == log.marks() == [10, 4]
    assert log.one(kit.append({0: 5}, 9)).base_offsets == {(kit.TOPIC, 0): (10, 15)}
    assert log.one(replacement(log, kit, 0, 15, bases=[0, 8], name="d")).outcome is Outcome.APPLIED
    assert spans(log, kit) == [(0, 8, 8, "d"), (8, 15, 7, "d")]


def test_sections_may_hold_fewer_rows_than_they_span(kit, log):
    assert log.one(replacement(log, kit, 0, 9, bases=[0, 4], rows=[1, 2])).outcome is Outcome.APPLIED
    assert spans(log, kit) == [(0, 4, 1, "c.arrow"), (4, 9, 2, "c.arrow"), (9, 10, 1, "o.arrow")]
    assert spans(log, kit, start=3, end=4) == [(0, 4, 1, "c.arrow")]
    assert log.state.sections(kit.TOPIC, 0, 0, 1)[0].object.has_offsets
    partition = log.state.topics[kit.TOPIC].partitions[0]
    assert partition.end_within_bytes(0, 10, 100) == (4, 100)


def test_times_follow_the_rows_that_are_left(kit, log):
    log.one(replacement(log, kit, 0, 5, rows=[1], times=(1, 2)))
    assert log.state.offset_for_time(kit.TOPIC, 0, 2) == 0
    assert log.state.offset_for_time(kit.TOPIC, 0, 3) == 5
    log.one(replacement(log, kit, 5, 10, name="d", rows=[5], times=(1, 2)))
    assert log.state.offset_for_time(kit.TOPIC, 0, 3) is None


def test_of_two_compactors_one_wins(kit, log):
    first, second = replacement(log, kit, 0, 9), replacement(log, kit, 2, 9, name="d")
    assert [result.outcome for result in log.entry(first, second, first)] == [
        Outcome.APPLIED,
        Outcome.REFUSED,
        Outcome.REFUSED,
    ]
    assert spans(log, kit) == [(0, 9, 9, "c.arrow"), (9, 10, 1, "o.arrow")]


@pytest.mark.parametrize(("first", "end"), [(1, 5), (0, 4), (0, 11), (10, 11), (2, 2)])
def test_a_range_that_no_sections_fill_exactly(kit, log, first, end):
    command = replacement(log, kit, 0, 5)
    section = replace(command.outputs[0], sections=(command.outputs[0].sections[0]._replace(row_count=1),))
    section = replace(section, has_offsets=True)
    command = replace(command, first_offset=first, end_offset=end, base_offsets=(first,), outputs=(section,))
    expected = Outcome.INVALID if first == end else Outcome.REFUSED
    assert log.one(command).outcome is expected
    assert len(spans(log, kit)) == 4


def test_rows_that_are_not_readable_yet_stay(kit, log):
    log.one(kit.append({0: 2}, 9, holders=(0,)))
    assert log.marks()[0] == 10
    assert log.one(replacement(log, kit, 9, 12)).outcome is Outcome.REFUSED


def test_a_truncation_cuts_only_what_came_behind(kit, log):
    stable = log.state.applied_index
    log.one(kit.append({0: 2, 1: 3}, 9, holders=(0,)))
    assert log.one(replacement(log, kit, 0, 9)).outcome is Outcome.APPLIED
    assert log.one(Truncate(stable)).outcome is Outcome.APPLIED
    assert spans(log, kit) == [(0, 9, 9, "c.arrow"), (9, 10, 1, "o.arrow")]
    log.one(kit.append({0: 1}, 10))
    assert log.ends() == [11, 4]
    assert [name for *_, name in spans(log, kit)] == ["c.arrow", "o.arrow", "o.arrow"]


def test_an_unclean_leader_cuts_a_segment_as_a_whole(kit, log):
    log.one(ConfigSet(kit.TOPIC, (("unclean.leader.election.enable", "true"), ("min.insync.replicas", "1"))))
    log.one(IsrChange(None, 2, False, 5))
    log.one(kit.append({0: 4}, 9, holders=(0, 1)))
    log.one(replacement(log, kit, 9, 14, bases=[9, 12]))
    log.one(kit.append({0: 4}, 10, holders=(0, 1)))
    partition = log.state.topics[kit.TOPIC].partitions[0]
    epochs = partition.leader_epoch, partition.partition_epoch
    log.one(PartitionChange(kit.TOPIC, 0, *epochs, 2, (2,), (0, 1, 2), is_unclean=True))
    assert spans(log, kit, start=9) == [(9, 12, 3, "c.arrow"), (12, 14, 2, "c.arrow")]
    assert log.ends() == [14, 4]


@pytest.mark.parametrize(("start", "outcome"), [(1, Outcome.APPLIED), (2, Outcome.REFUSED), (3, Outcome.REFUSED)])
def test_a_log_start_inside(kit, log, start, outcome):
    """A section with no row above the log start may be gone from a table already: the answer never depends on it."""
    command = replacement(log, kit, 0, 5)
    log.one(LogStartAdvance(kit.TOPIC, LogStartReason.RETENTION, ((0, start),)))
    assert log.one(command).outcome is outcome


@pytest.mark.parametrize("holders", [(0, 1), (1, 2), ()])
def test_no_broker_loses_its_copy(kit, log, holders):
    log.one(IsrChange(None, 0, False, 5))
    log.one(BrokerFence(2, True))
    assert log.state.topics[kit.TOPIC].partitions[0].isr == (1,)
    result = log.one(replacement(log, kit, 0, 5, holders=frozenset(holders)))
    assert (result.outcome, "would lose" in result.detail) == (Outcome.REFUSED, True)
    assert log.one(replacement(log, kit, 0, 5)).outcome is Outcome.APPLIED


def test_a_replica_without_the_rows_fetches_the_segment_instead(kit):
    log = kit.Log(config=(("min.insync.replicas", "2"),))
    log.one(IsrChange(None, 2, False, 5))
    for sequence in range(2):
        log.one(kit.append({0: 2, 1: 1}, sequence, holders=(0, 1)))
    held = frozenset((0, 1))
    assert log.one(replacement(log, kit, 0, 4, holders=held)).outcome is Outcome.APPLIED
    index = log.state.applied_index
    wanted = log.state.under_replicated(include_out_of_sync=True)
    assert [(copy.entry_index, copy.object.id.name, copy.missing) for copy in wanted] == [
        (1 + 1, "o.arrow", (2,)),  # partition 1 still has rows there
        (1 + 2, "o.arrow", (2,)),
        (index, "c.arrow", (2,)),
    ]
    assert [section.partition for section in wanted[0].sections] == [1]
    assert log.one(replacement(log, kit, 0, 4, holders=held, name="d")).outcome is Outcome.APPLIED
    names = [copy.object.id.name for copy in log.state.under_replicated(include_out_of_sync=True)]
    assert names == ["o.arrow", "o.arrow", "d"]
    assert log.one(HoldersAdd(log.state.applied_index, 0, 0, (2,))).outcome is Outcome.APPLIED
    wanted = log.state.under_replicated(include_out_of_sync=True)
    lacking = [(copy.entry_index, [section.partition for section in copy.sections]) for copy in wanted]
    assert lacking == [(2, [1]), (3, [1])]  # of partition 0 nothing, of partition 1 all


def test_what_is_too_old_closed_or_elsewhere(kit, log):
    command = replacement(log, kit, 0, 5)
    other = replace(command.outputs[0], sections=(command.outputs[0].sections[0]._replace(topic_id=kit.OTHER),))
    assert log.one(replace(command, topic_id=kit.OTHER, outputs=(other,))).outcome is Outcome.UNKNOWN_TOPIC
    assert log.one(replace(command, partition=7)).outcome is Outcome.INVALID
    log.one(GenerationAdvance(3, 2))
    assert log.one(command).outcome is Outcome.BELOW_FLOOR
    assert log.one(replacement(log, kit, 0, 5, generation=2)).outcome is Outcome.APPLIED
    log.one(TopicClose(kit.TOPIC))
    assert log.one(replacement(log, kit, 0, 9, generation=2)).outcome is Outcome.TOPIC_CLOSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_offsets": (0, 0)},
        {"base_offsets": (1, 3)},
        {"base_offsets": (0, 5)},
        {"base_offsets": (0,)},
        {"base_offsets": ()},
        {"base_offsets": (0, 4)},
        {"partition": 1},
        {"outputs": ()},
        {"end_offset": 0},
    ],
)
def test_outputs_that_contradict_themselves(kit, log, wrong):
    good = replacement(log, kit, 0, 5, bases=[0, 2])
    assert log.one(replace(good, **wrong)).outcome is Outcome.INVALID
    section = good.outputs[0].sections[0]._replace(row_count=1)
    short = replace(good.outputs[0], sections=(section, *good.outputs[0].sections[1:]))
    assert log.one(replace(good, outputs=(short,))).outcome is Outcome.INVALID  # a gap, and no stored offsets
    twice = (replace(good.outputs[0], sections=good.outputs[0].sections[:1]),) * 2
    assert log.one(replace(good, outputs=twice)).outcome is Outcome.INVALID
    assert log.one(replace(good, outputs=(replace(short, has_offsets=True),))).outcome is Outcome.APPLIED


def test_append_times_stay_with_the_rows(kit):
    log = kit.Log(config=(("message.timestamp.type", "LogAppendTime"),))
    for sequence in range(2):
        log.one(kit.append({0: 2}, sequence, time_ms=5000 + sequence))
    log.one(ConfigSet(kit.TOPIC, (("message.timestamp.type", None),)))
    log.one(kit.append({0: 2}, 3, time_ms=6000))
    assert log.one(replacement(log, kit, 0, 4, times=(5000, 5001))).outcome is Outcome.APPLIED
    assert [section.timestamp_type for section in log.state.sections(kit.TOPIC, 0, 0, 9)] == [2, 0]
    assert log.state.sections(kit.TOPIC, 0, 0, 1)[0].append_time_ms == 5001


def test_how_far_a_log_is_clean(kit, log):
    partition = log.state.topics[kit.TOPIC].partitions[0]
    assert log.one(LogClean(kit.TOPIC, 0, 5, 100)).outcome is Outcome.APPLIED
    assert log.one(LogClean(kit.TOPIC, 0, 5, 200)).outcome is Outcome.EXISTS
    assert log.one(LogClean(kit.TOPIC, 0, 11, 200)).outcome is Outcome.INVALID
    assert log.one(LogClean(kit.TOPIC, 7, 1, 200)).outcome is Outcome.INVALID
    assert log.one(LogClean(kit.OTHER, 0, 1, 200)).outcome is Outcome.UNKNOWN_TOPIC
    assert log.one(LogClean(kit.TOPIC, 0, 9, 50)).outcome is Outcome.APPLIED
    assert partition.clean_points == ((5, 100), (9, 100))  # a clock that went back shortens no wait
    log.one(kit.append({0: 100}, 9))
    for number in range(20):
        log.one(LogClean(kit.TOPIC, 0, 10 + number, 1000 * (number + 1) ** 2))
    assert len(partition.clean_points) == 16
    assert partition.clean_points[-1] == (29, 400_000)
    offsets, times = zip(*partition.clean_points, strict=True)
    assert list(offsets) == sorted(offsets)
    assert list(times) == sorted(times)
    first = offsets[0]
    log.one(kit.append({0: 1}, 10))
    partition.truncate(110)
    assert partition.clean_points[-1] == (29, 400_000)
    partition.truncate(10)
    assert partition.clean_points == (((first, times[0]),) if first <= 10 else ())


def test_a_snapshot_keeps_how_far_a_log_is_clean(kit, log):
    log.one(LogClean(kit.TOPIC, 0, 5, 100))
    log.one(LogClean(kit.TOPIC, 0, 9, 200))
    frozen = log.state.freeze()
    other = kit.Log()
    other.state.restore(frozen.head, frozen.pages.__getitem__)
    assert other.state.topics[kit.TOPIC].partitions[0].clean_points == ((5, 100), (9, 200))
