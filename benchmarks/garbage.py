"""Collecting orphans beside a plain loop of unlink over as many files, on the same disk, one after the other.

    python -m benchmarks.garbage --count 100000 --folder /var/tmp

One root with fsync; the orphans lie in generations of 50,000, beside objects that rows need. Must: 100,000 in 60 s.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.retention import GENERATION_OBJECTS_MAX, raise_floor
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity, Section
from spark_replog.maintenance.garbage import GarbageCollector
from spark_replog.storage.paths import data_folder, data_key

LIVE_COUNT = 1_000


def fill(path: Path, count: int) -> None:
    """Make a store of one root with `count` orphans of 1 KiB, and some objects with rows."""
    cluster = init_cluster(str(path), 1)
    Controller(cluster).create_topic("t", 1, 1, {"retention.ms": "-1"})
    handle = cluster.lookup("t")
    objects = []
    for number in range(LIVE_COUNT):
        name = f"live-0-{number}-{new_id()}.arrow"
        cluster.brokers.store(0).create(data_key(handle.ledger_id, 0, name), b"x" * 1024, make_parent=True)
        section = Section(handle.topic_id, 0, 1, 0, 1024, 0, 0, 0)
        objects.append(DataObject(ObjectId(0, name), 1024, False, frozenset({0}), (section,)))
    identity = ProducerIdentity("q", "q", 0, "run", IdentityKind.STREAM)
    append = Append(identity, "User:a", "", 0, tuple(objects))
    ReplicaManager(cluster).append_records({handle.ledger_id: AppendRequest(append, 30_000)})
    root = next(path.glob("broker-0"), path)
    for first in range(0, count, GENERATION_OBJECTS_MAX):
        folder = root / data_folder(handle.ledger_id, first // GENERATION_OBJECTS_MAX)
        write(folder, min(GENERATION_OBJECTS_MAX, count - first))
        raise_floor(cluster.topic_ledger(handle.ledger_id), 30_000)


def write(folder: Path, count: int) -> None:
    """Write orphans as fast as the disk takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"lost-0-{number}-{new_id()}.arrow").write_bytes(b"x" * 1024)


def main() -> None:
    """Print one line of figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    path = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        fill(path / "store", given.count)
        write(path / "plain", given.count)
        os.sync()
        started, cpu = time.monotonic(), time.process_time()
        report = GarbageCollector(Cluster.open(str(path / "store"))).run()
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        assert report.files.total() == given.count and not report.failures, report
        started = time.monotonic()
        for entry in os.scandir(path / "plain"):
            os.unlink(entry.path)
        plain = time.monotonic() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{given.count} orphans: {seconds:.1f} s, {cpu:.1f} s of CPU, peak {memory:.0f} MiB; unlink {plain:.1f} s"
        )
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    main()
