"""Tables of a topic ledger whose older rows are in pages. Pages form runs, which are merged as they grow.

A run is a sorted set of rows; its pages never change. A newer run's row hides all rows of older ones that cover any of
its range, so that a replaced, cut or changed row needs no other change. Four runs of a size become one, and pages of
one partition that are at least half full are reused: a row is written about six times in a log of 10^8 rows, and a
merge rewrites only the other pages. `PageCache` bounds the memory of loaded pages.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_replog.ids import LedgerId
from spark_replog.log.codec.snapshot import (
    BASE,
    END,
    SLOT,
    Cells,
    Directory,
    ObjectColumn,
    PageKind,
    PieceColumn,
    Rows,
    SectionColumn,
    counted_sizes,
    damaged,
    decode_page,
    encode_page,
    joined,
    no_rows,
    pieces_of,
)
from spark_replog.snapshot import hash_of

PAGE_ROWS = 2048
"""Of a full page, about 50 KB. A plan of few old rows decodes two pages whole."""
FLUSH_ROWS = 512
"""Fewer settled rows stay in the head: they cost less there than in their own page."""
MERGE_WIDTH = 4
SPANS_MAX = 64
"""Slots of a run that the head names; for a run with more slots, a lookup reads the directory."""
CACHE_BYTES = 64 << 20
"""Bytes of pages that a process keeps per ledger, unless `metadata.page.cache.bytes` is set."""
_MERGED_BYTES_MAX = 400 << 20
"""Of decoded pages that a merge keeps at a time; a larger merge loads some twice."""

Interval = tuple[int, int]
Gone = tuple[int, int, int]
"""Slot and offsets [low, high) whose rows in pages are gone since the pages were written."""
Bounds = Mapping[int, Interval]
"""Slot -> offsets [log start, log end); rows outside are gone."""


class Piece(NamedTuple):
    """Rows of one slot in one page that cover [base, end); `is_whole`: all rows of the piece that was written."""

    base: int
    end: int
    page: str
    first_row: int
    row_count: int
    size_bytes: int
    top: int
    is_whole: bool = True

    def part(self, low: int, high: int) -> Piece:
        """Return the rows of this whole piece that cover [low, high), which is inside its range."""
        return self._replace(base=low, end=high, is_whole=(low, high) == self[:2])

    def cells(self, slot: int, page_no: int) -> tuple[int, ...]:
        """Return the columns of a whole piece in a directory, see `PieceColumn`."""
        return (slot, *self[:2], self.row_count, page_no, self.first_row, self.size_bytes, self.top)


class Run(NamedTuple):
    """One run: the name of its directory, or of its only page.

    Attributes:
        spans: (slot, base, end) of each slot, so that a run is not loaded for nothing; () beyond `SPANS_MAX` slots.
        sizes: bytes of the sections of each span; of objects 0.
        firsts: the first piece of each span, so that a reader of the oldest rows needs no directory; () if not known:
            the head has them for the oldest run only.
    """

    name: str
    is_page: bool
    row_count: int
    spans: tuple[tuple[int, int, int], ...]
    sizes: tuple[int, ...]
    firsts: tuple[Piece, ...] = ()

    def may_hold(self, slot: int, low: int, high: int) -> bool:
        """Return whether the run may have rows of a slot in [low, high)."""
        for span_slot, base, end in self.spans:  # a plan asks all runs: `any` makes a generator for each of them
            if span_slot == slot and base < high and end > low:
                return True
        return not self.spans


class PageCache:
    """The decoded pages of one ledger that were used last; called under the ledger's lock, except `fetch`.

    Attributes:
        load: returns the bytes of a page; raises PageMissingError and storage errors.
        limit_bytes: of decoded pages; the page in use may be larger.
        size_bytes: about how much memory the pages take.
    """

    def __init__(self, ledger_id: LedgerId, load: Callable[[str], bytes], limit_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.limit_bytes = limit_bytes
        self.load = load
        self.size_bytes = 0
        self._pages: OrderedDict[str, Rows | Directory] = OrderedDict()

    def fetch(self, name: str) -> Rows | Directory:
        """Return a page without changing the cache: for a thread without the ledger's lock."""
        return self._pages.get(name) or decode_page(self.ledger_id, name, self.load(name))

    def rows(self, name: str) -> Rows:
        """Return a page of rows."""
        content = self._get(name)
        return content if isinstance(content, Rows) else _as_rows(content, name)

    def directory(self, run: Run) -> Directory:
        """Return the pieces of a run."""
        if not run.is_page:
            return _as_directory(self._get(run.name), run.name)
        key = f"{run.name}/pieces"
        content = self._pages.get(key)
        if content is None:
            content = self._keep(key, Directory(pieces_of(self.rows(run.name), 0), [run.name]))
        return _as_directory(content, run.name)

    def pieces(self, run: Run, slot: int, high: int) -> Directory:
        """Return the pieces of a run, or only the first one of a slot if no other holds anything below `high`."""
        for (span_slot, *_), first in zip(run.spans, run.firsts, strict=False):
            if span_slot == slot and high <= first.end:
                key = f"{run.name}/{slot}"
                content = self._pages.get(key)
                if content is None:
                    cells = np.array([first.cells(slot, 0)], np.int64).T
                    content = self._keep(key, Directory(cells, [first.page]))
                return _as_directory(content, run.name)
        return self.directory(run)

    def _get(self, name: str) -> Rows | Directory:
        content = self._pages.get(name)
        if content is None:
            content = self.fetch(name)
            return self._keep(name, _as_rows(content, name) if isinstance(content, Rows) else content)
        self._pages.move_to_end(name)
        return content

    def _keep(self, key: str, page: Rows | Directory) -> Rows | Directory:
        self._pages[key] = page
        self.size_bytes += page.size_bytes
        while self.size_bytes > self.limit_bytes and len(self._pages) > 1:
            self.size_bytes -= self._pages.popitem(last=False)[1].size_bytes
        return page


