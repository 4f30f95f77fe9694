"""Brokers by command: list them, take one out of service, put it back. Runs driver-side.

The cluster ledger holds the wish, each topic ledger its effect (a fold reads only its own ledger). The next run, or
``replog coordinator run``, finishes one that was interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.admin.admin import Admin, topic_ledgers
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import is_root_there
from spark_replog.commit import state_changes
from spark_replog.commit.failover import failover_commands
from spark_replog.errors import ErrorCode, NotFoundError
from spark_replog.ids import BrokerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import BrokerFence


@dataclass(frozen=True, slots=True)
class BrokerListing:
    """One broker.

    Attributes:
        is_there: whether its root answers and is what it was.
        has_journal: whether it is a metadata root.
        leader_count: partitions that it leads; in_sync_count: of replica_count assigned to it.
    """

    broker_id: BrokerId
    url: str
    rack: str | None
    is_fenced: bool
    is_there: bool
    has_journal: bool
    leader_count: int
    in_sync_count: int
    replica_count: int


class BrokerAdmin(Admin):
    """Thread safe. Arguments: see ``Admin``."""

    def list_brokers(self) -> list[BrokerListing]:
        """Return the registered brokers, by id. Raises CLUSTER_AUTHORIZATION_FAILED, REPLOG_NO_QUORUM."""
        self._cluster.refresh()
        self._authorizer.require_cluster(AclOperation.DESCRIBE)
        leaders: dict[BrokerId, int] = {}
        in_sync: dict[BrokerId, int] = {}
        assigned: dict[BrokerId, int] = {}
        for ledger in topic_ledgers(self._cluster):
            ledger.refresh()
            with ledger.lock:
                for _, _, partition in state_changes.live_partitions(ledger.state):
                    leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
                    for broker_id in partition.isr:
                        in_sync[broker_id] = in_sync.get(broker_id, 0) + 1
                    for broker_id in partition.replicas:
                        assigned[broker_id] = assigned.get(broker_id, 0) + 1
        with self._cluster.cluster_ledger.lock:
            state = self._cluster.cluster_ledger.state
            brokers, fenced = sorted(state.brokers.items()), set(state.fenced)
        return [
            BrokerListing(
                broker_id,
                found.url,
                found.rack,
                broker_id in fenced,
                is_root_there(self._cluster.brokers, broker_id),
                broker_id in self._cluster.brokers.metadata_broker_ids,
                leaders.get(broker_id, 0),
                in_sync.get(broker_id, 0),
                assigned.get(broker_id, 0),
            )
            for broker_id, found in brokers
        ]

    def fence(self, broker_id: BrokerId) -> None:
        """Take a broker out of service: it leaves every ISR and leads nothing, until it is put back.

        Where its root does not answer, what only it holds above the stable index is given up (a Truncate).
        Its journal, if it has one, goes on: metadata roots are chosen by ``init``.

        Raises:
            AuthorizationError: CLUSTER_AUTHORIZATION_FAILED.
            NotFoundError: BROKER_ID_NOT_REGISTERED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        self._set(broker_id, is_fenced=True)

    def unfence(self, broker_id: BrokerId) -> None:
        """Put a broker back: it joins the ISRs again once it holds what it missed. See ``fence``."""
        self._set(broker_id, is_fenced=False)

    def _set(self, broker_id: BrokerId, *, is_fenced: bool) -> None:
        self._cluster.refresh()
        self._authorizer.require_cluster(AclOperation.ALTER)

        def propose(state: ClusterLedgerState) -> bytes | None:
            if broker_id not in state.brokers:
                raise NotFoundError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED,
                    f"this store has no broker {broker_id}. Look at those that it has: replog broker list.",
                    brokers=",".join(map(str, sorted(state.brokers))),
                )
            if (broker_id in state.fenced) == is_fenced:
                return None
            return encode_command(BrokerFence(broker_id, is_fenced))

        self._cluster.cluster_ledger.append(propose, timeout_ms=self._timeout_ms)
        for ledger in topic_ledgers(self._cluster):
            settle_fences(self._cluster, ledger, self._timeout_ms)


def settle_fences(cluster: Cluster, ledger: Ledger[TopicLedgerState], timeout_ms: int) -> bool:
    """Bring one topic ledger to the fences that the cluster ledger wants; return whether it was not.

    Raises:
        RetriableError: REPLOG_NO_QUORUM.
    """
    with cluster.cluster_ledger.lock:
        wanted = frozenset(cluster.cluster_ledger.state.fenced)
    away = frozenset(each for each in wanted if not is_root_there(cluster.brokers, each))
    now_ms = cluster.clock.now_ms()

    pending: list[BrokerFence] = []

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        pending[:] = state_changes.settle_fences(state, wanted)
        if not pending:
            return None
        fence = pending[0]  # one per ENTRY: the next is judged by who is in sync after it
        given_up = away & {fence.broker_id} if fence.is_fenced else frozenset()
        lost = failover_commands(state, given_up, now_ms, is_forced=True)
        return tuple(encode_command(each) for each in (*lost, fence))

    is_changed = ledger.append(propose, timeout_ms=timeout_ms).index >= 0
    for _ in tuple(pending[1:]):
        ledger.append(propose, timeout_ms=timeout_ms)
    return is_changed
