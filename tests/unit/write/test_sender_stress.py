"""Eight threads, failing roots and a failing log: every future once, and what is acknowledged is read."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import decode_section
from spark_replog.log.model import PartitionResponse
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.data_request import DataRequest, Delivered, DeliveryResult, ObjectBuilder
from spark_replog.write.producer_batch import Destination, record_size
from spark_replog.write.record_handle import RecordHandle
from spark_replog.write.sender import Sender
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.transport import PutTransport
from tests.faulty_store import FaultRates, FaultyStore

pytestmark = pytest.mark.case("producer-eight-threads-failing-roots")

THREADS = 8
RECORDS = 400
PARTITIONS = 4
TP = [TopicPartition("orders", number) for number in range(PARTITIONS)]
CONFIG = ProducerConfig(
    linger_ms=1,
    replica_grace_ms=5,
    request_timeout_ms=2_000,
    delivery_timeout_ms=120_000,
    retry_backoff_ms=1,
    retry_backoff_max_ms=4,
)


@dataclass
class Partition:
    """A log as Kafka's broker judges it: one producer, a window of five batches."""

    values: list[bytes] = field(default_factory=list)
    epoch: int = 0
    next_sequence: int = 0
    window: list[tuple[int, int, int, int]] = field(default_factory=list)

    def append(self, epoch: int, first: int, values: list[bytes]) -> PartitionResponse:
        for known_epoch, known_first, count, base in self.window:
            if (known_epoch, known_first, count) == (epoch, first, len(values)):
                return PartitionResponse(base_offset=base)
        expected = self.next_sequence if epoch == self.epoch else 0
        if epoch < self.epoch or first != expected:
            return PartitionResponse(ReplogError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{expected} is next."))
        base = len(self.values)
        self.values += values
        self.epoch, self.next_sequence = epoch, first + len(values)
        self.window = [*self.window[-4:], (epoch, first, len(values), base)]
        return PartitionResponse(base_offset=base)


class FailingLog:
    """A delivery whose log forgets to answer, or refuses, by a seed; an append without an answer is repeated."""

    def __init__(self, read: Callable[[DataRequest], dict[TopicPartition, list[bytes]]], seed: int) -> None:
        self.partitions = {name: Partition() for name in TP}
        self.faults: Counter[str] = Counter()
        self._read = read
        self._random = random.Random(seed)
        self._delayed: list[DeliveryResult] = []

    def begin(self, request: DataRequest) -> None: ...

    def deliver(self, request: DataRequest) -> Delivered:
        numbers = {}
        for batch in reversed(request.batches):
            numbers[batch.topic_partition] = (batch.producer.epoch, batch.base_sequence)
        answers: dict[TopicPartition, PartitionResponse] = {}
        fault = ""
        while fault not in ("none", "away"):
            # "away" is told only if no earlier attempt may be in the log.
            faults = ["none", "unknown", "lost", "away"]
            fault = self._random.choices(faults, [0.6, 0.1, 0.15, 0.15 if fault == "" else 0])[0]
            self.faults[fault] += 1
            if fault in ("none", "lost"):
                values = self._read(request)
                answers = {name: self.partitions[name].append(*numbers[name], values[name]) for name in numbers}
        if fault == "away":
            error = RetriableError(ErrorCode.REPLOG_NO_QUORUM, "away.")
            answers = dict.fromkeys(numbers, PartitionResponse(error))
        self._delayed.append(DeliveryResult(request.sequence, answers))
        return Delivered.PENDING

    def poll(self) -> list[DeliveryResult]:
        """Answer some of what was asked, in order, the rest later."""
        cut = self._random.randrange(len(self._delayed) + 1) if len(self._delayed) > 1 else len(self._delayed)
        results, self._delayed = self._delayed[:cut], self._delayed[cut:]
        return results


@pytest.mark.parametrize("max_in_flight", [1, 5])
def test_every_future_once_and_all_that_is_acknowledged_is_read(
    make_brokers: Callable[..., Any], make_topic: Callable[..., TopicPlan], max_in_flight: int
) -> None:
    brokers = make_brokers(3)
    rates = FaultRates(fail_before=0.1, lose_answer=0.1)
    brokers.faulty = {
        broker_id: FaultyStore(store, seed=broker_id, rates=rates) for broker_id, store in brokers.counting.items()
    }
    topic = make_topic(sets=((0, 1, 2),) * PARTITIONS)

    def read(request: DataRequest) -> dict[TopicPartition, list[bytes]]:
        values: dict[TopicPartition, list[bytes]] = defaultdict(list)
        assert len(request.holders) >= 2
        body = bytes(brokers.counting[min(request.holders)].store.get(request.key))
        for item in request.data_object.sections:
            part = body[item.start_byte : item.start_byte + item.size_bytes]
            for rows in decode_section(part, item.crc32c, item.row_count, request.data_object.has_headers):
                values[TP[item.partition]] += rows.column(1).to_pylist()
        return values

    sequences = ProducerSequences("me")
    pool = BufferPool(16 * 1024, clock=SYSTEM_CLOCK, poolable_bytes=1024)
    accumulator = RecordAccumulator(
        pool,
        replace(CONFIG, batch_size_bytes=1024, max_request_size_bytes=4096, retry_backoff_ms=1, retry_backoff_max_ms=4),
        sequences=sequences,
    )
    queues = [accumulator.queue(name) for name in TP]
    for queue in queues:
        accumulator.assign(queue, Destination(topic.ledger_id, topic.generation, (0, 1, 2), None, "none"))
    transport = PutTransport(brokers)
    log = FailingLog(read, seed=max_in_flight)
    plan = WritePlan("memory://store", (topic,), "User:t", 0)
    sender = Sender(
        accumulator,
        transport,
        ObjectBuilder(plan, pool, query_id="q" * 32, batch_id=0, task_id=0),
        ProducerConfig(**{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"max_in_flight": max_in_flight}),
        delivery=log,
        report=lambda _error: None,
        random_source=random.Random(0),
        sequences=sequences,
    )
    told: Counter[bytes] = Counter()
    handles: dict[bytes, tuple[int, RecordHandle]] = {}
    finished = threading.Semaphore(0)

    def produce(thread: int) -> None:
        try:
            send_all(thread)
        finally:
            finished.release()

    def send_all(thread: int) -> None:
        source = random.Random(thread)
        for number in range(RECORDS):
            value = b"%d-%d-" % (thread, number) + b"x" * source.randrange(60)
            partition = source.randrange(PARTITIONS)
            size = record_size(None, value, None)
            handle = accumulator.append_record(queues[partition], None, value, None, 0, size, 60_000)
            handle.add_done_callback(lambda _done, value=value: told.update([value]))
            handles[value] = (partition, handle)

    threads = [threading.Thread(target=produce, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    waiting = THREADS
    while waiting or accumulator.has_incomplete:
        transport.wait(min(sender.run_once(SYSTEM_CLOCK.monotonic_ms()), 1))
        if waiting and finished.acquire(blocking=False):
            waiting -= 1
            if not waiting:
                accumulator.close()
    assert len(handles) == THREADS * RECORDS
    assert told == Counter(handles.keys())
    by_partition: dict[int, dict[int, bytes]] = defaultdict(dict)
    for value, (partition, handle) in handles.items():
        by_partition[partition][handle.result(0).offset] = value
    for partition, name in enumerate(TP):
        assert log.partitions[name].values == [value for _, value in sorted(by_partition[partition].items())]
    for name in TP:
        for thread in range(THREADS):
            numbers = [int(v.split(b"-")[1]) for v in log.partitions[name].values if v.startswith(b"%d-" % thread)]
            assert numbers == sorted(numbers)
    assert min(log.faults[fault] for fault in ("away", "unknown", "lost")) > 0
    assert sum(len(store.injected) for store in brokers.faulty.values()) > 0
    assert sequences.producer.epoch == 0
    assert (sender.in_flight_count, pool.available_bytes) == (0, pool.total_bytes)
