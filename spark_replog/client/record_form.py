"""What a record becomes before it is appended: bytes, a partition's queue, checked headers and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_replog.client.producer_metadata import TopicEntry
from spark_replog.client.settings import ProducerSettings
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.log.ddl import type_text
from spark_replog.log.row_key import key_bytes
from spark_replog.log.row_schema import RowSchema
from spark_replog.write.arrow_appender import no_key
from spark_replog.write.partitioner import StickyPartitioner, make_partitioner
from spark_replog.write.producer_batch import Headers, PartitionQueue
from spark_replog.write.serializers import BytesSerializer, make_serializer, serialize


class RecordError(ReplogError):
    """Carries an error that fails the handle instead of the call."""

    def __init__(self, error: ReplogError) -> None:
        super().__init__(error.code, error.args[0])
        self.error = error


class RecordForm:
    """Serializers and partitioner of one producer.

    Attributes:
        takes_bytes: whether the serializers take bytes as they are.
    """

    __slots__ = ("ignores_keys", "key_serializer", "partitioner", "takes_bytes", "value_serializer")

    def __init__(self, settings: ProducerSettings) -> None:
        client, producer, objects = settings.client, settings.producer, settings.objects
        self.key_serializer = make_serializer("key.serializer", objects.get("key.serializer", client.key_serializer))
        self.value_serializer = make_serializer(
            "value.serializer", objects.get("value.serializer", client.value_serializer)
        )
        self.takes_bytes = type(self.key_serializer) is type(self.value_serializer) is BytesSerializer
        self.partitioner = make_partitioner(objects.get("partitioner.class", producer.partitioner_class))
        self.ignores_keys = producer.partitioner_ignore_keys

    def serialize(self, topic: str, key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
        """Return key and value as bytes; of a typed topic see `row`."""
        key_bytes = serialize(self.key_serializer, "key", topic, key)
        return key_bytes, serialize(self.value_serializer, "value", topic, value)

    def row(self, schema: RowSchema, topic: str, key: Any, value: Any) -> tuple[bytes | None, pa.Array]:
        """Return a typed row's key, and the row as a struct of one value. Serializers have no part.

        Raises:
            InvalidConfigError: INVALID_RECORD.
        """
        if key is not None:
            names = ", ".join(f"'{name}'" for name in schema.key) or "no column"
            raise _bad_row(topic, f"key={key!r:.40} is given, and its key is {names}", "Leave key out")
        if not isinstance(value, Mapping):
            what = "a tombstone (None)" if value is None else f"{type(value).__name__}"
            raise _bad_row(topic, f"the value is {what}", f"Send a dict with its columns {schema.ddl}")
        given = value if isinstance(value, dict) else dict(value)
        extra = given.keys() - schema.arrow.names
        if extra:
            raise _bad_row(topic, f"{sorted(map(str, extra))} are no columns of it: {schema.ddl}", "Leave them out")
        for name in schema.required:
            if given.get(name) is None:
                raise _bad_row(topic, f"the NOT NULL column '{name}' has no value", "Give it one")
        try:
            row = pa.array([given], schema.struct)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _bad_row(topic, _bad_column(schema, given, error), "Give a value of that type") from error
        at = [schema.arrow.get_field_index(name) for name in schema.key]
        values = [row.field(number)[0].as_py() for number in at]
        key = key_bytes(values, [schema.arrow.types[number] for number in at]) if at else None
        return key, row

    def choose(
        self,
        entry: TopicEntry,
        topic: str,
        partition: int | None,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        data: bytes | None,
    ) -> tuple[PartitionQueue, StickyPartitioner | None]:
        """Return the queue of the given partition, of the user's partitioner, or the sticky one."""
        if key_bytes is None and entry.plan.is_compacted:
            raise RecordError(no_key(topic))
        if partition is not None:
            return entry.queues[partition], None
        if self.partitioner is not None:
            number = self.partitioner.partition(topic, key, key_bytes, value, data, len(entry.queues))
            return entry.queues[number], None
        return entry.sticky.queue, entry.sticky


def _bad_column(schema: RowSchema, given: Mapping[str, Any], error: Exception) -> str:
    """Return which value of a row Arrow refuses, and why."""
    for column in schema.arrow:
        try:
            pa.array([given.get(column.name)], column.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            value = given[column.name]
            words = f"column '{column.name}' {type_text(column.type)} cannot hold {type(value).__name__} {value!r:.60}"
            return f"{words} ({problem})"
    return str(error)


def _bad_row(topic: str, what: str, remedy: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.INVALID_RECORD, f"A row for the typed topic '{topic}' is refused: {what}. {remedy}.", topic=topic
    )


def checked_partition(partition: object) -> int:
    """Return a partition's number.

    Raises:
        InvalidConfigError: INVALID_PARTITIONS.
    """
    if isinstance(partition, int) and not isinstance(partition, bool) and partition >= 0:
        return partition
    raise InvalidConfigError(
        ErrorCode.INVALID_PARTITIONS,
        f"Invalid partition {partition!r}: give a number from 0, or None to have one chosen.",
    )


def checked_time(timestamp_ms: object) -> int:
    """Return milliseconds since 1970.

    Raises:
        InvalidConfigError: INVALID_TIMESTAMP.
    """
    if isinstance(timestamp_ms, int) and not isinstance(timestamp_ms, bool) and 0 <= timestamp_ms < 2**53:
        return timestamp_ms
    raise InvalidConfigError(
        ErrorCode.INVALID_TIMESTAMP,
        f"Invalid timestamp_ms {timestamp_ms!r}: give milliseconds since 1970, or None for the current time.",
    )


def checked_headers(headers: Any) -> Headers | None:
    """Return headers as pairs of str and bytes or None.

    Raises:
        InvalidConfigError: INVALID_RECORD.
    """
    if headers is None:
        return None
    try:
        pairs = tuple((name, None if content is None else bytes(memoryview(content))) for name, content in headers)
        if all(isinstance(name, str) and (name.isascii() or name.encode()) for name, _ in pairs):
            return pairs
    except (TypeError, ValueError):
        pass
    raise InvalidConfigError(
        ErrorCode.INVALID_RECORD, "Invalid headers: give pairs of str and bytes or None, as in [('name', b'content')]."
    )
