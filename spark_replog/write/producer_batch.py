"""Records of one partition that wait for their data object, and where that object goes.

Source: Kafka ``ProducerBatch`` and ``MemoryRecordsBuilder``, with Arrow slices or columns in place of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, LedgerId, TopicId, TopicPartition
from spark_replog.log.codec.data_object import (
    HEADERS_TYPE,
    ROW_MEMORY,
    TIMESTAMP_TYPE,
    array_of,
    data_schema,
    has_headers,
    with_headers,
)
from spark_replog.log.row_schema import RowSchema
from spark_replog.write.buffer_pool import BufferPool, PinnedBytes
from spark_replog.write.columns import HEADER_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES
from spark_replog.write.record_handle import BatchResult

Headers = Sequence[tuple[str, bytes | None]]

_OFFSETS = "i"
assert array(_OFFSETS).itemsize == 4, "Arrow's binary offsets are 32 bits"


def record_size(key: bytes | None, value: bytes | pa.Array | None, headers: Headers | None) -> int:
    """Return the bytes that one record counts for, as ``columns.row_ends`` counts rows; a typed row about as many."""
    size_bytes = ROW_OVERHEAD_BYTES
    if value is not None:
        size_bytes += value.nbytes if isinstance(value, pa.Array) else len(value)
    if key is not None:
        size_bytes += len(key)
    if headers:
        for name, content in headers:
            size_bytes += HEADER_OVERHEAD_BYTES + len(name.encode()) + (0 if content is None else len(content))
    return size_bytes


class OpenRecords(ABC):
    """The open end of a batch of single records. Not thread-safe: its accumulator's lock guards it.

    Args:
        limit_bytes: ``batch.size``; only a first record may exceed it.
        pinned: the reservation of the records' memory, which this owns.
    """

    __slots__ = ("_pinned", "limit_bytes", "record_size_max", "result", "row_count", "schema", "size_bytes")

    def __init__(
        self, limit_bytes: int, result: BatchResult, pinned: PinnedBytes, schema: RowSchema | None = None
    ) -> None:
        self.schema = schema
        self.result = result
        self.limit_bytes = limit_bytes
        self.row_count = 0
        self.size_bytes = 0
        self.record_size_max = 0
        self._pinned = pinned

    @abstractmethod
    def try_append(self, key: Any, value: Any, headers: Headers | None, timestamp_ms: int, size_bytes: int) -> int:
        """Add a record; return its number, or -1 if it does not fit."""

    @abstractmethod
    def build(self) -> pa.RecordBatch:
        """Return the records in the columns in which they are stored."""

    def to_slices(self) -> Slices:
        """Return the records as one slice of the reserved memory, whose hold it takes over. No appends follow."""
        item = Slice(self.build(), self.size_bytes, self._pinned)
        self._pinned.retain(self.size_bytes)
        self._pinned.release()
        return Slices(self.limit_bytes, [item], self.size_bytes, self.row_count, self.record_size_max)

    def release(self) -> None:
        """Give up the hold on the memory."""
        self._pinned.release()


class RecordColumns(OpenRecords):
    """Keys and values of single records, in one buffer.

    Args:
        buffer: holds keys and values; at least ``limit_bytes``, and the first record.
        limit_bytes: ``batch.size``; only a first record may exceed it.
        pinned: the reservation of the buffer, which this owns.
    """

    __slots__ = (
        "_buffer",
        "_empty_keys",
        "_empty_values",
        "_has_null_values",
        "_headers",
        "_key_start",
        "_key_starts",
        "_timestamps",
        "_value_end",
        "_value_ends",
    )

    def __init__(self, buffer: bytearray, limit_bytes: int, result: BatchResult, pinned: PinnedBytes) -> None:
        super().__init__(limit_bytes, result, pinned)
        self._buffer = buffer
        self._value_end = 0
        self._key_start = len(buffer)
        self._value_ends = array(_OFFSETS, [0])
        self._key_starts = array(_OFFSETS, [len(buffer)])
        self._timestamps = result.timestamps
        # Rows with an empty value or key, which are rare. A value or key without bytes that is not listed here is null.
        self._empty_values: list[int] = []
        self._has_null_values = False
        self._empty_keys: list[int] = []
        self._headers: dict[int, Headers] = {}

    def try_append(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int, size_bytes: int
    ) -> int:
        """Add a record; return its number, or -1 if it does not fit.

        Args:
            timestamp_ms: 0 or later.
            size_bytes: from ``record_size``.
        """
        total_bytes = self.size_bytes + size_bytes
        row = self.row_count
        if total_bytes > self.limit_bytes and row:
            return -1
        try:
            key_start, value_end = self._key_start, self._value_end
            if key:
                key_start -= len(key)
                self._buffer[key_start : self._key_start] = key
            if value:
                value_end += len(value)
                self._buffer[self._value_end : value_end] = value
            elif value is not None:
                self._empty_values.append(row)
            else:
                self._has_null_values = True
            if not key and key is not None:
                self._empty_keys.append(row)
            if headers:
                self._headers[row] = headers
            self._timestamps.append(timestamp_ms)
            self._key_starts.append(key_start)
            self._value_ends.append(value_end)
            self._key_start, self._value_end = key_start, value_end
            self.size_bytes = total_bytes
            if size_bytes > self.record_size_max:
                self.record_size_max = size_bytes
            self.row_count = row + 1
        except BaseException:  # Ctrl-C may come at any line, and rows after a half record would get each other's keys
            self._cut(total_bytes - size_bytes)
            raise
        return row

    def _cut(self, size_bytes: int) -> None:
        """Drop what is there of a record that was not appended to its end."""
        row = self.row_count
        del self._timestamps[row:], self._key_starts[row + 1 :], self._value_ends[row + 1 :]
        self._key_start, self._value_end, self.size_bytes = self._key_starts[row], self._value_ends[row], size_bytes
        for rows in (self._empty_values, self._empty_keys):
            if rows and rows[-1] == row:
                rows.pop()
        self._headers.pop(row, None)

    def build(self) -> pa.RecordBatch:
        """Return the records: key, value, timestamp, and headers if any has one.

        Values share the buffer, which must live as long; keys are copied into row order.
        """
        columns = [self._keys(), self._values(), _times(self._timestamps)]
        if self._headers:
            columns.append(_header_column(self._headers, self.row_count))
        return pa.RecordBatch.from_arrays(columns, schema=data_schema(bool(self._headers)))

    def _keys(self) -> pa.Array:
        if self._key_start == len(self._buffer) and not self._empty_keys:
            return pa.nulls(self.row_count, pa.binary())
        # The buffer holds keys from the last record to the first.
        offsets = np.ascontiguousarray(np.frombuffer(self._key_starts, np.int32)[::-1])
        last = self.row_count - 1
        backwards = _column(offsets, [last - row for row in self._empty_keys], pa.py_buffer(self._buffer))
        return backwards.take(array_of(np.arange(last, -1, -1)))

    def _values(self) -> pa.Array:
        data = pa.py_buffer(self._buffer).slice(0, self._value_end)
        if not self._has_null_values:
            return pa.Array.from_buffers(pa.binary(), self.row_count, [None, pa.py_buffer(self._value_ends), data])
        return _column(np.frombuffer(self._value_ends, np.int32), self._empty_values, data)


class RowColumns(OpenRecords):
    """Single rows of a typed topic. Each was converted and checked on its own; they are joined some at a time.

    The pool's buffer only counts their memory: Arrow allocates it, up to `ROWS_APART_MAX` rows apart.

    Args:
        schema: the columns of the rows.
    """

    __slots__ = ("_apart", "_headers", "_joined", "_timestamps")

    def __init__(self, schema: RowSchema, limit_bytes: int, result: BatchResult, pinned: PinnedBytes) -> None:
        super().__init__(limit_bytes, result, pinned, schema)
        self._joined: list[pa.Array] = []
        self._apart: list[pa.Array] = []
        self._timestamps = result.timestamps
        self._headers: dict[int, Headers] = {}

    def try_append(
        self, key: bytes | None, value: pa.Array, headers: Headers | None, timestamp_ms: int, size_bytes: int
    ) -> int:
        """Add a row; return its number, or -1 if it does not fit.

        Args:
            key: not stored: the key columns have it.
            value: a struct of the row's columns: one value.
        """
        row = self.row_count
        if not isinstance(value, pa.Array):  # bytes, for a topic that has the name no more
            return -1
        if row and self.size_bytes + size_bytes > self.limit_bytes:
            return -1
        before = self._joined, self._apart, self.size_bytes
        try:
            if headers:
                self._headers[row] = headers
            self._timestamps.append(timestamp_ms)
            apart = [*self._apart, value] if len(self._apart) + 1 >= ROWS_APART_MAX else None
            if apart is None:
                self._apart.append(value)
            else:
                self._joined, self._apart = [*self._joined, pa.concat_arrays(apart, ROW_MEMORY)], []
            self.size_bytes += size_bytes
            self.record_size_max = max(self.record_size_max, size_bytes)
            self.row_count = row + 1
        except BaseException:  # as in `RecordColumns`
            self._joined, self._apart, self.size_bytes = before
            del self._timestamps[row:], self._apart[row - sum(map(len, self._joined)) :]
            self._headers.pop(row, None)
            raise
        return row

    def build(self) -> pa.RecordBatch:
        """Return the rows: the topic's columns, their times, and headers if any has one."""
        rows = pa.concat_arrays([*self._joined, *self._apart], ROW_MEMORY)
        assert self.schema is not None
        columns = [rows.field(number) for number in range(len(self.schema.arrow))]
        columns.append(_times(self._timestamps))
        if self._headers:
            columns.append(_header_column(self._headers, self.row_count))
        return pa.RecordBatch.from_arrays(columns, schema=data_schema(bool(self._headers), rows=self.schema))


