"""A writer sleeps with one of its two creates sent, a root is rebuilt meanwhile, and its other create wakes up there.

Its entry is on root 0 only. Others, who did not reach root 0, have decided another value for the index on roots 1 and
2. Then root 2 is lost and rebuilt: the position of the sleeper's create is free there. Only the marker that it looks
for after its create says that the journal is another one. So the rebuild must put one under each number that it may
look for.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spark_replog.errors import ReplogError
from spark_replog.ids import new_id
from spark_replog.ledger.journal_rebuild import JournalRebuild, copy_snapshots
from spark_replog.ledger.reader import REBUILD_ROUND_STEP
from spark_replog.storage.paths import journal_folder, ledger_folders
from spark_replog.storage.posix_store import PosixStore
from tests.faulty_store import Fault
from tests.unit.ledger.conftest import LEDGER_ID, Process, Store
from tests.unit.ledger.snapshot_setup import BY_HAND, KEPT, command, core_of, fill, has_marker, paged, shoot
from tests.waiting import wait_until

LOST = 2
REBUILDER = replace(KEPT, claim_round_step=REBUILD_ROUND_STEP)


class Gate:
    """A store whose creates of journal records wait while it is closed."""

    def __init__(self, store) -> None:
        self._store, self._opened, self.waiting, self.passed = store, threading.Event(), 0, 0
        self._opened.set()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def close(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def create(self, key, data, *, make_parent=False):
        if f"{journal_folder(LEDGER_ID)}" in key and not self._opened.is_set():
            self.waiting += 1
            assert self._opened.wait(60)
        outcome = self._store.create(key, data, make_parent=make_parent)
        self.passed += "/journal/" in key
        return outcome


def gated(process: Process) -> list[Gate]:
    gates = []
    for faulty in process.faulty:
        faulty.store = Gate(faulty.store)
        gates.append(faulty.store)
    return gates


def rebuild(store: Store, number: int, *, lists_fail: bool = False) -> None:
    """Lose a root and give it a new journal, as `replog store repair` does."""
    store.empty(LOST)
    for folder in ledger_folders(LEDGER_ID):
        (store.root_path(LOST) / folder).mkdir(parents=True)
    process = paged(store, REBUILDER)
    if lists_fail:
        for root in (0, 1):
            process.faulty[root].fail_next("list_keys", Fault.FAIL_BEFORE, key_part="/snapshots", times=1_000)
    process.append(b"rebuild%06d" % number)
    owned = process.ledger.owned_log(LOST, f"{number:012x}{new_id()[12:]}")
    stores = [PosixStore(f"file://{store.root_path(root)}", fsync=False) for root in range(3)]
    copy_snapshots(LEDGER_ID, stores[:LOST], stores[LOST])
    assert JournalRebuild(LEDGER_ID, "broker 2", stores[LOST], owned).run(lambda *_: None)
    (store.root_path(LOST) / "replog.json").write_text("2")


def is_counted(store: Store, sleeper: Process, wake) -> None:
    """Put the sleeper to sleep, let others decide its index, wake it by `wake`, and hold its answer against the log."""
    fill(sleeper, 100, 103)  # it owns the ledger, and appends without a read
    gates = gated(sleeper)
    for gate in gates[1:]:
        gate.close()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(sleeper.append, command(200))
        wait_until(lambda: gates[0].passed == 1 and gates[1].waiting == gates[2].waiting == 1)
        other = paged(store, KEPT)
        other.faulty[0].is_down = True
        assert other.append(command(300)).result == "applied"
        wake()
        looks = len(sleeper.counting[LOST].calls)
        gates[LOST].open()
        wait_until(lambda: gates[LOST].passed >= 1)
        wait_until(lambda: any("/markers/" in key for _, key in sleeper.counting[LOST].calls[looks:]))
        with_one = sleeper.ledger.ask(lambda state: list(state.commands)) if answer.done() else []
        gates[1].open()
        try:
            answer.result(timeout=120)
        except ReplogError as error:
            assert "OUTCOME" in error.code.name, error
            return
    truth = paged(store, replace(KEPT, read_only=True)).commands()
    assert command(300) in truth
    assert command(200) in truth
    assert truth[: len(with_one)] == with_one
    assert sleeper.commands() == truth


def test_a_create_that_wakes_up_on_a_root_that_was_rebuilt_twice_does_not_count(make_store):
    """The first rebuild put markers that the second one, which never read the root, knows nothing of."""
    store = make_store(3)
    fill(paged(store, KEPT), 0, 5)
    rebuild(store, 1)
    sleeper = paged(store, KEPT)
    sleeper.commands()
    assert core_of(sleeper).roots[LOST].floor.marker_no > 1
    is_counted(store, sleeper, lambda: rebuild(store, 2))


def test_a_create_that_wakes_up_on_a_root_that_was_rebuilt_three_times_does_not_count(make_store):
    store = make_store(3)
    fill(paged(store, KEPT), 0, 5)
    rebuild(store, 1)
    rebuild(store, 2)
    sleeper = paged(store, KEPT)
    sleeper.commands()
    is_counted(store, sleeper, lambda: rebuild(store, 3))


@pytest.mark.parametrize("lists_fail", [False, True])
def test_a_create_that_wakes_up_on_a_rebuilt_root_that_had_many_markers_does_not_count(make_store, lists_fail):
    """The rebuild may begin without a snapshot's head, which says how many there were."""
    store = make_store(3)
    writer = paged(store, BY_HAND)
    for number in range(8):
        fill(writer, 4 * number, 4 * number + 4)
        shoot(writer)
    assert has_marker(store, LOST)
    sleeper = paged(store, KEPT)
    sleeper.commands()
    wait_until(lambda: sleeper.commands() and core_of(sleeper).roots[LOST].floor.marker_no > 5)
    is_counted(store, sleeper, lambda: rebuild(store, 1, lists_fail=lists_fail))
