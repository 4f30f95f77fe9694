"""The membership of a group, step by step: Kafka's rules of join, sync and leave as pure functions."""

from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.groups.group_rebalance import drop_absent, join, leave, select_protocol, sync
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase

pytestmark = pytest.mark.case("consumer-join-sync-leave-leader-follower")

EMPTY = GroupMetadata()
PREPARING, COMPLETING, STABLE = (
    GroupPhase.PREPARING_REBALANCE,
    GroupPhase.COMPLETING_REBALANCE,
    GroupPhase.STABLE,
)


def member(name, instance="", protocols=("range",), subscription=b"s", session_ms=45_000):
    pairs = tuple((protocol, subscription) for protocol in protocols)
    return GroupMember(name, instance, "app", session_ms, 300_000, True, pairs)


def stable(*members):
    group = EMPTY
    for joiner in members:
        group = join(group, joiner, 1)
    for joiner in members:
        if group.phase is PREPARING:
            group = join(group, joiner, 2)
    given = {group_member.member_id: b"a" + group_member.member_id.encode() for group_member in members}
    return sync(group, group.leader, group.generation, given, 3)


def code_of(act):
    with pytest.raises(ReplogError) as refused:
        act()
    return refused.value.code


def test_the_first_member_leads_a_first_generation_at_once():
    group = join(EMPTY, member("m1"), 7)
    assert (group.phase, group.generation, group.leader, group.protocol) == (COMPLETING, 1, "m1", "range")
    done = sync(group, "m1", 1, {"m1": b"all"}, 8)
    assert (done.phase, done.member("m1").assignment) == (STABLE, b"all")


def test_a_second_member_waits_until_the_first_has_joined_again():
    group = join(stable(member("m1")), member("m2"), 5)
    assert (group.phase, group.generation) == (PREPARING, 1)
    assert [group_member.is_joined for group_member in group.members] == [False, True]
    group = join(group, member("m1"), 6)
    assert (group.phase, group.generation, group.leader) == (COMPLETING, 2, "m1")
    assert all(group_member.assignment == b"" for group_member in group.members)


def test_a_follower_that_joins_again_unchanged_causes_no_rebalance_and_a_leader_does():
    group = stable(member("m1"), member("m2"))
    follower = "m2" if group.leader == "m1" else "m1"
    assert join(group, member(follower), 9) == group
    assert join(group, member(group.leader), 9).phase is PREPARING


def test_a_changed_subscription_causes_a_rebalance():
    group = stable(member("m1"), member("m2"))
    follower = "m2" if group.leader == "m1" else "m1"
    assert join(group, member(follower, subscription=b"other"), 9).phase is PREPARING


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance():
    group = stable(member("m1", "till-1"), member("m2", "till-2"))
    again = join(group, member("m9", "till-2"), 9)
    assert (again.phase, again.generation) == (STABLE, group.generation)
    assert again.member("m2") is None
    assert again.member("m9").assignment == group.member("m2").assignment
    lead = join(group, member("m8", "till-1"), 9)
    assert (lead.phase, lead.leader) == (STABLE, "m8")


def test_a_static_member_with_another_subscription_does_cause_one():
    group = stable(member("m1", "till-1"), member("m2", "till-2"))
    assert join(group, member("m9", "till-2", subscription=b"other"), 9).phase is PREPARING


def test_a_static_member_that_comes_back_while_assignments_are_awaited_begins_anew():
    """Who assigns has the former process in its list, so what it gives would reach no member."""
    group = join(
        join(stable(member("m1", "till-1"), member("m2", "till-2")), member("m3"), 5), member("m1", "till-1"), 6
    )
    group = join(group, member("m2", "till-2"), 7)
    assert group.phase is COMPLETING
    assert join(group, member("m2", "till-2"), 8) == group
    again = join(group, member("m9", "till-2"), 8)
    assert (again.phase, [participant.is_joined for participant in again.members]) == (PREPARING, [False, True, False])


def test_an_instance_that_another_member_holds_is_fenced():
    group = stable(member("m1", "till-1"), member("m2", "till-2"))
    assert code_of(lambda: join(group, member("m1", "till-2"), 9)) is ErrorCode.FENCED_INSTANCE_ID


def test_the_last_to_leave_leaves_an_empty_group_of_a_new_generation():
    group = leave(stable(member("m1"), member("m2")), {"m1"}, 8)
    assert (group.phase, [group_member.member_id for group_member in group.members]) == (PREPARING, ["m2"])
    group = join(group, member("m2"), 9)
    empty = leave(group, {"m2"}, 10)
    assert (empty.phase, empty.generation, empty.leader, empty.protocol, empty.since_ms) == (
        GroupPhase.EMPTY,
        group.generation + 1,
        "",
        "",
        10,
    )
    assert leave(empty, {"m2"}, 11) == empty


def test_a_rebalance_ends_without_those_that_did_not_join_save_static_ones():
    group = stable(member("m1"), member("m2"), member("m3", "till-3"))
    group = join(group, member("m4"), 9)
    group = join(group, member("m2"), 9)
    ended = drop_absent(group, 10)
    assert (ended.phase, [group_member.member_id for group_member in ended.members]) == (COMPLETING, ["m2", "m3", "m4"])
    assert ended.leader == "m2"
    assert drop_absent(ended, 11) == ended


def test_leaving_while_a_rebalance_waits_can_complete_it():
    group = join(stable(member("m1")), member("m2"), 5)
    assert leave(group, {"m1"}, 6).phase is COMPLETING


@pytest.mark.parametrize(
    ("who", "generation", "code"),
    [
        ("m9", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 1, ErrorCode.ILLEGAL_GENERATION),
        ("m1", 3, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_assignments_of_a_stranger_or_of_another_generation_are_refused(who, generation, code):
    group = join(join(stable(member("m1")), member("m2"), 5), member("m1"), 6)
    assert group.generation == 2
    assert code_of(lambda: sync(group, who, generation, {}, 7)) is code


def test_only_the_leader_assigns_and_only_while_it_is_awaited():
    group = join(join(stable(member("m1")), member("m2"), 5), member("m1"), 6)
    assert sync(group, "m2", 2, {"m2": b"mine"}, 7) == group
    done = sync(group, "m1", 2, {"m1": b"a", "m2": b"b"}, 7)
    assert sync(done, "m1", 2, {"m1": b"other"}, 8) == done
    waiting = join(done, member("m3"), 9)
    assert code_of(lambda: sync(waiting, "m1", 2, {}, 9)) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_times_out_of_range_are_refused(session_ms):
    assert code_of(lambda: join(EMPTY, member("m1", session_ms=session_ms), 1)) is ErrorCode.INVALID_SESSION_TIMEOUT


def test_members_without_an_assignor_in_common_are_refused():
    group = stable(member("m1", protocols=("range", "sticky")))
    alien = member("m2", protocols=("roundrobin",))
    assert code_of(lambda: join(group, alien, 5)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(lambda: join(EMPTY, member("m1", protocols=()), 5)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky",)], "sticky"),
        ([("range", "sticky"), ("sticky", "range")], "range"),
        ([("range", "sticky", "roundrobin"), ("roundrobin", "sticky")], "sticky"),
    ],
)
def test_the_assignor_most_prefer_among_those_all_know(protocols, chosen):
    voters = [member(f"m{number}", protocols=names) for number, names in enumerate(protocols)]
    assert select_protocol(voters) == chosen
