"""Assignors: Kafka's vectors, and what each promises on any input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replog.client.group_assignment import (
    make_assignors,
    range_assignor,
    round_robin_assignor,
    sticky_assignor,
)
from spark_replog.errors import InvalidConfigError
from spark_replog.groups.group_rebalance import GroupSubscription
from spark_replog.ids import TopicPartition

pytestmark = pytest.mark.case("consumer-range-round-robin-sticky-vectors")


def members(**wants):
    return {name: GroupSubscription(tuple(topics)) for name, topics in wants.items()}


def short(assignment):
    return {member: [f"{key.topic}p{key.partition}" for key in sorted(keys)] for member, keys in assignment.items()}


def after(assignment, wants, generation=1):
    """The members as they come to the next rebalance."""
    return {
        name: GroupSubscription(subscription.topics, tuple(assignment.get(name, ())), generation)
        for name, subscription in wants.items()
    }


BOTH = members(C0=["t0", "t1"], C1=["t0", "t1"])
LADDER = members(C0=["t0"], C1=["t0", "t1"], C2=["t0", "t1", "t2"])
LADDER_COUNTS = {"t0": 1, "t1": 2, "t2": 3}
FOUR = {f"t{number}": 2 for number in range(4)}


@pytest.mark.parametrize(
    ("counts", "wants", "expected"),
    [
        ({"t0": 3, "t1": 3}, BOTH, {"C0": ["t0p0", "t0p1", "t1p0", "t1p1"], "C1": ["t0p2", "t1p2"]}),
        ({"t0": 1}, members(C0=["t0"], C1=["t0"]), {"C0": ["t0p0"], "C1": []}),
        ({"t0": 2}, members(C0=["t0"], C1=["t0"]), {"C0": ["t0p0"], "C1": ["t0p1"]}),
        ({"t0": 3, "t1": 2}, members(C0=["t0"], C1=["t0", "t1"], C2=["t0"]),
         {"C0": ["t0p0"], "C1": ["t0p1", "t1p0", "t1p1"], "C2": ["t0p2"]}),
        ({}, members(C0=["t0"]), {"C0": []}),
        ({"t0": 2, "other": 2}, members(C0=["t0"]), {"C0": ["t0p0", "t0p1"]}),
    ],
)  # fmt: skip
def test_range(counts, wants, expected):
    assert short(range_assignor(counts, wants)) == expected


@pytest.mark.parametrize(
    ("counts", "wants", "expected"),
    [
        ({"t0": 3, "t1": 3}, BOTH, {"C0": ["t0p0", "t0p2", "t1p1"], "C1": ["t0p1", "t1p0", "t1p2"]}),
        (LADDER_COUNTS, LADDER, {"C0": ["t0p0"], "C1": ["t1p0"], "C2": ["t1p1", "t2p0", "t2p1", "t2p2"]}),
        ({"t0": 2}, members(C0=["t0"], C1=["t0"]), {"C0": ["t0p0"], "C1": ["t0p1"]}),
        ({}, members(C0=[]), {"C0": []}),
    ],
)
def test_round_robin(counts, wants, expected):
    assert short(round_robin_assignor(counts, wants)) == expected


def test_sticky_deals_out_as_kafka_does():
    wants = members(**{name: list(FOUR) for name in ("C0", "C1", "C2")})
    first = sticky_assignor(FOUR, wants)
    assert short(first) == {
        "C0": ["t0p0", "t1p1", "t3p0"],
        "C1": ["t0p1", "t2p0", "t3p1"],
        "C2": ["t1p0", "t2p1"],
    }
    rest = {name: subscription for name, subscription in after(first, wants).items() if name != "C1"}
    second = sticky_assignor(FOUR, rest)
    assert {name: len(keys) for name, keys in second.items()} == {"C0": 4, "C2": 4}
    assert all(set(first[name]) <= set(second[name]) for name in second)


def test_sticky_with_unequal_subscriptions_is_balanced_and_keeps():
    first = sticky_assignor(LADDER_COUNTS, LADDER)
    assert short(first) == {"C0": ["t0p0"], "C1": ["t1p0", "t1p1"], "C2": ["t2p0", "t2p1", "t2p2"]}
    rest = {name: subscription for name, subscription in after(first, LADDER).items() if name != "C0"}
    assert short(sticky_assignor(LADDER_COUNTS, rest)) == {
        "C1": ["t0p0", "t1p0", "t1p1"],
        "C2": ["t2p0", "t2p1", "t2p2"],
    }


def test_sticky_gives_a_newcomer_its_share_and_moves_no_more_than_that():
    wants = members(C0=["t"], C1=["t"])
    first = sticky_assignor({"t": 6}, wants)
    grown = {**after(first, wants), "C2": GroupSubscription(("t",))}
    second = sticky_assignor({"t": 6}, grown)
    assert {name: len(keys) for name, keys in second.items()} == {"C0": 2, "C1": 2, "C2": 2}
    assert set(second["C0"]) < set(first["C0"])
    assert set(second["C1"]) < set(first["C1"])


def test_of_two_owners_the_newer_generation_keeps_the_partition():
    t0 = TopicPartition("t", 0)
    claims = {
        "C0": GroupSubscription(("t",), (t0,), 3),
        "C1": GroupSubscription(("t",), (t0,), 4),
    }
    assert sticky_assignor({"t": 2}, claims)["C1"] == [t0]
    equal = {name: GroupSubscription(("t",), (t0,), 4) for name in ("C0", "C1")}
    assert sorted(key for keys in sticky_assignor({"t": 2}, equal).values() for key in keys) == [
        t0,
        TopicPartition("t", 1),
    ]


topics = st.sampled_from(["a", "b", "c"])
groups = st.lists(st.sets(topics, min_size=1), min_size=1, max_size=6)


@pytest.mark.parametrize("assignor", [range_assignor, round_robin_assignor, sticky_assignor])
@given(counts=st.dictionaries(topics, st.integers(1, 9)), wants=groups, gone=st.integers(0, 5))
def test_every_wanted_partition_goes_to_exactly_one_that_wants_it(assignor, counts, wants, gone):
    subscriptions = members(**{f"C{number}": sorted(topic_names) for number, topic_names in enumerate(wants)})
    for _ in range(2):
        assignment = assignor(counts, subscriptions)
        wanted = {topic for subscription in subscriptions.values() for topic in subscription.topics}
        given_out = sorted(key for keys in assignment.values() for key in keys)
        assert given_out == sorted(
            TopicPartition(topic, number) for topic in wanted & set(counts) for number in range(counts[topic])
        )
        for member, keys in assignment.items():
            assert {key.topic for key in keys} <= set(subscriptions[member].topics)
        subscriptions = after(assignment, subscriptions)
        if len(subscriptions) > 1:
            subscriptions.pop(f"C{gone}", None)


@given(counts=st.dictionaries(topics, st.integers(1, 9), min_size=1), size=st.integers(1, 6), gone=st.integers(0, 5))
def test_sticky_is_balanced_and_moves_nothing_it_need_not(counts, size, gone):
    wants = members(**{f"C{number}": sorted(counts) for number in range(size)})
    first = sticky_assignor(counts, wants)
    sizes = [len(keys) for keys in first.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sticky_assignor(counts, after(first, wants)) == first
    rest = {name: subscription for name, subscription in after(first, wants).items() if name != f"C{gone}"}
    if rest:
        second = sticky_assignor(counts, rest)
        assert all(set(first[name]) <= set(second[name]) for name in rest)


def test_strategies_are_named_in_order_and_a_users_class_may_be_one():
    made = make_assignors("roundrobin, tests.unit.client.test_assignors.AllToOne")
    assert list(made) == ["roundrobin", "all-to-one"]
    assert made["all-to-one"]({"t": 1}, members(C0=["t"])) == {"C0": [TopicPartition("t", 0)]}
    kafkas = "org.apache.kafka.clients.consumer."
    assert list(make_assignors(f"{kafkas}StickyAssignor,{kafkas}RangeAssignor,{kafkas}RoundRobinAssignor")) == [
        "sticky",
        "range",
        "roundrobin",
    ]
    for wrong in (
        "",
        "cooperative-sticky",
        f"{kafkas}CooperativeStickyAssignor",
        "tests.unit.client.test_assignors.Nameless",
    ):
        with pytest.raises(InvalidConfigError):
            make_assignors(wrong)


class AllToOne:
    """An assignor of a user's."""

    name = "all-to-one"

    def assign(self, counts, members):
        first = next(iter(members))
        return {first: [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]}


class Nameless:
    """Not an assignor."""