def _as_rows(page: Rows | Directory, name: str) -> Rows:
    if not isinstance(page, Rows) or not len(page):
        raise damaged("it holds no rows", name)
    return page


def _as_directory(page: Rows | Directory, name: str) -> Directory:
    if not isinstance(page, Directory):
        raise damaged("it holds no directory", name)
    return page


def _whole_piece(directory: Directory, number: int) -> Piece:
    _, base, end, count, page_no, first_row, size_bytes, top = directory.piece(number)
    return Piece(base, end, directory.pages[page_no], first_row, count, size_bytes, top)


def plan_pieces(directories: Iterable[Directory], slot: int, intervals: list[Interval]) -> tuple[list[Piece], bool]:
    """Return the pieces that cover intervals of a slot, in order, and whether all intervals are covered."""
    plan: list[Piece] = []
    for directory in directories:
        if not intervals:
            break
        left: list[Interval] = []
        for low, high in intervals:
            at = low
            for number in directory.find(slot, low, high):
                whole = _whole_piece(directory, number)
                piece = whole.part(max(whole.base, at), min(whole.end, high))
                if piece.base > at:
                    left.append((at, piece.base))
                plan.append(piece)
                at = piece.end
            if at < high:
                left.append((at, high))
        intervals = left
    return sorted(plan), not intervals


class PageRows(NamedTuple):
    """Rows [first, last) of a page."""

    page: Rows
    first: int
    last: int

    def take(self) -> Rows:
        """Return the rows alone."""
        return self.page.take(slice(*self[1:]))


def rows_of(page: Rows, piece: Piece) -> PageRows:
    """Return the rows of a page that cover any of a piece's range."""
    first, last = piece.first_row, piece.first_row + piece.row_count
    low = bisect_right(page.columns[END], piece.base, first, last)
    return PageRows(page, low, bisect_left(page.columns[BASE], piece.end, low, last))


