"""Which sections of a partition are worth one large object. Pure: values of the fold in, runs out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_replog.ids import BrokerId, LedgerId, TopicId
from spark_replog.log.fold.partition_state import PartitionState, SectionRef
from spark_replog.log.fold.topic_state import TopicLedgerState

SMALL_SIZE_BYTES = 4 * 1024 * 1024
"""A section of at least one record batch's target size is left as it is."""
SECTIONS_MIN = 10
"""Fewer small sections do not pay a rewrite, unless they fill an object."""
GROWTH_MIN = 4
"""A run that does not fill an object has this many times the bytes of its largest section: so a row is rewritten a
few times at most (log 4 of the object's size), however slowly a partition grows."""
RETENTION_PARTS = 8
"""A run spans at most this part of `retention.ms`: what is joined ages out together."""


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
        return sum(each.size_bytes for each in self.sections)


def compactable(
    state: TopicLedgerState, topic_id: TopicId, partition: int, start_offset: int = 0, *, is_whole: bool = True
) -> list[SectionRef]:
    """Return the sections from an offset on that a replacement may name now, in offset order.

    They begin at or after it and the log start, end at or below the high watermark, and lie on every assigned replica.
    The newest section of the log stays as it is, like Kafka's active segment. Call it under the ledger's lock. With
    `is_whole=False` the one that the offset lies in is among them.
    """
    found = state.topics[topic_id].partitions[partition]
    start = max(found.log_start_offset, start_offset)
    refs = state.sections(topic_id, partition, start, found.high_watermark)
    return [
        each
        for each in refs
        if (each.base_offset >= start or not is_whole)
        and each.end_offset <= found.high_watermark
        and each.end_offset < found.log_end_offset
        and each.object.holders.issuperset(found.replicas)
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
    """Return the runs of a topic that pay, each partition's oldest first. Call it under the ledger's lock.

    Args:
        topic_id: an open topic.
        limits: of the runs.
        partitions: None: all.
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


def make_run(
    state: TopicLedgerState, topic_id: TopicId, partition: int, sections: Sequence[SectionRef]
) -> CompactionRun:
    """Return the run of some sections as the topic is now."""
    topic = state.topics[topic_id]
    found: PartitionState = topic.partitions[partition]
    compression = topic.config.get("compression.type", "none")
    where = (topic.name, topic_id, partition, state.ledger_id)
    return CompactionRun(*where, state.generation, found.replicas, compression, tuple(sections), state.applied_index)


def _stretches(sections: Sequence[SectionRef], limits: CompactionLimits) -> Iterator[list[SectionRef]]:
    """Yield small neighbours whose rows can be in one object, each stretch within the limits."""
    current: list[SectionRef] = []
    size_bytes = low_ms = high_ms = 0
    for each in sections:
        is_next = bool(current) and current[-1].end_offset == each.base_offset
        is_next = is_next and bool(current[-1].timestamp_type) == bool(each.timestamp_type)
        low, high = (
            (min(low_ms, each.min_timestamp_ms), max(high_ms, each.max_timestamp_ms))
            if is_next
            else (each.min_timestamp_ms, each.max_timestamp_ms)
        )
        is_near = limits.span_max_ms is None or high - low <= limits.span_max_ms
        is_small = each.size_bytes < SMALL_SIZE_BYTES
        if current and not (is_next and is_near and is_small and size_bytes + each.size_bytes <= limits.size_max_bytes):
            yield current
            current, size_bytes, low, high = [], 0, each.min_timestamp_ms, each.max_timestamp_ms
        if is_small:
            current.append(each)
            size_bytes, low_ms, high_ms = size_bytes + each.size_bytes, low, high
    if current:
        yield current


def worth_joining(stretch: Sequence[SectionRef], full_bytes: int, sections_min: int) -> Sequence[SectionRef]:
    """Return the part of a stretch that pays a rewrite, perhaps nothing."""
    total = sum(each.size_bytes for each in stretch)
    if len(stretch) > 1 and total * 2 >= full_bytes:
        return stretch
    at = 0
    while len(stretch) - at >= max(sections_min, 2):
        largest = max(stretch[at:], key=lambda each: each.size_bytes)
        if largest.size_bytes * min(GROWTH_MIN, sections_min) <= total:
            return stretch[at:]
        gone = at + 1 + list(stretch[at:]).index(largest)
        total -= sum(each.size_bytes for each in stretch[at:gone])
        at = gone
    return ()
