"""A group as people look at it: its lag by offsets and by time, on a log that was trimmed, deleted, made again."""

from __future__ import annotations

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.groups.group_admin import describe_group, describe_groups
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_rebalance import GroupSubscription, encode_subscription
from spark_replog.log.codec.group_records import GroupMember, OffsetAndMetadata
from tests.unit.client.consumer_setup import P0, rows


@pytest.fixture
def groups(store):
    store.create("orders")
    store.write("orders", rows(3))
    store.clock.advance(60_000)
    store.write("orders", rows(2, 3))
    return GroupCoordinator(store.cluster)


def lag_of(store, groups, committed):
    groups.commit_offsets("g", {P0: OffsetAndMetadata(committed)})
    (partition,) = describe_group(store.cluster, groups, "g").partitions
    return partition.lag


def test_lag_is_counted_from_the_commit_and_timed_by_the_first_record_that_waits(store, groups):
    store.clock.advance(5_000)
    late, early, first = (lag_of(store, groups, committed) for committed in (3, 2, 0))
    assert (late.lag, early.lag, first.lag) == (2, 3, 5)
    assert late.lag_ms >= 5_000
    assert early.lag_ms - late.lag_ms >= 60_000  # asked after it, and written a minute before
    assert first.lag_ms >= early.lag_ms
    assert [(lag.lag, lag.lag_ms) for lag in (lag_of(store, groups, 5), lag_of(store, groups, 9))] == [(0, 0)] * 2


def test_a_commit_below_the_log_start_is_timed_by_the_first_record_that_is_left(store, groups):
    Controller(store.cluster).delete_records("orders", {0: 4})
    store.clock.advance(5_000)
    lag = lag_of(store, groups, 1)
    assert (lag.log_start_offset, lag.high_watermark, lag.lag) == (4, 5, 4)
    assert lag.lag_ms >= 5_000


def test_a_topic_that_is_gone_has_no_lag_and_one_made_again_no_commit(store, groups):
    lag_of(store, groups, 1)
    Controller(store.cluster).delete_topic("orders")
    (gone,) = describe_group(store.cluster, groups, "g").partitions
    assert (gone.position, gone.lag) == (1, None)
    store.create("orders")
    store.write("orders", rows(2))
    (again,) = describe_group(store.cluster, groups, "g").partitions
    assert (again.position, again.lag.high_watermark, again.lag.lag) == (None, 2, None)


def test_a_member_whose_assignment_cannot_be_read_hides_neither_offsets_nor_other_groups(store, groups, caplog):
    lag_of(store, groups, 1)
    subscription = encode_subscription(GroupSubscription(("orders",)))
    who = GroupMember("m", "", "app", 45_000, 300_000, True, (("range", subscription),))
    groups.join_group("h", who)
    groups.sync_group("h", MemberIdentity("m", "", 1), {"m": b"of a newer release"})
    descriptions = describe_groups(store.cluster, groups, groups.groups())
    assert [(group.name, len(group.partitions)) for group in descriptions] == [("g", 1), ("h", 0)]
    assert "cannot be read" in caplog.text
