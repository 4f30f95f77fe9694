"""Appends Arrow batches to the accumulator: finds each row's partition, sorts once, then slices without copying.

Used by the write task and ``Producer.send_arrow``. Per range of rows: one stable sort by partition and one ``take``.
Memory is reserved before it is allocated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.clock import Clock
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.codec.data_object import ROW_MEMORY, array_of
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import PinnedBytes
from spark_replog.write.columns import Int64Array, Rows, row_ends
from spark_replog.write.partitioner import TopicPartitioner, UserPartitioner
from spark_replog.write.producer_batch import Destination, PartitionQueue
from spark_replog.write.record_handle import BatchResult

SORTED_SLOTS_MIN = 8
"""Fewer slots are looked for one by one, which is quicker than a sort."""

FEW_RUNS = 16
"""With fewer changes of the slot, as rows without a key have, runs are joined: half the time of taking row by row."""


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows ordered by slot; rows of one slot are adjacent and keep their order."""

    data: pa.RecordBatch
    slots: list[int]
    bounds: list[int]
    """The i-th slot's rows are [bounds[i], bounds[i + 1])."""

    def pieces(self, batch_size_bytes: int, limit_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (slot, start row, end row, bytes): pieces of about ``batch.size``, or all rows of the slot.

        No piece of more than one row is larger than ``limit_bytes``, which one request may have.
        """
        ends: Int64Array | None = None
        bound_ends = row_ends(self.data, np.array(self.bounds)).tolist()
        for index, slot in enumerate(self.slots):
            start, stop = self.bounds[index], self.bounds[index + 1]
            first_bytes, size_bytes = bound_ends[index], bound_ends[index + 1] - bound_ends[index]
            count = max(1, min(stop - start, round(size_bytes / batch_size_bytes)))
            if count == 1 and size_bytes <= limit_bytes:
                yield slot, start, stop, size_bytes
                continue
            ends = row_ends(self.data) if ends is None else ends
            targets = first_bytes + np.arange(1, count + 1) * size_bytes // count
            for cut in np.unique(np.searchsorted(ends, targets)).tolist():
                end = min(int(cut), stop)
                while end > start:
                    last = end
                    if int(ends[end] - ends[start]) > limit_bytes:
                        last = int(np.searchsorted(ends, int(ends[start]) + limit_bytes, side="right")) - 1
                        last = min(end, max(start + 1, last))
                    yield slot, start, last, int(ends[last] - ends[start])
                    start = last


Slots = int | np.ndarray[Any, Any]
"""The slot of all rows of a batch if they share one. Otherwise of each of its N rows, in the narrowest unsigned type,
which makes the stable sort a radix sort."""


def gather(rows: Rows, slots: Slots, start: int, stop: int) -> SlotRows:
    """Return rows [start, stop) by slot, in fresh memory."""
    part = rows.data.slice(start, stop - start)
    if isinstance(slots, int):
        columns = [pa.concat_arrays([column], ROW_MEMORY) for column in part.columns]
        data = pa.RecordBatch.from_arrays(columns, schema=part.schema)
        return SlotRows(data, [slots], [0, len(data)])
    chosen = slots[start:stop]
    order, distinct_slots, bounds = _sorted(chosen)
    cuts = np.flatnonzero(chosen[1:] != chosen[:-1]) + 1
    if len(cuts) >= FEW_RUNS:
        data = pc.take(part, array_of(order), boundscheck=False, memory_pool=ROW_MEMORY)
        return SlotRows(data, distinct_slots, bounds)
    runs = [part.slice(first, last - first) for first, last in pairwise([0, *cuts.tolist(), len(chosen)])]
    runs = [runs[number] for number in np.argsort(chosen[[0, *cuts]], kind="stable")]
    columns = [pa.concat_arrays([run.column(number) for run in runs], ROW_MEMORY) for number in range(part.num_columns)]
    return SlotRows(pa.RecordBatch.from_arrays(columns, schema=part.schema), distinct_slots, bounds)


def _sorted(slots: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], list[int], list[int]]:
    """Return the order that sorts N >= 1 slots, the slots that there are, and where the rows of each begin and end."""
    highest = int(slots.max())
    if highest < SORTED_SLOTS_MIN:
        parts = {slot: rows for slot in range(highest + 1) if len(rows := np.flatnonzero(slots == slot))}
        return np.concatenate(list(parts.values())), list(parts), [0, *accumulate(map(len, parts.values()))]
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return order, ordered[np.concatenate([[0], cuts])].tolist(), [0, *cuts.tolist(), len(slots)]


class RowRouter:
    """Finds the slot of every row; refuses rows that are too large, lack a required key or name an unknown partition.

    Args:
        default_topic: the topic option; None: rows name their topic.
        row_bytes_max: how much of ``buffer.memory`` a single row may take.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION, the plan lacks the default topic.
    """

    def __init__(
        self,
        plan: WritePlan,
        config: ProducerConfig,
        default_topic: str | None,
        random_source: random.Random,
        partitioner: UserPartitioner | None,
        *,
        row_bytes_max: int,
    ) -> None:
        self._plan = plan
        self._config = config
        self._random = random_source
        self._custom = partitioner
        self._row_bytes_max = row_bytes_max
        self._default = None if default_topic is None else plan.topic(default_topic)
        self._topics: dict[str, tuple[TopicPartitioner, int]] = {}
        """The partitioner and first slot of each topic that had a row."""
        self._slot_topics: list[TopicPlan] = []
        """The topic of each slot."""

    def slot(self, slot: int) -> tuple[TopicPartition, Destination]:
        """Return the partition of a slot, and where its objects go."""
        topic = self._slot_topics[slot]
        partition = slot - self._topics[topic.name][1]
        return TopicPartition(topic.name, partition), destination_of(topic, partition, self._config)

    def route(self, rows: Rows) -> Slots:
        """Return the slot of each of N >= 1 rows.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION, INVALID_RECORD,
                INVALID_TIMESTAMP.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        if self._default is not None:
            slots = self._topic_slots(self._default, rows)
        else:
            assert rows.topic is not None, "without a topic option rows name their topic"
            encoded = rows.topic.dictionary_encode()
            numbers = np.asarray(encoded.indices)
            slots = np.empty(len(numbers), dtype=np.int64)
            for number, topic in enumerate(self._plan.topic(name) for name in encoded.dictionary.to_pylist()):
                at = np.flatnonzero(numbers == number)
                slots[at] = self._topic_slots(topic, rows, at)
        highest = int(slots.max())
        if int(slots.min()) == highest:
            return highest
        return slots.astype(np.min_scalar_type(highest))

    def _topic_slots(
        self, topic: TopicPlan, rows: Rows, at: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Return the slots of a topic's rows, which have these numbers; None: all."""
        if topic.schema is not None and rows.schema is None:
            raise untyped(topic, "rows name it in the column 'topic'", "Write it alone, with the option 'topic'")
        keys, partition = rows.keys, rows.partition
        if at is not None:
            indices = array_of(at)
            keys, partition = keys.take(indices), None if partition is None else partition.take(indices)

        def sizes_of() -> Int64Array:
            return rows.sizes if at is None else rows.sizes[at]

        def mean_sizes() -> Int64Array:
            return np.full(len(keys), rows.size_bytes // len(rows.data), dtype=np.int64)

        limit = row_limit(topic, self._config, self._row_bytes_max, are_mirrored=rows.are_mirrored)
        if rows.size_bytes > limit[0] and int((sizes := sizes_of()).max()) > limit[0]:
            raise too_large(topic.name, int(sizes.max()), limit, row=int(sizes.argmax()))
        if topic.is_compacted and keys.null_count and not rows.are_mirrored:
            raise no_key(topic.name, keys.null_count)
        if rows.dated_at_ms is not None:
            times = rows.times if at is None else rows.times.take(indices)
            extremes = pc.min_max(times.cast(pa.int64()))
            check_times(topic, extremes["min"].as_py() // 1000, -(-extremes["max"].as_py() // 1000), rows.dated_at_ms)
        entry = self._topics.get(topic.name)
        if entry is None:
            partitioner = TopicPartitioner(topic, self._config, self._random, self._custom)
            entry = self._topics[topic.name] = partitioner, len(self._slot_topics)
            self._slot_topics += [topic] * len(topic.replica_sets)
        partitioner, first = entry
        # Those of each typed row cost a quarter of a task's time, and the sticky choice is about as even without.
        partitions = partitioner.partitions(keys, partition, sizes_of if rows.schema is None else mean_sizes)
        return partitions + first if first else partitions


def destination_of(topic: TopicPlan, partition: int, config: ProducerConfig) -> Destination:
    """Return where the objects of a partition go."""
    in_sync = topic.in_sync[partition]
    return Destination(
        ledger_id=topic.ledger_id,
        generation=topic.generation,
        brokers=tuple(sorted(in_sync)),
        leader=None if config.acks == -1 or not in_sync else in_sync[0],
        compression=config.compression_type or topic.compression,
        spares=topic.spares(partition) if config.acks == -1 else (),
        typed_topic="" if topic.schema is None else topic.topic_id,
    )


def row_limit(
    topic: TopicPlan, config: ProducerConfig, row_bytes_max: int, *, are_mirrored: bool = False
) -> tuple[int, str]:
    """Return the largest allowed row of the topic in bytes, and the setting that limits it."""
    limits = [(config.max_request_size_bytes, "max.request.size"), (row_bytes_max, "what buffer.memory holds")]
    if not are_mirrored:
        limits.append((topic.max_message_bytes, "the topic's max.message.bytes"))
    return min(limits)


def no_key(topic: str, row_count: int = 1) -> InvalidConfigError:
    """Return INVALID_RECORD for rows without a key in a compacted topic."""
    return InvalidConfigError(
        ErrorCode.INVALID_RECORD,
        f"Topic '{topic}' is compacted and cannot accept rows without a key: {row_count} rows have none. Give each row"
        " a key, or set the topic's cleanup.policy to delete.",
        topic=topic,
    )


def untyped(topic: TopicPlan, what: str, remedy: str) -> InvalidConfigError:
    """Return REPLOG_INVALID_SCHEMA for keys and values that are sent to a typed topic."""
    assert topic.schema is not None
    return InvalidConfigError(
        ErrorCode.REPLOG_INVALID_SCHEMA,
        f"Topic '{topic.name}' is typed ({topic.schema.ddl}), and {what}. {remedy}.",
        topic=topic.name,
    )


def check_times(topic: TopicPlan, earliest_ms: int, latest_ms: int, now_ms: int) -> None:
    """Refuse rows that are dated too far from their write. Source: Kafka's ``LogValidator.validateTimestamp``.

    Raises:
        InvalidConfigError: INVALID_TIMESTAMP.
    """
    for word, time_ms, distance_ms, most_ms in (
        ("after", latest_ms, latest_ms - now_ms, topic.timestamp_after_max_ms),
        ("before", earliest_ms, now_ms - earliest_ms, topic.timestamp_before_max_ms),
    ):
        if distance_ms > most_ms:
            raise InvalidConfigError(
                ErrorCode.INVALID_TIMESTAMP,
                f"A row for topic '{topic.name}' is dated {_date(time_ms)}, {distance_ms} ms {word} this machine's "
                f"clock, and message.timestamp.{word}.max.ms of the topic is {most_ms}. Correct the row's timestamp "
                "(milliseconds given as seconds, or the reverse?) or the clock, leave the time out, or raise that "
                "setting.",
                topic=topic.name,
                timestamp_ms=time_ms,
            )


def _date(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{time_ms} ms after 1970"


def too_large(topic: str, size_bytes: int, limit: tuple[int, str], **context: int) -> InvalidConfigError:
    """Return MESSAGE_TOO_LARGE for a row of a topic."""
    limit_bytes, setting = limit
    return InvalidConfigError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"A row for topic '{topic}' is {size_bytes} bytes when serialized, larger than {setting} "
        f"({limit_bytes}). Raise that setting or split the row.",
        topic=topic,
        size_bytes=size_bytes,
        **context,
    )


RANGE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of rows sorted and gathered together: small enough for the CPU's cache, large enough for few slices."""


class ArrowAppender:
    """Appends rows of Arrow batches. Not thread-safe.

    Args:
        make_progress: runs the sender of a single-threaded owner while an append waits for memory; called with the
            milliseconds left. None: another thread runs the sender.
        after_range: called after each range of rows.
        measures_records: whether batches note their largest record, for metrics.
    """

    def __init__(
        self,
        router: RowRouter,
        accumulator: RecordAccumulator,
        *,
        config: ProducerConfig,
        clock: Clock,
        make_progress: Callable[[int], None] | None = None,
        after_range: Callable[[], object] = lambda: None,
        measures_records: bool = False,
    ) -> None:
        self._router = router
        self._accumulator = accumulator
        self._pool = accumulator.pool
        self._range_bytes = max(1, min(RANGE_BYTES_MAX, self._pool.total_bytes // 8))
        self._config = config
        self._clock = clock
        self._make_progress = make_progress
        self._after_range = after_range
        self._measures_records = measures_records
        self._queues: dict[int, tuple[PartitionQueue, TopicId]] = {}
        """By slot; with the typed topic that it is of."""

    def append(self, rows: Rows) -> Iterator[tuple[BatchResult, int, int]]:
        """Append N >= 1 rows; yield, for each slice, its batch's result, its first row there, and its number of rows.

        Rows are appended as the iterator advances, so exhaust it.

        Raises:
            InvalidConfigError: MESSAGE_TOO_LARGE, INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION, INVALID_RECORD,
                INVALID_TIMESTAMP: nothing was appended.
            RetriableError: REPLOG_BUFFER_EXHAUSTED: the earlier ranges were appended.
        """
        slots = self._router.route(rows)
        record_size_max = int(rows.sizes.max()) if self._measures_records else 0
        limits = self._config.batch_size_bytes, self._accumulator.config.max_request_size_bytes
        is_lean = rows.pinned_bytes <= min(2 * rows.size_bytes, self._pool.total_bytes // 4)
        gathered: SlotRows | None = None
        ranges: Iterable[tuple[int, int, int]]
        if isinstance(slots, int) and is_lean:  # all rows at once, in their own memory
            gathered = SlotRows(rows.data, [slots], [0, len(rows.data)])
            ranges = [(0, len(rows.data), rows.pinned_bytes)]
        elif rows.size_bytes <= self._range_bytes:
            ranges = [(0, len(rows.data), rows.size_bytes)]
        else:
            ranges = _ranges(rows.ends, self._range_bytes)
        for start, stop, size_bytes in ranges:
            self._pool.allocate(size_bytes, self._config.max_block_ms, self._make_progress)
            pinned = PinnedBytes(self._pool, size_bytes)
            try:  # afterwards only the slices that were appended keep the memory
                now_ms = self._clock.monotonic_ms()
                parts = gathered or gather(rows, slots, start, stop)
                for slot, first, end, part_bytes in parts.pieces(*limits):
                    if slot not in self._queues:
                        name, destination = self._router.slot(slot)
                        queue = self._accumulator.queue(name)
                        if queue.destination is None:  # in a plain producer the metadata has already assigned it
                            self._accumulator.assign(queue, destination)
                        self._queues[slot] = queue, destination.typed_topic
                    queue, typed_topic = self._queues[slot]
                    records = parts.data.slice(first, end - first)
                    result, index = self._accumulator.append(
                        queue, records, part_bytes, pinned, now_ms, record_size_max, rows.schema, typed_topic
                    )
                    yield result, index, end - first
            finally:
                pinned.release()
            self._after_range()


def _ranges(ends: Int64Array, range_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield [start, stop) row ranges of at most ``range_bytes``, or of one larger row, each with its bytes."""
    start = 0
    while start < len(ends) - 1:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + range_bytes, side="right")) - 1)
        yield start, stop, int(ends[stop] - ends[start])
        start = stop
