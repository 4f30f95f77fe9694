"""Snapshots of a ledger: when the state is restored from one, when one is written, when journals are truncated.

The keeper decides, in turns of the ledger's readers and writers. The writer makes the steps between these turns.

Each snapshot is made from a state that derives from the decided one, is stored on a majority, and counts once its
SnapshotCommit is decided. This process's next entry carries that command; until then a process that finds the stored
head only starts with the decided snapshot that the head names. No append waits for a snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_replog.clock import Clock
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError, UnsupportedFormatError
from spark_replog.fault_point import fault_point
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.journal_cuts import Cut, JournalCuts
from spark_replog.ledger.record import NO_INDEX, genesis_hash
from spark_replog.ledger.root import READ
from spark_replog.ledger.snapshot_files import (
    Floor,
    JournalPoint,
    SnapshotHead,
    UnprovenHead,
    encode_snapshot,
    snapshot_name,
)
from spark_replog.ledger.snapshot_io import SnapshotIo
from spark_replog.ledger.types import JournalRoot, LedgerSettings, SnapshotState, SnapshotStats
from spark_replog.logs import warn_of_upkeep
from spark_replog.snapshot import DecidedSnapshot, FrozenState, PageMissingError
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.paths import page_key, snapshot_key

if TYPE_CHECKING:
    from spark_replog.ledger.ledger import Ledger

REST_MAX_MS = 600_000
NEAR_REST_FACTOR = 4
"""On roots of this machine a process rests this much longer: there a snapshot is work for processors, not waiting, and
commits beside it take twice as long. Fewer than one in a hundred is beside it, so the 99th percentile stays as it was.
Over a network each entry that a cold process reads more costs a call, so there snapshots follow sooner."""
NEAR_REST_MS_MAX = 1_000
"""Longer rests are not made longer still: at one commit a second each one would be an entry more to read."""
HURRY_ENTRY_COUNT = 8_192
"""From this many entries after the newest snapshot a process rests a tenth as long: a cold process reads them all."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A frozen state and its envelope without the state's own bytes, which are encoded outside of the lock.

    Attributes:
        unread_roots: those that do not answer: their journals are known from earlier only.
        name: of the head, once it is on a majority.
    """

    frozen: FrozenState
    head: SnapshotHead
    unread_roots: list[int]
    name: str = ""


class HeadGarbage(NamedTuple):
    """Which heads are garbage: those below an index, except the decided one and those that markers name.

    A marker's own root has a copy of the head that it names. So a root whose marker is not known keeps all of its
    heads, and other roots need keep none for it.

    Attributes:
        among: numbers of the roots whose newest marker is known.
    """

    below: int
    decided: str
    named: frozenset[int]
    among: tuple[int, ...]

    def is_garbage(self, name: str) -> bool:
        """Return whether the head of this name is garbage on the roots `among`."""
        index = int(name[:20])
        return index < self.below and index not in self.named and name != self.decided


def likely_heads(names: Iterable[str], truncate_record_count_min: int) -> list[str]:
    """Return the newest head, after the second newest if that may be the decided one.

    It is while the newest one's SnapshotCommit waits for the next entry. Once that is decided, a second head stays only
    if a marker names it. So of two heads, the older one is a marker's if the journal is long enough to have been cut.
    """
    newest = sorted(names)[-3:]
    is_of_marker = len(newest) == 2 and int(newest[0][:20]) >= truncate_record_count_min
    return newest[-1:] if is_of_marker else newest[-2:]


class SnapshotKeeper:
    """The snapshots of one ledger in one process; call methods that take a core only in a turn (`Ledger.with_turn`)."""

    def __init__(
        self,
        ledger_id: str,
        roots: Sequence[JournalRoot],
        settings: LedgerSettings,
        clock: Clock,
        state: SnapshotState,
        lock: AbstractContextManager[object],
    ) -> None:
        self.stats = SnapshotStats()
        self.io = SnapshotIo(ledger_id, roots, settings.quorum_timeout_ms, clock)
        self.cuts = JournalCuts(ledger_id, settings, clock, self.io, self.stats)
        self._ledger_id = ledger_id
        self._settings = settings
        self._clock = clock
        self._state = state
        state.load_page = self.io.load_page
        self._lock = lock
        # The number and the name of the snapshot that the state in memory derives from, and its head, as far as known.
        self._derived: tuple[int, str, SnapshotHead | None] = (0 if state.snapshot.no == 0 else -1, "", None)
        self._newest = state.snapshot
        self.seen = state.snapshot
        """The decided snapshot at the last `folded`."""
        self.unproven: UnprovenHead | None = None
        """What the state was made from, until a decided entry names it."""
        self._names: Future[set[str]] | None = None
        self._stored: Draft | None = None
        self._rest = 0.0, 0.0  # since when it rests, and for how long
        self._busy = threading.Lock()

    def is_behind(self) -> bool:
        """Return whether the next snapshot would have more than the decided one: entries, or rows that are gone."""
        snapshot, state = self._state.snapshot, self._state
        newest = max(snapshot.index, 0 if snapshot.no == 0 else snapshot.entry_index)
        return state.has_gone_rows or state.applied_index > newest

    # -- restoring --------------------------------------------------------------------------------

    def look_ahead(self) -> None:
        """Begin to list the heads, for `start`."""
        self._names = IO_POOL.submit_to("heads", self.io.head_names)

    def start(self, core: LedgerCore, on_heads: Callable[[int], None]) -> None:
        """Begin with the newest decided snapshot that the listing of `look_ahead` leads to, if any. It only saves time.

        The newest head itself may be undecided: then it may not replace the entries before it on a root that lacks
        them, and this process could not backfill them either.

        Args:
            on_heads: called before heads are read, if there are any, with the first entry that is probably needed.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION.
        """
        try:
            if self._names is None:
                self.look_ahead()  # no thread was left for it
            assert self._names is not None
            names = self._names.result()
            if self._state.applied_index > NO_INDEX:  # a head cannot be checked by entries that are folded
                names = set(filter(self.io.is_on_majority, names))
            likely = likely_heads(names, self._settings.truncate_record_count_min)
            guessed = likely[:-1] if self.io.is_far else []
            ahead = {head_name: IO_POOL.submit_to("heads", self.io.load_head, head_name) for head_name in guessed}
            if likely:
                on_heads(int(likely[0][:20]) + 1)
            newest = self.io.newest_head(names)
            if newest is None:
                return
            name, head = newest
            core.expect(head.points)
            if head.decided.no == 0:
                return
            if (decided := head.decided.name) in self.io.seen_heads:  # if not, it was deleted: a newer one is decided
                with suppress(PageMissingError):
                    early_head = ahead.get(decided)
                    name, head = decided, self.io.load_head(decided) if early_head is None else early_head.result()
            if head.base.index > self._state.applied_index:
                self._restore(name, head)
        except UnsupportedFormatError:
            raise
        except ReplogError as error:
            _LOG.debug("ledger %s starts without its newest snapshot: %s", self._ledger_id, error)
            return
        core.start_at(head.base, name, head.points)
        core.expect(newest[1].points)
        if not self.io.is_on_majority(newest[0]):
            self._doubt(core, newest, name, is_cold=True)
        elif name == newest[1].decided.name:
            core.snapshot = head.base, name

    def start_over(self, core: LedgerCore) -> bool:
        """Begin again with the decided snapshot that was folded last, in a new core.

        Returns:
            False: it begins with the journals, because the head that it began with is not the decided one.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: it is on no root that answers; a newer one may be decided.
            RetriableError: REPLOG_NO_QUORUM.
        """
        unproven, self.unproven = self.unproven, None
        if unproven is not None:
            self.io.reject(unproven.newest, unproven.name)
            self._state.snapshot = self.seen = self._newest
            if unproven.is_cold:
                self._state.clear()
                self._newest = self.seen = self._state.snapshot
                self._derived = 0, "", None
                core.expect(unproven.points)  # a journal that ends before one of them is an alarm all the same
                return False
        self._newest = self.decided
        name, newest = self._newest.name, None
        try:
            head = self.io.load_head(name)
        except PageMissingError:  # deleted, so a newer one is decided
            newest = self.io.newest_head(self.io.head_names())
            if newest is None or newest[1].base.index < self.decided.index:
                raise
            name, head = newest
        self._restore(name, head)
        core.start_at(head.base, name, head.points)
        if newest is not None and not self.io.is_on_majority(name):
            self._doubt(core, newest, name, is_cold=False)
        return True

    def _doubt(self, core: LedgerCore, newest: tuple[str, SnapshotHead], name: str, *, is_cold: bool) -> None:
        """Note that the state was made from a head that is not proven; until it is, this process claims nothing."""
        self.unproven = UnprovenHead(newest[0], name, newest[1].points, self._state.snapshot, is_cold)
        core.may_claim = False

    def note_entry(self, core: LedgerCore) -> None:
        """After each entry that is folded: see whether its SnapshotCommit proves the head; under the lock."""
        unproven, snapshot = self.unproven, self._state.snapshot
        if unproven is not None and (snapshot.no, snapshot.name) == (unproven.before.no + 1, unproven.name):
            self.unproven, core.may_claim = None, not self._settings.read_only

    def require_proven(self) -> None:
        """Raise PageMissingError, REPLOG_SNAPSHOT_MISSING, if no folded entry names the state's head: start over."""
        if self.unproven is not None:
            raise PageMissingError(
                ErrorCode.REPLOG_SNAPSHOT_MISSING,
                f"no decided entry of ledger {self._ledger_id} names the snapshot {self.unproven.name}, which fewer "
                "than a majority of the metadata roots have.",
            )

    def restore_base(self, core: LedgerCore) -> None:
        """Restore the state from a snapshot when the entries that follow the state are gone from the journals.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING.
            CorruptDataError, UnsupportedFormatError: the snapshot cannot be read.
        """
        prefix = core.prefix
        self.require_proven()
        try:
            if not prefix.snapshot_name:
                raise PageMissingError(ErrorCode.REPLOG_SNAPSHOT_MISSING, "no marker names a snapshot.")
            name, head = prefix.snapshot_name, self.io.load_head(prefix.snapshot_name)
            self._restore(name, head)
        except (PageMissingError, CorruptDataError):
            newest = self.io.newest_head()  # a newer one may have replaced what the marker names
            if newest is None or newest[1].base.index < prefix.base.index:
                raise
            name, head = newest
            self._restore(name, head)
        prefix.jump(head.base, name)

    @property
    def is_derived(self) -> bool:
        """Return whether the state was made from the decided snapshot, so that the next one may refer to its pages."""
        return self._derived[0] == self._state.snapshot.no and self.unproven is None

    @property
    def decided(self) -> DecidedSnapshot:
        """Return the newest decided snapshot that this process has folded."""
        return max(self._newest, self._state.snapshot, key=lambda snapshot: snapshot.no)

    def decided_points(self) -> Sequence[JournalPoint]:
        """Return where the decided snapshot lets each journal be read on: see `SnapshotIo.points_of`."""
        return self.io.points_of(self._state.snapshot.name) if self._state.snapshot.no else ()

    def recover(self, core: LedgerCore, *, is_newest: bool) -> None:
        """Restore the state from the decided snapshot, or from the newest one; the caller folds the rest again.

        Hold the lock until then, so that no reader sees the state go back.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: there is none, or this process lacks entries after it.
            RetriableError: REPLOG_NO_QUORUM.
        """
        candidate, prefix = None, core.prefix
        if prefix.length <= self._state.applied_index:
            raise PageMissingError(
                ErrorCode.REPLOG_SNAPSHOT_MISSING, "the entries that were folded are to be read again."
            )
        self._newest = self.decided
        if self._newest.no and not is_newest:
            with suppress(PageMissingError, CorruptDataError):
                candidate = self._newest.name, self.io.load_head(self._newest.name)
        candidate = candidate or self.io.newest_head()
        if candidate is not None:
            name, head = candidate
            if prefix.jump(head.base, name) or all(
                index in prefix.payloads for index in range(head.base.index + 1, prefix.length)
            ):
                self._restore(name, head)
                return
        raise PageMissingError(
            ErrorCode.REPLOG_SNAPSHOT_MISSING,
            f"A page of ledger {self._ledger_id} is gone, and no snapshot that is there can replace it. Bring all "
            "metadata roots back and open the store again.",
        )

    def _restore(self, name: str, head: SnapshotHead) -> None:
        with self._lock:
            self._state.restore(head.body, self.io.load_page)
            self._state.snapshot = self.seen = head.decided
            self._derived = head.decided.no, name, head
            self._stored = None
            self.stats.restored += 1

    # -- after a fold -----------------------------------------------------------------------------

    def folded(self, core: LedgerCore) -> None:
        """Note which snapshot counts now; call it under the lock, after entries were folded."""
        snapshot, core_snapshot = self._state.snapshot, core.snapshot
        if snapshot is not self.seen and snapshot != self.seen:
            self.seen = snapshot
            stored, self._stored = self._stored, None
            if stored is not None and stored.name == snapshot.name:
                self._state.adopted(stored.frozen)
                self._derived = snapshot.no, snapshot.name, stored.head
                self.stats.decided += 1
            elif self._derived[1] == snapshot.name:
                self._derived = snapshot.no, *self._derived[1:]
        # The core gives this snapshot to roots that lack entries, if it knows no newer one.
        if snapshot.no == 0 or (core_snapshot is not None and core_snapshot[0].index >= snapshot.index):
            return
        _, name, head = self._derived
        if head is not None and name == snapshot.name:
            core.snapshot = head.base, name
        elif snapshot.index in core.prefix.hashes:
            core.snapshot = core.prefix.base_at(snapshot.index), snapshot.name

    # -- writing ----------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether enough entries and time have passed for a snapshot, and no thread writes one."""
        return not self._busy.locked() and self._is_due()

    def _is_due(self) -> bool:
        state, settings = self._state, self._settings
        is_first = state.snapshot.no == 0
        count_min = settings.snapshot_first_entry_count_min if is_first else settings.snapshot_entry_count_min
        count = state.applied_index - state.snapshot.index
        since_ms, rest_ms = self._rest
        return (
            self._stored is None  # its commit waits for the next entry
            and count >= count_min
            and self._clock.monotonic_ms() >= since_ms + (rest_ms // 10 if count >= HURRY_ENTRY_COUNT else rest_ms)
        )

    def rider(self) -> bytes | None:
        """Return the command to put into the next entry of this process.

        The one that raises the feature level comes before all others: older releases judge entries by other rules.
        """
        feature = self._state.encode_feature_set()
        if feature is not None:
            return feature
        stored = self._stored
        if stored is None:
            return None
        if stored.frozen.snapshot_no != self._state.snapshot.no:
            self._stored = None  # another process's snapshot counts
            return None
        return self._state.encode_snapshot_commit(stored.frozen.snapshot_no, stored.head.base.index, stored.name)

    def freeze(self, core: LedgerCore) -> Draft | None:
        """Freeze the state and the journals' positions; None unless all decided entries and `feature` are folded."""
        state = self._state
        is_whole = state.applied_index != NO_INDEX and state.applied_index == core.prefix.length - 1
        if not is_whole or state.encode_feature_set() is not None:
            return None
        with self._lock:
            frozen = state.freeze()
            base = core.prefix.base_at(frozen.applied_index)
            points = tuple(core.points_at(frozen.applied_index))
            unread = [root for root, root_state in enumerate(core.roots) if root_state.standing not in READ]
            return Draft(frozen, SnapshotHead(base, state.snapshot, points, b""), unread)

    def write(self, draft: Draft) -> None:
        """Store a draft; this process's next entry then carries its SnapshotCommit.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        head = self._with_known_points(draft)
        data = encode_snapshot(genesis_hash(self._ledger_id), replace(head, body=draft.frozen.head))
        name = snapshot_name(head.base.index, data)
        self.io.store(draft.frozen.pages, name, data)
        self._stored = replace(draft, head=head, name=name)
        self.stats.written += 1
        fault_point("snapshot.stored")

    def _with_known_points(self, draft: Draft) -> SnapshotHead:
        """Take over what the snapshot before it knows of the journals of roots that do not answer this process.

        They may have been rebuilt since this process read them. The next rebuild needs to know where they ended.
        """
        head = draft.head
        if not draft.unread_roots or not head.decided.no:
            return head
        try:
            before = self.io.load_head(head.decided.name).points
        except ReplogError as error:
            _LOG.debug("ledger %s: no head to take over points from: %s", self._ledger_id, error)
            return head
        points = list(head.points)
        for root in draft.unread_roots:
            points[root] = max(points[root], before[root], key=lambda point: point.position)
        return replace(head, points=tuple(points))

    def work(self, look: Callable[[], tuple[Draft | None, list[Cut], HeadGarbage]]) -> None:
        """Store a draft and delete what decided snapshots replace; a failure is retried when the next one is due.

        Journals are cut by other threads: deleting thousands of records takes a bucket half a minute, and snapshots
        must neither wait for it nor rest because of it, else a cold process reads all entries of that time.

        Several threads may have seen that a snapshot is due, but only one freezes: the state recognises only its newest
        frozen state as the decided snapshot, so after a second freeze it would have to restore the first.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            if self._is_due():
                self._work(*look())
        finally:
            self._busy.release()

    def _work(self, draft: Draft | None, cuts: Sequence[Cut], heads: HeadGarbage) -> None:
        start_ms, factor = self._clock.monotonic_ms(), self._settings.snapshot_rest_factor
        left = "no snapshot now"
        try:
            if draft is not None:
                self.write(draft)
                # The second one comes at once: a cold process needs a later head to find which one is decided.
                factor = factor if draft.frozen.snapshot_no else 0
            left = "snapshots that others replaced are not deleted now"
            self.delete_heads(heads)
        except ReplogError as error:
            warn_of_upkeep(_LOG, self._ledger_id, left, error)
        finally:
            end_ms = self._clock.monotonic_ms()
            self.stats.spent_ms += end_ms - start_ms
            rest_ms = factor * (end_ms - start_ms)
            if not self.io.is_far:
                rest_ms = max(rest_ms, min(NEAR_REST_FACTOR * rest_ms, NEAR_REST_MS_MAX))
            self._rest = end_ms, min(REST_MAX_MS, rest_ms)
        try:  # also if heads could not be deleted: a producer may have no right to
            self.cuts.begin(cuts)
        except ReplogError as error:
            warn_of_upkeep(_LOG, self._ledger_id, "journals are not truncated now", error)

    # -- garbage ----------------------------------------------------------------------------------

    def head_garbage(self, core: LedgerCore) -> HeadGarbage:
        """Return which heads are garbage.

        A head below the entry that decided the newest snapshot derives from an older one, so it can never be decided.
        A process that still holds such an older snapshot takes the newest one once a head or a page of it is gone.
        """
        snapshot, roots = self._state.snapshot, core.roots
        named = frozenset({state.floor.base_index for state in roots} - {NO_INDEX} | self.cuts.named_by(core))
        among = tuple(number for number, state in enumerate(roots) if state.marker_at_ms is not None)
        return HeadGarbage(snapshot.entry_index if snapshot.no else 0, snapshot.name, named, among)

    def delete_heads(self, heads: HeadGarbage) -> None:
        """Delete garbage heads."""
        if heads.below > 0:
            self.io.delete_heads(heads.is_garbage, heads.among)

    def truncations(self, core: LedgerCore, *, is_asked: bool = False) -> list[Cut]:
        """Return the markers to put now for the decided snapshot; `is_asked`: see ``JournalCuts.due``."""
        _, name, head = self._derived
        is_head = head is not None and name == self._state.snapshot.name
        return self.cuts.due(core, name, head if is_head else None, is_asked=is_asked)

    def page_garbage(self) -> Callable[[str], bool]:
        """Return which pages no snapshot can refer to again; call it under the lock, if `is_derived`.

        A snapshot refers to pages of the one before it and to new ones, whose names carry the number of that one. So a
        page with a lower number than the decided snapshot's, which that one does not refer to, is garbage for ever,
        however late its writer or a reader of an older state is.

        A state that was restored from a newer head refers to that head's pages. Until that head is decided no page is
        garbage, because another process may still write the next snapshot from the decided one.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING: restore the state.
        """
        snapshot = self._state.snapshot
        if self._derived[:2] != (snapshot.no, snapshot.name):
            return lambda name: False
        no, needed = snapshot.no, frozenset(self._state.page_names())
        return lambda name: int(name[:12]) < no and name not in needed


class SnapshotWriter:
    """Reads the core in a turn, but writes and deletes files outside of it. Thread safe."""

    def __init__(self, ledger: Ledger[Any], keeper: SnapshotKeeper) -> None:
        self._ledger = ledger
        self.keeper = keeper

    def write_behind(self) -> None:
        """Write a snapshot and delete what the last one replaces; runs on a separate thread and logs errors."""
        keeper = self.keeper

        def look() -> tuple[Draft | None, list[Cut], HeadGarbage]:
            return self.freeze(), keeper.truncations(self._ledger.core), keeper.head_garbage(self._ledger.core)

        try:
            keeper.work(lambda: self._ledger.with_turn(look))
        except ReplogError as error:
            warn_of_upkeep(_LOG, self._ledger.ledger_id, "no snapshot now", error)

    def freeze(self) -> Draft | None:
        """Freeze a state that derives from the decided snapshot, in a turn; None as ``SnapshotKeeper.freeze``."""
        self._derive()
        return self.keeper.freeze(self._ledger.core)

    def _derive(self) -> None:
        """Let the state derive from the decided snapshot, in a turn."""
        if not self.keeper.is_derived:
            self._ledger.restore_decided()

    def files(self) -> frozenset[str]:
        """Return the keys of head and pages of the decided snapshot: each root should have them.

        Raises:
            RetriableError: REPLOG_NO_QUORUM; what loading a directory of pages raises.
        """
        ledger = self._ledger

        def look() -> frozenset[str]:
            self._derive()
            with ledger.lock:
                name, pages = ledger.state.snapshot.name, ledger.state.page_names()
                keys = [page_key(ledger.ledger_id, page) for page in pages]
            return frozenset([*keys, snapshot_key(ledger.ledger_id, name)] if name else keys)

        ledger.refresh()
        return ledger.with_turn(look)

    def derive(self) -> None:
        """Make the state derive from the decided snapshot: only that one tells all that may be deleted.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._ledger.with_turn(self._derive)

    def look_ahead(self) -> FrozenState | None:
        """Return what the next snapshot would hold, and write nothing. None: entries are still to be folded."""
        draft = self._ledger.with_turn(self.freeze)
        return None if draft is None else draft.frozen

    def snapshot(self, *, timeout_ms: int) -> SnapshotStats:
        """Write a snapshot now, have it decided, and delete the journal records and heads that it replaces.

        Returns:
            The snapshots written and decided, and the files deleted, by this call.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: too few roots took it. What `append` raises.
        """
        keeper, ledger = self.keeper, self._ledger
        keeper.cuts.finish()
        before = replace(keeper.stats)
        try:
            ledger.refresh()
            is_read = True
        except RetriableError:  # roots are slow; the append below waits up to timeout_ms
            is_read = False
        if not is_read or ledger.state.encode_feature_set() is not None:
            ledger.append(lambda state: state.encode_feature_set(), timeout_ms=timeout_ms)
        draft = None
        if keeper.is_behind():
            draft = ledger.with_turn(self.freeze)
        if draft is not None:
            keeper.write(draft)
            ledger.append(lambda _: keeper.rider(), timeout_ms=timeout_ms)

        def look() -> tuple[list[Cut], HeadGarbage]:
            return keeper.truncations(ledger.core, is_asked=True), keeper.head_garbage(ledger.core)

        cuts, heads = ledger.with_turn(look)
        keeper.cuts.begin(cuts, is_hurried=True)
        keeper.cuts.finish()
        keeper.delete_heads(heads)
        return keeper.stats.since(before)

    def collect(self, *, is_dry_run: bool = False) -> int:
        """Delete heads, pages and journal records that decided snapshots have replaced; some pages per call.

        Repeatable, and safe at any time: garbage stays garbage for ever.

        Returns:
            How many files were deleted, or would be; a dry run does not look for records.

        Raises:
            RetriableError: REPLOG_NO_QUORUM.
        """
        keeper, ledger = self.keeper, self._ledger
        io, cuts = keeper.io, keeper.cuts

        def look() -> tuple[HeadGarbage, Callable[[str], bool], list[tuple[int, Floor]]]:
            self._derive()
            with ledger.lock:
                try:
                    is_page = keeper.page_garbage()
                except PageMissingError:
                    ledger.restore_decided()
                    is_page = keeper.page_garbage()
                heads = keeper.head_garbage(ledger.core)
            roots = enumerate(ledger.core.roots)
            floors = [(number, root.floor) for number, root in roots if root.floor.position and root.error is None]
            return heads, is_page, floors

        ledger.refresh()
        heads, is_page, floors = ledger.with_turn(look)
        count = io.delete_heads(heads.is_garbage, heads.among, is_dry_run=is_dry_run)
        count += io.delete_pages(is_page, is_dry_run=is_dry_run)
        for number, floor in floors if not is_dry_run else ():
            if not cuts.is_running(number):
                count += io.wait_for_root(number, io.begin_on_root(number, partial(io.delete_below, number, floor)))
        return count
