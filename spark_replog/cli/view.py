"""What commands and the console show of a store, each by one function: as JSON values, and as lines and tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_replog.cli.output import item_of
from spark_replog.cli.settings import Flag, Settings, flags, parse_duration_ms
from spark_replog.cli.tables import Table, human_bytes, human_time, quoted, table
from spark_replog.ids import INTERNAL_TOPICS

if TYPE_CHECKING:
    from spark_replog.health.readers import Limits, Reader
    from spark_replog.health.store import Finding, StoreView, TopicDescription

Item = dict[str, Any]
_FINDINGS_SHOWN_MAX = 20
_ALIKE_SHOWN_MAX = 4
_READERS_SHOWN_MAX = 10


def checkpoint_flag(text: str) -> Flag:
    """Return the flag ``--checkpoint`` of a command that looks at queries too."""
    return click.option("--checkpoint", "checkpoints", multiple=True, metavar="FOLDER", help=f"{text} Repeatable.")


limit_flags = flags(
    click.option("--after", default="5m", show_default=True, metavar="DURATION", help="How long rows may wait without "
                 "progress. Use more than a query's trigger interval and its longest batch."),
    click.option("--max-lag", metavar="DURATION", help="SLOW in any case above this age of unread rows."),
)  # fmt: skip
"""Of a check: see ``read_limits``."""


def read_limits(after: str, max_lag: str | None) -> Limits:
    """Return the limits of the flags."""
    from spark_replog.health.readers import Limits

    still_ms = parse_duration_ms(after)
    return Limits(still_ms, min(60_000, still_ms), None if max_lag is None else parse_duration_ms(max_lag))


def typed(remedy: str, settings: Settings) -> str:
    """Return a remedy whose commands name the store, unless the environment does: it can be typed as it is."""
    if settings.store is None or settings.is_store_from_environment:
        return remedy
    return remedy.replace("replog ", f"replog -s {shlex.quote(settings.store)} ")


def finding_subject(finding: Finding) -> str:
    """Return the subject of a finding: a partition, a broker, or the store."""
    if finding.topic is not None:
        return f"{finding.topic}-{finding.partition}"
    return "store" if finding.broker_id is None else f"broker {finding.broker_id}"


def finding_items(findings: Iterable[Finding], settings: Settings) -> list[Item]:
    """Return findings in their order."""
    keys = "level=level.name fault topic partition broker=broker_id detail remedy"
    return [{**item_of(finding, keys), "remedy": typed(finding.remedy, settings)} for finding in findings]


def finding_parts(findings: Iterable[Finding], settings: Settings) -> list[str | Table]:
    """Return a table of the findings and the commands that help, each once; nothing without findings.

    Findings with the same fault and remedy are one row, since a fenced broker needs only one action.
    """
    kinds: dict[tuple[int, str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda problem: (-problem.level, problem.topic in INTERNAL_TOPICS)):
        kinds.setdefault((finding.level, finding.fault.value, typed(finding.remedy, settings)), []).append(finding)
    if not kinds:
        return []
    rows = [
        (first.level.name, finding_subject(first), first.fault.value, first.detail + _alike_words(others))
        for first, *others in list(kinds.values())[:_FINDINGS_SHOWN_MAX]
    ]
    remedies = dict.fromkeys(remedy for _, _, remedy in list(kinds)[:_FINDINGS_SHOWN_MAX])
    return [
        Table(["LEVEL", "WHERE", "FAULT", "DETAIL"], rows),
        *more(len(kinds) - len(rows)),
        "",
        *(f"-> {remedy}" for remedy in remedies),
    ]


def more(count: int, what: str = "more") -> list[str]:
    """Return the line for items that are not shown; none without."""
    return [f"and {count} {what}: add -f json to list all"] if count > 0 else []


def _alike_words(others: Sequence[Finding]) -> str:
    names = ", ".join(map(finding_subject, others[:_ALIKE_SHOWN_MAX]))
    left = len(others) - _ALIKE_SHOWN_MAX
    return f"; also {names}" + (f" and {left:,} more: -f json" if left > 0 else "") if others else ""


def totals(view: StoreView) -> Item:
    """Return the store's totals, rates and lags."""
    from spark_replog.health.store import Fault

    parts = [part for topic in view.topics for part in topic.partitions]
    rates = {f"{minutes}m": view.rates(minutes) for minutes in (1, 5, 15)}
    behind = [group for group in view.groups if group.lag]
    worst = max(behind, key=lambda group: (group.lag_ms, group.lag), default=None)
    return {
        "topics": len(view.topics),
        "partitions": len(parts),
        "offline": view.fault_count(Fault.NO_LEADER),
        "underMinIsr": view.fault_count(Fault.UNDER_MIN_ISR),
        "underReplicated": view.fault_count(Fault.UNDER_REPLICATED),
        "leaderNotPreferred": sum(not part.is_offline and part.leader != part.replicas[0] for part in parts),
        "bytes": view.size_bytes,
        "rowsPerSecond": {window: round(rows, 3) for window, (rows, _) in rates.items()},
        "bytesPerSecond": {window: round(size_bytes, 3) for window, (_, size_bytes) in rates.items()},
        "lastAppendMs": view.last_append_ms,
        "groups": len(view.groups),
        "worstLag": worst and item_of(worst, "group=name partition=worst.name rows=lag bytes=lag_bytes ms=lag_ms"),
    }


