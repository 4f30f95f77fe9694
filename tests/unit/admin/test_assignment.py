"""Kafka's assignment vectors: AdminRackAwareTest and AdminUtilsTest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.admin.topic_rules import assign_replicas, place_replicas, rack_alternated
from spark_replog.errors import ErrorCode, InvalidConfigError

RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


@pytest.mark.case("kafka-116")
def test_rack_alternated_order() -> None:
    assert rack_alternated(RACKS) == [0, 3, 1, 5, 4, 2]
    assert rack_alternated({broker: rack for broker, rack in RACKS.items() if broker != 5}) == [0, 3, 1, 4, 2]
    assert rack_alternated({broker: f"r{broker // 3}" for broker in range(9)}) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


@pytest.mark.case("kafka-116")
def test_rack_aware_vectors() -> None:
    expected = (
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3),
        (0, 4, 2), (3, 2, 0), (1, 0, 3), (5, 3, 1), (4, 1, 5), (2, 5, 4),
    )  # fmt: skip
    assert assign_replicas(RACKS, 12, 3, start_index=0) == expected
    assert assign_replicas(RACKS, 6, 2, start_index=0) == ((0, 3), (3, 1), (1, 5), (5, 4), (4, 2), (2, 0))
    other = {0: "rack1", 1: "rack2", 2: "rack2", 3: "rack3", 4: "rack3", 5: "rack1"}
    assert assign_replicas(other, 6, 3, start_index=2) == (
        (3, 2, 0), (5, 4, 1), (2, 0, 3), (4, 1, 5), (0, 3, 2), (1, 5, 4),
    )  # fmt: skip


@pytest.mark.case("kafka-116")
def test_rack_unaware_vectors_shift_after_a_round() -> None:
    assert assign_replicas(dict.fromkeys(range(5)), 10, 3, start_index=0) == (
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    )  # fmt: skip


@pytest.mark.case("kafka-116")
def test_growth_continues_the_pattern() -> None:
    whole = assign_replicas(dict.fromkeys(range(5)), 10, 3, start_index=0)
    assert assign_replicas(dict.fromkeys(range(5)), 4, 3, start_index=0, first_partition=1) == whole[1:5]


@pytest.mark.case("kafka-116")
@pytest.mark.parametrize(
    ("partitions", "factor", "racks", "code"),
    [
        (0, 1, {0: None}, ErrorCode.INVALID_PARTITIONS),
        (-1, 1, {0: None}, ErrorCode.INVALID_PARTITIONS),
        (1, 0, {0: None}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 2, {0: None}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 1, {0: "a", 1: None}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refusals(partitions: int, factor: int, racks: dict[int, str | None], code: ErrorCode) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        assign_replicas(racks, partitions, factor)
    assert raised.value.code is code


@pytest.mark.case("server-7-3-properties-distinct-racks")
@given(
    racks=st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_distinct_and_racks_are_used(racks: list[str], partitions: int, data: st.DataObject) -> None:
    brokers: dict[int, str | None] = dict(enumerate(racks))
    factor = data.draw(st.integers(1, len(brokers)))
    for row in assign_replicas(brokers, partitions, factor, start_index=data.draw(st.integers(0, len(brokers) - 1))):
        assert len(set(row)) == factor
        assert len({brokers[broker] for broker in row}) == min(factor, len(set(racks)))


@pytest.mark.case("server-7-3-properties-distinct-racks")
@given(brokers=st.integers(1, 8), rounds=st.integers(1, 5), data=st.data())
def test_leaders_and_copies_are_even(brokers: int, rounds: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    rows = assign_replicas(dict.fromkeys(range(brokers)), brokers * rounds, factor)
    assert set(Counter(row[0] for row in rows).values()) == {rounds}


@pytest.mark.case("server-7-3-placer-kraft-fenced-brokers")
def test_fenced_brokers_come_last_so_that_every_partition_has_a_leader():
    five = dict.fromkeys(range(5))
    rows = place_replicas(five, {1, 3}, 6, 2, start_index=0)
    assert rows == assign_replicas({0: None, 2: None, 4: None}, 6, 2, start_index=0)
    # Three are asked for and two are in service: each partition has both, and one that rests.
    rows = place_replicas(five, {1, 3, 4}, 4, 3, start_index=0)
    assert [row[:2] for row in rows] == list(assign_replicas({0: None, 2: None}, 4, 2, start_index=0))
    assert [row[2] for row in rows] == [1, 3, 4, 1]
    assert place_replicas(five, {1, 3, 4}, 1, 5, start_index=0) == ((0, 2, 1, 3, 4),)
    grown = place_replicas(five, {1, 3, 4}, 1, 4, start_index=0, first_partition=3)
    assert (set(grown[0][:2]), grown[0][2:]) == ({0, 2}, (1, 3))
    assert place_replicas(five, (), 7, 3, start_index=2) == assign_replicas(five, 7, 3, start_index=2)
    racks = {0: "a", 1: "b", 2: "a", 3: "b"}
    assert {tuple(sorted(racks[broker] for broker in row)) for row in place_replicas(racks, {0}, 6, 2)} == {("a", "b")}
