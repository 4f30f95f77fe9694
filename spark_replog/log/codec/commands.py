"""Ledger entries and their commands as bytes: `docs/format.md`, chapter "Ledger entry".

An entry frames the commands of one group commit. A command is a type byte, a version byte and a body. Numbers are
varints. The sections of an append are columns, so that 1,024 of them decode in about a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import GENERATION_MAX, OBJECT_NAME, ObjectId, is_valid_topic_name
from spark_replog.log import model
from spark_replog.log.acl import AclBinding, AclOperation, AclsAdd, AclsRemove, PatternType, Permission, ResourceType
from spark_replog.log.codec.group_records import Record, decode_record, encode_record
from spark_replog.log.model import (
    Append,
    BatchSequence,
    Command,
    DataObject,
    LogExtend,
    MirrorAppend,
    Replace,
    Section,
    SequencedAppend,
)
from spark_replog.log.quotas import QuotaAlter, QuotaEntity
from spark_replog.log.row_schema import OPTIONAL_ROW_SCHEMA, ROW_SCHEMA
from spark_replog.snapshot import SNAPSHOT_NAME
from spark_replog.wire import (
    BOOL,
    BROKER_ID,
    BYTES,
    ID,
    SINT,
    TEXT,
    TIME_MS,
    TIME_MS_MAX,
    UINT,
    Kind,
    Reader,
    Writer,
    checked,
    corrupt,
    enum_of,
    fields,
    list_of,
    optional,
    record,
    unzigzag,
    zigzag,
)

OBJECT_BYTES_MAX = 2**62
ROW_COUNT_MAX = 2**31 - 1
PARTITION_MAX = 2**31 - 1
SEQUENCE_COUNT = 2**31
SCHEMA_VERSION_MAX = 2**31 - 1
CRC_MAX = 2**32 - 1
_OBJECT_HEADERS = 0x01
_OBJECT_SHORT_NAME = 0x02
_OBJECT_OFFSETS = 0x04
_OBJECT_INLINE = 0x08
_OBJECT_TYPED = 0x10
_FLAG_EVIDENCE = 0x10
_FLAG_SAME_INCARNATION = 0x80
_SHORT_NAME = re.compile(r"(?P<prefix>.+-)(?P<task>0|[1-9][0-9]{0,17})-(?P<uuid>[0-9a-f]{32})\.arrow")


_IDS = list_of(BROKER_ID)
_TOPIC_IDS = list_of(ID)
_HEAD = fields(SINT, TEXT, TEXT, TEXT, TIME_MS)
_BASE_MS = checked(SINT, lambda value: value >= -TIME_MS_MAX - 1, "time")  # rounded down from microseconds
_TABLES = fields(_TOPIC_IDS, list_of(_IDS), _BASE_MS, TEXT)
_OBJECT_TAIL = fields(UINT, UINT, UINT)
_ENTRY = list_of(BYTES)
_REPLACE_HEAD = fields(ID, UINT, UINT, UINT)
_REPLACE_TABLES = fields(list_of(_IDS), _BASE_MS)


def encode_append(writer: Writer, append: Append) -> None:
    """Write an append's body."""
    identity = append.identity
    same = identity.incarnation == identity.producer_id
    evidence = _FLAG_EVIDENCE if identity.evidence else 0
    writer.byte(identity.kind | identity.on_reset << 2 | evidence | (_FLAG_SAME_INCARNATION if same else 0))
    writer.text(identity.producer_id)
    if not same:
        writer.text(identity.incarnation)
    writer.raw(identity.evidence)
    head = (identity.sequence, identity.run_id, append.principal, append.client_id, append.append_time_ms)
    _HEAD.write(writer, head)
    topics = list(dict.fromkeys(s.topic_id for o in append.objects for s in o.sections))
    holder_sets = list(dict.fromkeys(o.holders for o in append.objects))
    base_ms = min((s.min_timestamp_ms for o in append.objects for s in o.sections), default=0)
    prefix = next((m["prefix"] for o in append.objects if (m := _SHORT_NAME.fullmatch(o.id.name))), "")
    _TABLES.write(writer, (topics, [sorted(holders) for holders in holder_sets], base_ms, prefix))
    writer.uint(len(append.objects))
    topic_numbers = {topic: number for number, topic in enumerate(topics)}
    holder_numbers = {holders: number for number, holders in enumerate(holder_sets)}
    for item in append.objects:
        _encode_object(writer, item, prefix, holder_numbers[item.holders], topic_numbers, base_ms)


