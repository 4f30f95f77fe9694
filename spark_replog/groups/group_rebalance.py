"""A group's membership from one state to the next, and the encoding of subscriptions and assignments. Pure.

Source of the rules: Kafka's ``ClassicGroup`` and ``GroupMetadataManager.classicGroupJoin``. The caller has the newest
fold, and proposes the result for exactly that revision. Subscriptions and assignments are JSON, or of Kafka's clients
at a gateway in their bytes; the fold never reads them, as Kafka's brokers never read theirs (ADR 46).

Expiry of offsets and members: ``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``. In Kafka
the broker's clock decides. Here any process may expire offsets, so two clocks must agree: the process's own and that of
another group's newest command. So one wrong clock can only delay the expiry.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, RetriableError
from spark_replog.groups.consumer_protocol import (
    KafkaSubscription,
    damaged,
    decode_kafka_assignment,
    decode_kafka_subscription,
    encode_kafka_assignment,
    encode_kafka_subscription,
    is_kafkas,
)
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.codec.group_records import (
    GroupMember,
    GroupMetadata,
    GroupPhase,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
)
from spark_replog.log.fold.group_state import GroupState, judge_member

SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX = 6_000, 1_800_000
"""Kafka's ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``."""

GroupError = FencedError | RetriableError
CONSUMER = "consumer"
"""The protocol type of groups whose members share partitions. Kafka Connect and others have types of their own."""


def join(metadata: GroupMetadata, member: GroupMember, now_ms: int, protocol_type: str = CONSUMER) -> GroupMetadata:
    """Return the group after a member joined; completes the rebalance when it was the last one awaited.

    Raises:
        InvalidConfigError: INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL.
        FencedError: FENCED_INSTANCE_ID.
    """
    return complete_if_ready(enter(metadata, member, now_ms, protocol_type), now_ms)


def enter(metadata: GroupMetadata, member: GroupMember, now_ms: int, protocol_type: str = CONSUMER) -> GroupMetadata:
    """Return the group after a member joined, in a rebalance that ``complete_if_ready`` ends: others may join with it.

    A static member that comes back with the same subscription takes its place, and its assignment, without a
    rebalance; the process that held the place is fenced from then on.

    Raises:
        InvalidConfigError: INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL.
        FencedError: FENCED_INSTANCE_ID.
    """
    _check_session_timeout(member)
    present_member, static = metadata.member(member.member_id), metadata.instance(member.instance_id)
    if present_member is not None and static is not None and present_member is not static:
        raise group_error(ErrorCode.FENCED_INSTANCE_ID, f"'{member.instance_id}' is another member's")
    others = [other for other in metadata.members if other is not present_member and other is not static]
    _check_protocols(member, others)
    if metadata.members and (metadata.protocol_type or CONSUMER) != protocol_type:
        raise _inconsistent(f"members of this group are of type {metadata.protocol_type}, this one is {protocol_type}")
    metadata = replace(metadata, protocol_type=protocol_type)
    place = static or present_member
    joined = replace(member, is_joined=True, assignment=b"" if place is None else place.assignment)
    if place is None:
        members = (*metadata.members, joined)
        if metadata.phase is GroupPhase.PREPARING_REBALANCE:
            return replace(metadata, members=members)
        return _prepare(metadata, members, {joined.member_id}, now_ms)
    members = tuple(joined if group_member is place else group_member for group_member in metadata.members)
    leader = joined.member_id if metadata.leader == place.member_id else metadata.leader
    changed = replace(metadata, members=members, leader=leader)
    is_same = place.protocols == joined.protocols
    is_new_process = place.member_id != joined.member_id
    if metadata.phase is GroupPhase.PREPARING_REBALANCE:
        return changed
    if is_same and metadata.phase is GroupPhase.STABLE and (is_new_process or metadata.leader != place.member_id):
        return changed
    if is_same and metadata.phase is GroupPhase.COMPLETING_REBALANCE and not is_new_process:
        return changed
    return _prepare(changed, members, {joined.member_id}, now_ms)


