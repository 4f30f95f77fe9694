"""Notes of members: their names and bytes, what is written for them, and what a lost, late or repeated one does."""

from __future__ import annotations

import threading

import pytest

from spark_replog import TopicPartition
from spark_replog.cluster.mailbox import Mailbox
from spark_replog.errors import CorruptDataError, ErrorCode, RetriableError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_notes import (
    Note,
    NoteKind,
    NoteName,
    awaited_members,
    decode_note,
    digest_of,
    encode_note,
    gatherer,
    merge_notes,
)
from spark_replog.groups.group_rebalance import GroupSubscription, encode_subscription
from spark_replog.ids import new_id
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord, OffsetAndMetadata
from spark_replog.log.model import GroupRecords
from spark_replog.storage.io_pool import IO_POOL
from tests.faulty_store import FaultyStore

P0 = TopicPartition("orders", 0)
TOPIC_ID = "ab" * 16


def member(member_id, instance_id="", assignor="range"):
    subscription = encode_subscription(GroupSubscription(("orders",)))
    return GroupMember(member_id, instance_id, "app", 45_000, 300_000, True, ((assignor, subscription),))


def join(member_id, generation=0, **more):
    record = GroupRecord("g", GroupMetadata(members=(member(member_id, **more),)))
    instance_id = more.get("instance_id", "")
    return Note(
        NoteKind.JOIN, GroupRecords(TOPIC_ID, "g", "w", 1, member_id, instance_id, generation, -1, 5, (record,))
    )


def leave(member_id):
    return Note(NoteKind.LEAVE, GroupRecords(TOPIC_ID, "g", "w", 1, member_id, "", 1, -1, 5, ()))


def stable(*member_ids):
    members = tuple(member(member_id) for member_id in member_ids)
    return GroupMetadata("consumer", 1, "range", member_ids[0], GroupPhase.STABLE, 0, members)


def test_a_note_is_read_as_it_was_written_under_a_name_that_no_text_of_a_user_can_leave():
    note = join("../../m", instance_id="i")
    assert decode_note(encode_note(note)) == note
    name = NoteName.of("../g", "../../m", 7, NoteKind.JOIN)
    assert NoteName.parse(str(name)) == name
    assert "/" not in str(name)
    assert str(name).startswith(digest_of("../g") + ".")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"v":2}', b'{"v":1,"kind":"join","command":"AAAA"}', b"[" * 100_000, b"\xff"]
)
def test_a_damaged_note_is_a_coded_error(data):
    with pytest.raises(CorruptDataError) as refused:
        decode_note(data)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


ID, SQUARED, ARABIC = "0123456789abcdef", "\u00b2", "\u0662"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "g.m.1",
        ".tmp-1",
        f"{ID}.{ID}.{'x' * 12}.join",
        f"{ID}.{ID}.{1:012d}.shout",
        f"{ID}.{ID}.{SQUARED * 2}.join",
        f"{ID}.{ID}.{SQUARED * 12}.join",
        f"{ID}.{ID}.{ARABIC * 12}.join",
        f"{ID}.{ID}.{'9' * 5000}.join",
    ],
)
def test_an_object_of_another_name_is_no_note(name):
    assert NoteName.parse(name) is None


def test_joins_of_one_entry_complete_the_rebalance_at_once():
    merged = merge_notes(GroupMetadata(), [join("a"), join("b"), join("c")], 9)
    assert (merged.phase, merged.generation) == (GroupPhase.COMPLETING_REBALANCE, 1)
    assert all(group_member.is_joined for group_member in merged.members)


def test_new_members_wait_for_those_that_have_not_joined_and_do_not_make_the_others_join_again():
    merged = merge_notes(stable("a"), [join("b"), join("c")], 9)
    assert merged.phase is GroupPhase.PREPARING_REBALANCE
    assert awaited_members(merged) == {digest_of("a")}
    assert merge_notes(merged, [join("a", generation=1)], 9).phase is GroupPhase.COMPLETING_REBALANCE


@pytest.mark.parametrize(
    "late",
    [join("a", generation=0), join("b", instance_id="i"), join("c", assignor="another"), leave("a stranger")],
    ids=["of an older generation", "of a static member that was replaced", "refused", "of a member that is gone"],
)
def test_a_late_note_changes_nothing(late):
    replaced = GroupMember("b2", "i", "app", 45_000, 300_000, True, member("x").protocols)
    metadata = GroupMetadata("consumer", 1, "range", "a", GroupPhase.STABLE, 0, (member("a"), replaced))
    assert merge_notes(metadata, [late], 9) == metadata


def test_the_leader_gathers_and_the_first_member_where_it_is_gone():
    assert gatherer(stable("b", "a")) == "b"
    gone = merge_notes(stable("b", "a"), [leave("b")], 9)
    assert gatherer(gone) == "a"


class Roots:
    """Three roots that can fail, and coordinators of processes over them."""

    def __init__(self, store3):
        store3.create("orders")
        self.store3 = store3
        self.faulty = []
        self.groups = self.process()

    def process(self):
        cluster = self.store3.another_process().cluster
        brokers = cluster.brokers
        self.faulty = [FaultyStore(brokers.store(number)) for number in brokers.broker_ids]
        brokers.stores.update(dict(enumerate(self.faulty)))
        return GroupCoordinator(cluster, timeout_ms=1_000)

    def join_note(self, groups, member_id):
        record = GroupRecord("g", GroupMetadata(members=(member(member_id),)))
        return Note(NoteKind.JOIN, groups.command("g", MemberIdentity(member_id, "", 0), (record,)))

    def entries(self):
        cluster = self.store3.another_process().cluster
        ledger, _ = cluster.topic_state(cluster.lookup("__consumer_offsets"))
        return ledger.state.applied_index