def decode_append(reader: Reader, batches: tuple[BatchSequence, ...] | None = None) -> Append:
    """Read an append's body; with batches it is a sequenced append's."""
    flags = reader.byte()
    kind, on_reset = model.IdentityKind(flags & 0x03), model.ResetPolicy(flags >> 2 & 0x03)
    producer_id = reader.text()
    incarnation = producer_id if flags & _FLAG_SAME_INCARNATION else reader.text()
    evidence = reader.raw(model.EVIDENCE_BYTES) if flags & _FLAG_EVIDENCE else b""
    sequence, run_id, principal, client_id, append_time_ms = _HEAD.read(reader)
    identity = model.ProducerIdentity(producer_id, incarnation, sequence, run_id, kind, on_reset, evidence)
    topics, id_lists, base_ms, prefix = _TABLES.read(reader)
    holder_sets = [frozenset(ids) for ids in id_lists]
    objects = tuple(_decode_object(reader, prefix, holder_sets, topics, base_ms) for _ in range(reader.count()))
    if batches is None:
        return Append(identity, principal, client_id, append_time_ms, objects)
    return SequencedAppend(identity, principal, client_id, append_time_ms, objects, batches)


def encode_sequenced_append(writer: Writer, append: SequencedAppend) -> None:
    """Write a sequenced append's body: its batches as columns, then an append's body."""
    topics = list(dict.fromkeys(batch.topic_id for batch in append.batches))
    numbers = {topic: number for number, topic in enumerate(topics)}
    _TOPIC_IDS.write(writer, topics)
    writer.uint(len(append.batches))
    rows = [(numbers[b.topic_id], b.partition, b.epoch, b.first_sequence, b.row_count) for b in append.batches]
    writer.columns(*zip(*rows, strict=True))
    encode_append(writer, append)


def decode_sequenced_append(reader: Reader) -> Append:
    """Read a sequenced append's body."""
    topics = _TOPIC_IDS.read(reader)
    count = reader.row_count()
    columns = [reader.column(count) for _ in range(5)]
    if count and max(columns[0]) >= len(topics):
        raise corrupt(f"topic {max(columns[0])} is not in the table")
    if count and (max(max(column) for column in columns) >= SEQUENCE_COUNT or min(columns[4]) < 1):
        raise corrupt("a batch has no rows, or a number above 2**31 - 1")
    batches = tuple(BatchSequence(topics[number], *fields) for number, *fields in zip(*columns, strict=True))
    return decode_append(reader, batches)


def encode_mirror_append(writer: Writer, append: MirrorAppend) -> None:
    """Write a mirror's append: an append's body, then where it follows and what its sections span, as differences."""
    encode_append(writer, append)
    spans = append.spans()
    writer.byte(append.is_append_time)
    writer.uint(len(append.follows))
    writer.columns(append.follows)
    writer.uint(len(spans))
    writer.columns([end - base for base, end in spans])


def decode_mirror_append(reader: Reader) -> MirrorAppend:
    """Read a mirror's append."""
    append = decode_append(reader)
    is_append_time = BOOL.read(reader)
    follows = reader.column(reader.row_count())
    widths = reader.column(reader.row_count())
    sections = [section for item in append.objects for section in item.sections]
    if len(follows) != len(append.row_counts) or len(widths) != len(sections):
        raise corrupt(f"{len(follows)} partitions and {len(widths)} sections are placed, and there are others")
    at = dict(zip(append.row_counts, follows, strict=True))
    ends = []
    for section, width in zip(sections, widths, strict=True):
        place = (section.topic_id, section.partition)
        at[place] += width
        ends.append(at[place])
    head = append.identity, append.principal, append.client_id, append.append_time_ms, append.objects
    return MirrorAppend(*head, tuple(follows), tuple(ends), is_append_time)


