"""What a process with write access to the metadata roots can put into an entry, on purpose or by a defect."""

from __future__ import annotations

import resource
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import KEY, ObjectId
from spark_replog.log import model
from spark_replog.log.codec import commands as c
from spark_replog.log.codec.group_records import GroupRecord, OffsetAndMetadata, OffsetRecord
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Outcome
from spark_replog.log.row_schema import RowSchema
from spark_replog.storage.paths import data_key
from spark_replog.wire import Writer
from tests.examples import examples

TOPIC, LEDGER = "ab" * 16, "cd" * 16
GOLDEN = sorted((Path(__file__).parents[1] / "golden/v1").glob("entry_*.bin"))
PATHS = [
    "..",
    ".",
    "",
    "a/b",
    "../../etc/passwd",
    "/etc/passwd",
    "a\\b",
    "a\0b",
    "\x1b[2J",
    "a\nb",
    "x" * 256,
    "\u202e",
]
STREAM = model.ProducerIdentity("q", "q", 0, "r", model.IdentityKind.STREAM)


def section(**changes):
    return c.Section(TOPIC, 0, 1, 0, 8, 0, 0, 0)._replace(**changes)


def append(*objects, **changes):
    return replace(c.Append(STREAM, "User:a", "", 0, objects), **changes)


def data_object(*sections, **changes):
    return replace(c.DataObject(ObjectId(0, "o"), 8, False, frozenset({0}), sections), **changes)


def assert_damaged(command):
    with pytest.raises(CorruptDataError) as caught:
        c.decode_command(c.encode_command(command))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert str(caught.value).isprintable(), "a name from storage reaches a terminal in quoted form"


@pytest.mark.parametrize("name", PATHS)
def test_names_that_are_no_names_never_leave_the_codec(name):
    assert_damaged(append(data_object(id=ObjectId(0, name))))
    assert_damaged(append(data_object(section(topic_id=name))))
    assert_damaged(model.TopicInit(name, "t", ((0,),), ()))
    assert_damaged(model.TopicInit(TOPIC, name, ((0,),), ()))
    assert_damaged(model.TopicPublish("t", TOPIC, name))
    assert_damaged(model.TopicPublish("t", name, LEDGER))
    assert_damaged(model.TopicPublish(name, TOPIC, LEDGER))
    assert_damaged(model.TopicUnpublish(name, TOPIC))
    assert_damaged(model.LedgerRegister(name, LEDGER))
    assert_damaged(model.LedgerRegister("money", name))
    for command in (model.TopicClose(name), model.PartitionsAdd(name, 1, ()), model.ConfigSet(name, ())):
        assert_damaged(command)


@pytest.mark.parametrize("prefix", ["../", "q/", "."])
def test_a_short_object_name_is_checked_with_its_prefix(prefix):
    """The prefix of the names is written once an entry; it could hold a path too."""
    assert_damaged(append(data_object(id=ObjectId(0, f"{prefix}q-1-2-{'0' * 32}.arrow"))))


@given(st.text() | st.text("./\\a\0\x1b"), st.integers(0, 2**40))
def test_a_decoded_object_has_a_key_below_its_root(name, generation):
    try:
        command = c.decode_command(c.encode_command(append(data_object(id=ObjectId(generation, name)))))
    except CorruptDataError:
        return
    (item,) = command.objects
    key = data_key(LEDGER, *item.id)
    assert KEY.fullmatch(key)
    assert key.split("/")[:3] == ["ledgers", LEDGER, "data"] and len(key.split("/")) == 5


@pytest.mark.parametrize("url", ["file:///a\x1b[31m", "file:///a\nb"])
def test_a_url_with_control_characters_is_damage(url):
    assert_damaged(model.BrokerRegister(0, url, None, "{}"))


