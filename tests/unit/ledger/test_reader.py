"""The reader rule and the claim's rules on hand-made journals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import CorruptDataError
from spark_replog.ledger.proposer import Proposer
from spark_replog.ledger.reader import REBUILD_ROUND_STEP, DecidedPrefix
from spark_replog.ledger.record import (
    NO_HASH,
    NOTHING_KNOWN,
    Epoch,
    JournalRecord,
    LastKnown,
    RecordKind,
    entry_hash,
    genesis_hash,
)
from spark_replog.ledger.snapshot_files import Base, Marker

GENESIS = genesis_hash("ledger")


class Journals:
    """Three journals, written by hand and learned at once."""

    def __init__(self, root_count: int = 3) -> None:
        self.prefix = DecidedPrefix(root_count, GENESIS, lambda root: f"root {root}")
        self.hashes: dict[tuple[int, bytes], bytes] = {}

    def claim(self, root: int, round_: int) -> None:
        record = JournalRecord(RecordKind.CLAIM, epoch(round_), b"n" * 16, -1, -1, NO_HASH, (), b"")
        self.prefix.learn(root, record, 0)

    def entry(self, root: int, round_: int, index: int, payload: bytes, commit_index: int | None = None) -> None:
        previous = GENESIS if index == 0 else self.prefix.hashes[index - 1]
        record = JournalRecord(
            RecordKind.ENTRY,
            epoch(round_),
            b"n" * 16,
            index,
            index - 1 if commit_index is None else commit_index,
            entry_hash(previous, index, payload),
            (),
            payload,
        )
        self.prefix.learn(root, record, 0)

    def decided(self) -> list[bytes]:
        return [self.prefix.payloads[index] for index in range(self.prefix.length)]


def epoch(round_: int) -> Epoch:
    return Epoch(round_, bytes([round_]) * 16)


def test_a_majority_under_one_epoch_decides():
    journals = Journals()
    journals.entry(0, 1, 0, b"x")
    assert journals.decided() == []
    assert journals.prefix.is_ambiguous(0b100)
    assert not journals.prefix.is_ambiguous(0)
    journals.entry(2, 1, 0, b"x")
    assert journals.decided() == [b"x"]


def test_equal_values_of_different_epochs_decide_nothing():
    journals = Journals()
    journals.entry(0, 1, 0, b"x")  # e1 on A only
    journals.entry(1, 2, 0, b"y")  # e2 claimed B, C
    journals.entry(2, 3, 0, b"x")  # e3 claimed A, C and adopted x
    assert journals.decided() == []
    # e4 claims A, B: the highest epoch there is e2, so y it is.
    assert journals.prefix.best(0, [0, 1]).payload == b"y"


def test_commit_index_vouches_for_its_own_root_only():
    journals = Journals()
    journals.entry(0, 1, 0, b"x")
    journals.entry(1, 2, 0, b"y")
    journals.claim(1, 3)
    assert journals.decided() == []
    # Root 1 says that index 0 is decided: its own y, whatever root 0 holds.
    record = JournalRecord(RecordKind.CLAIM, epoch(4), b"n" * 16, -1, 0, NO_HASH, (), b"")
    journals.prefix.learn(1, record, 0)
    assert journals.decided() == [b"y"]


def test_a_commit_index_over_what_its_root_does_not_hold_says_nothing():
    journals = Journals()
    journals.entry(0, 1, 0, b"x")
    record = JournalRecord(RecordKind.CLAIM, epoch(2), b"n" * 16, -1, 0, NO_HASH, (), b"")
    journals.prefix.learn(1, record, 0)
    assert journals.decided() == []
    journals.entry(1, 3, 0, b"y")  # held from now on, but what vouched came before it
    assert journals.decided() == []


def test_a_claim_waits_for_the_others_unless_its_roots_show_the_tail():
    journals = Journals()
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b011
    assert proposer.is_tail_shown()  # nothing was ever proposed
    journals.entry(1, 1, 0, b"x")
    assert not proposer.is_tail_shown()
    journals.entry(0, 1, 0, b"x")
    assert proposer.is_tail_shown()


def test_a_deposed_owner_begins_its_next_claim_from_nothing():
    journals = Journals()
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b111
    proposer.finish_claim()
    proposer.propose(b"x")
    first = proposer.epoch
    proposer.depose()
    assert (proposer.epoch, proposer.is_leading, proposer.proposal) == (None, False, None)
    proposer.start_claim()
    assert proposer.epoch > first
    assert proposer.claimed_roots() == []
    assert all(proposer.claim_record(root, b"n" * 16) is not None for root in range(3))


def test_backfill_vouches_for_the_value_it_carries_not_the_one_before():
    journals = Journals()
    journals.entry(0, 1, 0, b"lost")
    journals.entry(0, 2, 0, b"decided", commit_index=0)
    assert journals.decided() == [b"decided"]


def test_root_that_missed_entries_needs_backfill_from_the_first_one():
    journals = Journals()
    for index in range(3):
        journals.entry(0, 1, index, b"%d" % index)
        journals.entry(1, 1, index, b"%d" % index)
    assert journals.decided() == [b"0", b"1", b"2"]
    assert [view.matched for view in journals.prefix.views] == [2, 2, -1]
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b11
    proposer.finish_claim()
    assert proposer.proposal is None  # the claimed roots show the tail decided
    proposer.propose(b"3")
    backfill = proposer.entry_record(2, b"n" * 16)
    assert (backfill.index, backfill.commit_index, backfill.payload) == (0, 0, b"0")
    in_flight = proposer.entry_record(0, b"n" * 16)
    assert (in_flight.index, in_flight.commit_index) == (3, 2)


def test_roots_outside_the_claim_do_not_testify():
    journals = Journals()
    journals.entry(0, 1, 0, b"x")
    journals.entry(1, 1, 0, b"x")
    assert journals.decided() == [b"x"]
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b110  # root 1 shows x, root 2 nothing, root 0 did not take the CLAIM
    assert not proposer.is_tail_shown()
    proposer.finish_claim()
    assert proposer.proposal is not None
    assert (proposer.proposal.index, proposer.proposal.payload) == (0, b"x")
    assert proposer.proposal.is_recovered


def test_a_claim_decides_what_lies_below_its_tail_by_the_highest_epoch():
    # No commit index tells: only what the claimed roots hold does.
    journals = Journals()
    journals.entry(0, 1, 0, b"lost", commit_index=-1)
    journals.entry(1, 2, 0, b"x", commit_index=-1)
    journals.entry(0, 3, 0, b"x", commit_index=-1)
    first = entry_hash(GENESIS, 0, b"x")
    for root in (0, 1):
        record = JournalRecord(RecordKind.ENTRY, epoch(3), b"n" * 16, 1, -1, entry_hash(first, 1, b"y"), (), b"y")
        journals.prefix.learn(root, record, 0)
    assert journals.decided() == []
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b011
    proposer.finish_claim()
    assert journals.decided() == [b"x", b"y"]
    assert proposer.proposal is None


def test_a_record_that_does_not_continue_its_own_journal_counts_for_nothing():
    journals = Journals()
    for root in (0, 1):
        journals.entry(root, 5, 0, b"x")
    chained = entry_hash(journals.prefix.hashes[0], 1, b"y")
    foreign = entry_hash(genesis_hash("another ledger"), 0, b"x")
    good = JournalRecord(RecordKind.ENTRY, epoch(5), b"n" * 16, 1, 0, chained, (), b"y")
    for bad in (
        replace(good, entry_hash=b"h" * 16),
        replace(good, payload=b"z"),
        replace(good, index=2),
        replace(good, epoch=epoch(4)),
        replace(good, epoch=Epoch(1 << 62, b"i" * 16)),
        replace(good, last_known=(NOTHING_KNOWN,) * 7),
        replace(good, index=0, entry_hash=foreign, payload=b"x"),
    ):
        prefix = Journals()
        for root in (0, 1):
            prefix.entry(root, 5, 0, b"x")
        prefix.prefix.learn(0, bad, 0)
        order = prefix.prefix.views[0].order
        assert order.fault is not None
        assert order.fault_position == 1
        prefix.prefix.learn(1, good, 0)
        assert prefix.decided() == [b"x"]
        prefix.prefix.learn(2, replace(good, index=0, entry_hash=prefix.prefix.hashes[0], payload=b"x"), 0)
        prefix.prefix.learn(2, good, 0)
        assert prefix.decided() == [b"x", b"y"]


def test_of_two_values_in_one_epoch_the_majority_wins():
    journals = Journals()
    journals.entry(0, 1, 0, b"damaged")
    journals.entry(1, 1, 0, b"x")
    assert journals.decided() == []
    with pytest.raises(CorruptDataError, match="root 0, root 1"):
        journals.prefix.best(0, [0, 1])
    journals.entry(2, 1, 0, b"x")
    assert journals.decided() == [b"x"]
    assert journals.prefix.conflicts == [(1, 0, 0)]


def test_one_journal_cannot_say_that_two_others_went_back():
    def claim(names: tuple[int, int, int]) -> JournalRecord:
        positions = tuple(LastKnown(position, 0) for position in names)
        return JournalRecord(RecordKind.CLAIM, epoch(2), b"n" * 16, -1, -1, NO_HASH, positions, b"")

    journals = Journals()
    for root in range(3):
        journals.entry(root, 1, 0, b"x")
    journals.prefix.learn(0, claim((0, 5000, 5000)), 0)
    assert journals.prefix.named.highest == [-1, -1, -1]
    journals.prefix.learn(1, claim((0, 0, 7)), 0)
    assert journals.prefix.named.highest == [-1, -1, 7]
    foreign = Journals()  # the first records of another ledger's journal, before its chain shows whose it is
    foreign.entry(1, 1, 0, b"x")
    foreign.prefix.learn(0, claim((0, 5000, 5000)), 0)
    assert foreign.prefix.named.highest == [-1, -1, -1]


def test_an_older_owners_entry_after_the_decided_value_is_backfilled():
    # Five roots. The value of epoch 1 is decided under epoch 3; root 0 took it first and then lost it again.
    journals = Journals(5)
    for root in (1, 2, 3):
        journals.entry(root, 3, 0, b"x")
    journals.entry(0, 1, 0, b"x")
    journals.entry(0, 2, 0, b"y")
    assert journals.decided() == [b"x"]
    proposer = Proposer(journals.prefix, b"p" * 16)
    proposer.start_claim()
    proposer.claimed = 0b01110
    proposer.finish_claim()
    proposer.propose(b"z")
    backfill = proposer.entry_record(0, b"n" * 16)
    # Else the commit index of the next ENTRY would vouch for root 0's own y.
    assert (backfill.index, backfill.payload) == (0, b"x")
    assert proposer.entry_record(1, b"n" * 16).index == 1


def test_values_are_released_only_when_every_root_holds_them():
    journals = Journals()
    for index in range(4):
        for root in (0, 1):
            journals.entry(root, 1, index, b"%d" % index)
    journals.prefix.release(4)
    assert sorted(journals.prefix.payloads) == [0, 1, 2, 3]
    journals.entry(2, 1, 0, b"0")
    journals.prefix.release(4)
    assert sorted(journals.prefix.payloads) == [1, 2, 3]


def test_a_marker_keeps_what_was_read_only_of_a_journal_that_is_in_order_and_read_up_to_it():
    def read() -> Journals:
        journals = Journals()
        for index, payload in enumerate((b"x", b"y")):
            for root in (0, 1):
                journals.entry(root, 1, index, payload)
        return journals

    base = Base(1, read().prefix.hashes[1], epoch(1))
    point = Marker(1, base, "").point(1)
    assert read().prefix.views[0].begin_at(point)
    assert not read().prefix.views[2].begin_at(point), "its records below the marker were never read"
    early = Journals()
    for root in (0, 1):
        early.entry(root, 1, 0, b"x")
    assert not early.prefix.views[0].begin_at(point), "the marker covers an entry that is not known here"
    opened = read()
    opened.entry(0, 1, 2, b"open")
    assert not opened.prefix.views[0].begin_at(point), "a record below the marker may count for an open entry"
    faulty = read()
    faulty.claim(0, 3)
    faulty.claim(0, 2)
    assert faulty.prefix.views[0].order.fault is not None
    assert not faulty.prefix.views[0].begin_at(point), "it is read again from the marker on"


def test_a_journal_that_begins_at_a_marker_is_rebuilt_from_the_markers_index_on():
    journals = Journals()
    for index, payload in enumerate((b"x", b"y")):
        for root in (0, 1):
            journals.entry(root, 1, index, payload)
    view, point = journals.prefix.views[0], Marker(1, Base(1, journals.prefix.hashes[1], epoch(1)), "").point(1)
    assert view.begin_at(point) and view.origin == point
    journals.claim(0, 3)
    journals.claim(0, 2)
    assert view.order.fault is not None
    rebuilt = Epoch(3 + REBUILD_ROUND_STEP, b"r" * 16)
    journals.prefix.learn(0, JournalRecord(RecordKind.CLAIM, rebuilt, b"n" * 16, -1, -1, NO_HASH, (), b""), 0)
    assert view.order.fault is None and view.matched == 1
    hash_of_z = entry_hash(journals.prefix.hashes[1], 2, b"z")
    journals.prefix.learn(0, JournalRecord(RecordKind.ENTRY, rebuilt, b"n" * 16, 2, 1, hash_of_z, (), b"z"), 0)
    assert view.order.fault is None
    assert view.entries == {2: (rebuilt, hash_of_z)}
