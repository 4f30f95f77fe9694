"""``spark_replog.open``: the forms that the design promises to scripts."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import spark_replog
from spark_replog.admin.admin import PartitionAdmin
from spark_replog.admin.controller import Controller
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cli.main import run
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError


@pytest.fixture
def store(tmp_path):
    path = str(tmp_path / "store")
    assert run(["-s", path, "init", "--brokers", "3", "--no-fsync"]) == 0
    return spark_replog.open(path)


@pytest.fixture
def filled(store):
    store.admin().create_topic(
        "orders", partitions=2, replicas=3, config={"retention.ms": "604800000"}, if_not_exists=True
    )
    with store.producer({"linger.ms": 5}, acks="all") as producer:
        for number in range(10):
            producer.send("orders", value=b"v%d" % number, partition=number % 2)
    return store


def test_from_an_empty_store_to_a_commit(filled):
    with filled.producer() as producer:
        metadata = producer.send("orders", value=b"v", key=b"k", headers=[("h", b"1")], partition=0).result(timeout=60)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("orders", 0, 5)
    with filled.consumer("orders", group="billing", auto_offset_reset="earliest") as consumer:
        records = consumer.poll(timeout_ms=10_000, max_records=500)
        consumer.commit()
    assert len(records) == 11
    last = next(record for record in records if record.key == b"k")
    assert (last.offset, last.value, last.headers) == (5, b"v", (("h", b"1"),))


def test_a_store_may_be_named_by_a_path_of_pathlib(tmp_path):
    path = tmp_path / "store"
    Controller(init_cluster(path, 1, fsync=False)).create_topic("orders")
    with spark_replog.Producer(path) as producer:
        producer.send("orders", b"v").result(timeout=60)
    with spark_replog.Consumer(path, "orders", auto_offset_reset="earliest") as consumer:
        assert consumer.to_arrow().num_rows == 1
    assert spark_replog.open(path).topic("orders").scan().to_arrow().num_rows == 1


def test_a_client_takes_an_opened_store_and_refuses_what_is_none(filled):
    with spark_replog.Producer(filled, acks="all") as producer:
        assert producer.send("orders", b"v", partition=0).result(timeout=60).offset == 5
    with spark_replog.Consumer(filled, "orders", auto_offset_reset="earliest") as consumer:
        assert consumer.to_arrow().num_rows == 11
    for client in (spark_replog.Producer, spark_replog.Consumer):
        with pytest.raises(InvalidConfigError, match="None is no store") as refused:
            client(None)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_belongs_to_one_process_says_so_when_it_is_sent_to_another(filled):
    """As by ``foreachPartition(lambda rows: producer.send(...))``."""
    opened = [filled, filled.producer(), filled.consumer("orders"), filled.async_producer(), filled.async_consumer()]
    for handle in [*opened, filled.topic("orders")]:
        with pytest.raises(ReplogError, match="Send the store's path") as refused:
            cloudpickle.dumps(lambda captured=handle: captured)
        assert refused.value.code is ErrorCode.REPLOG_NOT_FORK_SAFE
    for client in opened[1:3]:
        client.close()


def test_a_store_is_made_from_python_and_made_once(tmp_path):
    store = spark_replog.init(str(tmp_path / "store"), brokers=3, fsync=False)
    assert store.cluster.brokers.broker_ids == (0, 1, 2)
    store.admin().create_topic("orders", replicas=3)
    with store.producer() as producer:
        assert producer.send("orders", b"v").result(timeout=60).offset == 0
    with pytest.raises(ReplogError) as refused:
        spark_replog.init(str(tmp_path / "store"), brokers=3, fsync=False)
    assert refused.value.code is ErrorCode.REPLOG_STORE_EXISTS


@pytest.mark.parametrize("how", ["by the parent", "by the roots"])
def test_a_store_that_replaces_a_removed_one_has_none_of_its_topics(tmp_path, how):
    path = str(tmp_path / "store")
    for topic in ("orders", "clicks"):
        shutil.rmtree(path, ignore_errors=True)
        made = spark_replog.init(path, 2, fsync=False)
        opened = spark_replog.open(path if how == "by the parent" else f"{path}/broker-0,{path}/broker-1")
        for handle in (made, opened):
            assert handle.cluster.topic_names() == []
        made.admin().create_topic(topic, partitions=1, replicas=1)
        with opened.producer() as producer:
            assert producer.send(topic, b"v").result(timeout=60).offset == 0


def test_a_scan_is_a_snapshot(filled):
    scan = filled.topic("orders").scan(start="earliest", end="latest", partitions=[0, 1])
    with filled.producer() as producer:
        producer.send("orders", value=b"later", partition=0)
    assert scan.to_arrow().num_rows == 10
    assert scan.to_arrow()["value"].to_pylist()[:5] == [b"v0", b"v2", b"v4", b"v6", b"v8"]
    assert filled.topic("orders").scan().to_arrow().num_rows == 11
    assert filled.topic("orders").scan("latest").to_arrow().num_rows == 0


def test_a_scan_of_a_deleted_topic_does_not_read_another_of_its_name(filled):
    scan = filled.topic("orders").scan()
    filled.admin().delete_topic("orders")
    filled.admin().create_topic("orders", partitions=2)
    with filled.producer() as producer:
        for number in range(20):
            producer.send("orders", value=b"other", partition=number % 2)
    with pytest.raises(NotFoundError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        scan.to_arrow()


@pytest.mark.parametrize("is_root_away", [False, True])
def test_a_scan_follows_rows_that_move_to_other_roots(store, tmp_path, is_root_away):
    store.admin().create_topic("orders", partitions=1, replicas=1)
    with store.producer() as producer:
        for _ in range(3):
            producer.send_arrow("orders", pa.table({"value": [bytes(600_000)] * 3}))
            producer.flush()
    batches = store.topic("orders").scan().to_batches()
    row_count = next(batches).num_rows
    files = sorted(tmp_path.glob("**/data/*/*.arrow"))
    (old,) = {number for number in range(3) for file in files if f"broker-{number}" in file.parts}
    PartitionAdmin(store.cluster).reassign("orders", {0: ((old + 1) % 3,)})
    CoordinatorLoop(store.cluster).run_once()
    for file in files:
        file.unlink()
    if is_root_away:
        (root,) = {parent for file in files for parent in file.parents if parent.name == f"broker-{old}"}
        root.rename(root.with_suffix(".away"))
    assert row_count + sum(batch.num_rows for batch in batches) == 9


def test_a_scan_takes_offsets_and_stays_inside_of_the_log(filled):
    topic = filled.topic("orders")
    assert topic.scan(1, 3).to_arrow()["offset"].to_pylist() == [1, 2, 1, 2]
    assert topic.scan({0: 4, 1: 0}, {0: 99, 1: 1}).to_arrow()["offset"].to_pylist() == [4, 0]
    assert topic.scan(3, 1, [0]).to_arrow().num_rows == 0
    assert topic.scan("end-2", partitions=[0]).to_arrow()["offset"].to_pylist() == [3, 4]
    assert topic.scan({0: 0, 1: "latest-9"}, {0: "end-4", 1: "end-3"}).to_arrow()["offset"].to_pylist() == [0, 0, 1]
    assert topic.scan(-2, -1).to_arrow().num_rows == 10 and topic.scan(-1).to_arrow().num_rows == 0
    assert sum(batch.num_rows for batch in topic.scan(partitions=[1]).to_batches()) == 5


@pytest.mark.parametrize(
    ("scan", "error"),
    [
        (lambda topic: topic.scan("soon"), InvalidConfigError),
        (lambda topic: topic.scan({0: 1}), InvalidConfigError),
        (lambda topic: topic.scan(-10), InvalidConfigError),
        (lambda topic: topic.scan(0, -3), InvalidConfigError),
        (lambda topic: topic.scan({0: 1, 1: "-3"}), InvalidConfigError),
        (lambda topic: topic.scan("earliest-1"), InvalidConfigError),
        (lambda topic: topic.scan(True), InvalidConfigError),
        (lambda topic: topic.scan(1.5), InvalidConfigError),
        (lambda topic: topic.scan(partitions=[2]), NotFoundError),
    ],
)
def test_a_scan_that_cannot_be_meant_is_refused(filled, scan, error):
    with pytest.raises(error):
        scan(filled.topic("orders"))


def test_a_scan_of_the_newest_rows_in_pythons_form_is_refused_with_the_right_one(filled):
    with pytest.raises(InvalidConfigError, match="For the last 10 rows: 'end-10'"):
        filled.topic("orders").scan(-10)


def test_a_scan_becomes_a_data_frame(filled):
    pytest.importorskip("pandas")
    assert list(filled.topic("orders").scan(partitions=[0]).to_pandas()["offset"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("module", "method"), [("polars", "to_polars"), ("duckdb", "to_duckdb")])
def test_a_scan_is_handed_to_others_as_one_arrow_table(filled, monkeypatch, module, method):
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(from_arrow=lambda table: table.num_rows))
    assert getattr(filled.topic("orders").scan(), method)() == 10


def test_no_store_is_said(tmp_path):
    with pytest.raises(NotFoundError):
        spark_replog.open(str(tmp_path / "nothing"))


def test_a_scan_of_some_columns(filled):
    topic = filled.topic("orders")
    whole = topic.scan().to_arrow()
    table = topic.scan(columns=["offset", "value"]).to_arrow()
    assert table.equals(whole.select(["value", "offset"]))
    assert topic.scan(start="latest", columns=["value"]).to_arrow().column_names == ["value"]
    for wrong in ((), "value", ["values"]):
        with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_OPTION"):
            topic.scan(columns=wrong)
