"""A store that a shell removes and makes again while a process, such as a notebook, has it open."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

import pytest

import spark_replog
from spark_replog import Consumer, Producer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError

SECONDS = 30


def make(path: str, brokers: int) -> None:
    """As another process makes it: nothing of it is in the caches of this one."""
    init_cluster(path, brokers, {}, fsync=False)
    Controller(Cluster.open(path)).create_topic("orders", 1)


@pytest.fixture(params=[1, 3])
def brokers(request):
    return request.param


@pytest.fixture
def path(tmp_path, brokers):
    made = str(tmp_path / "store")
    make(made, brokers)
    return made


def values(path: str) -> list[bytes]:
    with Consumer(path, "orders", auto_offset_reset="earliest") as consumer:
        return consumer.to_arrow()["value"].to_pylist()


def test_new_objects_use_the_new_store_and_old_ones_are_refused(path, brokers):
    store, producer = spark_replog.open(path), Producer(path)
    producer.send("orders", b"old").result(SECONDS)
    consumer = Consumer(path, "orders", auto_offset_reset="earliest")
    assert len(consumer.poll(SECONDS * 1000)) == 1
    shutil.rmtree(path)
    make(path, brokers)
    with Producer(path) as other:
        other.send("orders", b"new").result(SECONDS)
    assert values(path) == [b"new"]
    assert spark_replog.open(path).topic("orders").scan().to_arrow()["value"].to_pylist() == [b"new"]
    uses = (
        lambda: consumer.poll(),
        lambda: store.topic("orders").scan().to_arrow(),
        lambda: store.admin().offsets("orders"),
        lambda: producer.send("orders", b"x").result(SECONDS),
    )
    for use in uses + uses:  # what one call learned, another may not take from it
        with pytest.raises(ReplogError) as refused:
            use()
        assert refused.value.code is ErrorCode.REPLOG_CLUSTER_MISMATCH
        assert "made again" in str(refused.value)
    producer.close()
    assert values(path) == [b"new"]


def test_one_root_of_another_store_does_not_count_as_made_again(tmp_path):
    path, other = str(tmp_path / "store"), str(tmp_path / "other")
    make(path, 3)
    make(other, 1)
    with Producer(path) as producer:
        producer.send("orders", b"1").result(SECONDS)
        shutil.rmtree(f"{path}/broker-0")
        shutil.copytree(f"{other}/broker-0", f"{path}/broker-0")
        producer.send("orders", b"2").result(SECONDS)
    assert values(path) == [b"1", b"2"]


def test_a_producer_finds_a_topic_that_was_made_again(path):
    controller = Controller(Cluster.open(path))
    with Producer(path, retry_backoff_ms=1) as producer:
        producer.send("orders", b"old").result(SECONDS)
        controller.delete_topic("orders")
        controller.create_topic("orders", 1)
        with pytest.raises(NotFoundError):
            producer.send("orders", b"lost").result(SECONDS)
        until = time.monotonic() + SECONDS
        while not (sent := is_sent(producer, b"new")) and time.monotonic() < until:
            pass  # the producer looks the topic up within retry.backoff.ms
        assert sent
    assert values(path) == [b"new"]


def is_sent(producer: Producer, value: bytes) -> bool:
    with suppress(NotFoundError):
        return producer.send("orders", value).result(SECONDS).offset == 0
    return False
