"""The owner's side: claim, re-propose the tail, commit, backfill. Pure.

One process incarnation uses an epoch once. Multi-Paxos with one entry in flight: a CLAIM on a
majority is phase 1 (its answer is the journal that had to be read to create it), an ENTRY is phase 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.ledger.reader import DecidedPrefix
from spark_replog.ledger.record import (
    NO_HASH,
    NO_INDEX,
    ZERO_EPOCH,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    entry_hash,
)
from spark_replog.ledger.snapshot_files import Base, Floor, Marker


@dataclass(slots=True)
class Proposal:
    """The one value in flight.

    Attributes:
        index: its ledger index.
        payload: its value.
        entry_hash: chained hash; the value's identity.
        epoch: under which it is proposed. One epoch never proposes two values for one index.
        is_recovered: it is the tail of an earlier owner, proposed again.
        is_confirmed: exactly this process's record was seen in a journal (decides with one root).
        is_sent: a create of it began.
    """

    index: int
    payload: bytes
    entry_hash: bytes
    epoch: Epoch
    is_recovered: bool
    is_confirmed: bool = False
    is_sent: bool = False


class Proposer:
    """Ownership of one ledger by one process incarnation.

    Attributes:
        epoch: the claimed or claiming epoch; None without one. With one root always ZERO_EPOCH.
        claimed: bit mask of the roots that hold this epoch's CLAIM.
        is_leading: the claim's majority is complete and its tail resolved.
        proposal: the value in flight.
        own: the last own value, while its fate is not known.
        owner_before: incarnation of the last other claimant before an own claim, zeros for none.
    """

    def __init__(self, prefix: DecidedPrefix, incarnation: bytes, *, round_step: int = 1) -> None:
        self.prefix = prefix
        self.incarnation = incarnation
        self.is_single = len(prefix.views) == 1
        self.epoch: Epoch | None = ZERO_EPOCH if self.is_single else None
        self.is_leading = self.is_single
        self.claimed = 0
        self.proposal: Proposal | None = None
        self.own: Proposal | None = None
        self.owner_before = ZERO_EPOCH.incarnation
        self._round = 0
        self._round_step = round_step

    def start_claim(self) -> None:
        """Take a higher epoch than any seen or used; only without one."""
        assert self.epoch is None and not self.is_single
        promised = self.prefix.promised()
        if promised.incarnation != self.incarnation:
            self.owner_before = promised.incarnation
        self._round = max(promised.round, self._round) + self._round_step
        self.epoch = Epoch(self._round, self.incarnation)
        assert self.epoch > promised

    def depose(self) -> None:
        """Give up the epoch."""
        self.epoch = None
        self.is_leading = False
        self.claimed = 0
        self.proposal = None

    def drop_unsent(self) -> None:
        """Drop an own value that is in flight and of which no create began: its caller gets an error that says so."""
        if self.proposal is self.own and self.own is not None and not self.own.is_sent:
            self.own = self.proposal = None

    def claimed_roots(self) -> list[int]:
        """Return the roots that hold this epoch's CLAIM."""
        return [root for root in range(len(self.prefix.views)) if self.claimed >> root & 1]

    def has_claim_majority(self) -> bool:
        """Return whether phase 1 is complete."""
        return self.claimed.bit_count() >= self.prefix.majority

    def is_tail_shown(self) -> bool:
        """Return whether the claimed roots alone show the tail decided, so that it needs no new ENTRY."""
        claimed = self.claimed_roots()
        return self.prefix.testify(self.prefix.tail_of(claimed), claimed)

    def finish_claim(self) -> None:
        """Lead: decide all below the tail, then take the tail as decided or propose it again.

        Roots outside the claim do not count: nothing stops them from taking older epochs' records.
        """
        assert self.epoch is not None and self.has_claim_majority() and not self.is_leading
        claimed = self.claimed_roots()
        tail = self.prefix.recover(claimed)
        self.is_leading = True
        if tail == NO_INDEX:
            return
        if self.prefix.testify(tail, claimed):
            if tail == self.prefix.length:
                self.prefix.decide(tail, self.prefix.best(tail, claimed))
            return
        payload = self.prefix.payloads[tail] if tail < self.prefix.length else self.prefix.best(tail, claimed).payload
        self.propose(payload, tail)

    def propose(self, payload: bytes, recovered: int | None = None) -> None:
        """Put a value in flight; only while leading and with none in flight.

        Args:
            recovered: the index of an earlier owner's value; None: a new value, at the next index.
        """
        assert self.is_leading and self.proposal is None and self.epoch is not None
        index = self.prefix.length if recovered is None else recovered
        digest = entry_hash(self.prefix.previous_hash(index), index, payload)
        self.proposal = Proposal(index, payload, digest, self.epoch, is_recovered=recovered is not None)

    def proposal_roots(self) -> int:
        """Return the bit mask of roots that hold the value in flight under its epoch."""
        proposal = self.proposal
        if proposal is None:
            return 0
        vote = self.prefix.votes.get(proposal.index, {}).get((proposal.epoch, proposal.entry_hash))
        return 0 if vote is None else vote.roots

    def claim_record(self, root: int, nonce: bytes) -> JournalRecord | None:
        """Return the CLAIM that the root still needs, None if it has it."""
        if self.claimed >> root & 1 or self.epoch is None:
            return None
        return JournalRecord(RecordKind.CLAIM, self.epoch, nonce, NO_INDEX, NO_INDEX, NO_HASH, self._known(), b"")

    def entry_record(self, root: int, nonce: bytes) -> JournalRecord | None:
        """Return the next ENTRY that the root needs: backfill, ascending, then the value in flight."""
        proposal = self.proposal
        if proposal is None:
            return None
        assert proposal.epoch == self.epoch
        prefix = self.prefix
        missing = prefix.views[root].matched + 1
        if missing < proposal.index:
            if missing not in prefix.payloads:
                return None  # the value is not kept here: a marker or another process brings the root up to date
            # Commit index <= j: a higher one would vouch for indexes that this root does not hold yet.
            index = commit_index = missing
            digest, payload = prefix.hashes[missing], prefix.payloads[missing]
        elif self.proposal_roots() >> root & 1:
            return None
        else:
            index, commit_index = proposal.index, proposal.index - 1
            digest, payload = proposal.entry_hash, proposal.payload
        last_known = self._known()
        return JournalRecord(RecordKind.ENTRY, proposal.epoch, nonce, index, commit_index, digest, last_known, payload)

    def lacks_entries(self, root: int) -> bool:
        """Return whether a root that was read lacks decided entries whose values are not kept here."""
        missing, prefix = self.prefix.views[root].matched + 1, self.prefix
        end = prefix.length if self.proposal is None else self.proposal.index
        return missing < end and missing not in prefix.payloads

    def marker_for(self, root: int, floor: Floor, base: Base, name: str) -> Marker | None:
        """Return the marker that gives a root a decided snapshot in place of entries whose values are not kept here.

        None if the root lacks none of them, the snapshot does not replace them, or entries that follow it are not kept.
        """
        view = self.prefix.views[root]
        missing = view.matched + 1
        if not self.lacks_entries(root) or base.index < max(missing, floor.base_index, self.prefix.base.index):
            return None
        # The root's last record stays, and no record below it may belong to an entry above the snapshot.
        is_below = view.top_index() <= base.index
        position = max(0, view.next_position - 1) if is_below else floor.position
        return Marker(position, base, name, floor.renewal)

    def _known(self) -> tuple[LastKnown, ...]:
        return () if self.is_single else tuple([view.last for view in self.prefix.views])
