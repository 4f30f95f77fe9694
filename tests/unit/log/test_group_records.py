"""Kafka's schemas of `__consumer_offsets`, byte by byte, and the fold of the records."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupMetadata,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    decode_offset_value,
    decode_record,
    encode_record,
)
from spark_replog.log.fold.group_state import WRITERS_KEPT
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import GroupRecords, Outcome, TopicClose, TopicInit

TOPIC = "ab" * 16
SOURCE = "cd" * 16


def member(member_id, instance_id=""):
    return GroupMember(member_id, instance_id, "app", 45_000, 300_000, True, (("range", b"s"),), b"a")


def metadata(*members, generation=1, phase=GroupPhase.STABLE):
    return GroupMetadata("consumer", generation, "range", members[0].member_id if members else "", phase, 5, members)


class Ledger:
    """The fold of one ledger that holds `__consumer_offsets`."""

    def __init__(self):
        self.state = TopicLedgerState("L")
        self.payloads = []
        self.sequence = 0
        self.apply(TopicInit(TOPIC, "__consumer_offsets", ((0,),), ()))

    def apply(self, command):
        self.payloads.append(encode_entry([encode_command(command)]))
        return self.state.apply(self.state.applied_index + 1, self.payloads[-1])[0]

    def commit(self, *records, group="g", member_id="", instance_id="", generation=-1, revision=-1, sequence=None):
        self.sequence += 1
        number = self.sequence if sequence is None else sequence
        return self.apply(
            GroupRecords(TOPIC, group, "w", number, member_id, instance_id, generation, revision, 7, records)
        )

    def offsets(self, group="g"):
        group_state = self.state.groups.get(group)
        return {} if group_state is None else {key: value.offset for key, value in group_state.offsets.items()}


@pytest.fixture
def ledger():
    return Ledger()


def offset(number, partition=0, group="g", topic="orders"):
    return OffsetRecord(group, topic, partition, None if number is None else OffsetAndMetadata(number))


@pytest.mark.case("consumer-key-value-schemas-versions-0-4")
def test_keys_are_kafkas_byte_for_byte():
    key, value = encode_record(offset(None, 3))
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x06orders" + b"\x00\x00\x00\x03"
    assert value is None
    assert encode_record(GroupRecord("g", None)) == (b"\x00\x02\x00\x01g", None)


def test_an_offset_is_written_in_the_version_that_names_the_topics_id():
    record = OffsetRecord("g", "orders", 0, OffsetAndMetadata(5, 2, "m", 9, None, SOURCE))
    assert encode_record(record)[1] == (
        struct.pack(">hqi", 4, 5, 2) + b"\x02m" + struct.pack(">q", 9) + b"\x01\x00\x10" + bytes.fromhex(SOURCE)
    )


@pytest.mark.case("consumer-key-value-schemas-versions-0-4")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (struct.pack(">hq", 0, 5) + b"\x00\x01m" + struct.pack(">q", 9), OffsetAndMetadata(5, -1, "m", 9)),
        (struct.pack(">hq", 1, 5) + b"\x00\x00" + struct.pack(">qq", 9, 99), OffsetAndMetadata(5, -1, "", 9, 99)),
        (struct.pack(">hq", 2, 5) + b"\x00\x00" + struct.pack(">q", 9), OffsetAndMetadata(5, -1, "", 9)),
        (struct.pack(">hqi", 3, 5, 2) + b"\x00\x00" + struct.pack(">q", 9), OffsetAndMetadata(5, 2, "", 9)),
        (struct.pack(">hqi", 4, 5, 2) + b"\x01" + struct.pack(">q", 9) + b"\x00", OffsetAndMetadata(5, 2, "", 9)),
        (
            struct.pack(">hqi", 4, 5, 2) + b"\x01" + struct.pack(">q", 9) + b"\x01\x07\x01x",
            OffsetAndMetadata(5, 2, "", 9),
        ),
    ],
    ids=["v0", "v1", "v2", "v3", "v4", "v4 with a tag of a newer release"],
)
def test_every_version_of_an_offset_is_read(data, expected):
    assert decode_offset_value(data) == expected


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"\x00\x03\x00\x01g", None, UnsupportedFormatError),
        (b"\x00\x02\x00\x01g", b"\x00\x65", UnsupportedFormatError),
        (b"\x00\x01\x00\x01g", None, CorruptDataError),
        (b"\x00\x02\x00\x01gg", None, CorruptDataError),
        (b"\x00\x02\x00\x01\xff", None, CorruptDataError),
    ],
)
def test_unknown_versions_and_damage_are_refused(key, value, error):
    with pytest.raises(error):
        decode_record(key, value)


texts = st.text(max_size=8)
values = st.builds(
    OffsetAndMetadata,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    texts,
    st.integers(-1, 2**62),
    st.none(),
    st.sampled_from(["", SOURCE]),
)


@given(st.builds(OffsetRecord, texts, texts, st.integers(0, 2**31 - 1), st.none() | values))
def test_offsets_come_back(record):
    assert decode_record(*encode_record(record)) == record


def test_groups_come_back():
    record = GroupRecord("g", metadata(member("m-1"), member("m-2", "till"), generation=4))
    assert decode_record(*encode_record(record)) == record


@pytest.mark.case("kafka-124c")
def test_the_latest_commit_of_a_key_holds_and_going_back_is_allowed(ledger):
    ledger.commit(offset(10), offset(7, 1))
    ledger.commit(offset(4))
    assert ledger.offsets() == {("orders", 0): 4, ("orders", 1): 7}


@pytest.mark.case("kafka-124")
def test_a_tombstone_removes_an_offset(ledger):
    ledger.commit(offset(10), offset(7, 1))
    ledger.commit(offset(None))
    assert ledger.offsets() == {("orders", 1): 7}


@pytest.mark.case("kafka-124b")
def test_replay_of_the_log_gives_the_same_map(ledger):
    for number in range(50):
        ledger.commit(offset(number, number % 4, f"g{number % 3}"), group=f"g{number % 3}")
    ledger.commit(offset(None, 1, "g1"), group="g1")
    again = TopicLedgerState("L")
    for index, payload in enumerate(ledger.payloads):
        again.apply(index, payload)
    assert again.groups.groups == ledger.state.groups.groups
    assert len(again.groups.groups) == 3


def test_memory_is_that_of_the_keys_however_often_they_are_committed(ledger):
    for number in range(300):
        ledger.commit(offset(number))
    state = ledger.state.groups.get("g")
    assert (len(state.offsets), len(state.writers)) == (1, 1)
    for number in range(2 * WRITERS_KEPT):
        ledger.apply(GroupRecords(TOPIC, "g", f"w{number}", 0, "", "", -1, -1, 7, (offset(number),)))
    assert len(state.writers) == WRITERS_KEPT


def test_of_many_writers_those_are_kept_that_wrote_last(ledger):
    def write(writer, sequence, number):
        return ledger.apply(GroupRecords(TOPIC, "g", writer, sequence, "", "", -1, -1, 7, (offset(number),)))

    write("first", 0, 1)
    for number in range(WRITERS_KEPT - 1):
        write(f"w{number}", 0, 1)
    write("first", 1, 2)
    write("one too many", 0, 3)
    assert write("first", 1, 2).outcome is Outcome.DUPLICATE
    assert list(ledger.state.groups.get("g").writers)[:2] == ["w1", "w2"]
    assert ledger.offsets() == {("orders", 0): 3}


def test_a_record_of_another_group_is_passed_over(ledger):
    ledger.apply(GroupRecords(TOPIC, "g", "w", 0, "", "", -1, -1, 7, (offset(5, 0, "other"), offset(6, 1))))
    assert ledger.state.groups.get("other") is None
    assert ledger.offsets() == {("orders", 1): 6}


@pytest.mark.case("consumer-process-dies-answer-lost-runs")
def test_a_repeated_commit_does_not_undo_a_newer_one(ledger):
    assert ledger.commit(offset(10), sequence=1).outcome is Outcome.APPLIED
    ledger.apply(GroupRecords(TOPIC, "g", "other", 1, "", "", -1, -1, 7, (offset(20),)))
    assert ledger.commit(offset(10), sequence=1).outcome is Outcome.DUPLICATE
    assert ledger.offsets() == {("orders", 0): 20}


@pytest.mark.case("consumer-unknown-member-other-generation")
@pytest.mark.parametrize(
    ("who", "refused"),
    [
        ({"member_id": "m-1", "generation": 3}, None),
        ({"member_id": "m-1", "generation": 2}, "ILLEGAL_GENERATION"),
        ({"member_id": "m-1", "generation": 4}, "ILLEGAL_GENERATION"),
        ({"member_id": "m-9", "generation": 3}, "UNKNOWN_MEMBER_ID"),
        ({}, "UNKNOWN_MEMBER_ID"),
        ({"member_id": "m-2", "instance_id": "till", "generation": 3}, None),
        ({"member_id": "m-9", "instance_id": "till", "generation": 3}, "FENCED_INSTANCE_ID"),
        ({"member_id": "m-1", "instance_id": "shop", "generation": 3}, "UNKNOWN_MEMBER_ID"),
    ],
)
@pytest.mark.parametrize("phase", [GroupPhase.STABLE, GroupPhase.PREPARING_REBALANCE])
def test_commits_are_fenced_by_member_and_generation(ledger, who, refused, phase):
    ledger.commit(
        GroupRecord("g", metadata(member("m-1"), member("m-2", "till"), generation=3, phase=phase)), revision=0
    )
    answer = ledger.commit(offset(5), **who)
    assert (answer.outcome, answer.detail) == ((Outcome.APPLIED, "") if refused is None else (Outcome.FENCED, refused))
    assert ledger.offsets() == ({("orders", 0): 5} if refused is None else {})


@pytest.mark.case("consumer-completing-rebalance-rebalance")
def test_while_assignments_are_awaited_commits_wait_and_signs_of_life_do_not(ledger):
    group_metadata = metadata(member("m-1"), generation=3, phase=GroupPhase.COMPLETING_REBALANCE)
    ledger.commit(GroupRecord("g", group_metadata), revision=0)
    assert ledger.commit(offset(5), member_id="m-1", generation=3).detail == "REBALANCE_IN_PROGRESS"
    assert ledger.commit(member_id="m-1", generation=3).outcome is Outcome.APPLIED
    assert ledger.state.groups.get("g").beats == {"m-1": 1}


def test_a_generation_without_a_group_is_illegal_and_without_members_unknown(ledger):
    assert ledger.commit(offset(1), member_id="m-1", generation=1).detail == "ILLEGAL_GENERATION"
    ledger.commit(offset(1))
    assert ledger.commit(offset(1), member_id="m-1", generation=1).detail == "UNKNOWN_MEMBER_ID"


def test_a_change_of_membership_holds_for_the_revision_it_was_made_from_only(ledger):
    first, second = metadata(member("m-1")), metadata(member("m-2"))
    assert ledger.commit(GroupRecord("g", first), revision=0).outcome is Outcome.APPLIED
    assert ledger.commit(GroupRecord("g", second), revision=0).detail == "REBALANCE_IN_PROGRESS"
    assert ledger.state.groups.get("g").metadata == first


def test_a_deleted_groups_revision_never_comes_again(ledger):
    ledger.commit(GroupRecord("g", metadata(member("m-1"))), revision=0)
    was = ledger.state.groups.get("g").revision
    ledger.commit(GroupRecord("g", None), revision=was)
    assert ledger.state.groups.get("g") is None
    ledger.commit(GroupRecord("g", metadata(member("m-2"))), revision=0)
    assert ledger.state.groups.get("g").revision > was
    assert ledger.commit(GroupRecord("g", None), revision=was).outcome is Outcome.FENCED


def test_signs_of_life_of_members_that_left_are_forgotten(ledger):
    ledger.commit(GroupRecord("g", metadata(member("m-1"), member("m-2"))), revision=0)
    ledger.commit(member_id="m-1", generation=1)
    ledger.commit(member_id="m-2", generation=1)
    was = ledger.state.groups.get("g").revision
    ledger.commit(GroupRecord("g", metadata(member("m-2"))), revision=was)
    assert ledger.state.groups.get("g").beats == {"m-2": 1}


def test_records_for_a_deleted_or_unknown_topic_have_no_effect(ledger):
    assert (
        ledger.apply(GroupRecords(SOURCE, "g", "w", 1, "", "", -1, -1, 7, (offset(1),))).outcome
        is Outcome.UNKNOWN_TOPIC
    )
    ledger.apply(TopicClose(TOPIC))
    assert ledger.commit(offset(1)).outcome is Outcome.TOPIC_CLOSED
    assert ledger.state.groups.get("g") is None


def test_codes_named_by_the_fold_are_error_codes():
    assert {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "REBALANCE_IN_PROGRESS"} <= set(
        ErrorCode.__members__
    )
