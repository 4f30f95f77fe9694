"""Runs the core's operations on real roots, on the daemon threads of ``storage.io_pool``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from spark_replog.clock import Clock
from spark_replog.errors import CorruptDataError, ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ledger.record import RECORD_GET_BYTES, TAG_SIZE_BYTES, RecordKind, decode_record, genesis_hash
from spark_replog.ledger.root import Check, Completion, Create, Operation, PutMarker, PutOut, Read, Status
from spark_replog.ledger.snapshot_files import MARKER_SIZE_BYTES_MAX, Marker, decode_marker, encode_marker
from spark_replog.ledger.types import JournalRoot, LedgerStats
from spark_replog.storage.io_pool import IO_POOL, LANE_THREADS_MAX
from spark_replog.storage.object_store import Buffer, CreateOutcome, ObjectStore
from spark_replog.storage.open_store import is_far
from spark_replog.storage.paths import (
    journal_folder,
    journal_key,
    ledger_folders,
    marker_folder,
    marker_key,
    marker_number,
    out_key,
    record_position,
    snapshot_key,
)

_log = logging.getLogger(__name__)
SLOW_GET_MS = 3
"""A get that takes this long goes over a network; a cold start must not pay one round trip per entry."""
WINDOW_MAX = 64
"""Gets of one root at once; the clients' connection pools are of this size."""
FIRST_WINDOW = 8
"""Records that a first read over a network, without a listing, gets at once: each get is a round trip."""
LAST_WINDOW = 24
"""Records that a first read gets at once while it is not known which of them it needs."""
LISTING_MS_MAX = 30_000
"""How long a root may list a journal before it counts as silent: listing 10^5 names takes long."""
READ_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""A read ends with the record that reaches this size, so that large entries are folded before more are fetched;
concurrent gets together request about this size."""
AHEAD_AGE_MS = 1_000
"""Looks that `look_ahead` began longer ago are made again."""


class Listed:
    """The records that a listing shows in a journal; it only saves time: the journal ends at an empty position.

    Args:
        found: position -> bytes.
    """

    def __init__(self, found: dict[int, int]) -> None:
        self._found = found

    def first_after(self, position: int) -> int | None:
        """Return the first position above this one that has a record, None for none."""
        return min((each for each in self._found if each > position), default=None)

    def last(self, first: int, count: int) -> range:
        """Return the positions of the last records, and the empty one after them; the records have a bounded size.

        Args:
            first: positions below this one are left out.
            count: of records, at most.
        """
        end = start = max(self._found, default=-1) + 1
        size_bytes = self._found.get(start - 1, 0)
        while start > max(first, end - count) and start - 1 in self._found and size_bytes <= READ_SIZE_BYTES_MAX:
            start -= 1
            size_bytes += self._found.get(start - 1, 0)
        return range(start, end + 1)

    def window(self, position: int) -> int:
        """Return how many gets from here on reach the first empty position, or a bound; 0 if no listed record is near.

        After the last listed record it is one: the listing is probably right. If not, it knows no more.
        """
        count = size_bytes = 0
        while count < WINDOW_MAX - 1 and position + count in self._found and size_bytes < READ_SIZE_BYTES_MAX:
            size_bytes += self._found[position + count]
            count += 1
        is_known = count > 0 or position - 1 in self._found
        return count + (is_known and position + count not in self._found)


class RootIo:
    """One ledger's operations on its metadata roots, and the queue of their answers.

    Args:
        roots: the metadata roots, in the store's order.
        on_found: called once, on a lane, with the payloads that the first read found on a root, before the look at its
            marker: they may be undecided, or not count. It must not wait for this ledger.
    """

    def __init__(
        self,
        ledger_id: str,
        roots: Sequence[JournalRoot],
        stats: LedgerStats,
        clock: Clock,
        on_found: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self._on_found = [] if on_found is None else [on_found]
        self._clock = clock
        self._learned_ms = 0.0
        self._listings: dict[str, float] = {}  # root's URL -> when the listing that is under way began
        self._listed: set[str] = set()  # URLs of the roots that were listed and had nothing new since
        self._begun: dict[tuple[str, int], Future[Listed | None]] = {}  # (root's URL, where its first read goes on)
        self._ahead: dict[int, tuple[Future[None], Future[Listed | None] | None]] = {}
        self._ahead_ms = 0.0  # when the looks in `_ahead` began
        self._whole: dict[str, Future[Listed | None]] = {}  # root's URL -> a listing from position 0 on
        self.early: dict[str, dict[int, Future[Buffer | None]]] = {}
        """Root's URL -> position -> get under way. The goal's end clears it: no later goal may use them."""
        self._ends: dict[str, int] = {}  # root's URL -> position after the last record found there
        self._news: dict[str, int] = {}  # root's URL -> how many records its last read found, but the first
        self._ledger_id = ledger_id
        self._genesis = genesis_hash(ledger_id)
        self._roots = roots
        self._far_urls = frozenset(root.store.url for root in roots if is_far(root.store.url))
        self._stats = stats
        self._answers: SimpleQueue[Completion] = SimpleQueue()
        self._taken: list[Completion] = []

    @property
    def learned_ms(self) -> float:
        """Return when a get last found a record that is new to this process on its root, in the clock's time.

        While a root lists its journal this is now; listing it again without a new record does not count.
        """
        now_ms = self._clock.monotonic_ms()
        is_listing = any(now_ms - start_ms < LISTING_MS_MAX for start_ms in tuple(self._listings.values()))
        return now_ms if is_listing else self._learned_ms

    def look_ahead(self, record_count: int = 0) -> bool:
        """Start each root's first check, and over a network its listing, while the snapshot is read.

        The later `Check` reports their errors. Nothing counts that was read before ``replog.json`` was.

        Args:
            record_count: if a goal has begun: of the first records, which are got too over a network, as by
                `begin_last_gets`.

        Returns:
            False if they have just been started.
        """
        now_ms = self._clock.monotonic_ms()
        if self._ahead and now_ms - self._ahead_ms < AHEAD_AGE_MS:
            return False
        self._ahead_ms = now_ms
        for number, root in enumerate(self._roots):
            early: dict[int, Future[Buffer | None]] = {}
            url = root.store.url
            count = record_count if url in self._far_urls else 0
            if count:
                self.early[url] = early
            check = IO_POOL.submit_to(url, self._check, root, partial(self._check_first, root, count, early))
            self._ahead[number] = check, self._begin_list(root, 0) if url in self._far_urls else None
        return True

    def _check_first(self, root: JournalRoot, record_count: int, early: dict[int, Future[Buffer | None]]) -> None:
        (root.first_check or root.check)()
        early.update(self._submit_gets(root, range(record_count)))

    def begin_last_gets(self, index: int) -> None:
        """Over a network, get the last records that each root's listing shows while the heads of snapshots are read.

        They count in this goal only: a position that was empty before a goal may have a record by then.

        Args:
            index: the first entry that is probably needed. Its position is not known; it is not lower.
        """
        for number, (check, listing) in tuple(self._ahead.items()):
            if listing is not None:
                root = self._roots[number]
                early = self.early[root.store.url] = {}
                IO_POOL.post_to(f"{root.store.url}#last", self._get_last, root, check, listing, index, early)

    def _get_last(
        self,
        root: JournalRoot,
        check: Future[None],
        listing: Future[Listed | None],
        first: int,
        early: dict[int, Future[Buffer | None]],
    ) -> None:
        if check.exception() is None and (listed := listing.result()) is not None:
            early.update(self._submit_gets(root, listed.last(first, LAST_WINDOW - 1)))

    def check_again(self, number: int) -> None:
        """Let no check count that began earlier."""
        self._ahead.pop(number, None)

    def start(self, operations: Sequence[Operation]) -> None:
        """Run operations, one lane per root; returns at once. Each gets an answer, even without a new thread."""
        for operation in operations:
            try:
                IO_POOL.post_to(self._roots[operation.root].store.url, self._run, operation)
            except RuntimeError as error:
                self._answers.put(Completion(operation, Status.FAILED, error=error))

    def wait(self, timeout_ms: float) -> None:
        """Wait for an answer, up to the timeout; `take` returns it. An interrupt drops none."""
        with suppress(Empty):
            # One call of C code: between two calls, an interrupt would drop the answer that the first one returned.
            self._taken.extend(map(self._answers.get, (True,), (timeout_ms / 1000.0,)))

    def take(self, timeout_ms: float = 0) -> list[Completion]:
        """Return the answers that came in; waits for one, up to the timeout."""
        if not self._taken:
            self.wait(timeout_ms)
        found, self._taken = self._taken, []
        while not self._answers.empty():
            found.append(self._answers.get_nowait())
        return found

    def _run(self, operation: Operation) -> None:
        try:
            completion = self.execute(operation)
        except ReplogError as error:
            completion = Completion(operation, Status.FAILED, error=error)
        except Exception as error:  # a lane must answer, whatever a file system raises
            status = Status.UNKNOWN if isinstance(operation, Create) else Status.FAILED
            completion = Completion(operation, status, error=error)
        self._answers.put(completion)

    def execute(self, operation: Operation) -> Completion:
        """Do an operation on its root and return the answer; runs on a thread of that root."""
        root = self._roots[operation.root]
        if isinstance(operation, Read):
            completion = self._read(root, operation)
            if operation.limit and not operation.finds_gaps:
                self._news[root.store.url] = min(len(completion.records), FIRST_WINDOW - 1)
            return completion
        if isinstance(operation, Check):
            self._stats.checks += 1
            check, listing = self._ahead.pop(operation.root, (None, None))
            if check is None:
                self.early.pop(root.store.url, None)  # they began before this check
                self._check(root, root.check)
            else:
                check.result()  # it started earlier on this lane, so it has a thread already
            if listing is not None:
                self._whole[root.store.url] = listing
            if operation.repair:
                self._make_folders(root)
            return Completion(operation, Status.DONE)
        if isinstance(operation, PutOut):
            self._put_out(root, operation)
            return Completion(operation, Status.DONE)
        if isinstance(operation, PutMarker):
            data = encode_marker(self._genesis, operation.marker)
            self._give_head(root, operation.marker.name)
            root.store.create(marker_key(self._ledger_id, operation.marker_no), data, make_parent=True)
            return Completion(operation, Status.DONE)
        self._stats.creates += 1
        try:
            outcome = self._create(root, operation)
            if outcome is CreateOutcome.EXISTS:
                return Completion(operation, Status.EXISTS)
            return Completion(operation, Status.DONE, marker=self._newest_marker(root, operation.marker_no))
        except OutcomeUnknownError as error:
            return Completion(operation, Status.UNKNOWN, error=error)

    def _create(self, root: JournalRoot, operation: Create) -> CreateOutcome:
        key = journal_key(self._ledger_id, operation.position)
        try:
            return root.store.create(key, operation.data)
        except ReplogError as error:
            if operation.position or not isinstance(error.__cause__, FileNotFoundError):
                raise
        self._stats.checks += 1
        self._check(root, root.check)
        self._make_folders(root)
        return root.store.create(key, operation.data)

    def _make_folders(self, root: JournalRoot) -> None:
        """Make a ledger's folders on a root that was away when it was made; the root is proven to be itself."""
        for folder in ledger_folders(self._ledger_id):
            root.store.make_folder(folder)

    def _put_out(self, root: JournalRoot, operation: PutOut) -> None:
        """Create `out`, unless a repair has rebuilt the journal since it was read, perhaps long ago.

        Raises:
            RetriableError: REPLOG_ROOT_STALE: it was rebuilt; storage errors.
        """
        newest = self._newest_marker(root, operation.floor.marker_no)
        if newest is not None and newest[0].renewal != operation.floor.renewal:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "this root was rebuilt since this process saw it go back in time. Other processes use it; this one "
                "does once it is started again.",
                broker=root.broker_id,
                ledger=self._ledger_id,
            )
        root.store.create(out_key(self._ledger_id), _out_body(self._ledger_id, root, operation.position))
        _log.error(
            "[%s] the journal of ledger %s on broker %d (%s) misses position %d, which other roots name. No"
            " process uses it until 'replog store repair' has rebuilt it.",
            ErrorCode.REPLOG_ROOT_STALE.name,
            self._ledger_id,
            root.broker_id,
            root.store.url,
            operation.position,
        )

    def _give_head(self, root: JournalRoot, name: str) -> None:
        """Store the head that a marker names on the marker's root, the only root where the marker protects it.

        If no root has it, a newer snapshot is decided: a process that meets the marker takes that one.
        """
        key = snapshot_key(self._ledger_id, name)
        others = (each for each in self._roots if each is not root)
        if root.store.get(key, size_bytes=1) is None:
            for other in others:
                with suppress(ReplogError):
                    if (data := other.store.get(key)) is not None:
                        root.store.create(key, bytes(data), make_parent=True)
                        return

    def _newest_marker(self, root: JournalRoot, number: int) -> tuple[Marker, int] | None:
        return newest_marker(self._ledger_id, root.store, number)

    def _check(self, root: JournalRoot, check: Callable[[], None]) -> None:
        """Check the root's ``replog.json`` and, at the same time, look for `out`.

        Raises:
            RetriableError: REPLOG_ROOT_STALE; storage errors.
        """
        if len(self._roots) == 1:
            check()  # no other root could have named what it forgot
            return
        said = IO_POOL.submit_to(f"{root.store.url}#out", root.store.get, out_key(self._ledger_id))
        check()
        if said.result() is not None:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "this root went back in time: the object 'out' is beside its journal. Run 'replog store repair'.",
                broker=root.broker_id,
                ledger=self._ledger_id,
            )

    def _read(self, root: JournalRoot, operation: Read) -> Completion:
        """Read on until a position is empty: one record at a time if gets are quick, else many.

        Over a network it begins with as many records as the last read found, and the empty position after them: a
        process that reads what another one appends needs a round trip for these, and one for the marker.
        """
        records: list[bytes] = []
        listing = self._begun.pop((root.store.url, operation.position), None)
        if operation.finds_gaps and listing is None:
            listing = self._whole.pop(root.store.url, None) or self._begin_list(root, operation.position)
        early = self.early.pop(root.store.url, {})
        window, size_bytes, is_early = 1, 0, bool(early)
        if root.store.url in self._far_urls:
            window += self._news.get(root.store.url, 0)
            if listing is not None:
                window = self._first_window(root, operation.position, listing)
        while len(records) < operation.limit and size_bytes < READ_SIZE_BYTES_MAX:
            start_ms = self._clock.monotonic_ms()
            for found in self._get(root, operation.position + len(records), window, early):
                if found is None:
                    return self._read_to_end(root, operation, tuple(records), listing)
                records.append(bytes(found))
                size_bytes += len(records[-1])
            took_ms = self._clock.monotonic_ms() - start_ms
            if took_ms < SLOW_GET_MS and not is_early:
                window = 1
                continue
            is_early = False
            if listing is not None:  # it usually comes with the first gets; if it takes long, guess
                wait([listing], took_ms / 1000.0)
            listed = listing.result() if listing is not None and listing.done() else None
            size_bytes_max = max(map(len, records[-window:]))
            grown = min(2 * window, WINDOW_MAX, max(1, READ_SIZE_BYTES_MAX // size_bytes_max))
            wanted = 0 if listed is None else listed.window(operation.position + len(records))
            window = min(wanted or grown, operation.limit - len(records))
        marker = self._newest_marker(root, operation.marker_no)
        if listing is not None and marker is None:
            self._begun[root.store.url, operation.position + len(records)] = listing
        return Completion(operation, Status.DONE, tuple(records), marker=marker)

    def _first_window(self, root: JournalRoot, position: int, listing: Future[Listed | None]) -> int:
        """Return how many records to get at once: all that are listed, if the listing has arrived or soon does."""
        start_ms = self._listings.get(root.store.url)
        if start_ms is not None:
            wait([listing], (self._clock.monotonic_ms() - start_ms) / 1000.0)
        listed = listing.result() if listing.done() else None
        return FIRST_WINDOW if listed is None else max(1, listed.window(position))

    def _read_to_end(
        self,
        root: JournalRoot,
        operation: Read,
        records: tuple[bytes, ...],
        listing: Future[Listed | None] | None,
    ) -> Completion:
        """Answer a read that found an empty position: the journal was truncated there, or ends there."""
        marker = after_gap = before = None
        if records:
            self._show(root, operation.position, records)
        elif operation.finds_gaps and operation.position:  # before the look at the marker, which a cut puts first
            key = journal_key(self._ledger_id, operation.position - 1)
            found = root.store.get(key, size_bytes=RECORD_GET_BYTES)
            before = None if found is None else bytes(found)
        if records or operation.checks_marker:
            marker = self._newest_marker(root, operation.marker_no)
        if marker is None and listing is not None:
            after_gap = self._record_after_gap(root, operation.position + len(records), listing.result())
            if after_gap is not None:  # truncated between the two looks
                marker = self._newest_marker(root, operation.marker_no)
        return Completion(operation, Status.DONE, records, True, marker, after_gap, before)

    def _show(self, root: JournalRoot, position: int, records: Sequence[bytes]) -> None:
        with suppress(IndexError, ReplogError):  # another root was first; who learns the records reports damage
            on_found = self._on_found.pop()
            decoded = [decode_record(data, root=root.store.url, position=position) for data in records]
            on_found([each.payload[TAG_SIZE_BYTES:] for each in decoded if each.kind is RecordKind.ENTRY])

    def _record_after_gap(self, root: JournalRoot, end: int, listed: Listed | None) -> int | None:
        """Return the first position above an empty one that has a file, None if no listing shows one.

        An alarm for deleted files, once per process, root and error; it sees only the files of the listing.
        """
        first = None if listed is None else listed.first_after(end)
        if first is None or root.store.get(journal_key(self._ledger_id, end), size_bytes=1) is not None:
            return None  # nothing is listed above, or the position was filled meanwhile
        return first

    def _begin_list(self, root: JournalRoot, position: int) -> Future[Listed | None]:
        return IO_POOL.submit_to(f"{root.store.url}#list", self._list, root, position)

    def _list(self, root: JournalRoot, position: int) -> Listed | None:
        """List a journal from a position on; None if that fails."""
        url = root.store.url
        is_first = url not in self._listed
        self._listed.add(url)
        if is_first:
            self._listings[url] = self._clock.monotonic_ms()
        try:
            before = journal_key(self._ledger_id, position - 1) if position else ""
            found = list(root.store.list_keys(journal_folder(self._ledger_id), after=before))
        except ReplogError as error:
            _log.debug("no listing of the journals on %s: %s", root.store.url, error)
            return None
        finally:
            if is_first:
                self._learned_ms = self._clock.monotonic_ms()  # before the pop, so one of the two is always set
                self._listings.pop(url, None)
        places = ((record_position(info.key), info.size_bytes) for info in found)
        return Listed({place: size_bytes for place, size_bytes in places if place is not None})

    def _get(
        self, root: JournalRoot, position: int, count: int, early: dict[int, Future[Buffer | None]]
    ) -> list[Buffer | None]:
        if count == 1 and position not in early:
            self._stats.gets += 1
            return [self._found(root, position, self._get_record(root, position))]
        positions = range(position, position + count)
        futures = self._submit_gets(root, [each for each in positions if each not in early]) | early
        return [self._found(root, each, futures[each].result()) for each in positions]

    def _submit_gets(self, root: JournalRoot, positions: Sequence[int]) -> dict[int, Future[Buffer | None]]:
        self._stats.gets += len(positions)
        # Separate lanes: a job that waits for jobs of its own lane could wait for ever.
        lanes = [f"{root.store.url}#window{number // LANE_THREADS_MAX}" for number in range(len(positions))]
        return {
            each: IO_POOL.submit_to(lane, self._get_record, root, each)
            for lane, each in zip(lanes, positions, strict=True)
        }

    def _get_record(self, root: JournalRoot, position: int) -> Buffer | None:
        """Return a record; a folder in its place is a damaged one, which does not count below a marker."""
        try:
            return root.store.get(journal_key(self._ledger_id, position), size_bytes=RECORD_GET_BYTES)
        except CorruptDataError:
            return b""

    def _found(self, root: JournalRoot, position: int, body: Buffer | None) -> Buffer | None:
        """Note the time of a new record; reading the same records again does not show that other roots answer."""
        if body is not None and position >= self._ends.get(root.store.url, 0):
            self._ends[root.store.url] = position + 1
            self._listed.discard(root.store.url)
            self._learned_ms = self._clock.monotonic_ms()
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
        newest = max([newest, *(found for info in later if (found := marker_number(info.key)) is not None)])
    if newest > number:
        data = get(marker_key(ledger_id, newest)) or data
    while (following := get(marker_key(ledger_id, newest + 1))) is not None:
        newest, data = newest + 1, following
    where = f"The marker {newest} of ledger {ledger_id} on {store.url}"
    return decode_marker(data, genesis=genesis_hash(ledger_id), where=where), newest + 1


def _out_body(ledger_id: str, root: JournalRoot, position: int) -> bytes:
    return json.dumps(
        {
            "format": "replog-out",
            "version": 1,
            "ledgerId": ledger_id,
            "brokerId": root.broker_id,
            "missingPosition": position,
        }
    ).encode()
