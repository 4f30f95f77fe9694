"""The content of the console's pages as JSON values, from one look at the store. Pure: reads nothing.

The server escapes all texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.cli.output import item_of
from spark_replog.cli.settings import Settings
from spark_replog.cli.tables import escaped
from spark_replog.cli.topic_schema import change_words, column_items
from spark_replog.cli.view import (
    Item,
    broker_items,
    finding_items,
    gateway_items,
    reader_item,
    schema_item,
    totals,
    typed,
)
from spark_replog.config.key import ConfigKey
from spark_replog.config.registry import CONFIG_KEYS, keys_of
from spark_replog.health.readers import Reader, Verdict, worst_first
from spark_replog.health.store import Fault, PartitionDescription, StoreView, TopicDescription, topic_findings
from spark_replog.log.fold.topic_state import MINUTE_MS
from spark_replog.log.json_rows import json_texts
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.rows import HEADERS_AT, OFFSET_AT, PARTITION_AT, TIMESTAMP_AT, TIMESTAMP_TYPE_AT
from spark_replog.ui.live import LagSample
from spark_replog.ui.row_search import FoundRows, RowSearch, SearchPlan

PAGE_MAX = 200
FINDINGS_SHOWN_MAX = 100
OTHERS_SHOWN_MAX = 20
LINES_MAX = 6
"""Maximum number of readers whose lag is drawn."""
VALUE_BYTES_MAX = 64 * 1024
"""Maximum bytes shown of a key, value or header, and of a typed row."""
CELL_BYTES_MIN = 256
"""How much of a column is shown, however many columns there are."""
LAID_OUT_MAX = 4 * VALUE_BYTES_MAX
"""Maximum characters of one that is laid out: the indents of a deeply nested value are hundreds of times its size."""
_MINUTES = 15
_T = TypeVar("_T")


def page_of(items: Sequence[_T], first: int, count: int) -> tuple[Sequence[_T], Item]:
    """Return one page of items, and the pager's values."""
    first, count = max(0, first), max(1, min(count, PAGE_MAX))
    return items[first : first + count], {"first": first, "count": count, "total": len(items)}


def badge(view: StoreView) -> Item:
    """Return the header of every page: the store, its verdict, and the number of problems."""
    return {**item_of(view, "path verdict"), "troubleCount": len(view.findings) + len(view.unwell)}


def overview(view: StoreView, samples: Sequence[LagSample], settings: Settings) -> Item:
    """Return the first page: totals, brokers, the first findings, rates and lags over time."""
    counts = {verdict.value: sum(reader.verdict is verdict for reader in view.readers) for verdict in Verdict}
    return {
        **item_of(view, "nowMs clusterId"),
        **badge(view),
        "fsync": view.fsync,
        **totals(view),
        "brokers": broker_items(view),
        "gateways": gateway_items(view),
        "findingCount": len(view.findings),
        "findings": _by_remedy(view, settings)[:5],
        "readerCount": len(view.readers),
        "verdicts": {verdict: count for verdict, count in counts.items() if count},
        "readers": [_reader_line(consumer) for consumer in worst_first(view.readers)[:5]],
        "minutes": _minutes(view.topics, view.now_ms),
        "lags": _lag_lines(samples),
    }


def _minutes(topics: Iterable[TopicDescription], now_ms: int) -> list[list[int]]:
    """Return [start, rows, bytes] of the last minutes, including empty ones; the last minute is not over."""
    last = max([now_ms, *(topic.traffic.last_append_ms for topic in topics)]) // MINUTE_MS
    counts = {minute: [minute * MINUTE_MS, 0, 0] for minute in range(last - _MINUTES, last + 1)}
    for topic in topics:
        for minute, row_count, size_bytes in topic.traffic.minutes:
            if minute in counts:
                counts[minute][1] += row_count
                counts[minute][2] += size_bytes
    return list(counts.values())


def _lag_lines(samples: Sequence[LagSample]) -> list[Item]:
    """Return the lag over time of the readers that are furthest behind now, or were; 0 if there was none."""
    if not samples:
        return []
    worst = sorted(samples[-1].lags.items(), key=lambda entry: -entry[1][1])[:LINES_MAX]
    peaks: dict[tuple[str, str], int] = {}
    for sample in samples if len(worst) < LINES_MAX else ():
        for key, (_, lag_ms) in sample.lags.items():
            peaks[key] = max(peaks.get(key, 0), lag_ms)
    others = sorted(peaks.keys() - {key for key, _ in worst}, key=lambda key: -peaks[key])
    keys = [*(key for key, _ in worst), *others][:LINES_MAX]
    lines = []
    for key in keys:
        points = [[lag_sample.time_ms, *lag_sample.lags.get(key, (0, 0))] for lag_sample in samples]
        lines.append({"kind": key[0], "name": key[1], "points": points})
    return lines


