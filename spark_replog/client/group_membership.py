"""A consumer's membership in its group: join, synchronise, send heartbeats, leave.

Source: Kafka's ``AbstractCoordinator`` and ``ConsumerCoordinator`` (eager rebalance). There is no broker. Each
member reads the fold and does the next step that is due; the ledger refuses late steps. So a member that missed a
rebalance can commit nothing afterwards.

Members do not compete for the ledger (ADR 19): each writes notes, and one member, the gatherer, writes the changes that
they request. The gatherer is the leader, or without one the first member; in an empty group the lowest note name is
first. A member whose note waits too long writes all notes itself, in name order, so no single member is required.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_replog.client.assignors import make_assignors
from spark_replog.client.subscription_state import SubscriptionState, TopicDiscovery
from spark_replog.clock import SYSTEM_RANDOM
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.config import ConsumerConfig
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.groups import group_rebalance
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import NO_MEMBER, MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind, NoteName, awaited_members, gatherer, member_digest
from spark_replog.groups.group_rebalance import (
    GroupSubscription,
    SilenceWatch,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    group_error,
)
from spark_replog.ids import TopicPartition, new_id
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log.model import GroupRecords

_LOG = logging.getLogger(__name__)
Listener = Callable[[list[TopicPartition]], None]

RANK_STEP_MS = 250
"""A member waits this much longer for each note with a lower name before it writes the notes itself."""
RANK_LOOKS = 4
"""Or, if longer, this many times as long as a read of the group takes: on slow storage, others' writes are slow too."""
FIRST_PATIENCE_MS = 500
WAIT_MS_MAX = 1_000
WAIT_SHARE = 8
"""A member that waits for others reads the group again after the time since its last change, divided by this."""
LOOK_STEP_MS = 10
"""Or, if longer, after this much per member: up to 100 members together read the group about 100 times a second."""
SETTLED_LOOK_GETS = 2.25
"""What a look at a group costs in which nothing changes: a peek, and its share of whole reads and of heartbeats."""
_EXPECTED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
"""Errors that the next read of the group explains."""


class MemberState(Enum):
    """State of a member. Source: ``AbstractCoordinator.MemberState``."""

    UNJOINED = "unjoined"
    """The group does not contain it."""
    JOINING = "joining"
    """It has asked to join; the group does not contain it yet."""
    REBALANCING = "rebalancing"
    """The group contains it; it has no partitions and waits for the assignment."""
    STABLE = "stable"
    """It has its partitions."""


_TRANSITIONS = {
    MemberState.UNJOINED: {MemberState.JOINING},
    MemberState.JOINING: {MemberState.REBALANCING, MemberState.UNJOINED},
    MemberState.REBALANCING: {MemberState.STABLE, MemberState.UNJOINED},
    MemberState.STABLE: {MemberState.REBALANCING, MemberState.UNJOINED},
}


@dataclass(slots=True)
class _Request:
    """A change that this member requested from the group.

    Attributes:
        name: of the note; None: there is none, because this member writes for the group or the roots accept no notes.
        generation: of the group at the time of the request.
    """

    note: Note
    name: NoteName | None
    since_ms: int
    generation: int


