"""Consumer groups: offsets committed, fetched, deleted and expired; members joined, synchronised, removed.

Runs in every process that uses a group, on the newest fold of the ledger of ``__consumer_offsets``. There is no
coordinator process: the fold refuses commands of an older generation, of an older revision, and repeated ones.
Source: Kafka's ``GroupCoordinator``, ``OffsetMetadataManager``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    RetriableError,
    unknown_partition,
)
from spark_replog.groups import group_rebalance
from spark_replog.groups.group_ledger import NO_MEMBER, GroupLedger, MemberIdentity
from spark_replog.groups.group_notes import GroupRelay
from spark_replog.groups.group_rebalance import (
    SilenceWatch,
    SilentMember,
    agreed_time_ms,
    expired_records,
    subscribed_topics,
)
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupMetadata,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
)
from spark_replog.log.fold.group_state import GroupState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import GroupRecords

OFFSET_METADATA_MAX_BYTES = 4096
OFFSETS_COMMIT_TIMEOUT_MS = 5_000
OFFSETS_RETENTION_MINUTES = 10_080
EXPIRY_CHECK_INTERVAL_MS = 600_000
_WATCH_INTERVAL_MS = 500
_LOG = logging.getLogger(__name__)
RENEWALS_PER_RETENTION = 7
"""How often a running consumer commits unchanged offsets again before they would expire: daily by default."""


class GroupCoordinator:
    """Thread safe; one per consumer, or per command.

    Args:
        timeout_ms: for each decision (Kafka: ``offsets.commit.timeout.ms``).
        retention_minutes: ``offsets.retention.minutes``; applied after a commit, at most every 10 minutes.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        principal: str | None = None,
        timeout_ms: int = OFFSETS_COMMIT_TIMEOUT_MS,
        retention_minutes: int = OFFSETS_RETENTION_MINUTES,
    ) -> None:
        self._cluster = cluster
        self._authorizer = Authorizer(cluster, principal)
        self._ledger = GroupLedger(cluster, timeout_ms=timeout_ms)
        self.relay = GroupRelay(cluster, self._ledger)
        self._retention_ms = retention_minutes * 60_000
        self._expiry_lock = threading.Lock()
        self._next_expiry_ms = cluster.clock.monotonic_ms() + EXPIRY_CHECK_INTERVAL_MS

    # ---------------------------------------------------------------------------------------- offsets

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: MemberIdentity = NO_MEMBER
    ) -> dict[TopicPartition, ReplogError | None]:
        """Commit offsets, each the NEXT one to read; one ENTRY for all of them.

        Returns:
            Per partition None, or its own refusal (TOPIC_AUTHORIZATION_FAILED, OFFSET_METADATA_TOO_LARGE,
            UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID, INVALID_REQUEST); the others are
            committed all the same.

        Raises:
            AuthorizationError: GROUP_AUTHORIZATION_FAILED.
            InvalidConfigError: INVALID_GROUP_ID.
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID: nothing was committed.
            RetriableError: REBALANCE_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE: nothing was committed.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: commit again.
        """
        records, answers = self._check_offsets(group, offsets)
        if records:
            self._ledger.append(group, lambda _: records, member)
            self._maybe_expire()
        return answers

    def prepare_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: MemberIdentity
    ) -> GroupRecords | None:
        """Return a commit for a note; offsets that ``commit_offsets`` refuses are left out. None: nothing is left."""
        records, _ = self._check_offsets(group, offsets)
        return self.command(group, member, records) if records else None

    def command(self, group: str, member: MemberIdentity, records: tuple[Record, ...] = ()) -> GroupRecords:
        """Return a command for a note: a commit, or without records a heartbeat."""
        handle, _ = self._ledger.find_or_create()
        return self._ledger.command(handle.topic_id, group, member, records)

    def _check_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> tuple[tuple[Record, ...], dict[TopicPartition, ReplogError | None]]:
        self._require(AclOperation.READ, group)
        answers: dict[TopicPartition, ReplogError | None] = {}
        records: list[Record] = []
        now_ms = self._ledger.commit_time_ms()
        for key in sorted(offsets):
            topic_id, answers[key] = self._check_offset(key, offsets[key])
            if answers[key] is None:
                value = replace(offsets[key], topic_id=topic_id, commit_time_ms=now_ms)
                records.append(OffsetRecord(group, key.topic, key.partition, value))
        return tuple(records), answers

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset per partition, None for none (Kafka: -1).

        One get per metadata root when nothing is new. An offset of a topic that was deleted and created
        again under the same name counts as none.

        Args:
            partitions: which ones; None: all that the group has, of topics that may be described.

        Raises:
            AuthorizationError: GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED.
            InvalidConfigError: INVALID_GROUP_ID.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require(AclOperation.DESCRIBE, group)
        wanted = None if partitions is None else list(partitions)
        if wanted is not None:
            self._authorizer.require(AclOperation.DESCRIBE, ResourceType.TOPIC, *sorted({key.topic for key in wanted}))
        state = self.group(group)
        offsets = {} if state is None else dict(state.offsets)
        if wanted is None:
            shown = self.describable({topic for topic, _ in offsets})
            offsets = {key: value for key, value in offsets.items() if key[0] in shown}
        keys = [TopicPartition(*key) for key in sorted(offsets)] if wanted is None else wanted
        answers = {key: offsets.get((key.topic, key.partition)) for key in keys}
        ids = {name: self.topic_id(name) for name in {key.topic for key, value in answers.items() if value}}
        live = {
            key: value if value and (not value.topic_id or value.topic_id == ids[key.topic]) else None
            for key, value in answers.items()
        }
        return live if wanted is not None else {key: value for key, value in live.items() if value}

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ReplogError | None]:
        """Delete committed offsets, each judged alone (source: ``OffsetMetadataManager.deleteOffsets``).

        Returns:
            Per partition None, or its own refusal (TOPIC_AUTHORIZATION_FAILED, GROUP_SUBSCRIBED_TO_TOPIC).

        Raises:
            InvalidConfigError: INVALID_GROUP_ID.
            NotFoundError: GROUP_ID_NOT_FOUND.
        """
        self._require(AclOperation.DELETE, group)
        answers: dict[TopicPartition, ReplogError | None] = {}
        keys = list(partitions)
        refused = {
            topic: self._authorizer.refusal(AclOperation.READ, ResourceType.TOPIC, topic)
            for topic in {key.topic for key in keys}
            if not self._authorizer.is_allowed(AclOperation.READ, ResourceType.TOPIC, topic)
        }

        def tombstones(state: GroupState) -> tuple[Record, ...]:
            subscribed = subscribed_topics(state.metadata)
            for key in keys:
                answers[key] = refused.get(key.topic)
                if answers[key] is None and key.topic in subscribed:
                    answers[key] = ReplogError(
                        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                        f"members of group '{group}' subscribe to '{key.topic}'. Stop its consumers first.",
                    )
            return tuple(
                OffsetRecord(group, key.topic, key.partition, None)
                for key in keys
                if answers[key] is None and (key.topic, key.partition) in state.offsets
            )

        self._ledger.change(group, tombstones)
        return answers

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets; dead members are removed first: see ``require_empty``.

        Raises:
            InvalidConfigError: INVALID_GROUP_ID.
            NotFoundError: GROUP_ID_NOT_FOUND.
            ReplogError: NON_EMPTY_GROUP.
        """
        self._require(AclOperation.DELETE, group)
        self.require_empty(group)

        def tombstones(state: GroupState) -> tuple[Record, ...]:
            _check_empty(state)
            offsets = [OffsetRecord(group, topic, partition, None) for topic, partition in sorted(state.offsets)]
            return (*offsets, GroupRecord(group, None))

        self._ledger.change(group, tombstones)

    def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a group without members, as Kafka's ``kafka-consumer-groups --reset-offsets``.

        Raises:
            ReplogError: NON_EMPTY_GROUP.
        """
        self.require_empty(group)
        answers = self.commit_offsets(group, {key: OffsetAndMetadata(offset) for key, offset in offsets.items()})
        for error in answers.values():
            if error is not None:
                raise error

    def require_empty(self, group: str) -> None:
        """Refuse a group in use; dead members are removed first.

        A member is dead if it sent no heartbeat while this call watched for the longest session timeout of the group,
        so this call waits that long. It refuses without waiting if the newest heartbeat is younger than that by this
        process's clock.

        Raises:
            ReplogError: NON_EMPTY_GROUP: members run, or died less than a session timeout ago.
        """
        state = self.group(group)
        if state is None or state.phase is GroupPhase.EMPTY:
            return
        self.relay.write(group)  # members that left, but whose notes were not written
        state = self.group(group)
        clock, watch = self._cluster.clock, SilenceWatch()
        if state is not None and 0 <= clock.now_ms() - state.last_commit_ms < _session_ms(state):
            _check_empty(state)
        while state is not None and state.phase is not GroupPhase.EMPTY:
            seen = watch.look(state, clock.monotonic_ms())
            if not self._remove(group, seen):
                clock.sleep_ms(_WATCH_INTERVAL_MS)
            newest = self.group(group)
            if newest is not None and any(newest.beats.get(look.member.member_id, 0) > look.beats for look in seen):
                _check_empty(newest)
            state = newest

    def remove_expired(self, watch: SilenceWatch) -> int:
        """Remove the members of all groups whose sessions have expired by ``watch``; return how many.

        Raises:
            RetriableError: REPLOG_NO_QUORUM, COORDINATOR_NOT_AVAILABLE.
        """
        try:
            states = self.groups()
        except RetriableError:
            watch.forget()
            raise
        now_ms = self._cluster.clock.monotonic_ms()
        return sum(self._remove(state.group, watch.look(state, now_ms)) for state in states)

    def _remove(self, group: str, seen: Iterable[SilentMember]) -> int:
        expired = [look for look in seen if look.silent_ms >= look.member.session_timeout_ms]
        for silent_member in expired:
            self.remove_silent(group, silent_member.member.member_id, silent_member.beats)
        return len(expired)

    def expire_offsets(self) -> int:
        """Delete the offsets that have expired (``offsets.retention.minutes``); return how many.

        Any process may call it at any time. Two clocks must agree on the time: see ``group_rebalance``. None expires
        while too few roots answer to know which topics exist.

        Raises:
            RetriableError: COORDINATOR_NOT_AVAILABLE.
        """
        location = self._ledger.find()
        if location is None:
            return 0
        _, ledger = location
        with ledger.lock:
            groups = ledger.state.groups.groups
            seen = {name: dict(state.offsets) for name, state in groups.items()}
            now_ms = agreed_time_ms(groups, self._ledger.own_groups, self._cluster.clock.now_ms())
        self._cluster.refresh()  # after the offsets: every topic that they name is known, unless it was deleted
        if self._cluster.cluster_ledger.is_tail_unclear:
            return 0  # a topic that is not among the known ones may exist
        with self._cluster.cluster_ledger.lock:
            live = {name: ids[0] for name, ids in self._cluster.cluster_ledger.state.topics.items()}
        expired_count = 0
        for name, offsets in seen.items():
            counted: list[int] = []

            def records(
                state: GroupState,
                counted: list[int] = counted,
                offsets: Mapping[tuple[str, int], OffsetAndMetadata] = offsets,
            ) -> tuple[Record, ...]:
                due = expired_records(state, offsets, live, now_ms, self._retention_ms)
                counted[:] = [sum(isinstance(record, OffsetRecord) for record in due)]
                return due

            try:
                with ledger.lock:
                    state = ledger.state.groups.get(name)
                    is_due = state is not None and bool(records(state))
                if is_due:
                    self._ledger.change(name, records)
                    expired_count += counted[0]
            except NotFoundError:  # another process expired it first
                continue
            except CorruptDataError as error:  # nobody knows what its members read; the other groups go on
                _LOG.warning("no offset of group %s expires: %s", name, error)
        return expired_count

    # ------------------------------------------------------------------------------------- questions

    def group(self, group: str, peek: JournalPeek | None = None) -> GroupState | None:
        """Return the group on the newest fold, as a copy; None: no such group.

        Args:
            peek: read the ledger, and the ACLs, only if this shows that the ledger has grown.

        Raises:
            AuthorizationError: GROUP_AUTHORIZATION_FAILED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        location = None if peek is None else self._ledger.folded()
        if location is None or peek is None or peek.grown([location[1]]):
            self._require(AclOperation.DESCRIBE, group)
            location = self._ledger.find()
        return None if location is None else _copy_of(location[1], group)

    def folded(self, group: str) -> GroupState | None:
        """Return the group as this process has folded it so far, as a copy; reads nothing. None: no such group."""
        location = self._ledger.folded()
        return None if location is None else _copy_of(location[1], group)

    def fold(self, peek: JournalPeek | None = None) -> None:
        """Fold the newest entries of all groups, for ``folded_members``. No right is checked.

        Args:
            peek: read the ledger only if this shows that it has grown.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        location = None if peek is None else self._ledger.folded()
        if location is None or peek is None or peek.grown([location[1]]):
            self._ledger.find()

    def folded_members(self, group: str) -> GroupState | None:
        """Return the group without its offsets, as this process has folded it so far; reads nothing."""
        location = self._ledger.folded()
        if location is None:
            return None
        with location[1].lock:
            state = location[1].state.groups.get(group)
            if state is None:
                return None
            return GroupState(group, state.metadata, {}, state.revision, dict(state.beats), state.last_commit_ms)

    def groups(self, *, is_folded: bool = False) -> list[GroupState]:
        """Return copies of all groups that may be described, by name; `is_folded`: the ledgers were just folded."""
        located = self._ledger.folded(is_newest=True) if is_folded else self._ledger.find()
        if located is None:
            return []
        _, ledger = located
        with ledger.lock:
            views = [_copy(ledger.state.groups.groups[name]) for name in sorted(ledger.state.groups.groups)]
        return [
            view for view in views if self._authorizer.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, view.group)
        ]

    def describable(self, topics: Iterable[str]) -> set[str]:
        """Return those of the topics that the principal may describe."""
        return set(self._authorizer.allowed_topics(AclOperation.DESCRIBE, topics))

    def topic_id(self, name: str) -> TopicId | None:
        """Return the id that a topic's name has now; None: no such topic."""
        try:
            return self._cluster.lookup(name).topic_id
        except NotFoundError:
            return None

    # ------------------------------------------------------------------------------------ membership

    def join_group(self, group: str, member: GroupMember, protocol_type: str = group_rebalance.CONSUMER) -> None:
        """Join, or join again; the fold shows when the rebalance is complete.

        Raises:
            InvalidConfigError: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL.
            RetriableError: COORDINATOR_NOT_AVAILABLE.
        """
        self._require(AclOperation.READ, group)
        now_ms = self._ledger.commit_time_ms()
        self._ledger.update(
            group, lambda at, _: group_rebalance.join(at, member, now_ms, protocol_type), member.member_id
        )

    def write_beats(self, members: Iterable[tuple[str, MemberIdentity]]) -> None:
        """Write heartbeats of members of any groups in one ENTRY; those that their group refuses are left out.

        Raises:
            RetriableError: COORDINATOR_NOT_AVAILABLE.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN.
        """
        self._ledger.append_commands([self.command(group, member) for group, member in members])

    def sync_group(self, group: str, member: MemberIdentity, assignments: Mapping[str, bytes]) -> None:
        """Give the members their assignments; the leader's call.

        Raises:
            FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION.
            RetriableError: REBALANCE_IN_PROGRESS.
        """
        now_ms = self._ledger.commit_time_ms()
        self._ledger.update(
            group,
            lambda at, _: group_rebalance.sync(at, member.member_id, member.generation, assignments, now_ms),
            member.member_id,
        )

    def remove_silent(self, group: str, member_id: str, beats: int) -> None:
        """Remove a member that sent no heartbeat since the caller counted ``beats`` of them; log it."""
        message = "group %s: member %s sent no heartbeat within session.timeout.ms; removing it"
        _LOG.warning(message, group, member_id)
        now_ms = self._ledger.commit_time_ms()

        def left(metadata: GroupMetadata, state: GroupState | None) -> GroupMetadata:
            if state is None or state.beats.get(member_id, 0) != beats:
                return metadata
            return group_rebalance.leave(metadata, {member_id}, now_ms)

        self._ledger.update(group, left)

    def drop_absent(self, group: str, generation: int) -> None:
        """End a rebalance of this generation whose time to join is over."""
        now_ms = self._ledger.commit_time_ms()
        self._ledger.update(
            group, lambda at, _: group_rebalance.drop_absent(at, now_ms) if at.generation == generation else at
        )

    # -------------------------------------------------------------------------------------- internal

    def _require(self, operation: AclOperation, group: str) -> None:
        """Refuse a bad name with INVALID_GROUP_ID, and a caller without the right to the group."""
        check_group_id(group)
        self._cluster.refresh_if_stale()
        self._authorizer.require(operation, ResourceType.GROUP, group)

    def _check_offset(self, key: TopicPartition, value: OffsetAndMetadata) -> tuple[TopicId, ReplogError | None]:
        if value.offset < 0:
            return "", InvalidConfigError(
                ErrorCode.INVALID_REQUEST, f"offset {value.offset} cannot be committed. Give 0 or more."
            )
        if len(value.metadata.encode()) > OFFSET_METADATA_MAX_BYTES:
            return "", InvalidConfigError(
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                f"the metadata has {len(value.metadata.encode())} bytes. Give at most {OFFSET_METADATA_MAX_BYTES}.",
                topic=key.topic,
                partition=key.partition,
            )
        if not self._authorizer.is_allowed(AclOperation.READ, ResourceType.TOPIC, key.topic):
            return "", self._authorizer.refusal(AclOperation.READ, ResourceType.TOPIC, key.topic)
        try:
            handle, count = self._topic_of(key)
        except (NotFoundError, InvalidConfigError) as error:  # no such topic; no topic can have the name
            return "", error
        if not 0 <= key.partition < count:
            return "", unknown_partition(key.topic, key.partition, count)
        if value.topic_id not in ("", handle.topic_id):
            return "", ReplogError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"offset {value.offset} of partition {key.partition} is of another topic than '{key.topic}' is now:"
                " that was deleted and created again, or the offset is of another store. Poll, and commit positions of"
                " this topic.",
                topic=key.topic,
                partition=key.partition,
            )
        return handle.topic_id, None

    def _topic_of(self, key: TopicPartition) -> tuple[TopicHandle, int]:
        """Return the topic and its partition count as folded; fold newer entries only if they lack the partition."""
        handle = self._cluster.lookup(key.topic)
        count = partition_count(self._cluster, handle)
        if key.partition >= count:  # another process may have added it, or created the topic again
            handle = self._cluster.newest_topics([key.topic])[key.topic]
            count = partition_count(self._cluster, handle)
        return handle, count

    def _maybe_expire(self) -> None:
        now_ms = self._cluster.clock.monotonic_ms()
        with self._expiry_lock:
            if now_ms < self._next_expiry_ms:
                return
            self._next_expiry_ms = now_ms + EXPIRY_CHECK_INTERVAL_MS
        try:
            self.expire_offsets()
        except ReplogError as error:  # the caller's commit is decided all the same
            _LOG.warning("expired offsets were not deleted, which is tried again later: %s", error)


