"""When a read that takes long is asked of a second replica as well: after the p95 of its root, and seldom."""

from __future__ import annotations

import os
import threading
from collections import deque

RATIO = 0.05
BURST_MAX = 4
"""Second gets above the ratio: the reads that one task has under way when a root gets slow, and one more."""
KEPT_COUNT = 128
KNOWN_COUNT = 16
"""With fewer reads of a root than this its p95 is not known yet."""
UNKNOWN_MS = 1_000
MIN_MS = 20
"""A quicker second get would only double the load of a fast root."""
AVOIDED_READS = 64
"""So many reads go to other roots after one root was slower than another."""


class HedgeBudget:
    """How long the latest reads of each root took, and how many second gets are left. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took_ms: dict[str, deque[float]] = {}
        self._left = float(BURST_MAX)
        self._slow, self._avoided_left = "", 0

    def note(self, url: str, took_ms: float, ratio: float) -> None:
        """Count a read that was answered: it earns a part of a second get."""
        with self._lock:
            self._took_ms.setdefault(url, deque(maxlen=KEPT_COUNT)).append(took_ms)
            self._left = min(self._left + ratio, float(BURST_MAX))
            self._avoided_left -= 1

    def after_ms(self, url: str) -> float:
        """Return after which time a read of the root is slow: the p95 of its latest ones."""
        with self._lock:
            took_ms = sorted(self._took_ms.get(url, ()))
        return max(took_ms[len(took_ms) * 95 // 100], MIN_MS) if len(took_ms) >= KNOWN_COUNT else UNKNOWN_MS

    def take(self) -> bool:
        """Take one second get; False where none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def lost(self, url: str) -> None:
        """Note that a root was slower than another: it is asked last for a while."""
        with self._lock:
            self._slow, self._avoided_left = url, AVOIDED_READS

    def is_slow(self, url: str) -> bool:
        """Return whether the root was slower than another lately."""
        return url == self._slow and self._avoided_left > 0


_budget = HedgeBudget()


def hedge_budget() -> HedgeBudget:
    """Return this process's own."""
    return _budget


def forget_hedges() -> None:
    """Begin again: a forked child measures its own reads, and may have inherited a held lock."""
    global _budget
    _budget = HedgeBudget()


os.register_at_fork(after_in_child=forget_hedges)
