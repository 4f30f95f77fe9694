"""Which offsets have outlived their use, to the millisecond. Source: ``OffsetExpirationConditionImpl``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog import TopicPartition
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.groups.group_coordinator import EXPIRY_CHECK_INTERVAL_MS, GroupCoordinator
from spark_replog.groups.group_rebalance import GroupSubscription, encode_subscription, expired_records
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord, OffsetAndMetadata
from spark_replog.log.fold.group_state import GroupState
from tests.unit.client.consumer_setup import ManualClock
from tests.unit.client.consumer_setup import Store as ClientStore

P0 = TopicPartition("orders", 0)
DAY_MS = 86_400_000
RETENTION_MS = 1_000
TOPICS = {"orders": "id-1", "clicks": "id-2"}


def expired(state, now_ms):
    return [
        "group" if isinstance(record, GroupRecord) else record.topic
        for record in expired_records(state, state.offsets, TOPICS, now_ms, RETENTION_MS)
    ]


def simple(**more):
    value = replace(OffsetAndMetadata(5), topic_id="id-1", commit_time_ms=500, **more)
    return GroupState("g", offsets={("orders", 0): value})


@pytest.mark.parametrize(("now_ms", "gone"), [(1_499, []), (1_500, ["orders", "group"])])
def test_an_offset_goes_when_its_time_is_over_and_the_group_with_its_last_one(now_ms, gone):
    assert expired(simple(), now_ms) == gone


@pytest.mark.parametrize(("now_ms", "gone"), [(699, []), (700, ["orders", "group"])])
def test_a_time_of_its_own_wins(now_ms, gone):
    assert expired(simple(expire_time_ms=700), now_ms) == gone


@pytest.mark.parametrize(
    ("phase", "gone"),
    [
        (GroupPhase.STABLE, ["clicks"]),
        (GroupPhase.PREPARING_REBALANCE, []),
        (GroupPhase.COMPLETING_REBALANCE, []),
    ],
)
def test_a_rebalance_keeps_what_members_did_not_subscribe_to(phase, gone):
    subscription = encode_subscription(GroupSubscription(("orders",)))
    who = GroupMember("m", "", "app", 45_000, 300_000, True, (("range", subscription),))
    metadata = GroupMetadata(protocol_type="consumer", members=(who,), phase=phase)
    offsets = {
        (topic, 0): replace(OffsetAndMetadata(5), topic_id=topic_id, commit_time_ms=0)
        for topic, topic_id in TOPICS.items()
    }
    assert expired(GroupState("g", metadata, offsets), 10_000) == gone


def test_an_empty_group_without_offsets_goes_and_one_with_members_stays():
    assert expired(GroupState("g"), 0) == ["group"]
    who = GroupMember("m", "", "app", 45_000, 300_000, True, (("range", encode_subscription(GroupSubscription(()))),))
    busy = GroupMetadata(protocol_type="consumer", members=(who,), phase=GroupPhase.STABLE)
    assert expired(GroupState("g", busy), 0) == []


@pytest.fixture
def orders(store):
    store.create("orders", 2)
    return store


def process(store, days_ahead=0.0):
    """Return a process's coordinator, whose clock is wrong by some days."""
    clock = ManualClock()
    clock.added_ms, clock.wrong_ms = store.clock.added_ms, int(days_ahead * DAY_MS)
    return GroupCoordinator(ClientStore(store.path, clock).cluster)


def groups_left(store):
    return {state.group for state in process(store).groups() if state.offsets}


def commit_as(groups, *names):
    for name in names:
        groups.commit_offsets(name, {P0: OffsetAndMetadata(5)})


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("own_groups", [["fast"], ["fast", "fast too"]])
def test_one_process_with_a_clock_eight_days_ahead_deletes_no_offset_of_others(orders, own_groups, restarts):
    commit_as(process(orders), "a")
    commit_as(process(orders), "b")
    for _ in range(restarts):
        fast = process(orders, days_ahead=8)
        commit_as(fast, *own_groups)
        assert fast.expire_offsets() == 0
    assert groups_left(orders) == {"a", "b", *own_groups}
    assert process(orders).expire_offsets() == 0


def test_offsets_of_a_process_with_a_clock_eight_days_behind_are_kept(orders):
    for name in ("a", "b"):
        commit_as(process(orders), name)
    commit_as(process(orders, days_ahead=-8), "slow")
    right = process(orders)
    commit_as(right, "a")
    assert right.expire_offsets() == 0
    assert groups_left(orders) == {"a", "b", "slow"}


def test_offsets_expire_when_two_groups_agree_on_the_time(orders):
    commit_as(process(orders), "old")
    orders.clock.advance(8 * DAY_MS)
    commit_as(process(orders), "a")
    alone = process(orders)
    commit_as(alone, "a")
    assert alone.expire_offsets() == 0
    commit_as(process(orders), "b")
    assert alone.expire_offsets() == 1
    assert groups_left(orders) == {"a", "b"}


def test_a_group_that_cannot_be_read_stops_neither_commits_nor_expiry(orders, caplog):
    broken = GroupMember("m", "", "app", 45_000, 300_000, True, (("range", b"of a newer release"),))
    GroupCoordinator(orders.cluster).join_group("broken", broken)
    commit_as(process(orders), "old")
    orders.clock.advance(8 * DAY_MS)
    commit_as(process(orders), "a")
    groups = GroupCoordinator(orders.another_process().cluster)
    orders.clock.advance(EXPIRY_CHECK_INTERVAL_MS)
    assert groups.commit_offsets("b", {P0: OffsetAndMetadata(6)}) == {P0: None}
    assert "cannot be read" in caplog.text
    assert groups_left(orders) == {"a", "b"}


def test_a_commit_is_decided_although_the_expiry_after_it_fails(orders, caplog, monkeypatch):
    groups = GroupCoordinator(orders.cluster)
    orders.clock.advance(EXPIRY_CHECK_INTERVAL_MS)

    def fail():
        raise RetriableError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no majority")

    monkeypatch.setattr(groups, "expire_offsets", fail)
    assert groups.commit_offsets("b", {P0: OffsetAndMetadata(6)}) == {P0: None}
    assert "no majority" in caplog.text
