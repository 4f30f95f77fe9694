"""The executor's part of a read, the same for streams and batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spark_replog.errors import ReplogError, command_line
from spark_replog.log.codec.data_object import join_batches
from spark_replog.read.fetch_plan import FetchSlice, in_log_order, plan_fetch
from spark_replog.read.fetcher import BATCH_SIZE_BYTES_MIN, Fetcher
from spark_replog.spark.compat import freeze_garbage_once
from spark_replog.spark.messages import ReadPartition, ReadRange
from spark_replog.spark.options import SourceOptions
from spark_replog.storage.brokers import shared_brokers

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


def read_partition(partition: ReadPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows as Arrow batches of the declared schema.

    Only when every copy of an object failed is the ledger folded and the rest of the SAME offsets
    planned anew: a repair may have put them elsewhere meanwhile.

    Raises:
        ReplogError: CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR or REPLOG_DATA_LOSS: rows that are due cannot
            be read from anywhere.
    """
    freeze_garbage_once()
    batches = _TaskRead(partition, options).batches()
    return batches if len(partition.ranges) == 1 else _join_small(batches)


class _TaskRead:
    """One task's reading: where each partition stands, so that the rest can be planned anew."""

    def __init__(self, partition: ReadPartition, options: SourceOptions) -> None:
        self._partition = partition
        self._options = options
        self._fetcher = Fetcher(shared_brokers(partition.brokers), quota=partition.quota)
        self._done: dict[tuple[str, int], int] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._fetch(self._partition.slices)
            return
        except ReplogError as error:
            _LOG.warning("planning %s anew: %s", self._rest(), error)
        try:
            yield from self._fetch(self._plan_again())
            return
        except ReplogError:
            if self._options.fail_on_data_loss:
                raise
        yield from self._what_exists()

    def _fetch(self, slices: Iterable[FetchSlice]) -> Iterator[pa.RecordBatch]:
        for batch in self._fetcher.fetch(slices, include_headers=self._options.include_headers):
            key = batch.column(2)[0].as_py(), batch.column(3)[0].as_py()
            self._done[key] = batch.column(4)[0].as_py() + batch.num_rows
            yield batch
        waited_ms, quota = self._fetcher.stats.throttle_time_ms, self._partition.quota
        if waited_ms and quota is not None:  # a task has no metrics: this line is all that tells why it is slow
            _LOG.warning(
                "this task waited %d ms: its reads are above its reader's consumer_byte_rate of %d. See: %s",
                waited_ms, quota.limit_per_second, command_line(self._options.store.path, "quota", "describe"),
            )  # fmt: skip

    def _rest(self) -> list[ReadRange]:
        """Return what is still to be read."""
        rest = [
            item._replace(start=max(item.start, self._done.get((item.topic, item.partition), 0)))
            for item in self._partition.ranges
        ]
        return [item for item in rest if item.start < item.end]

    def _plan_again(self) -> tuple[FetchSlice, ...]:
        cluster = self._options.store.cluster()
        plans = []
        for ledger_id in {item.ledger_id for item in self._partition.ranges}:
            cluster.topic_ledger(ledger_id).refresh()
        for item in self._rest():
            ledger = cluster.topic_ledger(item.ledger_id)
            with ledger.lock:
                plans.append(plan_fetch(ledger.state, item.topic, item.topic_id, item.partition, item.start, item.end))
        return in_log_order(plans)

    def _what_exists(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest of the sections that some root still holds; say which offsets are skipped."""
        for item in self._partition.slices:
            start = max(self._done.get((item.topic, item.partition), 0), item.start_offset)
            if start >= item.end_offset:
                continue
            try:
                yield from self._fetch((item._replace(start_offset=start),))
            except ReplogError as error:
                _LOG.warning("[REPLOG_DATA_LOSS] offsets %d to %d of %s-%d cannot be read and are skipped: %s",
                             start, item.end_offset, item.topic, item.partition, error)  # fmt: skip


def _join_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: what Spark does per batch costs more than the copy."""
    parts: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        parts.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= BATCH_SIZE_BYTES_MIN:
            yield join_batches(parts)
            parts, size_bytes = [], 0
    if parts:
        yield join_batches(parts)
