"""A micro-batch is in the log once, whatever is killed, repeated or started twice."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spark_driver import JobFailed, SparkDriver

from tests.waiting import wait_until

pytestmark = pytest.mark.case("connector-repeated-batch-written-once-kafka")

ROWS_PER_KILL = 4_000
"""Of a query; more than it copies until the next one."""
ROWS_PER_BATCH = 300
FEW_KILLS = 2


def numbers(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.iterdir() if file.name.isdigit()} if folder.exists() else set()


def kill_loop(environment, log, arguments, kills, moments):
    """Start a query, kill its driver, and so on; return how many kills met a micro-batch under way.

    Every other kill comes while the query starts or repeats the batch that the last one met, the rest later.
    """
    checkpoint = Path(arguments["checkpoint"])
    in_flight = 0
    for kill in range(kills):
        driver = SparkDriver(environment, log, "copy", json.dumps({**arguments, "until_idle": False}))
        try:
            message = driver.next_message(300)
            assert message == {"started": True}, (kill, message)
            if kill % 2:
                message = driver.next_message(300)
                assert message.get("error") is None, (kill, message)
            time.sleep(moments.uniform(0.0, 2.0 if kill % 2 else 5.0))
        finally:
            driver.kill()
        in_flight += max(numbers(checkpoint / "offsets"), default=-1) > max(numbers(checkpoint / "commits"), default=-1)
        if not numbers(checkpoint / "offsets"):
            # Spark refuses a checkpoint folder that a query left before its first batch had offsets
            # (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY) and tells its user to delete it. No batch was written.
            shutil.rmtree(checkpoint, ignore_errors=True)
    return in_flight


TYPED = ("--schema", "id BIGINT NOT NULL, value STRING", "--key", "id")


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("is_long", "schema"),
    [
        pytest.param(False, (), id="few"),
        pytest.param(True, (), id="many", marks=pytest.mark.wide),
        pytest.param(True, TYPED, id="many-typed", marks=pytest.mark.wide),
    ],
)
def test_driver_killed_again_and_again(
    spark, environment, make_store, request, record_property, work_folder, is_long, schema
):
    """SIGKILL at random moments of running queries; every row is in the topic once, offsets dense.

    Two queries, each with a driver that is killed and started again, write to one topic at the same time. In the end
    the driver of the other tests takes over both.
    """
    kills = request.config.getoption("--kills") if is_long else FEW_KILLS
    environment = environment.quick_to_start_often() if is_long else environment.quick_to_start()
    rows = ROWS_PER_KILL * max(1, kills // 2)
    seed = random.SystemRandom().randrange(2**32)
    record_property("seed", seed)
    store = make_store()
    path, sink = str(store.path), store.topic("sink", 2, 3, *schema)
    queries = []
    for number in range(2):
        source = store.topic(f"source-{number}", 1, 3, *schema)
        write = {"job": "write_typed"} if schema else {"job": "write", "tasks": 1}
        spark.call(**write, path=path, topic=source, start=number * rows, end=(number + 1) * rows)
        checkpoint = store.checkpoint(f"checkpoint-{number}")
        queries.append({"path": path, "source": source, "sink": sink, "checkpoint": checkpoint})
        queries[-1] |= {"select": ["*"]} if schema else {}

    def loop(number):
        limit = {"source_options": {"maxOffsetsPerTrigger": str(ROWS_PER_BATCH)}}
        share, log = kills // 2 + (number < kills % 2), work_folder / f"killed-{number}.log"
        return kill_loop(environment, log, queries[number] | limit, share, random.Random(seed + number))

    with ThreadPoolExecutor(2) as threads:
        in_flight = sum(threads.map(loop, range(2)))
    assert in_flight > 0 or kills < 5, f"no kill met a batch under way (seed {seed})"
    for query in queries:
        spark.call("copy_stream", **query)
    batches = [max(numbers(Path(store.checkpoint(f"checkpoint-{number}"), "commits"))) + 1 for number in range(2)]
    print(f"kills {kills}, met a batch under way {in_flight}, micro-batches {batches}, seed {seed}")
    total = 2 * rows
    assert spark.call("count_by_value", path=path, topic=sink, is_typed=bool(schema)) == {
        "rows": total, "distinct": total, "sum": total * (total - 1) // 2, "dense": True, "partitions": 2,
    }, seed  # fmt: skip


@pytest.mark.guarantee("G3")
def test_commit_lost_from_the_checkpoint_is_not_written_twice(spark, store):
    """As if the driver died between the ENTRY and Spark's own commit file."""
    source, sink = store.topic("replay", 1), store.topic("replay-out", 1)
    path, checkpoint = str(store.path), store.checkpoint("replay")
    spark.call("write", path=path, topic=source, start=0, end=20, tasks=1)
    spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)
    last = max(numbers(Path(checkpoint, "commits")))
    for file in Path(checkpoint, "commits").glob(f"*{last}*"):
        file.unlink()
    spark.call("write", path=path, topic=source, start=20, end=30, tasks=1)
    spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)
    rows = spark.call("read", path=path, topic=sink)
    assert [int(row[3]) for row in rows] == list(range(30))


@pytest.mark.guarantee("G3")
def test_an_older_checkpoint_is_refused_and_the_newest_goes_on(spark, store):
    source, sink = store.topic("restored", 1), store.topic("restored-out", 1)
    path, newest, backup = str(store.path), store.checkpoint("restored"), store.checkpoint("restored-backup")

    def copy_from(checkpoint, first):
        spark.call("write", path=path, topic=source, start=first, end=first + 10, tasks=1)
        spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)

    copy_from(newest, 0)
    shutil.copytree(newest, backup)
    copy_from(newest, 10)
    with pytest.raises(JobFailed, match=r"\[REPLOG_CHECKPOINT_RESET\].*another `offsets` file"):
        copy_from(backup, 20)
    copy_from(newest, 30)
    assert [int(row[3]) for row in spark.call("read", path=path, topic=sink)] == list(range(40))


