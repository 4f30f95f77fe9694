"""Which brokers hold which partition. Pure.

Source: Kafka's ``AdminUtils.assignReplicasToBrokers``, rack-unaware and rack-aware.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import BrokerId

Assignment = tuple[tuple[BrokerId, ...], ...]
"""Per partition the replicas, preferred leader first."""


def assign_replicas(
    brokers: Mapping[BrokerId, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Assignment:
    """Spread replicas so that leaders and copies are even and racks differ where they can.

    Args:
        brokers: broker id to rack; None where no rack is known.
        partition_count: how many partitions to place.
        replication_factor: copies of each.
        start_index: where the first leader goes; None picks one at random.
        first_partition: number of the first partition placed (growth continues the pattern).

    Raises:
        InvalidConfigError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, or INVALID_REPLICA_ASSIGNMENT
            where some brokers have a rack and others have none.
    """
    if partition_count <= 0:
        raise InvalidConfigError(
            ErrorCode.INVALID_PARTITIONS,
            "a topic needs at least one partition. Give a number above 0.",
            partitions=partition_count,
        )
    if replication_factor <= 0 or replication_factor > len(brokers):
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the store has {len(brokers)} brokers, so a topic can have 1 to {len(brokers)} replicas. "
            "Give fewer replicas or a store with more roots.",
            replicas=replication_factor,
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if racks and len(racks) != len(brokers):
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "some brokers have a rack and others have none. Give every broker a rack, or none.",
            without_rack=sorted(set(brokers) - set(racks)),
        )
    start = random.randrange(len(brokers)) if start_index is None else start_index
    # Without racks all are in one: Kafka's rack-unaware algorithm is the same loop with nothing to avoid.
    return _assign(racks or dict.fromkeys(brokers, ""), partition_count, replication_factor, start, first_partition)


def place_replicas(
    brokers: Mapping[BrokerId, str | None],
    fenced: Collection[BrokerId],
    partition_count: int,
    replication_factor: int,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Assignment:
    """Spread replicas over the brokers in service; fenced ones come last, and only where those are too few.

    So each partition has a leader (source: Kafka's ``StripedReplicaPlacer``). The caller has checked that somebody is
    in service and that the brokers are enough. Other arguments and errors: ``assign_replicas``.
    """
    active = {broker_id: rack for broker_id, rack in brokers.items() if broker_id not in fenced}
    resting = sorted(set(brokers) - set(active))
    active_count = min(replication_factor, len(active))
    rows = assign_replicas(
        active, partition_count, active_count, start_index=start_index, first_partition=first_partition
    )
    return tuple(
        (*row, *(resting[(number + each) % len(resting)] for each in range(replication_factor - active_count)))
        for number, row in enumerate(rows, first_partition)
    )


def check_explicit(
    assignment: Assignment,
    registered: Collection[BrokerId],
    fenced: Collection[BrokerId] = (),
    *,
    replication_factor: int | None = None,
) -> None:
    """Refuse an assignment that a user gave and no topic can have. Source: ``ReplicationControlManager``.

    Args:
        assignment: per partition the replicas, preferred leader first.
        registered: the store's brokers.
        fenced: those of them that are out of service.
        replication_factor: that every partition must have; None: that of the first.

    Raises:
        InvalidConfigError: INVALID_REPLICA_ASSIGNMENT.
    """
    factor = len(assignment[0]) if assignment and replication_factor is None else replication_factor
    for partition, replicas in enumerate(assignment):
        unknown = sorted(set(replicas).difference(registered))
        problem = ""
        if not replicas or len(set(replicas)) != len(replicas):
            problem = "each broker stands once in a list, and one at least"
        elif len(replicas) != factor:
            problem = f"it has {len(replicas)} replicas where {factor} are due"
        elif unknown:
            problem = f"brokers {unknown} are not registered"
        elif set(replicas) <= set(fenced):
            problem = "all of its brokers are fenced"
        if problem:
            raise InvalidConfigError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{list(replicas)} cannot hold a partition: {problem}. Correct the assignment.",
                partition=partition,
            )


def _assign(
    racks: Mapping[BrokerId, str], partition_count: int, replication_factor: int, start: int, first_partition: int
) -> Assignment:
    brokers = rack_alternated(racks)
    count, rack_count = len(brokers), len(set(racks.values()))
    shift = start
    rows: list[tuple[BrokerId, ...]] = []
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        chosen = [brokers[first]]
        used_racks = {racks[brokers[first]]}
        candidate_number = 0
        while len(chosen) < replication_factor:
            broker = brokers[_replica_index(first, shift * rack_count, candidate_number, count)]
            candidate_number += 1
            repeats_rack = racks[broker] in used_racks and len(used_racks) < rack_count
            repeats_broker = broker in chosen and len(chosen) < count
            if not repeats_rack and not repeats_broker:
                chosen.append(broker)
                used_racks.add(racks[broker])
        rows.append(tuple(chosen))
    return tuple(rows)


def _replica_index(first: int, shift: int, follower: int, count: int) -> int:
    return (first + 1 + (shift + follower) % (count - 1)) % count


def rack_alternated(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Order brokers so that neighbours are in different racks as long as racks last."""
    members: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        members.setdefault(racks[broker], []).append(broker)
    ordered: list[BrokerId] = []
    depth = 0
    while len(ordered) < len(racks):
        ordered += [members[rack][depth] for rack in sorted(members) if depth < len(members[rack])]
        depth += 1
    return ordered
