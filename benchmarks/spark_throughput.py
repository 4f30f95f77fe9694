"""Rows per second of Spark writing to and reading from replog, beside two floors in the same run.

Floors: a Python data source that only passes Arrow batches, one that does with them the least that a log has to
(`benchmarks.floors.LeastTask`), and Spark's own uncompressed parquet. A stream case runs
five micro-batches of a quarter of the rows, and what four of them take counts, without the first; its floor reads from
and writes to that source, its garbage frozen. The cases are interleaved round by round; medians are printed as rows/s
and MB/s of values.

    python -m benchmarks.spark_throughput [--rows 4000000] [--rounds 5] [--only write] [--dir FOLDER]
        [--conf NAME=VALUE ...]

--only: the cases whose names begin with one of these words.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.bench_session import scratch, session, table
from benchmarks.floors import VALUE_SIZE_BYTES
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster

PARTITIONS = 2
STREAM_BATCHES = 4
"""Micro-batches that count; one more comes before them."""


def make_store(folder: Path, name: str, replicas: int) -> str:
    """Make a store of `replicas` brokers with topic t of 2 partitions, fsync on; return its path."""
    path = str(folder / name)
    cluster = init_cluster(path, replicas, {}, fsync=True)
    Controller(cluster).create_topic("t", partitions=PARTITIONS, replicas=replicas, config={})
    return path


def least_folders(folder: Path, copies: int) -> str:
    """Return a new folder for each copy of one write, with a comma between two."""
    names = [folder / f"least-{uuid4().hex}" for _ in range(copies)]
    for name in names:
        name.mkdir()
    return ",".join(map(str, names))


def evict(path: str) -> None:
    """Drop the store's files from the page cache, so that the next read comes from the disk."""
    for file in Path(path).rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def cases(spark: SparkSession, folder: Path, frame: DataFrame, rows: int) -> dict[str, Callable[[], object]]:
    """Return case name -> one timed action."""
    one, three = make_store(folder, "one", 1), make_store(folder, "three", 3)
    loaded = make_store(folder, "loaded", 1)

    def to_replog(path: str) -> None:
        frame.write.format("replog").option("path", path).option("topic", "t").mode("append").save()

    to_replog(loaded)

    def to_least(copies: int) -> None:
        frame.write.format("floor").option("folders", least_folders(folder, copies)).mode("append").save()

    parquet = str(folder / "read.parquet")
    floor_frame = spark.read.format("floor").option("rows", rows).option("tasks", PARTITIONS).load()
    floor_frame.write.option("compression", "none").parquet(parquet)

    reader = spark.read.format("replog").option("path", loaded).option("subscribe", "t")

    def drain(source: DataFrame) -> None:
        source.write.format("noop").mode("overwrite").save()

    checked = spark.read.format("floor").option("rows", rows).option("tasks", PARTITIONS).option("check", loaded)

    def drain_cold(source: DataFrameReader) -> float:
        evict(loaded)
        began = time.perf_counter()
        drain(source.load())
        return time.perf_counter() - began

    return {
        "write: pass-through floor": lambda: frame.write.format("floor").mode("append").save(),
        "write: parquet, uncompressed": lambda: (
            frame.write.option("compression", "none").mode("overwrite").parquet(str(folder / "write.parquet"))
        ),
        "write: least work, 1 copy": lambda: to_least(1),
        "write: least work, 3 copies": lambda: to_least(3),
        "write: replog, 1 replica": lambda: to_replog(one),
        "write: replog, 3 replicas": lambda: to_replog(three),
        "read: pass-through floor": lambda: drain(floor_frame),
        "read: parquet, uncompressed": lambda: drain(spark.read.parquet(parquet)),
        "read: least work": lambda: drain(checked.load()),
        "read: replog": lambda: drain(reader.load()),
        "read: least work, from disk": lambda: drain_cold(checked),
        "read: replog, from disk": lambda: drain_cold(reader),
    }


