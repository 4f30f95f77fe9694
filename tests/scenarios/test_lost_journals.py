"""Journal files that all roots have lost: an error that names them, never an unknown topic or fewer rows."""

from __future__ import annotations

import shutil

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper
from spark_replog.storage.paths import journal_folder


def journals(store, ledger_id):
    return [store.path / f"broker-{number}" / journal_folder(ledger_id) for number in range(3)]


def test_a_published_topic_whose_ledger_lost_its_journal_is_not_unknown(store, tmp_path):
    store.create("orders")
    store.append("orders", {0: 3}, batch=0)
    handle = store.cluster.lookup("orders")
    for number, folder in enumerate(journals(store, handle.ledger_id)):
        shutil.move(folder, tmp_path / f"kept-{number}")
        folder.mkdir()
    store.reopen()
    with pytest.raises(CorruptDataError) as caught:
        store.cluster.topic_state(store.cluster.lookup("orders"))
    assert caught.value.code is ErrorCode.REPLOG_JOURNAL_HOLE
    assert handle.ledger_id in str(caught.value)
    for number, folder in enumerate(journals(store, handle.ledger_id)):
        folder.rmdir()
        shutil.move(tmp_path / f"kept-{number}", folder)
    store.reopen()
    assert store.high_watermarks("orders")[0] == 3


@pytest.mark.parametrize("kind", ["cluster", "topic"])
def test_oldest_files_missing_on_all_roots_do_not_make_an_empty_ledger(store, kind, monkeypatch):
    monkeypatch.setattr(SnapshotKeeper, "is_due", lambda _: False)  # a snapshot would stand for them
    store.create("orders")
    store.append("orders", {0: 3}, batch=0)
    handle = store.cluster.lookup("orders")
    for folder in journals(store, store.cluster.brokers.cluster_id if kind == "cluster" else handle.ledger_id):
        for path in sorted(folder.iterdir())[:2]:
            path.unlink()
    store.reopen()
    with pytest.raises(CorruptDataError) as caught:
        store.controller.create_topic("another") if kind == "cluster" else store.append("orders", {0: 1}, batch=1)
        store.cluster.topic_state(store.cluster.lookup("orders"))
    assert caught.value.code is ErrorCode.REPLOG_JOURNAL_HOLE
    for number in range(3):
        assert f"broker {number} (" in str(caught.value)


def test_a_cluster_ledger_that_lost_all_files_is_neither_empty_nor_to_be_made_again(store, tmp_path):
    store.create("orders")
    cluster_id = store.cluster.brokers.cluster_id
    for number, journal in enumerate(journals(store, cluster_id)):
        shutil.move(journal, tmp_path / f"kept-{number}")
        journal.mkdir()
    steps = [
        lambda: Controller(Cluster.open(str(store.path))).describe_topic("orders"),
        lambda: Controller(Cluster.open(str(store.path))).create_topic("other"),
        lambda: Cluster.open(str(store.path)).topic_names(),
        lambda: init_cluster(str(store.path), 3, fsync=False),
    ]
    for step in steps:
        with pytest.raises(CorruptDataError, match="Put them back; do not run init again") as caught:
            step()
        assert caught.value.code is ErrorCode.REPLOG_JOURNAL_HOLE
    for number, journal in enumerate(journals(store, cluster_id)):
        journal.rmdir()
        shutil.move(tmp_path / f"kept-{number}", journal)
    assert Cluster.open(str(store.path)).topic_names() == ["orders"]
