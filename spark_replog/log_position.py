"""The words for the two ends of a log, and the one parser of them.

Every option that takes a position reads it here. Kafka and its tools have several names for each end: all are accepted,
and `earliest` and `latest` are printed. Kafka's numbers are -2 and -1. Times, and `-N` for N rows before the end, are
of the options that have them.
"""

from __future__ import annotations

import operator

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for the log start offset and the high watermark."""
OFFSET_MAX = 2**63 - 1
END_NAMES = {"earliest": EARLIEST, "latest": LATEST}
"""The names that are printed."""
_NAMES = {**END_NAMES, "beginning": EARLIEST, "start": EARLIEST, "smallest": EARLIEST, "end": LATEST, "largest": LATEST}


def named_end(value: object) -> int | None:
    """Return EARLIEST or LATEST for any of their names, in upper or lower case; None for anything else."""
    return _NAMES.get(value.strip().lower()) if isinstance(value, str) else None


def parse_offset(value: object) -> int | None:
    """Return an offset of 0 or more, EARLIEST or LATEST; None if the value is none of them.

    Args:
        value: a whole number, also of numpy, or its text, or a name of an end.
    """
    if isinstance(value, str):
        found = named_end(value)
        if found is not None:
            return found
        text = value.strip()
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < _DIGITS_MAX else None
    try:
        number = EARLIEST - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if EARLIEST <= number <= OFFSET_MAX else None


_DIGITS_MAX = 20
"""More are above OFFSET_MAX; Python refuses to read thousands."""


def offset_between(offset: int, log_start: int, high_watermark: int) -> int:
    """Return the log start offset for EARLIEST, the high watermark for LATEST, and a number as it is."""
    return log_start if offset == EARLIEST else high_watermark if offset == LATEST else offset