def placement(view: StoreView, first: int, count: int) -> Item:
    """Return the placement of a page of partitions: by topic, (partition, leader, replicas, in sync)."""
    every = [(topic, description) for topic in view.topics for description in topic.partitions]
    shown, pager = page_of(every, first, count)
    topics: dict[str, list[list[Any]]] = {}
    for topic, partition in shown:
        cell = [partition.partition, partition.leader, list(partition.replicas), partition.in_sync]
        topics.setdefault(topic.name, []).append(cell)
    items = [{"topic": name, "partitions": cells} for name, cells in topics.items()]
    return {"brokers": [broker.broker_id for broker in view.brokers], "topics": items, **pager}


_TOPIC_SORTS = {
    "name": lambda item: item["topic"],
    "rows": lambda item: -item["rows"],
    "bytes": lambda item: -item["bytes"],
    "rate": lambda item: -item["rowsPerSecond"],
    "partitions": lambda item: -item["partitions"],
    "lastAppendMs": lambda item: -(item["lastAppendMs"] or 0),
}


def topics(view: StoreView, search: str, sort: str, first: int, count: int) -> Item:
    """Return a page of topics whose name contains the text."""
    items = [_topic_line(topic, view) for topic in view.topics if search in topic.name]
    items.sort(key=_TOPIC_SORTS.get(sort, _TOPIC_SORTS["name"]))
    shown, pager = page_of(items, first, count)
    return {"topics": list(shown), **pager}


def _faults(topic: TopicDescription, view: StoreView) -> dict[int, Fault]:
    return {finding.partition or 0: finding.fault for finding in topic_findings([topic], view.away)}


def _topic_line(topic: TopicDescription, view: StoreView) -> Item:
    rows, size_bytes = topic.traffic.rates(1, view.now_ms)
    faults = list(_faults(topic, view).values())
    keys = "topic=name partitions=partition_count replicas=replication_factor rows=row_count bytes=size_bytes"
    return {
        **item_of(topic, keys),
        "rowsPerSecond": round(rows, 3),
        "bytesPerSecond": round(size_bytes, 3),
        "lastAppendMs": topic.last_append_ms,
        "offline": faults.count(Fault.NO_LEADER),
        "underMinIsr": faults.count(Fault.UNDER_MIN_ISR),
        "underReplicated": faults.count(Fault.UNDER_REPLICATED),
        "minutes": [rows for _, rows, _ in _minutes([topic], view.now_ms)],
    }


def topic(view: StoreView, name: str, first: int, count: int) -> Item | None:
    """Return one topic with a page of its partitions, its settings and its readers; None if it does not exist."""
    description = next((candidate for candidate in view.topics if candidate.name == name), None)
    if description is None:
        return None
    shown, pager = page_of(description.partitions, first, count)
    readers = [candidate for candidate in view.readers if any(part.topic == name for part in candidate.partitions)]
    faults, names = _faults(description, view), {key.name for key in keys_of("topic")}
    unknown = [
        {"key": key, "value": value, "default": None, "source": "topic", "doc": "Not known here."}
        for key, value in sorted(description.config.items())
        if key not in names
    ]
    return {
        **_topic_line(description, view),
        "nowMs": view.now_ms,
        **item_of(description, "topicId ledgerId"),
        **schema_item(description),
        "columns": column_items(description.schema),
        "schemaHistory": _schema_history(description.schemas),
        "partitionItems": [_partition_item(partition, faults.get(partition.partition)) for partition in shown],
        "settings": [*(_setting(key, description.config, {}) for key in keys_of("topic")), *unknown],
        "readers": [_reader_line(consumer) for consumer in worst_first(readers)[:PAGE_MAX]],
        "minuteItems": _minutes([description], view.now_ms),
        **pager,
    }


def _schema_history(schemas: Sequence[RowSchema]) -> list[Item]:
    """Return the versions after the first, the newest first, with what each changed."""
    changes = [{"version": newer.version, "changes": change_words(older, newer)} for older, newer in pairwise(schemas)]
    return changes[::-1]


_STATES = {
    None: "ok",
    Fault.NO_LEADER: "offline",
    Fault.UNDER_MIN_ISR: "under min ISR",
    Fault.UNDER_REPLICATED: "under-replicated",
    Fault.RETENTION_HELD: "retention held",
}


