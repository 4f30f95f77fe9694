"""Spark's own Kafka connector at a gateway: what a data source in Python cannot have, on rows that it reads too."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from remote import run_in
from spark_driver import SparkDriver

import spark_replog
from tests.waiting import wait_until

pytestmark = pytest.mark.wide
PAGE = Path(__file__).resolve().parents[1] / "docs" / "gateway.md"
JARS = re.search(r"^pyspark --packages (\S+)", PAGE.read_text(), re.M)[1]
COUNT = 3_000


@contextmanager
def gateway_running(environment, store):
    """Yield the address of a gateway, by the wheel's program."""
    command = [str(environment.replog), "-s", str(store.path), "gateway", "--listen", "127.0.0.1:0"]
    with (
        (store.folder / "gateway.log").open("w") as log,
        subprocess.Popen(command, stderr=log, env=environment.variables()) as process,
    ):
        try:
            yield wait_until(lambda: re.search(r"bootstrap.servers=(\S+)\n", Path(log.name).read_text()))[1]
        finally:
            process.terminate()
    assert process.returncode == 0, Path(log.name).read_text()


def write_by_kafka(spark, address, topic, start, end):
    """Append numbers as text; some rows without a key, some without headers."""
    headers = "array(struct('n' key, binary(cast(id as string)) value), struct('' key, binary(null) value))"
    frame = spark.range(start, end, 1, 2).selectExpr(
        "if(id % 7 = 0, null, cast(id % 10 as string)) key",
        "cast(id as string) value",
        f"if(id % 3 = 0, null, {headers}) headers",
    )
    options = {"kafka.bootstrap.servers": address, "topic": topic, "includeHeaders": "true"}
    frame.write.format("kafka").options(**options).save()


def write_by_replog(spark, path, topic, start, end):
    """Append numbers with times of microseconds, as Kafka's clients have not."""
    frame = spark.range(start, end, 1, 2).selectExpr(
        "cast(id as string) value", "timestamp_micros(1700000000000000 + id * 1001) timestamp"
    )
    frame.write.format("replog").mode("append").option("topic", topic).save(path)


def compare(spark, address, path, topic):
    """Return totals of a topic, and how many rows the connector and the data source do not read alike."""
    columns = ["key", "value", "headers", "topic", "partition", "offset", "timestampType"]
    time = "date_trunc('millisecond', timestamp) timestamp"

    def load(reader, path=None):
        reader = reader.option("subscribe", topic).option("includeHeaders", "true")
        return reader.load(path).selectExpr(*columns, time)

    by_kafka = load(spark.read.format("kafka").option("kafka.bootstrap.servers", address)).cache()
    direct = load(spark.read.format("replog"), path).cache()
    return count_by_value(spark, path, topic) | {  # noqa: F821 (in jobs.py)
        "kafka": by_kafka.count(),
        "other": by_kafka.exceptAll(direct).count() + direct.exceptAll(by_kafka).count(),
        "headers": by_kafka.filter("headers[0].value = value and headers[1].value is null").count(),
        "no_key": by_kafka.filter("key is null").count(),
    }


def values_since(spark, address, path, topic, value):
    """Return what the connector reads from the time of a row on: the smallest and the largest number, and how many."""
    direct = spark.read.format("replog").option("subscribe", topic).load(path)
    start = direct.filter(f"value = '{value}'").selectExpr("unix_millis(timestamp) at").collect()[0].at
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingTimestamp": str(start)}
    frame = spark.read.format("kafka").options(**options).load().selectExpr("bigint(cast(value as string)) n")
    return list(frame.selectExpr("min(n)", "max(n)", "count(*)").collect()[0])


def copy_by_kafka(spark, address, source, sink, checkpoint):
    """Copy a topic until nothing is left; return the rows of each micro-batch."""
    options = {"kafka.bootstrap.servers": address, "subscribe": source, "includeHeaders": "true"}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"}
    frame = spark.readStream.format("kafka").options(**options).load().select("key", "value", "headers")
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", address).option("topic", sink)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(280)
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def write_pairs(spark, path, topics, start, end):
    """Append numbers as text to both topics, a second apart; the last five before the start once more."""
    frame = spark.range(max(0, start - 5), end, 1, 2).selectExpr(
        "cast(id as string) value", "timestamp_seconds(1700000000 + id) timestamp"
    )
    for topic in topics:
        frame.write.format("replog").mode("append").option("topic", topic).save(path)


