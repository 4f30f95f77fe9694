"""`cleanup.policy=compact`: of each key the latest row stays. Source: Kafka's ``LogCleaner`` and ``LogCleanerManager``.

A pass reads the keys of the rows that came since the last one, up to the memory that `log.cleaner.dedupe.buffer.size`
allows, then rewrites the sections, oldest first, that hold rows which newer ones replace. When all of it is in place,
a `LogClean` entry says how far the log is clean. A pass that ends early has removed replaced rows only, so any number
of cleaners may run, stop or die at any moment.

Tombstones go `delete.retention.ms` after the pass that first cleaned them: by then no older row of their key is left,
and a reader that needs less time for the whole log has seen them. Rows without a key stay: none replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.config.store import TopicConfig
from spark_replog.ids import TopicId
from spark_replog.log.fold.partition_state import SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.maintenance.compaction_plan import CompactionRun, compactable, make_run
from spark_replog.maintenance.segment_writer import slices_of
from spark_replog.read.fetcher import Fetcher
from spark_replog.storage.brokers import BrokerSet

KEYS_READ_BYTES = 64 * 1024 * 1024
"""Keys are gathered from sections of about this size, then merged into the map."""
_KEYS = pa.schema([pa.field("key", pa.binary()), pa.field("offset", pa.int64())])


class CleaningPlan(NamedTuple):
    """What a pass over one partition is about."""

    runs: tuple[CompactionRun, ...]
    """All readable sections, in runs that fit one object each."""
    dirty_offset: int
    """Rows from here on are new since the last pass."""
    tombstones_below: int
    """Tombstones below this offset have been kept long enough."""


def plan_cleaning(
    state: TopicLedgerState, topic_id: TopicId, partition: int, config: TopicConfig, now_ms: int, *, is_forced: bool
) -> CleaningPlan | None:
    """Return the pass that is due, None where none is. Call it under the ledger's lock.

    Args:
        topic_id: an open topic.
        partition: one of its partitions.
        config: the topic's settings.
        now_ms: the ledger's time.
        is_forced: whether `min.cleanable.dirty.ratio` does not matter.
    """
    found = state.topics[topic_id].partitions[partition]
    dirty_offset = found.clean_points[-1][0] if found.clean_points else 0
    dirty = _cleanable(state, topic_id, partition, max(dirty_offset, found.log_start_offset), config, now_ms)
    dirty_bytes = sum(each.size_bytes for each in dirty)
    waited_ms = now_ms - config.delete_retention_ms
    below = max((offset for offset, at_ms in found.clean_points if at_ms <= waited_ms), default=0)
    is_due = dirty_bytes > 0 and dirty_bytes >= config.min_cleanable_dirty_ratio * found.live_bytes
    if not is_due and not (is_forced and (dirty or below > found.log_start_offset)):
        return None
    sections = _cleanable(state, topic_id, partition, found.log_start_offset, config, now_ms)
    runs = tuple(make_run(state, topic_id, partition, each) for each in _groups(sections, config.segment_bytes))
    return CleaningPlan(runs, dirty_offset, below) if runs else None


def _cleanable(
    state: TopicLedgerState, topic_id: TopicId, partition: int, start: int, config: TopicConfig, now_ms: int
) -> list[SectionRef]:
    """Return the sections from an offset on that may be cleaned: without a gap, so that nothing older is left out."""
    newest_ms = now_ms - config.min_compaction_lag_ms
    result: list[SectionRef] = []
    for each in compactable(state, topic_id, partition, start, is_whole=False):
        is_first = not result and each.base_offset <= start
        if not (is_first or (result and result[-1].end_offset == each.base_offset)):
            break
        if config.min_compaction_lag_ms and each.max_timestamp_ms > newest_ms:
            break
        result.append(each)
    return result


def _groups(sections: Sequence[SectionRef], size_max_bytes: int) -> Iterator[list[SectionRef]]:
    current: list[SectionRef] = []
    size_bytes = 0
    for each in sections:
        is_other = bool(current) and bool(current[0].timestamp_type) != bool(each.timestamp_type)
        if current and (is_other or size_bytes + each.size_bytes > size_max_bytes):
            yield current
            current, size_bytes = [], 0
        current.append(each)
        size_bytes += each.size_bytes
    if current:
        yield current


class OffsetMap:
    """The latest offset of each key of a range of the log. Exact: keys are compared, not their hashes.

    Args:
        size_max_bytes: adding stops once the keys have this size.
    """

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max_bytes = size_max_bytes
        self._latest = _KEYS.empty_table()

    @property
    def is_full(self) -> bool:
        """Return whether no more rows should be added."""
        return bool(self._latest.nbytes >= self._size_max_bytes)

    def add(self, rows: KeyColumns) -> None:
        """Add rows, each newer than all before."""
        new = pa.table([rows.keys, pa.array(rows.offsets)], schema=_KEYS).filter(pc.field("key").is_valid())
        both = pa.concat_tables([self._latest, new]).group_by("key").aggregate([("offset", "max")])
        self._latest = both.select(["key", "offset_max"]).rename_columns(_KEYS.names)

    def dropped(self, rows: KeyColumns, tombstones_below: int) -> np.ndarray:
        """Return the offsets of rows that newer ones replace, and of tombstones that were kept long enough."""
        known = self._latest.combine_chunks()
        at = pc.index_in(rows.keys, value_set=known.column("key"), skip_nulls=True)
        latest = known.column("offset").take(at).fill_null(-1).to_numpy()
        is_old_tombstone = rows.is_tombstone & (rows.offsets < tombstones_below)
        gone: np.ndarray = rows.offsets[(latest > rows.offsets) | is_old_tombstone]
        return gone


class KeyColumns(NamedTuple):
    """What a pass must know of N rows."""

    keys: pa.ChunkedArray
    """N keys, binary."""
    offsets: np.ndarray
    """N offsets, ascending."""
    is_tombstone: np.ndarray
    """Whether the row has a key and no value."""


ReadKeys = Callable[[CompactionRun], KeyColumns]


def read_keys(brokers: BrokerSet, run: CompactionRun) -> KeyColumns:
    """Return the keys of a run's rows; values are not kept."""
    keys, offsets, tombstones = [], [], []
    for batch in Fetcher(brokers).fetch(slices_of(run)):
        keys.append(batch.column(0))
        offsets.append(batch.column(4).to_numpy())
        is_tombstone = pc.and_(pc.is_valid(batch.column(0)), pc.is_null(batch.column(1)))
        tombstones.append(is_tombstone.to_numpy(zero_copy_only=False))
    return KeyColumns(pa.chunked_array(keys, pa.binary()), np.concatenate(offsets), np.concatenate(tombstones))


