"""The gateways that have left notes in a store, as values. Pure.

Whether one runs is told by wall times here: these pages look once. The gateways themselves trust no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SILENT_INTERVALS = 6
"""A gateway that has missed so many signs is silent: twice what other gateways wait, since clocks differ."""
SHOWN_MS = 3_600_000
"""How long one that is silent is shown."""


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    """A gateway and its last sign.

    Attributes:
        address: HOST:PORT, which clients get.
        interval_ms: between two signs.
        started_ms, last_sign_ms: wall times of its machine.
        counts: what it has done since it started, by name.
    """

    node_id: int
    address: str
    rack: str | None
    interval_ms: int
    started_ms: int
    last_sign_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether it has given no sign for long: it ended without a word, or cannot write to the store."""
        return now_ms - self.last_sign_ms > SILENT_INTERVALS * self.interval_ms