def _partition_item(partition: PartitionDescription, fault: Fault | None) -> Item:
    keys = ("partition leader leaderEpoch replicas inSync fenced adding removing logStartOffset highWatermark "
            "logEndOffset bytes=size_bytes minInsync")  # fmt: skip
    return {**item_of(partition, keys), "state": _STATES[fault]}


def _reader_line(reader: Reader) -> Item:
    item = reader_item(reader, "reader")
    del item["partitions"]
    return {
        **item,
        "kind": reader.kind,
        "partitionCount": len(reader.partitions),
        "worst": reader.worst and reader.worst.name,
        "members": len(reader.members),
        **item_of(reader, "protocol generation batch=batch_id"),
    }


def readers(view: StoreView, first: int, count: int) -> Item:
    """Return a page of groups and queries, the worst first, and the checkpoints that could not be read."""
    shown, pager = page_of(worst_first(view.readers), first, count)
    unread = [
        {"checkpoint": url, "error": error.code.name, "message": str(error.args[0])} for url, error in view.unread
    ]
    return {"nowMs": view.now_ms, "readers": [_reader_line(consumer) for consumer in shown], "unread": unread, **pager}


def reader(view: StoreView, kind: str, name: str, first: int, count: int) -> Item | None:
    """Return one reader with a page of its partitions; None if it does not exist. Its name may be as pages show it."""
    alike = [match for match in view.readers if match.kind == kind and name in (match.name, escaped(match.name))]
    best = min(alike, key=lambda match: match.name != name, default=None)
    if best is None:
        return None
    shown, pager = page_of(reader_item(best, "reader")["partitions"], first, count)
    members = [item_of(member, "memberId clientId instanceId") for member in best.members[:PAGE_MAX]]
    return {
        **_reader_line(best),
        "nowMs": view.now_ms,
        "partitionItems": list(shown),
        "memberItems": members,
        **pager,
    }


def health(view: StoreView, settings: Settings) -> Item:
    """Return the problems and the command that fixes each, including readers with another verdict than OK."""
    unwell = view.unwell
    return {
        **item_of(view, "nowMs verdict"),
        "findings": _by_remedy(view, settings)[:FINDINGS_SHOWN_MAX],
        "findingCount": len(view.findings),
        "readers": [
            {**_reader_line(judged), "remedy": typed(judged.remedy, settings)} for judged in unwell[:FINDINGS_SHOWN_MAX]
        ],
        "readerCount": len(unwell),
    }


def _by_remedy(view: StoreView, settings: Settings) -> list[Item]:
    """Return the findings; those with the same fault and remedy as one, since a lost root needs only one action."""
    findings: dict[tuple[str, str, str], Item] = {}
    for item in finding_items(view.findings, settings):
        key = (item["level"], item["fault"], item["remedy"])
        first = findings.setdefault(key, {**item, "others": -1, "otherDetails": []})
        first["others"] += 1
        if 0 < first["others"] <= OTHERS_SHOWN_MAX:
            first["otherDetails"].append(item["detail"])
    return list(findings.values())


def ledgers(view: StoreView) -> Item:
    """Return the ledgers and the topics of each."""
    names: dict[str, list[str]] = {}
    for description in view.topics:
        names.setdefault(description.ledger_id, []).append(description.name)
    items = []
    for ledger in view.ledgers:
        behind = [{"broker": broker_id, "entries": count} for broker_id, count in sorted(ledger.behind.items())]
        topics = names.get(ledger.ledger_id, [])
        items.append(
            {
                **item_of(ledger, "ledger=ledger_id entries=entry_count isTailUnclear"),
                "behind": behind,
                "topics": topics[:5],
                "topicCount": len(topics),
                "isCluster": ledger.ledger_id == view.cluster_id,
            }
        )
    return {"nowMs": view.now_ms, "ledgers": items}


def settings_page(store: Mapping[str, str], options: Iterable[str]) -> Item:
    """Return all settings: the store's value, the default and the source. Clients and queries set their own.

    Of storage options, which may be secrets, only the names are shown.
    """
    names = {key.name for key in CONFIG_KEYS}
    unknown = [
        {"key": key, "value": value, "default": None, "source": "store", "group": "cluster", "doc": ""}
        for key, value in sorted(store.items())
        if key not in names
    ]
    given = [
        {"key": f"storage.{name}", "value": "(hidden)", "default": None, "source": "command", "group": "storage"}
        for name in sorted(options)
    ]
    return {"settings": [*(_setting(key, {}, store) for key in CONFIG_KEYS), *unknown, *given]}


