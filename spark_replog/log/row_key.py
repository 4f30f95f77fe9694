"""The key of a typed row as bytes: what murmur2 hashes to choose the partition, and what a consumer shows as the key.

One key column: the bytes that Kafka's serializers write, so that programs of both kinds agree on a key's partition.
STRING: UTF-8. BINARY: itself. BOOLEAN: one byte. TINYINT, SMALLINT, INT, BIGINT: 1, 2, 4 or 8 bytes, big-endian, two's
complement. Others, in the same form: DATE, 4 bytes, days since 1970; TIMESTAMP and TIMESTAMP_NTZ, 8 bytes, microseconds
since 1970; DECIMAL, 16 bytes, the number without its point.

Several: the bytes of each in turn; before a STRING or BINARY its length in 4 bytes, big-endian. So different keys have
different bytes. A key column keeps its type in all versions of a schema, so a key keeps its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.codec.data_object import array_of

_DECIMAL_BYTES = 16
_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def is_keyable(kind: pa.DataType) -> bool:
    """Return whether equal values of a column's type, and only these, have equal bytes."""
    return _is_text(kind) or _width(kind) > 0


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _width(kind: pa.DataType) -> int:
    """Return in how many bytes a value is, 0 for other types."""
    types = pa.types
    if types.is_boolean(kind):
        return 1
    if types.is_signed_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return int(kind.bit_width) // 8
    return _DECIMAL_BYTES if types.is_decimal128(kind) else 0


def key_array(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the keys of N rows as a binary array without nulls.

    Args:
        columns: one or more key columns of N rows, without nulls, slices allowed.
    """
    if len(columns) == 1:
        return _bytes_of(columns[0])
    parts = []
    for column in columns:
        value = _bytes_of(column)
        if _is_text(column.type):
            lengths = np.asarray(pc.binary_length(value)).astype(">i4")
            parts.append(_fixed(lengths.tobytes(), 4, len(column)))
        parts.append(value)
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _bytes_of(column: pa.Array) -> pa.Array:
    kind, count = column.type, len(column)
    if _is_text(kind):
        return column.cast(pa.binary())
    width = _width(kind)
    assert width, f"a key column cannot be {kind}"
    if pa.types.is_boolean(kind):
        return _fixed(np.asarray(column.cast(pa.uint8())).tobytes(), 1, count)
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], np.uint8)[_DECIMAL_BYTES * column.offset :]
        words = words[: _DECIMAL_BYTES * count].reshape(count, _DECIMAL_BYTES)
        return _fixed(np.ascontiguousarray(words[:, ::-1]).tobytes(), width, count)
    numbers = np.asarray(column.view(f"int{8 * width}"))
    return _fixed(numbers.astype(f">i{width}").tobytes(), width, count)


def _fixed(data: bytes, width: int, count: int) -> pa.Array:
    offsets = array_of(np.arange(count + 1, dtype=np.int32) * np.int32(width))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(data)])


def key_bytes(values: Sequence[Any], types: Sequence[pa.DataType]) -> bytes:
    """Return the key of one row, from the values of its key columns as ``Scalar.as_py`` gives them."""
    if len(values) == 1:
        return _value_bytes(values[0], types[0])
    parts = []
    for value, kind in zip(values, types, strict=True):
        data = _value_bytes(value, kind)
        if _is_text(kind):
            parts.append(struct.pack(">i", len(data)))
        parts.append(data)
    return b"".join(parts)


def _value_bytes(value: Any, kind: pa.DataType) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, datetime):
        number = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    elif isinstance(value, date):
        number = (value - _DAY).days
    elif isinstance(value, Decimal):
        digits = value.as_tuple()
        assert isinstance(digits.exponent, int)
        number = int("".join(map(str, digits.digits))) * 10 ** (kind.scale + digits.exponent)
        number = -number if digits.sign else number
    else:
        number = int(value)
    return number.to_bytes(_width(kind), "big", signed=not isinstance(value, bool))
