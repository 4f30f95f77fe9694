"""Records are filled column by column: as the constructor makes them, without a call of Python for each."""

from __future__ import annotations

import dataclasses
import pickle
import sys

import pyarrow as pa
import pytest

from spark_replog.client.consumer_record import ConsumerRecord, RecordMaker
from spark_replog.errors import ErrorCode
from spark_replog.ids import TopicPartition
from spark_replog.read.rows import read_schema

KEY = TopicPartition("orders", 3)


def rows(count, headers=None):
    columns = {
        "key": [None if number % 3 == 2 else b"k%d" % number for number in range(count)],
        "value": [None if number % 5 == 4 else b"%d" % number for number in range(count)],
        "topic": ["orders"] * count,
        "partition": [3] * count,
        "offset": [10 + 2 * number for number in range(count)],
        "timestamp": [1_500_000_000_001_999 + number for number in range(count)],
        "timestampType": [1] * count,
        "headers": headers or [None] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=read_schema(True))


def expected(number, headers=()):
    micros = 1_500_000_000_001_999 + number
    return ConsumerRecord(
        topic="orders",
        partition=3,
        offset=10 + 2 * number,
        key=None if number % 3 == 2 else b"k%d" % number,
        value=None if number % 5 == 4 else b"%d" % number,
        headers=headers,
        timestamp_ms=micros // 1000,
        timestamp_type="LogAppendTime",
        timestamp_us=micros,
    )


def test_records_are_those_of_the_constructor():
    records, refusal = RecordMaker(None, None).make(KEY, rows(12))
    assert refusal is None
    assert records == [expected(number) for number in range(12)]
    assert list(map(repr, records)) == [repr(expected(number)) for number in range(12)]
    assert [pickle.loads(pickle.dumps(record)) for record in records] == records
    with pytest.raises(dataclasses.FrozenInstanceError):
        records[0].offset = 1


def test_a_part_of_a_batch_and_its_headers():
    headers = [[{"key": "h", "value": b"%d" % number}] if number % 2 else None for number in range(9)]
    records, _ = RecordMaker(None, None).make(KEY, rows(9, headers).slice(4, 3))
    assert records == [expected(4), expected(5, (("h", b"5"),)), expected(6)]
    assert RecordMaker(None, None).make(KEY, rows(0)) == ([], None)


def test_records_before_a_refusal_are_made():
    seen = []

    def decode(topic, data):
        seen.append((topic, data))
        if data == b"3":
            raise ValueError("three")
        return data.decode()

    records, refusal = RecordMaker(None, decode).make(KEY, rows(6))
    made = [(record.offset, record.key, record.value) for record in records]
    assert made == [(10, b"k0", "0"), (12, b"k1", "1"), (14, None, "2")]
    assert refusal.code is ErrorCode.REPLOG_DESERIALIZATION
    assert refusal.context["offset"] == 16
    assert seen == [("orders", b"%d" % number) for number in range(4)]


def test_a_key_that_is_refused_leaves_its_value_alone():
    seen = []
    maker = RecordMaker(lambda _, data: 1 // (data != b"k1"), lambda _, data: seen.append(data))
    records, refusal = maker.make(KEY, rows(4))
    assert ([record.key for record in records], refusal.context["offset"]) == ([1], 12)
    assert seen == [b"0"]


def test_no_call_of_python_for_each_record():
    batch, count = rows(5_000), 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        RecordMaker(None, None).make(KEY, batch)
    finally:
        sys.setprofile(None)
    # About 50 calls whatever the rows are; a collection of garbage meanwhile adds those of other libraries' callbacks.
    assert 0 < count < batch.num_rows // 10
