"""A small store whose roots can fail, producers for it, and what a reader would see."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_replog.admin.controller import Controller
from spark_replog.client.producer import Producer
from spark_replog.client.producer_metadata import ProducerMetadata
from spark_replog.client.sender_thread import SenderThread
from spark_replog.client.transactions import TransactionCoordinator
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.log.codec.data_object import decode_section
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.paths import data_key
from spark_replog.write.sender import Sender

FAST = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=300, commit_wait_ms=5)
QUICK = {"linger.ms": 1, "retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "replica.grace.ms": 20}


class Shop:
    """One store and everything that a test opens on it."""

    def __init__(self, folder: Path, wrap: Any, brokers: int = 1) -> None:
        self.path = str(folder / "store")
        init_cluster(self.path, brokers, fsync=False)
        self._wrap = wrap
        self.producers: list[Producer] = []
        self.cluster = self.open()
        self.brokers = self.cluster.brokers
        self.controller = Controller(self.cluster)

    def open(self) -> Cluster:
        """Return the store as another process would see it."""
        return Cluster(self._wrap(BrokerSet.open(self.path, {})), path=self.path, storage_options={}, config=FAST)

    def topic(self, name: str = "orders", partitions: int | None = 1, **more: Any) -> str:
        self.controller.create_topic(name, partitions, **more)
        return name

    def producer(self, cluster: Cluster | None = None, **settings: Any) -> Producer:
        given = QUICK | {name.replace("__", "."): value for name, value in settings.items()}
        made = Producer(cluster or self.cluster, given)
        self.producers.append(made)
        return made

    def close(self) -> None:
        for producer in self.producers:
            producer.close(5)

    def rows(self, topic: str = "orders", partition: int = 0) -> list[dict[str, Any]]:
        """Return what a reader sees of a partition, in order of offsets."""
        reader = self.open()
        handle = reader.lookup(topic)
        ledger, state = reader.topic_state(handle)
        with ledger.lock:
            end = state.partitions[partition].high_watermark
            sections = ledger.state.sections(handle.topic_id, partition, 0, end)
        read_rows: list[dict[str, Any]] = []
        for section in sections:
            assert section.base_offset == len(read_rows)
            item = section.object
            body = item.inline or reader.brokers.store(min(item.holders)).get(data_key(handle.ledger_id, *item.id))
            part = bytes(body)[section.start_byte : section.start_byte + section.size_bytes]
            batches = decode_section(part, section.crc32c, section.row_count, item.has_headers)
            read_rows += pa.Table.from_batches(batches).to_pylist()
        assert len(read_rows) == end
        return read_rows

    def values(self, topic: str = "orders", partition: int = 0) -> list[bytes]:
        return [row["value"] for row in self.rows(topic, partition)]


def metadata_of(producer: Producer) -> ProducerMetadata:
    """Return the part that knows the topics."""
    return producer._parts.metadata


def sender_of(producer: Producer) -> Sender:
    """Return the part that puts objects."""
    return producer._parts.sender


def thread_of(producer: Producer) -> SenderThread:
    """Return the thread that runs the sender."""
    return producer._parts.thread


def transactions_of(producer: Producer) -> TransactionCoordinator:
    """Return the part that knows what a transaction may do now."""
    manager = producer._transactions
    assert manager is not None
    return manager


@contextmanager
def held_puts(shop: Shop) -> Iterator[threading.Event]:
    """Let the puts of data on the first root wait for the end of this block; the event is set once one has begun."""
    store = shop.brokers.faulty[0]
    create, begun, released = store.create, threading.Event(), threading.Event()

    def held(key: str, *data: Any, **how: Any) -> Any:
        if "/data/" in key:
            begun.set()
            assert released.wait(60)
        return create(key, *data, **how)

    store.create = held
    try:
        yield begun
    finally:
        store.create = create
        released.set()
