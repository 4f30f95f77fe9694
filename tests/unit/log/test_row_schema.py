"""The schema of typed rows: DDL and Arrow, what is refused, and which changes older rows survive."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.row_schema import RowSchema

ALL_TYPES = (
    "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, "
    "s STRUCT<a: INT, b: STRING>, m MAP<STRING, INT>, `odd ``name` DATE, raw BINARY, ok BOOLEAN, t TINYINT, "
    "h SMALLINT, f FLOAT, d DOUBLE, took INTERVAL DAY TO SECOND, deep ARRAY<MAP<INT, STRUCT<x: ARRAY<DATE>>>>"
)


def refusal(*arguments) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        RowSchema(*arguments)
    assert caught.value.code is ErrorCode.REPLOG_INVALID_SCHEMA
    return str(caught.value)


def test_ddl_becomes_arrow_and_back():
    schema = RowSchema(ALL_TYPES)
    assert schema.ddl == ALL_TYPES
    assert schema.arrow.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.arrow.field("local").type == pa.timestamp("us")
    assert schema.arrow.field("took").type == pa.duration("us")
    assert schema.names[7] == "odd `name"
    assert [column.name for column in schema.arrow if not column.nullable] == ["id"] == list(schema.required)
    assert RowSchema.of(schema.arrow) == schema


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a int,b  string", "a INT, b STRING"),
        ("a long not null", "a BIGINT NOT NULL"),
        ("a Byte, b short, c integer, d real", "a TINYINT, b SMALLINT, c INT, d FLOAT"),
        ("a timestamp_ltz, b dec, c numeric(5)", "a TIMESTAMP, b DECIMAL(10,0), c DECIMAL(5,0)"),
        ("a struct<x int, `y z`: array<long>>", "a STRUCT<x: INT, `y z`: ARRAY<BIGINT>>"),
        ("`select` INT, `1` INT", "select INT, `1` INT"),
        ("z\u00e9ro INT", "`z\u00e9ro` INT"),
        ("a struct<>", "a STRUCT<>"),
    ],
)
def test_other_words_become_the_canonical_text(written, canonical):
    schema = RowSchema(written)
    assert schema.ddl == canonical
    assert RowSchema(canonical) == schema


@pytest.mark.parametrize(
    ("ddl", "facts"),
    [
        ("", ["the end"]),
        ("id", ["a type"]),
        ("id BIGINT NOT", ["NULL"]),
        ("id BIGINT,", ["name of a column"]),
        ("id BIGINT) x", ["')"]),
        ("a ARRAY<INT", ["'>'"]),
        ("a VARCHAR(3)", ["VARCHAR", "STRING"]),
        ("a VARIANT", ["VARIANT"]),
        ("a INTERVAL YEAR TO MONTH", ["INTERVAL YEAR TO MONTH"]),
        ("a DECIMAL(39,2)", ["DECIMAL(39,2)"]),
        ("a DECIMAL(3,4)", ["DECIMAL(3,4)"]),
        ("a INT, A STRING", ["'a'", "'A'", "case"]),
        ("a STRUCT<x: INT, X: INT>", ["'x'", "'X'"]),
        ("`a\0b` INT", [r"'a\x00b'", "another name"]),
        ("a STRUCT<`\0`: INT>", ["the struct", "another name"]),
        ("a STRUCT<x: INT NOT NULL>", ["'x'", "NOT NULL"]),
        ("a INT COMMENT 'x'", ["COMMENT"]),
        ("_replog_x INT", ["_replog_x", "Rename"]),
        ("_RepLog_x INT", ["_RepLog_x"]),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, ["deeper"]),
        ("a INT, " * 20_000 + "b INT", ["characters"]),
    ],
)
def test_text_that_is_no_schema_is_refused(ddl, facts):
    text = refusal(ddl)
    assert all(fact in text for fact in facts), text


def test_key_columns_are_not_null_and_refused_where_they_cannot_be_hashed():
    schema = RowSchema("id BIGINT, at TIMESTAMP, x DOUBLE, tags ARRAY<INT>", ("at", "id"))
    assert schema.required == ("id", "at")
    assert "id BIGINT NOT NULL" in schema.ddl
    assert "'x'" in refusal("id BIGINT, x DOUBLE", ("x",))
    assert "'tags'" in refusal("tags ARRAY<INT>", ("tags",))
    assert "Did you mean 'id'" in refusal("id BIGINT", ("ID",))
    assert "twice" in refusal("id BIGINT", ("id", "id"))


def test_arrow_layouts_become_what_spark_has():
    given = pa.schema(
        [
            pa.field("a", pa.large_string(), metadata={"x": "y"}),
            pa.field("b", pa.dictionary(pa.int8(), pa.string()), nullable=False),
            pa.field("c", pa.timestamp("ns", tz="Europe/Berlin")),
            pa.field("d", pa.timestamp("s")),
            pa.field("e", pa.large_list(pa.field("item", pa.string_view(), nullable=False))),
            pa.field("f", pa.binary(16)),
            pa.field("g", pa.date64()),
            pa.field("h", pa.struct([pa.field("x", pa.list_(pa.int8(), 3), nullable=False)])),
            pa.field("i", pa.duration("ms")),
        ],
        metadata={"pandas": "{}"},
    )
    schema = RowSchema.of(given)
    assert schema.ddl == (
        "a STRING, b STRING NOT NULL, c TIMESTAMP, d TIMESTAMP_NTZ, e ARRAY<STRING>, f BINARY, g DATE, "
        "h STRUCT<x: ARRAY<TINYINT>>, i INTERVAL DAY TO SECOND"
    )
    assert schema.arrow.metadata is None


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.float16(), pa.time64("us"), pa.null(), pa.decimal256(40, 2), pa.month_day_nano_interval()]
)
def test_types_that_spark_lacks_are_refused_by_name(kind):
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA") as caught:
        RowSchema.of(pa.schema([("s", pa.struct([("x", kind)]))]))
    assert "'s.x'" in str(caught.value)
    assert str(kind) in str(caught.value)


def test_it_is_a_value_that_pickles_small():
    schema = RowSchema(ALL_TYPES, ("id",), 3)
    data = pickle.dumps(schema)
    assert pickle.loads(data) == schema
    assert len(data) < len(ALL_TYPES) + 120
    assert len({schema, pickle.loads(data)}) == 1


BASE = "id BIGINT NOT NULL, n INT, d DECIMAL(6,2), s STRUCT<a: TINYINT, b: FLOAT>, l ARRAY<SMALLINT>, r STRING NOT NULL"


@pytest.mark.parametrize(
    "ddl",
    [
        BASE + ", more STRING",
        BASE.replace("n INT", "n BIGINT"),
        BASE.replace("n INT", "n DECIMAL(10,0)"),
        BASE.replace("n INT", "n DOUBLE"),
        BASE.replace("DECIMAL(6,2)", "DECIMAL(8,4)"),
        BASE.replace("TINYINT, b: FLOAT", "INT, b: DOUBLE, c: DATE"),
        BASE.replace("SMALLINT", "BIGINT"),
        BASE.replace("r STRING NOT NULL", "r STRING"),
        ", ".join(["more DATE", "r STRING NOT NULL", "l ARRAY<SMALLINT>", "s STRUCT<b: FLOAT, a: TINYINT>"])
        + ", d DECIMAL(6,2), n INT, id BIGINT",
    ],
)
def test_a_version_may_add_widen_and_drop_not_null(ddl):
    old = RowSchema(BASE, ("id",))
    new = old.evolve(RowSchema(ddl, ("id",)))
    assert new.version == 2
    assert new.ddl == RowSchema(ddl, ("id",)).ddl


@pytest.mark.parametrize(
    ("ddl", "key", "facts"),
    [
        (BASE.replace(", n INT", ""), ("id",), ["'n' INT", "missing"]),
        (BASE.replace("n INT", "m INT"), ("id",), ["'n' INT", "missing"]),
        (BASE.replace("n INT", "n SMALLINT"), ("id",), ["'n'", "INT", "SMALLINT"]),
        (BASE.replace("n INT", "n FLOAT"), ("id",), ["'n'", "FLOAT"]),
        (BASE.replace("n INT", "n DECIMAL(9,0)"), ("id",), ["DECIMAL(9,0)"]),
        (BASE.replace("n INT", "n STRING"), ("id",), ["STRING"]),
        (BASE.replace("n INT", "n INT NOT NULL"), ("id",), ["'n'", "NOT NULL"]),
        (BASE + ", more INT NOT NULL", ("id",), ["'more'", "NOT NULL"]),
        (BASE.replace("DECIMAL(6,2)", "DECIMAL(6,3)"), ("id",), ["'d'"]),
        (BASE.replace("a: TINYINT, ", ""), ("id",), ["'s'"]),
        (BASE.replace("r STRING", "r BINARY"), ("id",), ["'r'"]),
        (BASE, (), ["key"]),
        (BASE, ("id", "r"), ["key"]),
    ],
)
def test_what_older_rows_may_not_fit_is_refused(ddl, key, facts):
    with pytest.raises(InvalidConfigError) as caught:
        RowSchema(BASE, ("id",)).evolve(RowSchema(ddl, key))
    assert caught.value.code is ErrorCode.REPLOG_INVALID_SCHEMA
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_a_key_column_keeps_its_type_so_that_a_key_keeps_its_partition():
    with pytest.raises(InvalidConfigError, match="key column"):
        RowSchema("id INT", ("id",)).evolve(RowSchema("id BIGINT", ("id",)))


def test_rows_of_an_older_version_are_raised():
    old = RowSchema("id INT NOT NULL, s STRUCT<a: TINYINT>, n FLOAT")
    new = old.evolve(RowSchema("more DATE, n DOUBLE, s STRUCT<b: STRING, a: BIGINT>, id BIGINT"))
    fields = [*old.arrow, pa.field("_replog_timestamp", pa.timestamp("us", tz="UTC"))]
    rows = pa.RecordBatch.from_pylist([{"id": 1, "s": {"a": -5}, "n": 0.5, "_replog_timestamp": 7}], pa.schema(fields))
    raised = new.raised(rows)
    raised.validate(full=True)
    assert raised.schema.names == ["more", "n", "s", "id", "_replog_timestamp"]
    assert raised.drop_columns(["_replog_timestamp"]).to_pylist() == [
        {"more": None, "n": 0.5, "s": {"b": None, "a": -5}, "id": 1}
    ]
