"""Reads every journal of every ledger whole: are its records whole, dense and in order, and do the roots agree?

Reads only, and reports nothing that a running writer could make untrue: a journal that lacks entries is only behind
(the next owner of the ledger writes them), and a position is missing only where a record elsewhere, or after it, proves
that it was there. The journals are put together by the reader's own ``DecidedPrefix``.

The head of a snapshot says per root where its writer had read the journal to. Such records were there, whichever
snapshot is decided: a journal that ends before them lost them, and one whose records do not follow from there was
changed. A process that begins with the head refuses such a journal, so a scrub has to find it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import CorruptDataError, ReplogError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.reader import ORIGIN, DecidedPrefix, JournalOrder
from spark_replog.ledger.record import (
    NO_INDEX,
    RECORD_GET_BYTES,
    JournalRecord,
    decode_record,
    genesis_hash,
    record_crc,
)
from spark_replog.ledger.snapshot_files import SNAPSHOT_SIZE_BYTES_MAX, JournalPoint, decode_marker, decode_snapshot
from spark_replog.ledger.snapshot_io import heads_on
from spark_replog.maintenance.scrub import AwayRoots
from spark_replog.quorum import majority_of
from spark_replog.snapshot import is_named
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.fan_out import answers_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, ObjectStore
from spark_replog.storage.paths import (
    journal_folder,
    journal_key,
    marker_folder,
    marker_key,
    marker_number,
    out_key,
    record_position,
    snapshot_key,
)

AHEAD_LEDGERS = 4
AHEAD_RECORDS_MAX = 16
"""Of one ledger and root on their way side by side."""
HEADS_MAX = 4
"""Snapshots that are read, the newest: usually there are two, and one that a marker names."""
ATTEMPTS_MAX = 5
"""A journal that is cut while it is read shows gaps. It is read again from its new marker on, which is not far."""
LATE_PAUSES_MS = (100, 400, 2000)
"""How long a journal that is behind gets, look by look, for entries that are on their way to it."""


class JournalFault(Enum):
    """What is wrong with one root's journal of one ledger."""

    UNREACHABLE = "unreachable"
    OUT = "out"
    """The root itself says that it went back in time."""
    CORRUPT = "corrupt"
    """A record that cannot be read, or that does not follow from those before it."""
    GAP = "gap"
    """A position is empty and a later one is not."""
    SET_BACK = "set back"
    """It ends before a record that another journal, or a snapshot, names."""
    DIVERGED = "diverged"
    """It vouches for a value that is not the decided one."""


BAD_JOURNALS = frozenset({JournalFault.CORRUPT, JournalFault.GAP, JournalFault.SET_BACK, JournalFault.DIVERGED})
"""What a rebuild of the root heals."""


@dataclass(frozen=True, slots=True)
class JournalFinding:
    """One journal that is not what it must be. ``position``: of the record, None where it is the root as a whole."""

    broker_id: BrokerId
    ledger_id: LedgerId
    fault: JournalFault
    position: int | None
    detail: str


class JournalLag(NamedTuple):
    """A whole journal that lacks decided entries; an owner of the ledger gives it these."""

    broker_id: BrokerId
    ledger_id: LedgerId
    entry_count: int
    is_behind: bool
    """False if it lacks only the newest one: that may be on its way."""
    position: int
    """Where it ends."""
    last: int
    """The newest decided entry."""


@dataclass(slots=True)
class JournalReport:
    """What was read; lists in the order of ledgers and brokers.

    Attributes:
        journal_count: journals that were looked at: ledgers x metadata roots.
        lagging: whole journals that lack decided entries.
        undecidable: ledgers of which no majority of the journals is whole.
        findings: at most one a journal, the first that was met.
    """

    journal_count: int = 0
    record_count: int = 0
    lagging: list[JournalLag] = field(default_factory=list)
    undecidable: list[LedgerId] = field(default_factory=list)
    findings: list[JournalFinding] = field(default_factory=list)

    @property
    def behind(self) -> list[JournalLag]:
        """Return the journals that lack more than the newest entry."""
        return [lag for lag in self.lagging if lag.is_behind]


