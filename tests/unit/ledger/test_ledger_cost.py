"""What a request costs in storage calls (G9; issue: one create round per commit, two after an owner change)."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ledger import journal_reader, read_plan
from spark_replog.ledger.root import Check, Read
from spark_replog.ledger.shell_io import RootIo
from spark_replog.ledger.snapshot_keeper import likely_heads
from spark_replog.ledger.types import JournalRoot, LedgerSettings, LedgerStats
from spark_replog.storage import open_store
from spark_replog.storage.paths import journal_key
from tests.unit.ledger.conftest import UNHURRIED
from tests.unit.ledger.snapshot_setup import BY_HAND, KEPT, core_of, fill, has_marker, heads, paged, shoot
from tests.waiting import wait_until


@pytest.mark.parametrize("root_count", [1, 2, 3, 5])
def test_steady_state_is_one_create_round_and_no_get(make_store, root_count):
    process = make_store(root_count).process(UNHURRIED)
    for number in range(4):
        process.append(b"warm %d" % number)
    process.creates(4 * root_count)
    entries = process.ledger.stats.entries
    process.reset()
    for number in range(10):
        process.append(b"command %d" % number)
    assert process.creates(10 * root_count) == 10 * root_count
    assert process.journal_gets() == 0
    assert (process.ledger.stats.entries, process.ledger.stats.claims) == (entries + 10, int(root_count > 1))


@pytest.mark.parametrize("root_count", [2, 3, 5])
def test_owner_change_with_known_tail_is_two_create_rounds(make_store, root_count):
    store = make_store(root_count)
    first, second = store.process(UNHURRIED), store.process(UNHURRIED)
    first.append(b"a")
    second.append(b"b")
    for number in range(6):
        process = (first, second)[number % 2]
        stats = process.ledger.stats
        claims, entries = stats.claims, stats.entries
        process.reset()
        process.append(b"alternating %d" % number)
        assert process.creates(2 * root_count) == 2 * root_count  # CLAIM and ENTRY on every root
        assert (stats.claims, stats.entries) == (claims + 1, entries + 1)


def test_one_root_changes_owner_without_a_claim(make_store):
    store = make_store(1)
    first, second = store.process(UNHURRIED), store.process(UNHURRIED)
    first.append(b"a")
    second.append(b"b")
    for number in range(6):
        process = (first, second)[number % 2]
        process.reset()
        process.append(b"alternating %d" % number)
        assert process.creates(1) == 1
    assert first.ledger.stats.claims == second.ledger.stats.claims == 0


@pytest.mark.parametrize("root_count", [1, 2, 3, 5])
def test_idle_refresh_is_one_get_per_root(make_store, root_count):
    store = make_store(root_count)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(5):
        writer.append(b"command %d" % number)
    reader.ledger.refresh()
    reader.reset()
    for _ in range(5):
        reader.ledger.refresh()
    assert sum(counting.counts["get"] for counting in reader.counting) == 5 * root_count
    assert reader.creates() == 0


@pytest.mark.guarantee("G9")
def test_refresh_after_one_commit_reads_only_the_new_record(make_store):
    store = make_store(3)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(200):
        writer.append(b"command %d" % number)
    reader.ledger.refresh()
    writer.append(b"newest")
    reader.reset()
    assert reader.commands()[-1] == b"newest"
    assert reader.journal_gets() <= 2 * 3


def test_entry_overhead_is_small(make_store):
    store = make_store(3)
    process = store.process(UNHURRIED)
    for number in range(20):
        process.append(b"x" * 100 + b"%03d" % number)
    sizes = [path.stat().st_size for path in store.journal(0)]
    assert max(sizes) <= 103 + 110


class Crowd:
    """A slow store that remembers how many gets it was asked at one time."""

    def __init__(self, store, get_seconds=0.008):
        self.store, self.url, self.get_seconds = store, store.url, get_seconds
        self.most = self.now = 0
        self._lock = threading.Lock()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, key, **where):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.get_seconds)
        try:
            return self.store.get(key, **where)
        finally:
            with self._lock:
                self.now -= 1

    def create(self, key, data, **how):
        return self.store.create(key, data, **how)


def test_cold_start_over_a_slow_network_reads_several_records_at_a_time(make_store):
    store = make_store(3)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(100):
        writer.append(b"command %d" % number)
    crowds = [Crowd(faulty.store) for faulty in reader.faulty]
    for counting, crowd in zip(reader.counting, crowds, strict=True):
        counting.store = crowd
    assert len(reader.commands()) == 100
    assert min(crowd.most for crowd in crowds) > 1  # one by one, a journal of n records costs n round trips
    reader.reset()
    reader.ledger.refresh()
    assert reader.journal_gets() == 3


def test_one_read_that_takes_longer_than_the_time_out_is_no_silence(make_store):
    store = make_store(3)
    writer, reader = store.process(UNHURRIED), store.process(LedgerSettings(quorum_timeout_ms=2_000))
    for number in range(400):
        writer.append(b"command %d" % number)
    crowds = [Crowd(faulty.store, get_seconds=0.35) for faulty in reader.faulty]
    for counting, crowd in zip(reader.counting, crowds, strict=True):
        counting.store = crowd
    assert len(reader.commands()) == 400
    assert [store.counts["list_keys"] for store in reader.counting] == [1, 1, 1]
    assert all(350 * 400 / crowd.most > 2_000 for crowd in crowds), "the read as a whole outlasted the timeout"


LISTINGS = {
    "whole": lambda keys: keys,
    "older": lambda keys: keys[: len(keys) // 2],
    "empty": lambda keys: [],
    "refused": None,
}


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("is_large", [False, True])
def test_a_cold_read_needs_no_listing_and_holds_few_bytes_at_once(make_store, monkeypatch, listing, is_large):
    store = make_store(3)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    commands = [b"%03d" % number + bytes(1000) for number in range(40)]
    if is_large:
        for module in (journal_reader, read_plan):
            monkeypatch.setattr(module, "READ_SIZE_BYTES_MAX", 8 * 1000)
    for command in commands:
        writer.append(command)
    crowds = [Crowd(faulty.store) for faulty in reader.faulty]
    for counting, crowd in zip(reader.counting, crowds, strict=True):
        counting.store = crowd

    def list_keys(self, prefix, *, after=""):
        if LISTINGS[listing] is None:
            raise ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no right to list")
        return iter(LISTINGS[listing](list(self.store.list_keys(prefix, after=after))))

    monkeypatch.setattr(Crowd, "list_keys", list_keys, raising=False)
    assert reader.commands() == commands
    for number, counting in enumerate(reader.counting):  # the end is an absent name, whatever a listing shows
        end = journal_key(store.ledger_id, len(store.journal(number)))
        assert ("get", end) in counting.calls
    most = max(crowd.most for crowd in crowds)
    assert most <= (10 if is_large else 64)
    assert most > 4


@pytest.mark.parametrize(("index", "first"), [(0, 30 - 23), (28, 28), (99, 30)])
def test_last_records_are_got_before_the_first_read(make_store, index, first):
    """From the first entry on that is needed, 23 at most."""
    store = make_store(1)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(30):
        writer.append(b"command %d" % number)
    io, crowd = far_io(store, reader)
    io.look_ahead()
    io.begin_last_gets(index)
    wanted = {journal_key(store.ledger_id, position) for position in range(first, 31)}
    wait_until(lambda: {key for verb, key in crowd.store.calls if verb == "get" and "/journal/" in key} == wanted)


def test_first_records_are_got_as_soon_as_the_root_is_checked(make_store):
    """A root that is the wrong one before its check, and the right one after it, would show an end that is none."""
    store = make_store(1)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(3):
        writer.append(b"command %d" % number)
    seen = []

    def check():
        time.sleep(0.1)
        seen.append(set(reader.counting[0].calls))

    io, crowd = far_io(store, reader, check)
    io.look_ahead(4)
    wanted = {("get", journal_key(store.ledger_id, position)) for position in range(4)}
    wait_until(lambda: wanted <= set(crowd.store.calls))
    assert not seen[0] & wanted
    for operation in (Check(0, False), Read(0, 0, 512, 0, checks_marker=True, finds_gaps=True)):
        io.start([operation])
        (completion,) = io.take(60_000)
    assert completion.ended and len(completion.records) == 3
    assert reader.journal_gets() == 4


def test_callers_that_wait_share_the_next_read(make_store):
    process = make_store(3).process(UNHURRIED)
    process.append(b"a")
    process.ledger.refresh()
    may_end = threading.Event()
    readers = [threading.Thread(target=process.ledger.refresh) for _ in range(4)]
    driver = threading.Thread(target=lambda: process.ledger.with_turn(lambda: may_end.wait(60)))
    driver.start()
    wait_until(lambda: process.ledger._turns.is_taken)
    for thread in readers:
        thread.start()
    wait_until(lambda: len(process.ledger._turns.changed._waiters) == len(readers))
    process.reset()
    may_end.set()
    for thread in [driver, *readers]:
        thread.join(60)
    assert process.journal_gets() == 3, "one get for each root, and not for each caller"


def test_a_listing_says_how_many_gets_reach_the_first_empty_position():
    """One after the last record that it shows; 0, so that the reader guesses, where it shows none near."""
    listed = read_plan.Listed({5: 100, 6: 100, 9: 100})
    assert {position: listed.window(position) for position in range(4, 12)} == {
        4: 0, 5: 3, 6: 2, 7: 1, 8: 0, 9: 2, 10: 1, 11: 0,
    }  # fmt: skip


@pytest.mark.guarantee("G9")
def test_a_cold_read_at_rest_is_five_gets_beside_an_older_head_that_a_marker_names(make_store):
    """``replog.json``, the decided head, the entry that decided it, the position after that, the next marker."""
    store = make_store(1)
    wanted = shot_twice(store)
    cold = paged(store, KEPT)
    assert cold.commands() == wanted
    (root,) = cold.counting
    got = [key.split("/")[-2:][0] for verb, key in root.calls if verb == "get" and "/pages/" not in key]
    assert sorted(got) == ["journal", "journal", "markers", "replog.json", "snapshots"]


@pytest.mark.parametrize(
    ("near", "is_long", "head_count"), [({"file"}, False, 1), ({"file"}, True, 1), (set(), False, 2), (set(), True, 1)]
)
def test_a_head_that_may_be_the_decided_one_is_got_in_advance_only_over_a_network(
    make_store, monkeypatch, near, is_long, head_count
):
    """There it saves a round trip. It is a marker's, and not decided, if the journal is long enough to be cut."""
    monkeypatch.setattr(open_store, "NEAR_SCHEMES", frozenset(near))
    store = make_store(3)
    wanted = shot_twice(store)
    cut_at = min(heads(store, 0)) + (not is_long)
    cold = paged(store, replace(KEPT, truncate_record_count_min=cut_at))
    assert cold.commands() == wanted
    calls = [call for root in cold.counting for call in root.calls]
    assert sum(verb == "get" and "/snapshots/" in key for verb, key in calls) == head_count
    first = min(int(key[-20:]) for verb, key in calls if verb == "get" and "/journal/" in key)
    assert (first > max(heads(store, 0))) is bool(near or is_long), "no record that the decided snapshot holds"


