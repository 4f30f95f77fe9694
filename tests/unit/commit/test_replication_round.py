"""What an append still lacks: judged on a fold and on what this append has learned beyond it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import CopyJob
from spark_replog.commit.replication import (
    LeaderAndIsr,
    Replication,
    RoundServices,
    is_replicated,
    plan_round,
    run_round,
)
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import (
    Append,
    DataObject,
    IdentityKind,
    IsrChange,
    ProducerIdentity,
    Section,
    TopicInit,
    encode_command,
    encode_entry,
)
from spark_replog.log.fold.topic_state import TopicLedgerState

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
    state.apply(state.applied_index + 1, encode_entry([encode_command(each) for each in commands]))


ALL = frozenset({0, 1, 2})


@pytest.mark.parametrize(
    ("holders", "known", "expected"),
    [
        (ALL, Replication(), True),
        (frozenset({0, 1}), Replication(), False),
        (frozenset({0, 1}), Replication(copied={(0, "new"): {2}}), True),
        # Who leaves with this append counts no more, whatever it holds: min.insync.replicas is for those that stay.
        (ALL, Replication(departed={2: "away"}), False),
    ],
)
def test_nothing_waits_only_where_every_in_sync_replica_holds_it_and_nobody_leaves(
    state, holders, known, expected
) -> None:
    assert is_replicated(state, append("new", holders), known) is expected


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
    known = Replication(departed={1: "away"})
    this = plan_round(state, "L", append("new", frozenset({0})), known, 0)
    assert [broker for _, broker in this.missing] == [2]
    (partition,) = this.partitions.values()
    assert partition.in_sync == {0, 2}


class SourcesFail:
    """A fetcher whose sources have all gone."""

    def submit(self, job: CopyJob, target: int, on_done) -> Future[None]:
        error = ReplogError(ErrorCode.KAFKA_STORAGE_ERROR, "no broker has it.", sources=job.sources)
        on_done(job, target, error)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def test_a_round_without_sources_ends_at_once_blames_no_target_and_leaves_no_timer(state) -> None:
    known = Replication()
    this = plan_round(state, "L", append("new", frozenset({0})), known, 0)
    purgatory = DelayedOperationPurgatory()
    fetcher: Any = SourcesFail()
    services = RoundServices(purgatory, fetcher, SYSTEM_CLOCK, 14_000, lambda: None)
    run_round(this, known, services, lambda key: LeaderAndIsr(0, ALL), 28_000, lambda: False)
    assert known.departed == {} and known.lost == {(0, "new"): (0,)}
    assert purgatory.timer.size == 0  # a late one would take replicas out of the next round
