"""Cases of consumer groups: joins, fencing, generations, heartbeats, offsets, and what administrators may delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest

from tests.group_member import Member
from tests.protocol.case_run import CaseRun, case
from tests.waiting import wait_until

REBALANCE = 27
ONE, TWO = b"\0\1one", b"\0\1two"


def joined(run: CaseRun, step: str, answer: Any, *, names: Mapping[str, str] | None = None) -> None:
    """Note the answer of a join; `names`: member ids -> how the case calls them."""
    if answer.error_code:
        run.note(step, answer.error_code)
        return
    names = {answer.member_id: "itself", **(names or {})}
    members = sorted(names.get(item.member_id, "?") for item in answer.members)
    run.note(
        step, 0, generation=answer.generation_id, leader=names.get(answer.leader, "?"), assignor=answer.protocol_name,
        members=members, skips=answer.skip_assignment,
    )  # fmt: skip


def synced(run: CaseRun, step: str, answer: Any) -> None:
    run.note(step, answer.error_code, assignment=answer.assignment)


def coded(run: CaseRun, codes: Mapping[str, int]) -> None:
    """Note steps that answer nothing but a code."""
    for step, code in codes.items():
        run.note(step, code)


def left(run: CaseRun, step: str, answer: Any) -> None:
    run.note(step, answer.error_code, members=[item.error_code for item in answer.members])


def alone(run: CaseRun, **more: Any) -> Member:
    """Return the only member of a stable group."""
    member = run.member(**more)
    assert member.join().error_code == 0
    assert member.sync((member, ONE)).error_code == 0
    return member


def add(first: Member, second: Member) -> tuple[Any, Any]:
    """Have a second member join a stable group; return the answers of both joins."""
    second.ask_to_join()
    if second.instance_id is None:
        second.joined()
        second.ask_to_join()
    wait_until(lambda: first.beat() == REBALANCE)
    first.ask_to_join()
    return first.joined(), second.joined()


def pair(run: CaseRun, **more: Any) -> tuple[Member, Member]:
    """Return leader and follower of a stable group."""
    first, second = alone(run, **more), run.member()
    add(first, second)
    second.ask_to_sync()
    assert first.sync((first, ONE), (second, TWO)).assignment == ONE
    assert second.client.receive().assignment == TWO
    return first, second


@case
def joins_of_new_members(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first = run.member()
    first.ask_to_join()
    answer = first.joined()
    run.note("first, without an id", answer.error_code, has_id=bool(answer.member_id), generation=answer.generation_id)
    first.ask_to_join()
    joined(run, "first, with the id", first.joined())
    joined(run, "an id that nobody gave", run.member(member_id="made-up").join())
    older = run.member(group=f"{run.group}-older", version=3)
    older.ask_to_join()
    joined(run, "an older client", older.joined())


@case
def joins_that_are_refused(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    alone(run)
    joined(run, "no group", run.member(group="").join())
    joined(run, "another type", run.member().join(kind="connect"))
    joined(run, "no common assignor", run.member().join(assignors=("roundrobin",)))
    refused: dict[str, dict[str, Any]] = {
        "session timeout too short": {"session_ms": 100},
        "session timeout too long": {"session_ms": 24 * 3_600_000},
        "no type": {"kind": ""},
        "no assignor": {"assignors": ()},
    }
    for number, (step, how) in enumerate(refused.items()):
        joined(run, step, run.member(group=f"{run.group}-{number}").join(**how))


@case
def a_rebalance(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first, second = alone(run), run.member()
    answer, other = add(first, second)
    names = {first.member_id: "first", second.member_id: "second"}
    joined(run, "leader", answer, names=names)
    joined(run, "follower", other, names=names)
    coded(run, {"heartbeat before the assignment": second.beat(), "commit before the assignment": second.commit(1)})
    second.ask_to_sync()
    synced(run, "leader assigns", first.sync((first, ONE), (second, TWO)))
    synced(run, "follower waits for it", second.client.receive())
    synced(run, "follower asks again", second.sync())
    synced(run, "follower assigns", second.sync((first, TWO), (second, TWO)))
    synced(run, "leader asks again", first.sync())
    joined(run, "follower joins again unchanged", second.join(), names=names)
    coded(run, {"leader's heartbeat": first.beat(), "commit": second.commit(7)})


@case
def a_member_whose_assignment_is_left_out(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first, second = alone(run), run.member()
    add(first, second)
    second.ask_to_sync()
    synced(run, "leader", first.sync((first, ONE)))
    synced(run, "the other one", second.client.receive())


@case
def generations_and_members(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    _, second = pair(run)
    for name, generation in (("an older", 1), ("a later", 3), ("no", -1)):
        other = replace(second, generation=generation)
        coded(run, {f"heartbeat, {name} generation": other.beat(), f"commit, {name} generation": other.commit(8)})
        synced(run, f"sync, {name} generation", other.sync())
    nobody = replace(second, member_id="gone")
    coded(run, {"heartbeat, unknown member": nobody.beat(), "commit, unknown member": nobody.commit(8)})
    synced(run, "sync, unknown member", nobody.sync())
    none = replace(second, group=f"{run.group}-none")
    coded(run, {"heartbeat, unknown group": none.beat(), "commit, unknown group": none.commit(8)})
    synced(run, "sync, unknown group", none.sync())
    synced(run, "sync, another assignor", replace(second, assignor="roundrobin").sync())
    synced(run, "sync, no assignor", replace(second, assignor=None).sync())
    synced(run, "sync, another type", replace(second, kind="connect").sync())
    synced(run, "sync, the same assignor", second.sync())
    empty = replace(second, group="")
    coded(run, {"heartbeat, no group": empty.beat(), "commit, no group": empty.commit(8)})
    synced(run, "sync, no group", empty.sync())


@case
def states_of_a_group(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first, second = pair(run)
    left(run, "the leader leaves", first.leave())
    coded(run, {"heartbeat in a rebalance": second.beat(), "commit in a rebalance": second.commit(9)})
    synced(run, "sync in a rebalance", second.sync())
    names = {second.member_id: "second"}
    joined(run, "the other one joins again", second.join(), names=names)
    coded(run, {"heartbeat before the assignment": second.beat(), "commit before the assignment": second.commit(10)})
    synced(run, "sync", second.sync((second, TWO)))
    coded(run, {"heartbeat when stable": second.beat(), "commit when stable": second.commit(11)})
    stranger = run.member()
    coded(run, {"commit of no member in a group of members": stranger.commit(12)})
    left(run, "the last one leaves", second.leave())
    coded(run, {"heartbeat in an empty group": second.beat(), "commit of a member that left": second.commit(13)})
    synced(run, "sync in an empty group", second.sync())
    coded(run, {"commit of no member in an empty group": stranger.commit(14)})
    again = run.member()
    joined(run, "a member of an empty group", again.join())


@case
def static_members(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first = run.member(instance_id="till-1")
    first.ask_to_join()
    joined(run, "first", first.joined())
    synced(run, "its assignment", first.sync((first, ONE)))
    second = run.member()
    answer, _ = add(first, second)
    names = {first.member_id: "first", second.member_id: "second"}
    joined(run, "with another one", answer, names=names)
    second.ask_to_sync()
    synced(run, "its next assignment", first.sync((first, ONE), (second, TWO)))
    second.client.receive()
    again = run.member(instance_id="till-1")
    again.ask_to_join()
    joined(run, "the same instance again", again.joined(), names=names)
    synced(run, "it keeps the assignment", again.sync())
    coded(run, {"old heartbeat": first.beat(), "old commit": first.commit(3)})
    synced(run, "old sync", first.sync())
    first.ask_to_join()
    joined(run, "old join", first.joined())
    left(run, "old leave", first.leave())
    coded(run, {"the other one's heartbeat": second.beat()})
    stranger = run.member(instance_id="till-2", member_id=second.member_id)
    coded(run, {"an instance that nobody knows": replace(stranger, generation=2).beat()})
    stranger.ask_to_join()
    joined(run, "join of an instance that nobody knows", stranger.joined())
    left(run, "leave by instance", replace(again, member_id="").leave())
    left(run, "leave by an instance that is gone", replace(again, member_id="").leave())


@case
def who_may_leave(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first, second = pair(run)
    left(run, "a stranger", replace(first, member_id="gone").leave())
    left(run, "an unknown group", replace(first, group=f"{run.group}-none").leave())
    left(run, "no group", replace(first, group="").leave())
    who = [LeaveGroupRequest.MemberIdentity(member_id=name) for name in (second.member_id, "gone")]
    left(run, "two at once", first.client.ask(LeaveGroupRequest(group_id=run.group, members=who), 5))
    older = LeaveGroupRequest(group_id=run.group, member_id=first.member_id)
    coded(run, {"an older client": first.client.ask(older, 2).error_code})
    coded(run, {"an older client again": first.client.ask(older, 2).error_code})


@case
def a_group_of_another_protocol(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    worker = run.member()
    answer = worker.join(kind="connect", data=b"any bytes", assignors=("eager", "compatible"))
    joined(run, "a worker", answer)
    run.note("what it said", 0, data=answer.members[0].metadata, type=answer.protocol_type)
    synced(run, "its assignment", worker.sync((worker, b"\xff\xfe")))


@case
def which_assignor_is_taken(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()
    first, second = run.member(), run.member()
    first.join(assignors=("range", "roundrobin"))
    first.sync((first, ONE))
    for _ in range(2):  # the first time for an id
        second.ask_to_join(assignors=("roundrobin", "sticky"))
        if not second.member_id:
            second.joined()
    wait_until(lambda: first.beat() == REBALANCE)
    first.ask_to_join(assignors=("range", "roundrobin"))
    names = {first.member_id: "first", second.member_id: "second"}
    joined(run, "leader", first.joined(), names=names)
    joined(run, "follower", second.joined(), names=names)


def fetched(run: CaseRun, step: str, member: Member, version: int = 9) -> None:
    """Note the offsets of a member's group; of an older client those of two partitions."""
    code, offsets = member.offsets(version)
    run.note(step, code, offsets=sorted((number, *told) for (_, number), told in offsets.items()))


