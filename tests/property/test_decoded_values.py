"""Generated and hostile values: decoded in batches they are what each of them is alone, by the rule of a row."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from spark_replog.log.json_columns import JsonColumns
from spark_replog.log.json_rows import json_rows
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.rows_of_text import columns_of_objects, parse_row
from spark_replog.log.value_decoder import ValueDecoder
from tests.examples import examples
from tests.generated_rows import batches

ROWS = RowSchema(
    "a INT NOT NULL, b BIGINT, c DOUBLE, f FLOAT, d DECIMAL(5,2), t TIMESTAMP, n TIMESTAMP_NTZ, day DATE, s STRING,"
    " raw BINARY, i INTERVAL DAY TO SECOND, ok BOOLEAN, l ARRAY<INT>, o STRUCT<x: INT, t: TIMESTAMP, l: ARRAY<DATE>>"
)
_TOKENS = r"""
0 1 -0 1.0 1e2 -7 128 2147483648 9223372036854775808 1e400 1e39 1.25 1.250 1.255 0.1 1e-3 01 +1 .5 1.
NaN Infinity -Infinity null true false tru [] {} [1,null] [1,[2]] [[1]] [NaN] {"x":NaN} {"x":1,"x":2} {"z":NaN}
"x" "" "1" "1.25" "+1" "1_0" ".5" "1e1" "1." "NaN" "Infinity" "aGk=" "aGk" "\ud800" "\ud83d\ude00" "\u0000" "1:NaN"
"2024-01-01" "2024-02-30" "0000-01-01" "0001-01-01" "9999-12-31" "20240101" "2024-1-1" "2024-01-01T00:00"
"2024-01-01T00:00:00Z" "2024-01-01T00:00:00.1234567Z" "2024-01-01T23:59:60Z" "0001-01-01T00:00:00+10:00"
"9999-12-31T23:59:59.999999-10:00" "2024-01-01T00:00:00+25:00" 1}{ 1}, {"x":1}}{"a":1
{"x":1,"t":"2024-01-01T00:00:00Z","l":["2024-01-01",null],"y":[{}]}
"""
TOKENS = [*_TOKENS.split(), '" 1"', '"a GVs"', '"2024-01-01 00:00:00.5"', '"a\nb"', '"\t"', '"caf\u00e9"', '1}\n{"a":2',
          "[" * 3000 + "]" * 3000]  # fmt: skip
NAMES = [*ROWS.names, "x", "A", "\\u0061", "_replog_x"]
objects = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(TOKENS)), max_size=4)
spaces = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n", "\x00", "\ufeff", "\x0b"])
plain = objects.map(lambda pairs: "{" + ",".join(f'"{name}":{token}' for name, token in [("a", "1"), *pairs]) + "}")
texts = st.tuples(spaces, plain, spaces).map("".join) | st.sampled_from(
    [
        "",
        "{",
        "}",
        "{}",
        "[",
        "]",
        ",",
        "1",
        "null",
        "[{}]",
        '{"a":1',
        ',"b":2}',
        '{"x":[',
        "]}",
        '"',
        '{"x":"',
        '"}',
        "{}{}",
    ]
)


@st.composite
def values(draw):
    data = draw(texts).encode()
    if data and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = (
            data[:at] + draw(st.sampled_from([b"", b"\xff", b"\x00", b'"', b"}", b"\n", b"\\", b"1"])) + data[at + 1 :]
        )
    return data


def shown(value):
    """A value that is equal to itself, NaN too, and the same for both zeros."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


def by_rule(value):
    """What one value is by itself; "" for a bad one. None: Python's parser cannot tell."""
    try:
        row = parse_row(value)
    except ValueError as error:
        return None if isinstance(error.__cause__, RecursionError) else ""
    columns, errors = columns_of_objects([row], ROWS.arrow, takes_extra=True)
    made = {column.name: array[0].as_py() for column, array in zip(ROWS.arrow, columns, strict=True)}
    return "" if errors or made["a"] is None else shown(made)


@settings(max_examples=examples(150))
@given(st.lists(values(), max_size=8))
@example([b'{"a":1', b',"b":2}'])
@example([b'{"a":1}{"a":2}', b" "])
@example([b'{"a":1,"x":[', b"]}"])
@example([b'{"a":1,"t":"0001-01-01T00:00:00+10:00"}', b'{"a":1,"t":"9999-12-31T23:59:59-00:01"}'])
def test_a_value_is_the_same_among_others_as_alone(rows):
    array = pa.array([b"", *rows], pa.binary())[1:]
    batch, reasons = ValueDecoder("json", ROWS).decode(array)
    batch.validate(full=True)
    for value, row, reason in zip(rows, batch.to_pylist(), reasons.to_pylist(), strict=True):
        wanted = by_rule(value)
        if wanted is None:
            continue
        assert (reason is None) == (wanted != ""), (value, reason, wanted)
        assert shown(row) == (wanted or dict.fromkeys(ROWS.names)), value
    good = JsonColumns(ROWS.arrow).read_good(array)
    assert good is None or (good.equals(batch) and reasons.null_count == len(rows))


@settings(max_examples=examples(60))
@given(batches())
def test_rows_that_were_made_text_come_back(batch):
    assume("map<" not in str(batch.schema))  # a map may have a key twice, and an object may not
    made, reasons = ValueDecoder("json", batch.schema).decode(json_rows(batch))
    assert reasons.null_count == len(batch), reasons
    assert shown(made.to_pylist()) == shown(batch.to_pylist())


@pytest.mark.parametrize("bad_at", [(), (0,), (499,), tuple(range(0, 500, 7)), tuple(range(500))])
def test_bad_rows_are_found_among_many(bad_at):
    rows = [f'{{"a":{number}}}'.encode() for number in range(500)]
    for number in bad_at:
        rows[number] = b'{"a":1.5}'
    batch, reasons = ValueDecoder("json", ROWS).decode(pa.array(rows, pa.binary()))
    assert [number for number, reason in enumerate(reasons.to_pylist()) if reason] == list(bad_at)
    assert batch["a"].to_pylist() == [None if number in bad_at else number for number in range(500)]
