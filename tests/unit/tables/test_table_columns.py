"""Which columns a table gets from a topic, what a format refuses by name, and what a newer version may change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.row_schema import RowSchema
from spark_replog.tables.table_columns import (
    FormatTypes,
    canonical_columns,
    fitted,
    merged_columns,
    newest_rows,
    table_columns,
)


def no_interval(kind):
    return None if pa.types.is_duration(kind) else kind


STIFF = FormatTypes("Stiff", no_interval, lambda old, new: False, " ;")
GROWING = FormatTypes("Growing", no_interval, lambda old, new: (old, new) == (pa.int32(), pa.int64()))


def columns_of(ddl, key=(), has_provenance=False, types=STIFF):
    return table_columns(RowSchema(ddl, key), has_provenance, types)


def test_only_key_columns_are_not_null():
    made = columns_of("id BIGINT, a STRING NOT NULL, b INT", ("id",), has_provenance=True)
    assert made.names == ["id", "a", "b", "_partition", "_offset", "_timestamp"]
    assert [column.name for column in made if not column.nullable] == ["id"]


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("id INT, d INTERVAL DAY TO SECOND", "d"),
        ("s STRUCT<x: ARRAY<INTERVAL DAY TO SECOND>>", "s.x.element"),
        ("m MAP<STRING, INTERVAL DAY TO SECOND>", "m.value"),
        ("e STRUCT<>", "e"),
        ("`odd name` INT", "odd name"),
        ("s STRUCT<`a;b`: INT>", "a;b"),
        ("_Offset INT", "_offset"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name(ddl, column):
    with pytest.raises(InvalidConfigError) as refused:
        columns_of(ddl, has_provenance=True)
    assert refused.value.code is ErrorCode.REPLOG_INVALID_SCHEMA
    assert refused.value.context["column"] == column


def test_new_columns_and_fields_are_added_at_the_end():
    table = columns_of("id INT, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>")
    wanted = columns_of(
        "n STRING NOT NULL, id INT, s STRUCT<y: INT>, l ARRAY<STRUCT<y: INT>>, m MAP<STRING, STRUCT<y: INT>>"
    )
    made = merged_columns(table, wanted, STIFF)
    assert made == columns_of(
        "id INT, s STRUCT<x: INT, y: INT>, l ARRAY<STRUCT<x: INT, y: INT>>, m MAP<STRING, STRUCT<x: INT, y: INT>>,"
        " n STRING"
    )
    assert merged_columns(made, wanted, STIFF) == made


def test_a_type_changes_only_as_the_format_says():
    narrow, wide = columns_of("id INT, s STRUCT<x: INT>"), columns_of("id BIGINT, s STRUCT<x: BIGINT>")
    assert merged_columns(narrow, wide, GROWING) == wide
    assert merged_columns(wide, narrow, STIFF) == wide, "rows of an older version fit"
    for types in (STIFF, GROWING._replace(widens=STIFF.widens)):
        with pytest.raises(InvalidConfigError, match="'id' is INT in the table and BIGINT in the topic") as refused:
            merged_columns(narrow, wide, types)
        assert refused.value.code is ErrorCode.REPLOG_TABLE_MISMATCH


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (pa.schema([pa.field("ID", pa.int32())]), "id"),
        (pa.schema([pa.field("id", pa.string())]), "id"),
        (pa.schema([pa.field("id", pa.int32()), pa.field("other", pa.int32(), False)]), "other"),
    ],
)
def test_a_table_of_others_that_does_not_fit_is_refused_by_column(table, column):
    with pytest.raises(InvalidConfigError) as refused:
        merged_columns(table, columns_of("id INT"), GROWING)
    assert (refused.value.code, refused.value.context["column"]) == (ErrorCode.REPLOG_TABLE_MISMATCH, column)


def test_rows_get_the_columns_of_the_table():
    table = canonical_columns(
        [pa.field("b", pa.large_string()), pa.field("t", pa.time64("us")), pa.field("id", pa.int64())]
    )
    rows = pa.record_batch({"id": pa.array([1], pa.int32()), "b": ["x"], "_replog_offset": [5]})
    assert fitted(rows, table).to_pylist() == [{"b": "x", "t": None, "id": 1}]


def test_the_last_row_of_each_key_stays_in_its_place():
    rows = pa.table({"at": [b"a", b"b", b"a", b"c", b"b"], "k": [1, 1, 1, 1, 2], "v": [0, 1, 2, 3, 4]})
    assert newest_rows(rows, ("at", "k")).column("v").to_pylist() == [1, 2, 3, 4]
    assert newest_rows(rows.slice(0, 0), ("at",)).num_rows == 0