def count_pairs(spark, address, path, form, topics, sink, checkpoint):
    """Join two topics without their doubles, and count the pairs in windows; return the batch that came last."""
    from pyspark.sql.functions import expr, window

    def load(topic, name):
        reader = spark.readStream.format(form).option("subscribe", topic).option("startingOffsets", "earliest")
        reader = reader.option("kafka.bootstrap.servers", address) if form == "kafka" else reader.option("path", path)
        rows = reader.load().selectExpr(f"cast(value as string) {name}_id", f"timestamp {name}_at")
        return rows.withWatermark(f"{name}_at", "10 seconds").dropDuplicates([f"{name}_id", f"{name}_at"])

    near = "left_id = right_id and right_at between left_at - interval 5 seconds and left_at + interval 5 seconds"
    pairs = load(topics[0], "left").join(load(topics[1], "right"), expr(near))
    counts = pairs.groupBy(window("left_at", "10 seconds")).count()
    writer = counts.selectExpr("to_json(struct(window.start, count)) value").writeStream.format("replog")
    writer = writer.option("path", path).option("topic", sink).option("checkpointLocation", checkpoint)
    query = writer.outputMode("append").trigger(availableNow=True).start()
    query.awaitTermination(280)
    if query.exception() is not None:
        raise query.exception()
    return query.lastProgress["batchId"]


def start_real_time(spark, address, source, sink, checkpoint):
    """Start a copy in real-time mode, whose first batch takes longer than the test."""
    kafka = {"kafka.bootstrap.servers": address}
    frame = spark.readStream.format("kafka").options(**kafka).option("subscribe", source)
    frame = frame.option("startingOffsets", "earliest").load().selectExpr("key", "upper(cast(value as string)) value")
    writer = frame.writeStream.format("kafka").options(**kafka).option("topic", sink)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("update").trigger(realTime="30 minutes")
    QUERIES["real time"] = writer.start()  # noqa: F821 (in jobs.py)


@pytest.fixture(scope="module")
def driver(environment, work_folder, cache_folder):
    """A driver with the connector, which Spark fetches by the coordinates of docs/gateway.md."""
    settings = {"spark.jars.packages": JARS, "spark.jars.ivy": str(cache_folder / "ivy"), "spark.master": "local[6]"}
    log = work_folder / "driver-connector.log"
    with SparkDriver(environment.quick_to_start(), log, "serve", json.dumps(settings)) as driver:
        yield driver


@pytest.fixture(scope="module")
def address(environment, store):
    with gateway_running(environment, store) as address:
        yield address


def test_a_batch_goes_in_and_out_with_keys_headers_and_times(driver, store, address):
    topic, path = store.topic("batch", 2), str(store.path)
    run_in(driver, write_by_kafka, address=address, topic=topic, start=0, end=COUNT)
    run_in(driver, write_by_kafka, address=address, topic=topic, start=COUNT, end=COUNT + 1)
    run_in(driver, write_by_kafka, address=address, topic=topic, start=COUNT + 1, end=COUNT + 50)
    assert run_in(driver, values_since, address=address, path=path, topic=topic, value=COUNT) == [COUNT, COUNT + 49, 50]
    run_in(driver, write_by_replog, path=path, topic=topic, start=COUNT + 50, end=COUNT + 100)
    answer = run_in(driver, compare, address=address, path=path, topic=topic)
    written = range(COUNT + 50)
    assert answer == {
        "rows": COUNT + 100, "distinct": COUNT + 100, "sum": sum(range(COUNT + 100)), "dense": True, "partitions": 2,
        "kafka": COUNT + 100, "other": 0, "headers": sum(n % 3 != 0 for n in written),
        "no_key": sum(n % 7 == 0 for n in written) + 50,
    }  # fmt: skip


