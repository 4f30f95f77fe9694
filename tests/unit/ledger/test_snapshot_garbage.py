"""Which heads, pages and records go once a newer snapshot is decided, and which remain."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from spark_replog import logs
from spark_replog.clock import SystemClock
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger import reader, snapshot_io
from spark_replog.snapshot import FrozenHead, FrozenState, PageMissingError, hash_of
from tests.faulty_store import Fault
from tests.unit.ledger.conftest import LEDGER_ID, Process, Store
from tests.unit.ledger.snapshot_setup import (
    BY_HAND,
    KEPT,
    PagedState,
    collect_until,
    command,
    core_of,
    fill,
    has_marker,
    heads,
    keeper_of,
    paged,
    pages,
    shoot,
    shoot_and_die,
    store_and_die,
)
from tests.waiting import wait_until


class MergingState(PagedState):
    """Each snapshot writes all of it as one new page, so that the pages before are garbage."""

    def freeze(self) -> FrozenState:
        self._tail, self._pages, self._loaded = self.commands, [], []
        page = json.dumps([payload.hex() for payload in self._tail]).encode()
        name = f"{self.snapshot.no:012d}-{hash_of(page)}"
        head = json.dumps([[name], self.applied_index]).encode()
        return FrozenHead(self.applied_index, self.snapshot.no, head, {name: page})

    def adopted(self, frozen: FrozenState) -> None:
        (name,) = frozen.pages
        self._tail = self.commands[len(json.loads(frozen.pages[name])) :]
        self._pages, self._loaded = [name], []


def has_its_pages_only(store: Store, process: Process) -> bool:
    """Return whether each root has the pages that the state of a process refers to, and no others."""
    needed = set(process.ledger.state.page_names())
    return all(pages(store, root) == needed for root in range(store.root_count))


def test_pages_that_the_decided_snapshot_does_not_name_go_and_a_process_that_slept_goes_on(make_store):
    store = make_store(3)
    writer, sleeper = store.process(BY_HAND, MergingState()), store.process(BY_HAND, MergingState())
    wanted = fill(writer, 0, 20)
    shoot(writer)
    sleeper.ledger.refresh()
    stalled = sleeper.ledger.snapshots.freeze()  # a writer of snapshots that stops here
    assert writer.ledger.collect(is_dry_run=True) == 0
    before = pages(store)
    wanted = fill(writer, 20, 40)
    shoot(writer)
    wanted = fill(writer, 40, 60)
    shoot(writer)
    assert writer.ledger.collect(is_dry_run=True) >= len(before)
    writer.ledger.collect()
    collect_until(writer, lambda: has_its_pages_only(store, writer))
    assert pages(store).isdisjoint(before)
    assert writer.ledger.collect() == 0
    # The sleeper's state names a page that is gone; its snapshot comes too late, and its page is garbage at once.
    assert sleeper.ledger.ask(lambda state: state.commands[:20]) == wanted[:20]
    keeper_of(sleeper).write(stalled)
    assert sleeper.append(command(60)).result == "applied"
    assert writer.append(command(61)).result == "applied"
    assert writer.ledger.collect() > 0
    collect_until(writer, lambda: has_its_pages_only(store, writer))
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
    other = paged(store)
    assert other.commands() == wanted
    assert other.ledger.collect() == 1
    assert not left.exists()


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
    collect_until(shooter, lambda: is_tidy(store, shooter), lambda: heads(store, 0))
    before = [heads(store, root) for root in range(root_count)]
    keeper_of(late).delete_heads(stopped)  # one that was stopped meanwhile deletes nothing that is needed
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
    # The process died once a majority had the head: the last root's is on its way.
    wait_until(lambda: all(old in heads(store, root) for root in range(root_count)))
    garbage = []

    def others_go_on(step: str) -> None:
        if step == "truncate.before_marker":
            fill(writer, 20, 30)
            shoot_and_die(writer)
            garbage.append(keeper_of(writer).head_garbage(core_of(writer)))  # it knows of no marker
        if step == ("truncate.marker" if is_behind_marker else "truncate.before_marker"):
            keeper_of(writer).delete_heads(garbage.pop())
            wait_until(lambda: all(old not in heads(store, root) for root in range(root_count)))
            monkeypatch.undo()

    monkeypatch.setattr("spark_replog.ledger.snapshot_io.fault_point", others_go_on)
    late_keeper.cuts.begin(cuts[:1])
    late_keeper.cuts.finish()
    assert not garbage, "the others did go on"
    assert old in heads(store, cuts[0].root)
    assert cannot_list(paged(store, replace(BY_HAND, read_only=True))).commands() == writer.commands()


def test_a_process_that_dies_behind_its_marker_has_left_the_head_on_that_root(make_store, monkeypatch):
    store = make_store(3)
    late = paged(store)
    keeper = keeper_of(late)
    fill(late, 0, 20)
    shoot_and_die(late)
    (cut,) = [truncation for truncation in keeper.truncations(core_of(late)) if truncation.root == 2]
    wait_until(lambda: bool(heads(store, 2)))
    for path in store.root_path(2).glob(f"ledgers/{LEDGER_ID}/snapshots/*"):
        path.unlink()  # the two others were the majority that took it

    def die(step: str) -> None:
        if step == "truncate.marker":
            raise KeyboardInterrupt

    monkeypatch.setattr("spark_replog.ledger.snapshot_io.fault_point", die)
    with pytest.raises(KeyboardInterrupt):
        keeper.io.truncate(2, cut.marker_no, cut.marker, keeper.io.head_data(cut.marker.name))
    assert heads(store, 2) == {cut.marker.base.index}


def test_no_marker_names_a_head_that_is_gone(make_store):
    store = make_store(3)
    late, writer = paged(store), paged(store, KEPT)
    keeper = keeper_of(late)
    fill(late, 0, 20)
    shoot_and_die(late)
    cuts = keeper.truncations(core_of(late))
    old = cuts[0].marker.base.index
    # A majority had the head: on the last root it would come after all heads below a newer one were deleted.
    wait_until(lambda: all(old in heads(store, root) for root in range(3)))
    for first in (20, 30):
        wanted = fill(writer, first, first + 10)
        shoot(writer)
    collect_until(writer, lambda: all(old not in heads(store, root) for root in range(3)))
    with pytest.raises(PageMissingError):
        keeper.cuts.begin(cuts)
    assert not has_marker(store, 0)
    assert late.commands() == wanted


def test_a_root_whose_marker_is_not_known_keeps_its_heads_and_no_others(make_store):
    store = make_store(3)
    writer = paged(store)
    fill(writer, 0, 20)
    shoot(writer)
    named = writer.ledger.state.snapshot.index
    wait_until(lambda: all(named in heads(store, root) for root in range(3)))
    for started in (paged(store), paged(store, KEPT)):  # while root 2 is away; the first one moves the other markers
        for what in ("get", "create"):
            started.faulty[2].fail_next(what, Fault.FAIL_BEFORE, times=10_000)
        fill(started, 20, 30)
        shoot(started)
    for first in range(30, 60, 10):
        wanted = fill(started, first, first + 10)
        shoot(started)
    wait_until(lambda: all(len(heads(store, root)) == 2 and named not in heads(store, root) for root in (0, 1)))
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
    # The root gets its marker call by call, and a process makes calls only while it appends or reads.
    wait_until(lambda: has_marker(store, 2) or wanted.append(fill(back, len(wanted), len(wanted) + 1)[-1]))
    assert heads(store, 2)
    assert cannot_list(paged(store, replace(BY_HAND, read_only=True))).commands() == wanted


@pytest.mark.guarantee("G6")
def test_who_holds_a_newer_head_that_is_not_decided_deletes_no_page_of_the_decided_one(make_store):
    """It slept until the snapshot that it knew was gone, and took the newest head. Its writer may be dead by now."""
    store = make_store(3)
    writer = store.process(KEPT, MergingState())
    for first in (0, 10):
        fill(writer, first, first + 10)
        shoot(writer)
    collect_until(writer, lambda: all(len(heads(store, root)) == 1 for root in range(3)), "only the newest")
    sleeper = store.process(KEPT, MergingState())
    sleeper.ledger.refresh()
    for first in (20, 30):
        fill(writer, first, first + 10)
        shoot(writer)
    writer.ledger.collect()
    needed = set(writer.ledger.state.page_names())
    collect_until(writer, lambda: has_its_pages_only(store, writer))
    wanted = fill(writer, 40, 50)
    store_and_die(writer)
    assert sleeper.commands() == wanted
    assert keeper_of(sleeper).stats.restored == 2, "from the head that is not decided"
    sleeper.ledger.collect()
    assert all(needed <= pages(store, root) for root in range(3))


def test_a_process_without_the_right_to_delete_says_so_once(make_store, caplog, monkeypatch):
    """A coordinator deletes for it: the page of least privilege gives a producer no right to."""
    store = make_store(1)
    writer = paged(store, replace(BY_HAND, snapshot_entry_count_min=1, snapshot_first_entry_count_min=1,
                                  snapshot_rest_factor=0))  # fmt: skip

    def refuse(key: str) -> None:
        raise RetriableError(ErrorCode.REPLOG_STORE_REFUSED, "no right to delete.")

    monkeypatch.setattr(writer.counting[0], "delete", refuse)
    monkeypatch.setattr(logs, "REFUSALS", logs.Once())  # else an earlier test may have reported it
    stats = keeper_of(writer).stats
    numbers = itertools.count()

    def is_written() -> bool:
        writer.append(command(next(numbers)))
        return stats.written > 8

    wait_until(is_written)
    said = [message for message in caplog.messages if "REPLOG_STORE_REFUSED" in message]
    assert 0 < len(said) <= 3, caplog.text  # of a journal, of heads, of pages


class RestingClock(SystemClock):
    """Notes each rest instead of taking it."""

    def __init__(self) -> None:
        self.rests_ms: list[float] = []

    def sleep_ms(self, duration_ms: float) -> None:
        self.rests_ms.append(duration_ms)


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_truncation_behind_a_commit_rests_unless_it_is_far_behind(make_store, monkeypatch, root_count):
    store, clock = make_store(root_count), RestingClock()
    writer = paged(store, BY_HAND, clock)
    keeper = keeper_of(writer)
    for first, records_max in ((0, snapshot_io.REST_RECORDS_MAX), (40, 5)):
        monkeypatch.setattr(snapshot_io, "REST_RECORDS_MAX", records_max)
        fill(writer, first, first + 40)
        shoot_and_die(writer)
        clock.rests_ms.clear()
        deleted = keeper.stats.deleted
        keeper.cuts.begin(keeper.truncations(core_of(writer), is_asked=True))
        keeper.cuts.finish()
        deleted = keeper.stats.deleted - deleted
        assert deleted > 5 * root_count
        assert clock.rests_ms == ([snapshot_io.REST_MS] * deleted if first == 0 else [])
