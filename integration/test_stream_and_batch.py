"""Rows in and out of the log through Spark, as a stream, as a batch, and in SQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_driver import SparkDriver

READ_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
)


def offsets_are_dense(rows):
    by_partition = {}
    for partition, offset, *_ in rows:
        by_partition.setdefault(partition, []).append(offset)
    return all(sorted(offsets) == list(range(len(offsets))) for offsets in by_partition.values())


def test_the_wheel_is_what_runs(spark, environment):
    about = spark.call("about")
    assert about["file"].startswith(str(environment.folder))
    assert about["spark"].startswith("4.3.")
    assert about["version"] != "0+unknown"
    program = environment.run(str(environment.replog), "--version").stdout
    assert about["version"] in program


def test_batch_in_and_out(spark, store):
    topic = store.topic("batch", 3)
    spark.call("write", path=str(store.path), topic=topic, start=0, end=50)
    spark.call("write", path=str(store.path), topic=topic, start=50, end=80)
    rows = spark.call("read", path=str(store.path), topic=topic)
    assert sorted(int(row[3]) for row in rows) == list(range(80))
    assert all(int(row[3]) % 10 == int(row[2]) for row in rows)
    assert offsets_are_dense(rows)
    assert {row[4] for row in rows} == {0}


@pytest.mark.guarantee("G1")
def test_equal_keys_stay_in_order(spark, store):
    topic = store.topic("order", 3)
    spark.call("write", path=str(store.path), topic=topic, start=0, end=1000, tasks=1)
    rows = spark.call("read", path=str(store.path), topic=topic)
    for key in range(10):
        values = [int(row[3]) for row in rows if row[2] == str(key)]
        assert values == list(range(key, 1000, 10))
        assert len({row[0] for row in rows if row[2] == str(key)}) == 1


@pytest.mark.guarantee("G1")
def test_rows_that_workers_read_ahead_keep_their_order(environment, work_folder, store):
    """Spark 4.3 can read a task's Arrow batches ahead on a thread of the worker, for data sources too."""
    settings = {"spark.python.udf.pipelined.enabled": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    source, sink = store.topic("ahead", 3), store.topic("ahead-out", 2)
    driver = SparkDriver(environment, work_folder / "driver-ahead.log", "serve", json.dumps(settings))
    try:
        driver.call("write", path=str(store.path), topic=source, start=0, end=20_000, tasks=1)
        arguments = {"path": str(store.path), "source": source, "sink": sink, "checkpoint": store.checkpoint("ahead")}
        assert sum(driver.call("copy_stream", **arguments)) == 20_000
        for topic in (source, sink):
            rows = driver.call("read", path=str(store.path), topic=topic)
            for key in range(10):
                values = [int(row[3]) for row in sorted(rows) if row[2] == str(key)]
                assert values == list(range(key, 20_000, 10))
    finally:
        driver.close()


def test_stream_in_and_out_with_restart(spark, store):
    source, sink = store.topic("in", 2), store.topic("out", 2)
    path, checkpoint = str(store.path), store.checkpoint("restart")
    spark.call("write", path=path, topic=source, start=0, end=100)
    limited = spark.call(
        "copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint,
        source_options={"maxOffsetsPerTrigger": "30"},
    )  # fmt: skip
    assert sum(limited) == 100
    assert len([rows for rows in limited if rows]) >= 4
    spark.call("write", path=path, topic=source, start=100, end=130)
    assert sum(spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)) == 30
    assert sum(spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)) == 0
    rows = spark.call("read", path=path, topic=sink)
    assert sorted(int(row[3]) for row in rows) == list(range(130))
    assert offsets_are_dense(rows)


def test_latest_survives_a_first_batch_that_was_not_committed(spark, store):
    """Spark asks for the initial offset again when it repeats batch 0; "latest" has moved by then."""
    source, sink = store.topic("late", 1), store.topic("late-out", 1)
    path, checkpoint = str(store.path), store.checkpoint("latest")
    latest = {"startingOffsets": "latest"}
    arguments = {"path": path, "source": source, "sink": sink, "checkpoint": checkpoint, "source_options": latest}
    spark.call("write", path=path, topic=source, start=0, end=10, tasks=1)
    assert sum(spark.call("copy_stream", **arguments)) == 0
    # As if the first run had started at 5, planned [5, 10), and died before its commit.
    for file in Path(checkpoint, "commits").glob("*0*"):
        file.unlink()
    offsets = Path(checkpoint, "offsets", "0")
    text = offsets.read_text()
    assert '"from": {"late": {"0": 10}}' in text
    offsets.write_text(text.replace('"from": {"late": {"0": 10}}', '"from": {"late": {"0": 5}}'))
    Path(checkpoint, "offsets", ".0.crc").unlink(missing_ok=True)
    spark.call("write", path=path, topic=source, start=10, end=20, tasks=1)
    spark.call("copy_stream", **arguments)
    assert [int(row[3]) for row in spark.call("read", path=path, topic=sink)] == list(range(5, 20))


def test_batch_reads_a_snapshot(spark, store):
    topic = store.topic("snapshot", 2)
    spark.call("write", path=str(store.path), topic=topic, start=0, end=7)
    assert spark.call("same_frame_twice", path=str(store.path), topic=topic) == [7, 7, 12]


