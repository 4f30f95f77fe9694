"""Finds the first offset at or after a time (Kafka: ``offsetsForTimes``, ``UnifiedLog.fetchOffsetByTimestamp``).

The fold has each section's minimum and maximum time. Rows are only read of a section whose times enclose the wanted
time: usually one section per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from spark_replog.ids import TopicId
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.read.fetch_plan import FetchSlice, plan_fetch
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import RowView, log_column
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL

T = TypeVar("T")


class FoldedLedger(Protocol):
    """A topic ledger as this process has folded it so far."""

    def ask(self, question: Callable[[TopicLedgerState], T]) -> T:
        """Call the function with the fold, which does not change during the call."""
        ...


_LANE = "offsets for times"
"""A separate lane, since its jobs wait for reads on the lanes of the roots."""


def offsets_for_times(
    ledger: FoldedLedger,
    brokers: BrokerSet,
    topic_name: str,
    topic_id: TopicId,
    times_ms: Mapping[int, int],
) -> dict[int, int | None]:
    """Return per partition the first readable offset whose timestamp is at or after a time; None if no row is so late.

    Runs where ledgers are folded (driver, Consumer), never in a task. Reads at most a few sections per partition,
    partitions in parallel. Raises the errors of ``Fetcher.fetch`` and ``plan_fetch``.
    """

    def find(partition: int, time_ms: int) -> int | None:
        offset = ledger.ask(lambda state: state.offset_for_time(topic_id, partition, time_ms))
        while offset is not None:
            start, slices = ledger.ask(partial(_next_candidate, topic_name, topic_id, partition, offset, time_ms))
            if not slices:
                return start
            views = {piece.topic_id: RowView(piece.schema, ()) for piece in slices if piece.schema is not None}
            for batch in Fetcher(brokers).fetch(slices, views=views):
                late = np.asarray(log_column(batch, "timestamp").cast("int64")) >= time_ms * 1000
                if late.any():
                    return int(log_column(batch, "offset")[int(np.argmax(late))].as_py())
            offset = slices[-1].end_offset
        return None

    items = sorted(times_ms.items())
    pending: dict[int, Future[int | None]] = {}
    with suppress(RuntimeError):  # no thread can be started: this one searches the rest too
        for partition, time_ms in items[1:]:
            pending[partition] = IO_POOL.submit_to(_LANE, find, partition, time_ms)
    offsets = {partition: find(partition, time_ms) for partition, time_ms in items if partition not in pending}
    return offsets | {partition: future.result() for partition, future in pending.items()}


def _next_candidate(
    topic_name: str, topic_id: TopicId, partition: int, offset: int, time_ms: int, state: TopicLedgerState
) -> tuple[int | None, tuple[FetchSlice, ...]]:
    """Return the offset, or the slices of the section that may contain it; (None, ()) if there is none."""
    partition_state = state.topics[topic_id].partitions[partition]
    offset = max(offset, partition_state.log_start_offset)
    while offset < partition_state.high_watermark:
        sections = state.sections(topic_id, partition, offset, offset + 1)
        if not sections:  # the topic was deleted since the search began: this raises
            return None, plan_fetch(state, topic_name, topic_id, partition, offset, offset + 1)
        (section,) = sections
        end = min(section.end_offset, partition_state.high_watermark)
        is_row = not section.object.has_offsets and offset < section.base_offset + section.row_count
        if section.min_timestamp_ms >= time_ms and is_row:
            return offset, ()
        if section.max_timestamp_ms >= time_ms:
            return None, plan_fetch(state, topic_name, topic_id, partition, offset, end)
        offset = end
    return None, ()
