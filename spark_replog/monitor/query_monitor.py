"""Positions and lags of streaming queries, read from their checkpoints. Writes nothing.

Works while the query is down. Its position is the end of its newest finished batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replog.admin.admin import Admin
from spark_replog.cluster.cluster import TopicHandle
from spark_replog.errors import NotFoundError
from spark_replog.health.lag import Lag, first_append_times, lag_of
from spark_replog.health.readers import PartitionProgress, Reader
from spark_replog.ids import TopicPartition
from spark_replog.log.acl import AclOperation
from spark_replog.monitor.checkpoint import Batch, Checkpoint


class QueryMonitor(Admin):
    """Thread safe. Arguments: see ``Admin``."""

    def describe(self, checkpoint: Checkpoint) -> Reader:
        """Return a query with its lags on the newest folds; no row is read.

        A topic that was deleted or recreated has no lag. A partition that was added after the newest batch is read
        from its first offset.

        Raises:
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED: without DESCRIBE on a topic.
            RetriableError: REPLOG_NO_QUORUM.
        """
        running, done = checkpoint.running, checkpoint.done
        newest = done[-1] if done else None
        batch = newest or running
        positions = {} if batch is None else batch.ends if newest else batch.starts or dict.fromkeys(batch.ends, 0)
        ids = {} if batch is None else batch.topic_ids
        handles = {}
        for name in sorted({key.topic for key in positions} | ids.keys()):
            self._require_topic(AclOperation.DESCRIBE, name)
            try:
                handle = self._cluster.lookup(name)
            except NotFoundError:
                continue
            if handle.topic_id == ids.get(name):
                handles[name] = handle
        self._cluster.refresh_topics(handles.values())
        planned_ms = 0 if newest is None else newest.time_ms
        keys = {*positions, *(key for handle in handles.values() for key in self._added(handle, positions, planned_ms))}
        parts = tuple(self._progress(key, handles.get(key.topic), positions.get(key, 0), done) for key in sorted(keys))
        return Reader(
            checkpoint.url,
            "query",
            "IN_BATCH" if running else "IDLE" if newest else "NEW",
            parts,
            running.time_ms if running else planned_ms,
            running.time_ms if running else planned_ms,
            batch_id=running.batch_id if running else newest.batch_id if newest else -1,
        )

    def _added(self, handle: TopicHandle, positions: Iterable[TopicPartition], planned_ms: int) -> list[TopicPartition]:
        """Return the partitions that are new to the query.

        A partition that already had rows when the newest batch was planned is not: the query did not subscribe to it.
        """
        ledger = self._cluster.topic_ledger(handle.ledger_id)
        known, found = set(positions), []
        for number, time_ms in enumerate(ledger.ask(lambda state: first_append_times(state, handle.topic_id))):
            key = TopicPartition(handle.name, number)
            if key not in known and time_ms is not None and time_ms > planned_ms:
                found.append(key)
        return found

    def _progress(
        self, key: TopicPartition, handle: TopicHandle | None, position: int, done: tuple[Batch, ...]
    ) -> PartitionProgress:
        history = [(batch.time_ms, at) for batch in done if (at := batch.ends.get(key)) is not None]
        since_ms = next((time_ms for time_ms, at in history if at == position), None)
        lag: Lag | None = None
        if handle is not None:
            ledger = self._cluster.topic_ledger(handle.ledger_id)
            now_ms = self._cluster.clock.now_ms()
            lag = ledger.ask(lambda state: lag_of(state, handle.topic_id, key.partition, position, now_ms, history))
        position_ms = history[-1][0] if history else None
        return PartitionProgress(key.topic, key.partition, position, position_ms, since_ms, lag)
