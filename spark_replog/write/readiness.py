"""When a node is worth a data object, and how much one drain takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_replog.write.partition_queue import Destination, Node


@dataclass(slots=True)
class Waits:
    """The shortest wait that a round over partitions met."""

    least_ms: int | None = None

    def note(self, wait_ms: int) -> None:
        """Keep it where it is the shortest."""
        self.least_ms = wait_ms if self.least_ms is None else min(self.least_ms, wait_ms)


class Readiness:
    """The rules of ``RecordAccumulator.ready``. Stateless; called under the accumulator's lock.

    Args:
        linger_ms: ``linger.ms``; None: time alone makes nothing ready.
        max_request_size_bytes: ``max.request.size``.
        fills_requests: whether a put is saved rather than a row sent early.
    """

    def __init__(self, linger_ms: int | None, max_request_size_bytes: int, *, fills_requests: bool) -> None:
        self._linger_ms = linger_ms
        self._max_request_size_bytes = max_request_size_bytes
        self._fills_requests = fills_requests

    def ready_nodes(
        self,
        nodes: Mapping[Destination, Node],
        now_ms: int,
        waits: Waits,
        *,
        is_urgent: bool,
        is_exhausted: bool,
        in_flight_count: int,
    ) -> list[Destination]:
        """Return the destinations worth an object now.

        Args:
            nodes: all of them.
            now_ms: the time.
            waits: told after which time a batch may be ready.
            is_urgent: closed or flushing: all that may go goes.
            is_exhausted: somebody waits for memory.
            in_flight_count: requests that will give memory back.
        """
        if not self._fills_requests:
            is_urgent = is_urgent or is_exhausted
        found = [name for name, node in nodes.items() if self._is_ready(node, now_ms, waits, is_urgent)]
        if not found and self._fills_requests and is_exhausted and in_flight_count == 0:
            return self._largest(nodes, now_ms)
        return found

    def has_request_room(self, taken_bytes: int, next_bytes: int) -> bool:
        """Return whether a drain that took something takes one more batch."""
        if self._fills_requests:
            return taken_bytes < self._max_request_size_bytes
        return taken_bytes + next_bytes <= self._max_request_size_bytes

    def _is_ready(self, node: Node, now_ms: int, waits: Waits, is_urgent: bool) -> bool:
        if self._fills_requests and not is_urgent:
            is_urgent = _drainable_bytes(node, now_ms) >= self._max_request_size_bytes
        for queue in node.queues:
            if queue.is_muted or not queue.batches:
                continue
            head = queue.batches[0]
            head.note_leader_epoch(queue.leader_epoch)
            waited_ms = head.waited_ms(now_ms)
            if head.is_backing_off(now_ms):
                waits.note(head.backoff_ms - waited_ms)
                continue
            is_full = not self._fills_requests and (len(queue.batches) > 1 or head.is_full)
            if is_urgent or is_full:
                return True
            if self._linger_ms is not None:
                if waited_ms >= self._linger_ms:
                    return True
                waits.note(self._linger_ms - waited_ms)
        return False

    def _largest(self, nodes: Mapping[Destination, Node], now_ms: int) -> list[Destination]:
        sizes = {name: _drainable_bytes(node, now_ms) for name, node in nodes.items()}
        largest = max(sizes, key=lambda name: sizes[name], default=None)
        return [largest] if largest is not None and sizes[largest] else []


def _drainable_bytes(node: Node, now_ms: int) -> int:
    return sum(batch.size_bytes for queue in node.queues if queue.may_drain(now_ms) for batch in queue.batches)


__all__ = ["Readiness", "Waits"]
