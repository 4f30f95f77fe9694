"""The bytes of a journal record (docs/format-journal.md)."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.errors import CorruptDataError, UnsupportedFormatError
from spark_replog.ledger.record import (
    NO_HASH,
    NOTHING_KNOWN,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    decode_record,
    encode_record,
    entry_hash,
    genesis_hash,
)

ENTRY = JournalRecord(
    RecordKind.ENTRY,
    Epoch(300, bytes(range(16))),
    bytes(range(16, 32)),
    5,
    4,
    bytes(range(32, 48)),
    (LastKnown(7, 0x01020304), NOTHING_KNOWN, LastKnown(200, 0xFFFFFFFF)),
    b"payload",
)
CLAIM = JournalRecord(RecordKind.CLAIM, Epoch(1, b"i" * 16), b"n" * 16, -1, -1, NO_HASH, (), b"")
# Golden bytes of format version 1: what is here must stay readable for ever.
ENTRY_V1 = (  # without the CRC32C
    "52504c4a010203000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e"
    "2fac0206050804030201000000000"
    "0c901ffffffff077061796c6f6164"
)
CLAIM_V1 = "52504c4a010100" + "69" * 16 + "6e" * 16 + "00" * 16 + "01000000"


def with_crc(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "little")


@pytest.mark.parametrize(("record", "golden"), [(ENTRY, ENTRY_V1), (CLAIM, CLAIM_V1)])
def test_golden_bytes_of_version_1(record, golden):
    data = with_crc(bytes.fromhex(golden))
    assert decode_record(data, root="r", position=0) == record
    assert encode_record(record) == data


records = st.builds(
    lambda index, *rest: JournalRecord(
        RecordKind.CLAIM if index < 0 else RecordKind.ENTRY, *rest[:2], index, *rest[2:]
    ),
    st.integers(-1, 2**63),
    st.builds(Epoch, st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16)),
    st.binary(min_size=16, max_size=16),
    st.integers(-1, 2**63),
    st.binary(min_size=16, max_size=16),
    st.lists(st.builds(LastKnown, st.integers(-1, 2**63), st.integers(0, 2**32 - 1)), max_size=7).map(tuple),
    st.binary(max_size=300),
)


@given(records)
def test_round_trip(record):
    assert decode_record(encode_record(record), root="r", position=0) == record


@given(records, st.data())
def test_any_damage_is_found(record, data):
    body = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptDataError, match="CORRUPT_MESSAGE") as caught:
        decode_record(bytes(body), root="broker 3 (file:///r)", position=17)
    assert "position 17 of broker 3 (file:///r)" in str(caught.value)


@given(records, st.data())
def test_any_cut_is_found(record, data):
    body = encode_record(record)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(CorruptDataError):
        decode_record(cut, root="r", position=0)


@pytest.mark.parametrize("length", [60, 70])
def test_intact_bytes_whose_fields_do_not_fit_are_damaged(length):
    body = encode_record(ENTRY)[:length]
    with pytest.raises(CorruptDataError):
        decode_record(with_crc(body), root="r", position=0)


def test_unknown_kind_is_damaged():
    body = bytearray(encode_record(ENTRY)[:-4])
    body[5] = 9
    with pytest.raises(CorruptDataError):
        decode_record(with_crc(bytes(body)), root="r", position=0)


def test_newer_version_is_told_apart_from_damage():
    body = bytearray(encode_record(ENTRY)[:-4])
    body[4] = 2
    with pytest.raises(UnsupportedFormatError, match="UNSUPPORTED_VERSION"):
        decode_record(with_crc(bytes(body)), root="r", position=0)


def test_entry_hash_chains_index_and_payload_and_nothing_else():
    first = entry_hash(genesis_hash("a"), 0, b"x")
    assert first == entry_hash(genesis_hash("a"), 0, b"x")
    assert len({first, entry_hash(genesis_hash("b"), 0, b"x"), entry_hash(genesis_hash("a"), 1, b"x")}) == 3


def test_overhead_is_small():
    positions = tuple(LastKnown(10**6 + root, 2**32 - 1) for root in range(3))
    record = JournalRecord(
        RecordKind.ENTRY, Epoch(1000, b"i" * 16), b"n" * 16, 10**6, 10**6 - 1, b"h" * 16, positions, bytes(500)
    )
    assert len(encode_record(record)) - 500 <= 100


def test_epochs_order_by_round_then_incarnation():
    assert Epoch(1, b"z" * 16) < Epoch(2, b"a" * 16)
    assert Epoch(2, b"a" * 16) < Epoch(2, b"b" * 16)
