"""The sections of one partition: rows in memory, as columns of machine integers, and pages on storage. Pure.

About 55 bytes a section in memory. Which offsets are live is the partition's affair: it gives the bounds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from spark_replog.log.codec.snapshot import PageKind, Rows, SectionColumn
from spark_replog.log.fold.paged_table import Piece, SectionPages
from spark_replog.log.model import Section

T = TypeVar("T", bound=NamedTuple)
Part = Piece | tuple[int, int]
"""Where sections are: rows [first, last) in memory, or a piece of a page."""

_ROWS_FIRST = 8


def tuples_of(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Return rows as named tuples of a kind, made as they are read.

    Without a call of a Python function for each row, as the constructor and ``_make`` are.

    Args:
        kind: its fields are those of the rows; neither their number nor their types are checked.
        rows: often a zip of columns.
    """
    return cast("Iterator[T]", map(tuple.__new__, repeat(kind), rows))


class SectionRow(NamedTuple):
    """One row of the table; `object_number` counts the ledger's objects."""

    base_offset: int
    row_count: int
    object_number: int
    start_byte: int
    size_bytes: int
    crc32c: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_type: int
    end_offset: int


class _Columns(NamedTuple):
    """The rows in memory, in the order of a page's columns after the slot."""

    bases: array[int]
    ends: array[int]
    rows: array[int]
    objects: array[int]
    starts: array[int]
    sizes: array[int]
    crcs: array[int]
    min_ms: array[int]
    max_ms: array[int]
    types: array[int]


