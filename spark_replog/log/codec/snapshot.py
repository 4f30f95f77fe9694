"""Snapshots of ledgers as bytes: `docs/format.md`, chapter "Snapshot".

A sealed part is a head (all of a state but the rows in pages) or a page. Its checksum is verified before the rest is
read, so that damage is never taken for content. A page holds rows of one table, sorted by slot and base, as 64-bit
integer columns. A directory holds the pieces of the pages of one run: a piece is the rows of one slot that follow each
other in one page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import crc32c as crc32c_module
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.snapshot import snapshot_too_large
from spark_replog.wire import BROKER_ID, TEXT, Reader, Writer, list_of

MAGIC = b"RLSN"
SNAPSHOT_FORMAT_VERSION = 1
BODY_BYTES_MAX = 1 << 30
"""Of a sealed part, uncompressed."""
ROWS_MAX = 1 << 24
"""Of one table of a part; a page holds some thousands."""
COUNTED_BYTES_MAX = 1 << 32
"""Of one section, which is smaller: a record has less than half. A damaged or hostile append may claim more."""
PAGE_ROWS_MAX = 1 << 16
"""Of a page of sections or objects, which has 2,048."""
FREE_BYTES = 1 << 24
"""A part or a table may take this much memory whatever its bytes on storage are."""
BODY_BYTES_PER_STORED = 4096
TABLE_BYTES_PER_BYTE = 256
"""Above `FREE_BYTES`: how much larger a body may be than it is on storage, and a table than its body. Rows on storage
have random checksums and names, so they become about 20 times larger. Otherwise a few bytes whose checksum is right
would cost gigabytes."""
_HEADER_BYTES = 6
_CRC_BYTES = 4
_DELTA = 0x80
_UINT64 = np.uint64
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Column = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int64]
"""Columns by rows."""


class SnapshotPart(IntEnum):
    """The kind of a sealed part."""

    TOPIC_HEAD = 1
    CLUSTER_HEAD = 2
    PAGE = 3


def damaged(what: str, name: str = "") -> CorruptDataError:
    """Return the error for bytes that no release can have written; `name`: of the page."""
    where = f"page {name}" if name else "head"
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the {where} of a ledger snapshot is damaged: {what}. Run `replog store verify` to see which roots hold it.",
    )


def seal(part: SnapshotPart, body: bytes) -> bytes:
    """Return the bytes to store: magic, version, part, size, compressed body, checksum of all.

    Raises:
        ReplogError: RECORD_LIST_TOO_LARGE: `unseal` would refuse it.
    """
    packed = pa.compress(body, codec="zstd", asbytes=True)
    if len(body) > (most := _body_bytes_max(len(packed))):
        raise snapshot_too_large(f"a part has {len(body)} bytes, and {most} is the most")
    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(SNAPSHOT_FORMAT_VERSION)
    writer.byte(part)
    writer.uint(len(body))
    writer.raw(packed)
    writer.raw(crc32c_module.crc32c(writer.data).to_bytes(_CRC_BYTES, "little"))
    return bytes(writer.data)


def _body_bytes_max(stored_bytes: int) -> int:
    return min(BODY_BYTES_MAX, max(FREE_BYTES, BODY_BYTES_PER_STORED * stored_bytes))


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
    header = Reader(data[_HEADER_BYTES:-_CRC_BYTES], partial(damaged, name=name))
    size_bytes = header.uint()
    if size_bytes > _body_bytes_max(len(data)):  # checked before memory is taken
        raise damaged(f"its {len(data)} bytes claim to be {size_bytes}", name)
    try:
        body = pa.decompress(header.rest(), decompressed_size=size_bytes, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(str(error), name) from error
    return Reader(body, header.damaged)


def write_table(writer: Writer, cells: Cells) -> None:
    """Append a table: the number of rows, then each column, as it is or as steps, whichever takes fewer bytes.

    The form's byte (width, +128 for steps); steps: the first value; the smallest value or step; then each minus it.

    Raises:
        ReplogError: RECORD_LIST_TOO_LARGE: `read_table` would refuse it.
    """
    cells = np.ascontiguousarray(cells, dtype="<i8")
    row_count, begin = cells.shape[1], len(writer.data)
    if row_count > ROWS_MAX:
        raise snapshot_too_large(f"a table has {row_count} rows, and {ROWS_MAX} is the most")
    writer.uint(row_count)
    if row_count:
        _write_columns(writer, cells)
    if cells.nbytes > (most := _table_bytes_max(len(writer.data) - begin)):
        raise snapshot_too_large(f"a table has {cells.nbytes} bytes, and {most} is the most")


def _table_bytes_max(body_bytes: int) -> int:
    return max(FREE_BYTES, TABLE_BYTES_PER_BYTE * body_bytes)


def _write_columns(writer: Writer, cells: Cells) -> None:
    """Append the columns of a table that has rows."""
    row_count = cells.shape[1]
    lows, widths = _ranges(cells)
    low_steps, step_widths, steps = [0], [0], cells  # of columns that are not constant
    if row_count > 1 and any(widths):
        unsigned = cells.view(_UINT64)
        steps = np.subtract(unsigned[:, 1:], unsigned[:, :-1]).view(np.int64)  # wraps, as reading does
        low_steps, step_widths = _ranges(steps)
    for column, (low, width) in enumerate(zip(lows, widths, strict=True)):
        values = cells[column]
        if width and row_count > 1 and step_widths[column] < width:
            values, low, width = steps[column], low_steps[column], step_widths[column]
            writer.byte(width | _DELTA)
            writer.sint(int(cells[column, 0]))
        else:
            writer.byte(width)
        writer.sint(low)
        if width:
            moved = values.view(_UINT64) - _UINT64(low % 2**64)
            writer.raw(moved.view(np.uint8).reshape(len(moved), 8)[:, :width].tobytes())


def _ranges(cells: Cells) -> tuple[list[int], list[int]]:
    """Return the smallest value of each column, and in how many bytes the others less it fit."""
    lows = cells.min(axis=1).tolist()
    highs = cells.max(axis=1).tolist()
    return lows, [((high - low).bit_length() + 7) // 8 for low, high in zip(lows, highs, strict=True)]


def read_table(reader: Reader, column_count: int, row_count_max: int = ROWS_MAX) -> Cells:
    """Read what `write_table` wrote; refuse rows that the bytes cannot account for before it takes memory."""
    bytes_left = reader.left_count()
    row_count = reader.uint()
    if row_count > row_count_max or 8 * row_count * column_count > _table_bytes_max(bytes_left):
        raise damaged(f"a table claims {row_count} rows in {bytes_left} bytes")
    table = np.empty((column_count, row_count), np.int64)
    for column in table if row_count else ():
        _read_column(reader, column)
    return table


class Items(Protocol[T_co]):
    """One item per row."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...

    def __getitem__(self, row: int, /) -> T_co: ...


