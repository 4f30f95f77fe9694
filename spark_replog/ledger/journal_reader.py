"""Reads one root's journal, on the threads of its lanes: what ``read_plan`` asks for, in as few round trips as it can.

Three things may be under way before a read asks for them: the check of ``replog.json``, a listing of the journal, and
gets of records (`early`). Early gets count in the goal that began them only: a position that was empty then may have a
record by the next one. Nothing counts that was read before ``replog.json`` was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from spark_replog.clock import Clock
from spark_replog.errors import CorruptDataError, ReplogError
from spark_replog.ledger.read_plan import LAST_WINDOW, READ_SIZE_BYTES_MAX, JournalForecast, Listed
from spark_replog.ledger.record import RECORD_GET_BYTES, genesis_hash
from spark_replog.ledger.root import Completion, Read
from spark_replog.ledger.snapshot_files import MARKER_SIZE_BYTES_MAX, Marker, decode_marker
from spark_replog.ledger.types import JournalRoot, LedgerStats
from spark_replog.storage.io_pool import IO_POOL, LANE_THREADS_MAX
from spark_replog.storage.object_store import Buffer, ObjectStore
from spark_replog.storage.open_store import is_far
from spark_replog.storage.paths import (
    journal_folder,
    journal_key,
    marker_folder,
    marker_key,
    marker_number,
    record_position,
)

SLOW_GET_MS = 3
"""A get that takes this long goes over a network; a cold start must not pay one round trip per entry."""
_log = logging.getLogger(__name__)


class JournalReader:
    """The reads of one root by one incarnation.

    Args:
        on_records: called with the first records of each read that reached the end, and their position.

    Attributes:
        check, listing: those that began before a goal asked for them; None for none.
        early: position -> get under way.
        learned_ms: when a get last found a record that is new to this process, or its first listing ended.
        listing_since_ms: when a listing began that shows that the root answers; None: none is under way.
    """

    def __init__(
        self,
        ledger_id: str,
        root: JournalRoot,
        stats: LedgerStats,
        clock: Clock,
        on_records: Callable[[JournalRoot, int, Sequence[bytes]], None],
    ) -> None:
        self.root = root
        self.check: Future[None] | None = None
        self.listing: Future[Listed | None] | None = None
        self.early: dict[int, Future[Buffer | None]] = {}
        self.learned_ms = 0.0
        self.listing_since_ms: float | None = None
        self.forecast = JournalForecast(is_far=is_far(root.store.url))
        self._ledger_id = ledger_id
        self._stats = stats
        self._clock = clock
        self._on_records = on_records
        self._resumed: tuple[int, Future[Listed | None]] | None = None  # where the first read goes on, and its listing
        self._is_listed = False  # and had nothing new since
        self._end = 0  # position after the last record found

    # -- ahead of a goal --------------------------------------------------------------------------

    def begin_check(self, check: Callable[[Callable[[], None]], None], record_count: int) -> None:
        """Begin the first check, over a network also the listing, and after the check the gets of the first records."""
        early: dict[int, Future[Buffer | None]] = {}
        count = record_count if self.forecast.is_far else 0
        if count:
            self.early = early

        def check_first() -> None:
            (self.root.first_check or self.root.check)()
            early.update(self._submit_gets(range(count)))

        self.check = IO_POOL.submit_to(self.root.store.url, check, check_first)
        self.listing = self._begin_list(0) if self.forecast.is_far else None

    def begin_last_gets(self, index: int) -> None:
        """Once the listing is there, get the last records that it shows, from this position on."""
        check, listing = self.check, self.listing
        if check is None or listing is None:
            return
        early = self.early = {}

        def get_last() -> None:
            if check.exception() is None and (listed := listing.result()) is not None:
                early.update(self._submit_gets(listed.last(index, LAST_WINDOW - 1)))

        IO_POOL.post_to(f"{self.root.store.url}#last", get_last)

    # -- reads ------------------------------------------------------------------------------------

    def read(self, operation: Read) -> Completion:
        """Read on until a position is empty, or the limit is reached."""
        completion = self._read(operation)
        if operation.limit and not operation.finds_gaps:
            self.forecast.note_read(len(completion.records))
        return completion

    def _read(self, operation: Read) -> Completion:
        records: list[bytes] = []
        listing, early = self._listing_for(operation), self.early
        self.early = {}
        listed = self._listed_soon(listing) if listing is not None and self.forecast.is_far else None
        window = self.forecast.first(operation.position, is_listed=listing is not None, listed=listed)
        size_bytes, is_early = 0, bool(early)
        while len(records) < operation.limit and size_bytes < READ_SIZE_BYTES_MAX:
            start_ms = self._clock.monotonic_ms()
            for body in self._get(operation.position + len(records), window, early):
                if body is None:
                    return self._read_to_end(operation, tuple(records), listing)
                records.append(bytes(body))
                size_bytes += len(records[-1])
            took_ms = self._clock.monotonic_ms() - start_ms
            if took_ms < SLOW_GET_MS and not is_early:
                window = 1
                continue
            is_early = False
            if listing is not None:  # it usually comes with the first gets; if it takes long, guess
                wait([listing], took_ms / 1000.0)
            listed = listing.result() if listing is not None and listing.done() else None
            following = self.forecast.following(records, window, operation.position + len(records), listed)
            window = min(following, operation.limit - len(records))
        marker = newest_marker(self._ledger_id, self.root.store, operation.marker_no)
        if listing is not None and marker is None:
            self._resumed = operation.position + len(records), listing
        return Completion(operation, tuple(records), marker=marker)

    def _listing_for(self, operation: Read) -> Future[Listed | None] | None:
        """Return the listing that a read of gaps is held against, begun earlier or now."""
        if self._resumed is not None and self._resumed[0] == operation.position:
            listing, self._resumed = self._resumed[1], None
            return listing
        if not operation.finds_gaps:
            return None
        begun, self.listing = self.listing, None
        return begun or self._begin_list(operation.position)

    def _listed_soon(self, listing: Future[Listed | None]) -> Listed | None:
        """Return what a listing shows if it has come, or does as soon as it took until now."""
        since_ms = self.listing_since_ms
        if since_ms is not None:
            wait([listing], (self._clock.monotonic_ms() - since_ms) / 1000.0)
        return listing.result() if listing.done() else None

    def _read_to_end(
        self, operation: Read, records: tuple[bytes, ...], listing: Future[Listed | None] | None
    ) -> Completion:
        """Answer a read that found an empty position: the journal was truncated there, or ends there."""
        marker = after_gap = before = None
        store, find_marker = self.root.store, partial(newest_marker, self._ledger_id, self.root.store)
        if records:
            self._on_records(self.root, operation.position, records)
        elif operation.finds_gaps and operation.position:  # before the look at the marker, which a cut puts first
            key = journal_key(self._ledger_id, operation.position - 1)
            body = store.get(key, size_bytes=RECORD_GET_BYTES)
            before = None if body is None else bytes(body)
        if records or operation.checks_marker:
            marker = find_marker(operation.marker_no)
        if marker is None and listing is not None:
            after_gap = self._record_after_gap(operation.position + len(records), listing.result())
            if after_gap is not None:  # truncated between the two looks
                marker = find_marker(operation.marker_no)
        return Completion(operation, records, True, marker, after_gap, before)

    def _record_after_gap(self, end: int, listed: Listed | None) -> int | None:
        """Return the first position above an empty one that has a file, None if no listing shows one.

        An alarm for deleted files, once per process, root and error; it sees only the files of the listing.
        """
        first = None if listed is None else listed.first_after(end)
        if first is None or self.root.store.get(journal_key(self._ledger_id, end), size_bytes=1) is not None:
            return None  # nothing is listed above, or the position was filled meanwhile
        return first

    # -- calls ------------------------------------------------------------------------------------

    def _begin_list(self, position: int) -> Future[Listed | None]:
        return IO_POOL.submit_to(f"{self.root.store.url}#list", self._list, position)

    def _list(self, position: int) -> Listed | None:
        """List a journal from a position on; None if that fails."""
        is_first, self._is_listed = not self._is_listed, True
        if is_first:
            self.listing_since_ms = self._clock.monotonic_ms()
        try:
            before = journal_key(self._ledger_id, position - 1) if position else ""
            infos = list(self.root.store.list_keys(journal_folder(self._ledger_id), after=before))
        except ReplogError as error:
            _log.debug("no listing of the journals on %s: %s", self.root.store.url, error)
            return None
        finally:
            if is_first:
                self.learned_ms = self._clock.monotonic_ms()  # before the next line, so one of the two is always set
                self.listing_since_ms = None
        places = ((record_position(info.key), info.size_bytes) for info in infos)
        return Listed({place: size_bytes for place, size_bytes in places if place is not None})

    def _get(self, position: int, count: int, early: dict[int, Future[Buffer | None]]) -> list[Buffer | None]:
        if count == 1 and position not in early:
            self._stats.gets += 1
            return [self._note(position, self._get_record(position))]
        positions = range(position, position + count)
        futures = self._submit_gets([place for place in positions if place not in early]) | early
        return [self._note(place, futures[place].result()) for place in positions]

    def _submit_gets(self, positions: Sequence[int]) -> dict[int, Future[Buffer | None]]:
        self._stats.gets += len(positions)
        # Separate lanes: a job that waits for jobs of its own lane could wait for ever.
        lanes = [f"{self.root.store.url}#window{number // LANE_THREADS_MAX}" for number in range(len(positions))]
        return {
            position: IO_POOL.submit_to(lane, self._get_record, position)
            for lane, position in zip(lanes, positions, strict=True)
        }

    def _get_record(self, position: int) -> Buffer | None:
        """Return a record; a folder in its place is a damaged one, which does not count below a marker."""
        try:
            return self.root.store.get(journal_key(self._ledger_id, position), size_bytes=RECORD_GET_BYTES)
        except CorruptDataError:
            return b""

    def _note(self, position: int, body: Buffer | None) -> Buffer | None:
        """Note the time of a new record; reading the same records again does not show that other roots answer."""
        if body is not None and position >= self._end:
            self._end, self._is_listed = position + 1, False
            self.learned_ms = self._clock.monotonic_ms()
        return body


def newest_marker(ledger_id: str, store: ObjectStore, number: int = 0) -> tuple[Marker, int] | None:
    """Return a root's newest marker from this number on and the number after it, None for none.

    Raises:
        CorruptDataError, UnsupportedFormatError: it cannot be read; storage errors.
    """
    get = partial(store.get, size_bytes=MARKER_SIZE_BYTES_MAX + 1)
    data = get(marker_key(ledger_id, number))
    if data is None:
        return None
    newest = number
    # A listing shows most markers at once; one get each finds those that it misses or that may not be listed.
    try:
        later = list(store.list_keys(marker_folder(ledger_id), after=marker_key(ledger_id, number)))
    except ReplogError as error:
        _log.debug("no listing of the markers on %s: %s", store.url, error)
    else:
        newest = max([newest, *(later_no for info in later if (later_no := marker_number(info.key)) is not None)])
    if newest > number:
        data = get(marker_key(ledger_id, newest)) or data
    while (following := get(marker_key(ledger_id, newest + 1))) is not None:
        newest, data = newest + 1, following
    where = f"The marker {newest} of ledger {ledger_id} on {store.url}"
    return decode_marker(data, genesis=genesis_hash(ledger_id), where=where), newest + 1