ROWS_APART_MAX = 64
"""Single rows that are kept apart: an Arrow array of one row takes some kilobytes."""


def _times(timestamps: array[int]) -> pa.Array:
    micros = np.frombuffer(timestamps, np.int64) * 1000
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(micros), [None, pa.py_buffer(micros)])


def _header_column(headers: Mapping[int, Headers], row_count: int) -> pa.Array:
    rows: list[list[tuple[str, bytes | None]] | None] = [None] * row_count
    for row, pairs in headers.items():
        rows[row] = list(pairs)
    return pa.array(rows, HEADERS_TYPE)


def _column(offsets: np.ndarray[tuple[int], np.dtype[np.int32]], empty_rows: list[int], data: pa.Buffer) -> pa.Array:
    """Return a binary column in which a row without bytes is null unless it is one of ``empty_rows``."""
    is_valid = offsets[1:] != offsets[:-1]
    is_valid[empty_rows] = True
    validity = None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(is_valid), [validity, pa.py_buffer(offsets), data])


NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1
"""The next sequence is 0 (source: Kafka ``DefaultRecordBatch.incrementSequence``)."""


def increment_sequence(sequence: int, count: int) -> int:
    """Return the sequence ``count`` records later."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


class ProducerIdAndEpoch(NamedTuple):
    """Who numbered a batch: the producer's name in the ledger, and the epoch, which a gap in its sequences raises."""

    id: str | None
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(None, -1)


