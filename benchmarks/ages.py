"""What a store of many commits costs, beside the same at 100 commits: cold open, plans, commits, memory, files.

    python -m benchmarks.ages grow --kind off-1 --to 1000000 [--folder /var/tmp/replog-ages]
    python -m benchmarks.ages measure --kind off-1 --age 100000 [--rounds 5]

A kind is the retention, on (100 kB of a partition stay) or off (all rows stay), and the number of partitions.
Every commit is one of ``ReplicaManager`` with the upkeep that commits do, as the sink makes it, of one object that lies
on the root. One root, without fsync, and a clock that goes on by a second a commit; while an age is made, all is done
in one thread. An age is kept; the next one grows from a copy of it (hard links: nothing of ours changes a file), so
that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_replog.admin.controller import Controller
from spark_replog.client.store import Topic
from spark_replog.clock import SystemClock
from spark_replog.cluster import cluster as clusters
from spark_replog.cluster.cluster import Cluster
from spark_replog.cluster.init_store import init_cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.config.producer import ProducerConfig
from spark_replog.ids import ObjectId, new_id
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.spark.options import parse_source_options
from spark_replog.spark.source.stream_reader import StreamReader
from spark_replog.storage.io_pool import IoPool
from spark_replog.storage.mount_table import file_system_of
from spark_replog.storage.paths import data_key
from spark_replog.write.task_writer import TaskWriter

AGES = (100, 10_000, 100_000, 1_000_000)
KEPT_BYTES = 100_000
ROWS_MAX = 16
START_MS = 1_700_000_000_000
QUERY = "11111111-2222-3333-4444-555555555555"


class AgeClock(SystemClock):
    """Wall time that goes on by one second a commit; waiting times stay real."""

    def __init__(self, commits: int) -> None:
        self.commits = commits

    def now_ms(self) -> int:
        """Return when the next commit happens."""
        return START_MS + 1_000 * self.commits


class Kind(NamedTuple):
    """What the rows of a store do."""

    retention: bool
    partitions: int

    @classmethod
    def of(cls, name: str) -> Kind:
        """Return the kind of a name such as off-16."""
        retention, _, partitions = name.partition("-")
        return cls({"on": True, "off": False}[retention], int(partitions))

    def __str__(self) -> str:
        return f"{'on' if self.retention else 'off'}-{self.partitions}"


def open_store(path: Path, commits: int) -> Cluster:
    """Open a store as a process of its time does; upkeep is due every 3 s, not 300 commits."""
    config = CoordinatorConfig(log_retention_check_interval_ms=3_000)
    return Cluster.open(str(path), config=config, clock=AgeClock(commits))


class Committer:
    """Makes commits of one row in each partition, or in one of very many by turns, as a micro-batch a second.

    Args:
        is_kept_clean: whether snapshots, retention and garbage collection are on.
    """

    def __init__(self, cluster: Cluster, commits: int, *, is_kept_clean: bool = True) -> None:
        self.cluster, self.commits = cluster, commits
        self.upkeep = Upkeep(cluster)
        self.manager = ReplicaManager(cluster, after_append=self.upkeep.start if is_kept_clean else lambda _: None)
        plan = make_write_plan(cluster, ["t"])
        self.topic = plan.topics[0]
        self.ledger = cluster.topic_ledger(self.topic.ledger_id)
        if not is_kept_clean:
            self.ledger._fold.keeper = None
        writer = TaskWriter(plan, ProducerConfig(), cluster.brokers, query_id=QUERY, batch_id=commits, task_id=0,
                            default_topic="t")  # fmt: skip
        self.partition_count = len(self.topic.replica_sets)
        self.is_wide = self.partition_count > ROWS_MAX
        numbers = pa.array([0] if self.is_wide else range(self.partition_count), pa.int32())
        writer.append(pa.record_batch({"value": [b"v" * 100] * len(numbers), "partition": numbers}))
        ((_, self.made),) = writer.close().objects
        self.store = cluster.brokers.store(0)
        key = data_key(self.topic.ledger_id, *self.made.id)
        self.data = bytes(self.store.get(key) or b"")
        self.store.delete(key)

    def commit(self) -> None:
        """Put the object and decide the append."""
        assert isinstance(self.cluster.clock, AgeClock)
        generation, after_index = self.ledger.state.generations.newest, self.ledger.state.applied_index
        name = f"{QUERY[:8]}-{self.commits}-0-{new_id()}.arrow"
        self.store.create(data_key(self.topic.ledger_id, generation, name), self.data, make_parent=True)
        sections = self.made.sections
        if self.is_wide:
            sections = (sections[0]._replace(partition=self.commits % self.partition_count),)
        fields = (ObjectId(generation, name), len(self.data), False, self.made.holders, sections)
        item = DataObject(*fields, after_index=after_index)
        identity = ProducerIdentity(QUERY, QUERY, self.commits, "run", IdentityKind.STREAM)
        append = Append(identity, "User:a", "", self.cluster.clock.now_ms(), (item,))
        answers = self.manager.append_records({self.topic.ledger_id: AppendRequest(append, 30_000)})
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        self.commits += 1
        self.cluster.clock.commits = self.commits


def run_at_once(_: IoPool, __: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Stand in for ``IoPool.submit_to``: on a busy machine each change of thread waits for a processor."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    return future


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Run meanwhile what `IoPool.submit_to` gets at once."""
    kept = IoPool.submit_to
    IoPool.submit_to = run_at_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        IoPool.submit_to = kept  # type: ignore[method-assign]


