"""The verdict on a reader in situations as they happen, each against a real fold. Times in minutes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from spark_replog.health.readers import Limits, PartitionProgress, Reader, Verdict, judge, lag_of, worst_first
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    IdentityKind,
    LogStartAdvance,
    LogStartReason,
    PartitionsAdd,
    ProducerIdentity,
    Section,
    TopicClose,
    TopicInit,
)

TOPIC, MINUTE = "a" * 32, 60_000
DAY = 1440
"""In minutes."""
_NUMBERS = count(1)


class Log:
    """A topic to which ten rows are appended at a minute."""

    def __init__(self, partitions: int = 1, **config: str) -> None:
        self.state = TopicLedgerState("L")
        pairs = tuple((name.replace("_", "."), value) for name, value in config.items())
        self.fold(TopicInit(TOPIC, "orders", ((0,),) * partitions, pairs))

    def fold(self, *commands):
        results = self.state.apply(self.state.applied_index + 1, encode_entry([encode_command(c) for c in commands]))
        assert all(result.outcome.name == "APPLIED" for result in results), results

    def append(self, *minutes, partition: int = 0, of: int | None = None):
        """Append at these minutes; `of`: the minute of the rows' own times, None: that of the append."""
        for minute in minutes:
            at = minute * MINUTE
            time_ms = at if of is None else of * MINUTE
            section = Section(TOPIC, partition, 10, 0, 100, 7, time_ms, time_ms)
            number = next(_NUMBERS)
            item = DataObject(ObjectId(0, f"{number}.arrow"), 100, False, frozenset({0}), (section,))
            identity = ProducerIdentity(f"{number:032x}", "", 0, "", IdentityKind.ONE_SHOT)
            self.fold(Append(identity, "User:a", "", at, (item,)))
        return self

    def reader(self, now, *histories, kind="group", state="STABLE", state_since=0, last_sign=None, owner="m1"):
        """A reader with a history of (minute, position) per partition; None: it has no position there."""
        parts = []
        for number, history in enumerate(histories):
            points = [(minute * MINUTE, at) for minute, at in history or ()]
            position = points[-1][1] if points else None
            since = next((time for time, at in points if at == position), None)
            lag = lag_of(self.state, TOPIC, number, position, now * MINUTE, points)
            parts.append(PartitionProgress("orders", number, position, None, since, lag, owner))
        sign = now if last_sign is None else last_sign
        return Reader(
            "r", kind, state, tuple(parts), state_since * MINUTE, sign * MINUTE, 45_000 if kind == "group" else None,
            batch_id=7,
        )  # fmt: skip


def verdict(reader, now, **limits):
    return judge(reader, now * MINUTE, Limits(**limits) if limits else Limits())


def test_1_a_paused_producer_leaves_the_reader_well():
    log = Log().append(*range(10))
    judgement = verdict(log.reader(500, [(5, 50), (10, 100)], last_sign=10), 500)
    assert (judgement.verdict, judgement.reason) == (Verdict.OK, "caught up")


def test_2_an_idle_topic_without_a_row_is_well():
    assert verdict(Log().reader(500, [(1, 0)], last_sign=1), 500).verdict is Verdict.OK


def test_3_a_paused_consumer_that_sends_heartbeats_is_stalled():
    log = Log().append(*range(30))
    judgement = verdict(log.reader(30, [(5, 50), (6, 60)], last_sign=30), 30)
    assert judgement.verdict is Verdict.STALLED
    assert judgement.reason.startswith("orders-0 ") and "240 rows wait, the oldest for 24 m" in judgement.reason


def test_4_a_consumer_that_is_gone_is_stopped():
    log = Log().append(*range(30))
    judgement = verdict(log.reader(30, [(5, 50), (6, 60)], last_sign=6), 30)
    assert judgement.verdict is Verdict.STOPPED and "No activity for 24 m" in judgement.reason


def test_4b_a_consumer_that_may_be_silent_for_long_is_not_stopped_before():
    log = Log().append(*range(30))
    reader = replace(log.reader(30, [(5, 50), (6, 60)], last_sign=22), sign_every_ms=10 * MINUTE)
    assert verdict(reader, 30).verdict is Verdict.STALLED
    assert verdict(replace(reader, sign_every_ms=7 * MINUTE), 30).verdict is Verdict.STOPPED


