"""Topics for administrators: created, deleted, grown, trimmed, moved; their sizes and producers.

Clients see gateways as brokers. In these APIs a broker id is that of a root, because only roots hold replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    DescribeLogDirsResponse,
    DescribeProducersResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.api_key import ApiKey

from spark_replog.admin.admin import PartitionAdmin, PartitionOutcome
from spark_replog.admin.controller import Controller
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError, unknown_partition
from spark_replog.gateway.configs import topic_entries
from spark_replog.gateway.errors import error_code, error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.metadata import NO_TOPIC_ID, topic_uuid
from spark_replog.gateway.sequences import producer_number
from spark_replog.health.store import TopicDescription
from spark_replog.ids import BrokerId
from spark_replog.log.acl import AclOperation, ResourceType

TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 30_000, 60_000
"""Of a change, whatever a client asks for: one that gives no time would be told of every change that its end is not
known."""
BY_DEFAULT = -1
"""As a number of partitions or replicas: what the gateway, or the store, takes by default."""
UNKNOWN_SIZE = -1
_PREFERRED = 0


def problem_of(error: ReplogError | None) -> dict[str, Any]:
    """Return the two fields of a response that tell of an error."""
    if error is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": error_code(error), "error_message": error_text(error)}


def controller(gateway: Gateway, call: Call, timeout_ms: int = TIMEOUT_MS_MAX) -> Controller:
    """Return the administration of topics in the name of the client."""
    return Controller(gateway.cluster, call.principal, timeout_ms=min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX))


# -------------------------------------------------------------------------------------------------------- topics


async def create_topics(gateway: Gateway, call: Call) -> Any:
    """Answer CreateTopics."""
    names = [topic.name for topic in call.request.topics]
    made = []
    for topic in call.request.topics:
        if names.count(topic.name) > 1:
            twice = InvalidConfigError(ErrorCode.INVALID_REQUEST, "The request names the topic twice. Name it once.")
            made.append(_created(topic.name, twice))
        else:
            made.append(await gateway.run(_create, gateway, call, topic))
    return CreateTopicsResponse(topics=made)


def _create(gateway: Gateway, call: Call, topic: Any) -> Any:
    try:
        assignment = _assignment(topic.assignments) if topic.assignments else None
        partitions: int | None = topic.num_partitions
        if partitions == BY_DEFAULT:
            partitions = None if assignment else gateway.config.num_partitions
        description = controller(gateway, call, call.request.timeout_ms).create_topic(
            topic.name,
            partitions,
            None if topic.replication_factor == BY_DEFAULT else topic.replication_factor,
            {item.name: item.value for item in topic.configs or ()},
            assignment=assignment,
            validate_only=call.request.validate_only,
        )
    except ReplogError as error:
        return _created(topic.name, error)
    return _created(topic.name, None, description)


def _assignment(rows: Iterable[Any]) -> list[list[BrokerId]]:
    by_number = {row.partition_index: list(row.broker_ids) for row in rows}
    if sorted(by_number) != list(range(len(by_number))):
        raise InvalidConfigError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The assignment leaves partitions out. Number them from 0."
        )
    return [by_number[number] for number in range(len(by_number))]


def _created(name: str, error: ReplogError | None, topic: TopicDescription | None = None) -> Any:
    result = CreateTopicsResponse.CreatableTopicResult
    if topic is None:
        return result(name=name, num_partitions=-1, replication_factor=-1, configs=[], **problem_of(error))
    return result(
        name=name,
        topic_id=topic_uuid(topic.topic_id) if topic.topic_id else NO_TOPIC_ID,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=[
            result.CreatableTopicConfigs(
                name=item.name, value=item.value, read_only=False, config_source=item.source, is_sensitive=False
            )
            for item in topic_entries(topic.config, topic.replication_factor)
        ],
        **problem_of(None),
    )


async def delete_topics(gateway: Gateway, call: Call) -> Any:
    """Answer DeleteTopics: by name, or since version 6 by id."""
    request = call.request
    named: list[tuple[str | None, UUID]] = (
        [(item.name, item.topic_id) for item in request.topics]
        if call.version >= 6
        else [(name, NO_TOPIC_ID) for name in request.topic_names]
    )
    responses = []
    for name, topic_id in named:
        error: ReplogError | None = None
        try:
            if name is None:
                await gateway.run(gateway.cluster.refresh)
                name = gateway.topic_name(topic_id)
                if name is None:
                    raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id.")
            await gateway.run(controller(gateway, call, request.timeout_ms).delete_topic, name)
        except ReplogError as failure:
            error = failure
        responses.append(DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id, **problem_of(error)))
    return DeleteTopicsResponse(responses=responses)


async def create_partitions(gateway: Gateway, call: Call) -> Any:
    """Answer CreatePartitions."""
    request, results = call.request, []
    for topic in request.topics:
        error: ReplogError | None = None
        rows = None if topic.assignments is None else [list(row.broker_ids) for row in topic.assignments]
        grow = controller(gateway, call, request.timeout_ms).add_partitions
        try:
            await gateway.run(grow, topic.name, topic.count, rows, validate_only=request.validate_only)
        except ReplogError as failure:
            error = failure
        results.append(CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name, **problem_of(error)))
    return CreatePartitionsResponse(results=results)


async def delete_records(gateway: Gateway, call: Call) -> Any:
    """Answer DeleteRecords: each partition is judged alone."""
    result = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = []
    for topic in call.request.topics:
        trim = controller(gateway, call, call.request.timeout_ms).delete_records
        parts = []
        for part in topic.partitions:
            low, code = -1, 0
            try:
                description = await gateway.run(trim, topic.name, {part.partition_index: part.offset})
                low = description.partitions[part.partition_index].log_start_offset
            except ReplogError as error:
                code = error_code(error)
            parts.append(
                result.DeleteRecordsPartitionResult(
                    partition_index=part.partition_index, low_watermark=low, error_code=code
                )
            )
        topics.append(result(name=topic.name, partitions=parts))
    return DeleteRecordsResponse(topics=topics)


# ------------------------------------------------------------------------------------------- sizes and producers


async def describe_log_dirs(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeLogDirs: one directory for each root of the store, with what its replicas hold."""
    try:
        dirs = await gateway.run(_log_dirs, gateway, call)
    except ReplogError as error:
        return DescribeLogDirsResponse(error_code=error_code(error), results=[])
    return DescribeLogDirsResponse(error_code=0, results=dirs)


