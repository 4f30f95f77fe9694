"""The result of reading journals: one root's view, and the decided prefix over all roots. Pure.

Index i is decided when for some ONE epoch a majority of journals hold ENTRY(epoch, i). A commit index c in a record on
root r vouches for r's own last ENTRY(i) up to that record, i <= c, and for no other root's value.
A record counts only if it continues its own root's journal: so a damaged journal, or another ledger's, is detected
without the other roots and cannot stop them.
A prefix may begin at a base instead of entry 0: a decided index whose state a snapshot holds. A journal may begin at a
marker's position: its records of entries up to the marker's index do not count. Source: docs/format-journal.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ledger.record import NO_INDEX, ZERO_EPOCH, Epoch, JournalRecord, LastKnown, RecordKind, entry_hash
from spark_replog.ledger.snapshot_files import Base, Floor, JournalPoint
from spark_replog.quorum import majority_of

REBUILD_ROUND_STEP = 1 << 32
"""How far above every seen round a rebuild claims: more claims than one root could ever take alone."""
ROUND_STEP_MAX = 1 << 40
"""A round that is further above its predecessor is damage."""


ORIGIN = JournalPoint()
PAYLOADS_KEPT_MAX = 4096
PAYLOADS_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""With more values in memory than this, those up to the last snapshot are dropped even if a root lacks them."""


class JournalOrder:
    """Checks that the records of one journal follow each other as an acceptor takes them.

    Epochs do not decrease, and ENTRY(i) comes after ENTRY(i - 1). A journal that is rebuilt while others write, or by
    two processes at once, may break this for a while. Nothing is deleted then, because the other process may just have
    written it. Instead the rebuild claims again with a far higher round, which ends the fault, and then writes every
    decided entry again.

    Attributes:
        epoch: the highest so far.
        last_index: the journal has ENTRY 0 .. last_index, in order, since the last claim that ended a fault.
        fault: the first fault, None for none.
        fault_position: position of the record that showed it.
    """

    def __init__(self, origin: JournalPoint = ORIGIN) -> None:
        self.epoch = origin.promised
        self.last_index = self._first_index = origin.last_index
        self.fault: str | None = None
        self.fault_position = 0

    def take(self, record: JournalRecord, position: int) -> bool:
        """Check the next record; return whether it ended a fault, after which all entries follow again."""
        is_claim = record.kind is RecordKind.CLAIM
        step = record.epoch.round - self.epoch.round
        if step > ROUND_STEP_MAX and not (position and self.epoch == ZERO_EPOCH):
            self.note(f"its round {record.epoch.round} is far above the one before it, {self.epoch.round}", position)
            return False
        if self.fault is not None and is_claim and step >= REBUILD_ROUND_STEP // 2:
            self.fault, self.last_index, self.epoch = None, self._first_index, record.epoch
            return True
        if record.epoch < self.epoch:
            self.note("its epoch is below that of the record before it", position)
        self.epoch = max(self.epoch, record.epoch)
        if not is_claim and record.index > self.last_index + 1:
            self.note(f"it holds entry {record.index}, and the journal has no entry {record.index - 1}", position)
        elif not is_claim:
            self.last_index = max(self.last_index, record.index)
        return False

    def begin_at(self, point: JournalPoint) -> None:
        """Let the journal begin at a marker: after a rebuild its entries follow from there."""
        assert self.fault is None and point.last_index <= self.last_index
        self._first_index = point.last_index

    def note(self, fault: str, position: int) -> None:
        """Remember the first fault."""
        if self.fault is None:
            self.fault, self.fault_position = fault, position


