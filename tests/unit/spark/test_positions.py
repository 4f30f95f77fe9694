"""Positions that users give as text."""

from __future__ import annotations

import pytest

from spark_replog.errors import InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.spark.source.positions import parse_assignment, parse_position, parse_single_time, parse_times

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def no_times(times):
    raise AssertionError("offsets need no look into the log")


BOUNDS = {A0: (3, 10), A1: (0, 7), B0: (2, 4)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Earliest ", {A0: 3, A1: 0, B0: 2}),
        ("latest", {A0: 10, A1: 7, B0: 4}),
        ("beginning", {A0: 3, A1: 0, B0: 2}),
        ("-1", {A0: 10, A1: 7, B0: 4}),
        ('{"a":"end","b":"start"}', {A0: 10, A1: 7, B0: 2}),
        ('{"a":{"0":5,"1":-1},"b":{"0":-2}}', {A0: 5, A1: 7, B0: 2}),
        ('{"a":{"0":9223372036854775807,"1":0},"b":{"0":2}}', {A0: 2**63 - 1, A1: 0, B0: 2}),
        ('{"a":"LATEST","b":{"0":3}}', {A0: 10, A1: 7, B0: 3}),
        ('{"a":{"0":5,"1":6},"b":{"0":2},"@":{"v":1,"ids":{}}}', {A0: 5, A1: 6, B0: 2}),
    ],
)
def test_position_resolves(text, expected):
    assert parse_position("startingOffsets", text).resolve(BOUNDS, no_times, 0) == expected


@pytest.mark.parametrize(
    "text",
    ["newest", "[1]", '{"a":5}', '{"a":["0"]}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":-3}}', "{}", "",
     '{"a":"newest"}', '{"a":{"0":true}}', '{"a":{"0":9223372036854775808}}', '{"a":{"0":1.0}}', '{"a":["earliest"]}',
     '{"a":{"0":"earliest"}}', '"earliest"', '{"a":{}}', '{"a":{"\u0661":1}}', '[' * 100000],
)  # fmt: skip
def test_unreadable_position_is_refused_with_an_example(text):
    with pytest.raises(InvalidConfigError, match=r"\[REPLOG_INVALID_OPTION\] startingOffsets .*Expected e\.g\."):
        parse_position("startingOffsets", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a":{"0":1},"a":{"1":2}}', "'a' is given twice"),
        ('{"a":"latest","a":{"1":2}}', "both a topic-level offset"),
        ('{"a":{"0":1,"0":2}}', "'0' is given twice"),
        ('{"a":{"0":1,"00":2}}', "partition 0 of topic 'a' is given twice"),
    ],
)
def test_duplicate_keys_are_refused(text, said):
    with pytest.raises(InvalidConfigError, match=said):
        parse_position("startingOffsets", text)


def test_a_word_for_a_topic_that_is_not_read_is_refused():
    with pytest.raises(InvalidConfigError, match=r"topic-level.*c.*KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        parse_position("startingOffsets", '{"a":"latest","b":"latest","c":"latest"}').resolve(BOUNDS, no_times, 0)


@pytest.mark.parametrize("text", ['{"a":{"0":1}}', '{"a":"latest"}', '{"a":"latest","b":"latest","c":{"0":1}}'])
def test_position_must_name_exactly_what_is_read(text):
    with pytest.raises(InvalidConfigError, match=r"must specify all TopicPartitions.*KAFKA_START_OFFSET_DOES"):
        parse_position("startingOffsets", text).resolve(BOUNDS, no_times, 0)


def answering(offsets):
    def offsets_for_times(times):
        assert set(times) == set(offsets)
        return offsets

    return offsets_for_times


def test_times_per_partition_resolve_to_offsets():
    given = '{"a":{"0":1700000000000,"1":"-10 minutes"},"b":{"0":"2024-05-06"}}'
    asked = {}

    def offsets_for_times(times):
        asked.update(times)
        return {A0: 4, A1: 5, B0: 3}

    position = parse_times("startingOffsetsByTimestamp", given, is_latest_without_match=False)
    assert position.resolve(BOUNDS, offsets_for_times, 1_000_000) == {A0: 4, A1: 5, B0: 3}
    assert asked == {A0: 1700000000000, A1: 400_000, B0: 1714953600000}


def test_one_time_for_all_partitions():
    position = parse_single_time("startingTimestamp", "5", is_latest_without_match=True)
    assert position.resolve(BOUNDS, answering({A0: 4, A1: None, B0: 3}), 0) == {A0: 4, A1: 7, B0: 3}


def test_a_time_that_no_row_reaches_is_an_error_by_default():
    position = parse_single_time("startingTimestamp", "5", is_latest_without_match=False)
    with pytest.raises(
        InvalidConfigError, match="No offset matched from request of topic-partition a-1 and timestamp 5 "
    ):
        position.resolve(BOUNDS, answering({A0: 4, A1: None, B0: 3}), 0)


@pytest.mark.parametrize("text", ['{"a":{"0":1}}', '{"a":{"0":1,"1":1},"b":{"0":1,"1":1}}'])
def test_times_must_name_exactly_what_is_read(text):
    position = parse_times("startingOffsetsByTimestamp", text, is_latest_without_match=False)
    with pytest.raises(InvalidConfigError, match="KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        position.resolve(BOUNDS, no_times, 0)


@pytest.mark.parametrize("text", ["{}", "[]", "5", '{"a":5}', '{"a":{"0":"soon"}}', '{"a":{"0":1,"0":2}}', '{"a":{}}'])
def test_unreadable_times_are_refused(text):
    with pytest.raises(InvalidConfigError, match=r"startingOffsetsByTimestamp.*(Expected e\.g\.|twice)"):
        parse_times("startingOffsetsByTimestamp", text, is_latest_without_match=False)


def test_an_unreadable_single_time_is_refused():
    with pytest.raises(InvalidConfigError, match="Expected a single long value, got soon"):
        parse_single_time("startingTimestamp", "soon", is_latest_without_match=False)


def test_assignment():
    assert parse_assignment('{"a":[1,0,1],"b":[4]}') == {"a": (0, 1), "b": (4,)}


@pytest.mark.parametrize("text", ["a", "[]", "{}", '{"a":0}', '{"a":[]}', '{"a":[-1]}', '{"a":["0"]}', '{"a":[true]}'])
def test_unreadable_assignment_is_refused(text):
    with pytest.raises(InvalidConfigError, match=r"\[REPLOG_INVALID_OPTION\] assign.*Expected e\.g\."):
        parse_assignment(text)
