"""What keeps a ledger from growing, a bounded part at a time: retention, generations, garbage, inline rows.

Commits do it in the background, ``replog coordinator run`` in its rounds; any number of processes may.
"""

from __future__ import annotations

import logging
from itertools import islice

from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.catch_up import BackgroundRuns
from spark_replog.commit.retention import GENERATION_OBJECTS_MAX, decide_upkeep
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.object_table import INLINE_BYTES_MAX
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.logs import warn_of_upkeep
from spark_replog.maintenance.compaction import Compactor
from spark_replog.maintenance.garbage import GarbageCollector, GarbageFile, Why
from spark_replog.maintenance.scrub import AwayRoots
from spark_replog.storage.paths import data_folder

_log = logging.getLogger(__name__)
INLINE_ROOM_BYTES_MIN = INLINE_BYTES_MAX // 2
"""With less room, inline rows are moved into data objects."""
MOVE_PAUSE_MS = 1_000
"""After a look that found no inline rows to move: another one at once would not help."""
MOVE_FAILED_PAUSE_MS = 60_000
"""After rows could not be moved: each try may leave a copy on the roots that take one."""
GARBAGE_PAUSE_MS = 30_000
"""Between two looks for objects whose rows are gone: they go within a minute after ``file.delete.delay.ms``."""
DELETES_MAX = 2_000
"""Of one run, on one root and of either kind; the next commit continues."""


