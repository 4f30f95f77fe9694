"""What a client can take of a gateway: connections, time, memory."""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from contextlib import suppress

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.gateway.server import HeldBytes, MemoryBudget
from tests.gateways import RunningGateway, record_batch
from tests.waiting import wait_until


def answers(client):
    return client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_connections_above_the_limit_are_closed_and_a_place_that_is_free_again_is_given(caplog):
    with RunningGateway(max_connections=2) as gateway, gateway.client() as one:
        with gateway.client() as two:
            assert answers(one) and answers(two)
            for _ in range(3):
                with gateway.client() as three, pytest.raises(ConnectionError):
                    answers(three)
        wait_until(lambda: connects(gateway))
        assert answers(one)
    told = [record for record in caplog.records if "max.connections is 2" in record.message]
    assert len(told) == 1, "once, whoever repeats it"


def connects(gateway):
    try:
        with gateway.client() as client:
            return answers(client)
    except ConnectionError:
        return False


def test_an_address_has_a_limit_of_its_own():
    with RunningGateway(max_connections_per_ip=1) as gateway, gateway.client() as one:
        assert answers(one)
        assert not connects(gateway)


def test_who_says_nothing_or_sends_half_a_request_is_closed():
    limits = {"connections_max_idle_ms": 100, "gateway_receive_timeout_ms": 100}
    starts = b"", b"\0\0", struct.pack(">ihh", 100, 18, 0)
    with RunningGateway(**limits) as gateway:
        for start in starts:
            with gateway.client() as client:
                client.socket.sendall(start)
                assert client.is_closed


def waiting_fetch(max_wait_ms):
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="orders", partitions=[part])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


def test_a_gateway_that_ends_answers_what_it_has_read_and_reads_no_more():
    gateway = RunningGateway().__enter__()
    gateway.store.admin().create_topic("orders", 1)
    with gateway.client() as client, gateway.client() as idle:
        assert answers(idle)
        client.send(waiting_fetch(500), 12)
        wait_until(lambda: gateway.server.counts()["requests"] == 2)
        ending = threading.Thread(target=gateway.__exit__)
        ending.start()
        assert idle.is_closed
        with suppress(OSError):  # a busy machine may have answered and closed by now
            client.socket.sendall(b"more that nobody reads")
        assert client.receive().responses[0].topic == "orders"
        ending.join()
    assert not connects(gateway)


def test_who_waits_for_an_answer_is_not_idle():
    with RunningGateway(connections_max_idle_ms=1_000) as gateway:
        gateway.store.admin().create_topic("orders", 1)
        with gateway.client() as client:
            assert client.ask(waiting_fetch(2_000), 12).responses[0].topic == "orders"
            assert client.is_closed, "but afterwards it is"


def test_who_does_not_read_its_answers_is_closed_and_holds_no_memory(caplog):
    caplog.set_level(logging.WARNING)
    asked = [MetadataRequest.MetadataRequestTopic(name=f"{number:030000d}") for number in range(100)]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)

    def is_told() -> bool:
        return any("does not read its answers" in record.message for record in caplog.records)

    with RunningGateway(connections_max_idle_ms=1_000) as gateway:

        def send_until_told() -> None:
            """On a busy machine it may ask nothing for a second, and is closed for that."""
            while not is_told():
                with suppress(OSError), gateway.client() as client:
                    while True:
                        client.send(request, 9)

        sender = threading.Thread(target=send_until_told)
        sender.start()
        wait_until(is_told)
        sender.join()
        with gateway.client() as other:
            assert answers(other)


def test_a_client_that_goes_with_requests_open_leaves_nothing_behind():
    with RunningGateway() as gateway:
        gateway.store.admin().create_topic("orders", 1)
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=record_batch(b"x" * 1000))
        data = ProduceRequest.TopicProduceData(name="orders", partition_data=[part])
        for turn in range(1, 4):
            with gateway.client() as client:
                for _ in range(20):
                    client.send(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=[data]), 9)
                wait_until(lambda: gateway.server.counts()["requests"] >= turn)  # noqa: B023
        wait_until(lambda: gateway.server.counts()["connections"] == 0, gateway.server.counts)
        assert gateway.server.counts()["heldBytes"] == 0
        assert gateway.server.counts()["receivedBytes"] > 1000


def test_what_a_request_takes_when_it_is_decoded_makes_others_wait():
    async def main():
        budget = MemoryBudget(100)
        first, second = HeldBytes(budget), HeldBytes(budget)
        await first.take(10)
        first.add(500)  # it does not wait, for it holds some
        waiting = asyncio.create_task(second.take(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.release()
        await waiting
        second.release()
        second.release()
        assert budget.held_bytes == 0

    asyncio.run(main())
