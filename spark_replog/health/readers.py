"""The readers of a log, their exact lag, and a verdict on each: OK, SLOW, STALLED, STOPPED or LOSING. Pure.

One look is enough for a verdict: the fold holds the append time of each row and the time of a group's last commit; a
query's checkpoint holds its last batches.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from spark_replog.clock import human_duration
from spark_replog.config.registry import stored_topic_config
from spark_replog.ids import TopicId
from spark_replog.log.codec.group_records import GroupMember
from spark_replog.log.fold.partition_state import PartitionState, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicState

_ALL_BYTES = 2**63 - 1


class Lag(NamedTuple):
    """What a reader has not read of one partition.

    Attributes:
        lag: unread rows: high watermark - position, less the gaps of a mirrored topic; counted from the position even
            below the log start. None without a position.
        lag_ms: how long the oldest unread row has been in the log, by the time of its entry; 0 without a lag.
            Compaction gives all rows of a section the newest of their times, so the value may be too small by at most
            the time that the section spans.
        lag_bytes: of the unread rows, in one copy; a section's bytes are spread evenly over its rows.
        retention_share: how much of retention.ms or retention.bytes the oldest unread row has used; at 1.0 it is
            deleted next. None if nothing deletes it.
        speed: seconds of log that the reader reads per second; above 1 it catches up. None: unknown.
        lag_before_ms: `lag_ms` when the position last changed. None: unknown.
        at_ms: when it was taken: the later of the caller's clock and the newest entry's time. 0 without a lag.
    """

    log_start_offset: int
    high_watermark: int
    lag: int | None = None
    lag_ms: int | None = None
    lag_bytes: int | None = None
    retention_share: float | None = None
    speed: float | None = None
    lag_before_ms: int | None = None
    at_ms: int = 0


def lag_of(
    state: TopicLedgerState,
    topic_id: TopicId,
    partition: int,
    position: int | None,
    now_ms: int,
    history: Sequence[tuple[int, int]] = (),
) -> Lag | None:
    """Return the lag of a reader; None if the partition does not exist. Call it under the ledger's lock.

    Args:
        position: next offset to read; None: the reader has none.
        now_ms: wall time; at least the newest entry's time is used, so no age is negative.
        history: earlier (time, position) pairs, ascending; the last one is the current position.
    """
    topic = state.topics.get(topic_id)
    if topic is None or topic.closed or not 0 <= partition < len(topic.partitions):
        return None
    log = topic.partitions[partition]
    start, end = log.log_start_offset, log.high_watermark
    if position is None:
        return Lag(start, end)
    first = max(position, start)
    if first >= end:
        return Lag(start, end, max(0, end - position), 0, 0)
    now_ms = max(now_ms, state.append_time_ms)
    section = next(iter(state.sections(topic_id, partition, first, first + 1)), None)
    if section is not None and section.end_offset >= end:  # most readers are near the end: one look-up tells all
        span = section.end_offset - section.base_offset
        size_bytes = section.size_bytes * (end - first) // span
    else:
        size_bytes = log.end_within_bytes(first, end, _ALL_BYTES)[1]
    lag_ms = 0 if section is None else now_ms - min(now_ms, section.append_time_ms)
    share = None if section is None else _retention_share(topic, log, section, size_bytes, now_ms)
    pace = _pace(state, topic_id, partition, history)
    lag = end - position
    if state.has_gaps:
        lag = first - position + log.end_within_rows(first, end, lag)[1]
    return Lag(start, end, lag, lag_ms, size_bytes, share, *pace, now_ms)


def first_append_times(state: TopicLedgerState, topic_id: TopicId) -> list[int | None]:
    """Return the append time of offset 0 of each partition, None if it has no such row; [] for a deleted topic."""
    topic = state.topics.get(topic_id)
    count = 0 if topic is None or topic.closed else len(topic.partitions)
    rows = [state.sections(topic_id, number, 0, 1) for number in range(count)]
    return [row[0].append_time_ms if row else None for row in rows]


def _time_at(state: TopicLedgerState, topic_id: TopicId, partition: int, offset: int, at_ms: int) -> int:
    """Return when the row was appended, at most `at_ms`."""
    sections = state.sections(topic_id, partition, offset, offset + 1)
    return min(at_ms, sections[0].append_time_ms) if sections else at_ms


def _pace(
    state: TopicLedgerState, topic_id: TopicId, partition: int, history: Sequence[tuple[int, int]]
) -> tuple[float | None, int | None]:
    """Return the speed over the history, and the lag in time at its end."""
    if not history:
        return None, None
    (first_ms, first), (last_ms, last) = history[0], history[-1]
    last_row_ms = _time_at(state, topic_id, partition, last, last_ms)
    start = state.topics[topic_id].partitions[partition].log_start_offset
    if last_ms <= first_ms or first < start:
        return None, last_ms - last_row_ms
    read_ms = last_row_ms - _time_at(state, topic_id, partition, first, first_ms)
    return read_ms / (last_ms - first_ms), last_ms - last_row_ms


def _retention_share(
    topic: TopicState, partition: PartitionState, oldest: SectionRef, lag_bytes: int, now_ms: int
) -> float | None:
    config, _ = stored_topic_config(tuple(topic.config.items()))
    if oldest.end_offset >= partition.log_end_offset or "delete" not in config.cleanup_policy:
        return None
    shares = []
    if config.retention_ms >= 0:
        since_ms = oldest.max_timestamp_ms
        if "retention.ms" not in topic.config:  # the default counts from the append, if that is later
            since_ms = max(since_ms, oldest.append_time_ms)
        shares.append((now_ms - since_ms) / max(1, config.retention_ms))
    if config.retention_bytes >= 0:
        shares.append(lag_bytes / max(1, config.retention_bytes))
    return max(shares, default=None)


_KEEP_ALL = "retention.ms=-1 retention.bytes=-1"
LOSING_SHARE = 0.9
"""An unread row that has used this much of its retention is about to be deleted."""


class Verdict(Enum):
    """The state of a reader, from best to worst."""

    OK = "OK"
    SLOW = "SLOW"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    LOSING = "LOSING"

    @property
    def exit_code(self) -> int:
        """Return the exit code of a check: 0, 3 or 4."""
        return {Verdict.OK: 0, Verdict.SLOW: 3}.get(self, 4)


_ERROR_NOTE = re.compile(r"\[[A-Z0-9_]+\] ")
"""How the note of a reader begins that failed: with the code of its error, as a table sync writes it."""
_RANKS = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits above which a reader is not OK.

    Attributes:
        still_ms: how long rows may wait without progress; above a query's trigger interval and its longest batch.
        slow_ms: how far behind a reader that does not catch up may be.
        lag_ms_max: how far behind any reader may be, even one that catches up. None: no limit.
    """

    still_ms: int = 300_000
    slow_ms: int = 60_000
    lag_ms_max: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a reader; times are None where they are unknown.

    Attributes:
        position: next offset to read. None: the group has not committed one; its lag is unknown, not zero.
        position_ms: when the position was committed, or its batch planned.
        since_ms: since when the position has not changed.
        lag: None: the topic or the partition is gone.
        owner: member that reads the partition; '' if unknown.
        note: the metadata that was committed with the position.
        verdict, reason: by ``judge``.
    """

    topic: str
    partition: int
    position: int | None
    position_ms: int | None = None
    since_ms: int | None = None
    lag: Lag | None = None
    owner: str = ""
    note: str = ""
    verdict: Verdict = Verdict.OK
    reason: str = ""

    @property
    def name(self) -> str:
        """Return ``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def catch_up_ms(self) -> int | None:
        """Return the time to reach the end at this pace. None: never, or unknown."""
        if self.lag is None or self.lag.lag_ms is None:
            return None
        if not self.lag.lag_ms:
            return 0
        return None if self.lag.speed is None or self.lag.speed <= 1 else round(self.lag.lag_ms / (self.lag.speed - 1))


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer group or a streaming query; times are 0 where they are unknown.

    Attributes:
        kind: ``group`` or ``query``.
        state: of a group: EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE; of a query: IDLE, IN_BATCH,
            WRITES_ONLY; since ``state_since_ms``.
        last_sign_ms: time of its newest activity.
        sign_every_ms: a live reader is active at least this often. None: only when it reads rows.
        protocol, generation: assignor ('' without members) and generation of a group.
        batch_id: newest batch of a query; -1 if none.
        verdict, reason: by ``judge``.
    """

    name: str
    kind: str
    state: str
    partitions: tuple[PartitionProgress, ...]
    state_since_ms: int = 0
    last_sign_ms: int = 0
    sign_every_ms: int | None = None
    protocol: str = ""
    generation: int = -1
    members: tuple[GroupMember, ...] = ()
    batch_id: int = -1
    verdict: Verdict = Verdict.OK
    reason: str = ""

    @property
    def lag(self) -> int:
        """Return the number of unread rows."""
        return sum(partition.lag.lag or 0 for partition in self.partitions if partition.lag is not None)

    @property
    def lag_bytes(self) -> int:
        """Return the bytes of the unread rows."""
        return sum(partition.lag.lag_bytes or 0 for partition in self.partitions if partition.lag is not None)

    @property
    def worst(self) -> PartitionProgress | None:
        """Return the partition that is furthest behind by time; None without a lag."""
        behind = [partition for partition in self.partitions if partition.lag is not None and partition.lag.lag]
        return max(behind, key=_lag_ms, default=None)

    @property
    def lag_ms(self) -> int:
        """Return the age of the oldest unread row; 0 without a lag."""
        worst = self.worst
        return 0 if worst is None or worst.lag is None else worst.lag.lag_ms or 0

    @property
    def catch_up_ms(self) -> int | None:
        """Return the time to reach all ends at this pace. None: never, or unknown."""
        times = [part.catch_up_ms for part in self.partitions if part.position is not None and part.lag is not None]
        finite_times = [time_ms for time_ms in times if time_ms is not None]
        return max(finite_times, default=0) if len(finite_times) == len(times) else None

    @property
    def remedy(self) -> str:
        """Return what helps a reader that is not OK, with the command; '' for OK."""
        command = f"replog {self.kind} describe {shlex.quote(self.name)}"
        match self.verdict:
            case Verdict.SLOW:
                return f"give it more {'members' if self.kind == 'group' else 'tasks'} or larger batches: {command}"
            case Verdict.STALLED:
                return f"look at its log for a row or a batch that never ends: {command}"
            case Verdict.STOPPED if self.kind == "group":
                return f"start it; or, if it is no longer needed: replog group delete {shlex.quote(self.name)}"
            case Verdict.STOPPED:
                return f"start it; its position: {command}"
            case Verdict.LOSING:
                at = [part for part in self.partitions if part.verdict is Verdict.LOSING]
                topics = dict.fromkeys(part.topic for part in at if part.lag is not None)
                if not topics:
                    return f"give it a new checkpoint: its topic was deleted. {command}"
                kept = [f"keep its rows: replog topic config {topic} set {_KEEP_ALL}" for topic in topics]
                return "; ".join([*kept, *_remedy_of_lost(self)])
        return ""


def judge(reader: Reader, now_ms: int, limits: Limits = Limits()) -> Reader:
    """Return the reader with a verdict and its reason: those of its worst partition."""
    if not reader.partitions:
        return replace(reader, reason="reads no replog topic" if reader.state == "WRITES_ONLY" else "no row read yet")
    parts = []
    for partition in reader.partitions:
        verdict, reason = _judge_partition(reader, partition, now_ms, limits)
        parts.append(replace(partition, verdict=verdict, reason=reason))
    worst = max(parts, key=lambda part: (_RANKS[part.verdict], _lag_ms(part)))
    alike = sum(part.verdict is worst.verdict for part in parts) - 1
    more = f" ({alike} more partitions are {worst.verdict.value})" if alike else ""
    reason = _ok_reason(reader) if worst.verdict is Verdict.OK else f"{worst.name} {worst.reason}{more}"
    errors = [part.note for part in parts if _ERROR_NOTE.match(part.note)]
    reason += f". Its last error: {errors[0]}" if errors else ""
    return replace(reader, partitions=tuple(parts), verdict=worst.verdict, reason=reason)


def worst_first(readers: Iterable[Reader]) -> list[Reader]:
    """Return readers by what is wrong with them, then by how far they are behind."""
    return sorted(readers, key=lambda reader: (-reader.verdict.exit_code, -reader.lag_ms, -reader.lag, reader.name))


def _lag_ms(part: PartitionProgress) -> int:
    return 0 if part.lag is None else part.lag.lag_ms or 0


def _ok_reason(reader: Reader) -> str:
    if not reader.lag:
        return "caught up"
    catch_up_ms = reader.catch_up_ms
    pace = "" if catch_up_ms is None else f"; catches up in {human_duration(catch_up_ms)} at this pace"
    return f"{reader.lag:,} rows and {human_duration(reader.lag_ms)} behind{pace}"


def _judge_partition(reader: Reader, part: PartitionProgress, now_ms: int, limits: Limits) -> tuple[Verdict, str]:
    lag = part.lag
    if lag is None:
        if reader.kind == "query":
            return Verdict.LOSING, "was deleted or recreated, or the checkpoint is of another store"
        return Verdict.OK, "was deleted or recreated"
    if part.position is None:
        return Verdict.OK, "has no position"
    if part.position < lag.log_start_offset:
        where = f"the reader is at offset {part.position} and the log starts at {lag.log_start_offset}"
        return Verdict.LOSING, f"deleted {lag.log_start_offset - part.position:,} unread rows: {where}"
    if not lag.lag or lag.lag_ms is None:
        return Verdict.OK, "is caught up"
    now_ms = max(now_ms, lag.at_ms)  # a clock behind the log would call no reader late
    waits = f"{lag.lag:,} rows wait, the oldest for {human_duration(lag.lag_ms)}"
    if lag.retention_share is not None and lag.retention_share >= LOSING_SHARE:
        used = f"the oldest of {lag.lag:,} has used {lag.retention_share:.0%} of its retention"
        return Verdict.LOSING, f"will soon delete unread rows: {used}"
    still_ms = lag.lag_ms if part.since_ms is None else min(lag.lag_ms, now_ms - part.since_ms)
    if still_ms >= limits.still_ms:
        return _judge_still(reader, waits, still_ms, now_ms, limits)
    behind = f"is {lag.lag:,} rows and {human_duration(lag.lag_ms)} behind"
    is_limit = limits.lag_ms_max is not None and lag.lag_ms > limits.lag_ms_max
    was_behind = min(lag.lag_ms, lag.lag_before_ms or 0) > limits.slow_ms
    if is_limit or (was_behind and lag.speed is not None and lag.speed <= 1):
        return Verdict.SLOW, behind + ("" if lag.speed is None else f", reading {lag.speed:.2f} s of log per second")
    return Verdict.OK, behind


def _judge_still(reader: Reader, waits: str, still_ms: int, now_ms: int, limits: Limits) -> tuple[Verdict, str]:
    silent_ms, still = now_ms - reader.last_sign_ms, human_duration(still_ms)
    if reader.state == "IN_BATCH":
        batch_ms = now_ms - reader.state_since_ms
        if batch_ms < limits.still_ms:
            return Verdict.OK, f"has been in batch {reader.batch_id} for {human_duration(batch_ms)}"
        batch = f"Batch {reader.batch_id} started {human_duration(batch_ms)} ago and is not done"
        why = "it is long, it fails every time, or the query stopped during it"
        return Verdict.STALLED, f"makes no progress: {waits}. {batch}: {why}"
    if reader.state.endswith("REBALANCE") and now_ms - reader.state_since_ms < limits.still_ms:
        return Verdict.OK, "waits for a running rebalance"
    if silent_ms >= max(limits.still_ms, reader.sign_every_ms or 0):
        return Verdict.STOPPED, f"is not being read: {waits}. No activity for {human_duration(silent_ms)}"
    active = f"The reader is active, but its position has not changed for {still}"
    return Verdict.STALLED, f"makes no progress: {waits}. {active}"


def _remedy_of_lost(reader: Reader) -> list[str]:
    """Return what ends the verdict where rows are deleted already: to keep the others does not bring these back."""
    lost: dict[str, list[str]] = {}
    for part in reader.partitions:
        if part.lag is not None and part.position is not None and part.position < part.lag.log_start_offset:
            lost.setdefault(part.topic, []).append(str(part.partition))
    if not lost:
        return []
    if reader.kind == "query":
        return ["go on after the deleted rows: start it with failOnDataLoss=false"]
    where = " ".join(f"--topic {topic}:{','.join(numbers)}" for topic, numbers in lost.items())
    command = f"replog group reset-offsets {shlex.quote(reader.name)} {where} --to-earliest --execute"
    return [f"go on after the deleted rows: start it, or: {command}"]
