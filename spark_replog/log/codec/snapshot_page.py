"""Pages of a ledger's index as bytes: `docs/format.md`, chapter "Snapshot".

A page holds rows of one table, sorted by slot and base, as columns of 64-bit integers. A directory holds the pieces of
the pages of one run: a piece is rows of one slot that follow each other in one page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from spark_replog.log.codec.snapshot import (
    SnapshotPart,
    damaged,
    read_table,
    read_texts,
    seal,
    unseal,
    write_table,
    write_texts,
)
from spark_replog.log.codec.wire import BROKER_ID, TEXT, Reader, Writer, fields, list_of

Cells = npt.NDArray[np.int64]
"""Columns by rows."""


class PageKind(IntEnum):
    """What the rows of a page are."""

    SECTIONS = 1
    OBJECTS = 2
    DIRECTORY = 3


SLOT, BASE, END = 0, 1, 2
"""First columns of every table: whose row it is, and the half-open range that it covers."""


class SectionColumn(IntEnum):
    """Columns of a section: slot of its partition, offsets, and where its rows lie."""

    ROW_COUNT = 3
    OBJECT = 4
    START_BYTE = 5
    SIZE_BYTES = 6
    CRC32C = 7
    MIN_TIMESTAMP_MS = 8
    MAX_TIMESTAMP_MS = 9
    TIMESTAMP_TYPE = 10


class ObjectColumn(IntEnum):
    """Columns of an object: slot 0, its number and the next one, and what its entry says of it."""

    GENERATION = 3
    SIZE_BYTES = 4
    FLAGS = 5
    """1: has headers, 2: has offsets."""
    COMMAND_NO = 6
    OBJECT_NO = 7
    APPEND_TIME_MS = 8
    LIVE_COUNT = 9
    """Rows that name it; 0: an object that is gone, which hides an older row of it."""


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
_HEADER = fields(TEXT, TEXT)
_HOLDERS = list_of(list_of(BROKER_ID))


@dataclass(slots=True)
class Rows:
    """Rows of one table. `names` and `holders` only for objects: one each a row."""

    kind: PageKind
    cells: Cells
    names: list[str]
    holders: list[frozenset[int]]

    def __len__(self) -> int:
        return len(self.cells[0])

    @property
    def size_bytes(self) -> int:
        """Return about what it takes in memory."""
        return self.cells.nbytes + 200 * len(self.names)

    def take(self, rows: slice | npt.NDArray[np.intp]) -> Rows:
        """Return some of the rows."""
        if not self.names:
            return Rows(self.kind, self.cells[:, rows], [], [])
        numbers = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        names, holders = self.names, self.holders
        return Rows(self.kind, self.cells[:, rows], [names[n] for n in numbers], [holders[n] for n in numbers])


def no_rows(kind: PageKind) -> Rows:
    """Return a table without rows."""
    return Rows(kind, np.empty((_COLUMN_COUNTS[kind], 0), np.int64), [], [])


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several tables of a kind, one after another; at least one."""
    if len(parts) == 1:
        return parts[0]
    names = [name for part in parts for name in part.names]
    holders = [each for part in parts for each in part.holders]
    return Rows(parts[0].kind, np.concatenate([part.cells for part in parts], axis=1), names, holders)


@dataclass(slots=True)
class Directory:
    """The pieces of a run by slot and base, and the names of its pages. Looked into under the ledger's lock."""

    pieces: Cells
    pages: list[str]
    _spans: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    _bases: list[int] = field(default_factory=list, init=False)
    _ends: list[int] = field(default_factory=list, init=False)

    @property
    def size_bytes(self) -> int:
        """Return about what it takes in memory."""
        return 2 * self.pieces.nbytes + 100 * len(self.pages)

    def find(self, slot: int, start: int, end: int) -> range:
        """Return which pieces of a slot hold anything of [start, end)."""
        if (
            not self._spans
        ):  # in lists: a store of 1,000 partitions asks thousands of times, and numpy takes 5 us a search
            slots, starts = np.unique(self.pieces[SLOT], return_index=True)
            ends = [*starts[1:].tolist(), self.pieces.shape[1]]
            self._bases, self._ends = self.pieces[BASE].tolist(), self.pieces[END].tolist()
            self._spans = dict(zip(slots.tolist(), zip(starts.tolist(), ends, strict=True), strict=True))
        first, last = self._spans.get(slot, (0, 0))
        return range(bisect_right(self._ends, start, first, last), bisect_left(self._bases, end, first, last))


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
    sizes = np.add.reduceat(cells[SectionColumn.SIZE_BYTES], starts) if is_sections else np.zeros_like(starts)
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


