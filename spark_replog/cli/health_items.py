"""The health of a store's brokers and the sizes of its topics, as JSON values and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_replog.cli.output import human_bytes, human_days, item_table, sparkline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_replog.health.findings import BrokerHealth, Finding
    from spark_replog.health.store import StoreHealth
    from spark_replog.health.topics import TopicDescription


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
        "copyBytes": health.copy_bytes(broker.broker_id),
    }
    for finding in findings:
        if finding.broker_id == broker.broker_id:
            item["state"] = finding.fault.value if finding.code is None else finding.code.name
            item["detail"] = finding.detail
    return item


def _rounded(days: float | None) -> float | None:
    return None if days is None else round(days, 2)


def broker_table(items: Sequence[dict[str, Any]], *, is_whole: bool = False) -> str:
    """Return the brokers as a table; `is_whole`: see ``output.table``."""
    keys = {
        "BROKER": "broker",
        "STATE": "state",
        "JOURNALS": "metadata",
        "LEADERS": "leaders",
        "COPIES": "copyBytes",
        "FREE": "freeBytes",
        "FULL IN": "daysUntilFull",
        "RACK": "rack",
        **({"CLIENT": "client"} if any(each.get("client") for each in items) else {}),
        "URL": "url",
    }
    shown: dict[str, Callable[[Any], str]] = {
        "copyBytes": human_bytes,
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
            "copyBytes": sum(part.size_bytes * len(part.replicas) for part in topic.partitions),
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
        "ALL COPIES": "copyBytes",
        "A DAY": "bytesPerDay",
        "RETENTION LETS GROW BY": "bytesMoreMax",
        "LAST 24 HOURS": "bytesByHour",
    }
    shown = dict.fromkeys(("bytes", "copyBytes", "bytesPerDay"), human_bytes)
    more: dict[str, Callable[[Any], str]] = {
        "bytesMoreMax": lambda size_bytes: "no end" if size_bytes is None else human_bytes(size_bytes),
        "bytesByHour": sparkline,
    }
    return item_table(columns, items, shown={**shown, **more})
