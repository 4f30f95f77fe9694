"""The copies that an acks=all append still lacks, and the wait for them.

An append may be decided when every in-sync replica holds each object that it names, and each object of the entries
above the stable index: an acknowledged row must never follow one that a later truncation may cut. The provisional
tail built here has the offsets above the high watermark before anything is decided. A follower's log ends before the
first object that it lacks. An ISR shrink needs no controller: the same ENTRY decides it and the append that waits.

Source: Kafka's ``Partition``, ``Replica`` and ``DelayedProduce``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from spark_replog.commit.purgatory import DelayedOperation, DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import CopyJob, ReplicaFetcher, copy_job
from spark_replog.commit.state_changes import leaving_replicas
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, PartitionKey
from spark_replog.log.fold.partition_state import ObjectRef, PartitionState, passes_high_watermark
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, DataObject, Section

_log = logging.getLogger(__name__)

Holders = set[BrokerId]
"""Of one data object; shared by all partitions that have rows in it, so that a copy counts for all of them."""


class Partition:
    """The provisional tail of one partition, above its high watermark in the newest fold.

    Args:
        min_insync: effective ``min.insync.replicas``.
        leader_epoch: of the newest fold; the tail is void under another epoch.
        now_ms: the time from which on a replica without the whole tail lags, unless `since_ms` has it.
        since_ms: broker -> an earlier such time.
    """

    def __init__(
        self,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        min_insync: int,
        high_watermark: int,
        *,
        leader_epoch: int = 0,
        now_ms: int = 0,
        since_ms: Mapping[BrokerId, int] = MappingProxyType({}),
    ) -> None:
        self.replicas = tuple(replicas)
        self.min_insync = min_insync
        self.log_end_offset = high_watermark
        self.leader_epoch = leader_epoch
        self._isr = frozenset(isr)
        self._departed: frozenset[BrokerId] = frozenset()
        self._high_watermark = high_watermark
        self._tail: deque[tuple[int, Holders]] = deque()
        self._now_ms = now_ms
        self._since_ms = since_ms

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        """Return the in-sync brokers without those that leave with this append."""
        return self._isr - self._departed

    def append(self, row_count: int, holders: Holders) -> int:
        """Add N >= 1 rows to the tail and return the new log end offset."""
        assert row_count > 0, row_count
        self.log_end_offset += row_count
        self._tail.append((self.log_end_offset, holders))
        return self.log_end_offset

    def shrink(self, broker_id: BrokerId) -> None:
        """Take a broker out of the ISR, by the ENTRY that is being prepared."""
        self._departed |= {broker_id}

    def follow_shrink(self, isr: Collection[BrokerId]) -> None:
        """Stop waiting for replicas that left the ISR by another process's ENTRY; ignore those that joined."""
        if not self._isr.issubset(isr):
            self._isr = self._isr.intersection(isr)

    def is_joined_by(self, isr: Collection[BrokerId]) -> bool:
        """Return whether the newest fold has an in-sync replica that is not in sync here."""
        return not self._isr.issuperset(isr)

    def replica_end_offset(self, broker_id: BrokerId) -> int:
        """Return where the replica's log ends: before the first object that it lacks."""
        end = self._high_watermark
        for tail_end, holders in self._tail:
            if broker_id not in holders:
                break
            end = tail_end
        return end

    def has_all(self, broker_id: BrokerId) -> bool:
        """Return whether the replica ends where the log ends, or the partition does not wait for it."""
        return broker_id not in self.in_sync or self.replica_end_offset(broker_id) == self.log_end_offset

    def is_caught_up(self, broker_id: BrokerId, now_ms: int, lag_ms: int) -> bool:
        """Return whether the replica is at the log end, or has not been behind it for longer than ``lag_ms``."""
        return self.has_all(broker_id) or now_ms - self._since_ms.get(broker_id, self._now_ms) <= lag_ms

    def out_of_sync_replicas(self, now_ms: int, lag_ms: int) -> list[BrokerId]:
        """Return the in-sync replicas that lag, ascending: those that ``shrink`` should take out.

        Also the leader: it is a root like the others, and the rows that it lacks are elsewhere.
        """
        return [replica for replica in sorted(self.in_sync) if not self.is_caught_up(replica, now_ms, lag_ms)]

    def high_watermark(self) -> int:
        """Return the least end of the in-sync replicas; never falls, frozen below ``min_insync``."""
        in_sync = self.in_sync
        while self._tail and passes_high_watermark(self._tail[0][1], in_sync, self.min_insync):
            self._high_watermark = self._tail.popleft()[0]
        assert self._high_watermark <= self.log_end_offset
        return self._high_watermark

    def check_enough_replicas_reach_offset(self, required_offset: int) -> tuple[bool, ErrorCode | None]:
        """Return whether an append up to ``required_offset`` need not wait any longer, and its error.

        NOT_ENOUGH_REPLICAS if the high watermark has not reached the offset and cannot, because it is
        frozen: Kafka lets that append wait for its timeout.
        """
        is_enough = len(self.in_sync) >= self.min_insync
        if self.high_watermark() >= required_offset:
            return True, None if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return (False, None) if is_enough else (True, ErrorCode.NOT_ENOUGH_REPLICAS)


