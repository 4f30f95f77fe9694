"""The executor's part of a read, the same for streams and batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_replog.consumer.fetch_plan import FetchSlice, plan_fetch
from spark_replog.consumer.fetcher import Fetcher
from spark_replog.errors import ReplogError
from spark_replog.spark.compat import freeze_garbage_once
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions, StoreOptions
from spark_replog.spark.topics import shared_cluster
from spark_replog.storage.brokers import BrokerSet

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
_BrokersKey = tuple[int, str, tuple[str, ...]]
_brokers_by_key: dict[_BrokersKey, BrokerSet] = {}


def worker_brokers(brokers: BrokerSet) -> BrokerSet:
    """Return this process's own set of the same brokers, so that stores stay open between tasks."""
    urls = tuple(brokers.url(broker_id) for broker_id in brokers.broker_ids)
    return _brokers_by_key.setdefault((os.getpid(), brokers.cluster_id, urls), brokers)


def read_partition(partition: ReadPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows as Arrow batches of the declared schema.

    Only when every copy of an object failed is the ledger folded and the rest of the SAME offsets
    planned anew: a repair may have put them elsewhere meanwhile.

    Raises:
        ReplogError: CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR or REPLOG_DATA_LOSS: rows that are due cannot
            be read from anywhere.
    """
    freeze_garbage_once()
    fetcher = Fetcher(worker_brokers(partition.brokers))
    include_headers = options.include_headers
    done = partition.start
    try:
        for batch in fetcher.fetch(partition.slices, include_headers=include_headers):
            done += batch.num_rows
            yield batch
        return
    except ReplogError as error:
        first_error = error
    _LOG.warning("planning %s-%d [%d, %d) anew: %s", partition.topic, partition.partition, done,
                 partition.end, first_error)  # fmt: skip
    try:
        for batch in fetcher.fetch(_plan_again(partition, options.store, done), include_headers=include_headers):
            done += batch.num_rows
            yield batch
        return
    except ReplogError:
        if options.fail_on_data_loss:
            raise
    yield from _read_what_exists(partition, fetcher, done, include_headers=include_headers)


def _plan_again(partition: ReadPartition, store: StoreOptions, start: int) -> tuple[FetchSlice, ...]:
    cluster = shared_cluster(store)
    ledger = cluster.topic_ledger(partition.ledger_id)
    ledger.refresh()
    with ledger.lock:
        return plan_fetch(ledger.state, partition.topic, partition.topic_id, partition.partition, start, partition.end)


def _read_what_exists(
    partition: ReadPartition, fetcher: Fetcher, start: int, *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the sections from ``start`` on that some root still holds; say which offsets are skipped."""
    for item in partition.slices:
        done = max(start, item.start_offset)
        if item.end_offset <= start:
            continue
        try:
            for batch in fetcher.fetch((item,), include_headers=include_headers):
                skipped = max(0, start - item.start_offset)
                if batch.num_rows > skipped:
                    yield batch.slice(skipped)
                    done += batch.num_rows - skipped
        except ReplogError as error:
            _LOG.warning("[REPLOG_DATA_LOSS] offsets %d to %d of %s-%d cannot be read and are skipped: %s",
                         done, item.end_offset, partition.topic, partition.partition, error)  # fmt: skip