def broker_items(view: StoreView) -> list[Item]:
    """Return the brokers and the state of their roots."""
    from spark_replog.health.store import days_until_full

    items, days = [], days_until_full(view.brokers, view.topics, view.now_ms)
    for broker in view.brokers:
        item = {
            **item_of(broker, "broker=broker_id url rack metadata=is_metadata"),
            "state": "ok",
            "freeBytes": broker.free_bytes,
            "leaders": view.leader_count(broker.broker_id),
            "assignedBytes": view.assigned_bytes(broker.broker_id),
        }
        for finding in view.findings:
            is_first = item["state"] == "ok"
            if finding.broker_id == broker.broker_id and (is_first or finding.fault.value != "journal-behind"):
                item["state"] = finding.fault.value if finding.code is None else finding.code.name
                item["detail"] = finding.detail
        left = days[broker.broker_id]
        items.append({**item, "daysUntilFull": None if left is None else round(left, 2)})
    return items


def broker_table(items: Sequence[Item]) -> Table:
    """Return the brokers as a table.

    ASSIGNED is what the root has to hold. It may lack some of it: while it is away, full, or catches up.
    """
    columns = {"BROKER": "broker", "STATE": "state", "JOURNALS": "metadata", "LEADERS": "leaders",
               "ASSIGNED": "assignedBytes", "FREE": "freeBytes", "FULL IN": "daysUntilFull", "RACK": "rack",
               "URL": "url"}  # fmt: skip
    return table(columns, items)


def gateway_items(view: StoreView) -> list[Item]:
    """Return the gateways that have given a sign lately."""
    return [
        {
            **item_of(gateway, "gateway=node_id address rack startedMs lastSignMs"),
            "state": "gateway-silent" if gateway.is_silent(view.now_ms) else "ok",
            **gateway.counts,
        }
        for gateway in view.gateways
    ]


def gateway_table(items: Sequence[Item]) -> Table:
    """Return the gateways as a table; a gateway of another release may not count all of it."""
    columns = {"GATEWAY": "gateway", "STATE": "state", "CONNECTIONS": "connections", "REQUESTS": "requests",
               "RECEIVED": "receivedBytes", "SENT": "sentBytes", "RACK": "rack", "ADDRESS": "address"}  # fmt: skip
    return table(columns, [{**dict.fromkeys(columns.values()), **item} for item in items])


def topic_item(topic: TopicDescription) -> Item:
    """Return a topic with its partitions and settings."""
    keys = ("partition leader leaderEpoch replicas isr logStartOffset highWatermark logEndOffset addingReplicas=adding "
            "removingReplicas=removing fenced minInsync bytes=size_bytes heldUntilMs")  # fmt: skip
    return {
        **item_of(topic, "topic=name topicId ledgerId"),
        "partitions": [item_of(part, keys) for part in topic.partitions],
        "config": dict(sorted(topic.config.items())),
        **schema_item(topic),
        "mirror": topic.mirror or None,
        **item_of(topic, "rows=row_count bytes=size_bytes lastAppendMs"),
        "ok": True,
    }


def schema_item(topic: TopicDescription) -> Item:
    """Return the columns of a typed topic as DDL, their version and the key columns; null where rows are bytes."""
    schema = topic.schema
    if schema is None:
        return {"schema": None, "schemaVersion": None, "key": None}
    return {"schema": schema.ddl, "schemaVersion": schema.version, "key": list(schema.key)}


