"""A root comes back, and then another one goes: each majority can go on, whatever was decided while a root was away."""

from __future__ import annotations

import json

import pytest

from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cli.main import run
from spark_replog.client.store import Store
from spark_replog.clock import SystemClock
from spark_replog.cluster.cluster import Cluster
from spark_replog.ledger.ledger import Ledger
from spark_replog.maintenance import journal_scrub
from spark_replog.maintenance import repair as repair_module
from spark_replog.maintenance.journal_scrub import drop_passing_lags, scrub_journals
from spark_replog.maintenance.repair import RepairReport, StoreRepair
from spark_replog.storage.paths import ROOT_FILE_KEY
from tests.at_rest import wait_at_rest
from tests.scenarios.repairing import fill, is_applied, lose, put_arrow, repair
from tests.waiting import wait_until


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
    assert {(1, ledger_id) for ledger_id in ledger_ids} <= {journal[:2] for journal in scrub_journals(opened).behind}
    repair(store)
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).behind == []


def said(store, capsys, *command: str, exit_codes: tuple[int, ...] = (0,)) -> dict:
    """Run a command as its user does, and return its first item."""
    assert run(["-s", str(store.path), "-q", "-f", "json", *command]) in exit_codes, capsys.readouterr()
    return json.loads(capsys.readouterr().out)["items"][0]


def put_row(store, name: str, batch: int) -> None:
    """Write a row to roots 0 and 2."""
    assert is_applied(store.append(name, {}, batch=batch, objects=(put_arrow(store, name, [1], holders={0, 2}),)))


def miss_two_topics(store) -> None:
    """Let root 1 be away while two topics are made and snapshots of all ledgers are decided."""
    store.create("orders")
    snapshot_all(store)
    store.away(1)
    store.reopen()
    for name in ("first", "second"):
        store.create(name)
        put_row(store, name, 0)
    snapshot_all(store)
    store.back(1)


def is_level(store) -> bool:
    return scrub_journals(Cluster.open(str(store.path), config=store.config)).behind == []


def test_status_and_verify_name_journals_that_are_behind_until_a_coordinator_ran(store, capsys) -> None:
    miss_two_topics(store)
    item = said(store, capsys, "status", exit_codes=(3,))
    (finding,) = [entry for entry in item["findings"] if entry["fault"] == "journal-behind"]
    assert (finding["broker"], item["brokers"][1]["state"]) == (1, "journal-behind")
    assert all(name in finding["detail"] for name in ("the cluster ledger", "first", "second"))
    assert finding["remedy"] == f"replog -s {store.path} coordinator run --once"
    verified = said(store, capsys, "store", "verify", exit_codes=(3,))
    assert (verified["journalsBehind"], verified["journalFindings"]) == (3, [])
    assert run(["-s", str(store.path), "store", "verify"]) == 3
    assert "1       behind" in capsys.readouterr().out
    wait_until(lambda: said(store, capsys, "coordinator", "run", "--once") and is_level(store), "journals are level")
    item = said(store, capsys, "status", exit_codes=(0, 3))  # replicas rejoin later
    assert "journal-behind" not in {entry["fault"] for entry in item["findings"]}
    assert item["brokers"][1]["state"] == "ok"
    assert said(store, capsys, "store", "verify", exit_codes=(0, 3))["behind"] == []


@pytest.mark.parametrize("is_brought_up", [False, True])
def test_verify_fails_for_a_journal_that_is_behind_and_remains_so(store, capsys, monkeypatch, is_brought_up) -> None:
    store.create("orders", 2)
    fill(store, 0, 1)
    store.away(1)
    store.reopen()
    fill(store, 1, 3, holders={0, 2})
    store.back(1)
    wait_at_rest(store.cluster.brokers)

    def look_again(cluster, report):
        assert [journal.broker_id for journal in report.behind] == [1]
        if is_brought_up:
            repair(store)
        drop_passing_lags(cluster, report)

    monkeypatch.setattr(journal_scrub, "drop_passing_lags", look_again)
    item = said(store, capsys, "store", "verify", exit_codes=(0 if is_brought_up else 3,))
    assert (item["ok"], item["journalsBehind"]) == (is_brought_up, int(not is_brought_up))
    assert not item["journalFindings"] and not item["findings"] and not item["snapshotFindings"]


