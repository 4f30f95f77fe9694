"""Frames that no client would send, to a gateway over a socket: it answers or closes, and serves the others."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.schemas.fields import ArrayField, StructField

from spark_replog.gateway.api_table import API_LIST
from spark_replog.gateway.gateway import Api
from spark_replog.gateway.request_decoder import (
    ITEMS_MAX,
    UndecodableError,
    decode_request,
    request_classes,
)
from tests.examples import examples
from tests.gateways import RunningGateway, record_batch

REQUEST_BYTES_MAX = 1 << 20
TOPIC = "orders"
_LONG = (0, 1, -1, -2, 3, 127, 128, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1)
VARINTS = (b"\x80" * 4000, b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x00", b"\x80\x00")


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    limits = {"socket_request_max_bytes": REQUEST_BYTES_MAX, "gateway_receive_timeout_ms": 100}
    with RunningGateway(connection_failed_authentication_delay_ms=0, **limits) as running:
        running.store.admin().create_topic(TOPIC, 2)
        yield running


def value_of(field: Any, version: int, draw: Any) -> Any:
    """Return a value of a request's field: often one that this store knows."""
    if isinstance(field, StructField):
        return filled(field, version, draw)
    if isinstance(field, ArrayField):
        return [value_of(field.array_of, version, draw) for _ in range(draw(st.integers(0, 2)))]
    kind = field.type_str if isinstance(field.type_str, str) else str(field.type_str)
    if "string" in kind:
        return draw(st.sampled_from([TOPIC, "g", "", "range", "consumer", "User:x", "\u20ac\x00", "x" * 300]))
    if "bytes" in kind or "records" in kind:
        return draw(st.sampled_from([b"", record_batch(b"v"), b"\x00" * 61, record_batch(b"v")[:-3]]) | st.binary())
    if "uuid" in kind:
        return draw(st.uuids())
    if "bool" in kind:
        return draw(st.booleans())
    if "float" in kind:
        return draw(st.floats())
    bits = int("".join(letter for letter in kind if letter.isdigit()) or 8)
    number = draw(st.sampled_from(_LONG) | st.integers(-2, 3))
    if "max_wait" in field.name or "timeout" in field.name:
        number = min(number, 20)  # else the gateway waits, as it should
    low, high = (0, (1 << bits) - 1) if kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return max(low, min(high, number))


def filled(struct_field: Any, version: int, draw: Any) -> Any:
    values = {field.name: value_of(field, version, draw) for field in struct_field.untagged_fields(version)}
    return struct_field.data_class(version=version, **values)


@st.composite
def requests(draw: Any, apis: list[tuple[int, Api]]) -> bytes:
    """Return a frame: a request of an API that is offered, whole or damaged."""
    key, api = draw(st.sampled_from(apis))
    version = draw(st.integers(api.min_version, api.max_version))
    request_class = request_classes()[key]
    fields = request_class._struct.untagged_fields(version)
    request = request_class(version=version, **{field.name: value_of(field, version, draw) for field in fields})
    request.with_header(correlation_id=draw(st.integers(0, 9)), client_id=draw(st.sampled_from(["x", "", "rack=a"])))
    data = bytearray(request.encode(header=True))
    damage = draw(st.sampled_from(["none", "none", "cut", "number", "varint", "bytes", "more"]))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if damage == "cut":
        del data[at:]
    elif damage == "number":
        size, form = draw(st.sampled_from([(2, ">H"), (4, ">I"), (8, ">Q")]))
        data[at : at + size] = struct.pack(form, draw(st.sampled_from(_LONG)) & (1 << 8 * size) - 1)
    elif damage == "varint":
        data[at : at + 1] = draw(st.sampled_from(VARINTS))
    elif damage == "bytes":
        data[at : at + 4] = draw(st.binary(min_size=1, max_size=8))
    elif damage == "more":
        data += draw(st.binary(min_size=1, max_size=20))
    return bytes(data)


def answer_of(gateway: RunningGateway, frame: bytes) -> None:
    """Send a frame, and a request that has an answer; wait until the gateway has answered or closed."""
    with gateway.client() as client:
        try:
            client.socket.sendall(struct.pack(">i", len(frame)) + frame)
            probe = ApiVersionsRequest()
            probe.API_VERSION = 0
            probe.with_header(correlation_id=77, client_id="probe")
            client.socket.sendall(probe.encode(header=True, framed=True))
            while size := client._file.read(4):
                (size_bytes,) = struct.unpack(">i", size)
                answer = client._file.read(size_bytes)
                if answer[:4] == struct.pack(">i", 77):
                    break
        except (ConnectionError, struct.error):
            pass  # closed, which is an answer too


def serves_others(gateway: RunningGateway) -> bool:
    with gateway.client() as client:
        return client.ask(ApiVersionsRequest(), 0).error_code == 0


@pytest.mark.parametrize("part", range(4))
def test_every_api_answers_or_closes_whatever_a_client_sends(gateway, part, caplog):
    @settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests(list(API_LIST)[part::4]))
    def check(frame: bytes) -> None:
        answer_of(gateway, frame)

    check()
    assert serves_others(gateway)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_decoder_says_that_bytes_are_no_request_and_nothing_else(data):
    key, api = data.draw(st.sampled_from(list(API_LIST)))
    frame = data.draw(st.binary(max_size=80) | requests([(key, api)]))
    try:
        _, item_count = decode_request(key, data.draw(st.integers(api.min_version, api.max_version)), memoryview(frame))
    except UndecodableError:
        return
    assert item_count <= len(frame)


METADATA, FLEXIBLE = 3, 12
EMPTY_TOPIC = bytes(16) + b"\x01\x00"


@pytest.mark.parametrize(
    "frame",
    [
        b"\x80" * 500_000 + b"\x01",  # a varint that would become a number of 400,000 bytes
        b"\xff\xff\xff\x7f" + bytes(1000),  # an array of 268 million items in a thousand bytes
        b"\xc0\x84\x3d" + EMPTY_TOPIC * 60_000,  # of a million, in as many bytes
        b"\x81\x04" + (bytes(16) + b"\x01\x01\x63\xff\xff\x03" + bytes(65_535)) * 2,  # tags that are too long
    ],
)
def test_requests_that_cost_more_than_their_size_are_refused_before_they_do(frame):
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableError):
            decode_request(METADATA, FLEXIBLE, memoryview(frame))
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_large_request_of_a_client_is_decoded():
    count = 2_000
    frame = b"\xd1\x0f" + (b"\x11" * 16 + b"\x01\x01\x63\x02ab") * count + b"\x01\x00\x00"  # each with a tag
    request, item_count = decode_request(METADATA, FLEXIBLE, memoryview(frame))
    assert len(request.topics) == count <= item_count <= ITEMS_MAX
