"""Converts input batches to the log's columns, without a step per row.

Columns, types and error texts follow Spark's Kafka connector (``KafkaWriter``); the ``timestamp`` column is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import (
    HEADERS_TYPE,
    LOG_PREFIX,
    TIMESTAMP_TYPE,
    array_of,
    times_of,
)
from spark_replog.log.row_schema import RowSchema

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]

ROW_OVERHEAD_BYTES = 16
"""Arrow's overhead per row: two 32-bit offsets and a timestamp."""
_OFFSET_BYTES = 4
HEADER_OVERHEAD_BYTES = 8
"""Per header: two 32-bit offsets."""

_STRINGS = (pa.string(), pa.large_string())
_BINARIES = (pa.binary(), pa.large_binary())
_HEADERS_WORD = "array<struct<key:string,value:binary>>"

_SPARK_WORDS = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "large_string": "string",
    "large_binary": "binary",
    "date32[day]": "date",
}


@dataclass(frozen=True)
class Rows:
    """N input rows in the log's form, and the topics and partitions that they name."""

    data: pa.RecordBatch
    """key binary, value binary, timestamp[us, UTC], headers if any row has one, and offset if it is stored; of a typed
    topic its columns in place of key and value."""
    topic: pa.Array | None
    """string, no nulls; None if the topic option decides."""
    partition: pa.Array | None
    """int32; null or None where the partitioner decides."""
    size_bytes: int
    """Of all rows, as `row_ends` counts them."""
    pinned_bytes: int
    """Memory that any slice of ``data`` keeps alive."""
    dated_at_ms: int | None = None
    """When they were read, if they may have times of their own; None: all have that time."""
    schema: RowSchema | None = None
    """Of typed rows."""
    are_mirrored: bool = False
    """Whether another log took them as they are: its rules count, not the topic's."""
    typed_keys: pa.Array | None = None
    """binary: the keys of typed rows."""

    @property
    def keys(self) -> pa.Array:
        """Return the keys as bytes, null where a row has none."""
        return self.data.column(0) if self.typed_keys is None else self.typed_keys

    @property
    def times(self) -> pa.Array:
        """Return the times of the rows."""
        return times_of(self.data)

    @cached_property
    def ends(self) -> Int64Array:
        """The running sum of the rows' bytes, see `row_ends`: N + 1 values.

        It costs some percent of a task's time, so it is asked for only where `size_bytes` does not decide.
        """
        return row_ends(self.data)

    @cached_property
    def sizes(self) -> Int64Array:
        """The bytes of each of the N rows, as costly as `ends`."""
        return self.ends[1:] - self.ends[:-1]


