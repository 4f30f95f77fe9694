"""Objects in a dict of this process: ``memory://name``. For tests and experiments."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from spark_replog.process_state import in_each_child
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectInfo, check_key

_lock = threading.Lock()
_objects_by_root: dict[str, dict[str, bytes]] = {}


@in_each_child
def _renew_lock() -> None:
    # A fork may copy the lock while another thread holds it.
    global _lock
    _lock = threading.Lock()


class MemoryStore:
    """An ObjectStore over a dict that all stores with the same URL share, in this process only.

    Args:
        url: ``memory://name``; pickles by this URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else f"memory://{url}"

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """As ``ObjectStore.get``."""
        check_key(key, self.url)
        body = self._objects().get(key)
        if body is None:
            return None
        return body[start:] if size_bytes is None else body[start : start + size_bytes]

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """As ``ObjectStore.create``; folders do not exist here."""
        check_key(key, self.url)
        body = b"".join((data,) if isinstance(data, Buffer) else data)
        with _lock:
            objects = _objects_by_root.setdefault(self.url, {})
            if key in objects:
                return CreateOutcome.EXISTS
            objects[key] = body
            return CreateOutcome.CREATED

    def make_folder(self, key_prefix: str) -> None:
        """Do nothing: folders do not exist here."""

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """As ``ObjectStore.list_keys``."""
        with _lock:
            objects = self._objects().items()
            listing = sorted((key, len(body)) for key, body in objects if key.startswith(prefix) and key > after)
        return (ObjectInfo(key, size_bytes) for key, size_bytes in listing)

    def delete(self, key: str) -> None:
        """As ``ObjectStore.delete``."""
        with _lock:
            self._objects().pop(key, None)

    def _objects(self) -> dict[str, bytes]:
        return _objects_by_root.get(self.url, {})
