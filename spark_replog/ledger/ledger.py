"""The shell of a ledger: runs the core's operations on real roots and folds the decided entries."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Generic, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidConfigError,
    ReplogError,
    RetriableError,
)
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.journal_rebuild import OwnedLog
from spark_replog.ledger.ledger_errors import LedgerErrors
from spark_replog.ledger.leveling import JournalLeveler, journals_behind
from spark_replog.ledger.phase import Phase
from spark_replog.ledger.record import INCARNATION_SIZE_BYTES, TAG_SIZE_BYTES, genesis_hash
from spark_replog.ledger.root import WENT_BACK, Standing
from spark_replog.ledger.shell_io import RootIo
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper, SnapshotStats, SnapshotWriter
from spark_replog.ledger.types import (
    AppendOutcome,
    JournalRoot,
    LedgerSettings,
    LedgerState,
    LedgerStats,
    Proposed,
    Request,
    SnapshotState,
)
from spark_replog.snapshot import PageMissingError
from spark_replog.storage.io_pool import IO_POOL

S = TypeVar("S", bound=LedgerState)
T = TypeVar("T")
DEFAULT_SETTINGS = LedgerSettings()

_LOG = logging.getLogger(__name__)
_POLL_MS_MAX = 1000.0
"""A driver checks its deadline at least this often, even while a root hangs."""
STOOD_STILL_MS = 100
"""If a wait ends this late, the process was stopped or got no CPU time."""
LONG_READ_MS = 2_000
"""A read of journals that takes longer than this logs a warning while it goes on."""
ASK_RESTORES_MAX = 3
"""After a restore, pages are gone again only if a newer snapshot was decided and old pages were deleted meanwhile."""
SILENT_WAIT_MS = 3_000
"""A write that is not decided after this time is logged once with the reason."""


class Ledger(Generic[S]):
    """A replicated log, decided over a majority of its metadata roots. Thread safe.

    One caller's thread at a time drives the core; the others wait, and waiting appends share the
    next ENTRY. Runs in a coordinator or a planner, never in a task.

    Args:
        ledger_id: 32 hex digits.
        roots: the metadata roots in the store's order; 1, 3 or 5 of them (2 also work, but need both).
        state: the state that decided entries fold into.
        on_found: see ``RootIo``.

    Attributes:
        lock: held while `state` is folded; hold it to read several fields consistently.
        state: the fold.
        stats: storage calls so far.
    """

    def __init__(
        self,
        ledger_id: str,
        roots: Sequence[JournalRoot],
        state: S,
        *,
        settings: LedgerSettings = DEFAULT_SETTINGS,
        clock: Clock = SYSTEM_CLOCK,
        on_decided: Callable[[int, bytes, Sequence[Any], tuple[bytes, bytes]], None] | None = None,
        on_found: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self.ledger_id, self._on_decided, self._on_found = ledger_id, on_decided, on_found
        self.state = state
        self.stats = LedgerStats()
        self._roots, self._ids = tuple(roots), [each.broker_id for each in roots]
        self._settings = settings
        self._clock = clock
        self._names = [f"broker {root.broker_id} ({root.store.url})" for root in self._roots]
        self._errors = LedgerErrors(ledger_id, self._names, settings, clock)
        self._is_folding = self._is_torn = False
        self._start_process()
        _ledgers.add(self)

    def _start_process(self) -> None:
        """Make the parts that belong to one process: an incarnation, its knowledge, locks.

        Also runs in a forked child, which must not use its parent's epoch or wait for its parent's threads.
        """
        self.lock = threading.RLock()
        self._gate = threading.RLock()  # `with` this and not the condition: an interrupt in its __exit__ would keep it
        self._turn = threading.Condition(self._gate)
        self._is_driven = self._has_started = False
        self._is_stepping = False  # also after an interrupt in a step: the core may know half of an answer
        self._leveling = threading.Lock()
        self._to_check: set[int] = set()
        self._waiting: list[Request] = []
        self._sent: list[Request] = []
        self._hidden: list[Request] = []  # sent, and perhaps decided: only a snapshot shows what became of them
        self._refresh_started = self._refresh_done = 0
        self._reported: set[int] = set()  # roots whose damage is logged
        self._heard_ms = 0.0  # when a refresh last learned a record
        self._make_core()
        self._snapshots = None
        if isinstance(self.state, SnapshotState):
            self._snapshots = SnapshotKeeper(
                self.ledger_id, self._roots, self._settings, self._clock, self.state, self.lock
            )
        if self._is_folding:
            self._core.fatal = self._errors.torn("the parent of this process forked it while another thread folded")

    @property
    def core(self) -> LedgerCore:
        """Return the current core, for use in `with_turn`; `_start_over` replaces it."""
        return self._core

    def _make_core(self) -> None:
        self._io = RootIo(self.ledger_id, self._roots, self.stats, self._clock, self._on_found)
        self._core = LedgerCore(
            self._names,
            genesis_hash(self.ledger_id),
            os.urandom(INCARNATION_SIZE_BYTES),
            self._settings,
            random.SystemRandom(),
        )

    # -- reading ----------------------------------------------------------------------------------

    @property
    def is_tail_unclear(self) -> bool:
        """Return whether too few roots answered the last refresh to tell if the newest entry is decided."""
        return self._core.is_tail_unclear

    def refresh_until(self, reached: Callable[[S], bool]) -> S:
        """Fold as `refresh`, with the same errors, until a given offset is there.

        Args:
            reached: returns False for a state that lacks an offset that was given before. The read is
                retried for `tail_retry_ms`; then the state is returned as it is, and
                REPLOG_TAIL_UNDECIDED is logged.
        """
        start_ms = self._clock.monotonic_ms()
        while True:
            self.refresh()
            with self.lock:
                if reached(self.state):
                    return self.state
            if self._clock.monotonic_ms() - start_ms >= self._settings.tail_retry_ms:
                self._errors.log_unclear(self._core, "a position that was given")
                return self.state
            self._clock.sleep_ms(20)

    def refresh(self, *, is_glance: bool = False) -> S:
        """Fold the newest decided prefix; one get per metadata root when nothing is new, two after a pause.

        Args:
            is_glance: for monitoring: one get per metadata root also after a pause, but the answer may be one glance
                late: see ``LedgerCore.begin``.

        Returns:
            The state; it never goes back within a process.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: fewer than a majority of the metadata roots answered;
                REPLOG_STORE_REFUSED: refusals leave no majority; REPLOG_LEDGER_BUSY: they answered too
                slowly.
            CorruptDataError: CORRUPT_MESSAGE: damaged records, and no majority is left without them.
            UnsupportedFormatError: UNSUPPORTED_VERSION: a newer release writes this ledger.
        """
        began_ms: float | None = None
        is_mine = False
        try:
            with self._gate:
                ticket = self._refresh_started + 1
                while self._is_driven and self._refresh_done < ticket:
                    now_ms = self._clock.monotonic_ms()
                    began_ms = now_ms if began_ms is None else began_ms
                    rest_ms = max(began_ms, self._heard_ms) + self._settings.quorum_timeout_ms - now_ms
                    if rest_ms <= 0:
                        raise self._errors.not_decided(self._core)
                    self._turn.wait(min(rest_ms, _POLL_MS_MAX) / 1000.0)
                if self._refresh_done >= ticket:
                    return self.state  # another caller's refresh began after this call and has ended
                is_mine = self._is_driven = True
                if not is_glance:
                    self._refresh_started = ticket
            try:
                self._drive_read(is_glance=is_glance)
            except PageMissingError as error:
                self._start_over(error)
            if not is_glance:
                self._refresh_done = ticket
        finally:
            if is_mine:
                try:
                    self._end_turn()
                finally:
                    self._is_driven = False
                    with self._gate:
                        self._turn.notify_all()
        return self.state

    def look_ahead(self) -> None:
        """Start what the first read needs before it asks for records, if it has not begun; returns at once."""
        with self._gate:
            if self._snapshots is not None and not self._is_driven and not self._has_started:
                self._begin_looks(self._snapshots)

    def _begin_looks(self, keeper: SnapshotKeeper, record_count: int = 0) -> None:
        if self._io.look_ahead(record_count):
            keeper.look_ahead()

    def check_again(self, broker_id: int) -> None:
        """Read ``replog.json`` of a root again before anything there counts: the root may have been replaced."""
        self._to_check.update(number for number, root in enumerate(self._roots) if root.broker_id == broker_id)

    def _unverify(self) -> None:
        """Take the roots of `check_again` out of use, each once its operation in flight has ended."""
        for number in [each for each in tuple(self._to_check) if self._core.roots[each].busy is None]:
            self._to_check.discard(number)
            self._io.check_again(number)
            state = self._core.roots[number]
            if state.standing not in WENT_BACK:
                state.enter(Standing.UNVERIFIED)

    def _drive_read(self, *, is_glance: bool = False) -> None:
        """Drive the core until the tail is known; it times out when no record arrives, not when a journal is long."""
        if self._core.fatal is not None:
            raise self._core.fatal
        if self._is_stepping:
            self._renew()
        core = self._core
        if not self._has_started:  # begin with the newest snapshot, so that only the entries after it are read
            if self._snapshots is not None:
                self._begin_looks(self._snapshots, self._settings.early_record_count)
                self._snapshots.start(core, self._io.begin_last_gets)
            self._has_started = True
        self._heard_ms = self._clock.monotonic_ms()
        log_at_ms: float = self._heard_ms + LONG_READ_MS
        if self._to_check:
            self._unverify()
        core.begin(self._heard_ms, is_write=False, is_glance=is_glance)
        learned, gets = core.prefix.learned_count, self.stats.gets
        now_ms: float = self._heard_ms
        while True:
            now_ms = self.step(now_ms, self._heard_ms + self._settings.quorum_timeout_ms)
            if core.phase is Phase.DONE:
                break
            if core.prefix.learned_count != learned:
                learned, self._heard_ms = core.prefix.learned_count, now_ms
                if self._heard_ms >= log_at_ms:
                    log_at_ms = self._heard_ms + 5 * LONG_READ_MS
                    self._errors.log_long_read(self.stats.gets - gets)
            elif now_ms >= self._heard_ms + self._settings.quorum_timeout_ms:
                if self._io.learned_ms <= self._heard_ms:
                    raise self._errors.not_decided(self._core)
                self._heard_ms = self._io.learned_ms  # a read of many records is under way
        if core.is_tail_unclear:
            self._errors.log_unclear(core, "the tail")

    # -- appending --------------------------------------------------------------------------------

    def append(self, propose: Callable[[S], Proposed], *, timeout_ms: int, is_first: bool = False) -> AppendOutcome:
        """Have one command decided; returns after it is decided AND folded.

        Args:
            propose: called under `lock` with the newest fold, and again after every change of it
                while the command is not in flight; returns one encoded command, or several that
                share one ENTRY (the last one's result is returned), or None when nothing is to be
                done. Its errors are raised here.
            timeout_ms: after this long the caller gets an error.
            is_first: its commands come before those of other callers that share its ENTRY.

        Returns:
            Index and result of this command; index -1 when `propose` returned None.

        Raises:
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: sent, and no majority answered; it may
                still be decided. A replay finds it by its identity.
            RetriableError: REPLOG_NO_QUORUM, REPLOG_LEDGER_BUSY: no majority answered, or other writers took every
                turn; the command was never sent.
            ReplogError: REPLOG_STORE_REFUSED: for `quorum_timeout_ms` so many roots refused that no majority is left;
                the command was never sent. RECORD_LIST_TOO_LARGE: it is above `command_size_bytes_max`.
            ReplogError: what `refresh` raises.
        """
        if not self._has_started:
            with suppress(RetriableError):  # the append below raises it again
                self.refresh()  # a cold process may read for long: that does not count against timeout_ms
        request = self._serve(propose, timeout_ms, is_first)
        if isinstance(request.answer, PageMissingError) and request not in self._sent:
            self.with_turn(self.restore_decided)
            request = self._serve(propose, timeout_ms, is_first)
        if isinstance(request.answer, BaseException):
            raise request.answer
        assert request.answer is not None
        return request.answer

    def _serve(self, propose: Callable[[S], Proposed], timeout_ms: int, is_first: bool) -> Request:
        """Return an answered request; the caller that drives the core now answers it, or this one drives."""
        end_ms = self._clock.monotonic_ms() + timeout_ms
        request = Request(propose, end_ms, timeout_ms, self._core.turns_lost, is_first)
        is_mine = False
        try:
            with self._gate:
                self._waiting.append(request)
                while self._is_driven and request.answer is None:
                    rest_ms = request.deadline_ms - self._clock.monotonic_ms()
                    if rest_ms <= 0:
                        self._expire(request, is_driver=False)
                        break
                    self._turn.wait(min(rest_ms, _POLL_MS_MAX) / 1000.0)
                if request.answer is not None:
                    return request
                is_mine = self._is_driven = True
            self._drive_write(request)
        except BaseException as error:  # also of one that waits: its command may not be proposed once it has left
            request.answer = request.answer or self._told_of(error, request)
            with self._gate:
                if request in self._waiting:
                    self._waiting.remove(request)
            if not isinstance(error, ReplogError):
                raise
        finally:
            if is_mine:
                try:
                    self._end_turn()
                finally:
                    self._is_driven = False
                    with self._gate:
                        self._turn.notify_all()
        if self._snapshots is not None and self._snapshots.is_due() and not self._settings.read_only:
            with suppress(RuntimeError):  # no thread is left: the entry is decided all the same
                IO_POOL.post_to(f"snapshots of {self.ledger_id}", self._snapshot_writer(self._snapshots).write_behind)
        if journals_behind(self._core, is_fresh=False) and not self._leveling.locked():
            with suppress(RuntimeError):
                leveler = JournalLeveler(self, self._clock, self._leveling)
                IO_POOL.post_to(f"journals of {self.ledger_id}", leveler.level_behind)
        return request

    def _drive_write(self, request: Request) -> None:
        """Drive the core until this request is answered; others are served on the way."""
        if self._core.fatal is not None:
            raise self._core.fatal
        if self._settings.read_only:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "This process opened the ledger read-only. Open it for writing."
            )
        if self._is_stepping:
            self._drive_read()  # in a new incarnation
        if self._to_check:
            self._unverify()
        core, now_ms = self._core, float(self._clock.monotonic_ms())
        core.begin(now_ms, is_write=True)
        log_at_ms = now_ms + SILENT_WAIT_MS
        while request.answer is None:
            if core.phase is Phase.READY:
                if not self._propose():
                    return
                now_ms = self._clock.monotonic_ms()
                continue
            if core.phase is Phase.DONE:
                core.begin(now_ms, is_write=True)
            now_ms = self.step(now_ms, request.deadline_ms)
            is_over = now_ms >= request.deadline_ms or core.is_refused(now_ms)
            if is_over and core.phase not in (Phase.READY, Phase.DONE):
                self._expire(request, is_driver=True)
            elif now_ms >= log_at_ms:
                log_at_ms = math.inf
                _LOG.warning("A write to ledger %s waits. %s", self.ledger_id, self._errors.delay_reason(core, request))
        # If the own ENTRY was just decided, let the remaining roots finish.
        limit_ms = now_ms + self._settings.grace_ms
        while core.phase is Phase.GRACE:
            now_ms = self.step(now_ms, limit_ms)
            if now_ms >= limit_ms:
                break

    def _propose(self) -> bool:
        """In READY: collect the waiting commands on the newest fold; False when there are none."""
        with self._gate:
            candidates = [each for each in self._sent if each.answer is None]
            candidates += self._waiting
            candidates.sort(key=lambda each: not each.is_first)
            self._waiting = []
        commands, command_nos = list[bytes](), list[int]()
        batch, later = list[Request](), list[Request]()
        try:
            for each in candidates:
                if sum(map(len, commands)) >= self._settings.entry_size_bytes_max:
                    later.append(each)
                    continue
                proposed = () if each.answer is not None else self._ask(each)  # an interrupted caller has left
                if proposed:
                    commands += proposed
                    each.command_count = len(proposed)
                    command_nos.append(len(commands) - 1)
                    batch.append(each)
            if batch and self._snapshots is not None:
                with self.lock:
                    rider = self._snapshots.rider()
                commands += [] if rider is None or rider in commands else [rider]
            payload = os.urandom(TAG_SIZE_BYTES) + self.state.encode(commands) if batch else b""
            if batch:
                self._is_stepping = True
                self._core.propose(payload)
                self._is_stepping = False
            with self._gate:
                if self._core.phase is Phase.LEAD:
                    self._sent = batch
                    for each, command_no in zip(batch, command_nos, strict=True):
                        each.command_no = command_no
                    self._waiting = later + self._waiting
                else:
                    # Ask again after the claim; a request that was sent before keeps its place in its ENTRY.
                    self._waiting = [each for each in batch + later if each not in self._sent] + self._waiting
                self._turn.notify_all()
        except BaseException:  # an interrupt of this caller's thread, or no memory: the others still wait
            with self._gate:
                known = self._sent + self._waiting
                self._waiting = [
                    each for each in candidates if each.answer is None and each not in known
                ] + self._waiting
            raise
        return bool(batch)

    def _ask(self, request: Request) -> tuple[bytes, ...]:
        with self.lock:
            try:
                try:
                    proposed = request.propose(self.state)
                except PageMissingError:
                    self._fold_whole(is_stale=True)
                    proposed = request.propose(self.state)
            except Exception as error:  # the caller's own, raised in its thread
                request.answer = error
                return ()
        if not proposed:
            request.answer = AppendOutcome(-1, None)
            return ()
        commands = (proposed,) if isinstance(proposed, bytes) else proposed
        size_bytes = sum(map(len, commands))
        if size_bytes > self._settings.command_size_bytes_max:
            request.answer = self._errors.too_large(size_bytes)
            return ()
        return commands

    def _expire(self, request: Request, *, is_driver: bool) -> None:
        """Answer a request whose time is over; where roots refuse, also all others that have waited long enough."""
        with self._gate:
            since_ms = self._clock.monotonic_ms() - self._settings.quorum_timeout_ms
            is_refused = is_driver and self._core.is_refused()
            for each in [request, *self._sent, *self._waiting]:
                is_over = each is request or (is_refused and each.deadline_ms - each.timeout_ms <= since_ms)
                if is_over and each.answer is None:
                    is_unsent = each in self._waiting and each not in self._sent
                    if is_driver and not is_unsent:  # else the driver may be sending it now
                        is_unsent = not self._core.is_user_open() and each not in self._hidden
                    each.answer = (
                        self._errors.not_decided(self._core, each)
                        if is_unsent
                        else self._errors.outcome_unknown(self._core, each)
                    )
            self._waiting = [each for each in self._waiting if each.answer is None]
            self._turn.notify_all()

    # -- driving the core -------------------------------------------------------------------------

    def step(self, now_ms: float, deadline_ms: float) -> float:
        """In a turn, run the core's operations, process their answers and fold; return the time then."""
        core = self._core
        try:
            now_ms = self._exchange(core, now_ms, deadline_ms)
        except ReplogError:
            self._is_stepping = False  # the core's own: it is whole
            raise
        applied, prefix = self.state.applied_index, core.prefix
        if self._snapshots is not None and applied < prefix.base.index and applied + 1 not in prefix.payloads:
            self._restore_base(self._snapshots)
        self._fold_whole()
        return now_ms

    def _exchange(self, core: LedgerCore, now_ms: float, deadline_ms: float) -> float:
        """Run operations and process answers; an interrupt leaves `_is_stepping` set, except one of the wait."""
        self._is_stepping = True
        operations = core.poll(now_ms)
        if operations:
            self._io.start(operations)
        wait_ms = 0.0
        if core.phase not in (Phase.READY, Phase.DONE):
            until_ms = deadline_ms if core.wake_at_ms is None else min(deadline_ms, core.wake_at_ms)
            wait_ms = max(0.0, min(until_ms - now_ms, _POLL_MS_MAX))
        began_ms = now_ms
        self._is_stepping = False
        self._io.wait(wait_ms)
        self._is_stepping = True
        completions = self._io.take()
        now_ms = self._clock.monotonic_ms()
        if now_ms - began_ms > wait_ms + STOOD_STILL_MS:
            self._heard_ms += now_ms - began_ms  # this process stood still, so the roots were not silent
        for completion in completions:
            core.complete(completion, now_ms)
        if self._core.fatal is not None:
            raise self._core.fatal
        if self._reported or [state for state in core.roots if state.error is not None]:
            self._check_journals()
        # Before the fold: the answers may complete a claim, which decides entries.
        core.advance(now_ms)
        self._is_stepping = False
        return now_ms

    def _restore_base(self, keeper: SnapshotKeeper) -> None:
        """Restore the state from the snapshot that the prefix begins with; an interrupt leaves it to be restored."""
        with self.lock:
            was_torn, self._is_torn = self._is_torn, True
            try:
                keeper.restore_base(self._core)
            except ReplogError:
                self._is_torn = was_torn  # nothing was restored
                raise
            self._is_torn = False

    def _renew(self) -> None:
        """Go on as a new incarnation, after an interrupt in a step: the core may know half of an answer."""
        self._give_up_sent()
        self._make_core()
        self._is_stepping = self._has_started = False

    def _give_up_sent(self) -> None:
        """Answer the requests in flight: a new incarnation cannot recognise their entry."""
        with self._gate:
            for each in [each for each in self._sent if each.answer is None]:
                each.answer = self._errors.outcome_unknown(self._core, each)
            self._sent = []
            self._turn.notify_all()

    def _fold_whole(self, *, is_stale: bool = False) -> None:
        """Fold; if a page that an entry needs is gone, begin again from a snapshot. No caller sees half an entry.

        Args:
            is_stale: begin from a snapshot at once, because pages of the state are gone.

        Raises:
            PageMissingError, CorruptDataError: no reachable snapshot helps now; the next call tries again.
        """
        keeper = self._snapshots
        with self.lock:
            for attempt in range(3):
                is_restoring = keeper is not None and (self._is_torn or is_stale)
                try:
                    if keeper is not None and is_restoring:
                        keeper.recover(self._core, is_newest=attempt == 2)
                        is_stale = self._is_torn = is_restoring = False
                    self._fold()
                    return
                except (PageMissingError, CorruptDataError) as error:
                    self._is_torn |= self._is_folding
                    if keeper is None:
                        self._core.fatal = error
                    if keeper is None or attempt == 2:
                        raise
                except BaseException as error:
                    if isinstance(error, ReplogError):
                        if not (self._is_torn or is_restoring):
                            self._core.fatal = error
                    elif is_restoring:
                        self._is_torn = True
                    elif self._is_folding and not self._is_torn:
                        self._core.fatal = self._errors.torn(f"{error!r} ended a fold")
                    else:
                        self._is_stepping = True  # it ended what follows a fold
                    raise  # a snapshot that could not be read now is read by the next call

    def _fold(self) -> None:
        """Fold the decided entries, then answer the callers whose ENTRY was among them."""
        prefix = self._core.prefix
        results: dict[int, tuple[Any, ...]] = {}
        with self.lock:
            first = self.state.applied_index + 1
            self._is_folding = first < prefix.length
            for index in range(first, prefix.length):
                results[index] = self.state.apply(index, prefix.payloads[index][TAG_SIZE_BYTES:])
            if self._snapshots is not None:
                self._snapshots.folded(self._core)
            self._is_folding = False
            if len(prefix.payloads) > 1:  # the last one always stays
                snapshot_index = None if self._snapshots is None else self._snapshots.seen.index
                prefix.release(self.state.applied_index + 1, snapshot_index)
        settled, self._core.settled = self._core.settled, None
        if settled is None:
            return
        index, is_won = settled
        if not is_won or index not in results:  # lost, or folded only in a snapshot: no result is known here
            self._hidden = [] if index in results else self._sent
            return  # the batch is proposed again on the new fold
        if self._on_decided is not None and (value := prefix.payloads.get(index)) is not None:
            self._on_decided(index, value[TAG_SIZE_BYTES:], results[index], self._core.owners)
        with self._gate:
            for request in self._sent:
                if request.answer is None:
                    mine = results[index][: request.command_no + 1][-request.command_count :]
                    request.answer = AppendOutcome(index, mine[-1], mine)
            self._sent = []
            self._turn.notify_all()

    # -- snapshots --------------------------------------------------------------------------------

    def ask(self, question: Callable[[S], T]) -> T:
        """Call a function with the state under `lock`; it must return values that no later entry changes.

        If a page of the state is gone, a newer snapshot exists: the state is restored and the function called again.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING.
        """
        for _ in range(ASK_RESTORES_MAX):
            try:
                with self.lock:
                    if not self._is_torn:
                        return question(self.state)
            except PageMissingError as error:
                _LOG.debug("ledger %s: %s", self.ledger_id, error)
            self.refresh()  # folds the SnapshotCommit that counts now
            self.with_turn(self.restore_decided)
        with self.lock:
            return question(self.state)

    def recent(self, count: int) -> list[tuple[int, bytes]]:
        """Return the newest folded entries that this process still holds, newest first: (index, value).

        Entries that a snapshot covers may be gone, so there may be fewer than `count`; right after a restore none.
        """
        with self.lock:
            payloads, newest = self._core.prefix.payloads, self.state.applied_index
            held = takewhile(payloads.__contains__, range(newest, max(-1, newest - count), -1))
            return [(index, payloads[index][TAG_SIZE_BYTES:]) for index in held]

    def restore_decided(self) -> None:
        """Restore the state from the decided snapshot; call it while the core is at rest."""
        try:
            self._fold_whole(is_stale=True)
        except PageMissingError as error:
            self._start_over(error)

    def _start_over(self, error: PageMissingError) -> None:
        """Start like a new process, with the decided snapshot: entries after it are no longer in memory.

        Holds the lock until all is read again, so that no caller sees the state go back. The new incarnation owns
        nothing. Raises `error` if no snapshot helps.
        """
        keeper = self._snapshots
        if keeper is None or self._core.fatal is not None or not keeper.decided.name:
            raise error
        self._give_up_sent()
        with self.lock:
            for _ in range(ASK_RESTORES_MAX):
                self._make_core()
                self._is_torn = True
                keeper.start_over(self._core)
                self._is_torn = self._is_folding = False
                try:
                    self._drive_read()
                except BaseException:
                    self._is_torn = True
                    raise
                if keeper.is_derived:
                    return
        raise PageMissingError(error.code, "other processes write snapshots faster than they can be read here.")

    def with_turn(self, work: Callable[[], T]) -> T:
        """Run a function that needs the core at rest, between two goals."""
        is_mine = False
        try:
            with self._gate:
                while self._is_driven:
                    self._turn.wait(_POLL_MS_MAX / 1000.0)
                is_mine = self._is_driven = True
            if self._core.fatal is not None:
                raise self._core.fatal
            if self._is_stepping:
                self._drive_read()
            return work()
        finally:
            if is_mine:
                try:
                    self._end_turn()
                finally:
                    self._is_driven = False
                    with self._gate:
                        self._turn.notify_all()

    def _snapshot_writer(self, keeper: SnapshotKeeper) -> SnapshotWriter:
        """Return a new one; a stored one would be a reference cycle that keeps a closed ledger's state in memory."""
        return SnapshotWriter(self, keeper)

    @property
    def snapshots(self) -> SnapshotWriter | None:
        """Return what writes the snapshots; None: this process uses none."""
        return None if self._snapshots is None else self._snapshot_writer(self._snapshots)

    def snapshot(self, *, timeout_ms: int) -> SnapshotStats:
        """Write a snapshot now: see ``SnapshotWriter``. Raises what `append` raises."""
        if self._snapshots is None or self._settings.read_only:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, "This process opened the ledger read-only.")
        return self._snapshot_writer(self._snapshots).snapshot(timeout_ms=timeout_ms)

    def collect(self, *, is_dry_run: bool = False) -> int:
        """Delete files that snapshots have replaced: see ``SnapshotWriter``. Raises REPLOG_NO_QUORUM."""
        if self._snapshots is None or self._settings.read_only:
            return 0
        return self._snapshot_writer(self._snapshots).collect(is_dry_run=is_dry_run)

    def _end_turn(self) -> None:
        core = self._core
        core.finish()
        self._io.early.clear()
        self.stats.claims, self.stats.entries = core.claims, core.entries

    def named_position(self, broker_id: int) -> int:
        """Return the highest position of the broker's journal that other roots' records name; -1 for none."""
        return self._core.prefix.named[self._ids.index(broker_id)]

    def journal_end(self, broker_id: int) -> int:
        """Return the position after the last record of the broker's journal that this process has read."""
        return self._core.prefix.views[self._ids.index(broker_id)].next_position

    def owned_log(self, broker_id: int) -> OwnedLog | None:
        """Return all decided entries and the epoch that owns them; None if another process claimed, or memory was full.

        Call it right after ``append``, on a ledger that has never read that root: it keeps all values for that root.
        """
        return OwnedLog.of(self._core, self._ids.index(broker_id))

    # -- journals that lack entries ---------------------------------------------------------------

    def behind(self, last: int | None = None) -> dict[int, int]:
        """Return the brokers whose journals the last refresh found behind, and how many entries they lack.

        Args:
            last: count entries up to this index only; None: all.
        """
        return {self._ids[root]: count for root, count in journals_behind(self._core, last).items()}

    def level(self, *, timeout_ms: int, broker_ids: Collection[int] | None = None) -> set[int]:
        """Give roots the entries that they lack; return the brokers that still do: see ``JournalLeveler.level``."""
        roots = None if broker_ids is None else [root for root, each in enumerate(self._ids) if each in broker_ids]
        left = JournalLeveler(self, self._clock, self._leveling).level(timeout_ms=timeout_ms, roots=roots)
        return {self._ids[root] for root in left}

    # -- errors -----------------------------------------------------------------------------------

    def _check_journals(self) -> None:
        """Log each journal that is found damaged; raise if too few others are left.

        A write that was sent waits for its timeout, because its entry may be decided.
        """
        core = self._core
        damaged = set(core.damaged_roots(2))
        for root in damaged - self._reported:
            _LOG.error("Ledger %s goes on without one journal. %s", self.ledger_id, core.roots[root].error)
        self._reported = damaged
        if len(self._roots) - len(core.damaged_roots()) < core.prefix.majority and not core.is_user_open():
            raise self._errors.damaged(core)

    def _told_of(self, error: BaseException, request: Request) -> BaseException:
        """Return what an error means to the caller of a request: a retriable one says that nothing was decided."""
        core = self._core
        is_decided = core.settled is not None and core.settled[1]  # and the fold did not get there
        is_sent = request in self._sent and (is_decided or core.is_user_open() or request in self._hidden)
        if not isinstance(error, RetriableError) or not is_sent:
            return error
        return self._errors.sent_and_unread(error)


_ledgers: weakref.WeakSet[Ledger[Any]] = weakref.WeakSet()


def _start_child() -> None:
    for ledger in _ledgers:
        ledger._start_process()


os.register_at_fork(after_in_child=_start_child)
