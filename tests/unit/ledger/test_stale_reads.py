"""Stale reads of a ledger: one get for each root, and no cut or row is missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_replog.ledger.goal import GoalKind
from spark_replog.ledger.root import Completion, Read
from spark_replog.storage.object_store import Buffer, ObjectStore
from tests.faulty_store import Fault
from tests.manual_clock import ManualClock
from tests.unit.ledger.conftest import Process, Store
from tests.unit.ledger.snapshot_setup import BY_HAND, core_of, fill, keeper_of, paged, shoot, shoot_and_die


@pytest.mark.parametrize("root_count", [1, 3])
def test_a_process_that_looks_within_five_seconds_misses_no_cut(make_store, root_count):
    store, clock = make_store(root_count), ManualClock()
    settings = replace(BY_HAND, marker_check_ms=5_000, read_only=True)
    writer = paged(store, replace(BY_HAND, marker_check_ms=5_000), clock)
    keeper = keeper_of(writer)

    def cut() -> list[int]:
        shoot_and_die(writer)
        truncations = keeper.truncations(core_of(writer))
        keeper.cuts.begin(truncations)
        keeper.cuts.finish()
        return [truncation.marker.position for truncation in truncations]

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


def read_stale(process: Process):
    return process.ledger.refresh(may_be_stale=True)


def paused_watcher(store: Store) -> tuple[Process, Process, ManualClock]:
    """A writer of 20 commands, and who has watched them; for longer than a cut leaves, whatever follows."""
    clock = ManualClock()
    writer, watcher = paged(store), paged(store, replace(BY_HAND, marker_check_ms=5_000), clock)
    wanted = fill(writer, 0, 20)
    assert read_stale(watcher).commands == wanted
    clock.sleep_ms(5_000)
    watcher.reset()
    return writer, watcher, clock


def asked(process: Process) -> list[list[str]]:
    """Per root, what its gets were for."""
    return [[key.split("/")[2] for verb, key in root.calls if verb == "get"] for root in process.counting]


def test_a_stale_read_after_a_pause_is_one_get_for_each_root_and_misses_no_cut(make_store):
    writer, watcher, clock = paused_watcher(make_store(3))
    seen = read_stale(watcher).commands
    assert asked(watcher) == [["markers"], ["journal"], ["journal"]] and len(seen) == 20
    clock.sleep_ms(5_000)
    watcher.reset()
    read_stale(watcher)
    assert asked(watcher) == [["journal"], ["markers"], ["journal"]], "the next root's turn"
    wanted = fill(writer, 20, 60)
    shoot(writer)
    clock.sleep_ms(5_000)
    assert read_stale(watcher).commands == wanted


def test_a_stale_read_finds_what_the_root_in_turn_does_not_hold(make_store):
    writer, watcher, _ = paused_watcher(make_store(3))
    writer.faulty[0].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)
    assert read_stale(watcher).commands == wanted


def test_a_stale_read_of_something_new_reads_the_root_in_turn_too(make_store):
    writer, watcher, _ = paused_watcher(make_store(3))
    writer.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)
    assert read_stale(watcher).commands == wanted, "one tail alone does not show the newest entry decided"


def test_a_stale_read_that_lacks_a_tail_reads_all_of_them(make_store):
    store = make_store(3)
    writer, watcher = paged(store), paged(store)
    read_stale(watcher)
    writer.faulty[2].fail_next("create", Fault.FAIL_BEFORE, times=10_000)
    wanted = fill(writer, 20, 25)[20:]
    core_of(watcher).roots[0].marker_at_ms = -1.0  # its turn
    watcher.faulty[1].fail_next("get", Fault.FAIL_BEFORE, times=10_000)
    assert read_stale(watcher).commands == wanted, "only the root in turn holds it among those that answer"


def test_stale_reads_of_one_root_are_one_get_each_and_find_rows_and_cuts_at_the_second(make_store):
    writer, watcher, clock = paused_watcher(make_store(1))
    for purpose in ("journal", "markers", "journal", "markers"):
        watcher.reset()
        assert len(read_stale(watcher).commands) == 20
        assert asked(watcher) == [[purpose]]
        clock.sleep_ms(5_000)
    for first in (20, 25):  # whoever writes all the time is seen at once
        wanted = fill(writer, first, first + 5)
        assert read_stale(watcher).commands == wanted
        clock.sleep_ms(5_000)
    watcher.reset()
    read_stale(watcher)
    assert asked(watcher) == [["journal"]]
    clock.sleep_ms(5_000)
    fill(writer, 30, 35)
    assert len(read_stale(watcher).commands) == 30, "the marker alone"
    wanted = fill(writer, 35, 70)
    shoot(writer)
    for _ in range(2):
        clock.sleep_ms(5_000)
        seen = read_stale(watcher).commands
    assert seen == wanted


class CutAfterMarker:
    """Cuts a journal once more when a process has found its newest marker, before it reads on from there."""

    def __init__(self, store: ObjectStore, cut: Callable[[], object]) -> None:
        self._store = store
        self._cut: Callable[[], object] | None = cut
        self._has_found = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        content = self._store.get(key, start=start, size_bytes=size_bytes)
        if "/markers/" in key:
            if content is None and self._has_found and self._cut is not None:
                cut, self._cut = self._cut, None
                cut()
            self._has_found |= content is not None
        return content


@pytest.mark.parametrize("read", [read_stale, Process.commands])
def test_a_cut_between_a_marker_and_the_read_from_there_is_no_damage_and_hides_nothing(make_store, read):
    """The record that the marker names is gone, and the marker was looked for just now."""
    store = make_store(1)
    writer, watcher = paged(store), paged(store, replace(BY_HAND, marker_check_ms=5_000))
    fill(writer, 0, 20)
    read(watcher)
    fill(writer, 20, 30)
    shoot(writer)
    wanted = []

    def cut() -> None:
        wanted.extend(fill(writer, 30, 70))
        shoot(writer)

    faulty = watcher.faulty[0]
    faulty.store = CutAfterMarker(faulty.store, cut)
    watcher.reset()
    for _ in range(2):  # the tail, then the marker
        core_of(watcher).roots[0].marker_at_ms = None  # as if it was looked for five seconds ago
        seen = read(watcher)
    assert wanted and getattr(seen, "commands", seen) == wanted
    assert ("get", "replog.json") not in watcher.counting[0].calls, "a root with an error is checked first"


def test_a_late_answer_of_a_stale_read_does_not_count_as_a_read_of_the_root(make_store):
    _, watcher, clock = paused_watcher(make_store(3))
    core = core_of(watcher)
    core.begin(GoalKind.STALE_READ, clock.monotonic_ms())
    (marker_look,) = [operation for operation in core.poll(clock.monotonic_ms()) if operation.root == 0]
    assert marker_look.limit == 0 and marker_look.checks_marker
    core.begin(GoalKind.READ, clock.monotonic_ms())
    assert not [operation for operation in core.poll(clock.monotonic_ms()) if operation.root == 0], "it is busy"
    core.complete(Completion(marker_look), clock.monotonic_ms())
    (again,) = [operation for operation in core.poll(clock.monotonic_ms()) if operation.root == 0]
    assert isinstance(again, Read) and again.limit > 0
