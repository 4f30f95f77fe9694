"""Moving a partition to other brokers: add, catch up, drop. Pure: states in, ledger commands out.

Source: Kafka's ``PartitionReassignmentReplicas`` and ``PartitionReassignmentRevert``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_replog.coordinator.state_machines import ReplicaPhase, check_replica_move, replica_phase
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import BrokerId, TopicId
from spark_replog.log.commands import PartitionChange
from spark_replog.log.election import elect_reassigned
from spark_replog.log.partition_state import PartitionState
from spark_replog.log.topic_state import TopicLedgerState


def check_target(target: Sequence[BrokerId], registered: Collection[BrokerId]) -> None:
    """Refuse a list of replicas that no partition can have.

    Raises:
        InvalidConfigError: INVALID_REPLICA_ASSIGNMENT.
    """
    unknown = sorted(set(target).difference(registered))
    if not target or len(set(target)) != len(target) or unknown:
        what = f"brokers {unknown} are not registered" if unknown else "each broker stands once, and one at least"
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{list(target)} cannot hold a partition: {what}. Give registered brokers, preferred leader first: "
            "replog broker list.",
        )


def is_reassigning(partition: PartitionState) -> bool:
    """Return whether a reassignment of the partition runs."""
    return bool(partition.adding or partition.removing)


def begin(topic_id: TopicId, number: int, partition: PartitionState, target: Sequence[BrokerId]) -> PartitionChange:
    """Return the change that begins a reassignment, or replaces the one that runs by a newer target."""
    original = tuple(each for each in partition.replicas if each not in partition.adding)
    adding = tuple(each for each in target if each not in original)
    removing = tuple(each for each in original if each not in target)
    replicas = (*target, *removing)
    for broker_id in adding:
        before = replica_phase(partition, broker_id)
        if before is ReplicaPhase.NON_EXISTENT:
            check_replica_move(before, ReplicaPhase.NEW, broker=broker_id)
    isr = tuple(each for each in replicas if each in partition.isr)
    return _change(topic_id, number, partition, isr, replicas, adding, removing)


def cancel(topic_id: TopicId, number: int, partition: PartitionState) -> PartitionChange:
    """Return the change that goes back to the replicas of before.

    Raises:
        ReplogError: NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT: none of them is in sync.
    """
    if not is_reassigning(partition):
        raise ReplogError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "no reassignment of this partition runs. There is nothing to cancel.",
            partition=number,
        )
    replicas = tuple(each for each in partition.replicas if each not in partition.adding)
    isr = tuple(each for each in replicas if each in partition.isr)
    if not isr:
        raise ReplogError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "none of the replicas of before is in sync, so going back would lose rows. Bring one back first.",
            partition=number,
        )
    return _change(topic_id, number, partition, isr, replicas, (), ())


def completion(topic_id: TopicId, number: int, partition: PartitionState) -> PartitionChange | None:
    """Return the change that ends a reassignment: as soon as every target replica is in sync."""
    if not is_reassigning(partition):
        return None
    target = tuple(each for each in partition.replicas if each not in partition.removing)
    isr = tuple(each for each in partition.isr if each not in partition.removing)
    if not set(isr) >= set(target):
        return None
    return _change(topic_id, number, partition, tuple(each for each in target if each in isr), target, (), ())


def completions(state: TopicLedgerState) -> list[PartitionChange]:
    """Return the changes that end what can end now."""
    found = (
        completion(topic.topic_id, number, partition)
        for topic in state.topics.values()
        if not topic.closed
        for number, partition in enumerate(topic.partitions)
    )
    return [each for each in found if each is not None]


def _change(
    topic_id: TopicId,
    number: int,
    partition: PartitionState,
    isr: tuple[BrokerId, ...],
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> PartitionChange:
    leader = partition.leader
    if leader not in isr:
        found = elect_reassigned(tuple(each for each in replicas if each not in removing), isr, isr)
        leader = isr[0] if found is None else found.leader
    return PartitionChange(
        topic_id, number, partition.leader_epoch, partition.partition_epoch, leader, isr, replicas, adding, removing
    )
