"""A write task's sender whose time and answers are the test's."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.data_object import data_schema
from spark_replog.log.write_plan import WritePlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.data_request import DataRequest, ObjectBuilder
from spark_replog.write.producer_batch import Destination
from spark_replog.write.sender import Sender
from tests.unit.write.sender_setup import FakeTransport

RETRIABLE = OutcomeUnknownError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "lost.")
REFUSED = ReplogError(ErrorCode.REPLOG_STORE_REFUSED, "no room.")
STALE = RetriableError(ErrorCode.REPLOG_ROOT_STALE, "gone.")
CONFIG = ProducerConfig(delivery_timeout_ms=10_000, request_timeout_ms=3_000)


class TaskSetup:
    def __init__(self, plan: WritePlan, config: ProducerConfig) -> None:
        self.pool = BufferPool(1 << 20, clock=SYSTEM_CLOCK)
        self.accumulator = RecordAccumulator(
            self.pool, replace(config, batch_size_bytes=1000, max_request_size_bytes=3000), fills_requests=True
        )
        self.transport = FakeTransport()
        self.reported: list[ReplogError] = []
        self.acks = config.acks
        self.ran_ms = 0
        self.sender = Sender(
            self.accumulator,
            self.transport,  # type: ignore[arg-type]
            ObjectBuilder(plan, self.pool, query_id="q" * 32, batch_id=1, task_id=2),
            config,
            delivery=None,
            report=self.reported.append,
            random_source=random.Random(0),
        )

    def add(
        self,
        size_bytes: int = 3000,
        *,
        brokers: tuple[int, ...] = (0, 1, 2),
        spares: tuple[int, ...] = (),
        partition: int = 0,
    ) -> None:
        columns = [
            pa.nulls(2, pa.binary()),
            pa.array([b"a", b"b"]),
            pa.array([1, 2]).cast(pa.timestamp("us", tz="UTC")),
        ]
        records = pa.RecordBatch.from_arrays(columns, schema=data_schema(False))
        self.pool.allocate(size_bytes, 0)
        pinned = PinnedBytes(self.pool, size_bytes)
        leader = None if self.acks == -1 else brokers[0]
        destination = Destination("ledger", 0, tuple(sorted(brokers)), leader, "none", spares)
        queue = self.accumulator.queue(TopicPartition("orders", partition))
        self.accumulator.assign(queue, destination)
        self.accumulator.append(queue, records, size_bytes, pinned, 0)
        pinned.release()

    def run(self, now_ms: int) -> int:
        """Run as an owner that waits for answers does: at least once a second."""
        for step_ms in range(self.ran_ms + 1_000, min(now_ms, self.ran_ms + 60_000), 1_000):
            self.sender.run_once(step_ms)
        self.ran_ms = now_ms
        return self.sender.run_once(now_ms)

    @property
    def first(self) -> DataRequest:
        return self.sender.requests[0]
