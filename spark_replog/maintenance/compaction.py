"""Compaction: small objects are joined, and by key (``cleanup.policy=compact``) the latest row of each key stays.

Optimistic, without a lock: a run is planned from a fold, rewritten beside the log, and put in place by one `Replace`
entry that the fold refuses where the log changed meanwhile. Any number of compactors may run, stop or die at any
moment; what they leave is garbage only. Offsets, times, order and bytes of rows stay.

By key (source: Kafka's ``LogCleaner``, ``LogCleanerManager``) a pass reads the keys of the rows that came since the
last one, up to the memory that `log.cleaner.dedupe.buffer.size` allows. It then rewrites, oldest first, the sections
with rows that newer ones replace. A `LogClean` entry then says how far the log is clean. A pass that ends early has
removed replaced rows only. Tombstones go `delete.retention.ms` after the pass that first cleaned them: no older row of
their key is left then, and a reader that needs less time for the whole log has seen them. Rows without a key stay.
Of typed rows the key is that of ``log/row_key.py``, and a row is a tombstone where its `delete.column` is true.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config.registry import stored_topic_config
from spark_replog.config.store import TopicConfig
from spark_replog.errors import NotFoundError, ReplogError, unknown_partition
from spark_replog.fault_point import fault_point
from spark_replog.ids import LedgerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, LogClean, Outcome, Replace
from spark_replog.log.row_key import key_array
from spark_replog.maintenance.segment_writer import (
    RETENTION_PARTS,
    SECTIONS_MIN,
    CompactionLimits,
    CompactionRun,
    SegmentWriter,
    compactable,
    make_run,
    plan_compaction,
    plan_inline,
    slices_of,
)
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import RowView, log_column
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL

_KEYS = pa.schema([pa.field("key", pa.binary()), pa.field("offset", pa.int64())])
_log = logging.getLogger(__name__)

_LANE = "compaction"
"""Its jobs wait for reads and writes on the lanes of the roots."""
COMPACTION_ROUND_BYTES = 256 * 1024 * 1024
"""What one round of ``replog coordinator run`` rewrites at most, so that its other work is never far away."""
FAILED_REST_MS = 600_000
"""For a partition that could not be compacted: each round would read the same rows up to what it cannot read."""


class CleaningPlan(NamedTuple):
    """What a pass over one partition is about."""

    runs: tuple[CompactionRun, ...]
    """All readable sections, in runs that fit one object each."""
    dirty_offset: int
    """Rows from here on are new since the last pass."""
    tombstones_below: int
    """Tombstones below this offset have been kept long enough."""
    delete_column: str | None = None
    """Of typed rows: where it is true, the row is a tombstone."""


def plan_cleaning(
    state: TopicLedgerState, topic_id: TopicId, partition: int, config: TopicConfig, now_ms: int, *, is_forced: bool
) -> CleaningPlan | None:
    """Return the pass that is due over a partition of an open topic, or None. Call it under the ledger's lock.

    Args:
        now_ms: the ledger's time.
        is_forced: whether `min.cleanable.dirty.ratio` does not matter.
    """
    log = state.topics[topic_id].partitions[partition]
    dirty_offset = log.clean_points[-1][0] if log.clean_points else 0
    dirty = _cleanable(state, topic_id, partition, max(dirty_offset, log.log_start_offset), config, now_ms)
    dirty_bytes = sum(section.size_bytes for section in dirty)
    waited_ms = now_ms - config.delete_retention_ms
    below = max((offset for offset, at_ms in log.clean_points if at_ms <= waited_ms), default=0)
    is_due = dirty_bytes > 0 and dirty_bytes >= config.min_cleanable_dirty_ratio * log.live_bytes
    if not is_due and not (is_forced and (dirty or below > log.log_start_offset)):
        return None
    sections = _cleanable(state, topic_id, partition, log.log_start_offset, config, now_ms)
    runs = tuple(make_run(state, topic_id, partition, part) for part in group_sections(sections, config.segment_bytes))
    return CleaningPlan(runs, dirty_offset, below, config.delete_column) if runs else None


def _cleanable(
    state: TopicLedgerState, topic_id: TopicId, partition: int, start: int, config: TopicConfig, now_ms: int
) -> list[SectionRef]:
    """Return the sections from an offset on that may be cleaned: without a gap, so that nothing older is left out."""
    newest_ms = now_ms - config.min_compaction_lag_ms
    result: list[SectionRef] = []
    for section in compactable(state, topic_id, partition, start, is_whole=False):
        is_first = not result and section.base_offset <= start
        if not (is_first or (result and result[-1].end_offset == section.base_offset)):
            break
        if config.min_compaction_lag_ms and section.max_timestamp_ms > newest_ms:
            break
        result.append(section)
    return result


def group_sections(sections: Sequence[SectionRef], size_max_bytes: int) -> Iterator[list[SectionRef]]:
    """Yield neighbours of one timestamp type, of at most ``segment.bytes`` together, or one larger section."""
    current: list[SectionRef] = []
    size_bytes = 0
    for section in sections:
        is_other = bool(current) and bool(current[0].timestamp_type) != bool(section.timestamp_type)
        if current and (is_other or size_bytes + section.size_bytes > size_max_bytes):
            yield current
            current, size_bytes = [], 0
        current.append(section)
        size_bytes += section.size_bytes
    if current:
        yield current


class OffsetMap:
    """The latest offset of each key of a range of the log. Exact: keys are compared, not their hashes.

    Rows should be added only until the keys have ``size_max_bytes``.
    """

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max_bytes = size_max_bytes
        self._latest = _KEYS.empty_table()

    @property
    def is_full(self) -> bool:
        """Return whether no more rows should be added."""
        return bool(self._latest.nbytes >= self._size_max_bytes)

    def add(self, rows: KeyColumns) -> None:
        """Add rows, each newer than all before."""
        new = pa.table([rows.keys, pa.array(rows.offsets)], schema=_KEYS).filter(pc.field("key").is_valid())
        both = pa.concat_tables([self._latest, new]).group_by("key").aggregate([("offset", "max")])
        self._latest = both.select(["key", "offset_max"]).rename_columns(_KEYS.names)

    def dropped(self, rows: KeyColumns, tombstones_below: int) -> np.ndarray:
        """Return the offsets of rows that newer ones replace, and of tombstones that were kept long enough."""
        table = self._latest.combine_chunks()
        at = pc.index_in(rows.keys, value_set=table.column("key"), skip_nulls=True)
        latest = table.column("offset").take(at).fill_null(-1).to_numpy()
        is_old_tombstone = rows.is_tombstone & (rows.offsets < tombstones_below)
        gone: np.ndarray = rows.offsets[(latest > rows.offsets) | is_old_tombstone]
        return gone


class KeyColumns(NamedTuple):
    """What a pass must know of N rows."""

    keys: pa.ChunkedArray
    """N keys, binary."""
    offsets: np.ndarray
    """N offsets, ascending."""
    is_tombstone: np.ndarray
    """Whether the row deletes its key: it has one and no value, or true in the topic's `delete.column`."""


