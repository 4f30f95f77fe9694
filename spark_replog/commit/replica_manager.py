"""Appends of micro-batches: replication first, then one decided ENTRY per ledger.

Runs in the process that commits. Source of the order of checks: Kafka's
``ReplicaManager.appendRecords``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.quota_manager import ClientQuotaManager
from spark_replog.commit.append_request import ProduceResponse, refuse_all, respond_to
from spark_replog.commit.catch_up import CatchUp
from spark_replog.commit.ledger_append import AppendServices, LedgerAppend
from spark_replog.commit.proposals import advance_generation
from spark_replog.commit.purgatory import DelayedOperationPurgatory
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.state_changes import complete_reassignments, completions
from spark_replog.config import CoordinatorConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, PartitionKey
from spark_replog.log.codec.commands import Append
from spark_replog.log.model import Outcome

_log = logging.getLogger(__name__)

ResponseCallback = Callable[[Mapping[LedgerId, ProduceResponse]], None]
ACKS = (-1, 0, 1)


class ReplicaManager:
    """Thread safe; one per cluster and process is enough.

    Args:
        cluster: the opened store.
        config: time-outs; None: the cluster's.
    """

    def __init__(self, cluster: Cluster, config: CoordinatorConfig | None = None) -> None:
        self._cluster = cluster
        config = config or cluster.config
        fetcher = ReplicaFetcher(cluster.brokers, config, clock=cluster.clock)
        self._catch_up = CatchUp(cluster.brokers, config, cluster.clock, fetcher)
        purgatory = DelayedOperationPurgatory(clock=cluster.clock)
        self._services = AppendServices(config, cluster.clock, purgatory, fetcher, cluster, self._catch_up)
        self._quotas = ClientQuotaManager(cluster)

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        internal_topics_allowed: bool,
        entries: Mapping[LedgerId, Append],
        response_callback: ResponseCallback,
        *,
        is_atomic: bool = True,
        copied: Mapping[LedgerId, Mapping[ObjectId, set[BrokerId]]] | None = None,
    ) -> None:
        """Replicate and decide one append per ledger; answers once, before it returns.

        Args:
            timeout_ms: how long replicas may take (``request.timeout.ms``).
            required_acks: -1, 0 or 1; anything else answers INVALID_REQUIRED_ACKS and appends nothing.
            internal_topics_allowed: whether Kafka's internal topics may be written.
            entries: one append per ledger; each is decided alone, in parallel with the others.
            response_callback: gets one response per ledger, exactly once. With several ledgers some
                may be decided and others not; a repeated call finds the decided ones as duplicates.
            is_atomic: True (a micro-batch): one refused partition refuses its ledger's whole append.
                False (Kafka's produce request): it is left out with its own error, and the other
                partitions' rows are appended.
            copied: per ledger: older objects that replicas have got and that no entry says yet; decided
                with the append.
        """
        if required_acks not in ACKS:
            error = InvalidConfigError(
                ErrorCode.INVALID_REQUIRED_ACKS, "acks is 'all' (-1), 0 or 1. Nothing was appended.", acks=required_acks
            )
            response_callback({ledger_id: refuse_all(append, error) for ledger_id, append in entries.items()})
            return
        responses: dict[LedgerId, ProduceResponse] = {}

        def append_to(ledger_id: LedgerId) -> None:
            responses[ledger_id] = self._append_one(
                ledger_id,
                entries[ledger_id],
                timeout_ms,
                required_acks,
                internal_topics_allowed,
                is_atomic,
                (copied or {}).get(ledger_id, {}),
            )

        first, *others = entries or (None,)
        threads = [threading.Thread(target=append_to, args=(each,), daemon=True) for each in others]
        for thread in threads:
            thread.start()
        if first is not None:
            append_to(first)
        for thread in threads:
            thread.join()
        throttle_ms = self._throttle(entries, responses, timeout_ms // 2)
        response_callback({each: replace(responses[each], throttle_time_ms=throttle_ms) for each in entries})

    def _throttle(
        self, entries: Mapping[LedgerId, Append], responses: Mapping[LedgerId, ProduceResponse], limit_ms: int
    ) -> int:
        """Hold the answer back as the client's quota asks; the rows are decided already. Return for how long."""
        applied = {
            ledger_id: entries[ledger_id]
            for ledger_id, response in responses.items()
            if response.result is not None and response.result.outcome is Outcome.APPLIED
        }
        throttle_ms = self._quotas.produce_throttle_ms(applied, limit_ms)
        if throttle_ms:
            self._cluster.clock.sleep_ms(throttle_ms)
        return throttle_ms

    def _append_one(
        self,
        ledger_id: LedgerId,
        append: Append,
        timeout_ms: int,
        required_acks: int,
        internal_topics_allowed: bool,
        is_atomic: bool,
        copied: Mapping[ObjectId, set[BrokerId]],
    ) -> ProduceResponse:
        def attempt(rest_ms: int) -> ProduceResponse:
            return self._attempt(ledger_id, append, rest_ms, required_acks, internal_topics_allowed, is_atomic, copied)

        deadline_ms = self._services.clock.monotonic_ms() + timeout_ms
        response = attempt(timeout_ms)
        if _is_short(response):
            # Nobody else looks for a root that is back, and without it no append would ever succeed again.
            is_back = self._look_after_replicas(ledger_id, -1, is_short=True)
            rest_ms = deadline_ms - self._services.clock.monotonic_ms()
            if is_back and response.error is not None and rest_ms > 0:
                response = attempt(rest_ms)
        if response.error is None:
            self._look_after_replicas(ledger_id, required_acks)
        return response

    def _attempt(
        self,
        ledger_id: LedgerId,
        append: Append,
        timeout_ms: int,
        required_acks: int,
        internal_topics_allowed: bool,
        is_atomic: bool,
        copied: Mapping[ObjectId, set[BrokerId]],
    ) -> ProduceResponse:
        refused: dict[PartitionKey, ReplogError] = {}
        try:
            self._cluster.refresh_if_stale()  # ACLs and quotas
            ledger = self._cluster.topic_ledger(ledger_id)
            attempt = LedgerAppend(
                ledger,
                append,
                required_acks=required_acks,
                internal_topics_allowed=internal_topics_allowed,
                is_atomic=is_atomic,
                timeout_ms=timeout_ms,
                services=self._services,
                refused=refused,
                copied=copied,
            )
            result = attempt.run()
            with ledger.lock:
                return respond_to(ledger.state, append, result, refused, required_acks)
        except ReplogError as error:
            return refuse_all(append, error, None, refused)
        except Exception as error:  # a thread must not die silently: the caller waits for its answer
            _log.exception("append to ledger %s failed", ledger_id)
            unexpected = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"append failed: {error!r}. Report it.", ledger=ledger_id
            )
            unexpected.__cause__ = error
            return refuse_all(append, unexpected)

    def _look_after_replicas(self, ledger_id: LedgerId, required_acks: int, *, is_short: bool = False) -> bool:
        """Bring followers up to date behind an append; never fails it. Return whether a replica is back in sync."""
        ledger = self._cluster.topic_ledger(ledger_id)
        is_back = False
        try:
            if required_acks != -1:
                self._catch_up.copy_to_followers(ledger)
            is_back = self._catch_up.readmit(ledger, is_short=is_short)
            with ledger.lock:
                is_moved = bool(completions(ledger.state))
            if is_moved:
                complete_reassignments(ledger, self._services.config.delivery_timeout_ms)
            config, now_ms = self._services.config, self._services.clock.now_ms()
            advance_generation(ledger, now_ms, config.gc_floor_lag_ms, config.delivery_timeout_ms)
        except ReplogError as error:
            _log.warning("catch-up of ledger %s is left to a later commit: %s", ledger_id, error)
        return is_back


def _is_short(response: ProduceResponse) -> bool:
    """Return whether too few replicas are in sync for some partition."""
    errors = [response.error, *(each.error for each in response.partitions.values())]
    return any(error is not None and error.code is ErrorCode.NOT_ENOUGH_REPLICAS for error in errors)
