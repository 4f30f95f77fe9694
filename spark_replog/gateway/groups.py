"""Consumer groups for Kafka's clients: members (classic protocol) and offsets.

Members join, synchronise and show that they live through ``MemberHost``; offsets go to the group coordinator as they
are. Source: Kafka's ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.errors import CorruptDataError, ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.gateway.errors import OWN_CODES_MIN, error_code, error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.member_host import Joined, MemberHost
from spark_replog.groups.group_coordinator import GroupCoordinator, check_group_id
from spark_replog.groups.group_ledger import MemberIdentity
from spark_replog.groups.group_rebalance import CONSUMER, decode_subscription, kafka_assignment, kafka_subscription
from spark_replog.ids import TopicPartition, new_id
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.group_records import GroupMember, GroupMetadata, GroupPhase, OffsetAndMetadata

GROUP_KEY = 0
"""The kind of key of FindCoordinator that names a group; the others name transactions and share groups."""
NO_OFFSET = -1
MEMBER_ID_REQUIRED = 79
_ASKS_TWICE_SINCE = 4
"""Since this version of JoinGroup a client gets its member id first, and joins with it."""
_SKIPS_ASSIGNMENT_SINCE = 9
_HAS_TOPIC_IDS_SINCE = 10
"""Since this version of OffsetCommit and OffsetFetch topics have ids in place of names."""
_ABSENT_GROUP_SINCE = 9
"""Since this version of OffsetCommit a member of a group that is not there is told so."""


def group_code(error: BaseException) -> int:
    """Return the number of an error for a group's client: what may pass sends it to look for the coordinator again."""
    if isinstance(error, RetriableError | OutcomeUnknownError) and error.code >= OWN_CODES_MIN:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return error_code(error)


def require_group(gateway: Gateway, principal: str, operation: AclOperation, group: str) -> None:
    """Check a group's name, and a right to it.

    Raises:
        InvalidConfigError: INVALID_GROUP_ID. AuthorizationError: GROUP_AUTHORIZATION_FAILED.
    """
    check_group_id(group)
    gateway.cluster.refresh_if_stale()
    Authorizer(gateway.cluster, principal).require(operation, ResourceType.GROUP, group)


# --------------------------------------------------------------------------------------------------- coordinator


async def find_coordinator(gateway: Gateway, call: Call) -> Any:
    """Answer FindCoordinator: this gateway, because it is alive, and any can coordinate any group."""
    request = call.request
    keys = request.coordinator_keys if call.version >= 4 else [request.key]
    made = [await _coordinator_of(gateway, call, key) for key in keys]
    if call.version >= 4:
        return FindCoordinatorResponse(coordinators=made)
    first = made[0]
    return FindCoordinatorResponse(
        error_code=first.error_code,
        error_message=first.error_message,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
    )


async def _coordinator_of(gateway: Gateway, call: Call, key: str) -> Any:
    coordinator, node = FindCoordinatorResponse.Coordinator, gateway.coordinator(key)
    try:
        if call.version >= 1 and call.request.key_type != GROUP_KEY:
            text = "The gateway coordinates consumer groups; it offers no transactions and no share groups."
            return _no_coordinator(key, int(ErrorCode.INVALID_REQUEST), text)
        await gateway.run(require_group, gateway, call.principal, AclOperation.DESCRIBE, key)
    except ReplogError as error:
        return _no_coordinator(key, group_code(error), error_text(error))
    return coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=0, error_message="")


def _no_coordinator(key: str, code: int, text: str) -> Any:
    return FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text
    )


# ------------------------------------------------------------------------------------------------------- members


async def join_group(gateway: Gateway, call: Call) -> Any:
    """Answer JoinGroup, once the group's rebalance has ended."""
    request, host = call.request, gateway.part(MemberHost)
    instance_id = (request.group_instance_id or "") if call.version >= 5 else ""
    member_id = request.member_id or ""
    try:
        await gateway.run(require_group, gateway, call.principal, AclOperation.READ, request.group_id)
        is_new = not member_id
        if is_new:
            member_id = f"{instance_id or call.client_id}-{new_id()}"
            if not instance_id and call.version >= _ASKS_TWICE_SINCE:
                host.promise(member_id, request.session_timeout_ms)
                return JoinGroupResponse(
                    error_code=MEMBER_ID_REQUIRED, generation_id=-1, protocol_name="", leader="", member_id=member_id
                )
        member = GroupMember(
            member_id,
            instance_id,
            call.client_id,
            request.session_timeout_ms,
            max(0, request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms),
            True,
            tuple((item.name, bytes(item.metadata)) for item in request.protocols),
        )
        _check_protocols(request.protocol_type, member)
        joined = await host.join(request.group_id, member, request.protocol_type, call.principal, is_new=is_new)
        host.note_address(request.group_id, member_id, call.client_host)
        return _join_answer(member, joined, call.version)
    except ReplogError as error:
        return JoinGroupResponse(
            error_code=group_code(error), generation_id=-1, protocol_name="", leader="", member_id=member_id
        )


