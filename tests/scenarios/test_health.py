"""The health checks on a real store: what they see without a full read."""

from __future__ import annotations

import shutil
import threading

import pytest

from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cluster import root_check
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import roots_there
from spark_replog.errors import ErrorCode
from spark_replog.health.store import Fault, Level, topic_findings
from spark_replog.monitor.store_monitor import StoreMonitor
from spark_replog.storage.brokers import BrokerSet


def faults(store) -> list[tuple[Fault, int | None]]:
    store.reopen()
    return [(finding.fault, finding.broker_id) for finding in StoreMonitor(store.cluster).look().findings]


def test_a_whole_store_has_no_findings(store) -> None:
    store.create("orders")
    assert store.append("orders", {0: 3}, batch=0).error is None
    assert faults(store) == []


def test_a_root_that_is_away_is_named(store, short_quorum_wait) -> None:
    store.create("orders")
    store.away(1)
    assert faults(store) == [(Fault.ROOT_STALE, 1)]  # its folder is there no more: replog.json is missing
    shutil.move(store.path / "broker-2", store.path / "elsewhere")
    short_quorum_wait()
    with pytest.raises(Exception, match="REPLOG_NO_QUORUM"):
        faults(store)


def test_a_root_restored_from_an_older_backup_is_found_by_its_topic_journal(store) -> None:
    store.create("orders")
    assert store.append("orders", {0: 3}, batch=0).error is None
    shutil.copytree(store.path / "broker-2", store.path / "backup")
    for batch in (1, 2, 3):
        assert store.append("orders", {0: 3}, batch=batch).error is None
    shutil.rmtree(store.path / "broker-2")
    shutil.move(store.path / "backup", store.path / "broker-2")
    assert faults(store) == [(Fault.ROOT_STALE, 2)]


def test_a_newest_copy_that_is_missing_is_found(store) -> None:
    store.create("orders", 1, 3)
    assert store.append("orders", {0: 3}, batch=0).error is None
    for file in (store.path / "broker-1").rglob("*.arrow"):
        file.unlink()
    assert faults(store) == [(Fault.COPY_MISSING, 1)]


def test_roots_are_asked_at_once_whether_they_are_there(store, monkeypatch) -> None:
    all_asked, check_root = threading.Barrier(3), BrokerSet.check_root

    def check(brokers: BrokerSet, broker_id: int) -> None:
        all_asked.wait(10)
        check_root(brokers, broker_id)

    monkeypatch.setattr(BrokerSet, "check_root", check)
    store.away(1)
    assert roots_there(store.cluster.brokers, [0, 1, 2]) == {0, 2}


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_copy_that_is_collected_during_the_look_is_not_missing(store, monkeypatch, is_deleted: bool) -> None:
    store.create("orders", 1, 3)
    assert store.append("orders", {0: 3}, batch=0).error is None
    look, newest_copies = StoreMonitor(store.cluster), root_check._newest_copies
    look.look()
    other = Cluster.open(str(store.path))

    def collected_meanwhile(ledger, broker_ids):
        copies = newest_copies(ledger, broker_ids)
        if is_deleted:
            Controller(other).delete_records("orders", {0: -1})
        for file in (store.path / "broker-1").rglob("*.arrow"):
            file.unlink()
        return copies

    monkeypatch.setattr(root_check, "_newest_copies", collected_meanwhile)
    errors = {root.broker_id: root.error and root.error.code for root in look.look_at_roots()}
    assert errors == {0: None, 1: None if is_deleted else ErrorCode.CORRUPT_MESSAGE, 2: None}


def test_a_root_that_lacks_a_copy_is_also_named_when_it_is_full(store, monkeypatch) -> None:
    store.create("orders", 1, 3)
    assert store.append("orders", {0: 3}, batch=0).error is None
    for file in (store.path / "broker-1").rglob("*.arrow"):
        file.unlink()
    monkeypatch.setattr(root_check, "_space", lambda _brokers, broker_id: (10 << (40 * (broker_id != 1)), broker_id))
    assert set(faults(store)) == {(Fault.COPY_MISSING, 1), (Fault.ROOT_FULL, 1)}


def test_brokers_fenced_below_min_isr_are_critical(store) -> None:
    store.create("orders")
    admin = StoreMonitor(store.cluster)
    assert [warning.fault for warning in admin.fence_warnings([0, 1])] == [Fault.UNDER_MIN_ISR]
    BrokerAdmin(store.cluster).fence(0)
    BrokerAdmin(store.cluster).fence(1)
    findings = admin.look().findings
    assert [(finding.level, finding.fault) for finding in findings] == [
        (Level.CRITICAL, Fault.UNDER_MIN_ISR),
        (Level.WARN, Fault.FENCED),
        (Level.WARN, Fault.FENCED),
    ]
    assert [flaw.fault for flaw in topic_findings([store.controller.describe_topic("orders")])] == [Fault.UNDER_MIN_ISR]
