"""What the coordinator costs without storage: delayed operations, timers.

    python -m benchmarks.coordinator_costs

Prints CPU seconds of one thread, and what must be reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_replog.coordinator.delayed_operation import DelayedOperation, DelayedOperationPurgatory

OPERATION_COUNT = 1_000_000


class Waiting(DelayedOperation):
    """Completes when it is told to."""

    __slots__ = ("is_ready",)

    def __init__(self) -> None:
        super().__init__(60_000)
        self.is_ready = False

    def try_complete(self) -> bool:
        """Complete when ready."""
        return self.is_ready and self.force_complete()


def purgatory() -> float:
    """Watch a million operations, each under its key, and complete them all. Must: 10 s."""
    waiting = DelayedOperationPurgatory()
    operations = []
    start = time.process_time()
    for number in range(OPERATION_COUNT):
        operation = Waiting()
        operations.append(operation)
        waiting.try_complete_else_watch(operation, (number,))
    assert waiting.delayed_count == OPERATION_COUNT
    for number, operation in enumerate(operations):
        operation.is_ready = True
        waiting.check_and_complete(number)
    assert (waiting.delayed_count, waiting.watched_count) == (0, 0)
    return time.process_time() - start


MEASURES: tuple[tuple[str, Callable[[], float], float], ...] = (
    ("purgatory: 1,000,000 operations watched and completed", purgatory, 10.0),
)


def main() -> None:
    """Print each figure beside its bound."""
    for name, measure, bound in MEASURES:
        seconds = measure()
        print(f"{name:60} {seconds * 1000:10.1f} ms CPU   must: {bound * 1000:.0f} ms")


if __name__ == "__main__":
    main()
