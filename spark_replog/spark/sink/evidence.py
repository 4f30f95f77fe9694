"""Evidence: what tells the ledger which of two writes has a number that it knows (docs/design/identity.md).

A micro-batch is known by its checkpoint's file ``offsets/N``. Spark writes it before the batch runs, with the time, and
a repeat reads it again unchanged, while the rows and their counts may be others. A batch write has no such file, and
two writes of one ``foreachBatch`` share it: it is known by its rows, in any order, tasks and partitions.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.errors import InvalidConfigError, ReplogError
from spark_replog.log.column_cast import cast_column
from spark_replog.log.ddl import canonical_field
from spark_replog.log.model import EVIDENCE_BYTES
from spark_replog.logs import Once
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.open_store import open_store
from spark_replog.write.columns import is_time

_LOG = logging.getLogger(__name__)
_FILE_BYTES_MAX = 64 << 20
FAILURES_MAX = 3
"""In a row: then this process stops reading the checkpoint, which without credentials would delay each batch."""
WARNED = Once()
FAILURES: dict[str, int] = {}


def evidence_of_batch(checkpoint: str | None, batch_id: int, storage: tuple[tuple[str, str], ...]) -> bytes:
    """Return a digest of the offsets of a micro-batch; b'' if they cannot be read. Commit process; one read.

    Args:
        checkpoint: the query's, as Spark got it; None: unknown, or a temporary one that no query repeats.
    """
    if checkpoint is None or FAILURES.get(checkpoint, 0) >= FAILURES_MAX:
        return b""
    try:
        data = _checkpoint_store(checkpoint, storage).get(f"offsets/{batch_id}", size_bytes=_FILE_BYTES_MAX)
        why = f"it has no file offsets/{batch_id}"
    except (ReplogError, OSError) as error:
        data, why = None, str(error)
        is_for_good = isinstance(error, InvalidConfigError)
        FAILURES[checkpoint] = FAILURES_MAX if is_for_good else FAILURES.get(checkpoint, 0) + 1
    if data is not None:
        FAILURES.pop(checkpoint, None)
        return blake2b(data, digest_size=EVIDENCE_BYTES).digest()
    if WARNED.is_first(checkpoint):
        _LOG.warning(
            "the checkpoint '%s' cannot be read here (%s), so only topics and row counts tell whether batch %d repeats "
            "another one of this number. Give checkpointLocation as a URL that a root may have, with its scheme, and "
            "the storage options that it needs.",
            checkpoint, why, batch_id,
        )  # fmt: skip
    return b""


@lru_cache(maxsize=64)
def _checkpoint_store(checkpoint: str, storage: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(checkpoint, dict(storage))


class RowsDigest:
    """A digest of rows that does not depend on their order: sums over rows, so those of all tasks can be added.

    Attributes:
        sums: of the rows' checksums, headers, times and partitions; of the rows; and of the bytes of keys.
    """

    CHUNK_BYTES = 1 << 20
    """As many rows at a time become Python objects."""

    def __init__(self, default_topic: str | None, *, is_typed: bool = False) -> None:
        self._topic = default_topic
        self._is_typed = is_typed
        self.sums: tuple[int, ...] = (0,) * 6

    def add(self, batch: pa.RecordBatch) -> None:
        """Add N rows as Spark gives them, of a schema that `InputColumns` accepts, or `TypedColumns` if typed."""
        step = max(1, len(batch) * self.CHUNK_BYTES // (batch.nbytes + 1))
        for start in range(0, len(batch), step):
            self.sums = _added([self.sums, self._sums(batch.slice(start, step))])

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and add each after the task has accepted it."""
        for batch in batches:
            yield batch
            self.add(batch)

    def _sums(self, batch: pa.RecordBatch) -> tuple[int, ...]:
        if self._is_typed:
            return _typed_sums(batch)
        columns = {name: batch.column(name) for name in batch.schema.names}
        topic = pa.repeat(self._topic, len(batch)) if self._topic is not None else columns.get("topic")
        rows = [column for column in (topic, columns.get("key"), columns.get("value")) if column is not None]
        headers, times, partitions = (columns.get(name) for name in ("headers", "timestamp", "partition"))
        return (
            _checksum(rows),
            0 if headers is None else _headers_checksum(headers),
            0 if times is None or not is_time(times.type) else _sum(times.cast(pa.timestamp("us", times.type.tz))),
            0 if partitions is None else _sum(partitions),
            len(batch),
            _byte_count(columns.get("key")),
        )


def evidence_of_rows(tasks: Iterable[tuple[int, ...]]) -> bytes:
    """Return the evidence of a batch write, from the sums of its tasks."""
    return blake2b(repr(_added([sums for sums in tasks if sums])).encode(), digest_size=EVIDENCE_BYTES).digest()


def _added(sums: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) % 2**64 for column in zip(*sums, strict=True))


def _checksum(columns: list[pa.Array]) -> int:
    """Return the sum of the CRC32 of each row of some text and binary columns."""
    joined = pc.binary_join_element_wise(
        *(column.cast(pa.large_binary()) for column in columns if not pa.types.is_nested(column.type)),
        pa.scalar(b"\x00", pa.large_binary()),
        null_handling="replace",
        null_replacement=b"\xff\x00null",
    )
    return sum(map(zlib.crc32, joined.to_numpy(zero_copy_only=False)))


def _typed_sums(batch: pa.RecordBatch) -> tuple[int, ...]:
    """Return the sums of rows of any columns, whose order does not count, nor their layout and time zone."""
    from spark_replog.log.json_rows import json_rows

    names = sorted(batch.schema.names)
    columns = [cast_column(batch.column(name), canonical_field(batch.schema.field(name)).type) for name in names]
    texts = json_rows(pa.RecordBatch.from_arrays(columns, names))
    return _checksum([texts]), 0, 0, 0, len(batch), _byte_count(texts)


def _headers_checksum(headers: Any) -> int:
    """Return the sum over all headers of rows; null and empty lists count the same."""
    if pa.types.is_null(headers.type):
        return 0
    pairs = headers.flatten()
    return _checksum(pairs.flatten()) + len(pairs) if len(pairs) else 0


def _sum(column: pa.Array) -> int:
    """Return the sum of a column of integers or times, modulo 2**64; nulls count as a number of their own."""
    numbers = np.asarray(column.cast(pa.int64()).fill_null(-(2**40)))
    return int(numbers.view(np.uint64).sum(dtype=np.uint64))


def _byte_count(column: pa.Array | None) -> int:
    return 0 if column is None else pc.sum(pc.binary_length(column)).as_py() or 0