def _setting(key: ConfigKey, config: Mapping[str, str], store: Mapping[str, str]) -> Item:
    default = key.default_text if key.default is not None else None
    source = key.group if key.name in config else "store" if key.name in store and key.group == "cluster" else "default"
    value = config.get(key.name, store.get(key.name, default) if key.group == "cluster" else default)
    return {
        **item_of(key, "key=name group"),
        "value": None if value is None else str(value),
        "default": default,
        **item_of(key, "kafkaDefault unit"),
        "source": source,
        "doc": key.doc,
    }


def search_plan(search: RowSearch, plan: SearchPlan) -> Item:
    """Return the cost of a search, the offsets that it covers, and the columns of a typed topic."""
    keys = "partition start end logStart highWatermark"
    return {
        "topic": search.topic,
        "costBytes": plan.cost_bytes,
        "budgetBytes": search.budget_bytes,
        "sections": len(plan.slices),
        "isCut": plan.is_cut,
        "spans": [item_of(span, keys) for span in plan.spans[:PAGE_MAX]],
        "partitionCount": len(plan.spans),
        "columns": column_items(plan.schema),
    }


def found_rows(search: RowSearch, result: FoundRows) -> Item:
    """Return the decoded rows (JSON indented, other text unchanged, other bytes in hex), and where to continue.

    Rows of bytes have a ``key`` and a ``value``, typed rows ``cells``.
    """
    rows = _rows(result.rows, result.plan.schema)
    span = result.plan.spans[0] if len(result.plan.spans) == 1 else None
    following = None
    if span is not None and search.begin != "newest":
        full = len(rows) == search.row_count
        following = rows[-1]["offset"] + 1 if full else span.end
        following = following if following < span.high_watermark else None
    return {**search_plan(search, result.plan), "readBytes": result.read_bytes, "rows": rows, "next": following}


def _rows(table: pa.Table, schema: RowSchema | None) -> list[Item]:
    ats = (PARTITION_AT, OFFSET_AT, TIMESTAMP_TYPE_AT, HEADERS_AT)
    positions = zip(*(table.column(at).to_pylist() for at in ats), strict=True)
    times: list[int] = table.column(TIMESTAMP_AT).cast(pa.int64()).to_pylist()
    contents = _bytes_items(table) if schema is None else _cells_items(table.select(schema.names))
    return [
        {
            "partition": partition,
            "offset": offset,
            "timeMs": time_us // 1000,
            "timeType": ("CreateTime", "LogAppendTime")[time_type],
            **content,
            "headers": [[header["key"], shown_bytes(header["value"])] for header in headers or ()],
        }
        for (partition, offset, time_type, headers), time_us, content in zip(positions, times, contents, strict=True)
    ]


def _bytes_items(table: pa.Table) -> list[Item]:
    keys, values = (table.column(at).to_pylist() for at in (0, 1))
    return [{"key": shown_bytes(key), "value": shown_bytes(value)} for key, value in zip(keys, values, strict=True)]


def _cells_items(table: pa.Table) -> list[Item]:
    """Return the cells of typed rows; all columns of a row share the bytes that are shown of a value."""
    bytes_max = max(CELL_BYTES_MIN, VALUE_BYTES_MAX // max(1, table.num_columns))
    columns = [
        [shown_bytes(data, bytes_max) for chunk in column.chunks for data in _cell_bytes(chunk)]
        for column in table.columns
    ]
    return [{"cells": list(cells)} for cells in zip(*columns, strict=True)]


def _cell_bytes(column: pa.Array) -> list[bytes | None]:
    """Return text and bytes as they are, other values as in JSON without its quotes."""
    texts = column
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        json_of_all = json_texts(column)
        plain = json_of_all if pa.types.is_nested(column.type) else pc.utf8_trim(json_of_all, '"')
        texts = pc.if_else(column.is_valid(), plain, None)
    cells: list[bytes | None] = texts.cast(pa.binary()).to_pylist()
    return cells


def shown_bytes(data: bytes | None, bytes_max: int = VALUE_BYTES_MAX) -> Item | None:
    """Return a value in readable form: ``{"form": "json" | "text" | "hex", "text", "size", "isCut"[, "raw"]}``."""
    if data is None:
        return None
    item: Item = {"size": len(data), "isCut": len(data) > bytes_max}
    try:
        text = data.decode()[:bytes_max]
    except UnicodeDecodeError:
        return {**item, "form": "hex", "text": data[: bytes_max // 2].hex(" ")}
    if text[:1] in ("{", "[") and not item["isCut"]:
        laid_out = _laid_out(text)
        if laid_out is not None:
            return {**item, "form": "json", "text": laid_out, "raw": text}
    return {**item, "form": "text", "text": text}


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