class JournalView:
    """The acceptor state that the records of a write-once journal without gaps produce.

    A record at position p may be created only by a process that has learned 0 .. p-1, so one successful create is one
    atomic acceptor step on exactly this state.

    Attributes:
        origin: the constructor's argument.
        next_position: first position not learned; the only one where a create makes sense.
        order: checks that the records follow each other. While it has a fault, records do not count.
        promised: highest epoch in the journal.
        last: position and CRC32C of the last learned record.
        commit_index: highest commit index on this root.
        entries: index -> (epoch, entry hash) of this root's LAST ENTRY there, above `matched` only.
        matched: up to here the root's last ENTRY of every index is the decided one and will remain it, or its marker
            covers the index.
    """

    def __init__(self, origin: JournalPoint = ORIGIN) -> None:
        self.origin = origin
        self.next_position = origin.position
        self.order = JournalOrder(origin)
        self.promised = origin.promised
        self.last = LastKnown(origin.position - 1, origin.last_crc)
        self.commit_index = self.matched = origin.matched
        self.entries: dict[int, tuple[Epoch, bytes]] = {}
        self._tail = (NO_INDEX, origin)  # the highest index, and the point before its first record

    def learn(self, record: JournalRecord, crc: int) -> None:
        """Add the record at `next_position`, which `order` has checked; it counts unless there is a fault."""
        if record.kind is RecordKind.ENTRY and record.index > self._tail[0]:
            last_index = min(self.order.last_index, record.index - 1)
            before = JournalPoint(self.next_position, self.promised, self.last.crc, self.matched, last_index)
            self._tail = record.index, before
        self.last = LastKnown(self.next_position, crc)
        self.next_position += 1
        self.promised = self.order.epoch
        if self.order.fault is not None:
            return
        if record.kind is RecordKind.ENTRY and record.index > self.matched:
            self.entries[record.index] = (record.epoch, record.entry_hash)
        self.commit_index = max(self.commit_index, record.commit_index)

    def restart(self) -> None:
        """Forget the entries: a rebuild writes all of them again."""
        self.entries.clear()
        self.matched = self.commit_index = self.origin.matched

    def begin_at(self, point: JournalPoint) -> bool:
        """Let the journal begin at a marker, and keep what was read of it; return False if it must be read again.

        Each record read is true, because a look that found no newer marker came after it. They are kept if the journal
        was read up to the marker and all of its entries are decided, up to the marker's index at least: then no record
        below the marker counts for anything that is still open.
        """
        if point.position <= self.origin.position and point.matched <= self.origin.matched:
            return True
        is_known = point.position <= self.next_position and self.order.fault is None
        if not is_known or self.entries or self.matched < point.matched:
            return False
        self.origin = point
        self.order.begin_at(point)
        return True

    def top_index(self) -> int:
        """Return the highest index of any record that this journal ever had, as far as it is known."""
        return max(self.origin.last_index, self._tail[0])

    def point_at(self, base: Base, floor: Floor) -> JournalPoint | None:
        """Return where to read on for a snapshot with this base: after all of its records, before those of the next.

        None if that is no longer known.
        """
        index, (highest, before) = base.index, self._tail
        if highest > index + 1 or self.order.fault is not None:
            return None
        if highest <= index:
            before = JournalPoint(self.next_position, self.promised, self.last.crc, 0, self.order.last_index)
        is_held = self.entries.get(index, (ZERO_EPOCH, b""))[1] == base.entry_hash and before.last_index == index
        return before._replace(matched=min(self.matched, index), is_held=is_held, floor=floor)

    def match(self, prefix: DecidedPrefix, *, is_final: bool = False) -> None:
        """Advance `matched` over indexes whose last ENTRY here is the decided one.

        Until the journal has promised an epoch from which on no ENTRY has another value, an older owner's ENTRY may
        still follow.

        Args:
            prefix: the decided entries.
            is_final: the journal was read to its end and has no writer.
        """
        while self.matched < prefix.length - 1:
            index = self.matched + 1
            entry, decided = self.entries.get(index), prefix.hashes.get(index)
            if decided is None:
                # The prefix begins later: if the base's entry matches, so do all entries before it in the hash chain.
                index = prefix.base.index
                entry, decided = self.entries.get(index), prefix.base.entry_hash
            if entry is None or entry[1] != decided or not (is_final or self.promised >= prefix.epochs[index]):
                return
            for number in [index] if index == self.matched + 1 else [key for key in self.entries if key <= index]:
                del self.entries[number]
            self.matched = index


@dataclass(slots=True, eq=False)
class Vote:
    """One value proposed for one index under one epoch, and the roots (bit mask) that hold it.

    Attributes:
        voucher: a root whose later record vouches for its ENTRY, so that it is decided, and that record's epoch.
    """

    epoch: Epoch
    entry_hash: bytes
    payload: bytes
    previous: bytes
    roots: int = 0
    voucher: tuple[int, Epoch] | None = None


class NamedPositions:
    """Per root the highest position that other roots' records name there.

    With two or more other roots, two must name it: one damaged journal cannot put the others out of use.
    """

    def __init__(self, root_count: int) -> None:
        self.highest = [NO_INDEX] * root_count
        self._by_root = [[NO_INDEX] * root_count for _ in range(root_count)]

    def note(self, root: int, last_known: Sequence[LastKnown], heard: Sequence[int]) -> None:
        """Add what a root's record names; only the roots `heard` count."""
        for other, last in enumerate(last_known):
            self._by_root[other][root] = max(self._by_root[other][root], last.position)
        for other in range(len(last_known)):
            named = sorted([self._by_root[other][witness] for witness in heard if witness != other])
            if named:
                self.highest[other] = named[-2:][0]