def scrub_journals(cluster: Cluster, *, on_ledger: Callable[[int, int], None] | None = None) -> JournalReport:
    """Read the journals of the cluster ledger, and of every topic's ledger that it lists.

    ``on_ledger`` is called with (ledgers done, ledgers in all), for a progress display.
    """
    cluster.refresh()
    report, away = JournalReport(), AwayRoots(cluster.clock)
    ledger_ids = [cluster.brokers.cluster_id, *cluster.cluster_ledger.ask(lambda state: sorted(state.ledger_ids()))]
    left, waiting = iter(ledger_ids), deque[Future[_LedgerScrub]]()
    for number in range(len(ledger_ids)):
        for ledger_id in islice(left, AHEAD_LEDGERS - len(waiting)):
            waiting.append(IO_POOL.submit_to("scrub", _scrubbed, cluster.brokers, ledger_id, away))
        waiting.popleft().result().report_to(report)
        if on_ledger is not None:
            on_ledger(number + 1, len(ledger_ids))
    return report


def drop_passing_lags(cluster: Cluster, report: JournalReport) -> None:
    """Look again, a few times, at journals that are behind; take those out of a report that got what they lacked.

    A running writer brings up a journal on a slow root, also one of a root that has just come back.
    """
    away = AwayRoots(cluster.clock)
    for pause_ms in LATE_PAUSES_MS if report.behind else ():
        cluster.clock.sleep_ms(pause_ms)
        for ledger_id in {lag.ledger_id for lag in report.behind if _has_grown(cluster.brokers, lag)}:
            scrub = _scrubbed(cluster.brokers, ledger_id, away)
            report.lagging = [lag for lag in report.lagging if lag.ledger_id != ledger_id or scrub.is_late(lag)]
        if not report.behind:
            return


def _has_grown(brokers: BrokerSet, lag: JournalLag) -> bool:
    try:
        return brokers.store(lag.broker_id).get(journal_key(lag.ledger_id, lag.position), size_bytes=1) is not None
    except ReplogError:
        return False  # what was found before stays


def _scrubbed(brokers: BrokerSet, ledger_id: LedgerId, away: AwayRoots) -> _LedgerScrub:
    for attempt in range(ATTEMPTS_MAX):
        scrub = _LedgerScrub(brokers, ledger_id, away)
        scrub.run()
        if not scrub.was_cut(is_last=attempt == ATTEMPTS_MAX - 1):
            break
    return scrub


def points_in_heads(ledger_id: LedgerId, stores: Sequence[ObjectStore]) -> list[tuple[JournalPoint, ...]]:
    """Return the points of each head that a majority of the metadata roots has, one per root; of roots that answer.

    Call it before the journals are read: a head that is stored later names records that are written later.
    """
    lanes = enumerate(f"{store.url}#start" for store in stores)
    listings = {number: IO_POOL.submit_to(lane, heads_on, stores[number], ledger_id) for number, lane in lanes}
    held: dict[str, list[ObjectStore]] = {}
    for number, names in answers_of(listings, math.inf).by_root.items():
        for name in names:
            held.setdefault(name, []).append(stores[number])
    majority = majority_of(len(stores))
    newest = sorted((name for name, holders in held.items() if len(holders) >= majority), reverse=True)[:HEADS_MAX]
    heads = (_points(ledger_id, name, held[name], len(stores)) for name in newest)
    return [points for points in heads if points is not None]


def _points(
    ledger_id: LedgerId, name: str, holders: Sequence[ObjectStore], root_count: int
) -> tuple[JournalPoint, ...] | None:
    """Return the points of a head from the first root where it is whole; None: its files are for the scrub of these."""
    for store in holders:
        try:
            data = store.get(snapshot_key(ledger_id, name), size_bytes=SNAPSHOT_SIZE_BYTES_MAX + 1)
            if data is not None and is_named(name, data):
                genesis = genesis_hash(ledger_id)
                return decode_snapshot(data, genesis=genesis, root_count=root_count, where=name).points
        except ReplogError:
            continue
    return None


