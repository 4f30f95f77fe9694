"""A topic ledger's state in one snapshot: the rows that go to pages, the runs to merge, and the head's bytes.

Detached from the state: any thread can compute it, without the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_replog.ids import ObjectId
from spark_replog.log.codec.snapshot import (
    BASE,
    ObjectColumn,
    PageKind,
    Rows,
    SectionColumn,
    SnapshotPart,
    damaged,
    joined,
    no_rows,
    read_holders,
    read_table,
    read_texts,
    seal,
    write_holders,
    write_table,
    write_texts,
)
from spark_replog.log.fold.paged_table import (
    FLUSH_ROWS,
    Bounds,
    Gone,
    PageCache,
    PageWriter,
    Piece,
    Run,
    find_objects,
    half_dead,
    merge_count,
)
from spark_replog.wire import BOOL, SINT, TEXT, UINT, Reader, Writer, fields, list_of, map_of, record

_PIECE = record(Piece, base=UINT, end=UINT, page=TEXT, first_row=UINT, row_count=UINT, size_bytes=UINT, top=SINT)
_SPANS = list_of(UINT, UINT, UINT)
_RUN = record(Run, name=TEXT, is_page=BOOL, row_count=UINT, spans=_SPANS, sizes=list_of(UINT), firsts=list_of(_PIECE))
_INDEX = fields(list_of(_RUN), list_of(_RUN))
DROPPED = map_of(record(ObjectId, generation=UINT, name=TEXT), SINT)
"""The objects that lost their last row, and when (ms)."""
Runs = tuple[Run, ...]


class Tables(NamedTuple):
    """The tables of a state when it was frozen.

    Attributes:
        sections, objects: rows in memory, sorted.
        bounds: live offsets of every slot.
        settled_below: rows of objects below this number may go to pages.
        open_numbers: objects that stay in memory nevertheless.
        is_trimmed: whether bounds are narrower than at the last search of the runs for rows that are gone.
        gone: rows of the section runs that are gone and that no live count leaves out yet.
        dropped: objects that lost their last row, and when (ms).
        now_ms: time of the last append.
    """

    section_runs: Runs
    object_runs: Runs
    sections: Rows
    objects: Rows
    bounds: Bounds
    settled_below: int
    open_numbers: frozenset[int]
    is_trimmed: bool
    gone: tuple[Gone, ...]
    dropped: Mapping[ObjectId, int]
    now_ms: int


class MadePages(NamedTuple):
    """The result of writing the tables to pages.

    Attributes:
        sections, objects: rows that stay in the head.
        pages: name -> bytes of the new ones.
        is_flushed: whether the settled rows are in pages.
        lost: object -> how many sections that name it are gone from pages.
        dead: the objects that no section names now.
    """

    section_runs: Runs
    object_runs: Runs
    sections: Rows
    objects: Rows
    pages: Mapping[str, bytes]
    is_flushed: bool
    lost: Mapping[int, int]
    dead: tuple[ObjectId, ...]


@dataclass(eq=False)
class FrozenTopics:
    """`snapshot.FrozenState` of a topic ledger; `head` and `pages` are computed on first use.

    Attributes:
        applied_index, snapshot_no: see `FrozenState`.
        cache: source of the pages that there are.
        before, after: parts of the head before the tables and after them.
    """

    applied_index: int
    snapshot_no: int
    cache: PageCache
    before: bytes
    after: bytes
    tables: Tables

    @cached_property
    def made(self) -> MadePages:
        """Return the new pages, and the rows that stay in the head.

        Raises:
            PageMissingError, and storage errors: a page that a merge needs cannot be read.
        """
        return make_pages(self.tables, PageWriter(self.cache, self.snapshot_no))

    @property
    def pages(self) -> Mapping[str, bytes]:
        """Return the new pages by name."""
        return self.made.pages

    @cached_property
    def head(self) -> bytes:
        """Return all of the state that is not in pages."""
        writer, made = Writer(), self.made
        writer.raw(self.before)
        # Of the oldest run also the first pieces.
        tables = ([*runs[:1], *(run._replace(firsts=()) for run in runs[1:])] for runs in made[:2])
        _INDEX.write(writer, tuple(tables))
        write_table(writer, made.sections.cells)
        write_table(writer, made.objects.cells)
        write_texts(writer, made.objects.names)
        write_holders(writer, made.objects.holders)
        DROPPED.write(writer, {**self.tables.dropped, **dict.fromkeys(made.dead, self.tables.now_ms)})
        writer.raw(self.after)
        return seal(SnapshotPart.TOPIC_HEAD, bytes(writer.data))


def read_index(reader: Reader) -> tuple[Runs, Runs, Rows, Rows]:
    """Read a head's runs of sections and of objects, then the rows of sections and of objects."""
    section_runs, object_runs = _INDEX.read(reader)
    for run in (*section_runs, *object_runs):
        _check(run)
    sections = Rows(PageKind.SECTIONS, read_table(reader, len(no_rows(PageKind.SECTIONS).cells)), [], [])
    cells = read_table(reader, len(no_rows(PageKind.OBJECTS).cells))
    return section_runs, object_runs, sections, Rows(PageKind.OBJECTS, cells, read_texts(reader), read_holders(reader))