class GroupMembership:
    """Keeps the assignment of a subscription. The application's thread calls ``poll`` and ``close``.

    Args:
        config: ``group.id`` and its timeouts.
        last_commit: returns the commit to make before partitions are revoked, None if there is nothing to commit.
        on_look: called each time a waiting poll reads the group again; an error that it raises ends the poll.
        on_gets: called with the number of gets that a waiting consumer makes here.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCoordinator,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        *,
        last_commit: Callable[[], GroupRecords | None],
        on_look: Callable[[], None],
        on_gets: Callable[[float], None],
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._config = config
        self._group = config.group_id or ""
        self._subscription = subscription
        self._last_commit = last_commit
        self._on_look = on_look
        self._on_gets = on_gets
        self._assignors = make_assignors(config.partition_assignment_strategy)
        self._discovery = TopicDiscovery(cluster, subscription, config, on_gets)
        self._listeners: tuple[Listener | None, Listener | None, Listener | None] = (None, None, None)
        self._state = MemberState.UNJOINED
        self.identity: MemberIdentity = NO_MEMBER
        self._request: _Request | None = None
        self._revoked: list[TopicPartition] = []
        self._counts: dict[str, int] = {}
        self._joined_topics: tuple[str, ...] = ()
        self._is_enforced = False
        self._is_fenced = False
        self._looked_ms: int | None = None
        self._look_at_ms = 0.0
        self._took_ms = 0
        self._seen_revision = 0
        self._changed_ms = 0
        self._crowd_count = 0
        self._polled_ms = 0
        self._rebalance_seen: tuple[int, int] | None = None
        self._life = _SignsOfLife(coordinator, config)
        self._watch = SilenceWatch()
        self._peek = JournalPeek(cluster.brokers)
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None) -> None:
        """Call these from ``poll`` when partitions are assigned, revoked or lost."""
        self._listeners = (assigned, revoked, lost)
        self._discovery.forget()
        self._looked_ms = None

    @property
    def writes_alone(self) -> bool:
        """Return whether this consumer writes its own commits: it is the gatherer, or has no stable membership."""
        return self._state is not MemberState.STABLE or self._life.is_gatherer

    @property
    def is_member(self) -> bool:
        """Return whether this consumer takes part in its group."""
        return self._state is not MemberState.UNJOINED

    def take_revoked(self) -> list[TopicPartition]:
        """Return, once, the partitions that were revoked since the last call."""
        revoked, self._revoked = self._revoked, []
        return revoked

    def poll(self, deadline_ms: int) -> None:
        """Do the next steps; return when this member has its assignment, or at the deadline.

        Raises:
            FencedError: FENCED_INSTANCE_ID: a newer process has taken this instance id.
            InvalidConfigError: INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT.
            RetriableError: REPLOG_NO_QUORUM.
        """
        if not self._subscription.is_subscribed:
            return
        if self._config.group_id is None:
            self._assign_all()
            return
        clock = self._cluster.clock
        now_ms = clock.monotonic_ms()
        while True:
            self._polled_ms = now_ms  # a poll that waits for others is no reason to leave
            if self._state is MemberState.STABLE or now_ms >= self._look_at_ms:  # the time is kept across short polls
                if self._step():
                    return
                now_ms = clock.monotonic_ms()
                self._look_at_ms = now_ms + self._pause_ms(now_ms - self._changed_ms)
            if now_ms >= deadline_ms:
                return
            clock.sleep_ms(min(deadline_ms, self._look_at_ms) - now_ms)
            self._on_look()
            now_ms = clock.monotonic_ms()

    def note_sign_of_life(self) -> None:
        """Count a decided commit as a heartbeat."""
        self._life.shown(self._cluster.clock.monotonic_ms())

    def send_commit(self, commit: GroupRecords) -> bool:
        """Write a note with a commit for the gatherer; False: the roots do not accept notes."""
        return self._coordinator.relay.send(self._group, Note(NoteKind.COMMIT, commit)) is not None

    def enforce_rebalance(self) -> None:
        """Begin a rebalance at the next poll, although nothing changed."""
        self._is_enforced = True
        self._looked_ms = None

    def look_again(self) -> bool:
        """Search for the topics and their partitions again at the next poll; return False without a subscription."""
        if not self._subscription.is_subscribed:
            return False
        self._discovery.forget()
        self._looked_ms = None
        return True

    def leave(self) -> None:
        """Leave the group; a failure is logged, and the session then expires.

        A static member stays in the group until its session expires.
        """
        self._counts, self._is_fenced = {}, False
        if self._state is MemberState.UNJOINED or self._config.group_id is None:
            return
        self._call_listener(1, list(self._subscription.positions))
        with self._lock:
            commit = self._last_commit()  # after those of the listener: sequences are decided in their order
            self._move(MemberState.UNJOINED)
        try:
            self._give_place_up(commit)
        except ReplogError as error:
            _LOG.warning("member %s could not leave its group: %s", self.identity.member_id, error)
        self.identity = NO_MEMBER

    def close(self) -> None:
        """Leave the group and stop the heartbeats."""
        self._closed.set()
        self.leave()
        if self._thread is not None:
            self._thread.join()

    def beat_if_due(self) -> None:
        """Send a heartbeat if one is due, or leave if the application stopped polling. Any thread.

        Raises:
            ReplogError: the group's answer; the next ``poll`` gets it too.
        """
        with self._lock:
            now_ms = self._cluster.clock.monotonic_ms()
            if self._state in (MemberState.UNJOINED, MemberState.JOINING):
                return
            if now_ms - self._polled_ms >= self._config.max_poll_interval_ms:
                _LOG.warning(
                    "member %s of group %s leaves: no poll for %s ms. Raise max.poll.interval.ms or lower"
                    " max.poll.records.",
                    self.identity.member_id,
                    self._group,
                    now_ms - self._polled_ms,
                )
                self._move(MemberState.UNJOINED)
                self._give_place_up(None)
                return
            if self._looked_ms is None or now_ms - self._looked_ms >= 2 * self._config.heartbeat_interval_ms:
                self._life.look(self._coordinator.group(self._group), self.identity)  # the application has not read it
            commit = None if self._request is None else self._request.note.commit
            self._life.show(self._group, self.identity, now_ms, commit)

    # ------------------------------------------------------------------------------------- internal

    def _move(self, state: MemberState) -> None:
        assert state in _TRANSITIONS[self._state], f"{self._state} -> {state}"
        self._state = state

    def _give_place_up(self, commit: GroupRecords | None) -> None:
        """Leave the group and wait. The gatherer writes; others leave a note, and write it themselves if it waits."""
        relay, clock, me = self._coordinator.relay, self._cluster.clock, self.identity.member_id
        request, self._request = self._request, None
        if self.identity.instance_id:  # source: AbstractCoordinator.maybeLeaveGroup
            if commit is not None:
                relay.write(self._group, [Note(NoteKind.COMMIT, commit)], ())
            return
        note = Note(NoteKind.LEAVE, self._coordinator.command(self._group, self.identity), commit)
        if request is not None and request.name is not None:
            relay.withdraw([request.name])
        if self._life.is_gatherer:
            relay.write(self._group, [note])
            return
        name = relay.send(self._group, note)
        if name is None:
            relay.write(self._group, [note], ())
            return
        start_ms = clock.monotonic_ms()
        for _ in range(100):
            state = self._newest()
            if state is None or state.metadata.member(me) is None:
                break
            names = relay.waiting(self._group)
            if clock.monotonic_ms() - start_ms >= self._rank_ms(_rank(names, name)):
                relay.write(self._group, [note], names)
                break
            clock.sleep_ms(self._pause_ms(clock.monotonic_ms() - start_ms))
        relay.withdraw([name])

    def _assign_all(self) -> None:
        """Without a group: assign all partitions of the topics; refreshed after ``metadata.max.age.ms``."""
        counts = self._discovery.counts()
        if counts == self._counts:
            return
        keys = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        before = set(self._subscription.positions)
        self._subscription.set_assignment(keys)
        self._counts = counts
        self._revoked += sorted(before - set(keys))
        self._call_listener(1, sorted(before - set(keys)))
        self._call_listener(0, sorted(set(keys) - before))

    def _newest(self) -> GroupState | None:
        began_ms = self._cluster.clock.monotonic_ms()
        try:
            is_settled = self._state is MemberState.STABLE and not self._is_enforced
            state = self._coordinator.group(self._group, self._peek if is_settled else None)
            if is_settled:
                self._on_gets(SETTLED_LOOK_GETS)
        except RetriableError:
            self._watch.forget()
            raise
        self._took_ms = self._cluster.clock.monotonic_ms() - began_ms
        return state

    def _rank_ms(self, rank: int) -> int:
        """Return how long a member waits for others, given the number of notes before its own."""
        return rank * max(RANK_STEP_MS, RANK_LOOKS * self._took_ms)

    def _pause_ms(self, waited_ms: int) -> float:
        """Return how long to wait before the next read of the group, given how long it has not changed."""
        pause_ms: float = self._config.retry_backoff_ms
        if not self._life.is_gatherer:
            pause_ms = max(pause_ms, waited_ms // WAIT_SHARE, self._crowd_count * LOOK_STEP_MS)
        return min(pause_ms, WAIT_MS_MAX) * SYSTEM_RANDOM.uniform(0.8, 1.2)

    def _step(self) -> bool:
        """Do the steps that are due; return whether this member has its assignment."""
        now_ms = self._cluster.clock.monotonic_ms()
        if (
            self._state is MemberState.STABLE
            and self._looked_ms is not None
            and now_ms - self._looked_ms < self._config.heartbeat_interval_ms
        ):
            return True
        self._looked_ms = now_ms
        for _ in range(4):  # this member's own write may make the next step due
            state = self._newest()
            before = None if state is None else state.revision
            try:
                if self._look(state, now_ms):
                    return True
            except (FencedError, RetriableError, OutcomeUnknownError) as error:
                is_late = error.code in _EXPECTED
                if not is_late and not isinstance(error, (RetriableError, OutcomeUnknownError)):
                    raise
                if not is_late:
                    _LOG.info("group %s: %s", self._group, error)
                    self._watch.forget()
                return False
            after = self._coordinator.folded_revision(self._group)
            if after == before:
                return False
        return False

    def _look(self, state: GroupState | None, now_ms: int) -> bool:
        metadata = GroupMetadata() if state is None else state.metadata
        self._crowd_count = len(metadata.members)
        if state is not None and state.revision != self._seen_revision:
            self._seen_revision, self._changed_ms = state.revision, now_ms
        if self._state is MemberState.JOINING and metadata.member(self.identity.member_id) is None:
            self._check_request(metadata)
        if self._state is MemberState.UNJOINED:
            self._drop_assignment(is_lost=self.identity is not NO_MEMBER)
            if self._is_fenced:
                self._refuse_if_fenced(metadata)  # again: to join would fence the newer process
            self._join(metadata, now_ms)
        me = metadata.member(self.identity.member_id)
        if me is None or state is None:
            if self._state is MemberState.JOINING:
                self._follow_request(metadata, now_ms)
                return False
            with self._lock:
                self._move(MemberState.UNJOINED)
                self._request = None
            self._drop_assignment(is_lost=True)  # now: others own the partitions, and this poll must not return rows
            self._refuse_if_fenced(metadata)
            return False
        with self._lock:
            if self._state is MemberState.JOINING:
                self._move(MemberState.REBALANCING)
                self._request = None
            self._life.look(state, self.identity)
        if self._state is MemberState.STABLE and self.identity.generation != metadata.generation:
            self._drop_assignment(is_lost=True)  # a rebalance ended without this static member
            with self._lock:
                self._move(MemberState.REBALANCING)
        self._remove_silent(state, now_ms)
        if metadata.phase is GroupPhase.PREPARING_REBALANCE:
            self._rebalance(metadata, me, now_ms)
        elif metadata.phase is GroupPhase.COMPLETING_REBALANCE:
            self._request = None
            if metadata.leader == me.member_id:
                who = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
                self._coordinator.sync_group(self._group, who, self._assign(metadata))
        else:
            return self._settle(metadata, me, now_ms)
        self.beat_if_due()  # a member that waits for a slow one still sends heartbeats
        return False

    def _settle(self, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> bool:
        """In a stable group: adopt the assignment, or request a rebalance; return whether this member has one."""
        request = self._request
        if request is not None and request.generation == metadata.generation:
            self._follow_request(metadata, now_ms)
            return False
        self._request = None
        if self.identity.generation != metadata.generation:
            self._adopt(metadata, me)
        elif self._is_enforced or self._wants_others() or (metadata.leader == me.member_id and self._has_grown()):
            self._rejoin(metadata, now_ms)
            self._follow_request(metadata, now_ms)
            return False
        self.beat_if_due()
        if self._life.is_gatherer and len(metadata.members) > 1:
            names = self._coordinator.relay.waiting(self._group)
            if any(name.kind is not NoteKind.BEAT for name in names):
                self._coordinator.relay.write(self._group, (), names)
        return True

    def _rebalance(self, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> None:
        """Join the running rebalance; the gatherer writes all joins once every note has arrived."""
        if not me.is_joined and (self._request is None or self._request.generation != metadata.generation):
            self._rejoin(metadata, now_ms)
        if self._is_overdue(metadata, me, now_ms):
            self._coordinator.drop_absent(self._group, metadata.generation)
        elif not self._life.is_gatherer:
            if not me.is_joined:
                self._follow_request(metadata, now_ms)
        else:
            names = self._coordinator.relay.waiting(self._group)
            joined = {name.member for name in names if name.kind.is_urgent} | {member_digest(me.member_id)}
            if awaited_members(metadata) <= joined:
                self._write(names)

    def _refuse_if_fenced(self, metadata: GroupMetadata) -> None:
        """Raise FENCED_INSTANCE_ID while another process has this instance id."""
        self._is_fenced = metadata.instance(self.identity.instance_id) is not None
        if self._is_fenced:
            raise group_error(ErrorCode.FENCED_INSTANCE_ID, f"group '{self._group}'")

    def _check_request(self, metadata: GroupMetadata) -> None:
        """Begin to join again where the group will not take up what this member asked, if it asked at all.

        Raises:
            InvalidConfigError: INCONSISTENT_GROUP_PROTOCOL: members with other assignors came first.
        """
        asked = None if self._request is None else self._request.note.member
        if asked is not None and metadata.instance(asked.instance_id) is None:
            group_rebalance.join(metadata, asked, 0)
            return
        with self._lock:
            self._move(MemberState.UNJOINED)
            self._request = None
        self._is_fenced = asked is not None  # by a process that was faster; else the attempt failed on its way

    def _join(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Ask to join with a new member id: the previous one may be fenced."""
        instance_id = self._config.group_instance_id or ""
        with self._lock:
            self._move(MemberState.JOINING)
            self.identity = MemberIdentity(f"{instance_id or self._config.client_id}-{new_id()}", instance_id, -1)
            self._life.begin(now_ms)
            self._changed_ms = now_ms
            self._watch = SilenceWatch()
        member = self._as_member(())
        group_rebalance.join(metadata, member, 0)  # raises if the group would refuse it
        if metadata.instance(instance_id) is not None:
            self._coordinator.join_group(self._group, member)
        else:
            self._ask(metadata, member, None, now_ms)
        if self._thread is None:
            self._thread = DaemonThread(self._beat, name="replog-heartbeat", stop=self._closed.set)
            self._thread.start()

    def _rejoin(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Give up the partitions and ask to join the rebalance; the note lists the partitions owned before."""
        keys = list(self._subscription.positions)
        self._call_listener(1, keys)
        with self._lock:  # no heartbeat between the commit and the note that contains it
            member = self._as_member(tuple(sorted(keys)))
            commit = self._last_commit()  # after those of the listener: sequences are decided in their order
            self._is_enforced = True  # until it has asked: else one that is interrupted here would never ask
            self._forget_assignment(keys)
            self._ask(metadata, member, commit, now_ms)
            self._is_enforced = False
            if self._state is MemberState.STABLE:
                self._move(MemberState.REBALANCING)
            self.identity = MemberIdentity(member.member_id, member.instance_id, -1)

    def _ask(self, metadata: GroupMetadata, member: GroupMember, commit: GroupRecords | None, now_ms: int) -> None:
        who = MemberIdentity(member.member_id, member.instance_id, metadata.generation)
        record = GroupRecord(self._group, GroupMetadata(members=(member,)))
        note = Note(NoteKind.JOIN, self._coordinator.command(self._group, who, (record,)), commit)
        name = None if self._life.is_gatherer else self._coordinator.relay.send(self._group, note)
        self._request = _Request(note, name, now_ms, metadata.generation)

    def _follow_request(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Write the waiting notes if no other member is due to, or if none did so in time."""
        request = self._request
        if request is None:
            return
        if request.name is None:
            self._write(None if self._life.is_gatherer else [])
            return
        is_gathered = metadata.phase in (GroupPhase.PREPARING_REBALANCE, GroupPhase.COMPLETING_REBALANCE)
        patience_ms = 3 * self._config.heartbeat_interval_ms if is_gathered else 0
        waited_ms = now_ms - request.since_ms
        if waited_ms < patience_ms:
            return
        names = self._coordinator.relay.waiting(self._group)
        self._crowd_count = max(self._crowd_count, len(names))
        rank = _rank(names, request.name)
        if rank:
            patience_ms += FIRST_PATIENCE_MS + self._rank_ms(rank)
        if waited_ms >= patience_ms:
            self._write(names)

    def _write(self, names: list[NoteName] | None) -> None:
        request = self._request
        own = (
            [] if request is None or (names and request.name is not None and request.name in names) else [request.note]
        )
        self._coordinator.relay.write(self._group, own, names)

    def _as_member(self, owned: tuple[TopicPartition, ...]) -> GroupMember:
        self._joined_topics = tuple(sorted(self._discovery.counts()))
        self._is_enforced = False
        subscription = encode_subscription(GroupSubscription(self._joined_topics, owned, self.identity.generation))
        return GroupMember(
            self.identity.member_id,
            self.identity.instance_id,
            self._config.client_id,
            self._config.session_timeout_ms,
            self._config.max_poll_interval_ms,
            True,
            tuple((name, subscription) for name in self._assignors),
        )

    def _assign(self, metadata: GroupMetadata) -> dict[str, bytes]:
        """Return the leader's assignment; members in Kafka's order: static ones by instance, first."""
        members = sorted(metadata.members, key=lambda each: (not each.instance_id, each.instance_id or each.member_id))
        wants = {each.member_id: decode_subscription(dict(each.protocols)[metadata.protocol]) for each in members}
        topics = {topic for each in wants.values() for topic in each.topics}
        self._counts = self._discovery.counts_of(topics)
        assigned = self._assignors[metadata.protocol](self._counts, wants)
        return {member: encode_assignment(keys) for member, keys in assigned.items()}

    def _adopt(self, metadata: GroupMetadata, me: GroupMember) -> None:
        keys = decode_assignment(me.assignment)
        with self._lock:
            if self._state is not MemberState.STABLE:
                self._move(MemberState.STABLE)
            self.identity = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
        self._subscription.set_assignment(keys)
        _LOG.info(
            "member %s of group %s has %s partitions in generation %s",
            me.member_id,
            self._group,
            len(keys),
            metadata.generation,
        )
        self._call_listener(0, list(keys))

    def _drop_assignment(self, *, is_lost: bool) -> None:
        keys = list(self._subscription.positions)
        self._call_listener(2 if is_lost and self._listeners[2] is not None else 1, keys)
        self._forget_assignment(keys)

    def _forget_assignment(self, keys: list[TopicPartition]) -> None:
        self._revoked += keys
        self._subscription.set_assignment(())

    def _wants_others(self) -> bool:
        """Return whether the subscription now matches other topics; checked once per ``metadata.max.age.ms``."""
        return tuple(sorted(self._discovery.counts())) != self._joined_topics

    def _has_grown(self) -> bool:
        """Return whether the topics' partition counts, as folded, have changed since the assignment."""
        return bool(self._counts) and self._discovery.counts_of(set(self._counts)) != self._counts

    def _is_overdue(self, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> bool:
        """Return whether the rebalance timed out by this member's clock; members check at different times."""
        if self._rebalance_seen is None or self._rebalance_seen[0] != metadata.generation:
            self._rebalance_seen = (metadata.generation, now_ms)
        limit_ms = max(each.rebalance_timeout_ms for each in metadata.members) + _turn_ms(metadata, me.member_id)
        return now_ms - self._rebalance_seen[1] >= limit_ms

    def _remove_silent(self, state: GroupState, now_ms: int) -> None:
        """Remove members that sent no heartbeat for their session timeout, by this process's clock."""
        turn_ms = _turn_ms(state.metadata, self.identity.member_id)
        for member, beats, silent_ms in self._watch.look(state, now_ms):
            if member.member_id != self.identity.member_id and silent_ms >= member.session_timeout_ms + turn_ms:
                _LOG.warning(
                    "member %s of group %s sent no heartbeat within session.timeout.ms; removing it",
                    member.member_id,
                    self._group,
                )
                self._coordinator.remove_silent(self._group, member.member_id, beats)

    def _call_listener(self, number: int, keys: list[TopicPartition]) -> None:
        listener = self._listeners[number]
        if listener is not None and keys:
            listener(keys)

    def _beat(self) -> None:
        interval_ms = min(self._config.heartbeat_interval_ms, self._config.session_timeout_ms // 6)
        while not self._closed.wait(interval_ms * SYSTEM_RANDOM.uniform(0.8, 1.0) / 1000.0):
            try:
                self.beat_if_due()
            except ReplogError as error:
                if isinstance(error, (RetriableError, OutcomeUnknownError)):
                    self._watch.forget()
                _LOG.info("heartbeat of member %s: %s", self.identity.member_id, error)
            except Exception:  # without this thread the session would expire
                _LOG.warning("heartbeat of member %s failed", self.identity.member_id, exc_info=True)


class _SignsOfLife:
    """The heartbeats in the fold, and when this member's next one is due. Guarded by the membership's lock.

    The gatherer writes one entry per third of the session timeout: its own heartbeat and those in the notes. The others
    write a note per quarter, and write all notes themselves if theirs was not written for half of the timeout, one
    after the other within an eighth. So the fold shows every member at least once in 7/8 of the session timeout,
    whichever member died.
    """

    def __init__(self, coordinator: GroupCoordinator, config: ConsumerConfig) -> None:
        self._coordinator = coordinator
        self._session_ms = config.session_timeout_ms
        self.is_gatherer = False
        self._generation = -1
        self._own_beats = -1
        self._shown_ms = 0
        self._turn_ms = 0
        self._asked_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Begin as a new member."""
        self.is_gatherer, self._generation, self._own_beats = False, -1, -1
        self.shown(now_ms)

    def shown(self, now_ms: int) -> None:
        """Note that this member's heartbeat was decided."""
        self._shown_ms, self._asked_ms = now_ms, None

    def look(self, state: GroupState | None, identity: MemberIdentity) -> None:
        """Read the newest fold."""
        if state is None or state.metadata.member(identity.member_id) is None:
            return
        self.is_gatherer = gatherer(state.metadata) == identity.member_id
        self._generation = state.metadata.generation
        order = [each.member_id for each in state.metadata.members]
        self._turn_ms = self._session_ms // 8 * order.index(identity.member_id) // len(order)
        beats = state.beats.get(identity.member_id, 0)
        if beats != self._own_beats:
            self._own_beats, self._asked_ms = beats, None

    def show(self, group: str, identity: MemberIdentity, now_ms: int, commit: GroupRecords | None) -> None:
        """Send a heartbeat if one is due.

        Args:
            commit: of this member, made before and not written yet: it would be refused after the heartbeat.

        Raises:
            ReplogError: what ``GroupRelay`` raises.
        """
        relay, silent_ms = self._coordinator.relay, now_ms - self._shown_ms
        if self._generation < 0 or silent_ms < self._session_ms // 4:
            return
        if self.is_gatherer and silent_ms < self._session_ms // 3:
            return
        if self._asked_ms is not None:
            if now_ms - self._asked_ms < self._session_ms // 2 + self._turn_ms:
                return
            beats = self._own_beats
            self.look(self._coordinator.group(group), identity)  # an earlier member may have written all notes by now
            if self._own_beats != beats:
                return
        who = MemberIdentity(identity.member_id, identity.instance_id, self._generation)
        note = Note(NoteKind.BEAT, self._coordinator.command(group, who))
        if self.is_gatherer or self._asked_ms is not None:
            self.shown(now_ms)
            relay.write(group, [*([] if commit is None else [Note(NoteKind.COMMIT, commit)]), note])
        else:
            self._shown_ms = self._asked_ms = now_ms
            if relay.send(group, note) is None:
                relay.write(group, [note], ())


def _rank(names: list[NoteName], own: NoteName) -> int:
    """Return the number of urgent notes with a lower name: their members write first."""
    return sum(name.kind.is_urgent and (name.member, name.number) < (own.member, own.number) for name in names)


def _turn_ms(metadata: GroupMetadata, member_id: str) -> int:
    """Return how much later than the gatherer this member acts."""
    if gatherer(metadata) == member_id:
        return 0
    order = [each.member_id for each in metadata.members]
    return (1 + order.index(member_id)) * RANK_STEP_MS if member_id in order else 0
