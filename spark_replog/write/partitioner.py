"""Chooses each record's partition: the user's partitioner, Kafka's murmur2 of the key, or a sticky choice.

Source: Kafka ``BuiltInPartitioner`` (KIP-794) and ``RoundRobinPartitioner``. ``BuiltInPartitioner`` here assigns whole
Arrow columns, ``StickyPartitioner`` single records.

``murmur2_array`` hashes a whole Arrow column at once (source: Kafka ``Utils.murmur2``; all arithmetic is modulo 2**32,
words are little-endian). Each step mixes the i-th word of every key of a chunk, and chunks are small enough for the
CPU's cache. Keys of equal length need no gather: their i-th words form a strided view. A few keys much longer than the
rest would cost a step per word for hardly any key, so they are finished one by one on plain integers.
"""

from __future__ import annotations

import random
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import array_of
from spark_replog.log.write_plan import TopicPlan
from spark_replog.write.columns import Int32Array, Int64Array, offsets_of
from spark_replog.write.producer_batch import PartitionQueue
from spark_replog.write.serializers import check_arrow_form, load_class, make_object

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
CHUNK_ROW_COUNT = 16384
LONE_KEY_COUNT = 4
"""Up to this many longer keys are hashed one by one, which is cheaper than a vector step per word."""

_MASK = 0xFFFFFFFF
_M = np.uint32(MULTIPLIER)
_POSITIVE = np.uint32(0x7FFFFFFF)

UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]


def murmur2_array(keys: pa.Array) -> UInt32Array:
    """Return the hash of every key; null rows get an arbitrary value.

    Args:
        keys: binary or string array of N rows (32-bit offsets), whole or a slice.

    Returns:
        N hashes as uint32; Kafka prints the same bits as signed.
    """
    row_count = len(keys)
    hashes = np.empty(row_count, dtype=np.uint32)
    if row_count == 0:
        return hashes
    offsets = offsets_of(keys)
    values = keys.buffers()[2]
    data = np.empty(0, dtype=np.uint8) if values is None else np.frombuffer(values, dtype=np.uint8)
    if data.size < 4:  # at least one word, so that a word view exists
        data = np.concatenate([data, np.zeros(4, dtype=np.uint8)])
    for start in range(0, row_count, CHUNK_ROW_COUNT):
        stop = min(row_count, start + CHUNK_ROW_COUNT)
        starts = offsets[start:stop]
        lengths = offsets[start + 1 : stop + 1] - starts
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            hashes[start:stop] = _hash_one_length(data, int(starts[0]), stop - start, longest)
        else:
            hashes[start:stop] = _hash_any_length(data, starts.astype(np.int64), lengths.astype(np.int64))
    return hashes


