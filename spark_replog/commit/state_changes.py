"""Commands of the partition and replica state machines. Pure (except `complete_reassignments`): fold in, commands out.

Every entry that creates, grows, deletes, fences, elects, reassigns or changes an ISR takes its commands from here; the
fold checks each again. A state is not stored: it follows from the fold. ``NEW`` exists within one entry only: the entry
that creates a partition also makes it online or offline.

Source: Kafka's ``PartitionStateMachine``, ``ReplicaStateMachine``, ``TopicDeletionManager``,
``PartitionReassignmentReplicas`` and ``PartitionReassignmentRevert``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from spark_replog.errors import ErrorCode, NotFoundError, ReplogError
from spark_replog.ids import BrokerId, TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import NO_LEADER, PartitionState, elect_reassigned
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicState
from spark_replog.log.model import (
    BrokerFence,
    IsrChange,
    PartitionChange,
    PartitionsAdd,
    TopicClose,
    TopicInit,
    Truncate,
)


class PartitionPhase(Enum):
    """The state of a partition."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaPhase(Enum):
    """The state of a replica."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"


_P, _R = PartitionPhase, ReplicaPhase

MOVES: Mapping[Enum, frozenset[Enum]] = {
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE}),
    # Roots run nothing: the objects of a replica become garbage when it is offline for good.
    _R.NON_EXISTENT: frozenset({_R.OFFLINE}),
}
"""Target -> the states that it may be reached from, Kafka's without the three deletion states of replicas: those need
a broker that answers."""


def partition_phase(topic: TopicState | None, number: int) -> PartitionPhase:
    """Return a partition's state by the fold: OFFLINE without a leader, or when its topic was deleted."""
    if topic is None or number >= len(topic.partitions):
        return PartitionPhase.NON_EXISTENT
    partition = topic.partitions[number]
    return PartitionPhase.OFFLINE if topic.closed or partition.leader == NO_LEADER else PartitionPhase.ONLINE


def replica_phase(partition: PartitionState, broker_id: BrokerId, fenced: Collection[BrokerId]) -> ReplicaPhase:
    """Return a replica's state by the fold: ONLINE in sync and in service, else OFFLINE.

    A fenced broker may be the last in sync; it stays offline, as in Kafka.
    """
    if broker_id not in partition.replicas:
        return ReplicaPhase.NON_EXISTENT
    is_online = broker_id in partition.isr and broker_id not in fenced and not partition.retired
    return ReplicaPhase.ONLINE if is_online else ReplicaPhase.OFFLINE


def move(before: Enum, *targets: Enum, **where: object) -> None:
    """Walk a partition or a replica through its states; refuse a step that its state machine does not have.

    Raises:
        ReplogError: INVALID_REQUEST: nothing was changed.
    """
    for target in targets:
        if before not in MOVES[target]:
            raise ReplogError(
                ErrorCode.INVALID_REQUEST,
                f"{before.value} cannot become {target.value}; nothing was changed. Look at it: replog topic describe.",
                **where,
            )
        before = target


def live_topic(state: TopicLedgerState, topic_id: TopicId) -> TopicState:
    """Return a topic that can be changed.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: it was deleted meanwhile.
    """
    topic = state.topics[topic_id]
    if topic.closed:
        raise NotFoundError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic '{topic.name}' was deleted. Nothing was changed. Look at those that there are: replog topic list.",
            topic=topic.name,
        )
    return topic


def live_partitions(state: TopicLedgerState) -> Iterator[tuple[TopicState, int, PartitionState]]:
    """Yield the partitions of the topics that were not deleted, with their topic and number."""
    for topic in state.topics.values():
        if not topic.closed:
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition


def create_topic(
    state: TopicLedgerState, made: TopicInit, *, fenced: frozenset[BrokerId], away: Iterable[BrokerId], now_ms: int
) -> list[BrokerFence | TopicInit | IsrChange]:
    """Return the commands that create a topic: each partition new, then online, or offline if all brokers are fenced.

    Nothing if the topic exists: the answer to an earlier try was lost.

    Args:
        made: the topic, with an id that was never used.
        fenced: brokers that the cluster ledger has out of service.
        away: brokers whose root does not answer: they start out of sync, from `now_ms` (wall time) on.

    Raises:
        ReplogError: INVALID_REQUEST: the topic of that id was deleted; a name can return only with a new id.
    """
    topic = state.topics.get(made.topic_id)
    if topic is not None and not topic.closed:
        return []
    for number, replicas in enumerate(made.assignments):
        target = _P.ONLINE if set(replicas) - fenced else _P.OFFLINE
        move(partition_phase(topic, number), _P.NEW, target, topic=made.name, partition=number)
    leaving = [IsrChange(made.topic_id, broker_id, False, now_ms) for broker_id in sorted(away)]
    return [*settle_fences(state, fenced), made, *leaving]


