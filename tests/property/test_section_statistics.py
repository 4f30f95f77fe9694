"""Statistics of sections: none with a matching row is left out, whatever the rows, the filters and the bytes are."""

from __future__ import annotations

import math
import operator
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.log.codec.data_object import data_schema, decode_section, encode_data_object, frame_damage
from spark_replog.log.codec.section_statistics import MAGIC, STATISTICS_COLUMNS_MAX, ObjectStatistics
from spark_replog.log.column_cast import cast_column
from spark_replog.log.ddl import parse_columns
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.column_filter import ColumnFilter, Comparison, bound_value, may_match
from tests.examples import examples
from tests.generated_rows import values_of

DDL = (
    "a BOOLEAN, b TINYINT, c BIGINT, d FLOAT, e DOUBLE, f DECIMAL(38,4), m DECIMAL(12,2), g STRING, h BINARY, i DATE,"
    " j TIMESTAMP, k TIMESTAMP_NTZ, l ARRAY<INT>"
)
WIDER = {"b": "b DECIMAL(12,3)", "c": "c BIGINT", "d": "d DOUBLE", "f": "f DECIMAL(38,4)"}
SCHEMA = RowSchema(DDL)
NEWER = RowSchema(", ".join(WIDER.get(part.split()[0], part) for part in DDL.split(", ") if part != "") + ", z INT")
LONG = st.sampled_from(["x" * 31, "x" * 32, "x" * 40 + "a", "x" * 40 + "b", "\U0010ffff" * 9, ""])
EXTRA = {
    "d": st.sampled_from([math.nan, -0.0, math.inf, -math.inf]),
    "e": st.sampled_from([math.nan, -0.0, math.inf, -math.inf]),
    "g": LONG,
    "h": LONG.map(str.encode) | st.sampled_from([b"\xff" * 40, b"\xff" * 32]),
    "i": st.sampled_from([date(1, 1, 1), date(1969, 12, 31)]),
}
TESTS = {
    Comparison.ABOVE: operator.gt,
    Comparison.AT_LEAST: operator.ge,
    Comparison.BELOW: operator.lt,
    Comparison.AT_MOST: operator.le,
}


def values(field):
    plain = values_of(field.type)
    return EXTRA[field.name] | plain if field.name in EXTRA else plain


