"""Memory stores for tests: each its own, gone with its last user."""

from __future__ import annotations

from spark_replog.ids import new_id
from spark_replog.storage.memory_store import MemoryStore


def new_memory_store() -> MemoryStore:
    """Return an empty store that shares nothing with any other."""
    return MemoryStore(f"memory://{new_id()}")
