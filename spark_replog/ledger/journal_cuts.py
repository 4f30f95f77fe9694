"""Truncations of a ledger's journals by one process: which markers are put now, and the threads that put them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from spark_replog.clock import Clock
from spark_replog.errors import ReplogError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.snapshot_files import Marker, SnapshotHead
from spark_replog.ledger.snapshot_io import REST_MS, SnapshotIo
from spark_replog.ledger.types import LedgerSettings, SnapshotStats
from spark_replog.logs import warn_of_upkeep

_LOG = logging.getLogger(__name__)


class Cut(NamedTuple):
    """A marker to put on a root, under the number `marker_no`."""

    root: int
    marker_no: int
    marker: Marker


class JournalCuts:
    """The truncations of a ledger's journals by one process; call methods that take a core only in a turn.

    Args:
        stats: counts the records that it deletes.
    """

    def __init__(
        self, ledger_id: str, settings: LedgerSettings, clock: Clock, io: SnapshotIo, stats: SnapshotStats
    ) -> None:
        self._stats = stats
        self._ledger_id = ledger_id
        self._settings = settings
        self._clock = clock
        self._io = io
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, list[int]]] = deque()  # when, and where each root's journal ended then
        self._running: dict[int, tuple[Cut, Future[None]]] = {}  # by root, until the core has seen the marker

    def due(self, core: LedgerCore, name: str, head: SnapshotHead | None, *, is_asked: bool) -> list[Cut]:
        """Return the markers to put now.

        Args:
            head: of the decided snapshot, None if this process does not have it; name: its name.
            is_asked: a caller waits, so keep nothing for processes that look for markers only every
                `marker_check_ms`: until they look, they may answer from what they knew before.
        """
        ends, settings = self._old_ends(core), self._settings
        cuts: list[Cut] = []
        for number, state in enumerate(core.roots):
            if head is None or state.error is not None or self.is_running(number):
                continue
            marker = core.truncation(number, head, name, settings.kept_record_count)
            if marker is not None and not is_asked:
                marker = marker._replace(position=min(marker.position, ends[number]))
            if marker is not None and marker.position - state.floor.position >= settings.truncate_record_count_min:
                cuts.append(Cut(number, state.floor.marker_no, marker))
        return cuts

    def _old_ends(self, core: LedgerCore) -> list[int]:
        """Return where each root's journal ended `marker_check_ms` ago.

        A process that looked there within that time finds the next record, so an empty position means none follows.
        """
        ends, now_ms = self._ends, self._clock.monotonic_ms()
        old_ms = now_ms - self._settings.marker_check_ms
        ends.append((now_ms, [view.next_position for view in core.prefix.views]))
        while len(ends) > 1 and ends[1][0] <= old_ms:
            ends.popleft()
        return ends[0][1] if ends[0][0] <= old_ms else [0] * len(core.roots)

    def named_by(self, core: LedgerCore) -> set[int]:
        """Return the entries whose heads the markers of cuts name that the core has not seen yet."""
        cuts = {number: cut for number, (cut, _) in list(self._running.items())}
        for number, cut in cuts.items():
            if core.roots[number].floor.marker_no > cut.marker_no and not self.is_running(number):
                self._running.pop(number, None)
        return {cut.marker.base.index for cut in cuts.values()}

    def is_running(self, number: int) -> bool:
        """Return whether a thread cuts this root's journal now."""
        running = self._running.get(number)
        return running is not None and not running[1].done()

    def begin(self, cuts: Sequence[Cut], *, is_hurried: bool = False) -> None:
        """Begin to cut journals, each on a thread of its root's.

        Args:
            is_hurried: a caller waits for it; else records are deleted slowly, so that commits beside it are not held
                up.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: the head that the markers would name is gone; a newer one is
                decided.
        """
        head = self._io.head_data(cuts[0].marker.name) if cuts else b""  # all name the decided snapshot
        for cut in cuts:
            done = self._io.begin_on_root(cut.root, partial(self._cut, cut, head, 0 if is_hurried else REST_MS))
            self._running[cut.root] = cut, done

    def finish(self) -> None:
        """Wait for the cuts under way while they make progress; a root that hangs is reported and left."""
        for number, (_, done) in list(self._running.items()):
            try:
                self._io.wait_for_root(number, done)
            except ReplogError as error:
                warn_of_upkeep(_LOG, self._ledger_id, "a journal is not truncated now", error)

    def _cut(self, cut: Cut, head: bytes, rest_ms: float) -> None:
        try:
            deleted_count = self._io.truncate(*cut, head, rest_ms=rest_ms)
        except ReplogError as error:
            warn_of_upkeep(_LOG, self._ledger_id, "a journal is not truncated now", error)
            return
        except Exception:
            _LOG.exception("A journal was not truncated. Report it.")
            raise
        with self._lock:
            self._stats.deleted += deleted_count
