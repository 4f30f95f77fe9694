"""Batches of any shape that share a message: the object is the one that copied rows make, and has their rows."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.log.codec import data_object
from spark_replog.log.codec.data_object import HEADERS_TYPE, data_schema, decode_section, encode_data_object
from tests.examples import examples

TOPIC = "ab" * 16
_HEADER = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)})
_WIDE = st.integers(4090, 4100).map(bytes)
"""About as long as a piece that is copied."""


def _values(has_nulls: bool) -> st.SearchStrategy[bytes | None]:
    strategy = st.binary(max_size=9) | _WIDE
    return st.none() | strategy if has_nulls else strategy


@st.composite
def _batches(draw: st.DrawFn, has_headers: bool, has_offsets: bool) -> list[pa.RecordBatch]:
    """Return slices of random batches; the rows around a slice are not part of it."""
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 4))

        def column(of: st.SearchStrategy[object], kind: pa.DataType, count: int = count) -> pa.Array:
            return pa.array(draw(st.lists(of, min_size=count, max_size=count)), kind)

        columns = [
            column(_values(draw(st.booleans())), pa.binary()),
            column(_values(draw(st.booleans())), pa.binary()),
            column(st.integers(0, 2**50), pa.int64()).cast(data_object.TIMESTAMP_TYPE),
        ]
        if has_headers:
            columns.append(column(st.none() | st.lists(_HEADER, max_size=2), HEADERS_TYPE))
        if has_offsets:
            columns.append(pa.array(range(count), pa.int64()))
        first = draw(st.integers(0, count))
        last = draw(st.integers(first, count))
        batches.append(pa.RecordBatch.from_arrays(columns, schema=data_schema(has_headers, has_offsets))[first:last])
    return batches


@settings(max_examples=examples(10), deadline=None)
@given(st.data(), st.booleans(), st.booleans(), st.sampled_from([1, 100]))
def test_they_are_written_as_if_they_were_copied(
    data: st.DataObject, has_headers: bool, has_offsets: bool, shared_bytes_min: int
) -> None:
    parts = [data.draw(_batches(has_headers, has_offsets)) for _ in range(2)]
    tables = [pa.Table.from_batches(part) for part in parts]
    shape = {"has_headers": has_headers, "has_offsets": has_offsets}
    inputs = [("orders", TOPIC, number, part, "query-1") for number, part in enumerate(parts)]
    with patch.object(data_object, "_SHARED_BYTES_MIN", shared_bytes_min):
        made = encode_data_object(inputs, compression="none", **shape)
    body = b"".join(made.buffers)
    copied = encode_data_object(inputs, compression="none", **shape)
    assert (body, made.sections) == (b"".join(copied.buffers), copied.sections)
    filled = [table for table in tables if len(table)]
    assert pa.ipc.open_file(body).read_all().equals(pa.concat_tables([tables[0][:0], *filled]))
    for section, table in zip(made.sections, filled, strict=True):
        part = body[section.start_byte : section.start_byte + section.size_bytes]
        rows = decode_section(part, section.crc32c, section.row_count, has_headers, has_offsets)
        assert pa.Table.from_batches(rows).equals(table)
