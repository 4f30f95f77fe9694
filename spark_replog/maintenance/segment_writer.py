"""Plans runs of small sections, and rewrites a run as one object on every replica.

The plan is pure: values of the fold in, runs out. The writer runs on one machine or in Spark's tasks and reads no
ledger. It reads rows by ranges from any good copy, checks their checksums and passes them through in Arrow batches.
Its memory is that of the object as it is stored and a few sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import CorruptDataError, ErrorCode, ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import BrokerId, LedgerId, ObjectId, TopicId, new_id
from spark_replog.log.codec.data_object import (
    EncodedObject,
    data_schema,
    encode_data_object,
)
from spark_replog.log.fold.partition_state import PartitionState, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import DataObject, Replace, inputs_digest
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.fetch_plan import FetchSlice
from spark_replog.read.fetcher import Fetcher
from spark_replog.read.rows import RowView, log_column
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import CreateOutcome
from spark_replog.storage.paths import data_key, object_name

SMALL_SIZE_BYTES = 4 * 1024 * 1024
"""A section of at least one record batch's target size is left as it is."""
SECTIONS_MIN = 10
"""Fewer small sections do not pay a rewrite, unless they fill an object."""
GROWTH_MIN = 4
"""A run that does not fill an object has this many times the bytes of its largest section: so a row is rewritten a
few times at most (log 4 of the object's size), however slowly a partition grows."""
RETENTION_PARTS = 8
"""A run spans at most this part of `retention.ms`: what is joined ages out together."""
JOINED_BYTES = 512 * 1024
"""Smaller neighbours are joined: the copy costs less than a batch of their own. Larger ones pass through uncopied."""


class CompactionLimits(NamedTuple):
    """How far runs may reach."""

    size_max_bytes: int
    """`segment.bytes`: of one object that compaction makes, as stored."""
    span_max_ms: int | None
    """Of the rows' times in one run; None: any."""


