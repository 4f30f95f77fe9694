"""A read that waits until there is enough to read. Source: Kafka's ``DelayedFetch``, ``ReplicaManager.fetchMessages``.

A reader waits in its own process: what others append shows when the ledgers are folded again, so the wait is a
few gets per refresh, and the purgatory decides when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_replog.clock import Clock
from spark_replog.commit.purgatory import DelayedOperation, DelayedOperationPurgatory
from spark_replog.errors import ErrorCode
from spark_replog.ids import TopicId
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.fold.partition_state import UNDEFINED_EPOCH, UNDEFINED_OFFSET, PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState

FetchKey = tuple[TopicId, int]


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """From where one partition is to be read, and how much at most.

    Attributes:
        last_fetched_epoch: leader epoch under which the rows before the fetch offset were read; -1: not known.
    """

    ledger: Ledger[TopicLedgerState]
    topic_id: TopicId
    partition: int
    fetch_offset: int
    max_bytes: int
    last_fetched_epoch: int = UNDEFINED_EPOCH

    @property
    def key(self) -> FetchKey:
        """Return what a purgatory watches."""
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True)
class FetchState:
    """What a partition has for a reader now.

    Attributes:
        error: why it cannot be read: UNKNOWN_TOPIC_OR_PARTITION (deleted), OFFSET_OUT_OF_RANGE. None else.
        end_offset: how far a read within its bytes reaches; the fetch offset where there is nothing.
        available_bytes: of the sections up to there, at most one section more than ``max_bytes``.
        leader_epoch: the partition's now.
        diverging_offset: with OFFSET_OUT_OF_RANGE, where the rows that the reader has end to be those of the log:
            an unclean election cut the log there. None else.
    """

    error: ErrorCode | None
    end_offset: int
    available_bytes: int
    leader_epoch: int = UNDEFINED_EPOCH
    diverging_offset: int | None = None


def look(item: FetchPartition, max_bytes: int | None = None, *, one_section_min: bool = True) -> FetchState:
    """Return what the fold as it is has for a partition; reads nothing. O(log n + sections within the bytes).

    Offsets [fetch offset, high watermark) can be read; at the high watermark there is nothing yet, and that is
    no error, nor is an offset up to the log end. Sections are read whole, as Kafka's batches: the first is
    counted whatever its size.

    Args:
        item: where from.
        max_bytes: less than the item's own, where the budget of the fetch is nearly used.
        one_section_min: False: not even the first section where it is too large.
    """
    budget = item.max_bytes if max_bytes is None else min(item.max_bytes, max_bytes)
    with item.ledger.lock:
        topic = item.ledger.state.topics.get(item.topic_id)
        if topic is None or topic.closed or item.partition >= len(topic.partitions):
            return FetchState(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, item.fetch_offset, 0)
        found = topic.partitions[item.partition]
        diverging_offset = _diverging_offset(item, found)
        if diverging_offset is not None:
            return FetchState(ErrorCode.OFFSET_OUT_OF_RANGE, item.fetch_offset, 0, found.leader_epoch, diverging_offset)
        if not found.log_start_offset <= item.fetch_offset <= found.log_end_offset:
            return FetchState(ErrorCode.OFFSET_OUT_OF_RANGE, item.fetch_offset, 0)
        end, size_bytes = item.fetch_offset, 0
        if item.fetch_offset < found.high_watermark:
            for row in found.sections_between(item.fetch_offset, found.high_watermark):
                if size_bytes + row.size_bytes > budget and (size_bytes or not one_section_min):
                    break
                size_bytes += row.size_bytes
                end = min(row.base_offset + row.row_count, found.high_watermark)
        return FetchState(None, end, size_bytes, found.leader_epoch)


def _diverging_offset(item: FetchPartition, found: PartitionState) -> int | None:
    """Return where the log parted from what the reader has, None where it did not. Source: KIP-320."""
    if item.last_fetched_epoch in (UNDEFINED_EPOCH, found.leader_epoch):
        return None
    ended = found.leader_epochs.end_offset_for(item.last_fetched_epoch, found.log_end_offset)
    return ended.start_offset if UNDEFINED_OFFSET < ended.start_offset < item.fetch_offset else None


class DelayedFetch(DelayedOperation):
    """Completes when a partition cannot be read any more, or ``min_bytes`` are there. Holds offsets, no rows.

    Args:
        timeout_ms: ``fetch.max.wait.ms``.
        min_bytes: ``fetch.min.bytes``, over all partitions, each counted up to its own ``max_bytes``.
        partitions: what is asked for.
    """

    def __init__(self, timeout_ms: int, min_bytes: int, partitions: Sequence[FetchPartition]) -> None:
        super().__init__(timeout_ms)
        self._min_bytes = min_bytes
        self._partitions = partitions
        self.is_expired = False

    def try_complete(self) -> bool:
        """Look at each partition; complete on an error or on enough bytes."""
        return is_answered(self._partitions, self._min_bytes) and self.force_complete()

    def on_expiration(self) -> None:
        """Note that the wait was in vain."""
        self.is_expired = True


def is_answered(partitions: Sequence[FetchPartition], min_bytes: int) -> bool:
    """Return whether an error or enough bytes make a wait pointless."""
    size_bytes = 0
    for item in partitions:
        found = look(item)
        size_bytes += min(found.available_bytes, item.max_bytes)
        if found.error is not None or size_bytes >= min_bytes:
            return True
    return False


def fetch_messages(
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int,
    min_bytes: int,
    purgatory: DelayedOperationPurgatory,
    clock: Clock,
    refresh: Callable[[], None],
    refresh_interval_ms: int,
) -> int:
    """Return once there is something to answer; the caller then reads what is there, perhaps nothing.

    At once: no wait is wanted, nothing is asked for, enough bytes, or an error. Else the fetch waits in the
    purgatory, and the ledgers are folded anew every ``refresh_interval_ms`` until it completes.

    Returns:
        How often ``refresh`` was called: each costs one get per metadata root and ledger.
    """
    if max_wait_ms <= 0 or not partitions or is_answered(partitions, min_bytes):
        return 0
    operation = DelayedFetch(max_wait_ms, min_bytes, partitions)
    keys = [item.key for item in partitions]
    started_ms = clock.monotonic_ms()
    refresh_count = 0
    if purgatory.try_complete_else_watch(operation, keys):
        return refresh_count
    try:
        while not operation.is_completed:
            rest_ms = started_ms + max_wait_ms - clock.monotonic_ms()
            clock.sleep_ms(max(1, min(refresh_interval_ms, rest_ms)))
            refresh()
            refresh_count += 1
            for key in keys:
                purgatory.check_and_complete(key)
            purgatory.advance()
    finally:
        operation.force_complete()  # what `refresh` raises leaves nobody who waits
        purgatory.purge()
    return refresh_count
