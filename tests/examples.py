"""How many generated cases a test tries: few in the runs that people wait for, more in the tier wide and by flag."""

from __future__ import annotations

from typing import Any

import pytest

factor = 1.0
"""``--examples``, set by the root's ``conftest.py`` before a test is imported."""


def examples(count: int) -> int:
    """Return ``max_examples`` of a property test, given the number in the README's run."""
    return max(1, round(count * factor))


def chunks(count: int, plain_count: int) -> list[Any]:
    """Return the numbers of `count` chunks of cases as parameters; those from `plain_count` on are wide."""
    wide = (pytest.param(number, marks=pytest.mark.wide) for number in range(plain_count, count))
    return [*range(plain_count), *wide]
