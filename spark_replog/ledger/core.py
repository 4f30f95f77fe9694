"""The state machine of one ledger in one process. Pure: no I/O, clock or thread.

The shell (or the simulation) drives it: begin a goal, run every operation that `poll` returns,
pass each answer to `complete`, and poll again, at `wake_at_ms` at the latest. At most one operation
per root is in flight; a root with an operation in flight counts as missing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, UnsupportedFormatError
from spark_replog.ledger.phase import TRANSITIONS, Phase
from spark_replog.ledger.proposer import Proposal, Proposer
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
    Status,
    journal_cut_short,
    journal_hole,
    stale_journal,
)
from spark_replog.ledger.snapshot_files import Base, JournalPoint, Marker, SnapshotHead
from spark_replog.ledger.types import LedgerSettings

READ_LIMIT = 512
NO_ROOT = -1
REREAD_MS = 5.0
"""The first pause before a tail that may be decided is read again; shorter if operations are faster."""
STREAK_MIN = 2
"""After this many own entries in a row, without rivals, an owner appends without reading the journals first."""
DAMAGE = (CorruptDataError, UnsupportedFormatError)
"""Errors of a journal that cannot be read. Its root counts as missing."""
DAMAGED_READS = 3
"""After this many failed reads in a row the file itself is damaged, not a single transfer."""
DAMAGED_RETRY_MS = 5000.0
"""How long to wait before a journal out of order is read again: the read starts at its beginning."""


class LedgerCore:
    """Reads, claims and appends of one ledger by one process incarnation.

    Args:
        root_names: names in errors, in the store's order of metadata roots.
        genesis: ``record.genesis_hash(ledger_id)``.
        incarnation: 16 random bytes, of this process alone.
        rng: nonces and the random part of waits (a seeded one makes a run repeatable).

    Attributes:
        phase: changed by `_enter` and `finish` only.
        is_tail_unclear: the last read goal ended with a tail that may or may not be decided.
        fatal: an error that ends this ledger in this process.
        snapshot: the last decided snapshot that this process knows: its base and its name; None for none.
        base_name: name of the snapshot that the prefix began with, "" for entry 0.
        owners: incarnation of the last other claimant before an own claim (zeros for none), and this process's.
        settled: (index of the last own value, whether it was decided there); the caller reads it and sets None.
        wake_at_ms: when `poll` must be called again even if nothing completes; None: not before something does.
        claims: claims begun; entries: own values decided; turns_lost: own claims that another process's claim ended.
    """

    def __init__(
        self,
        root_names: Sequence[str],
        genesis: bytes,
        incarnation: bytes,
        settings: LedgerSettings,
        rng: random.Random,
    ) -> None:
        self.prefix = DecidedPrefix(len(root_names), genesis, lambda root: root_names[root])
        self.proposer = Proposer(self.prefix, incarnation, round_step=settings.claim_round_step)
        self.roots = [RootState() for _ in root_names]
        self.phase = Phase.IDLE
        self.is_tail_unclear = False
        self.fatal: ReplogError | None = None
        self.snapshot: tuple[Base, str] | None = None
        self.base_name = ""
        self.owners = ZERO_EPOCH.incarnation, incarnation
        self.settled: tuple[int, bool] | None = None
        self.claims = self.entries = self.turns_lost = 0
        self._root_names = root_names
        self._settings = settings
        self._rng = rng
        self._goal = 0
        self._is_write = self._is_level = False
        self._glanced: int | None = None
        self._learned_before = 0
        self._is_marker_turn = True
        self._may_claim = not settings.read_only
        self._user: Proposal | None = None
        self._is_user_sent = False
        self._streak = 0
        self._rivals = Rivals(settings)
        self._to_verify: set[int] = set()
        self._was_synced = self._has_rewound = False
        self._goal_start_ms = self._sync_start_ms = 0.0
        self._majority_at_ms: float | None = None
        self._reread_at_ms: float | None = None
        self._reread_ms = REREAD_MS
        self.wake_at_ms: float | None = None

    def start_at(self, base: Base, points: Sequence[JournalPoint]) -> None:
        """Begin with a snapshot instead of entry 0; call it before the first goal."""
        assert self.prefix.length == 0 and not self._goal
        self.prefix.jump(base)
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
        base, found = self.prefix.base_at(index), []
        for view, state in zip(self.prefix.views, self.roots, strict=True):
            found.append(view.point_at(base, state.floor) or view.origin._replace(floor=state.floor))
        return found

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

    def begin(self, now_ms: float, *, is_write: bool, is_glance: bool = False, is_level: bool = False) -> None:
        """Start a goal: read the newest decided prefix, or append an own ENTRY. Both end in DONE.

        Args:
            is_write: append an ENTRY; the goal enters READY before each value is proposed.
            is_level: of a write: append none, but give roots those that they lack; in READY call `level`.
            is_glance: of a read: when markers are due, ask one root in turn for its marker and the others for their
                tails: one get each. If anything is new, all roots are read. An entry on a majority shows in one of
                these gets, unless a root that held it was cut or emptied and the root in turn lacks it: then the next
                glance shows it. A single metadata root is asked for its marker after a glance at its tail that found
                nothing, so an entry that comes then also shows one glance later.
        """
        is_recent = now_ms - self._goal_start_ms < 4 * self._rivals.operation_ms  # the journals were read moments ago
        self._goal += 1
        self._is_write, self._is_level = is_write, is_level
        self._glanced = None
        self._has_rewound = False
        self._goal_start_ms = now_ms
        self._reread_ms = min(REREAD_MS, max(1.0, self._rivals.operation_ms))
        self._rivals.yields = 0
        self.is_tail_unclear = False
        for state in self.roots:
            state.refusal = None
            if isinstance(state.error, DAMAGE) and state.retry_at_ms < now_ms + DAMAGED_RETRY_MS / 2:
                state.failures = 1  # the files may have been put back
        proposal = self.proposer.proposal
        if is_write and proposal is not None:
            # Its caller gave up, but it may be decided: this epoch may not propose another value for its index.
            proposal.is_recovered = True
            self._enter(Phase.LEAD)
            return
        # If another process claimed lately, the next entry may well be its own: read first.
        is_alone = is_recent or self._rivals.are_quiet(now_ms)
        if is_write and self._streak >= STREAK_MIN and is_alone:
            self._enter(Phase.READY)
            return
        self._enter_sync(now_ms)
        if is_glance:
            self._glanced, self._learned_before = self._root_to_glance_at(now_ms), self.prefix.learned_count

    def _root_to_glance_at(self, now_ms: float) -> int | None:
        """Return the root whose marker was looked for longest ago; None: read all roots.

        `NO_ROOT`: ask the only root for its tail.
        """
        due = [(-1.0 if at is None else at, root) for root, at in enumerate(each.marker_at_ms for each in self.roots)]
        at_ms, root = min(due)
        is_quiet = self.prefix.tail_index < self.prefix.length and all(each.is_idle() for each in self.roots)
        if not is_quiet or now_ms - at_ms < self._settings.marker_check_ms:
            return None
        if len(due) == 1:
            self._is_marker_turn = not self._is_marker_turn and self.prefix.learned_count == self._learned_before
            return root if self._is_marker_turn else NO_ROOT
        return root

    def propose(self, payload: bytes) -> None:
        """In READY: put a value in flight, or claim first and come back to READY."""
        assert self.phase is Phase.READY
        if not self.proposer.is_leading:
            self._enter(Phase.CLAIM)
            return
        self.proposer.propose(payload)
        self._user = self.proposer.proposal
        self._is_user_sent = False
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
        if self.proposer.proposal is self._user and not self._is_user_sent:
            self._user = self.proposer.proposal = None  # its caller is told that nothing was sent

    def is_user_open(self) -> bool:
        """Return whether the last own value was sent and its fate is not known."""
        return self._user is not None and self._is_user_sent

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
        found = [state.refusal for state in self.roots if state.refusal is not None]
        if now_ms is not None:
            since_ms = now_ms - self._settings.quorum_timeout_ms
            found = [each for each in found if each.count >= REFUSALS_MIN and each.since_ms <= since_ms]
        return len(self.roots) - len(found) < self.prefix.majority

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
        self._majority_at_ms = None

    def _enter_sync(self, now_ms: float) -> None:
        self._enter(Phase.SYNC)
        self._sync_start_ms = now_ms
        self._reread_at_ms = None
        self._forget_reads()

    def _forget_reads(self) -> None:
        for state in self.roots:
            if state.standing in READ_BY_THIS_GOAL:
                state.enter(Standing.KNOWN)

    # -- operations out ---------------------------------------------------------------------------

    def poll(self, now_ms: float) -> list[Operation]:
        """Advance the phase; return the operations to run now."""
        self.wake_at_ms = None
        self.advance(now_ms)
        if self.phase in (Phase.IDLE, Phase.YIELD, Phase.READY, Phase.DONE):
            return []
        found = []
        for root, state in enumerate(self.roots):
            if state.busy is not None:
                continue
            if root in self._to_verify:
                self._to_verify.discard(root)
                if state.standing not in WENT_BACK:
                    state.enter(Standing.UNVERIFIED)
            operation = self._next_operation(root, state, now_ms)
            if operation is not None:
                state.busy = operation
                state.busy_goal = self._goal
                state.busy_since_ms = now_ms
                state.busy_named = self.prefix.named[root]
                found.append(operation)
        return found

    def _next_operation(self, root: int, state: RootState, now_ms: float) -> Operation | None:
        standing = state.standing
        if standing is Standing.RETIRED or (standing in WENT_BACK and self._settings.read_only):
            return None
        if state.retry_at_ms > now_ms:
            self._wake(state.retry_at_ms)
            return None
        if standing in TO_CHECK:
            return Check(root, state.failures > 0)
        if standing is Standing.OUT:
            return PutOut(root, self.prefix.named[root], state.floor)
        position = self.prefix.views[root].next_position
        if self.phase is Phase.SYNC:
            return None if standing in READ_BY_THIS_GOAL else self._read(root, state, now_ms)
        if self.proposer.epoch is None:
            return None
        if standing in TO_READ or position <= self.prefix.named[root]:
            # Other roots name a record there: a create would be lost, or leave a gap.
            return self._read(root, state, now_ms)
        nonce = self._rng.randbytes(NONCE_SIZE_BYTES)
        if self.phase is Phase.CLAIM:
            record = self.proposer.claim_record(root, nonce)
        else:
            record = self.proposer.entry_record(root, nonce)
        if record is None:
            marker = None if self.proposer.proposal is None else self._marker_for(root)
            return None if marker is None else PutMarker(root, state.floor.marker_no, marker)
        return self._create(root, state, position, record)

    def _read(self, root: int, state: RootState, now_ms: float) -> Read:
        position = self.prefix.views[root].next_position
        is_due = state.marker_at_ms is None or now_ms - state.marker_at_ms >= self._settings.marker_check_ms
        is_first = state.standing is Standing.UNREAD
        # Where a record was, the position is empty only after a cut or a loss. The next one may be cut too, in time.
        is_glance = self._glanced is not None
        is_known_taken = position <= self.prefix.named[root] or position < state.end_min()
        checks_marker = is_first or (is_due and not is_glance) or is_known_taken
        if self._glanced == root:
            return Read(root, position, 0, state.floor.marker_no, checks_marker=True)
        return Read(root, position, READ_LIMIT, state.floor.marker_no, checks_marker, is_first)

    def _marker_for(self, root: int) -> Marker | None:
        return None if self.snapshot is None else self.proposer.marker_for(root, self.roots[root].floor, *self.snapshot)

    def _has_too_few_values(self, now_ms: float) -> bool:
        """Return whether no majority can take the next entry, because roots lack entries before it.

        This process began with a snapshot, knows of no root that the snapshot is decided, and so may not put a marker
        in place of the entries, nor does it have their values. The journals still have them (``_rewind``).
        """
        if self._has_rewound or self.proposer.is_single:
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
        self._has_rewound, self.base_name = True, ""
        self.prefix = self.proposer.prefix = self.prefix.begun_again()
        self.proposer.depose()
        self._streak = 0
        for state in self.roots:
            state.rewind()
        self._yield(now_ms)

    def _create(self, root: int, state: RootState, position: int, record: JournalRecord) -> Create:
        if state.pending is None or not state.is_pending(position, record):
            state.pending = PendingCreate(position, record, encode_record(record), self.prefix.named[root])
        if self._user is not None and record.entry_hash == self._user.entry_hash:
            self._is_user_sent = True
        return Create(root, position, state.pending.data, state.floor.marker_no)

    def _wake(self, at_ms: float) -> None:
        if self.wake_at_ms is None or at_ms < self.wake_at_ms:
            self.wake_at_ms = at_ms

    # -- answers in -------------------------------------------------------------------------------

    def complete(self, completion: Completion, now_ms: float) -> None:
        """Process the answer to an operation, also a late one of an earlier goal."""
        operation = completion.operation
        state = self.roots[operation.root]
        if state.busy is not operation:
            return
        state.busy = None
        if state.refusal is not None or completion.error is not None:
            state.note_refusal(operation, completion.error, now_ms)
        rivals = self._rivals
        rivals.operation_ms += (now_ms - state.busy_since_ms - rivals.operation_ms) / 8
        if completion.status in (Status.FAILED, Status.UNKNOWN):
            self._fail(state, completion.error, now_ms)
            if isinstance(completion.error, ReplogError) and completion.error.code is ErrorCode.REPLOG_CLUSTER_MISMATCH:
                self.fatal = completion.error  # the whole store was made again
            return
        if (isinstance(operation, Create) and completion.status is Status.DONE) or (
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
        elif completion.status is Status.EXISTS:
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
        if marker.base.index == NO_INDEX or not self.prefix.jump(marker.base):
            return True
        self.base_name = marker.name
        # Other processes wrote meanwhile. Drop the value in flight: only they can have decided it.
        proposer = self.proposer
        self._settle()
        if proposer.is_single:
            proposer.proposal = None
        elif proposer.epoch is not None:
            proposer.depose()
        self._streak = 0
        if self.phase in (Phase.CLAIM, Phase.LEAD):
            if proposer.is_single:
                self._enter(Phase.READY)
            else:
                self._yield(now_ms)
        return True

    def _read_from(self, root: int, point: JournalPoint) -> None:
        """Drop what is known of a journal. An own claim there counts again once it was read with all before it."""
        self.prefix.set_view(root, point)
        self._forget_claim(root)

    def _forget_claim(self, root: int) -> None:
        self.proposer.claimed &= ~(1 << root)

    def _fail(self, state: RootState, error: Exception | None, now_ms: float) -> None:
        settings = self._settings
        wait_ms = min(settings.root_retry_max_ms, settings.root_retry_ms * (1 << min(state.failures, 10)))
        state.fail(error)
        state.retry_at_ms = now_ms + wait_ms * (0.5 + self._rng.random() / 2)

    def _went_back(self, root: int, now_ms: float) -> None:
        """Stop using a root that lost records. Only an alarm: a lost record that no other root names goes unnoticed."""
        self.roots[root].enter(Standing.FORGOT)
        self._forget_claim(root)
        self._fail(self.roots[root], stale_journal(self._root_names[root], self.prefix.named[root]), now_ms)

    def _are_others_whole(self, root: int) -> bool:
        """Return whether a majority is left without a root that lost records, so that an `out` there stops nobody."""
        lost = {n for n, each in enumerate(self.roots) if each.misses or each.standing in WENT_BACK}
        lost.update(self.damaged_roots(1))
        return len(self.roots) - len(lost | {root}) >= self.prefix.majority

    def _learn_all(self, operation: Read, completion: Completion, state: RootState, now_ms: float) -> None:
        root = operation.root
        if not operation.limit:
            state.enter(Standing.FRESH if self._glanced == root else Standing.KNOWN)
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
                self._fail(state, stale_journal(self._root_names[root], self.prefix.named[root]), now_ms)
            elif self._are_others_whole(root):
                self._went_back(root, now_ms)
            else:
                self._fail(state, journal_cut_short(self._root_names[root], position), now_ms)
            return
        if state.is_cut_short(completion, position, self.prefix.views[root].last.crc):
            state.search_marker()
            self._fail(state, journal_cut_short(self._root_names[root], position), now_ms)
            return
        order = self.prefix.views[root].order
        if completion.ended and order.fault is not None:
            self._fail(state, damaged_record(self._root_names[root], order.fault_position, order.fault), now_ms)
            # A rebuilt journal is read from its beginning.
            self._read_from(root, self.prefix.views[root].origin)
            if state.failures > 1:
                state.failures = DAMAGED_READS
                state.retry_at_ms = now_ms + DAMAGED_RETRY_MS
            return
        if completion.after_gap is not None:
            state.search_marker()
            self._fail(state, journal_hole(self._root_names[root], position, completion.after_gap), now_ms)
            return
        state.end_read(is_whole=completion.ended, is_current=state.busy_goal == self._goal)

    def _learn(self, root: int, state: RootState, data: bytes, now_ms: float) -> None:
        pending = state.pending
        is_own = pending is not None and pending.data == data
        if pending is not None and is_own:
            record = pending.record
        else:
            record = decode_record(data, root=self._root_names[root], position=self.prefix.views[root].next_position)
        crc, view = record_crc(data), self.prefix.views[root]
        if view.next_position == view.origin.position and crc == view.origin.last_crc != 0:
            why = "it is the record that was before it, as a snapshot says"  # so the one of this position may be lost
            raise damaged_record(self._root_names[root], view.next_position, why)
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
            user = self._user
            if user is not None and record.index == user.index and record.entry_hash == user.entry_hash:
                user.is_confirmed = True
        elif proposer.is_single:
            self._streak = 0
        if self._was_synced and record.kind is RecordKind.CLAIM and record.epoch.incarnation != proposer.incarnation:
            self._rivals.note_claim(record.epoch.incarnation, now_ms)
            # A process that claims without a journal we know found its root away, or is rebuilding it. Our creates at
            # the old journal's positions would succeed in the new one and depose the rebuilder again and again.
            views = self.prefix.views
            self._to_verify |= {n for n, each in enumerate(record.known) if each.position < 0 <= views[n].last.position}
        if proposer.epoch is not None and record.epoch > proposer.epoch:
            proposer.depose()
            self.turns_lost += 1
            self._streak = 0
            if self.phase in (Phase.CLAIM, Phase.LEAD):
                self._yield(now_ms)
        self._settle()

    def _settle(self) -> None:
        """Once the index of the last own value is decided, set `settled`."""
        user = self._user
        if user is None or self.prefix.length <= user.index:
            return
        if self.proposer.is_single:
            won = user.is_confirmed
        else:
            won = self.prefix.hashes.get(user.index) == user.entry_hash  # False also below the base: unknown there
        self._user = None
        self.settled = (user.index, won)
        if won:
            self.entries += 1

    # -- phases -----------------------------------------------------------------------------------

    def advance(self, now_ms: float) -> None:
        """Advance the phase as far as the answers and the time allow."""
        before = None
        while before is not self.phase:
            before = self.phase
            if before is Phase.SYNC:
                self._advance_sync(now_ms)
            elif before is Phase.YIELD:
                self._advance_yield(now_ms)
            elif before is Phase.CLAIM:
                self._advance_claim(now_ms)
            elif before is Phase.LEAD:
                self._advance_lead(now_ms)
            elif before is Phase.GRACE:
                self._advance_grace(now_ms)

    def _advance_sync(self, now_ms: float) -> None:
        missing = sum(1 << root for root, state in enumerate(self.roots) if state.standing not in READ_BY_THIS_GOAL)
        spare_count = len(self.roots) - self.prefix.majority
        is_early = missing.bit_count() > spare_count
        is_early = is_early or bool(missing and self._is_waiting(missing, now_ms, self._sync_start_ms))
        if self._glanced not in (None, NO_ROOT) and not (self._is_quiet() and (is_early or not missing)):
            self._glanced = None
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
        if self._is_write:
            claims = is_ambiguous and not self.proposer.is_single
            self._enter(Phase.CLAIM if claims else Phase.READY)
            return
        if not is_ambiguous:
            self._enter(Phase.DONE)
        elif now_ms < self._goal_start_ms + self._settings.tail_retry_ms:
            self._reread(now_ms)
        elif self._may_claim:
            self._enter(Phase.CLAIM)
        else:
            self.is_tail_unclear = True
            self._enter(Phase.DONE)

    def _is_quiet(self) -> bool:
        seen = (Standing.KNOWN, Standing.FRESH)
        return self.prefix.learned_count == self._learned_before and all(each.standing in seen for each in self.roots)

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

    def _is_waiting(self, roots: int, now_ms: float, start_ms: float | None = None) -> bool:
        """Return whether one of these roots (bit mask) may still follow the majority within the grace time.

        Args:
            start_ms: of a read: the others get as long as the majority took, up to a tenth of the timeout. Without
                them ``replog.json`` is read again: one more round of gets, when everything is slow.
        """
        if self._majority_at_ms is None:
            self._majority_at_ms = now_ms
        took_ms = 0.0 if start_ms is None else self._majority_at_ms - start_ms
        grace_ms = max(self._settings.grace_ms, min(took_ms, self._settings.quorum_timeout_ms / 10))
        until_ms = self._majority_at_ms + grace_ms
        if now_ms >= until_ms:
            return False
        for root, state in enumerate(self.roots):
            if roots >> root & 1 and state.error is None and (state.busy is None or state.busy_goal == self._goal):
                self._wake(until_ms)
                return True
        return False

    def _reread(self, now_ms: float) -> None:
        if self._reread_at_ms is None:
            self._reread_at_ms = now_ms + self._reread_ms
            self._reread_ms = min(self._reread_ms * 2, 50.0)
        if now_ms >= self._reread_at_ms:
            self._reread_at_ms = None
            self._forget_reads()
        else:
            self._wake(self._reread_at_ms)
        self._wake(self._goal_start_ms + self._settings.tail_retry_ms)

    def _open_claim(self) -> Epoch:
        """Return the newest claim if it is another process's and has led to no entry yet, else ZERO_EPOCH."""
        newest = self.prefix.promised()
        is_open = newest > self.prefix.last_epoch and newest.incarnation != self.proposer.incarnation
        return newest if is_open else ZERO_EPOCH

    def _yield(self, now_ms: float) -> None:
        self._rivals.begin_turn(now_ms, self._rng.random())
        self._enter(Phase.YIELD)

    def _advance_yield(self, now_ms: float) -> None:
        until_ms = self._rivals.turn_end_ms(self._open_claim(), now_ms)
        if until_ms is None:
            self._enter_sync(now_ms)
        else:
            self._wake(until_ms)

    def _advance_claim(self, now_ms: float) -> None:
        proposer = self.proposer
        if proposer.is_leading:
            # A tail that outlived our own claim: finish it under our epoch, or claim again.
            if proposer.proposal is not None:
                self._enter(Phase.LEAD)
                return
            proposer.depose()
        if proposer.epoch is None:
            if self._rivals.is_at_work(self._open_claim(), now_ms):
                self._yield(now_ms)
                return
            before = self.prefix.promised().incarnation
            if before != proposer.incarnation:
                self.owners = before, proposer.incarnation
            proposer.start_claim()
            self._streak = 0
            self.claims += 1
            return
        if not proposer.has_claim_majority():
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

    def _owned(self) -> None:
        """All entries are decided and no own value is open: an older own value can no longer be decided."""
        self._user = None
        self._enter(Phase.READY if self._is_write else Phase.DONE)

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
        if is_decided and proposal.is_recovered and not self._is_level:
            proposer.proposal = None
            self._owned()
        elif is_decided:
            self._streak += not proposal.is_recovered
            self._user = None if proposal.is_recovered else self._user  # as in `_owned`
            self._enter(Phase.GRACE)
        elif self._has_too_few_values(now_ms):
            self._rewind(now_ms)

    def _advance_grace(self, now_ms: float) -> None:
        rest = ((1 << len(self.roots)) - 1) & ~self.proposer.proposal_roots()
        if self.proposer.epoch is None or not rest or not self._is_waiting(rest, now_ms):
            self.proposer.proposal = None
            self._enter(Phase.DONE)