class CompactionRun(NamedTuple):
    """Neighbouring sections of one partition, to be rewritten as one object. Pickles."""

    topic: str
    topic_id: TopicId
    partition: int
    ledger_id: LedgerId
    generation: int
    """The ledger's data generation: where the object goes."""
    replicas: tuple[BrokerId, ...]
    """Brokers that get a copy: all that are assigned, so that no input had more."""
    compression: str
    sections: tuple[SectionRef, ...]
    after_index: int
    """The ledger's last entry when it was planned."""
    schemas: tuple[RowSchema, ...] = ()
    """The versions of a typed topic's columns: the newest is that of the segment."""

    @property
    def first_offset(self) -> int:
        """Return the first offset that the run spans."""
        return self.sections[0].base_offset

    @property
    def end_offset(self) -> int:
        """Return the exclusive end of what it spans."""
        return self.sections[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """Return the stored bytes of its sections."""
        return sum(section.size_bytes for section in self.sections)


def compactable(
    state: TopicLedgerState, topic_id: TopicId, partition: int, start_offset: int = 0, *, is_whole: bool = True
) -> list[SectionRef]:
    """Return the sections from an offset on that a replacement may name now, in offset order.

    They begin at or after it and the log start, end at or below the high watermark, and lie on every assigned replica.
    The newest section of the log stays as it is, like Kafka's active segment. None while a replica is out of sync: it
    may take no copy, and then those on the others would be garbage, again and again. Call it under the ledger's lock.
    With `is_whole=False` the one that the offset lies in is among them.
    """
    rows = state.topics[topic_id].partitions[partition]
    if not set(rows.isr).issuperset(rows.replicas):
        return []
    start = max(rows.log_start_offset, start_offset)
    refs = state.sections(topic_id, partition, start, rows.high_watermark)
    return [
        section
        for section in refs
        if (section.base_offset >= start or not is_whole)
        and section.end_offset <= rows.high_watermark
        and section.end_offset < rows.log_end_offset
        and section.object.holders.issuperset(rows.replicas)
    ]


def plan_compaction(
    state: TopicLedgerState,
    topic_id: TopicId,
    limits: CompactionLimits,
    partitions: Sequence[int] | None = None,
    *,
    sections_min: int = SECTIONS_MIN,
    resume: dict[int, int] | None = None,
) -> list[CompactionRun]:
    """Return the runs of an open topic that pay, each partition's oldest first. Call it under the ledger's lock.

    Args:
        sections_min: fewer small sections than this, that do not fill an object, are left alone.
        resume: partition -> offset below which nothing can pay any more; raised here, so that the next look costs what
            is new, not what lives.
    """
    cursors = {} if resume is None else resume
    topic = state.topics[topic_id]
    runs = []
    for number in range(len(topic.partitions)) if partitions is None else partitions:
        open_offset: int | None = None
        last: list[SectionRef] = []
        for last in _stretches(compactable(state, topic_id, number, cursors.get(number, 0)), limits):
            kept = worth_joining(last, limits.size_max_bytes, sections_min)
            if kept:
                runs.append(make_run(state, topic_id, number, kept))
                open_offset = kept[0].base_offset if open_offset is None else open_offset
        if last:
            cursors[number] = last[0].base_offset if open_offset is None else open_offset
    return runs


def plan_inline(
    state: TopicLedgerState, limits: Callable[[dict[str, str]], CompactionLimits], *, sections_min: int = SECTIONS_MIN
) -> list[CompactionRun]:
    """Return the runs that move inline rows of a ledger into data objects, of partitions where it saves calls.

    Call it under the ledger's lock. Once the rows are moved, the ledger has room for others. ``limits`` returns
    those of a topic with the given settings; a partition with rows in few inline objects is left alone.
    """
    runs = []
    for (topic_id, number), (object_count, first_offset) in state.inline_spans().items():
        topic = state.topics[topic_id]
        if topic.closed or object_count < sections_min:
            continue
        sections = compactable(state, topic_id, number, first_offset)
        stretches = _stretches([section for section in sections if section.object.inline], limits(topic.config))
        runs += [make_run(state, topic_id, number, part) for part in stretches if len(part) >= min(2, sections_min)]
    return runs


def make_run(
    state: TopicLedgerState, topic_id: TopicId, partition: int, sections: Sequence[SectionRef]
) -> CompactionRun:
    """Return the run of some sections as the topic is now."""
    topic = state.topics[topic_id]
    partition_state: PartitionState = topic.partitions[partition]
    config = stored_topic_config(tuple(topic.config.items()))[0]
    compression = config.compression_of(is_typed=bool(topic.schemas))
    where = (topic.name, topic_id, partition, state.ledger_id)
    return CompactionRun(
        *where,
        state.generations.newest,
        partition_state.replicas,
        compression,
        tuple(sections),
        state.applied_index,
        topic.schemas,
    )


def _stretches(sections: Sequence[SectionRef], limits: CompactionLimits) -> Iterator[list[SectionRef]]:
    """Yield small neighbours whose rows can be in one object, each stretch within the limits."""
    current: list[SectionRef] = []
    size_bytes = low_ms = high_ms = 0
    for ref in sections:
        is_next = bool(current) and current[-1].end_offset == ref.base_offset
        is_next = is_next and bool(current[-1].timestamp_type) == bool(ref.timestamp_type)
        low, high = (
            (min(low_ms, ref.min_timestamp_ms), max(high_ms, ref.max_timestamp_ms))
            if is_next
            else (ref.min_timestamp_ms, ref.max_timestamp_ms)
        )
        is_near = limits.span_max_ms is None or high - low <= limits.span_max_ms
        is_small = ref.size_bytes < SMALL_SIZE_BYTES
        if current and not (is_next and is_near and is_small and size_bytes + ref.size_bytes <= limits.size_max_bytes):
            yield current
            current, size_bytes, low, high = [], 0, ref.min_timestamp_ms, ref.max_timestamp_ms
        if is_small:
            current.append(ref)
            size_bytes, low_ms, high_ms = size_bytes + ref.size_bytes, low, high
    if current:
        yield current


def worth_joining(stretch: Sequence[SectionRef], full_bytes: int, sections_min: int) -> Sequence[SectionRef]:
    """Return the part of a stretch that pays a rewrite, perhaps nothing."""
    total = sum(section.size_bytes for section in stretch)
    if len(stretch) > 1 and total * 2 >= full_bytes:
        return stretch
    at = 0
    while len(stretch) - at >= max(sections_min, 2):
        largest = max(stretch[at:], key=lambda section: section.size_bytes)
        if largest.size_bytes * min(GROWTH_MIN, sections_min) <= total:
            return stretch[at:]
        gone = at + 1 + list(stretch[at:]).index(largest)
        total -= sum(section.size_bytes for section in stretch[at:gone])
        at = gone
    return ()


class SegmentWriter:
    """Thread safe."""

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers

    def rewrite(self, run: CompactionRun, dropped: np.ndarray | None = None) -> Replace | None:
        """Write the rows of a run, and return the command that puts them in its place.

        Nothing refers to the object before that command is decided: a process that stops before leaves garbage only.
        None where every row goes: the caller joins the run with a neighbour. Raises the error of a row that cannot be
        read, or of a replica that does not take its copy.
        """
        self._check_roots(run)
        rows = _Rows(run, dropped)
        has_headers = any(section.object.has_headers for section in run.sections)
        has_offsets = dropped is not None or any(
            section.object.has_offsets or section.row_count < section.end_offset - section.base_offset
            for section in run.sections
        )
        columns = run.schemas[-1] if run.schemas else None
        fetched = Fetcher(self._brokers).fetch(
            slices_of(run),
            include_headers=has_headers,
            batch_bytes_min=JOINED_BYTES,
            views={run.topic_id: RowView(columns)},
        )
        batches = rows.through(fetched)
        schema = data_schema(has_headers, has_offsets, columns)
        encoded = encode_data_object(
            [(run.topic, run.topic_id, run.partition, (batch.select(schema.names) for batch in batches), "compaction")],
            compression=run.compression,
            has_headers=has_headers,
            has_offsets=has_offsets,
            is_sized=dropped is None,  # where many rows go, what is left of batches is joined
            rows=columns,
        )
        bases = rows.bases(encoded)
        if not bases:
            return None
        fault_point("compaction.written")
        name = object_name("compact", run.first_offset, run.partition, new_id())
        self._put(run, name, encoded)
        item = DataObject(
            ObjectId(run.generation, name),
            encoded.size_bytes,
            has_headers,
            frozenset(run.replicas),
            encoded.sections,
            has_offsets,
            run.after_index,
            schema_version=len(run.schemas),
        )
        return replacement(run, item, bases)

    def _check_roots(self, run: CompactionRun) -> None:
        """Raise the error of a replica that is away. Otherwise the others would keep copies that no entry names."""
        checks: list[Future[None]] = [
            IO_POOL.submit_to(f"{self._brokers.url(broker_id)}#fetch", self._brokers.check_root, broker_id)
            for broker_id in run.replicas
        ]
        for check in checks:
            check.result()

    def _put(self, run: CompactionRun, name: str, encoded: EncodedObject) -> None:
        def put(broker_id: BrokerId) -> None:
            self._brokers.check_root(broker_id)
            key = data_key(run.ledger_id, run.generation, name)
            outcome = self._brokers.store(broker_id).create(key, encoded.buffers, make_parent=True)
            if outcome is not CreateOutcome.CREATED:
                raise ReplogError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    "other bytes are under the new name of a segment. Run `replog store verify`.",
                    broker=broker_id,
                    key=key,
                )
            fault_point("compaction.copied")

        puts: list[Future[None]] = [
            IO_POOL.submit_to(f"{self._brokers.url(broker_id)}#fetch", put, broker_id) for broker_id in run.replicas
        ]
        for future in puts:
            future.exception()  # every put has ended before the bytes are let go
        for future in puts:
            future.result()


