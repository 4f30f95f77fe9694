"""One group of Kafka's clients and the product's consumers: each record once, and nobody stops when a gateway does."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from spark_replog.client.consumer import Consumer
from spark_replog.client.store import Store
from spark_replog.cluster.cluster import Cluster
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.log.codec.group_records import GroupMetadata
from tests.gateways import RunningGateway
from tests.waiting import SECONDS_MAX, wait_until

PARTITIONS = 8
TIMES = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}


@pytest.fixture
def unclosed():
    """Allow the sockets that kafka-python leaves to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Reader:
    """A consumer on a thread: what it has, and what it read."""

    def __init__(self, run: Callable[[Reader], None]) -> None:
        self.owned: list[int] = []
        self.rows: list[tuple[int, int]] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[Reader], None]) -> None:
        try:
            run(self)
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self.ended.set()
        self._thread.join(SECONDS_MAX)
        assert self.error is None, self.error


def by_own(store: Store, group: str) -> Callable[[Reader], None]:
    def run(reader: Reader) -> None:
        config = {"group.id": group, "auto.offset.reset": "earliest", **TIMES}
        with Consumer(store.cluster, config=config) as consumer:
            consumer.subscribe(["orders"])
            while not reader.ended.is_set():
                reader.rows += [(record.partition, record.offset) for record in consumer.poll(50)]
                reader.owned = sorted(key.partition for key in consumer.assignment())

    return run


def by_confluent(address: str, group: str, **more: Any) -> Callable[[Reader], None]:
    def run(reader: Reader) -> None:
        base = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
        consumer = confluent_kafka.Consumer({**base, **TIMES, **more})
        consumer.subscribe(["orders"])
        while not reader.ended.is_set():
            for message in consumer.consume(100, 0.05):
                if message.error() is None:
                    reader.rows.append((message.partition(), message.offset()))
            reader.owned = sorted(key.partition for key in consumer.assignment())
        consumer.close()

    return run


def by_kafka_python(address: str, group: str) -> Callable[[Reader], None]:
    def run(reader: Reader) -> None:
        consumer = kafka.KafkaConsumer(
            "orders", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest",
            session_timeout_ms=10_000, heartbeat_interval_ms=500,
        )  # fmt: skip
        while not reader.ended.is_set():
            for rows in consumer.poll(50).values():
                reader.rows += [(row.partition, row.offset) for row in rows]
            reader.owned = sorted(key.partition for key in consumer.assignment())
        consumer.close()

    return run


def by_aiokafka(address: str, group: str) -> Callable[[Reader], None]:
    async def consume(reader: Reader) -> None:
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest",
            session_timeout_ms=10_000, heartbeat_interval_ms=500,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )  # fmt: skip
        await consumer.start()
        while not reader.ended.is_set():
            for rows in (await consumer.getmany(timeout_ms=50)).values():
                reader.rows += [(row.partition, row.offset) for row in rows]
            reader.owned = sorted(key.partition for key in consumer.assignment())
        await consumer.stop()

    return lambda reader: asyncio.run(consume(reader))


def share(readers: list[Reader]) -> bool:
    """Return whether each reader has partitions, and all together have each once."""
    for reader in readers:
        assert reader.error is None, reader.error
    owned = [reader.owned for reader in readers]
    return all(owned) and sorted(number for numbers in owned for number in numbers) == list(range(PARTITIONS))


def members_of(store: Store) -> GroupMetadata:
    state = GroupCoordinator(store.cluster).group("g")
    assert state is not None
    return state.metadata


def write(store: Store, count: int) -> None:
    with store.producer(linger_ms=5) as producer:
        for number in range(count):
            producer.send("orders", b"%d" % number, partition=number % PARTITIONS)


@pytest.mark.usefixtures("unclosed")
def test_all_clients_and_the_products_own_consumer_share_one_group():
    with RunningGateway() as gateway:
        gateway.store.admin().create_topic("orders", PARTITIONS)
        runs = [
            by_confluent(gateway.address, "g"),
            by_own(gateway.store, "g"),
            by_kafka_python(gateway.address, "g"),
            by_aiokafka(gateway.address, "g"),
        ]
        readers: list[Reader] = []
        for run in runs:
            readers.append(Reader(run))
            wait_until(lambda: share(readers), lambda: [reader.owned for reader in readers])
        write(gateway.store, 400)
        wait_until(lambda: sum(len(reader.rows) for reader in readers) >= 400)
        assert len(members_of(gateway.store).members) == 4
        for number, reader in enumerate(readers):
            reader.close()
            if rest := readers[number + 1 :]:
                wait_until(lambda rest=rest: share(rest), lambda rest=rest: [reader.owned for reader in rest])
        counts = Counter(row for reader in readers for row in reader.rows)
        assert len(counts) == 400 and set(counts.values()) == {1}
        again = Reader(by_confluent(gateway.address, "g"))
        wait_until(lambda: share([again]))
        write(gateway.store, 8)
        wait_until(lambda: len(again.rows) >= 8)
        again.close()
        assert Counter(again.rows) == Counter((number, 50) for number in range(PARTITIONS)), (
            "from the committed offsets"
        )


def test_members_go_on_when_their_gateway_is_gone():
    with ExitStack() as stack:
        first = RunningGateway()
        first.__enter__()
        second = stack.enter_context(RunningGateway(Cluster.open(first.cluster.path), node_id=1))
        first.store.admin().create_topic("orders", PARTITIONS)
        both = f"{first.address},{second.address}"
        readers = [
            Reader(by_confluent(both, "g", **{"group.instance.id": f"till-{number}", "reconnect.backoff.max.ms": 200}))
            for number in range(2)
        ]
        wait_until(lambda: share(readers))
        write(second.store, 80)
        wait_until(lambda: sum(len(reader.rows) for reader in readers) == 80)
        generation = members_of(second.store).generation
        owned = [reader.owned for reader in readers]
        first.__exit__()
        write(second.store, 80)
        wait_until(lambda: sum(len(reader.rows) for reader in readers) == 160)
        assert [reader.owned for reader in readers] == owned
        assert members_of(second.store).generation == generation
        for reader in readers:
            reader.close()
