"""A journal is rebuilt though somebody else writes there: what it says afterwards is what was decided."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_replog.ids import new_id
from spark_replog.ledger.journal_rebuild import READ_WINDOW, JournalRebuild, OwnedLog
from spark_replog.ledger.reader import REBUILD_ROUND_STEP, DecidedPrefix, JournalOrder
from spark_replog.ledger.record import (
    NO_HASH,
    NO_INDEX,
    NOTHING_KNOWN,
    Epoch,
    JournalRecord,
    RecordKind,
    decode_record,
    encode_record,
    entry_hash,
    genesis_hash,
    record_crc,
)
from spark_replog.ledger.snapshot_files import Base, Marker
from spark_replog.storage.memory_store import MemoryStore
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import journal_folder, journal_key

CLAIM, ENTRY = RecordKind.CLAIM, RecordKind.ENTRY
LEDGER = "ab" * 16
NOTHING = (NOTHING_KNOWN,) * 3
MARKER = Marker(0, Base(), "", b"r" * 16)
PAYLOADS = [f"entry {number}".encode() for number in range(30)]
HASHES = []
for number, payload in enumerate(PAYLOADS):
    HASHES.append(entry_hash(HASHES[-1] if HASHES else genesis_hash(LEDGER), number, payload))


def epoch(round_, name=b"w"):
    return Epoch(round_, name * 16)


def record(kind, at, index=NO_INDEX, commit=NO_INDEX, payload=None):
    is_entry = kind is ENTRY
    body = (PAYLOADS[index] if payload is None else payload) if is_entry else b""
    previous = genesis_hash(LEDGER) if index <= 0 else HASHES[index - 1]
    hash_ = entry_hash(previous, index, body) if is_entry else NO_HASH
    return JournalRecord(kind, at, os.urandom(16), index, commit, hash_, NOTHING, body)


class Root:
    """The root that is rebuilt, and writers that knew its old journal."""

    def __init__(self):
        self.store = MemoryStore(f"memory://{new_id()}")
        self.steps = 0

    def put(self, position, journal_record):
        self.store.create(journal_key(LEDGER, position), encode_record(journal_record))

    def rebuild(self, steps=1, count=30, store=None):
        owned = OwnedLog(
            epoch(steps * REBUILD_ROUND_STEP, b"r"),
            count,
            dict(enumerate(HASHES)),
            dict(enumerate(PAYLOADS)),
            NOTHING,
            MARKER,
        )
        return JournalRebuild(LEDGER, "broker 1", store or self.store, owned).run(lambda *_: None)

    def rebuild_until_done(self):
        for steps in range(1, 6):
            if self.rebuild(steps):
                return
        raise AssertionError("not done after five claims")

    def records(self):
        records, position = [], 0
        while (data := self.store.get(journal_key(LEDGER, position))) is not None:
            records.append((bytes(data), decode_record(bytes(data), root="r", position=position)))
            position += 1
        return records

    def check(self):
        """Read as a reader does, and as `store verify` does."""
        prefix, order = DecidedPrefix(3, genesis_hash(LEDGER), str), JournalOrder()
        for position, (data, journal_record) in enumerate(self.records()):
            prefix.learn(0, journal_record, record_crc(data))
            order.take(journal_record, position)
        assert [prefix.hashes[index] for index in range(prefix.length)] == HASHES
        assert order.fault is None and order.last_index == len(HASHES) - 1
        assert prefix.views[0].order.fault is None


@pytest.fixture
def root():
    return Root()


def test_an_empty_root_gets_everything(root):
    assert root.rebuild()
    root.check()


class Stalled:
    """A store whose creates wait, as those of a process that stands still do."""

    def __init__(self, store):
        self.store, self.url = store, f"{store.url}-late"  # lanes of its own
        self.is_waiting, self.goes_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def create(self, key, data, **more):
        if key.startswith(journal_folder(LEDGER)):
            self.is_waiting.set()
            assert self.goes_on.wait(60)
        return self.store.create(key, data, **more)


@pytest.mark.parametrize("position", range(14, 22))
def test_creates_of_a_rebuild_that_stood_still_leave_a_finished_journal_in_order(root, monkeypatch, position):
    """Another rebuild, whose claim is older and knows fewer entries, is done when they come: the root counts again."""
    late, create, runs = Stalled(root.store), root.store.create, []

    def begin_the_other(key, data, **more):
        if key == journal_key(LEDGER, position) and not runs:
            runs.append(pool.submit(root.rebuild, steps=2, store=late))
            assert late.is_waiting.wait(60)
        return create(key, data, **more)

    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(root.store, "create", begin_the_other)
            is_done = root.rebuild(steps=1, count=20)
        assert is_done and order_of(root).fault is None
        late.goes_on.set()
        assert runs[0].result(60)
    root.check()


def test_a_gap_is_written_up_to_a_record_that_appears_in_it(root, monkeypatch):
    """No later one is created before that one was read."""
    root.put(30, record(ENTRY, epoch(1), 0))
    create, get, calls = root.store.create, root.store.get, []

    def appear(key, data, **more):
        if key == journal_key(LEDGER, 3) and get(key) is None:
            create(key, encode_record(record(CLAIM, epoch(1))))
        made = create(key, data, **more)
        if key.startswith(journal_folder(LEDGER)):
            calls.append(("create", key, made))
        return made

    def read(key, **more):
        calls.append(("get", key, None))
        return get(key, **more)

    monkeypatch.setattr(root.store, "create", appear)
    monkeypatch.setattr(root.store, "get", read)
    root.rebuild()
    journal = [call for call in calls if call[1].startswith(journal_folder(LEDGER))]
    (taken,) = (at for at, call in enumerate(journal) if call[2] is CreateOutcome.EXISTS)
    assert journal[taken][1] == journal_key(LEDGER, 3)
    assert journal[taken + 1][0] == "get"


def order_of(root):
    order = JournalOrder()
    for position, (_, journal_record) in enumerate(root.records()):
        order.take(journal_record, position)
    return order


@pytest.mark.parametrize("position", [0, 1, 2, 8, 9, 20, 40])
@pytest.mark.parametrize(
    "stray",
    [
        record(ENTRY, epoch(7), 12, 11),
        record(ENTRY, epoch(7), 12, 11, b"a value that lost"),
        record(ENTRY, epoch(7), 2, 1, b"a value that lost"),
        record(CLAIM, epoch(7)),
        record(ENTRY, epoch(REBUILD_ROUND_STEP, b"q"), 29, 28),
        record(CLAIM, epoch(REBUILD_ROUND_STEP - 1, b"q")),
    ],
    ids=["ahead", "ahead, lost", "in reach, lost", "claim", "another repair's", "just below"],
)
def test_a_record_of_a_writer_that_knew_the_old_journal_is_outlived(root, position, stray):
    root.put(position, stray)
    root.rebuild_until_done()
    root.check()


@pytest.mark.parametrize("first", [1, 10])
def test_entries_that_continue_others_than_the_new_journal_has_are_outlived(root, first):
    """Two writers knew the old journal: the value that one of them proposed was lost, and the other went on."""
    root.put(first, record(ENTRY, epoch(7), 2, 1, b"a value that lost"))
    root.put(first + 1, record(ENTRY, epoch(8), 3, 2))
    root.rebuild_until_done()
    root.check()


@pytest.mark.parametrize("lost_value", [False, True])
def test_records_that_come_while_it_is_rebuilt_are_outlived(root, lost_value):
    real, pending = root.store.create, [9, 3, 17]

    def create(key, data, **more):
        if pending:  # just before the rebuild's own create there
            position = pending.pop()
            value = b"a value that lost" if lost_value else None
            real(journal_key(LEDGER, position), encode_record(record(ENTRY, epoch(7), position, position - 1, value)))
        return real(key, data, **more)

    root.store.create = create
    root.rebuild_until_done()
    assert not pending
    root.check()


@pytest.mark.parametrize("position", [400, 1600])
def test_a_gap_before_a_stray_record_is_searched_once(root, monkeypatch, position):
    """Searched again for every few records that are written, the gets would grow with the square of its length."""
    root.put(position, record(CLAIM, epoch(7)))
    get, keys = MemoryStore.get, []

    def count(store, key, **more):
        if store is root.store:  # threads of other tests' stores may still read
            keys.append(key)
        return get(store, key, **more)

    monkeypatch.setattr(MemoryStore, "get", count)
    assert root.rebuild()
    assert len(keys) < 2 * position + 8 * READ_WINDOW
    root.check()


def test_an_interrupted_rebuild_is_continued_without_a_second_copy(root):
    assert root.rebuild(count=20)
    for position in (5, 6, 11):  # its creates ran side by side when it died
        root.store.delete(journal_key(LEDGER, position))
    assert root.rebuild(2)
    root.check()
    copies = [journal_record.index for _, journal_record in root.records() if journal_record.kind is ENTRY]
    assert copies == list(range(len(HASHES)))


def test_no_record_vouches_for_an_entry_that_was_not_read_back(root):
    assert root.rebuild()
    last_index = NO_INDEX
    for _, journal_record in root.records():
        assert journal_record.commit_index <= last_index
        last_index = max(last_index, journal_record.index)


@pytest.mark.parametrize(
    "records",
    [
        [record(CLAIM, epoch(2)), record(ENTRY, epoch(1), 0)],
        [record(CLAIM, epoch(2)), record(CLAIM, epoch(1))],
        [record(ENTRY, epoch(1), 1)],
        [record(ENTRY, epoch(1), 0), record(ENTRY, epoch(1), 2)],
        # A claim far above ends a fault only where every entry follows it again.
        [record(ENTRY, epoch(1), 1), record(CLAIM, epoch(REBUILD_ROUND_STEP + 1)), record(ENTRY, epoch(2**33), 1)],
        [record(ENTRY, epoch(1), 1), record(CLAIM, epoch(2)), record(ENTRY, epoch(2), 0), record(ENTRY, epoch(2), 1)],
    ],
)
def test_records_out_of_order_are_a_fault(records):
    order = JournalOrder()
    for position, journal_record in enumerate(records):
        order.take(journal_record, position)
    assert order.fault is not None


def test_reproposals_and_claims_are_in_order():
    order = JournalOrder()
    for position, journal_record in enumerate(
        [record(ENTRY, epoch(1), 0), record(CLAIM, epoch(2)), record(ENTRY, epoch(2), 0), record(ENTRY, epoch(2), 1),
         record(CLAIM, epoch(REBUILD_ROUND_STEP * 2)), record(ENTRY, epoch(REBUILD_ROUND_STEP * 2), 2)]
    ):  # fmt: skip
        assert not order.take(journal_record, position)
    assert order.fault is None and order.last_index == 2


def test_records_are_read_back_many_at_a_time_and_once_each(monkeypatch):
    """On a root that is far away, one get after the other would take the time of a round trip for every record."""
    root = Root()
    assert root.rebuild()
    gets, waves = [], []
    get, get_several = MemoryStore.get, JournalRebuild._get_several

    def count(store, key, **more):
        if store is root.store:
            gets.append(key)
        return get(store, key, **more)

    def count_waves(rebuild, first, several):
        waves.append(several)
        return get_several(rebuild, first, several)

    monkeypatch.setattr(MemoryStore, "get", count)
    monkeypatch.setattr(JournalRebuild, "_get_several", count_waves)
    assert root.rebuild()
    records = [key for key in gets if "/journal/" in key]
    monkeypatch.undo()
    length = len(root.records())
    assert len(records) == len(set(records)) == length + 1  # every record, and the empty position behind them
    assert len(waves) == -(-length // READ_WINDOW) + 1
