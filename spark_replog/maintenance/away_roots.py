"""Roots that did not answer while the whole store is looked at: not asked again for every copy that they hold."""

from __future__ import annotations

from spark_replog.clock import Clock
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId

AGAIN_MS = 60_000
"""A hung root costs one time-out of 10 to 20 seconds in so long, however many copies it holds."""
_AWAY = frozenset({ErrorCode.REPLOG_STORE_UNAVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})


class AwayRoots:
    """What the roots failed with of late. Not thread safe; one for each run.

    Args:
        clock: decides when a root is asked again, nothing else.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[BrokerId, tuple[int, ReplogError]] = {}

    def check(self, broker_id: BrokerId) -> None:
        """Raise what the root failed with less than ``AGAIN_MS`` ago, if it did."""
        failed_ms, error = self._failed.get(broker_id, (0, None))
        if error is not None and self._clock.monotonic_ms() - failed_ms < AGAIN_MS:
            raise error

    def note(self, broker_id: BrokerId, error: ReplogError) -> None:
        """Take down a failure, if it says that the root does not answer."""
        if error.code in _AWAY and self._failed.get(broker_id, (0, None))[1] is not error:
            self._failed[broker_id] = (self._clock.monotonic_ms(), error)


__all__ = ["AGAIN_MS", "AwayRoots"]
