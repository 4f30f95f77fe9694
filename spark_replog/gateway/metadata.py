"""Metadata and DescribeCluster: the gateways as brokers, and the topics with their ids, partitions and epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import MetadataResponse

from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.errors import error_code
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.ids import INTERNAL_TOPICS
from spark_replog.log.acl import AclOperation
from spark_replog.log.fold.partition_state import NO_LEADER

NO_TOPIC_ID = UUID(int=0)
_Topic = MetadataResponse.MetadataResponseTopic


def topic_uuid(topic_id: str) -> UUID:
    """Return a topic's id as Kafka writes it."""
    return UUID(hex=topic_id)


async def answer_metadata(gateway: Gateway, call: Call) -> Any:
    """Answer Metadata."""
    topics = await gateway.run(_topics, gateway, call)
    node = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[node(node_id=at.node_id, host=at.host, port=at.port, rack=at.rack) for at in gateway.nodes()],
        cluster_id=gateway.cluster.brokers.cluster_id,
        controller_id=gateway.controller().node_id,
        topics=topics,
    )


async def answer_cluster(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeCluster."""
    node = DescribeClusterResponse.DescribeClusterBroker
    return DescribeClusterResponse(
        endpoint_type=call.request.endpoint_type,
        cluster_id=gateway.cluster.brokers.cluster_id,
        controller_id=gateway.controller().node_id,
        brokers=[node(broker_id=at.node_id, host=at.host, port=at.port, rack=at.rack) for at in gateway.nodes()],
    )


def _topics(gateway: Gateway, call: Call) -> list[Any]:
    cluster, asked = gateway.cluster, call.request.topics
    authorizer = Authorizer(cluster, call.principal)
    if asked is None or (not asked and call.version == 0):
        with suppress(ReplogError):  # the store is away: what was folded so far is told
            cluster.refresh()
        names = [name for name, _ in names_and_ids(gateway)]
        return described_topics(gateway, call, authorizer.allowed_topics(AclOperation.DESCRIBE, sorted(names)))
    with suppress(ReplogError):
        cluster.refresh_if_stale()
    named = {item.name for item in asked if item.name is not None}
    allowed = set(authorizer.allowed_topics(AclOperation.DESCRIBE, named))
    may_create = call.request.allow_auto_topic_creation and gateway.config.auto_create_topics_enable
    if may_create:
        _create_missing(gateway, call, sorted(allowed))
    topics = [_failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in sorted(named - allowed)]
    topics += described_topics(gateway, call, sorted(allowed))
    wanted = {item.topic_id for item in asked if item.name is None}
    if wanted:
        by_id = {topic_uuid(topic_id): name for name, topic_id in names_and_ids(gateway)}
        names = authorizer.allowed_topics(AclOperation.DESCRIBE, [by_id[at] for at in wanted if at in by_id])
        topics += described_topics(gateway, call, names)
        told = {topic.topic_id for topic in topics}
        topics += [_failed(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id) for topic_id in wanted - told]
    return topics


def names_and_ids(gateway: Gateway) -> list[tuple[str, str]]:
    """Return the name and the id of each topic, as folded so far."""
    return gateway.cluster.cluster_ledger.ask(lambda state: [(name, ids[0]) for name, ids in state.topics.items()])


def _create_missing(gateway: Gateway, call: Call, names: Iterable[str]) -> None:
    missing = set(names) - {name for name, _ in names_and_ids(gateway)} - INTERNAL_TOPICS
    controller = Controller(gateway.cluster, call.principal)
    for name in sorted(missing):
        with suppress(ReplogError):  # the topic's own answer says that it is not there
            controller.create_topic(name, gateway.config.num_partitions, if_not_exists=True)


def described_topics(gateway: Gateway, call: Call, names: Sequence[str]) -> list[Any]:
    """Return topics as Metadata tells them, with the error of each that cannot be described."""
    cluster, handles, topics = gateway.cluster, [], []
    for name in names:
        try:
            handles.append(cluster.lookup(name))
        except ReplogError as error:
            topics.append(_failed(error_code(error), name))
    with suppress(ReplogError):
        cluster.refresh_topics(handles, may_be_stale=True)
    return topics + [_topic(gateway, call, handle) for handle in handles]


def _topic(gateway: Gateway, call: Call, handle: TopicHandle) -> Any:
    try:
        ledger, _ = gateway.cluster.folded_topic(handle)
    except ReplogError as error:
        return _failed(error_code(error), handle.name)
    with ledger.lock:
        states = [(part.leader, part.leader_epoch) for part in ledger.state.topics[handle.topic_id].partitions]
    partitions = []
    for number, (leader, epoch) in enumerate(states):
        node_ids = [node.node_id for node in gateway.replicas(handle.name, number, call.client_id)]
        partitions.append(
            _Topic.MetadataResponsePartition(
                error_code=int(ErrorCode.LEADER_NOT_AVAILABLE) if leader == NO_LEADER else 0,
                partition_index=number,
                leader_id=node_ids[0],
                leader_epoch=epoch,
                replica_nodes=node_ids,
                isr_nodes=node_ids,
                offline_replicas=[],
            )
        )
    is_internal = handle.name in INTERNAL_TOPICS
    topic_id = topic_uuid(handle.topic_id)
    return _Topic(error_code=0, name=handle.name, topic_id=topic_id, is_internal=is_internal, partitions=partitions)


def _failed(code: int, name: str | None, topic_id: UUID = NO_TOPIC_ID) -> Any:
    return _Topic(error_code=int(code), name=name, topic_id=topic_id, is_internal=False, partitions=[])


APIS = {
    ApiKey.Metadata: Api(0, 13, answer_metadata),
    ApiKey.DescribeCluster: Api(0, 2, answer_cluster),
}
