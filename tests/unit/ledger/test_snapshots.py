"""Snapshots, markers and truncation on real roots: nothing is lost, and what is read stays small."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    OutcomeUnknownError,
    RetriableError,
    UnsupportedFormatError,
)
from spark_replog.ledger import reader
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.record import NO_HASH
from spark_replog.ledger.snapshot_files import Base, Floor, JournalPoint, SnapshotHead, snapshot_name
from spark_replog.snapshot import DecidedSnapshot, PageMissingError
from spark_replog.storage.io_pool import IO_POOL
from tests.faulty_store import Fault
from tests.manual_clock import ManualClock
from tests.unit.ledger.conftest import FAST, HASTY, LEDGER_ID, Process, Store
from tests.unit.ledger.snapshot_setup import (
    BY_HAND,
    KEPT,
    PagedState,
    collect_until,
    command,
    core_of,
    fill,
    heads,
    keeper_of,
    paged,
    pages,
    shoot,
    shoot_and_die,
)
from tests.unit.ledger.test_ledger_faults import Refusing
from tests.waiting import wait_until

ALWAYS = replace(
    BY_HAND,
    snapshot_entry_count_min=1,
    snapshot_first_entry_count_min=1,
    snapshot_rest_factor=0,
    truncate_record_count_min=4,
)


def wait_for_pages(store: Store, count: int) -> None:
    """Return once the last root has the pages too: a majority is waited for only."""
    wait_until(lambda: all(len(pages(store, root)) == count for root in range(store.root_count)))


def newest_heads(store: Store) -> list[Path]:
    """The newest head on each root, once the last root has it too: a majority is waited for only."""

    def newest_heads() -> list[Path]:
        every = [sorted(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/snapshots/[0-9]*"))[-1:] for root in range(3)]
        newest = [path for paths in every for path in paths]
        return newest if len(newest) == 3 and len({path.name for path in newest}) == 1 else []

    return wait_until(newest_heads)


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_cold_process_reads_the_snapshot_and_the_tail(make_store, root_count):
    store = make_store(root_count)
    writer = paged(store)
    for round_ in range(4):
        wanted = fill(writer, 30 * round_, 30 * round_ + 30)
        assert not writer.ledger.level(timeout_ms=60_000), "no root lacks an entry"
        report = shoot(writer)
        assert (report.written, report.decided) == (1, 1)
    assert report.deleted >= 25 * root_count, "the records before the snapshot are gone"
    wanted = fill(writer, 120, 123)
    assert all(len(store.journal(root)) < 40 for root in range(root_count))
    collect_until(writer, lambda: all(len(heads(store, root)) <= 2 for root in range(root_count)))
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
    wanted = fill(writer, 0, 150)
    shoot(writer)

    def is_on_all_roots() -> bool:
        """A busy root gets what it lacks with the entries after that."""
        wanted.append(command(len(wanted)))
        writer.append(wanted[-1])
        return all(len(store.journal(root)) > 150 for root in range(root_count))

    wait_until(is_on_all_roots)
    shoot(writer)
    collect_until(writer, lambda: all(len(heads(store, root)) == 1 for root in range(root_count)))
    cold, listed = paged(store, KEPT), []
    for root in cold.counting:
        real = root.store.list_keys
        root.store.list_keys = lambda prefix, after="", real=real: (
            listed.append(info.key) or info for info in real(prefix, after=after)
        )
    assert cold.commands() == wanted
    assert all(root.counts["get"] <= 9 for root in cold.counting)
    assert sum(verb == "get" and "/snapshots/" in key for root in cold.counting for verb, key in root.calls) == 1
    assert sum("/journal/" in prefix for root in cold.counting for verb, prefix in root.calls if verb == "list_keys")
    assert sum("/journal/" in key for key in listed) <= 10 * root_count


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_first_read_that_finds_no_thread_may_be_repeated_at_once(make_store, root_count, monkeypatch):
    store = make_store(root_count)
    wanted = fill(paged(store), 0, 3)
    process, failed, submit_to = paged(store), [], IO_POOL.submit_to

    def submit(lane, *call, **more):
        if lane == "heads" and not failed:
            failed.append(lane)
            raise RuntimeError("can't start new thread")
        return submit_to(lane, *call, **more)

    monkeypatch.setattr(IO_POOL, "submit_to", submit)
    with pytest.raises(RuntimeError, match="new thread"):
        process.commands()
    assert process.commands() == wanted


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


def test_a_command_that_others_decided_and_truncated_is_not_reported_as_undecided(make_store):
    """What became of it shows only in the state of a snapshot, and the roots refuse to be read further."""
    store = make_store(3)
    process, writer = paged(store, replace(BY_HAND, quorum_timeout_ms=300)), paged(store)
    fill(process, 0, 10)  # owns the ledger and appends without a look

    def decide_and_truncate():
        for first in (10, 60):
            fill(writer, first, first + 50)
            shoot(writer)

    all_created = threading.Barrier(3, action=decide_and_truncate)

    def hold_the_answer(counting):
        create = counting.create

        def wrapped(*arguments, **more):
            counting.create = create
            outcome = create(*arguments, **more)
            all_created.wait(120)
            return outcome

        counting.create = wrapped

    for counting in process.counting:
        hold_the_answer(counting)
    refusing = [Refusing(faulty, "get", RetriableError) for faulty in process.faulty]
    with pytest.raises(OutcomeUnknownError, match="REPLOG_STORE_REFUSED"):
        process.append(command(500), timeout_ms=60_000)
    for root in refusing:
        root.allow()
    assert process.append(command(500)).index == -1, "it was decided"


def test_two_writers_that_snapshot_and_truncate_all_the_time_lose_nothing(make_store):
    store = make_store(3)
    writers = [paged(store, ALWAYS), paged(store, ALWAYS)]
    count, decided_count = 0, 0
    while count < 120 or (count < 3_000 and decided_count < 10):  # however busy the machine is
        assert writers[count // 5 % 2].append(command(count)).result == "applied"
        count += 1
        decided_count = sum(writer.ledger.snapshots.keeper.stats.decided for writer in writers)
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
    head_paths = newest_heads(store)
    whole = head_paths[0].read_bytes()
    head_paths[0].write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    head_paths[1].unlink()
    assert paged(store).commands() == wanted
    head_paths[2].write_bytes(whole[:-1])
    head_paths[1].write_bytes(whole[: len(whole) // 2])
    with pytest.raises((CorruptDataError, RetriableError), match="snapshot"):
        paged(store).commands()
    head_paths[1].write_bytes(whole)
    assert paged(store).commands() == wanted


def test_a_damaged_page_is_read_from_another_root(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 40)
    shoot(writer)
    wait_for_pages(store, 1)
    copies = [next(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/pages/*/*")) for root in range(3)]
    whole = copies[0].read_bytes()
    copies[0].write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    copies[1].write_bytes(whole[:-1])
    assert paged(store).commands() == wanted
    copies[2].write_bytes(whole[:2])
    with pytest.raises(CorruptDataError, match=r"damaged on broker 0 .* and broker 1 .* and broker 2"):
        paged(store).commands()
    copies[1].write_bytes(whole)
    assert paged(store).commands() == wanted


@pytest.mark.parametrize("damage", ["emptied", "swapped"])
def test_a_page_is_the_one_that_its_name_says_or_is_read_from_another_root(make_store, damage, caplog):
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 10)
    shoot(writer)
    wanted = fill(writer, 10, 20)
    shoot(writer)
    wait_for_pages(store, 2)
    first, second = store.root_path(0).glob(f"ledgers/{LEDGER_ID}/pages/*/*")
    if damage == "emptied":
        first.write_bytes(b"")
    else:
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(kept)
    assert paged(store).commands() == wanted
    (said,) = [text for record in caplog.records if "[CORRUPT_MESSAGE]" in (text := record.getMessage())]
    assert "broker 0" in said and (first.name in said or second.name in said)  # then another root is asked first


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
    wait_for_pages(store, 1)
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

    data = bytearray(head.read_bytes()[:-4])
    data[4] = 9
    newer = bytes(data) + crc32c(bytes(data)).to_bytes(4, "little")
    head.rename(head.with_name(snapshot_name(int(head.name[:20]), newer))).write_bytes(newer)
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


def test_of_threads_that_saw_a_snapshot_due_one_freezes_the_state(make_store, monkeypatch):
    """A second frozen state would take the first one's place, which then has to be restored from its pages."""
    writer, jobs, frozen = paged(make_store(3), ALWAYS), [], []
    freeze, post_to = writer.ledger.state.freeze, IO_POOL.post_to

    def post(lane, function, *args, **kwargs):
        if lane.startswith("snapshots of"):
            jobs.append(function)
        else:
            post_to(lane, function, *args, **kwargs)

    monkeypatch.setattr(IO_POOL, "post_to", post)
    monkeypatch.setattr(writer.ledger.state, "freeze", lambda: frozen.append(freeze()) or frozen[-1])
    fill(writer, 0, 10)
    assert len(jobs) > 2
    for job in jobs:
        job()
    stats = keeper_of(writer).stats
    assert (len(frozen), stats.written, stats.decided) == (1, 1, 0)
    writer.append(command(10))
    assert (stats.decided, stats.restored) == (1, 0)


