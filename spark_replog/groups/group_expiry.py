"""Which offsets of a group have outlived their use. Pure.

Source: ``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``. Clocks decide how long an
unused offset is kept, as in Kafka; who reads on commits, and what is committed again is never expired.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.groups.group_subscription import subscribed_topics
from spark_replog.ids import TopicId
from spark_replog.log.codec.group_records import GroupPhase, GroupRecord, OffsetAndMetadata, OffsetRecord, Record
from spark_replog.log.fold.group_state import GroupState


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
        now_ms: wall time.
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