class ProvenPoints:
    """The points of one root, held against its journal as that is read.

    Args:
        points: of heads.
        start: where the journal's newest marker says that it is read from: points in an earlier journal of the root,
            before a rebuild, mean nothing. The snapshot of this marker stands for entries that no record here holds.
    """

    def __init__(self, points: Sequence[JournalPoint], start: JournalPoint) -> None:
        index = start.last_index
        self._points = [
            point._replace(last_index=max(point.last_index, index))
            for point in points
            if point.floor.renewal == start.floor.renewal
        ]
        self._read = {at: JournalOrder(spot) for at, spot in enumerate(self._points) if spot.position >= start.position}
        self._fault: tuple[int, str] | None = None

    @property
    def marker_count(self) -> int:
        """Return how many markers the root had at least."""
        return max((point.floor.marker_no for point in self._points), default=0)

    def take(self, record: JournalRecord, position: int, crc: int) -> None:
        """Check the next record."""
        for at, order in self._read.items():
            point = self._points[at]
            if position == point.position - 1 and point.last_crc not in (0, crc):
                self._note(position, "it is not the record that a snapshot names")
            elif position >= point.position:
                order.take(record, position)

    def fault(self) -> tuple[int, str] | None:
        """Return the position and the words of a fault of a journal that was read to its end, None for none."""
        for order in self._read.values():
            if order.fault is not None:
                self._note(order.fault_position, f"after a point that a snapshot names {order.fault}")
        return self._fault

    def end_min(self) -> int:
        """Return the position that the journal ends at or after."""
        return max((self._points[at].position for at in self._read), default=0)

    def _note(self, position: int, why: str) -> None:
        if self._fault is None:
            self._fault = position, why


class _Journal:
    """One root's journal as far as it was read."""

    def __init__(self, broker_id: BrokerId, store: ObjectStore) -> None:
        self.broker_id = broker_id
        self.store = store
        self.position = self.start = self.marker_count = 0
        self.last_listed = NO_INDEX
        self.is_read = False
        self.finding: JournalFinding | None = None
        self.proven = ProvenPoints((), ORIGIN)


@dataclass(frozen=True, slots=True)
class _Start:
    """What one root says of where its journal begins."""

    numbers: list[int]
    """Of its markers, in any order."""
    markers: dict[int, Buffer]
    """The first and the newest one."""
    follows: Future[Buffer | None]
    """What is found under the next number, usually nothing."""
    is_out: bool
    last_listed: int
    """The highest position that has a record."""


def _numbers(store: ObjectStore, folder: str, number_of: Callable[[str], int | None]) -> list[int]:
    return [number for info in store.list_keys(folder) if (number := number_of(info.key)) is not None]