ReadKeys = Callable[[CompactionRun], KeyColumns]


def read_keys(brokers: BrokerSet, delete_column: str | None, run: CompactionRun) -> KeyColumns:
    """Return the keys of a run's rows; values are not kept, and of typed rows only these columns are decoded."""
    schema = run.schemas[-1] if run.schemas else None
    views: dict[TopicId, RowView] = {}
    if schema is not None:
        names = schema.key if delete_column is None else (*schema.key, delete_column)
        views[run.topic_id] = RowView(schema, names)
    keys, offsets, tombstones = [], [], []
    for batch in Fetcher(brokers).fetch(slices_of(run), views=views):
        if schema is None:
            key, deletes = batch.column(0), pc.and_(pc.is_valid(batch.column(0)), pc.is_null(batch.column(1)))
        else:
            key = key_array([batch.column(name) for name in schema.key])
            deletes = pa.nulls(len(batch), pa.bool_()) if delete_column is None else batch.column(delete_column)
        keys.append(key.take(np.arange(batch.num_rows)))  # a copy: the column shares the batch's bytes
        offsets.append(log_column(batch, "offset").to_numpy().copy())
        tombstones.append(deletes.fill_null(False).to_numpy(zero_copy_only=False))
    return KeyColumns(pa.chunked_array(keys, pa.binary()), np.concatenate(offsets), np.concatenate(tombstones))


class CleanedRun(NamedTuple):
    """A run with rows to remove: `dropped` are their offsets, ascending, not all of the run's."""

    run: CompactionRun
    dropped: np.ndarray


