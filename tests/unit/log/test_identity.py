"""The rules of docs/design/identity.md, case by case, through the fold."""

from __future__ import annotations

import tracemalloc

import pytest

from spark_replog.log.fold import topic_state
from spark_replog.log.fold.producer_state import RUNS_KEPT, TXN_VERSIONS_KEPT, ProducerTable
from spark_replog.log.model import (
    Append,
    GenerationAdvance,
    IdentityKind,
    Outcome,
    ProducerIdentity,
    ResetPolicy,
    SnapshotCommit,
    TopicClose,
    Truncate,
)

TXN = IdentityKind.TRANSACTIONAL
BATCH = IdentityKind.TXN_BATCH
ONE = IdentityKind.ONE_SHOT


def test_a_replayed_batch_is_a_duplicate_with_its_old_offsets(kit):
    log = kit.Log()
    first = log.one(kit.append({0: 3, 1: 2}, 0))
    again = log.one(kit.append({0: 3, 1: 2}, 0, run="run-2"))
    assert (again.outcome, again.base_offsets, again.detail) == (Outcome.DUPLICATE, first.base_offsets, "")
    assert log.ends() == [3, 2]


ONE_BATCH, ANOTHER = b"12345678", b"87654321"
BOTH = (("ab" * 16, "orders"), ("cd" * 16, "payments"))


def test_a_query_that_is_not_deterministic_repeats_its_batch_with_other_rows(kit):
    log = kit.Log()
    first = log.one(kit.append({0: 3, 1: 2}, 0, evidence=ONE_BATCH))
    again = log.one(kit.append({0: 3, 1: 4}, 0, run="run-2", evidence=ONE_BATCH))
    assert (again.outcome, again.base_offsets) == (Outcome.DUPLICATE, first.base_offsets)
    assert "7 rows where 5 were applied" in again.detail
    assert "partition 1" in again.detail
    assert log.one(kit.append({0: 1}, 1, run="run-2", evidence=ANOTHER)).outcome is Outcome.APPLIED


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "outcome", "reason"),
    [
        (ONE_BATCH, ANOTHER, Outcome.CHECKPOINT_RESET, "another `offsets` file"),
        (ONE_BATCH, b"", Outcome.CHECKPOINT_RESET, "now `offsets` of it cannot be"),
        (b"", ANOTHER, Outcome.DUPLICATE, ""),
        (b"", b"", Outcome.DUPLICATE, ""),
    ],
)
def test_another_batch_of_as_many_rows_is_known_by_its_evidence(kit, first, second, outcome, reason, is_frozen):
    log = kit.Log()
    log.one(kit.append({0: 3, 1: 2}, 4, evidence=first))
    if is_frozen:
        frozen = log.state.freeze()
        log.state.restore(frozen.head, frozen.pages.__getitem__)
    again = log.one(kit.append({0: 2, 1: 3}, 4, run="run-2", evidence=second))
    assert again.outcome is outcome
    assert reason in again.detail
    assert log.ends() == [3, 2]


@pytest.mark.parametrize("second", [b"", ANOTHER])
def test_without_evidence_of_the_first_other_counts_are_another_batch(kit, second):
    log = kit.Log()
    log.one(kit.append({0: 3}, 4))
    again = log.one(kit.append({0: 4}, 4, evidence=second))
    assert again.outcome is Outcome.CHECKPOINT_RESET
    assert "3 rows where this one has 4" in again.detail


def test_rows_for_a_topic_that_got_none_of_the_batch_are_not_dropped(kit):
    log = kit.Log(topics=BOTH)
    one, two = {(kit.TOPIC, 0): 1}, {(kit.OTHER, 0): 1}
    assert log.one(kit.append(one | two, 0, evidence=ONE_BATCH)).outcome is Outcome.APPLIED
    assert log.one(kit.append(one, 0, evidence=ONE_BATCH)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append(one, 1, evidence=ONE_BATCH)).outcome is Outcome.APPLIED
    for rows in (two, one | two):
        again = log.one(kit.append(rows, 1, evidence=ONE_BATCH))
        assert again.outcome is Outcome.CHECKPOINT_RESET
        assert kit.OTHER in again.detail
    assert log.one(kit.append(one, 2)).outcome is Outcome.APPLIED
    assert "other topics" in log.one(kit.append(two, 2)).detail


