"""The values of Kafka's own tests of its assignors (Range, RoundRobin, AbstractSticky).

A member is written ``name: topics`` or ``name: topics | partitions owned @ generation``. Racks play no part here, so
the vectors are those without them.
"""

from __future__ import annotations

import itertools

import pytest

from spark_replog.client.group_assignment import range_assignor, round_robin_assignor, sticky_assignor
from spark_replog.groups.group_rebalance import GroupSubscription
from spark_replog.ids import TopicPartition

pytestmark = pytest.mark.case("consumer-range-round-robin-sticky-vectors")


def partitions(text):
    """``t1-0,2 t2-1``: partitions 0 and 2 of t1, and 1 of t2."""
    keys = []
    for word in text.split():
        topic, numbers = word.split("-")
        keys += [TopicPartition(topic, int(number)) for number in numbers.split(",")]
    return keys


def group(*lines):
    subscriptions = {}
    for line in lines:
        name, wants = line.split(":")
        topics, _, owned = wants.partition("|")
        owned, _, generation = owned.partition("@")
        subscriptions[name] = GroupSubscription(tuple(topics.split()), tuple(partitions(owned)), int(generation or -1))
    return subscriptions


def check(assignor, counts, members, expected):
    assignment = assignor(counts, members)
    assert {name: sorted(keys) for name, keys in assignment.items()} == {
        name: sorted(partitions(text)) for name, text in expected.items()
    }


TWO, THREE, ALL = ("t1 t2",) * 2, ("t1 t2",) * 3, ("t1 t2 t3",) * 3


def same(*topics):
    return group(*(f"c{number}: {topic_names}" for number, topic_names in enumerate(topics, 1)))


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({}, same(""), {"c1": ""}),
        ({}, same("t1"), {"c1": ""}),
        ({"t1": 3}, same("t1"), {"c1": "t1-0,1,2"}),
        ({"t1": 3, "other": 3}, same("t1"), {"c1": "t1-0,1,2"}),
        ({"t1": 1, "t2": 2}, same("t1 t2"), {"c1": "t1-0 t2-0,1"}),
        ({"t1": 1}, same("t1", "t1"), {"c1": "t1-0", "c2": ""}),
        ({"t1": 2}, same("t1", "t1"), {"c1": "t1-0", "c2": "t1-1"}),
        ({"t1": 3, "t2": 2}, same("t1", "t1 t2", "t1"), {"c1": "t1-0", "c2": "t1-1 t2-0,1", "c3": "t1-2"}),
        ({"t1": 3, "t2": 3}, same(*TWO), {"c1": "t1-0,1 t2-0,1", "c2": "t1-2 t2-2"}),
        (
            {"t1": 5, "t2": 4},
            same(*TWO, *TWO),
            {"c1": "t1-0,1 t2-0", "c2": "t1-2 t2-1", "c3": "t1-3 t2-2", "c4": "t1-4 t2-3"},
        ),
        (
            {"t1": 5, "t2": 5},
            same(*THREE),
            {"c1": "t1-0,1 t2-0,1", "c2": "t1-2,3 t2-2,3", "c3": "t1-4 t2-4"},
        ),
        (
            {"t1": 6, "t2": 7, "t3": 2},
            same(*ALL),
            {"c1": "t1-0,1 t2-0,1,2 t3-0", "c2": "t1-2,3 t2-3,4 t3-1", "c3": "t1-4,5 t2-5,6"},
        ),
        (
            {"t1": 6, "t2": 7, "t3": 2},
            same("t1 t2 t3", "t1 t2 t3", "t1 t3"),
            {"c1": "t1-0,1 t2-0,1,2,3 t3-0", "c2": "t1-2,3 t2-4,5,6 t3-1", "c3": "t1-4,5"},
        ),
        (
            {"t1": 5, "t2": 5, "t3": 5},
            same("t1 t2 t3", "t1 t2 t3", "t1 t3"),
            {"c1": "t1-0,1 t2-0,1,2 t3-0,1", "c2": "t1-2,3 t2-3,4 t3-2,3", "c3": "t1-4 t3-4"},
        ),
        (
            {"t1": 6, "t2": 6, "t3": 2, "t4": 2},
            same("t1 t2", "t1 t2", "t3 t4", "t3 t4"),
            {"c1": "t1-0,1,2 t2-0,1,2", "c2": "t1-3,4,5 t2-3,4,5", "c3": "t3-0 t4-0", "c4": "t3-1 t4-1"},
        ),
        (
            {"t1": 6, "t2": 6, "t3": 2, "t4": 2, "t5": 4, "t6": 4},
            same(*("t1 t2 t3 t4 t5 t6 t7 t8 t9",) * 3),
            {
                "c1": "t1-0,1 t2-0,1 t3-0 t4-0 t5-0,1 t6-0,1",
                "c2": "t1-2,3 t2-2,3 t3-1 t4-1 t5-2 t6-2",
                "c3": "t1-4,5 t2-4,5 t5-3 t6-3",
            },
        ),
    ],
)
def test_range_vectors(counts, members, expected):
    check(range_assignor, counts, members, expected)


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({}, same(""), {"c1": ""}),
        ({}, same("t1"), {"c1": ""}),
        ({"t1": 3, "other": 3}, same("t1"), {"c1": "t1-0,1,2"}),
        ({"t1": 1, "t2": 2}, same("t1 t2"), {"c1": "t1-0 t2-0,1"}),
        ({"t1": 1}, same("t1", "t1"), {"c1": "t1-0", "c2": ""}),
        ({"t1": 2}, same("t1", "t1"), {"c1": "t1-0", "c2": "t1-1"}),
        ({"t1": 3, "t2": 2}, same("t1", "t1 t2", "t1"), {"c1": "t1-0", "c2": "t1-1 t2-0,1", "c3": "t1-2"}),
        ({"t1": 3, "t2": 3}, same(*TWO), {"c1": "t1-0,2 t2-1", "c2": "t1-1 t2-0,2"}),
        (
            {"t1": 3, "t2": 3},
            same(*TWO, *TWO),
            {"c1": "t1-0 t2-1", "c2": "t1-1 t2-2", "c3": "t1-2", "c4": "t2-0"},
        ),
        ({"t1": 3, "t2": 3}, same(*THREE), {"c1": "t1-0 t2-0", "c2": "t1-1 t2-1", "c3": "t1-2 t2-2"}),
    ],
)
def test_round_robin_vectors(counts, members, expected):
    check(round_robin_assignor, counts, members, expected)