def murmur2(key: bytes) -> int:
    """Return the hash of one key, unsigned; Kafka prints the same bits as signed."""
    length = len(key)
    value = SEED ^ length
    whole = length & ~3
    for word in struct.unpack_from(f"<{length >> 2}I", key):
        word = word * MULTIPLIER & _MASK
        word = (word ^ word >> 24) * MULTIPLIER
        value = (value * MULTIPLIER ^ word) & _MASK
    if whole != length:
        value = (value ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & _MASK
    value = (value ^ value >> 13) * MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return Kafka's partition for one key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def partitions_of(hashes: UInt32Array, partition_count: int) -> Int32Array:
    """Return Kafka's partition for hashes: the sign bit cleared (not the absolute value), then modulo."""
    assert partition_count > 0
    positive, count = hashes & _POSITIVE, np.uint32(partition_count)
    return (positive - positive // count * count).astype(np.int32)  # numpy's remainder takes three times as long


def _mix(words: UInt32Array) -> UInt32Array:
    words = words * _M
    words ^= words >> np.uint32(24)
    words *= _M
    return words


def _finish(hashes: UInt32Array) -> UInt32Array:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _hash_one_length(data: np.ndarray[Any, np.dtype[np.uint8]], start: int, count: int, length: int) -> UInt32Array:
    """Hash adjacent keys of one length."""
    if count <= LONE_KEY_COUNT or length < 4:
        starts = start + length * np.arange(count, dtype=np.int64)
        return _hash_any_length(data, starts, np.full(count, length, dtype=np.int64))

    def words_at(position: int) -> UInt32Array:
        """Return a copy of the word that begins at this byte of each key."""
        return np.ndarray((count,), dtype="<u4", buffer=data, offset=start + position, strides=(length,)).copy()

    hashes = np.full(count, (SEED ^ length) & _MASK, dtype=np.uint32)
    for position in range(0, length - 3, 4):
        hashes *= _M
        hashes ^= _mix(words_at(position))
    tail = length % 4
    if tail:  # the last bytes of the word that ends with the key
        hashes ^= words_at(length - 4) >> np.uint32(8 * (4 - tail))
        hashes *= _M
    return _finish(hashes)


def _hash_any_length(data: np.ndarray[Any, np.dtype[np.uint8]], starts: Int64Array, lengths: Int64Array) -> UInt32Array:
    """Hash keys of mixed lengths."""
    words = np.ndarray((data.size - 3,), dtype="<u4", buffer=data, strides=(1,))
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    word_counts = lengths >> 2
    fewest = int(word_counts.min()) if starts.size > LONE_KEY_COUNT else 0
    most = int(word_counts.max())
    index = 0
    while index < most:
        if index < fewest:
            hashes *= _M
            hashes ^= _mix(words[starts + 4 * index])
            index += 1
            continue
        active = np.flatnonzero(word_counts > index)
        if active.size <= LONE_KEY_COUNT:
            for row in active.tolist():
                first, end, value = int(starts[row]), int(word_counts[row]), int(hashes[row])
                for word in _mix(words[first + 4 * index : first + 4 * end : 4]).tolist():
                    value = ((value * MULTIPLIER) & _MASK) ^ word
                hashes[row] = value
            break
        hashes[active] = (hashes[active] * _M) ^ _mix(words[starts[active] + 4 * index])
        index += 1
    return _finish(_hash_tails(words, starts + lengths, lengths & 3, hashes))


def _hash_tails(words: UInt32Array, ends: Int64Array, tails: Int64Array, hashes: UInt32Array) -> UInt32Array:
    """Mix the 0 to 3 bytes after each key's last whole word.

    They are taken from the word that ends with the key, so nothing past the buffer is read. At the very start of the
    buffer, where that word would begin before it, the first word is shifted instead.
    """
    at = np.maximum(ends - 4, 0)
    shift = ((ends - at - tails) << 3).astype(np.uint32)
    # A shift by 32 is undefined; it occurs only where there is no tail.
    values = words[np.minimum(at, words.size - 1)] >> np.minimum(shift, np.uint32(31))
    values &= (np.uint32(1) << (tails.astype(np.uint32) << np.uint32(3))) - np.uint32(1)
    return np.where(tails > 0, (hashes ^ values) * _M, hashes)


class UserPartitioner:
    """A user's partitioner, called per record or per column.

    Args:
        partitioner: has ``partition(topic, key, key_bytes, value, value_bytes, count)``, ``partition_array(keys,
            count)``, or both.
    """

    def __init__(self, partitioner: Any) -> None:
        self.name = type(partitioner).__name__
        self._partitioner = partitioner
        self._has_record_form = callable(getattr(partitioner, "partition", None))
        if not self._has_record_form and not callable(getattr(partitioner, "partition_array", None)):
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_OPTION,
                f"partitioner.class {self.name} has neither partition(topic, key, key_bytes, value, value_bytes, "
                "count) nor partition_array(keys, count). Add one.",
            )

    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, count: int
    ) -> int:
        """Return one record's partition.

        Raises:
            InvalidConfigError: INVALID_PARTITIONS: the topic has no such partition.
        """
        if self._has_record_form:
            answer = self._partitioner.partition(topic, key, key_bytes, value, value_bytes, count)
        else:
            answer = self._partitioner.partition_array(pa.array([key_bytes], pa.binary()), count)[0]
            answer = answer.as_py() if isinstance(answer, pa.Scalar) else answer
        if isinstance(answer, (int, np.integer)) and not isinstance(answer, bool) and 0 <= answer < count:
            return int(answer)
        raise InvalidConfigError(
            ErrorCode.INVALID_PARTITIONS,
            f"The partitioner {self.name} returned {answer!r} for topic '{topic}' with {count} partitions. Return "
            f"a number from 0 to {count - 1}.",
            topic=topic,
            count=count,
        )

    def check_arrow_form(self) -> None:
        """Refuse a partitioner that only works record by record.

        Raises:
            InvalidConfigError: REPLOG_INVALID_OPTION, naming the missing method.
        """
        check_arrow_form(self._partitioner, "partitioner.class", "partition_array(keys, count)")

    def partition_array(self, keys: pa.Array, count: int) -> Any:
        """Return one partition in [0, count) per key, which ``TopicPartitioner`` checks.

        Args:
            keys: binary array of N >= 1 rows, null where a row has no key.

        Returns:
            An integer numpy or Arrow array without nulls.
        """
        return self._partitioner.partition_array(keys, count)