@st.composite
def sections(draw):
    """Return the rows of up to three sections, few values each, so that ranges are apart."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 4))
        columns = [
            pa.array(draw(st.lists(st.none() | values(field), min_size=count, max_size=count)), field.type)
            for field in SCHEMA.arrow
        ]
        times = pa.array(range(count), pa.timestamp("us", tz="UTC"))
        parts.append(pa.RecordBatch.from_arrays([*columns, times], schema=data_schema(False, rows=SCHEMA)))
    return parts


@st.composite
def filters(draw, rows):
    """Return a filter on one column, and the function that tells whether a value satisfies it, as Spark does."""
    field = draw(st.sampled_from(list(NEWER.arrow)))
    present = [value for value in rows.get(field.name, ()) if value is not None]
    test = draw(
        st.sampled_from(
            [
                Comparison.IS_NULL,
                Comparison.IS_NOT_NULL,
                Comparison.IN,
                Comparison.IN,
                *TESTS,
                *TESTS,
                Comparison.STARTS_WITH,
            ]
        )
    )
    if test in (Comparison.IS_NULL, Comparison.IS_NOT_NULL) or pa.types.is_list(field.type):
        test = test if test is Comparison.IS_NULL else Comparison.IS_NOT_NULL
        return ColumnFilter(field.name, test), lambda value: (value is None) == (test is Comparison.IS_NULL)
    drawn = values_of(field.type) if field.name not in EXTRA or test is Comparison.STARTS_WITH else values(field)
    given_values = draw(st.lists(st.sampled_from(present) | drawn if present else drawn, min_size=1, max_size=3))
    if test is Comparison.STARTS_WITH and field.name != "g":
        test = Comparison.AT_LEAST
    literals = given_values if test is Comparison.IN else given_values[:1]
    bounds = [bound_value(value, field.type) for value in literals]
    if None in bounds:
        assert any(isinstance(value, float) and math.isnan(value) for value in literals)
        return None

    def holds(value):
        if value is None:
            return False
        if isinstance(value, float) and math.isnan(value):  # above all others in Spark
            return test in (Comparison.ABOVE, Comparison.AT_LEAST)
        if isinstance(value, str):
            value, others = value.encode(), [other.encode() for other in literals]
        else:
            others = literals
        if test is Comparison.IN:
            return value in others
        return value.startswith(others[0]) if test is Comparison.STARTS_WITH else TESTS[test](value, others[0])

    return ColumnFilter(field.name, test, tuple(bounds)), holds


def encode(parts, schema=SCHEMA, compression="none", **options):
    made = encode_data_object(
        [("t", "ab" * 16, number, part, "p") for number, part in enumerate(parts)],
        compression=compression, has_headers=False, rows=schema, **options,
    )  # fmt: skip
    return made, b"".join(made.buffers)


def statistics_of(made, body, schema=SCHEMA):
    ends = ObjectStatistics(memoryview(body)[-65536:], schema.arrow)
    return [ends.of(item.start_byte, item.size_bytes, item.crc32c, item.row_count) for item in made.sections]


@settings(max_examples=examples(50))
@given(sections(), st.data())
def test_no_section_with_a_matching_row_is_left_out(parts, data):
    """As Spark asks: in the types of a newer version, and after an object was compacted into another."""
    made, body = encode(parts)
    rows = pa.Table.from_batches(parts).to_pydict()
    chosen = [item for item in data.draw(st.lists(filters(rows), min_size=1, max_size=2)) if item is not None]
    wanted = [item for item, _ in chosen]
    for part, statistics in zip(parts, statistics_of(made, body), strict=True):
        assert statistics is not None
        columns = {field.name: cast_column(part.column(field.name), NEWER.arrow.field(field.name).type).to_pylist()
                   for field in SCHEMA.arrow} | {"z": [None] * len(part)}  # fmt: skip
        for item, holds in chosen:
            if any(holds(value) for value in columns[item.column]):
                assert may_match([item], SCHEMA, statistics), (item, statistics.get(item.column))
        matches = [all(holds(columns[item.column][row]) for item, holds in chosen) for row in range(len(part))]
        assert may_match(wanted, SCHEMA, statistics) or not any(matches)


@settings(max_examples=examples(30))
@given(sections())
def test_statistics_of_joined_parts_hold_for_all_rows_and_change_no_row(parts):
    (joined, body), (apart, other) = encode([parts]), encode(parts, compression="zstd")
    (whole,) = statistics_of(joined, body)
    for statistics in statistics_of(apart, other):
        for name, column in statistics.items():
            assert whole[name].null_count >= column.null_count
            if not column.is_all_null and whole[name].low is not None:
                assert whole[name].low <= column.low
            if not column.is_all_null and whole[name].high is not None:
                assert whole[name].high >= column.high
    for made, bytes_of in ((joined, body), (apart, other)):
        spans = [(item.start_byte, item.size_bytes) for item in made.sections]
        assert frame_damage(bytes_of, spans) is None
        assert pa.ipc.open_file(bytes_of).read_all().num_rows == sum(map(len, parts))
        for item in made.sections:
            start, end = item.start_byte, item.start_byte + item.size_bytes
            assert list(decode_section(bytes_of[start:end], item.crc32c, item.row_count, False, rows=SCHEMA))


def row(**columns):
    arrays = [pa.array(columns.get(field.name, [None] * 2), field.type) for field in SCHEMA.arrow]
    times = pa.array(range(2), pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([*arrays, times], schema=data_schema(False, rows=SCHEMA))


EPOCH_MINUS = datetime(1969, 12, 31, 23, 59, 59, 999_999)


@pytest.mark.parametrize(
    ("name", "pair", "low", "high"),
    [
        ("a", [True, False], 0, 1),
        ("b", [5, -128], -128, 5),
        ("d", [1.5, None], 1.5, 1.5),
        ("e", [math.nan, 1.0], None, None),
        ("e", [math.inf, -2.5], -2.5, math.inf),
        ("m", [Decimal("-0.01"), Decimal("9999999999.99")], Decimal("-0.01"), Decimal("9999999999.99")),
        ("f", [Decimal("-1.25"), Decimal(10**33)], Decimal("-1.25"), Decimal(10**33)),
        ("g", ["b", "a" * 40], b"a" * 32, b"b"),
        ("g", ["x" * 40, "a"], b"a", b"x" * 31 + b"y"),
        ("h", [b"\xff" * 40, b"\0"], b"\0", None),
        ("i", [date(1970, 1, 2), date(1969, 12, 31)], -1, 1),
        ("j", [EPOCH_MINUS.replace(tzinfo=UTC), None], -1, -1),
        ("k", [EPOCH_MINUS, datetime(1970, 1, 1)], -1, 0),
        ("k", [None, None], None, None),
    ],
)
def test_bounds_are_as_near_as_documented(name, pair, low, high):
    made, body = encode([row(**{name: pair})])
    (statistics,) = statistics_of(made, body)
    assert statistics[name][:2] == (2, pair.count(None))
    assert statistics[name][2:] == (low, high)
    assert "l" not in statistics


def test_the_file_is_still_one_of_arrow_and_small_objects_have_no_statistics():
    rows = row(c=[1, 2], g=["a", "b"])
    _, body = encode([rows])
    assert MAGIC in body
    assert pa.ipc.open_file(body).read_all()["c"].to_pylist() == [1, 2]
    assert MAGIC not in encode([rows], is_small=True)[1]


def test_columns_beyond_the_first_have_none_and_long_values_no_bounds():
    wide = RowSchema(", ".join(f"c{number} INT" for number in range(STATISTICS_COLUMNS_MAX + 3)))
    columns = [pa.array([1], pa.int32())] * (STATISTICS_COLUMNS_MAX + 3) + [pa.array([0], pa.timestamp("us", tz="UTC"))]
    part = pa.RecordBatch.from_arrays(columns, schema=data_schema(False, rows=wide))
    (statistics,) = statistics_of(*encode([part], wide), wide)
    assert list(statistics) == [f"c{number}" for number in range(STATISTICS_COLUMNS_MAX)]
    (statistics,) = statistics_of(*encode([row(g=["y" * 5000, "z"], h=[b"y" * 5000, b"z"])]))
    assert statistics["g"][1:] == statistics["h"][1:] == (0, None, None)


def test_damaged_statistics_are_none_and_named_by_the_check_of_an_object():
    made, body = encode([row(c=[1, 2], g=["a", "b"]), row(c=[3, 4], f=[Decimal(1), None])])
    good, end_of_stream = statistics_of(made, body), made.sections[-1].start_byte + made.sections[-1].size_bytes + 8
    spans = [(item.start_byte, item.size_bytes) for item in made.sections]
    footer_at = body.index(MAGIC) + len(MAGIC)
    start = footer_at - 16 - struct.unpack_from("<I", body, footer_at - 12)[0]
    assert start == end_of_stream
    for at in range(start, footer_at):
        for mask in (0x01, 0x80):
            damaged = bytearray(body)
            damaged[at] ^= mask
            assert statistics_of(made, bytes(damaged)) == [None, None]
            assert frame_damage(bytes(damaged), spans) is not None
            # With a checksum that fits: other statistics perhaps, but no error.
            checksum = crc32c.crc32c(bytes(damaged[start : footer_at - 16]))
            damaged[footer_at - 16 : footer_at - 12] = struct.pack("<I", checksum)
            assert len(statistics_of(made, bytes(damaged))) == 2
    for size in range(footer_at - start):
        assert statistics_of(made, body[len(body) - size :]) == [None, None]
    other = made.sections[0]
    ends = ObjectStatistics(memoryview(body), SCHEMA.arrow)
    assert ends.of(other.start_byte, other.size_bytes, other.crc32c ^ 1, other.row_count) is None, "of other rows"
    assert statistics_of(made, body, RowSchema("q INT")) == [None, None]
    assert all(good)


def test_literals_of_other_kinds_are_not_compared():
    kinds = parse_columns(DDL)
    for name, value in [
        ("a", 1), ("c", True), ("c", "1"), ("e", math.nan), ("g", b"a"), ("h", "a"), ("i", datetime(2024, 1, 1)),
        ("j", datetime(2024, 1, 1)), ("k", datetime(2024, 1, 1, tzinfo=UTC)), ("l", [1]), ("c", None),
    ]:  # fmt: skip
        assert bound_value(value, kinds.field(name).type) is None
