"""A plain producer's accumulator whose time is the test's."""

from __future__ import annotations

import random
from typing import Any

from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.producer_batch import Destination, ProducerBatch, record_size
from spark_replog.write.record_handle import RecordHandle

NODE_1 = Destination("ledger", 0, (0,), None, "none")
NODE_2 = Destination("ledger", 0, (1,), None, "none")
TP = [TopicPartition("orders", number) for number in range(5)]
HUGE_MS = 10**9
ERROR = ReplogError(ErrorCode.INVALID_REQUEST, "closed forcefully.")


def accumulator_config(
    batch_size: int, request_size: int, linger_ms: int | None, delivery_timeout_ms: int = 4 * HUGE_MS, **more: int
) -> ProducerConfig:
    return ProducerConfig(
        batch_size_bytes=batch_size,
        max_request_size_bytes=request_size,
        linger_ms=linger_ms,
        delivery_timeout_ms=delivery_timeout_ms,
        request_timeout_ms=1,
        **more,  # type: ignore[arg-type]
    )


class Setup:
    """An accumulator whose time is the test's. A record of ``size`` counts exactly so many bytes."""

    def __init__(
        self,
        clock: Any,
        *,
        batch_size: int = 1024,
        request_size: int = 1 << 20,
        total: int = 1 << 20,
        linger_ms: int | None = HUGE_MS,
        nodes: tuple[Destination, ...] = (NODE_1, NODE_1, NODE_2),
        **more: Any,
    ) -> None:
        timeouts = {name: more.pop(name) for name in list(more) if name.endswith("_ms")}
        self.clock = clock
        clock.time_ms = 0
        self.pool = BufferPool(total, clock=clock, poolable_bytes=batch_size)
        self.it = RecordAccumulator(
            self.pool,
            accumulator_config(batch_size, request_size, linger_ms, **timeouts),
            clock=clock,
            random_source=random.Random(0),
            **more,
        )
        self.queues = [self.it.queue(name) for name in TP[: len(nodes)]]
        for queue, node in zip(self.queues, nodes, strict=True):
            self.it.assign(queue, node)
        self.woken = 0

    @property
    def is_flushing(self) -> bool:
        return self.it._flush_count > 0

    def add(self, partition: int, size: int = 100, value: bytes | None = None, time_ms: int = 0) -> RecordHandle:
        value = b"v" * (size - 16) if value is None else value
        queue = self.queues[partition]
        return self.it.append_record(queue, None, value, None, time_ms, record_size(None, value, None), 0)

    def ready(self) -> set[Destination]:
        return set(self.it.ready(self.clock.time_ms, in_flight_count=0).destinations)

    def delay(self) -> int | None:
        return self.it.ready(self.clock.time_ms, in_flight_count=0).next_check_ms

    def drain(self, *nodes: Destination) -> list[ProducerBatch]:
        return [batch for node in nodes or (NODE_1,) for batch in self.it.drain(node, self.clock.time_ms)]

    def partitions(self, *nodes: Destination) -> list[int]:
        drained = self.drain(*nodes)
        for batch in drained:
            self.it.succeed(batch, -1, None)
        return [batch.topic_partition.partition for batch in drained]


def records(batch: ProducerBatch) -> list[bytes]:
    """Take the batch's records as the sender does, and let their memory go."""
    values = []
    for item in batch.take_slices():
        values += item.records.column(1).to_pylist()
        item.release()
    return values


def put_back(setup: Setup, batch: ProducerBatch) -> None:
    """Re-enqueue a drained batch, as the sender does after it gave the records back."""
    setup.it.reenqueue(batch, setup.clock.time_ms)