def grow(folder: Path, kind: Kind, age: int) -> Path:
    """Return the store of an age, made from the one before if it is not there."""
    path = folder / f"{kind}-{age}"
    done = path / "commits"
    commits = int(done.read_text()) if done.exists() else -1
    if commits == age:
        return path
    if commits < 0:
        younger = [other_age for other_age in AGES if other_age < age]
        shutil.rmtree(path, ignore_errors=True)
        if younger:
            source = grow(folder, kind, younger[-1])
            subprocess.run(["cp", "-al", str(source), str(path)], check=True)
            done.unlink()
            done.write_text(str(younger[-1]))
        else:
            cluster = init_cluster(str(path), 1, fsync=False)
            settings = {"retention.ms": "-1"}
            if kind.retention:
                settings["retention.bytes"] = str(KEPT_BYTES)
            Controller(cluster).create_topic("t", kind.partitions, 1, settings)
            done.write_text("0")
        commits = int(done.read_text())
    with in_one_thread():
        committer = Committer(open_store(path, commits), commits)
        began, first = time.monotonic(), commits
        while committer.commits < age:
            committer.commit()
            if committer.commits % 1_000 == 0 or committer.commits == age:
                done.write_text(str(committer.commits))
                rate = (committer.commits - first) / (time.monotonic() - began)
                print(f"{kind}: {committer.commits:,} commits, {rate:,.0f}/s", file=sys.stderr, flush=True)
        committer.upkeep.wait(60_000)
    return path


def settled(path: Path, commits: int) -> Path:
    """Return a copy with ten commits in ten seconds: an age is made a thousand times faster than its snapshots rest."""
    committer = copy_of(path, commits, f"settled-{path.name}")
    committer.ledger.snapshot(timeout_ms=60_000)
    for _ in range(10):
        time.sleep(1)
        committer.commit()
    committer.upkeep.wait(60_000)
    return Path(committer.cluster.path)


# -- figures ------------------------------------------------------------------------------------------


def open_cold(path: Path) -> Cluster:
    """Open as a new process does, and fold the topic's ledger; ``Cluster.shared`` answers with it from now on."""
    clusters._SHARED.clear()
    cluster = Cluster.shared(str(path))
    cluster.topic_state(cluster.lookup("t"))
    return cluster


def reader_of(path: Path, **options: str) -> StreamReader:
    """Return what Spark calls, in a process that knows nothing yet."""
    clusters._SHARED.clear()
    return StreamReader(parse_source_options({"path": str(path), "subscribe": "t", **options}, streaming=True))


def bounds(path: Path) -> dict[int, tuple[int, int]]:
    """Return log start and high watermark by partition."""
    cluster = open_cold(path)
    _, topic = cluster.topic_state(cluster.lookup("t"))
    return {number: (state.log_start_offset, state.high_watermark) for number, state in enumerate(topic.partitions)}


def scan_one(path: Path, at: Mapping[int, int]) -> None:
    """Read one row of each partition in a new process."""
    open_cold(path)
    scan = Topic(Cluster.shared(str(path)), "t").scan(at, {number: offset + 1 for number, offset in at.items()})
    assert scan.to_arrow().num_rows == len(at)


