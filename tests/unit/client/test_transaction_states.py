"""The states of a transaction: the table, and its picture in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from spark_replog.client.transactions import TRANSITIONS, TransactionState

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_every_state_is_reached_and_only_a_fenced_producer_stays_where_it_is() -> None:
    reached = {TransactionState.READY}
    while more := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= more
    assert reached == set(TransactionState) == set(TRANSITIONS)
    assert [state for state in TransactionState if not TRANSITIONS[state]] == [TransactionState.FATAL]


def test_the_documentation_draws_these_transitions() -> None:
    text = ARCHITECTURE.read_text().partition("## The states of a transaction")[2].partition("\n\n")[2]
    lines = re.findall(r"^([A-Z_]+) +-> ([A-Z_, ]+)$", text.partition("\n## ")[0], re.MULTILINE)
    drawn = {before: set(after.split(", ")) for before, after in lines}
    assert drawn == {before.name: {state.name for state in after} for before, after in TRANSITIONS.items() if after}