class _LedgerScrub:
    """The journals of one ledger, read side by side, so that memory is bounded by how far they differ."""

    def __init__(self, brokers: BrokerSet, ledger_id: LedgerId, away: AwayRoots) -> None:
        self._away = away
        self._brokers = brokers
        self._ledger_id = ledger_id
        self._lagging: list[JournalLag] = []
        genesis = self._genesis = genesis_hash(ledger_id)
        roots = brokers.metadata_broker_ids
        self._journals = [_Journal(broker_id, brokers.store(broker_id)) for broker_id in roots]
        self._prefix = DecidedPrefix(len(roots), genesis, lambda root: f"broker {roots[root]}")
        self._points: list[tuple[JournalPoint, ...]] = []

    def run(self) -> None:
        self._points = points_in_heads(self._ledger_id, [source.store for source in self._journals])
        starts = [IO_POOL.submit_to(source.store.url, self._fetch_start, source) for source in self._journals]
        for journal, start in zip(self._journals, starts, strict=True):
            self._guard(journal, partial(self._begin, start))
        while True:
            reading = [pair for pair in enumerate(self._journals) if not (pair[1].is_read or pair[1].finding)]
            if not reading:
                break
            listed_count = max(journal.last_listed + 1 - journal.position for _, journal in reading)
            count = min(max(0, listed_count) + 1, AHEAD_RECORDS_MAX)
            asked = [self._ask_ahead(journal, count) for _, journal in reading]
            for answers in zip(*asked, strict=True):
                for (number, journal), answer in zip(reading, answers, strict=True):
                    if not journal.is_read and journal.finding is None:
                        self._guard(journal, partial(self._read_next, number, answer))
            self._prefix.payloads.clear()  # nothing is folded or given to other roots here
        for number, journal in enumerate(self._journals):
            if journal.finding is None:
                self._guard(journal, partial(self._compare, number))

    def was_cut(self, *, is_last: bool) -> bool:
        """Return whether a journal with a finding got a new marker while it was read: then all are to be read again.

        In the last attempt the finding becomes UNREACHABLE: the journal could not be read.
        """
        cut = [
            source
            for source in self._journals
            if source.finding is not None and source.finding.fault in BAD_JOURNALS and self._has_new_marker(source)
        ]
        for journal in cut if is_last else ():
            why = "writers cut the journal each time while it was read. Repeat the command."
            self._note(journal, JournalFault.UNREACHABLE, None, why)
        return bool(cut)

    def _has_new_marker(self, journal: _Journal) -> bool:
        try:
            key = marker_key(self._ledger_id, journal.marker_count)
            return journal.store.get(key, size_bytes=1) is not None
        except ReplogError:
            return False  # what was found before stays

    def report_to(self, report: JournalReport) -> None:
        """Add what was found."""
        report.lagging += self._lagging
        report.journal_count += len(self._journals)
        report.record_count += sum(journal.position - journal.start for journal in self._journals)
        findings = [journal.finding for journal in self._journals if journal.finding is not None]
        report.findings += findings
        if len(self._journals) - len(findings) < self._prefix.majority:
            report.undecidable.append(self._ledger_id)

    def is_late(self, lag: JournalLag) -> bool:
        """Return whether a journal lacks entries that an earlier look found decided, or could not be read now."""
        root = [journal.broker_id for journal in self._journals].index(lag.broker_id)
        return self._journals[root].finding is not None or self._prefix.lacking(root, lag.last) > 0

    def _guard(self, journal: _Journal, step: Callable[[_Journal], None]) -> None:
        try:
            step(journal)
        except CorruptDataError as error:
            self._note(journal, JournalFault.CORRUPT, journal.position, str(error.args[0]))
        except ReplogError as error:
            self._away.note(journal.broker_id, error)
            self._note(journal, JournalFault.UNREACHABLE, None, f"{error.code.name}: {error.args[0]}")

    def _note(self, journal: _Journal, fault: JournalFault, position: int | None, detail: str) -> None:
        journal.finding = JournalFinding(journal.broker_id, self._ledger_id, fault, position, detail)

    def _fetch_start(self, journal: _Journal) -> _Start:
        self._away.begin_check(self._brokers, journal.broker_id).result()
        store, ledger_id = journal.store, self._ledger_id
        submit, lane = IO_POOL.submit_to, f"{store.url}#start"  # this job has a thread of the root's own lane
        numbers = submit(lane, _numbers, store, marker_folder(ledger_id), marker_number)
        positions = submit(lane, _numbers, store, journal_folder(ledger_id), record_position)
        out = submit(lane, store.get, out_key(ledger_id), size_bytes=1)
        first = submit(lane, store.get, marker_key(ledger_id, 0))
        there = numbers.result()
        markers, follows = {0: first} if there else {}, first
        if there:
            newest = max(there)
            markers[newest] = submit(lane, store.get, marker_key(ledger_id, newest)) if newest else first
            # A folder in the place of the next one is in no listing, and would keep the journal from being cut.
            follows = submit(lane, store.get, marker_key(ledger_id, newest + 1), size_bytes=1)
        last_listed = max(positions.result(), default=NO_INDEX)
        bodies = {number: marker.result() or b"" for number, marker in markers.items()}
        wait([follows])
        return _Start(there, bodies, follows, out.result() is not None, last_listed)

    def _begin(self, start: Future[_Start], journal: _Journal) -> None:
        fetched = start.result()
        journal.last_listed = fetched.last_listed
        journal.marker_count = max(fetched.numbers, default=NO_INDEX) + 1
        fetched.follows.result()
        root, point = self._journals.index(journal), ORIGIN
        for number in sorted(fetched.markers):
            where = f"marker {number} on broker {journal.broker_id}"
            marker = decode_marker(fetched.markers[number], genesis=self._genesis, where=where)
        if fetched.markers:
            point = marker.point(journal.marker_count)
            journal.position = journal.start = point.position
            self._prefix.set_view(root, point)
            self._prefix.jump(marker.base)
        journal.proven = ProvenPoints([points[root] for points in self._points], point)
        marker_count = max(journal.marker_count, journal.proven.marker_count)
        if missing := set(range(marker_count)).difference(fetched.numbers):
            why = f"marker {min(missing)} is missing: a process that looks for it finds none of the later ones"
            self._note_bad(journal, JournalFault.CORRUPT, None, why)
        if fetched.is_out:
            self._note(journal, JournalFault.OUT, None, "the root went back in time. Run replog store repair.")

    def _ask_ahead(self, journal: _Journal, count: int) -> list[Future[Buffer | None]]:
        """Ask a root for its next records; roots and records are on their way side by side."""
        submit, get = IO_POOL.submit_to, journal.store.get
        keys = (journal_key(self._ledger_id, journal.position + step) for step in range(count))
        return [submit(journal.store.url, get, key, size_bytes=RECORD_GET_BYTES) for key in keys]

    def _read_next(self, root: int, answer: Future[Buffer | None], journal: _Journal) -> None:
        data = answer.result()
        if data is None:
            journal.is_read = True
            return
        body = bytes(data)
        record = decode_record(body, root=f"broker {journal.broker_id}", position=journal.position)
        crc = record_crc(body)
        self._prefix.learn(root, record, crc)
        journal.proven.take(record, journal.position, crc)
        journal.position += 1

    def _compare(self, root: int, journal: _Journal) -> None:
        """Hold a journal that was read whole against the others."""
        end = journal.position
        order = self._prefix.views[root].order
        if order.fault is not None:
            self._note_bad(journal, JournalFault.CORRUPT, order.fault_position, order.fault)
            return
        for number, position, index in self._prefix.conflicts:
            if number == root:
                why = f"it holds another value of entry {index} than a journal before it, in one epoch"
                self._note_bad(journal, JournalFault.CORRUPT, position, why)
                return
        if (fault := journal.proven.fault()) is not None:
            self._note_bad(journal, JournalFault.CORRUPT, *fault)
            return
        last, named = journal.last_listed, max(self._prefix.named.highest[root], journal.proven.end_min() - 1)
        if max(last, named) >= end and journal.store.get(journal_key(self._ledger_id, end), size_bytes=1) is None:
            if last > end:
                self._note_bad(journal, JournalFault.GAP, end, f"position {end} is empty, and position {last} is not")
                return
            if named >= end:
                why = f"it ends before position {named}, which a snapshot or another journal names"
                self._note_bad(journal, JournalFault.SET_BACK, end, why)
                return
        view, decided_count = self._prefix.views[root], self._prefix.length
        view.match(self._prefix, is_final=True)
        vouched = min(view.commit_index, decided_count - 1)
        if view.matched < vouched and vouched >= self._prefix.base.index:  # below, a snapshot stands for the values
            why = f"it vouches for another value of entry {view.matched + 1} than was decided"
            self._note_bad(journal, JournalFault.DIVERGED, None, why)
        elif view.matched < decided_count - 1 and self._is_at_end(journal):
            count = decided_count - 1 - view.matched
            is_behind = self._prefix.is_behind(root, count)
            lag = JournalLag(journal.broker_id, self._ledger_id, count, is_behind, end, decided_count - 1)
            self._lagging.append(lag)

    def _is_at_end(self, journal: _Journal) -> bool:
        """Return whether the journal still ends where it was read to: writers go on while the others are read."""
        return journal.store.get(journal_key(self._ledger_id, journal.position), size_bytes=1) is None

    def _note_bad(self, journal: _Journal, fault: JournalFault, position: int | None, why: str) -> None:
        """Note a fault with its remedy."""
        remedy = {
            1: "Restore this journal from a backup: no other root has its records.",
            2: "Put this journal back as it was, or empty the whole root and run replog store repair.",
        }.get(len(self._prefix.views), "Run replog store repair: it rebuilds the root.")
        self._note(journal, fault, position, f"{why}. {remedy}")