class _Pages:
    """A table's rows that are in pages.

    Attributes:
        runs: oldest first; `use` replaces them.
    """

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self.use(())

    def use(self, runs: tuple[Run, ...]) -> None:
        """Replace the runs, and forget what was found in the old ones."""
        self.runs = runs
        self._spans: dict[int, _Spans | None] = {}
        self._last: dict[int, Piece] = {}

    def _runs_with(self, slot: int, low: int, high: int) -> Sequence[Run]:
        """Return the runs that may hold [low, high) of a slot, oldest first."""
        if slot not in self._spans:
            self._spans[slot] = _spans_in_order(self.runs, slot)
        spans = self._spans[slot]
        if spans is None:
            return [run for run in self.runs if run.may_hold(slot, low, high)]
        return spans.runs[bisect_right(spans.ends, low) : bisect_left(spans.bases, high)]

    def _newest(self, slot: int, low: int, high: int) -> Iterator[Directory]:
        """Yield the pieces of the runs that may hold [low, high) of a slot, newest run first; loads them lazily."""
        return (self._cache.pieces(run, slot, high) for run in reversed(self._runs_with(slot, low, high)))

    def _piece_around(self, slot: int, low: int, high: int) -> Piece | None:
        """Return the whole piece that holds all of [low, high), if no other run may hold any of it.

        The one that was found last is kept: what a reader asks for next is in the same page, usually.
        """
        last = self._last.get(slot)
        if last is not None and last.base <= low and high <= last.end:
            return last
        runs = self._runs_with(slot, low, high)
        if len(runs) != 1 or self._spans[slot] is None:  # a run of many slots may hide any piece of another one
            return None
        directory = self._cache.pieces(runs[0], slot, high)
        numbers = directory.find(slot, low, high)
        if len(numbers) != 1:
            return None
        piece = _whole_piece(directory, numbers[0])
        if piece.base > low or piece.end < high:
            return None
        self._last[slot] = piece
        return piece


class _Spans(NamedTuple):
    """The ranges of one slot in runs where each newer one has later rows, as in a log without changes."""

    bases: list[int]
    ends: list[int]
    runs: list[Run]


def _spans_in_order(runs: Sequence[Run], slot: int) -> _Spans | None:
    """Return the ranges of a slot; None if ranges overlap, or if a run does not say which it has."""
    ranges = _Spans([], [], [])
    for run in runs:
        spans = [(base, end) for span_slot, base, end in run.spans if span_slot == slot]
        if not run.spans or len(spans) > 1 or (spans and ranges.ends and spans[0][0] < ranges.ends[-1]):
            return None
        for base, end in spans:
            ranges.bases.append(base)
            ranges.ends.append(end)
            ranges.runs.append(run)
    return ranges


class SectionPages(_Pages):
    """The sections of all partitions that are in pages."""

    def pieces(self, slot: int, intervals: list[Interval]) -> list[Piece]:
        """Return the pieces that cover intervals of a slot, in order.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: offsets are in no page.
        """
        around = self._piece_around(slot, intervals[0][0], intervals[-1][1])
        if around is not None:
            return [around.part(*interval) for interval in intervals]
        newest = self._newest(slot, intervals[0][0], intervals[-1][1])
        content, is_whole = plan_pieces(newest, slot, intervals)
        if not is_whole:
            raise damaged(f"offsets {intervals} of partition slot {slot} are in no page")
        return content

    def live_bytes(self, slot: int, intervals: list[Interval]) -> int:
        """Return the bytes of the sections that cover intervals of a slot; one that is partly outside counts in full.

        The head has the bytes of a run whose span is in an interval and overlaps no other run's. Directories have the
        rest.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: offsets are in no page.
        """
        spans = sorted(
            (base, end, size_bytes)
            for run in self.runs
            for (span_slot, base, end), size_bytes in zip(run.spans, run.sizes, strict=True)
            if span_slot == slot
        )
        total, rest = 0, intervals
        reach = 0 if all(run.spans for run in self.runs) else sys.maxsize
        for number, (base, end, size_bytes) in enumerate(spans):
            is_alone = reach <= base and (number + 1 == len(spans) or end <= spans[number + 1][0])
            reach = max(reach, end)
            if is_alone and any(low <= base and end <= high for low, high in rest):
                total += size_bytes
                rest = _without(rest, base, end)
        for piece in self.pieces(slot, rest) if rest else ():
            if piece.is_whole:
                total += piece.size_bytes
            else:
                page, first, last = self.rows(piece)
                total += int(counted_sizes(page.cells[:, first:last]).sum())
        return total

    def rows(self, piece: Piece) -> PageRows:
        """Return the rows of a piece."""
        return rows_of(self._cache.rows(piece.page), piece)

    def every_row(self) -> Iterator[Rows]:
        """Yield all rows page by page, also those that are gone."""
        for run in self.runs:
            for name in self._cache.directory(run).pages:
                yield self._cache.rows(name)


def _without(intervals: list[Interval], base: int, end: int) -> list[Interval]:
    """Return intervals without [base, end), which is inside one of them."""
    parts = [part for low, high in intervals for part in ((low, min(high, base)), (max(low, end), high))]
    return [(low, high) for low, high in parts if low < high]


