"""The bytes of Kafka's clients: as kafka-python writes and reads them, in every version, and never a wrong answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_replog.errors import CorruptDataError
from spark_replog.groups.group_rebalance import (
    GroupSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    kafka_assignment,
    kafka_subscription,
)
from spark_replog.ids import TopicPartition
from tests.examples import examples

OWNED = (TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b-\u00fc", 1))
SUBSCRIPTION = GroupSubscription(("a", "b-\u00fc"), OWNED, 7)
_Part = ConsumerProtocolSubscription.TopicPartition


def kafkas(version: int) -> bytes:
    owned = [_Part(topic="a", partitions=[3, 0]), _Part(topic="b-\u00fc", partitions=[1])]
    data: bytes = ConsumerProtocolSubscription(
        version=version, topics=["b-\u00fc", "a"], user_data=b"sticky", owned_partitions=owned, generation_id=7,
        rack_id="r",
    ).encode()  # fmt: skip
    return data


def test_every_version_of_a_subscription_is_read():
    topics = SUBSCRIPTION.topics
    assert decode_subscription(kafkas(0)) == GroupSubscription(topics)
    assert decode_subscription(kafkas(1)) == GroupSubscription(topics, OWNED)
    assert decode_subscription(kafkas(2)) == decode_subscription(kafkas(3)) == SUBSCRIPTION
    assert decode_subscription(kafkas(3) + b"of a later version") == SUBSCRIPTION
    assert kafka_subscription(kafkas(3)) == kafkas(3), "what a client of Kafka's says goes on as it is"


def test_what_a_product_member_says_is_told_in_kafkas_bytes():
    data = kafka_subscription(encode_subscription(SUBSCRIPTION))
    assert decode_subscription(data) == SUBSCRIPTION
    told = ConsumerProtocolSubscription.decode(data)
    assert (told.topics, told.user_data, told.generation_id) == (["a", "b-\u00fc"], None, 7)
    assert [(item.topic, item.partitions) for item in told.owned_partitions] == [("a", [0, 3]), ("b-\u00fc", [1])]
    given = ConsumerProtocolAssignment.decode(kafka_assignment(encode_assignment(OWNED)))
    assert [(item.topic, item.partitions) for item in given.assigned_partitions] == [("a", [0, 3]), ("b-\u00fc", [1])]


def test_an_assignment_of_either_kind_is_read():
    part = ConsumerProtocolAssignment.TopicPartition
    parts = [part(topic="b-\u00fc", partitions=[1]), part(topic="a", partitions=[3, 0])]
    for version in range(4):
        data = ConsumerProtocolAssignment(version=version, assigned_partitions=parts, user_data=b"x").encode()
        assert decode_assignment(data) == OWNED
        assert kafka_assignment(data) == data
    assert decode_assignment(encode_assignment(OWNED)) == OWNED
    assert decode_assignment(b"") == () and kafka_assignment(b"") == b""


@given(data=st.binary(max_size=64), cut=st.integers(0, 90), at=st.integers(0, 90), byte=st.integers(0, 255))
@settings(max_examples=examples(200), deadline=None)
def test_other_bytes_are_an_error_of_their_own(data, cut, at, byte):
    mutated = bytearray(kafkas(3))
    mutated[at % len(mutated)] = byte
    for text in (data, kafkas(3)[:cut], bytes(mutated)):
        for decode in (decode_subscription, decode_assignment):
            try:
                decode(text)
            except CorruptDataError:
                continue


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused(count):
    with pytest.raises(CorruptDataError):
        decode_subscription(b"\x00\x01" + count.to_bytes(4, "big", signed=True))
