"""Group offsets through the ledger: Kafka's rules of commit, fetch, delete and expiry; and what a crash leaves."""

from __future__ import annotations

import threading

import pytest

from spark_replog.admin.controller import Controller
from spark_replog.errors import (
    ErrorCode,
    FencedError,
    InvalidConfigError,
    NotFoundError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
)
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import NO_MEMBER, OFFSETS_TOPIC, GroupLedger, MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind
from spark_replog.groups.group_rebalance import GroupSubscription, SilenceWatch, encode_subscription
from spark_replog.ids import TopicPartition
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.group_records import GroupMember, GroupPhase, OffsetAndMetadata
from tests.unit.client.consumer_setup import ManualClock, Store, rows

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@pytest.fixture
def groups(store):
    store.create("orders", 2)
    return GroupCoordinator(store.cluster)


def commit(groups, offset, key=P0, group="g", member=NO_MEMBER, metadata=""):
    return groups.commit_offsets(group, {key: OffsetAndMetadata(offset, -1, metadata)}, member)


def note(groups, kind, who):
    groups.relay.write("g", [Note(kind, groups.command("g", who))])


def committed(groups, group="g"):
    return {key: value.offset for key, value in groups.fetch_offsets(group).items()}


def member(member_id, topics=("orders",), instance_id="", session_ms=45_000):
    subscription = encode_subscription(GroupSubscription(tuple(topics)))
    return GroupMember(member_id, instance_id, "app", session_ms, 300_000, True, (("range", subscription),))


def pass_time(store, minutes):
    """Let time pass, which another process shows by a commit of its own group."""
    store.clock.advance(minutes * MINUTE_MS)
    commit(GroupCoordinator(store.another_process().cluster), 1, group="witness")


def join_alone(groups, member_id="m-1", group="g", **more):
    groups.join_group(group, member(member_id, **more))
    identity = MemberIdentity(member_id, more.get("instance_id", ""), groups.group(group).metadata.generation)
    groups.sync_group(group, identity, {member_id: b"{}"})
    return identity


def test_the_offsets_topic_is_made_by_the_first_commit(store, groups):
    assert groups.fetch_offsets("g") == {}
    assert OFFSETS_TOPIC not in store.cluster.topic_names()
    commit(groups, 5)
    assert OFFSETS_TOPIC in store.cluster.topic_names()
    assert Controller(store.cluster).describe_topic(OFFSETS_TOPIC).partitions[0].log_end_offset == 0


@pytest.mark.case("kafka-124f", "consumer-fetch-none-1")
def test_another_process_fetches_what_was_committed(store, groups):
    commit(groups, 5, metadata="at noon")
    other = GroupCoordinator(store.another_process().cluster)
    offsets = other.fetch_offsets("g", [P0, P1])
    assert (offsets[P0].offset, offsets[P0].metadata, offsets[P1]) == (5, "at noon", None)
    assert other.fetch_offsets("nobody", [P0]) == {P0: None}


def test_a_commit_costs_one_create_a_root_and_a_fetch_one_get_a_root(store3):
    store3.create("orders", 2)
    store3.count_calls()
    groups = GroupCoordinator(store3.cluster)
    for number in range(3):
        commit(groups, number)
    store3.forget_calls()
    groups.commit_offsets("g", {P0: OffsetAndMetadata(7), P1: OffsetAndMetadata(8)})
    assert store3.calls()["create"] == 3
    store3.forget_calls()
    groups.fetch_offsets("g")
    assert store3.calls() == {"get": 3}


@pytest.mark.case("kafka-124d")
def test_metadata_of_4097_bytes_is_refused_and_the_others_are_committed(groups):
    answers = groups.commit_offsets(
        "g", {P0: OffsetAndMetadata(1, -1, "x" * 4097), P1: OffsetAndMetadata(2, -1, "x" * 4096)}
    )
    assert answers[P0].code is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert answers[P1] is None
    assert committed(groups) == {P1: 2}


@pytest.mark.case("consumer-unknown-topic-partition-each")
def test_unknown_topics_partitions_and_negative_offsets_are_refused_each_alone(groups):
    missing, beyond = TopicPartition("nothing", 0), TopicPartition("orders", 2)
    answers = groups.commit_offsets(
        "g",
        {
            missing: OffsetAndMetadata(1),
            beyond: OffsetAndMetadata(1),
            P0: OffsetAndMetadata(-1),
            P1: OffsetAndMetadata(3),
        },
    )
    assert {key: error and error.code for key, error in answers.items()} == {
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        beyond: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        P0: ErrorCode.INVALID_REQUEST,
        P1: None,
    }
    assert committed(groups) == {P1: 3}


