"""Rows as JSON by kernels are the text that ``row_json`` makes of them one by one, for every type and any slice."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_replog.log.json_rows import JSON_BYTES_TARGET, json_rows, json_step, row_json
from spark_replog.log.row_schema import RowSchema

SCHEMA = RowSchema(
    "ok BOOLEAN, tiny TINYINT, id BIGINT, half FLOAT, size DOUBLE, amount DECIMAL(12,2), small DECIMAL(38,10), "
    '`odd "name\\\\` STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, took INTERVAL DAY TO SECOND, '
    "tags ARRAY<STRING>, names MAP<STRING, INT>, numbers MAP<DOUBLE, ARRAY<STRUCT<z: INT>>>, empty STRUCT<>, "
    "place STRUCT<x: STRING, parts: ARRAY<BINARY>>"
)
ROWS = (
    (
        True, 1, 2**63 - 1, 0.1, 1.0, Decimal("-1.50"), Decimal("1E-10"), 'a"b\\c\n\x00\x1f\x7fé\u2028😀', b"abcd",
        date(1969, 1, 2), datetime(2024, 1, 2, 3, 4, 5, 6, UTC), datetime(1960, 1, 2, 3, 4, 5),
        timedelta(-1, microseconds=1), ["a", None, ""], [("k", 1), ('q"', None)], [(1.5, [{"z": 1}, None])], {},
        {"x": None, "parts": [b"", b"a", b"ab", b"abc", None]},
    ),
    (None,) * 18,
    (
        False, -128, -(2**63), float("nan"), float("inf"), Decimal(0), Decimal(1), "", b"", date(9999, 12, 31),
        datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999), timedelta(0), [], [], [], None,
        {"x": "t", "parts": None},
    ),
    (
        True, 0, 0, -0.0, float("-inf"), Decimal("9999999999.99"), Decimal("-123.0000000001"), "x", b"\xff" * 5,
        date(1, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, microsecond=100_000),
        timedelta(999_999), [None], [("z", 5)], [(1e300, None)], {}, {"x": "1", "parts": []},
    ),
)  # fmt: skip
MAPS = ("names", "numbers")


def batch_of(rows):
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA.arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow)


@pytest.mark.parametrize(("start", "count"), [(0, 4), (1, 2), (2, 2), (3, 1), (1, 1), (2, 0)])
def test_the_text_is_that_of_rows_one_by_one(start, count):
    batch = batch_of(ROWS).slice(start, count)
    rows = [row | {name: row[name] and dict(row[name]) for name in MAPS} for row in batch.to_pylist()]
    for row in rows:
        row.update({name: dict(row[name] or []) for name in MAPS if row[name] == []})
    assert json_rows(batch).to_pylist() == [row_json(row) for row in rows]


def test_rows_without_columns_are_empty_objects():
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert json_rows(batch).to_pylist() == [b"{}", b"{}"]


def test_wide_rows_with_long_names_are_converted_in_steps_that_one_text_column_holds():
    names = [f"{'n' * 100}{number}" for number in range(500)]
    batch = pa.RecordBatch.from_arrays([pa.array([1] * 3, pa.int8())] * 500, names)
    assert json_step(batch) * len(json_rows(batch)[0].as_py()) <= JSON_BYTES_TARGET
    assert json_step(pa.record_batch({"s": pa.array(["x" * JSON_BYTES_TARGET])})) == 1
