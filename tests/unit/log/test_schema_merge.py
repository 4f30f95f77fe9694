"""What `mergeSchema` makes of a topic's columns and an input's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replog.errors import InvalidConfigError
from spark_replog.log.column_cast import cast_column
from spark_replog.log.ddl import parse_columns
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.schema_merge import ColumnChange, column_changes, merged_schema

ORDERS = RowSchema("id BIGINT NOT NULL, amount DECIMAL(10,2), tags ARRAY<INT>", ("id",), 3)


def merged(given: str | pa.Schema, rows: RowSchema = ORDERS, **how: object) -> RowSchema:
    return merged_schema(rows, parse_columns(given) if isinstance(given, str) else given, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "id BIGINT NOT NULL, amount DECIMAL(10,2), tags ARRAY<INT>",
        "tags ARRAY<TINYINT>, id INT",
        "id BIGINT",
        "id BIGINT, _replog_timestamp TIMESTAMP, _replog_offset BIGINT",
    ],
)
def test_an_input_that_the_topic_holds_changes_nothing(given):
    assert merged(given) is ORDERS


def test_new_columns_come_last_and_are_nullable():
    newer = merged("note STRING NOT NULL, id BIGINT, paid BOOLEAN")
    assert newer.ddl == f"{ORDERS.ddl}, note STRING, paid BOOLEAN"
    assert (newer.version, newer.key) == (4, ("id",))


@pytest.mark.parametrize(
    ("old", "given", "both"),
    [
        ("INT", "BIGINT", "BIGINT"),
        ("BIGINT", "INT", "BIGINT"),
        ("INT", "FLOAT", "DOUBLE"),
        ("SMALLINT", "FLOAT", "FLOAT"),
        ("FLOAT", "INT", "DOUBLE"),
        ("DECIMAL(10,2)", "DECIMAL(8,4)", "DECIMAL(12,4)"),
        ("INT", "DECIMAL(5,2)", "DECIMAL(12,2)"),
        ("DECIMAL(5,2)", "BIGINT", "DECIMAL(21,2)"),
        ("STRUCT<a: INT, b: STRING>", "STRUCT<c: DATE, a: BIGINT>", "STRUCT<a: BIGINT, b: STRING, c: DATE>"),
        ("ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<b: INT>>", "ARRAY<STRUCT<a: INT, b: INT>>"),
        ("MAP<STRING, INT>", "MAP<STRING, DOUBLE>", "MAP<STRING, DOUBLE>"),
    ],
)
def test_a_column_gets_the_narrowest_type_that_holds_both(old, given, both):
    rows = RowSchema(f"id BIGINT, x {old}")
    newer = merged(f"x {given}", rows)
    assert newer.ddl == f"id BIGINT, x {both}"


@pytest.mark.parametrize(
    ("old", "given"),
    [
        ("STRING", "INT"),
        ("BIGINT", "DOUBLE"),
        ("DECIMAL(38,0)", "DECIMAL(38,2)"),
        ("TIMESTAMP", "TIMESTAMP_NTZ"),
        ("STRUCT<a: INT>", "STRUCT<a: STRING>"),
        ("ARRAY<INT>", "INT"),
        ("DATE", "TIMESTAMP"),
    ],
)
def test_types_that_no_type_holds_are_refused_with_column_and_both_types(old, given):
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA") as raised:
        merged(f"x {given}", RowSchema(f"x {old}"))
    assert all(word in str(raised.value) for word in ("'x'", old, given))


def test_a_key_column_keeps_its_type():
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'id'.*key column"):
        merged("id BIGINT, k DECIMAL(12,2)", RowSchema("id INT NOT NULL", ("id",)))


def test_case_counts_as_the_session_says():
    assert merged("ID BIGINT, Amount DECIMAL(12,4)", is_case_sensitive=False).ddl == (
        "id BIGINT NOT NULL, amount DECIMAL(12,4), tags ARRAY<INT>"
    )
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA"):
        merged("ID BIGINT")
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*two columns"):
        merged(pa.schema([("new", pa.int32()), ("NEW", pa.int32())]), is_case_sensitive=False)


def test_a_column_that_is_not_stored_is_left_out_unless_the_topic_has_it():
    assert merged("id BIGINT, at TIMESTAMP", leave_out=["at"]) is ORDERS
    assert "id BIGINT, at BIGINT" in merged("at BIGINT", RowSchema("id BIGINT, at INT"), leave_out=["at"]).ddl


def test_layouts_do_not_count_and_unsupported_types_are_refused_by_name():
    given = pa.schema([("id", pa.dictionary(pa.int32(), pa.int64())), ("note", pa.large_string())])
    assert merged(given).ddl == f"{ORDERS.ddl}, note STRING"
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'clock'"):
        merged(pa.schema([("clock", pa.time64("us"))]))
    with pytest.raises(InvalidConfigError, match=r"REPLOG_INVALID_SCHEMA.*'empty'"):
        merged(pa.schema([("empty", pa.null())]))
    assert merged(pa.schema([("amount", pa.null())])) is ORDERS


def test_the_changes_of_a_version_are_named_by_column():
    older, newer = RowSchema("id INT NOT NULL, x INT, y DATE"), RowSchema("x BIGINT, id INT, y DATE, z STRING")
    assert column_changes(older, newer) == (
        ColumnChange("x", "INT", "BIGINT"),
        ColumnChange("id", "INT NOT NULL", "INT"),
        ColumnChange("z", "", "STRING"),
    )


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0.1], pa.float32()), ([1e300], pa.float32()), ([None, 0.5, 0.1], pa.float32()), ([1.5], pa.int32())],
)
def test_a_value_that_a_narrower_type_would_round_is_refused(values, kind):
    with pytest.raises(pa.ArrowInvalid):
        cast_column(pa.array(values, pa.float64()), kind)


def test_values_that_a_narrower_type_holds_exactly_are_taken():
    values = [None, 0.5, float("inf"), -0.0, 2.0**100]
    assert cast_column(pa.array(values, pa.float64()), pa.float32()).to_pylist() == values
    (made,) = cast_column(pa.array([float("nan")]), pa.float32()).to_pylist()
    assert made != made
    wide = pa.array([{"x": 1, "y": 2}])
    assert cast_column(wide, pa.struct([("x", pa.int8())])).to_pylist() == [{"x": 1}]


@pytest.mark.parametrize("wrap", [lambda kind: pa.list_(kind), lambda kind: pa.map_(pa.int8(), kind)])
def test_rows_beside_a_slice_do_not_count(wrap):
    """A reader of an older version asks for rows that share a batch with newer ones, which that version cannot hold."""
    values = [[1], None, [2, 3], [], [1 << 40]]
    if pa.types.is_map(wrap(pa.int64())):
        values = [value and [(0, number) for number in value] for value in values]
    column = pa.array([*values[::-1], *values], wrap(pa.int64()))
    for start, end in ((1, 9), (1, 5), (3, 3), (8, 9)):
        assert cast_column(column[start:end], wrap(pa.int32())).to_pylist() == column[start:end].to_pylist()
    for start, end in ((0, 2), (8, 10)):
        with pytest.raises(pa.ArrowInvalid):
            cast_column(column[start:end], wrap(pa.int32()))
    head = column[5:]
    again = pa.concat_arrays([head])
    assert cast_column(again[:4], wrap(pa.int32())).to_pylist() == head[:4].to_pylist()
