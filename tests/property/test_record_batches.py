"""Kafka's record batches: generated ones agree with kafka-python both ways, hostile bytes are refused."""

from __future__ import annotations

import struct
import tracemalloc
from unittest.mock import patch

import crc32c
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import encode_varint

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway import few_records
from spark_replog.gateway.compression import CODECS, compress
from spark_replog.gateway.record_batch import HEADER_BYTES, decode, encode
from spark_replog.read.rows import read_schema
from tests.examples import examples

MIB = 1024 * 1024
NOW_MS = 1_700_000_000_000
LATEST_MS = (2**63 - 1) // 1000
values = st.none() | st.binary(max_size=9) | st.integers(60, 300).map(bytes)
header_keys = st.text(max_size=4) | st.sampled_from(["a" * 63, "b" * 64])
headers = st.lists(st.tuples(header_keys, values), max_size=3) | st.just([("h", None)] * 70)
times_ms = st.integers(0, LATEST_MS) | st.just(NOW_MS) | st.integers(NOW_MS, NOW_MS + 10_000)
records = st.tuples(times_ms, values, values, st.just([]) | headers)
codecs = st.sampled_from(CODECS)
few_rows = st.sampled_from([0, 1000])
"""Up to how many rows are converted one by one: none, or all."""


def built(rows, codec="none", producer=(-1, -1, -1)):
    """Return kafka-python's batch; it lacks some codecs, so the records are compressed here."""
    builder = DefaultRecordBatchBuilder(2, 0, False, *producer, 1 << 30)
    for number, row in enumerate(rows):
        builder.append(number, *row)
    plain = bytes(builder.build())
    body = bytes(compress(pa.py_buffer(plain[HEADER_BYTES:]), codec))
    return sealed(plain[:21] + struct.pack(">h", CODECS.index(codec)) + plain[23:HEADER_BYTES] + body)


def sealed(batch: bytes) -> bytes:
    """Return a batch with the length and the checksum that fit its bytes."""
    length = struct.pack(">i", len(batch) - 12)
    return batch[:8] + length + batch[12:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


def read(data, bytes_max=64 * MIB):
    batches = decode(data, bytes_max=bytes_max, now_ms=NOW_MS)
    for batch in batches:
        batch.data.validate(full=True)
    return batches


def rows_of(data: pa.RecordBatch):
    """Return (time in ms, key, value, headers) of each row."""
    columns = {name: data.column(name).to_pylist() for name in ("key", "value")}
    pairs = data.column("headers").to_pylist() if "headers" in data.schema.names else [None] * len(data)
    pair_lists = [[(pair["key"], pair["value"]) for pair in row or []] for row in pairs]
    times = [micros // 1000 for micros in data.column("timestamp").cast(pa.int64()).to_pylist()]
    return list(zip(times, columns["key"], columns["value"], pair_lists, strict=True))


def rows_of_kafka_python(data: bytes):
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [(row.timestamp, row.key, row.value, list(row.headers)) for row in batch]


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.tuples(st.lists(records, min_size=1, max_size=9), codecs), min_size=1, max_size=3),
    producer=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
    few=few_rows,
)
def test_what_kafka_python_writes_is_read(batches, producer, few):
    data = [built(rows, codec, producer) for rows, codec in batches]
    with patch.object(few_records, "FEW_ROWS", few):
        parts = read(b"".join(data))
    assert [rows_of(batch.data) for batch in parts] == [rows for rows, _ in batches]
    assert [batch.compression for batch in parts] == [codec for _, codec in batches]
    assert [batch.size_bytes for batch in parts] == [len(batch) for batch in data]
    assert {(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in parts} == {producer}
    for batch in parts:  # the column of headers is there if a row has one
        assert ("headers" in batch.data.schema.names) == any(row[3] for row in rows_of(batch.data))


@st.composite
def stored_rows(draw):
    """Return rows as a read gives them, with gaps, and what a client must see of them."""
    rows = draw(st.lists(records, max_size=9))
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 5, 2**31 - 1, 2**31, 2**40]), min_size=10, max_size=10))
    offsets, at = [], draw(st.integers(0, 2**40))
    start = at
    for gap in gaps[: len(rows)]:
        offsets.append(at + gap)
        at += gap + 1
    kinds = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=len(rows), max_size=len(rows)))
    micros = draw(st.lists(st.integers(0, 806), min_size=len(rows), max_size=len(rows)))
    pairs = [[{"key": key, "value": value} for key, value in row[3]] or None for row in rows]
    times = [1000 * row[0] + part for row, part in zip(rows, micros, strict=True)]
    schema = read_schema(True)
    columns = [[row[1] for row in rows], [row[2] for row in rows], ["t"] * len(rows), [0] * len(rows)]
    columns += [offsets, pa.array(times, pa.int64()).cast(schema.field("timestamp").type), kinds, pairs]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    seen = list(zip(offsets, kinds, rows, strict=True))
    return pa.RecordBatch.from_arrays(arrays, schema=schema), start, at + gaps[-1] + (not rows), seen


