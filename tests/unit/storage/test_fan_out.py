"""Answers of several roots at once: enough of them are enough, and what cannot come is not waited for."""

from __future__ import annotations

import math
from concurrent.futures import Future

import pytest

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.quorum import majority_of
from spark_replog.storage import fan_out
from spark_replog.storage.fan_out import answers_of
from tests.manual_clock import ManualClock

AWAY = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "away.")


def calls(*outcomes):
    """Return a call per outcome: an answer, an error, or None for one that hangs."""
    made = {}
    for root, outcome in enumerate(outcomes):
        made[root] = future = Future()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(outcome)
    return made


@pytest.fixture
def waits(monkeypatch):
    """The waits asked for, in seconds; none of them takes time, but a clock moves."""
    clock, real, asked = ManualClock(), fan_out.wait, []

    def wait(futures, timeout, return_when="ALL_COMPLETED"):
        asked.append(timeout)
        done, open_ = real(futures, 0, return_when)
        clock.time_ms += 0 if done else timeout * 1000
        return done, open_

    monkeypatch.setattr(fan_out, "wait", wait)
    return clock, asked


def test_a_majority_that_answers_is_not_kept_waiting_by_a_root_that_hangs(waits):
    clock, asked = waits
    answers = answers_of(calls("a", None, "c"), 3_000, needed_count=majority_of(3), clock=clock)
    assert answers.by_root == {0: "a", 2: "c"} and list(answers.silent) == [1] and not answers.errors
    assert asked == [3.0]


def test_once_too_few_can_answer_nothing_is_waited_for(waits):
    clock, asked = waits
    answers = answers_of(calls(AWAY, None, AWAY), 3_000, needed_count=2, grace_ms=500, clock=clock)
    assert answers.errors == {0: AWAY, 2: AWAY} and answers.reasons.count("away") == 2
    assert asked == [3.0], "neither for the root that hangs, nor a moment for the others"


def test_the_others_get_a_moment_once_there_are_enough_answers_that_count(waits):
    clock, asked = waits
    answers = answers_of(
        calls("", "b", None), 3_000, needed_count=1, counts=lambda answer: answer != "", grace_ms=500, clock=clock
    )
    assert answers.by_root == {0: "", 1: "b"}
    assert asked == [3.0, 0.5]
    asked.clear()
    answers_of(calls("", None), 3_000, needed_count=1, counts=lambda answer: answer != "", clock=clock)
    assert asked == [3.0, 3.0, 0.0], "the other one is waited for until the time is over"


def test_the_time_begins_again_while_the_calls_make_progress(waits):
    clock, asked = waits
    moved = iter([0, 1, 2, 2])
    answers = answers_of(calls(None), 1_000, progress=lambda: next(moved), clock=clock)
    assert list(answers.silent) == [0]
    assert sum(asked) == 3.0


def test_without_a_number_all_are_waited_for_also_for_ever(waits):
    clock, asked = waits
    assert answers_of(calls("a", AWAY, "c"), math.inf, clock=clock).by_root == {0: "a", 2: "c"}
    assert max(asked) == fan_out.WAIT_MS_MAX / 1000


def test_an_error_that_is_no_storage_error_is_raised():
    with pytest.raises(ZeroDivisionError):
        answers_of(calls("a", ZeroDivisionError()), 0)


def test_any_two_majorities_share_one():
    assert [majority_of(count) for count in range(1, 6)] == [1, 2, 2, 3, 3]
