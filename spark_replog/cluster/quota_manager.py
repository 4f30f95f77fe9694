"""Client quotas: who must wait, and how long. Source: Kafka's ``ClientQuotaManager``.

Produce rates come from folded entries, so every coordinator finds the same one; fetch rates are
per process. Nothing is dropped: an answer is held back.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.cluster.cluster import Cluster
from spark_replog.ids import LedgerId
from spark_replog.log.acl import normal_principal
from spark_replog.log.model import Append
from spark_replog.log.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    FetchQuota,
    bounded_throttle_time_ms,
    rate_key,
)


def produce_throttle_ms(cluster: Cluster, appends: Mapping[LedgerId, Append], limit_ms: int) -> int:
    """Return how long the answer to appends that were just decided must wait.

    The rate is each ledger's own, as Kafka's is each broker's; the longest wait counts, not the sum.

    Args:
        cluster: the opened store; its cluster ledger as folded so far is what counts.
        appends: applied ones, folded already.
    """
    waits = [0]
    for ledger_id, append in appends.items():
        user = normal_principal(append.principal)
        with cluster.cluster_ledger.lock:
            quota = cluster.cluster_ledger.state.quotas.find(PRODUCER_BYTE_RATE, user, append.client_id)
        if quota is None:
            continue
        ledger = cluster.topic_ledger(ledger_id)
        with ledger.lock:
            key = rate_key(quota.scope, user, append.client_id)
            observed, window_ms = ledger.state.produce_rates.measure(key, ledger.state.append_time_ms)
        waits.append(bounded_throttle_time_ms(observed, quota.limit_per_second, window_ms, limit_ms))
    return max(waits)


def fetch_quota(cluster: Cluster, principal: str, client_id: str) -> FetchQuota | None:
    """Return what a reader must keep to, None for no bound. Plain: it is carried to tasks."""
    user = normal_principal(principal)
    with cluster.cluster_ledger.lock:
        quota = cluster.cluster_ledger.state.quotas.find(CONSUMER_BYTE_RATE, user, client_id)
    return None if quota is None else FetchQuota(quota.limit_per_second, rate_key(quota.scope, user, client_id))