def find_replaced(read: ReadKeys, plan: CleaningPlan, size_max_bytes: int) -> tuple[int, Iterator[CleanedRun]]:
    """Return how far the pass gets, and the runs that lose rows, oldest first, each looked at when it is asked for.

    Runs without a row that stays are joined with the next one, so that its section spans their offsets. Where no row
    stays up to the end, the last one does: it is a tombstone, since nothing newer replaced it.
    """
    latest = OffsetMap(size_max_bytes)
    end_offset = plan.dirty_offset
    for run in plan.runs:
        if run.end_offset <= plan.dirty_offset:
            continue
        if latest.is_full:
            break
        rows = read(run)
        latest.add(rows)
        end_offset = run.end_offset
    runs = [run for run in plan.runs if run.end_offset <= max(end_offset, plan.dirty_offset)]
    return end_offset, _runs_with_replaced(read, runs, latest, plan.tombstones_below)


def _runs_with_replaced(
    read: ReadKeys, runs: Sequence[CompactionRun], latest: OffsetMap, tombstones_below: int
) -> Iterator[CleanedRun]:
    emptied: list[CompactionRun] = []
    all_dropped: list[np.ndarray] = []
    for run in runs:
        rows = read(run)
        dropped = latest.dropped(rows, tombstones_below)
        is_emptied = len(dropped) == len(rows.offsets)
        if not len(dropped) and not emptied:
            continue
        emptied.append(run)
        all_dropped.append(dropped)
        if is_emptied and run is not runs[-1]:
            continue
        if is_emptied:
            all_dropped[-1] = dropped[:-1]
        joined = emptied[0]._replace(sections=tuple(section for old_run in emptied for section in old_run.sections))
        gone = np.concatenate(all_dropped)
        if len(gone):
            yield CleanedRun(joined, gone)
        emptied, all_dropped = [], []


