"""A streaming query's sink without a JVM: the classes that Spark runs, each step in a process of its own."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any

import pyarrow as pa
import pytest

from spark_replog.cluster import cluster
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.spark.sink import sink
from spark_replog.spark.sink.sink import StreamWriter
from spark_replog.spark.source.batch_reader import BatchReader
from spark_replog.storage.io_pool import IoPool

OPTIONS = {
    "kafka.acks": "1", "replica.grace.ms": "50", "request.timeout.ms": "8000", "delivery.timeout.ms": "16000",
    "retry.backoff.ms": "5", "replica.lag.time.max.ms": "3000", "replica.rejoin.wait.ms": "0",
}  # fmt: skip


class Query:
    """One streaming query: every micro-batch is planned, written and committed as Spark's processes do it."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        made = {"path": str(store.path), "topic": "orders", "checkpointLocation": "x", **OPTIONS, **options}
        self.options = parse_sink_options(made, streaming=True)
        self.batch_id = 0
        self.store = store
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(sink.TaskContext, "get", lambda: self)

    def partitionId(self) -> int:
        """As of the task's context."""
        return 0

    def getLocalProperty(self, name: str) -> str:
        """As of the task's context."""
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(self.batch_id)}.get(name, "run")

    def plan(self) -> StreamWriter:
        forget_process()
        return pickle.loads(pickle.dumps(StreamWriter(self.options)))

    def write(self, planned: StreamWriter, *values: bytes) -> Any:
        rows = pa.record_batch(
            {"value": pa.array(values, pa.binary()), "partition": pa.array([0] * len(values), pa.int32())}
        )
        return pickle.loads(pickle.dumps(planned.write(iter([rows]))))

    def write_without(self, away: Collection[int], planned: StreamWriter, *values: bytes) -> Any:
        """Write while these roots are away; they are back when every put was answered: a late one would still land."""
        started: list[Future[Any]] = []
        submit_to = IoPool.submit_to

        def remember(pool: IoPool, *call: Any) -> Future[Any]:
            started.append(submit_to(pool, *call))
            return started[-1]

        for broker_id in away:
            self.store.away(broker_id)
        with self.monkeypatch.context() as patched:
            patched.setattr(IoPool, "submit_to", remember)
            message = self.write(planned, *values)
        assert not wait(started, timeout=60).not_done
        for broker_id in away:
            self.store.back(broker_id)
        return message

    def commit(self, *messages: Any) -> None:
        forget_process()
        StreamWriter(self.options).commit(list(messages), self.batch_id)

    def batch(self, *values: bytes) -> None:
        self.commit(self.write(self.plan(), *values))
        self.batch_id += 1


def forget_process() -> None:
    """What follows runs in another process of Spark's."""
    cluster._forget_shared()
    sink.shared_manager.cache_clear()


def read(store: Any) -> list[bytes]:
    """What ``spark.read`` gives, and that its offsets are dense."""
    forget_process()
    reader = BatchReader(parse_source_options({"path": str(store.path), "subscribe": "orders"}, streaming=False))
    tables = [pa.Table.from_batches(list(reader.read(partition))) for partition in reader.partitions()]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    return [row["value"] for row in rows]
