from __future__ import annotations

import random
import uuid
from dataclasses import fields, replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.acl import AclBinding, AclOperation, AclsAdd, AclsRemove, PatternType, Permission, ResourceType
from spark_replog.log.codec.commands import decode_command, decode_entry, encode_command, encode_entry
from spark_replog.log.model import (
    EVIDENCE_BYTES,
    Append,
    BrokerFence,
    BrokerRegister,
    ClusterConfigSet,
    ConfigSet,
    DataObject,
    FeatureSet,
    GenerationAdvance,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LedgerRegister,
    LogClean,
    LogExtend,
    LogStartAdvance,
    LogStartReason,
    MirrorAdvance,
    MirrorAppend,
    MirrorSet,
    PartitionChange,
    PartitionsAdd,
    ProducerIdentity,
    Replace,
    ResetPolicy,
    SchemaEvolve,
    Section,
    SnapshotCommit,
    TopicClose,
    TopicInit,
    TopicPublish,
    TopicUnpublish,
    Truncate,
)
from spark_replog.log.quotas import QuotaAlter, QuotaEntity
from spark_replog.log.row_schema import RowSchema
from spark_replog.storage.paths import object_name
from spark_replog.wire import Reader, Writer
from tests.examples import examples

YEAR_MS = 31_536_000_000

uint = st.integers(0, 2**40)
time_ms = st.integers(-(2**52), 2**52)
text = st.text(max_size=20) | st.uuids().map(str) | st.uuids().map(lambda value: value.hex)
topic_ids = st.uuids().map(lambda value: value.hex)
broker_ids = st.integers(0, 2**31 - 1)
brokers = st.frozensets(st.integers(0, 200), max_size=5)
replica_lists = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4).map(tuple)
printable = text.filter(str.isprintable)
generations = st.integers(0, 2**31 - 1)
topic_names = st.text("azAZ09._-", min_size=1, max_size=249).filter(lambda name: name not in {".", ".."})
names = st.text("azAZ09 ._-", max_size=254).map(lambda name: f"q{name}") | st.builds(
    object_name, st.text("abcdef0123-", min_size=1, max_size=8), uint, uint, st.uuids().map(lambda u: u.hex)
)


@st.composite
def section_lists(draw):
    sections, end = [], 0
    for _ in range(draw(st.integers(0, 20))):
        start = end + draw(st.integers(0, 100))
        size = draw(st.integers(1, 2**34))
        low = draw(time_ms)
        end = start + size
        sections.append(
            Section(
                draw(topic_ids),
                draw(st.integers(0, 100_000)),
                draw(st.integers(1, 2**31 - 1)),
                start,
                size,
                draw(st.integers(0, 2**32 - 1)),
                low,
                low + draw(st.integers(0, 2**50)),
            )
        )
    return tuple(sections)


objects = st.builds(DataObject, st.builds(ObjectId, generations, names), uint, st.booleans(), brokers, section_lists())


@st.composite
def inline_objects(draw):
    """Objects that the entry carries, with sections that fit."""
    item, sections = draw(objects), []
    inline = draw(st.binary(min_size=1, max_size=300))
    for section in item.sections[: len(inline)]:
        sections.append(section._replace(start_byte=len(sections), size_bytes=1))
    return replace(item, size_bytes=len(inline), sections=tuple(sections), inline=inline)


@st.composite
def replacements(draw):
    topic, first = draw(topic_ids), draw(st.integers(0, 2**40))
    outputs = tuple(
        replace(
            item,
            has_offsets=draw(st.booleans()),
            sections=tuple(section._replace(topic_id=topic) for section in item.sections),
        )
        for item in draw(st.lists(objects, max_size=3))
    )
    steps = draw(st.lists(uint.filter(lambda n: n < 2**40), max_size=5))
    bases = tuple(accumulate(steps, initial=first))[1:]
    return Replace(topic, draw(uint), first, draw(uint), draw(st.binary(min_size=16, max_size=16)), outputs, bases)


@st.composite
def mirror_appends(draw):
    head = draw(identities), draw(text), draw(text), draw(time_ms), draw(st.lists(objects, max_size=3).map(tuple))
    counts = Append(*head).row_counts
    follows = {place: draw(uint) for place in counts}
    at, ends = dict(follows), []
    for section in (section for item in head[-1] for section in item.sections):
        place = section.topic_id, section.partition
        at[place] += draw(uint)
        ends.append(at[place])
    return MirrorAppend(*head, tuple(follows.values()), tuple(ends), draw(st.booleans()))


def extended(command, by):
    return LogExtend(*(getattr(command, field.name) for field in fields(command)), command.end_offset + by)


