"""Stores, finds and deletes a ledger's snapshots on its metadata roots; puts markers and truncates journals."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from itertools import islice
from typing import Any, TypeVar

from spark_replog.clock import Clock
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError
from spark_replog.fault_point import fault_point
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import (
    SNAPSHOT_SIZE_BYTES_MAX,
    Floor,
    JournalPoint,
    Marker,
    SnapshotHead,
    decode_snapshot,
    encode_marker,
)
from spark_replog.ledger.types import JournalRoot
from spark_replog.logs import Once
from spark_replog.quorum import majority_of
from spark_replog.snapshot import PAGE_NAME, SNAPSHOT_NAME, PageMissingError, is_named, snapshot_too_large
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL, LANE_THREADS_MAX
from spark_replog.storage.object_store import CreateOutcome, ObjectStore
from spark_replog.storage.open_store import is_far
from spark_replog.storage.paths import (
    journal_folder,
    journal_key,
    marker_key,
    page_folder,
    page_key,
    record_position,
    snapshot_folder,
    snapshot_key,
)

T = TypeVar("T")
PAGE_SIZE_BYTES_MAX = 64 * 1024 * 1024
PAGE_DELETES_MAX = 2_000
"""Per run and root; the next run continues."""
_LOG = logging.getLogger(__name__)
NEWEST_HEADS = 3
"""How many of the newest heads a process tries, until it can read one."""
REST_MS = 0.3
"""After each record that a truncation deletes behind a commit: thousands of deletions in a row slow the commits beside
them down."""
REST_RECORDS_MAX = 8_192
"""With more records to delete than this a truncation does not rest: it must not fall behind the commits."""
STORE_GRACE_MS = 1_000
"""For the roots beside the majority that a snapshot needs: else the process may end before they have its files, and
only a scrub would copy them."""
_LISTING_PATIENCE = 10
"""Multiple of the timeout: a journal that grew long is listed before its first file is deleted."""


class SnapshotIo:
    """Calls metadata roots, several at once; a root that hangs or is away costs nothing while enough others answer.

    Args:
        timeout_ms: how long to wait for enough roots; calls that write or delete many files have this long per file.
    """

    def __init__(self, ledger_id: str, roots: Sequence[JournalRoot], timeout_ms: int, clock: Clock) -> None:
        self._ledger_id = ledger_id
        self._roots = roots
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._genesis = genesis_hash(ledger_id)
        self.is_far = any(is_far(root.store.url) for root in roots)
        self._made: set[int] = set()
        self._nearest = 0
        self._running: dict[int, list[Future[Any]]] = {}  # per root: calls that had no answer yet
        self._moved_count = 0  # files written and deleted by calls that take many
        self._cleared: dict[int, Floor] = {}  # per root: this process has deleted all records below it
        self.seen_heads = frozenset[str]()  # in the last listing on any root: to be believed only if another names them
        self._holders: dict[str, list[int]] = {}  # of each of these, the roots that listed it
        self._rejected: set[str] = set()  # heads that turned out not to be decided, and what they call decided
        self._rejections: list[str] = []  # the same in words
        self._bad = Once()  # (root, key) of files that were found damaged

    # -- reading ----------------------------------------------------------------------------------

    def load_page(self, name: str) -> bytes:
        """Return a page from the first root that has it.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING.
            CorruptDataError: CORRUPT_MESSAGE: every copy is damaged.
        """
        return self._first(f"page {name}", page_key(self._ledger_id, name), PAGE_SIZE_BYTES_MAX)

    def load_head(self, name: str) -> SnapshotHead:
        """Return a snapshot's head from the first root that has it.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: it is on no root that answers.
            CorruptDataError: CORRUPT_MESSAGE: every copy is damaged.
            UnsupportedFormatError: UNSUPPORTED_VERSION.
        """
        where = f"The snapshot {name} of ledger {self._ledger_id}"
        data = self.head_data(name)
        head = decode_snapshot(data, genesis=self._genesis, root_count=len(self._roots), where=where)
        if head.base.index != int(name[:20]):
            raise CorruptDataError(ErrorCode.CORRUPT_MESSAGE, f"{where} has the state after entry {head.base.index}.")
        return head

    def points_of(self, name: str) -> Sequence[JournalPoint]:
        """Return where a snapshot's head lets each journal be read on; nothing if no root has a good copy any more.

        Raises:
            RetriableError: REPLOG_SNAPSHOT_MISSING, REPLOG_NO_QUORUM: a root that does not answer now may have it.
        """
        try:
            return self.load_head(name).points
        except CorruptDataError:
            return ()
        except PageMissingError:
            self.head_names()
            if name in self.seen_heads:
                raise
            return ()

    def head_data(self, name: str) -> bytes:
        """Return the bytes of a snapshot's head as it is stored; raises what `load_page` does."""
        return self._first(f"snapshot {name}", snapshot_key(self._ledger_id, name), SNAPSHOT_SIZE_BYTES_MAX)

    def head_names(self) -> set[str]:
        """Return the names of the heads that the listings of a majority show. They may miss some.

        A head that a majority of the roots lacks is left out: it is being stored now, or its writer died, or it was
        forged. Only listings show which head is the newest, so one root alone could else give any state. Journals,
        markers and the heads that these name are enough to begin without it. While a root does not answer, a head that
        it may have counts too: whoever begins with one checks it (`is_on_majority`).
        """
        count = len(self._roots)
        majority = majority_of(count)

        def heads(root: JournalRoot) -> list[str]:
            return heads_on(root.store, self._ledger_id)

        listed = self._each(heads, needed_count=majority)
        held = Counter(name for _, names in listed for name in names)
        if len(listed) < count and any(held[name] < majority for name in sorted(held)[-NEWEST_HEADS:]):
            rest = set(range(count)).difference(number for number, _ in listed)
            listed += self._each(heads, needed_count=0, among=rest, grace_ms=STORE_GRACE_MS)
            held = Counter(name for _, names in listed for name in names)
        self._holders = {name: [number for number, names in listed if name in names] for name in held}
        self.seen_heads = frozenset(held) - self._rejected
        return {name for name in self.seen_heads if len(listed) - held[name] < majority}

    def is_on_majority(self, name: str) -> bool:
        """Return whether the last listings showed a head on a majority of all roots."""
        return len(self._holders.get(name, ())) >= majority_of(len(self._roots))

    def reject(self, newest: str, name: str) -> None:
        """Leave out a head, and the one that it calls decided, from now on; logs which roots have it."""
        self._rejected |= {newest, name}
        self._rejections.append(f"snapshot {newest} on {self._names_of(self._holders.get(newest, ()))}")
        _LOG.warning(
            "[%s] ledger %s: %s is left out: no decided entry names the state that it leads to. The state is read from "
            "the journals. Run `replog store verify` once all metadata roots answer.",
            ErrorCode.REPLOG_SNAPSHOT_MISSING.name,
            self._ledger_id,
            self._rejections[-1],
        )

    def newest_head(self, names: set[str] | None = None) -> tuple[str, SnapshotHead] | None:
        """Return the newest whole snapshot of the newest of these names; None for none.

        Args:
            names: None: of `head_names`, those on a majority.
        """
        names = set(filter(self.is_on_majority, self.head_names())) if names is None else names
        for name in sorted(names, reverse=True)[:NEWEST_HEADS]:
            try:
                return name, self.load_head(name)
            except (PageMissingError, CorruptDataError) as error:
                _LOG.warning("ledger %s: a snapshot is passed over: %s", self._ledger_id, error)
        return None

    def _first(self, what: str, key: str, size_bytes_max: int) -> bytes:
        """Return the file of a snapshot from the first root whose bytes are those of its name."""
        name, errors, bad = key.rpartition("/")[2], list[ReplogError](), list[str]()
        count = len(self._roots)
        for number in [(self._nearest + step) % count for step in range(count)]:  # one is usually enough

            def get(root: JournalRoot) -> bytes | None:
                try:
                    body = root.store.get(key, size_bytes=size_bytes_max + 1)
                except CorruptDataError:  # a folder has its name
                    return b""
                return None if body is None else bytes(body)

            try:
                data = self._ask(number, get)
            except ReplogError as error:
                errors.append(error)
                continue
            if data is None:
                continue
            if is_named(name, data):
                self._nearest = number
                return data
            bad.append(self._names_of([number]))
            if self._bad.is_first((number, key)):
                _LOG.error(
                    "[%s] %s on %s holds other bytes than its name says: it is read from another root. "
                    "`replog store repair` copies it.",
                    ErrorCode.CORRUPT_MESSAGE.name,
                    key,
                    bad[-1],
                )
        if bad and not errors:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"The {what} of ledger {self._ledger_id} is damaged on {' and '.join(bad)}, and no other metadata root "
                "has it. Put the file back from a backup.",
                key=key,
            )
        reasons = [*map(str, errors), *(f"it is damaged on {root_name}" for root_name in bad)]
        reasons += [f"{rejection} was left out, because no decided entry names it" for rejection in self._rejections]
        reason = "; ".join(reasons) or "all answer"
        raise PageMissingError(
            ErrorCode.REPLOG_SNAPSHOT_MISSING,
            f"The {what} of ledger {self._ledger_id} is on no metadata root that answers ({reason}). Bring the roots "
            "back that do not answer; if all do, files below snapshots/ or pages/ were deleted: put them back.",
        )

    def _names_of(self, numbers: Iterable[int]) -> str:
        roots = [self._roots[number] for number in numbers]
        return " and ".join(f"broker {root.broker_id} ({root.store.url})" for root in roots)

    def _ask(self, number: int, call: Callable[[JournalRoot], T]) -> T:
        """Call it on one root, on its lane: a root that hangs costs the timeout.

        Raises:
            RetriableError: REPLOG_STORE_UNAVAILABLE: no answer in time.
        """
        root = self._roots[number]
        future = IO_POOL.submit_to(f"{root.store.url}#snapshot", call, root)
        try:
            return future.result(self._timeout_ms / 1000.0)
        except TimeoutError:
            if future.done():
                return future.result()
            raise RetriableError(
                ErrorCode.REPLOG_STORE_UNAVAILABLE,
                f"broker {root.broker_id} ({root.store.url}) gave no answer within {self._timeout_ms} ms.",
            ) from None

    def _each(
        self,
        call: Callable[[JournalRoot], T],
        *,
        needed_count: int,
        among: Iterable[int] | None = None,
        is_long: bool = False,
        grace_ms: float = 0,
    ) -> list[tuple[int, T]]:
        """Call it on several roots at once; return the answers when there are enough, or all have answered.

        Args:
            is_long: the timeout begins again while the calls make progress.
            grace_ms: how long to wait for the other roots once there are enough answers.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: fewer answered in time.
        """
        numbers = range(len(self._roots)) if among is None else tuple(among)
        begun = {number: future for number in numbers if (future := self._begin(number, call)) is not None}
        answers = answers_of(
            begun,
            self._timeout_ms,
            needed_count=needed_count,
            grace_ms=grace_ms,
            progress=lambda: self._moved_count if is_long else 0,
            clock=self._clock,
        )
        if len(answers.by_root) < needed_count:
            refused_count = sum(error.code is ErrorCode.REPLOG_STORE_REFUSED for error in answers.errors.values())
            is_refused = len(numbers) - refused_count < needed_count
            raise RetriableError(
                ErrorCode.REPLOG_STORE_REFUSED if is_refused else ErrorCode.REPLOG_NO_QUORUM,
                f"{len(answers.by_root)} of {len(self._roots)} metadata roots did what was asked, {needed_count} are "
                f"needed, {refused_count} refused: {answers.reasons or 'the others hang'}. "
                f"{'Remove the cause on these roots' if is_refused else 'Bring a root back'} and repeat the call.",
                ledger_id=self._ledger_id,
            )
        return list(answers.by_root.items())

    def _begin(self, number: int, call: Callable[[JournalRoot], T]) -> Future[T] | None:
        """Run a call on a root's lane; None if the root hangs: calls that wait there would keep their pages in memory.

        Without this, a root that hangs for hours would collect the pages and heads of all snapshots of that time.
        """
        running = [earlier_call for earlier_call in self._running.get(number, ()) if not earlier_call.done()]
        if len(running) >= LANE_THREADS_MAX:
            return None
        future = IO_POOL.submit_to(f"{self._roots[number].store.url}#snapshot", call, self._roots[number])
        self._running[number] = [*running, future]
        return future

    # -- writing ----------------------------------------------------------------------------------

    def store(self, pages: Mapping[str, bytes], name: str, head: bytes) -> list[int]:
        """Store pages, then the head, on a majority at least; return the numbers of the roots that have all of it.

        No other bytes ever get the name of a page or a head, so an existing one is the same.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: too few roots took it; what was stored is garbage.
            ReplogError: RECORD_LIST_TOO_LARGE: no process could read it, and it would replace one that can be read.
        """
        for what, size_bytes, limit in (
            ("head", len(head), SNAPSHOT_SIZE_BYTES_MAX),
            ("page", max(map(len, pages.values()), default=0), PAGE_SIZE_BYTES_MAX),
        ):
            if size_bytes > limit:
                raise snapshot_too_large(f"its {what} has {size_bytes} bytes, and {limit} is the most", self._ledger_id)

        def store_pages(root: JournalRoot) -> None:
            root.check()  # one that vanished must not come back empty
            if root.broker_id not in self._made:
                root.store.make_folder(page_folder(self._ledger_id))
                self._made.add(root.broker_id)
            for page, data in pages.items():
                root.store.create(page_key(self._ledger_id, page), data, make_parent=True)
                self._moved_count += 1
                fault_point("snapshot.page")

        def store_head(root: JournalRoot) -> None:
            if root.broker_id not in paged:
                store_pages(root)  # a slow root; pages that exist stay
            root.store.create(snapshot_key(self._ledger_id, name), head, make_parent=True)

        majority = majority_of(len(self._roots))
        took = self._each(store_pages, needed_count=majority, is_long=True, grace_ms=STORE_GRACE_MS)
        paged = {self._roots[number].broker_id for number, _ in took}
        fault_point("snapshot.pages")
        took = self._each(store_head, needed_count=majority, is_long=True, grace_ms=STORE_GRACE_MS)
        fault_point("snapshot.head")
        return [number for number, _ in took]

    # -- truncation -------------------------------------------------------------------------------

    def truncate(self, number: int, marker_no: int, marker: Marker, head: bytes, *, rest_ms: float = 0) -> int:
        """Put a marker on a root, then delete the records below it in its journal, from the newest down.

        The head that the marker names is stored both before and after the marker: in between, a process that does not
        know the marker may delete the head.

        Args:
            number: of the root; marker_no: of the marker; head: its bytes.
            rest_ms: how long to rest after each record that it deletes.

        Returns:
            Files deleted; 0 also if another process put a different marker under this number.
        """
        root, head_key = self._roots[number], snapshot_key(self._ledger_id, marker.name)
        root.check()
        root.store.create(head_key, head, make_parent=True)
        fault_point("truncate.before_marker")
        data = encode_marker(self._genesis, marker)
        outcome = root.store.create(marker_key(self._ledger_id, marker_no), data, make_parent=True)
        if outcome is CreateOutcome.EXISTS:
            existing = root.store.get(marker_key(self._ledger_id, marker_no))
            if existing is None or bytes(existing) != data:
                return 0
        fault_point("truncate.marker")
        root.store.create(head_key, head, make_parent=True)
        floor = marker.point(marker_no + 1).floor
        return self.delete_below(number, floor, is_new=True, rest_ms=rest_ms)

    def delete_below(self, number: int, floor: Floor, *, is_new: bool = False, rest_ms: float = 0) -> int:
        """Delete the records below a root's marker, newest first, also those that an earlier truncation left.

        The journal is listed, unless this process put this marker, or is putting it, and the one before: a journal has
        no gaps, and listing thousands of names would hold up commits of this process.

        Args:
            number: of the root.
            floor: the marker's.
            is_new: this call's process has just put the marker.
            rest_ms: see ``truncate``.

        Returns:
            How many were deleted.
        """
        root = self._roots[number]
        cleared = self._cleared.get(number)
        if cleared == floor:
            return 0
        positions: Sequence[int]
        is_next = cleared is not None and floor[0::3] == (cleared.marker_no + 1, cleared.renewal)
        if is_new and cleared is not None and is_next:
            positions = range(cleared.position, floor.position)
        else:
            places = (record_position(info.key) for info in root.store.list_keys(journal_folder(self._ledger_id)))
            positions = sorted(place for place in places if place is not None)
        below = [place for place in reversed(positions) if place < floor.position]
        for position in below:
            self._delete(root, journal_key(self._ledger_id, position))
            fault_point("truncate.delete")
            if rest_ms and len(below) <= REST_RECORDS_MAX:
                self._clock.sleep_ms(rest_ms)
        self._cleared[number] = floor
        return len(below)

    def delete_heads(self, is_garbage: Callable[[str], bool], among: Sequence[int], *, is_dry_run: bool = False) -> int:
        """Delete the garbage heads on those roots of `among` that answer; return how many files."""

        def delete(root: JournalRoot) -> int:
            garbage = [name for name in heads_on(root.store, self._ledger_id) if is_garbage(name)]
            for name in garbage if not is_dry_run else ():
                self._delete(root, snapshot_key(self._ledger_id, name))
                fault_point("snapshot.delete_head")
            return len(garbage)

        needed_count = majority_of(len(among)) if among else 0
        return sum(count for _, count in self._each(delete, needed_count=needed_count, among=among, is_long=True))

    def delete_pages(self, is_garbage: Callable[[str], bool], *, is_dry_run: bool = False) -> int:
        """Delete garbage pages, at most `PAGE_DELETES_MAX` per root; return how many files."""

        def delete(root: JournalRoot) -> int:
            keys = (info.key for info in root.store.list_keys(page_folder(self._ledger_id)))
            names = ((key, key.rpartition("/")[2]) for key in keys)
            garbage_keys = (key for key, name in names if PAGE_NAME.fullmatch(name) and is_garbage(name))
            garbage = list(islice(garbage_keys, PAGE_DELETES_MAX))
            for key in garbage if not is_dry_run else ():
                self._delete(root, key)
                fault_point("snapshot.delete_page")
            return len(garbage)

        answers = self._each(delete, needed_count=majority_of(len(self._roots)), is_long=True)
        return sum(count for _, count in answers)

    def _delete(self, root: JournalRoot, key: str) -> None:
        root.store.delete(key)
        self._moved_count += 1

    def begin_on_root(self, number: int, call: Callable[[], T]) -> Future[T]:
        """Run a call that may delete many records on a root's own lane."""
        return IO_POOL.submit_to(f"{self._roots[number].store.url}#cut", call)

    def wait_for_root(self, number: int, future: Future[T]) -> T:
        """Return what a call of `begin_on_root` returns; wait while it makes progress.

        Raises:
            RetriableError: REPLOG_STORE_UNAVAILABLE: one file or listing took `_LISTING_PATIENCE` times the timeout.
        """
        moved_count = -1
        while moved_count != self._moved_count:
            moved_count = self._moved_count
            if wait([future], _LISTING_PATIENCE * self._timeout_ms / 1000.0).done:
                return future.result()
        raise RetriableError(
            ErrorCode.REPLOG_STORE_UNAVAILABLE,
            f"broker {self._roots[number].broker_id} ({self._roots[number].store.url}) did not delete a file within "
            f"{_LISTING_PATIENCE * self._timeout_ms} ms.",
        )


def heads_on(store: ObjectStore, ledger_id: str) -> list[str]:
    """Return the names of the heads that a root's listing shows."""
    names = [info.key.rpartition("/")[2] for info in store.list_keys(snapshot_folder(ledger_id))]
    return [name for name in names if SNAPSHOT_NAME.fullmatch(name)]
