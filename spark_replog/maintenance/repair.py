"""Repairs roots: rebuilds lost ones, and copies bad and missing objects from good replicas.

A lost root is one without its ``replog.json``. It is rebuilt in an order that keeps everybody off it until
it is whole: it leaves the in-sync replicas, its journals are written by backfill (``ledger.journal_rebuild``),
its data objects are copied and verified, and only then it gets its root file; last it joins the in-sync
replicas. A run that was interrupted is finished by the next one. Runs in ``replog store repair``.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TypeVar

from spark_replog.clock import SYSTEM_RANDOM
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.failover import warn_of_cut
from spark_replog.commit.replica_fetcher import CopyJob, ReplicaFetcher, copy_job, damage
from spark_replog.commit.replication import partitions_of
from spark_replog.commit.state_changes import failover_commands, live_partitions
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError, RetriableError, UnsupportedFormatError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, new_root_id
from spark_replog.ledger.journal_rebuild import JournalRebuild, copy_snapshots
from spark_replog.ledger.ledger import Ledger
from spark_replog.ledger.reader import REBUILD_ROUND_STEP
from spark_replog.ledger.record import NO_INDEX
from spark_replog.ledger.types import JournalRoot, LedgerSettings, Proposed
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.partition_state import SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import BrokerRegister, IsrChange, Truncate
from spark_replog.maintenance.journal_repair import drop_torn_tails, find_lost_of_pair, rebuild_one_of_pair, torn_tails
from spark_replog.maintenance.journal_scrub import BAD_JOURNALS, JournalFinding, JournalReport, scrub_journals
from spark_replog.maintenance.scrub import Frame, read_frame, right_frame, unreferenced
from spark_replog.maintenance.snapshot_scrub import SnapshotScrub
from spark_replog.quorum import majority_of
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.mount_table import file_system_of
from spark_replog.storage.paths import REBUILD_KEY, ROOT_FILE_KEY, data_folder, ledger_folders, out_key
from spark_replog.storage.root_file import RootFile, encode_rebuild, encode_root_file, read_rebuild, read_root

_log = logging.getLogger(__name__)

OWN_ATTEMPTS_MAX = 20
LEVEL_MS = 300_000
"""How long one repair gives the roots of a ledger the entries that they lack; the next one goes on."""
OWN_WAIT_MS_MAX = 2000.0
"""Temp files of posix roots are swept from this age on. Losing one fails the write that made it, if that
still runs, and loses nothing that was acknowledged."""
_State = TypeVar("_State", ClusterLedgerState, TopicLedgerState)
Progress = Callable[[BrokerId, str, int, int], None]
"""(broker, what: "journal" or "objects", done, in all)."""


class RootCondition(Enum):
    """How a root was found."""

    OK = "ok"
    LOST = "lost"
    """It has no ``replog.json``."""
    STALE = "stale"
    """It has its ``replog.json`` and is to be rebuilt: it went back in time, has a bad journal, or the caller named
    it."""
    UNREACHABLE = "unreachable"
    FOREIGN = "foreign"
    """Its ``replog.json`` is damaged, or is not the one that the cluster has for the broker."""


@dataclass(slots=True)
class RootRepair:
    """What was done for one root.

    Attributes:
        condition: as it was found.
        snapshot_files: heads and pages copied to it, and bad ones deleted that no snapshot needs.
        object_count: data objects copied to it, of ``copied_bytes``.
        temp_files: old ones removed.
        is_repaired: whether it is whole now, and in every in-sync set that it belongs to; else ``detail`` says why not.
        note: for a root to rebuild, what there is at its URL now.
        root_id: of its ``replog.json`` as it was found.
    """

    broker_id: BrokerId
    condition: RootCondition
    journal_records: int = 0
    snapshot_files: int = 0
    object_count: int = 0
    copied_bytes: int = 0
    temp_files: int = 0
    is_repaired: bool = False
    detail: str = ""
    note: str = ""
    root_id: str | None = None


@dataclass(slots=True)
class RepairReport:
    """What a repair did."""

    roots: dict[BrokerId, RootRepair] = field(default_factory=dict)
    lost_objects: list[str] = field(default_factory=list)
    """Names of data objects without one good copy, where every holder was read: their rows are gone."""


@dataclass(frozen=True, slots=True)
class _Needed:
    """An object that live partitions need, and the brokers that should have it: replicas and holders."""

    job: CopyJob
    brokers: frozenset[BrokerId]
    holders: frozenset[BrokerId]
    """Those that the log knew before the copies were looked at."""


class StoreRepair:
    """One repair of one store. Other processes may write and read at the same time.

    Args:
        config: ``num.replica.fetchers``, ``follower.replication.throttled.rate``.
        deep: read every copy whole; else only copies that are missing or of a wrong size are repaired.
        rebuild: brokers to treat as lost although their root file is there: roots that were put back from a backup and
            so forgot what they had promised. Those that a process caught at it need not be named.
        on_progress: see ``Progress``.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: CoordinatorConfig | None = None,
        *,
        deep: bool = False,
        rebuild: frozenset[BrokerId] = frozenset(),
        on_progress: Progress = lambda *_: None,
    ) -> None:
        self._cluster = cluster
        self._brokers = cluster.brokers
        self._config = config or cluster.config
        self._deep = deep
        self._rebuild = rebuild
        self._on_progress = on_progress
        self._fetcher = ReplicaFetcher(self._brokers, self._config, clock=cluster.clock)
        self._catch_up = CatchUp(self._fetcher)
        self._report = RepairReport()
        self._verified: dict[tuple[BrokerId, LedgerId], set[ObjectId]] = {}
        self._looked_after: dict[LedgerId, int] = {}
        """The last entry folded before the copies of its objects were looked at."""
        self._lost: dict[str, frozenset[BrokerId]] = {}
        """Objects without one good copy -> their holders when they were looked at."""
        self._frames: dict[BrokerId, Frame | str] = {}
        """Of the copies of one object that were read and have all rows."""

    def plan(self) -> list[RootRepair]:
        """Return how each root is found, by broker; changes nothing.

        Raises REPLOG_NO_QUORUM if of three metadata roots or more too few answer.
        """
        roots = self._look_at_all()
        torn_count = sum(self._note_torn_tails(root) for root in roots)
        if not torn_count and find_lost_of_pair(self._brokers) is None:
            self._cluster.refresh()
            roots = self._look_at_all()  # knowing what is registered
            self._judge_journals(roots)
        for root in roots:
            if root.condition is RootCondition.LOST:
                root.note = self._what_is_there(root.broker_id)
        return roots

    def run(self) -> RepairReport:
        """Repair what can be reached.

        Raises REPLOG_NO_QUORUM if too few metadata roots are left to know what was decided, or would be without those
        to rebuild. Every root file is where it was.
        """
        torn = drop_torn_tails(self._brokers)
        pair = find_lost_of_pair(self._brokers)
        records = 0
        if pair is not None:
            on_record, leave = partial(self._on_progress, pair[0], "journal"), partial(self._leave_pair, pair[0])
            records = rebuild_one_of_pair(self._brokers, *pair, on_record, leave)
        self._cluster.refresh()
        roots = {root.broker_id: root for root in self._look_at_all()}
        metadata = self._brokers.metadata_broker_ids
        whole = [number for number in metadata if roots[number].condition is RootCondition.OK and number not in torn]
        if len(metadata) > 2 and len(whole) >= majority_of(len(metadata)):
            for broker_id in torn:  # the others name records that it has no more
                roots[broker_id].condition = RootCondition.STALE
        self._judge_journals(list(roots.values()))
        self._give_up_stale(roots)
        self._report.roots = roots
        ledger_ids = self._ledger_ids()
        for root in roots.values():
            if root.condition is RootCondition.LOST:
                self._attempt(root, partial(self._rebuild_journals, root, ledger_ids))
        if pair is not None:
            roots[pair[0]].condition, roots[pair[0]].journal_records = RootCondition.LOST, records
        conditions = RootCondition.OK, RootCondition.LOST
        usable = [repair for repair in roots.values() if repair.condition in conditions and not repair.detail]
        self._repair_snapshots()
        self._restore_objects(usable, ledger_ids)
        self._cut_lost(ledger_ids)
        for root in usable:
            self._attempt(root, partial(self._finish, root, ledger_ids))
        if len(metadata) > 2:  # of two journals each has all that is decided
            self._level([repair for repair in usable if repair.broker_id in metadata], ledger_ids)
        for root in usable:
            root.is_repaired = not root.detail
        return self._report

    def _level(self, usable: list[RootRepair], ledger_ids: list[LedgerId]) -> None:
        """Give metadata roots all entries that they lack; last of all, since a late one misses the repair's own too."""
        cluster = self._cluster
        if any(root.condition is RootCondition.LOST for root in usable):
            # To this process's ledgers a root that went back in time is out for good, as to any other's.
            options, config = cluster.storage_options, cluster.config
            cluster = Cluster(
                self._brokers, path=cluster.path, storage_options=options, config=config, clock=cluster.clock
            )
        for ledger_id in (self._brokers.cluster_id, *ledger_ids):
            broker_ids = {root.broker_id for root in usable if not root.detail}
            try:
                left = self._leveled(cluster, ledger_id, broker_ids)
                why = f"its journal of ledger {ledger_id} still lacks entries. Repeat the repair."
            except ReplogError as error:
                left, why = broker_ids, str(error)
            for root in usable:
                if root.broker_id in left:
                    _log.warning("repair of broker %d: %s", root.broker_id, why)
                    root.detail = root.detail or why

    def _leveled(self, cluster: Cluster, ledger_id: LedgerId, broker_ids: set[BrokerId]) -> set[BrokerId]:
        """Bring up the brokers' journals of a ledger; return those that still lack entries."""
        if ledger_id == self._brokers.cluster_id:
            return cluster.cluster_ledger.level(timeout_ms=LEVEL_MS, broker_ids=broker_ids)
        left = cluster.topic_ledger(ledger_id).level(timeout_ms=LEVEL_MS, broker_ids=broker_ids)
        if cluster is not self._cluster:
            cluster.close_ledger(ledger_id)
        return left

    def _leave_pair(self, lost: BrokerId, ledger_id: LedgerId) -> None:
        """Decide on both journals that the lost one of two left: what writers have put there is doubted then."""
        if ledger_id == self._brokers.cluster_id:
            return
        ledger = self._ledger_but(lost, ledger_id, TopicLedgerState(ledger_id), lambda: None)
        command = encode_command(IsrChange(None, lost, False, self._cluster.clock.now_ms()))
        ledger.append(lambda _: command, timeout_ms=self._config.delivery_timeout_ms)

    def _note_torn_tails(self, root: RootRepair) -> int:
        count = len(torn_tails(self._brokers, root.broker_id)) if root.condition is RootCondition.OK else 0
        if count:
            root.note = f"remove {count} damaged records at the ends of its journals, as a crash leaves without fsync"
        return count

    def _look_at_all(self) -> list[RootRepair]:
        brokers = self._brokers
        looks = [IO_POOL.submit_to(f"{brokers.url(root)}#repair", self._look, root) for root in brokers.broker_ids]
        return [look.result() for look in looks]

    def _look(self, broker_id: BrokerId) -> RootRepair:
        is_named = broker_id in self._rebuild
        try:
            root_file = read_root(self._brokers.store(broker_id))
            if root_file is None:
                return RootRepair(broker_id, RootCondition.LOST)
            why = self._brokers.mismatch(broker_id, root_file)
            is_named &= root_file.cluster_id == self._brokers.cluster_id and (
                root_file.broker_id == broker_id or self._is_copy(root_file)
            )
            if why is not None and not is_named:
                return self._foreign(broker_id, f"its replog.json {why}")
            if is_named or self._is_out(broker_id):
                note = "" if is_named else "it went back in time"
                return RootRepair(broker_id, RootCondition.STALE, note=note, root_id=root_file.root_id)
        except (CorruptDataError, UnsupportedFormatError) as error:
            if is_named and isinstance(error, CorruptDataError):
                return RootRepair(broker_id, RootCondition.STALE, note="its replog.json is damaged")
            return self._foreign(broker_id, str(error.args[0]))
        except ReplogError as error:
            return RootRepair(broker_id, RootCondition.UNREACHABLE, detail=str(error))
        return RootRepair(broker_id, RootCondition.OK, root_id=root_file.root_id)

    def _is_copy(self, root: RootFile) -> bool:
        """Return whether a root file is a copy: the broker that it names has its own, at its own place."""
        broker_id = root.broker_id
        return broker_id in self._brokers.broker_ids and read_root(self._brokers.store(broker_id)) == root

    def _foreign(self, broker_id: BrokerId, why: str) -> RootRepair:
        detail = (
            f"{why.rstrip('.')}. Put the right folder or mount in its place. If it is this broker's, `replog store "
            f"repair --rebuild {broker_id}` rebuilds it."
        )
        return RootRepair(broker_id, RootCondition.FOREIGN, detail=detail)

    def _what_is_there(self, broker_id: BrokerId) -> str:
        """Describe what is at the URL of a root without ``replog.json``: a mount may only be missing."""
        if broker_id not in self._brokers.local_ids:
            return "nothing is there that names this store"
        path = self._brokers.url(broker_id).removeprefix("file://")
        registered = self._cluster.cluster_ledger.ask(lambda state: state.brokers.get(broker_id))
        was, now = ("" if registered is None else registered.file_system), file_system_of(path).type
        is_moved = was and now and was != now
        hint = f" (it was on {was}, and {path} is on {now}: is its mount missing?)" if is_moved else ""
        if not os.path.isdir(path):
            return f"the folder {path} does not exist{hint}"
        return f"the folder {path} is {'not ' if os.listdir(path) else ''}empty and has no replog.json{hint}"

    def _judge_journals(self, roots: list[RootRepair]) -> None:
        """Take roots with a bad journal for stale, if the others are enough to rebuild them."""
        metadata = self._brokers.metadata_broker_ids
        whole = {root.broker_id: root for root in roots if root.condition is RootCondition.OK}
        bad: dict[BrokerId, JournalFinding] = {}
        report = scrub_journals(self._cluster) if len(metadata) > 2 else JournalReport()
        for finding in report.findings:
            if finding.broker_id in whole and finding.fault in BAD_JOURNALS:
                bad.setdefault(finding.broker_id, finding)
        is_enough = len((whole.keys() & set(metadata)) - bad.keys()) >= majority_of(len(metadata))
        for broker_id, finding in bad.items():
            words = f"its journal of ledger {finding.ledger_id} is {finding.fault.value}: {finding.detail}"
            if is_enough:
                whole[broker_id].condition, whole[broker_id].note = RootCondition.STALE, words
            else:
                whole[broker_id].detail = f"{words} Too few roots have good journals to rebuild it."

    def _give_up_stale(self, roots: dict[BrokerId, RootRepair]) -> None:
        """Take the root file off stale roots, if enough others know what was decided; else raise REPLOG_NO_QUORUM."""
        stale = [number for number in roots if roots[number].condition is RootCondition.STALE]
        metadata = frozenset(self._brokers.metadata_broker_ids)
        well = {metadata_id for metadata_id in metadata if roots[metadata_id].condition is RootCondition.OK}
        if not metadata.isdisjoint(stale):
            self._require_majority_without(stale, well)
        for ledger_id in self._ledger_ids() if stale else ():
            # A journal that went back does not name all rows of its root: with acks=1 only this root may have them.
            self._catch_up.copy_from(self._cluster.topic_ledger(ledger_id), stale)
        for broker_id in stale:
            try:
                if self._is_rebuilt_since(roots[broker_id]):
                    roots[broker_id].condition = RootCondition.OK
                    continue
                store = self._brokers.store(broker_id)
                begun = read_rebuild(store)
                if begun is not None and begun <= (roots[broker_id].root_id or ""):
                    store.delete(REBUILD_KEY)  # the repair that made this root did not live to delete it
                store.delete(ROOT_FILE_KEY)
                roots[broker_id].condition = RootCondition.LOST
            except ReplogError as error:
                roots[broker_id] = RootRepair(broker_id, RootCondition.UNREACHABLE, detail=str(error))

    def _is_rebuilt_since(self, root: RootRepair) -> bool:
        """Return whether another repair has rebuilt a stale root: it may hold rows by now that no other root has."""
        try:
            root_file = read_root(self._brokers.store(root.broker_id))
        except (CorruptDataError, UnsupportedFormatError):
            return False
        if root_file is None or root_file.root_id in (None, root.root_id):
            return False
        self._cluster.refresh()  # the new root is registered
        return True

    def _require_majority_without(self, stale: list[BrokerId], well: set[BrokerId]) -> None:
        count = len(self._brokers.metadata_broker_ids)
        # Of each ledger: a root may have its replog.json, and have lost a journal or a record of one.
        holders: dict[LedgerId, set[BrokerId]] = {}
        for finding in scrub_journals(self._cluster).findings:
            holders.setdefault(finding.ledger_id, set()).add(finding.broker_id)
        well = min((well - bad for bad in holders.values()), key=len, default=well)
        if len(well) >= majority_of(count):
            return
        remedy = "Put the roots back as they were, or name fewer at a time."
        if count == 2:
            remedy = "Empty the folder of the one to rebuild, and run `replog store repair` without --rebuild."
        raise RetriableError(
            ErrorCode.REPLOG_NO_QUORUM,
            f"brokers {stale} cannot be rebuilt: {len(well)} of {count} metadata roots with good journals would be "
            f"left, and {majority_of(count)} are needed. Nothing was changed. {remedy}",
            brokers=stale,
        )

    def _is_out(self, broker_id: BrokerId) -> bool:
        """Return whether the root itself says that one of its journals went back in time, by the object `out`."""
        if broker_id not in self._brokers.metadata_broker_ids:
            return False
        store, lane = self._brokers.store(broker_id), f"{self._brokers.url(broker_id)}#out"
        ledger_ids = (self._brokers.cluster_id, *self._ledger_ids())
        gets = [IO_POOL.submit_to(lane, store.get, out_key(ledger_id)) for ledger_id in ledger_ids]
        return any(future.result() is not None for future in gets)

    def _attempt(self, root: RootRepair, step: Callable[[], None]) -> None:
        """Run a step; one root's failure leaves the others' repair alone."""
        if root.detail:
            return
        try:
            step()
        except ReplogError as error:
            _log.warning("repair of broker %d: %s", root.broker_id, error)
            root.detail = str(error)

    def _ledger_ids(self) -> list[LedgerId]:
        return self._cluster.cluster_ledger.ask(lambda state: sorted(state.ledger_ids()))

    # ------------------------------------------------------------------------------------- journals

    def _rebuild_journals(self, root: RootRepair, ledger_ids: list[LedgerId]) -> None:
        brokers, broker_id = self._brokers, root.broker_id
        is_metadata = broker_id in brokers.metadata_broker_ids
        if is_metadata and len(brokers.metadata_broker_ids) < 3:
            raise RetriableError(
                ErrorCode.REPLOG_NO_QUORUM,
                "with one or two metadata roots only an emptied one of two can be rebuilt, since nothing else knows "
                "what this one had decided. Put the root back as it was.",
                broker=broker_id,
            )
        store = brokers.store(broker_id)
        store.make_folder("")
        root_id = self._root_id_to_make(broker_id) if is_metadata else ""
        if read_root(store) is not None:
            store.delete(REBUILD_KEY)
            return  # another repair finished the root: it may hold rows now that no other root has
        for ledger_id in (brokers.cluster_id, *ledger_ids) if is_metadata else ledger_ids:
            for folder in ledger_folders(ledger_id, metadata=is_metadata):
                store.make_folder(folder)
        now_ms = self._cluster.clock.now_ms()

        def leave(state: TopicLedgerState) -> tuple[bytes, ...]:
            # Rows that only the lost root held are lost: the log is cut to what others hold.
            commands = failover_commands(state, frozenset({broker_id}), now_ms, is_forced=True)
            return tuple(map(encode_command, (*commands, IsrChange(None, broker_id, False, now_ms))))

        if not is_metadata:
            self._register(broker_id)
            for ledger_id in ledger_ids:
                if read_root(store) is not None:
                    return
                ledger = self._keep_rows(ledger_id, broker_id)
                timeout_ms = self._config.delivery_timeout_ms
                warn_of_cut(ledger_id, ledger.append(leave, timeout_ms=timeout_ms, is_first=True))
            return
        registration = partial(self._registration, broker_id=broker_id, root_id=root_id)
        self._rebuild_journal(root, root_id, brokers.cluster_id, ClusterLedgerState, registration)
        for ledger_id in ledger_ids:
            self._keep_rows(ledger_id, broker_id)
            self._rebuild_journal(root, root_id, ledger_id, partial(TopicLedgerState, ledger_id), leave)

    def _root_id_to_make(self, broker_id: BrokerId) -> str:
        """Return the id of the root that this repair makes; ``rebuild.json`` there names it until ``replog.json`` does.

        Others at work there, or that died there, have the same. So two repairs at once write journals at the same
        positions, and a root that was lost again gets another id.
        """
        store = self._brokers.store(broker_id)
        while True:
            self._cluster.refresh()
            made = self._cluster.cluster_ledger.ask(lambda state: new_root_id(state.applied_index + 1))
            store.create(REBUILD_KEY, encode_rebuild(made))
            root_id = read_rebuild(store)
            if root_id is not None and root_id >= self._brokers.root_ids.get(broker_id, ""):
                return root_id
            store.delete(REBUILD_KEY)  # of a root that was replaced since

    def _keep_rows(self, ledger_id: LedgerId, broker_id: BrokerId) -> Ledger[TopicLedgerState]:
        """Give other roots the rows that, as far as the log knows, only a root to rebuild has: its leave cuts the rest.

        Right before that: writers that have not noticed yet go on writing to the root. Its disk may be empty, or all
        that it lacks is its ``replog.json``.
        """
        ledger = self._cluster.topic_ledger(ledger_id)
        ledger.refresh()
        self._catch_up.find_copies(ledger, {broker_id})
        self._catch_up.copy_from(ledger, {broker_id})
        return ledger

    def _registration(self, state: ClusterLedgerState, broker_id: BrokerId, root_id: str | None = None) -> bytes:
        """Return the command that registers the broker's new root: a root from before it is refused from then on."""
        registered, brokers = state.brokers.get(broker_id), self._brokers
        root_id = root_id or new_root_id(state.applied_index + 1)
        where = brokers.url(broker_id), brokers.rack(broker_id)
        return encode_command(
            BrokerRegister(broker_id, *where, "{}" if registered is None else registered.probe, root_id)
        )

    def _register(self, broker_id: BrokerId, root_id: str | None = None) -> None:
        registration = partial(self._registration, broker_id=broker_id, root_id=root_id)
        self._cluster.cluster_ledger.append(registration, timeout_ms=self._config.delivery_timeout_ms)
        self._cluster.refresh()

    def _rebuild_journal(
        self,
        root: RootRepair,
        root_id: str,
        ledger_id: LedgerId,
        make_state: Callable[[], _State],
        propose: Callable[[_State], Proposed],
    ) -> None:
        """Own the ledger without the lost root, then write that root's journal from what was decided.

        Raises REQUEST_TIMED_OUT if other owners came in between each time.
        """
        broker_id, store, damaged = root.broker_id, self._brokers.store(root.broker_id), NO_INDEX
        for attempt in range(OWN_ATTEMPTS_MAX):
            if attempt:
                self._cluster.clock.sleep_ms(SYSTEM_RANDOM.uniform(0.5, 1) * min(50 * 2**attempt, OWN_WAIT_MS_MAX))
            if read_root(store) is not None:
                return  # another repair finished the root
            ledger = self._ledger_without(broker_id, ledger_id, make_state())
            outcome = ledger.append(propose, timeout_ms=self._config.delivery_timeout_ms)
            warn_of_cut(ledger_id, outcome)
            owned = ledger.owned_log(broker_id, root_id)
            if owned is not None:
                others = [self._brokers.store(source_id) for source_id in self._snapshot_sources(broker_id)]
                named, majority = {ledger.state.snapshot.name, owned.marker.name}, ledger.core.prefix.majority
                copy_snapshots(ledger_id, others, store, named=named, holders_min=min(majority, len(others)))
                rebuild, is_done = JournalRebuild(ledger_id, f"broker {broker_id}", store, owned.after(damaged)), False
                try:
                    is_done = rebuild.run(lambda done, total: self._on_progress(broker_id, "journal", done, total))
                except CorruptDataError as error:
                    _log.warning("repair of broker %d: its journal begins after a bad record: %s", broker_id, error)
                    damaged = rebuild.position
                root.journal_records += rebuild.written_count
                if is_done:
                    # Before the root file comes back: from then on the new journal counts.
                    store.delete(out_key(ledger_id))
                    return
        raise RetriableError(
            ErrorCode.REQUEST_TIMED_OUT,
            "other processes took the ledger over each time while its journal was rebuilt. Repeat the repair.",
            ledger_id=ledger_id,
        )

    def _snapshot_sources(self, broker_id: BrokerId) -> list[BrokerId]:
        """Return the roots to copy snapshots from: a majority has all that count, so one that is away is not needed."""
        metadata, roots = self._brokers.metadata_broker_ids, self._report.roots
        whole = [metadata_id for metadata_id in metadata if roots[metadata_id].condition is RootCondition.OK]
        is_enough = len(whole) >= majority_of(len(metadata))
        return whole if is_enough else [metadata_id for metadata_id in metadata if metadata_id != broker_id]

    def _ledger_without(self, broker_id: BrokerId, ledger_id: LedgerId, state: _State) -> Ledger[_State]:
        def refuse() -> None:
            raise RetriableError(ErrorCode.REPLOG_ROOT_STALE, "the root is being rebuilt.", broker=broker_id)

        return self._ledger_but(broker_id, ledger_id, state, refuse)

    def _ledger_but(
        self, broker_id: BrokerId, ledger_id: LedgerId, state: _State, check: Callable[[], None]
    ) -> Ledger[_State]:
        """Open a ledger with another check of one root, which has no root file."""
        brokers = self._brokers
        roots = []
        for metadata_id in brokers.metadata_broker_ids:
            own_check = check if metadata_id == broker_id else partial(brokers.check_root, metadata_id)
            roots.append(JournalRoot(metadata_id, brokers.store(metadata_id), own_check))
        settings = LedgerSettings(grace_ms=self._config.commit_wait_ms, claim_round_step=REBUILD_ROUND_STEP)
        return Ledger(ledger_id, roots, state, settings=settings, clock=self._cluster.clock)

    def _repair_snapshots(self) -> None:
        """Copy bad and missing files of snapshots; a root that is rebuilt has them all, from the rebuild."""
        roots = self._report.roots
        well = [number for number in roots if roots[number].condition is RootCondition.OK and not roots[number].detail]
        for finding in SnapshotScrub(self._cluster, well, is_repairing=True).run().findings:
            root = roots[finding.broker_id]
            root.snapshot_files += finding.is_repaired
            if not finding.is_repaired:
                root.detail = root.detail or f"{finding.file}: {finding.detail}"

    # ----------------------------------------------------------------------------------------- data

    def _restore_objects(self, usable: list[RootRepair], ledger_ids: list[LedgerId]) -> None:
        """Copy to each root the objects that the log names for it and that it lacks."""
        pending: dict[Future[None], tuple[RootRepair, _Needed]] = {}
        present: dict[tuple[BrokerId, LedgerId, int], Mapping[str, int]] = {}
        good: dict[str, set[BrokerId]] = {}
        holders: dict[str, frozenset[BrokerId]] = {}
        wanted: list[tuple[RootRepair, _Needed]] = []
        for needed in self._needed_objects(ledger_ids):
            name = needed.job.id.name
            good[name], holders[name] = set(), needed.holders
            self._frames = {}
            for root in usable:
                if root.broker_id not in needed.brokers or root.detail:
                    continue
                if self._is_good(root, needed.job, present):
                    good[name].add(root.broker_id)
                    self._note_verified(root, needed.job)
                elif not root.detail:
                    wanted.append((root, needed))
            right = right_frame(self._frames)
            if right is None:
                continue
            for root in usable:
                if self._frames.get(root.broker_id, right) != right:  # its rows are good, bytes beside them are not
                    good[name].discard(root.broker_id)
                    job = replace(needed.job, checksums=needed.job.checksums + right)
                    wanted.append((root, replace(needed, job=job)))
        for root, needed in wanted:
            sources = tuple(sorted(good[needed.job.id.name]))
            if sources:
                is_bad = needed.job.id.name in self._sizes_on(root, needed.job, present)
                # Another repair, or a catch-up, may have made the copy since the listing.
                job = replace(needed.job, sources=sources, may_exist=True, replaces=is_bad)
                is_there = root.condition is RootCondition.OK
                future = self._fetcher.submit(
                    job, root.broker_id, lambda *_: None, is_throttled=True, check_root=is_there
                )
                pending[future] = (root, needed)
        lost = {(need.job.ledger_id, need.job.id) for _, need in wanted if not good[need.job.id.name]}
        gone = {item_id.name for _, item_id in unreferenced(self._cluster, lost)}
        read = {root.broker_id for root in usable if not root.detail}
        self._lost = {
            name: holders[name]
            for name, brokers in good.items()
            if not brokers and name not in gone and read.issuperset(holders[name])
        }
        self._report.lost_objects = list(self._lost)
        totals = Counter(root.broker_id for root, _ in pending.values())
        for future in as_completed(pending):
            root, needed = pending[future]
            error = future.exception()
            if error is not None:
                root.detail = root.detail or str(error)
                continue
            self._note_verified(root, needed.job)
            root.object_count += 1
            root.copied_bytes += needed.job.size_bytes
            self._on_progress(root.broker_id, "objects", root.object_count, totals[root.broker_id])

    def _cut_lost(self, ledger_ids: list[LedgerId]) -> None:
        """Give up rows that were never readable and that no root holds: all rows after them would wait for ever.

        Only where every root that should hold them, or that is in sync and may have a copy that was not reported, was
        looked through, and none was named since as a holder: its copy came after the look. An election does this when a
        broker is given up; here the root is back without them (one of two), or has lost a file.
        """
        lost = self._lost
        looked_through = {root.broker_id for root in self._report.roots.values() if not root.detail}

        def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
            gone = [
                copy.entry_index
                for copy in state.under_replicated(include_out_of_sync=True)
                if copy.object.holders <= lost.get(copy.object.id.name, frozenset())
                and copy.entry_index > state.stable_index
                and looked_through.issuperset(copy.object.holders)
                and all(looked_through.issuperset(partition.isr) for partition in partitions_of(state, copy.sections))
            ]
            return (encode_command(Truncate(min(gone) - 1)),) if gone else None

        for ledger_id in ledger_ids if lost else ():
            ledger = self._cluster.topic_ledger(ledger_id)
            timeout_ms = self._config.delivery_timeout_ms
            warn_of_cut(ledger_id, ledger.append(propose, timeout_ms=timeout_ms, is_first=True))

    def _note_verified(self, root: RootRepair, job: CopyJob) -> None:
        self._verified.setdefault((root.broker_id, job.ledger_id), set()).add(job.id)

    def _needed_objects(self, ledger_ids: list[LedgerId]) -> Iterator[_Needed]:
        """Yield what live partitions need, ledger by ledger; the brokers are their replicas, and all that hold it.

        A holder that is no replica now gets no copy if it becomes one again: the log knows that it has one.
        """
        for ledger_id in ledger_ids:
            ledger = self._cluster.topic_ledger(ledger_id)
            ledger.refresh()
            self._looked_after[ledger_id] = ledger.ask(lambda state: state.applied_index)
            parts_by_id: dict[ObjectId, list[tuple[tuple[BrokerId, ...], SectionRef]]] = {}
            for replicas, section in ledger.ask(_live_sections):
                parts_by_id.setdefault(section.object.id, []).append((replicas, section))
            for parts in parts_by_id.values():
                item, sections = parts[0][1].object, {section.start_byte: section for _, section in parts}
                job = copy_job(ledger_id, item, sections.values(), ())
                yield _Needed(job, item.holders.union(*(replicas for replicas, _ in parts)), item.holders)

    def _is_good(
        self, root: RootRepair, job: CopyJob, present: dict[tuple[BrokerId, LedgerId, int], Mapping[str, int]]
    ) -> bool:
        """Return whether the root's own copy is good. A listing shows it; deep, or on a root to rebuild, its bytes."""
        try:
            sizes = self._sizes_on(root, job, present)
            if sizes.get(job.id.name) != job.size_bytes:
                return False
            if not self._deep and root.condition is RootCondition.OK:
                return True
            body = self._brokers.store(root.broker_id).get(job.storage_key)
            if body is None or damage(job, body) is not None:
                return False
            self._frames[root.broker_id] = read_frame(job, body)
            return True
        except ReplogError as error:
            root.detail = str(error)
            return False

    def _sizes_on(
        self, root: RootRepair, job: CopyJob, present: dict[tuple[BrokerId, LedgerId, int], Mapping[str, int]]
    ) -> Mapping[str, int]:
        key = (root.broker_id, job.ledger_id, job.id.generation)
        if key not in present:
            listed = self._brokers.store(root.broker_id).list_keys(data_folder(job.ledger_id, job.id.generation))
            present[key] = {info.key.rpartition("/")[2]: info.size_bytes for info in listed}
        return present[key]

    # --------------------------------------------------------------------------------------- finish

    def _finish(self, root: RootRepair, ledger_ids: list[LedgerId]) -> None:
        """Give a rebuilt root its root file, then let it join the in-sync replicas."""
        if root.condition is not RootCondition.OK:
            self._write_root_file(root.broker_id)
            self._brokers.store(root.broker_id).delete(REBUILD_KEY)
        behind = [ledger_id for ledger_id in ledger_ids if not self._admit(ledger_id, root)]
        if behind:
            root.detail = f"it is not yet in every in-sync set of ledger {behind[0]}. Repeat the repair."
        else:
            root.temp_files = self._brokers.sweep_temp_files(root.broker_id)

    def _admit(self, ledger_id: LedgerId, root: RootRepair) -> bool:
        verified = self._verified.get((root.broker_id, ledger_id), set())
        after = self._looked_after.get(ledger_id, NO_INDEX)
        admission = self._catch_up.admit(self._cluster.topic_ledger(ledger_id), root.broker_id, verified, after)
        root.object_count += admission.object_count
        root.copied_bytes += admission.copied_bytes
        return admission.is_in_sync

    def _write_root_file(self, broker_id: BrokerId) -> None:
        """Write the root file with the identity that is registered; keep one that another repair has just written."""
        store = self._brokers.store(broker_id)
        self._cluster.refresh()
        for other in self._brokers.broker_ids:
            if self._report.roots[other].condition is not RootCondition.OK:
                continue
            root_file = read_root(self._brokers.store(other))
            if root_file is not None:
                made = replace(root_file, broker_id=broker_id, root_id=self._brokers.root_ids.get(broker_id))
                store.create(ROOT_FILE_KEY, encode_root_file(made))
                break
        there = read_root(store)
        registered = self._brokers.root_ids.get(broker_id)
        is_wrong = there is None or self._brokers.mismatch(broker_id, replace(there, root_id=registered))
        if there is None or there.root_id is None or is_wrong:
            raise RetriableError(
                ErrorCode.REPLOG_ROOT_STALE,
                "no root file could be written. Remove a foreign replog.json from the root and repeat the repair.",
                url=self._brokers.url(broker_id),
            )
        if registered != there.root_id:
            self._register(broker_id, there.root_id)


def _live_sections(state: TopicLedgerState) -> list[tuple[tuple[BrokerId, ...], SectionRef]]:
    return [
        (partition.replicas, section)
        for topic, number, partition in live_partitions(state)
        for section in state.sections(topic.topic_id, number, partition.log_start_offset, partition.log_end_offset)
        if not section.object.inline
    ]
