"""Requests come whole, however their bytes arrive."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from spark_replog.gateway.frame_stream import AHEAD_BYTES, FrameStream
from tests.gateways import RunningGateway, WireClient


def sent(client: WireClient, request, version: int) -> bytes:
    """Return a request's bytes, which are to be sent."""
    request.API_VERSION = version
    request.with_header(correlation_id=len(client._sent), client_id="wire")
    client._sent.append((version, request))
    return request.encode(header=True, framed=True)


def names(size_bytes: int) -> MetadataRequest:
    asked = [MetadataRequest.MetadataRequestTopic(name="n" * 200 + str(number)) for number in range(size_bytes // 200)]
    return MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def test_many_requests_in_one_piece_are_answered_in_their_order():
    with RunningGateway() as gateway, gateway.client() as client:
        count = 4 * AHEAD_BYTES // 20
        client.socket.sendall(b"".join(sent(client, ApiVersionsRequest(), 0) for _ in range(count)))
        assert [client.receive(number).error_code for number in range(count)] == [0] * count


@pytest.mark.parametrize("size_bytes", [AHEAD_BYTES - 400, AHEAD_BYTES, AHEAD_BYTES + 400, 4 * AHEAD_BYTES])
def test_requests_of_all_sizes_follow_one_another(size_bytes):
    with RunningGateway() as gateway, gateway.client() as client:
        requests = [names(size_bytes), ApiVersionsRequest(), names(size_bytes), names(200), ApiVersionsRequest()]
        versions = [4 if isinstance(request, MetadataRequest) else 0 for request in requests]
        pieces = [sent(client, request, version) for request, version in zip(requests, versions, strict=True)]
        client.socket.sendall(b"".join(pieces))
        for number, request in enumerate(requests):
            answer = client.receive(number)
            if isinstance(request, MetadataRequest):
                assert {topic.name for topic in answer.topics} == {topic.name for topic in request.topics}
            else:
                assert answer.error_code == 0


def test_a_request_may_come_byte_by_byte():
    with RunningGateway() as gateway, gateway.client() as client:
        for byte in sent(client, ApiVersionsRequest(), 0):
            client.socket.sendall(bytes([byte]))
        assert client.receive().error_code == 0


def feed(stream: FrameStream, data: bytes) -> None:
    """Let bytes arrive, as a transport does."""
    while data:
        room = stream.get_buffer(-1)
        size_bytes = min(len(room), len(data))
        room[:size_bytes] = data[:size_bytes]
        stream.buffer_updated(size_bytes)
        data = data[size_bytes:]


def test_no_byte_is_lost_if_the_wait_for_a_request_ends():
    async def nothing(_: FrameStream) -> None:
        return

    async def main() -> None:
        stream = FrameStream(nothing)
        stream.connection_made(Mock(spec=asyncio.Transport, get_extra_info=lambda _: None))
        feed(stream, b"\0\0")
        waiting = asyncio.create_task(stream.read_size())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        feed(stream, b"\0\x03one\0\0")
        assert await stream.read_size() == 3
        assert await stream.read(3) == b"one"
        feed(stream, b"\0\x03")
        stream.eof_received()
        assert await stream.read_size() == 3
        with pytest.raises(asyncio.IncompleteReadError):
            await stream.read(3)

    asyncio.run(main())