def grow_topic(
    state: TopicLedgerState, grown: PartitionsAdd, *, fenced: frozenset[BrokerId]
) -> list[BrokerFence | PartitionsAdd]:
    """Return the commands that add partitions: each new, then online or offline as in ``create_topic``.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
        ReplogError: INVALID_REQUEST: one of them exists: another command added it.
    """
    topic = live_topic(state, grown.topic_id)
    for number in range(grown.total - len(grown.assignments), grown.total):
        move(partition_phase(topic, number), _P.NEW, topic=topic.name, partition=number)
    return [*settle_fences(state, fenced), grown]


def leave_empty(
    state: TopicLedgerState, topic_id: TopicId, numbers: Iterable[int], away: Collection[BrokerId]
) -> list[PartitionChange]:
    """Return the changes that take brokers whose root does not answer out of the ISR of partitions without rows.

    The last in-sync replica stays. A partition with rows is left to the next commit, which knows what it may lose.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
    """
    topic = live_topic(state, topic_id)
    changes = []
    for number in numbers:
        at = topic.partitions[number]
        isr = tuple(broker_id for broker_id in at.isr if broker_id not in away)
        if isr and isr != at.isr and not at.log_end_offset:
            leader = settle_leader(at, isr, at.replicas, state.fenced)
            changes.append(change_partition(state, topic_id, number, leader=leader, isr=isr))
    return changes


def close_topic(state: TopicLedgerState, topic_id: TopicId) -> list[TopicClose]:
    """Return the command that takes a topic's partitions and replicas offline for good; none if they already are."""
    topic = state.topics.get(topic_id)
    return [] if topic is None or topic.closed else [TopicClose(topic_id)]


def check_deleted(state: TopicLedgerState, topic_id: TopicId, name: str) -> None:
    """Refuse to free the name of a topic whose partitions are not offline.

    Raises:
        ReplogError: INVALID_REQUEST: the topic is in use; nothing was changed.
    """
    topic = state.topics.get(topic_id)
    if topic is None:
        return
    for number, partition in enumerate(topic.partitions):
        move(partition_phase(topic, number), _P.NON_EXISTENT, topic=name, partition=number)
        for broker_id in partition.replicas:
            before = replica_phase(partition, broker_id, state.fenced)
            move(before, _R.NON_EXISTENT, topic=name, partition=number, broker=broker_id)


def change_partition(
    state: TopicLedgerState,
    topic_id: TopicId,
    number: int,
    *,
    leader: BrokerId,
    isr: tuple[BrokerId, ...] | None = None,
    replicas: tuple[BrokerId, ...] | None = None,
    adding: tuple[BrokerId, ...] | None = None,
    removing: tuple[BrokerId, ...] | None = None,
    is_unclean: bool = False,
) -> PartitionChange:
    """Return the change of one partition's leader, ISR and replicas; None keeps the present value.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
        ReplogError: INVALID_REQUEST: no such move; INELIGIBLE_REPLICA: a fenced broker would lead or join.
    """
    topic = live_topic(state, topic_id)
    at = topic.partitions[number]
    change = PartitionChange(
        topic_id,
        number,
        at.leader_epoch,
        at.partition_epoch,
        leader,
        at.isr if isr is None else isr,
        at.replicas if replicas is None else replicas,
        at.adding if adding is None else adding,
        at.removing if removing is None else removing,
        is_unclean,
    )
    target = _P.OFFLINE if leader == NO_LEADER else _P.ONLINE
    move(partition_phase(topic, number), target, topic=topic.name, partition=number)
    joining = sorted({leader, *change.isr}.difference(at.isr, [NO_LEADER]))
    for broker_id in joining:
        before = replica_phase(at, broker_id, state.fenced)
        move(before, _R.ONLINE, topic=topic.name, partition=number, broker=broker_id)
    for broker_id in state.fenced.intersection([*joining, leader]):  # one may be the last in sync, but must not lead
        raise ReplogError(
            ErrorCode.INELIGIBLE_REPLICA,
            f"broker {broker_id} is fenced, so it can neither lead nor join. Nothing was changed. Put it back: "
            f"replog broker unfence {broker_id}.",
            topic=topic.name,
            partition=number,
        )
    return change


