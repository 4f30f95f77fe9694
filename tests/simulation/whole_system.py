"""The whole system over one decided log: processes fold, write, read, retain, compact, collect and snapshot at once.

The consensus below has a simulation of its own (``ledger_simulation``); here the log is the sequence of what it
decided. The processes run the product's own folds, plans and judgements. A job of a process is a generator; one
seeded schedule says which job goes on next, so any of them stalls anywhere, for as long as it likes. A schedule is a
list of steps, each with a seed of its own: what fails is replayed, and shrunk by leaving steps out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import ObjectId
from spark_replog.ledger.types import AppendOutcome
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import TopicInit
from spark_replog.read.fetch_plan import FetchSlice
from spark_replog.snapshot import DecidedSnapshot, FrozenState, PageMissingError
from spark_replog.storage.object_store import ObjectInfo
from spark_replog.storage.paths import data_key
from tests.simulation.whole_checks import Checker, Row, Violation

T = TypeVar("T")
LEDGER, BROKERS = "L", (0, 1, 2)
DELETED, COMPACTED, RISKY, SHORT = "a" * 32, "b" * 32, "c" * 32, "d" * 26
"""Topic ids: one topic whose rows age out, one that is compacted by key, one that takes any leader. The last begins the
ids of topics of one name, each of which lives until someone deletes it."""
ROW_BYTES = 150_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_SEGMENT = ("segment.bytes", "1048576")
_AGES = (_SEGMENT, ("retention.ms", str(2 * HOUR_MS)))
_KEYED = (_SEGMENT, ("cleanup.policy", "compact"), ("delete.retention.ms", str(HOUR_MS)))
_UNCLEAN = (_SEGMENT, ("unclean.leader.election.enable", "true"))
_TOPICS = (
    TopicInit(DELETED, "orders", ((0, 1, 2), (1, 2, 0)), _AGES),
    TopicInit(COMPACTED, "latest", ((2, 0, 1),), _KEYED),
    TopicInit(RISKY, "risky", ((1, 2, 0),), _UNCLEAN),
    TopicInit(f"{SHORT}{0:06d}", "short", ((0, 2, 1),), (_SEGMENT,)),
)
_FIRST_COMMANDS = [encode_command(topic) for topic in _TOPICS]
PARTITIONS = ((DELETED, 0), (DELETED, 1), (COMPACTED, 0))
Job = Generator[None]


class Step(NamedTuple):
    """One job of one process goes on to its next stop, or begins."""

    process: int
    job: str
    draw: int


@dataclass
class Rules:
    """What a broken variant replaces beside the product's own functions.

    Attributes:
        plans_again: readers ask the newest fold where objects are gone.
        is_old_page: (base_no of a page, decided number) -> whether it may be collected if nothing names it.
        lists_first: garbage is listed by a floor that is decided afterwards.
        adopts_loser: a process whose snapshot lost goes on from its own.
        renumbers: compaction by key gives the rows that stay new offsets.
        copies_to: how many replicas of a compacted object are written.
    """

    plans_again: bool = True
    is_old_page: Callable[[int, int], bool] = lambda base_no, decided_no: base_no < decided_no
    lists_first: bool = False
    adopts_loser: bool = False
    renumbers: bool = False
    copies_to: int = len(BROKERS)


class Lost(Exception):
    """The answer to a proposal was lost; it was decided, or not."""


class Store:
    """Data objects of one broker: `storage.object_store.ObjectStore` as garbage collection uses it."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world = world
        self._broker_id = broker_id

    def list_keys(self, prefix: str) -> Iterator[ObjectInfo]:
        self._world.check_root(self._broker_id)
        for key in sorted(self._world.keys[self._broker_id]):
            if key.startswith(prefix) and key in self._world.keys[self._broker_id]:
                yield ObjectInfo(key, 1)


