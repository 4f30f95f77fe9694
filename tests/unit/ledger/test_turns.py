"""Who waits for whom: no clock and no storage, only what one process has learned from the journals."""

from __future__ import annotations

import pickle
import random

import pytest

from spark_replog.ledger.record import Epoch
from spark_replog.ledger.turns import AT_WORK_TURNS, LOST_TURNS_MAX, PATIENT_TURNS, RIVAL_MS, TURN_OPERATIONS, Turns
from spark_replog.ledger.types import LedgerSettings

OWN, OPERATION_MS = b"own", 2.0
TURN_MS = TURN_OPERATIONS * OPERATION_MS
NAMES = [b"a", b"b", b"c"]


@pytest.fixture
def turns():
    """Three rivals have just claimed, and were served in the order of their names; then this process had to wait."""
    made = Turns(LedgerSettings(), OWN, random.Random(1))
    for number, name in enumerate(NAMES):
        made.on_claim(name, 1_000.0)
        made.on_entry(name, number, 1_000.0)
    return made


def due_ms(turns, now_ms, rival=None):
    return turns.due_ms(rival, now_ms, OPERATION_MS)


def crowd(turns):
    """Let a write wait, so that the next one takes its turn."""
    turns.wait_ms(1_000.0, OPERATION_MS)
    turns.begin()


def test_a_write_without_rivals_at_work_claims_at_once(turns):
    turns.begin()
    assert due_ms(turns, 1_000.0) == 1_000.0


def test_who_was_served_last_leaves_a_turn_to_each_one_before_it(turns):
    turns.on_entry(OWN, 3, 1_000.0)
    crowd(turns)
    assert due_ms(turns, 1_000.0) == 1_000.0 + 3 * TURN_MS
    for number, name in enumerate(NAMES):  # each is served and is behind us then
        at_ms = 1_010.0 + number
        turns.on_entry(name, 4 + number, at_ms)
        assert due_ms(turns, at_ms) == at_ms + (2 - number) * TURN_MS


def test_who_was_never_served_goes_first(turns):
    crowd(turns)
    assert due_ms(turns, 1_000.0) == 1_000.0
    turns.on_claim(b"new", 1_000.0)  # of two that were not, the smaller name
    crowd(turns)
    assert due_ms(turns, 1_000.0) == 1_000.0 + TURN_MS


def test_rivals_that_ended_are_not_waited_for_without_end(turns):
    """Their turn is measured from the newest entry, which another process's next one moves on and on."""
    turns.on_entry(OWN, 3, 1_000.0)
    turns.on_claim(b"busy", 1_000.0)
    crowd(turns)
    now_ms, index = 1_000.0, 4
    while (until_ms := due_ms(turns, now_ms)) > now_ms:
        now_ms, index = min(until_ms, now_ms + 3.0), index + 1
        turns.on_entry(b"busy", index, now_ms)
        assert now_ms < 1_000.0 + 5 * PATIENT_TURNS * TURN_MS
    assert now_ms >= 1_000.0 + 2 * TURN_MS


def test_a_rival_that_claimed_long_ago_does_not_count(turns):
    turns.on_entry(OWN, 3, 1_000.0)
    crowd(turns)
    assert not turns.is_alone(1_000.0, OPERATION_MS)
    later_ms = 1_000.0 + RIVAL_MS
    assert turns.is_alone(later_ms, OPERATION_MS)
    assert due_ms(turns, later_ms) == later_ms


def test_rivals_that_write_now_and_then_are_not_waited_for(turns):
    """Of writers without a pause the last three would have claimed within three turns each."""
    turns.on_entry(OWN, 3, 1_000.0)
    crowd(turns)
    now_ms = 1_000.0 + 400.0
    turns.on_entry(b"d", 4, now_ms)
    assert due_ms(turns, now_ms) == now_ms


def test_a_claim_without_an_entry_holds_up_the_others_for_a_bounded_time(turns):
    turns.begin()
    dead, now_ms = Epoch(9, b"a"), 1_000.0
    while (until_ms := due_ms(turns, now_ms, dead)) > now_ms:
        now_ms = until_ms
        assert now_ms < 2_000.0
    assert now_ms >= 1_000.0 + AT_WORK_TURNS * 3 * TURN_MS
    assert due_ms(turns, now_ms, Epoch(10, b"b")) > now_ms  # another's claim has a time of its own


def test_where_nobody_was_served_losers_draw_how_long_they_leave_to_those_that_no_journal_shows(turns):
    drawn = set()
    for _ in range(5):
        turns.on_lost()
        drawn.add(round(turns.wait_ms(1_000.0, OPERATION_MS), 3))
    assert len(drawn) > 1
    assert max(drawn) <= LOST_TURNS_MAX * TURN_MS
    turns.on_entry(OWN, 3, 1_000.0)
    turns.begin()
    turns.on_lost()
    assert turns.wait_ms(1_000.0, OPERATION_MS) == 3 * TURN_MS - OPERATION_MS


def test_no_wait_is_longer_than_the_settings_say(turns):
    turns.on_entry(OWN, 3, 1_000.0)
    crowd(turns)
    limit_ms = LedgerSettings().claim_backoff_max_ms
    assert turns.wait_ms(1_000.0, 10_000.0) == 10_000.0  # a look takes an operation
    turns.begin()
    assert turns.due_ms(None, 1_000.0, 10_000.0) == 1_000.0 + limit_ms


def test_processes_that_are_gone_take_no_memory():
    turns = Turns(LedgerSettings(), OWN, random.Random(1))
    for number in range(5_000):
        name = b"%d" % number
        turns.on_claim(name, number * 10.0)
        turns.on_entry(name, number, number * 10.0)
        turns.is_alone(number * 10.0, OPERATION_MS)
    assert len(pickle.dumps(turns)) < 20_000  # of 200 rivals, not of 5,000