def test_two_queries_write_one_topic(spark, store):
    path = str(store.path)
    one, two, sink = store.topic("left", 1), store.topic("right", 1), store.topic("both", 2)
    limit = {"maxOffsetsPerTrigger": "50"}
    spark.call("write", path=path, topic=one, start=0, end=600, tasks=1)
    spark.call("write", path=path, topic=two, start=600, end=1200, tasks=1)
    for source in (one, two):
        spark.call(
            "start_named", name=source, path=path, source=source, sink=sink,
            checkpoint=store.checkpoint(f"ck-{source}"), source_options=limit,
        )  # fmt: skip
    for source in (one, two):
        spark.call("drain_named", name=source)
    counts = spark.call("count_by_value", path=path, topic=sink)
    assert counts == {"rows": 1200, "distinct": 1200, "sum": 1200 * 1199 // 2, "dense": True, "partitions": 2}


@pytest.mark.guarantee("G3")
def test_the_same_query_twice(spark, other_spark, store):
    """Two drivers on one checkpoint: one of them fails, no row is written twice."""
    path = str(store.path)
    source, sink, checkpoint = store.topic("twin", 1), store.topic("twin-out", 2), store.checkpoint("twin")
    spark.call("write", path=path, topic=source, start=0, end=6000, tasks=1)
    arguments = {
        "path": path, "source": source, "sink": sink, "checkpoint": checkpoint,
        "source_options": {"maxOffsetsPerTrigger": "100"},
    }  # fmt: skip

    def one_fails():
        for driver in (other_spark, spark):
            try:
                driver.call("progress_of", name="twin")
            except JobFailed as error:
                return str(error)
        return None

    other_spark.call("start_named", name="twin", **arguments)
    try:
        wait_until(lambda: other_spark.call("progress_of", name="twin") is not None, "a micro-batch of the first")
        spark.call("start_named", name="twin", **arguments)
        wait_until(one_fails, "an error of one of the two", pause_seconds=0.05)
    finally:
        for driver in (other_spark, spark):
            with contextlib.suppress(JobFailed):
                driver.call("stop_named", name="twin")
    spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)
    counts = spark.call("count_by_value", path=path, topic=sink)
    assert counts == {"rows": 6000, "distinct": 6000, "sum": 6000 * 5999 // 2, "dense": True, "partitions": 2}


def test_deleted_checkpoint(spark, store):
    """A new checkpoint is a new query, unless transactional.id says that it is not."""
    path = str(store.path)
    source, plain, named = store.topic("reset", 1), store.topic("reset-plain", 1), store.topic("reset-named", 1)
    spark.call("write", path=path, topic=source, start=0, end=10, tasks=1)

    def copy(sink, name, **sink_options):
        checkpoint = store.checkpoint(name)
        shutil.rmtree(checkpoint, ignore_errors=True)
        spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint, sink_options=sink_options)

    def count(sink):
        return len(spark.call("read", path=path, topic=sink))

    copy(plain, "ck-plain")
    copy(plain, "ck-plain")
    assert count(plain) == 20
    copy(named, "ck-named", **{"transactional.id": "orders-job"})
    with pytest.raises(JobFailed, match=r"\[REPLOG_CHECKPOINT_RESET\]"):
        copy(named, "ck-named", **{"transactional.id": "orders-job"})
    assert count(named) == 10
    copy(named, "ck-named", **{"transactional.id": "orders-job", "onCheckpointReset": "skip"})
    assert count(named) == 10
    copy(named, "ck-named", **{"transactional.id": "orders-job", "onCheckpointReset": "append"})
    assert count(named) == 20


def test_batch_write_with_a_transaction_is_written_once(spark, store):
    path, topic = str(store.path), store.topic("txn", 1)
    options = {"txnAppId": "nightly", "txnVersion": "3"}
    spark.call("write", path=path, topic=topic, start=0, end=10, tasks=1, options=options)
    spark.call("write", path=path, topic=topic, start=0, end=10, tasks=1, options=options)
    assert len(spark.call("read", path=path, topic=topic)) == 10
    with pytest.raises(JobFailed, match=r"\[REPLOG_DUPLICATE_TXN_MISMATCH\]"):
        spark.call("write", path=path, topic=topic, start=0, end=11, tasks=1, options=options)
    spark.call("write", path=path, topic=topic, start=10, end=12, tasks=1, options={**options, "txnVersion": "4"})
    assert len(spark.call("read", path=path, topic=topic)) == 12


def test_foreach_batch(spark, store):
    path = str(store.path)
    source, bare, once = store.topic("each", 1), store.topic("each-bare", 1), store.topic("each-once", 1)
    spark.call("write", path=path, topic=source, start=0, end=10, tasks=1)
    spark.call("foreach_batch", path=path, source=source, sink=bare, checkpoint=store.checkpoint("each-1"), options={})
    assert len(spark.call("read", path=path, topic=bare)) == 20
    assert "a batch write inside streaming query" in spark.log_text()
    options = {"txnAppId": "each", "txnVersion": "$batch"}
    spark.call(
        "foreach_batch", path=path, source=source, sink=once, checkpoint=store.checkpoint("each-2"), options=options
    )
    assert len(spark.call("read", path=path, topic=once)) == 10
