"""The metrics of a ``prometheus_client`` registry as OpenTelemetry instruments. Needs the extra ``otel``.

Names, labels and values are the same as for Prometheus. The SDK's reader decides where they go, and how often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from prometheus_client import CollectorRegistry

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.health.metrics import METRICS
from spark_replog.monitor.exporter import SCRAPE_AGE_MS

_UNITS = {"seconds": "s", "bytes": "By"}


def observe(registry: CollectorRegistry, meter: Meter, clock: Clock = SYSTEM_CLOCK) -> None:
    """Make an observable instrument for each replog metric of a registry.

    One collection of the SDK reads the registry once, on the SDK's thread. A metric without a value has no data point.

    Args:
        registry: with a collector or a ``ReplogListener``, registered before. It is read once here, because only a read
            gives the names of a client's metrics.
        meter: of the program's meter provider.
    """
    reading = _Reading(registry, clock)
    instruments = {metric.name: (metric.help, metric.is_counter) for metric in METRICS.values()}
    for family in registry.collect():
        if family.name.startswith("replog_"):
            instruments[family.name] = family.documentation, family.type == "counter"
    for name, (text, is_counter) in instruments.items():
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        unit = _UNITS.get(name.rpartition("_")[2], "")
        make(name, callbacks=[reading.callback(name)], unit=unit, description=text)


class _Reading:
    """The last reading of the registry, shared by all instruments of one collection. Thread-safe."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._registry, self._clock = registry, clock
        self._lock = threading.Lock()
        self._read_ms: int | None = None
        self._values: Mapping[str, list[Observation]] = {}

    def callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the callback that gives the SDK the values of one instrument."""

        def values(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                now_ms = self._clock.monotonic_ms()
                if self._read_ms is None or now_ms - self._read_ms >= SCRAPE_AGE_MS:
                    table: dict[str, list[Observation]] = {}
                    for family in self._registry.collect():  # each client of the process has one of each name
                        table.setdefault(family.name, []).extend(Observation(s.value, s.labels) for s in family.samples)
                    self._values, self._read_ms = table, now_ms
                return iter(self._values.get(name, ()))

        return values
