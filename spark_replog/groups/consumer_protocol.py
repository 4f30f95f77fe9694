"""Subscriptions and assignments as the bytes that Kafka's clients exchange: the consumer protocol, versions 0 to 3.

Source: ``ConsumerProtocolSubscription.json``, ``ConsumerProtocolAssignment.json``. Numbers are big endian. A newer
version only adds fields at the end, so what follows the fields that are wanted is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ids import TopicPartition
from spark_replog.wire import Reader

_SUBSCRIPTION_VERSION = 2
_OWNED_SINCE, _GENERATION_SINCE = 1, 2
_JSON_START = b"{"


class KafkaSubscription(NamedTuple):
    """What a member says in Kafka's protocol: see ``GroupSubscription``."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    generation: int


def damaged(what: object) -> CorruptDataError:
    """Return the error for bytes of a member that cannot be read."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE, f"a member's subscription or assignment cannot be read: {what}. Restart the member."
    )


def is_kafkas(data: bytes) -> bool:
    """Return whether bytes are in Kafka's protocol: they start with a version, the product's own with JSON's brace."""
    return bool(data) and not data.startswith(_JSON_START)


def decode_kafka_subscription(data: bytes) -> KafkaSubscription:
    """Return what the bytes say. Raises CORRUPT_MESSAGE."""
    reader = Reader(data, damaged)
    version = _number(reader, ">h")
    topics = tuple(_take_string(reader) for _ in range(_take_count(reader)))
    reader.raw(max(0, _number(reader, ">i")))  # what the assignor says beside it; null is -1
    owned = _take_partitions(reader) if version >= _OWNED_SINCE else ()
    generation = _number(reader, ">i") if version >= _GENERATION_SINCE else -1
    return KafkaSubscription(tuple(sorted(topics)), owned, generation)


def encode_kafka_subscription(value: KafkaSubscription) -> bytes:
    """Return the bytes of a subscription; the rest of what an assignor may say is null."""
    head = struct.pack(">hi", _SUBSCRIPTION_VERSION, len(value.topics))
    topics = b"".join(_string(topic) for topic in value.topics)
    return head + topics + struct.pack(">i", -1) + _partitions(value.owned) + struct.pack(">i", value.generation)


def decode_kafka_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions that the bytes name. Raises CORRUPT_MESSAGE."""
    reader = Reader(data, damaged)
    reader.raw(2)  # its version: no later one changes what follows
    return _take_partitions(reader)


def encode_kafka_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """Return the bytes of an assignment."""
    return struct.pack(">h", 0) + _partitions(partitions) + struct.pack(">i", -1)


def _partitions(keys: Sequence[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for key in sorted(keys):
        topics.setdefault(key.topic, []).append(key.partition)
    parts = [
        _string(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for name, numbers in topics.items()
    ]
    return struct.pack(">i", len(topics)) + b"".join(parts)


def _take_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    keys: list[TopicPartition] = []
    for _ in range(_take_count(reader)):
        topic, count = _take_string(reader), _take_count(reader)
        numbers = struct.unpack(f">{count}i", reader.raw(4 * count))
        keys += [TopicPartition(topic, number) for number in numbers]
    return tuple(sorted(keys))


def _take_count(reader: Reader) -> int:
    count = _number(reader, ">i")
    if not 0 <= count <= reader.left_count():
        raise damaged(f"a list has {count} items")
    return count


def _take_string(reader: Reader) -> str:
    return reader.utf8(_number(reader, ">h"))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _number(reader: Reader, form: str) -> int:
    value: int = struct.unpack(form, reader.raw(struct.calcsize(form)))[0]
    return value
