"""Two systems' rows are compared whatever their batches are, and the first difference is named."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_replog.ids import TopicPartition
from spark_replog.mirror.comparison import ROWS, cut, first_difference, row_text, rows_of

KEY = TopicPartition("orders", 0)


class Rows:
    """Rows in batches of random sizes."""

    name = "rows"

    def __init__(self, rows, seed):
        self._rows, self._rng = rows, random.Random(seed)

    def batches(self, key, begin, end):
        rows = [row for row in self._rows if begin <= row["offset"] < end]
        while rows:
            count = self._rng.randint(0, 7)
            yield pa.RecordBatch.from_pylist(rows[:count], schema=ROWS)
            rows = rows[count:]


def row(offset, **words):
    return {"offset": offset, "timestamp_ms": offset * 10, "key": None, "value": b"%d" % offset, "headers": []} | words


@pytest.mark.parametrize("seed", range(20))
def test_the_first_difference_is_found_wherever_the_batches_end(seed):
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(200), 60))
    rows, counts = [row(offset) for offset in offsets], []
    assert first_difference(Rows(rows, seed), Rows(rows, seed + 1), KEY, 0, 200, counts.append) is None
    assert sum(counts) == 60
    at = rng.randrange(60)
    for other in (
        [*rows[:at], rows[at] | {"value": None}, *rows[at + 1 :]],
        [*rows[:at], *rows[at + 1 :]],
        rows[:at],
        [*rows[:at], row(offsets[at], headers=[{"key": "", "value": None}]), *rows[at + 1 :]],
    ):
        counts.clear()
        difference = first_difference(Rows(rows, seed), Rows(other, seed + 2), KEY, 0, 200, counts.append)
        there = next((item for item in other if item["offset"] == offsets[at]), None)
        assert (difference.offset, difference.one, difference.other) == (offsets[at], rows[at], there)
        assert sum(counts) == at
        turned = first_difference(Rows(other, seed), Rows(rows, seed + 2), KEY, 0, 200)
        assert (turned.offset, turned.one, turned.other) == (offsets[at], there, rows[at])
    assert first_difference(Rows(rows, seed), Rows(rows[:at], seed), KEY, 0, offsets[at]) is None, "not in the range"


def test_columns_of_a_log_are_compared_without_microseconds_and_kinds_of_no_headers():
    kind = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.binary())]))
    named = [{"key": "name", "value": b"x"}], None, [], [{"key": "a", "value": None}, {"key": "b", "value": b""}]
    pairs = pa.array(named, kind)
    columns = pa.array([3, 5, 6, 9]), pa.array([1_001, 2_999, 3_000, -1], pa.timestamp("us", "UTC"))
    keys, values = pa.array([b"k", None, b"", b"k"]), pa.array([b"v", b"", None, b"v"])
    rows = rows_of(*columns, keys, values, pairs)
    assert rows.schema == ROWS
    assert rows["headers"].to_pylist() == [
        [{"key": "name", "value": b"x"}], [], [], [{"key": "a", "value": None}, {"key": "b", "value": b""}]
    ]  # fmt: skip
    assert rows["timestamp_ms"].to_pylist()[:3] == [1, 2, 3]
    assert rows_of(*columns, keys, values, None)["headers"].to_pylist() == [[]] * 4
    assert [cut(rows, *span)["offset"].to_pylist() for span in ((0, 10), (4, 9), (5, 5), (7, 8), (9, 10))] == [
        [3, 5, 6, 9], [5, 6], [], [], [9]
    ]  # fmt: skip
    assert row_text(rows.slice(0, 1).to_pylist()[0]) == "timestamp 1, key b'k', value b'v'" and "no" in row_text(None)
