"""Filters of batch reads: never a wrong row, and less to read where the user asks for it."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def with_conf(spark):
    spark.call("set_conf", name=CONF, value="true")
    yield
    spark.call("set_conf", name=CONF, value=None)


@pytest.fixture(scope="module")
def days(spark, store):
    """A topic of one partition: three sections of ten rows, a day apart, each an object of its own."""
    topic = store.topic("days", 1)
    for day in (1, 2, 3):
        query = f"select cast(id as string) value, timestamp'2024-01-0{day} 12:00:00' timestamp from range(0, 10, 1, 1)"
        spark.call("write_sql", path=str(store.path), query=query, options={"topic": topic})
    return topic


def every_shape(spark, path, topic, options):
    """Count in the ways in which one frame meets several filters."""
    frame = spark.read.format("replog").option("subscribe", topic).options(**options).load(path)
    late, early = frame.filter("offset >= 25"), frame.filter("offset < 3")
    frame.createOrReplaceTempView("shape")
    scalars = spark.sql(
        "select (select count(*) from shape where partition = 7) a, (select count(*) from shape where offset < 12) b, "
        "(select count(*) from shape) c"
    ).collect()[0]
    return [
        late.count(), frame.count(), early.count(), frame.count(), late.union(early).count(), late.union(frame).count(),
        frame.filter("timestamp < timestamp'2024-01-02 00:00:00'").count(),
        frame.filter("topic = 'other'").count(), *scalars,
    ]  # fmt: skip


EXPECTED = [5, 30, 3, 30, 8, 35, 10, 0, 0, 12, 30]


@pytest.mark.case("connector-filters-batch-reads")
def test_the_conf_alone_changes_no_answer(spark, store, days, with_conf):
    assert run_in(spark, every_shape, path=str(store.path), topic=days, options={}) == EXPECTED


def two_counts(spark, path, topic):
    frame = spark.read.format("replog").option("subscribe", topic).option("pushDownFilters", "true").load(path)
    return [frame.filter("offset >= 25").count(), frame.count()]


@pytest.mark.case("connector-filters-batch-reads")
def test_spark_still_plans_a_load_once_whatever_filters_its_queries_have(spark, store, days, with_conf):
    """Why the conf does not suffice. The second answer is wrong: where it is 30, the option can go."""
    assert run_in(spark, two_counts, path=str(store.path), topic=days) == [5, 5]


def test_reads_work_with_the_conf_off(spark, store, days):
    arguments = {"path": str(store.path), "topic": days}
    assert run_in(spark, every_shape, **arguments, options={"pushDownFilters": "true"}) == EXPECTED


def count_where(spark, path, topic, condition):
    frame = spark.read.format("replog").option("subscribe", topic).option("pushDownFilters", "true").load(path)
    return frame.filter(condition).count()


@pytest.mark.case("connector-filters-batch-reads")
def test_what_a_filter_excludes_is_not_opened(spark, store, days, with_conf):
    """The sections of the first two days are unreadable on every root: only a read that needs them notices."""
    files = {}
    for root in store.path.glob("broker-*"):
        for file in sorted(root.glob("ledgers/*/data/*/*.arrow"), key=lambda path: path.stat().st_mtime_ns)[:2]:
            files[file] = file.read_bytes()
            file.write_bytes(bytes(len(files[file])))
    assert len(files) == 6
    arguments = {"path": str(store.path), "topic": days}
    try:
        for condition, rows in [
            ("timestamp >= timestamp'2024-01-03 00:00:00'", 10),
            ("offset >= 25", 5),
            ("offset between 21 and 22 and partition = 0", 2),
            ("partition = 1", 0),
            ("topic in ('x', 'y')", 0),
            ("timestamp > timestamp'2025-01-01 00:00:00' and value = X'00'", 0),
        ]:
            assert run_in(spark, count_where, **arguments, condition=condition) == rows, condition
        with pytest.raises(JobFailed, match=r"\[CORRUPT_MESSAGE\]"):
            run_in(spark, count_where, **arguments, condition="offset >= 15")
    finally:
        for file, content in files.items():
            file.write_bytes(content)
    assert run_in(spark, count_where, **arguments, condition="offset >= 15") == 15


TYPED = (
    "id BIGINT, small TINYINT, amount DECIMAL(9,2), ratio DOUBLE, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE,"
    " ok BOOLEAN, shop STRING, raw BINARY, note STRING, pad STRING"
)
TYPED_ROWS = """
select id, cast({n} as tinyint) small, cast({n} as decimal(9, 2)) amount, {n} / 2D ratio,
  timestamp'195{n}-01-01 00:00:00' at, timestamp_ntz'195{n}-01-01 00:00:00' local, date'195{n}-01-01' day, {n} = 3 ok,
  'shop {n}' shop, encode('{n}', 'utf-8') raw, if({n} = 3, 'x', null) note, concat(uuid(), uuid()) pad
