"""Which offsets and members of a group have expired. Pure.

Source: ``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``. In Kafka the broker's clock
decides. Here any process may expire offsets, so two clocks must agree: the process's own and that of another group's
newest command. So one wrong clock can only delay the expiry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_replog.groups.group_rebalance import subscribed_topics
from spark_replog.ids import TopicId
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
)
from spark_replog.log.fold.group_state import GroupState


class SilenceWatch:
    """The time since each member's last heartbeat, by this process's monotonic clock. Not thread safe."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}

    def look(self, state: GroupState, now_ms: int) -> list[SilentMember]:
        """Read the newest fold of a group and return its members; a new one has been silent for 0 ms."""
        before = self._seen.get(state.group, {})
        seen = {}
        for member in state.metadata.members:
            beats = state.beats.get(member.member_id, 0)
            known = before.get(member.member_id)
            seen[member.member_id] = (beats, now_ms if known is None or known[0] != beats else known[1])
        self._seen[state.group] = seen
        return [
            SilentMember(each, seen[each.member_id][0], now_ms - seen[each.member_id][1])
            for each in state.metadata.members
        ]


class SilentMember(NamedTuple):
    """A member, its number of heartbeats so far, and the time since the last one."""

    member: GroupMember
    beats: int
    silent_ms: int

    @property
    def is_expired(self) -> bool:
        """Return whether its session has expired."""
        return self.silent_ms >= self.member.session_timeout_ms


def agreed_time_ms(groups: Mapping[str, GroupState], own: Collection[str], now_ms: int) -> int:
    """Return the wall time that this process's clock and another process's agree has passed.

    Args:
        groups: all groups of the ledger.
        own: groups that this process has written to, with its own clock.
        now_ms: this process's wall time.

    Returns:
        0 where no other group has written: then no offset expires by its age.
    """
    return min(now_ms, max((state.last_commit_ms for name, state in groups.items() if name not in own), default=0))


def commit_time_ms(groups: Mapping[str, GroupState], own: Collection[str], now_ms: int) -> int:
    """Return the time to write into a commit: this process's, or that of two other groups where both are later.

    So the offsets of a process whose clock is slow do not look old, and one fast clock does not move all others.
    """
    others = sorted(state.last_commit_ms for name, state in groups.items() if name not in own)
    return max(now_ms, others[-2]) if len(others) > 1 else now_ms


def expired_records(
    state: GroupState,
    seen: Mapping[tuple[str, int], OffsetAndMetadata],
    topic_ids: Mapping[str, TopicId],
    now_ms: int,
    retention_ms: int,
) -> tuple[Record, ...]:
    """Return the tombstones that are due; the group's own last, when neither offset nor member is left.

    Args:
        seen: its offsets before ``topic_ids`` were read; what was committed since may be of a newer topic: not due.
        topic_ids: of the topics that exist: offsets of others are due at once.
        now_ms: wall time, of ``agreed_time_ms``.
        retention_ms: ``offsets.retention.minutes``.
    """
    metadata = state.metadata
    is_consumer_group = bool(metadata.protocol_type)
    is_empty = metadata.phase is GroupPhase.EMPTY
    subscribed = subscribed_topics(metadata)

    def is_due(topic: str, value: OffsetAndMetadata) -> bool:
        known = topic_ids.get(topic)
        if known is None or (value.topic_id and value.topic_id != known):
            return True
        if is_consumer_group and not is_empty and (metadata.phase is not GroupPhase.STABLE or topic in subscribed):
            return False
        if value.expire_time_ms is not None:
            return now_ms >= value.expire_time_ms
        base_ms = metadata.since_ms if is_consumer_group and is_empty else value.commit_time_ms
        return now_ms - base_ms >= retention_ms

    due: list[Record] = [
        OffsetRecord(state.group, topic, partition, None)
        for (topic, partition), value in sorted(state.offsets.items())
        if seen.get((topic, partition)) == value and is_due(topic, value)
    ]
    if is_empty and len(due) == len(state.offsets):
        due.append(GroupRecord(state.group, None))
    return tuple(due)