@pytest.mark.parametrize("is_made_again", [False, True])
def test_an_offset_of_a_partition_that_another_process_has_added_is_committed(store, groups, is_made_again):
    commit(groups, 1)
    admin, added = Controller(store.another_process().cluster), TopicPartition("orders", 2)
    if is_made_again:
        admin.delete_topic("orders")
        admin.create_topic("orders", 3)
    else:
        admin.add_partitions("orders", 3)
    assert commit(groups, 5, added) == {added: None}
    assert committed(groups)[added] == 5


@pytest.mark.case("consumer-empty-group-id")
@pytest.mark.parametrize("call", ["commit_offsets", "fetch_offsets", "delete_offsets", "delete_group", "join_group"])
def test_an_empty_group_id_is_invalid(groups, call):
    arguments = {"commit_offsets": [{}], "delete_offsets": [[]], "join_group": [member("m")]}.get(call, [])
    with pytest.raises(InvalidConfigError) as refused:
        getattr(groups, call)("", *arguments)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


@pytest.mark.case("consumer-nothing-checks-offset-inside-log")
def test_an_offset_above_the_log_end_may_be_committed(groups):
    commit(groups, 1_000_000)
    assert committed(groups) == {P0: 1_000_000}


@pytest.mark.case("consumer-generation-1-simple-commit-empty")
def test_a_simple_commit_to_a_group_with_members_is_refused(groups):
    join_alone(groups)
    with pytest.raises(FencedError) as refused:
        commit(groups, 5)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(groups) == {}


def test_a_member_of_an_older_generation_cannot_commit_whatever_it_believes(store, groups):
    old = join_alone(groups, "m-1")
    other = GroupCoordinator(store.another_process().cluster)
    other.join_group("g", member("m-2"))
    groups.join_group("g", member("m-1"))
    with pytest.raises(RetriableError) as waiting:
        commit(groups, 4, member=MemberIdentity("m-1", "", old.generation + 1))
    assert waiting.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    with pytest.raises(FencedError) as refused:
        commit(groups, 5, member=old)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    assert committed(groups) == {}


def test_a_group_id_that_never_was_and_one_in_use_are_not_deleted(groups):
    with pytest.raises(NotFoundError) as missing:
        groups.delete_group("g")
    assert missing.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    join_alone(groups)
    for act in (groups.delete_group, lambda group: groups.reset_offsets(group, {P0: 1})):
        with pytest.raises(ReplogError) as refused:
            act("g")
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_a_dead_member_is_taken_out_by_the_command_that_watched_it_for_its_session(store, groups):
    join_alone(groups)
    store.clock.advance(45_000)
    start_ms = store.clock.monotonic_ms()
    groups.delete_group("g")
    assert 45_000 <= store.clock.monotonic_ms() - start_ms < 50_000
    assert groups.group("g") is None


@pytest.mark.parametrize("wrong_days", [-8, 8])
def test_a_wrong_clock_neither_blocks_the_command_nor_takes_out_a_member_that_lives(store, groups, wrong_days):
    who = join_alone(groups)
    admin = store.another_process()
    admin.clock = ManualClock()
    admin.clock.added_ms, admin.clock.wrong_ms = store.clock.added_ms, wrong_days * 24 * HOUR_MS
    coordinator = GroupCoordinator(Store(store.path, admin.clock).cluster)
    admin.clock.on_sleep = [lambda: note(groups, NoteKind.BEAT, who)]
    with pytest.raises(ReplogError) as refused:
        coordinator.delete_group("g")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    coordinator.delete_group("g")


def test_what_runs_beside_takes_out_the_silent_and_keeps_those_that_live(store, groups):
    who = join_alone(groups, "m-1")
    join_alone(groups, "m-2", group="h")
    watch, beside = SilenceWatch(), GroupCoordinator(store.another_process().cluster)
    for expired in (0, 0, 0, 1, 0):
        assert beside.remove_expired(watch) == expired
        note(groups, NoteKind.BEAT, who)
        store.clock.advance(15_000)
    assert {state.group: state.phase for state in beside.groups()} == {"g": GroupPhase.STABLE, "h": GroupPhase.EMPTY}


def test_what_runs_beside_does_not_take_an_outage_for_silence(store, groups, monkeypatch):
    join_alone(groups, "m-1")
    watch, beside = SilenceWatch(), GroupCoordinator(store.another_process().cluster)
    assert beside.remove_expired(watch) == 0
    store.clock.advance(30_000)

    def refuse():
        raise RetriableError(ErrorCode.REPLOG_NO_QUORUM, "no majority")

    with monkeypatch.context() as patched:
        patched.setattr(beside, "groups", refuse)
        with pytest.raises(RetriableError):
            beside.remove_expired(watch)
    store.clock.advance(30_000)
    assert beside.remove_expired(watch) == 0
    store.clock.advance(45_000)
    assert beside.remove_expired(watch) == 1


