"""What is wrong with a store, each finding with the command that fixes it. Pure: values in, findings out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.health.topics import PartitionDescription, TopicDescription
from spark_replog.ids import BrokerId

FREE_BYTES_WARN = 1 << 30
FREE_BYTES_CRITICAL = 64 << 20
"""Two data objects of the largest default size (``max.request.size``): with less free, a root may refuse a batch."""


class Level(IntEnum):
    """Severity of a finding; the value is the exit code of the health commands."""

    WARN = 3
    CRITICAL = 4


class Fault(Enum):
    """Kinds of findings; the values are stable names."""

    NO_LEADER = "no-leader"
    UNDER_MIN_ISR = "under-min-isr"
    UNDER_REPLICATED = "under-replicated"
    FENCED = "fenced"
    ROOT_AWAY = "root-away"
    ROOT_STALE = "root-stale"
    COPY_MISSING = "copy-missing"
    ROOT_FULL = "root-full"
    NO_MAJORITY = "no-majority"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        detail: what is wrong, with the values.
        remedy: the command that fixes it, or what to do.
        topic: with ``partition`` or ``broker_id``, the object of the finding; None if it concerns another one.
        code: of the error raised when the root was read.
    """

    level: Level
    fault: Fault
    detail: str
    remedy: str
    topic: str | None = None
    partition: int | None = None
    broker_id: BrokerId | None = None
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """A broker and the state of its root.

    Attributes:
        is_metadata: whether it holds journals.
        error: why the root cannot be used; None if it answers with the expected identity.
        free_bytes: free space of its file system; None if unknown (object stores).
        device: number of that file system: roots with the same number share its free space.
    """

    broker_id: BrokerId
    url: str
    rack: str | None
    is_metadata: bool
    is_fenced: bool
    error: ReplogError | None = None
    free_bytes: int | None = None
    device: int | None = None


def topic_findings(topics: Iterable[TopicDescription]) -> list[Finding]:
    """Return the findings on partitions, by topic name, then partition."""
    found = [
        finding
        for topic in topics
        for each in topic.partitions
        if (finding := _partition_finding(topic.name, each)) is not None
    ]
    return sorted(found, key=lambda each: (each.topic or "", each.partition or 0))


def _partition_finding(topic: str, found: PartitionDescription) -> Finding | None:
    if not found.is_offline and not found.fenced and len(found.isr) >= max(found.min_insync, len(found.replicas)):
        return None  # of a thousand nearly all
    where, out = f"{topic}-{found.partition}", found.out_of_sync
    resting = " ".join(str(each) for each in out if each in found.fenced)
    remedy = "bring the roots back; replica.rejoin.wait.ms (30 s) after they left: replog coordinator run --once"
    if resting:
        remedy = f"replog broker unfence {resting}"
    level, fault = Level.CRITICAL, Fault.NO_LEADER
    if found.is_offline:
        detail = f"has no leader: no in-sync replica of {sorted(found.isr)} is in service, so writes are refused"
        remedy += f"; or accept the loss of rows: replog topic elect {topic} --unclean"
    elif found.is_under_min_isr:
        fault = Fault.UNDER_MIN_ISR
        detail = (
            f"has {len(found.in_sync)} in-sync replicas {found.in_sync} and min.insync.replicas is "
            f"{found.min_insync}, so writes with acks=all are refused"
        )
    elif out:
        level, fault = Level.WARN, Fault.UNDER_REPLICATED
        detail = f"is under-replicated: brokers {out} are out of sync"
    else:
        return None
    return Finding(level, fault, f"{where} {detail}", remedy, topic, found.partition)


def fence_findings(topics: Iterable[TopicDescription], broker_ids: Collection[BrokerId]) -> list[Finding]:
    """Return the partitions that fencing the brokers would leave without a leader or below min ISR."""
    found = []
    for topic in topics:
        for each in topic.partitions:
            after = sum(broker_id not in broker_ids for broker_id in each.in_sync)
            if after == len(each.in_sync) or after >= each.min_insync:
                continue
            what = f"{after} in-sync replicas where min.insync.replicas is {each.min_insync}" if after else "no leader"
            found.append(
                Finding(
                    Level.CRITICAL,
                    Fault.UNDER_MIN_ISR if after else Fault.NO_LEADER,
                    f"{topic.name}-{each.partition} would have {what}: writes {'with acks=all ' if after else ''}would "
                    "be refused",
                    "wait until other replicas are in sync, or fence another broker",
                    topic.name,
                    each.partition,
                )
            )
    return sorted(found, key=lambda each: (each.topic or "", each.partition or 0))


def broker_findings(brokers: Iterable[BrokerHealth]) -> list[Finding]:
    """Return the findings on brokers and their roots."""
    brokers = list(brokers)
    found = [
        Finding(
            Level.WARN,
            Fault.FENCED,
            f"broker {each.broker_id} is fenced: it leads nothing and its copies do not count",
            f"replog broker unfence {each.broker_id}",
            broker_id=each.broker_id,
        )
        for each in brokers
        if each.is_fenced
    ]
    found += [finding for each in brokers for finding in _root_finding(each)]
    journals = sorted(each.broker_id for each in brokers if each.is_metadata)
    away = [each.broker_id for each in brokers if each.is_metadata and each.error is not None]
    if len(away) * 2 >= len(journals) > 0 and away:
        found.append(
            Finding(
                Level.CRITICAL,
                Fault.NO_MAJORITY,
                f"metadata roots {sorted(away)} of {journals} cannot be used, so nothing can be written",
                "bring one of them back: `replog store info` shows the error of each",
            )
        )
    return found


_ROOT_FAULTS = {ErrorCode.REPLOG_ROOT_STALE: Fault.ROOT_STALE, ErrorCode.CORRUPT_MESSAGE: Fault.COPY_MISSING}


def _root_finding(found: BrokerHealth) -> list[Finding]:
    broker_id, error, free = found.broker_id, found.error, found.free_bytes
    if error is not None:
        fault = _ROOT_FAULTS.get(error.code, Fault.ROOT_AWAY)
        remedy = "bring the root back" if fault is Fault.ROOT_AWAY else "replog store verify"
        remedy += ", or: replog store repair"
        return [Finding(Level.WARN, fault, str(error.args[0]), remedy, broker_id=broker_id, code=error.code)]
    if free is None or free >= FREE_BYTES_WARN:
        return []
    level = Level.CRITICAL if free < FREE_BYTES_CRITICAL else Level.WARN
    detail = f"the root of broker {broker_id} has {free >> 20} MiB free"
    remedy = "replog store gc, or free space on that file system"
    return [Finding(level, Fault.ROOT_FULL, detail, remedy, broker_id=broker_id)]
