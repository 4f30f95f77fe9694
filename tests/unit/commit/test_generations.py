"""When a ledger's data generation moves on, and what the floor behind it refuses."""

from __future__ import annotations

from spark_replog.commit.retention import hurried_generation, next_generation
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    GenerationAdvance,
    IdentityKind,
    Outcome,
    ProducerIdentity,
    Section,
    TopicInit,
)

TOPIC = "a" * 32
DAY_MS = 86_400_000
LAG_MS = 7 * DAY_MS


class Life:
    """A ledger that is written to once a day."""

    def __init__(self):
        self.state = TopicLedgerState("L")
        self.entry(TopicInit(TOPIC, "orders", ((0,),), ()))

    def entry(self, command):
        (result,) = self.state.apply(self.state.applied_index + 1, encode_entry([encode_command(command)]))
        return result

    def append(self, day, generation, producer):
        identity = ProducerIdentity(producer, producer, 0, "", IdentityKind.ONE_SHOT)
        section = Section(TOPIC, 0, 1, 0, 8, 0, 0, 0)
        item = DataObject(ObjectId(generation, f"{producer}.arrow"), 8, False, frozenset({0}), (section,))
        return self.entry(Append(identity, "", "", day * DAY_MS, (item,))).outcome

    def round(self, day):
        advance = next_generation(self.state, day * DAY_MS, LAG_MS)
        if advance is not None:
            assert self.entry(advance).outcome is Outcome.APPLIED
        return advance


def test_a_generation_lasts_a_seventh_of_the_lag_and_the_floor_follows_a_lag_behind():
    life = Life()
    assert life.round(0) is None  # nobody has written
    advances = []
    for day in range(12):
        assert life.append(day, life.state.generations.newest, f"p{day}") is Outcome.APPLIED
        advances.append(life.round(day))
        assert life.round(day) is None  # once is enough, whoever asks again
    expected = [GenerationAdvance(number, max(0, number - 7), number * DAY_MS) for number in range(1, 9)]
    assert advances[:9] == [None, *expected]
    assert (life.state.generations.newest, life.state.generations.floor) == (11, 4)
    assert min(life.state.generations.began_ms) == 4
    # A writer of a generation below the floor is refused, as is a repeat of one that was forgotten.
    assert life.append(12, 3, "late") is Outcome.BELOW_FLOOR
    assert life.append(12, 0, "p0") is Outcome.BELOW_FLOOR
    assert life.append(12, 4, "slow") is Outcome.APPLIED


def test_a_ledger_that_nobody_writes_to_stays_as_it_is():
    life = Life()
    life.append(0, 0, "p")
    assert life.round(30) is None
    life.append(30, 0, "q")
    assert life.round(30) == GenerationAdvance(1, 0, 30 * DAY_MS)


def test_a_hurried_floor_spares_what_a_plan_of_the_last_hour_may_name():
    """Also in a ledger without appends for long: a generation is as old as the clock of its advance says."""
    life, hour_ms = Life(), 3_600_000
    life.append(0, 0, "p")
    now_ms = 30 * DAY_MS
    life.entry(hurried_generation(life.state, now_ms, hour_ms))
    assert (life.state.generations.newest, life.state.generations.floor) == (1, 0)
    assert life.state.generations.began_ms == {0: 0, 1: now_ms}
    assert hurried_generation(life.state, now_ms + 60_000, hour_ms) is None, "it gives nothing free, again and again"
    life.entry(hurried_generation(life.state, now_ms + hour_ms - 1, hour_ms))
    assert (life.state.generations.newest, life.state.generations.floor) == (2, 0)
    life.entry(hurried_generation(life.state, now_ms + hour_ms, hour_ms))
    assert (life.state.generations.newest, life.state.generations.floor) == (2, 1)
    assert hurried_generation(life.state, now_ms, 0) == GenerationAdvance(3, 3, now_ms)
