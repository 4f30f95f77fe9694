"""``replog acl`` and ``replog quota``: rights and rates of principals. Flags as in ``kafka-acls``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.completion import complete_groups, complete_topics
from spark_replog.cli.output import confirm, emit, item_of, note
from spark_replog.cli.settings import Flag, ReplogGroup, current_settings, flags, key_values, yes_flag
from spark_replog.cli.tables import Table, is_terminal, table
from spark_replog.log.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    normal_principal,
)

if TYPE_CHECKING:
    from spark_replog.admin.access_admin import AclAdmin, AclFilter, QuotaAdmin
    from spark_replog.log.quotas import QuotaEntity

_OPERATIONS = {operation.name.lower().replace("_", "-"): operation for operation in AclOperation}
_COLUMNS = {"RESOURCE": "resourceType", "NAME": "resourceName", "PATTERN": "patternType", "PRINCIPAL": "principal",
            "OPERATION": "operation", "PERMISSION": "permissionType"}  # fmt: skip
_PRODUCER = {
    ResourceType.TOPIC: [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE],
    ResourceType.TRANSACTIONAL_ID: [AclOperation.WRITE, AclOperation.DESCRIBE],
}
_CONSUMER = {
    ResourceType.TOPIC: [AclOperation.READ, AclOperation.DESCRIBE],
    ResourceType.GROUP: [AclOperation.READ],
}


@click.group("acl", cls=ReplogGroup)
def acl() -> None:
    """Grant and deny operations to principals. ACLs are advisory: storage credentials enforce access."""


_resource_flags = flags(
    click.option("--topic", multiple=True, metavar="NAME", help="Topic; '*' is every topic.",
                 shell_complete=complete_topics),
    click.option("--group", multiple=True, metavar="NAME", help="Consumer group.", shell_complete=complete_groups),
    click.option("--transactional-id", multiple=True, metavar="ID"),
    click.option("--cluster", is_flag=True, help="The store."),
    click.option("--operation", "operations", multiple=True,
                 type=click.Choice(list(_OPERATIONS), case_sensitive=False)),
)  # fmt: skip
_principals = click.option("--principal", "principals", multiple=True, metavar="User:NAME")


def _pattern_flag(*choices: str) -> Flag:
    kind = click.Choice(choices, case_sensitive=False)
    return click.option("--resource-pattern-type", "pattern", type=kind, default=choices[0], show_default=True)


def _resources(given: dict[str, Any]) -> list[tuple[ResourceType, str]]:
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    resources = [(kind, name) for kind in kinds for name in given[kind.name.lower()]]
    return [*resources, (ResourceType.CLUSTER, CLUSTER_NAME)] if given["cluster"] else resources


@acl.command(
    "add",
    examples=[
        "acl add --allow-principal User:etl --producer --topic orders",
        "acl add --allow-principal User:bi --consumer --topic orders --group billing",
    ],
)
@_resource_flags
@_pattern_flag("literal", "prefixed")
@click.option("--allow-principal", "allowed", multiple=True, metavar="User:NAME",
              help="Principal to allow; 'User:*' is everyone.")  # fmt: skip
@click.option("--deny-principal", "denied", multiple=True, metavar="User:NAME",
              help="Principal to deny. Deny overrides allow.")  # fmt: skip
@click.option(
    "--producer", is_flag=True, help="Grant what a producer needs: write, describe, create; write on transactional ids."
)
@click.option("--consumer", is_flag=True, help="Grant what a consumer needs: read and describe; read on groups.")
@yes_flag
def add(allowed: tuple[str, ...], denied: tuple[str, ...], yes: bool, **given: Any) -> int:
    """Add ACLs; existing ones stay. Warn where it is the first ACL of a resource."""
    operations = [_OPERATIONS[word] for word in given["operations"]]
    sets = [_PRODUCER] * given["producer"] + [_CONSUMER] * given["consumer"]
    wanted = dict.fromkeys(
        (kind, name, operation)
        for kind, name in _resources(given)
        for operation in [*operations, *(role_operation for role in sets for role_operation in role.get(kind, ()))]
    )
    if not allowed and not denied:
        raise click.UsageError("no principal: give --allow-principal or --deny-principal")
    if not wanted:
        raise click.UsageError(
            "no resource or operation: give --topic, --group, --transactional-id or --cluster, and --operation"
        )
    who = [(user, Permission.ALLOW) for user in allowed] + [(user, Permission.DENY) for user in denied]
    pattern = PatternType[given["pattern"].upper()]
    bindings = [
        AclBinding(kind, name, PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern, principal, operation,
                   permission)
        for kind, name, operation in wanted
        for principal, permission in who
    ]  # fmt: skip
    admin = _admin()
    closed = [f"{kind.name.lower().replace('_', '-')} '{name}'" for kind, name in admin.first_of(bindings)]
    if closed:
        note(
            f"warning: {', '.join(closed)} has no ACL yet, so everybody may use it. After this only super users and "
            "the principals that its ACLs allow may."
        )
        if not yes and is_terminal(sys.stdin):  # scripts without -y continue
            click.confirm("Add the first ACL?", abort=True, err=True)
    return _show(admin.add(bindings), "added")


@acl.command("list", examples=["acl list --topic orders --resource-pattern-type match"])
@_resource_flags
@_pattern_flag("any", "match", "literal", "prefixed")
@_principals
def list_acls(**given: Any) -> int:
    """List ACLs. With pattern type 'match', list every ACL that applies to the resource."""
    filters, admin = _filters(given), _admin()
    bindings = dict.fromkeys(binding for one in filters for binding in admin.list(one))
    items = [_item(binding) for binding in sorted(bindings)]
    return emit(items, table(_COLUMNS, items))


@acl.command("remove", examples=["acl remove --principal User:etl --topic orders"])
@_resource_flags
@_pattern_flag("literal", "prefixed", "any", "match")
@_principals
@yes_flag
def remove(yes: bool, **given: Any) -> int:
    """Remove all ACLs that match."""
    if not _resources(given) and not given["principals"]:
        raise click.UsageError("no filter: give --topic, --group, --transactional-id, --cluster or --principal")
    confirm(yes, "Remove these ACLs?")
    admin = _admin()
    return _show([binding for one in _filters(given) for binding in admin.remove(one)], "removed")


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
    return _configure({key: value.strip() for key, value in key_values("set", pairs).items()})


@config.command("unset", examples=["acl config unset super.users"])
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def config_unset(keys: tuple[str, ...]) -> int:
    """Reset settings to their defaults."""
    return _configure(dict.fromkeys(keys))


def _configure(changes: Mapping[str, str | None]) -> int:
    admin = _admin()
    admin.configure(changes)
    return _show_config(admin.config())


def _admin() -> AclAdmin:
    from spark_replog.admin.access_admin import AclAdmin

    return AclAdmin(current_settings().open_cluster())


def _filters(given: dict[str, Any]) -> list[AclFilter]:
    from spark_replog.admin.access_admin import AclFilter

    pattern = PatternType[given["pattern"].upper()] if given["pattern"] in ("literal", "prefixed") else None
    resources: list[tuple[ResourceType | None, str | None]] = [*_resources(given)] or [(None, None)]
    return [
        AclFilter(kind, name, pattern if name else None, principal, operation and _OPERATIONS[operation],
                  covers=given["pattern"] == "match")
        for kind, name in resources
        for principal in given["principals"] or [None]
        for operation in given["operations"] or [None]
    ]  # fmt: skip


def _item(binding: AclBinding) -> dict[str, Any]:
    keys = ("resourceType=resource_type.name resourceName=name patternType=pattern_type.name principal "
            "operation=operation.name permissionType=permission.name")  # fmt: skip
    return item_of(binding, keys)


def _show(bindings: list[AclBinding], verb: str) -> int:
    items = [_item(binding) for binding in bindings]
    lines = [
        f"{item['permissionType'].lower()} {item['principal']} {item['operation'].lower()} "
        f"{item['resourceType'].lower()} {item['patternType'].lower()} {item['resourceName']}: {verb}"
        for item in items
    ]
    return emit(items, *lines or [f"no ACL {verb}"])


def _show_config(settings: dict[str, str]) -> int:
    items = [{"key": key, "value": value} for key, value in sorted(settings.items())]
    return emit(items, table({"KEY": "key", "VALUE": "value"}, items))


@click.group("quota", cls=ReplogGroup)
def quota() -> None:
    """Limit how fast clients write and read, in bytes per second."""


_entity_flags = flags(
    click.option("--user", metavar="NAME", help="Principal. NAME means User:NAME."),
    click.option("--user-default", is_flag=True, help="All users without their own quota."),
    click.option("--client-id", metavar="ID", help="Client id."),
    click.option("--client-id-default", is_flag=True, help="All client ids without their own quota."),
)


def _entity(user: str | None, user_default: bool, client_id: str | None, client_id_default: bool) -> QuotaEntity:
    if (user is not None and user_default) or (client_id is not None and client_id_default):
        raise click.UsageError("give a name or its default, not both")
    from spark_replog.log.quotas import DEFAULT_NAME, QuotaEntity

    return QuotaEntity(
        DEFAULT_NAME if user_default else None if user is None else normal_principal(user),
        DEFAULT_NAME if client_id_default else client_id,
    )


@quota.command("set", examples=["quota set --user etl producer_byte_rate=10000000"])
@_entity_flags
@click.argument("pairs", nargs=-1, required=True, metavar="QUOTA=BYTES_PER_SECOND...")
def set_quota(pairs: tuple[str, ...], **names: Any) -> int:
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
    entity, admin = _entity(**names), _quota_admin()
    admin.alter(entity, changes)
    return _show_quotas(admin, entity)


@quota.command("describe", examples=["quota describe"])
@_entity_flags
def describe(**names: Any) -> int:
    """Show all quotas, or those of one entity."""
    entity = _entity(**names)
    return _show_quotas(_quota_admin(), None if entity == (None, None) else entity)


def _show_quotas(admin: QuotaAdmin, entity: QuotaEntity | None) -> int:
    shown = [(owner, limits) for owner, limits in admin.describe() if entity is None or owner == entity]
    items = [{**item_of(owner, "user clientId"), "quotas": dict(sorted(limits.items()))} for owner, limits in shown]
    rows = [(owner.user, owner.client_id, key, limits[key]) for owner, limits in shown for key in sorted(limits)]
    return emit(items, Table(["USER", "CLIENT-ID", "QUOTA", "BYTES/S"], rows))


def _quota_admin() -> QuotaAdmin:
    from spark_replog.admin.access_admin import QuotaAdmin

    return QuotaAdmin(current_settings().open_cluster())
