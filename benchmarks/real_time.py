"""Spark's real-time mode from topic to topic, through a gateway and at a broker of Kafka, in turn.

    python -m benchmarks.real_time [--rounds 3] [--rows 500] [--pause-ms 20] [--roots 1 3] [--dir FOLDER]

One query for each server copies a topic by Spark's Kafka connector, ``trigger(realTime=...)``. A row is produced, and
its time goes on until a consumer of librdkafka has its copy: so it is produced and consumed twice. A gateway's roots
flush each write (fsync); Kafka 4.1 is one broker that flushes as it does by default, as in ``benchmarks.gateway``.
All queries run all the time, and one of them has rows at a time: a stopped server would end its query.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
from pyspark.sql import SparkSession

from benchmarks.bench_session import scratch, session
from benchmarks.gateway import QUIET, create, gateway_of
from benchmarks.peers import jars, kafka
from spark_replog.client.store import init_store

WARM_ROWS = 50
BATCH_MINUTES = 30
"""No batch of a query ends meanwhile."""


def start_query(spark: SparkSession, address: str, checkpoint: Path) -> Any:
    """Start the copy of one server's topic."""
    server = {"kafka.bootstrap.servers": address}
    reader = spark.readStream.format("kafka").options(**server).option("subscribe", "in")
    frame = reader.option("startingOffsets", "earliest").load().selectExpr("key", "upper(cast(value as string)) value")
    writer = frame.writeStream.format("kafka").options(**server).option("topic", "out")
    writer = writer.option("checkpointLocation", str(checkpoint)).outputMode("update")
    return writer.trigger(realTime=f"{BATCH_MINUTES} minutes").start()  # type: ignore[call-overload]


class Rows:
    """Sends rows to a server, and waits for their copies."""

    def __init__(self, address: str) -> None:
        options = {"bootstrap.servers": address, **QUIET}
        self._producer = confluent_kafka.Producer({"enable.idempotence": True, "linger.ms": 0, **options})
        self._consumer = confluent_kafka.Consumer({"group.id": "copies", "enable.auto.commit": False, **options})
        self._consumer.assign([confluent_kafka.TopicPartition("out", 0, 0)])
        self._count = 0

    def delays_ms(self, rows: int, pause_ms: float) -> list[float]:
        """Return how long each of some rows took, one after the other."""
        delays = []
        for _ in range(rows):
            began, value = time.perf_counter(), f"row {self._count}"
            self._producer.produce("in", value.encode(), partition=0)
            self._producer.poll(0)
            message: Any = self._consumer.poll(120)
            assert message.value() == value.upper().encode(), message.value()
            delays.append((time.perf_counter() - began) * 1000)
            self._count += 1
            time.sleep(pause_ms / 1000)
        return delays

    def close(self) -> None:
        """Close both clients."""
        self._producer.flush(60)
        self._consumer.close()


def main() -> None:
    """Run the queries, send rows to each server in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--pause-ms", type=float, default=20)
    parser.add_argument("--roots", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    path = os.pathsep.join(str(jar) for jar in jars("connector").glob("*.jar"))
    with scratch(options.dir) as folder, ExitStack() as stack:
        servers = {}
        for roots in options.roots:
            store = init_store(f"{folder}/store-{roots}", roots)
            servers[f"gateway, {roots} roots"] = stack.enter_context(gateway_of(store.path)).address
        servers["Kafka"], _ = stack.enter_context(kafka(folder / "kafka", 1, is_fsync=False))
        spark = stack.enter_context(session("real-time", 2 * len(servers), spark__driver__extraClassPath=path))
        sent = {}
        for number, (name, address) in enumerate(servers.items()):
            create(address, "in", "out", partitions=1)
            query = start_query(spark, address, folder / f"checkpoint-{number}")
            stack.callback(query.stop)
            sent[name] = Rows(address)
            stack.callback(sent[name].close)
            sent[name].delays_ms(WARM_ROWS, options.pause_ms)
        spark.sparkContext.setLogLevel("OFF")  # of queries that are stopped in the middle of a batch
        delays: dict[str, list[list[float]]] = {name: [] for name in servers}
        for _ in range(options.rounds):
            for name, rows in sent.items():
                delays[name].append(sorted(rows.delays_ms(options.rows, options.pause_ms)))
        print(f"{options.rounds} rounds of {options.rows} rows; load average {os.getloadavg()[0]:.1f}\n")
        print("| | p50 ms, median of rounds | of Kafka | p99 ms | of Kafka |\n| --- | --- | --- | --- | --- |")
        figures = {
            name: [statistics.median(turn[len(turn) * part // 100] for turn in turns) for part in (50, 99)]
            for name, turns in delays.items()
        }
        for name, (p50, p99) in figures.items():
            of_p50, of_p99 = p50 / figures["Kafka"][0], p99 / figures["Kafka"][1]
            print(f"| {name} | {p50:.1f} | {of_p50:.2f} | {p99:.1f} | {of_p99:.2f} |")


if __name__ == "__main__":
    main()
