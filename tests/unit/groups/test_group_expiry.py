"""Which offsets have outlived their use, to the millisecond. Source: ``OffsetExpirationConditionImpl``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_replog.groups.group_expiry import expired_records
from spark_replog.groups.group_subscription import GroupSubscription, encode_subscription
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord, OffsetAndMetadata
from spark_replog.log.fold.group_state import GroupState

RETENTION_MS = 1_000
TOPICS = {"orders": "id-1", "clicks": "id-2"}


def expired(state, now_ms):
    return [
        "group" if isinstance(each, GroupRecord) else each.topic
        for each in expired_records(state, state.offsets, TOPICS, now_ms, RETENTION_MS)
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
