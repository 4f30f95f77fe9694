"""What a fold hands over for a snapshot, and what it knows of the last decided one. Values of two rooms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_replog.errors import RetriableError

SNAPSHOT_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{32}")
"""Name of a snapshot's head: ledger index, 20 digits, and the hash of its bytes."""
PAGE_NAME = re.compile(r"[0-9]{12}-[0-9a-f]{32}")
"""Name of a page: number of the snapshot that its writer's state derived from, and a nonce."""


@dataclass(frozen=True, slots=True)
class DecidedSnapshot:
    """The last SnapshotCommit that a fold applied.

    Attributes:
        no: how many were applied, this one included; 0 before the first.
        index: the state that the snapshot holds is that after this entry.
        name: of its head, "" before the first.
        entry_index: of the entry that held the SnapshotCommit. Every head with a lower index than this was made from a
            state without it, so it is committed already or can never be.
    """

    no: int = 0
    index: int = -1
    name: str = ""
    entry_index: int = -1


class FrozenState(NamedTuple):
    """A state at one index, detached from later changes.

    Attributes:
        applied_index: that index.
        snapshot_no: number of the decided snapshot that it derives from, 0 before the first.
        head: all of it that is not in pages.
        pages: name -> bytes of the pages that no snapshot had before; to be stored before the head.
    """

    applied_index: int
    snapshot_no: int
    head: bytes
    pages: Mapping[str, bytes]


class PageMissingError(RetriableError):
    """REPLOG_SNAPSHOT_MISSING: a page is on no root that answers, as a newer snapshot may have replaced it.

    ``Ledger.ask`` restores the state from the newest snapshot and asks again.
    """