@pytest.fixture
def roots(store3):
    return Roots(store3)


def test_one_entry_writes_what_all_notes_ask_for_and_the_notes_are_gone(roots):
    for name in "abc":
        other = roots.process()
        assert other.relay.send("g", roots.join_note(other, name)) is not None
    before = roots.entries()
    roots.groups.relay.write("g")
    assert roots.entries() == before + 1
    assert {group_member.member_id for group_member in roots.groups.group("g").metadata.members} == set("abc")
    assert roots.groups.relay.waiting("g") == []


def test_a_note_that_is_read_twice_or_by_two_writes_nothing_more(roots):
    for name in "ab":
        roots.groups.relay.send("g", roots.join_note(roots.groups, name))
    names = roots.groups.relay.waiting("g")
    notes = [roots.join_note(roots.groups, name) for name in "ab"]
    roots.groups.relay.write("g", (), names)
    entries, metadata = roots.entries(), roots.groups.group("g").metadata
    late = roots.process()
    late.group("g")
    late.relay.write("g", notes, ())
    assert (roots.entries(), roots.groups.group("g").metadata) == (entries, metadata)


def test_commits_and_signs_of_life_of_many_members_are_one_entry(roots):
    groups = roots.groups
    groups.relay.write("g", [roots.join_note(groups, name) for name in "abc"], ())
    groups.sync_group("g", MemberIdentity("a", "", 1), {})
    before = roots.entries()
    others = {name: roots.process() for name in ("b", "c", "a stranger")}
    commit = others["b"].prepare_commit("g", {P0: OffsetAndMetadata(7)}, MemberIdentity("b", "", 1))
    others["b"].relay.send("g", Note(NoteKind.COMMIT, commit))
    for name in ("c", "a stranger"):
        beat = others[name].command("g", MemberIdentity(name, "", 1))
        others[name].relay.send("g", Note(NoteKind.BEAT, beat))
    groups.relay.write("g")
    assert roots.entries() == before + 1
    state = groups.group("g")
    assert state.offsets["orders", 0].offset == 7
    assert set(state.beats) == set("abc")


def test_a_commit_that_waits_is_written_before_a_later_sign_of_life(roots):
    groups, who = roots.groups, MemberIdentity("a", "", 1)
    groups.relay.write("g", [roots.join_note(groups, "a")], ())
    groups.sync_group("g", who, {})
    commit = groups.prepare_commit("g", {P0: OffsetAndMetadata(7)}, who)
    groups.relay.send("g", Note(NoteKind.COMMIT, commit))
    groups.relay.write("g", [Note(NoteKind.BEAT, groups.command("g", who))])
    assert groups.group("g").offsets["orders", 0].offset == 7


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize("away", [0, 1, 2])
def test_notes_pass_while_one_root_is_away(roots, away):
    sender = roots.process()
    roots.faulty[away].is_down = True
    assert sender.relay.send("g", roots.join_note(sender, "a")) is not None
    reader = roots.process()
    roots.faulty[(away + 1) % 3].is_down = True
    assert [name.member for name in reader.relay.waiting("g")] == [digest_of("a")]


def test_without_a_majority_a_mailbox_takes_nothing_and_a_member_writes_for_itself(roots, store3):
    groups = roots.process()
    note = roots.join_note(groups, "a")
    for root in roots.faulty[:2]:
        root.is_down = True
    assert groups.relay.send("g", note) is None
    assert groups.relay.waiting("g") == []
    cluster = store3.another_process().cluster
    for number in (0, 1):
        cluster.brokers.stores[number] = roots.faulty[number]
    with pytest.raises(RetriableError) as refused:
        Mailbox(cluster, new_id()).put("name", b"data")
    assert refused.value.code is ErrorCode.REPLOG_NO_QUORUM


def test_a_damaged_note_does_not_keep_the_others_from_being_written(roots, store3):
    roots.groups.relay.send("g", roots.join_note(roots.groups, "a"))
    cluster = store3.cluster
    ledger_id = cluster.lookup("__consumer_offsets").ledger_id
    Mailbox(cluster, ledger_id).put(str(NoteName.of("g", "b", 0, NoteKind.JOIN)), b"damage")
    roots.groups.relay.write("g")
    assert [group_member.member_id for group_member in roots.groups.group("g").metadata.members] == ["a"]


class Hanging:
    """A root whose reads do not return before the test ends."""

    def __init__(self, store):
        self.store, self.url, self.ended = store, store.url, threading.Event()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, *args, **named):
        self.ended.wait(60)
        return self.store.get(*args, **named)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_root_that_hangs_does_not_hold_up_who_reads_notes(store3, number):
    cluster, ledger_id = store3.another_process().cluster, new_id()
    box = Mailbox(cluster, ledger_id)
    for name in "ab":
        box.put(name, name.encode())
    cluster.brokers.stores[number] = hanging = Hanging(cluster.brokers.store(number))
    answers = []
    reader = threading.Thread(target=lambda: answers.append(box.read("ab")), daemon=True)
    reader.start()
    reader.join(20)
    hanging.ended.set()
    assert answers == [{"a": b"a", "b": b"b"}]


def test_without_a_thread_a_mailbox_says_what_is_missing(store3, monkeypatch):
    box = Mailbox(store3.cluster, new_id())

    def refuse(*_args):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(IO_POOL, "submit_to", refuse)
        with pytest.raises(RetriableError, match="cannot start a thread"):
            box.put("a", b"a")
        assert box.read("a") == {}
        box.clear("a")
