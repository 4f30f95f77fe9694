"""Kafka's clients at gateways: what they write is read as it was, and a gateway that is killed costs no row."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from spark_replog.client.store import Store, init_store
from tests.gateway_process import free_port, gateway_process
from tests.gateways import RunningGateway
from tests.waiting import SECONDS_MAX, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 40
WAITING_MAX = 20_000
"""Records that a stream has sent and nobody has acknowledged: its client keeps 100,000."""
HEADERS: list[tuple[str, bytes | None]] = [("trace", b"\x00\x01"), ("empty", b"")]
Rows = list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]


def expected(codec: str) -> Rows:
    """Return key, value, time and headers of what each client writes with a codec."""
    rows: Rows = []
    for number in range(COUNT):
        rows.append((b"k%d" % number, f"{codec} {number} ".encode() * 20, 1_000 + number, HEADERS))
    return [*rows, (None, b"", 5_000, []), (b"", None, 5_001, [])]


def send_by_confluent(address: str, topic: str, codec: str) -> None:
    options = {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
    producer, errors = confluent_kafka.Producer(options), []
    for key, value, time_ms, headers in expected(codec):
        producer.produce(topic, value, key, 0, timestamp=time_ms, headers=headers,
                         on_delivery=lambda error, _: errors.append(error))  # fmt: skip
    assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None] * (COUNT + 2)


def send_by_kafka_python(address: str, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=compression, linger_ms=20)
    sent = [
        producer.send(topic, value, key, headers, partition=0, timestamp_ms=time_ms)
        for key, value, time_ms, headers in expected(codec)
    ]
    offsets = [future.get(SECONDS_MAX).offset for future in sent]
    assert offsets == list(range(offsets[0], offsets[0] + len(sent)))
    producer.close()


def send_by_aiokafka(address: str, topic: str, codec: str) -> None:
    async def run() -> None:
        compression = None if codec == "none" else codec
        producer = AIOKafkaProducer(
            bootstrap_servers=address, compression_type=compression, enable_idempotence=True, linger_ms=20
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, key, partition=0, timestamp_ms=time_ms, headers=headers)
                for key, value, time_ms, headers in expected(codec)
            ]
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS_MAX)
        finally:
            await producer.stop()

    asyncio.run(run())


def read_by_confluent(address: str, topic: str, count: int) -> Rows:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    rows: Rows = []

    def poll() -> bool:
        for message in consumer.consume(count - len(rows), 1.0):
            assert message.error() is None
            rows.append((message.key(), message.value(), message.timestamp()[1], message.headers() or []))
        return len(rows) == count

    wait_until(poll, f"{count} rows")
    consumer.close()
    return rows


def read_by_kafka_python(address: str, topic: str, count: int) -> Rows:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    rows: Rows = []
    wait_until(lambda: rows.extend(consumer.poll(1_000).get(place, [])) or len(rows) == count, f"{count} rows")
    consumer.close()
    return [(row.key, row.value, row.timestamp, list(row.headers)) for row in rows]  # type: ignore[attr-defined]


def read_by_aiokafka(address: str, topic: str, count: int) -> Rows:
    async def run() -> Rows:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
        await consumer.start()
        try:
            place = kafka_place(topic)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            rows = [await asyncio.wait_for(consumer.getone(), SECONDS_MAX) for _ in range(count)]
        finally:
            await consumer.stop()
        return [(row.key, row.value, row.timestamp, list(row.headers)) for row in rows]

    return asyncio.run(run())


def kafka_place(topic: str) -> Any:
    from aiokafka import TopicPartition

    return TopicPartition(topic, 0)


SENDERS = {"confluent": send_by_confluent, "kafka-python": send_by_kafka_python, "aiokafka": send_by_aiokafka}
READERS = (read_by_confluent, read_by_kafka_python, read_by_aiokafka)


@pytest.fixture
def unclosed():
    """Allow the sockets that kafka-python leaves to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("unclosed")
@pytest.mark.parametrize("sender", SENDERS)
def test_every_client_reads_what_one_wrote_with_every_codec(sender):
    with RunningGateway(auto_create_topics_enable=True) as gateway:
        codecs = CODECS[:2] if sender == "kafka-python" else CODECS  # the others need packages of its own
        for codec in codecs:
            SENDERS[sender](gateway.address, "orders", codec)
        rows = [row for codec in codecs for row in expected(codec)]
        for read in READERS:
            assert read(gateway.address, "orders", len(rows)) == rows
        table = gateway.store.topic("orders").scan().to_arrow()
        assert table.column("value").to_pylist() == [value for _, value, _, _ in rows]


