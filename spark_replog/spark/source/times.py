"""Points in time as a user writes them: epoch milliseconds, an ISO time, or how long ago."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

TIME_MS_MAX = 2**63 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_AGO = re.compile(r"-\s*((?:[0-9]{1,9}\s*[a-z]+\s*)+)")
_PART = re.compile(r"([0-9]+)\s*([a-z]+)")
_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PointInTime:
    """A time that is fixed, or fixed when the read begins.

    Attributes:
        epoch_ms: milliseconds since 1970 in UTC, or None.
        ago_ms: how long before the read begins, where ``epoch_ms`` is None.
    """

    epoch_ms: int | None
    ago_ms: int = 0

    def at(self, now_ms: int) -> int:
        """Return epoch milliseconds for a read that begins at ``now_ms``."""
        return now_ms - self.ago_ms if self.epoch_ms is None else self.epoch_ms


def parse_time(value: object) -> PointInTime | None:
    """Return the time, None where the value is none.

    Args:
        value: a whole number or its text (epoch milliseconds), ``2024-05-06T07:08:09Z`` (ISO 8601; UTC
            where no zone is given; floored to the millisecond), or ``-10 minutes``.
    """
    if type(value) is int:
        return PointInTime(value) if abs(value) <= TIME_MS_MAX else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return PointInTime(int(text)) if abs(int(text)) <= TIME_MS_MAX else None
    ago = _AGO.fullmatch(text.lower())
    if ago is not None:
        duration_ms = _duration_ms(ago[1])
        return None if duration_ms is None else PointInTime(None, duration_ms)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - _EPOCH
    return PointInTime((since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)


def parse_duration_ms(text: str) -> int | None:
    """Return milliseconds of ``15m``, ``90 s``, ``1 hour 30 minutes``; bare digits are milliseconds.

    Source: Spark's ``JavaUtils.timeStringAs``, which ``maxTriggerDelay`` is read with. None where the text
    is no duration.
    """
    plain = text.strip().lower()
    if plain.isascii() and plain.isdecimal():
        return int(plain) if len(plain) <= 18 else None
    return _duration_ms(plain)


def _duration_ms(text: str) -> int | None:
    if not re.fullmatch(r"(?:[0-9]{1,9}\s*[a-z]+\s*)+", text):
        return None
    total_us = 0
    for number, unit in _PART.findall(text):
        if unit == "us":
            total_us += int(number)
        elif unit in _UNITS_MS:
            total_us += int(number) * _UNITS_MS[unit] * 1000
        else:
            return None
    return total_us // 1000


__all__ = ["PointInTime", "parse_duration_ms", "parse_time"]