@settings(max_examples=examples(60), deadline=None)
@given(
    stored=stored_rows(),
    codec=st.sampled_from(["none", "gzip", "zstd"]),
    size=st.sampled_from([1, 300, MIB]),
    skip=st.integers(0, 3),
    few=few_rows,
)
def test_kafka_python_reads_what_is_written(stored, codec, size, skip, few):
    rows, start, end, seen = stored
    rows, seen = rows.slice(skip), seen[skip:]  # a slice of a longer array, as a cut section is
    start = seen[0][0] if seen else start
    assume(start < end)
    with patch.object(few_records, "FEW_ROWS", few):
        batches = encode(rows, start, end, compression=codec, leader_epoch=7, size_bytes=size)
    rows_read, covered = [], start
    for encoded in batches:
        batch = DefaultRecordBatch(encoded.data)
        assert batch.validate_crc()
        assert batch.leader_epoch == 7
        assert batch.base_offset == encoded.base_offset >= covered
        assert batch.last_offset == encoded.last_offset
        covered = encoded.last_offset + 1
        part = list(batch)
        assert batch.records_count == len(part)
        rows_read += [
            (row.offset, row.timestamp_type, (row.timestamp, row.key, row.value, list(row.headers))) for row in part
        ]
        if part:
            assert batch.max_timestamp == max(row.timestamp for row in part)
    assert rows_read == seen
    assert covered == min(end, batches[-1].base_offset + 2**31)  # a consumer goes past what compaction removed
    if size == 1:
        assert len(batches) == max(1, len(seen))


@settings(max_examples=examples(40), deadline=None)
@given(rows=st.lists(records, min_size=1, max_size=9), codec=codecs)
def test_what_is_written_is_read(rows, codec):
    data = read(built(rows))[0].data
    columns = {name: data.column(name) for name in data.schema.names}
    count = len(data)
    numbers = pa.array(range(count), pa.int64()), pa.array([0] * count, pa.int32())
    read_back = pa.RecordBatch.from_pydict({**columns, "offset": numbers[0], "timestampType": numbers[1]})
    (batch,) = encode(read_back, 0, count, compression=codec)
    assert read(batch.data)[0].data.equals(data)


PLAIN = [
    (NOW_MS + 3, b"key", b"value" * 30, []),
    (NOW_MS, None, b"", [("h", None), ("", b"x" * 70)]),
    (5, b"", None, []),
]


