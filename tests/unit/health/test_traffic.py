"""Rates over the last minutes, from the times of entries."""

from __future__ import annotations

import pytest

from spark_replog.log.fold.topic_state import MINUTE_MS, MINUTES_KEPT, NO_TRAFFIC


def steady(minutes, *, per_second=10):
    """One append a second, of as many rows, ten bytes each, ending at a full minute."""
    traffic = NO_TRAFFIC
    for second in range(minutes * 60):
        traffic = traffic.plus(second * 1000, per_second, per_second * 10)
    return traffic


@pytest.mark.parametrize("window", [1, 5, 15])
def test_a_steady_rate_is_the_same_over_every_window(window):
    rows, size_bytes = steady(40).rates(window, 40 * MINUTE_MS)
    assert (rows, size_bytes) == (pytest.approx(10), pytest.approx(100))


def test_a_writer_that_stopped_fades_from_each_window_in_turn():
    traffic = steady(30)
    later = [traffic.rates(window, 32 * MINUTE_MS)[0] for window in (1, 5, 15)]
    assert later == [0, pytest.approx(6), pytest.approx(10 * 13 / 15)]
    assert traffic.rates(15, 60 * MINUTE_MS) == (0, 0)
    assert traffic.rates(1, 30 * MINUTE_MS + 30_000)[0] == pytest.approx(5)


def test_memory_does_not_grow_with_age_and_empty_minutes_are_left_out():
    assert len(steady(100, per_second=1).minutes) == MINUTES_KEPT + 2
    sparse = NO_TRAFFIC.plus(0, 1, 1).plus(90 * MINUTE_MS, 1, 1)
    assert sparse.minutes == ((0, 1, 1), (90, 1, 1))
    assert sparse.plus((25 * 60 + 90) * MINUTE_MS, 1, 1).minutes == ((25 * 60 + 90, 1, 1),)


def test_a_clock_behind_the_entries_counts_as_theirs():
    traffic = steady(20)
    assert traffic.rates(5, 0) == traffic.rates(5, traffic.last_append_ms)


def test_a_day_is_kept_by_hours_whatever_the_age():
    traffic = steady(3 * 24 * 60, per_second=1)
    assert len(traffic.minutes) <= MINUTES_KEPT + 26
    now_ms = 3 * 24 * 60 * MINUTE_MS
    rows, size_bytes = traffic.day(now_ms)
    assert (rows, size_bytes) == (24 * 3600, 24 * 36_000)
    assert traffic.bytes_by(60, 24, now_ms) == [36_000] * 23 + [0]
    assert traffic.bytes_by(60, 3, now_ms - 1) == [36_000] * 3
    assert traffic.bytes_by(1, 15, now_ms) == [600] * 14 + [0]
    assert traffic.day(now_ms + 48 * 60 * MINUTE_MS) == (0, 0)
    assert traffic.rates(15, now_ms)[0] == pytest.approx(1)
