"""``replog status``: one page for the person on call; and brokers and sizes of topics as JSON values and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import (
    emit,
    finding_items,
    finding_text,
    human_bytes,
    human_days,
    human_time,
    item_table,
    quoted,
    sparkline,
    typed,
)
from spark_replog.cli.query import limit_flags, read_limits
from spark_replog.cli.settings import ReplogCommand, Settings, current_settings
from spark_replog.clock import human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_replog.health.store import BrokerHealth, Finding, StoreHealth, TopicDescription
    from spark_replog.monitor.store_monitor import Seen

_READERS_SHOWN = 10
VERDICT_WORDS = {0: "OK", 3: "WARN", 4: "CRITICAL"}


@click.command(
    "status", cls=ReplogCommand, examples=["status", "-s ./store status -f json", "status --checkpoint ./checkpoints"]
)
@click.option("--checkpoint", "checkpoints", multiple=True, metavar="FOLDER", help="Queries to judge too. Repeatable.")
@limit_flags
def status(checkpoints: tuple[str, ...], after: str, max_lag: str | None) -> int:
    """Show on one page whether the store is healthy; writes nothing.

    The state and free bytes of each root, journals that lack entries, partitions that are offline, below
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
    seen = StoreWatch(cluster, checkpoints, settings.storage_options, limits).look()
    health = seen.health
    findings = health.findings
    item = {
        "clusterId": health.cluster_id,
        "path": health.path,
        "verdict": VERDICT_WORDS[seen.exit_code],
        **totals(health, findings),
        "readerCost": reader_cost(health, idle_gets_per_second(cluster.brokers)),
        "brokers": broker_items(health, findings),
        "findings": finding_items(findings, settings),
        "readers": unwell_items(seen, settings),
        "unread": {folder: str(error.args[0]) for folder, error in seen.unread},
        "ok": not seen.exit_code,
    }
    parts = [_page(health, item), finding_text(findings, settings), _unwell_text(item["readers"])]
    parts += [f"checkpoint {quoted(folder)} cannot be read: {words}" for folder, words in item["unread"].items()]
    return emit("status", [item], settings, text="\n\n".join(filter(None, parts)), exit_code=seen.exit_code)


def unwell_items(seen: Seen, settings: Settings) -> list[dict[str, Any]]:
    """Return the readers that are not OK as JSON values, the worst first, with the command that helps."""
    from spark_replog.health.readers import remedy_of

    return [
        {
            "verdict": judged.verdict.value,
            "kind": reader.kind,
            "reader": reader.name,
            "rows": reader.lag,
            "ms": reader.lag_ms,
            "reason": judged.reason,
            "remedy": typed(remedy_of(reader, judged), settings),
        }
        for reader, judged in seen.unwell
    ]


def _unwell_text(items: Sequence[dict[str, Any]]) -> str:
    if not items:
        return ""
    columns = {"VERDICT": "verdict", "READER": "reader", "ROWS": "rows", "BEHIND": "ms", "REASON": "reason"}
    shown = items[:_READERS_SHOWN]
    lines = [item_table(columns, shown, shown={"ms": human_duration})]
    if len(items) > len(shown):
        lines.append(f"and {len(items) - len(shown)} more: add -f json to list all")
    return "\n".join([*lines, "", *(f"-> {each['remedy']}" for each in shown)])