def _check_protocols(protocol_type: str, member: GroupMember) -> None:
    """Refuse a member without protocols, and bytes that the group's leader could not read."""
    if not protocol_type or not member.protocols:
        raise ReplogError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "A member needs a protocol. Name one.")
    for _, data in member.protocols if protocol_type == CONSUMER else ():
        try:
            decode_subscription(data)
        except CorruptDataError as error:
            raise ReplogError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error.args[0])) from error


def _join_answer(member: GroupMember, joined: Joined, version: int) -> Any:
    metadata = joined.metadata
    leader = metadata.leader
    is_leader = leader == member.member_id
    is_back = bool(joined.replaced) and metadata.phase is GroupPhase.STABLE
    if is_back and is_leader and version < _SKIPS_ASSIGNMENT_SINCE:
        leader, is_leader = joined.replaced, False  # or it would assign anew in a group that does not wait for it
    members = []
    for other in metadata.members if is_leader else ():
        data = dict(other.protocols)[metadata.protocol]
        if metadata.protocol_type == CONSUMER:
            data = kafka_subscription(data)
        members.append(
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=other.member_id, group_instance_id=other.instance_id or None, metadata=data
            )
        )
    return JoinGroupResponse(
        error_code=0,
        generation_id=metadata.generation,
        protocol_type=metadata.protocol_type,
        protocol_name=metadata.protocol,
        leader=leader,
        skip_assignment=is_back and is_leader,
        member_id=member.member_id,
        members=members,
    )


async def sync_group(gateway: Gateway, call: Call) -> Any:
    """Answer SyncGroup, once the leader has given the assignments."""
    request = call.request
    given = {item.member_id: bytes(item.assignment) for item in request.assignments}

    def check(metadata: GroupMetadata) -> None:
        said = request.protocol_type, request.protocol_name
        if call.version >= 5 and said != (metadata.protocol_type, metadata.protocol):
            raise ReplogError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the group has another protocol. Join again.")
        checked.append(metadata)

    checked: list[GroupMetadata] = []
    try:
        await gateway.run(require_group, gateway, call.principal, AclOperation.READ, request.group_id)
        data = await gateway.part(MemberHost).sync(request.group_id, _identity(call, 3), check, given)
        metadata = checked[0]
        if metadata.protocol_type == CONSUMER:
            data = kafka_assignment(data)
    except ReplogError as error:
        return SyncGroupResponse(error_code=group_code(error), assignment=b"")
    return SyncGroupResponse(
        error_code=0, protocol_type=metadata.protocol_type, protocol_name=metadata.protocol, assignment=data
    )


async def heartbeat(gateway: Gateway, call: Call) -> Any:
    """Answer Heartbeat from this gateway's last look at the group."""
    code, group = 0, call.request.group_id
    try:
        authorizer = Authorizer(gateway.cluster, call.principal)
        if not group or not authorizer.is_allowed(AclOperation.READ, ResourceType.GROUP, group):
            await gateway.run(require_group, gateway, call.principal, AclOperation.READ, group)
        host, identity = gateway.part(MemberHost), _identity(call, 3)
        await host.beat(group, identity)
        host.note_address(group, identity.member_id, call.client_host)
    except ReplogError as error:
        code = group_code(error)
    return HeartbeatResponse(error_code=code)


async def leave_group(gateway: Gateway, call: Call) -> Any:
    """Answer LeaveGroup: of one member, or since version 3 of several, which an administrator may name by instance."""
    request, host = call.request, gateway.part(MemberHost)
    response, group = LeaveGroupResponse.MemberResponse, request.group_id
    named = (
        [(item.member_id, item.group_instance_id or "") for item in request.members]
        if call.version >= 3
        else [(request.member_id, "")]
    )
    members, leaving = [], []
    try:
        await gateway.run(require_group, gateway, call.principal, AclOperation.READ, group)
        state = await host.newest(group)
        metadata = GroupMetadata() if state is None else state.metadata
        for member_id, instance_id in named:
            member, code = _leaving(metadata, member_id, instance_id)
            if member is not None:
                leaving.append(member.member_id)
            members.append(response(member_id=member_id, group_instance_id=instance_id or None, error_code=code))
        await host.leave(group, dict.fromkeys(leaving))
    except ReplogError as error:
        return LeaveGroupResponse(error_code=group_code(error), members=[])
    return LeaveGroupResponse(error_code=0 if call.version >= 3 else members[0].error_code, members=members)


