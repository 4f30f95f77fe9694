"""The four verbs on one root, and what a create can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_replog.errors import CorruptDataError, ErrorCode

Buffer = bytes | bytearray | memoryview


class CreateOutcome(Enum):
    """What is known after a create-if-absent."""

    CREATED = "created"
    """This call's bytes are under the name, durably."""
    EXISTS = "exists"
    """Other bytes hold the name."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Immutable objects under string keys below one root URL. Picklable; holds no open handle.

    A write is atomic in name and content: a reader sees the whole object or none of it.
    Handles are opened lazily per process id, so a forked child never uses its parent's.
    """

    url: str

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """Return the bytes [start, start + size_bytes), or None where the object is absent.

        Shorter than asked where the object ends. Local roots answer large ranges with a
        memoryview over a memory map.

        Raises:
            RetriableError: KAFKA_STORAGE_ERROR or REPLOG_STORE_UNAVAILABLE; nothing is known.
        """
        ...

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """Create the object if the name is free, durably.

        Args:
            key: path below the root, '/'-separated.
            data: the body, or its pieces in order (never joined where the backend can gather).
            make_parent: make the LAST folder level if missing; never a higher one.

        Raises:
            ReplogError: REPLOG_STORE_REFUSED: nothing was written, trying again is pointless.
            OutcomeUnknownError: REPLOG_STORE_OUTCOME_UNKNOWN: may have been written.
        """
        ...

    def make_folder(self, key_prefix: str) -> None:
        """Make a folder and all above it below the root, durably. No-op on object stores."""
        ...

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects whose key starts with the prefix and is above `after`, in key order, never from a cache.

        What is not above costs no look at a file, and no part of an answer of a bucket that can begin there.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object; absent is success.

        A key that ends with a slash names a folder: it goes if it is empty. No-op on object stores.
        """
        ...


def refused_key(key: str, url: str) -> CorruptDataError:
    """Return CORRUPT_MESSAGE for a key that could leave its root: ``ids.KEY`` does not match it."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the key {key[:300]!r} is not valid below a root. The metadata that names it is damaged: run "
        "`replog store verify`.",
        url=url,
    )


def pieces_of(data: Buffer | Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the body's pieces in order."""
    return (data,) if isinstance(data, (bytes, bytearray, memoryview)) else data