class ObjectPages(_Pages):
    """The objects that are in pages, by number."""

    def find(self, numbers: Sequence[int]) -> list[PageRows]:
        """Return the rows of those objects of ascending numbers that are in pages and not gone; at least one number."""
        around = self._piece_around(0, numbers[0], numbers[-1] + 1)
        if around is not None:
            live, _ = _find_in_page(self._cache.rows(around.page), numbers)
            return [live] if live.first < live.last else []
        newest = self._newest(0, numbers[0], numbers[-1] + 1)
        return find_objects(newest, self._cache.rows, numbers)

    def between(self, first: int, last: int) -> list[PageRows]:
        """Return the rows of the objects with numbers [first, last), ascending; one entry has few."""
        numbers: set[int] = set()
        for directory in self._newest(0, first, last):
            for piece in directory.find(0, first, last):
                cells = self._cache.rows(directory.pages[int(directory.pieces[PieceColumn.PAGE_NO, piece])]).cells[BASE]
                numbers.update(cells[np.searchsorted(cells, first) : np.searchsorted(cells, last)].tolist())
        return self.find(sorted(numbers)) if numbers else []

    def of_generation(self, generation: int) -> dict[int, tuple[str, int]]:
        """Return number -> (name, rows that name it) of a generation's objects, those that are gone with 0 rows."""
        objects: dict[int, tuple[str, int]] = {}
        for directory in map(self._cache.directory, reversed(self.runs)):
            for piece in np.flatnonzero(directory.pieces[PieceColumn.TOP] >= generation).tolist():
                page = self._cache.rows(directory.pages[int(directory.pieces[PieceColumn.PAGE_NO, piece])])
                for row in np.flatnonzero(page.cells[ObjectColumn.GENERATION] == generation).tolist():
                    number, live_count = int(page.cells[BASE, row]), int(page.cells[ObjectColumn.LIVE_COUNT, row])
                    objects.setdefault(number, (page.names[row], live_count))
        return objects


def find_objects(
    directories: Iterable[Directory], load: Callable[[str], Rows], wanted: Sequence[int]
) -> list[PageRows]:
    """Return the newest rows of objects of ascending numbers; those that are gone are left out.

    Args:
        directories: of the runs, newest first.
        wanted: at least one number; each run is asked for those that no newer one has.
    """
    parts: list[PageRows] = []
    for directory in directories:
        left: list[int] = []
        at = 0
        for piece in directory.find(0, wanted[0], wanted[-1] + 1):
            _, base, end, _, page_no, *_ = directory.piece(piece)
            low, high = bisect_left(wanted, base, at), bisect_left(wanted, end, at)
            left += wanted[at:low]
            if low < high:
                live, missing = _find_in_page(load(directory.pages[page_no]), wanted[low:high])
                parts += [live] if live.first < live.last else []
                left += missing
            at = high
        wanted = [*left, *wanted[at:]]
        if not wanted:
            break
    return parts


def _find_in_page(page: Rows, wanted: Sequence[int]) -> tuple[PageRows, Sequence[int]]:
    """Return the rows of objects that are in a page and not gone, and the numbers that are not in it."""
    bases, counts = page.columns[BASE], page.columns[ObjectColumn.LIVE_COUNT]
    first = bisect_left(bases, wanted[0])
    last = first + len(wanted)
    if bases[first:last].tolist() == wanted and min(counts[first:last].tolist()) > 0:  # a plan's objects, usually
        return PageRows(page, first, last), ()
    last = bisect_right(bases, wanted[-1], first)
    row_of = dict(zip(bases[first:last].tolist(), range(first, last), strict=True))
    rows = np.array([row_of[number] for number in wanted if number in row_of], np.intp)
    live = page.take(rows[page.cells[ObjectColumn.LIVE_COUNT, rows] > 0])
    return PageRows(live, 0, len(live)), [number for number in wanted if number not in row_of]