def test_positions_of_a_journal_before_its_rebuild_truncate_nothing():
    """The head of a snapshot names positions of the journal that was there then: others lie at them in the new one."""
    core = LedgerCore(["a", "b", "c"], b"g" * 16, b"i" * 16, FAST, random.Random(1))
    core._was_synced = True
    points = tuple(JournalPoint(position=50, floor=Floor(1, 5, 3)) for _ in range(3))
    head = SnapshotHead(Base(8), DecidedSnapshot(1, 8, "", 9), points, b"")
    for root, renewal in enumerate((NO_HASH, b"r" * 16, NO_HASH)):
        core.roots[root].floor = Floor(2, 10, 5, renewal)
    truncations = [core.truncation(root, head, "", 1) for root in range(3)]
    assert [truncation and truncation.position for truncation in truncations] == [49, None, 49]


def slowly(stores: Sequence[Any], verb: str, step: Callable[[], object]) -> None:
    """Do a step after each call of a verb, before its caller has the answer."""
    for store in stores:
        plain = getattr(store, verb)
        setattr(store, verb, lambda *a, plain=plain, **k: (plain(*a, **k), step())[0])


def test_roots_that_take_long_for_many_files_are_waited_for_while_they_get_on(make_store):
    """The timeout is that of one file: else a large snapshot, or truncation, would never end on slow storage."""
    store = make_store(3)
    clock = ManualClock()  # it moves with the files, however busy the machine is
    writer = paged(store, replace(BY_HAND, quorum_timeout_ms=1_000), clock)
    wanted = fill(writer, 0, 60)
    assert not writer.ledger.level(timeout_ms=60_000), "no root lacks an entry"
    slowly(writer.counting, "delete", lambda: clock.sleep_ms(20))
    report = shoot(writer)
    assert report.deleted >= 55 * 3, "1,100 ms a root, and the timeout is 1,000"
    slowly(writer.counting, "create", lambda: clock.sleep_ms(20))
    io = keeper_of(writer).io
    pages = {f"{7:012d}-{number:032x}": b"%d" % number for number in range(60)}
    assert len(io.store(pages, f"{70:020d}-{0:032x}", b"head")) >= 2
    assert io.delete_pages(lambda name: name in pages) >= 60  # one of two that answer may not have all pages yet
    io._timeout_ms, released = 10, threading.Event()
    with pytest.raises(RetriableError, match="did not delete a file within 100 ms"):
        io.wait_for_root(0, io.begin_on_root(0, lambda: released.wait(60)))
    released.set()
    assert paged(store).commands() == wanted


