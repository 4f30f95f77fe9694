"""Ledger entries and their commands as bytes: `docs/format.md`, chapter "Ledger entry".

An entry frames the commands of one group commit. A command is a type byte, a version byte and a body. Numbers are
varints. `append_codec` holds the largest body, that of an append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import GENERATION_MAX, is_valid_topic_name
from spark_replog.log.acl import (
    AclBinding,
    AclOperation,
    AclsAdd,
    AclsRemove,
    PatternType,
    Permission,
    ResourceType,
)
from spark_replog.log.codec.append_codec import (
    IDS,
    decode_append,
    decode_sequenced_append,
    encode_append,
    encode_sequenced_append,
)
from spark_replog.log.codec.group_records import Record, decode_record, encode_record
from spark_replog.log.codec.wire import (
    BOOL,
    BROKER_ID,
    BYTES,
    ID,
    SINT,
    TEXT,
    TIME_MS,
    UINT,
    Kind,
    Reader,
    Writer,
    corrupt,
    enum_of,
    list_of,
    name_of,
    optional,
    record,
)
from spark_replog.log.model import (
    Append,
    BatchSequence,
    BrokerFence,
    BrokerRegister,
    ClusterCommand,
    ClusterConfigSet,
    Command,
    CommandResult,
    ConfigSet,
    DataObject,
    FeatureSet,
    GenerationAdvance,
    GroupRecords,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    Judgement,
    LedgerRegister,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    PartitionChange,
    PartitionsAdd,
    ProducerIdentity,
    ProducerInit,
    ResetPolicy,
    Section,
    SequencedAppend,
    TopicClose,
    TopicCommand,
    TopicInit,
    TopicPublish,
    TopicUnpublish,
    Truncate,
)
from spark_replog.log.quotas import QuotaAlter, QuotaEntity

ENTRY_FORMAT_VERSION = 1
COMMAND_FORMAT_VERSION = 1


def encode_entry(commands: Sequence[bytes]) -> bytes:
    """Return the payload: version byte, command count, then each command behind its length.

    Args:
        commands: results of `commands.encode_command`, in the order in which the fold judges them.
    """
    writer = Writer()
    writer.byte(ENTRY_FORMAT_VERSION)
    writer.uint(len(commands))
    for command in commands:
        writer.uint(len(command))
        writer.raw(command)
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
    commands = [reader.raw(reader.uint()) for _ in range(reader.count())]
    reader.finish()
    return commands


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
    found: list[Command | Undecodable] = []
    for data in encoded:
        try:
            found.append(decode_command(data))
        except CorruptDataError as error:
            found.append(Undecodable(str(error)))
    return found


def encode_command(command: Command) -> bytes:
    """Return the command's bytes.

    Raises:
        ValueError: a number is outside of what the format holds (64 bits, or negative where unsigned).
    """
    type_id, kind = _BY_COMMAND[type(command)]
    writer = Writer()
    writer.byte(type_id)
    writer.byte(COMMAND_FORMAT_VERSION)
    kind.write(writer, command)
    return bytes(writer.data)


def decode_command(data: bytes) -> Command:
    """Return the command behind the bytes.

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


def _read_generation(reader: Reader) -> int:
    value = reader.uint()
    if value > GENERATION_MAX:
        raise corrupt(f"{value} is not a generation")
    return value


