"""Writes with acks=1 through the sink's own classes while the root of a leader, or of a follower, is away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.waiting import wait_until

pytest.importorskip("pyspark")

import spark_replog
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.storage.posix_store import PosixStore
from tests.scenarios.repairing import told_cuts
from tests.scenarios.sink_query import Query, forget_process, read


def refusing(folder: str, create: Any) -> Any:
    """A full disk: nothing new can be made below a folder, all else works."""

    def refuse(self: PosixStore, key: str, data: Any, *, make_parent: bool = False) -> Any:
        if f"{self.url.removeprefix('file://')}/{key}".startswith(folder):
            raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no space left on device. Free some.")
        return create(self, key, data, make_parent=make_parent)

    return refuse


@pytest.fixture
def orders(store) -> Iterator[Any]:
    store.create("orders")
    yield store
    forget_process()


def described(store):
    store.reopen()
    return store.controller.describe_topic("orders").partitions[0]


def test_a_query_goes_on_when_its_leader_is_away_before_it_plans(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    query.batch(b"0")
    orders.away(0)
    query.batch(b"1")
    query.batch(b"2")
    now = described(orders)
    assert (now.leader, now.isr, now.leader_epoch) == (1, (1, 2), 1)
    assert read(orders) == [b"0", b"1", b"2"]


def test_a_leader_that_goes_between_plan_and_task_costs_no_task(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    query.batch(b"0")
    planned = query.plan()
    orders.away(0)
    message = query.write(planned, b"1")
    ((_, written),) = message.objects
    assert written.holders == {1, 2}
    query.commit(message)
    now = described(orders)
    assert (now.leader, now.isr, now.leader_epoch) == (1, (1, 2), 1)
    assert read(orders) == [b"0", b"1"]
    query.commit(message)  # the driver died before it wrote that down
    assert read(orders) == [b"0", b"1"]


def test_a_leader_that_goes_between_task_and_commit_takes_nothing_with_it(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    message = query.write(query.plan(), b"0")
    ((ledger_id, written),) = message.objects
    while not all(orders.held_by("orders", broker_id) for broker_id in (1, 2)):  # acks=1 did not wait for these
        SYSTEM_CLOCK.sleep_ms(5)
    told = replace(written, holders=frozenset({0, 1, 2}))
    orders.away(0)
    query.commit(replace(message, objects=((ledger_id, told),)))
    assert described(orders).high_watermark == 1
    query.batch_id += 1
    query.batch(b"1")
    assert read(orders) == [b"0", b"1"]
    orders.back(0)
    query.batch(b"2")
    query.batch(b"3")
    now = described(orders)
    assert (now.leader, now.isr, now.leader_epoch) == (1, (0, 1, 2), 1)
    assert read(orders) == [b"0", b"1", b"2", b"3"]
    assert len(orders.held_by("orders", 0)) == 4


def test_a_follower_that_is_away_does_not_hide_what_is_written(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    orders.away(2)
    query.batch(b"0")
    now = described(orders)
    assert (now.leader, now.isr, now.leader_epoch) == (0, (0, 1), 0)
    assert read(orders) == [b"0"]


def test_nobody_in_sync_left_to_lead_is_a_retriable_error_and_nothing_is_written(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    query.batch(b"0")
    planned = query.plan()
    orders.create("single", replicas=1)
    single = Query(orders, monkeypatch, topic="single")
    alone = single.plan()
    orders.away(0)
    with pytest.raises(RetriableError) as caught:
        single.write(alone, b"x")
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE and "broker 0" in str(caught.value)
    query.commit(query.write(planned, b"1"))
    orders.back(0)
    single.batch(b"x")
    assert read(orders) == [b"0", b"1"] and described(orders).high_watermark == 2
    orders.reopen()
    assert orders.high_watermarks("single") == [1]
    single_ledger = orders.cluster.lookup("single").ledger_id
    assert len(list((orders.path / "broker-0").glob(f"ledgers/{single_ledger}/data/*/*"))) == 1


def test_a_leader_that_takes_no_writes_but_answers_leaves_the_in_sync_replicas(orders, monkeypatch) -> None:
    query = Query(orders, monkeypatch)
    query.batch(b"0")
    data = next((orders.path / "broker-0").glob("ledgers/*/data/*"))
    monkeypatch.setattr(PosixStore, "create", refusing(str(data), PosixStore.create))
    query.batch(b"1")
    now = described(orders)
    assert (now.leader, now.isr) == (1, (1, 2))
    assert read(orders) == [b"0", b"1"]


def test_rows_that_only_the_lost_leader_has_are_cut_by_the_next_batch(orders, monkeypatch, caplog) -> None:
    Query(orders, monkeypatch).batch(b"0")
    query = Query(orders, monkeypatch, **{"replica.catchup.budget.ms": "0"})  # nothing is copied behind a commit
    query.batch_id = 1
    planned = query.plan()
    message = query.write_without((1, 2), planned, b"lost")
    query.commit(message)
    query.batch_id += 1
    assert read(orders) == [b"0"] and described(orders).log_end_offset == 2
    query = Query(orders, monkeypatch)
    query.batch_id = 2
    orders.away(0)
    query.batch(b"1")
    assert told_cuts(caplog) == ["1 rows were cut"]
    now = described(orders)
    assert (now.leader, now.isr, now.high_watermark, now.log_end_offset) == (1, (1, 2), 2, 2)
    assert read(orders) == [b"0", b"1"]
    orders.back(0)
    query.batch(b"2")
    assert read(orders) == [b"0", b"1", b"2"]


def test_two_replicas_of_which_both_must_be_in_sync_wait_for_the_leader_and_lose_nothing(orders, monkeypatch) -> None:
    orders.create("pair", replicas=2)
    query = Query(orders, monkeypatch, topic="pair")
    query.batch(b"0")
    orders.away(0)
    query.batch(b"1")
    orders.reopen()
    now = orders.controller.describe_topic("pair").partitions[0]
    assert (now.leader, now.isr, now.high_watermark, now.log_end_offset) == (0, (0, 1), 1, 2)
    orders.back(0)
    query.batch(b"2")
    orders.reopen()
    assert orders.high_watermarks("pair") == [3]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_plain_producer_goes_on_without_its_leader(orders, acks: int) -> None:
    settings = {"retry.backoff.ms": 5, "replica.grace.ms": 50, "enable.idempotence": "false"}
    with spark_replog.open(str(orders.path)).producer(settings, acks=acks) as producer:
        producer.send("orders", value=b"0").result(timeout=60)
        producer.flush()
        # Neither waits for followers, and acks=0 not even for the leader: what it alone holds may go with it.
        wait_until(lambda: len(list(orders.path.glob("broker-*/ledgers/*/data/*/*.arrow"))) == 3)
        orders.away(0)
        assert [producer.send("orders", value=value).result(timeout=60).partition for value in (b"1", b"2")] == [0, 0]
    assert (described(orders).leader, described(orders).isr) == (1, (1, 2))
    assert read(orders) == [b"0", b"1", b"2"]
