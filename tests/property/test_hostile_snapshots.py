"""Parts of snapshots that claim more than their bytes can account for: refused before memory is taken."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError
from spark_replog.log.codec import snapshot as codec
from spark_replog.log.codec.snapshot import (
    FREE_BYTES,
    MAGIC,
    PageKind,
    SnapshotPart,
    decode_page,
    read_table,
    read_texts,
    seal,
    unseal,
    write_table,
)
from spark_replog.wire import TEXT, Reader, Writer

LEDGER = "12" * 16
MEMORY_BYTES = 4 * FREE_BYTES


def page_of(kind: PageKind, row_count: int, column_count: int) -> bytes:
    """A page whose columns have one value each in all rows: three bytes a column, whatever the number of rows."""
    writer = Writer()
    TEXT.write(writer, LEDGER)
    writer.byte(kind)
    writer.uint(row_count)
    for _ in range(column_count):
        writer.byte(0)
        writer.sint(0)
    return seal(SnapshotPart.PAGE, bytes(writer.data))


@pytest.mark.parametrize("row_count", [1 << 17, 1 << 20, 1 << 24, 1 << 40, 2**64 - 1])
@pytest.mark.parametrize(("kind", "column_count"), [(PageKind.SECTIONS, 11), (PageKind.OBJECTS, 10)])
def test_a_page_of_few_bytes_cannot_claim_more_rows_than_a_page_has(kind, column_count, row_count):
    data = page_of(kind, row_count, column_count)
    check_refused(lambda: decode_page(LEDGER, "a page", data))


@pytest.mark.parametrize("row_count", [1 << 19, 1 << 24, 2**64 - 1])
def test_a_directory_of_few_bytes_cannot_claim_millions_of_pieces(row_count):
    data = page_of(PageKind.DIRECTORY, row_count, 8)
    check_refused(lambda: decode_page(LEDGER, "a page", data))


def check_refused(call) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError) as refused:
            call()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert peak_bytes < MEMORY_BYTES


def test_texts_cannot_be_more_than_the_bytes_that_are_left():
    writer = Writer()
    writer.uint(1 << 20)
    writer.raw(b"\0\0")  # all of length 0
    check_refused(lambda: read_texts(Reader(bytes(writer.data))))


@pytest.mark.parametrize("claimed_bytes", [FREE_BYTES + 1, 1 << 29, 1 << 30, 1 << 40])
def test_a_body_cannot_claim_a_thousand_times_what_is_stored(monkeypatch, claimed_bytes):
    def never(*_args, **_keywords):
        raise AssertionError("the body was decompressed")

    writer = Writer()
    writer.raw(MAGIC)
    writer.byte(codec.SNAPSHOT_FORMAT_VERSION)
    writer.byte(SnapshotPart.PAGE)
    writer.uint(claimed_bytes)
    writer.raw(pa.compress(b"\0" * 1000, codec="zstd", asbytes=True))
    writer.raw(crc32c(writer.data).to_bytes(4, "little"))
    monkeypatch.setattr(codec.pa, "decompress", never)
    with pytest.raises(CorruptDataError, match=f"claim to be {claimed_bytes}"):
        unseal(SnapshotPart.PAGE, bytes(writer.data))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_writer_writes_is_read(seed):
    rng = np.random.default_rng(seed)
    dice = random.Random(seed)
    row_count, column_count = dice.choice((0, 1, 2, 100, 5000)), dice.choice((1, 8, 11))
    cells = np.zeros((column_count, row_count), np.int64)
    for column in cells:
        kind = dice.randrange(4)
        high = 2 ** dice.choice((1, 8, 20, 62))
        column[:] = (7, np.arange(row_count), rng.integers(0, high, row_count), rng.integers(0, 2, row_count))[kind]
    writer = Writer()
    write_table(writer, cells)
    assert (read_table(Reader(bytes(writer.data)), column_count) == cells).all()


def test_a_writer_refuses_what_no_reader_would_take(monkeypatch):
    """The last snapshot stays then, instead of one that nobody can read."""
    monkeypatch.setattr(codec, "FREE_BYTES", 1000)
    with pytest.raises(ReplogError, match="RECORD_LIST_TOO_LARGE"):
        write_table(Writer(), np.zeros((1, 1000), np.int64))
    with pytest.raises(ReplogError, match="RECORD_LIST_TOO_LARGE"):
        seal(SnapshotPart.PAGE, b"\0" * 1_000_000)
