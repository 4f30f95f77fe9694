"""The accumulator under random histories against a model: a list of records per partition, in order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import data_schema
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.columns import ROW_OVERHEAD_BYTES, row_ends
from spark_replog.write.producer_batch import BatchState, Destination, PartitionQueue, ProducerBatch, record_size
from spark_replog.write.record_handle import RecordHandle
from tests.examples import examples
from tests.unit.write.accumulator_setup import accumulator_config

TOTAL_BYTES = 1 << 20
BATCH_BYTES = 120
REQUEST_BYTES = 300
LINGER_MS = 10
TIMEOUT_MS = 100
NODES = [Destination("ledger", 0, (number,), None, "none") for number in range(2)]
TP = [TopicPartition("orders", number) for number in range(4)]
ERROR = ReplogError(ErrorCode.NOT_ENOUGH_REPLICAS, "gone. Wait.")
partitions = st.integers(0, len(TP) - 1)


class TestClock:
    __test__ = False
    time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    monotonic_ms = now_ms

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError("nothing here waits")


def ids_of(batch: ProducerBatch) -> list[int]:
    """Look at a drained batch's records and leave them."""
    slices = batch.take_slices()
    ids = [int(value) for item in slices for value in item.records.column(1).to_pylist()]
    batch.give_back(slices)
    return ids


