"""The values that go into a ledger and come out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from spark_replog.snapshot import DecidedSnapshot, FrozenState
from spark_replog.storage.object_store import ObjectStore


class LedgerState(Protocol):
    """What the decided entries of one ledger fold into. Pure; one writer at a time (``Ledger.lock``)."""

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
    """A state that snapshots are made of; the shell of a ledger whose state is none neither writes nor reads them."""

    snapshot: DecidedSnapshot
    """The last decided snapshot; set by `apply`, and by the ledger after `restore`."""
    load_page: Callable[[str], bytes]
    """Returns the bytes of a page, on any thread; set by the ledger."""

    feature_index: int
    """The entry from which on older releases refuse the ledger, -1 where there is none or it is not known."""

    def encode_feature_set(self) -> bytes | None:
        """Return the command that makes older releases refuse the ledger; None once it is applied."""
        ...

    def encode_snapshot_commit(self, base_no: int, index: int, name: str) -> bytes:
        """Return the command that makes a snapshot the one that counts."""
        ...

    def freeze(self) -> FrozenState:
        """Return the state as it is now, under ``Ledger.lock``; encoding that takes long happens outside of it."""
        ...

    def restore(self, head: bytes, load_page: Callable[[str], bytes]) -> None:
        """Become the state of a head, in place; wholly, or not at all and a coded error.

        Args:
            head: of a FrozenState of this release or an older one.
            load_page: returns a page's bytes, now or whenever they are needed, under ``Ledger.lock``. Raises
                PageMissingError, and what storage raises.
        """
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
        store: the four verbs there.
        check: reads ``replog.json`` again and raises RetriableError REPLOG_ROOT_STALE (or the
            storage error) unless the root is what it was when the store was opened.
        first_check: the same before the ledger's first read; may take what was read when the store was opened. None:
            `check`.
    """

    broker_id: int
    store: ObjectStore
    check: Callable[[], None]
    first_check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Waiting times and sizes of one ledger; none of them carries safety.

    Attributes:
        grace_ms: wait for the remaining roots after a majority did it.
        tail_retry_ms: how long a tail that cannot be judged is read again before a process
            that may write claims, and a read-only one answers its floor.
        quorum_timeout_ms: how long a refresh waits while no majority answers and no record arrives.
        claim_backoff_ms: shortest mean time for which a process leaves the ledger to one other that claimed it.
        claim_backoff_max_ms: the longest, however slow the roots and however many the others.
        root_retry_ms: first wait before a root that failed is tried again.
        root_retry_max_ms: its largest.
        entry_size_bytes_max: group commit stops adding commands here.
        command_size_bytes_max: what one caller proposes may be larger than that, up to here (ADR 11).
        marker_check_ms: an idle look at a root also looks for its next marker when the last one is this old.
        snapshot_entry_count_min: entries behind the newest snapshot from which on commits write another; a cold process
            reads about as many.
        snapshot_first_entry_count_min: entries that a ledger has when commits write its first one: to read so few costs
            less than to write it.
        snapshot_rest_factor: a process rests this much longer than its last snapshot took: 3 % of its time at most.
        truncate_record_count_min: journal records of a root that a snapshot must make needless before they are deleted.
        kept_record_count: records below those that a snapshot needs which stay, for processes that read on from there.
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
    entry_size_bytes_max: int = 256 * 1024
    command_size_bytes_max: int = 32 * 1024 * 1024
    marker_check_ms: int = 5_000
    snapshot_entry_count_min: int = 2
    snapshot_first_entry_count_min: int = 128
    snapshot_rest_factor: int = 33
    truncate_record_count_min: int = 1024
    kept_record_count: int = 512
    read_only: bool = False
    claim_round_step: int = 1


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Where a command was decided and what the fold said of it.

    Attributes:
        index: ledger index of its ENTRY, -1 when there was nothing to do.
        result: what ``LedgerState.apply`` returned for this command, None when nothing was done.
        results: of each of its commands, where it was several; `result` is the last one's.
    """

    index: int
    result: Any
    results: tuple[Any, ...] = ()


@dataclass(slots=True)
class LedgerStats:
    """Storage calls of one ledger in one process (what a request costs is pinned by tests).

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