@pytest.mark.parametrize(
    ("indexes", "likely"),
    [((), ()), ((7,), (7,)), ((7, 9), (7, 9)), ((1024, 1030), (1030,)), ((7, 1030), (7, 1030)), ((1, 2, 3), (2, 3)),
     ((1024, 1030, 1032), (1030, 1032)), ((1, 1024, 1030, 1032), (1030, 1032))],
)  # fmt: skip
def test_heads_that_a_cold_process_may_need_are_told_by_their_names(indexes, likely):
    """The second newest is the decided one while the newest waits for its entry; or it stays for a marker."""
    names = {f"{index:020d}-{'0' * 32}" for index in indexes}
    assert [int(name[:20]) for name in likely_heads(names, 1024)] == list(likely)


def shot_twice(store):
    """Return the commands of a ledger at rest, whose roots have a decided snapshot and an older one of a marker.

    A root that is busy just then gets its marker, and loses a head that was replaced, with a later snapshot.
    """

    def has_all(shooter, head_count):
        shoot(shooter)
        first, *others = (heads(store, root) for root in range(store.root_count))
        is_same = all(other == first for other in others) and len(first) == head_count
        is_marked = all(has_marker(store, root) for root in range(store.root_count))
        return is_same and is_marked and shooter.ledger.state.snapshot.index in first

    fill(writer := paged(store), 0, 20)
    wait_until(lambda: has_all(writer, 1))
    shooter = paged(store, KEPT)
    wanted = fill(shooter, 20, 30)
    for _ in range(2):  # once the second is decided, the head between goes
        shoot(shooter)
        wanted = fill(shooter, len(wanted), len(wanted) + 1)
    wait_until(lambda: has_all(shooter, 2))
    return wanted


