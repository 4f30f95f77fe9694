"""Kafka's sliding rate and what it says of a quota. Pure: the caller says what time it is.

Source: ``SampledStat``, ``Rate``, ``QuotaUtils`` and ``ClientQuotaManager``.
"""

from __future__ import annotations

from collections import deque

SAMPLE_COUNT = 11
"""Kafka's ``quota.window.num``."""
WINDOW_MS = 1000
"""Kafka's ``quota.window.size.seconds``."""


class SampledRate:
    """An amount per second over a window that slides by whole samples.

    Args:
        sample_count: samples that make the window, at least 2.
        window_ms: length of one sample.
    """

    __slots__ = ("_sample_count", "_samples", "_window_ms")

    def __init__(self, sample_count: int = SAMPLE_COUNT, window_ms: int = WINDOW_MS) -> None:
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._samples: deque[list[int]] = deque()  # [start, last event, total], oldest first

    def record(self, amount: int, now_ms: int) -> None:
        """Add an amount; times never fall."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, now_ms, amount])
            if len(samples) > self._sample_count + 1:  # one more: the oldest reaches into the window with its end
                samples.popleft()
            return
        samples[-1][1] = now_ms
        samples[-1][2] += amount

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the time that the rate is over: since the oldest live sample, and at least N - 1 windows.

        So a burst at the start is not taken for a rate that goes on.
        """
        samples = self._live(now_ms)
        elapsed = now_ms - samples[0][0] if samples else 0
        missing = self._sample_count - 1 - elapsed // self._window_ms
        return elapsed + max(0, missing) * self._window_ms

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        total = sum(sample[2] for sample in self._live(now_ms))
        return total * 1000.0 / self.elapsed_ms(now_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether nothing of it counts any more."""
        return not self._live(now_ms)

    def _live(self, now_ms: int) -> deque[list[int]]:
        expiry_ms = self._sample_count * self._window_ms
        while self._samples and now_ms - self._samples[0][1] >= expiry_ms:
            self._samples.popleft()
        return self._samples


def throttle_time_ms(observed: float, quota: float, window_ms: int) -> float:
    """Return how long to wait until the rate is the quota again; negative below it.

    Args:
        observed: the rate, per second.
        quota: the bound, per second; above 0.
        window_ms: what the rate is over.
    """
    return (observed - quota) / quota * window_ms


def bounded_throttle_time_ms(observed: float, quota: float, window_ms: int, limit_ms: int) -> int:
    """Return the wait of a violated quota, at most `limit_ms`; 0 where the quota holds."""
    if observed <= quota:
        return 0
    if quota <= 0:  # refused when it is set; a damaged one must not divide by zero
        return limit_ms
    return min(round(throttle_time_ms(observed, quota, window_ms)), limit_ms)
