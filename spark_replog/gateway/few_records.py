"""Records of a small batch, one by one: for so few of them the steps of numpy and Arrow cost more than they save.

A producer that sends now and then, and a consumer at the end of the log, have batches of one to some ten records.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.gateway.compression import too_large
from spark_replog.log.codec.data_object import HEADERS_TYPE

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
FEW_ROWS = 48
"""At about so many records both ways cost the same."""
INT_BYTES_MAX, LONG_BYTES_MAX = 5, 10
HEADER_MEMORY_BYTES = 160
"""What the numbers of a header take while they are read."""
_LONG_MASK = 2**64 - 1
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]


def invalid(message: str, record: int | None = None) -> ReplogError:
    """Return the refusal of a batch.

    Args:
        record: the number of the record that is wrong.
    """
    context = {} if record is None else {"record": record}
    return InvalidConfigError(ErrorCode.INVALID_RECORD, f"{message}.", **context)


def wrong_record(record: int, reason: str) -> ReplogError:
    """Return the refusal of a batch for one of its records."""
    return invalid(f"record {record} of a batch: {reason}. Send a whole batch", record)


NO_KEY, NO_ROOM = "a header has no key", "its headers do not fit into it"
WRONG_LENGTH, WRONG_FIELDS = "its length is not that of its bytes", "its fields have not the length of the record"
NOT_CONSECUTIVE = "the offsets of a batch are not consecutive"


def too_long_number(bytes_max: int, record: int) -> ReplogError:
    """Return the refusal of a number that does not end."""
    return wrong_record(record, f"a number has more than {bytes_max} bytes")


def varint(payload: bytes, at: int, record: int, bytes_max: int = INT_BYTES_MAX) -> tuple[int, int]:
    """Return the zigzag varint at a place, and where it ends.

    Raises:
        IndexError: the payload ends before it.
        InvalidConfigError: INVALID_RECORD.
    """
    value = 0
    for shift in range(0, 7 * bytes_max, 7):
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _LONG_MASK
            return (value >> 1) ^ -(value & 1), at
    raise too_long_number(bytes_max, record)


class FewRecords(NamedTuple):
    """What `read_few` has read of N records."""

    keys: pa.Array
    values: pa.Array
    time_deltas_ms: Int64Array
    headers: pa.Array | None
    header_count: int
    offset_deltas: Int64Array
    """They are 0 to N - 1 as a producer sends them, and have gaps where a log was compacted."""


def read_few(payload: bytes, count: int, bytes_left: int, bytes_max: int) -> FewRecords:
    """Return the columns of so many records.

    Args:
        bytes_left: of memory, for headers.
        bytes_max: of memory, for the message.

    Raises:
        InvalidConfigError: INVALID_RECORD, MESSAGE_TOO_LARGE.
    """
    keys, values, deltas, numbers = list[bytes | None](), list[bytes | None](), list[int](), list[int]()
    header_keys, header_values, header_ends = list[bytes | None](), list[bytes | None](), [0]
    at = record = 0
    try:
        for record in range(count):
            length, at = varint(payload, at, record)
            end = at + length
            if not at <= end <= len(payload):
                raise wrong_record(record, WRONG_LENGTH)
            delta, at = varint(payload, at + 1, record, LONG_BYTES_MAX)  # a byte of attributes, of which none exists
            deltas.append(delta)
            number, at = varint(payload, at, record)
            numbers.append(number)
            key, at = _bytes(payload, at, record)
            value, at = _bytes(payload, at, record)
            keys.append(key)
            values.append(value)
            header_count, at = varint(payload, at, record)
            if header_count and not 0 < header_count <= (end - at) // 2:
                raise wrong_record(record, NO_ROOM)
            bytes_left -= header_count * HEADER_MEMORY_BYTES
            if bytes_left < 0:
                raise too_large(bytes_max)
            for _ in range(header_count):
                key, at = _bytes(payload, at, record)
                if key is None:
                    raise wrong_record(record, NO_KEY)
                value, at = _bytes(payload, at, record)
                header_keys.append(key)
                header_values.append(value)
            header_ends.append(len(header_keys))
            if at != end:
                raise wrong_record(record, WRONG_FIELDS)
    except IndexError:
        raise wrong_record(record, WRONG_FIELDS) from None
    if at != len(payload):
        raise wrong_record(count - 1, WRONG_LENGTH)
    headers = None
    if header_keys:
        headers = header_column(_column(header_keys), _column(header_values), np.array(header_ends, np.int32))
    offset_deltas = np.array(numbers, np.int64)
    times = np.array(deltas, np.int64)
    return FewRecords(_column(keys), _column(values), times, headers, len(header_keys), offset_deltas)


def _bytes(payload: bytes, at: int, record: int) -> tuple[bytes | None, int]:
    length, at = varint(payload, at, record)
    return (None, at) if length < 0 else (payload[at : at + length], at + length)


def header_column(keys: pa.Array, values: pa.Array, offsets: Int32Array) -> pa.Array:
    """Return the headers of N rows from those of all, and the N + 1 places where those of each row begin.

    Raises:
        InvalidConfigError: INVALID_RECORD: a key is not UTF-8.
    """
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise invalid("the key of a header is not UTF-8. Give every header a key of text") from None
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    buffers = [validity(offsets[1:] == offsets[:-1]), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS_TYPE, len(offsets) - 1, buffers, children=[pairs])


def validity(is_null: BoolArray) -> pa.Buffer | None:
    """Return Arrow's bits for values that are there; None if all are."""
    return pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None


