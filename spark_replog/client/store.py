"""A store in plain Python: ``spark_replog.open(path)`` gives access to administration, producers, consumers, scans."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from spark_replog.admin.controller import Controller
from spark_replog.client.async_clients import AsyncConsumer, AsyncProducer
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.client.record_fetcher import ConsumerMetrics, RecordFetcher
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, unknown_partition
from spark_replog.ids import TopicPartition
from spark_replog.log.row_schema import RowSchema
from spark_replog.log_position import offset_between, other_meaning, parse_position
from spark_replog.read.batch_joiner import join_small
from spark_replog.read.rows import BYTES, LOG_COLUMNS, RowView, read_schema
from spark_replog.storage.call_counter import NamedCalls


class Store:
    """An opened store. Thread-safe; needs no closing.

    Args:
        cluster: shared by producers and consumers of this store.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def path(self) -> str:
        """Return the path that it was opened by."""
        return self.cluster.path

    def admin(self) -> Controller:
        """Return the controller, which creates, describes, grows and deletes topics."""
        return Controller(self.cluster)

    def producer(self, config: Mapping[str, object] | None = None, **settings: Any) -> Producer:
        """Return a producer; see ``Producer``.

        Args:
            settings: the same as keywords, dots as underscores.
        """
        return Producer(self.cluster, config, **settings)

    def consumer(
        self,
        *topics: str,
        config: Mapping[str, object] | None = None,
        group: str | None = None,
        **settings: object,
    ) -> Consumer:
        """Return a consumer; see ``Consumer``."""
        return Consumer(self.cluster, *topics, config=config, group=group, **settings)

    def async_producer(self, config: Mapping[str, object] | None = None, **settings: Any) -> AsyncProducer:
        """Return a producer for asyncio: ``async with store.async_producer() as producer``."""
        return AsyncProducer(self.cluster, config, **settings)

    def async_consumer(self, *topics: str, **settings: Any) -> AsyncConsumer:
        """Return a consumer for asyncio: ``async with store.async_consumer("orders") as consumer``."""
        return AsyncConsumer(self.cluster, *topics, **settings)

    def topic(self, name: str) -> Topic:
        """Return a topic to scan; nothing is looked up yet."""
        return Topic(self.cluster, name)

    def storage_calls(self) -> NamedCalls:
        """Return this process's calls to the roots so far: calls, bytes and retries by broker, kind and purpose."""
        return self.cluster.brokers.name_calls(self.cluster.brokers.calls.read())


