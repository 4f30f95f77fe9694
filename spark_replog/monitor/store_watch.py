"""Repeated looks at a store, its groups and its queries, with verdicts, for metrics and the console. Writes nothing.

Each look folds the new entries. Roots are checked less often, because that takes more storage calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.root_check import RootLook
from spark_replog.errors import ReplogError
from spark_replog.health.readers import Judged, Limits, Reader, judge
from spark_replog.health.store import StoreHealth
from spark_replog.monitor.checkpoint import list_checkpoints, read_checkpoint
from spark_replog.monitor.query_monitor import QueryMonitor
from spark_replog.monitor.store_monitor import StoreMonitor

_LOG = logging.getLogger(__name__)
ROOT_LOOK_INTERVAL_MS = 30_000


class Seen(NamedTuple):
    """One look: the store, its groups and queries with verdicts, and the unreadable checkpoints."""

    health: StoreHealth
    readers: tuple[tuple[Reader, Judged], ...]
    unread: tuple[tuple[str, ReplogError], ...]


class StoreWatch:
    """Not thread safe.

    Args:
        checkpoints: checkpoint folders, or folders that contain several.
        storage_options: of the checkpoints' storage.
        limits: of the verdicts.
        root_look_ms: how often the roots are checked.
    """

    def __init__(
        self,
        cluster: Cluster,
        checkpoints: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        *,
        root_look_ms: int = ROOT_LOOK_INTERVAL_MS,
    ) -> None:
        self.cluster = cluster
        self._store, self._queries = StoreMonitor(cluster), QueryMonitor(cluster)
        self._checkpoints, self._options = tuple(checkpoints), dict(storage_options or {})
        self._limits, self._root_look_ms = limits or Limits(), root_look_ms
        self._looks: tuple[int, list[RootLook]] | None = None

    def look(self) -> Seen:
        """Look now. Raises what ``StoreMonitor.look`` raises; an unreadable checkpoint is returned, not raised."""
        now_ms = self.cluster.clock.monotonic_ms()
        if self._looks is None or now_ms - self._looks[0] >= self._root_look_ms:
            self.cluster.refresh()
            self._looks = (now_ms, self._store.look_at_roots())
        health = self._store.look(with_groups=True, looks=self._looks[1])
        unread: list[tuple[str, ReplogError]] = []
        readers = [*health.groups, *self._read_checkpoints(unread)]
        return Seen(health, tuple((each, judge(each, health.now_ms, self._limits)) for each in readers), tuple(unread))

    def _read_checkpoints(self, unread: list[tuple[str, ReplogError]]) -> Iterator[Reader]:
        for folder in self._checkpoints:
            try:
                for url in list_checkpoints(folder, self._options):
                    yield self._queries.describe(read_checkpoint(url, self._options))
            except ReplogError as error:
                _LOG.warning("the checkpoint %s cannot be read: %s", folder, error)
                unread.append((folder, error))
