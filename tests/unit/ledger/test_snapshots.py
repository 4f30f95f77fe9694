"""Snapshots, markers and truncation on real roots: nothing is lost, and what is read stays small."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import CorruptDataError, ErrorCode, RetriableError, UnsupportedFormatError
from spark_replog.ledger import reader
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.record import NO_HASH
from spark_replog.ledger.root import Completion, Read, Status
from spark_replog.ledger.snapshot_files import Base, Floor, JournalPoint, SnapshotHead
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper
from spark_replog.log.codec.commands import (
    FeatureSet,
    SnapshotCommit,
    decode_command,
    decode_entry,
    encode_command,
    encode_entry,
)
from spark_replog.snapshot import DecidedSnapshot, FrozenHead, FrozenState, PageMissingError
from spark_replog.testing.faulty_store import Fault
from spark_replog.testing.manual_clock import ManualClock
from tests.unit.ledger.conftest import FAST, LEDGER_ID, Process, Store

NEVER = 10**9
FEATURE = encode_command(FeatureSet(2))
BY_HAND = replace(
    FAST,
    snapshot_entry_count_min=NEVER,
    snapshot_first_entry_count_min=NEVER,
    truncate_record_count_min=1,
    kept_record_count=1,
    marker_check_ms=0,
)
ALWAYS = replace(
    BY_HAND,
    snapshot_entry_count_min=1,
    snapshot_first_entry_count_min=1,
    snapshot_rest_factor=0,
    truncate_record_count_min=4,
)

KEPT = replace(BY_HAND, truncate_record_count_min=NEVER)


def sealed(commands: list[str]) -> bytes:
    body = json.dumps(commands).encode()
    return body + crc32c(body).to_bytes(4, "little")


def opened(page: bytes) -> list[str]:
    return json.loads(page[:-4])


class PagedState:
    """A list of commands; those of each snapshot are a page, read when it is asked for."""

    def __init__(self) -> None:
        self.applied_index = -1
        self.snapshot = DecidedSnapshot()
        self._pages: list[str] = []
        self._loaded: list[list[bytes]] = []
        self._tail: list[bytes] = []
        self.load_page: Callable[[str], bytes] | None = None

    @property
    def commands(self) -> list[bytes]:
        while len(self._loaded) < len(self._pages):
            found = opened(self.load_page(self._pages[len(self._loaded)]))
            self._loaded.append([bytes.fromhex(each) for each in found])
        return [command for page in self._loaded for command in page] + self._tail

    def encode(self, commands: Sequence[bytes]) -> bytes:
        return encode_entry(commands)

    feature_index = -1

    def encode_feature_set(self) -> bytes | None:
        return None

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        return encode_command(SnapshotCommit(base_no, index, name))

    def apply(self, index: int, payload: bytes) -> tuple[str, ...]:
        assert index == self.applied_index + 1
        self.applied_index = index
        return tuple(self._apply(command, index) for command in decode_entry(payload))

    def _apply(self, command: bytes, index: int) -> str:
        if command[:1] == b"\x5a":
            commit = decode_command(command)
            assert isinstance(commit, SnapshotCommit)
            if commit.base_no != self.snapshot.no:
                return "refused"
            self.snapshot = DecidedSnapshot(commit.base_no + 1, commit.index, commit.name, index)
            return "snapshot"
        if command == FEATURE:
            self.feature_index = index
            return "feature"
        if command in self.commands:
            return "duplicate"
        self._tail.append(command)
        return "applied"

    def freeze(self) -> FrozenState:
        name = f"{self.snapshot.no:012d}-{os.urandom(16).hex()}"
        head = json.dumps([[*self._pages, name], self.applied_index]).encode()
        page = sealed([each.hex() for each in self._tail])
        return FrozenHead(self.applied_index, self.snapshot.no, head, {name: page})

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        self._pages, self.applied_index = json.loads(head)
        self._loaded, self._tail, self.load_page = [], [], load_page

    def page_names(self) -> list[str]:
        return [each for each in self._pages if each]

    def adopted(self, frozen: FrozenState) -> None:
        (name,) = frozen.pages
        count = len(opened(frozen.pages[name]))
        self._loaded = [self.commands[: len(self.commands) - len(self._tail)], self._tail[:count]]
        self._pages, self._tail = ["", name], self._tail[count:]
        pages, _ = json.loads(frozen.head)
        self._pages, self._loaded = (
            pages,
            [[] for _ in pages[:-2]] + self._loaded if len(pages) > 1 else self._loaded[1:],
        )


def paged(store: Store, settings: Any = BY_HAND, clock: Clock = SYSTEM_CLOCK) -> Process:
    return store.process(settings, PagedState(), clock)


def keeper_of(process: Process) -> SnapshotKeeper:
    return process.ledger._snapshots


def core_of(process: Process) -> LedgerCore:
    return process.ledger._core


def command(number: int) -> bytes:
    return b"c%06d" % number


def fill(process: Process, first: int, end: int) -> list[bytes]:
    for number in range(first, end):
        process.append(command(number))
    return [command(number) for number in range(end)]


def newest_heads(store: Store) -> list[Path]:
    """The newest head on each root, once the last root has it too: a majority is waited for only."""
    for _ in range(10_000):
        found = [sorted(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/*"))[-1] for root in range(3)]
        if len({each.name for each in found}) == 1:
            break
    return found


def shoot(process: Process) -> Any:
    return process.ledger.snapshot(timeout_ms=60_000)


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_cold_process_reads_the_snapshot_and_the_tail(make_store, root_count):
    store = make_store(root_count)
    writer = paged(store)
    for round_ in range(4):
        wanted = fill(writer, 30 * round_, 30 * round_ + 30)
        report = shoot(writer)
        assert (report.written, report.decided) == (1, 1)
    assert report.deleted >= 25 * root_count, "the records before the snapshot are gone"
    wanted = fill(writer, 120, 123)
    assert all(len(store.journal(root)) < 40 for root in range(root_count))
    for root in range(root_count):
        heads = store.root_path(root) / f"ledgers/{LEDGER_ID}/snapshots"
        assert soon(lambda heads=heads: len(list(heads.iterdir())) <= 2)
    cold = paged(store)
    assert cold.commands() == wanted
    assert cold.journal_gets() <= 40 * root_count, "from the snapshot before the newest on, at most"
    cold.append(command(123))
    assert fill(cold, 124, 125) == writer.commands()
    assert shoot(cold).written == 1
    assert shoot(cold).written == 0, "nothing new but the snapshot's own entry"


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_cold_process_looks_at_no_record_before_the_snapshot(make_store, root_count):
    """However many records stay for processes that pause: a listing begins where the reading does."""
    store = make_store(root_count)
    writer = paged(store, KEPT)
    for first, end in ((0, 150), (150, 151)):
        wanted = fill(writer, first, end)
        shoot(writer)
    assert all(len(store.journal(root)) > 150 for root in range(root_count))
    cold, listed = paged(store, KEPT), []
    for root in cold.counting:
        real = root.store.list_keys
        root.store.list_keys = lambda prefix, after="", real=real: (
            listed.append(each.key) or each for each in real(prefix, after=after)
        )
    assert cold.commands() == wanted
    assert all(root.counts["get"] <= 10 for root in cold.counting)
    assert sum("/journal/" in prefix for root in cold.counting for verb, prefix in root.calls if verb == "list_keys")
    assert sum("/journal/" in key for key in listed) <= 10 * root_count


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_process_that_slept_over_a_truncation_goes_on(make_store, root_count):
    store = make_store(root_count)
    sleeper, writer = paged(store), paged(store)
    fill(sleeper, 0, 5)
    for first in (5, 40, 80):
        wanted = fill(writer, first, {5: 40, 40: 80, 80: 110}[first])
        shoot(writer)
    assert sleeper.commands() == wanted
    other = paged(store)
    other.commands()
    fill(writer, 110, 150)
    shoot(writer)
    assert other.append(command(110)).index == -1, "its create fell below the marker; the newer state knows the command"
    assert other.append(command(150)).result == "applied"
    assert paged(store).commands() == [command(number) for number in range(151)]


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_reader_that_may_not_list_begins_with_the_newest_marker(make_store, root_count):
    store = make_store(root_count)
    writer = paged(store)
    for first in (0, 30, 60):
        wanted = fill(writer, first, first + 30)
        shoot(writer)
    assert all(
        len(list(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/markers/*"))) > 1 for root in range(root_count)
    )
    reader = paged(store, replace(BY_HAND, read_only=True))
    for root in reader.faulty:
        root.fail_next("list_keys", Fault.REFUSE, times=1000)
    assert reader.commands() == wanted


def test_a_writer_that_may_not_list_or_delete_commits_all_the_same(make_store):
    store = make_store(3)
    writer = paged(store, ALWAYS)
    for root in writer.faulty:
        root.fail_next("list_keys", Fault.REFUSE, times=1000)
        root.fail_next("delete", Fault.REFUSE, times=1000)
    wanted = fill(writer, 0, 60)
    assert paged(store).commands() == writer.commands() == wanted
    assert store.journal(0)[0].name.endswith("0000"), "nothing was deleted"


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_stale_owner_that_creates_below_the_marker_is_not_answered_from_it(make_store, root_count):
    store = make_store(root_count)
    stale, writer = paged(store), paged(store)
    fill(stale, 0, 10)  # owns the ledger and appends without a look
    fill(writer, 10, 60)
    shoot(writer)
    fill(writer, 60, 90)
    shoot(writer)
    outcome = stale.append(command(500))
    assert outcome.result == "applied"
    assert paged(store).commands() == [*(command(number) for number in range(90)), command(500)]
    assert stale.commands() == writer.commands()


def test_two_writers_that_snapshot_and_truncate_all_the_time_lose_nothing(make_store):
    store = make_store(3)
    writers = [paged(store, ALWAYS), paged(store, ALWAYS)]
    count, decided_count = 0, 0
    while count < 120 or (count < 3_000 and decided_count < 10):  # however busy the machine is
        assert writers[count // 5 % 2].append(command(count)).result == "applied"
        count += 1
        decided_count = sum(writer.ledger._snapshots.stats.decided for writer in writers)
    wanted = [command(number) for number in range(count)]
    assert writers[0].commands() == writers[1].commands() == paged(store, ALWAYS).commands() == wanted
    for writer in writers:
        with keeper_of(writer)._busy:
            pass
    assert decided_count >= 10


def test_a_root_that_was_away_over_a_snapshot_gets_a_marker_instead_of_the_entries(make_store, monkeypatch):
    monkeypatch.setattr("spark_replog.ledger.reader.PAYLOADS_KEPT_MAX", 4)
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 10)
    store.take_away(2)
    fill(writer, 10, 60)
    shoot(writer)
    store.bring_back(2)
    end = 60
    while end < 400 and len(store.journal(2)) < 14:
        wanted = fill(writer, end, end + 1)
        end += 1
    assert len(list(store.root_path(2).glob(f"ledgers/{LEDGER_ID}/markers/*"))) == 1
    for away in (0, 1):
        store.take_away(away)
        assert paged(store).commands() == wanted, f"without root {away}"
        assert paged(store).append(command(900 + away)).result == "applied"
        wanted.append(command(900 + away))
        store.bring_back(away)


def test_a_damaged_or_missing_head_is_read_from_another_root(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 40)
    shoot(writer)
    wanted = fill(writer, 40, 80)
    shoot(writer)
    heads = newest_heads(store)
    whole = heads[0].read_bytes()
    heads[0].write_bytes(whole[:50] + b"x" + whole[51:])
    heads[1].unlink()
    assert paged(store).commands() == wanted
    heads[2].write_bytes(whole[:-1])
    heads[1].write_bytes(whole[: len(whole) // 2])
    with pytest.raises((CorruptDataError, RetriableError), match="snapshot"):
        paged(store).commands()
    heads[1].write_bytes(whole)
    assert paged(store).commands() == wanted


def test_a_damaged_page_is_read_from_another_root(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 40)
    shoot(writer)
    copies = [next(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/pages/*/*")) for root in range(3)]
    whole = copies[0].read_bytes()
    copies[0].write_bytes(whole[:20] + b"x" + whole[21:])
    copies[1].write_bytes(whole[:-1])
    assert paged(store).commands() == wanted
    copies[2].write_bytes(whole[:2])
    with pytest.raises(CorruptDataError, match="checksum"):
        paged(store).commands()
    copies[1].write_bytes(whole)
    assert paged(store).commands() == wanted


def test_a_damaged_marker_counts_as_a_damaged_journal(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 40)
    shoot(writer)
    shoot(writer)
    (marker,) = store.root_path(1).glob(f"ledgers/{LEDGER_ID}/markers/*")
    marker.write_bytes(marker.read_bytes()[:-1])
    # A head names the next marker, so the damaged one is met by those that begin without a head.
    for root in range(3):
        for head in store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/*"):
            head.rename(head.with_name("x" + head.name))
    with pytest.raises(RetriableError, match="REPLOG_SNAPSHOT_MISSING"):
        paged(store).commands()
    for root in range(3):
        for head in store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/x*"):
            head.rename(head.with_name(head.name[1:]))
    assert paged(store).commands() == wanted


def test_a_page_that_a_newer_snapshot_replaced_is_asked_for_again_there(make_store):
    store = make_store(3)
    writer, reader = paged(store), paged(store)
    fill(writer, 0, 20)
    shoot(writer)
    lazy = paged(store)
    lazy.ledger.refresh()
    del reader
    for root in range(3):
        for page in store.root_path(root).glob(f"ledgers/{LEDGER_ID}/pages/*/*"):
            page.unlink()
    with pytest.raises(PageMissingError):
        lazy.ledger.ask(lambda state: list(state.commands))
    fresh = PagedState()
    fresh._tail = [command(number) for number in range(20)]
    fresh.applied_index, fresh.snapshot = writer.ledger.state.applied_index, writer.ledger.state.snapshot
    writer.ledger.state.__dict__.update(fresh.__dict__)  # as if it had rewritten its pages
    wanted = fill(writer, 20, 25)
    shoot(writer)
    assert lazy.ledger.ask(lambda state: list(state.commands)) == wanted


def test_a_snapshot_of_a_newer_release_is_refused(make_store):
    store = make_store(1)
    writer = paged(store)
    fill(writer, 0, 10)
    shoot(writer)
    (head,) = store.root_path(0).glob(f"ledgers/{LEDGER_ID}/snapshots/*")
    from crc32c import crc32c

    data = bytearray(head.read_bytes()[:-4])
    data[4] = 9
    head.write_bytes(bytes(data) + crc32c(bytes(data)).to_bytes(4, "little"))
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        paged(store).commands()


def test_commits_write_snapshots_within_their_time(make_store):
    store = make_store(3)
    writer = paged(store, replace(ALWAYS, snapshot_rest_factor=33))
    fill(writer, 0, 200)
    stats = keeper_of(writer).stats
    with keeper_of(writer)._busy:
        pass
    assert 1 <= stats.written <= 40, "a tight loop pays little"
    assert paged(store).commands() == [command(number) for number in range(200)]


def test_positions_of_a_journal_before_its_rebuild_truncate_nothing():
    """The head of a snapshot names positions of the journal that was there then: others lie at them in the new one."""
    core = LedgerCore(["a", "b", "c"], b"g" * 16, b"i" * 16, FAST, random.Random(1))
    core._was_synced = True
    points = tuple(JournalPoint(position=50, floor=Floor(1, 5, 3)) for _ in range(3))
    head = SnapshotHead(Base(8), DecidedSnapshot(1, 8, "", 9), points, b"")
    for root, renewal in enumerate((NO_HASH, b"r" * 16, NO_HASH)):
        core.roots[root].floor = Floor(2, 10, 5, renewal)
    found = [core.truncation(root, head, "", 1) for root in range(3)]
    assert [each and each.position for each in found] == [49, None, 49]


def pages(store: Store, root: int = 0) -> set[str]:
    return {each.name for each in store.root_path(root).glob(f"ledgers/{LEDGER_ID}/pages/*/*")}


class MergingState(PagedState):
    """Each snapshot writes all of it as one new page, so that the pages before are garbage."""

    def freeze(self) -> FrozenState:
        name = f"{self.snapshot.no:012d}-{os.urandom(16).hex()}"
        head = json.dumps([[name], self.applied_index]).encode()
        self._tail, self._pages, self._loaded = self.commands, [], []
        page = sealed([each.hex() for each in self._tail])
        return FrozenHead(self.applied_index, self.snapshot.no, head, {name: page})

    def adopted(self, frozen: FrozenState) -> None:
        (name,) = frozen.pages
        self._tail = self.commands[len(opened(frozen.pages[name])) :]
        self._pages, self._loaded = [name], []


def test_pages_that_the_decided_snapshot_does_not_name_go_and_a_process_that_slept_goes_on(make_store):
    store = make_store(3)
    writer, sleeper = store.process(BY_HAND, MergingState()), store.process(BY_HAND, MergingState())
    wanted = fill(writer, 0, 20)
    shoot(writer)
    sleeper.ledger.refresh()
    stalled = sleeper.ledger._snapshot_writer(keeper_of(sleeper)).freeze()  # a writer of snapshots that stops here
    assert writer.ledger.collect(is_dry_run=True) == 0
    before = pages(store)
    wanted = fill(writer, 20, 40)
    shoot(writer)
    wanted = fill(writer, 40, 60)
    shoot(writer)
    assert writer.ledger.collect(is_dry_run=True) >= len(before)
    writer.ledger.collect()
    assert soon(lambda: pages(store).isdisjoint(before))
    assert soon(lambda: pages(store) == set(writer.ledger.state.page_names()))
    assert writer.ledger.collect() == 0
    # The sleeper's state names a page that is gone; its snapshot comes too late, and its page is garbage at once.
    assert sleeper.ledger.ask(lambda state: state.commands[:20]) == wanted[:20]
    keeper_of(sleeper).write(stalled)
    assert sleeper.append(command(60)).result == "applied"
    assert writer.append(command(61)).result == "applied"
    assert writer.ledger.collect() > 0
    assert soon(lambda: pages(store) == set(writer.ledger.state.page_names()))
    for process in (writer, sleeper, store.process(BY_HAND, MergingState())):
        process.ledger.refresh()
        assert process.ledger.ask(lambda state: state.commands) == [*wanted, command(60), command(61)]


def test_what_a_truncation_left_below_its_marker_goes_with_the_next_collection(make_store):
    store = make_store(1)
    writer = paged(store)
    wanted = fill(writer, 0, 40)
    leftover = store.journal(0)[3].read_bytes()
    shoot(writer)
    first = store.journal(0)[0]
    left = first.parent / f"{int(first.name) - 2:020d}"
    left.write_bytes(leftover)
    assert writer.ledger.collect() == 1
    assert not left.exists()
    assert paged(store).commands() == wanted


class NewerState(PagedState):
    """Of this release, which says so in its first entry."""

    def encode_feature_set(self) -> bytes | None:
        return FEATURE if self.feature_index < 0 else None


class OlderState(PagedState):
    """Of a release that refuses the commands that it does not know."""

    def apply(self, index: int, payload: bytes) -> tuple[str, ...]:
        if FEATURE in decode_entry(payload):
            raise UnsupportedFormatError(ErrorCode.UNSUPPORTED_VERSION, "upgrade")
        return super().apply(index, payload)


class OlderCore(LedgerCore):
    """Of a release that looks for no markers."""

    def complete(self, completion: Completion, now_ms: float) -> None:
        super().complete(replace(completion, marker=None), now_ms)


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("older_count", [0, 1, 40])
@pytest.mark.parametrize("root_count", [1, 3])
def test_a_process_of_an_older_release_that_slept_over_every_cut_can_do_no_harm(
    make_store, monkeypatch, root_count, older_count
):
    store = make_store(root_count)
    with monkeypatch.context() as patch:
        patch.setattr("spark_replog.ledger.ledger.LedgerCore", OlderCore)
        sleepers = [store.process(replace(BY_HAND, read_only=False), OlderState()) for _ in range(2)]
    sleepers[0].commands()
    wanted = fill(sleepers[0], 0, older_count)
    sleepers[1].commands()
    writer = store.process(replace(BY_HAND, kept_record_count=0), NewerState())
    for round_ in range(4):
        first = older_count + 30 * round_
        wanted = fill(writer, first, first + 30)
        shoot(writer)
        writer.ledger.collect()
    kept = [int(path.name) for path in store.journal(0)]
    assert kept[-1] - len(kept) > 60, "journals were cut all the same"
    for sleeper in sleepers:
        with pytest.raises(UnsupportedFormatError):
            sleeper.append(command(10_000))
        with pytest.raises(UnsupportedFormatError):
            sleeper.commands()
    assert not list(store.root_path(0).glob(f"ledgers/{LEDGER_ID}/**/out"))
    assert writer.commands() == store.process(BY_HAND, NewerState()).commands() == wanted
    assert writer.append(command(20_000)).result == "applied"


def soon(check: Callable[[], bool]) -> bool:
    """Return whether a check holds within a minute: deletions wait for a majority of the roots only."""
    deadline = time.monotonic() + 60
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def in_step(stores: Sequence[Any]) -> Callable[[Any], None]:
    """Return a step for each call of one of the stores: none is five calls ahead, however the machine runs threads."""
    counts, changed = dict.fromkeys(map(id, stores), 0), threading.Condition()

    def step(store: Any) -> None:
        with changed:
            counts[id(store)] += 1
            changed.notify_all()
            changed.wait_for(lambda: counts[id(store)] <= min(counts.values()) + 4, timeout=0.5)

    return step


def slowly(stores: Sequence[Any], verb: str, step: Callable[[], object]) -> None:
    """Do a step before each call of a verb."""
    for store in stores:
        plain = getattr(store, verb)
        setattr(store, verb, lambda *a, plain=plain, **k: (step() and None) or plain(*a, **k))


def test_roots_that_take_long_for_many_files_are_waited_for_while_they_get_on(make_store):
    """The time-out is that of one file: else a large snapshot, or truncation, would never end on slow storage."""
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 60)
    slowly(writer.counting, "delete", lambda: time.sleep(0.01))
    report = shoot(writer)
    assert report.deleted >= 55 * 3, "600 ms each, and the time-out is 400"
    slowly(writer.counting, "create", lambda: time.sleep(0.01))
    io = keeper_of(writer)._io
    pages = {f"{7:012d}-{number:032x}": sealed([str(number)]) for number in range(60)}
    assert len(io.store(pages, f"{70:020d}-{0:032x}", b"head")) >= 2
    assert io.delete_pages(lambda name: name in pages) >= 60  # one of two that answer may not have all pages yet
    io._timeout_ms = 10
    with pytest.raises(RetriableError, match="did not delete a file within 100 ms"):
        io.on_root(0, lambda: time.sleep(1))
    assert paged(store).commands() == wanted


def test_a_snapshot_that_is_asked_for_waits_for_slow_roots_as_long_as_its_caller_says(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 9)
    other = paged(store)
    for each in other.counting:
        waits = iter([0.6])  # once; the time-out of a read is 0.4 s
        slowly([each], "get", lambda waits=waits: time.sleep(next(waits, 0)))
    assert shoot(other).decided == 1
    assert other.commands() == wanted


@pytest.mark.parametrize(("record_count", "get_ms"), [(6, 4), (300, 40)])
def test_a_long_cold_read_is_no_missing_root_and_says_so(make_store, caplog, monkeypatch, record_count, get_ms):
    monkeypatch.setattr("spark_replog.ledger.core.READ_LIMIT", 64)  # it is said between two reads of a journal
    store, is_long = make_store(3), record_count == 300
    wanted = fill(store.process(), 0, record_count)
    clock = ManualClock()
    cold = store.process(clock=clock)
    step = in_step(cold.counting)
    for each in cold.counting:
        slowly([each], "get", lambda each=each: (step(each), clock.sleep_ms(get_ms)))
    if is_long:
        slowly(cold.counting, "list_keys", lambda: clock.sleep_ms(2_000))
    assert cold.commands() == wanted
    assert (clock.time_ms > 10_000) is is_long, "many times the time-out of 400 ms"
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert all("is being read" in each for each in said), said
    assert (1 <= len(said) <= 1 + clock.time_ms // 10_000) if is_long else not said
    assert not any(root.error for root in core_of(cold).roots)


def test_a_process_that_fell_far_behind_with_its_snapshots_rests_less(make_store):
    clock = ManualClock()
    writer = make_store(1).process(ALWAYS, PagedState(), clock)
    keeper = keeper_of(writer)
    keeper._rest_ms, keeper._rested_ms = 1_000, 0
    for now_ms, count, is_due in ((100, 8_191, False), (99, 8_192, False), (100, 8_192, True), (1_000, 8_191, True)):
        clock.time_ms = now_ms
        writer.ledger.state.applied_index = count - 1
        with keeper._busy:
            assert not keeper.is_due()
        assert keeper.is_due() is is_due, (now_ms, count)


def shoot_and_die(process: Process) -> None:
    """Have a snapshot decided and clean nothing up behind it."""
    keeper = keeper_of(process)
    keeper.write(process.ledger.with_turn(process.ledger._snapshot_writer(keeper).freeze))
    process.ledger.append(lambda _: keeper.rider(), timeout_ms=60_000)


def begun_with_the_first_snapshot(store: Store) -> Process:
    """Return a process that had read more entries than are kept when it met the decision of the second snapshot.

    One that reads slower than the entry of the decision arrives takes the second at once, and needs nothing again.
    """
    for _ in range(50):
        process = paged(store, KEPT)
        process.commands()
        if not process.ledger._snapshots.is_derived:
            return process
    raise AssertionError("every process began with the second snapshot")


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("what", ["snapshot", "collect", "refresh", "append", "ask"])
def test_a_process_whose_memory_lacks_what_follows_the_decided_snapshot_reads_it_again(
    make_store, monkeypatch, what, root_count
):
    """Else nobody could write the next snapshot where more entries follow than are kept, and journals grew for ever."""
    monkeypatch.setattr(reader, "PAYLOADS_KEPT_MAX", 8)
    store = make_store(root_count)
    # A root that falls behind is given the second snapshot by a marker, and who reads that begins with it.
    writer = paged(store, replace(KEPT, grace_ms=60_000))
    fill(writer, 0, 30)
    shoot(writer)
    fill(writer, 30, 60)
    old = paged(store, KEPT)
    old.commands()
    shoot_and_die(writer)
    wanted = fill(writer, 60, 100)
    cold = begun_with_the_first_snapshot(store)  # as the newest head says that it is decided
    assert old.commands() == cold.commands() == wanted
    for process in (old, cold) if what in ("snapshot", "collect") else (cold,):  # old has no pages
        assert not keeper_of(process).is_derived
        length = process.ledger.state.applied_index
        match what:
            case "snapshot":
                process.append(command(1_000 + (process is cold)))
                assert shoot(process).decided == 1
            case "collect":
                process.ledger.collect()
            case "append":
                process.ledger.state._loaded = []
                monkeypatch.setattr(process.ledger.state, "load_page", missing_once(process))
                process.append(command(1_000 + (process is cold)))
            case "refresh":
                writer.append(command(1_000 + (process is cold)))
                process.ledger.state._loaded = []
                monkeypatch.setattr(process.ledger.state, "load_page", missing_once(process))
                process.ledger.refresh()
            case "ask":
                process.ledger.state._loaded = []
                monkeypatch.setattr(process.ledger.state, "load_page", missing_once(process))
                process.ledger.ask(lambda state: state.commands)
        assert keeper_of(process).is_derived
        assert process.ledger.state.applied_index >= length, "nobody sees it go back"
        assert process.ledger.ask(lambda state: state.commands)[:100] == wanted
    old.append(command(2_000))
    assert shoot(old).decided == 1
    assert paged(store, KEPT).commands()[:100] == wanted


def missing_once(_: Process) -> Callable[[str], bytes]:
    """What pages of a replaced snapshot answer once they are collected; a restored state loads its own."""

    def load(name: str) -> bytes:
        raise PageMissingError(ErrorCode.REPLOG_SNAPSHOT_MISSING, name)

    return load


def test_a_start_over_that_no_majority_answers_is_made_good_by_the_next_call(make_store, monkeypatch):
    monkeypatch.setattr(reader, "PAYLOADS_KEPT_MAX", 8)
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 30)
    shoot(writer)
    old = paged(store, KEPT)
    old.commands()
    fill(writer, 30, 60)
    shoot_and_die(writer)
    wanted = fill(writer, 60, 100)
    old.commands()
    for root in (0, 1):
        old.faulty[root].fail_next("get", Fault.FAIL_BEFORE, key_part="/journal/", times=10_000)
    with pytest.raises(RetriableError):
        old.ledger.collect()
    for faulty in old.faulty:
        faulty.clear()
    assert old.ledger.ask(lambda state: state.commands) == wanted
    assert shoot(old).decided == 1


def heads(store: Store, root: int) -> set[int]:
    """Indexes of the heads on a root."""
    paths = store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/[0-9]*")  # not the file of a create under way
    return {int(path.name[:20]) for path in paths}


def cannot_list(process: Process) -> Process:
    for root in process.faulty:
        root.fail_next("list_keys", Fault.REFUSE, times=1000)
    return process


def is_tidy(store: Store, process: Process) -> bool:
    """Return whether each root has but the head that its marker names, and the decided one."""
    floors = {root.floor.base_index for root in core_of(process).roots}
    return all(heads(store, root) <= {*floors, process.ledger.state.snapshot.index} for root in range(store.root_count))


@pytest.mark.parametrize("root_count", [1, 3])
def test_heads_between_the_markers_and_the_decided_snapshot_go(make_store, root_count):
    store = make_store(root_count)
    writer = paged(store)
    fill(writer, 0, 20)
    shoot(writer)  # markers name this one
    shooter, late = paged(store, KEPT), paged(store, KEPT)
    late.commands()
    stopped = keeper_of(late).head_garbage(core_of(late))
    for first in range(20, 80, 10):
        wanted = fill(shooter, first, first + 10)
        shoot(shooter)
    assert soon(lambda: is_tidy(store, shooter)), heads(store, 0)
    before = [heads(store, root) for root in range(root_count)]
    keeper_of(late).tidy((), stopped)  # one that was stopped meanwhile deletes nothing that is needed
    assert [heads(store, root) for root in range(root_count)] == before
    # One that holds an older snapshot, one that may not list, and one that begins cold read on.
    assert late.commands() == wanted
    assert cannot_list(paged(store, replace(KEPT, read_only=True))).commands() == wanted
    assert paged(store, KEPT).commands() == wanted


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("is_behind_marker", [True, False])
def test_a_marker_that_comes_late_has_the_head_that_it_names(make_store, monkeypatch, root_count, is_behind_marker):
    """Whoever truncates is stopped before its marker, or right behind it, until its snapshot's head is deleted."""
    store = make_store(root_count)
    late, writer = paged(store), paged(store, KEPT)
    late_keeper = keeper_of(late)
    fill(late, 0, 20)
    shoot_and_die(late)
    cuts = late_keeper.truncations(core_of(late))
    assert len(cuts) == root_count
    old = cuts[0].marker.base.index

    def others_go_on(step: str) -> None:
        if step == ("truncate.marker" if is_behind_marker else "truncate.before_marker"):
            fill(writer, 20, 30)
            shoot(writer)  # what it knows of markers is older than this one
            assert soon(lambda: all(old not in heads(store, root) for root in range(root_count)))
            monkeypatch.undo()

    monkeypatch.setattr("spark_replog.ledger.snapshot_io.fault_point", others_go_on)
    late_keeper.tidy(cuts, late_keeper.head_garbage(core_of(late)))
    assert old in heads(store, cuts[0].root)
    assert cannot_list(paged(store, replace(BY_HAND, read_only=True))).commands() == writer.commands()


