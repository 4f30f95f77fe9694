"""A deterministic simulation of ledgers: one seeded scheduler owns every root operation.

Processes run the real core (``ledger.core``); time is virtual; every effect on a root is an event
whose moment, answer and fate are drawn from the seed. Faults: lost answers, slow and late creates,
crashes before and after an effect, stalled processes (zombies), roots gone and back, roots emptied.
``simulate(seed)`` twice gives the same trace.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.record import TAG_SIZE_BYTES, genesis_hash
from spark_replog.ledger.root import WENT_BACK, Check, Completion, Create, Operation, PutOut, Read
from spark_replog.ledger.types import LedgerSettings
from tests.simulation.ledger_invariants import COMMAND_SIZE_BYTES, Truth, Violation, commands_of

_GONE = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "simulated: the root does not answer.")
_STALE = RetriableError(ErrorCode.REPLOG_ROOT_STALE, "simulated: replog.json is missing.")
_GENESIS = genesis_hash("simulated")
_SETTINGS = LedgerSettings(
    grace_ms=8,
    tail_retry_ms=60,
    claim_backoff_ms=4,
    claim_backoff_max_ms=100,
    root_retry_ms=5,
    root_retry_max_ms=50,
    marker_check_ms=0,
)
_IMPATIENT = replace(_SETTINGS, claim_backoff_max_ms=2)
"""Of a process that claims over the others' heads: legal at any time, and what makes schedules nasty."""
_READ_ONLY = LedgerSettings(
    grace_ms=8, tail_retry_ms=60, root_retry_ms=5, root_retry_max_ms=50, read_only=True,
    marker_check_ms=0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a schedule is drawn from.

    Attributes:
        root_count: metadata roots.
        owner_count: processes that append.
        reader_count: processes that only read.
        command_count: commands per owner, half of them shared with the others (replays).
        step_count: storage operations after which the run stops.
        lost: probability that a create's answer is lost.
        failed: probability that an operation fails without effect.
        crash: probability, per answer, that its process dies instead of taking it.
        stall: probability, per answer, that its process sleeps first.
        outages: root outages to draw; emptied: whether a root may come back empty (at most a minority).
    """

    root_count: int = 3
    owner_count: int = 2
    reader_count: int = 1
    command_count: int = 6
    step_count: int = 150
    lost: float = 0.06
    failed: float = 0.02
    crash: float = 0.01
    stall: float = 0.02
    outages: int = 2
    emptied: bool = True


@dataclass(slots=True)
class Parts:
    """What a broken variant replaces.

    Attributes:
        make_core: makes a process's core.
        overwrites: creates replace what lies there (a store that ignores create-if-absent).
        has_identities: the fold knows commands again.
        checks_vouching: as in ``Truth``.
    """

    make_core: Callable[..., LedgerCore] = LedgerCore
    overwrites: bool = False
    has_identities: bool = True
    checks_vouching: bool = True


@dataclass(slots=True)
class Report:
    """What a run did.

    Attributes:
        trace: every event, comparable.
        steps: effects on roots; decided, acknowledged: entries; claims: begun.
    """

    seed: int
    trace: list[tuple[object, ...]] = field(default_factory=list)
    steps: int = 0
    decided: int = 0
    acknowledged: int = 0
    claims: int = 0


class Root:
    """One simulated root: a journal and whether it answers."""

    __slots__ = ("is_empty", "is_gone", "records")

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.is_gone = False
        self.is_empty = False


class Process:
    """One incarnation: a core, its fold and what it wants."""

    __slots__ = (
        "acknowledged_before", "applied", "core", "deadline_ms", "folded", "is_dead", "is_reader", "name",
        "sent", "stalled_until_ms", "todo", "wake_ms", "was_leading",
    )  # fmt: skip

    def __init__(self, name: str, core: LedgerCore, todo: list[bytes], *, is_reader: bool) -> None:
        self.name = name
        self.core = core
        self.todo = todo
        self.is_reader = is_reader
        self.applied: set[bytes] = set()
        self.folded = 0
        self.is_dead = False
        self.stalled_until_ms = 0.0
        self.deadline_ms = 0.0
        self.wake_ms: float | None = None
        self.was_leading = core.proposer.is_leading
        self.sent: list[bytes] = []
        self.acknowledged_before = 0


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, scenario: Scenario, parts: Parts) -> None:
        self.report = Report(seed)
        self._scenario = scenario
        self._parts = parts
        self._rng = random.Random(seed)
        self._now_ms = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._roots = [Root() for _ in range(scenario.root_count)]
        self._names = [f"root {root}" for root in range(scenario.root_count)]
        self._truth = Truth(scenario.root_count, checks_vouching=parts.checks_vouching)
        self._incarnations = 0

    def run(self) -> Report:
        """Run the schedule to its last step.

        Raises:
            Violation: an invariant broke.
        """
        scenario, rng = self._scenario, self._rng
        shared = [b"s" + i.to_bytes(3, "big") for i in range(scenario.command_count // 2)]
        for owner in range(scenario.owner_count):
            own_count = scenario.command_count - len(shared)
            todo = [bytes((owner, 0, 0, i)) for i in range(own_count)]
            todo = [command for pair in zip(shared, todo, strict=False) for command in pair] + todo[len(shared) :]
            self._later(rng.random() * 5, self._start, f"owner {owner}", todo, False)
        for reader in range(scenario.reader_count):
            self._later(rng.random() * 20, self._start, f"reader {reader}", [], True)
        for _ in range(scenario.outages):
            self._later(rng.random() * 150, self._outage)
        events = self._events
        while events and self.report.steps < scenario.step_count:
            self._now_ms, _, function, arguments = heapq.heappop(events)
            function(*arguments)
        self.report.decided = len(self._truth.decided)
        self.report.acknowledged = self._truth.acknowledged
        return self.report

    def _later(self, delay_ms: float, function: Callable[..., object], *arguments: object) -> None:
        self._at(self._now_ms + delay_ms, function, *arguments)

    def _at(self, at_ms: float, function: Callable[..., object], *arguments: object) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_ms, self._sequence, function, arguments))

    def _delay_ms(self) -> float:
        kind = self._rng.random()
        if kind < 0.80:
            return 0.5 + kind * 2
        if kind < 0.97:
            return 3 + (kind - 0.80) * 100
        return 50 + (kind - 0.97) * 10_000

    # -- processes --------------------------------------------------------------------------------

    def _start(self, name: str, todo: list[bytes], is_reader: bool) -> None:
        self._incarnations += 1
        incarnation = self._incarnations.to_bytes(16, "big")
        settings = _READ_ONLY if is_reader and self._rng.random() < 0.7 else _SETTINGS
        if settings is _SETTINGS and self._rng.random() < 0.8:
            settings = _IMPATIENT
        core = self._parts.make_core(self._names, _GENESIS, incarnation, settings, self._rng)
        process = Process(name, core, todo, is_reader=is_reader)
        self.report.trace.append((self._now_ms, "starts", name))
        self._begin(process)

    def _begin(self, process: Process) -> None:
        if process.is_dead:
            return
        now_ms = self._now_ms
        process.deadline_ms = now_ms + 30 + self._rng.random() * 400
        process.acknowledged_before = self._truth.acknowledged
        if process.todo and not process.is_reader:
            process.core.begin(GoalKind.APPEND, now_ms)
        else:
            process.core.begin(GoalKind.READ, now_ms)
        self._drive(process)

    def _drive(self, process: Process) -> None:
        """What the shell's driver does, without its threads."""
        core = process.core
        while True:
            for operation in core.poll(self._now_ms):
                self._send(process, operation)
            self._look(process)
            if core.phase is Phase.READY:
                if not self._propose(process):
                    self._end(process)
                    return
                continue
            if core.phase is Phase.DONE:
                if (not process.todo or process.is_reader) and not core.progress.is_tail_unclear:
                    self._truth.refreshed(core.prefix.length, process.acknowledged_before)
                self._end(process)
                return
            break
        if self._now_ms >= process.deadline_ms:
            self._end(process)  # a caller's timeout: outcome unknown, asked again by its identity
            return
        wake_ms = core.progress.wake_at_ms
        wake_ms = process.deadline_ms if wake_ms is None else min(wake_ms, process.deadline_ms)
        if process.wake_ms is None or wake_ms < process.wake_ms:
            process.wake_ms = wake_ms
            self._at(max(self._now_ms, wake_ms), self._wake, process)

    def _wake(self, process: Process) -> None:
        if process.wake_ms is not None and process.wake_ms <= self._now_ms:
            process.wake_ms = None
        if process.is_dead or process.core.phase is Phase.IDLE:
            return
        if process.stalled_until_ms > self._now_ms:
            self._at(process.stalled_until_ms, self._wake, process)
            return
        self._drive(process)

    def _end(self, process: Process) -> None:
        process.core.finish()
        process.todo = [command for command in process.todo if command not in process.applied]
        self._later(self._rng.random() * (4 if process.todo else 40), self._begin, process)

    def _look(self, process: Process) -> None:
        """Fold, answer callers, and hold the process against the truth."""
        core = process.core
        length = core.prefix.length
        if length > process.folded:
            self._truth.reported(core, process.folded)
            for index in range(process.folded, length):
                process.applied.update(commands_of(core.prefix.payloads[index]))
            process.folded = length
            self._release(process)
        if core.settled is not None:
            index, is_won = core.settled
            core.settled = None
            if is_won:
                self._truth.answered(index, process.sent)
                process.todo = [command for command in process.todo if command not in process.sent]
            self.report.trace.append((self._now_ms, process.name, "settles", index, is_won))
        is_leading = core.proposer.is_leading
        if is_leading and not process.was_leading:
            self._truth.recovered(core)
            self.report.claims += 1
        process.was_leading = is_leading

    def _release(self, process: Process) -> None:
        process.core.prefix.release(process.folded)

    def _propose(self, process: Process) -> bool:
        applied = process.applied if self._parts.has_identities else ()
        commands = [command for command in process.todo if command not in applied]
        if not commands:
            return False
        commands = commands[: 1 + (self._rng.random() < 0.2)]
        process.core.propose(self._rng.randbytes(TAG_SIZE_BYTES) + b"".join(commands))
        if process.core.phase is Phase.LEAD:  # else a claim comes first, and what was sent before keeps its place
            process.sent = commands
        return True

    # -- operations -------------------------------------------------------------------------------

    def _send(self, process: Process, operation: Operation) -> None:
        rng = self._rng
        delay_ms = self._delay_ms()
        if isinstance(operation, Create):
            fate = rng.random()
            if fate < self._scenario.lost:
                self._lose(process, operation, delay_ms)
                return
            if fate < self._scenario.lost + self._scenario.failed:
                self._later(delay_ms, self._answer, process, Completion(operation, error=_GONE))
                return
        if rng.random() < 0.5:  # the effect now, the answer later: it may be old by then
            self._later(delay_ms, self._answer, process, self._execute(operation))
        else:
            self._later(delay_ms, self._execute_and_answer, process, operation)

    def _lose(self, process: Process, operation: Create, delay_ms: float) -> None:
        """The answer is lost: the create landed, lands later than that is noticed, or never does."""
        rng = self._rng
        fate = rng.random()
        if fate < 0.4:
            self._execute(operation)
        elif fate < 0.9:
            self._later(self._delay_ms() + rng.random() * 60, self._execute, operation)
        unknown = Completion(operation, error=_GONE)
        self._later(delay_ms, self._answer, process, unknown)

    def _execute_and_answer(self, process: Process, operation: Operation) -> None:
        if process.is_dead and not isinstance(operation, Create):
            return
        self._answer(process, self._execute(operation))

    def _execute(self, operation: Operation) -> Completion:
        self.report.steps += 1
        root = self._roots[operation.root]
        if root.is_gone:
            return Completion(operation, error=_GONE)
        if isinstance(operation, Check):
            if root.is_empty:
                return Completion(operation, error=_STALE)
            return Completion(operation)
        if isinstance(operation, Read):
            return self._read(root, operation)
        if root.is_empty:
            return Completion(operation, error=_STALE)
        if isinstance(operation, PutOut):
            raise Violation(f"root {operation.root} is put out, and it forgot nothing")
        if operation.position in root.records and not self._parts.overwrites:
            self.report.trace.append((self._now_ms, "exists", operation.root, operation.position))
            return Completion(operation, exists=True)
        root.records[operation.position] = operation.data
        self.report.trace.append((self._now_ms, "lands", operation.root, operation.position, operation.data))
        self._landed(operation.root, operation.position, operation.data)
        return Completion(operation)

    def _landed(self, number: int, position: int, data: bytes) -> None:
        """Take a record that is durable in a root's journal."""
        self._truth.landed(number, position, data)

    def _read(self, root: Root, operation: Read) -> Completion:
        records = {} if root.is_empty else root.records
        read_records: list[bytes] = []
        position = operation.position
        limit = min(operation.limit, 1 + int(self._rng.random() * 6))  # a reader may be slow
        while len(read_records) < limit and position in records:
            read_records.append(root.records[position])
            position += 1
        before = records.get(operation.position - 1) if operation.finds_gaps else None
        return Completion(operation, tuple(read_records), ended=len(read_records) < limit, before=before)

    def _answer(self, process: Process, completion: Completion) -> None:
        if process.is_dead:
            return
        if process.stalled_until_ms > self._now_ms:
            self._at(process.stalled_until_ms, self._answer, process, completion)
            return
        fate = self._rng.random()
        scenario = self._scenario
        if fate < scenario.crash:
            self._crash(process)
            return
        if fate < scenario.crash + scenario.stall:
            process.stalled_until_ms = self._now_ms + self._rng.random() * 300
        process.core.complete(completion, self._now_ms)
        number = completion.operation.root
        if process.core.roots[number].standing in WENT_BACK and not self._roots[number].is_empty:
            raise Violation(f"a process takes root {number} for one that forgot")
        if process.core.fatal is not None:
            raise Violation(f"I5 a process stops: {process.core.fatal}")
        process.core.advance(self._now_ms)
        self._look(process)
        if process.core.phase is not Phase.IDLE:
            self._drive(process)

    def _crash(self, process: Process) -> None:
        """The process is gone; what it sent still lands. Its successor replays what was not applied."""
        process.is_dead = True
        self.report.trace.append((self._now_ms, process.name, "crashes"))
        self._later(self._rng.random() * 30, self._start, process.name, process.todo, process.is_reader)

    def _outage(self) -> None:
        rng = self._rng
        number = int(rng.random() * len(self._roots))
        root = self._roots[number]
        minority = (len(self._roots) - 1) // 2
        if self._scenario.emptied and sum(peer.is_empty for peer in self._roots) < minority and rng.random() < 0.3:
            root.is_empty = True
            self.report.trace.append((self._now_ms, "emptied", number))
            return
        root.is_gone = True
        self.report.trace.append((self._now_ms, "gone", number))
        self._later(20 + rng.random() * 200, self._return, number)

    def _return(self, number: int) -> None:
        self._roots[number].is_gone = False
        self.report.trace.append((self._now_ms, "back", number))


def scenario_of(seed: int) -> Scenario:
    """Return the scenario that the default runs draw for a seed."""
    rng = random.Random(seed ^ 0x5EED)
    kind = rng.random()
    step_count = 40 + int(rng.random() * 111)
    faults = rng.random()
    if kind < 0.2:
        return Scenario(
            root_count=1, owner_count=2 + (kind < 0.1), step_count=step_count, outages=1, emptied=False,
            lost=0.15 * faults,
        )  # fmt: skip
    if kind < 0.23:
        return Scenario(root_count=2, step_count=step_count, lost=0.15 * faults)
    return Scenario(
        root_count=5 if kind > 0.85 else 3,
        owner_count=3 if rng.random() < 0.4 else 2,
        step_count=step_count,
        lost=0.15 * faults,
        outages=int(rng.random() * 4),
    )


def simulate(seed: int, scenario: Scenario | None = None, parts: Parts | None = None) -> Report:
    """Run the schedule of a seed.

    Raises:
        Violation: an invariant broke; its note names the seed.
    """
    simulation = Simulation(seed, scenario or scenario_of(seed), parts or Parts())
    try:
        return simulation.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {simulation.report.steps}")
        raise


__all__ = [
    "COMMAND_SIZE_BYTES",
    "Parts",
    "Report",
    "Scenario",
    "Simulation",
    "Violation",
    "scenario_of",
    "simulate",
]
