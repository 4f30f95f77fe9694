from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import HEADERS_TYPE, TIMESTAMP_TYPE
from spark_replog.write.columns import InputColumns, Rows

NOW_MS = 1_700_000_000_123
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def normalise(default_topic: str | None = "orders", **columns: Any) -> Rows:
    batch = pa.RecordBatch.from_pydict(columns)
    return InputColumns(batch.schema, default_topic).normalise(batch, NOW_MS)


def refused(default_topic: str | None = "orders", **columns: Any) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        normalise(default_topic, **columns)
    return caught.value


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_bytes_and_strings_become_binary(kind: pa.DataType) -> None:
    rows = normalise(value=pa.array(["a", None, "\u00e9"], pa.string()).cast(kind), key=pa.array(["", None, "k"], kind))
    assert rows.data.schema.names == ["key", "value", "timestamp"]
    assert rows.data.schema.types == [pa.binary(), pa.binary(), TIMESTAMP_TYPE]
    assert rows.data.column(1).to_pylist() == [b"a", None, "\u00e9".encode()]
    assert rows.data.column(0).to_pylist() == [b"", None, b"k"]


def test_strings_are_not_copied() -> None:
    value = pa.array(["x" * 100] * 10)
    assert normalise(value=value).data.column(1).buffers()[2].address == value.buffers()[2].address


def test_absent_columns() -> None:
    rows = normalise(value=pa.array([b"v", b"w"]))
    assert rows.data.column(0).null_count == 2
    assert rows.partition is None
    assert rows.topic is None
    assert rows.data.column(2).cast(pa.int64()).to_pylist() == [NOW_MS * 1000] * 2


def test_other_columns_and_other_cases_are_ignored() -> None:
    rows = normalise(value=pa.array([b"v"]), offset=pa.array([5]), Key=pa.array([1]), TOPIC=pa.array([1]))
    assert rows.data.schema.names == ["key", "value", "timestamp"]
    assert "Required attribute 'value' not found" in str(refused(Value=pa.array([b"v"])))


def test_topic_option_wins_over_the_column() -> None:
    assert normalise("orders", value=pa.array([b"v"]), topic=pa.array(["other"])).topic is None
    rows = normalise(None, value=pa.array([b"v"]), topic=pa.array(["other"]))
    assert rows.topic is not None and rows.topic.to_pylist() == ["other"]


class TestTimestamps:
    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00"])
    def test_any_unit_and_zone(self, unit: str, zone: str) -> None:
        moment = datetime(2024, 7, 1, 12, 0, 0, tzinfo=UTC)
        column = pa.array([moment], pa.timestamp(unit, tz=zone))
        rows = normalise(value=pa.array([b"v"]), timestamp=column)
        assert rows.data.column(2).type == TIMESTAMP_TYPE
        assert rows.data.column(2).to_pylist() == [moment]

    def test_nanoseconds_are_cut(self) -> None:
        column = pa.array([1_700_000_000_000_000_999], pa.timestamp("ns", tz="UTC"))
        rows = normalise(value=pa.array([b"v"]), timestamp=column)
        assert rows.data.column(2).cast(pa.int64()).to_pylist() == [1_700_000_000_000_000]

    def test_further_than_microseconds_reach(self) -> None:
        error = refused(value=pa.array([b"v"]), timestamp=pa.array([2**60], pa.timestamp("s", tz="UTC")))
        assert error.code is ErrorCode.INVALID_TIMESTAMP

    def test_null_has_the_time_of_the_batch(self) -> None:
        column = pa.array([1, None], pa.timestamp("us", tz="UTC"))
        rows = normalise(value=pa.array([b"v", b"w"]), timestamp=column)
        assert rows.data.column(2).cast(pa.int64()).to_pylist() == [1, NOW_MS * 1000]
        assert rows.data.column(2).null_count == 0

    def test_before_1970(self) -> None:
        error = refused(value=pa.array([b"v"]), timestamp=pa.array([-1], pa.timestamp("us", tz="UTC")))
        assert error.code is ErrorCode.INVALID_TIMESTAMP

    @pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.int64(), pa.date32(), pa.null()], ids=str)
    def test_what_is_no_moment_is_left_out_only_where_the_caller_says_so(self, kind: pa.DataType) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"]), "timestamp": pa.nulls(1, kind)})
        assert "timestamp must be a(n) timestamp with a time zone" in str(
            refused(value=batch.column(0), timestamp=batch.column(1))
        )
        rows = InputColumns(batch.schema, "orders", ignore_other_times=True).normalise(batch, NOW_MS)
        assert rows.data.column(2).cast(pa.int64()).to_pylist() == [NOW_MS * 1000]

    def test_a_moment_is_kept_where_others_are_left_out(self) -> None:
        times = pa.array([1], pa.timestamp("us", tz="UTC"))
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"]), "timestamp": times})
        rows = InputColumns(batch.schema, "orders", ignore_other_times=True).normalise(batch, NOW_MS)
        assert rows.data.column(2).equals(times)


