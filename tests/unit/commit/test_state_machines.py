"""Kafka's state machines, as far as brokers that run nothing can make their moves."""

from __future__ import annotations

import pytest

from spark_replog.commit.state_changes import (
    PartitionPhase,
    ReplicaPhase,
    move,
    partition_phase,
    replica_phase,
)
from spark_replog.errors import ReplogError
from spark_replog.log.fold.partition_state import NO_LEADER, PartitionState
from spark_replog.log.fold.topic_table import TopicState

P, R = PartitionPhase, ReplicaPhase

# Kafka's tables, target by source; three deletion states need a broker that answers.
KAFKA_PARTITION = {
    (P.NON_EXISTENT, P.NEW), (P.NEW, P.ONLINE), (P.NEW, P.OFFLINE), (P.ONLINE, P.ONLINE), (P.ONLINE, P.OFFLINE),
    (P.OFFLINE, P.NON_EXISTENT), (P.OFFLINE, P.ONLINE), (P.OFFLINE, P.OFFLINE),
}  # fmt: skip
KAFKA_REPLICA = {
    (R.NON_EXISTENT, R.NEW), (R.NEW, R.ONLINE), (R.ONLINE, R.ONLINE), (R.OFFLINE, R.ONLINE),
    (R.NEW, R.OFFLINE), (R.ONLINE, R.OFFLINE), (R.OFFLINE, R.OFFLINE),
}  # fmt: skip


@pytest.mark.case("kafka-117")
@pytest.mark.parametrize("before", P)
@pytest.mark.parametrize("target", P)
def test_partitions_make_kafkas_moves_and_no_other(before, target):
    if (before, target) in KAFKA_PARTITION:
        move(before, target)
    else:
        with pytest.raises(ReplogError, match="INVALID_REQUEST"):
            move(before, target)


@pytest.mark.case("server-7-5-replica-states-three-deletion")
@pytest.mark.parametrize("before", R)
@pytest.mark.parametrize("target", R)
def test_replicas_make_kafkas_moves_but_for_those_that_a_broker_would_have_to_answer(before, target):
    # Kafka goes from Offline to NonExistent by three deletion states; here the root is never asked.
    if (before, target) in KAFKA_REPLICA or (before, target) == (R.OFFLINE, R.NON_EXISTENT):
        move(before, target)
    else:
        with pytest.raises(ReplogError, match="INVALID_REQUEST"):
            move(before, target)


def test_a_walk_stops_at_its_first_illegal_step_and_names_it():
    move(P.NON_EXISTENT, P.NEW, P.ONLINE, P.OFFLINE, P.NON_EXISTENT)
    with pytest.raises(ReplogError, match="OnlinePartition cannot become NonExistentPartition; nothing was changed"):
        move(P.NEW, P.ONLINE, P.NON_EXISTENT, P.NEW)
    with pytest.raises(ReplogError, match=r"NonExistentReplica cannot become OnlineReplica.*broker=`3`"):
        move(R.NON_EXISTENT, R.ONLINE, broker=3)


def test_states_follow_from_the_fold():
    partition = PartitionState((0, 1, 2))
    topic = TopicState("a" * 32, "orders", {}, False, [partition])
    assert (partition_phase(None, 0), partition_phase(topic, 1)) == (P.NON_EXISTENT, P.NON_EXISTENT)
    assert partition_phase(topic, 0) is P.ONLINE
    partition.isr = (0, 1)
    assert [replica_phase(partition, broker, {1}) for broker in range(4)] == [
        R.ONLINE, R.OFFLINE, R.OFFLINE, R.NON_EXISTENT,
    ]  # fmt: skip
    partition.leader = NO_LEADER
    assert partition_phase(topic, 0) is P.OFFLINE
    partition.leader, topic.closed, partition.retired = 0, True, True
    assert partition_phase(topic, 0) is P.OFFLINE
    assert replica_phase(partition, 0, ()) is R.OFFLINE
