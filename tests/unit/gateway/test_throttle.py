"""Clients above their quota: the answer comes at once with the time to wait, and the connection is muted as long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.admin.access_admin import QuotaAdmin
from spark_replog.clock import SystemClock
from spark_replog.gateway.server import Connection
from spark_replog.log.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, QuotaEntity
from spark_replog.read.fetcher import THROTTLE_MS_MAX, forget_rates
from tests.gateways import RunningGateway, WireClient, record_batch, records_of

VALUE = b"x" * 10_000


@pytest.fixture
def gateway() -> Iterator[RunningGateway]:
    forget_rates()
    with RunningGateway() as running:
        running.store.admin().create_topic("orders", 1)
        yield running
    forget_rates()


@pytest.fixture
def long_mutes(monkeypatch) -> None:
    """Let mutes last for as long as a busy machine may need for a test."""
    mute = Connection.mute
    monkeypatch.setattr(Connection, "mute", lambda self, duration_ms: mute(self, 1_000 * duration_ms))


def limit(gateway: RunningGateway, key: str, bytes_per_second: int) -> None:
    QuotaAdmin(gateway.cluster).alter(QuotaEntity(None, "wire"), {key: bytes_per_second})
    gateway.cluster.refresh()


def produce(acks: int = -1, value: bytes = VALUE) -> ProduceRequest:
    part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=record_batch(value))
    data = [ProduceRequest.TopicProduceData(name="orders", partition_data=[part])]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=data)


def fetch(bytes_max: int = 1 << 20) -> FetchRequest:
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=bytes_max)
    topics = [FetchRequest.FetchTopic(topic="orders", partitions=[part])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, topics=topics)


def is_closed_unanswered(gateway: RunningGateway, client: WireClient) -> bool:
    """Return whether the gateway begins no request of a client until it ends."""
    client.send(ApiVersionsRequest(), 0)
    with gateway.client() as other:
        assert other.ask(ApiVersionsRequest(), 0).error_code == 0, "others are not muted"
    gateway.end()
    return client.is_closed


@pytest.mark.usefixtures("long_mutes")
@pytest.mark.parametrize("version", [3, 9])
def test_a_producer_above_its_quota_is_told_at_once_and_muted(gateway, version, monkeypatch):
    limit(gateway, PRODUCER_BYTE_RATE, 100)
    slept_ms: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep_ms", lambda _, duration_ms: slept_ms.append(duration_ms))
    with gateway.client() as client:
        answer = client.ask(produce(), version)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert answer.throttle_time_ms == 5_000, "half of what a lane gives an append"
        assert 5_000 not in slept_ms
        assert is_closed_unanswered(gateway, client)


@pytest.mark.usefixtures("long_mutes")
def test_without_an_answer_the_connection_is_muted_all_the_same(gateway):
    limit(gateway, PRODUCER_BYTE_RATE, 100)
    with gateway.client() as client:
        client.send(produce(acks=0), 9)
        assert is_closed_unanswered(gateway, client)


@pytest.mark.usefixtures("long_mutes")
def test_a_consumer_above_its_quota_gets_its_rows_is_told_and_muted(gateway):
    with gateway.client() as client:
        client.ask(produce(), 9)
        client.ask(produce(), 9)
        whole = client.ask(fetch(), 12)
        assert (len(records_of(whole.responses[0].partitions[0].records)), whole.throttle_time_ms) == (2, 0)
        limit(gateway, CONSUMER_BYTE_RATE, 100)
        answer = client.ask(fetch(), 12)
        assert answer.throttle_time_ms == THROTTLE_MS_MAX
        assert len(records_of(answer.responses[0].partitions[0].records)) >= 1, "the first batch, whatever its size"
        assert is_closed_unanswered(gateway, client)


def test_an_answer_has_no_more_than_a_quota_allows_at_once_and_a_mute_ends(gateway):
    with gateway.client() as client:
        for _ in range(4):
            client.ask(produce(value=b"x" * 600_000), 9)  # each is a batch of its own
        assert len(records_of(client.ask(fetch(1 << 22), 12).responses[0].partitions[0].records)) == 4
        first_bytes = len(client.ask(fetch(1), 12).responses[0].partitions[0].records)
        limit(gateway, CONSUMER_BYTE_RATE, first_bytes // 11)
        answer = client.ask(fetch(1 << 22), 12)
        assert len(answer.responses[0].partitions[0].records) == first_bytes
        assert 0 < answer.throttle_time_ms < 2_000
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