class RoundRobinPartitioner:
    """One partition after another, whatever the key (Kafka's class of this name)."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._next_row = 0
        self._lock = threading.Lock()

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, count: int) -> int:
        """Return the partition after the topic's last one."""
        with self._lock:
            number = self._next.get(topic, 0)
            self._next[topic] = number + 1
        return number % count

    def partition_array(self, keys: pa.Array, count: int) -> Any:
        """Return a column's partitions, starting after the last one."""
        with self._lock:
            first = self._next_row
            self._next_row += len(keys)
        return (first + np.arange(len(keys))) % count


_ROUND_ROBIN = frozenset({"roundrobinpartitioner", "org.apache.kafka.clients.producer.roundrobinpartitioner"})


def make_partitioner(given: Any) -> UserPartitioner | None:
    """Return the partitioner that ``partitioner.class`` names; None: the built-in one.

    Args:
        given: ``module.Class``, ``RoundRobinPartitioner``, a class, an object, or None.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: it cannot be instantiated, or has neither method.
    """
    if given is None:
        return None
    if isinstance(given, str):
        is_round_robin = given.lower() in _ROUND_ROBIN
        given = RoundRobinPartitioner() if is_round_robin else load_class("partitioner.class", given)
    else:
        given = make_object("partitioner.class", given)
    return UserPartitioner(given)


class BuiltInPartitioner:
    """Sticky, uniform by bytes: rows without a key go to one partition until it got ``batch.size``.

    Source: Kafka ``BuiltInPartitioner`` (KIP-794). Kafka delays a switch while the partition has a half-full batch.
    Here one object gathers the batches of all partitions, so a switch costs nothing and there is no such rule.

    Args:
        batch_size_bytes: bytes to one partition before the next one is chosen.
        available: partitions that have a leader; never empty.
        random_source: draws the next partition; seeded by the task, so that a retry makes the same choices.
    """

    def __init__(self, batch_size_bytes: int, available: Sequence[int], random_source: random.Random) -> None:
        assert available, "a topic has at least one partition"
        self._batch_size_bytes = max(1, batch_size_bytes)
        self._available = tuple(available)
        self._random = random_source
        self._produced_bytes = 0
        self._partition = random_source.choice(self._available)

    def assign(self, row_sizes: Int64Array) -> Int32Array:
        """Return a partition for each of N rows, in row order, and count their bytes.

        Costs one step per switch, not per row.
        """
        row_count = len(row_sizes)
        partitions = np.empty(row_count, dtype=np.int32)
        ends = np.cumsum(row_sizes)
        start = 0
        start_bytes = 0
        while start < row_count:
            room_bytes = self._batch_size_bytes - self._produced_bytes
            stop = min(row_count, int(np.searchsorted(ends, start_bytes + room_bytes)) + 1)
            partitions[start:stop] = self._partition
            end_bytes = int(ends[stop - 1])
            self._produced_bytes += end_bytes - start_bytes
            if self._produced_bytes >= self._batch_size_bytes:
                self._partition = self._random.choice(self._available)
                self._produced_bytes = 0
            start, start_bytes = stop, end_bytes
        return partitions


