"""One metadata root of a ledger, as one process sees it: operations, answers, state. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError, is_refusal
from spark_replog.ledger.record import NO_INDEX, JournalRecord, record_crc
from spark_replog.ledger.snapshot_files import Floor, JournalPoint, Marker


@dataclass(frozen=True, slots=True)
class Read:
    """Get the records at position, position + 1, ... until one is missing, at most `limit`.

    Then look for the marker, if a record was found or with `checks_marker`; with limit 0 do only this.
    `finds_gaps`: also look for records after the first empty position, and if there was none, for the one before it.
    """

    root: int
    position: int
    limit: int
    marker_no: int
    checks_marker: bool = False
    finds_gaps: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create the record at a position if the position is free; then look for the marker."""

    root: int
    position: int
    data: bytes
    marker_no: int


@dataclass(frozen=True, slots=True)
class PutMarker:
    """Create a marker: the root lacks entries that this process no longer keeps, and a snapshot replaces them."""

    root: int
    marker_no: int
    marker: Marker


@dataclass(frozen=True, slots=True)
class Check:
    """Read ``replog.json`` again; `repair` also makes the journal's folder if it is missing."""

    root: int
    repair: bool


@dataclass(frozen=True, slots=True)
class PutOut:
    """Create the object `out`: the journal misses a position that records on other roots name.

    Attributes:
        floor: of the journal that misses it: one with a newer renewal was rebuilt since, and is in.
    """

    root: int
    position: int
    floor: Floor


