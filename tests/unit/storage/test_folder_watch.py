"""Waiting for files that other processes make: nothing here depends on when an event comes."""

import os
import select
import shutil
import threading

import pytest

from spark_replog.storage import folder_watch
from spark_replog.storage.folder_watch import FolderWatch
from spark_replog.storage.mount_table import MountedFileSystem
from spark_replog.storage.posix_store import PosixStore

PATIENCE_MS = 60_000


@pytest.fixture
def folders(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.mkdir()
    return [str(path) for path in paths]


@pytest.fixture
def polls(monkeypatch):
    """Count the waits in the kernel."""
    waits, mine = [], threading.get_ident()
    make = select.poll

    def count():
        if threading.get_ident() == mine:  # threads of other tests' stores may still wait
            waits.append(1)
        return make()

    monkeypatch.setattr(select, "poll", count)
    return waits


def test_a_created_object_ends_the_wait_once(folders, polls):
    watch = FolderWatch([folders[:1]])
    assert not watch.wait(0) and not watch.has_told
    PosixStore(folders[0]).create("7", b"x")
    assert watch.wait(PATIENCE_MS) and watch.has_told
    assert not watch.wait(0)
    assert not polls


def test_a_file_that_is_not_published_yet_wakes_nobody(folders):
    watch = FolderWatch([folders[:1]])
    with open(f"{folders[0]}/.tmp-1", "w"):
        pass
    assert not watch.wait(0)
    os.link(f"{folders[0]}/.tmp-1", f"{folders[0]}/7")
    assert watch.wait(PATIENCE_MS)


@pytest.mark.parametrize(("written", "is_settled"), [(1, False), (2, True), (3, True)])
def test_an_entry_is_waited_for_on_a_majority(folders, polls, written, is_settled):
    watch = FolderWatch([folders])
    for folder in folders[:written]:
        PosixStore(folder).create("7", b"x")
    assert watch.wait(PATIENCE_MS), "one root may be away: after a moment what came has to do"
    assert bool(polls) is not is_settled


def test_each_ledger_counts_for_itself(folders, polls):
    watch = FolderWatch([folders[:2], folders[2:]])
    PosixStore(folders[2]).create("7", b"x")
    assert watch.wait(PATIENCE_MS) and not polls


def test_a_folder_that_goes_away_ends_wait_and_watch(folders):
    watch = FolderWatch([folders])
    shutil.rmtree(folders[1])
    assert watch.wait(PATIENCE_MS)
    assert not watch.is_usable
    assert not watch.wait(1), "its caller may still be in its loop"


def test_what_cannot_be_watched_is_refused(folders, monkeypatch):
    with pytest.raises(FileNotFoundError):
        FolderWatch([[*folders, f"{folders[0]}/missing"]])
    monkeypatch.setattr(
        folder_watch,
        "file_system_of",
        lambda path: MountedFileSystem("nfs4" if path == folders[2] else "ext4", frozenset()),
    )
    with pytest.raises(OSError, match="network"):
        FolderWatch([folders])


def test_it_leaves_no_descriptor(folders):
    before = len(os.listdir("/proc/self/fd"))
    watch = FolderWatch([folders])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del watch
    with pytest.raises(FileNotFoundError):
        FolderWatch([["/missing"]])
    assert len(os.listdir("/proc/self/fd")) == before
