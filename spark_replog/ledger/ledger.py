"""The shell of a ledger: runs the core's operations on real roots and folds the decided entries.

One thread at a time drives the core, in its turn; the others wait for its answers or for their turn. Callers that come
while one reads share its read if it began after they came. Callers that append share the next entry.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Generic, TypeVar

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.errors import CorruptDataError, ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.journal_rebuild import OwnedLog
from spark_replog.ledger.ledger_errors import LedgerErrors
from spark_replog.ledger.leveling import JournalLeveler, journals_behind
from spark_replog.ledger.record import INCARNATION_SIZE_BYTES, TAG_SIZE_BYTES, genesis_hash
from spark_replog.ledger.requests import COMMAND_SIZE_BYTES_MAX, ENTRY_SIZE_BYTES_MAX, Batch, Request, Requests
from spark_replog.ledger.shell_io import RootIo
from spark_replog.ledger.snapshot_keeper import SnapshotKeeper, SnapshotWriter
from spark_replog.ledger.state_fold import RESTORES_MAX, StateFold, Wholeness
from spark_replog.ledger.types import (
    AppendOutcome,
    JournalRoot,
    LedgerSettings,
    LedgerState,
    LedgerStats,
    Proposed,
    SnapshotState,
    SnapshotStats,
)
from spark_replog.process_state import in_each_child
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
_MARKS = itertools.count(1)
Wait = Callable[[], object] | None
SILENT_WAIT_MS = 3_000
"""A write that is not decided after this time is logged once with the reason."""


def mark() -> int:
    """Return a point in this process's time, for `Ledger.refresh`; no clock is precise enough."""
    return next(_MARKS)


@dataclass(slots=True)
class Incarnation:
    """What a process knows of the journals, under one identity.

    Attributes:
        has_started: it has begun with the newest snapshot, or without one.
        is_stepping: answers are being processed; also after an interrupt then: the core may know half of one.
        heard_ms: when a read last learned a record.
        damaged: roots whose damage is logged.
    """

    core: LedgerCore
    io: RootIo
    has_started: bool = False
    is_stepping: bool = False
    heard_ms: float = 0.0
    damaged: set[int] = field(default_factory=set)


class Turns:
    """Which thread drives the core.

    Attributes:
        gate: held while one of these changes; `with` this and not `changed`: an interrupt in the latter's ``__exit__``
            would keep it.
        begun: number of the newest refresh that has begun; done: of the newest one that ended; read_at: the mark when
            the latter began.
    """

    def __init__(self) -> None:
        self.gate = threading.RLock()
        self.changed = threading.Condition(self.gate)
        self.is_taken = False
        self.begun = self.done = self.read_at = 0


