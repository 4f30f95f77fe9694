"""Cuts of journals beside commits and snapshots: nothing waits for thousands of deletions, or rests because of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_replog.ledger import snapshot_io
from spark_replog.storage.io_pool import IO_POOL, LANE_THREADS_MAX
from tests.manual_clock import ManualClock
from tests.unit.ledger.conftest import LEDGER_ID, Process, Store
from tests.unit.ledger.snapshot_setup import (
    BY_HAND,
    command,
    core_of,
    fill,
    heads,
    keeper_of,
    paged,
    pages,
    shoot_and_die,
)
from tests.waiting import wait_until

AT_ONCE = replace(
    BY_HAND,
    snapshot_entry_count_min=1,
    snapshot_first_entry_count_min=1,
    snapshot_rest_factor=0,
    truncate_record_count_min=16,
)


def before_each_record_deleted(process: Process, step: Callable[[], object]) -> None:
    """Do a step before a record of a journal is deleted."""
    for root in process.counting:

        def delete(key: str, plain: Callable[[str], None] = root.delete) -> None:
            if "/journal/" in key:
                step()
            plain(key)

        root.delete = delete


def markers(store: Store) -> list[int]:
    """How many markers each root has."""
    listings = [list(store.root_path(root).glob(f"ledgers/{LEDGER_ID}/markers/*")) for root in range(store.root_count)]
    return [sum(path.name.isdecimal() for path in paths) for paths in listings]


@pytest.mark.parametrize("root_count", [1, 3])
@pytest.mark.parametrize("step", ["truncate.before_marker", "truncate.delete"])
def test_snapshots_go_on_while_journals_are_cut_slowly(make_store, monkeypatch, root_count, step):
    store = make_store(root_count)
    writer, numbers, reached, released = paged(store, AT_ONCE), itertools.count(), [], threading.Event()
    stats = keeper_of(writer).stats

    def stop(name: str) -> None:
        if name == step and not released.is_set():
            reached.append(writer.ledger.state.snapshot.index)
            released.wait(60)

    monkeypatch.setattr(snapshot_io, "fault_point", stop)

    def appends_until(check: Callable[[], bool]) -> bool:
        def is_reached() -> bool:
            writer.append(command(next(numbers)))
            return check()

        return wait_until(is_reached)

    appends_until(lambda: len(reached) == root_count)
    decided = stats.decided
    appends_until(lambda: stats.decided > decided + 20)
    assert len(reached) == root_count, "one cut of a root at a time"
    assert max(markers(store)) <= 1
    assert stats.deleted == 0
    old = min(index for root in range(root_count) for index in heads(store, root))
    assert old <= min(reached) < writer.ledger.state.snapshot.index - 15, "the head that the markers name stays"
    released.set()
    wait_until(lambda: stats.deleted >= 16 * root_count)
    appends_until(lambda: min(markers(store)) > 1)  # the next cut follows
    keeper_of(writer).cuts.finish()
    end = next(numbers)
    assert paged(store).commands() == [command(number) for number in range(end)]


@pytest.mark.parametrize(
    ("is_far", "took_ms", "rest_ms"), [(True, 7, 70), (False, 7, 280), (False, 50, 1_000), (False, 900, 9_000)]
)
def test_a_process_rests_by_what_its_snapshot_took_and_not_by_its_cut(
    make_store, monkeypatch, is_far, took_ms, rest_ms
):
    monkeypatch.setattr(snapshot_io, "is_far", lambda _: is_far)
    work: list[Callable[[], object]] = []
    post_to = IO_POOL.post_to

    def post(lane: str, function: Callable[..., Any], *args: Any) -> None:
        if lane.startswith("snapshots of"):
            work.append(function)
        else:
            post_to(lane, function, *args)

    monkeypatch.setattr(IO_POOL, "post_to", post)
    store, clock, numbers = make_store(1), ManualClock(), itertools.count()
    writer, released = paged(store, replace(AT_ONCE, snapshot_rest_factor=10), clock), threading.Event()
    before_each_record_deleted(writer, lambda: released.wait(60) and clock.sleep_ms(60_000))
    create = writer.counting[0].create

    def create_slowly(key: str, *args: Any, **kwargs: Any) -> Any:
        if "/pages/" in key:
            clock.sleep_ms(took_ms)  # all that a snapshot takes here
        return create(key, *args, **kwargs)

    writer.counting[0].create = create_slowly

    def is_due() -> bool:
        writer.append(command(next(numbers)))
        return bool(work)

    ended_ms = 0.0
    while markers(store) == [0]:
        clock.sleep_ms(10**6)
        if is_due():
            released.clear()
            work.pop()()  # ends while the records are still there
            ended_ms = clock.time_ms
            released.set()
            keeper_of(writer).cuts.finish()
    assert keeper_of(writer).stats.deleted >= 16, "one minute each"
    clock.time_ms = ended_ms
    assert not is_due()
    clock.sleep_ms(rest_ms - 1)
    assert not is_due()
    clock.sleep_ms(1)
    assert is_due()


def test_a_commit_is_answered_although_no_thread_is_left_for_its_snapshot(make_store, monkeypatch):
    work: list[str] = []
    post_to = IO_POOL.post_to

    def post(lane: str, function: Callable[..., Any], *args: Any) -> None:
        if lane.startswith("snapshots of"):
            work.append(lane)
            raise RuntimeError("can't start new thread")
        post_to(lane, function, *args)

    monkeypatch.setattr(IO_POOL, "post_to", post)
    writer = paged(make_store(3), AT_ONCE)
    assert [writer.append(command(number)).result for number in range(3)] == ["applied"] * 3
    assert work


def test_a_root_that_hangs_for_long_does_not_collect_the_pages_of_every_snapshot(make_store):
    """They would stay in memory, and be stored one after another once the root is back."""
    store, numbers, released = make_store(3), itertools.count(), threading.Event()
    writer = paged(store, replace(AT_ONCE, truncate_record_count_min=10**6))
    hanging, create, asked = writer.counting[2], writer.counting[2].create, []

    def hang(key: str, *args: Any, **kwargs: Any) -> Any:
        if "/pages/" in key:
            asked.append(key)
            released.wait(60)
        return create(key, *args, **kwargs)

    hanging.create = hang

    def appends_until(check: Callable[[], bool]) -> bool:
        return wait_until(lambda: bool(writer.append(command(next(numbers)))) and check())

    appends_until(lambda: keeper_of(writer).stats.decided > 60)
    assert len(asked) == LANE_THREADS_MAX
    released.set()
    wait_until(lambda: len(pages(store, 2)) >= LANE_THREADS_MAX // 2)  # each page by two calls
    decided = keeper_of(writer).stats.decided
    appends_until(lambda: keeper_of(writer).stats.decided > decided + 3)
    wait_until(lambda: max(pages(store, 2)) in pages(store, 0), "it takes part again")
    assert len(asked) < 40


def test_a_cut_that_finds_the_marker_of_another_process_under_its_number_deletes_nothing(make_store):
    """The other marker may say that the journal begins earlier: the records from there on count."""
    store = make_store(3)
    first, second = paged(store), paged(store)
    fill(first, 0, 20)
    shoot_and_die(first)
    cuts = {"first": keeper_of(first).truncations(core_of(first), is_asked=True)}
    wanted = fill(second, 20, 60)
    shoot_and_die(second)
    cuts["second"] = keeper_of(second).truncations(core_of(second), is_asked=True)
    for one, other in zip(*cuts.values(), strict=True):
        assert one.marker_no == other.marker_no and one.marker.position < other.marker.position
    for process, name in ((first, "first"), (second, "second")):
        keeper_of(process).cuts.begin(cuts[name], is_hurried=True)
        keeper_of(process).cuts.finish()
    assert keeper_of(first).stats.deleted > 0 == keeper_of(second).stats.deleted
    for root, cut in enumerate(cuts["first"]):
        assert int(store.journal(root)[0].name) == cut.marker.position
    assert paged(store, replace(BY_HAND, read_only=True)).commands() == wanted


def test_a_root_that_lost_its_root_file_before_its_cut_gets_no_marker(make_store):
    """It may be an emptied bucket, or under repair: a rebuild puts the next marker there."""
    store = make_store(3)
    process = paged(store)
    fill(process, 0, 30)
    shoot_and_die(process)
    cuts = keeper_of(process).truncations(core_of(process), is_asked=True)
    assert [cut.root for cut in cuts] == [0, 1, 2]
    (store.root_path(2) / "replog.json").unlink()
    journal = store.journal(2)
    keeper_of(process).cuts.begin(cuts, is_hurried=True)
    keeper_of(process).cuts.finish()
    assert markers(store) == [1, 1, 0]
    assert store.journal(2) == journal


def test_the_head_of_a_marker_that_was_put_stays_until_the_marker_is_seen(make_store):
    process = paged(make_store(3))
    wanted = fill(process, 0, 30)
    shoot_and_die(process)
    keeper = keeper_of(process)
    cuts = keeper.truncations(core_of(process), is_asked=True)
    keeper.cuts.begin(cuts)
    keeper.cuts.finish()
    for _ in range(3):
        assert keeper.head_garbage(core_of(process)).named == {cuts[0].marker.base.index}
    assert process.commands() == wanted
    assert [root.floor.marker_no for root in core_of(process).roots] == [1, 1, 1]
    assert keeper.head_garbage(core_of(process)).named == {cuts[0].marker.base.index}, "now by the roots' own markers"
