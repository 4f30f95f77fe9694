"""Produce and InitProducerId: takes record batches in the order of their arrival, and answers when they are in the log.

Batches of one topic and one kind of producer, from all connections, wait together in a lane (``ProduceLane``).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import InitProducerIdResponse, ProduceResponse

from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.gateway.errors import error_code, error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.produce_lane import PartAnswer, ProduceLanes, ProducePart, lane_key
from spark_replog.write.sequences import EPOCH_MAX

_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse
_Record = _Partition.BatchIndexAndErrorMessage


async def answer_produce(gateway: Gateway, call: Call) -> Any:
    """Answer Produce. With acks=0 there is no answer, and an error closes the connection.

    A client above its quota is answered at once and told how long to wait; its connection is muted as long (KIP-219).
    """
    waiting = [(topic, name, _take(gateway, call, topic, name)) for topic, name in _named(gateway, call)]
    topics, throttle_ms = [], 0
    for topic, name, parts in waiting:
        answers = [await part if isinstance(part, asyncio.Future) else part for part in parts]
        throttle_ms = max(throttle_ms, *(answer.throttle_ms for answer in answers), 0)
        if call.request.acks == 0:
            for answer in answers:
                if answer.error is not None:
                    raise answer.error
            continue
        partitions = [
            _partition(item.index, answer) for item, answer in zip(topic.partition_data, answers, strict=True)
        ]
        topics.append(_Topic(name=name or topic.name, topic_id=topic.topic_id, partition_responses=partitions))
    call.mute(throttle_ms)
    if call.request.acks == 0:
        return None
    return ProduceResponse(responses=topics, throttle_time_ms=throttle_ms)


def _named(gateway: Gateway, call: Call) -> list[tuple[Any, str | None]]:
    """Return the request's topics with their names; None: no topic has the id."""
    topics = call.request.topic_data or []
    if call.version < 13:
        return [(topic, topic.name) for topic in topics]
    return [(topic, gateway.topic_name(topic.topic_id)) for topic in topics]


def _take(gateway: Gateway, call: Call, topic: Any, name: str | None) -> list[asyncio.Future[PartAnswer] | PartAnswer]:
    """Put a topic's batches into their lanes; return for each its answer, now or later."""
    lanes = gateway.part(ProduceLanes)
    taken: list[asyncio.Future[PartAnswer] | PartAnswer] = []
    acks, timeout_ms = call.request.acks, call.request.timeout_ms
    for item in topic.partition_data:
        error: ReplogError | None = None
        if acks not in (-1, 0, 1):
            error = InvalidConfigError(ErrorCode.INVALID_REQUIRED_ACKS, "acks is 'all' (-1), 0 or 1.")
        elif name is None:
            error = NotFoundError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id. Ask for the metadata again.")
        if error is not None or name is None:
            taken.append(PartAnswer(error))
            continue
        key = lane_key(gateway, call, name, acks, item.records or b"")
        topic_id = None if call.version < 13 else topic.topic_id.hex
        part = ProducePart(item.index, item.records or b"", timeout_ms, topic_id)
        item.records = None  # the lane lets them go once they are decoded
        taken.append(lanes.put(key, part))
    return taken


def _partition(index: int, answer: PartAnswer) -> Any:
    if answer.error is None:
        return _Partition(
            index=index,
            error_code=0,
            base_offset=answer.base_offset,
            log_append_time_ms=answer.append_time_ms,
            log_start_offset=answer.log_start_offset,
            record_errors=[],
        )
    text = error_text(answer.error)
    records = [_Record(batch_index=number, batch_index_error_message=text) for number in answer.refused_records]
    return _Partition(
        index=index, error_code=error_code(answer.error), base_offset=-1, record_errors=records, error_message=text
    )


async def answer_init_producer_id(gateway: Gateway, call: Call) -> Any:
    """Answer InitProducerId: a random id, or the next epoch of the one that the producer has.

    The log learns of a producer by its first batch. Transactions are not offered.
    """
    request = call.request
    if request.transactional_id is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)
    if request.producer_id >= 0 and 0 <= request.producer_epoch < EPOCH_MAX:
        return InitProducerIdResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)
    return InitProducerIdResponse(producer_id=secrets.randbits(63), producer_epoch=0)


APIS = {
    ApiKey.Produce: Api(0, 13, answer_produce),
    ApiKey.InitProducerId: Api(0, 5, answer_init_producer_id),
}