class Upkeep:
    """Thread safe; one per cluster and process is enough."""

    def __init__(self, cluster: Cluster, config: CoordinatorConfig | None = None) -> None:
        self._cluster = cluster
        self._config = config or cluster.config
        self._next_ms: dict[LedgerId, int] = {}
        self._next_move_ms: dict[LedgerId, int] = {}
        self._next_delete_ms: dict[LedgerId, int] = {}
        self._swept: dict[tuple[LedgerId, BrokerId], tuple[int, int]] = {}
        self._emptied: set[LedgerId] = set()
        self._half_emptied: set[LedgerId] = set()
        self._next_again_ms = 0
        self._away = AwayRoots(cluster.clock)
        self._runs = BackgroundRuns(self.run)
        self._moves = BackgroundRuns(self._move_inline)
        self._deletes = BackgroundRuns(self._delete_dropped)

    def start(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Begin a run in the background, if one is due: every ``log.retention.check.interval.ms``.

        Inline rows do not wait for it: without room for them each small send costs one call more. Objects without rows
        do not, either: compaction leaves as many as it joins.
        """
        if self._is_crowded(ledger):
            self._moves.start(ledger)
        if self._take_turn(ledger):
            self._runs.start(ledger)
        elif self._has_garbage(ledger):
            self._deletes.start(ledger)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for the runs in the background; return whether none is left."""
        return all(runs.wait(timeout_ms) for runs in (self._moves, self._deletes, self._runs))

    def run_if_due(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Make a run now, if one is due, and write the snapshot that commits have left out."""
        self._move_inline(ledger)
        if self._take_turn(ledger):
            self.run(ledger)
        elif self._has_garbage(ledger, is_found_by_snapshot=True):
            self._derive(ledger)
            self._delete_dropped(ledger)
        else:
            return
        try:
            ledger.snapshot(timeout_ms=self._config.delivery_timeout_ms)
        except ReplogError as error:
            warn_of_upkeep(_log, ledger.ledger_id, "there is no newer snapshot", error)

    def run(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Delete some of the garbage, then decide what retention takes. Raises nothing: a later run repeats it.

        Deleting comes first, since it works where a full disk takes no entry.
        """
        try:
            self._derive(ledger)
            self._delete_dropped(ledger)
            is_done = True
            for broker_id in self._cluster.brokers.broker_ids:
                is_done &= self._sweep(ledger, broker_id)
            if not is_done:
                self._next_ms.pop(ledger.ledger_id, None)
            config, clock_ms = self._config, self._cluster.clock.now_ms()
            now_ms = self._cluster.retention_now_ms(ledger)
            decide_upkeep(ledger, now_ms, clock_ms, config.gc_floor_lag_ms, config.delivery_timeout_ms)
            self._collect_deleted()
            ledger.collect()
        except ReplogError as error:
            warn_of_upkeep(_log, ledger.ledger_id, "retention is left to a later commit", error)

    def _is_crowded(self, ledger: Ledger[TopicLedgerState]) -> bool:
        with ledger.lock:
            room_bytes = ledger.state.inline_room_bytes
        now_ms = self._cluster.clock.monotonic_ms()
        return room_bytes < INLINE_ROOM_BYTES_MIN and now_ms >= self._next_move_ms.get(ledger.ledger_id, 0)

    def _move_inline(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Move inline rows into data objects, if others need their room. Raises nothing: a later commit tries again."""
        if not self._is_crowded(ledger):
            return
        moved_count, pause_ms = 0, MOVE_PAUSE_MS
        try:
            moved_count = Compactor(self._cluster).move_inline(ledger).run_count
        except ReplogError as error:
            pause_ms = MOVE_FAILED_PAUSE_MS
            warn_of_upkeep(_log, ledger.ledger_id, "inline rows stay in its entries for now", error)
        if not moved_count:
            self._next_move_ms[ledger.ledger_id] = self._cluster.clock.monotonic_ms() + pause_ms

    def _take_turn(self, ledger: Ledger[TopicLedgerState]) -> bool:
        """Return whether a run is due. A full generation does not wait: its folder must not grow on."""
        now_ms = self._cluster.clock.monotonic_ms()
        with ledger.lock:
            is_full = ledger.state.generations.object_count >= GENERATION_OBJECTS_MAX
        if not is_full and now_ms < self._next_ms.get(ledger.ledger_id, 0):
            return False
        self._next_ms[ledger.ledger_id] = now_ms + self._config.log_retention_check_interval_ms
        return True

    def _collect_deleted(self) -> None:
        """Collect in one ledger whose topics were all deleted, each once in this process: it gets no more commits.

        Those where a root failed come again once there are no others, one in each interval.
        """
        now_ms = self._cluster.clock.monotonic_ms()
        with self._cluster.cluster_ledger.lock:
            state = self._cluster.cluster_ledger.state
            candidates = state.ledger_ids() - {ledger_id for _, ledger_id in state.topics.values()}
        again = candidates & self._half_emptied if now_ms >= self._next_again_ms else set()
        for ledger_id in sorted(candidates - self._emptied or again)[:1]:
            self._emptied.add(ledger_id)
            collector = GarbageCollector(self._cluster)
            collector.run_ledger(ledger_id)
            self._half_emptied.discard(ledger_id)
            if collector.report.failures:
                self._half_emptied.add(ledger_id)
                self._next_again_ms = now_ms + self._config.log_retention_check_interval_ms
            self._cluster.close_ledger(ledger_id)

    def _has_garbage(self, ledger: Ledger[TopicLedgerState], *, is_found_by_snapshot: bool = False) -> bool:
        """Return whether it is time to look for objects without rows, and there are any.

        Those that a snapshot finds count only if the caller writes one.
        """
        if self._cluster.clock.monotonic_ms() < self._next_delete_ms.get(ledger.ledger_id, 0):
            return False
        due_ms = self._cluster.clock.now_ms() - self._config.file_delete_delay_ms
        with ledger.lock:
            state = ledger.state
            return state.has_due_objects(due_ms) or (is_found_by_snapshot and state.has_gone_rows)

    def _derive(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Learn which objects other processes' snapshots found; a commit's quick look leaves these to them."""
        try:
            if ledger.snapshots is not None:
                ledger.snapshots.derive()
        except ReplogError as error:
            warn_of_upkeep(_log, ledger.ledger_id, "some garbage is left to a later commit", error)

    def _delete_dropped(self, ledger: Ledger[TopicLedgerState]) -> None:
        """Delete objects whose rows are gone for ``file.delete.delay.ms``. Raises nothing: a later run repeats it.

        A root that does not answer keeps its copies until the floor has passed them.
        """
        now_ms = self._cluster.clock.monotonic_ms()
        self._next_delete_ms[ledger.ledger_id] = now_ms + GARBAGE_PAUSE_MS
        due_ms = self._cluster.clock.now_ms() - self._config.file_delete_delay_ms
        with ledger.lock:
            due = [object_id for object_id, at_ms in ledger.state.dropped_objects().items() if at_ms <= due_ms]
        for broker_id in self._cluster.brokers.broker_ids if due else ():
            self._delete(ledger, broker_id, due[:DELETES_MAX])
        with ledger.lock:
            ledger.state.forget_dropped(due[:DELETES_MAX])
        if len(due) > DELETES_MAX:
            self._next_delete_ms[ledger.ledger_id] = now_ms

    def _delete(self, ledger: Ledger[TopicLedgerState], broker_id: BrokerId, ids: list[ObjectId]) -> None:
        files = (GarbageFile(broker_id, ledger.ledger_id, object_id, 0, Why.DROPPED, None) for object_id in ids)
        try:
            self._away.check(broker_id)
            self._cluster.brokers.check_root(broker_id)
            GarbageCollector(self._cluster).delete(broker_id, files)
        except ReplogError as error:
            self._away.note(broker_id, error)
            _log.info("broker %d keeps garbage until the floor has passed it: %s", broker_id, error)

    def _sweep(self, ledger: Ledger[TopicLedgerState], broker_id: BrokerId) -> bool:
        """Collect in the next generation below the floor, the newest first, each once for each floor.

        Returns whether this run has done its part.
        """
        with ledger.lock:
            floor = ledger.state.generations.floor
        swept_floor, generation = self._swept.get((ledger.ledger_id, broker_id), (0, 0))
        if swept_floor != floor:
            generation = floor
        if generation <= 0:
            return True
        generation -= 1
        try:
            self._away.check(broker_id)
            self._cluster.brokers.check_root(broker_id)
            collector = GarbageCollector(self._cluster)
            files = list(islice(collector.find(ledger, broker_id, {}, generation), DELETES_MAX + 1))
            collector.delete(broker_id, iter(files[:DELETES_MAX]))
            if len(files) > DELETES_MAX:
                return False
            self._cluster.brokers.store(broker_id).delete(data_folder(ledger.ledger_id, generation))
        except ReplogError as error:
            self._away.note(broker_id, error)
            _log.info("garbage on broker %d is left to a later commit: %s", broker_id, error)
            return True
        self._swept[ledger.ledger_id, broker_id] = (floor, generation)
        return True