identities = st.builds(
    ProducerIdentity,
    text,
    text,
    time_ms,
    text,
    st.sampled_from(IdentityKind),
    st.sampled_from(ResetPolicy),
    st.just(b"") | st.binary(min_size=EVIDENCE_BYTES, max_size=EVIDENCE_BYTES),
)
bindings = st.lists(
    st.builds(
        AclBinding,
        st.sampled_from(ResourceType),
        text,
        st.sampled_from(PatternType),
        text,
        st.sampled_from(AclOperation),
        st.sampled_from(Permission),
    ),
    max_size=3,
).map(tuple)
quota_changes = st.lists(st.tuples(text, st.none() | uint), max_size=3).map(tuple)
key_columns = st.sampled_from([(), ("id",)])
id_lists = st.lists(broker_ids, max_size=4).map(tuple)
schemas = st.builds(RowSchema, st.sampled_from(["id INT, x STRING", "`a b` MAP<INT, DATE>, id BIGINT"]), key_columns)
commands = st.one_of(
    st.builds(AclsAdd, bindings),
    st.builds(AclsRemove, bindings),
    st.builds(QuotaAlter, st.builds(QuotaEntity, st.none() | text, st.none() | text), quota_changes),
    st.builds(ClusterConfigSet, st.lists(st.tuples(text, st.none() | text), max_size=3).map(tuple)),
    st.builds(Append, identities, text, text, time_ms, st.lists(objects | inline_objects(), max_size=4).map(tuple)),
    st.builds(
        TopicInit,
        topic_ids,
        topic_names,
        replica_lists,
        st.lists(st.tuples(text, text), max_size=3).map(tuple),
        st.none() | schemas,
    ),
    st.builds(SchemaEvolve, topic_ids, uint, schemas),
    st.builds(TopicClose, topic_ids),
    st.builds(
        PartitionChange,
        topic_ids,
        uint,
        uint,
        uint,
        st.integers(-1, 2**31),
        id_lists,
        id_lists,
        id_lists,
        id_lists,
        st.booleans(),
    ),
    st.builds(BrokerFence, broker_ids, st.booleans()),
    st.builds(Truncate, uint),
    st.builds(
        LogStartAdvance,
        topic_ids,
        st.sampled_from(LogStartReason),
        st.lists(st.tuples(uint, uint), max_size=3).map(tuple),
    ),
    replacements(),
    st.builds(extended, replacements(), uint),
    mirror_appends(),
    st.builds(MirrorSet, topic_ids, text, st.lists(uint, max_size=3).map(tuple)),
    st.builds(MirrorAdvance, topic_ids, st.lists(st.tuples(uint, uint, uint), max_size=3).map(tuple)),
    st.builds(LogClean, topic_ids, uint, uint, time_ms),
    st.builds(PartitionsAdd, topic_ids, uint, replica_lists),
    st.builds(ConfigSet, topic_ids, st.lists(st.tuples(text, st.none() | text), max_size=3).map(tuple)),
    st.builds(IsrChange, st.none() | topic_ids, broker_ids, st.booleans(), time_ms),
    st.builds(HoldersAdd, uint, uint, uint, id_lists),
    st.builds(GenerationAdvance, generations, uint),
    st.builds(BrokerRegister, broker_ids, printable, st.none() | text, text),
    st.builds(LedgerRegister, topic_names, topic_ids),
    st.builds(TopicPublish, topic_names, topic_ids, topic_ids),
    st.builds(TopicUnpublish, topic_names, topic_ids),
    st.builds(FeatureSet, uint),
    st.builds(SnapshotCommit, uint, uint, st.from_regex("[0-9]{20}-[0-9a-f]{32}", fullmatch=True)),
)


def micro_batch(tasks: int, partitions: int) -> Append:
    """What a real commit carries: random checksums, names and sizes; a year of timestamps."""
    rng = random.Random(7)
    query, topic = str(uuid.uuid4()), new_id()
    base_ms = 1_700_000_000_000
    made = []
    for task in range(tasks):
        sections, start = [], 304
        for partition in range(partitions):
            size = rng.randrange(16_000, 64_000) // 8 * 8
            low = base_ms + rng.randrange(YEAR_MS)
            high = low + rng.randrange(base_ms + YEAR_MS - low)
            crc = rng.randrange(1 << 32)
            sections.append(Section(topic, partition, rng.randrange(100, 600), start, size, crc, low, high))
            start += size
        name = object_name(query[:8], 123_456, task, new_id())
        made.append(DataObject(ObjectId(3, name), start + 9000, False, frozenset((0, 1, 2)), tuple(sections)))
    who = ProducerIdentity(
        query, query, 123_456, str(uuid.uuid4()), IdentityKind.STREAM, evidence=bytes(EVIDENCE_BYTES)
    )
    return Append(who, "User:analytics", "spark-replog", base_ms + YEAR_MS, tuple(made))