def streamed_seconds(query: StreamingQuery) -> float:
    """Return what the counted micro-batches of a query took, and stop it."""
    query.processAllAvailable()
    progresses = [progress for progress in query.recentProgress if progress["numInputRows"]]
    query.stop()
    counted = progresses[1 : STREAM_BATCHES + 1]  # of a source that rounds down, a few rows are left for one more
    assert len(counted) == STREAM_BATCHES, progresses
    return float(sum(progress["durationMs"]["triggerExecution"] for progress in counted)) / 1000


def stream_cases(spark: SparkSession, folder: Path, frame: DataFrame, rows: int) -> dict[str, Callable[[], float]]:
    """Return case name -> one run, which returns the seconds that `rows` rows took."""
    loaded = make_store(folder, "stream-loaded", 3)
    numbers = itertools.count()
    a_batch = rows // STREAM_BATCHES
    for part in (frame, frame.limit(a_batch)):
        part.write.format("replog").option("path", loaded).option("topic", "t").mode("append").save()

    def run(source: DataFrame, sink: str, **options: str) -> float:
        options["checkpointLocation"] = str(folder / f"checkpoint-{next(numbers)}")
        return streamed_seconds(source.select("key", "value").writeStream.format(sink).options(**options).start())

    def floor_source() -> DataFrame:
        reader = spark.readStream.format("floor").option("rows", a_batch).option("tasks", PARTITIONS)
        return reader.option("batches", STREAM_BATCHES + 1).option("freeze", "true").load()

    def replog_source() -> DataFrame:
        reader = spark.readStream.format("replog").option("path", loaded).option("subscribe", "t")
        return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", a_batch).load()

    three = make_store(folder, "stream-three", 3)
    return {
        "stream: pass-through floor": lambda: run(floor_source(), "floor", freeze="true"),
        "stream write: least work, 3 copies": lambda: run(floor_source(), "floor", folders=least_folders(folder, 3)),
        "stream write: replog, 3 replicas": lambda: run(floor_source(), "replog", path=three, topic="t"),
        "stream read: replog": lambda: run(replog_source(), "floor", freeze="true"),
    }


FLOORS = {
    "write": "write: pass-through floor",
    "read": "read: pass-through floor",
    "stream": "stream: pass-through floor",
}
"""First word of a case -> the case that is its floor."""


def main() -> None:
    """Run the rounds and print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--dir", default=None)
    parser.add_argument("--conf", nargs="*", default=[], help="Spark settings")
    arguments = parser.parse_args()
    rows = arguments.rows
    confs = {name.replace(".", "__"): value for name, value in (setting.split("=", 1) for setting in arguments.conf)}
    with scratch(arguments.dir) as folder, session("throughput", **confs) as spark:
        source = spark.read.format("floor").option("rows", rows).option("tasks", PARTITIONS).load()
        frame = source.select("key", "value").cache()
        frame.count()
        seconds: dict[str, list[float]] = {}
        actions = cases(spark, folder, frame, rows) | stream_cases(spark, folder, frame, rows)
        chosen = {name: action for name, action in actions.items() if name.startswith(tuple(arguments.only))}
        for number in range(arguments.rounds + 1):
            for name, action in chosen.items():
                began = time.perf_counter()
                took = action()
                if number:
                    measured = took if isinstance(took, float) else time.perf_counter() - began
                    seconds.setdefault(name, []).append(measured)
    rates = {name: [rows / value / 1e6 for value in values] for name, values in seconds.items()}
    print(table(list(rates.items()), "M rows/s"))
    median = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in median.items():
        floor = median[FLOORS[name.partition(":")[0].partition(" ")[0]]]
        print(f"{name}: {value * VALUE_SIZE_BYTES:,.0f} MB/s of values, {value / floor:.2f} of the pass-through floor")


if __name__ == "__main__":
    main()
