"""A root comes back, and then another goes: each majority can go on, whatever was decided while a root was away."""

from __future__ import annotations

import pytest

from tests.faulty_store import Fault
from tests.unit.ledger.conftest import Process, Store
from tests.unit.ledger.snapshot_setup import BY_HAND, KEPT, command, fill, paged, shoot


def returned(store: Store, settings, *, entry_count: int = 5, shots: int = 1) -> Process:
    """Let root 1 miss entries and the snapshots after them, and come back; then root 0 goes. Return a new process."""
    writer = paged(store, settings)
    fill(writer, 0, 20)
    shoot(writer)
    fill(writer, 20, 24)
    store.take_away(1)
    for _ in range(shots):
        start = len(writer.commands())
        fill(writer, start, start + entry_count)
        shoot(writer)
    store.bring_back(1)
    store.take_away(0)
    return paged(store, settings)


@pytest.mark.parametrize("settings", [KEPT, BY_HAND], ids=["whole journals", "cut journals"])
@pytest.mark.parametrize("shots", [1, 2, 3])
def test_a_majority_without_the_root_that_proves_the_snapshot_goes_on(make_store, settings, shots):
    store = make_store(3)
    cold = returned(store, settings, shots=shots)
    count = 24 + 5 * shots
    assert cold.commands() == [command(number) for number in range(count)]
    assert cold.append(command(count)).result == "applied"
    store.take_away(2)
    store.bring_back(0)
    last = paged(store, settings)
    assert last.commands() == [command(number) for number in range(count + 1)], "root 1 has all that it lacked"
    assert last.append(command(count + 1)).result == "applied"


def test_a_process_that_may_not_list_goes_on_as_well(make_store):
    """It begins with the marker of the one root that has the entries, which proves the snapshot that it names."""
    store = make_store(3)
    cold = returned(store, BY_HAND)
    for root in cold.faulty:
        root.fail_next("list_keys", Fault.REFUSE, times=1000)
    assert cold.append(command(29)).result == "applied"
