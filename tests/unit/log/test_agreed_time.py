"""No single clock moves the time by which rows age."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.commit.retention import upkeep_commands
from spark_replog.log.fold.append_time import AGREED_TIME, JUMP_MS, WRITERS_KEPT, AgreedTime
from spark_replog.log.model import LogStartAdvance
from spark_replog.wire import Reader, Writer

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def observed(*appends):
    time = AgreedTime()
    for writer, clock_ms in appends:
        time.observe(writer, clock_ms)
    return time


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, 10**12])
@pytest.mark.parametrize("append_count", [1, 5, 100])
def test_a_writer_that_is_ahead_deletes_nobodys_rows(kit, ahead_ms, append_count):
    log = kit.Log(config=(("retention.ms", str(HOUR_MS)),))
    for number in range(50):
        at_ms = NOW_MS + number
        log.one(kit.append({0: 1}, number, time_ms=at_ms, run="right"))
    for number in range(append_count):
        at_ms = NOW_MS + ahead_ms + number
        log.one(kit.append({0: 1}, number, producer="ahead", time_ms=at_ms, run="ahead"))
    now_ms = log.state.agreed_time.now_ms
    assert now_ms <= NOW_MS + 50 + append_count
    assert [c for c in upkeep_commands(log.state, now_ms, 0, 10**15) if isinstance(c, LogStartAdvance)] == []
    restored = type(log.state)("L")
    restored.restore(log.state.freeze().head, lambda name: b"")
    assert restored.agreed_time.now_ms == now_ms and restored.agreed_time.clocks == log.state.agreed_time.clocks


def test_two_clocks_agree_and_the_first_writer_is_believed():
    assert observed(("a", NOW_MS)).now_ms == NOW_MS
    assert observed(("a", NOW_MS), ("b", NOW_MS + HOUR_MS)).now_ms == NOW_MS
    assert observed(("a", NOW_MS), ("b", NOW_MS + HOUR_MS), ("c", NOW_MS + 2 * HOUR_MS)).now_ms == NOW_MS + HOUR_MS
    slow = observed(
        *[
            (writer, at)
            for at in range(NOW_MS, NOW_MS + 100_000, 1_000)
            for writer, at in [("a", at), ("s", at - 10**12)]
        ]
    )
    assert slow.now_ms == NOW_MS + 99_000, "a clock that is behind holds nothing back: what it counts is right"


def test_a_single_writer_ages_its_rows_by_what_its_clock_counts():
    time = observed(("old", NOW_MS), *(("new", NOW_MS + 10**9 + at) for at in range(0, 30 * HOUR_MS, JUMP_MS)))
    assert time.now_ms == NOW_MS + 30 * HOUR_MS - JUMP_MS, "but not the gap before its first append"
    hourly = observed(*(("q", NOW_MS + at) for at in range(0, 30 * HOUR_MS, HOUR_MS)))
    assert hourly.now_ms == NOW_MS + 28 * HOUR_MS, "one append late"


def test_a_clock_that_is_set_ahead_counts_as_slowly_as_it_goes_on():
    time = observed(("q", NOW_MS), ("q", NOW_MS + 2 * HOUR_MS), ("q", NOW_MS + 2 * HOUR_MS + 60_000))
    assert time.now_ms == NOW_MS + 120_000
    time.observe("other", NOW_MS + 60_000)
    time.observe("q", NOW_MS + 2 * HOUR_MS + 61_000)
    assert time.now_ms <= NOW_MS + 121_000, "another writer's append ends what was held"


def test_a_jump_that_another_clock_confirms_does_not_count_twice():
    later_ms = NOW_MS + HOUR_MS
    time = observed(("q", NOW_MS), ("ahead", later_ms), ("q", NOW_MS), ("q", later_ms), ("q", later_ms + 1_000))
    assert time.now_ms == later_ms + 1_000


def test_what_a_first_writer_got_wrong_goes_with_the_time_of_appends(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 0, time_ms=NOW_MS + 10**12, run="ahead"))
    for number in range(1, 6):
        log.one(kit.append({0: 1}, number, producer="p", time_ms=NOW_MS + number, run="right"))
    assert log.state.agreed_time.now_ms <= NOW_MS + 5


@given(st.data())
def test_the_time_is_never_ahead_if_one_clock_is_wrong(data):
    """Whatever the wrong clock's offset, and whoever appends when; and it is kept by a snapshot."""
    time, now_ms = AgreedTime(), NOW_MS
    offset_ms = data.draw(st.sampled_from((-(10**11), -HOUR_MS, HOUR_MS, 10**12)))
    time.observe("w0", now_ms)
    for _ in range(data.draw(st.integers(1, 60))):
        now_ms += data.draw(st.sampled_from((0, 1_000, JUMP_MS, HOUR_MS, 10**9)))
        writer = data.draw(st.integers(0, WRITERS_KEPT + 2))
        time.observe(f"w{writer}", now_ms + offset_ms * (writer == 1))
        assert time.now_ms <= now_ms
        writer = Writer()
        AGREED_TIME.write(writer, time)
        read = AGREED_TIME.read(Reader(bytes(writer.data)))
        assert (read.now_ms, read.clocks) == (time.now_ms, time.clocks)
