"""How one root stands with one process. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.ledger.operations import Operation
from spark_replog.ledger.record import NO_INDEX, JournalRecord


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
