"""The steps of one goal of a ledger's core. Pure."""

from __future__ import annotations

from enum import Enum


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
