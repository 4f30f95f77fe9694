"""What the core asks of a root, and how the shell (or the simulation) answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Read:
    """Get the records at position, position + 1, ... until one is missing, at most `limit`."""

    root: int
    position: int
    limit: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create the record at a position if nothing lies there."""

    root: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Check:
    """Read ``replog.json`` again; `repair` also makes the journal's folder where it is missing."""

    root: int
    repair: bool


@dataclass(frozen=True, slots=True)
class PutOut:
    """Say on the root itself that its journal misses a position that records elsewhere name."""

    root: int
    position: int


Operation = Read | Create | Check | PutOut


class Status(Enum):
    """What is known of an operation's effect."""

    DONE = "done"
    EXISTS = "exists"
    """Create only: other bytes hold the name."""
    FAILED = "failed"
    """Nothing was written, nothing was learned."""
    UNKNOWN = "unknown"
    """Create only: may have been written, may still be."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one operation.

    Attributes:
        operation: the very object that the core gave out.
        status: what is known.
        records: of a Read: the bytes found, in order.
        ended: of a Read: a position behind them was seen empty.
        error: why it failed.
    """

    operation: Operation
    status: Status
    records: tuple[bytes, ...] = ()
    ended: bool = False
    error: Exception | None = None
