"""ISR and high-watermark rules of a provisional tail."""

from __future__ import annotations

import pytest

from spark_replog.commit.replication import Partition
from spark_replog.errors import ErrorCode


def test_high_watermark_is_the_least_end_of_the_isr() -> None:
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 10)
    first, second = {0}, {0, 1, 2}
    assert partition.append(5, first) == 15
    assert partition.append(2, second) == 17
    assert partition.high_watermark() == 10
    assert [partition.replica_end_offset(broker) for broker in (0, 1, 2)] == [17, 10, 10]
    first.add(1)
    assert partition.replica_end_offset(1) == 17
    assert partition.high_watermark() == 10
    first.add(2)
    assert partition.high_watermark() == 17


def test_a_shrink_frees_the_high_watermark_down_to_min_insync() -> None:
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 0)
    partition.append(5, {0, 1})
    partition.shrink(2)
    assert partition.in_sync == {0, 1}
    assert partition.check_enough_replicas_reach_offset(5) == (True, None)
    partition.append(1, {0})
    partition.shrink(1)
    # Below the minimum the high watermark rests, and a waiting append is refused.
    assert partition.high_watermark() == 5
    assert partition.check_enough_replicas_reach_offset(6) == (True, ErrorCode.NOT_ENOUGH_REPLICAS)


def test_still_pending() -> None:
    partition = Partition((0, 1), (0, 1), 1, 0)
    partition.append(1, {0})
    assert partition.check_enough_replicas_reach_offset(1) == (False, None)


@pytest.mark.case("kafka-59-60")
def test_high_watermark_maintenance() -> None:
    # Cases 59 and 60: it moves up to what is held and never beyond the log end.
    partition = Partition((0, 1), (0, 1), 2, 0)
    rows = [{0} for _ in range(3)]
    for holders in rows:
        partition.append(1, holders)
    assert partition.high_watermark() == 0
    rows[0].add(1)
    assert partition.high_watermark() == 1
    for holders in rows:
        holders.add(1)
    assert (partition.high_watermark(), partition.log_end_offset) == (3, 3)
    partition.append(3, {0, 1})
    assert partition.high_watermark() == 6
    hundred = Partition((0, 1), (0, 1), 2, 0)
    most, last = {0}, {0}
    hundred.append(99, most), hundred.append(1, last)
    most.add(1)
    assert [hundred.high_watermark(), hundred.high_watermark()] == [99, 99]
    last |= {1, 2, 3}
    assert hundred.high_watermark() == hundred.log_end_offset == 100


@pytest.mark.case("kafka-107")
def test_a_follower_ends_before_the_first_object_it_lacks() -> None:
    # testUpdateFollowerFetchState: log of 6; the follower has 3 of it, then all.
    partition = Partition((0, 1), (0, 1), 1, 0)
    first, second = {0}, {0}
    partition.append(3, first)
    partition.append(3, second)
    assert partition.replica_end_offset(1) == 0
    # FollowerStateNotUpdatedIfLogReadFails: what lies behind a gap does not count.
    second.add(1)
    assert partition.replica_end_offset(1) == 0
    second.discard(1)
    first.add(1)
    assert partition.replica_end_offset(1) == 3
    second.add(1)
    assert partition.replica_end_offset(1) == 6


@pytest.mark.case("kafka-101")
def test_a_replica_lags_behind_the_lag_time_and_not_at_it() -> None:
    # testMaybeShrinkIsr: three replicas, one got nothing, lag + 1 ms.
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 0, now_ms=1000)
    partition.append(10, {0, 1})
    assert partition.out_of_sync_replicas(31_000, 30_000) == []
    assert partition.out_of_sync_replicas(31_001, 30_000) == [2]
    # Kafka's high watermark waits until the controller confirms the shrink; here the shrink is decided by
    # the ENTRY of the append that waits, so that the high watermark rests just as long.
    assert partition.high_watermark() == 0
    partition.shrink(2)
    assert partition.high_watermark() == 10


@pytest.mark.case("kafka-102")
def test_a_replica_at_the_log_end_never_lags() -> None:
    # testShouldNotShrinkIsrIfFollowerCaughtUpToLogEnd: 30,001 ms without anything new.
    partition = Partition((0, 1), (0, 1), 1, 0, now_ms=0)
    partition.append(10, {0, 1})
    assert partition.is_caught_up(1, 30_001, 30_000)
    assert partition.out_of_sync_replicas(10**9, 30_000) == []


@pytest.mark.case("kafka-102")
def test_a_replica_that_is_one_object_behind_stays_within_the_lag_time() -> None:
    # testShouldNotShrinkIsrIfPreviousFetchIsCaughtUp: at +5,000 it has 5 of 10; at +5,001 five more come
    # and it has the old end. Kafka restarts the lag time at each fetch that reaches the end that the
    # fetch before saw; here each append has a tail, and so a lag time, of its own.
    partition = Partition((0, 1), (0, 1), 1, 0, now_ms=0)
    first, second, third = ({0} for _ in range(3))
    partition.append(5, first)
    partition.append(5, second)
    first.add(1)
    assert partition.high_watermark() == 5
    partition.append(5, third)
    second.add(1)
    assert partition.high_watermark() == 10
    assert partition.out_of_sync_replicas(5_001, 30_000) == []
    assert partition.in_sync == {0, 1}


def test_the_leader_lags_like_any_other_root() -> None:
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 0, now_ms=0)
    partition.append(1, {1, 2})
    assert partition.out_of_sync_replicas(30_001, 30_000) == [0]


@pytest.mark.case("kafka-103")
def test_a_replica_outside_the_isr_holds_nothing_back() -> None:
    # testHighWatermarkWithFencedFollower: Kafka waits for one that is about to join (HW 10); here a
    # replica joins by an ENTRY that the fold refuses while an object is missing, so no append waits (HW 20).
    partition = Partition((0, 1), (0,), 1, 0)
    partition.append(10, {0, 1})
    partition.append(10, {0})
    assert partition.high_watermark() == 20


@pytest.mark.case("kafka-104")
def test_the_high_watermark_rests_under_min_isr() -> None:
    # testHighWatermarkAdvanceShouldNotIncrementUnderMinISR: ISR of 2, minimum 3.
    partition = Partition((0, 1, 2), (0, 1), 3, 0)
    partition.append(10, {0, 1, 2})
    assert partition.high_watermark() == 0
    joined = Partition((0, 1, 2), (0, 1, 2), 3, 0)
    joined.append(10, {0, 1, 2})
    assert joined.high_watermark() == 10
