"""The state of a store: partitions and groups from the folds, roots from a short check. Writes nothing.

``store verify`` reads every journal and copy; this does not. A watch looks repeatedly, at queries too, for metrics and
the console: each look folds the new entries; roots are checked less often, because that takes more storage calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from spark_replog.admin.admin import Admin, topic_ledgers
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.gateway_notes import GatewayNotes
from spark_replog.cluster.root_check import ROOT_TIMEOUT_MS, RootLook, look_at_roots
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.groups.group_admin import describe_group, describe_groups
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.health.gateways import SHOWN_MS, GatewayHealth
from spark_replog.health.readers import Limits, Reader, judge
from spark_replog.health.store import (
    BrokerHealth,
    Finding,
    LedgerHealth,
    StoreView,
    TopicDescription,
    describe_ledger,
    fence_findings,
)
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType
from spark_replog.log.fold.object_table import RecentWrites
from spark_replog.logs import Once
from spark_replog.monitor.query_monitor import QueryMonitor, list_checkpoints, read_checkpoint
from spark_replog.storage.io_pool import IO_POOL

T = TypeVar("T")
RECENT_ENTRIES = 512
LATE_PAUSES_MS = (10, 50, 200)
"""How long a look waits for entries that are on their way to a journal."""


class StoreMonitor(Admin):
    """Thread-safe. Runs driver-side and in commands. Arguments: see ``Admin``.

    Attributes:
        root_looks: results of the roots' check that the last look made or was given.
    """

    def __init__(self, cluster: Cluster, principal: str | None = None) -> None:
        super().__init__(cluster, principal)
        self._described: dict[LedgerId, tuple[int, list[TopicDescription]]] = {}
        """Topics by ledger, with the index of the last entry applied when they were described."""
        self._late: dict[LedgerId, int] = {}
        """Ledgers with journals behind, and the last entry decided when that was seen first."""
        self.root_looks: Sequence[RootLook] = ()

    def look(
        self,
        timeout_ms: int = ROOT_TIMEOUT_MS,
        *,
        with_groups: bool = False,
        looks: Sequence[RootLook] | None = None,
    ) -> StoreView:
        """Return the current state. Costs one get per metadata root and ledger, and the root check.

        Args:
            timeout_ms: a root that does not answer within this time counts as unreachable.
            with_groups: whether to describe the groups too; they are not judged.
            looks: results of an earlier check of the roots; None: check now.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED: without DESCRIBE on the cluster.
            RetriableError: REPLOG_NO_QUORUM.
        """
        cluster = self._cluster
        cluster.refresh(may_be_stale=True)
        self._authorizer.require(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        topics = self._topics()
        groups: list[Reader] = []
        if with_groups:
            coordinator = GroupCoordinator(cluster, principal=self._authorizer.principal)
            groups = describe_groups(cluster, coordinator, coordinator.groups(is_folded=True), is_folded=True)
        ledgers = topic_ledgers(cluster)
        self.root_looks = self.look_at_roots(timeout_ms) if looks is None else looks
        roots = {check.broker_id: (check.error, check.free_bytes, check.device) for check in self.root_looks}
        fenced, brokers, journals = self._fenced(), cluster.brokers, cluster.brokers.metadata_broker_ids
        healths = [
            BrokerHealth(root, brokers.url(root), brokers.rack(root), root in journals, root in fenced, *roots[root])
            for root in brokers.broker_ids
        ]
        all_ledgers: list[Ledger[Any]] = [cluster.cluster_ledger, *ledgers]
        behind = self._behind(all_ledgers)
        states = [
            LedgerHealth(
                ledger.ledger_id,
                ledger.state.applied_index + 1,
                ledger.is_tail_unclear,
                behind.get(ledger.ledger_id, {}),
            )
            for ledger in all_ledgers
        ]
        topics.sort(key=lambda topic: topic.name)
        parts = tuple(healths), tuple(topics), tuple(states), tuple(groups)
        return StoreView(brokers.cluster_id, cluster.path, brokers.fsync, cluster.clock.now_ms(), *parts)

    def _behind(self, ledgers: Sequence[Ledger[Any]]) -> dict[LedgerId, Mapping[BrokerId, int]]:
        """Return the journals that are behind and remain so: writers may be about to give them what they lack.

        A journal remains behind if it lacks entries that an earlier look, or one a moment ago, found decided.
        """
        late = [ledger for ledger in ledgers if ledger.behind()]
        fresh = [ledger for ledger in late if ledger.ledger_id not in self._late]
        self._late = {ledger.ledger_id: self._late.get(ledger.ledger_id, ledger.state.applied_index) for ledger in late}
        for pause_ms in LATE_PAUSES_MS:
            fresh = [ledger for ledger in fresh if ledger.behind(self._late[ledger.ledger_id])]
            if not fresh:
                break
            self._cluster.clock.sleep_ms(pause_ms)
            for fresh_ledger in fresh:
                fresh_ledger.refresh()
        journals = {ledger.ledger_id: ledger.behind(self._late[ledger.ledger_id]) for ledger in late}
        self._late = {ledger_id: last for ledger_id, last in self._late.items() if journals[ledger_id]}
        return {ledger_id: brokers for ledger_id, brokers in journals.items() if brokers}

    def look_at_roots(self, timeout_ms: int = ROOT_TIMEOUT_MS) -> list[RootLook]:
        """Check every root against the ledgers as this process has folded them so far."""
        return look_at_roots(self._cluster, topic_ledgers(self._cluster), timeout_ms)

    def gateways(self) -> tuple[GatewayHealth, ...]:
        """Return the gateways that have given a sign in the last hour, by node id. Raises REPLOG_NO_QUORUM."""
        now_ms, gateways = self._cluster.clock.now_ms(), []
        for name, note in sorted(GatewayNotes(self._cluster).read_all().items(), key=lambda item: item[0]):
            if now_ms - note.written_ms < SHOWN_MS:
                host = f"[{note.host}]" if ":" in note.host else note.host
                times = note.interval_ms, note.started_ms, note.written_ms
                gateways.append(GatewayHealth(name.node_id, f"{host}:{note.port}", note.rack, *times, note.counts))
        return tuple(gateways)

    def recent_writes(self, entry_count: int = RECENT_ENTRIES) -> dict[LedgerId, RecentWrites]:
        """Return the writes in the newest entries of each topic ledger, as this process has folded them."""
        ledgers = topic_ledgers(self._cluster)
        return {
            ledger.ledger_id: ledger.ask(lambda state: state.objects.recent_writes(entry_count)) for ledger in ledgers
        }

    def fence_warnings(self, broker_ids: Iterable[BrokerId]) -> list[Finding]:
        """Return the partitions that fencing these brokers would make unwritable.

        Raises CLUSTER_AUTHORIZATION_FAILED, REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.ALTER)
        self._cluster.refresh()
        return fence_findings(self._topics(), frozenset(broker_ids))

    def _topics(self) -> list[TopicDescription]:
        topic_ids = self._cluster.cluster_ledger.ask(lambda state: dict(state.topics))
        handles = [TopicHandle(name, *ids) for name, ids in topic_ids.items()]
        self._cluster.refresh_topics(handles, may_be_stale=True)
        topics = []
        for ledger in topic_ledgers(self._cluster):
            index, descriptions = self._described.get(ledger.ledger_id, (-1, []))
            if index != ledger.state.applied_index:
                index, descriptions = ledger.ask(lambda state: (state.applied_index, describe_ledger(state)))
                self._described[ledger.ledger_id] = (index, descriptions)
            topics += descriptions
        return topics

    def groups(self, names: Sequence[str] | None = None) -> list[Reader]:
        """Return consumer groups with their lags, by name; without names, all that the principal may describe.

        Raises GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND, REPLOG_NO_QUORUM.
        """
        coordinator = GroupCoordinator(self._cluster, principal=self._authorizer.principal)
        if names is None:
            return describe_groups(self._cluster, coordinator, coordinator.groups())
        return [describe_group(self._cluster, coordinator, name) for name in names]


