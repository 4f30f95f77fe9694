"""ACLs and client quotas for administrators. ACLs here name no hosts: storage does not show where a writer is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kafka.protocol.admin import (
    AlterClientQuotasResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
)
from kafka.protocol.api_key import ApiKey

from spark_replog.admin.access_admin import AclAdmin, AclFilter, QuotaAdmin
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.gateway.errors import error_code, error_text
from spark_replog.gateway.gateway import Api, Call, Gateway
from spark_replog.log.acl import (
    USER_TYPE,
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity

ANY = 1
"""In a filter: any type, operation or permission."""
MATCH = 2
"""In a filter: ACLs whose pattern covers the name."""
_USER, _CLIENT_ID = "user", "client-id"
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_Word = TypeVar("_Word", ResourceType, PatternType, AclOperation, Permission)


# ---------------------------------------------------------------------------------------------------------- ACLs


async def create_acls(gateway: Gateway, call: Call) -> Any:
    """Answer CreateAcls: those that can be are created together."""
    creations = call.request.creations
    problems: dict[int, ReplogError] = {}
    bindings: dict[int, AclBinding] = {}
    for number, item in enumerate(creations):
        try:
            bindings[number] = _binding(item)
        except ReplogError as error:
            problems[number] = error
    try:
        await gateway.run(AclAdmin(gateway.cluster, call.principal).add, list(bindings.values()))
    except ReplogError as error:
        problems |= dict.fromkeys(bindings, error)
    return CreateAclsResponse(
        results=[
            CreateAclsResponse.AclCreationResult(**_problem(problems.get(number))) for number in range(len(creations))
        ]
    )


def _binding(item: Any) -> AclBinding:
    if item.host != WILDCARD:
        raise _invalid(f"An ACL for host '{item.host}': the log cannot check hosts. Leave the host out, or give *.")
    return AclBinding(
        _word(ResourceType, item.resource_type, "resource type"),
        item.resource_name,
        _word(PatternType, item.resource_pattern_type, "pattern type"),
        item.principal,
        _word(AclOperation, item.operation, "operation"),
        _word(Permission, item.permission_type, "permission"),
    )


async def describe_acls(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeAcls."""
    resource_of = DescribeAclsResponse.DescribeAclsResource
    try:
        wanted = _filter(call.request)
        admin = AclAdmin(gateway.cluster, call.principal)
        bindings = await gateway.run(admin.list, AclFilter() if wanted is None else wanted)
    except ReplogError as error:
        return DescribeAclsResponse(resources=[], **_problem(error))
    resources: dict[tuple[int, str, int], list[AclBinding]] = {}
    for binding in bindings if wanted is not None else ():
        key = int(binding.resource_type), binding.name, int(binding.pattern_type)
        resources.setdefault(key, []).append(binding)
    return DescribeAclsResponse(
        resources=[
            resource_of(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=[
                    resource_of.AclDescription(
                        principal=binding.principal,
                        host=WILDCARD,
                        operation=int(binding.operation),
                        permission_type=int(binding.permission),
                    )
                    for binding in group
                ],
            )
            for (kind, name, pattern), group in resources.items()
        ],
        **_problem(None),
    )


async def delete_acls(gateway: Gateway, call: Call) -> Any:
    """Answer DeleteAcls: what each filter matches."""
    result, results = DeleteAclsResponse.DeleteAclsFilterResult, []
    admin = AclAdmin(gateway.cluster, call.principal)
    for item in call.request.filters:
        try:
            wanted = _filter(item)
            removed = [] if wanted is None else await gateway.run(admin.remove, wanted)
        except ReplogError as error:
            results.append(result(matching_acls=[], **_problem(error)))
            continue
        matching = [
            result.DeleteAclsMatchingAcl(
                resource_type=int(binding.resource_type),
                resource_name=binding.name,
                pattern_type=int(binding.pattern_type),
                principal=binding.principal,
                host=WILDCARD,
                operation=int(binding.operation),
                permission_type=int(binding.permission),
                **_problem(None),
            )
            for binding in removed
        ]
        results.append(result(matching_acls=matching, **_problem(None)))
    return DeleteAclsResponse(filter_results=results)