def test_a_deleted_group_leaves_nothing(store, groups):
    commit(groups, 5)
    commit(groups, 6, P1)
    groups.delete_group("g")
    assert GroupCoordinator(store.another_process().cluster).groups() == []
    commit(groups, 7)
    assert committed(groups) == {P0: 7}


@pytest.mark.case("consumer-delete-subscribed-topic-s-offsets")
def test_offsets_of_a_subscribed_topic_are_not_deleted(store, groups):
    store.create("clicks")
    clicks = TopicPartition("clicks", 0)
    who = join_alone(groups)
    commit(groups, 5, member=who)
    commit(groups, 6, clicks, member=who)
    answers = groups.delete_offsets("g", [P0, clicks])
    assert (answers[P0].code, answers[clicks]) == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, None)
    assert committed(groups) == {P0: 5}


@pytest.mark.case("consumer-topic-deleted-tombstones")
def test_offsets_of_a_topic_made_again_under_the_same_name_count_as_none(store, groups):
    commit(groups, 5)
    Controller(store.cluster).delete_topic("orders")
    store.create("orders", 2)
    assert groups.fetch_offsets("g", [P0]) == {P0: None}
    assert committed(groups) == {}
    assert groups.expire_offsets() == 1
    assert groups.groups() == []


def test_offsets_of_a_topic_that_an_unclear_cluster_ledger_does_not_name_stay(store, groups, monkeypatch):
    commit(groups, 5)
    Controller(store.cluster).delete_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "is_tail_unclear", property(lambda self: True))
        assert groups.expire_offsets() == 0
    assert groups.group("g").offsets["orders", 0].offset == 5
    assert groups.expire_offsets() == 1


@pytest.mark.case("consumer-failures-translated-coordinator")
def test_a_lost_majority_is_said_and_nothing_is_committed(store3, short_waits, monkeypatch):
    store3.create("orders", 2)
    commit(GroupCoordinator(store3.cluster), 5)
    short_waits()
    again = store3.another_process()
    for number in (1, 2):
        again.cluster.brokers.stores[number] = Away()
    ledger = GroupLedger(again.cluster, timeout_ms=200)
    with pytest.raises(RetriableError) as refused:
        ledger.append("g", lambda _: (), NO_MEMBER)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    assert committed(GroupCoordinator(store3.another_process().cluster)) == {P0: 5}


class Away:
    url = "memory://away"

    def __getattr__(self, name):
        def fail(*_args, **_kwargs):
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "root is away.")

        return fail


def test_two_processes_that_commit_at_once_both_succeed_and_the_last_in_the_log_holds(store):
    store.create("orders", 2)
    commit(GroupCoordinator(store.cluster), 0)
    errors: list[BaseException] = []

    def run(first: int) -> None:
        groups = GroupCoordinator(store.another_process().cluster)
        try:
            for number in range(10):
                commit(groups, first + number, P0 if first else P1)
        except BaseException as error:  # shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert committed(GroupCoordinator(store.another_process().cluster)) == {P0: 109, P1: 9}


@pytest.mark.case("consumer-expiry-commit-time-time-group")
@pytest.mark.parametrize(
    ("age_minutes", "expired"), [(10_079, 0), (10_080, 1)], ids=["a minute short", "retention is over"]
)
def test_a_simple_groups_offsets_expire_by_their_commit_time(store, groups, age_minutes, expired):
    commit(groups, 5)
    pass_time(store, age_minutes)
    assert groups.expire_offsets() == expired
    assert committed(groups) == ({} if expired else {P0: 5})
    assert [state.group for state in groups.groups()] == (["witness"] if expired else ["g", "witness"])


@pytest.mark.case("consumer-expiry-commit-time-time-group")
def test_an_empty_groups_offsets_expire_by_the_time_it_became_empty(store, groups):
    who = join_alone(groups)
    commit(groups, 5, member=who)
    pass_time(store, 10_000)
    note(groups, NoteKind.LEAVE, MemberIdentity("m-1"))
    assert groups.group("g").phase is GroupPhase.EMPTY
    pass_time(store, 10_000)
    assert groups.expire_offsets() == 0
    pass_time(store, 80)
    assert groups.expire_offsets() == 1


@pytest.mark.case("consumer-expiry-commit-time-time-group")
def test_offsets_that_active_members_subscribe_to_never_expire_and_others_do(store, groups):
    store.create("clicks")
    clicks = TopicPartition("clicks", 0)
    who = join_alone(groups)
    commit(groups, 5, member=who)
    commit(groups, 6, clicks, member=who)
    pass_time(store, 2 * 10_080)
    assert groups.expire_offsets() == 1
    assert committed(groups) == {P0: 5}


