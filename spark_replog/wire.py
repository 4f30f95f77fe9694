"""Primitives of all binary formats of a store: varints, strings, columns of integers, and kinds made of them.

Source for the varint and zigzag: Protocol Buffers' encoding, as in Kafka's record format v2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ids import BROKER_ID_MAX, HEX_ID

COLUMN_WIDTH_BYTES_MAX = 8
"""Widest column value; anything above does not fit the format."""
_NUMPY_ROWS_MIN = 12
"""Below this many values a Python loop beats numpy's call overhead."""
_VARINT_BYTES_MAX = 10
_FREE_ROWS = 4096
"""Rows of columns that a buffer may have beyond those that its bytes account for: a constant column takes no bytes."""
_ROW_BYTES_MIN = 2
"""Of each further row: a section differs in its checksum, a batch in its partition or sequence."""
TIME_MS_MAX = (2**63 - 1) // 1000
"""Latest time that fits Arrow's microseconds."""
COUNT_MAX = 2**63 - 1
"""Counters that a snapshot holds stop here: sizes that a damaged or hostile append claims must not keep it from being
written. No log reaches it."""
_STRING_RAW, _STRING_UUID, _STRING_HEX = 0, 1, 2
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")


def corrupt(what: str) -> CorruptDataError:
    """Return the error for ledger bytes that no release of this format can have written."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"ledger entry is damaged: {what}. Run `replog store verify` to see which roots hold it.",
    )


class Writer:
    """Appends primitives to one growing buffer.

    Attributes:
        data: the buffer.
        byte: appends one byte, 0..255.
        raw: appends bytes without a length.
    """

    __slots__ = ("byte", "data", "raw")

    def __init__(self) -> None:
        self.data = bytearray()
        self.byte: Callable[[int], None] = self.data.append
        self.raw: Callable[[bytes], None] = self.data.extend

    def uint(self, value: int) -> None:
        """Append an unsigned varint, 7 bits a byte, low bits first. Raises ValueError: negative or above 64 bits."""
        if 0 <= value < 0x80:  # most numbers
            self.data.append(value)
            return
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{value} does not fit an unsigned varint")
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def sint(self, value: int) -> None:
        """Append a signed varint (zigzag)."""
        self.uint((value << 1) ^ (value >> 63))

    def text(self, value: str) -> None:
        """Append a string; uuids and 32 hex digits take 17 bytes."""
        length = len(value)
        if length == 36 and _UUID.fullmatch(value):
            self.byte(_STRING_UUID)
            self.raw(bytes.fromhex(value.replace("-", "")))
        elif length == 32 and _HEX.fullmatch(value):
            self.byte(_STRING_HEX)
            self.raw(bytes.fromhex(value))
        else:
            encoded = value.encode()
            self.byte(_STRING_RAW)
            self.uint(len(encoded))
            self.raw(encoded)

    def columns(self, *columns: Sequence[int]) -> None:
        """Append columns of equal length, of integers >= 0. The row count is not written.

        Each as byte width, smallest value, each value minus it in that width. A constant column takes width 0.
        """
        assert len({len(column) for column in columns}) <= 1, [len(column) for column in columns]
        for values in columns:
            if len(values) == 1 and 0 <= values[0] < 0x80:  # most columns of small appends
                self.raw(bytes((0, values[0])))
                continue
            if not values:
                continue
            base = min(values)
            width = ((max(values) - base).bit_length() + 7) // 8
            if width > COLUMN_WIDTH_BYTES_MAX:
                raise ValueError("column values are further apart than 64 bits")
            self.byte(width)
            self.uint(base)
            for value in values if width else ():
                self.data += (value - base).to_bytes(width, "little")


class Reader:
    """Takes primitives off one buffer.

    Args:
        damaged: makes the error of a buffer that ends early or holds an impossible value, which every method raises.
    """

    __slots__ = ("_data", "_free_rows", "_position", "damaged")

    def __init__(self, data: bytes, damaged: Callable[[str], CorruptDataError] = corrupt) -> None:
        self.damaged = damaged
        self._data = data
        self._position = 0
        self._free_rows = _FREE_ROWS + len(data) // _ROW_BYTES_MIN

    def byte(self) -> int:
        """Take one byte."""
        try:
            value = self._data[self._position]
        except IndexError:
            raise self.damaged("it ends early") from None
        self._position += 1
        return value

    def raw(self, size_bytes: int) -> bytes:
        """Take exactly size_bytes bytes."""
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise self.damaged("it ends early")
        value = self._data[self._position : end]
        self._position = end
        return value

    def rest(self) -> bytes:
        """Take all bytes that are left."""
        return self.raw(len(self._data) - self._position)

    def left_count(self) -> int:
        """Return how many bytes are left."""
        return len(self._data) - self._position

    def uint(self) -> int:
        """Take an unsigned varint."""
        data, at = self._data, self._position
        try:
            value = data[at]
        except IndexError:
            raise self.damaged("it ends early") from None
        if value < 0x80:  # most of them
            self._position = at + 1
            return value
        value = shift = 0
        for byte in data[at : at + _VARINT_BYTES_MAX]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >> 64:
                    raise self.damaged(f"{value} does not fit 64 bits")
                self._position = at + shift // 7
                return value
        raise self.damaged("it ends early" if len(data) - at < _VARINT_BYTES_MAX else "a number has too many bytes")

    def count(self) -> int:
        """Take the length of a list whose items take at least one byte each."""
        value = self.uint()
        if value > len(self._data) - self._position:
            raise self.damaged(f"a list claims {value} items")
        return value

    def row_count(self) -> int:
        """Take the number of rows of the columns that follow, bounded by the bytes of the whole buffer."""
        value = self.uint()
        self._free_rows -= value
        if self._free_rows < 0:
            raise self.damaged(f"columns claim {value} rows, more than an entry of {len(self._data)} bytes can hold")
        return value

    def sint(self) -> int:
        """Take a signed varint (zigzag)."""
        return unzigzag(self.uint())

    def utf8(self, size_bytes: int) -> str:
        """Take the UTF-8 text of this many bytes."""
        try:
            return self.raw(size_bytes).decode()
        except UnicodeDecodeError:
            raise self.damaged("a text is not UTF-8") from None

    def text(self) -> str:
        """Take a string."""
        tag = self.byte()
        if tag == _STRING_RAW:
            return self.utf8(self.uint())
        digits = self.raw(16).hex()
        if tag == _STRING_HEX:
            return digits
        if tag == _STRING_UUID:
            return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        raise self.damaged(f"text kind {tag} is unknown")

    def column(self, row_count: int) -> list[int]:
        """Take one column, of row_count integers, that `Writer.columns` wrote."""
        if not row_count:
            return []
        data, at = self._data, self._position
        if at + 1 < len(data) and not data[at] and data[at + 1] < 0x80:  # most columns of small appends
            self._position = at + 2
            return [data[at + 1]] * row_count
        width = self.byte()
        if width > COLUMN_WIDTH_BYTES_MAX:
            raise self.damaged(f"a column is {width} bytes wide")
        base = self.uint()
        if not width:
            return [base] * row_count
        raw = self.raw(width * row_count)
        if row_count < _NUMPY_ROWS_MIN:
            return [int.from_bytes(raw[at : at + width], "little") + base for at in range(0, len(raw), width)]
        padded = np.zeros((row_count, COLUMN_WIDTH_BYTES_MAX), dtype=np.uint8)
        padded[:, :width] = np.frombuffer(raw, dtype=np.uint8).reshape(row_count, width)
        values: list[int] = padded.view("<u8").ravel().tolist()
        return [value + base for value in values] if base else values

    def finish(self) -> None:
        """Check that nothing is left."""
        if self._position != len(self._data):
            raise self.damaged(f"{len(self._data) - self._position} bytes follow its end")


def zigzag(value: int) -> int:
    """Return the unsigned form of a signed number."""
    return (value << 1) ^ (value >> 63)


def unzigzag(value: int) -> int:
    """Return the signed number of an unsigned form."""
    return (value >> 1) ^ -(value & 1)


class Kind(NamedTuple):
    """How one kind of value is written and read."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]


