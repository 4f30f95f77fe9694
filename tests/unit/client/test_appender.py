"""An append is repeated as it is until its answer is known, or its time or its retries are over."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark_replog.client.committer import Appender
from spark_replog.commit.append_request import ProduceResponse
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import AuthorizationError, ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import ObjectId
from spark_replog.log.model import Append, DataObject, IdentityKind, PartitionResponse

AWAY = RetriableError(ErrorCode.REPLOG_NO_QUORUM, "the roots are away. Try again.")
UNKNOWN = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer. Try again.")
UNREADABLE = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS, "its file is gone. Bring it back.", unreadable=1)
DENIED = AuthorizationError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed. Ask for the right.")
REFUSED = ReplogError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap. Send what is missing.")
OBJECT = DataObject(ObjectId(0, "o.arrow"), 10, False, frozenset({0}), ())


class Manager:
    """Answers what the test says, and the last of it again and again."""

    def __init__(self, *errors: ReplogError | None) -> None:
        self.errors = errors
        self.asked: list[Append] = []
        self.atomic: list[bool] = []

    def append_records(self, requests: Any) -> Any:
        ((ledger_id, request),) = requests.items()
        error = self.errors[min(len(self.asked), len(self.errors) - 1)]
        self.asked.append(request.append)
        self.atomic.append(request.is_atomic)
        return {ledger_id: ProduceResponse(error, None)}


class Waits:
    """Notes the pauses instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


def appender_of(clock: Any, manager: Manager, retries: int = 3) -> tuple[Appender, Waits]:
    config = ProducerConfig(retries=retries, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    made = Appender(manager, config, clock, principal="User:t", client_id="c", random_source=random.Random(0))  # type: ignore[arg-type]
    made._stopped = waits = Waits()  # type: ignore[assignment]
    return made, waits


def ask(clock: Any, manager: Manager, retries: int = 3, left_ms: int = 60_000) -> tuple[ReplogError | None, Waits]:
    made, waits = appender_of(clock, manager, retries)
    append = made.make_append([OBJECT], [], "p", IdentityKind.ONE_SHOT)
    answer = made.append("L", append, clock.monotonic_ms() + left_ms, is_atomic=False)
    assert manager.asked == [append] * len(manager.asked)
    return answer.error, waits


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_it_is_repeated_as_often_as_retries_says_with_pauses_that_double(clock: Any, retries: int) -> None:
    manager = Manager(AWAY)
    error, waits = ask(clock, manager, retries)
    assert error is AWAY
    assert len(manager.asked) == retries + 1
    for number, seconds in enumerate(waits.seconds):
        assert 0.8 <= seconds / (0.1 * 2**number) <= 1.2
    assert len(waits.seconds) == retries


def test_it_is_not_repeated_where_the_pause_alone_would_take_the_time_that_is_left(clock: Any) -> None:
    manager = Manager(AWAY)
    assert ask(clock, manager, left_ms=80)[0] is AWAY
    assert len(manager.asked) == 1


@pytest.mark.parametrize(
    ("errors", "told", "count"),
    [
        ((AWAY, None), None, 2),
        ((REFUSED,), REFUSED, 1),
        ((DENIED,), DENIED, 1),
        ((UNKNOWN, AWAY), UNKNOWN, 4),
        ((UNKNOWN, DENIED), UNKNOWN, 3),  # a right that was taken since says nothing of the first attempt
        ((UNKNOWN, REFUSED), REFUSED, 3),  # the log looks for a repetition first
        ((UNREADABLE, None), UNREADABLE, 1),  # the rows go into another object
        ((UNKNOWN, UNREADABLE, None), None, 3),  # but not while they may be in the log
    ],
)
def test_what_is_told_in_the_end(
    clock: Any, errors: tuple[ReplogError | None, ...], told: ReplogError | None, count: int
) -> None:
    manager = Manager(*errors)
    assert ask(clock, manager)[0] is told
    assert len(manager.asked) == count


def test_a_partition_that_is_refused_after_an_attempt_without_an_answer_is_told_that_it_is_unknown(clock: Any) -> None:
    places = ("topic", 0), ("topic", 1)
    responses = [
        ProduceResponse(UNKNOWN, None, dict.fromkeys(places, PartitionResponse(UNKNOWN))),
        ProduceResponse(DENIED, None, dict.fromkeys(places, PartitionResponse(DENIED))),
        ProduceResponse(
            None, None, dict(zip(places, (PartitionResponse(None, 5), PartitionResponse(DENIED)), strict=True))
        ),
    ]
    manager = Manager()
    manager.append_records = lambda requests: {"L": responses.pop(0)}  # type: ignore[method-assign]
    made, _ = appender_of(clock, manager)
    append = made.make_append([OBJECT], [], "p", IdentityKind.ONE_SHOT)
    answer = made.append("L", append, clock.monotonic_ms() + 60_000, is_atomic=False)
    assert answer.error is None
    assert [answer.responses[place].error for place in places] == [None, UNKNOWN]


@pytest.mark.parametrize(
    ("errors", "whole"),
    [
        ((AWAY, UNKNOWN, AWAY, None), [False, False, True, True]),
        ((UNKNOWN, REFUSED), [False, True, False]),
        ((UNKNOWN, DENIED, AWAY, None), [False, True, False, True]),
    ],
)
def test_an_append_that_may_be_in_the_log_is_repeated_as_a_whole_unless_it_is_refused_for_good(
    clock: Any, errors: tuple[ReplogError | None, ...], whole: list[bool]
) -> None:
    manager = Manager(*errors)
    made, _ = appender_of(clock, manager)
    append = made.make_append([OBJECT], [], "p", IdentityKind.ONE_SHOT)
    made.append("L", append, clock.monotonic_ms() + 60_000, is_atomic=False)
    assert manager.atomic == whole
