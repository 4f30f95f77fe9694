"""How long to wait before the next attempt: the one back-off of the project."""

from __future__ import annotations

import random
from collections.abc import Callable

_DOUBLINGS_MAX = 30
SYSTEM_RANDOM = random.SystemRandom()
"""Not the module's own generator, which belongs to the user's program (and to its seed)."""


class ExponentialBackoff:
    """Pauses that double up to a cap, each multiplied by a random factor (source: Kafka ``ExponentialBackoff``).

    Args:
        initial_ms: the first pause before the random factor; every pause if it is not below ``max_ms``.
        max_ms: the longest pause before the random factor.
        draw: returns random numbers in [0, 1).
        spread: bounds of the random factor; (0, 1) desynchronises competing writers, (1, 1) is exact.
    """

    def __init__(
        self,
        initial_ms: float,
        max_ms: float,
        draw: Callable[[], float] = SYSTEM_RANDOM.random,
        *,
        spread: tuple[float, float] = (0.8, 1.2),
    ) -> None:
        assert initial_ms >= 0
        assert 0 <= spread[0] <= spread[1]
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._draw = draw
        self._low, self._high = spread

    def pause_ms(self, failed_count: int) -> float:
        """Return the pause before the next attempt, given how many attempts failed before the last one (0 or more)."""
        limit_ms: float = min(self._max_ms, self._initial_ms * (1 << min(failed_count, _DOUBLINGS_MAX)))
        return limit_ms * (self._low + (self._high - self._low) * self._draw())
