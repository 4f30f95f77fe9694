"""Typed topics in real Spark: a DataFrame's columns in, as a batch and as a stream, and the same columns out."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_traffic import holds_of_generated_rows
from remote import run_in
from spark_driver import JobFailed
from typed_rows import DDL, SCHEMA, compare, copy, rows, write

import spark_replog


@pytest.fixture
def make_topic(store):
    def make(name, partitions=2, ddl=DDL):
        return store.topic(name, partitions, 3, "--schema", ddl, "--key", "id")

    return make


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_batch_goes_in_and_out_with_every_type_and_nulls(spark, store, make_topic, zone):
    path, topic = str(store.path), make_topic(f"types-{zone.partition('/')[0]}", 3)
    spark.call("set_conf", name="spark.sql.session.timeZone", value=zone)
    try:
        run_in(spark, write, path=path, topic=topic, query=rows(0, 100), options={})
    finally:
        spark.call("set_conf", name="spark.sql.session.timeZone", value="UTC")
    answer = run_in(spark, compare, path=path, topic=topic, query=rows(0, 100))
    assert answer == {"schema": SCHEMA, "count": 100, "other": []}
    scanned = spark_replog.open(path).topic(topic).scan(columns=["id"]).to_arrow()
    assert sorted(scanned["id"].to_pylist()) == list(range(100))


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.wide)])
def test_rows_of_every_schema_are_alike_whatever_writes_and_reads_them(spark, count):
    holds_of_generated_rows(spark, count)


@pytest.mark.guarantee("G3")
def test_a_micro_batch_that_spark_repeats_after_a_restart_is_in_a_typed_topic_once(spark, store, make_topic):
    path, checkpoint = str(store.path), store.checkpoint("typed-replay")
    source, sink = make_topic("replayed"), make_topic("replayed-out", 3)
    arguments = {"path": path, "source": source, "sink": sink, "checkpoint": checkpoint}
    arguments["limits"] = {"maxOffsetsPerTrigger": "30"}
    run_in(spark, write, path=path, topic=source, query=rows(0, 100), options={})
    assert sum(run_in(spark, copy, **arguments)) == 100
    last = max(int(file.name) for file in Path(checkpoint, "commits").iterdir() if file.name.isdecimal())
    for file in Path(checkpoint, "commits").glob(f"*{last}*"):
        file.unlink()  # as if the driver died between the entry and Spark's own commit file
    run_in(spark, write, path=path, topic=source, query=rows(100, 130), options={})
    run_in(spark, copy, **arguments)
    answer = run_in(spark, compare, path=path, topic=sink, query=rows(0, 130))
    assert answer == {"schema": SCHEMA, "count": 130, "other": []}


def shapes(spark, path, topic):
    def read(**options):
        return spark.read.format("replog").option("subscribe", topic).options(**options).load(path)

    some, metadata = read(columns="tags, ID"), read(includeMetadata="true", columns="day")
    kafka = read(rows="kafka").selectExpr("cast(value as string) value", "offset", "key")
    parsed = kafka.selectExpr("from_json(value, 'id BIGINT, amount STRING, at TIMESTAMP') row").select("row.*")
    last = metadata.orderBy("_metadata.partition", "_metadata.offset").collect()[-1]
    return {
        "some": [some.columns, some.filter("id = 7").count()],
        "metadata": [metadata.columns, last["_metadata"].topic, last["_metadata"].offset, len(last["_metadata"].key)],
        "late": metadata.filter("_metadata.offset >= 4").count(),
        "json": sorted([row.id, row.amount, str(row.at)] for row in parsed.collect()),
        "columns": read(rows="kafka").columns,
    }


@pytest.mark.parametrize("pushed", ["false", "true"])
def test_columns_metadata_and_json_are_chosen_by_options(spark, store, make_topic, pushed):
    path, topic = str(store.path), make_topic(f"shapes-{pushed}", 1)
    run_in(spark, write, path=path, topic=topic, query=rows(5, 10), options={})
    spark.call("set_conf", name="spark.sql.python.filterPushdown.enabled", value=pushed)
    try:
        answer = run_in(spark, shapes, path=path, topic=topic)
    finally:
        spark.call("set_conf", name="spark.sql.python.filterPushdown.enabled", value=None)
    assert answer["some"] == [["id", "tags"], 1]
    assert answer["metadata"] == [["day", "_metadata"], topic, 4, 8]
    assert answer["late"] == 1
    assert [row[:2] for row in answer["json"]] == [[5, None], *([n, f"{n}.00"] for n in range(6, 10))]
    assert answer["json"][0][2].startswith("1954-02-2")
    assert answer["columns"] == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_what_does_not_fit_is_refused_and_nothing_is_stored(spark, store, make_topic):
    path, topic = str(store.path), make_topic("refusals", 1, "id BIGINT NOT NULL, amount DECIMAL(12,2)")
    for query, said in (
        ("select cast(1 as decimal(12,2)) amount", r"REPLOG_INVALID_SCHEMA.*'id' BIGINT.*NOT NULL"),
        ("select id, id more from range(5)", r"REPLOG_INVALID_SCHEMA.*'more'.*Drop it"),
        ("select 'x' id", r"REPLOG_INVALID_SCHEMA.*'id'.*STRING.*BIGINT.*CAST"),
        ("select if(id = 3, null, id) id from range(0, 5, 1, 1)", r"INVALID_RECORD.*NOT NULL.*'id'"),
        ("select interval '1' month id", r"REPLOG_INVALID_SCHEMA.*'id'.*interval month"),
    ):
        with pytest.raises(JobFailed, match=f"(?s){said}"):
            run_in(spark, write, path=path, topic=topic, query=query, options={})
    sensitive = {"name": "spark.sql.caseSensitive", "value": "true"}
    spark.call("set_conf", **sensitive)
    try:
        with pytest.raises(JobFailed, match=r"(?s)REPLOG_INVALID_SCHEMA.*Rename it to 'id'"):
            run_in(spark, write, path=path, topic=topic, query="select id ID from range(5)", options={})
    finally:
        spark.call("set_conf", **sensitive | {"value": "false"})
    assert spark_replog.open(path).topic(topic).scan().to_arrow().num_rows == 0
    run_in(spark, write, path=path, topic=topic, query="select id ID from range(5)", options={})
    assert spark_replog.open(path).topic(topic).scan().to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4]


def over_a_change(spark, path, topic):
    """Read before and after the columns change: a DataFrame from before, and a new one."""
    import spark_replog

    def load():
        return spark.read.format("replog").option("subscribe", topic).load(path)

    before = load()
    counts = [before.count()]
    spark_replog.open(path).admin().evolve_schema(topic, "id BIGINT NOT NULL, x INT, y STRING")
    spark.sql("select 2L id, 3 x, 'new' y").write.format("replog").mode("append").option("topic", topic).save(path)
    late = before.filter("id > 0")  # planned after the change, with the columns from before it
    return [counts, late.columns, sorted(map(list, late.collect())), sorted(map(list, load().collect()))]


def test_a_dataframe_keeps_its_columns_while_the_topic_gets_newer_ones(spark, store, make_topic):
    path, topic = str(store.path), make_topic("newer", 1, "id BIGINT NOT NULL, x INT")
    run_in(spark, write, path=path, topic=topic, query="select 1L id, 2 x", options={})
    counts, columns, late, new = run_in(spark, over_a_change, path=path, topic=topic)
    assert (counts, columns) == ([1], ["id", "x"])
    assert late in ([[1, 2]], [[1, 2], [2, 3]])  # Spark plans a load once, or again for another query
    assert new == [[1, 2, None], [2, 3, "new"]]


def test_a_write_that_asks_for_it_adds_its_columns(spark, store, make_topic):
    path, topic = str(store.path), make_topic("merged", 1, "id BIGINT NOT NULL")
    arguments = {"path": path, "topic": topic, "query": "select 1L id, 'new' note"}
    with pytest.raises(JobFailed, match=r"(?s)REPLOG_INVALID_SCHEMA.*'note'"):
        run_in(spark, write, **arguments, options={})
    run_in(spark, write, **arguments, options={"mergeSchema": "true"})
    assert spark_replog.open(path).topic(topic).scan(columns=["id", "note"]).to_arrow()["note"].to_pylist() == ["new"]


def test_sql_reads_and_inserts_through_views_of_a_typed_topic(spark, store, make_topic):
    path, topic = str(store.path), make_topic("by-sql", 1, "id BIGINT, amount DECIMAL(6,2), note STRING")
    view = "create or replace temporary view typed_{kind} using replog options (path '{path}', {kind} '{topic}')"
    statements = [
        *(view.format(kind=kind, path=path, topic=topic) for kind in ("subscribe", "topic")),
        "insert into typed_topic select 1, 2.5, 'by place'",
        "insert into typed_topic (note, id) values ('by name', 2)",
        "insert into typed_topic values (3, null, null)",
        "select id, cast(amount as string), note from typed_subscribe order by id",
        "drop table if exists typed_table",
        "create table typed_table (id BIGINT, amount DECIMAL(6,2), note STRING) using replog",
        f"insert into typed_table with (path '{path}', topic '{topic}') values (4, 1.5, 'by table')",
        f"select max(id), max(note) from typed_table with (path '{path}', subscribe '{topic}')",
    ]
    answers = [spark.call("sql", statements=[statement]) for statement in statements]
    assert answers[5] == [[1, "2.50", "by place"], [2, None, "by name"], [3, None, None]]
    assert answers[-1] == [[4, "by table"]]
