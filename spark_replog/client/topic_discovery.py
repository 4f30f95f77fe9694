"""Which topics a subscription means, and how many partitions they have."""

from __future__ import annotations

from collections.abc import Collection

from spark_replog.client.subscription_state import SubscriptionState
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.config import ConsumerConfig
from spark_replog.errors import NotFoundError
from spark_replog.ids import INTERNAL_TOPICS
from spark_replog.log.acl import AclOperation


class TopicDiscovery:
    """Looks again after ``metadata.max.age.ms``. Not thread safe.

    Args:
        cluster: the opened store.
        subscription: names or a pattern.
        config: ``exclude.internal.topics``.
    """

    def __init__(self, cluster: Cluster, subscription: SubscriptionState, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._config = config
        self._found: dict[str, int] = {}
        self._looked_ms: int | None = None

    def forget(self) -> None:
        """Look anew when next asked."""
        self._looked_ms = None

    def counts(self) -> dict[str, int]:
        """Return partition counts of the subscribed topics.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic subscribed to by name does not exist.
        """
        now_ms = self._cluster.clock.monotonic_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= self._cluster.config.metadata_max_age_ms:
            self._found = self.counts_of(self._names(), refresh=True)
            self._looked_ms = now_ms
        return dict(self._found)

    def counts_of(self, names: Collection[str], *, refresh: bool = False) -> dict[str, int]:
        """Return partition counts as this process has folded them; a topic not folded yet is.

        Args:
            names: of topics; with a pattern, one deleted meanwhile is left out.
            refresh: fold the newest entries first.
        """
        found = {}
        handles = []
        for name in sorted(names):
            try:
                handle = self._cluster.lookup(name)
            except NotFoundError:
                if self._subscription.pattern is None and name in self._subscription.topics:
                    raise
                continue
            handles.append(handle)
        unknown = []
        for handle in handles:
            ledger = self._cluster.topic_ledger(handle.ledger_id)
            with ledger.lock:
                if refresh or handle.topic_id not in ledger.state.topics:
                    unknown.append(handle)
        self._cluster.refresh_topics(unknown)
        for handle in handles:
            try:
                ledger, topic = self._cluster.folded_topic(handle)
            except NotFoundError:
                if self._subscription.pattern is None:
                    raise
                continue
            with ledger.lock:
                found[handle.name] = len(topic.partitions)
        return found

    def _names(self) -> Collection[str]:
        pattern = self._subscription.pattern
        if pattern is None:
            return self._subscription.topics
        authorizer = Authorizer(self._cluster, self._config.principal)
        names = authorizer.allowed_topics(AclOperation.DESCRIBE, self._cluster.topic_names())
        if self._config.exclude_internal_topics:
            names = [name for name in names if name not in INTERNAL_TOPICS]
        return [name for name in names if pattern.fullmatch(name)]