def test_a_process_that_dies_behind_its_marker_has_left_the_head_on_that_root(make_store, monkeypatch):
    store = make_store(3)
    late = paged(store)
    keeper = keeper_of(late)
    fill(late, 0, 20)
    shoot_and_die(late)
    (cut,) = [each for each in keeper.truncations(core_of(late)) if each.root == 2]
    assert soon(lambda: bool(heads(store, 2)))
    for path in store.root_path(2).glob(f"ledgers/{LEDGER_ID}/snapshots/*"):
        path.unlink()  # the two others were the majority that took it

    def die(step: str) -> None:
        if step == "truncate.marker":
            raise KeyboardInterrupt

    monkeypatch.setattr("spark_replog.ledger.snapshot_io.fault_point", die)
    with pytest.raises(KeyboardInterrupt):
        keeper._io.truncate(2, cut.marker_no, cut.marker, keeper._io.head_data(cut.marker.name), -1)
    assert heads(store, 2) == {cut.marker.base.index}


def test_no_marker_names_a_head_that_is_gone(make_store):
    store = make_store(3)
    late, writer = paged(store), paged(store, KEPT)
    keeper = keeper_of(late)
    fill(late, 0, 20)
    shoot_and_die(late)
    cuts = keeper.truncations(core_of(late))
    for first in (20, 30):
        wanted = fill(writer, first, first + 10)
        shoot(writer)
    assert soon(lambda: all(cuts[0].marker.base.index not in heads(store, root) for root in range(3)))
    with pytest.raises(PageMissingError):
        keeper.tidy(cuts, keeper.head_garbage(core_of(late)))
    assert not list(store.root_path(0).glob(f"ledgers/{LEDGER_ID}/markers/*"))
    assert late.commands() == wanted


