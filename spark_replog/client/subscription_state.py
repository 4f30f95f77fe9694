"""A consumer's partitions and positions, and the topics that a subscription matches. Source: ``SubscriptionState``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.journal_peek import JournalPeek
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, NotFoundError, ReplogError
from spark_replog.ids import INTERNAL_TOPICS, LedgerId, TopicPartition
from spark_replog.log.acl import AclOperation


@dataclass(slots=True)
class PartitionPosition:
    """One assigned partition.

    Attributes:
        offset: of the next record to return; None until it is known.
        reset: `earliest`, `latest` or `by_duration`: look the position up so; None: it is known, or comes
            from the group.
        is_paused: whether ``pause`` holds its records back.
    """

    offset: int | None = None
    reset: str | None = None
    is_paused: bool = False


class SubscriptionState:
    """Partitions assigned by hand, or a subscription by names or by a pattern; never both."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.is_assigned_by_hand = False
        self.positions: dict[TopicPartition, PartitionPosition] = {}

    @property
    def is_subscribed(self) -> bool:
        """Return whether partitions come from a subscription."""
        return bool(self.topics) or self.pattern is not None

    def check_reads(self) -> None:
        """Refuse to read nothing. Source: ``KafkaConsumer.poll``.

        Raises:
            ReplogError: INVALID_REQUEST: neither ``subscribe`` nor ``assign`` was called.
        """
        if not self.is_subscribed and not self.is_assigned_by_hand:
            raise ReplogError(
                ErrorCode.INVALID_REQUEST,
                "this consumer has no topics: name them in Consumer(store, topic), or call subscribe or assign first.",
            )

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those already read keep their positions.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS.
        """
        if self.is_subscribed:
            raise _mixed()
        self.is_assigned_by_hand = True
        self.set_assignment(partitions)

    def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        """Read the partitions of these topics.

        Raises:
            InvalidConfigError: REPLOG_CONFLICTING_OPTIONS, REPLOG_INVALID_OPTION, INVALID_TOPIC_EXCEPTION.
        """
        if self.is_assigned_by_hand:
            raise _mixed()
        for name in topics:
            if not isinstance(name, str) or not name.strip():
                remedy = "give settings as config={...}" if isinstance(name, Mapping) else "subscribe to names, as text"
                raise InvalidConfigError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topic name {name!r:.100}: {remedy}."
                )
        try:
            compiled = None if pattern is None else re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"Invalid regular expression '{pattern}': {error}. Correct it.",
            ) from error
        self.topics, self.pattern = frozenset(topics), compiled

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.topics, self.pattern, self.is_assigned_by_hand = frozenset(), None, False
        self.positions = {}

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; partitions that remain keep their positions."""
        self.positions = {key: self.positions.get(key, PartitionPosition()) for key in sorted(set(partitions))}

    def position(self, key: TopicPartition) -> PartitionPosition:
        """Return the position of an assigned partition.

        Raises:
            ReplogError: INVALID_REQUEST: it is not assigned.
        """
        position = self.positions.get(key)
        if position is None:
            raise ReplogError(
                ErrorCode.INVALID_REQUEST,
                f"{key.topic}-{key.partition} is not assigned to this consumer. Assign it, or poll until the group"
                " has assigned it.",
            )
        return position

    def fetchable(self) -> list[TopicPartition]:
        """Return the partitions with a known position that are not paused."""
        return [key for key, at in self.positions.items() if at.offset is not None and not at.is_paused]


def _mixed() -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_CONFLICTING_OPTIONS,
        "Cannot use subscribe and assign together: call unsubscribe first, or use one of them.",
    )


def whole_number(value: object) -> int | None:
    """Return a whole number, also of a numpy type; None for anything else, such as text."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


class TopicDiscovery:
    """Finds the topics of a subscription; searches again after ``metadata.max.age.ms``. Not thread-safe.

    Args:
        on_gets: called with the number of gets that a repeated search makes.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscription: SubscriptionState,
        config: ConsumerConfig,
        on_gets: Callable[[float], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._config = config
        self._counts: dict[str, int] = {}
        self._looked_ms: int | None = None
        self._peek = JournalPeek(cluster.brokers)
        self._on_gets = on_gets

    def forget(self) -> None:
        """Search again at the next call."""
        self._looked_ms = None

    def counts(self) -> dict[str, int]:
        """Return the partition counts of the subscribed topics.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: a topic subscribed to by name does not exist.
        """
        now_ms = self._cluster.clock.monotonic_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= self._cluster.config.metadata_max_age_ms:
            self._counts = self.counts_of(
                self._names(), refresh=True, peek=None if self._looked_ms is None else self._peek
            )
            self._looked_ms = now_ms
        return dict(self._counts)

    def counts_of(
        self, names: Collection[str], *, refresh: bool = False, peek: JournalPeek | None = None
    ) -> dict[str, int]:
        """Return partition counts as this process has folded them; topics not folded yet are folded.

        Args:
            names: of topics; with a pattern, deleted ones are left out.
            refresh: fold the newest entries first.
            peek: of a ledger that it shows to have grown.
        """
        counts = {}
        handles = []
        for name in sorted(names):
            try:
                handle = self._cluster.lookup(name)
            except NotFoundError:
                if self._subscription.pattern is None and name in self._subscription.topics:
                    raise
                continue
            handles.append(handle)
        ledgers = {topic.ledger_id: self._cluster.topic_ledger(topic.ledger_id) for topic in handles}
        newer: Collection[LedgerId] = ()
        if refresh:
            newer = ledgers if peek is None else peek.grown(ledgers.values())
            roots = len(self._cluster.brokers.metadata_broker_ids)
            self._on_gets(0 if peek is None else len(ledgers) + 2 * roots)  # the names are as old, and read again
        unknown = []
        for handle in handles:
            ledger = ledgers[handle.ledger_id]
            with ledger.lock:
                if handle.ledger_id in newer or handle.topic_id not in ledger.state.topics:
                    unknown.append(handle)
        self._cluster.refresh_topics(unknown)
        for handle in handles:
            try:
                ledger, _ = self._cluster.folded_topic(handle)
            except NotFoundError:
                if self._subscription.pattern is None:
                    raise
                continue
            with ledger.lock:
                counts[handle.name] = len(ledger.state.topics[handle.topic_id].partitions)
        return counts

    def _names(self) -> Collection[str]:
        pattern = self._subscription.pattern
        if pattern is None:
            return self._subscription.topics
        authorizer = Authorizer(self._cluster, self._config.principal)
        names = authorizer.allowed_topics(AclOperation.DESCRIBE, self._cluster.topic_names())
        if self._config.exclude_internal_topics:
            names = [name for name in names if name not in INTERNAL_TOPICS]
        return [name for name in names if pattern.fullmatch(name)]
