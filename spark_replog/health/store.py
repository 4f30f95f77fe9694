"""The state of a store at one moment as plain values, and how fast it grows. Pure.

Growth is at the pace of the last 24 hours. Retention ends the growth of a topic: it then holds what `retention.ms` of
writing at this pace takes, or `retention.bytes` of each partition. What compaction removes is not foreseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_replog.config import stored_topic_config
from spark_replog.health.findings import BrokerHealth, Finding, broker_findings, topic_findings
from spark_replog.health.readers import Reader
from spark_replog.health.topics import TopicDescription
from spark_replog.ids import BrokerId, LedgerId
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.fold.topic_state import MINUTE_MS

DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


class Growth(NamedTuple):
    """What a topic takes in, in one copy.

    Attributes:
        bytes_per_day: written. Of a topic that is younger than a day: what a day takes at its pace.
        bytes_more_max: how much more it can hold before retention removes as much as is written; None: no end.
    """

    bytes_per_day: float
    bytes_more_max: float | None


def growth_of(topic: TopicDescription, now_ms: int) -> Growth:
    """Return how fast a topic grows."""
    traffic = topic.traffic
    now_ms = max(now_ms, traffic.last_append_ms)
    rows, size_bytes = traffic.day(now_ms)
    per_day = float(size_bytes)
    if rows and rows >= sum(part.log_end_offset for part in topic.partitions):  # all rows it ever had: it is young
        age_ms = now_ms - traffic.minutes[0][0] * MINUTE_MS
        per_day *= DAY_MS / min(DAY_MS, max(_HOUR_MS, age_ms))
    config, _ = stored_topic_config(tuple(topic.config.items()))
    ends = []
    if "delete" in config.cleanup_policy:
        if config.retention_ms >= 0:
            ends.append(per_day * config.retention_ms / DAY_MS)
        if config.retention_bytes >= 0:
            ends.append(float(config.retention_bytes * len(topic.partitions)))
    return Growth(per_day, max(0.0, min(ends) - topic.size_bytes) if ends else None)


def days_until_full(
    brokers: Sequence[BrokerHealth], topics: Iterable[TopicDescription], now_ms: int
) -> dict[BrokerId, float | None]:
    """Return in how many days each root is full at this pace; None: never, or what is free is not known.

    A topic's growth is spread over its partitions as their sizes are. Roots on one file system fill it together.
    """
    grown: dict[BrokerId, list[tuple[float, float | None]]] = {each.broker_id: [] for each in brokers}
    for topic in topics:
        found = growth_of(topic, now_ms)
        if not found.bytes_per_day:
            continue
        for part in topic.partitions:
            share = part.size_bytes / topic.size_bytes if topic.size_bytes else 1 / len(topic.partitions)
            if not share:
                continue
            more = None if found.bytes_more_max is None else found.bytes_more_max * share
            for broker_id in part.replicas:
                if broker_id in grown:
                    grown[broker_id].append((found.bytes_per_day * share, more))
    days = {}
    for broker in brokers:
        beside = [
            each.broker_id
            for each in brokers
            if each is broker or (broker.device is not None and each.device == broker.device)
        ]
        flows = [flow for broker_id in beside for flow in grown[broker_id]]
        days[broker.broker_id] = None if broker.free_bytes is None else _days(broker.free_bytes, flows)
    return days


def _days(free_bytes: float, flows: Sequence[tuple[float, float | None]]) -> float | None:
    """Return when flows, each (bytes a day, most bytes), have filled what is free."""
    ends = sorted((more / pace, pace) for pace, more in flows if more is not None)
    pace, day = sum(each for each, _ in flows), 0.0
    for end, ended_pace in ends:
        if pace > 0 and free_bytes <= pace * (end - day):
            return day + free_bytes / pace
        free_bytes -= pace * (end - day)
        pace, day = pace - ended_pace, end
    return day + free_bytes / pace if any(more is None for _, more in flows) else None


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