@case
def offsets_of_a_group(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    run.find_coordinator()
    nobody = run.member()
    fetched(run, "none yet", nobody)
    fetched(run, "none yet, by partition", nobody, 7)
    coded(run, {"with a text": nobody.commit(5, "where I was"), "without": nobody.commit(6, None, partition=1)})
    fetched(run, "all", nobody)
    fetched(run, "all, by partition", nobody, 7)
    coded(
        run,
        {
            "text too long": nobody.commit(7, "x" * 5_000),
            "unknown topic": nobody.commit(7, topic="none"),
            "unknown partition": nobody.commit(7, partition=9),
            "no topic name": nobody.commit(7, topic="no/name"),
            "negative offset": nobody.commit(-7),
            "offset -1": nobody.commit(-1),
            "a generation without a member": replace(nobody, generation=3).commit(8),
            "a member of no group": replace(nobody, member_id="gone").commit(8),
            "a member and a generation of no group": replace(nobody, member_id="gone", generation=1).commit(8),
        },
    )
    fetched(run, "afterwards", nobody, 7)
    fetched(run, "no group", replace(nobody, group=""), 7)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    groups = [group(group_id=name, topics=None, member_epoch=-1) for name in (run.group, f"{run.group}-none")]
    answer = nobody.client.ask(OffsetFetchRequest(groups=groups, require_stable=True), 9)
    run.note("two groups", 0, codes=[(item.error_code, len(item.topics)) for item in answer.groups])


@case
def deletion_of_groups(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()

    def deleted(step: str, *groups: str) -> None:
        answer = member.client.ask(DeleteGroupsRequest(groups_names=list(groups)), 2)
        codes = {item.group_id: item.error_code for item in answer.results}
        for number, name in enumerate(groups):
            run.note(f"{step}, {number}", codes[name])

    member = alone(run)
    member.commit(5)
    deleted("one with members and one that is not there", run.group, f"{run.group}-none")
    member.leave()
    fetched(run, "offsets before", member, 7)
    deleted("empty", run.group)
    deleted("again", run.group)
    fetched(run, "offsets after", member, 7)
    simple = run.member(group=f"{run.group}-simple")
    simple.commit(5)
    deleted("offsets without members", simple.group)
    deleted("no name", "")


@case
def deletion_of_offsets(run: CaseRun) -> None:
    run.create_topic(partitions=2)
    run.find_coordinator()

    def deleted(step: str, group: str, topic: str, partition: int = 0) -> None:
        of_topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        part = of_topic.OffsetDeleteRequestPartition(partition_index=partition)
        request = OffsetDeleteRequest(group_id=group, topics=[of_topic(name=topic, partitions=[part])])
        answer = member.client.ask(request, 0)
        run.note(
            step, answer.error_code, partitions=[item.error_code for top in answer.topics for item in top.partitions]
        )

    member = alone(run)
    member.commit(5)
    deleted("a subscribed topic", run.group, run.topic)
    deleted("a topic that is not subscribed", run.group, "none")
    deleted("an unknown group", f"{run.group}-none", run.topic)
    deleted("no group", "", run.topic)
    member.leave()
    deleted("of an empty group", run.group, run.topic)
    deleted("an offset that is not there", run.group, run.topic, 1)
    deleted("an unknown partition", run.group, run.topic, 9)
    fetched(run, "afterwards", member, 7)
    simple = run.member(group=f"{run.group}-simple")
    simple.commit(5)
    deleted("of a group without members", simple.group, run.topic)
    fetched(run, "afterwards, without members", simple, 7)


@case
def groups_as_administrators_see_them(run: CaseRun) -> None:
    run.create_topic()
    run.find_coordinator()

    def described(step: str, group: str, version: int = 5) -> None:
        request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
        (item,) = member.client.ask(request, version).groups
        told = {"state": item.group_state, "type": item.protocol_type, "assignor": item.protocol_data}
        run.note(step, item.error_code, **told, assignments=[one.member_assignment for one in item.members])

    def listed(step: str, state: str) -> None:
        answer = member.client.ask(ListGroupsRequest(states_filter=[state], types_filter=[]), 5)
        here = [(item.protocol_type, item.group_state) for item in answer.groups if item.group_id == run.group]
        run.note(step, answer.error_code, here=here)

    member = run.member()
    described("unknown", run.group)
    described("unknown, newest version", run.group, 6)
    member.join()
    member.sync((member, ONE))
    described("stable", run.group)
    for state in ("Stable", "Empty"):
        listed(f"stable, asked for {state}", state)
    member.leave()
    described("empty", run.group)
    listed("empty, asked for Empty", "Empty")
    simple = run.member(group=f"{run.group}-simple")
    simple.commit(5)
    described("offsets without members", simple.group)


@case
def coordinators(run: CaseRun) -> None:
    run.find_coordinator()

    def found(step: str, *keys: str, kind: int = 0) -> None:
        answer = run.client.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys)), 4)
        told = [(item.error_code, item.node_id >= 0, item.port > 0) for item in answer.coordinators]
        run.note(step, 0, coordinators=told)

    found("a group", run.group)
    found("two groups", run.group, "other")
    found("no name", "")
    found("unknown kind", run.group, kind=7)
    beat = HeartbeatRequest(group_id=run.group, generation_id=0, member_id="")
    coded(run, {"heartbeat of no member": run.client.ask(beat, 3).error_code})
