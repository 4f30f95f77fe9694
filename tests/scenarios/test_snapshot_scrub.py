"""Files of snapshots are held against their names on each root, and copied from another one; also by a coordinator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import decode_snapshot, encode_snapshot, snapshot_name
from spark_replog.log.codec.snapshot import Rows, decode_page
from spark_replog.maintenance import snapshot_scrub
from spark_replog.maintenance.scrub import Fault
from spark_replog.maintenance.snapshot_scrub import SnapshotScrub
from tests.at_rest import wait_at_rest
from tests.scenarios.committing import SMALL, commit
from tests.scenarios.repairing import lose
from tests.waiting import wait_until


@pytest.fixture
def paged(store, monkeypatch):
    """A store whose topic has its rows in pages; return it and the keys that its snapshot names."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    store.create("orders", 2)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    for batch in range(40):
        commit(store, "q", batch)
        if len(ledger.snapshots.files()) > 3:
            break
    ledger.snapshot(timeout_ms=60_000)
    wait_at_rest(store.cluster.brokers)
    return store, sorted(ledger.snapshots.files())


def whole(path: Path, keys) -> bool:
    copies = [[(path / f"broker-{root}" / key).read_bytes() for key in keys] for root in range(3)]
    return copies[0] == copies[1] == copies[2] and all(copies[0])


def test_every_root_has_all_files_of_a_snapshot_when_it_is_written(paged):
    store, keys = paged
    assert whole(store.path, keys)
    assert SnapshotScrub(store.cluster).run().findings == []


@pytest.mark.parametrize("command", [("coordinator", "run", "--once"), ("store", "repair", "-y")])
def test_what_is_bad_or_missing_on_two_roots_is_copied_from_the_third(paged, command, caplog):
    store, keys = paged
    for root, key in enumerate(keys[:2]):
        (store.path / f"broker-{root}" / key).write_bytes(b"")
        (store.path / f"broker-{root + 1}" / key).unlink()
    report = SnapshotScrub(Cluster.open(str(store.path))).run()
    assert [(finding.broker_id, finding.file, finding.fault) for finding in report.findings] == [
        (0, keys[0], Fault.CORRUPT),
        (1, keys[0], Fault.ABSENT),
        (1, keys[1], Fault.CORRUPT),
        (2, keys[1], Fault.ABSENT),
    ]
    assert (report.lost_count, report.unread_count) == (0, 0)
    assert run(["-q", "-s", str(store.path), *command]) == 0
    assert whole(store.path, keys)
    assert f"broker 1: {keys[0]} was absent, and was copied from another root" in caplog.text


def test_a_lost_root_gets_no_bad_file_of_another_one(paged):
    store, keys = paged
    for key in keys:
        (store.path / "broker-0" / key).write_bytes(b"")
    lose(store, 2)
    assert run(["-q", "-s", str(store.path), "store", "repair", "-y"]) == 0
    assert whole(store.path, keys)


def test_a_file_without_a_good_copy_is_lost_or_unread_and_stays_as_it_is(paged):
    store, keys = paged
    ledger_id = store.cluster.lookup("orders").ledger_id
    pages = {key: (store.path / "broker-0" / key).read_bytes() for key in keys if "/pages/" in key}
    leaf = next(key for key, data in pages.items() if isinstance(decode_page(ledger_id, key[-45:], data), Rows))
    for root in range(3):
        (store.path / f"broker-{root}" / leaf).write_bytes(b"bad")
    report = SnapshotScrub(store.cluster, is_repairing=True).run()
    assert [finding.is_repaired for finding in report.findings] == [False] * 3
    assert (report.lost_count, report.unread_count) == (1, 0)
    store.away(2)
    report = SnapshotScrub(Cluster.open(str(store.path)), is_repairing=True).run()
    assert (report.lost_count, report.unread_count) == (0, 1)


