"""The other processes that claim a ledger, and how long this one leaves it to them. Liveness only. Pure."""

from __future__ import annotations

from spark_replog.ledger.record import ZERO_EPOCH, Epoch
from spark_replog.ledger.types import LedgerSettings

RIVAL_MS = 2000.0
"""How long after its last claim another process counts as a rival."""
PATIENT_TURNS = 5
"""After a process has yielded this many turns, it waits less with each further one."""
STREAK_MIN = 2
"""After this many own entries in a row, without rivals, an owner appends without reading the journals first."""


class Rivals:
    """Two processes that claim in turn would both pay for it and neither append. So each gives the other some time.

    Attributes:
        operation_ms: how long an operation takes here, on average.
        claimed_ms: incarnation of another process -> when its last claim was read.
        yields: turns that the current goal has yielded.
        streak: own entries in a row, without another process's record between them.
        turns_lost: own claims that another process's claim ended.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.operation_ms = 0.0
        self.yields = self.streak = self.turns_lost = 0
        self._settings = settings
        self.claimed_ms: dict[bytes, float] = {}
        self._newest = ZERO_EPOCH
        self._newest_until_ms = 0.0
        self._claim_at_ms = 0.0

    def may_skip_read(self, now_ms: float, read_ms: float) -> bool:
        """Return whether to append without a read first: this process wrote the last entries, and nobody else claims.

        Args:
            read_ms: when the journals were last read.
        """
        if self.streak < STREAK_MIN:
            return False
        # If another process claimed lately, the next entry may well be its own, unless the read was moments ago.
        is_recent = now_ms - read_ms < 4 * self.operation_ms
        return is_recent or all(now_ms - at_ms >= RIVAL_MS for at_ms in self.claimed_ms.values())

    def is_at_work(self, claimed: Epoch, now_ms: float) -> bool:
        """Return whether another process's claim, which has led to no entry yet, has not timed out.

        The claim of a dead process delays the others by a few operations.
        """
        if claimed == ZERO_EPOCH:
            return False
        if claimed != self._newest:
            self._newest = claimed
            self._newest_until_ms = now_ms + 4 * self._turn_ms(now_ms)
        return now_ms < self._newest_until_ms

    def begin_turn(self, now_ms: float, jitter: float) -> None:
        """Leave the ledger to the others for a turn, times 0.5 to 1.5 by the jitter in 0 .. 1."""
        self._claim_at_ms = now_ms + self._turn_ms(now_ms) * (0.5 + jitter)
        self.yields += 1

    def turn_end_ms(self, claimed: Epoch, now_ms: float) -> float | None:
        """Return until when to wait; None: this process may claim now. `claimed` is as in `is_at_work`."""
        # With one rival, its entry ends the wait. With several, all would claim at that moment.
        if now_ms < self._claim_at_ms and (len(self.claimed_ms) > 1 or self.is_at_work(claimed, now_ms)):
            return self._claim_at_ms
        return None

    def _turn_ms(self, now_ms: float) -> float:
        """Return how long to leave a ledger to the rivals, by their number and by how long an operation takes here.

        It grows with each turn that this goal has yielded, up to one unit per rival. After `PATIENT_TURNS` it shrinks,
        so the process that has waited longest usually goes first.
        """
        self.claimed_ms = {rival: at_ms for rival, at_ms in self.claimed_ms.items() if now_ms - at_ms < RIVAL_MS}
        settings = self._settings
        unit_ms = max(settings.claim_backoff_ms, 2 * self.operation_ms)
        count, over = len(self.claimed_ms), self.yields - PATIENT_TURNS
        turns = min(1 << self.yields, count) if over < 0 else count / (over + 2)
        return min(settings.claim_backoff_max_ms, unit_ms * max(1.0, turns))