def sync(
    metadata: GroupMetadata, member_id: str, generation: int, assignments: Mapping[str, bytes], now_ms: int
) -> GroupMetadata:
    """Return the group after its leader gave the assignments.

    Raises:
        FencedError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION.
        RetriableError: REBALANCE_IN_PROGRESS: another join began.
    """
    code = judge_member(metadata, member_id, "", generation, is_beat=True)
    if code is not None:
        raise group_error(code)
    if metadata.phase is GroupPhase.PREPARING_REBALANCE:
        raise group_error(ErrorCode.REBALANCE_IN_PROGRESS)
    if metadata.phase is not GroupPhase.COMPLETING_REBALANCE or metadata.leader != member_id:
        return metadata
    members = tuple(replace(member, assignment=assignments.get(member.member_id, b"")) for member in metadata.members)
    return replace(metadata, members=members, phase=GroupPhase.STABLE, since_ms=now_ms)


def leave(metadata: GroupMetadata, member_ids: Collection[str], now_ms: int) -> GroupMetadata:
    """Return the group without these members; the others rebalance."""
    return complete_if_ready(depart(metadata, member_ids, now_ms), now_ms)


def depart(metadata: GroupMetadata, member_ids: Collection[str], now_ms: int) -> GroupMetadata:
    """Return the group without these members, in a rebalance that ``complete_if_ready`` ends."""
    rest = tuple(member for member in metadata.members if member.member_id not in member_ids)
    if len(rest) == len(metadata.members):
        return metadata
    if metadata.phase is GroupPhase.PREPARING_REBALANCE:
        return replace(metadata, members=rest)
    return _prepare(metadata, rest, set(), now_ms)


def complete_if_ready(metadata: GroupMetadata, now_ms: int) -> GroupMetadata:
    """Return the group after its rebalance where every member has joined; otherwise as it is."""
    if metadata.phase is GroupPhase.PREPARING_REBALANCE and all(member.is_joined for member in metadata.members):
        return _complete(metadata, now_ms)
    return metadata


def drop_absent(metadata: GroupMetadata, now_ms: int) -> GroupMetadata:
    """Return the group after the rebalance timed out, without the dynamic members that did not join again."""
    if metadata.phase is not GroupPhase.PREPARING_REBALANCE:
        return metadata
    return _complete(
        replace(metadata, members=tuple(peer for peer in metadata.members if peer.is_joined or peer.instance_id)),
        now_ms,
    )


def select_protocol(members: Collection[GroupMember]) -> str:
    """Return the assignor that all members have and most prefer. Source: ``ClassicGroup.selectProtocol``."""
    common = set.intersection(*({name for name, _ in voter.protocols} for voter in members))
    votes: dict[str, int] = {}
    for member in members:
        first = next(name for name, _ in member.protocols if name in common)
        votes[first] = votes.get(first, 0) + 1
    return max(votes, key=lambda name: votes[name])


def group_error(code: ErrorCode, detail: str = "") -> GroupError:
    """Return the error of a code that a group returns."""
    text = {
        ErrorCode.ILLEGAL_GENERATION: "the group was rebalanced since this member joined. Poll to join again.",
        ErrorCode.UNKNOWN_MEMBER_ID: "this member is not in the group: its session expired, or it never joined."
        " Poll to join again; use another group for consumers that assign.",
        ErrorCode.FENCED_INSTANCE_ID: "a newer process uses this group.instance.id. Stop one of the two.",
        ErrorCode.REBALANCE_IN_PROGRESS: "the group is being rebalanced. Poll, then repeat the call.",
    }[code]
    message = f"{detail}: {text}" if detail else text
    if code is ErrorCode.REBALANCE_IN_PROGRESS:
        return RetriableError(code, message)
    return FencedError(code, message)


def _prepare(metadata: GroupMetadata, members: tuple[GroupMember, ...], joined: set[str], now_ms: int) -> GroupMetadata:
    """Return the group at the start of a rebalance: only the members in ``joined`` have joined."""
    awaited = tuple(replace(member, is_joined=member.member_id in joined) for member in members)
    return replace(
        metadata,
        members=awaited,
        phase=GroupPhase.PREPARING_REBALANCE,
        since_ms=now_ms,
    )


