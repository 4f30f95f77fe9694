"""Whole stores on simulated disks: the product's own processes, roots that come and go, power cuts, in one thread.

Only threads, time and the kernel's flushes are replaced. The storage calls of a process run one after the other, in
virtual time. A process may be killed at any link: before it, between it and the flush of its folder, or while its calls
to the other roots are at different steps; or sleep before a journal record is written, while the others go on. A power
cut takes what was not flushed (``tests.power_cuts``). One root at a time is away, comes back while another goes, gets
an empty disk, or has a damaged file of any kind; the journals of a ledger are lost on two or all of them. Checkpoints
are set back. A schedule is a list of steps, each with a seed of its own: what fails is replayed, and shrunk by leaving
steps out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from spark_replog.admin.controller import Controller
from spark_replog.admin.coordinator_loop import CoordinatorLoop, topic_ledgers
from spark_replog.client.store import Store
from spark_replog.clock import SystemClock
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.gateway import GatewayConfig
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.gateway.gateway import Gateway
from spark_replog.gateway.placement import Node
from spark_replog.gateway.produce_lane import LaneKey, ProduceLane, ProduceLanes, ProducePart
from spark_replog.ledger.root import Completion, Create, Operation
from spark_replog.ledger.shell_io import RootIo
from spark_replog.log.model import Append, IdentityKind, Outcome, ProducerIdentity
from spark_replog.maintenance.journal_scrub import scrub_journals
from spark_replog.maintenance.repair import StoreRepair
from spark_replog.storage.io_pool import IO_POOL, IoPool
from spark_replog.write.task_writer import TaskWriter
from tests.gateways import Sender, record_batch
from tests.power_cuts import PowerCuts, draw

BROKERS = (0, 1, 2)
TOPICS = ("first", "second", "third")
NEW, END = 8, 9
"""A process that has just begun, and the one that looks in the end."""
FILES = ("journal", "markers", "snapshots", "pages", "data")
"""The folders of a ledger; one file of one root is damaged at a time."""
MEANWHILE = ("write", "read", "snapshot", "coordinate", "topic", "leave", "come_back", "replace", "empty", "repair")
"""What happens while a writer sleeps, and how many of it at most."""
MEANWHILE_MAX = 4
LINKS = (0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 7, 9)
"""At which link a process dies; 0: at none. A write's entry is its 4th, or its 7th after a claim."""
TIMEOUT_MS = 5_000
SEQUENCES = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID
"""What no batch is told that follows those which were acknowledged."""
ATTEMPTS_MAX = 4
"""How often a user tries until it works."""
ROUNDS = 2
"""Of a coordinator, until all roots are whole and no journal is behind."""
START_MS = 1_800_000_000_000


class Violation(Exception):
    """Something that the store promises does not hold."""


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Client:
    """An idempotent producer of Kafka's, which sends to one topic, through any gateway."""

    id: int
    sequence: int = 0
    values: tuple[bytes, ...] = ()
    """What it has sent and nobody has acknowledged."""
    end_offset: int = 0
    """Behind the last row that was acknowledged."""


class Step(NamedTuple):
    """One thing that happens, to a process or to the roots."""

    process: int
    job: str
    draw: int