@pytest.mark.parametrize("kind", [IdentityKind.STREAM, TXN])
@pytest.mark.parametrize("sequence", [0, 3, 4])
def test_a_batch_before_the_last_is_never_a_repeat(kit, sequence, kind):
    log = kit.Log()
    for earlier_sequence in (0, 1, 5):
        log.one(kit.append({0: 1}, earlier_sequence, evidence=ONE_BATCH, kind=kind))
    again = log.one(kit.append({0: 1}, sequence, evidence=ONE_BATCH, kind=kind))
    assert again.outcome is Outcome.CHECKPOINT_RESET
    assert "at batch 5" in again.detail
    skipped = log.one(kit.append({0: 1}, sequence, evidence=ANOTHER, kind=kind, on_reset=ResetPolicy.SKIP))
    assert skipped.outcome is Outcome.SKIPPED
    assert log.ends() == [3, 0]


def test_a_query_that_appends_after_a_reset_is_exactly_once_from_there(kit):
    log = kit.Log()
    for sequence in (0, 1, 5):
        log.one(kit.append({0: 1}, sequence, evidence=ONE_BATCH))
    again = {"run": "run-2", "on_reset": ResetPolicy.APPEND, "evidence": ANOTHER}
    assert log.one(kit.append({0: 1}, 5, **again)).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 3, **again)).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 3, **again)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append({0: 1}, 4, run="run-2")).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 5, run="run-2")).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 6, run="run-1")).outcome is Outcome.FENCED
    assert log.ends() == [7, 0]


def test_a_zombie_that_comes_with_an_older_batch_is_fenced(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 1, run="a", evidence=ONE_BATCH))
    log.one(kit.append({0: 1}, 2, run="b", evidence=ANOTHER))
    assert log.one(kit.append({0: 1}, 1, run="a", evidence=ONE_BATCH)).outcome is Outcome.FENCED


def test_a_new_run_becomes_current_and_the_old_one_is_fenced(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 0, run="a"))
    assert log.one(kit.append({0: 1}, 1, run="b")).outcome is Outcome.APPLIED
    fenced = log.one(kit.append({0: 1}, 2, run="a"))
    assert fenced.outcome is Outcome.FENCED
    assert "replaced by run b (epoch 1)" in fenced.detail
    assert log.one(kit.append({0: 1}, 1, run="a")).outcome is Outcome.DUPLICATE  # duplicate before fenced
    assert log.one(kit.append({0: 1}, 2, run="b")).outcome is Outcome.APPLIED
    assert log.ends() == [3, 0]


def test_a_duplicate_does_not_make_its_run_current(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 0, run="a"))
    log.one(kit.append({0: 1}, 0, run="b"))
    assert log.one(kit.append({0: 1}, 1, run="a")).outcome is Outcome.APPLIED


def test_two_queries_do_not_know_each_other(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 0, producer="x", run="a"))
    assert log.one(kit.append({0: 1}, 0, producer="y", run="a")).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 0, producer="x", kind=TXN)).outcome is Outcome.APPLIED


def test_a_reset_checkpoint_is_refused_by_default(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="a"))
    reset = log.one(kit.append({0: 1}, 0, producer="t", kind=TXN, incarnation="q2", run="b"))
    assert reset.outcome is Outcome.CHECKPOINT_RESET
    assert "batch 7 of query q1" in reset.detail
    assert log.ends() == [1, 0]


def test_a_reset_checkpoint_may_skip_until_it_caught_up(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 1, producer="t", kind=TXN, incarnation="q1", run="a"))
    skip = {"producer": "t", "kind": TXN, "incarnation": "q2", "run": "b", "on_reset": ResetPolicy.SKIP}
    assert log.one(kit.append({0: 1}, 0, **skip)).outcome is Outcome.SKIPPED
    assert log.one(kit.append({0: 1}, 1, **skip)).outcome is Outcome.SKIPPED
    assert log.one(kit.append({0: 1}, 2, **skip)).outcome is Outcome.APPLIED
    assert log.ends() == [2, 0]


