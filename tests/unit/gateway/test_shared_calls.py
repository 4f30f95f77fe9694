"""What many clients cost on storage: as much as one, if they ask for, or send, as much together."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.client.look_schedule import LookSchedule
from spark_replog.cluster import cluster
from spark_replog.gateway import produce_lane
from spark_replog.gateway.produce_lane import ProduceLanes
from spark_replog.maintenance.upkeep import INLINE_ROOM_BYTES_MIN
from tests.at_rest import wait_at_rest
from tests.gateways import RunningGateway, Sender, WireClient, record_batch, records_of
from tests.waiting import SECONDS_MAX, wait_until

NEVER_MS = 10**9
_Data = ProduceRequest.TopicProduceData


@pytest.fixture(autouse=True)
def no_calls_by_time(monkeypatch):
    """No call is made because time has passed: how much of it does is the machine's affair."""
    monkeypatch.setattr(cluster, "ACCESS_AGE_MS", NEVER_MS)
    monkeypatch.setattr(produce_lane, "PLAN_AGE_MS", NEVER_MS)
    monkeypatch.setattr(produce_lane, "MEETING_SECONDS", SECONDS_MAX)
    monkeypatch.setattr(LookSchedule, "due", lambda self, now_ms: {})


def produce_request(batch: bytes) -> ProduceRequest:
    data = _Data(name="orders", partition_data=[_Data.PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=60_000, topic_data=[data])


def fetch_request(offset: int) -> FetchRequest:
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="orders", partitions=[part])]
    return FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20, topics=topics)


def calls_of(gateway: RunningGateway) -> Counter[tuple[str, str]]:
    """Return the calls for rows and entries so far by kind and purpose, once they are over."""
    wait_at_rest(gateway.cluster.brokers)
    calls = gateway.store.storage_calls()
    return Counter({key[1:]: count.call_count for key, count in calls.items() if key[2] in ("objects", "journal")})


def calls_of_rounds(consumers: int, idle: int, rounds: int = 4) -> Counter[tuple[str, str]]:
    """Return what it costs that all consumers get the rows of each round, for which they wait."""
    value = b"x" * 50_000
    with RunningGateway() as gateway, ExitStack() as stack:
        gateway.store.admin().create_topic("orders", 1)
        producer, *clients = [stack.enter_context(gateway.client()) for _ in range(1 + consumers + idle)]
        waiting = clients[:consumers]
        assert producer.ask(produce_request(record_batch(value)), 9).responses[0].partition_responses[0].error_code == 0
        waiting[0].ask(fetch_request(0), 12)
        before = calls_of(gateway)
        for offset in range(1, rounds + 1):
            asked = gateway.server.counts()["requests"] + consumers
            for client in waiting:
                client.send(fetch_request(offset), 12)
            wait_until(lambda: gateway.server.counts()["requests"] == asked)  # noqa: B023
            producer.ask(produce_request(record_batch(value)), 9)
            for client in waiting:
                records = records_of(client.receive().responses[0].partitions[0].records)
                assert records == [(offset, None, value)]
        return calls_of(gateway) - before


def test_many_consumers_and_idle_connections_cost_the_calls_of_one_consumer():
    one, many = calls_of_rounds(1, 0), calls_of_rounds(20, 100)
    assert one[("get", "objects")] == one[("create", "objects")] == one[("create", "journal")] == 4
    assert many == one


def start_lanes(gateway: RunningGateway, batch_count: int) -> None:
    """Let the linger end, once so many batches wait."""
    lanes = gateway.gateway.part(ProduceLanes)

    def waiting() -> int:
        return sum(len(lane._waiting) for lane in list(lanes._lanes.values()))

    wait_until(lambda: waiting() == batch_count, waiting)
    gateway._loop.call_soon_threadsafe(lanes._start_all, gateway._loop)


def calls_of_a_second(producers: int, rows: int, *, is_idempotent: bool) -> Counter[tuple[str, str]]:
    """Return what it costs that so many producers each send rows in each quarter of a second, the linger of buckets."""
    senders = [Sender(100 + number) if is_idempotent else None for number in range(producers)]
    with RunningGateway(gateway_linger_ms=NEVER_MS) as gateway, ExitStack() as stack:
        gateway.store.admin().create_topic("orders", 1)
        clients = [stack.enter_context(gateway.client()) for _ in range(producers)]
        ledger = gateway.cluster.topic_ledger(gateway.cluster.lookup("orders").ledger_id)
        before = Counter[tuple[str, str]]()
        for quarter in range(5):
            if quarter == 1:
                before = calls_of(gateway)
            for client, sender in zip(clients, senders, strict=True):
                sequence = quarter * rows if is_idempotent else -1
                batch = record_batch(*[b"x" * 100] * rows, sender=sender, sequence=sequence)
                client.send(produce_request(batch), 9)
            start_lanes(gateway, producers)
            assert [appended(client) for client in clients] == [0] * producers
            wait_until(lambda: ledger.ask(lambda state: state.inline_room_bytes) >= INLINE_ROOM_BYTES_MIN)
        return calls_of(gateway) - before


def appended(client: WireClient) -> int:
    code: int = client.receive().responses[0].partition_responses[0].error_code
    return code


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_hundred_producers_cost_at_most_twice_the_calls_of_one(is_idempotent):
    one = calls_of_a_second(1, 250, is_idempotent=is_idempotent)
    many = calls_of_a_second(100, 3, is_idempotent=is_idempotent)
    assert one[("create", "objects")] == one[("create", "journal")] == 4
    assert many.total() <= 2 * one.total(), (one, many)


def test_a_lane_whose_batch_is_refused_lets_the_others_go_on():
    damaged = bytearray(record_batch(b"x", sender=Sender(1), sequence=0))
    damaged[-1] ^= 1
    with RunningGateway(gateway_linger_ms=NEVER_MS) as gateway, ExitStack() as stack:
        gateway.store.admin().create_topic("orders", 1)
        clients = [stack.enter_context(gateway.client()) for _ in range(5)]
        clients[0].send(produce_request(bytes(damaged)), 9)
        for number, client in enumerate(clients[1:], 2):
            client.send(produce_request(record_batch(b"x", sender=Sender(number), sequence=0)), 9)
        start_lanes(gateway, 5)
        assert [appended(client) for client in clients] == [2, 0, 0, 0, 0]
