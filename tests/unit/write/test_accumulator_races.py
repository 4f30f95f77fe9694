"""Appends that meet each other, a close, or the end of memory."""

from __future__ import annotations

from typing import Any

import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.producer_batch import Destination
from spark_replog.write.record_handle import RecordHandle
from tests.unit.write.accumulator_setup import NODE_1, NODE_2, TP, Setup, records


class RacingPool(BufferPool):
    """Lets a test act between the two phases of an append."""

    meanwhile: Any = None

    def allocate_buffer(self, size_bytes: int, max_block_ms: int) -> bytearray:
        buffer = super().allocate_buffer(size_bytes, max_block_ms)
        if self.meanwhile is not None:
            action, self.meanwhile = self.meanwhile, None
            action()
        return buffer


def racing(clock: Any) -> tuple[Setup, RacingPool]:
    setup = Setup(clock, total=4096)
    pool = RacingPool(4096, clock=clock, poolable_bytes=1024)
    setup.pool = setup.it.pool = pool
    return setup, pool


@pytest.mark.case("kafka-29")
def test_case_29_two_threads_on_an_empty_queue_make_one_batch(clock: Any) -> None:
    setup, pool = racing(clock)
    inner: list[RecordHandle] = []
    pool.meanwhile = lambda: inner.append(setup.add(0, value=b"second thread"))
    outer = setup.add(0, value=b"first thread")
    (batch,) = setup.queues[0].batches
    assert pool.available_bytes == 4096 - 1024
    (drained,) = setup.drain()
    assert drained is batch
    assert records(batch) == [b"second thread", b"first thread"]
    setup.it.succeed(batch, 0, None)
    assert (inner[0].result(0).offset, outer.result(0).offset) == (0, 1)
    assert pool.available_bytes == 4096


def test_a_close_between_the_phases_refuses_and_gives_the_buffer_back(clock: Any) -> None:
    setup, pool = racing(clock)
    pool.meanwhile = setup.it.close
    with pytest.raises(ReplogError, match="closed"):
        setup.add(0)
    assert pool.available_bytes == 4096
    assert not setup.it.has_incomplete


class TestSlicesAndRecordsTogether:
    def test_order_is_kept_and_no_batch_mixes_them(self, clock: Any) -> None:
        import pyarrow as pa

        from spark_replog.log.codec.data_object import data_schema
        from spark_replog.write.buffer_pool import PinnedBytes

        setup = Setup(clock)
        rows = pa.RecordBatch.from_pydict(
            {"key": [None], "value": [b"slice"], "timestamp": [0]}, schema=data_schema(False)
        )

        def add_slice() -> None:
            setup.pool.allocate(21, 0)
            pinned = PinnedBytes(setup.pool, 21)
            setup.it.append(setup.queues[0], rows, 21, pinned, 0)
            pinned.release()

        setup.add(0, value=b"one")
        setup.add(0, value=b"two")
        add_slice()
        add_slice()
        setup.add(0, value=b"three")
        assert [batch.is_closed for batch in setup.queues[0].batches] == [True, True, False]
        drained = setup.drain()
        values = [records(batch) for batch in drained]
        assert values == [[b"one", b"two"], [b"slice", b"slice"], [b"three"]]


class TestMemory:
    def test_a_record_larger_than_the_pool_is_refused_at_once(self, clock: Any) -> None:
        setup = Setup(clock, total=2048)
        with pytest.raises(InvalidConfigError) as caught:
            setup.add(0, 2049)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert not setup.it.has_incomplete

    def test_no_memory_in_time_appends_nothing(self, clock: Any) -> None:
        setup = Setup(clock, total=1024)
        setup.add(0)
        with pytest.raises(RetriableError) as caught:
            setup.add(1)
        assert caught.value.code is ErrorCode.REPLOG_BUFFER_EXHAUSTED
        assert not setup.queues[1].batches

    def test_a_record_without_memory_closes_the_batch_that_had_no_room_for_it(self, clock: Any) -> None:
        setup = Setup(clock, total=1024)
        setup.add(0, 900)
        for size_bytes in (200, 50):  # the second would have had room, and would overtake
            with pytest.raises(RetriableError):
                setup.add(0, size_bytes)
        assert [batch.row_count for batch in setup.queues[0].batches] == [1]

    def test_somebody_who_waits_for_memory_makes_nodes_ready(self, clock: Any) -> None:
        setup = Setup(clock, total=1024)
        setup.add(0)
        seen: list[set[Destination]] = []

        def run_once(_left_ms: int) -> None:
            seen.append(setup.ready())
            for batch in setup.drain():
                setup.it.succeed(batch, 0, None)

        setup.pool.allocate(1024, 10, run_once)
        assert seen == [{NODE_1}]

    def test_buffers_are_used_again(self, clock: Any) -> None:
        setup = Setup(clock, total=4096)
        for _ in range(3):
            setup.add(0)
            (batch,) = setup.drain()
            for item in batch.take_slices():
                item.release()
            setup.it.succeed(batch, 0, None)
        assert setup.pool.unallocated_bytes == 4096 - 1024
        assert setup.pool.available_bytes == 4096


def test_close_makes_all_ready_and_refuses(clock: Any) -> None:
    setup = Setup(clock)
    setup.add(0)
    setup.add(2)
    setup.it.close()
    assert setup.ready() == {NODE_1, NODE_2}
    with pytest.raises(ReplogError, match="closed"):
        setup.add(0)


def test_a_partition_that_nobody_assigned_yet_waits(clock: Any) -> None:
    setup = Setup(clock, linger_ms=0)
    queue = setup.it.queue(TP[4])
    setup.queues.append(queue)
    setup.add(3)
    assert setup.ready() == set()
    setup.it.assign(queue, NODE_2)
    assert setup.ready() == {NODE_2}
    assert [batch.topic_partition for batch in setup.drain(NODE_2)] == [TP[4]]


def test_a_new_batch_wakes_the_sender_and_a_small_record_does_not(clock: Any) -> None:
    woken: list[int] = []
    setup = Setup(clock, wake_up=lambda: woken.append(1))
    setup.add(0)
    setup.add(0)
    assert len(woken) == 1
    setup.add(0, 1024)
    assert len(woken) == 2
