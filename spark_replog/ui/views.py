"""The content of the console's pages as JSON values, from one look at the store. Pure: reads nothing.

All texts from storage are escaped: control characters and bidirectional marks are shown by their codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from spark_replog.cli.output import escaped, finding_items
from spark_replog.cli.query import reader_item
from spark_replog.cli.settings import Settings
from spark_replog.cli.status import VERDICT_WORDS, broker_items, totals, unwell_items
from spark_replog.config import CONFIG_KEYS, ConfigKey, keys_of
from spark_replog.health.readers import Judged, Reader, Verdict
from spark_replog.health.store import (
    Fault,
    Finding,
    PartitionDescription,
    StoreHealth,
    TopicDescription,
    topic_findings,
)
from spark_replog.log.fold.topic_state import MINUTE_MS
from spark_replog.monitor.store_monitor import Seen
from spark_replog.ui.live import LagSample
from spark_replog.ui.row_search import FoundRows, RowSearch, SearchPlan

PAGE_MAX = 200
FINDINGS_SHOWN_MAX = 100
OTHERS_SHOWN_MAX = 20
LINES_MAX = 6
"""Maximum number of readers whose lag is drawn."""
VALUE_BYTES_MAX = 64 * 1024
"""Maximum bytes shown of a key, value or header."""
LAID_OUT_MAX = 4 * VALUE_BYTES_MAX
"""Maximum characters of one that is laid out: the indents of a deeply nested value are hundreds of times its size."""
_MINUTES = 15
_T = TypeVar("_T")

Item = dict[str, Any]


def page_of(items: Sequence[_T], first: int, count: int) -> tuple[Sequence[_T], Item]:
    """Return one page of items, and the pager's values."""
    first, count = max(0, first), max(1, min(count, PAGE_MAX))
    return items[first : first + count], {"first": first, "count": count, "total": len(items)}


def badge(seen: Seen) -> Item:
    """Return the header of every page: the store, its verdict, and the number of problems."""
    return {
        "path": escaped(seen.health.path),
        "verdict": VERDICT_WORDS[seen.exit_code],
        "troubleCount": len(seen.health.findings) + len(seen.unwell),
    }


def overview(seen: Seen, samples: Sequence[LagSample], settings: Settings) -> Item:
    """Return the first page: totals, brokers, the first findings, rates and lags over time."""
    health = seen.health
    findings = health.findings
    return {
        "nowMs": health.now_ms,
        "clusterId": health.cluster_id,
        **badge(seen),
        "fsync": health.fsync,
        **_escaped(totals(health, findings)),
        "brokers": _escaped(broker_items(health, findings)),
        "findingCount": len(findings),
        "findings": _by_remedy(findings, settings)[:5],
        "readerCount": len(seen.readers),
        "verdicts": {each.value: found for each in Verdict if (found := _count_of(seen.readers, each))},
        "readers": [_reader_line(*each) for each in _worst_first(seen.readers)[:5]],
        "minutes": _minutes(health.topics, health.now_ms),
        "lags": _lag_lines(samples),
    }


def _count_of(readers: Iterable[tuple[Reader, Judged]], verdict: Verdict) -> int:
    return sum(judged.verdict is verdict for _, judged in readers)


def _minutes(topics: Iterable[TopicDescription], now_ms: int) -> list[list[int]]:
    """Return [start, rows, bytes] of the last minutes, including empty ones; the last minute is not over."""
    last = max([now_ms, *(topic.traffic.last_append_ms for topic in topics)]) // MINUTE_MS
    found = {minute: [minute * MINUTE_MS, 0, 0] for minute in range(last - _MINUTES, last + 1)}
    for topic in topics:
        for minute, row_count, size_bytes in topic.traffic.minutes:
            if minute in found:
                found[minute][1] += row_count
                found[minute][2] += size_bytes
    return list(found.values())


def _lag_lines(samples: Sequence[LagSample]) -> list[Item]:
    """Return the lag over time of the readers that are furthest behind now, or were; 0 if there was none."""
    if not samples:
        return []
    worst = sorted(samples[-1].lags.items(), key=lambda each: -each[1][1])[:LINES_MAX]
    peaks: dict[tuple[str, str], int] = {}
    for each in samples if len(worst) < LINES_MAX else ():
        for key, (_, lag_ms) in each.lags.items():
            peaks[key] = max(peaks.get(key, 0), lag_ms)
    others = sorted(peaks.keys() - {key for key, _ in worst}, key=lambda key: -peaks[key])
    keys = [*(key for key, _ in worst), *others][:LINES_MAX]
    return [
        {
            "kind": kind,
            "name": escaped(name),
            "points": [[each.time_ms, *each.lags.get((kind, name), (0, 0))] for each in samples],
        }
        for kind, name in keys
    ]


