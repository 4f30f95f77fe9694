"""Lag of one reader of one partition against a fold."""

from __future__ import annotations

import random

import pytest

from spark_replog.health.readers import lag_of
from spark_replog.health.store import describe
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    IdentityKind,
    LogStartAdvance,
    LogStartReason,
    ProducerIdentity,
    Section,
    TopicClose,
    TopicInit,
)

TOPIC = "a" * 32


@pytest.fixture
def state():
    """Sections of ten rows and 100 bytes, appended at seconds 100, 200 and 300."""
    made = TopicLedgerState("L")
    fold(made, TopicInit(TOPIC, "orders", ((0,),), ()))
    for number in (1, 2, 3):
        section = Section(TOPIC, 0, 10, 0, 100, 7, 0, 0)
        item = DataObject(ObjectId(0, f"{number}.arrow"), 100, False, frozenset({0}), (section,))
        identity = ProducerIdentity(f"{number}" * 32, "", 0, "", IdentityKind.ONE_SHOT)
        fold(made, Append(identity, "User:a", "", number * 100_000, (item,)))
    return made


def fold(state, *commands):
    results = state.apply(state.applied_index + 1, encode_entry([encode_command(command) for command in commands]))
    assert all(result.outcome.name == "APPLIED" for result in results), results


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, (30, 900_000, 300)),
        (9, (21, 900_000, 210)),
        (10, (20, 800_000, 200)),
        (29, (1, 700_000, 10)),
        (30, (0, 0, 0)),
        (35, (0, 0, 0)),
        (None, (None, None, None)),
    ],
)
def test_rows_age_and_bytes_of_what_is_not_read(state, position, expected):
    assert lag_of(state, TOPIC, 0, position, 1_000_000)[2:5] == expected


def test_rows_below_the_log_start_count_as_lag_but_not_as_age_or_bytes(state):
    fold(state, LogStartAdvance(TOPIC, LogStartReason.DELETE_RECORDS, ((0, 20),)))
    assert lag_of(state, TOPIC, 0, 5, 1_000_000)[:5] == (20, 30, 25, 700_000, 100)
    assert describe(state, TOPIC, "orders").size_bytes == 100
    fold(state, LogStartAdvance(TOPIC, LogStartReason.DELETE_RECORDS, ((0, 30),)))
    assert describe(state, TOPIC, "orders").size_bytes == 0


def test_a_clock_behind_the_log_makes_no_negative_age(state):
    assert lag_of(state, TOPIC, 0, 29, 5)[3] == 0
    assert lag_of(state, TOPIC, 0, 10, 5)[3] == 100_000  # by the newest entry


def test_what_does_not_exist_has_no_lag(state):
    assert lag_of(state, "b" * 32, 0, 0, 0) is None
    assert lag_of(state, TOPIC, 1, 0, 0) is None
    fold(state, TopicClose(TOPIC))
    assert lag_of(state, TOPIC, 0, 0, 0) is None


def test_a_topic_knows_its_size_and_its_last_append(state):
    health = describe(state, TOPIC, "orders")
    assert (health.row_count, health.size_bytes, health.traffic.last_append_ms) == (30, 300, 300_000)
    assert sum(rows for _, rows, _ in health.traffic.minutes) == 30


@pytest.mark.parametrize("seed", range(5))
def test_the_age_of_the_oldest_unread_row_is_exact_up_to_the_time_that_one_append_collects(seed):
    """Rows come at random times; an append takes those since the one before it, and knows its own time only."""
    rng = random.Random(seed)
    arrivals_ms = sorted(rng.sample(range(600_000), 400))
    log, appends_ms, first = TopicLedgerState("L"), [], 0
    fold(log, TopicInit(TOPIC, "orders", ((0,),), ()))
    while first < len(arrivals_ms):
        count = min(rng.randint(1, 30), len(arrivals_ms) - first)
        first += count
        append_ms = arrivals_ms[first - 1]
        section = Section(TOPIC, 0, count, 0, count, 7, append_ms, append_ms)
        item = DataObject(ObjectId(0, f"{first}.arrow"), count, False, frozenset({0}), (section,))
        fold(
            log,
            Append(
                ProducerIdentity(f"{first:032x}", "", 0, "", IdentityKind.ONE_SHOT), "User:a", "", append_ms, (item,)
            ),
        )
        appends_ms += [(append_ms, append_ms - arrivals_ms[first - count])] * count
    now_ms = 700_000
    for position, arrival_ms in enumerate(arrivals_ms):
        append_ms, span_ms = appends_ms[position]
        shown_ms = lag_of(log, TOPIC, 0, position, now_ms).lag_ms
        assert shown_ms == now_ms - append_ms, "exact since the append"
        assert 0 <= now_ms - arrival_ms - shown_ms <= span_ms
