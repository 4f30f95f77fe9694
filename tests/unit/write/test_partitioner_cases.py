"""Kafka's cases of the partitioner (1 to 6), and murmur2 of single keys."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import TopicPartition
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.partitioner import (
    NodeAvailability,
    RoundRobinPartitioner,
    StickyPartitioner,
    make_partitioner,
    murmur2,
    murmur2_array,
    partition_of,
)
from spark_replog.write.producer_batch import Destination

NODES = [Destination("L", 0, (number,), None, "none") for number in range(2)]
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
    b"kafka": -798503068,
    b"giberish123456789": -1890243828,
    b"1234": -1614185708,
    b"234": -406844982,
    b"34": -2026295078,
    b"4": 1514888353,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 2017611548,
    b"reAmbleWillBeRemoved,ThePrePartThatIs": 1247982455,
    b"eAmbleWillBeRemoved,ThePrePartThatIs": -521871202,
    b"AmbleWillBeRemoved,ThePrePartThatIs": 1656271935,
    b"0": 971027396,
    b"1": -1993445489,
    b"a": -1563381124,
    b"ab": 316155434,
    b"abcd": -1323649548,
    b"key": -1079937367,
    b"123456789": -1822237082,
    b"\x00\x20": 1121897742,
    b"\xff\xfe\xfd\xfc\xfb": 524068735,
    "\u00e9\u20ac\U0001d11e".encode(): 983480520,
    bytes(range(256)): -1948347274,
}


class Draws:
    """Draws 0, 1, 2 ... and counts."""

    def __init__(self, first: int = 0) -> None:
        self.count = 0
        self.first = first

    def randrange(self, limit: int) -> int:
        drawn = self.first + self.count
        self.count += 1
        return drawn % limit


class Setup:
    """An accumulator with the queues of one topic."""

    def __init__(self, partitions: int = 3, batch_size_bytes: int = 1_024, **given) -> None:
        self.pool = BufferPool(1 << 20, clock=SYSTEM_CLOCK)
        self.it = RecordAccumulator(
            self.pool, ProducerConfig(batch_size_bytes=batch_size_bytes, max_request_size_bytes=1 << 20, linger_ms=0)
        )
        self.queues = [self.it.queue(TopicPartition("t", number)) for number in range(partitions)]
        for number, queue in enumerate(self.queues):
            self.it.assign(queue, NODES[number // 2])
        self.draws = Draws()
        available = given.pop("available", range(partitions))
        self.sticky = StickyPartitioner(self.queues, available, batch_size_bytes, self.draws, **given)

    def append(self, size_bytes: int) -> int:
        value = b"x" * (size_bytes - 16)
        handle = self.it.append_record(self.sticky.queue, None, value, None, 0, size_bytes, 0, self.sticky)
        return handle.batch_result.topic_partition.partition


def draw(setup: Setup) -> int:
    """Return the partition that the next batch would go to."""
    return setup.sticky._draw()


def table_of(setup: Setup) -> object:
    """Return the weights by which partitions are drawn, None where all weigh the same."""
    return setup.sticky._table


@pytest.mark.case("kafka-1")
@pytest.mark.parametrize("key", VECTORS, ids=lambda key: repr(key[:20]))
def test_case_1_murmur2_of_one_key(key):
    signed = VECTORS[key]
    assert murmur2(key) == signed % 2**32
    for count in (3, 10, 12, 1000):
        assert partition_of(key, count) == (signed & 0x7FFFFFFF) % count
    assert murmur2_array(pa.array([key], pa.binary())).tolist() == [signed % 2**32]


def test_one_key_and_a_column_agree():
    source = random.Random(7)
    keys = [source.randbytes(source.randrange(40)) for _ in range(2_000)]
    assert [murmur2(key) for key in keys] == murmur2_array(pa.array(keys, pa.binary())).tolist()


@pytest.mark.case("kafka-3")
def test_case_3_uniform_sticky():
    """Kafka's partitions; a batch of batch.size is full at once here, so a draw comes one append earlier."""
    setup = Setup()
    appends = [(setup.append(size), setup.draws.count) for size in (512, 1_040, 1_040, 1_040, 1_040)]
    assert appends == [(0, 1), (0, 2), (1, 3), (2, 4), (0, 5)]


def test_a_half_full_batch_puts_the_switch_off_until_it_is_closed():
    setup = Setup(batch_size_bytes=1_000)
    assert [setup.append(100) for _ in range(9)] == [0] * 9
    assert [setup.append(150) for _ in range(8)] == [0] * 6 + [1] * 2
    assert [batch.size_bytes for batch in setup.queues[0].batches] == [900, 900]


def test_twice_its_share_switches_whatever_is_left_half_full():
    setup = Setup(batch_size_bytes=1_000)
    setup.append(100)
    setup.sticky.add(1_899)
    assert setup.sticky.queue is setup.queues[0]
    setup.sticky.add(1)
    assert setup.sticky.queue is setup.queues[1]