def _filter(item: Any) -> AclFilter | None:
    """Return what a filter selects; None: no ACL can match. Raises INVALID_REQUEST."""
    kind, pattern = item.resource_type_filter, item.pattern_type_filter
    is_known = kind in (ANY, *ResourceType) and item.operation in (ANY, *AclOperation)
    if min(kind, pattern, item.operation, item.permission_type) < ANY:
        raise _invalid("A filter has an unknown type. Use ANY for all.")
    if not is_known or item.host_filter not in (None, WILDCARD):
        return None
    if pattern not in (ANY, MATCH, *PatternType):
        raise _invalid(f"{pattern} is no pattern type.")
    return AclFilter(
        None if kind == ANY else ResourceType(kind),
        item.resource_name_filter,
        None if pattern in (ANY, MATCH) else PatternType(pattern),
        item.principal_filter,
        None if item.operation == ANY else AclOperation(item.operation),
        None if item.permission_type == ANY else _word(Permission, item.permission_type, "permission"),
        covers=pattern == MATCH,
    )


def _word(kind: type[_Word], number: int, what: str) -> _Word:
    try:
        return kind(number)
    except ValueError:
        allowed = ", ".join(word.name for word in kind)
        raise _invalid(f"{number} is no {what} of an ACL here. Use one of: {allowed}.") from None


def _invalid(text: str) -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.INVALID_REQUEST, text)


def _problem(error: ReplogError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": error_code(error), "error_message": error_text(error)}


# -------------------------------------------------------------------------------------------------------- quotas


async def describe_client_quotas(gateway: Gateway, call: Call) -> Any:
    """Answer DescribeClientQuotas."""
    entry = DescribeClientQuotasResponse.EntryData
    try:
        quotas = await gateway.run(QuotaAdmin(gateway.cluster, call.principal).describe)
        matching = [(entity, limits) for entity, limits in quotas if _matches(entity, call.request)]
    except ReplogError as error:
        return DescribeClientQuotasResponse(entries=None, **_problem(error))
    entries = [
        entry(
            entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in _names(entity).items()],
            values=[entry.ValueData(key=key, value=float(limit)) for key, limit in limits.items()],
        )
        for entity, limits in matching
    ]
    return DescribeClientQuotasResponse(entries=entries, **_problem(None))


def _names(entity: QuotaEntity) -> dict[str, str | None]:
    """Return an entity as Kafka names it; None is the default of all others."""
    user = entity.user if entity.user is None else entity.user.removeprefix(f"{USER_TYPE}:")
    parts = {_USER: user, _CLIENT_ID: entity.client_id}
    return {kind: None if name == DEFAULT_NAME else name for kind, name in parts.items() if name is not None}


def _matches(entity: QuotaEntity, request: Any) -> bool:
    names = _names(entity)
    asked: set[str] = set()
    for part in request.components:
        kind = part.entity_type
        if part.match_type not in (_EXACT, _DEFAULT, _SPECIFIED) or kind in asked:
            raise _invalid(f"The filter of '{kind}' cannot be read. Give each entity once: a name, default, or any.")
        asked.add(kind)
        if kind not in names:
            return False
        if part.match_type == _EXACT and names[kind] != part.match:
            return False
        if part.match_type == _DEFAULT and names[kind] is not None:
            return False
    return not request.strict or names.keys() == asked


async def alter_client_quotas(gateway: Gateway, call: Call) -> Any:
    """Answer AlterClientQuotas: each entity is changed alone."""
    made, entries = AlterClientQuotasResponse.EntryData, []
    admin = QuotaAdmin(gateway.cluster, call.principal)
    for item in call.request.entries:
        error: ReplogError | None = None
        try:
            entity = _entity((part.entity_type, part.entity_name) for part in item.entity)
            changes = {change.key: None if change.remove else _limit(change) for change in item.ops}
            await gateway.run(admin.alter, entity, changes, validate_only=call.request.validate_only)
        except ReplogError as failure:
            error = failure
        parts = [made.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in item.entity]
        entries.append(made(entity=parts, **_problem(error)))
    return AlterClientQuotasResponse(entries=entries)


def _entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    names: dict[str, str] = {}
    for kind, name in parts:
        if kind not in (_USER, _CLIENT_ID) or kind in names:
            raise _invalid(f"Quotas of '{kind}' are not measured here, or it is given twice. Use user and client-id.")
        names[kind] = DEFAULT_NAME if name is None else name
    return QuotaEntity(names.get(_USER), names.get(_CLIENT_ID))


def _limit(change: Any) -> int:
    if not change.value.is_integer():
        text = f"'{change.key}' is {change.value}. Give whole bytes per second."
        raise InvalidConfigError(ErrorCode.INVALID_CONFIG, text)
    return int(change.value)


APIS = {
    ApiKey.DescribeAcls: Api(1, 3, describe_acls),
    ApiKey.CreateAcls: Api(1, 3, create_acls),
    ApiKey.DeleteAcls: Api(1, 3, delete_acls),
    ApiKey.DescribeClientQuotas: Api(0, 1, describe_client_quotas),
    ApiKey.AlterClientQuotas: Api(0, 1, alter_client_quotas),
}
