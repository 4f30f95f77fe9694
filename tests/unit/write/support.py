"""A write task over memory roots, and rows for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.config.producer import ProducerConfig
from spark_replog.log.codec.data_object import decode_section
from spark_replog.log.write_plan import WritePlan
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.paths import data_key
from spark_replog.storage.retrying_store import RetryingStore
from spark_replog.write.task_writer import TaskResult, TaskWriter
from tests.counting_store import CountingStore
from tests.faulty_store import FaultyStore

QUICK = ProducerConfig(
    replica_grace_ms=30,
    request_timeout_ms=5_000,
    delivery_timeout_ms=10_000,
    retry_backoff_ms=1,
    retry_backoff_max_ms=5,
)
HASTY = replace(QUICK, request_timeout_ms=200, delivery_timeout_ms=400)
"""For tests in which no put can succeed."""
PATIENT = replace(QUICK, replica_grace_ms=20_000, request_timeout_ms=30_000, delivery_timeout_ms=60_000)
"""For tests that count puts: none is late or repeated on a busy machine."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class FaultyBrokers(BrokerSet):
    """Memory roots behind a fault injector and a counter. Retries are off unless asked for."""

    retry_deadline_ms = 0

    def __init__(self, inner: BrokerSet) -> None:
        super().__init__(
            inner.cluster_id, inner.brokers, inner.metadata_broker_ids, fsync=inner.fsync, storage_options={}
        )
        self.counting = {broker_id: CountingStore(inner.store(broker_id).store) for broker_id in inner.broker_ids}
        self.faulty = {broker_id: FaultyStore(store) for broker_id, store in self.counting.items()}

    def store(self, broker_id: int) -> ObjectStore:
        return RetryingStore(self.faulty[broker_id], deadline_ms=self.retry_deadline_ms, clock=SYSTEM_CLOCK)

    def data_keys(self, broker_id: int) -> list[str]:
        return [info.key for info in self.counting[broker_id].store.list_keys("ledgers/") if "/data/" in info.key]

    def put_count(self) -> int:
        return sum(store.counts["create"] for store in self.counting.values())


class Task:
    """A writer with its roots."""

    def __init__(self, brokers: Any, plan: WritePlan, config: ProducerConfig, default_topic: str | None) -> None:
        self.brokers = brokers
        self.plan = plan
        for store in brokers.counting.values():
            store.reset()
        self.writer = TaskWriter(
            plan,
            config,
            brokers,
            query_id="queryid-" + "0" * 24,
            batch_id=7,
            task_id=3,
            default_topic=default_topic,
        )

    def write(self, *batches: pa.RecordBatch) -> TaskResult:
        for batch in batches:
            self.writer.append(batch)
        return self.writer.close()

    def rows(self, result: TaskResult) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return what lies on every holder, by topic and partition, in the order of the message."""
        names = {topic.topic_id: topic.name for topic in self.plan.topics}
        rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for ledger_id, item in result.objects:
            bodies = {
                bytes(self.brokers.counting[broker_id].store.get(data_key(ledger_id, *item.id)))
                for broker_id in item.holders
            }
            assert len(bodies) == 1
            body = bodies.pop()
            assert len(body) == item.size_bytes
            for section in item.sections:
                part = body[section.start_byte : section.start_byte + section.size_bytes]
                for batch in decode_section(part, section.crc32c, section.row_count, item.has_headers):
                    rows[names[section.topic_id], section.partition] += batch.to_pylist()
        return dict(rows)

    def values(self, result: TaskResult) -> dict[tuple[str, int], list[bytes]]:
        return {name: [row["value"] for row in rows] for name, rows in self.rows(result).items()}


def batch(count: int, first: int = 0, *, size_bytes: int = 10, **columns: Any) -> pa.RecordBatch:
    """Rows with values that count; keys likewise unless given."""
    numbers = range(first, first + count)
    values = {
        "key": pa.array([b"key%d" % number for number in numbers], pa.binary()),
        "value": pa.array([b"%0*d" % (size_bytes, number) for number in numbers], pa.binary()),
    }
    return pa.RecordBatch.from_pydict({key: column for key, column in (values | columns).items() if column is not None})


def written(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [value for item in batches for value in item.column("value").to_pylist()]