def partition_count(cluster: Cluster, handle: TopicHandle) -> int:
    """Return a topic's number of partitions as this process has folded it; 0: it is deleted, or not folded yet."""
    ledger = cluster.topic_ledger(handle.ledger_id)
    with ledger.lock:
        topic = ledger.state.topics.get(handle.topic_id)
        return 0 if topic is None or topic.closed else len(topic.partitions)


def check_group_id(group: str) -> None:
    """Refuse a name that is empty, too long, or not text.

    Raises:
        InvalidConfigError: INVALID_GROUP_ID.
    """
    size_bytes = len(group.encode(errors="surrogatepass"))
    if not 0 < size_bytes <= 0x7FFF or size_bytes != len(group.encode(errors="ignore")):
        raise InvalidConfigError(
            ErrorCode.INVALID_GROUP_ID,
            "this call needs a consumer group. Give group.id, UTF-8 text of at most 32,767 bytes.",
        )


def _check_empty(state: GroupState) -> None:
    """Refuse a group that is in use with NON_EMPTY_GROUP."""
    if state.phase is not GroupPhase.EMPTY:
        raise ReplogError(
            ErrorCode.NON_EMPTY_GROUP,
            f"Group '{state.group}' has {len(state.metadata.members)} member(s). Stop its consumers. Members that were"
            f" killed can be removed {_session_ms(state) / 1000:g} s (session.timeout.ms) after their last"
            " heartbeat: repeat the command then.",
        )


def _session_ms(state: GroupState) -> int:
    return max((member.session_timeout_ms for member in state.metadata.members), default=0)


def _copy_of(ledger: Ledger[TopicLedgerState], group: str) -> GroupState | None:
    with ledger.lock:
        state = ledger.state.groups.get(group)
        return None if state is None else _copy(state)


def _copy(state: GroupState) -> GroupState:
    parts = (dict(state.beats), dict(state.writers), dict(state.moves))
    return replace(state, offsets=dict(state.offsets), beats=parts[0], writers=parts[1], moves=parts[2])