def test_a_root_whose_marker_is_not_known_keeps_its_heads_and_no_others(make_store):
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 20)
    shoot(writer)
    named = writer.ledger.state.snapshot.index
    assert soon(lambda: all(named in heads(store, root) for root in range(3)))
    for started in (paged(store), paged(store, KEPT)):  # while root 2 is away; the first one moves the other markers
        for what in ("get", "create"):
            started.faulty[2].fail_next(what, Fault.FAIL_BEFORE, times=10_000)
        fill(started, 20, 30)
        shoot(started)
    for first in range(30, 60, 10):
        wanted = fill(started, first, first + 10)
        shoot(started)
    assert soon(lambda: all(len(heads(store, root)) == 2 and named not in heads(store, root) for root in (0, 1)))
    assert named in heads(store, 2)
    assert cannot_list(paged(store, replace(KEPT, read_only=True))).commands() == wanted


def test_a_root_that_lags_gets_the_head_with_its_marker(make_store, monkeypatch):
    monkeypatch.setattr(reader, "PAYLOADS_KEPT_MAX", 4)
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 10)
    for what in ("get", "create"):
        writer.faulty[2].fail_next(what, Fault.FAIL_BEFORE, times=10_000)
    fill(writer, 10, 40)
    shoot(writer)
    assert not heads(store, 2)
    back = paged(store)
    wanted = fill(back, 40, 42)
    assert soon(lambda: bool(list(store.root_path(2).glob(f"ledgers/{LEDGER_ID}/markers/*"))))
    assert heads(store, 2)
    assert cannot_list(paged(store, replace(BY_HAND, read_only=True))).commands() == wanted


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_process_that_looks_within_five_seconds_misses_no_cut(make_store, root_count):
    store, clock = make_store(root_count), ManualClock()
    settings = replace(BY_HAND, marker_check_ms=5_000, read_only=True)
    writer = paged(store, replace(BY_HAND, marker_check_ms=5_000), clock)
    keeper = keeper_of(writer)

    def cut() -> list[int]:
        shoot_and_die(writer)
        found = keeper.truncations(core_of(writer))
        keeper.tidy(found, keeper.head_garbage(core_of(writer)))
        return [each.marker.position for each in found]

    fill(writer, 0, 20)
    reader = paged(store, settings, clock)
    assert len(reader.commands()) == 20
    wanted = fill(writer, 20, 60)
    assert cut() == []
    assert reader.commands() == wanted, "it finds what follows"
    clock.sleep_ms(5_000)
    wanted = fill(writer, 60, 90)
    first = cut()
    assert len(first) == root_count and max(first) <= 60 + 4, "up to what was there five seconds ago"
    assert reader.commands() == wanted