OWNED = "t1 t2 | t1-0,2 t2-1"


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({}, same(""), {"c1": ""}),
        ({}, same("t1"), {"c1": ""}),
        ({}, group("c1: t1 | t1-0,1,2 @ 1"), {"c1": ""}),
        ({"t1": 2}, group("c1: t1 | t1-0,1 other-0,1 @ 1"), {"c1": "t1-0,1"}),
        ({"t1": 1, "t2": 2}, same("t1 t2"), {"c1": "t1-0 t2-0,1"}),
        ({"t1": 2}, same("t1", "t1"), {"c1": "t1-0", "c2": "t1-1"}),
        ({"t1": 3, "t2": 2}, same("t1", "t1 t2", "t1"), {"c1": "t1-0,2", "c2": "t2-0,1", "c3": "t1-1"}),
        ({"t1": 3, "t2": 3}, same(*TWO), {"c1": "t1-0,2 t2-1", "c2": "t1-1 t2-0,2"}),
        (
            {"t1": 2, "t2": 3},
            group("c1: t1 t2 | t1-0 t2-1 @ 1", "c2: t1 t2 | t1-1 t2-2 @ 1"),
            {"c1": "t1-0 t2-0,1", "c2": "t1-1 t2-2"},
        ),
        (
            {"t1": 2, "t2": 2},
            group("c1: t1 t2 | t1-0 t2-0 @ 1", "c2: t1 t2 | t1-1 t2-1 @ 1", "c3: t1 t2"),
            # One of two equal owners gives one up: in Kafka the one that Java's hashes say, here the last.
            {"c1": "t1-0 t2-0", "c2": "t1-1", "c3": "t2-1"},
        ),
        (
            {"t1": 2, "t2": 3},
            group("c1: t1 t2 | t1-0 @ 1", "c2: t1 t2 | t1-1 @ 1", "c3: t1 t2"),
            {"c1": "t1-0 t2-1", "c2": "t1-1 t2-2", "c3": "t2-0"},
        ),
        ({"t1": 3}, group("c1: t1 | t1-0,1,2 @ 1", "c2: t1"), {"c1": "t1-0,1", "c2": "t1-2"}),
        ({"t1": 3}, group("c2: t1 | t1-2 @ 1"), {"c2": "t1-0,1,2"}),
        ({"t1": 3, "t2": 4}, same(*TWO), {"c1": "t1-0,2 t2-1,3", "c2": "t1-1 t2-0,2"}),
        (
            {"t1": 3, "t2": 4},
            group("c1: t1 t2 | t1-0,2 t2-1,3 @ 1", "c2: t1 t2 | t1-1 t2-0,2 @ 1", "c3: t1 t2", "c4: t1 t2"),
            {"c1": "t1-0,2", "c2": "t1-1 t2-0", "c3": "t2-1,3", "c4": "t2-2"},
        ),
        (
            {"t1": 3, "t2": 4},
            group("c3: t1 t2 | t2-1,3 @ 1", "c4: t1 t2 | t2-2 @ 1"),
            {"c3": "t2-1,3 t1-0 t2-0", "c4": "t2-2 t1-1,2"},
        ),
        (
            {"t1": 4},
            group("c1: t1 | t1-0,1 @ 1", "c2: t1 | t1-2 @ 1", "c3: t1"),
            {"c1": "t1-0,1", "c2": "t1-2", "c3": "t1-3"},
        ),
        (
            {"t1": 3, "t2": 3},
            group(f"c1: {OWNED} @ 10", f"c2: {OWNED} @ 9"),
            {"c1": "t1-0,2 t2-1", "c2": "t1-1 t2-0,2"},
        ),
        ({"t1": 3, "t2": 3}, group(f"c1: {OWNED} @ 10", f"c2: {OWNED}"), {"c1": "t1-0,2 t2-1", "c2": "t1-1 t2-0,2"}),
        (
            {"t1": 3},
            group("c1: t1 | t1-0,1 @ 1", "c2: t1 | t1-0,2 @ 1", "c3: t1"),
            {"c1": "t1-1", "c2": "t1-2", "c3": "t1-0"},
        ),
        (
            {"t": 3, "t2": 3, "t3": 3},
            group(
                "c1: t t2 t3 | t-0 t2-0 t3-0 @ 10", "c2: t t2 t3 | t-1 t2-1 t3-1 @ 9", "c3: t t2 t3 | t2-1 t3-0,2 @ 8"
            ),
            {"c1": "t-0 t2-0 t3-0", "c2": "t-1 t2-1 t3-1", "c3": "t-2 t2-2 t3-2"},
        ),
        (
            {"t": 3, "t1": 3, "t2": 3, "t3": 3},
            group(
                "c1: t t2 t3 t1",
                "c2: t t2 t3 t1 | t-0 t2-0 t1-0 @ 9",
                "c3: t t2 t3 t1 | t3-2 t2-2 t1-1 @ 8",
                "c4: t t2 t3 t1 | t3-1 t-1,2 @ 7",
            ),
            {"c1": "t1-2 t2-1 t3-0", "c2": "t-0 t2-0 t1-0", "c3": "t3-2 t2-2 t1-1", "c4": "t3-1 t-1,2"},
        ),
        (
            {"t": 3, "t2": 3},
            group("c1: t t2 | t-0,1 t2-1 @ 10", "c2: t t2 | t-0 t2-1,2 @ 8"),
            {"c1": "t-0,1 t2-1", "c2": "t-2 t2-0,2"},
        ),
        (
            {"t1": 6, "t2": 7, "t3": 2},
            same(*ALL),
            {"c1": "t1-0,3 t2-0,3,6", "c2": "t1-1,4 t2-1,4 t3-0", "c3": "t1-2,5 t2-2,5 t3-1"},
        ),
        (
            {"t1": 6, "t2": 7, "t3": 2},
            same("t1 t2 t3", "t1 t2 t3", "t1 t3"),
            {"c1": "t1-5 t2-0,2,4,6", "c2": "t1-3 t2-1,3,5 t3-0", "c3": "t1-0,1,2,4 t3-1"},
        ),
        (
            {"topic1": 2, "topic2": 1, "topic3": 2, "topic4": 1, "topic5": 2},
            same(
                "topic1 topic2 topic3 topic4 topic5",
                "topic1 topic3 topic5",
                "topic1 topic3 topic5",
                "topic1 topic2 topic3 topic4 topic5",
            ),
            {
                "c1": "topic2-0 topic3-0",
                "c2": "topic1-0 topic3-1",
                "c3": "topic1-1 topic5-0",
                "c4": "topic4-0 topic5-1",
            },
        ),
    ],
)
def test_sticky_vectors(counts, members, expected):
    check(sticky_assignor, counts, members, expected)


