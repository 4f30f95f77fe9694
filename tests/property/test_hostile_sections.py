"""Sections whose bytes were crafted, with the checksum that fits them: an error, never the end of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import crc32c
import pyarrow as pa
import pytest

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.log.codec.data_object import HEADERS_TYPE, TIMESTAMP_TYPE, data_schema, decode_section

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/v1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
OBJECTS, TYPED = EXPECTED["objects"], EXPECTED["typed"]
SHORT = ["data_none", "data_gaps", "data_lz4", "data_zstd_headers"]
"""One of each form; the others are wide."""

MUTATE_AND_READ = """
import json
import resource
import sys
from pathlib import Path
import crc32c
import pyarrow as pa
from spark_replog.errors import CorruptDataError
from spark_replog.log.codec.data_object import decode_section
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.rows import RowView, Run, read_columns, stored_columns

path, start, size, rows, has_headers, step = sys.argv[1], *map(int, sys.argv[2:7])
ddl, key = json.loads(sys.argv[7]) if sys.argv[7:] else ('', ())
schema = RowSchema(ddl, tuple(key)) if ddl else None
view = RowView(schema)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
part = Path(path).read_bytes()[start : start + size]
read = refused = 0
for at in range(0, len(part), step):
    for mask in (0x01, 0x40, 0x80, 0xFF):
        damaged = bytearray(part)
        damaged[at] ^= mask
        print(at, mask, file=sys.stderr)
        try:
            shape = bytes(damaged), crc32c.crc32c(damaged), rows, bool(has_headers), False, schema
            found = list(decode_section(*shape))
            columns = [stored_columns(each, include_headers=True, append_time_ms=None, view=view) for each in found]
            rows_read = read_columns(columns, Run("t", 0, 0, view), 0)
            for column in rows_read.columns:  # numbers of any time and day: not all are dates of Python's
                (column.cast("int64") if pa.types.is_timestamp(column.type) else column).validate(full=True)
                if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_list(column.type):
                    column.to_pylist()
            if schema is not None:
                some = [schema.names[0], schema.names[-1]]
                list(decode_section(*shape, columns=some))
            read += 1
        except CorruptDataError:
            refused += 1
print(read, refused)
"""


LONG = [pytest.param(name, marks=pytest.mark.wide) for name in sorted(OBJECTS) if name not in SHORT]


@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_every_mutated_byte_is_read_or_refused(name):
    """In a process of its own: an offset that Arrow believes ends it with SIGSEGV."""
    section = OBJECTS[name]["sections"][0]
    shape = [section["start_byte"], section["size_bytes"], section["row_count"], int(OBJECTS[name]["has_headers"]), 1]
    done = subprocess.run(
        [sys.executable, "-c", MUTATE_AND_READ, str(GOLDEN / f"{name}.arrow"), *map(str, shape)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode} at byte and mask {done.stderr.splitlines()[-1]}"
    read, refused = map(int, done.stdout.split())
    assert read + refused == 4 * section["size_bytes"]
    assert refused > section["size_bytes"] // 4


def test_every_mutated_byte_of_typed_rows_is_read_or_refused():
    section = TYPED["sections"][0]
    shape = [section["start_byte"], section["size_bytes"], section["row_count"], 0, 3]
    metadata = pa.ipc.open_file(GOLDEN / "data_typed.arrow").schema.metadata
    schema = json.dumps([metadata[b"replog.schema"].decode(), json.loads(metadata[b"replog.key"])])
    done = subprocess.run(
        [sys.executable, "-c", MUTATE_AND_READ, str(GOLDEN / "data_typed.arrow"), *map(str, shape), schema],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode} at byte and mask {done.stderr.splitlines()[-3:]}"
    read, refused = map(int, done.stdout.split())
    assert read + refused == 4 * -(-section["size_bytes"] // 3)
    assert refused > section["size_bytes"] // 12


def section_of(name):
    section = OBJECTS[name]["sections"][0]
    start = section["start_byte"]
    return bytearray((GOLDEN / f"{name}.arrow").read_bytes()[start : start + section["size_bytes"]]), section


@pytest.mark.parametrize("name", ["data_lz4", "data_zstd"])
@pytest.mark.parametrize("claimed_bytes", [2**32, 2**40, 2**62, -2, -(2**63)])
def test_a_compressed_buffer_cannot_claim_more_than_its_bytes_can_hold(name, claimed_bytes):
    data, section = section_of(name)
    body = bytes(data)
    refused_count = 0
    for at in range(0, len(data) - 8, 8):  # each compressed buffer begins with its length, aligned to 8 bytes
        damaged = bytearray(body)
        damaged[at : at + 8] = claimed_bytes.to_bytes(8, "little", signed=True)
        try:
            list(decode_section(bytes(damaged), crc32c.crc32c(damaged), section["row_count"], False))
        except CorruptDataError as error:
            assert error.code is ErrorCode.CORRUPT_MESSAGE
            refused_count += 1
    assert refused_count > 4


@pytest.mark.parametrize(("times", "offsets"), [([1, None], [0, 1]), ([1, 2], [0, None]), ([1, 2], [None, None])])
def test_a_null_where_a_row_must_have_a_value_is_refused(times, offsets):
    """Such an offset was a bare ArrowInvalid, and no other copy was read; such a time a TypeError in a consumer."""
    schema = data_schema(False, has_offsets=True)
    values = pa.array([b"a", b"b"], pa.binary())
    columns = [values, values, pa.array(times, TIMESTAMP_TYPE), pa.array(offsets, pa.int64())]
    data = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
    with pytest.raises(CorruptDataError) as caught:
        list(decode_section(memoryview(data), crc32c.crc32c(data), 2, False, True))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_key_is_refused(header):
    """A consumer ended with a TypeError."""
    values = pa.array([b"a", b"b"], pa.binary())
    headers = pa.array([[{"key": "h", "value": None}], [header]], HEADERS_TYPE)
    columns = [values, values, pa.array([1, 2], TIMESTAMP_TYPE), headers]
    data = pa.RecordBatch.from_arrays(columns, schema=data_schema(True)).serialize()
    with pytest.raises(CorruptDataError) as caught:
        list(decode_section(memoryview(data), crc32c.crc32c(data), 2, True))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
