"""Single copies of objects are bad, short or gone: what a repair may fix, delete, and must leave."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from spark_replog.admin.admin import PartitionAdmin
from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.catch_up import CatchUp
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import IsrChange
from spark_replog.maintenance.repair import RootCondition, StoreRepair
from spark_replog.maintenance.scrub import scrub
from spark_replog.storage.paths import data_key
from tests.faulty_store import FaultyStore
from tests.scenarios.repairing import fill, is_applied, lose, read_all, repair, told_cuts


@pytest.mark.guarantee("G7")
def test_damaged_short_and_missing_copies_are_mended(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 4)
    objects = sorted((store.path / "broker-2").rglob("*.arrow"))
    for path in objects:
        path.chmod(0o644)
    objects[0].unlink()
    objects[1].write_bytes(objects[1].read_bytes()[:-1])
    body = bytearray(objects[2].read_bytes())
    body[7] ^= 1
    objects[2].write_bytes(body)
    shallow = repair(store)
    assert (shallow.roots[2].object_count, shallow.roots[2].is_repaired) == (2, True)
    deep = repair(store, deep=True)
    assert (deep.roots[2].object_count, deep.roots[2].is_repaired) == (1, True)
    assert scrub(store.cluster, deep=True).findings == []
    for path in objects:
        assert path.read_bytes() == (store.path / "broker-0" / path.relative_to(store.path / "broker-2")).read_bytes()


@pytest.mark.guarantee("G6")
def test_rows_without_a_good_copy_are_named_and_nothing_is_deleted(store) -> None:
    store.create("orders", 1)
    assert is_applied(store.append("orders", {0: 1}, batch=0))
    handle = store.cluster.lookup("orders")
    name = store.sections("orders")[0].object.id.name
    for broker_id in range(3):
        path = store.path / f"broker-{broker_id}" / data_key(handle.ledger_id, 0, name)
        path.chmod(0o644)
        path.write_bytes(b"?" * path.stat().st_size)
    report = repair(store, deep=True)
    assert report.lost_objects == [name]
    assert all(name in store.held_by("orders", broker_id) for broker_id in range(3))


class Unlisted:
    """A root that hides its objects from a listing."""

    def __init__(self, store, folder: str) -> None:
        self._store, self._folder = store, folder

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def list_keys(self, prefix: str, *, after: str = ""):
        if self._folder in prefix:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "the root does not list.")
        return self._store.list_keys(prefix, after=after)


def test_a_short_copy_stays_until_good_bytes_for_it_are_in_hand(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 1)
    short, *rotten = (next((store.path / f"broker-{broker_id}").rglob("*.arrow")) for broker_id in range(3))
    for path in (short, *rotten):
        path.chmod(0o644)
    whole = short.read_bytes()
    short.write_bytes(whole[:-1])  # the first partition's rows are all there, and nowhere else
    for path in rotten:
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    report = repair(store)  # sizes tell, not bytes
    assert not report.roots[0].is_repaired
    assert short.read_bytes() == whole[:-1]
    rotten[0].write_bytes(whole)
    assert repair(store).roots[0].object_count == 1
    assert short.read_bytes() == whole


def test_a_copy_that_another_repair_mended_meanwhile_is_left_alone(store, monkeypatch) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    short, missing = sorted((store.path / "broker-2").rglob("*.arrow"))
    short.chmod(0o644)
    short.write_bytes(short.read_bytes()[:-1])
    missing.unlink()
    listed = StoreRepair._is_good
    fixed: list[int] = []

    def others_first(self, root, job, present) -> bool:
        is_good = listed(self, root, job, present)
        if not is_good and not fixed:
            fixed.append(0)
            assert repair(store).roots[2].object_count == 2
            fixed[:] = [short.stat().st_mtime_ns, missing.stat().st_mtime_ns]
        return is_good

    monkeypatch.setattr(StoreRepair, "_is_good", others_first)
    root = repair(store).roots[2]
    assert root.is_repaired, root.detail
    assert [short.stat().st_mtime_ns, missing.stat().st_mtime_ns] == fixed


def test_a_root_that_takes_no_writes_keeps_no_other_from_being_repaired(store, monkeypatch) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    next((store.path / "broker-1").rglob("*.arrow")).unlink()
    really = os.utime

    def read_only(path, *more, **others):
        if str(path).startswith(f"{store.path}/broker-0"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really(path, *more, **others)

    monkeypatch.setattr(os, "utime", read_only)
    report = repair(store)
    assert "Read-only file system" in report.roots[0].detail and not report.roots[0].is_repaired
    assert [report.roots[broker_id].is_repaired for broker_id in (1, 2)] == [True, True]
    assert report.roots[1].object_count == 1


def test_unread_rows_on_a_root_that_does_not_answer_are_not_given_up(store) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 1)
    only = store.put("orders", {0: 1}, {2})
    assert is_applied(store.append("orders", {}, batch=1, objects=(only,), acks=1))
    folder = next((store.path / "broker-2").rglob(only.id.name)).parent
    store.cluster.brokers.stores[2] = Unlisted(store.cluster.brokers.store(2), folder.name)  # type: ignore[assignment]
    report = StoreRepair(store.cluster).run()
    assert "does not list" in report.roots[2].detail
    assert is_applied(store.append("orders", {0: 2, 1: 3}, batch=2))
    assert store.high_watermarks("orders") == [5, 6]


def test_unread_rows_that_a_root_in_sync_may_hold_are_not_given_up_while_it_does_not_answer(store, caplog) -> None:
    """With acks=1 a copy is reported after the answer, and its writer may have died before."""
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 1)
    made = store.put("orders", {0: 1}, {0, 2})
    reported = replace(made, holders=frozenset({0}))
    assert is_applied(store.append("orders", {}, batch=1, objects=(reported,), acks=1))
    next((store.path / "broker-0").rglob(made.id.name)).unlink()
    folder = next((store.path / "broker-2").rglob(made.id.name)).parent
    store.cluster.brokers.stores[2] = Unlisted(store.cluster.brokers.store(2), folder.name)  # type: ignore[assignment]
    assert StoreRepair(store.cluster).run().lost_objects == [made.id.name]
    assert told_cuts(caplog) == []
    store.reopen()
    assert repair(store).lost_objects == []
    assert store.high_watermarks("orders") == [3, 3] and read_all(store) == 6


@pytest.mark.parametrize("was_there", [True, False])
def test_a_copy_that_was_found_or_made_counts_not_if_its_root_is_rebuilt_meanwhile(
    tmp_path, store, monkeypatch, was_there
) -> None:
    """A long repair; another one rebuilds the root in between, while the only other copy is away."""
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    five = type(store)(path, replace(store.config, replica_catchup_budget_ms=0, replica_rejoin_wait_ms=3_600_000))
    five.create("orders", replicas=2)
    holder, target = five.isr("orders")
    ledger = five.cluster.topic_ledger(five.cluster.lookup("orders").ledger_id)
    leave = encode_command(IsrChange(None, target, False, five.cluster.clock.now_ms()))
    ledger.append(lambda _: leave, timeout_ms=30_000)
    made = five.put("orders", {0: 3}, {holder, target} if was_there else {holder})
    recorded_object = replace(made, holders=frozenset({holder}))
    assert is_applied(five.append("orders", {}, batch=0, objects=(recorded_object,), acks=1))
    admit = CatchUp.admit

    def slow(self, *given):
        monkeypatch.setattr(CatchUp, "admit", admit)
        lose(five, target)
        cluster = Cluster.open(str(path), config=five.config)
        cluster.brokers.stores[holder] = away = FaultyStore(cluster.brokers.store(holder))
        away.is_down = True
        root = StoreRepair(cluster).run().roots[target]
        assert root.journal_records and not root.is_repaired
        return admit(self, *given)

    monkeypatch.setattr(CatchUp, "admit", slow)
    repair(five)
    five.reopen()
    assert (target in five.isr("orders")) == (made.id.name in five.held_by("orders", target))
    assert repair(five).roots[target].is_repaired
    assert made.id.name in five.held_by("orders", target)


def test_rows_on_a_root_that_is_only_away_are_not_called_gone(store) -> None:
    store.create("orders", replicas=1)
    (holder,) = store.isr("orders")
    assert is_applied(store.append("orders", {0: 3}, batch=0, holders={holder}))
    store.reopen()
    store.cluster.brokers.stores[holder] = away = FaultyStore(store.cluster.brokers.store(holder))
    away.is_down = True
    report = StoreRepair(store.cluster).run()
    assert report.roots[holder].condition is RootCondition.UNREACHABLE
    assert report.lost_objects == []


@pytest.mark.guarantee("G4")
def test_a_rebuilt_broker_gets_the_rows_that_it_held_as_a_replica_before(tmp_path, store) -> None:
    """The log counts it as a holder: if it becomes a replica again, nothing is copied."""
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    five = type(store)(path, store.config)
    five.create("orders")
    before = five.controller.describe_topic("orders").partitions[0].replicas
    for batch in range(3):
        assert is_applied(five.append("orders", {0: 2}, batch=batch, holders=set(before)))
    (first, *_) = before
    assert move(five, (3, 4)) == {3, 4}
    lose(five, first)
    assert repair(five).roots[first].is_repaired
    five.reopen()
    assert move(five, (first,)) == {first}
    named = {section.object.id.name for section in five.sections("orders")}
    assert five.held_by("orders", first) == named
    assert scrub(five.cluster).findings == []


def move(store, target) -> set[int]:
    """Give the partition other replicas; return which are in sync then."""
    PartitionAdmin(store.cluster).reassign("orders", {0: target})
    CoordinatorLoop(store.cluster).run_once()
    return set(store.isr("orders"))
