"""DescribeGroups, ListGroups and DeleteGroups: groups as administrators see them."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.api_key import ApiKey

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.errors import error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.gateway.groups import group_code, require_group
from spark_replog.gateway.member_host import MemberHost
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.groups.group_ledger import group_not_found
from spark_replog.groups.group_rebalance import CONSUMER, kafka_assignment, kafka_subscription
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.group_records import GroupPhase
from spark_replog.log.fold.group_state import GroupState

_STATES = {
    GroupPhase.EMPTY: "Empty",
    GroupPhase.PREPARING_REBALANCE: "PreparingRebalance",
    GroupPhase.COMPLETING_REBALANCE: "CompletingRebalance",
    GroupPhase.STABLE: "Stable",
}
_DEAD = "Dead"
_CLASSIC = "classic"
_ABSENT_IS_AN_ERROR_SINCE = 6
_GROUP_OPERATIONS = (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
_Group = DescribeGroupsResponse.DescribedGroup


async def describe_groups(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeGroups.

    What members of the product's own clients say is told in Kafka's bytes. Addresses are those of members that come
    through this gateway: the log of groups has none.
    """
    return DescribeGroupsResponse(groups=await gateway.run(_describe, gateway, call))


def _describe(gateway: Gateway, call: Call) -> list[Any]:
    coordinator = GroupCoordinator(gateway.cluster, principal=call.principal)
    described = []
    for number, group in enumerate(call.request.groups):
        try:
            require_group(gateway, call.principal, AclOperation.DESCRIBE, group)
            if number == 0:
                coordinator.fold()
            state = coordinator.folded_members(group)
            if state is None:
                raise group_not_found(group)
            described.append(_described(gateway, call, state))
        except ReplogError as error:
            code = group_code(error)
            if code == ErrorCode.GROUP_ID_NOT_FOUND and call.version < _ABSENT_IS_AN_ERROR_SINCE:
                code = 0
            described.append(
                _Group(
                    error_code=code,
                    error_message=error_text(error),
                    group_id=group,
                    group_state=_DEAD if code in (0, ErrorCode.GROUP_ID_NOT_FOUND) else "",
                    protocol_type="",
                    protocol_data="",
                    members=[],
                )
            )
    return described


def _described(gateway: Gateway, call: Call, state: GroupState) -> Any:
    metadata, host = state.metadata, gateway.part(MemberHost)
    members = []
    for member in metadata.members:
        address = host.address(state.group, member.member_id)
        data, assignment = dict(member.protocols).get(metadata.protocol, b""), member.assignment
        if metadata.protocol_type == CONSUMER:
            data, assignment = kafka_subscription(data), kafka_assignment(assignment)
        members.append(
            _Group.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id or None,
                client_id=member.client_id,
                client_host=f"/{address}" if address else "",
                member_metadata=data,
                member_assignment=assignment,
            )
        )
    made = _Group(
        error_code=0,
        group_id=state.group,
        group_state=_STATES[metadata.phase],
        protocol_type=metadata.protocol_type,
        protocol_data=metadata.protocol,
        members=members,
    )
    if call.version >= 3 and call.request.include_authorized_operations:
        authorizer = Authorizer(gateway.cluster, call.principal)
        made.authorized_operations = {
            int(operation)
            for operation in _GROUP_OPERATIONS
            if authorizer.is_allowed(operation, ResourceType.GROUP, state.group)
        }
    return made


async def list_groups(gateway: Gateway, call: Call) -> Any:
    """Answer ListGroups."""
    request = call.request
    states = {word.lower() for word in request.states_filter or ()} if call.version >= 4 else set()
    types = {word.lower() for word in request.types_filter or ()} if call.version >= 5 else set()
    coordinator = GroupCoordinator(gateway.cluster, principal=call.principal)
    try:
        await gateway.run(gateway.cluster.refresh_if_stale)
        groups = await gateway.run(coordinator.groups)
    except ReplogError as error:
        return ListGroupsResponse(error_code=group_code(error), groups=[])
    return ListGroupsResponse(
        error_code=0,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=state.group,
                protocol_type=state.metadata.protocol_type,
                group_state=_STATES[state.phase],
                group_type=_CLASSIC,
            )
            for state in groups
            if (not states or _STATES[state.phase].lower() in states) and (not types or _CLASSIC in types)
        ],
    )


async def delete_groups(gateway: Gateway, call: Call) -> Any:
    """Answer DeleteGroups. A group with members is refused at once, and dead members are taken out meanwhile."""
    host, results = gateway.part(MemberHost), []
    for group in call.request.groups_names:
        code = 0
        try:
            await gateway.run(require_group, gateway, call.principal, AclOperation.DELETE, group)
            state = await host.newest(group)
            if state is not None and state.metadata.members:
                host.watch(group, max(member.session_timeout_ms for member in state.metadata.members))
                raise ReplogError(ErrorCode.NON_EMPTY_GROUP, f"Group '{group}' has members. Stop its consumers.")
            await gateway.run(GroupCoordinator(gateway.cluster, principal=call.principal).delete_group, group)
        except ReplogError as error:
            code = group_code(error)
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=code))
    return DeleteGroupsResponse(results=results)


APIS = {
    ApiKey.DescribeGroups: Api(0, 6, describe_groups),
    ApiKey.ListGroups: Api(0, 5, list_groups),
    ApiKey.DeleteGroups: Api(0, 2, delete_groups),
}
