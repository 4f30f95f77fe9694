"""Holds every copy that the ledgers name against the roots: present, whole and, when asked, byte for byte.

Reads only. A finding is not a loss while another copy is good. ``maintenance.repair`` repairs.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from operator import methodcaller

import crc32c

from spark_replog.clock import Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_fetcher import CopyJob, copy_job, damage
from spark_replog.errors import CorruptDataError, ErrorCode, NotFoundError, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, TopicId
from spark_replog.log.codec.data_object import frame_damage
from spark_replog.log.fold.partition_state import ObjectRef, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer

Frame = tuple[tuple[int, int, int], ...]
"""The bytes of a copy outside its sections: (start byte, size, CRC32C) of each run."""
AGAIN_MS = 60_000
"""A hung root costs one timeout of 10 to 20 seconds per this time, however many copies it holds."""
_AWAY = frozenset({ErrorCode.REPLOG_STORE_UNAVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})


AHEAD_OBJECTS = 8
"""How many objects are checked in parallel, and the most bytes of one copy of each."""
AHEAD_BYTES = 64 << 20


class AwayRoots:
    """What the roots failed with of late, and the checks of them under way. One for each run; threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[BrokerId, tuple[int, ReplogError]] = {}
        self._checks: dict[BrokerId, Future[None]] = {}
        self._lock = threading.Lock()

    def begin_check(self, brokers: BrokerSet, broker_id: BrokerId) -> Future[None]:
        """Begin to read the root's ``replog.json``; all who ask while that is under way share one answer."""
        with self._lock:
            check = self._checks.get(broker_id)
            if check is None or check.done():
                lane = f"{brokers.url(broker_id)}#check"
                check = self._checks[broker_id] = IO_POOL.submit_to(lane, self._check_root, brokers, broker_id)
        return check

    def _check_root(self, brokers: BrokerSet, broker_id: BrokerId) -> None:
        self.check(broker_id)
        try:
            brokers.check_root(broker_id)
        except ReplogError as error:
            self.note(broker_id, error)
            raise

    def check(self, broker_id: BrokerId) -> None:
        """Raise what the root failed with less than ``AGAIN_MS`` ago, if it did."""
        failed_ms, error = self._failed.get(broker_id, (0, None))
        if error is not None and self._clock.monotonic_ms() - failed_ms < AGAIN_MS:
            raise error

    def note(self, broker_id: BrokerId, error: ReplogError) -> None:
        """Take down a failure, if it says that the root does not answer."""
        if error.code in _AWAY and self._failed.get(broker_id, (0, None))[1] is not error:
            self._failed[broker_id] = (self._clock.monotonic_ms(), error)


class Fault(Enum):
    """What is wrong with one copy."""

    ABSENT = "absent"
    SHORT = "short"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ScrubFinding:
    """One copy that differs from what the ledger names."""

    broker_id: BrokerId
    ledger_id: LedgerId
    object_name: str
    fault: Fault
    detail: str


@dataclass(slots=True)
class ScrubReport:
    """What a scrub saw.

    Attributes:
        checked_bytes: bytes read and checked (deep only).
        lost_count: objects without one copy that has all rows, where every holder was read.
        unread_count: objects of which no good copy was found, and a holder does not answer.
        findings: bad copies, in ledger order.
    """

    object_count: int = 0
    copy_count: int = 0
    checked_bytes: int = 0
    lost_count: int = 0
    unread_count: int = 0
    findings: list[ScrubFinding] = field(default_factory=list)


