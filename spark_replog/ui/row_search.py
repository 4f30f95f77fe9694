"""Finds rows of a topic by offset, time or key; gives the cost in bytes before a row is read.

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
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.row_schema import require_bytes
from spark_replog.read.fetch_plan import FetchSlice, plan_fetch
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import read_schema
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
        key: only rows with this key; None: any.
        row_count, budget_bytes: the most rows to return and bytes to read.
    """

    topic: str
    partition: int | None = None
    begin: Literal["offset", "time", "newest"] = "newest"
    at: int = 0
    key: bytes | None = None
    row_count: int = 50
    budget_bytes: int = 16 << 20


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
    """

    slices: tuple[FetchSlice, ...]
    spans: tuple[Span, ...]
    cost_bytes: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows, in `rows.read_schema(True)`, by time; their cost; and where a search for later rows continues."""

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
            InvalidConfigError: INVALID_REQUEST: no section fits the budget.
        """
        if not 1 <= search.row_count <= ROWS_MAX:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, f"ask for 1 to {ROWS_MAX} rows.")
        self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.READ, ResourceType.TOPIC, search.topic)
        handle = self._cluster.lookup(search.topic)
        ledger, topic = self._cluster.topic_state(handle)
        require_bytes(search.topic, topic.schema, "the console shows rows")
        numbers = _partitions(search, len(topic.partitions))
        share_bytes = search.budget_bytes // len(numbers)

        def plan_all(state: TopicLedgerState) -> list[tuple[Span, tuple[FetchSlice, ...], bool]]:
            return [_plan_one(state, search, handle.topic_id, number, share_bytes) for number in numbers]

        parts = ledger.ask(plan_all)
        slices = tuple(piece for _, planned, _ in parts for piece in planned)
        plan = SearchPlan(slices, tuple(span for span, _, _ in parts), cost_of(slices), any(cut for *_, cut in parts))
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
        for batch in fetcher.fetch(plan.slices, include_headers=True):
            if search.begin == "time":
                batch = batch.filter(pc.greater_equal(batch.column(5).cast(pa.int64()), search.at * 1000))
            if search.key is not None:
                batch = batch.filter(pc.equal(batch.column(0), pa.scalar(search.key, pa.binary())))
            if batch.num_rows:
                by_partition.setdefault(batch.column(3)[0].as_py(), []).append(batch)
        rows = _first_rows(by_partition.values(), search)
        return FoundRows(rows, plan, fetcher.stats.read_bytes)


def _partitions(search: RowSearch, count: int) -> range:
    if search.partition is not None:
        if not 0 <= search.partition < count:
            text = f"topic '{search.topic}' has no partition {search.partition}. It has 0 to {count - 1}."
            raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return range(search.partition, search.partition + 1)
    if search.key is not None:
        number = partition_of(search.key, count)
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
    if search.key is not None:  # the budget determined the range
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
    """Return the range of offsets to read; with a key, about as many as the budget allows."""
    partition = state.topics[topic_id].partitions[number]
    low, high = partition.log_start_offset, partition.high_watermark
    if search.begin == "newest":
        if search.key is None:
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
    if search.key is not None:
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


def _first_rows(parts: Iterable[list[pa.RecordBatch]], search: RowSearch) -> pa.Table:
    """Return the rows to show: the newest or the first ones of all partitions, by time, then by position."""
    kept = []
    for batches in parts:
        table = pa.Table.from_batches(batches)
        kept.append(table.slice(max(0, table.num_rows - search.row_count)) if search.begin == "newest" else table)
    if not kept:
        return read_schema(True).empty_table()
    table = pa.concat_tables([kept_rows.slice(0, search.row_count) for kept_rows in kept])
    order: Literal["ascending", "descending"] = "descending" if search.begin == "newest" else "ascending"
    keys: list[tuple[str, Literal["ascending", "descending"]]] = [("timestamp", order), ("offset", order)]
    if len(kept) == 1:
        keys = keys[1:]
    return table.sort_by(keys).slice(0, search.row_count)
