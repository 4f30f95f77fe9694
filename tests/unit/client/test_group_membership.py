"""Members of a group over one store: they share, take over, and fence each other; clocks decide nothing."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.admin.controller import Controller
from spark_replog.errors import (
    ErrorCode,
    FencedError,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
)
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import OFFSETS_TOPIC
from spark_replog.groups.group_notes import GroupRelay
from spark_replog.groups.group_rebalance import GroupSubscription, encode_subscription
from spark_replog.log.codec.group_records import GroupMember, GroupPhase
from spark_replog.storage.paths import journal_folder
from tests.unit.client.consumer_setup import end_process, membership_of, rows

P = [TopicPartition("orders", number) for number in range(4)]


@pytest.fixture
def filled(store):
    store.create("orders", 4)
    for number in range(4):
        store.write("orders", rows(6, 100 * number), partition=number)
    return store


@pytest.fixture
def join(filled):
    """Make members, each as in a process of its own; they are closed afterwards."""
    made = []

    def make(**settings):
        settings.setdefault("auto_offset_reset", "earliest")
        settings.setdefault("enable_auto_commit", False)
        listeners = settings.pop("listeners", {})
        topics = settings.pop("topics", ["orders"])
        member = Consumer(filled.another_process().cluster, group=settings.pop("group", "g"), **settings)
        member.subscribe(topics, **listeners)
        made.append(member)
        return member

    yield make
    for member in made:
        member.close()


def settle(store, *members, rounds=12):
    """Let the members look in turn until all have the same generation."""
    records = []
    for _ in range(rounds):
        store.clock.advance(3_000)
        for member in members:
            records += member.poll()
        generations = {member.group_metadata()[1] for member in members}
        if len(generations) == 1 and -1 not in generations:
            return records
    raise AssertionError([member.group_metadata() for member in members])


def filled_members(store):
    return GroupCoordinator(store.cluster).group("g").metadata.members


def shares(*members):
    return [sorted(key.partition for key in member.assignment()) for member in members]


def test_one_member_has_everything_after_one_poll_that_waits(join):
    member = join()
    assert len(member.poll(timeout_ms=5_000)) == 24
    assert shares(member) == [[0, 1, 2, 3]]
    assert member.group_metadata()[1] == 1


def test_two_members_share_and_one_that_leaves_gives_back(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    assert sorted([*shares(first)[0], *shares(second)[0]]) == [0, 1, 2, 3]
    assert [len(share) for share in shares(first, second)] == [2, 2]
    second.close()
    settle(filled, first)
    assert shares(first) == [[0, 1, 2, 3]]


def test_nothing_is_lost_and_commits_go_on_over_a_rebalance(filled, join):
    first = join(enable_auto_commit=True, max_poll_records=3)
    seen = list(first.poll(timeout_ms=5_000))
    second = join(enable_auto_commit=True)
    for _ in range(8):
        seen += settle(filled, first, second)
    wanted = {(number, offset) for number in range(4) for offset in range(6)}
    assert {(record.partition, record.offset) for record in seen} == wanted
    assert len(seen) == len(wanted)


def test_listeners_hear_what_comes_and_goes_in_order(filled, join):
    heard = []
    listeners = {
        "on_assigned": lambda keys: heard.append(("assigned", len(keys))),
        "on_revoked": lambda keys: heard.append(("revoked", len(keys))),
    }
    first = join(listeners=listeners)
    first.poll(timeout_ms=5_000)
    second = join()
    settle(filled, first, second)
    first.close()
    assert heard == [("assigned", 4), ("revoked", 4), ("assigned", 2), ("revoked", 2)]


def test_a_member_may_commit_in_on_revoked(filled, join):
    committed = []

    def commit(_keys):
        first.commit()
        committed.append(True)

    first = join(listeners={"on_revoked": commit})
    first.poll(timeout_ms=5_000)
    second = join()
    settle(filled, first, second)
    assert committed
    assert second.committed(P)[P[0]].offset == 6


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_commit_in_on_revoked_does_not_replace_the_auto_commit_of_other_partitions(filled, join, is_closed):
    first = join(
        enable_auto_commit=True,
        auto_commit_interval_ms=3_600_000,
        listeners={"on_revoked": lambda _keys: first.commit({P[0]: 6})},
    )
    assert len(first.poll(timeout_ms=5_000)) == 24
    second = join()
    if is_closed:
        first.close()
    else:
        settle(filled, first, second)
    assert {key: value.offset for key, value in second.committed(P).items()} == dict.fromkeys(P, 6)


@pytest.mark.case("consumer-process-dies-answer-lost-runs")
def test_a_member_that_slept_through_a_rebalance_cannot_commit(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    asleep, generation = first, first.group_metadata()[1]
    groups = GroupCoordinator(filled.cluster)
    second.close()
    groups.drop_absent("g", generation)  # another member's clock says that the rebalance took long enough
    third = join()
    third.poll(timeout_ms=5_000)
    with pytest.raises(FencedError) as refused:
        asleep.commit({P[0]: 1})
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert asleep.committed(P)[P[0]] is None
    settle(filled, asleep, third)
    assert sorted([*shares(asleep)[0], *shares(third)[0]]) == [0, 1, 2, 3]


@pytest.mark.case("consumer-session-time-out-max-poll")
def test_a_dead_member_is_removed_by_another_after_its_session_and_its_late_commit_is_refused(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    end_process(second)  # its process is gone: no thread, no poll
    for _ in range(20):
        filled.clock.advance(3_000)
        first.poll()
        membership_of(first).beat_if_due()
    assert shares(first) == [[0, 1, 2, 3]]
    with pytest.raises(FencedError) as refused:
        second.commit({P[0]: 1})
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_shows_signs_of_life_stays_however_long_it_processes(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    generation = first.group_metadata()[1]
    for _ in range(20):
        filled.clock.advance(3_000)
        membership_of(second).beat_if_due()  # what its thread does while the application is busy
        first.poll()
    assert first.group_metadata()[1] == generation


def test_a_wrong_clock_removes_a_live_member_and_still_no_offset_is_harmed(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    second.commit({P[3]: 5})
    state = GroupCoordinator(filled.cluster).group("g")
    who = second.group_metadata()[0]
    GroupCoordinator(filled.cluster).remove_silent("g", who, state.beats[who])
    with pytest.raises((FencedError, RetriableError)):
        second.commit({P[3]: 1})
    settle(filled, first, second)
    assert first.committed(P)[P[3]].offset == 5


def test_a_sign_of_life_that_came_meanwhile_keeps_the_member(filled, join):
    first = join()
    first.poll(timeout_ms=5_000)
    groups = GroupCoordinator(filled.cluster)
    who = first.group_metadata()[0]
    beats = groups.group("g").beats[who]
    first.commit({P[0]: 1})
    groups.remove_silent("g", who, beats)
    assert groups.group("g").metadata.member(who) is not None


@pytest.mark.case("consumer-session-time-out-max-poll")
def test_an_application_that_polls_no_more_leaves_its_group(filled, join, caplog):
    first = join()
    first.poll(timeout_ms=5_000)
    filled.clock.advance(300_000)
    membership_of(first).beat_if_due()
    assert "max.poll.interval.ms" in caplog.text
    assert GroupCoordinator(filled.cluster).group("g").phase is GroupPhase.EMPTY
    lost = []
    membership_of(first).listen(None, None, lost.extend)
    first.poll(timeout_ms=5_000)
    assert lost == P
    assert shares(first) == [[0, 1, 2, 3]]


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_former_self(filled, join):
    first, second = join(group_instance_id="till-1"), join(group_instance_id="till-2")
    settle(filled, first, second)
    generation, before = first.group_metadata()[1], shares(second)
    again = join(group_instance_id="till-2")
    again.poll(timeout_ms=5_000)
    assert (again.group_metadata()[1], shares(again)) == (generation, before)
    with pytest.raises(FencedError) as refused:
        second.commit({P[0]: 1})
    assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID
    filled.clock.advance(3_000)
    with pytest.raises(FencedError):
        second.poll()
    filled.clock.advance(3_000)
    with pytest.raises(FencedError):
        second.poll()  # it does not take the place back from the newer process
    assert again.group_metadata()[0] in {member.member_id for member in filled_members(filled)}
    again.close()
    assert len(filled_members(filled)) == 2
    second.unsubscribe()
    second.subscribe(["orders"])
    assert polled_to(filled, second, 12) == 12, "asked to join as a new member"


@pytest.mark.case("consumer-range-round-robin-sticky-vectors")
def test_static_members_come_first_in_the_order_of_their_names(filled, join):
    """Source: ``AbstractPartitionAssignor.MemberInfo``; a member's id decides only among dynamic ones."""
    dynamic = join(client_id="a", partition_assignment_strategy="range")
    last = join(client_id="b", group_instance_id="z2", partition_assignment_strategy="range")
    first = join(client_id="c", group_instance_id="z1", partition_assignment_strategy="range")
    settle(filled, dynamic, last, first)
    assert shares(first, last, dynamic) == [[0, 1], [2], [3]]


