"""What a sender learned about its roots: who is gone, who must be checked, who is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId

AWAY_MS = 10_000
"""After this a root that was left out is tried again, once nothing that was sent to it is unanswered."""
NEEDED_AWAY_MS = 1_000
"""The same for a root without which there are too few."""


class RootHealth:
    """One owner; not thread-safe.

    A root is *out* when it is known to be gone or replaced, a *suspect* when it gave an error, so that
    it must be checked before a put on it counts, and a *laggard* when it missed a copy that the others
    took. A laggard that hangs gets nothing more: each put would keep its bytes alive, uncounted.
    """

    def __init__(self) -> None:
        self._out: dict[BrokerId, ReplogError] = {}
        self._out_since_ms: dict[BrokerId, int] = {}
        self._suspects: set[BrokerId] = set()
        self._missed_since_ms: dict[BrokerId, int] = {}
        self._unanswered: dict[BrokerId, int] = {}
        self._told: set[BrokerId] = set()

    @property
    def out(self) -> Mapping[BrokerId, ReplogError]:
        """Return the roots that are gone, and how that was found."""
        return self._out

    def is_suspect(self, broker_id: BrokerId) -> bool:
        """Return whether the root must be checked before a put on it counts."""
        return broker_id in self._suspects

    def is_laggard(self, broker_id: BrokerId) -> bool:
        """Return whether the root missed a copy and took none since."""
        return broker_id in self._missed_since_ms

    def able(self, brokers: Sequence[BrokerId], now_ms: int, away_ms: int = AWAY_MS) -> list[BrokerId]:
        """Return the roots that are not known to be gone; after a while they are asked again."""
        for broker_id in brokers:
            if broker_id in self._out and self._is_worth_a_try(
                broker_id, self._out_since_ms[broker_id], now_ms, away_ms
            ):
                del self._out[broker_id]
        return [broker_id for broker_id in brokers if broker_id not in self._out]

    def quick(self, brokers: Sequence[BrokerId], now_ms: int) -> list[BrokerId]:
        """Return those that are no laggards; after a while they are tried again."""
        return [
            broker_id
            for broker_id in brokers
            if broker_id not in self._missed_since_ms
            or self._is_worth_a_try(broker_id, self._missed_since_ms[broker_id], now_ms)
        ]

    def on_sent(self, broker_id: BrokerId) -> None:
        """Count a put on its way."""
        self._unanswered[broker_id] = self._unanswered.get(broker_id, 0) + 1

    def on_answered(self, broker_id: BrokerId) -> None:
        """Count the answer, whatever it says."""
        self._unanswered[broker_id] -= 1

    def on_error(self, broker_id: BrokerId, error: ReplogError, now_ms: int) -> None:
        """Learn from a put that failed."""
        self._suspects.add(broker_id)
        if error.code is ErrorCode.REPLOG_ROOT_STALE:
            self._out[broker_id] = error
            self._out_since_ms[broker_id] = now_ms

    def on_silence(self, broker_id: BrokerId) -> None:
        """Learn from a put without an answer."""
        self._suspects.add(broker_id)

    def on_checked(self, broker_id: BrokerId) -> None:
        """The root was found to be the right one."""
        self._suspects.discard(broker_id)

    def on_held(self, broker_id: BrokerId) -> None:
        """The root took an object."""
        self._missed_since_ms.pop(broker_id, None)

    def on_missed(self, broker_id: BrokerId, now_ms: int) -> None:
        """The root did not take a copy in time."""
        self._missed_since_ms[broker_id] = now_ms

    def is_first_report(self, broker_id: BrokerId) -> bool:
        """Return whether nothing was reported about the root yet; it is from now on."""
        if broker_id in self._told:
            return False
        self._told.add(broker_id)
        return True

    def _is_worth_a_try(self, broker_id: BrokerId, since_ms: int, now_ms: int, away_ms: int = AWAY_MS) -> bool:
        return now_ms - since_ms >= away_ms and not self._unanswered.get(broker_id)


__all__ = ["AWAY_MS", "NEEDED_AWAY_MS", "RootHealth"]
