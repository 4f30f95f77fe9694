"""A store in plain Python: ``spark_replog.open(path)``, and from there administration, producer, consumer, scan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spark_replog.admin.controller import Controller
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.client.topic_scan import Bound, TopicScan
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.cluster.init_store import init_cluster


class Store:
    """An opened store. Thread safe; holds nothing that needs closing.

    Args:
        cluster: what producers and consumers of this store share.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def path(self) -> str:
        """Return the path that it was opened by."""
        return self.cluster.path

    def admin(self) -> Controller:
        """Return what makes, describes, grows and deletes topics."""
        return Controller(self.cluster)

    def producer(self, config: Mapping[str, object] | None = None, **settings: Any) -> Producer:
        """Return a producer; see ``Producer``.

        Args:
            config: dotted names.
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

    def topic(self, name: str) -> Topic:
        """Return a topic to scan; nothing is looked up yet."""
        return Topic(self.cluster, name)


class Topic:
    """One topic of a store, by name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name

    def scan(
        self, start: Bound = "earliest", end: Bound = "latest", partitions: Collection[int] | None = None
    ) -> TopicScan:
        """Return a snapshot of its rows; see ``TopicScan``.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            InvalidConfigError: REPLOG_INVALID_OPTION.
        """
        return TopicScan(self._cluster, self.name, start, end, partitions)


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
    """Make a store and open it; an interrupted call is finished by the same call. As ``replog init``.

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


__all__ = ["Store", "Topic", "init_store", "open_store"]