class AccumulatorMachine(RuleBasedStateMachine):
    fills_requests = False

    @initialize(seed=st.integers(0, 99))
    def start(self, seed: int) -> None:
        self.clock = TestClock()
        self.pool = BufferPool(TOTAL_BYTES, clock=self.clock, poolable_bytes=BATCH_BYTES)
        self.it = RecordAccumulator(
            self.pool,
            accumulator_config(
                BATCH_BYTES, REQUEST_BYTES, LINGER_MS, TIMEOUT_MS, retry_backoff_ms=5, retry_backoff_max_ms=20
            ),
            fills_requests=self.fills_requests,
            clock=self.clock,
            random_source=random.Random(seed),
        )
        self.queues = [self.it.queue(name) for name in TP]
        for number, queue in enumerate(self.queues):
            self.it.assign(queue, NODES[number % 2])
        self.waiting: dict[TopicPartition, list[int]] = {name: [] for name in TP}
        self.drained: list[tuple[ProducerBatch, list[int]]] = []
        self.handles: dict[int, RecordHandle] = {}
        self.told: Counter[int] = Counter()
        self.acknowledged: dict[int, int] = {}
        self.failed: set[int] = set()
        self.flushing = 0
        self.next_offset = 0

    def track(self, number: int, handle: RecordHandle) -> None:
        self.handles[number] = handle
        handle.add_done_callback(lambda _handle: self.told.update([number]))

    @rule(partition=partitions, padding=st.integers(1, 150))
    def append_record(self, partition: int, padding: int) -> None:
        number = len(self.handles)
        value = b"%0*d" % (padding, number)
        size = record_size(None, value, None)
        self.track(number, self.it.append_record(self.queues[partition], None, value, None, 0, size, 0))
        self.waiting[TP[partition]].append(number)

    @rule(partition=partitions, count=st.integers(1, 8), padding=st.integers(1, 40))
    def append_slice(self, partition: int, count: int, padding: int) -> None:
        count = max(1, min(count, REQUEST_BYTES // (max(padding, 6) + ROW_OVERHEAD_BYTES)))  # as appenders cut them
        numbers = range(len(self.handles), len(self.handles) + count)
        rows = pa.RecordBatch.from_pydict(
            {"key": [None] * count, "value": [b"%0*d" % (padding, n) for n in numbers], "timestamp": [0] * count},
            schema=data_schema(False),
        )
        size = int(row_ends(rows)[-1])
        self.pool.allocate(size, 0)
        pinned = PinnedBytes(self.pool, size)
        result, first = self.it.append(self.queues[partition], rows, size, pinned, self.clock.time_ms)
        pinned.release()
        for index, number in enumerate(numbers):
            self.track(number, RecordHandle(result, first + index))
        self.waiting[TP[partition]] += numbers

    @rule(node=st.sampled_from(NODES))
    def drain(self, node: Destination) -> None:
        ready = self.expected_drainable(node)
        batches = self.it.drain(node, self.clock.time_ms)
        assert bool(batches) == bool(ready)
        sizes = [batch.size_bytes for batch in batches]
        if self.fills_requests:
            assert sum(sizes[:-1]) < REQUEST_BYTES
        elif len(sizes) > 1:
            assert sum(sizes) <= REQUEST_BYTES
        for batch in batches:
            ids = ids_of(batch)
            waiting = self.waiting[batch.topic_partition]
            assert ids == waiting[: len(ids)]
            del waiting[: len(ids)]
            assert batch.size_bytes <= REQUEST_BYTES or batch.row_count == 1
            assert self.queue_of(batch).destination == node and not self.queue_of(batch).is_muted
            self.drained.append((batch, ids))

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        batch, numbers = self.drained.pop(data.draw(st.integers(0, len(self.drained) - 1)))
        base, self.next_offset = self.next_offset, self.next_offset + len(numbers)
        self.release(batch)
        assert self.it.succeed(batch, base, None)
        assert not self.it.fail(batch, ERROR)
        self.acknowledged |= {number: base + index for index, number in enumerate(numbers)}

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        batch, numbers = self.drained.pop(data.draw(st.integers(0, len(self.drained) - 1)))
        self.release(batch)
        assert self.it.fail(batch, ERROR)
        assert not self.it.succeed(batch, 0, None)
        self.failed |= set(numbers)

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        batch, numbers = self.drained.pop(data.draw(st.integers(0, len(self.drained) - 1)))
        self.it.reenqueue(batch, self.clock.time_ms)
        name = batch.topic_partition
        self.waiting[name] = numbers + self.waiting[name]

    @rule(partition=partitions, mutes=st.booleans())
    def mute(self, partition: int, mutes: bool) -> None:
        (self.it.mute if mutes else self.it.unmute)([TP[partition]])

    @rule(partition=partitions, node=st.sampled_from(NODES))
    def move(self, partition: int, node: Destination) -> None:
        self.it.assign(self.queues[partition], node)

    @rule(after_ms=st.integers(1, 30))
    def pass_time(self, after_ms: int) -> None:
        self.clock.time_ms += after_ms

    @rule()
    def expire(self) -> None:
        for batch in self.it.expired_batches(self.clock.time_ms):
            assert self.clock.time_ms - batch.created_ms >= TIMEOUT_MS
            waiting = self.waiting[batch.topic_partition]
            numbers, waiting[:] = waiting[: batch.row_count], waiting[batch.row_count :]
            assert self.it.fail(batch, ERROR)
            self.failed |= set(numbers)

    @rule(begins=st.booleans())
    def flush(self, begins: bool) -> None:
        if begins:
            self.it.begin_flush()
            self.flushing += 1
        elif self.flushing:
            self.it.end_flush()
            self.flushing -= 1

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self.queues[batch.topic_partition.partition]

    def release(self, batch: ProducerBatch) -> None:
        """As the sender does: the object took the records and lets them go."""
        for item in batch.take_slices():
            item.release()

    def expected_drainable(self, node: Destination) -> list[PartitionQueue]:
        """The queues whose first batch may go: not muted, not in a pause, or with a new leader since."""
        queues = []
        for queue in self.queues:
            if queue.destination != node or queue.is_muted or not queue.batches:
                continue
            head = queue.batches[0]
            waited = self.clock.time_ms - head.last_attempt_ms
            if waited >= head.backoff_ms or queue.leader_epoch != head.leader_epoch:
                queues.append(queue)
        return queues

    def is_ready(self, node: Destination) -> bool:
        queues = self.expected_drainable(node)
        size = sum(batch.size_bytes for queue in queues for batch in queue.batches)
        for queue in queues:
            head = queue.batches[0]
            lingered = self.clock.time_ms - head.last_attempt_ms >= LINGER_MS
            full = len(queue.batches) > 1 or head.is_closed or head.size_bytes >= BATCH_BYTES
            if self.fills_requests:
                full = size >= REQUEST_BYTES
            if self.flushing or lingered or full:
                return True
        return False

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "it"):
            return
        check = self.it.ready(self.clock.time_ms, in_flight_count=0)
        assert set(check.destinations) == {node for node in NODES if self.is_ready(node)}
        for queue in self.queues:
            assert all(batch.row_count for batch in queue.batches)
            assert all(batch.is_closed or batch is queue.batches[-1] for batch in queue.batches)
            assert sum(batch.row_count for batch in queue.batches) == len(self.waiting[queue.topic_partition])
        done = self.acknowledged.keys() | self.failed
        assert {number for number, handle in self.handles.items() if handle.done()} == done
        assert self.told == Counter(done)
        assert self.it.waiting_count == sum(len(queue.batches) for queue in self.queues)
        assert bool(self.it.waiting_count) == any(self.waiting.values())
        assert self.it.has_incomplete == (len(done) < len(self.handles))

    def teardown(self) -> None:
        if not hasattr(self, "it"):
            return
        for batch, _ in self.drained:
            self.release(batch)
        self.it.abort_incomplete(ERROR)
        for number, handle in self.handles.items():
            if number in self.acknowledged:
                assert handle.result(0).offset == self.acknowledged[number]
            else:
                assert handle.exception(0) is ERROR
        assert self.told == Counter(self.handles.keys())
        assert self.pool.available_bytes == TOTAL_BYTES
        assert {batch.state for batch, _ in self.drained} <= {BatchState.ABORTED}


class FillingMachine(AccumulatorMachine):
    fills_requests = True


_SETTINGS: Any = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestAccumulator = AccumulatorMachine.TestCase
TestAccumulator.settings = _SETTINGS
TestFillingAccumulator = FillingMachine.TestCase
TestFillingAccumulator.settings = _SETTINGS
