"""librdkafka at gateways and at a broker of Kafka, in turn: rates, delays, and what the servers compute for them.

    python -m benchmarks.gateway [--rounds 3] [--mb 48] [--bytes 100 1024] [--roots 1 3] [--dir FOLDER]
        [--without-kafka]

Produce: idempotent, acks=all. Consume: for the first time, again (a gateway has the batches in its memory then), and
from disk, by a new gateway and without pages of the files in memory. Visible: from ``produce`` of one record to its
arrival at a consumer of the same server. A gateway's roots flush each write (fsync); Kafka 4.1 is one broker that
flushes as it does by default. It is that of ``benchmarks.peers``, and stopped (SIGSTOP) while others have their turn.
The first round warms up. CPU seconds are the server's: they say more than rates where other programs run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.bench_session import scratch
from benchmarks.peers import awake, kafka
from spark_replog.client.store import init_store

SAMPLES = 300
WARM_SAMPLES = 20
PARTITIONS = 2
WARM_SHARE = 4
"""A turn begins with a quarter of its rows into a topic of their own."""
QUIET = {"log_level": 3}
"""Clients say nothing of what they repeat, as when a broker has just begun."""


class Server(NamedTuple):
    """A running server of Kafka's protocol."""

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time that it took since it started."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Peer(NamedTuple):
    """What has turns: how to get its server, for one step after the other, and where its files are."""

    open: Callable[[], AbstractContextManager[Server]]
    folder: Path


class Figure(NamedTuple):
    """What one step of one turn showed."""

    value: float
    cpu_seconds: float = 0.0


@contextmanager
def gateway_of(store: str) -> Iterator[Server]:
    """Yield a new gateway."""
    command = [sys.executable, "-m", "spark_replog", "-s", store, "gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield Server(process.stderr.readline().strip().partition("bootstrap.servers=")[2], process.pid)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def broker_awake(server: Server) -> Iterator[Server]:
    """Let a stopped broker run."""
    with awake([server.pid]):
        yield server


def drop_pages(folder: Path) -> None:
    """Write the files of a folder to disk, and let the machine forget their pages."""
    for path in folder.rglob("*"):
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(number)


def create(address: str, *topics: str, partitions: int = PARTITIONS) -> None:
    """Make topics."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    for made in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        made.result(60)


def produce(address: str, topic: str, rows: int, size_bytes: int) -> float:
    """Return the seconds until all records are acknowledged."""
    options = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5,
               "queue.buffering.max.messages": 1_000_000, "batch.size": 1_000_000, **QUIET}  # fmt: skip
    producer, value = confluent_kafka.Producer(options), os.urandom(size_bytes)
    began = perf_counter()
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0
    return perf_counter() - began


def consume(address: str, topic: str, rows: int) -> float:
    """Return the seconds from the first record to the last one."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "rates", "enable.auto.commit": False, **QUIET}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count, began = len(consumer.consume(1, 60)), perf_counter()
    while count < rows:
        count += len(consumer.consume(10_000, 1))
    seconds = perf_counter() - began
    consumer.close()
    return seconds


def delays_ms(address: str, topic: str, size_bytes: int) -> list[float]:
    """Return how long single records take to a consumer, ascending."""
    options = {"bootstrap.servers": address, **QUIET}
    consumer = confluent_kafka.Consumer(
        {"group.id": "delays", "enable.auto.commit": False, "fetch.wait.max.ms": 10_000, **options}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    producer = confluent_kafka.Producer({"enable.idempotence": True, "linger.ms": 0, **options})
    delays, rest = [], os.urandom(size_bytes)
    for number in range(SAMPLES + WARM_SAMPLES):
        began, value = perf_counter(), b"%d" % number + rest
        producer.produce(topic, value[:size_bytes], partition=0)
        producer.poll(0)
        message: Any = consumer.poll(60)
        assert message.value() == value[:size_bytes]
        delays.append((perf_counter() - began) * 1000)
    producer.flush(60)
    consumer.close()
    return sorted(delays[WARM_SAMPLES:])


def turn(peer: Peer, number: int, rows: int, size_bytes: int) -> dict[str, Figure]:
    """Return the figures of one turn: rows a second, or ms."""
    figures: dict[str, Figure] = {}
    warm, topic, single = (f"{name}-{size_bytes}-{number}" for name in ("warm", "rows", "single"))

    def rate(name: str, server: Server, step: Callable[..., float], *more: int) -> None:
        before = server.cpu_seconds()
        seconds = step(server.address, topic, rows, *more)
        figures[name] = Figure(rows / seconds, server.cpu_seconds() - before)

    with peer.open() as server:
        create(server.address, warm, topic)
        create(server.address, single, partitions=1)
        produce(server.address, warm, rows // WARM_SHARE, size_bytes)
        consume(server.address, warm, rows // WARM_SHARE)
        rate("produce", server, produce, size_bytes)
        rate("consume first", server, consume)
        rate("consume again", server, consume)
        delays = delays_ms(server.address, single, size_bytes)
        figures["visible p50"] = Figure(delays[len(delays) // 2])
        figures["visible p99"] = Figure(delays[len(delays) * 99 // 100])
    drop_pages(peer.folder)
    with peer.open() as server:
        rate("consume from disk", server, consume)
    return figures


def table(figures: dict[str, list[dict[str, Figure]]], rows: int) -> str:
    """Return a table of medians: a line for a step, a column for a peer, with its ratio to Kafka (the last one)."""
    lines = ["| | " + " | ".join(figures) + " |", "| --- " * (len(figures) + 1) + "|"]
    for step in next(iter(figures.values()))[0]:
        values = {name: statistics.median(turn[step].value for turn in turns) for name, turns in figures.items()}
        cells = []
        for name, value in values.items():
            cell = f"{value:,.1f} ms" if "visible" in step else f"{value:,.0f} rows/s"
            if "visible" not in step:
                cpu = statistics.median(turn[step].cpu_seconds for turn in figures[name]) / rows * 1e6
                cell += f"; {cpu:.2f} s"
            if name != "Kafka" and "Kafka" in values:
                cell += f"; **{value / values['Kafka']:.2f}**"
            cells.append(cell)
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Let all have their turns, and print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=float, default=48, help="of values in a turn; a gateway's memory holds 64 MiB")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1024])
    parser.add_argument("--roots", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--dir", default=None)
    parser.add_argument("--without-kafka", action="store_true")
    options = parser.parse_args()
    with scratch(options.dir) as folder, ExitStack() as stack:
        peers = {}
        for roots in options.roots:
            store = init_store(f"{folder}/store-{roots}", roots)
            peers[f"gateway, {roots} roots"] = Peer(partial(gateway_of, store.path), Path(store.path))
        if not options.without_kafka:
            address, (pid,) = stack.enter_context(kafka(folder / "kafka", 1, is_fsync=False))
            broker = Server(address, pid)
            with broker_awake(broker):
                pass  # stopped from here on
            peers["Kafka"] = Peer(partial(broker_awake, broker), folder / "kafka")
        for size_bytes in options.bytes:
            rows = int(options.mb * 1_000_000) // size_bytes
            figures: dict[str, list[dict[str, Figure]]] = {name: [] for name in peers}
            for number in range(options.rounds + 1):
                for name, peer in peers.items():
                    figures[name].append(turn(peer, number, rows, size_bytes))
            print(f"\n{rows:,} rows of {size_bytes} bytes; load average {os.getloadavg()[0]:.1f}\n")
            print(table({name: turns[1:] for name, turns in figures.items()}, rows), flush=True)


if __name__ == "__main__":
    main()
