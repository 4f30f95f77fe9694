"""Classes of the user that do not keep their contract: told at once, or skipped, and the sender goes on."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError

pytestmark = pytest.mark.case("producer-classes-cannot-be-made-answer")

TABLE = pa.table({"value": pa.array([b"v"], pa.binary())})


class Unmakeable:
    """Needs an argument."""

    def __init__(self, needed):
        self.needed = needed

    def on_send(self, record):
        return record

    def serialize(self, topic, value):
        return value

    def partition(self, *_):
        return 0


class Seen:
    """An interceptor that only listens."""

    def __init__(self):
        self.heard = []

    def on_acknowledgement(self, metadata, error):
        self.heard.append(error)


@pytest.mark.parametrize("setting", ["key.serializer", "value.serializer", "partitioner.class", "interceptor.classes"])
def test_a_class_that_cannot_be_made_is_refused_by_its_setting(shop, setting):
    given = [Unmakeable] if setting == "interceptor.classes" else Unmakeable
    with pytest.raises(InvalidConfigError, match="Unmakeable") as refused:
        shop.producer(**{setting: given})
    assert refused.value.code is ErrorCode.REPLOG_INVALID_OPTION


@pytest.mark.parametrize("given", [["no.such.Class"], "no.such.Class", object(), [object()], "threading.Lock", [7]])
def test_what_is_no_interceptor_is_refused(shop, given):
    with pytest.raises(InvalidConfigError, match=r"interceptor\.classes") as refused:
        shop.producer(interceptor__classes=given)
    assert refused.value.code is ErrorCode.REPLOG_INVALID_OPTION


def test_one_interceptor_needs_no_list(shop):
    shop.topic()
    seen = Seen()
    shop.producer(interceptor__classes=seen).send("orders", b"v").result(10)
    shop.producers[0].close()
    assert seen.heard == [None]


def test_an_interceptor_that_answers_something_else_is_logged_and_skipped(shop, caplog):
    shop.topic()

    class Wrong:
        def on_send(self, record):
            return "a record"

        def on_send_batch(self, topic, batch):
            return pa.Table.from_batches([batch])

    producer = shop.producer(interceptor__classes=[Wrong()])
    assert producer.send("orders", b"record").result(10).offset == 0
    assert producer.send_arrow("orders", TABLE).result(10)[0].offset == 1
    assert "interceptor Wrong gave str in on_send and is skipped" in caplog.text
    assert "interceptor Wrong gave Table in on_send_batch and is skipped" in caplog.text
    assert shop.values() == [b"record", b"v"]


def test_what_a_partitioner_raises_comes_out_of_send_and_interceptors_hear_of_it(shop):
    shop.topic()
    seen, mistake = Seen(), KeyError("mine")

    class Raising:
        def partition(self, *_):
            raise mistake

    producer = shop.producer(partitioner__class=Raising, interceptor__classes=[seen])
    with pytest.raises(KeyError, match="mine"):
        producer.send("orders", b"v")
    assert seen.heard == [mistake]
    assert producer.send("orders", b"given", partition=0).result(10).offset == 0


def test_an_exit_in_a_hook_does_not_end_the_sender(shop, caplog):
    shop.topic()

    class Exiting:
        def on_acknowledgement(self, metadata, error):
            sys.exit(3)

    producer = shop.producer(interceptor__classes=[Exiting()])
    first = producer.send("orders", b"0")
    first.add_done_callback(lambda _: sys.exit(3))
    assert first.result(10).offset == 0
    assert producer.send("orders", b"1").result(10).offset == 1
    producer.close()
    assert "a callback of send() raised" in caplog.text
    assert "raised in on_acknowledgement and is skipped" in caplog.text


def test_a_serializer_that_gives_no_bytes_is_refused(shop):
    shop.topic()
    with pytest.raises(InvalidConfigError, match="wanted: bytes, not str") as refused:
        shop.producer(value__serializer=lambda value: "text").send("orders", b"v")
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert shop.values() == []


@pytest.mark.parametrize("answer", [pa.array([b"a", b"b"]), pa.array([1]), [b"a"], None])
def test_a_serializer_that_gives_no_column_of_as_many_rows_is_refused(shop, answer):
    shop.topic()

    class Wrong:
        def serialize_array(self, topic, array):
            return answer

    with pytest.raises(InvalidConfigError, match="wanted: a binary array of 1 rows") as refused:
        shop.producer(value__serializer=Wrong).send_arrow("orders", TABLE)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert shop.values() == []


@pytest.mark.parametrize(
    ("serializer", "value"),
    [("int", True), ("int", 2**31), ("int", 1.5), ("long", 2**63), ("double", "1"), ("string", b"x"), ("json", {1, 2})],
)
def test_a_value_that_the_serializer_cannot_hold_is_refused(shop, serializer, value):
    shop.topic()
    with pytest.raises(InvalidConfigError) as refused:
        shop.producer(value__serializer=serializer).send("orders", value)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert shop.values() == []


@pytest.mark.parametrize(
    ("serializer", "value", "data"),
    [
        ("bytes", b"\xff", b"\xff"),
        ("string", "é", b"\xc3\xa9"),
        ("int", -2, b"\xff\xff\xff\xfe"),
        ("long", 7, b"\0\0\0\0\0\0\0\7"),
        ("double", 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
        ("json", {"a": [1, None]}, b'{"a":[1,null]}'),
    ],
)
def test_a_built_in_serializer_writes_kafkas_bytes_for_records_and_for_columns(shop, serializer, value, data):
    shop.topic()
    producer = shop.producer(value__serializer=serializer)
    producer.send("orders", value).result(10)
    producer.send("orders", None).result(10)
    producer.send_arrow("orders", pa.table({"value": [None, value, value]}).slice(1)).result(10)
    producer.send_arrow("orders", pa.table({"value": [value, None]})).result(10)
    assert shop.values() == [data, None, data, data, data, None]
