"""The words and numbers for a position in a log, and the one parser of them.

Every option that takes a position reads it here. Kafka and its tools have several names for each end: all are accepted,
and `earliest` and `latest` are printed. -2 and -1 are Kafka's numbers for them, wherever a position is typed; so N rows
before the end are `end-N`, and other numbers below 0 are no position. Times are of the options that have them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for the log start offset and the high watermark."""
OFFSET_MAX = 2**63 - 1
END_NAMES = {"earliest": EARLIEST, "latest": LATEST}
"""The names that are printed."""
_NAMES = {**END_NAMES, "beginning": EARLIEST, "start": EARLIEST, "smallest": EARLIEST, "end": LATEST, "largest": LATEST}


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """A number of rows before the high watermark."""

    count: int


def named_end(value: object) -> int | None:
    """Return EARLIEST or LATEST for any of their names, in upper or lower case; None for anything else."""
    return _NAMES.get(value.strip().lower()) if isinstance(value, str) else None


def parse_offset(value: object) -> int | None:
    """Return an offset of 0 or more, EARLIEST or LATEST; None if the value is none of them.

    Args:
        value: a whole number, also of numpy, or its text, or a name of an end.
    """
    if isinstance(value, str):
        end = named_end(value)
        if end is not None:
            return end
        text = value.strip()
        digits = text.removeprefix("-")
        value = int(text) if _is_number(digits) else None
    try:
        number = EARLIEST - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if EARLIEST <= number <= OFFSET_MAX else None


def parse_position(value: object) -> int | BeforeEnd | None:
    """Return what `parse_offset` returns, or how many rows before the end ``end-N`` is."""
    if isinstance(value, str):
        word, _, digits = value.strip().rpartition("-")
        if named_end(word) == LATEST and _is_number(digits):
            return BeforeEnd(int(digits))
    return parse_offset(value)


def other_meaning(value: object) -> str | None:
    """Return ``end-N`` for ``-N``, which kcat, and Python's lists, count from the end; None for anything else."""
    digits = str(value).strip().removeprefix("-")
    is_negative = isinstance(value, str | int) and str(value).strip().startswith("-")
    return f"end-{int(digits)}" if is_negative and _is_number(digits) and int(digits) else None


_DIGITS_MAX = 20
"""More are above OFFSET_MAX; Python refuses to read thousands."""


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and len(digits) < _DIGITS_MAX


def offset_between(position: int | BeforeEnd, log_start: int, high_watermark: int) -> int:
    """Return the log start offset for EARLIEST, the high watermark for LATEST, and a number as it is.

    Rows before the end that are no longer there are not counted.
    """
    if isinstance(position, BeforeEnd):
        return max(log_start, high_watermark - position.count)
    return log_start if position == EARLIEST else high_watermark if position == LATEST else position
