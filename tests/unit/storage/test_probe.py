from __future__ import annotations

import json
import os
import threading
from collections import defaultdict

import pytest

from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.storage import probe as module
from spark_replog.storage.memory_store import MemoryStore
from spark_replog.storage.mount_table import MountedFileSystem
from spark_replog.storage.object_store import CreateOutcome, ObjectInfo
from spark_replog.storage.posix_store import PosixStore
from spark_replog.storage.probe import probe_root
from spark_replog.storage.retrying_store import RetryingStore
from tests.faulty_store import FaultRates, FaultyStore
from tests.memory_store import new_memory_store


@pytest.fixture(autouse=True)
def _as_many_races_as_users_have(monkeypatch):
    monkeypatch.setattr(module, "RACE_NAMES", 8)


class Overwriting(MemoryStore):
    """Ignores the condition, as an S3 server that does not know the header."""

    def create(self, key, data, *, make_parent=False):
        self.delete(key)
        return super().create(key, data)


class CheckThenWrite(MemoryStore):
    """Looks, then writes: right for one caller at a time. Here all racers look before the first one writes."""

    def __init__(self, url):
        super().__init__(url)
        self.looked = threading.Barrier(module.RACE_THREADS)

    def create(self, key, data, *, make_parent=False):
        if self.get(key) is not None:
            return CreateOutcome.EXISTS
        if "race" in key:
            self.looked.wait(60)
        self.delete(key)
        return super().create(key, data)


class AlwaysExists(MemoryStore):
    def create(self, key, data, *, make_parent=False):
        super().create(key, data)
        return CreateOutcome.EXISTS


class LastOneWins(MemoryStore):
    """One caller is told CREATED, another's bytes stay."""

    def create(self, key, data, *, make_parent=False):
        outcome = super().create(key, data)
        if "race" in key:
            super().delete(key)
            super().create(key, data)
        return outcome


class IgnoresRanges(MemoryStore):
    def get(self, key, *, start=0, size_bytes=None):
        return super().get(key)


class CachedListing(MemoryStore):
    def list_keys(self, prefix, *, after=""):
        return iter(list(super().list_keys(prefix, after=after))[:-1])


class WrongSizes(MemoryStore):
    def list_keys(self, prefix, *, after=""):
        return (ObjectInfo(info.key, 0) for info in super().list_keys(prefix, after=after))


class Undeleting(MemoryStore):
    def delete(self, key):
        pass


LIARS = [Overwriting, CheckThenWrite, LastOneWins, IgnoresRanges, CachedListing, WrongSizes, Undeleting]


@pytest.mark.parametrize("liar", [*LIARS, AlwaysExists])
def test_a_lying_store_is_found_out(liar):
    with pytest.raises(ReplogError) as raised:
        probe_root(liar(new_memory_store().url))
    assert raised.value.code is ErrorCode.REPLOG_STORE_LIES


@pytest.mark.parametrize("liar", LIARS)
def test_retries_hide_no_lie(liar):
    with pytest.raises(ReplogError) as raised:
        probe_root(RetryingStore(liar(new_memory_store().url), deadline_ms=500))
    assert raised.value.code is ErrorCode.REPLOG_STORE_LIES


def test_own_writes_called_existing_are_no_lie_with_retries():
    assert probe_root(RetryingStore(AlwaysExists(new_memory_store().url), deadline_ms=500))


def test_an_honest_directory_passes_and_stays_clean(tmp_path):
    report = probe_root(PosixStore(str(tmp_path)))
    assert report.url == str(tmp_path) and report.warnings == ()
    assert os.listdir(tmp_path) == []
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == []


@pytest.mark.parametrize(
    "kind, options, count",
    [("nfs4", "hard", 1), ("nfs4", "hard,lookupcache=pos", 0), ("nfs4", "soft", 2), ("fuse.sshfs", "rw", 1)],
)
def test_a_network_file_system_is_named_with_the_options_that_it_lacks(tmp_path, monkeypatch, kind, options, count):
    mounted = MountedFileSystem(kind, frozenset(options.split(",")))
    monkeypatch.setattr(module, "file_system_of", lambda path: mounted)
    report = probe_root(PosixStore(f"file://{tmp_path}"))
    assert (report.file_system, len(report.warnings)) == (kind, count)


def test_stores_that_answer_late_or_never_are_not_called_liars():
    rates = FaultRates(fail_before=0.1, lose_answer=0.1)
    for seed in range(3):
        faulty = FaultyStore(new_memory_store(), seed=seed, rates=rates)
        assert probe_root(RetryingStore(faulty, deadline_ms=5000)).file_system == "memory"


def test_the_race_runs_at_once():
    begun = threading.Barrier(module.RACE_THREADS)

    class Watched(MemoryStore):
        def create(self, key, data, *, make_parent=False):
            if "race" in key:
                begun.wait(60)  # it breaks unless all of them come
            return super().create(key, data)

    assert probe_root(Watched(new_memory_store().url)).file_system == "memory"


class TellsAllToTryAgain(MemoryStore):
    """As many creates of each contested name are refused with the answer that asks for a retry."""

    refusals_left: defaultdict[str, int]
    lock = threading.Lock()

    def create(self, key, data, *, make_parent=False):
        with self.lock:
            is_refused = "race" in key and self.refusals_left[key] > 0
            self.refusals_left[key] -= is_refused
        if is_refused:
            raise OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "409")
        return super().create(key, data)


@pytest.mark.parametrize("refused_races", [1, module.RACE_ATTEMPTS - 1])
def test_a_race_that_nobody_may_win_is_held_again(refused_races):
    store = TellsAllToTryAgain(new_memory_store().url)
    store.refusals_left = defaultdict(lambda: refused_races * module.RACE_THREADS)
    assert probe_root(store).file_system == "memory"
    assert [left for key, left in store.refusals_left.items() if "race" in key] == [0] * module.RACE_NAMES


def test_a_store_that_always_asks_for_a_retry_is_no_liar():
    store = TellsAllToTryAgain(new_memory_store().url)
    store.refusals_left = defaultdict(lambda: 10**6)
    with pytest.raises(OutcomeUnknownError):
        probe_root(store)
    assert min(store.refusals_left.values()) == 10**6 - module.RACE_ATTEMPTS * module.RACE_THREADS


def test_a_create_that_never_answers_is_a_store_that_does_not_answer(monkeypatch):
    answered = threading.Event()

    class Silent(MemoryStore):
        def create(self, key, data, *, make_parent=False):
            if "race" in key:
                answered.wait()
            return super().create(key, data)

    monkeypatch.setattr(module, "RACE_TIMEOUT_SECONDS", 0.1)
    try:
        with pytest.raises(RetriableError, match="race-0") as raised:
            probe_root(Silent(new_memory_store().url))
        assert raised.value.code is ErrorCode.REPLOG_STORE_UNAVAILABLE
    finally:
        answered.set()
