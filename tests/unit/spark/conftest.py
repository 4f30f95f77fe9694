"""The data source on a real store, without a JVM: what Spark would call is called here."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.spark import compat
from spark_replog.spark.data_source import ReplogDataSource, read_schema
from tests.unit.spark.sink_writes import Writes

WRITE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("timestamp", TimestampType()),
    ]
)


class Source:
    """A store with topics, the data source's readers and writers on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        init_cluster(str(path), 3, fsync=False)
        self.cluster = Cluster.open(str(path))
        self.controller = Controller(self.cluster)

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        self.controller.create_topic(name, partitions, 3, config, start_index=0)
        return name

    def write(self, topic: str, rows: dict[int, int], *, times_ms: list[float] | None = None, size: int = 1) -> None:
        """Append so many rows per partition, as one batch write of one task; values are x or given times."""
        partitions = np.repeat(list(rows), list(rows.values())).astype(np.int32)
        times = np.full(len(partitions), 1000) if times_ms is None else np.asarray(times_ms)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.nulls(len(partitions), pa.binary()),
                pa.array([b"x" * size] * len(partitions), pa.binary()),
                pa.array(partitions),
                pa.array((times * 1000).astype(np.int64)).cast(pa.timestamp("us", tz="UTC")),
            ],
            names=["key", "value", "partition", "timestamp"],
        )
        source = ReplogDataSource({"path": str(self.path), "topic": topic})
        writer = source.writer(WRITE_SCHEMA, False)
        writer.commit([writer.write(iter([batch]))])

    def stream(self, **options: str):
        return self._source(options).streamReader(read_schema(include_headers=False))

    def batch(self, **options: str):
        return self._source(options).reader(read_schema(include_headers=False))

    def _source(self, options: dict[str, str]) -> ReplogDataSource:
        return ReplogDataSource({"path": str(self.path), **{name.lower(): value for name, value in options.items()}})

    def rows(self, reader, partitions=None) -> dict[str, list[int]]:
        """Read all tasks; return offsets per partition, in the order in which they came.

        Spark pickles the reader and its partitions to every task.
        """
        partitions = reader.partitions() if partitions is None else partitions
        reader, partitions = cloudpickle.loads(cloudpickle.dumps((reader, partitions)))
        offsets: dict[str, list[int]] = {}
        for task in reader.partitions() if partitions is None else partitions:
            for batch in reader.read(task):
                for topic, partition, offset in zip(
                    *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True
                ):
                    offsets.setdefault(f"{topic}-{partition}", []).append(offset)
        return offsets


class Query:
    """A streaming query as Spark 4.2 and up runs it, without its sink."""

    def __init__(self, source: Source, *, limit="default", **options: str) -> None:
        self.source = source
        self.options = options
        self.committed: dict | None = None
        self.restart(limit=limit)

    def restart(self, *, limit="default", **options: str) -> None:
        self.options.update(options)
        self.reader = self.source.stream(**self.options)
        self.limit = self.reader.getDefaultReadLimit() if limit == "default" else limit

    def next(self) -> dict[str, list[int]] | None:
        """Run one micro-batch; None where nothing is new."""
        is_first = self.committed is None
        start = json.loads(json.dumps(self.reader.initialOffset() if is_first else self.committed))
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.limit)))
        if json.dumps(end) == json.dumps(start) and not is_first:
            return None
        rows = self.source.rows(self.reader, self.reader.partitions(start, end))
        self.committed = end
        return rows

    def position(self, topic: str) -> dict[str, int]:
        assert self.committed is not None
        return self.committed[topic]


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "store")


@pytest.fixture
def start_query(source):
    def start(**options):
        return Query(source, **options)

    return start


@pytest.fixture
def freezes(monkeypatch):
    """How often objects were taken out of garbage collection, in a process that has frozen nothing."""
    calls = []
    monkeypatch.setattr(compat, "_frozen_module_count", 0)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(len(sys.modules)))
    return calls


@pytest.fixture
def writes(source, monkeypatch):
    source.topic("orders")
    return Writes(source, monkeypatch)
