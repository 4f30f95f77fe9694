"""One store on three kinds of storage: a folder, an S3 bucket, HDFS; each may go and come back."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.storage.open_store import open_store
from tests.remote_roots import RemoteRoots, name_node_running, s3_running

WRITER = {
    "replica.grace.ms": 50, "replica.lag.time.max.ms": 500, "retry.backoff.ms": 5, "request.timeout.ms": 3000,
    "replica.rejoin.wait.ms": 0,
}  # fmt: skip


class MixedStore(RemoteRoots):
    """The roots as one store, and the command line for it."""

    def replog(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        settings = [text for name, value in self.options.items() for text in ("-X", f"storage.{name}={value}")]
        with redirect_stdout(io.StringIO()) as out:
            code = run(["-s", self.path, "-f", "json", "-q", *settings, *arguments])
        return code, json.loads(out.getvalue())["items"]


@pytest.fixture
def store(tmp_path) -> Iterator[MixedStore]:
    with s3_running() as s3, name_node_running() as name_node:
        made = MixedStore(tmp_path / "log", s3, name_node)
        assert made.replog("init")[0] == 0
        assert made.replog("topic", "create", "orders", "-p", "2", "--replicas", "3")[0] == 0
        yield made


def write(opened, *values: bytes) -> list[int]:
    with opened.producer(WRITER) as producer:
        return [producer.send("orders", value, partition=0).result(timeout=60).offset for value in values]


@pytest.mark.guarantee("G4")
def test_each_root_may_go_and_come_back_while_rows_are_written_and_read(store) -> None:
    opened = spark_replog.open(store.path, store.options)
    assert write(opened, b"0", b"1") == [0, 1]
    for broker_id in range(3):
        store.away(broker_id)
        assert write(opened, b"away") == [2 + 2 * broker_id]
        store.back(broker_id)
        assert write(opened, b"back") == [3 + 2 * broker_id]
    table = opened.topic("orders").scan().to_arrow()
    assert table["value"].to_pylist() == [b"0", b"1"] + [b"away", b"back"] * 3


def test_what_a_bucket_lost_is_found_and_copied_from_other_kinds_of_storage(store) -> None:
    opened = spark_replog.open(store.path, store.options)
    write(opened, *(b"%d" % number for number in range(20)))
    bucket = open_store(opened.cluster.brokers.url(1), store.options)
    lost = [info.key for info in bucket.list_keys("ledgers/") if "/data/" in info.key]
    for key in lost:
        bucket.delete(key)
    code, (report,) = store.replog("store", "verify", "--deep")
    assert (code, report["lostObjects"], report["copies"]) == (3, 0, 60)
    faults = {(finding["broker"], finding["fault"], finding["object"]) for finding in report["findings"]}
    assert faults == {(1, "absent", key.rpartition("/")[2]) for key in lost} and len(lost) == 20
    assert store.replog("store", "repair")[0] == 0
    assert store.replog("store", "verify", "--deep")[0] == 0
    assert [info.key for info in bucket.list_keys("ledgers/") if "/data/" in info.key] == lost


def test_garbage_collection_sweeps_what_killed_writers_left_on_every_kind_of_root(store) -> None:
    tree, written_ms = store.name_node.tree, store.name_node.written_ms
    folder = min(name.rpartition("/")[0] for name in tree if "/journal/" in name)
    old = f"{folder}/.tmp-old"
    tree[old], written_ms[old] = b"part", store.name_node.now_ms - 86_400_000
    for flags, is_left in ((["--dry-run"], True), ([], False)):
        code, items = store.replog("store", "gc", *flags)
        assert code == 0
        (swept,) = [item for item in items if item.get("reason") == "left by an interrupted writer"]
        assert (swept["broker"], swept["files"]) == (2, 1)
        assert (old in tree) is is_left


def test_a_root_that_lost_everything_is_made_anew_from_other_kinds_of_storage(store) -> None:
    opened = spark_replog.open(store.path, store.options)
    write(opened, b"0", b"1")
    bucket = open_store(opened.cluster.brokers.url(1), store.options)
    for info in list(bucket.list_keys("")):
        bucket.delete(info.key)
    assert store.replog("store", "info")[0] != 0
    assert store.replog("store", "repair", "-y")[0] == 0
    assert store.replog("store", "verify", "--deep")[0] == 0
    store.away(0)
    again = spark_replog.open(store.path, store.options)
    assert write(again, b"2") == [2]
    assert again.topic("orders").scan().to_arrow()["value"].to_pylist() == [b"0", b"1", b"2"]


def test_a_group_is_kept_on_mixed_roots(store) -> None:
    opened = spark_replog.open(store.path, store.options)
    write(opened, b"0", b"1", b"2")
    with opened.consumer("orders", group="billing", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(5_000, max_records=2)] == [b"0", b"1"]
        consumer.commit()
    store.away(2)
    with opened.consumer("orders", group="billing") as consumer:
        assert [record.value for record in consumer.poll(20_000)] == [b"2"]
