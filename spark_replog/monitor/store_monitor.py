"""The state of a store: partitions and groups from the folds, roots from a short check. Writes nothing.

``store verify`` reads every journal and copy; this does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_replog.admin.admin import Admin, topic_ledgers
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.cluster.root_check import ROOT_TIMEOUT_MS, RootLook, look_at_roots
from spark_replog.groups.group_admin import describe_group, describe_groups
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.health.findings import BrokerHealth, Finding, fence_findings
from spark_replog.health.readers import Reader
from spark_replog.health.store import LedgerHealth, StoreHealth
from spark_replog.health.topics import TopicDescription, describe_ledger
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation
from spark_replog.log.fold.object_table import RecentWrites

RECENT_ENTRIES = 512


class StoreMonitor(Admin):
    """Thread safe. Runs driver-side and in commands. Arguments: see ``Admin``."""

    def __init__(self, cluster: Cluster, principal: str | None = None) -> None:
        super().__init__(cluster, principal)
        self._described: dict[LedgerId, tuple[int, list[TopicDescription]]] = {}
        """Topics by ledger, with the index of the last entry applied when they were described."""

    def look(
        self,
        timeout_ms: int = ROOT_TIMEOUT_MS,
        *,
        with_groups: bool = False,
        looks: Sequence[RootLook] | None = None,
    ) -> StoreHealth:
        """Return the current state. Costs one get per metadata root and ledger, and the check of the roots.

        Args:
            timeout_ms: a root that does not answer within this time counts as unreachable.
            with_groups: whether to describe the groups too.
            looks: results of an earlier check of the roots; None: check now.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED: without DESCRIBE on the cluster.
            RetriableError: REPLOG_NO_QUORUM.
        """
        cluster = self._cluster
        cluster.refresh()
        self._authorizer.require_cluster(AclOperation.DESCRIBE)
        topics = self._topics()
        groups: list[Reader] = []
        if with_groups:
            coordinator = GroupCoordinator(cluster, principal=self._authorizer.principal)
            groups = describe_groups(cluster, coordinator, coordinator.groups(is_folded=True), is_folded=True)
        ledgers = topic_ledgers(cluster)
        found = {each.broker_id: each for each in (self.look_at_roots(timeout_ms) if looks is None else looks)}
        fenced, brokers = self._fenced(), cluster.brokers
        return StoreHealth(
            brokers.cluster_id,
            cluster.path,
            brokers.fsync,
            cluster.clock.now_ms(),
            tuple(
                BrokerHealth(
                    each,
                    brokers.url(each),
                    brokers.rack(each),
                    each in brokers.metadata_broker_ids,
                    each in fenced,
                    found[each].error,
                    found[each].free_bytes,
                    found[each].device,
                )
                for each in brokers.broker_ids
            ),
            tuple(sorted(topics, key=lambda each: each.name)),
            (_ledger_of(cluster.cluster_ledger), *map(_ledger_of, ledgers)),
            tuple(groups),
        )

    def look_at_roots(self, timeout_ms: int = ROOT_TIMEOUT_MS) -> list[RootLook]:
        """Check every root against the ledgers as this process has folded them so far."""
        return look_at_roots(self._cluster, topic_ledgers(self._cluster), timeout_ms)

    def recent_writes(self, entry_count: int = RECENT_ENTRIES) -> dict[LedgerId, RecentWrites]:
        """Return what the newest entries of each topic ledger named, as this process has folded them."""
        ledgers = topic_ledgers(self._cluster)
        return {each.ledger_id: each.ask(lambda state: state.recent_writes(entry_count)) for each in ledgers}

    def fence_warnings(self, broker_ids: Iterable[BrokerId]) -> list[Finding]:
        """Return the partitions that fencing these brokers would make unwritable.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._require_cluster(AclOperation.ALTER)
        self._cluster.refresh()
        return fence_findings(self._topics(), frozenset(broker_ids))

    def _topics(self) -> list[TopicDescription]:
        with self._cluster.cluster_ledger.lock:
            found = self._cluster.cluster_ledger.state.topics
            handles = [TopicHandle(name, topic_id, ledger_id) for name, (topic_id, ledger_id) in found.items()]
        self._cluster.refresh_topics(handles)
        topics = []
        for ledger in topic_ledgers(self._cluster):
            index, known = self._described.get(ledger.ledger_id, (-1, []))
            if index != ledger.state.applied_index:
                index, known = ledger.ask(lambda state: (state.applied_index, describe_ledger(state)))
                self._described[ledger.ledger_id] = (index, known)
            topics += known
        return topics

    def groups(self, names: Sequence[str] | None = None) -> list[Reader]:
        """Return consumer groups with their lags, by name; all that the principal may describe if none is named.

        Raises:
            AuthorizationError: GROUP_AUTHORIZATION_FAILED.
            NotFoundError: GROUP_ID_NOT_FOUND.
            RetriableError: REPLOG_NO_QUORUM.
        """
        coordinator = GroupCoordinator(self._cluster, principal=self._authorizer.principal)
        if names is None:
            return describe_groups(self._cluster, coordinator, coordinator.groups())
        return [describe_group(self._cluster, coordinator, name) for name in names]


def _ledger_of(ledger: Ledger[Any]) -> LedgerHealth:
    return LedgerHealth(ledger.ledger_id, ledger.state.applied_index + 1, ledger.is_tail_unclear)
