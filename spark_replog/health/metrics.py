"""The health of a store as metrics, named by Prometheus' conventions. Pure.

Each name is declared once, in `METRICS`; the alert rules, the dashboard and the docs use these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from spark_replog.health.readers import Reader, Verdict
from spark_replog.health.store import Fault, Level, StoreView
from spark_replog.storage.call_counter import Calls

WINDOWS_MINUTES = (1, 5, 15)
_TOPIC, _PARTITION, _BROKER, _LEDGER = ("topic",), ("topic", "partition"), ("broker",), ("ledger",)
_WINDOW, _CALLS = ("topic", "window"), ("kind", "client", "broker", "call", "purpose")
_GATEWAY = ("gateway",)
_READER, _READ = ("kind", "reader"), ("kind", "reader", "topic", "partition")


class Metric(NamedTuple):
    """One metric: name (without the suffix ``_total``), help text, labels. Counters never fall.

    Attributes:
        value: of (view, broker), (view, ledger), (view, topic), (view, topic, minutes), (view, partition), (reader,) or
            (partition of a reader,), by its labels; None: there is no sample. Other metrics have no such function.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    value: Callable[..., float | None] | None = None


class Sample(NamedTuple):
    """One value of a metric; labels in the order of the metric."""

    labels: tuple[str, ...]
    value: float


def _metric(name: str, labels: tuple[str, ...], text: str, value: Callable[..., float | None] | None = None) -> Metric:
    return Metric(f"replog_{name}", text, labels, False, value)


def _counted(name: str, text: str, key: str, is_counter: bool = True) -> Metric:
    return Metric(f"replog_gateway_{name}", text, _GATEWAY, is_counter, lambda _, gateway: gateway.counts.get(key))


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _of_lag(name: str, in_seconds: bool = False) -> Callable[[Any], float | None]:
    def value(part: Any) -> float | None:
        if part.lag is None or part.lag.lag is None:
            return None
        lag = getattr(part.lag, name) or 0
        return lag / 1000 if in_seconds else float(lag)

    return value