class Topic:
    """One topic of a store, by name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name

    def scan(
        self,
        start: Bound = "earliest",
        end: Bound = "latest",
        partitions: Collection[int] | None = None,
        columns: Collection[str] | None = None,
    ) -> TopicScan:
        """Return a snapshot of its rows; see ``TopicScan``.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            InvalidConfigError: REPLOG_INVALID_OPTION.
        """
        return TopicScan(self._cluster, self.name, start, end, partitions, columns)


def open_store(path: StorePath, storage_options: Mapping[str, str] | None = None) -> Store:
    """Open a store; the stores of one path and process share what they have folded.

    Args:
        path: a parent directory of roots, or the roots, comma separated.
        storage_options: options of the file system, without the ``storage.`` prefix.

    Raises:
        NotFoundError: REPLOG_STORE_NOT_INITIALISED.
        InvalidConfigError: REPLOG_CLUSTER_MISMATCH.
    """
    return Store(Cluster.shared(path, storage_options))


def init_store(
    path: StorePath,
    brokers: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    racks: Sequence[str] | None = None,
    fsync: bool = True,
) -> Store:
    """Create a store and open it, as ``replog init``. Repeating an interrupted call finishes it.

    Args:
        path: a parent directory, which gets ``broker-0`` and so on, or the roots, comma separated.
        brokers: number of roots in a parent directory, 1 to 1,000; default 1. For a list, its length.
        storage_options: as ``open_store``.
        racks: one per broker.
        fsync: False for throw-away stores: a power failure may lose acknowledged rows.

    Raises:
        ReplogError: REPLOG_STORE_EXISTS: nothing was written; REPLOG_STORE_LIES: a root's create-if-absent is broken.
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """
    made = init_cluster(path, brokers, storage_options, fsync=fsync, racks=racks)
    return open_store(made.path, storage_options)


Bound = str | int | Mapping[int, int | str]
"""A position for every partition, or by partition: ``earliest``, ``latest``, ``end-N`` (N rows before the end), or an
offset, which is 0 or more. As in Kafka, -2 is ``earliest`` and -1 is ``latest``."""


class TopicScan:
    """The rows [start, end) of a topic's partitions, in the newest fold when this object was created.

    Args:
        start: first offset of each partition; raised to the log start offset if below it.
        end: exclusive end; lowered to the high watermark if above it.
        partitions: None: all.
        columns: the only columns to produce, in the order of ``to_batches``; None: all. Of a typed topic in the given
            order; the log's own may be named too: ``_replog_topic``, ``_replog_partition``, ``_replog_offset``,
            ``_replog_timestamp``, ``_replog_timestamp_type``, ``_replog_headers``.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        InvalidConfigError: REPLOG_INVALID_OPTION.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        start: Bound,
        end: Bound,
        partitions: Collection[int] | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self.spans: dict[TopicPartition, tuple[int, int]] = {}
        self._handle = handle = cluster.newest_topics([topic])[topic]
        ledger, _ = cluster.folded_topic(handle)
        with ledger.lock:
            schema = ledger.state.topics[handle.topic_id].schema
            partition_states = ledger.state.topics[handle.topic_id].partitions
            bounds = [(partition.log_start_offset, partition.high_watermark) for partition in partition_states]
        for number in range(len(bounds)) if partitions is None else sorted(set(partitions)):
            if not 0 <= number < len(bounds):
                raise unknown_partition(topic, number, len(bounds))
            first, last = (_offset(bound, number, *bounds[number]) for bound in (start, end))
            self.spans[TopicPartition(topic, number)] = (first, max(first, last))
        self._columns, self._view = _scanned(schema, columns)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in bounded memory: a batch is of one partition, whose rows come in the order of their offsets.

        Columns: key, value, topic, partition, offset, timestamp, timestampType, headers. Of a typed topic those of its
        schema when the scan was made, and no others but those asked for.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted, even if another has its name now.
            ReplogError: REPLOG_DATA_LOSS, TOPIC_AUTHORIZATION_FAILED, and as ``Fetcher.fetch``.
        """
        views = {self._handle.topic_id: self._view}
        fetcher = RecordFetcher(self._cluster, ConsumerConfig(), ConsumerMetrics(), views=views)
        spans = {key: span for key, span in self.spans.items() if span[0] < span[1]}
        for _, batch, _ in fetcher.scan(spans, {self._handle.name: self._handle}):
            if batch.num_rows:
                yield batch.select(self._columns)

    def to_arrow(self) -> pa.Table:
        """Return the rows as one table, all in memory."""
        schema = pa.schema([self._view.read_schema(True).field(name) for name in self._columns])
        return pa.Table.from_batches(list(join_small(self.to_batches())), schema=schema)

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


def _scanned(schema: RowSchema | None, columns: Collection[str] | None) -> tuple[list[str], RowView]:
    """Return the columns that a scan produces, and what it reads for them."""
    names = read_schema(True).names if schema is None else [*schema.names, *LOG_COLUMNS]
    if columns is not None and (not columns or isinstance(columns, str) or not set(columns) <= set(names)):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION, f"Invalid columns {columns!r}: name some of {', '.join(names)}."
        )
    if schema is None:
        return [name for name in names if columns is None or name in columns], BYTES
    wanted = schema.names if columns is None else list(dict.fromkeys(columns))
    return wanted, RowView(schema, tuple(name for name in wanted if name not in LOG_COLUMNS))


def _offset(bound: Bound, partition: int, first: int, last: int) -> int:
    if isinstance(bound, Mapping):
        if partition not in bound:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION, f"no offset is given for partition {partition}. Name every partition."
            )
        bound = bound[partition]
    position = parse_position(bound)
    if position is None:
        other = other_meaning(bound)
        hint = "" if other is None else f" For the last {other.removeprefix('end-')} rows: {other!r}."
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"Invalid bound {bound!r}: give earliest, latest, end-N, or offsets, which are 0 or more.{hint}",
        )
    return min(max(offset_between(position, first, last), first), last)
