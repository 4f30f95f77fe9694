"""``replog status``: one page for the person on call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import emit
from spark_replog.cli.settings import ReplogCommand, current_settings
from spark_replog.cli.tables import Table, human_bytes, human_time, quoted
from spark_replog.cli.view import (
    broker_items,
    broker_table,
    checkpoint_flag,
    finding_items,
    finding_parts,
    gateway_items,
    gateway_table,
    limit_flags,
    read_limits,
    totals,
    unwell_items,
    unwell_parts,
)
from spark_replog.clock import human_duration

if TYPE_CHECKING:
    from spark_replog.health.store import StoreView

_PARTITION_WORDS = {
    "offline": "offline",
    "underMinIsr": "below min.insync.replicas",
    "underReplicated": "under-replicated",
    "leaderNotPreferred": "led by another than the preferred broker",
}


@click.command(
    "status", cls=ReplogCommand, examples=["status", "-s ./store status -f json", "status --checkpoint ./checkpoints"]
)
@checkpoint_flag("Queries to judge too.")
@limit_flags
def status(checkpoints: tuple[str, ...], after: str, max_lag: str | None) -> int:
    """Show on one page whether the store is healthy; writes nothing.

    The state and free bytes of each root, the gateways, journals that lack entries, partitions that are offline, below
    min.insync.replicas or under-replicated, how much is written, each group (and query) that is not OK, and the command
    that helps with each fault. A stopped group without a lag is not a fault.

    Exit code 0 where all is well; 3 with a warning or a SLOW reader; 4 where rows cannot be written or read, or where a
    reader is STALLED, STOPPED or LOSING.
    """
    settings = current_settings()
    limits = read_limits(after, max_lag)
    from spark_replog.client.look_schedule import idle_gets_per_second
    from spark_replog.monitor.store_monitor import StoreWatch

    cluster = settings.open_cluster()
    view = StoreWatch(cluster, checkpoints, settings.storage_options, limits).look()
    members, gets = sum(len(group.members) for group in view.groups), idle_gets_per_second(cluster.brokers)
    item = {
        "clusterId": view.cluster_id,
        "path": view.path,
        "verdict": view.verdict,
        **totals(view),
        # At most, of the readers that the store knows, while no rows come.
        "readerCost": {
            "members": members,
            "idleGetsPerSecondMax": members * gets,
            "idleGetsPerSecondMaxEach": gets,
        },
        "brokers": broker_items(view),
        "gateways": gateway_items(view),
        "findings": finding_items(view.findings, settings),
        "readers": unwell_items(view, settings),
        "unread": {folder: str(error.args[0]) for folder, error in view.unread},
        "ok": not view.exit_code,
    }
    parts: list[str | Table] = [*_lines(view, item), "", broker_table(item["brokers"])]
    parts += ["", gateway_table(item["gateways"])] if item["gateways"] else []
    for more in (finding_parts(view.findings, settings), unwell_parts(item["readers"])):
        parts += ["", *more] if more else []
    for folder, words in item["unread"].items():
        parts += ["", f"checkpoint {quoted(folder)} cannot be read: {words}"]
    return emit([item], *parts, exit_code=view.exit_code)


def _lines(view: StoreView, item: dict[str, Any]) -> list[str]:
    counts = [f"{item[key]} {words}" for key, words in _PARTITION_WORDS.items() if item[key]]
    rows = " / ".join(f"{rate:,.1f}" for rate in item["rowsPerSecond"].values())
    sizes = " / ".join(human_bytes(int(rate)) for rate in item["bytesPerSecond"].values())
    last, worst, cost = item["lastAppendMs"], item["worstLag"], item["readerCost"]
    written = f"{human_duration(view.now_ms - last)} ago ({human_time(last)})" if last else "never"
    behind = "none behind"
    if worst is not None:
        behind = (
            f"worst {quoted(worst['group'])}: {worst['rows']:,} rows behind, {human_duration(worst['ms'])} on "
            f"{quoted(worst['partition'])}"
        )
    return [
        f"{item['verdict']}  {quoted(view.path)}  cluster {view.cluster_id}",
        "",
        f"roots       {view.serving_count} of {len(view.brokers)} serve",
        f"topics      {item['topics']} with {item['partitions']} partitions: {', '.join(counts) or 'all in sync'}",
        f"holds       {human_bytes(item['bytes'])} in one copy",
        f"writes      {rows} rows/s, {sizes} a second over 1 / 5 / 15 minutes",
        f"last write  {written}",
        f"groups      {item['groups']}, {behind}",
        f"readers     {cost['members']} group members cost at most {cost['idleGetsPerSecondMax']} gets/s while no rows "
        f"come, {cost['idleGetsPerSecondMaxEach']} each",
    ]