@pytest.mark.parametrize(
    "command",
    [
        append(data_object(section(row_count=0))),
        append(data_object(section(row_count=2**31))),
        append(data_object(section(partition=2**31))),
        append(data_object(section(partition=-1))),
        append(data_object(section(crc32c=2**32))),
        append(data_object(section(size_bytes=0))),
        append(data_object(section(start_byte=2**62))),
        append(data_object(section(min_timestamp_ms=2**60, max_timestamp_ms=2**60))),
        append(data_object(section(min_timestamp_ms=-(2**60)))),
        append(data_object(section(max_timestamp_ms=2**60))),
        append(data_object(size_bytes=2**63)),
        append(data_object(id=ObjectId(2**31, "o"))),
        append(data_object(holders=frozenset({2**31}))),
        append(append_time_ms=2**60),
        append(append_time_ms=-(2**60)),
        model.GenerationAdvance(2**31, 0),
        model.BrokerFence(2**31, True),
        c.SequencedAppend(STREAM, "", "", 0, (), (c.BatchSequence(TOPIC, 0, 0, 0, 0),)),
        c.SequencedAppend(STREAM, "", "", 0, (), (c.BatchSequence(TOPIC, 0, 0, 2**31, 1),)),
    ],
    ids=lambda command: type(command).__name__,
)  # fmt: skip
def test_numbers_that_no_release_writes_are_damage(command):
    assert_damaged(command)


def claim(*counts):
    """An append of one object per count, whose sections claim it in constant columns: those take no bytes a row."""
    one = c.encode_command(append(data_object()))
    object_bytes = 8  # flags, name (kind, length, "o"), generation, size, holder set, count of sections
    writer = Writer()
    writer.raw(one[: -object_bytes - 1])
    writer.uint(len(counts))
    for count in counts:
        writer.raw(one[-object_bytes:-1])
        writer.uint(count)
        for value in (0, 0, 1, 0, 8, 0, 0, 0):
            writer.byte(0)
            writer.uint(value)
    return bytes(writer.data)


def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("counts", [(2**24,), (2**32,), (2**63,), (5000,), (3000, 3000)])
def test_a_count_never_allocates_what_its_bytes_cannot_account_for(counts):
    data = claim(*counts)
    assert len(data) < 200
    before_kib = peak_kib()
    with pytest.raises(CorruptDataError) as caught:
        c.decode_command(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert peak_kib() - before_kib < 32 * 1024


def test_the_bound_never_refuses_what_a_producer_can_write():
    """The fewest bytes a row: one batch and one section in each of many partitions, all of one size."""
    count = 40_000
    sections = [section(partition=at, start_byte=8 * at, crc32c=zlib.crc32(str(at).encode())) for at in range(count)]
    batches = tuple(c.BatchSequence(TOPIC, at, 0, 0, 1) for at in range(count))
    command = c.SequencedAppend(STREAM, "", "", 0, (data_object(*sections, size_bytes=8 * count),), batches)
    assert c.decode_command(c.encode_command(command)) == command


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_flipped_byte_of_a_golden_entry_is_folded_or_named(path):
    """Each byte in four ways: a fold applies, refuses or names the newer format, and nothing else."""
    payload = path.read_bytes()
    fold = ClusterLedgerState if path.stem in {"entry_cluster", "entry_access"} else lambda: TopicLedgerState(LEDGER)
    for at in range(len(payload)):
        for mask in (0x01, 0x40, 0x80, 0xFF):
            damaged = bytearray(payload)
            damaged[at] ^= mask
            states = [fold(), fold()]
            try:
                results = [state.apply(0, bytes(damaged)) for state in states]
            except UnsupportedFormatError as error:
                assert error.code is ErrorCode.UNSUPPORTED_VERSION
                continue
            assert results[0] == results[1]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_cut_of_a_golden_entry_has_no_effect(path):
    payload = path.read_bytes()
    for end in range(len(payload)):
        try:
            (result,) = TopicLedgerState(LEDGER).apply(0, payload[:end])
        except UnsupportedFormatError:
            continue
        assert result.outcome is Outcome.INVALID and result.detail


def test_a_command_that_cannot_be_decoded_stops_no_reader(caplog):
    good = c.encode_command(model.TopicInit(TOPIC, "orders", ((0,),), ()))
    bad = c.encode_command(model.TopicClose("../.."))
    state = TopicLedgerState(LEDGER)
    results = state.apply(0, c.encode_entry([bad, good, bad]))
    assert [result.outcome for result in results] == [Outcome.INVALID, Outcome.APPLIED, Outcome.INVALID]
    assert "../.." in results[0].detail
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert LEDGER in caplog.text and "entry 0" in caplog.text
    assert state.apply(1, b"\x01\xff\xff")[0].outcome is Outcome.INVALID
    assert state.applied_index == 1


def group_records(*records, sequence=0, revision=0):
    return model.GroupRecords(TOPIC, "g", "w", sequence, "", "", -1, revision, 0, records)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (model.ConfigSet(TOPIC, (("min.insync.replicas", "9" * 5000),)), Outcome.APPLIED),
        (group_records(GroupRecord("g", None), GroupRecord("g", None)), Outcome.APPLIED),
        (group_records(OffsetRecord("g", "t", 0, OffsetAndMetadata(-7))), Outcome.INVALID),
        (model.PartitionsAdd(TOPIC, 2**63, ((0,),)), Outcome.INVALID),
        (model.Truncate(2**63), Outcome.EXISTS),
        (model.HoldersAdd(2**63, 0, 0, (0,)), Outcome.INVALID),
        (model.LogStartAdvance(TOPIC, model.LogStartReason.RETENTION, ((0, 2**63),)), Outcome.INVALID),
        (model.LogStartAdvance(TOPIC, model.LogStartReason.RETENTION, ((2**63, 0),)), Outcome.INVALID),
        (model.PartitionChange(TOPIC, 0, 0, 0, 0, (0, 0), (0, 0, 1)), Outcome.REFUSED),
        (model.PartitionChange(TOPIC, 0, 2**40, 0, 0, (0,), (0,)), Outcome.REFUSED),
    ],
)
def test_an_absurd_command_is_answered_and_the_next_one_is_folded(command, outcome):
    state = TopicLedgerState(LEDGER)
    state.apply(0, c.encode_entry([c.encode_command(model.TopicInit(TOPIC, "t", ((0, 1),), ()))]))
    (result,) = state.apply(1, c.encode_entry([c.encode_command(command)]))
    assert result.outcome is outcome
    (result,) = state.apply(2, c.encode_entry([c.encode_command(append(data_object(section())))]))
    assert result.outcome is Outcome.APPLIED
    assert_sound(state)