def _check(run: Run) -> None:
    spans, firsts = run.spans, run.firsts
    if len(run.sizes) != len(spans):
        raise damaged("a run has other spans than bytes")
    if firsts and (
        len(firsts) != len(spans)
        or any(
            part.base != base or not base < part.end <= end for part, (_, base, end) in zip(firsts, spans, strict=True)
        )
    ):
        raise damaged("a run has other spans than first pieces")
    np.array([piece.cells(0, 0) for piece in firsts], np.int64)  # raises OverflowError where one does not fit


def make_pages(tables: Tables, writer: PageWriter) -> MadePages:
    """Write settled rows to pages once there are enough or rows in pages are gone, and merge runs; see `paged_table`.

    The live counts of objects then leave out the rows that are gone. Merges drop such rows and count nothing.
    """
    numbers = tables.objects.cells[BASE]
    is_settled = tables.sections.cells[SectionColumn.OBJECT] < tables.settled_below
    is_open = np.isin(numbers, np.array(sorted(tables.open_numbers), np.int64))
    leaves = (numbers < tables.settled_below) & ~is_open
    if int(is_settled.sum()) + int(leaves.sum()) < FLUSH_ROWS and not tables.gone:
        return MadePages(tables.section_runs, tables.object_runs, tables.sections, tables.objects, {}, False, {}, ())
    lost = writer.count_gone(tables.section_runs, tables.gone)
    section_runs = _section_runs(tables, is_settled, writer)
    objects = _without(tables.objects, lost)
    changed = _changed(tables, lost, writer)
    flushed = joined([objects.take(np.flatnonzero(leaves)), changed])
    flushed = flushed.take(np.argsort(flushed.cells[BASE], kind="stable"))
    object_runs = [*tables.object_runs, *writer.write_run(iter([flushed]))]
    gone_count = int((changed.cells[ObjectColumn.LIVE_COUNT] == 0).sum())
    is_mostly_gone = 2 * gone_count >= sum(run.row_count for run in tables.object_runs) > 0
    while count := len(object_runs) if is_mostly_gone else merge_count(object_runs):
        object_runs[-count:] = writer.merge_objects(object_runs[-count:], is_oldest=count == len(object_runs))
        is_mostly_gone = False
    dead = tuple(object_id for rows in (objects, changed) for object_id in _dead(rows, lost))
    stay = objects.take(np.flatnonzero(~leaves))
    pages = writer.pages_of(section_runs, object_runs)
    sections = tables.sections.take(np.flatnonzero(~is_settled))
    return MadePages(tuple(section_runs), tuple(object_runs), sections, stay, pages, True, lost, dead)


def _section_runs(tables: Tables, is_settled: npt.NDArray[np.bool_], writer: PageWriter) -> list[Run]:
    rows = tables.sections.take(np.flatnonzero(is_settled))
    runs = [*tables.section_runs, *writer.write_run(iter([rows]))]

    def merge(first: int, count: int) -> None:
        runs[first : first + count] = writer.merge_sections(runs[first : first + count], tables.bounds)

    while count := merge_count(runs):
        merge(len(runs) - count, count)
    if tables.is_trimmed:
        for number in reversed(half_dead([writer.directory(run) for run in runs], tables.bounds)):
            merge(number, 1)
    return runs


def _dead(objects: Rows, lost: Mapping[int, int]) -> Iterator[ObjectId]:
    """Yield the objects that lost their last section with these."""
    for row in np.flatnonzero(objects.cells[ObjectColumn.LIVE_COUNT] == 0).tolist():
        if int(objects.cells[BASE, row]) in lost:
            yield ObjectId(int(objects.cells[ObjectColumn.GENERATION, row]), objects.names[row])


def _without(objects: Rows, lost: Mapping[int, int]) -> Rows:
    """Return objects with their live counts reduced by the lost sections."""
    cells = objects.cells.copy()
    for row, number in enumerate(cells[BASE].tolist()):
        cells[ObjectColumn.LIVE_COUNT, row] -= lost.get(number, 0)
    return Rows(objects.kind, cells, objects.names, objects.holders)


def _changed(tables: Tables, lost: Mapping[int, int], writer: PageWriter) -> Rows:
    """Return the objects in pages that lost sections, with their new live counts."""
    in_memory = set(tables.objects.cells[BASE].tolist())
    wanted = sorted(number for number in lost if number not in in_memory)
    newest = [writer.directory(run) for run in reversed(tables.object_runs)]
    parts = [page_rows.take() for page_rows in find_objects(newest, writer.rows, wanted)] if wanted else []
    return _without(joined([no_rows(PageKind.OBJECTS), *parts]), lost)
