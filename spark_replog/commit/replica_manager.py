"""Appends of micro-batches and produce requests: replication first, then one decided ENTRY per ledger.

Runs in the process that commits. Source of the order of checks: Kafka's ``ReplicaManager.appendRecords``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.quota_manager import produce_throttle_ms
from spark_replog.commit.append_request import AppendRequest, ProduceResponse, refuse_all, respond_to
from spark_replog.commit.catch_up import BackgroundRuns, CatchUp
from spark_replog.commit.ledger_append import AppendServices, LedgerAppend
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.state_changes import complete_reassignments
from spark_replog.config import CoordinatorConfig
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import LedgerId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Outcome

_log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)


class ReplicaManager:
    """Thread safe; one per cluster and process is enough.

    Args:
        config: time-outs; None: the cluster's.
        after_append: called with the ledger after each successful append; returns at once, and raises nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: CoordinatorConfig | None = None,
        after_append: Callable[[Ledger[TopicLedgerState]], object] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        config = config or cluster.config
        fetcher = ReplicaFetcher(cluster.brokers, config, clock=cluster.clock)
        self._catch_up = CatchUp(cluster.brokers, config, cluster.clock, fetcher)
        self._later = BackgroundRuns(partial(self._look_after_replicas, is_copying=True))
        self._after_append = after_append
        purgatory = DelayedOperationPurgatory(clock=cluster.clock)
        self._services = AppendServices(config, cluster.clock, purgatory, fetcher, cluster, self._catch_up)

    def append_records(self, requests: Mapping[LedgerId, AppendRequest]) -> dict[LedgerId, ProduceResponse]:
        """Replicate and decide one append per ledger, each alone and all in parallel.

        With acks 0 and 1 followers get their copies after the answer, in the background: see ``await_copies``.

        Returns:
            One response per ledger. Some may be decided and others not; a repeated call finds the decided ones as
            duplicates.
        """
        fault_point("commit.begin")
        responses: dict[LedgerId, ProduceResponse] = {}
        appends = [partial(self._append, each, requests[each], responses) for each in requests]
        threads = [DaemonThread(each, name="replog-append") for each in appends[1:]]
        for thread in threads:
            thread.start()
        for first in appends[:1]:
            first()
        for thread in threads:
            thread.join()
        throttle_ms = self._throttle(requests, responses)
        if throttle_ms:
            self._cluster.clock.sleep_ms(throttle_ms)
        return {each: replace(responses[each], throttle_time_ms=throttle_ms) for each in requests}

    def await_copies(self, timeout_ms: int | None = None) -> bool:
        """Wait for the copies that acks 0 and 1 leave to the background; return whether none is left to make.

        For a process that may end: what is not copied in time is left to the next commit or coordinator.

        Args:
            timeout_ms: None: ``replica.catchup.budget.ms``.
        """
        return self._later.wait(self._services.config.replica_catchup_budget_ms if timeout_ms is None else timeout_ms)

    def _throttle(
        self, requests: Mapping[LedgerId, AppendRequest], responses: Mapping[LedgerId, ProduceResponse]
    ) -> int:
        """Return for how long the client's quota holds the answer back; the rows are decided already."""
        applied = {
            ledger_id: requests[ledger_id].append
            for ledger_id, response in responses.items()
            if response.result is not None and response.result.outcome is Outcome.APPLIED
        }
        if not applied:
            return 0
        return produce_throttle_ms(self._cluster, applied, min(each.timeout_ms for each in requests.values()) // 2)

    def _append(self, ledger_id: LedgerId, request: AppendRequest, responses: dict[LedgerId, ProduceResponse]) -> None:
        """Put the response of one ledger into ``responses``."""
        if request.required_acks not in ACKS:
            error = InvalidConfigError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                "acks is 'all' (-1), 0 or 1. Nothing was appended.",
                acks=request.required_acks,
            )
            responses[ledger_id] = refuse_all(request.append, error)
            return
        deadline_ms = self._services.clock.monotonic_ms() + request.timeout_ms
        ledger = self._cluster.topic_ledger(ledger_id)
        response = self._attempt(ledger, request)
        if response.is_short:
            # No other process looks for a root that is back, and without it no append would ever succeed again.
            is_back = self._look_after_replicas(ledger, is_short=True)
            rest_ms = deadline_ms - self._services.clock.monotonic_ms()
            if is_back and response.error is not None and rest_ms > 0:
                response = self._attempt(ledger, replace(request, timeout_ms=rest_ms))
        responses[ledger_id] = response
        if response.error is None:
            self._after_append(ledger)
            if request.required_acks != -1:
                self._later.start(ledger)
            elif self._catch_up.is_due(ledger_id):
                self._look_after_replicas(ledger)

    def _attempt(self, ledger: Ledger[TopicLedgerState], request: AppendRequest) -> ProduceResponse:
        attempt: LedgerAppend | None = None
        try:
            self._cluster.refresh_if_stale()  # ACLs and quotas
            attempt = LedgerAppend(ledger, request, self._services)
            result = attempt.run()
            with ledger.lock:
                return respond_to(ledger.state, request, result, attempt.refused)
        except ReplogError as error:
            return refuse_all(request.append, error, None, {} if attempt is None else attempt.refused)
        except Exception as error:  # a thread must not die silently: the caller waits for its answer
            _log.exception("append to ledger %s failed", ledger.ledger_id)
            unexpected = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"append failed: {error!r}. Report it.", ledger=ledger.ledger_id
            )
            unexpected.__cause__ = error
            return refuse_all(request.append, unexpected)

    def _look_after_replicas(
        self, ledger: Ledger[TopicLedgerState], *, is_copying: bool = False, is_short: bool = False
    ) -> bool:
        """Bring followers up to date after an append; never fails it. Return whether a replica is back in sync.

        Args:
            is_copying: whether in-sync replicas get what acks 0 and 1 left to copy.
            is_short: too few replicas are in sync: look now, however short ago the last look was.
        """
        config, is_back = self._services.config, False
        try:
            if is_copying:
                self._catch_up.copy_to_followers(ledger)
            if not is_copying or self._catch_up.is_due(ledger.ledger_id):
                is_back = self._catch_up.readmit(ledger, is_short=is_short)
                complete_reassignments(ledger, config.delivery_timeout_ms)
        except ReplogError as error:
            _log.warning("catch-up of ledger %s is left to a later commit: %s", ledger.ledger_id, error)
        return is_back