class InputColumns:
    """Finds and checks the columns of one input schema; created once per schema.

    Columns are found by exact name; other columns are ignored.

    Args:
        default_topic: the topic option, which overrides a ``topic`` column.
        ignore_other_times: ignore a ``timestamp`` column of another type (see `is_time`), as Kafka's sink does;
            otherwise it is refused.
        are_mirrored: the rows are those of another log: a column ``offset`` of int64 is kept.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, REPLOG_MISSING_OPTION (no topic); no row was read.
    """

    def __init__(
        self,
        schema: pa.Schema,
        default_topic: str | None,
        *,
        ignore_other_times: bool = False,
        are_mirrored: bool = False,
    ) -> None:
        self.schema = schema
        self._are_mirrored = are_mirrored
        self._offset = _find(schema, "offset") if are_mirrored else None
        self._value = _find(schema, "value")
        self._key = _find(schema, "key")
        self._topic = _find(schema, "topic") if default_topic is None else None
        self._partition = _find(schema, "partition")
        self._headers = _find(schema, "headers")
        self._timestamp = _find(schema, "timestamp")
        if ignore_other_times and self._timestamp is not None and not is_time(schema.field(self._timestamp).type):
            self._timestamp = None
        if self._value is None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                "Required attribute 'value' not found. Name one string or binary column 'value'.",
                columns=", ".join(schema.names),
            )
        if default_topic is None and self._topic is None:
            raise InvalidConfigError(
                ErrorCode.REPLOG_MISSING_OPTION,
                "topic option required when no 'topic' attribute is present. Set the option 'topic'.",
                columns=", ".join(schema.names),
            )
        self._check_types()

    def normalise(self, batch: pa.RecordBatch, now_ms: int) -> Rows:
        """Return the batch's rows in the log's form; zero-copy where types allow it.

        Args:
            batch: N >= 1 rows of this schema.
            now_ms: timestamp of rows that have none.

        Raises:
            InvalidConfigError: REPLOG_NULL_TOPIC, INVALID_TIMESTAMP, INVALID_RECORD, MESSAGE_TOO_LARGE.
        """
        key = pa.nulls(len(batch), pa.binary()) if self._key is None else _binary(batch.column(self._key))
        if self._timestamp is None:
            micros = pa.py_buffer(np.full(len(batch), now_ms * 1000, dtype=np.int64))
            times = pa.Array.from_buffers(TIMESTAMP_TYPE, len(batch), [None, micros])
        else:
            times = row_times(batch.column(self._timestamp), now_ms)
        columns = [key, _binary(batch.column(self._value)), times]
        names = ["key", "value", "timestamp"]
        headers = None if self._headers is None else normalise_headers(batch.column(self._headers))
        if headers is not None:
            columns.append(headers)
            names.append("headers")
        if self._offset is not None:
            columns.append(batch.column(self._offset))
            names.append("offset")
        data = pa.RecordBatch.from_arrays(columns, names)
        return Rows(
            data=data,
            topic=None if self._topic is None else self._topics(batch.column(self._topic)),
            partition=None if self._partition is None else batch.column(self._partition),
            size_bytes=int(row_ends(data, np.array([0, len(data)]))[-1]),
            pinned_bytes=max(batch.get_total_buffer_size(), data.get_total_buffer_size()),
            dated_at_ms=None if self._timestamp is None or self._are_mirrored else now_ms,
            are_mirrored=self._are_mirrored,
        )

    def _topics(self, topics: pa.Array) -> pa.Array:
        if topics.null_count:
            raise InvalidConfigError(
                ErrorCode.REPLOG_NULL_TOPIC,
                f"null topic present in the data: {topics.null_count} of {len(topics)} rows, and no topic option. "
                "Set the option 'topic' or filter these rows out.",
                condition="KAFKA_NULL_TOPIC_IN_DATA",
            )
        return topics

    def _check_types(self) -> None:
        is_text = (*_STRINGS, *_BINARIES).__contains__
        for index, accepts, allowed in (
            (self._value, is_text, "a(n) string or binary"),
            (self._key, is_text, "a(n) string or binary"),
            (self._topic, _STRINGS.__contains__, "a(n) string"),
            (self._partition, (pa.int32(),).__contains__, "a(n) int"),
            (self._timestamp, is_time, "a(n) timestamp with a time zone"),
            (self._headers, is_headers, f"a(n) {_HEADERS_WORD}"),
        ):
            if index is None or accepts((column := self.schema.field(index)).type):
                continue
            kind = _SPARK_WORDS.get(str(column.type), str(column.type))
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                f"{column.name} attribute unsupported type {kind}. {column.name} must be {allowed}.",
                column=column.name,
                type=kind,
            )


