"""``replog quota``: set, describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_replog.cli.output import emit, table
from spark_replog.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from spark_replog.admin.access_admin import QuotaAdmin
    from spark_replog.log.quotas import QuotaEntity

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group("quota")
@global_options
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


@quota.command("set")
@global_options
@_entity_options
@click.argument("pairs", nargs=-1, required=True, metavar="QUOTA=BYTES_PER_SECOND...")
def set_quota(
    user: str | None, user_default: bool, client_id: str | None, client_id_default: bool, pairs: tuple[str, ...]
) -> int:
    """Set producer_byte_rate or consumer_byte_rate of a user, a client id or both; '-' removes it."""
    settings = current_settings()
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
    admin = _admin(settings)
    admin.alter(entity, changes)
    return _show("quota set", admin, settings, entity)


@quota.command("describe")
@global_options
@_entity_options
def describe(user: str | None, user_default: bool, client_id: str | None, client_id_default: bool) -> int:
    """Show all quotas, or those of one entity."""
    settings = current_settings()
    entity = _entity(user, user_default, client_id, client_id_default)
    return _show("quota describe", _admin(settings), settings, None if entity == (None, None) else entity)


def _show(command: str, admin: QuotaAdmin, settings: Settings, entity: QuotaEntity | None) -> int:
    shown = [(each, limits) for each, limits in admin.describe() if entity is None or each == entity]
    items = [
        {"user": each.user, "clientId": each.client_id, "quotas": dict(sorted(limits.items()))}
        for each, limits in shown
    ]
    rows = [(each.user, each.client_id, key, limits[key]) for each, limits in shown for key in sorted(limits)]
    return emit(command, items, settings, text=table(["USER", "CLIENT-ID", "QUOTA", "BYTES/S"], rows))


def _admin(settings: Settings) -> QuotaAdmin:
    from spark_replog.admin.access_admin import QuotaAdmin

    return QuotaAdmin(settings.open_cluster())
