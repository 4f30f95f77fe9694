"""Fetch, ListOffsets and OffsetForLeaderEpoch: exact offsets, waits, what consumers share, and what may not be read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from spark_replog.admin.controller import MirrorOf
from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.client.mirrored_log import MirroredLog
from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster
from spark_replog.gateway.batch_cache import BatchCache, CachePlace
from spark_replog.gateway.record_batch import EncodedBatch
from tests.gateways import RunningGateway, WireClient, record_batch, records_of
from tests.wire_requests import fetch_request, list_request, produce_request

POLICY_VIOLATION = 44
OUT_OF_RANGE, UNKNOWN_TOPIC, FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_TOPIC_ID = 1, 3, 74, 75, 100


def fetch(client: WireClient, *arguments: Any, **options: Any) -> Any:
    answer = client.ask(fetch_request(*arguments, **options), 12)
    assert answer.session_id == 0
    return answer.responses[0].partitions[0]


def offsets_of(part: Any) -> list[int]:
    return [offset for offset, _, _ in records_of(part.records)]


@pytest.fixture
def gateway():
    with RunningGateway() as running:
        running.store.admin().create_topic("orders", 1)
        yield running


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


def send(gateway: RunningGateway, *sizes: int, topic: str = "orders", first: int = 0) -> None:
    with Producer(gateway.cluster, linger_ms=0) as producer:
        for number, size_bytes in enumerate(sizes, first):
            producer.send(topic, b"%08d" % number + b"x" * size_bytes, key=b"k", partition=0).result(60)


def test_rows_come_with_their_offsets_from_any_offset(gateway, client):
    send(gateway, *[10] * 5)
    for offset in range(5):
        part = fetch(client, offset)
        assert part.high_watermark == part.last_stable_offset == 5 and part.log_start_offset == 0
        records = [record for record in records_of(part.records) if record[0] >= offset]
        assert records == [(number, b"k", b"%08d" % number + b"x" * 10) for number in range(offset, 5)]
    assert fetch(client, 5).error_code == 0 and not fetch(client, 5).records


def test_the_batch_that_holds_the_offset_comes_first_whatever_its_size(gateway, client):
    send(gateway, 5_000, 10)
    part = fetch(client, 0, bytes_max=1)
    assert offsets_of(part)[0] == 0
    position = offsets_of(part)[-1] + 1
    while position < 2:
        position = offsets_of(fetch(client, position, bytes_max=1))[-1] + 1


def test_what_cannot_be_read_has_kafkas_code(gateway, client):
    send(gateway, 10, 10, 10)
    gateway.store.admin().delete_records("orders", {0: 1})
    assert fetch(client, 0).error_code == OUT_OF_RANGE
    assert fetch(client, 4).error_code == OUT_OF_RANGE
    assert offsets_of(fetch(client, 1)) == [1, 2]
    assert fetch(client, 1).log_start_offset == 1
    assert fetch(client, topic="none").error_code == UNKNOWN_TOPIC
    assert fetch(client, partition=3).error_code == UNKNOWN_TOPIC
    epoch = gateway.store.admin().describe_topic("orders").partitions[0].leader_epoch
    assert fetch(client, 1, epoch=epoch).error_code == 0
    assert fetch(client, 1, epoch=epoch + 1).error_code == UNKNOWN_EPOCH


def test_a_topic_is_read_by_its_id(gateway, client):
    send(gateway, 10)
    for topic_id, code in ((gateway.cluster.lookup("orders").topic_id, 0), ("1" * 32, UNKNOWN_TOPIC_ID)):
        answer = client.ask(fetch_request(topic_id=UUID(hex=topic_id)), 16).responses[0]
        assert answer.topic_id == UUID(hex=topic_id)
        assert answer.partitions[0].error_code == code


def test_a_waiting_fetch_ends_with_the_first_rows(gateway, client):
    with gateway.client() as producer:
        client.send(fetch_request(wait_ms=100_000), 12)
        send(gateway, 10)  # by the same process: no look is needed
        assert offsets_of(client.receive().responses[0].partitions[0]) == [0]
        client.send(fetch_request(1, wait_ms=100_000, min_bytes=4_000), 12)
        send(gateway, 10, first=1)
        send(gateway, 9_000, first=2)
        assert offsets_of(client.receive().responses[0].partitions[0]) == [1, 2]
        assert fetch(producer, 3, wait_ms=1).error_code == 0


def test_consumers_at_one_place_cost_one_read(gateway, client):
    send(gateway, *[50] * 20)
    assert len(offsets_of(fetch(client))) == 20
    objects_read = object_gets(gateway)
    others = [gateway.client() for _ in range(10)]
    for other in others:
        other.send(fetch_request(), 12)
    assert [len(offsets_of(other.receive().responses[0].partitions[0])) for other in others] == [20] * 10
    assert object_gets(gateway) == objects_read
    for other in others:
        other.socket.close()


def object_gets(gateway: RunningGateway) -> int:
    calls = gateway.store.storage_calls()
    return sum(count.call_count for (_, kind, purpose), count in calls.items() if (kind, purpose) == ("get", "objects"))


def test_times_and_ends_of_partitions_are_listed(gateway, client):
    gateway.store.admin().create_topic("timed", 1)
    with Producer(gateway.cluster) as producer:
        for time_ms in (1_000, 3_000, 2_000):
            producer.send("timed", b"x", partition=0, timestamp_ms=time_ms).result(60)

    def offset_of(time_ms: int, topic: str = "timed") -> tuple[int, int, int]:
        answer = client.ask(list_request(time_ms, topic=topic), 8).topics[0].partitions[0]
        return answer.error_code, answer.offset, answer.timestamp

    assert offset_of(-1) == (0, 3, -1)
    assert offset_of(-2) == offset_of(-4) == (0, 0, -1)
    assert offset_of(-3) == (0, 1, 3_000)
    assert offset_of(1_500) == (0, 1, 3_000)
    assert offset_of(3_001) == (0, -1, -1)
    assert offset_of(-3, "orders") == (0, -1, -1)
    assert offset_of(-1, "none") == (UNKNOWN_TOPIC, -1, -1)


def test_an_epoch_ends_where_the_log_says(gateway, client):
    send(gateway, 10, 10)
    epoch = gateway.store.admin().describe_topic("orders").partitions[0].leader_epoch

    def end_of(asked: int) -> tuple[int, int]:
        part = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
            partition=0, leader_epoch=asked, current_leader_epoch=-1
        )
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="orders", partitions=[part])]
        answer = client.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4).topics[0].partitions[0]
        return answer.leader_epoch, answer.end_offset

    assert end_of(epoch) == (epoch, 2)
    assert end_of(epoch + 5) == (-1, -1)


def test_typed_rows_are_read_as_json(gateway, client):
    gateway.store.admin().create_topic("typed", 1, schema="id INT NOT NULL, name STRING", key=["id"])
    with Producer(gateway.cluster) as producer:
        producer.send("typed", {"id": 1, "name": "a"}).result(60)
    assert records_of(fetch(client, topic="typed").records) == [(0, b"\x00\x00\x00\x01", b'{"id":1,"name":"a"}')]


def test_the_cache_gives_batches_without_a_gap_and_keeps_to_its_bound():
    place = CachePlace("t", 0, 1)
    cache = BatchCache(100)
    first, second, far = EncodedBatch(0, 4, b"a" * 40), EncodedBatch(5, 9, b"b" * 40), EncodedBatch(20, 29, b"c" * 20)
    cache.put(place, [first, second, far])
    assert cache.get(place, 3, 30, 1_000) == [first, second]
    assert cache.get(place, 3, 5, 1_000) == [first]
    assert cache.get(place, 7, 30, 1) == [second]
    assert cache.get(place, 10, 30, 1_000) == []
    assert cache.get(place._replace(leader_epoch=2), 0, 30, 1_000) == []
    cache.put(place, [EncodedBatch(30, 30, b"d" * 200)])
    assert cache.get(place, 30, 31, 1_000) == []
    cache.put(place, [EncodedBatch(10, 19, b"e" * 30)])
    assert cache.size_bytes <= 100 and cache.get(place, 0, 30, 1_000) == []
    assert len(cache.get(place, 5, 30, 1_000)) == 3


def test_a_store_of_another_process_is_looked_at_while_fetches_wait(gateway, client):
    """Rows that this gateway did not append: here by another view of the store."""
    client.send(fetch_request(wait_ms=100_000), 12)
    with Producer(Cluster.open(gateway.cluster.path)) as producer:
        producer.send("orders", b"x", partition=0).result(60)
    assert offsets_of(client.receive().responses[0].partitions[0]) == [0]


def test_produced_bytes_come_back_as_they_were(gateway, client):
    sent = produce_request({0: record_batch(b"", None, b"v", key=b"", time_ms=1_234)})
    assert client.ask(sent, 9).responses[0].partition_responses[0].error_code == 0
    assert records_of(fetch(client).records) == [(0, b"", b""), (1, b"", None), (2, b"", b"v")]


def test_a_mirrored_topic_has_the_offsets_of_its_source(gateway, client):
    store = gateway.cluster
    gateway.store.admin().create_topic("mirrored", 1, mirror=MirrorOf("kafka:c/t/1", (40,)))
    log = MirroredLog(store, ChunkAppender(store, "mirror"), "mirrored", "kafka:c/t/1")
    offsets = [40, 41, 45, 70]
    columns = {
        "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
        "partition": pa.array([0] * 4, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
    }
    log.append([pa.RecordBatch.from_pydict(columns)], {0: (40, 90)})
    part = fetch(client, 40, topic="mirrored")
    assert (offsets_of(part), part.high_watermark, part.log_start_offset) == (offsets, 90, 40)
    assert offsets_of(fetch(client, 42, topic="mirrored"))[-2:] == [45, 70]
    assert fetch(client, 39, topic="mirrored").error_code == OUT_OF_RANGE
    sent = produce_request({0: record_batch(b"1")}, topic="mirrored")
    refused = client.ask(sent, 9).responses[0].partition_responses[0]
    assert refused.error_code == POLICY_VIOLATION and "replog mirror" in refused.error_message
