"""ACLs and quotas under real queries: who may write and read, and how fast, also when it changes meanwhile."""

from __future__ import annotations

import json
import time

import pytest
from remote import run_in
from spark_driver import JobFailed, SparkDriver

WRITER = {"principal": "User:etl"}


@pytest.fixture(scope="module")
def store(make_store):
    """A store of one broker; the command line's principal, which also looks at the results, is its super user."""
    from spark_replog.admin.controller import Controller
    from spark_replog.cluster.cluster import Cluster

    made = make_store(1)
    made.cli("acl", "config", "set", "super.users=User:integration")
    controller = Controller(Cluster.open(str(made.path)), principal="integration")
    for name in ("acl-in", "acl-open", "acl-closed", "payroll", "quota-in", "quota-out"):
        controller.create_topic(name, 1, 1)
    return made


def change(store, *arguments):
    """Change ACLs or quotas as another process, and let the second pass after which all others obey."""
    store.cli(*arguments)
    time.sleep(1.1)


def values(spark, store, topic):
    rows = spark.call("read", path=str(store.path), topic=topic)
    assert [row[1] for row in rows] == list(range(len(rows)))
    return [int(row[3]) for row in rows]


def feed(spark, store, topic, start, end):
    spark.call("write", path=str(store.path), topic=topic, start=start, end=end, tasks=1)


def start_by_parity(spark, name, path, source, topics, checkpoint, options, until_idle=False):
    """Copy even numbers to the first topic and odd ones to the second, in one query."""
    frame = spark.readStream.format("replog").option("subscribe", source).option("startingOffsets", "earliest")
    even, odd = topics
    rows = frame.load(path).selectExpr(
        "value", f"if(cast(cast(value as string) as int) % 2 = 0, '{even}', '{odd}') topic"
    )
    writer = rows.writeStream.format("replog").options(**options).option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if until_idle else {"processingTime": "0 seconds"}
    QUERIES[name] = writer.trigger(**trigger).start(path)  # noqa: F821


def step_named(spark, name):
    """Wait until a running query has copied all there is; raise what it failed with."""
    query = QUERIES[name]  # noqa: F821
    query.processAllAvailable()
    if query.exception() is not None:
        raise query.exception()


def test_a_running_query_is_refused_what_is_denied_and_goes_on_exactly_once(spark, store):
    topics = ["acl-open", "acl-closed"]
    query = {"name": "acl", "path": str(store.path), "source": "acl-in", "topics": topics,
             "checkpoint": store.checkpoint("acl"), "options": WRITER}  # fmt: skip
    feed(spark, store, "acl-in", 0, 10)
    run_in(spark, start_by_parity, **query)
    run_in(spark, step_named, name="acl")
    change(store, "acl", "add", "--deny-principal", "User:etl", "--operation", "write", "--topic", "acl-closed")
    feed(spark, store, "acl-in", 10, 20)
    with pytest.raises(JobFailed) as refused:
        run_in(spark, step_named, name="acl")
    assert "[TOPIC_AUTHORIZATION_FAILED] User:etl may not write topic 'acl-closed'" in str(refused.value)
    assert "acl add --allow-principal User:etl --operation write --topic acl-closed" in str(refused.value)
    assert values(spark, store, "acl-open") == list(range(0, 10, 2))  # whole: not even where it may
    with pytest.raises(JobFailed, match=r"\[TOPIC_AUTHORIZATION_FAILED\] User:etl may not write topic 'acl-closed'"):
        spark.call("write", path=str(store.path), topic="acl-closed", start=0, end=1, options=WRITER)
    change(store, "acl", "remove", "--topic", "acl-closed", "-y")
    run_in(spark, start_by_parity, **query, until_idle=True)
    spark.call("drain_named", name="acl")
    assert [values(spark, store, topic) for topic in topics] == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def test_a_batch_read_is_for_those_who_may(spark, store):
    feed(spark, store, "payroll", 0, 5)
    change(store, "acl", "add", "--allow-principal", "User:hr", "--operation", "read", "--topic", "payroll")
    read = {"path": str(store.path), "topic": "payroll"}
    with pytest.raises(JobFailed, match=r"\[TOPIC_AUTHORIZATION_FAILED\] User:intern may not read topic 'payroll'"):
        spark.call("read", **read, options={"principal": "intern"})
    assert len(spark.call("read", **read, options={"principal": "hr"})) == 5
    assert len(spark.call("read", **read)) == 5  # a super user, by REPLOG_PRINCIPAL


