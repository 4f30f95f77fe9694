"""What the coordinator costs without storage: an append of many partitions, delayed operations.

    python -m benchmarks.coordinator_costs

Prints CPU seconds of one thread, and what must be reached.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest, ProduceResponse
from spark_replog.commit.purgatory import DelayedOperation, DelayedOperationPurgatory
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.ids import LedgerId, ObjectId, new_id
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section

OPERATION_COUNT = 1_000_000
PARTITION_COUNT = 1_000
APPEND_COUNT = 50


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
    assert waiting.timer.size == OPERATION_COUNT
    for number, operation in enumerate(operations):
        operation.is_ready = True
        waiting.check_and_complete(number)
    assert (waiting.timer.size, waiting.watchers) == (0, {})
    return time.process_time() - start


def append_records() -> float:
    """Append one section to each of 1,000 partitions in one call, roots in memory; the median call. Must: 30 ms.

    Roots in memory, so what is left is judging, encoding, deciding, folding and answering.
    """
    roots = ",".join(f"memory://{new_id()}" for _ in range(3))
    cluster = init_cluster(roots)
    Controller(cluster).create_topic("t", PARTITION_COUNT, 3, start_index=0)
    handle = cluster.lookup("t")
    manager = ReplicaManager(cluster)
    query = new_id()
    seconds = []
    for batch in range(APPEND_COUNT):
        requests = {handle.ledger_id: AppendRequest(_append_of(handle.topic_id, query, batch), 30_000)}
        start = time.process_time()
        answers = manager.append_records(requests)
        seconds.append(time.process_time() - start)
        _check(answers)
    return statistics.median(seconds)


def _append_of(topic_id: str, query: str, batch: int) -> Append:
    sections = tuple(
        Section(
            topic_id,
            number,
            100,
            number * 9000,
            9000,
            (number * 2654435761) % 2**32,
            1_700_000_000_000,
            1_700_000_001_000,
        )
        for number in range(PARTITION_COUNT)
    )
    item = DataObject(
        ObjectId(0, f"{query[:8]}-{batch}-0-{new_id()}.arrow"), 9_000_000, False, frozenset((0, 1, 2)), sections
    )
    identity = ProducerIdentity(query, query, batch, "run", IdentityKind.STREAM)
    return Append(identity, "User:a", "", 0, (item,))


def _check(answers: Mapping[LedgerId, ProduceResponse]) -> None:
    (answer,) = answers.values()
    assert answer.error is None
    assert len(answer.partitions) == PARTITION_COUNT


MEASURES: tuple[tuple[str, Callable[[], float], float], ...] = (
    ("append_records: 1,000 partitions in one call", append_records, 0.030),
    ("purgatory: 1,000,000 operations watched and completed", purgatory, 10.0),
)


def main() -> None:
    """Print each figure beside its bound."""
    for name, measure, bound in MEASURES:
        seconds = measure()
        print(f"{name:60} {seconds * 1000:10.1f} ms CPU   must: {bound * 1000:.0f} ms")


if __name__ == "__main__":
    main()
