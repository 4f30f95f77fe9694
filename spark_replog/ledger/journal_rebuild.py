"""Gives a metadata root that lost its journal a new one that may be counted again.

An acceptor that forgot its promises must not vote as if it had made none. So the rebuilder first owns
the ledger: its CLAIM is on a majority that does not include the lost root, and its round is so far above
all seen ones that no promise which only the lost root knew can be higher. Whoever still counts on such a
promise then lacks a majority: of 2f + 1 roots f + 1 promised the rebuilder's epoch, and f are too few.
Only decided values are written, under that epoch, vouched for one by one (docs/format-journal.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from spark_replog.ledger.reader import JournalView
from spark_replog.ledger.record import (
    NO_HASH,
    NO_INDEX,
    NONCE_SIZE_BYTES,
    NOTHING_KNOWN,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    decode_record,
    encode_record,
    record_crc,
)
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.object_store import CreateOutcome, ObjectStore
from spark_replog.storage.paths import journal_key

REBUILD_ROUND_STEP = 1 << 32
"""How far above every seen round the rebuilder claims: more claims than one root could ever take alone."""
POSITION_MARGIN = 16
"""The new journal is longer than any that records elsewhere name, and than what was written since: a
process that knew the old one goes on behind its end and reads the new records there."""
_WINDOW = 8


@dataclass(frozen=True, slots=True)
class OwnedLog:
    """What the owner of a ledger knows of it, right after an ENTRY of its own was decided.

    Attributes:
        epoch: claimed on a majority, without the lost root.
        hashes: entry hash per decided index; not changed any more.
        payloads: value per decided index.
        known: last known record per root, the lost one's as nothing.
        named_position: the highest position that any record names for the lost root, -1 for none.
    """

    epoch: Epoch
    hashes: list[bytes]
    payloads: Mapping[int, bytes]
    known: tuple[LastKnown, ...]
    named_position: int


class JournalRebuild:
    """Writes one journal. Resumable: what an earlier attempt (or the old journal's beginning) left is kept.

    Args:
        ledger_id: whose journal.
        root_name: names the root in errors.
        store: the lost root; its journal folder is there, its ``replog.json`` is not.
        owned: see there.
    """

    def __init__(self, ledger_id: str, root_name: str, store: ObjectStore, owned: OwnedLog) -> None:
        self._ledger_id = ledger_id
        self._root_name = root_name
        self._store = store
        self._owned = owned
        self._view = JournalView()
        self._has_claim = False
        self._may_have_gaps = True
        self.written_count = 0

    def run(self, on_record: Callable[[int, int], None]) -> bool:
        """Write what is missing.

        Args:
            on_record: called with (decided entries that the root has, decided entries in all).

        Returns:
            False where a newer owner wrote there: own the ledger again and go on from here.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the root holds a damaged record; move its journal away.
        """
        while self._read_on():
            if self._may_have_gaps and (behind := self._record_behind_gap()) is not None:
                if behind.epoch > self._owned.epoch:
                    return False
                self.written_count += self._write([self._gap_record(behind)])
                continue
            self._may_have_gaps = False
            on_record(self._view.matched + 1, len(self._owned.hashes))
            missing = self._missing_records()
            if not missing:
                return True
            self.written_count += self._write(missing)
        return False

    def _read_on(self) -> bool:
        """Learn what lies behind the known end, whoever wrote it; False for a newer owner."""
        while True:
            position = self._view.next_position
            data = self._store.get(journal_key(self._ledger_id, position))
            if data is None:
                return True
            record = decode_record(data, root=self._root_name, position=position)
            if record.epoch > self._owned.epoch:
                return False
            self._has_claim |= record.kind is RecordKind.CLAIM and record.epoch == self._owned.epoch
            self._view.learn(record, record_crc(bytes(data)))
            self._view.match(self._owned.hashes)

    def _record_behind_gap(self) -> JournalRecord | None:
        """Return what an attempt that died in the midst of its creates left behind the first empty position."""
        for position in range(self._view.next_position + 1, self._view.next_position + _WINDOW):
            data = self._store.get(journal_key(self._ledger_id, position))
            if data is not None:
                return decode_record(data, root=self._root_name, position=position)
        return None

    def _gap_record(self, behind: JournalRecord) -> JournalRecord:
        """Return what that attempt had for the position, in its epoch: on one root epochs never decrease."""
        index = self._view.matched + 1
        is_entry = behind.kind is RecordKind.ENTRY and index < behind.index
        record = self._record(RecordKind.ENTRY, index) if is_entry else self._record(RecordKind.CLAIM, NO_INDEX)
        return replace(record, epoch=behind.epoch)

    def _missing_records(self) -> list[JournalRecord]:
        """Return the next records: the promise, the decided entries, then padding."""
        records = [] if self._has_claim else [self._record(RecordKind.CLAIM, NO_INDEX)]
        first = self._view.matched + 1
        for index in range(first, min(first + _WINDOW, len(self._owned.hashes))):
            records.append(self._record(RecordKind.ENTRY, index))
        end = self._owned.named_position + 1 + POSITION_MARGIN
        while len(records) < _WINDOW and self._view.next_position + len(records) < end:
            records.append(self._record(RecordKind.CLAIM, NO_INDEX))
        return records[:_WINDOW]

    def _record(self, kind: RecordKind, index: int) -> JournalRecord:
        owned = self._owned
        is_entry = kind is RecordKind.ENTRY
        return JournalRecord(
            kind,
            owned.epoch,
            os.urandom(NONCE_SIZE_BYTES),
            index,
            index,  # vouches for itself: it is decided
            owned.hashes[index] if is_entry else NO_HASH,
            owned.known,
            owned.payloads[index] if is_entry else b"",
        )

    def _write(self, records: list[JournalRecord]) -> int:
        """Create the records at the next positions, several at a time; a name taken is read afterwards."""
        lane = f"{self._store.url}#rebuild"
        first = self._view.next_position
        pending: list[Future[CreateOutcome]] = [
            io_pool().submit_to(
                lane, self._store.create, journal_key(self._ledger_id, first + number), encode_record(record)
            )
            for number, record in enumerate(records)
        ]
        return sum(future.result() is CreateOutcome.CREATED for future in pending)


def without(known: tuple[LastKnown, ...], root: int) -> tuple[LastKnown, ...]:
    """Return what is known with nothing for one root."""
    return tuple(NOTHING_KNOWN if number == root else last for number, last in enumerate(known))


__all__ = ["POSITION_MARGIN", "REBUILD_ROUND_STEP", "JournalRebuild", "OwnedLog", "without"]