def test_a_stream_goes_from_topic_to_topic_and_on_after_a_restart(driver, store, address):
    source, sink, path = store.topic("in", 2), store.topic("out", 3), str(store.path)
    arguments = {"address": address, "source": source, "sink": sink, "checkpoint": store.checkpoint("stream")}
    for start in (0, COUNT):
        run_in(driver, write_by_kafka, address=address, topic=source, start=start, end=start + COUNT)
        batches = run_in(driver, copy_by_kafka, **arguments)
        assert sum(batches) == COUNT and len(batches) >= 3
    answer = run_in(driver, compare, address=address, path=path, topic=sink)
    count = 2 * COUNT
    assert answer == {
        "rows": count, "distinct": count, "sum": sum(range(count)), "dense": True, "partitions": 3,
        "kafka": count, "other": 0, "headers": sum(n % 3 != 0 for n in range(count)),
        "no_key": sum(n % 7 == 0 for n in range(count)),
    }  # fmt: skip


def test_real_time_mode_passes_rows_on_within_its_batch(driver, store, address):
    source, sink, path = store.topic("live-in", 2), store.topic("live-out", 2), str(store.path)
    copies = spark_replog.open(path).topic(sink)
    run_in(driver, write_by_kafka, address=address, topic=source, start=0, end=COUNT)
    checkpoint = store.checkpoint("real-time")
    run_in(driver, start_real_time, address=address, source=source, sink=sink, checkpoint=checkpoint)
    for end in (COUNT, COUNT + 500):
        if end > COUNT:
            run_in(driver, write_by_kafka, address=address, topic=source, start=COUNT, end=end)
        wait_until(lambda: copies.scan().to_arrow().num_rows >= end, pause_seconds=0.5)  # noqa: B023
    assert driver.call("progress_of", name="real time") is None, "still in its first batch"
    driver.call("stop_named", name="real time")
    answer = run_in(driver, compare, address=address, path=path, topic=sink)
    count = COUNT + 500
    assert answer == {
        "rows": count, "distinct": count, "sum": sum(range(count)), "dense": True, "partitions": 2,
        "kafka": count, "other": 0, "headers": 0, "no_key": sum(n % 7 == 0 for n in range(count)),
    }  # fmt: skip


def test_a_stateful_query_is_moved_here_in_mid_stream_and_back_and_counts_as_its_twin_that_stayed(
    driver, environment, store, address
):
    """Two sources, two times doubles, a join and windows: state, watermarks and batches of the checkpoint go on."""
    topics, path = [store.topic("pairs-left", 2), store.topic("pairs-right", 2)], str(store.path)
    sinks = {name: store.topic(f"pairs-{name}", 1) for name in ("moved", "twin")}
    checkpoint, twin = store.checkpoint("pairs-0"), store.checkpoint("pairs-twin")
    batches = []
    for turn, form in enumerate(("kafka", "replog", "kafka")):
        run_in(driver, write_pairs, path=path, topics=topics, start=turn * 100, end=turn * 100 + 100)
        if turn:
            original, checkpoint = checkpoint, store.checkpoint(f"pairs-{turn}")
            command = [environment.replog, "-s", path, "checkpoint", "convert", original, checkpoint, "--to", form]
            done = environment.run(*map(str, command), "--bootstrap", address, "-f", "json")
            answer = json.loads(done.stdout)
            assert {item["source"] for item in answer["items"]} == {"0", "1"}
            assert sum(item["rows"] for item in answer["items"]) == 2 * (turn * 105 - 5), "all rows were compared"
        shared = {"address": address, "path": path, "topics": topics}
        batches.append(run_in(driver, count_pairs, form=form, sink=sinks["moved"], checkpoint=checkpoint, **shared))
        run_in(driver, count_pairs, form="kafka", sink=sinks["twin"], checkpoint=twin, **shared)
    rows = {
        name: spark_replog.open(path).topic(sink).scan().to_arrow().column("value").to_pylist()
        for name, sink in sinks.items()
    }
    counted = [json.loads(value) for value in rows["moved"]]
    assert sorted(rows["moved"]) == sorted(rows["twin"])
    assert [item["count"] for item in counted] == [10] * len(counted) and len(counted) >= 27
    assert batches == sorted(set(batches)), "the batches of one query"
