"""Spark's Kafka rules for tasks and rate limits, by the connector's own examples."""

from __future__ import annotations

import pytest

from spark_replog.ids import TopicPartition
from spark_replog.spark.splitting import OffsetRange, limit_ends, split_ranges


def split(ranges, p=None, m=None):
    items = [OffsetRange(TopicPartition(name, 0), start, end) for name, start, end in ranges]
    return [
        (piece.topic_partition.topic, piece.start, piece.end)
        for piece in split_ranges(items, partitions_min=p, rows_per_partition_max=m)
    ]


@pytest.mark.parametrize(
    ("ranges", "p", "m", "expected"),
    [
        ([("a", 1, 5)], 4, None, [("a", 1, 2), ("a", 2, 3), ("a", 3, 4), ("a", 4, 5)]),
        ([("a", 1, 11)], 3, None, [("a", 1, 4), ("a", 4, 7), ("a", 7, 11)]),
        ([("a", 1, 5), ("b", 1, 21)], 4, None, [("a", 1, 5), ("b", 1, 7), ("b", 7, 14), ("b", 14, 21)]),
        (
            [("a", 1, 5), ("b", 1, 21), ("c", 1, 1)],
            4,
            None,
            [("a", 1, 5), ("b", 1, 7), ("b", 7, 14), ("b", 14, 21)],
        ),
        ([("a", 1, 1), ("b", 1, 21)], 4, None, [("b", 1, 6), ("b", 6, 11), ("b", 11, 16), ("b", 16, 21)]),
        (
            [("a", 1, 2), ("b", 1, 1001)],
            4,
            None,
            [("a", 1, 2), ("b", 1, 334), ("b", 334, 667), ("b", 667, 1001)],
        ),
        ([("a", 1, 5), ("b", 1, 21)], 1, None, [("a", 1, 5), ("b", 1, 21)]),
        (
            [("a", 0, 10), ("b", 0, 10), ("c", 0, 1)],
            6,
            None,
            [("a", 0, 3), ("a", 3, 6), ("a", 6, 10), ("b", 0, 3), ("b", 3, 6), ("b", 6, 10), ("c", 0, 1)],
        ),
        (
            [("a", 0, 500), ("b", 0, 12000), ("c", 0, 15001)],
            6,
            None,
            [
                ("a", 0, 500),
                ("b", 0, 6000),
                ("b", 6000, 12000),
                ("c", 0, 5000),
                ("c", 5000, 10000),
                ("c", 10000, 15001),
            ],
        ),
        (
            [("a", 0, 1), ("b", 0, 1), ("c", 0, 10000)],
            6,
            None,
            [("a", 0, 1), ("b", 0, 1)] + [("c", at, at + 2500) for at in range(0, 10000, 2500)],
        ),
        ([("a", 1, 5)], None, 4, [("a", 1, 5)]),
        ([("a", 1, 6)], None, 4, [("a", 1, 3), ("a", 3, 6)]),
        (
            [("a", 1, 40), ("b", 1, 50), ("c", 1, 60)],
            None,
            20,
            [
                ("a", 1, 20),
                ("a", 20, 40),
                ("b", 1, 17),
                ("b", 17, 33),
                ("b", 33, 50),
                ("c", 1, 20),
                ("c", 20, 40),
                ("c", 40, 60),
            ],
        ),
        ([("a", 1, 40)], 1, 20, [("a", 1, 20), ("a", 20, 40)]),
        ([("a", 1, 40)], 4, 20, [("a", 1, 10), ("a", 10, 20), ("a", 20, 30), ("a", 30, 40)]),
        ([("a", 5, 5)], None, None, []),
    ],
)
def test_split(ranges, p, m, expected):
    assert split(ranges, p, m) == expected


def test_split_into_nine():
    pieces = split([("a", 0, 10000), ("b", 0, 15000), ("c", 0, 20000)], 9)
    assert [end - start for _, start, end in pieces] == [5000] * 9


def limited(starts, ends, limit):
    keys = [TopicPartition("t", number) for number in range(len(starts))]
    result = limit_ends(dict(zip(keys, starts, strict=True)), dict(zip(keys, ends, strict=True)), limit)
    return tuple(result[key] for key in keys)


def test_limit_is_shared_in_proportion():
    at, seen = (0, 0, 0), []
    for _ in range(12):
        at = limited(at, (101, 11, 1), 10)
        seen.append(at)
    assert seen[:3] == [(8, 1, 1), (17, 2, 1), (26, 3, 1)]
    assert seen[-2:] == [(98, 11, 1), (101, 11, 1)]


def test_limit_trace_of_21_11_1():
    assert limited((0, 0, 0), (21, 11, 1), 20) == (12, 6, 1)
    assert limited((12, 6, 1), (29, 21, 2), 20) == (22, 15, 2)


def test_every_partition_with_data_advances():
    assert limited((0,) * 20, (1,) * 20, 5) == (1,) * 20


def test_nothing_waits():
    assert limited((4, 5), (4, 5), 1) == (4, 5)