class TopicPartitioner:
    """Decides the partitions of one topic's rows.

    Rows without a key avoid partitions without a leader, unless no partition has one.

    Args:
        random_source: draws the sticky partition; seeded by the task, so that a retry makes the same choices.
    """

    def __init__(
        self, topic: TopicPlan, config: ProducerConfig, random_source: random.Random, custom: UserPartitioner | None
    ) -> None:
        self._topic = topic
        self._partition_count = len(topic.replica_sets)
        self._config = config
        self._random = random_source
        self._custom = custom

    @cached_property
    def _sticky(self) -> BuiltInPartitioner:
        """The partitioner of rows without a key; made for the first one."""
        numbers = range(self._partition_count)
        available = [number for number in numbers if number not in self._topic.offline]
        return BuiltInPartitioner(self._config.batch_size_bytes, available or numbers, self._random)

    def partitions(self, keys: pa.Array, explicit: pa.Array | None, row_sizes: Callable[[], Int64Array]) -> Int32Array:
        """Return the partition of each of N rows.

        Args:
            explicit: int32 array of N rows, null where the partitioner decides; None: it always does.
            row_sizes: returns the bytes of each row; asked for the sticky choice only.

        Raises:
            InvalidConfigError: INVALID_PARTITIONS or UNKNOWN_TOPIC_OR_PARTITION; nothing was counted.
        """
        if explicit is None or explicit.null_count == len(explicit):
            return self._decide(keys, row_sizes)
        column = "The row's 'partition' column"
        if explicit.null_count == 0:  # read without Arrow's way to numpy, which imports pandas: 0.3 s of a new process
            chosen = np.frombuffer(explicit.buffers()[1], np.int32)[explicit.offset : explicit.offset + len(explicit)]
            self._check(chosen, column)
            return chosen
        result: Int32Array = np.asarray(explicit.fill_null(0)).copy()
        self._check(result, column)
        rows = np.flatnonzero(np.asarray(explicit.is_null()))
        result[rows] = self._decide(keys.take(array_of(rows)), lambda: row_sizes()[rows])
        return result

    def _decide(self, keys: pa.Array, row_sizes: Callable[[], Int64Array]) -> Int32Array:
        if self._custom is not None:
            return self._ask_custom(keys, self._custom)
        if self._config.partitioner_ignore_keys or keys.null_count == len(keys):
            return self._sticky.assign(row_sizes())
        if self._partition_count == 1:
            return np.zeros(len(keys), dtype=np.int32)
        partitions = partitions_of(murmur2_array(keys), self._partition_count)
        if keys.null_count:
            rows = np.flatnonzero(np.asarray(keys.is_null()))
            partitions[rows] = self._sticky.assign(row_sizes()[rows])
        return partitions

    def _ask_custom(self, keys: pa.Array, custom: UserPartitioner) -> Int32Array:
        answer = np.asarray(custom.partition_array(keys, self._partition_count))
        if answer.shape != (len(keys),) or answer.dtype.kind not in "iu":
            raise InvalidConfigError(
                ErrorCode.INVALID_PARTITIONS,
                f"The partitioner {custom.name} returned {answer.dtype} of shape {answer.shape} for "
                f"{len(keys)} keys. Let partition_array return one integer per key, without nulls.",
                topic=self._topic.name,
            )
        self._check(answer, f"The partitioner {custom.name}")
        return answer.astype(np.int32)

    def _check(self, partitions: np.ndarray[Any, Any], chooser: str) -> None:
        lowest, highest = int(partitions.min()), int(partitions.max())
        if lowest < 0:
            raise InvalidConfigError(
                ErrorCode.INVALID_PARTITIONS,
                f"{chooser} names partition {lowest} of topic '{self._topic.name}'. Use 0 to "
                f"{self._partition_count - 1}, or null to have one chosen.",
                topic=self._topic.name,
                partition=lowest,
                count=self._partition_count,
            )
        if highest >= self._partition_count:
            raise InvalidConfigError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{chooser} names partition {highest}, but topic '{self._topic.name}' has partitions 0 to "
                f"{self._partition_count - 1}. Correct the number, drop the column, or add partitions.",
                topic=self._topic.name,
                partition=highest,
                count=self._partition_count,
            )


