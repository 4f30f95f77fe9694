"""Plans which bytes to read for a range of offsets: once, on the driver, with a check that there is no gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import chain, repeat
from typing import NamedTuple, TypeAlias

from spark_replog.errors import DataLossError, ErrorCode, ReplogError
from spark_replog.ids import LedgerId, TopicId
from spark_replog.log.fold.partition_state import ObjectRef
from spark_replog.log.fold.section_table import SectionRow, tuples_of
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import LogStartReason
from spark_replog.log.row_schema import RowSchema

_Visit: TypeAlias = tuple[LedgerId, str, int]
"""An object, and how many times a partition visited it before."""
_OBJECT = SectionRow._fields.index("object_number")


class FetchSlice(NamedTuple):
    """Offsets [start_offset, end_offset) of one section, and how to read them.

    Pickles small, because slices of one plan share their objects and names.
    """

    topic: str
    topic_id: TopicId
    partition: int
    start_offset: int
    end_offset: int
    base_offset: int
    """First offset that the section spans."""
    row_count: int
    """Rows of the whole section."""
    object: ObjectRef
    start_byte: int
    size_bytes: int
    """Size of the whole section, which is fetched and checked as a whole."""
    crc32c: int
    append_time_ms: int
    timestamp_type: int
    schema: RowSchema | None = None
    """The columns of the stored rows of a typed topic, in the version that they have."""
    columns: tuple[str, ...] | None = None
    """The only columns of typed rows to decode; None: all."""


class FetchRange(NamedTuple):
    """Offsets [start_offset, end_offset) of one partition."""

    topic: str
    topic_id: TopicId
    partition: int
    start_offset: int
    end_offset: int
    ledger_id: LedgerId


def plan_fetch(
    state: TopicLedgerState,
    topic_name: str,
    topic_id: TopicId,
    partition: int,
    start_offset: int,
    end_offset: int,
) -> tuple[FetchSlice, ...]:
    """Return the slices of one range; see `plan_fetches`."""
    where = FetchRange(topic_name, topic_id, partition, start_offset, end_offset, state.ledger_id)
    return plan_fetches([where], state)[0]


def plan_fetches(ranges: Iterable[FetchRange], state: TopicLedgerState) -> list[tuple[FetchSlice, ...]]:
    """Return for each range the slices that hold exactly its offsets, in offset order.

    Call it under the ledger's lock; the result is a plain value.

    Raises (both give the offsets as `missing_start` and `missing_end` in their context):
        DataLossError: REPLOG_DATA_LOSS: the offsets were trimmed or aged out, or the topic was deleted.
        ReplogError: REPLOG_DATA_LOSS: this fold does not have the partition or the offsets. This does not prove
            a loss: a process that reads fewer roots may have folded fewer entries.
    """
    return slices_of([(fetch_range, _rows(state, fetch_range)) for fetch_range in ranges], state)


def _rows(state: TopicLedgerState, where: FetchRange) -> Sequence[SectionRow]:
    topic_name, topic_id, partition, start_offset, end_offset, _ = where
    if start_offset >= end_offset:
        return ()
    topic = state.topics.get(topic_id)
    if topic is None or partition >= len(topic.partitions):
        raise _data_loss(topic_name, partition, start_offset, end_offset, "the partition does not exist")
    if topic.closed:
        raise _data_loss(topic_name, partition, start_offset, end_offset, "the topic was deleted", DataLossError)
    log = topic.partitions[partition]
    if start_offset < log.log_start_offset:
        end = min(end_offset, log.log_start_offset)
        why = "they were trimmed" if log.log_start_reason is LogStartReason.DELETE_RECORDS else "they aged out"
        raise _data_loss(topic_name, partition, start_offset, end, why, DataLossError)
    if end_offset > log.high_watermark:
        start = max(start_offset, log.high_watermark)
        detail = f"the partition ends at {log.high_watermark}"
        raise _data_loss(topic_name, partition, start, end_offset, detail)
    return list(log.sections_between(start_offset, end_offset))


def slices_of(
    range_rows: Sequence[tuple[FetchRange, Sequence[SectionRow]]], state: TopicLedgerState
) -> list[tuple[FetchSlice, ...]]:
    """Return for each range its slices, given the rows of its sections; the objects are looked up once for all.

    Raises:
        ReplogError: REPLOG_DATA_LOSS: the rows leave offsets out; as `plan_fetches`.
    """
    tables = [(fetch_range, tuple(zip(*rows, strict=True))) for fetch_range, rows in range_rows]
    numbers = chain.from_iterable(columns[_OBJECT] for _, columns in tables if columns)
    objects = state.objects.refs(dict.fromkeys(numbers))
    plans = [tuple(_slices(fetch_range, columns, objects)) for fetch_range, columns in tables]
    return [_with_schemas(plan, state) for plan in plans]


def _with_schemas(plan: tuple[FetchSlice, ...], state: TopicLedgerState) -> tuple[FetchSlice, ...]:
    """Return the slices of one partition, those of typed rows with their columns."""
    topic = state.topics.get(plan[0].topic_id) if plan else None
    if topic is None or not topic.schemas:
        return plan
    return tuple([piece._replace(schema=topic.rows_of(piece.object.schema_version)) for piece in plan])


def _slices(
    where: FetchRange, columns: tuple[tuple[int, ...], ...], objects: Mapping[int, tuple[ObjectRef, int]]
) -> Iterator[FetchSlice]:
    """Return the slices of a range, given the columns of its sections; () if it has none."""
    if not columns:
        if where.start_offset < where.end_offset:
            raise _gap(where, where.start_offset)
        return iter(())
    bases, counts, numbers, start_bytes, sizes, crcs, _, _, kinds, ends = columns
    expected = (where.start_offset, *ends[:-1])
    gaps = [after for base, after in zip(bases, expected, strict=True) if base > after]
    if gaps or ends[-1] < where.end_offset:
        raise _gap(where, gaps[0] if gaps else ends[-1])
    items, times = zip(*map(objects.__getitem__, numbers), strict=True)
    until = (*ends[:-1], min(ends[-1], where.end_offset))
    names = (repeat(name, len(numbers)) for name in where[:3])
    rest = expected, until, bases, counts, items, start_bytes, sizes, crcs, times, kinds
    typed = repeat(None, len(numbers)), repeat(None, len(numbers))
    return tuples_of(FetchSlice, zip(*names, *rest, *typed, strict=True))


def _gap(where: FetchRange, start: int) -> ReplogError:
    return _data_loss(where.topic, where.partition, start, where.end_offset, "no section holds them")


def in_log_order(plans: Sequence[Sequence[FetchSlice]]) -> tuple[FetchSlice, ...]:
    """Return the slices of several ranges in one order that reads each object once.

    Each partition's slices (of ranges in offset order) stay in offset order; those of one object follow each other by
    byte position. A partition returns to an object later only if compaction replaced sections between those in it.
    """
    by_partition: dict[tuple[TopicId, int], list[FetchSlice]] = {}
    for plan in plans:
        for piece in plan:
            by_partition.setdefault((piece.topic_id, piece.partition), []).append(piece)
    if len(by_partition) < 2:
        return tuple(chain.from_iterable(by_partition.values()))
    follows: TopologicalSorter[_Visit] = TopologicalSorter()
    by_visit: dict[_Visit, list[FetchSlice]] = {}
    for plan in by_partition.values():
        counts: Counter[tuple[LedgerId, str]] = Counter()
        visit: _Visit | None = None
        for piece in plan:
            where = (piece.object.ledger_id, piece.object.id.name)
            if visit is None or visit[:2] != where:
                before, visit = visit, (*where, counts[where])
                counts[where] += 1
                follows.add(visit, *(() if before is None else (before,)))
            by_visit.setdefault(visit, []).append(piece)
    # No cycle: every partition has its ledger's objects in the order of their appends, and each segment of compaction
    # holds only one partition.
    return tuple(
        piece
        for visit in follows.static_order()
        for piece in sorted(by_visit[visit], key=lambda piece: (piece.start_byte, piece.start_offset))
    )


def _data_loss(
    topic: str, partition: int, start: int, end: int, why: str, kind: type[ReplogError] = ReplogError
) -> ReplogError:
    remedy = "Start from existing offsets, or set failOnDataLoss=false to skip them."
    return kind(
        ErrorCode.REPLOG_DATA_LOSS,
        f"offsets {start} to {end} (exclusive) of partition {partition} of topic '{topic}' cannot be read:"
        f" {why}. {remedy if kind is DataLossError else 'Check that all metadata roots answer, then start again.'}",
        topic=topic,
        partition=partition,
        missing_start=start,
        missing_end=end,
    )
