"""What belongs to one process, and what a forked child makes again: the only place that registers for a fork.

A child must not use its parent's connections, threads, ledgers and counts, and may have inherited a lock while another
thread held it. It runs what was registered here before anything else, in the order of the registrations. Then it
empties the containers of `per_process`, which are only caches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar


class Clearable(Protocol):
    """A dict, set or list."""

    def clear(self) -> None:
        """Drop all that it holds."""


Call = TypeVar("Call", bound=Callable[[], object])
Container = TypeVar("Container", bound=Clearable)
CONTAINERS: list[Clearable] = []
_renewals: list[Callable[[], object]] = []


def in_each_child(renew: Call) -> Call:
    """Call a function in each forked child, before anything else runs there."""
    _renewals.append(renew)
    return renew


def per_process(container: Container) -> Container:
    """Return the container, which is empty at the beginning of each forked child."""
    CONTAINERS.append(container)
    return container


def _start_child() -> None:
    for renew in _renewals:
        renew()
    for container in CONTAINERS:  # last: a renewal may keep for ever what a child must not close
        container.clear()


os.register_at_fork(after_in_child=_start_child)
