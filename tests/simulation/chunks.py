"""A simulation's schedules in chunks: the first ones run with the plain tests, all others in the tier ``wide``."""

from __future__ import annotations

from typing import Any

import pytest


def chunks(count: int, plain_count: int) -> list[Any]:
    """Return the numbers of `count` chunks as parameters; those from `plain_count` on are wide."""
    wide = (pytest.param(number, marks=pytest.mark.wide) for number in range(plain_count, count))
    return [*range(plain_count), *wide]