def test_an_error_of_the_store_reaches_the_client():
    with RunningGateway() as gateway:
        gateway.store.admin().create_topic("small", 1, config={"max.message.bytes": "1000"})
        errors: list[Any] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": False})
        for value in (b"x" * 5_000, b"y"):
            producer.produce("small", value, on_delivery=lambda error, _: errors.append(error and error.name()))
            producer.flush(SECONDS_MAX)
        assert errors == ["MSG_SIZE_TOO_LARGE", None]


# ------------------------------------------------------------------------------------------ processes


class Stream:
    """An idempotent producer that sends numbers, and notes which of them are acknowledged, where."""

    def __init__(self, *ports: int, **options: Any) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        more = {name.replace("_", "."): value for name, value in options.items()}
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 50,
             "reconnect.backoff.max.ms": 200, "topic.metadata.refresh.interval.ms": 500, **more}
        )  # fmt: skip
        self.acked: dict[int, int] = {}
        self.errors: list[Any] = []
        self._next = 0

    def send_until(self, condition: Callable[[], object]) -> None:
        def more() -> object:
            for _ in range(100 if self._next - len(self.acked) < WAITING_MAX else 0):
                number = self._next
                self._producer.produce("orders", b"%d" % number, partition=0, on_delivery=self._noting(number))
                self._next += 1
            self._producer.poll(0.01)
            return condition()

        wait_until(more, lambda: f"a condition; {len(self.acked)} acknowledged, {self.errors[:3]}")

    def leader_port(self) -> int:
        """Return the port of the gateway that gets the records."""
        told = self._producer.list_topics("orders", timeout=SECONDS_MAX)
        port: int = told.brokers[told.topics["orders"].partitions[0].leader].port
        return port

    def _noting(self, number: int) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.acked[number] = message.offset()
            else:
                self.errors.append(error)

        return note

    def check(self, store: Store) -> None:
        """Flush; nothing is lost, twice, or out of order."""
        assert self._producer.flush(SECONDS_MAX) == 0
        assert self.errors == []
        table = store.topic("orders").scan().to_arrow()
        numbers = [int(value) for value in table.column("value").to_pylist()]
        assert numbers == list(range(self._next))
        assert self.acked == dict(zip(numbers, table.column("offset").to_pylist(), strict=True))


@pytest.fixture
def store(tmp_path):
    store = init_store(tmp_path / "store", 1, fsync=False)
    store.admin().create_topic("orders", 1)
    return store


def test_a_killed_gateway_costs_no_row_and_makes_none_twice(store):
    """In the middle of an idempotent producer's stream, twice; each time another one takes its place."""
    port = free_port()
    stream = Stream(port)
    for _ in range(2):
        with gateway_process(store, port) as process:
            before = len(stream.acked)
            stream.send_until(lambda: len(stream.acked) > before + 300)  # noqa: B023
            process.kill()
    with gateway_process(store, port) as process:
        stream.check(store)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0


def test_a_gateway_that_ends_answers_what_it_has_read(store):
    """A producer that knows two gateways goes on at the other one."""
    ports = free_port(), free_port()
    stream = Stream(*ports)
    with gateway_process(store, ports[0]) as first, gateway_process(store, ports[1]):
        stream.send_until(lambda: len(stream.acked) > 300)
        first.send_signal(signal.SIGTERM)
        assert first.wait(SECONDS_MAX) == 0
        before = len(stream.acked)
        stream.send_until(lambda: len(stream.acked) > before + 300)
        stream.check(store)


def test_rows_stay_while_one_gateway_is_killed_and_one_stops(store):
    """Each is the one that the producer uses. The stopped one wakes with requests whose rows went through the other."""
    ports, often = (free_port(), free_port()), ("-c", "gateway.heartbeat.interval.ms=300")
    stream = Stream(*ports, socket_timeout_ms=2_000)

    def go_on() -> None:
        wanted = len(stream.acked) + 1_000
        stream.send_until(lambda: len(stream.acked) >= wanted)

    with ExitStack() as stack:
        gateways = {port: stack.enter_context(gateway_process(store, port, *often)) for port in ports}
        go_on()
        killed = stream.leader_port()
        gateways[killed].kill()
        go_on()
        gateways[killed] = stack.enter_context(gateway_process(store, killed, *often))
        go_on()
        stopped = gateways[stream.leader_port()]
        stopped.send_signal(signal.SIGSTOP)
        try:
            go_on()
        finally:
            stopped.send_signal(signal.SIGCONT)
        go_on()
        stream.check(store)
