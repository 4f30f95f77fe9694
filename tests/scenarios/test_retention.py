"""Retention and garbage collection by those who only write and read: no command is typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import spark_replog
from spark_replog.cli.main import run
from spark_replog.client.record_fetcher import ConsumerMetrics, RecordFetcher
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.retention import raise_floor
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import DataLossError, ErrorCode, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.read.fetch_plan import plan_fetch
from tests.scenarios.committing import commit_until_merged
from tests.waiting import wait_until_stopped

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path):
    assert run(["-q", "-s", str(tmp_path / "store"), "init", "--brokers", "3", "--no-fsync"]) == 0
    return spark_replog.open(tmp_path / "store")


def write(store, batches, *, age_days=0, settings=None):
    """Write batches of ten rows; each becomes an object, its rows so many days old."""
    now_ms = int(time.time() * 1000) - age_days * DAY_MS
    with store.producer(settings or {}) as producer:
        for _ in range(batches):
            for _ in range(10):
                producer.send("orders", b"x" * 20, timestamp_ms=now_ms)
            producer.flush()


def go_ahead(monkeypatch, seconds):
    """Set this process's clock ahead."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + seconds * 10**9)
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 10**9)


def files(tmp_path, broker_id=0):
    return sorted(path.name for path in (tmp_path / "store" / f"broker-{broker_id}").rglob("*.arrow"))


def test_a_store_whose_users_type_no_command_stays_clean(store, tmp_path, monkeypatch):
    monkeypatch.setattr("spark_replog.client.producer.UPKEEP_WAIT_MS", 60_000)
    store.admin().create_topic("orders", partitions=1, replicas=3, config={"retention.ms": str(DAY_MS)})
    often = {"log.retention.check.interval.ms": 1, "file.delete.delay.ms": 0}
    write(store, 3, age_days=2)  # the first commit of a process looks, and the newest section stays
    write(store, 3, settings=often)
    write(store, 2, settings=often)
    assert store.admin().offsets("orders", "start") == {0: 30}
    assert len(files(tmp_path, 0)) == len(files(tmp_path, 2)) == 5
    rows = store.topic("orders").scan().to_arrow()
    assert rows.column("offset").to_pylist() == list(range(30, 80))


def test_readers_below_the_log_start_hear_that_rows_aged_out(store):
    store.admin().create_topic("orders", partitions=1, replicas=3, config={"retention.ms": str(DAY_MS)})
    write(store, 2, age_days=2)
    reading = store.topic("orders").scan(start={0: 5}).to_batches()
    planned = store.topic("orders").scan(start={0: 5}, end={0: 20}).to_batches()
    key = TopicPartition("orders", 0)
    write(store, 1)
    assert run(["-q", "-s", store.path, "store", "gc"]) == 0
    store.topic("orders").scan()  # this process folds
    for late in (reading, planned):
        with pytest.raises(DataLossError, match=r"offsets 5 to 20 \(exclusive\) of partition 0 .* aged out"):
            list(late)
    with store.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([key])
        consumer.seek(key, 5)
        with pytest.raises(ReplogError, match="orders-0 at 5, which has 20 to 30") as raised:
            consumer.poll(timeout_ms=1_000)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_plan_whose_objects_are_gone_is_made_again_by_the_newest_fold(store, tmp_path):
    """A reader that has planned and is slow hears what happened, not that files are missing."""
    store.admin().create_topic("orders", partitions=1, replicas=3, config={"retention.ms": str(DAY_MS)})
    write(store, 4, age_days=2)
    reading = store.topic("orders").scan().to_batches()
    first = next(reading)
    assert first.num_rows == 40  # small neighbours are joined
    fetcher = RecordFetcher(Cluster.shared(store.path), ConsumerConfig(), ConsumerMetrics())
    cluster = fetcher._cluster
    handle = cluster.lookup("orders")
    ledger = cluster.topic_ledger(handle.ledger_id)
    slices = plan_fetch(ledger.state, "orders", handle.topic_id, 0, 12, 35)
    assert run(["-q", "-s", store.path, "store", "gc"]) == 0
    end = 30
    if commit_until_merged(store.path, "orders", lambda: write(store, 1)):
        end = 35  # the section that was the newest has aged out too
        assert run(["-q", "-s", store.path, "store", "gc", "--now", "--older-than", "0s"]) == 0
    with pytest.raises(DataLossError, match=rf"offsets 12 to {end} \(exclusive\) of partition 0 .* aged out"):
        list(fetcher._read(slices))


