"""A consumer's part in its group: join, synchronise, show signs of life, leave.

Source: Kafka's ``AbstractCoordinator`` and ``ConsumerCoordinator`` (eager rebalance). What differs: there is no
broker that decides. Each member looks at the fold, does the next step that is due, whoever's it is, and the
ledger refuses what came too late. So a member that sleeps through a rebalance can commit nothing afterwards.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_replog.client.assignors import make_assignors
from spark_replog.client.subscription_state import SubscriptionState
from spark_replog.client.topic_discovery import TopicDiscovery
from spark_replog.cluster.cluster import Cluster
from spark_replog.config import ConsumerConfig
from spark_replog.errors import ErrorCode, FencedError, ReplogError, RetriableError
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import NO_MEMBER, MemberIdentity
from spark_replog.groups.group_rebalance import group_error
from spark_replog.groups.group_subscription import (
    GroupSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from spark_replog.ids import TopicPartition, new_id
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase
from spark_replog.log.fold.group_state import GroupState

_LOG = logging.getLogger(__name__)
Listener = Callable[[list[TopicPartition]], None]


class GroupMembership:
    """Keeps the assignment of a subscription. ``poll`` and ``close`` are the application thread's.

    Args:
        cluster: the opened store.
        coordinator: of the group.
        config: ``group.id`` and its time-outs.
        subscription: gets the assignment.
        before_rebalance: commits what is to be committed while the partitions are still this member's.
        on_look: called whenever a poll that waits looks again; what it raises ends the poll.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: GroupCoordinator,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        *,
        before_rebalance: Callable[[], None],
        on_look: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._config = config
        self._subscription = subscription
        self._before_rebalance = before_rebalance
        self._on_look = on_look
        self._assignors = make_assignors(config.partition_assignment_strategy)
        self._discovery = TopicDiscovery(cluster, subscription, config)
        self._listeners: tuple[Listener | None, Listener | None, Listener | None] = (None, None, None)
        self.identity: MemberIdentity = NO_MEMBER
        self._seen_generation = -1
        """Of the group at the last look: what signs of life name, in a rebalance too."""
        self._is_member = False
        self._revoked: list[TopicPartition] = []
        self._counts: dict[str, int] = {}
        self._joined_topics: tuple[str, ...] = ()
        self._is_enforced = False
        self._looked_ms: int | None = None
        self._sign_ms = 0
        self._polled_ms = 0
        self._rebalance_seen: tuple[int, int] | None = None
        self._beats: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None) -> None:
        """Call these from ``poll`` when partitions come and go."""
        self._listeners = (assigned, revoked, lost)
        self._discovery.forget()
        self._looked_ms = None

    def take_revoked(self) -> list[TopicPartition]:
        """Return, once, the partitions that went since the last call."""
        revoked, self._revoked = self._revoked, []
        return revoked

    def poll(self, deadline_ms: int) -> None:
        """Do what is due; return when this member has its assignment, or the time is over.

        Raises:
            FencedError: FENCED_INSTANCE_ID: a newer process has this instance's place.
            InvalidConfigError: INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT.
            RetriableError: REPLOG_NO_QUORUM.
        """
        if not self._subscription.is_subscribed:
            return
        if self._config.group_id is None:
            self._assign_all()
            return
        clock = self._cluster.clock
        self._polled_ms = clock.monotonic_ms()
        while not self._step():
            rest_ms = deadline_ms - clock.monotonic_ms()
            if rest_ms <= 0:
                return
            clock.sleep_ms(min(rest_ms, self._config.retry_backoff_ms))
            self._on_look()

    def note_sign_of_life(self) -> None:
        """A commit was just decided: that shows that this member lives."""
        self._sign_ms = self._cluster.clock.monotonic_ms()

    def enforce_rebalance(self) -> None:
        """Begin a rebalance with the next look, though nothing changed."""
        self._is_enforced = True
        self._looked_ms = None

    def look_anew(self) -> bool:
        """Look with the next poll which topics are there, as one is gone; False where they were given by name."""
        if self._subscription.pattern is None:
            return False
        self._discovery.forget()
        self._looked_ms = None
        return True

    def leave(self) -> None:
        """Leave the group; a failure is logged: the session will run out.

        A static member keeps its place until its session runs out, whyever it goes.
        """
        if not self._is_member or self._config.group_id is None:
            return
        self._call_listener(1, list(self._subscription.positions))
        with self._lock:
            self._is_member = False
        try:
            self._give_place_up(self._config.group_id)
        except ReplogError as error:
            _LOG.warning("member %s could not leave its group: %s", self.identity.member_id, error)
        self.identity = NO_MEMBER

    def close(self) -> None:
        """End, and leave."""
        self._closed.set()
        self.leave()
        if self._thread is not None:
            self._thread.join()

    def beat_if_due(self) -> None:
        """Write a sign of life when it is due, or leave when the application polls no more. Any thread.

        Raises:
            ReplogError: what the group answers; ``poll`` will find out too.
        """
        group = self._config.group_id
        with self._lock:
            now_ms = self._cluster.clock.monotonic_ms()
            if not self._is_member or group is None:
                return
            if now_ms - self._polled_ms >= self._config.max_poll_interval_ms:
                self._is_member = False
                _LOG.warning(
                    "member %s of group %s leaves: no poll for %s ms. Raise max.poll.interval.ms or lower"
                    " max.poll.records.",
                    self.identity.member_id,
                    group,
                    now_ms - self._polled_ms,
                )
                self._give_place_up(group)
                return
            if now_ms - self._sign_ms < self._config.session_timeout_ms // 3 or self._seen_generation < 0:
                return
            self._sign_ms = now_ms
            who = MemberIdentity(self.identity.member_id, self.identity.instance_id, self._seen_generation)
            self._coordinator.heartbeat(group, who)

    # ------------------------------------------------------------------------------------- internal

    def _give_place_up(self, group: str) -> None:
        if not self.identity.instance_id:  # source: AbstractCoordinator.maybeLeaveGroup
            self._coordinator.leave_group(group, [self.identity.member_id])

    def _assign_all(self) -> None:
        """Without a group: all partitions of the topics, looked at again after ``metadata.max.age.ms``."""
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

    def _step(self) -> bool:
        """Do one step; return whether the assignment stands."""
        now_ms = self._cluster.clock.monotonic_ms()
        is_settled = self._is_member and self.identity.generation >= 0
        if is_settled and self._looked_ms is not None and now_ms - self._looked_ms < self._config.heartbeat_interval_ms:
            return True
        self._looked_ms = now_ms
        group = self._config.group_id or ""
        if not self._is_member:
            self._drop_assignment(is_lost=self.identity is not NO_MEMBER)
            self._join(group)
        state = self._coordinator.group(group)
        metadata = GroupMetadata() if state is None else state.metadata
        me = metadata.member(self.identity.member_id)
        if me is None or state is None:
            static = metadata.instance(self.identity.instance_id)
            self._is_member = False
            if static is not None:
                raise group_error(ErrorCode.FENCED_INSTANCE_ID, f"group '{group}'")
            return False
        self._judge_others(group, state, now_ms)
        try:
            return self._follow(group, metadata, me, now_ms)
        except (FencedError, RetriableError) as error:
            if error.code not in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.REBALANCE_IN_PROGRESS,
            ):
                raise
            return False  # the next look shows what happened

    def _follow(self, group: str, metadata: GroupMetadata, me: GroupMember, now_ms: int) -> bool:
        with self._lock:
            self._seen_generation = metadata.generation
        if metadata.phase is GroupPhase.PREPARING_REBALANCE:
            if not me.is_joined:
                self._rejoin(group)
            elif self._is_overdue(metadata, now_ms):
                self._coordinator.drop_absent(group, metadata.generation)
            else:
                self.beat_if_due()  # who waits for a slow member is not silent
            return False
        if metadata.phase is GroupPhase.COMPLETING_REBALANCE:
            if metadata.leader == me.member_id:
                assignments = self._assign(metadata)
                who = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
                self._coordinator.sync_group(group, who, assignments)
            return False
        if self.identity.generation != metadata.generation:
            self._adopt(metadata, me)
        elif self._is_enforced or self._wants_others() or (metadata.leader == me.member_id and self._has_grown()):
            self._rejoin(group)
            return False
        self.beat_if_due()
        return True

    def _join(self, group: str) -> None:
        """Join under a new name; what a process was called before may be fenced."""
        instance_id = self._config.group_instance_id or ""
        with self._lock:
            self.identity = MemberIdentity(f"{instance_id or self._config.client_id}-{new_id()}", instance_id, -1)
            self._seen_generation = -1
        self._coordinator.join_group(group, self._as_member(()))
        with self._lock:
            self._is_member = True
            self._sign_ms = self._cluster.clock.monotonic_ms()
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="replog-heartbeat", daemon=True)
            self._thread.start()

    def _rejoin(self, group: str) -> None:
        """Give the partitions up and join the rebalance, remembering what was owned."""
        owned = tuple(sorted(self._subscription.positions))
        member = self._as_member(owned)
        self._before_rebalance()
        self._drop_assignment(is_lost=False)
        self._coordinator.join_group(group, member)
        with self._lock:
            self.identity = MemberIdentity(member.member_id, member.instance_id, -1)
            self._sign_ms = self._cluster.clock.monotonic_ms()

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
            self.identity = MemberIdentity(me.member_id, me.instance_id, metadata.generation)
        self._subscription.set_assignment(keys)
        _LOG.info(
            "member %s of group %s has %s partitions in generation %s",
            me.member_id,
            self._config.group_id,
            len(keys),
            metadata.generation,
        )
        self._call_listener(0, list(keys))

    def _drop_assignment(self, *, is_lost: bool) -> None:
        keys = list(self._subscription.positions)
        if keys:
            self._call_listener(2 if is_lost and self._listeners[2] is not None else 1, keys)
        self._revoked += keys
        self._subscription.set_assignment(())

    def _wants_others(self) -> bool:
        """Return whether the subscription means other topics than the group was told; a look per metadata age."""
        return tuple(sorted(self._discovery.counts())) != self._joined_topics

    def _has_grown(self) -> bool:
        """Return whether topics have other partitions than the leader assigned; a look per metadata age."""
        return bool(self._counts) and self._discovery.counts_of(set(self._counts)) != self._counts

    def _is_overdue(self, metadata: GroupMetadata, now_ms: int) -> bool:
        """Return whether the rebalance has waited long enough, by this member's own clock."""
        if self._rebalance_seen is None or self._rebalance_seen[0] != metadata.generation:
            self._rebalance_seen = (metadata.generation, now_ms)
        return now_ms - self._rebalance_seen[1] >= max(each.rebalance_timeout_ms for each in metadata.members)

    def _judge_others(self, group: str, state: GroupState, now_ms: int) -> None:
        """Take out members whose signs of life have not changed for their session time, as seen from here."""
        seen = {}
        for member in state.metadata.members:
            beats = state.beats.get(member.member_id, 0)
            before = self._beats.get(member.member_id)
            seen[member.member_id] = (beats, now_ms if before is None or before[0] != beats else before[1])
        self._beats = seen
        for member in state.metadata.members:
            beats, since_ms = seen[member.member_id]
            if member.member_id != self.identity.member_id and now_ms - since_ms >= member.session_timeout_ms:
                _LOG.warning("member %s of group %s gave no sign of life in its session", member.member_id, group)
                self._coordinator.remove_silent(group, member.member_id, beats)

    def _call_listener(self, number: int, keys: list[TopicPartition]) -> None:
        listener = self._listeners[number]
        if listener is not None and keys:
            listener(keys)

    def _beat(self) -> None:
        while not self._closed.wait(self._config.heartbeat_interval_ms / 1000.0):
            try:
                self.beat_if_due()
            except ReplogError as error:
                _LOG.info("sign of life of member %s: %s", self.identity.member_id, error)