_Some = slice | npt.NDArray[np.intp]
"""Which rows."""


class _MadeItems(Generic[T]):
    """Items that are made on access, some at once: a lookup in a page needs few of thousands."""

    def __init__(self, count: int, make: Callable[[_Some], list[T]]) -> None:
        self._count = count
        self.make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return iter(self.make(slice(None)))

    def __getitem__(self, row: int, /) -> T:
        return self.make(slice(row, row + 1))[0]


def _picker(column: Column) -> Callable[[_Some], list[int]]:
    """Return what picks values of a column. A slice of a memoryview needs no numpy, whose calls take longer."""
    view = column.data
    return lambda rows: view[rows].tolist() if isinstance(rows, slice) else column[rows].tolist()


def some_of(items: Items[T], rows: _Some) -> list[T]:
    """Return some of the items."""
    if isinstance(items, _MadeItems):
        return items.make(rows)
    numbers = range(len(items))[rows] if isinstance(rows, slice) else rows.tolist()
    return [items[number] for number in numbers]


def write_texts(writer: Writer, texts: Items[str]) -> None:
    """Append ASCII strings (names of objects and pages): their number and lengths as a table, then all bytes."""
    write_table(writer, np.fromiter(map(len, texts), np.int64, len(texts)).reshape(1, -1))
    writer.raw("".join(texts).encode("ascii"))


