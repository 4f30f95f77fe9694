"""``replog acl`` and ``replog quota``: rights and rates of principals. Flags as in ``kafka-acls``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_replog.cli.completion import complete_groups, complete_topics
from spark_replog.cli.output import confirm, emit, item_of, warn_and_ask
from spark_replog.cli.settings import ReplogGroup, current_settings, key_values, yes_flag
from spark_replog.cli.tables import Table, table

if TYPE_CHECKING:
    from spark_replog.admin.access_admin import AclAdmin, AclFilter, QuotaAdmin
    from spark_replog.log.acl import AclBinding
    from spark_replog.log.quotas import QuotaEntity

_OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
)
_RESOURCES = ("topic", "group", "transactional_id")
_COLUMNS = {
    "RESOURCE": "resourceType",
    "NAME": "resourceName",
    "PATTERN": "patternType",
    "PRINCIPAL": "principal",
    "OPERATION": "operation",
    "PERMISSION": "permissionType",
}
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group("acl", cls=ReplogGroup)
def acl() -> None:
    """Grant and deny operations to principals. ACLs are advisory: storage credentials enforce access."""


def _resource_options(command: _Command) -> _Command:
    options = (
        click.option(
            "--topic",
            "topic",
            multiple=True,
            metavar="NAME",
            help="Topic; '*' is every topic.",
            shell_complete=complete_topics,
        ),
        click.option(
            "--group", "group", multiple=True, metavar="NAME", help="Consumer group.", shell_complete=complete_groups
        ),
        click.option("--transactional-id", "transactional_id", multiple=True, metavar="ID"),
        click.option("--cluster", is_flag=True, help="The store."),
        click.option("--operation", "operations", multiple=True, type=click.Choice(_OPERATIONS, case_sensitive=False)),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _pattern_option(*choices: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--resource-pattern-type",
        "pattern",
        type=click.Choice(choices, case_sensitive=False),
        default=choices[0],
        show_default=True,
    )


@acl.command(
    "add",
    examples=[
        "acl add --allow-principal User:etl --producer --topic orders",
        "acl add --allow-principal User:bi --consumer --topic orders --group billing",
    ],
)
@_resource_options
@_pattern_option("literal", "prefixed")
@click.option(
    "--allow-principal", "allowed", multiple=True, metavar="User:NAME", help="Principal to allow; 'User:*' is everyone."
)
@click.option(
    "--deny-principal", "denied", multiple=True, metavar="User:NAME", help="Principal to deny. Deny overrides allow."
)
@click.option(
    "--producer", is_flag=True, help="Grant what a producer needs: write, describe, create; write on transactional ids."
)
@click.option("--consumer", is_flag=True, help="Grant what a consumer needs: read and describe; read on groups.")
@yes_flag
def add(
    pattern: str,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    producer: bool,
    consumer: bool,
    operations: tuple[str, ...],
    cluster: bool,
    yes: bool,
    **names: tuple[str, ...],
) -> int:
    """Add ACLs; existing ones stay. Warn where it is the first ACL of a resource."""
    wanted = _granted(names, cluster, operations, producer, consumer)
    if not allowed and not denied:
        raise click.UsageError("no principal: give --allow-principal or --deny-principal")
    if not wanted:
        raise click.UsageError(
            "no resource or operation: give --topic, --group, --transactional-id or --cluster, and --operation"
        )
    from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType

    who = [(each, Permission.ALLOW) for each in allowed] + [(each, Permission.DENY) for each in denied]
    kind = PatternType[pattern.upper()]
    bindings = [
        AclBinding(
            ResourceType[resource],
            name,
            PatternType.LITERAL if resource == "CLUSTER" else kind,
            principal,
            AclOperation[operation],
            permission,
        )
        for resource, name, operation in wanted
        for principal, permission in who
    ]
    admin = _admin()
    closed = [f"{kind.name.lower().replace('_', '-')} '{name}'" for kind, name in admin.first_of(bindings)]
    if closed:
        warn_and_ask(
            yes,
            f"{', '.join(closed)} has no ACL yet, so everybody may use it. After this only super users and the "
            "principals that its ACLs allow may.",
            "Add the first ACL?",
        )
    return _show(admin.add(bindings), "added")


def _granted(
    names: dict[str, tuple[str, ...]], cluster: bool, operations: tuple[str, ...], producer: bool, consumer: bool
) -> list[tuple[str, str, str]]:
    """Return (resource type, name, operation) for each right granted."""
    given = [each.upper().replace("-", "_") for each in operations]
    by_type = {resource.upper(): list(given) for resource in _RESOURCES}
    if producer:
        by_type["TOPIC"] += ["WRITE", "DESCRIBE", "CREATE"]
        by_type["TRANSACTIONAL_ID"] += ["WRITE", "DESCRIBE"]
    if consumer:
        by_type["TOPIC"] += ["READ", "DESCRIBE"]
        by_type["GROUP"] += ["READ"]
    found = [
        (resource.upper(), name, operation)
        for resource in _RESOURCES
        for name in names[resource]
        for operation in by_type[resource.upper()]
    ]
    if cluster:
        from spark_replog.log.acl import CLUSTER_NAME

        found += [("CLUSTER", CLUSTER_NAME, operation) for operation in given]
    return list(dict.fromkeys(found))


@acl.command("list", examples=["acl list --topic orders --resource-pattern-type match"])
@_resource_options
@_pattern_option("any", "match", "literal", "prefixed")
@click.option("--principal", "principals", multiple=True, metavar="User:NAME")
def list_acls(
    pattern: str, principals: tuple[str, ...], operations: tuple[str, ...], cluster: bool, **names: tuple[str, ...]
) -> int:
    """List ACLs. With pattern type 'match', list every ACL that applies to the resource."""
    filters = _filters(names, cluster, pattern, principals, operations)
    admin = _admin()
    found = dict.fromkeys(each for one in filters for each in admin.list(one))
    items = [_item(each) for each in sorted(found)]
    return emit(items, table(_COLUMNS, items))


@acl.command("remove", examples=["acl remove --principal User:etl --topic orders"])
@_resource_options
@_pattern_option("literal", "prefixed", "any", "match")
@click.option("--principal", "principals", multiple=True, metavar="User:NAME")
@yes_flag
def remove(
    pattern: str,
    principals: tuple[str, ...],
    operations: tuple[str, ...],
    cluster: bool,
    yes: bool,
    **names: tuple[str, ...],
) -> int:
    """Remove all ACLs that match."""
    if not any(names.values()) and not cluster and not principals:
        raise click.UsageError("no filter: give --topic, --group, --transactional-id, --cluster or --principal")
    confirm(yes, "Remove these ACLs?")
    admin = _admin()
    removed = [each for one in _filters(names, cluster, pattern, principals, operations) for each in admin.remove(one)]
    return _show(removed, "removed")


@acl.group("config")
def config() -> None:
    """Show and change settings of the store: super.users, allow.everyone.if.no.acl.found."""


@config.command("get", examples=["acl config get"])
def config_get() -> int:
    """Show the settings that are set."""
    return _show_config(_admin().config())


@config.command("set", examples=["acl config set super.users=User:admin"])
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
def config_set(pairs: tuple[str, ...]) -> int:
    """Set settings of the store."""
    changes = {key: value.strip() for key, value in key_values("set", pairs).items()}
    admin = _admin()
    admin.configure(changes)
    return _show_config(admin.config())


@config.command("unset", examples=["acl config unset super.users"])
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def config_unset(keys: tuple[str, ...]) -> int:
    """Reset settings to their defaults."""
    admin = _admin()
    admin.configure(dict.fromkeys(keys))
    return _show_config(admin.config())


def _admin() -> AclAdmin:
    from spark_replog.admin.access_admin import AclAdmin

    return AclAdmin(current_settings().open_cluster())


def _filters(
    names: dict[str, tuple[str, ...]],
    cluster: bool,
    pattern: str,
    principals: tuple[str, ...],
    operations: tuple[str, ...],
) -> list[AclFilter]:
    from spark_replog.admin.access_admin import AclFilter
    from spark_replog.log.acl import CLUSTER_NAME, AclOperation, PatternType, ResourceType

    resources: list[tuple[ResourceType | None, str | None]] = [
        (ResourceType[resource.upper()], name) for resource in _RESOURCES for name in names[resource]
    ]
    if cluster:
        resources.append((ResourceType.CLUSTER, CLUSTER_NAME))
    kind = PatternType[pattern.upper()] if pattern in {"literal", "prefixed"} else None
    return [
        AclFilter(
            resource,
            name,
            kind if name is not None else None,
            principal,
            None if operation is None else AclOperation[operation.upper().replace("-", "_")],
            covers=pattern == "match",
        )
        for resource, name in resources or [(None, None)]
        for principal in principals or [None]
        for operation in operations or [None]
    ]


def _item(binding: AclBinding) -> dict[str, Any]:
    keys = ("resourceType=resource_type.name resourceName=name patternType=pattern_type.name principal "
            "operation=operation.name permissionType=permission.name")  # fmt: skip
    return item_of(binding, keys)


def _show(bindings: list[AclBinding], verb: str) -> int:
    items = [_item(each) for each in bindings]
    lines = [
        f"{item['permissionType'].lower()} {item['principal']} {item['operation'].lower()} "
        f"{item['resourceType'].lower()} {item['patternType'].lower()} {item['resourceName']}: {verb}"
        for item in items
    ]
    return emit(items, *lines or [f"no ACL {verb}"])


def _show_config(found: dict[str, str]) -> int:
    items = [{"key": key, "value": value} for key, value in sorted(found.items())]
    return emit(items, table({"KEY": "key", "VALUE": "value"}, items))


@click.group("quota", cls=ReplogGroup)
def quota() -> None:
    """Limit how fast clients write and read, in bytes per second."""


def _entity_options(command: _Command) -> _Command:
    options = (
        click.option("--user", metavar="NAME", help="Principal. NAME means User:NAME."),
        click.option("--user-default", is_flag=True, help="All users without their own quota."),
        click.option("--client-id", metavar="ID", help="Client id."),
        click.option("--client-id-default", is_flag=True, help="All client ids without their own quota."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _entity(user: str | None, user_default: bool, client_id: str | None, client_id_default: bool) -> QuotaEntity:
    if (user is not None and user_default) or (client_id is not None and client_id_default):
        raise click.UsageError("give a name or its default, not both")
    from spark_replog.log.acl import normal_principal
    from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity

    return QuotaEntity(
        DEFAULT_NAME if user_default else None if user is None else normal_principal(user),
        DEFAULT_NAME if client_id_default else client_id,
    )


@quota.command("set", examples=["quota set --user etl producer_byte_rate=10000000"])
@_entity_options
@click.argument("pairs", nargs=-1, required=True, metavar="QUOTA=BYTES_PER_SECOND...")
def set_quota(
    user: str | None, user_default: bool, client_id: str | None, client_id_default: bool, pairs: tuple[str, ...]
) -> int:
    """Set producer_byte_rate or consumer_byte_rate of a user, a client id or both; '-' removes it."""
    changes: dict[str, int | None] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        try:
            changes[key.strip()] = None if value.strip() == "-" else int(value)
        except ValueError:
            separator = ""
        if not separator or not key:
            raise click.UsageError(f"invalid quota '{pair}': give QUOTA=BYTES_PER_SECOND, or QUOTA=- to remove it")
    entity = _entity(user, user_default, client_id, client_id_default)
    admin = _quota_admin()
    admin.alter(entity, changes)
    return _show_quotas(admin, entity)


@quota.command("describe", examples=["quota describe"])
@_entity_options
def describe(user: str | None, user_default: bool, client_id: str | None, client_id_default: bool) -> int:
    """Show all quotas, or those of one entity."""
    entity = _entity(user, user_default, client_id, client_id_default)
    return _show_quotas(_quota_admin(), None if entity == (None, None) else entity)


def _show_quotas(admin: QuotaAdmin, entity: QuotaEntity | None) -> int:
    shown = [(each, limits) for each, limits in admin.describe() if entity is None or each == entity]
    items = [
        {"user": each.user, "clientId": each.client_id, "quotas": dict(sorted(limits.items()))}
        for each, limits in shown
    ]
    rows = [(each.user, each.client_id, key, limits[key]) for each, limits in shown for key in sorted(limits)]
    return emit(items, Table(["USER", "CLIENT-ID", "QUOTA", "BYTES/S"], rows))


def _quota_admin() -> QuotaAdmin:
    from spark_replog.admin.access_admin import QuotaAdmin

    return QuotaAdmin(current_settings().open_cluster())