_LOG = logging.getLogger(__name__)
ROOT_LOOK_INTERVAL_MS = 30_000
GATEWAYS_AGE_MS = 10_000
CHECKPOINT_LIST_INTERVAL_MS = 30_000
"""How long a new query in a folder of checkpoints may stay unseen."""


class StoreWatch:
    """Looks at a store repeatedly. Not thread-safe.

    Args:
        checkpoints: checkpoint folders, or folders that contain several, on storage with these options.
    """

    def __init__(
        self,
        cluster: Cluster,
        checkpoints: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.cluster = cluster
        self._store, self._queries = StoreMonitor(cluster), QueryMonitor(cluster)
        self._checkpoints, self._options = tuple(checkpoints), dict(storage_options or {})
        self._limits = limits or Limits()
        self._roots: tuple[int, Sequence[RootLook]] | None = None
        self._next_roots: tuple[int, Future[list[RootLook]]] | None = None
        self._listed: dict[str, tuple[int, list[str]]] = {}
        """By folder, when its checkpoints were listed, and which there were."""
        self._late: dict[tuple[str, str], Future[Any]] = {}
        """Reads of checkpoints that have not answered in time."""
        self._gateways: tuple[int, tuple[GatewayHealth, ...]] | None = None
        self._told = Once()

    def look(self) -> StoreView:
        """Look now. Raises the errors of ``StoreMonitor.look``; an unreadable checkpoint is returned, not raised.

        The first look checks the roots; later checks run in the background, and a look uses the last finished one.
        """
        now_ms = self.cluster.clock.monotonic_ms()
        if self._next_roots is not None and self._next_roots[1].done():
            (begun_ms, check), self._next_roots = self._next_roots, None  # first: a check that failed is made again
            self._roots = begun_ms, check.result()
        view = self._store.look(with_groups=True, looks=None if self._roots is None else self._roots[1])
        if self._roots is None:
            self._roots = (now_ms, self._store.root_looks)
        elif self._next_roots is None and now_ms - self._roots[0] >= ROOT_LOOK_INTERVAL_MS:
            self._next_roots = now_ms, IO_POOL.submit_to("roots", self._store.look_at_roots)
        unread: list[tuple[str, ReplogError]] = []
        readers = [*view.readers, *self._read_checkpoints(unread)]
        judged = tuple(judge(reader, view.now_ms, self._limits) for reader in readers)
        return replace(view, readers=judged, unread=tuple(unread), gateways=self._gateways_at(now_ms))

    def _gateways_at(self, now_ms: int) -> tuple[GatewayHealth, ...]:
        """Return the gateways as they were a moment ago; none if their notes may not be read.

        A store without gateways is asked for them as rarely as its roots are checked.
        """
        asked_ms, seen = self._gateways or (now_ms, ())
        age_ms = GATEWAYS_AGE_MS if seen else ROOT_LOOK_INTERVAL_MS
        if self._gateways is None or now_ms - asked_ms >= age_ms:
            try:
                self._gateways = now_ms, self._store.gateways()
            except ReplogError as error:
                if self._told.is_first(error.code):
                    _LOG.warning("the notes of gateways cannot be read: %s", error)
                self._gateways = now_ms, ()
        return self._gateways[1]

    def _read_checkpoints(self, unread: list[tuple[str, ReplogError]]) -> Iterator[Reader]:
        urls_seen: set[str] = set()  # a folder may be given twice, or with its parent
        for folder in self._checkpoints:
            try:
                urls = self._urls_in(folder)
            except ReplogError as error:
                urls = []
                self._on_unread(folder, error, unread)
            for url in urls:
                if url.rstrip("/") in urls_seen:
                    continue
                urls_seen.add(url.rstrip("/"))
                try:
                    checkpoint = self._within_time(read_checkpoint, url)
                    yield self._queries.describe(checkpoint, is_folded=True)
                except ReplogError as error:
                    self._listed.pop(folder, None)  # it may have been deleted
                    self._on_unread(url, error, unread)

    def _urls_in(self, folder: str) -> list[str]:
        """Return the checkpoints in a folder; all files of it are listed, which may be many."""
        now_ms = self.cluster.clock.monotonic_ms()
        listed_ms, urls = self._listed.get(folder, (0, []))
        if not urls or now_ms - listed_ms >= CHECKPOINT_LIST_INTERVAL_MS:
            urls = self._within_time(list_checkpoints, folder)
            self._listed[folder] = now_ms, urls
        if not urls:
            what = f"'{folder}' is not a checkpoint and has none. Give a checkpointLocation or its parent."
            raise InvalidConfigError(ErrorCode.REPLOG_INPUT, what)
        return urls

    def _within_time(self, call: Callable[[str, Mapping[str, str]], T], url: str) -> T:
        """Return the answer of a checkpoint's storage. One that hangs holds up no look and is not asked twice."""
        what = call.__name__, url
        job = self._late.pop(what, None)
        wait_ms = ROOT_TIMEOUT_MS if job is None else 0
        job = job or IO_POOL.submit_to(f"checkpoint {url}", call, url, self._options)
        try:
            answer: T = job.result(wait_ms / 1000)
        except TimeoutError:
            self._late[what] = job
            text = f"the storage of '{url}' does not answer. Mount it again, or leave it out."
            raise RetriableError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return answer

    def _on_unread(self, url: str, error: ReplogError, unread: list[tuple[str, ReplogError]]) -> None:
        if self._told.is_first((url, error.code)):
            _LOG.warning("the checkpoint %s cannot be read: %s", url, error)
        unread.append((url, error))