def encode_page(ledger_id: str, name: str, rows: Rows) -> bytes:
    """Return the bytes of a page of sections or objects."""
    writer = _begin(ledger_id, name, rows.kind, rows.cells)
    if rows.kind is PageKind.OBJECTS:
        write_texts(writer, rows.names)
        write_holders(writer, rows.holders)
    return seal(SnapshotPart.PAGE, bytes(writer.data))


def encode_directory(ledger_id: str, name: str, directory: Directory) -> bytes:
    """Return the bytes of a directory."""
    writer = _begin(ledger_id, name, PageKind.DIRECTORY, directory.pieces)
    write_texts(writer, directory.pages)
    return seal(SnapshotPart.PAGE, bytes(writer.data))


def _begin(ledger_id: str, name: str, kind: PageKind, cells: Cells) -> Writer:
    writer = Writer()
    _HEADER.write(writer, (ledger_id, name))
    writer.byte(kind)
    write_table(writer, list(cells))
    return writer


def page_identity(data: bytes) -> tuple[str, str]:
    """Return the ledger and the name that a page says it has; errors as ``decode_page``."""
    found: tuple[str, str] = _HEADER.read(unseal(SnapshotPart.PAGE, data))
    return found


def decode_page(ledger_id: str, name: str, data: bytes) -> Rows | Directory:
    """Return the rows or the directory of a page.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: damaged, of another ledger or under another name.
        UnsupportedFormatError: UNSUPPORTED_VERSION: written by a newer release.
    """
    reader = unseal(SnapshotPart.PAGE, data, name)
    try:
        found: Rows | Directory
        if _HEADER.read(reader) != (ledger_id, name):
            raise damaged("it is another page, or of another ledger", name)
        kind = PageKind(reader.byte())
        cells = np.stack(read_table(reader, _COLUMN_COUNTS[kind]))
        if kind is PageKind.DIRECTORY:
            found = Directory(cells, read_texts(reader))
            numbers = cells[PieceColumn.PAGE_NO]
            is_whole = numbers.min(initial=0) >= 0 and numbers.max(initial=-1) < len(found.pages)
        else:
            found = Rows(kind, cells, [], [])
            if kind is PageKind.OBJECTS:
                found.names, found.holders = read_texts(reader), read_holders(reader)
            is_whole = len(found.names) == len(found.holders) == (kind is PageKind.OBJECTS) * len(found)
        reader.finish()
    except (ValueError, LookupError, OverflowError) as error:
        raise damaged(repr(error), name) from error
    if not is_whole or (np.lexsort((cells[BASE], cells[SLOT])) != np.arange(cells.shape[1])).any():
        raise damaged("its rows contradict each other", name)
    return found


def write_holders(writer: Writer, holders: Sequence[frozenset[int]]) -> None:
    """Append sets of brokers: the different ones, then which one each row has."""
    numbers = {each: number for number, each in enumerate(dict.fromkeys(holders))}
    _HOLDERS.write(writer, [sorted(each) for each in numbers])
    write_table(writer, [np.array([numbers[each] for each in holders], np.int64)])


def read_holders(reader: Reader) -> list[frozenset[int]]:
    """Take what `write_holders` wrote."""
    different = [frozenset(each) for each in _HOLDERS.read(reader)]
    (numbers,) = read_table(reader, 1)
    if numbers.min(initial=0) < 0:
        raise damaged("a set of brokers is missing")
    return [different[number] for number in numbers.tolist()]
