"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """Time that stands still until it is moved; a sleep moves it and is noted. Not thread safe.

    Args:
        time_ms: what it shows first, as wall time and as monotonic time.

    Attributes:
        time_ms: what it shows; a test may set it.
        slept_ms: every sleep asked for, in order.
    """

    def __init__(self, time_ms: float = 0) -> None:
        self.time_ms = time_ms
        self.slept_ms: list[float] = []

    def now_ms(self) -> int:
        """Return the time."""
        return int(self.time_ms)

    def monotonic_ms(self) -> int:
        """Return the time."""
        return int(self.time_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        """Note the sleep and move the time."""
        self.slept_ms.append(duration_ms)
        self.time_ms += duration_ms
