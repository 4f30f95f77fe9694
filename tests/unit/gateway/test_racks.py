"""Consumers of a rack are sent to a gateway of their rack, by Fetch (KIP-392); Metadata names one of each rack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.gateway.placement import Node, Placement
from tests.gateways import RunningGateway, record_batch, records_of

OUT_OF_RANGE = 1
PARTITIONS = range(16)


@pytest.fixture
def pair() -> Iterator[tuple[RunningGateway, RunningGateway]]:
    """Gateways of the racks a and b, with the ids 0 and 1."""
    with ExitStack() as stack:
        first = stack.enter_context(RunningGateway(rack="a"))
        second = stack.enter_context(RunningGateway(first.cluster, node_id=1, rack="b"))
        for running in (first, second):
            running.gateway.placement = Placement([first.gateway.node, second.gateway.node])
        first.store.admin().create_topic("orders", len(PARTITIONS))
        yield first, second


def fetched(gateway: RunningGateway, rack: str, version: int = 12, offset: int = 0, wait_ms: int = 0) -> list[Any]:
    """Return the answer for each partition of a fetch from some offset, by a consumer of a rack."""
    part = FetchRequest.FetchTopic.FetchPartition
    parts = [part(partition=at, fetch_offset=offset, partition_max_bytes=1 << 20) for at in PARTITIONS]
    topics = [FetchRequest.FetchTopic(topic="orders", partitions=parts)]
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, topics=topics, rack_id=rack)
    with gateway.client() as client:
        return list(client.ask(request, version).responses[0].partitions)


def produce(gateway: RunningGateway) -> None:
    part = ProduceRequest.TopicProduceData.PartitionProduceData
    parts = [part(index=at, records=record_batch(b"x")) for at in PARTITIONS]
    data = [ProduceRequest.TopicProduceData(name="orders", partition_data=parts)]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
    with gateway.client() as client:
        codes = [at.error_code for at in client.ask(request, 9).responses[0].partition_responses]
    assert codes == [0] * len(codes)


def seen(parts: list[Any]) -> set[tuple[int, int, int]]:
    """Return error code, preferred replica and number of records, of all partitions."""
    return {(part.error_code, part.preferred_read_replica, len(records_of(part.records))) for part in parts}


def test_a_consumer_is_sent_to_a_gateway_of_its_rack_and_served_there(pair):
    first, second = pair
    produce(first)
    assert seen(fetched(first, "b")) == {(0, 1, 0)}, "no rows: it asks again there"
    assert seen(fetched(second, "b")) == {(0, -1, 1)}
    assert seen(fetched(first, "a")) == {(0, -1, 1)}
    for rack in ("", "of-nobody"):
        assert seen(fetched(first, rack)) == seen(fetched(second, rack)) == {(0, -1, 1)}
    assert seen(fetched(first, "b", version=10)) == {(0, -1, 1)}, "an older client cannot be sent"


def test_it_is_sent_before_there_are_rows_and_errors_come_first(pair, monkeypatch):
    first, _ = pair
    monkeypatch.setattr("spark_replog.gateway.fetch.WAIT_MS_MAX", 600_000)  # longer than the client waits
    assert seen(fetched(first, "b", wait_ms=600_000)) == {(0, 1, 0)}, "without a wait"
    assert seen(fetched(first, "b", offset=7)) == {(OUT_OF_RANGE, -1, 0)}


def test_metadata_names_one_gateway_of_each_rack_for_a_partition(pair):
    first, _ = pair
    with first.client() as client:
        parts = client.ask(MetadataRequest(topics=None), 12).topics[0].partitions
        assert {part.leader_id for part in parts} == {0, 1}
        for part in parts:
            assert part.replica_nodes == part.isr_nodes == [part.leader_id, 1 - part.leader_id]
    first.gateway.placement = Placement([Node(0, "h", 1), Node(1, "h", 2)])
    with first.client() as client:
        parts = client.ask(MetadataRequest(topics=None), 12).topics[0].partitions
        assert all(part.replica_nodes == [part.leader_id] for part in parts), "without racks"


def test_a_rack_with_several_gateways_gives_each_its_part():
    nodes = [Node(1, "h", 1, "a"), Node(2, "h", 2, "b"), Node(3, "h", 3, "b"), Node(4, "h", 4)]
    placement, keys = Placement(nodes), [f"orders-{number}" for number in range(300)]
    near = [placement.nearer(key, "b", nodes[0]) for key in keys]
    assert {node.node_id for node in near if node is not None} == {2, 3}
    assert {placement.nearer(key, "b", nodes[2]) for key in keys} == {None}, "one of the rack is near enough"
    for key, node in zip(keys, near, strict=True):
        assert node in placement.nodes_of(key), "clients only go to replicas"
        racks = [replica.rack for replica in placement.nodes_of(key)]
        assert len(racks) == len(set(racks)) and {"a", "b"} <= set(racks)
