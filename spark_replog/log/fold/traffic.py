"""How much was appended to a topic lately, by the time of entries: by minutes, and by hours of the last day. Pure.

A few integers, whatever the topic's age.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS = 60_000
MINUTES_KEPT = 16
"""Fifteen full minutes and the one that runs."""
DAY_MINUTES = 24 * 60


class Traffic(NamedTuple):
    """A value; the fold replaces it with each append.

    Attributes:
        last_append_ms: time of the newest append, 0 before the first.
        minutes: (minute since 1970, rows, bytes), ascending, empty ones left out. Of the newest MINUTES_KEPT each
            stands for itself; older ones are summed under the first minute of their hour, for a day.
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
        old: dict[int, tuple[int, int]] = {}
        new = []
        for at, rows, sizes in kept:
            if at > minute - MINUTES_KEPT:
                new.append((at, rows, sizes))
            elif at > minute - DAY_MINUTES - 60:
                before = old.get(at // 60 * 60, (0, 0))
                old[at // 60 * 60] = (before[0] + rows, before[1] + sizes)
        hours = ((hour, rows, sizes) for hour, (rows, sizes) in old.items())
        return Traffic(append_ms, (*hours, *new, (minute, row_count, size_bytes)))

    def bytes_by(self, step_minutes: int, count: int, now_ms: int) -> list[int]:
        """Return the bytes of the last steps, oldest first; the last one is the step that runs.

        Args:
            step_minutes: 1, for at most 15 steps, or 60, for at most 24.
        """
        now_step = max(now_ms, self.last_append_ms) // MINUTE_MS // step_minutes
        found = [0] * count
        for minute, _, size_bytes in self.minutes:
            if 0 <= (at := count - 1 - (now_step - minute // step_minutes)) < count:
                found[at] += size_bytes
        return found

    def day(self, now_ms: int) -> tuple[int, int]:
        """Return (rows, bytes) of the last 24 hours; the hour at whose end they begin counts whole."""
        first = (max(now_ms, self.last_append_ms) // MINUTE_MS - DAY_MINUTES) // 60 * 60
        kept = [each for each in self.minutes if each[0] >= first]
        return sum(rows for _, rows, _ in kept), sum(size_bytes for _, _, size_bytes in kept)

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
