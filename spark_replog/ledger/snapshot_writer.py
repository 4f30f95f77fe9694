"""Writes the snapshots of one ledger and deletes what they replace, between the turns of its readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from spark_replog.errors import ReplogError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.snapshot_keeper import Cut, Draft, Garbage, HeadGarbage, SnapshotKeeper, SnapshotStats
from spark_replog.ledger.types import AppendOutcome, Proposed
from spark_replog.snapshot import PageMissingError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class _Append(Protocol):
    def __call__(self, propose: Callable[[Any], Proposed], *, timeout_ms: int) -> AppendOutcome: ...


class _WithTurn(Protocol):
    def __call__(self, work: Callable[[], T]) -> T: ...


class SnapshotWriter:
    """What needs the core at rest is looked at in a turn; writing and deleting is done outside of it. Thread safe.

    Args:
        lock: held while the state changes.
        core: returns the core of now.
        refresh, append: the ledger's.
        with_turn: does something with the core at rest.
        restore: makes the state from the decided snapshot again; in a turn.
    """

    def __init__(
        self,
        ledger_id: str,
        keeper: SnapshotKeeper,
        lock: AbstractContextManager[object],
        core: Callable[[], LedgerCore],
        *,
        refresh: Callable[[], object],
        append: _Append,
        with_turn: _WithTurn,
        restore: Callable[[], None],
    ) -> None:
        self._ledger_id = ledger_id
        self._keeper = keeper
        self._lock = lock
        self._core = core
        self._refresh = refresh
        self._append = append
        self._with_turn = with_turn
        self._restore = restore

    def write_behind(self) -> None:
        """Write a snapshot and delete what the last one replaces; on a separate thread errors are logged."""
        keeper = self._keeper

        def look() -> tuple[Draft | None, list[Cut], HeadGarbage]:
            return self.freeze(), keeper.truncations(self._core()), keeper.head_garbage(self._core())

        try:
            keeper.work(*self._with_turn(look))
        except ReplogError as error:
            _LOG.warning("ledger %s: no snapshot now: %s", self._ledger_id, error)

    def freeze(self) -> Draft | None:
        """Freeze a state that derives from the decided snapshot; None where nothing was folded."""
        if not self._keeper.is_derived:
            self._restore()
        return self._keeper.freeze(self._core())

    def snapshot(self, *, timeout_ms: int) -> SnapshotStats:
        """Write a snapshot now, have it decided, and delete the journal records and heads that it makes needless.

        Returns:
            What was written, decided and deleted by this call.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: too few roots took it. What `append` raises.
        """
        keeper = self._keeper
        self._refresh()
        before = replace(keeper.stats)
        if keeper.feature() is not None:
            self._append(lambda _: keeper.feature(), timeout_ms=timeout_ms)
        draft = None
        if keeper.is_behind():
            draft = self._with_turn(self.freeze)
        if draft is not None:
            keeper.write(draft)
            self._append(lambda _: keeper.rider(), timeout_ms=timeout_ms)
        core = self._core
        keeper.tidy(*self._with_turn(lambda: (keeper.truncations(core(), is_asked=True), keeper.head_garbage(core()))))
        return keeper.stats.since(before)

    def collect(self, *, is_dry_run: bool = False) -> int:
        """Delete heads, pages and journal records that decided snapshots have made needless; some at a time.

        Repeatable, and safe beside anything: what is garbage stays garbage for ever.

        Returns:
            How many files went, or would go; records are not looked for in a dry run.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        keeper = self._keeper

        def look() -> Garbage:
            if not keeper.is_derived:
                self._restore()
            with self._lock:
                try:
                    is_page = keeper.page_garbage()
                except PageMissingError:
                    self._restore()
                    is_page = keeper.page_garbage()
                heads = keeper.head_garbage(self._core())
            floors = [(number, root.floor.position, root.error) for number, root in enumerate(self._core().roots)]
            positions = [(number, at) for number, at, error in floors if at and error is None]
            return Garbage(heads, is_page, positions, keeper.feature_index)

        self._refresh()
        return keeper.collect(self._with_turn(look), is_dry_run=is_dry_run)