def test_partitions_that_a_topic_gains_are_given_out(filled, join):
    first = join()
    first.poll(timeout_ms=5_000)
    Controller(filled.cluster).add_partitions("orders", 6)
    for _ in range(4):
        filled.clock.advance(300_000 - 1)
        membership_of(first)._life.polled_ms = filled.clock.monotonic_ms()
        first.poll(timeout_ms=5_000)
    assert shares(first) == [[0, 1, 2, 3, 4, 5]]


def test_a_member_that_subscribes_to_other_topics_tells_its_group(filled, join):
    filled.create("clicks", 2)
    first, second = join(partition_assignment_strategy="range"), join(partition_assignment_strategy="range")
    settle(filled, first, second)
    second.subscribe(["clicks"])
    settle(filled, first, second)
    assert shares(first) == [[0, 1, 2, 3]]
    assert second.assignment() == {TopicPartition("clicks", number) for number in range(2)}


def test_a_pattern_finds_topics_made_later_in_a_group_whoever_leads_it(filled, join):
    first, second = join(), join()
    for member in (first, second):
        member.subscribe(pattern="orders|clicks")
    settle(filled, first, second)
    filled.create("clicks", 2)
    filled.clock.advance(300_000)
    settle(filled, second, first)
    settle(filled, second, first)
    partitions = first.assignment() | second.assignment()
    assert {key.topic for key in partitions} == {"orders", "clicks"}
    assert len(partitions) == 6


