"""Without fsync a crash tears the ends of journals: `store repair` drops what no majority has whole."""

from __future__ import annotations

import json

import pytest

from spark_replog.cli.main import run
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import CorruptDataError
from spark_replog.maintenance import journal_repair
from spark_replog.storage.paths import journal_folder
from tests.at_rest import wait_at_rest
from tests.scenarios.conftest import FAST, LocalStore
from tests.scenarios.repairing import fill, read_all, repair


def tear(store, broker_id, count, size):
    """Truncate the last records of the topic's journal, as files without fsync are found after a power cut."""
    wait_at_rest(store.cluster.brokers)
    folder = store.path / f"broker-{broker_id}" / journal_folder(store.cluster.lookup("orders").ledger_id)
    records = sorted(path for path in folder.iterdir() if path.name.isdecimal())
    for path in records[-count:]:
        body = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(bytes(len(body)) if size is None else body[:size])


@pytest.fixture(params=[1, 2, 3])
def crashed(request, tmp_path):
    init_cluster(str(tmp_path / "store"), request.param, fsync=False)
    store = LocalStore(tmp_path / "store", FAST)
    store.create("orders", 2, replicas=request.param)
    holders = frozenset(range(request.param))
    fill(store, 0, 4, holders=holders)
    return store, holders


@pytest.mark.parametrize("size", [0, 40, None], ids=["empty", "cut", "zeros"])
def test_a_store_whose_journals_all_end_in_damage_works_after_a_repair(crashed, size):
    store, holders = crashed
    for broker_id in holders:
        tear(store, broker_id, 1, size)
    store.reopen()
    with pytest.raises(CorruptDataError):
        read_all(store)
    assert all(root.is_repaired for root in repair(store).roots.values())
    store.reopen()
    assert read_all(store) >= 5 * 3, "only the last, which no root has whole, may be gone"
    fill(store, 4, 2, holders=holders)
    store.reopen()
    assert read_all(store) >= 5 * 5


def test_the_plan_names_the_damage_and_leaves_it(crashed, capsys):
    store, holders = crashed
    for broker_id in holders:
        tear(store, broker_id, 1, 0)
    before = sorted(path for path in store.path.rglob("*"))
    assert run(["-s", str(store.path), "-f", "json", "store", "repair", "--dry-run"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert all("1 damaged record" in item["action"] for item in items)
    assert sorted(store.path.rglob("*")) == before
    assert run(["-s", str(store.path), "store", "repair"]) == 0


def test_nothing_is_dropped_with_fsync_or_before_a_whole_record(tmp_path):
    init_cluster(str(tmp_path / "store"), 1)
    store = LocalStore(tmp_path / "store", FAST)
    store.create("orders", 2, replicas=1)
    fill(store, 0, 2, holders={0})
    tear(store, 0, 1, 0)
    before = sorted(store.path.rglob("*"))
    with pytest.raises(CorruptDataError):
        repair(store)
    assert sorted(store.path.rglob("*")) == before


def test_a_tail_that_the_others_have_whole_is_given_back(store):
    store.create("orders", 2)
    fill(store, 0, 4)
    tear(store, 1, 2, 0)
    store.reopen()
    assert read_all(store) == 20
    assert all(root.is_repaired for root in repair(store).roots.values())
    fill(store, 4, 1)
    store.away(0)
    store.reopen()
    assert read_all(store) == 25


def test_a_record_written_after_another_repair_is_not_dropped(tmp_path, monkeypatch):
    init_cluster(str(tmp_path / "store"), 1, fsync=False)
    store = LocalStore(tmp_path / "store", FAST)
    store.create("orders", 2, replicas=1)
    fill(store, 0, 4, holders={0})
    tear(store, 0, 2, 40)
    find = journal_repair.torn_tails

    def find_before_another_repair(brokers, broker_id):
        tails = find(brokers, broker_id)
        monkeypatch.setattr(journal_repair, "torn_tails", find)
        store.reopen()
        repair(store)
        store.reopen()
        fill(store, 4, 3, holders={0})
        return tails

    monkeypatch.setattr(journal_repair, "torn_tails", find_before_another_repair)
    other = LocalStore(tmp_path / "store", FAST)
    assert all(root.is_repaired for root in repair(other).roots.values())
    store.reopen()
    assert read_all(store) >= 5 * 5, "the rows of both fills that were acknowledged after the crash are there"
