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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from spark_replog.client.group_assignment import GroupAssignment, Listener
from spark_replog.client.group_timing import Heartbeats, Pace, SignsOfLife, rank_of, turn_ms
from spark_replog.client.subscription_state import SubscriptionState
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.groups import group_rebalance
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import NO_MEMBER, MemberIdentity
from spark_replog.groups.group_notes import Note, NoteKind, NoteName, awaited_members, digest_of
from spark_replog.groups.group_rebalance import SilenceWatch, decode_assignment, group_error
from spark_replog.ids import TopicPartition, new_id
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, GroupRecord
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log.model import GroupRecords

_LOG = logging.getLogger(__name__)

FIRST_PATIENCE_MS = 500
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class _Standing:
    """What this member is and what it waits for; replaced as a whole.

    Attributes:
        identity: under which it commits; its generation is that of its assignment, -1 without one.
        is_fenced: another process may have its instance id: to join would fence that one.
    """

    state: MemberState = MemberState.UNJOINED
    identity: MemberIdentity = NO_MEMBER
    request: _Request | None = None
    is_fenced: bool = False


class _Place(Enum):
    """How a read of the group shows this member."""

    ABSENT = "absent"
    LISTED = "listed"
    OUTDATED = "outdated"
    """Listed, and a rebalance has ended without it: a static member that was away."""


class _View(NamedTuple):
    """A read of the group, and this member in it."""

    group: GroupState | None
    metadata: GroupMetadata
    me: GroupMember | None
    now_ms: int


