"""The words for the two ends of a log."""

from __future__ import annotations

import numpy as np
import pytest

from spark_replog.log_position import (
    EARLIEST,
    LATEST,
    OFFSET_MAX,
    BeforeEnd,
    named_end,
    offset_between,
    other_meaning,
    parse_offset,
    parse_position,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((word, EARLIEST) for word in ("earliest", "Beginning", " start ", "smallest", "-2", -2)),
        *((word, LATEST) for word in ("latest", "END", "largest", "-1", -1)),
        *((value, 0) for value in (0, "0", np.int64(0))),
        (str(OFFSET_MAX), OFFSET_MAX),
        *(
            (value, None)
            for value in ("", "newest", "-3", -3, True, False, None, 1.0, "1.0", "9" * 5000, OFFSET_MAX + 1)
        ),
        *((value, None) for value in ("--1", "\u0661", "+1", "1_0", b"1")),
    ],
)
def test_each_form_of_a_position(value, expected):
    position = parse_offset(value)
    assert position == expected and type(position) in (int, type(None))


def test_a_number_is_no_name_of_an_end():
    assert named_end("-1") is None and named_end(-1) is None and named_end("Latest") == LATEST


def test_ends_become_offsets():
    assert [offset_between(position, 3, 9) for position in (EARLIEST, LATEST, 0, 5, 12)] == [3, 9, 0, 5, 12]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((word, BeforeEnd(10)) for word in ("end-10", "Latest-10", " largest-010 ")),
        ("end-0", BeforeEnd(0)),
        *((value, None) for value in ("start-1", "end-", "end--1", "end-1_0", "-end-1", "end+1", "-10")),
        ("end-" + "9" * 5000, None),
        *((value, parse_offset(value)) for value in ("-1", -2, "latest", 7)),
    ],
)
def test_rows_before_the_end_are_a_form_of_their_own(value, expected):
    assert parse_position(value) == expected
    assert value == expected or not isinstance(expected, BeforeEnd) or parse_offset(value) is None


def test_rows_before_the_end_are_within_the_log():
    assert [offset_between(BeforeEnd(row_count), 3, 9) for row_count in (0, 2, 6, 7, 99)] == [9, 7, 3, 3, 3]


def test_what_other_tools_count_from_the_end_has_its_form_named():
    assert [other_meaning(value) for value in ("-10", -3, " -2 ")] == ["end-10", "end-3", "end-2"]
    assert {other_meaning(value) for value in ("10", 3, "-0", 0, "-x", "--1", None, -1.5, "end-1")} == {None}
