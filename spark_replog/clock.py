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
