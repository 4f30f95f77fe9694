"""Statistics of the sections of a data object: rows, nulls, smallest and largest value of typed columns.

They lie behind the end of the stream, before the footer of the Arrow file, where no reader of Arrow files looks. Only
a read with filters asks for them. They are hints: whatever is missing, damaged or of another section means that the
section is read. Format: `docs/format.md`, chapter "Data object".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import NamedTuple, TypeAlias

import crc32c as crc32c_module
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.errors import CorruptDataError
from spark_replog.log.model import Section
from spark_replog.wire import BYTES, Reader, Writer, optional

STATISTICS_COLUMNS_MAX = 32
"""The first columns with bounds have statistics: a table of hundreds would pay for columns that nobody filters."""
PREFIX_BYTES = 32
"""Longer text and binary values are cut; the upper bound is then raised above all that begin like it."""
LONG_VALUE_BYTES = 1024
"""Values that are longer on average have no bounds: nobody compares documents, and Arrow would copy them."""
STATISTICS_SIZE_BYTES_MAX = 48 * 1024
"""So that a reader gets them, and the footer, in one read of the object's end. Larger ones are not written."""
MAGIC = b"RLSTATS\1"
_TRAILER = struct.Struct("<II8s")
"""CRC32C of the body; its size, padding included; the magic."""
_BOUND = optional(BYTES)
_EXACT = Context(prec=40)
_WORD_DIGITS = 18
"""Decimals of so many digits are in the first of their two words."""

Value: TypeAlias = int | float | Decimal | bytes
"""In which bounds are compared: days and microseconds since 1970 as int, booleans as 0 and 1, text as its bytes."""
Array: TypeAlias = "pa.Array | pa.ChunkedArray"


class ColumnStatistics(NamedTuple):
    """Of one column in one section."""

    row_count: int
    null_count: int
    low: Value | None
    """Not above any value; None: unknown, or all are null."""
    high: Value | None

    @property
    def is_all_null(self) -> bool:
        """Return whether no row has a value."""
        return self.null_count == self.row_count

    def joined(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of both parts."""
        bounds = [part for part in (self, other) if not part.is_all_null]
        lows, highs = [part.low for part in bounds], [part.high for part in bounds]
        return ColumnStatistics(
            self.row_count + other.row_count,
            self.null_count + other.null_count,
            None if None in lows else min(lows, default=None),  # type: ignore[type-var]
            None if None in highs else max(highs, default=None),  # type: ignore[type-var]
        )


Statistics: TypeAlias = Mapping[str, ColumnStatistics]
"""Of one section, by the name of the column."""


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether values of a canonical type (`ddl.canonical_field`) are ordered as `Value`."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or _is_bytes(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def covered_names(schema: pa.Schema) -> list[str]:
    """Return the names of a topic's columns that have statistics."""
    return [column.name for column in schema if has_bounds(column.type)][:STATISTICS_COLUMNS_MAX]


def column_statistics(column: Array) -> ColumnStatistics:
    """Return the statistics of N >= 1 values of a type that `has_bounds`."""
    row_count, null_count = len(column), column.null_count
    low, high = (None, None) if null_count == row_count else _bounds(column)
    return ColumnStatistics(row_count, null_count, low, high)


def _bounds(column: Array) -> tuple[Value | None, Value | None]:
    kind = column.type
    if pa.types.is_floating(kind):
        return _float_bounds(column)
    if _is_bytes(kind):
        return _bytes_bounds(column)
    if pa.types.is_decimal(kind) and kind.precision <= _WORD_DIGITS and not column.null_count:  # ten times as fast
        words = np.frombuffer(column.buffers()[1], "<i8")[2 * column.offset :: 2][: len(column)]
        return _decimal(int(words.min()), kind.scale), _decimal(int(words.max()), kind.scale)
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)):
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())  # Python has no year 10000
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return (int(low), int(high)) if pa.types.is_boolean(kind) else (low, high)


def _float_bounds(column: Array) -> tuple[float | None, float | None]:
    """Return the bounds; None if there may be a NaN, which Spark takes for the largest value and others for none."""
    if isinstance(column, pa.Array) and not column.null_count:  # ten times as fast
        values = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
        values = values[column.offset : column.offset + len(column)]
        low, high = float(values.min()), float(values.max())
    elif pc.any(pc.is_nan(column)).as_py():
        return None, None
    else:
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
    return (None, None) if math.isnan(low) else (low, high)


def _bytes_bounds(column: Array) -> tuple[bytes | None, bytes | None]:
    if column.nbytes > LONG_VALUE_BYTES * len(column):
        return None, None
    ends = pc.min_max(column)
    low, high = (ends[name].as_buffer() for name in ("min", "max"))
    above = high.to_pybytes() if high.size <= PREFIX_BYTES else after_prefix(high[:PREFIX_BYTES].to_pybytes())
    return low[:PREFIX_BYTES].to_pybytes(), above


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the smallest bytes above all that begin with the prefix; None: there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


