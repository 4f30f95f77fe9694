"""The state of a store at one moment as plain values: its topics, what is wrong with it, and how fast it grows. Pure.

A finding has the command that fixes it. Growth is at the pace of the last 24 hours. Retention ends the growth of a
topic: it then holds what `retention.ms` of writing at this pace takes, or `retention.bytes` of each partition. What
compaction removes is not foreseen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, IntEnum
from functools import cached_property
from typing import NamedTuple

from spark_replog.clock import human_duration
from spark_replog.config.registry import stored_topic_config
from spark_replog.config.store import TopicConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.health.gateways import GatewayHealth
from spark_replog.health.readers import Reader, Verdict, worst_first
from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.fold.partition_state import NO_LEADER, PartitionState
from spark_replog.log.fold.topic_state import MINUTE_MS, NO_TRAFFIC, TopicLedgerState, Traffic
from spark_replog.log.row_schema import RowSchema

FUTURE_MS = TopicConfig().message_timestamp_after_max_ms
"""Rows may be dated this much later than they are written without a setting of the topic's own."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; offsets are exclusive ends.

    Attributes:
        fenced: replicas on fenced brokers, which do not count as in sync.
        min_insync: effective ``min.insync.replicas``.
        size_bytes: of the rows from the log start on, in one copy; a section that is partly trimmed counts in full.
        held_until_ms: until then retention deletes nothing, because its oldest rows are dated in the future.
        adding, removing: replicas that a running reassignment adds, and removes at its end.
    """

    partition: int
    leader: BrokerId
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    fenced: tuple[BrokerId, ...] = ()
    min_insync: int = 1
    size_bytes: int = 0
    held_until_ms: int | None = None

    @property
    def in_sync(self) -> list[BrokerId]:
        """Return the in-sync replicas on brokers that are not fenced."""
        return [broker_id for broker_id in self.isr if broker_id not in self.fenced]

    @property
    def out_of_sync(self) -> list[BrokerId]:
        """Return the replicas that are not in sync, or fenced."""
        return sorted(set(self.replicas) - set(self.in_sync))

    @property
    def is_offline(self) -> bool:
        """Return whether writes fail because there is no leader."""
        return self.leader == NO_LEADER

    @property
    def row_count(self) -> int:
        """Return the number of readable rows."""
        return self.high_watermark - self.log_start_offset


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic, its recent appends, and its own settings; all others have their defaults."""

    name: str
    topic_id: TopicId
    ledger_id: LedgerId
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str]
    traffic: Traffic = NO_TRAFFIC
    schemas: tuple[RowSchema, ...] = ()
    """The versions of a typed topic's columns, in order; none: rows have a key and a value."""
    mirror: str = ""
    """What it is a mirror of; '': ordinary programs write to it."""

    @property
    def schema(self) -> RowSchema | None:
        """Return the newest columns of a typed topic; None: rows have a key and a value."""
        return self.schemas[-1] if self.schemas else None

    @property
    def partition_count(self) -> int:
        """Return the number of partitions."""
        return len(self.partitions)

    @property
    def assigned_bytes(self) -> int:
        """Return the bytes of all replicas of all partitions."""
        return sum(partition.size_bytes * len(partition.replicas) for partition in self.partitions)

    @property
    def last_append_ms(self) -> int | None:
        """Return the time of the newest append, None without one."""
        return self.traffic.last_append_ms or None

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of the first partition."""
        return len(self.partitions[0].replicas)

    @property
    def row_count(self) -> int:
        """Return the number of readable rows of all partitions."""
        return sum(partition.row_count for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all partitions, in one copy."""
        return sum(partition.size_bytes for partition in self.partitions)


def describe(state: TopicLedgerState, topic_id: TopicId, name: str) -> TopicDescription:
    """Copy a topic out of the fold; call it under the ledger's lock."""
    topic = state.topics[topic_id]
    fenced = state.fenced
    config, _ = stored_topic_config(tuple(topic.config.items()))
    partitions = tuple(
        PartitionDescription(
            number,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            partition.log_start_offset,
            partition.high_watermark,
            partition.log_end_offset,
            partition.adding,
            partition.removing,
            tuple(broker_id for broker_id in partition.replicas if broker_id in fenced),
            partition.min_insync,
            partition.live_bytes,
            held_until_ms(partition, config, state.append_time_ms),
        )
        for number, partition in enumerate(topic.partitions)
    )
    traffic = state.traffic.get(topic_id, NO_TRAFFIC)
    schemas, mirror = topic.schemas, topic.mirror
    return TopicDescription(name, topic_id, state.ledger_id, partitions, dict(topic.config), traffic, schemas, mirror)