def _complete(metadata: GroupMetadata, now_ms: int) -> GroupMetadata:
    members = tuple(replace(member, assignment=b"") for member in metadata.members)
    if not members:
        return replace(
            metadata,
            generation=metadata.generation + 1,
            protocol="",
            leader="",
            phase=GroupPhase.EMPTY,
            since_ms=now_ms,
            members=(),
        )
    leader = metadata.leader
    joined = [member.member_id for member in members if member.is_joined]
    if leader not in joined:
        leader = joined[0] if joined else members[0].member_id
    return replace(
        metadata,
        generation=metadata.generation + 1,
        protocol=select_protocol(members),
        leader=leader,
        phase=GroupPhase.COMPLETING_REBALANCE,
        since_ms=now_ms,
        members=members,
    )


def _check_session_timeout(member: GroupMember) -> None:
    if not SESSION_TIMEOUT_MS_MIN <= member.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
        raise InvalidConfigError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session.timeout.ms is {member.session_timeout_ms}. Give {SESSION_TIMEOUT_MS_MIN} to"
            f" {SESSION_TIMEOUT_MS_MAX}.",
        )


def _check_protocols(member: GroupMember, others: Collection[GroupMember]) -> None:
    assignors = {name for name, _ in member.protocols}
    common = assignors.intersection(*({name for name, _ in other.protocols} for other in others))
    if not common:
        theirs = sorted({name for other in others for name, _ in other.protocols})
        raise _inconsistent(
            f"this member has the assignors {', '.join(sorted(assignors)) or 'nothing'}, the others have "
            f"{', '.join(theirs)}. Give all members one partition.assignment.strategy in common"
        )


