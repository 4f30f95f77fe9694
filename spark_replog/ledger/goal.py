"""What a ledger's core is asked to do, the steps of it, and how long it waits. Pure.

A process asks its core for one goal at a time: read the newest decided prefix, append a value, or give roots what they
lack. `Goal` says which, and never changes. `Phase` is the step that it has reached, `Progress` all else that ends with
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_replog.ledger.types import LedgerSettings

REREAD_MS = 5.0
"""The first pause before a tail that may be decided is read again; shorter if operations are faster."""
REREAD_MS_MAX = 50.0


class GoalKind(Enum):
    """What a goal is for."""

    READ = "read"
    """Fold the newest decided prefix."""
    STALE_READ = "stale read"
    """The same with fewer calls; it may miss what was decided lately (``read_plan``)."""
    APPEND = "append"
    """Append own entries: READY comes before each value."""
    BACKFILL = "backfill"
    """Give roots the entries that they lack, and append none: in READY call `LedgerCore.level`."""

    __hash__ = object.__hash__  # Enum's own is a Python function


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: `number` counts those of the process, `start_ms` is when it began."""

    kind: GoalKind
    number: int
    start_ms: float

    @property
    def is_write(self) -> bool:
        """Return whether it puts records on roots."""
        return self.kind is GoalKind.APPEND or self.kind is GoalKind.BACKFILL


class Phase(Enum):
    """The step that a goal has reached; `TRANSITIONS` lists the steps that may follow."""

    IDLE = "idle"
    SYNC = "sync"
    """Reading until a majority's journals are known to their ends."""
    YIELD = "yield"
    """Another process claimed and has not appended yet: it gets time to finish, then SYNC."""
    CLAIM = "claim"
    READY = "ready"
    """The fold is up to date: the caller calls `propose` or `finish`."""
    LEAD = "lead"
    """A value is in flight."""
    GRACE = "grace"
    """The value is decided; the remaining roots get `grace_ms`."""
    DONE = "done"

    __hash__ = object.__hash__  # Enum's own is a Python function


TRANSITIONS: dict[Phase, set[Phase]] = {
    Phase.IDLE: {Phase.SYNC, Phase.READY, Phase.LEAD},
    Phase.SYNC: {Phase.SYNC, Phase.CLAIM, Phase.READY, Phase.DONE},
    Phase.YIELD: {Phase.SYNC},
    Phase.CLAIM: {Phase.YIELD, Phase.LEAD, Phase.READY, Phase.DONE},
    Phase.READY: {Phase.CLAIM, Phase.LEAD},
    Phase.LEAD: {Phase.YIELD, Phase.READY, Phase.GRACE, Phase.DONE},
    Phase.GRACE: {Phase.DONE},
    Phase.DONE: {Phase.SYNC, Phase.READY, Phase.LEAD},
}
"""`finish` leads to IDLE from everywhere."""
AT_REST = frozenset({Phase.IDLE, Phase.YIELD, Phase.READY, Phase.DONE})
"""No operation begins."""


@dataclass(slots=True)
class Progress:
    """How far a goal is, and until when it waits for roots. Other writers: ``rivals``.

    Attributes:
        sync_start_ms: when it last began to read the journals.
        reread_ms: pause before a tail is read again; reread_at_ms: when that is due.
        majority_at_ms: when a majority had answered in this phase.
        wake_at_ms: when it can go on even if no operation ends; None: not before.
        is_tail_unclear: it ended with a tail that may or may not be decided.
        is_claim_refused: because too many roots refused the claim that would have decided it.
        has_rewound: it has read the journals from their beginnings again.
    """

    sync_start_ms: float
    reread_ms: float
    reread_at_ms: float | None = None
    majority_at_ms: float | None = None
    wake_at_ms: float | None = None
    is_tail_unclear: bool = False
    is_claim_refused: bool = False
    has_rewound: bool = False

    def wake(self, at_ms: float) -> None:
        """Let the goal go on at this time, if not earlier."""
        if self.wake_at_ms is None or at_ms < self.wake_at_ms:
            self.wake_at_ms = at_ms

    def grace_end_ms(self, now_ms: float, settings: LedgerSettings, *, is_read: bool) -> float:
        """Return until when roots may follow the majority, which has answered now or earlier in this phase.

        Those that are read get as long as the majority took, up to a tenth of the timeout: without them ``replog.json``
        is read again, which is one more round of gets, when everything is slow.
        """
        if self.majority_at_ms is None:
            self.majority_at_ms = now_ms
        took_ms = self.majority_at_ms - self.sync_start_ms if is_read else 0.0
        return self.majority_at_ms + max(settings.grace_ms, min(took_ms, settings.quorum_timeout_ms / 10))

    def is_reread_due(self, now_ms: float) -> bool:
        """Return whether to read a tail again now; the pauses grow."""
        if self.reread_at_ms is None:
            self.reread_at_ms = now_ms + self.reread_ms
            self.reread_ms = min(self.reread_ms * 2, REREAD_MS_MAX)
        if now_ms < self.reread_at_ms:
            self.wake(self.reread_at_ms)
            return False
        self.reread_at_ms = None
        return True
