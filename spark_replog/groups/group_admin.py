"""Groups as commands show them, with members and lags, and the plan of an offset reset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import CorruptDataError, NotFoundError, unknown_partition
from spark_replog.groups.group_coordinator import GroupCoordinator, partition_count
from spark_replog.groups.group_ledger import group_not_found
from spark_replog.groups.group_rebalance import CONSUMER, decode_assignment
from spark_replog.health.readers import PartitionProgress, Reader, lag_of
from spark_replog.ids import TopicPartition
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log_position import offset_between

_LOG = logging.getLogger(__name__)


def describe_group(cluster: Cluster, coordinator: GroupCoordinator, group: str) -> Reader:
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
    cluster: Cluster, coordinator: GroupCoordinator, states: Sequence[GroupState], *, is_folded: bool = False
) -> list[Reader]:
    """Return groups with their lags, as ``describe_group`` does; each ledger is folded once for all of them.

    Includes all partitions of a topic that a group reads, also those without a position.

    Args:
        is_folded: the ledgers were just folded: nothing is read.
    """
    assigned = [_assigned(state) for state in states]
    names = {topic for state in states for topic, _ in state.offsets} | {key.topic for keys in assigned for key in keys}
    shown = coordinator.describable(names)
    handles = {}
    for name in sorted(shown):
        try:
            handles[name] = cluster.lookup(name)
        except NotFoundError:
            continue
    if not is_folded:
        cluster.refresh_topics(handles.values())
    counts = {name: partition_count(cluster, handle) for name, handle in handles.items()}
    readers = []
    for state, owners in zip(states, assigned, strict=True):
        partitions = {*(TopicPartition(*key) for key in state.offsets), *owners}
        topics = {key.topic for key in partitions}
        partitions.update(TopicPartition(name, number) for name in topics for number in range(counts.get(name, 0)))
        metadata = state.metadata
        readers.append(
            Reader(
                state.group,
                "group",
                metadata.phase.name,
                tuple(
                    _progress(cluster, handles.get(key.topic), state, key, owners.get(key, ""))
                    for key in sorted(partitions)
                    if key.topic in shown
                ),
                metadata.since_ms,
                state.last_commit_ms,
                max((member.session_timeout_ms for member in metadata.members), default=None),
                metadata.protocol,
                metadata.generation,
                metadata.members,
            )
        )
    return readers


def _assigned(state: GroupState) -> dict[TopicPartition, str]:
    owners: dict[TopicPartition, str] = {}
    if state.metadata.protocol_type not in ("", CONSUMER):
        return owners  # its members do not share partitions
    for member in state.metadata.members:
        try:
            owners |= dict.fromkeys(decode_assignment(member.assignment), member.member_id)
        except CorruptDataError as error:  # of a newer release, perhaps
            _LOG.warning("partitions of member %s, group %s, are not known: %s", member.member_id, state.group, error)
    return owners


def _progress(
    cluster: Cluster, handle: TopicHandle | None, state: GroupState, key: TopicPartition, owner: str
) -> PartitionProgress:
    committed = state.offsets.get((key.topic, key.partition))
    if handle is not None and committed is not None and committed.topic_id not in ("", handle.topic_id):
        committed = None  # of a deleted topic; another one has its name now
    if committed is None:
        made = PartitionProgress(key.topic, key.partition, None, owner=owner)
        history: tuple[tuple[int, int], ...] = ()
    else:
        at, move = committed.offset, state.moves.get((key.topic, key.partition))
        since_ms = committed.commit_time_ms if move is None else move.since_ms
        history = () if move is None or move.from_offset < 0 else ((move.from_ms, move.from_offset), (since_ms, at))
        note = committed.metadata
        made = PartitionProgress(key.topic, key.partition, at, committed.commit_time_ms, since_ms, None, owner, note)
    if handle is None:
        return made
    ledger = cluster.topic_ledger(handle.ledger_id)
    where, now_ms = (handle.topic_id, key.partition), cluster.clock.now_ms()
    lag = ledger.ask(lambda state: lag_of(state, *where, made.position, now_ms, history))
    return replace(made, lag=lag)


TimeLookup = Callable[..., Mapping[int, int | None]]


class ResetTo(NamedTuple):
    """The target of an offset reset.

    Attributes:
        kind: earliest, latest, current, offset, shift_by, datetime, by_duration, from_file.
        value: the offset, EARLIEST or LATEST; the shift; or epoch milliseconds.
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
    """Return per partition the committed offset (None for none) and the new one, never outside of the log.

    A wanted offset outside of the log is moved to its nearest end, and a warning is logged, as Kafka's command does.

    Args:
        group: its name; it need not exist yet.
        given: offsets of ``from_file``.
        offsets_for_times: ``consumer.offsets_for_times``, which reads rows and so belongs to a room above this one.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
    """
    committed = coordinator.fetch_offsets(group, keys)
    handles = {name: cluster.lookup(name) for name in {key.topic for key in keys}}
    cluster.refresh_topics(handles.values())
    resets: dict[TopicPartition, tuple[int | None, int]] = {}
    for key in keys:
        handle = handles[key.topic]
        ledger, _ = cluster.folded_topic(handle)
        with ledger.lock:
            topic = ledger.state.topics[handle.topic_id]
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
                "offset": offset_between(target.value, start, end),
                "shift_by": current + target.value,
                "from_file": offset_between(given.get(key, current), start, end),
            }[target.kind]
        after = min(max(wanted, start), end)
        if after != wanted:
            bounds = f"the log of {key.topic}-{key.partition} has offsets {start} to {end}"
            _LOG.warning("Offset %d is not used: %s. The new offset is %d.", wanted, bounds, after)
        resets[key] = (before, after)
    return resets
