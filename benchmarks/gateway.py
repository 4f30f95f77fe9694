"""Rates and delays of librdkafka at a gateway in a process of its own, and what the gateway computes for them.

    python -m benchmarks.gateway --rows 500000 --roots 1

Produce: idempotent, acks=all. Consume: again from the gateway's memory, and by a new gateway from disk. Visible: from
``produce`` of one record to its arrival at a consumer at the same gateway. CPU seconds are the gateway's: they say more
than rates where other programs run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import confluent_kafka

from spark_replog.client.store import init_store

SAMPLES = 300


class GatewayProcess:
    """A running gateway, its address and the CPU time that it took."""

    def __init__(self, store: str) -> None:
        command = [sys.executable, "-m", "spark_replog", "-s", store, "gateway", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.address = self.process.stderr.readline().strip().partition("bootstrap.servers=")[2]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def gateway_of(store: str) -> Iterator[GatewayProcess]:
    running = GatewayProcess(store)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)


def produce(address: str, rows: int, size_bytes: int) -> float:
    """Return the seconds until all records are acknowledged."""
    options = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5,
               "queue.buffering.max.messages": 1_000_000, "batch.size": 1_000_000}  # fmt: skip
    producer, value = confluent_kafka.Producer(options), os.urandom(size_bytes)
    began = perf_counter()
    for number in range(rows):
        while True:
            try:
                producer.produce("rows", value, partition=number % 2)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0
    return perf_counter() - began


def consume(address: str, rows: int) -> float:
    """Return the seconds from the first record to the last one."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "rates", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition("rows", number, 0) for number in range(2)])
    count, began = len(consumer.consume(1, 60)), perf_counter()
    while count < rows:
        count += len(consumer.consume(10_000, 1))
    seconds = perf_counter() - began
    consumer.close()
    return seconds


def delays_ms(address: str) -> list[float]:
    """Return how long single records take to a consumer, ascending."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "delays", "enable.auto.commit": False, "fetch.wait.max.ms": 10_000}
    )
    consumer.assign([confluent_kafka.TopicPartition("single", 0, 0)])
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
    delays = []
    for number in range(SAMPLES + 20):
        began = perf_counter()
        producer.produce("single", b"%d" % number, partition=0)
        producer.poll(0)
        message: Any = consumer.poll(60)
        assert message.value() == b"%d" % number
        delays.append((perf_counter() - began) * 1000)
    consumer.close()
    return sorted(delays[20:])


def main() -> None:
    """Measure, and print one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=100)
    options = parser.parse_args()
    rows = options.rows
    with tempfile.TemporaryDirectory() as folder:
        store = init_store(f"{folder}/store", options.roots)
        store.admin().create_topic("rows", 2)
        store.admin().create_topic("single", 1)
        with gateway_of(store.path) as running:
            print(f"{rows} rows of {options.bytes} bytes, {options.roots} roots with fsync")
            steps = {
                "produce": partial(produce, running.address, rows, options.bytes),
                "consume again": partial(consume, running.address, rows),
            }
            for name, step in steps.items():
                before = running.cpu_seconds()
                seconds = step()
                cpu = running.cpu_seconds() - before
                print(f"{name}: {rows / seconds:,.0f} rows/s, gateway {cpu / rows * 1e6:.2f} CPU s per million rows")
            delays = delays_ms(running.address)
            print(f"visible: p50 {delays[len(delays) // 2]:.1f} ms, p99 {delays[len(delays) * 99 // 100]:.1f} ms")
        with gateway_of(store.path) as running:
            seconds = consume(running.address, rows)
            print(f"consume from disk: {rows / seconds:,.0f} rows/s")


if __name__ == "__main__":
    main()