def test_a_snapshot_that_is_asked_for_waits_for_slow_roots_as_long_as_its_caller_says(make_store):
    store = make_store(3)
    writer = paged(store)
    wanted = fill(writer, 0, 9)
    other = paged(store, replace(BY_HAND, quorum_timeout_ms=400))
    for root in other.counting:
        waits = iter([0.6])  # once, and longer than the timeout of a read
        slowly([root], "get", lambda waits=waits: time.sleep(next(waits, 0)))
    assert shoot(other).decided == 1
    assert other.commands() == wanted


@pytest.mark.parametrize("record_count", [6, 600])
def test_a_long_cold_read_is_no_missing_root_and_says_so(make_store, caplog, monkeypatch, record_count):
    monkeypatch.setattr("spark_replog.ledger.read_plan.READ_LIMIT", 64)  # it is said between two reads of a journal
    store, is_long = make_store(3), record_count == 600
    wanted = fill(store.process(), 0, record_count)
    clock = ManualClock()
    cold = store.process(replace(FAST, quorum_timeout_ms=400), clock=clock)
    # Less than the timeout even if the 64 gets that each root is asked at once add up.
    slowly(cold.counting, "get", lambda: clock.sleep_ms(2))
    assert cold.commands() == wanted
    assert (clock.time_ms >= 2_000) is is_long, "five times the timeout"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all("is being read" in message for message in said), said
    assert len(said) == is_long
    assert not any(root.error for root in core_of(cold).roots)