Operation = Read | Create | PutMarker | Check | PutOut


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one operation.

    Attributes:
        operation: the object that the core returned from `poll`.
        records: of a Read: the bytes found, in order.
        ended: of a Read: the position after them was empty.
        marker: the root's newest marker from the operation's `marker_no` on, and the number after it; None for none.
            Whatever was read or created must be read again from there.
        after_gap: of a Read that ended: the first position after the empty one that has a record, None for none.
        before: of a Read that finds gaps and found no record: the record before `position`, None for none.
        exists: of a Create: other bytes hold the name.
        error: why it failed: nothing was learned. A Create may have been written, and may still be.
    """

    operation: Operation
    records: tuple[bytes, ...] = ()
    ended: bool = False
    marker: tuple[Marker, int] | None = None
    after_gap: int | None = None
    before: bytes | None = None
    exists: bool = False
    error: Exception | None = None


class Standing(Enum):
    """What a process may do with a root (picture: docs/architecture.md, "States of a root in a process")."""

    UNVERIFIED = "unverified"
    """At the start, after every error, and when another process claims without this journal: ``replog.json`` must be
    read before anything here counts."""
    UNREAD = "unread"
    """``replog.json`` is right: read the journal to its end, and look for files after the end."""
    OUTDATED = "outdated"
    """The journal has records that are not learned: a create found its position taken."""
    KNOWN = "known"
    """Read to its end by an earlier goal, and extended only by this process as far as it knows."""
    FRESH = "fresh"
    """Read to its end by this goal."""
    DOUBTED = "doubted"
    """FRESH, and ``replog.json`` must be read again: an emptied root would look the same."""
    PROVEN = "proven"
    """FRESH, and ``replog.json`` was right after that."""
    FORGOT = "forgot"
    """The journal went back in time. ``replog.json`` must be read before `out` is created."""
    OUT = "out"
    """The journal went back in time, and the root is itself: create `out`."""
    RETIRED = "retired"
    """It holds `out`; this process never uses it again."""

    __hash__ = object.__hash__  # Enum's own is a Python function


_AFTER_READ = {Standing.OUTDATED, Standing.KNOWN, Standing.FRESH, Standing.UNVERIFIED, Standing.FORGOT}
TRANSITIONS: dict[Standing, set[Standing]] = {
    Standing.UNVERIFIED: {Standing.UNREAD, Standing.FORGOT},
    Standing.UNREAD: {*_AFTER_READ} - {Standing.OUTDATED},
    Standing.OUTDATED: {*_AFTER_READ},
    Standing.KNOWN: {*_AFTER_READ},
    Standing.FRESH: {*_AFTER_READ, Standing.DOUBTED},
    Standing.DOUBTED: {Standing.KNOWN, Standing.PROVEN, Standing.UNVERIFIED, Standing.FORGOT},
    Standing.PROVEN: {*_AFTER_READ},
    Standing.FORGOT: {Standing.OUT},
    Standing.OUT: {Standing.RETIRED, Standing.FORGOT},
    Standing.RETIRED: set(),
}
READ_BY_THIS_GOAL = frozenset({Standing.FRESH, Standing.DOUBTED, Standing.PROVEN})
_SEEN = frozenset({Standing.KNOWN, Standing.FRESH, Standing.PROVEN})
READ = READ_BY_THIS_GOAL | {Standing.KNOWN}
TO_READ = frozenset({Standing.UNREAD, Standing.OUTDATED})
TO_CHECK = frozenset({Standing.UNVERIFIED, Standing.DOUBTED, Standing.FORGOT})
AFTER_CHECK = {Standing.UNVERIFIED: Standing.UNREAD, Standing.DOUBTED: Standing.PROVEN, Standing.FORGOT: Standing.OUT}
WENT_BACK = frozenset({Standing.FORGOT, Standing.OUT, Standing.RETIRED})


@dataclass(slots=True)
class PendingCreate:
    """A create whose answer is not known: it pins the root's next position.

    Attributes:
        named: highest position that records on other roots named for this root when it was first sent.
    """

    position: int
    record: JournalRecord
    data: bytes
    named: int


REFUSALS_MIN = 2
"""One refusal does not end a write: while it was under way, the process may have stood still."""

_STEPS: dict[type[Operation], int] = {Check: 0, Read: 1}
"""After an error, a root is checked, then read; creates come last."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a root refuses in this goal: a repetition alone does not help.

    Attributes:
        error: the last one.
        step: of the last one, its place in `_STEPS`; earlier steps that succeed do not show that this one would.
        since_ms: when the first in a row was refused; count: how many were.
    """

    error: ReplogError
    step: int
    since_ms: float
    count: int


@dataclass(slots=True, eq=False)
class RootState:
    """One root in one process: what it may be used for, and the one operation in flight.

    Attributes:
        standing: changed by `enter` only.
        busy: the operation in flight; `busy_goal`, `busy_since_ms`, `busy_named`: the goal, the time and the highest
            named position when it was sent.
        error: why the root does not answer, None if it does.
        refusal: None: the root refused nothing since it last did what it refused.
        failures: errors in a row.
        misses: reads in a row that ended before a named position. After the second one the root went back.
        pending: the create that may have been written.
        floor: the root's newest marker, as far as this process knows.
        proven: a point of the journal, as a snapshot has it: there were records up to it.
        marker_at_ms: when the next marker was last looked for; None: look for it now.
        retry_at_ms: no operation before this time.
        must_check: ``replog.json`` must be read again before anything here counts.
    """

    standing: Standing = Standing.UNVERIFIED
    busy: Operation | None = None
    busy_goal: int = 0
    busy_since_ms: float = 0.0
    busy_named: int = NO_INDEX
    error: Exception | None = None
    refusal: Refusal | None = None
    failures: int = 0
    misses: int = 0
    pending: PendingCreate | None = None
    floor: Floor = field(default_factory=Floor)
    proven: JournalPoint = field(default_factory=JournalPoint)
    marker_at_ms: float | None = None
    retry_at_ms: float = 0.0
    must_check: bool = False

    def enter(self, standing: Standing) -> None:
        """Change the standing along the table."""
        assert standing is self.standing or standing in TRANSITIONS[self.standing], (self.standing, standing)
        self.standing = standing

    def rewind(self) -> None:
        """Let the journal be read again from its newest marker on; an operation in flight goes on."""
        if self.standing in WENT_BACK:
            return
        self.floor, self.marker_at_ms, self.misses = Floor(), None, 0
        if self.standing is Standing.DOUBTED:
            self.enter(Standing.KNOWN)
        if self.standing in _SEEN:
            self.enter(Standing.OUTDATED)

    def unverify(self) -> None:
        """Note that another root may be in this one's place, with journals that were rebuilt."""
        if self.standing not in WENT_BACK:
            self.search_marker()
            self.enter(Standing.UNVERIFIED)

    def search_marker(self) -> None:
        """Look for the newest marker from the first number on: a rebuild may have put fewer than there were before.

        Its rebuilder learned from a snapshot how many there were, whose writer may not have seen the newest ones.
        """
        self.floor = self.floor._replace(marker_no=0)

    def is_floor(self, floor: Floor) -> bool:
        """Return whether a marker is the known one, found by `search_marker`; then the journal must be read again."""
        is_known = floor[1:] == self.floor[1:]
        if is_known:
            self.floor = floor
            self.read_again()
        return is_known

    def end_read(self, *, is_whole: bool, is_current: bool) -> None:
        """Note that the journal was read, to its end or not, by the newest goal or by an earlier one."""
        self.misses = self.failures = 0
        self.error = None
        if is_whole:
            self.enter(Standing.FRESH if is_current else Standing.KNOWN)
        else:
            self.read_again()

    def read_again(self) -> None:
        """Note that the journal must be read on, or from its marker."""
        self.enter(Standing.UNREAD if self.standing is Standing.UNREAD else Standing.OUTDATED)

    def end_min(self) -> int:
        """Return the position that the journal ends at or after, unless it lost records or has a newer marker.

        A journal's last record is never deleted. So there is one at the marker's position, and one before the point
        from which a snapshot lets a process read on: a cut after that has put a newer marker.
        """
        proven = self.proven.position if self.proven.floor.renewal == self.floor.renewal else 0
        return max(proven, self.floor.position + 1 if self.floor.position else 0)

    def is_cut_short(self, completion: Completion, end: int, last_crc: int) -> bool:
        """Return whether a journal that was read to its end lacks records that it had: an alarm, as all looks at ends.

        Only a look for the marker after the read shows this. `LedgerCore._read` asks for it below `end_min`. If it
        found a newer marker, this read shows nothing: what it missed may have come and gone.
        """
        read, before = completion.operation, completion.before
        if not completion.ended or completion.marker is not None or not isinstance(read, Read):
            return False
        if end < self.end_min():
            assert read.checks_marker or completion.records, (read, end)
            return True
        if not read.finds_gaps or completion.records or not end:
            return False
        return before is None or (last_crc != 0 and record_crc(before) != last_crc)

    def fail(self, error: Exception) -> None:
        """Note an error: the root must be verified again."""
        self.error = error
        self.failures += 1
        self.enter(Standing.FORGOT if self.standing in WENT_BACK else Standing.UNVERIFIED)

    def note_refusal(self, operation: Operation, error: Exception | None, now_ms: float) -> None:
        """Note whether the root refused an operation that has ended, or did it."""
        last = self.refusal
        step = _STEPS.get(type(operation), len(_STEPS))
        if isinstance(error, ReplogError) and is_refusal(error):
            since_ms, count = (now_ms, 0) if last is None else (last.since_ms, last.count)
            self.refusal = Refusal(error, step, since_ms, count + 1)
        elif last is not None and (error is not None or step >= last.step):
            self.refusal = None

    def is_pending(self, position: int, record: JournalRecord) -> bool:
        """Return whether a create without an answer may be sent again for this record, bytes unchanged."""
        pending = self.pending
        if pending is None or pending.position != position:
            return False
        # Equal but for what a new record says of other journals; its payload follows from the hash.
        return replace(record, nonce=pending.record.nonce, last_known=pending.record.last_known) == pending.record


