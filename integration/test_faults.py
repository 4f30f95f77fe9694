"""Roots that go away under a running query, and come back."""

from __future__ import annotations

import pytest
from remote import run_in

from tests.waiting import wait_until


@pytest.mark.guarantee("G4")
def test_root_goes_and_comes_back(spark, make_store):
    """One of three roots is renamed away during a query: it goes on, and nothing is lost or twice."""
    store = make_store(3)
    path = str(store.path)
    source, sink = store.topic("feed", 1), store.topic("sink", 2)
    spark.call("write", path=path, topic=source, start=0, end=20_000, tasks=1)
    spark.call(
        "start_named", name="faulty", path=path, source=source, sink=sink, checkpoint=store.checkpoint(),
        source_options={"maxOffsetsPerTrigger": "400"},
    )  # fmt: skip

    def wait_for(batches):
        start = spark.call("progress_of", name="faulty") or 0
        wait_until(
            lambda: (spark.call("progress_of", name="faulty") or 0) >= start + batches,
            spark.log_tail,
            pause_seconds=0.1,
        )

    wait_for(3)
    root, away = store.path / "broker-1", store.path / "broker-1.away"
    root.rename(away)
    wait_for(5)
    assert not root.exists(), "a write made the vanished root again"
    (sink_partitions,) = [item["partitions"] for item in store.cli("topic", "describe", sink)]
    assert all(1 not in item["isr"] for item in sink_partitions)
    away.rename(root)
    wait_for(5)
    spark.call("drain_named", name="faulty")
    counts = spark.call("count_by_value", path=path, topic=sink)
    rows = 20_000
    assert counts == {"rows": rows, "distinct": rows, "sum": rows * (rows - 1) // 2, "dense": True, "partitions": 2}


def test_any_one_root_may_be_lost_for_readers(spark, make_store):
    store = make_store(3)
    path, topic = str(store.path), store.topic("kept", 2)
    spark.call("write", path=path, topic=topic, start=0, end=500)
    for broker in range(3):
        root, away = store.path / f"broker-{broker}", store.path / f"broker-{broker}.away"
        root.rename(away)
        try:
            assert len(spark.call("read", path=path, topic=topic)) == 500
        finally:
            away.rename(root)


@pytest.mark.guarantee("G7")
def test_damaged_copy_is_read_from_another_root(spark, make_store):
    store = make_store(3)
    path, topic = str(store.path), store.topic("bits", 1)
    spark.call("write", path=path, topic=topic, start=0, end=500, tasks=1)
    files = sorted((store.path / "broker-0").glob("ledgers/*/data/*/*.arrow"))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 64] = bytes(64)
        file.write_bytes(data)
    rows = spark.call("read", path=path, topic=topic)
    assert [int(row[3]) for row in rows] == list(range(500))


def test_an_outage_does_not_lose_rows_although_loss_is_tolerated(spark, make_store):
    """failOnDataLoss=false, and the roots go away between the plan of a micro-batch and its tasks."""
    store = make_store(3)
    path, topic = str(store.path), store.topic("outage", 1)
    spark.call("write", path=path, topic=topic, start=0, end=50, tasks=1)
    arguments = {"path": path, "topic": topic, "checkpoint": store.checkpoint("outage")}
    failed = run_in(spark, read_in_an_outage, **arguments, away=True)
    assert failed["rows"] == []
    assert "KAFKA_STORAGE_ERROR" in failed["error"], failed["error"]
    repeated = run_in(spark, read_in_an_outage, **arguments, away=False)
    assert repeated == {"rows": list(range(50)), "error": ""}


def read_in_an_outage(spark, path, topic, checkpoint, away):
    """Run one micro-batch whose tasks are planned first; rename the roots while they run. Return rows and error."""
    from pathlib import Path

    rows = []

    def put(frame, batch_id):
        planned = frame.selectExpr("cast(cast(value as string) as int) number")
        planned._jdf.queryExecution().executedPlan().execute().getNumPartitions()  # plans, and starts no task
        roots = sorted(Path(path).glob("broker-*")) if away else []
        for root in roots:
            root.rename(root.with_suffix(".away"))
        try:
            rows.extend(row.number for row in planned.collect())
        finally:
            for root in roots:
                root.with_suffix(".away").rename(root)

    source = spark.readStream.format("replog").option("subscribe", topic).option("startingOffsets", "earliest")
    frame = source.option("failOnDataLoss", "false").load(path)
    query = frame.writeStream.foreachBatch(put).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    error = ""
    try:
        query.start().awaitTermination(280)
    except Exception as failure:
        error = str(failure)
    return {"rows": sorted(rows), "error": error}