def replacement(run: CompactionRun, item: DataObject, bases: tuple[int, ...]) -> Replace:
    """Return the command that puts an object in the place of a run; `bases` are those of its sections."""
    inputs = inputs_digest((section.object.id, section.start_byte, section.base_offset) for section in run.sections)
    return Replace(run.topic_id, run.partition, run.first_offset, run.end_offset, inputs, (item,), bases)


def slices_of(run: CompactionRun) -> Iterator[FetchSlice]:
    """Yield how the whole sections of a run are read."""
    for section in run.sections:
        start, end = section.base_offset, section.end_offset
        version = section.object.schema_version
        schema = run.schemas[version - 1] if version else None
        yield FetchSlice(run.topic, run.topic_id, run.partition, start, end, *section[:6], *section[8:10], schema)


class _Rows:
    """The rows of a run on their way: counts them, and knows where each output section begins."""

    def __init__(self, run: CompactionRun, dropped: np.ndarray | None) -> None:
        self._run = run
        self._dropped = dropped
        self._offsets: list[np.ndarray] = []
        self._read_count = 0

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay."""
        for batch in batches:
            offsets = log_column(batch, "offset").to_numpy()
            self._read_count += len(offsets)
            if self._dropped is not None:
                stays = ~np.isin(offsets, self._dropped, assume_unique=True)
                if not stays.all():
                    batch, offsets = batch.filter(pa.array(stays)), offsets[stays]
            if len(offsets):
                self._offsets.append(offsets)
                yield batch

    def bases(self, encoded: EncodedObject) -> tuple[int, ...]:
        """Return the base offset of each section that was written; the first spans the run's first offset.

        Raises CORRUPT_MESSAGE if other rows came back than the ledger says.
        """
        expected = sum(section.row_count for section in self._run.sections)
        stays = expected - (0 if self._dropped is None else len(self._dropped))
        offsets = np.concatenate(self._offsets) if self._offsets else np.empty(0, np.int64)
        is_ordered = not len(offsets) or (
            offsets[0] >= self._run.first_offset and offsets[-1] < self._run.end_offset and (np.diff(offsets) > 0).all()
        )
        written = sum(section.row_count for section in encoded.sections)
        if self._read_count != expected or len(offsets) != stays or written != stays or not is_ordered:
            raise CorruptDataError(
                ErrorCode.CORRUPT_MESSAGE,
                f"compaction of {self._run.topic}-{self._run.partition} read {self._read_count} rows of {expected} and"
                f" would keep {written} of {stays}. Nothing was changed. Run `replog store verify --deep`.",
            )
        if not encoded.sections:
            return ()
        firsts = np.cumsum([0, *(section.row_count for section in encoded.sections[:-1])])
        return (self._run.first_offset, *offsets[firsts[1:]].tolist())
