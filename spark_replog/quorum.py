"""How many of the metadata roots, or of a partition's replicas, are a majority: any two majorities share one."""

from __future__ import annotations


def majority_of(count: int) -> int:
    """Return how many of them are more than half."""
    return count // 2 + 1