def far_io(store, reader, check=lambda: None):
    """Return the shell's part that calls one root, over a network, and that root."""
    crowd = Crowd(reader.counting[0], get_seconds=0)
    crowd.url = crowd.url.replace("file://", "far://")
    root = JournalRoot(0, crowd, check)
    return RootIo(store.ledger_id, [root], LedgerStats(), SYSTEM_CLOCK), crowd


@pytest.mark.parametrize("gets", ["first", "last"])
@pytest.mark.parametrize("event", ["none", "a later goal", "a later check"])
def test_gets_that_began_with_a_goal_count_in_no_later_one_nor_after_a_later_check(make_store, event, gets):
    """A position that was empty at the first goal has a record at the second one, or was read on another root."""
    store = make_store(1)
    writer, reader = store.process(UNHURRIED), store.process(UNHURRIED)
    for number in range(12):
        writer.append(b"command %d" % number)
    io, crowd = far_io(store, reader)
    end = "get", journal_key(store.ledger_id, 12)
    io.look_ahead(13 if gets == "first" else 0)
    if gets == "last":
        io.begin_last_gets(0)
    wait_until(
        lambda: crowd.store.calls.count(end) == 1 and not crowd.now and any(reader.early for reader in io.readers)
    )
    writer.append(b"newer")
    if event == "a later goal":
        io.end_goal()
    if event == "a later check":
        io.check_again(0)
    for operation in (Check(0, False), Read(0, 6, 512, 0, checks_marker=True, finds_gaps=True)):
        io.start([operation])
        (completion,) = io.take(60_000)
    assert completion.ended and len(completion.records) == (6 if event == "none" else 7)
    assert crowd.store.calls.count(end) == (1 if event == "none" else 2)


