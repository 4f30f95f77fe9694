"""Each rule of the ledger, taken away, is caught: the simulation can fail.

The variants are those of docs/design/ledger-protocol.md that need no
truncation. Every one is looked for over a bounded number of seeds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.proposer import Proposer
from spark_replog.ledger.reader import DecidedPrefix, JournalView, Vote
from spark_replog.ledger.record import NO_INDEX, Epoch, JournalRecord, RecordKind
from spark_replog.ledger.root import Create, RootState
from tests.simulation.ledger_simulation import Parts, Scenario, Violation, simulate


def core_with(prefix: type[DecidedPrefix] | None = None, proposer: type[Proposer] | None = None) -> type[LedgerCore]:
    """Return a core whose reader or proposer is replaced."""

    class Broken(LedgerCore):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if prefix is not None:
                self.prefix.__class__ = prefix
            if proposer is not None:
                self.proposer.__class__ = proposer

    return Broken


class NoReproposal(Proposer):
    """Takes the tail that it finds for decided."""

    def finish_claim(self) -> None:
        claimed = self.claimed_roots()
        tail = self.prefix.recover(claimed)
        self.is_leading = True
        if tail != NO_INDEX and tail == self.prefix.length:
            self.prefix.decide(tail, self.prefix.best(tail, claimed))


class ForgetsTail(Proposer):
    """Neither proposes the tail again nor takes it over."""

    def finish_claim(self) -> None:
        self.prefix.recover(self.claimed_roots())
        self.is_leading = True


class NoBackfill(Proposer):
    """Puts the value in flight on roots that miss earlier ones."""

    def entry_record(self, root: int, nonce: bytes) -> JournalRecord | None:
        proposal = self.proposal
        if proposal is None or self.proposal_roots() >> root & 1:
            return None
        index = proposal.index
        place = index, index - 1, proposal.entry_hash
        return JournalRecord(RecordKind.ENTRY, proposal.epoch, nonce, *place, self._known(), proposal.payload)


class BackfillWithOwnersCommitIndex(Proposer):
    def entry_record(self, root: int, nonce: bytes) -> JournalRecord | None:
        record = super().entry_record(root, nonce)
        if record is None or self.proposal is None:
            return record
        return dataclasses.replace(record, commit_index=self.proposal.index - 1)


class OneRootsTail(DecidedPrefix):
    """A single journal's tail is enough."""

    def _winner(self, index: int) -> tuple[Vote, Epoch] | None:
        return next(((vote, vote.epoch) for vote in self.votes.get(index, {}).values()), None)


class EqualValuesOfAnyEpoch(DecidedPrefix):
    """Counts equal values, whatever their epochs."""

    def _winner(self, index: int) -> tuple[Vote, Epoch] | None:
        votes = list(self.votes.get(index, {}).values())
        for vote in votes:
            roots = 0
            for other in votes:
                if other.entry_hash == vote.entry_hash:
                    roots |= other.roots
            if roots.bit_count() >= self.majority:
                return vote, vote.epoch
        return super()._winner(index)


class TrustsEveryJournal(DecidedPrefix):
    """Counts records that do not continue their own journal."""

    def _check(self, view: JournalView, record: JournalRecord) -> bytes:
        view.order.epoch = max(view.order.epoch, record.epoch)
        before = record.index - 1
        if before < -1:
            return b""
        return self.previous_hash(record.index) if before < self.length else view.entries.get(before, (None, b""))[1]


class NewestCommitIndexAnyValue(TrustsEveryJournal):
    """A commit index read anywhere vouches for the value of the highest epoch read anywhere."""

    def _winner(self, index: int) -> tuple[Vote, Epoch] | None:
        votes = self.votes.get(index, {})
        if votes and index <= max(view.commit_index for view in self.views):
            return votes[max(votes)], max(votes)[0]
        return super()._winner(index)


class AnyRecordOfOurEpochIsOurs(LedgerCore):
    """EXISTS with a record of the own epoch counts as the create that was just tried."""

    def _learn(self, root: int, state: RootState, data: bytes, now_ms: float) -> None:
        pending = state.pending
        epoch = self.proposer.epoch
        if pending is not None and epoch is not None and epoch.incarnation in data[:40]:
            data = pending.data
        super()._learn(root, state, data, now_ms)