def test_a_reset_checkpoint_may_append_and_is_exactly_once_again(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="a"))
    again = {"producer": "t", "kind": TXN, "incarnation": "q2", "run": "b", "on_reset": ResetPolicy.APPEND}
    assert log.one(kit.append({0: 1}, 0, **again)).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, 0, **again)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append({0: 1}, 1, **again)).outcome is Outcome.APPLIED
    zombie = kit.append({0: 1}, 8, producer="t", kind=TXN, incarnation="q1", run="a")
    assert log.one(zombie).outcome is Outcome.FENCED
    replay = log.one(kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="c"))
    assert replay.outcome is Outcome.CHECKPOINT_RESET
    assert "at batch 1 of query q2" in replay.detail
    assert log.ends() == [3, 0]


def test_a_later_batch_of_another_query_goes_on(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="a"))
    later = kit.append({0: 1}, 8, producer="t", kind=TXN, incarnation="q2", run="b")
    assert log.one(later).outcome is Outcome.APPLIED


def test_a_txn_version_is_skipped_only_with_equal_row_counts(kit):
    log = kit.Log()
    log.one(kit.append({0: 3, 1: 1}, 10, producer="app", kind=BATCH))
    assert log.one(kit.append({0: 3, 1: 1}, 10, producer="app", kind=BATCH)).detail == ""
    other = log.one(kit.append({0: 5}, 10, producer="app", kind=BATCH))
    assert other.outcome is Outcome.TXN_MISMATCH
    assert log.one(kit.append({0: 5}, 11, producer="app", kind=BATCH, run="z")).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 3, 1: 1}, 10, producer="app", kind=BATCH)).outcome is Outcome.DUPLICATE


def test_a_txn_version_whose_rows_lie_in_other_partitions_is_skipped_and_says_so(kit):
    log = kit.Log()
    log.one(kit.append({0: 3, 1: 1}, 10, producer="app", kind=BATCH))
    again = log.one(kit.append({0: 2, 1: 2}, 10, producer="app", kind=BATCH))
    assert again.outcome is Outcome.DUPLICATE
    assert "first difference in partition 0" in again.detail
    assert log.ends() == [3, 1]


def test_another_write_of_a_txn_version_with_as_many_rows_is_refused(kit):
    log = kit.Log(topics=BOTH)
    who = {"producer": "app", "kind": BATCH}
    for version in (10, 11):
        log.one(kit.append({0: 3, 1: 1}, version, evidence=ONE_BATCH, **who))
    for version in (10, 11):
        assert log.one(kit.append({0: 2, 1: 2}, version, evidence=ONE_BATCH, **who)).outcome is Outcome.DUPLICATE
        other = log.one(kit.append({0: 3, 1: 1}, version, evidence=ANOTHER, **who))
        assert (other.outcome, "other" in other.detail) == (Outcome.TXN_MISMATCH, True)
        skip = {**who, "evidence": ANOTHER, "on_reset": ResetPolicy.SKIP}
        assert log.one(kit.append({0: 3, 1: 1}, version, **skip)).outcome is Outcome.SKIPPED
    elsewhere = log.one(kit.append({(kit.OTHER, 0): 4}, 11, evidence=ANOTHER, **who))
    assert "other topics" in elsewhere.detail
    assert log.ends() == [6, 2]


def test_a_txn_version_that_was_jumped_over_is_not_dropped_in_silence(kit):
    log = kit.Log()
    log.one(kit.append({0: 3}, 10, producer="app", kind=BATCH))
    assert log.one(kit.append({0: 3}, 9, producer="app", kind=BATCH)).outcome is Outcome.TXN_MISMATCH