def _log_dirs(gateway: Gateway, call: Call) -> list[Any]:
    cluster, result = gateway.cluster, DescribeLogDirsResponse.DescribeLogDirsResult
    cluster.refresh_if_stale()
    Authorizer(cluster, call.principal).require(AclOperation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    asked = call.request.topics
    wanted = None if asked is None else {(topic.topic, number) for topic in asked for number in topic.partitions}
    held: dict[BrokerId, list[Any]] = {broker_id: [] for broker_id in cluster.brokers.broker_ids}
    for topic in controller(gateway, call).list_topics():
        by_root: dict[BrokerId, list[Any]] = {}
        for part in topic.partitions:
            if wanted is not None and (topic.name, part.partition) not in wanted:
                continue
            for broker_id in part.replicas:
                made = result.DescribeLogDirsTopic.DescribeLogDirsPartition(
                    partition_index=part.partition, partition_size=part.size_bytes, offset_lag=0, is_future_key=False
                )
                by_root.setdefault(broker_id, []).append(made)
        for broker_id, parts in by_root.items():
            held.setdefault(broker_id, []).append(result.DescribeLogDirsTopic(name=topic.name, partitions=parts))
    return [
        result(
            error_code=0,
            log_dir=cluster.brokers.url(broker_id),
            topics=topics,
            total_bytes=UNKNOWN_SIZE,
            usable_bytes=UNKNOWN_SIZE,
        )
        for broker_id, topics in held.items()
    ]


async def describe_producers(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeProducers: the idempotent producers of Kafka's clients that the log remembers."""
    return DescribeProducersResponse(
        topics=[await gateway.run(_producers, gateway, call, topic) for topic in call.request.topics]
    )


def _producers(gateway: Gateway, call: Call, topic: Any) -> Any:
    response = DescribeProducersResponse.TopicResponse
    part_of = response.PartitionResponse
    cluster = gateway.cluster
    try:
        cluster.refresh_if_stale()
        Authorizer(cluster, call.principal).require(AclOperation.READ, ResourceType.TOPIC, topic.name)
        handle = cluster.newest_topics([topic.name])[topic.name]
        ledger, _ = cluster.folded_topic(handle)
    except ReplogError as error:
        parts = [
            part_of(partition_index=number, active_producers=[], **problem_of(error))
            for number in topic.partition_indexes
        ]
        return response(name=topic.name, partitions=parts)
    with ledger.lock:
        count = len(ledger.state.topics[handle.topic_id].partitions)
        named = [(producer_number(name), at) for name, at in ledger.state.producers.sequenced.producers.items()]
        rows = [
            (number, place[1], sequences.epoch, sequences.batches[-1].last_sequence)
            for number, at in named
            if number is not None
            for place, sequences in at.partitions.items()
            if place[0] == handle.topic_id
        ]
    parts = []
    for number in topic.partition_indexes:
        absent = None if 0 <= number < count else unknown_partition(topic.name, number, count)
        active = [
            part_of.ProducerState(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=last_sequence,
                last_timestamp=-1,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
            for producer_id, partition, epoch, last_sequence in rows
            if partition == number
        ]
        parts.append(part_of(partition_index=number, active_producers=active, **problem_of(absent)))
    return response(name=topic.name, partitions=parts)


# ------------------------------------------------------------------------------------------ replicas and leaders


async def alter_partition_reassignments(gateway: Gateway, call: Call) -> Any:
    """Answer AlterPartitionReassignments: without replicas, a partition's running move is cancelled."""
    responses = []
    result = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    for topic in call.request.topics:
        targets = {part.partition_index: part.replicas for part in topic.partitions}
        problems = await gateway.run(_reassign, gateway, call, topic.name, targets)
        parts = [
            result.ReassignablePartitionResponse(partition_index=number, **problem_of(problems.get(number)))
            for number in targets
        ]
        responses.append(result(name=topic.name, partitions=parts))
    return AlterPartitionReassignmentsResponse(error_code=0, responses=responses)


def _reassign(
    gateway: Gateway, call: Call, name: str, targets: dict[int, list[int] | None]
) -> dict[int, ReplogError | None]:
    """Return for each partition why nothing was changed."""
    admin = PartitionAdmin(gateway.cluster, call.principal)
    moved = {number: replicas for number, replicas in targets.items() if replicas is not None}
    cancelled = targets.keys() - moved.keys()
    acts: list[tuple[Iterable[int], Callable[[], list[PartitionOutcome]]]] = [
        (moved, partial(admin.reassign, name, moved)),
        (cancelled, partial(admin.cancel, name, sorted(cancelled))),
    ]
    problems: dict[int, ReplogError | None] = {}
    for numbers, act in acts:
        if numbers:
            try:
                problems |= {outcome.partition: outcome.error for outcome in act()}
            except ReplogError as error:
                problems |= dict.fromkeys(numbers, error)
    return problems


async def list_partition_reassignments(gateway: Gateway, call: Call) -> Any:
    """Answer ListPartitionReassignments."""
    try:
        topics = await gateway.run(_moving, gateway, call)
    except ReplogError as error:
        return ListPartitionReassignmentsResponse(topics=[], **problem_of(error))
    return ListPartitionReassignmentsResponse(topics=topics, **problem_of(None))


def _moving(gateway: Gateway, call: Call) -> list[Any]:
    admin, asked = PartitionAdmin(gateway.cluster, call.principal), call.request.topics
    if asked is None:
        wanted: dict[str, set[int] | None] = {handle.name: None for handle in controller(gateway, call).name_topics()}
    else:
        wanted = {topic.name: set(topic.partition_indexes) for topic in asked}
    topic_of = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    topics = []
    for name, numbers in wanted.items():
        parts = [
            topic_of.OngoingPartitionReassignment(
                partition_index=at.partition,
                replicas=list(at.replicas),
                adding_replicas=list(at.adding),
                removing_replicas=list(at.removing),
            )
            for at in admin.list_reassignments(name)
            if numbers is None or at.partition in numbers
        ]
        if parts:
            topics.append(topic_of(name=name, partitions=parts))
    return topics


async def elect_leaders(gateway: Gateway, call: Call) -> Any:
    """Answer ElectLeaders. Of all partitions, those whose leader is right already are left out."""
    request = call.request
    is_unclean = call.version >= 1 and request.election_type != _PREFERRED
    admin, result = PartitionAdmin(gateway.cluster, call.principal), ElectLeadersResponse.ReplicaElectionResult
    is_all = request.topic_partitions is None
    try:
        if is_all:
            handles = await gateway.run(controller(gateway, call).name_topics)
            wanted: list[tuple[str, list[int] | None]] = [(handle.name, None) for handle in handles]
        else:
            wanted = [(topic.topic, list(topic.partitions)) for topic in request.topic_partitions]
    except ReplogError as error:
        return ElectLeadersResponse(error_code=error_code(error), replica_election_results=[])
    results = []
    for name, numbers in wanted:
        try:
            outcomes = await gateway.run(admin.elect_leaders, name, numbers, is_unclean=is_unclean)
            problems = {outcome.partition: outcome.error for outcome in outcomes}
        except ReplogError as error:
            problems = dict.fromkeys(numbers or (), error)
        shown = {
            number: error
            for number, error in problems.items()
            if not (is_all and error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED)
        }
        if shown:
            parts = [result.PartitionResult(partition_id=at, **problem_of(error)) for at, error in shown.items()]
            results.append(result(topic=name, partition_result=parts))
    return ElectLeadersResponse(error_code=0, replica_election_results=results)


APIS = {
    ApiKey.CreateTopics: Api(2, 7, create_topics),
    ApiKey.DeleteTopics: Api(1, 6, delete_topics),
    ApiKey.CreatePartitions: Api(0, 3, create_partitions),
    ApiKey.DeleteRecords: Api(0, 2, delete_records),
    ApiKey.DescribeLogDirs: Api(1, 4, describe_log_dirs),
    ApiKey.DescribeProducers: Api(0, 0, describe_producers),
    ApiKey.AlterPartitionReassignments: Api(0, 1, alter_partition_reassignments),
    ApiKey.ListPartitionReassignments: Api(0, 0, list_partition_reassignments),
    ApiKey.ElectLeaders: Api(0, 2, elect_leaders),
}
