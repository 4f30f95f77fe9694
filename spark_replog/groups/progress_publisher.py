"""The position of a streaming query or a table sync, shown as the offsets of a consumer group. Best effort.

The truth is the query's checkpoint, or the table. Runs in the reader's own Python process. A query's position is
published by a thread, so that a micro-batch never waits for it. On a slow store it skips positions: the newest one
replaces the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from spark_replog.cluster.cluster import Cluster
from spark_replog.daemon_thread import DaemonThread
from spark_replog.errors import ReplogError
from spark_replog.groups.group_coordinator import (
    OFFSETS_RETENTION_MINUTES,
    RENEWALS_PER_RETENTION,
    GroupCoordinator,
)
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.codec.group_records import OffsetAndMetadata

_LOG = logging.getLogger(__name__)
PUBLISH_INTERVAL_MS = 5_000
"""The default of ``auto.commit.interval.ms``."""
RENEWAL_INTERVAL_MS = OFFSETS_RETENTION_MINUTES * 60_000 // RENEWALS_PER_RETENTION
"""An unchanged position is published again, so that it does not expire while a query is idle."""
NOTE = "position of a Spark query"


class ProgressPublisher:
    """Publishes for one reader. Thread safe."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        principal: str | None = None,
        interval_ms: int = PUBLISH_INTERVAL_MS,
    ) -> None:
        self._clock = cluster.clock
        self._coordinator = GroupCoordinator(cluster, principal=principal)
        self._group = group
        self._interval_ms = interval_ms
        self.wanted: dict[TopicPartition, int] = {}
        """The positions that ``flush`` commits."""
        self._topic_ids: Mapping[str, TopicId] = {}
        self._note = NOTE
        self._done: dict[TopicPartition, tuple[tuple[int, str], int]] = {}
        self._failure: str | None = None  # of the last try, as it was logged
        self._lock = threading.Lock()
        self._has_news = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def remember(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, TopicId], note: str = NOTE
    ) -> None:
        """Set the position that ``flush`` commits, for a reader that calls it by itself.

        Args:
            topic_ids: of the topics that were read: an offset of another topic of the same name is not published.
            note: what the reader says of itself, such as an error; shown beside the position.
        """
        with self._lock:
            self.wanted, self._topic_ids, self._note = dict(positions), topic_ids, note

    def publish(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, TopicId]) -> None:
        """Set the position, and commit it in a thread; returns without waiting and raises nothing."""
        self.remember(positions, topic_ids)
        with self._lock:
            if self._thread is None:
                self._thread = DaemonThread(self._run, name="replog-progress", stop=self._end)
                self._thread.start()
        self._has_news.set()

    def flush(self) -> bool:
        """Commit new positions; return whether none is left. A failure is logged, a lasting one once."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            ids, note = self._topic_ids, self._note
            moved = {
                key: at
                for key, at in self.wanted.items()
                if self._done.get(key, (None, 0))[0] != (at, note) or now_ms - self._done[key][1] >= RENEWAL_INTERVAL_MS
            }
        if not moved:
            return True
        values = {key: OffsetAndMetadata(at, -1, note, topic_id=ids.get(key.topic, "")) for key, at in moved.items()}
        try:
            answers = self._coordinator.commit_offsets(self._group, values)
        except Exception as error:  # no error may reach the reader
            kind = error.code.name if isinstance(error, ReplogError) else type(error).__name__
            level = logging.DEBUG if kind == self._failure else logging.WARNING  # it is tried again every few seconds
            _LOG.log(level, "progress of group %s is not published, the reader goes on: %s", self._group, error)
            self._failure = kind
            return False
        self._failure = None
        for key, refusal in answers.items():
            if refusal is not None:
                _LOG.warning("progress of %s-%s is not published: %s", key.topic, key.partition, refusal)
        self._done.update({key: ((at, note), now_ms) for key, at in moved.items()})
        return True

    def _run(self) -> None:
        while not self._ended.is_set():
            self._has_news.wait(RENEWAL_INTERVAL_MS / 1000.0)
            self._has_news.clear()
            if not self.flush():
                self._has_news.set()
            self._ended.wait(self._interval_ms / 1000.0)

    def _end(self) -> None:
        self._ended.set()
        self._has_news.set()
