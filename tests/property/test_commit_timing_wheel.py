"""The wheel against a sorted list: exactly once, never early, at most one tick late, in order of expiry."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from spark_replog.commit.purgatory import Timer, TimerTask

ADD = st.tuples(st.just("add"), st.integers(-5, 10_000))
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 50))
ADVANCE = st.tuples(st.just("advance"), st.integers(0, 3_000))


@given(
    steps=st.lists(st.one_of(ADD, CANCEL, ADVANCE), max_size=60),
    size=st.integers(2, 20),
    tick_ms=st.integers(1, 7),
    start_ms=st.integers(0, 10**6),
)
def test_runs_exactly_what_is_due(steps: list[tuple[str, int]], size: int, tick_ms: int, start_ms: int) -> None:
    timer = Timer(start_ms, tick_ms=tick_ms, size=size)
    now_ms = start_ms

    def run(number: int) -> None:
        ran[number] = now_ms

    ran: dict[int, int] = {}
    expiries: list[int] = []
    tasks: list[TimerTask] = []
    cancelled: set[int] = set()
    for verb, value in steps:
        if verb == "add":
            number = len(expiries)
            expiries.append(now_ms + value)
            tasks.append(timer.add(now_ms + value, partial(run, number)))
        elif verb == "cancel" and tasks:
            number = value % len(tasks)
            was_pending = number not in ran and number not in cancelled
            assert timer.cancel(tasks[number]) is was_pending
            if was_pending:
                cancelled.add(number)
        elif verb == "advance":
            now_ms += value
            timer.advance(now_ms)
            # Whatever is due by a whole tick has run; whatever ran was due.
            for number, expiry_ms in enumerate(expiries):
                if expiry_ms + tick_ms <= now_ms:
                    assert number in ran or number in cancelled
    for number, ran_ms in ran.items():
        assert number not in cancelled
        assert ran_ms >= expiries[number] - tick_ms + 1
    assert timer.size == len(expiries) - len(ran) - len(cancelled)
