"""Processes that are killed or stopped while they snapshot and truncate: what was acknowledged is there, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import decode_marker
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.paths import journal_folder, marker_folder
from tests.examples import chunks
from tests.scenarios.committing import ROWS, SMALL, commit
from tests.scenarios.conftest import FAST, LocalStore
from tests.waiting import wait_until, wait_until_stopped

COUNT = 60


@pytest.fixture(params=[1, 3])
def store(request, tmp_path, monkeypatch):
    """Made here, of one and of three roots; not one that conftest.py makes."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    init_cluster(str(tmp_path / "store"), request.param, fsync=False)
    made = LocalStore(tmp_path / "store", FAST)
    made.create("orders", replicas=request.param, config={"retention.ms": "-1"})
    return made


def start(store, query, fault="", count=COUNT):
    command = [sys.executable, "-m", "tests.scenarios.committing", str(store.path), query, "0", str(count)]
    return subprocess.Popen(
        command,
        env={**os.environ, "REPLOG_FAULT_POINT": fault},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Told:
    """What writers were told: per batch the objects that its attempts wrote, and the offsets where one was answered."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, int], set[str]] = {}
        self.bounds: dict[tuple[str, int], tuple[int, int]] = {}

    def take(self, said) -> None:
        key = said["query"], said["batch"]
        self.objects.setdefault(key, set()).add(said["object"])
        if "bounds" in said:
            assert self.bounds.setdefault(key, tuple(said["bounds"])) == tuple(said["bounds"])

    def hear(self, process) -> str:
        """Take what a process printed until its end; return its errors."""
        output, errors = process.communicate(timeout=120)
        for line in output.splitlines():
            self.take(json.loads(line))
        return errors

    def settle(self, store) -> None:
        """Replay what has no answer, as a restarted query does."""
        for query, batch in sorted(self.objects.keys() - self.bounds.keys()):
            said = commit(store, query, batch)
            assert "bounds" in said, said
            self.take(said)

    def check(self, store) -> None:
        """Every batch is there once, where its writers were told, and nothing else."""
        handle = store.cluster.lookup("orders")
        ledger, _ = store.cluster.topic_state(handle)

        def look(state):
            end = state.topics[handle.topic_id].partitions[0].high_watermark
            sections = state.sections(handle.topic_id, 0, 0, end)
            return end, [(section.base_offset, section.end_offset, section.object.id.name) for section in sections]

        end, batches = ledger.ask(look)
        assert end == ROWS * len(self.bounds)
        assert [batch[:2] for batch in batches] == [(at, at + ROWS) for at in range(0, end, ROWS)]
        assert sorted(self.bounds.values()) == [batch[:2] for batch in batches]
        names = {batch[:2]: batch[2] for batch in batches}
        for key, bounds in self.bounds.items():
            assert names[bounds] in self.objects[key]


def newest_marker(root, ledger_id):
    paths = [path for path in (root / marker_folder(ledger_id)).glob("*") if path.name.isdecimal()]
    if not paths:
        return None
    newest = max(paths)
    try:
        data = newest.read_bytes()
    except FileNotFoundError:  # a thread of this process has put a newer one meanwhile
        return newest_marker(root, ledger_id)
    return decode_marker(data, genesis=genesis_hash(ledger_id), where=str(newest))


def check_journals(store) -> list[int]:
    """No journal has a gap above its newest marker; return the markers' positions."""
    ledger_id = store.cluster.lookup("orders").ledger_id
    positions = []
    for broker_id in sorted(store.cluster.brokers.broker_ids):
        root = store.path / f"broker-{broker_id}"
        marker = newest_marker(root, ledger_id)
        while True:  # a thread of this process may put one and cut, between one look and the other
            paths = (root / journal_folder(ledger_id)).iterdir()
            there = sorted(int(path.name) for path in paths if path.name.isdecimal())
            before, marker = marker, newest_marker(root, ledger_id)
            if marker == before:
                break
        position = 0 if marker is None else marker.position
        above = [number for number in there if number >= position]
        assert above == list(range(position, position + len(above)))
        positions.append(position)
    return positions


def check_all(store, told, batch_count=12, *, was_away=False) -> None:
    """Fresh processes write and read on: with all roots, and with each one away.

    A root that was away lacks files of the snapshots that were decided then: verify names them, a repair copies them.
    """
    store.reopen()
    told.settle(store)
    for batch in range(batch_count):
        told.take(commit(store, "after", batch))
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    ledger.snapshot(timeout_ms=60_000)
    told.check(store)
    assert all(check_journals(store))
    if was_away:
        assert run(["-s", str(store.path), "store", "verify"]) == 3
        assert run(["-s", str(store.path), "store", "repair", "-y"]) == 0
    assert run(["-s", str(store.path), "store", "verify", "--deep"]) == 0
    for broker_id in sorted(store.cluster.brokers.broker_ids) if len(store.cluster.brokers.broker_ids) > 1 else []:
        store.away(broker_id)
        store.reopen()
        told.check(store)
        store.back(broker_id)


def of_roots(steps):
    """Return parameters: every second step, with three roots or, every third one, with one; all else is wide."""
    parameters = []
    for number, step in enumerate(steps):
        for root_count in (1, 3):
            is_plain = number % 2 == 0 and (root_count == 1) == (number % 3 == 2)
            parameters.append(pytest.param(root_count, step, marks=[] if is_plain else pytest.mark.wide))
    return parameters


STEPS = [
    "snapshot.page:2",
    "snapshot.pages:3",
    "snapshot.head:3",
    "snapshot.stored:3",
    "snapshot.delete_head:2",
    "truncate.before_marker:2",
    "truncate.marker:2",
    "truncate.delete:3",
    "journal.created:20",
]


@pytest.mark.parametrize(("store", "step"), of_roots(STEPS), indirect=["store"])
def test_a_writer_that_is_killed_at_a_step_loses_nothing(store, step) -> None:
    told = Told()
    died = start(store, "dies", step)
    errors = told.hear(died)
    assert died.returncode == -signal.SIGKILL, errors
    check_all(store, told)


def move_markers_past(store, told, position) -> None:
    """Commit until every root has a marker above a position, so that all below is deleted."""
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    for batch in range(200):
        told.take(commit(store, "mover", batch))
        if batch % 5 == 4:
            ledger.snapshot(timeout_ms=60_000)
            if min(check_journals(store)) > position:
                return
    raise AssertionError("the journals are not truncated")


STOPS = ["journal.create:13", "journal.create:14", "journal.create:15", "snapshot.page:2"]
STOPS += ["snapshot.head:3", "truncate.before_marker:2", "truncate.delete:3"]


@pytest.mark.parametrize(("store", "step"), of_roots(STOPS), indirect=["store"])
def test_a_writer_that_sleeps_over_truncations_writes_once_or_is_refused(store, step) -> None:
    told = Told()
    sleeper = start(store, "sleeps", f"{step}:stop", 60)
    try:
        wait_until_stopped(sleeper)
        ledger_id = store.cluster.lookup("orders").ledger_id
        journals = [path / journal_folder(ledger_id) for path in store.path.glob("broker-*")]
        top = max(int(path.name) for journal in journals for path in journal.iterdir() if path.name.isdecimal())
        move_markers_past(store, told, top + 3)
    finally:
        sleeper.send_signal(signal.SIGCONT)
        errors = told.hear(sleeper)
    assert sleeper.returncode == 0, errors
    check_all(store, told)


@pytest.mark.parametrize(("store", "step"), of_roots(["truncate.marker:2", "", "snapshot.head:2"]), indirect=["store"])
def test_writers_that_snapshot_and_truncate_at_once_lose_nothing(store, step) -> None:
    told = Told()
    writers = [start(store, "first", step), start(store, "second", "", 30), start(store, "third", "", 30)]
    errors = [told.hear(writer) for writer in writers]
    assert [writer.returncode for writer in writers] == [-signal.SIGKILL if step else 0, 0, 0], errors
    check_all(store, told)


@pytest.mark.parametrize("store", [3], indirect=True)
@pytest.mark.parametrize("away", chunks(3, 1))
def test_a_root_that_is_away_over_snapshots_and_truncations_comes_back(store, away) -> None:
    told = Told()
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    for round_ in range(3):
        for batch in range(10):
            told.take(commit(store, f"whole-{round_}", batch))
        store.away(away)
        for batch in range(15):
            told.take(commit(store, f"away-{round_}", batch, away))
        ledger.snapshot(timeout_ms=60_000)
        store.back(away)
    check_all(store, told, was_away=True)


class FullStore:
    """A root without a byte left for some keys."""

    def __init__(self, store, parts) -> None:
        self.store, self.url, self.parts = store, store.url, parts
        self.refused_count = 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def create(self, key, data, *, make_parent=False):
        if any(part in key for part in self.parts):
            self.refused_count += 1
            raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no space left on device", key=key)
        return self.store.create(key, data, make_parent=make_parent)


@pytest.mark.parametrize("parts", [("/pages/",), ("/snapshots/",), ("/markers/",)])
def test_a_full_disk_stops_snapshots_and_loses_nothing(store, parts) -> None:
    told = Told()
    for batch in range(10):
        told.take(commit(store, "before", batch))
    brokers = BrokerSet.open(str(store.path))
    full = {broker_id: FullStore(brokers.store(broker_id), parts) for broker_id in brokers.broker_ids}
    brokers.stores.update(full)
    store.cluster = Cluster(brokers, path=str(store.path), storage_options={}, config=store.config)
    store.manager = ReplicaManager(store.cluster)
    for batch in range(10):
        said = commit(store, "full", batch)
        assert "bounds" in said, said
        told.take(said)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    is_cut_alone = parts == ("/markers/",)
    # Commits write in the background, and cut later.
    with nullcontext() if is_cut_alone else pytest.raises(ReplogError):
        ledger.snapshot(timeout_ms=60_000 if is_cut_alone else 500)
    wait_until(lambda: all(disk.refused_count for disk in full.values()))  # two answers decide: the third's comes later
    for full_store in full.values():
        full_store.parts = ()
    check_all(store, told)