def leaving_replicas(
    late: Collection[BrokerId], partitions: Iterable[tuple[Collection[BrokerId], int]]
) -> frozenset[BrokerId]:
    """Return which of the replicas that are later than ``replica.lag.time.max.ms`` may leave the ISR now.

    They may, as long as ``min.insync.replicas`` others stay. Without the last ones nothing could be acknowledged, so
    an append waits for them until its own timeout: a slow root makes writes slow, never impossible. The late replicas
    of a partition leave together or not at all: it is not known yet which of them is faster. Source: Kafka's
    ``Partition.maybeShrinkIsr``, which shrinks below ``min.insync.replicas`` too.

    Args:
        partitions: per partition that waits: its in-sync replicas and its ``min.insync.replicas``.
    """
    leaving = frozenset(late)
    gates = sorted(
        ((frozenset(in_sync), min_insync) for in_sync, min_insync in partitions), key=lambda gate: len(gate[0])
    )
    while True:
        needed = next(
            (in_sync & leaving for in_sync, least in gates if len(in_sync - leaving) < least <= len(in_sync)), None
        )
        if needed is None:
            break
        leaving -= needed  # those of the smallest ISR first: it has the least choice
    assert leaving <= frozenset(late)
    return leaving


def leave_isr(state: TopicLedgerState, broker_ids: Iterable[BrokerId], now_ms: int) -> list[IsrChange]:
    """Return the commands that take brokers out of every ISR of the ledger in which they are not alone."""
    in_sync = {root for _, _, partition in live_partitions(state) if len(partition.isr) > 1 for root in partition.isr}
    return [IsrChange(None, broker_id, False, now_ms) for broker_id in sorted(in_sync.intersection(broker_ids))]


def join_isr(state: TopicLedgerState, broker_id: BrokerId, now_ms: int) -> list[IsrChange]:
    """Return the command that takes a broker into every ISR that it is assigned to; none if it is fenced or in all."""
    return [IsrChange(None, broker_id, True, now_ms)] if broker_id in out_of_sync(state) else []


def out_of_sync(state: TopicLedgerState) -> set[BrokerId]:
    """Return the brokers in service that are in some partition's replicas and not in its ISR."""
    return {
        broker_id
        for _, _, partition in live_partitions(state)
        if len(partition.isr) < len(partition.replicas)
        for broker_id in partition.replicas
        if broker_id not in partition.isr and broker_id not in state.fenced
    }


def failover_commands(
    state: TopicLedgerState, gone: frozenset[BrokerId], now_ms: int, *, is_forced: bool = False
) -> list[Truncate | IsrChange]:
    """Return the commands of the ENTRY that gives brokers up: truncation first, so that the new epochs begin there.

    Args:
        now_ms: wall time; a broker may rejoin ``replica.rejoin.wait.ms`` later.
        is_forced: a user asked for it: ``min.insync.replicas`` does not prevent it.
    """
    gone = able_to_leave(state, gone)
    led = [
        partition
        for _, _, partition in live_partitions(state)
        if not gone.isdisjoint(partition.isr) and not gone.issuperset(partition.isr)
    ]
    if not is_forced and any(len(set(partition.isr) - gone) < partition.min_insync for partition in led):
        return []
    after_index = state.objects.lost_after(gone)
    commands: list[Truncate | IsrChange] = [] if after_index is None else [Truncate(after_index)]
    leaving = {broker_id for partition in led for broker_id in gone.intersection(partition.isr)}
    return [*commands, *leave_isr(state, leaving, now_ms)]


