"""The states of partitions and replicas, and the moves between them that brokers which run nothing can make.

Source: Kafka's ``PartitionStateMachine`` and ``ReplicaStateMachine``. A state is not kept: it follows from the
fold, so a coordinator that takes over has nothing to recompute. What a move changes is a ledger entry, made in
``state_changes``. New is a state within an entry: the one that makes a partition or a replica makes it online or
offline as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId
from spark_replog.log.fold.election import NO_LEADER
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicState


class PartitionPhase(Enum):
    """Where a partition stands."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaPhase(Enum):
    """Where a replica stands."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


_P, _R = PartitionPhase, ReplicaPhase

PARTITION_MOVES: Mapping[PartitionPhase, frozenset[PartitionPhase]] = {
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
}
"""Target -> the states that it may be reached from."""

REPLICA_MOVES: Mapping[ReplicaPhase, frozenset[ReplicaPhase]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE}),
    # A root cannot be told to delete: its objects are garbage from the moment its replica is offline for good.
    _R.NON_EXISTENT: frozenset({_R.OFFLINE}),
}
"""Target -> the states that it may be reached from. Kafka's three deletion states need a broker that answers."""


def partition_phase(topic: TopicState | None, number: int) -> PartitionPhase:
    """Return where a partition stands by the fold: OFFLINE without a leader, or when its topic was deleted."""
    if topic is None or number >= len(topic.partitions):
        return PartitionPhase.NON_EXISTENT
    partition = topic.partitions[number]
    return PartitionPhase.OFFLINE if topic.closed or partition.leader == NO_LEADER else PartitionPhase.ONLINE


def replica_phase(partition: PartitionState, broker_id: BrokerId, fenced: Collection[BrokerId]) -> ReplicaPhase:
    """Return where a replica stands by the fold: ONLINE in sync and in service, else OFFLINE.

    A fenced broker may be the last in sync; it stays offline, as in Kafka.
    """
    if broker_id not in partition.replicas:
        return ReplicaPhase.NON_EXISTENT
    is_online = broker_id in partition.isr and broker_id not in fenced and not partition.retired
    return ReplicaPhase.ONLINE if is_online else ReplicaPhase.OFFLINE


def move_partition(before: PartitionPhase, *targets: PartitionPhase, **where: object) -> None:
    """Walk a partition through its states; refuse a step that the state machine does not have.

    Raises:
        ReplogError: INVALID_REQUEST: nothing was changed.
    """
    for target in targets:
        if before not in PARTITION_MOVES[target]:
            raise _illegal(before, target, where)
        before = target


def move_replica(before: ReplicaPhase, *targets: ReplicaPhase, **where: object) -> None:
    """Walk a replica through its states; refuse a step that the state machine does not have.

    Raises:
        ReplogError: INVALID_REQUEST: nothing was changed.
    """
    for target in targets:
        if before not in REPLICA_MOVES.get(target, frozenset()):
            raise _illegal(before, target, where)
        before = target


def _illegal(before: Enum, target: Enum, where: dict[str, object]) -> ReplogError:
    return ReplogError(
        ErrorCode.INVALID_REQUEST,
        f"{before.value} cannot become {target.value}; nothing was changed. Look at it: replog topic describe.",
        **where,
    )
