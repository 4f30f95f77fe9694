"""Which partition gets single records without a key: sticky, uniform by bytes, less to long queues.

Source: Kafka ``BuiltInPartitioner`` (KIP-794). Whole Arrow columns have their own form,
``partitioner.BuiltInPartitioner``.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

from spark_replog.write.partition_queue import PartitionQueue

_DRAW_MAX = 2**31


class StickyPartitioner:
    """The current partition of one topic. The accumulator's lock guards it, but for ``update_loads``.

    Bytes are counted where the record is appended, in the same critical section, so that they are
    never counted for a partition that was left meanwhile.

    Args:
        queues: of all partitions of the topic.
        available: partitions that have a leader; empty: all may be drawn.
        batch_size_bytes: bytes to one partition before the next is drawn.
        random_source: draws.
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
        """Count what was appended to the current queue, and switch where it had its share."""
        self.produced_bytes += size_bytes
        if self.produced_bytes >= self._batch_size_bytes:
            self.switch_if_due()

    def switch_if_due(self) -> bool:
        """Switch where the partition had its share and leaves no half-full batch, or had twice its share.

        Batches that are half full would otherwise be left behind at every switch.
        """
        share = self._batch_size_bytes
        if self.produced_bytes < share or (self.produced_bytes < 2 * share and not self.queue.all_batches_full):
            return False
        self.queue = self._queues[self._draw()]
        self.produced_bytes = 0
        return True

    def update_loads(self, lengths: Sequence[int], unavailable: frozenset[int] = frozenset()) -> None:
        """Weigh partitions by the lengths of their queues: the longest gets weight 1.

        Args:
            lengths: batches that wait, per partition of the topic.
            unavailable: partitions that have a leader but whose objects are not put in time.
        """
        eligible = [number for number in self._available if number not in unavailable]
        found = [lengths[number] for number in eligible]
        is_even = len(eligible) == len(self._available) and len(set(found)) <= 1
        if not self.is_adaptive or len(lengths) < 2 or not eligible or is_even:
            self._table = None
            return
        longest = max(found)
        sums, total = [], 0
        for length in found:
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
    """Which destinations have had data ready, and not drained, for too long.

    Source: ``RecordAccumulator.NodeLatencyStats``. One owner: the sender's thread.

    Args:
        timeout_ms: ``partitioner.availability.timeout.ms``; 0: none ever is.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._ready_since_ms: dict[object, int] = {}

    def note(self, ready: Sequence[object], now_ms: int) -> None:
        """Tell which destinations are still ready after what could be sent was sent."""
        self._ready_since_ms = {node: self._ready_since_ms.get(node, now_ms) for node in ready}

    def is_available(self, node: object, now_ms: int) -> bool:
        """Return whether new records may be fed to it."""
        since_ms = self._ready_since_ms.get(node)
        return self._timeout_ms <= 0 or since_ms is None or now_ms - since_ms <= self._timeout_ms


__all__ = ["NodeAvailability", "StickyPartitioner"]