_DRAW_MAX = 2**31


class StickyPartitioner:
    """The current partition of one topic. The accumulator's lock guards all but ``update_loads``.

    Bytes are counted in the critical section that appends the record, so they always count for the current partition.

    Args:
        available: partitions that have a leader; empty: all may be drawn.
        batch_size_bytes: bytes to one partition before the next is drawn.
        is_adaptive: ``partitioner.adaptive.partitioning.enable``.
    """

    __slots__ = (
        "_available",
        "_batch_size_bytes",
        "_queues",
        "_random",
        "_table",
        "is_adaptive",
        "produced_bytes",
        "queue",
    )

    def __init__(
        self,
        queues: Sequence[PartitionQueue],
        available: Sequence[int],
        batch_size_bytes: int,
        random_source: random.Random,
        *,
        is_adaptive: bool = True,
    ) -> None:
        self._queues = queues
        self._available = tuple(available) or tuple(range(len(queues)))
        self._batch_size_bytes = max(1, batch_size_bytes)
        self._random = random_source
        self._table: tuple[list[int], list[int]] | None = None
        self.is_adaptive = is_adaptive
        self.produced_bytes = 0
        self.queue = queues[self._draw()]

    def add(self, size_bytes: int) -> None:
        """Count bytes appended to the current queue, and switch once it has its share."""
        self.produced_bytes += size_bytes
        if self.produced_bytes >= self._batch_size_bytes:
            self.switch_if_due()

    def switch_if_due(self) -> bool:
        """Switch if the partition has its share and its last batch is full, or if it has twice its share.

        Otherwise every switch would leave a half-full batch.
        """
        share, batches = self._batch_size_bytes, self.queue.batches
        is_half_full = bool(batches) and not batches[-1].is_full
        if self.produced_bytes < share or (self.produced_bytes < 2 * share and is_half_full):
            return False
        self.queue = self._queues[self._draw()]
        self.produced_bytes = 0
        return True

    def update_loads(self, lengths: Sequence[int], unavailable: frozenset[int] = frozenset()) -> None:
        """Weigh partitions by the lengths of their queues: the longest gets weight 1.

        Args:
            lengths: number of waiting batches, per partition of the topic.
            unavailable: partitions with a leader whose roots take objects too late.
        """
        eligible = [number for number in self._available if number not in unavailable]
        loads = [lengths[number] for number in eligible]
        is_even = len(eligible) == len(self._available) and len(set(loads)) <= 1
        if not self.is_adaptive or len(lengths) < 2 or not eligible or is_even:
            self._table = None
            return
        longest = max(loads)
        sums, total = [], 0
        for length in loads:
            total += longest + 1 - length
            sums.append(total)
        self._table = (sums, eligible)

    def _draw(self) -> int:
        table = self._table
        drawn = self._random.randrange(_DRAW_MAX)
        if table is None:
            return self._available[drawn % len(self._available)]
        sums, partitions = table
        return partitions[bisect_right(sums, drawn % sums[-1])]


class NodeAvailability:
    """Tracks destinations whose data has been ready, but not drained, for too long.

    Source: ``RecordAccumulator.NodeLatencyStats``. One owner: the sender's thread.

    Args:
        timeout_ms: ``partitioner.availability.timeout.ms``; 0: all are always available.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._ready_since_ms: dict[object, int] = {}

    def note(self, ready: Sequence[object], now_ms: int) -> None:
        """Note the destinations that are still ready after a round of the sender."""
        self._ready_since_ms = {node: self._ready_since_ms.get(node, now_ms) for node in ready}

    def is_available(self, node: object, now_ms: int) -> bool:
        """Return whether new records may go to the destination."""
        since_ms = self._ready_since_ms.get(node)
        return self._timeout_ms <= 0 or since_ms is None or now_ms - since_ms <= self._timeout_ms
