"""Which offsets of a group have outlived their use. Pure.

Source: ``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``. In Kafka the broker's clock
decides. Here any process may expire offsets, so two clocks must agree: the process's own and that of another group's
newest command. One wrong clock then only makes offsets live longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_replog.groups.group_subscription import subscribed_topics
from spark_replog.ids import TopicId
from spark_replog.log.codec.group_records import GroupPhase, GroupRecord, OffsetAndMetadata, OffsetRecord, Record
from spark_replog.log.fold.group_state import GroupState


def agreed_time_ms(groups: Mapping[str, GroupState], own: Collection[str], now_ms: int) -> int:
    """Return the wall time that this process's clock and another process's agree has passed.

    Args:
        groups: all groups of the ledger.
        own: groups that this process has written to: they repeat its own clock.
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
        state: the group.
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
