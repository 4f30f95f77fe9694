"""A producer of inline rows is killed at each step: what it was told is in the log, and nothing twice.

Each commit of it snapshots and truncates, and inline rows are moved as soon as there are two of a partition, so that
rows pass through an entry, the head of a snapshot and a data object within a few sends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.log.fold.object_table import INLINE_BYTES_MAX
from spark_replog.maintenance import segment_writer, upkeep
from spark_replog.maintenance.garbage import GarbageCollector
from spark_replog.maintenance.scrub import scrub
from tests.scenarios.committing import SMALL, pass_fault_points_at_journals
from tests.waiting import wait_until

SENDS = 14
STEPS = [
    *("journal.create:2", "journal.create:9", "journal.created:10", "journal.created:1"),
    *("journal.create:20", "journal.created:21", "compaction.before_entry:1", "compaction.written:1"),
    *("compaction.after_entry:1", "compaction.copied:2", "snapshot.stored:2", "snapshot.page:1"),
]
"""Every second one is wide."""


def send(path: str, first: int, count: int) -> None:
    """Send, and say what was answered; wait for what makes room."""
    for module, name, value in SMALL:
        setattr(module, name, value)
    upkeep.INLINE_ROOM_BYTES_MIN = INLINE_BYTES_MAX
    upkeep.MOVE_PAUSE_MS = 0
    segment_writer.plan_inline.__kwdefaults__["sections_min"] = 2
    pass_fault_points_at_journals()
    with spark_replog.open(path).producer(inline_max_bytes=4096) as producer:
        for number in range(first, first + count):
            where = producer.send("orders", b"%d" % number, partition=number % 2).result(60)
            print(json.dumps([number, where.partition, where.offset]), flush=True)
            if number % 4 == 3:
                wait_for_room(path)


def wait_for_room(path: str) -> None:
    """Wait until inline rows are moved, but the newest of a partition."""

    def is_moved() -> bool:
        cluster = Cluster.open(path)
        ledger, _ = cluster.topic_state(cluster.lookup("orders"))
        return all(span.object_count <= 2 for span in ledger.state.inline_spans().values())

    wait_until(is_moved, "few inline rows")


def run(path: str, first: int, count: int, step: str = "") -> tuple[int, list[list[int]]]:
    """Send in a process that ends at a step; return its exit code and what it was told."""
    command = [sys.executable, "-m", "tests.scenarios.test_inline_kills", path, str(first), str(count)]
    environment = {**os.environ, "REPLOG_FAULT_POINT": step}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.endswith("]")]


def rows(path: str) -> dict[int, list[int]]:
    """Return the rows of each partition, as a new process reads them."""
    partitions: dict[int, list[int]] = {0: [], 1: []}
    for row in spark_replog.open(path).topic("orders").scan().to_arrow().to_pylist():
        assert row["offset"] == len(partitions[row["partition"]])
        partitions[row["partition"]].append(int(row["value"]))
    return partitions


@pytest.mark.guarantee("G3", "G4")
@pytest.mark.parametrize(
    "step",
    [step if number % 4 == 0 else pytest.param(step, marks=pytest.mark.wide) for number, step in enumerate(STEPS)],
)
def test_what_a_killed_producer_was_told_is_in_the_log_and_nothing_is_twice(tmp_path: Path, step: str) -> None:
    path = str(tmp_path / "store")
    init_cluster(path, 3, fsync=False)
    Controller(Cluster.open(path)).create_topic("orders", 2)
    code, told = run(path, 0, SENDS, step)
    assert code == -signal.SIGKILL, "the step was passed"
    _, more = run(path, 100, SENDS)
    assert len(more) == SENDS
    partitions = rows(path)
    for number, partition, offset in (*told, *more):
        assert partitions[partition][offset] == number
    everything = [number for partition in partitions.values() for number in partition]
    assert len(set(everything)) == len(everything)
    assert len(everything) - len(told) - len(more) in (0, 1), "at most the send that had no answer"
    cluster = Cluster.open(path)
    assert scrub(cluster, deep=True).findings == []
    GarbageCollector(cluster).run_ledger(cluster.lookup("orders").ledger_id)
    assert rows(path) == partitions


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