def held_until_ms(partition: PartitionState, config: TopicConfig, now_ms: int) -> int | None:
    """Return until when ``retention.ms`` deletes nothing of a partition because of rows dated in the future, or None.

    Only a topic that admits such rows is looked at: for that the oldest section, maybe of a page, is read.

    Args:
        now_ms: time of the ledger's last append, to which ages are counted.
    """
    admits_ms = config.message_timestamp_after_max_ms
    is_by_age = "delete" in config.cleanup_policy and config.retention_ms >= 0
    if not is_by_age or admits_ms <= FUTURE_MS or config.message_timestamp_type != "CreateTime":
        return None
    oldest = next(partition.live_sections(), None)
    if oldest is None or oldest.end_offset == partition.log_end_offset:  # the newest section stays in any case
        return None
    if oldest.max_timestamp_ms <= now_ms + FUTURE_MS:
        return None
    return oldest.max_timestamp_ms + config.retention_ms


def describe_ledger(state: TopicLedgerState) -> list[TopicDescription]:
    """Copy all existing topics of a ledger, by name; call it under the ledger's lock."""
    live = sorted((topic.name, topic.topic_id) for topic in state.topics.values() if not topic.closed)
    return [describe(state, topic_id, name) for name, topic_id in live]


def would_be(
    name: str,
    assignment: Sequence[tuple[BrokerId, ...]],
    config: tuple[tuple[str, str], ...],
    schema: RowSchema | None = None,
) -> TopicDescription:
    """Return the description that a new topic would have; it has no ids yet."""
    partitions = tuple(PartitionDescription(number, row[0], 0, row, row) for number, row in enumerate(assignment))
    return TopicDescription(name, "", "", partitions, dict(config), schemas=() if schema is None else (schema,))


FREE_BYTES_WARN = 1 << 30
FREE_BYTES_CRITICAL = 64 << 20
"""Two data objects of the largest default size (``max.request.size``): with less free, a root may refuse a batch."""


class Level(IntEnum):
    """Severity of a finding; the value is the exit code of the health commands."""

    WARN = 3
    CRITICAL = 4


