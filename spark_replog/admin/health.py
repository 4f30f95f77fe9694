"""Whether a store can serve: partitions from the folds, roots by a short look. Writes nothing; runs driver-side.

``topic_findings`` and ``fence_findings`` are pure over the fold of one topic ledger. ``HealthAdmin`` refreshes the
ledgers and asks all roots at once. What takes a full read (each journal, each copy) is ``store verify``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

from spark_replog.admin.admin import Admin, topic_ledgers
from spark_replog.cluster.root_check import ROOT_TIMEOUT_MS, RootLook, look_at_roots
from spark_replog.commit.state_changes import live_partitions
from spark_replog.errors import ErrorCode
from spark_replog.ids import BrokerId, TopicId
from spark_replog.log.acl import AclOperation
from spark_replog.log.fold.partition_state import NO_LEADER, PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState

FREE_BYTES_WARN = 1 << 30
FREE_BYTES_CRITICAL = 64 << 20
"""Two data objects of the largest default size (``max.request.size``): below that a root takes no batch for sure."""


class Level(IntEnum):
    """How bad a finding is: the exit codes of the health commands."""

    WARN = 3
    CRITICAL = 4


class Fault(Enum):
    """What is wrong; the values are stable names."""

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
    """One thing that is wrong.

    Attributes:
        detail: what is wrong, with the values.
        remedy: the command that helps, or what to do.
        topic: and ``partition``, ``broker_id``: what it is about; None where it is about something else.
        code: of the error that a look at the root raised.
    """

    level: Level
    fault: Fault
    detail: str
    remedy: str
    topic: str | None = None
    partition: int | None = None
    broker_id: BrokerId | None = None
    code: ErrorCode | None = None


def topic_findings(state: TopicLedgerState, topic_id: TopicId | None = None) -> list[Finding]:
    """Return what is wrong with the partitions of a ledger, or of one topic; by topic name, then partition. Pure.

    Called under the ledger's lock.
    """
    found = [
        finding
        for topic, number, partition in live_partitions(state)
        if topic_id in (None, topic.topic_id)
        for finding in [_partition_finding(topic.name, number, partition, state.fenced)]
        if finding is not None
    ]
    return sorted(found, key=lambda each: (each.topic or "", each.partition or 0))


def _partition_finding(
    topic: str, number: int, partition: PartitionState, fenced: frozenset[BrokerId]
) -> Finding | None:
    in_sync = [each for each in partition.isr if each not in fenced]
    out = sorted(set(partition.replicas) - set(in_sync))
    remedy = _bring_back(out, fenced)
    if partition.leader == NO_LEADER:
        return Finding(
            Level.CRITICAL,
            Fault.NO_LEADER,
            f"{topic}-{number} has no leader: no in-sync replica of {sorted(partition.isr)} is in service, so writes "
            "are refused",
            f"{remedy}; or accept the loss of rows: replog topic elect {topic} --unclean",
            topic,
            number,
        )
    if len(in_sync) < partition.min_insync:
        return Finding(
            Level.CRITICAL,
            Fault.UNDER_MIN_ISR,
            f"{topic}-{number} has {len(in_sync)} in-sync replicas {in_sync} and min.insync.replicas is "
            f"{partition.min_insync}, so writes with acks=all are refused",
            remedy,
            topic,
            number,
        )
    if out:
        detail = f"{topic}-{number} is under-replicated: brokers {out} are out of sync"
        return Finding(Level.WARN, Fault.UNDER_REPLICATED, detail, remedy, topic, number)
    return None


def _bring_back(out: Iterable[BrokerId], fenced: frozenset[BrokerId]) -> str:
    resting = [str(each) for each in out if each in fenced]
    if resting:
        return f"replog broker unfence {' '.join(resting)}"
    return "bring the roots back, then: replog coordinator run --once"


def fence_findings(state: TopicLedgerState, broker_ids: Iterable[BrokerId]) -> list[Finding]:
    """Return what fencing the brokers would make worse: partitions that would have no leader, or too few in sync.

    Pure. Called under the ledger's lock.
    """
    fenced = state.fenced.union(broker_ids)
    found = []
    for topic, number, partition in live_partitions(state):
        before = sum(each not in state.fenced for each in partition.isr)
        after = sum(each not in fenced for each in partition.isr)
        if after == before or after >= partition.min_insync:
            continue
        what = f"{after} in-sync replicas where min.insync.replicas is {partition.min_insync}" if after else "no leader"
        found.append(
            Finding(
                Level.CRITICAL,
                Fault.UNDER_MIN_ISR if after else Fault.NO_LEADER,
                f"{topic.name}-{number} would have {what}: writes {'with acks=all ' if after else ''}would be refused",
                "wait until other replicas are in sync, or fence another broker",
                topic.name,
                number,
            )
        )
    return sorted(found, key=lambda each: (each.topic or "", each.partition or 0))


def root_findings(looks: Iterable[RootLook], metadata: Iterable[BrokerId]) -> list[Finding]:
    """Return what is wrong with the roots that were looked at. Pure."""
    looks = list(looks)
    found = [each for look in looks for each in _root_finding(look)]
    journals = list(metadata)
    away = sorted(look.broker_id for look in looks if look.error is not None and look.broker_id in journals)
    if len(away) * 2 >= len(journals) > 0 and away:
        found.append(
            Finding(
                Level.CRITICAL,
                Fault.NO_MAJORITY,
                f"metadata roots {away} of {sorted(journals)} do not serve, so nothing can be written",
                "bring one of them back: replog store info shows why each does not serve",
            )
        )
    return found


_ROOT_FAULTS = {ErrorCode.REPLOG_ROOT_STALE: Fault.ROOT_STALE, ErrorCode.CORRUPT_MESSAGE: Fault.COPY_MISSING}


def _root_finding(look: RootLook) -> list[Finding]:
    broker_id, error, free = look.broker_id, look.error, look.free_bytes
    if error is not None:
        fault = _ROOT_FAULTS.get(error.code, Fault.ROOT_AWAY)
        remedy = "bring the root back" if fault is Fault.ROOT_AWAY else "replog store verify"
        remedy += ", or: replog store repair"
        return [Finding(Level.WARN, fault, str(error.args[0]), remedy, broker_id=broker_id, code=error.code)]
    if free is None or free >= FREE_BYTES_WARN:
        return []
    level = Level.CRITICAL if free < FREE_BYTES_CRITICAL else Level.WARN
    detail = f"the root of broker {broker_id} has {free >> 20} MiB free"
    return [Finding(level, Fault.ROOT_FULL, detail, "free space on that file system", broker_id=broker_id)]


class HealthAdmin(Admin):
    """Thread safe. Arguments: see ``Admin``."""

    def check(self, timeout_ms: int = ROOT_TIMEOUT_MS) -> list[Finding]:
        """Return what is wrong with the store's roots, brokers and partitions; worst first, none where all is well.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED: without DESCRIBE on the cluster.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.DESCRIBE)
        self._cluster.refresh()
        ledgers = topic_ledgers(self._cluster)
        found = [
            Finding(
                Level.WARN,
                Fault.FENCED,
                f"broker {each} is fenced: it leads nothing and its copies do not count",
                f"replog broker unfence {each}",
                broker_id=each,
            )
            for each in sorted(self._fenced())
        ]
        for ledger in ledgers:
            ledger.refresh()
            with ledger.lock:
                found += topic_findings(ledger.state)
        looks = look_at_roots(self._cluster, ledgers, timeout_ms)
        found += root_findings(looks, self._cluster.brokers.metadata_broker_ids)
        return sorted(found, key=lambda each: -each.level)

    def check_topic(self, name: str) -> list[Finding]:
        """Return what is wrong with one topic's partitions.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED: without DESCRIBE on the topic.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_topic(AclOperation.DESCRIBE, name)
        handle, ledger = self._open(name)
        with ledger.lock:
            return topic_findings(ledger.state, handle.topic_id)

    def fence_warnings(self, broker_ids: Iterable[BrokerId]) -> list[Finding]:
        """Return which partitions fencing these brokers would stop.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.ALTER)
        self._cluster.refresh()
        wanted, found = tuple(broker_ids), []
        for ledger in topic_ledgers(self._cluster):
            ledger.refresh()
            with ledger.lock:
                found += fence_findings(ledger.state, wanted)
        return found
