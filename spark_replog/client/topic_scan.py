"""A snapshot of a topic as Arrow: bounds fixed when it is made, read as often as wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa

from spark_replog.client.record_fetcher import ConsumerMetrics, RecordFetcher
from spark_replog.cluster.cluster import Cluster
from spark_replog.config import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError
from spark_replog.ids import TopicPartition
from spark_replog.read.rows import read_schema

Bound = str | int | Mapping[int, int]
"""``earliest``, ``latest``, an offset for every partition, or offsets by partition."""


class TopicScan:
    """The rows [start, end) of a topic's partitions, as the newest fold had them when this was made.

    Args:
        cluster: the opened store.
        topic: its name.
        start: first offset of each partition; below the log start it is the log start.
        end: exclusive end; never beyond the high watermark.
        partitions: None: all.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """

    def __init__(
        self, cluster: Cluster, topic: str, start: Bound, end: Bound, partitions: Collection[int] | None = None
    ) -> None:
        self._cluster = cluster
        self.spans: dict[TopicPartition, tuple[int, int]] = {}
        ledger, found = cluster.topic_state(cluster.lookup(topic))
        with ledger.lock:
            bounds = [(each.log_start_offset, each.high_watermark) for each in found.partitions]
        for number in range(len(bounds)) if partitions is None else sorted(set(partitions)):
            if not 0 <= number < len(bounds):
                raise NotFoundError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic '{topic}' has partitions 0 to {len(bounds) - 1}. Scan one of them.",
                    partition=number,
                )
            first, last = (_offset(each, number, *bounds[number]) for each in (start, end))
            self.spans[TopicPartition(topic, number)] = (first, max(first, last))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, partition by partition, in bounded memory.

        Columns: key, value, topic, partition, offset, timestamp, timestampType, headers.

        Raises:
            ReplogError: REPLOG_DATA_LOSS, TOPIC_AUTHORIZATION_FAILED, and what ``Fetcher.fetch`` raises.
        """
        fetcher = RecordFetcher(self._cluster, ConsumerConfig(), ConsumerMetrics())
        spans = {key: span for key, span in self.spans.items() if span[0] < span[1]}
        for _, batch in fetcher.scan(spans):
            yield batch

    def to_arrow(self) -> pa.Table:
        """Return the rows as one table; memory is that of the rows."""
        return pa.Table.from_batches(list(self.to_batches()), schema=read_schema(True))

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; needs pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a polars DataFrame; needs polars."""
        return import_module("polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a DuckDB relation; needs duckdb.

        Args:
            connection: of DuckDB; None: its default one.
        """
        return (connection or import_module("duckdb")).from_arrow(self.to_arrow())


def _offset(bound: Bound, partition: int, first: int, last: int) -> int:
    if isinstance(bound, Mapping):
        if partition not in bound:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION, f"no offset is given for partition {partition}. Name every partition."
            )
        bound = bound[partition]
    if isinstance(bound, int):
        return min(max(bound, first), last)
    if bound not in ("earliest", "latest"):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION, f"'{bound}' is no place in a log. Give earliest, latest, or offsets."
        )
    return first if bound == "earliest" else last
