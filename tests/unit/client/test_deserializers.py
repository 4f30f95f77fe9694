"""Classes of the user between the log and the application: deserializers and interceptors."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replog.client.consumer_record import make_deserializer
from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError
from spark_replog.write.serializers import make_serializer
from tests.unit.client.consumer_setup import P0, assigned, values


@pytest.mark.parametrize(
    ("deserializer", "data", "made"),
    [
        ("string", "né".encode(), "né"),
        ("json", b'{"a": 1}', {"a": 1}),
        ("long", (7).to_bytes(8, "big"), 7),
        ("bytes", b"x", b"x"),
        (int, b"12", 12),
        ("tests.unit.client.test_deserializers.Shouting", b"a", "orders:A"),
    ],
)
def test_deserializers(store, deserializer, data, made):
    store.create("orders")
    store.write("orders", [data, None])
    reader = assigned(store, P0, value_deserializer=deserializer)
    assert values(reader.poll()) == [made, None]


class Shouting:
    """A deserializer of a user's."""

    def deserialize(self, topic, data):
        return f"{topic}:{data.decode().upper()}"


def test_a_record_that_cannot_be_deserialised_stops_there_and_can_be_passed_over(store):
    store.create("orders")
    store.write("orders", [b"1", b"2", b"x", b"4"])
    reader = assigned(store, P0, value_deserializer=int)
    assert values(reader.poll()) == [1, 2]
    with pytest.raises(CorruptDataError) as refused:
        reader.poll()
    assert (refused.value.code, refused.value.context["offset"]) == (ErrorCode.REPLOG_DESERIALIZATION, 2)
    reader.seek(P0, 3)
    assert values(reader.poll()) == [4]


class Interceptor:
    """Sees polls and commits."""

    committed: list = []  # noqa: RUF012

    def on_consume(self, records):
        return [record for record in records if record.offset % 2]

    def on_commit(self, offsets):
        self.committed.append({key: value.offset for key, value in offsets.items()})


def test_interceptors_see_polls_and_commits(filled):
    reader = assigned(filled, P0, group="g", interceptor_classes="tests.unit.client.test_deserializers.Interceptor")
    assert [record.offset for record in reader.poll()] == [1, 3, 5, 7, 9]
    reader.commit()
    assert Interceptor.committed == [{P0: 10}]


class Failing:
    """Has no on_commit."""

    def on_consume(self, records):
        raise KeyError("mine")


def test_an_interceptor_that_raises_is_logged_and_skipped_and_no_record_is_lost(filled, caplog):
    reader = assigned(filled, P0, group="g", interceptor_classes="tests.unit.client.test_deserializers.Failing")
    assert [record.offset for record in reader.poll()] == list(range(10))
    reader.commit()
    assert "interceptor Failing raised in on_consume and is skipped" in caplog.text


@pytest.mark.parametrize("name", ["bytes", "string", "json", "short", "int", "integer", "long", "float", "double"])
def test_a_producer_and_a_consumer_know_the_same_names(name):
    value = {"bytes": b"7", "string": "7"}.get(name, 7)

    data = make_serializer("value.serializer", name).serialize("orders", value)
    deserialize = make_deserializer("value.deserializer", name)

    assert (data if deserialize is None else deserialize("orders", data)) == value


@pytest.mark.parametrize(
    ("word", "value", "data"),
    [("String", "é", b"\xc3\xa9"), ("Long", 7, b"\0\0\0\0\0\0\0\7"), ("Integer", 7, b"\0\0\0\7"),
     ("ByteArray", b"x", b"x"), ("Bytes", b"x", b"x")],
)  # fmt: skip
def test_kafkas_own_classes_name_what_is_built_in(word, value, data):
    kafkas = f"org.apache.kafka.common.serialization.{word}"
    assert make_serializer("value.serializer", f"{kafkas}Serializer").serialize("orders", value) == data
    deserialize = make_deserializer("value.deserializer", f"{kafkas}Deserializer")
    assert (data if deserialize is None else deserialize("orders", data)) == value


def test_a_column_of_short_or_float_is_kafkas_bytes():
    for name, column, expected in (
        ("short", pa.array([-2, None], pa.int64()), [b"\xff\xfe", None]),
        ("float", pa.array([1.5, None], pa.float64()), [b"\x3f\xc0\x00\x00", None]),
    ):
        assert make_serializer("value.serializer", name).serialize_array("orders", column).to_pylist() == expected


@pytest.mark.parametrize("make", [make_serializer, make_deserializer])
def test_an_unknown_name_is_answered_with_the_known_ones(make):
    with pytest.raises(InvalidConfigError, match=r"intt.*bytes.*double.*module\.Class"):
        make("value.serializer", "intt")
