"""Write tasks copy what followers miss, after their own rows; real directories."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_replog.commit import catch_up as task_catch_up
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.catch_up import (
    PLANNED_COPIES_MAX,
    check_task_age,
    copy_share,
)
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import Append, IdentityKind, IsrChange, Outcome, ProducerIdentity
from spark_replog.storage.brokers import BrokerSet
from tests.counting_store import CountingStore
from tests.manual_clock import ManualClock

# Long: only tasks bring the replica up to date, not the commit itself.
SLOW_COMMITS = CoordinatorConfig(replica_rejoin_wait_ms=3_600_000, replica_lag_time_max_ms=3_000)


@pytest.fixture
def behind(store):
    """Broker 2 missed five objects of ten bytes and is back; their rows, of 1970, are kept."""
    store.config = SLOW_COMMITS
    store.reopen()
    store.create("orders", config={"retention.ms": "-1"})
    store.away(2)
    for batch in range(5):
        assert store.append("orders", {0: 1}, batch=batch, holders={0, 1}).error is None
    store.back(2)
    task_catch_up._seen.clear()
    store.reopen()
    return store


def planned(store):
    return make_write_plan(store.cluster, ["orders"]).missing_copies


def brokers_of(store) -> BrokerSet:
    return BrokerSet.open(str(store.path))


def commit(store, batch: int, copies, objects=()) -> None:
    objects = objects or (store.put("orders", {0: 1}, {0, 1}),)
    identity = ProducerIdentity("query-1", "query-1", batch, "run-1", IdentityKind.STREAM)
    ledger_id = store.cluster.lookup("orders").ledger_id
    append = Append(identity, "User:test", "", 0, objects)
    request = AppendRequest(append, 30_000, copied={copy.id: {copy.broker_id} for copy in copies})
    answers = store.manager.append_records({ledger_id: request})
    assert answers[ledger_id].error is None
    assert answers[ledger_id].result.outcome is Outcome.APPLIED


def test_a_whole_store_plans_no_copies_and_asks_no_root(store) -> None:
    store.create("orders")
    assert store.append("orders", {0: 1}, batch=0).error is None
    counting = CountingStore(store.cluster.brokers.store(2))
    store.cluster.brokers.stores[2] = counting
    plan = make_write_plan(store.cluster, ["orders"])
    assert plan.missing_copies == ()
    assert all("journal" in key or "markers" in key for _, key in counting.calls)


def test_the_plan_lists_what_is_missing_oldest_first(behind) -> None:
    copies = planned(behind)
    names = [section.object.id.name for section in behind.sections("orders")]
    assert [copy.id.name for copy in copies] == names
    assert {copy.targets for copy in copies} == {(2,)}
    assert {copy.sources for copy in copies} == {(0, 1)}


def test_a_root_that_is_away_is_not_planned_for(behind) -> None:
    behind.away(2)
    assert planned(behind) == ()


def test_tasks_copy_their_share_and_the_commit_records_it(behind) -> None:
    config = replace(SLOW_COMMITS, replica_catchup_bytes=20)
    before = behind.held_by("orders", 2)
    made = [
        copy_share(ReplicaFetcher(brokers_of(behind), config), planned(behind), batch_id=5, task_id=n)
        for n in range(12)
    ]
    assert [len(share) for share in made] == [2] * 12
    chosen = {copy.id.name for task in made for copy in task}
    assert len(chosen) > 2  # tasks that know nothing of each other choose apart; all alike once in 10**11 runs
    assert behind.held_by("orders", 2) - before == chosen
    left = len(planned(behind))
    assert left == 5  # nobody has been told yet
    commit(behind, 5, [copy for task in made for copy in task])
    assert len(planned(behind)) == 6 - len(chosen)  # and the new batch's own object
    holders = {section.object.id.name: section.object.holders for section in behind.sections("orders")}
    assert all(holders[name] == {0, 1, 2} for name in chosen)


def test_tasks_alone_bring_a_replica_back(behind) -> None:
    for batch in range(5, 9):
        made = copy_share(ReplicaFetcher(brokers_of(behind), SLOW_COMMITS), planned(behind), batch, 0)
        commit(behind, batch, made)
    # Everything up to the last batch is there; the replica joins when its wait is over.
    assert len(planned(behind)) == 1
    behind.config = replace(SLOW_COMMITS, replica_rejoin_wait_ms=0)
    behind.reopen()
    assert behind.append("orders", {0: 1}, batch=9, holders={0, 1}).error is None
    assert set(behind.isr("orders")) == {0, 1, 2}


def test_copies_of_tasks_count_not_if_their_root_left_again_since(behind) -> None:
    copies = planned(behind)
    objects = (behind.put("orders", {0: 1}, {0, 1}),)
    made = copy_share(ReplicaFetcher(brokers_of(behind), SLOW_COMMITS), copies, 5, 0)
    # A repair begins: it gives the root a new disk, before the tasks' message arrives.
    ledger = behind.cluster.topic_ledger(copies[0].ledger_id)
    ledger.append(lambda _: encode_command(IsrChange(None, 2, False, 0)), timeout_ms=30_000)
    commit(behind, 5, made, objects)
    assert {section.object.holders for section in behind.sections("orders")} == {frozenset({0, 1})}
    assert len(planned(behind)) == 6


def test_a_copy_that_nobody_reported_is_found_whole(behind) -> None:
    first = copy_share(ReplicaFetcher(brokers_of(behind), SLOW_COMMITS), planned(behind), 5, 0)
    assert len(first) == 5  # and the task dies before its message arrives
    brokers = brokers_of(behind)
    counting = CountingStore(brokers.store(2))
    brokers.stores[2] = counting
    again = copy_share(ReplicaFetcher(brokers, SLOW_COMMITS), planned(behind), 5, 0)
    assert set(again) == set(first)
    assert counting.counts["create"] == 0


def test_a_damaged_copy_is_not_reported(behind) -> None:
    copies = planned(behind)
    path = behind.path / "broker-2" / "ledgers" / copies[0].ledger_id / "data" / "000000" / copies[0].id.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"?" * copies[0].size_bytes)
    made = copy_share(ReplicaFetcher(brokers_of(behind), SLOW_COMMITS), copies, 5, 0)
    assert {copy.id.name for copy in made} == {copy.id.name for copy in copies[1:]}


def test_catching_up_never_fails_a_task(behind) -> None:
    copies = planned(behind)
    behind.away(2)
    assert copy_share(ReplicaFetcher(brokers_of(behind), SLOW_COMMITS), copies, 5, 0) == ()


def test_an_object_larger_than_the_share_is_copied_alone(behind) -> None:
    config = replace(SLOW_COMMITS, replica_catchup_bytes=1)
    assert len(copy_share(ReplicaFetcher(brokers_of(behind), config), planned(behind), 5, 0)) == 1


def test_the_plan_is_bounded(behind, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PLANNED_COPIES_MAX == 256
    monkeypatch.setattr(task_catch_up, "PLANNED_COPIES_MAX", 3)
    names = [section.object.id.name for section in behind.sections("orders")]
    assert [copy.id.name for copy in planned(behind)] == names[:3]


def test_a_task_older_than_half_of_the_floors_lag_fails_early(store) -> None:
    store.create("orders")
    plan = replace(make_write_plan(store.cluster, ["orders"]), made_at_ms=1_000)
    config = CoordinatorConfig(gc_floor_lag_ms=10_000)
    check_task_age(plan, config, clock=ManualClock(6_000))
    with pytest.raises(ReplogError, match=r"gc\.floor\.lag\.ms") as raised:
        check_task_age(plan, config, clock=ManualClock(6_001))
    assert raised.value.code is ErrorCode.REPLOG_JOB_TOO_LONG


def test_the_sinks_tasks_catch_up_and_its_commit_records_it(behind) -> None:
    pytest.importorskip("pyspark")
    from spark_replog.spark.options import parse_sink_options
    from spark_replog.spark.sink.sink import BatchWriter

    options = {"path": str(behind.path), "topic": "orders", "replica.rejoin.wait.ms": "3600000"}
    writer = BatchWriter(parse_sink_options(options, streaming=False))
    rows = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
    message = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([rows]))))
    assert len(message.copies) == 5
    writer.commit([message])
    behind.reopen()
    assert behind.high_watermarks("orders") == [7]
    holders = [section.object.holders for section in behind.sections("orders")]
    assert holders[:5] == [{0, 1, 2}] * 5