def row_times(times: pa.Array, now_ms: int) -> pa.Array:
    """Return the times of rows in microseconds, now where they are null.

    Raises:
        InvalidConfigError: INVALID_TIMESTAMP: before 1970, or out of range.
    """
    times = _utc_microseconds(times)
    if times.null_count:
        times = times.fill_null(pa.scalar(now_ms * 1000, pa.int64()).cast(TIMESTAMP_TYPE))
    earliest = pc.min(times.cast(pa.int64())).as_py()
    if earliest < 0:
        raise InvalidConfigError(
            ErrorCode.INVALID_TIMESTAMP,
            f"A row's timestamp is {-earliest} microseconds before 1970. Correct the column 'timestamp' or "
            "leave it null.",
        )
    return times


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds points in time; without a zone (TIMESTAMP_NTZ) it does not."""
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def offsets_of(array: pa.Array) -> Int32Array:
    """Return the N + 1 value offsets of a binary, string or list array of N >= 0 rows, slices included."""
    if len(array) == 0:
        return np.zeros(1, dtype=np.int32)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def row_ends(data: pa.RecordBatch, rows: Int64Array | None = None) -> Int64Array:
    """Return the running sum of the bytes of N rows of key, value, timestamp[, headers], or of typed rows.

    Args:
        rows: ascending numbers from 0 to N, the first of them 0: only what comes before each of them is returned. None:
            all, N + 1 values.
    """
    if data.schema.names[-1].startswith(LOG_PREFIX):
        return _typed_row_ends(data, np.arange(len(data) + 1) if rows is None else rows)
    at: Int64Array | slice = slice(None) if rows is None else rows
    # Offsets of values are running sums already.
    ends = np.add(offsets_of(data.column(0))[at], offsets_of(data.column(1))[at], dtype=np.int64)
    ends += ROW_OVERHEAD_BYTES * (np.arange(len(ends)) if rows is None else rows)
    if "headers" in data.schema.names:
        headers = data.column(3)
        bounds = offsets_of(headers)[at]
        pairs = headers.values
        ends += HEADER_OVERHEAD_BYTES * bounds.astype(np.int64)
        for field in (pairs.field(0), pairs.field(1)):
            # ``bounds`` are absolute positions, so the unsliced child is used.
            ends += offsets_of(field)[bounds]
    ends -= ends[0]
    return ends


def _typed_row_ends(data: pa.RecordBatch, rows: Int64Array) -> Int64Array:
    ends = np.zeros(len(rows), dtype=np.int64)
    for column in data.columns:
        ends += _bytes_before(column, rows)
    return ends


def _bytes_before(column: pa.Array, rows: Int64Array) -> Int64Array:
    """Return the bytes of a column's values before each of these rows, as Arrow stores them uncompressed."""
    kind = column.type
    ends: Int64Array
    if pa.types.is_struct(kind):
        ends = rows - rows[0] + np.zeros(len(rows), np.int64)  # about a byte for each, also if it has no fields
        for number in range(kind.num_fields):
            ends += _bytes_before(column.field(number), rows)
        return ends
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        bounds = offsets_of(column)[rows].astype(np.int64)
        children = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        ends = _OFFSET_BYTES * rows
        for child in children:
            before = _bytes_before(child, bounds)
            ends = ends + before - before[0]
        return ends
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        bounds = offsets_of(column)[rows].astype(np.int64)
        ends = bounds - bounds[0] + _OFFSET_BYTES * rows
        return ends
    ends = rows * max(1, int(kind.bit_width) // 8)
    return ends


def normalise_headers(column: pa.Array) -> pa.Array | None:
    """Return list<struct<key: string, value: binary>>, null in rows without headers; None if no row has any.

    Raises:
        InvalidConfigError: INVALID_RECORD for a null header key.
    """
    if column.null_count == len(column):
        return None
    counts = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    if not counts.any():
        return None
    pairs = column.flatten()
    kind = pairs.type
    at = {kind.field(index).name.lower(): index for index in range(kind.num_fields)}
    keys, values = pc.struct_field(pairs, [at["key"]]), pc.struct_field(pairs, [at["value"]])
    if keys.null_count:
        raise InvalidConfigError(
            ErrorCode.INVALID_RECORD,
            f"{keys.null_count} headers have a null key. Give every header a key; values may be null.",
        )
    structs = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), values.cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
    )
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(array_of(offsets), structs, type=HEADERS_TYPE, mask=pa.array(counts == 0))


def _find(schema: pa.Schema, name: str) -> int | None:
    indices = schema.get_all_field_indices(name)
    if len(indices) > 1:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            f"{len(indices)} columns are named '{name}'. Rename all but one.",
            column=name,
        )
    return indices[0] if indices else None


def is_headers(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold headers."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name.lower(): field.type for field in kind.value_type}
    return (
        kind.value_type.num_fields == 2
        and set(fields) == {"key", "value"}
        and fields["key"] in _STRINGS
        and fields["value"] in _BINARIES
    )


def _binary(column: pa.Array) -> pa.Array:
    if column.type == pa.binary():
        return column
    try:
        # From string, all buffers are shared; from large_*, only the offsets are new.
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise InvalidConfigError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"An Arrow batch has 2 GiB or more in one column: {error}. Lower "
            "spark.sql.execution.arrow.maxRecordsPerBatch.",
        ) from error


def _utc_microseconds(times: pa.Array) -> pa.Array:
    """Return the same times in microseconds; nanoseconds are truncated."""
    if times.type == TIMESTAMP_TYPE:
        return times
    try:
        return times.cast(TIMESTAMP_TYPE, safe=times.type.unit != "ns")
    except pa.ArrowInvalid as error:
        raise InvalidConfigError(
            ErrorCode.INVALID_TIMESTAMP,
            f"A row's timestamp does not fit into microseconds: {error}. Correct the column "
            "'timestamp' or leave it null.",
        ) from error
