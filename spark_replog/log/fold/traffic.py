"""How much was appended to a topic lately, by the time of entries; a few integers, whatever the topic's age. Pure."""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS = 60_000
MINUTES_KEPT = 16
"""Fifteen full minutes and the one that runs."""


class Traffic(NamedTuple):
    """A value; the fold replaces it with each append.

    Attributes:
        last_append_ms: time of the newest append, 0 before the first.
        minutes: (minute since 1970, rows, bytes), ascending; at most MINUTES_KEPT, empty ones left out.
    """

    last_append_ms: int = 0
    minutes: tuple[tuple[int, int, int], ...] = ()

    def plus(self, append_ms: int, row_count: int, size_bytes: int) -> Traffic:
        """Return it with one more append; `append_ms` is not below the last one's."""
        minute = append_ms // MINUTE_MS
        kept = self.minutes
        if kept and kept[-1][0] == minute:
            row_count, size_bytes = kept[-1][1] + row_count, kept[-1][2] + size_bytes
            return Traffic(append_ms, (*kept[:-1], (minute, row_count, size_bytes)))
        first = minute - MINUTES_KEPT
        return Traffic(append_ms, (*(each for each in kept if each[0] > first), (minute, row_count, size_bytes)))

    def rates(self, window_minutes: int, now_ms: int) -> tuple[float, float]:
        """Return (rows, bytes) per second over the last 1 to 15 minutes; rows spread evenly within their minute.

        A clock behind the entries' counts as theirs.
        """
        now_ms = max(now_ms, self.last_append_ms)
        minute, into_ms = divmod(now_ms, MINUTE_MS)
        part = 1.0 - into_ms / MINUTE_MS  # of the oldest minute that is still in the window
        rows = size_bytes = 0.0
        for at, row_count, byte_count in self.minutes:
            share = 1.0 if at > minute - window_minutes else part if at == minute - window_minutes else 0.0
            rows += row_count * share
            size_bytes += byte_count * share
        return rows / (window_minutes * 60), size_bytes / (window_minutes * 60)


NO_TRAFFIC = Traffic()