from range({n}0000, {n}0000 + 4000, 1, 1)
"""


def test_statistics_leave_out_sections_of_typed_topics(spark, store, with_conf):
    """The rows of the first two of three objects are unreadable on every root; what lies behind them is whole."""
    topic = store.topic("typed-days", 1, 3, "--schema", TYPED)
    arguments = {"path": str(store.path), "topic": topic}
    before = set(store.path.glob("broker-*/ledgers/*/data/*/*.arrow"))
    for number in (1, 2, 3):
        spark.call("write_sql", path=str(store.path), query=TYPED_ROWS.format(n=number), options={"topic": topic})
    made = sorted(
        set(store.path.glob("broker-*/ledgers/*/data/*/*.arrow")) - before, key=lambda f: f.stat().st_mtime_ns
    )
    assert len(made) == 9
    for file in made[:6]:
        file.write_bytes(bytes(4096) + file.read_bytes()[4096:])
    for condition in (
        "id >= 30000", "small = 3", "amount = 3.00", "ratio > 1.25", "at >= timestamp'1953-01-01 00:00:00'",
        "local > timestamp_ntz'1952-06-01 00:00:00'", "day = date'1953-01-01'", "ok = true", "shop like 'shop 3%'",
        "shop in ('shop 3', 'shop 9')", "raw = X'33'", "note is not null", "amount between 2.5 and 4 and id > 0",
    ):  # fmt: skip
        assert run_in(spark, count_where, **arguments, condition=condition) == 4000, condition
    assert run_in(spark, count_where, **arguments, condition="id < 10000") == 0
    with pytest.raises(JobFailed, match=r"\[CORRUPT_MESSAGE\]"):
        run_in(spark, count_where, **arguments, condition="id >= 20000")


def counts_of_a_growing_topic(spark, path, topic):
    """Count one frame, plain and filtered, before and after more rows are there."""
    frame = spark.read.format("replog").option("subscribe", topic).load(path)
    more = spark.sql("select 'x' value from range(0, 2, 1, 1)").write.format("replog").mode("append")

    def counts():
        return [frame.count(), frame.filter("offset >= 0").count(), frame.count()]

    more.option("topic", topic).save(path)
    before = counts()
    more.option("topic", topic).save(path)
    return [before, counts()]


def test_a_filtered_action_is_planned_anew_with_the_conf_on(spark, store, with_conf):
    """Which is why docs/coming-from-kafka.md promises one snapshot per frame with the conf off only."""
    topic = store.topic("grows-on", 1)
    assert run_in(spark, counts_of_a_growing_topic, path=str(store.path), topic=topic) == [[2, 2, 2], [2, 4, 4]]


def test_one_frame_is_one_snapshot_with_the_conf_off(spark, store):
    topic = store.topic("grows-off", 1)
    assert run_in(spark, counts_of_a_growing_topic, path=str(store.path), topic=topic) == [[2, 2, 2], [2, 2, 2]]
