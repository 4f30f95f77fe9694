"""What a Spark task costs a read: many partitions in a task each, and in a few tasks (maxPartitions).

Beside them: the same rows in a topic of as many partitions as there are cores, all columns and the value alone. Rounds
are interleaved.

    python -m benchmarks.read_tasks [--rows 1000000] [--partitions 128] [--rounds 5] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import time

from pyspark.sql import SparkSession

from benchmarks.bench_session import scratch, session, table
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster

CORES = 2
WRITES = 4


def drain(spark: SparkSession, path: str, topic: str, **options: str) -> float:
    """Read a topic into nothing; return seconds."""
    frame = spark.read.format("replog").option("subscribe", topic).options(**options).load(path)
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir")
    given = parser.parse_args()
    with scratch(given.dir) as folder, session("read_tasks", CORES) as spark:
        path = str(folder / "store")
        controller = Controller(init_cluster(path, 1, {}, fsync=False))
        for topic, partitions in (("many", given.partitions), ("few", CORES)):
            controller.create_topic(topic, partitions, 1, start_index=0)
            for _ in range(WRITES):
                rows = spark.range(0, given.rows // WRITES, 1, CORES)
                values = rows.selectExpr("cast(id as string) key", "lpad(cast(id as string), 100, 'x') value")
                values.write.format("replog").mode("append").option("topic", topic).save(path)
        cases = {
            f"{given.partitions} partitions, a task each": ("many", {}),
            f"{given.partitions} partitions, maxPartitions={CORES}": ("many", {"maxPartitions": str(CORES)}),
            f"{CORES} partitions": ("few", {}),
            f"{CORES} partitions, columns=value": ("few", {"columns": "value"}),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for topic, options in cases.values():
            drain(spark, path, topic, **options)  # warm
        for _ in range(given.rounds):
            for name, (topic, options) in cases.items():
                times[name].append(drain(spark, path, topic, **options))
        print(table([(name, [given.rows / took / 1e6 for took in runs]) for name, runs in times.items()], "M rows/s"))


if __name__ == "__main__":
    main()