METRICS = {
    metric.name: metric
    for metric in (
        _metric("up", (), "1 if the store answered; 0 if not, and then there is no other metric."),
        _metric("findings", ("level", "fault"), "Findings of replog status."),
        _metric("broker_up", _BROKER,
                "1 if the root answers with the expected identity and has its journals and newest copies.",
                lambda _, broker: broker.error is None),
        _metric("broker_fenced", _BROKER, "1 if the broker is fenced.", lambda _, broker: broker.is_fenced),
        _metric("broker_free_bytes", _BROKER, "Free bytes of the root's file system; absent for object stores.",
                lambda _, broker: broker.free_bytes),
        _metric("broker_assigned_bytes", _BROKER,
                "Bytes of the partitions assigned to the broker; its root may lack some.",
                lambda view, broker: view.assigned_bytes(broker.broker_id)),
        _metric("broker_leader_partitions", _BROKER, "Partitions that the broker leads.",
                lambda view, broker: view.leader_count(broker.broker_id)),
        Metric("replog_ledger_entries", "Decided entries of a ledger.", _LEDGER, True,
               lambda _, ledger: ledger.entry_count),
        _metric("ledger_tail_unclear", _LEDGER, "1 if it is unknown whether the last entry is decided.",
                lambda _, ledger: ledger.is_tail_unclear),
        _metric("topic_rows", _TOPIC, "Readable rows.", lambda _, topic: topic.row_count),
        _metric("topic_bytes", _TOPIC, "Bytes in one copy.", lambda _, topic: topic.size_bytes),
        _metric("topic_last_append_timestamp_seconds", _TOPIC, "Time of the last append.",
                lambda _, topic: _seconds(topic.traffic.last_append_ms or None)),
        _metric("topic_append_rows_per_second", _WINDOW, "Rows appended, by window.",
                lambda view, topic, minutes: topic.traffic.rates(minutes, view.now_ms)[0]),
        _metric("topic_append_bytes_per_second", _WINDOW, "Bytes appended, by window.",
                lambda view, topic, minutes: topic.traffic.rates(minutes, view.now_ms)[1]),
        _metric("partition_log_start_offset", _PARTITION, "First readable offset.",
                lambda _, part: part.log_start_offset),
        _metric("partition_high_watermark", _PARTITION, "End of the readable rows, exclusive.",
                lambda _, part: part.high_watermark),
        _metric("partition_log_end_offset", _PARTITION, "End of the appended rows, exclusive.",
                lambda _, part: part.log_end_offset),
        _metric("partition_bytes", _PARTITION, "Bytes in one copy.", lambda _, part: part.size_bytes),
        _metric("partition_leader", _PARTITION, "Leader; -1: none.", lambda _, part: part.leader),
        _metric("partition_replicas", _PARTITION, "Assigned replicas.", lambda _, part: len(part.replicas)),
        _metric("partition_in_sync_replicas", _PARTITION, "Replicas in sync and in service, by the log.",
                lambda _, part: len(part.in_sync)),
        _metric("partition_serving_replicas", _PARTITION, "Of these, how many have a root that answers.",
                lambda view, part: sum(replica not in view.away for replica in part.in_sync)),
        _metric("partition_min_in_sync_replicas", _PARTITION, "Replicas that acks=all needs.",
                lambda _, part: part.min_insync),
        _metric("partition_leader_preferred", _PARTITION, "1 if the first assigned broker leads.",
                lambda _, part: part.leader == part.replicas[0]),
        _metric("reader_lag_rows", _READ, "Unread rows.", _of_lag("lag")),
        _metric("reader_lag_bytes", _READ, "Bytes of the unread rows.", _of_lag("lag_bytes")),
        _metric("reader_lag_seconds", _READ, "Age of the oldest unread row.", _of_lag("lag_ms", in_seconds=True)),
        _metric("reader_position", _READ, "Next offset to read.", lambda part: part.position),
        _metric("reader_catch_up_seconds", _READER, "Time to catch up at this pace, if known.",
                lambda reader: _seconds(reader.catch_up_ms)),
        _metric("reader_last_sign_timestamp_seconds", _READER, "Time of the last activity.",
                lambda reader: _seconds(reader.last_sign_ms or None)),
        _metric("reader_verdict", (*_READER, "verdict"), "1 for the current verdict."),
        _metric("query_input_rows_per_second", ("reader",), "Input rate of the last batch."),
        _metric("query_processed_rows_per_second", ("reader",), "Processing rate of the last batch."),
        _metric("query_batch_duration_seconds", ("reader",), "Duration of the last batch."),
        _metric("gateway_up", _GATEWAY, "1 if the gateway has given a sign lately.",
                lambda view, gateway: not gateway.is_silent(view.now_ms)),
        _metric("gateway_last_sign_timestamp_seconds", _GATEWAY, "Time of its last sign; what it counts is as old.",
                lambda _, gateway: _seconds(gateway.last_sign_ms)),
        _counted("connections", "Connections of clients.", "connections", is_counter=False),
        _counted("held_bytes", "Bytes of requests that are not answered yet.", "heldBytes", is_counter=False),
        _counted("requests", "Requests of clients.", "requests"),
        _counted("refused_connections", "Connections above the limits.", "refusedConnections"),
        _counted("received_bytes", "Bytes of requests.", "receivedBytes"),
        _counted("sent_bytes", "Bytes of answers.", "sentBytes"),
        Metric("replog_storage_calls", "Requests to roots by this exporter or a query, retries too.", _CALLS, True),
        Metric("replog_storage_bytes", "Bytes that these moved.", _CALLS, True),
        Metric("replog_storage_retries", "Of these requests, how many repeated a failed one.", _CALLS, True),
    )
}  # fmt: skip