def paused_watcher(store: Store) -> tuple[Process, Process, ManualClock]:
    """A writer of 20 commands, and who has watched them; for longer than a cut leaves, whatever follows."""
    clock = ManualClock()
    writer, watcher = paged(store), paged(store, replace(BY_HAND, marker_check_ms=5_000), clock)
    wanted = fill(writer, 0, 20)
    assert watcher.ledger.glance().commands == wanted
    clock.sleep_ms(5_000)
    watcher.reset()
    return writer, watcher, clock


def asked(process: Process) -> list[list[str]]:
    """Per root, what its gets were for."""
    return [[key.split("/")[2] for verb, key in each.calls if verb == "get"] for each in process.counting]


def test_a_glance_after_a_pause_is_one_get_for_each_root_and_misses_no_cut(make_store):
    writer, watcher, clock = paused_watcher(make_store(3))
    seen = watcher.ledger.glance().commands
    assert asked(watcher) == [["markers"], ["journal"], ["journal"]] and len(seen) == 20
    clock.sleep_ms(5_000)
    watcher.reset()
    watcher.ledger.glance()
    assert asked(watcher) == [["journal"], ["markers"], ["journal"]], "the next root's turn"
    wanted = fill(writer, 20, 60)
    shoot(writer)
    clock.sleep_ms(5_000)
    assert watcher.ledger.glance().commands == wanted


