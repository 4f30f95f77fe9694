"""The floors: Python data sources that only pass Arrow batches, and do nothing else.

What replog is measured against. They have replog's read schema, so that the transfer between Python and
the JVM costs the same; whatever replog needs on top of them is replog's own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

SCHEMA_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
BATCH_ROW_COUNT = 40_000
VALUE_SIZE_BYTES = 100


def prebuilt_batch(row_count: int) -> pa.RecordBatch:
    """Return one batch in replog's read schema: 10-byte keys, 100-byte values."""
    generator = np.random.default_rng(7)

    def fixed(size: int) -> pa.Array:
        body = pa.py_buffer(generator.integers(0, 255, row_count * size, dtype=np.uint8).tobytes())
        offsets = pa.py_buffer(np.arange(0, (row_count + 1) * size, size, dtype=np.int32).tobytes())
        return pa.Array.from_buffers(pa.binary(), row_count, [None, offsets, body])

    return pa.record_batch(
        {
            "key": fixed(10),
            "value": fixed(VALUE_SIZE_BYTES),
            "topic": pa.array(["floor"] * row_count, pa.string()),
            "partition": pa.array(np.zeros(row_count, np.int32)),
            "offset": pa.array(np.arange(row_count, dtype=np.int64)),
            "timestamp": pa.array(np.full(row_count, 1_700_000_000_000_000), pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array(np.zeros(row_count, np.int32)),
        }
    )


class Piece(InputPartition):
    """So many rows of one task."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count


def maybe_freeze(wanted: bool) -> None:
    """Take imports out of the collection that Spark's daemon runs after each task, as replog does."""
    if wanted and not gc.get_freeze_count():
        gc.freeze()


def passed_batches(row_count: int) -> Iterator[pa.RecordBatch]:
    """Yield the same prebuilt batch until row_count rows have been passed."""
    batch = prebuilt_batch(min(BATCH_ROW_COUNT, row_count))
    while row_count > 0:
        piece = batch if row_count >= batch.num_rows else batch.slice(0, row_count)
        yield piece
        row_count -= piece.num_rows


class PassReader(DataSourceReader):
    """Batch read of `rows` rows in `tasks` tasks."""

    def __init__(self, rows: int, tasks: int) -> None:
        self.rows, self.tasks = rows, tasks

    def partitions(self) -> list[Piece]:
        """Return equal pieces."""
        return [Piece(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the prebuilt batch again and again."""
        yield from passed_batches(partition.row_count)


class PassStreamReader(DataSourceStreamReader):
    """A stream of `rows` rows a micro-batch, for `batches` micro-batches."""

    def __init__(self, rows: int, tasks: int, batches: int, freeze: bool) -> None:
        self.rows, self.tasks, self.batches, self.at, self.freeze = rows, tasks, batches, 0, freeze

    def initialOffset(self) -> dict[str, int]:
        """Start at batch 0."""
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # one argument less: 4.3 calls both forms
        """Advance by one batch a call."""
        self.at = min(self.at + 1, self.batches)
        return {"n": self.at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Piece]:
        """Return equal pieces of the batch."""
        total = (end["n"] - start["n"]) * self.rows
        return [Piece(total // self.tasks) for _ in range(self.tasks)] if total else []

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        maybe_freeze(self.freeze)
        yield from passed_batches(partition.row_count)


class Counted(WriterCommitMessage):
    """What one task counted."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count


class CountWriter(DataSourceArrowWriter):
    """A batch sink that only counts."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count rows."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""


class CountStreamWriter(DataSourceStreamArrowWriter):
    """A streaming sink that only counts."""

    def __init__(self, freeze: bool) -> None:
        self.freeze = freeze
        maybe_freeze(freeze)  # of the processes that plan and commit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count rows."""
        maybe_freeze(self.freeze)
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing."""


class Floor(DataSource):
    """`format("floor")`: options rows, tasks, batches, freeze."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "floor"

    def schema(self) -> str:
        """Return replog's read schema."""
        return SCHEMA_DDL

    def reader(self, schema: object) -> PassReader:
        """Return the batch reader."""
        return PassReader(int(self.options["rows"]), int(self.options.get("tasks", 2)))

    def streamReader(self, schema: object) -> PassStreamReader:
        """Return the stream reader."""
        options = self.options
        freeze = options.get("freeze") == "true"
        return PassStreamReader(int(options["rows"]), int(options.get("tasks", 2)), int(options["batches"]), freeze)

    def writer(self, schema: object, overwrite: bool) -> CountWriter:
        """Return the batch sink."""
        return CountWriter()

    def streamWriter(self, schema: object, overwrite: bool) -> CountStreamWriter:
        """Return the streaming sink."""
        return CountStreamWriter(self.options.get("freeze") == "true")
