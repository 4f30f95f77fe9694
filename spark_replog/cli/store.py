"""``replog store``: what the store is and how its roots are."""

from __future__ import annotations

from typing import Any

import click

from spark_replog.cli.output import EXIT_OK, emit, table
from spark_replog.cli.settings import current_settings, global_options
from spark_replog.errors import ReplogError


@click.group("store")
@global_options
def store() -> None:
    """Show the store and its roots."""


@store.command("info")
@global_options
def info() -> int:
    """Show cluster id, brokers and whether each root answers.

    Exit code 1 when a root does not; the store works on while a majority of its metadata roots does.
    """
    settings = current_settings()
    path = settings.required_store()
    from spark_replog.coordinator.cluster import Cluster

    cluster = Cluster.open(path, settings.storage_options)
    names = cluster.topic_names()
    brokers = cluster.brokers
    states = [_broker_item(brokers, broker) for broker in brokers.broker_ids]
    item: dict[str, Any] = {
        "clusterId": brokers.cluster_id,
        "path": path,
        "fsync": brokers.fsync,
        "topics": len(names),
        "brokers": states,
        "ok": all(state["state"] == "ok" for state in states),
    }
    lines = [
        f"cluster  {brokers.cluster_id}",
        f"path     {path}",
        f"fsync    {'on' if brokers.fsync else 'OFF: a power cut may lose acknowledged rows'}",
        f"topics   {len(names)}",
        "",
        table(
            ["BROKER", "URL", "RACK", "JOURNALS", "STATE"],
            [(str(s["broker"]), s["url"], s["rack"], s["metadata"], _state_text(s)) for s in states],
        ),
    ]
    exit_code = EXIT_OK if item["ok"] else None
    return emit("store info", [item], settings, text="\n".join(lines), exit_code=exit_code)


def _broker_item(brokers: Any, broker: int) -> dict[str, Any]:
    item: dict[str, Any] = {
        "broker": broker,
        "url": brokers.url(broker),
        "rack": brokers.rack(broker),
        "metadata": broker in brokers.metadata_broker_ids,
        "state": "ok",
    }
    try:
        brokers.check_root(broker)
    except ReplogError as error:
        item["state"] = error.code.name
        item["detail"] = str(error.args[0])
    return item


def _state_text(state: dict[str, Any]) -> str:
    return f"{state['state']}: {state['detail']}" if "detail" in state else state["state"]