class DecidedPrefix:
    """Votes above the decided prefix, and the prefix itself.

    Attributes:
        base: where it begins; everything up to its index is decided, and those values are not kept here.
        snapshot_name: of the snapshot that it began with, "" for entry 0.
        length: number of decided entries known; it never shrinks.
        hashes: entry hash per decided index, from the base's on.
        epochs: per decided index, from the base's on, an epoch from which on no ENTRY for it has another value.
        votes: per index from the last decided one on, the proposed values by epoch.
        payloads: value per decided index, until it is folded and every root holds it (roots that were away are
            backfilled from here); the last one always, except the base's. `release` describes what else is kept.
        named: the positions that records of other roots name.
        learned_count: changes with every record that is learned, and when a journal is read from another position.
        root_name: what a root is called in errors.
        conflicts: (root, position, index) of records that give an index a second value in one epoch: that root's
            journal is damaged, or the one read before it. The majority's value wins.
    """

    def __init__(self, root_count: int, genesis: bytes, root_name: Callable[[int], str]) -> None:
        self.majority = majority_of(root_count)
        self.views = [JournalView() for _ in range(root_count)]
        self.base = Base()
        self.snapshot_name = ""
        self.length = 0
        self.hashes: dict[int, bytes] = {}
        self.payloads: dict[int, bytes] = {}
        self.payload_bytes = 0
        self.named = NamedPositions(root_count)
        self.tail_index = NO_INDEX
        self.learned_count = 0
        self.conflicts: list[tuple[int, int, int]] = []
        self.epochs: dict[int, Epoch] = {}
        self.votes: dict[int, dict[tuple[Epoch, bytes], Vote]] = {}
        self._genesis = genesis
        self.root_name = root_name

    def begun_again(self) -> DecidedPrefix:
        """Return a prefix that begins with entry 0, to read all journals again; what records have named stays."""
        made = DecidedPrefix(len(self.views), self._genesis, self.root_name)
        made.named, made.learned_count = self.named, self.learned_count + 1
        return made

    def base_at(self, index: int) -> Base:
        """Return a decided index as the base of a snapshot."""
        return Base(index, self.hashes[index], self.epochs[index])

    def jump(self, base: Base, snapshot_name: str = "") -> bool:
        """Begin with a base beyond the known prefix; return False if it is not beyond.

        The entries between are not known here: a state must be restored from the snapshot of this name.
        """
        if base.index < self.length:
            return False
        self.snapshot_name = snapshot_name
        self.base, self.length, self.tail_index = base, base.index + 1, max(self.tail_index, base.index)
        self.hashes, self.epochs = {base.index: base.entry_hash}, {base.index: base.epoch}
        self.payloads.clear()
        self.payload_bytes = 0
        self.votes = {index: votes for index, votes in self.votes.items() if index > base.index}
        for view in self.views:
            view.match(self)
        self._extend()
        return True

    def set_view(self, root: int, origin: JournalPoint) -> None:
        """Read a root's journal from here on; what was read of it before no longer counts."""
        view = self.views[root] = JournalView(origin)
        self.learned_count += 1
        if origin.is_held and origin.last_index in self.hashes:
            view.entries[origin.last_index] = origin.promised, self.hashes[origin.last_index]
            view.match(self)
        for votes in self.votes.values():
            for vote in votes.values():
                vote.roots &= ~(1 << root)
                if vote.voucher is not None and vote.voucher[0] == root:
                    vote.voucher = None
        self.votes = {
            index: kept
            for index, votes in self.votes.items()
            if (kept := {key: vote for key, vote in votes.items() if vote.roots})
        }
        self.tail_index = max([self.length - 1, *self.votes])

    def promised(self) -> Epoch:
        """Return the highest epoch in any journal."""
        return max(view.promised for view in self.views)

    def previous_hash(self, index: int) -> bytes:
        """Return the hash that ENTRY(index) chains to."""
        return self.hashes[index - 1] if index else self._genesis

    def learn(self, root: int, record: JournalRecord, crc: int) -> None:
        """Add the next record of a root, and extend the prefix by the entries that it decides.

        A record that does not continue its own journal does not count, and leaves a fault in ``views[root].order``.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the hash chain of a majority's values breaks.
        """
        view = self.views[root]
        position = view.next_position
        previous = self._check(view, record)
        self.learned_count += 1
        view.learn(record, crc)
        if view.order.fault is not None:
            return
        if record.last_known:
            # A journal whose hash chain has not begun may be another ledger's.
            heard = [number for number, other in enumerate(self.views) if other.matched > NO_INDEX or other.entries]
            self.named.note(root, record.last_known, heard)
        if record.kind is RecordKind.ENTRY:
            self.tail_index = max(self.tail_index, record.index)
            # The last decided index stays: a claim asks which of ITS roots show the tail decided.
            if record.index > max(self.length - 2, self.base.index, view.origin.matched):
                self._vote(root, position, record, previous)
        view.match(self)
        # After its own ENTRY: the commit index j of a backfill record for j vouches for that record.
        if record.commit_index >= self.length:
            for index in range(self.length, min(record.commit_index, self.tail_index) + 1):
                votes, last = self.votes.get(index, {}), view.entries.get(index)
                if last is not None and all(vote.voucher is None for vote in votes.values()):
                    votes[last].voucher = root, record.epoch
        self._extend()
        assert view.matched < self.length

    def _check(self, view: JournalView, record: JournalRecord) -> bytes:
        """Return the hash that the record continues on its own root; note a fault if it continues none."""
        order, position, index = view.order, view.next_position, record.index
        if order.take(record, position):
            view.restart()
        if len(self.views) == 1 and (record.epoch != ZERO_EPOCH or record.kind is not RecordKind.ENTRY):
            order.note("it belongs to a ledger of several roots", position)
        if len(record.last_known) not in (0, len(self.views)):
            order.note(f"it names {len(record.last_known)} roots, and the ledger has {len(self.views)}", position)
        if order.fault is not None or record.kind is not RecordKind.ENTRY:
            return b""
        if index <= view.origin.matched:
            return b""  # the snapshot holds it, whatever this root once accepted
        if index - 1 <= view.matched:
            previous = self.hashes.get(index - 1) if index else self._genesis
        else:
            previous = view.entries.get(index - 1, (ZERO_EPOCH, self.hashes.get(index - 1)))[1]
        if index <= view.matched and record.entry_hash != self.hashes.get(index, record.entry_hash):
            order.note(f"it replaces the decided entry {index} by another", position)
        elif previous is None and index > self.base.index:
            order.note(f"it holds entry {index}, and nothing it could continue", position)
        elif previous is not None and not self._continues(record, previous):
            order.note(f"the hash chain breaks at entry {index}", position)
        return previous or b""

    def _continues(self, record: JournalRecord, previous: bytes) -> bool:
        vote = self.votes.get(record.index, {}).get((record.epoch, record.entry_hash))
        if vote is not None and vote.payload == record.payload:
            return vote.previous == previous
        return entry_hash(previous, record.index, record.payload) == record.entry_hash

    def lacking(self, root: int, last: int | None = None) -> int:
        """Return how many decided entries a root's journal lacks, as far as it was read."""
        view, last = self.views[root], self.length - 1 if last is None else last
        entries = view.entries.items()  # an entry that the hash chain shows to be the decided one follows all before it
        held = [index for index, (_, value) in entries if index <= last and value == self.hashes.get(index)]
        return max(0, last - max(held, default=view.matched))

    def is_behind(self, root: int, lacking_count: int) -> bool:
        """Return whether a journal that lacks this number of entries is behind: not if it lacks only the newest one.

        That one may be on its way, and it stays away if its process ended once a majority had it. A journal without
        any entry is behind.
        """
        view = self.views[root]
        return lacking_count > 1 or (lacking_count == 1 and view.matched == NO_INDEX and not view.entries)

    def _vote(self, root: int, position: int, record: JournalRecord, previous: bytes) -> None:
        index = record.index
        votes = self.votes.setdefault(index, {})
        key = (record.epoch, record.entry_hash)
        vote = votes.get(key)
        if vote is None:
            vote = votes[key] = Vote(*key, record.payload, previous)
            if any(rival.epoch == record.epoch and rival is not vote for rival in votes.values()):
                self.conflicts.append((root, position, index))
        vote.roots |= 1 << root

    def _winner(self, index: int) -> tuple[Vote, Epoch] | None:
        """Return the decided value, and an epoch from which on no ENTRY for the index has another value."""
        votes = self.votes[index].values()
        for vote in votes:
            if vote.voucher is not None:
                return vote, vote.voucher[1]
        for vote in votes:
            if vote.roots.bit_count() >= self.majority:
                return vote, vote.epoch
        return None

    def _extend(self) -> None:
        while self.length in self.votes and (winner := self._winner(self.length)) is not None:
            self.decide(self.length, *winner)

    def decide(self, index: int, vote: Vote, epoch: Epoch | None = None) -> None:
        """Append the value of the next index; checks the hash chain. Raises CorruptDataError: CORRUPT_MESSAGE."""
        assert index == self.length
        if vote.previous != self.previous_hash(index):
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"The hash chain breaks at ledger index {index}: the entry on {self._names_of(vote.roots)} does not "
                "continue the decided one before it. Run `replog store verify`.",
                index=index,
            )
        self.hashes[index] = vote.entry_hash
        self.epochs[index] = max(vote.epoch, epoch or vote.epoch)
        self.payloads[index] = vote.payload
        self.payload_bytes += len(vote.payload)
        self.length += 1
        self.votes.pop(index - 1, None)
        for view in self.views:
            view.match(self)

    def _names_of(self, roots: int) -> str:
        return ", ".join(self.root_name(root) for root in range(len(self.views)) if roots >> root & 1)

    def release(self, folded_length: int, snapshot_index: int | None = None) -> None:
        """Forget values that are folded and that every root is known to hold.

        Args:
            folded_length: entries that are folded.
            snapshot_index: of the last decided snapshot, -1 before the first; None for a state without snapshots.
                Values above it are kept too while there is room. Without room, values up to it are dropped, and roots
                that lack them get a marker.
        """
        limit = held = min(folded_length, self.length - 1, min([view.matched for view in self.views]) + 1)
        if snapshot_index is not None:
            is_full = len(self.payloads) > PAYLOADS_KEPT_MAX or self.payload_bytes > PAYLOADS_KEPT_BYTES_MAX
            after = min(snapshot_index + 1, folded_length, self.length - 1)
            limit = max(held, after) if is_full else min(held, after)
        while self.base.index < limit - 1:
            index = self.base.index + 1
            self.payload_bytes -= len(self.payloads.pop(index))
            self.base = self.base_at(index)
            self.hashes.pop(index - 1, None)
            self.epochs.pop(index - 1, None)

    def is_ambiguous(self, missing_roots: int) -> bool:
        """Return whether the next index may be decided, given roots that did not answer (bit mask)."""
        index = self.length
        if self.tail_index > index:
            return True
        votes = self.votes.get(index, {}).values()
        return any((vote.roots | missing_roots).bit_count() >= self.majority for vote in votes)

    def tail_of(self, claimed: Sequence[int]) -> int:
        """Return the last index that may be decided, as the roots of a claim show it; NO_INDEX for none."""
        views = [self.views[root] for root in claimed]
        return max(self.length - 1, *(max(view.entries, default=view.matched) for view in views))

    def recover(self, claimed: Sequence[int]) -> int:
        """Decide all indexes below the tail from the entries on the roots of a claim; return the tail's index.

        ENTRY(i) is created only after i-1 was decided, so below the last index the value of the highest epoch on a
        claimed majority is the decided one.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the claimed roots hold two values of one epoch.
        """
        tail = self.tail_of(claimed)
        while self.length < tail:
            self.decide(self.length, self.best(self.length, claimed))
        return tail

    def best(self, index: int, claimed: Sequence[int]) -> Vote:
        """Return the value of the highest epoch that the claimed roots' last ENTRY(index) hold."""
        last_entries = {root: self.views[root].entries[index] for root in claimed if index in self.views[root].entries}
        assert last_entries, "a journal that holds a later entry holds this one"
        top = max(last_entries.values())
        rivals = sum(1 << root for root, entry in last_entries.items() if entry[0] == top[0])
        if any(entry[0] == top[0] and entry != top for entry in last_entries.values()):
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Ledger index {index} cannot be decided: {self._names_of(rivals)} hold different values of one epoch. "
                "Bring the other metadata roots back, then run `replog store verify`.",
                index=index,
            )
        return self.votes[index][top]

    def testify(self, index: int, claimed: Sequence[int]) -> bool:
        """Return whether the claimed roots ALONE show the index decided, by the reader rule, or a snapshot holds it."""
        if index <= self.base.index or any(self.views[root].commit_index >= index for root in claimed):
            return True
        mask = sum(1 << root for root in claimed)
        return any((vote.roots & mask).bit_count() >= self.majority for vote in self.votes.get(index, {}).values())