@dataclass(slots=True)
class CompactionReport:
    """What was done to one topic, or to several: to the runs that were replaced, unless it says otherwise.

    Attributes:
        size_bytes: that were rewritten, as they were stored before.
        removed_count: rows that newer ones of their key made superfluous.
        lost_race_count: runs that another process changed first; nothing is wrong.
        failed_count: runs that could not be read or written; the log says why.
    """

    run_count: int = 0
    sections_before: int = 0
    sections_after: int = 0
    size_bytes: int = 0
    removed_count: int = 0
    lost_race_count: int = 0
    failed_count: int = 0

    def add(self, other: CompactionReport) -> None:
        """Count another report in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, run: CompactionRun, command: Replace, result: CommandResult | None) -> bool:
        """Count one decided replacement; return whether it changed the log."""
        if result is None or result.outcome is not Outcome.APPLIED:
            self.lost_race_count += 1
            _log.info("a run of %s-%d was changed by others first: %s", run.topic, run.partition, result)
            return False
        self.run_count += 1
        self.sections_before += len(run.sections)
        self.sections_after += len(command.base_offsets)
        self.size_bytes += run.size_bytes
        rows = sum(section.row_count for item in command.outputs for section in item.sections)
        self.removed_count += sum(section.row_count for section in run.sections) - rows
        return True


def limits_of(config: dict[str, str]) -> CompactionLimits:
    """Return how far runs of a topic with these settings reach."""
    settings, _ = stored_topic_config(tuple(config.items()))
    ages_out = "delete" in settings.cleanup_policy and settings.retention_ms >= 0
    return CompactionLimits(settings.segment_bytes, settings.retention_ms // RETENTION_PARTS if ages_out else None)


class Compactor:
    """Compacts the topics of one store. One thread.

    A partition that failed rests for `FAILED_REST_MS`; make another compactor to try it at once.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer = SegmentWriter(cluster.brokers)
        self._resume: dict[tuple[TopicId, int], dict[int, int]] = {}
        self._rested_ms: dict[tuple[TopicId, int], int] = {}

    def plan(
        self, handle: TopicHandle, partitions: Sequence[int] | None = None, *, sections_min: int = SECTIONS_MIN
    ) -> list[CompactionRun]:
        """Return the runs of a topic that pay, from the newest fold; none of a topic that was deleted."""
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        ledger.refresh()
        resume = self._resume.setdefault((handle.topic_id, sections_min), {})

        def plan(state: TopicLedgerState) -> list[CompactionRun]:
            topic = state.topics.get(handle.topic_id)
            if topic is None or topic.closed:
                return []
            limits = limits_of(topic.config)
            return plan_compaction(state, handle.topic_id, limits, partitions, sections_min=sections_min, resume=resume)

        return ledger.ask(plan)

    def compact(
        self,
        handle: TopicHandle,
        partitions: Sequence[int] | None = None,
        *,
        is_eager: bool = False,
        bytes_max: int | None = None,
        on_progress: Callable[[CompactionReport], None] = lambda _: None,
    ) -> CompactionReport:
        """Compact what pays: by key where the topic's `cleanup.policy` says so, then small objects, oldest rows first.

        Args:
            partitions: None: all.
            is_eager: whether to compact also where it hardly pays.
            bytes_max: stop after this many bytes; None: continue to the end.
            on_progress: called after each run.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: one of `partitions`; nothing is changed.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: the last run may have been replaced. Nothing is lost
                either way; compact again.
            ReplogError: the ledger does not answer.
        """
        report = CompactionReport()
        for partition in self._cleanable(handle, partitions):
            if not self._rests(handle.topic_id, partition):
                self._clean(handle, partition, report, is_eager=is_eager)
                on_progress(report)
        planned = self.plan(handle, partitions, sections_min=2 if is_eager else SECTIONS_MIN)
        runs = [planned_run for planned_run in planned if not self._rests(planned_run.topic_id, planned_run.partition)]
        for run, rewriting in self._rewrite(runs, bytes_max):
            try:
                command = rewriting.result()
            except ReplogError as error:
                self._note_failed(report, run.topic_id, run.partition)
                _log.warning("offsets %d to %d of %s-%d are not compacted: %s",
                             run.first_offset, run.end_offset, run.topic, run.partition, error)  # fmt: skip
                continue
            assert command is not None  # no row was dropped
            report.count(run, command, self.decide(run.ledger_id, command))
            on_progress(report)
        return report

    def _rests(self, topic_id: TopicId, partition: int) -> bool:
        return self._cluster.clock.monotonic_ms() < self._rested_ms.get((topic_id, partition), 0)

    def _note_failed(self, report: CompactionReport, topic_id: TopicId, partition: int) -> None:
        report.failed_count += 1
        self._rested_ms[topic_id, partition] = self._cluster.clock.monotonic_ms() + FAILED_REST_MS

    def move_inline(self, ledger: Ledger[TopicLedgerState]) -> CompactionReport:
        """Move inline rows of a ledger into data objects on every replica, so that it has room for others.

        They stay where they are if the ledger or a root does not answer, which raises its ReplogError.
        """
        report = CompactionReport()
        for run in ledger.ask(lambda state: plan_inline(state, limits_of)):
            command = self._writer.rewrite(run)
            assert command is not None  # no row was dropped
            report.count(run, command, self.decide(run.ledger_id, command))
        return report

    def _rewrite(
        self, runs: Iterable[CompactionRun], bytes_max: int | None
    ) -> Iterator[tuple[CompactionRun, Future[Replace | None]]]:
        """Yield runs in their order while they are rewritten, the next one too: one is read while one is written."""
        ahead: deque[tuple[CompactionRun, Future[Replace | None]]] = deque()
        size_bytes = 0
        for run in runs:
            if bytes_max is not None and size_bytes >= bytes_max:
                break
            size_bytes += run.size_bytes
            ahead.append((run, IO_POOL.submit_to(_LANE, self._writer.rewrite, run)))
            if len(ahead) > 1:
                yield ahead.popleft()
        yield from ahead

    def _cleanable(self, handle: TopicHandle, partitions: Sequence[int] | None) -> Sequence[int]:
        """Return the partitions to compact by key. Raises UNKNOWN_TOPIC_OR_PARTITION for one that does not exist."""
        ledger, _ = self._cluster.folded_topic(handle)
        with ledger.lock:
            topic = ledger.state.topics[handle.topic_id]
            for partition in partitions or ():
                if not 0 <= partition < len(topic.partitions):
                    raise unknown_partition(handle.name, partition, len(topic.partitions))
            is_compacted = "compact" in stored_topic_config(tuple(topic.config.items()))[0].cleanup_policy
            is_compacted = is_compacted and (topic.schema is None or bool(topic.schema.key))
            numbers = range(len(topic.partitions)) if is_compacted and not topic.closed else ()
        return [number for number in numbers if partitions is None or number in partitions]

    def _clean(self, handle: TopicHandle, partition: int, report: CompactionReport, *, is_eager: bool) -> None:
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        ledger.refresh()
        now_ms = self._cluster.retention_now_ms(ledger)

        def plan_on(state: TopicLedgerState) -> CleaningPlan | None:
            config = stored_topic_config(tuple(state.topics[handle.topic_id].config.items()))[0]
            return plan_cleaning(state, handle.topic_id, partition, config, now_ms, is_forced=is_eager)

        plan = ledger.ask(plan_on)
        if plan is None:
            return
        try:
            end_offset, cleaned = find_replaced(
                partial(read_keys, self._cluster.brokers, plan.delete_column),
                plan,
                self._cluster.config.log_cleaner_dedupe_buffer_size,
            )
            for run, dropped in cleaned:
                command = self._writer.rewrite(run, dropped)
                assert command is not None  # a row stays
                if not report.count(run, command, self.decide(run.ledger_id, command)):
                    return  # the next pass starts again
        except ReplogError as error:
            self._note_failed(report, handle.topic_id, partition)
            _log.warning("%s-%d is not compacted by key: %s", handle.name, partition, error)
            return
        self._resume.clear()
        fault_point("compaction.before_clean")
        # Tombstones wait from now, not from the plan: a reader may have read the last replaced row just before it went.
        clean = LogClean(handle.topic_id, partition, end_offset, self._cluster.retention_now_ms(ledger))
        command_of_end = encode_command(clean)
        ledger.append(lambda _: command_of_end, timeout_ms=self._cluster.config.delivery_timeout_ms)

    def commit(self, done: Iterable[tuple[CompactionRun, Replace]]) -> CompactionReport:
        """Put runs in place that were rewritten elsewhere, in Spark's tasks."""
        report = CompactionReport()
        for run, command in done:
            report.count(run, command, self.decide(run.ledger_id, command))
        return report

    def decide(self, ledger_id: LedgerId, command: Replace) -> CommandResult | None:
        """Decide one replacement by an entry of its own; None where the fold would refuse it now."""
        fault_point("compaction.before_entry")
        ledger: Ledger[TopicLedgerState] = self._cluster.topic_ledger(ledger_id)
        encoded = encode_command(command)
        result: CommandResult | None = ledger.append(
            lambda state: encoded if is_live(state, command) else None,
            timeout_ms=self._cluster.config.delivery_timeout_ms,
        ).result
        fault_point("compaction.after_entry")
        return result