def test_a_glance_finds_what_the_root_in_turn_does_not_hold(make_store):
    writer, watcher, _ = paused_watcher(make_store(3))
    writer.faulty[0].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)
    assert watcher.ledger.glance().commands == wanted


def test_a_glance_at_something_new_reads_the_root_in_turn_too(make_store):
    writer, watcher, _ = paused_watcher(make_store(3))
    writer.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)
    assert watcher.ledger.glance().commands == wanted, "one tail alone does not show the newest entry decided"


def test_a_glance_that_lacks_a_tail_reads_all_of_them(make_store):
    store = make_store(3)
    writer, watcher = paged(store), paged(store)
    watcher.ledger.glance()
    writer.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)[20:]
    core_of(watcher).roots[0].marker_at_ms = -1.0  # its turn
    watcher.faulty[1].fail_next("get", Fault.FAIL_BEFORE, times=10_000)
    assert watcher.ledger.glance().commands == wanted, "only the root in turn holds it among those that answer"


def test_glances_at_one_root_are_one_get_each_and_find_rows_and_cuts_at_the_second(make_store):
    writer, watcher, clock = paused_watcher(make_store(1))
    for purpose in ("journal", "markers", "journal", "markers"):
        watcher.reset()
        assert len(watcher.ledger.glance().commands) == 20
        assert asked(watcher) == [[purpose]]
        clock.sleep_ms(5_000)
    for first in (20, 25):  # whoever writes all the time is seen at once
        wanted = fill(writer, first, first + 5)
        assert watcher.ledger.glance().commands == wanted
        clock.sleep_ms(5_000)
    watcher.reset()
    watcher.ledger.glance()
    assert asked(watcher) == [["journal"]]
    clock.sleep_ms(5_000)
    fill(writer, 30, 35)
    assert len(watcher.ledger.glance().commands) == 30, "the marker alone"
    wanted = fill(writer, 35, 70)
    shoot(writer)
    for _ in range(2):
        clock.sleep_ms(5_000)
        seen = watcher.ledger.glance().commands
    assert seen == wanted


def test_a_late_answer_of_a_glance_does_not_count_as_a_read_of_the_root(make_store):
    _, watcher, clock = paused_watcher(make_store(3))
    core = core_of(watcher)
    core.begin(clock.monotonic_ms(), is_write=False, is_glance=True)
    (marker_look,) = [each for each in core.poll(clock.monotonic_ms()) if each.root == 0]
    assert marker_look.limit == 0 and marker_look.checks_marker
    core.begin(clock.monotonic_ms(), is_write=False)
    assert not [each for each in core.poll(clock.monotonic_ms()) if each.root == 0], "it is busy"
    core.complete(Completion(marker_look, Status.DONE), clock.monotonic_ms())
    (again,) = [each for each in core.poll(clock.monotonic_ms()) if each.root == 0]
    assert isinstance(again, Read) and again.limit > 0