# --------------------------------------------------------------------------------- commands at random

ids = st.sampled_from([TOPIC, LEDGER])
small = st.integers(0, 3)
number = small | st.sampled_from([-1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1])
positive = number.filter(lambda value: value >= 0)
brokers = st.lists(small, max_size=3).map(tuple)
assignments = st.lists(brokers, max_size=3).map(tuple)
config = st.sampled_from([
    ("min.insync.replicas", "9" * 5000), ("min.insync.replicas", "\u0663"), ("min.insync.replicas", "-1"),
    ("message.timestamp.type", "LogAppendTime"), ("unclean.leader.election.enable", "TRUE"), ("new.setting", "x"),
])  # fmt: skip
sections = st.lists(
    st.builds(section, topic_id=ids, partition=small, row_count=st.integers(0, 4), start_byte=positive,
              size_bytes=small, crc32c=positive, min_timestamp_ms=number, max_timestamp_ms=number), max_size=3
).map(tuple)  # fmt: skip
objects = st.lists(
    st.builds(c.DataObject, st.builds(ObjectId, small, st.sampled_from(["a", "b"])), small, st.booleans(),
              brokers.map(frozenset), sections, schema_version=st.sampled_from([0, 0, 1, 2])), max_size=2
).map(tuple)  # fmt: skip
identities = st.builds(
    model.ProducerIdentity, st.sampled_from("pq"), st.sampled_from("ij"), number, st.sampled_from("rs"),
    st.sampled_from(model.IdentityKind), st.sampled_from(model.ResetPolicy),
)  # fmt: skip
batches = st.lists(st.builds(c.BatchSequence, ids, small, positive, positive, st.integers(0, 4)), max_size=3).map(tuple)
records = st.lists(
    st.builds(OffsetRecord, st.sampled_from("gh"), st.just("t"), small,
              st.none() | st.builds(OffsetAndMetadata, number.filter(lambda n: n < 2**63)))
    | st.builds(GroupRecord, st.sampled_from("gh"), st.none()), max_size=3
).map(tuple)  # fmt: skip
schemas = st.builds(RowSchema, st.sampled_from(["id INT, x STRING", "id INT, x STRING, y DATE", "id BIGINT"]),
                    st.sampled_from([(), ("id",)]))  # fmt: skip
