"""Requests of Kafka's protocol for one topic, as tests send them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.producer import ProduceRequest

_Produced = ProduceRequest.TopicProduceData
_Fetched = FetchRequest.FetchTopic
_Listed = ListOffsetsRequest.ListOffsetsTopic


def produce_request(
    batches: Mapping[int, bytes | None], topic: str = "orders", acks: int = -1, topic_id: UUID | None = None
) -> ProduceRequest:
    """Return a request with these bytes for each partition."""
    parts = [_Produced.PartitionProduceData(index=number, records=data) for number, data in batches.items()]
    data = _Produced(name=topic, partition_data=parts)
    if topic_id is not None:
        data.topic_id = topic_id
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=[data])


def fetch_request(
    offset: int = 0,
    *,
    topic: str = "orders",
    wait_ms: int = 0,
    min_bytes: int = 1,
    bytes_max: int = 1 << 20,
    request_bytes_max: int | None = None,
    epoch: int = -1,
    partitions: Mapping[int, int] | None = None,
    partition: int = 0,
    topic_id: UUID | None = None,
) -> FetchRequest:
    """Return a request for one partition, or for several with their offsets; `request_bytes_max`: of all of them."""
    wanted = {partition: offset} if partitions is None else partitions
    parts = [
        _Fetched.FetchPartition(
            partition=number, fetch_offset=at, partition_max_bytes=bytes_max, current_leader_epoch=epoch
        )
        for number, at in wanted.items()
    ]
    asked = _Fetched(topic=topic, partitions=parts)
    if topic_id is not None:
        asked.topic_id = topic_id
    total = bytes_max if request_bytes_max is None else request_bytes_max
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=total, topics=[asked])


def list_request(time_ms: int, *, topic: str = "orders", partition: int = 0, epoch: int = -1) -> ListOffsetsRequest:
    """Return a request for the offset of a time, or of one of the numbers that stand for ends of a partition."""
    part = _Listed.ListOffsetsPartition(partition_index=partition, timestamp=time_ms, current_leader_epoch=epoch)
    return ListOffsetsRequest(replica_id=-1, topics=[_Listed(name=topic, partitions=[part])])
