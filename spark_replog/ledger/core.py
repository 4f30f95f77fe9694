"""The state machine of one ledger in one process. Pure: no I/O, clock or thread.

The shell (or the simulation) drives it: begin a goal, run every operation that `poll` returns,
pass each answer to `complete`, and poll again, at `wake_at_ms` at the latest. At most one operation
per root is in flight; a root with an operation in flight counts as missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, UnsupportedFormatError
from spark_replog.ledger.goal import AT_REST, REREAD_MS, TRANSITIONS, Goal, GoalKind, Phase, Progress
from spark_replog.ledger.proposer import Proposer
from spark_replog.ledger.read_plan import ReadPlan
from spark_replog.ledger.reader import DecidedPrefix
from spark_replog.ledger.record import (
    NO_INDEX,
    NONCE_SIZE_BYTES,
    ZERO_EPOCH,
    Epoch,
    JournalRecord,
    RecordKind,
    damaged_record,
    decode_record,
    encode_record,
    record_crc,
)
from spark_replog.ledger.rivals import Rivals
from spark_replog.ledger.root import (
    AFTER_CHECK,
    READ,
    READ_BY_THIS_GOAL,
    REFUSALS_MIN,
    TO_CHECK,
    TO_READ,
    WENT_BACK,
    Check,
    Completion,
    Create,
    Operation,
    PendingCreate,
    PutMarker,
    PutOut,
    Read,
    RootState,
    Standing,
    journal_cut_short,
    journal_hole,
    stale_journal,
)
from spark_replog.ledger.snapshot_files import Base, JournalPoint, Marker, SnapshotHead
from spark_replog.ledger.types import LedgerSettings, LedgerStats

DAMAGE = (CorruptDataError, UnsupportedFormatError)
"""Errors of a journal that cannot be read. Its root counts as missing."""
DAMAGED_READS = 3
"""After this many failed reads in a row the file itself is damaged, not a single transfer."""
DAMAGED_RETRY_MS = 5000.0
"""How long to wait before a journal out of order is read again: the read starts at its beginning."""


class LedgerCore:
    """Reads, claims and appends of one ledger by one process incarnation: what is decided, what may be proposed.

    Who else writes is kept in `rivals`, what to ask of which root in `reads`, how long to wait in `progress`.

    Args:
        root_names: names in errors, in the store's order of metadata roots.
        genesis: ``record.genesis_hash(ledger_id)``.
        incarnation: 16 random bytes, of this process alone.
        rng: nonces and the random part of waits (a seeded one makes a run repeatable).

    Attributes:
        phase: changed by `_enter` and `finish` only.
        goal: the current one, or the last; changed by `begin` only.
        fatal: an error that ends this ledger in this process.
        snapshot: the last decided snapshot that this process knows: its base and its name; None for none.
        settled: (index of the last own value, whether it was decided there); the caller reads it and sets None.
        may_claim: a read may claim to decide the tail.
    """

    def __init__(
        self,
        root_names: Sequence[str],
        genesis: bytes,
        incarnation: bytes,
        settings: LedgerSettings,
        rng: random.Random,
        stats: LedgerStats | None = None,
    ) -> None:
        self.prefix = DecidedPrefix(len(root_names), genesis, lambda root: root_names[root])
        self.proposer = Proposer(self.prefix, incarnation, round_step=settings.claim_round_step)
        self.roots = [RootState() for _ in root_names]
        self.rivals = Rivals(settings)
        self.reads = ReadPlan(settings)
        self.stats = stats or LedgerStats()
        self.phase = Phase.IDLE
        self.goal = Goal(GoalKind.READ, 0, 0.0)
        self.progress = Progress(0.0, REREAD_MS)
        self.fatal: ReplogError | None = None
        self.snapshot: tuple[Base, str] | None = None
        self.settled: tuple[int, bool] | None = None
        self.may_claim = not settings.read_only
        self._settings = settings
        self._rng = rng
        self._was_synced = False

    def start_at(self, base: Base, snapshot_name: str, points: Sequence[JournalPoint]) -> None:
        """Begin with a snapshot instead of entry 0; call it before the first goal."""
        assert self.prefix.length == 0 and not self.goal.number
        self.prefix.jump(base, snapshot_name)
        for root, point in enumerate(points):
            self.prefix.set_view(root, point)
            self.roots[root].floor = point.floor
        self.expect(points)

    def expect(self, points: Sequence[JournalPoint]) -> None:
        """Take a journal that ends before its point in a snapshot's head for damaged; call it before the first goal."""
        for state, point in zip(self.roots, points, strict=True):
            state.proven = point

    def points_at(self, index: int) -> list[JournalPoint]:
        """Return per root where to read on for a snapshot of the state after this entry.

        A root where records of later entries can no longer be told apart is read from where this process began.
        """
        base, points = self.prefix.base_at(index), []
        for view, state in zip(self.prefix.views, self.roots, strict=True):
            points.append(view.point_at(base, state.floor) or view.origin._replace(floor=state.floor))
        return points

    def truncation(self, root: int, snapshot: SnapshotHead, name: str, kept_count: int) -> Marker | None:
        """Return the marker for deleting the records that a decided snapshot replaces; None: delete none.

        Args:
            root: the root whose journal is truncated.
            snapshot: its head is on a majority, and its SnapshotCommit is folded here.
            name: name of the head.
            kept_count: how many older records stay, at least one: a journal's last record carries the promise.
        """
        floor, point = self.roots[root].floor, snapshot.points[root]
        position = point.position - max(1, kept_count)
        if point.floor.renewal != floor.renewal:
            return None  # a position of the journal before its rebuild, which holds another record now
        if not self._was_synced or position <= floor.position or snapshot.base.index < floor.base_index:
            return None
        return Marker(position, snapshot.base, name, floor.renewal)

    # -- goals ------------------------------------------------------------------------------------

    def begin(self, kind: GoalKind, now_ms: float) -> None:
        """Start a goal; each kind ends in DONE."""
        may_skip_read = self.rivals.may_skip_read(now_ms, self.goal.start_ms)
        self.goal = Goal(kind, self.goal.number + 1, now_ms)
        self.progress = Progress(now_ms, min(REREAD_MS, max(1.0, self.rivals.operation_ms)))
        self.rivals.yields = 0
        self.reads.read_all()
        for state in self.roots:
            state.refusal = None
            if isinstance(state.error, DAMAGE) and state.retry_at_ms < now_ms + DAMAGED_RETRY_MS / 2:
                state.failures = 1  # the files may have been put back
        proposal = self.proposer.proposal
        if self.goal.is_write and proposal is not None:
            # Its caller gave up, but it may be decided: this epoch may not propose another value for its index.
            proposal.is_recovered = True
            self._enter(Phase.LEAD)
        elif self.goal.is_write and may_skip_read:
            self._enter(Phase.READY)
        else:
            self._enter_sync(now_ms)
            if kind is GoalKind.STALE_READ:
                self.reads.save_calls(self.roots, self.prefix, now_ms)

    def propose(self, payload: bytes) -> None:
        """In READY: put a value in flight, or claim first and come back to READY."""
        assert self.phase is Phase.READY
        if not self.proposer.is_leading:
            self._enter(Phase.CLAIM)
            return
        self.proposer.propose(payload)
        self.proposer.own = self.proposer.proposal
        self.settled = None
        self._enter(Phase.LEAD)

    def level(self) -> None:
        """In READY: claim, or propose the newest decided value again: each root gets all before it first (backfill)."""
        assert self.phase is Phase.READY
        last = self.prefix.length - 1
        if self.proposer.is_leading:
            self.proposer.propose(self.prefix.payloads[last], last)
        self._enter(Phase.LEAD if self.proposer.is_leading else Phase.CLAIM)

    def finish(self) -> None:
        """End the goal; operations in flight go on."""
        self.phase = Phase.IDLE
        self.proposer.drop_unsent()

    def is_user_open(self) -> bool:
        """Return whether the last own value was sent and its fate is not known."""
        return self.proposer.own is not None and self.proposer.own.is_sent

    def missing_roots(self, now_ms: float) -> list[int]:
        """Return the roots that do not answer: failed, never verified, or busy with one operation for too long."""
        return [
            index
            for index, state in enumerate(self.roots)
            if (state.error or state.refusal) is not None
            or state.standing is Standing.UNVERIFIED
            or (state.busy is not None and now_ms - state.busy_since_ms >= self._settings.quorum_timeout_ms / 2)
        ]

    def is_refused(self, now_ms: float | None = None) -> bool:
        """Return whether the roots that refuse what this goal needs leave no majority.

        Args:
            now_ms: count a root only if it has refused for `quorum_timeout_ms`, more than once. None: if its last
                answer refused.
        """
        refusals = [state.refusal for state in self.roots if state.refusal is not None]
        if now_ms is not None:
            since_ms = now_ms - self._settings.quorum_timeout_ms
            refusals = [denial for denial in refusals if denial.count >= REFUSALS_MIN and denial.since_ms <= since_ms]
        return len(self.roots) - len(refusals) < self.prefix.majority

    def damaged_roots(self, failures_min: int = DAMAGED_READS) -> list[int]:
        """Return the roots whose journal was found damaged by this many reads in a row."""
        return [
            root
            for root, state in enumerate(self.roots)
            if isinstance(state.error, DAMAGE) and state.failures >= failures_min
        ]

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], (self.phase, phase)
        self.phase = phase
        self.progress.majority_at_ms = None

    def _enter_sync(self, now_ms: float) -> None:
        self._enter(Phase.SYNC)
        self.progress.sync_start_ms, self.progress.reread_at_ms = now_ms, None
        self._forget_reads()

    def _forget_reads(self) -> None:
        for state in self.roots:
            if state.standing in READ_BY_THIS_GOAL:
                state.enter(Standing.KNOWN)

    # -- operations out ---------------------------------------------------------------------------

    def poll(self, now_ms: float) -> list[Operation]:
        """Advance the phase; return the operations to run now."""
        self.progress.wake_at_ms = None
        self.advance(now_ms)
        if self.phase in AT_REST:
            return []
        operations = []
        for root, state in enumerate(self.roots):
            if state.busy is not None:
                continue
            if state.must_check:
                state.must_check = False
                state.unverify()
            operation = self._next_operation(root, state, now_ms)
            if operation is not None:
                state.busy = operation
                state.busy_goal = self.goal.number
                state.busy_since_ms = now_ms
                state.busy_named = self.prefix.named.highest[root]
                operations.append(operation)
        return operations

    def _next_operation(self, root: int, state: RootState, now_ms: float) -> Operation | None:
        standing = state.standing
        if standing is Standing.RETIRED or (standing in WENT_BACK and self._settings.read_only):
            return None
        if state.retry_at_ms > now_ms:
            self.progress.wake(state.retry_at_ms)
            return None
        if standing in TO_CHECK:
            return Check(root, state.failures > 0)
        if standing is Standing.OUT:
            return PutOut(root, self.prefix.named.highest[root], state.floor)
        position, named = self.prefix.views[root].next_position, self.prefix.named.highest[root]
        if self.phase is Phase.SYNC:
            return None if standing in READ_BY_THIS_GOAL else self.reads.read(root, state, position, named, now_ms)
        if self.proposer.epoch is None:
            return None
        if standing in TO_READ or position <= named:
            # Other roots name a record there: a create would be lost, or leave a gap.
            return self.reads.read(root, state, position, named, now_ms)
        nonce = self._rng.randbytes(NONCE_SIZE_BYTES)
        if self.phase is Phase.CLAIM:
            record = self.proposer.claim_record(root, nonce)
        else:
            record = self.proposer.entry_record(root, nonce)
        if record is None:
            marker = None if self.proposer.proposal is None else self._marker_for(root)
            return None if marker is None else PutMarker(root, state.floor.marker_no, marker)
        return self._create(root, state, position, record)

    def _marker_for(self, root: int) -> Marker | None:
        return None if self.snapshot is None else self.proposer.marker_for(root, self.roots[root].floor, *self.snapshot)

    def _has_too_few_values(self, now_ms: float) -> bool:
        """Return whether no majority can take the next entry, because roots lack entries before it.

        This process began with a snapshot, knows of no root that the snapshot is decided, and so may not put a marker
        in place of the entries, nor does it have their values. The journals still have them (``_rewind``).
        """
        if self.progress.has_rewound or self.proposer.is_single:
            return False
        lacking = {
            root
            for root, state in enumerate(self.roots)
            if state.standing in READ and self.proposer.lacks_entries(root) and self._marker_for(root) is None
        }
        return bool(lacking) and len(self.roots) - len(lacking.union(self.missing_roots(now_ms))) < self.prefix.majority

    def _rewind(self, now_ms: float) -> None:
        """Read the journals again, each from its newest marker on, and drop the epoch.

        A majority's journals, each with the snapshot that its marker names, hold all that is decided: so after this
        every root can get what it lacks. What the caller has folded remains; entries up to there are only read again.
        The prefix is shorter until then.
        """
        self.progress.has_rewound = True
        self.prefix = self.proposer.prefix = self.prefix.begun_again()
        self.proposer.depose()
        self.rivals.streak = 0
        for state in self.roots:
            state.rewind()
        self._yield(now_ms)

    def _create(self, root: int, state: RootState, position: int, record: JournalRecord) -> Create:
        if state.pending is None or not state.is_pending(position, record):
            state.pending = PendingCreate(position, record, encode_record(record), self.prefix.named.highest[root])
        value = self.proposer.own
        if value is not None and record.entry_hash == value.entry_hash:
            value.is_sent = True
        return Create(root, position, state.pending.data, state.floor.marker_no)

    # -- answers in -------------------------------------------------------------------------------

    def complete(self, completion: Completion, now_ms: float) -> None:
        """Process the answer to an operation, also a late one of an earlier goal."""
        operation = completion.operation
        state = self.roots[operation.root]
        if state.busy is not operation:
            return
        state.busy = None
        error = completion.error
        if state.refusal is not None or error is not None:
            state.note_refusal(operation, error, now_ms)
        self.rivals.operation_ms += (now_ms - state.busy_since_ms - self.rivals.operation_ms) / 8
        if error is not None:
            self._fail(state, error, now_ms)
            if isinstance(error, ReplogError) and error.code is ErrorCode.REPLOG_CLUSTER_MISMATCH:
                self.fatal = error  # the whole store was made again
            return
        if (isinstance(operation, Create) and not completion.exists) or (
            isinstance(operation, Read) and (operation.checks_marker or completion.records)
        ):
            state.marker_at_ms = state.busy_since_ms  # not now: the answer may have waited for hours for a call
        if completion.marker is not None and self._moved(operation.root, *completion.marker, now_ms):
            return
        view = self.prefix.views[operation.root]
        if isinstance(operation, Create | Read) and operation.position != view.next_position:
            return  # it began before `_rewind`
        if isinstance(operation, Check):
            state.enter(AFTER_CHECK.get(state.standing, state.standing))
        elif isinstance(operation, PutOut):
            state.enter(Standing.RETIRED)
        elif isinstance(operation, PutMarker):
            state.marker_at_ms = None  # the root has this marker or another process's: look for it
            state.enter(Standing.OUTDATED)
        elif isinstance(operation, Read):
            self._learn_all(operation, completion, state, now_ms)
        elif completion.exists:
            state.enter(Standing.OUTDATED)
        elif state.pending is not None and operation.position <= state.pending.named:
            self._went_back(operation.root, now_ms)
        else:
            self._learn(operation.root, state, operation.data, now_ms)
            state.error, state.failures = None, 0

    def _moved(self, root: int, marker: Marker, marker_no: int, now_ms: float) -> bool:
        """Apply a root's marker: its journal begins later now.

        Everything read of the journal is dropped, also an own create just before this look: below the marker a position
        can be taken twice. Records above it are read again; an own record found there counts. Only a journal with
        nothing open is kept (``JournalView.begin_at``).

        Returns:
            False if what was read of the journal still counts.
        """
        state, point = self.roots[root], marker.point(marker_no)
        if marker.name and (self.snapshot is None or self.snapshot[0].index < marker.base.index):
            self.snapshot = marker.base, marker.name  # only a decided one gets into a marker
        if state.is_floor(point.floor):
            return True
        is_renewed, state.floor, state.misses = point.floor.renewal != state.floor.renewal, point.floor, 0
        if not is_renewed and self.prefix.views[root].begin_at(point):
            return False
        self._read_from(root, point)
        if state.pending is not None and (is_renewed or state.pending.position < marker.position):
            state.pending = None
        state.read_again()
        if marker.base.index == NO_INDEX or not self.prefix.jump(marker.base, marker.name):
            return True
        # Other processes wrote meanwhile. Drop the value in flight: only they can have decided it.
        proposer = self.proposer
        self._settle()
        if proposer.is_single:
            proposer.proposal = None
        elif proposer.epoch is not None:
            proposer.depose()
        self.rivals.streak = 0
        if self.phase in (Phase.CLAIM, Phase.LEAD):
            if proposer.is_single:
                self._enter(Phase.READY)
            else:
                self._yield(now_ms)
        return True

    def _read_from(self, root: int, point: JournalPoint) -> None:
        """Drop what is known of a journal. An own claim there counts again once it was read with all before it."""
        self.prefix.set_view(root, point)
        self.proposer.claimed &= ~(1 << root)

    def _fail(self, state: RootState, error: Exception, now_ms: float) -> None:
        settings = self._settings
        wait_ms = min(settings.root_retry_max_ms, settings.root_retry_ms * (1 << min(state.failures, 10)))
        state.fail(error)
        state.retry_at_ms = now_ms + wait_ms * (0.5 + self._rng.random() / 2)

    def _went_back(self, root: int, now_ms: float) -> None:
        """Stop using a root that lost records. Only an alarm: a lost record that no other root names goes unnoticed."""
        self.roots[root].enter(Standing.FORGOT)
        self.proposer.claimed &= ~(1 << root)
        why = stale_journal(self.prefix.root_name(root), self.prefix.named.highest[root])
        self._fail(self.roots[root], why, now_ms)

    def _are_others_whole(self, root: int) -> bool:
        """Return whether a majority is left without a root that lost records, so that an `out` there stops nobody."""
        lost = {n for n, state in enumerate(self.roots) if state.misses or state.standing in WENT_BACK}
        lost.update(self.damaged_roots(1))
        return len(self.roots) - len(lost | {root}) >= self.prefix.majority

    def _learn_all(self, operation: Read, completion: Completion, state: RootState, now_ms: float) -> None:
        root = operation.root
        if not operation.limit:
            state.enter(Standing.FRESH if self.reads.marker_root == root else Standing.KNOWN)
            return
        for data in completion.records:
            try:
                self._learn(root, state, data, now_ms)
            except (CorruptDataError, UnsupportedFormatError) as error:
                self._fail(state, error, now_ms)
                return
        position = self.prefix.views[root].next_position
        if completion.ended and position <= state.busy_named:
            # The second miss counts, after replog.json was read again: an emptied root is another root, not this one.
            state.misses += 1
            state.search_marker()
            if state.misses == 1:
                self._fail(state, stale_journal(self.prefix.root_name(root), self.prefix.named.highest[root]), now_ms)
            elif self._are_others_whole(root):
                self._went_back(root, now_ms)
            else:
                self._fail(state, journal_cut_short(self.prefix.root_name(root), position), now_ms)
            return
        if state.is_cut_short(completion, position, self.prefix.views[root].last.crc):
            state.search_marker()
            self._fail(state, journal_cut_short(self.prefix.root_name(root), position), now_ms)
            return
        order = self.prefix.views[root].order
        if completion.ended and order.fault is not None:
            self._fail(state, damaged_record(self.prefix.root_name(root), order.fault_position, order.fault), now_ms)
            # A rebuilt journal is read from its beginning.
            self._read_from(root, self.prefix.views[root].origin)
            if state.failures > 1:
                state.failures = DAMAGED_READS
                state.retry_at_ms = now_ms + DAMAGED_RETRY_MS
            return
        if completion.after_gap is not None:
            state.search_marker()
            self._fail(state, journal_hole(self.prefix.root_name(root), position, completion.after_gap), now_ms)
            return
        state.end_read(is_whole=completion.ended, is_current=state.busy_goal == self.goal.number)

    def _learn(self, root: int, state: RootState, data: bytes, now_ms: float) -> None:
        pending, view = state.pending, self.prefix.views[root]
        is_own = pending is not None and pending.data == data
        if pending is not None and is_own:
            record = pending.record
        else:
            record = decode_record(data, root=self.prefix.root_name(root), position=view.next_position)
        crc = record_crc(data)
        if view.next_position == view.origin.position and crc == view.origin.last_crc != 0:
            why = "it is the record that was before it, as a snapshot says"  # so the one of this position may be lost
            raise damaged_record(self.prefix.root_name(root), view.next_position, why)
        try:
            self.prefix.learn(root, record, crc)
        except CorruptDataError as error:
            self.fatal = error  # a majority's own hash chain breaks
            return
        state.pending = None
        proposer = self.proposer
        is_claim = record.kind is RecordKind.CLAIM and self.prefix.views[root].order.fault is None
        if is_claim and record.epoch == proposer.epoch:
            proposer.claimed |= 1 << root
        if is_own:
            value = proposer.own
            if value is not None and record.index == value.index and record.entry_hash == value.entry_hash:
                value.is_confirmed = True
        elif proposer.is_single:
            self.rivals.streak = 0
        if self._was_synced and record.kind is RecordKind.CLAIM and record.epoch.incarnation != proposer.incarnation:
            self.rivals.claimed_ms[record.epoch.incarnation] = now_ms
            # A process that claims without a journal we know found its root away, or is rebuilding it. Our creates at
            # the old journal's positions would succeed in the new one and depose the rebuilder again and again.
            for other, last, other_view in zip(self.roots, record.last_known, self.prefix.views, strict=False):
                other.must_check |= last.position < 0 <= other_view.last.position
        if proposer.epoch is not None and record.epoch > proposer.epoch:
            proposer.depose()
            self.rivals.turns_lost += 1
            self.rivals.streak = 0
            if self.phase in (Phase.CLAIM, Phase.LEAD):
                self._yield(now_ms)
        self._settle()

    def _settle(self) -> None:
        """Once the index of the last own value is decided, set `settled`."""
        value, proposer = self.proposer.own, self.proposer
        if value is None or self.prefix.length <= value.index:
            return
        if proposer.is_single:
            is_won = value.is_confirmed
        else:
            is_won = self.prefix.hashes.get(value.index) == value.entry_hash  # False also below the base: unknown there
        proposer.own = None
        self.settled = value.index, is_won
        self.stats.entries += is_won

    # -- phases -----------------------------------------------------------------------------------

    def advance(self, now_ms: float) -> None:
        """Advance the phase as far as the answers and the time allow."""
        before = None
        while before is not self.phase:
            before = self.phase
            if before in _ADVANCE:
                _ADVANCE[before](self, now_ms)

    def _advance_sync(self, now_ms: float) -> None:
        missing = sum(1 << root for root, state in enumerate(self.roots) if state.standing not in READ_BY_THIS_GOAL)
        spare_count = len(self.roots) - self.prefix.majority
        is_early = missing.bit_count() > spare_count
        is_early = is_early or bool(missing and self._is_waiting(missing, now_ms, is_read=True))
        if self.reads.is_in_vain(self.roots, self.prefix, lacks_answer=bool(missing) and not is_early):
            self.reads.read_all()
            self._forget_reads()
            return
        if is_early:
            return
        if missing or self.prefix.tail_index >= self.prefix.length:
            missing |= self._doubted_roots(missing)
            if missing.bit_count() > spare_count:
                return
        self._was_synced = True
        is_ambiguous = self.prefix.is_ambiguous(missing)
        if self.goal.is_write:
            claims = is_ambiguous and not self.proposer.is_single
            self._enter(Phase.CLAIM if claims else Phase.READY)
            return
        if not is_ambiguous:
            self._enter(Phase.DONE)
        elif now_ms < self.goal.start_ms + self._settings.tail_retry_ms:
            if self.progress.is_reread_due(now_ms):
                self._forget_reads()
            self.progress.wake(self.goal.start_ms + self._settings.tail_retry_ms)
        elif self.may_claim:
            self._enter(Phase.CLAIM)
        else:
            self.progress.is_tail_unclear = True
            self._enter(Phase.DONE)

    def _doubted_roots(self, missing: int) -> int:
        """Return the roots (bit mask) that were read and whose ``replog.json`` must be read after that; ask for it.

        An emptied root reads like one that never had the newest record. This can hide the record, except while every
        root answers and none shows a tail.
        """
        index = self.prefix.length
        for root, state in enumerate(self.roots):
            if state.standing is Standing.FRESH and (missing or index not in self.prefix.views[root].entries):
                state.enter(Standing.DOUBTED)
        return sum(1 << root for root, state in enumerate(self.roots) if state.standing is Standing.DOUBTED)

    def _is_waiting(self, roots: int, now_ms: float, *, is_read: bool = False) -> bool:
        """Return whether one of these roots (bit mask) may still follow the majority within the grace time."""
        end_ms = self.progress.grace_end_ms(now_ms, self._settings, is_read=is_read)
        if now_ms >= end_ms:
            return False
        for root, state in enumerate(self.roots):
            is_busy_before = state.busy is not None and state.busy_goal != self.goal.number
            if roots >> root & 1 and state.error is None and not is_busy_before:
                self.progress.wake(end_ms)
                return True
        return False

    def _open_claim(self) -> Epoch:
        """Return the newest claim if it is another process's and has led to no entry yet, else ZERO_EPOCH."""
        newest, last = self.prefix.promised(), self.prefix.epochs.get(self.prefix.length - 1, ZERO_EPOCH)
        is_open = newest > last and newest.incarnation != self.proposer.incarnation
        return newest if is_open else ZERO_EPOCH

    def _yield(self, now_ms: float) -> None:
        self.rivals.begin_turn(now_ms, self._rng.random())
        self._enter(Phase.YIELD)

    def _advance_yield(self, now_ms: float) -> None:
        until_ms = self.rivals.turn_end_ms(self._open_claim(), now_ms)
        if until_ms is None:
            self._enter_sync(now_ms)
        else:
            self.progress.wake(until_ms)

    def _advance_claim(self, now_ms: float) -> None:
        proposer = self.proposer
        if proposer.is_leading:
            # A tail that outlived our own claim: finish it under our epoch, or claim again.
            if proposer.proposal is not None:
                self._enter(Phase.LEAD)
                return
            proposer.depose()
        if proposer.epoch is None:
            if self.rivals.is_at_work(self._open_claim(), now_ms):
                self._yield(now_ms)
                return
            proposer.start_claim()
            self.rivals.streak = 0
            self.stats.claims += 1
            return
        if not proposer.has_claim_majority():
            if not self.goal.is_write and self._is_claim_refused(now_ms):
                # A process without the right to write: another one decides the tail.
                proposer.depose()
                self.progress.is_tail_unclear = self.progress.is_claim_refused = True
                self._enter(Phase.DONE)
            return
        unclaimed = ((1 << len(self.roots)) - 1) & ~proposer.claimed
        if unclaimed and not proposer.is_tail_shown() and self._is_waiting(unclaimed, now_ms):
            return
        if self._has_too_few_values(now_ms):
            self._rewind(now_ms)
            return
        proposer.finish_claim()
        self._settle()
        if proposer.proposal is not None:
            self._enter(Phase.LEAD)
        else:
            self._owned()

    def _is_claim_refused(self, now_ms: float) -> bool:
        """Return whether a root refused the claim more than once, and those that may still take it are no majority."""
        is_refused = any(state.refusal is not None and state.refusal.count >= REFUSALS_MIN for state in self.roots)
        return is_refused and len(self.roots) - len(self.missing_roots(now_ms)) < self.prefix.majority

    def _owned(self) -> None:
        """All entries are decided and no own value is open: an older own value can no longer be decided."""
        self.proposer.own = None
        self._enter(Phase.READY if self.goal.is_write else Phase.DONE)

    def _advance_lead(self, now_ms: float) -> None:
        proposer = self.proposer
        proposal = proposer.proposal
        assert proposal is not None
        if proposer.is_single:
            is_decided = proposal.is_confirmed
            if not is_decided and self.prefix.length > proposal.index and self.roots[0].standing in READ:
                proposer.proposal = None  # another writer has the index
                self._enter(Phase.READY)
        else:
            is_decided = proposer.proposal_roots().bit_count() >= self.prefix.majority
        if is_decided and proposal.is_recovered and self.goal.kind is not GoalKind.BACKFILL:
            proposer.proposal = None
            self._owned()
        elif is_decided:
            self.rivals.streak += not proposal.is_recovered
            proposer.own = None if proposal.is_recovered else proposer.own  # as in `_owned`
            self._enter(Phase.GRACE)
        elif self._has_too_few_values(now_ms):
            self._rewind(now_ms)

    def _advance_grace(self, now_ms: float) -> None:
        rest = ((1 << len(self.roots)) - 1) & ~self.proposer.proposal_roots()
        if self.proposer.epoch is None or not rest or not self._is_waiting(rest, now_ms):
            self.proposer.proposal = None
            self._enter(Phase.DONE)


_ADVANCE: dict[Phase, Callable[[LedgerCore, float], None]] = {
    Phase.SYNC: LedgerCore._advance_sync,
    Phase.YIELD: LedgerCore._advance_yield,
    Phase.CLAIM: LedgerCore._advance_claim,
    Phase.LEAD: LedgerCore._advance_lead,
    Phase.GRACE: LedgerCore._advance_grace,
}
"""What moves a goal on from each step; `goal.TRANSITIONS` says where to. The other steps wait for the caller."""