anything = st.one_of(
    st.builds(c.Append, identities, st.sampled_from(["", "User:a"]), st.just(""), number, objects),
    st.builds(c.SequencedAppend, identities, st.just(""), st.just(""), number, objects, batches),
    st.builds(model.ProducerInit, st.sampled_from("pq"), st.sampled_from("ij"), positive),
    st.builds(model.TopicInit, ids, st.just("t"), assignments, st.lists(config, max_size=2).map(tuple),
              st.none() | schemas),
    st.builds(model.SchemaEvolve, ids, small, schemas),
    st.builds(model.TopicClose, ids),
    st.builds(model.PartitionsAdd, ids, positive, assignments),
    st.builds(model.ConfigSet, ids, st.lists(config, max_size=2).map(tuple)),
    st.builds(model.LogStartAdvance, ids, st.sampled_from(model.LogStartReason),
              st.lists(st.tuples(positive, positive), max_size=2).map(tuple)),
    st.builds(model.IsrChange, st.none() | ids, small, st.booleans(), number),
    st.builds(model.PartitionChange, ids, small, small, small, st.integers(-1, 3), brokers, brokers, brokers, brokers,
              st.booleans()),
    st.builds(model.BrokerFence, small, st.booleans()),
    st.builds(model.Truncate, positive),
    st.builds(model.HoldersAdd, small, small, small, brokers),
    st.builds(model.GenerationAdvance, positive, positive),
    st.builds(model.LogClean, ids, small, positive, number),
    st.builds(c.Replace, ids, small, small, positive, st.just(bytes(16)), objects,
              st.lists(small, max_size=3).map(sorted).map(tuple)),
    st.builds(model.GroupRecords, ids, st.sampled_from("gh"), st.sampled_from("wv"), small, st.sampled_from(["", "m"]),
              st.just(""), st.integers(-1, 2), st.integers(-1, 3), number, records),
    st.builds(model.BrokerRegister, small, st.just("file:///x"), st.none(), st.just("{}")),
)  # fmt: skip


def encoded(command):
    try:
        return c.encode_command(command)
    except ValueError:  # the format has no bytes for it
        return c.encode_command(model.Truncate(0))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(anything, max_size=3), max_size=12))
def test_no_command_raises_and_all_processes_agree(entries):
    states = [TopicLedgerState(LEDGER), TopicLedgerState(LEDGER)]
    for state in states:
        state.apply(0, c.encode_entry([encoded(model.TopicInit(TOPIC, "t", ((0, 1), (1, 2)), ()))]))
    for index, commands in enumerate(entries, 1):
        payload = c.encode_entry([encoded(command) for command in commands])
        answers = [state.apply(index, payload) for state in states]
        assert answers[0] == answers[1]
        assert len(answers[0]) == len(commands)
        assert_sound(states[0])
    assert_sound(states[0])
    assert observed(states[0]) == observed(states[1])


def assert_sound(state):
    for topic in state.topics.values():
        for number, partition in enumerate(topic.partitions):
            assert 0 <= partition.log_start_offset <= partition.log_end_offset
            assert 0 <= partition.high_watermark <= partition.log_end_offset
            assert partition.isr and set(partition.isr) <= set(partition.replicas)
            assert partition.leader == -1 or partition.leader in partition.isr
            section_refs = state.sections(topic.topic_id, number, 0, partition.log_end_offset)
            assert sum(section_ref.row_count for section_ref in section_refs) == partition.log_end_offset


def observed(state):
    return [
        (topic.name, topic.config, topic.closed, partition.leader, partition.leader_epoch, partition.isr,
         partition.log_start_offset, partition.high_watermark, partition.log_end_offset,
         state.sections(topic.topic_id, number, 0, partition.log_end_offset))
        for topic in state.topics.values() for number, partition in enumerate(topic.partitions)
    ]  # fmt: skip
