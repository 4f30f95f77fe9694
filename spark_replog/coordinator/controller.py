"""Topic administration over the two kinds of ledger.

A topic's truth is its own ledger; the cluster ledger only maps its name. Nothing spans
both atomically, so creation publishes the name last and deletion unpublishes it last, every
step can be repeated, and whatever a crash left half done is finished by the next command.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_replog.coordinator.cluster import Cluster, TopicHandle
from spark_replog.coordinator.topic_description import PartitionDescription, TopicDescription, TopicListing
from spark_replog.ids import LedgerId


class Controller:
    """Creates, grows, deletes and describes topics. Thread safe."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int = 60_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
        ledger_name: str | None = None,
        if_not_exists: bool = False,
        start_index: int | None = None,
    ) -> TopicDescription:
        """Create a topic.

        Args:
            name: 1 to 249 characters of a-z A-Z 0-9 . _ -.
            partitions: at least 1.
            replicas: copies; None: min(3, brokers).
            config: topic settings by Kafka's dotted names.
            ledger_name: topics of one ledger commit atomically together; None: its own.
            if_not_exists: return the existing topic as it is.
            start_index: where the first leader goes; None: random.

        Raises:
            InvalidConfigError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
                INVALID_CONFIG.
            ReplogError: TOPIC_ALREADY_EXISTS.
        """
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic: writers are fenced first, then the name is freed.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        ...

    def add_partitions(self, name: str, total: int) -> TopicDescription:
        """Grow a topic to ``total`` partitions; existing ones never move.

        Raises:
            InvalidConfigError: INVALID_PARTITIONS when it has that many or more.
        """
        ...

    def list_topics(self) -> list[TopicListing]:
        """Return all topics by name."""
        ...

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic as its ledger's newest fold shows it."""
        ...

    def offsets(self, name: str, at: str = "end") -> dict[int, int]:
        """Return per partition the log start offset (``start``) or the high watermark (``end``)."""
        ...
