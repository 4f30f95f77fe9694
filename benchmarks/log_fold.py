"""How long the log's pure parts take: encode, decode and fold of a full micro-batch, and reading back.

A micro-batch of 16 tasks x 64 partitions; values of 100 bytes. Medians of 15 runs, one core.

    python -m benchmarks.log_fold [--rows 2000000] [--dir FOLDER]
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
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section, TopicInit
from spark_replog.read.fetch_plan import plan_fetch
from spark_replog.read.fetcher import Fetcher
from spark_replog.write.task_writer import TaskWriter

TASKS, PARTITIONS, RUNS = 16, 64, 15


def median_ms(action: Callable[[int], object]) -> float:
    """Return the median of RUNS timed calls, milliseconds."""
    taken = []
    for number in range(RUNS):
        began = time.perf_counter()
        action(number)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def fold_figures() -> list[tuple[str, str]]:
    """Measure the entry of a full micro-batch."""
    topic_id, query = new_id(), new_id()
    now_ms, year_ms = 1_700_000_000_000, 31_000_000_000

    def section(task: int, partition: int) -> Section:
        spread = (task * PARTITIONS + partition) * 7919 * 65537
        return Section(
            topic_id, partition, 100, 8 + partition * 9000, 9000, spread % 2**32, now_ms - spread % year_ms, now_ms
        )

    objects = tuple(
        DataObject(
            ObjectId(0, f"{query[:8]}-1-{task}-{new_id()}.arrow"),
            600_000,
            False,
            frozenset((0, 1, 2)),
            tuple(section(task, partition) for partition in range(PARTITIONS)),
        )
        for task in range(TASKS)
    )

    def payload(sequence: int) -> bytes:
        identity = ProducerIdentity(query, query, sequence, "run", IdentityKind.STREAM)
        return encode_entry([encode_command(Append(identity, "User:a", "", 1_700_000_050_000, objects))])

    state = TopicLedgerState(new_id())
    assignments = tuple((p % 3, (p + 1) % 3, (p + 2) % 3) for p in range(PARTITIONS))
    state.apply(0, encode_entry([encode_command(TopicInit(topic_id, "t", assignments, ()))]))
    entries = [payload(sequence) for sequence in range(RUNS)]
    encoded = median_ms(payload)
    folded = median_ms(lambda number: state.apply(number + 1, entries[number]))
    return [
        ("entry of 16 tasks x 64 partitions", f"{len(entries[0]):,} bytes, {len(entries[0]) / 1024:.1f} a section"),
        ("encode it", f"{encoded:.1f} ms"),
        ("decode and fold it", f"{folded:.1f} ms"),
    ]


def read_figures(folder: Path, rows: int) -> list[tuple[str, str]]:
    """Measure plan and fetch of one partition, and of 64, from a warm local root."""
    figures = []
    for partitions in (1, PARTITIONS):
        path = str(folder / f"store-{partitions}")
        cluster = init_cluster(path, 1, {}, fsync=False)
        Controller(cluster).create_topic("t", partitions=partitions, replicas=1, config={})
        plan = make_write_plan(cluster, ["t"])
        writer = TaskWriter(
            plan, ProducerConfig(), cluster.brokers, query_id=new_id(), batch_id=0, task_id=0, default_topic="t"
        )
        batch = prebuilt_batch(10_000).select(["key", "value"])
        for _ in range(rows // batch.num_rows):
            writer.append(batch)
        objects = writer.close().objects
        identity = ProducerIdentity(new_id(), "", 0, "", IdentityKind.ONE_SHOT)
        append = Append(identity, "User:a", "", 0, tuple(item for _, item in objects))
        ReplicaManager(cluster).append_records({objects[0][0]: AppendRequest(append, 30_000)})
        handle = cluster.lookup("t")
        ledger, topic = cluster.topic_state(handle)
        slices = [
            piece
            for number, partition in enumerate(topic.partitions)
            for piece in plan_fetch(ledger.state, "t", topic.topic_id, number, 0, partition.high_watermark)
        ]

        def read(_: int, slices: object = slices, brokers: object = cluster.brokers) -> int:
            return sum(batch.num_rows for batch in Fetcher(brokers).fetch(slices))  # type: ignore[arg-type]

        rate = rows // 10_000 * 10_000 / median_ms(read) / 1000
        figures.append((f"read {partitions} partitions", f"{rate:,.0f} M rows/s"))
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    with scratch(arguments.dir) as folder:
        figures = fold_figures() + read_figures(folder, arguments.rows)
    print("| what | median |\n| --- | --- |")
    for name, value in figures:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
