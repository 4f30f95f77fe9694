"""A root comes back while another one goes, processes die and sleep: acknowledged rows are there, once and in order.

Real processes on three local roots: producers with ``acks=all``, a group of consumers, a coordinator. Roots are moved
away, replaced by an empty folder as where a mount is missing, or made unreadable. One is lost for good, and is rebuilt
while a producer sleeps. ``--storms`` sets how many runs the long test makes, ``--first-seed`` the first one.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import spark_replog
from spark_replog.admin.controller import Controller
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ReplogError
from spark_replog.maintenance.journal_scrub import scrub_journals
from tests.gateway_process import free_port
from tests.scenarios.storming import PARTITIONS, TOPIC
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BROKERS = (0, 1, 2)
ROWS_MIN = 24
"""How many rows each producer is told of before the next faults."""
PHASES = 8
"""Of a long run; every fourth one loses a root for good."""
COORDINATOR = ("coordinator", "run", "--interval-ms", "500", "-c", "replica.rejoin.wait.ms=500")


class Process:
    """One process, and how many rows it was told of or has read."""

    def __init__(self, role: str, command: list[str], errors: Path, take: Callable[[dict], int]) -> None:
        self.role, self.row_count, self.is_asleep = role, 0, False
        self._take, self._errors = take, errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{") and line.endswith("}\n"):  # a killed process leaves half a line
                    self.row_count += self._take(json.loads(line))

    @property
    def errors(self) -> str:
        return self._errors.read_text()[-3000:]

    def check_alive(self) -> None:
        assert self._process.poll() is None, (self.role, self._process.returncode, self.errors)

    def send(self, number: signal.Signals) -> None:
        self.check_alive()
        self._process.send_signal(number)
        self.is_asleep = (self.is_asleep or number == signal.SIGSTOP) and number != signal.SIGCONT

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it and take all that it said; after SIGTERM it must end well."""
        self.send(number)
        code = self._process.wait(timeout=240)
        self._hearing.join()
        assert code == (-number if number == signal.SIGKILL else 0), (self.role, code, self.errors)

    def abandon(self) -> None:
        self._process.kill()
        self._process.wait()
        self._hearing.join()


