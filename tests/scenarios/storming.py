"""One process of a store whose roots come and go: a producer or a member of a group, as a user writes them.

``python -m tests.scenarios.storming STORE producer NAME``, or ``... STORE consumer NAME``, or a producer of Kafka's at
a gateway, ``... HOST:PORT client NAME``, until SIGTERM. It prints what it sends, what it was told and what it read, a
line of JSON each; test_root_storms.py judges.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

import confluent_kafka

import spark_replog
from spark_replog import Consumer
from spark_replog.errors import ReplogError

TOPIC, GROUP, PARTITIONS = "orders", "readers", 3
BURST = 12
"""Rows that are under way at once, in several requests."""
PAUSE_SECONDS = 0.4
"""Between two bursts: what happens to the roots takes seconds, and more rows would show no more."""
PRODUCER = {"batch.size": 64, "delivery.timeout.ms": 30_000, "request.timeout.ms": 10_000}
CLIENT = {
    "enable.idempotence": True,
    "batch.num.messages": 2,
    "socket.timeout.ms": 10_000,
    "message.timeout.ms": 90_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
CONSUMER = {"auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def produce(path: str, name: str, is_over: threading.Event) -> None:
    """Send rows with rising numbers, each one once: whether a row that failed is in the log is not known."""
    inline_bytes = 4_096 if name.endswith("2") else 0
    with spark_replog.open(path).producer(PRODUCER, acks="all", inline_max_bytes=inline_bytes) as producer:
        number = 0
        while not is_over.is_set():
            values = [f"{name}-{row_number}" for row_number in range(number, number + BURST)]
            say(sent=values)
            handles = {}
            for value in values:
                try:
                    handles[value] = producer.send(TOPIC, value.encode(), partition=number % PARTITIONS)
                except ReplogError as error:
                    say(refused=value, code=error.code.name)
                number += 1
            told = []
            for value, handle in handles.items():
                try:
                    where = handle.result(timeout=120)
                    told.append([where.partition, where.offset, value])
                except ReplogError as error:
                    say(refused=value, code=error.code.name)
            say(told=told)
            is_over.wait(PAUSE_SECONDS)


def produce_by_kafka(servers: str, name: str, is_over: threading.Event) -> None:
    """Send rows with rising numbers by an idempotent producer of librdkafka."""
    client = confluent_kafka.Producer({"bootstrap.servers": servers, **CLIENT})
    number = 0
    while not is_over.is_set():
        values = [f"{name}-{row_number}" for row_number in range(number, number + BURST)]
        say(sent=values)
        told: list[list[object]] = []

        def note(error: confluent_kafka.KafkaError | None, row: confluent_kafka.Message) -> None:
            if error is None:
                told.append([row.partition(), row.offset(), row.value().decode()])  # noqa: B023
            else:
                say(refused=row.value().decode(), code=error.name())

        for value in values:
            client.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=note)
            number += 1
        client.flush()
        say(told=told)
        is_over.wait(PAUSE_SECONDS)


def consume(path: str, is_over: threading.Event) -> None:
    """Read as a member of the group; offsets are committed once the rows are printed."""
    while not is_over.is_set():
        try:
            with Consumer(path, TOPIC, group=GROUP, config=CONSUMER) as consumer:
                while not is_over.is_set():
                    records = [[row.partition, row.offset, row.value.decode()] for row in consumer.poll(500)]
                    if records:
                        say(read=records)
                        consumer.commit()
        except ReplogError as error:
            say(refused="a poll", code=error.code.name)


if __name__ == "__main__":
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    if sys.argv[2] == "producer":
        produce(sys.argv[1], sys.argv[3], over)
    elif sys.argv[2] == "client":
        produce_by_kafka(sys.argv[1], sys.argv[3], over)
    else:
        consume(sys.argv[1], over)
