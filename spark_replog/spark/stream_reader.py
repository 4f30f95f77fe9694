"""``spark.readStream``: offsets in one long-lived process per query, rows in executors.

Call order, which calls repeat and what Spark forgets at a crash differ between 4.0 and 4.3; every
rule here that looks roundabout answers one of those facts, which is named beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_replog.coordinator.cluster import Cluster
from spark_replog.ids import TopicPartition
from spark_replog.log.topic_state import TopicLedgerState
from spark_replog.spark.compat import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    row_limit_of,
)
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.offsets import Ends, LogOffset, advance, batch_start
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.read_plan import check_ranges, plan_partitions
from spark_replog.spark.splitting import OffsetRange, limit_ends
from spark_replog.spark.topics import LogView, data_loss, shared_cluster, view_topics

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets of one query. Attributes live as long as the query's process; ``read`` sees none of them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: LogOffset | None = None
        self._position: LogOffset | None = None
        """Spark 4.0 and 4.1 only: where the query stands; they ask for the latest offset without it."""
        self._head: LogOffset | None = None
        self._is_available_now = False
        self._target: Ends | None = None
        self._warned_limit = False

    # ------------------------------------------------------------------ offsets: the query's process

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins; 4.2 asks twice and must hear the same."""
        return self._initial_offset().to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit per micro-batch. Spark 4.2 and up."""
        limit = self._options.row_limit
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run at the first ``latestOffset``. Spark 4.2 and up."""
        self._is_available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the high watermarks last seen, for progress; costs nothing. Spark 4.2 and up."""
        return None if self._head is None else self._head.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` itself where nothing is new.

        Args:
            start: the end of the batch before; not given by Spark 4.0 and 4.1.
            limit: Spark's read limit; not given by them either.

        Raises:
            ReplogError: UNKNOWN_TOPIC_OR_PARTITION, REPLOG_DATA_LOSS, REPLOG_NO_QUORUM.
        """
        at = self._position or self._initial_offset() if start is None else LogOffset.from_json(start)
        cluster = shared_cluster(self._options.store)
        view = self._view(cluster, at)
        self._head = LogOffset(view.high_watermarks, view.topic_ids)
        kept = self._check_topics(at, view)
        starts = {key: self._start_of(key, kept, view, at) for key in view.bounds}
        ends = {key: max(end, starts[key]) for key, end in view.high_watermarks.items()}
        if not view.bounds:
            return at.to_json()  # an empty map would make every partition new when a topic comes back
        ends = self._up_to_target(starts, ends)
        row_limit = row_limit_of(limit, self._options.row_limit, start_given=start is not None)
        if row_limit is not None:
            self._warn_of_old_spark()
            ends = limit_ends(starts, ends, row_limit)
        return advance(at, ends, view.topic_ids).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch; none for (x, x), by which 4.0 and 4.1 tell where they stand.

        Raises:
            ReplogError: REPLOG_DATA_LOSS.
        """
        first, last = LogOffset.from_json(start), LogOffset.from_json(end)
        self._position = last
        if start == end:
            return []
        cluster = shared_cluster(self._options.store)
        view = self._view(cluster, last)
        starts = batch_start(first, last)
        ranges = []
        for key in sorted(last.ends):
            topic_id = last.topic_ids.get(key.topic)
            if key not in view.bounds or view.handles[key.topic].topic_id != topic_id:
                data_loss(
                    f"{key.topic}-{key.partition} was deleted or re-created while offsets up to "
                    f"{last.ends[key]} of it were still to be read.",
                    fail=self._options.fail_on_data_loss,
                )
                continue
            same = first.is_initial or first.topic_ids.get(key.topic) == topic_id
            begin = starts.get(key, view.bounds[key][0]) if same else view.bounds[key][0]
            if begin > last.ends[key]:
                data_loss(
                    f"the offset of {key.topic}-{key.partition} was changed from {begin} to {last.ends[key]}: "
                    "the position was set too high.",
                    fail=self._options.fail_on_data_loss,
                )
                continue
            ranges.append(OffsetRange(key, begin, last.ends[key]))
        ranges = check_ranges(ranges, view, fail=self._options.fail_on_data_loss)
        return plan_partitions(cluster, view, ranges, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint is the position: nothing to keep here."""

    def stop(self) -> None:
        """Hold nothing that needs closing: Spark ends this process with a signal, without this call."""

    # -------------------------------------------------------------------------- rows: executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows as Arrow batches. Executor."""
        if not isinstance(partition, ReadPartition):
            return iter(())
        from spark_replog.spark.reading import read_partition

        return read_partition(partition, self._options)

    # ---------------------------------------------------------------------------------- internal

    def _initial_offset(self) -> LogOffset:
        if self._initial is None:
            view = view_topics(shared_cluster(self._options.store), self._options.subscription).require_all()
            ends = self._options.starting.resolve(view.bounds)
            self._initial = LogOffset(ends, view.topic_ids, origin=ends)
        return self._initial

    def _view(self, cluster: Cluster, known: LogOffset) -> LogView:
        """Return the view; wait up to a second for a fold that holds what the checkpoint already names.

        A position that was given out is a floor: a process that reaches fewer roots than the one that
        gave it must not take the difference for data loss.
        """
        view = view_topics(cluster, self._options.subscription)
        for key, end in known.ends.items():
            handle = view.handles.get(key.topic)
            if handle is None or handle.topic_id != known.topic_ids.get(key.topic) or key not in view.bounds:
                continue
            if view.bounds[key][1] < end:
                cluster.topic_ledger(handle.ledger_id).refresh(_reaches(handle.topic_id, key, end))
                return view_topics(cluster, self._options.subscription)
        return view

    def _check_topics(self, at: LogOffset, view: LogView) -> Ends:
        """Return the positions that still mean something, having complained about the others."""
        fail = self._options.fail_on_data_loss
        for name, topic_id in at.topic_ids.items():
            if name in view.missing and fail:
                raise view.missing[name]
            if name not in view.handles:
                data_loss(f"topic '{name}' was deleted.", fail=fail)
            elif view.handles[name].topic_id != topic_id:
                data_loss(f"topic '{name}' was deleted and created again: this is another topic.", fail=fail)
        for name, error in view.missing.items():
            if name not in at.topic_ids:
                raise error
        topic_ids = view.topic_ids
        return {key: end for key, end in at.ends.items() if topic_ids.get(key.topic) == at.topic_ids.get(key.topic)}

    def _start_of(self, key: TopicPartition, kept: Mapping[TopicPartition, int], view: LogView, at: LogOffset) -> int:
        """Return where the next batch reads a partition from; one not seen before: from its beginning."""
        if key in kept:
            return kept[key]
        log_start = view.bounds[key][0]
        if log_start > 0 and at.topic_ids.get(key.topic) in (None, view.handles[key.topic].topic_id):
            data_loss(
                f"{key.topic}-{key.partition} is new to this query and begins at offset {log_start}, not 0.",
                fail=self._options.fail_on_data_loss,
            )
        return log_start

    def _up_to_target(self, starts: Ends, ends: Ends) -> Ends:
        """Return the ends, not beyond those that the first call of an AvailableNow run saw."""
        if not self._is_available_now:
            return ends
        if self._target is None:
            self._target = dict(ends)
        return {key: max(starts[key], min(end, self._target[key])) for key, end in ends.items() if key in self._target}

    def _warn_of_old_spark(self) -> None:
        if HAS_READ_LIMITS or self._warned_limit:
            return
        self._warned_limit = True
        _LOG.warning(
            "Spark before 4.2 knows no limits for Python sources: with Trigger.AvailableNow or Once, "
            "maxOffsetsPerTrigger ends the run after one limited batch. Leave it out there."
        )


def _reaches(topic_id: str, key: TopicPartition, end: int) -> Any:
    def reached(state: TopicLedgerState) -> bool:
        topic = state.topics.get(topic_id)
        return (
            topic is not None
            and key.partition < len(topic.partitions)
            and topic.partitions[key.partition].high_watermark >= end
        )

    return reached
