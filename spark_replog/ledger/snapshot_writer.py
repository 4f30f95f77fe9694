"""Writes the snapshots of one ledger and deletes what they replace, between the turns of its readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from spark_replog.errors import ReplogError, RetriableError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.snapshot_keeper import Cut, Draft, Garbage, HeadGarbage, SnapshotKeeper, SnapshotStats
from spark_replog.ledger.types import AppendOutcome, Proposed
from spark_replog.snapshot import PageMissingError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class RestingLedger(Protocol):
    """The parts of a ledger that writing snapshots needs."""

    ledger_id: str

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while the state changes."""

    @property
    def core(self) -> LedgerCore:
        """The current core; `restore_decided` may replace it."""

    def refresh(self) -> object:
        """Fold the decided entries."""

    def append(self, propose: Callable[[Any], Proposed], *, timeout_ms: int) -> AppendOutcome:
        """Have commands decided."""

    def with_turn(self, work: Callable[[], T]) -> T:
        """Run a function while the core is at rest."""

    def restore_decided(self) -> None:
        """Restore the state from the decided snapshot; call it in a turn."""


class SnapshotWriter:
    """Reads the core in a turn, but writes and deletes files outside of it. Thread safe."""

    def __init__(self, ledger: RestingLedger, keeper: SnapshotKeeper) -> None:
        self._ledger = ledger
        self._keeper = keeper

    def write_behind(self) -> None:
        """Write a snapshot and delete what the last one replaces; runs on a separate thread and logs errors."""
        keeper = self._keeper

        def look() -> tuple[Draft | None, list[Cut], HeadGarbage]:
            return self.freeze(), keeper.truncations(self._ledger.core), keeper.head_garbage(self._ledger.core)

        try:
            keeper.work(lambda: self._ledger.with_turn(look))
        except ReplogError as error:
            _LOG.warning("ledger %s: no snapshot now: %s", self._ledger.ledger_id, error)

    def freeze(self) -> Draft | None:
        """Freeze a state that derives from the decided snapshot, in a turn; None as ``SnapshotKeeper.freeze``."""
        if not self._keeper.is_derived:
            self._ledger.restore_decided()
        return self._keeper.freeze(self._ledger.core)

    def snapshot(self, *, timeout_ms: int) -> SnapshotStats:
        """Write a snapshot now, have it decided, and delete the journal records and heads that it replaces.

        Returns:
            The snapshots written and decided, and the files deleted, by this call.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: too few roots took it. What `append` raises.
        """
        keeper, ledger = self._keeper, self._ledger
        try:
            ledger.refresh()
            is_read = True
        except RetriableError:  # roots are slow; the append below waits up to timeout_ms
            is_read = False
        before = replace(keeper.stats)
        if not is_read or keeper.feature() is not None:
            ledger.append(lambda _: keeper.feature(), timeout_ms=timeout_ms)
        draft = None
        if keeper.is_behind():
            draft = ledger.with_turn(self.freeze)
        if draft is not None:
            keeper.write(draft)
            ledger.append(lambda _: keeper.rider(), timeout_ms=timeout_ms)

        def look() -> tuple[list[Cut], HeadGarbage]:
            return keeper.truncations(ledger.core, is_asked=True), keeper.head_garbage(ledger.core)

        keeper.tidy(*ledger.with_turn(look))
        return keeper.stats.since(before)

    def collect(self, *, is_dry_run: bool = False) -> int:
        """Delete heads, pages and journal records that decided snapshots have replaced; some pages per call.

        Repeatable, and safe at any time: garbage stays garbage for ever.

        Returns:
            How many files were deleted, or would be; a dry run does not look for records.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        keeper, ledger = self._keeper, self._ledger

        def look() -> Garbage:
            if not keeper.is_derived:
                ledger.restore_decided()
            with ledger.lock:
                try:
                    is_page = keeper.page_garbage()
                except PageMissingError:
                    ledger.restore_decided()
                    is_page = keeper.page_garbage()
                heads = keeper.head_garbage(ledger.core)
            floors = [(number, root.floor.position, root.error) for number, root in enumerate(ledger.core.roots)]
            positions = [(number, at) for number, at, error in floors if at and error is None]
            return Garbage(heads, is_page, positions, keeper.feature_index)

        ledger.refresh()
        return keeper.collect(ledger.with_turn(look), is_dry_run=is_dry_run)
