"""A batch on its way: records of one partition that wait for their data object.

Source: Kafka ``ProducerBatch``, with Arrow slices in place of a growing buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from spark_replog.ids import TopicPartition
from spark_replog.log.data_object import HEADERS_TYPE
from spark_replog.producer.buffer_pool import BufferPool, PinnedBytes


class BatchState(Enum):
    """Where a batch ends; exactly one of the last three, once."""

    INCOMPLETE = "incomplete"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Slice:
    """Records and the reservation of the memory they lie in; released once."""

    records: pa.RecordBatch
    size_bytes: int
    pinned: PinnedBytes

    def release(self) -> None:
        """Give up this slice's hold on its memory."""
        self.pinned.release(self.size_bytes)


class ProducerBatch:
    """Slices of one partition, in order, up to ``batch.size``.

    Invariants:
        Never empty once it is in a queue. Only the last batch of a queue is open.
        It holds its slices until they are taken or it ends.

    Args:
        topic_partition: where its records go.
        batch_size_bytes: no further slice is taken beyond this; a first one always is.
        created_ms: when, for ``linger.ms``.
    """

    __slots__ = (
        "_batch_size_bytes",
        "_slices",
        "created_ms",
        "is_closed",
        "row_count",
        "size_bytes",
        "state",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, batch_size_bytes: int, created_ms: int) -> None:
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.size_bytes = 0
        self.row_count = 0
        self.is_closed = False
        self.state = BatchState.INCOMPLETE
        self._batch_size_bytes = batch_size_bytes
        self._slices: list[Slice] = []

    def try_append(self, records: pa.RecordBatch, size_bytes: int, pinned: PinnedBytes) -> bool:
        """Take a slice of N >= 1 records, or close for appends and return False where it has no room.

        An empty batch always has room, so a slice larger than ``batch.size`` gets one of its own.
        """
        if self.is_closed:
            return False
        if self._slices and self.size_bytes + size_bytes > self._batch_size_bytes:
            self.is_closed = True
            return False
        pinned.retain(size_bytes)
        self._slices.append(Slice(records, size_bytes, pinned))
        self.size_bytes += size_bytes
        self.row_count += records.num_rows
        return True

    @property
    def is_wasteful(self) -> bool:
        """Return whether a slice keeps more than twice alive of what all slices of its memory need."""
        return any(item.pinned.is_wasteful for item in self._slices)

    def copy_slices(self, pool: BufferPool) -> None:
        """Move the records into memory of their own."""
        self._slices = [join_slices(self._slices, pool)]

    def take_slices(self) -> list[Slice]:
        """Hand the slices over, who is to release them now."""
        slices, self._slices = self._slices, []
        return slices

    def complete(self, state: BatchState) -> bool:
        """End the batch; returns False where it had ended before."""
        assert state is not BatchState.INCOMPLETE
        if self.state is not BatchState.INCOMPLETE:
            return False
        self.state = state
        self.is_closed = True
        for item in self.take_slices():
            item.release()
        return True


def join_slices(slices: Sequence[Slice], pool: BufferPool) -> Slice:
    """Return the rows of one or more slices in fresh memory, in order, and release the originals.

    The copy is counted before the originals are given back, as both exist for a moment.
    """
    size_bytes = sum(item.size_bytes for item in slices)
    pool.charge(size_bytes)
    records = _concatenate([item.records for item in slices])
    own = PinnedBytes(pool, size_bytes)
    own.retain(size_bytes)
    own.release()
    for item in slices:
        item.release()
    return Slice(records, size_bytes, own)


def with_headers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records with a headers column, null where they had none."""
    if records.num_columns == 4:
        return records
    columns = [*records.columns, pa.nulls(len(records), HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(columns, [*records.schema.names, "headers"])


def _concatenate(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if any(part.num_columns == 4 for part in parts):
        parts = [with_headers(part) for part in parts]
    columns = [pa.concat_arrays([part.column(index) for part in parts]) for index in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, parts[0].schema.names)


__all__ = ["BatchState", "ProducerBatch", "Slice", "join_slices", "with_headers"]
