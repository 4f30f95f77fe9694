"""What must hold of a ledger at every instant: I1 to I6, in one place.

The checker sees every record at the moment it lands in a journal, before any answer, and so knows the
truth that no process knows: what is decided. Index i is decided when a majority of journals hold
ENTRY(epoch, i) of one epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.record import (
    TAG_SIZE_BYTES,
    ZERO_EPOCH,
    Epoch,
    JournalRecord,
    RecordKind,
    decode_record,
)

COMMAND_SIZE_BYTES = 4


class Violation(Exception):
    """An invariant is broken; the text starts with its name."""


def commands_of(payload: bytes) -> list[bytes]:
    """Return the simulated commands of an ENTRY: 4 bytes each behind the tag."""
    return [payload[at : at + COMMAND_SIZE_BYTES] for at in range(TAG_SIZE_BYTES, len(payload), COMMAND_SIZE_BYTES)]


class Truth:
    """The ghost state of one run.

    Args:
        root_count: metadata roots.
        checks_vouching: hold each commit index against what lies on its own root already when the
            record lands, not only when a process acts on it.

    Attributes:
        decided: entry hash per decided index.
        commands: decided ones, each with its index.
        acknowledged: number of leading indexes of which some caller was told.
    """

    def __init__(self, root_count: int, *, checks_vouching: bool = True) -> None:
        self._checks_vouching = checks_vouching
        self.majority = root_count // 2 + 1
        self.decided: list[bytes] = []
        self.commands: dict[bytes, int] = {}
        self.acknowledged = 0
        self._epochs: list[Epoch] = []
        self._votes: dict[tuple[int, Epoch, bytes], int] = {}
        self._journals: list[dict[int, Epoch]] = [{} for _ in range(root_count)]
        self._last: list[dict[int, bytes]] = [{} for _ in range(root_count)]
        self._vouched = [-1] * root_count
        self._covered = [-1] * root_count  # by the newest marker: what the root holds of these counts for nothing

    def commands_of(self, payload: bytes) -> list[bytes]:
        """Return what of a payload may be decided once only."""
        return commands_of(payload)

    def landed(self, root: int, position: int, data: bytes) -> None:
        """Check a record that has just come to lie in a journal."""
        record = decode_record(data, root=f"root {root}", position=position)
        journal = self._journals[root]
        journal[position] = record.epoch
        before = journal.get(position - 1, ZERO_EPOCH)
        if not before <= record.epoch <= journal.get(position + 1, record.epoch):
            raise Violation(f"I6 epochs decrease on root {root} at {position}")
        if record.kind is RecordKind.ENTRY:
            self._entry_landed(root, record)
        self._check_commit_index(root, record)

    def _entry_landed(self, root: int, record: JournalRecord) -> None:
        index = record.index
        key = (index, record.epoch, record.entry_hash)
        roots = self._votes.get(key, 0) | 1 << root
        self._votes[key] = roots
        self._last[root][index] = record.entry_hash
        is_vouched = self._covered[root] < index <= self._vouched[root]
        if self._checks_vouching and is_vouched and record.entry_hash != self.decided[index]:
            raise Violation(f"I5 root {root} replaces the decided value of {index} by another")
        if roots.bit_count() < self.majority:
            return
        if index < len(self.decided):
            if self.decided[index] != record.entry_hash:
                raise Violation(f"I1 two values decided at index {index}")
            self._epochs[index] = min(self._epochs[index], record.epoch)
        elif index > len(self.decided):
            raise Violation(f"I3 index {index} decided, {len(self.decided)} is not")
        else:
            for command in self.commands_of(record.payload):
                if command in self.commands:
                    raise Violation(f"I4 command {command.hex()} decided twice, again at {index}")
                self.commands[command] = index
            self.decided.append(record.entry_hash)
            self._epochs.append(record.epoch)

    def _check_commit_index(self, root: int, record: JournalRecord) -> None:
        commit_index = record.commit_index
        if commit_index >= len(self.decided):
            raise Violation(f"I5 commit index {commit_index} on root {root} covers an undecided index")
        if not self._checks_vouching:
            return
        last = self._last[root]
        for index in range(self._vouched[root] + 1, commit_index + 1):
            if last.get(index) != self.decided[index]:
                raise Violation(f"I5 root {root} vouches for index {index} without holding its value")
        self._vouched[root] = max(self._vouched[root], commit_index)

    def recovered(self, core: LedgerCore) -> None:
        """Check a claim that has just been completed."""
        epoch = core.proposer.epoch
        if epoch is None:
            return
        log = dict(core.prefix.hashes)
        proposal = core.proposer.proposal
        if proposal is not None and proposal.index == core.prefix.length:
            log[proposal.index] = proposal.entry_hash
        for index in range(max(0, core.prefix.base.index), len(self.decided)):
            if self._epochs[index] >= epoch:
                break
            if log.get(index) != self.decided[index]:
                raise Violation(f"I2 a claim in round {epoch.round} does not recover index {index}")

    def reported(self, core: LedgerCore, start: int) -> None:
        """Check what a process takes for decided, from index `start` on (nothing below can change)."""
        prefix = core.prefix
        first = max(start, prefix.base.index, 0)
        if [prefix.hashes[index] for index in range(first, prefix.length)] != self.decided[first : prefix.length]:
            raise Violation(f"I5 a process takes a value for decided that is not, from {start} on")

    def answered(self, index: int, commands: Sequence[bytes]) -> None:
        """Note that a caller was told that its commands are decided at an index."""
        if index >= len(self.decided):
            raise Violation(f"I1 index {index} is acknowledged and not decided")
        for command in commands:
            if self.commands.get(command) != index:
                raise Violation(f"I1 command {command.hex()} is acknowledged at {index}, which holds another value")
        self.acknowledged = max(self.acknowledged, index + 1)

    def refreshed(self, length: int, acknowledged_before: int) -> None:
        """Check a finished refresh: all that was acknowledged before it began is in it."""
        if length < acknowledged_before:
            raise Violation(f"I2 a refresh gives {length} entries, {acknowledged_before} were acknowledged")
