"""The values that go into a ledger and come out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from operator import sub
from typing import Any, Protocol, runtime_checkable

from spark_replog.snapshot import DecidedSnapshot, FrozenState
from spark_replog.storage.object_store import ObjectStore


class LedgerState(Protocol):
    """The state that the decided entries of one ledger fold into. Pure; one writer at a time (``Ledger.lock``)."""

    applied_index: int
    """The last folded index, -1 before the first."""

    def apply(self, index: int, payload: bytes) -> tuple[Any, ...]:
        """Fold one decided ENTRY; return one result per command in it, in order."""
        ...

    def encode(self, commands: Sequence[bytes]) -> bytes:
        """Return the ENTRY payload that ``apply`` folds into one result per command."""
        ...


@runtime_checkable
class SnapshotState(LedgerState, Protocol):
    """A state that can be written to snapshots. A ledger with any other state neither writes nor reads them."""

    snapshot: DecidedSnapshot
    """The last decided snapshot; set by `apply`, and by the ledger after `restore`."""
    load_page: Callable[[str], bytes]
    """Returns the bytes of a page, on any thread; set by the ledger."""

    @property
    def has_gone_rows(self) -> bool:
        """Whether a snapshot is due without further entries: it finds what may be deleted."""
        ...

    def encode_feature_set(self) -> bytes | None:
        """Return the command that raises the ledger to this release's feature level; None once it is applied."""
        ...

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        """Return the SnapshotCommit, the command that makes a snapshot the decided one."""
        ...

    def freeze(self) -> FrozenState:
        """Return the current state, under ``Ledger.lock``; slow encoding happens later, outside of the lock."""
        ...

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        """Replace this state by that of a head, in place: completely, or not at all with a coded error.

        Args:
            head: ``FrozenState.head``.
            load_page: returns a page's bytes; called now or later, under ``Ledger.lock``. Raises PageMissingError
                and storage errors.
        """
        ...

    def clear(self) -> None:
        """Become the state before entry 0, in place."""
        ...

    def page_names(self) -> Iterable[str]:
        """Yield the pages that the state refers to, which are those of the snapshot that it derives from."""
        ...

    def adopted(self, frozen: FrozenState) -> None:
        """The SnapshotCommit of this frozen state was decided: its pages are stored and need not stay in memory."""
        ...


@dataclass(frozen=True, slots=True)
class JournalRoot:
    """One metadata root as a ledger sees it.

    Attributes:
        broker_id: whose root; names it in errors.
        store: its object store.
        check: reads ``replog.json`` again and raises RetriableError REPLOG_ROOT_STALE (or the
            storage error) unless the root is what it was when the store was opened.
        first_check: the same before the ledger's first read; may reuse what was read when the store was opened. None:
            `check`.
    """

    broker_id: int
    store: ObjectStore
    check: Callable[[], None]
    first_check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Waiting times and sizes of one ledger. Safety depends only on `claim_round_step`, in a rebuild.

    Attributes:
        grace_ms: how long to wait for the remaining roots after a majority.
        tail_retry_ms: how long a tail that may be decided is read again before a process
            that may write claims, and a read-only one returns its floor.
        quorum_timeout_ms: how long a refresh waits while no majority answers and no record arrives.
        claim_backoff_ms: shortest mean time for which a process leaves the ledger to one rival that claimed it.
        claim_backoff_max_ms: the longest, however slow the roots and however many rivals.
        root_retry_ms: first wait before a root that failed is tried again.
        root_retry_max_ms: its largest.
        marker_check_ms: an idle read of a root also looks for its next marker if the last look is this old.
        snapshot_entry_count_min: entries after the newest snapshot from which on commits write another; a cold process
            reads about as many.
        snapshot_first_entry_count_min: entries of a ledger from which on commits write its first snapshot: reading
            fewer costs less than writing it.
        snapshot_rest_factor: a process rests this many times as long as its last snapshot took, about 3 % of its time;
            if no root is behind a network four times as long, but not longer than 1 s for that.
        truncate_record_count_min: a root's journal is cut only if at least this many records can be deleted.
        kept_record_count: records before those that a snapshot needs that stay, for processes that read on from there.
        early_record_count: first records that a cold process gets over a network before it knows of any: a ledger with
            as few needs a round trip less, one with snapshots needs none of them.
        read_only: never claims, never appends.
        claim_round_step: how far above every seen round a claim goes; more than 1 only to rebuild a journal.
    """

    grace_ms: int = 20
    tail_retry_ms: int = 1000
    quorum_timeout_ms: int = 3000
    claim_backoff_ms: int = 5
    claim_backoff_max_ms: int = 500
    root_retry_ms: int = 20
    root_retry_max_ms: int = 250
    marker_check_ms: int = 5_000
    snapshot_entry_count_min: int = 2
    snapshot_first_entry_count_min: int = 16
    snapshot_rest_factor: int = 33
    truncate_record_count_min: int = 1024
    kept_record_count: int = 512
    early_record_count: int = 0
    read_only: bool = False
    claim_round_step: int = 1


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Where a command was decided, and its result.

    Attributes:
        index: ledger index of its ENTRY, -1 when there was nothing to do.
        result: what ``LedgerState.apply`` returned for this command, None when nothing was done.
        results: one per command of the caller, in order; `result` is the last one's. Empty when nothing was done.
    """

    index: int
    result: Any
    results: tuple[Any, ...] = ()


@dataclass(slots=True)
class LedgerStats:
    """Storage calls of one ledger in one process (tests pin the cost of a request).

    Attributes:
        gets: objects asked for in journals.
        creates: journal creates sent.
        claims: claims begun.
        checks: ``replog.json`` read again.
        entries: own entries decided.
    """

    gets: int = 0
    creates: int = 0
    claims: int = 0
    checks: int = 0
    entries: int = 0


Proposed = bytes | tuple[bytes, ...] | None
"""One encoded command, or several that go into one ENTRY in this order (the last one's result is
the caller's), or nothing to do."""


@dataclass(slots=True)
class SnapshotStats:
    """Snapshots that this process wrote, had decided and restored; journal files deleted; milliseconds spent."""

    written: int = 0
    decided: int = 0
    restored: int = 0
    deleted: int = 0
    spent_ms: float = 0.0

    def since(self, before: SnapshotStats) -> SnapshotStats:
        """Return the difference from earlier numbers."""
        return SnapshotStats(*map(sub, astuple(self), astuple(before)))