@pytest.mark.parametrize("generations", list(itertools.permutations((1, 2, 3))))
def test_three_members_that_claim_one_partition_leave_it_to_one(generations):
    claims = ("t-0,2", "t-1,2,3", "t-2,4,5")
    lines = [f"c{n}: t | {claim} @ {generations[n]}" for n, claim in enumerate(claims)]
    assignment = sticky_assignor({"t": 6, "t1": 1}, group(*lines, "c3: t1 | t1-0 @ 2"))
    given = [key for keys in assignment.values() for key in keys]
    assert sorted(given) == partitions("t-0,1,2,3,4,5 t1-0")
    assert {len(keys) for keys in assignment.values()} <= {1, 2}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        # Two of one generation claim a partition, and one of a newer generation too: it is the newer one's.
        (
            group("c1: t | t-0 @ 1", "c2: t | t-0 @ 1", "c3: t | t-0 @ 2"),
            {"c1": "t-1", "c2": "t-2", "c3": "t-0"},
        ),
        # What is owned of a topic that is not wanted any more goes to who wants it.
        (group("c1: u | t-0 @ 1", "c2: t"), {"c1": "u-0", "c2": "t-0,1,2"}),
    ],
)
def test_claims_that_do_not_hold(members, expected):
    check(sticky_assignor, {"t": 3, "u": 1}, members, expected)


