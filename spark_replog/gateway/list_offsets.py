"""ListOffsets and OffsetForLeaderEpoch: the ends of partitions, offsets of times, and where a leader's epoch ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)

from spark_replog.client.record_fetcher import ConsumerMetrics, RecordFetcher
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError
from spark_replog.gateway.errors import error_code
from spark_replog.gateway.gateway import Api, Call, Gateway, epoch_error
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.read.offsets_for_times import offsets_for_times
from spark_replog.read.rows import log_column

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""What a client gives in place of a time. All offsets are local here, and none is tiered."""
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd = _EpochTopic.EpochEndOffset
NONE = -1
"""An offset, epoch or time that there is not."""


async def answer_list_offsets(gateway: Gateway, call: Call) -> Any:
    """Answer ListOffsets."""
    answers = await gateway.run(_by_topic, gateway, call, call.request.topics, "name", _listed)
    topics = [_Topic(name=topic.name, partitions=partitions) for topic, partitions in answers]
    return ListOffsetsResponse(topics=topics)


async def answer_epoch_ends(gateway: Gateway, call: Call) -> Any:
    """Answer OffsetForLeaderEpoch."""
    answers = await gateway.run(_by_topic, gateway, call, call.request.topics, "topic", _epoch_end)
    topics = [_EpochTopic(topic=topic.topic, partitions=partitions) for topic, partitions in answers]
    return OffsetForLeaderEpochResponse(topics=topics)


_Answer = Callable[[Gateway, Call, TopicHandle | None, Any, int], Any]


def _by_topic(gateway: Gateway, call: Call, topics: Any, name_field: str, answer: _Answer) -> list[tuple[Any, Any]]:
    """Return each topic of a request with the answers of its partitions, after a read of the newest entries."""
    cluster, named = gateway.cluster, []
    authorizer = Authorizer(cluster, call.principal)
    for topic in topics or []:
        handle, code, name = None, 0, getattr(topic, name_field)
        try:
            cluster.refresh_if_stale()
            authorizer.require(AclOperation.DESCRIBE, ResourceType.TOPIC, name)
            handle = cluster.lookup(name)
        except ReplogError as error:
            code = error_code(error)
        named.append((topic, handle, code))
    problem = 0
    try:
        cluster.refresh_topics([handle for _, handle, _ in named if handle is not None])
    except ReplogError as error:
        problem = error_code(error)
    return [
        (topic, [answer(gateway, call, handle, item, code or problem) for item in topic.partitions])
        for topic, handle, code in named
    ]


def _state(gateway: Gateway, handle: TopicHandle, number: int) -> PartitionState:
    _, topic = gateway.cluster.folded_topic(handle)
    if not 0 <= number < len(topic.partitions):
        raise NotFoundError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{handle.name}' has no partition {number}")
    return topic.partitions[number]


def _listed(gateway: Gateway, call: Call, handle: TopicHandle | None, item: Any, code: int) -> Any:
    number, time_ms = item.partition_index, item.timestamp
    try:
        if code or handle is None:
            return _Partition(partition_index=number, error_code=code)
        partition, ledger = _state(gateway, handle, number), gateway.cluster.topic_ledger(handle.ledger_id)
        with ledger.lock:
            epoch = partition.leader_epoch
            ends = {LATEST: partition.high_watermark, EARLIEST: partition.log_start_offset, LATEST_TIERED: NONE}
        code = epoch_error(item.current_leader_epoch, epoch)
        if code:
            return _Partition(partition_index=number, error_code=code)
        ends[EARLIEST_LOCAL] = ends[EARLIEST]
        offset, found_ms = ends.get(time_ms, NONE), NONE
        if time_ms >= 0 or time_ms == MAX_TIMESTAMP:
            offset, found_ms = _offset_of_time(gateway, call, handle, number, time_ms)
        elif time_ms not in ends:
            code = int(ErrorCode.UNSUPPORTED_VERSION)
        leader_epoch = epoch if offset != NONE else NONE
        return _Partition(
            partition_index=number, error_code=code, timestamp=found_ms, offset=offset, leader_epoch=leader_epoch
        )
    except ReplogError as error:
        return _Partition(partition_index=number, error_code=error_code(error))


def _offset_of_time(gateway: Gateway, call: Call, handle: TopicHandle, number: int, time_ms: int) -> tuple[int, int]:
    """Return the first offset at or after a time, or of the newest time, and the time of its row; -1, -1 for none."""
    ledger = gateway.cluster.topic_ledger(handle.ledger_id)
    if time_ms == MAX_TIMESTAMP:

        def newest_ms(state: TopicLedgerState) -> int:
            partition = state.topics[handle.topic_id].partitions[number]
            rows = partition.sections_between(partition.log_start_offset, partition.high_watermark)
            return max((row.max_timestamp_ms for row in rows), default=NONE)

        time_ms = ledger.ask(newest_ms)
    brokers, times = gateway.cluster.brokers, {number: time_ms}
    offset = offsets_for_times(ledger, brokers, handle.name, handle.topic_id, times)[number] if time_ms >= 0 else None
    if offset is None:
        return NONE, NONE
    key = TopicPartition(handle.name, number)
    config = ConsumerConfig(principal=call.principal)
    fetcher = RecordFetcher(gateway.cluster, config, ConsumerMetrics(), waits_for_quota=False)
    for _, rows, _ in fetcher.scan({key: (offset, offset + 1)}, {handle.name: handle}):
        if rows.num_rows:
            return offset, int(log_column(rows, "timestamp").cast("int64")[0].as_py()) // 1000
    return offset, time_ms


def _epoch_end(gateway: Gateway, call: Call, handle: TopicHandle | None, item: Any, code: int) -> Any:
    number = item.partition
    try:
        if code or handle is None:
            return _EpochEnd(partition=number, error_code=code)
        partition, ledger = _state(gateway, handle, number), gateway.cluster.topic_ledger(handle.ledger_id)
        with ledger.lock:
            end = partition.leader_epochs.end_offset_for(item.leader_epoch, partition.log_end_offset)
            code = epoch_error(item.current_leader_epoch, partition.leader_epoch)
        if code:
            return _EpochEnd(partition=number, error_code=code)
        return _EpochEnd(partition=number, leader_epoch=end.epoch, end_offset=end.start_offset)
    except ReplogError as error:
        return _EpochEnd(partition=number, error_code=error_code(error))


APIS = {
    ApiKey.ListOffsets: Api(1, 10, answer_list_offsets),
    ApiKey.OffsetForLeaderEpoch: Api(2, 4, answer_epoch_ends),
}
