"""The only code that reads wall time, and the back-off. They decide when to try; no safety property depends on them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Time for rules that take ``now_ms``."""

    def now_ms(self) -> int:
        """Return wall time, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time that never goes back, for deadlines."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return wall time, milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return a time that never goes back, for deadlines."""
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait."""
        time.sleep(duration_ms / 1000.0)


SYSTEM_CLOCK = SystemClock()


def human_duration(duration_ms: int | None) -> str:
    """Return a duration as ``3 s``, ``11 m 2 s``, ``2 h 5 m`` or ``3 d 4 h``; ``-`` without one."""
    if duration_ms is None:
        return "-"
    parts: list[str] = []
    left = max(0, duration_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


_DOUBLINGS_MAX = 30
SYSTEM_RANDOM = random.SystemRandom()
"""Used instead of the module's own generator, which belongs to the user's program (and its seed)."""


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