def test_a_txn_version_beyond_memory_is_refused(kit):
    log = kit.Log()
    for version in range(TXN_VERSIONS_KEPT + 1):
        log.one(kit.append({0: 1}, version, producer="app", kind=BATCH))
    assert log.one(kit.append({0: 1}, 0, producer="app", kind=BATCH)).outcome is Outcome.TXN_MISMATCH
    assert log.one(kit.append({0: 1}, 1, producer="app", kind=BATCH)).outcome is Outcome.DUPLICATE


def test_a_one_shot_is_a_duplicate_of_itself_only(kit):
    log = kit.Log()
    assert log.one(kit.append({0: 1}, producer="r1", kind=ONE)).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, producer="r1", kind=ONE)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append({0: 1}, producer="r2", kind=ONE)).outcome is Outcome.APPLIED


@pytest.mark.guarantee("G6")
def test_a_forgotten_one_shot_meets_the_floor(kit, monkeypatch):
    monkeypatch.setattr(topic_state, "PRODUCER_KEPT_MS", 0)
    log = kit.Log()
    log.one(kit.append({0: 1}, producer="r1", kind=ONE))
    log.one(kit.append({0: 1}, 4))
    log.one(GenerationAdvance(2, 1))
    late = log.one(kit.append({0: 1}, producer="r1", kind=ONE))
    assert late.outcome is Outcome.BELOW_FLOOR
    assert log.one(kit.append({0: 1}, 4)).outcome is Outcome.DUPLICATE  # duplicate before floor
    assert log.one(kit.append({0: 1}, 5)).outcome is Outcome.BELOW_FLOOR
    assert log.one(kit.append({0: 1}, 5, generation=2)).outcome is Outcome.APPLIED


def test_the_judge_looks_in_the_order_of_the_design(kit):
    log = kit.Log()
    log.one(kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="a"))
    log.one(kit.append({0: 1}, 8, producer="t", kind=TXN, incarnation="q1", run="b"))
    log.one(GenerationAdvance(1, 1))
    stale = {"producer": "t", "kind": TXN, "incarnation": "q2"}
    assert log.one(kit.append({0: 1}, 0, run="a", **stale)).outcome is Outcome.FENCED
    assert log.one(kit.append({0: 1}, 0, run="c", **stale)).outcome is Outcome.BELOW_FLOOR
    assert log.one(kit.append({0: 1}, 0, run="c", generation=1, **stale)).outcome is Outcome.CHECKPOINT_RESET
    log.one(TopicClose(kit.TOPIC))
    again = kit.append({0: 1}, 7, producer="t", kind=TXN, incarnation="q1", run="a")
    assert log.one(again).outcome is Outcome.TOPIC_CLOSED


def test_a_negative_sequence_is_refused(kit):
    assert kit.Log().one(kit.append({0: 1}, -1)).outcome is Outcome.OUT_OF_SEQUENCE


@pytest.mark.parametrize("sequence", [0, 3])
def test_an_empty_append_keeps_its_place(kit, sequence):
    log = kit.Log()
    assert log.one(kit.append({}, sequence)).outcome is Outcome.APPLIED
    assert log.one(kit.append({}, sequence)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append({0: 1}, sequence)).outcome is Outcome.CHECKPOINT_RESET


def test_judging_changes_nothing(kit):
    log = kit.Log()
    new = kit.append({0: 2, 1: 1}, 0)
    judged = log.state.judge(new)
    assert (judged.outcome, judged.base_offsets) == (
        Outcome.APPLIED,
        {(kit.TOPIC, 0): (0, 2), (kit.TOPIC, 1): (0, 1)},
    )
    assert log.one(new).base_offsets == judged.base_offsets
    assert log.state.judge(new).outcome is Outcome.DUPLICATE


