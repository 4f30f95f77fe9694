"""The bytes of one journal record (docs/format-journal.md). Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.storage.object_store import Buffer
from spark_replog.wire import Reader, Writer

MAGIC = b"RPLJ"
VERSION = 1
HASH_SIZE_BYTES = 16
NONCE_SIZE_BYTES = 16
INCARNATION_SIZE_BYTES = 16
TAG_SIZE_BYTES = 8
"""Random bytes before each ENTRY's commands make equal commands of two proposers distinct values, so a
deposed owner recognises its own value when a later owner has proposed it again."""
RECORD_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""Twice what one caller may propose; other commands of the same ENTRY add at most 256 KiB."""
RECORD_GET_BYTES = RECORD_SIZE_BYTES_MAX + 1
"""How much readers request: a larger file is noticed and never read whole."""
NO_INDEX = -1
NO_HASH = bytes(HASH_SIZE_BYTES)
_PREFIX_SIZE_BYTES = 4 + 1 + 1 + 1 + INCARNATION_SIZE_BYTES + NONCE_SIZE_BYTES + HASH_SIZE_BYTES
_CRC_SIZE_BYTES = 4


class RecordKind(IntEnum):
    """What a record does to its root, which is an acceptor."""

    CLAIM = 1
    """Promise: no lower epoch extends this journal."""
    ENTRY = 2
    """Accept: this value for this index under this epoch."""


class Epoch(NamedTuple):
    """An owner's number; unique to one claim of one process, totally ordered.

    Attributes:
        round: above every round that its claimant had seen.
        incarnation: 16 random bytes of the process.
    """

    round: int
    incarnation: bytes


ZERO_EPOCH = Epoch(0, bytes(INCARNATION_SIZE_BYTES))
"""The epoch of every record of a ledger with one metadata root, which needs no claims."""


class LastKnown(NamedTuple):
    """The last record of a root that the writer knew. It raises alarms; safety does not depend on it.

    Attributes:
        position: its journal position, -1 for none.
        crc: its CRC32C.
    """

    position: int
    crc: int


NOTHING_KNOWN = LastKnown(-1, 0)


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One write-once record.

    Attributes:
        kind: CLAIM or ENTRY.
        epoch: its writer's.
        nonce: 16 bytes, new for each create; shows which create holds a position.
        index: ledger index, NO_INDEX in a CLAIM.
        commit_index: vouches for this root's own last ENTRY(i) before this record, i <= commit_index.
        entry_hash: ``entry_hash(previous, index, payload)``, NO_HASH in a CLAIM.
        last_known: last known record per metadata root, in the store's root order; empty with one root.
        payload: the ENTRY's value, opaque here.
    """

    kind: RecordKind
    epoch: Epoch
    nonce: bytes
    index: int
    commit_index: int
    entry_hash: bytes
    last_known: tuple[LastKnown, ...]
    payload: bytes


def genesis_hash(ledger_id: str) -> bytes:
    """Return the hash that ENTRY(0) continues; it differs for each ledger."""
    return hashlib.blake2b(ledger_id.encode(), digest_size=HASH_SIZE_BYTES).digest()


def entry_hash(previous: bytes, index: int, payload: bytes) -> bytes:
    """Return the hash of an ENTRY. Epoch, nonce and commit index are outside: a re-proposal keeps it."""
    digest = hashlib.blake2b(previous, digest_size=HASH_SIZE_BYTES)
    digest.update(index.to_bytes(8, "little"))
    digest.update(payload)
    return digest.digest()


def encode_record(record: JournalRecord) -> bytes:
    """Return the record's bytes; the last four are the CRC32C of all before them."""
    assert len(record.nonce) == NONCE_SIZE_BYTES and len(record.entry_hash) == HASH_SIZE_BYTES, record
    writer = Writer()
    writer.raw(MAGIC)
    writer.raw(bytes((VERSION, record.kind, len(record.last_known))))
    writer.raw(record.epoch.incarnation + record.nonce + record.entry_hash)
    writer.uint(record.epoch.round)
    writer.uint(record.index + 1)
    writer.uint(record.commit_index + 1)
    for position, crc in record.last_known:
        writer.uint(position + 1)
        writer.raw(crc.to_bytes(4, "little"))
    writer.uint(len(record.payload))
    writer.raw(record.payload)
    writer.raw(crc32c(writer.data).to_bytes(_CRC_SIZE_BYTES, "little"))
    return bytes(writer.data)


def record_crc(data: bytes) -> int:
    """Return the CRC32C that a record's bytes end with."""
    return int.from_bytes(data[-_CRC_SIZE_BYTES:], "little")


def damaged_record(root: str, position: int, why: str) -> CorruptDataError:
    """Return the error of a record that is damaged or does not belong at its position."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"The journal record at position {position} of {root} is damaged: {why}. If a repair of this root is at work, "
        "let it end: it may repair this. Else, with three metadata roots or more, run `replog store repair`: it "
        "rebuilds this root from the others. With fewer, put the file back as it was: there is no other copy.",
        root=root,
        position=position,
    )


def decode_record(data: Buffer, *, root: str, position: int) -> JournalRecord:
    """Return the record.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: truncated, foreign or altered bytes.
        UnsupportedFormatError: UNSUPPORTED_VERSION: intact, and made by a newer release.
    """
    damaged = partial(damaged_record, root, position)
    if len(data) > RECORD_SIZE_BYTES_MAX:
        raise damaged(f"it has more than {RECORD_SIZE_BYTES_MAX} bytes")
    body = bytes(data)
    if len(body) < _PREFIX_SIZE_BYTES + _CRC_SIZE_BYTES or body[:4] != MAGIC:
        raise damaged(f"its {len(body)} bytes are not a journal record")
    if crc32c(body[:-_CRC_SIZE_BYTES]) != record_crc(body):
        raise damaged("its CRC32C does not match")
    if body[4] != VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The journal record at position {position} of {root} has format version {body[4]}; this release "
            f"reads up to {VERSION}. Upgrade spark-replog.",
            root=root,
            position=position,
        )
    if body[5] not in (RecordKind.CLAIM, RecordKind.ENTRY):
        raise damaged(f"it is of kind {body[5]}")
    kind, reader = RecordKind(body[5]), Reader(body[7:-_CRC_SIZE_BYTES], damaged)
    incarnation, nonce = reader.raw(INCARNATION_SIZE_BYTES), reader.raw(NONCE_SIZE_BYTES)
    digest = reader.raw(HASH_SIZE_BYTES)
    epoch = Epoch(reader.uint(), incarnation)
    index, commit_index = reader.uint() - 1, reader.uint() - 1
    last_known = [LastKnown(reader.uint() - 1, int.from_bytes(reader.raw(4), "little")) for _ in range(body[6])]
    payload = reader.raw(reader.uint())
    reader.finish()
    if (kind is RecordKind.ENTRY) != (index >= 0):
        raise damaged(f"it is a {kind.name} for index {index}")
    return JournalRecord(kind, epoch, nonce, index, commit_index, digest, tuple(last_known), payload)
