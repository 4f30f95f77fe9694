"""What an append still lacks: judged on a fold and on what this append has learned beyond it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.commit import append_judge
from spark_replog.commit.append_judge import AppendJudge, Phase
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.purgatory import DelayedOperation, DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import CopyJob
from spark_replog.commit.replication import (
    LOOK_INTERVAL_MS,
    LeaderAndIsr,
    Replication,
    ReplicationRound,
    WaitingRound,
    is_replicated,
    plan_round,
)
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, DataObject, IdentityKind, IsrChange, ProducerIdentity, Section, TopicInit
from tests.manual_clock import ManualClock

TOPIC = "a" * 32


def append(name: str, holders: frozenset[int]) -> Append:
    identity = ProducerIdentity(name, name, 0, "run", IdentityKind.STREAM)
    item = DataObject(ObjectId(0, name), 8, False, holders, (Section(TOPIC, 0, 1, 0, 8, 0, 0, 0),))
    return Append(identity, "", "", 0, (item,))


@pytest.fixture
def state() -> TopicLedgerState:
    made = TopicLedgerState("L")
    fold(made, TopicInit(TOPIC, "orders", ((0, 1, 2),), ()))
    return made


def fold(state: TopicLedgerState, *commands) -> None:
    state.apply(state.applied_index + 1, encode_entry([encode_command(command) for command in commands]))


ALL = frozenset({0, 1, 2})


@pytest.mark.parametrize(
    ("holders", "replication", "expected"),
    [
        (ALL, Replication(), True),
        (frozenset({0, 1}), Replication(), False),
        (frozenset({0, 1}), Replication(copied={(0, "new"): {2}}), True),
        # Who leaves with this append counts no more, whatever it holds: min.insync.replicas is for those that stay.
        (ALL, Replication(departed={2: "away"}), False),
    ],
)
def test_nothing_waits_only_where_every_in_sync_replica_holds_it_and_nobody_leaves(
    state, holders, replication, expected
) -> None:
    assert is_replicated(state, append("new", holders), replication) is expected


def test_an_entry_that_is_not_stable_makes_the_next_one_wait(state) -> None:
    fold(state, append("old", frozenset({0, 1})))
    new = append("new", ALL)
    assert not is_replicated(state, new, Replication())
    (missing,) = plan_round(state, "L", new, Replication(), 0).missing
    assert (missing[0].id.name, missing[0].sources, missing[1]) == ("old", (0, 1), 2)


def test_too_few_in_sync_replicas_are_not_enough_even_if_all_hold_it(state) -> None:
    for broker_id in (1, 2):
        fold(state, IsrChange(None, broker_id, False, 0))
    assert not is_replicated(state, append("new", ALL), Replication())


def test_who_leaves_is_asked_for_no_copies(state) -> None:
    replication = Replication(departed={1: "away"})
    replication_round = plan_round(state, "L", append("new", frozenset({0})), replication, 0)
    assert [broker for _, broker in replication_round.missing] == [2]
    (partition,) = replication_round.partitions.values()
    assert partition.in_sync == {0, 2}


class SourcesFail:
    """A fetcher whose sources have all gone."""

    clock, config = SYSTEM_CLOCK, CoordinatorConfig(replica_lag_time_max_ms=14_000)

    def submit(self, job: CopyJob, target: int, on_done) -> Future[None]:
        error = ReplogError(ErrorCode.KAFKA_STORAGE_ERROR, "no broker has it.", sources=job.sources)
        on_done(job, target, error)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class Copies:
    """A fetcher whose copies end when the test says so."""

    def __init__(self, clock: Clock, lag_ms: int) -> None:
        self.clock, self.config = clock, CoordinatorConfig(replica_lag_time_max_ms=lag_ms, request_timeout_ms=10**6)
        self.begun: list[tuple[CopyJob, int, Any]] = []

    def submit(self, job: CopyJob, target: int, on_done) -> Future[None]:
        self.begun.append((job, target, on_done))
        return Future()

    def distrust(self, broker_id: int) -> None:
        pass

    def fail(self, number: int) -> None:
        job, target, on_done = self.begun[number]
        on_done(job, target, ReplogError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "the root does not answer."))


class Rounds:
    """The rounds of one append that waits for broker 1, on a fold that the test moves on."""

    def __init__(self, state: TopicLedgerState, holders: frozenset[int], lag_ms: int) -> None:
        self.state, self.append, self.replication = state, append("new", holders), Replication()
        self.purgatory = DelayedOperationPurgatory()
        self.looks = 0
        self.clock: Clock = SYSTEM_CLOCK
        self.on_look: Any = lambda: None
        self.copies = Copies(self.clock, lag_ms)

    def refresh(self) -> None:
        self.looks += 1
        self.on_look()

    def plan(self) -> ReplicationRound:
        return plan_round(self.state, "L", self.append, self.replication, self.clock.monotonic_ms())

    def run(self, replication_round: ReplicationRound, help_late=lambda: False, timeout_ms: int = 2_000):
        fetcher: Any = self.copies
        where = self.purgatory, fetcher, self.lookup, self.refresh
        return WaitingRound(replication_round, self.replication, *where, timeout_ms).run(help_late)

    def lookup(self, key) -> LeaderAndIsr:
        partition = self.state.topics[key[0]].partitions[key[1]]
        return LeaderAndIsr(partition.leader_epoch, partition.isr)

    def join(self, broker_id: int = 0) -> bool:
        fold(self.state, IsrChange(None, broker_id, True, 0))
        return True


@pytest.fixture
def without_0(state) -> TopicLedgerState:
    fold(state, IsrChange(None, 0, False, 0))
    return state


def test_a_copy_of_an_earlier_round_that_fails_late_does_not_keep_its_target_in_a_later_round(without_0) -> None:
    rounds = Rounds(without_0, frozenset({0, 2}), lag_ms=5)
    assert rounds.run(rounds.plan(), rounds.join) is None  # broker 1 is late and needed, until broker 0 is back
    second = rounds.plan()
    rounds.copies.fail(0)
    assert set(rounds.replication.departed) == {1}
    assert rounds.run(second) == {}
    (partition,) = second.partitions.values()
    assert partition.in_sync == {0, 2}


def test_a_replica_that_joins_by_another_process_relieves_one_that_is_late(without_0) -> None:
    rounds = Rounds(without_0, frozenset({0, 2}), lag_ms=5)
    rounds.on_look = rounds.join
    assert rounds.run(rounds.plan()) is None
    assert rounds.looks == 1
    assert rounds.run(rounds.plan()) == {}


def test_a_replica_that_joined_by_another_process_relieves_one_that_fails(without_0) -> None:
    rounds = Rounds(without_0, frozenset({0, 2}), lag_ms=60_000)
    replication_round = rounds.plan()
    rounds.join()
    begin = rounds.copies.submit

    def fail_at_once(*call) -> Future[None]:
        future = begin(*call)
        rounds.copies.fail(-1)
        return future

    rounds.copies.submit = fail_at_once  # type: ignore[method-assign]
    assert rounds.run(replication_round) is None
    assert rounds.plan().errors() == {}
    without_help = Rounds(rounds.state, frozenset({2}), lag_ms=60_000)
    without_help.replication.departed[1] = "away"
    assert without_help.run(without_help.plan(), timeout_ms=1) == {(TOPIC, 0): ErrorCode.REQUEST_TIMED_OUT}


@pytest.mark.parametrize(("lag_ms", "looks"), [(5, 0), (LOOK_INTERVAL_MS, 0), (2 * LOOK_INTERVAL_MS, 1)])
def test_a_late_replica_leaves_before_a_look_that_may_wait_for_a_root_that_hangs(
    state, monkeypatch, lag_ms, looks
) -> None:
    rounds = Rounds(state, frozenset({0, 2}), lag_ms)
    clock = with_manual_clock(rounds, monkeypatch)
    assert rounds.run(rounds.plan(), timeout_ms=60_000) == {}
    assert rounds.looks == looks and clock.time_ms <= lag_ms + 1


def with_manual_clock(rounds: Rounds, monkeypatch) -> ManualClock:
    rounds.clock = rounds.copies.clock = clock = ManualClock()
    rounds.purgatory = DelayedOperationPurgatory(clock=clock)
    monkeypatch.setattr(DelayedOperation, "wait", lambda self, ms: self.is_completed or clock.sleep_ms(ms))
    return clock


@pytest.mark.parametrize(("has_caught_up", "leaves_at_ms"), [(False, 1_001), (True, 1_901)])
def test_a_new_round_gives_a_replica_no_new_time_unless_it_had_caught_up(
    state, monkeypatch, has_caught_up, leaves_at_ms
) -> None:
    rounds = Rounds(state, frozenset({0, 2}), lag_ms=1_000)
    clock = with_manual_clock(rounds, monkeypatch)
    assert rounds.run(rounds.plan(), timeout_ms=300) == {(TOPIC, 0): ErrorCode.REQUEST_TIMED_OUT}
    if has_caught_up:
        job, target, on_done = rounds.copies.begun[0]
        on_done(job, target, None)
        rounds.append = append("other", frozenset({0, 2}))
    clock.time_ms = 900
    assert rounds.run(rounds.plan(), timeout_ms=60_000) == {}
    assert set(rounds.replication.departed) == {1} and clock.time_ms == leaves_at_ms


def test_a_replica_whose_time_is_up_at_the_begin_of_a_round_gets_no_copy(state, monkeypatch) -> None:
    rounds = Rounds(state, frozenset({0, 2}), lag_ms=1_000)
    clock = with_manual_clock(rounds, monkeypatch)
    rounds.run(rounds.plan(), timeout_ms=1_000)
    clock.time_ms = 1_001
    rounds.copies.begun.clear()
    assert rounds.run(rounds.plan()) == {}
    assert set(rounds.replication.departed) == {1} and not rounds.copies.begun


class EverybodyMay:
    """An authorizer that refuses nothing."""

    def refused_partitions(self, *call):
        return {}


def test_who_fails_after_the_judgement_does_not_leave_with_its_entry(state, monkeypatch) -> None:
    authorizer: Any = EverybodyMay()
    judge = AppendJudge("L", AppendRequest(append("new", frozenset({0, 1})), 1_000), authorizer, SYSTEM_CLOCK)
    judge.replication.departed[2] = "away"
    plan = append_judge.plan_round

    def plan_then_fail(*call):
        replication_round = plan(*call)
        judge.replication.departed[1] = "its copy of an earlier round failed"
        return replication_round

    monkeypatch.setattr(append_judge, "plan_round", plan_then_fail)
    verdict = judge.judge(state)
    assert verdict.next is Phase.SETTLING and dict(verdict.leaving) == {2: "away"}
    state.apply(state.applied_index + 1, encode_entry(verdict.commands))
    assert set(state.topics[TOPIC].partitions[0].isr) == {0, 1}


def test_a_partition_that_fails_and_holds_back_the_ledger_fails_the_append_and_is_not_judged_for_ever() -> None:
    state = TopicLedgerState("L")
    fold(state, TopicInit(TOPIC, "orders", ((0, 1), (0, 2)), ()))
    fold(state, append("old", frozenset({0})))
    fold(state, IsrChange(None, 1, False, 0))
    (first,) = append("new", ALL).objects
    other = replace(first, id=ObjectId(0, "other"), sections=(Section(TOPIC, 1, 1, 0, 8, 0, 0, 0),))
    request = AppendRequest(replace(append("new", ALL), objects=(first, other)), 1_000, is_atomic=False)
    authorizer: Any = EverybodyMay()
    judge = AppendJudge("L", request, authorizer, SYSTEM_CLOCK)
    for _ in range(3):
        verdict = judge.judge(state)
        judge.failed.update(verdict.failed)
    assert verdict.next is Phase.DONE and verdict.error is not None
    assert verdict.error.code is ErrorCode.NOT_ENOUGH_REPLICAS and verdict.error.context["partition"] == 0


def test_a_round_without_sources_ends_at_once_blames_no_target_and_leaves_no_timer(state) -> None:
    replication = Replication()
    replication_round = plan_round(state, "L", append("new", frozenset({0})), replication, 0)
    purgatory = DelayedOperationPurgatory()
    fetcher: Any = SourcesFail()
    where = purgatory, fetcher, lambda key: LeaderAndIsr(0, ALL), lambda: None
    WaitingRound(replication_round, replication, *where, 28_000).run(lambda: False)
    assert replication.departed == {} and replication.lost == {(0, "new"): (0,)}
    assert purgatory.timer.size == 0  # a late one would take replicas out of the next round


def test_a_round_that_fails_leaves_no_timer_no_copy_and_nothing_that_waits(without_0) -> None:
    """A look may find no majority of the metadata roots."""
    rounds = Rounds(without_0, frozenset({0, 2}), lag_ms=5)
    begin, begun = rounds.copies.submit, []
    rounds.copies.submit = lambda *call: (begun.append(begin(*call)), begun[-1])[1]  # type: ignore[method-assign]

    def lost() -> bool:
        raise ReplogError(ErrorCode.REPLOG_NO_QUORUM, "too few roots answer.")

    with pytest.raises(ReplogError, match="too few roots"):
        rounds.run(rounds.plan(), lost, timeout_ms=60_000)
    assert [future.cancelled() for future in begun] == [True]
    assert rounds.purgatory.timer.size == 0
    assert all(operation.is_completed for watched in rounds.purgatory.watchers.values() for operation in watched)
