"""Values that the rooms ledger and log share: a state frozen for a snapshot, and the last decided snapshot."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spark_replog.errors import ErrorCode, ReplogError, RetriableError

SNAPSHOT_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{32}")
"""Name of a snapshot's head: ledger index, 20 digits, and the hash of its bytes."""
PAGE_NAME = re.compile(r"[0-9]{12}-[0-9a-f]{32}")
"""Name of a page: number of the snapshot from which its writer's state derives, and the hash of its bytes."""
_HASH_BYTES = 16


def hash_of(data: bytes | bytearray | memoryview) -> str:
    """Return the last part of the name of a head or page with these bytes, which hold the ledger's id."""
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()


def is_named(name: str, data: bytes | bytearray | memoryview) -> bool:
    """Return whether bytes are those of the head or page with this name: the check of every reader, repair and scrub.

    Decided entries name a head, heads name directories and pages, and directories name pages. So nothing that one root
    alone has, and no file that was emptied, cut off, changed or swapped, is taken for a part of a snapshot.
    """
    return name[-2 * _HASH_BYTES :] == hash_of(data)


def snapshot_too_large(why: str, ledger_id: str | None = None) -> ReplogError:
    """Return the error of a snapshot that is above a limit of its readers, so that it must not be written."""
    return ReplogError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"the snapshot is too large: {why}. The last one stays, and journals grow. Create further topics in other "
        "ledgers, and delete topics and groups that are not needed.",
        ledger_id=ledger_id,
    )


@dataclass(frozen=True, slots=True)
class DecidedSnapshot:
    """The last SnapshotCommit that a fold applied.

    Attributes:
        no: number of SnapshotCommits applied, including this one; 0 before the first.
        index: of the entry after which the snapshot has the state.
        name: of its head, "" before the first.
        entry_index: of the entry with the SnapshotCommit. Every head with a lower index was made from a state without
            it, so it is either committed already or can never be.
    """

    no: int = 0
    index: int = -1
    name: str = ""
    entry_index: int = -1


class FrozenState(Protocol):
    """A state at one index, detached from later changes. Head and pages may be computed on demand.

    Attributes:
        applied_index: that index.
        snapshot_no: number of the decided snapshot that it derives from, 0 before the first.
        head: the state without its pages.
        pages: name -> bytes of the pages that no snapshot has yet; store them before the head.
    """

    @property
    def applied_index(self) -> int:
        """Return the index."""
        ...

    @property
    def snapshot_no(self) -> int:
        """Return the number of the snapshot that it derives from."""
        ...

    @property
    def head(self) -> bytes:
        """Return the head's bytes."""
        ...

    @property
    def pages(self) -> Mapping[str, bytes]:
        """Return the new pages."""
        ...


class FrozenHead(NamedTuple):
    """A FrozenState with plain values."""

    applied_index: int
    snapshot_no: int
    head: bytes
    pages: Mapping[str, bytes]


class PageMissingError(RetriableError):
    """REPLOG_SNAPSHOT_MISSING: no answering root has a page; a newer snapshot may have replaced it.

    ``Ledger.ask`` restores the state from the newest snapshot and tries again.
    """
