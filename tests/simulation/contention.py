"""Processes that write one ledger at the same time, in virtual time: what one entry costs them.

Every operation on a root takes a time drawn from the seed and succeeds. Nothing here is a fault: the only thing that
can go wrong is that the processes get in each other's way.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.record import TAG_SIZE_BYTES, genesis_hash
from spark_replog.ledger.root import Check, Completion, Create, Operation, Read
from spark_replog.ledger.types import LedgerSettings


@dataclass(slots=True)
class Cost:
    """What a run needed in all.

    Attributes:
        entries: decided, all of them wanted by some process.
        gets: journal objects asked for, absent ones included; creates: journal creates sent.
        claims: claims begun; checks: ``replog.json`` read again.
        latencies_ms: per entry, from the request to the answer, virtual.
        by_writer: the same for each writer.
        end_ms: when the last entry was answered.
    """

    entries: int = 0
    gets: int = 0
    creates: int = 0
    claims: int = 0
    checks: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    by_writer: list[list[float]] = field(default_factory=list)
    end_ms: float = 0.0

    def latency_ms(self, share: float) -> float:
        """Return a quantile of the latencies."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Contention:
    """Some processes and three roots (or another number).

    Args:
        seed: of every delay.
        process_count: writers.
        entry_count: entries that each of them wants, one after the other.
        pause_ms: mean of the exponentially distributed time between an answer and the next request, and before
            the first request; 0: all begin at once and go on at once.
        delay_ms: bounds of one operation's time.
    """

    def __init__(
        self,
        seed: int,
        process_count: int,
        entry_count: int,
        *,
        pause_ms: float = 0.0,
        delay_ms: tuple[float, float] = (1.0, 3.0),
        root_count: int = 3,
    ) -> None:
        self.cost = Cost()
        self._rng = random.Random(seed)
        self._pause_ms = pause_ms
        self._delay_ms = delay_ms
        self._journals: list[list[bytes]] = [[] for _ in range(root_count)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_no = 0
        self.now_ms = 0.0
        names = [f"root {root}" for root in range(root_count)]
        self._writers = [
            _Writer(
                self,
                LedgerCore(
                    names, genesis_hash("l"), self._rng.randbytes(16), LedgerSettings(), random.Random(seed + number)
                ),
                entry_count,
            )
            for number in range(process_count)
        ]

    def run(self, limit_ms: float = 600_000.0) -> Cost:
        """Run until every process has its entries, or until the limit."""
        for writer in self._writers:
            self.later(self.pause_ms(), writer.request)
        while self._events and self.now_ms < limit_ms:
            self.now_ms, _, step = heapq.heappop(self._events)
            step()
        self.cost.by_writer = [writer.latencies_ms for writer in self._writers]
        self.cost.claims = sum(writer.core.stats.claims for writer in self._writers)
        return self.cost

    def pause_ms(self) -> float:
        """Draw the time before a request."""
        return self._rng.expovariate(1 / self._pause_ms) if self._pause_ms else 0.0

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        """Run a step after a time."""
        self._event_no += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_no, step))

    def start(self, operation: Operation, answer: Callable[[Completion], None]) -> None:
        """Run an operation: it takes effect half-way."""
        half_ms = self._rng.uniform(*self._delay_ms) / 2

        def take_effect() -> None:
            completion = self._execute(operation)
            self.later(half_ms, lambda: answer(completion))

        self.later(half_ms, take_effect)

    def _execute(self, operation: Operation) -> Completion:
        journal = self._journals[operation.root]
        if isinstance(operation, Check):
            self.cost.checks += 1
            return Completion(operation)
        if isinstance(operation, Read):
            records = tuple(journal[operation.position : operation.position + operation.limit])
            is_ended = len(records) < operation.limit
            self.cost.gets += len(records) + is_ended
            before = journal[operation.position - 1] if operation.position else None
            return Completion(operation, records, is_ended, before=before)
        assert isinstance(operation, Create)
        self.cost.creates += 1
        if operation.position < len(journal):
            return Completion(operation, exists=True)
        assert operation.position == len(journal)
        journal.append(operation.data)
        return Completion(operation)


class _Writer:
    """One process: it wants its entries one after the other."""

    def __init__(self, world: Contention, core: LedgerCore, entry_count: int) -> None:
        self.core = core
        self._world = world
        self._left = entry_count
        self._since_ms = 0.0
        self.latencies_ms: list[float] = []
        self._wake_ms: float | None = None
        self._is_won = False

    def request(self) -> None:
        self._since_ms = self._world.now_ms
        self.core.begin(GoalKind.APPEND, self._world.now_ms)
        self._drive()

    def _drive(self) -> None:
        core, world = self.core, self._world
        while True:
            for operation in core.poll(world.now_ms):
                world.start(operation, self._answered)
            if core.settled is not None:
                _, is_won = core.settled
                core.settled = None
                self._is_won = is_won
            if self._is_won and core.phase is not Phase.GRACE:  # as the shell: the others' moment is the caller's
                self._take()
                return
            if core.phase is Phase.READY:
                core.propose(world._rng.randbytes(TAG_SIZE_BYTES) + b"command")
                continue
            if core.phase is Phase.DONE:
                core.begin(GoalKind.APPEND, world.now_ms)
                continue
            break
        wake_ms = core.progress.wake_at_ms
        if wake_ms is not None and wake_ms != self._wake_ms:
            self._wake_ms = wake_ms
            world.later(max(0.0, wake_ms - world.now_ms), self._woken)

    def _woken(self) -> None:
        self._wake_ms = None
        if self.core.phase is not Phase.IDLE:
            self._drive()

    def _answered(self, completion: Completion) -> None:
        self.core.complete(completion, self._world.now_ms)
        if self.core.phase is not Phase.IDLE:
            self.core.advance(self._world.now_ms)
            self._drive()

    def _take(self) -> None:
        world, cost = self._world, self._world.cost
        self._is_won = False
        self.core.finish()
        cost.entries += 1
        cost.latencies_ms.append(world.now_ms - self._since_ms)
        self.latencies_ms.append(cost.latencies_ms[-1])
        cost.end_ms = world.now_ms
        self._left -= 1
        if self._left:
            world.later(world.pause_ms(), self.request)