def _inconsistent(text: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{text}.")


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """The topics that a member subscribes to, and the partitions it owned.

    Attributes:
        topics: sorted.
        owned: partitions of its last assignment, for sticky assignors.
        generation: in which it owned them; -1 none.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1


def encode_subscription(value: GroupSubscription) -> bytes:
    """Return the subscription's bytes; the same value gives the same bytes."""
    fields = {"topics": sorted(value.topics), "owned": _by_topic(value.owned), "generation": value.generation}
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def decode_subscription(data: bytes) -> GroupSubscription:
    """Return the subscription.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
    """
    if is_kafkas(data):
        return GroupSubscription(*decode_kafka_subscription(data))
    fields = _load(data)
    try:
        return GroupSubscription(
            tuple(str(topic) for topic in fields["topics"]), _partitions(fields["owned"]), int(fields["generation"])
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(error) from error


def kafka_subscription(data: bytes) -> bytes:
    """Return a subscription as a client of Kafka's reads it. Raises CORRUPT_MESSAGE."""
    if not data or is_kafkas(data):
        return data
    value = decode_subscription(data)
    return encode_kafka_subscription(KafkaSubscription(value.topics, value.owned, value.generation))


def kafka_assignment(data: bytes) -> bytes:
    """Return an assignment as a client of Kafka's reads it; none is empty. Raises CORRUPT_MESSAGE."""
    return data if not data or is_kafkas(data) else encode_kafka_assignment(decode_assignment(data))


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return an assignment's bytes."""
    return json.dumps(_by_topic(partitions), separators=(",", ":"), sort_keys=True).encode()


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the assigned partitions, sorted; none for an empty assignment.

    Raises:
        CorruptDataError: CORRUPT_MESSAGE.
    """
    if not data:
        return ()
    if is_kafkas(data):
        return decode_kafka_assignment(data)
    try:
        return _partitions(_load(data))
    except (TypeError, ValueError, AttributeError) as error:
        raise damaged(error) from error


def subscribed_topics(metadata: GroupMetadata) -> set[str]:
    """Return the topics that members of the group subscribe to."""
    if metadata.protocol_type not in ("", CONSUMER):
        return set()
    return {
        topic
        for member in metadata.members
        for _, subscription in member.protocols[:1]
        for topic in decode_subscription(subscription).topics
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, Sequence[int]]:
    topics: dict[str, list[int]] = {}
    for key in sorted(partitions):
        topics.setdefault(key.topic, []).append(key.partition)
    return topics


def _partitions(topics: Mapping[str, Sequence[int]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic, int(number)) for topic, parts in topics.items() for number in parts))


def _load(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise damaged(error) from error
    if not isinstance(fields, dict):
        raise damaged(TypeError("no JSON object"))
    return fields


class SilenceWatch:
    """The time since each member's last heartbeat, by this process's monotonic clock. Not thread safe."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}

    def forget(self) -> None:
        """Begin again, because the roots did not answer: no member can send a heartbeat while they do not."""
        self._seen = {}

    def look(self, state: GroupState, now_ms: int) -> list[SilentMember]:
        """Read the newest fold of a group and return its members; a new one has been silent for 0 ms."""
        before = self._seen.get(state.group, {})
        seen = {}
        for member in state.metadata.members:
            beats = state.beats.get(member.member_id, 0)
            last_look = before.get(member.member_id)
            seen[member.member_id] = (beats, now_ms if last_look is None or last_look[0] != beats else last_look[1])
        self._seen[state.group] = seen
        return [
            SilentMember(group_member, seen[group_member.member_id][0], now_ms - seen[group_member.member_id][1])
            for group_member in state.metadata.members
        ]


class SilentMember(NamedTuple):
    """A member, its number of heartbeats so far, and the time since the last one."""

    member: GroupMember
    beats: int
    silent_ms: int


def agreed_time_ms(groups: Mapping[str, GroupState], written: Collection[str], now_ms: int) -> int:
    """Return the wall time that this process's clock and another process's agree has passed.

    Args:
        written: groups that this process has written to, with its own clock.

    Returns:
        0 if no other group has written: then no offset expires by its age.
    """
    return min(now_ms, max((state.last_commit_ms for name, state in groups.items() if name not in written), default=0))


def commit_time_ms(groups: Mapping[str, GroupState], written: Collection[str], now_ms: int) -> int:
    """Return the time to write into a commit: this process's, or the second latest of other groups if that is later.

    So the offsets of a process whose clock is slow do not look old, and one fast clock does not move all others.
    """
    others = sorted(state.last_commit_ms for name, state in groups.items() if name not in written)
    return max(now_ms, others[-2]) if len(others) > 1 else now_ms


def expired_records(
    state: GroupState,
    seen: Mapping[tuple[str, int], OffsetAndMetadata],
    topic_ids: Mapping[str, TopicId],
    now_ms: int,
    retention_ms: int,
) -> tuple[Record, ...]:
    """Return the tombstones that are due; the group's own last, when neither offset nor member is left.

    Args:
        seen: its offsets before ``topic_ids`` were read; what was committed since may be of a newer topic: not due.
        topic_ids: of the topics that exist: offsets of others are due at once.
        now_ms: wall time, of ``agreed_time_ms``.
    """
    metadata = state.metadata
    is_consumer_group = bool(metadata.protocol_type)
    is_empty = metadata.phase is GroupPhase.EMPTY
    subscribed = subscribed_topics(metadata)

    def is_due(topic: str, value: OffsetAndMetadata) -> bool:
        topic_id = topic_ids.get(topic)
        if topic_id is None or (value.topic_id and value.topic_id != topic_id):
            return True
        if is_consumer_group and not is_empty and (metadata.phase is not GroupPhase.STABLE or topic in subscribed):
            return False
        if value.expire_time_ms is not None:
            return now_ms >= value.expire_time_ms
        base_ms = metadata.since_ms if is_consumer_group and is_empty else value.commit_time_ms
        return now_ms - base_ms >= retention_ms

    due: list[Record] = [
        OffsetRecord(state.group, topic, partition, None)
        for (topic, partition), value in sorted(state.offsets.items())
        if seen.get((topic, partition)) == value and is_due(topic, value)
    ]
    if is_empty and len(due) == len(state.offsets):
        due.append(GroupRecord(state.group, None))
    return tuple(due)