def test_5_one_dead_member_stalls_its_partitions_only():
    log = Log(2)
    for minute in range(30):
        log.append(minute).append(minute, partition=1)
    judgement = verdict(log.reader(30, [(29, 290), (30, 300)], [(5, 50), (6, 60)]), 30)
    assert [partition.verdict for partition in judgement.partitions] == [Verdict.OK, Verdict.STALLED]
    assert judgement.verdict is Verdict.STALLED and judgement.reason.startswith("orders-1 ")


@pytest.mark.parametrize(("since", "expected"), [(29, Verdict.OK), (10, Verdict.STALLED)])
def test_6_a_rebalance_is_given_time_and_one_that_never_ends_is_stalled(since, expected):
    log = Log().append(*range(30))
    reader = log.reader(30, [(5, 50), (6, 60)], state="COMPLETING_REBALANCE", state_since=since)
    assert verdict(reader, 30).verdict is expected


def test_7_retention_that_passed_the_reader_lost_rows():
    log = Log().append(*range(30))
    log.fold(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 100),)))
    judgement = verdict(log.reader(30, [(5, 50), (6, 60)]), 30)
    assert judgement.verdict is Verdict.LOSING and "40 unread rows" in judgement.reason


@pytest.mark.parametrize(("now", "expected"), [(30, Verdict.SLOW), (60, Verdict.LOSING)])
def test_8_rows_near_the_end_of_their_retention_are_about_to_be_lost(now, expected):
    log = Log(retention_ms=str(60 * MINUTE)).append(*range(30))
    reader = log.reader(now, [(now - 2, 50), (now - 1, 60)])
    assert verdict(reader, now).verdict is expected


def test_8b_retention_by_bytes_and_a_topic_that_keeps_all():
    history = [(28, 20), (29, 30)]
    by_bytes = Log(retention_ms="-1", retention_bytes="2900").append(*range(30))
    assert verdict(by_bytes.reader(30, history), 30).verdict is Verdict.LOSING
    both = Log(retention_ms=str(1000 * MINUTE), retention_bytes="2900").append(*range(30))
    assert verdict(both.reader(30, history), 30).verdict is Verdict.LOSING
    kept = Log(retention_ms="-1").append(*range(30))
    assert verdict(kept.reader(30, history), 30).verdict is Verdict.SLOW


def test_8c_the_newest_section_is_never_deleted_so_nobody_loses_it():
    log = Log(retention_ms=str(60 * MINUTE)).append(0)
    assert verdict(log.reader(120, [(0, 0)], last_sign=0), 120).verdict is Verdict.STOPPED


@pytest.mark.parametrize(
    ("config", "now", "expected"),
    [
        ({}, 0, Verdict.OK),  # the default counts from the append (ADR 24)
        ({}, 6.5 * DAY, Verdict.LOSING),
        ({"retention_ms": str(7 * DAY * MINUTE)}, 0, Verdict.LOSING),
    ],
)
def test_8d_old_events_that_were_loaded_now_are_lost_when_retention_deletes_them(config, now, expected):
    loaded, now = 100 * DAY, int(100 * DAY + now)
    log = Log(**config).append(loaded, of=0).append(now + 1, of=1)
    reader = log.reader(now + 1, [(now, 0), (now + 1, 0)])
    assert verdict(reader, now + 1).verdict is expected


def test_8e_the_remedy_keeps_rows_whichever_retention_deletes_them():
    log = Log(retention_ms="-1", retention_bytes="2900").append(*range(30))
    reader = log.reader(30, [(28, 20), (29, 30)])
    remedy = verdict(reader, 30).remedy
    assert "topic config orders set retention.ms=-1 retention.bytes=-1" in remedy


def test_9_a_reader_that_falls_behind_is_slow_and_has_no_time_of_arrival():
    log = Log().append(*range(60))
    reader = log.reader(60, [(40, 200), (60, 300)])  # ten minutes of log in twenty
    judgement = verdict(reader, 60)
    assert judgement.verdict is Verdict.SLOW and "0.50 s of log per second" in judgement.reason
    assert reader.catch_up_ms is None


def test_10_a_reader_that_catches_up_is_well_and_says_when_it_arrives():
    log = Log().append(*range(60))
    reader = log.reader(60, [(59, 200), (60, 240)])  # four minutes of log in one; 36 minutes are left
    judgement = verdict(reader, 60)
    assert (judgement.verdict, reader.catch_up_ms) == (Verdict.OK, 12 * MINUTE)
    assert "catches up in 12 m at this pace" in judgement.reason
    assert verdict(reader, 60, lag_ms_max=30 * MINUTE).verdict is Verdict.SLOW


