"""A root is lost for good, rebuilt, and after that any other may go: real directories removed and moved."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spark_replog.admin.admin import PartitionAdmin
from spark_replog.admin.controller import Controller
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.cluster.root_check import look_at_roots
from spark_replog.commit.catch_up import CatchUp
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.root import Standing
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import Append, IdentityKind, IsrChange, ProducerIdentity
from spark_replog.maintenance.journal_scrub import scrub_journals
from spark_replog.maintenance.repair import RootCondition, StoreRepair
from spark_replog.maintenance.scrub import scrub
from spark_replog.storage.mount_table import MountedFileSystem
from spark_replog.storage.paths import data_key, journal_folder, out_key
from tests.at_rest import wait_at_rest
from tests.faulty_store import FaultyStore
from tests.scenarios.repairing import fill, is_applied, lose, read_all, repair, told_cuts

pytestmark = pytest.mark.usefixtures("short_tail_retry")


@pytest.mark.guarantee("G4")
def test_a_lost_root_is_rebuilt_and_then_any_other_may_be_lost(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 4)
    lose(store, 1)
    fill(store, 4, 3, holders={0, 2})  # work goes on without it
    report = repair(store)
    root = report.roots[1]
    assert root.condition is RootCondition.LOST
    assert root.is_repaired, root.detail
    assert root.object_count == 7
    assert report.lost_objects == []
    assert [report.roots[other].object_count for other in (0, 2)] == [0, 0]
    assert store.held_by("orders", 1) == store.held_by("orders", 0)
    assert set(store.isr("orders")) == {0, 1, 2}
    # Another root goes: nothing is lost and work goes on, with the rebuilt one in the majority.
    lose(store, 0)
    store.reopen()
    assert read_all(store) == 7 * 5
    assert store.high_watermarks("orders") == [14, 21]
    fill(store, 7, 2, holders={1, 2})
    assert store.high_watermarks("orders") == [18, 27]
    # That one is rebuilt from the rebuilt one, and the last original goes.
    assert repair(store).roots[0].is_repaired
    lose(store, 2)
    store.reopen()
    assert read_all(store) == 9 * 5
    fill(store, 9, 1, holders={0, 1})
    assert store.high_watermarks("orders") == [20, 30]


@pytest.mark.parametrize("gone", [0, 2])
def test_after_a_repair_each_other_root_can_be_away(store, gone: int) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.away(gone)
    store.reopen()
    assert read_all(store) == 10
    fill(store, 2, 1, holders={0, 1, 2} - {gone})
    store.back(gone)
    fill(store, 3, 1)
    assert store.high_watermarks("orders") == [8, 12]
    assert scrub(store.cluster, deep=True).findings == []


def test_rows_that_only_the_lost_root_held_hold_nothing_back(store, caplog) -> None:
    # acks=1, and the leader's disk dies before a follower has the rows: nobody has read them.
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 2)
    assert is_applied(store.append("orders", {0: 9}, batch=2, holders={1}, acks=1))
    assert store.high_watermarks("orders") == [4, 6]
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    assert told_cuts(caplog) == ["9 rows were cut"]
    store.reopen()
    assert store.high_watermarks("orders") == [4, 6]
    assert [partition.log_end_offset for partition in store.controller.describe_topic("orders").partitions] == [4, 6]
    fill(store, 3, 1)
    assert store.high_watermarks("orders") == [6, 9]
    assert set(store.isr("orders")) == {0, 1, 2}


def test_rows_that_only_a_root_to_rebuild_holds_are_copied_before_it_is_given_up(store) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 2)
    assert is_applied(store.append("orders", {0: 9}, batch=2, holders={1}, acks=1))
    assert store.high_watermarks("orders") == [4, 6]
    assert repair(store, rebuild=frozenset({1})).roots[1].is_repaired
    store.reopen()
    assert store.high_watermarks("orders") == [13, 6]
    assert read_all(store) == 19


@pytest.mark.parametrize("broker_count", [3, 5])
def test_rows_that_come_to_a_root_to_rebuild_after_its_rows_were_copied_are_not_cut(
    tmp_path, store, monkeypatch, caplog, broker_count
) -> None:
    if broker_count == 5:  # broker 3 holds no journals
        store.path = tmp_path / "five"
        init_cluster(str(store.path), 5, fsync=False)
    stale = 1 if broker_count == 3 else 3
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.controller.create_topic("orders", assignment=[(0, stale, 2), (stale, 2, 0)])
    fill(store, 0, 2, holders=frozenset({0, stale, 2}))
    copy_from, written = CatchUp.copy_from, []

    def slow(self, *args) -> None:
        copy_from(self, *args)
        if not written:
            written.append(True)
            assert is_applied(store.append("orders", {1: 9}, batch=2, holders={stale}, acks=1))

    monkeypatch.setattr(CatchUp, "copy_from", slow)
    root = repair(store, rebuild=frozenset({stale})).roots[stale]
    assert root.is_repaired, root.detail
    assert told_cuts(caplog) == []
    store.reopen()
    assert store.high_watermarks("orders") == [4, 15]
    assert read_all(store) == 19


def test_a_root_that_another_repair_has_rebuilt_meanwhile_is_not_given_up_again(store, monkeypatch) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 2)
    copy_from, rebuilt = CatchUp.copy_from, []

    def overtaken(self, *args) -> None:
        copy_from(self, *args)
        if not rebuilt:
            rebuilt.append(True)
            assert repair(store, rebuild=frozenset({1})).roots[1].is_repaired
            store.reopen()
            PartitionAdmin(store.cluster).elect_leaders("orders")
            assert is_applied(store.append("orders", {1: 9}, batch=2, holders={1}, acks=1))
            assert store.high_watermarks("orders") == [4, 6]

    monkeypatch.setattr(CatchUp, "copy_from", overtaken)
    root = repair(store, rebuild=frozenset({1})).roots[1]
    assert root.is_repaired, root.detail
    store.reopen()
    assert store.high_watermarks("orders") == [4, 15]
    assert read_all(store) == 19


def test_a_repair_of_a_whole_store_changes_nothing(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 3)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    before = ledger.refresh().applied_index
    report = repair(store, deep=True)
    assert all(root.is_repaired and root.condition is RootCondition.OK for root in report.roots.values())
    assert sum(root.object_count for root in report.roots.values()) == 0
    assert ledger.refresh().applied_index == before


def test_a_repair_is_repeatable(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 3)
    lose(store, 1)
    assert repair(store).roots[1].object_count == 3
    again = repair(store).roots[1]
    assert (again.condition, again.is_repaired, again.object_count, again.journal_records) == (
        RootCondition.OK,
        True,
        0,
        0,
    )


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("stop_at", [0, 3, 7, 12, 18, 25])
def test_a_repair_that_dies_is_finished_by_the_next_one(store, stop_at: int) -> None:
    class Died(Exception):
        """The process ends."""

    store.create("orders", 2)
    fill(store, 0, 3)
    lose(store, 1)
    cluster = Cluster.open(str(store.path), config=store.config)
    target = cluster.brokers.store(1)
    calls = [0]

    class DyingStore:
        url = target.url

        def __getattr__(self, name: str):
            return getattr(target, name)

        def create(self, key, data, *, make_parent: bool = False):
            calls[0] += 1
            if calls[0] > stop_at:
                raise Died
            return target.create(key, data, make_parent=make_parent)

    cluster.brokers.stores[1] = DyingStore()  # type: ignore[assignment]
    try:
        StoreRepair(cluster).run()
    except Died:
        # No process may use a root before it is whole.
        assert not (store.path / "broker-1" / "replog.json").exists() or calls[0] > stop_at
    report = repair(store)
    assert report.roots[1].is_repaired, report.roots[1].detail
    lose(store, 0)
    store.reopen()
    assert read_all(store) == 15
    fill(store, 3, 1, holders={1, 2})
    assert store.high_watermarks("orders") == [8, 12]


@pytest.fixture
def restored(store):
    """A store whose broker 1 was put back from a backup that lacks the last three of five batches."""
    store.create("orders", 2)
    fill(store, 0, 2)
    shutil.copytree(store.path / "broker-1", store.path / "backup")
    fill(store, 2, 3)
    lose(store, 1)
    os.rename(store.path / "backup", store.path / "broker-1")
    return store


def test_a_root_put_back_from_a_backup_is_rebuilt_when_asked(restored) -> None:
    report = repair(restored, rebuild=frozenset({1}))
    assert report.roots[1].condition is RootCondition.LOST
    assert report.roots[1].is_repaired, report.roots[1].detail
    assert report.roots[1].object_count == 3  # the older ones were in the backup
    lose(restored, 2)
    restored.reopen()
    assert read_all(restored) == 25
    fill(restored, 5, 1, holders={0, 1})


def test_a_root_caught_going_back_in_time_says_so_and_is_rebuilt_without_being_named(restored) -> None:
    restored.reopen()
    out = restored.path / "broker-1" / out_key(restored.cluster.lookup("orders").ledger_id)
    count = 5
    while not out.exists() and count < 500:
        fill(restored, count, 1)
        count += 1
    assert out.exists()
    report = repair(restored)
    assert report.roots[1].condition is RootCondition.LOST
    assert report.roots[1].is_repaired, report.roots[1].detail
    assert not out.exists()
    lose(restored, 2)
    restored.reopen()
    assert read_all(restored) == count * 5
    fill(restored, count, 1, holders={0, 1})


def test_a_root_that_was_rebuilt_since_is_not_called_out_by_one_that_saw_it_go_back(restored) -> None:
    """The latter only commits now and then, and could not say so before the repair."""
    other = type(restored)(restored.path, restored.config)
    ledger_id = restored.cluster.lookup("orders").ledger_id
    target, tried, may_say = other.cluster.brokers.store(1), [], []

    class MuteStore:
        url = target.url

        def __getattr__(self, name: str):
            return getattr(target, name)

        def create(self, key, data, *, make_parent: bool = False):
            if key == out_key(ledger_id):
                tried.append(key)
                if not may_say:
                    raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "the root does not answer.")
            return target.create(key, data, make_parent=make_parent)

    other.cluster.brokers.stores[1] = MuteStore()  # type: ignore[assignment]
    count = 5
    while not tried and count < 500:
        fill(other, count, 1)
        count += 1
    assert tried
    assert repair(restored, rebuild=frozenset({1})).roots[1].is_repaired
    may_say.append(True)
    for _ in range(20):
        fill(other, count, 1)
        count += 1
    assert not (restored.path / "broker-1" / out_key(ledger_id)).exists()
    lose(restored, 2)
    restored.reopen()
    assert read_all(restored) == count * 5


def test_another_stores_root_is_left_alone(store, tmp_path: Path) -> None:
    store.create("orders", 2)
    fill(store, 0, 1)
    lose(store, 1)
    init_cluster(str(tmp_path / "other"), 3, fsync=False)
    shutil.copytree(tmp_path / "other" / "broker-1", store.path / "broker-1")
    before = sorted((store.path / "broker-1").rglob("*"))
    # The path names one store: the foreign root makes opening by the parent fail, so name the good roots.
    roots = f"{store.path}/broker-0,{store.path}/broker-2"
    report = StoreRepair(Cluster.open(roots, config=store.config)).run()
    assert report.roots[1].condition is RootCondition.FOREIGN
    assert not report.roots[1].is_repaired
    assert "cluster" in report.roots[1].detail
    assert sorted((store.path / "broker-1").rglob("*")) == before


def test_too_few_metadata_roots_repair_nothing(store, short_quorum_wait) -> None:
    store.create("orders", 2)
    lose(store, 1), lose(store, 2)
    short_quorum_wait()
    with pytest.raises(Exception, match="REPLOG_NO_QUORUM"):
        repair(store)
    assert not (store.path / "broker-1").exists()


@pytest.mark.parametrize(("away", "rebuild"), [(None, {0, 1}), (None, {0, 1, 2}), (2, {1})])
def test_a_rebuild_that_would_leave_no_majority_gives_no_root_up(store, away: int | None, rebuild: set[int]) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    if away is not None:
        os.rename(store.path / f"broker-{away}", store.path / "away")
    with pytest.raises(RetriableError, match=r"REPLOG_NO_QUORUM.* of 3 metadata roots"):
        repair(store, rebuild=frozenset(rebuild))
    if away is not None:
        os.rename(store.path / "away", store.path / f"broker-{away}")
    store.reopen()
    fill(store, 2, 1)
    assert read_all(store) == 15
    assert all(root.condition is RootCondition.OK for root in repair(store).roots.values())


def test_a_rebuild_asks_whether_the_others_have_their_journals_still(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    journal = store.path / "broker-1" / journal_folder(store.cluster.lookup("orders").ledger_id)
    kept = journal.rename(store.path / "kept")  # its replog.json is there
    journal.mkdir()
    with pytest.raises(RetriableError, match=r"REPLOG_NO_QUORUM.* of 3 metadata roots"):
        repair(store, rebuild=frozenset({0}))
    assert (store.path / "broker-0" / "replog.json").exists()
    store.reopen()
    fill(store, 2, 1)  # brokers 0 and 2 are a majority still
    assert kept.exists() and repair(store, rebuild=frozenset({1})).roots[1].is_repaired
    assert read_all(store) == 15


@pytest.mark.parametrize(("broker_count", "remedy"), [(1, "Put the roots back"), (2, "Empty the folder")])
def test_the_last_root_that_knows_is_never_given_up(tmp_path: Path, store, broker_count: int, remedy: str) -> None:
    path = tmp_path / "few"
    init_cluster(str(path), broker_count, fsync=False)
    few = type(store)(path, store.config)
    few.controller.create_topic("orders", 2, broker_count, start_index=0)
    holders = frozenset(range(broker_count))
    fill(few, 0, 2, holders=holders)
    cluster = Cluster.open(str(path), config=store.config)
    out = out_key(few.sections("orders", 0)[0].object.ledger_id)
    with pytest.raises(RetriableError, match=remedy):
        repair(few, rebuild=frozenset({0}))
    cluster.brokers.store(0).create(out, b"{}")  # as a process that caught it going back in time leaves it
    with pytest.raises(RetriableError, match=remedy):
        repair(few)
    cluster.brokers.store(0).delete(out)
    few.reopen()
    fill(few, 2, 1, holders=holders)
    assert read_all(few) == 15


def test_writers_go_on_while_a_root_is_rebuilt(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 5)
    lose(store, 1)
    stop, failures, written = threading.Event(), [], [5]

    def write() -> None:
        while not stop.is_set():
            response = store.append("orders", {0: 2, 1: 3}, batch=written[0], holders={0, 2})
            if not is_applied(response):
                failures.append(response)
                return
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            report = repair(store)
            if report.roots[1].is_repaired:
                break
    finally:
        stop.set()
        writer.join(30)
    assert failures == []
    assert repair(store).roots[1].is_repaired
    lose(store, 0)
    store.reopen()
    assert read_all(store) == 5 * written[0]
    assert store.high_watermarks("orders") == [2 * written[0], 3 * written[0]]


def test_a_root_without_journals_gets_its_objects(tmp_path: Path, store) -> None:
    path = tmp_path / "four"
    init_cluster(str(path), 4, fsync=False)
    four = type(store)(path, CoordinatorConfig(replica_rejoin_wait_ms=0, replica_lag_time_max_ms=3_000))
    four.controller.create_topic("orders", 2, 4, start_index=0)
    for batch in range(3):
        assert is_applied(four.append("orders", {0: 1, 1: 1}, batch=batch, holders={0, 1, 2, 3}))
    lose(four, 3)
    report = repair(four)
    assert report.roots[3].is_repaired, report.roots[3].detail
    assert (report.roots[3].journal_records, report.roots[3].object_count) == (0, 3)
    assert set(four.isr("orders")) == {0, 1, 2, 3}


def test_temp_files_of_dead_writers_are_swept(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 1)
    handle = store.cluster.lookup("orders")
    folder = store.path / "broker-0" / data_key(handle.ledger_id, 0, "")
    old, young = folder / ".tmp-old", folder / ".tmp-young"
    old.write_bytes(b"left"), young.write_bytes(b"being written")
    now = young.stat().st_mtime
    os.utime(old, (now - 90_000, now - 90_000))
    assert repair(store).roots[0].temp_files == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_the_command_says_what_it_did(store, capsys) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    lose(store, 1)
    assert run(["-s", str(store.path), "-f", "json", "store", "repair", "-y"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["ok"] and answer["_command"] == "store repair"
    assert [item["found"] for item in answer["items"]] == ["ok", "lost", "ok"]
    assert answer["items"][1]["objects"] == 2
    assert "broker 1: objects 2 of 2" in said.err
    assert run(["-s", str(store.path), "store", "repair", "--throttle", "1000000"]) == 0  # no new root: no -y
    assert "whole" in capsys.readouterr().out
    assert run(["-s", str(store.path), "store", "repair", "--rebuild", "9"]) == 2
    assert "no broker 9" in capsys.readouterr().err


@pytest.mark.parametrize("is_there", [False, True])
def test_a_new_root_is_made_only_after_a_yes_as_its_mount_may_only_be_missing(store, capsys, is_there: bool) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    store.away(1)
    if is_there:
        (store.path / "broker-1").mkdir()
    wait_at_rest(store.cluster.brokers)
    before = sorted(store.path.rglob("*"))
    assert run(["-s", str(store.path), "-f", "json", "store", "repair", "--dry-run"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["found"] for item in items] == ["ok", "lost", "ok"]
    for word in ("new root", str(store.path / "broker-1"), "is empty" if is_there else "does not exist"):
        assert word in items[1]["action"]
    assert run(["-s", str(store.path), "store", "repair"]) == 2
    told = capsys.readouterr().err
    assert "-y" in told and str(store.path / "broker-1") in told
    assert sorted(store.path.rglob("*")) == before
    assert run(["-s", str(store.path), "store", "repair", "-y"]) == 0


def test_the_plan_names_another_file_system_where_a_mount_may_be_missing(store, monkeypatch) -> None:
    lose(store, 1)
    nfs = MountedFileSystem("nfs4", frozenset())
    monkeypatch.setattr("spark_replog.maintenance.repair.file_system_of", lambda path: nfs)
    (root,) = [plan for plan in StoreRepair(store.cluster).plan() if plan.condition is RootCondition.LOST]
    assert "nfs4" in root.note and "mount" in root.note


@pytest.mark.parametrize("deep", [False, True])
def test_objects_of_the_right_size_full_of_zeros_on_a_lost_root_are_found(store, deep: bool) -> None:
    store.create("orders", 2)
    fill(store, 0, 3)
    root = store.path / "broker-1"
    copies = list(root.rglob("*.arrow"))
    for path in copies:
        path.write_bytes(bytes(path.stat().st_size))
    (root / "replog.json").unlink()
    assert repair(store, deep=deep).roots[1].object_count == len(copies) == 3
    assert scrub(store.cluster, deep=True).findings == []


def test_who_knows_an_older_replacement_goes_on_without_a_third_root(store) -> None:
    """It cannot read the entry that registers the newest one without this very root."""
    store.create("orders", 2)
    fill(store, 0, 2)
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    running = type(store)(store.path, store.config)
    running.cluster.topic_state(running.cluster.lookup("orders"))
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.away(2)
    fill(running, 2, 1, holders={0, 1})
    assert read_all(running) == 15


@pytest.mark.parametrize("was_replaced_twice", [False, True])
def test_a_root_that_comes_back_over_its_replacement_is_refused(store, was_replaced_twice: bool) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    running = type(store)(store.path, store.config)  # has the old root open
    running.cluster.refresh()
    store.away(1)
    assert repair(store).roots[1].is_repaired
    if was_replaced_twice:
        lose(store, 1)
        assert repair(store).roots[1].is_repaired
    root = store.path / "broker-1"
    root.rename(store.path / "replacement")
    store.back(1)
    for process in (running, type(store)(store.path, store.config)):
        process.cluster.refresh()
        with pytest.raises(RetriableError) as raised:
            process.cluster.brokers.check_root(1)
        assert raised.value.code is ErrorCode.REPLOG_ROOT_STALE and "replaced" in str(raised.value)
        copied = pickle.loads(pickle.dumps(process.cluster.brokers))
        with pytest.raises(RetriableError):
            copied.check_root(1)
    fill(running, 2, 1, holders={0, 2})
    journal = root / journal_folder(store.cluster.lookup("orders").ledger_id)
    before = sorted(journal.iterdir())
    fill(running, 3, 2, holders={0, 2})
    assert sorted(journal.iterdir()) == before, "nothing is written to the root that was replaced"
    cold = Cluster.open(store.path)  # checks the topic's roots while it reads which root the cluster has
    ledger, _ = cold.topic_state(cold.lookup("orders"))
    assert [ledger_root.standing is Standing.UNVERIFIED for ledger_root in ledger.core.roots] == [False, True, False]
    report = repair(store)
    assert report.roots[1].condition is RootCondition.FOREIGN and "--rebuild 1" in report.roots[1].detail
    assert any("replaced" in finding.detail for finding in scrub_journals(store.cluster).findings)
    root.rename(store.path / "broker-1.old")
    (store.path / "replacement").rename(root)
    assert repair(store).roots[1].is_repaired


def test_the_old_root_that_came_back_can_be_rebuilt_by_name(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    store.away(1)
    assert repair(store).roots[1].is_repaired
    (store.path / "broker-1").rename(store.path / "replacement")
    store.back(1)
    assert repair(store, rebuild=frozenset({1})).roots[1].is_repaired
    lose(store, 0)
    store.reopen()
    assert read_all(store) == 10


def test_a_damaged_replog_json_is_rebuilt_by_name(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    (store.path / "broker-1" / "replog.json").write_bytes(b"{")
    report = repair(store)
    assert report.roots[1].condition is RootCondition.FOREIGN and "--rebuild 1" in report.roots[1].detail
    assert repair(store, rebuild=frozenset({1})).roots[1].is_repaired
    store.reopen()
    store.cluster.brokers.check_root(1)


def test_the_topic_is_as_it_was_for_a_new_process(store) -> None:
    store.create("orders", 2)
    fill(store, 0, 2)
    before = Controller(Cluster.open(str(store.path))).describe_topic("orders")
    lose(store, 2)
    assert repair(store).roots[2].is_repaired
    after = Controller(Cluster.open(str(store.path))).describe_topic("orders")
    assert [(p.replicas, set(p.isr), p.high_watermark) for p in after.partitions] == [
        (p.replicas, set(p.isr), p.high_watermark) for p in before.partitions
    ]


def test_unread_rows_whose_only_copy_is_gone_hold_nothing_back_after_a_repair(store) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 1)
    (lost,) = (store.put("orders", {0: 1}, {0}),)
    assert is_applied(store.append("orders", {}, batch=1, objects=(lost,), acks=1))
    next((store.path / "broker-0").rglob(lost.id.name)).unlink()
    refused = store.append("orders", {0: 2, 1: 3}, batch=2)
    assert refused.error is not None and "store repair" in str(refused.error)
    assert repair(store).lost_objects == [lost.id.name]
    assert is_applied(store.append("orders", {0: 2, 1: 3}, batch=2))
    assert store.high_watermarks("orders") == [4, 6] and read_all(store) == 10


@pytest.mark.parametrize("step", ["_rebuild_journals", "_rebuild_journal"])
def test_a_root_that_another_repair_finished_meanwhile_keeps_the_rows_that_only_it_has(
    store, monkeypatch, caplog, step
) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 2)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    lose(store, 1)
    really = getattr(StoreRepair, step)

    def slow(self, *given) -> None:
        monkeypatch.undo()
        assert repair(store).roots[1].is_repaired
        ledger.refresh()
        only = store.put("orders", {0: 9}, {1})
        append = Append(ProducerIdentity("q", "q", 0, "run", IdentityKind.STREAM), "User:test", "", 0, (only,))
        ledger.append(lambda _: encode_command(append), timeout_ms=10_000)
        really(self, *given)

    monkeypatch.setattr(StoreRepair, step, slow)
    assert repair(store).roots[1].is_repaired
    assert told_cuts(caplog) == []
    store.reopen()
    assert is_applied(store.append("orders", {0: 2, 1: 3}, batch=3))
    assert store.high_watermarks("orders") == [15, 9] and read_all(store) == 24


def test_unread_rows_whose_copy_comes_while_a_repair_runs_are_not_cut(store, monkeypatch, caplog) -> None:
    store.config = replace(store.config, replica_catchup_budget_ms=0)
    store.reopen()
    store.create("orders", 2)
    fill(store, 0, 1)
    late = store.put("orders", {0: 1}, {0})
    assert is_applied(store.append("orders", {}, batch=1, objects=(late,), acks=1))
    only = next((store.path / "broker-0").rglob(late.id.name))
    body = only.read_bytes()
    only.unlink()
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    append = Ledger.append

    def slow(self, *given, **more):
        """The writer's put to a slow root ends, and is reported, after that root was looked through."""
        monkeypatch.setattr(Ledger, "append", append)
        store.cluster.brokers.store(1).create(data_key(ledger.ledger_id, *late.id), body)
        ledger.refresh()
        CatchUp.of(store.cluster).find_copies(ledger, {0})
        return append(self, *given, **more)

    monkeypatch.setattr(Ledger, "append", slow)
    repair(store)
    monkeypatch.undo()
    assert told_cuts(caplog) == []
    assert repair(store).lost_objects == []
    assert is_applied(store.append("orders", {0: 2, 1: 3}, batch=2))
    assert store.high_watermarks("orders") == [5, 6] and read_all(store) == 11


