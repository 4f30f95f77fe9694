"""The states of partitions and replicas, and the moves between them that brokers which run nothing can make.

Source: Kafka's ``PartitionStateMachine`` and ``ReplicaStateMachine``. A state is not kept: it follows from the
fold, so a coordinator that takes over has nothing to recompute. What a move changes is a ledger entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId
from spark_replog.log.election import NO_LEADER
from spark_replog.log.partition_state import PartitionState
from spark_replog.log.topic_state import TopicState


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
    """Return where a partition stands by the fold; NEW while nobody was ever elected."""
    if topic is None or number >= len(topic.partitions):
        return PartitionPhase.NON_EXISTENT
    partition = topic.partitions[number]
    return PartitionPhase.OFFLINE if topic.closed or partition.leader == NO_LEADER else PartitionPhase.ONLINE


def replica_phase(partition: PartitionState, broker_id: BrokerId) -> ReplicaPhase:
    """Return where a replica stands by the fold: NEW while a reassignment brings it."""
    if broker_id not in partition.replicas:
        return ReplicaPhase.NON_EXISTENT
    if broker_id in partition.isr:
        return ReplicaPhase.ONLINE
    return ReplicaPhase.NEW if broker_id in partition.adding else ReplicaPhase.OFFLINE


def check_partition_move(before: PartitionPhase, target: PartitionPhase, **where: object) -> None:
    """Refuse a move that the state machine does not have.

    Raises:
        ReplogError: INVALID_REQUEST: nothing was changed.
    """
    if before not in PARTITION_MOVES[target]:
        raise _illegal(before, target, where)


def check_replica_move(before: ReplicaPhase, target: ReplicaPhase, **where: object) -> None:
    """Refuse a move that the state machine does not have.

    Raises:
        ReplogError: INVALID_REQUEST: nothing was changed.
    """
    if before not in REPLICA_MOVES.get(target, frozenset()):
        raise _illegal(before, target, where)


def _illegal(before: Enum, target: Enum, where: dict[str, object]) -> ReplogError:
    return ReplogError(
        ErrorCode.INVALID_REQUEST,
        f"{before.value} cannot become {target.value}; nothing was changed. Look at it: replog topic describe.",
        **where,
    )
