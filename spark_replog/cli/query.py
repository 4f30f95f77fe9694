"""``replog query``: list, describe and check streaming queries by their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import act_on_each, emit, human_bytes, human_duration, human_time, item_table
from spark_replog.cli.readers import limit_flags, read_limits, reader_item, reader_text, show_verdicts
from spark_replog.cli.settings import ReplogGroup, Settings, current_settings

if TYPE_CHECKING:
    from spark_replog.health.readers import Reader


@click.group("query", cls=ReplogGroup)
def query() -> None:
    """Show where Spark's streaming queries stand, by their checkpoint folders.

    CHECKPOINT is a checkpointLocation, or a folder with several of them. The query need not run. Nothing is written.
    """


def _checkpoints(names: tuple[str, ...], settings: Settings) -> list[str]:
    from spark_replog.monitor.checkpoint import list_checkpoints

    found = [each for name in names for each in list_checkpoints(name, settings.storage_options) or [name]]
    return list(dict.fromkeys(found))


_argument = click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...")


@query.command("list", examples=["query list ./checkpoints"])
@_argument
def list_queries(checkpoints: tuple[str, ...]) -> int:
    """List queries: their last batch, and how far they are behind."""
    settings = current_settings()
    items = _items(checkpoints, settings)
    columns = {
        "CHECKPOINT": "checkpoint",
        "STATE": "state",
        "BATCH": "batch",
        "LAST BATCH": "lastSignMs",
        "LAG": "lag",
        "BYTES": "lagBytes",
        "BEHIND": "lagMs",
        "VERDICT": "verdict",
    }
    found = [item for item in items if item["ok"]]
    shown = {"lastSignMs": human_time, "lagBytes": human_bytes, "lagMs": human_duration}
    return emit("query list", items, settings, text=item_table(columns, found, shown=shown) if found else "")


@query.command("describe", examples=["query describe ./checkpoints/orders"])
@_argument
def describe(checkpoints: tuple[str, ...]) -> int:
    """Show where queries stand in each partition, and how far they are behind."""
    settings = current_settings()
    items = _items(checkpoints, settings)
    found = [item for item in items if item["ok"]]
    return emit("query describe", items, settings, text=reader_text(found, "checkpoint") if found else "")


@query.command("check", examples=["query check ./checkpoints/orders --after PT10M -f json"])
@_argument
@limit_flags
def check(checkpoints: tuple[str, ...], after: str, max_lag: str | None) -> int:
    """Judge how queries read: OK, SLOW, STALLED, STOPPED or LOSING, with the reason.

    Exit code 0 where all are OK, 3 where one is SLOW, 4 where one does not move or loses rows.
    """
    settings = current_settings()
    limits = read_limits(after, max_lag)
    cluster = settings.open_cluster()
    from spark_replog.monitor.checkpoint import read_checkpoint
    from spark_replog.monitor.query_monitor import QueryMonitor

    monitor = QueryMonitor(cluster)
    readers = [
        monitor.describe(read_checkpoint(url, settings.storage_options)) for url in _checkpoints(checkpoints, settings)
    ]
    return show_verdicts("query", readers, cluster.clock.now_ms(), limits, settings)


def _items(names: tuple[str, ...], settings: Settings) -> list[dict[str, Any]]:
    cluster = settings.open_cluster()
    from spark_replog.health.readers import judge
    from spark_replog.monitor.checkpoint import read_checkpoint
    from spark_replog.monitor.query_monitor import QueryMonitor

    monitor = QueryMonitor(cluster)

    def act(url: str) -> dict[str, Any]:
        checkpoint = read_checkpoint(url, settings.storage_options)
        reader: Reader = monitor.describe(checkpoint)
        item = reader_item(reader, judge(reader, cluster.clock.now_ms()), "checkpoint")
        return {**item, "queryId": checkpoint.query_id, "batch": reader.batch_id, "ok": True}

    return act_on_each("checkpoint", _checkpoints(names, settings), act)
