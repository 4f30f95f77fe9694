"""Spark's Kafka rule for tasks, by the connector's own examples; fewer tasks than partitions are ours."""

from __future__ import annotations

import pytest

from spark_replog.ids import TopicPartition
from spark_replog.spark.source.sizing import OffsetRange, coalesce, split_ranges

pytestmark = pytest.mark.case("connector-splitting-5-3-row")


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
        ([("a", 0, 100), ("b", 0, 40)], 5, None, [*(("a", at, at + 25) for at in range(0, 100, 25)), ("b", 0, 40)]),
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


def test_as_many_ranges_as_tasks_are_asked_for_are_left_whole():
    ranges = [("a", 0, 100), ("b", 0, 30), *((f"s{number}", 0, 1) for number in range(10))]
    assert split(ranges, 12) == ranges
    assert ("a", 0, 50) in split(ranges, 13)


def test_the_largest_task_is_bounded_though_there_are_ranges_enough():
    piece = OffsetRange(TopicPartition("a", 0), 0, 6)
    pieces = split_ranges([piece], partitions_min=1, rows_per_partition_max=3, range_count=1)
    assert [(part.start, part.end) for part in pieces] == [(0, 3), (3, 6)]


def test_no_more_tasks_than_rows_however_many_are_asked_for():
    assert split([("a", 0, 3), ("b", 5, 6)], 2**31 - 1) == [("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 5, 6)]


def test_split_into_nine():
    pieces = split([("a", 0, 10000), ("b", 0, 15000), ("c", 0, 20000)], 9)
    assert [end - start for _, start, end in pieces] == [5000] * 9


def test_split_is_the_same_for_two_partitions_of_one_topic():
    keys = [TopicPartition("t", number) for number in range(3)]
    items = [OffsetRange(key, 0, 10) for key in keys[:2]] + [OffsetRange(keys[2], 0, 1)]
    pieces = split_ranges(items, partitions_min=6, rows_per_partition_max=None)
    assert [piece.topic_partition.partition for piece in pieces] == [0, 0, 0, 1, 1, 1, 2]


def grouped(sizes, count):
    pieces = [OffsetRange(TopicPartition("t", number), 5, 5 + size) for number, size in enumerate(sizes)]
    return [[piece.topic_partition.partition for piece in group] for group in coalesce(pieces, count)]


def test_partitions_share_at_most_so_many_tasks_by_size():
    assert grouped([10, 1, 1, 8, 1, 1], 2) == [[0, 4], [1, 2, 3, 5]]
    assert grouped([3, 3, 3], 1) == [[0, 1, 2]]


@pytest.mark.parametrize("count", [None, 3, 7])
def test_no_more_tasks_than_partitions(count):
    assert grouped([1, 2, 3], count) == [[0], [1], [2]]


def test_every_partition_is_in_exactly_one_task():
    groups = grouped([number % 17 + 1 for number in range(128)], 5)
    assert sorted(number for group in groups for number in group) == list(range(128))
    assert all(group == sorted(group) for group in groups)
    loads = [sum(number % 17 + 1 for number in group) for group in groups]
    assert max(loads) - min(loads) <= 17