def test_a_rebalance_can_be_asked_for_by_any_member(filled, join):
    first, second = join(), join()
    settle(filled, first, second)
    for member in (first, second):
        generation = member.group_metadata()[1]
        member.enforce_rebalance()
        settle(filled, first, second)
        assert member.group_metadata()[1] == generation + 1
        settle(filled, first, second)
        assert member.group_metadata()[1] == generation + 1


def test_a_static_member_keeps_its_place_when_it_unsubscribes_or_polls_no_more(filled, join):
    """Source: ``AbstractCoordinator.maybeLeaveGroup``: only dynamic members say that they go."""
    groups = GroupCoordinator(filled.cluster)
    revoked = []
    static = join(group_instance_id="s", listeners={"on_revoked": revoked.append})
    settle(filled, static)
    generation = groups.group("g").metadata.generation
    static.unsubscribe()
    assert revoked == [P]
    filled.clock.advance(300_000)
    membership_of(static).beat_if_due()
    (place,) = groups.group("g").metadata.members
    assert (place.instance_id, groups.group("g").metadata.generation) == ("s", generation)
    static.subscribe(["orders"])
    settle(filled, static)
    assert shares(static) == [[0, 1, 2, 3]]
    filled.clock.advance(300_000)
    membership_of(static).beat_if_due()
    (place,) = groups.group("g").metadata.members
    assert place.instance_id == "s"
    settle(filled, static)
    assert groups.group("g").metadata.generation == generation


