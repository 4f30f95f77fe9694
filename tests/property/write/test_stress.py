"""Many threads on one accumulator and on one buffer pool."""

from __future__ import annotations

import random
import threading

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config.producer import ProducerConfig
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from tests.unit.write.accumulator_setup import NODE_1, TP


@pytest.mark.case("kafka-30")
def test_case_30_stress() -> None:
    count, threads = 10_000, 5
    pool = BufferPool(10_240, clock=SYSTEM_CLOCK, poolable_bytes=1024)
    it = RecordAccumulator(pool, ProducerConfig(batch_size_bytes=1024, max_request_size_bytes=1 << 20, linger_ms=0))
    queues = [it.queue(name) for name in TP[:2]]
    for queue in queues:
        it.assign(queue, NODE_1)
    value = b"v" * 84

    def produce() -> None:
        for number in range(count):
            it.append_record(queues[number % 2], None, value, None, 0, 100, 60_000)

    workers = [threading.Thread(target=produce, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    read = 0
    for now_ms in range(10**9):
        for batch in it.drain(NODE_1, now_ms):
            read += sum(item.records.num_rows for item in batch.take_slices() if item.release() is None)
            it.succeed(batch, 0, None)
        if read == count * threads:
            break
    for worker in workers:
        worker.join(10)
    assert pool.available_bytes == 10_240
    assert not it.has_incomplete


@pytest.mark.case("kafka-39")
def test_stress() -> None:
    it = BufferPool(5_120, clock=SYSTEM_CLOCK, poolable_bytes=1_024)

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(10_000):
            size_bytes = 1_024 if source.random() < 0.5 else source.randrange(5_120)
            buffer = it.allocate_buffer(size_bytes, 60_000)
            assert len(buffer) == size_bytes
            it.deallocate(size_bytes, buffer)
        finished.append(seed)

    finished: list[int] = []
    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(finished) == list(range(10))
    assert it.available_bytes == 5_120
    assert len(it.waiters) == 0
