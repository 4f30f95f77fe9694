"""Kafka's TimerTest and TimingWheel cases."""

from __future__ import annotations

from collections import Counter

from spark_replog.coordinator.timing_wheel import Timer


def test_already_expired_runs_at_once() -> None:
    timer = Timer(0, tick_ms=1, size=3)
    ran: list[int] = []
    for delay in range(-5, 0):
        timer.add(delay, lambda delay=delay: ran.append(delay))
    assert ran == [-5, -4, -3, -2, -1]
    assert timer.size == 0


def test_every_task_runs_once_in_order() -> None:
    timer = Timer(0, tick_ms=1, size=3)
    delays = [*range(5), *[ms for ms in range(10, 100) for _ in range(2)], *range(100, 500)]
    ran: list[int] = []
    for delay in reversed(delays):
        timer.add(delay, lambda delay=delay: ran.append(delay))
    for now_ms in range(501):
        before = len(ran)
        timer.advance(now_ms)
        assert all(delay <= now_ms for delay in ran[before:])
    assert Counter(ran) == Counter(delays)
    assert ran[1:] == sorted(ran[1:])


def test_levels_of_the_example() -> None:
    # Tick 1, size 3: expiry 5 lies in level 2's bucket [3-5], is moved to level 1 at 3, runs at 5.
    timer = Timer(0, tick_ms=1, size=3)
    ran: list[int] = []
    timer.add(5, lambda: ran.append(5))
    assert timer.next_expiry_ms() == 3
    timer.advance(3)
    assert ran == []
    assert timer.next_expiry_ms() == 5
    timer.advance(4)
    assert ran == []
    timer.advance(5)
    assert ran == [5]
    assert timer.next_expiry_ms() is None


def test_cancel_is_counted_and_final() -> None:
    timer = Timer(1000)
    task = timer.add(2000, lambda: None)
    assert timer.size == 1
    assert timer.cancel(task)
    assert not timer.cancel(task)
    assert timer.size == 0
    assert timer.advance(5000) == 0


def test_a_gap_of_hours_costs_one_advance() -> None:
    timer = Timer(0)
    ran: list[int] = []
    timer.add(86_400_000, lambda: ran.append(1))
    assert timer.advance(86_399_999) == 0
    assert timer.advance(86_400_000) == 1
    assert ran == [1]
