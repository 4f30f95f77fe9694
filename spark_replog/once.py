"""Log this once: remembers what was reported, so that a repeated condition makes one line."""

from __future__ import annotations

import threading
from collections.abc import Hashable

REMEMBERED_MAX = 10_000


class Once:
    """Answers True the first time it is asked about a key. Thread-safe.

    Args:
        remembered_max: this many keys are remembered; then all are forgotten, so that a long-lived process that
            meets ever new keys reports some of them again instead of growing.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._seen: set[Hashable] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Once], tuple[int]]:
        """Return how to make one that remembers nothing: Spark pickles readers, and locks do not travel."""
        return type(self), (self._remembered_max,)

    def is_first(self, key: Hashable = None) -> bool:
        """Return whether nobody asked about the key since it was forgotten; remember it."""
        with self._lock:
            if key in self._seen:
                return False
            if len(self._seen) >= self._remembered_max:
                self._seen.clear()
            self._seen.add(key)
            return True

    def forget(self) -> None:
        """Forget every key: the conditions are over, so the next occurrence is reported again."""
        with self._lock:
            self._seen.clear()
