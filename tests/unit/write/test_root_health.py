"""Which roots get puts, by what was learned about them."""

from __future__ import annotations

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.write.transport import AWAY_MS, RootHealth

STALE = RetriableError(ErrorCode.REPLOG_ROOT_STALE, "gone.")
LOST = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "lost.")


def test_a_laggard_is_left_out_until_it_takes_something() -> None:
    health = RootHealth()
    health.on_sent(1)
    health.on_missed(1, 100)
    assert health.quick([0, 1, 2], 200) == [0, 2]
    assert health.able([0, 1, 2], 200) == [0, 1, 2]
    health.on_answered(1)
    health.on_held(1)
    assert health.quick([0, 1, 2], 200) == [0, 1, 2]


def test_a_laggard_is_tried_again_after_a_while_unless_something_is_unanswered() -> None:
    health = RootHealth()
    health.on_sent(1)
    health.on_missed(1, 100)
    assert health.quick([1], 100 + AWAY_MS) == []
    health.on_answered(1)
    assert health.quick([1], 99 + AWAY_MS) == []
    assert health.quick([1], 100 + AWAY_MS) == [1]


def test_an_error_makes_a_suspect_and_a_stale_root_is_out() -> None:
    health = RootHealth()
    health.on_error(0, LOST, 5)
    health.on_error(1, STALE, 5)
    assert (health.is_suspect(0), health.is_suspect(1), health.is_suspect(2)) == (True, True, False)
    assert health.out == {1: STALE}
    assert health.able([0, 1, 2], 5) == [0, 2]
    assert health.able([0, 1, 2], 5 + AWAY_MS) == [0, 1, 2]
    health.on_checked(1)
    assert not health.is_suspect(1)


def test_a_root_is_reported_once() -> None:
    health = RootHealth()
    assert [health.is_first_report(1), health.is_first_report(1), health.is_first_report(2)] == [True, False, True]
