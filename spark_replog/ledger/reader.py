"""The decided prefix, from nothing but records that lie in journals. Pure.

Index i is decided when for some ONE epoch a majority of journals hold ENTRY(epoch, i). A commit
index c in a record on root r vouches for r's own last ENTRY(i) before that record, i <= c, and for
no other root's value. Truncation will add: records below a root's marker count for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ledger.record import (
    NO_INDEX,
    NOTHING_KNOWN,
    ZERO_EPOCH,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    entry_hash,
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


class Vote:
    """One value proposed for one index under one epoch, and the roots that were seen to hold it."""

    __slots__ = ("entry_hash", "epoch", "payload", "roots")

    def __init__(self, epoch: Epoch, hash_: bytes, payload: bytes) -> None:
        self.epoch = epoch
        self.entry_hash = hash_
        self.payload = payload
        self.roots = 0


class DecidedPrefix:
    """Votes above the decided prefix, and the prefix itself.

    Args:
        root_count: metadata roots of the ledger.
        genesis: the hash before index 0 (``record.genesis_hash``).
        root_name: names a root in errors.

    Attributes:
        hashes: entry hash per decided index.
        payloads: value per decided index, as long as one is not folded or some root misses it (a root
            that was away is backfilled from here); the last one always.
        last_epoch: under which the last decided entry was seen to be decided.
        named: per root the highest position that records elsewhere say it holds.
    """

    def __init__(self, root_count: int, genesis: bytes, root_name: Callable[[int], str]) -> None:
        self.majority = root_count // 2 + 1
        self.views = [JournalView() for _ in range(root_count)]
        self.hashes: list[bytes] = []
        self.payloads: dict[int, bytes] = {}
        self.named = [NO_INDEX] * root_count
        self.tail_index = NO_INDEX
        self.last_epoch: Epoch = ZERO_EPOCH
        self._votes: dict[int, dict[Epoch, Vote]] = {}
        self._vouched: dict[int, Vote] = {}
        self._released = 0
        self._genesis = genesis
        self._root_name = root_name

    @property
    def length(self) -> int:
        """Number of decided entries known; it never shrinks (the floor of this process)."""
        return len(self.hashes)

    def learned_count(self) -> int:
        """Return how many records were learned, over all roots."""
        return sum(view.next_position for view in self.views)

    def promised(self) -> Epoch:
        """Return the highest epoch in any journal."""
        return max(view.promised for view in self.views)

    def previous_hash(self, index: int) -> bytes:
        """Return the hash that ENTRY(index) chains to."""
        return self.hashes[index - 1] if index else self._genesis

    def learn(self, root: int, record: JournalRecord, crc: int) -> None:
        """Take in the next record of a root, and extend the prefix by what it decides.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the hash chain does not fit, or one epoch holds two values.
        """
        view = self.views[root]
        position = view.next_position
        view.learn(record, crc)
        for other, known in enumerate(record.known):
            if known.position > self.named[other]:
                self.named[other] = known.position
        if record.kind is RecordKind.ENTRY:
            index = record.index
            if index > self.tail_index:
                self.tail_index = index
            # The last decided index stays: a claim asks which of ITS roots show the tail decided.
            if index >= len(self.hashes) - 1:
                self._vote(root, position, record)
            if index < len(self.hashes):
                view.match(self.hashes)
        # Its own ENTRY first: a backfill record for j says by its commit index j that j is decided.
        if record.commit_index >= len(self.hashes):
            self._vouch(view, record.commit_index)
        self._extend()

    def _vote(self, root: int, position: int, record: JournalRecord) -> None:
        votes = self._votes.setdefault(record.index, {})
        vote = votes.get(record.epoch)
        if vote is None:
            vote = votes[record.epoch] = Vote(record.epoch, record.entry_hash, record.payload)
        elif vote.entry_hash != record.entry_hash:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self._root_name(root)} holds a second value for ledger index {record.index} in one epoch. "
                "Two processes used one incarnation id; run `replog store verify`.",
                position=position,
            )
        vote.roots |= 1 << root

    def _vouch(self, view: JournalView, commit_index: int) -> None:
        for index in range(len(self.hashes), commit_index + 1):
            last = view.entries.get(index)
            if last is not None and index not in self._vouched:
                self._vouched[index] = self._votes[index][last[0]]

    def _winner(self, index: int) -> Vote | None:
        vouched = self._vouched.get(index)
        if vouched is not None:
            return vouched
        for vote in self._votes.get(index, {}).values():
            if vote.roots.bit_count() >= self.majority:
                return vote
        return None

    def _extend(self) -> None:
        while True:
            index = len(self.hashes)
            if index not in self._votes:
                return
            winner = self._winner(index)
            if winner is None:
                return
            self.decide(index, winner)

    def decide(self, index: int, vote: Vote) -> None:
        """Append the value of the next index; checks the hash chain.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE.
        """
        if entry_hash(self.previous_hash(index), index, vote.payload) != vote.entry_hash:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"The hash chain breaks at ledger index {index}: its entry does not continue the decided one "
                "before it. Run `replog store verify`.",
                index=index,
            )
        self.hashes.append(vote.entry_hash)
        self.last_epoch = vote.epoch
        self.payloads[index] = vote.payload
        self._votes.pop(index - 1, None)
        self._vouched.pop(index, None)
        for view in self.views:
            view.match(self.hashes)

    def release(self, folded_length: int) -> None:
        """Forget values that are folded and that every root is known to hold."""
        limit = min(folded_length, len(self.hashes) - 1, min(view.matched for view in self.views) + 1)
        while self._released < limit:
            del self.payloads[self._released]
            self._released += 1

    def vote_roots(self, index: int, epoch: Epoch) -> int:
        """Return the bit mask of roots seen to hold ENTRY(epoch, index)."""
        vote = self._votes.get(index, {}).get(epoch)
        return vote.roots if vote is not None else 0

    def is_ambiguous(self, missing_roots: int) -> bool:
        """Return whether the next index may be decided, given roots that did not answer (bit mask)."""
        index = len(self.hashes)
        if self.tail_index > index:
            return True
        votes = self._votes.get(index)
        return votes is not None and any(
            (vote.roots | missing_roots).bit_count() >= self.majority for vote in votes.values()
        )

    def has_undecided_tail(self) -> bool:
        """Return whether some root holds an ENTRY above the decided prefix."""
        return self.tail_index >= len(self.hashes)

    def tail_of(self, claimed: Sequence[int]) -> int:
        """Return the last index that may be decided, as the roots of a claim show it; NO_INDEX for none."""
        return max(max(self.views[root].highest_index() for root in claimed), len(self.hashes) - 1)

    def recover(self, claimed: Sequence[int]) -> int:
        """Decide all below the tail by what the roots of a claim hold; return the tail's index.

        ENTRY(i) is created only after i-1 was decided, so below the last index the value of the
        highest epoch on a claimed majority is the decided one.

        Raises:
            CorruptDataError: CORRUPT_MESSAGE: the claimed roots have a hole.
        """
        tail = self.tail_of(claimed)
        while len(self.hashes) < tail:
            index = len(self.hashes)
            self.decide(index, self.best(index, claimed))
        return tail

    def best(self, index: int, claimed: Sequence[int]) -> Vote:
        """Return the value of the highest epoch that the claimed roots' last ENTRY(index) hold."""
        found = [self.views[root].entries[index] for root in claimed if index in self.views[root].entries]
        if not found:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"No root of a claimed majority holds ledger index {index}, and one holds a later index. "
                "Run `replog store verify`.",
                index=index,
            )
        return self._votes[index][max(found)[0]]

    def testify(self, index: int, claimed: Sequence[int]) -> bool:
        """Return whether the claimed roots ALONE show the index decided, by the reader rule."""
        mask = sum(1 << root for root in claimed)
        if any(self.views[root].commit_index >= index for root in claimed):
            return True
        return any((vote.roots & mask).bit_count() >= self.majority for vote in self._votes.get(index, {}).values())
