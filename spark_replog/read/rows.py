"""Converts stored columns to the columns that a reader sees, without work per row.

Topic, partition, offset and timestampType are not stored. Constant columns are slices of one cached array.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.codec.data_object import (
    HEADERS_TYPE,
    LOG_PREFIX,
    TIMESTAMP_TYPE,
    TYPED_HEADERS,
    TYPED_OFFSET,
    TYPED_TIMESTAMP,
    array_of,
    join_batches,
)
from spark_replog.log.column_cast import cast_column
from spark_replog.log.ddl import invalid_schema, type_text
from spark_replog.log.row_schema import RowSchema

_SHARED_ROWS_MIN = 1024
"""Constant columns of so few rows are views of one array, which all partitions share."""
_READ_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("timestampType", pa.int32()),
]
_READ_PLAIN = pa.schema(_READ_FIELDS)
_READ_HEADERS = pa.schema([*_READ_FIELDS, pa.field("headers", HEADERS_TYPE)])


def read_schema(include_headers: bool) -> pa.Schema:
    """Return the columns of a read, in Spark's Kafka order: key, value, topic, partition, offset, timestamp,
    timestampType[, headers]; all nullable.
    """
    return _READ_HEADERS if include_headers else _READ_PLAIN


TOPIC_AT, PARTITION_AT, OFFSET_AT, TIMESTAMP_AT, TIMESTAMP_TYPE_AT, HEADERS_AT = range(-6, 0)
"""Columns of a read with headers, counted from its end: the columns of a topic's rows come before them."""
_TYPED_LOG_FIELDS = [
    pa.field(LOG_PREFIX + name, kind)
    for name, kind in (
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS_TYPE),
    )
]
LOG_COLUMNS = tuple(column.name for column in _TYPED_LOG_FIELDS)
"""What a read of a typed topic has beside the topic's columns."""


KEY_METADATA = b"replog.key"
"""Of the schema of a typed read: the names of the key columns, as a JSON list."""


def log_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return topic, partition, offset, timestamp or headers of a read, of bytes or typed rows."""
    is_typed = batch.schema.names[-1].startswith(LOG_PREFIX)
    return batch.column(f"{LOG_PREFIX}{name}" if is_typed else name)


@dataclass(frozen=True)
class RowView:
    """What a reader sees of one topic's rows: in which version, and which columns. A value that pickles small.

    Args:
        schema: rows of older versions are read as this one; None: rows are bytes, with the columns key and value.
        columns: the only columns of a typed topic to decode, in this order; None: all.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: the topic has no such column.
    """

    schema: RowSchema | None = None
    columns: tuple[str, ...] | None = None
    fields: tuple[pa.Field, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = tuple(_READ_FIELDS[:2]) if self.schema is None else tuple(self.schema.arrow)
        if self.columns is not None:
            by_name = {column.name: column for column in fields}
            for name in self.columns:
                if name not in by_name:
                    raise invalid_schema(
                        f"the topic has no column '{name}'. Its columns are {', '.join(by_name)}. Name some of them.",
                        column=name,
                    )
            fields = tuple(by_name[name] for name in self.columns)
        object.__setattr__(self, "fields", fields)

    def __reduce__(self) -> tuple[type[RowView], tuple[RowSchema | None, tuple[str, ...] | None]]:
        return type(self), (self.schema, self.columns)

    def read_schema(self, include_headers: bool) -> pa.Schema:
        """Return the columns of a read: the topic's, then topic, partition, offset, timestamp, type[, headers]."""
        if self.schema is None:
            return read_schema(include_headers)
        metadata = {KEY_METADATA: json.dumps(self.schema.key).encode()}
        return pa.schema([*self.fields, *_TYPED_LOG_FIELDS[: 5 + include_headers]], metadata)

    def stored_schema(self, has_headers: bool) -> pa.Schema:
        """Return the columns of `stored_columns`."""
        return pa.schema([*self.fields, _TYPED_LOG_FIELDS[3], *_TYPED_LOG_FIELDS[5:][:has_headers]])

    def stored_names(self, stored: RowSchema, include_headers: bool) -> tuple[str, ...]:
        """Return which columns of stored rows this view needs."""
        names = [column.name for column in self.fields if stored.arrow.get_field_index(column.name) >= 0]
        return (*names, TYPED_TIMESTAMP, TYPED_OFFSET, *[TYPED_HEADERS][:include_headers])


BYTES = RowView()
"""Of topics whose rows are a key and a value."""


class Run(NamedTuple):
    """Values that the rows of one output batch share."""

    topic: str
    partition: int
    timestamp_type: int
    view: RowView = BYTES


