"""Single records becoming Arrow columns: bytes written once into a pooled buffer, offsets beside it.

Source: Kafka ``MemoryRecordsBuilder``, with columns in place of a stream of records. Values grow
from the front of the buffer and keys from its back, so that one buffer of ``batch.size`` holds both
and closing a batch costs no work per record.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_replog.log.codec.data_object import HEADERS_TYPE, TIMESTAMP_TYPE
from spark_replog.write.columns import HEADER_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES
from spark_replog.write.record_handle import BatchResult

Headers = Sequence[tuple[str, bytes | None]]

_OFFSETS = "i"
assert array(_OFFSETS).itemsize == 4, "Arrow's binary offsets are 32 bits"


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Return the bytes that one record counts for, as ``columns.row_sizes`` counts rows."""
    size_bytes = ROW_OVERHEAD_BYTES
    if value is not None:
        size_bytes += len(value)
    if key is not None:
        size_bytes += len(key)
    if headers:
        for name, content in headers:
            size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + (0 if content is None else len(content))
    return size_bytes


class RecordColumns:
    """The open end of a batch of single records. Not thread-safe: its accumulator's lock guards it.

    Args:
        buffer: holds keys and values; at least ``limit_bytes``, and the first record.
        limit_bytes: ``batch.size``; no further record is taken beyond it, a first one always is.
        result: of the batch.
    """

    __slots__ = (
        "_buffer",
        "_empty_keys",
        "_empty_values",
        "_headers",
        "_key_start",
        "_key_starts",
        "_limit_bytes",
        "_timestamps",
        "_value_end",
        "_value_ends",
        "record_size_max",
        "result",
        "row_count",
        "size_bytes",
    )

    def __init__(self, buffer: bytearray, limit_bytes: int, result: BatchResult) -> None:
        self.result = result
        self.row_count = 0
        self.size_bytes = 0
        self.record_size_max = 0
        self._limit_bytes = limit_bytes
        self._buffer = buffer
        self._value_end = 0
        self._key_start = len(buffer)
        self._value_ends = array(_OFFSETS, [0])
        self._key_starts = array(_OFFSETS, [len(buffer)])
        self._timestamps = result.timestamps
        # A value or key without bytes is null unless it is named here: both are rare.
        self._empty_values: list[int] = []
        self._empty_keys: list[int] = []
        self._headers: dict[int, Headers] = {}

    def try_append(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int, size_bytes: int
    ) -> int:
        """Add a record; returns its number, or -1 where it has no room.

        Args:
            key: of the record.
            value: of the record.
            headers: of the record; None or empty: none.
            timestamp_ms: 0 or later.
            size_bytes: what ``record_size`` says.
        """
        total_bytes = self.size_bytes + size_bytes
        row = self.row_count
        if total_bytes > self._limit_bytes and row:
            return -1
        key_start, value_end = self._key_start, self._value_end
        if key:
            key_start -= len(key)
            self._buffer[key_start : self._key_start] = key
        if value:
            value_end += len(value)
            self._buffer[self._value_end : value_end] = value
        elif value is not None:
            self._empty_values.append(row)
        # Nothing above this line remains where it raised.
        if not key and key is not None:
            self._empty_keys.append(row)
        if headers:
            self._headers[row] = headers
        self._timestamps.append(timestamp_ms)
        self._key_starts.append(key_start)
        self._value_ends.append(value_end)
        self._key_start, self._value_end = key_start, value_end
        self.row_count = row + 1
        self.size_bytes = total_bytes
        if size_bytes > self.record_size_max:
            self.record_size_max = size_bytes
        return row

    @property
    def is_full(self) -> bool:
        """Return whether no record at all has room."""
        return self.size_bytes >= self._limit_bytes

    def build(self) -> pa.RecordBatch:
        """Return the records: key, value, timestamp, and headers where any has one. No appends behind it.

        Values lie in the buffer, which must live as long; keys are copied into their order.
        """
        columns = [self._keys(), self._values(), self._times()]
        names = ["key", "value", "timestamp"]
        if self._headers:
            rows = [_pairs(self._headers.get(row)) for row in range(self.row_count)]
            columns.append(pa.array(rows, HEADERS_TYPE))
            names.append("headers")
        return pa.RecordBatch.from_arrays(columns, names)

    def _keys(self) -> pa.Array:
        if self._key_start == len(self._buffer) and not self._empty_keys:
            return pa.nulls(self.row_count, pa.binary())
        # From the last record to the first, in which order they lie.
        offsets = np.ascontiguousarray(np.frombuffer(self._key_starts, np.int32)[::-1])
        last = self.row_count - 1
        backwards = _column(offsets, [last - row for row in self._empty_keys], pa.py_buffer(self._buffer))
        return backwards.take(pa.array(np.arange(last, -1, -1)))

    def _values(self) -> pa.Array:
        offsets = np.frombuffer(self._value_ends, np.int32)
        return _column(offsets, self._empty_values, pa.py_buffer(self._buffer).slice(0, self._value_end))

    def _times(self) -> pa.Array:
        micros = np.frombuffer(self._timestamps, np.int64) * 1000
        return pa.Array.from_buffers(TIMESTAMP_TYPE, self.row_count, [None, pa.py_buffer(micros)])


def _column(offsets: np.ndarray[tuple[int], np.dtype[np.int32]], empty_rows: list[int], data: pa.Buffer) -> pa.Array:
    """Return a binary column in which a row without bytes is null unless it is one of ``empty_rows``."""
    is_valid = offsets[1:] != offsets[:-1]
    is_valid[empty_rows] = True
    validity = None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(is_valid), [validity, pa.py_buffer(offsets), data])


def _pairs(headers: Headers | None) -> list[dict[str, object]] | None:
    return None if headers is None else [{"key": name, "value": content} for name, content in headers]


__all__ = ["Headers", "RecordColumns", "record_size"]
