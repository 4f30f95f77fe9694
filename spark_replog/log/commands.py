"""Ledger commands and their binary codec: `docs/format.md`, chapter "Ledger entry".

A command is a type byte, a version byte, and a body. Numbers are varints; the sections of an append are
columns, so that 1,024 of them decode in about a millisecond. Never pickle.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from spark_replog.errors import ErrorCode, UnsupportedFormatError
from spark_replog.log.group_records import decode_record, encode_record
from spark_replog.log.model import (
    Append,
    BrokerRegister,
    ClusterCommand,
    Command,
    ConfigSet,
    DataObject,
    FeatureSet,
    GenerationAdvance,
    GroupRecords,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LedgerRegister,
    PartitionsAdd,
    ProducerIdentity,
    ResetPolicy,
    Section,
    TopicClose,
    TopicCommand,
    TopicInit,
    TopicPublish,
    TopicUnpublish,
)
from spark_replog.log.results import CommandResult, Judgement, Outcome
from spark_replog.log.wire import Reader, Writer, corrupt, unzigzag, zigzag

COMMAND_FORMAT_VERSION = 1
SECTIONS_PER_OBJECT_MAX = 1 << 24
"""Sanity bound of the reader: a damaged count must not allocate memory."""

_OBJECT_HEADERS = 0x01
_OBJECT_SHORT_NAME = 0x02
_OBJECT_DASHED_UUID = 0x04
_FLAG_SAME_INCARNATION = 0x80
_SHORT_NAME = re.compile(
    r"(?P<prefix>.+-)(?P<task>0|[1-9][0-9]{0,17})-"
    r"(?P<uuid>[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.arrow"
)


def encode_command(command: Command) -> bytes:
    """Return the command's bytes.

    Raises:
        ValueError: a number is outside of what the format holds (64 bits, or negative where unsigned).
    """
    type_id, encode = _ENCODERS[type(command)]
    writer = Writer()
    writer.byte(type_id)
    writer.byte(COMMAND_FORMAT_VERSION)
    encode(writer, command)
    return bytes(writer.data)


def decode_command(data: bytes) -> Command:
    """Return the command behind the bytes.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: type or version of a newer release.
        CorruptDataError: CORRUPT_MESSAGE: damaged.
    """
    reader = Reader(data)
    type_id, version = reader.byte(), reader.byte()
    decode = _DECODERS.get(type_id)
    if decode is None or version != COMMAND_FORMAT_VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ledger command type {type_id} version {version} is unknown to this release."
            " Upgrade spark-replog on every driver and worker.",
        )
    try:
        command = decode(reader)
    except (ValueError, OverflowError) as error:
        raise corrupt(f"command type {type_id}: {error}") from error
    reader.finish()
    return command


# ---------------------------------------------------------------------------------------------- append


def _encode_append(writer: Writer, append: Append) -> None:
    identity = append.identity
    same = identity.incarnation == identity.producer_id
    writer.byte(identity.kind | identity.on_reset << 2 | (_FLAG_SAME_INCARNATION if same else 0))
    writer.text(identity.producer_id)
    if not same:
        writer.text(identity.incarnation)
    writer.sint(identity.sequence)
    writer.text(identity.run_id)
    writer.text(append.principal)
    writer.text(append.client_id)
    writer.sint(append.append_time_ms)
    topics = list(dict.fromkeys(s.topic_id for o in append.objects for s in o.sections))
    holder_sets = list(dict.fromkeys(o.holders for o in append.objects))
    base_ms = min((s.min_timestamp_ms for o in append.objects for s in o.sections), default=0)
    prefix = next((m["prefix"] for o in append.objects if (m := _SHORT_NAME.fullmatch(o.name))), "")
    writer.uint(len(topics))
    for topic in topics:
        writer.text(topic)
    writer.uint(len(holder_sets))
    for holders in holder_sets:
        _encode_ids(writer, tuple(sorted(holders)))
    writer.sint(base_ms)
    writer.text(prefix)
    writer.uint(len(append.objects))
    topic_numbers = {topic: number for number, topic in enumerate(topics)}
    holder_numbers = {holders: number for number, holders in enumerate(holder_sets)}
    for item in append.objects:
        _encode_object(writer, item, prefix, holder_numbers[item.holders])
        _encode_sections(writer, item.sections, topic_numbers, base_ms)


def _decode_append(reader: Reader) -> Append:
    flags = reader.byte()
    kind, on_reset = IdentityKind(flags & 0x03), ResetPolicy(flags >> 2 & 0x03)
    producer_id = reader.text()
    incarnation = producer_id if flags & _FLAG_SAME_INCARNATION else reader.text()
    identity = ProducerIdentity(producer_id, incarnation, reader.sint(), reader.text(), kind, on_reset)
    principal, client_id, append_time_ms = reader.text(), reader.text(), reader.sint()
    topics = [reader.text() for _ in range(reader.count())]
    holder_sets = [frozenset(_decode_ids(reader)) for _ in range(reader.count())]
    base_ms, prefix = reader.sint(), reader.text()
    objects = tuple(_decode_object(reader, prefix, holder_sets, topics, base_ms) for _ in range(reader.count()))
    return Append(identity, principal, client_id, append_time_ms, objects)


def _encode_object(writer: Writer, item: DataObject, prefix: str, holder_number: int) -> None:
    match = _SHORT_NAME.fullmatch(item.name)
    short = match is not None and match["prefix"] == prefix
    dashed = match is not None and len(match["uuid"]) > 32
    writer.byte(
        (_OBJECT_HEADERS if item.has_headers else 0)
        | (_OBJECT_SHORT_NAME if short else 0)
        | (_OBJECT_DASHED_UUID if short and dashed else 0)
    )
    if short and match is not None:
        writer.uint(int(match["task"]))
        writer.raw(bytes.fromhex(match["uuid"].replace("-", "")))
    else:
        writer.text(item.name)
    writer.uint(item.generation)
    writer.uint(item.size_bytes)
    writer.uint(holder_number)
    writer.uint(len(item.sections))


def _decode_object(
    reader: Reader, prefix: str, holder_sets: list[frozenset[int]], topics: list[str], base_ms: int
) -> DataObject:
    flags = reader.byte()
    if flags & _OBJECT_SHORT_NAME:
        task, digits = reader.uint(), reader.raw(16).hex()
        if flags & _OBJECT_DASHED_UUID:
            digits = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        name = f"{prefix}{task}-{digits}.arrow"
    else:
        name = reader.text()
    generation, size_bytes, holder_number = reader.uint(), reader.uint(), reader.uint()
    if holder_number >= len(holder_sets):
        raise corrupt(f"holder set {holder_number} is not in the table")
    sections = _decode_sections(reader, reader.uint(), topics, base_ms)
    return DataObject(generation, name, size_bytes, bool(flags & _OBJECT_HEADERS), holder_sets[holder_number], sections)


def _encode_sections(
    writer: Writer, sections: tuple[Section, ...], topic_numbers: dict[str, int], base_ms: int
) -> None:
    if not sections:
        return
    ends = [0, *(s.start_byte + s.size_bytes for s in sections[:-1])]
    partitions = [0, *(s.partition for s in sections[:-1])]
    writer.column([topic_numbers[s.topic_id] for s in sections])
    writer.column([zigzag(s.partition - before) for s, before in zip(sections, partitions, strict=True)])
    writer.column([s.row_count for s in sections])
    writer.column([s.start_byte - end for s, end in zip(sections, ends, strict=True)])
    writer.column([s.size_bytes for s in sections])
    writer.column([s.crc32c for s in sections])
    writer.column([s.min_timestamp_ms - base_ms for s in sections])
    writer.column([s.max_timestamp_ms - s.min_timestamp_ms for s in sections])


def _decode_sections(reader: Reader, count: int, topics: list[str], base_ms: int) -> tuple[Section, ...]:
    if count > SECTIONS_PER_OBJECT_MAX:
        raise corrupt(f"an object claims {count} sections")
    topic_numbers, steps = reader.column(count), reader.column(count)
    rows, gaps, sizes, crcs = (reader.column(count) for _ in range(4))
    minima, spans = reader.column(count), reader.column(count)
    if count and max(topic_numbers) >= len(topics):
        raise corrupt(f"topic {max(topic_numbers)} is not in the table")
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
    return tuple(sections)


# ---------------------------------------------------------------------------------- everything else


def _encode_ids(writer: Writer, ids: tuple[int, ...]) -> None:
    writer.uint(len(ids))
    for value in ids:
        writer.uint(value)


def _decode_ids(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.uint() for _ in range(reader.count()))


def _encode_assignments(writer: Writer, assignments: tuple[tuple[int, ...], ...]) -> None:
    writer.uint(len(assignments))
    for replicas in assignments:
        _encode_ids(writer, replicas)


def _decode_assignments(reader: Reader) -> tuple[tuple[int, ...], ...]:
    return tuple(_decode_ids(reader) for _ in range(reader.count()))


def _encode_optional(writer: Writer, value: str | None) -> None:
    writer.byte(value is not None)
    if value is not None:
        writer.text(value)


def _decode_optional(reader: Reader) -> str | None:
    return reader.text() if reader.byte() else None


def _encode_topic_init(writer: Writer, command: TopicInit) -> None:
    writer.text(command.topic_id)
    writer.text(command.name)
    _encode_assignments(writer, command.assignments)
    writer.uint(len(command.config))
    for key, value in command.config:
        writer.text(key)
        writer.text(value)


def _decode_topic_init(reader: Reader) -> TopicInit:
    topic_id, name, assignments = reader.text(), reader.text(), _decode_assignments(reader)
    config = tuple((reader.text(), reader.text()) for _ in range(reader.count()))
    return TopicInit(topic_id, name, assignments, config)


def _encode_partitions_add(writer: Writer, command: PartitionsAdd) -> None:
    writer.text(command.topic_id)
    writer.uint(command.total)
    _encode_assignments(writer, command.assignments)


def _decode_partitions_add(reader: Reader) -> PartitionsAdd:
    return PartitionsAdd(reader.text(), reader.uint(), _decode_assignments(reader))


def _encode_config_set(writer: Writer, command: ConfigSet) -> None:
    writer.text(command.topic_id)
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        _encode_optional(writer, value)


def _decode_config_set(reader: Reader) -> ConfigSet:
    topic_id = reader.text()
    changes = tuple((reader.text(), _decode_optional(reader)) for _ in range(reader.count()))
    return ConfigSet(topic_id, changes)


def _encode_isr_change(writer: Writer, command: IsrChange) -> None:
    _encode_optional(writer, command.topic_id)
    writer.uint(command.broker_id)
    writer.byte(command.in_sync)
    writer.sint(command.time_ms)


def _decode_isr_change(reader: Reader) -> IsrChange:
    return IsrChange(_decode_optional(reader), reader.uint(), bool(reader.byte()), reader.sint())


def _encode_holders_add(writer: Writer, command: HoldersAdd) -> None:
    writer.uint(command.entry_index)
    writer.uint(command.command_no)
    writer.uint(command.object_no)
    _encode_ids(writer, command.broker_ids)


def _decode_holders_add(reader: Reader) -> HoldersAdd:
    return HoldersAdd(reader.uint(), reader.uint(), reader.uint(), _decode_ids(reader))


def _encode_group_records(writer: Writer, command: GroupRecords) -> None:
    for text in (command.topic_id, command.group, command.writer_id, command.member_id, command.instance_id):
        writer.text(text)
    for number in (command.sequence, command.generation, command.revision, command.time_ms):
        writer.sint(number)
    writer.uint(len(command.records))
    for record in command.records:
        key, value = encode_record(record)
        writer.uint(len(key))
        writer.raw(key)
        writer.uint(0 if value is None else len(value) + 1)
        writer.raw(value or b"")


def _decode_group_records(reader: Reader) -> GroupRecords:
    topic_id, group, writer_id, member_id, instance_id = (reader.text() for _ in range(5))
    sequence, generation, revision, time_ms = (reader.sint() for _ in range(4))
    records = []
    for _ in range(reader.count()):
        key, size_bytes = reader.raw(reader.uint()), reader.uint()
        records.append(decode_record(key, reader.raw(size_bytes - 1) if size_bytes else None))
    return GroupRecords(
        topic_id,
        group,
        writer_id,
        sequence,
        member_id,
        instance_id,
        generation,
        revision,
        time_ms,
        tuple(records),
    )


def _encode_broker_register(writer: Writer, command: BrokerRegister) -> None:
    writer.uint(command.broker_id)
    writer.text(command.url)
    _encode_optional(writer, command.rack)
    writer.text(command.probe)


def _decode_broker_register(reader: Reader) -> BrokerRegister:
    return BrokerRegister(reader.uint(), reader.text(), _decode_optional(reader), reader.text())


def _encode_texts(*fields: str) -> Callable[[Writer, Any], None]:
    def encode(writer: Writer, command: Any) -> None:
        for field in fields:
            writer.text(getattr(command, field))

    return encode


def _encode_numbers(*fields: str) -> Callable[[Writer, Any], None]:
    def encode(writer: Writer, command: Any) -> None:
        for field in fields:
            writer.uint(getattr(command, field))

    return encode


_CODECS: tuple[tuple[int, type, Callable[[Writer, Any], None], Callable[[Reader], Command]], ...] = (
    (1, Append, _encode_append, _decode_append),
    (2, TopicInit, _encode_topic_init, _decode_topic_init),
    (3, TopicClose, _encode_texts("topic_id"), lambda r: TopicClose(r.text())),
    (4, PartitionsAdd, _encode_partitions_add, _decode_partitions_add),
    (5, ConfigSet, _encode_config_set, _decode_config_set),
    (6, IsrChange, _encode_isr_change, _decode_isr_change),
    (7, HoldersAdd, _encode_holders_add, _decode_holders_add),
    (
        8,
        GenerationAdvance,
        _encode_numbers("generation", "floor"),
        lambda r: GenerationAdvance(r.uint(), r.uint()),
    ),
    (69, GroupRecords, _encode_group_records, _decode_group_records),
    (64, BrokerRegister, _encode_broker_register, _decode_broker_register),
    (65, LedgerRegister, _encode_texts("name", "ledger_id"), lambda r: LedgerRegister(r.text(), r.text())),
    (
        66,
        TopicPublish,
        _encode_texts("name", "topic_id", "ledger_id"),
        lambda r: TopicPublish(r.text(), r.text(), r.text()),
    ),
    (67, TopicUnpublish, _encode_texts("name", "topic_id"), lambda r: TopicUnpublish(r.text(), r.text())),
    (68, FeatureSet, _encode_numbers("level"), lambda r: FeatureSet(r.uint())),
)
_ENCODERS = {kind: (type_id, encode) for type_id, kind, encode, _ in _CODECS}
_DECODERS = {type_id: decode for type_id, _, _, decode in _CODECS}

__all__ = [
    "COMMAND_FORMAT_VERSION",
    "Append",
    "BrokerRegister",
    "ClusterCommand",
    "Command",
    "CommandResult",
    "ConfigSet",
    "DataObject",
    "FeatureSet",
    "GenerationAdvance",
    "GroupRecords",
    "HoldersAdd",
    "IdentityKind",
    "IsrChange",
    "Judgement",
    "LedgerRegister",
    "Outcome",
    "PartitionsAdd",
    "ProducerIdentity",
    "ResetPolicy",
    "Section",
    "TopicClose",
    "TopicCommand",
    "TopicInit",
    "TopicPublish",
    "TopicUnpublish",
    "decode_command",
    "encode_command",
]
