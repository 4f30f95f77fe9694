"""Joins rows that are read object by object into batches of one partition each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_replog.errors import InvalidConfigError
from spark_replog.ids import TopicId
from spark_replog.log.codec.data_object import BUFFER_BYTES_MAX, join_batches
from spark_replog.log.ddl import invalid_schema
from spark_replog.log.fold.partition_state import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from spark_replog.read.fetch_plan import FetchSlice
from spark_replog.read.rows import BYTES, RowView, Run, read_columns, stored_columns

BATCH_SIZE_BYTES_MIN = 1024 * 1024
"""Smaller adjacent batches are joined: work per batch costs more than the copy."""
PASSED_BYTES_MAX = 8 * 1024 * 1024
"""Rows that wait are given out when this much was read since the first of them: each may keep its whole read in
memory."""
PARTS_MAX = 2048
"""Or this many sections: each takes some kB, however few rows it has."""
SMALL_BATCHES_MAX = 512


@dataclass(slots=True)
class _Waiting:
    """Rows of one partition that wait for more."""

    run: Run
    first_offset: int
    next_offset: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    size_bytes: int = 0

    def fits(self, run: Run, first_offset: int, size_bytes: int, *, has_offsets: bool) -> bool:
        """Return whether these rows may follow in one batch."""
        is_next = has_offsets if self.offsets else not has_offsets and first_offset == self.next_offset
        return self.run == run and is_next and self.size_bytes + size_bytes < BUFFER_BYTES_MAX


class BatchJoiner:
    """Rows come in the order of the reads; a partition's rows go out in the order of their offsets."""

    def __init__(
        self, *, include_headers: bool, batch_bytes_min: int, views: Mapping[TopicId, RowView] | None = None
    ) -> None:
        self._include_headers = include_headers
        self._views = views or {}
        self._batch_bytes_min = batch_bytes_min
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._passed_bytes = self._passed_count = 0

    def add(
        self, piece: FetchSlice, first_offset: int, rows: pa.RecordBatch, size_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Take rows of a slice, and yield the batches that they complete."""
        view = BYTES if piece.schema is None else self._views[piece.topic_id]
        run = Run(piece.topic, piece.partition, int(piece.timestamp_type != TIMESTAMP_CREATE_TIME), view)
        key, has_offsets = run[:2], piece.object.has_offsets
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.fits(run, first_offset, size_bytes, has_offsets=has_offsets):
            yield self._give_out(key)
            waiting = None
        if waiting is None:
            if not self._waiting:
                self._passed_bytes = self._passed_count = 0
            waiting = self._waiting[key] = _Waiting(run, first_offset, first_offset)
        if has_offsets:
            waiting.offsets.append(rows.column(-1).to_numpy())  # the last column
        is_same_time = piece.timestamp_type == TIMESTAMP_LOG_APPEND_TIME
        if rows.num_columns > 3 or is_same_time or view is not BYTES:
            time_ms = piece.append_time_ms if is_same_time else None
            try:
                rows = stored_columns(rows, include_headers=self._include_headers, append_time_ms=time_ms, view=view)
            except pa.ArrowInvalid as error:
                raise _too_new(piece, view, error) from error
        waiting.parts.append(rows)
        waiting.size_bytes += size_bytes
        waiting.next_offset = first_offset + rows.num_rows
        self._passed_bytes += size_bytes
        self._passed_count += 1
        if waiting.size_bytes >= self._batch_bytes_min:
            yield self._give_out(key)
        if self._passed_bytes >= PASSED_BYTES_MAX or self._passed_count >= PARTS_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows that wait, by partition."""
        for key in sorted(self._waiting):
            yield self._give_out(key)

    def _give_out(self, key: tuple[str, int]) -> pa.RecordBatch:
        waiting = self._waiting.pop(key)
        return read_columns(
            waiting.parts, waiting.run, waiting.first_offset, waiting.offsets, include_headers=self._include_headers
        )


def _too_new(piece: FetchSlice, view: RowView, error: pa.ArrowInvalid) -> InvalidConfigError:
    """Return the error for rows of a newer version that the reader's version cannot hold."""
    version = 0 if view.schema is None else view.schema.version
    return invalid_schema(
        f"rows of {piece.topic}-{piece.partition} from offset {piece.start_offset} on have a newer version of its"
        f" schema, and version {version}, with which this reader began, cannot hold them: {error}. Open the reader"
        " again: it then reads as the newest version.",
        topic=piece.topic,
        partition=piece.partition,
        offset=piece.start_offset,
    )


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches, also of several partitions."""
    parts: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if parts and size_bytes + batch.nbytes >= BUFFER_BYTES_MAX:
            yield join_batches(parts)
            parts, size_bytes = [], 0
        parts.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= BATCH_SIZE_BYTES_MIN or len(parts) >= SMALL_BATCHES_MAX:
            yield join_batches(parts)
            parts, size_bytes = [], 0
    if parts:
        yield join_batches(parts)