def _column(items: Sequence[bytes | None]) -> pa.Array:
    """Return a binary array; ``pa.array`` would import pandas, if it is installed."""
    present = [item for item in items if item is not None]
    if not present:
        return pa.nulls(len(items), pa.binary())
    offsets, end = array("i", [0]), 0
    for item in items:
        end += len(item or b"")
        offsets.append(end)
    bits = None if len(present) == len(items) else validity(np.array([item is None for item in items]))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(pa.binary(), len(items), buffers)


class FewColumns:
    """Few rows that become records.

    Args:
        rows: key, value[, headers].
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        columns = [rows.column(name).to_pylist() for name in ("key", "value")]
        self._fields = [_field(key) + _field(value) for key, value in zip(*columns, strict=True)]
        if "headers" not in rows.schema.names or rows.column("headers").null_count == len(rows):
            self._fields = [fields + _ONE_BYTE[0] for fields in self._fields]
        else:
            headers = rows.column("headers").to_pylist()
            self._fields = [fields + _headers(pairs) for fields, pairs in zip(self._fields, headers, strict=True)]

    def body_ends(self) -> Int64Array:
        """Return the running sum of the bytes of keys, values and headers: N + 1 values."""
        return np.cumsum([0, *map(len, self._fields)], dtype=np.int64)

    def records(self, start: int, end: int, time_deltas: Int64Array, offset_deltas: Int64Array) -> bytes:
        """Return the records of some rows, each with its length before it."""
        pieces: list[bytes] = []
        deltas = time_deltas.tolist(), offset_deltas.tolist()
        for fields, time_delta, offset_delta in zip(self._fields[start:end], *deltas, strict=True):
            record = b"".join((_ONE_BYTE[0], _varint_bytes(time_delta), _varint_bytes(offset_delta), fields))
            pieces += _varint_bytes(len(record)), record
        return b"".join(pieces)


def _headers(pairs: list[dict[str, object]] | None) -> bytes:
    pieces = [_varint_bytes(len(pairs or ()))]
    for pair in pairs or ():
        key, value = str(pair["key"]).encode(), pair["value"]
        assert value is None or isinstance(value, bytes)
        pieces += _field(key), _field(value)
    return b"".join(pieces)


def _field(value: bytes | None) -> bytes:
    return _ONE_BYTE[1] if value is None else _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    data = bytearray()
    while rest >= 0x80:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)