def encode_log_extend(writer: Writer, command: LogExtend) -> None:
    """Write an extension: a replacement's body, then how far the log end moves."""
    encode_replace(writer, command)
    writer.uint(command.log_end_offset - command.end_offset)


def decode_log_extend(reader: Reader) -> LogExtend:
    """Read an extension."""
    made = decode_replace(reader)
    return LogExtend.of(made, made.end_offset + reader.uint())


def encode_replace(writer: Writer, command: Replace) -> None:
    """Write a replacement's body: the range, the outputs as an append has them, then the steps of their offsets.

    Raises:
        ValueError: a section is of another topic.
    """
    if any(s.topic_id != command.topic_id for item in command.outputs for s in item.sections):
        raise ValueError("a replacement has sections of its own topic only")
    _REPLACE_HEAD.write(writer, (command.topic_id, command.partition, command.first_offset, command.end_offset))
    writer.raw(command.inputs)
    holder_sets = list(dict.fromkeys(item.holders for item in command.outputs))
    base_ms = min((s.min_timestamp_ms for item in command.outputs for s in item.sections), default=0)
    _REPLACE_TABLES.write(writer, ([sorted(holders) for holders in holder_sets], base_ms))
    writer.uint(len(command.outputs))
    for item in command.outputs:
        _encode_object(writer, item, "", holder_sets.index(item.holders), {command.topic_id: 0}, base_ms)
    writer.uint(len(command.base_offsets))
    before = command.first_offset
    for base in command.base_offsets:
        writer.uint(base - before)
        before = base


def decode_replace(reader: Reader) -> Replace:
    """Read a replacement's body."""
    topic_id, partition, first, end = _REPLACE_HEAD.read(reader)
    inputs = reader.raw(model.INPUTS_DIGEST_BYTES)
    id_lists, base_ms = _REPLACE_TABLES.read(reader)
    holder_sets = [frozenset(ids) for ids in id_lists]
    count = reader.count()
    outputs = tuple(_decode_object(reader, "", holder_sets, [topic_id], base_ms) for _ in range(count))
    if any(item.inline for item in outputs):
        raise corrupt("a replacement carries the bytes of an object")
    bases = [first]
    for _ in range(reader.count()):
        bases.append(bases[-1] + reader.uint())
    return Replace(topic_id, partition, first, end, inputs, outputs, tuple(bases[1:]))


def _encode_object(
    writer: Writer, item: DataObject, prefix: str, holder_number: int, topic_numbers: dict[str, int], base_ms: int
) -> None:
    """Write an object and its sections."""
    match = _SHORT_NAME.fullmatch(item.id.name)
    short = match is not None and match["prefix"] == prefix
    writer.byte(
        (_OBJECT_HEADERS if item.has_headers else 0)
        | (_OBJECT_OFFSETS if item.has_offsets else 0)
        | (_OBJECT_SHORT_NAME if short else 0)
        | (_OBJECT_INLINE if item.inline else 0)
        | (_OBJECT_TYPED if item.schema_version else 0)
    )
    if short and match is not None:
        writer.uint(int(match["task"]))
        writer.raw(bytes.fromhex(match["uuid"]))
    else:
        writer.text(item.id.name)
    _OBJECT_TAIL.write(writer, (item.id.generation, item.size_bytes, holder_number))
    if item.schema_version:
        writer.uint(item.schema_version)
    if item.inline:
        BYTES.write(writer, item.inline)
    sections = item.sections
    writer.uint(len(sections))
    if not sections:
        return
    ends = [0, *(s.start_byte + s.size_bytes for s in sections[:-1])]
    partitions = [0, *(s.partition for s in sections[:-1])]
    writer.columns(
        [topic_numbers[s.topic_id] for s in sections],
        [zigzag(s.partition - before) for s, before in zip(sections, partitions, strict=True)],
        [s.row_count for s in sections],
        [s.start_byte - end for s, end in zip(sections, ends, strict=True)],
        [s.size_bytes for s in sections],
        [s.crc32c for s in sections],
        [s.min_timestamp_ms - base_ms for s in sections],
        [s.max_timestamp_ms - s.min_timestamp_ms for s in sections],
    )