class Fault(Enum):
    """Kinds of findings; the values are stable names."""

    NO_LEADER = "no-leader"
    UNDER_MIN_ISR = "under-min-isr"
    UNDER_REPLICATED = "under-replicated"
    FENCED = "fenced"
    ROOT_AWAY = "root-away"
    ROOT_STALE = "root-stale"
    COPY_MISSING = "copy-missing"
    ROOT_FULL = "root-full"
    ROOT_LOW = "root-low"
    JOURNAL_BEHIND = "journal-behind"
    NO_MAJORITY = "no-majority"
    RETENTION_HELD = "retention-held"
    GATEWAY_SILENT = "gateway-silent"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, in words with the values, and the command that fixes it or what to do.

    Attributes:
        topic: with ``partition`` or ``broker_id``, the object of the finding; None if it concerns another one.
        code: of the error raised when the root was read.
    """

    level: Level
    fault: Fault
    detail: str
    remedy: str
    topic: str | None = None
    partition: int | None = None
    broker_id: BrokerId | None = None
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """A broker and the state of its root.

    Attributes:
        is_metadata: whether it holds journals.
        error: why the root cannot be used; None if it answers with the expected identity.
        free_bytes: free space of its file system; None if unknown (object stores).
        device: number of that file system: roots with the same number share its free space.
    """

    broker_id: BrokerId
    url: str
    rack: str | None
    is_metadata: bool
    is_fenced: bool
    error: ReplogError | None = None
    free_bytes: int | None = None
    device: int | None = None

    @property
    def is_away(self) -> bool:
        """Return whether its root does not serve. One that lacks a copy (CORRUPT_MESSAGE) serves the others."""
        return self.error is not None and self.error.code is not ErrorCode.CORRUPT_MESSAGE


def topic_findings(topics: Iterable[TopicDescription], away: Collection[BrokerId] = frozenset()) -> list[Finding]:
    """Return the findings on partitions, by topic name, then partition.

    The log learns of brokers that are ``away`` only when something is written.
    """
    findings = [
        finding
        for topic in topics
        for partition in topic.partitions
        if (finding := _partition_finding(topic.name, partition, frozenset(away))) is not None
    ]
    return sorted(findings, key=lambda problem: (problem.topic or "", problem.partition or 0))


def _partition_finding(topic: str, part: PartitionDescription, away: frozenset[BrokerId]) -> Finding | None:
    is_whole = len(part.isr) >= max(part.min_insync, len(part.replicas)) and away.isdisjoint(part.isr)
    if is_whole and not part.is_offline and not part.fenced:
        return None if part.held_until_ms is None else _held_finding(topic, part.partition, part.held_until_ms)
    where, out = f"{topic}-{part.partition}", part.out_of_sync
    serving = [broker_id for broker_id in part.in_sync if broker_id not in away]
    resting = " ".join(str(broker_id) for broker_id in out if broker_id in part.fenced)
    rejoin = "replog coordinator run --once, replica.rejoin.wait.ms (30 s) or more after they left"
    remedy = f"bring the roots back, then: {rejoin}" if away & {*part.replicas} else rejoin
    if resting:
        remedy = f"replog broker unfence {resting}"
    level, fault = Level.CRITICAL, Fault.NO_LEADER
    if part.is_offline:
        detail = f"has no leader: no in-sync replica of {sorted(part.isr)} is in service, so writes are refused"
        remedy += f"; or accept the loss of rows: replog topic elect {topic} --unclean"
    elif not serving:
        remedy = "bring the roots back"  # fenced ones have no leader, see above
        detail = f"cannot be written: the root of no in-sync replica of {part.in_sync} serves"
    elif len(serving) < part.min_insync:
        fault = Fault.UNDER_MIN_ISR
        if len(part.in_sync) >= part.min_insync:
            remedy = "bring the roots back"  # those in the ISR do not serve
        detail = (
            f"has {len(serving)} in-sync replicas {serving}{'' if away.isdisjoint(part.isr) else ' that answer'} and "
            f"min.insync.replicas is {part.min_insync}, so writes with acks=all are refused"
        )
    elif out:
        level, fault = Level.WARN, Fault.UNDER_REPLICATED
        detail = f"is under-replicated: brokers {out} are out of sync"
    else:
        return None
    return Finding(level, fault, f"{where} {detail}", remedy, topic, part.partition)


def _held_finding(topic: str, partition: int, until_ms: int) -> Finding:
    until = "in the year 10000" if until_ms >= _YEAR_10000_MS else datetime.fromtimestamp(until_ms / 1000, UTC).date()
    detail = (
        f"{topic}-{partition} keeps all rows until {until} at least: its oldest ones are dated in the future, and "
        "retention.ms deletes in order"
    )
    remedy = (
        f"replog topic trim {topic} --partition {partition} --to OFFSET -y; and against new ones: "
        f"replog topic config {topic} unset message.timestamp.after.max.ms"
    )
    return Finding(Level.WARN, Fault.RETENTION_HELD, detail, remedy, topic, partition)


_YEAR_10000_MS = 253_402_300_800_000


def fence_findings(topics: Iterable[TopicDescription], broker_ids: Collection[BrokerId]) -> list[Finding]:
    """Return the partitions that fencing the brokers would leave without a leader or below min ISR."""
    findings = []
    for topic in topics:
        for partition in topic.partitions:
            after = sum(broker_id not in broker_ids for broker_id in partition.in_sync)
            if after == len(partition.in_sync) or after >= partition.min_insync:
                continue
            what, fault, writes = "no leader", Fault.NO_LEADER, "writes"
            if after:
                what = f"{after} in-sync replicas where min.insync.replicas is {partition.min_insync}"
                fault, writes = Fault.UNDER_MIN_ISR, "writes with acks=all"
            detail = f"{topic.name}-{partition.partition} would have {what}: {writes} would be refused"
            remedy = "wait until other replicas are in sync, or fence another broker"
            findings.append(Finding(Level.CRITICAL, fault, detail, remedy, topic.name, partition.partition))
    return sorted(findings, key=lambda finding: (finding.topic or "", finding.partition or 0))


def broker_findings(brokers: Iterable[BrokerHealth]) -> list[Finding]:
    """Return the findings on brokers and their roots."""
    brokers = list(brokers)
    findings = []
    for number in (broker.broker_id for broker in brokers if broker.is_fenced):
        detail = f"broker {number} is fenced: it leads nothing and its copies do not count"
        findings.append(Finding(Level.WARN, Fault.FENCED, detail, f"replog broker unfence {number}", broker_id=number))
    findings += [finding for broker in brokers for finding in _root_findings(broker)]
    journals = sorted(broker.broker_id for broker in brokers if broker.is_metadata)
    away = [broker.broker_id for broker in brokers if broker.is_metadata and broker.is_away]
    if len(away) * 2 >= len(journals) > 0 and away:
        detail = f"metadata roots {sorted(away)} of {journals} cannot be used, so nothing can be written"
        remedy = "bring one of them back: `replog store info` shows the error of each"
        findings.append(Finding(Level.CRITICAL, Fault.NO_MAJORITY, detail, remedy))
    return findings


_ROOT_FAULTS = {ErrorCode.REPLOG_ROOT_STALE: Fault.ROOT_STALE, ErrorCode.CORRUPT_MESSAGE: Fault.COPY_MISSING}


def _root_findings(broker: BrokerHealth) -> list[Finding]:
    broker_id, error, free = broker.broker_id, broker.error, broker.free_bytes
    findings = []
    if error is not None:
        fault = _ROOT_FAULTS.get(error.code, Fault.ROOT_AWAY)
        remedy = "bring the root back" if fault is Fault.ROOT_AWAY else "replog store verify"
        remedy += ", or: replog store repair"
        findings.append(Finding(Level.WARN, fault, str(error.args[0]), remedy, broker_id=broker_id, code=error.code))
    if free is not None and free < FREE_BYTES_WARN:
        level, fault = (Level.CRITICAL, Fault.ROOT_FULL) if free < FREE_BYTES_CRITICAL else (Level.WARN, Fault.ROOT_LOW)
        detail = f"the root of broker {broker_id} has {free >> 20} MiB free"
        remedy = "replog store gc, or free space on that file system"
        findings.append(Finding(level, fault, detail, remedy, broker_id=broker_id))
    return findings


_NAMED_MAX = 5


def journal_findings(
    ledgers: Iterable[LedgerHealth], topics: Iterable[TopicDescription], cluster_id: str
) -> list[Finding]:
    """Return the findings on journals that are behind, one for each broker, by broker.

    Nothing is refused and nothing is lost: a majority has each entry. But the root helps to read or write a ledger only
    once it has what it lacks, as a replica does that is not in sync.
    """
    names: dict[LedgerId, list[str]] = {cluster_id: ["the cluster ledger"]}
    for topic in topics:
        names.setdefault(topic.ledger_id, []).append(topic.name)
    behind: dict[BrokerId, list[str]] = {}
    for ledger in ledgers:
        for broker_id, count in ledger.behind.items():
            of = ", ".join(names.get(ledger.ledger_id, [ledger.ledger_id])[:_NAMED_MAX])
            behind.setdefault(broker_id, []).append(f"{of} ({count})")
    findings, remedy = [], "replog coordinator run --once"
    for broker_id, gaps in sorted(behind.items()):
        more = f" and {len(gaps) - _NAMED_MAX} more ledgers" if len(gaps) > _NAMED_MAX else ""
        detail = f"the root of broker {broker_id} lacks journal entries of {', '.join(gaps[:_NAMED_MAX])}{more}"
        findings.append(Finding(Level.WARN, Fault.JOURNAL_BEHIND, detail, remedy, broker_id=broker_id))
    return findings


def gateway_findings(gateways: Iterable[GatewayHealth], now_ms: int) -> list[Finding]:
    """Return the findings on gateways that are silent. Nothing is lost: clients go on at the others."""
    findings = []
    for gateway in gateways:
        if gateway.is_silent(now_ms):
            silent = human_duration(now_ms - gateway.last_sign_ms)
            detail = f"gateway {gateway.node_id} at {gateway.address} has given no sign for {silent}"
            remedy = "start it again, or see its log; shown for an hour"
            findings.append(Finding(Level.WARN, Fault.GATEWAY_SILENT, detail, remedy))
    return findings


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
    grown: dict[BrokerId, list[tuple[float, float | None]]] = {root.broker_id: [] for root in brokers}
    for topic in topics:
        growth = growth_of(topic, now_ms)
        if not growth.bytes_per_day:
            continue
        for part in topic.partitions:
            share = part.size_bytes / topic.size_bytes if topic.size_bytes else 1 / len(topic.partitions)
            if not share:
                continue
            more = None if growth.bytes_more_max is None else growth.bytes_more_max * share
            for broker_id in part.replicas:
                if broker_id in grown:
                    grown[broker_id].append((growth.bytes_per_day * share, more))
    days: dict[BrokerId, float | None] = {}
    for broker in brokers:
        device = broker.device
        beside = [root for root in brokers if root is broker or (device is not None and root.device == device)]
        flows = [flow for root in beside for flow in grown[root.broker_id]]
        days[broker.broker_id] = None if broker.free_bytes is None else _days(broker.free_bytes, flows)
    return days


def _days(free_bytes: float, flows: Sequence[tuple[float, float | None]]) -> float | None:
    """Return when flows, each (bytes a day, most bytes), have filled what is free."""
    endless = sum(pace for pace, more in flows if more is None)
    ends = sorted((more / pace, pace) for pace, more in flows if more is not None)
    ending, day = sum(pace for _, pace in ends), 0.0
    for end, ended_pace in ends:
        pace = endless + ending
        if pace > 0 and free_bytes <= pace * (end - day):
            return day + free_bytes / pace
        free_bytes -= pace * (end - day)
        ending, day = max(0.0, ending - ended_pace), end
    return day + free_bytes / endless if endless else None


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """One ledger.

    Attributes:
        is_tail_unclear: whether too few roots answer to know if the last entry is decided.
        behind: brokers that answer and whose journals are behind -> how many entries these lack.
    """

    ledger_id: LedgerId
    entry_count: int
    is_tail_unclear: bool
    behind: Mapping[BrokerId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreView:
    """One look at a store: all that commands, the console and metrics show of it.

    Attributes:
        now_ms: wall time of the look.
        brokers: by id.
        topics: by name, internal ones included.
        ledgers: the cluster's first, then the topics'.
        readers: groups by name, then queries, with their verdicts.
        unread: checkpoints that could not be read.
        gateways: by node id.
    """

    cluster_id: str
    path: str
    fsync: bool
    now_ms: int
    brokers: tuple[BrokerHealth, ...]
    topics: tuple[TopicDescription, ...]
    ledgers: tuple[LedgerHealth, ...]
    readers: tuple[Reader, ...] = ()
    unread: tuple[tuple[str, ReplogError], ...] = ()
    gateways: tuple[GatewayHealth, ...] = ()

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings, worst first."""
        findings = [*broker_findings(self.brokers), *topic_findings(self.topics, self.away)]
        findings += journal_findings(self.ledgers, self.topics, self.cluster_id)
        findings += gateway_findings(self.gateways, self.now_ms)
        return sorted(findings, key=lambda finding: -finding.level)

    @property
    def unwell(self) -> list[Reader]:
        """Return the readers that are not OK, the worst first."""
        return worst_first(reader for reader in self.readers if reader.verdict is not Verdict.OK)

    @property
    def exit_code(self) -> int:
        """Return 0 if all is well, 3 with a warning, 4 with a critical finding or a reader that does not move."""
        levels = [*(int(flaw.level) for flaw in self.findings), *(reader.verdict.exit_code for reader in self.readers)]
        return max([*levels, Level.WARN if self.unread else 0])

    @property
    def verdict(self) -> str:
        """Return ``OK``, ``WARN`` or ``CRITICAL``."""
        return Level(self.exit_code).name if self.exit_code else "OK"

    def fault_count(self, fault: Fault) -> int:
        """Return the number of findings of a kind."""
        return sum(finding.fault is fault for finding in self.findings)

    @cached_property
    def away(self) -> frozenset[BrokerId]:
        """The brokers whose root does not serve."""
        return frozenset(broker.broker_id for broker in self.brokers if broker.is_away)

    @property
    def serving_count(self) -> int:
        """Return the number of roots without an error."""
        return sum(broker.error is None for broker in self.brokers)

    @property
    def partition_count(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all topics, in one copy."""
        return sum(topic.size_bytes for topic in self.topics)

    @property
    def last_append_ms(self) -> int | None:
        """Return the time of the newest append, None without one."""
        return max((topic.traffic.last_append_ms for topic in self.topics), default=0) or None

    @property
    def groups(self) -> list[Reader]:
        """Return the consumer groups among the readers."""
        return [reader for reader in self.readers if reader.kind == "group"]

    def rates(self, window_minutes: int) -> tuple[float, float]:
        """Return (rows, bytes) per second of all topics over the last 1 to 15 minutes."""
        topic_rates = [topic.traffic.rates(window_minutes, self.now_ms) for topic in self.topics]
        return sum(rows for rows, _ in topic_rates), sum(size_bytes for _, size_bytes in topic_rates)

    def leader_count(self, broker_id: BrokerId) -> int:
        """Return the number of partitions that a broker leads."""
        return sum(partition.leader == broker_id for topic in self.topics for partition in topic.partitions)

    @property
    def bytes_per_day(self) -> int:
        """Return what all topics take in a day, in one copy."""
        return round(sum(growth_of(topic, self.now_ms).bytes_per_day for topic in self.topics))

    def assigned_bytes(self, broker_id: BrokerId) -> int:
        """Return the bytes of the partitions that are assigned to a broker; its root may lack some of them."""
        return sum(part.size_bytes for topic in self.topics for part in topic.partitions if broker_id in part.replicas)
