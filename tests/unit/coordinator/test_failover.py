"""What an ENTRY must hold that gives brokers up: judged for the partitions that go on."""

from __future__ import annotations

from spark_replog.coordinator.failover import failover_commands
from spark_replog.log.commands import IsrChange, TopicClose, TopicInit, encode_command
from spark_replog.log.entry import encode_entry
from spark_replog.log.topic_state import TopicLedgerState

ORDERS, OTHER = "a" * 32, "b" * 32
GONE = frozenset({0})


def state_of(*commands) -> TopicLedgerState:
    state = TopicLedgerState("L")
    state.apply(0, encode_entry([encode_command(each) for each in commands]))
    return state


def test_a_partition_that_only_the_lost_broker_has_holds_no_election_up() -> None:
    state = state_of(TopicInit(ORDERS, "orders", ((0, 1, 2),), ()), TopicInit(OTHER, "alone", ((0,),), ()))
    assert failover_commands(state, GONE, 7) == [IsrChange(None, 0, False, 7)]


def test_a_deleted_topic_holds_no_election_up() -> None:
    strict = (("min.insync.replicas", "3"),)
    topics = (TopicInit(ORDERS, "orders", ((0, 1, 2),), ()), TopicInit(OTHER, "strict", ((0, 1, 2),), strict))
    assert failover_commands(state_of(*topics), GONE, 7) == []
    assert failover_commands(state_of(*topics), GONE, 7, is_forced=True) == [IsrChange(None, 0, False, 7)]
    assert failover_commands(state_of(*topics, TopicClose(OTHER)), GONE, 7) == [IsrChange(None, 0, False, 7)]