def scrub(cluster: Cluster, *, deep: bool = False, on_object: Callable[[int, int], None] | None = None) -> ScrubReport:
    """Look at every copy of every object that a live topic needs.

    Args:
        deep: read each copy whole, check the CRC32C of its sections, check that the rest of it frames an Arrow
            file and is equal on all brokers; else check only that its last byte is there.
        on_object: called with (objects done, objects in all), for a progress display.

    Raises:
        RetriableError: REPLOG_NO_QUORUM: the ledgers cannot be read. Nothing was changed.
    """
    report, away = ScrubReport(), AwayRoots(cluster.clock)
    absent: dict[tuple[LedgerId, ObjectId], tuple[bool, bool]] = {}
    """Objects that a root does not have, and whether they were counted as lost, and as unread."""
    objects = list(_live_objects(cluster))
    for number, (job, looks) in enumerate(_looks(cluster, objects, away, deep=deep)):
        good, frames, faults = 0, {}, set()
        for broker_id, look in looks:
            finding = look.result()
            report.copy_count += 1
            report.checked_bytes += finding.checked_bytes
            if finding.frame is not None:
                frames[broker_id] = finding.frame
            if finding.finding is None:
                good += 1
            else:
                report.findings.append(finding.finding)
                faults.add(finding.finding.fault)
        for broker_id, detail in _bad_frames(frames).items():
            report.findings.append(ScrubFinding(broker_id, job.ledger_id, job.id.name, Fault.CORRUPT, detail))
        report.object_count += 1
        is_lost, is_unread = not good and Fault.UNREACHABLE not in faults, not good and Fault.UNREACHABLE in faults
        report.lost_count += is_lost
        report.unread_count += is_unread
        if Fault.ABSENT in faults:
            absent[job.ledger_id, job.id] = is_lost, is_unread
        if on_object is not None:
            on_object(number + 1, len(objects))
    _forget(report, {key: absent[key] for key in unreferenced(cluster, absent)})
    return report


def _forget(report: ScrubReport, gone: Mapping[tuple[LedgerId, ObjectId], tuple[bool, bool]]) -> None:
    """Take objects out of a report that no row needs any more."""
    names = {(ledger_id, item_id.name) for ledger_id, item_id in gone}
    report.findings = [finding for finding in report.findings if (finding.ledger_id, finding.object_name) not in names]
    report.lost_count -= sum(is_lost for is_lost, _ in gone.values())
    report.unread_count -= sum(is_unread for _, is_unread in gone.values())


def unreferenced(cluster: Cluster, names: Iterable[tuple[LedgerId, ObjectId]]) -> set[tuple[LedgerId, ObjectId]]:
    """Return the objects whose rows are all gone by now: garbage collection may have deleted them meanwhile."""
    by_folder: dict[tuple[LedgerId, int], set[ObjectId]] = {}
    for ledger_id, item_id in names:
        by_folder.setdefault((ledger_id, item_id.generation), set()).add(item_id)
    objects = set()
    for (ledger_id, generation), ids in by_folder.items():
        ledger = cluster.topic_ledger(ledger_id)
        ledger.refresh()
        needed = ledger.ask(methodcaller("referenced_objects", generation))
        objects |= {(ledger_id, object_id) for object_id in ids if object_id.name not in needed}
    return objects


def _sections(topic_id: TopicId, state: TopicLedgerState) -> list[SectionRef]:
    sections: list[SectionRef] = []
    for number, partition in enumerate(state.topics[topic_id].partitions):
        sections += state.sections(topic_id, number, partition.log_start_offset, partition.log_end_offset)
    return sections