def test_a_listing_that_takes_longer_than_the_time_out_is_no_silence(make_store):
    store = make_store(3)
    wanted = fill(store.process(), 0, 6)
    cold = store.process(replace(FAST, quorum_timeout_ms=300))
    slowly(cold.counting, "list_keys", lambda: time.sleep(1))
    assert cold.commands() == wanted
    assert not any(root.error for root in core_of(cold).roots)


def test_a_process_that_fell_far_behind_with_its_snapshots_rests_less(make_store):
    clock = ManualClock()
    writer = make_store(1).process(ALWAYS, PagedState(), clock)
    keeper = keeper_of(writer)
    keeper._rest = 0, 1_000
    for now_ms, count, is_due in ((100, 8_191, False), (99, 8_192, False), (100, 8_192, True), (1_000, 8_191, True)):
        clock.time_ms = now_ms
        writer.ledger.state.applied_index = count - 1
        with keeper._busy:
            assert not keeper.is_due()
        assert keeper.is_due() is is_due, (now_ms, count)


def begun_with_the_first_snapshot(store: Store) -> Process:
    """Return a process that had read more entries than are kept when it met the decision of the second snapshot.

    One that reads slower than the entry of the decision arrives takes the second at once, and needs nothing again.
    """
    for _ in range(50):
        process = paged(store, KEPT)
        process.commands()
        if not process.ledger.snapshots.keeper.is_derived:
            return process
    raise AssertionError("every process began with the second snapshot")


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("what", ["snapshot", "collect", "refresh", "append", "ask"])
def test_a_process_whose_memory_lacks_what_follows_the_decided_snapshot_reads_it_again(
    make_store, monkeypatch, what, root_count
):
    """Else none could write the next snapshot where more entries follow than are kept, and journals grew for ever."""
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
    old = paged(store, replace(KEPT, quorum_timeout_ms=HASTY.quorum_timeout_ms))
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


def test_snapshots_that_no_root_shows_for_a_while_end_one_call_and_not_the_process(make_store):
    """The state in memory is whole: only the restored one, which the next snapshot derives from, is not there yet."""
    store = make_store(3)
    writer, other = paged(store, KEPT), paged(store, replace(KEPT, quorum_timeout_ms=HASTY.quorum_timeout_ms))
    fill(writer, 0, 20)
    other.commands()
    shoot(writer)
    wanted = fill(writer, 20, 22)
    for faulty in other.faulty:
        for verb in ("get", "list_keys"):
            faulty.fail_next(verb, Fault.FAIL_BEFORE, key_part="/snapshots", times=10_000)
    with pytest.raises(RetriableError, match="REPLOG_NO_QUORUM"):
        other.ledger.collect()
    for faulty in other.faulty:
        faulty.clear()
    assert other.commands() == wanted
    assert other.append(command(22)).result == "applied"
    assert shoot(other).decided == 1


def test_an_append_that_is_decided_and_cannot_be_folded_is_not_reported_as_unsent(make_store):
    store = make_store(3)
    writer = paged(store, KEPT)
    fill(writer, 0, 20)
    shoot(writer)
    fill(writer, 20, 22)
    shoot(writer)
    other = paged(store, replace(KEPT, quorum_timeout_ms=HASTY.quorum_timeout_ms))
    other.ledger.refresh()
    for faulty in other.faulty:
        for part in ("/snapshots", "/pages"):
            for verb in ("get", "list_keys"):
                faulty.fail_next(verb, Fault.FAIL_BEFORE, key_part=part, times=10_000)
    with pytest.raises(OutcomeUnknownError):
        other.ledger.append(lambda _: command(22), timeout_ms=60_000)
    for faulty in other.faulty:
        faulty.clear()
    assert writer.commands() == other.commands() == [command(number) for number in range(23)]