def read_texts(reader: Reader) -> Items[str]:
    """Read what `write_texts` wrote."""
    (sizes,) = read_table(reader, 1, reader.left_count())  # no text is empty
    if sizes.min(initial=0) < 0 or sizes.max(initial=0) > BODY_BYTES_MAX:
        raise damaged("a text has an impossible length")
    all_ends = np.cumsum(sizes)
    starts, ends = _picker(all_ends - sizes), _picker(all_ends)
    text = reader.raw(int(sizes.sum())).decode("ascii")

    def make(rows: _Some) -> list[str]:
        return [text[start:end] for start, end in zip(starts(rows), ends(rows), strict=True)]

    return _MadeItems(len(sizes), make)


def _read_column(reader: Reader, signed: Column) -> None:
    """Fill a column, which is not empty."""
    form = reader.byte()
    if not form:  # one value in all rows, as in most columns
        low = reader.sint()
        if not -(2**63) <= low < 2**63:
            raise damaged("a column's base does not fit 64 bits")
        signed.fill(low)
        return
    column = signed.view(_UINT64)
    width, is_delta = form & ~_DELTA, bool(form & _DELTA)
    if width > 8:
        raise damaged(f"a column is {width} bytes wide")
    first = reader.sint() if is_delta else 0
    low = reader.sint()
    if not -(2**63) <= first < 2**63 or not -(2**63) <= low < 2**63:
        raise damaged("a column's base does not fit 64 bits")
    cells = column[is_delta:]
    cells.fill(low % 2**64)
    if width in (1, 2, 4, 8):
        cells += np.frombuffer(reader.raw(width * len(cells)), f"<u{width}")
    elif width:
        padded = np.zeros((len(cells), 8), np.uint8)
        padded[:, :width] = np.frombuffer(reader.raw(width * len(cells)), np.uint8).reshape(len(cells), width)
        cells += padded.view("<u8").ravel()
    if is_delta:
        column[0] = first % 2**64
        np.cumsum(column, out=column)


class PageKind(IntEnum):
    """The kind of a page's rows."""

    SECTIONS = 1
    OBJECTS = 2
    DIRECTORY = 3


SLOT, BASE, END = 0, 1, 2
"""First columns of every table: the row's slot, and the half-open range that it covers."""


class SectionColumn(IntEnum):
    """Columns of a section: slot of its partition, offsets, and where its rows are."""

    ROW_COUNT = 3
    OBJECT = 4
    START_BYTE = 5
    SIZE_BYTES = 6
    CRC32C = 7
    MIN_TIMESTAMP_MS = 8
    MAX_TIMESTAMP_MS = 9
    TIMESTAMP_TYPE = 10


class ObjectColumn(IntEnum):
    """Columns of an object: slot 0, its number and the next one, then its fields."""

    GENERATION = 3
    SIZE_BYTES = 4
    FLAGS = 5
    """1: has headers, 2: has offsets, and four times the version of its rows' schema."""
    COMMAND_NO = 6
    OBJECT_NO = 7
    APPEND_TIME_MS = 8
    LIVE_COUNT = 9
    """Sections that name it; 0: the object is gone, and this row hides older ones of it."""


class PieceColumn(IntEnum):
    """Columns of a directory: slot, range, and where the rows are."""

    ROW_COUNT = 3
    PAGE_NO = 4
    FIRST_ROW = 5
    SIZE_BYTES = 6
    """Sections: of all its rows."""
    TOP = 7
    """Sections: the latest time; objects: the newest generation."""


