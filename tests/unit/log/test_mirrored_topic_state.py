"""The fold of mirrored topics: rows at given offsets, who may append, and what older releases see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import UnsupportedFormatError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import MIRROR_TYPES, decode_command, encode_command
from spark_replog.log.fold.entry_fold import FEATURE_LEVEL_MIRROR, EntryFold
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    HoldersAdd,
    IdentityKind,
    LogExtend,
    LogStartAdvance,
    LogStartReason,
    MirrorAdvance,
    MirrorAppend,
    MirrorSet,
    Outcome,
    PartitionChange,
    PartitionsAdd,
    Truncate,
    inputs_digest,
)
from tests.unit.log import conftest as kit

SOURCE = "kafka:c/orders/1"
IDENTITY = kit.identity(0, producer="mirror", run="p", kind=IdentityKind.ONE_SHOT)


def mirrored(rows, follows, ends, *, holders=(0, 1, 2), name="o.arrow", is_append_time=False, stores=True):
    """rows: {partition: count}, one section each."""
    item = replace(kit.data_object(rows, holders=holders, name=name), has_offsets=stores)
    head = IDENTITY, "User:a", "c", 1000, (item,)
    return MirrorAppend(*head, tuple(follows), tuple(ends), is_append_time)


@pytest.fixture
def log():
    made = kit.Log()
    assert made.one(MirrorSet(kit.TOPIC, SOURCE, (100, 7))).outcome is Outcome.APPLIED
    return made


def spans(log, partition):
    rows = log.state.topics[kit.TOPIC].partitions[partition].live_sections()
    return [(row.base_offset, row.end_offset, row.row_count) for row in rows]


def again(log):
    """Return a log whose state was read from a snapshot."""
    other = kit.Log(topics=())
    frozen = log.state.freeze()
    log.state.adopted(frozen)
    pages = frozen.pages
    other.state.restore(frozen.head, pages.__getitem__)
    return other


def test_it_begins_where_the_source_begins(log):
    bounds = [(p.log_start_offset, p.log_end_offset, p.high_watermark) for p in log.state.topics[kit.TOPIC].partitions]
    assert bounds == [(100, 100, 100), (7, 7, 7)]


@pytest.mark.guarantee("G1")
def test_rows_keep_their_offsets_and_sections_span_the_gaps(log):
    result = log.one(mirrored({0: 3, 1: 2}, (100, 7), (110, 9)))
    assert result.outcome is Outcome.APPLIED
    assert result.base_offsets == {(kit.TOPIC, 0): (100, 110), (kit.TOPIC, 1): (7, 9)}
    assert log.one(mirrored({1: 1}, (9,), (20,), name="p.arrow")).outcome is Outcome.APPLIED
    assert (spans(log, 0), spans(log, 1)) == ([(100, 110, 3)], [(7, 9, 2), (9, 20, 1)])
    assert log.ends() == log.marks() == [110, 20]


@pytest.mark.guarantee("G5")
def test_the_logs_end_is_the_position(log):
    first = mirrored({0: 3}, (100,), (110,))
    assert log.one(first).outcome is Outcome.APPLIED
    for command, outcome in (
        (first, Outcome.DUPLICATE),
        (mirrored({0: 2}, (100,), (105,)), Outcome.DUPLICATE),  # of another mirror, with another cut
        (mirrored({0: 9}, (100,), (120,)), Outcome.NOT_NEXT),
        (mirrored({0: 2}, (115,), (120,)), Outcome.NOT_NEXT),
        (mirrored({0: 3, 1: 1}, (100, 7), (110, 9)), Outcome.NOT_NEXT),  # half of it is there
        (mirrored({0: 11}, (110,), (120,)), Outcome.INVALID),  # more rows than offsets
        (mirrored({7: 1}, (0,), (1,)), Outcome.INVALID),
        (mirrored({0: 1}, (110,), (2**63 - 1,)), Outcome.INVALID),
    ):
        assert log.one(command).outcome is outcome, command
    assert log.ends() == [110, 7]


def test_only_the_mirror_appends_until_the_topic_is_promoted(log):
    log.one(mirrored({0: 3}, (100,), (110,)))
    assert log.one(kit.append({0: 1})).outcome is Outcome.MIRRORED
    assert log.one(MirrorSet(kit.TOPIC, "kafka:c/other/2")).outcome is Outcome.REFUSED
    assert log.one(MirrorSet(kit.TOPIC, SOURCE)).outcome is Outcome.EXISTS
    assert log.one(MirrorSet(kit.TOPIC, "")).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 4, 1: 1})).base_offsets == {(kit.TOPIC, 0): (110, 114), (kit.TOPIC, 1): (7, 8)}
    assert log.one(mirrored({0: 3}, (114,), (120,))).outcome is Outcome.MIRRORED
    assert log.one(mirrored({0: 3}, (100,), (110,))).outcome is Outcome.DUPLICATE, "a late repetition"
    assert log.one(MirrorAdvance(kit.TOPIC, ((1, 8, 9),))).outcome is Outcome.REFUSED
    assert log.one(MirrorSet(kit.TOPIC, SOURCE)).outcome is Outcome.REFUSED, "it has rows of others"


def test_an_ordinary_topic_takes_nothing_from_a_mirror():
    log = kit.Log()
    assert log.one(mirrored({0: 3}, (0,), (10,))).outcome is Outcome.MIRRORED
    assert log.one(MirrorSet(kit.TOPIC, "")).outcome is Outcome.EXISTS
    log.one(kit.append({0: 1}))
    assert log.one(MirrorSet(kit.TOPIC, SOURCE)).outcome is Outcome.REFUSED


def test_ends_of_partitions_without_rows_move(log):
    log.one(PartitionsAdd(kit.TOPIC, 3, ((0, 1, 2),)))
    assert log.one(MirrorAdvance(kit.TOPIC, ((0, 100, 120), (2, 0, 50)))).outcome is Outcome.APPLIED
    assert log.one(MirrorAdvance(kit.TOPIC, ((0, 100, 120), (2, 0, 50)))).outcome is Outcome.EXISTS
    assert log.ends() == [120, 7, 50]
    log.one(mirrored({0: 1}, (120,), (121,)))
    for ends in (((0, 121, 130),), ((1, 6, 9),), ((1, 7, 9), (2, 49, 60))):
        assert log.one(MirrorAdvance(kit.TOPIC, ends)).outcome is Outcome.REFUSED, ends
    for ends in (((5, 0, 9),), ((1, 7, 20), (1, 7, 10))):
        assert log.one(MirrorAdvance(kit.TOPIC, ends)).outcome is Outcome.INVALID, ends
    assert log.ends() == [121, 7, 50]


def extension(log, end, *, partition=0, holders=(0, 1, 2), rows=3, first=100, follows=110):
    row = list(log.state.sections(kit.TOPIC, partition, first, follows))[-1]
    inputs = inputs_digest([(row.object.id, row.start_byte, row.base_offset)])
    output = replace(kit.data_object({partition: rows}, holders=holders, name="x.arrow"), has_offsets=True)
    return LogExtend(kit.TOPIC, partition, first, follows, inputs, (output,), (first,), end)


def test_the_last_section_spans_what_has_no_rows(log):
    log.one(mirrored({0: 3}, (100,), (110,)))
    command = extension(log, 125)
    assert log.one(command).outcome is Outcome.APPLIED
    assert (spans(log, 0), log.ends()[0], log.marks()[0]) == ([(100, 125, 3)], 125, 125)
    assert log.one(command).outcome is Outcome.REFUSED, "other sections by now"
    assert log.one(mirrored({0: 1}, (125,), (126,), name="p.arrow")).outcome is Outcome.APPLIED
    assert spans(log, 0) == [(100, 125, 3), (125, 126, 1)]


def test_an_end_does_not_move_over_rows_that_may_be_cut(log):
    log.one(mirrored({0: 3}, (100,), (110,), holders=(0,)))
    assert log.marks()[0] == 100
    assert log.one(extension(log, 125)).outcome is Outcome.REFUSED
    index = log.state.applied_index
    log.one(mirrored({1: 3}, (7,), (10,), holders=(0,), name="p.arrow"))
    assert log.one(Truncate(index)).outcome is Outcome.APPLIED
    assert log.ends() == [110, 7]
    assert log.one(Truncate(index - 2)).outcome is Outcome.APPLIED
    assert log.ends() == log.marks() == [100, 7], "back to where the source began"
    assert log.one(mirrored({0: 3}, (100,), (110,), name="q.arrow")).outcome is Outcome.APPLIED


def test_an_end_does_not_move_before_an_append_is_over_of_which_its_rows_were_cut():
    log = kit.Log(config=(("unclean.leader.election.enable", "true"),))
    log.one(MirrorSet(kit.TOPIC, SOURCE, (100, 7)))
    log.one(mirrored({0: 3, 1: 3}, (100, 7), (110, 10), holders=(0,)))
    index = log.state.applied_index
    change = PartitionChange(kit.TOPIC, 0, 0, 0, 1, (1,), (0, 1, 2), is_unclean=True)
    assert log.one(change).outcome is Outcome.APPLIED
    assert log.ends() == [100, 10] and log.marks() == [100, 7]
    advance = MirrorAdvance(kit.TOPIC, ((0, 100, 120),))
    assert log.one(advance).outcome is Outcome.REFUSED
    log.one(HoldersAdd(index, 0, 0, (1, 2)))
    assert log.marks() == [100, 10]
    assert log.one(advance).outcome is Outcome.APPLIED
    assert log.ends() == log.marks() == [120, 10]


@pytest.mark.parametrize("is_paged", [False, True])
def test_a_snapshot_keeps_all_of_it(log, is_paged):
    log.one(mirrored({0: 3}, (100,), (110,), is_append_time=True))
    log.one(extension(log, 125))
    other = again(log)
    if is_paged:  # the extended section is in a page by then
        log.one(mirrored({0: 1}, (125,), (127,), name="p.arrow"))
        other = again(log)
    assert other.state.feature_level == FEATURE_LEVEL_MIRROR
    assert other.state.topics[kit.TOPIC].mirror == SOURCE
    assert spans(other, 0) == spans(log, 0) and other.ends() == log.ends()
    assert next(row.timestamp_type for row in other.state.topics[kit.TOPIC].partitions[0].live_sections()) == 2
    assert other.one(kit.append({0: 1})).outcome is Outcome.MIRRORED
    end = log.ends()[0]
    assert other.one(mirrored({0: 1}, (end,), (end + 1,), name="r.arrow")).outcome is Outcome.APPLIED


def test_a_later_extension_replaces_a_section_in_a_page(log):
    log.one(mirrored({0: 3}, (100,), (110,)))
    other = again(log)
    assert other.one(extension(other, 125)).outcome is Outcome.APPLIED
    third = again(other)
    assert spans(third, 0) == spans(other, 0) == [(100, 125, 3)]
    assert third.one(LogStartAdvance(kit.TOPIC, LogStartReason.RETENTION, ((0, 125),))).outcome is Outcome.APPLIED
    assert third.one(MirrorAdvance(kit.TOPIC, ((0, 125, 130),))).outcome is Outcome.APPLIED
    assert third.ends()[0] == 130


def test_a_release_that_knows_no_mirrors_refuses_the_ledger(log, monkeypatch):
    assert log.state.feature_level == FEATURE_LEVEL_MIRROR
    head = log.state.freeze().head
    monkeypatch.setattr(EntryFold, "newest_level", FEATURE_LEVEL_MIRROR - 1)
    with pytest.raises(UnsupportedFormatError, match="feature level 2"):
        TopicLedgerState("L").restore(head, {}.__getitem__)


def test_a_ledger_without_mirrors_stays_at_the_first_level():
    log = kit.Log()
    log.one(kit.append({0: 1}))
    assert log.state.feature_level == FEATURE_LEVEL_MIRROR - 1
    assert log.state.encode_feature_set() is None


def test_commands_survive_the_codec(log):
    log.one(mirrored({0: 3}, (100,), (110,)))
    commands = (
        mirrored({0: 3, 1: 2}, (100, 7), (110, 2**40), is_append_time=True),
        extension(log, 2**50),
        MirrorSet(kit.TOPIC, SOURCE, (1, 2**40)),
        MirrorAdvance(kit.TOPIC, ((0, 1, 2),)),
    )
    assert {type(command) for command in commands} == set(MIRROR_TYPES)
    for command in commands:
        assert decode_command(encode_command(command)) == command
    objects = tuple(kit.data_object({0: n}, name=f"o{n}.arrow") for n in (2, 3))
    two = MirrorAppend(IDENTITY, "User:a", "c", 1, objects, (5,), (9, 30))
    assert two.spans() == [(5, 9), (9, 30)] and decode_command(encode_command(two)) == two
    assert isinstance(two, Append) and two.objects[0].id == ObjectId(0, "o2.arrow")