def placement(seen: Seen, first: int, count: int) -> Item:
    """Return the placement of a page of partitions: by topic, (partition, leader, replicas, in sync)."""
    every = [(topic, each) for topic in seen.health.topics for each in topic.partitions]
    shown, pager = page_of(every, first, count)
    topics: dict[str, list[list[Any]]] = {}
    for topic, each in shown:
        cell = [each.partition, each.leader, list(each.replicas), each.in_sync]
        topics.setdefault(topic.name, []).append(cell)
    return {
        "brokers": [each.broker_id for each in seen.health.brokers],
        "topics": [{"topic": name, "partitions": cells} for name, cells in topics.items()],
        **pager,
    }


_TOPIC_SORTS = {
    "name": lambda item: item["topic"],
    "rows": lambda item: -item["rows"],
    "bytes": lambda item: -item["bytes"],
    "rate": lambda item: -item["rowsPerSecond"],
    "partitions": lambda item: -item["partitions"],
    "lastAppendMs": lambda item: -(item["lastAppendMs"] or 0),
}


def topics(seen: Seen, search: str, sort: str, first: int, count: int) -> Item:
    """Return a page of topics whose name contains the text."""
    items = [_topic_line(topic, seen.health) for topic in seen.health.topics if search in topic.name]
    items.sort(key=_TOPIC_SORTS.get(sort, _TOPIC_SORTS["name"]))
    shown, pager = page_of(items, first, count)
    return {"topics": list(shown), **pager}


def _faults(topic: TopicDescription, health: StoreHealth) -> dict[int, Fault]:
    """Return the faults of a topic's partitions, by number."""
    return {each.partition or 0: each.fault for each in topic_findings([topic], health.away)}


def _topic_line(topic: TopicDescription, health: StoreHealth) -> Item:
    now_ms = health.now_ms
    rows, size_bytes = topic.traffic.rates(1, now_ms)
    faults = list(_faults(topic, health).values())
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replicas": topic.replication_factor,
        "rows": topic.row_count,
        "bytes": topic.size_bytes,
        "rowsPerSecond": round(rows, 3),
        "bytesPerSecond": round(size_bytes, 3),
        "lastAppendMs": topic.traffic.last_append_ms or None,
        "offline": faults.count(Fault.NO_LEADER),
        "underMinIsr": faults.count(Fault.UNDER_MIN_ISR),
        "underReplicated": faults.count(Fault.UNDER_REPLICATED),
        "minutes": [rows for _, rows, _ in _minutes([topic], now_ms)],
    }


def topic(seen: Seen, name: str, first: int, count: int) -> Item | None:
    """Return one topic with a page of its partitions, its settings and its readers; None if it does not exist."""
    found = next((each for each in seen.health.topics if each.name == name), None)
    if found is None:
        return None
    now_ms, faults = seen.health.now_ms, _faults(found, seen.health)
    shown, pager = page_of(found.partitions, first, count)
    readers = [pair for pair in seen.readers if any(part.topic == name for part in pair[0].partitions)]
    return {
        **_topic_line(found, seen.health),
        "nowMs": now_ms,
        "topicId": found.topic_id,
        "ledgerId": found.ledger_id,
        "partitionItems": [_partition_item(each, faults.get(each.partition)) for each in shown],
        "settings": [_setting(key, found.config, {}) for key in keys_of("topic")]
        + [
            {"key": escaped(key), "value": escaped(value), "default": None, "source": "topic", "doc": "Not known here."}
            for key, value in sorted(found.config.items())
            if key not in {each.name for each in keys_of("topic")}
        ],
        "readers": [_reader_line(*each) for each in _worst_first(readers)[:PAGE_MAX]],
        "minuteItems": _minutes([found], now_ms),
        **pager,
    }


_STATES = {
    None: "ok",
    Fault.NO_LEADER: "offline",
    Fault.UNDER_MIN_ISR: "under min ISR",
    Fault.UNDER_REPLICATED: "under-replicated",
    Fault.RETENTION_HELD: "retention held",
}


def _partition_item(found: PartitionDescription, fault: Fault | None) -> Item:
    return {
        "partition": found.partition,
        "leader": found.leader,
        "leaderEpoch": found.leader_epoch,
        "replicas": list(found.replicas),
        "inSync": found.in_sync,
        "fenced": list(found.fenced),
        "adding": list(found.adding),
        "removing": list(found.removing),
        "logStartOffset": found.log_start_offset,
        "highWatermark": found.high_watermark,
        "logEndOffset": found.log_end_offset,
        "bytes": found.size_bytes,
        "minInsync": found.min_insync,
        "state": _STATES[fault],
    }


