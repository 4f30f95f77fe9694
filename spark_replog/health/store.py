"""The state of a store at one moment, as plain values: the source of every command, metric and page. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_replog.health.findings import BrokerHealth, Finding, broker_findings, topic_findings
from spark_replog.health.growth import days_until_full, growth_of
from spark_replog.health.readers import Reader
from spark_replog.health.topics import TopicDescription
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.log.fold.partition_state import NO_LEADER


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """One ledger.

    Attributes:
        entry_count: decided entries.
        is_tail_unclear: whether too few roots answer to know if the last entry is decided.
    """

    ledger_id: LedgerId
    entry_count: int
    is_tail_unclear: bool


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """One look at a store.

    Attributes:
        now_ms: wall time of the look.
        brokers: by id.
        topics: by name, internal ones included.
        ledgers: the cluster's first, then the topics'.
        groups: by name.
    """

    cluster_id: str
    path: str
    fsync: bool
    now_ms: int
    brokers: tuple[BrokerHealth, ...]
    topics: tuple[TopicDescription, ...]
    ledgers: tuple[LedgerHealth, ...]
    groups: tuple[Reader, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Return all findings, worst first."""
        return sorted([*broker_findings(self.brokers), *topic_findings(self.topics)], key=lambda each: -each.level)

    @property
    def partition_count(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics)

    @property
    def last_append_ms(self) -> int:
        """Return the time of the newest append, 0 without one."""
        return max((topic.traffic.last_append_ms for topic in self.topics), default=0)

    @property
    def worst_group(self) -> Reader | None:
        """Return the group that is furthest behind; None if all are caught up."""
        behind = [each for each in self.groups if each.lag > 0]
        return max(behind, key=lambda each: (each.lag_ms, each.lag), default=None)

    def rates(self, window_minutes: int) -> tuple[float, float]:
        """Return (rows, bytes) per second of all topics over the last 1 to 15 minutes."""
        each = [topic.traffic.rates(window_minutes, self.now_ms) for topic in self.topics]
        return sum(rows for rows, _ in each), sum(size_bytes for _, size_bytes in each)

    def leader_count(self, broker_id: BrokerId) -> int:
        """Return the number of partitions that a broker leads."""
        return sum(each.leader == broker_id for topic in self.topics for each in topic.partitions)

    @property
    def not_preferred_count(self) -> int:
        """Return the number of partitions whose leader is not the first assigned broker."""
        return sum(
            each.leader not in (each.replicas[0], NO_LEADER) for topic in self.topics for each in topic.partitions
        )

    @property
    def days_until_full(self) -> dict[BrokerId, float | None]:
        """Return per broker in how many days its root is full at this pace; None: never, or not known."""
        return days_until_full(self.brokers, self.topics, self.now_ms)

    @property
    def bytes_per_day(self) -> float:
        """Return what all topics take in a day, in one copy."""
        return sum(growth_of(topic, self.now_ms).bytes_per_day for topic in self.topics)

    def copy_bytes(self, broker_id: BrokerId) -> int:
        """Return the bytes of the partitions that are assigned to a broker."""
        return sum(each.size_bytes for topic in self.topics for each in topic.partitions if broker_id in each.replicas)
