"""What a micro-batch, an idle trigger and a cold open ask of the roots, by the product's own counter."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import pytest

from spark_replog import Consumer, ReplogListener
from spark_replog.admin.controller import Controller
from spark_replog.client.producer import Producer
from spark_replog.client.store import Store
from spark_replog.cluster import cluster
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.ledger.types import LedgerSettings
from spark_replog.log.log_offset import LogOffset
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.spark import call_spool
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.spark.messages import WriteMessage
from spark_replog.storage.call_counter import by_kind, summed
from tests.unit.spark.sink_writes import Writes

ROOTS = 3


def kinds(table, *, but=("snapshots", "pages")):
    """Calls by kind and purpose; snapshots are written in the background."""
    counts = Counter()
    for (_, kind, purpose), calls in table.items():
        if purpose not in but:
            counts[kind, purpose] += calls.call_count
    return dict(counts)


@pytest.fixture
def writes(source, monkeypatch):
    # Once in five minutes, in the background: its listings would be in the count of one test or another.
    monkeypatch.setattr(Upkeep, "start", lambda upkeep, ledger: None)
    # No call goes on without the last root, which a busy machine may ask 20 ms after the others.
    monkeypatch.setattr(cluster, "LedgerSettings", partial(LedgerSettings, grace_ms=20_000))
    source.topic("orders")
    return Writes(source, monkeypatch)


@pytest.fixture
def shared(writes):
    """The open store of this process, which plans and commits."""
    return Cluster.shared(str(writes.source.path)).brokers.calls


@pytest.mark.parametrize("task_count", [1, 4])
def test_a_micro_batch_is_a_copy_per_task_and_replica_and_one_create_per_metadata_root(
    writes,
    shared,
    task_count,
    monkeypatch,
    tmp_path,
):
    for batch in range(3):
        writes.run(batch, *[[b"warm"]] * task_count, topic="orders")
    shared.take()
    patient = {"replica.grace.ms": "20000", "request.timeout.ms": "30000", "delivery.timeout.ms": "60000"}
    writer, messages = writes.tasks(3, *[[b"a", b"b"]] * task_count, topic="orders", **patient)
    assert all(isinstance(message, WriteMessage) for message in messages)
    tasks = summed(message.calls for message in messages)
    planned = kinds(tasks)
    assert planned.pop(("create", "objects")) == ROOTS * task_count
    # The planner folds the topic's ledger, and once a second the cluster's; that rides in the first task's message.
    assert planned in ({("get", "journal"): ROOTS}, {("get", "journal"): 2 * ROOTS})
    left = []
    monkeypatch.setattr(call_spool, "heard_folder", lambda _: tmp_path)
    monkeypatch.setattr(call_spool, "report", lambda _, calls: left.append(calls))
    writer.commit(messages, 3)
    committed = Counter(kinds(left[0]))
    committed.subtract(kinds(tasks))
    committed = {key: count for key, count in committed.items() if count}
    assert committed.pop(("create", "journal")) == ROOTS
    # With each create goes one get that looks for a newer marker; owners do not change, so nothing is claimed.
    assert committed == {("get", "journal"): ROOTS}


def test_an_idle_trigger_is_one_get_per_metadata_root_and_ledger(writes, shared):
    writes.run(0, [b"a"], topic="orders")
    stream = writes.source.stream(subscribe="orders")
    at = stream.latestOffset()
    stream.partitions(at, at)
    shared.take()
    for _ in range(5):
        stream.latestOffset()
    counts = kinds(shared.take())
    assert counts.keys() == {("get", "journal")}
    assert 5 * ROOTS <= counts["get", "journal"] <= 5 * 2 * ROOTS  # the topic's ledger, and once a second the cluster's


def test_a_load_asks_for_the_newest_entries_once_and_one_with_a_schema_for_nothing(writes, shared):
    """Whether the topic is typed, and its columns, are in its ledger."""
    writes.run(0, [b"a"], topic="orders")
    writes.source.batch(subscribe="orders").partitions()
    shared.take()
    schema = ReplogDataSource({"path": str(writes.source.path), "subscribe": "orders"}).schema()
    counts = kinds(shared.take())
    assert counts.keys() == {("get", "journal")}
    assert ROOTS <= counts["get", "journal"] <= 2 * ROOTS  # the topic's ledger, and once a second the cluster's
    for make in ("reader", "streamReader"):
        getattr(ReplogDataSource({"path": str(writes.source.path), "subscribe": "orders"}), make)(schema)
    assert kinds(shared.take()) == {}


def test_a_cold_open_reads_root_files_and_the_ledgers_and_writes_nothing(writes):
    writes.run(0, [b"a"], topic="orders")
    store = Store(Cluster.open(str(writes.source.path)))
    assert kinds(store.storage_calls()) == {("get", "probes"): 1 + 16}  # a parent folder: itself, and 16 names in it
    roots = ",".join(store.cluster.brokers.url(broker_id) for broker_id in store.cluster.brokers.broker_ids)
    store = Store(Cluster.open(roots))
    assert kinds(store.storage_calls()) == {("get", "probes"): ROOTS}
    store.cluster.topic_state(store.cluster.lookup("orders"))
    storage_calls = store.storage_calls()
    assert {kind for kind, calls in by_kind(storage_calls).items() if calls.call_count} <= {"get", "list"}
    assert kinds(storage_calls)["get", "journal"] <= 2 * ROOTS * 8  # read ahead, so some of what is not there yet


@pytest.mark.parametrize("row_count", [3, 150])
def test_a_cold_open_at_rest_is_ten_gets_of_a_root_however_many_commits(tmp_path, row_count):
    """Root file, once; of the cluster three records, tail, marker; of the topic head, its record, tail, marker."""
    init_cluster(str(tmp_path), 1, fsync=False)
    writer = Cluster.open(str(tmp_path))
    Controller(writer).create_topic("orders", 1, 1)
    ledger = writer.topic_ledger(writer.lookup("orders").ledger_id)
    with Producer(writer) as producer:
        for number in range(row_count):
            producer.send("orders", b"%d" % number).result(60)
            if number >= row_count - 2:
                ledger.snapshot(timeout_ms=60_000)
    store = Store(Cluster.open(f"{tmp_path}/broker-0"))
    _, topic = store.cluster.topic_state(store.cluster.lookup("orders"))
    assert topic.partitions[0].high_watermark == row_count
    storage_calls = store.storage_calls()
    gets = {purpose: calls.call_count for (_, kind, purpose), calls in storage_calls.items() if kind == "get"}
    assert gets == {"probes": 1, "journal": 8, "snapshots": 1}


def test_a_consumers_wait_is_one_get_per_metadata_root_and_look(writes):
    writes.run(0, [b"a"], topic="orders")
    with Consumer(Cluster.open(str(writes.source.path)), "orders", auto_offset_reset="earliest") as reader:
        while not reader.poll(timeout_ms=1_000):
            pass
        before = asdict(reader.metrics())
        reader.poll(timeout_ms=350)
        now = asdict(reader.metrics())
        looks = now["refreshes"] - before["refreshes"]
        gets = now["storage_get"] - before["storage_get"]
    assert looks >= 2
    assert ROOTS * looks <= gets <= ROOTS * (looks + 2)  # the cluster's ledger once a second
    assert now["storage_create"] == before["storage_create"]


def test_the_listener_gets_the_calls_of_commits_by_broker_and_of_the_source_by_its_progress(
    writes, monkeypatch, tmp_path
):
    monkeypatch.setattr(call_spool.tempfile, "gettempdir", lambda: str(tmp_path))
    writes.run(0, [b"a"], topic="orders")
    assert not list(tmp_path.glob("replog-calls-*"))  # no listener
    listener = ReplogListener(str(writes.source.path))
    listener.onQueryStarted(SimpleNamespace(id="query-1", name="copy"))
    for batch in (1, 2):
        writes.run(batch, [b"b"], topic="orders")
    stream = writes.source.stream(subscribe="orders")
    end = stream.latestOffset()
    told = json.dumps(stream.reportLatestOffset())
    assert LogOffset.from_json(json.loads(told)) == LogOffset.from_json(stream.reportLatestOffset())
    source = SimpleNamespace(endOffset=json.dumps(end), latestOffset=told)
    progress = SimpleNamespace(
        id="query-1", name="copy", batchId=2, timestamp="2026-01-01T00:00:00.000Z", sources=[source],
        inputRowsPerSecond=1.0, processedRowsPerSecond=1.0, batchDuration=5,
    )  # fmt: skip
    for _ in range(2):  # what was told before counts once
        listener.onQueryProgress(SimpleNamespace(progress=progress))
    calls = listener.storage_calls()["copy"]
    assert calls["0", "create", "objects"].call_count == 2
    assert calls["0", "create", "journal"].call_count >= 2
    assert listener.samples()["replog_storage_calls"]
    listener.onQueryTerminated(SimpleNamespace(id="query-1"))
    assert [path.name for path in next(tmp_path.glob("replog-calls-*")).iterdir()] == []


def test_a_folder_of_another_user_is_not_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(call_spool.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"replog-calls-{call_spool.os.getuid()}").symlink_to(tmp_path / "elsewhere")
    call_spool.listen("q")
    assert call_spool.heard_folder("q") is None
    assert list((tmp_path / "elsewhere").iterdir()) == [] and call_spool.collect("q") == {}