def is_live(state: TopicLedgerState, command: Replace) -> bool:
    """Return whether the topic is open and the object may still be named: else no entry is worth it.

    A replica that left since the run was planned may have lost its copy (ADR 8): the run is planned again.
    """
    topic = state.topics.get(command.topic_id)
    return (
        topic is not None
        and not topic.closed
        and all(item.id.generation >= state.generations.floor and not state.doubtful(item) for item in command.outputs)
    )


class CompactionRounds:
    """What ``replog coordinator run`` compacts between other things: a bounded part, now and then. One thread."""

    def __init__(self, cluster: Cluster, bytes_max: int = COMPACTION_ROUND_BYTES) -> None:
        self._cluster = cluster
        self._bytes_max = bytes_max
        self._compactor = Compactor(cluster)
        self._next_ms = 0
        self._last = ""  # the topic at which the last round ended; the next one begins after it, so that all get a turn

    def run_once(self) -> CompactionReport:
        """Compact a part of what pays; topics whose ledger does not answer are left to the next round."""
        total, config, clock = CompactionReport(), self._cluster.config, self._cluster.clock
        if not config.log_cleaner_enable or clock.monotonic_ms() < self._next_ms:
            return total
        for handle in sorted(open_topics(self._cluster), key=lambda topic: (topic.name <= self._last, topic.name)):
            if total.size_bytes >= self._bytes_max:
                break
            self._last = handle.name
            try:
                total.add(self._compactor.compact(handle, bytes_max=self._bytes_max - total.size_bytes))
            except NotFoundError:
                continue  # it is being deleted, or its deletion was interrupted
            except ReplogError as error:
                total.failed_count += 1
                _log.warning("topic %s is left to the next round: %s", handle.name, error)
        if total.size_bytes < self._bytes_max:  # else there may be more: the next round starts at once
            self._next_ms = clock.monotonic_ms() + config.log_cleaner_backoff_ms
        return total


def open_topics(cluster: Cluster) -> list[TopicHandle]:
    """Return the topics of the store, as the newest cluster ledger has them."""
    cluster.refresh()
    return [cluster.lookup(name) for name in cluster.topic_names()]
