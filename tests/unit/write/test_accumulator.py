from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import data_schema
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.producer_batch import BatchState, Destination, ProducerBatch
from tests.unit.write import accumulator_setup
from tests.unit.write.accumulator_setup import accumulator_config

GONE = ReplogError(ErrorCode.INVALID_REQUEST, "gone.")
NODE_1 = Destination("ledger", 0, (0, 1), None, "none")
NODE_2 = Destination("ledger", 0, (1, 2), None, "none")
P = [TopicPartition("orders", number) for number in range(5)]


class Setup:
    """An accumulator and a way to fill it: one record of n bytes is a slice of n bytes."""

    def __init__(
        self,
        *,
        total_bytes: int = 1 << 20,
        linger_ms: int | None = None,
        request_bytes: int = 3000,
        delivery_timeout_ms: int = 1_000_000_000,
    ) -> None:
        self.pool = BufferPool(total_bytes, clock=SYSTEM_CLOCK)
        self.it = RecordAccumulator(
            self.pool,
            accumulator_config(1000, request_bytes, linger_ms, delivery_timeout_ms),
            fills_requests=True,
        )
        self.count = 0

    def add(
        self,
        partition: int,
        size_bytes: int,
        node: Destination = NODE_1,
        now_ms: int = 0,
        pinned_bytes: int = 0,
    ) -> None:
        pinned_bytes = pinned_bytes or size_bytes
        self.pool.allocate(pinned_bytes, 0)
        pinned = PinnedBytes(self.pool, pinned_bytes)
        records = pa.RecordBatch.from_pydict({"value": pa.array([self.count])})
        queue = self.it.queue(P[partition])
        self.it.assign(queue, node)
        self.it.append(queue, records, size_bytes, pinned, now_ms)
        pinned.release()
        self.count += 1

    def ready(self, now_ms: int = 0, in_flight_count: int = 0) -> set[Destination]:
        return set(self.it.ready(now_ms, in_flight_count=in_flight_count).destinations)

    def drain(self, node: Destination = NODE_1) -> list[tuple[int, list[int]]]:
        return [(batch.topic_partition.partition, values(batch)) for batch in self.it.drain(node, 0)]


def waiting(setup: Setup) -> int:
    """Return how many batches wait: the count that the sender reads is the number in the queues."""
    queued_count = sum(len(setup.it.queue(name).batches) for name in P)
    assert setup.it.waiting_count == queued_count
    return queued_count


def data_rows(values: list[bytes]) -> pa.RecordBatch:
    columns = {"key": [None] * len(values), "value": values, "timestamp": [0] * len(values)}
    return pa.RecordBatch.from_pydict(columns, schema=data_schema(False))


def values(batch: ProducerBatch) -> list[int]:
    return [value for item in batch.take_slices() for value in item.records.column(0).to_pylist()]


def test_slices_share_a_batch_up_to_batch_size() -> None:
    setup = Setup()
    for size_bytes in (400, 600, 1, 2000, 5):
        setup.add(0, size_bytes)
    setup.it.close()
    assert setup.drain() == [(0, [0, 1]), (0, [2]), (0, [3])]
    assert setup.drain() == [(0, [4])]


def test_a_full_batch_alone_makes_no_destination_ready() -> None:
    setup = Setup()
    setup.add(0, 2000)
    setup.add(1, 999)
    assert setup.ready() == set()
    setup.add(1, 1)
    assert setup.ready() == {NODE_1}


def test_destinations_are_counted_apart() -> None:
    setup = Setup()
    setup.add(0, 2000, NODE_1)
    setup.add(1, 2000, NODE_2)
    assert setup.ready() == set()
    setup.add(2, 1000, NODE_2)
    assert setup.ready() == {NODE_2}


def test_linger() -> None:
    setup = Setup(linger_ms=10)
    setup.add(0, 10, NODE_1, now_ms=100)
    setup.add(1, 10, NODE_2, now_ms=105)
    assert setup.it.ready(100, in_flight_count=0).next_check_ms == 10
    assert setup.ready(109) == set()
    check = setup.it.ready(110, in_flight_count=0)
    assert (check.destinations, check.next_check_ms) == ((NODE_1,), 5)
    assert setup.ready(115) == {NODE_1, NODE_2}
    setup.drain()
    assert setup.ready(115) == {NODE_2}