def _leaving(metadata: GroupMetadata, member_id: str, instance_id: str) -> tuple[GroupMember | None, int]:
    member = metadata.instance(instance_id) if instance_id else metadata.member(member_id)
    if member is None:
        return None, int(ErrorCode.UNKNOWN_MEMBER_ID)
    if member_id not in ("", member.member_id):
        return None, int(ErrorCode.FENCED_INSTANCE_ID)
    return member, 0


def _identity(call: Call, instance_since: int) -> MemberIdentity:
    request = call.request
    instance_id = (request.group_instance_id or "") if call.version >= instance_since else ""
    return MemberIdentity(request.member_id, instance_id, request.generation_id)


# ------------------------------------------------------------------------------------------------------- offsets


async def offset_commit(gateway: Gateway, call: Call) -> Any:
    """Answer OffsetCommit; what it says beside an offset comes back as it is. Since version 10 topics have ids."""
    request, host = call.request, gateway.part(MemberHost)
    topics = await gateway.run(_named, gateway, call, request.topics)
    instance_id = (request.group_instance_id or "") if call.version >= 7 else ""
    who = MemberIdentity(request.member_id, instance_id, request.generation_id_or_member_epoch)
    offsets = {
        TopicPartition(name, part.partition_index): OffsetAndMetadata(
            part.committed_offset,
            part.committed_leader_epoch if call.version >= 6 else -1,
            part.committed_metadata or "",
            topic_id=topic.topic_id.hex if call.version >= _HAS_TOPIC_IDS_SINCE else "",
        )
        for topic, name in topics
        if name is not None
        for part in topic.partitions
    }
    codes: Mapping[TopicPartition, int]
    try:
        stripe = host.stripe(call.principal, request.group_id, request.member_id)
        async with stripe.lock:
            answers = await gateway.run(stripe.coordinator.commit_offsets, request.group_id, offsets, who)
        if who.member_id:
            await host.hear(request.group_id, who.member_id, is_written=True)
        codes = {key: 0 if error is None else group_code(error) for key, error in answers.items()}
    except ReplogError as error:
        code = group_code(error)
        if code == ErrorCode.ILLEGAL_GENERATION and call.version >= _ABSENT_GROUP_SINCE:
            code = await _absent_or(code, host, request.group_id)
        codes = dict.fromkeys(offsets, code)
    topic_of = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse(
        topics=[
            topic_of(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    topic_of.OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=int(ErrorCode.UNKNOWN_TOPIC_ID)
                        if name is None
                        else codes[TopicPartition(name, part.partition_index)],
                    )
                    for part in topic.partitions
                ],
            )
            for topic, name in topics
        ]
    )


def _named(gateway: Gateway, call: Call, topics: Iterable[Any]) -> list[tuple[Any, str | None]]:
    """Return a request's topics with their names; None: no topic has the id."""
    if call.version < _HAS_TOPIC_IDS_SINCE:
        return [(topic, topic.name) for topic in topics]
    with suppress(ReplogError):  # the store is away: the call that follows says it
        gateway.cluster.refresh_if_stale()
    return [(topic, gateway.topic_name(topic.topic_id)) for topic in topics]


async def _absent_or(code: int, host: MemberHost, group: str) -> int:
    """Return GROUP_ID_NOT_FOUND if there is no such group, else the code."""
    try:
        return code if await host.newest(group) is not None else int(ErrorCode.GROUP_ID_NOT_FOUND)
    except ReplogError:
        return code


_Offsets = Mapping[TopicPartition, OffsetAndMetadata | None]


async def offset_fetch(gateway: Gateway, call: Call) -> Any:
    """Answer OffsetFetch: of one group, or since version 8 of several."""
    request = call.request
    if call.version >= 8:
        group_of = OffsetFetchResponse.OffsetFetchResponseGroup
        groups = []
        for item in request.groups:
            code, topics = await _fetched(gateway, call, item.group_id, item.topics, group_of.OffsetFetchResponseTopics)
            groups.append(group_of(group_id=item.group_id, error_code=code, topics=topics))
        return OffsetFetchResponse(groups=groups)
    code, topics = await _fetched(
        gateway, call, request.group_id, request.topics, OffsetFetchResponse.OffsetFetchResponseTopic
    )
    return OffsetFetchResponse(error_code=code, topics=topics)


