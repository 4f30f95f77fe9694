"""What an acks=all append still lacks, and the wait until it lacks nothing.

An append may be decided when every object that it names, and every object of an entry above
the stable index, is on every in-sync replica: an acknowledged row must never sit behind one
that a later truncation may cut. The provisional tail built here is the coordinator's "local
log": offsets above the high watermark, by prefix sums, before anything is decided.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from spark_replog.clock import Clock
from spark_replog.commit.delayed_operation import DelayedOperationPurgatory
from spark_replog.commit.delayed_produce import (
    DelayedProduce,
    LeaderLookup,
    ProducePartitionStatus,
)
from spark_replog.commit.partition import ObjectCopies, Partition
from spark_replog.commit.replica_fetcher import CopyJob, ObjectKey, ReplicaFetcher, copy_job
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId, PartitionKey
from spark_replog.log.codec.commands import Append, Section
from spark_replog.log.fold.topic_state import PartitionState, TopicLedgerState

_log = logging.getLogger(__name__)


LOOK_INTERVAL_MS = 1_000
"""How often an append that waits folds what other processes decided: one get per metadata root."""


@dataclass(slots=True)
class Replication:
    """What this append has learned so far beyond the fold. Grows; guarded by ``lock``.

    Attributes:
        copied: object -> brokers that got a copy from us.
        departed: brokers that leave the ISR with this append's ENTRY, and why.
        lost: objects that no source delivered, and the brokers that should have.
    """

    copied: dict[ObjectKey, set[BrokerId]] = field(default_factory=dict)
    departed: dict[BrokerId, str] = field(default_factory=dict)
    lost: dict[ObjectKey, tuple[BrokerId, ...]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def holders(self, key: ObjectKey, recorded: frozenset[BrokerId]) -> frozenset[BrokerId]:
        """Return who holds an object: those recorded and those copied to."""
        with self.lock:
            copied = self.copied.get(key)
            return recorded if copied is None else recorded | copied


@dataclass(frozen=True, slots=True)
class ReplicationRound:
    """The provisional tail of one judgement: offsets, copies, and what is missing."""

    partitions: Mapping[PartitionKey, Partition]
    statuses: Mapping[PartitionKey, ProducePartitionStatus]
    copies: Mapping[ObjectKey, ObjectCopies]
    missing: tuple[tuple[CopyJob, BrokerId], ...]


def in_sync_brokers(state: TopicLedgerState, sections: tuple[Section, ...]) -> frozenset[BrokerId]:
    """Return every broker that is in sync for some partition of the sections."""
    topics = state.topics
    isrs = {topics[each.topic_id].partitions[each.partition].isr for each in sections}
    return frozenset().union(*isrs)


def is_replicated(state: TopicLedgerState, append: Append, known: Replication) -> bool:
    """Return whether nothing needs to wait: the usual case, without building a tail.

    False where an entry above the stable index holds everything back, whatever lacks.
    """
    if state.stable_index != state.applied_index or known.departed:
        return False
    topics = state.topics
    for item in append.objects:
        holders = known.holders((item.generation, item.name), item.holders)
        if not holders >= in_sync_brokers(state, item.sections):
            return False
    return all(
        len(partition.isr) >= partition.min_insync
        for topic_id, number in {(each.topic_id, each.partition) for item in append.objects for each in item.sections}
        for partition in (topics[topic_id].partitions[number],)
    )


def plan_round(
    state: TopicLedgerState, ledger_id: LedgerId, append: Append, known: Replication, now_ms: int
) -> ReplicationRound:
    """Build the provisional tail on a fold, called under the ledger's lock.

    Args:
        state: the fold.
        ledger_id: whose.
        append: what comes behind the log end.
        known: beyond the fold.
        now_ms: monotonic time from which on a replica that misses something lags.
    """
    partitions: dict[PartitionKey, Partition] = {}
    copies: dict[ObjectKey, ObjectCopies] = {}
    jobs: list[tuple[CopyJob, frozenset[BrokerId]]] = []
    for topic in state.topics.values():
        for number, found in enumerate(topic.partitions):
            if not topic.closed and found.log_end_offset > found.high_watermark:
                key = (topic.topic_id, number)
                partitions[key] = _tail_of(state, key, found, known, copies, now_ms)
    for missing in state.under_replicated():
        ref = missing.object
        holders = known.holders((ref.generation, ref.name), ref.holders)
        copies.setdefault((ref.generation, ref.name), ObjectCopies(holders))
        jobs.append(
            (copy_job(ledger_id, ref, missing.sections, holders),
             frozenset(missing.missing) - holders)
        )  # fmt: skip
    for item in append.objects:
        object_key = (item.generation, item.name)
        holders = known.holders(object_key, item.holders)
        tracker = copies.setdefault(object_key, ObjectCopies(holders))
        for section in item.sections:
            key = (section.topic_id, section.partition)
            partition = partitions.get(key)
            if partition is None:
                found = state.topics[section.topic_id].partitions[section.partition]
                partition = partitions[key] = _tail_of(state, key, found, known, copies, now_ms)
            partition.append(section.row_count, tracker)
        lacking = in_sync_brokers(state, item.sections) - holders
        if lacking:
            jobs.append((copy_job(ledger_id, item, item.sections, holders), lacking))
    for partition in partitions.values():
        for broker_id in tuple(known.departed):  # copies that are under way still may add to it
            partition.shrink(broker_id)
    return ReplicationRound(
        partitions,
        {key: ProducePartitionStatus(partition.log_end_offset) for key, partition in partitions.items()},
        copies,
        tuple((job, broker) for job, lacking in jobs for broker in sorted(lacking) if broker not in known.departed),
    )


def _tail_of(
    state: TopicLedgerState,
    key: PartitionKey,
    found: PartitionState,
    known: Replication,
    copies: dict[ObjectKey, ObjectCopies],
    now_ms: int,
) -> Partition:
    partition = Partition(
        found.replicas,
        found.isr,
        found.min_insync,
        found.high_watermark,
        leader_epoch=found.leader_epoch,
        now_ms=now_ms,
    )
    for section in state.sections(*key, found.high_watermark, found.log_end_offset):
        object_key = (section.object.generation, section.object.name)
        tracker = copies.get(object_key)
        if tracker is None:
            tracker = copies[object_key] = ObjectCopies(known.holders(object_key, section.object.holders))
        partition.append(section.row_count, tracker)
    return partition


@dataclass(frozen=True, slots=True)
class RoundServices:
    """What a round waits with: timers, copies, time, and the newest entries of the ledger."""

    purgatory: DelayedOperationPurgatory
    fetcher: ReplicaFetcher
    clock: Clock
    lag_ms: int
    refresh: Callable[[], object]


def run_round(
    this: ReplicationRound, known: Replication, services: RoundServices, lookup: LeaderLookup, timeout_ms: int
) -> dict[PartitionKey, ErrorCode]:
    """Copy what is missing and wait; replicas that fail or lag leave the ISR.

    Returns:
        The partitions that were refused (NOT_ENOUGH_REPLICAS), did not get ready (REQUEST_TIMED_OUT), or
        are led by another by now. What was copied, what is lost and who departed is in ``known``.
    """
    purgatory, lag_ms = services.purgatory, services.lag_ms
    operation = DelayedProduce(timeout_ms, this.partitions, this.statuses, lookup)
    # Copies are events of an object, elections those of a partition.
    keys: list[Hashable] = [*(_watch_key(job) for job, _ in this.missing), *this.partitions] or [operation]
    if purgatory.try_complete_else_watch(operation, keys):
        return operation.errors()

    def depart(broker_id: BrokerId, reason: str) -> None:
        with known.lock:
            if broker_id in known.departed:
                return
            known.departed[broker_id] = reason
            for partition in this.partitions.values():
                partition.shrink(broker_id)
        services.fetcher.distrust(broker_id)
        _log.warning("broker %d leaves the in-sync replicas: %s", broker_id, reason)

    def copied(job: CopyJob, target: BrokerId, error: Exception | None) -> None:
        if error is None:
            with known.lock:
                known.copied.setdefault(job.object_key, set()).add(target)
                this.copies[job.object_key].holders.add(target)
        elif isinstance(error, ReplogError) and "sources" in error.context:
            with known.lock:
                known.lost[job.object_key] = job.sources
            operation.force_complete()  # no wait can help: its leader is lost
        else:
            depart(target, str(error))
        purgatory.check_and_complete(_watch_key(job))

    def lagging() -> None:
        now_ms = services.clock.monotonic_ms()
        with known.lock:
            late = {
                broker_id: key
                for key, partition in this.partitions.items()
                for broker_id in partition.out_of_sync_replicas(now_ms, lag_ms)
            }
        for broker_id, (_, number) in late.items():
            depart(broker_id, f"it has not caught up with partition {number} within {lag_ms} ms")
        operation.safe_try_complete()

    # A replica may be late by lag_ms: behind that, not at it.
    lag_timer = purgatory.timer.add(services.clock.monotonic_ms() + lag_ms + 1, lagging)
    copies = [services.fetcher.submit(job, target, copied) for job, target in this.missing]

    def look() -> None:
        """See who left the ISR, or was elected, by another process's ENTRY: nobody else would tell."""
        try:
            services.refresh()
        except ReplogError as error:
            _log.info("an append that waits for copies could not look for newer entries: %s", error)
        operation.safe_try_complete()

    purgatory.await_completion(operation, look, LOOK_INTERVAL_MS)
    purgatory.timer.cancel(lag_timer)
    for future in copies:  # what nobody waits for any more is not begun: its replica left, or another leads
        future.cancel()
    return operation.errors()


def _watch_key(job: CopyJob) -> tuple[LedgerId, int, str]:
    return job.ledger_id, job.generation, job.name
