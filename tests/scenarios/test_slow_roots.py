"""A root that is late is not lost: it leaves the in-sync replicas after ``replica.lag.time.max.ms`` or an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.client.producer import Producer
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import fail_over
from spark_replog.errors import ErrorCode
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.model import Append, IdentityKind, ProducerIdentity
from spark_replog.storage.paths import ROOT_FILE_KEY

LONG_MS = 14_000


class LateStore:
    """A root that answers some calls when its gate opens."""

    def __init__(self, store, *, reads: str = "", creates: str = "") -> None:
        self._store = store
        self._reads, self._creates = (reads,) if reads else (), creates
        self.asked, self.gate = threading.Event(), threading.Event()
        self.asked_to_read = False
        self.create_count = 0

    def hangs_for(self, *reads: str) -> None:
        self._reads = reads

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def get(self, key: str, **more: object):
        is_late = any(part in key for part in self._reads)
        self.asked_to_read |= is_late
        self._wait(is_late)
        return self._store.get(key, **more)

    def create(self, key: str, data: object, *, make_parent: bool = False):
        is_late = bool(self._creates) and self._creates in key
        self.create_count += is_late
        self._wait(is_late)
        return self._store.create(key, data, make_parent=make_parent)

    def _wait(self, is_late: bool) -> None:
        if is_late:
            self.asked.set()
            assert self.gate.wait(60)


@pytest.fixture
def late(store):
    """Open the store again so that one root is late."""
    made: list[LateStore] = []

    def make(broker_id: int, *, reads: str = "", creates: str = "", **settings: int) -> LateStore:
        store.config = replace(store.config, **settings)
        store.reopen()
        root = LateStore(store.cluster.brokers.store(broker_id), reads=reads, creates=creates)
        store.cluster.brokers.stores[broker_id] = root  # type: ignore[assignment]
        made.append(root)
        return root

    yield make
    for slow_root in made:
        slow_root.gate.set()


def opened_when_asked(root: LateStore, after_seconds: float = 0) -> threading.Thread:
    """Let the root answer once somebody waits for it, or that much later."""

    def run() -> None:
        assert root.asked.wait(30)
        time.sleep(after_seconds)
        root.gate.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def by_loop(store) -> bool:
    return CoordinatorLoop(store.cluster).run_once().failover_count > 0


def by_failover(store) -> bool:
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    return fail_over(store.cluster, CatchUp.of(store.cluster), ledger, {0})


@pytest.mark.parametrize("look", [by_loop, by_failover])
def test_a_root_that_answers_within_the_lag_time_keeps_its_place(store, late, look: Callable[..., bool]) -> None:
    store.create("orders")
    assert store.append("orders", {0: 1}, batch=0).error is None
    root = late(0, reads=ROOT_FILE_KEY, replica_lag_time_max_ms=LONG_MS)
    store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id).refresh()
    opener = opened_when_asked(root)
    assert not look(store)
    opener.join()
    assert store.isr("orders") == (0, 1, 2)


def test_a_leader_whose_copies_nobody_delivers_is_not_waited_for(store, monkeypatch, caplog) -> None:
    monkeypatch.setattr(CatchUp, "copy_to_followers", lambda self, ledger: None)
    store.config = replace(store.config, replica_lag_time_max_ms=4_000)
    store.reopen()
    store.create("orders")
    assert store.append("orders", {0: 3}, batch=0, holders={0}, acks=1).error is None
    store.away(0)
    assert store.append("orders", {0: 1}, batch=1, holders={1, 2}).error is None
    assert store.isr("orders") == (1, 2)
    assert "has not caught up" not in caplog.text  # the wait for the followers, who can do nothing, was broken off


def test_a_copy_that_takes_a_while_keeps_its_follower_in_sync(store, late) -> None:
    store.create("orders")
    root = late(2, creates="/data/", replica_lag_time_max_ms=LONG_MS)
    made = store.put("orders", {0: 1}, {0, 1})
    opener = opened_when_asked(root)
    assert store.append("orders", {}, batch=0, objects=(made,)).error is None
    opener.join()
    assert store.isr("orders") == (0, 1, 2) and store.high_watermarks("orders") == [1]


@pytest.mark.parametrize(("budget_ms", "isr"), [(50, (0, 1, 2)), (200, (0, 1))])
def test_a_follower_that_hangs_behind_acks_1_leaves_after_the_lag_time(store, late, budget_ms: int, isr) -> None:
    store.create("orders")
    late(2, creates="/data/", replica_lag_time_max_ms=100, replica_catchup_budget_ms=budget_ms)
    made = store.put("orders", {0: 1}, {0, 1})
    assert store.append("orders", {}, batch=0, objects=(made,), acks=1).error is None
    assert store.isr("orders") == isr
    assert store.high_watermarks("orders") == [1 if len(isr) == 2 else 0]


def test_a_follower_that_takes_some_copies_in_time_is_only_slow(store, late) -> None:
    store.create("orders")
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    first, second = (store.put("orders", {0: 1}, {0, 1}) for _ in range(2))
    assert store.append("orders", {}, batch=0, objects=(first,), acks=1).error is None
    # The first has to arrive within the lag time, however busy the machine is.
    late(2, creates=second.id.name, replica_lag_time_max_ms=2_000, replica_catchup_budget_ms=2_500)
    assert store.append("orders", {}, batch=1, objects=(second,), acks=1).error is None
    assert store.isr("orders") == (0, 1, 2)
    assert store.high_watermarks("orders") == [1]  # the first has arrived


def test_a_source_that_hangs_is_not_its_targets_fault(store, late) -> None:
    store.create("orders", config={"min.insync.replicas": "1"})
    made = store.put("orders", {0: 1}, {0})
    source = late(0, reads="", replica_lag_time_max_ms=100, replica_catchup_budget_ms=200)
    source.hangs_for(f"/{made.id.name}", ROOT_FILE_KEY)
    assert store.append("orders", {}, batch=0, objects=(made,), acks=1).error is None
    assert store.isr("orders") == (0, 1, 2)


def test_a_source_that_fails_is_not_its_targets_fault(store) -> None:
    store.create("orders", config={"min.insync.replicas": "1"})
    made = store.put("orders", {0: 1}, {0})
    next((store.path / "broker-0").rglob(made.id.name)).unlink()
    assert store.append("orders", {}, batch=0, objects=(made,), acks=1).error is None
    assert store.isr("orders") == (0, 1, 2)


def test_nothing_is_read_from_a_root_that_hangs_to_bring_another_back_in_time(store, late) -> None:
    store.create("orders")
    store.away(0)
    assert store.append("orders", {0: 1}, batch=0, holders={1, 2}).error is None
    store.back(0)
    made = store.put("orders", {0: 1}, {0, 2})
    root = late(1, creates="/data/", replica_lag_time_max_ms=100, replica_catchup_budget_ms=1_000)
    root.hangs_for("/data/")
    assert store.append("orders", {}, batch=1, objects=(made,)).error is None
    assert store.isr("orders") == (0, 2) and store.high_watermarks("orders") == [2]
    assert not root.asked_to_read


def test_a_slow_root_that_keeps_min_isr_is_waited_for_and_not_refused(store, late) -> None:
    store.create("orders")
    BrokerAdmin(store.cluster).fence(2)
    root = late(1, creates="/data/", replica_lag_time_max_ms=50)
    made = store.put("orders", {0: 1}, {0, 2})  # the copy on the fenced broker does not count
    opener = opened_when_asked(root, after_seconds=0.3)
    assert store.append("orders", {}, batch=0, objects=(made,)).error is None
    opener.join()
    assert store.isr("orders") == (0, 1) and store.high_watermarks("orders") == [1]


def test_a_replica_that_is_back_joins_instead_of_a_slow_one_that_keeps_min_isr(store, late) -> None:
    store.create("orders")
    store.away(2)
    assert store.append("orders", {0: 1}, batch=0, holders={0, 1}).error is None
    store.back(2)
    made = store.put("orders", {0: 1}, {0, 2})
    late(1, creates="/data/", replica_lag_time_max_ms=50, replica_rejoin_wait_ms=60_000)
    assert store.append("orders", {}, batch=1, objects=(made,)).error is None  # the gate of root 1 never opens
    assert store.isr("orders") == (0, 2) and store.high_watermarks("orders") == [2]


def test_a_root_that_hangs_and_keeps_min_isr_ends_with_a_time_out_and_nothing_decided(store, late) -> None:
    store.create("orders", replicas=2)
    late(1, creates="/data/", replica_lag_time_max_ms=50)
    made = store.put("orders", {0: 1}, {0})
    error = store.append("orders", {}, batch=0, objects=(made,), timeout_ms=400).error
    assert error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT
    assert store.isr("orders") == (0, 1)


@pytest.mark.parametrize("acks", [0, 1])
def test_with_acks_0_and_1_the_answer_comes_before_a_follower_takes_its_copy(store, late, acks: int) -> None:
    store.create("orders")
    root = late(2, creates="/data/", replica_lag_time_max_ms=LONG_MS, replica_catchup_budget_ms=LONG_MS)
    handle = store.cluster.lookup("orders")
    for batch in range(3):
        identity = ProducerIdentity("q", "q", batch, "run", IdentityKind.STREAM)
        append = Append(identity, "User:test", "", 0, (store.put("orders", {0: 1}, {0, 1}),))
        request = AppendRequest(append, 30_000, acks)
        assert store.manager.append_records({handle.ledger_id: request})[handle.ledger_id].error is None
    assert not store.manager.await_copies(0)
    assert store.high_watermarks("orders") == [0]
    root.gate.set()
    assert store.manager.await_copies(30_000)
    assert store.high_watermarks("orders") == [3] and store.isr("orders") == (0, 1, 2)
    assert root.create_count == 3  # each object once


def test_a_producer_that_closes_waits_for_its_followers_copies(store, late) -> None:
    store.create("orders")
    root = late(2, creates="/data/", replica_lag_time_max_ms=LONG_MS)
    with Producer(store.cluster, acks=1) as producer:
        assert producer.send("orders", b"row", partition=0).result(20).offset == 0
        opener = opened_when_asked(root, after_seconds=0.3)
    opener.join()
    assert store.high_watermarks("orders") == [1] and store.isr("orders") == (0, 1, 2)


def test_a_long_look_at_the_ledger_leaves_a_dead_root_its_time_to_leave(store, monkeypatch):
    """A cold process on a loaded machine: its first look at the ledger took all of the request's time."""
    store.create("orders")
    store.away(1)
    item = store.put("orders", {0: 2}, {0, 2})
    store.reopen()
    append, looks = Ledger.append, []

    def slow_append(ledger, propose, **how):
        if not looks:
            looks.append(time.sleep(1.1))
        return append(ledger, propose, **how)

    monkeypatch.setattr(Ledger, "append", slow_append)
    answer = store.append("orders", {}, batch=0, objects=(item,), timeout_ms=1_050)
    assert answer.error is None and looks
    assert store.isr("orders") == (0, 2)