_COLUMN_COUNTS = {PageKind.SECTIONS: 11, PageKind.OBJECTS: 10, PageKind.DIRECTORY: 8}
_HOLDERS = list_of(list_of(BROKER_ID))


@dataclass(slots=True)
class Rows:
    """Rows of one table. `names` and `holders` only for objects: one of each per row."""

    kind: PageKind
    cells: Cells
    names: Items[str]
    holders: Items[frozenset[int]]
    _columns: list[memoryview] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def columns(self) -> list[memoryview]:
        """Return the columns for a reader of few rows: a call of numpy takes as long as dozens of values."""
        if not self._columns:
            self._columns = [column.data for column in self.cells]
        return self._columns

    def __len__(self) -> int:
        return len(self.cells[0])

    @property
    def size_bytes(self) -> int:
        """Return its approximate size in memory."""
        return self.cells.nbytes + 200 * len(self.names)

    def take(self, rows: slice | npt.NDArray[np.intp]) -> Rows:
        """Return some of the rows."""
        if not self.names:
            return Rows(self.kind, self.cells[:, rows], [], [])
        return Rows(self.kind, self.cells[:, rows], some_of(self.names, rows), some_of(self.holders, rows))


def no_rows(kind: PageKind) -> Rows:
    """Return a table without rows."""
    return Rows(kind, np.empty((_COLUMN_COUNTS[kind], 0), np.int64), [], [])


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several tables of a kind, one after another; at least one."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.names]
    holders = [brokers for part in parts for brokers in part.holders]
    return Rows(parts[0].kind, np.concatenate([part.cells for part in parts], axis=1), names, holders)


@dataclass(slots=True)
class Directory:
    """The pieces of a run by slot and base, and the names of its pages. Read under the ledger's lock."""

    pieces: Cells
    pages: list[str]
    _spans: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    _bases: list[int] = field(default_factory=list, init=False)
    _ends: list[int] = field(default_factory=list, init=False)
    _columns: list[memoryview] = field(default_factory=list, init=False)

    @property
    def size_bytes(self) -> int:
        """Return its approximate size in memory."""
        return 2 * self.pieces.nbytes + 100 * len(self.pages)

    def find(self, slot: int, start: int, end: int) -> range:
        """Return which pieces of a slot hold anything of [start, end)."""
        if (
            not self._spans
        ):  # in lists: a store of 1,000 partitions asks thousands of times, and numpy takes 5 us a search
            slots = self.pieces[SLOT]
            starts = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist()][: len(slots)]
            self._bases, self._ends = self.pieces[BASE].tolist(), self.pieces[END].tolist()
            self._spans = dict(zip(slots[starts].tolist(), pairwise((*starts, len(slots))), strict=True))
        first, last = self._spans.get(slot, (0, 0))
        return range(bisect_right(self._ends, start, first, last), bisect_left(self._bases, end, first, last))

    def piece(self, number: int) -> list[int]:
        """Return the columns of a piece, see `PieceColumn`."""
        if not self._columns:
            self._columns = [column.data for column in self.pieces]
        return [column[number] for column in self._columns]


def counted_sizes(cells: Cells) -> Column:
    """Return the bytes of sections as sums count them, so that no sum of them is above 64 bits."""
    counted: Column = np.minimum(cells[SectionColumn.SIZE_BYTES], COUNTED_BYTES_MAX)
    return counted