def totals(health: StoreHealth, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the store's totals, rates and lags as JSON values."""
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


def reader_cost(health: StoreHealth, gets_per_second: int) -> dict[str, Any]:
    """Return what the readers that the store knows cost at most while no rows come, as JSON values.

    Args:
        gets_per_second: of one.
    """
    members = sum(len(each.members) for each in health.groups)
    return {
        "members": members,
        "idleGetsPerSecondMax": members * gets_per_second,
        "idleGetsPerSecondMaxEach": gets_per_second,
    }


def _page(health: StoreHealth, item: dict[str, Any]) -> str:
    serving = sum(each.error is None for each in health.brokers)
    parts = [f"{item[key]} {word}" for key, word in _PARTITION_WORDS if item[key]]
    rows = " / ".join(f"{rate:,.1f}" for rate in item["rowsPerSecond"].values())
    sizes = " / ".join(human_bytes(int(rate)) for rate in item["bytesPerSecond"].values())
    last, worst, cost = item["lastAppendMs"], item["worstLag"], item["readerCost"]
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
        f"readers     {cost['members']} group members cost at most {cost['idleGetsPerSecondMax']} gets/s while no rows "
        f"come, {cost['idleGetsPerSecondMaxEach']} each",
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


def broker_items(health: StoreHealth, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the brokers and the state of their roots as JSON values."""
    days = health.days_until_full
    return [
        {**_broker_item(health, each, findings), "daysUntilFull": _rounded(days[each.broker_id])}
        for each in health.brokers
    ]


def _broker_item(health: StoreHealth, broker: BrokerHealth, findings: Sequence[Finding]) -> dict[str, Any]:
    item: dict[str, Any] = {
        "broker": broker.broker_id,
        "url": broker.url,
        "rack": broker.rack,
        "metadata": broker.is_metadata,
        "state": "ok",
        "freeBytes": broker.free_bytes,
        "leaders": health.leader_count(broker.broker_id),
        "assignedBytes": health.assigned_bytes(broker.broker_id),
    }
    for finding in findings:
        is_first = item["state"] == "ok"
        if finding.broker_id == broker.broker_id and (is_first or finding.fault.value != "journal-behind"):
            item["state"] = finding.fault.value if finding.code is None else finding.code.name
            item["detail"] = finding.detail
    return item


def _rounded(days: float | None) -> float | None:
    return None if days is None else round(days, 2)


def broker_table(items: Sequence[dict[str, Any]], *, is_whole: bool = False) -> str:
    """Return the brokers as a table; `is_whole`: see ``output.table``.

    ASSIGNED is what the root has to hold. It may lack some of it: while it is away, full, or catches up.
    """
    keys = {
        "BROKER": "broker",
        "STATE": "state",
        "JOURNALS": "metadata",
        "LEADERS": "leaders",
        "ASSIGNED": "assignedBytes",
        "FREE": "freeBytes",
        "FULL IN": "daysUntilFull",
        "RACK": "rack",
        **({"CLIENT": "client"} if any(each.get("client") for each in items) else {}),
        "URL": "url",
    }
    shown: dict[str, Callable[[Any], str]] = {
        "assignedBytes": human_bytes,
        "freeBytes": human_bytes,
        "daysUntilFull": human_days,
    }
    return item_table(keys, items, texts={"broker"}, shown=shown, is_whole=is_whole)


def size_items(topics: Iterable[TopicDescription], now_ms: int) -> list[dict[str, Any]]:
    """Return the sizes and the growth of topics as JSON values, the largest first."""
    from spark_replog.health.store import growth_of

    found = [(each, growth_of(each, now_ms)) for each in sorted(topics, key=lambda each: (-each.size_bytes, each.name))]
    return [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "rows": topic.row_count,
            "bytes": topic.size_bytes,
            "assignedBytes": sum(part.size_bytes * len(part.replicas) for part in topic.partitions),
            "bytesPerDay": round(growth.bytes_per_day),
            "bytesMoreMax": None if growth.bytes_more_max is None else round(growth.bytes_more_max),
            "bytesByHour": topic.traffic.bytes_by(60, 24, now_ms),
        }
        for topic, growth in found
    ]


def size_table(items: Sequence[dict[str, Any]]) -> str:
    """Return the sizes of topics as a table, with the last 24 hours as bars."""
    columns = {
        "TOPIC": "topic",
        "ROWS": "rows",
        "BYTES": "bytes",
        "ALL REPLICAS": "assignedBytes",
        "A DAY": "bytesPerDay",
        "RETENTION LETS GROW BY": "bytesMoreMax",
        "LAST 24 HOURS": "bytesByHour",
    }
    shown = dict.fromkeys(("bytes", "assignedBytes", "bytesPerDay"), human_bytes)
    more: dict[str, Callable[[Any], str]] = {
        "bytesMoreMax": lambda size_bytes: "no end" if size_bytes is None else human_bytes(size_bytes),
        "bytesByHour": sparkline,
    }
    return item_table(columns, items, shown={**shown, **more})