class TestHeaders:
    def one(self, value: Any, kind: pa.DataType = HEADERS) -> Rows:
        return normalise(value=pa.array([b"v"] * len(value)), headers=pa.array(value, kind))

    def test_null_and_empty_lists_are_absent(self) -> None:
        assert self.one([None, []]).data.schema.names == ["key", "value", "timestamp"]

    def test_order_repeats_and_null_values_stay(self) -> None:
        pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}]
        rows = self.one([pairs, [], None, pairs[:1]])
        assert rows.data.column(3).type == HEADERS_TYPE
        assert rows.data.column(3).to_pylist() == [pairs, None, None, pairs[:1]]

    def test_field_names_without_case_and_in_any_order(self) -> None:
        kind = pa.large_list(pa.struct([("Value", pa.large_binary()), ("KEY", pa.large_string())]))
        rows = self.one([[{"Value": b"1", "KEY": "k"}]], kind)
        assert rows.data.column(3).to_pylist() == [[{"key": "k", "value": b"1"}]]

    def test_slices(self) -> None:
        lists = [[{"key": f"k{n}", "value": b"v" * n}] * (n % 3) for n in range(9)]
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 9), "headers": pa.array(lists, HEADERS)})
        part = batch.slice(4, 4)
        rows = InputColumns(part.schema, "orders").normalise(part, NOW_MS)
        assert rows.data.column(3).to_pylist() == [item or None for item in lists[4:8]]

    def test_null_key(self) -> None:
        error = refused(value=pa.array([b"v"]), headers=pa.array([[{"key": None, "value": b""}]], HEADERS))
        assert error.code is ErrorCode.INVALID_RECORD


class TestSizes:
    def test_key_value_headers_and_overhead(self) -> None:
        rows = normalise(
            value=pa.array([b"12345", None, b""]),
            key=pa.array([b"k", b"kk", None]),
            headers=pa.array([None, [{"key": "ab", "value": b"xyz"}, {"key": "c", "value": None}], []], HEADERS),
        )
        assert np.diff(rows.ends).tolist() == [6 + 16, 2 + 16 + 2 * 8 + 6, 16]

    def test_slice(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * n for n in range(20)])}).slice(10, 3)
        rows = InputColumns(batch.schema, "orders").normalise(batch, NOW_MS)
        assert np.diff(rows.ends).tolist() == [26, 27, 28]

    def test_pinned_is_the_whole_batch(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), "other": pa.array([b"y" * 1000])})
        assert InputColumns(batch.schema, "orders").normalise(batch, NOW_MS).pinned_bytes > 1000


class TestRefusals:
    @pytest.mark.parametrize(
        ("column", "array", "text"),
        [
            (
                "value",
                pa.array([1]),
                "value attribute unsupported type bigint. value must be a(n) string or binary",
            ),
            (
                "key",
                pa.array([1.5]),
                "key attribute unsupported type double. key must be a(n) string or binary",
            ),
            (
                "partition",
                pa.array([1], pa.int64()),
                "partition attribute unsupported type bigint. partition must be a(n) int",
            ),
            ("partition", pa.array([1], pa.int16()), "partition must be a(n) int"),
            ("timestamp", pa.array([1]), "timestamp must be a(n) timestamp"),
            ("headers", pa.array([["a"]]), "headers must be a(n) array<struct<key:string,value:binary>>"),
            (
                "headers",
                pa.array([[{"key": "a", "value": "b"}]]),
                "headers must be a(n) array<struct<key:string,value:binary>>",
            ),
        ],
    )
    def test_types(self, column: str, array: pa.Array, text: str) -> None:
        error = refused(**({"value": pa.array([b"v"])} | {column: array}))
        assert error.code is ErrorCode.REPLOG_INVALID_SCHEMA
        assert text in str(error)

    def test_topic_type(self) -> None:
        assert "topic must be a(n) string" in str(refused(None, value=pa.array([b"v"]), topic=pa.array([b"t"])))

    def test_no_topic_at_all(self) -> None:
        error = refused(None, value=pa.array([b"v"]))
        assert "topic option required when no 'topic' attribute is present" in str(error)

    def test_null_topic(self) -> None:
        error = refused(None, value=pa.array([b"v"] * 2), topic=pa.array(["a", None]))
        assert error.code is ErrorCode.REPLOG_NULL_TOPIC
        assert "null topic present in the data" in str(error)
        assert "KAFKA_NULL_TOPIC_IN_DATA" in str(error)

    def test_two_columns_of_one_name(self) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"w"])], ["value", "value"])
        with pytest.raises(InvalidConfigError, match="2 columns are named 'value'"):
            InputColumns(batch.schema, "orders")
