"""Which partitions of an append the leader's log takes, each judged alone.

Source: Kafka's ``ReplicaManager.appendToLocalLog`` and ``Partition.appendRecordsToLeader``. The leader's
log is the coordinator's provisional tail, so nothing is written here. Called under the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, RetriableError
from spark_replog.ids import INTERNAL_TOPICS, PartitionKey
from spark_replog.log.codec.commands import Append
from spark_replog.log.fold.election import NO_LEADER
from spark_replog.log.fold.topic_state import TopicLedgerState, TopicState


def find_unwritable(
    state: TopicLedgerState, partitions: Collection[PartitionKey], *, internal_topics_allowed: bool
) -> dict[PartitionKey, ReplogError]:
    """Return the partitions that cannot be written, each with its error.

    INVALID_TOPIC_EXCEPTION for an internal topic unless allowed, UNKNOWN_TOPIC_ID for a topic that this
    ledger does not have, UNKNOWN_TOPIC_OR_PARTITION for one that was deleted and for a partition beyond
    the topic's last, LEADER_NOT_AVAILABLE where every in-sync replica is fenced.
    """
    refused: dict[PartitionKey, ReplogError] = {}
    by_topic = {
        topic_id: _topic_error(state, topic_id, internal_topics_allowed)
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in partitions)
    }
    for key in partitions:
        topic_id, number = key
        error = by_topic[topic_id]
        if error is None:
            topic = state.topics[topic_id]
            if 0 <= number < len(topic.partitions):
                if topic.partitions[number].leader != NO_LEADER:
                    continue
                error = _no_leader(topic, number)
        if error is None:
            error = NotFoundError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic '{topic.name}' has {len(topic.partitions)} partitions and none with number {number}. "
                "Add partitions with 'replog topic add-partitions', or choose another.",
                topic=topic.name,
                partition=number,
            )
        refused[key] = error
    return refused


def _no_leader(topic: TopicState, number: int) -> ReplogError:
    isr = ",".join(map(str, topic.partitions[number].isr))
    return RetriableError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"every in-sync replica of the partition is fenced. Nothing was decided. Put one back: replog broker unfence "
        f"{isr.split(',')[0]}; or lose what only they hold: replog topic elect {topic.name} --unclean.",
        topic=topic.name,
        partition=number,
        isr=isr,
    )


def _topic_error(state: TopicLedgerState, topic_id: str, internal_topics_allowed: bool) -> ReplogError | None:
    topic = state.topics.get(topic_id)
    if topic is None:
        return NotFoundError(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"the ledger does not know the topic's id (topic id {topic_id} is not in this ledger). Restart the query.",
            topic_id=topic_id,
        )
    if topic.closed:
        return NotFoundError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic was deleted while rows were written to it (topic '{topic.name}'). Restart the query.",
            topic=topic.name,
        )
    if topic.name in INTERNAL_TOPICS and not internal_topics_allowed:
        return InvalidConfigError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"'{topic.name}' is an internal topic that only coordinators write. Choose another topic.",
        )
    return None


def find_under_min_isr(
    state: TopicLedgerState, partitions: Collection[PartitionKey]
) -> dict[PartitionKey, ReplogError]:
    """Return the partitions that acks=all may not be appended to: NOT_ENOUGH_REPLICAS, nothing was decided."""
    refused: dict[PartitionKey, ReplogError] = {}
    for topic_id, number in partitions:
        topic = state.topics[topic_id]
        found = topic.partitions[number]
        if len(found.isr) < found.min_insync:
            refused[topic_id, number] = RetriableError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(found.isr)} replicas are in sync and min.insync.replicas is {found.min_insync}. Nothing was "
                "decided. Bring a root back, or lower min.insync.replicas.",
                topic=topic.name,
                partition=number,
                isr=",".join(map(str, found.isr)),
            )
    return refused


def without_partitions(append: Append, refused: Mapping[PartitionKey, ReplogError]) -> Append:
    """Return the append without the rows of the refused partitions; their bytes stay in the objects, unnamed."""
    if not refused:
        return append
    objects = []
    for item in append.objects:
        sections = tuple(each for each in item.sections if (each.topic_id, each.partition) not in refused)
        if sections:
            objects.append(item if len(sections) == len(item.sections) else replace(item, sections=sections))
    return replace(append, objects=tuple(objects))
