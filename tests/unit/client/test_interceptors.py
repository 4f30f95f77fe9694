"""What interceptors of a producer see, hear and may change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError


class Doubling:
    """Changes records, and hears of them."""

    def __init__(self):
        self.heard = []
        self.is_closed = False

    def on_send(self, record):
        return record._replace(value=record.value * 2)

    def on_send_batch(self, topic, batch):
        return batch.slice(0, 1)

    def on_acknowledgement(self, metadata, error):
        self.heard.append((metadata.offset, error and error.code))

    def close(self):
        self.is_closed = True


class Raising:
    """A user's mistake in every hook."""

    def on_send(self, record):
        raise RuntimeError("on_send")

    def on_send_batch(self, topic, batch):
        raise RuntimeError("on_send_batch")

    def on_acknowledgement(self, metadata, error):
        raise RuntimeError("on_acknowledgement")

    def close(self):
        raise RuntimeError("close")


def test_interceptors_run_in_order_before_serializers_and_one_that_raises_is_skipped(shop, caplog):
    shop.topic()
    doubling = Doubling()
    producer = shop.producer(interceptor__classes=[Raising(), doubling, Doubling], value__serializer="string")
    assert producer.send("orders", "ab").result(10).offset == 0
    producer.close()
    assert shop.values() == [b"abababab"]
    assert doubling.heard == [(0, None)] and doubling.is_closed
    assert "interceptor Raising raised in on_send and is skipped" in caplog.text


def test_interceptors_see_arrow_batches_and_hear_of_failures(shop):
    shop.topic()
    doubling = Doubling()
    producer = shop.producer(interceptor__classes=[doubling, Raising()], max__block__ms=0)
    table = pa.table({"value": pa.array([b"a", b"b"], pa.binary())})
    assert producer.send_arrow("orders", table).row_counts == (1,)
    producer.flush()
    producer.send("nothing", b"v")
    assert doubling.heard == [(0, None), (-1, ErrorCode.REQUEST_TIMED_OUT)]


def test_interceptors_hear_of_the_rows_of_a_table_that_was_refused_in_its_middle(shop):
    shop.topic()
    doubling = Doubling()
    producer = shop.producer(interceptor__classes=[doubling])
    batches = [pa.record_batch({"value": [b"v"], "partition": pa.array([number], pa.int32())}) for number in (0, 9)]
    with pytest.raises(InvalidConfigError):
        producer.send_arrow("orders", pa.Table.from_batches(batches))
    producer.close()
    assert len(shop.values()) == 1
    assert doubling.heard == [(0, None)]


def test_classes_without_their_arrow_form_are_refused_there_by_the_methods_name(shop):
    shop.topic()
    table = pa.table({"value": pa.array([b"a"], pa.binary())})

    class RecordOnly:
        def on_send(self, record):
            return record

        def partition(self, *_):
            return 0

        def serialize(self, topic, value):
            return value

    for setting, method in (
        ("interceptor.classes", "on_send_batch"),
        ("partitioner.class", "partition_array"),
        ("value.serializer", "serialize_array"),
    ):
        plugin = [RecordOnly()] if setting == "interceptor.classes" else RecordOnly()
        producer = shop.producer(**{setting: plugin})
        with pytest.raises(InvalidConfigError, match=method) as refused:
            producer.send_arrow("orders", table)
        assert refused.value.code is ErrorCode.REPLOG_INVALID_OPTION
        assert producer.send("orders", b"a").result(10).partition == 0
