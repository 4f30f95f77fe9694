"""What ``compression.type`` costs and saves: text, JSON events and random bytes, written and read on one root.

    python -m benchmarks.compression [--mib 96] [--roots 3] [--rounds 3] [--text FOLDER] [--dir FOLDER]

``send_arrow`` with acks=all and fsync, one partition, then ``scan`` from the page cache. Text: the lines of a folder's
files, by default of Python's own library: code and comments. Cases are interleaved; processor time is of this process,
so it counts on a busy machine too. Bytes are of one replica.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

import spark_replog
from benchmarks.bench_session import scratch
from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster

TYPES = "none", "lz4", "zstd"
MIB = 1024 * 1024


def text_lines(folder: Path) -> Iterator[bytes]:
    """Yield the lines of Python and text files that are not empty, at most 400 bytes of each."""
    for path in sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".txt", ".md") and file.is_file()):
        yield from (line[:400] for line in path.read_bytes().splitlines() if line.strip())


def events() -> Iterator[bytes]:
    """Yield JSON events: identifiers, amounts and times that do not repeat, names and states that do."""
    rng = random.Random(7)
    for number in range(10**9):
        event = {
            "event_id": f"{rng.getrandbits(128):032x}",
            "at": (datetime(2026, 3, 1) + timedelta(seconds=number)).isoformat() + "Z",
            "customer": rng.randrange(100_000),
            "state": rng.choice(("created", "paid", "packed", "sent", "returned")),
            "amount": round(rng.lognormvariate(3, 1), 2),
            "country": rng.choice(("DE", "FR", "NL", "PL", "ES", "IT")),
        }
        yield json.dumps(event).encode()


def noise() -> Iterator[bytes]:
    """Yield bytes that no codec makes smaller."""
    rng = random.Random(7)
    while True:
        yield rng.randbytes(100)


def batches(values: Iterator[bytes], size_bytes: int) -> list[pa.RecordBatch]:
    """Return batches of 10,000 rows with so many bytes of values."""
    record_batches, left = [], size_bytes
    while left > 0:
        rows = [row for _, row in zip(range(10_000), values, strict=False)]
        if not rows:
            break
        record_batches.append(pa.record_batch({"value": rows}))
        left -= sum(map(len, rows))
    return record_batches


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of wall and of processor time."""
    wall, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - used


def write_and_read(folder: Path, codec: str, rows: list[pa.RecordBatch], roots: int) -> dict[str, float]:
    """Return the seconds of a write and a read, and the bytes of one replica's objects."""
    path = str(folder / codec)
    Controller(init_cluster(path, roots, {}, fsync=True)).create_topic(
        "t", 1, roots, config={"compression.type": codec}
    )
    store = spark_replog.open(path)

    def write() -> None:
        with store.producer(acks="all") as producer:
            for batch in rows:
                producer.send_arrow("t", batch)
            producer.flush()

    def read() -> int:
        return sum(batch.num_rows for batch in store.topic("t").scan().to_batches())

    wrote, used = timed(write)
    assert read() == sum(batch.num_rows for batch in rows)
    took, read_used = timed(read)
    stored = sum(file.stat().st_size for file in Path(path).rglob("*.arrow")) / roots
    return {"write": wrote, "write_cpu": used, "read": took, "read_cpu": read_used, "bytes": stored}


def main() -> None:
    """Print one line for each corpus and codec: medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--roots", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--dir", default=None)
    given = parser.parse_args()
    print(
        "| values | compression.type | write MB/s | of none | processor s a GB | read MB/s | processor s a GB"
        " | bytes a payload byte |\n|" + " --- |" * 8
    )
    for name, values in (("text", text_lines(given.text)), ("JSON events", events()), ("random", noise())):
        rows = batches(values, given.mib * MIB)
        payload = sum(batch.column(0).nbytes - 4 * batch.num_rows for batch in rows)
        results: dict[str, list[dict[str, float]]] = {codec: [] for codec in TYPES}
        for number in range(given.rounds + 1):
            for codec in TYPES:
                with scratch(given.dir) as folder:
                    took = write_and_read(folder, codec, rows, given.roots)
                if number:  # the first one warms up
                    results[codec].append(took)
        median = {
            codec: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for codec, runs in results.items()
        }
        for codec, figures in median.items():
            print(
                f"| {name} | {codec} | {payload / figures['write'] / 1e6:,.0f}"
                f" | {median['none']['write'] / figures['write']:.2f}"
                f" | {figures['write_cpu'] / payload * 1e9:.2f} | {payload / figures['read'] / 1e6:,.0f}"
                f" | {figures['read_cpu'] / payload * 1e9:.2f} | {figures['bytes'] / payload:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
