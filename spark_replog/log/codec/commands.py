"""Ledger entries and their commands as bytes: `docs/format.md`, chapter "Ledger entry".

An entry frames the commands of one group commit. A command is a type byte, a version byte and a body. Numbers are
varints. `append_codec` holds the largest body, that of an append.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    decode_append,
    decode_ids,
    decode_sequenced_append,
    encode_append,
    encode_ids,
    encode_sequenced_append,
)
from spark_replog.log.codec.group_records import decode_record, encode_record
from spark_replog.log.codec.wire import Reader, Writer, corrupt
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


def _topic_name(reader: Reader) -> str:
    return reader.checked(is_valid_topic_name, "topic name")


def _ledger_name(reader: Reader) -> str:
    return reader.checked(is_valid_topic_name, "ledger name")


def _encode_assignments(writer: Writer, assignments: tuple[tuple[int, ...], ...]) -> None:
    writer.uint(len(assignments))
    for replicas in assignments:
        encode_ids(writer, replicas)


def _decode_assignments(reader: Reader) -> tuple[tuple[int, ...], ...]:
    return tuple(decode_ids(reader) for _ in range(reader.count()))


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
    topic_id, name, assignments = reader.id(), _topic_name(reader), _decode_assignments(reader)
    config = tuple((reader.text(), reader.text()) for _ in range(reader.count()))
    return TopicInit(topic_id, name, assignments, config)


def _encode_partitions_add(writer: Writer, command: PartitionsAdd) -> None:
    writer.text(command.topic_id)
    writer.uint(command.total)
    _encode_assignments(writer, command.assignments)


def _decode_partitions_add(reader: Reader) -> PartitionsAdd:
    return PartitionsAdd(reader.id(), reader.uint(), _decode_assignments(reader))


def _encode_config_set(writer: Writer, command: ConfigSet) -> None:
    writer.text(command.topic_id)
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        _encode_optional(writer, value)


def _decode_config_set(reader: Reader) -> ConfigSet:
    topic_id = reader.id()
    changes = tuple((reader.text(), _decode_optional(reader)) for _ in range(reader.count()))
    return ConfigSet(topic_id, changes)


def _encode_log_start_advance(writer: Writer, command: LogStartAdvance) -> None:
    writer.text(command.topic_id)
    writer.byte(command.reason)
    writer.uint(len(command.offsets))
    for partition, offset in command.offsets:
        writer.uint(partition)
        writer.uint(offset)


def _decode_log_start_advance(reader: Reader) -> LogStartAdvance:
    topic_id, reason = reader.id(), LogStartReason(reader.byte())
    return LogStartAdvance(topic_id, reason, tuple((reader.uint(), reader.uint()) for _ in range(reader.count())))


def _encode_isr_change(writer: Writer, command: IsrChange) -> None:
    _encode_optional(writer, command.topic_id)
    writer.uint(command.broker_id)
    writer.byte(command.in_sync)
    writer.sint(command.time_ms)


def _decode_isr_change(reader: Reader) -> IsrChange:
    topic_id = reader.id() if reader.byte() else None
    return IsrChange(topic_id, reader.broker_id(), bool(reader.byte()), reader.time_ms())


def _encode_holders_add(writer: Writer, command: HoldersAdd) -> None:
    writer.uint(command.entry_index)
    writer.uint(command.command_no)
    writer.uint(command.object_no)
    encode_ids(writer, command.broker_ids)


def _decode_holders_add(reader: Reader) -> HoldersAdd:
    return HoldersAdd(reader.uint(), reader.uint(), reader.uint(), decode_ids(reader))


def _decode_generation_advance(reader: Reader) -> GenerationAdvance:
    command = GenerationAdvance(reader.uint(), reader.uint())
    if command.generation > GENERATION_MAX:
        raise corrupt(f"{command.generation} is not a generation")
    return command


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
    topic_id = reader.id()
    group, writer_id, member_id, instance_id = (reader.text() for _ in range(4))
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


def _encode_partition_change(writer: Writer, command: PartitionChange) -> None:
    writer.text(command.topic_id)
    for number in (command.partition, command.leader_epoch, command.partition_epoch):
        writer.uint(number)
    writer.sint(command.leader)
    for ids in (command.isr, command.replicas, command.adding, command.removing):
        encode_ids(writer, ids)
    writer.byte(command.is_unclean)


def _decode_partition_change(reader: Reader) -> PartitionChange:
    topic_id, partition, leader_epoch, partition_epoch = reader.id(), reader.uint(), reader.uint(), reader.uint()
    leader = reader.sint()
    isr, replicas, adding, removing = (decode_ids(reader) for _ in range(4))
    return PartitionChange(
        topic_id,
        partition,
        leader_epoch,
        partition_epoch,
        leader,
        isr,
        replicas,
        adding,
        removing,
        bool(reader.byte()),
    )


def _encode_broker_register(writer: Writer, command: BrokerRegister) -> None:
    writer.uint(command.broker_id)
    writer.text(command.url)
    _encode_optional(writer, command.rack)
    writer.text(command.probe)


def _decode_broker_register(reader: Reader) -> BrokerRegister:
    broker_id, url = reader.broker_id(), reader.checked(str.isprintable, "URL")
    return BrokerRegister(broker_id, url, _decode_optional(reader), reader.text())


def _encode_producer_init(writer: Writer, command: ProducerInit) -> None:
    writer.text(command.producer_id)
    writer.text(command.instance_id)
    writer.uint(command.epoch)


def _encode_acls(writer: Writer, command: AclsAdd | AclsRemove) -> None:
    """Append the bindings."""
    writer.uint(len(command.bindings))
    for binding in command.bindings:
        writer.byte(binding.resource_type)
        writer.text(binding.name)
        writer.byte(binding.pattern_type)
        writer.text(binding.principal)
        writer.byte(binding.operation)
        writer.byte(binding.permission)


def _decode_acls(reader: Reader) -> tuple[AclBinding, ...]:
    """Take the bindings.

    Raises:
        ValueError: a number that no release of this format writes.
    """
    return tuple(
        AclBinding(
            ResourceType(reader.byte()),
            reader.text(),
            PatternType(reader.byte()),
            reader.text(),
            AclOperation(reader.byte()),
            Permission(reader.byte()),
        )
        for _ in range(reader.count())
    )


def _encode_quota_alter(writer: Writer, command: QuotaAlter) -> None:
    """Append the entity and its changes."""
    for name in command.entity:
        _encode_optional(writer, name)
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        writer.uint(0 if value is None else value + 1)


def _decode_quota_alter(reader: Reader) -> QuotaAlter:
    """Take the entity and its changes."""
    entity = QuotaEntity(_decode_optional(reader), _decode_optional(reader))
    changes = []
    for _ in range(reader.count()):
        key, value = reader.text(), reader.uint()
        changes.append((key, value - 1 if value else None))
    return QuotaAlter(entity, tuple(changes))


def _encode_cluster_config(writer: Writer, command: ClusterConfigSet) -> None:
    """Append the changes."""
    writer.uint(len(command.changes))
    for key, value in command.changes:
        writer.text(key)
        _encode_optional(writer, value)


def _decode_cluster_config(reader: Reader) -> ClusterConfigSet:
    """Take the changes."""
    return ClusterConfigSet(tuple((reader.text(), _decode_optional(reader)) for _ in range(reader.count())))


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
    (1, Append, encode_append, decode_append),
    (2, TopicInit, _encode_topic_init, _decode_topic_init),
    (3, TopicClose, _encode_texts("topic_id"), lambda r: TopicClose(r.id())),
    (4, PartitionsAdd, _encode_partitions_add, _decode_partitions_add),
    (5, ConfigSet, _encode_config_set, _decode_config_set),
    (6, IsrChange, _encode_isr_change, _decode_isr_change),
    (7, HoldersAdd, _encode_holders_add, _decode_holders_add),
    (
        8,
        GenerationAdvance,
        _encode_numbers("generation", "floor"),
        _decode_generation_advance,
    ),
    (85, LogStartAdvance, _encode_log_start_advance, _decode_log_start_advance),
    (69, GroupRecords, _encode_group_records, _decode_group_records),
    (
        75,
        ProducerInit,
        _encode_producer_init,
        lambda r: ProducerInit(r.text(), r.text(), r.uint()),
    ),
    (76, SequencedAppend, encode_sequenced_append, decode_sequenced_append),
    (40, PartitionChange, _encode_partition_change, _decode_partition_change),
    (41, BrokerFence, _encode_numbers("broker_id", "is_fenced"), lambda r: BrokerFence(r.broker_id(), bool(r.uint()))),
    (42, Truncate, _encode_numbers("after_index"), lambda r: Truncate(r.uint())),
    (55, AclsAdd, _encode_acls, lambda r: AclsAdd(_decode_acls(r))),
    (56, AclsRemove, _encode_acls, lambda r: AclsRemove(_decode_acls(r))),
    (57, QuotaAlter, _encode_quota_alter, _decode_quota_alter),
    (58, ClusterConfigSet, _encode_cluster_config, _decode_cluster_config),
    (64, BrokerRegister, _encode_broker_register, _decode_broker_register),
    (65, LedgerRegister, _encode_texts("name", "ledger_id"), lambda r: LedgerRegister(_ledger_name(r), r.id())),
    (
        66,
        TopicPublish,
        _encode_texts("name", "topic_id", "ledger_id"),
        lambda r: TopicPublish(_topic_name(r), r.id(), r.id()),
    ),
    (67, TopicUnpublish, _encode_texts("name", "topic_id"), lambda r: TopicUnpublish(_topic_name(r), r.id())),
    (68, FeatureSet, _encode_numbers("level"), lambda r: FeatureSet(r.uint())),
)
_ENCODERS = {kind: (type_id, encode) for type_id, kind, encode, _ in _CODECS}
_DECODERS = {type_id: decode for type_id, _, _, decode in _CODECS}

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