class LeaderAndIsr(NamedTuple):
    """A partition in the newest fold of this process."""

    leader_epoch: int
    isr: Collection[BrokerId]


LeaderLookup = Callable[[PartitionKey], LeaderAndIsr | ErrorCode]
"""A partition in the newest fold, or why it is not there."""


@dataclass(slots=True)
class ProducePartitionStatus:
    """What one partition of the append waits for."""

    required_offset: int
    """Exclusive end (last offset + 1) that every in-sync replica must reach."""
    acks_pending: bool = True
    error: ErrorCode | None = ErrorCode.REQUEST_TIMED_OUT
    """The answer if nothing else happens before the timeout; None once satisfied."""


class DelayedProduce(DelayedOperation):
    """Completes when no partition is pending. Holds offsets only, no rows.

    A pending partition ends with (A) the error of its lookup, if it no longer exists; (B)
    NOT_LEADER_OR_FOLLOWER, if its leader epoch has changed since the tail was made; (C) the result of
    ``Partition.check_enough_replicas_reach_offset`` for the replicas in sync by then; or REQUEST_TIMED_OUT.
    """

    __slots__ = ("_lookup", "_partitions", "statuses")

    def __init__(
        self,
        timeout_ms: int,
        partitions: Mapping[PartitionKey, Partition],
        statuses: Mapping[PartitionKey, ProducePartitionStatus],
        lookup: LeaderLookup,
    ) -> None:
        super().__init__(timeout_ms)
        self._partitions = partitions
        self._lookup = lookup
        self.statuses = statuses

    def try_complete(self) -> bool:
        """Look at each pending partition; complete when none is left."""
        is_pending = False
        for key, status in self.statuses.items():
            if status.acks_pending:
                is_done, error = self._judge(key, status.required_offset)
                if is_done:
                    status.acks_pending = False
                    status.error = error
                else:
                    is_pending = True
        return not is_pending and self.force_complete()

    def errors(self) -> dict[PartitionKey, ErrorCode]:
        """Return the partitions that failed, once completed."""
        return {key: status.error for key, status in self.statuses.items() if status.error is not None}

    def _judge(self, key: PartitionKey, required_offset: int) -> tuple[bool, ErrorCode | None]:
        partition = self._partitions[key]
        now = self._lookup(key)
        if isinstance(now, ErrorCode):
            return True, now
        if now.leader_epoch != partition.leader_epoch:
            return True, ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.follow_shrink(now.isr)
        return partition.check_enough_replicas_reach_offset(required_offset)


LOOK_INTERVAL_MS = 1_000
"""How often a waiting append folds the entries of other processes: one get per metadata root."""


