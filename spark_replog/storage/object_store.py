"""The operations on one root, and the outcomes of a create."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from spark_replog.errors import CorruptDataError, ErrorCode
from spark_replog.ids import KEY

Buffer = bytes | bytearray | memoryview


class CreateOutcome(Enum):
    """Outcome of a create-if-absent."""

    CREATED = "created"
    """The object has this call's bytes, durably."""
    EXISTS = "exists"
    """The name is taken, by other bytes."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Immutable objects under string keys below one root URL. Picklable; holds no open handle.

    A write is atomic: a reader sees the whole object or none of it.
    Handles are opened lazily per process id, so a forked child never uses its parent's.
    """

    url: str

    def get(self, key: str, *, start: int = 0, size_bytes: int | None = None) -> Buffer | None:
        """Return the bytes [start, start + size_bytes), fewer at the object's end; None if the object is absent.

        Local roots return large ranges as a memoryview over a memory map.

        Raises:
            RetriableError: KAFKA_STORAGE_ERROR, REPLOG_STORE_UNAVAILABLE, REPLOG_STORE_REFUSED or REPLOG_ROOT_STALE;
                nothing is known about the object.
        """
        ...

    def create(self, key: str, data: Buffer | Sequence[Buffer], *, make_parent: bool = False) -> CreateOutcome:
        """Create the object if the name is free, durably.

        Args:
            key: path below the root, '/'-separated.
            data: the body, or its pieces in order (not joined if the backend can gather).
            make_parent: make the LAST folder level if missing; never a higher one.

        Raises:
            ReplogError: REPLOG_STORE_REFUSED: nothing was written, and a retry would fail too.
            OutcomeUnknownError: REPLOG_STORE_OUTCOME_UNKNOWN: the object may have been written.
        """
        ...

    def make_folder(self, key_prefix: str) -> None:
        """Make a folder and all above it below the root, durably. No-op on object stores."""
        ...

    def list_keys(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects whose key starts with the prefix and is above `after`, in key order, never from a cache.

        Lower keys cost no stat of their files; buckets that support it begin the listing after them.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object; success if it is absent.

        A key that ends with a slash names a folder, which is removed if empty. No-op on object stores.
        """
        ...


@runtime_checkable
class InParts(Protocol):
    """A store that may send large bodies in parts."""

    def in_parts(self) -> ObjectStore | None:
        """Return the same root as a store that sends every body in parts; None: the root has none."""
        ...


def check_key(key: str, url: str) -> None:
    """Raise CORRUPT_MESSAGE for a key that could leave its root: ``ids.KEY`` does not match it."""
    if KEY.fullmatch(key) is None:
        raise CorruptDataError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the key {key[:300]!r} is not valid below a root. The metadata that names it is damaged: run "
            "`replog store verify`.",
            url=url,
        )


def folder_at_key(key: str, url: str) -> CorruptDataError:
    """Return CORRUPT_MESSAGE for a folder that has the name of an object: an absent one would end a journal early."""
    return CorruptDataError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{key} must be a file and is a folder. Move the folder away and put the file back; if other roots are whole, "
        "`replog store repair --rebuild BROKER` also helps.",
        url=url,
    )
