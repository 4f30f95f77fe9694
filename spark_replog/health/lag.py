"""How far a reader is behind, in rows, bytes and time: exact, from a fold. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_replog.ids import TopicId
from spark_replog.log.fold.topic_state import TopicLedgerState

_ALL_BYTES = 2**63 - 1


class Lag(NamedTuple):
    """What a reader of one partition has not read.

    Attributes:
        row_count: high watermark - position; counted from the position even below the log start. None without one.
        age_ms: for how long the oldest row that is not read has been in the log, by the time of its entry; 0 without
            a lag.
        size_bytes: of the rows that are not read, in one copy; a section's bytes are spread evenly over its rows.
    """

    log_start_offset: int
    high_watermark: int
    row_count: int | None
    age_ms: int | None
    size_bytes: int | None


def lag_of(state: TopicLedgerState, topic_id: TopicId, partition: int, position: int | None, now_ms: int) -> Lag | None:
    """Return the lag of a reader; None where the partition does not exist (any more).

    Exact: all rows of a section were appended by one entry, and its time is that of each. Call it under the ledger's
    lock.

    Args:
        state: the fold of the topic's ledger.
        topic_id: the topic.
        partition: of the topic.
        position: next offset to read; None: the reader has none.
        now_ms: wall time; one behind the newest entry counts as its time, so no age is negative.
    """
    topic = state.topics.get(topic_id)
    if topic is None or topic.closed or not 0 <= partition < len(topic.partitions):
        return None
    found = topic.partitions[partition]
    start, end = found.log_start_offset, found.high_watermark
    if position is None:
        return Lag(start, end, None, None, None)
    first = max(position, start)
    if first >= end:
        return Lag(start, end, max(0, end - position), 0, 0)
    size_bytes = found.end_within_bytes(first, end, _ALL_BYTES)[1]
    sections = state.sections(topic_id, partition, first, first + 1)
    since_ms = sections[0].append_time_ms if sections else now_ms
    return Lag(start, end, end - position, max(now_ms, state.append_time_ms) - since_ms, size_bytes)
