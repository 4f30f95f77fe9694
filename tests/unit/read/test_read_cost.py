"""What a read costs in calls of Python functions: a limit for each read, and none for each row."""

from __future__ import annotations

import gc
import sys

import pytest

from spark_replog.read.fetch_plan import plan_fetch
from spark_replog.read.fetcher import Fetcher

TOPIC = "ab" * 16
FEW, MANY = 16, 48
CALLS_MAX = {"without headers": 42, "null headers": 42, "left out": 42, "with headers": 48}
"""Of one read of one section; Python 3.11 takes 40, and 46 to read headers."""


def calls(action):
    """Return how many Python functions and generators this thread enters."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    action()  # what is made once is made here
    gc.disable()  # a collection would add the callbacks of other libraries
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def calls_of_read(roots, slices, *, include_headers=False):
    return calls(lambda: list(Fetcher(roots).fetch(slices, include_headers=include_headers)))


@pytest.mark.parametrize("case", CALLS_MAX)
def test_a_read_takes_a_limited_number_of_calls(roots, make_topic, case):
    topic = make_topic(roots)
    for _ in range(MANY):
        topic.write([(0, [b"a"])], headers=[None] if case in ("left out", "with headers") else None)
    plans = [plan_fetch(topic.state, "orders", TOPIC, 0, 0, count) for count in (FEW, MANY)]
    include_headers = case in ("null headers", "with headers")
    few, many = (calls_of_read(roots, plan, include_headers=include_headers) for plan in plans)
    assert 10 * (MANY - FEW) < many - few <= CALLS_MAX[case] * (MANY - FEW)


def test_rows_take_no_calls(roots, make_topic):
    topic = make_topic(roots, partitions=2)
    topic.write([(0, [b"a"] * 10), (1, [b"a"] * 10_000)])
    few, many = (
        calls_of_read(roots, plan_fetch(topic.state, "orders", TOPIC, number, 0, count))
        for number, count in ((0, 10), (1, 10_000))
    )
    assert many < few + 10  # a large range is mapped: one call more