_TOPIC_NAME = name_of(is_valid_topic_name, "topic name")
_LEDGER_NAME = name_of(is_valid_topic_name, "ledger name")
_URL = name_of(str.isprintable, "URL")
_ASSIGNMENTS = list_of(IDS)
_CHANGES = list_of(TEXT, optional(TEXT))
_QUOTA = Kind(_write_change, lambda reader: value - 1 if (value := reader.uint()) else None)
_GENERATION = Kind(Writer.uint, _read_generation)
_BINDINGS = list_of(
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
_ENTITY = record(QuotaEntity, user=optional(TEXT), client_id=optional(TEXT))
_OFFSETS = list_of(UINT, UINT)
_GROUP_RECORDS = list_of(Kind(_write_group_record, _read_group_record))


def _row(type_id: int, made: type, **kinds: Kind) -> tuple[int, type, Kind]:
    return type_id, made, record(made, **kinds)


_CODECS = (
    (1, Append, Kind(encode_append, decode_append)),
    (76, SequencedAppend, Kind(encode_sequenced_append, decode_sequenced_append)),
    _row(2, TopicInit, topic_id=ID, name=_TOPIC_NAME, assignments=_ASSIGNMENTS, config=list_of(TEXT, TEXT)),
    _row(3, TopicClose, topic_id=ID),
    _row(4, PartitionsAdd, topic_id=ID, total=UINT, assignments=_ASSIGNMENTS),
    _row(5, ConfigSet, topic_id=ID, changes=_CHANGES),
    _row(6, IsrChange, topic_id=optional(ID), broker_id=BROKER_ID, in_sync=BOOL, time_ms=TIME_MS),
    _row(7, HoldersAdd, entry_index=UINT, command_no=UINT, object_no=UINT, broker_ids=IDS),
    _row(8, GenerationAdvance, generation=_GENERATION, floor=UINT),
    _row(
        40,
        PartitionChange,
        topic_id=ID,
        partition=UINT,
        leader_epoch=UINT,
        partition_epoch=UINT,
        leader=SINT,
        isr=IDS,
        replicas=IDS,
        adding=IDS,
        removing=IDS,
        is_unclean=BOOL,
    ),
    _row(41, BrokerFence, broker_id=BROKER_ID, is_fenced=BOOL),
    _row(42, Truncate, after_index=UINT),
    _row(55, AclsAdd, bindings=_BINDINGS),
    _row(56, AclsRemove, bindings=_BINDINGS),
    _row(57, QuotaAlter, entity=_ENTITY, changes=list_of(TEXT, _QUOTA)),
    _row(58, ClusterConfigSet, changes=_CHANGES),
    _row(64, BrokerRegister, broker_id=BROKER_ID, url=_URL, rack=optional(TEXT), probe=TEXT),
    _row(65, LedgerRegister, name=_LEDGER_NAME, ledger_id=ID),
    _row(66, TopicPublish, name=_TOPIC_NAME, topic_id=ID, ledger_id=ID),
    _row(67, TopicUnpublish, name=_TOPIC_NAME, topic_id=ID),
    _row(68, FeatureSet, level=UINT),
    _row(
        69,
        GroupRecords,
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
    _row(75, ProducerInit, producer_id=TEXT, instance_id=TEXT, epoch=UINT),
    _row(85, LogStartAdvance, topic_id=ID, reason=enum_of(LogStartReason), offsets=_OFFSETS),
)
# Type number, command, and its fields in the order in which they are written: the table of docs/format.md.
_BY_COMMAND = {made: (type_id, kind) for type_id, made, kind in _CODECS}
_BY_TYPE = {type_id: kind for type_id, _, kind in _CODECS}

__all__ = [
    "AclsAdd",
    "AclsRemove",
    "Append",
    "BatchSequence",
    "BrokerFence",
    "BrokerRegister",
    "COMMAND_FORMAT_VERSION",
    "ClusterCommand",
    "ClusterConfigSet",
    "Command",
    "CommandResult",
    "ConfigSet",
    "DataObject",
    "ENTRY_FORMAT_VERSION",
    "FeatureSet",
    "GenerationAdvance",
    "GroupRecords",
    "HoldersAdd",
    "IdentityKind",
    "IsrChange",
    "Judgement",
    "LedgerRegister",
    "LogStartAdvance",
    "LogStartReason",
    "Outcome",
    "PartitionChange",
    "PartitionsAdd",
    "ProducerIdentity",
    "ProducerInit",
    "QuotaAlter",
    "ResetPolicy",
    "Section",
    "SequencedAppend",
    "TopicClose",
    "TopicCommand",
    "TopicInit",
    "TopicPublish",
    "TopicUnpublish",
    "Truncate",
    "Undecodable",
    "decode_command",
    "decode_commands",
    "decode_entry",
    "encode_command",
    "encode_entry",
]
