"""Times and durations as they are typed on a command line."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from spark_replog.config.duration import duration_ms


def parse_time_ms(text: str) -> int:
    """Return epoch milliseconds of an ISO 8601 time (UTC where it names no zone), or of milliseconds.

    Raises:
        click.UsageError: with an example.
    """
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"'{text}' is no time. Give 2026-11-21T08:30:00, or epoch milliseconds.") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration in days, hours, minutes and seconds.

    Raises:
        click.UsageError: with an example.
    """
    found = duration_ms(text)
    if found is None:
        raise click.UsageError(f"'{text}' is no duration. Give PT30M, PT1H30M or P1D.")
    return found
