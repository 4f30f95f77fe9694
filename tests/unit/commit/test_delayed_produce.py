"""Kafka's cases of a produce that waits."""

from __future__ import annotations

import pytest

from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replication import (
    DelayedProduce,
    LeaderAndIsr,
    Partition,
    ProducePartitionStatus,
)
from spark_replog.errors import ErrorCode
from spark_replog.ids import PartitionKey
from tests.manual_clock import ManualClock

KEY: PartitionKey = ("topic", 0)


class Leaders:
    """What the fold of the process says of each partition."""

    def __init__(self) -> None:
        self.answers: dict[PartitionKey, LeaderAndIsr | ErrorCode] = {}

    def __call__(self, key: PartitionKey) -> LeaderAndIsr | ErrorCode:
        return self.answers.get(key, LeaderAndIsr(0, (1, 2)))


def one_waiting(
    copies: set[int], rows: int = 10, isr: tuple[int, ...] = (1, 2), min_insync: int = 2
) -> tuple[DelayedProduce, Partition, Leaders]:
    partition = Partition((1, 2), isr, min_insync, 0)
    partition.append(rows, copies)
    leaders = Leaders()
    operation = DelayedProduce(1000, {KEY: partition}, {KEY: ProducePartitionStatus(rows)}, leaders)
    return operation, partition, leaders


@pytest.mark.case("server-6-4-delayed-produce-b-c-1-c-2")
def test_case_a_the_lookup_of_the_partition_fails() -> None:
    operation, _, leaders = one_waiting({1})
    assert not operation.safe_try_complete()
    leaders.answers[KEY] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert operation.safe_try_complete()
    assert operation.errors() == {KEY: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.case("kafka-111")
def test_case_b_another_leads_the_partition() -> None:
    # testClearPurgatoryOnBecomingFollower: answered at once, not at the timeout.
    operation, _, leaders = one_waiting({1})
    purgatory = DelayedOperationPurgatory(clock=ManualClock())
    assert not purgatory.try_complete_else_watch(operation, [KEY])
    leaders.answers[KEY] = LeaderAndIsr(1, (1, 2))
    assert purgatory.check_and_complete(KEY) == 1
    assert operation.errors() == {KEY: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert purgatory.timer.size == 0


@pytest.mark.case("kafka-98")
def test_case_c1_the_isr_shrinks_after_the_rows_are_there() -> None:
    # required 10, min ISR 2, ISR {1, 2}: the high watermark reaches 10, then the ISR shrinks to {1}.
    copies = {1}
    operation, partition, _ = one_waiting(copies)
    assert not operation.safe_try_complete()
    copies.add(2)
    assert partition.high_watermark() == 10
    partition.shrink(2)
    assert operation.safe_try_complete()
    assert operation.errors() == {KEY: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}


@pytest.mark.case("kafka-98")
def test_case_c1_the_isr_shrinks_first() -> None:
    # Kafka: the high watermark is frozen, the produce waits and ends REQUEST_TIMED_OUT, its rows in the log.
    # Here nothing is decided while it waits, so it is refused at once and for certain.
    copies = {1}
    operation, partition, _ = one_waiting(copies)
    partition.shrink(2)
    assert operation.safe_try_complete()
    assert operation.errors() == {KEY: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert partition.high_watermark() == 0


@pytest.mark.case("server-6-4-delayed-produce-b-c-1-c-2")
def test_case_c2_every_in_sync_replica_reached_the_offset() -> None:
    copies = {1}
    operation, _, _ = one_waiting(copies)
    assert not operation.safe_try_complete()
    copies.add(2)
    assert operation.safe_try_complete()
    assert operation.errors() == {}
    assert not operation.safe_try_complete()


@pytest.mark.case("server-5-5-6-4-shrink-completes-waits")
@pytest.mark.parametrize(("min_insync", "error"), [(1, None), (2, ErrorCode.NOT_ENOUGH_REPLICAS)])
def test_case_c_who_left_the_isr_by_anothers_entry_is_not_waited_for(min_insync: int, error: ErrorCode | None) -> None:
    operation, partition, leaders = one_waiting({1}, min_insync=min_insync)
    leaders.answers[KEY] = LeaderAndIsr(0, (1, 2, 3))
    assert not operation.safe_try_complete()
    leaders.answers[KEY] = LeaderAndIsr(0, (1, 3))
    assert operation.safe_try_complete()
    assert operation.errors() == ({KEY: error} if error else {})
    assert partition.in_sync == {1}


def test_the_rows_must_all_be_there() -> None:
    partition = Partition((1, 2), (1, 2), 2, 0)
    partition.append(9, {1, 2})
    last = {1}
    partition.append(1, last)
    assert partition.check_enough_replicas_reach_offset(9) == (True, None)
    assert partition.check_enough_replicas_reach_offset(10) == (False, None)


@pytest.mark.case("server-6-4-delayed-produce-b-c-1-c-2")
def test_a_time_out_answers_what_is_pending_and_keeps_what_is_satisfied() -> None:
    clock = ManualClock()
    purgatory = DelayedOperationPurgatory(clock=clock)
    satisfied, refused, waiting = (Partition((0, 1), (0, 1), minimum, 0) for minimum in (1, 2, 1))
    satisfied.append(1, {0, 1})
    refused.append(1, {0})
    refused.shrink(1)
    copies = {0}
    waiting.append(1, copies)
    partitions = {("t", 0): satisfied, ("t", 1): refused, ("t", 2): waiting}
    statuses = {key: ProducePartitionStatus(1) for key in partitions}
    operation = DelayedProduce(1000, partitions, statuses, Leaders())
    assert not purgatory.try_complete_else_watch(operation, list(partitions))
    clock.time_ms = 999
    purgatory.advance()
    assert not operation.is_completed
    clock.time_ms = 1000
    purgatory.advance()
    # Mixed results in one reply are normal.
    assert operation.errors() == {
        ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS,
        ("t", 2): ErrorCode.REQUEST_TIMED_OUT,
    }
    copies.add(1)
    assert purgatory.check_and_complete(("t", 2)) == 0
