"""When a waiting reader looks at which ledger, so that waiting costs a bounded number of gets whatever it reads.

A ledger whose rows came lately is read often; after that the pauses grow, and the gets of all ledgers together have a
limit per second. Rows that come allow a number of looks above it, so that a reader of a busy topic never waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from spark_replog.cluster.journal_peek import PEEKS_PER_READ
from spark_replog.ids import LedgerId
from spark_replog.storage.brokers import BrokerSet

IDLE_SHARE = 8
"""A pause is the time since the last rows, divided by this."""
LOOK_SHARE = 4
"""Or this many times the duration of the last look, if that is longer."""
AWAKE_PAUSE_MS = 100
"""Above this pause a look is a peek: one get. A pause need not be longer where the gets allow it."""
LOOKS_AFTER_ROWS = 60
"""Reads of a ledger that its rows allow: the pauses from 1 ms up to ``AWAKE_PAUSE_MS`` make 40, and then come peeks."""
LOCAL_GETS_PER_SECOND, REMOTE_GETS_PER_SECOND = 20, 2
"""What an idle reader may cost on local roots, and on others."""


def idle_gets_per_second(brokers: BrokerSet) -> int:
    """Return what a reader of this store costs at most while no rows come, unless it sets the longest pause itself."""
    is_local = brokers.local_ids.issuperset(brokers.metadata_broker_ids)
    return LOCAL_GETS_PER_SECOND if is_local else REMOTE_GETS_PER_SECOND


@dataclass(slots=True)
class _Looks:
    """Of one ledger; times on the monotonic clock, in ms.

    Attributes:
        rows_ms: when rows came last; at first, when the reader began with it.
        looked_ms: when it was looked at last; ``-inf``: look at once.
        took_ms: how long that took.
        pause_min_ms: its shortest pause.
    """

    rows_ms: float
    looked_ms: float = -inf
    took_ms: float = 0
    pause_min_ms: float = 1


class LookSchedule:
    """For one reader; not thread-safe.

    Args:
        root_count: metadata roots: a read of a ledger costs one get each, and as many again for markers.
        gets_per_second: limit of an idle reader.
        interval_ms: the longest pause; there is then no limit. None: as short as the limit allows.
    """

    def __init__(self, root_count: int, gets_per_second: int, interval_ms: int | None, now_ms: float) -> None:
        self._root_count = root_count
        self._peek_gets = 1 + 2 * root_count / PEEKS_PER_READ  # one look in PEEKS_PER_READ reads all roots and markers
        self._interval_ms = interval_ms
        self._get_ms = 1000 / gets_per_second if interval_ms is None else 0.0
        self._credit_ms = LOOKS_AFTER_ROWS * root_count * self._get_ms
        self._free_ms = now_ms - self._credit_ms  # the gets so far are paid for at this time
        self._elsewhere_ms = now_ms  # when gets elsewhere were counted last
        self._looks: dict[LedgerId, _Looks] = {}
        self.is_told = False
        """Whether a watch reports new entries: then the pauses are the longest ones."""

    def keep(self, ledger_ids: Iterable[LedgerId], now_ms: float, *, rarely: LedgerId, rarely_ms: int) -> None:
        """Look at these ledgers from now on, at new ones at once.

        Args:
            rarely: one more, which was just read, is looked at every ``rarely_ms`` at most, and never has rows.
        """
        wanted = dict.fromkeys([*ledger_ids, rarely])
        if wanted.keys() != self._looks.keys():
            looks = self._looks
            self._looks = {ledger_id: looks.get(ledger_id) or _Looks(now_ms) for ledger_id in wanted}
            self._looks[rarely] = looks.get(rarely) or _Looks(-inf, looked_ms=now_ms, pause_min_ms=rarely_ms)

    def is_idle(self, now_ms: float) -> bool:
        """Return whether every ledger was looked at and none had rows lately."""
        return bool(self._looks) and all(
            looks.looked_ms > -inf and self._is_asleep(looks, now_ms) for looks in self._looks.values()
        )

    def due(self, now_ms: float) -> dict[LedgerId, bool]:
        """Return the ledgers to look at now, and whether each is to be read; for a peek, False.

        Those that are late come first. Each costs what it is expected to.
        """
        if all(now_ms - looks.rows_ms > IDLE_SHARE * self._longest_ms for looks in self._looks.values()):
            self._free_ms = max(self._free_ms, now_ms)  # the looks that rows allowed have had their time
        late = [(at_ms, key) for key in self._looks if (at_ms := self._due_ms(self._looks[key], now_ms)) <= now_ms]
        ledgers: dict[LedgerId, bool] = {}
        for at_ms, ledger_id in sorted(late):
            if at_ms == -inf:
                ledgers[ledger_id] = True  # the first look, or one that a watch asks for: not limited
            elif self._free_ms <= now_ms:
                ledgers[ledger_id] = not self._is_asleep(self._looks[ledger_id], now_ms)
                self._spend(self._root_count if ledgers[ledger_id] else self._peek_gets, now_ms)
        return ledgers

    def next_ms(self, now_ms: float) -> float:
        """Return when `due` returns something."""
        at_ms = min((self._due_ms(looks, now_ms) for looks in self._looks.values()), default=inf)
        return at_ms if at_ms == -inf else max(at_ms, self._free_ms)

    def looked(self, ledger_ids: Iterable[LedgerId], now_ms: float, took_ms: float) -> None:
        """Note that these were looked at just now."""
        for ledger_id in ledger_ids:
            if ledger_id in self._looks:
                self._looks[ledger_id].looked_ms, self._looks[ledger_id].took_ms = now_ms, took_ms

    def told(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Look at these at once: a watch has reported new entries."""
        for ledger_id in ledger_ids:
            if ledger_id in self._looks:
                self._looks[ledger_id].looked_ms = -inf

    def rows_came(self, ledger_ids: Iterable[LedgerId], now_ms: float) -> None:
        """Look at these more often again, since more rows may come."""
        for ledger_id in ledger_ids:
            self._looks[ledger_id].rows_ms = now_ms
            self._free_ms = min(self._free_ms, now_ms - self._credit_ms)

    def spend_elsewhere(self, get_count: float, now_ms: float) -> None:
        """Count gets that the reader makes elsewhere: at most half of the limit, so that the looks go on."""
        bound_ms, self._elsewhere_ms = (now_ms - self._elsewhere_ms) / 2, now_ms
        if self._get_ms:
            self._spend(min(get_count, bound_ms / self._get_ms), now_ms)

    def _spend(self, get_count: float, now_ms: float) -> None:
        free_ms = max(self._free_ms, now_ms - self._credit_ms) + get_count * self._get_ms
        self._free_ms = min(free_ms, now_ms + self._longest_ms + 2 * self._root_count * self._get_ms)

    @property
    def _longest_ms(self) -> float:
        """Return the longest pause: in this time all ledgers are looked at once."""
        return self._interval_ms or max(AWAKE_PAUSE_MS, len(self._looks) * self._peek_gets * self._get_ms)

    def _is_asleep(self, looks: _Looks, now_ms: float) -> bool:
        return now_ms - looks.rows_ms > IDLE_SHARE * AWAKE_PAUSE_MS

    def _due_ms(self, looks: _Looks, now_ms: float) -> float:
        since_ms = inf if self.is_told else now_ms - looks.rows_ms
        pause_ms = min(self._longest_ms, max(1, since_ms / IDLE_SHARE, looks.took_ms * LOOK_SHARE))
        return looks.looked_ms + int(max(pause_ms, looks.pause_min_ms))
