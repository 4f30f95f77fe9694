"""Finds rows of a topic by offset, time, key or column; gives the cost in bytes before a row is read.

A fold has each section's size, so the cost is exact. A search reads at most its budget and returns where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import DataLossError, ErrorCode, InvalidConfigError, NotFoundError
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.ddl import type_text
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.json_rows import json_rows, json_step, json_texts
from spark_replog.log.row_key import key_bytes
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.rows_of_text import column_of_texts
from spark_replog.read.fetch_plan import FetchSlice, plan_fetch
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import OFFSET_AT, PARTITION_AT, TIMESTAMP_AT, RowView
from spark_replog.write.partitioner import partition_of

CLIENT_ID = "replog-ui"
ROWS_MAX = 500
_FIRST_STEP = 1024


@dataclass(frozen=True, slots=True)
class RowSearch:
    """Arguments of a search.

    Attributes:
        partition: None: the key's partition by Kafka's hash, or all partitions without a key.
        at: the offset, or epoch milliseconds, of `begin`.
        key: only rows with this key; None: any. Of a topic of bytes.
        text: only rows in which the column has this value; without a column, or if it is nested: whose JSON contains
            the text. None: any. Of a typed topic.
        row_count, budget_bytes: the most rows to return and bytes to read.
    """

    topic: str
    partition: int | None = None
    begin: Literal["offset", "time", "newest"] = "newest"
    at: int = 0
    key: bytes | None = None
    column: str | None = None
    text: str | None = None
    row_count: int = 50
    budget_bytes: int = 16 << 20

    @property
    def is_filtered(self) -> bool:
        """Return whether only some of the rows that are read are wanted."""
        return self.key is not None or self.text is not None


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, end) of a partition to read, within [log_start, high_watermark)."""

    partition: int
    start: int
    end: int
    log_start: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The reads of a search.

    Attributes:
        cost_bytes: total size of the sections to read.
        is_cut: whether the budget ends the search before its rows are found or the log ends.
        schema: the newest columns of a typed topic.
        value: what the column of the search must be equal to; None: its JSON must contain the text, if there is one.
    """

    slices: tuple[FetchSlice, ...]
    spans: tuple[Span, ...]
    cost_bytes: int
    is_cut: bool
    schema: RowSchema | None
    value: pa.Scalar | None


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows, by time, in the columns of a `RowView` of the newest schema; their cost; and where a search for later
    rows continues.
    """

    rows: pa.Table
    plan: SearchPlan
    read_bytes: int


