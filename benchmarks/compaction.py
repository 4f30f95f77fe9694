"""Compaction of small objects beside a plain durable copy of the same bytes, on the same disk, one after the other.

    python -m benchmarks.compaction --mib 256 --replicas 1 --folder /var/tmp

Each round compacts a fresh topic of small sections (``--section-kib``) into objects of 64 MiB, and copies the same
stored bytes, once per replica, into files of 64 MiB with an fsync of each file and folder. Must: at least 0.5 of the
copy's rate.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_replog.client.store import init_store
from spark_replog.cluster.cluster import Cluster
from spark_replog.maintenance.compaction import Compactor

VALUE_BYTES = 200
PIECE_BYTES = 64 * 1024 * 1024


def fill(path: Path, size_bytes: int, section_bytes: int, replicas: int, compression: str) -> None:
    """Make a store with one topic of one partition, filled with `size_bytes` in small objects."""
    store = init_store(str(path), replicas)
    store.admin().create_topic("t", partitions=1, replicas=replicas, config={"compression.type": compression})
    rows = max(1, section_bytes // (VALUE_BYTES + 24))
    random = np.random.default_rng(7)
    with store.producer({"linger.ms": 60_000, "batch.size": 16 * 1024 * 1024}) as producer:
        for number in range(size_bytes // section_bytes):
            data = random.integers(97, 123, rows * VALUE_BYTES, dtype=np.uint8).tobytes()
            offsets = np.arange(rows + 1, dtype=np.int32) * VALUE_BYTES
            value = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
            key = pa.array([b"key-%08d" % (number * rows + row) for row in range(rows)], pa.binary())
            producer.send_arrow("t", pa.table({"key": key, "value": value}))
            producer.flush()


def compact_seconds(path: Path) -> tuple[float, int]:
    """Compact; return the time and the bytes that were rewritten, once."""
    cluster = Cluster.open(str(path))
    handle = cluster.lookup("t")
    cluster.topic_ledger(handle.ledger_id).refresh()
    began = time.perf_counter()
    report = Compactor(cluster).compact(handle)
    seconds = time.perf_counter() - began
    assert report.failed_count == 0, report
    return seconds, report.size_bytes


def copy_seconds(path: Path, target: Path, replicas: int, size_bytes: int) -> float:
    """Copy the same stored bytes into large files, durably."""
    files = sorted((path / "broker-0").rglob("data/**/*.arrow"))
    target.mkdir()
    began = time.perf_counter()
    pieces: list[bytes] = []
    waiting = done = 0
    number = 0
    for file in files:
        if done >= size_bytes:
            break
        pieces.append(file.read_bytes())
        waiting += len(pieces[-1])
        done += len(pieces[-1])
        if waiting >= PIECE_BYTES or done >= size_bytes:
            for replica in range(replicas):
                with (target / f"{number}-{replica}").open("wb") as out:
                    out.writelines(pieces)
                    out.flush()
                    os.fsync(out.fileno())
                folder = os.open(target, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            pieces, waiting, number = [], 0, number + 1
    return time.perf_counter() - began


def main() -> None:
    """Print each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--section-kib", type=int, default=128)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    ratios = []
    for number in range(given.rounds):
        folder = Path(tempfile.mkdtemp(prefix="replog-compaction-", dir=given.folder))
        try:
            fill(folder / "store", given.mib << 20, given.section_kib << 10, given.replicas, given.compression)
            copied = copy_seconds(folder / "store", folder / "copy", given.replicas, given.mib << 20)
            seconds, size_bytes = compact_seconds(folder / "store")
            rate, plain = size_bytes / seconds / 2**20, given.mib / copied
            ratios.append(rate / plain)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            rates = f"compaction {rate:.0f} MiB/s, copy {plain:.0f} MiB/s, {ratios[-1]:.2f}"
            print(f"round {number}: {rates}; peak {peak} MiB")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"median {statistics.median(ratios):.2f} of the copy's rate")


if __name__ == "__main__":
    main()
