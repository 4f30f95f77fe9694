"""The bytes of truncation markers and snapshot heads (docs/format-journal.md). Pure.

Both name a base: a decided index with its entry hash, from which a process continues without the entries before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from spark_replog.errors import CorruptDataError, ErrorCode, UnsupportedFormatError
from spark_replog.ledger.record import (
    HASH_SIZE_BYTES,
    INCARNATION_SIZE_BYTES,
    NO_HASH,
    NO_INDEX,
    ZERO_EPOCH,
    Epoch,
    get_varint,
    put_varint,
)
from spark_replog.snapshot import SNAPSHOT_NAME, DecidedSnapshot, hash_of
from spark_replog.storage.object_store import Buffer

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


def snapshot_name(index: int, data: bytes) -> str:
    """Return the name of a head: its index and the hash of its bytes, so that equal ones are one object."""
    return f"{index:020d}-{hash_of(data)}"


def encode_marker(genesis: bytes, marker: Marker) -> bytes:
    """Return the marker's bytes; `genesis` identifies the ledger."""
    out = _start(MARKER_MAGIC, genesis)
    put_varint(out, marker.position)
    _put_base(out, marker.base)
    out += marker.name.encode("ascii").ljust(_NAME_SIZE_BYTES, b" ")
    out += marker.renewal
    return _end(out)


def decode_marker(data: Buffer, *, genesis: bytes, where: str) -> Marker:
    """Return the marker.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE: truncated, altered, or of another ledger.
        UnsupportedFormatError: UNSUPPORTED_VERSION: intact, and made by a newer release.
    """
    reader = _Reader(data, MARKER_MAGIC, MARKER_SIZE_BYTES_MAX, genesis, where)
    with reader:
        marker = Marker(reader.uint(), reader.base(), reader.name(), reader.take(HASH_SIZE_BYTES))
        reader.finish()
    return marker


def encode_snapshot(genesis: bytes, head: SnapshotHead) -> bytes:
    """Return the bytes of a snapshot's head; `genesis` identifies the ledger."""
    out = _start(SNAPSHOT_MAGIC, genesis)
    _put_base(out, head.base)
    decided = head.decided
    put_varint(out, decided.no)
    put_varint(out, decided.index + 1)
    put_varint(out, decided.entry_index + 1)
    out += decided.name.encode("ascii").ljust(_NAME_SIZE_BYTES, b" ")
    put_varint(out, len(head.points))
    for point in head.points:
        put_varint(out, point.position)
        _put_epoch(out, point.promised)
        out += point.last_crc.to_bytes(4, "little")
        put_varint(out, point.matched + 1)
        put_varint(out, point.last_index + 1)
        out.append(point.is_held)
        put_varint(out, point.floor.marker_no)
        put_varint(out, point.floor.position)
        put_varint(out, point.floor.base_index + 1)
        out += point.floor.renewal
    put_varint(out, len(head.body))
    out += head.body
    return _end(out)


def decode_snapshot(data: Buffer, *, genesis: bytes, root_count: int, where: str) -> SnapshotHead:
    """Return the head; arguments and errors as ``decode_marker``, and the number of metadata roots is checked."""
    reader = _Reader(data, SNAPSHOT_MAGIC, SNAPSHOT_SIZE_BYTES_MAX, genesis, where)
    with reader:
        base = reader.base()
        no, index, entry_index = reader.uint(), reader.uint() - 1, reader.uint() - 1
        decided = DecidedSnapshot(no, index, reader.name(), entry_index)
        if (count := reader.uint()) != root_count:
            raise ValueError(f"it names {count} roots, and the ledger has {root_count}")
        points = tuple(reader.point() for _ in range(count))
        body = reader.take(reader.uint())
        reader.finish()
    return SnapshotHead(base, decided, points, body)


_NAME_SIZE_BYTES = 53


def _start(magic: bytes, genesis: bytes) -> bytearray:
    return bytearray(magic + bytes((VERSION,)) + genesis)


def _end(out: bytearray) -> bytes:
    return bytes(out) + crc32c(bytes(out)).to_bytes(_CRC_SIZE_BYTES, "little")


def _put_epoch(out: bytearray, epoch: Epoch) -> None:
    put_varint(out, epoch.round)
    out += epoch.incarnation


def _put_base(out: bytearray, base: Base) -> None:
    put_varint(out, base.index + 1)
    out += base.entry_hash
    _put_epoch(out, base.epoch)


class _Reader:
    """Reads the fields of one checked file; any malformed field raises CorruptDataError."""

    def __init__(self, data: Buffer, magic: bytes, size_bytes_max: int, genesis: bytes, where: str) -> None:
        self._where = where
        body = bytes(data[: size_bytes_max + 1])
        size_bytes_min = len(magic) + 1 + HASH_SIZE_BYTES + _CRC_SIZE_BYTES
        if not size_bytes_min <= len(body) <= size_bytes_max or body[:4] != magic:
            raise self._damaged(f"its {len(data)} bytes are not one")
        self._body, self._end = body, len(body) - _CRC_SIZE_BYTES
        if crc32c(body[: self._end]) != int.from_bytes(body[self._end :], "little"):
            raise self._damaged("its CRC32C does not match")
        if body[4] != VERSION:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{where} has format version {body[4]}; this release reads up to {VERSION}. Upgrade spark-replog.",
            )
        self._at = 5
        if self.take(HASH_SIZE_BYTES) != genesis:
            raise self._damaged("it belongs to another ledger")

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, IndexError | ValueError):
            raise self._damaged(f"its fields do not fit ({error})") from error

    def _damaged(self, why: str) -> CorruptDataError:
        return CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self._where} is damaged: {why}. Another metadata root's copy is used where there is one. Run "
            "`replog store verify`.",
        )

    def take(self, size_bytes: int) -> bytes:
        part = self._body[self._at : self._at + size_bytes]
        self._at += size_bytes
        if self._at > self._end:
            raise ValueError("it ends early")
        return part

    def uint(self) -> int:
        value, self._at = get_varint(self._body, self._at)
        if self._at > self._end:
            raise ValueError("it ends early")
        return value

    def epoch(self) -> Epoch:
        return Epoch(self.uint(), self.take(INCARNATION_SIZE_BYTES))

    def base(self) -> Base:
        return Base(self.uint() - 1, self.take(HASH_SIZE_BYTES), self.epoch())

    def name(self) -> str:
        name = self.take(_NAME_SIZE_BYTES).decode("ascii").rstrip(" ")
        if name and SNAPSHOT_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not the name of a snapshot")
        return name

    def point(self) -> JournalPoint:
        position, promised = self.uint(), self.epoch()
        crc = int.from_bytes(self.take(4), "little")
        matched, last_index = self.uint() - 1, self.uint() - 1
        return JournalPoint(position, promised, crc, matched, last_index, self.take(1) == b"\1", self.floor())

    def floor(self) -> Floor:
        return Floor(self.uint(), self.uint(), self.uint() - 1, self.take(HASH_SIZE_BYTES))

    def finish(self) -> None:
        if self._at != self._end:
            raise ValueError(f"{self._end - self._at} bytes follow")
