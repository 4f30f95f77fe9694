"""What it costs that a record counts only once it is durable: a reader's flush of a folder, with and without it.

    python -m benchmarks.flush_cost [--dir FOLDER] [--rows 600] [--spark] [--seconds 90]

Three local roots, acks=all. All processes have a switch in front of the one call that flushes for readers
(``PosixStore._settle``). It is turned every ten rows, or every three seconds with --spark (replog to replog, 1,000 rows
a micro-batch), so both cases meet the same load of the machine. A plain send: no other process reads. Beside a reader:
a row every 5 ms; from the begin of the send to the row in another process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from benchmarks.bench_session import ROOT, scratch, session
from benchmarks.plain_path import READER, timed
from spark_replog.client.producer import Producer
from spark_replog.client.store import open_store
from spark_replog.cluster.init_store import init_cluster

BLOCK_ROWS = 10
BLOCK_SECONDS = 3
WARM_UP = 30
WITH, WITHOUT = True, False
_SWITCH = """
import os
from spark_replog.storage.posix_store import PosixStore
settle = PosixStore._settle
def switched(store, *arguments):
    if os.path.exists({flag!r}):
        settle(store, *arguments)
PosixStore._settle = switched
"""
Samples = dict[bool, list[float]]


class Switch:
    """Turns the flush on and off in this process and in all that it starts."""

    def __init__(self, folder: Path) -> None:
        self._flag = folder / "flushes"
        self.turn(WITH)
        code = _SWITCH.format(flag=str(self._flag))
        (folder / "sitecustomize.py").write_text(code)
        self.environ = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        exec(compile(code, "switch", "exec"), {})

    def turn(self, state: bool) -> None:
        """Turn it on or off."""
        if state is WITH:
            self._flag.touch()
        else:
            self._flag.unlink(missing_ok=True)


def blocks(rows: int) -> list[bool]:
    """Return for each row whether it is one with the flush: blocks in pairs, in either order."""
    pairs = (random.sample((WITH, WITHOUT), 2) for _ in range(rows // BLOCK_ROWS // 2))
    return [state for pair in pairs for state in pair for _ in range(BLOCK_ROWS)]


def plain_ms(switch: Switch, producer: Producer, rows: int) -> Samples:
    """Return the times of sends that no other process reads."""
    samples: Samples = {WITH: [], WITHOUT: []}
    for state in blocks(rows):
        switch.turn(state)
        samples[state].append(timed(lambda: producer.send("rows", bytes(100)).result(30)))
    return samples


def visible_ms(switch: Switch, producer: Producer, path: Path, rows: int) -> tuple[Samples, Samples]:
    """Return the times of sends beside a reader, and the times until it has the rows."""
    sends: Samples = {WITH: [], WITHOUT: []}
    arrivals: Samples = {WITH: [], WITHOUT: []}
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=switch.environ) as reader:
        assert reader.stdout is not None
        while reader.stdout.readline() != "ready\n":
            pass
        for number, state in enumerate(blocks(rows + 2 * BLOCK_ROWS)):
            switch.turn(state)
            time.sleep(0.005)
            began_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            offset = producer.send("rows", bytes(100)).result(30).offset
            ended_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            while True:
                line = [int(word) for word in reader.stdout.readline().split()]
                if line[0] == offset:
                    break
            if number >= 2 * BLOCK_ROWS:
                sends[state].append((ended_ns - began_ns) / 1e6)
                arrivals[state].append((line[1] - began_ns) / 1e6)
        reader.terminate()
    return sends, arrivals


def micro_batch_ms(switch: Switch, folder: Path, seconds: float) -> Samples:
    """Return the times of the micro-batches that began and ended with the same state of the switch."""
    from benchmarks.micro_batch import ROWS, replog_sink, replog_source, store

    turns: list[tuple[float, bool]] = []
    os.environ["PYTHONPATH"] = switch.environ["PYTHONPATH"]
    with store(folder, 0) as path, session("flush-cost") as spark:
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
        rows = spark.read.format("floor").option("rows", int(ROWS * seconds * 20)).load().select("key", "value")
        rows.write.format("replog").option("path", path).option("topic", "in").mode("append").save()
        query = replog_sink(replog_source(spark, path), path, folder / "checkpoint")
        while len([update for update in query.recentProgress if update["numInputRows"]]) < WARM_UP:
            time.sleep(0.2)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for state in random.sample((WITH, WITHOUT), 2):
                switch.turn(state)
                turns.append((time.time(), state))
                time.sleep(BLOCK_SECONDS)
        turns.append((time.time(), WITH))
        progress = query.recentProgress
        query.stop()
    samples: Samples = {WITH: [], WITHOUT: []}
    for batch in progress:
        start = datetime.fromisoformat(batch["timestamp"]).timestamp()
        took_ms = batch["durationMs"]["triggerExecution"]
        for (begin, state), (end, _) in itertools.pairwise(turns):
            if batch["numInputRows"] and begin <= start and start + took_ms / 1000 <= end:
                samples[state].append(took_ms)
    return samples


def row(name: str, samples: Samples) -> str:
    """Return a line of the table."""
    cells = []
    for state in (WITH, WITHOUT):
        values = samples[state]
        cells.append(f"{statistics.median(values):.2f} | {statistics.quantiles(values, n=20)[-1]:.2f}")
    return f"| {name} | {cells[0]} | {cells[1]} | {len(samples[WITH])} |"


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--seconds", type=float, default=90)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}\n| ms | with: p50 | p95 | without: p50 | p95 | of each |")
    print("| --- | --- | --- | --- | --- | --- |")
    with scratch(arguments.dir) as folder, tempfile.TemporaryDirectory() as switch_folder:
        switch = Switch(Path(switch_folder))
        if arguments.spark:
            print(row("a Spark micro-batch", micro_batch_ms(switch, folder, arguments.seconds)))
            return
        path = folder / "store"
        init_cluster(str(path), 3, {}, fsync=True)
        store = open_store(str(path))
        store.admin().create_topic("rows", partitions=1, replicas=3, config={})
        with store.producer() as producer:
            plain_ms(switch, producer, 100)
            print(row("a plain send", plain_ms(switch, producer, arguments.rows)))
            sends, arrivals = visible_ms(switch, producer, path, arguments.rows)
        print(row("a send beside a reader", sends))
        print(row("a row in another process", arrivals))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
