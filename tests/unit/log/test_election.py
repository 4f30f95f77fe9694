"""Kafka's election vectors (``PartitionLeaderElectionAlgorithmsTest``), assignment [2, 4]."""

from __future__ import annotations

import pytest

from spark_replog.log.fold.partition_state import (
    Election,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)

ASSIGNMENT = (2, 4)


@pytest.mark.case("kafka-118")
@pytest.mark.parametrize(
    ("isr", "live", "is_unclean_allowed", "expected"),
    [
        ((2, 4), {4}, False, Election(4, (4,))),
        ((2,), {4}, False, None),
        ((2,), {4}, True, Election(4, (4,), True)),
        ((2, 4), {2, 4}, True, Election(2, (2, 4))),
        ((2,), set(), True, None),
    ],
)
def test_an_offline_partition_is_led_by_the_first_live_in_sync_replica(isr, live, is_unclean_allowed, expected):
    assert elect_offline(ASSIGNMENT, isr, live, is_unclean_allowed=is_unclean_allowed) == expected


@pytest.mark.case("kafka-118")
@pytest.mark.parametrize(
    ("isr", "live", "expected"),
    [((2, 4), {4}, Election(4, (2, 4))), ((2,), set(), None), ((), {2}, None)],
)
def test_a_reassigned_partition_is_led_by_the_first_live_in_sync_target(isr, live, expected):
    assert elect_reassigned(ASSIGNMENT, isr, live) == expected


@pytest.mark.case("kafka-118")
@pytest.mark.parametrize(
    ("isr", "live", "expected"),
    [((2, 4), {2, 4}, Election(2, (2, 4))), ((2,), set(), None), ((4,), {2, 4}, None)],
)
def test_the_preferred_leader_is_the_first_assigned_or_nobody(isr, live, expected):
    assert elect_preferred(ASSIGNMENT, isr, live) == expected


@pytest.mark.case("kafka-118")
@pytest.mark.parametrize(
    ("isr", "down", "expected"),
    [((2, 4), {2}, Election(4, (4,))), ((2,), {2}, None), ((2, 4), {2, 4}, None)],
)
def test_a_controlled_shutdown_moves_the_leader_to_who_stays(isr, down, expected):
    assert elect_offline(ASSIGNMENT, isr, {2, 4} - down) == expected