def schema_line(item: Item) -> str:
    """Return the columns of a typed topic as one line."""
    key = f", key {', '.join(map(quoted, item['key']))}" if item["key"] else ""
    return f"schema version {item['schemaVersion']}{key}: {item['schema']}"


def size_items(topics: Iterable[TopicDescription], now_ms: int) -> list[Item]:
    """Return the sizes and the growth of topics, the largest first."""
    from spark_replog.health.store import growth_of

    items = []
    for topic in sorted(topics, key=lambda description: (-description.size_bytes, description.name)):
        growth = growth_of(topic, now_ms)
        items.append(
            {
                **item_of(topic, "topic=name partitions=partition_count rows=row_count bytes=size_bytes assignedBytes"),
                "bytesPerDay": round(growth.bytes_per_day),
                "bytesMoreMax": None if growth.bytes_more_max is None else round(growth.bytes_more_max),
                "bytesByHour": topic.traffic.bytes_by(60, 24, now_ms),
            }
        )
    return items


def size_table(items: Sequence[Item]) -> Table:
    """Return the sizes of topics as a table, with the last 24 hours as bars."""
    columns = {"TOPIC": "topic", "ROWS": "rows", "BYTES": "bytes", "ALL REPLICAS": "assignedBytes",
               "A DAY": "bytesPerDay", "RETENTION LETS GROW BY": "bytesMoreMax",
               "LAST 24 HOURS": "bytesByHour"}  # fmt: skip
    return table(columns, items)


_PARTITION_KEYS = (
    "topic partition committed=position logStartOffset=lag.log_start_offset highWatermark=lag.high_watermark "
    "lag=lag.lag lagMs=lag.lag_ms lagBytes=lag.lag_bytes speed=lag.speed catchUpMs member=owner "
    "committedMs=position_ms metadata=note verdict reason"
)


def reader_item(reader: Reader, noun: str) -> Item:
    """Return a reader with its verdict and its partitions."""
    item = item_of(reader, f"{noun}=name state verdict reason lag lagBytes lagMs catchUpMs lastSignMs")
    parts = [item_of(partition, _PARTITION_KEYS) for partition in reader.partitions]
    for part in parts:
        part["speed"] = part["speed"] and round(part["speed"], 3)
    return {**item, "lastSignMs": item["lastSignMs"] or None, "partitions": parts}


def reader_parts(items: Sequence[Item], noun: str) -> list[str | Table]:
    """Return the partitions of readers as one table, and a line of totals for each reader."""
    columns = {noun.upper(): noun, "TOPIC": "topic", "PARTITION": "partition", "COMMITTED": "committed",
               "END": "highWatermark", "LAG": "lag", "BEHIND": "lagMs", "VERDICT": "verdict", "MEMBER": "member",
               "NOTE": "metadata"}  # fmt: skip
    parts: list[str | Table] = [table(columns, [{**partition, noun: item[noun]} for item in items
                                                for partition in item["partitions"]]), ""]  # fmt: skip
    for item in items:
        lacking = sum(partition["committed"] is None for partition in item["partitions"])
        without = f"{lacking} partitions without a position, " if lacking else ""
        parts.append(
            f"{quoted(item[noun])}: {item['state']}, {item['lag']:,} rows and {human_bytes(item['lagBytes'])} behind, "
            f"{without}last seen {human_time(item['lastSignMs'])}"
        )
    return parts


def unwell_items(view: StoreView, settings: Settings) -> list[Item]:
    """Return the readers that are not OK, the worst first, with the command that helps."""
    keys = "verdict kind reader=name rows=lag ms=lag_ms reason remedy"
    return [{**item_of(reader, keys), "remedy": typed(reader.remedy, settings)} for reader in view.unwell]


def unwell_parts(items: Sequence[Item]) -> list[str | Table]:
    """Return the readers that are not OK as a table, and the commands that help; nothing without one."""
    if not items:
        return []
    columns = {"VERDICT": "verdict", "READER": "reader", "ROWS": "rows", "BEHIND": "ms", "REASON": "reason"}
    remedies = [f"-> {reader['remedy']}" for reader in items[:_READERS_SHOWN_MAX]]
    left = more(len(items) - _READERS_SHOWN_MAX)
    return [table(columns, items[:_READERS_SHOWN_MAX]), *left, "", *remedies]