def test_who_waits_for_a_slow_member_is_not_taken_for_silent(filled, join):
    slow, second = join(), join()
    settle(filled, slow, second)
    third = join()
    groups = GroupCoordinator(filled.cluster)
    third.poll()
    second.poll()
    for _ in range(12):  # longer than two sessions; the slow one's thread beats, its application does not poll
        filled.clock.advance(10_000)
        for member in (second, third):
            member.poll()
        membership_of(slow).beat_if_due()
    state = groups.group("g")
    assert state.phase is GroupPhase.PREPARING_REBALANCE
    waiting = {second.group_metadata()[0], third.group_metadata()[0]}
    assert {group_member.member_id for group_member in state.metadata.members} == {slow.group_metadata()[0], *waiting}
    settle(filled, slow, second, third)
    assert waiting == {second.group_metadata()[0], third.group_metadata()[0]}


@pytest.mark.parametrize("leads", [True, False])
def test_signs_of_life_during_a_rebalance_do_not_replace_the_last_commit(filled, join, leads):
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 3_600_000}
    slow = None if leads else join()
    if slow:
        settle(filled, slow)
    member = join(**settings)
    slow = slow or join()
    settle(filled, member, slow)
    owned = list(member.assignment())
    for key in owned:
        filled.write("orders", rows(2, 50), partition=key.partition)
    while any(member.position(key) < 8 for key in owned):
        member.poll()
    third = join()
    third.poll()
    for _ in range(12):  # the slow one's application does not poll
        filled.clock.advance(10_000)
        for waiting_member in (member, third):
            waiting_member.poll()
        membership_of(slow).beat_if_due()
    assert member.assignment() == set()
    settle(filled, slow, member, third)
    assert {key: value.offset for key, value in third.committed(owned).items()} == dict.fromkeys(owned, 8)


def test_a_rebalance_waits_as_long_as_its_most_patient_member_may_process(filled, join):
    patient, hasty = join(max_poll_interval_ms=600_000), join(max_poll_interval_ms=10_000)
    settle(filled, patient, hasty)
    third = join(max_poll_interval_ms=10_000)
    third.poll()
    for _ in range(4):
        filled.clock.advance(8_000)
        hasty.poll()
        third.poll()
    groups = GroupCoordinator(filled.cluster)
    assert patient.group_metadata()[0] in {member.member_id for member in groups.group("g").metadata.members}


def test_a_poll_that_waits_long_for_a_rebalance_counts_as_polling(filled, join):
    patient, hasty = join(max_poll_interval_ms=600_000), join(max_poll_interval_ms=10_000)
    settle(filled, patient, hasty)
    third = join(max_poll_interval_ms=10_000)
    third.poll()
    filled.clock.advance(3_000)
    hasty.poll()  # gives up its partitions; the patient one does not poll
    who = hasty.group_metadata()[0]
    filled.clock.on_sleep = [membership_of(hasty).beat_if_due] * 1_000  # its thread
    hasty.poll(timeout_ms=30_000)
    filled.clock.on_sleep = []
    assert who in {member.member_id for member in GroupCoordinator(filled.cluster).group("g").metadata.members}


@pytest.mark.parametrize("writes_only", [True, False])
def test_an_outage_longer_than_a_session_removes_no_member(filled, join, monkeypatch, writes_only):
    first, second = join(), join()
    settle(filled, first, second)
    members, groups = {consumer.group_metadata()[0] for consumer in (first, second)}, GroupCoordinator(filled.cluster)

    def refuse(*_args, **_named):
        raise RetriableError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no majority")

    with monkeypatch.context() as patched:
        patched.setattr(GroupRelay, "write", refuse)
        if not writes_only:
            patched.setattr(GroupCoordinator, "group", refuse)
        patched.setattr(GroupCoordinator, "remove_silent", refuse)
        for _ in range(20):
            filled.clock.advance(3_000)
            for member in (first, second):
                with suppress(RetriableError):
                    member.poll()
    for member in (first, second):
        filled.clock.advance(3_000)
        member.poll()
    assert {group_member.member_id for group_member in groups.group("g").metadata.members} == members


def polled_to(store, member, count):
    """Let the member poll until it has so many records."""
    records = []
    for _ in range(20):
        store.clock.advance(3_000)
        records += member.poll()
        if len(records) >= count:
            break
    return len(records)