class Storm:
    """A store, its processes, and what they were told and have read."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path, self.rng, self.counts = folder / "store", Random(seed), Counter[str]()
        self._folder, self._lock = folder, threading.Lock()
        self._address = f"127.0.0.1:{free_port()}"
        """Of the gateway, and of the one that takes its place."""
        self.sent: set[str] = set()
        self.told: dict[tuple[int, int], str] = {}
        self.read: dict[tuple[int, int], str] = {}
        self.wrong: list[object] = []
        self.topics = [TOPIC]
        self.processes: list[Process] = []
        self.away: int | None = None
        assert run(["-q", "-s", str(self.path), "init", "--brokers", "3"]) == 0
        spark_replog.open(self.path).admin().create_topic(TOPIC, partitions=PARTITIONS, replicas=3)

    # -- processes --------------------------------------------------------------------------------

    def start(self, role: str) -> None:
        """Start a producer, a consumer or the coordinator."""
        self.counts["processes"] += 1
        name = f"{role}{self.counts['processes']}"
        command = ["tests.scenarios.storming", str(self.path), role, name]
        if role == "coordinator":
            command = ["spark_replog", "-s", str(self.path), *COORDINATOR]
        elif role == "gateway":
            command = ["spark_replog", "-s", str(self.path), "gateway", "--listen", self._address]
        elif role == "client":
            command[1] = self._address
        self.processes.append(Process(role, command, self._folder / f"{name}.log", self._take))

    def _take(self, said: dict) -> int:
        """Take a line of a process; return how many rows it was told of or has read."""
        with self._lock:
            self.sent.update(said.get("sent", ()))
            for kind, rows in (("told", self.told), ("read", self.read)):
                for partition, offset, value in said.get(kind, ()):
                    if rows.setdefault((partition, offset), value) != value:
                        self.wrong.append((kind, partition, offset, rows[partition, offset], value))
            self.counts["refused rows"] += "refused" in said
        return len(said.get("told", ())) + len(said.get("read", ()))

    def _awake(self, *roles: str) -> list[Process]:
        return [process for process in self.processes if process.role in roles and not process.is_asleep]

    def go_on(self) -> None:
        """Wait until each producer was told of more rows, and consumers have read more."""
        before = {producer: producer.row_count + ROWS_MIN for producer in self._awake(*WRITERS)}
        read_before = sum(process.row_count for process in self.processes if process.role == "consumer")

        def has_gone_on() -> bool:
            for producer in before:
                producer.check_alive()
            read = sum(process.row_count for process in self.processes if process.role == "consumer")
            return read > read_before and all(writer.row_count >= count for writer, count in before.items())

        def errors() -> list[str]:
            return [f"{process.role}: {process.row_count} rows: {process.errors}" for process in self.processes]

        wait_until(has_gone_on, lambda: f"{self.away=}, {self.counts}, {errors()}")
        assert not self.wrong, self.wrong

    def kill(self) -> None:
        """Kill a process; another one takes its place."""
        one = self.rng.choice([process for process in self.processes if not process.is_asleep])
        self.processes.remove(one)
        one.end(signal.SIGKILL)
        self.counts["killed"] += 1
        self.start(one.role)

    def put_to_sleep(self, *roles: str) -> None:
        """Stop a process for some time, while others go on; one at a time."""
        awake = self._awake(*roles)
        if len(self._awake("producer")) > 1 and awake and len(self._awake(*ROLES)) == len(self.processes):
            self.rng.choice(awake).send(signal.SIGSTOP)
            self.counts["put to sleep"] += 1

    def wake(self) -> None:
        for process in self.processes:
            if process.is_asleep:
                process.send(signal.SIGCONT)

    # -- roots --------------------------------------------------------------------------------------

    def root(self, number: int) -> Path:
        return self.path / f"broker-{number}"

    def leave(self, number: int) -> None:
        """Let a root not answer any more, in one of three ways."""
        root, way = self.root(number), self.rng.choice(("moved away", "replaced by an empty folder", "unreadable"))
        root.rename(root.with_suffix(".away"))
        if way == "replaced by an empty folder":
            root.mkdir()
        elif way == "unreadable":
            root.symlink_to(root)  # no call to it succeeds, whoever makes it
        self.counts[f"roots {way}"] += 1

    def come_back(self, number: int | None) -> None:
        if number is None:
            return
        root = self.root(number)
        if root.is_symlink():
            root.unlink()
        elif root.exists():
            root.rmdir()  # fails if a process has written there
        root.with_suffix(".away").rename(root)

    def swap(self) -> None:
        """Let the root come back that is away, and another one go at this moment."""
        before = self.away
        self.away = self.rng.choice([broker for broker in BROKERS if broker != before])
        if self.rng.random() < 0.5:
            self.come_back(before)
            self.leave(self.away)
        else:
            self.leave(self.away)
            self.come_back(before)

    def lose(self, number: int) -> None:
        """Let all be gone that a root held."""
        gone = self._folder / f"gone-{self.counts['lost roots']}"
        self.root(number).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)  # a process that has a folder open may still write there
        self.counts["lost roots"] += 1

    # -- commands -----------------------------------------------------------------------------------

    def command(self, *words: str) -> int:
        return run(["-q", "-s", str(self.path), *words])

    def snapshot(self) -> None:
        """Decide snapshots of all ledgers, which cut the journals."""
        self.counts["snapshots"] += self.command("store", "snapshot") == 0

    def make_topic(self) -> None:
        """Make a topic, whose ledger is new; rows follow in the end."""
        name = f"topic-{len(self.topics)}"
        try:
            spark_replog.open(self.path).admin().create_topic(name, partitions=1, replicas=3, if_not_exists=True)
        except ReplogError as error:
            self.counts[f"topic: {error.code.name}"] += 1
        else:
            self.topics.append(name)

    # -- what happens -------------------------------------------------------------------------------

    def trouble(self) -> None:
        """Let one root come back while another goes; kill or stop processes, decide snapshots, make topics."""
        steps = [self.swap, *self.rng.sample((self.kill, self.kill, self.snapshot, self.make_topic), 2)]
        steps.append(lambda: self.put_to_sleep("producer", "coordinator"))
        self.rng.shuffle(steps)
        for step in steps:
            step()
        self.go_on()
        if self.rng.random() < 0.5:
            self.snapshot()
        self.wake()

    def rebuild(self) -> None:
        """Lose a root and rebuild it while a producer sleeps; then another one goes, and the sleeper wakes."""
        self.settle()
        self.put_to_sleep("producer")
        lost = self.rng.choice(BROKERS)
        self.lose(lost)
        self.go_on()
        self.snapshot()
        if self.rng.random() < 0.5:
            self.kill()
        assert self.command("store", "repair", "-y") == 0
        self.away = self.rng.choice([broker for broker in BROKERS if broker != lost])
        self.leave(self.away)
        self.wake()
        self.go_on()

    def settle(self) -> None:
        """Wait until the coordinator has made all roots whole again."""
        self.wake()
        self.come_back(self.away)
        self.away = None

        def is_whole() -> bool:
            cluster = Cluster.open(str(self.path))
            topics = [Controller(cluster).describe_topic(name).partitions for name in self.topics]
            return all(len(log.isr) == 3 for some in topics for log in some) and not scrub_journals(cluster).behind

        wait_until(is_whole, lambda: f"{self.counts}", pause_seconds=0.3)

    # -- what must hold -----------------------------------------------------------------------------

    def end(self) -> None:
        """End the processes; look at all rows, with all roots and without each one."""
        self.wake()
        for process in self._awake(*WRITERS):
            self.processes.remove(process)
            process.end()
        rows = self.check()
        wait_until(lambda: self.read.keys() >= rows.keys(), lambda: f"not read: {rows.keys() - self.read.keys()}")
        self.settle()
        for process in self.processes:
            process.end()
        assert self.command("store", "repair", "-y") == 0
        assert self.command("store", "verify", "--deep") == 0
        for number in BROKERS:
            self.leave(number)
            self.check()
            self.come_back(number)

    def lose_each(self) -> None:
        """Lose each root and rebuild it from the others, which hold rebuilt journals too."""
        for number in BROKERS:
            self.lose(number)
            self.check()
            self.write()
            assert self.command("store", "repair", "-y") == 0
        assert self.command("store", "verify", "--deep") == 0
        self.check()

    def check(self) -> dict[tuple[int, int], str]:
        """Hold all rows of the topic against what producers were told and consumers have read; return them."""
        table = spark_replog.open(self.path).topic(TOPIC).scan().to_arrow()
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]
        rows = {(partition, offset): value.decode() for partition, offset, value in zip(*columns, strict=True)}
        assert len(rows) == table.num_rows, "an offset is there twice"
        numbers: dict[tuple[int, str], list[int]] = {}
        for (partition, _), value in sorted(rows.items()):
            name, _, number = value.partition("-")
            numbers.setdefault((partition, name), []).append(int(number))
        for partition in range(PARTITIONS):
            offsets = sorted(offset for number, offset in rows if number == partition)
            assert offsets == list(range(len(offsets)))
        with self._lock:
            problems = {
                "lost": self.told.items() - rows.items(),
                "read and changed": self.read.items() - rows.items(),
                "doubled": [value for value, count in Counter(rows.values()).items() if count > 1],
                "reordered": [key for key, some in numbers.items() if some != sorted(some)],
                "never sent": set(rows.values()) - self.sent,
                "contradictions": self.wrong,
            }
        assert not any(problems.values()), {what: list(some)[:10] for what, some in problems.items()}
        self.counts["checks"] += 1
        return rows

    def write(self) -> None:
        """Write to each topic, as a new process."""
        self.counts["writes"] += 1
        value = f"end-{self.counts['writes']}"
        with spark_replog.open(self.path).producer(acks="all") as producer:
            for topic in self.topics:
                where = producer.send(topic, value.encode(), partition=0).result(timeout=120)
                if topic == TOPIC:
                    self._take({"sent": [value], "told": [[where.partition, where.offset, value]]})


WRITERS = ("producer", "client")
"""``client``: of Kafka's, which needs a ``gateway``."""
ROLES = (*WRITERS, "consumer", "coordinator", "gateway")


