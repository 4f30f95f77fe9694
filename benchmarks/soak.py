"""A store that lives beside a coordinator, in real time: dead files go, and memory stays flat.

    python -m benchmarks.soak --seconds 900 --folder /var/tmp

Two writers, one topic with a retention of a minute, one whose small objects are joined: most files die, and three
processes write snapshots. Must: a minute after the writers ended and their last rows went, at most 2 % of the files
of each root are dead, and the memory of each process grows by less than 15 % and 16 MiB in the second half.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import spark_replog
from spark_replog.cluster.cluster import Cluster

DELAY_SECONDS = 10
DEAD_SHARE_MAX = 0.02
TOPICS = {"aged": {"retention.ms": "60000"}, "joined": {"retention.ms": "-1"}}
CONFIG = {"log.retention.check.interval.ms": 20_000, "file.delete.delay.ms": 1_000 * DELAY_SECONDS}

WRITER = """
import json, sys, time, spark_replog
path, seconds, config = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
ends = time.monotonic() + seconds
with spark_replog.open(path).producer({**config, "inline.max.bytes": 0}) as producer:
    while time.monotonic() < ends:
        for topic in ("aged", "joined"):
            for number in range(10):
                producer.send(topic, b"x" * 200, key=b"%d" % number)
            producer.flush()
        time.sleep(0.3)
"""


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start a process of Python."""
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)


def memory_kb(process: subprocess.Popen[bytes]) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def live_names(path: str) -> set[str]:
    """Return the names of all objects with rows."""
    cluster, names = Cluster.open(path), set[str]()
    for topic in TOPICS:
        handle = cluster.lookup(topic)
        ledger, state = cluster.folded_topic(handle)
        for number, partition in enumerate(state.partitions):
            sections = ledger.state.sections(handle.topic_id, number, 0, partition.log_end_offset)
            names.update(section.object.id.name for section in sections)
    return names


def soak(path: str, seconds: int) -> bool:
    """Run the store, print what it leaves, and return whether that is as it must be."""
    store = spark_replog.init(path, 3)
    for topic, config in TOPICS.items():
        store.admin().create_topic(topic, partitions=3, replicas=3, config=config, ledger_name="both")
    flags = [word for key, value in CONFIG.items() for word in ("-c", f"{key}={value}")]
    coordinator = start("-m", "spark_replog", "-q", "-s", path, "coordinator", "run", *flags)
    processes = [coordinator, *(start("-c", WRITER, path, str(seconds), json.dumps(CONFIG)) for _ in range(2))]
    try:
        time.sleep(seconds * 0.45)
        before = [memory_kb(child) for child in processes]
        time.sleep(seconds * 0.45)
        after = [memory_kb(child) for child in processes]
        for process in processes[1:]:
            process.wait(timeout=seconds + 120)
        at_rest = live_names(path)  # retention goes on: what it takes now may be there at the end
        time.sleep(60 + DELAY_SECONDS)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        coordinator.wait(timeout=120)
    is_good = all(late <= 1.15 * early + 16_384 for early, late in zip(before, after, strict=True))
    print(f"memory of the coordinator and the writers, kB: {before}, then {after}")
    live = live_names(path)
    for root in sorted(Path(path).iterdir()):
        files = {file.name for file in root.rglob("*.arrow")}
        dead = files - live - at_rest
        is_good = is_good and live <= files and len(dead) <= DEAD_SHARE_MAX * len(files)
        print(f"{root.name}: {len(files)} files, {len(dead)} dead, {len(live - files)} missing")
    return is_good


def main() -> None:
    """Run one soak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        sys.exit(0 if soak(f"{folder}/store", given.seconds) else 1)


if __name__ == "__main__":
    main()
