"""Metrics of a store for Prometheus, over HTTP or once as text. Needs the extra ``metrics``; only reads the store.

Scrapes share one fold, so a hundred scrapers cost as much as one. Roots are checked less often, because that takes
more storage calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from spark_replog.errors import ReplogError
from spark_replog.health.metrics import METRICS, Sample, call_samples, collect
from spark_replog.monitor.store_monitor import StoreWatch

_LOG = logging.getLogger(__name__)
SCRAPE_AGE_MS = 1_000
"""Scrapes within this time get the same answer."""


class SampleCollector(Collector):
    """Metrics of `METRICS` from a function that runs at each scrape; if it raises a coded error, there are none."""

    def __init__(self, samples: Callable[[], Mapping[str, list[Sample]]]) -> None:
        self._samples = samples

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registering does not read the store."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the current value of each metric."""
        try:
            found = self._samples()
        except ReplogError as error:
            _LOG.warning("the store does not answer: %s", error)
            return
        for name, samples in found.items():
            metric = METRICS[name]
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(name, metric.help, labels=metric.labels)
            for sample in samples:
                family.add_metric(list(sample.labels), float(sample.value))
            if samples:
                yield family


class StoreCollector(SampleCollector):
    """All metrics of one store. Thread safe. `replog_up` is 0 and alone if the store does not answer.

    Args:
        watch: of that store; used by this collector only.
    """

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(self.samples)
        self._watch = watch
        self._lock = threading.Lock()
        self._answer: tuple[int, Mapping[str, list[Sample]]] | None = None

    def samples(self) -> Mapping[str, list[Sample]]:
        """Return all metrics, at most `SCRAPE_AGE_MS` old."""
        with self._lock:
            now_ms = self._watch.cluster.clock.monotonic_ms()
            if self._answer is None or now_ms - self._answer[0] >= SCRAPE_AGE_MS:
                try:
                    seen = self._watch.look()
                    brokers = self._watch.cluster.brokers
                    calls = call_samples("exporter", "", brokers.name_calls(brokers.calls.read()))
                    found = {**collect(seen.health, seen.readers), **calls}
                except ReplogError as error:
                    _LOG.warning("the store does not answer: %s", error)
                    found = {"replog_up": [Sample((), 0)]}
                self._answer = (now_ms, found)
            return self._answer[1]


_TIMES = ("latency", "queue_time", "throttle_time")


class ClientCollector(Collector):
    """The metrics of a ``Producer`` or ``Consumer`` of this process, under Kafka's names in Prometheus' form.

    Times become seconds. ``record-send-total`` of a Producer is ``replog_producer_record_send_total``, and
    ``request-latency-avg`` is ``replog_producer_request_latency_avg_seconds``.

    Args:
        read: its ``metrics`` method.
        kind: ``producer`` or ``consumer``.
        client_id: label that distinguishes the clients of one process.
    """

    def __init__(self, read: Callable[[], Any], kind: str, client_id: str) -> None:
        self._read, self._kind, self._client_id = read, kind, client_id

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: the names are known only at a scrape."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the current value of each metric."""
        found = self._read()
        values = found if isinstance(found, Mapping) else {f"{each}-total": n for each, n in asdict(found).items()}
        for kafka_name, value in values.items():
            words = kafka_name.replace("-", "_")
            is_time = any(each in words for each in _TIMES)
            name = f"replog_{self._kind}_{words}{'_seconds' if is_time else ''}"
            kind = CounterMetricFamily if words.endswith("_total") else GaugeMetricFamily
            family = kind(name, f"Kafka's {kafka_name}.", labels=("client_id",))
            family.add_metric([self._client_id], value / 1000 if is_time else value)
            yield family


def registry_of(collector: StoreCollector) -> CollectorRegistry:
    """Return a registry with this collector only, without the metrics of this process."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
