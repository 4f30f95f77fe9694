"""A producer's metrics, under Kafka's names.

Source: Kafka ``SenderMetricsRegistry``, ``KafkaProducerMetrics`` and ``SampledStat``: rates and averages
look back on ``metrics.num.samples`` windows of ``metrics.sample.window.ms``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from spark_replog.clock import Clock


class Sampled:
    """Sum, count and maximum over the last few windows. Guarded by its registry's lock.

    Args:
        sample_count: windows kept, the open one included.
        window_ms: length of one.
    """

    __slots__ = ("_sample_count", "_samples", "_window_ms")

    def __init__(self, sample_count: int, window_ms: int) -> None:
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._samples: deque[list[float]] = deque(maxlen=sample_count)

    def record(self, value: float, count: int, now_ms: int, largest: float) -> None:
        """Add the sum of ``count`` events and the largest of them."""
        if not self._samples or now_ms - self._samples[-1][0] >= self._window_ms:
            self._samples.append([now_ms, 0.0, 0, 0.0])
        sample = self._samples[-1]
        sample[1] += value
        sample[2] += count
        sample[3] = max(sample[3], largest)

    def rate(self, now_ms: int) -> float:
        """Return the sum per second. A short history counts as all windows but one, as Kafka's does."""
        live = self._live(now_ms)
        if not live:
            return 0.0
        elapsed_ms = now_ms - live[0][0]
        # Kafka treats the missing earlier windows as present and empty.
        missing = max(0, self._sample_count - 1 - int(elapsed_ms // self._window_ms))
        return sum(sample[1] for sample in live) * 1000 / max(1.0, elapsed_ms + missing * self._window_ms)

    def average(self, now_ms: int) -> float:
        """Return the sum divided by the count; 0 without events."""
        live = self._live(now_ms)
        count = sum(sample[2] for sample in live)
        return sum(sample[1] for sample in live) / count if count else 0.0

    def maximum(self, now_ms: int) -> float:
        """Return the largest value; 0 without events."""
        return max((sample[3] for sample in self._live(now_ms)), default=0.0)

    def _live(self, now_ms: int) -> list[list[float]]:
        oldest_ms = now_ms - self._sample_count * self._window_ms
        return [sample for sample in self._samples if sample[0] > oldest_ms]


_TOTALS = (
    ("record-send", "records"),
    ("record-error", "records that failed"),
    ("record-retry", "records put again"),
    ("byte", "bytes put"),
    ("request", "data objects"),
    ("commit", "entries of ledgers"),
)
_AVERAGES = (
    "batch-size",
    "records-per-request",
    "record-queue-time",
    "request-latency",
    "commit-latency",
    "record-size",
    "requests-per-commit",
    "produce-throttle-time",
)


class ProducerMetrics:
    """The numbers of one producer. Thread-safe."""

    def __init__(self, sample_count: int, window_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = {name: 0 for name, _ in _TOTALS}
        self._rates = {name: Sampled(sample_count, window_ms) for name, _ in _TOTALS}
        self._averages = {name: Sampled(sample_count, window_ms) for name in _AVERAGES}
        self._pool_waits = Sampled(sample_count, window_ms)
        self._pool_exhausted = Sampled(sample_count, window_ms)

    def count(self, name: str, value: int) -> None:
        """Count events of one of the totals."""
        self.note({name: value}, (), self._clock.monotonic_ms())

    def observe(self, name: str, value: float) -> None:
        """Add a value to one of the averages."""
        self.note({}, ((name, value, 1, value),), self._clock.monotonic_ms())

    def note(self, events: Mapping[str, int], values: Iterable[tuple[str, float, int, float]], now_ms: int) -> None:
        """Count events of totals, and add values to averages: name, sum of some values, their number, the largest."""
        with self._lock:
            for name, count in events.items():
                self._totals[name] += count
                self._rates[name].record(count, 1, now_ms, count)
            for name, total, count, largest in values:
                self._averages[name].record(total, count, now_ms, largest)

    def on_pool_wait(self, waited_ms: int, is_exhausted: bool) -> None:
        """Note an append that waited for memory, and whether memory stayed exhausted."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self._pool_waits.record(waited_ms, 1, now_ms, waited_ms)
            if is_exhausted:
                self._pool_exhausted.record(1, 1, now_ms, 1)

    def total(self, name: str) -> int:
        """Return one of the totals."""
        with self._lock:
            return self._totals[name]

    def read(self) -> dict[str, float]:
        """Return all numbers by name. Totals count from the producer's start."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            # The share of time that appends waited for memory: milliseconds per second, divided by 1,000.
            numbers: dict[str, float] = {"bufferpool-wait-ratio": self._pool_waits.rate(now_ms) / 1000}
            numbers["buffer-exhausted-rate"] = self._pool_exhausted.rate(now_ms)
            for name, total in self._totals.items():
                plain = {"byte": "outgoing-byte"}.get(name, name)
                numbers[f"{plain}-total"] = total
                numbers[f"{plain}-rate"] = self._rates[name].rate(now_ms)
            for name, sampled in self._averages.items():
                numbers[f"{name}-avg"] = sampled.average(now_ms)
                numbers[f"{name}-max"] = sampled.maximum(now_ms)
        return numbers
