"""Whose turn it is to write a ledger that several processes write: first the one that was served longest ago. Pure.

All see the same journals, so all come to the same order without a message. It decides how long a process waits and
nothing else: the journals stay right whoever claims when.
"""

from __future__ import annotations

import random

from spark_replog.ledger.record import Epoch
from spark_replog.ledger.types import LedgerSettings

RIVAL_MS, RIVAL_OPERATIONS = 2000.0, 100
"""How long after its last claim another process counts as a rival; the latter where operations are slow."""
TURN_OPERATIONS = 2
"""How long a process leaves to each one before it: to see an entry takes one operation, and a claim another."""
PATIENT_TURNS = 3
"""A process that has waited so many turns for each one before it waits for none any more: some may have ended."""
CLAIM_TURNS = 6
"""How many turns may lie between two claims if all write without a pause; processors that are short make it more."""
LOST_TURNS_MAX = 8
"""How many turns at most a process draws to leave to rivals that it does not know."""
AT_WORK_TURNS = 4
"""How many turns of each rival a claim that leads to no entry holds up the others: its process may be dead."""


class Turns:
    """What one process knows of the others that write.

    Args:
        incarnation: of this process.
        rng: draws how long to leave to rivals that no journal shows.
    """

    def __init__(self, settings: LedgerSettings, incarnation: bytes, rng: random.Random) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._rng = rng
        self._claims_ms: dict[bytes, float] = {}
        self._entries: dict[bytes, int] = {}
        self._entry_ms = 0.0
        self._at_work: tuple[Epoch, float] | None = None
        self._yields = self._lost = 0
        self._extra_turns = 0.0
        self._is_crowded = False
        self._patient_until_ms: float | None = None

    def begin(self) -> None:
        """Begin another write. After one that had to wait, this one lets those before it go first."""
        self._is_crowded = self._yields > 0
        self._yields = self._lost = 0
        self._extra_turns = 0.0
        self._patient_until_ms = None

    def on_claim(self, incarnation: bytes, now_ms: float) -> None:
        """Learn of another process's claim."""
        self._claims_ms[incarnation] = now_ms

    def on_entry(self, incarnation: bytes, index: int, now_ms: float) -> None:
        """Learn of an entry, this process's own too; it need not be decided."""
        if index > self._entries.get(incarnation, -1):
            self._entries[incarnation] = index
            self._entry_ms = now_ms

    def on_lost(self) -> None:
        """Learn that another process's claim ended this one's.

        Where many begin at once, few of their claims get into a journal: more wait than a process knows of.
        """
        if self._incarnation not in self._entries:
            self._lost += 1
            self._extra_turns = self._rng.random() * min(LOST_TURNS_MAX, 1 << self._lost)

    def is_alone(self, now_ms: float, operation_ms: float) -> bool:
        """Return whether no other process claimed lately."""
        return not self._rivals(now_ms, operation_ms)

    def wait_ms(self, now_ms: float, operation_ms: float) -> float:
        """Return how long to leave the ledger to a rival that claimed it: who is next looks after each operation."""
        self._yields += 1
        left_ms = self._before_ms(now_ms, operation_ms) - operation_ms  # its claim took one of its turn
        return max(1.0, operation_ms, self._bounded(left_ms))

    def due_ms(self, rival: Epoch | None, now_ms: float, operation_ms: float) -> float:
        """Return when to look again; the time now: claim.

        Args:
            rival: the newest claim, if it is another process's and has led to no entry.
        """
        if rival is not None and self._is_at_work(rival, now_ms, operation_ms):
            return now_ms + self.wait_ms(now_ms, operation_ms)
        if not (self._yields or self._is_crowded):
            return now_ms
        before_ms = self._before_ms(now_ms, operation_ms)
        if self._patient_until_ms is None:
            self._patient_until_ms = now_ms + PATIENT_TURNS * before_ms
        rest_ms = min(self._entry_ms + before_ms, self._patient_until_ms) - now_ms
        if rest_ms <= 0:
            return now_ms
        self._yields += 1
        return now_ms + self._bounded(rest_ms)

    def _is_at_work(self, rival: Epoch, now_ms: float, operation_ms: float) -> bool:
        """Return whether the process of a claim that has led to no entry is likely to be alive.

        Two processes that claim in turn would both pay for it and neither append.
        """
        if self._at_work is None or self._at_work[0] != rival:
            rivals = max(1, len(self._rivals(now_ms, operation_ms)))
            self._at_work = rival, now_ms + AT_WORK_TURNS * self._bounded(rivals * self._turn_ms(operation_ms))
        return now_ms < self._at_work[1]

    def _before_ms(self, now_ms: float, operation_ms: float) -> float:
        """Return how long to leave to those before this process: who probably waits, and wrote longer ago or never.

        Of some that write without a pause, the one that claimed as the n-th last did so within n turns.
        """
        turn_ms = self._turn_ms(operation_ms)
        latest = sorted((now_ms - at_ms, each) for each, at_ms in self._rivals(now_ms, operation_ms).items())
        in_turn = [n for n, (age_ms, _) in enumerate(latest, 1) if age_ms <= n * CLAIM_TURNS * turn_ms]
        own = self._entries.get(self._incarnation, -1), self._incarnation
        rank = sum((self._entries.get(each, -1), each) < own for _, each in latest[: max(in_turn, default=0)])
        return (rank + self._extra_turns) * turn_ms

    def _rivals(self, now_ms: float, operation_ms: float) -> dict[bytes, float]:
        since_ms = now_ms - max(RIVAL_MS, RIVAL_OPERATIONS * operation_ms)
        if any(at_ms <= since_ms for at_ms in self._claims_ms.values()):
            self._claims_ms = {each: at_ms for each, at_ms in self._claims_ms.items() if at_ms > since_ms}
            kept = {*self._claims_ms, self._incarnation}
            self._entries = {each: index for each, index in self._entries.items() if each in kept}
        return self._claims_ms

    def _turn_ms(self, operation_ms: float) -> float:
        return max(self._settings.claim_backoff_ms, TURN_OPERATIONS * operation_ms)

    def _bounded(self, wait_ms: float) -> float:
        return min(self._settings.claim_backoff_max_ms, wait_ms)
