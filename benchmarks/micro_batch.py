"""The time of one micro-batch, replog to replog, beside a Python source and sink that do nothing.

Three local roots, 3 replicas, fsync on, Spark's defaults, two tasks, 1,000 rows a batch. The pairs run
in turn in one session, several times; the first 30 micro-batches of each run are dropped. Beside replog to replog runs
replog with one end that does nothing: only the sink, only the source. That end is a Python one, its garbage frozen, or
Spark's own in the JVM (``rate-micro-batch``, ``noop``).

    python -m benchmarks.micro_batch [--batches 70] [--rounds 3] [--dir FOLDER] [--shipped]
        [--conf NAME=VALUE ...] [--cases NAME ...]
        [--two-queries [--trigger-ms 1000]] [--delay-ms 20]

--two-queries: instead, one query beside two that write to one topic, and two that write to a topic each.
--trigger-ms: with a processing-time trigger, so that turns at the ledger are measured and not who gets a processor.
Spark starts such batches at multiples of the interval: two queries of one interval always start at the same moment. In
the cases "apart" the second one's interval is 0.7 of the first one's, so that it starts at ten moments of it.
--delay-ms: the roots are buckets on versitygw, behind a relay that adds this to each call.
--cases: only these, for instance "floor, gc frozen" and replog.
--shipped: with the settings of ``spark_replog.session_conf()``. --conf: with one more, for instance
spark.python.udf.pipelined.enabled=true.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_replog
from benchmarks.bench_session import scratch, session, table, tree_usage
from benchmarks.delay_relay import DelayRelay
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from tests.servers.server import VersityGateway
from tests.servers.stores import RealRoots

ROWS = 1_000
WARM_UP = 30


def durations(query: StreamingQuery, batches: int) -> list[dict[str, float]]:
    """Wait for so many micro-batches; return the durations (ms) of those after the warm-up.

    ``processor`` is what one took of the processors on average: of all processes, other queries included.
    """
    seen: dict[int, dict[str, float]] = {}
    start: tuple[int, float] | None = None
    deadline = time.monotonic() + 300
    while len(seen) < batches and time.monotonic() < deadline and query.isActive:
        for progress in query.recentProgress:
            if progress["numInputRows"] > 0:
                seen[progress["batchId"]] = dict(progress["durationMs"])
        if start is None and len(seen) >= WARM_UP:
            start = len(seen), tree_usage()[0]
        time.sleep(0.2)
    used = (tree_usage()[0] - start[1]) / max(1, len(seen) - start[0]) if start else 0.0
    query.stop()
    return [value | {"processor": used * 1000} for batch, value in sorted(seen.items()) if batch >= WARM_UP]


def floor_source(spark: SparkSession, batches: int, freeze: bool) -> DataFrame:
    """Return the source that does nothing, with or without the `gc.freeze()` that replog's workers do."""
    reader = spark.readStream.format("floor").option("rows", ROWS).option("tasks", 2)
    return reader.option("batches", batches).option("freeze", freeze).load()


def rate_source(spark: SparkSession) -> DataFrame:
    """Return the rows of Spark's own source that does nothing, 1,000 a micro-batch."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    return reader.load().selectExpr("CAST(value AS STRING) AS key", "repeat('x', 100) AS value")


def noop_sink(source: DataFrame, checkpoint: Path) -> StreamingQuery:
    """Start a query into Spark's own sink that does nothing."""
    writer = source.select("key", "value").writeStream.format("noop")
    return writer.option("checkpointLocation", str(checkpoint)).start()


OPTIONS: dict[str, str] = {}
"""Of the roots, as Spark's options."""


def replog_source(spark: SparkSession, path: str) -> DataFrame:
    """Return 1,000 rows a micro-batch of the topic in."""
    reader = spark.readStream.format("replog").options(**OPTIONS).option("path", path).option("subscribe", "in")
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS).load()


