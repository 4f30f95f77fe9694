"""Holds the files of snapshots against their names on every metadata root; repairs those that are bad or missing.

A decided snapshot names its head, and the head, directly or through directories, its pages. Each of these files belongs
on every metadata root. Their names hold the hash of their bytes, so a root's copy is judged without the others, and
bytes of one root repair another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, UnsupportedFormatError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.record import genesis_hash
from spark_replog.ledger.snapshot_files import SNAPSHOT_SIZE_BYTES_MAX, decode_snapshot
from spark_replog.ledger.snapshot_io import heads_on
from spark_replog.maintenance.scrub import AwayRoots, Fault
from spark_replog.snapshot import is_named
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.paths import snapshot_key

_log = logging.getLogger(__name__)

AHEAD_FILES = 8
"""Files that are read at a time, each from all roots."""
ROUND_FILES_MAX = 1_000
"""Files that a coordinator looks at in one run, about 50 MB a root; the next run goes on after them."""
ROUND_INTERVAL_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SnapshotFinding:
    """One copy of one file that is not what its name says. `is_repaired`: it is now."""

    broker_id: BrokerId
    ledger_id: LedgerId
    file: str
    fault: Fault
    detail: str
    is_repaired: bool = False


@dataclass(slots=True)
class SnapshotReport:
    """What was looked at; findings in the order of ledgers and files.

    Attributes:
        file_count: files that decided snapshots name, and other heads on a root.
        lost_count: files that a decided snapshot names, without a good copy, where every root was read.
        unread_count: files without a good copy, and a root does not answer.
    """

    file_count: int = 0
    lost_count: int = 0
    unread_count: int = 0
    findings: list[SnapshotFinding] = field(default_factory=list)


class SnapshotScrub:
    """Looks at the snapshots of the cluster ledger and of every topic's ledger, on some or all metadata roots.

    Args:
        is_repairing: copy what is bad or missing from a root that has it.
    """

    def __init__(
        self, cluster: Cluster, brokers: Sequence[BrokerId] | None = None, *, is_repairing: bool = False
    ) -> None:
        self._cluster = cluster
        self._brokers = cluster.brokers
        metadata = self._brokers.metadata_broker_ids
        self._roots = [broker_id for broker_id in metadata if brokers is None or broker_id in brokers]
        self._is_repairing = is_repairing
        self._away = AwayRoots(cluster.clock)
        self._after = ("", "")
        self._next_ms = 0

    def run(
        self, *, on_ledger: Callable[[int, int], None] | None = None, files_max: int | None = None
    ) -> SnapshotReport:
        """Look at all files, or at some: then the next call goes on after them. Raises what reading a ledger does."""
        self._cluster.refresh()
        of_topics = self._cluster.cluster_ledger.ask(lambda state: state.ledger_ids())
        ledger_ids = sorted({self._brokers.cluster_id, *of_topics})
        report, left = SnapshotReport(), files_max
        for number, ledger_id in enumerate(ledger_ids):
            if ledger_id >= self._after[0] and left != 0:
                is_cluster = ledger_id == self._brokers.cluster_id
                ledger = self._cluster.cluster_ledger if is_cluster else self._cluster.topic_ledger(ledger_id)
                before = report.file_count
                self._run_ledger(ledger, report, left)
                left = None if left is None else left - (report.file_count - before)
            if on_ledger is not None:
                on_ledger(number + 1, len(ledger_ids))
        if left != 0:
            self._after = ("", "")
        return report

    def run_if_due(self) -> None:
        """Repair some files, once in `ROUND_INTERVAL_MS`: for a coordinator."""
        now_ms = self._cluster.clock.monotonic_ms()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + ROUND_INTERVAL_MS
            self.run(files_max=ROUND_FILES_MAX)

    def _run_ledger(self, ledger: Ledger[Any], report: SnapshotReport, files_max: int | None) -> None:
        named, snapshot = _named(ledger), ledger.state.snapshot
        heads = set[str]().union(*(self._heads_on(root, ledger.ledger_id) for root in self._roots))
        wanted = sorted(key for key in named | heads if (ledger.ledger_id, key) > self._after)[:files_max]
        for key, bad, good in self._looks(ledger.ledger_id, wanted):
            report.file_count += 1
            self._after = ledger.ledger_id, key
            if bad and ledger.refresh().snapshot != snapshot:  # then files of the old one may be deleted
                named, snapshot = _named(ledger), ledger.state.snapshot
            why = self._why_not_decidable(ledger, key, good) if good and key not in named else ""
            if why:
                bad = [self._removed(finding, why) for finding in self._holders(ledger.ledger_id, key, bad)]
            elif key not in named:
                bad = [copy for copy in bad if copy.fault is Fault.CORRUPT]
            if not good and key in named:
                is_unread = any(copy.fault is Fault.UNREACHABLE for copy in bad)
                report.unread_count += is_unread
                report.lost_count += not is_unread
            elif good:
                bad = [copy for copy in bad if copy.fault is not Fault.UNREACHABLE]  # the scrub of journals says it
            if self._is_repairing and not why and (good or key not in named):
                bad = [self._repaired(copy, good) for copy in bad]
            report.findings += bad

    def _heads_on(self, broker_id: BrokerId, ledger_id: LedgerId) -> set[str]:
        try:
            self._away.check(broker_id)
            return {snapshot_key(ledger_id, name) for name in heads_on(self._brokers.store(broker_id), ledger_id)}
        except ReplogError as error:
            self._away.note(broker_id, error)
            return set()

    def _looks(self, ledger_id: LedgerId, keys: Sequence[str]) -> Iterator[tuple[str, list[SnapshotFinding], bytes]]:
        """Yield each file with its bad copies and its right bytes, b"" for none."""
        left = iter(keys)
        while some := list(islice(left, AHEAD_FILES)):
            asked = [(key, [self._begin_look(root, ledger_id, key) for root in self._roots]) for key in some]
            for key, looks in asked:
                copies = [look.result() for look in looks]
                bad = [copy for copy in copies if isinstance(copy, SnapshotFinding)]
                yield key, bad, next((copy for copy in copies if isinstance(copy, bytes)), b"")

    def _begin_look(self, broker_id: BrokerId, ledger_id: LedgerId, key: str) -> Future[SnapshotFinding | bytes]:
        lane = f"{self._brokers.url(broker_id)}#snapshots"
        return IO_POOL.submit_to(lane, self._look, broker_id, ledger_id, key)

    def _look(self, broker_id: BrokerId, ledger_id: LedgerId, key: str) -> SnapshotFinding | bytes:
        """Return the bytes of a good copy, or what is wrong with it."""
        finding = partial(SnapshotFinding, broker_id, ledger_id, key)
        try:
            self._away.check(broker_id)
            self._away.begin_check(self._brokers, broker_id).result()
            data = self._brokers.store(broker_id).get(key, size_bytes=SNAPSHOT_SIZE_BYTES_MAX + 1)
        except CorruptDataError as error:
            return finding(Fault.CORRUPT, str(error.args[0]))
        except ReplogError as error:
            self._away.note(broker_id, error)
            return finding(Fault.UNREACHABLE, f"{error.code.name}: {error.args[0]}")
        if data is None:
            return finding(Fault.ABSENT, "the root does not have it")
        if not is_named(key.rpartition("/")[2], data):
            return finding(Fault.CORRUPT, f"its {len(data)} bytes are not those that its name says")
        return bytes(data)

    def _why_not_decidable(self, ledger: Ledger[Any], key: str, data: bytes) -> str:
        """Return why the head with these bytes is not of this ledger: what it calls decided is not; "" if it may be.

        A head is made from folded entries. So it is of a decided entry, and one that follows the newest SnapshotCommit
        knows it. Its bytes were read before the entries here.
        """
        root_count = len(self._brokers.metadata_broker_ids)
        try:
            head = decode_snapshot(data, genesis=genesis_hash(ledger.ledger_id), root_count=root_count, where=key)
        except CorruptDataError as error:
            return str(error.args[0])
        except UnsupportedFormatError:
            return ""  # a newer release's
        why = ""
        for is_newest in (False, True):
            if is_newest:
                ledger.refresh()
            with ledger.lock:
                last, decided = ledger.state.applied_index, ledger.state.snapshot
            why = ""
            if head.base.index > last:
                why = f"it has the state after entry {head.base.index}, and the ledger ends with {last}"
            elif head.decided.no > decided.no or (head.base.index >= decided.entry_index and head.decided != decided):
                why = f"it calls snapshot {head.decided.name or 'none'} decided, and {decided.name or 'none'} is"
            if not why or ledger.is_tail_unclear:
                return ""
        return why

    def _holders(self, ledger_id: LedgerId, key: str, bad: Sequence[SnapshotFinding]) -> list[SnapshotFinding]:
        """Return a finding for each root that has the file as its name says."""
        lacking = {finding.broker_id for finding in bad}
        return [SnapshotFinding(root, ledger_id, key, Fault.CORRUPT, "") for root in self._roots if root not in lacking]

    def _removed(self, finding: SnapshotFinding, why: str) -> SnapshotFinding:
        """Say why a head is not of its ledger; when repairing, delete it: it can never be decided."""
        finding = replace(finding, detail=why)
        if not self._is_repairing:
            return finding
        try:
            self._brokers.store(finding.broker_id).delete(finding.file)
        except ReplogError as error:
            return replace(finding, detail=f"{why}. It was not deleted: {error}")
        _log.warning(
            "[%s] broker %d: %s was deleted: %s.",
            ErrorCode.CORRUPT_MESSAGE.name,
            finding.broker_id,
            finding.file,
            why,
        )
        return replace(finding, is_repaired=True)

    def _repaired(self, finding: SnapshotFinding, data: bytes) -> SnapshotFinding:
        """Put the right bytes on a root, b"" for none: then delete the wrong ones, which no snapshot needs.

        No other bytes ever belong under the name, so what is deleted is of no use.
        """
        key = finding.file
        now = self._look(finding.broker_id, finding.ledger_id, key)
        if isinstance(now, SnapshotFinding) and now.fault is Fault.UNREACHABLE:
            return now
        try:
            if isinstance(now, SnapshotFinding):  # else another repair has done it
                store = self._brokers.store(finding.broker_id)
                store.delete(key)
                if data:
                    store.create(key, data, make_parent=True)
        except ReplogError as error:
            return replace(finding, detail=f"{finding.detail}. It was not repaired: {error}")
        done = "copied from another root" if data else "deleted: no decided snapshot needs it"
        where, was = f"broker {finding.broker_id}: {key}", finding.fault.value
        _log.warning("[%s] %s was %s, and was %s.", ErrorCode.CORRUPT_MESSAGE.name, where, was, done)
        return replace(finding, is_repaired=True)


def _named(ledger: Ledger[Any]) -> frozenset[str]:
    return frozenset() if ledger.snapshots is None else ledger.snapshots.files()
