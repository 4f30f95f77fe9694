"""Metrics of a store for Prometheus, over HTTP or as text. Needs the extra ``metrics``; only reads the store.

Scrapes share one fold, so a hundred scrapers cost as much as one. Roots are checked less often.
"""

from __future__ import annotations

import gzip
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from spark_replog.errors import ReplogError
from spark_replog.health.metrics import METRICS, Sample, call_samples, collect, exposition
from spark_replog.monitor.store_monitor import StoreWatch

_LOG = logging.getLogger(__name__)
SCRAPE_AGE_MS = 1_000
"""Scrapes within this time get the same answer."""


class SampleCollector(Collector):
    """Metrics of `METRICS` from a function that runs at each scrape; none if it raises a ``ReplogError``."""

    def __init__(self, samples: Callable[[], Mapping[str, list[Sample]]]) -> None:
        self._samples = samples

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registering does not read the store."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the current value of each metric."""
        try:
            metrics = self._samples()
        except ReplogError as error:
            _LOG.warning("the store does not answer: %s", error)
            return
        for name, samples in metrics.items():
            metric = METRICS[name]
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(name, metric.help, labels=metric.labels)
            for sample in samples:
                family.add_metric(list(sample.labels), float(sample.value))
            if samples:
                yield family


class StoreCollector(SampleCollector):
    """All metrics of one store. Thread-safe. Only `replog_up`, with value 0, if the store does not answer.

    Only this collector may use its watch.
    """

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(self.samples)
        self._watch = watch
        self._lock = threading.Lock()
        self._answer: tuple[int, Mapping[str, list[Sample]]] | None = None
        self._texts: dict[bool, bytes] = {}

    def samples(self) -> Mapping[str, list[Sample]]:
        """Return all metrics, at most `SCRAPE_AGE_MS` old."""
        with self._lock:
            now_ms = self._watch.cluster.clock.monotonic_ms()
            if self._answer is None or now_ms - self._answer[0] >= SCRAPE_AGE_MS:
                try:
                    brokers, metrics = self._watch.cluster.brokers, collect(self._watch.look())
                    metrics |= call_samples("exporter", "", brokers.name_calls(brokers.calls.read()))
                except ReplogError as error:
                    _LOG.warning("the store does not answer: %s", error)
                    metrics = {"replog_up": [Sample((), 0)]}
                self._answer = (now_ms, metrics)
                self._texts = {}
            return self._answer[1]

    def text(self, *, is_open: bool = False) -> bytes:
        """Return all metrics as Prometheus text or OpenMetrics, at most `SCRAPE_AGE_MS` old."""
        metrics = self.samples()
        with self._lock:
            if is_open not in self._texts:
                self._texts[is_open] = exposition(metrics, is_open=is_open).encode()
            return self._texts[is_open]


class _Handler(BaseHTTPRequestHandler):
    collector: ClassVar[StoreCollector]
    protocol_version = "HTTP/1.1"
    timeout = 60
    """Seconds after which an idle connection is closed."""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "metrics are at /metrics")
            return
        is_open = "application/openmetrics-text" in self.headers.get("Accept", "")
        kind = "application/openmetrics-text; version=1.0.0" if is_open else "text/plain; version=0.0.4"
        body = self.collector.text(is_open=is_open)
        is_packed = "gzip" in self.headers.get("Accept-Encoding", "")
        if is_packed:
            body = gzip.compress(body, 1)
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log scrapes."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def server_of(collector: StoreCollector, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server of ``/metrics`` that listens but does not serve yet. Raises OSError."""
    is_six = ":" in host
    kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if is_six else _Server
    server: ThreadingHTTPServer = kind((host, port), type("_Handler", (_Handler,), {"collector": collector}))
    return server


_TIMES = ("latency", "queue_time", "throttle_time")


class ClientCollector(Collector):
    """The metrics of a ``Producer`` or ``Consumer`` of this process, under Kafka's names in Prometheus' form.

    Times become seconds. ``record-send-total`` of a Producer is ``replog_producer_record_send_total``, and
    ``request-latency-avg`` is ``replog_producer_request_latency_avg_seconds``. A registry needs one collector for all
    producers and one for all consumers, since a metric may be in a page once: see `add`. Thread-safe.

    Args:
        read: its ``metrics`` method.
        kind: ``producer`` or ``consumer``.
        client_id: label that distinguishes the clients of one process.
    """

    def __init__(self, read: Callable[[], Any], kind: str, client_id: str) -> None:
        self._kind = kind
        self._clients = {client_id: read}

    def add(self, read: Callable[[], Any], client_id: str) -> None:
        """Collect another client of the same kind too; one that has this id already is replaced."""
        self._clients = {**self._clients, client_id: read}

    def remove(self, client_id: str) -> None:
        """Collect a client no more; nothing happens if there is none with this id."""
        self._clients = {other_id: read for other_id, read in self._clients.items() if other_id != client_id}

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, because the names are known only at a scrape."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the current value of each metric."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for client_id, read in self._clients.items():
            stats = read()
            values = stats if isinstance(stats, Mapping) else {f"{key}-total": n for key, n in asdict(stats).items()}
            for kafka_name, value in values.items():
                words = kafka_name.replace("-", "_")
                is_time = any(word in words for word in _TIMES)
                name = f"replog_{self._kind}_{words}{'_seconds' if is_time else ''}"
                if name not in families:
                    kind = CounterMetricFamily if words.endswith("_total") else GaugeMetricFamily
                    families[name] = kind(name, f"Kafka's {kafka_name}.", labels=("client_id",))
                families[name].add_metric([client_id], value / 1000 if is_time else value)
        yield from families.values()