def _worst_first(readers: Iterable[tuple[Reader, Judged]]) -> list[tuple[Reader, Judged]]:
    return sorted(readers, key=lambda each: (-each[1].verdict.exit_code, -each[0].lag_ms, -each[0].lag, each[0].name))


def _reader_line(reader: Reader, judged: Judged) -> Item:
    item = reader_item(reader, judged, "reader")
    del item["partitions"]
    worst = reader.worst
    line: Item = _escaped(
        {
            **item,
            "kind": reader.kind,
            "partitionCount": len(reader.partitions),
            "worst": None if worst is None else worst.name,
            "members": len(reader.members),
            "protocol": reader.protocol,
            "generation": reader.generation,
            "batch": reader.batch_id,
        }
    )
    return line


def readers(seen: Seen, first: int, count: int) -> Item:
    """Return a page of groups and queries, the worst first, and the checkpoints that could not be read."""
    shown, pager = page_of(_worst_first(seen.readers), first, count)
    unread = [
        {"checkpoint": escaped(url), "error": error.code.name, "message": escaped(str(error.args[0]))}
        for url, error in seen.unread
    ]
    return {"nowMs": seen.health.now_ms, "readers": [_reader_line(*each) for each in shown], "unread": unread, **pager}


def reader(seen: Seen, kind: str, name: str, first: int, count: int) -> Item | None:
    """Return one reader with a page of its partitions; None if it does not exist. Its name may be as pages show it."""
    alike = [each for each in seen.readers if each[0].kind == kind and name in (each[0].name, escaped(each[0].name))]
    found = min(alike, key=lambda each: each[0].name != name, default=None)
    if found is None:
        return None
    items = reader_item(*found, "reader")["partitions"]
    shown, pager = page_of(items, first, count)
    members = [
        {"memberId": each.member_id, "clientId": each.client_id, "instanceId": each.instance_id}
        for each in found[0].members[:PAGE_MAX]
    ]
    return {
        **_reader_line(*found),
        "nowMs": seen.health.now_ms,
        "partitionItems": _escaped(list(shown)),
        "memberItems": _escaped(members),
        **pager,
    }


def health(seen: Seen, settings: Settings) -> Item:
    """Return the problems and the command that fixes each, including readers with another verdict than OK."""
    findings = seen.health.findings
    items = _by_remedy(findings, settings)
    unwell = seen.unwell
    remedies = [escaped(each["remedy"]) for each in unwell_items(seen, settings)]
    return {
        "nowMs": seen.health.now_ms,
        "verdict": VERDICT_WORDS[seen.exit_code],
        "findings": items[:FINDINGS_SHOWN_MAX],
        "findingCount": len(findings),
        "readers": [
            {**_reader_line(*pair), "remedy": remedy}
            for pair, remedy in zip(unwell[:FINDINGS_SHOWN_MAX], remedies, strict=False)
        ],
        "readerCount": len(unwell),
    }


def _by_remedy(findings: Sequence[Finding], settings: Settings) -> list[Item]:
    """Return the findings; those with the same fault and remedy as one, since a lost root needs only one action."""
    found: dict[tuple[str, str, str], Item] = {}
    for item in _escaped(finding_items(findings, settings)):
        key = (item["level"], item["fault"], item["remedy"])
        first = found.setdefault(key, {**item, "others": -1, "otherDetails": []})
        first["others"] += 1
        if 0 < first["others"] <= OTHERS_SHOWN_MAX:
            first["otherDetails"].append(item["detail"])
    return list(found.values())


def ledgers(seen: Seen) -> Item:
    """Return the ledgers and the topics of each."""
    names: dict[str, list[str]] = {}
    for each in seen.health.topics:
        names.setdefault(each.ledger_id, []).append(each.name)
    items = [
        {
            "ledger": each.ledger_id,
            "entries": each.entry_count,
            "isTailUnclear": each.is_tail_unclear,
            "behind": [{"broker": broker_id, "entries": count} for broker_id, count in sorted(each.behind.items())],
            "topics": names.get(each.ledger_id, [])[:5],
            "topicCount": len(names.get(each.ledger_id, [])),
            "isCluster": each.ledger_id == seen.health.cluster_id,
        }
        for each in seen.health.ledgers
    ]
    return {"nowMs": seen.health.now_ms, "ledgers": items}


def entries(lines: Iterable[tuple[int, Sequence[str]]]) -> list[Item]:
    """Return descriptions of entries, newest first."""
    return [{"index": index, "words": [escaped(each) for each in words]} for index, words in lines]