def test_unread_rows_of_the_last_replica_in_sync_are_cut_when_its_root_is_lost(store) -> None:
    """No other replica is in sync, so none in sync lacks them: it has to be asked what those lack that are to join."""
    store.create("orders", 2)
    fill(store, 0, 2)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    leave = tuple(encode_command(IsrChange(None, broker_id, False, 1)) for broker_id in (0, 2))
    ledger.append(lambda _: leave, timeout_ms=10_000)
    only = store.put("orders", {0: 9}, {1})
    append = Append(ProducerIdentity("q", "q", 0, "run", IdentityKind.STREAM), "User:test", "", 0, (only,))
    ledger.append(lambda _: encode_command(append), timeout_ms=10_000)
    assert store.isr("orders") == (1,)
    lose(store, 1)
    report = repair(store)
    assert report.lost_objects == [only.id.name]
    store.reopen()
    assert is_applied(store.append("orders", {0: 2, 1: 3}, batch=2))
    assert store.high_watermarks("orders") == [6, 9] and sorted(store.isr("orders")) == [0, 1, 2]


def test_a_root_of_five_is_rebuilt_while_another_is_away(tmp_path, store) -> None:
    path = tmp_path / "five"
    init_cluster(str(path), 5, fsync=False)
    five = type(store)(path, store.config)
    five.create("orders", 2)
    fill(five, 0, 2)
    five.cluster.topic_ledger(five.cluster.lookup("orders").ledger_id).snapshot(timeout_ms=30_000)
    fill(five, 2, 1)
    lose(five, 1)
    five.reopen()
    away = FaultyStore(five.cluster.brokers.store(4))
    away.is_down = True
    five.cluster.brokers.stores[4] = away
    report = StoreRepair(five.cluster).run()
    assert report.roots[4].condition is RootCondition.UNREACHABLE
    assert report.roots[1].is_repaired, report.roots[1]
    # The new root counts: with it, two others may be away.
    five.away(0)
    five.away(4)
    five.reopen()
    assert five.high_watermarks("orders") == [6, 9] and read_all(five) == 15


@pytest.mark.parametrize("is_restored", [False, True])
def test_health_is_green_once_a_repair_is_done(store, is_restored: bool) -> None:
    """No entry has to follow: what other roots name of the journal from before is below its new marker."""
    store.create("orders", 2)
    fill(store, 0, 3)
    wait_at_rest(store.cluster.brokers)
    if is_restored:
        report = repair(store, rebuild=frozenset({1}))
    else:
        lose(store, 1)
        report = repair(store)
    assert report.roots[1].is_repaired
    opened = Cluster.open(str(store.path), config=store.config)
    opened.refresh()
    ledger = opened.topic_ledger(opened.lookup("orders").ledger_id)
    ledger.refresh()
    assert [look.error for look in look_at_roots(opened, [ledger])] == [None] * 3
    for path in (store.path / "broker-1" / journal_folder(ledger.ledger_id)).iterdir():
        path.unlink()
    assert look_at_roots(opened, [ledger])[1].error is not None