def test_ten_thousand_restarts_cost_the_fold_a_constant_each():
    """Counted in bytes copied: a fold that copied the runs before at every append would allocate 10^8 of them."""
    table = ProducerTable()

    def allocated(first, last):
        tracemalloc.start()
        for restart in range(first, last):
            who = ProducerIdentity("q", "q", restart, f"run-{restart}", IdentityKind.STREAM)
            table.undo(table.record(Append(who, "", "", 0, ()), {}))  # applied and cut again
            table.record(Append(who, "", "", 0, ()), {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    allocated(0, 9_000)
    assert allocated(9_000, 9_010) < 100_000
    assert len(table.get(ProducerIdentity("q", "q", 0, "", IdentityKind.STREAM)).past_runs) == 9_009


@pytest.mark.parametrize("kind", list(IdentityKind))
@pytest.mark.parametrize("has_evidence", [False, True])
def test_an_append_that_is_cut_leaves_its_producer_as_it_was(kind, has_evidence):
    def append(sequence, run, incarnation):
        evidence = f"{sequence:04d}{run}{incarnation}".encode() if has_evidence else b""
        return Append(ProducerIdentity("p", incarnation, sequence, run, kind, evidence=evidence), "", "", 0, ())

    kept, cut = ProducerTable(), ProducerTable()
    ranges = {("ab" * 16, 0): (0, 5)}
    for table in (kept, cut):
        for sequence in range(1_000):
            table.record(append(sequence, "r0", "i0"), ranges)
    undo = [
        cut.record(append(1_000, "r0", "i0"), {}),
        cut.record(append(1_001, "r1", "i0"), {}),
        cut.record(append(1_002 if kind is IdentityKind.TXN_BATCH else 7, "r2", "i1"), {}),
        cut.record(append(1_003, "r3", "i0"), {}),
        cut.record(append(1_003, "r4", "i0"), {}),  # by onCheckpointReset=append
    ]
    for change in reversed(undo):
        cut.undo(change)
    who = append(0, "", "").identity
    assert cut.get(who) == kept.get(who)
    assert list(cut.get(who).digests) == list(kept.get(who).digests), "the oldest is pushed out first"


def test_a_decided_snapshot_leaves_the_newest_runs_and_incarnations_of_a_producer(kit):
    log = kit.Log()
    for number in range(150):
        who = {"kind": IdentityKind.TRANSACTIONAL, "incarnation": f"i-{number}", "run": f"r-{number}"}
        assert log.one(kit.append({0: 1}, number, **who)).outcome is Outcome.APPLIED
    log.one(SnapshotCommit(0, 10, "0" * 20 + "-" + "a" * 32))
    producer = log.state.producers.get(kit.identity(kind=IdentityKind.TRANSACTIONAL))
    assert list(producer.past_runs) == [f"r-{number}" for number in range(49, 149)]
    assert list(producer.last_sequences) == [f"i-{number}" for number in range(49, 150)]
    late = {"kind": IdentityKind.TRANSACTIONAL, "run": "r-100", "incarnation": "i-149"}
    assert log.state.judge(kit.append({0: 1}, 150, **late)).outcome is Outcome.FENCED
    forgotten = {**late, "run": "r-3"}
    assert log.state.judge(kit.append({0: 1}, 149, **forgotten)).outcome is Outcome.DUPLICATE


def test_an_incarnation_is_known_again_after_a_cut_though_a_snapshot_forgot_it_meanwhile(kit):
    """It was current before the append that is cut, so it is again: without it no process could fold the ledger."""
    log, who = kit.Log(), {"producer": "t", "kind": TXN}
    for number, name in enumerate(["old", *(f"i-{number}" for number in range(RUNS_KEPT + 1)), "old"]):
        assert log.one(kit.append({0: 1}, number, incarnation=name, **who)).outcome is Outcome.APPLIED
    stable_index = log.state.applied_index
    cut = kit.append({0: 1}, number + 1, incarnation="new", holders=(0,), **who)
    assert log.one(cut).outcome is Outcome.APPLIED
    assert log.one(SnapshotCommit(0, 10, "0" * 20 + "-" + "a" * 32)).outcome is Outcome.APPLIED
    assert log.one(Truncate(stable_index)).outcome is Outcome.APPLIED
    assert log.one(kit.append({0: 1}, number, incarnation="old", **who)).outcome is Outcome.DUPLICATE
    assert log.one(kit.append({0: 1}, number, incarnation="new", **who)).outcome is Outcome.CHECKPOINT_RESET
    assert log.one(kit.append({0: 1}, number + 1, incarnation="old", **who)).outcome is Outcome.APPLIED
