"""Durations as Kafka writes them: ISO 8601 in days, hours, minutes and seconds (Java's ``Duration``)."""

from __future__ import annotations

import re

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of a duration as ``PT1H30M`` or ``P1DT0.5S``; None: it is none, or negative."""
    match = _DURATION.fullmatch(text.strip())
    parts = {} if match is None else {name: value for name, value in match.groupdict().items() if value}
    if not parts:
        return None
    return sum(int(float(value) * _MS[name]) for name, value in parts.items())


__all__ = ["duration_ms"]
