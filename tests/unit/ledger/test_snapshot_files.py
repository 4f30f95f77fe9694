"""The bytes of markers and snapshot heads: whole, or a clear error."""

from __future__ import annotations

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, UnsupportedFormatError
from spark_replog.ledger.record import Epoch, genesis_hash
from spark_replog.ledger.snapshot_files import (
    Base,
    Floor,
    JournalPoint,
    Marker,
    SnapshotHead,
    decode_marker,
    decode_snapshot,
    encode_marker,
    encode_snapshot,
    snapshot_name,
)
from spark_replog.snapshot import DecidedSnapshot

GENESIS = genesis_hash("ledger")
uint = st.integers(0, 2**63)
epochs = st.builds(Epoch, uint, st.binary(min_size=16, max_size=16))
names = st.from_regex("[0-9]{20}-[0-9a-f]{32}", fullmatch=True)
bases = st.builds(Base, uint, st.binary(min_size=16, max_size=16), epochs)
floors = st.builds(Floor, uint, uint, st.integers(-1, 2**62), st.binary(min_size=16, max_size=16))
points = st.builds(
    JournalPoint, uint, epochs, st.integers(0, 2**32 - 1), st.integers(-1, 2**62), st.integers(-1, 2**62),
    st.booleans(), floors,
)  # fmt: skip
decided = st.builds(DecidedSnapshot, uint, st.integers(-1, 2**62), names | st.just(""), st.integers(-1, 2**62))
markers = st.builds(Marker, uint, bases, names | st.just(""), st.binary(min_size=16, max_size=16))
heads = st.builds(SnapshotHead, bases, decided, st.tuples(points, points, points), st.binary(max_size=200))
HEAD = SnapshotHead(
    Base(7, bytes(range(16)), Epoch(300, bytes(range(16, 32)))),
    DecidedSnapshot(2, 3, f"{3:020d}-{'ab' * 16}", 5),
    (JournalPoint(9, Epoch(300, b"i" * 16), 1, 7, 7, False, Floor(1, 4, 3)), JournalPoint(), JournalPoint()),
    b"body",
)
MARKER = Marker(4, HEAD.base, f"{7:020d}-{'cd' * 16}")


def resealed(data: bytes) -> bytes:
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


@given(markers)
def test_a_marker_survives_its_bytes(marker):
    assert decode_marker(encode_marker(GENESIS, marker), genesis=GENESIS, where="m") == marker


@given(heads)
def test_a_head_survives_its_bytes(head):
    data = encode_snapshot(GENESIS, head)
    assert decode_snapshot(data, genesis=GENESIS, root_count=3, where="s") == head
    assert snapshot_name(head.base.index % 10**20, data) == snapshot_name(head.base.index % 10**20, bytes(data))


@pytest.mark.parametrize(
    "data", [encode_marker(GENESIS, MARKER), encode_snapshot(GENESIS, HEAD)], ids=["marker", "head"]
)
def test_damage_is_never_taken_for_anything_else(data):
    def decode(content, genesis=GENESIS):
        if data[:4] == b"RPLM":
            return decode_marker(content, genesis=genesis, where="the file")
        return decode_snapshot(content, genesis=genesis, root_count=3, where="the file")

    for bad in [
        b"",
        data[:-1],
        data + b"x",
        data[:20],
        b"RPLX" + data[4:],
        *(_flipped(data, at) for at in range(len(data))),
    ]:
        with pytest.raises(CorruptDataError, match="the file is damaged"):
            decode(bad)
    with pytest.raises(CorruptDataError, match="another ledger"):
        decode(data, genesis_hash("other"))
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        decode(resealed(data[:4] + b"\x02" + data[5:]))
    for at in range(21, len(data) - 4):  # right checksum, wrong fields: an answer or the one error
        for value in (0, 0x7F, 0xFF):
            with contextlib.suppress(CorruptDataError):
                decode(resealed(data[:at] + bytes((value,)) + data[at + 1 :]))
    with pytest.raises(CorruptDataError, match="bytes follow"):
        decode(resealed(data[:-4] + b"more" + data[-4:]))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]


def test_a_head_of_a_store_with_other_roots_is_refused():
    with pytest.raises(CorruptDataError, match="3 roots, and the ledger has 1"):
        decode_snapshot(encode_snapshot(GENESIS, HEAD), genesis=GENESIS, root_count=1, where="s")
