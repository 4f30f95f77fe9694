"""Deletes data objects that no row needs and that no entry can name again. Needs neither clocks nor locks; ADR 24.

Garbage is of two kinds:

* An object of a generation below the decided floor that no live row names. The fold refuses each later entry that
  names it. A retry, a killed or an aborted write left it, or its rows are gone.
* An object whose last row is gone, as the fold knows: the log start passed the row, its topic was deleted, or
  compaction replaced the object. The append is known, so a repeated one is a duplicate. The heads of snapshots keep
  these objects, so every process deletes them.

Garbage remains garbage. So a collector may stop at any point, may be slow, and may run beside others.

A live object stays on every broker that has it: a broker that becomes a replica later counts as its holder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.retention import decide_upkeep, hurried_generation, is_dead, raise_floor
from spark_replog.errors import ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import OBJECT_NAME, BrokerId, LedgerId, ObjectId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.frozen_topics import FrozenTopics
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.logs import event
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import ObjectInfo
from spark_replog.storage.paths import all_data_folder, data_folder, data_key

_LOG = logging.getLogger(__name__)
_CHUNK = 100
_CHUNKS_AHEAD = 16
_EMPTY_FOLDERS_MAX = 1_000
SNAPSHOT_ATTEMPTS = 3


class Why(Enum):
    """Why a file is garbage."""

    BELOW_FLOOR = "no live row names it, and the floor of generations has passed it"
    DROPPED = "all of its rows were deleted"


class GarbageFile(NamedTuple):
    """One file that may be deleted."""

    broker_id: BrokerId
    ledger_id: LedgerId
    id: ObjectId
    size_bytes: int
    why: Why
    since_ms: int | None
    """The ledger's append time when the last row was deleted, or when the floor's generation began; None: unknown."""

    @property
    def key(self) -> str:
        """Return its key on its root."""
        return data_key(self.ledger_id, *self.id)


@dataclass(slots=True)
class GarbageReport:
    """What a run found (dry run) or deleted: files and their bytes, by broker and reason.

    Attributes:
        temp_files: number of files that interrupted writers left, by broker.
        snapshot_files: number of files of the ledgers' older snapshots, on all roots.
        failures: (broker id, error) of each root that a later run must do; broker id -1: a ledger failed.
    """

    files: Counter[tuple[BrokerId, Why]] = field(default_factory=Counter)
    size_bytes: Counter[tuple[BrokerId, Why]] = field(default_factory=Counter)
    temp_files: Counter[BrokerId] = field(default_factory=Counter)
    snapshot_files: int = 0
    failures: list[tuple[BrokerId, ReplogError]] = field(default_factory=list)

    def count(self, files: Iterable[GarbageFile]) -> None:
        """Add files."""
        for file in files:
            self.files[file.broker_id, file.why] += 1
            self.size_bytes[file.broker_id, file.why] += file.size_bytes


def _ignore(_: object) -> None:
    pass


class GarbageCollector:
    """One run at a time; any number of collectors may run beside each other.

    Args:
        on_file: called with each file before it is deleted.
        on_progress: called with the report after each chunk of deleted files and after each root of each ledger.
        is_dry_run: find files, change nothing.
        is_floor_raised: include files that writers put within the last ``gc.floor.lag.ms``: see `raise_floor`.
        age_ms: with `is_floor_raised`: files of writes that began later than this ago stay.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        on_file: Callable[[GarbageFile], None] = _ignore,
        on_progress: Callable[[GarbageReport], None] = _ignore,
        is_dry_run: bool = False,
        is_floor_raised: bool = False,
        age_ms: int = 0,
    ) -> None:
        self._cluster = cluster
        self._on_file = on_file
        self._on_progress = on_progress
        self._is_dry_run = is_dry_run
        self._is_floor_raised = is_floor_raised
        self._age_ms = age_ms
        self.report = GarbageReport()

    def run(self) -> GarbageReport:
        """Collect in the whole store. A root or ledger that fails is reported and left to a later run.

        In each ledger the garbage that is known is deleted before a new entry is written: on a full disk an entry needs
        the space. Raises REPLOG_NO_QUORUM if the cluster ledger cannot be read.
        """
        self._cluster.refresh()
        for ledger_id in self._cluster.cluster_ledger.ask(lambda state: sorted(state.ledger_ids())):
            self.run_ledger(ledger_id)
        try:
            self.report.snapshot_files += self._cluster.cluster_ledger.collect(is_dry_run=self._is_dry_run)
        except ReplogError as error:
            self.report.failures.append((-1, error))
        for broker_id in self._cluster.brokers.broker_ids:
            self._guarded(broker_id, self._sweep_temp_files, broker_id)
        return self.report

    def run_ledger(self, ledger_id: LedgerId) -> None:
        """Collect in one ledger. A failure is reported, not raised; see `run`."""
        ledger = self._cluster.topic_ledger(ledger_id)
        try:
            ledger.refresh()
            if ledger.snapshots is not None:
                ledger.snapshots.derive()
            self.collect(ledger)
            if not self._is_dry_run and self._decide(ledger):
                self.collect(ledger)
            self.report.snapshot_files += ledger.collect(is_dry_run=self._is_dry_run)
        except ReplogError as error:
            self.report.failures.append((-1, error))

    def collect(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Delete the garbage that the newest fold of one ledger shows, on every root that answers."""
        with ledger.lock:
            floor, dropped = ledger.state.generations.floor, ledger.state.dropped_objects()
        if self._is_dry_run:
            dropped |= _found_by_snapshot(ledger)
        failure_count = len(self.report.failures)
        for broker_id in self._cluster.brokers.broker_ids:
            self._guarded(broker_id, self._collect_root, ledger, broker_id, dropped)
            if not self._is_dry_run:
                oldest = max(floor - _EMPTY_FOLDERS_MAX, 0)
                folders = [data_folder(ledger.ledger_id, generation) for generation in range(oldest, floor)]
                self._guarded(broker_id, self._delete_keys, broker_id, folders)
            self._on_progress(self.report)
        if not self._is_dry_run and len(self.report.failures) == failure_count:
            with ledger.lock:
                ledger.state.forget_dropped(dropped)

    def find(
        self,
        ledger: Ledger[TopicLedgerState],
        broker_id: BrokerId,
        dropped: Mapping[ObjectId, int],
        generation: int | None = None,
    ) -> Iterator[GarbageFile]:
        """Yield the garbage of a ledger on one root, in one generation or in all; never a file with a foreign name.

        Args:
            dropped: objects without rows, with the append time (ms) when the last row was deleted.
        """
        ledger_id = ledger.ledger_id
        prefix = all_data_folder(ledger_id) if generation is None else data_folder(ledger_id, generation)
        listed = self._cluster.brokers.store(broker_id).list_keys(prefix)
        for folder, infos in groupby(listed, key=lambda info: info.key.rpartition("/")[0]):
            number = folder.rpartition("/")[2]
            if not number.isdecimal() or data_folder(ledger_id, int(number)) != f"{folder}/":
                continue
            # Ask one fold for the floor and the rows: a fold restored from a snapshot may be older than the one before.
            is_below, needed, since_ms = ledger.ask(partial(self._needed, int(number)))
            for info in infos:
                item = _object_id(int(number), info)
                if item is None:
                    continue
                why: tuple[Why, int | None]
                if item in dropped:
                    why = Why.DROPPED, dropped[item]
                elif is_below and item.name not in needed:
                    why = Why.BELOW_FLOOR, since_ms
                else:
                    continue
                yield GarbageFile(broker_id, ledger_id, item, info.size_bytes, *why)

    def _needed(self, generation: int, state: TopicLedgerState) -> tuple[bool, AbstractSet[str], int | None]:
        """Return whether a generation is below the floor, the names its live rows need, and when the floor's began."""
        floor = state.generations.floor
        if self._is_floor_raised and self._is_dry_run:
            advance = hurried_generation(state, self._cluster.clock.now_ms(), self._age_ms)
            floor = floor if advance is None else advance.floor
        is_below = generation < floor
        needed = state.referenced_objects(generation) if is_below else frozenset[str]()
        return is_below, needed, state.generations.began_ms.get(floor)

    def _decide(self, ledger: Ledger[TopicLedgerState]) -> bool:
        """Apply retention and raise the floor where that is due; return whether there may be more garbage now.

        A ledger whose topics are all deleted gets no more rows: its floor passes all of its objects.
        """
        config, clock_ms = self._cluster.config, self._cluster.clock.now_ms()
        with ledger.lock:
            index, is_dead_known = ledger.state.applied_index, is_dead(ledger.state)
        now_ms = self._cluster.retention_now_ms(ledger)
        decide_upkeep(ledger, now_ms, clock_ms, config.gc_floor_lag_ms, config.delivery_timeout_ms)
        if self._is_floor_raised:
            raise_floor(ledger, config.delivery_timeout_ms, now_ms=clock_ms, age_ms=self._age_ms)
        elif is_dead_known:
            raise_floor(ledger, config.delivery_timeout_ms, is_dead)
        fault_point("gc.decided")
        for _ in range(SNAPSHOT_ATTEMPTS):  # another process's may be decided first
            if ledger.ask(lambda state: state.has_gone_rows):
                ledger.snapshot(timeout_ms=config.delivery_timeout_ms)
        return ledger.ask(lambda state: state.applied_index != index)

    def _collect_root(
        self, ledger: Ledger[TopicLedgerState], broker_id: BrokerId, dropped: Mapping[ObjectId, int]
    ) -> None:
        self._cluster.brokers.check_root(broker_id)
        self.delete(broker_id, self.find(ledger, broker_id, dropped))

    def delete(self, broker_id: BrokerId, files: Iterator[GarbageFile]) -> None:
        """Delete files of one root, several at a time, until it fails. Counts what is gone and logs it as one event."""
        pending: list[tuple[Future[None], list[GarbageFile]]] = []
        lane = f"garbage {self._cluster.brokers.url(broker_id)}"
        gone: Counter[tuple[LedgerId, Why]] = Counter()

        def finish(count_max: int) -> None:
            while len(pending) > count_max:
                future, chunk = pending.pop(0)
                future.result()
                self.report.count(chunk)
                gone.update((file.ledger_id, file.why) for file in chunk)
                self._on_progress(self.report)

        try:
            while chunk := list(islice(files, _CHUNK)):
                for garbage_file in chunk:
                    self._on_file(garbage_file)
                if self._is_dry_run:
                    self.report.count(chunk)
                    continue
                fault_point("gc.delete")
                pending.append(
                    (IO_POOL.submit_to(lane, self._delete_keys, broker_id, [file.key for file in chunk]), chunk)
                )
                finish(_CHUNKS_AHEAD)
            finish(0)
        finally:
            for (ledger_id, why), count in gone.items():
                words = f"deleted {count:,} data objects on broker {broker_id}: {why.value}"
                event(_LOG, "garbage_delete", words, {"ledger": ledger_id, "broker": broker_id, "files": count})

    def _delete_keys(self, broker_id: BrokerId, keys: Iterable[str]) -> None:
        store = self._cluster.brokers.store(broker_id)
        for key in keys:
            store.delete(key)

    def _sweep_temp_files(self, broker_id: BrokerId) -> None:
        count = self._cluster.brokers.sweep_temp_files(broker_id, is_dry_run=self._is_dry_run)
        self.report.temp_files[broker_id] = count

    def _guarded(self, broker_id: BrokerId, call: Callable[..., None], *arguments: object) -> None:
        """Call, unless the root failed earlier in this run: a root that hangs costs one timeout a run."""
        if all(failed != broker_id for failed, _ in self.report.failures):
            try:
                call(*arguments)
            except ReplogError as error:
                self.report.failures.append((broker_id, error))


def _found_by_snapshot(ledger: Ledger[TopicLedgerState]) -> dict[ObjectId, int]:
    """Return the objects whose last rows in pages are gone, and the time of the last append (ms)."""
    snapshots = ledger.snapshots if ledger.ask(lambda state: state.has_gone_rows) else None
    frozen = None if snapshots is None else snapshots.look_ahead()
    return dict.fromkeys(frozen.made.dead, frozen.tables.now_ms) if isinstance(frozen, FrozenTopics) else {}


def _object_id(generation: int, info: ObjectInfo) -> ObjectId | None:
    name = info.key.rpartition("/")[2]
    return ObjectId(generation, name) if name.endswith(".arrow") and OBJECT_NAME.fullmatch(name) else None
