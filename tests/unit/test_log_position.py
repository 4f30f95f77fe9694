"""The words for the two ends of a log."""

from __future__ import annotations

import numpy as np
import pytest

from spark_replog.log_position import EARLIEST, LATEST, OFFSET_MAX, named_end, offset_between, parse_offset


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
    found = parse_offset(value)
    assert found == expected and type(found) in (int, type(None))


def test_a_number_is_no_name_of_an_end():
    assert named_end("-1") is None and named_end(-1) is None and named_end("Latest") == LATEST


def test_ends_become_offsets():
    assert [offset_between(each, 3, 9) for each in (EARLIEST, LATEST, 0, 5, 12)] == [3, 9, 0, 5, 12]
