"""What one process knows of one root's journal. Pure."""

from __future__ import annotations

from spark_replog.ledger.record import (
    NO_INDEX,
    NOTHING_KNOWN,
    ZERO_EPOCH,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
)


class JournalView:
    """The acceptor state that a dense, write-once journal adds up to.

    A record at position p may be created only by a process that has learned 0 .. p-1, so one
    successful create is one atomic acceptor step on exactly this state.

    Attributes:
        next_position: first position not learned; the only one where a create makes sense.
        promised: highest epoch in the journal.
        last: position and CRC32C of the last learned record.
        commit_index: highest commit index on this root.
        entries: index -> (epoch, entry hash) of this root's LAST ENTRY there, above `matched` only.
        matched: up to here the root's last ENTRY of every index is the decided one, so nothing
            needs backfill. A later ENTRY for such an index can only repeat the value.
    """

    __slots__ = ("commit_index", "entries", "last", "matched", "next_position", "promised")

    def __init__(self) -> None:
        self.next_position = 0
        self.promised: Epoch = ZERO_EPOCH
        self.last: LastKnown = NOTHING_KNOWN
        self.commit_index = NO_INDEX
        self.entries: dict[int, tuple[Epoch, bytes]] = {}
        self.matched = NO_INDEX

    def learn(self, record: JournalRecord, crc: int) -> None:
        """Take in the record at `next_position`."""
        self.last = LastKnown(self.next_position, crc)
        self.next_position += 1
        if record.epoch > self.promised:
            self.promised = record.epoch
        if record.kind is RecordKind.ENTRY and record.index > self.matched:
            self.entries[record.index] = (record.epoch, record.entry_hash)
        if record.commit_index > self.commit_index:
            self.commit_index = record.commit_index

    def match(self, decided_hashes: list[bytes]) -> None:
        """Advance `matched` over indexes whose last ENTRY here is the decided one."""
        index = self.matched + 1
        count = len(decided_hashes)
        while index < count:
            found = self.entries.get(index)
            if found is None or found[1] != decided_hashes[index]:
                break
            del self.entries[index]
            index += 1
        self.matched = index - 1

    def highest_index(self) -> int:
        """Return the highest index that this root holds an ENTRY for, -1 for none."""
        return max(self.entries, default=self.matched)
