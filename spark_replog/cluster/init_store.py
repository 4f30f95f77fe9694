"""Creates a store (``replog init``): root files, probes, the cluster ledger's folders, broker registration.

Every step is repeatable: the same command resumes an interrupted run. Any other existing root is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from spark_replog.cluster.cluster import Cluster, StorePath, forget_shared
from spark_replog.errors import ErrorCode, ReplogError, invalid_option
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.model import BrokerRegister
from spark_replog.storage.brokers import BrokerSet, write_root_files
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.open_store import normalise_url
from spark_replog.storage.paths import ledger_folders
from spark_replog.storage.probe import probe_root

BROKER_COUNT_MAX = 1000
TWO_BROKERS_WARNING = (
    "With two brokers, losing one loses no rows, but nothing can be written until it is back or rebuilt by 'replog "
    "store repair': a majority of two journals is both. Use one broker for a throw-away store, and three or more to "
    "stay writable."
)


def init_cluster(
    path: StorePath,
    broker_count: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    fsync: bool = True,
    racks: Sequence[str] | None = None,
    timeout_ms: int = 60_000,
) -> Cluster:
    """Create a store and return it opened.

    Args:
        path: a parent directory (gets broker-0 .. broker-N-1), or the roots, comma separated.
        broker_count: N for a parent directory; default 1. With a list, its length or None.
        storage_options: for every root.
        fsync: False for throw-away stores; recorded in every root file.
        racks: one per broker, or None.
        timeout_ms: for the registration of the brokers.

    Raises:
        ReplogError: REPLOG_STORE_EXISTS: a root belongs to another or a finished store;
            REPLOG_STORE_LIES: a root's create-if-absent is broken.
        InvalidConfigError: REPLOG_INVALID_OPTION: broker count and path do not match.
    """
    path, options = os.fspath(path), dict(storage_options or {})
    urls = root_urls(path, broker_count)
    brokers = _brokers_to_finish(urls, options, racks, fsync)
    probes = {
        root: IO_POOL.submit_to(brokers.url(root), probe_root, brokers.store(root)) for root in brokers.broker_ids
    }
    reports = {root: json.dumps(probe.result().to_dict(), sort_keys=True) for root, probe in probes.items()}
    for broker_id in brokers.metadata_broker_ids:
        for folder in ledger_folders(brokers.cluster_id):
            brokers.store(broker_id).make_folder(folder)
    forget_shared(brokers)  # a store that was removed from there: this process would go on with its topics
    cluster = Cluster.open(path, options)
    _register(cluster, reports, timeout_ms)
    return cluster


def root_urls(path: str, broker_count: int | None) -> list[str]:
    """Return the roots that ``init`` makes. Raises REPLOG_INVALID_OPTION."""
    roots = [part.strip() for part in path.split(",") if part.strip()]
    if len(roots) > 1:
        if broker_count is not None and broker_count != len(roots):
            raise invalid_option(
                f"the store names {len(roots)} roots but {broker_count} brokers are asked for. Leave --brokers out."
            )
        return roots
    count = 1 if broker_count is None else broker_count
    if not roots or not 1 <= count <= BROKER_COUNT_MAX:
        raise invalid_option(
            f"a store needs a path and 1 to {BROKER_COUNT_MAX} brokers. Give replog -s PATH init --brokers 3."
        )
    normalise_url(roots[0])  # so that an error shows the URL as given
    return [f"{roots[0].rstrip('/')}/broker-{number}" for number in range(count)]


def _brokers_to_finish(
    urls: Sequence[str], storage_options: Mapping[str, str], racks: Sequence[str] | None, fsync: bool
) -> BrokerSet:
    """Write the root files; if all are in place, continue only if the registration is unfinished."""
    try:
        return write_root_files(urls, storage_options, racks=racks, fsync=fsync)
    except ReplogError as error:
        is_complete = error.context.pop("complete", False)  # it tells a user nothing
        if error.code is not ErrorCode.REPLOG_STORE_EXISTS or not is_complete:
            raise
        cluster = Cluster.open(",".join(urls), storage_options)
        cluster.refresh()
        with cluster.cluster_ledger.lock:
            registered = set(cluster.cluster_ledger.state.brokers)
        if registered.issuperset(cluster.brokers.broker_ids):
            raise
        return cluster.brokers


def _register(cluster: Cluster, probes: Mapping[int, str], timeout_ms: int) -> None:
    """Register every broker in the cluster ledger; skip those already registered."""
    for broker_id in cluster.brokers.broker_ids:
        command = BrokerRegister(
            broker_id, cluster.brokers.url(broker_id), cluster.brokers.rack(broker_id), probes[broker_id]
        )

        def propose(state: ClusterLedgerState, command: BrokerRegister = command) -> bytes | None:
            return None if command.broker_id in state.brokers else encode_command(command)

        cluster.cluster_ledger.append(propose, timeout_ms=timeout_ms)