def settings_page(store: Mapping[str, str], options: Iterable[str]) -> Item:
    """Return all settings: the store's value, the default and the source. Clients and queries set their own.

    Args:
        store: settings of the whole store.
        options: names of storage options; their values may be secrets.
    """
    known = [_setting(key, {}, store) for key in CONFIG_KEYS]
    named = {key.name for key in CONFIG_KEYS}
    unknown = [
        {
            "key": escaped(key),
            "value": escaped(value),
            "default": None,
            "source": "store",
            "group": "cluster",
            "doc": "",
        }
        for key, value in sorted(store.items())
        if key not in named
    ]
    given = [
        {
            "key": f"storage.{escaped(name)}",
            "value": "(hidden)",
            "default": None,
            "source": "command",
            "group": "storage",
        }
        for name in sorted(options)
    ]
    return {"settings": [*known, *unknown, *given]}


def _setting(key: ConfigKey, own: Mapping[str, str], store: Mapping[str, str]) -> Item:
    default = key.default_text if key.default is not None else None
    source = key.group if key.name in own else "store" if key.name in store and key.group == "cluster" else "default"
    value = own.get(key.name, store.get(key.name, default) if key.group == "cluster" else default)
    return {
        "key": key.name,
        "group": key.group,
        "value": None if value is None else escaped(str(value)),
        "default": default,
        "kafkaDefault": key.kafka_default,
        "unit": key.unit,
        "source": source,
        "doc": key.doc,
    }


def search_plan(search: RowSearch, plan: SearchPlan) -> Item:
    """Return the cost of a search, and the offsets that it covers."""
    return {
        "topic": search.topic,
        "costBytes": plan.cost_bytes,
        "budgetBytes": search.budget_bytes,
        "sections": len(plan.slices),
        "isCut": plan.is_cut,
        "spans": [
            {
                "partition": each.partition,
                "start": each.start,
                "end": each.end,
                "logStart": each.log_start,
                "highWatermark": each.high_watermark,
            }
            for each in plan.spans[:PAGE_MAX]
        ],
        "partitionCount": len(plan.spans),
    }


def found_rows(search: RowSearch, found: FoundRows) -> Item:
    """Return the decoded rows (JSON indented, other text unchanged, other bytes in hex), and where to continue."""
    rows = [_row(row) for row in _columns(found.rows)]
    span = found.plan.spans[0] if len(found.plan.spans) == 1 else None
    following = None
    if span is not None and search.begin != "newest":
        full = len(rows) == search.row_count
        following = rows[-1]["offset"] + 1 if full else span.end
        following = following if following < span.high_watermark else None
    return {**search_plan(search, found.plan), "readBytes": found.read_bytes, "rows": rows, "next": following}


def _columns(table: pa.Table) -> list[Item]:
    times: list[int] = table.column("timestamp").cast(pa.int64()).to_pylist()
    rows: list[Item] = table.drop_columns(["timestamp"]).to_pylist()
    return [{**row, "timeUs": time_us} for row, time_us in zip(rows, times, strict=True)]


def _row(row: Item) -> Item:
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "timeMs": row["timeUs"] // 1000,
        "timeType": ("CreateTime", "LogAppendTime")[row["timestampType"]],
        "key": shown_bytes(row["key"]),
        "value": shown_bytes(row["value"]),
        "headers": [[escaped(each["key"]), shown_bytes(each["value"])] for each in row["headers"] or ()],
    }


def shown_bytes(data: bytes | None) -> Item | None:
    """Return a value in readable form: ``{"form": "json" | "text" | "hex", "text", "size", "isCut"[, "raw"]}``."""
    if data is None:
        return None
    item: Item = {"size": len(data), "isCut": len(data) > VALUE_BYTES_MAX}
    try:
        text = data.decode()[:VALUE_BYTES_MAX]
    except UnicodeDecodeError:
        return {**item, "form": "hex", "text": data[: VALUE_BYTES_MAX // 2].hex(" ")}
    if text[:1] in ("{", "[") and not item["isCut"]:
        laid_out = _laid_out(text)
        if laid_out is not None:
            return {**item, "form": "json", "text": escaped(laid_out), "raw": escaped(text)}
    return {**item, "form": "text", "text": escaped(text)}


def _laid_out(text: str) -> str | None:
    """Return JSON with indents; None for other text, and where the indents would be most of it."""
    size, parts = 0, []
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            parts.append(part)
            size += len(part)
            if size > LAID_OUT_MAX:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def _escaped(value: Any) -> Any:
    """Return JSON values with every text escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {key: _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list) else value
