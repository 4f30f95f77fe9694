"""ISR and high-watermark rules of a provisional tail."""

from __future__ import annotations

from spark_replog.coordinator.delayed_produce import DelayedProduce, ProducePartitionStatus
from spark_replog.coordinator.partition import ObjectCopies, Partition
from spark_replog.errors import ErrorCode


def test_high_watermark_is_the_least_end_of_the_isr() -> None:
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 10)
    first, second = ObjectCopies({0}), ObjectCopies({0, 1, 2})
    assert partition.append(5, first) == 15
    assert partition.append(2, second) == 17
    assert partition.high_watermark() == 10
    assert [partition.replica_end_offset(broker) for broker in (0, 1, 2)] == [17, 10, 10]
    first.holders.add(1)
    assert partition.replica_end_offset(1) == 17
    assert partition.high_watermark() == 10
    first.holders.add(2)
    assert partition.high_watermark() == 17


def test_a_shrink_frees_the_high_watermark_down_to_min_insync() -> None:
    partition = Partition((0, 1, 2), (0, 1, 2), 2, 0)
    partition.append(5, ObjectCopies({0, 1}))
    partition.shrink(2)
    assert partition.in_sync == {0, 1}
    assert partition.check_enough_replicas_reach_offset(5) == (True, None)
    partition.append(1, ObjectCopies({0}))
    partition.shrink(1)
    # Below the minimum the high watermark rests, and a waiting append is refused.
    assert partition.high_watermark() == 5
    assert partition.check_enough_replicas_reach_offset(6) == (True, ErrorCode.NOT_ENOUGH_REPLICAS)


def test_still_pending() -> None:
    partition = Partition((0, 1), (0, 1), 1, 0)
    partition.append(1, ObjectCopies({0}))
    assert partition.check_enough_replicas_reach_offset(1) == (False, None)


def test_delayed_produce_answers_each_partition() -> None:
    satisfied, refused, waiting = (Partition((0, 1), (0, 1), minimum, 0) for minimum in (1, 2, 1))
    satisfied.append(1, ObjectCopies({0, 1}))
    refused.append(1, ObjectCopies({0}))
    refused.shrink(1)
    copies = ObjectCopies({0})
    waiting.append(1, copies)
    partitions = {("t", 0): satisfied, ("t", 1): refused, ("t", 2): waiting}
    operation = DelayedProduce(1000, partitions, {key: ProducePartitionStatus(1) for key in partitions})
    assert not operation.safe_try_complete()
    # A time-out answers what is pending; the satisfied one keeps its result.
    assert operation.errors() == {
        ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS,
        ("t", 2): ErrorCode.REQUEST_TIMED_OUT,
    }
    copies.holders.add(1)
    assert operation.safe_try_complete()
    assert operation.errors() == {("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS}
    assert not operation.safe_try_complete()
