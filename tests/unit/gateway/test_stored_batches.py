"""Record batches as a broker has them: transactions, markers, gaps and broken bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from kafka.record.memory_records import MemoryRecordsBuilder

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.gateway.record_batch import decode_stored

LIMIT = 1 << 24
ABORT, COMMIT = 0, 1


def batch(base, values, *, producer=-1, last_delta=None, attributes=0, deltas=None):
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for number, value in enumerate(values):
        builder.append(timestamp=1000 + number, key=b"k", value=value, headers=[])
    builder.close()
    data = bytearray(builder.buffer())
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">h", data, 21, attributes)
    if last_delta is not None:
        struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">q", data, 43, producer)
    if deltas is not None:  # of small records: the third byte of each is its offset
        at = 61
        for delta in deltas:
            data[at + 3] = delta * 2
            at += 1 + (data[at] >> 1)
    return sealed(data)


def sealed(data):
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def marker(base, kind, producer):
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.append(timestamp=1000, key=struct.pack(">hh", 0, kind), value=b"\0" * 6, headers=[])
    builder.close()
    data = bytearray(builder.buffer())
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">h", data, 21, 0x30)
    struct.pack_into(">q", data, 43, producer)
    return sealed(data)


def read(*batches, aborted=()):
    rows, end = [], None
    for piece in decode_stored(b"".join(batches), aborted, bytes_max=LIMIT):
        end = piece.next_offset
        if piece.data is not None:
            rows += zip(piece.offsets.tolist(), piece.data.column("value").to_pylist(), strict=True)
    return rows, end


def test_aborted_transactions_and_markers_are_no_rows():
    batches = (
        batch(10, [b"a", b"b"], producer=1, attributes=0x10),
        batch(12, [b"c"], producer=2, attributes=0x10),
        batch(13, [b"d"]),
        marker(14, ABORT, 1),
        batch(15, [b"e"], producer=1, attributes=0x10),
        marker(16, COMMIT, 2),
        marker(17, COMMIT, 1),
    )
    wanted = [(12, b"c"), (13, b"d"), (15, b"e")]
    assert read(*batches, aborted=[(1, 10)]) == (wanted, 18)
    assert read(*batches) == ([(10, b"a"), (11, b"b"), *wanted], 18)


def test_a_transaction_that_begins_behind_the_batch_does_not_count_yet():
    batches = (batch(0, [b"a"], producer=1, attributes=0x10), marker(1, COMMIT, 1),
               batch(2, [b"b"], producer=1, attributes=0x10), marker(3, ABORT, 1))  # fmt: skip
    assert read(*batches, aborted=[(1, 2)]) == ([(0, b"a")], 4)


@pytest.mark.parametrize("count", [3, 60])
def test_a_compacted_batch_keeps_its_offsets(count):
    deltas = [number * 2 % 64 for number in range(count)] if count < 32 else None
    values = [b"%d" % number for number in range(count)]
    rows, end = read(batch(100, values, deltas=deltas, last_delta=200))
    numbers = deltas or range(count)
    assert (rows, end) == ([(100 + delta, value) for delta, value in zip(numbers, values, strict=True)], 301)


def test_what_is_cut_short_is_left_for_the_next_fetch():
    whole, second = batch(0, [b"a"]), batch(1, [b"b"])
    for size in (0, 1, 20, len(second) - 1):
        assert read(whole, second[:size]) == ([(0, b"a")], 1)
    assert read() == ([], None)


def test_an_empty_batch_moves_the_end():
    data = bytearray(batch(5, [b"x"], last_delta=3)[:61])
    struct.pack_into(">i", data, 8, 61 - 12)
    struct.pack_into(">i", data, 57, 0)
    assert read(sealed(data)) == ([], 9)


@pytest.mark.parametrize("at", [16, 17, 30, 65])
def test_damage_is_refused(at):
    data = bytearray(batch(0, [b"abc"]))
    data[at] ^= 0x40
    with pytest.raises(CorruptDataError) as caught:
        read(bytes(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_offsets_that_go_back_are_refused():
    for wrong in (batch(0, [b"a", b"b"], deltas=[1, 0]), batch(0, [b"a", b"b"], last_delta=0)):
        with pytest.raises(CorruptDataError):
            read(wrong)
    with pytest.raises(CorruptDataError):
        read(batch(5, [b"a"]), batch(5, [b"a"]))


def test_times_of_the_append_are_those_of_the_batch():
    data = bytearray(batch(0, [b"a", b"b"], attributes=0x08))
    struct.pack_into(">q", data, 35, 77_000)
    (rows, _) = decode_stored(sealed(data) + batch(2, [b"c"]), (), bytes_max=LIMIT), None
    pieces = [piece for piece in rows if piece.data is not None]
    times = [piece.data.column("timestamp").cast("int64").to_pylist() for piece in pieces]
    assert [piece.is_append_time for piece in pieces] == [True, False]
    assert times == [[77_000_000, 77_000_000], [1_000_000]]
