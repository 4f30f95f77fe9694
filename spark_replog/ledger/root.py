"""One metadata root of a ledger, as one process sees it: operations, answers, state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_replog.ledger.record import NO_INDEX, JournalRecord


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


@dataclass(slots=True)
class PendingCreate:
    """A create whose answer is not known: pins the root's next position.

    Attributes:
        named: highest position that records elsewhere had named for this root when it was first sent.
    """

    position: int
    record: JournalRecord
    data: bytes
    named: int


class RootState:
    """How one root stands with this process.

    Attributes:
        busy: the operation that is out.
        is_verified: ``replog.json`` was read since the last error.
        is_fresh: read to its end by a read of this goal.
        is_out: it gave a position away again that others know to be taken, or misses one although it is
            itself; never used again by this process.
        is_out_told: the root itself says so, or cannot be told.
        has_missed: it missed a named position when it was read last; once more, and it is out.
        busy_named: highest position named for it elsewhere when `busy` was given out.
        error: why it does not answer, None when it does.
    """

    __slots__ = (
        "busy",
        "busy_goal",
        "busy_named",
        "busy_since_ms",
        "checked_goal",
        "error",
        "failures",
        "has_missed",
        "is_fresh",
        "is_out",
        "is_out_told",
        "is_verified",
        "must_check",
        "must_read",
        "pending",
        "retry_at_ms",
    )

    def __init__(self) -> None:
        self.busy: Operation | None = None
        self.busy_goal = 0
        self.busy_since_ms = 0.0
        self.busy_named = NO_INDEX
        self.checked_goal = 0
        self.error: Exception | None = None
        self.failures = 0
        self.is_fresh = False
        self.is_out = False
        self.is_out_told = False
        self.has_missed = False
        self.is_verified = False
        self.must_check = False
        self.must_read = False
        self.pending: PendingCreate | None = None
        self.retry_at_ms = 0.0

    def answered(self) -> None:
        """Note that the root did what it was asked for."""
        self.error = None
        self.failures = 0

    def is_pending(self, position: int, record: JournalRecord) -> bool:
        """Return whether a create without an answer may be sent again for this, bytes unchanged."""
        pending = self.pending
        if pending is None or pending.position != position:
            return False
        old = pending.record
        return (
            old.kind is record.kind
            and old.epoch == record.epoch
            and old.index == record.index
            and old.commit_index == record.commit_index
            and old.entry_hash == record.entry_hash
        )
