"""What is counted of storage calls: each attempt, by root, kind and purpose."""

from __future__ import annotations

import threading

import pytest

from spark_replog.errors import ReplogError
from spark_replog.ledger.record import NO_HASH, NO_INDEX, ZERO_EPOCH, JournalRecord, RecordKind, encode_record
from spark_replog.storage.call_counter import (
    CallCounter,
    CallKey,
    Calls,
    calls_from_json,
    calls_to_json,
    purpose_of,
    totals,
)
from spark_replog.storage.retrying_store import RetryingStore
from tests.faulty_store import FaultyStore
from tests.memory_store import new_memory_store


@pytest.mark.parametrize(
    ("kind", "key", "purpose"),
    [
        ("get", "replog.json", "probes"),
        ("create", "ledgers/L/journal/00000000000000000007", "journal"),
        ("get", "ledgers/L/markers/000000000001", "journal"),
        ("create", "ledgers/L/data/000001/q-1-2-ff.arrow", "objects"),
        ("create", "ledgers/L/snapshots/x", "snapshots"),
        ("get", "ledgers/L/pages/ab/x", "pages"),
        ("list", "ledgers/L/data/000001/", "gc"),
        ("delete", "ledgers/L/journal/00000000000000000007", "gc"),
        ("delete", "ledgers/L/notes/x", "notes"),
        ("list", "ledgers/", "probes"),
        ("get", "ledgers/L/out", "probes"),
    ],
)
def test_a_call_is_for_what_its_name_says(kind, key, purpose):
    assert purpose_of(kind, key, b"body") == purpose


@pytest.mark.parametrize(("kind", "purpose"), [(RecordKind.CLAIM, "claims"), (RecordKind.ENTRY, "journal")])
def test_claims_are_told_from_entries(kind, purpose):
    record = JournalRecord(kind, ZERO_EPOCH, bytes(16), NO_INDEX if kind == 1 else 0, -1, NO_HASH, (), b"")
    assert purpose_of("create", "ledgers/L/journal/0", encode_record(record)) == purpose


def test_each_attempt_counts_and_repeats_are_told_apart():
    calls, faulty = CallCounter(), FaultyStore(new_memory_store())
    store = RetryingStore(faulty, deadline_ms=2_000, jitter=lambda: 0.0, calls=calls)
    store.create("replog.json", b"12345")
    store.get("replog.json", size_bytes=2)
    store.get("none")
    list(store.list_keys(""))
    store.delete("replog.json")
    by_kind = {(key.kind, key.purpose): counts for key, counts in calls.read().items()}
    assert by_kind["get", "probes"] == Calls(2, 2, 0)
    assert by_kind["create", "probes"] == Calls(1, 5, 0)
    assert by_kind["list", "probes"].call_count == 1 and by_kind["delete", "probes"].call_count == 1
    assert {key.root for key in calls.read()} == {faulty.url}


class Failing:
    url = "memory://x"

    def __init__(self, failures, error):
        self.failures, self.error = failures, error

    def get(self, key, **where):
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        return b"abc"


def test_a_failed_attempt_costs_as_a_good_one():
    from spark_replog.errors import ErrorCode, RetriableError

    calls = CallCounter()
    error = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "away")
    store = RetryingStore(Failing(2, error), deadline_ms=20_000, jitter=lambda: 0.0, calls=calls)
    assert store.get("ledgers/L/journal/0") == b"abc"
    assert list(calls.read().values()) == [Calls(3, 3, 2)]
    last = RetryingStore(Failing(1, error), deadline_ms=0, jitter=lambda: 1.0, calls=calls)
    with pytest.raises(ReplogError):
        last.get("ledgers/L/journal/0")
    assert totals(calls.read())["storage_get"] == 4


def test_a_listing_of_many_names_is_several_requests():
    calls, memory = CallCounter(), new_memory_store()
    for number in range(1_001):
        memory.create(f"ledgers/L/data/000001/{number:06d}", b"")
    list(RetryingStore(memory, deadline_ms=0, calls=calls).list_keys("ledgers/L/data/"))
    assert list(calls.read().values()) == [Calls(2, 0, 0)]


def test_take_gives_each_call_once_and_no_thread_loses_one():
    calls, key, taken = CallCounter(), CallKey("r", "get", "journal"), []
    name = "ledgers/L/journal/0"
    threads = [
        threading.Thread(target=lambda: [calls.count("r", "get", name, 1) for _ in range(2_000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(worker.is_alive() for worker in threads):
        taken += calls.take().values()
    for thread in threads:
        thread.join()
    taken += calls.take().values()
    assert sum(counts.call_count for counts in taken) == calls.read()[key].call_count == 8_000
    assert calls.take() == {}


def test_tables_survive_json():
    table = {("0", "get", "journal"): Calls(1, 2, 3)}
    assert calls_from_json(calls_to_json(table)) == table