class GivesUpAndGoesOnePositionOn(LedgerCore):
    """A create without an answer is forgotten; the next one goes behind it."""

    def _create(self, root: int, state: RootState, position: int, record: JournalRecord) -> Create:
        if state.pending is not None and state.pending.position == position:
            view = self.prefix.views[root]
            view.next_position += 1
            position += 1
        return super()._create(root, state, position, record)


class NoNonce(LedgerCore):
    """Never knows its own record again after a lost answer."""

    def _learn_all(self, operation: Any, completion: Any, state: RootState, now_ms: float) -> None:
        state.pending = None
        super()._learn_all(operation, completion, state, now_ms)


class AnyValueAtItsIndexIsOurs(LedgerCore):
    """Tells its caller "decided" when its index is, whatever value won there."""

    def _settle(self) -> None:
        proposal = self.proposer.own
        super()._settle()
        if proposal is not None and self.proposer.own is None:
            self.settled = (proposal.index, True)


BUSY = Scenario(owner_count=3, reader_count=1, lost=0.15, stall=0.05, crash=0.03, outages=2)
CROWD = Scenario(owner_count=4, reader_count=3, lost=0.12, stall=0.08, crash=0.05, outages=3, emptied=False)
ONE_ROOT = Scenario(root_count=1, owner_count=2, lost=0.15, outages=1, emptied=False)

# Each with the invariant that it breaks.
VARIANTS = {
    "blind put instead of create-if-absent": ("I1", BUSY, Parts(overwrites=True)),
    "tail taken over without a new proposal": ("I5", BUSY, Parts(core_with(proposer=NoReproposal))),
    "tail forgotten": ("I2", BUSY, Parts(core_with(proposer=ForgetsTail))),
    "no backfill, reader trusts one root's commit index": (
        "I5",
        BUSY,
        Parts(core_with(prefix=TrustsEveryJournal, proposer=NoBackfill), checks_vouching=False),
    ),
    "one root's tail": ("I5", BUSY, Parts(core_with(prefix=OneRootsTail))),
    "equal values of different epochs": ("I5", CROWD, Parts(core_with(prefix=EqualValuesOfAnyEpoch))),
    "backfill carries the owner's commit index": (
        "I5",
        BUSY,
        Parts(core_with(proposer=BackfillWithOwnersCommitIndex)),
    ),
    "newest commit index, any root's value, no backfill": (
        "I5",
        BUSY,
        Parts(core_with(prefix=NewestCommitIndexAnyValue, proposer=NoBackfill), checks_vouching=False),
    ),
    "any record of our epoch counts as ours": ("I5", BUSY, Parts(AnyRecordOfOurEpochIsOurs)),
    "gives up and goes one position on": ("I6", BUSY, Parts(GivesUpAndGoesOnePositionOn)),
    "one root, neither nonce nor identities": ("I4", ONE_ROOT, Parts(NoNonce, has_identities=False)),
    "the value decided at its index is taken for its own": ("I1", BUSY, Parts(AnyValueAtItsIndexIsOurs)),
}
SEEDS_MAX = 6000


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("name", VARIANTS)
def test_broken_variant_is_caught(name: str) -> None:
    invariant, scenario, parts = VARIANTS[name]
    for seed in range(SEEDS_MAX):
        try:
            simulate(seed, scenario, parts)
        except Violation as violation:
            if str(violation).startswith(invariant):
                return
    pytest.fail(f"{name}: {invariant} is not broken in {SEEDS_MAX} schedules")


@pytest.mark.parametrize("scenario", [BUSY, CROWD, ONE_ROOT], ids=["busy", "crowd", "one root"])
def test_the_same_schedules_hold_with_every_rule(scenario: Scenario) -> None:
    for seed in range(200):
        simulate(seed, scenario)


def test_one_root_with_identities_needs_no_nonce() -> None:
    for seed in range(300):
        simulate(seed, ONE_ROOT, Parts(NoNonce))