def plan_batch(reader: StreamReader, first: dict[str, Any], last: dict[str, Any]) -> None:
    """Plan a micro-batch."""
    assert reader.partitions(first, last)


def cases(path: Path) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return by name what prepares a run, untimed, and returns what is timed."""
    spans = bounds(path)
    earliest = {number: span[0] for number, span in spans.items()}
    newest = {number: span[1] - 1 for number, span in spans.items()}
    oldest = reader_of(path, startingOffsets="earliest").initialOffset()
    warm = reader_of(path, startingOffsets=json.dumps({"t": {str(part): span[1] - 5 for part, span in spans.items()}}))
    recent = warm.initialOffset()
    last = warm.latestOffset(recent, ReadAllAvailable())
    limited = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    backlog = StreamReader(parse_source_options(limited, streaming=True))

    kept = dict(clusters._SHARED)

    def again(work: Callable[[], object]) -> Callable[[], object]:
        clusters._SHARED.update(kept)
        return work

    def restarted(work: Callable[[StreamReader], object]) -> Callable[[], object]:
        reader = reader_of(path)
        return lambda: work(reader)

    return {
        "cold open": lambda: partial(open_cold, path),
        "topic describe, cold": lambda: lambda: Controller(open_cold(path)).describe_topic("t"),
        "first row from latest, cold": lambda: partial(scan_one, path, newest),
        "first row from earliest, cold": lambda: partial(scan_one, path, earliest),
        "latestOffset, cold": lambda: restarted(lambda reader: reader.latestOffset(last, ReadAllAvailable())),
        "latestOffset, warm": lambda: again(partial(warm.latestOffset, last, ReadAllAvailable())),
        "plan the newest 5 rows, cold": lambda: restarted(lambda reader: plan_batch(reader, recent, last)),
        "plan the newest 5 rows, warm": lambda: again(partial(plan_batch, warm, recent, last)),
        "latestOffset and plan of the first 100 rows": lambda: (
            lambda: plan_batch(backlog, oldest, backlog.latestOffset(oldest, backlog.getDefaultReadLimit()))
        ),
    }


REPEATED = {"latestOffset, warm": 50, "plan the newest 5 rows, warm": 50}


def timed(path: Path, name: str, prepare: Callable[[], Callable[[], object]]) -> tuple[float, float]:
    """Return wall and CPU milliseconds of one run."""
    run, count = prepare(), REPEATED.get(name, 1)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        run()
    return (time.perf_counter() - wall) * 1000 / count, (time.process_time() - cpu) * 1000 / count


def commit_times(committer: Committer, count: int) -> list[float]:
    """Return milliseconds of each commit."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        committer.commit()
        took.append((time.perf_counter() - began) * 1000)
    return took


def copy_of(path: Path, commits: int, name: str, *, is_kept_clean: bool = True) -> Committer:
    """Return what commits to a copy of a store."""
    target = path.with_name(f"scratch-{name}")
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-al", str(path), str(target)], check=True)
    return Committer(open_store(target, commits), commits, is_kept_clean=is_kept_clean)


def memory_of(path: Path) -> float:
    """Return the MiB that a new process holds that has opened, described, read both ends and planned."""
    code = "import sys; from benchmarks import ages; ages.hold(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def hold(path: str) -> None:
    """Use a store and print the MiB that this process holds."""
    for prepare in cases(Path(path)).values():
        prepare()()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def files_of(path: Path) -> tuple[int, int, int, int, int]:
    """Return live objects, files of data, pages, and all others on the root, and the names in its fullest folder."""
    cluster = open_cold(path)
    ledger = cluster.topic_ledger(cluster.lookup("t").ledger_id)
    live = ledger.ask(lambda state: sum(len(state.referenced_objects(g)) for g in range(state.generations.newest + 1)))
    keys = [info.key.split("/") for info in cluster.brokers.store(0).list_keys("")]
    fullest = max(Counter("/".join(parts[:-1]) for parts in keys).values())
    data = sum(len(parts) > 2 and parts[2] == "data" for parts in keys)
    pages = sum(len(parts) > 2 and parts[2] == "pages" for parts in keys)
    return live, data, pages, len(keys) - data - pages, fullest


def gets(cluster: Cluster) -> tuple[int, int]:
    """Return how many gets a store has cost since it was opened, that opening included, and their bytes."""
    calls = [calls for key, calls in cluster.brokers.calls.read().items() if key.kind == "get"]
    return sum(counts.call_count for counts in calls), sum(counts.size_bytes for counts in calls)