class CleanedRun(NamedTuple):
    """A run with rows to remove: `dropped` are their offsets, ascending, not all of the run's."""

    run: CompactionRun
    dropped: np.ndarray


def find_replaced(read: ReadKeys, plan: CleaningPlan, size_max_bytes: int) -> tuple[int, Iterator[CleanedRun]]:
    """Return how far the pass gets, and the runs that lose rows, oldest first, each looked at when it is asked for.

    Runs without a row that stays are joined with the next one, so that its section spans their offsets. Where no row
    stays up to the end, the last one does: it is a tombstone, since nothing newer replaced it.

    Args:
        read: returns the keys of a run: `read_keys` of some brokers.
        plan: the pass.
        size_max_bytes: of the keys that are kept in memory.
    """
    latest = OffsetMap(size_max_bytes)
    end_offset = plan.dirty_offset
    for run in plan.runs:
        if run.end_offset <= plan.dirty_offset:
            continue
        if latest.is_full:
            break
        rows = read(run)
        latest.add(rows)
        end_offset = run.end_offset
    runs = [run for run in plan.runs if run.end_offset <= max(end_offset, plan.dirty_offset)]
    return end_offset, _runs_with_replaced(read, runs, latest, plan.tombstones_below)


def _runs_with_replaced(
    read: ReadKeys, runs: Sequence[CompactionRun], latest: OffsetMap, tombstones_below: int
) -> Iterator[CleanedRun]:
    emptied: list[CompactionRun] = []
    all_dropped: list[np.ndarray] = []
    for run in runs:
        rows = read(run)
        dropped = latest.dropped(rows, tombstones_below)
        is_emptied = len(dropped) == len(rows.offsets)
        if not len(dropped) and not emptied:
            continue
        emptied.append(run)
        all_dropped.append(dropped)
        if is_emptied and run is not runs[-1]:
            continue
        if is_emptied:
            all_dropped[-1] = dropped[:-1]
        joined = emptied[0]._replace(sections=tuple(section for each in emptied for section in each.sections))
        gone = np.concatenate(all_dropped)
        if len(gone):
            yield CleanedRun(joined, gone)
        emptied, all_dropped = [], []
