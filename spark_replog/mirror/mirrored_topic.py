"""One topic on its way from Kafka: where it is in both logs, and how an answer of the source becomes an append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import pyarrow as pa

from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.errors import ErrorCode, FencedError, ReplogError
from spark_replog.gateway.record_batch import StoredRows, decode_stored
from spark_replog.log.codec.data_object import HEADERS_TYPE
from spark_replog.mirror.kafka_source import Fetched, SourceTopic

BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Of one record batch of the source, decompressed: Kafka's own limit is a tenth of it in common settings."""
_COLUMNS = ("key", "value", "timestamp", "headers", "partition", "offset")


class MirroredTopic:
    """Not thread-safe.

    Attributes:
        source: as the cluster described it last.
        ends: the log end of each partition in the store, as far as this process knows.
        positions: where the source is read next; above the end where it has no rows in between.
        source_ends: the source's ends, as far as this process knows.
        error: why the topic is left alone; None: it is mirrored.
        lost: partition -> (first, end) offsets that the source deleted before they were read, of this run.
        row_count, size_bytes: appended by this run.
    """

    def __init__(self, log: MirroredLog, source: SourceTopic, *, is_new: bool) -> None:
        self._log = log
        self.source = source
        self.ends = log.ends()
        self.positions = list(self.ends)
        self.source_ends: dict[int, int] = {}
        self.error: ReplogError | None = None
        self.lost: dict[int, tuple[int, int]] = {}
        self.row_count = self.size_bytes = 0
        self._unbegun = set(range(len(self.ends))) if is_new else set()
        """Partitions that this run made, and that hold no row yet: nothing of them can have been lost."""

    @property
    def name(self) -> str:
        """Return its name, in both logs."""
        return self.source.name

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        """Return whether everything up to these offsets of the source is in the store, or nothing more will be."""
        return self.error is not None or all(end <= self.ends[number] for number, end in ends.items())

    @property
    def lag(self) -> int:
        """Return how many offsets the store lacks."""
        return sum(max(0, end - self.ends[number]) for number, end in self.source_ends.items())

    def look_again(self) -> None:
        """Take the ends from the store, and go on there: another mirror appended, or an append failed."""
        ends = self._log.ends()
        self._unbegun.update(range(len(self.ends), len(ends)))
        self.ends, self.positions = ends, list(ends)

    def take(self, answers: Mapping[int, Fetched]) -> int:
        """Append what the source answered for some partitions; return how many rows.

        Raises:
            ReplogError: as writes, and CORRUPT_MESSAGE: what came from the source is damaged.
        """
        rows = {}
        for number, answer in answers.items():
            pieces = list(decode_stored(answer.records, answer.aborted, bytes_max=BATCH_BYTES_MAX))
            if pieces:
                rows[number] = list(self._runs(number, pieces))
                self.positions[number] = max(self.positions[number], pieces[-1].next_offset)
            self.source_ends[number] = max(self.source_ends.get(number, 0), answer.end)
        before = self.row_count
        while rows := {number: runs for number, runs in rows.items() if runs}:
            kind = next(iter(rows.values()))[0].is_append_time
            chunk = {number: runs.pop(0) for number, runs in rows.items() if runs[0].is_append_time == kind}
            self._append(chunk, is_append_time=kind)
        return self.row_count - before

    def _runs(self, number: int, pieces: list[StoredRows]) -> Iterator[StoredRows]:
        """Yield the rows from the position on, joined while their times are of one kind; the last ends where all do."""
        kept = []
        for piece in pieces:
            at = int(np.searchsorted(piece.offsets, self.positions[number]))
            if piece.data is not None and at < len(piece.offsets):
                data, offsets = piece.data.slice(at), piece.offsets[at:]
                kept.append(StoredRows(data, offsets, piece.next_offset, piece.is_append_time))
        runs = [list(run) for _, run in groupby(kept, key=lambda piece: piece.is_append_time)]
        for place, run in enumerate(runs):
            batches = [_with_place(piece, number) for piece in run]
            data = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
            is_last = place == len(runs) - 1
            end = pieces[-1].next_offset if is_last else int(runs[place + 1][0].offsets[0])
            yield StoredRows(data, np.concatenate([piece.offsets for piece in run]), end, run[0].is_append_time)

    def _append(self, chunk: Mapping[int, StoredRows], *, is_append_time: bool) -> None:
        spans = {number: (self.ends[number], rows.next_offset) for number, rows in chunk.items()}
        batches = [rows.data for rows in chunk.values() if rows.data is not None]
        self.size_bytes += self._log.append(batches, spans, is_append_time=is_append_time)
        self.row_count += sum(map(len, batches))
        for number, (_, end) in spans.items():
            self.ends[number] = end
            self._unbegun.discard(number)

    def close_gaps(self) -> None:
        """Move ends over offsets without rows, where the source was read up to its end."""
        spans = {
            number: (self.ends[number], position)
            for number, position in enumerate(self.positions)
            if position > self.ends[number] and position >= self.source_ends.get(number, 0)
        }
        if spans and self._log.extend(spans):
            self.ends = [spans[number][1] if number in spans else end for number, end in enumerate(self.ends)]

    def begin_later(self, number: int, start: int, end: int, *, accepts_loss: bool) -> None:
        """Go on where the source begins now: it has deleted what comes next.

        Args:
            start, end: of the source's partition.

        Raises:
            ReplogError: REPLOG_MIRROR_LOST: rows are gone. REPLOG_MIRROR_MISMATCH: the source ends before the mirror.
        """
        position = self.positions[number]
        if start <= position:
            raise ReplogError(
                ErrorCode.REPLOG_MIRROR_MISMATCH,
                f"{self.name}-{number} ends at offset {end} in Kafka, and its mirror at {self.ends[number]}: Kafka lost"
                " rows that were mirrored. Delete the topic in the store and mirror it again, or promote it.",
                topic=self.name,
                partition=number,
            )
        if number not in self._unbegun:
            self.lost[number] = (position, start)
            if not accepts_loss:
                raise ReplogError(
                    ErrorCode.REPLOG_MIRROR_LOST,
                    f"Kafka deleted offsets {position} to {start} (exclusive) of {self.name}-{number} before they were"
                    " mirrored. Give --skip-lost to go on behind them, or delete the topic and mirror it again.",
                    topic=self.name,
                    partition=number,
                    missing_start=position,
                    missing_end=start,
                )
        self.positions[number] = start

    def take_safely(self, answers: Mapping[int, Fetched]) -> int:
        """Do as ``take``; where another mirror was first, look where the log ends now."""
        try:
            return self.take(answers)
        except FencedError:
            self.look_again()
            return 0
        except BaseException:
            self.look_again()
            raise


def _with_place(piece: StoredRows, number: int) -> pa.RecordBatch:
    data = piece.data
    assert data is not None
    headers = data.column("headers") if "headers" in data.schema.names else pa.nulls(len(data), HEADERS_TYPE)
    places = pa.array(np.full(len(data), number, np.int32)), pa.array(piece.offsets)
    return pa.RecordBatch.from_arrays([*data.columns[:3], headers, *places], names=list(_COLUMNS))
