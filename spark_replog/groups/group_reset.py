"""Where a group's offsets are to be set. Source: ``ConsumerGroupCommand.prepareOffsetsToReset``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, NotFoundError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import TopicPartition

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
        cluster: the opened store.
        coordinator: of the group.
        group: its name; it need not exist yet.
        keys: which partitions.
        target: what is wanted.
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
                raise NotFoundError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic '{key.topic}' has partitions 0 to {len(topic.partitions) - 1}. Name one of them.",
                    partition=key.partition,
                )
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