class BatchState(Enum):
    """State of a batch; it ends once, in exactly one of the last three."""

    INCOMPLETE = "incomplete"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Slice:
    """Records and the reservation of their memory; release it once."""

    records: pa.RecordBatch
    size_bytes: int
    pinned: PinnedBytes

    def release(self) -> None:
        """Give up this slice's hold on its memory."""
        self.pinned.release(self.size_bytes)

    def forbid_reuse(self) -> None:
        """Keep that memory from being reused."""
        self.pinned.forbid_reuse()


@dataclass(slots=True)
class Slices:
    """The records of a batch as Arrow slices. The counts stay when the slices are taken.

    Attributes:
        limit_bytes: ``batch.size``; only a first slice may exceed it.
        record_size_max: upper bound of the largest record's bytes.
    """

    limit_bytes: int
    items: list[Slice] = field(default_factory=list)
    size_bytes: int = 0
    row_count: int = 0
    record_size_max: int = 0

    def release(self) -> None:
        """Release all slices."""
        for item in self.items:
            item.release()
        self.items = []


class ProducerBatch:
    """Records of one partition, in order, up to ``batch.size``: single records until it is drained, or slices.

    Invariants:
        Never empty once it is in a queue. Only the last batch of a queue is open.
        It holds its memory until the records are taken or it ends.
        Producer and sequence are set at the first drain and kept on every retry. Only a new
        epoch of the producer, or a gap that a transaction closes, renumbers the batch.

    Args:
        batch_size_bytes: limit of the slices; only a first one may exceed it.
        created_ms: start of ``linger.ms`` and ``delivery.timeout.ms``.
        schema: the columns of typed records: all of a batch have one version of them.
    """

    __slots__ = (
        "attempts",
        "backoff_ms",
        "base_sequence",
        "contents",
        "created_ms",
        "is_closed",
        "last_attempt_ms",
        "last_error",
        "leader_epoch",
        "producer",
        "result",
        "schema",
        "state",
        "topic_partition",
        "typed_topic",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        batch_size_bytes: int,
        created_ms: int,
        schema: RowSchema | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.schema = schema
        self.typed_topic = ""
        """Of the destination that it was drained for last."""
        self.created_ms = created_ms
        self.is_closed = False
        self.state = BatchState.INCOMPLETE
        self.result = BatchResult(topic_partition)
        self.contents: OpenRecords | Slices = Slices(batch_size_bytes)
        self.attempts = 0
        """How often it was put back into its queue."""
        self.last_attempt_ms = created_ms
        self.last_error: ReplogError | None = None
        """Why the previous attempt failed."""
        self.backoff_ms = 0
        """How long after ``last_attempt_ms`` it may be tried again. A new leader ends the wait."""
        self.leader_epoch = 0
        self.producer = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE

    @classmethod
    def of_records(
        cls,
        topic_partition: TopicPartition,
        batch_size_bytes: int,
        created_ms: int,
        buffer: bytearray,
        pool: BufferPool,
        schema: RowSchema | None = None,
    ) -> ProducerBatch:
        """Return an empty batch for single records; it takes ownership of ``buffer``, which is the pool's."""
        batch = cls(topic_partition, batch_size_bytes, created_ms, schema)
        pinned = PinnedBytes(pool, len(buffer), buffer)
        if schema is None:
            batch.contents = RecordColumns(buffer, batch_size_bytes, batch.result, pinned)
        else:
            batch.contents = RowColumns(schema, batch_size_bytes, batch.result, pinned)
        return batch

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its records."""
        return self.contents.size_bytes

    @property
    def row_count(self) -> int:
        """Return the number of its records."""
        return self.contents.row_count

    @property
    def is_full(self) -> bool:
        """Return whether no further record fits."""
        return self.is_closed or self.contents.size_bytes >= self.contents.limit_bytes

    @property
    def has_sequence(self) -> bool:
        """Return whether it was numbered."""
        return self.base_sequence != NO_SEQUENCE

    def precedes(self, other: ProducerBatch) -> bool:
        """Return whether its records come before those of another numbered batch of its partition."""
        distance = (other.base_sequence - self.base_sequence) % (SEQUENCE_MAX + 1)
        return 0 < distance <= SEQUENCE_MAX // 2

    def try_append(
        self, records: pa.RecordBatch, size_bytes: int, pinned: PinnedBytes, schema: RowSchema | None = None
    ) -> bool:
        """Take a slice of N >= 1 records of this schema; if it does not fit, close for appends and return False.

        An empty batch takes any slice, so one larger than ``batch.size`` gets its own batch.
        """
        if self.is_closed:
            return False
        rows = self.contents
        if (
            not isinstance(rows, Slices)
            or self.schema != schema
            or (rows.items and rows.size_bytes + size_bytes > rows.limit_bytes)
        ):
            self.is_closed = True
            return False
        item, row_count = Slice(records, size_bytes, pinned), records.num_rows
        pinned.retain(size_bytes)
        rows.size_bytes += size_bytes
        rows.row_count += row_count
        rows.items.append(item)
        return True

    def backoff_left_ms(self, now_ms: int) -> int:
        """Return how long it still waits for its next attempt; 0: no wait."""
        return max(0, self.backoff_ms - max(0, now_ms - self.last_attempt_ms))

    def has_expired(self, now_ms: int, delivery_timeout_ms: int) -> bool:
        """Return whether ``delivery.timeout.ms`` passed since the batch was created."""
        return now_ms - self.created_ms >= delivery_timeout_ms

    def copy_wasteful(self, pool: BufferPool) -> None:
        """Copy the slices if the memory behind any of them is more than twice what its slices need."""
        contents = self.contents
        if isinstance(contents, Slices) and any(item.pinned.is_wasteful for item in contents.items):
            contents.items = [join_slices(contents.items, pool)]

    def take_slices(self) -> list[Slice]:
        """Hand the records over as slices; the caller must release them."""
        contents = self.contents
        if not isinstance(contents, Slices):
            contents = self.contents = contents.to_slices()
        slices, contents.items = contents.items, []
        return slices

    def give_back(self, slices: list[Slice]) -> None:
        """Put the batch's own records back, for another attempt."""
        assert isinstance(self.contents, Slices) and not self.contents.items
        assert sum(item.records.num_rows for item in slices) == self.row_count
        self.contents.items = slices

    def end(self, state: BatchState) -> bool:
        """End the batch and release its memory; return False if it has already ended.

        The caller resolves ``result`` afterwards, outside any lock, since that runs users' callbacks.
        """
        assert state is not BatchState.INCOMPLETE
        if self.state is not BatchState.INCOMPLETE:
            return False
        self.state = state
        self.is_closed = True
        self.contents.release()
        return True


def join_slices(slices: Sequence[Slice], pool: BufferPool) -> Slice:
    """Return the rows of one or more slices as one slice, in order; a lone slice that wastes no memory is unchanged.

    Otherwise copies into fresh memory and releases the originals. The copy is counted before they are released, since
    both exist for a moment.
    """
    if len(slices) == 1 and not slices[0].pinned.is_wasteful:
        return slices[0]
    size_bytes = sum(item.size_bytes for item in slices)
    pinned = pool.charge(size_bytes)
    parts = [item.records for item in slices]
    if any(has_headers(part) for part in parts):
        parts = [with_headers(part) for part in parts]
    columns = [
        pa.concat_arrays([part.column(index) for part in parts], ROW_MEMORY) for index in range(parts[0].num_columns)
    ]
    pinned.retain(size_bytes)
    pinned.release()
    for item in slices:
        item.release()
    return Slice(pa.RecordBatch.from_arrays(columns, schema=parts[0].schema), size_bytes, pinned)


@dataclass(frozen=True, slots=True)
class Destination:
    """Partitions with equal destinations share data objects: Kafka's node, for passive roots."""

    ledger_id: LedgerId
    generation: int
    brokers: tuple[BrokerId, ...]
    """The in-sync replicas, ascending; each gets the object."""
    leader: BrokerId | None
    """The leader with acks=1 or acks=0; None without in-sync replica, or with acks=all, where leaders share objects."""
    compression: str
    spares: tuple[BrokerId, ...] = ()
    """With acks=all: replicas out of sync, ascending; they get the object if too few in-sync ones take it."""
    typed_topic: TopicId = ""
    """The typed topic whose rows these objects hold alone: a file has one schema. "": rows are bytes."""


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """Result of ``RecordAccumulator.ready``."""

    destinations: tuple[Destination, ...]
    next_check_ms: int | None
    """Milliseconds from now until the next wait of a batch ends; None: no batch waits for time."""


class PartitionQueue:
    """The batches of one partition. The accumulator's lock guards it."""

    __slots__ = ("batches", "columns", "destination", "is_muted", "leader_epoch", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: deque[ProducerBatch] = deque()
        self.columns: OpenRecords | None = None
        """The open end for single records; None if the last batch takes none."""
        self.destination: Destination | None = None
        """Where its objects go; None until assigned: nothing is drained before."""
        self.leader_epoch = 0
        """How often ``destination`` was set."""
        self.is_muted = False

    @property
    def head(self) -> ProducerBatch | None:
        """Return the first batch; None if there is none or the partition is muted."""
        if self.is_muted or not self.batches:
            return None
        head = self.batches[0]
        if head.leader_epoch != self.leader_epoch:
            head.leader_epoch, head.backoff_ms = self.leader_epoch, 0
        return head

    def pop_head(self) -> ProducerBatch:
        """Remove and return the first batch."""
        batch = self.batches.popleft()
        if not self.batches:
            self.columns = None
        return batch

    def insert(self, batch: ProducerBatch) -> None:
        """Insert a batch before those that were never sent, and in sequence order among those that were."""
        place = 0
        if batch.has_sequence:
            while (
                place < len(self.batches) and self.batches[place].has_sequence and self.batches[place].precedes(batch)
            ):
                place += 1
        self.batches.insert(place, batch)


@dataclass(slots=True)
class Node:
    """The queues of one destination, in order of first appearance."""

    queues: list[PartitionQueue] = field(default_factory=list)
    drain_index: int = 0
    drained_no: int = 0
    """Orders nodes by their last drain that took a batch; 0: none yet."""

    def drainable_bytes(self, now_ms: int) -> int:
        """Return the bytes of all partitions whose first batch may be sent now."""
        return sum(
            [
                batch.size_bytes
                for queue in self.queues
                if (head := queue.head) is not None and not (head.backoff_ms and head.backoff_left_ms(now_ms))
                for batch in queue.batches
            ]
        )
