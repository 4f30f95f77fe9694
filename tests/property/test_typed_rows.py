"""Generated schemas, rows and slices: DDL, keys, casts, sizes and sections of typed rows agree with plain Python."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.log.codec.data_object import data_schema, decode_section, encode_data_object
from spark_replog.log.column_cast import cast_column, widens
from spark_replog.log.ddl import canonical_field, columns_text, parse_columns, type_text
from spark_replog.log.row_key import key_array, key_bytes
from spark_replog.log.row_schema import ROW_SCHEMA, RowSchema
from spark_replog.wire import Reader, Writer
from spark_replog.write.columns import row_ends
from spark_replog.write.partitioner import murmur2, murmur2_array
from tests.examples import examples
from tests.generated_rows import KEYABLE, batches, columns, values_of


@settings(max_examples=examples(60))
@given(columns)
def test_every_schema_survives_ddl_and_the_ledger(made):
    fields = pa.schema([pa.field(*column) for column in made])
    text = columns_text(fields)
    assert parse_columns(text) == fields
    assert columns_text(parse_columns(text)) == text
    assert [canonical_field(field) for field in fields] == list(fields)
    writer = Writer()
    schema = RowSchema(text)
    ROW_SCHEMA.write(writer, schema)
    assert ROW_SCHEMA.read(Reader(bytes(writer.data))) == schema


@settings(max_examples=examples(60))
@given(batches(), st.sampled_from(["none", "lz4", "zstd"]), st.data())
def test_sections_give_back_the_rows_or_the_columns_asked_for(batch, compression, data):
    if not batch.num_rows:
        return
    schema = RowSchema.of(batch.schema)
    times_us = pa.array(range(batch.num_rows), pa.timestamp("us", tz="UTC"))
    stored = pa.RecordBatch.from_arrays([*batch.columns, times_us], schema=data_schema(False, rows=schema))
    made = encode_data_object(
        [("t", "ab" * 16, 0, stored, "p")], compression=compression, has_headers=False, rows=schema,
        is_small=data.draw(st.booleans()),
    )  # fmt: skip
    body = b"".join(made.buffers)
    with pa.ipc.open_file(body) as file:
        assert file.read_all().select(batch.schema.names).to_pylist() == batch.to_pylist()
    wanted = data.draw(st.lists(st.sampled_from(stored.schema.names), min_size=1, unique=True))
    for asked in (None, wanted):
        (section,) = made.sections
        part = body[section.start_byte : section.start_byte + section.size_bytes]
        (read,) = decode_section(part, section.crc32c, section.row_count, False, rows=schema, columns=asked)
        names_read = [name for name in stored.schema.names if asked is None or name in asked]
        assert read.schema.names == names_read
        assert read.num_rows == batch.num_rows
        assert read.to_pylist() == stored.select(names_read).to_pylist()


keyable = parse_columns(f"{KEYABLE}, k DECIMAL(38,5), l DECIMAL(9,0)").types


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(keyable), min_size=1, max_size=3).flatmap(
    lambda kinds: st.tuples(st.just(kinds), st.lists(st.tuples(*map(values_of, kinds)), min_size=1, max_size=8))
))  # fmt: skip
def test_keys_of_columns_and_of_single_rows_are_equal_and_tell_keys_apart(case):
    kinds, rows = case
    by_column = zip(kinds, zip(*rows, strict=True), strict=True)
    arrays = [pa.array([None, *column], kind).slice(1) for kind, column in by_column]
    keys = key_array(arrays)
    assert keys.type == pa.binary()
    assert keys.null_count == 0
    assert keys.to_pylist() == [key_bytes(row, kinds) for row in rows]
    assert len(set(keys.to_pylist())) == len(set(rows))
    assert murmur2_array(keys).tolist() == [murmur2(key) for key in keys.to_pylist()]


def test_one_key_column_has_the_bytes_of_kafkas_serializers():
    for kind, value, expected in (
        (pa.string(), "z\u00fcrich", "z\u00fcrich".encode()),
        (pa.binary(), b"\0", b"\0"),
        (pa.int16(), -2, struct.pack(">h", -2)),
        (pa.int32(), 2**31 - 1, struct.pack(">i", 2**31 - 1)),
        (pa.int64(), -5, struct.pack(">q", -5)),
        (pa.bool_(), True, b"\1"),
        (pa.date32(), date(1969, 12, 31), struct.pack(">i", -1)),
        (pa.timestamp("us", tz="UTC"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), struct.pack(">q", 1_000_000)),
        (pa.decimal128(5, 2), Decimal("-1.25"), (-125).to_bytes(16, "big", signed=True)),
    ):
        assert key_array([pa.array([value], kind)]).to_pylist() == [expected]
    two = key_array([pa.array(["ab", "a"]), pa.array(["c", "bc"])])
    assert two.to_pylist() == [b"\0\0\0\2ab\0\0\0\1c", b"\0\0\0\1a\0\0\0\2bc"]


@settings(max_examples=examples(60))
@given(batches(), batches())
def test_a_cast_keeps_every_value_where_the_type_widens(batch, other):
    for field in batch.schema:
        column = batch.column(field.name)
        for target in (field, *other.schema):
            if not widens(field.type, target.type):
                continue
            made = cast_column(column, target.type)
            made.validate(full=True)
            assert made.type == target.type
            assert made.null_count == column.null_count
            if type_text(field.type) == type_text(target.type):
                assert made.to_pylist() == column.to_pylist()


@settings(max_examples=examples(60))
@given(batches())
def test_other_layouts_are_cast_without_a_change(batch):
    for field in batch.schema:
        column = batch.column(field.name)
        layouts = {pa.string(): [pa.large_string(), pa.string_view()], pa.binary(): [pa.large_binary()]}
        for layout in layouts.get(field.type, []):
            assert widens(layout, field.type)
            assert cast_column(column.cast(layout), field.type).equals(column)
        if pa.types.is_string(field.type) or pa.types.is_integer(field.type):
            encoded = column.dictionary_encode()
            assert widens(encoded.type, field.type)
            assert cast_column(encoded, field.type).to_pylist() == column.to_pylist()
        if pa.types.is_list(field.type):
            large = column.cast(pa.large_list(field.type.value_type))
            assert widens(large.type, field.type)
            assert cast_column(large, field.type).to_pylist() == column.to_pylist()


@settings(max_examples=examples(60))
@given(batches())
def test_sizes_of_rows_add_up(batch):
    schema = RowSchema.of(batch.schema)
    times_us = pa.array(range(batch.num_rows), pa.timestamp("us", tz="UTC"))
    stored = pa.RecordBatch.from_arrays([*batch.columns, times_us], schema=data_schema(False, rows=schema))
    ends = row_ends(stored)
    assert len(ends) == batch.num_rows + 1
    assert ends[0] == 0
    assert (np.diff(ends) >= 8).all()
    some = np.unique([0, batch.num_rows // 2, batch.num_rows])
    assert row_ends(stored, some).tolist() == ends[some].tolist()
