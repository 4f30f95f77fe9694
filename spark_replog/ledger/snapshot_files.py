"""The bytes of truncation markers and snapshot heads (docs/format-journal.md). Pure.

Both name a base: a decided index with its entry hash, from which a process continues without the entries before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ledger.record import HASH_SIZE_BYTES, INCARNATION_SIZE_BYTES, NO_HASH, NO_INDEX, ZERO_EPOCH, Epoch
from spark_replog.snapshot import SNAPSHOT_NAME, DecidedSnapshot, hash_of
from spark_replog.storage.object_store import Buffer
from spark_replog.wire import BOOL, BYTES, INDEX, UINT, Kind, Reader, Writer, checked, list_of, raw_of, record

MARKER_MAGIC = b"RPLM"
SNAPSHOT_MAGIC = b"RPLS"
VERSION = 1
MARKER_SIZE_BYTES_MAX = 4096
SNAPSHOT_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""A head is small: the parts that grow with a store are in pages."""
_CRC_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Base:
    """A decided index that stands for all entries up to it.

    Attributes:
        index: NO_INDEX for the beginning of the ledger.
        entry_hash: of that entry.
        epoch: one from which on no ENTRY for the index has another value.
    """

    index: int = NO_INDEX
    entry_hash: bytes = NO_HASH
    epoch: Epoch = ZERO_EPOCH


class Floor(NamedTuple):
    """The content of a root's newest marker; its numbers never decrease.

    Attributes:
        marker_no: number of the root's NEXT marker.
        position: the first one that counts.
        base_index: of the snapshot.
        renewal: changes when the journal is rebuilt: positions of the earlier journal then mean nothing.
    """

    marker_no: int = 0
    position: int = 0
    base_index: int = NO_INDEX
    renewal: bytes = NO_HASH


class JournalPoint(NamedTuple):
    """Where one root's journal is read from, and the state that its earlier records produced.

    Attributes:
        position: the first one to read.
        promised: the highest epoch before it; ZERO_EPOCH also if it is not known.
        last_crc: CRC32C of the record before it, 0 if unknown.
        matched: up to this index nothing is missing on the root: its last ENTRY is the decided one, or its newest
            marker covers it.
        last_index: the highest index before the position.
        is_held: the root's last ENTRY(last_index) is the decided one, even if `matched` does not cover it yet.
        floor: the newest marker.
    """

    position: int = 0
    promised: Epoch = ZERO_EPOCH
    last_crc: int = 0
    matched: int = NO_INDEX
    last_index: int = NO_INDEX
    is_held: bool = False
    floor: Floor = Floor()


class Marker(NamedTuple):
    """States for one root that everything below a position may be deleted, because a snapshot replaces it.

    Attributes:
        position: the first record that counts. It exists, except on a journal without any record; the last one, which
            carries the root's promise, is never below it.
        base: of the snapshot; NO_INDEX if a journal was rebuilt before the first snapshot: entry 0 comes next.
        name: of the snapshot's head, "" for none.
        renewal: 16 random bytes of the rebuild that the journal comes from, zeros for none.
    """

    position: int
    base: Base
    name: str
    renewal: bytes = NO_HASH

    def point(self, marker_no: int) -> JournalPoint:
        """Return where the journal is read from under this marker, which has the number before `marker_no`."""
        index = self.base.index
        floor = Floor(marker_no, self.position, index, self.renewal)
        return JournalPoint(self.position, ZERO_EPOCH, 0, index, index, False, floor)


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The envelope of a state's head.

    Attributes:
        base: the entry after which the state was frozen.
        decided: the last decided snapshot in that state, from which it derives.
        points: per metadata root, in the store's order, where to read on.
        body: the state's own bytes.
    """

    base: Base
    decided: DecidedSnapshot
    points: tuple[JournalPoint, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class UnprovenHead:
    """A head that fewer than a majority of the roots are seen to have, and the one that it calls decided.

    The state is made from the latter. Both count once the first SnapshotCommit that is folded after it names it; if it
    names another, or there is none up to the end of the journals, the state is read from the journals.

    Attributes:
        newest: name of the head that a listing showed; name: of the one that it calls decided, or the same.
        points: of the former.
        before: the last decided snapshot in the state that was restored.
        is_cold: nothing was folded before.
    """

    newest: str
    name: str
    points: tuple[JournalPoint, ...]
    before: DecidedSnapshot
    is_cold: bool


def snapshot_name(index: int, data: bytes) -> str:
    """Return the name of a head: its index and the hash of its bytes, so that equal ones are one object."""
    return f"{index:020d}-{hash_of(data)}"


_HASH = raw_of(HASH_SIZE_BYTES)
_NAME_SIZE_BYTES = 53
_NAME = checked(
    Kind(
        lambda writer, name: writer.raw(name.encode("ascii").ljust(_NAME_SIZE_BYTES, b" ")),
        lambda reader: reader.raw(_NAME_SIZE_BYTES).decode("ascii", "replace").rstrip(" "),
    ),
    lambda name: not name or SNAPSHOT_NAME.fullmatch(name),
    "name of a snapshot",
)
_CRC = Kind(
    lambda writer, crc: writer.raw(crc.to_bytes(4, "little")), lambda reader: int.from_bytes(reader.raw(4), "little")
)
_EPOCH = record(Epoch, round=UINT, incarnation=raw_of(INCARNATION_SIZE_BYTES))
_BASE = record(Base, index=INDEX, entry_hash=_HASH, epoch=_EPOCH)
_FLOOR = record(Floor, marker_no=UINT, position=UINT, base_index=INDEX, renewal=_HASH)
_POINT = record(
    JournalPoint,
    position=UINT,
    promised=_EPOCH,
    last_crc=_CRC,
    matched=INDEX,
    last_index=INDEX,
    is_held=BOOL,
    floor=_FLOOR,
)
_MARKER = record(Marker, position=UINT, base=_BASE, name=_NAME, renewal=_HASH)
_DECIDED = record(DecidedSnapshot, no=UINT, index=INDEX, entry_index=INDEX, name=_NAME)
_HEAD = record(SnapshotHead, base=_BASE, decided=_DECIDED, points=list_of(_POINT), body=BYTES)


def encode_marker(genesis: bytes, marker: Marker) -> bytes:
    """Return the marker's bytes; `genesis` identifies the ledger."""
    return _encode(MARKER_MAGIC, _MARKER, genesis, marker)


