"""The executor's part of a read, the same for streams and batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from spark_replog.errors import DataLossError, ReplogError, command_line
from spark_replog.read.batch_joiner import join_small
from spark_replog.read.fetch_plan import FetchRange, FetchSlice, in_log_order, plan_fetches
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import log_column
from spark_replog.spark.compat import freeze_garbage
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.source.discovery import undecided_tail
from spark_replog.storage.brokers import shared_brokers

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


def read_partition(partition: ReadPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows as Arrow batches of the declared schema.

    The ledger is folded only after a read failed on every copy of an object. Then the SAME remaining offsets
    are planned again: compaction or a repair may have moved them.

    With ``failOnDataLoss=false``, offsets whose loss is proved are skipped and logged. An outage always fails the task.

    Raises:
        DataLossError: CORRUPT_MESSAGE or REPLOG_DATA_LOSS: rows are lost.
        ReplogError: rows cannot be read now; REPLOG_DESERIALIZATION: ``mode=FAILFAST``, and a value does not fit.
    """
    freeze_garbage()
    batches = _TaskRead(partition, options).batches()
    return options.form.decoded(batches if len(partition.ranges) == 1 else join_small(batches))


class _TaskRead:
    """One task's reading. Tracks how far each partition was read, so that the rest can be planned again."""

    def __init__(self, partition: ReadPartition, options: SourceOptions) -> None:
        self._partition = partition
        self._options = options
        ratio = options.hedge_ratio
        self._fetcher = Fetcher(shared_brokers(partition.brokers), quota=partition.quota, hedge_ratio=ratio)
        self._done: dict[tuple[str, int], int] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        slices, is_new = self._partition.slices, True
        while is_new:  # each time that compaction has moved rows that were planned
            try:
                yield from self._fetch(slices)
                break
            except ReplogError as error:
                _LOG.warning("the rest of the task is planned again: %s", error)
                before = {piece.object.id for piece in slices}
                slices = self._plan_again(error)
                is_new = not {piece.object.id for piece in slices} <= before
        else:
            yield from self._fetch(slices) if self._options.fail_on_data_loss else self._fetch_existing(slices)
        waited_ms, quota = self._fetcher.stats.throttle_time_ms, self._partition.quota
        if waited_ms and quota is not None:  # a task has no metrics: only this line explains why it is slow
            _LOG.warning(
                "this task waited %d ms: its reads are above its reader's consumer_byte_rate of %d. See: %s",
                waited_ms, quota.limit_per_second, command_line(self._options.store.path, "quota", "describe"),
            )  # fmt: skip

    def _fetch(self, slices: Iterable[FetchSlice]) -> Iterator[pa.RecordBatch]:
        form, views = self._options.form, self._partition.views
        by_topic = {item.topic: views.get(item.topic_id) for item in self._partition.ranges}
        headers = form.reads_headers(is_typed=bool(views))
        filters = self._partition.filters
        for batch in self._fetcher.fetch(slices, include_headers=headers, views=views, filters=filters):
            topic, partition = log_column(batch, "topic")[0].as_py(), log_column(batch, "partition")[0].as_py()
            self._done[topic, partition] = log_column(batch, "offset")[-1].as_py() + 1
            view = by_topic[topic]
            if view is None:
                yield form.of_bytes(batch)
            else:
                yield from form.of_typed(batch, view)

    def _plan_again(self, outage: ReplogError) -> tuple[FetchSlice, ...]:
        """Fold the ledgers and plan the offsets that are not read yet.

        Offsets that a complete fold no longer has keep the slices of the first plan: their bytes may still exist. The
        outage names the roots, so it is raised if the store does not answer either.

        Raises:
            ReplogError: REPLOG_DATA_LOSS: such offsets, with ``failOnDataLoss``; or the store does not answer.
        """
        try:
            cluster = self._options.store.cluster()
            for ledger_id in {item.ledger_id for item in self._partition.ranges}:
                cluster.topic_ledger(ledger_id).refresh()
        except ReplogError as error:
            if isinstance(outage, DataLossError):
                raise
            raise outage from error
        quota, ratio = self._partition.quota, self._options.hedge_ratio
        self._fetcher = Fetcher(shared_brokers(cluster.brokers), quota=quota, hedge_ratio=ratio)
        plans = []
        for item in self._partition.ranges:
            rest = item._replace(start_offset=max(item.start_offset, self._done.get((item.topic, item.partition), 0)))
            ledger = cluster.topic_ledger(item.ledger_id)
            try:
                (plan,) = ledger.ask(partial(plan_fetches, [rest]))
            except ReplogError as error:
                if ledger.is_tail_unclear:
                    raise undecided_tail(item.topic) from error
                if self._options.fail_on_data_loss:
                    raise
                plan = self._first_plan(rest)
            plans.append(plan)
        return in_log_order(plans)

    def _first_plan(self, rest: FetchRange) -> tuple[FetchSlice, ...]:
        """Return the driver's slices of a range."""
        return tuple(
            piece._replace(start_offset=max(rest.start_offset, piece.start_offset))
            for piece in self._partition.slices
            if (piece.topic_id, piece.partition) == (rest.topic_id, rest.partition)
            and rest.start_offset < piece.end_offset
            and piece.start_offset < rest.end_offset
        )

    def _fetch_existing(self, slices: Iterable[FetchSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a root still holds; log the skipped offsets. Raises where no loss is proved."""
        for item in slices:
            try:
                yield from self._fetch((item,))
            except DataLossError as error:
                start = max(self._done.get((item.topic, item.partition), 0), item.start_offset)
                _LOG.warning("[REPLOG_DATA_LOSS] offsets %d to %d (exclusive) of %s-%d are lost and skipped: %s",
                             start, item.end_offset, item.topic, item.partition, error)  # fmt: skip