def stale_journal(root_name: str, position: int) -> RetriableError:
    """Return the error of a journal that misses a position which records on other roots name."""
    return RetriableError(
        ErrorCode.REPLOG_ROOT_STALE,
        f"The journal on {root_name} misses position {position}, which records on other roots name: it went back in "
        "time. Run 'replog store repair' to give it a new journal.",
        root=root_name,
    )


def journal_cut_short(root_name: str, position: int) -> CorruptDataError:
    """Return the error of a journal that a snapshot or a marker names, and that lost its end."""
    return CorruptDataError(
        ErrorCode.REPLOG_JOURNAL_HOLE,
        f"The journal on {root_name} ends at position {position}, before records that a snapshot or marker names. "
        "If a repair of this root is at work, let it end: it writes them. Else put these files back (a lifecycle rule "
        "or a cleaner of old files may have deleted them). Where other metadata roots have their files, move this "
        "journal's folder away and run `replog store repair --rebuild BROKER`.",
        root=root_name,
        position=position,
    )


def journal_hole(root_name: str, first: int, end: int) -> CorruptDataError:
    """Return the error of missing files: a process that appended in the hole would decide entries a second time."""
    return CorruptDataError(
        ErrorCode.REPLOG_JOURNAL_HOLE,
        f"The journal on {root_name} has no file at position {first}, and one at position {end}: {end - first} or "
        "fewer files are missing. If a repair of this root is at work, let it end: it writes them. Else put these "
        "files back (a lifecycle rule or a cleaner of old files may have deleted them). Where other metadata roots "
        "have their files, run `replog store repair`: it rebuilds this root.",
        root=root_name,
        first=first,
        last=end - 1,
    )