class _Calls(IoPool):
    """Runs each call where it is submitted."""

    def submit_to(self, lane: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # as a lane's thread: the caller gets it
            future.set_exception(error)
        return future

    def post_to(self, lane: str, function: Any, /, *args: Any, **kwargs: Any) -> None:
        with suppress(Killed):  # this thread of the process; its others are killed at a step of their own
            function(*args, **kwargs)


class World:
    """One store, its processes, and what readers and writers know of its rows."""

    def __init__(self, template: Path, folder: Path, cuts: PowerCuts) -> None:
        self.rng = Random()
        self.now_ms = float(START_MS)
        self.counts: Counter[str] = Counter()
        self._folder, self._cuts = folder, cuts
        self._cut_count = 0
        self.path = folder / "0"
        shutil.copytree(template, self.path)
        self._processes: dict[int, Cluster] = {}
        self._away: int | None = None
        self._is_lost = False
        self._departures_left = 2
        """How many more roots may leave or be lost, one at a time, and all goes on: none below 0 (`settle`)."""
        self._rows: dict[str, dict[int, bytes]] = {}
        self._told: dict[str, set[bytes]] = {}
        self._batches: dict[str, tuple[int, tuple[bytes, ...]]] = {}
        self._rightful: dict[str, tuple[int, tuple[bytes, ...]]] = {}
        """Of queries whose checkpoint was set back: what they go on with once that was noticed."""
        self._clients: dict[str, Client] = {}
        self.deadliness = 1.0  # how many of the steps whose process may die
        self._attempts = 0
        self._creates_left = 0
        self._links_left = 0
        self.wait_ms = 0.0
        self._is_dying = self._stops_next = False
        cuts.links, cuts.stops, cuts.stop = self._link, lambda *_: self._stops_next, self._die

    def count(self, what: str) -> None:
        """Count what happened: schedules in which nothing does prove nothing."""
        self.counts[what] += 1

    # -- a process and its death ------------------------------------------------------------------

    def _link(self, folder: str, name: str) -> None:
        self._stops_next = False
        self._links_left -= 1
        if not self._is_dying and self._links_left != 0:
            return
        fate = self.rng.random()
        if fate < 0.15:
            self._die()
        self._stops_next = fate < 0.85

    def _die(self) -> None:
        self._is_dying = True
        raise Killed

    def before(self, operation: Operation) -> None:
        """Stand before each call of a ledger to a root: a writer that is to sleep does so before it writes a record."""
        self._creates_left -= isinstance(operation, Create)
        if self._creates_left != 0 or not isinstance(operation, Create):
            return
        self.count("sleeping writers")
        other, links_left = 1 - self._sleeper, self._links_left
        for job in self.rng.choices(MEANWHILE, k=self.rng.randint(1, MEANWHILE_MAX)):
            self._links_left = -1
            self.now_ms += 1_000
            try:
                getattr(self, job)(other)
            except ReplogError as error:
                self._judge(job, error)
        self._links_left = links_left

    def wait(self, timeout_ms: float) -> None:
        """Stand for ``RootIo.wait``: a killed process learns nothing more."""
        if self._is_dying:
            raise Killed
        self.wait_ms = timeout_ms

    def sleep(self, duration_ms: float) -> None:
        """Let time pass."""
        self.now_ms += duration_ms

    def _cluster(self, number: int) -> Cluster:
        cluster = self._processes.get(number)
        if cluster is None:
            cluster = self._processes[number] = Cluster.open(str(self.path))
        return cluster

    def run(self, step: Step) -> None:
        """Let one step happen."""
        self.rng.seed(step.draw)
        self.now_ms += self.rng.choice((100, 1_000, 40_000))
        self._is_dying = self._stops_next = False
        self._links_left = self.rng.choice(LINKS) if self.rng.random() < self.deadliness else 0
        self._creates_left = 0
        if self.rng.random() < 0.3:
            self._processes.pop(step.process, None)  # it ended; the next one has nothing cached
        try:
            getattr(self, step.job)(step.process)
        except (Killed, Exception) as error:
            if isinstance(error, Violation) or not (self._is_dying or isinstance(error, ReplogError)):
                raise
            if not self._is_dying and isinstance(error, ReplogError):
                self._judge(step.job, error)
        self._links_left = 0
        if self._is_dying:
            self.count("killed")
            self._processes.pop(step.process, None)

    def _judge(self, job: str, error: ReplogError) -> None:
        self.count(f"{job}: {error.code.name}")
        if job == "read":
            raise Violation(f"{self._without()} nothing can be read: {error}") from error

    def _without(self) -> str:
        return "with all roots" if self._away is None else f"without root {self._away}"

    def end(self) -> None:
        """Bring all roots back, repair what was lost, read and write."""
        self._links_left, self._is_dying, self._stops_next = 0, False, False
        self.settle(0)
        self.go_on(END)

    def settle(self, number: int) -> None:
        """Bring the roots back, repair what was lost, let coordinators work: then all is whole, and can be read."""
        self._links_left = 0
        self._processes.pop(END, None)
        try:
            self.come_back(0)
            self.repair(END)
            self.read(END)
            for _ in range(ROUNDS):
                self.coordinate(number)  # it may have been there for long
                self.now_ms += 60_000
            if self._is_lost:
                self.repair(END)
            report = scrub_journals(self._cluster(END))
            trouble = report.findings or report.behind
        except ReplogError as error:
            raise Violation(f"{self._without()} it is not made whole: {error}") from error
        if self._is_lost or trouble:
            raise Violation(f"after a repair and coordinators: {self._is_lost=}, {trouble}")
        self._departures_left = 2

    def go_on(self, _: int) -> None:
        """Read and write all topics as a new process: with any one root away or lost this works."""
        if self._departures_left < 0:
            return
        self._links_left = 0
        self._processes.pop(NEW, None)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self.read(NEW)
                for name in sorted(self._rows):
                    self.write(NEW, name)
                break
            except ReplogError as error:
                self.count(f"attempt {attempt}: {error.code.name}")
                if attempt == ATTEMPTS_MAX:
                    raise Violation(f"{self._without()} it does not go on: {error}") from error
                self.now_ms += 5_000
        self.read(NEW)
        self._departures_left = max(1, self._departures_left)
        self.count("went on")

    # -- what processes do --------------------------------------------------------------------------

    def topic(self, number: int) -> None:
        """Make a topic."""
        name = self.rng.choice(TOPICS)
        Controller(self._cluster(number)).create_topic(name, 1, 3, start_index=0, if_not_exists=True)
        self._rows.setdefault(name, {})
        self.count("topics")

    def write(self, number: int, name: str = "") -> None:
        """Write the next micro-batch of a query, or the last one again until its writer is told."""
        if not self._rows:
            self.topic(number)
        name = name or self.rng.choice(sorted(self._rows))
        query = f"{name}-{number}"
        batch, values = self._batches.get(query, (0, ()))
        if not values:
            self._attempts += 1
            made = (
                b"%s %d.%d/%d" % (query.encode(), batch, self._attempts, at) for at in range(self.rng.randint(1, 3))
            )
            values = tuple(made)
            self._batches[query] = batch, values
        cluster = self._cluster(number)
        plan = make_write_plan(cluster, [name])
        writer = TaskWriter(plan, ProducerConfig(), cluster.brokers, query_id=query, batch_id=batch, task_id=0,
                            default_topic=name)  # fmt: skip
        writer.append(pa.record_batch({"value": pa.array(values, pa.binary())}))
        objects = writer.close().objects
        evidence = hashlib.sha256(values[0]).digest()[:8]
        identity = ProducerIdentity(query, query, batch, "run", IdentityKind.STREAM, evidence=evidence)
        append = Append(identity, "User:s", "", int(self.now_ms), tuple(item for _, item in objects))
        (answer,) = ReplicaManager(cluster).append_records({objects[0][0]: AppendRequest(append, TIMEOUT_MS)}).values()
        if self._is_dying:
            raise Killed  # before it could tell anyone
        if isinstance(answer.error, ReplogError) and answer.error.code is ErrorCode.REPLOG_CHECKPOINT_RESET:
            self._batches[query] = self._rightful.pop(query)  # its checkpoint is put right
            self.count("refused checkpoints")
            return
        if answer.error is not None:
            raise answer.error
        assert answer.result.outcome in (Outcome.APPLIED, Outcome.DUPLICATE), answer
        self.count(f"batches {answer.result.outcome.name}")
        self._told.setdefault(name, set()).update(values)
        self._batches[query] = batch + 1, ()
        self._rightful.pop(query, None)

    def produce(self, number: int) -> None:
        """Send the next batch of an idempotent producer through a gateway, or the last one again until it is told."""
        if not self._rows:
            self.topic(number)
        name = self.rng.choice(sorted(self._rows))
        client = self._clients.setdefault(name, Client(len(self._clients)))
        is_again = bool(client.values)
        if not is_again:
            numbers = range(client.sequence, client.sequence + self.rng.randint(1, 3))
            client.values = tuple(b"%s-client %d" % (name.encode(), at) for at in numbers)
        cluster = self._cluster(number)
        gateway = Gateway(cluster, GatewayConfig(), Node(number, "127.0.0.1", 1))
        lanes = gateway.part(ProduceLanes)
        lanes.manager = ReplicaManager(cluster)  # nothing runs beside it
        lane = ProduceLane(lanes, LaneKey(name, gateway.principal, "gateway", -1, client.id))
        batch = record_batch(*client.values, sender=Sender(client.id), sequence=client.sequence)
        part = ProducePart(0, batch, TIMEOUT_MS)
        lane.write([part])
        if self._is_dying:
            raise Killed  # before it could tell anyone
        assert part.answer is not None
        error, base = part.answer.error, part.answer.base_offset
        if error is not None and error.code in SEQUENCES:
            raise Violation(f"a batch of {client} is refused: {error}") from error
        if error is not None:
            raise error
        if base < client.end_offset:
            raise Violation(f"a batch of {client} is at {base}, before what it sent earlier")
        self.count("batches sent again" if is_again else "batches sent once")
        self._rows[name].update(enumerate(client.values, base))
        self._told.setdefault(name, set()).update(client.values)
        client.sequence += len(client.values)
        client.end_offset = base + len(client.values)
        client.values = ()

    def set_back(self, number: int) -> None:
        """Restore an older checkpoint of a query: it numbers new rows as rows that it has written already."""
        ready = [query_name for query_name, (batch, values) in self._batches.items() if batch > 1 and not values]
        if not ready:
            return
        query = self.rng.choice(sorted(ready))
        self._rightful[query] = self._batches[query]
        self._batches[query] = self._batches[query][0] - self.rng.choice((1, 1, 2)), ()
        self.count("checkpoints set back")

    def sleep_and_write(self, number: int) -> None:
        """Write, and sleep before one of the journal records while other things happen."""
        self._sleeper, self._creates_left = number, self.rng.randint(1, 8)
        self.write(number)

    def read(self, number: int) -> None:
        """Read all rows of all topics."""
        store = Store(self._cluster(number))
        for name, rows_seen in self._rows.items():
            table = store.topic(name).scan().to_arrow()
            offsets, values = table["offset"].to_pylist(), table["value"].to_pylist()
            if offsets != list(range(len(offsets))) or len(set(values)) != len(values):
                raise Violation(f"{name} has offsets {offsets} and rows {values}")
            rows = dict(zip(offsets, values, strict=True))
            for offset, value in rows_seen.items():
                if rows.get(offset) != value:
                    raise Violation(f"offset {offset} of {name} was {value!r}, and is {rows.get(offset)!r}")
            if not self._told.get(name, set()) <= set(values):
                raise Violation(f"{name} lacks rows {self._told[name] - set(values)} that a writer was told of")
            rows_seen.update(rows)
            self.count("reads")

    def forget(self, number: int) -> None:
        """A process ends; the next one has nothing cached."""
        self._processes.pop(number, None)

    def snapshot(self, number: int) -> None:
        """Write snapshots of all ledgers, which cut their journals."""
        cluster = self._cluster(number)
        cluster.refresh()
        for ledger in [cluster.cluster_ledger, *topic_ledgers(cluster)]:
            ledger.snapshot(timeout_ms=TIMEOUT_MS)
            ledger.collect()
        self.count("snapshots")

    def coordinate(self, number: int) -> None:
        """Run one round of a coordinator."""
        CoordinatorLoop(self._cluster(number)).run_once()

    def repair(self, number: int) -> None:
        """Repair the store, as `replog store repair` does; what was lost is whole again if it says so."""
        if self._away is not None:
            return  # it would be rebuilt, and is to come back
        report = StoreRepair(self._cluster(number), deep=True).run()
        self.count("repairs")
        if self._is_lost and all(root.is_repaired for root in report.roots.values()):
            self._is_lost = False
            self.count("rebuilt roots")

    # -- what happens to roots ------------------------------------------------------------------------

    def leave(self, _: int) -> None:
        """Let one root not answer, if all others are there and none has lost anything."""
        if self._away is None and not self._is_lost:
            self._away = self.rng.choice(BROKERS)
            (self.path / f"broker-{self._away}").rename(self.path / f"broker-{self._away}.away")
            self._departures_left -= 1
            self.count("outages")

    def come_back(self, _: int) -> None:
        """Let the root answer again that did not."""
        if self._away is not None:
            (self.path / f"broker-{self._away}.away").rename(self.path / f"broker-{self._away}")
            self._away = None

    def replace(self, _: int) -> None:
        """Let the root come back that was away, and another one go."""
        before = self._away
        if before is not None:
            self.come_back(0)
            self._away = self.rng.choice([broker for broker in BROKERS if broker != before])
            (self.path / f"broker-{self._away}").rename(self.path / f"broker-{self._away}.away")
            self._departures_left -= 1
            self.count("replaced outages")

    def come_back_empty(self, _: int) -> None:
        """Replace the disk of the root that is away by an empty one."""
        if self._away is not None:
            shutil.rmtree(self.path / f"broker-{self._away}.away")
            (self.path / f"broker-{self._away}").mkdir()
            self._away, self._is_lost = None, True
            self.count("lost roots")

    def damage(self, _: int) -> None:
        """Empty, remove or swap a file of one root, which counts as lost until it is repaired."""
        if self._away is not None or self._is_lost:
            return
        kind, root = self.rng.choice(FILES), self.path / f"broker-{self.rng.choice(BROKERS)}"
        files = [path for path in sorted(root.glob(f"ledgers/*/{kind}/**/*")) if path.is_file()]
        if not files:
            return
        file, fate = self.rng.choice(files), self.rng.choice(("emptied", "missing", "swapped"))
        other = self.rng.choice(files).read_bytes()
        file.unlink()  # the roots share no file, but a snapshot of this folder may
        if fate != "missing":
            file.write_bytes(b"" if fate == "emptied" else other)
        self._is_lost, self._departures_left = True, -1
        self.count(f"{fate} files of {kind}")

    def lose_journals(self, number: int) -> None:
        """Lose all journal files of a ledger on two roots or on all, and put them back after a look at what is left."""
        if self._away is not None or self._is_lost or not self._rows:
            return
        hit, lost = self.rng.sample(BROKERS, self.rng.choice((2, 3))), self._folder / "lost"
        name, cluster = self.rng.choice(sorted(self._rows)), self._cluster(number)
        ledger = self.rng.choice((cluster.lookup(name).ledger_id, cluster.brokers.cluster_id))
        folders = [self.path / f"broker-{broker}/ledgers/{ledger}/journal" for broker in hit]
        for at, folder in enumerate(folders):
            shutil.copytree(folder, lost / str(at))
            for file in folder.iterdir():
                file.unlink()
        self._processes.clear()
        self.count("lost journals")
        self._links_left = -1
        with suppress(ReplogError):
            self.read(number)  # an error, or all rows: a majority that lost them proves nothing to the third root
        try:
            self.write(number, name)
        except ReplogError as error:
            self.count(f"write without journals: {error.code.name}")
        else:
            raise Violation(f"a write succeeds while roots {hit} have no journal of ledger {ledger}")
        for at, folder in enumerate(folders):
            for file in (lost / str(at)).iterdir():
                shutil.copy2(file, folder / file.name)
        shutil.rmtree(lost)
        self._processes.clear()
        self._departures_left = -1

    def empty(self, _: int) -> None:
        """Replace the disk of a root by an empty one."""
        if self._away is None and not self._is_lost:
            root = self.path / f"broker-{self.rng.choice(BROKERS)}"
            root.rename(self._folder / "gone")
            shutil.rmtree(self._folder / "gone")
            root.mkdir()
            self._is_lost = True
            self._departures_left -= 1
            self.count("lost roots")

    def power_cut(self, _: int) -> None:
        """Cut the power of all roots, and with them of all processes, or of one root."""
        hit = BROKERS if self.rng.random() < 0.6 else (self.rng.choice(BROKERS),)
        keeps = draw(
            self.rng, [f"broker-{broker}{end}" for broker in hit for end in ("", ".away")], self.rng.choice((0.0, 0.5))
        )
        self._cut_count += 1
        before, self.path = self.path, self._folder / str(self._cut_count)
        self._cuts.cut(before, self.path, keeps)
        if len(hit) == 1:  # the processes live, and their root has lost names
            name = f"broker-{hit[0]}" + (".away" if hit[0] == self._away else "")
            shutil.rmtree(before / name)
            (self.path / name).rename(before / name)
            shutil.rmtree(self.path)
            self.path = before
        else:
            shutil.rmtree(before)
            self._processes.clear()
        self._departures_left = -1
        self.count("power cuts")


@contextmanager
def one_thread(patch: pytest.MonkeyPatch, world: World, seed: int) -> Iterator[None]:
    """Let a world's processes run in this thread, in its time, with the seed's random numbers."""
    rng, real_take, real_execute = Random(seed), RootIo.take, RootIo.execute

    def execute(io: RootIo, operation: Operation) -> Completion:
        world.before(operation)
        return real_execute(io, operation)

    def take(io: RootIo, timeout_ms: float = 0) -> list[Completion]:
        waited_ms = world.wait_ms
        completions = real_take(io, 0)
        if not completions:
            world.now_ms += max(1.0, waited_ms)
        return completions

    mine, real_wait, real_sleep = get_ident(), RootIo.wait, SystemClock.sleep_ms

    def here(ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """Leave threads of other tests alone: one that forgot to close a producer, for example."""
        return lambda *args, **named: (ours if get_ident() == mine else real)(*args, **named)

    patch.setattr(RootIo, "wait", here(lambda _, timeout_ms: world.wait(timeout_ms), real_wait))
    patch.setattr(RootIo, "take", here(take, real_take))
    patch.setattr(RootIo, "execute", here(execute, real_execute))
    patch.setattr(IO_POOL, "__class__", _Calls)
    for name in ("now_ms", "monotonic_ms"):
        patch.setattr(SystemClock, name, here(lambda _: int(world.now_ms), getattr(SystemClock, name)))
    patch.setattr(SystemClock, "sleep_ms", here(lambda _, duration_ms: world.sleep(duration_ms), real_sleep))
    for place, real in (("os.urandom", os.urandom), ("random._urandom", os.urandom)):
        patch.setattr(place, here(rng.randbytes, real))
    yield


POWER = {"write": 20, "read": 10, "topic": 5, "snapshot": 8, "coordinate": 4, "power_cut": 20}
"""Jobs and their weights: power cuts and kills."""
ROOTS = {
    "write": 20, "read": 20, "topic": 8, "snapshot": 14, "coordinate": 4, "power_cut": 3,
    "leave": 14, "come_back": 14, "empty": 3, "repair": 8,
}  # fmt: skip
"""The same, and roots that go, come back and are lost, one at a time."""
FAULTS = {
    "write": 20, "sleep_and_write": 8, "read": 10, "topic": 3, "snapshot": 8, "coordinate": 4, "set_back": 6,
    "leave": 8, "replace": 6, "come_back": 6, "come_back_empty": 5, "damage": 6, "lose_journals": 3, "repair": 6,
}  # fmt: skip
"""Roots that come back while others go, or come back empty, writers that sleep meanwhile, damaged and lost files,
checkpoints that are set back."""
JOURNALS = {"write": 1, "lose_journals": 1}
"""Only writes, and journals that are lost on two roots or on all."""
GATEWAYS = {
    "produce": 40, "write": 4, "read": 8, "topic": 3, "snapshot": 8, "coordinate": 4, "power_cut": 8,
    "leave": 6, "come_back": 6,
}  # fmt: skip
"""Kafka's producers at gateways that are killed, with roots that go and come back."""
RETURNS = {"replace": 1}
"""Only roots that come back while others go."""
WITH = {
    # What is read between a write and a power cut must be there after it, where another process writes.
    "power_cut": ("write", "read", "power_cut", "write", "read"),
    "replace": (
        *("settle", "write", "snapshot", "leave", "topic", "write", "write", "snapshot", "replace", "go_on"),
        *("write", "replace", "go_on"),
    ),
    # Process a knows the lost journal, b begins while it is away and decides a snapshot; another b repairs.
    "come_back_empty": (
        *("settle", "write:a", "snapshot:a", *["write:a"] * 8, "leave", "forget:b", "write:b", "snapshot:b"),
        *("come_back_empty", "forget:b", "repair:b", "leave", "write:a", "go_on"),
    ),
    "lose_journals": ("snapshot", "write", "snapshot", "lose_journals"),
    "set_back": ("write", "write", "set_back", "write", "write"),
}
"""What is around a job, so that it can show something. ``:a`` and ``:b`` are two processes, others may be either."""


def schedule_of(seed: int, weights: Mapping[str, int] = POWER, count: int = 24) -> list[Step]:
    """Return the steps of a seed."""
    rng = Random(seed)
    jobs = ["topic"]
    while len(jobs) < count:
        (job,) = rng.choices(list(weights), list(weights.values()))
        jobs += WITH.get(job, (job,))
    steps = []
    for job, _, process in (text.partition(":") for text in jobs):
        number = rng.randrange(2)
        steps.append(Step("ab".index(process) if process else number, job, rng.getrandbits(48)))
    return steps


def run(steps: Sequence[Step], template: Path, folder: Path) -> World:
    """Run a schedule in an empty folder.

    Args:
        template: the folder of a new store, which is copied.

    Raises:
        Violation: something that the store promises does not hold.
    """
    with pytest.MonkeyPatch.context() as patch:
        world = World(template, folder, PowerCuts(patch))
        world.deadliness = Random(steps[0].draw).choice((0.2, 1.0, 1.0))
        with one_thread(patch, world, steps[0].draw):
            for step in steps:
                world.run(step)
            world.end()
        return world


def violation_of(
    steps: Sequence[Step], template: Path, folder: Path, counts: Counter[str] | None = None
) -> Violation | None:
    """Return what a schedule ends in, None where all holds. Makes the folder, and removes it.

    Args:
        counts: what happened is added to it.
    """
    folder.mkdir()
    try:
        world = run(steps, template, folder)
        if counts is not None:
            counts.update(world.counts)
    except Violation as violation:
        return violation
    finally:
        shutil.rmtree(folder)
    return None


def shrunk(steps: Sequence[Step], template: Path, folder: Path) -> list[Step]:
    """Return a short schedule that still fails."""
    kept, size = list(steps), max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if shorter and violation_of(shorter, template, folder) is not None:
                kept = shorter
            else:
                at += size
        size //= 2
    return kept
