"""Records for an application, made from Arrow batches with deserializers."""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, overload

import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import LOG_PREFIX
from spark_replog.log.row_key import key_array
from spark_replog.read.rows import HEADERS_AT, KEY_METADATA, OFFSET_AT, TIMESTAMP_AT, TIMESTAMP_TYPE_AT, TOPIC_AT
from spark_replog.write.serializers import built_in_name, load_class

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """One record.

    Attributes:
        key: bytes, or the result of ``key.deserializer``; None for a null. Of a typed topic: see ``RecordMaker``.
        value: as ``key``; of a typed topic a dict of its columns.
        headers: (key, value) pairs in order; empty without any.
        timestamp_ms: rounded down; set by the writer or, with LogAppendTime, by the commit.
        timestamp_type: CreateTime or LogAppendTime.
        timestamp_us: the stored time in microseconds; Kafka's records have milliseconds.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    timestamp_type: str
    timestamp_us: int = 0


_NEW = object.__new__
_SET = {name: vars(ConsumerRecord)[name].__set__ for name in ConsumerRecord.__slots__}
"""Set one field of a new record: many records are filled column by column. The constructor of a frozen class makes a
Python call for each record, and takes three times as long.
"""


class ConsumerRecords(Sequence[ConsumerRecord]):
    """The records of one poll, in order, partition by partition."""

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[ConsumerRecord] = ()) -> None:
        self._records = records

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ConsumerRecord]: ...
    def __getitem__(self, index: int | slice) -> ConsumerRecord | Sequence[ConsumerRecord]:
        """Return a record, or a slice of them."""
        return self._records[index]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Return all records, in order."""
        return iter(self._records)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have records, in order."""
        return list(dict.fromkeys(TopicPartition(record.topic, record.partition) for record in self._records))

    def records(self, key: TopicPartition) -> list[ConsumerRecord]:
        """Return the records of one partition."""
        return [record for record in self._records if record.topic == key.topic and record.partition == key.partition]


class RecordMaker:
    """Makes records from Arrow batches in the schema of ``RowView.read_schema(True)``. Without a deserializer: bytes.

    A typed row's value is a dict of its columns, with a dict for a map, and its key the bytes of its key columns
    (`log.row_key`), None without any; deserializers have no part in it.
    """

    def __init__(self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> None:
        self._key = key_deserializer
        self._value = value_deserializer

    def make(self, key: TopicPartition, batch: pa.RecordBatch) -> tuple[list[ConsumerRecord], ReplogError | None]:
        """Return the batch's records before the first one that a deserializer refuses, and that error."""
        if not batch.num_rows:
            return [], None
        offsets = batch.column(OFFSET_AT).to_pylist()
        refusal: ReplogError | None = None
        if batch.schema.names[-1].startswith(LOG_PREFIX):
            keys, values = _typed_keys(batch), _typed_values(batch)
        else:
            keys, values = (batch.column(number).to_pylist() for number in (0, 1))
            if self._key is not None or self._value is not None:
                refusal = self._deserialize(key, offsets, keys, values)
        times = batch.column(TIMESTAMP_AT).view(pa.int64()).to_pylist()
        columns: dict[str, Iterable[Any]] = {
            "topic": repeat(key.topic),
            "partition": repeat(key.partition),
            "offset": offsets,
            "key": keys,
            "value": values,
            "headers": _headers(batch),
            "timestamp_ms": [time_us // 1000 for time_us in times],
            "timestamp_type": repeat(TIMESTAMP_TYPES[batch.column(TIMESTAMP_TYPE_AT)[0].as_py()]),
            "timestamp_us": times,
        }
        records = [_NEW(ConsumerRecord) for _ in values]
        for name, column in columns.items():
            deque(map(_SET[name], records, column), maxlen=0)
        return records, refusal

    def _deserialize(
        self, key: TopicPartition, offsets: Sequence[int], keys: list[Any], values: list[Any]
    ) -> ReplogError | None:
        """Put what the deserializers return into both lists. At a refusal, cut them there and return its error."""
        for number, (raw_key, raw_value) in enumerate(zip(keys, values, strict=True)):
            try:
                if raw_key is not None and self._key is not None:
                    keys[number] = self._key(key.topic, raw_key)
                if raw_value is not None and self._value is not None:
                    values[number] = self._value(key.topic, raw_value)
            except Exception as error:  # whatever the application's class raises
                del keys[number:], values[number:]
                return _refusal(key, offsets[number], error)
        return None


def _headers(batch: pa.RecordBatch) -> Iterable[tuple[tuple[str, bytes | None], ...]]:
    """Return the headers of each row; empty without any."""
    headers = batch.column(HEADERS_AT)
    if not pa.types.is_list(headers.type) or headers.null_count == batch.num_rows:
        return repeat(())
    return [tuple([(header["key"], header["value"]) for header in row or ()]) for row in headers.to_pylist()]


def _typed_keys(batch: pa.RecordBatch) -> list[bytes | None]:
    names = json.loads(batch.schema.metadata[KEY_METADATA])
    return key_array([batch.column(name) for name in names]).to_pylist() if names else [None] * batch.num_rows


def _typed_values(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    count = batch.num_columns + TOPIC_AT
    columns = [_python_values(column) for column in batch.columns[:count]]
    names = batch.schema.names[:count]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_values(column: pa.Array) -> list[Any]:
    """Return a column's values; of a map a dict, whose last value of a key holds."""
    values = column.to_pylist()
    return [_with_dicts(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {_hashable(key): _with_dicts(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    return [_with_dicts(item, kind.value_type) for item in value]


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple((name, _hashable(value)) for name, value in key.items())
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _refusal(key: TopicPartition, offset: int, error: Exception) -> ReplogError:
    refused = CorruptDataError(
        ErrorCode.REPLOG_DESERIALIZATION,
        f"the deserializer refused the record at offset {offset} of {key.topic}-{key.partition}: {error!r}. Correct"
        " the deserializer, or seek past the record.",
        topic=key.topic,
        partition=key.partition,
        offset=offset,
    )
    refused.__cause__ = error
    return refused


Deserializer = Callable[[str, bytes], Any]
"""(topic, bytes) -> value. A null remains None and is not passed in."""


def _number(form: str) -> Deserializer:
    unpack = struct.Struct(form).unpack
    return lambda _topic, data: unpack(data)[0]


_BY_NAME: Mapping[str, Deserializer] = {
    "string": lambda _topic, data: data.decode(),
    "json": lambda _topic, data: json.loads(data),
    "short": _number(">h"),
    "int": _number(">i"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
}


def make_deserializer(setting: str, given: object) -> Deserializer | None:
    """Return the deserializer that a setting names; None: values stay bytes.

    Args:
        given: None, a built-in name or Kafka's class of it, ``module.Class``, a callable of bytes, or an object with
            ``deserialize(topic, data)``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    if isinstance(given, str):
        name = built_in_name(given)
        if name in _BY_NAME:
            return _BY_NAME[name]
        given = None if name == "bytes" else load_class(setting, given, ["bytes", *_BY_NAME])
    if given is None:
        return None
    method = getattr(given, "deserialize", None)
    if callable(method):
        deserialize: Deserializer = method
        return deserialize
    if callable(given):
        function = given
        return lambda _topic, data: function(data)
    raise InvalidConfigError(
        ErrorCode.REPLOG_INVALID_OPTION,
        f"'{setting}' is {given!r}. Give {', '.join(['bytes', *_BY_NAME])}, module.Class, or a callable.",
    )