class PageWriter(PageCache):
    """Makes the pages of one snapshot. Runs on a separate thread, without the ledger's lock.

    Args:
        cache: source of existing pages.
        base_no: number of the snapshot that this one derives from: part of the names.

    Attributes:
        made: name -> bytes of the pages made.
    """

    def __init__(self, cache: PageCache, base_no: int) -> None:
        super().__init__(cache.ledger_id, cache.load, _MERGED_BYTES_MAX)
        self._cache = cache
        self._base_no = base_no
        self.made: dict[str, bytes] = {}

    def fetch(self, name: str) -> Rows | Directory:
        """Return a page, of this snapshot or of an older one."""
        made = self.made.get(name)
        return self._cache.fetch(name) if made is None else decode_page(self.ledger_id, name, made)

    def _add(self, data: bytes) -> str:
        """Keep a page that was made; return its name."""
        name = f"{self._base_no:012d}-{hash_of(data)}"
        self.made[name] = data
        return name

    def pages_of(self, *tables: Sequence[Run]) -> dict[str, bytes]:
        """Return the new pages that runs name; the others were already merged again."""
        new = [run for runs in tables for run in runs if run.name in self.made]
        names = {run.name for run in new}.union(*(self.directory(run).pages for run in new))
        return {name: data for name, data in self.made.items() if name in names}

    def write_run(self, parts: Iterator[Rows | tuple[int, Piece]]) -> tuple[Run, ...]:
        """Return the run of sorted rows and of reused whole pages, given as (slot, piece); () if there are none."""
        pieces: list[Cells] = []
        pages: list[str] = []
        waiting: list[Rows] = []

        def flush(least: int) -> None:
            rows = joined(waiting)
            waiting.clear()
            while len(rows) >= least:
                page, rows = rows.take(slice(0, PAGE_ROWS)), rows.take(slice(PAGE_ROWS, None))
                pieces.append(pieces_of(page, len(pages)))
                pages.append(self._add(encode_page(self.ledger_id, page)))
            if len(rows):
                waiting.append(rows)

        for part in parts:
            if isinstance(part, Rows):
                waiting.extend([part] if len(part) else [])
                if sum(map(len, waiting)) >= PAGE_ROWS:
                    flush(PAGE_ROWS)
                continue
            if waiting:
                flush(1)
            slot, piece = part
            pieces.append(np.array([piece.cells(slot, len(pages))], np.int64).T)
            pages.append(piece.page)
        if waiting:
            flush(1)
        if not pages:
            return ()
        cells = np.concatenate(pieces, axis=1)
        row_count = int(cells[PieceColumn.ROW_COUNT].sum())
        spans, sizes, firsts = _spans(cells, pages)
        if len(pages) == 1:
            return (Run(pages[0], True, row_count, spans, sizes),)
        directory = Directory(cells, pages)
        name = self._add(encode_page(self.ledger_id, directory))
        self._keep(name, directory)
        return (Run(name, False, row_count, spans, sizes, firsts),)

    def count_gone(self, runs: Sequence[Run], gone: Iterable[Gone]) -> dict[int, int]:
        """Return how many of the rows that are gone name each object.

        A row is gone with the offset before its end.
        """
        by_slot: dict[int, list[Interval]] = {}
        for slot, low, high in gone:
            by_slot.setdefault(slot, []).append((low, high))
        newest = [self.directory(run) for run in reversed(runs)] if by_slot else []
        parts: list[Cells] = []
        for slot, intervals in by_slot.items():
            pieces, is_whole = plan_pieces(newest, slot, sorted(intervals))
            if not is_whole:
                raise damaged(f"offsets {intervals} of partition slot {slot} are in no page")
            for piece in pieces:
                cells = rows_of(self.rows(piece.page), piece).take().cells
                parts.append(cells[SectionColumn.OBJECT, (cells[END] > piece.base) & (cells[END] <= piece.end)])
        numbers, counts = np.unique(np.concatenate([np.empty(0, np.int64), *parts]), return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def merge_sections(self, runs: Sequence[Run], bounds: Bounds) -> tuple[Run, ...]:
        """Return the run of the rows of neighbouring runs that are not gone."""
        newest = [self.directory(run) for run in reversed(runs)]
        plan: list[tuple[int, Piece]] = []
        for slot in np.unique(np.concatenate([page_directory.pieces[SLOT] for page_directory in newest])).tolist():
            low, high = bounds.get(slot, (0, 0))
            if low < high:
                plan += [(slot, piece) for piece in plan_pieces(newest, slot, [(low, high)])[0]]
        alone = {
            directory.pages[number]
            for directory in newest
            for number, count in enumerate(np.bincount(directory.pieces[PieceColumn.PAGE_NO]).tolist())
            if count == 1
        }
        kept = {
            piece.page
            for _, piece in plan
            if piece.is_whole and piece.page in alone and piece.row_count >= PAGE_ROWS // 2
        }

        def parts() -> Iterator[Rows | tuple[int, Piece]]:
            for slot, piece in plan:
                if piece.page in kept:
                    yield slot, piece
                    continue
                yield rows_of(self.rows(piece.page), piece).take()

        return self.write_run(parts())

    def merge_objects(self, runs: Sequence[Run], *, is_oldest: bool) -> tuple[Run, ...]:
        """Return the run of the newest rows of neighbouring runs; the oldest run drops objects that are gone."""
        spans: list[tuple[int, int, int, str, int]] = []
        for run in runs:
            directory = self.directory(run)
            for _, base, end, count, page_no, _, _, top in directory.pieces.T.tolist():
                spans.append((base, end, count, directory.pages[page_no], top))
        order = sorted(spans)
        kept: list[Piece] = []
        reach = -1
        for number, (base, end, count, page, top) in enumerate(order):
            is_alone = reach <= base and (number + 1 == len(order) or end <= order[number + 1][0])
            if is_alone and count >= PAGE_ROWS // 2:
                kept.append(Piece(base, end, page, 0, count, 0, top, True))
            reach = max(reach, end)
        names = {piece.page for piece in kept}
        rows = joined([no_rows(PageKind.OBJECTS), *(self.rows(span[3]) for span in spans if span[3] not in names)])
        numbers = rows.cells[BASE]
        by_number = np.argsort(numbers, kind="stable")
        is_last = np.append(numbers[by_number][1:] != numbers[by_number][:-1], True)[: len(by_number)]
        chosen = by_number[is_last]
        if is_oldest:
            chosen = chosen[rows.cells[ObjectColumn.LIVE_COUNT, chosen] > 0]
        rows = rows.take(chosen)

        def parts() -> Iterator[Rows | tuple[int, Piece]]:
            at = 0
            for piece in kept:
                stop = int(np.searchsorted(rows.cells[BASE], piece.base))
                yield rows.take(slice(at, stop))
                yield 0, piece
                at = stop
            yield rows.take(slice(at, None))

        return self.write_run(parts())


def _spans(
    pieces: Cells, pages: Sequence[str]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], tuple[Piece, ...]]:
    """Return spans, sizes and first pieces of a run; () for more than `SPANS_MAX` slots."""
    slots, starts = np.unique(pieces[SLOT], return_index=True)
    if len(slots) > SPANS_MAX:
        return (), (), ()
    ends = np.append(starts[1:], len(pieces[SLOT])) - 1
    spans = zip(slots.tolist(), pieces[BASE, starts].tolist(), pieces[END, ends].tolist(), strict=True)
    firsts = []
    for _, base, end, count, page_no, first_row, size_bytes, top in pieces[:, starts].T.tolist():
        firsts.append(Piece(base, end, pages[page_no], first_row, count, size_bytes, top, True))
    return tuple(spans), tuple(np.add.reduceat(pieces[PieceColumn.SIZE_BYTES], starts).tolist()), tuple(firsts)