def test_quotas_set_while_a_query_runs_hold_back_its_reads_and_its_commits(spark, store):
    before = set(store.path.rglob("*.arrow"))
    feed(spark, store, "quota-in", 0, 20)
    (stored,) = set(store.path.rglob("*.arrow")) - before
    # What one micro-batch reads is a little more than ten seconds' worth: a short wait, and a sure one.
    limit = stored.stat().st_size // 11
    held_back = "is written and was held back for 2100 ms: User:etl with client id 'nightly' is above its producer_byte"
    waited = f"ms: its reads are above its reader's consumer_byte_rate of {limit}."
    spark.call(
        "start_named", name="quota", path=str(store.path), source="quota-in", sink="quota-out",
        checkpoint=store.checkpoint("quota"), source_options={"principal": "reader"},
        sink_options={**WRITER, "kafka.client.id": "nightly", "request.timeout.ms": "4200"},
    )  # fmt: skip
    run_in(spark, step_named, name="quota")
    assert "byte_rate" not in spark.log_text()
    store.cli("quota", "set", "--user", "reader", f"consumer_byte_rate={limit}")
    change(store, "quota", "set", "--user", "etl", "--client-id", "nightly", "producer_byte_rate=1")
    for fed in range(40, 160, 20):  # from the first or second micro-batch on
        feed(spark, store, "quota-in", fed - 20, fed)
        run_in(spark, step_named, name="quota")
        if held_back in spark.log_text() and waited in spark.log_text():
            break
    assert held_back in spark.log_text()
    assert waited in spark.log_text()
    spark.call("drain_named", name="quota")
    assert values(spark, store, "quota-out") == list(range(fed))


def test_the_documented_regex_keeps_a_views_storage_options_out_of_the_event_log(environment, make_store, work_folder):
    events = work_folder / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.eventLog.compress": "false"}
    store = make_store(1)
    topic = store.topic("secrets", 1, 1)
    driver = SparkDriver(environment, work_folder / "driver-events.log", "serve", json.dumps(settings))
    try:
        for name, regex in (("Shown", None), ("Hidden", "(?i)url|storage[.]")):
            driver.call("set_conf", name="spark.sql.redaction.options.regex", value=regex)
            options = {"storage.key": f"{name}Of1", "storage.client_kwargs": f'{{"region_name": "{name}Of2"}}'}
            run_in(driver, use_storage_options, path=str(store.path), topic=topic, name=name, options=options)
    finally:
        driver.close()
    log = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert "CreateTempViewUsing" in log
    assert {"ShownOf1", "ShownOf2"} == {word for word in ("ShownOf1", "ShownOf2") if word in log}
    assert "HiddenOf" not in log
    assert "FrameOf" not in log


def use_storage_options(spark, path, topic, name, options):
    """Use a view with the options, and a DataFrame's read and write with others of the same names."""
    given = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW {name} USING replog OPTIONS (path '{path}', subscribe '{topic}', {given})")
    spark.sql(f"SELECT count(*) FROM {name}").collect()
    plain = {"storage.key": "FrameOf1", "storage.client_kwargs": '{"region_name": "FrameOf2"}'}
    frame = spark.range(2).selectExpr("cast(id as string) value")
    frame.write.format("replog").mode("append").option("topic", topic).options(**plain).save(path)
    spark.read.format("replog").option("subscribe", topic).options(**plain).load(path).collect()