class Process:
    """One incarnation: `ledger.ledger.Ledger` as far as the jobs use it, with the rules of ``SnapshotKeeper``."""

    ledger_id = LEDGER

    def __init__(self, world: World, number: int, incarnation: int) -> None:
        self.world = world
        self.name = f"p{number}.{incarnation}"
        self.skew_ms = Random(f"{number}/{incarnation}").choice((0, 0, 0, DAY_MS, -DAY_MS))
        self.lock = nullcontext()
        self.state = TopicLedgerState(LEDGER, cache_bytes=4096)
        self.state.load_page = world.load_page
        self.jobs: dict[str, Job] = {}
        self.stored: tuple[FrozenState, str] | None = None
        self._derived = (0, "")
        self._seen = self.state.snapshot
        self.fold(1)  # what it begins with is the topics

    @property
    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    @property
    def retention_now_ms(self) -> int:
        return min(self.clock_ms, self.state.append_time_ms)

    def refresh(self) -> None:
        self.fold(len(self.world.decided))

    def fold(self, count: int) -> None:
        """Fold up to `count` entries in all."""
        restored_count = 0
        while (index := self.state.applied_index + 1) < count:
            try:
                results = self.state.apply(index, self.world.decided[index])
                self._folded()
            except PageMissingError:
                restored_count += 1
                if restored_count > 2:
                    raise Violation(f"{self.name} restores for ever") from None
                self.restore_newest()
                continue
            self.world.checker.folded(self.name, index, results)

    def ask(self, question: Callable[[TopicLedgerState], T]) -> T:
        for _ in range(3):
            try:
                return question(self.state)
            except PageMissingError:
                index = self.state.applied_index
                self.restore_newest()
                self.fold(index + 1)
        raise Violation(f"the pages of the newest snapshot are gone, says {self.name}")

    def append(self, propose: Callable[[TopicLedgerState], Any], *, timeout_ms: int = 0) -> AppendOutcome:
        self.refresh()
        proposed = self.ask(propose)
        if proposed is None:
            return AppendOutcome(-1, None)
        commands = [proposed] if isinstance(proposed, bytes) else list(proposed)
        rider = [] if self.stored is None else [self.rider()]
        index = self.world.decide([*rider, *commands])
        if self.world.rng.random() < 0.15:
            raise Lost
        self.refresh()
        results = self.world.checker.results[index][len(rider) :]
        return AppendOutcome(index, results[-1] if results else None, results)

    # -- snapshots, as ledger/snapshot_keeper does it ------------------------------------------------

    def rider(self) -> bytes:
        assert self.stored is not None
        frozen, name = self.stored
        return self.state.encode_snapshot_commit(frozen.snapshot_no, frozen.applied_index, name)

    def _folded(self) -> None:
        snapshot = self.state.snapshot
        if snapshot == self._seen:
            return
        self._seen = snapshot
        stored, self.stored = self.stored, None
        is_own = stored is not None and (stored[1] == snapshot.name or self.world.rules.adopts_loser)
        if stored is not None and is_own:
            self.state.adopted(stored[0])
            self._derived = (snapshot.no, snapshot.name)
        elif self._derived[1] == snapshot.name:
            self._derived = (snapshot.no, snapshot.name)

    def is_derived(self) -> bool:
        """Return whether the state was made from the decided snapshot."""
        return self._derived[0] == self.state.snapshot.no

    def restore_newest(self) -> None:
        """Become the state of the newest decided snapshot; the entries after it follow."""
        name = self.world.checker.state.snapshot.name
        if not name:
            raise Violation(f"{self.name} misses a page before the first snapshot")
        self.restore(name)

    def restore(self, name: str) -> None:
        head, decided = self.world.heads[name]
        self.state.restore(head, self.world.load_page)
        self.state.snapshot = self._seen = decided
        self._derived, self.stored = (decided.no, name), None


