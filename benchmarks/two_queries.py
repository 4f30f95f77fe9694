"""Streaming queries into one topic: what a micro-batch of each takes, beside one query alone and a topic for each.

The very objects that Spark calls (plan, write, commit), each query in a process of its own, three local roots, three
replicas, acks=all. Commits of one topic meet in one ledger and must take turns; the pause stands for what Spark does
between two micro-batches.

    python -m benchmarks.two_queries --queries 16 --pauses 0   # many writers
    python -m benchmarks.two_queries [--queries 2] [--batches 200] [--pauses 0,100,400] [--put-ms 0] [--dir FOLDER]

--put-ms: every storage call takes that much longer, as on object stores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import random
import statistics
import time
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.bench_session import scratch
from spark_replog.admin.controller import Controller
from spark_replog.cluster import cluster as clusters
from spark_replog.cluster.init_store import init_cluster
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.storage.retrying_store import RetryingStore

WARM_UP = 20
_SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


def slow_down(put_ms: float) -> None:
    """Make every call of this process's stores take longer."""
    for name in ("create", "get"):
        plain = getattr(RetryingStore, name)

        def slow(*call: Any, plain: Any = plain, **named: Any) -> Any:
            time.sleep(put_ms / 1000.0)
            return plain(*call, **named)

        setattr(RetryingStore, name, slow)


def query(
    number: int, path: str, topic: str, batches: int, pause_ms: float, put_ms: float, start: Any, out: Any
) -> None:
    """Run micro-batches and put the duration of each, and of its commit, in ms, and what the ledger cost."""
    if put_ms:
        slow_down(put_ms)
    context = TaskContext._getOrCreate()
    context._partitionId = 0
    row = pa.record_batch({"key": [b"k"] * 1_000, "value": [b"v" * 100] * 1_000})
    sink = {"path": path, "topic": topic, "checkpointLocation": "unused"}
    rng = random.Random(number)
    took: list[tuple[float, float]] = []
    start.wait()
    for batch_id in range(batches + WARM_UP):
        name = f"{number:08d}-2222-3333-4444-555555555555"
        context._localProperties = {
            "sql.streaming.queryId": name, "spark.jobGroup.id": "run", "streaming.sql.batchId": str(batch_id)
        }  # fmt: skip
        begin = time.monotonic()
        writer = pickle.loads(pickle.dumps(ReplogDataSource(sink).streamWriter(_SCHEMA, False)))
        message = writer.write(iter([row]))
        written = time.monotonic()
        writer.commit([pickle.loads(pickle.dumps(message))], batch_id)
        end = time.monotonic()
        took.append(((end - begin) * 1000, (end - written) * 1000))
        time.sleep(pause_ms / 1000.0 * rng.uniform(0.8, 1.2))
    stats = [ledger.stats for cluster in clusters._SHARED.values() for ledger in cluster._topic_ledgers.values()]
    out.put((took[WARM_UP:], sum(counts.claims for counts in stats), sum(counts.entries for counts in stats)))


def run(path: str, topics: list[str], batches: int, pause_ms: float, put_ms: float) -> str:
    """Run a query per topic named, all at once; return the line of the table."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(len(topics)), context.Queue()
    processes = [
        context.Process(target=query, args=(number, path, topic, batches, pause_ms, put_ms, start, out))
        for number, topic in enumerate(topics)
    ]
    for process in processes:
        process.start()
    results = [out.get(timeout=240) for _ in processes]
    for process in processes:
        process.join()
    whole = sorted(batch_ms for took, _, _ in results for batch_ms, _ in took)
    commit = sorted(commit_ms for took, _, _ in results for _, commit_ms in took)
    entries = sum(count for _, _, count in results)
    each_took = [[batch_ms for batch_ms, _ in took] for took, _, _ in results]
    tails = sorted(sorted(times)[int(len(times) * 0.99)] for times in each_took)
    return " | ".join(
        f"{value:,.1f}"
        for value in (
            statistics.median(whole), whole[int(len(whole) * 0.95)], whole[-1],
            statistics.median(commit), commit[int(len(commit) * 0.95)],
            sum(count for _, count, _ in results) / max(1, entries),
            sum(1000 * len(times) / sum(times) for times in each_took), tails[-1] / tails[len(tails) // 2],
        )
    )  # fmt: skip


def main() -> None:
    """Print the table: one query, a topic for each of several, one topic for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--pauses", default="0,100,400")
    parser.add_argument("--put-ms", type=float, default=0)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    print(
        "| pause ms | queries | batch p50 ms | p95 | max | commit p50 ms | p95 | claims an entry"
        " | batches/s in all, without pauses | p99 of the slowest query over the median one's |\n|" + " --- |" * 10
    )
    for pause_ms in map(float, arguments.pauses.split(",")):
        cases = {"alone": ["t0"], "a topic each": [], "one topic": ["t0"] * arguments.queries}
        cases["a topic each"] = [f"t{number}" for number in range(arguments.queries)]
        for name, topics in cases.items():
            with scratch(arguments.dir) as folder:
                path = str(folder / "store")
                controller = Controller(init_cluster(path, 3, {}, fsync=True))
                for topic in sorted(set(topics)):
                    controller.create_topic(topic, partitions=2, replicas=3, config={})
                line = run(path, topics, arguments.batches, pause_ms, arguments.put_ms)
            print(f"| {pause_ms:g} | {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
