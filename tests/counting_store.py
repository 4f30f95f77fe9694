"""A store that counts its calls, so that a test can pin what an operation costs on storage."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo, ObjectStore


class CountingStore:
    """Passes every call on and counts it.

    Attributes:
        counts: calls by verb: ``get``, ``create``, ``list_keys``, ``delete``, ``make_folder``.
        calls: (verb, key or prefix) in order of arrival.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.url = store.url
        self.counts: Counter[str] = Counter()
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return CountingStore, (self.store,)

    def reset(self) -> None:
        """Start counting from zero."""
        with self._lock:
            self.counts.clear()
            self.calls.clear()

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``."""
        self._count("get", key)
        return self.store.get(key, start=start, size_bytes=size_bytes)

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """As ``ObjectStore.create``."""
        self._count("create", key)
        return self.store.create(key, data, make_parent=make_parent)

    def make_folder(self, key_prefix: str) -> None:
        """As ``ObjectStore.make_folder``."""
        self._count("make_folder", key_prefix)
        self.store.make_folder(key_prefix)

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``."""
        self._count("list_keys", prefix)
        return self.store.list_keys(prefix, after=after)

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``."""
        self._count("delete", key)
        self.store.delete(key)

    def _count(self, verb: str, key: str) -> None:
        with self._lock:
            self.counts[verb] += 1
            self.calls.append((verb, key))


__all__ = ["CountingStore"]
