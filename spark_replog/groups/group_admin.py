"""What commands show and plan of a group: its members, its lags, and where its offsets are to be reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import NotFoundError, unknown_partition
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import group_not_found
from spark_replog.groups.group_rebalance import decode_assignment
from spark_replog.health.lag import lag_of
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import GroupMember, OffsetAndMetadata
from spark_replog.log.fold.group_state import GroupState


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group.

    Attributes:
        committed: None: the group has no offset here, and its lag is undefined, not zero.
        log_start_offset: None: the topic or the partition is gone.
        high_watermark: as log_start_offset.
        lag: high watermark - committed; counted from the committed number even below the log start.
        lag_ms: for how long the first record that is not read has been in the log; 0 without a lag.
        lag_bytes: of the records that are not read.
        member_id: who reads it now; '' nobody that the group knows.
    """

    topic: str
    partition: int
    committed: OffsetAndMetadata | None
    log_start_offset: int | None
    high_watermark: int | None
    lag: int | None
    lag_ms: int | None
    lag_bytes: int | None
    member_id: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group.

    Attributes:
        state: EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE.
        protocol: assignor; '' without members.
    """

    group: str
    state: str
    protocol: str
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionLag, ...]


def describe_group(cluster: Cluster, coordinator: GroupCoordinator, group: str) -> GroupDescription:
    """Return the group with its lags on the newest folds, of topics that may be described; no row is read.

    Raises:
        NotFoundError: GROUP_ID_NOT_FOUND.
        RetriableError: REPLOG_NO_QUORUM.
    """
    state = coordinator.group(group)
    if state is None:
        raise group_not_found(group)
    return describe_groups(cluster, coordinator, [state])[0]


def describe_groups(
    cluster: Cluster, coordinator: GroupCoordinator, states: Sequence[GroupState]
) -> list[GroupDescription]:
    """Return groups with their lags, as ``describe_group`` does; each ledger is folded once for all of them."""
    assigned = [_assigned(state) for state in states]
    names = {topic for state in states for topic, _ in state.offsets} | {key.topic for keys in assigned for key in keys}
    shown = coordinator.describable(names)
    handles = {}
    for name in sorted(shown):
        try:
            handles[name] = cluster.lookup(name)
        except NotFoundError:
            continue
    cluster.refresh_topics(handles.values())
    found = []
    for state, members in zip(states, assigned, strict=True):
        keys = sorted({*(TopicPartition(*key) for key in state.offsets), *members})
        lags = tuple(_lag(cluster, handles.get(key.topic), state, key, members) for key in keys if key.topic in shown)
        metadata = state.metadata
        found.append(
            GroupDescription(
                state.group, metadata.phase.name, metadata.protocol, metadata.generation, metadata.members, lags
            )
        )
    return found


def _assigned(state: GroupState) -> dict[TopicPartition, str]:
    return {key: member.member_id for member in state.metadata.members for key in decode_assignment(member.assignment)}


def _lag(
    cluster: Cluster,
    handle: TopicHandle | None,
    state: GroupState,
    key: TopicPartition,
    members: Mapping[TopicPartition, str],
) -> PartitionLag:
    who = members.get(key, "")
    committed = state.offsets.get((key.topic, key.partition))
    gone = PartitionLag(key.topic, key.partition, committed, None, None, None, None, None, who)
    if handle is None:
        return gone
    try:
        ledger, _ = cluster.folded_topic(handle)
    except NotFoundError:
        return gone
    if committed is not None and committed.topic_id and committed.topic_id != handle.topic_id:
        committed = None  # of a topic that was deleted, and made again under its name
    at = None if committed is None else committed.offset
    with ledger.lock:
        lag = lag_of(ledger.state, handle.topic_id, key.partition, at, cluster.clock.now_ms())
    return gone if lag is None else PartitionLag(key.topic, key.partition, committed, *lag[:5], who)


TimeLookup = Callable[..., Mapping[int, int | None]]


class ResetTo(NamedTuple):
    """What is wanted.

    Attributes:
        kind: earliest, latest, current, offset, shift_by, datetime, by_duration, from_file.
        value: the offset, the shift, or epoch milliseconds.
    """

    kind: str
    value: int = 0


def plan_reset(
    cluster: Cluster,
    coordinator: GroupCoordinator,
    group: str,
    keys: Sequence[TopicPartition],
    target: ResetTo,
    given: Mapping[TopicPartition, int],
    offsets_for_times: TimeLookup,
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Return per partition the committed offset (None without) and the new one, never outside of the log.

    Args:
        group: its name; it need not exist yet.
        given: offsets of ``from_file``.
        offsets_for_times: ``consumer.offsets_for_times``, which reads rows and so stands above this room.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
    """
    committed = coordinator.fetch_offsets(group, keys)
    handles = {name: cluster.lookup(name) for name in {key.topic for key in keys}}
    cluster.refresh_topics(handles.values())
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for key in keys:
        handle = handles[key.topic]
        ledger, topic = cluster.folded_topic(handle)
        with ledger.lock:
            if not 0 <= key.partition < len(topic.partitions):
                raise unknown_partition(key.topic, key.partition, len(topic.partitions))
            start, end = (
                topic.partitions[key.partition].log_start_offset,
                topic.partitions[key.partition].high_watermark,
            )
        now = committed[key]
        before = None if now is None else now.offset
        if target.kind in ("datetime", "by_duration"):
            times = {key.partition: target.value}
            at = offsets_for_times(ledger, cluster.brokers, key.topic, handle.topic_id, times)[key.partition]
            wanted = end if at is None else at
        else:
            current = end if before is None else before
            wanted = {
                "earliest": start,
                "latest": end,
                "current": current,
                "offset": target.value,
                "shift_by": current + target.value,
                "from_file": given.get(key, current),
            }[target.kind]
        found[key] = (before, min(max(wanted, start), end))
    return found
