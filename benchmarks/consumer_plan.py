"""How long a fetch of 100 partitions plans, and how fast a Consumer reads as Arrow and as records.

The plan: ``RecordFetcher.plan`` over 100 partitions of 200 sections each, folded; nothing is read. Sections of
512 KiB, so that one fetch (50 MiB) takes one of each partition, and of 9 kB, where it takes thousands. The reads:
one warm local root, 100-byte values. Medians.

    python -m benchmarks.consumer_plan [--rows 2000000] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_session import scratch
from benchmarks.floors import prebuilt_batch
from spark_replog.admin.controller import Controller
from spark_replog.client.consumer import Consumer
from spark_replog.client.producer import Producer
from spark_replog.client.record_fetcher import ConsumerMetrics, FetchPartition, RecordFetcher
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.ids import ObjectId, TopicPartition
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section

PARTITIONS, SECTIONS, RUNS, RECORDS = 100, 200, 15, 50_000
TARGET_MS = 5.0


def median_ms(action: Callable[[], object], runs: int = RUNS) -> float:
    """Return the median of so many timed calls, milliseconds."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        action()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def plan_figures(path: str) -> list[tuple[str, str]]:
    """Measure the plan of one fetch over many partitions."""
    cluster = init_cluster(path, 1, {}, fsync=False)
    return [figure for size_bytes in (512 * 1024, 9_000) for figure in _plan_figures(cluster, size_bytes)]


def _plan_figures(cluster: Cluster, size_bytes: int) -> list[tuple[str, str]]:
    topic = f"wide-{size_bytes}"
    Controller(cluster).create_topic(topic, partitions=PARTITIONS, replicas=1)
    handle = cluster.lookup(topic)
    ledger, _ = cluster.topic_state(handle)
    for number in range(SECTIONS):
        sections = tuple(
            Section(handle.topic_id, partition, 100, 8 + partition * size_bytes, size_bytes, number, 1000, 2000)
            for partition in range(PARTITIONS)
        )
        made = DataObject(ObjectId(0, f"q-{number}-0-{number:032x}.arrow"), 1 << 20, False, frozenset((0,)), sections)
        identity = ProducerIdentity("q", "q", number, "r", IdentityKind.STREAM)
        command = encode_command(Append(identity, "User:a", "", 1000, (made,)))
        ledger.append(lambda _, command=command: command, timeout_ms=60_000)  # type: ignore[misc]
    figures = []
    for name, offset in (("at the end, nothing to read", 100 * SECTIONS), ("in the middle, 50 MiB", 50 * SECTIONS)):
        config = ConsumerConfig()
        fetcher = RecordFetcher(cluster, config, ConsumerMetrics())
        asked = {
            TopicPartition(topic, number): FetchPartition(
                ledger, handle.topic_id, number, offset, config.max_partition_fetch_bytes
            )
            for number in range(PARTITIONS)
        }
        slices, errors = fetcher.plan(asked)
        assert not errors
        taken = median_ms(lambda fetcher=fetcher, asked=asked: fetcher.plan(asked))  # type: ignore[misc]
        figures.append(
            (
                f"plan {PARTITIONS} partitions {name} ({len(slices):,} sections of {size_bytes:,} bytes)",
                f"{taken:.2f} ms",
            )
        )
    return figures


def read_figures(path: str, row_count: int) -> list[tuple[str, str]]:
    """Measure reading with a Consumer."""
    Controller(Cluster.open(path)).create_topic("t", partitions=4, replicas=1)
    batch = prebuilt_batch(10_000).select(["key", "value"])
    with Producer(path, {"acks": "all"}) as producer:
        for _ in range(row_count // batch.num_rows):
            producer.send_arrow("t", batch)
    row_count = row_count // batch.num_rows * batch.num_rows
    with Consumer(path, "t", auto_offset_reset="earliest") as consumer:

        def scan() -> None:
            consumer.seek_to_beginning()
            assert sum(record_batch.num_rows for record_batch in consumer.to_batches()) == row_count

        consumer.poll(max_records=1)
        scanned = median_ms(scan, 5)

        def poll() -> None:
            consumer.seek_to_beginning()
            seen = 0
            while seen < RECORDS:
                seen += len(consumer.poll(timeout_ms=1000))

        polled = median_ms(poll, 3)
    return [
        (f"Consumer.to_batches, {row_count:,} rows of 100 bytes", f"{row_count / scanned / 1000:,.1f} M rows/s"),
        (f"Consumer.poll, {RECORDS:,} records", f"{RECORDS / polled:,.0f} k records/s"),
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    with scratch(arguments.dir) as folder:
        path = str(Path(folder) / "store")
        figures = plan_figures(path) + read_figures(path, arguments.rows)
    print("| what | median |\n| --- | --- |")
    for name, value in figures:
        print(f"| {name} | {value} |")
    print(f"\ntarget of the plan: at most {TARGET_MS} ms")


if __name__ == "__main__":
    main()
