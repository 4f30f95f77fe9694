"""Records of `__consumer_offsets` and their bytes: Kafka's versioned key and value schemas.

Source: ``OffsetCommitKey.json``, ``OffsetCommitValue.json``, ``GroupMetadataKey.json``. A key or a value begins
with its version, two bytes, big endian; a null value is a tombstone. The value of a group's metadata is of
version 100, because Kafka keeps joining members in the memory of a broker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ids import TopicId
from spark_replog.wire import BOOL, BYTES, SINT, TEXT, UINT, Reader, Writer, enum_of, list_of, record

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
GROUP_VALUE_VERSION = 100
NO_LEADER_EPOCH = -1
_NO_TOPIC_ID = "0" * 32


class GroupPhase(IntEnum):
    """The phase of a group. Source: ``ClassicGroupState``."""

    EMPTY = 0
    PREPARING_REBALANCE = 1
    COMPLETING_REBALANCE = 2
    STABLE = 3


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The commit of a group for one partition.

    Attributes:
        offset: of the NEXT record to read.
        topic_id: of the topic that was read; '' if the writer did not know it. Another id under the
            same name is another topic, so the offset means nothing there.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_time_ms: int = 0
    expire_time_ms: int | None = None
    topic_id: TopicId = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group.

    Attributes:
        instance_id: `group.instance.id`; '' for a dynamic member.
        is_joined: whether it has joined the running rebalance.
        protocols: (assignor, subscription) in the member's order of preference.
        assignment: from the leader, once synchronised.
    """

    member_id: str
    instance_id: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    is_joined: bool
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group's membership.

    Attributes:
        generation: of the last completed join; 0 before the first.
        protocol: the assignor of that generation; '' without one.
        leader: member id; '' without one.
        since_ms: wall time of the change to this phase, for the expiry of offsets only.
    """

    protocol_type: str = ""
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    phase: GroupPhase = GroupPhase.EMPTY
    since_ms: int = 0
    members: tuple[GroupMember, ...] = field(default=())

    def member(self, member_id: str) -> GroupMember | None:
        """Return the member, or None."""
        return next((client for client in self.members if client.member_id == member_id), None)

    def instance(self, instance_id: str) -> GroupMember | None:
        """Return the static member of this instance, or None."""
        return next((client for client in self.members if instance_id and client.instance_id == instance_id), None)


class OffsetRecord(NamedTuple):
    """An offset of one partition; value None is a tombstone."""

    group: str
    topic: str
    partition: int
    value: OffsetAndMetadata | None


class GroupRecord(NamedTuple):
    """A group's metadata; value None is a tombstone."""

    group: str
    value: GroupMetadata | None


Record = OffsetRecord | GroupRecord


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    if isinstance(record, OffsetRecord):
        key = struct.pack(">h", OFFSET_KEY_VERSION) + _string(record.group) + _string(record.topic)
        key += struct.pack(">i", record.partition)
        return key, None if record.value is None else encode_offset_value(record.value)
    key = struct.pack(">h", GROUP_KEY_VERSION) + _string(record.group)
    if record.value is None:
        return key, None
    writer = Writer()
    writer.raw(struct.pack(">h", GROUP_VALUE_VERSION))
    GROUP_METADATA.write(writer, record.value)
    return key, bytes(writer.data)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """Return the record of a key and a value.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: a version of a newer release.
        CorruptDataError: CORRUPT_MESSAGE.
    """
    taken = Reader(key, _damaged)
    version = _number(taken, ">h")
    if version in (0, OFFSET_KEY_VERSION):
        group, topic, partition = _take_string(taken), _take_string(taken), _number(taken, ">i")
        taken.finish()
        return OffsetRecord(group, topic, partition, None if value is None else decode_offset_value(value))
    if version == GROUP_KEY_VERSION:
        group = _take_string(taken)
        taken.finish()
        return GroupRecord(group, None if value is None else _decode_group(value))
    raise _unknown("key", version)


def encode_offset_value(value: OffsetAndMetadata) -> bytes:
    """Return the newest version's bytes of an offset: the one that holds a topic id (KIP-848)."""
    metadata, writer = value.metadata.encode(), Writer()
    writer.raw(struct.pack(">hqi", OFFSET_VALUE_VERSION, value.offset, value.leader_epoch))
    writer.uint(len(metadata) + 1)
    writer.raw(metadata)
    writer.raw(struct.pack(">q", value.commit_time_ms))
    writer.raw(b"\1\0\x10" + bytes.fromhex(value.topic_id) if value.topic_id else b"\0")  # one field: tag 0, 16 bytes
    return bytes(writer.data)


def decode_offset_value(data: bytes) -> OffsetAndMetadata:
    """Return the offset of any version, 0 to 4.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION.
        CorruptDataError: CORRUPT_MESSAGE.
    """
    taken = Reader(data, _damaged)
    version = _number(taken, ">h")
    if not 0 <= version <= OFFSET_VALUE_VERSION:
        raise _unknown("offset value", version)
    offset = _number(taken, ">q")
    epoch = _number(taken, ">i") if version >= 3 else NO_LEADER_EPOCH
    metadata = taken.utf8(taken.uint() - 1) if version >= 4 else _take_string(taken)
    commit_time_ms = _number(taken, ">q")
    expire_time_ms = _number(taken, ">q") if version == 1 else None
    topic_id = ""
    for _ in range(taken.uint() if version >= 4 else 0):
        tag, size_bytes = taken.uint(), taken.uint()
        body = taken.raw(size_bytes)
        if tag == 0 and body.hex() != _NO_TOPIC_ID:
            topic_id = body.hex()
    taken.finish()
    return OffsetAndMetadata(offset, epoch, metadata, commit_time_ms, expire_time_ms, topic_id)


_MEMBER = record(
    GroupMember,
    member_id=TEXT,
    instance_id=TEXT,
    client_id=TEXT,
    session_timeout_ms=UINT,
    rebalance_timeout_ms=UINT,
    is_joined=BOOL,
    protocols=list_of(TEXT, BYTES),
    assignment=BYTES,
)
GROUP_METADATA = record(
    GroupMetadata,
    protocol_type=TEXT,
    generation=SINT,
    protocol=TEXT,
    leader=TEXT,
    phase=enum_of(GroupPhase),
    since_ms=SINT,
    members=list_of(_MEMBER),
)


def _decode_group(data: bytes) -> GroupMetadata:
    reader = Reader(data, _damaged)
    version = _number(reader, ">h")
    if version != GROUP_VALUE_VERSION:
        raise _unknown("group value", version)
    value: GroupMetadata = GROUP_METADATA.read(reader)
    reader.finish()
    return value


def _string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 0x7FFF:
        raise ValueError(f"a text of {len(encoded)} bytes does not fit Kafka's STRING")
    return struct.pack(">h", len(encoded)) + encoded


def _number(reader: Reader, form: str) -> int:
    value: int = struct.unpack(form, reader.raw(struct.calcsize(form)))[0]
    return value


def _take_string(reader: Reader) -> str:
    return reader.utf8(_number(reader, ">h"))


def _damaged(what: str) -> CorruptDataError:
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"a record of __consumer_offsets is damaged: {what}. Run `replog store verify` to see which roots hold it.",
    )


def _unknown(what: str, version: int) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"{what} version {version} of __consumer_offsets is unknown to this release. Upgrade spark-replog wherever"
        " this group is used.",
    )