@pytest.mark.parametrize("by", ["coordinator", "writer", "repair"])
def test_all_goes_on_without_another_root_once_journals_are_brought_up(store, capsys, by) -> None:
    miss_two_topics(store)
    if by == "coordinator":
        wait_until(lambda: said(store, capsys, "coordinator", "run", "--once") and is_level(store))
    elif by == "repair":
        assert repair(store).roots[1].is_repaired
    else:
        store.reopen()
        for name in ("first", "second"):
            put_row(store, name, 1)
        store.create("third", replicas=2)
        wait_until(lambda: is_level(store), "the writer brought the journals up")
    lose(store, 0)
    for name in ("first", "second"):
        assert Store(Cluster.open(str(store.path))).topic(name).scan().to_arrow().num_rows == 1 + (by == "writer")
    said(store, capsys, "topic", "create", "fourth", "-p", "1", "--replicas", "2")
    items = said(store, capsys, "store", "repair", "-y")
    assert items["ok"]
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).lagging == []
    findings = said(store, capsys, "status", exit_codes=(0, 3))["findings"]
    assert "journal-behind" not in {finding["fault"] for finding in findings}
    store.reopen()
    put_row(store, "first", 9)
    wait_until(lambda: is_level(store), "the writer brought up a slow root")
    assert said(store, capsys, "store", "verify")["ok"]


def repaired_while_root_1_takes_no_record(store, faults, monkeypatch, *, is_healed: bool) -> RepairReport:
    """Rebuild root 0; from then on root 1 takes no journal record, until the repair levels if `is_healed`."""
    store.create("orders", 2)
    fill(store, 0, 3)
    wait_at_rest(store.cluster.brokers)
    lose(store, 0)
    level = Ledger.level

    def heal_and_level(ledger, **more):
        broken.stores[1].drop_creates = not is_healed
        return level(ledger, **more)

    with faults(store, store.config) as broken:
        create = broken.stores[0].create

        def create_and_break(key, data, **more):
            broken.stores[1].drop_creates |= key == ROOT_FILE_KEY
            return create(key, data, **more)

        monkeypatch.setattr(broken.stores[0], "create", create_and_break)
        monkeypatch.setattr(Ledger, "level", heal_and_level)
        return StoreRepair(store.cluster).run()


def test_a_repair_gives_a_root_what_it_missed_of_the_repair_itself(store, faults, monkeypatch) -> None:
    report = repaired_while_root_1_takes_no_record(store, faults, monkeypatch, is_healed=True)
    assert all(root.is_repaired for root in report.roots.values()), report.roots
    assert scrub_journals(Cluster.open(str(store.path), config=store.config)).lagging == []


def test_a_repair_says_so_if_a_root_does_not_get_what_it_lacks(store, faults, monkeypatch) -> None:
    monkeypatch.setattr(repair_module, "LEVEL_MS", 300)
    report = repaired_while_root_1_takes_no_record(store, faults, monkeypatch, is_healed=False)
    assert [root.is_repaired for root in report.roots.values()] == [True, False, True]
    assert "still lacks entries" in report.roots[1].detail


class HurriedClock(SystemClock):
    """Waits for nothing: a pause only moves it on."""

    slept_ms = 0.0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + int(self.slept_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms += duration_ms


def test_a_root_that_takes_no_record_is_not_asked_again_and_again(store, faults) -> None:
    store.create("orders", 2)
    fill(store, 0, 3)
    wait_at_rest(store.cluster.brokers)
    with faults(store, store.config) as broken:
        broken.stores[1].drop_creates = True
        fill(store, 3, 3, holders={0, 2})
        ledger_id, brokers = store.cluster.lookup("orders").ledger_id, store.cluster.brokers
        hurried = Cluster(brokers, path=str(store.path), storage_options={}, config=store.config, clock=HurriedClock())
        ledger = hurried.topic_ledger(ledger_id)
        ledger.refresh()
        stats = ledger.stats
        before = stats.gets + stats.creates
        assert ledger.level(timeout_ms=60_000, broker_ids={1}) == {1}
        assert stats.gets + stats.creates - before < 200


def test_a_running_coordinator_brings_up_a_root_that_comes_back(store) -> None:
    store.create("orders", 2)
    loop = CoordinatorLoop(Cluster.open(str(store.path), config=store.config))
    loop.run_once()
    store.away(1)
    store.reopen()
    fill(store, 0, 5, holders={0, 2})
    loop.run_once()
    store.back(1)
    assert not is_level(store)
    # By its own entries too, which bring journals up as any writer's do.
    wait_until(lambda: loop.run_once() and is_level(store), "the coordinator brought the journals up")


def test_a_journal_that_lacks_the_newest_entry_only_is_not_behind(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 3)
    store.away(1)
    store.reopen()
    fill(store, 3, 1, holders={0, 2})
    store.back(1)
    wait_at_rest(store.cluster.brokers)
    report = scrub_journals(Cluster.open(str(store.path), config=store.config))
    assert [(journal.broker_id, journal.entry_count) for journal in report.lagging] == [(1, 1)] and not report.behind
    ledger_id = store.cluster.lookup("orders").ledger_id
    assert Cluster.open(str(store.path)).topic_ledger(ledger_id).behind() == {}
