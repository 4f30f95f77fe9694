"""The lag of a reader in rows, bytes and time: exact, from a fold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_replog.config import stored_topic_config
from spark_replog.ids import TopicId
from spark_replog.log.fold.partition_state import PartitionState, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicState

_ALL_BYTES = 2**63 - 1


class Lag(NamedTuple):
    """What a reader has not read of one partition.

    Attributes:
        lag: high watermark - position; counted from the position even below the log start. None without a position.
        lag_ms: how long the oldest unread row has been in the log, by the time of its entry; 0 without a lag.
            Compaction gives all rows of a section the newest of their times, so the value may be too small by at most
            the time that the section spans.
        lag_bytes: of the unread rows, in one copy; a section's bytes are spread evenly over its rows.
        retention_share: how much of retention.ms or retention.bytes the oldest unread row has used; at 1.0 it is
            deleted next. None if nothing deletes it.
        speed: seconds of log that the reader reads per second; above 1 it catches up. None: unknown.
        lag_before_ms: `lag_ms` when the position last changed. None: unknown.
    """

    log_start_offset: int
    high_watermark: int
    lag: int | None = None
    lag_ms: int | None = None
    lag_bytes: int | None = None
    retention_share: float | None = None
    speed: float | None = None
    lag_before_ms: int | None = None


def lag_of(
    state: TopicLedgerState,
    topic_id: TopicId,
    partition: int,
    position: int | None,
    now_ms: int,
    history: Sequence[tuple[int, int]] = (),
) -> Lag | None:
    """Return the lag of a reader; None if the partition does not exist.

    Call it under the ledger's lock.

    Args:
        position: next offset to read; None: the reader has none.
        now_ms: wall time; at least the newest entry's time is used, so no age is negative.
        history: earlier (time, position) pairs, ascending; the last one is the current position.
    """
    topic = state.topics.get(topic_id)
    if topic is None or topic.closed or not 0 <= partition < len(topic.partitions):
        return None
    found = topic.partitions[partition]
    start, end = found.log_start_offset, found.high_watermark
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
        size_bytes = found.end_within_bytes(first, end, _ALL_BYTES)[1]
    lag_ms = 0 if section is None else now_ms - min(now_ms, section.append_time_ms)
    share = None if section is None else _retention_share(topic, found, section, size_bytes, now_ms)
    pace = _pace(state, topic_id, partition, history)
    return Lag(start, end, end - position, lag_ms, size_bytes, share, *pace)


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
        shares.append((now_ms - oldest.max_timestamp_ms) / max(1, config.retention_ms))
    if config.retention_bytes >= 0:
        shares.append(lag_bytes / max(1, config.retention_bytes))
    return max(shares, default=None)
