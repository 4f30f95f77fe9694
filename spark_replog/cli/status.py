"""``replog status``: one page for who is on call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import (
    emit,
    exit_code_of_findings,
    finding_items,
    finding_text,
    human_bytes,
    human_duration,
    human_time,
    quoted,
)
from spark_replog.cli.settings import ReplogCommand, current_settings
from spark_replog.cli.store import broker_items, broker_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_replog.health.findings import Finding
    from spark_replog.health.store import StoreHealth

VERDICT_WORDS = {0: "OK", 3: "WARN", 4: "CRITICAL"}


@click.command("status", cls=ReplogCommand, examples=["status", "-s ./store status -f json"])
def status() -> int:
    """Show on one page whether the store is healthy; writes nothing.

    The state and free bytes of each root, partitions that are offline, below min.insync.replicas or under-replicated,
    how much is written, the group that is furthest behind, and the command that helps with each fault.

    Exit code 0 where all is well, 3 with a warning, 4 where rows cannot be written or read.
    """
    settings = current_settings()
    from spark_replog.monitor.store_monitor import StoreMonitor

    health = StoreMonitor(settings.open_cluster()).look(with_groups=True)
    findings = health.findings
    exit_code = exit_code_of_findings(findings)
    item = {
        "clusterId": health.cluster_id,
        "path": health.path,
        "verdict": VERDICT_WORDS[exit_code],
        **totals(health, findings),
        "brokers": broker_items(health, findings),
        "findings": finding_items(findings, settings),
        "ok": not findings,
    }
    text = _page(health, item)
    if findings:
        text += "\n\n" + finding_text(findings, settings)
    return emit("status", [item], settings, text=text, exit_code=exit_code)


def totals(health: StoreHealth, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the store holds, takes and owes as JSON values."""
    faults = [each.fault.value for each in findings]
    rates = {f"{minutes}m": health.rates(minutes) for minutes in (1, 5, 15)}
    worst = health.worst_group
    return {
        "topics": len(health.topics),
        "partitions": health.partition_count,
        "offline": faults.count("no-leader"),
        "underMinIsr": faults.count("under-min-isr"),
        "underReplicated": faults.count("under-replicated"),
        "leaderNotPreferred": health.not_preferred_count,
        "bytes": sum(topic.size_bytes for topic in health.topics),
        "rowsPerSecond": {window: round(rows, 3) for window, (rows, _) in rates.items()},
        "bytesPerSecond": {window: round(size, 3) for window, (_, size) in rates.items()},
        "lastAppendMs": health.last_append_ms or None,
        "groups": len(health.groups),
        "worstLag": None
        if worst is None
        else {
            "group": worst.name,
            "partition": None if worst.worst is None else worst.worst.name,
            "rows": worst.lag,
            "bytes": worst.lag_bytes,
            "ms": worst.lag_ms,
        },
    }


def _page(health: StoreHealth, item: dict[str, Any]) -> str:
    serving = sum(each.error is None for each in health.brokers)
    parts = [f"{item[key]} {word}" for key, word in _PARTITION_WORDS if item[key]]
    rows = " / ".join(f"{rate:,.1f}" for rate in item["rowsPerSecond"].values())
    sizes = " / ".join(human_bytes(int(rate)) for rate in item["bytesPerSecond"].values())
    last, worst = item["lastAppendMs"], item["worstLag"]
    lines = [
        f"{item['verdict']}  {quoted(health.path)}  cluster {health.cluster_id}",
        "",
        f"roots       {serving} of {len(health.brokers)} serve",
        f"topics      {item['topics']} with {item['partitions']} partitions: {', '.join(parts) or 'all in sync'}",
        f"holds       {human_bytes(item['bytes'])} in one copy",
        f"writes      {rows} rows/s, {sizes} a second over 1 / 5 / 15 minutes",
        "last write  " + (f"{human_duration(health.now_ms - last)} ago ({human_time(last)})" if last else "never"),
        f"groups      {item['groups']}, "
        + (
            "none behind"
            if worst is None
            else f"worst {quoted(worst['group'])}: {worst['rows']:,} rows behind, "
            f"{human_duration(worst['ms'])} on {quoted(worst['partition'])}"
        ),
        "",
        broker_table(item["brokers"]),
    ]
    return "\n".join(lines)


_PARTITION_WORDS = (
    ("offline", "offline"),
    ("underMinIsr", "below min.insync.replicas"),
    ("underReplicated", "under-replicated"),
    ("leaderNotPreferred", "led by another than the preferred broker"),
)
