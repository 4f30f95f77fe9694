"""Groups at the gateway: Kafka's classic protocol, its codes, what other gateways see, and what idle members cost."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_replog.gateway import member_host
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import TopicPartition
from tests.gateways import RunningGateway
from tests.group_member import ID_REQUIRED, SESSION_MS, Member, subscription
from tests.unit.client.consumer_setup import Store
from tests.waiting import wait_until

UNKNOWN_TOPIC, METADATA_TOO_LARGE, ILLEGAL_GENERATION, INCONSISTENT, INVALID_GROUP = 3, 12, 22, 23, 24
UNKNOWN_MEMBER, INVALID_TIMEOUT, REBALANCE, NON_EMPTY, NOT_FOUND, FENCED = 25, 26, 27, 68, 69, 82
NOT_AVAILABLE, INVALID_TOPIC, INVALID_REQUEST, SUBSCRIBED, UNKNOWN_TOPIC_ID = 15, 17, 42, 86, 100
WANTS = subscription("orders")


@pytest.fixture
def store(request):
    made = Store.init(f"memory://{request.node.name}")
    made.create("orders", 2)
    return made


@pytest.fixture
def gateway(store):
    with RunningGateway(store.cluster) as running:
        yield running


@pytest.fixture
def connect(gateway):
    with ExitStack() as stack:
        yield lambda at=gateway, **more: Member(stack.enter_context(at.client()), **more)


def stable_pair(connect, **more: Any) -> tuple[Member, Member]:
    """Return leader and follower of a stable group."""
    first, second = connect(**more), connect()
    assert first.join().leader == first.member_id
    assert first.sync((first, b"\0\0")).assignment == b"\0\0"
    second.ask_to_join()
    second.joined()
    second.ask_to_join()
    wait_until(lambda: first.beat() == REBALANCE)
    first.ask_to_join()
    answer, other = first.joined(), second.joined()
    assert (answer.leader, other.leader) == (first.member_id, first.member_id)
    assert sorted(item.member_id for item in answer.members) == sorted([first.member_id, second.member_id])
    assert other.members == []
    second.ask_to_sync()
    assert first.sync((first, b"\0\1one"), (second, b"\0\1two")).assignment == b"\0\1one"
    assert second.client.receive().assignment == b"\0\1two"
    return first, second


def test_a_member_id_is_given_first_and_must_be_known(connect):
    member = connect()
    member.ask_to_join()
    assert member.joined().error_code == ID_REQUIRED
    stranger = connect(member_id="app-made-up")
    assert stranger.join().error_code == UNKNOWN_MEMBER
    assert member.join().generation_id == 1
    older = connect(group="h", version=3)
    assert (older.join().generation_id, older.member_id != "") == (1, True)


def test_members_share_a_group_and_late_ones_are_told(connect):
    first, second = stable_pair(connect)
    assert first.generation == second.generation == 2
    assert (first.beat(), second.beat(), second.commit(7)) == (0, 0, 0)
    old = replace(second, generation=1)
    assert (old.beat(), old.commit(8), old.sync().error_code) == (ILLEGAL_GENERATION,) * 3
    nobody = replace(second, member_id="gone")
    assert (nobody.beat(), nobody.commit(8), nobody.sync().error_code) == (UNKNOWN_MEMBER,) * 3
    assert first.leave().members[0].error_code == 0
    assert second.beat() == REBALANCE
    assert second.commit(9) == 0, "a member of the last generation may commit before it joins again"
    assert second.sync().error_code == REBALANCE
    assert second.join().leader == second.member_id
    assert second.commit(10) == REBALANCE, "until the leader has assigned"
    assert first.leave().members[0].error_code == UNKNOWN_MEMBER
    assert second.offsets()[1] == {("orders", 0): (9, "")}


def test_a_follower_that_joins_again_unchanged_disturbs_nobody(connect):
    first, second = stable_pair(connect)
    assert second.join().generation_id == 2
    assert second.sync().assignment == b"\0\1two"
    assert first.beat() == 0


def test_a_static_member_takes_its_place_and_the_old_process_is_fenced(connect):
    first, second = stable_pair(connect, instance_id="till-1")
    again = connect(instance_id="till-1")
    answer = again.join()
    assert (answer.generation_id, answer.skip_assignment, answer.leader) == (2, True, again.member_id)
    assert len(answer.members) == 2
    assert again.sync().assignment == b"\0\1one"
    assert (first.beat(), first.commit(3), first.sync().error_code) == (FENCED,) * 3
    first.ask_to_join()
    assert first.joined().error_code == FENCED
    assert second.beat() == 0
    older = connect(instance_id="till-1", version=7)
    answer = older.join()
    assert answer.leader == again.member_id, "else it would assign in a group that is stable"
    assert older.sync().assignment == b"\0\1one"


def test_refused_joins_say_why(connect):
    first = connect()
    first.join()
    assert connect(group="").join().error_code == INVALID_GROUP
    assert connect(group="other").join(session_ms=100).error_code == INVALID_TIMEOUT
    assert connect().join(kind="connect").error_code == INCONSISTENT
    assert connect().join(data=b"\0\1no subscription").error_code == INCONSISTENT


def test_bytes_of_other_protocols_go_through_as_they_are(store, connect):
    worker = connect(group="workers")
    answer = worker.join(kind="connect", data=b"any bytes")
    assert (answer.protocol_type, answer.members[0].metadata) == ("connect", b"any bytes")
    assert worker.sync((worker, b"\xff\xfe")).assignment == b"\xff\xfe"
    assert GroupCoordinator(store.cluster).expire_offsets() == 0
    described = worker.client.ask(DescribeGroupsRequest(groups=["workers"], include_authorized_operations=False), 5)
    assert described.groups[0].members[0].member_assignment == b"\xff\xfe"


def test_offsets_come_back_as_they_were_committed(store, connect):
    alone = connect()
    assert alone.offsets(1)[1] == {("orders", 0): (-1, ""), ("orders", 1): (-1, "")}
    assert (alone.commit(5, "where I was"), alone.commit(6, None, partition=1)) == (0, 0)
    assert alone.offsets(9) == alone.offsets(7) == (0, {("orders", 0): (5, "where I was"), ("orders", 1): (6, "")})
    assert alone.commit(7, "x" * 5000) == METADATA_TOO_LARGE
    assert (alone.commit(7, topic="nowhere"), alone.commit(7, partition=9)) == (UNKNOWN_TOPIC, UNKNOWN_TOPIC)
    assert (alone.commit(7, topic="no/name"), alone.commit(-7)) == (INVALID_TOPIC, INVALID_REQUEST)
    committed = GroupCoordinator(store.another_process().cluster).fetch_offsets("g")
    assert committed[TopicPartition("orders", 0)].metadata == "where I was"
    assert committed[TopicPartition("orders", 0)].topic_id, "so that offsets of a topic made again count as none"
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = topic.OffsetDeleteRequestPartition(partition_index=1)
    request = OffsetDeleteRequest(group_id="g", topics=[topic(name="orders", partitions=[part])])
    assert alone.client.ask(request, 0).topics[0].partitions[0].error_code == 0
    assert alone.offsets()[1] == {("orders", 0): (5, "where I was")}
    member = connect()
    member.join()
    assert alone.client.ask(request, 0).topics[0].partitions[0].error_code == SUBSCRIBED


def test_offsets_are_committed_and_fetched_by_topic_id(store, connect):
    topic_id, other_id = UUID(hex=store.cluster.lookup("orders").topic_id), UUID(int=7)
    client = connect().client
    commit_of, fetch_of = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
    part = commit_of.OffsetCommitRequestPartition(partition_index=1, committed_offset=5, committed_metadata="m")
    topics = [commit_of(topic_id=at, partitions=[part]) for at in (topic_id, other_id)]
    answer = client.ask(OffsetCommitRequest(group_id="g", member_id="", group_instance_id=None, topics=topics), 10)
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {topic_id: 0, other_id: UNKNOWN_TOPIC_ID}

    def fetched(topics: list[Any] | None) -> dict[UUID, list[tuple[int, int, int]]]:
        group = fetch_of(group_id="g", topics=topics, member_epoch=-1)
        answer = client.ask(OffsetFetchRequest(groups=[group], require_stable=False), 10).groups[0]
        assert answer.error_code == 0
        return {
            topic.topic_id: [(at.partition_index, at.committed_offset, at.error_code) for at in topic.partitions]
            for topic in answer.topics
        }

    asked = [fetch_of.OffsetFetchRequestTopics(topic_id=at, partition_indexes=[0, 1]) for at in (topic_id, other_id)]
    assert fetched(None) == {topic_id: [(1, 5, 0)]}
    unknown = [(number, -1, UNKNOWN_TOPIC_ID) for number in (0, 1)]
    assert fetched(asked) == {topic_id: [(0, -1, 0), (1, 5, 0)], other_id: unknown}


def test_administrators_see_groups_and_delete_empty_ones(store, connect):
    first, _ = stable_pair(connect)
    client = first.client
    ask = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
    described, none = client.ask(ask, 6).groups
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert [item.member_metadata for item in described.members] == [WANTS, WANTS]
    assert [item.client_host for item in described.members] == ["/127.0.0.1"] * 2
    assert described.authorized_operations == {3, 6, 8}
    assert (none.group_state, none.error_code) == ("Dead", NOT_FOUND)
    older = DescribeGroupsRequest(groups=["none"], include_authorized_operations=False)
    assert client.ask(older, 5).groups[0].error_code == 0
    for state, names in (("Stable", ["g"]), ("Empty", [])):
        asked = ListGroupsRequest(states_filter=[state], types_filter=[])
        assert [item.group_id for item in client.ask(asked, 5).groups] == names
    delete = DeleteGroupsRequest(groups_names=["g", "none"])
    assert [item.error_code for item in client.ask(delete, 2).results] == [NON_EMPTY, NOT_FOUND]
    store.clock.advance(SESSION_MS)  # both are killed
    wait_until(lambda: client.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == 0)


def test_a_silent_member_is_removed_and_the_others_go_on(store, connect):
    first, second = stable_pair(connect)
    for _ in range(3):
        shown = beats(store, first)
        store.clock.advance(SESSION_MS // 2)
        first.beat()
        wait_until(lambda seen=shown: beats(store, first) > seen)
    assert wait_until(first.beat) == REBALANCE
    assert [item.member_id for item in first.join().members] == [first.member_id]
    assert second.beat() == UNKNOWN_MEMBER


def beats(store: Store, member: Member) -> int:
    state = GroupCoordinator(store.cluster).group(member.group)
    return 0 if state is None else state.beats.get(member.member_id, 0)


def test_members_go_on_at_another_gateway(store, connect):
    first, second = stable_pair(connect)
    with RunningGateway(store.another_process().cluster, node_id=1) as other:
        moved = replace(first, client=connect(other).client)
        shown = beats(store, first)
        assert moved.beat() == 0
        wait_until(lambda: beats(store, first) > shown, "its heartbeat is written at once")
        assert moved.commit(4) == 0
        third = connect(other)
        third.ask_to_join()
        third.joined()
        third.ask_to_join()
        wait_until(lambda: second.beat() == REBALANCE)
        second.ask_to_join()
        moved.ask_to_join()
        answers = [member.joined() for member in (moved, second, third)]
        assert {answer.generation_id for answer in answers} == {3}
        assert [len(answer.members) for answer in answers] == [3, 0, 0]
        second.ask_to_sync()
        assert moved.sync((moved, b"\0\1a"), (second, b"\0\1b"), (third, b"\0\1c")).assignment == b"\0\1a"
        assert (second.client.receive().assignment, third.sync().assignment) == (b"\0\1b", b"\0\1c")


def test_heartbeats_cost_no_storage_call(store, monkeypatch):
    monkeypatch.setattr(member_host, "LOOK_INTERVAL_MS", 10**9)
    monkeypatch.setattr(member_host, "LOOK_AGE_MS_MAX", 10**9)
    store.count_calls()
    with RunningGateway(store.cluster) as gateway, ExitStack() as stack:
        members = [Member(stack.enter_context(gateway.client()), group=f"group-{number}") for number in range(4)]
        for member in members:
            member.join()
            member.sync((member, b"\0\0"))
        store.forget_calls()
        assert [member.beat() for member in members * 10] == [0] * 40
        assert store.calls() == {}


def test_heartbeats_of_many_members_are_one_entry(store, gateway, connect):
    members = [connect(group=f"group-{number}") for number in range(8)]
    for member in members:
        member.join()
        member.sync((member, b"\0\0"))
    ledger = store.cluster.topic_ledger(store.cluster.lookup("__consumer_offsets").ledger_id)
    before, shown = ledger.journal_end(0), [beats(store, member) for member in members]
    store.clock.advance(SESSION_MS // 3)
    assert [member.beat() for member in members] == [0] * 8
    wait_until(lambda: all(beats(store, member) > seen for member, seen in zip(members, shown, strict=True)))
    assert ledger.journal_end(0) - before <= 2


def test_the_asked_gateway_coordinates_groups_and_no_transactions(gateway, connect):
    client = connect().client
    node, none = (
        client.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"]), 4).coordinators[0] for kind in (0, 1)
    )
    assert (node.error_code, node.node_id, node.port) == (0, 0, gateway.port)
    assert none.error_code == 42
    assert client.ask(FindCoordinatorRequest(key="g"), 0).port == gateway.port


def test_a_gateway_that_ends_lets_those_go_that_wait(store):
    with ExitStack() as stack:
        gateway = RunningGateway(store.cluster)
        gateway.__enter__()
        first, second = (Member(stack.enter_context(gateway.client())) for _ in range(2))
        first.join()
        second.ask_to_join()
        second.joined()
        second.ask_to_join()
        wait_until(lambda: first.beat() == REBALANCE)
        gateway.__exit__()
        assert second.joined().error_code == NOT_AVAILABLE
