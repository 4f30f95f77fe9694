"""``replog topic config``: get, set, unset; what Kafka's kafka-configs.sh does for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_replog.cli.output import emit, table
from spark_replog.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from spark_replog.admin.topic_description import TopicDescription


@click.command("config")
@global_options
@click.argument("name")
@click.argument("action", type=click.Choice(["get", "set", "unset"]))
@click.argument("settings_given", nargs=-1, metavar="[KEY=VALUE | KEY]...")
def config(name: str, action: str, settings_given: tuple[str, ...]) -> int:
    """Show a topic's settings, set some (KEY=VALUE), or give some their default back (KEY)."""
    settings = current_settings()
    if (action == "get") == bool(settings_given):
        raise click.UsageError("get wants none, set wants KEY=VALUE..., unset wants KEY...")
    changes: dict[str, str | None] = {}
    for given in settings_given:
        key, separator, value = given.partition("=")
        if not key or bool(separator) != (action == "set"):
            raise click.UsageError(f"{action} wants {'KEY=VALUE' if action == 'set' else 'KEY'}, not '{given}'")
        changes[key.strip()] = value.strip() if separator else None
    from spark_replog.admin.controller import Controller

    controller = Controller(settings.open_cluster())
    found = controller.alter_config(name, changes) if changes else controller.describe_topic(name)
    return _show(found, settings)


def _show(found: TopicDescription, settings: Settings) -> int:
    from spark_replog.config import keys_of

    items = []
    for key in keys_of("topic"):
        value = found.config.get(key.name)
        default = None if key.default is None else str(key.default)
        if key.unit == "bool":
            default = str(default).lower()  # as it is typed
        items.append(
            {
                "key": key.name,
                "value": value if value is not None else default,
                "source": "default" if value is None else "topic",
                "default": default,
            }
        )
    rows = [(item["key"], item["value"], item["source"], item["default"]) for item in items]
    text = table(["KEY", "VALUE", "SOURCE", "DEFAULT"], rows)
    return emit("topic config", [{"topic": found.name, "settings": items, "ok": True}], settings, text=text)
