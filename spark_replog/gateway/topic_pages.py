"""DescribeTopicPartitions: topics and their partitions page by page, as administrators of Kafka 4 ask (KIP-966)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeTopicPartitionsResponse
from kafka.protocol.api_key import ApiKey

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.metadata import NO_TOPIC_ID, described_topics, names_and_ids
from spark_replog.log.acl import AclOperation, ResourceType

PARTITIONS_MAX = 2000
"""Of one answer, however many a client asks for: Kafka's ``max.request.partition.size.limit``."""
_OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition


class Place(NamedTuple):
    """The first partition of a page; topics are in the order of their names."""

    topic: str
    partition: int


async def describe_topic_partitions(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeTopicPartitions."""
    return await gateway.run(_page, gateway, call)


def _page(gateway: Gateway, call: Call) -> Any:
    request, cluster = call.request, gateway.cluster
    start = Place("", 0)
    if request.cursor is not None:
        start = Place(request.cursor.topic_name, max(0, request.cursor.partition_index))
    named = sorted({item.name for item in request.topics} - {None})
    with suppress(ReplogError):  # the store is away: what was folded so far is told
        if named:
            cluster.refresh_if_stale()
        else:
            cluster.refresh()
    wanted = named or sorted(name for name, _ in names_and_ids(gateway))
    wanted = [name for name in wanted if name >= start.topic]
    authorizer = Authorizer(cluster, call.principal)
    allowed = set(authorizer.allowed_topics(AclOperation.DESCRIBE, wanted))
    topics: list[Any] = []
    left_count = min(max(1, request.response_partition_limit), PARTITIONS_MAX)
    for name in wanted:
        if name not in allowed:
            if named:
                topics.append(_failed(name, int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
            continue
        if not left_count:
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=_cursor(Place(name, 0)))
        (topic,) = described_topics(gateway, call, [name])
        if topic.error_code:
            topics.append(_failed(name, topic.error_code))
            continue
        first = start.partition if name == start.topic else 0
        shown = topic.partitions[first : first + left_count]
        topics.append(_described(authorizer, topic, shown))
        left_count -= len(shown)
        if first + len(shown) < len(topic.partitions):
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=_cursor(Place(name, first + len(shown))))
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def _cursor(place: Place) -> Any:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=place.topic, partition_index=place.partition)


def _failed(name: str, code: int) -> Any:
    return _Topic(error_code=code, name=name, topic_id=NO_TOPIC_ID, is_internal=False, partitions=[])


def _described(authorizer: Authorizer, topic: Any, shown: Sequence[Any]) -> Any:
    """Return a topic of Metadata with some of its partitions."""
    operations = [at for at in _OPERATIONS if authorizer.is_allowed(at, ResourceType.TOPIC, topic.name)]
    return _Topic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        topic_authorized_operations=sum(1 << int(operation) for operation in operations),
        partitions=[
            _Partition(
                error_code=part.error_code,
                partition_index=part.partition_index,
                leader_id=part.leader_id,
                leader_epoch=part.leader_epoch,
                replica_nodes=part.replica_nodes,
                isr_nodes=part.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=part.offline_replicas,
            )
            for part in shown
        ],
    )


APIS = {ApiKey.DescribeTopicPartitions: Api(0, 0, describe_topic_partitions)}