@dataclass
class World:
    """What all processes share: the decided log, storage, brokers that come and go, and time."""

    rules: Rules
    rng: Random = field(default_factory=Random)
    now_ms: int = 1_000 * DAY_MS
    decided: list[bytes] = field(default_factory=list)
    pages: dict[str, bytes] = field(default_factory=dict)
    heads: dict[str, tuple[bytes, DecidedSnapshot]] = field(default_factory=dict)
    content: dict[ObjectId, dict[int, tuple[tuple[int | None, Row], ...]]] = field(default_factory=dict)
    outage: set[int] = field(default_factory=set)
    lost: int | None = None
    loss_no: int = 0
    carried: dict[ObjectId, bytes] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    unique: int = 0

    def __post_init__(self) -> None:
        self.keys: dict[int, set[str]] = {broker_id: set() for broker_id in BROKERS}
        self.checker = Checker(self.may_hold, self.content, self.pages, self.heads)
        self.decide(_FIRST_COMMANDS)
        self.processes = [Process(self, number, 0) for number in range(3)]

    @property
    def away(self) -> set[int]:
        """Return the brokers that do not answer: out for a while, or lost and not whole again."""
        return self.outage if self.lost is None else self.outage | {self.lost}

    def next_unique(self) -> int:
        self.unique += 1
        return self.unique

    def decide(self, commands: list[bytes]) -> int:
        self.decided.append(encode_entry(commands))
        self.checker.decided(len(self.decided) - 1, self.decided[-1])
        return len(self.decided) - 1

    # -- storage ------------------------------------------------------------------------------------

    def check_root(self, broker_id: int) -> None:
        if broker_id in self.away:
            raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "simulated: the root does not answer.")

    def holds(self, broker_id: int, item: ObjectId) -> bool:
        return data_key(LEDGER, *item) in self.keys[broker_id]

    def lose(self, broker_id: int) -> None:
        """Take all that a root holds."""
        self.lost, self.loss_no = broker_id, self.loss_no + 1
        self.keys[broker_id].clear()

    def may_hold(self, broker_id: int, item: ObjectId) -> bool:
        """Return whether the log may name the broker: what a lost root held, it holds again when it is whole."""
        return broker_id == self.lost or self.holds(broker_id, item)

    def put(self, broker_id: int, item: ObjectId) -> None:
        self.check_root(broker_id)
        self.keys[broker_id].add(data_key(LEDGER, *item))

    def delete(self, broker_id: int, item: ObjectId) -> None:
        self.check_root(broker_id)
        if self.holds(broker_id, item):
            self.checker.deletes(item)
            self.keys[broker_id].discard(data_key(LEDGER, *item))

    def cluster_of(self, process: Process) -> Any:
        """Return what maintenance takes for a cluster."""
        brokers = SimpleNamespace(
            broker_ids=BROKERS, store=lambda broker_id: Store(self, broker_id), url=str, check_root=self.check_root
        )
        config = SimpleNamespace(delivery_timeout_ms=0)
        clock = SimpleNamespace(now_ms=lambda: process.clock_ms)
        return SimpleNamespace(brokers=brokers, config=config, clock=clock, topic_ledger=lambda _: process)

    def load_page(self, name: str) -> bytes:
        if name not in self.pages:
            raise PageMissingError(ErrorCode.REPLOG_SNAPSHOT_MISSING, f"simulated: page {name} is gone.")
        return self.pages[name]

    def store_head(self, frozen: FrozenState, decided: DecidedSnapshot) -> str:
        name = f"{frozen.applied_index:020d}-{hashlib.sha256(frozen.head).hexdigest()[:32]}"
        self.heads[name] = (frozen.head, decided)
        return name

    def fetch(self, part: FetchSlice) -> list[tuple[int, Row]] | None:
        """Return rows with their offsets, None where no broker has the object any more.

        Raises:
            RetriableError: brokers that may have it are away.
        """
        item = part.object.id
        holders = [broker for broker in BROKERS if self.holds(broker, item)]
        if part.object.inline:
            if part.object.inline != self.carried[item]:
                raise Violation(f"{item} has other bytes than the entry that carried it")
        elif not holders:
            return None
        elif self.away.issuperset(holders):
            self.check_root(holders[0])
        stored = self.content[item][part.start_byte]
        rows = [(part.base_offset + at if offset is None else offset, row) for at, (offset, row) in enumerate(stored)]
        if len(rows) != part.row_count:
            raise Violation(f"a section of {item} has {len(rows)} rows, not {part.row_count}")
        return [row for row in rows if part.start_offset <= row[0] < part.end_offset]

    # -- the schedule -------------------------------------------------------------------------------

    def restart(self, number: int) -> None:
        """A process dies, and another begins: from a snapshot that it finds, or from the first entry."""
        process = self.processes[number] = Process(self, number, self.next_unique())
        names = [self.checker.state.snapshot.name] * 2 + [self.rng.choice([*self.heads, ""])]
        name = self.rng.choice(names)
        if name in self.heads:
            process.restore(name)

    def step(self, step: Step, jobs: dict[str, Callable[[World, Process], Job]]) -> None:
        self.rng.seed(step.draw)
        self.now_ms += 1_000
        process = self.processes[step.process]
        if step.job == "restart":
            self.restart(step.process)
        elif step.job == "clock":
            self.now_ms += self.rng.choice((-DAY_MS, DAY_MS, HOUR_MS, HOUR_MS, 10 * HOUR_MS))
        elif step.job == "outage":
            self.outage = set() if self.away else {self.rng.choice(BROKERS)}
        else:
            job = process.jobs.get(step.job) or process.jobs.setdefault(step.job, jobs[step.job](self, process))
            try:
                for _ in range(self.rng.choice((1, 1, 2, 30))):
                    next(job)
            except (StopIteration, Lost, ReplogError):  # what fails is started again later
                del process.jobs[step.job]
