"""The only reader of wall time. Clocks choose when to try; no safety property depends on one."""

from __future__ import annotations

import time
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
