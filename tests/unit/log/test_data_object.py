from __future__ import annotations

import os

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import (
    BATCH_SIZE_BYTES_TARGET,
    COMPRESSION_TYPES,
    HEADERS_TYPE,
    SECTION_SIZE_BYTES_MAX,
    data_schema,
    decode_section,
    encode_data_object,
    joined_crc,
)
from spark_replog.log.model import Section
from tests.examples import examples

TOPIC = "ab" * 16


def rows(values, *, headers=None, start_us=1_000_000_000_001_500):
    columns = [
        pa.array([None if n % 3 == 0 else b"k%d" % n for n in range(len(values))], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(np.arange(len(values), dtype=np.int64) * 1000 + start_us).cast(pa.timestamp("us", tz="UTC")),
    ]
    if headers is not None:
        columns.append(pa.array(headers, HEADERS_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=data_schema(headers is not None))


def encode(*parts, compression="none", has_headers=False, producer="query-1"):
    made = encode_data_object(
        [("orders", TOPIC, partition, part, producer) for partition, part in parts],
        compression=compression,
        has_headers=has_headers,
    )
    body = b"".join(made.buffers)
    assert len(body) == made.size_bytes
    return made, body


def cut(body: bytes, section: Section) -> memoryview:
    return memoryview(body)[section.start_byte : section.start_byte + section.size_bytes]


def read(body, section, has_headers=False):
    batches = list(decode_section(cut(body, section), section.crc32c, section.row_count, has_headers))
    return pa.Table.from_batches(batches).combine_chunks()


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
@pytest.mark.parametrize("has_headers", [False, True])
def test_sections_come_back_and_plain_arrow_opens_the_file(compression, has_headers):
    headers = [None, [], [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]] if has_headers else None
    first = rows([b"one", b"two", b"x" * 5000], headers=headers)
    second = rows([b"", None, b"y"], headers=headers)
    made, body = encode((0, first), (7, second), compression=compression, has_headers=has_headers)
    assert [(s.partition, s.row_count) for s in made.sections] == [(0, 3), (7, 3)]
    for section, expected in zip(made.sections, (first, second), strict=True):
        assert read(body, section, has_headers).equals(pa.Table.from_batches([expected]))
    opened = pa.ipc.open_file(body)
    assert opened.schema.equals(data_schema(has_headers))
    assert opened.schema.metadata == {b"replog.format": b"1"}
    assert opened.read_all().equals(pa.Table.from_batches([first, second]))


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
@pytest.mark.parametrize("has_headers", [False, True])
def test_small_objects_are_copies_with_the_same_bytes(compression, has_headers):
    headers = [None, [{"key": "a", "value": b"1"}]] if has_headers else None
    parts = [(0, [rows([b"one", b"two"], headers=headers), rows([b"3", b""], headers=headers)])]
    parts.append((7, [rows([b"x" * 5000, None], headers=headers)]))
    inputs = [("orders", TOPIC, partition, part, "query-1") for partition, part in parts]
    large, small = (
        encode_data_object(inputs, compression=compression, has_headers=has_headers, is_small=is_small)
        for is_small in (False, True)
    )
    assert b"".join(small.buffers) == b"".join(large.buffers)
    assert (small.sections, small.size_bytes) == (large.sections, large.size_bytes)
    assert all(isinstance(piece, bytearray) for piece in small.buffers), "none shares memory with the rows"


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_batches_that_share_a_message_are_written_as_if_they_were_joined(compression):
    long = rows([b"%09000d" % number for number in range(100)])
    parts = [long.slice(3, 40), rows([b"", b"x" * 5000]), rows([b""]), long.slice(60), rows([None])]
    for batches in (parts, parts[:4], parts[2:3] * 2, [long.slice(0, 1), long.slice(50, 1)]):
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
        made, body = encode((0, batches), (1, batches), compression=compression)
        assert (body, made.sections) == (encode((0, joined), (1, joined), compression=compression)[1], made.sections)
        assert [section.row_count for section in made.sections] == [joined[0].num_rows] * 2
        assert read(body, made.sections[1]).equals(pa.Table.from_batches(joined))


def test_batches_that_share_a_message_are_not_copied():
    batches = [rows([b"%09000d" % number for number in range(100)]).slice(start, 30) for start in (5, 40, 60)]
    buffers = encode((0, batches))[0].buffers
    starts = {np.frombuffer(piece, np.uint8).ctypes.data for piece in buffers}
    for batch, start in zip(batches, (5, 40, 60), strict=True):
        assert batch.column(1).buffers()[2].address + 9000 * start in starts


@given(st.binary(max_size=99), st.binary(max_size=99), st.integers(0, 2**25))
def test_a_checksum_is_joined_from_those_of_two_parts(first, second, zeros):
    second += bytes(zeros)
    both = crc32c.crc32c(second, crc32c.crc32c(first))
    assert joined_crc(crc32c.crc32c(first), crc32c.crc32c(second), len(second)) == both


def test_an_object_without_rows_is_a_file_all_the_same():
    for is_small in (False, True):
        made = encode_data_object([], compression="none", has_headers=False, is_small=is_small)
        body = b"".join(made.buffers)
        assert made.sections == () and len(body) == made.size_bytes
        assert pa.ipc.open_file(body).read_all().num_rows == 0


def test_times_are_floored_and_ceiled_to_milliseconds():
    made, _ = encode((0, rows([b"a", b"b"], start_us=-1500)))
    assert (made.sections[0].min_timestamp_ms, made.sections[0].max_timestamp_ms) == (-2, 0)
    made, _ = encode((0, rows([b"a"], start_us=2000)))
    assert (made.sections[0].min_timestamp_ms, made.sections[0].max_timestamp_ms) == (2, 2)


def rebuild(body: bytes) -> list[Section]:
    """What a repair tool does, with nothing but pyarrow and the documented format."""
    opened = pa.ipc.open_file(body)
    source = pa.BufferReader(body)
    source.seek(8)
    pa.ipc.read_message(source)  # the schema
    sections: list[Section] = []
    for number in range(opened.num_record_batches):
        start = source.tell()
        message = pa.ipc.read_message(source)
        end = source.tell()
        notes = {
            key.decode().removeprefix("replog."): value.decode()
            for key, value in dict(opened.get_batch_with_custom_metadata(number)[1]).items()
        }
        assert int(notes["body_crc32c"], 16) == crc32c.crc32c(message.body)
        low, high = int(notes["min_timestamp_us"]) // 1000, -(-int(notes["max_timestamp_us"]) // 1000)
        made = Section(
            notes["topic_id"],
            int(notes["partition"]),
            int(notes["rows"]),
            start,
            end - start,
            crc32c.crc32c(body[start:end]),
            low,
            high,
        )
        assert notes["producer"] == "query-1"
        assert notes["topic"] == "orders"
        sections.append(made)
    return sections


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_a_ledger_can_be_rebuilt_from_the_object_alone(compression):
    made, body = encode((0, rows([b"a"] * 50)), (3, rows([os.urandom(9000)] * 3)), compression=compression)
    assert tuple(rebuild(body)) == made.sections


def test_times_are_those_of_the_rows_that_a_slice_keeps():
    made, _ = encode((0, rows([b"x"] * 9, start_us=5_000_000).slice(3, 2)))
    assert (made.sections[0].min_timestamp_ms, made.sections[0].max_timestamp_ms) == (5003, 5004)


def test_one_record_larger_than_a_batch_comes_back():
    value = bytes(BATCH_SIZE_BYTES_TARGET + 1)
    made, body = encode((0, rows([value])))
    assert read(body, made.sections[0]).column("value").to_pylist() == [value]


def test_a_producer_name_cannot_disturb_the_checksum():
    made, body = encode((0, rows([b"a"])), producer="!CRC32C!")
    notes = pa.ipc.open_file(body).get_batch_with_custom_metadata(0)[1]
    assert notes[b"replog.producer"] == b"!CRC32C!"
    source = pa.BufferReader(cut(body, made.sections[0]))
    assert int(notes[b"replog.body_crc32c"], 16) == crc32c.crc32c(pa.ipc.read_message(source).body)


def test_large_inputs_become_bounded_batches_and_sections():
    count = 220_000
    value = pa.array(np.frombuffer(os.urandom(count * 100), dtype="S100"), pa.binary(100)).cast(pa.binary())
    times = pa.array(np.arange(count)).cast(pa.timestamp("us", tz="UTC"))
    big = pa.RecordBatch.from_arrays([pa.nulls(count, pa.binary()), value, times], schema=data_schema(False))
    made, body = encode((0, big), (1, rows([b"z"])))
    assert [s.partition for s in made.sections] == [0, 0, 0, 0, 1]
    assert sum(s.row_count for s in made.sections[:4]) == count
    assert all(s.size_bytes <= SECTION_SIZE_BYTES_MAX * 1.01 for s in made.sections)
    for section in made.sections:
        for batch in decode_section(cut(body, section), section.crc32c, section.row_count, False):
            assert batch.nbytes <= BATCH_SIZE_BYTES_TARGET * 1.01
    together = pa.concat_tables([read(body, s) for s in made.sections[:4]])
    assert together.combine_chunks().equals(pa.Table.from_batches([big]))


def test_small_batches_of_one_partition_share_a_message():
    parts = [rows([b"a%d" % n]) for n in range(20)]
    made, body = encode((0, parts))
    assert pa.ipc.open_file(body).num_record_batches == 1
    assert read(body, made.sections[0]).equals(pa.Table.from_batches(parts).combine_chunks())


def test_other_arrow_types_of_the_same_meaning_are_taken():
    batch = pa.record_batch(
        {
            "value": pa.array(["v"], pa.large_string()).cast(pa.large_binary()),
            "key": pa.array([b"k"], pa.large_binary()),
            "timestamp": pa.array([5], pa.timestamp("us", tz="Etc/UTC")),
        }
    )
    made, body = encode((0, batch))
    assert read(body, made.sections[0]).to_pylist()[0]["value"] == b"v"


def test_an_input_without_rows_makes_no_section():
    made, body = encode((0, rows([])), (1, rows([b"a"])))
    assert [s.partition for s in made.sections] == [1]
    assert read(body, made.sections[0]).num_rows == 1


def test_pieces_are_not_copied():
    batch = rows([b"x" * 100_000] * 10)
    made, _ = encode((0, batch))
    large = [piece for piece in made.buffers if len(piece) > 500_000]
    assert len(large) == 1
    assert pa.py_buffer(large[0]).address == batch.column("value").buffers()[2].address


def test_decoding_does_not_copy():
    made, body = encode((0, rows([b"x" * 100_000] * 10)))
    buffer = pa.py_buffer(body)
    (batch,) = decode_section(cut(body, made.sections[0]), made.sections[0].crc32c, 10, False)
    address = batch.column("value").buffers()[2].address
    assert buffer.address <= address < buffer.address + buffer.size


@pytest.mark.guarantee("G7")
def test_every_damaged_byte_is_found():
    made, body = encode((0, rows([b"abc", b"def"])))
    (section,) = made.sections
    data = bytearray(cut(body, section))
    for position in range(0, len(data), 7):
        data[position] ^= 0x10
        with pytest.raises(CorruptDataError, match="checksum") as caught:
            decode_section(bytes(data), section.crc32c, section.row_count, False)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        data[position] ^= 0x10


def test_a_truncated_section_is_found():
    made, body = encode((0, rows([b"abc", b"def"])))
    (section,) = made.sections
    with pytest.raises(CorruptDataError):
        decode_section(cut(body, section)[:-8], section.crc32c, 2, False)


def test_bytes_that_are_no_section_are_refused_although_the_checksum_fits():
    made, body = encode((0, rows([b"abc", b"def"])))
    (section,) = made.sections
    data = bytes(cut(body, section))
    for bad, count in ((b"\xff\xff\xff\xff" + b"\0" * 12, 2), (b"hello world, hello", 2), (data, 3), (data[:-8], 2)):
        with pytest.raises(CorruptDataError):
            list(decode_section(bad, crc32c.crc32c(bad), count, False))


def test_bad_requests_are_refused():
    with pytest.raises(InvalidConfigError, match="none, lz4, zstd") as caught:
        encode((0, rows([b"a"])), compression="snappy")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    batch = rows([b"a", b"b"])
    times = pa.array([5, None]).cast(pa.timestamp("us", tz="UTC"))
    bad = pa.RecordBatch.from_arrays([batch.column(0), batch.column(1), times], schema=data_schema(False))
    with pytest.raises(InvalidConfigError, match="timestamp") as caught:
        encode((0, bad))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=30)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(COMPRESSION_TYPES),
    st.integers(0, 5),
)
def test_any_rows_come_back(parts, compression, offset):
    made, body = encode(
        *((partition, rows([b"skip"] * offset + values).slice(offset)) for partition, values in parts),
        compression=compression,
    )
    value_lists = [read(body, section).column("value").to_pylist() for section in made.sections]
    assert value_lists == [values for _, values in parts]
