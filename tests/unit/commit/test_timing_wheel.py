"""Kafka's TimerTest and TimingWheel cases."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from typing import Any

import pytest

from spark_replog.commit.purgatory import Timer, TimerTask


class Moved(TimerTask):
    """A task that counts how often one of its kind is put into a bucket."""

    count = 0

    @property
    def bucket(self) -> Any:
        return self._bucket

    @bucket.setter
    def bucket(self, bucket: Any) -> None:
        self._bucket = bucket
        Moved.count += bucket is not None


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The buckets that a timer has looked at."""
    buckets: list[object] = []
    pop, mine = heapq.heappop, threading.get_ident()

    def counted(due: list[object]) -> object:
        popped = pop(due)
        if threading.get_ident() == mine:  # threads of other tests' stores may still have timers
            buckets.append(popped)
        return popped

    monkeypatch.setattr(heapq, "heappop", counted)
    return buckets


@pytest.mark.case("server-timertest-alreadyexpired")
def test_already_expired_runs_at_once() -> None:
    timer = Timer(0, tick_ms=1, size=3)
    ran: list[int] = []
    for delay in range(-5, 0):
        timer.add(delay, lambda delay=delay: ran.append(delay))
    assert ran == [-5, -4, -3, -2, -1]
    assert timer.size == 0


@pytest.mark.case("server-timertest-taskexpiration")
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


@pytest.mark.case("server-6-5-example-tick-1-size-3")
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


@pytest.mark.case("server-timertasklisttest")
def test_a_bucket_due_in_ten_seconds_is_due_in_five_after_five() -> None:
    timer = Timer(0, tick_ms=5_000, size=20)
    timer.add(10_000, lambda: None)
    timer.advance(5_000)
    due_ms = timer.next_expiry_ms()
    assert due_ms is not None
    assert due_ms - 5_000 == 5_000


@pytest.mark.case("server-o-1-tick")
def test_a_tick_costs_what_is_due_in_it_whatever_waits(flushed: list[object]) -> None:
    timer = Timer(0)
    count = 20_000
    Moved.count = 0
    for number in range(count):
        timer.start(Moved(), 10_000 + number)
    assert Moved.count == count
    for now_ms in range(8_000):  # nothing is due before the first bucket of the third level, at 8,000
        timer.advance(now_ms)
    assert (len(flushed), Moved.count, timer.size) == (0, count, count)
    for now_ms in range(8_000, 30_001):
        before = len(flushed)
        timer.advance(now_ms)
        # One bucket a level at most begins in one millisecond.
        assert len(flushed) - before <= 4
    assert timer.size == 0
    # Each task went down level by level: never looked at more often than there are levels.
    assert Moved.count <= 4 * count


@pytest.mark.case("server-o-1-tick")
def test_a_bucket_is_queued_once_a_round(flushed: list[object]) -> None:
    timer = Timer(0)
    for _ in range(100):
        timer.add(7, lambda: None)
    assert timer.advance(7) == 100
    assert len(flushed) == 1


def test_a_timer_without_tasks_keeps_the_time() -> None:
    timer = Timer(0, tick_ms=1, size=3)
    assert timer.advance(100) == 0
    ran: list[int] = []
    for expiry_ms in (50, 100, 101):
        timer.add(expiry_ms, lambda expiry_ms=expiry_ms: ran.append(expiry_ms))
    assert ran == [50, 100]
    assert timer.advance(101) == 1