def test_a_damaged_head_that_no_decided_snapshot_needs_is_deleted(paged):
    store, keys = paged
    (head,) = [key for key in keys if "/snapshots/" in key]
    folder, _, name = head.rpartition("/")
    other = f"{folder}/{int(name[:20]) + 1_000:020d}{name[20:]}"  # above the decided one, so no snapshot replaces it
    (store.path / "broker-1" / other).write_bytes(b"bad")
    (finding,) = SnapshotScrub(store.cluster).run().findings
    assert (finding.file, finding.fault) == (other, Fault.CORRUPT)
    (finding,) = SnapshotScrub(store.cluster, is_repairing=True).run().findings
    assert (finding.file, finding.is_repaired) == (other, True)
    assert not (store.path / "broker-1" / other).exists()


def forged(store, keys, *, index=None) -> str:
    """Put a head on broker 1 that is whole, and calls a snapshot decided that no entry names; return its key."""
    (key,) = [candidate for candidate in keys if "/snapshots/" in candidate]
    genesis = genesis_hash(store.cluster.lookup("orders").ledger_id)
    true = decode_snapshot((store.path / "broker-1" / key).read_bytes(), genesis=genesis, root_count=3, where=key)
    base = replace(true.base, index=store_end(store) if index is None else index)
    decided = replace(true.decided, no=true.decided.no + 1, name=f"{base.index:020d}-{'f' * 32}")
    data = encode_snapshot(genesis, replace(true, base=base, decided=decided))
    made = f"{key.rpartition('/')[0]}/{snapshot_name(base.index, data)}"
    (store.path / "broker-1" / made).write_bytes(data)
    return made


def store_end(store) -> int:
    return store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id).refresh().applied_index


@pytest.mark.parametrize("index", [None, 1_000_000])
@pytest.mark.parametrize("command", [("coordinator", "run", "--once"), ("store", "repair", "-y")])
def test_a_whole_head_that_calls_another_snapshot_decided_is_named_and_deleted(paged, capsys, index, command):
    store, keys = paged
    made = forged(store, keys, index=index)
    assert run(["-q", "-s", str(store.path), "store", "verify"]) == 3
    assert made in capsys.readouterr().out
    assert run(["-q", "-s", str(store.path), *command]) == 0
    # A coordinator that appends an entry meanwhile decides the next snapshot: then a thread deletes the older heads.
    wait_until(lambda: not (store.path / "broker-1" / made).exists(), f"{made} is deleted")
    assert run(["-q", "-s", str(store.path), "store", "verify"]) == 0
    assert whole(store.path, keys)


def test_other_bytes_under_the_name_of_the_decided_head_are_named_and_replaced(paged, capsys):
    store, keys = paged
    (key,) = [candidate for candidate in keys if "/snapshots/" in candidate]
    path = store.path / "broker-1" / key
    true, made = path.read_bytes(), forged(store, keys)
    (store.path / "broker-1" / made).rename(path)
    assert run(["-q", "-s", str(store.path), "store", "verify"]) == 3
    assert key in capsys.readouterr().out
    assert run(["-q", "-s", str(store.path), "store", "repair", "-y"]) == 0
    assert path.read_bytes() == true
    assert run(["-q", "-s", str(store.path), "store", "verify"]) == 0


def test_a_lost_root_gets_no_head_that_one_other_root_alone_has(paged):
    store, keys = paged
    made = forged(store, keys)
    lose(store, 2)
    assert run(["-q", "-s", str(store.path), "store", "repair", "-y"]) == 0
    assert not (store.path / "broker-2" / made).exists()
    assert whole(store.path, keys)


def test_a_coordinator_looks_at_a_bounded_number_of_files_and_goes_on_after_them(paged, monkeypatch):
    store, keys = paged
    monkeypatch.setattr(snapshot_scrub, "ROUND_FILES_MAX", 2)
    monkeypatch.setattr(snapshot_scrub, "ROUND_INTERVAL_MS", 0)
    cluster = Cluster.open(str(store.path))
    count = SnapshotScrub(cluster).run().file_count
    keys = [key for key in keys if (store.path / "broker-0" / key).exists()]
    copies = [store.path / "broker-1" / key for key in keys]
    for copy in copies:
        copy.unlink()
    scrub, repaired = SnapshotScrub(cluster, is_repairing=True), [0]
    while len(repaired) <= count and repaired[-1] < len(keys):
        scrub.run_if_due()
        repaired.append(sum(copy.exists() for copy in copies))
    assert whole(store.path, keys)
    assert all(after - before <= 2 for before, after in pairwise(repaired))
