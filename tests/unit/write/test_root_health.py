"""Which roots get puts, by what was learned about them."""

from __future__ import annotations

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.write.transport import AWAY_MS, PutResult, RootHealth

STALE = RetriableError(ErrorCode.REPLOG_ROOT_STALE, "gone.")
LOST = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "lost.")


def answered(
    health: RootHealth, broker_id: int, error: ReplogError | None = None, now_ms: int = 5, *, is_checked: bool = False
) -> bool:
    return health.on_answered(PutResult(0, broker_id, 1, is_checked, error), now_ms)


def test_a_slow_root_is_left_out_until_it_takes_an_object() -> None:
    health = RootHealth()
    health.on_sent(1)
    assert health.on_missed(1, 100)
    assert not health.on_missed(1, 101)
    assert health.quick([0, 1, 2], 200) == [0, 2]
    assert health.able([0, 1, 2], 200) == [0, 1, 2]
    assert answered(health, 1)
    assert health.quick([0, 1, 2], 200) == [0, 1, 2]


def test_a_slow_root_is_tried_again_after_a_while_unless_a_put_is_unanswered() -> None:
    health = RootHealth()
    health.on_sent(1)
    health.on_missed(1, 100)
    assert health.quick([1], 100 + AWAY_MS) == []
    answered(health, 1, LOST)
    assert health.quick([1], 99 + AWAY_MS) == []
    assert health.quick([1], 100 + AWAY_MS) == [1]


def test_an_error_makes_a_suspect_whose_next_put_counts_only_after_a_check() -> None:
    health = RootHealth()
    assert not health.on_sent(0)
    assert not answered(health, 0, LOST)
    assert health.on_sent(0)
    assert not answered(health, 0)
    assert health.on_sent(0)
    assert answered(health, 0, is_checked=True)
    assert not health.on_sent(0)


def test_a_silent_root_is_a_suspect() -> None:
    health = RootHealth()
    health.on_silence(0)
    assert health.on_sent(0)


def test_a_stale_root_is_out_until_it_is_tried_again() -> None:
    health = RootHealth()
    health.on_sent(1)
    answered(health, 1, STALE)
    assert health.out == {1: STALE}
    assert health.able([0, 1, 2], 5) == [0, 2]
    assert health.able([0, 1, 2], 4 + AWAY_MS) == [0, 2]
    assert health.able([0, 1, 2], 5 + AWAY_MS) == [0, 1, 2]
    assert health.out == {}
