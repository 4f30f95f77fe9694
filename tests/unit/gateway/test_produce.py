"""Produce: duplicates, gaps and epochs of idempotent producers, also across gateways; refused batches; typed topics."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from spark_replog.client.producer import Producer
from spark_replog.client.store import init_store
from spark_replog.cluster.cluster import Cluster
from tests.gateways import RunningGateway, Sender, WireClient, record_batch
from tests.waiting import wait_until
from tests.wire_requests import fetch_request, produce_request

OUT_OF_ORDER, INVALID_EPOCH, STORAGE_ERROR, UNKNOWN_PRODUCER = 45, 47, 56, 59
CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, BAD_ACKS, INVALID_RECORD, UNKNOWN_TOPIC_ID = 2, 3, 10, 21, 87, 100


def produce(client: WireClient, *arguments: Any, **options: Any) -> dict[int, tuple[int, int]]:
    """Return the error code and the base offset of each partition."""
    answer = client.ask(produce_request(*arguments, **options), 9)
    return {part.index: (part.error_code, part.base_offset) for part in answer.responses[0].partition_responses}


def values(running: RunningGateway, topic: str = "orders") -> list[bytes]:
    return running.store.topic(topic).scan().to_arrow().column("value").to_pylist()


@pytest.fixture
def gateway():
    with RunningGateway() as running:
        running.store.admin().create_topic("orders", 2)
        yield running


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_batch_is_in_the_log_when_it_is_answered(gateway, client, acks):
    assert produce(client, {0: record_batch(b"a", b"b"), 1: record_batch(None)}, acks=acks) == {0: (0, 0), 1: (0, 0)}
    assert produce(client, {0: record_batch(b"c")}, acks=acks) == {0: (0, 2)}
    assert sorted(values(gateway), key=str) == sorted([b"a", b"b", None, b"c"], key=str)


def test_batches_that_wait_together_have_their_own_offsets(gateway, client):
    numbers = range(8)
    for number in numbers:
        client.send(produce_request({0: record_batch(b"%d" % number, b"-")}), 9)
    offsets = [client.receive(number).responses[0].partition_responses[0].base_offset for number in numbers]
    assert offsets == [2 * number for number in numbers]
    assert values(gateway)[::2] == [b"%d" % number for number in numbers]


def test_a_repeated_batch_is_answered_with_its_first_offset(gateway, client):
    sender = Sender(client.ask(InitProducerIdRequest(transactional_id=None), 4).producer_id)
    first, second = (record_batch(b"x", b"y", sender=sender, sequence=number) for number in (0, 2))
    assert produce(client, {0: first}) == {0: (0, 0)}
    assert produce(client, {0: record_batch(b"other")}) == {0: (0, 2)}
    assert produce(client, {0: second}) == {0: (0, 3)}
    assert produce(client, {0: first}) == {0: (0, 0)}
    assert produce(client, {0: second}) == {0: (0, 3)}
    assert values(gateway) == [b"x", b"y", b"other", b"x", b"y"]


def test_a_gap_an_old_epoch_and_an_unknown_producer_have_kafkas_codes(gateway, client):
    sender = Sender(77, epoch=1)

    def send(sequence: int, epoch: int = 1, partition: int = 0) -> int:
        batch = record_batch(b"x", sender=Sender(sender.id, epoch), sequence=sequence)
        return produce(client, {partition: batch})[partition][0]

    assert send(5) == UNKNOWN_PRODUCER
    assert send(0) == 0
    assert send(2) == OUT_OF_ORDER
    assert send(1, epoch=0) == INVALID_EPOCH
    assert send(1, epoch=2) == OUT_OF_ORDER
    assert send(0, epoch=2) == 0
    assert send(1) == INVALID_EPOCH
    assert send(3, partition=1) == UNKNOWN_PRODUCER
    assert len(values(gateway)) == 2


def test_a_refused_batch_does_not_hold_back_other_partitions_or_topics(gateway, client):
    gateway.store.admin().create_topic("compacted", 1, config={"cleanup.policy": "compact"})
    broken = bytearray(record_batch(b"broken"))
    broken[-1] ^= 1
    assert produce(client, {0: bytes(broken), 1: record_batch(b"good"), 7: record_batch(b"x")}) == {
        0: (CORRUPT, -1), 1: (0, 0), 7: (UNKNOWN_TOPIC, -1)}  # fmt: skip
    assert produce(client, {0: record_batch(b"x")}, topic="none") == {0: (UNKNOWN_TOPIC, -1)}
    assert produce(client, {0: record_batch(b"x") * 2}) == {0: (INVALID_RECORD, -1)}
    assert produce(client, {0: record_batch(b"x")}, acks=5) == {0: (BAD_ACKS, -1)}
    assert produce(client, {0: record_batch(b"x")}, topic="compacted") == {0: (INVALID_RECORD, -1)}
    assert produce(client, {0: record_batch(b"x", key=b"k")}, topic="compacted") == {0: (0, 0)}
    assert values(gateway) == [b"good"]


def test_a_batch_after_a_refused_one_of_its_producer_is_a_gap(gateway, client):
    gateway.store.admin().create_topic("small", 1, config={"max.message.bytes": "1000"})
    sender = Sender(5)
    for number, value in enumerate([b"x", b"y" * 2_000, b"z"]):
        client.send(produce_request({0: record_batch(value, sender=sender, sequence=number)}, topic="small"), 9)
    codes = [client.receive(number).responses[0].partition_responses[0].error_code for number in range(3)]
    assert codes == [0, TOO_LARGE, OUT_OF_ORDER]
    assert values(gateway, "small") == [b"x"]


def test_a_producer_changes_gateways_in_mid_stream(gateway):
    """What it sends again is known there, also if it comes together with new batches."""
    sender = Sender(9)
    batches = [record_batch(b"%d" % number, sender=sender, sequence=number) for number in range(6)]
    other_view = Cluster.open(gateway.cluster.path)
    with RunningGateway(other_view, node_id=1) as other, gateway.client() as here, other.client() as there:
        assert produce(there, {1: record_batch(b"first")}) == {1: (0, 0)}  # it has folded the topic
        for number in range(3):
            assert produce(here, {0: batches[number]}) == {0: (0, number)}
        for number in range(1, 6):
            there.send(produce_request({0: batches[number]}), 9)
        offsets = [there.receive(number).responses[0].partition_responses[0] for number in range(1, 6)]
        assert [(part.error_code, part.base_offset) for part in offsets] == [(0, number) for number in range(1, 6)]
        assert produce(here, {0: batches[5]}) == {0: (0, 5)}
        assert produce(here, {0: record_batch(b"6", sender=sender, sequence=6)}) == {0: (0, 6)}
    assert values(gateway) == [b"%d" % number for number in range(7)] + [b"first"]


def test_a_new_epoch_of_an_id_is_the_next_one(client):
    first = client.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert first.error_code == 0 and first.producer_epoch == 0 and first.producer_id >= 0
    again = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=0)
    assert (client.ask(again, 4).producer_id, client.ask(again, 4).producer_epoch) == (first.producer_id, 1)
    last = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=2**15 - 1)
    assert client.ask(last, 4).producer_epoch == 0
    assert client.ask(InitProducerIdRequest(transactional_id="payments"), 4).error_code == 35


def test_json_becomes_the_columns_of_a_typed_topic(gateway, client):
    gateway.store.admin().create_topic("typed", 1, schema="id INT NOT NULL, name STRING", key=["id"])
    good = record_batch(b'{"id":1,"name":"a"}', b'{"id":2}')
    assert produce(client, {0: good}, topic="typed") == {0: (0, 0)}
    for bad in (b'{"name":"b"}', b'{"id":"x"}', b'{"id":3,"other":1}', b"no json", None):
        answer = client.ask(produce_request({0: record_batch(b'{"id":4}', bad)}, topic="typed"), 9)
        part = answer.responses[0].partition_responses[0]
        assert part.error_code == INVALID_RECORD
        assert [record.batch_index for record in part.record_errors] == [1]
        assert "typed" in part.error_message
    rows = gateway.store.topic("typed").scan().to_arrow().select(["id", "name"]).to_pylist()
    assert rows == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_a_topic_with_another_id_gets_no_rows(gateway, client):
    admin = gateway.store.admin()
    old = gateway.cluster.lookup("orders").topic_id
    admin.delete_topic("orders")
    admin.create_topic("orders", 1)
    new = gateway.cluster.lookup("orders").topic_id
    for topic_id, code in ((old, UNKNOWN_TOPIC_ID), (new, 0)):
        sent = produce_request({0: record_batch(b"x")}, topic_id=UUID(hex=topic_id))
        assert client.ask(sent, 13).responses[0].partition_responses[0].error_code == code
    assert values(gateway) == [b"x"]


def test_log_append_time_and_the_log_start_are_answered(gateway, client):
    gateway.store.admin().create_topic("timed", 1, config={"message.timestamp.type": "LogAppendTime"})
    answer = client.ask(produce_request({0: record_batch(b"x", time_ms=1)}, topic="timed"), 9)
    part = answer.responses[0].partition_responses[0]
    assert part.error_code == 0 and part.log_start_offset == 0
    times = gateway.store.topic("timed").scan().to_arrow().column("timestamp").cast("int64").to_pylist()
    assert times == [part.log_append_time_ms * 1000]


def test_rows_of_a_gateway_and_of_a_plain_producer_share_a_log(gateway, client):
    assert produce(client, {0: record_batch(b"a")}) == {0: (0, 0)}
    with Producer(gateway.cluster) as producer:
        producer.send("orders", b"b", partition=0).result(60)
    assert produce(client, {0: record_batch(b"c")}) == {0: (0, 2)}


def test_many_idempotent_producers_share_entries(gateway):
    """Each has an append of its own; their small batches ride in the entries that these share."""
    count, rounds = 8, 3
    with RunningGateway(gateway.cluster, gateway_linger_ms=100) as slow:
        clients = [slow.client() for _ in range(count)]
        before = creates(slow)
        for sequence in range(rounds):
            for number, sender in enumerate(clients):
                batch = record_batch(b"%d" % number, sender=Sender(100 + number), sequence=sequence)
                sender.send(produce_request({0: batch}), 9)
            answers = [sender.receive().responses[0].partition_responses[0] for sender in clients]
            assert [part.error_code for part in answers] == [0] * count
        made = {purpose: number - before.get(purpose, 0) for purpose, number in creates(slow).items()}
        for sender in clients:
            sender.socket.close()
    assert made.get("objects", 0) < count * rounds // 2  # none, but of lanes that began before there were many
    assert made["journal"] < count * rounds
    assert len(values(gateway)) == count * rounds


def creates(running: RunningGateway) -> dict[str, int]:
    calls = running.store.storage_calls()
    return {purpose: count.call_count for (_, kind, purpose), count in calls.items() if kind == "create"}


def test_a_store_that_is_away_gives_codes_to_try_again(tmp_path, short_waits):
    store = init_store(tmp_path / "store", 1, fsync=False)
    store.admin().create_topic("orders", 1)
    root, away = tmp_path / "store" / "broker-0", tmp_path / "away"
    short_waits()
    cluster = Cluster.open(store.path)
    cluster.refresh()
    with RunningGateway(cluster) as running, running.client() as client:
        root.rename(away)
        assert produce(client, {0: record_batch(b"x")})[0][0] == STORAGE_ERROR
        fetched = client.ask(fetch_request(wait_ms=1), 12)
        assert fetched.responses[0].partitions[0].error_code == STORAGE_ERROR
        described = client.ask(MetadataRequest(topics=None), 12)
        assert [topic.name for topic in described.topics] == ["orders"]
        away.rename(root)
        wait_until(lambda: produce(client, {0: record_batch(b"x")}) == {0: (0, 0)}, "the store")