def run_storm(folder: Path, seed: int, *steps: str, is_long: bool = False) -> Counter[str]:
    """Let these things happen one after the other; return what did. Kafka's protocol takes part in long ones."""
    storm = Storm(folder, seed)
    try:
        for role in ("gateway", *WRITERS, "consumer", "coordinator", "producer"):
            if not is_long and role in ("client", "gateway"):
                continue
            storm.start(role)
        storm.go_on()
        for step in steps:
            getattr(storm, step)()
        storm.end()
        if is_long:
            storm.lose_each()
    finally:
        for process in storm.processes:
            process.abandon()
    storm.counts["acknowledged rows"] = len(storm.told)
    return storm.counts


@pytest.mark.guarantee("G3", "G4")
def test_rows_stay_while_a_root_comes_back_and_another_goes(tmp_path: Path) -> None:
    counts = run_storm(tmp_path, 5, "trouble", "rebuild")
    print(dict(counts))


@pytest.mark.wide
def test_rows_stay_in_many_long_storms(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first, total = request.config.getoption("--first-seed"), Counter[str]()
    for seed in range(first, first + request.config.getoption("--storms")):
        steps = ["rebuild" if number % 4 == 3 else "trouble" for number in range(PHASES)]
        (folder := tmp_path / str(seed)).mkdir()
        print(f"seed {seed}")
        counts = run_storm(folder, seed, *steps, is_long=True)
        print(dict(counts), flush=True)
        total.update(counts)
        shutil.rmtree(folder)
    print(f"in all: {dict(total)}")
    assert total["lost roots"] and total["killed"] and total["put to sleep"] and total["snapshots"]
