"""Moving a partition to other brokers: add, catch up, drop. Changes are pure: states in, ledger commands out.

Source: Kafka's ``PartitionReassignmentReplicas`` and ``PartitionReassignmentRevert``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_replog.commit.state_changes import change_partition, live_partitions, live_topic, settle_leader
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import BrokerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import PartitionChange, encode_command
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState


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


def begin(state: TopicLedgerState, topic_id: TopicId, number: int, target: Sequence[BrokerId]) -> PartitionChange:
    """Return the change that begins a reassignment, or replaces the one that runs by a newer target.

    Raises:
        ReplogError: INVALID_REPLICA_ASSIGNMENT: nobody in sync would stay.
    """
    partition = live_topic(state, topic_id).partitions[number]
    original = tuple(each for each in partition.replicas if each not in partition.adding)
    adding = tuple(each for each in target if each not in original)
    removing = tuple(each for each in original if each not in target)
    replicas = (*target, *removing)
    return _change(state, topic_id, number, _still_in_sync(partition, replicas, number), replicas, adding, removing)


def cancel(state: TopicLedgerState, topic_id: TopicId, number: int) -> PartitionChange:
    """Return the change that goes back to the replicas of before.

    Raises:
        ReplogError: NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT: none of them is in sync.
    """
    partition = live_topic(state, topic_id).partitions[number]
    if not is_reassigning(partition):
        raise ReplogError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "no reassignment of this partition runs. There is nothing to cancel.",
            partition=number,
        )
    replicas = tuple(each for each in partition.replicas if each not in partition.adding)
    return _change(state, topic_id, number, _still_in_sync(partition, replicas, number), replicas, (), ())


def completion(state: TopicLedgerState, topic_id: TopicId, number: int) -> PartitionChange | None:
    """Return the change that ends a reassignment: as soon as every target replica is in sync."""
    partition = state.topics[topic_id].partitions[number]
    if not is_reassigning(partition):
        return None
    target = tuple(each for each in partition.replicas if each not in partition.removing)
    isr = tuple(each for each in partition.isr if each not in partition.removing)
    if not set(isr) >= set(target):
        return None
    return _change(state, topic_id, number, target, target, (), ())


def completions(state: TopicLedgerState) -> list[PartitionChange]:
    """Return the changes that end what can end now."""
    found = (completion(state, topic.topic_id, number) for topic, number, _ in live_partitions(state))
    return [each for each in found if each is not None]


def complete_reassignments(ledger: Ledger[TopicLedgerState], timeout_ms: int) -> int:
    """End the reassignments whose targets are all in sync; return how many.

    Raises:
        RetriableError: REPLOG_NO_QUORUM.
    """
    count = 0

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        nonlocal count
        changes = completions(state)
        count = len(changes)
        return tuple(encode_command(each) for each in changes) or None

    ledger.append(propose, timeout_ms=timeout_ms)
    return count


def _still_in_sync(partition: PartitionState, replicas: tuple[BrokerId, ...], number: int) -> tuple[BrokerId, ...]:
    isr = tuple(each for each in replicas if each in partition.isr)
    if not isr:
        raise ReplogError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of the brokers {list(replicas)} is in sync, so rows would be lost. Bring one back first, or let "
            "the reassignment end.",
            partition=number,
        )
    return isr


def _change(
    state: TopicLedgerState,
    topic_id: TopicId,
    number: int,
    isr: tuple[BrokerId, ...],
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> PartitionChange:
    target = tuple(each for each in replicas if each not in removing)
    leader = settle_leader(state.topics[topic_id].partitions[number], isr, target, state.fenced)
    return change_partition(
        state, topic_id, number, leader=leader, isr=isr, replicas=replicas, adding=adding, removing=removing
    )
