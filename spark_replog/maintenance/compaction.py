"""Compaction of small objects: a run of small sections of one partition becomes one large object.

Optimistic, without a lock: a run is planned from a fold, rewritten beside the log, and put in place by one `Replace`
entry that the fold refuses where the log changed meanwhile. So any number of compactors may run, stop or die at any
moment; what they leave behind is garbage and nothing else. Offsets, times, order and bytes of rows stay.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import LedgerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, LogClean, Outcome, Replace
from spark_replog.maintenance.compaction_plan import (
    RETENTION_PARTS,
    SECTIONS_MIN,
    CompactionLimits,
    CompactionRun,
    plan_compaction,
)
from spark_replog.maintenance.log_cleaner import CleaningPlan, find_replaced, plan_cleaning, read_keys
from spark_replog.maintenance.segment_writer import SegmentWriter
from spark_replog.storage.io_pool import io_pool

_log = logging.getLogger(__name__)

_LANE = "compaction"
"""Its jobs wait for reads and writes on the lanes of the roots."""
COMPACTION_ROUND_BYTES = 256 * 1024 * 1024
"""What one round of ``replog coordinator run`` rewrites at most, so that its other work is never far away."""


@dataclass(slots=True)
class CompactionReport:
    """What was done to one topic, or to several.

    Attributes:
        run_count: runs that were replaced.
        sections_before, sections_after: of those runs.
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
        self.removed_count += sum(each.row_count for each in run.sections) - rows
        return True


def limits_of(config: dict[str, str]) -> CompactionLimits:
    """Return how far runs of a topic with these settings reach."""
    settings, _ = stored_topic_config(tuple(config.items()))
    ages_out = "delete" in settings.cleanup_policy and settings.retention_ms >= 0
    return CompactionLimits(settings.segment_bytes, settings.retention_ms // RETENTION_PARTS if ages_out else None)


class Compactor:
    """Compacts the topics of one store. One thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writer = SegmentWriter(cluster.brokers)
        self._resume: dict[tuple[TopicId, int], dict[int, int]] = {}

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
            bytes_max: stop after so many bytes; None: go on to the end.
            on_progress: called after each run.

        Raises:
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: the last run may have been replaced. Nothing is lost
                either way; compact again.
            ReplogError: the ledger does not answer.
        """
        report = CompactionReport()
        for partition in self._cleanable(handle, partitions):
            self._clean(handle, partition, report, is_eager=is_eager)
            on_progress(report)
        runs = self.plan(handle, partitions, sections_min=2 if is_eager else SECTIONS_MIN)
        for run, rewriting in self._rewrite(runs, bytes_max):
            try:
                command = rewriting.result()
            except ReplogError as error:
                report.failed_count += 1
                _log.warning("offsets %d to %d of %s-%d are not compacted: %s",
                             run.first_offset, run.end_offset, run.topic, run.partition, error)  # fmt: skip
                continue
            assert command is not None  # no row was dropped
            report.count(run, command, self.decide(run.ledger_id, command))
            on_progress(report)
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
            ahead.append((run, io_pool().submit_to(_LANE, self._writer.rewrite, run)))
            if len(ahead) > 1:
                yield ahead.popleft()
        yield from ahead

    def _cleanable(self, handle: TopicHandle, partitions: Sequence[int] | None) -> Sequence[int]:
        """Return the partitions to compact by key."""
        ledger, _ = self._cluster.folded_topic(handle)
        with ledger.lock:
            topic = ledger.state.topics[handle.topic_id]
            is_compacted = stored_topic_config(tuple(topic.config.items()))[0].is_compacted
            numbers = range(len(topic.partitions)) if is_compacted and not topic.closed else ()
        return [number for number in numbers if partitions is None or number in partitions]

    def _clean(self, handle: TopicHandle, partition: int, report: CompactionReport, *, is_eager: bool) -> None:
        """Make one pass of compaction by key over a partition, if it is due, and count it."""
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        ledger.refresh()
        now_ms = self._cluster.retention_now_ms()

        def plan_on(state: TopicLedgerState) -> CleaningPlan | None:
            config = stored_topic_config(tuple(state.topics[handle.topic_id].config.items()))[0]
            return plan_cleaning(state, handle.topic_id, partition, config, now_ms, is_forced=is_eager)

        plan = ledger.ask(plan_on)
        if plan is None:
            return
        try:
            end_offset, cleaned = find_replaced(
                partial(read_keys, self._cluster.brokers), plan, self._cluster.config.log_cleaner_dedupe_buffer_size
            )
            for run, dropped in cleaned:
                command = self._writer.rewrite(run, dropped)
                assert command is not None  # a row stays
                if not report.count(run, command, self.decide(run.ledger_id, command)):
                    return  # the next pass begins anew
        except ReplogError as error:
            report.failed_count += 1
            _log.warning("%s-%d is not compacted by key: %s", handle.name, partition, error)
            return
        self._resume.clear()
        fault_point("compaction.before_clean")
        command_of_end = encode_command(LogClean(handle.topic_id, partition, end_offset, now_ms))
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
        and all(item.id.generation >= state.gc_floor and not state.doubtful(item) for item in command.outputs)
    )


class CompactionRounds:
    """What ``replog coordinator run`` compacts between other things: a bounded part, now and then. One thread.

    Args:
        cluster: the opened store; `log.cleaner.enable` and `log.cleaner.backoff.ms` of its settings apply.
        bytes_max: that one round rewrites, about.
    """

    def __init__(self, cluster: Cluster, bytes_max: int = COMPACTION_ROUND_BYTES) -> None:
        self._cluster = cluster
        self._bytes_max = bytes_max
        self._compactor = Compactor(cluster)
        self._next_ms = 0

    def run_once(self) -> CompactionReport:
        """Compact a part of what pays; topics whose ledger does not answer are left to the next round."""
        total, config, clock = CompactionReport(), self._cluster.config, self._cluster.clock
        if not config.log_cleaner_enable or clock.monotonic_ms() < self._next_ms:
            return total
        for handle in open_topics(self._cluster):
            if total.size_bytes >= self._bytes_max:
                break
            try:
                total.add(self._compactor.compact(handle, bytes_max=self._bytes_max - total.size_bytes))
            except ReplogError as error:
                total.failed_count += 1
                _log.warning("topic %s is left to the next round: %s", handle.name, error)
        if total.size_bytes < self._bytes_max:  # else there may be more: the next round goes on at once
            self._next_ms = clock.monotonic_ms() + config.log_cleaner_backoff_ms
        return total


def open_topics(cluster: Cluster) -> list[TopicHandle]:
    """Return the topics of the store, as the newest cluster ledger has them."""
    cluster.refresh()
    return [cluster.lookup(name) for name in cluster.topic_names()]
