"""Converts stored columns to the columns that a reader sees, without work per row.

Topic, partition, offset and timestampType are not stored. Constant columns are slices of one cached array.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.codec.data_object import HEADERS_TYPE, TIMESTAMP_TYPE, array_of, join_batches

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


class Run(NamedTuple):
    """Values that the rows of one output batch share."""

    topic: str
    partition: int
    timestamp_type: int


def stored_columns(batch: pa.RecordBatch, *, include_headers: bool, append_time_ms: int | None) -> pa.RecordBatch:
    """Return key, value, timestamp[, headers] of a stored batch; without headers if its object has none.

    Stored offsets are left out. `append_time_ms` replaces the rows' own time (LogAppendTime topics); None keeps it.
    """
    columns = [batch.column(0), batch.column(1), batch.column(2)]
    names = ["key", "value", "timestamp"]
    if append_time_ms is not None:
        times = np.full(batch.num_rows, append_time_ms * 1000, dtype=np.int64)
        columns[2] = array_of(times).cast(TIMESTAMP_TYPE)
    if include_headers and "headers" in batch.schema.names:
        names.append("headers")
        columns.append(_null_empty(batch.column(3)))
    return pa.RecordBatch.from_arrays(columns, names=names)


def read_columns(
    parts: list[pa.RecordBatch],
    run: Run,
    first_offset: int,
    stored_offsets: list[np.ndarray] | None = None,
    *,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Return one batch of `read_schema` from `stored_columns` batches in the order of their offsets.

    Args:
        first_offset: of the first row, if offsets are consecutive.
        stored_offsets: of each part's rows, if offsets have gaps.
        include_headers: whether to return null headers if no part has any; those of a part are always returned.
    """
    has_headers = max([part.num_columns for part in parts]) > 3
    if has_headers:
        parts = [_with_headers(part) for part in parts]
    batch = join_batches(parts)
    rows = batch.num_rows
    own_rows = 1 << max(0, rows - 1).bit_length()  # a slice keeps all of its array in memory: at most twice its rows
    shared_rows = max(_SHARED_ROWS_MIN, own_rows)
    columns = [
        batch.column(0),
        batch.column(1),
        _topic_array(run.topic, shared_rows).slice(0, rows),
        _number_array(run.partition, own_rows).slice(0, rows),
        array_of(
            np.concatenate(stored_offsets)
            if stored_offsets
            else np.arange(first_offset, first_offset + rows, dtype=np.int64)
        ),
        batch.column(2),
        _number_array(run.timestamp_type, shared_rows).slice(0, rows),
    ]
    if not (has_headers or include_headers):
        return pa.RecordBatch.from_arrays(columns, schema=_READ_PLAIN)
    columns.append(batch.column(3) if has_headers else pa.nulls(rows, HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=_READ_HEADERS)


def _with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return key, value, timestamp, headers: null if there are none."""
    if batch.num_columns > 3:
        return batch
    columns = [*batch.columns, pa.nulls(batch.num_rows, HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "headers"])


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