@settings(max_examples=examples(200), deadline=None)
@given(
    batch=st.sampled_from(
        [built(PLAIN), built(PLAIN[::2]), built([(*row[:3], []) for row in PLAIN] * 50), built(PLAIN * 10)]
    ),
    changes=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.binary(max_size=12)), min_size=1, max_size=3
    ),
    codec=codecs,
    is_compressed_damage=st.booleans(),
    few=few_rows,
)
def test_a_damaged_batch_is_read_as_kafka_python_reads_it_or_refused(batch, changes, codec, is_compressed_damage, few):
    """Of its records, its header or its compressed bytes; the checksum fits."""

    def damaged(data, first):
        data = bytearray(data)
        for at, removed, added in changes:
            at = first + at % max(1, len(data) - first)
            data[at : at + removed] = added
        return bytes(data)

    body, first = batch[HEADER_BYTES:], 16  # all but offset, length and epoch, of which the last is any
    if not is_compressed_damage:
        body = damaged(body, 0)
    body = bytes(compress(pa.py_buffer(body), codec))
    data = batch[:21] + struct.pack(">h", CODECS.index(codec)) + batch[23:HEADER_BYTES] + body
    data = sealed(damaged(data, first) if is_compressed_damage else data)
    try:
        with patch.object(few_records, "FEW_ROWS", few):
            parts = read(data, MIB)
    except ReplogError as error:
        assert 0 < error.code < 1000  # a code of Kafka's, which a client understands
        return
    if parts[0].compression in ("none", "gzip"):
        assert [rows_of(part.data) for part in parts] == [rows_of_kafka_python(data)]


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=300), is_sealed=st.booleans())
def test_any_bytes_are_refused(data, is_sealed):
    if is_sealed:
        data = sealed(data[:16].ljust(16) + b"\x02" + data[17:].ljust(HEADER_BYTES))
    with pytest.raises(ReplogError) as caught:
        read(data)
    assert 0 < caught.value.code < 1000


def with_field(at: int, form: str, value: int) -> bytes:
    batch = bytearray(built(PLAIN, producer=(9, 0, 0)))
    struct.pack_into(form, batch, at, value)
    return bytes(batch)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (built(PLAIN)[:-1], ErrorCode.INVALID_RECORD),
        (built(PLAIN) + b"\0", ErrorCode.INVALID_RECORD),
        (with_field(0, ">q", 7), ErrorCode.INVALID_RECORD),  # its first offset
        (with_field(8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),  # its length
        (with_field(16, ">b", 1), ErrorCode.INVALID_RECORD),  # its format
        (with_field(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),  # no format
        (with_field(17, ">I", 1), ErrorCode.CORRUPT_MESSAGE),  # its checksum
        (sealed(with_field(21, ">h", 7)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (sealed(with_field(21, ">h", 1)), ErrorCode.CORRUPT_MESSAGE),  # not gzip
        (sealed(with_field(21, ">h", 8)), ErrorCode.INVALID_TIMESTAMP),  # a time of append
        (sealed(with_field(21, ">h", 16)), ErrorCode.INVALID_TXN_STATE),
        (sealed(with_field(21, ">h", 32)), ErrorCode.INVALID_RECORD),  # control records
        (sealed(with_field(23, ">i", 3)), ErrorCode.INVALID_RECORD),  # offsets
        (sealed(with_field(27, ">q", -2)), ErrorCode.INVALID_TIMESTAMP),
        (sealed(with_field(27, ">q", LATEST_MS + 1)), ErrorCode.INVALID_TIMESTAMP),
        (sealed(with_field(51, ">h", -1)), ErrorCode.INVALID_RECORD),  # an epoch
        (sealed(with_field(53, ">i", -1)), ErrorCode.INVALID_RECORD),  # a sequence
        (sealed(with_field(57, ">i", 0)), ErrorCode.INVALID_RECORD),  # a count
        (sealed(with_field(23, ">i", 2**31 - 2)[:57] + b"\x7f\xff\xff\xff"), ErrorCode.INVALID_RECORD),  # no records
    ],
)  # fmt: skip
def test_a_wrong_field_has_its_code(data, code):
    with pytest.raises(ReplogError) as caught:
        read(data)
    assert caught.value.code is code


def varints(*numbers: int) -> bytes:
    data = bytearray()
    for number in numbers:
        encode_varint(number, data.append)
    return bytes(data)


def records_of(after: bytes, before: bytes = b"\0\0", shift: int = 0, count: int = 1) -> bytes:
    """Return a batch of so many records, with these bytes before and after their offsets."""
    records = [before + varints(number + shift) + after for number in range(count)]
    head = built([(0, None, None, [])])[:23] + struct.pack(">i", count - 1) + bytes(16) + b"\xff" * 14
    return sealed(head + struct.pack(">i", count) + b"".join(varints(len(record)) + record for record in records))


@pytest.mark.parametrize(("count", "few"), [(1, 1000), (40, 1000), (1, 0), (40, 0)])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"after": varints(-1, -1, 0), "shift": 1}, "offsets"),
        ({"after": varints(-1, -1, 0, 0)}, "length"),
        ({"after": varints(-1, 2) + b"a\0"}, "length"),
        ({"after": varints(3, -1, 0)}, "length"),
        ({"after": varints(-1, 2**31 - 1, 0)}, "length"),
        ({"after": varints(-1, -1, -1)}, "headers"),
        ({"after": varints(-1, -1, 2**31 - 1)}, "headers"),
        ({"after": varints(-1, -1, 1, -1, -1)}, "no key"),
        ({"after": varints(-1, -1, 1, 2**31 - 1, -1)}, "headers|fields"),
        ({"after": varints(-1, -1, 1, 0, -1, 0)}, "length"),
        ({"after": varints(-1, -1, 1, 0, 1)}, "length"),
        ({"after": varints(-1, -1, 1, 1) + b"\xff" + varints(-1)}, "UTF-8"),
        ({"after": varints(-1, -1, 1) + b"\xff" * 5 + b"\1\1"}, "5 bytes"),
        ({"after": b"\xff" * 5 + varints(0, -1, 0)}, "5 bytes"),
        ({"after": varints(-1, -1, 0), "before": b"\0" + b"\xff" * 10 + b"\1"}, "10 bytes"),
    ],
)
def test_a_wrong_record_is_refused_by_its_number(fields, reason, count, few, monkeypatch):
    monkeypatch.setattr(few_records, "FEW_ROWS", few)
    with pytest.raises(ReplogError, match=reason if count == 1 else None) as caught:
        read(records_of(**fields, count=count))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert reason == "UTF-8" or caught.value.context["record"] == 0