def stored_columns(
    batch: pa.RecordBatch, *, include_headers: bool, append_time_ms: int | None, view: RowView = BYTES
) -> pa.RecordBatch:
    """Return key, value, timestamp[, headers] of a stored batch; without headers if its object has none.

    Of a typed topic it has the columns of the view in place of key and value, whatever version the rows have. Stored
    offsets are left out. `append_time_ms` replaces the rows' own time (LogAppendTime topics); None keeps it.
    """
    if view.schema is not None:
        return _typed_columns(batch, view, include_headers=include_headers, append_time_ms=append_time_ms)
    columns = [batch.column(0), batch.column(1), batch.column(2)]
    names = ["key", "value", "timestamp"]
    if append_time_ms is not None:
        columns[2] = _same_times(append_time_ms, batch.num_rows)
    if include_headers and "headers" in batch.schema.names:
        names.append("headers")
        columns.append(_null_empty(batch.column(3)))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _same_times(time_ms: int, rows: int) -> pa.Array:
    return array_of(np.full(rows, time_ms * 1000, dtype=np.int64)).cast(TIMESTAMP_TYPE)


def _typed_columns(
    batch: pa.RecordBatch, view: RowView, *, include_headers: bool, append_time_ms: int | None
) -> pa.RecordBatch:
    at = {name: number for number, name in enumerate(batch.schema.names)}
    columns = [
        _as_viewed(batch.column(at[column.name]), column) if column.name in at else pa.nulls(len(batch), column.type)
        for column in view.fields
    ]
    times = batch.column(at[TYPED_TIMESTAMP]) if append_time_ms is None else _same_times(append_time_ms, batch.num_rows)
    columns.append(times)
    has_headers = include_headers and TYPED_HEADERS in at
    if has_headers:
        columns.append(_null_empty(batch.column(at[TYPED_HEADERS])))
    return pa.RecordBatch.from_arrays(columns, schema=view.stored_schema(has_headers))


def read_columns(
    parts: list[pa.RecordBatch],
    run: Run,
    first_offset: int,
    stored_offsets: list[np.ndarray] | None = None,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Return one batch of the view's `read_schema` from `stored_columns` batches in the order of their offsets.

    Args:
        first_offset: of the first row, if offsets are consecutive.
        stored_offsets: of each part's rows, if offsets have gaps.
        include_headers: whether to return null headers if no part has any; those of a part are always returned.
    """
    width = len(run.view.fields)
    has_headers = max([part.num_columns for part in parts]) > width + 1
    if has_headers:
        parts = [_with_headers(part, width) for part in parts]
    batch = join_batches(parts)
    rows = batch.num_rows
    own_rows = 1 << max(0, rows - 1).bit_length()  # a slice keeps all of its array in memory: at most twice its rows
    shared_rows = max(_SHARED_ROWS_MIN, own_rows)
    columns = [
        *batch.columns[:width],
        _topic_array(run.topic, shared_rows).slice(0, rows),
        _number_array(run.partition, own_rows).slice(0, rows),
        array_of(
            np.concatenate(stored_offsets)
            if stored_offsets
            else np.arange(first_offset, first_offset + rows, dtype=np.int64)
        ),
        batch.column(width),
        _number_array(run.timestamp_type, shared_rows).slice(0, rows),
    ]
    if not (has_headers or include_headers):
        return pa.RecordBatch.from_arrays(columns, schema=run.view.read_schema(False))
    columns.append(batch.column(width + 1) if has_headers else pa.nulls(rows, HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=run.view.read_schema(True))


def _as_viewed(stored: pa.Array, column: pa.Field) -> pa.Array:
    """Return a stored column as the view has it; of a newer version than the view's only what fits it exactly.

    Raises:
        pa.ArrowInvalid: a value does not.
    """
    if stored.null_count and not column.nullable:
        raise pa.ArrowInvalid(f"column '{column.name}' is NOT NULL, and a row has null")
    try:
        return cast_column(stored, column.type)
    except pa.ArrowInvalid as error:
        kinds = f"{type_text(stored.type)} and not {type_text(column.type)}"
        raise pa.ArrowInvalid(f"column '{column.name}' is {kinds}: {error}") from error


def _with_headers(batch: pa.RecordBatch, width: int) -> pa.RecordBatch:
    """Return the columns of the rows, timestamp, headers: null if there are none."""
    if batch.num_columns > width + 1:
        return batch
    name = TYPED_HEADERS if batch.schema.names[-1] == TYPED_TIMESTAMP else "headers"
    columns = [*batch.columns, pa.nulls(batch.num_rows, HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(pa.field(name, HEADERS_TYPE)))


def _null_empty(headers: pa.Array) -> pa.Array:
    """Return the column with null for empty lists: rows without headers read as null, however they were written."""
    empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(empty).as_py():
        return headers
    return pc.if_else(empty, pa.scalar(None, HEADERS_TYPE), headers)


@lru_cache(maxsize=8)
def _topic_array(topic: str, rows: int) -> pa.Array:
    encoded = topic.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(encoded))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(encoded * rows))


@lru_cache(maxsize=64)
def _number_array(value: int, rows: int) -> pa.Array:
    return array_of(np.full(rows, value, dtype=np.int32))