@settings(max_examples=examples(100), deadline=None)
@given(commands)
def test_every_command_survives_the_codec(command):
    assert decode_command(encode_command(command)) == command


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_entry_framing_survives(payloads):
    assert decode_entry(encode_entry(payloads)) == payloads


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(("tasks", "partitions"), [(16, 64), (1, 64), (16, 1), (1, 1)])
def test_metadata_stays_within_its_budget(tasks, partitions):
    size = len(encode_entry([encode_command(micro_batch(tasks, partitions))]))
    assert size <= 24 * tasks * partitions + 60 * tasks + 200


def test_each_part_stays_within_its_budget():
    def size(append):
        return len(encode_entry([encode_command(append)]))

    whole = micro_batch(16, 64)
    bare = replace(whole, objects=())
    objects_only = replace(whole, objects=tuple(replace(o, sections=()) for o in whole.objects))
    assert size(bare) <= 200
    assert (size(objects_only) - size(bare)) / 16 <= 60
    assert (size(whole) - size(objects_only)) / 1024 <= 24


def test_metadata_is_small_beside_data_from_16_kib_a_section_on():
    append = micro_batch(16, 64)
    data = sum(16 * 1024 for o in append.objects for _ in o.sections)
    assert len(encode_command(append)) / data < 0.0015


@pytest.mark.parametrize(
    "name",
    [
        "q-1-2-" + "0" * 32 + ".arrow",
        "q-1-02-" + "0" * 32 + ".arrow",
        "q-1-2-" + "0" * 31 + "G.arrow",
        "q-1-2-" + "A" * 32 + ".arrow",
        "q-1-2-" + str(uuid.UUID(int=5)) + ".arrow",
        "any name at all",
    ],
)
def test_object_names_come_back_exactly(name):
    append = micro_batch(2, 1)
    objects = (append.objects[0], replace(append.objects[1], id=ObjectId(3, name)))
    assert decode_command(encode_command(replace(append, objects=objects))).objects[1].id == ObjectId(3, name)


def test_a_newer_command_is_refused_by_name():
    data = bytearray(encode_command(TopicClose("ab" * 16)))
    data[1] = 2
    with pytest.raises(UnsupportedFormatError, match="type 3 version 2") as caught:
        decode_command(bytes(data))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    data[0] = 200
    with pytest.raises(UnsupportedFormatError):
        decode_command(bytes(data))


def test_a_newer_entry_is_refused():
    data = bytearray(encode_entry([b"x"]))
    data[0] = 2
    with pytest.raises(UnsupportedFormatError, match="Upgrade") as caught:
        decode_entry(bytes(data))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_cut_command_is_damaged():
    data = encode_command(micro_batch(2, 3))
    for end in range(2, len(data)):
        with pytest.raises(CorruptDataError, match=r"\[CORRUPT_MESSAGE\]"):
            decode_command(data[:end])


@pytest.mark.parametrize(
    ("take", "data"),
    [
        (Reader.count, b"\x05abcd"),
        (Reader.uint, b"\xff" * 10 + b"\x01"),
        (Reader.text, b"\x00\x02\xff\xfe"),
        (Reader.text, b"\x03" + bytes(16)),
        (lambda reader: reader.column(1), b"\x09\x00" + bytes(9)),
    ],
    ids=["list too long", "number too long", "not UTF-8", "kind of text", "column too wide"],
)
def test_impossible_values_are_damage(take, data):
    with pytest.raises(CorruptDataError, match=r"\[CORRUPT_MESSAGE\]"):
        take(Reader(data))


@pytest.mark.parametrize(
    "text", ["AB" * 16, "ab" * 16, "Ab" * 16, "é" * 16, "C95AA14E-9FC4-4E42-AFC6-F087533E1F30", ""]
)
def test_texts_keep_their_case_whatever_they_look_like(text):
    writer = Writer()
    writer.text(text)
    assert Reader(bytes(writer.data)).text() == text


def test_a_cut_entry_is_damaged():
    data = encode_entry([b"abc", b"defg"])
    for end in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode_entry(data[:end])


def test_trailing_bytes_are_damage():
    with pytest.raises(CorruptDataError):
        decode_command(encode_command(FeatureSet(1)) + b"\0")
    with pytest.raises(CorruptDataError):
        decode_entry(encode_entry([]) + b"\0")


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(2, 10_000), st.integers(1, 255))
def test_a_flipped_byte_never_raises_anything_else(position, mask):
    data = bytearray(encode_command(micro_batch(2, 5)))
    data[2 + position % (len(data) - 2)] ^= mask
    try:
        decode_command(bytes(data))
    except CorruptDataError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE


def test_numbers_outside_the_format_are_refused():
    with pytest.raises(ValueError):
        encode_command(FeatureSet(-1))
    with pytest.raises(ValueError):
        encode_command(FeatureSet(1 << 64))