class Late(Crowd):
    """A store whose check is answered late."""

    def __init__(self, store):
        super().__init__(store, get_seconds=0)
        self.is_released = threading.Event()

    def get(self, key, **where):
        if key == "replog.json":
            self.is_released.wait(60)
        return super().get(key, **where)


@pytest.mark.parametrize("gets", ["first", "last"])
def test_a_root_that_answered_too_late_for_a_refresh_is_read_anew_by_the_next_one(make_store, monkeypatch, gets):
    """Gets that its late check began may be older than entries that others have appended since."""
    monkeypatch.setattr(open_store, "NEAR_SCHEMES", frozenset())
    store = make_store(3)
    writer = paged(store, KEPT)
    wanted = fill(writer, 0, 8)
    if gets == "last":
        shoot(writer)
        wanted = fill(writer, 8, 12)
    reader = paged(store, replace(KEPT, early_record_count=0 if gets == "last" else 16))
    late = reader.counting[2].store = Late(reader.counting[2].store)
    assert reader.commands() == wanted
    last = int(store.journal(2)[-1].name)
    end, newest = (("get", journal_key(store.ledger_id, position)) for position in (last + 1, last))
    late.is_released.set()
    wait_until(lambda: end in reader.counting[2].calls and not late.now)
    reader.reset()
    store.take_away(0)
    assert reader.commands() == wanted
    assert newest in reader.counting[2].calls


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_cut_has_no_process_read_again_what_it_knows(make_store, root_count):
    """Else each cut costs each process a get per kept record and root, 512 of them, and holds up its next commit."""
    settings = replace(BY_HAND, grace_ms=UNHURRIED.grace_ms, kept_record_count=20)
    store = make_store(root_count)
    writer, reader = paged(store, settings), paged(store, settings)
    wanted = fill(writer, 0, 60)
    assert reader.commands() == wanted
    for process in (writer, reader):
        process.reset()
    assert shoot(writer).deleted > 0
    first = int(store.journal(0)[0].name)
    assert first > 20
    wanted = fill(writer, 60, 65)
    assert writer.commands() == reader.commands() == wanted
    for process in (writer, reader):
        got = {key.rpartition("/")[2] for store in process.counting for verb, key in store.calls
               if verb == "get" and "/journal/" in key}  # fmt: skip
        assert {int(name) for name in got if int(name) < first + 20} == set()
    for process in (writer, reader):
        assert core_of(process).roots[0].floor.position == first


def test_the_next_cut_of_a_process_lists_no_journal(make_store):
    store = make_store(1)
    writer = paged(store)

    def lists() -> int:
        return sum(verb == "list_keys" and "/journal" in key for verb, key in writer.counting[0].calls)

    for first in (0, 40, 80):
        fill(writer, first, first + 40)
        before = lists()
        shoot(writer)
        writer.ledger.collect()
        assert lists() - before == (1 if first == 0 else 0)
        assert len(store.journal(0)) < 10