def decode_marker(data: Buffer, *, genesis: bytes, where: str) -> Marker:
    """Return the marker.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: truncated, altered, or of another ledger.
        UnsupportedFormatError: UNSUPPORTED_VERSION: intact, and made by a newer release.
    """
    marker: Marker = _decode(MARKER_MAGIC, _MARKER, data, MARKER_SIZE_BYTES_MAX, genesis, where)
    return marker


def encode_snapshot(genesis: bytes, head: SnapshotHead) -> bytes:
    """Return the bytes of a snapshot's head; `genesis` identifies the ledger."""
    return _encode(SNAPSHOT_MAGIC, _HEAD, genesis, head)


def decode_snapshot(data: Buffer, *, genesis: bytes, root_count: int, where: str) -> SnapshotHead:
    """Return the head; arguments and errors as ``decode_marker``, and the number of metadata roots is checked."""
    head: SnapshotHead = _decode(SNAPSHOT_MAGIC, _HEAD, data, SNAPSHOT_SIZE_BYTES_MAX, genesis, where)
    if len(head.points) != root_count:
        raise _damaged(where, f"it names {len(head.points)} roots, and the ledger has {root_count}")
    return head


def _encode(magic: bytes, kind: Kind, genesis: bytes, value: object) -> bytes:
    writer = Writer()
    writer.raw(magic + bytes((VERSION,)) + genesis)
    kind.write(writer, value)
    _CRC.write(writer, crc32c(writer.data))
    return bytes(writer.data)


def _decode(magic: bytes, kind: Kind, data: Buffer, size_bytes_max: int, genesis: bytes, where: str) -> Any:
    damaged = partial(_damaged, where)
    body = bytes(data[: size_bytes_max + 1])
    if not 5 + HASH_SIZE_BYTES + _CRC_SIZE_BYTES <= len(body) <= size_bytes_max or body[:4] != magic:
        raise damaged(f"its {len(data)} bytes are not one")
    if crc32c(body[:-_CRC_SIZE_BYTES]) != int.from_bytes(body[-_CRC_SIZE_BYTES:], "little"):
        raise damaged("its CRC32C does not match")
    if body[4] != VERSION:
        raise UnsupportedFormatError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{where} has format version {body[4]}; this release reads up to {VERSION}. Upgrade spark-replog.",
        )
    reader = Reader(body[5:-_CRC_SIZE_BYTES], damaged)
    if reader.raw(HASH_SIZE_BYTES) != genesis:
        raise damaged("it belongs to another ledger")
    value = kind.read(reader)
    reader.finish()
    return value


def _damaged(where: str, why: str) -> CorruptDataError:
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{where} is damaged: {why}. Another metadata root's copy is used where there is one. Run "
        "`replog store verify`.",
    )
