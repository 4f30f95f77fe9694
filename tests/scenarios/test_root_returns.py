"""A root comes back, and then another one goes: each majority can go on, whatever was decided while a root was away."""

from __future__ import annotations

from spark_replog.cluster.cluster import Cluster
from spark_replog.maintenance.journal_scrub import scrub_journals
from tests.at_rest import wait_at_rest
from tests.scenarios.repairing import fill, repair


def snapshot_all(store) -> None:
    """As `replog store snapshot` does, in a new process."""
    opened = Cluster.open(str(store.path), config=store.config)
    ids = [opened.brokers.cluster_id, *sorted(opened.cluster_ledger.state.ledger_ids())]
    for ledger_id in ids:
        ledger = opened.cluster_ledger if ledger_id == opened.brokers.cluster_id else opened.topic_ledger(ledger_id)
        ledger.snapshot(timeout_ms=30_000)
    wait_at_rest(opened.brokers)


def test_a_root_comes_back_and_another_goes_after_a_snapshot(store) -> None:
    store.create("orders")
    snapshot_all(store)
    store.away(1)
    store.reopen()
    store.create("first", replicas=2)
    store.create("second", replicas=2)
    snapshot_all(store)
    wait_at_rest(store.cluster.brokers)
    store.back(1)
    store.away(0)
    store.reopen()
    assert sorted(store.cluster.topic_names()) == ["first", "orders", "second"]
    store.create("third", replicas=2)
    fresh = Cluster.open(str(store.path), config=store.config)
    assert sorted(fresh.topic_names()) == ["first", "orders", "second", "third"]


def test_a_repair_gives_a_returned_root_the_entries_that_it_lacks(store) -> None:
    store.create("orders", 2)
    store.away(1)
    store.reopen()
    store.create("first", replicas=2)
    fill(store, 0, 30, holders={0, 2})
    wait_at_rest(store.cluster.brokers)
    store.back(1)
    opened = Cluster.open(str(store.path), config=store.config)
    ledger_ids = {opened.brokers.cluster_id, opened.lookup("orders").ledger_id}
    assert {(1, each) for each in ledger_ids} <= set(scrub_journals(opened).behind)
    repair(store)
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).behind == []
