"""A plain producer's sender whose time and answers are the test's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.log.model import PartitionResponse
from spark_replog.log.write_plan import WritePlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.data_request import OPEN, DataRequest, Delivered, DeliveryResult, ObjectBuilder
from spark_replog.write.producer_batch import Destination, record_size
from spark_replog.write.record_handle import RecordHandle
from spark_replog.write.sender import Sender
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.transport import PutResult, RootHealth

CONFIG = ProducerConfig(
    linger_ms=0, delivery_timeout_ms=1_500, request_timeout_ms=1_000, retry_backoff_ms=10, retry_backoff_max_ms=10
)
TP = [TopicPartition("orders", number) for number in range(3)]
NODES = [Destination("ledger", 0, (number,), None, "none") for number in range(3)]

DISCONNECT = RetriableError(ErrorCode.REPLOG_NO_QUORUM, "the roots are away. Try again.")
UNKNOWN = OutcomeUnknownError(ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN, "no answer. Try again.")
AFTER_APPEND = RetriableError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "in the log. Repeat it.")
NOT_LEADER = RetriableError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader. Wait.")
OUT_OF_ORDER = ReplogError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap. Send what is missing.")
TOO_LARGE = ReplogError(ErrorCode.MESSAGE_TOO_LARGE, "too large. Send less.")
INVALID = ReplogError(ErrorCode.INVALID_RECORD, "a record is invalid. Correct it.")
FENCED = FencedError(ErrorCode.PRODUCER_FENCED, "a newer producer exists. Close this one.")


class FakeTransport:
    """Keeps what was sent until the test answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answers: list[PutResult] = []
        self.health = RootHealth()

    def put(self, broker_id: int, key: str, buffers: Any, **more: Any) -> None:
        more["check_root"] = self.health.on_sent(broker_id)
        self.sent.append({"broker_id": broker_id, "key": key, "body": b"".join(buffers), **more})

    def poll(self, now_ms: int) -> Iterator[tuple[PutResult, bool]]:
        while self.answers:
            answer = self.answers.pop(0)
            yield answer, self.health.on_answered(answer, now_ms)

    def answer(self, broker_id: int, error: ReplogError | None = None, *, sequence: int | None = None) -> None:
        """Answer the oldest unanswered put on a root."""
        for put in self.sent:
            if put["broker_id"] == broker_id and sequence in (None, put["sequence"]) and "done" not in put:
                put["done"] = True
                self.answers.append(PutResult(put["sequence"], broker_id, put["attempt"], put["check_root"], error))
                return
        raise AssertionError(f"nothing was sent to {broker_id}")

    def on(self, broker_id: int) -> list[dict[str, Any]]:
        return [put for put in self.sent if put["broker_id"] == broker_id]


class FakeDelivery:
    """Keeps what was handed over until the test answers."""

    def __init__(self) -> None:
        self.begun: list[DataRequest] = []
        self.delivered: list[DataRequest] = []
        self.sequences: list[list[tuple[int, int]]] = []
        self.results: list[DeliveryResult] = []
        self.outcome = Delivered.PENDING

    def begin(self, request: DataRequest) -> None:
        self.begun.append(request)

    def deliver(self, request: DataRequest) -> Delivered:
        self.delivered.append(request)
        self.sequences.append([(batch.producer.epoch, batch.base_sequence) for batch in request.batches])
        return self.outcome

    def poll(self) -> list[DeliveryResult]:
        results, self.results = self.results, []
        return results


class Setup:
    """Each ``send`` makes a batch of its own unless told otherwise; roots answer at once unless held."""

    def __init__(
        self, plan: WritePlan, config: ProducerConfig, clock: Any, idempotent: bool, batch_size: int = 1000
    ) -> None:
        self.clock = clock
        clock.time_ms = 0
        self.config = config
        self.sequences = ProducerSequences("me") if idempotent else None
        self.pool = BufferPool(1 << 20, clock=clock, poolable_bytes=batch_size)
        source = random.Random(0)
        self.accumulator = RecordAccumulator(
            self.pool,
            replace(config, batch_size_bytes=batch_size, max_request_size_bytes=batch_size),
            clock=clock,
            random_source=source,
            sequences=self.sequences,
        )
        self.queues = [self.accumulator.queue(name) for name in TP]
        for queue, node in zip(self.queues, NODES, strict=True):
            self.accumulator.assign(queue, node)
        self.transport = FakeTransport()
        self.delivery = FakeDelivery()
        self.reported: list[ReplogError] = []
        self.answers_puts = True
        self.sender = Sender(
            self.accumulator,
            self.transport,  # type: ignore[arg-type]
            ObjectBuilder(plan, self.pool, query_id="q" * 32, batch_id=0, task_id=0),
            config,
            delivery=self.delivery,
            report=self.reported.append,
            random_source=source,
            sequences=self.sequences,
        )

    def send(self, partition: int = 0, value: bytes = b"v", count: int = 1) -> RecordHandle:
        size = record_size(None, value, None)
        handles = [
            self.accumulator.append_record(self.queues[partition], None, value, None, 5, size, 0) for _ in range(count)
        ]
        return handles[0]

    def run(self, after_ms: int = 0) -> None:
        """Pass time, run, let the roots answer, run: what may be handed over is."""
        self.clock.time_ms += after_ms
        for _ in range(3):
            self.sender.run_once(self.clock.time_ms)
            if self.answers_puts:
                for put in self.transport.sent:
                    if "done" not in put:
                        self.transport.answer(put["broker_id"])

    def refuse_puts(self, error: ReplogError, until_ms: int = 0) -> None:
        """Let the roots refuse what is sent, again and again until this time."""
        while True:
            for put in self.transport.sent:
                if "done" not in put:
                    self.transport.answer(put["broker_id"], error)
            self.run()
            if self.clock.time_ms >= until_ms:
                return
            self.run(after_ms=20)

    def send_and_run(self, partition: int = 0, count: int = 1) -> RecordHandle:
        handle = self.send(partition, count=count)
        self.run()
        return handle

    @property
    def open(self) -> list[DataRequest]:
        return [request for request in self.delivery.delivered if request.state in OPEN]

    def sent_requests(self) -> list[DataRequest]:
        """Return the objects whose records have no outcome yet, in drain order."""
        return [request for request in self.delivery.begun if request.state in OPEN]

    def answer(self, request: DataRequest, error: ReplogError | None = None, offset: int = -1, **more: Any) -> None:
        """Answer all partitions of a delivered request, and run."""
        response = PartitionResponse(error, offset, **more)
        names = request.topic_partitions
        self.delivery.results.append(DeliveryResult(request.sequence, dict.fromkeys(names, response)))
        self.run()

    def numbers(self) -> list[tuple[int, int]]:
        """Return (epoch, base sequence) of the requests that wait for an answer."""
        return [(batch.producer.epoch, batch.base_sequence) for item in self.open for batch in item.batches]

    def entry(self, partition: int = 0) -> Any:
        """Return what is known of a partition's sequences."""
        assert self.sequences is not None
        return self.sequences._entry(TP[partition])

    def last_acked_sequence(self, partition: int = 0) -> int | None:
        sequence = self.entry(partition).last_acked_sequence
        return None if sequence < 0 else sequence

    def next_sequence(self, partition: int = 0) -> int:
        return self.entry(partition).next_sequence

    def has_unresolved(self, partition: int = 0) -> bool:
        return self.entry(partition).unresolved is not None

    def check_clean(self) -> None:
        assert self.sender.in_flight_count == 0
        assert not self.accumulator.has_incomplete
        assert self.pool.available_bytes == self.pool.total_bytes
