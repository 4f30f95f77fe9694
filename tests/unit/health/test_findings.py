"""Which findings the health checks draw from a fold and from a look at the roots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.errors import CorruptDataError, ErrorCode, RetriableError
from spark_replog.health import store as health_store
from spark_replog.health.metrics import collect
from spark_replog.health.store import (
    BrokerHealth,
    Fault,
    Finding,
    Level,
    StoreView,
    broker_findings,
    describe_ledger,
    topic_findings,
)
from spark_replog.health.store import fence_findings as findings_of_a_fence
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import BrokerFence, IsrChange, TopicInit

ORDERS, CLICKS = "a" * 32, "b" * 32


@pytest.fixture
def state() -> TopicLedgerState:
    made = TopicLedgerState("L")
    fold(made, TopicInit(ORDERS, "orders", ((0, 1, 2), (1, 2, 0)), ()), TopicInit(CLICKS, "clicks", ((2,),), ()))
    return made


def fold(state: TopicLedgerState, *commands) -> None:
    state.apply(state.applied_index + 1, encode_entry([encode_command(command) for command in commands]))


def wrong(state: TopicLedgerState) -> list[Finding]:
    return topic_findings(describe_ledger(state))


def fence_findings(state: TopicLedgerState, broker_ids: list[int]) -> list[Finding]:
    return findings_of_a_fence(describe_ledger(state), broker_ids)


def findings_of(state: TopicLedgerState) -> list[tuple[Level, Fault, str | None, int | None]]:
    return [(finding.level, finding.fault, finding.topic, finding.partition) for finding in wrong(state)]


def test_a_whole_ledger_has_no_findings(state) -> None:
    assert wrong(state) == []


def test_a_replica_out_of_sync_is_a_warning(state) -> None:
    fold(state, IsrChange(None, 1, False, 0))
    assert findings_of(state) == [
        (Level.WARN, Fault.UNDER_REPLICATED, "orders", 0),
        (Level.WARN, Fault.UNDER_REPLICATED, "orders", 1),
    ]


def test_fencing_below_min_isr_and_without_a_leader_is_critical(state) -> None:
    fold(state, BrokerFence(2, True), BrokerFence(1, True))
    assert findings_of(state) == [
        (Level.CRITICAL, Fault.NO_LEADER, "clicks", 0),
        (Level.CRITICAL, Fault.UNDER_MIN_ISR, "orders", 0),
        (Level.CRITICAL, Fault.UNDER_MIN_ISR, "orders", 1),
    ]
    assert all("broker unfence" in finding.remedy for finding in wrong(state))
    assert [finding.topic for finding in topic_findings(describe_ledger(state)[:1])] == ["clicks"]


@pytest.mark.parametrize(
    ("code", "away", "expected"),
    [
        (ErrorCode.REPLOG_STORE_UNAVAILABLE, [0], []),
        (ErrorCode.REPLOG_STORE_UNAVAILABLE, [2], [(Fault.NO_LEADER, "clicks", 0)]),
        (ErrorCode.CORRUPT_MESSAGE, [2], []),
        (
            ErrorCode.REPLOG_ROOT_STALE,
            [0, 1],
            [(Fault.UNDER_MIN_ISR, "orders", 0), (Fault.UNDER_MIN_ISR, "orders", 1)],
        ),
    ],
)
def test_roots_away_are_critical_for_partitions_that_nothing_else_serves(state, code, away, expected) -> None:
    error = RetriableError(code, "no answer")
    brokers = tuple(BrokerHealth(root, "", None, root > 4, False, error if root in away else None) for root in range(6))
    health = StoreView("c", "p", True, 0, brokers, tuple(describe_ledger(state)), ())
    critical = [finding for finding in health.findings if finding.level is Level.CRITICAL]
    assert [(finding.fault, finding.topic, finding.partition) for finding in critical] == expected


def test_fencing_is_warned_of_before_it_stops_a_partition(state) -> None:
    assert fence_findings(state, [0]) == []
    assert [(finding.fault, finding.topic) for finding in fence_findings(state, [2])] == [(Fault.NO_LEADER, "clicks")]
    assert [(finding.topic, finding.partition) for finding in fence_findings(state, [0, 1])] == [
        ("orders", 0),
        ("orders", 1),
    ]
    fold(state, IsrChange(None, 1, False, 0))
    assert [finding.fault for finding in fence_findings(state, [0])] == [Fault.UNDER_MIN_ISR] * 2
    assert fence_findings(state, [1]) == []  # it is out of sync: nothing gets worse


@pytest.mark.parametrize(
    ("away", "faults"),
    [
        ((), []),
        ((2,), [Fault.ROOT_AWAY]),
        ((1, 2), [Fault.ROOT_AWAY, Fault.ROOT_AWAY, Fault.NO_MAJORITY]),
        ((3,), [Fault.ROOT_AWAY]),
    ],
)
def test_a_majority_of_metadata_roots_away_is_critical(away, faults) -> None:
    error = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
    brokers = [BrokerHealth(root, "", None, root < 3, False, error if root in away else None) for root in range(4)]
    assert [finding.fault for finding in broker_findings(brokers)] == faults


@pytest.mark.parametrize(("journals", "away", "is_lost"), [(1, 1, True), (2, 1, True), (3, 1, False), (4, 2, True)])
def test_half_of_the_journals_is_no_majority(journals, away, is_lost) -> None:
    error = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "no answer")
    brokers = [BrokerHealth(at, "", None, at < journals, False, error if at < away else None) for at in range(5)]
    assert (Fault.NO_MAJORITY in {finding.fault for finding in broker_findings(brokers)}) == is_lost


def test_a_fenced_replica_that_is_still_in_the_isr_does_not_count(state) -> None:
    (orders,) = [topic for topic in describe_ledger(state) if topic.name == "orders"]
    parts = tuple(replace(partition, fenced=(2,)) for partition in orders.partitions)
    findings = topic_findings([replace(orders, partitions=parts)])
    assert [(flaw.fault, flaw.remedy) for flaw in findings] == [(Fault.UNDER_REPLICATED, "replog broker unfence 2")] * 2


def test_roots_that_lack_a_copy_keep_their_journals_so_nothing_is_refused() -> None:
    error = CorruptDataError(ErrorCode.CORRUPT_MESSAGE, "a copy is missing")
    brokers = [BrokerHealth(root, "", None, True, False, error) for root in range(3)]
    assert [finding.fault for finding in broker_findings(brokers)] == [Fault.COPY_MISSING] * 3


@pytest.mark.parametrize(
    ("free_bytes", "level"), [(1 << 20, Level.CRITICAL), (1 << 28, Level.WARN), (1 << 40, None), (None, None)]
)
def test_a_full_root_is_found_before_a_write_fails(free_bytes, level) -> None:
    findings = broker_findings([BrokerHealth(0, "", None, True, False, None, free_bytes)])
    assert [finding.level for finding in findings] == ([] if level is None else [level])


def test_a_scrape_makes_the_findings_once(state, monkeypatch):
    made = []
    monkeypatch.setattr(health_store, "broker_findings", lambda _: made.append(1) or [])
    collect(StoreView("c", "p", True, 0, (), tuple(describe_ledger(state)), ()))
    assert len(made) == 1