class GroupMembership:
    """Keeps the assignment of a subscription. The application's thread calls ``poll`` and ``close``.

    ``_STEPS`` says which step follows from this member's state and its place in the group.

    Args:
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
        self._clock = cluster.clock
        self._coordinator = coordinator
        self._config = config
        self._group = config.group_id or ""
        self._last_commit = last_commit
        self._on_look = on_look
        self._on_gets = on_gets
        self._assignment = GroupAssignment(cluster, config, subscription, on_gets)
        self._standing = _Standing()
        self._is_enforced = False
        self._pace = Pace(config.retry_backoff_ms)
        self._life = SignsOfLife(coordinator, config)
        self._watch = SilenceWatch()
        self._peek = JournalPeek(cluster.brokers)
        self._lock = threading.RLock()
        """Held where the heartbeat's thread must see the change of several values as one."""
        self._beats = Heartbeats(self._beat, config)

    def listen(self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None) -> None:
        """Call these from ``poll`` when partitions are assigned, revoked or lost."""
        self._assignment.listen(assigned, revoked, lost)
        self._pace.looked_ms = None

    @property
    def identity(self) -> MemberIdentity:
        """Return under which identity this member commits."""
        return self._standing.identity

    @property
    def writes_alone(self) -> bool:
        """Return whether this consumer writes its own commits: it is the gatherer, or has no stable membership."""
        return self._standing.state is not MemberState.STABLE or self._life.is_gatherer

    @property
    def is_member(self) -> bool:
        """Return whether this consumer takes part in its group."""
        return self._standing.state is not MemberState.UNJOINED

    def take_revoked(self) -> list[TopicPartition]:
        """Return, once, the partitions that were revoked since the last call."""
        return self._assignment.take_revoked()

    def poll(self, deadline_ms: int) -> None:
        """Do the next steps; return when this member has its assignment, or at the deadline.

        Raises:
            FencedError: FENCED_INSTANCE_ID: a newer process has taken this instance id.
            InvalidConfigError: INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT.
            RetriableError: REPLOG_NO_QUORUM.
        """
        if not self._assignment.subscription.is_subscribed:
            return
        if self._config.group_id is None:
            self._assignment.assign_all()
            return
        clock, pace = self._clock, self._pace
        now_ms = clock.monotonic_ms()
        while True:
            self._life.polled_ms = now_ms  # a poll that waits for others is no reason to leave
            if self._standing.state is MemberState.STABLE or now_ms >= pace.look_at_ms:
                if self._step():
                    return
                now_ms = clock.monotonic_ms()
                pace.look_at_ms = now_ms + pace.pause_ms(now_ms - pace.changed_ms, is_gatherer=self._life.is_gatherer)
            if now_ms >= deadline_ms:
                return
            clock.sleep_ms(min(deadline_ms, pace.look_at_ms) - now_ms)
            self._on_look()
            now_ms = clock.monotonic_ms()

    def note_sign_of_life(self) -> None:
        """Count a decided commit as a heartbeat."""
        self._life.shown(self._clock.monotonic_ms())

    def send_commit(self, commit: GroupRecords) -> bool:
        """Write a note with a commit for the gatherer; False: the roots do not accept notes."""
        return self._coordinator.relay.send(self._group, Note(NoteKind.COMMIT, commit)) is not None

    def enforce_rebalance(self) -> None:
        """Begin a rebalance at the next poll, although nothing changed."""
        self._is_enforced = True
        self._pace.looked_ms = None

    def look_again(self) -> bool:
        """Search for the topics and their partitions again at the next poll; return False without a subscription."""
        if not self._assignment.subscription.is_subscribed:
            return False
        self._assignment.look_again()
        self._pace.looked_ms = None
        return True

    def leave(self) -> None:
        """Leave the group; a failure is logged, and the session then expires.

        A static member stays in the group until its session expires.
        """
        self._assignment.forget_counts()
        self._standing = replace(self._standing, is_fenced=False)
        if self._standing.state is MemberState.UNJOINED or self._config.group_id is None:
            return
        self._assignment.tell_revoked()
        with self._lock:
            commit = self._last_commit()  # after those of the listener: sequences are decided in their order
            self._move(MemberState.UNJOINED)
        try:
            self._give_place_up(commit)
        except ReplogError as error:
            _LOG.warning("member %s could not leave its group: %s", self.identity.member_id, error)
        self._standing = replace(self._standing, identity=NO_MEMBER)

    def close(self) -> None:
        """Leave the group and stop the heartbeats."""
        self._beats.stop()
        self.leave()
        self._beats.join()

    def beat_if_due(self) -> None:
        """Send a heartbeat if one is due, or leave if the application stopped polling. Any thread.

        Raises:
            ReplogError: the group's answer; the next ``poll`` gets it too.
        """
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._standing.state in (MemberState.UNJOINED, MemberState.JOINING):
                return
            if now_ms - self._life.polled_ms >= self._config.max_poll_interval_ms:
                _LOG.warning(
                    "member %s of group %s leaves: no poll for %s ms. Raise max.poll.interval.ms or lower"
                    " max.poll.records.",
                    self.identity.member_id,
                    self._group,
                    now_ms - self._life.polled_ms,
                )
                self._move(MemberState.UNJOINED)
                self._give_place_up(None)
                return
            if not self._pace.is_younger(2 * self._config.heartbeat_interval_ms, now_ms):
                self._life.look(self._coordinator.group(self._group), self.identity)  # the application has not read it
            request = self._standing.request
            commit = None if request is None else request.note.commit
            self._life.show(self._group, self.identity, now_ms, commit)

    # ------------------------------------------------------------------------------------- internal

    def _move(self, state: MemberState, **more: object) -> None:
        assert state in _TRANSITIONS[self._standing.state], f"{self._standing.state} -> {state}"
        self._standing = replace(self._standing, state=state, **more)  # type: ignore[arg-type]

    def _give_place_up(self, commit: GroupRecords | None) -> None:
        """Leave the group and wait. The gatherer writes; others leave a note, and write it themselves if it waits."""
        relay, clock, me = self._coordinator.relay, self._clock, self.identity.member_id
        request, self._standing = self._standing.request, replace(self._standing, request=None)
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
            if clock.monotonic_ms() - start_ms >= self._pace.rank_ms(rank_of(names, name)):
                relay.write(self._group, [note], names)
                break
            clock.sleep_ms(self._pace.pause_ms(clock.monotonic_ms() - start_ms, is_gatherer=False))
        relay.withdraw([name])

    def _newest(self) -> GroupState | None:
        began_ms = self._clock.monotonic_ms()
        try:
            is_settled = self._standing.state is MemberState.STABLE and not self._is_enforced
            state = self._coordinator.group(self._group, self._peek if is_settled else None)
            if is_settled:
                self._on_gets(SETTLED_LOOK_GETS)
        except RetriableError:
            self._watch.forget()
            raise
        self._pace.took_ms = self._clock.monotonic_ms() - began_ms
        return state

    def _step(self) -> bool:
        """Do the steps that are due; return whether this member has its assignment."""
        now_ms = self._clock.monotonic_ms()
        is_settled = self._standing.state is MemberState.STABLE
        if is_settled and self._pace.is_younger(self._config.heartbeat_interval_ms, now_ms):
            return True
        self._pace.looked_ms = now_ms
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
            folded = self._coordinator.folded(self._group)
            if before == (None if folded is None else folded.revision):
                return False
        return False

    def _look(self, group: GroupState | None, now_ms: int) -> bool:
        """Do what this member's state and its place in the group ask for; return whether it has its assignment."""
        self._pace.note(group, now_ms)
        metadata = GroupMetadata() if group is None else group.metadata
        while True:
            standing = self._standing
            me = metadata.member(standing.identity.member_id)
            is_old = standing.state is MemberState.STABLE and standing.identity.generation != metadata.generation
            place = _Place.ABSENT if me is None else _Place.OUTDATED if is_old else _Place.LISTED
            has_assignment = _STEPS[standing.state, place](self, _View(group, metadata, me, now_ms))
            if has_assignment is not None:
                return has_assignment

    # Each step returns whether this member has its assignment; None: it has another state now, so look at the table.

    def _join(self, view: _View) -> bool:
        """Ask to join with a new member id: the previous one may be fenced."""
        metadata, now_ms = view.metadata, view.now_ms
        self._assignment.lose(is_told=self.identity is not NO_MEMBER)
        if self._standing.is_fenced:
            self._refuse_if_fenced(metadata)  # again: to join would fence the newer process
        instance_id = self._config.group_instance_id or ""
        identity = MemberIdentity(f"{instance_id or self._config.client_id}-{new_id()}", instance_id, -1)
        with self._lock:
            self._move(MemberState.JOINING, identity=identity)
            self._life.begin(now_ms)
            self._pace.changed_ms = now_ms
            self._watch = SilenceWatch()
        member = self._as_member(())
        group_rebalance.join(metadata, member, 0)  # raises if the group would refuse it
        if metadata.instance(instance_id) is not None:
            self._coordinator.join_group(self._group, member)
        else:
            self._ask(metadata, member, None, now_ms)
        self._beats.start()
        self._follow_request(metadata, now_ms)
        return False

    def _await_place(self, view: _View) -> bool | None:
        """Wait for the group to take this member up; begin again if it will not, or if nothing was asked.

        Raises:
            InvalidConfigError: INCONSISTENT_GROUP_PROTOCOL: members with other assignors came first.
        """
        request = self._standing.request
        asked = None if request is None else request.note.member
        if asked is not None and view.metadata.instance(asked.instance_id) is None:
            group_rebalance.join(view.metadata, asked, 0)
            self._follow_request(view.metadata, view.now_ms)
            return False
        with self._lock:  # taken by a process that was faster; or the attempt failed on its way
            self._move(MemberState.UNJOINED, request=None, is_fenced=asked is not None)
        return None

    def _take_place(self, _view: _View) -> None:
        """Begin as a member that the group contains."""
        with self._lock:
            self._move(MemberState.REBALANCING, request=None)

    def _lose_place(self, view: _View) -> bool:
        """Give up the partitions now: others own them, and this poll must not return rows."""
        with self._lock:
            self._move(MemberState.UNJOINED, request=None)
        self._assignment.lose()
        self._refuse_if_fenced(view.metadata)
        return False

    def _fall_behind(self, _view: _View) -> None:
        """Give up the partitions: a rebalance ended without this static member."""
        self._assignment.lose()
        with self._lock:
            self._move(MemberState.REBALANCING)

    def _take_part(self, view: _View) -> bool:
        """Do what the group's phase asks of a member."""
        group, metadata, me, now_ms = view
        assert group is not None and me is not None
        with self._lock:
            self._life.look(group, self.identity)
        self._remove_silent(group, now_ms)
        if metadata.phase is GroupPhase.PREPARING_REBALANCE:
            self._rebalance(metadata, me, now_ms)
        elif metadata.phase is GroupPhase.COMPLETING_REBALANCE:
            self._standing = replace(self._standing, request=None)
            if metadata.leader == me.member_id:
                who = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
                self._coordinator.sync_group(self._group, who, self._assignment.of_members(metadata))
        else:
            return self._settle(metadata, me, now_ms)
        self.beat_if_due()  # a member that waits for a slow one still sends heartbeats
        return False

    def _settle(self, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> bool:
        """In a stable group: adopt the assignment, or request a rebalance; return whether this member has one."""
        request = self._standing.request
        if request is not None and request.generation == metadata.generation:
            self._follow_request(metadata, now_ms)
            return False
        self._standing = replace(self._standing, request=None)
        if self.identity.generation != metadata.generation:
            self._adopt(metadata, me)
        elif (
            self._is_enforced
            or self._assignment.wants_others()
            or (metadata.leader == me.member_id and self._assignment.has_grown())
        ):
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
        request = self._standing.request
        if not me.is_joined and (request is None or request.generation != metadata.generation):
            self._rejoin(metadata, now_ms)
        if self._is_overdue(metadata, me, now_ms):
            self._coordinator.drop_absent(self._group, metadata.generation)
        elif not self._life.is_gatherer:
            if not me.is_joined:
                self._follow_request(metadata, now_ms)
        else:
            names = self._coordinator.relay.waiting(self._group)
            joined = {name.member for name in names if name.kind.is_urgent} | {digest_of(me.member_id)}
            if awaited_members(metadata) <= joined:
                self._write(names)

    def _refuse_if_fenced(self, metadata: GroupMetadata) -> None:
        """Raise FENCED_INSTANCE_ID while another process has this instance id."""
        is_fenced = metadata.instance(self.identity.instance_id) is not None
        self._standing = replace(self._standing, is_fenced=is_fenced)
        if is_fenced:
            raise group_error(ErrorCode.FENCED_INSTANCE_ID, f"group '{self._group}'")

    def _rejoin(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Give up the partitions and ask to join the rebalance; the note lists the partitions owned before."""
        keys = self._assignment.owned
        self._assignment.tell_revoked()
        with self._lock:  # no heartbeat between the commit and the note that contains it
            member = self._as_member(tuple(sorted(keys)))
            commit = self._last_commit()  # after those of the listener: sequences are decided in their order
            self._is_enforced = True  # until it has asked: else one that is interrupted here would never ask
            self._assignment.give_up(keys)
            self._ask(metadata, member, commit, now_ms)
            self._is_enforced = False
            if self._standing.state is MemberState.STABLE:
                self._move(MemberState.REBALANCING)
            identity = MemberIdentity(member.member_id, member.instance_id, -1)
            self._standing = replace(self._standing, identity=identity)

    def _ask(self, metadata: GroupMetadata, member: GroupMember, commit: GroupRecords | None, now_ms: int) -> None:
        who = MemberIdentity(member.member_id, member.instance_id, metadata.generation)
        record = GroupRecord(self._group, GroupMetadata(members=(member,)))
        note = Note(NoteKind.JOIN, self._coordinator.command(self._group, who, (record,)), commit)
        name = None if self._life.is_gatherer else self._coordinator.relay.send(self._group, note)
        self._standing = replace(self._standing, request=_Request(note, name, now_ms, metadata.generation))

    def _follow_request(self, metadata: GroupMetadata, now_ms: int) -> None:
        """Write the waiting notes if no other member is due to, or if none did so in time."""
        request = self._standing.request
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
        self._pace.crowd_count = max(self._pace.crowd_count, len(names))
        rank = rank_of(names, request.name)
        if rank:
            patience_ms += FIRST_PATIENCE_MS + self._pace.rank_ms(rank)
        if waited_ms >= patience_ms:
            self._write(names)

    def _write(self, names: list[NoteName] | None) -> None:
        request = self._standing.request
        notes = (
            [] if request is None or (names and request.name is not None and request.name in names) else [request.note]
        )
        self._coordinator.relay.write(self._group, notes, names)

    def _as_member(self, owned: tuple[TopicPartition, ...]) -> GroupMember:
        self._is_enforced = False
        return GroupMember(
            self.identity.member_id,
            self.identity.instance_id,
            self._config.client_id,
            self._config.session_timeout_ms,
            self._config.max_poll_interval_ms,
            True,
            self._assignment.protocols(owned, self.identity.generation),
        )

    def _adopt(self, metadata: GroupMetadata, me: GroupMember) -> None:
        keys = decode_assignment(me.assignment)
        with self._lock:
            if self._standing.state is not MemberState.STABLE:
                self._move(MemberState.STABLE)
            identity = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
            self._standing = replace(self._standing, identity=identity)
        _LOG.info(
            "member %s of group %s has %s partitions in generation %s",
            me.member_id,
            self._group,
            len(keys),
            metadata.generation,
        )
        self._assignment.adopt(keys)

    def _is_overdue(self, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> bool:
        """Return whether the rebalance timed out by this member's clock; members check at different times."""
        limit_ms = max(member.rebalance_timeout_ms for member in metadata.members) + turn_ms(metadata, me.member_id)
        return self._pace.rebalance_ms(metadata.generation, now_ms) >= limit_ms

    def _remove_silent(self, state: GroupState, now_ms: int) -> None:
        """Remove members that sent no heartbeat for their session timeout, by this process's clock."""
        later_ms = turn_ms(state.metadata, self.identity.member_id)
        for member, beats, silent_ms in self._watch.look(state, now_ms):
            if member.member_id != self.identity.member_id and silent_ms >= member.session_timeout_ms + later_ms:
                self._coordinator.remove_silent(self._group, member.member_id, beats)

    def _beat(self) -> None:
        """Send a heartbeat if one is due; on the heartbeats' thread, which must not end: the session would expire."""
        try:
            self.beat_if_due()
        except ReplogError as error:
            if isinstance(error, (RetriableError, OutcomeUnknownError)):
                self._watch.forget()
            _LOG.info("heartbeat of member %s: %s", self.identity.member_id, error)
        except Exception:
            _LOG.warning("heartbeat of member %s failed", self.identity.member_id, exc_info=True)


_M, _P = MemberState, _Place
_STEPS: Mapping[tuple[MemberState, _Place], Callable[[GroupMembership, _View], bool | None]] = {
    (_M.UNJOINED, _P.ABSENT): GroupMembership._join,
    (_M.UNJOINED, _P.LISTED): GroupMembership._join,  # under its previous id
    (_M.JOINING, _P.ABSENT): GroupMembership._await_place,
    (_M.JOINING, _P.LISTED): GroupMembership._take_place,
    (_M.REBALANCING, _P.ABSENT): GroupMembership._lose_place,
    (_M.REBALANCING, _P.LISTED): GroupMembership._take_part,
    (_M.STABLE, _P.ABSENT): GroupMembership._lose_place,
    (_M.STABLE, _P.LISTED): GroupMembership._take_part,
    (_M.STABLE, _P.OUTDATED): GroupMembership._fall_behind,
}
"""State of this member, its place in the group -> the step that is due."""
