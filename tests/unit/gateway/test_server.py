"""Frames, versions and the order of answers; bounds of a connection."""

from __future__ import annotations

import asyncio
import struct

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.gateway.server import MemoryBudget
from tests.gateways import RunningGateway, record_batch

UNSUPPORTED_VERSION = 35
TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION = 29, 3


@pytest.fixture(scope="module")
def gateway():
    with RunningGateway(socket_request_max_bytes=1 << 20) as running:
        running.store.admin().create_topic("orders", 2)
        yield running


def test_a_version_that_is_too_new_gets_the_versions_that_are_offered(gateway):
    with gateway.client() as client:
        client.socket.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        (size_bytes,) = struct.unpack(">i", client.socket.recv(4))
        answer = client.socket.recv(size_bytes)
        assert struct.unpack(">ih", answer[:6]) == (7, UNSUPPORTED_VERSION)
        offered = {api.api_key: api for api in client.ask(ApiVersionsRequest(), 0).api_keys}
    assert {0, 1, 2, 3, 18, 22, 23, 60} <= offered.keys()
    assert offered[1].max_version >= 12
    assert all(api.min_version <= api.max_version for api in offered.values())


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ihhih", 10, 999, 0, 1, -1),  # no such API
        struct.pack(">ihhih", 10, 3, 99, 1, -1),  # no such version of Metadata
        struct.pack(">ihhih", 10, 3, 9, 1, -1),  # Metadata without a body
        struct.pack(">i", (1 << 20) + 1),
        struct.pack(">i", -5),
        struct.pack(">i", 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_closes_its_connection_only(gateway, frame):
    with gateway.client() as client, gateway.client() as other:
        client.socket.sendall(frame)
        assert client.is_closed
        assert other.ask(ApiVersionsRequest(), 0).error_code == 0


def test_answers_come_in_the_order_of_the_requests(gateway):
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="orders", partitions=[part])]
    fetch = FetchRequest(max_wait_ms=200, min_bytes=1 << 20, max_bytes=1 << 20, topics=topics)
    with gateway.client() as client:
        client.send(fetch, 12)  # waits, and those after it wait for its answer
        client.send(ApiVersionsRequest(), 0)
        client.send(MetadataRequest(topics=[]), 9)
        assert client.receive(0).responses[0].topic == "orders"
        assert client.receive(1).error_code == 0
        assert client.receive(2).cluster_id == gateway.cluster.brokers.cluster_id


def test_metadata_names_topics_by_id_and_those_that_are_not_there(gateway):
    topic = MetadataRequest.MetadataRequestTopic
    with gateway.client() as client:
        named = client.ask(MetadataRequest(topics=[topic(name="orders"), topic(name="none")]), 12)
        by_name = {item.name: item for item in named.topics}
        orders = by_name["orders"]
        assert [part.partition_index for part in orders.partitions] == [0, 1]
        assert by_name["none"].error_code == UNKNOWN_TOPIC_OR_PARTITION
        again = client.ask(MetadataRequest(topics=[topic(topic_id=orders.topic_id, name=None)]), 12)
        assert [item.name for item in again.topics] == ["orders"]
        assert {item.name for item in client.ask(MetadataRequest(topics=None), 12).topics} == {"orders"}


def test_a_topic_is_created_for_a_client_only_if_the_gateway_may():
    topic = MetadataRequest.MetadataRequestTopic(name="new")
    with RunningGateway(auto_create_topics_enable=True, num_partitions=3) as running, running.client() as client:
        client.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=False), 9)
        assert running.cluster.topic_names() == []
        answer = client.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 9)
        assert len(answer.topics[0].partitions) == 3


def test_with_acks_0_an_error_closes_the_connection(gateway):
    def produce(topic: str) -> ProduceRequest:
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=record_batch(b"x"))
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        return ProduceRequest(transactional_id=None, acks=0, timeout_ms=5_000, topic_data=[data])

    with gateway.client() as client:
        client.send(produce("orders"), 9)
        assert client.ask(MetadataRequest(topics=[]), 9).topics == []  # of the first there was no answer
        client.send(produce("none"), 9)
        assert client.is_closed


def test_the_memory_of_requests_is_given_first_come_first_served():
    async def run() -> list[str]:
        budget, order = MemoryBudget(100), []
        assert await budget.take(60) == 60

        async def take(name: str, size_bytes: int) -> None:
            taken = await budget.take(size_bytes)
            order.append(f"{name} {taken}")

        waiting = [asyncio.create_task(take("large", 1_000)), asyncio.create_task(take("small", 10))]
        leaver = asyncio.create_task(take("leaver", 10))
        await asyncio.sleep(0)
        assert order == []
        leaver.cancel()
        budget.give_back(60)
        await waiting[0]
        budget.give_back(100)
        await waiting[1]
        assert budget.left_bytes == 90
        return order

    assert asyncio.run(run()) == ["large 100", "small 10"]
