"""Positions that users give as text."""

from __future__ import annotations

import pytest

from spark_replog.errors import InvalidConfigError
from spark_replog.ids import TopicPartition
from spark_replog.spark.positions import parse_assignment, parse_position

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: (3, 10), A1: (0, 7), B0: (2, 4)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Earliest ", {A0: 3, A1: 0, B0: 2}),
        ("latest", {A0: 10, A1: 7, B0: 4}),
        ('{"a":{"0":5,"1":-1},"b":{"0":-2}}', {A0: 5, A1: 7, B0: 2}),
        ('{"a":"LATEST","b":{"0":3}}', {A0: 10, A1: 7, B0: 3}),
        ('{"a":{"0":5,"1":6},"b":{"0":2},"@":{"v":1,"ids":{}}}', {A0: 5, A1: 6, B0: 2}),
    ],
)
def test_position_resolves(text, expected):
    assert parse_position("startingOffsets", text).resolve(BOUNDS) == expected


@pytest.mark.parametrize(
    "text",
    ["newest", "[1]", '{"a":5}', '{"a":["0"]}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":-3}}', "{}", "",
     '{"a":"newest"}', '{"a":{"0":true}}'],
)  # fmt: skip
def test_unreadable_position_is_refused_with_an_example(text):
    with pytest.raises(InvalidConfigError, match=r"\[REPLOG_INVALID_OPTION\] startingOffsets .*Expected e\.g\."):
        parse_position("startingOffsets", text)


@pytest.mark.parametrize("text", ['{"a":{"0":1}}', '{"a":"latest"}', '{"a":"latest","b":"latest","c":{"0":1}}'])
def test_position_must_name_exactly_what_is_read(text):
    with pytest.raises(InvalidConfigError, match="must name exactly the partitions"):
        parse_position("startingOffsets", text).resolve(BOUNDS)


def test_assignment():
    assert parse_assignment('{"a":[1,0,1],"b":[4]}') == {"a": (0, 1), "b": (4,)}


@pytest.mark.parametrize("text", ["a", "[]", "{}", '{"a":0}', '{"a":[]}', '{"a":[-1]}', '{"a":["0"]}', '{"a":[true]}'])
def test_unreadable_assignment_is_refused(text):
    with pytest.raises(InvalidConfigError, match=r"\[REPLOG_INVALID_OPTION\] assign"):
        parse_assignment(text)
