"""Brings up journals that lack decided entries: their roots were away or slow.

There is one way for a journal to get entries that it lacks: an owner of the ledger writes them there before it proposes
its next value, or gives the root a marker in place of those that only a snapshot has (``LedgerCore``). Appends do it as
far as their grace time reaches, and then the leveler goes on in the background. ``replog coordinator run`` and ``store
repair`` call it for ledgers without writers. It decides nothing: it proposes the newest decided value again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_replog.clock import Clock
from spark_replog.errors import ReplogError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.root import READ, READ_BY_THIS_GOAL

if TYPE_CHECKING:
    from spark_replog.ledger.ledger import Ledger

LEVEL_PAUSE_MS = 100
"""The pause between two turns. Appends that come meanwhile bring the journals up themselves. While turns help no root,
each pause is twice as long as the one before."""
BACKGROUND_MS = 60_000
"""How long a process goes on after an append; the next one starts it again."""

_LOG = logging.getLogger(__name__)


def lacking_journals(core: LedgerCore, last: int | None = None, *, is_fresh: bool = True) -> dict[int, int]:
    """Return which roots that answer lack decided entries, and how many.

    Args:
        last: count entries up to this index only; None: all.
        is_fresh: only roots that the newest goal has read; else also those read before, as far as it is known.
    """
    standings, counts = READ_BY_THIS_GOAL if is_fresh else READ, dict[int, int]()
    for root, state in enumerate(core.roots):
        if state.error is None and state.standing in standings and (count := core.prefix.lacking(root, last)):
            counts[root] = count
    return counts


def journals_behind(core: LedgerCore, last: int | None = None, *, is_fresh: bool = True) -> dict[int, int]:
    """Return which of `lacking_journals` are behind: they lack more than the newest entry, or have none at all."""
    counts, prefix = lacking_journals(core, last, is_fresh=is_fresh), core.prefix
    return {root: count for root, count in counts.items() if prefix.is_behind(root, count)}


class JournalLeveler:
    """Thread safe.

    Args:
        busy: held while a thread works in the background for this ledger.
    """

    def __init__(self, ledger: Ledger[Any], clock: Clock, busy: threading.Lock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._busy = busy

    def level(self, *, timeout_ms: int, roots: Collection[int] | None = None) -> set[int]:
        """Give roots the entries that are decided now and that they lack.

        Args:
            roots: these only, which are known to answer: one that failed a moment ago, or is slow, gets time to do so
                again. None: those that answer.

        Returns:
            The roots that lack some of these entries in the end, and those of `roots` that did not answer.

        Raises:
            RetriableError: REPLOG_NO_QUORUM. What `Ledger.refresh` raises.
        """
        end_ms, pause_ms = self._clock.monotonic_ms() + timeout_ms, LEVEL_PAUSE_MS
        last: int | None = None
        before, has_rested = math.inf, False
        while True:
            self._ledger.refresh()
            core = self._ledger.core
            last = core.prefix.length - 1 if last is None else last
            lacking = {root: n for root, n in lacking_journals(core, last).items() if roots is None or root in roots}
            unread = {root for root in roots or () if core.roots[root].standing not in READ_BY_THIS_GOAL}
            rest_ms, count = end_ms - self._clock.monotonic_ms(), sum(lacking.values())
            if not (lacking or unread) or rest_ms <= 0:
                return unread.union(lacking)
            is_behind = any(core.prefix.is_behind(root, n) for root, n in lacking.items())
            if lacking and (has_rested or (is_behind and count < before)):
                self._ledger.with_turn(partial(self._drive, end_ms))
                before, has_rested = count, False
            else:  # the newest entry alone may be on its way
                self._clock.sleep_ms(min(pause_ms, rest_ms))
                pause_ms, has_rested = 2 * pause_ms, True

    def _drive(self, end_ms: float) -> None:
        """Give each root some of the entries that it lacks, in a turn: others read and append between two turns."""
        core, now_ms = self._ledger.core, float(self._clock.monotonic_ms())
        core.begin(GoalKind.BACKFILL, now_ms)
        while core.phase is not Phase.DONE and now_ms < end_ms:
            if core.phase is not Phase.READY:
                now_ms = self._ledger.step(now_ms, end_ms)
            elif core.prefix.length - 1 in core.prefix.payloads:
                core.level()
            else:
                return  # it knows no value to propose: the next append brings the journals up

    def level_behind(self) -> None:
        """Bring up journals after an append, on a separate thread; logs errors."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            end_ms = self._clock.monotonic_ms() + BACKGROUND_MS
            while self._clock.monotonic_ms() < end_ms and journals_behind(self._ledger.core, is_fresh=False):
                entries = self._ledger.core.stats.entries
                self._clock.sleep_ms(LEVEL_PAUSE_MS)
                if entries == self._ledger.core.stats.entries:
                    self.level(timeout_ms=LEVEL_PAUSE_MS)
        except ReplogError as error:
            _LOG.info("ledger %s: journals that are behind wait for an append: %s", self._ledger.ledger_id, error)
        finally:
            self._busy.release()
