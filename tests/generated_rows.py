"""Generated schemas of typed topics and their rows: every type, nested, odd names, nulls, slices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from spark_replog.log.ddl import parse_columns

names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=8).filter(
    lambda name: not name.lower().startswith("_replog_")
)
decimals = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
)
KEYABLE = "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f STRING, g BINARY, h DATE, i TIMESTAMP, j TIMESTAMP_NTZ"
flat_types = decimals | st.sampled_from(parse_columns(f"{KEYABLE}, k FLOAT, l DOUBLE, m INTERVAL DAY TO SECOND").types)


def structs(types):
    fields = st.lists(st.tuples(names, types), max_size=3, unique_by=lambda pair: pair[0].lower())
    return fields.map(lambda pairs: pa.struct([pa.field(name, kind) for name, kind in pairs]))


types = st.recursive(
    flat_types,
    lambda inner: (
        inner.map(lambda kind: pa.list_(pa.field("element", kind)))
        | st.tuples(flat_types, inner).map(lambda pair: pa.map_(*pair))
        | structs(inner)
    ),
    max_leaves=4,
)
columns = st.lists(st.tuples(names, types, st.booleans()), min_size=1, max_size=4, unique_by=lambda row: row[0].lower())
times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))


def values_of(kind: pa.DataType):
    """Return values of a type, as ``as_py`` gives them."""
    if pa.types.is_decimal(kind):
        numbers = st.integers(1 - 10**kind.precision, 10**kind.precision - 1)
        return numbers.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))
    if pa.types.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_timestamp(kind):
        return times if kind.tz is None else times.map(lambda time: time.replace(tzinfo=UTC))
    if pa.types.is_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.lists(st.tuples(values_of(kind.key_type), st.none() | values_of(kind.item_type)), max_size=3)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in kind})
    return {
        "bool": st.booleans(), "string": st.text(st.characters(exclude_categories=("Cs",)), max_size=9),
        "binary": st.binary(max_size=9), "date32[day]": st.dates(),
        "duration[us]": st.timedeltas(timedelta(-9999), timedelta(9999)),
    }[str(kind)]  # fmt: skip


@st.composite
def batches(draw):
    """Return a schema and some rows of it, as a slice of more."""
    fields = [pa.field(*column) for column in draw(columns)]
    count = draw(st.integers(0, 4))
    arrays = [
        pa.array(draw(st.lists((st.none() | values_of(f.type)) if f.nullable else values_of(f.type), min_size=count,
                               max_size=count)), f.type)
        for f in fields
    ]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


def has_single_keys(batch: pa.RecordBatch) -> bool:
    """Return whether no map has a key twice: Arrow holds such maps, but neither Spark nor a dict does."""

    def is_single(value: Any, kind: pa.DataType) -> bool:
        if value is None or not pa.types.is_nested(kind):
            return True
        if pa.types.is_map(kind):
            keys = [key for key, _ in value]
            return len(set(keys)) == len(keys) and all(is_single(item, kind.item_type) for _, item in value)
        if pa.types.is_list(kind):
            return all(is_single(item, kind.value_type) for item in value)
        return all(is_single(value[field.name], field.type) for field in kind)

    return all(is_single(row[field.name], field.type) for row in batch.to_pylist() for field in batch.schema)
