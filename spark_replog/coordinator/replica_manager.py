"""Appends of micro-batches: replication first, then one decided ENTRY."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_replog.config import CoordinatorConfig
from spark_replog.coordinator.cluster import Cluster
from spark_replog.coordinator.produce_response import ProduceResponse
from spark_replog.ids import LedgerId
from spark_replog.log.commands import Append

ResponseCallback = Callable[[Mapping[LedgerId, ProduceResponse]], None]


class ReplicaManager:
    """Runs in the process that commits. Thread safe; one per cluster and process is enough."""

    def __init__(self, cluster: Cluster, config: CoordinatorConfig | None = None) -> None:
        self._cluster = cluster
        self._config = config or cluster.config

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        internal_topics_allowed: bool,
        entries: Mapping[LedgerId, Append],
        response_callback: ResponseCallback,
    ) -> None:
        """Replicate and decide one append per ledger; answers once, before it returns.

        Args:
            timeout_ms: how long replicas may take (``request.timeout.ms``).
            required_acks: -1, 0 or 1; anything else answers INVALID_REQUIRED_ACKS and appends nothing.
            internal_topics_allowed: whether Kafka's internal topics may be written.
            entries: one append per ledger; decided each alone, in parallel.
            response_callback: gets one response per ledger, exactly once.
        """
        ...
