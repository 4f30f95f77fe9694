"""How a waiting reader learns of new entries of the ledgers that it reads: at times by a schedule, told by a watch.

Shared by plain consumers, one for each, and gateways, one for all their clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from spark_replog.client.look_schedule import LookSchedule, idle_gets_per_second
from spark_replog.clock import SYSTEM_CLOCK
from spark_replog.cluster.cluster import ACCESS_AGE_MS, Cluster, TopicHandle
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.ids import LedgerId
from spark_replog.storage.folder_watch import FolderWatch
from spark_replog.storage.paths import journal_folder

_LOG = logging.getLogger(__name__)
WATCH_AGAIN_MS = 10_000
"""How long until journals that could not be watched are tried again: a root may be back."""


class LedgerLooks:
    """For one reader; not thread-safe.

    Args:
        interval_ms: the longest pause between looks; None: as short as the limit of an idle reader's gets allows.
        on_look: called each time a waiting reader looks again; an error that it raises ends the wait.
        count: called with the numbers of looks at one root, and of reads of a ledger, that were made.
    """

    def __init__(
        self,
        cluster: Cluster,
        interval_ms: int | None,
        *,
        on_look: Callable[[], None] | None = None,
        count: Callable[[int, int], None] = lambda _peeks, _reads: None,
    ) -> None:
        self._cluster = cluster
        self._on_look = on_look
        brokers = cluster.brokers
        self._schedule = LookSchedule(
            len(brokers.metadata_broker_ids), idle_gets_per_second(brokers), interval_ms, cluster.clock.monotonic_ms()
        )
        self._peek = JournalPeek(brokers)
        self._watch: FolderWatch | None = None
        self._watched: tuple[LedgerId, ...] = ()
        self._watch_again_ms = 0
        self._count = count

    @property
    def is_idle(self) -> bool:
        """Return whether every ledger was looked at and none had rows lately."""
        return self._schedule.is_idle(self._cluster.clock.monotonic_ms())

    def keep(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Look at these ledgers, and rarely at the cluster's, from now on."""
        wanted, cluster_id = tuple(ledger_ids), self._cluster.brokers.cluster_id
        now_ms = self._cluster.clock.monotonic_ms()
        self._schedule.keep(wanted, now_ms, rarely=cluster_id, rarely_ms=ACCESS_AGE_MS)
        self._watch_journals((*wanted, cluster_id))

    def rows_came(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Look at these more often again, since more rows may come."""
        self._schedule.rows_came(ledger_ids, self._cluster.clock.monotonic_ms())

    def spend(self, get_count: float) -> None:
        """Count gets that the reader makes elsewhere: they take their part of what it may cost."""
        self._schedule.spend_elsewhere(get_count, self._cluster.clock.monotonic_ms())

    def close(self) -> None:
        """Close the watch: the kernel allows each user only a few."""
        if self._watch is not None:
            self._watch.close()

    def refresh(self, handles: Iterable[TopicHandle], since: int | None = None) -> None:
        """Fold the newest entries of these topics' ledgers, but not of those that were read since a mark.

        These stay due: entries may have come since, before a watch began.
        """
        by_ledger = {handle.ledger_id: handle for handle in self._cluster.unread_since(handles, since)}
        began_ms = self._cluster.clock.monotonic_ms()
        self._cluster.refresh_topics(by_ledger.values())
        self._count(0, len(by_ledger))
        now_ms = self._cluster.clock.monotonic_ms()
        self._schedule.looked(by_ledger, now_ms, now_ms - began_ms)

    def look(self, handles: Mapping[LedgerId, TopicHandle], since: int | None) -> float:
        """Look at the ledgers that are due, but not at those read since a mark; return when the next one is due.

        The latter stay due, as in `refresh`.
        """
        self.hear()
        cluster, cluster_id = self._cluster, self._cluster.brokers.cluster_id
        began_ms = cluster.clock.monotonic_ms()
        due = self._schedule.due(began_ms)
        if not due:
            return self._schedule.next_ms(began_ms)
        asked = [
            cluster.cluster_ledger if ledger_id == cluster_id else cluster.topic_ledger(ledger_id)
            for ledger_id, is_read in due.items()
            if not is_read
        ]
        grown = self._peek.grown(asked)
        read = [ledger_id for ledger_id, is_read in due.items() if is_read or ledger_id in grown]
        if any(is_seen for ledger_id, is_seen in grown.items() if ledger_id != cluster_id):
            cluster.refresh_ahead()  # of the rights: rows that come after a long wait need them at once
        wanted = [handles[ledger_id] for ledger_id in read if ledger_id != cluster_id]
        topics = cluster.unread_since(wanted, since)
        cluster.refresh_topics(topics)
        if cluster_id in read:
            cluster.refresh()
        self._count(len(asked), len(topics))
        now_ms = cluster.clock.monotonic_ms()
        left = {handle.ledger_id for handle in wanted} - {handle.ledger_id for handle in topics}
        self._schedule.looked([ledger_id for ledger_id in due if ledger_id not in left], now_ms, now_ms - began_ms)
        return self._schedule.next_ms(now_ms)

    def pause(self, pause_ms: float) -> bool:
        """Wait until the watch reports something; return False if it did not. Raises what ``on_look`` raises."""
        if self._watch is None:
            self._cluster.clock.sleep_ms(pause_ms)
        is_told = self.hear(pause_ms)
        if self._on_look is not None:
            self._on_look()
        return is_told

    def hear(self, timeout_ms: float = 0) -> bool:
        """Schedule what the watch reports; return whether it reported anything."""
        if self._watch is None:
            return False
        told = self._watch.wait(timeout_ms)
        self._schedule.told(self._watched[index] for index in told)
        self._schedule.is_told = self._watch.has_told
        return bool(told)

    def _watch_journals(self, ledger_ids: tuple[LedgerId, ...]) -> None:
        """Watch the ledgers' journals, unless a metadata root is not a folder of this machine."""
        brokers, now_ms = self._cluster.brokers, self._cluster.clock.monotonic_ms()
        metadata_ids = brokers.metadata_broker_ids
        if self._cluster.clock is not SYSTEM_CLOCK or not brokers.local_ids.issuperset(metadata_ids):
            return
        if set(self._watched) != set(ledger_ids) or (self._watch is None and now_ms >= self._watch_again_ms):
            self._watched, self._watch, self._watch_again_ms = ledger_ids, None, now_ms + WATCH_AGAIN_MS
            roots = [brokers.url(broker_id).removeprefix("file://") for broker_id in metadata_ids]
            try:
                self._watch = FolderWatch(
                    [[f"{root}/{journal_folder(ledger_id)}" for root in roots] for ledger_id in ledger_ids]
                )
                self._schedule.told(ledger_ids)  # whatever came before the watch
            except OSError as error:
                _LOG.debug("the journals cannot be watched, so they are read at intervals: %s", error)
        if self._watch is not None and not self._watch.is_usable:
            self._watch = None
        self._schedule.is_told = self._watch is not None and self._watch.has_told
