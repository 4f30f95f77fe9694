"""How fast a topic grows, and when a root is full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.health.store import (
    DAY_MS,
    BrokerHealth,
    PartitionDescription,
    TopicDescription,
    days_until_full,
    growth_of,
)
from spark_replog.log.fold.topic_state import NO_TRAFFIC

HOUR_MS = 3_600_000
MB = 1_000_000


def topic(hours, *, mb_per_hour=10, retention="-1", earlier_rows=0, partitions=1, replicas=(0, 1), **config):
    """A topic that was written for so many hours up to the full hour `hours`, ten appends an hour."""
    traffic = NO_TRAFFIC
    for tenth in range(hours * 10):
        traffic = traffic.plus(tenth * HOUR_MS // 10, 1, mb_per_hour * MB // 10)
    rows = hours * 10 + earlier_rows
    parts = tuple(
        PartitionDescription(number, 0, 0, replicas, replicas, 0, rows // partitions, rows // partitions,
                             size_bytes=hours * mb_per_hour * MB // partitions)
        for number in range(partitions)
    )  # fmt: skip
    values = {"retention.ms": retention, **{key.replace("_", "."): value for key, value in config.items()}}
    return TopicDescription("t", "id", "ledger", parts, values, traffic)


@pytest.mark.parametrize(("hours", "expected"), [(2, 240), (12, 240), (24, 240), (100, 240)])
def test_a_young_topic_is_projected_and_an_old_one_counts_its_last_day(hours, expected):
    growth = growth_of(topic(hours), hours * HOUR_MS)
    assert growth.bytes_per_day == pytest.approx(expected * MB)
    assert growth.bytes_more_max is None


def test_the_first_rows_of_a_topic_count_as_those_of_an_hour():
    assert growth_of(topic(1), HOUR_MS * 9 // 10).bytes_per_day == pytest.approx(240 * MB)


def test_a_topic_that_had_rows_before_is_not_projected():
    assert growth_of(topic(2, earlier_rows=5), 2 * HOUR_MS).bytes_per_day == pytest.approx(20 * MB)


def test_an_idle_topic_does_not_grow():
    assert growth_of(topic(2), 40 * HOUR_MS).bytes_per_day == 0


@pytest.mark.parametrize(
    ("config", "more_mb"),
    [
        ({"retention": str(DAY_MS)}, 240 - 1000),  # it holds four days of writing, and shrinks
        ({"retention": str(7 * DAY_MS)}, 7 * 240 - 1000),
        ({"retention_bytes": str(1200 * MB)}, 200),
        ({"retention": str(7 * DAY_MS), "retention_bytes": str(1200 * MB)}, 200),
        ({"retention": str(7 * DAY_MS), "cleanup_policy": "compact"}, None),
    ],
)
def test_retention_ends_the_growth(config, more_mb):
    growth = growth_of(topic(100, **config), 100 * HOUR_MS)
    assert growth.bytes_more_max == (None if more_mb is None else pytest.approx(max(0, more_mb) * MB))


def brokers(*free_mb, device=None):
    return [
        BrokerHealth(number, f"file:///b{number}", None, True, False, None, None if room is None else room * MB, device)
        for number, room in enumerate(free_mb)
    ]


def days(topics, *free_mb, device=None, hours=100):
    forecast = days_until_full(brokers(*free_mb, device=device), topics, hours * HOUR_MS)
    return [None if day_count is None else round(day_count, 6) for day_count in forecast.values()]


def test_a_root_fills_with_the_copies_that_it_gets():
    assert days([topic(100)], 480, 960, 960) == [2, 4, None]
    assert days([topic(100), topic(100)], 480, None, 0) == [1, None, None]


def test_roots_on_one_file_system_fill_it_together():
    assert days([topic(100)], 480, 480, device=7) == [1, 1]


def test_growth_that_retention_ends_fills_only_what_it_takes():
    ends = topic(100, retention_bytes=str(1200 * MB))  # 200 MB more, within 0.833 days
    assert days([ends], 201, 120) == [None, 0.5]
    both = [ends, topic(100)]  # 400 MB by then, and 240 MB a day from then on
    assert days(both, 240, 640) == [0.5, 1.833333]


def test_a_trickle_beside_a_flood_that_ends_fills_what_is_left():
    """The sum of both paces in floating point is the flood's."""
    flood = topic(100, mb_per_hour=10**11, retention_bytes="0")  # it is at its end
    two = topic(100, partitions=2, replicas=(0,))
    large = replace(two.partitions[1], replicas=(1,), size_bytes=10**15)
    trickle = replace(two, partitions=(replace(two.partitions[0], size_bytes=1), large))
    assert days([flood, trickle], 480)[0] > 1_000_000


def test_partitions_take_their_share():
    two = topic(100, partitions=2, replicas=(0,))
    other = replace(two, partitions=(two.partitions[0], replace(two.partitions[1], replicas=(1,))))
    assert days([other], 120, 240) == [1, 2]
    empty = replace(
        two, partitions=(replace(two.partitions[0], size_bytes=1000 * MB), replace(two.partitions[1], size_bytes=0))
    )
    assert days([empty], 240) == [1]