class RowFinder:
    """Plans and runs searches; nothing is written. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._authorizer = Authorizer(cluster)

    def plan(self, search: RowSearch) -> SearchPlan:
        """Return the plan of a search; reads no row.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED: without READ.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            InvalidConfigError: INVALID_REQUEST: no section fits the budget; rows of the topic have no such key, column
                or value.
        """
        if not 1 <= search.row_count <= ROWS_MAX:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"ask for 1 to {ROWS_MAX} rows.")
        self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.READ, ResourceType.TOPIC, search.topic)
        handle = self._cluster.lookup(search.topic)
        ledger, topic = self._cluster.topic_state(handle)
        schema = topic.schema
        value = _wanted_value(search, schema)
        numbers = _partitions(search, _key_of(search, schema, value), len(topic.partitions))
        share_bytes = search.budget_bytes // len(numbers)

        def plan_all(state: TopicLedgerState) -> list[tuple[Span, tuple[FetchSlice, ...], bool]]:
            return [_plan_one(state, search, handle.topic_id, number, share_bytes) for number in numbers]

        parts = ledger.ask(plan_all)
        slices = tuple(piece for _, planned, _ in parts for piece in planned)
        spans, is_cut = tuple(span for span, _, _ in parts), any(cut for *_, cut in parts)
        plan = SearchPlan(slices, spans, cost_of(slices), is_cut, schema, value)
        if plan.is_cut and not slices:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST,
                f"no section fits the budget: {share_bytes:,} bytes for each of {len(numbers)} partitions. Name one "
                "partition, or start replog ui with a larger --budget.",
            )
        return plan

    def read(self, search: RowSearch) -> FoundRows:
        """Plan and read. Raises the errors of ``plan`` and ``Fetcher.fetch``."""
        try:
            return self._read(search, self.plan(search))
        except DataLossError:  # compacted between the plan and the read, or lost: a new plan shows which
            return self._read(search, self.plan(search))

    def _read(self, search: RowSearch, plan: SearchPlan) -> FoundRows:
        quota = self._cluster.fetch_quota(self._authorizer.principal, CLIENT_ID)
        fetcher = Fetcher(self._cluster.brokers, quota=quota, clock=self._cluster.clock)
        by_partition: dict[int, list[pa.RecordBatch]] = {}
        view = RowView(plan.schema)
        views = {piece.topic_id: view for piece in plan.slices[:1]}
        for batch in fetcher.fetch(plan.slices, include_headers=True, views=views):
            if search.begin == "time":
                batch = batch.filter(pc.greater_equal(batch.column(TIMESTAMP_AT).cast(pa.int64()), search.at * 1000))
            if search.is_filtered and batch.num_rows:
                batch = batch.filter(_is_wanted(batch, search, plan))
            if batch.num_rows:
                by_partition.setdefault(batch.column(PARTITION_AT)[0].as_py(), []).append(batch)
        rows = _first_rows(by_partition.values(), search, view)
        return FoundRows(rows, plan, fetcher.stats.read_bytes)


def _wanted_value(search: RowSearch, schema: RowSchema | None) -> pa.Scalar | None:
    """Return the value that the column of a search must have; None if it looks for text, or for anything."""
    if schema is None:
        if search.text is not None:
            raise _invalid(f"rows of topic '{search.topic}' have no columns. Look for a key.")
        return None
    if search.key is not None:
        raise _invalid(f"topic '{search.topic}' is typed. Look for the value of a column, not for a key.")
    if search.text is None or search.column is None:
        return None
    at = schema.arrow.get_field_index(search.column)
    if at < 0:
        names = ", ".join(schema.names)
        raise _invalid(f"topic '{search.topic}' has no column '{search.column}'. Name one of {names}.")
    kind = schema.arrow.types[at]
    if pa.types.is_nested(kind):
        return None
    try:
        return column_of_texts(pa.array([search.text]), kind)[0]
    except (pa.ArrowException, ValueError) as error:
        text = f"'{search.text}' cannot be a value of column '{search.column}' {type_text(kind)} ({error}). Correct it."
        raise _invalid(text) from error


def _invalid(text: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.INVALID_REQUEST, text)


def _key_of(search: RowSearch, schema: RowSchema | None, value: pa.Scalar | None) -> bytes | None:
    """Return the key of all rows that a search can find; None if they may have several."""
    if schema is None or value is None or schema.key != (search.column,):
        return search.key
    return key_bytes([value.as_py()], [value.type])


def _is_wanted(batch: pa.RecordBatch, search: RowSearch, plan: SearchPlan) -> pa.Array:
    """Return for each row whether it has the key, the value or the text of a search."""
    if search.key is not None:
        return pc.equal(batch.column(0), pa.scalar(search.key, pa.binary()))
    if plan.value is not None:
        return pc.equal(batch.column(search.column), plan.value)
    assert plan.schema is not None
    rows = batch.select([search.column] if search.column is not None else plan.schema.names)
    step = json_step(rows)
    parts = [_texts(rows.slice(start, step), search.column) for start in range(0, len(rows), step)]
    return pa.concat_arrays([pc.match_substring(part, search.text) for part in parts])


def _texts(rows: pa.RecordBatch, column: str | None) -> pa.Array:
    return json_rows(rows).cast(pa.string()) if column is None else json_texts(rows.column(0))


def _partitions(search: RowSearch, key: bytes | None, count: int) -> range:
    if search.partition is not None:
        if not 0 <= search.partition < count:
            text = f"topic '{search.topic}' has no partition {search.partition}. It has 0 to {count - 1}."
            raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return range(search.partition, search.partition + 1)
    if key is not None:
        number = partition_of(key, count)
        return range(number, number + 1)
    return range(count)


def _plan_one(
    state: TopicLedgerState, search: RowSearch, topic_id: str, number: int, budget_bytes: int
) -> tuple[Span, tuple[FetchSlice, ...], bool]:
    """Return the span of one partition, its slices within the budget, and whether the budget cuts it."""
    partition = state.topics[topic_id].partitions[number]
    low, high = partition.log_start_offset, partition.high_watermark
    start, end = _range_of(state, search, topic_id, number, budget_bytes)
    planned = plan_fetch(state, search.topic, topic_id, number, start, end)
    slices = _within(planned, budget_bytes, is_newest=search.begin == "newest")
    first, last = (slices[0].start_offset, slices[-1].end_offset) if slices else (start, start)
    is_cut = len(slices) < len(planned)
    if search.is_filtered:  # the budget determined the range
        is_cut = is_cut or (first > low if search.begin == "newest" else last < high)
    return Span(number, first, last, low, high), tuple(slices), is_cut


def _within(planned: Sequence[FetchSlice], budget_bytes: int, *, is_newest: bool) -> Sequence[FetchSlice]:
    """Return the first slices that the budget pays, or the last ones."""
    cost, count = cost_of(planned), len(planned)
    for piece in planned if is_newest else reversed(planned):
        if cost <= budget_bytes:
            break
        cost, count = cost - piece.size_bytes, count - 1
    return planned[len(planned) - count :] if is_newest else planned[:count]


def _range_of(
    state: TopicLedgerState, search: RowSearch, topic_id: str, number: int, budget_bytes: int
) -> tuple[int, int]:
    """Return the range of offsets to read; if only some rows are wanted, about as many as the budget allows."""
    partition = state.topics[topic_id].partitions[number]
    low, high = partition.log_start_offset, partition.high_watermark
    if search.begin == "newest":
        if not search.is_filtered:
            return max(low, high - search.row_count), high
        return _start_within(partition, budget_bytes), high
    if search.begin == "offset":
        start = min(max(search.at, low), high)
        end = min(high, start + search.row_count)
    else:
        at = state.offset_for_time(topic_id, number, search.at)
        start = high if at is None else at
        row = next(partition.sections_between(start, start + 1), None) if start < high else None
        end = min(high, (row.end_offset if row else start) + search.row_count)
    if search.is_filtered:
        end = min(high, partition.end_within_bytes(start, high, budget_bytes)[0])
    return start, end


def _start_within(partition: PartitionState, budget_bytes: int) -> int:
    """Return an offset from which the rows up to the end take about the budget; visits few more sections than fit."""
    low, high = partition.log_start_offset, partition.high_watermark
    step = _FIRST_STEP
    while high - step > low and partition.end_within_bytes(high - step, high, budget_bytes)[0] == high:
        step *= 4
    return max(low, high - step)


def cost_of(slices: Iterable[FetchSlice]) -> int:
    """Return the bytes of the sections, since each is read as a whole."""
    return sum(piece.size_bytes for piece in slices)


def _first_rows(parts: Iterable[list[pa.RecordBatch]], search: RowSearch, view: RowView) -> pa.Table:
    """Return the rows to show: the newest or the first ones of all partitions, by time, then by position."""
    kept = []
    for batches in parts:
        table = pa.Table.from_batches(batches)
        kept.append(table.slice(max(0, table.num_rows - search.row_count)) if search.begin == "newest" else table)
    if not kept:
        return view.read_schema(True).empty_table()
    table = pa.concat_tables([kept_rows.slice(0, search.row_count) for kept_rows in kept])
    order: Literal["ascending", "descending"] = "descending" if search.begin == "newest" else "ascending"
    by = [table.schema.names[at] for at in ((OFFSET_AT,) if len(kept) == 1 else (TIMESTAMP_AT, OFFSET_AT))]
    keys: list[tuple[str, Literal["ascending", "descending"]]] = [(name, order) for name in by]
    return table.sort_by(keys).slice(0, search.row_count)
