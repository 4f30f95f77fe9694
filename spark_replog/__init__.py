"""spark-replog: Kafka's log without Kafka's servers, for Spark 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_replog.client.async_clients import AsyncConsumer, AsyncProducer
    from spark_replog.client.consumer import Consumer
    from spark_replog.client.producer import Producer
    from spark_replog.client.store import Store
    from spark_replog.health.store import TopicDescription
    from spark_replog.ids import TopicPartition
    from spark_replog.log.codec.group_records import OffsetAndMetadata
    from spark_replog.maintenance.compaction import CompactionReport
    from spark_replog.spark.listener import ReplogListener
    from spark_replog.tables.table_sync import SyncReport

    __version__: str


def register(spark: SparkSession) -> None:
    """Make ``format("replog")`` work in a session whose Spark did not find it by itself.

    Not needed if the package is installed. Needs pyspark.
    """
    from spark_replog.spark.data_source import register as register_source

    register_source(spark)


def use_session(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread: a plain Python thread must call this before it writes.

    Without it Spark ends the write with DATA_SOURCE_NOT_FOUND.
    """
    from spark_replog.spark.data_source import use_session as activate

    activate(spark)


def session_conf(spark_version: str | None = None, checkpoint: str = "file") -> dict[str, str]:
    """Return Spark settings that shorten micro-batches, for a new session (docs/performance.md).

    Args:
        spark_version: such as "4.3.0"; None: that of the installed pyspark.
        checkpoint: where checkpoints will be: a path, or its scheme (``file``, ``hdfs``, ``s3a`` ...).

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: not a version of Spark 4.0 or later.
    """
    from spark_replog.config.spark import session_conf as settings

    return settings(spark_version, checkpoint)


def open(path: str, storage_options: Mapping[str, str] | None = None) -> Store:
    """Open a store for plain Python: ``open(path).consumer("orders")`` and so on. See ``spark_replog.client.store``."""
    from spark_replog.client.store import open_store

    return open_store(path, storage_options)


def init(
    path: str,
    brokers: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    racks: Sequence[str] | None = None,
    fsync: bool = True,
) -> Store:
    """Create a store and open it: ``init("data/store", brokers=3)``. See ``spark_replog.client.store.init_store``."""
    from spark_replog.client.store import init_store

    return init_store(path, brokers, storage_options, racks=racks, fsync=fsync)


def create_topic(
    path: str,
    name: str,
    schema: StructType,
    key: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    **settings: Any,
) -> TopicDescription:
    """Create a topic whose rows have a DataFrame's columns: ``create_topic(store, "orders", df.schema, key="id")``.

    Args:
        schema: every type that Arrow carries; nested fields become nullable.
        key: names of the columns that choose the partition; they become NOT NULL.
        storage_options: options of the file system, without the ``storage.`` prefix.
        settings: partitions, replicas, config and so on, as of ``Controller.create_topic``.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: a topic cannot hold a column's type; what ``Controller.create_topic``
            raises.
    """
    from spark_replog.spark.column_types import arrow_schema

    key = (key,) if isinstance(key, str) else key
    return open(path, storage_options).admin().create_topic(name, schema=arrow_schema(schema), key=key, **settings)


def compact(
    spark: SparkSession,
    path: str,
    topic: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    partitions: Sequence[int] | None = None,
    is_eager: bool = False,
) -> CompactionReport:
    """Join small objects of a topic into large ones on Spark's executors: ``replog topic compact`` for large topics.

    Args:
        spark: an active session; each run of at most ``segment.bytes`` is one task.
        storage_options: options of the file system, without the ``storage.`` prefix.
        partitions: None: all.
        is_eager: whether to compact even where it hardly pays.
    """
    from spark_replog.spark.compaction import compact_on_spark

    return compact_on_spark(spark, path, topic, storage_options, partitions=partitions, is_eager=is_eager)


def sync_table(
    path: str,
    topic: str,
    target: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    mode: str | None = None,
    provenance: bool | None = None,
    rows_max: int = 1_000_000,
    file_bytes: int | None = None,
    fail_on_data_loss: bool = True,
    table_options: Mapping[str, str] | None = None,
    group: str | None = None,
) -> SyncReport:
    """Write the rows of a typed topic that are there now into a Delta or Iceberg table, each row exactly once.

    The table holds the position, so call it again, anywhere, to go on. Runs in this process; needs the extra
    ``[delta]`` or ``[iceberg]``.

    Args:
        path: of the store.
        topic: name of a typed topic.
        target: ``delta:PATH`` or ``iceberg:CATALOG.NAMESPACE.TABLE``. Made if it is missing.
        storage_options: options of the store's file system, without the ``storage.`` prefix.
        mode: ``append``, or ``upsert`` for the newest row of each key. None: the table's, of a new one ``append``.
        provenance: whether the table has ``_partition``, ``_offset``, ``_timestamp``. None: the table's, of a new one
            False.
        rows_max: rows of one commit.
        file_bytes: target size of the table's files. None: the table's.
        fail_on_data_loss: False: go on after rows that were deleted before they were synced.
        table_options: options of the table's storage (Delta) or catalog (Iceberg).
        group: under which the position is shown. None: ``table:`` and the target.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        InvalidConfigError: REPLOG_INVALID_OPTION. REPLOG_INVALID_SCHEMA: the topic has bytes, or a type that the table
            cannot hold. REPLOG_TABLE_MISMATCH: the table has other columns, or rows of others.
        ReplogError: UNKNOWN_TOPIC_ID: the topic was made again. REPLOG_DATA_LOSS. REPLOG_TABLE_FAILED: call it again.
            REPLOG_ENVIRONMENT: the extra is not installed.
    """
    from spark_replog.tables.table_sync import TableSync

    job = TableSync(
        open(path, storage_options).cluster,
        topic,
        target,
        mode=mode,
        provenance=provenance,
        rows_max=rows_max,
        file_bytes=file_bytes,
        fail_on_data_loss=fail_on_data_loss,
        table_options=table_options,
        group=group,
    )
    return job.run_once()


_EXPORTS = {
    "AsyncConsumer": "spark_replog.client.async_clients",
    "AsyncProducer": "spark_replog.client.async_clients",
    "Consumer": "spark_replog.client.consumer",
    "Producer": "spark_replog.client.producer",
    "OffsetAndMetadata": "spark_replog.log.codec.group_records",
    "ReplogListener": "spark_replog.spark.listener",
    "TopicPartition": "spark_replog.ids",
}


def __getattr__(name: str) -> Any:
    """Return ``__version__``, a class or ``logs``, imported on first use: every Spark worker imports this module."""
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name == "logs":
        return import_module("spark_replog.logs")
    if name != "__version__":
        raise AttributeError(f"module 'spark_replog' has no attribute '{name}'")
    from importlib import metadata

    try:
        return metadata.version("spark-replog")
    except metadata.PackageNotFoundError:  # imported from a path without metadata, such as --py-files
        return "0+unknown"


__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "OffsetAndMetadata",
    "Producer",
    "ReplogListener",
    "TopicPartition",
    "__version__",
    "compact",
    "create_topic",
    "init",
    "open",
    "register",
    "session_conf",
    "sync_table",
    "use_session",
]


def __dir__() -> list[str]:
    """Return the public names, including those that are imported on first use."""
    return sorted({*globals(), *__all__})
