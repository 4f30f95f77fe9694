"""A store of two roots: the one that is left gives the other everything back."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replog.config import CoordinatorConfig
from spark_replog.coordinator.cluster_init import init_cluster
from spark_replog.maintenance.repair import RootCondition
from spark_replog.storage.paths import journal_folder
from tests.scenarios.repairing import fill, lose, read_all, repair


@pytest.mark.parametrize("gone", [0, 1])
def test_one_of_two_roots_is_rebuilt_from_the_other(tmp_path: Path, store, gone: int) -> None:
    path = tmp_path / "two"
    init_cluster(str(path), 2, fsync=False)
    two = type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=500))
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
    two = type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=500))
    two.controller.create_topic("orders", 2, 2, start_index=0)
    fill(two, 0, 4, holders={0, 1})
    lose(two, 1)
    assert repair(two).roots[1].is_repaired
    fill(two, 4, 2, holders={0, 1})  # never reopened
    two.reopen()
    assert two.high_watermarks("orders") == [12, 18]
    folder = two.path / "broker-1" / journal_folder(two.cluster.lookup("orders").ledger_id)
    positions = sorted(int(each.name) for each in folder.iterdir())
    assert positions == list(range(len(positions)))