def test_without_linger_time_changes_nothing() -> None:
    setup = Setup()
    setup.add(0, 10)
    check = setup.it.ready(10**9, in_flight_count=0)
    assert (check.destinations, check.next_check_ms) == ((), None)


def test_close_makes_all_ready() -> None:
    setup = Setup()
    setup.add(0, 10, NODE_1)
    setup.add(1, 10, NODE_2)
    setup.it.close()
    assert setup.ready() == {NODE_1, NODE_2}


def test_exhausted_sends_the_largest_once_nothing_is_in_flight() -> None:
    setup = Setup(total_bytes=1000)
    setup.add(0, 400, NODE_1)
    setup.add(1, 500, NODE_2)
    seen: list[set[Destination]] = []

    def run_once(_left_ms: int) -> None:
        seen.append(setup.ready(in_flight_count=1))
        seen.append(setup.ready(in_flight_count=0))
        for batch in setup.it.drain(NODE_2, 0):
            setup.it.succeed(batch, -1, None)

    setup.pool.allocate(300, 1000, run_once)
    assert seen == [set(), {NODE_2}]


def test_drain_goes_round_and_takes_at_most_one_batch_more() -> None:
    setup = Setup(request_bytes=2500)
    for partition in range(3):
        for _ in range(3):
            setup.add(partition, 1000)
    assert setup.drain() == [(0, [0]), (1, [3]), (2, [6])]
    assert setup.drain() == [(0, [1]), (1, [4]), (2, [7])]


def test_drain_index_resumes_behind_the_last_partition() -> None:
    setup = Setup(request_bytes=1000)
    for partition in (0, 1, 2, 0, 1, 2):
        setup.add(partition, 1000)
    assert [setup.drain() for _ in range(7)] == [
        [(0, [0])],
        [(1, [1])],
        [(2, [2])],
        [(0, [3])],
        [(1, [4])],
        [(2, [5])],
        [],
    ]


def test_drain_takes_all_batches_of_one_partition_in_order() -> None:
    setup = Setup()
    for _ in range(6):
        setup.add(0, 500)
    assert setup.drain() == [(0, [0, 1]), (0, [2, 3]), (0, [4, 5])]


def test_a_drained_batch_takes_no_more() -> None:
    setup = Setup()
    setup.add(0, 10)
    drained = setup.it.drain(NODE_1, 0)
    setup.add(0, 10)
    assert [values(batch) for batch in drained] == [[0]]
    assert setup.drain() == [(0, [1])]


def test_completing_gives_memory_back_once() -> None:
    setup = Setup(total_bytes=100)
    setup.add(0, 60)
    (batch,) = setup.it.drain(NODE_1, 0)
    assert setup.it.has_incomplete
    setup.it.succeed(batch, -1, None)
    setup.it.fail(batch, GONE)
    assert batch.state is BatchState.SUCCEEDED
    assert setup.pool.available_bytes == 100
    assert not setup.it.has_incomplete


def test_abort_drops_waiting_and_drained() -> None:
    setup = Setup(total_bytes=5000)
    for partition in range(4):
        setup.add(partition, 1000)
    drained = setup.it.drain(NODE_1, 0)
    assert 0 < len(drained) < 4
    setup.it.abort_incomplete(GONE)
    assert {batch.state for batch in drained} == {BatchState.ABORTED}
    assert setup.pool.available_bytes == 5000
    assert waiting(setup) == 0


def test_no_appends_behind_close() -> None:
    setup = Setup()
    setup.it.close()
    with pytest.raises(ReplogError, match="closed"):
        setup.add(0, 1)


@pytest.mark.guarantee("G8")
def test_wasteful_memory_is_copied_out_of() -> None:
    setup = Setup(total_bytes=2000)
    setup.add(0, 100, pinned_bytes=900)
    setup.add(0, 100, pinned_bytes=200)
    assert setup.pool.available_bytes == 900
    setup.it.copy_wasteful()
    assert setup.pool.available_bytes == 1800
    setup.it.close()
    assert setup.drain() == [(0, [0, 1])]