class SectionTable:
    """The sections of one partition. Mutable by the fold only.

    Attributes:
        slot: the partition's number in the ledger, for ever.
        pages: those of the ledger; None: all rows are in memory.
    """

    def __init__(self, slot: int, pages: SectionPages | None) -> None:
        self.slot = slot
        self.pages = pages
        self._columns = _Columns(*(array(code) for code in "qqqqqqIqqb"))
        self._paged_bytes: tuple[object, int] = ((), 0)

    def rows_in_memory(self) -> Rows:
        """Return a copy of the rows that are not in pages."""
        columns = [np.array(column, np.int64) for column in self._columns]
        cells = np.stack([np.full(len(columns[0]), self.slot, np.int64), *columns])
        return Rows(PageKind.SECTIONS, cells, [], [])

    def take_rows(self, rows: Rows) -> None:
        """Append rows to those in memory."""
        for mine, values in zip(self._columns, rows.cells[1:], strict=True):
            mine.extend(values.tolist())

    def leave_to_pages(self, object_below: int) -> None:
        """Forget the rows of objects below a number: they are in pages."""
        rows = self.rows_in_memory()
        kept = rows.take(np.flatnonzero(rows.cells[SectionColumn.OBJECT] >= object_below))
        if len(kept) < len(rows):
            self._cut(0, len(rows))
            self.take_rows(kept)

    def add(
        self, section: Section, base: int, end: int, object_number: int, low_ms: int, high_ms: int, kind: int
    ) -> None:
        """Append the row of a section that spans the offsets [base, end). Called for each new section."""
        bases, ends, rows, objects, starts, sizes, crcs, lows, highs, kinds = self._columns
        bases.append(base)
        ends.append(end)
        rows.append(section.row_count)
        objects.append(object_number)
        starts.append(section.start_byte)
        sizes.append(section.size_bytes)
        crcs.append(section.crc32c)
        lows.append(low_ms)
        highs.append(high_ms)
        kinds.append(kind)

    def cut_below(self, offset: int) -> list[int]:
        """Remove the rows in memory that end at or below an offset; return the numbers of their objects."""
        return self._cut(0, bisect_right(self._columns.ends, offset))

    def cut_from(self, offset: int) -> list[int]:
        """Remove the rows in memory from the one that begins at an offset; return the numbers of their objects.

        Raises:
            ValueError: a section has the offset inside.
        """
        at = bisect_left(self._columns.bases, offset)
        if at and self._columns.ends[at - 1] > offset:
            raise ValueError(f"offset {offset} is inside a section: an append is cut as a whole")
        return self._cut(at, len(self._columns.bases))

    def objects_from(self, offset: int) -> list[int]:
        """Return the number of the object of each section in memory that begins at or after an offset."""
        return self._columns.objects[bisect_left(self._columns.bases, offset) :].tolist()

    def _cut(self, first: int, last: int) -> list[int]:
        """Remove rows from memory; return their objects' numbers."""
        numbers = self._columns.objects[first:last].tolist()
        for column in self._columns:
            del column[first:last]
        return numbers

    def parts(self, low: int, high: int) -> list[Part]:
        """Return where the sections of the live offsets [low, high) are, in order."""
        if low >= high:
            return []
        if self.pages is None or not self.pages.runs:
            return [(bisect_right(self._columns.ends, low), bisect_left(self._columns.bases, high))]
        in_memory, holes = self._split(low, high)
        parts: list[tuple[int, Part]] = [(self._columns.bases[span[0]], span) for span in in_memory]
        if holes:
            parts += [(piece.base, piece) for piece in self.pages.pieces(self.slot, holes)]
            parts.sort(key=lambda pair: pair[0])
        return [part for _, part in parts]

    def _split(self, low: int, high: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the rows [first, last) in memory with offsets in [low, high), and the offsets that pages cover."""
        parts: list[tuple[int, int]] = []
        holes: list[tuple[int, int]] = []
        first, last = bisect_right(self._columns.ends, low), bisect_left(self._columns.bases, high)
        breaks = self._breaks(first, last) if last - first > 1 else []
        at = low
        for begun, ended in pairwise((first, *breaks, last)) if last > first else ():
            base = self._columns.bases[begun]
            if base > at:
                holes.append((at, base))
            parts.append((begun, ended))
            at = self._columns.ends[ended - 1]
        if at < high:
            holes.append((at, high))
        return parts, holes

    def _breaks(self, first: int, last: int) -> list[int]:
        """Return the rows in (first, last) that do not begin where the row before them ends."""
        bases, ends = self._columns.bases[first + 1 : last], self._columns.ends[first : last - 1]
        if bases == ends:
            return []
        # Of copies: an array that numpy looks at cannot grow.
        is_break = np.frombuffer(bases, np.int64) > np.frombuffer(ends, np.int64)
        breaks: list[int] = (np.flatnonzero(is_break) + first + 1).tolist()
        return breaks

    def rows_of(self, part: Part) -> Iterator[SectionRow]:
        """Return the rows of a part, made as they are read: few at first, as many callers need no more."""
        return chain.from_iterable(self._chunks_of(part))

    def _chunks_of(self, part: Part) -> Iterator[Iterator[SectionRow]]:
        if isinstance(part, Piece):
            assert self.pages is not None
            page, at, last = self.pages.rows(part)
            every: Sequence[memoryview | array[int]] = page.columns[1:]
        else:
            every, (at, last) = self._columns, part
        count = _ROWS_FIRST
        while at < last:
            some = slice(at, min(at + count, last))
            columns = [column[some].tolist() for column in every]
            yield tuples_of(SectionRow, zip(columns[0], *columns[2:], columns[1], strict=True))
            at, count = some.stop, count * _ROWS_FIRST

    def between(self, low: int, high: int) -> Iterator[SectionRow]:
        """Return the sections that hold any of the live offsets [low, high); O(log n + result)."""
        return chain.from_iterable(chain.from_iterable(map(self._chunks_of, self.parts(low, high))))

    def replace(self, rows: Sequence[SectionRow]) -> list[int]:
        """Replace the rows that span the same offsets, all of them live.

        Returns:
            The numbers of the objects of the sections that left memory. Those in pages are hidden from now on.
        """
        first = bisect_left(self._columns.bases, rows[0].base_offset)
        last = bisect_left(self._columns.bases, rows[-1].end_offset)
        gone = self._columns.objects[first:last].tolist()
        values = zip(*((row[0], row.end_offset, *row[1:9]) for row in rows), strict=True)
        for column, cells in zip(self._columns, values, strict=True):
            column[first:last] = array(column.typecode, cells)
        return gone

    def first_late(self, part: Part, timestamp_ms: int) -> int | None:
        """Return the base offset of the first section of a part with a row at or after a time."""
        if not isinstance(part, Piece):
            late = np.flatnonzero(np.array(self._columns.max_ms[slice(*part)], np.int64) >= timestamp_ms)
            return self._columns.bases[part[0] + int(late[0])] if len(late) else None
        rows = self.rows_of(part) if part.top >= timestamp_ms else iter(())
        return next((row.base_offset for row in rows if row.max_timestamp_ms >= timestamp_ms), None)

    def in_pages(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the live offsets of [low, high) that pages cover, as intervals; loads none."""
        is_paged = self.pages is not None and self.pages.runs and low < high
        return self._split(low, high)[1] if is_paged else []

    def live_bytes(self, low: int, high: int) -> int:
        """Return the bytes of the sections with live offsets, which are [low, high)."""
        size_bytes, holes = sum(self._columns.sizes), self.in_pages(low, high)
        if self.pages is None or not holes:
            return size_bytes
        if self._paged_bytes[0] != (self.pages.runs, holes):  # the runs or the offsets there have changed
            self._paged_bytes = (self.pages.runs, holes), self.pages.live_bytes(self.slot, holes)
        return size_bytes + self._paged_bytes[1]