def test_one_clock_that_is_ahead_deletes_nothing(store, monkeypatch):
    store.admin().create_topic("orders", partitions=1, replicas=3, config={"retention.ms": str(30 * DAY_MS)})
    write(store, 3, age_days=1)
    go_ahead(monkeypatch, 100 * 86_400)
    assert run(["-q", "-s", store.path, "store", "gc"]) == 0
    assert run(["-q", "-s", store.path, "coordinator", "run", "--once"]) == 0
    monkeypatch.undo()
    assert store.admin().offsets("orders", "start") == {0: 0}


@pytest.mark.parametrize("settings", [{}, {"enable.idempotence": False}])
def test_a_writer_whose_clock_is_ahead_deletes_nothing(store, monkeypatch, settings):
    """It appends, so its own commits and collections see its time in the ledger: of this topic and of others."""
    for topic in ("orders", "other"):
        store.admin().create_topic(topic, partitions=1, replicas=3, config={"retention.ms": "3600000"})
    write(store, 5)
    go_ahead(monkeypatch, 2 * 3_600)
    monkeypatch.setattr("spark_replog.client.producer.UPKEEP_WAIT_MS", 60_000)
    often = {"log.retention.check.interval.ms": 1, "file.delete.delay.ms": 0, **settings}
    for _ in range(2):
        write(store, 3, settings=often)
        with store.producer(often) as producer:
            producer.send("other", b"x")
    assert run(["-q", "-s", store.path, "store", "gc"]) == 0
    monkeypatch.undo()
    assert store.admin().offsets("orders", "start") == {0: 0}
    assert len(store.topic("orders").scan().to_arrow()) == 110


@pytest.mark.parametrize("inline_max_bytes", [0, 10_000])
def test_sends_beside_collections_that_refuse_them_are_written_again(store, monkeypatch, inline_max_bytes):
    """`store gc --now --older-than 0s`, six in a row: every batch is in the log once, in order."""
    store.admin().create_topic("orders", partitions=1, replicas=3)
    cluster = Cluster.shared(store.path)
    ledger = cluster.topic_ledger(cluster.lookup("orders").ledger_id)
    append_records, refused = ReplicaManager.append_records, []

    def collect_first(manager, requests):
        if len(refused) < 6:
            raise_floor(ledger, 30_000)
        responses = append_records(manager, requests)
        refused.extend(response.error.code for response in responses.values() if response.error is not None)
        return responses

    monkeypatch.setattr(ReplicaManager, "append_records", collect_first)
    settings = {"inline.max.bytes": inline_max_bytes, "retry.backoff.ms": 5}
    with store.producer(settings) as producer:
        handles = []
        for number in range(40):
            handles.append(producer.send("orders", b"%d" % number))
            if number % 10 == 9:
                producer.flush()
        assert [handle.result(timeout=60).offset for handle in handles] == list(range(40))
    assert set(refused) == {ErrorCode.REPLOG_JOB_TOO_LONG} and len(refused) >= 6
    values = store.topic("orders").scan().to_arrow().column("value").to_pylist()
    assert values == [b"%d" % number for number in range(40)]


WRITER = """
import signal, sys, threading, spark_replog
from spark_replog.commit.replica_manager import ReplicaManager

append_records = ReplicaManager.append_records

def stop_first(manager, requests):
    ReplicaManager.append_records = append_records
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to the process: this thread may go on for a while
    return append_records(manager, requests)

ReplicaManager.append_records = stop_first
store = spark_replog.open(sys.argv[1])
with store.producer() as producer:
    metadata = producer.send("orders", b"mine").result(timeout=60)
    print("wrote", metadata.offset, flush=True)
"""


@pytest.mark.guarantee("G6")
def test_a_writer_stopped_past_the_floor_is_refused_and_writes_again(store, tmp_path):
    """SIGSTOP between the put and the entry, a whole collection, SIGCONT: the row is there once, no file is missing."""
    store.admin().create_topic("orders", partitions=1, replicas=3)
    write(store, 1)
    with subprocess.Popen([sys.executable, "-c", WRITER, store.path], stdout=subprocess.PIPE, text=True) as writer:
        try:
            wait_until_stopped(writer)
            assert len(files(tmp_path)) == 2
            assert run(["-q", "-s", store.path, "store", "gc"]) == 0
            assert len(files(tmp_path)) == 2  # it may come back
            assert run(["-q", "-s", store.path, "store", "gc", "--now", "--older-than", "0s"]) == 0
            assert len(files(tmp_path)) == 1
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        out, _ = writer.communicate(timeout=120)
    assert out.split("\n")[:1] == ["wrote 10"]
    assert store.topic("orders").scan().to_arrow().column("value").to_pylist()[10:] == [b"mine"]
    assert len(files(tmp_path)) == 2
    assert run(["-q", "-s", store.path, "store", "verify"]) == 0