def level(run: Run) -> int:
    """Return the size class of a run: each is `MERGE_WIDTH` times the one before."""
    level, size = 0, run.row_count // FLUSH_ROWS
    while size >= MERGE_WIDTH:
        level, size = level + 1, size // MERGE_WIDTH
    return level


def merge_count(runs: Sequence[Run]) -> int:
    """Return how many of the newest runs to merge into one, 0 for none."""
    count = 0
    while count < len(runs) and level(runs[-1 - count]) <= level(runs[-1]):
        count += 1
    return count if count >= MERGE_WIDTH else 0


def half_dead(directories: Sequence[Directory], bounds: Bounds) -> list[int]:
    """Return which runs have at least half of their rows outside of the bounds, by the ranges of their pieces."""
    runs = []
    for number, directory in enumerate(directories):
        pieces = directory.pieces
        slots, inverse = np.unique(pieces[SLOT], return_inverse=True)
        limits = np.array([bounds.get(slot, (0, 0)) for slot in slots.tolist()], np.int64)
        low, high = limits[inverse].T
        base, end = pieces[BASE], pieces[END]
        live = np.clip(np.minimum(end, high) - np.maximum(base, low), 0, None) / (end - base)
        counts = pieces[PieceColumn.ROW_COUNT]
        if 2 * float((live * counts).sum()) <= counts.sum():
            runs.append(number)
    return runs
