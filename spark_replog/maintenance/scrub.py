"""Holds every copy that the ledgers name against the roots: present, whole and, when asked, byte for byte.

Reads only. A finding is not a loss while another copy is good; repairing is another noun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import crc32c

from spark_replog.clock import Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.log.fold.partition_state import ObjectRef, SectionRef
from spark_replog.storage.paths import data_key

AGAIN_MS = 60_000
"""A hung root costs one time-out of 10 to 20 seconds in so long, however many copies it holds."""
_AWAY = frozenset({ErrorCode.REPLOG_STORE_UNAVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})


class AwayRoots:
    """What the roots failed with of late. Not thread safe; one for each run.

    Args:
        clock: decides when a root is asked again, nothing else.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[BrokerId, tuple[int, ReplogError]] = {}

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
    """One copy that is not what the ledger says."""

    broker_id: BrokerId
    ledger_id: LedgerId
    object_name: str
    fault: Fault
    detail: str


@dataclass(slots=True)
class ScrubReport:
    """What a scrub saw.

    Attributes:
        object_count: objects that the ledgers name and readers may need.
        copy_count: copies of them that were looked at.
        checked_bytes: bytes read and checked (deep only).
        lost_count: objects without one good copy.
        findings: bad copies, in ledger order.
    """

    object_count: int = 0
    copy_count: int = 0
    checked_bytes: int = 0
    lost_count: int = 0
    findings: list[ScrubFinding] = field(default_factory=list)


def scrub(cluster: Cluster, *, deep: bool = False, on_object: Callable[[int, int], None] | None = None) -> ScrubReport:
    """Look at every copy of every object that a live topic needs.

    Args:
        cluster: the opened store.
        deep: read each copy whole and check the CRC32C of its sections; else only that its last byte is there.
        on_object: called with (objects done, objects in all), for a progress display.

    Raises:
        RetriableError: REPLOG_NO_QUORUM: the ledgers cannot be read. Nothing was changed.
    """
    report, away = ScrubReport(), AwayRoots(cluster.clock)
    objects = list(_live_objects(cluster))
    for number, (item, sections) in enumerate(objects):
        good = 0
        for broker_id in sorted(item.holders):
            finding = _look(cluster, broker_id, item, sections if deep else [], report, away)
            report.copy_count += 1
            if finding is None:
                good += 1
            else:
                report.findings.append(finding)
        report.object_count += 1
        report.lost_count += good == 0
        if on_object is not None:
            on_object(number + 1, len(objects))
    return report


def _live_objects(cluster: Cluster) -> Iterator[tuple[ObjectRef, list[SectionRef]]]:
    found: dict[tuple[LedgerId, ObjectId], tuple[ObjectRef, list[SectionRef]]] = {}
    for name in cluster.topic_names():
        ledger, topic = cluster.topic_state(cluster.lookup(name))
        with ledger.lock:
            for number, partition in enumerate(topic.partitions):
                start, end = partition.log_start_offset, partition.log_end_offset
                for section in ledger.state.sections(topic.topic_id, number, start, end):
                    item = section.object
                    key = (item.ledger_id, item.id)
                    found.setdefault(key, (item, []))[1].append(section)
    yield from found.values()


def _look(
    cluster: Cluster,
    broker_id: BrokerId,
    item: ObjectRef,
    sections: list[SectionRef],
    report: ScrubReport,
    away: AwayRoots,
) -> ScrubFinding | None:
    def finding(fault: Fault, detail: str) -> ScrubFinding:
        return ScrubFinding(broker_id, item.ledger_id, item.id.name, fault, detail)

    key = data_key(item.ledger_id, *item.id)
    try:
        away.check(broker_id)
        cluster.brokers.check_root(broker_id)
        store = cluster.brokers.store(broker_id)
        last = store.get(key, start=item.size_bytes - 1, size_bytes=2)
        if last is None:
            return finding(Fault.ABSENT, "the root does not have it")
        if len(last) != 1:
            return finding(Fault.SHORT, f"it is not {item.size_bytes} bytes long")
        for section in sections:
            body = store.get(key, start=section.start_byte, size_bytes=section.size_bytes)
            report.checked_bytes += section.size_bytes
            if body is None or crc32c.crc32c(body) != section.crc32c:
                return finding(Fault.CORRUPT, f"checksum differs in bytes from {section.start_byte} on")
    except ReplogError as error:
        away.note(broker_id, error)
        return finding(Fault.UNREACHABLE, f"{error.code.name}: {error.args[0]}")
    return None


__all__ = ["AGAIN_MS", "AwayRoots"]