def test_a_member_whose_topic_does_not_exist_yet_says_so_and_reads_it_later(filled, join):
    member = join(topics=["later"])
    for _ in range(3):
        with pytest.raises(NotFoundError):
            member.poll()
        filled.clock.advance(3_000)
    filled.create("later", 1)
    filled.write("later", rows(3))
    assert polled_to(filled, member, 3) == 3


@pytest.mark.parametrize(("instance_id", "call"), [("i", "join_group"), (None, "command")])
def test_a_member_whose_first_attempt_to_join_failed_joins_later(filled, join, monkeypatch, instance_id, call):
    if instance_id:  # another process with this instance was there before
        before = join(group_instance_id=instance_id)
        before.poll(timeout_ms=5_000)
        end_process(before)

    def refuse(*_args, **_named):
        raise RetriableError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no majority")

    member = join(group_instance_id=instance_id)
    with monkeypatch.context() as patched:
        patched.setattr(GroupCoordinator, call, refuse)
        member.poll()
    assert polled_to(filled, member, 24) == 24


def test_of_two_that_join_with_one_instance_id_at_once_the_slower_one_is_fenced(filled, join, monkeypatch):
    fast, slow = join(group_instance_id="i"), join(group_instance_id="i")

    def send(*args, send=GroupRelay.send):
        monkeypatch.undo()
        fast.poll(timeout_ms=5_000)
        return send(*args)

    monkeypatch.setattr(GroupRelay, "send", send)
    with suppress(FencedError):
        slow.poll()
    for _ in range(2):
        filled.clock.advance(3_000)
        with pytest.raises(FencedError):
            slow.poll()
        fast.poll()
    assert shares(fast, slow) == [[0, 1, 2, 3], []]


@pytest.mark.parametrize("is_first_in_time", [True, False])
def test_a_member_with_another_assignor_is_refused_at_each_poll_until_the_others_leave(
    filled, join, monkeypatch, is_first_in_time
):
    first = join(partition_assignment_strategy="range")
    second = join(partition_assignment_strategy="roundrobin")
    if is_first_in_time:
        first.poll(timeout_ms=5_000)
    else:  # the other one joins after this one has read the group

        def send(*args, send=GroupRelay.send):
            monkeypatch.undo()
            first.poll(timeout_ms=5_000)
            return send(*args)

        monkeypatch.setattr(GroupRelay, "send", send)
        with suppress(InvalidConfigError):
            second.poll()
    assert shares(first, second) == [[0, 1, 2, 3], []]
    for _ in range(3):
        filled.clock.advance(3_000)
        with pytest.raises(InvalidConfigError) as refused:
            second.poll()
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    first.close()
    assert polled_to(filled, second, 24) == 24