class Ledger(Generic[S]):
    """A replicated log, decided over a majority of its metadata roots. Thread safe.

    Runs in a coordinator or a planner, never in a task.

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
        self._roots = tuple(roots)
        self._settings = settings
        self._clock = clock
        names = [f"broker {root.broker_id} ({root.store.url})" for root in self._roots]
        self._errors = LedgerErrors(ledger_id, names, settings, clock)
        self._start_process()
        _ledgers.add(self)

    def _start_process(self, wholeness: Wholeness = Wholeness.WHOLE) -> None:
        """Make the parts that belong to one process: an incarnation, its knowledge, locks.

        Also runs in a forked child, which must not use its parent's epoch or wait for its parent's threads.
        """
        self.lock = threading.RLock()
        self.stats = LedgerStats()
        self._turns = Turns()
        self._leveling = threading.Lock()
        self._to_check: set[int] = set()
        self._requests = Requests()
        self._run = self._new_incarnation()
        keeper = None
        if isinstance(self.state, SnapshotState):
            keeper = SnapshotKeeper(self.ledger_id, self._roots, self._settings, self._clock, self.state, self.lock)
        self._fold = StateFold(self.state, self.lock, keeper, self._errors)
        self._fold.wholeness = wholeness
        if wholeness is Wholeness.FOLDING:
            self.core.fatal = self._errors.torn("the parent of this process forked it while another thread folded")

    @property
    def core(self) -> LedgerCore:
        """Return the current core, for use in `with_turn`; `_start_over` replaces it."""
        return self._run.core

    def _new_incarnation(self) -> Incarnation:
        incarnation, rng = os.urandom(INCARNATION_SIZE_BYTES), random.SystemRandom()
        genesis = genesis_hash(self.ledger_id)
        return Incarnation(
            LedgerCore(self._errors.names, genesis, incarnation, self._settings, rng, self.stats),
            RootIo(self.ledger_id, self._roots, self.stats, self._clock, self._on_found),
        )

    def _in_turn(
        self,
        work: Callable[[], object],
        is_answered: Callable[[], bool] = lambda: False,
        rest_ms: Callable[[], float] = lambda: _POLL_MS_MAX,
    ) -> None:
        """Run a function while no other thread drives the core, then end its goal.

        A function and no context manager: an interrupt at the beginning of an ``__exit__`` would keep the turn.

        Args:
            is_answered: whether another thread has meanwhile done what `work` is for; then it is not run.
            rest_ms: how long to wait still for that, or for the turn; it may raise an error.
        """
        turns, is_mine = self._turns, False
        try:
            with turns.gate:
                while not is_answered():
                    if not turns.is_taken:
                        is_mine = turns.is_taken = True
                        break
                    turns.changed.wait(max(0.0, min(rest_ms(), _POLL_MS_MAX)) / 1000.0)
            if is_mine:
                work()
        finally:
            if is_mine:
                try:
                    self.core.finish()
                    self._run.io.end_goal()
                finally:
                    turns.is_taken = False
                    with turns.gate:
                        turns.changed.notify_all()

    # -- reading ----------------------------------------------------------------------------------

    @property
    def is_tail_unclear(self) -> bool:
        """Return whether too few roots answered the last refresh to tell if the newest entry is decided."""
        return self.core.progress.is_tail_unclear

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
                self._errors.log_unclear(self.core, "a position that was given")
                return self.state
            self._clock.sleep_ms(20)

    def is_read_since(self, since: int | None) -> bool:
        """Return whether a refresh that began after this mark has ended."""
        return since is not None and self._turns.read_at > since

    def refresh(self, *, may_be_stale: bool = False) -> S:
        """Fold the newest decided prefix; one get per metadata root when nothing is new, two after a pause.

        Args:
            may_be_stale: for monitoring: one get per metadata root also after a pause, but the answer may be one such
                read late: see ``read_plan``.

        Returns:
            The state; it never goes back within a process.

        Raises:
            RetriableError: REPLOG_NO_QUORUM: fewer than a majority of the metadata roots answered;
                REPLOG_STORE_REFUSED: refusals leave no majority; REPLOG_LEDGER_BUSY: they answered too
                slowly.
            CorruptDataError: CORRUPT_MESSAGE: damaged records, and no majority is left without them.
            UnsupportedFormatError: UNSUPPORTED_VERSION: a newer release writes this ledger.
        """
        turns, start_ms = self._turns, self._clock.monotonic_ms()
        with turns.gate:
            ticket = turns.begun + 1

        def rest_ms() -> float:
            now_ms = self._clock.monotonic_ms()
            left_ms = max(start_ms, self._run.heard_ms) + self._settings.quorum_timeout_ms - now_ms
            if left_ms <= 0:
                raise self._errors.not_decided(self.core)
            return left_ms

        def read() -> None:
            began_at = mark()
            if not may_be_stale:
                turns.begun = ticket
            self._read(GoalKind.STALE_READ if may_be_stale else GoalKind.READ)
            if not may_be_stale:
                turns.done, turns.read_at = ticket, began_at

        # Another caller's refresh that began after this call and has ended will do.
        self._in_turn(read, lambda: turns.done >= ticket, rest_ms)
        return self.state

    def look_ahead(self) -> None:
        """Start what the first read needs before it asks for records, if it has not begun; returns at once."""
        with self._turns.gate:
            if not self._turns.is_taken and not self._run.has_started:
                self._look_ahead(0)

    def _look_ahead(self, record_count: int) -> None:
        keeper = self._fold.keeper
        if keeper is not None and self._run.io.look_ahead(record_count):
            keeper.look_ahead()

    def check_again(self, broker_id: int) -> None:
        """Read ``replog.json`` of a root again before anything there counts: the root may have been replaced."""
        self._to_check.update(number for number, root in enumerate(self._roots) if root.broker_id == broker_id)

    def _unverify(self) -> None:
        """Take the roots of `check_again` out of use, each once its operation in flight has ended."""
        for number in [number for number in tuple(self._to_check) if self.core.roots[number].busy is None]:
            self._to_check.discard(number)
            self._run.io.check_again(number)
            self.core.roots[number].unverify()

    def _read(self, kind: GoalKind = GoalKind.READ) -> None:
        """Drive a read; start over if pages are gone, or the head that it began with is not the decided one."""
        try:
            self._drive_read(kind)
        except PageMissingError as error:
            self._start_over(error)
        except CorruptDataError as error:
            # A journal that ends before its point in the head is no proof against the head: the end may be lost.
            if not self._is_unproven or error.code is ErrorCode.REPLOG_JOURNAL_HOLE:
                raise
            self._start_over(error)

    @property
    def _is_unproven(self) -> bool:
        return self._fold.keeper is not None and self._fold.keeper.unproven is not None

    def _drive_read(self, kind: GoalKind = GoalKind.READ) -> None:
        """Drive the core until the tail is known; it times out when no record arrives, not when a journal is long."""
        if self.core.fatal is not None:
            raise self.core.fatal
        if self._run.is_stepping:  # an interrupt ended a step: go on as a new incarnation
            self._give_up_sent()
            self._run = self._new_incarnation()
        run, core, timeout_ms = self._run, self.core, self._settings.quorum_timeout_ms
        if not run.has_started:  # begin with the newest snapshot, so that only the entries after it are read
            self._look_ahead(self._settings.early_record_count)
            if self._fold.keeper is not None:
                self._fold.keeper.start(core, run.io.begin_last_gets)
            run.has_started = True
        run.heard_ms = now_ms = float(self._clock.monotonic_ms())
        log_at_ms = run.heard_ms + LONG_READ_MS
        self._unverify()
        core.begin(kind, now_ms)
        learned, gets = core.prefix.learned_count, self.stats.gets
        while True:
            now_ms = self.step(now_ms, run.heard_ms + timeout_ms)
            if core.phase is Phase.DONE:
                break
            if core.prefix.learned_count != learned:
                learned, run.heard_ms = core.prefix.learned_count, now_ms
                if now_ms >= log_at_ms:
                    log_at_ms = now_ms + 5 * LONG_READ_MS
                    self._errors.log_long_read(self.stats.gets - gets)
            elif now_ms >= run.heard_ms + timeout_ms:
                if run.io.learned_ms <= run.heard_ms:
                    raise self._errors.not_decided(core)
                run.heard_ms = run.io.learned_ms  # a read of many records is under way
        if self._fold.keeper is not None:
            self._fold.keeper.require_proven()
        if core.progress.is_tail_unclear and core.may_claim and not core.progress.is_claim_refused:
            # The head is proven now.
            self._drive_read(kind)
        elif core.progress.is_tail_unclear:
            self._errors.log_unclear(core, "the tail")

    # -- appending --------------------------------------------------------------------------------

    def append(
        self, propose: Callable[[S], Proposed], *, timeout_ms: int, is_first: bool = False, when_queued: Wait = None
    ) -> AppendOutcome:
        """Have one command decided; returns after it is decided AND folded.

        Args:
            propose: called under `lock` with the newest fold, and again after every change of it
                while the command is not in flight; returns one encoded command, or several that
                share one ENTRY (the last one's result is returned), or None when nothing is to be
                done. Its errors are raised here.
            timeout_ms: after this long the caller gets an error.
            is_first: its commands come before those of other callers that share its ENTRY.
            when_queued: called once the next ENTRY may carry the command; it may wait for others that are to share it.

        Returns:
            Index and result of this command; index -1 when `propose` returned None.

        Raises:
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: sent, and no majority answered; it may
                still be decided. A replay finds it by its identity.
            RetriableError: REPLOG_NO_QUORUM, REPLOG_LEDGER_BUSY: no majority answered, or other writers took every
                turn; the command was never sent.
            ReplogError: REPLOG_STORE_REFUSED: for `quorum_timeout_ms` so many roots refused that no majority is left;
                the command was never sent. RECORD_LIST_TOO_LARGE: it is above `COMMAND_SIZE_BYTES_MAX`.
            ReplogError: what `refresh` raises.
        """
        if not self._run.has_started:
            with suppress(RetriableError):  # the append below raises it again
                self.refresh()  # a cold process may read for long: that does not count against timeout_ms
        request = self._serve(propose, timeout_ms, is_first, when_queued)
        if isinstance(request.answer, PageMissingError) and not request.is_sent:
            self.with_turn(self.restore_decided)
            request = self._serve(propose, timeout_ms, is_first, None)
        if isinstance(request.answer, BaseException):
            raise request.answer
        assert request.answer is not None
        return request.answer

    def _serve(self, propose: Callable[[S], Proposed], timeout_ms: int, is_first: bool, when_queued: Wait) -> Request:
        """Return an answered request; the caller that drives the core now answers it, or this one drives."""
        end_ms = self._clock.monotonic_ms() + timeout_ms
        request = Request(propose, end_ms, timeout_ms, self.core.rivals.turns_lost, is_first)

        def drive() -> None:
            try:
                self._drive_append(request)
            except BaseException as error:  # before the turn ends: the next one changes what is known of the request
                self._leave(request, error)
                raise

        def rest_ms() -> float:
            left_ms = request.deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                self._expire(request, is_driver=False)
            return left_ms

        try:
            with self._turns.gate:
                self._requests.add(request)
            if when_queued is not None:
                when_queued()
            self._in_turn(drive, lambda: request.answer is not None, rest_ms)
        except BaseException as error:
            self._leave(request, error)
            if not isinstance(error, ReplogError):
                raise
        finally:
            with self._turns.gate:
                self._requests.remove(request)  # else its rows stay in memory until the next append
        with suppress(RuntimeError):  # no thread is left: the entry is decided all the same
            self._begin_upkeep()
        return request

    def _begin_upkeep(self) -> None:
        """After an append, on other threads, write a snapshot if one is due and bring up journals that are behind."""
        keeper = self._fold.keeper
        if keeper is not None and keeper.is_due() and not self._settings.read_only:
            IO_POOL.post_to(f"snapshots of {self.ledger_id}", SnapshotWriter(self, keeper).write_behind)
        if journals_behind(self.core, is_fresh=False) and not self._leveling.locked():
            leveler = JournalLeveler(self, self._clock, self._leveling)
            IO_POOL.post_to(f"journals of {self.ledger_id}", leveler.level_behind)

    def _leave(self, request: Request, error: BaseException) -> None:
        """Answer a request whose caller leaves with an error, also one that waits: it may not be proposed after that.

        A retriable error says that nothing was decided, so it is another one if the request may be.
        """
        core = self.core
        is_decided = core.settled is not None and core.settled[1]  # and the fold did not get there
        is_sent = request.is_sent and (is_decided or core.is_user_open() or request.is_hidden)
        if isinstance(error, RetriableError) and is_sent:
            error = self._errors.sent_and_unread(error)
        request.answer = request.answer or error

    def _drive_append(self, request: Request) -> None:
        """Drive the core until this request is answered; others are served on the way."""
        if self.core.fatal is not None:
            raise self.core.fatal
        if self._settings.read_only:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "This process opened the ledger read-only. Open it for writing."
            )
        if self._run.is_stepping or self._is_unproven:
            self._read()  # in a new incarnation, or to prove the head
        self._unverify()
        core, now_ms = self.core, float(self._clock.monotonic_ms())
        core.begin(GoalKind.APPEND, now_ms)
        log_at_ms = now_ms + SILENT_WAIT_MS
        while request.answer is None:
            if core.phase is Phase.READY:
                if not self._propose():
                    return
                now_ms = self._clock.monotonic_ms()
                continue
            if core.phase is Phase.DONE:
                core.begin(GoalKind.APPEND, now_ms)
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
        """In READY: propose the commands of open requests on the newest fold; False when there are none.

        If a claim must come first, they are asked again after it.
        """
        turns, requests, keeper, batch = self._turns, self._requests, self._fold.keeper, Batch()
        try:
            with turns.gate:
                requests.taken = requests.open()
            for request in requests.taken:
                if sum(map(len, batch.commands)) >= ENTRY_SIZE_BYTES_MAX:
                    break
                if request.answer is None and (commands := self._ask(request)):  # else an interrupted caller has left
                    batch.add(request, commands)
            if batch.places:
                with self.lock:
                    rider = None if keeper is None else keeper.rider()
                batch.commands += [] if rider is None or rider in batch.commands else [rider]
                payload = os.urandom(TAG_SIZE_BYTES) + self.state.encode(batch.commands)
                self._run.is_stepping = True
                self.core.propose(payload)
                self._run.is_stepping = False
            with turns.gate:
                if self.core.phase is Phase.LEAD:
                    requests.send(batch)
                turns.changed.notify_all()
        finally:
            requests.taken = []
        return bool(batch.places)

    def _ask(self, request: Request) -> tuple[bytes, ...]:
        with self.lock:
            try:
                try:
                    proposed = request.propose(self.state)
                except PageMissingError:
                    self._advance(must_restore=True)
                    proposed = request.propose(self.state)
            except Exception as error:  # the caller's own, raised in its thread
                request.answer = error
                return ()
        if not proposed:
            request.answer = AppendOutcome(-1, None)
            return ()
        commands = (proposed,) if isinstance(proposed, bytes) else proposed
        size_bytes = sum(map(len, commands))
        if size_bytes > COMMAND_SIZE_BYTES_MAX:
            request.answer = self._errors.too_large(size_bytes)
            return ()
        return commands

    def _expire(self, request: Request, *, is_driver: bool) -> None:
        """Answer a request whose time is over; where roots refuse, also all others that have waited long enough."""
        core = self.core
        with self._turns.gate:
            since_ms = self._clock.monotonic_ms() - self._settings.quorum_timeout_ms
            is_refused = is_driver and core.is_refused()
            for waiter in [request, *self._requests.open()]:
                is_over = waiter is request or (is_refused and waiter.deadline_ms - waiter.timeout_ms <= since_ms)
                if not is_over or waiter.answer is not None:
                    continue
                may_be_sent = waiter.is_sent or waiter in self._requests.taken
                if is_driver and waiter.is_sent:  # else the driver may be sending it now
                    may_be_sent = core.is_user_open() or waiter.is_hidden
                error = self._errors.outcome_unknown if may_be_sent else self._errors.not_decided
                waiter.answer = error(core, waiter)
            self._turns.changed.notify_all()

    # -- driving the core -------------------------------------------------------------------------

    def step(self, now_ms: float, deadline_ms: float) -> float:
        """In a turn, run the core's operations, process their answers and fold; return the time then."""
        core, keeper = self.core, self._fold.keeper
        try:
            now_ms = self._exchange(self._run, now_ms, deadline_ms)
        except ReplogError:
            self._run.is_stepping = False  # the core's own: it is whole
            raise
        applied, prefix = self.state.applied_index, core.prefix
        if keeper is not None and applied < prefix.base.index and applied + 1 not in prefix.payloads:
            self._fold.restore(partial(keeper.restore_base, core))
        self._advance()
        return now_ms

    def _exchange(self, run: Incarnation, now_ms: float, deadline_ms: float) -> float:
        """Run operations and process answers; an interrupt leaves `is_stepping` set, except one of the wait."""
        core = run.core
        run.is_stepping = True
        operations = core.poll(now_ms)
        if operations:
            run.io.start(operations)
        wait_ms = 0.0
        if core.phase not in (Phase.READY, Phase.DONE):
            until_ms = deadline_ms if core.progress.wake_at_ms is None else min(deadline_ms, core.progress.wake_at_ms)
            wait_ms = max(0.0, min(until_ms - now_ms, _POLL_MS_MAX))
        began_ms = now_ms
        run.is_stepping = False
        run.io.wait(wait_ms)
        run.is_stepping = True
        completions = run.io.take()
        now_ms = self._clock.monotonic_ms()
        if now_ms - began_ms > wait_ms + STOOD_STILL_MS:
            run.heard_ms += now_ms - began_ms  # this process stood still, so the roots were not silent
        for completion in completions:
            core.complete(completion, now_ms)
        if core.fatal is not None:
            raise core.fatal
        if run.damaged or [state for state in core.roots if state.error is not None]:
            self._check_journals(run)
        # Before the fold: the answers may complete a claim, which decides entries.
        core.advance(now_ms)
        run.is_stepping = False
        return now_ms

    def _give_up_sent(self) -> None:
        """Answer the requests in flight: a new incarnation cannot recognise their entry."""
        with self._turns.gate:
            self._requests.fail_sent(partial(self._errors.outcome_unknown, self.core))
            self._turns.changed.notify_all()

    def _advance(self, *, must_restore: bool = False) -> None:
        """Fold the decided entries, then answer the callers whose ENTRY was among them: see ``StateFold.advance``."""
        with self.lock:
            try:
                self._answer(self._fold.advance(self.core, must_restore=must_restore))
            except ReplogError:
                raise
            except BaseException:
                self._run.is_stepping |= self._fold.wholeness is Wholeness.WHOLE  # what follows the fold is half done
                raise

    def _answer(self, results: dict[int, tuple[Any, ...]]) -> None:
        core = self.core
        settled, core.settled = core.settled, None
        if settled is None:
            return
        index, is_won = settled
        if not is_won or index not in results:  # lost, or folded only in a snapshot: no result is known here
            with self._turns.gate:
                self._requests.lose(is_known=index in results)
            return  # they are proposed again on the new fold
        if self._on_decided is not None and (value := core.prefix.payloads.get(index)) is not None:
            owners = core.proposer.owner_before, core.proposer.incarnation
            self._on_decided(index, value[TAG_SIZE_BYTES:], results[index], owners)
        with self._turns.gate:
            self._requests.decide(index, results[index])
            self._turns.changed.notify_all()

    # -- snapshots --------------------------------------------------------------------------------

    def ask(self, question: Callable[[S], T]) -> T:
        """Call a function with the state under `lock`; it must return values that no later entry changes.

        If a page of the state is gone, a newer snapshot exists: the state is restored and the function called again.

        Raises:
            PageMissingError: REPLOG_SNAPSHOT_MISSING.
        """
        for _ in range(RESTORES_MAX):
            try:
                with self.lock:
                    if self._fold.wholeness is not Wholeness.TORN:
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
            payloads, newest = self.core.prefix.payloads, self.state.applied_index
            held = takewhile(payloads.__contains__, range(newest, max(-1, newest - count), -1))
            return [(index, payloads[index][TAG_SIZE_BYTES:]) for index in held]

    def restore_decided(self) -> None:
        """Restore the state from the decided snapshot; call it while the core is at rest."""
        try:
            self._advance(must_restore=True)
        except PageMissingError as error:
            self._start_over(error)

    def _start_over(self, error: ReplogError) -> None:
        """Start like a new process, with the decided snapshot: entries after it are no longer in memory.

        Holds the lock until all is read again, so that no caller sees the state go back. The new incarnation owns
        nothing. Raises `error` if no snapshot helps.
        """
        keeper, fold = self._fold.keeper, self._fold
        if keeper is None or not (self._is_unproven or (self.core.fatal is None and keeper.decided.name)):
            raise error
        self._give_up_sent()
        with self.lock:
            for _ in range(RESTORES_MAX):
                self._run, fold.wholeness = self._new_incarnation(), Wholeness.TORN
                self._run.has_started = True
                has_head = keeper.start_over(self.core)
                fold.wholeness = Wholeness.WHOLE
                try:
                    self._drive_read()
                except BaseException:
                    # Without a head nothing was folded before: what is folded now is right, and the next call reads on.
                    fold.wholeness = Wholeness.TORN if has_head else fold.wholeness
                    raise
                if keeper.is_derived or not has_head:
                    return
        raise PageMissingError(error.code, "other processes write snapshots faster than they can be read here.")

    def with_turn(self, work: Callable[[], T]) -> T:
        """Run a function that needs the core at rest, between two goals."""
        results: list[T] = []

        def run() -> None:
            if self.core.fatal is not None:
                raise self.core.fatal
            if self._run.is_stepping or self._is_unproven:
                self._read()
            results.append(work())

        self._in_turn(run)
        return results[0]

    @property
    def snapshots(self) -> SnapshotWriter | None:
        """Return what writes the snapshots; None: this process uses none."""
        keeper = self._fold.keeper
        # A new one each time: a stored one would be a reference cycle that keeps a closed ledger's state in memory.
        return None if keeper is None else SnapshotWriter(self, keeper)

    def snapshot(self, *, timeout_ms: int) -> SnapshotStats:
        """Write a snapshot now: see ``SnapshotWriter``. Raises what `append` raises."""
        if self.snapshots is None or self._settings.read_only:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, "This process opened the ledger read-only.")
        return self.snapshots.snapshot(timeout_ms=timeout_ms)

    def collect(self, *, is_dry_run: bool = False) -> int:
        """Delete files that snapshots have replaced: see ``SnapshotWriter``. Raises REPLOG_NO_QUORUM."""
        if self.snapshots is None or self._settings.read_only:
            return 0
        return self.snapshots.collect(is_dry_run=is_dry_run)

    @property
    def _ids(self) -> list[int]:
        return [root.broker_id for root in self._roots]

    def named_position(self, broker_id: int) -> int:
        """Return the highest position of the broker's journal that other roots' records name; -1 for none."""
        return self.core.prefix.named.highest[self._ids.index(broker_id)]

    def journal_end(self, broker_id: int) -> int:
        """Return the position after the last record of the broker's journal that this process has read."""
        return self.core.prefix.views[self._ids.index(broker_id)].next_position

    def owned_log(self, broker_id: int, root_id: str) -> OwnedLog | None:
        """Return all decided entries and the epoch that owns them; None if another process claimed, or memory was full.

        Call it right after ``append``, on a ledger that has never read that root: it keeps all values for that root.
        """
        root, keeper = self._ids.index(broker_id), self._fold.keeper
        points = () if keeper is None else keeper.decided_points()
        return OwnedLog.of(self.core, root, root_id, *points[root : root + 1])

    # -- journals that lack entries ---------------------------------------------------------------

    def behind(self, last: int | None = None) -> dict[int, int]:
        """Return the brokers whose journals the last refresh found behind, and how many entries they lack."""
        return {self._ids[root]: count for root, count in journals_behind(self.core, last).items()}

    def level(self, *, timeout_ms: int, broker_ids: Collection[int] | None = None) -> set[int]:
        """Give roots the entries that they lack; return the brokers that still do: see ``JournalLeveler.level``."""
        roots = None if broker_ids is None else [root for root, broker in enumerate(self._ids) if broker in broker_ids]
        left = JournalLeveler(self, self._clock, self._leveling).level(timeout_ms=timeout_ms, roots=roots)
        return {self._ids[root] for root in left}

    # -- errors -----------------------------------------------------------------------------------

    def _check_journals(self, run: Incarnation) -> None:
        """Log each journal that is found damaged; raise if too few others are left.

        A write that was sent waits for its timeout, because its entry may be decided.
        """
        core = run.core
        damaged = set(core.damaged_roots(2))
        for root in damaged - run.damaged:
            _LOG.error("Ledger %s goes on without one journal. %s", self.ledger_id, core.roots[root].error)
        run.damaged = damaged
        if len(self._roots) - len(core.damaged_roots()) < core.prefix.majority and not core.is_user_open():
            raise self._errors.damaged(core)


_ledgers: weakref.WeakSet[Ledger[Any]] = weakref.WeakSet()


@in_each_child
def _start_child() -> None:
    for ledger in _ledgers:
        if ledger._is_unproven:
            ledger.state.clear()  # the child knows no longer what is to be proven
        ledger._start_process(ledger._fold.wholeness)
