"""The states of a data object on its way, and the transitions between them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from spark_replog.ids import ObjectId
from spark_replog.log.model import DataObject
from spark_replog.write.data_request import OPEN, TRANSITIONS, DataRequest, RequestState
from spark_replog.write.producer_batch import Destination

ARCHITECTURE = Path(__file__).parents[3] / "docs/architecture.md"
FINAL = {RequestState.ANSWERED, RequestState.FAILED, RequestState.DROPPED}


def request_in(state: RequestState) -> DataRequest:
    destination = Destination("ledger", 0, (0,), None, "none")
    made = DataRequest(0, destination, DataObject(ObjectId(0, "o"), 1, False, frozenset(), ()), (), [], [], 1, 0, {})
    made.state = state
    return made


@pytest.mark.skipif(not __debug__, reason="asserts an assertion")
@pytest.mark.parametrize(("before", "after"), list(product(RequestState, RequestState)))
def test_a_request_moves_along_the_table_only(before: RequestState, after: RequestState) -> None:
    request = request_in(before)
    if after in TRANSITIONS[before]:
        request.move_to(after)
        assert request.state is after
        return
    with pytest.raises(AssertionError):
        request.move_to(after)
    assert request.state is before


def test_every_state_is_reached_and_ends() -> None:
    reached = {RequestState.PUTTING}
    while more := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= more
    assert reached == set(RequestState) == set(TRANSITIONS)
    assert {state for state in RequestState if not TRANSITIONS[state]} == FINAL
    assert {state for state in RequestState if state not in OPEN} == {*FINAL, RequestState.PARKED}


def test_the_architecture_page_draws_the_table() -> None:
    section = ARCHITECTURE.read_text().partition("## The states of a data object")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^([A-Z_]+) +-> +([A-Z_, ]+)$", section, re.MULTILINE))
    drawn = {name: set(after.split(", ")) for name, after in rows.items()}
    assert drawn == {before.name: {state.name for state in after} for before, after in TRANSITIONS.items() if after}
