"""How many generated cases a property test tries: few in the runs that people wait for, more by ``--examples``."""

from __future__ import annotations

factor = 1.0
"""Set by the root's ``conftest.py`` before a test is imported."""


def examples(count: int) -> int:
    """Return ``max_examples`` of a test, given the number in the README's run."""
    return max(1, round(count * factor))