def test_11_a_new_partition_that_is_not_read_yet_is_well():
    log = Log().append(*range(10))
    log.fold(PartitionsAdd(TOPIC, 2, ((0,),)))
    log.append(10, partition=1)
    assert verdict(log.reader(11, [(9, 90), (10, 100)], None), 11).verdict is Verdict.OK


@pytest.mark.parametrize(("kind", "expected"), [("group", Verdict.OK), ("query", Verdict.LOSING)])
def test_12_a_deleted_topic_ends_a_query_and_leaves_a_group_old_offsets(kind, expected):
    log = Log().append(0, 1)
    log.fold(TopicClose(TOPIC))
    judgement = verdict(log.reader(3, [(1, 10)], kind=kind, state="IDLE"), 3)
    assert (judgement.verdict, "another store" in judgement.reason) == (expected, kind == "query")


def test_13_a_clock_behind_the_log_makes_nobody_late_and_one_ahead_makes_no_idle_topic_late():
    log = Log().append(*range(30))
    assert verdict(log.reader(1, [(28, 280), (29, 290)]), 1).verdict is Verdict.OK
    assert verdict(log.reader(900, [(29, 290), (30, 300)]), 900).verdict is Verdict.OK


@pytest.mark.parametrize(("last_sign", "expected"), [(2000, Verdict.STALLED), (1900, Verdict.STOPPED)])
def test_13b_a_clock_a_day_behind_the_log_does_not_hide_a_reader_that_stopped(last_sign, expected):
    log = Log().append(*range(1900, 2001))
    reader = log.reader(2000 - DAY, [(1899, 0), (1901, 10)], last_sign=last_sign)
    assert verdict(reader, 2000 - DAY).verdict is expected
    moving = log.reader(2000 - DAY, [(1950, 500), (1999, 990)], last_sign=1999)
    assert verdict(moving, 2000 - DAY).verdict is Verdict.OK


def test_14_a_query_that_is_down_is_stopped_only_if_rows_wait():
    log = Log().append(*range(10))
    down = {"kind": "query", "state": "IDLE", "last_sign": 10}
    assert verdict(log.reader(30, [(9, 90), (10, 100)], **down), 30).verdict is Verdict.OK
    log.append(12)
    assert verdict(log.reader(30, [(9, 90), (10, 100)], **down), 30).verdict is Verdict.STOPPED
    assert verdict(log.reader(14, [(9, 90), (10, 100)], **down), 14).verdict is Verdict.OK


@pytest.mark.parametrize(("began", "expected"), [(27, Verdict.OK), (12, Verdict.STALLED)])
def test_15_a_batch_that_runs_is_given_time_and_one_that_never_ends_is_stalled(began, expected):
    log = Log().append(*range(30))
    reader = log.reader(30, [(9, 90), (10, 100)], kind="query", state="IN_BATCH", state_since=began, last_sign=began)
    judgement = verdict(reader, 30)
    assert judgement.verdict is expected
    assert expected is Verdict.OK or "Batch 7 started 18 m ago" in judgement.reason


def test_16_rows_that_came_a_moment_ago_make_nobody_late():
    log = Log().append(0, 100)
    assert verdict(log.reader(101, [(0, 10)], last_sign=0), 101).verdict is Verdict.OK


def test_17_a_reader_at_the_end_of_each_batch_is_not_slow_while_it_waits_for_its_trigger():
    log = Log().append(*range(30))
    reader = log.reader(32, [(20, 200), (28, 290)], kind="query", state="IDLE", last_sign=28)
    assert verdict(reader, 32).verdict is Verdict.OK


def test_the_limits_are_the_callers():
    log = Log().append(*range(30))
    reader = log.reader(30, [(5, 50), (26, 260)], last_sign=26)
    assert verdict(reader, 30).verdict is Verdict.OK
    assert verdict(reader, 30, still_ms=3 * MINUTE).verdict is Verdict.STOPPED


def test_exit_codes():
    assert [outcome.exit_code for outcome in Verdict] == [0, 3, 4, 4, 4]


def test_the_worst_reader_comes_first():
    verdicts = {"well": Verdict.OK, "slow": Verdict.SLOW, "losing": Verdict.LOSING, "also well": Verdict.OK}
    readers = [Reader(name, "group", "STABLE", (), verdict=verdict) for name, verdict in verdicts.items()]
    assert [reader.name for reader in worst_first(readers)] == ["losing", "slow", "also well", "well"]