def test_bytes_of_a_partition_are_shared_evenly_in_the_long_run():
    setup = Setup(batch_size_bytes=1_000)
    setup.sticky._random = random.Random(3)
    totals = [0, 0, 0]
    for _ in range(6_000):
        totals[setup.append(100)] += 1
        for node in NODES:
            for batch in setup.it.drain(node, 0):
                setup.it.succeed(batch, 0, None)
    assert max(totals) - min(totals) < 600


@pytest.mark.case("kafka-4")
def test_case_4_adaptive():
    setup = Setup()
    setup.sticky.update_loads([1, 7, 2])
    drawn = [draw(setup) for _ in range(28)]
    assert [drawn.count(number) for number in range(3)] == [14, 2, 12]
    availability = NodeAvailability(100)
    availability.note([NODES[0]], 0)
    availability.note([NODES[0]], 200)
    gone = frozenset(n for n, q in enumerate(setup.queues) if not availability.is_available(q.destination, 200))
    assert gone == {0, 1}
    setup.sticky.update_loads([1, 7, 2], gone)
    setup.append(1_040)
    assert {setup.append(1_040) for _ in range(10)} == {2}
    availability.note([], 201)
    assert availability.is_available(NODES[0], 500)


def test_without_a_time_out_every_node_is_available():
    availability = NodeAvailability(0)
    availability.note([NODES[0]], 0)
    assert availability.is_available(NODES[0], 10**9)


@pytest.mark.case("kafka-5")
def test_case_5_adaptive_weights():
    setup = Setup(partitions=4)
    setup.sticky = StickyPartitioner([*setup.queues, setup.queues[0]], range(5), 1_024, setup.draws)
    setup.sticky.update_loads([5, 0, 3, 0, 1])
    assert table_of(setup) == ([1, 7, 10, 16, 21], [0, 1, 2, 3, 4])
    setup.draws.count = 0
    drawn = [draw(setup) for _ in range(42)]
    assert drawn[:21] == [0] + [1] * 6 + [2] * 3 + [3] * 6 + [4] * 5
    assert [drawn.count(number) for number in range(5)] == [2, 12, 6, 12, 10]


def test_two_partitions_are_weighed_and_a_node_is_away_behind_its_time_out_only():
    setup = Setup(partitions=2)
    setup.sticky.update_loads([5, 0])
    assert table_of(setup) == ([1, 7], [0, 1])
    availability = NodeAvailability(1)
    availability.note([NODES[0]], 0)
    assert [availability.is_available(NODES[0], now_ms) for now_ms in (1, 2)] == [True, False]


@pytest.mark.case("kafka-26")
def test_case_26_a_round_of_small_records_makes_one_fractional_batch():
    """testBuiltInPartitionerFractionalBatches: the switch does not scatter a round over partitions."""
    setup = Setup(batch_size_bytes=512)
    partitions = set()
    for now_ms in range(10, 110, 10):
        for _ in range(10):
            setup.append(48)
        (node,) = setup.it.ready(now_ms, in_flight_count=0).destinations
        (batch,) = setup.it.drain(node, now_ms)
        assert 256 < batch.size_bytes < 512
        assert not any(queue.batches for queue in setup.queues)
        setup.it.succeed(batch, 0, None)
        partitions.add(batch.topic_partition.partition)
    assert len(partitions) > 1


@pytest.mark.parametrize("lengths", [[2, 2, 2], [0, 0, 0]])
def test_even_queues_and_a_switched_off_adaption_draw_uniformly(lengths):
    setup = Setup()
    setup.sticky.update_loads(lengths)
    assert table_of(setup) is None
    fixed = Setup(is_adaptive=False)
    fixed.sticky.update_loads([1, 7, 2])
    assert [draw(fixed) for _ in range(3)] == [1, 2, 0]


@pytest.mark.case("kafka-6")
def test_case_6_partitions_without_leader_are_left_out_unless_all_are():
    setup = Setup(available=[1])
    assert {draw(setup) for _ in range(10)} == {1}
    setup.sticky.update_loads([0, 9, 0])
    assert {draw(setup) for _ in range(10)} == {1}
    assert {StickyPartitioner(setup.queues, [], 1, random.Random(number)).queue for number in range(50)} == set(
        setup.queues
    )


def test_round_robin_counts_per_topic_and_over_columns():
    partitioner = make_partitioner("RoundRobinPartitioner")
    assert partitioner is not None
    assert [partitioner.partition(topic, None, None, None, None, 3) for topic in "aabab"] == [0, 1, 0, 2, 1]
    columns = RoundRobinPartitioner()
    keys = pa.array([b"k"] * 4, pa.binary())
    assert [*columns.partition_array(keys, 3), *columns.partition_array(keys, 3)] == [0, 1, 2, 0, 1, 2, 0, 1]