def floor_sink(source: DataFrame, checkpoint: Path, freeze: bool) -> StreamingQuery:
    """Start a query into the sink that does nothing."""
    writer = source.select("key", "value").writeStream.format("floor").option("freeze", freeze)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def replog_sink(
    source: DataFrame, path: str, checkpoint: Path, topic: str = "out", trigger_ms: float = 0
) -> StreamingQuery:
    """Start a query into a topic."""
    writer = source.select("key", "value").writeStream.format("replog").options(**OPTIONS)
    writer = writer.option("path", path).option("topic", topic)
    writer = writer.trigger(processingTime=f"{trigger_ms:.0f} milliseconds")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def print_two_queries(spark: SparkSession, path: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Print what a micro-batch takes alone, beside a query into the same topic, and beside one into another topic."""
    trigger_ms, both = arguments.trigger_ms, (1.0, 1.0)
    cases = {"alone": (("out",), both), "one topic": (("out", "out"), both), "a topic each": (("out", "other"), both)}
    if trigger_ms:
        apart = 1.0, 0.7
        cases |= {"one topic, apart": (("out", "out"), apart), "a topic each, apart": (("out", "other"), apart)}
    cases = {name: cases[name] for name in arguments.cases or cases}
    times_ms: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(arguments.rounds):
        # A JVM gets faster for minutes: every other round goes backwards, so that no case has the older one.
        for name, (topics, parts) in list(cases.items())[:: -1 if number % 2 else 1]:
            queries = [
                replog_sink(
                    replog_source(spark, path),
                    path,
                    folder / f"{name}-{number}-{place}",
                    topic,
                    trigger_ms * parts[place],
                )
                for place, topic in enumerate(topics)
            ]
            with ThreadPoolExecutor(len(queries)) as pool:
                rows = pool.map(lambda query: durations(query, arguments.batches), queries)
                times_ms[name] += [row["triggerExecution"] for query_rows in rows for row in query_rows]
    print("| queries | p50 ms | p95 ms | max ms | batches |\n| --- | --- | --- | --- | --- |")
    for name, values in times_ms.items():
        p95 = statistics.quantiles(values, n=20)[-1]
        print(f"| {name} | {statistics.median(values):.0f} | {p95:.0f} | {max(values):.0f} | {len(values)} |")


@contextmanager
def store(folder: Path, delay_ms: float) -> Iterator[str]:
    """Make a store with three topics and yield its path: local roots, or buckets that are some time away."""
    with ExitStack() as stack:
        roots = RealRoots([str(folder / "store")], {})
        if delay_ms:
            server = stack.enter_context(VersityGateway(folder))
            relay = stack.enter_context(DelayRelay(server.port, delay_ms))
            roots = RealRoots.of(server, 3, ports=[relay.port] * 3)
            OPTIONS.update({f"storage.{name}": value for name, value in roots.options.items()})
        controller = Controller(init_cluster(roots.path, 3, roots.options, fsync=True))
        for topic in ("in", "out", "other"):
            controller.create_topic(topic, partitions=2, replicas=3, config={})
        yield roots.path


def main() -> None:
    """Run the pairs in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=70)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--two-queries", action="store_true")
    parser.add_argument("--trigger-ms", type=float, default=0)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--conf", nargs="*", default=[])
    parser.add_argument("--cases", nargs="*", default=[])
    arguments = parser.parse_args()
    batches = arguments.batches
    results: dict[str, list[dict[str, float]]] = {}
    confs = (spark_replog.session_conf() if arguments.shipped else {}) | dict(
        setting.split("=", 1) for setting in arguments.conf
    )
    settings = {name.replace(".", "__"): value for name, value in confs.items()}
    with (
        scratch(arguments.dir) as folder,
        store(folder, arguments.delay_ms) as path,
        session("micro-batch", 2, **settings) as spark,
    ):
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        rows = spark.read.format("floor").option("rows", ROWS * (batches + 20)).load().select("key", "value")
        rows.write.format("replog").options(**OPTIONS).option("path", path).option("topic", "in").mode("append").save()
        if arguments.two_queries:
            print_two_queries(spark, path, folder, arguments)
            return
        cases: dict[str, Callable[[Path], StreamingQuery]] = {
            "floor": lambda home: floor_sink(floor_source(spark, batches, False), home, False),
            "floor, gc frozen": lambda home: floor_sink(floor_source(spark, batches, True), home, True),
            "replog": lambda home: replog_sink(replog_source(spark, path), path, home),
            "replog as sink": lambda home: replog_sink(floor_source(spark, batches, True), path, home),
            "replog as source": lambda home: floor_sink(replog_source(spark, path), home, True),
            "rate to noop": lambda home: noop_sink(rate_source(spark), home),
            "rate to replog": lambda home: replog_sink(rate_source(spark), path, home),
            "replog to noop": lambda home: noop_sink(replog_source(spark, path), home),
        }
        cases = {name: cases[name] for name in arguments.cases or cases}
        for number in range(arguments.rounds):
            for name, start in cases.items():
                batch_times = durations(start(folder / f"{name}-{number}"), batches)
                results.setdefault(name, []).extend(batch_times)
    phases = "triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets", "processor"
    for phase in phases:
        print(f"\n{phase}")
        print(table([(name, [row.get(phase, 0.0) for row in values]) for name, values in results.items()], "ms"))
    median = {name: statistics.median(row["triggerExecution"] for row in rows) for name, rows in results.items()}
    for name in {"floor", "floor, gc frozen"} & median.keys() if "replog" in median else ():
        print(f"\nreplog over the do-nothing pair ({name}): {median['replog'] - median[name]:.1f} ms a micro-batch")


if __name__ == "__main__":
    main()