def _decode_object(
    reader: Reader, prefix: str, holder_sets: list[frozenset[int]], topics: list[str], base_ms: int
) -> DataObject:
    flags = reader.byte()
    if flags & _OBJECT_SHORT_NAME:
        name = f"{prefix}{reader.uint()}-{reader.raw(16).hex()}.arrow"
    else:
        name = reader.text()
    generation, size_bytes, holder_number = _OBJECT_TAIL.read(reader)
    if OBJECT_NAME.fullmatch(name) is None or generation > GENERATION_MAX or size_bytes > OBJECT_BYTES_MAX:
        raise corrupt(f"object {name!r} of generation {generation} with {size_bytes} bytes cannot exist")
    if holder_number >= len(holder_sets):
        raise corrupt(f"holder set {holder_number} is not in the table")
    schema_version = reader.uint() if flags & _OBJECT_TYPED else 0
    if schema_version > SCHEMA_VERSION_MAX:
        raise corrupt(f"object {name!r} names version {schema_version} of a schema")
    inline = bytes(BYTES.read(reader)) if flags & _OBJECT_INLINE else b""
    sections = _decode_sections(reader, reader.row_count(), topics, base_ms)
    end = sections[-1].start_byte + sections[-1].size_bytes if inline and sections else 0
    if inline and (len(inline) != size_bytes or end > size_bytes):
        raise corrupt(f"object {name!r} of {size_bytes} bytes carries {len(inline)} bytes for sections up to {end}")
    return DataObject(
        ObjectId(generation, name),
        size_bytes,
        bool(flags & _OBJECT_HEADERS),
        holder_sets[holder_number],
        sections,
        bool(flags & _OBJECT_OFFSETS),
        inline=inline,
        schema_version=schema_version,
    )


def _decode_sections(reader: Reader, count: int, topics: list[str], base_ms: int) -> tuple[Section, ...]:
    if not count:
        return ()
    topic_numbers, steps, rows, gaps, sizes, crcs, minima, spans = [reader.column(count) for _ in range(8)]
    if max(topic_numbers) >= len(topics):
        raise corrupt(f"topic {max(topic_numbers)} is not in the table")
    if min(rows) < 1 or max(rows) > ROW_COUNT_MAX or max(crcs) > CRC_MAX or min(sizes) < 1:
        raise corrupt("a section has no rows, no bytes, too many rows or an impossible checksum")
    if base_ms + max(minima) + max(spans) > TIME_MS_MAX and any(
        base_ms + minimum + span > TIME_MS_MAX + 1 for minimum, span in zip(minima, spans, strict=True)
    ):
        raise corrupt("the times of a section do not fit microseconds of 64 bits")
    sections = []
    end = partition = 0
    for number, step, row_count, gap, size, crc, minimum, span in zip(
        topic_numbers, steps, rows, gaps, sizes, crcs, minima, spans, strict=True
    ):
        partition += unzigzag(step)
        start = end + gap
        end = start + size
        low_ms = base_ms + minimum
        sections.append(Section(topics[number], partition, row_count, start, size, crc, low_ms, low_ms + span))
        if not 0 <= partition <= PARTITION_MAX:
            raise corrupt(f"{partition} is not a partition")
    if end > OBJECT_BYTES_MAX:
        raise corrupt(f"a section ends at byte {end}")
    return tuple(sections)


ENTRY_FORMAT_VERSION = 1
COMMAND_FORMAT_VERSION = 1


def encode_entry(commands: Sequence[bytes]) -> bytes:
    """Return the payload: version byte, command count, then each command after its length.

    Args:
        commands: results of `commands.encode_command`, in the order in which the fold judges them.
    """
    writer = Writer()
    writer.byte(ENTRY_FORMAT_VERSION)
    _ENTRY.write(writer, commands)
    return bytes(writer.data)


def decode_entry(payload: bytes) -> list[bytes]:
    """Return the encoded commands of a payload.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
        CorruptDataError: CORRUPT_MESSAGE: cut short or damaged.
    """
    reader = Reader(bytes(payload))
    version = reader.byte()
    if version != ENTRY_FORMAT_VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ledger entry has format {version}, this release reads {ENTRY_FORMAT_VERSION}."
            " Upgrade spark-replog on every driver and worker.",
        )
    commands = _ENTRY.read(reader)
    reader.finish()
    return list(commands)


