"""Decides what a ledger no longer keeps: old rows and old generations of data objects. Entries move both bounds.

Pure, except `decide_upkeep` and `raise_floor`. ``retention.ms`` and ``retention.bytes`` delete rows: whole sections
(Kafka's segments), oldest first, only below the high watermark; a partition's newest one stays. The bytes are deleted
later (maintenance/garbage). Source: Kafka's ``UnifiedLog.deleteOldSegments``.

New objects go to the folder of the newest generation. Objects of a generation below the floor are refused, so an
object there that no entry names can never be named (garbage collection may delete it), and producers that cannot
come back are forgotten. The clock only chooses when to raise the floor; the fold refuses objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from spark_replog.commit.state_changes import live_partitions
from spark_replog.config.registry import stored_topic_config
from spark_replog.config.store import TopicConfig
from spark_replog.ids import TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.fold.topic_table import TopicState
from spark_replog.log.model import GenerationAdvance, LogStartAdvance, LogStartReason

_log = logging.getLogger(__name__)
GENERATIONS_PER_LAG = 7
"""A generation lasts ``gc.floor.lag.ms`` divided by this: one day of seven."""
GENERATION_OBJECTS_MAX = 50_000
"""At this many objects the next generation begins: a folder stays below 100,000 names, unnamed objects included."""
_KEYS = {"retention.ms", "retention.bytes", "cleanup.policy"}


class Retired(NamedTuple):
    """The rows that retention deletes from one partition."""

    partition: int
    start_offset: int
    """The new log start."""
    row_count: int
    size_bytes: int
    """Of whole sections, which garbage collection frees later."""


AppendedMs = Callable[[int, int], int]
"""(partition, offset) -> time of the append that wrote it."""


def retire(
    partition: PartitionState, number: int, config: TopicConfig, now_ms: int, appended_ms: AppendedMs | None = None
) -> Retired | None:
    """Return the rows to delete from a partition, None for none. O(deleted sections).

    Args:
        appended_ms: times of appends, if rows age from the later of their append and their own times.
    """
    start_offset, row_count, size_bytes = partition.log_start_offset, 0, 0
    excess_bytes = partition.live_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    for row in partition.live_sections():
        if row.end_offset > partition.high_watermark or row.end_offset == partition.log_end_offset:
            break
        is_over = size_bytes + row.size_bytes <= excess_bytes
        is_old = config.retention_ms >= 0 and now_ms - row.max_timestamp_ms > config.retention_ms
        if is_old and not is_over and appended_ms is not None:
            is_old = now_ms - appended_ms(number, row.end_offset - 1) > config.retention_ms
        if not is_over and not is_old:
            break
        row_count += min(row.row_count, row.end_offset - start_offset)
        start_offset, size_bytes = row.end_offset, size_bytes + row.size_bytes
    if start_offset == partition.log_start_offset:
        return None
    return Retired(number, start_offset, row_count, size_bytes)


def retired_of(
    topic: TopicState, config: TopicConfig, now_ms: int, appended_ms: AppendedMs | None = None
) -> list[Retired]:
    """Return the rows to delete from a topic under these settings, by partition."""
    keeps_all = "delete" not in config.cleanup_policy or (config.retention_ms < 0 and config.retention_bytes < 0)
    if topic.closed or keeps_all:
        return []
    retirements = (retire(part, number, config, now_ms, appended_ms) for number, part in enumerate(topic.partitions))
    return [retirement for retirement in retirements if retirement is not None]


def appended_rule(state: TopicLedgerState, topic_id: TopicId, settings: Mapping[str, str]) -> AppendedMs | None:
    """Return the times of appends if a topic's rows age from their append; None: from their own times.

    If ``retention.ms`` is not set, the default counts from the append: users who load old events must not lose them
    at once to a setting that they did not make (ADR 24; Kafka's default deletes them).
    """
    return None if "retention.ms" in settings else partial(_appended_ms, state, topic_id)


def due_retention(state: TopicLedgerState, now_ms: int) -> Iterator[tuple[TopicState, list[Retired]]]:
    """Yield the topics with rows to delete under their own settings, by the newest fold, under its lock.

    `now_ms` is ``Cluster.retention_now_ms``.
    """
    for topic in state.topics.values():
        config, unknown = stored_topic_config(tuple(topic.config.items()))
        if not _KEYS.intersection(unknown):  # a newer release's setting: its own processes delete
            retired = retired_of(topic, config, now_ms, appended_rule(state, topic.topic_id, topic.config))
            if retired:
                yield topic, retired


def _appended_ms(state: TopicLedgerState, topic_id: TopicId, partition: int, offset: int) -> int:
    sections = state.sections(topic_id, partition, offset, offset + 1)
    return sections[0].append_time_ms if sections else 0


def upkeep_commands(
    state: TopicLedgerState, now_ms: int, clock_ms: int, lag_ms: int
) -> list[GenerationAdvance | LogStartAdvance]:
    """Return the commands due in one ledger: the next generation with its floor, and the log starts of retention."""
    advance = next_generation(state, clock_ms, lag_ms)
    commands: list[GenerationAdvance | LogStartAdvance] = [] if advance is None else [advance]
    for topic, retired in due_retention(state, now_ms):
        moved = tuple((retirement.partition, retirement.start_offset) for retirement in retired)
        commands.append(LogStartAdvance(topic.topic_id, LogStartReason.RETENTION, moved))
    return commands


def decide_upkeep(
    ledger: Ledger[TopicLedgerState], now_ms: int, clock_ms: int, lag_ms: int, timeout_ms: int
) -> dict[TopicId, int]:
    """Decide the commands that are due, in one entry or none. Safe to repeat, in any number of processes.

    Returns how many offsets the log starts of each topic moved.

    Raises:
        ReplogError: REPLOG_NO_QUORUM; REPLOG_STORE_REFUSED: no entry can be written (a full disk).
    """
    if not ledger.ask(lambda state: upkeep_commands(state, now_ms, clock_ms, lag_ms)):
        return {}
    before: dict[tuple[TopicId, int], int] = {}

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        before.update({(topic.topic_id, at): part.log_start_offset for topic, at, part in live_partitions(state)})
        return tuple(map(encode_command, upkeep_commands(state, now_ms, clock_ms, lag_ms))) or None

    ledger.append(propose, timeout_ms=timeout_ms)
    taken: dict[TopicId, int] = {}
    with ledger.lock:
        for topic, number, partition in live_partitions(ledger.state):
            offset_count = partition.log_start_offset - before.get((topic.topic_id, number), partition.log_start_offset)
            if offset_count > 0:
                taken[topic.topic_id] = taken.get(topic.topic_id, 0) + offset_count
                _log.info("retention: %s-%d begins at offset %d now, %d later", topic.name, number,
                          partition.log_start_offset, offset_count)  # fmt: skip
    return taken


def next_generation(state: TopicLedgerState, now_ms: int, lag_ms: int) -> GenerationAdvance | None:
    """Return the advance that is due, or None.

    An idle ledger stays as it is. The floor is the newest generation that began longer than the lag ago: a task
    planned before it is too old to commit (``REPLOG_JOB_TOO_LONG``).
    """
    length_ms = lag_ms // GENERATIONS_PER_LAG
    began_ms = state.generations.began_ms.get(state.generations.newest)
    is_full = state.generations.object_count >= GENERATION_OBJECTS_MAX
    is_over = began_ms is not None and now_ms - began_ms >= length_ms > now_ms - state.append_time_ms
    if not is_full and not is_over:
        return None
    old = [generation for generation, at_ms in state.generations.began_ms.items() if at_ms <= now_ms - lag_ms]
    return GenerationAdvance(state.generations.newest + 1, max([state.generations.floor, *old]), now_ms)


def hurried_generation(state: TopicLedgerState, now_ms: int, age_ms: int) -> GenerationAdvance | None:
    """Return the advance that frees what was written longer than `age_ms` ago, as far as generations tell; or None.

    Files since the newest such generation stay, since a plan that names their folder may be younger. The generation
    that begins now lets a later call free them. Age 0: all files, and batches that are being written are refused.
    """
    if not age_ms:
        return GenerationAdvance(state.generations.newest + 1, state.generations.newest + 1, now_ms)
    old = [generation for generation, at_ms in state.generations.began_ms.items() if at_ms <= now_ms - age_ms]
    began_ms = state.generations.began_ms.get(state.generations.newest)
    is_new = began_ms is not None and abs(now_ms - began_ms) < age_ms // 4
    advance = GenerationAdvance(state.generations.newest + (not is_new), max([state.generations.floor, *old]), now_ms)
    return None if is_new and advance.floor == state.generations.floor else advance


def is_dead(state: TopicLedgerState) -> bool:
    """Return whether all topics of a ledger are deleted, and its floor has not passed all of their objects yet."""
    is_passed = state.generations.floor == state.generations.newest and not state.generations.object_count
    return bool(state.topics) and all(topic.closed for topic in state.topics.values()) and not is_passed


def raise_floor(
    ledger: Ledger[TopicLedgerState],
    timeout_ms: int,
    is_due: Callable[[TopicLedgerState], bool] = lambda _: True,
    *,
    now_ms: int = 0,
    age_ms: int = 0,
) -> None:
    """Refuse the objects of old generations: unnamed objects there are garbage at once. See `hurried_generation`.

    A batch that is refused is written again by its producer; a micro-batch by its query, when it is restarted.

    Args:
        is_due: judges the newest fold; nothing is decided where it says no.

    Raises:
        ReplogError: REPLOG_NO_QUORUM; REPLOG_STORE_REFUSED: no entry can be written (a full disk).
    """

    def propose(state: TopicLedgerState) -> bytes | None:
        advance = hurried_generation(state, now_ms, age_ms) if is_due(state) else None
        return None if advance is None else encode_command(advance)

    ledger.append(propose, timeout_ms=timeout_ms)
