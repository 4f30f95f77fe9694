"""Who may write and read, by ACLs, by quotas that also say how fast, and by the policies of a bucket: real queries."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest
from real_servers import running
from remote import run_in
from spark_driver import JobFailed, SparkDriver

from tests.servers.server import Minio, VersityGateway
from tests.servers.stores import Prefixed
from tests.servers.stores import values as values_of
from tests.waiting import wait_until

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


@pytest.mark.wide
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


class GuardedStore:
    """A store of three roots in a bucket whose server checks rights: topics ``orders`` and ``payments``, a row in each.

    Users are made of the policies of conf/policies.
    """

    def __init__(self, spark, server, folder):
        self._spark, self._folder = spark, folder
        self.on_server = Prefixed(server)
        self.path = self.on_server.roots.path

    def users(self, **roles):
        """Make users, each of a role of the page and a topic; return their options. Those before may nothing now."""
        made = {}
        for name, (role, topic) in roles.items():
            user = self.on_server.as_user(name, self.on_server.statements(role, topic), *made)
            made[name] = {f"storage.{option}": value for option, value in user.options.items()}
        return list(made.values())

    def numbers(self, topic):
        """Return a topic's values as the owner of the store reads them."""
        return [int(value) for value in values_of(self.on_server.roots, topic)]

    def write(self, topic, numbers, options):
        self._spark.call(
            "write", path=self.path, topic=topic, start=numbers.start, end=numbers.stop, options=options, tasks=1
        )

    def read(self, topic, options):
        return sorted(int(row[3]) for row in self._spark.call("read", path=self.path, topic=topic, options=options))

    def copy(self, name, source, source_options, sink, sink_options):
        """Run the query of this name to its end."""
        self._spark.call(
            "copy_stream", path=self.path, source=source, sink=sink, checkpoint=str(self._folder / name),
            source_options=source_options, sink_options=sink_options,
        )  # fmt: skip


@pytest.fixture(
    params=(Minio, pytest.param(VersityGateway, marks=pytest.mark.wide)), ids=lambda kind: kind.name, scope="module"
)
def guarded(request, spark, work_folder):
    folder = work_folder / f"guarded-{request.param.name}"
    with ExitStack() as stack:
        yield GuardedStore(spark, running(stack, request.param, folder), folder)


PRODUCER = "Producer, streaming sink"


def refused_by_storage(call, *arguments):
    with pytest.raises(JobFailed, match=r"\[REPLOG_STORE_REFUSED\]"):
        call(*arguments)


def test_a_query_needs_the_storage_policies_of_its_roles_alone(guarded):
    orders, payments = guarded.numbers("orders"), guarded.numbers("payments")
    reader, writer, sink = guarded.users(
        spark_reader=("Reader", "orders"), spark_writer=(PRODUCER, "orders"), spark_sink=(PRODUCER, "payments")
    )
    for part in (range(100, 110), range(110, 120)):  # the second time the query starts again
        guarded.write("orders", part, writer)
        guarded.copy("through", "orders", reader, "payments", sink)
        orders += part
        assert guarded.read("orders", reader) == sorted(orders)
        assert sorted(guarded.numbers("payments")) == sorted(payments + orders)
    for name in ("spark_reader", "spark_writer", "spark_sink"):
        guarded.on_server.check_nothing_was_refused(name)


on_minio = pytest.mark.parametrize("guarded", [Minio], ids=["minio"], indirect=True)
"""A refusal takes three seconds."""


@on_minio
def test_a_query_is_refused_what_its_storage_policy_does_not_allow(guarded):
    orders, payments = guarded.numbers("orders"), guarded.numbers("payments")
    reader, sink, reader_of_payments = guarded.users(
        other_reader=("Reader", "orders"), other_sink=(PRODUCER, "payments"), third_reader=("Reader", "payments")
    )
    refused_by_storage(guarded.read, "payments", reader)
    refused_by_storage(guarded.copy, "unread", "payments", reader, "payments", sink)
    refused_by_storage(guarded.write, "orders", range(200, 201), sink)
    refused_by_storage(guarded.copy, "later", "orders", reader, "payments", reader_of_payments)
    assert (guarded.numbers("orders"), guarded.numbers("payments")) == (orders, payments)
    guarded.copy("later", "orders", reader, "payments", sink)
    assert sorted(guarded.numbers("payments")) == sorted(payments + orders)
    assert guarded.on_server.roots.replog("store", "verify", "--deep")[0] == 0


@on_minio
def test_a_query_shows_its_group_if_it_has_the_storage_policy_of_a_consumer(spark, guarded, work_folder):
    """Without that it goes on and says so."""
    group = "shown-from-a-bucket"
    reader, member, sink = guarded.users(
        group_reader=("Reader", "orders"),
        group_member=("Consumer of a group", "orders"),
        group_sink=(PRODUCER, "payments"),
    )

    def is_shown():
        return group in {line["group"] for line in guarded.on_server.roots.replog("group", "list")[1]}

    def is_told():
        return f"progress of group {group} is not published" in spark.log_text()

    expected = sorted(guarded.numbers("payments") + 2 * guarded.numbers("orders"))
    for name, options, is_done in (("shown-no", reader, is_told), ("shown-yes", member, is_shown)):
        assert not is_shown()
        spark.call(
            "start_named", name=name, path=guarded.path, source="orders", sink="payments",
            checkpoint=str(work_folder / name), source_options={**options, "group.id": group}, sink_options=sink,
        )  # fmt: skip
        wait_until(is_done, name, pause_seconds=0.1)
        spark.call("drain_named", name=name)
    assert is_told() and is_shown()
    assert sorted(guarded.numbers("payments")) == expected
