"""The floors: Python data sources that only pass Arrow batches, or do the least that a log has to.

What replog is measured against. They have replog's read schema, so that the transfer between Python and
the JVM costs the same; whatever replog needs on top of them is replog's own.
"""

from __future__ import annotations

import gc
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from spark_replog.log.codec.data_object import ROW_MEMORY
from spark_replog.storage.direct_write import open_direct, write_direct
from spark_replog.write.partitioner import murmur2_array, partitions_of
from spark_replog.write.task_writer import NEAR_REQUEST_BYTES_MAX

SCHEMA_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
BATCH_ROW_COUNT = 40_000
VALUE_SIZE_BYTES = 100
OPEN_WRITES_MAX = 5
"""replog's default of ``max.in.flight.requests.per.connection``."""


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
    """So many rows of one task, and the files that it checks meanwhile."""

    def __init__(self, row_count: int, files: Sequence[str] = ()) -> None:
        self.row_count, self.files = row_count, files


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


def checked_pieces(files: Sequence[str], piece_bytes: int) -> Iterator[int]:
    """Map the files and yield the checksum of one piece after another: the least that a log's reader has to do."""
    for file in files:
        with open(file, "rb") as opened:
            view = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        for start in range(0, len(view), piece_bytes):
            yield crc32c.crc32c(view[start : start + piece_bytes])


class PassReader(DataSourceReader):
    """Batch read of `rows` rows in `tasks` tasks, which share the files."""

    def __init__(self, rows: int, tasks: int, files: Sequence[str]) -> None:
        self.rows, self.tasks, self.files = rows, tasks, files

    def partitions(self) -> list[Piece]:
        """Return equal pieces."""
        maybe_freeze(bool(self.files))
        return [Piece(self.rows // self.tasks, self.files[number :: self.tasks]) for number in range(self.tasks)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the prebuilt batch again and again; before each, check its share of the files."""
        maybe_freeze(bool(partition.files))
        batch_count = -(-partition.row_count // BATCH_ROW_COUNT)
        share_bytes = sum(os.path.getsize(file) for file in partition.files) // batch_count + 1
        checked = checked_pieces(partition.files, share_bytes)
        for batch in passed_batches(partition.row_count):
            next(checked, None)
            yield batch
        deque(checked, maxlen=0)


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


class LeastTask:
    """One task of the least that a log's writer has to do in Python: no pipeline, no format, no commit.

    It hashes the keys, gathers the rows of two partitions, checksums their memory, and writes it durably, with the
    calls of numpy and Arrow, and the disk's, that replog uses.
    """

    def __init__(self, folders: list[str]) -> None:
        self.folders, self.waiting, self.waiting_bytes, self.crc = folders, list[memoryview](), 0, 0
        self.disk = ThreadPoolExecutor(2 * len(folders))
        self.open: deque[list[Future[None]]] = deque()

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write all rows."""
        row_count = 0
        for batch in iterator:
            row_count += batch.num_rows
            self.append(batch)
        self.put()
        self.await_puts(0)
        self.disk.shutdown()
        return Counted(row_count)

    def append(self, batch: pa.RecordBatch) -> None:
        """Take some rows, and begin to write when there are enough."""
        slots = partitions_of(murmur2_array(batch.column("key")), 2)
        order = np.concatenate([np.flatnonzero(slots == slot) for slot in range(2)])
        taken = pc.take(batch, pa.array(order), boundscheck=False, memory_pool=ROW_MEMORY)
        for buffer in (block for column in taken.columns for block in column.buffers() if block is not None):
            self.crc = crc32c.crc32c(buffer, self.crc)
            self.waiting.append(memoryview(buffer))
            self.waiting_bytes += buffer.size
        if self.waiting_bytes >= NEAR_REQUEST_BYTES_MAX:
            self.put()

    def put(self) -> None:
        """Write the waiting rows, while the next ones arrive; at most `OPEN_WRITES_MAX` are open."""
        pieces, self.waiting, self.waiting_bytes = self.waiting, [], 0
        self.open.append([self.disk.submit(self.write, Path(folder), pieces) for folder in self.folders])
        self.await_puts(OPEN_WRITES_MAX)

    def await_puts(self, open_max: int) -> None:
        """Wait until at most this many writes are open."""
        while len(self.open) > open_max:
            for future in self.open.popleft():
                future.result()

    @staticmethod
    def write(folder: Path, pieces: list[memoryview]) -> None:
        """Write one file, and wait until it is on the disk."""
        folder_fd = os.open(folder, os.O_RDONLY)
        fd = open_direct(uuid4().hex, folder_fd)
        assert fd is not None, "this floor needs O_DIRECT"
        assert write_direct(fd, pieces)
        os.fsync(fd)
        os.close(fd)
        os.close(folder_fd)


class LeastWriter(CountWriter):
    """A batch sink that does the least that a log has to."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        maybe_freeze(True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write rows."""
        maybe_freeze(True)
        return LeastTask(self.folders).run(iterator)


class LeastStreamWriter(CountStreamWriter):
    """A streaming sink that does the least that a log has to."""

    def __init__(self, folders: list[str]) -> None:
        super().__init__(freeze=True)
        self.folders = folders

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Write rows."""
        maybe_freeze(True)
        return LeastTask(self.folders).run(iterator)


class Floor(DataSource):
    """`format("floor")`: options rows, tasks, batches, freeze, folders (with commas) to write to, check (a folder)."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "floor"

    def schema(self) -> str:
        """Return replog's read schema."""
        return SCHEMA_DDL

    def reader(self, schema: object) -> PassReader:
        """Return the batch reader."""
        folder = self.options.get("check")
        files = sorted(str(file) for file in Path(folder).rglob("*") if file.is_file()) if folder else []
        return PassReader(int(self.options["rows"]), int(self.options.get("tasks", 2)), files)

    def streamReader(self, schema: object) -> PassStreamReader:
        """Return the stream reader."""
        options = self.options
        freeze = options.get("freeze") == "true"
        return PassStreamReader(int(options["rows"]), int(options.get("tasks", 2)), int(options["batches"]), freeze)

    def writer(self, schema: object, overwrite: bool) -> CountWriter:
        """Return the batch sink."""
        folders = self.options.get("folders")
        return LeastWriter(folders.split(",")) if folders else CountWriter()

    def streamWriter(self, schema: object, overwrite: bool) -> CountStreamWriter:
        """Return the streaming sink."""
        folders = self.options.get("folders")
        if folders:
            return LeastStreamWriter(folders.split(","))
        return CountStreamWriter(self.options.get("freeze") == "true")
