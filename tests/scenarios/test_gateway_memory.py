"""The memory of a gateway's process: with many clients, and under frames that no client would send."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import cramjam
import pytest
from crc32c import crc32c
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest

from spark_replog.client.store import init_store
from spark_replog.gateway.produce_lane import DECODED_BYTES_MAX, DECODERS_MAX
from tests.gateway_process import GatewayProcess
from tests.gateways import WireClient, record_batch, records_of

pytestmark = pytest.mark.wide
MIB = 1 << 20
FRAME_BYTES_MAX, BUDGET_BYTES = 16 * MIB, 64 * MIB
COPIES = 3
"""Of a request: as it came, its rows, and the object that is made of them."""
DECODING_BYTES = 2 * DECODERS_MAX * DECODED_BYTES_MAX
"""While parts of what was compressed are joined."""


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., GatewayProcess]]:
    """Return a function that starts a gateway with settings, whose store has a topic."""
    store = init_store(tmp_path / "store", 1, fsync=False)
    store.admin().create_topic("orders", 1)
    with ExitStack() as stack:

        def begin(**settings: int) -> GatewayProcess:
            named = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
            arguments = [word for setting in named for word in ("-c", setting)]
            gateway = GatewayProcess(Path(store.path), tmp_path / "gateway.log", *arguments)
            stack.callback(gateway.process.wait)
            stack.callback(gateway.process.kill)
            return gateway

        yield begin


def connect(gateway: GatewayProcess) -> WireClient:
    return WireClient(int(gateway.address.rpartition(":")[2]))


def produce_request(batch: bytes) -> ProduceRequest:
    data = ProduceRequest.TopicProduceData
    topics = [data(name="orders", partition_data=[data.PartitionProduceData(index=0, records=batch)])]
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=60_000, topic_data=topics)


def fetch_request(offset: int) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    part = topic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    topics = [topic(topic="orders", partitions=[part])]
    return FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=MIB, topics=topics)


def test_a_thousand_idle_connections_and_200_consumers_take_less_than_300_mib(start):
    gateway = start()
    with ExitStack() as stack:
        producer, *clients = [stack.enter_context(connect(gateway)) for _ in range(1_201)]
        for client in clients:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        consumers, value = clients[:200], b"x" * 50_000
        for offset in range(10):
            for client in consumers:
                client.send(fetch_request(offset), 12)
            producer.ask(produce_request(record_batch(value)), 9)
            for client in consumers:
                records = records_of(client.receive().responses[0].partitions[0].records)
                assert records == [(offset, None, value)]
    assert gateway.memory_bytes <= 300 * MIB


def bomb() -> bytes:
    """Return a request whose few KB of records become 60 MiB."""
    batch = bytearray(record_batch(b"x"))
    body = bytes(cramjam.zstd.compress(bytes(60 * MIB)))
    batch[61:] = body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, 4)
    return framed(produce_request(sealed(batch)))


def sealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def framed(request: ProduceRequest) -> bytes:
    request.API_VERSION = 9
    request.with_header(correlation_id=1, client_id="x")
    data: bytes = request.encode(header=True, framed=True)
    return data


def hostile_frames() -> list[bytes]:
    """Return what many connections send, each its own again and again."""
    whole = struct.pack(">i", FRAME_BYTES_MAX)
    metadata = struct.pack(">hhih", 3, 12, 1, 1) + b"x\x00"
    large = framed(produce_request(record_batch(b"x" * (FRAME_BYTES_MAX - 4_000))))
    return [
        whole + bytes(FRAME_BYTES_MAX - 1),  # all but its last byte: it is never whole
        whole + metadata + b"\x80" * (FRAME_BYTES_MAX - len(metadata)),
        whole + metadata + b"\xff\xff\xff\x7f" + bytes(FRAME_BYTES_MAX - len(metadata) - 4),
        large,
        bomb(),
    ]


def send(gateway: GatewayProcess, frame: bytes) -> None:
    """Send a frame again and again, and wait until the gateway has answered or closed."""
    for _ in range(3):
        with suppress(OSError), connect(gateway) as client:
            for _ in range(4):
                client.socket.sendall(frame)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(1 << 16):
                pass


def test_frames_of_many_connections_take_no_more_memory_than_the_budget(start):
    gateway = start(
        socket_request_max_bytes=FRAME_BYTES_MAX,
        queued_max_request_bytes=BUDGET_BYTES,
        gateway_receive_timeout_ms=2_000,
    )
    with connect(gateway) as client:
        assert (
            client.ask(produce_request(record_batch(b"first")), 9).responses[0].partition_responses[0].error_code == 0
        )
    before = gateway.memory_bytes
    frames = hostile_frames()
    threads = [threading.Thread(target=send, args=(gateway, frames[at % len(frames)])) for at in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gateway.memory_bytes - before <= COPIES * BUDGET_BYTES + DECODING_BYTES
    with connect(gateway) as client:
        answer = client.ask(produce_request(record_batch(b"last")), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
