"""How long to wait before the next attempt."""

from __future__ import annotations

import random


class ExponentialBackoff:
    """Pauses that double up to a cap, each spread by 20 per cent (source: Kafka's class of that name).

    Args:
        initial_ms: the first; all of them where the cap is not above it.
        max_ms: the longest, before spreading.
        random_source: spreads.
    """

    def __init__(self, initial_ms: int, max_ms: int, random_source: random.Random) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._random = random_source

    def of(self, failed_count: int) -> int:
        """Return the pause after the attempt that follows so many failed ones."""
        pause_ms = min(self._max_ms, self._initial_ms * 2 ** min(failed_count, 30))
        return int(pause_ms * self._random.uniform(0.8, 1.2))


__all__ = ["ExponentialBackoff"]