def _add(samples: dict[str, list[Sample]], kind: tuple[str, ...], labels: tuple[str, ...], *subject: object) -> None:
    """Add a sample of each metric with these labels."""
    for metric in METRICS.values():
        if metric.labels == kind and metric.value is not None and (value := metric.value(*subject)) is not None:
            samples.setdefault(metric.name, []).append(Sample(labels, value))


def collect(view: StoreView) -> dict[str, list[Sample]]:
    """Return the samples of each metric, in the order of `METRICS`, including metrics without samples."""
    samples: dict[str, list[Sample]] = {name: [] for name in METRICS}
    samples["replog_up"].append(Sample((), 1))
    counts = Counter((finding.level, finding.fault) for finding in view.findings)
    for level, fault in ((level, fault) for level in Level for fault in Fault if counts[level, fault]):
        samples["replog_findings"].append(Sample((level.name.lower(), fault.value), counts[level, fault]))
    for broker in view.brokers:
        _add(samples, _BROKER, (str(broker.broker_id),), view, broker)
    for gateway in view.gateways:
        _add(samples, _GATEWAY, (str(gateway.node_id),), view, gateway)
    for ledger in view.ledgers:
        _add(samples, _LEDGER, (ledger.ledger_id,), view, ledger)
    for topic in view.topics:
        _add(samples, _TOPIC, (topic.name,), view, topic)
        for minutes in WINDOWS_MINUTES:
            _add(samples, _WINDOW, (topic.name, f"{minutes}m"), view, topic, minutes)
        for part in topic.partitions:
            _add(samples, _PARTITION, (topic.name, str(part.partition)), view, part)
    return samples | reader_samples(view.readers)


def reader_samples(readers: Iterable[Reader]) -> dict[str, list[Sample]]:
    """Return the samples of the readers only, by metric."""
    samples: dict[str, list[Sample]] = {}
    for reader in readers:
        who = (reader.kind, reader.name)
        for part in reader.partitions:
            _add(samples, _READ, (*who, part.topic, str(part.partition)), part)
        _add(samples, _READER, who, reader)
        verdicts = [Sample((*who, verdict.value), verdict is reader.verdict) for verdict in Verdict]
        samples.setdefault("replog_reader_verdict", []).extend(verdicts)
    return samples


def call_samples(kind: str, client: str, table: Mapping[tuple[str, str, str], Calls]) -> dict[str, list[Sample]]:
    """Return the samples of storage calls by broker, call and purpose."""
    names = "replog_storage_calls", "replog_storage_bytes", "replog_storage_retries"
    rows = [((kind, client, *key), calls) for key, calls in sorted(table.items())]
    return {name: [Sample(labels, calls[at]) for labels, calls in rows] for at, name in enumerate(names)}


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(metrics: Mapping[str, list[Sample]], *, is_open: bool = False) -> str:
    """Return samples as Prometheus' text, or as OpenMetrics.

    As prometheus_client writes them, in a fifth of its time, which is all of a scrape: 9,000 lines of 1,000 partitions.
    """
    lines: list[str] = []
    for name, samples in metrics.items():
        metric = METRICS[name]
        full = f"{name}_total" if metric.is_counter else name
        if samples:
            family = name if is_open else full
            lines += (
                f"# HELP {family} {metric.help}",
                f"# TYPE {family} {'counter' if metric.is_counter else 'gauge'}",
            )
        order = sorted(range(len(metric.labels)), key=metric.labels.__getitem__)
        form = full + ("{" + ",".join(f'{metric.labels[at]}="%s"' for at in order) + "} " if order else " ")
        for labels, value in samples:
            texts = [labels[at] for at in order]
            if not all(map(str.isalnum, texts)):
                texts = [text.translate(_ESCAPES) for text in texts]
            lines.append(form % (*texts,) + _go_number(float(value)))
    return "\n".join([*lines, *(["# EOF"] if is_open else []), ""])


def _go_number(value: float) -> str:
    """Return a finite number as Go writes it, with an exponent from 10 million on."""
    text = repr(value)
    dot = text.find(".")
    if value > 0 and dot > 6:
        return f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.") + f"e+{dot - 1:02d}"
    return text
