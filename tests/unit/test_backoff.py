"""The one back-off of the project, and the one way to report a condition once."""

from __future__ import annotations

import pytest

from spark_replog.clock import ExponentialBackoff
from spark_replog.logs import Once


@pytest.mark.parametrize(("draw", "pauses"), [(0.0, [80, 160, 320, 400, 400]), (0.5, [100, 200, 400, 500, 500])])
def test_pauses_double_up_to_the_cap(draw: float, pauses: list[int]) -> None:
    backoff = ExponentialBackoff(100, 500, lambda: draw)
    assert [round(backoff.pause_ms(count)) for count in range(5)] == pauses


def test_a_cap_below_the_first_pause_is_the_first_pause() -> None:
    assert ExponentialBackoff(100, 10, spread=(1, 1)).pause_ms(4) == 100


def test_full_spread_reaches_from_zero_to_the_limit() -> None:
    assert ExponentialBackoff(10, 500, lambda: 0.0, spread=(0, 1)).pause_ms(3) == 0
    assert ExponentialBackoff(10, 500, lambda: 1.0, spread=(0, 1)).pause_ms(3) == 80


def test_many_failures_do_not_overflow() -> None:
    assert ExponentialBackoff(100, 1_000, spread=(1, 1)).pause_ms(10_000) == 1_000


def test_a_key_is_reported_once() -> None:
    once = Once()
    assert [once.is_first("a"), once.is_first("a"), once.is_first("b")] == [True, False, True]


def test_a_bounded_number_of_keys_is_remembered() -> None:
    once = Once(remembered_max=2)
    assert [once.is_first(key) for key in ("a", "b", "c", "a")] == [True, True, True, True]
