"""Fetches rows from a consumer's positions on, buffers rows that a poll did not take, and counts the cost.

Uses the same plan and reader as Spark's tasks: ``plan_fetch`` and ``Fetcher``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.client.ledger_looks import LedgerLooks
from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import DataLossError, ErrorCode, RetriableError
from spark_replog.ids import BrokerId, ObjectId, TopicId, TopicPartition
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.fold.partition_state import UNDEFINED_EPOCH, UNDEFINED_OFFSET, PartitionState
from spark_replog.log.fold.section_table import SectionRow
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.read.fetch_plan import FetchRange, FetchSlice, in_log_order, plan_fetch, slices_of
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import OFFSET_AT, PARTITION_AT, TOPIC_AT, RowView, read_schema

_LOG = logging.getLogger(__name__)
FetchedRows = tuple[TopicPartition, pa.RecordBatch, int]
"""Zero or more rows in the columns of ``rows.read_schema(True)``, of a typed topic in those of its view, and the
position after them."""
WAKEUP_MS = 100
"""A waiting poll checks this often whether it is to end."""
SCAN_SLICES_MAX = 1 << 15
"""A scan plans partitions together until they have this many sections: their objects are then read once for all."""
_NO_ROWS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in read_schema(True)], schema=read_schema(True)
)


@dataclass(slots=True)
class ConsumerMetrics:
    """Counters of one consumer (names: Kafka's ``consumer-fetch-manager-metrics``).

    Attributes:
        records_consumed: records returned to the application.
        bytes_consumed: bytes of the sections read.
        fetches: fetches that read rows.
        refreshes: reads of a ledger's newest entries: each one get per metadata root.
        peeks: looks at one root, whether there are newer entries: each one get.
        hedges: slow reads that were repeated on a second root.
        storage_get and so on: requests to the roots by this process through the same open store, as of ``metrics()``.
        storage_get_rate: gets a second between the last two ``metrics()`` that were a second or more apart.
    """

    records_consumed: int = 0
    bytes_consumed: int = 0
    fetches: int = 0
    refreshes: int = 0
    peeks: int = 0
    hedges: int = 0
    storage_get: int = 0
    storage_get_rate: float = 0.0
    storage_create: int = 0
    storage_list: int = 0
    storage_delete: int = 0
    storage_read_bytes: int = 0
    storage_written_bytes: int = 0
    storage_retry: int = 0


class RecordFetcher:
    """One per consumer; not thread-safe.

    Args:
        on_look: called each time a waiting fetch looks again; an error that it raises ends the fetch.
        views: of typed topics; others are read with all columns of the version that is the newest at the first look.
        waits_for_quota: whether reads are counted, and wait for the client's quota. False: whoever reads counts.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        metrics: ConsumerMetrics,
        *,
        on_look: Callable[[], None] | None = None,
        views: Mapping[TopicId, RowView] | None = None,
        waits_for_quota: bool = True,
    ) -> None:
        self._cluster = cluster
        self._waits_for_quota = waits_for_quota
        self._config = config
        self._metrics = metrics
        self._views = dict(views or {})
        self._told: set[TopicId] = set()
        """Typed topics of which it was logged that a newer version exists."""
        self._fetcher = Fetcher(cluster.brokers, hedge_ratio=config.fetch_hedge_ratio, clock=cluster.clock)
        self._authorizer = Authorizer(cluster, config.principal)
        self._buffers: dict[TopicPartition, deque[tuple[int, pa.RecordBatch, int]]] = {}
        """(start, rows, end): the rows of offsets [start, end), with gaps where compaction removed some."""
        self._last: TopicPartition | None = None
        self._looks = LedgerLooks(cluster, config.fetch_refresh_interval_ms, on_look=on_look, count=self._count_looks)
        self._fetched: dict[TopicPartition, tuple[int, TopicId]] = {}
        """Per partition, if its position was reached by reading: leader epoch at the last plan, and the topic's id."""
        self.diverged: dict[TopicPartition, int] = {}
        """From the last plan: the offset where the log differs from the rows that were read."""

    def fetch(
        self, positions: Mapping[TopicPartition, int], max_wait_ms: int, since: int | None = None
    ) -> dict[TopicPartition, ErrorCode]:
        """Fetch more rows into the buffers; ``fetch.min.bytes`` and ``fetch.max.wait.ms`` limit the wait.

        Args:
            positions: the next offset of each partition to read.
            max_wait_ms: 0: read the newest entries of all topics, and do not wait. Otherwise the schedule says which
                topics are looked at and when.
            since: a mark: the first look leaves out what was read since then.

        Returns:
            The partitions that cannot be read from there: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION; and
            UNKNOWN_TOPIC_ID: the topic was deleted and created again after the position was reached.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: no such topic.
            ReplogError: as ``Fetcher.fetch``.
        """
        topics = {key.topic for key in positions}
        is_idle = max_wait_ms > 0 and self._looks.is_idle
        self._require_read(topics, is_folded=is_idle)
        handles = {name: self._cluster.lookup(name) for name in topics}
        by_ledger = {handle.ledger_id: handle for handle in handles.values()}
        self._looks.keep(by_ledger)
        marks = [since]
        if max_wait_ms <= 0:
            self._looks.hear()
            self.refresh(handles.values(), since)
        errors = self.renewed(positions)
        if errors:
            return errors
        asked = {key: self._ask(handles[key.topic], key, positions[key]) for key in self._in_turn(positions)}
        self._keep_versions(asked.values())
        wait_for_rows(
            list(asked.values()),
            max_wait_ms=min(max_wait_ms, self._config.fetch_max_wait_ms),
            min_bytes=self._config.fetch_min_bytes,
            clock=self._cluster.clock,
            look=lambda: self._looks.look(by_ledger, marks.pop() if marks else None),
            pause=self._looks.pause,
        )
        slices, errors = self.plan(asked)
        if is_idle and (slices or errors):
            self._require_read(topics)  # the rights were not read while there were no rows
            errors = self.renewed(positions) or errors
            slices = [] if errors else slices
        if slices:
            self._looks.rows_came({section.object.ledger_id for section in slices})
            self._metrics.fetches += 1
            self._last = TopicPartition(slices[-1].topic, slices[-1].partition)
            for key, batch, end in self._read(slices):
                buffer = self._buffers.setdefault(key, deque())
                buffer.append((buffer[-1][2] if buffer else positions[key], batch, end))
        return errors

    def check_newest(self, positions: Mapping[TopicPartition, int], since: int) -> dict[TopicPartition, ErrorCode]:
        """Return the errors that ``fetch`` would return, without reading rows. Raises the same."""
        topics = {key.topic for key in positions}
        self._require_read(topics)
        self.refresh([self._cluster.lookup(name) for name in topics], since)
        return self.check(positions)

    def check(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        """Return the errors that ``fetch`` would return, without folding newer entries of the topics."""
        self._cluster.refresh_if_stale()
        errors = self.renewed(positions)
        self.diverged = {}
        for key, offset in positions.items() if not errors else ():
            state = look(self._ask(self._cluster.lookup(key.topic), key, offset), 0, one_section_min=False)
            self._note(key, state, errors)
        return errors

    def renewed(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        """Return the partitions whose topic, as folded, was deleted and created again since their rows were read."""
        errors = {}
        for key in positions:
            topic_id = self.topic_id(key)
            if topic_id and topic_id != self._cluster.lookup(key.topic).topic_id:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_ID
        return errors

    def topic_id(self, key: TopicPartition) -> TopicId:
        """Return the id of the topic whose rows led to a partition's position; "": it was set, not reached."""
        return self._fetched.get(key, (UNDEFINED_EPOCH, ""))[1]

    def plan(
        self, asked: Mapping[TopicPartition, FetchPartition]
    ) -> tuple[list[FetchSlice], dict[TopicPartition, ErrorCode]]:
        """Return the sections to read, within ``fetch.max.bytes`` over all partitions, in their order.

        The first partition with rows contributes its first section whatever its size, so that a fetch always
        makes progress; the others only sections that fit.
        """
        self.diverged = {}
        slices: list[FetchSlice] = []
        errors: dict[TopicPartition, ErrorCode] = {}
        rest_bytes = self._config.fetch_max_bytes
        for ledger, group in groupby(asked.items(), key=lambda pair: pair[1].ledger):
            items = list(group)
            states, planned = ledger.ask(partial(_plan, items, rest_bytes, not slices))
            slices += planned
            rest_bytes = max(0, rest_bytes - sum(fetch_state.available_bytes for fetch_state in states))
            for (key, item), state in zip(items, states, strict=True):
                self._note(key, state, errors)
                if state.error is None:
                    self._fetched[key] = (state.leader_epoch, item.topic_id)
        return slices, errors

    def _note(self, key: TopicPartition, state: FetchState, errors: dict[TopicPartition, ErrorCode]) -> None:
        if state.error is not None:
            errors[key] = state.error
            if state.diverging_offset is not None:
                self.diverged[key] = state.diverging_offset

    def take(self, positions: Mapping[TopicPartition, int], max_records: int) -> Iterator[FetchedRows]:
        """Take at most ``max_records`` buffered rows from the positions on; drop batches without the position."""
        for key in [partition for partition in self._buffers if partition in positions]:
            expected = positions[key]
            buffer = self._buffers[key]
            while buffer and max_records:
                start, batch, end = buffer[0]
                if not start <= expected < end:
                    buffer.popleft()
                    continue
                first = int(np.searchsorted(batch.column(OFFSET_AT).to_numpy(), expected))
                taken = batch.slice(first, max_records)
                if first + taken.num_rows == batch.num_rows:
                    buffer.popleft()
                    expected = end
                else:
                    expected = taken.column(OFFSET_AT)[-1].as_py() + 1
                max_records -= taken.num_rows
                self._metrics.records_consumed += taken.num_rows
                yield key, taken, expected
            if not buffer:
                del self._buffers[key]
            if not max_records:
                return

    def scan(
        self, spans: Mapping[TopicPartition, tuple[int, int]], handles: Mapping[str, TopicHandle]
    ) -> Iterator[FetchedRows]:
        """Yield all rows of the spans; each partition's in the order of their offsets.

        Args:
            handles: of their topics when the spans were made: another topic may have the name by now.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic was deleted.
            ReplogError: REPLOG_DATA_LOSS, and as ``Fetcher.fetch``.
        """
        self._require_read({key.topic for key in spans})
        slices: list[FetchSlice] = []
        epochs: dict[TopicPartition, int] = {}
        for number, (key, (start, end)) in enumerate(spans.items(), 1):
            handle = handles[key.topic]
            ledger, _ = self._cluster.folded_topic(handle)
            span_slices, epochs[key] = ledger.ask(partial(_plan_span, key, handle.topic_id, start, end))
            slices += span_slices
            if len(slices) < SCAN_SLICES_MAX and number < len(spans):
                continue
            for rows in self._read(slices):
                self._metrics.records_consumed += rows[1].num_rows
                yield rows
                # Like the position, this moves past a batch when the next one is requested.
                self._fetched[rows[0]] = (epochs[rows[0]], handles[rows[0].topic].topic_id)
            slices = []

    def _require_read(self, topics: Iterable[str], *, is_folded: bool = False) -> None:
        """Check the reader's right, and look up its quota; `is_folded`: as folded so far, however old."""
        if not is_folded:
            self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.READ, ResourceType.TOPIC, *sorted(topics))
        if self._waits_for_quota:
            self._fetcher.quota = self._cluster.fetch_quota(self._authorizer.principal, self._config.client_id)

    def sought(self, keys: Iterable[TopicPartition]) -> None:
        """Note that these positions were set by a seek or a reset, not reached by reading."""
        for key in keys:
            self._fetched.pop(key, None)

    def drop_rows(self, keys: Iterable[TopicPartition]) -> None:
        """Drop the buffered rows of these partitions."""
        for key in keys:
            self._buffers.pop(key, None)

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Forget partitions that are not read on, or were reset by an error: their rows may be of another log."""
        gone = list(keys)
        self.sought(gone)
        self.drop_rows(gone)

    def refresh(self, handles: Iterable[TopicHandle], since: int | None = None) -> None:
        """Fold the newest entries of these topics' ledgers, but not of those that were read since a mark."""
        self._looks.refresh(handles, since)

    def _count_looks(self, peek_count: int, read_count: int) -> None:
        self._metrics.peeks += peek_count
        self._metrics.refreshes += read_count

    def spend(self, get_count: float) -> None:
        """Count gets that the consumer makes elsewhere: they take their part of what it may cost."""
        self._looks.spend(get_count)

    def close(self) -> None:
        """Close the watch: the kernel allows each user only a few."""
        self._looks.close()

    def _ask(self, handle: TopicHandle, key: TopicPartition, offset: int) -> FetchPartition:
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        epoch, topic_id = self._fetched.get(key, (UNDEFINED_EPOCH, ""))
        known_epoch = epoch if topic_id == handle.topic_id else UNDEFINED_EPOCH
        max_bytes = self._config.max_partition_fetch_bytes
        return FetchPartition(ledger, handle.topic_id, key.partition, offset, max_bytes, known_epoch)

    def _in_turn(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions, starting after the last one read, so that each gets its turn."""
        keys = sorted(positions)
        after = [key for key in keys if self._last is not None and key > self._last]
        return after + [key for key in keys if key not in set(after)]

    def _read(self, slices: Sequence[FetchSlice]) -> Iterator[FetchedRows]:
        """Yield the rows of slices, each object read once; an empty batch if a partition's last offsets have no rows.

        If objects were compacted and deleted, or moved to other roots since, the rest is planned again from the newest
        fold.
        """
        stats = self._fetcher.stats
        before, hedged = stats.read_bytes, stats.hedges
        done: dict[TopicPartition, int] = {}
        while slices:
            try:
                yield from self._read_planned(in_log_order([slices]), done)
                break
            except (DataLossError, RetriableError) as error:
                again = self._plan_again(slices, done)
                if _places(again) <= _places(slices):
                    raise
                _LOG.info("rows are read from other objects or roots than planned: %s", error)
                slices = again
        self._metrics.bytes_consumed += stats.read_bytes - before
        self._metrics.hedges += stats.hedges - hedged

    def _read_planned(self, slices: Sequence[FetchSlice], done: dict[TopicPartition, int]) -> Iterator[FetchedRows]:
        ends = {TopicPartition(section.topic, section.partition): section.end_offset for section in slices}
        for batch in self._fetcher.fetch(slices, include_headers=True, views=self._views_of(slices)):
            key = TopicPartition(batch.column(TOPIC_AT)[0].as_py(), batch.column(PARTITION_AT)[0].as_py())
            done[key] = batch.column(OFFSET_AT)[-1].as_py() + 1
            yield key, batch, done[key]
        for key in ends:
            yield from _rest(key, ends, done)

    def _keep_versions(self, asked: Iterable[FetchPartition]) -> None:
        """Note the newest version of each new topic's schema: its rows are read as this one from now on."""
        for item in asked:
            if item.topic_id not in self._views:
                topic = item.ledger.ask(lambda state: state.topics.get(item.topic_id))  # noqa: B023
                self._views[item.topic_id] = RowView(None if topic is None else topic.schema)

    def _views_of(self, slices: Sequence[FetchSlice]) -> dict[TopicId, RowView]:
        """Return the view of each typed topic of the slices; log once if it is not of the newest version."""
        pieces = {piece.topic_id: piece for piece in slices if piece.schema is not None}
        for topic_id, piece in pieces.items():
            ledger = self._cluster.topic_ledger(piece.object.ledger_id)
            newest = ledger.ask(lambda state: state.topics[topic_id].schema)  # noqa: B023
            used = self._views.setdefault(topic_id, RowView(newest)).schema
            if newest and used and newest.version > used.version and topic_id not in self._told:
                self._told.add(topic_id)
                _LOG.info(
                    "topic '%s' has version %d of its schema; this reader keeps version %d until it is opened again",
                    piece.topic,
                    newest.version,
                    used.version,
                )
        return {topic_id: self._views[topic_id] for topic_id in pieces}

    def _plan_again(self, slices: Sequence[FetchSlice], done: Mapping[TopicPartition, int]) -> list[FetchSlice]:
        spans: dict[TopicPartition, tuple[FetchSlice, int]] = {}
        for section in slices:
            key = TopicPartition(section.topic, section.partition)
            spans[key] = (spans.get(key, (section, 0))[0], section.end_offset)
        again: list[FetchSlice] = []
        for key, (first, end) in spans.items():
            ledger = self._cluster.topic_ledger(first.object.ledger_id)
            ledger.refresh()
            start = max(first.start_offset, done.get(key, 0))
            topic_id = first.topic_id
            again += ledger.ask(
                lambda state: plan_fetch(state, key.topic, topic_id, key.partition, start, end)  # noqa: B023
            )
        return again


def _places(slices: Iterable[FetchSlice]) -> set[tuple[ObjectId, frozenset[BrokerId]]]:
    return {(section.object.id, section.object.holders) for section in slices}


def _plan_span(
    key: TopicPartition, topic_id: TopicId, start: int, end: int, state: TopicLedgerState
) -> tuple[tuple[FetchSlice, ...], int]:
    slices = plan_fetch(state, key.topic, topic_id, key.partition, start, end)
    return slices, state.topics[topic_id].partitions[key.partition].leader_epoch


def _rest(
    key: TopicPartition, ends: Mapping[TopicPartition, int], done: dict[TopicPartition, int]
) -> Iterator[FetchedRows]:
    """Yield an empty batch if the last offsets of a range have no rows, so that the position moves past them."""
    if done.get(key, -1) < ends[key]:
        done[key] = ends[key]
        yield key, _NO_ROWS, ends[key]


class FetchPartition(NamedTuple):
    """Where to read one partition from, and how much at most.

    Attributes:
        last_fetched_epoch: leader epoch under which the rows before the fetch offset were read; -1: unknown.
    """

    ledger: Ledger[TopicLedgerState]
    topic_id: TopicId
    partition: int
    fetch_offset: int
    max_bytes: int
    last_fetched_epoch: int = UNDEFINED_EPOCH


class FetchState(NamedTuple):
    """What a reader can read of a partition now.

    Attributes:
        error: UNKNOWN_TOPIC_OR_PARTITION (deleted) or OFFSET_OUT_OF_RANGE; None if the partition can be read.
        end_offset: end of a read within its bytes; the fetch offset if there are no rows.
        available_bytes: of the sections up to there; above ``max_bytes`` only if the first section is.
        leader_epoch: the partition's current one.
        diverging_offset: with OFFSET_OUT_OF_RANGE, the first offset at which the log differs from the reader's rows,
            because an unclean election cut the log there. Otherwise None.
    """

    error: ErrorCode | None
    end_offset: int
    available_bytes: int
    leader_epoch: int = UNDEFINED_EPOCH
    diverging_offset: int | None = None


def look(item: FetchPartition, max_bytes: int | None = None, *, one_section_min: bool = True) -> FetchState:
    """Return the state of a partition in the current fold; reads no storage. O(log n + sections within the bytes).

    Offsets [fetch offset, high watermark) can be read. An offset from the high watermark to the log end has
    no rows yet, which is not an error. Sections are read whole, as Kafka's batches: the first counts whatever
    its size.

    Args:
        max_bytes: the rest of the fetch's budget; the item's own limit also applies.
        one_section_min: False: omit even the first section if it is too large.
    """
    budget = item.max_bytes if max_bytes is None else min(item.max_bytes, max_bytes)
    return item.ledger.ask(lambda state: _look(state, item, budget, one_section_min, []))


def _look(
    state: TopicLedgerState, item: FetchPartition, budget: int, one_section_min: bool, rows: list[SectionRow]
) -> FetchState:
    """Return the state, and append the rows of the sections within the budget to `rows`."""
    topic = state.topics.get(item.topic_id)
    if topic is None or topic.closed or item.partition >= len(topic.partitions):
        return FetchState(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, item.fetch_offset, 0)
    partition = topic.partitions[item.partition]
    diverging_offset = _diverging_offset(item, partition)
    if diverging_offset is not None:
        return FetchState(ErrorCode.OFFSET_OUT_OF_RANGE, item.fetch_offset, 0, partition.leader_epoch, diverging_offset)
    if not partition.log_start_offset <= item.fetch_offset <= partition.log_end_offset:
        return FetchState(ErrorCode.OFFSET_OUT_OF_RANGE, item.fetch_offset, 0)
    size_bytes = 0
    if item.fetch_offset < partition.high_watermark and (budget or one_section_min):
        for row in partition.sections_between(item.fetch_offset, partition.high_watermark):
            if size_bytes + row.size_bytes > budget and (size_bytes or not one_section_min):
                break
            size_bytes += row.size_bytes
            rows.append(row)
    end = min(rows[-1].end_offset, partition.high_watermark) if rows else item.fetch_offset
    return FetchState(None, end, size_bytes, partition.leader_epoch)


def _plan(
    asked: Sequence[tuple[TopicPartition, FetchPartition]], budget: int, one_section_min: bool, state: TopicLedgerState
) -> tuple[list[FetchState], list[FetchSlice]]:
    """Return the state of each partition, all of one ledger, and the sections to read within the budget."""
    states: list[FetchState] = []
    ranges: list[tuple[FetchRange, list[SectionRow]]] = []
    for key, item in asked:
        rows: list[SectionRow] = []
        fetch_state = _look(state, item, min(item.max_bytes, budget), one_section_min and not ranges, rows)
        states.append(fetch_state)
        if rows:
            where = key.topic, item.topic_id, key.partition
            ranges.append((FetchRange(*where, item.fetch_offset, fetch_state.end_offset, state.ledger_id), rows))
            budget = max(0, budget - fetch_state.available_bytes)
    return states, list(chain.from_iterable(slices_of(ranges, state)))


def _diverging_offset(item: FetchPartition, partition: PartitionState) -> int | None:
    """Return the first offset where the log differs from the reader's rows, else None. Source: KIP-320."""
    if item.last_fetched_epoch in (UNDEFINED_EPOCH, partition.leader_epoch):
        return None
    ended = partition.leader_epochs.end_offset_for(item.last_fetched_epoch, partition.log_end_offset)
    return ended.start_offset if UNDEFINED_OFFSET < ended.start_offset < item.fetch_offset else None


def is_answered(partitions: Sequence[FetchPartition], min_bytes: int) -> bool:
    """Return whether there is an error, or enough bytes, so that waiting is pointless."""
    size_bytes = 0
    for item in partitions:
        state = look(item)
        size_bytes += min(state.available_bytes, item.max_bytes)
        if state.error is not None or size_bytes >= min_bytes:
            return True
    return False


def wait_for_rows(
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int,
    min_bytes: int,
    clock: Clock,
    look: Callable[[], float],
    pause: Callable[[float], bool | None],
) -> None:
    """Wait until there are enough bytes, an error, or the time is over; the caller then reads.

    Returns at once if ``max_wait_ms`` is 0 or no partition is given. Otherwise it begins with a look.

    Args:
        look: looks at the ledgers that are due; returns when, on the monotonic clock, the next one is due.
        pause: waits for this many ms, or until there is a reason to look, and returns whether there is one.
    """
    deadline_ms = clock.monotonic_ms() + max_wait_ms
    while partitions and clock.monotonic_ms() < deadline_ms:
        until_ms = min(look(), deadline_ms)
        if is_answered(partitions, min_bytes):  # also where another user of the ledger has read it
            return
        while not pause(min(max(1, until_ms - clock.monotonic_ms()), WAKEUP_MS)) and clock.monotonic_ms() < until_ms:
            pass
