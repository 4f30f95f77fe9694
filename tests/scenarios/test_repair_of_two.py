"""A store of two roots: the one that is left gives the other everything back."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replog.cluster.init_store import init_cluster
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.maintenance.repair import RootCondition, StoreRepair
from spark_replog.storage.paths import journal_folder
from tests.scenarios.repairing import fill, is_applied, lose, read_all, repair, told_cuts


@pytest.mark.parametrize("gone", [0, 1])
def test_one_of_two_roots_is_rebuilt_from_the_other(tmp_path: Path, store, gone: int) -> None:
    path = tmp_path / "two"
    init_cluster(str(path), 2, fsync=False)
    two = type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000))
    two.controller.create_topic("orders", 2, 2, start_index=0)
    fill(two, 0, 3, holders={0, 1})
    lose(two, gone)
    report = repair(two)
    assert report.roots[gone].condition is RootCondition.LOST
    assert report.roots[gone].is_repaired, report.roots[gone].detail
    assert report.roots[gone].object_count == 3
    assert repair(two).roots[gone].object_count == 0
    two.reopen()
    fill(two, 3, 2, holders={0, 1})
    # And the other way round: the rebuilt one gives back all.
    lose(two, 1 - gone)
    assert repair(two).roots[1 - gone].is_repaired
    two.reopen()
    assert read_all(two) == 25
    fill(two, 5, 1, holders={0, 1})
    assert two.high_watermarks("orders") == [12, 18]


def test_a_process_that_knew_one_of_two_roots_goes_on(tmp_path: Path, store) -> None:
    path = tmp_path / "two"
    init_cluster(str(path), 2, fsync=False)
    two = type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000))
    two.controller.create_topic("orders", 2, 2, start_index=0)
    fill(two, 0, 4, holders={0, 1})
    lose(two, 1)
    assert repair(two).roots[1].is_repaired
    fill(two, 4, 2, holders={0, 1})  # never reopened
    two.reopen()
    assert two.high_watermarks("orders") == [12, 18]
    folder = two.path / "broker-1" / journal_folder(two.cluster.lookup("orders").ledger_id)
    positions = sorted(int(file.name) for file in folder.iterdir())
    assert positions == list(range(len(positions)))
    lose(two, 1)
    assert repair(two).roots[1].is_repaired
    fill(two, 6, 1, holders={0, 1})  # it knows the first replacement
    assert two.high_watermarks("orders") == [14, 21]


@pytest.fixture
def two(tmp_path: Path, store):
    path = tmp_path / "two"
    init_cluster(str(path), 2, fsync=False)
    config = CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000, replica_catchup_budget_ms=0)
    return type(store)(path, config)


def test_rows_that_only_the_lost_leader_of_two_had_are_cut_and_writing_goes_on(two, caplog) -> None:
    two.create("orders", 2, 2, config={"min.insync.replicas": "1"})
    fill(two, 0, 2, holders={0, 1})
    assert is_applied(two.append("orders", {0: 4}, batch=2, holders={0}, acks=1))
    lose(two, 0)
    report = repair(two)
    assert report.roots[0].is_repaired and len(report.lost_objects) == 1
    assert told_cuts(caplog) == ["4 rows were cut"]
    two.reopen()
    assert is_applied(two.append("orders", {0: 4}, batch=2, holders={0, 1}))  # its replay: the offsets are given again
    assert two.high_watermarks("orders") == [8, 6] and read_all(two) == 14
    partition = two.controller.describe_topic("orders").partitions[0]
    # The lost one left with the first entry that its new journal allowed, and joined again with all it needs.
    assert (partition.leader, partition.leader_epoch, set(partition.isr)) == (1, 2, {0, 1})
    assert repair(two).lost_objects == []


def test_a_repair_that_dies_before_the_cut_is_finished_by_the_next_one(two, monkeypatch) -> None:
    two.create("orders", 2, 2, config={"min.insync.replicas": "1"})
    assert is_applied(two.append("orders", {0: 4}, batch=0, holders={0}, acks=1))
    lose(two, 0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StoreRepair, "_cut_lost", dies)
        repair(two)
    assert len(repair(two).lost_objects) == 1
    two.reopen()
    assert is_applied(two.append("orders", {0: 1}, batch=1, holders={0, 1}))
    assert two.high_watermarks("orders") == [1, 0]


def dies(*_: object) -> None:
    raise KeyboardInterrupt
