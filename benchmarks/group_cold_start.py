"""What a group's commits leave behind: bytes, and the time that a process needs that sees the group for the first time.

    python -m benchmarks.group_cold_start [DIRECTORY] [COMMITS]

Three local roots. One consumer commits one offset, or 64, again and again; then the same store is opened again and the
group's offsets are asked for. There are no snapshots of a ledger, so that reads every commit ever made.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import OffsetAndMetadata

COMMITS = 2_000
PARTITIONS = (1, 64)
ROOTS = 3


def size_bytes(path: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def measure(folder: Path, commits: int, partitions: int) -> None:
    """Print one row."""
    path = folder / f"store-{partitions}"
    init_cluster(str(path), ROOTS, {}, fsync=False)
    cluster = Cluster.open(str(path))
    Controller(cluster).create_topic("orders", partitions)
    groups = GroupCoordinator(cluster)
    keys = [TopicPartition("orders", number) for number in range(partitions)]
    groups.commit_offsets("billing", {key: OffsetAndMetadata(0) for key in keys})
    before_bytes = size_bytes(path)
    start = time.perf_counter()
    for number in range(commits):
        groups.commit_offsets("billing", {key: OffsetAndMetadata(number) for key in keys})
    write_ms = (time.perf_counter() - start) * 1000 / commits
    left_bytes = (size_bytes(path) - before_bytes) / commits / ROOTS
    start = time.perf_counter()
    offsets = GroupCoordinator(Cluster.open(str(path))).fetch_offsets("billing")
    cold_ms = (time.perf_counter() - start) * 1000
    assert len(offsets) == partitions
    print(f"| {partitions} | {write_ms:.1f} ms | {left_bytes:.0f} | {cold_ms / commits:.2f} ms | {cold_ms:.0f} ms |")


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    commits = int(sys.argv[2]) if len(sys.argv) > 2 else COMMITS
    print(f"| offsets a commit | one commit | bytes it leaves on a root | read again, each | {commits:,} of them |")
    print("| --- | --- | --- | --- | --- |")
    for partitions in PARTITIONS:
        measure(folder, commits, partitions)


if __name__ == "__main__":
    main()