def test_the_times_of_records_without_one_and_at_the_ends_of_time():
    batch = bytearray(built([(0, None, b"a", []), (LATEST_MS, None, b"b", [])]))
    assert [row[0] for row in rows_of(read(batch)[0].data)] == [0, LATEST_MS]
    (none,) = read(sealed(bytes(batch[:27]) + struct.pack(">q", -1) + bytes(batch[35:])))
    assert [row[0] for row in rows_of(none.data)] == [NOW_MS, LATEST_MS - 1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_takes_memory(codec):
    bomb = records_of(varints(-1, 16 * MIB) + bytes(16 * MIB) + varints(0))
    body = bytes(compress(pa.py_buffer(bomb[HEADER_BYTES:]), codec))
    bomb = sealed(bomb[:21] + struct.pack(">h", CODECS.index(codec)) + bomb[23:HEADER_BYTES] + body)
    tracemalloc.start()
    try:
        with pytest.raises(ReplogError) as caught:
            read(bomb, MIB)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak_bytes < 3 * MIB


@pytest.mark.parametrize(
    "data",
    [
        records_of(varints(-1, -1, 0), count=20_000),
        records_of(varints(-1, -1, 10_000) + varints(0, -1) * 10_000),
        records_of(varints(-1, -1, 100) + varints(0, -1) * 100, count=100),
    ],
    ids=["records", "headers of one", "headers of many"],
)
@pytest.mark.parametrize("few", [0, 1000])
def test_many_small_parts_count_as_the_memory_that_they_take(data, few, monkeypatch):
    monkeypatch.setattr(few_records, "FEW_ROWS", few)
    assert len(data) < MIB // 4
    with pytest.raises(ReplogError) as caught:
        read(data, MIB)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    (part,) = read(data, 8 * MIB)
    assert part.data.nbytes < 8 * MIB


def test_snappy_of_java_is_read():
    """Java's clients cut the records into blocks, with a frame of their own."""
    plain = built(PLAIN)
    body = plain[HEADER_BYTES:]
    blocks = [bytes(compress(pa.py_buffer(body[at : at + 50]), "snappy")) for at in range(0, len(body), 50)]
    framed = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    head = plain[:21] + struct.pack(">h", CODECS.index("snappy")) + plain[23:HEADER_BYTES]
    assert rows_of(read(sealed(head + framed))[0].data) == PLAIN
    for cut in (1, 60, len(framed) - 20):
        with pytest.raises(ReplogError) as caught:
            read(sealed(head + framed[:-cut]))
        assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
