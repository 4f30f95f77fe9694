"""Which partition a row goes to, decided for whole Arrow columns.

Precedence (Kafka ``KafkaProducer.partition``): the row's own partition, then a partitioner of the
user, then the key's murmur2 unless ``partitioner.ignore.keys``, then the sticky choice. An empty
key is a key; only a null key is not.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.producer.murmur2 import Int32Array, Int64Array, murmur2_array, partitions_of


class Partitioner(Protocol):
    """A partitioner of the user, in its Arrow form."""

    def partition_array(self, keys: pa.Array, count: int) -> Any:
        """Return one partition in [0, count) per key: an integer numpy or Arrow array without nulls.

        Args:
            keys: binary array of N >= 1 rows, null where a row has no key.
            count: number of partitions of the topic.
        """
        ...


def load_partitioner(path: str) -> Partitioner:
    """Return an instance of the user's class (``partitioner.class``).

    Args:
        path: ``module.Class``; made without arguments.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: not found, or without ``partition_array``.
    """
    module_name, _, class_name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"partitioner.class '{path}' cannot be imported: {error}. Give module.Class, importable on the workers.",
        ) from error
    if not callable(getattr(found, "partition_array", None)):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_OPTION,
            f"partitioner.class '{path}' has no method partition_array(keys, count), which Arrow batches need. Add it.",
        )
    partitioner: Partitioner = found()
    return partitioner


class BuiltInPartitioner:
    """Sticky, uniform by bytes: rows without a key go to one partition until it got ``batch.size``.

    Source: Kafka ``BuiltInPartitioner`` (KIP-794). Kafka puts a switch off while the partition has
    a half-full batch, since a batch is what it sends; here a send gathers the batches of all
    partitions, so a switch costs nothing and the rule falls away.

    Args:
        batch_size_bytes: bytes to one partition before the next one is chosen.
        available: partitions that have a leader; never empty.
        random_source: draws the next partition; seeded by the task, so that a retry chooses alike.
    """

    def __init__(self, batch_size_bytes: int, available: Sequence[int], random_source: random.Random) -> None:
        assert available, "a topic has at least one partition"
        self._batch_size_bytes = max(1, batch_size_bytes)
        self._available = tuple(available)
        self._random = random_source
        self._produced_bytes = 0
        self._partition = self._next_partition()

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
                self._partition = self._next_partition()
                self._produced_bytes = 0
            start, start_bytes = stop, end_bytes
        return partitions

    def _next_partition(self) -> int:
        return self._available[self._random.randrange(len(self._available))]


class TopicPartitioner:
    """Decides the partitions of one topic's rows.

    Args:
        topic: its name, for errors.
        partition_count: all partitions, with or without a leader.
        sticky: for rows without a key.
        ignore_keys: ``partitioner.ignore.keys``.
        custom: the user's partitioner, if any.
    """

    def __init__(
        self,
        topic: str,
        partition_count: int,
        sticky: BuiltInPartitioner,
        *,
        ignore_keys: bool = False,
        custom: Partitioner | None = None,
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._sticky = sticky
        self._ignore_keys = ignore_keys
        self._custom = custom

    def partitions(self, keys: pa.Array, explicit: pa.Array | None, row_sizes: Int64Array) -> Int32Array:
        """Return the partition of each of N rows.

        Args:
            keys: binary array of N rows.
            explicit: int32 array of N rows, null where the partitioner decides; None: it always does.
            row_sizes: bytes of each row, for the sticky choice.

        Raises:
            InvalidConfigError: INVALID_PARTITIONS or UNKNOWN_TOPIC_OR_PARTITION; nothing was counted.
        """
        if explicit is None or explicit.null_count == len(explicit):
            return self._decide(keys, row_sizes)
        chosen = np.asarray(explicit.fill_null(0))
        is_open = np.asarray(explicit.is_null())
        self._check(chosen, "the row's 'partition' column")
        if explicit.null_count == 0:
            return chosen
        result: Int32Array = chosen.copy()
        rows = np.flatnonzero(is_open)
        result[rows] = self._decide(keys.take(pa.array(rows)), row_sizes[rows])
        return result

    def _decide(self, keys: pa.Array, row_sizes: Int64Array) -> Int32Array:
        if self._custom is not None:
            return self._ask_custom(keys, self._custom)
        if self._ignore_keys or keys.null_count == len(keys):
            return self._sticky.assign(row_sizes)
        if self._partition_count == 1:
            return np.zeros(len(keys), dtype=np.int32)
        partitions = partitions_of(murmur2_array(keys), self._partition_count)
        if keys.null_count:
            rows = np.flatnonzero(np.asarray(keys.is_null()))
            partitions[rows] = self._sticky.assign(row_sizes[rows])
        return partitions

    def _ask_custom(self, keys: pa.Array, custom: Partitioner) -> Int32Array:
        answer = np.asarray(custom.partition_array(keys, self._partition_count))
        if answer.shape != (len(keys),) or answer.dtype.kind not in "iu":
            raise InvalidConfigError(
                ErrorCode.INVALID_PARTITIONS,
                f"the partitioner {type(custom).__name__} gave {answer.dtype} of shape {answer.shape} for "
                f"{len(keys)} keys. Let partition_array return one integer per key, without nulls.",
                topic=self._topic,
            )
        self._check(answer, f"the partitioner {type(custom).__name__}")
        return answer.astype(np.int32)

    def _check(self, partitions: np.ndarray[Any, Any], chooser: str) -> None:
        lowest, highest = int(partitions.min()), int(partitions.max())
        if lowest < 0:
            raise InvalidConfigError(
                ErrorCode.INVALID_PARTITIONS,
                f"{chooser} names partition {lowest} of topic '{self._topic}'. Partitions count from 0 to "
                f"{self._partition_count - 1}; leave it null to have one chosen.",
                topic=self._topic,
                partition=lowest,
                count=self._partition_count,
            )
        if highest >= self._partition_count:
            raise InvalidConfigError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{chooser} names partition {highest}, but topic '{self._topic}' has {self._partition_count}. "
                "Drop or correct the column, or add partitions.",
                topic=self._topic,
                partition=highest,
                count=self._partition_count,
            )


__all__ = ["BuiltInPartitioner", "Partitioner", "TopicPartitioner", "load_partitioner"]