def pieces_of(rows: Rows, page_no: int) -> Cells:
    """Return the pieces of a page."""
    cells = rows.cells
    is_sections = rows.kind is PageKind.SECTIONS
    breaks = cells[SLOT, 1:] != cells[SLOT, :-1]
    if is_sections:
        breaks |= cells[BASE, 1:] != cells[END, :-1]
    starts = np.concatenate([np.zeros(1, np.intp), np.flatnonzero(breaks) + 1])
    ends = np.append(starts[1:], len(rows)) - 1
    top = SectionColumn.MAX_TIMESTAMP_MS if is_sections else ObjectColumn.GENERATION
    sizes = np.add.reduceat(counted_sizes(cells), starts) if is_sections else np.zeros_like(starts)
    return np.stack(
        [
            cells[SLOT, starts],
            cells[BASE, starts],
            cells[END, ends],
            ends - starts + 1,
            np.full_like(starts, page_no),
            starts,
            sizes,
            np.maximum.reduceat(cells[top], starts),
        ]
    ).astype(np.int64)


def encode_page(ledger_id: str, content: Rows | Directory) -> bytes:
    """Return the bytes of a page: of rows of sections or objects, or of a directory."""
    writer = Writer()
    TEXT.write(writer, ledger_id)
    writer.byte(content.kind if isinstance(content, Rows) else PageKind.DIRECTORY)
    write_table(writer, content.cells if isinstance(content, Rows) else content.pieces)
    if not isinstance(content, Rows):
        write_texts(writer, content.pages)
    elif content.kind is PageKind.OBJECTS:
        write_texts(writer, content.names)
        write_holders(writer, content.holders)
    return seal(SnapshotPart.PAGE, bytes(writer.data))


def ledger_of_page(data: bytes) -> str:
    """Return the id of the ledger that a page belongs to; errors as ``decode_page``."""
    ledger_id: str = TEXT.read(unseal(SnapshotPart.PAGE, data))
    return ledger_id


def decode_page(ledger_id: str, name: str, data: bytes) -> Rows | Directory:
    """Return the rows or the directory of a page, whose bytes are those of the name (``snapshot.is_named``).

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: damaged, or of another ledger.
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    reader = unseal(SnapshotPart.PAGE, data, name)
    try:
        content: Rows | Directory
        if TEXT.read(reader) != ledger_id:
            raise damaged("it is of another ledger", name)
        kind = PageKind(reader.byte())
        cells = read_table(reader, _COLUMN_COUNTS[kind], ROWS_MAX if kind is PageKind.DIRECTORY else PAGE_ROWS_MAX)
        if kind is PageKind.DIRECTORY:
            content = Directory(cells, list(read_texts(reader)))
            numbers = cells[PieceColumn.PAGE_NO]
            is_whole = numbers.min(initial=0) >= 0 and numbers.max(initial=-1) < len(content.pages)
        else:
            content = Rows(kind, cells, [], [])
            if kind is PageKind.OBJECTS:
                content.names, content.holders = read_texts(reader), read_holders(reader)
            is_whole = len(content.names) == len(content.holders) == (kind is PageKind.OBJECTS) * len(content)
        reader.finish()
    except (ValueError, LookupError, OverflowError) as error:
        raise damaged(repr(error), name) from error
    slots, bases = cells[SLOT], cells[BASE]
    is_sorted = (slots[:-1] < slots[1:]) | ((slots[:-1] == slots[1:]) & (bases[:-1] <= bases[1:]))
    if not is_whole or not is_sorted.all():
        raise damaged("its rows contradict each other", name)
    return content


def write_holders(writer: Writer, holders: Items[frozenset[int]]) -> None:
    """Append sets of brokers: the distinct sets, then the number of each row's set."""
    numbers = {brokers: number for number, brokers in enumerate(dict.fromkeys(holders))}
    _HOLDERS.write(writer, [sorted(brokers) for brokers in numbers])
    write_table(writer, np.array([[numbers[brokers] for brokers in holders]], np.int64))


def read_holders(reader: Reader) -> Items[frozenset[int]]:
    """Read what `write_holders` wrote."""
    different = [frozenset(brokers) for brokers in _HOLDERS.read(reader)]
    (numbers,) = read_table(reader, 1)
    if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= len(different):
        raise damaged("a set of brokers is missing")
    pick = _picker(numbers)
    return _MadeItems(len(numbers), lambda rows: [different[number] for number in pick(rows)])
