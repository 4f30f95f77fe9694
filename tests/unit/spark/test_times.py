"""Points in time and durations that users give as text."""

from __future__ import annotations

import pytest

from spark_replog.spark.source.positions import parse_duration_ms, parse_time

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1700000000000, 1700000000000),
        (" 1700000000000 ", 1700000000000),
        (0, 0),
        ("-1", -1),
        (2**63 - 1, 2**63 - 1),
        (str(2**63 - 1), 2**63 - 1),
        ("-1 week 2 s", NOW_MS - 604_802_000),
        ("2024-05-06T07:08:09.1239Z", 1714979289123),
        ("2024-05-06T07:08:09", 1714979289000),
        ("2024-05-06T09:08:09+02:00", 1714979289000),
        ("2024-05-06 07:08", 1714979280000),
        ("2024-05-06", 1714953600000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("-10 minutes", NOW_MS - 600_000),
        ("-10min", NOW_MS - 600_000),
        ("- 1 Hour 30 minutes", NOW_MS - 5_400_000),
        ("-2 days", NOW_MS - 172_800_000),
        ("-250 ms", NOW_MS - 250),
    ],
)
def test_time(value, expected):
    assert parse_time(value).at(NOW_MS) == expected


@pytest.mark.parametrize(
    "value", ["", "tomorrow", "10 minutes", "-10 parsecs", "-minutes", "2024-13-01", 1.5, True, None, 2**63, str(2**63)]
)
def test_no_time(value):
    assert parse_time(value) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15m", 900_000), ("500", 500), ("90s", 90_000), ("2 min", 120_000), ("1h 30m", 5_400_000), ("100ms", 100),
     ("1D", 86_400_000), ("2500us", 2), ("0", 0), ("9" * 18, 10**18 - 1), ("1 week", 604_800_000)],
)  # fmt: skip
def test_duration(text, expected):
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-5m", "5 lightyears", "1.5h", "5m!", "9" * 19])
def test_no_duration(text):
    assert parse_duration_ms(text) is None
