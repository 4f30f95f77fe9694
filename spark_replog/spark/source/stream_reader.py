"""``spark.readStream``: offsets in one long-lived process per query, rows in executors.

Spark 4.0 to 4.3 differ in the order of calls, in which calls repeat, and in what a crash loses. Each rule here that is
not obvious follows from one of these facts, which is named next to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_replog.cluster.cluster import ACCESS_AGE_MS, Cluster, TopicHandle
from spark_replog.errors import DataLossError, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.ids import LedgerId, TopicId, TopicPartition, new_id
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.log_offset import META_KEY, Ends, LogOffset, advance, batch_start
from spark_replog.spark.compat import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.source.discovery import (
    Loss,
    LossPolicy,
    Span,
    check_ranges,
    check_target,
    offset_changed,
    reconcile,
    undecided_tail,
)
from spark_replog.spark.source.sizing import BatchDelay, OffsetRange, limit_amount, limit_rows
from spark_replog.spark.source.topics import LogView, final_ends, offsets_for_times_of, plan_partitions, view_topics
from spark_replog.storage.call_counter import calls_to_json

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_replog.groups.progress_publisher import ProgressPublisher

_LOG = logging.getLogger(__name__)
_ROWS_MAX = 2**63 - 1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets of one query. Attributes live as long as the query's process; ``read`` runs in executors without them."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema
        """Of the DataFrame; None: what the topics have now."""
        self._publisher: ProgressPublisher | None = None
        self._losses = LossPolicy(fail=options.fail_on_data_loss)
        self._initial: LogOffset | None = None
        self._position: LogOffset | None = None
        """The query's position, only for Spark 4.0 and 4.1, which do not pass it to ``latestOffset``."""
        self._handles: dict[TopicId, TopicHandle] = {}
        """Topics seen so far, to find the end of a deleted one."""
        self._process = new_id()
        self._view: LogView | None = None
        """The last view of the log."""
        self._view_ms = 0
        """When the look for it began, by the cluster's monotonic clock."""
        limits = options.limits
        self._delay = None if limits.rows_min is None else BatchDelay(limits.rows_min, limits.delay_max_ms)
        self._is_available_now = False
        self._target: LogOffset | None = None
        """Where an AvailableNow run ends."""
        self._refused: ReplogError | None = None
        """Why the starting options are wrong; raised by ``latestOffset``."""
        self._has_limits = limits.is_set
        if self._has_limits and not HAS_READ_LIMITS:
            _LOG.warning(
                "Spark before 4.2 does not pass the trigger to a Python source: with Trigger.AvailableNow or Once, "
                "maxOffsetsPerTrigger and maxBytesPerTrigger end the run after one limited batch. Leave them out "
                "with these triggers, or use Spark 4.2."
            )

    # ------------------------------------------------------------------ offsets: the query's process

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins. 4.2 calls this twice and needs the same answer.

        ``latestOffset`` raises its errors, because Spark also calls this for a batch 0 that failed. The end of that
        batch has the positions, and by then the topic may have partitions that the option does not name.
        """
        try:
            return self._initial_offset().to_json()
        except (InvalidConfigError, NotFoundError) as error:
            self._refused = error
            return LogOffset({}, origin={}).to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit per micro-batch. Spark 4.2 and up.

        Spark has no combined limit: any limit except "all" means that the limits of the options apply.
        """
        return ReadMaxRows(self._options.limits.rows_max or _ROWS_MAX) if self._has_limits else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run at the first ``latestOffset``. Spark 4.2 and up."""
        self._is_available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the high watermarks last read and this process's storage calls, for progress. Reads nothing.

        Spark 4.2 and up.
        """
        if self._view is None:
            return None
        offset = LogOffset(self._view.high_watermarks, self._view.topic_ids).to_json()
        brokers = self._options.store.cluster().brokers
        offset[META_KEY] |= {"process": self._process, "calls": calls_to_json(brokers.name_calls(brokers.calls.read()))}
        return offset

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` itself if nothing is new.

        Looks for newer rows unless the known ones fill the limit: see ``_view_that_fills``. The limit is shared in
        proportion to the known unread rows, so a partition whose first unread rows are newer waits for the next look.
        Spark 4.0 and 4.1 pass neither ``start`` nor ``limit``.

        Raises:
            ReplogError: UNKNOWN_TOPIC_OR_PARTITION, REPLOG_DATA_LOSS, REPLOG_NO_QUORUM;
                REPLOG_INVALID_OPTION: the starting options do not fit the log.
        """
        at = (self._position or self._initial_offset()) if start is None else LogOffset.from_json(start)
        if self._refused is not None and not at.topic_ids:
            raise self._refused
        if self._options.group_id is not None:
            self._show(at, self._options.group_id)
        cluster = self._options.store.cluster()
        is_limited = start is None or not isinstance(limit, ReadAllAvailable)
        view = (self._view_that_fills(cluster, at) if is_limited else None) or self._look(cluster, at)
        if self._target is not None:
            check_target(self._target, view)
        span = reconcile(at, view, self._losses, partial(final_ends, cluster, self._handles))
        if not view.bounds:
            return at.to_json()  # with an empty map, every partition would be new when a topic comes back
        ends = span.ends
        if self._is_available_now:
            self._target = self._target or LogOffset(span.ends, view.topic_ids)
            ends = self._target.ends
        if is_limited:
            delay = None if self._is_available_now else self._delay
            if delay is not None and not delay.is_due(span.starts, ends, cluster.clock.monotonic_ms()):
                return at.to_json()
            ends = self._limited(cluster, view, span.starts, ends)
        ids = span.topic_ids if ends is span.ends else _ids_of(span, ends)
        return advance(at, span.starts, ends, ids).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch; none for (x, x), with which 4.0 and 4.1 pass their position.

        Reads storage only if this process has not folded the log up to ``end``: after a restart.

        Raises:
            ReplogError: REPLOG_DATA_LOSS; REPLOG_TAIL_UNDECIDED.
        """
        first, last = LogOffset.from_json(start), LogOffset.from_json(end)
        self._position = last
        self._refused = None
        if start == end:
            return []
        cluster = self._options.store.cluster()
        if self._view is not None and self._view.reaches(last):
            try:
                return self._plan(cluster, first, last, self._view)
            except DataLossError as error:
                _LOG.info("planned again, because the log was trimmed since it was last read: %s", error)
        return self._plan(cluster, first, last, self._look(cluster, last))

    def _plan(self, cluster: Cluster, first: LogOffset, last: LogOffset, view: LogView) -> list[ReadPartition]:
        starts = batch_start(first, last)
        ranges = []
        for key in sorted(last.ends):
            topic_id = last.topic_ids.get(key.topic)
            is_same = first.topic_ids.get(key.topic) == topic_id or first.is_initial
            begin = starts.get(key, 0) if is_same else 0
            if key not in view.bounds or view.handles[key.topic].topic_id != topic_id:
                if begin < last.ends[key]:
                    if key.topic in view.unclear:
                        raise undecided_tail(key.topic)
                    is_new = key not in starts
                    self._losses.report(
                        Loss.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS if is_new else Loss.PARTITIONS_DELETED,
                        f"{key.topic}-{key.partition} was deleted or re-created before its offsets {begin} to "
                        f"{last.ends[key]} (exclusive) were read.",
                    )
                continue
            if begin > last.ends[key]:
                message = offset_changed(key.topic, key.partition, begin, last.ends[key])
                self._losses.report(Loss.PARTITION_OFFSET_CHANGED, message)
                continue
            ranges.append(OffsetRange(key, begin, last.ends[key]))
        ranges = check_ranges(ranges, view, self._losses)
        views = self._options.form.views(self._schema, view.schemas)
        return plan_partitions(cluster, view, ranges, self._options, views)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the position under ``group.id``; Spark calls this for a batch when the next one has data."""
        if self._options.group_id is not None:
            self._show(LogOffset.from_json(end), self._options.group_id)

    def stop(self) -> None:
        """Do nothing: Spark ends this process with a signal, without this call."""

    # -------------------------------------------------------------------------- rows: executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows as Arrow batches. Executor."""
        if not isinstance(partition, ReadPartition):
            return iter(())
        from spark_replog.spark.source.reading import read_partition

        return read_partition(partition, self._options)

    # ---------------------------------------------------------------------------------- internal

    def _show(self, at: LogOffset, group_id: str) -> None:
        """Publish the fully processed position. Does not delay the query."""
        if self._publisher is None:
            from spark_replog.groups.progress_publisher import ProgressPublisher  # few queries need groups

            cluster = self._options.store.cluster()
            self._publisher = ProgressPublisher(cluster, group_id, principal=self._options.principal)
        self._publisher.publish(at.ends, at.topic_ids)

    def _initial_offset(self) -> LogOffset:
        if self._initial is None:
            cluster = self._options.store.cluster()
            view = view_topics(cluster, self._options.subscription, principal=self._options.principal).require_all()
            self._options.form.views(self._schema, view.schemas)  # refused before the first micro-batch is planned
            lookup = offsets_for_times_of(cluster, view)
            ends = self._options.starting.resolve(view.bounds, lookup, cluster.clock.now_ms())
            self._initial = LogOffset(ends, view.topic_ids, origin=ends)
        return self._initial

    def _view_that_fills(self, cluster: Cluster, at: LogOffset) -> LogView | None:
        """Return the last view if its unread rows exceed the limit, so that newer rows cannot make the batch larger.

        Saves a lagging query one storage call per micro-batch. The view and the ACLs are less than ``ACCESS_AGE_MS``
        old. An AvailableNow run always looks, to find out whether it can still reach its end.
        """
        view, now_ms = self._view, cluster.clock.monotonic_ms()
        if view is None or self._is_available_now or now_ms - self._view_ms >= ACCESS_AGE_MS:
            return None
        if cluster.is_access_stale() or view.bounds.keys() != at.ends.keys() or not view.reaches(at):
            return None
        ends = view.high_watermarks
        unread_count = sum(end - at.ends[key] for key, end in ends.items())
        if unread_count < (self._options.limits.rows_min or 0):
            return None
        return view if self._limited(cluster, view, at.ends, ends) != ends else None

    def _look(self, cluster: Cluster, position: LogOffset) -> LogView:
        """Fold and return the log; wait up to a second per ledger for a fold that reaches the known position.

        It is a lower bound: a process that reads fewer roots must not take the difference for data loss.
        """
        view_ms, options = cluster.clock.monotonic_ms(), self._options
        view = view_topics(cluster, options.subscription, position.topic_ids, principal=options.principal)
        behind: dict[LedgerId, dict[tuple[TopicId, int], int]] = {}
        for key, end in position.ends.items():
            handle = view.handles.get(key.topic)
            if handle is None or handle.topic_id != position.topic_ids.get(key.topic) or key not in view.bounds:
                continue
            if view.bounds[key][1] < end:
                behind.setdefault(handle.ledger_id, {})[handle.topic_id, key.partition] = end
        for ledger_id, ends in behind.items():
            cluster.topic_ledger(ledger_id).refresh_until(partial(_reaches, ends))
        if behind:
            view = view_topics(cluster, options.subscription, position.topic_ids, principal=options.principal)
        self._handles.update((handle.topic_id, handle) for handle in view.handles.values())
        options.form.views(self._schema, view.schemas)
        self._view, self._view_ms = view, view_ms
        return view

    def _limited(self, cluster: Cluster, view: LogView, starts: Ends, ends: Ends) -> Ends:
        limits = self._options.limits
        limited = dict(ends)

        def end_within(
            key: TopicPartition, start: int, end: int, most: int, *, is_rows: bool = False
        ) -> tuple[int, int]:
            handle = view.handles[key.topic]

            def look(state: TopicLedgerState) -> tuple[int, int]:
                log = state.topics[handle.topic_id].partitions[key.partition]
                return log.end_within_rows(start, end, most) if is_rows else log.end_within_bytes(start, end, most)

            return cluster.topic_ledger(handle.ledger_id).ask(look)

        if limits.rows_max is not None:
            ledgers = {handle.ledger_id for handle in view.handles.values()}
            if any(cluster.topic_ledger(ledger_id).ask(lambda state: state.has_gaps) for ledger_id in ledgers):
                limited = limit_amount(starts, ends, limits.rows_max, partial(end_within, is_rows=True))
            else:
                limited = limit_rows(starts, ends, limits.rows_max)
        if limits.size_max_bytes is not None:
            by_size = limit_amount(starts, ends, limits.size_max_bytes, end_within)
            limited = {key: min(end, by_size[key]) for key, end in limited.items()}
        return limited


def _ids_of(span: Span, ends: Ends) -> dict[str, TopicId]:
    """Return the ids to record: those of the topics in the offset, and of named topics that are gone."""
    all_topics = {key.topic for key in span.ends}
    topics = {key.topic for key in ends}
    return {name: topic_id for name, topic_id in span.topic_ids.items() if name in topics or name not in all_topics}


def _reaches(ends: Mapping[tuple[TopicId, int], int], state: TopicLedgerState) -> bool:
    """Return whether a fold has all of these partitions up to their ends."""
    for (topic_id, partition), end in ends.items():
        topic = state.topics.get(topic_id)
        if topic is None or partition >= len(topic.partitions) or topic.partitions[partition].high_watermark < end:
            return False
    return True