@pytest.mark.parametrize("leads", [True, False])
def test_a_member_that_is_interrupted_while_it_asks_to_rejoin_keeps_reading(filled, join, monkeypatch, leads):
    first, second = join(), join()
    settle(filled, first, second)
    leader = GroupCoordinator(filled.cluster).group("g").metadata.leader
    member = first if (first.group_metadata()[0] == leader) is leads else second

    def interrupt(*_args):
        raise KeyboardInterrupt

    member.enforce_rebalance()
    with monkeypatch.context() as patched:
        patched.setattr(GroupRelay, "write" if leads else "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            member.poll()
    settle(filled, first, second)
    settle(filled, first, second)
    assert [len(share) for share in shares(first, second)] == [2, 2]


def test_heartbeats_go_on_after_an_unexpected_error(join, caplog):
    member = join(heartbeat_interval_ms=5)
    beats = threading.Semaphore(0)

    def beat():
        if threading.current_thread().name == "replog-heartbeat":
            beats.release()
            raise RuntimeError("can't start new thread")

    membership_of(member).beat_if_due = beat
    member.poll(timeout_ms=5_000)
    assert all(beats.acquire(timeout=30) for _ in range(3))
    assert caplog.text.count("can't start new thread") >= 2


def test_a_rebalance_ends_without_a_member_that_did_not_join_in_the_time_it_may_process(filled, join):
    dead = join(max_poll_interval_ms=10_000, session_timeout_ms=1_800_000, heartbeat_interval_ms=3_000)
    second = join(max_poll_interval_ms=10_000, heartbeat_interval_ms=3_000)
    settle(filled, dead, second)
    end_process(dead)  # its process ended; its session has half an hour to go
    third = join(max_poll_interval_ms=10_000, heartbeat_interval_ms=3_000)
    third.poll()
    settle(filled, second, third)
    assert sorted(len(share) for share in shares(second, third)) == [2, 2]


def test_a_static_member_that_slept_through_a_rebalance_hears_what_it_lost(filled, join):
    heard = []
    listeners = {
        "on_assigned": lambda keys: heard.append(("assigned", keys)),
        "on_lost": lambda keys: heard.append(("lost", keys)),
    }
    settings = {"max_poll_interval_ms": 10_000, "session_timeout_ms": 1_800_000}
    static = join(group_instance_id="s", listeners=listeners, **settings)
    second = join(**settings)
    settle(filled, static, second)
    assert heard[-1] == ("assigned", P[:2])
    end_process(static)  # its thread sleeps too
    third = join(group_instance_id="a", **settings)
    third.poll()
    settle(filled, second, third)
    heard.clear()
    filled.write("orders", rows(3, 50), partition=0)
    assert len(third.poll()) == 3
    third.commit()
    assert {record.partition for record in static.poll()} <= {2}
    assert heard == [("lost", P[:2]), ("assigned", P[2:3])]
    static.commit()
    third.close()
    filled.clock.advance(1_800_000)


@pytest.mark.parametrize("instance_id", [None, "s"])
def test_a_member_that_was_removed_returns_no_rows_of_its_former_partitions(filled, join, instance_id):
    lost = []
    first = join(group_instance_id=instance_id, listeners={"on_lost": lost.extend})
    second = join()
    settle(filled, first, second)
    owned = first.assignment()
    end_process(first)  # its thread sleeps too
    for _ in range(8):
        filled.clock.advance(10_000)
        second.poll()
    settle(filled, second)
    assert shares(second) == [[0, 1, 2, 3]]
    for key in owned:
        filled.write("orders", rows(2, 50), partition=key.partition)
    assert len(second.poll()) == 4
    assert list(first.poll()) == []
    assert set(lost) == owned
    assert first.assignment() == set()


def test_a_member_that_slept_alone_does_not_take_itself_out(filled, join):
    member = join()
    settle(filled, member)
    before = member.group_metadata()
    filled.clock.advance(3_000)
    member.poll()
    end_process(member)  # its thread sleeps too
    filled.clock.advance(100_000)
    member.poll()
    assert member.group_metadata() == before
    assert GroupCoordinator(filled.cluster).group("g").metadata.generation == before[1]


def test_sticky_members_keep_what_they_can_over_a_rebalance(filled, join):
    first, second = (join(partition_assignment_strategy="sticky", client_id=name) for name in ("z", "y"))
    settle(filled, first)
    settle(filled, first, second)
    kept = shares(second)[0]
    third = join(partition_assignment_strategy="sticky", client_id="a")
    settle(filled, first, second, third)
    assert len(shares(third)[0]) == 1
    second_share = shares(second)[0]
    assert set(second_share) <= set(kept)
    third.close()
    settle(filled, first, second)
    assert set(second_share) <= set(shares(second)[0])


def test_what_another_member_committed_meanwhile_is_no_commit_of_this_one(filled, join):
    first = join(enable_auto_commit=True)
    first.poll(timeout_ms=5_000)
    filled.clock.advance(5_000)
    first.poll()
    assert first.committed(P)[P[0]].offset == 6
    first.unsubscribe()
    second = join()
    settle(filled, second)
    second.commit(dict.fromkeys(P, 3))
    second.close()
    first.subscribe(["orders"])
    assert len(settle(filled, first)) == 12
    filled.clock.advance(5_000)
    first.poll()
    assert {first.committed(P)[key].offset for key in P} == {6}


def test_signs_of_life_are_written_a_third_of_a_session_after_the_last_commit(filled):
    again = filled.another_process()
    again.count_calls()
    member = Consumer(again.cluster, "orders", group="g", enable_auto_commit=False, auto_offset_reset="earliest")
    member.poll(timeout_ms=5_000)

    def creates_after(duration_ms):
        filled.clock.advance(duration_ms)
        again.forget_calls()
        member.poll()
        return again.calls().get("create", 0)

    assert creates_after(15_000) == 1
    assert creates_after(13_000) == 0
    member.commit()
    assert [creates_after(duration_ms) for duration_ms in (13_000, 3_000, 13_000, 3_000)] == [0, 1, 0, 1]
    member.close()


@pytest.mark.parametrize(("others", "gets_max"), [(1, 75), (100, 150)])
def test_who_waits_looks_seldom_however_short_its_polls_are(filled, join, others, gets_max):
    """A pause is an eighth of the time since the group changed, and 10 ms for each member, up to a second."""
    join().poll(timeout_ms=5_000)  # polls no more: the rebalance waits for it
    groups = GroupCoordinator(filled.cluster)
    subscription = encode_subscription(GroupSubscription(("orders",)))
    for number in range(1, others):
        groups.join_group("g", GroupMember(f"m{number}", "", "app", 45_000, 300_000, True, (("range", subscription),)))
    again = filled.another_process()
    counted = again.count_calls()
    member = Consumer(again.cluster, "orders", group="g", enable_auto_commit=False)
    for _ in range(300):
        member.poll(timeout_ms=100)
    journal = journal_folder(filled.cluster.lookup(OFFSETS_TOPIC).ledger_id)
    gets = [key for store in counted.values() for verb, key in store.calls if verb == "get" and key.startswith(journal)]
    assert groups.group("g").phase is GroupPhase.PREPARING_REBALANCE
    assert len(gets) <= gets_max
    end_process(member)


def test_members_with_nothing_in_common_are_told(filled, join):
    join(partition_assignment_strategy="range").poll(timeout_ms=5_000)
    with pytest.raises(InvalidConfigError) as refused:
        join(partition_assignment_strategy="sticky").poll(timeout_ms=5_000)
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_more_members_than_partitions_leave_some_idle(filled, join):
    members = [join() for _ in range(5)]
    settle(filled, *members, rounds=30)
    assert sorted(len(share) for share in shares(*members)) == [0, 1, 1, 1, 1]


def test_a_consumer_that_assigns_disturbs_no_group_and_is_refused_a_commit_in_one(filled, join):
    first = join()
    first.poll(timeout_ms=5_000)
    lone = Consumer(filled.cluster, group="g", enable_auto_commit=False)
    lone.assign([P[0]])
    lone.poll()
    with pytest.raises(ReplogError) as refused:
        lone.commit()
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_settled_member_looks_once_per_heartbeat_interval_and_writes_a_third_of_its_session(filled):
    again = filled.another_process()
    again.count_calls()
    member = Consumer(again.cluster, "orders", group="g", enable_auto_commit=False)
    member.poll(timeout_ms=5_000)
    filled.clock.advance(3_000)
    member.poll()
    again.forget_calls()
    for _ in range(10):
        member.poll()
    assert again.calls() == {"get": 10}  # the topic's ledger alone
    again.forget_calls()
    for _ in range(4):
        filled.clock.advance(3_000)
        member.poll()
    assert again.calls().get("create", 0) <= 1
    member.close()


def test_the_gatherer_writes_the_commits_of_others_at_its_next_look(filled, join):
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 1_000}
    first, second = join(**settings), join(**settings)
    settle(filled, first, second)
    leader = GroupCoordinator(filled.cluster).group("g").metadata.leader
    other = second if first.group_metadata()[0] == leader else first
    leads = first if other is second else second
    keys = list(other.assignment())
    for key in keys:
        filled.write("orders", rows(2, 50), partition=key.partition)
    while any(other.position(key) < 8 for key in keys):
        other.poll()
    leads.commit(dict.fromkeys(leads.assignment(), 6))  # its own heartbeat is not due for a while
    filled.clock.advance(3_000)
    other.poll()  # leaves a note
    assert {at.offset for at in leads.committed(keys).values()} == {6}
    leads.poll()
    assert {key: at and at.offset for key, at in leads.committed(keys).items()} == dict.fromkeys(keys, 8)
