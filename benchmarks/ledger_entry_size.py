"""What a large entry costs inline, and what it would cost with its payload in an object of its own.

    python -m benchmarks.ledger_entry_size [DIRECTORY]

Three roots with fsync. Inline: one record holds all sections. Beside: the payload is put on every root first, then a
small record that names it; a reader gets both. Folding is the same either way. Medians of five.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section
from spark_replog.storage.io_pool import IO_POOL

PARTITIONS = 256
TASKS = (1, 48, 768)
ROUNDS = 5


def make_command(topic_id: str, tasks: int, number: int) -> bytes:
    """Return an append of one object a task with a section in every partition."""
    objects = []
    for task in range(tasks):
        sections = tuple(
            Section(topic_id, p, 7 + p % 90, 300 + 1000 * p, 1000, (p * 2654435761 + task) % 2**32, 10**12 + p, 10**12)
            if p % 2
            else Section(topic_id, p, 9, 300 + 1000 * p, 1000, (p * 40503 + task) % 2**32, 10**12, 10**12 + 5)
            for p in range(PARTITIONS)
        )
        sections = tuple(s._replace(max_timestamp_ms=s.min_timestamp_ms + 5) for s in sections)
        name = f"bench-{number}-{task}-{new_id()}.arrow"
        objects.append(DataObject(ObjectId(0, name), 10**6, False, frozenset({0, 1, 2}), sections))
    identity = ProducerIdentity(new_id(), "", 0, "", IdentityKind.ONE_SHOT)
    return encode_command(Append(identity, "User:bench", "", 0, tuple(objects)))


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds that the work takes."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def measure(folder: Path, tasks: int) -> tuple[int, float, float, float, float, float]:
    """Return entry bytes, then ms: put inline, put beside, get inline, get beside, decode and fold."""
    path = str(folder / f"store-{tasks}")
    init_cluster(path, 3)
    cluster = Cluster.open(path)
    Controller(cluster).create_topic("t", PARTITIONS, 3)
    handle = cluster.lookup("t")
    cluster.topic_state(handle)
    state = cluster.topic_ledger(handle.ledger_id).state
    stores = [cluster.brokers.store(broker_id) for broker_id in cluster.brokers.broker_ids]
    prefix = f"ledgers/{handle.ledger_id}/data/000000/"

    def put(key: str, body: bytes) -> None:
        for job in [IO_POOL.submit_to(s.url, s.create, prefix + key, body, make_parent=True) for s in stores]:
            job.result()

    def put_beside(number: int, body: bytes) -> None:
        put(f"side-{number}", body)
        put(f"small-{number}", bytes(200))

    def get(*keys: str) -> None:
        for key in keys:
            assert bytes(stores[0].get(prefix + key) or b"")

    put("warm", b"warm")
    times: list[list[float]] = [[] for _ in range(5)]
    size_bytes = 0
    for number in range(ROUNDS):
        command = make_command(handle.topic_id, tasks, number)
        size_bytes = len(command)
        times[0].append(timed(partial(put, f"inline-{number}", command)))
        times[1].append(timed(partial(put_beside, number, command)))
        times[2].append(timed(partial(get, f"inline-{number}")))
        times[3].append(timed(partial(get, f"small-{number}", f"side-{number}")))
        times[4].append(timed(partial(state.apply, state.applied_index + 1, encode_entry([command]))))
    inline, beside, get_inline, get_beside, fold = (statistics.median(samples) for samples in times)
    return size_bytes, inline, beside, get_inline, get_beside, fold


def main() -> None:
    """Print one line per size."""
    print(f"{'sections':>9} {'bytes':>11} {'put':>8} {'beside':>8} {'get':>8} {'beside':>8} {'fold':>8}   (ms)")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for tasks in TASKS:
            size_bytes, *times = measure(Path(folder), tasks)
            print(f"{tasks * PARTITIONS:>9,} {size_bytes:>11,} " + " ".join(f"{time_ms:>8.1f}" for time_ms in times))


if __name__ == "__main__":
    main()