async def _fetched(
    gateway: Gateway, call: Call, group: str, topics: Sequence[Any] | None, topic_of: Any
) -> tuple[int, list[Any]]:
    """Return the error code, and the offsets as a response has them."""
    wanted: list[TopicPartition] | None = None
    named: list[tuple[Any, str | None]] = []
    if topics is not None:
        named = await gateway.run(_named, gateway, call, topics)
        wanted = [TopicPartition(name, part) for topic, name in named if name for part in topic.partition_indexes]
    coordinator = gateway.part(MemberHost).stripe(call.principal, group).coordinator
    code = 0
    offsets: _Offsets = {}
    refused: set[str] = set()
    try:
        offsets, refused = await gateway.run(_fetch, coordinator, group, wanted)
    except ReplogError as error:
        code = group_code(error)
        offsets = dict.fromkeys(wanted or ())
    by_topic: dict[str, list[Any]] = {}
    part_of = getattr(topic_of, topic_of.__name__.replace("Topic", "Partition"))
    for key, value in offsets.items():
        is_refused = key.topic in refused
        by_topic.setdefault(key.topic, []).append(
            part_of(
                partition_index=key.partition,
                committed_offset=NO_OFFSET if value is None else value.offset,
                committed_leader_epoch=-1 if value is None else value.leader_epoch,
                metadata="" if value is None else value.metadata,
                error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED) if is_refused else code,
            )
        )
    if call.version < _HAS_TOPIC_IDS_SINCE:
        return code, [topic_of(name=name, partitions=parts) for name, parts in by_topic.items()]
    ids = {name: topic.topic_id for topic, name in named}
    if topics is None:
        present = gateway.cluster.cluster_ledger.ask(lambda state: dict(state.topics))
        ids = {name: UUID(hex=present[name][0]) for name in by_topic if name in present}
    answered = [topic_of(topic_id=ids[name], partitions=parts) for name, parts in by_topic.items() if name in ids]
    for topic in [topic for topic, name in named if name is None]:
        unknown = [
            part_of(
                partition_index=number,
                committed_offset=NO_OFFSET,
                metadata="",
                error_code=int(ErrorCode.UNKNOWN_TOPIC_ID),
            )
            for number in topic.partition_indexes
        ]
        answered.append(topic_of(topic_id=topic.topic_id, partitions=unknown))
    return code, answered


def _fetch(
    coordinator: GroupCoordinator, group: str, wanted: Sequence[TopicPartition] | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], set[str]]:
    """Return the offsets, and the topics that the principal may not see."""
    if wanted is None:
        return coordinator.fetch_offsets(group), set()
    named = {key.topic for key in wanted}
    shown = coordinator.describable(named)
    offsets = coordinator.fetch_offsets(group, [key for key in wanted if key.topic in shown])
    return {key: offsets.get(key) for key in wanted}, named - shown


async def offset_delete(gateway: Gateway, call: Call) -> Any:
    """Answer OffsetDelete."""
    request = call.request
    keys = [TopicPartition(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
    coordinator = gateway.part(MemberHost).stripe(call.principal, request.group_id).coordinator
    try:
        answers = await gateway.run(coordinator.delete_offsets, request.group_id, keys)
    except ReplogError as error:
        return OffsetDeleteResponse(error_code=group_code(error), topics=[])
    topic_of = OffsetDeleteResponse.OffsetDeleteResponseTopic
    by_topic: dict[str, list[Any]] = {}
    for key, refusal in answers.items():
        part = topic_of.OffsetDeleteResponsePartition(
            partition_index=key.partition, error_code=0 if refusal is None else group_code(refusal)
        )
        by_topic.setdefault(key.topic, []).append(part)
    return OffsetDeleteResponse(
        error_code=0, topics=[topic_of(name=name, partitions=parts) for name, parts in by_topic.items()]
    )


APIS = {
    ApiKey.FindCoordinator: Api(0, 4, find_coordinator),
    ApiKey.JoinGroup: Api(0, 9, join_group),
    ApiKey.SyncGroup: Api(0, 5, sync_group),
    ApiKey.Heartbeat: Api(0, 4, heartbeat),
    ApiKey.LeaveGroup: Api(0, 5, leave_group),
    ApiKey.OffsetCommit: Api(2, 10, offset_commit),
    ApiKey.OffsetFetch: Api(1, 10, offset_fetch),
    ApiKey.OffsetDelete: Api(0, 0, offset_delete),
}
