"""Which root a repair makes: ``rebuild.json`` on the root says so until ``replog.json`` is there."""

from __future__ import annotations

from spark_replog.cluster.cluster import Cluster
from spark_replog.ids import BrokerId, new_root_id
from spark_replog.storage.object_store import ObjectStore
from spark_replog.storage.paths import REBUILD_KEY
from spark_replog.storage.root_file import encode_rebuild, read_rebuild


def root_id_to_make(cluster: Cluster, broker_id: BrokerId) -> str:
    """Return the id of the root that this repair makes; others at work there, or that died there, have the same.

    So two repairs at once write journals at the same positions, and a root that was lost again gets another id.
    """
    store, ledger = cluster.brokers.store(broker_id), cluster.cluster_ledger
    while True:
        cluster.refresh()
        with ledger.lock:
            made = new_root_id(ledger.state.applied_index + 1)
        store.create(REBUILD_KEY, encode_rebuild(made))
        found = read_rebuild(store)
        if found is not None and found >= cluster.brokers.root_ids.get(broker_id, ""):
            return found
        store.delete(REBUILD_KEY)  # of a root that was replaced since


def forget_finished(store: ObjectStore, root_id: str | None) -> None:
    """Delete what the repair that made the root with this id did not live to delete."""
    begun = read_rebuild(store)
    if begun is not None and begun <= (root_id or ""):
        store.delete(REBUILD_KEY)