def _live_objects(cluster: Cluster) -> Iterator[tuple[ObjectRef, list[SectionRef]]]:
    """Yield the objects that are files, with their live sections; the scrub of journals proves the inline ones."""
    objects: dict[tuple[LedgerId, ObjectId], tuple[ObjectRef, list[SectionRef]]] = {}
    handles = [cluster.lookup(name, is_folded=True) for name in cluster.topic_names()]
    cluster.refresh_topics(handles)
    for handle in handles:
        try:
            ledger, _ = cluster.folded_topic(handle)
        except NotFoundError:
            continue  # it is being deleted, or its deletion was interrupted
        for section in ledger.ask(partial(_sections, handle.topic_id)):
            if section.object.inline:
                continue
            key = (section.object.ledger_id, section.object.id)
            objects.setdefault(key, (section.object, []))[1].append(section)
    yield from objects.values()


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at one copy saw; ``frame`` where it was read whole and its rows are good: see ``read_frame``."""

    finding: ScrubFinding | None = None
    checked_bytes: int = 0
    frame: Frame | str | None = None


def _looks(
    cluster: Cluster, objects: Iterable[tuple[ObjectRef, list[SectionRef]]], away: AwayRoots, *, deep: bool
) -> Iterator[tuple[CopyJob, list[tuple[BrokerId, Future[_Look]]]]]:
    """Look at the copies of several objects at once, all roots side by side; yield them in order."""
    waiting: deque[tuple[CopyJob, list[tuple[BrokerId, Future[_Look]]]]] = deque()
    size_bytes = 0

    def begin(job: CopyJob) -> list[tuple[BrokerId, Future[_Look]]]:
        url, pool = cluster.brokers.url, IO_POOL
        return [(root, pool.submit_to(url(root), _look, cluster, root, job, away, deep)) for root in job.sources]

    for item, sections in objects:
        job = copy_job(item.ledger_id, item, sections, item.holders)
        while waiting and (len(waiting) == AHEAD_OBJECTS or size_bytes + job.size_bytes > AHEAD_BYTES):
            size_bytes -= waiting[0][0].size_bytes
            yield waiting.popleft()
        size_bytes += job.size_bytes
        waiting.append((job, begin(job)))
    yield from waiting


def _look(cluster: Cluster, broker_id: BrokerId, job: CopyJob, away: AwayRoots, deep: bool) -> _Look:
    def finding(fault: Fault, detail: str, checked_bytes: int = 0) -> _Look:
        return _Look(ScrubFinding(broker_id, job.ledger_id, job.id.name, fault, detail), checked_bytes)

    try:
        away.check(broker_id)
        store = cluster.brokers.store(broker_id)
        check = away.begin_check(cluster.brokers, broker_id)
        last = store.get(job.storage_key, start=job.size_bytes - 1, size_bytes=2)
        check.result()
        if last is None:
            return finding(Fault.ABSENT, "the root does not have it")
        if len(last) != 1:
            return finding(Fault.SHORT, f"it is not {job.size_bytes} bytes long")
        if not deep:
            return _Look()
        body = store.get(job.storage_key)
        if body is None:  # deleted since its last byte was read
            return finding(Fault.ABSENT, "the root does not have it")
        problem = damage(job, body)
        if problem is not None:
            return finding(Fault.CORRUPT, problem, job.size_bytes)
        return _Look(None, job.size_bytes, read_frame(job, body))
    except CorruptDataError as error:
        return finding(Fault.CORRUPT, str(error.args[0]))
    except ReplogError as error:
        away.note(broker_id, error)
        return finding(Fault.UNREACHABLE, f"{error.code.name}: {error.args[0]}")


def read_frame(job: CopyJob, body: Buffer) -> Frame | str:
    """Return what is outside the sections of a copy of the right size, or what is wrong with it there."""
    view, frame, at = memoryview(body), [], 0
    for start, size_bytes, _ in [*sorted(job.checksums), (job.size_bytes, 0, 0)]:
        if start > at:
            frame.append((at, start - at, crc32c.crc32c(view[at:start])))
        at = start + size_bytes
    sections = [(start, size_bytes) for start, size_bytes, _ in job.checksums]
    return (frame_damage(body, sections) if frame else None) or tuple(frame)


def right_frame(frames: Mapping[BrokerId, Frame | str]) -> Frame | None:
    """Return the frame that most copies without a fault have; None if several are as frequent, or none is good."""
    best = Counter(frame for frame in frames.values() if not isinstance(frame, str)).most_common(2)
    return best[0][0] if best and (len(best) == 1 or best[0][1] > best[1][1]) else None


def _bad_frames(frames: Mapping[BrokerId, Frame | str]) -> dict[BrokerId, str]:
    """Return what is wrong outside the sections of each broker's copy, whose rows are good."""
    right, faults = right_frame(frames), {}
    for broker_id, frame in frames.items():
        if isinstance(frame, str):
            faults[broker_id] = f"outside its sections: {frame}"
        elif right is None:
            faults[broker_id] = (
                "bytes outside its sections differ between the copies, and no majority has the same ones"
            )
        elif frame != right:
            at = next(mine[0] for mine, other in zip(frame, right, strict=True) if mine != other)
            faults[broker_id] = f"bytes outside its sections, from byte {at} on, are not those of the other copies"
    return faults