class Undecodable(NamedTuple):
    """A command that no release of this format can have written; a fold answers INVALID with the reason."""

    reason: str


def decode_commands(payload: bytes) -> list[Command | Undecodable]:
    """Return the commands of an entry's payload; those that cannot be decoded keep their place.

    Every process decodes a payload alike, so a damaged command never makes a decided entry unreadable.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    try:
        encoded = decode_entry(payload)
    except CorruptDataError as error:
        return [Undecodable(str(error))]
    commands: list[Command | Undecodable] = []
    for data in encoded:
        try:
            commands.append(decode_command(data))
        except CorruptDataError as error:
            commands.append(Undecodable(str(error)))
    return commands


def encode_command(command: Command) -> bytes:
    """Return the command's bytes.

    Raises:
        ValueError: a number is outside of what the format holds (64 bits, or negative where unsigned).
    """
    type_id = TYPE_IDS[type(command)]
    writer = Writer()
    writer.byte(type_id)
    writer.byte(COMMAND_FORMAT_VERSION)
    _BY_TYPE[type_id].write(writer, command)
    return bytes(writer.data)


def decode_command(data: bytes) -> Command:
    """Return the command of the bytes.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: type or version of a newer release.
        CorruptDataError: CORRUPT_MESSAGE: damaged.
    """
    reader = Reader(data)
    type_id, version = reader.byte(), reader.byte()
    kind = _BY_TYPE.get(type_id)
    if kind is None or version != COMMAND_FORMAT_VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ledger command type {type_id} version {version} is unknown to this release."
            " Upgrade spark-replog on every driver and worker.",
        )
    try:
        command: Command = kind.read(reader)
    except (ValueError, OverflowError) as error:
        raise corrupt(f"command type {type_id}: {error}") from error
    reader.finish()
    return command


def _write_change(writer: Writer, value: int | None) -> None:
    writer.uint(0 if value is None else value + 1)


def _write_group_record(writer: Writer, value: Record) -> None:
    key, body = encode_record(value)
    BYTES.write(writer, key)
    _write_change(writer, None if body is None else len(body))
    writer.raw(body or b"")


def _read_group_record(reader: Reader) -> Record:
    key, size_bytes = BYTES.read(reader), reader.uint()
    return decode_record(key, reader.raw(size_bytes - 1) if size_bytes else None)


_TOPIC_NAME = checked(TEXT, is_valid_topic_name, "topic name")
_LEDGER_NAME = checked(TEXT, is_valid_topic_name, "ledger name")
_HEAD_NAME = checked(TEXT, SNAPSHOT_NAME.fullmatch, "snapshot name")
_URL = checked(TEXT, str.isprintable, "URL")
_RACK = optional(TEXT)
_ASSIGNMENTS = list_of(_IDS)
_CHANGES = list_of(TEXT, optional(TEXT))
_QUOTA = Kind(_write_change, lambda reader: value - 1 if (value := reader.uint()) else None)
_GENERATION = checked(UINT, lambda value: value <= GENERATION_MAX, "generation")
ACL_BINDINGS = list_of(
    record(
        AclBinding,
        resource_type=enum_of(ResourceType),
        name=TEXT,
        pattern_type=enum_of(PatternType),
        principal=TEXT,
        operation=enum_of(AclOperation),
        permission=enum_of(Permission),
    )
)
QUOTA_ENTITY = record(QuotaEntity, user=optional(TEXT), client_id=optional(TEXT))
_OFFSETS = list_of(UINT, UINT)
_GROUP_RECORDS = list_of(Kind(_write_group_record, _read_group_record))


def _row(type_id: int, made: type, **kinds: Kind) -> tuple[int, type, Kind]:
    return type_id, made, record(made, **kinds)


_CODECS = (
    (1, Append, Kind(encode_append, decode_append)),
    (76, SequencedAppend, Kind(encode_sequenced_append, decode_sequenced_append)),
    (77, MirrorAppend, Kind(encode_mirror_append, decode_mirror_append)),
    _row(78, model.MirrorSet, topic_id=ID, source=TEXT, starts=list_of(UINT)),
    _row(79, model.MirrorAdvance, topic_id=ID, ends=list_of(UINT, UINT, UINT)),
    (88, LogExtend, Kind(encode_log_extend, decode_log_extend)),
    _row(
        2,
        model.TopicInit,
        topic_id=ID,
        name=_TOPIC_NAME,
        assignments=_ASSIGNMENTS,
        config=list_of(TEXT, TEXT),
        schema=OPTIONAL_ROW_SCHEMA,
    ),
    _row(9, model.SchemaEvolve, topic_id=ID, version=UINT, schema=ROW_SCHEMA),
    _row(3, model.TopicClose, topic_id=ID),
    _row(4, model.PartitionsAdd, topic_id=ID, total=UINT, assignments=_ASSIGNMENTS),
    _row(5, model.ConfigSet, topic_id=ID, changes=_CHANGES),
    _row(6, model.IsrChange, topic_id=optional(ID), broker_id=BROKER_ID, in_sync=BOOL, time_ms=TIME_MS),
    _row(7, model.HoldersAdd, entry_index=UINT, command_no=UINT, object_no=UINT, broker_ids=_IDS),
    _row(8, model.GenerationAdvance, generation=_GENERATION, floor=UINT, began_ms=SINT),
    _row(
        40,
        model.PartitionChange,
        topic_id=ID,
        partition=UINT,
        leader_epoch=UINT,
        partition_epoch=UINT,
        leader=SINT,
        isr=_IDS,
        replicas=_IDS,
        adding=_IDS,
        removing=_IDS,
        is_unclean=BOOL,
    ),
    _row(41, model.BrokerFence, broker_id=BROKER_ID, is_fenced=BOOL),
    _row(42, model.Truncate, after_index=UINT),
    _row(55, AclsAdd, bindings=ACL_BINDINGS),
    _row(56, AclsRemove, bindings=ACL_BINDINGS),
    _row(57, QuotaAlter, entity=QUOTA_ENTITY, changes=list_of(TEXT, _QUOTA)),
    _row(58, model.ClusterConfigSet, changes=_CHANGES),
    _row(64, model.BrokerRegister, broker_id=BROKER_ID, url=_URL, rack=_RACK, probe=TEXT, root_id=optional(ID)),
    _row(65, model.LedgerRegister, name=_LEDGER_NAME, ledger_id=ID),
    _row(66, model.TopicPublish, name=_TOPIC_NAME, topic_id=ID, ledger_id=ID),
    _row(67, model.TopicUnpublish, name=_TOPIC_NAME, topic_id=ID),
    _row(68, model.FeatureSet, level=UINT),
    _row(
        69,
        model.GroupRecords,
        topic_id=ID,
        group=TEXT,
        writer_id=TEXT,
        member_id=TEXT,
        instance_id=TEXT,
        sequence=SINT,
        generation=SINT,
        revision=SINT,
        time_ms=SINT,
        records=_GROUP_RECORDS,
    ),
    _row(75, model.ProducerInit, producer_id=TEXT, instance_id=TEXT, epoch=UINT),
    _row(87, model.LogClean, topic_id=ID, partition=UINT, clean_offset=UINT, time_ms=TIME_MS),
    (86, Replace, Kind(encode_replace, decode_replace)),
    _row(85, model.LogStartAdvance, topic_id=ID, reason=enum_of(model.LogStartReason), offsets=_OFFSETS),
    _row(90, model.SnapshotCommit, base_no=UINT, index=UINT, name=_HEAD_NAME),
)
# Type number, command, and its fields in the order in which they are written: the table of docs/format.md.
MIRROR_TYPES = (MirrorAppend, model.MirrorSet, model.MirrorAdvance, LogExtend)
"""Commands that came with feature level 2; see `log/fold/entry_fold.py`."""
TYPE_IDS = {made: type_id for type_id, made, _ in _CODECS}
"""The first byte of each kind of command."""
_BY_TYPE = {type_id: kind for type_id, _, kind in _CODECS}
