"""Rewrites a run of sections as one object, on every replica. Runs on one machine or in Spark's tasks: reads no ledger.

Rows are read by ranges from any good copy, their checksums are proved, and they pass through in Arrow batches. Memory
is that of the object as it is stored and a few sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pyarrow as pa

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import BrokerId, ObjectId, new_id
from spark_replog.log.codec.data_object import (
    EncodedObject,
    data_schema,
    encode_data_object,
)
from spark_replog.log.model import DataObject, Replace, inputs_digest
from spark_replog.maintenance.compaction_plan import CompactionRun
from spark_replog.read.fetch_plan import FetchSlice
from spark_replog.read.fetcher import Fetcher
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import data_key, object_name

JOINED_BYTES = 128 * 1024
"""Smaller neighbours are joined. Larger batches pass through as they are: no copy, and readers join them anyway."""


class SegmentWriter:
    """Thread safe.

    Args:
        brokers: the roots, to read from and to write to.
    """

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers

    def rewrite(self, run: CompactionRun, dropped: np.ndarray | None = None) -> Replace | None:
        """Write the rows of a run, and return the command that puts them in its place.

        Nothing refers to the object before that command is decided: whoever stops in between leaves garbage only.

        Args:
            run: as planned.
            dropped: ascending offsets of rows that go.

        Returns:
            None where every row goes: the caller joins the run with a neighbour.

        Raises:
            ReplogError: a row cannot be read, or a replica does not take its copy.
        """
        rows = _Rows(run, dropped)
        has_headers = any(each.object.has_headers for each in run.sections)
        has_offsets = dropped is not None or any(each.object.has_offsets for each in run.sections)
        fetched = Fetcher(self._brokers).fetch(
            slices_of(run), include_headers=has_headers, batch_bytes_min=JOINED_BYTES
        )
        batches = rows.through(fetched)
        schema = data_schema(has_headers, has_offsets)
        encoded = encode_data_object(
            [(run.topic, run.topic_id, run.partition, (each.select(schema.names) for each in batches), "compaction")],
            compression=run.compression,
            has_headers=has_headers,
            has_offsets=has_offsets,
            is_sized=dropped is None,  # where many rows go, what is left of batches is joined
        )
        bases = rows.bases(encoded)
        if not bases:
            return None
        fault_point("compaction.written")
        name = object_name("compact", run.first_offset, run.partition, new_id())
        self._put(run, name, encoded)
        item = DataObject(
            ObjectId(run.generation, name),
            encoded.size_bytes,
            has_headers,
            frozenset(run.replicas),
            encoded.sections,
            has_offsets,
            run.after_index,
        )
        return replacement(run, item, bases)

    def _put(self, run: CompactionRun, name: str, encoded: EncodedObject) -> None:
        """Put the object on every replica, durably; an error of one of them ends it."""

        def put(broker_id: BrokerId) -> None:
            self._brokers.check_root(broker_id)
            key = data_key(run.ledger_id, run.generation, name)
            outcome = self._brokers.store(broker_id).create(key, encoded.buffers, make_parent=True)
            if outcome is not CreateOutcome.CREATED:
                raise ReplogError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    "other bytes are under the new name of a segment. Run `replog store verify`.",
                    broker=broker_id,
                    key=key,
                )
            fault_point("compaction.copied")

        puts: list[Future[None]] = [
            io_pool().submit_to(f"{self._brokers.url(each)}#fetch", put, each) for each in run.replicas
        ]
        for each in puts:
            each.exception()  # every put has ended before the bytes are let go
        for each in puts:
            each.result()


def replacement(run: CompactionRun, item: DataObject, bases: tuple[int, ...]) -> Replace:
    """Return the command that puts an object in the place of a run; `bases` are those of its sections."""
    inputs = inputs_digest((each.object.id, each.start_byte, each.base_offset) for each in run.sections)
    return Replace(run.topic_id, run.partition, run.first_offset, run.end_offset, inputs, (item,), bases)


def slices_of(run: CompactionRun) -> Iterator[FetchSlice]:
    """Yield how the whole sections of a run are read."""
    for each in run.sections:
        start, end = each.base_offset, each.end_offset
        yield FetchSlice(run.topic, run.topic_id, run.partition, start, end, *each[:6], *each[8:10])


class _Rows:
    """The rows of a run on their way: counts them, and knows where each output section begins."""

    def __init__(self, run: CompactionRun, dropped: np.ndarray | None) -> None:
        self._run = run
        self._dropped = dropped
        self._offsets: list[np.ndarray] = []
        self._read_count = 0

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay."""
        for batch in batches:
            offsets = batch.column("offset").to_numpy()
            self._read_count += len(offsets)
            if self._dropped is not None:
                stays = ~np.isin(offsets, self._dropped, assume_unique=True)
                if not stays.all():
                    batch, offsets = batch.filter(pa.array(stays)), offsets[stays]
            if len(offsets):
                self._offsets.append(offsets)
                yield batch

    def bases(self, encoded: EncodedObject) -> tuple[int, ...]:
        """Return the base offset of each section that was written; the first spans the run's first offset.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: other rows came back than the ledger says.
        """
        expected = sum(each.row_count for each in self._run.sections)
        stays = expected - (0 if self._dropped is None else len(self._dropped))
        offsets = np.concatenate(self._offsets) if self._offsets else np.empty(0, np.int64)
        is_ordered = not len(offsets) or (
            offsets[0] >= self._run.first_offset and offsets[-1] < self._run.end_offset and (np.diff(offsets) > 0).all()
        )
        written = sum(each.row_count for each in encoded.sections)
        if self._read_count != expected or len(offsets) != stays or written != stays or not is_ordered:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"compaction of {self._run.topic}-{self._run.partition} read {self._read_count} rows of {expected} and"
                f" would keep {written} of {stays}. Nothing was changed. Run `replog store verify --deep`.",
            )
        if not encoded.sections:
            return ()
        firsts = np.cumsum([0, *(each.row_count for each in encoded.sections[:-1])])
        return (self._run.first_offset, *offsets[firsts[1:]].tolist())
