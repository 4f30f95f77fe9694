"""Input of a typed topic: found by name, cast where no value is lost, refused with column, types and remedy."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import data_schema
from spark_replog.log.row_schema import RowSchema
from spark_replog.write.typed_columns import TypedColumns

SCHEMA = RowSchema(
    "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2), at TIMESTAMP, day DATE, s STRUCT<a: INT, b: STRING>, "
    "tags ARRAY<STRING>, raw BINARY, x DOUBLE"
)


def normalised(table: pa.Table, schema: RowSchema = SCHEMA, **how):
    (batch,) = table.combine_chunks().to_batches()
    return TypedColumns(batch.schema, schema, "orders", **how).normalise(batch, 1_000)


def stored(table: pa.Table, schema: RowSchema = SCHEMA, **how) -> list[dict]:
    rows = normalised(table, schema, **how)
    rows.data.validate(full=True)
    assert rows.data.schema == data_schema("_replog_headers" in rows.data.schema.names, rows=schema)
    return rows.data.to_pylist()


def refusal(table: pa.Table, schema: RowSchema = SCHEMA, **how) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        normalised(table, schema, **how)
    return caught.value


def test_missing_columns_are_null_and_narrow_ones_are_widened():
    table = pa.table(
        {
            "s": pa.array([{"b": "x"}], pa.struct([("b", pa.large_string())])),
            "amount": pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
            "id": pa.array([7], pa.uint32()),
            "at": pa.array([datetime(2024, 1, 1)], pa.timestamp("ns", tz="Asia/Tokyo")),
            "name": pa.array(["a"]).dictionary_encode(),
            "tags": pa.array([["t"]], pa.large_list(pa.string_view())),
            "raw": pa.array([b"ab"], pa.binary(2)),
            "x": pa.array([1], pa.int32()),
        }
    )
    assert stored(table) == [
        {
            "id": 7, "name": "a", "amount": Decimal("1.50"), "at": datetime(2024, 1, 1, tzinfo=UTC), "day": None,
            "s": {"a": None, "b": "x"}, "tags": ["t"], "raw": b"ab", "x": 1.0,
            "_replog_timestamp": datetime.fromtimestamp(1, UTC),
        }
    ]  # fmt: skip


def test_columns_of_the_right_types_are_not_copied():
    column = pa.array(range(1000))
    rows = normalised(pa.table({"id": column, "name": pa.nulls(1000)}))
    assert rows.data.column("id").buffers()[1].address == column.buffers()[1].address


@pytest.mark.parametrize(
    ("columns", "code", "facts"),
    [
        ({"name": ["a"]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["'id' BIGINT", "NOT NULL", "lacks"]),
        ({"id": [1, None]}, ErrorCode.INVALID_RECORD, ["'id' BIGINT", "1 of 2"]),
        ({"id": [1], "more": [2]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["'more'", "Drop it"]),
        ({"id": [1], "NAME": ["a"]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["'NAME'", "'name'"]),
        ({"id": ["1"]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["'id'", "STRING", "BIGINT", "CAST(id AS BIGINT)"]),
        ({"id": pa.array([1], pa.uint64())}, ErrorCode.REPLOG_INVALID_SCHEMA, ["uint64"]),
        ({"id": [1], "amount": [1.5]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["DOUBLE", "DECIMAL(12,2)"]),
        (
            {"id": [1], "amount": pa.array([Decimal(1)], pa.decimal128(38, 18))},
            ErrorCode.REPLOG_INVALID_SCHEMA,
            ["(38,18)"],
        ),
        ({"id": [1], "at": pa.array([0], pa.timestamp("us"))}, ErrorCode.REPLOG_INVALID_SCHEMA, ["TIMESTAMP_NTZ"]),
        ({"id": [1], "at": pa.array([1], pa.timestamp("ns", tz="UTC"))}, ErrorCode.INVALID_RECORD, ["'at' TIMESTAMP"]),
        ({"id": [1], "x": [2**53]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["BIGINT", "DOUBLE"]),
        ({"id": [1], "raw": ["text"]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["STRING", "BINARY"]),
        ({"id": [1], "s": [{"a": 1, "c": 2}]}, ErrorCode.REPLOG_INVALID_SCHEMA, ["'s'", "STRUCT"]),
        ({"id": [1], "day": pa.array([0], pa.time64("us"))}, ErrorCode.REPLOG_INVALID_SCHEMA, ["time64"]),
    ],
)
def test_input_that_may_lose_a_value_is_refused(columns, code, facts):
    error = refusal(pa.table(columns))
    assert error.code is code
    assert all(fact in str(error) for fact in ["'orders'", *facts]), str(error)


def test_two_columns_of_one_name_are_refused():
    table = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    assert "two columns 'id'" in str(refusal(table))
    both = pa.table({"id": [1], "ID": [2]})
    assert "two columns" in str(refusal(both, is_case_sensitive=False))


def test_case_counts_only_where_it_is_said_to():
    assert stored(pa.table({"ID": [1], "Name": ["a"]}), is_case_sensitive=False)[0]["name"] == "a"
    assert "'ID'" in str(refusal(pa.table({"ID": [1]})))


def test_a_null_that_only_the_dictionary_has_is_found():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([5, None]))
    assert refusal(pa.table({"id": column})).code is ErrorCode.INVALID_RECORD


def test_what_a_reader_would_refuse_is_not_stored():
    """Spark's strings may hold any bytes."""
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    error = refusal(pa.table({"id": [1], "name": bad}))
    assert error.code is ErrorCode.INVALID_RECORD
    assert "'name' STRING" in str(error)


def test_a_column_may_give_the_times_of_the_rows():
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    times = pa.array([moment], pa.timestamp("us", tz="UTC"))
    assert stored(pa.table({"id": [1], "at": times}), timestamp_column="at")[0] | {"id": 0} == {
        **dict.fromkeys(SCHEMA.names), "id": 0, "at": moment, "_replog_timestamp": moment,
    }  # fmt: skip
    only_time = stored(pa.table({"id": [1], "when": times}), timestamp_column="when")[0]
    assert (only_time["_replog_timestamp"], only_time["at"]) == (moment, None)
    assert "'gone'" in str(refusal(pa.table({"id": [1]}), timestamp_column="gone"))
    assert "'name'" in str(refusal(pa.table({"id": [1], "name": ["a"]}), timestamp_column="name"))
    early = pa.array([-1], pa.timestamp("us", tz="UTC"))
    assert refusal(pa.table({"id": [1], "_replog_timestamp": early})).code is ErrorCode.INVALID_TIMESTAMP


def test_keys_are_those_of_the_key_columns():
    keyed = RowSchema("id INT, name STRING", ("name",))
    rows = normalised(pa.table({"name": ["a", "bc"], "id": pa.array([1, 2], pa.int8())}), keyed)
    assert rows.keys.to_pylist() == [b"a", b"bc"]
    assert normalised(pa.table({"id": [1]})).keys.to_pylist() == [None]