def _write_bytes(writer: Writer, value: bytes) -> None:
    writer.uint(len(value))
    writer.raw(value)


UINT, SINT, TEXT = Kind(Writer.uint, Reader.uint), Kind(Writer.sint, Reader.sint), Kind(Writer.text, Reader.text)
BYTES = Kind(_write_bytes, lambda reader: reader.raw(reader.uint()))
INDEX = Kind(lambda writer, value: writer.uint(value + 1), lambda reader: reader.uint() - 1)
"""A number from -1 on."""
BOOL = Kind(lambda writer, value: writer.byte(value), lambda reader: bool(reader.byte()))


def checked(kind: Kind, is_valid: Callable[[Any], object], what: str) -> Kind:
    """Return the kind of a value that must be valid when it is read; `what` names it in the error."""

    def read(reader: Reader) -> Any:
        value = kind.read(reader)
        if not is_valid(value):
            raise reader.damaged(f"{value!r} is not a valid {what}")
        return value

    return Kind(kind.write, read)


ID = checked(TEXT, HEX_ID.fullmatch, "topic or ledger id")
BROKER_ID = checked(UINT, lambda value: value <= BROKER_ID_MAX, "broker id")
TIME_MS = checked(SINT, lambda value: abs(value) <= TIME_MS_MAX, "time: microseconds of 64 bits do not hold it")


