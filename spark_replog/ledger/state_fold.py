"""A ledger's state in memory: folds decided entries into it, and restores it from snapshots.

The state is `WHOLE`, or an entry is half in it (`FOLDING`), or it does not fit what this process knows of the journals
(`TORN`). An interrupt can leave it in any of them. A torn state is restored from a snapshot by the next call, before
anybody sees it; without snapshots, half an entry ends the ledger in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from spark_replog.errors import CorruptDataError, ReplogError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.ledger_errors import LedgerErrors
from spark_replog.ledger.record import TAG_SIZE_BYTES
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper
from spark_replog.ledger.types import LedgerState
from spark_replog.snapshot import PageMissingError

S = TypeVar("S", bound=LedgerState)
RESTORES_MAX = 3
"""After a restore, pages are gone again only if a newer snapshot was decided and old pages were deleted meanwhile."""


class Wholeness(Enum):
    """What a call, or an interrupt, has left of the state."""

    WHOLE = "whole"
    FOLDING = "folding"
    TORN = "torn"


class StateFold(Generic[S]):
    """The fold of one ledger in one process.

    Args:
        lock: held while the state changes.
        keeper: of the state's snapshots; None for a state without them.

    Attributes:
        wholeness: of the state.
        keeper: the constructor's argument.
    """

    def __init__(
        self, state: S, lock: AbstractContextManager[object], keeper: SnapshotKeeper | None, errors: LedgerErrors
    ) -> None:
        self.wholeness = Wholeness.WHOLE
        self.keeper = keeper
        self._state = state
        self._lock = lock
        self._errors = errors

    def restore(self, restore: Callable[[], None]) -> None:
        """Replace the state by that of a snapshot; an interrupt leaves it to be restored again."""
        with self._lock:
            before, self.wholeness = self.wholeness, Wholeness.TORN
            try:
                restore()
            except ReplogError:
                self.wholeness = before  # nothing was restored
                raise
            self.wholeness = Wholeness.WHOLE

    def advance(self, core: LedgerCore, *, must_restore: bool = False) -> dict[int, tuple[Any, ...]]:
        """Fold the decided entries; return the results of each. No caller sees half an entry.

        Args:
            must_restore: begin from a snapshot, because pages of the state are gone.

        Raises:
            PageMissingError, CorruptDataError: no reachable snapshot helps now; the next call tries again, or starts
                over if the state was made from a head that is not proven.
        """
        keeper, tries_left = self.keeper, RESTORES_MAX
        with self._lock:
            while True:
                tries_left -= 1
                try:
                    if keeper is not None and (must_restore or self.wholeness is Wholeness.TORN):
                        keeper.require_proven()
                        self.restore(partial(keeper.recover, core, is_newest=not tries_left))
                        must_restore = False
                    return self._apply(core)
                except (PageMissingError, CorruptDataError) as error:
                    if keeper is None:
                        core.fatal = error
                    if keeper is None or keeper.unproven is not None or not tries_left:
                        raise

    def _apply(self, core: LedgerCore) -> dict[int, tuple[Any, ...]]:
        prefix, results = core.prefix, dict[int, tuple[Any, ...]]()
        first = self._state.applied_index + 1
        try:
            if first < prefix.length:
                self.wholeness = Wholeness.FOLDING
            for index in range(first, prefix.length):
                results[index] = self._state.apply(index, prefix.payloads[index][TAG_SIZE_BYTES:])
                if self.keeper is not None and self.keeper.unproven is not None:
                    self.keeper.note_entry(core)
            if self.keeper is not None:
                self.keeper.folded(core)
        except (PageMissingError, CorruptDataError):
            if self.wholeness is Wholeness.FOLDING:
                self.wholeness = Wholeness.TORN
            raise
        except ReplogError as error:
            core.fatal = error
            raise
        except BaseException as error:
            if self.wholeness is Wholeness.FOLDING:
                core.fatal = self._errors.torn(f"{error!r} ended a fold")
            raise
        self.wholeness = Wholeness.WHOLE
        if len(prefix.payloads) > 1:  # the last one always stays
            prefix.release(self._state.applied_index + 1, None if self.keeper is None else self.keeper.seen.index)
        return results