@pytest.mark.guarantee("G8")
def test_full_pool_of_waiting_batches_ends_in_an_error_without_a_sender() -> None:
    setup = Setup(total_bytes=100)
    setup.add(0, 100)
    with pytest.raises(RetriableError):
        setup.add(0, 1)


def make_batch(limit: int = 1000) -> tuple[ProducerBatch, Any]:
    pool = BufferPool(1 << 20, clock=SYSTEM_CLOCK)
    return ProducerBatch(P[0], limit, 0), PinnedBytes(pool, 0)


class TestProducerBatch:
    records = pa.RecordBatch.from_pydict({"value": pa.array([1, 2])})

    def test_an_empty_one_always_has_room(self) -> None:
        batch, pinned = make_batch(10)
        assert batch.try_append(self.records, 50, pinned)
        assert (batch.row_count, batch.size_bytes) == (2, 50)

    def test_no_room_closes_it(self) -> None:
        batch, pinned = make_batch(10)
        assert batch.try_append(self.records, 8, pinned)
        assert not batch.try_append(self.records, 3, pinned)
        assert not batch.try_append(self.records, 1, pinned)


def test_a_batch_that_ended_meanwhile_is_not_put_back() -> None:
    setup = Setup()
    setup.add(0, 10)
    setup.it.close()
    (batch,) = setup.it.drain(NODE_1, 0)
    setup.it.fail(batch, GONE)
    setup.it.reenqueue(batch, 0)
    assert waiting(setup) == 0


def test_a_batch_that_a_caller_waits_for_goes_once_nothing_is_in_flight(clock):
    woken = []
    setup = accumulator_setup.Setup(clock, sends_awaited=True, wake_up=lambda: woken.append(1))
    handle = setup.add(0)
    setup.add(2)
    assert setup.ready() == set()
    woken.clear()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            handle.result(0)
    assert len(woken) == 1, "the sender is woken once for a batch"
    assert setup.it.ready(0, in_flight_count=1).destinations == ()
    assert setup.ready() == {accumulator_setup.NODE_1}, "the other node's batch waits for linger.ms"


def test_a_caller_that_waits_for_a_drained_batch_does_not_wake_the_sender(clock):
    woken = []
    setup = accumulator_setup.Setup(clock, sends_awaited=True, wake_up=lambda: woken.append(1))
    first, second = setup.add(0), setup.add(1)
    taken = setup.it.drain(accumulator_setup.NODE_1, 0)
    woken.clear()
    with pytest.raises(TimeoutError):
        first.result(0)
    assert woken == []
    for batch in taken:
        setup.it.reenqueue(batch, 0)
    with pytest.raises(TimeoutError):
        second.result(0)
    assert len(woken) == 1, "a batch that waits for another attempt may be sent earlier"


def test_a_linger_that_was_asked_for_is_waited_for(clock):
    setup = accumulator_setup.Setup(clock)
    with pytest.raises(TimeoutError):
        setup.add(0).result(0)
    assert setup.ready() == set()


def test_the_count_of_waiting_batches_is_right_after_each_way_in_and_out() -> None:
    setup = Setup()
    for partition in range(3):
        setup.add(partition, 1000)
        setup.add(partition, 1000)
    assert waiting(setup) == 6
    drained = setup.it.drain(NODE_1, 0)
    assert waiting(setup) == 6 - len(drained)
    setup.it.reenqueue(drained[0], 0)
    assert waiting(setup) == 7 - len(drained)
    setup.it.abort_waiting(GONE)
    assert waiting(setup) == 0
    setup.it.abort_incomplete(GONE)
    assert waiting(setup) == 0


def test_expired_batches_wait_no_more() -> None:
    setup = Setup(delivery_timeout_ms=10)
    setup.add(0, 1000)
    setup.add(1, 1000, now_ms=5)
    assert len(setup.it.expired_batches(10)) == 1
    assert waiting(setup) == 1