def assert_balanced(members, assignment):
    """No partition can go to a member that wants it and has at least two fewer."""
    for keys in assignment.values():
        for key in keys:
            for name, wants in members.items():
                assert key.topic not in wants.topics or len(assignment[name]) >= len(keys) - 1


def test_a_ladder_of_subscriptions_stays_balanced_when_a_member_leaves_and_keeps_what_it_can():
    counts = {f"t{number:02}": number for number in range(1, 20)}
    members = {f"c{n:02}": GroupSubscription(tuple(f"t{m:02}" for m in range(1, n + 1))) for n in range(1, 20)}
    first = sticky_assignor(counts, members)
    assert_balanced(members, first)
    rest = {
        name: GroupSubscription(wants.topics, tuple(first[name]), 1) for name, wants in members.items() if name != "c10"
    }
    second = sticky_assignor(counts, rest)
    assert_balanced(rest, second)
    assert all(set(first[name]) <= set(second[name]) for name in rest)


def test_topics_that_come_and_go_move_nothing_that_may_stay():
    wants = {name: GroupSubscription(("t1",)) for name in ("c1", "c2")}
    first = sticky_assignor({"t1": 3}, wants)
    both = {name: GroupSubscription(("t1", "t2"), tuple(first[name]), 1) for name in wants}
    second = sticky_assignor({"t1": 3, "t2": 3}, both)
    assert [len(second[name]) for name in wants] == [3, 3]
    assert all(set(first[name]) < set(second[name]) for name in wants)
    gone = {name: GroupSubscription(("t2",), tuple(second[name]), 2) for name in wants}
    third = sticky_assignor({"t2": 3}, gone)
    assert sorted(len(keys) for keys in third.values()) == [1, 2]
    assert all(set(third[name]) <= set(second[name]) for name in wants)
