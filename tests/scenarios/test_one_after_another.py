"""A root comes back, and before anything else is written another one goes: the returned one takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import spark_replog
from tests.scenarios.sink_query import Query, forget_process, read

pytestmark = pytest.mark.usefixtures("short_tail_retry")

OPTIONS = {"kafka.acks": "all", "replica.rejoin.wait.ms": "30000"}


@pytest.fixture
def orders(store) -> Iterator[Any]:
    store.create("orders")
    yield store
    forget_process()


def in_sync(store) -> tuple[int, ...]:
    store.reopen()
    return store.controller.describe_topic("orders").partitions[0].isr


@pytest.mark.guarantee("G4")
def test_a_query_is_not_stopped(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch, **OPTIONS)
    query.batch(b"0")
    orders.away(0)
    query.batch(b"1")
    assert in_sync(orders) == (1, 2)
    orders.back(0)
    orders.away(1)
    query.batch(b"2")
    assert in_sync(orders) == (0, 2)
    orders.back(1)
    orders.away(2)
    query.batch(b"3")
    assert in_sync(orders) == (0, 1)
    assert read(orders) == [b"0", b"1", b"2", b"3"]


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_plain_producer_is_not_stopped(orders, idempotent) -> None:
    settings = {"retry.backoff.ms": 5, "replica.grace.ms": 50, "enable.idempotence": idempotent}
    with spark_replog.open(str(orders.path)).producer(settings) as producer:
        producer.send("orders", b"0").result(timeout=60)
        orders.away(0)
        producer.send("orders", b"1").result(timeout=60)
        orders.back(0)
        orders.away(1)
        assert producer.send("orders", b"2").result(timeout=60).offset == 2
        orders.back(1)
        orders.away(2)
        assert producer.send("orders", b"3").result(timeout=60).offset == 3
    assert read(orders) == [b"0", b"1", b"2", b"3"]