def test_batch_bounds_and_splitting(spark, store):
    topic = store.topic("bounds", 1)
    path = str(store.path)
    spark.call("write", path=path, topic=topic, start=0, end=100, tasks=1)
    ends = {"startingOffsets": '{"bounds":{"0":10}}', "endingOffsets": '{"bounds":{"0":40}}'}
    rows = spark.call("read", path=path, topic=topic, options=ends)
    assert [row[1] for row in rows] == list(range(10, 40))
    assert spark.call("plan_size", path=path, topic=topic, options={**ends, "minPartitions": "3"}) == {
        "tasks": 3,
        "rows": 30,
    }


def test_empty_topic(spark, store):
    topic = store.topic("empty", 2)
    assert spark.call("read", path=str(store.path), topic=topic) == []
    spark.call("write", path=str(store.path), topic=topic, start=0, end=0)
    assert spark.call("read", path=str(store.path), topic=topic) == []


def test_schema(spark, store):
    topic = store.topic("schema", 1)
    assert spark.call("schema", path=str(store.path), topic=topic) == READ_SCHEMA + ">"
    assert (
        spark.call("schema", path=str(store.path), topic=topic, options={"includeHeaders": "true"})
        == READ_SCHEMA + ",headers:array<struct<key:string,value:binary>>>"
    )


def test_columns_of_every_kind(spark, store):
    first, second = store.topic("kinds-1", 4), store.topic("kinds-2", 4)
    spark.call(
        "write_sql",
        path=str(store.path),
        query="""
            select 'kinds-1' topic, 2 partition, binary('k') key, 'one' value, timestamp'2024-05-06 07:08:09' timestamp,
                   array(named_struct('key', 'a', 'value', binary('1')), named_struct('key', 'a', 'value', binary('2')))
                   headers, 5L ignored
            union all select 'kinds-2', 3, null, null, timestamp'2024-01-01 00:00:00', null, 6L
        """,
    )
    assert spark.call("read", path=str(store.path), topic=first) == [[2, 0, "k", "one", 0]]
    assert spark.call("read", path=str(store.path), topic=second) == [[3, 0, None, None, 0]]
    assert spark.call("read_headers", path=str(store.path), topic=first) == [
        ["one", [["a", "1"], ["a", "2"]], "2024-05-06 07:08:09"]
    ]
    assert spark.call("read_headers", path=str(store.path), topic=second)[0][:2] == [None, None]


def test_pattern_and_assign(spark, store):
    one, two = store.topic("pat-1", 2), store.topic("pat-2", 2)
    path = str(store.path)
    for topic in (one, two):
        spark.call("write_sql", path=path, query="select 'x' value, 1 partition", options={"topic": topic})
        spark.call("write_sql", path=path, query="select 'y' value, 0 partition", options={"topic": topic})
    views = [
        f"create or replace temporary view pat using replog options (path '{path}', subscribePattern 'pat-.')",
        "select topic, partition, cast(value as string) from pat order by 1, 2",
    ]
    assert spark.call("sql", statements=views) == [
        ["pat-1", 0, "y"], ["pat-1", 1, "x"], ["pat-2", 0, "y"], ["pat-2", 1, "x"],
    ]  # fmt: skip
    views[0] = (
        "create or replace temporary view pat using replog "
        f"""options (path '{path}', assign '{{"pat-2":[1]}}')"""
    )
    assert spark.call("sql", statements=views) == [["pat-2", 1, "x"]]


def test_sql_view_to_read_and_to_insert(spark, store):
    topic = store.topic("view", 1)
    path = str(store.path)
    assert spark.call(
        "sql",
        statements=[
            f"create or replace temporary view v_in using replog options (path '{path}', topic '{topic}')",
            f"create or replace temporary view v_out using replog options (path '{path}', subscribe '{topic}')",
            "insert into v_in select binary('k'), binary('v1'), cast(null as string), cast(null as int), 0L, "
            "timestamp'2024-01-01 00:00:00', 0",
            "select cast(key as string), cast(value as string), offset from v_out",
        ],
    ) == [["k", "v1", 0]]


@pytest.mark.case("connector-output-modes")
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_output_modes_append(spark, store, mode):
    topic = store.topic(f"mode-{mode}", 1)
    spark.call("stream_word", path=str(store.path), sink=topic, checkpoint=store.checkpoint(f"mode-{mode}"), mode=mode)
    rows = spark.call("read", path=str(store.path), topic=topic)
    assert len(rows) >= 2
    assert offsets_are_dense(rows)


def test_microbatch_into_two_topics_of_one_ledger(spark, store):
    one = store.topic("pair-1", 1, 3, "--ledger", "pair")
    two = store.topic("pair-2", 1, 3, "--ledger", "pair")
    spark.call(
        "write_sql", path=str(store.path),
        query="select concat('pair-', 1 + id % 2) topic, cast(id as string) value from range(10)",
    )  # fmt: skip
    assert len(spark.call("read", path=str(store.path), topic=f"{one},{two}")) == 10


@pytest.mark.parametrize("acks", ["0", "1"])
def test_weaker_acks(spark, store, acks):
    topic = store.topic(f"acks-{acks}", 1)
    spark.call("write", path=str(store.path), topic=topic, start=0, end=10, options={"kafka.acks": acks})
    assert len(spark.call("read", path=str(store.path), topic=topic)) == 10


def test_register_is_idempotent(spark):
    spark.call("register_twice")
