"""Members of one consumer group, each a process of its own, on three local roots with fsync.

Prints how long after the last join the group is stable, how many entries of the groups' ledger a rebalance took, and
how many entries idle members write.

    python -m benchmarks.group_processes [--members 100] [--leave 10] [--idle-s 15] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

from benchmarks.bench_session import scratch
from spark_replog import Consumer
from spark_replog.admin.controller import Controller
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.groups.group_coordinator import GroupCoordinator
from spark_replog.log.codec.group_records import GroupPhase

GROUP, TOPIC = "g", "orders"
SECONDS_MAX = 120


def member(path: str, generations: Any, number: int, go: Any, stopped: Any) -> None:
    """Poll until told to stop; show the generation that this member has."""
    cluster = Cluster.open(path)
    generations[number] = 0  # opened
    go.wait()
    consumer = Consumer(cluster, TOPIC, group=GROUP, auto_offset_reset="earliest")
    while not stopped.is_set():
        consumer.poll(timeout_ms=500)
        generations[number] = consumer.group_metadata()[1]
    consumer.close()


class Members:
    """The processes, and what their group's ledger says."""

    def __init__(self, path: str, member_count: int) -> None:
        self.path = path
        self.context = multiprocessing.get_context("fork")  # what is imported here needs not be imported by each
        self.generations = self.context.Array("i", [-1] * member_count, lock=False)
        self.processes: list[Any] = []
        self.stops: list[Any] = []
        self.go = self.context.Event()

    def start(self, count: int) -> None:
        """Start processes, and let them join once all of them have opened the store."""
        self.go.clear()
        first = len(self.processes)
        for number in range(first, first + count):
            self.stops.append(self.context.Event())
            arguments = (self.path, self.generations, number, self.go, self.stops[-1])
            self.processes.append(self.context.Process(target=member, args=arguments, daemon=True))
            self.processes[-1].start()
        while any(self.generations[number] < 0 for number in range(first, first + count)):
            time.sleep(0.05)
        self.go.set()

    def stop(self, count: int) -> None:
        """Let the last ones leave."""
        leaving, self.processes = self.processes[-count:], self.processes[:-count]
        for stopped in self.stops[-count:]:
            stopped.set()
        del self.stops[-count:]
        for process in leaving:
            process.join(SECONDS_MAX)

    def wait_stable(self, observer: GroupCoordinator) -> float:
        """Return the seconds until every member has the newest generation, and the group counts them all."""
        begin = time.monotonic()
        while time.monotonic() - begin < SECONDS_MAX:
            state = observer.group(GROUP)
            if state is not None and state.phase is GroupPhase.STABLE:
                seen = set(self.generations[: len(self.processes)])
                if seen == {state.metadata.generation} and len(state.metadata.members) == len(self.processes):
                    return time.monotonic() - begin
            time.sleep(0.1)
        sys.exit(f"not stable after {SECONDS_MAX} s")


def entries(path: str) -> int:
    """Return how many entries the groups' ledger has."""
    cluster = Cluster.open(path)
    ledger, _ = cluster.topic_state(cluster.lookup("__consumer_offsets"))
    return ledger.state.applied_index + 1


def main() -> None:
    """Let members join, one more join, some leave, and all be idle; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--leave", type=int, default=10)
    parser.add_argument("--idle-s", type=float, default=15)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    print("| step | stable after s | generations | entries | entries a rebalance |\n| --- | --- | --- | --- | --- |")
    with scratch(arguments.dir) as folder:
        path = str(folder / "store")
        init_cluster(path, 3, {}, fsync=True)
        Controller(Cluster.open(path)).create_topic(TOPIC, partitions=arguments.members)
        members = Members(path, arguments.members + 1)
        try:
            _run(members, arguments)
        finally:
            for process in members.processes:
                os.kill(process.pid, signal.SIGKILL)


def _run(members: Members, arguments: argparse.Namespace) -> None:
    members.start(arguments.members)  # forked before this process has threads
    observer = GroupCoordinator(Cluster.open(members.path))
    generation = written = 0

    def show(step: str) -> None:
        nonlocal generation, written
        seconds = members.wait_stable(observer)
        state = observer.group(GROUP)
        assert state is not None
        rounds, now = state.metadata.generation - generation, entries(members.path)
        average = (now - written) / rounds if rounds else 0
        print(f"| {step} | {seconds:.1f} | {rounds} | {now - written} | {average:.1f} |", flush=True)
        generation, written = state.metadata.generation, now

    show(f"{arguments.members} join at once")
    members.start(1)
    show("one more joins")
    members.stop(arguments.leave)
    show(f"{arguments.leave} leave")
    time.sleep(arguments.idle_s)
    show(f"idle for {arguments.idle_s:g} s")


if __name__ == "__main__":
    main()