def test_what_is_committed_while_offsets_expire_is_kept_with_its_topic_that_is_newer(store, groups, monkeypatch):
    commit(groups, 5)
    commit(groups, 6, P1)
    pass_time(store, 10_080)
    clicks, decide = TopicPartition("clicks", 0), GroupLedger.change

    def overtaken(ledger, group, records):
        other = store.another_process()
        other.create("clicks")
        commit(GroupCoordinator(other.cluster), 7, clicks)
        commit(GroupCoordinator(other.cluster), 8, P1)
        decide(ledger, group, records)

    monkeypatch.setattr(GroupLedger, "change", overtaken)
    assert groups.expire_offsets() == 1
    assert committed(groups) == {P1: 8, clicks: 7}


def test_offsets_expire_beside_a_commit_at_most_every_ten_minutes(store, groups):
    commit(groups, 5, group="old")
    pass_time(store, 10_081)
    commit(groups, 6)
    assert [state.group for state in groups.groups()] == ["g", "witness"]


def test_expiry_is_looked_at_once_in_ten_minutes(store, groups, monkeypatch):
    looked = []
    monkeypatch.setattr(groups, "expire_offsets", lambda: looked.append(True))
    for minutes, count in ((0, 0), (10, 1), (1, 1), (8, 1), (2, 2)):
        store.clock.advance(minutes * MINUTE_MS)
        commit(groups, 5)
        assert len(looked) == count


def test_what_changes_nothing_writes_nothing(store3):
    store3.create("orders", 2)
    store3.count_calls()
    groups = GroupCoordinator(store3.cluster)
    join_alone(groups)
    store3.forget_calls()
    note(groups, NoteKind.LEAVE, MemberIdentity("a stranger"))
    groups.drop_absent("g", groups.group("g").metadata.generation)
    groups.delete_offsets("g", [TopicPartition("clicks", 0)])
    assert "create" not in store3.calls()


def test_a_rebalance_is_ended_only_by_who_saw_it(store, groups):
    who = join_alone(groups)
    groups.join_group("g", member("m-2"))
    for generation in (who.generation - 1, who.generation + 1):
        groups.drop_absent("g", generation)
        assert groups.group("g").phase is GroupPhase.PREPARING_REBALANCE
    groups.drop_absent("g", who.generation)
    assert [group_member.member_id for group_member in groups.group("g").metadata.members] == ["m-2"]


def test_a_group_id_has_at_most_32767_bytes(groups):
    commit(groups, 5, group="ä" * 16_383)
    with pytest.raises(InvalidConfigError) as refused:
        commit(groups, 5, group="ä" * 16_384)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


def test_a_reset_sets_the_offsets_of_an_idle_group(groups):
    commit(groups, 50)
    groups.reset_offsets("g", {P0: 10, P1: 0})
    assert committed(groups) == {P0: 10, P1: 0}
    with pytest.raises(NotFoundError):
        groups.reset_offsets("g", {TopicPartition("nothing", 0): 0})


@pytest.mark.case("consumer-process-dies-answer-lost-runs")
def test_lost_answers_and_repeats_leave_the_offset_as_if_said_once(store):
    store.create("orders", 2)
    commit(GroupCoordinator(store.cluster), 1)
    cluster = store.another_process().cluster
    raw = cluster.brokers.store(0)
    lossy = LossyCreates(raw)
    cluster.brokers.stores[0] = lossy
    groups = GroupCoordinator(cluster)
    lossy.lose = 2
    try:
        commit(groups, 2)
    except OutcomeUnknownError:
        commit(groups, 2)
    other = GroupCoordinator(store.another_process().cluster)
    commit(other, 3)
    assert committed(groups) == {P0: 3}
    assert lossy.lose < 2


class LossyCreates:
    """Takes the first creates and loses their answers."""

    def __init__(self, store):
        self._store, self.lose, self.url = store, 0, store.url

    def create(self, key, data, *, make_parent=False):
        answer = self._store.create(key, data, make_parent=make_parent)
        if self.lose and "journal" in key:
            self.lose -= 1
            raise RetriableError(ErrorCode.REPLOG_STORE_OUTCOME_UNKNOWN, "no answer.")
        return answer

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.mark.skipif(not __debug__, reason="asserts an assertion")
def test_rows_cannot_be_written_into_the_offsets_topic(store, groups):
    commit(groups, 5)
    with pytest.raises(AssertionError):
        store.write(OFFSETS_TOPIC, rows(1))
    assert committed(groups) == {P0: 5}
