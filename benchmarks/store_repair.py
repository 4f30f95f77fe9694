"""Rebuilding a lost root beside a plain copy of the same files, on the same disk, one after the other.

    python -m benchmarks.store_repair --mib 1024 --folder /var/tmp

Each round loses one root of three, repairs it, and copies a whole root's files with ``shutil.copyfile``
and an fsync of each file and folder, as durable as the repair's. Must: at least 0.5 of the copy's rate.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from crc32c import crc32c

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.storage.paths import data_key

OBJECT_BYTES = 32 * 1024 * 1024
PARTITION_COUNT = 8


def fill(path: Path, size_bytes: int) -> None:
    """Make a store of three roots with so many bytes on each."""
    cluster = init_cluster(str(path), 3)
    Controller(cluster).create_topic("t", PARTITION_COUNT, 3)
    handle = cluster.lookup("t")
    manager = ReplicaManager(cluster)
    query = new_id()
    piece = os.urandom(OBJECT_BYTES // PARTITION_COUNT)
    checksum = crc32c(piece)
    for batch in range(size_bytes // OBJECT_BYTES):
        name = f"{query[:8]}-{batch}-0-{new_id()}.arrow"
        for broker_id in range(3):
            key = data_key(handle.ledger_id, 0, name)
            cluster.brokers.store(broker_id).create(key, [piece] * PARTITION_COUNT, make_parent=True)
        sections = tuple(
            Section(handle.topic_id, number, 1000, number * len(piece), len(piece), checksum, 0, 0)
            for number in range(PARTITION_COUNT)
        )
        item = DataObject(ObjectId(0, name), OBJECT_BYTES, False, frozenset((0, 1, 2)), sections)
        identity = ProducerIdentity(query, query, batch, "run", IdentityKind.STREAM)
        append = Append(identity, "User:a", "", 0, (item,))
        manager.append_records({handle.ledger_id: AppendRequest(append, 30_000)})


def repair_seconds(path: Path) -> float:
    """Lose a root and rebuild it."""
    shutil.rmtree(path / "broker-1")
    start = time.perf_counter()
    report = StoreRepair(Cluster.open(str(path))).run()
    seconds = time.perf_counter() - start
    assert report.roots[1].is_repaired, report.roots[1].detail
    return seconds


def copy_seconds(source: Path, target: Path) -> float:
    """Copy a root's files durably, one by one."""
    shutil.rmtree(target, ignore_errors=True)
    start = time.perf_counter()
    for folder, _, names in os.walk(source):
        made = target / Path(folder).relative_to(source)
        made.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(f"{folder}/{name}", made / name)
            flush(made / name)
        flush(made)
    return time.perf_counter() - start


def flush(path: Path) -> None:
    """Fsync a file or folder."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def main() -> None:
    """Print both rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "store"
        fill(path, options.mib * 1024 * 1024)
        repairs, copies = [], []
        for _ in range(options.rounds):
            copies.append(copy_seconds(path / "broker-0", Path(folder) / "copy"))
            repairs.append(repair_seconds(path))
    repaired, copied = statistics.median(repairs), statistics.median(copies)
    print(f"{options.mib} MiB, median of {options.rounds}")
    print(f"repair  {options.mib / repaired:8.0f} MiB/s")
    print(f"copy    {options.mib / copied:8.0f} MiB/s")
    print(f"ratio   {copied / repaired:8.2f}   must: 0.50")


if __name__ == "__main__":
    main()