# ------------------------------------------------------------------------------------------------------------ bytes


def encode_statistics(sections: Sequence[tuple[Section, Statistics]], schema: pa.Schema) -> bytes:
    """Return what an object holds before its footer; b"" if that is too much."""
    names = covered_names(schema)
    if not names or not sections:
        return b""
    kinds = [schema.field(name).type for name in names]
    writer = Writer()
    writer.uint(len(names))
    for name in names:
        BYTES.write(writer, name.encode())
    writer.uint(len(sections))
    for section, statistics in sections:
        for number in section.start_byte, section.size_bytes, section.crc32c, section.row_count:
            writer.uint(number)
        for name, kind in zip(names, kinds, strict=True):
            column = statistics[name]
            writer.uint(column.null_count)
            _BOUND.write(writer, _raw(column.low, kind))
            _BOUND.write(writer, _raw(column.high, kind))
    body = bytes(writer.data) + bytes(-len(writer.data) % 8)
    if len(body) > STATISTICS_SIZE_BYTES_MAX:
        return b""
    return body + _TRAILER.pack(crc32c_module.crc32c(body), len(body), MAGIC)


def _raw(value: Value | None, kind: pa.DataType) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, Decimal):
        return int(value.scaleb(kind.scale, _EXACT)).to_bytes(16, "little", signed=True)
    return value.to_bytes(8, "little", signed=True)


def _value(raw: bytes | None, kind: pa.DataType) -> Value | None:
    """Return a bound. Raises ValueError, struct.error: the bytes are not one of this type."""
    if raw is None or _is_bytes(kind):
        return raw
    if pa.types.is_floating(kind):
        (number,) = struct.unpack("<d", raw)
        return None if math.isnan(number) else float(number)
    if len(raw) != (16 if pa.types.is_decimal(kind) else 8):
        raise ValueError(f"{len(raw)} bytes are not a bound")
    whole = int.from_bytes(raw, "little", signed=True)
    return _decimal(whole, kind.scale) if pa.types.is_decimal(kind) else whole


def _decimal(whole: int, scale: int) -> Decimal:
    return Decimal(whole).scaleb(-scale, _EXACT)


class ObjectStatistics:
    """The statistics of one object, as its end has them.

    Args:
        end: the last bytes of the object, up to its last one.
        schema: the columns of its rows.
    """

    def __init__(self, end: memoryview, schema: pa.Schema) -> None:
        self._sections: dict[tuple[int, ...], Statistics] = {}
        try:
            body = statistics_body(end)
            if body is not None:
                self._sections = _decode(body, schema)
        except (CorruptDataError, ValueError, ArithmeticError, LookupError, struct.error):
            return

    def of(self, start_byte: int, size_bytes: int, crc32c: int, row_count: int) -> Statistics | None:
        """Return those of a section that the ledger names so; None if the object has none for it."""
        return self._sections.get((start_byte, size_bytes, crc32c, row_count))


def statistics_body(end: memoryview) -> bytes | None:
    """Return the checked bytes of the statistics in the end of an object; None if it has none.

    Raises:
        ValueError: they are damaged, or begin before the given bytes.
    """
    at = statistics_end(end)
    if at is None:
        return None
    crc, size_bytes, _ = _TRAILER.unpack_from(end, at - _TRAILER.size)
    start = at - _TRAILER.size - size_bytes
    if start < 0:
        raise ValueError("statistics begin before the bytes that were read")
    body = bytes(end[start : at - _TRAILER.size])
    if crc32c_module.crc32c(body) != crc:
        raise ValueError("statistics have a wrong checksum")
    return body


def statistics_end(end: memoryview) -> int | None:
    """Return at which of these bytes the statistics end and the footer begins; None if there are none."""
    at = end.nbytes - 10 - int.from_bytes(end[-10:-6], "little")
    return at if _TRAILER.size <= at and end[at - len(MAGIC) : at] == MAGIC else None


def statistics_size(body: bytes) -> int:
    """Return how many bytes of an object its statistics with this body take."""
    return len(body) + _TRAILER.size


def _decode(body: bytes, schema: pa.Schema) -> dict[tuple[int, ...], Statistics]:
    reader = Reader(body)
    names = [BYTES.read(reader).decode() for _ in range(reader.count())]
    kinds = [schema.field(name).type for name in names]
    sections: dict[tuple[int, ...], Statistics] = {}
    for _ in range(reader.count()):
        where = tuple([reader.uint() for _ in range(4)])
        columns = {}
        for name, kind in zip(names, kinds, strict=True):
            null_count, low, high = reader.uint(), _BOUND.read(reader), _BOUND.read(reader)
            if null_count > where[3] or not has_bounds(kind):
                raise ValueError("more nulls than rows, or a column without bounds")
            columns[name] = ColumnStatistics(where[3], null_count, _value(low, kind), _value(high, kind))
        sections[where] = columns
    return sections
