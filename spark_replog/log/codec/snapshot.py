"""Snapshots of ledgers as bytes: `docs/format.md`, chapter "Snapshot".

A sealed part is a head (all of a state but the rows in pages) or a page (index rows as columns). Its checksum is
looked at before anything else, so that damage is never taken for content.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import crc32c as crc32c_module
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.log.codec.wire import Reader, Writer

MAGIC = b"RLSN"
SNAPSHOT_FORMAT_VERSION = 1
BODY_BYTES_MAX = 1 << 30
"""Of a sealed part, uncompressed."""
ROWS_MAX = 1 << 24
"""Of one table of a part; a page holds some thousands."""
_CELLS_MAX = 1 << 28
_HEADER_BYTES = 6
_CRC_BYTES = 4
_DELTA = 0x80
_UINT64 = np.uint64
Column = npt.NDArray[np.int64]


class SnapshotPart(IntEnum):
    """What a sealed part is."""

    TOPIC_HEAD = 1
    CLUSTER_HEAD = 2
    PAGE = 3


def damaged(what: str, name: str = "") -> CorruptDataError:
    """Return the error for bytes that no release can have written; `name` tells which page."""
    where = f"page {name}" if name else "head"
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the {where} of a ledger snapshot is damaged: {what}. Run `replog store verify` to see which roots hold it.",
    )


def seal(part: SnapshotPart, body: bytes) -> bytes:
    """Return the bytes to store: magic, version, part, size, compressed body, checksum of all."""
    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(SNAPSHOT_FORMAT_VERSION)
    writer.byte(part)
    writer.uint(len(body))
    writer.raw(pa.compress(body, codec="zstd", asbytes=True))
    writer.raw(crc32c_module.crc32c(writer.data).to_bytes(_CRC_BYTES, "little"))
    return bytes(writer.data)


def unseal(part: SnapshotPart, data: bytes, name: str = "") -> Reader:
    """Return a reader of the body of `seal`.

    Raises:
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
        CorruptDataError: CORRUPT_MESSAGE: damaged, or another part.
    """
    if len(data) < _HEADER_BYTES + _CRC_BYTES or data[:4] != MAGIC:
        raise damaged("it does not begin like one", name)
    if crc32c_module.crc32c(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
        raise damaged("its checksum does not fit", name)
    if data[4] != SNAPSHOT_FORMAT_VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"a ledger snapshot has format {data[4]}, this release reads {SNAPSHOT_FORMAT_VERSION}."
            " Upgrade spark-replog on every driver and worker.",
        )
    if data[5] != part:
        raise damaged(f"it is part {data[5]} where {part.value} is needed", name)
    header = Reader(data[_HEADER_BYTES:-_CRC_BYTES])
    size_bytes = header.uint()
    if size_bytes > BODY_BYTES_MAX:
        raise damaged(f"it claims {size_bytes} bytes", name)
    try:
        body = pa.decompress(header.rest(), decompressed_size=size_bytes, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(str(error), name) from error
    return Reader(body)


def write_table(writer: Writer, columns: Sequence[Column]) -> None:
    """Append columns of one length: the number of rows, then each column."""
    writer.uint(len(columns[0]))
    for values in columns:
        assert len(values) == len(columns[0]), [len(each) for each in columns]
        _write_column(writer, values)


def read_table(reader: Reader, column_count: int) -> list[Column]:
    """Take what `write_table` wrote; refuse more cells than `_CELLS_MAX` before memory is taken."""
    row_count = reader.uint()
    if row_count > ROWS_MAX or row_count * column_count > _CELLS_MAX:
        raise damaged(f"a table claims {row_count} rows")
    return [_read_column(reader, row_count) for _ in range(column_count)]


def write_texts(writer: Writer, texts: Sequence[str]) -> None:
    """Append strings: their number and lengths as a table, then all bytes."""
    encoded = [text.encode() for text in texts]
    write_table(writer, [np.fromiter(map(len, encoded), np.int64, len(encoded))])
    writer.raw(b"".join(encoded))


def read_texts(reader: Reader) -> list[str]:
    """Take what `write_texts` wrote."""
    (sizes,) = read_table(reader, 1)
    found = []
    for size_bytes in sizes.tolist():
        if size_bytes < 0:
            raise damaged("a text has a negative length")
        found.append(reader.raw(size_bytes).decode())
    return found


def _width_of(span: int) -> int:
    return (span.bit_length() + 7) // 8


def _write_column(writer: Writer, values: Column) -> None:
    """Append int64 values, as they are or as steps from one to the next, whichever takes fewer bytes.

    The form's byte (width, +128 for steps); steps: the first value; the smallest value or step; then each minus it.
    """
    if not len(values):
        return
    values = np.ascontiguousarray(values, dtype="<i8")
    low = int(values.min())
    width = _width_of(int(values.max()) - low)
    cells = values
    if width and len(values) > 1:
        steps = np.subtract(values[1:].view(_UINT64), values[:-1].view(_UINT64)).view(
            np.int64
        )  # wraps, as reading does
        low_step = int(steps.min())
        step_width = _width_of(int(steps.max()) - low_step)
        if step_width < width:
            writer.byte(step_width | _DELTA)
            writer.sint(int(values[0]))
            cells, low, width = steps, low_step, step_width
    if cells is values:
        writer.byte(width)
    writer.sint(low)
    if width:
        moved = cells.view(_UINT64) - _UINT64(low % 2**64)
        writer.raw(moved.view(np.uint8).reshape(len(cells), 8)[:, :width].tobytes())


def _read_column(reader: Reader, row_count: int) -> Column:
    if not row_count:
        return np.empty(0, np.int64)
    form = reader.byte()
    width, is_delta = form & ~_DELTA, bool(form & _DELTA)
    if width > 8:
        raise damaged(f"a column is {width} bytes wide")
    first = reader.sint() if is_delta else 0
    low = reader.sint()
    if not -(2**63) <= first < 2**63 or not -(2**63) <= low < 2**63:
        raise damaged("a column's base does not fit 64 bits")
    count = row_count - is_delta
    cells = np.full(count, low, np.int64).view(_UINT64)
    if width:
        padded = np.zeros((count, 8), np.uint8)
        padded[:, :width] = np.frombuffer(reader.raw(width * count), np.uint8).reshape(count, width)
        cells += padded.view("<u8").ravel()
    if not is_delta:
        return cells.view(np.int64)
    values = np.empty(row_count, _UINT64)
    values[0] = first % 2**64
    np.cumsum(cells, out=values[1:])
    values[1:] += values[0]
    return values.view(np.int64)