@dataclass(slots=True)
class Replication:
    """What this append knows beyond the fold; guarded by ``lock``.

    Attributes:
        copied: object -> brokers that got a copy from us.
        departed: brokers that leave the ISR with this append's ENTRY, and why.
        lost: objects that no source delivered, and the brokers that should have.
        copied_after: of copies made here, the fold's last entry before they began.
        doubtful: holders of new objects that left the ISR since the puts began: their copies count once they were read.
        since_ms: brokers that lack something, and the time of the round since which they do. A new round does not
            reset it: otherwise, if ISRs change often, a root that is away would never leave.
    """

    copied: dict[ObjectId, set[BrokerId]] = field(default_factory=dict)
    departed: dict[BrokerId, str] = field(default_factory=dict)
    lost: dict[ObjectId, tuple[BrokerId, ...]] = field(default_factory=dict)
    copied_after: dict[tuple[ObjectId, BrokerId], int] = field(default_factory=dict)
    doubtful: dict[ObjectId, frozenset[BrokerId]] = field(default_factory=dict)
    since_ms: dict[BrokerId, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def holders(self, key: ObjectId, recorded: frozenset[BrokerId]) -> frozenset[BrokerId]:
        """Return the brokers that hold an object: those recorded and those copied to."""
        with self.lock:
            copied = self.copied.get(key)
            return recorded if copied is None else recorded | copied

    def doubt(self, state: TopicLedgerState, append: Append) -> Append:
        """Return an append without the holders that left since its puts began, and forget copies made before that.

        A root that is rebuilt leaves first, and its new disk has only the objects that entries name: not those that
        were put before and are decided after.
        """
        left = state.leadership.left_at
        with self.lock:
            for (key, broker_id), after in list(self.copied_after.items()):
                if left.get(broker_id, -1) > after:
                    del self.copied_after[key, broker_id]
                    self.copied[key].discard(broker_id)
            self.doubtful = {item.id: gone for item in append.objects if (gone := state.doubtful(item))}
        if not self.doubtful:
            return append
        none: frozenset[BrokerId] = frozenset()
        sure = ((item, item.holders - self.doubtful.get(item.id, none)) for item in append.objects)
        return replace(append, objects=tuple(replace(item, holders=self.holders(item.id, kept)) for item, kept in sure))

    def note_lacking(self, brokers: Collection[BrokerId], now_ms: int) -> set[int]:
        """Start the lag time of these brokers, unless it runs, and end that of all others; return the start times."""
        with self.lock:
            for gone in self.since_ms.keys() - set(brokers):
                del self.since_ms[gone]
            return {self.since_ms.setdefault(broker_id, now_ms) for broker_id in brokers} or {now_ms}

    def start_over(self) -> None:
        """Wait for all brokers again: with another leader, copies come from elsewhere."""
        with self.lock:
            self.departed.clear()
            self.since_ms.clear()

    def departures(self) -> dict[BrokerId, str]:
        """Return the brokers that leave as of now: running copies, also of an earlier round, may add more."""
        with self.lock:
            return dict(self.departed)


@dataclass(frozen=True, slots=True)
class ReplicationRound:
    """The provisional tail of one judgement: offsets, copies, missing copies, and brokers that leave."""

    partitions: Mapping[PartitionKey, Partition]
    statuses: Mapping[PartitionKey, ProducePartitionStatus]
    copies: Mapping[ObjectId, Holders]
    missing: tuple[tuple[CopyJob, BrokerId], ...]
    departed: Mapping[BrokerId, str]
    after_index: int = -1

    def errors(self) -> dict[PartitionKey, ErrorCode]:
        """Return the partitions that cannot be acknowledged now."""
        errors = {}
        for key, status in self.statuses.items():
            is_done, error = self.partitions[key].check_enough_replicas_reach_offset(status.required_offset)
            if error is not None or not is_done:
                errors[key] = error or ErrorCode.REQUEST_TIMED_OUT
        return errors


def partitions_of(state: TopicLedgerState, sections: Iterable[Section]) -> list[PartitionState]:
    """Return the partition of each section."""
    return [state.topics[section.topic_id].partitions[section.partition] for section in sections]


def is_replicated(state: TopicLedgerState, append: Append, replication: Replication) -> bool:
    """Return whether the append need not wait: the usual case, found without building a tail.

    False if an entry above the stable index holds everything back.
    """
    if state.stable_index != state.applied_index or replication.departed:
        return False
    topics = state.topics
    for item in append.objects:
        holders = replication.holders(item.id, item.holders) if replication.copied else item.holders
        for section in item.sections:
            partition = topics[section.topic_id].partitions[section.partition]
            if not passes_high_watermark(holders, partition.isr, partition.min_insync):
                return False
    return True


def plan_round(
    state: TopicLedgerState, ledger_id: LedgerId, append: Append, replication: Replication, now_ms: int
) -> ReplicationRound:
    """Build the provisional tail on a fold, called under the ledger's lock.

    A replica that misses something lags from `now_ms` (monotonic) on.
    """
    partitions: dict[PartitionKey, Partition] = {}
    copies: dict[ObjectId, Holders] = {}
    jobs: list[tuple[CopyJob, frozenset[BrokerId]]] = []
    departed = replication.departures()
    for topic in state.topics.values():
        for number, partition_state in enumerate(topic.partitions):
            if not topic.closed and partition_state.log_end_offset > partition_state.high_watermark:
                key = (topic.topic_id, number)
                partitions[key] = _tail_of(state, key, partition_state, replication, copies, now_ms)
    for missing in state.under_replicated():
        ref = missing.object
        holders = frozenset(_holders_of(ref, replication, copies))
        jobs.append((copy_job(ledger_id, ref, missing.sections, holders), frozenset(missing.missing) - holders))
    for item in append.objects:
        held_by = _holders_of(item, replication, copies)
        for section in item.sections:
            key = (section.topic_id, section.partition)
            partition = partitions.get(key)
            if partition is None:
                partition_state = state.topics[section.topic_id].partitions[section.partition]
                partition = partitions[key] = _tail_of(state, key, partition_state, replication, copies, now_ms)
            partition.append(section.row_count, held_by)
        lacking = frozenset[BrokerId]().union(*(part.isr for part in partitions_of(state, item.sections))) - held_by
        if lacking:
            job = copy_job(ledger_id, item, item.sections, held_by)
            doubtful = replication.doubtful.get(item.id, frozenset()) - held_by
            if doubtful:  # most still have their copy: look before writing
                job = replace(job, sources=(*job.sources, *sorted(doubtful)), may_exist=True)
            jobs.append((job, lacking))
    for partition in partitions.values():
        for broker_id in departed:
            partition.shrink(broker_id)
    return ReplicationRound(
        partitions,
        {key: ProducePartitionStatus(partition.log_end_offset) for key, partition in partitions.items()},
        copies,
        tuple((job, broker) for job, lacking in jobs for broker in sorted(lacking) if broker not in departed),
        departed,
        state.applied_index,
    )


def _holders_of(item: DataObject | ObjectRef, replication: Replication, copies: dict[ObjectId, Holders]) -> Holders:
    """Return the one set of an object: copies that end during a round must not give two views of the object."""
    holders = copies.get(item.id)
    if holders is None:
        holders = copies[item.id] = set(replication.holders(item.id, item.holders))
    return holders


def _tail_of(
    state: TopicLedgerState,
    key: PartitionKey,
    partition_state: PartitionState,
    replication: Replication,
    copies: dict[ObjectId, Holders],
    now_ms: int,
) -> Partition:
    partition = Partition(
        partition_state.replicas,
        partition_state.isr,
        partition_state.min_insync,
        partition_state.high_watermark,
        leader_epoch=partition_state.leader_epoch,
        now_ms=now_ms,
        since_ms=replication.since_ms,
    )
    for section in state.sections(*key, partition_state.high_watermark, partition_state.log_end_offset):
        partition.append(section.row_count, _holders_of(section.object, replication, copies))
    return partition


class WaitingRound:
    """One round while it runs. Its methods run in fetch threads, and in any thread that advances the purgatory.

    Args:
        known: gets new copies, losses and departures.
        fetcher: its ``replica.lag.time.max.ms`` and its clock say who is late.
        lookup: a partition in the newest fold.
        refresh: folds the entries of other processes.
    """

    def __init__(
        self,
        copy_round: ReplicationRound,
        replication: Replication,
        purgatory: DelayedOperationPurgatory,
        fetcher: ReplicaFetcher,
        lookup: LeaderLookup,
        refresh: Callable[[], object],
        timeout_ms: int,
    ) -> None:
        self._round, self._replication, self._lookup, self._refresh = copy_round, replication, lookup, refresh
        self._purgatory, self._fetcher, self._clock = purgatory, fetcher, fetcher.clock
        self._lag_ms = fetcher.config.replica_lag_time_max_ms
        self._operation = DelayedProduce(timeout_ms, copy_round.partitions, copy_round.statuses, lookup)
        self._is_overdue = False
        self._has_moved = False

    def run(self, help_late: Callable[[], bool]) -> dict[PartitionKey, ErrorCode] | None:
        """Copy what is missing and wait. Replicas that fail leave the ISR, late ones as ``leaving_replicas`` allows.

        Args:
            help_late: called now and then while late replicas are needed: elects without a source that hangs, or lets
                others join the ISR; returns whether this changed the fold.

        Returns:
            The partitions that were refused (NOT_ENOUGH_REPLICAS), did not get ready (REQUEST_TIMED_OUT), were
            deleted, or have another leader now. None: `help_late` changed the fold, or a replica has joined an ISR,
            so judge again.
        """
        current, operation, purgatory = self._round, self._operation, self._purgatory
        # A copy wakes by its object, an election by its partition.
        keys: list[Hashable] = [*(_watch_key(job) for job, _ in current.missing), *current.partitions] or [operation]
        if purgatory.try_complete_else_watch(operation, keys):
            return operation.errors()
        # A replica may be late by lag_ms: it leaves after that, not at it.
        now_ms = self._clock.monotonic_ms()
        since_ms = self._replication.note_lacking({target for _, target in current.missing}, now_ms)
        due_ms = sorted(start_ms + self._lag_ms + 1 for start_ms in since_ms)
        if due_ms[0] <= now_ms:
            self._on_overdue()
        lag_timers = [purgatory.timer.add(at_ms, self._on_overdue) for at_ms in due_ms if at_ms > now_ms]
        missing = [(job, target) for job, target in current.missing if target not in self._replication.departures()]
        copies = [self._fetcher.submit(job, target, self._on_copied) for job, target in missing]
        # A look may wait for a hung root and delay timers, so it comes after the lag timer, not right before.
        first_look_ms = (self._lag_ms - 1) % LOOK_INTERVAL_MS + 2
        try:
            purgatory.await_completion(operation, partial(self._look, help_late), LOOK_INTERVAL_MS, first_look_ms)
        finally:
            operation.force_complete()  # if a look has failed
            for timer in lag_timers:
                purgatory.timer.cancel(timer)
            for future in copies:  # do not begin copies that are no longer needed
                future.cancel()
        errors = operation.errors()
        return None if self._has_moved or (errors and self._is_joined()) else errors

    def _on_copied(self, job: CopyJob, target: BrokerId, error: Exception | None) -> None:
        replication = self._replication
        if error is None:
            with replication.lock:
                replication.copied.setdefault(job.id, set()).add(target)
                replication.copied_after[job.id, target] = self._round.after_index
                self._round.copies[job.id].add(target)
                if all(partition.has_all(target) for partition in self._round.partitions.values()):
                    replication.since_ms.pop(target, None)
            if self._is_overdue:
                self._let_late_leave()
        elif isinstance(error, ReplogError) and "sources" in error.context:
            with replication.lock:
                replication.lost[job.id] = job.sources
            self._operation.force_complete()  # its leader is lost: waiting cannot help
        else:
            self._depart(target, str(error))
        self._purgatory.check_and_complete(_watch_key(job))

    def _on_overdue(self) -> None:
        self._is_overdue = True
        self._let_late_leave()
        self._operation.safe_try_complete()

    def _let_late_leave(self) -> None:
        now_ms, lag_ms = self._clock.monotonic_ms(), self._lag_ms
        partitions = self._round.partitions.values()
        with self._replication.lock:
            late = {broker_id for part in partitions for broker_id in part.out_of_sync_replicas(now_ms, lag_ms)}
        for broker_id in late:  # also as a source: another holder is read first
            self._fetcher.distrust(broker_id)
        for broker_id in leaving_replicas(late, [(part.in_sync, part.min_insync) for part in partitions]):
            self._depart(broker_id, f"it has not caught up within {lag_ms} ms")

    def _depart(self, broker_id: BrokerId, reason: str) -> None:
        replication = self._replication
        with replication.lock:
            is_news = replication.departed.setdefault(broker_id, reason) is reason
            for partition in self._round.partitions.values():  # also if a late copy of an earlier round came first
                partition.shrink(broker_id)
        self._fetcher.distrust(broker_id)
        if is_news:
            _log.info("broker %d is not waited for any more: %s", broker_id, reason)

    def _look(self, help_late: Callable[[], bool]) -> None:
        """Fold ISR changes and elections of other processes; while late replicas are needed, try to help."""
        try:
            self._refresh()
        except ReplogError as error:
            _log.info("an append that waits for copies could not look for newer entries: %s", error)
        if not self._operation.is_completed and self._is_overdue and (self._is_joined() or help_late()):
            self._has_moved = True
            self._operation.force_complete()
        self._operation.safe_try_complete()

    def _is_joined(self) -> bool:
        """Return whether a replica has joined an ISR by another process's ENTRY: with it, late ones may leave."""
        lookups = ((partition, self._lookup(key)) for key, partition in self._round.partitions.items())
        return any(not isinstance(now, ErrorCode) and partition.is_joined_by(now.isr) for partition, now in lookups)


def _watch_key(job: CopyJob) -> tuple[LedgerId, ObjectId]:
    return job.ledger_id, job.id
