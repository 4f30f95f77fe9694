"""Whether two systems have the same rows at the same offsets: whole Arrow batches are compared, never single rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.ids import TopicPartition

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ROWS = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
"""What is compared. Kafka has milliseconds; no headers and an empty list of them are the same."""


class RowsSide(Protocol):
    """One of the two systems: which rows it has."""

    name: str
    """Which of the two, and where, in words."""

    def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the log start and the end of each partition that exists."""
        ...

    def batches(self, key: TopicPartition, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets in [begin, end), in their order, with the columns of `ROWS`."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """The first offset at which the two sides do not have the same row; None: the side has no row there."""

    offset: int
    one: Mapping[str, object] | None
    other: Mapping[str, object] | None


def rows_of(
    offsets: pa.Array, timestamps_us: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array | None
) -> pa.RecordBatch:
    """Return columns of a log in the form of `ROWS`."""
    times_ms = pc.divide(timestamps_us.cast(pa.int64()), 1_000)
    if headers is None:
        headers = pa.ListArray.from_arrays(pa.array([0] * (len(offsets) + 1), pa.int32()), pa.array([], _HEADER))
    elif headers.null_count:
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0))
        starts = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
        headers = pa.ListArray.from_arrays(starts, headers.flatten())
    columns = (offsets, times_ms, keys, values, headers)
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, ROWS, strict=True)], schema=ROWS
    )


def cut(batch: pa.RecordBatch, begin: int, end: int) -> pa.RecordBatch:
    """Return the rows with offsets in [begin, end); the batch's offsets rise."""
    is_inside = pc.and_(pc.greater_equal(batch["offset"], begin), pc.less(batch["offset"], end))
    count = pc.sum(is_inside).as_py() or 0
    return batch if count == len(batch) else batch.slice(pc.index(is_inside, True).as_py() if count else 0, count)


def first_difference(
    one: RowsSide,
    other: RowsSide,
    key: TopicPartition,
    begin: int,
    end: int,
    on_rows: Callable[[int], object] = lambda count: None,
) -> Difference | None:
    """Compare the rows with offsets in [begin, end); None: they are the same.

    Args:
        on_rows: called with the number of further rows that are the same.
    """
    mine, yours = _Rest(one.batches(key, begin, end)), _Rest(other.batches(key, begin, end))
    while True:
        count = min(mine.fill(), yours.fill())
        if not count:
            break
        here, there = mine.batch.slice(0, count), yours.batch.slice(0, count)
        if not here.equals(there):
            same = _same_count(here, there)
            on_rows(same)
            mine.take(same)
            yours.take(same)
            break
        on_rows(count)
        mine.take(count)
        yours.take(count)
    left, right = (rest.batch.slice(0, 1).to_pylist() if rest.fill() else [] for rest in (mine, yours))
    if not left and not right:
        return None
    offset = min(row["offset"] for row in [*left, *right])
    rows = [row[0] if row and row[0]["offset"] == offset else None for row in (left, right)]
    return Difference(offset, *rows)


@dataclass(slots=True)
class VerifiedPartition:
    """What a comparison of one partition showed.

    Attributes:
        one, other: log start and end on each side; None: the side lacks the partition.
        begin, end: the range of offsets that both have, all of which was compared up to a difference.
        row_count: rows that are the same.
    """

    key: TopicPartition
    one: tuple[int, int] | None
    other: tuple[int, int] | None
    begin: int = 0
    end: int = 0
    row_count: int = 0
    difference: Difference | None = None

    @property
    def is_same(self) -> bool:
        """Return whether both sides have the partition, and the same rows where both have offsets."""
        return None not in (self.one, self.other) and self.difference is None


def verify(
    one: RowsSide, other: RowsSide, keys: Iterable[TopicPartition], on_rows: Callable[[int], object]
) -> Iterator[VerifiedPartition]:
    """Compare partitions, one after another, where both sides have offsets; yield what each showed."""
    wanted = sorted(keys)
    mine, yours = one.bounds(wanted), other.bounds(wanted)
    for key in wanted:
        result = VerifiedPartition(key, mine.get(key), yours.get(key))
        if result.one is not None and result.other is not None:
            result.begin = max(result.one[0], result.other[0])
            result.end = max(result.begin, min(result.one[1], result.other[1]))

            def count(rows: int, result: VerifiedPartition = result) -> None:
                result.row_count += rows
                on_rows(rows)

            result.difference = first_difference(one, other, key, result.begin, result.end, count)
        yield result


def row_text(row: Mapping[str, object] | None) -> str:
    """Return a row in words; None: there is none."""
    if row is None:
        return "no row"
    return f"timestamp {row['timestamp_ms']}, key {row['key']!r:.40}, value {row['value']!r:.40}"


class _Rest:
    """What is left of a stream of batches."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch = pa.RecordBatch.from_pylist([], schema=ROWS)

    def fill(self) -> int:
        """Return how many rows are at hand; 0: there are no more."""
        while not len(self.batch):
            batch = next(self._batches, None)
            if batch is None:
                return 0
            self.batch = batch
        return len(self.batch)

    def take(self, count: int) -> None:
        self.batch = self.batch.slice(count)


def _same_count(one: pa.RecordBatch, other: pa.RecordBatch) -> int:
    """Return how many first rows are the same of two batches that differ."""
    same, different = 0, len(one)
    while same < different - 1:
        middle = (same + different) // 2
        if one.slice(same, middle - same).equals(other.slice(same, middle - same)):
            same = middle
        else:
            different = middle
    return same


__all__ = [
    "ROWS",
    "Difference",
    "RowsSide",
    "VerifiedPartition",
    "cut",
    "first_difference",
    "row_text",
    "rows_of",
    "verify",
]