def open_figures(paths: Sequence[Path]) -> None:
    """Print what cold opens read."""
    opened = []
    for path in paths:
        open_cold(path)  # imports, threads
        cluster = Cluster.open(str(path / "broker-0"))  # of a parent folder, names of brokers are tried too
        handle = cluster.lookup("t")
        of_store, _ = gets(cluster)
        cluster.topic_state(handle)
        count, size_bytes = gets(cluster)
        opened.append((of_store, count - of_store, size_bytes))
    for what, *counts in zip(("gets of the store", "gets of the ledger", "bytes of both"), *opened, strict=True):
        print(f"| cold open: {what} | {counts[0]:,} | {counts[1]:,} |")


def case_figures(paths: Sequence[Path], rounds: int) -> None:
    """Print what each case takes, one store after the other in each round."""
    made = [cases(path) for path in paths]
    times: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in paths] for name in made[0]}
    for _ in range(rounds):
        for name, runs in times.items():
            for path, store_cases, taken in zip(paths, made, runs, strict=True):
                taken.append(timed(path, name, store_cases[name]))
    for name, runs in times.items():
        cells = []
        for at, pick in ((0, statistics.median), (1, statistics.median), (1, min)):
            young, old = (pick([run[at] for run in taken]) for taken in runs)
            cells.append(f"{young:.2f} | {old:.2f} | {old / young:.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


def commit_figures(committers: Sequence[Committer], what: str, count: int) -> None:
    """Print what commits take, ten of each in turn."""
    taken: list[list[float]] = [[] for _ in committers]
    for committer in committers:
        commit_times(committer, 20)
    for _ in range(count // 10):
        for committer, times in zip(committers, taken, strict=True):
            times += commit_times(committer, 10)
    for name, at in (("median", 0.5), ("p99", 0.99)):
        wall = [sorted(durations)[int(len(durations) * at)] for durations in taken]
        print(f"| {what}, {name} | {wall[0]:.2f} ms | {wall[1]:.2f} ms | {wall[1] / wall[0]:.2f} |")
    for committer in committers:
        committer.upkeep.wait(60_000)
        shutil.rmtree(committer.cluster.path, ignore_errors=True)  # a snapshot may be under way


def measure(folder: Path, kind: Kind, age: int, rounds: int, commits: int) -> None:
    """Print the figures of an age beside those of 100 commits."""
    ages = (AGES[0], age)
    paths = [settled(grow(folder, kind, count), count) for count in ages]
    measures = "ms, median", "CPU ms, median", "CPU ms, smallest"
    heads = " | ".join(f"{name}: 100 commits | {age:,} | ratio" for name in measures)
    print(f"| {kind}, {file_system_of(str(folder)).type} | {heads} |\n|" + " --- |" * 10)
    open_figures(paths)
    case_figures(paths, rounds)
    pairs = list(zip(ages, paths, strict=True))
    commit_figures([copy_of(path, count + 10, f"{kind}-{count}") for count, path in pairs], "one commit", commits)
    memory = [memory_of(path) for path in paths]
    print(f"| memory | {memory[0]:.0f} MiB | {memory[1]:.0f} MiB | {memory[1] / memory[0]:.2f} |")
    kinds = ("live objects", "files of data", "pages", "other files", "names in the fullest folder")
    for what, *counts in zip(kinds, *map(files_of, paths), strict=True):
        print(f"| {what} | {counts[0]:,} | {counts[1]:,} |")
    clean = [
        copy_of(paths[1], age + 10, f"{kind}-{is_kept_clean}", is_kept_clean=is_kept_clean)
        for is_kept_clean in (False, True)
    ]
    print(f"| {kind} at {age:,} | upkeep off | on |")
    commit_figures(clean, "one commit", commits)


def main() -> None:
    """Make ages, or print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grow", "measure"])
    parser.add_argument("--kind", default="off-1")
    parser.add_argument("--to", type=int, default=10_000)
    parser.add_argument("--folder", default="/var/tmp/replog-ages")
    parser.add_argument("--age", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=300)
    given = parser.parse_args()
    folder, kind = Path(given.folder), Kind.of(given.kind)
    if given.what == "grow":
        grow(folder, kind, given.to)
    else:
        measure(folder, kind, given.age, given.rounds, given.commits)


if __name__ == "__main__":
    main()
