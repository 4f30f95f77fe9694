"""Rows gathered by partition are cut into slices that fit a request."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.config.producer import ProducerConfig
from spark_replog.write import arrow_appender
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.arrow_appender import ArrowAppender, RowRouter, SlotRows, gather
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.columns import ROW_OVERHEAD_BYTES, InputColumns, Rows, row_ends

LIMITS = ProducerConfig(batch_size_bytes=1000, max_request_size_bytes=1000, linger_ms=0)


def pieces_of(sizes: list[int], batch: int, limit: int) -> list[tuple[int, int, int]]:
    values = [bytes(size - ROW_OVERHEAD_BYTES) for size in sizes]
    rows = pa.RecordBatch.from_pydict({"key": pa.nulls(len(sizes), pa.binary()), "value": values})
    pieces = SlotRows(rows, [4], [0, len(sizes)]).pieces(batch, limit)
    return [(start, stop, size) for slot, start, stop, size in pieces if slot == 4]


@pytest.mark.parametrize(
    ("sizes", "batch", "limit", "cuts"),
    [
        ([100] * 6, 600, 600, [(0, 6)]),
        ([100] * 6, 200, 600, [(0, 2), (2, 4), (4, 6)]),
        ([600, 600], 1000, 1000, [(0, 1), (1, 2)]),  # about a batch, and too large for a request
        ([600, 5000, 600], 10_000, 1000, [(0, 1), (1, 2), (2, 3)]),
        ([5000], 1000, 1000, [(0, 1)]),
    ],
)
@pytest.mark.case("kafka-23")
def test_no_slice_of_several_rows_is_larger_than_a_request(sizes, batch, limit, cuts) -> None:
    pieces = pieces_of(sizes, batch, limit)
    assert [(start, stop) for start, stop, _ in pieces] == cuts
    assert [size for *_, size in pieces] == [sum(sizes[start:stop]) for start, stop in cuts]


@pytest.mark.parametrize("run", [1, 7, 500])
def test_rows_are_gathered_by_slot_in_their_order(run) -> None:
    """However long the runs of one slot are: few runs are joined, rows that alternate are taken."""
    source = random.Random(run)
    slots = np.repeat([source.randrange(9) for _ in range(2_000 // run + 1)], run)[:2_000].astype(np.uint8)
    values = [str(number).encode() * source.randrange(3) for number in range(2_000)]
    data = pa.RecordBatch.from_pydict({"value": values, "list": [[value] for value in values]})
    rows = Rows(data, None, None, 0, 0)
    gathered = gather(rows, slots, 100, 1_900)
    there = sorted(set(slots[100:1_900].tolist()))
    expected = {slot: [number for number in range(100, 1_900) if slots[number] == slot] for slot in there}
    assert gathered.slots == list(expected)
    for index, numbers in enumerate(expected.values()):
        start, stop = gathered.bounds[index : index + 2]
        assert gathered.data.slice(start, stop - start).equals(data.take(pa.array(numbers)))


def test_any_rows_are_cut_whole_and_in_order() -> None:
    source = random.Random(7)
    for _ in range(300):
        sizes = [16 + source.randrange(source.choice((1, 50, 2_000))) for _ in range(source.randrange(1, 60))]
        batch, limit = source.randrange(1, 3_000), source.randrange(1, 3_000)
        pieces = pieces_of(sizes, batch, limit)
        assert [row for start, stop, _ in pieces for row in range(start, stop)] == list(range(len(sizes)))
        assert all(size <= limit or stop - start == 1 for start, stop, size in pieces)


@pytest.mark.case("kafka-24")
def test_slices_of_one_piece_of_memory_give_it_back_with_the_last_of_them(clock, make_topic, make_plan, make_brokers):
    config = ProducerConfig(batch_size_bytes=1000, max_request_size_bytes=1000)
    pool = BufferPool(1 << 16, clock=clock)
    accumulator = RecordAccumulator(pool, LIMITS, clock=clock)
    plan = make_plan(make_brokers(), make_topic())
    router = RowRouter(plan, config, "orders", random.Random(0), None, row_bytes_max=pool.total_bytes)
    appender = ArrowAppender(router, accumulator, config=config, clock=clock)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v" * 484] * 5, pa.binary())})
    slices = list(appender.append(InputColumns(batch.schema, "orders").normalise(batch, 0)))
    assert [count for *_, count in slices] == [2, 1, 2]
    taken = pool.total_bytes - pool.available_bytes
    (destination,) = accumulator.ready(0, in_flight_count=0).destinations
    drained = [accumulator.drain(destination, 0) for _ in range(3)]
    assert [[item.row_count for item in batches] for batches in drained] == [[2], [1], [2]]
    for (sent,), left in zip(drained, (taken, taken, 0), strict=True):
        assert accumulator.succeed(sent, 0, None)
        assert not accumulator.succeed(sent, 0, None)
        assert pool.total_bytes - pool.available_bytes == left


def test_memory_of_rows_that_could_not_be_gathered_is_given_back(
    clock, make_topic, make_plan, make_brokers, monkeypatch
):
    config = ProducerConfig()
    pool = BufferPool(1 << 16, clock=clock)
    accumulator = RecordAccumulator(pool, LIMITS, clock=clock)
    plan = make_plan(make_brokers(), make_topic(sets=((0, 1, 2),) * 2))
    router = RowRouter(plan, config, "orders", random.Random(0), None, row_bytes_max=pool.total_bytes)
    appender = ArrowAppender(router, accumulator, config=config, clock=clock)
    batch = pa.RecordBatch.from_pydict({"value": [b"0", b"1"], "partition": pa.array([0, 1], pa.int32())})
    rows = InputColumns(batch.schema, "orders").normalise(batch, 0)

    def without_memory(*_):
        raise pa.ArrowMemoryError("realloc of size 64 failed")

    with monkeypatch.context() as patch:
        patch.setattr(arrow_appender, "gather", without_memory)
        with pytest.raises(pa.ArrowMemoryError):
            list(appender.append(rows))
    assert pool.available_bytes == pool.total_bytes
    assert len(list(appender.append(rows))) == 2


def test_sizes_of_single_rows_are_not_asked_for_where_the_sum_of_all_decides(
    clock, make_topic, make_plan, make_brokers, monkeypatch
):
    pool = BufferPool(1 << 20, clock=clock)
    accumulator = RecordAccumulator(pool, LIMITS, clock=clock)
    plan = make_plan(make_brokers(), make_topic(sets=((0, 1, 2),) * 2))
    router = RowRouter(plan, ProducerConfig(), "orders", random.Random(0), None, row_bytes_max=pool.total_bytes)
    asked = []
    monkeypatch.setattr(Rows, "ends", property(lambda rows: asked.append(rows) or row_ends(rows.data)))
    appender = ArrowAppender(router, accumulator, config=ProducerConfig(), clock=clock)

    def append(**columns):
        batch = pa.RecordBatch.from_pydict(columns)
        slices = list(appender.append(InputColumns(batch.schema, "orders").normalise(batch, 0)))
        assert sum(count for *_, count in slices) == len(batch)
        return len(asked)

    assert append(key=[b"a", b"b", b"c"], value=[b"v" * 90] * 3) == 0
    assert append(value=[b"v" * 90] * 3) > 0, "the sticky partition changes by bytes"
