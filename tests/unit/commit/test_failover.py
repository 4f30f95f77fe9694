"""What an ENTRY must hold that gives brokers up: judged for the partitions that go on."""

from __future__ import annotations

import pytest

from spark_replog.commit.state_changes import failover_commands
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    DataObject,
    IdentityKind,
    IsrChange,
    ProducerIdentity,
    Section,
    TopicClose,
    TopicInit,
    Truncate,
)

ORDERS, OTHER = "a" * 32, "b" * 32
GONE = frozenset({0})


def state_of(*commands) -> TopicLedgerState:
    state = TopicLedgerState("L")
    state.apply(0, encode_entry([encode_command(command) for command in commands]))
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


def append_held_by(holders: frozenset[int], sequence: int) -> Append:
    section = Section(ORDERS, 0, 2, 0, 8, 0, 0, 0)
    identity = ProducerIdentity("query-1", "query-1", sequence, "run-1", IdentityKind.STREAM)
    return Append(identity, "User:s", "", 0, (DataObject(ObjectId(0, f"o{sequence}"), 8, False, holders, (section,)),))


def test_the_log_is_cut_before_the_next_leader_is_made_so_that_its_epoch_begins_at_the_cut() -> None:
    everybody = frozenset({0, 1, 2})
    state = state_of(TopicInit(ORDERS, "orders", ((0, 1, 2),), ()))
    for index, holders in enumerate((everybody, GONE), start=1):
        state.apply(index, encode_entry([encode_command(append_held_by(holders, index))]))
    commands = failover_commands(state, GONE, 7)
    assert commands == [Truncate(1), IsrChange(None, 0, False, 7)]
    state.apply(3, encode_entry([encode_command(command) for command in commands]))
    partition = state.topics[ORDERS].partitions[0]
    assert (partition.leader, partition.log_end_offset) == (1, 2)
    newest = partition.leader_epochs.entries[-1]
    assert (newest.epoch, newest.start_offset) == (partition.leader_epoch, 2)


@pytest.mark.parametrize("is_forced", [False, True])
def test_replicas_that_are_lost_with_a_whole_isr_stay_in_sync_while_one_of_them_lacks_rows(is_forced: bool) -> None:
    lost = frozenset({0, 2})
    careless = (("min.insync.replicas", "1"),)
    state = state_of(TopicInit(ORDERS, "orders", ((0, 2), (2, 0, 1)), careless))
    complete = failover_commands(state, lost, 7, is_forced=is_forced)
    assert complete == [IsrChange(None, 0, False, 7), IsrChange(None, 2, False, 7)], "both hold everything"
    state.apply(1, encode_entry([encode_command(append_held_by(GONE, 1))]))
    for gone in (lost, lost - GONE, GONE):
        commands = failover_commands(state, gone, 7, is_forced=is_forced)
        assert bool(commands) == (gone != lost), "partition 0 waits for the rows that only broker 0 holds"
    state.apply(2, encode_entry([encode_command(command) for command in commands]))
    waiting = state.topics[ORDERS].partitions[0]
    assert (waiting.isr, waiting.leader, waiting.log_end_offset) == ((2,), 2, 0), "broker 0 alone: its rows are cut"