def able_to_leave(state: TopicLedgerState, gone: frozenset[BrokerId]) -> frozenset[BrokerId]:
    """Return the lost brokers without those that must stay in sync together, so that a partition waits for its rows.

    A broker leaves every ISR of the ledger at once, and the last replica of an ISR stays. So if all in-sync replicas
    of a partition are lost, one would remain, and rows that it lacks would be on no in-sync replica and not be cut.
    """
    if not any(len(partition.isr) > 1 and gone.issuperset(partition.isr) for _, _, partition in live_partitions(state)):
        return gone
    incomplete = {
        (partition.isr, 1)
        for lacked in state.under_replicated()
        for section in lacked.sections
        for partition in (state.topics[section.topic_id].partitions[section.partition],)
        if len(partition.isr) > 1 and not partition.retired and not set(partition.isr).isdisjoint(lacked.missing)
    }
    return leaving_replicas(gone, incomplete)


def settle_fences(state: TopicLedgerState, wanted: frozenset[BrokerId]) -> list[BrokerFence]:
    """Return the commands that give a topic ledger the fences of the cluster ledger."""
    fenced = state.fenced
    return [
        *(BrokerFence(broker_id, True) for broker_id in sorted(wanted - fenced)),
        *(BrokerFence(broker_id, False) for broker_id in sorted(fenced - wanted)),
    ]


def settle_leader(
    partition: PartitionState, isr: tuple[BrokerId, ...], target: tuple[BrokerId, ...], fenced: Collection[BrokerId]
) -> BrokerId:
    """Return the leader under a new ISR: the present one if in it, else the first of the target in sync and service.

    -1 if no in-sync replica is in service: the partition is offline until one is.
    """
    if partition.leader in isr:
        return partition.leader
    election = elect_reassigned((*target, *isr), isr, [broker_id for broker_id in isr if broker_id not in fenced])
    return NO_LEADER if election is None else election.leader


def is_reassigning(partition: PartitionState) -> bool:
    """Return whether a reassignment of the partition runs."""
    return bool(partition.adding or partition.removing)


def begin(state: TopicLedgerState, topic_id: TopicId, number: int, target: Sequence[BrokerId]) -> PartitionChange:
    """Return the change that begins a reassignment, or gives a running one a newer target.

    Raises:
        ReplogError: INVALID_REPLICA_ASSIGNMENT: no in-sync replica would stay.
    """
    partition = live_topic(state, topic_id).partitions[number]
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    adding = tuple(broker_id for broker_id in target if broker_id not in original)
    removing = tuple(replica for replica in original if replica not in target)
    return _change(state, topic_id, number, (*target, *removing), adding, removing)


def cancel(state: TopicLedgerState, topic_id: TopicId, number: int) -> PartitionChange:
    """Return the change that goes back to the replicas from before the reassignment.

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
    replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    return _change(state, topic_id, number, replicas, (), ())


def completions(state: TopicLedgerState) -> list[PartitionChange]:
    """Return the changes that end the reassignments whose target replicas are all in sync."""
    changes = []
    for topic, number, partition in live_partitions(state):
        target = tuple(replica for replica in partition.replicas if replica not in partition.removing)
        if is_reassigning(partition) and set(target).issubset(partition.isr):
            changes.append(_change(state, topic.topic_id, number, target, (), ()))
    return changes


def complete_reassignments(ledger: Ledger[TopicLedgerState], timeout_ms: int) -> int:
    """End the reassignments whose targets are all in sync; return how many. Raises REPLOG_NO_QUORUM."""
    count = 0
    with ledger.lock:
        if not completions(ledger.state):
            return 0

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        nonlocal count
        changes = completions(state)
        count = len(changes)
        return tuple(encode_command(change) for change in changes) or None

    ledger.append(propose, timeout_ms=timeout_ms)
    return count


def _change(
    state: TopicLedgerState,
    topic_id: TopicId,
    number: int,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> PartitionChange:
    partition = state.topics[topic_id].partitions[number]
    isr = tuple(replica for replica in replicas if replica in partition.isr)
    if not isr:
        raise ReplogError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of the brokers {list(replicas)} is in sync, so rows would be lost. Bring one back first, or let "
            "the reassignment end.",
            partition=number,
        )
    target = tuple(replica for replica in replicas if replica not in removing)
    leader = settle_leader(partition, isr, target, state.fenced)
    return change_partition(
        state, topic_id, number, leader=leader, isr=isr, replicas=replicas, adding=adding, removing=removing
    )
