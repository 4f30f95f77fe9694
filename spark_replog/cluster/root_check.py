"""Is a root there? Asked on its own I/O lane, so that a hung mount cannot hold up who asks."""

from __future__ import annotations

from collections.abc import Iterable

from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import io_pool
from spark_replog.storage.paths import journal_key, ledger_folders, out_key

ROOT_TIMEOUT_MS = 5000
"""A root that does not answer an admin command by then counts as away."""


def is_root_there(brokers: BrokerSet, broker_id: BrokerId, timeout_ms: int = ROOT_TIMEOUT_MS) -> bool:
    """Return whether the root answers in time and is what its ``replog.json`` said at open."""
    answer = io_pool().submit_to(brokers.url(broker_id), brokers.check_root, broker_id)
    try:
        answer.result(timeout_ms / 1000.0)
    except (ReplogError, TimeoutError):
        answer.cancel()
        return False
    return True


def check_root_and_journal(cluster: Cluster, broker_id: BrokerId) -> None:
    """Look at a root's ``replog.json`` and whether its journal of the cluster ledger is as long as others know it.

    Two small gets more; ``store verify`` reads every journal whole. Refresh the cluster first.

    Raises:
        RetriableError: REPLOG_ROOT_STALE, also where the journal went back; what the store raises.
    """
    cluster.brokers.check_root(broker_id)
    if broker_id not in cluster.brokers.metadata_broker_ids:
        return
    ledger_id, store = cluster.brokers.cluster_id, cluster.brokers.store(broker_id)
    position = cluster.cluster_ledger.named_position(broker_id)
    is_short = position >= 0 and store.get(journal_key(ledger_id, position)) is None
    if is_short or store.get(out_key(ledger_id)) is not None:
        raise RetriableError(
            ErrorCode.REPLOG_ROOT_STALE,
            "its journal was set back: records that it had are gone. Put them back, or run 'replog store repair "
            f"--rebuild {broker_id}'. 'replog store verify' says more.",
            broker=broker_id,
        )


def make_ledger_folders(brokers: BrokerSet, ledger_id: LedgerId, broker_ids: Iterable[BrokerId]) -> set[BrokerId]:
    """Make a ledger's folders on brokers; return those whose root is away, which get none.

    A root that is not what it says must not get folders: it would come back as an empty one.
    """
    away = set()
    for broker_id in sorted(broker_ids):
        if not is_root_there(brokers, broker_id):
            away.add(broker_id)
            continue
        for folder in ledger_folders(ledger_id, metadata=broker_id in brokers.metadata_broker_ids):
            brokers.store(broker_id).make_folder(folder)
    return away
