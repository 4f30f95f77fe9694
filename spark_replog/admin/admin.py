"""What all admin classes share: the caller, and how a change is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_replog.cluster.authorizer import Authorizer, is_allowed
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import CLUSTER_NAME, AclOperation, ResourceType
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import CommandResult, Outcome

DECIDE_TRIES_MAX = 10
_OVERTAKEN = frozenset({Outcome.REFUSED, Outcome.INVALID, Outcome.UNKNOWN_TOPIC, Outcome.TOPIC_CLOSED})


class Admin:
    """Thread safe.

    Args:
        principal: the caller; None: see ``default_principal``.
    """

    def __init__(self, cluster: Cluster, principal: str | None = None, *, timeout_ms: int = 60_000) -> None:
        self._cluster = cluster
        self._authorizer = Authorizer(cluster, principal)
        self._timeout_ms = timeout_ms

    def _require_cluster(self, operation: AclOperation) -> None:
        """Check the caller's right on the whole store."""
        self._cluster.refresh_if_stale()
        self._authorizer.require_cluster(operation)

    def _require_topic(self, operation: AclOperation, name: str) -> None:
        """Check the caller's right before it is looked whether the topic exists."""
        self._cluster.refresh_if_stale()
        self._authorizer.require_topic(operation, name)

    def _require_by(self, state: ClusterLedgerState, operation: AclOperation) -> None:
        """Check a right on the whole store by this state, under the cluster ledger's lock."""
        kind, who = ResourceType.CLUSTER, self._authorizer.principal
        if not is_allowed(state.acls, state.config, who, operation, kind, CLUSTER_NAME):
            raise self._authorizer.refusal(operation, kind, CLUSTER_NAME)

    def _open(self, name: str) -> tuple[TopicHandle, Ledger[TopicLedgerState]]:
        """Return a topic and its ledger on the newest fold."""
        self._cluster.refresh()
        handle = self._cluster.lookup(name)
        ledger, _ = self._cluster.topic_state(handle)
        return handle, ledger

    def _fenced(self) -> frozenset[BrokerId]:
        with self._cluster.cluster_ledger.lock:
            return frozenset(self._cluster.cluster_ledger.state.fenced)

    def _decide(
        self,
        ledger: Ledger[TopicLedgerState],
        propose: Callable[[TopicLedgerState], tuple[bytes, ...] | None],
        on_results: Callable[[Sequence[CommandResult]], None] = lambda _: None,
    ) -> None:
        """Decide what ``propose`` makes of the newest fold.

        Commands of this process may share an entry, each made without the others' effect: where one of them came
        first and the fold refused this one, it is made again.
        """
        for _ in range(DECIDE_TRIES_MAX):
            results: Sequence[CommandResult] = ledger.append(propose, timeout_ms=self._timeout_ms).results
            on_results(results)
            if not any(is_overtaken(each) for each in results):
                return
        raise RetriableError(
            ErrorCode.INVALID_REQUEST,
            f"another command changed the same thing each time: {results[-1].detail}. Look at it and repeat the "
            "command if it still applies.",
        )


def is_overtaken(result: CommandResult) -> bool:
    """Return whether the fold refused a command that was right for the state before its entry."""
    return result.outcome in _OVERTAKEN


def topic_ledgers(cluster: Cluster) -> list[Ledger[TopicLedgerState]]:
    """Return the ledgers of all published topics, as this process has folded the cluster ledger."""
    with cluster.cluster_ledger.lock:
        ledger_ids: dict[LedgerId, None] = {each[1]: None for each in cluster.cluster_ledger.state.topics.values()}
    return [cluster.topic_ledger(each) for each in ledger_ids]