def raw_of(size_bytes: int) -> Kind:
    """Return the kind of this number of bytes."""
    return Kind(lambda writer, value: writer.raw(value), lambda reader: reader.raw(size_bytes))


def enum_of(kind: type[IntEnum]) -> Kind:
    """Return the kind of an enum in one byte; another number is a ValueError."""
    return Kind(BOOL.write, lambda reader: kind(reader.byte()))


def fields(*kinds: Kind) -> Kind:
    """Return the kind of a tuple of values, one of each kind."""
    writes, reads = [kind.write for kind in kinds], [kind.read for kind in kinds]

    def write(writer: Writer, values: Sequence[Any]) -> None:
        for write_value, value in zip(writes, values, strict=True):
            write_value(writer, value)

    return Kind(write, lambda reader: tuple([read(reader) for read in reads]))


def optional(kind: Kind) -> Kind:
    """Return the kind of a value that may be None."""

    def write(writer: Writer, value: Any) -> None:
        writer.byte(value is not None)
        if value is not None:
            kind.write(writer, value)

    return Kind(write, lambda reader: kind.read(reader) if reader.byte() else None)


def list_of(kind: Kind, *more: Kind) -> Kind:
    """Return the kind of a tuple of values; of tuples of values if several kinds are given."""
    write_item, read_item = fields(kind, *more) if more else kind

    def write(writer: Writer, values: Sequence[Any]) -> None:
        writer.uint(len(values))
        for value in values:
            write_item(writer, value)

    return Kind(write, lambda reader: tuple([read_item(reader) for _ in range(reader.count())]))


def record(made: Callable[..., Any], **kinds: Kind) -> Kind:
    """Return the kind of a value with named fields, in the order in which they are written."""
    writes = [(name, kind.write) for name, kind in kinds.items()]
    reads = [(name, kind.read) for name, kind in kinds.items()]

    def write(writer: Writer, value: Any) -> None:
        for name, write_field in writes:
            write_field(writer, getattr(value, name))

    return Kind(write, lambda reader: made(**{name: read(reader) for name, read in reads}))


def map_of(key: Kind, value: Kind) -> Kind:
    """Return the kind of a dict, in its order."""
    items = list_of(key, value)
    return Kind(lambda writer, values: items.write(writer, values.items()), lambda reader: dict(items.read(reader)))


def set_of(kind: Kind) -> Kind:
    """Return the kind of a set."""
    items = list_of(kind)
    return Kind(lambda writer, values: items.write(writer, sorted(values)), lambda reader: set(items.read(reader)))
