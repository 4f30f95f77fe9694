"""The plain path: `Producer.send().result()`, and produce to visible in another process, beside the disk's own fsync.

    python -m benchmarks.plain_path [--sends 300] [--dir FOLDER] [--size 100]

The disk: create a file of the same size, fsync it, link it, fsync its folder, which is one durable create. A send is a
data object on each replica and then an entry on each root, so at least two such creates after each other. Stores with
one root and three, one partition, acks=all. All cases take turns. Calls are those of the producer's process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_session import ROOT, scratch
from spark_replog.client.producer import Producer
from spark_replog.client.store import open_store
from spark_replog.cluster.init_store import init_cluster

WARM = 30
READER = """
import sys, time
from spark_replog.client.store import open_store
consumer = open_store(sys.argv[1]).consumer("rows", auto_offset_reset="earliest")
consumer.poll(100)
print("ready", flush=True)
while True:
    for record in consumer.poll(1_000):
        print(record.offset, time.clock_gettime_ns(time.CLOCK_MONOTONIC), consumer.metrics().refreshes, flush=True)
"""


def fsync_once(folder: Path, number: int, data: bytes) -> None:
    """Make one durable file as a create of the store does."""
    path = folder / f"{number}.tmp"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.link(path, folder / str(number))
    folder_fd = os.open(folder, os.O_RDONLY)
    os.fsync(folder_fd)
    os.close(folder_fd)
    os.unlink(path)


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def percentiles(values: list[float]) -> str:
    """Return median, 99th percentile and maximum."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} | {ordered[int(len(ordered) * 0.99)]:.2f} | {ordered[-1]:.2f}"


def visible_ms(path: Path, producer: Producer, sends: int, pause_ms: int, value: bytes) -> tuple[list[float], float]:
    """Return from the begin of each send to the record in another process, and that one's looks a second."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", READER, str(path)]
    times_ms = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as reader:
        assert reader.stdout is not None
        while reader.stdout.readline() != "ready\n":
            pass
        first_looks, began = 0, time.monotonic()
        for _ in range(sends):
            time.sleep(pause_ms / 1000)
            sent_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            offset = producer.send("rows", value).result(10).offset
            while True:
                line = [int(word) for word in reader.stdout.readline().split()]
                if line[0] == offset:
                    break
            first_looks = first_looks or line[2]
            times_ms.append((line[1] - sent_ns) / 1e6)
        looks = (line[2] - first_looks) / (time.monotonic() - began)
        reader.terminate()
    return times_ms, looks


def main() -> None:
    """Run the cases in turn and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=300)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    value = os.urandom(arguments.size)
    cases: dict[str, list[float]] = {"one durable create of the disk": []}
    with scratch(arguments.dir) as folder:
        producers = {}
        for roots in (1, 3):
            path = folder / f"store-{roots}"
            init_cluster(str(path), roots, {}, fsync=True)
            store = open_store(str(path))
            store.admin().create_topic("rows", partitions=1, replicas=roots, config={})
            producers[f"send().result(), {roots} root{'s'[: roots - 1]}"] = store.producer(), path
        cases |= {name: [] for name in producers}
        for number in range(arguments.sends + WARM):
            cases["one durable create of the disk"].append(timed(lambda: fsync_once(folder, number, value)))  # noqa: B023
            for name, (producer, _) in producers.items():
                cases[name].append(timed(lambda: producer.send("rows", value).result(30)))  # noqa: B023
        process_ms = {}
        for name, (producer, _) in producers.items():
            began = time.process_time()
            for _ in range(100):
                producer.send("rows", value).result(30)
            process_ms[name] = (time.process_time() - began) * 10
        print("| case | p50 ms | p99 ms | max ms | processor ms |\n| --- | --- | --- | --- | --- |")
        for name, values in cases.items():
            print(f"| {name} | {percentiles(values[WARM:])} | {process_ms.get(name, 0):.2f} |")
        print("\n| produce to visible in another process | p50 ms | p99 ms | max ms | looks a second |")
        print("| --- | --- | --- | --- | --- |")
        for name, (producer, path) in producers.items():
            for pause_ms in (5, 200):
                times_ms, looks = visible_ms(path, producer, arguments.sends // (1 + pause_ms // 50), pause_ms, value)
                print(f"| {name[17:]}, a row every {pause_ms} ms | {percentiles(times_ms)} | {looks:.0f} |")
        for producer, _ in producers.values():
            producer.close()


if __name__ == "__main__":
    main()
