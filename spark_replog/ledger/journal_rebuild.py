"""Gives a metadata root that lost its journal a new one, so that the root counts again.

An acceptor that forgot its promises must not vote as if it had made none. So the rebuilder first owns
the ledger: its CLAIM is on a majority that does not include the lost root, and its round is so far above
all seen ones that no promise which only the lost root knew can be higher. A process that relies on such a
promise then lacks a majority: of 2f + 1 roots f + 1 promised the rebuilder's epoch, and f are too few.
Only decided values are written, under that epoch, and vouched for after they were read back (docs/format-journal.md).
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_replog.errors import CorruptDataError
from spark_replog.ids import root_number
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.reader import ORIGIN, REBUILD_ROUND_STEP, JournalOrder
from spark_replog.ledger.record import (
    HASH_SIZE_BYTES,
    NO_HASH,
    NO_INDEX,
    NONCE_SIZE_BYTES,
    NOTHING_KNOWN,
    RECORD_GET_BYTES,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    decode_record,
    encode_record,
    entry_hash,
    genesis_hash,
)
from spark_replog.ledger.snapshot_files import MARKER_SIZE_BYTES_MAX, JournalPoint, Marker, decode_marker, encode_marker
from spark_replog.snapshot import PAGE_NAME, SNAPSHOT_NAME, is_named
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectStore
from spark_replog.storage.paths import (
    journal_folder,
    journal_key,
    marker_folder,
    marker_key,
    marker_number,
    page_folder,
    record_position,
    snapshot_folder,
)

POSITION_MARGIN = 16
"""How far one of two journals is copied beyond the highest position that the other one names, for records written
since: a process that knew the old journal goes on after its end and reads the new records there."""
POSITIONS_PER_ROOT = 1 << 32
"""The journals of a rebuilt root begin at this position, times the number of its id, which rises from rebuild to
rebuild. So each position tells which root of the broker it belongs to, and whatever records and snapshots name of
earlier ones is below, also what its rebuilder does not know. Positions that stay empty cost nothing."""
MARKER_MARGIN = 4
"""Each marker belongs to another snapshot, so few can have come since the newest one was read."""
REBUILD_MARKERS = MARKER_MARGIN + 1
"""How many more markers a rebuild puts than its rebuilder knew of."""
READ_WINDOW = 16
"""Records that are read back at once."""
_WINDOW = 8


@dataclass(frozen=True, slots=True)
class OwnedLog:
    """The owner's knowledge of a ledger, right after its own ENTRY was decided.

    Attributes:
        epoch: claimed on a majority, without the lost root.
        length: decided entries.
        hashes: entry hash per decided index, from the marker's base on.
        payloads: value per decided index above it.
        last_known: last known record per root, NOTHING_KNOWN for the lost one.
        marker: where the new journal begins: its position is above all of earlier roots (`POSITIONS_PER_ROOT`), its
            snapshot replaces entries that are gone, if any, and its renewal is new.
        marker_no: number of the lost root's next marker, as far as any process may know (`markers_put`).
    """

    epoch: Epoch
    length: int
    hashes: Mapping[int, bytes]
    payloads: Mapping[int, bytes]
    last_known: tuple[LastKnown, ...]
    marker: Marker
    marker_no: int = 0

    def after(self, position: int) -> OwnedLog:
        """Return the same knowledge for a journal that begins after a position, where a record cannot be read."""
        return replace(self, marker=self.marker._replace(position=max(self.marker.position, position + 1)))

    @classmethod
    def of(cls, core: LedgerCore, root: int, root_id: str, decided: JournalPoint = ORIGIN) -> OwnedLog | None:
        """Return what a core that never read this root knows; None if it no longer owns the ledger, or lacks values.

        Args:
            root_id: of the new root.
            decided: the root's point in the head of the decided snapshot.
        """
        prefix, proposer = core.prefix, core.proposer
        if not proposer.is_leading or proposer.epoch is None:
            return None
        last_known = without(tuple(view.last for view in prefix.views), root)
        floor = core.roots[root].floor
        if int(prefix.snapshot_name[:20] or -1) != prefix.base.index:
            return None  # memory was full: own it again, with the newest snapshot
        known_end = max(floor.position, prefix.views[root].next_position, prefix.named.highest[root] + 1)
        position = max(root_number(root_id) * POSITIONS_PER_ROOT, known_end)
        marker = Marker(position, prefix.base, prefix.snapshot_name, os.urandom(HASH_SIZE_BYTES))
        hashes, payloads = dict(prefix.hashes), dict(prefix.payloads)
        points = decided, prefix.views[root].origin._replace(floor=floor)
        marker_no = max(markers_put(point, proposer.epoch) for point in points)
        return cls(proposer.epoch, prefix.length, hashes, payloads, last_known, marker, marker_no)


def markers_put(point: JournalPoint, epoch: Epoch) -> int:
    """Return how many markers a lost root can have had: a process that sleeps may look for the next one.

    Its create would count if the new journal had none under that number. A marker beside those of rebuilds needs a
    snapshot whose writer has read the root, and the newest one's head says how many it knew. Since then each rebuild,
    or attempt at one, has claimed with a round that is a step higher.

    Args:
        point: of the root, in the head of a snapshot.
        epoch: of the rebuild that is to begin.
    """
    rebuild_count = (epoch.round - point.promised.round) // REBUILD_ROUND_STEP - 1
    return point.floor.marker_no + REBUILD_MARKERS * max(0, rebuild_count)


def copy_snapshots(
    ledger_id: str,
    sources: Sequence[ObjectStore],
    target: ObjectStore,
    *,
    named: Collection[str] = (),
    holders_min: int = 1,
) -> int:
    """Copy the heads and pages that a root lacks from the others; return how many.

    Equal names mean equal bytes, except where a copy is damaged: then another source's is taken. Files with other names
    are left.

    Args:
        named: heads that a decided entry or a marker names.
        holders_min: other heads are copied only if at least this number of sources has them. A copy of a head that one
            root made up would put it on a majority.
    """
    target.make_folder(page_folder(ledger_id))
    copied = 0
    for folder in (page_folder(ledger_id), snapshot_folder(ledger_id)):
        present = {info.key for info in target.list_keys(folder)}
        listed = [{info.key for info in source.list_keys(folder)} for source in sources]
        held = Counter(key for keys in listed for key in keys)
        is_head = folder == snapshot_folder(ledger_id)
        left = {key for key in held if is_head and held[key] < holders_min and key.rpartition("/")[2] not in named}
        for source, keys in zip(sources, listed, strict=True):
            for key in sorted(keys - present - left):
                name = key.rpartition("/")[2]
                if SNAPSHOT_NAME.fullmatch(name) is None and PAGE_NAME.fullmatch(name) is None:
                    continue
                data = source.get(key)
                # None: a newer snapshot replaced it meanwhile.
                if data is not None and is_named(name, data):
                    target.create(key, bytes(data), make_parent=True)
                    present.add(key)
                    copied += 1
    return copied


class JournalRebuild:
    """Writes one journal. Resumable: it keeps what an earlier attempt, a writer or the old journal left.

    Args:
        store: the lost root; its journal folder exists, its ``replog.json`` does not.
        owned: see `OwnedLog`.

    Attributes:
        position: the first one that was not read and not written.
    """

    def __init__(self, ledger_id: str, root_name: str, store: ObjectStore, owned: OwnedLog) -> None:
        self._ledger_id = ledger_id
        self._root_name = root_name
        self._store = store
        self._owned = owned
        origin = owned.marker.point(owned.marker_no)
        self.position = origin.position
        self._order = JournalOrder(origin)
        self._first = origin.matched  # up to here a snapshot replaces the entries
        self._copied = self._first  # up to here the last ENTRY of each index, read back, is the decided one
        self._vouched = self._first
        self._others: dict[int, bytes] = {}
        """Entry hash per index where the root's last ENTRY is not the decided one, or no entry is decided."""
        self._has_claim = False
        self._last_listed = NO_INDEX
        self.written_count = 0

    def run(self, on_record: Callable[[int, int], None]) -> bool:
        """Write the missing records.

        Args:
            on_record: called with (decided entries that the root has, decided entries in all).

        Returns:
            False if a newer owner wrote there, or a writer that still knows the old journal wrote after the claim:
            own the ledger again and run another rebuild, which continues this one.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the record at `position` cannot be read: begin another rebuild after it.
        """
        self._put_markers()
        places = (record_position(info.key) for info in self._store.list_keys(journal_folder(self._ledger_id)))
        # A listing decides only where gaps are looked for.
        self._last_listed = max((place for place in places if place is not None), default=NO_INDEX)
        while self._read_on():
            position = self.position
            if position < self._last_listed:
                self.written_count += self._fill_gap(position)
                continue
            on_record(self._copied + 1, self._owned.length)
            missing = self._missing_records()
            if not missing:
                return True
            written_count = self._write(position, missing)
            self.written_count += written_count
            self._last_listed = max(self._last_listed, position + min(written_count, len(missing) - 1))
        return False

    def _put_markers(self) -> None:
        """Create the marker under every number that a process may look for that knew the old journal, and some more."""
        marker, root = self._owned.marker, self._store
        numbers = (marker_number(info.key) for info in root.list_keys(marker_folder(self._ledger_id)))
        there = {marker_no for marker_no in numbers if marker_no is not None}
        data = encode_marker(genesis_hash(self._ledger_id), marker)
        last = max(there, default=NO_INDEX)
        if last >= 0 and bytes(root.get(marker_key(self._ledger_id, last)) or b"") != data:
            last += 1
        for number in range(max(last, self._owned.marker_no + MARKER_MARGIN) + 1):
            self._put_marker(number, data, is_there=number in there)

    def _put_marker(self, number: int, data: bytes, *, is_there: bool) -> None:
        """Create the marker, or leave the one that is there, unless no process can read it."""
        key = marker_key(self._ledger_id, number)
        with suppress(CorruptDataError):  # a folder has its name
            if not is_there and self._store.create(key, data, make_parent=True) is CreateOutcome.CREATED:
                return
        try:
            there = self._store.get(key, size_bytes=MARKER_SIZE_BYTES_MAX + 1)
            decode_marker(there or b"", genesis=genesis_hash(self._ledger_id), where=f"marker {number}")
        except CorruptDataError:
            self._store.delete(key)
            self._store.create(key, data, make_parent=True)

    def _read_on(self) -> bool:
        """Read the records after the known end, of any writer; return False if the ledger must be owned again."""
        ahead: deque[Buffer | None] = deque()
        while True:
            position = self.position
            if not ahead:
                ahead.extend(self._get_several(position, self._last_listed + 1 - position))
            data = ahead.popleft()
            if data is None:
                return True
            record = decode_record(data, root=self._root_name, position=position)
            if record.epoch > self._owned.epoch:
                return False
            self._has_claim |= record.kind is RecordKind.CLAIM and record.epoch == self._owned.epoch
            if self._order.take(record, position):
                self._copied = self._first
                self._others.clear()
            if record.kind is RecordKind.ENTRY and record.index > self._first:
                self._take_entry(record, position)
            self._vouched = max(self._vouched, record.commit_index)
            self.position += 1
            if self._has_claim and self._order.fault is not None:
                return False

    def _take_entry(self, record: JournalRecord, position: int) -> None:
        """Compare an entry with the decided one; note a break of the hash chain as a fault, as every reader does.

        A writer that knew the old journal chains its entry to one that is missing here, or has another value here.
        """
        index, hashes, others = record.index, self._owned.hashes, self._others
        previous = others.get(index - 1, hashes.get(index - 1) if index else genesis_hash(self._ledger_id))
        is_decided = record.entry_hash == hashes.get(index)
        is_chained = is_decided and index - 1 not in others
        if not is_chained and previous is not None and entry_hash(previous, index, record.payload) != record.entry_hash:
            self._order.note(f"the hash chain breaks at entry {index}", position)
        if not is_decided:
            others[index] = record.entry_hash
            self._copied = min(self._copied, index - 1)
            return
        others.pop(index, None)
        if index == self._copied + 1:
            self._copied += 1

    def _get_several(self, first: int, count: int) -> list[Buffer | None]:
        """Get records at once, at most `READ_WINDOW`; `count` is how many are listed or written by this rebuild."""
        if count <= 1:
            return [self._get(first)]
        places = range(first, first + min(count, READ_WINDOW))
        pending = [IO_POOL.submit_to(f"{self._store.url}#rebuild", self._get, place) for place in places]
        return [future.result() for future in pending]

    def _get(self, position: int) -> Buffer | None:
        return self._store.get(journal_key(self._ledger_id, position), size_bytes=RECORD_GET_BYTES)

    def _fill_gap(self, first: int) -> int:
        """Fill the positions before the next record there; return how many were written.

        A rebuild that died had copies of decided entries for them. Epochs must not decrease on one root, so they are
        written in the epoch of the record after the gap. The gap is searched once, and written before it is read back,
        up to a record that appears in it meanwhile: reading on shows whether that one broke the order (ADR 8).
        """
        position, behind = self._next_record(first + 1)
        if behind is None:
            self._last_listed = first  # listed and gone, or never created
            return 0
        epoch = max(min(behind.epoch, self._owned.epoch), self._order.epoch)
        end = min(behind.index, self._owned.length) if behind.kind is RecordKind.ENTRY else NO_INDEX
        index, written_count = self._copied + 1, 0
        for start in range(first, position, _WINDOW):
            records = []
            for _ in range(min(position - start, _WINDOW)):
                is_entry = index < end
                record = self._record(RecordKind.ENTRY, index) if is_entry else self._record(RecordKind.CLAIM, NO_INDEX)
                records.append(replace(record, epoch=epoch))
                index += is_entry
            count = self._write(start, records)
            written_count += count
            if count < len(records):
                break
        return written_count

    def _next_record(self, first: int) -> tuple[int, JournalRecord | None]:
        """Return the position of the first record from this one on, and the record; None if there is none listed."""
        position = first
        while position <= self._last_listed:
            for data in self._get_several(position, self._last_listed + 1 - position):
                if data is not None:
                    return position, decode_record(data, root=self._root_name, position=position)
                position += 1
        return position, None

    def _missing_records(self) -> list[JournalRecord]:
        """Return the next records: the promise, decided entries, and a last record that vouches for all."""
        records = [] if self._has_claim else [self._record(RecordKind.CLAIM, NO_INDEX)]
        first = (self._first if self._order.fault is not None else self._copied) + 1
        for index in range(first, min(first + _WINDOW, self._owned.length)):
            records.append(self._record(RecordKind.ENTRY, index))
        if not records and self._vouched < self._copied:
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
            self._copied,  # vouches only for what was read back: others may write here at the same time
            owned.hashes[index] if is_entry else NO_HASH,
            owned.last_known,
            owned.payloads[index] if is_entry else b"",
        )

    def _write(self, first: int, records: list[JournalRecord]) -> int:
        """Create the records from this position on, until one is taken, which is read later; return how many.

        One after the other: a record follows only one that this rebuild has written or read. Of some that were sent at
        once the last could arrive alone, behind another rebuild's end, when the root counts again.
        """
        for number, record in enumerate(records):
            key = journal_key(self._ledger_id, first + number)
            if self._store.create(key, encode_record(record)) is not CreateOutcome.CREATED:
                return number
        return len(records)


def without(last_known: tuple[LastKnown, ...], root: int) -> tuple[LastKnown, ...]:
    """Return the last known records with NOTHING_KNOWN for one root."""
    return tuple(NOTHING_KNOWN if number == root else last for number, last in enumerate(last_known))
