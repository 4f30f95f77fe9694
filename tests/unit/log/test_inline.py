"""Inline objects: the ledger holds their bytes for every replica, for as long as a partition has rows in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import CorruptDataError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import decode_command, encode_command, encode_entry
from spark_replog.log.fold.object_table import INLINE_BYTES_MAX
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    DataObject,
    HoldersAdd,
    IsrChange,
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


def small(kit, rows, sequence=0, *, name="i.arrow", **more):
    """An append of one inline object; rows: {partition: count}."""
    made = kit.append(rows, sequence, holders=(), **more)
    (item,) = made.objects
    inline = bytes(index % 251 for index in range(item.size_bytes))
    return replace(made, objects=(replace(item, id=ObjectId(item.id.generation, name), inline=inline),))


@pytest.fixture
def log(kit):
    return kit.Log()


def restored(log, kit):
    frozen, other = log.state.freeze(), kit.Log()
    other.state.restore(frozen.head, frozen.pages.__getitem__)
    return other


def inline_of(log, kit, partition=0):
    return [section.object.inline for section in log.state.sections(kit.TOPIC, partition, 0, 99)]


def moved(log, kit, partition, first, end):
    """The command that puts the rows of a partition into a data object."""
    inputs = log.state.sections(kit.TOPIC, partition, first, end)
    digest = inputs_digest((source.object.id, source.start_byte, source.base_offset) for source in inputs)
    section = Section(kit.TOPIC, partition, end - first, 8, 100, 1, 0, 9)
    item = DataObject(ObjectId(0, f"c{partition}.arrow"), 200, False, frozenset((0, 1, 2)), (section,))
    return Replace(kit.TOPIC, partition, first, end, digest, (item,), (first,))


def test_rows_in_an_entry_are_readable_at_once_and_no_replica_lacks_them(log, kit):
    append = small(kit, {0: 3, 1: 2})
    assert log.one(append).outcome is Outcome.APPLIED
    assert log.marks() == [3, 2]
    (section,) = log.state.sections(kit.TOPIC, 0, 0, 3)
    assert section.object.inline == append.objects[0].inline
    assert section.object.holders == {0, 1, 2}
    assert not log.state.under_replicated(include_out_of_sync=True)
    assert log.state.inline_room_bytes == INLINE_BYTES_MAX - len(section.object.inline)


def test_a_replica_out_of_sync_does_not_lack_them_either(log, kit):
    log.one(IsrChange(None, 2, False, 1))
    log.one(small(kit, {0: 1}))
    assert not log.state.under_replicated(include_out_of_sync=True)
    assert log.one(IsrChange(None, 2, True, 2)).outcome is Outcome.APPLIED
    assert log.marks()[0] == 1


def test_they_wait_for_rows_before_them(log, kit):
    """The high watermark never passes a row that a replica lacks, whatever comes after it."""
    log.one(kit.append({0: 2}, 0, holders=(0, 1)))
    log.one(small(kit, {0: 1}, 1))
    assert (log.ends()[0], log.marks()[0]) == (3, 0)
    log.one(HoldersAdd(1, 0, 0, (2,)))
    assert log.marks()[0] == 3


@pytest.mark.parametrize("change", [{"size_bytes": 7}, {"inline": b"x"}])
def test_bytes_that_do_not_hold_the_sections_are_damage(kit, change):
    append = small(kit, {0: 2})
    broken = replace(append, objects=(replace(append.objects[0], **change),))
    with pytest.raises(CorruptDataError):
        decode_command(encode_command(broken))


def test_new_replicas_have_them_without_a_copy(log, kit):
    log.one(small(kit, {0: 2}))
    state = log.state.topics[kit.TOPIC].partitions[0]
    change = PartitionChange(kit.TOPIC, 0, state.leader_epoch, state.partition_epoch, 0, (0, 1, 2), (0, 1, 2, 7), (7,))
    assert log.one(change).outcome is Outcome.APPLIED
    assert not log.state.under_replicated(include_out_of_sync=True)
    (section,) = log.state.sections(kit.TOPIC, 0, 0, 2)
    assert section.object.holders == {0, 1, 2, 7}


def test_a_copy_that_somebody_claims_changes_nothing(log, kit):
    log.one(small(kit, {0: 2}))
    assert log.one(HoldersAdd(1, 0, 0, (5,))).outcome is Outcome.EXISTS
    assert inline_of(log, kit)[0]


def test_no_root_is_asked_for_them_when_it_is_checked(log, kit):
    log.one(kit.append({0: 1}, 0))
    log.one(small(kit, {0: 1}, 1))
    log.one(small(kit, {1: 1}, 2, name="j.arrow"))
    assert log.state.newest_objects((0, 1), 2) == {0: [], 1: []}


def trimmed(log, kit):
    log.one(LogStartAdvance(kit.TOPIC, LogStartReason.RETENTION, ((0, 3), (1, 2))))


def replaced(log, kit):
    for partition, end in ((0, 3), (1, 2)):
        assert log.one(moved(log, kit, partition, 0, end)).outcome is Outcome.APPLIED


def deleted(log, kit):
    log.one(TopicClose(kit.TOPIC))


@pytest.mark.parametrize("end", [trimmed, replaced, deleted])
@pytest.mark.parametrize("begins_again", [False, True])
def test_the_bytes_go_with_the_last_row(log, kit, end, begins_again):
    log.one(small(kit, {0: 3, 1: 2}))
    log = restored(log, kit) if begins_again else log
    assert log.state.inline_room_bytes < INLINE_BYTES_MAX
    end(log, kit)
    assert log.state.inline_room_bytes == INLINE_BYTES_MAX
    assert not any(inline_of(log, kit) + inline_of(log, kit, 1))
    assert not log.state.inline_spans()


def test_the_bytes_stay_while_one_partition_has_rows_in_them(log, kit):
    append = small(kit, {0: 3, 1: 2})
    log.one(append)
    log.one(moved(log, kit, 0, 0, 3))
    log.one(LogStartAdvance(kit.TOPIC, LogStartReason.DELETE_RECORDS, ((1, 1),)))
    assert inline_of(log, kit) == [b""]
    assert inline_of(log, kit, 1) == [append.objects[0].inline]


def test_the_bytes_go_with_an_append_that_is_cut(log, kit):
    log.one(kit.append({0: 2}, 0, holders=(0, 1)))
    log.one(small(kit, {0: 1}, 1))
    log.one(Truncate(log.state.applied_index - 2))
    assert (log.ends()[0], log.state.inline_room_bytes) == (0, INLINE_BYTES_MAX)


def test_the_bytes_go_with_rows_that_an_unclean_election_cuts(kit):
    log = kit.Log(config=(("unclean.leader.election.enable", "true"),))
    log.one(kit.append({0: 2}, 0, holders=(0, 1)))
    log.one(small(kit, {0: 1}, 1))
    partition = log.state.topics[kit.TOPIC].partitions[0]
    where = (kit.TOPIC, 0, partition.leader_epoch, partition.partition_epoch)
    result = log.one(PartitionChange(*where, 2, (2,), (0, 1, 2), (), (), is_unclean=True))
    assert result.outcome is Outcome.APPLIED, result
    assert (log.ends()[0], log.state.inline_room_bytes) == (0, INLINE_BYTES_MAX)


def test_a_snapshot_holds_them_and_its_pages_do_not(log, kit):
    append = small(kit, {0: 3, 1: 2})
    log.one(append)
    for sequence in range(1, 9):
        log.one(kit.append({0: 1}, sequence))
    other = restored(log, kit)
    assert inline_of(other, kit)[0] == append.objects[0].inline
    assert inline_of(other, kit, 1) == [append.objects[0].inline]
    assert other.state.inline_spans() == log.state.inline_spans() == {(kit.TOPIC, 0): (1, 0), (kit.TOPIC, 1): (1, 0)}
    assert log.state.freeze().head == other.state.freeze().head


def test_an_object_in_an_entry_is_no_file_of_its_generation_and_costs_no_copy(log, kit):
    log.one(small(kit, {0: 1}))
    assert log.state.generations.object_count == 0
    assert log.state.objects.recent_writes(9)[:2] == (1, 1)
    assert log.state.objects.recent_writes(9).copy_count == 0


def test_processes_agree_whatever_snapshot_they_began_with(log, kit):
    log.one(small(kit, {0: 3, 1: 2}))
    other = restored(log, kit)
    for command in (moved(log, kit, 0, 0, 3), small(kit, {1: 4}, 1, name="k.arrow"), HoldersAdd(1, 0, 0, (1,))):
        payload = encode_entry([encode_command(command)])
        index = log.state.applied_index + 1
        assert log.state.apply(index, payload) == other.state.apply(index, payload)
    assert isinstance(other.state, TopicLedgerState)
    assert log.state.freeze().head == other.state.freeze().head
