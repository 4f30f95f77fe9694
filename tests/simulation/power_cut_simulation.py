"""Ledgers on roots that lose power: a record is visible before its name is durable, and a power cut takes it back.

Beside the faults of ``ledger_simulation``: a record is flushed when its create answers; until then others see it, its
writer may be dead or asleep, and a power cut of one root or of all may lose it. With all roots, all processes may go.
The truth counts what is durable, so a process that acts on less is found out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.ledger.root import Completion, Create, Read
from tests.simulation.ledger_simulation import Parts, Process, Report, Root, Scenario, Simulation, Violation

_CUT = RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "simulated: the power failed before the folder was flushed.")


@dataclass(slots=True)
class PowerParts(Parts):
    """What a broken variant replaces.

    Attributes:
        readers_flush: a read returns only what it has made durable.
    """

    readers_flush: bool = True


class PowerCutSimulation(Simulation):
    """One schedule, with power cuts."""

    _parts: PowerParts

    def __init__(self, seed: int, scenario: Scenario, parts: PowerParts, *, cut_count: int = 8) -> None:
        super().__init__(seed, scenario, parts)
        self.lost_count = 0
        self._unflushed: list[set[int]] = [set() for _ in self._roots]
        self._living: list[Process] = []
        for _ in range(cut_count):
            self._later(self._rng.random() * 200, self._cut_power)

    def _begin(self, process: Process) -> None:
        if process not in self._living:
            self._living = [other_process for other_process in self._living if not other_process.is_dead] + [process]
        super()._begin(process)

    def _landed(self, number: int, position: int, data: bytes) -> None:
        self._unflushed[number].add(position)

    def _flush(self, number: int, position: int) -> None:
        if position in self._unflushed[number]:
            self._unflushed[number].discard(position)
            self.report.trace.append((self._now_ms, "flushed", number, position))
            super()._landed(number, position, self._roots[number].records[position])

    def _read(self, root: Root, operation: Read) -> Completion:
        completion = super()._read(root, operation)
        for at in range(len(completion.records) if self._parts.readers_flush else 0):
            self._flush(operation.root, operation.position + at)
        return completion

    def _answer(self, process: Process, completion: Completion) -> None:
        operation = completion.operation
        is_created = isinstance(operation, Create) and completion.error is None and not completion.exists
        if is_created and not process.is_dead and process.stalled_until_ms <= self._now_ms:
            assert isinstance(operation, Create)
            root = self._roots[operation.root]
            if root.records.get(operation.position) != operation.data or root.is_gone or root.is_empty:
                completion = replace(completion, error=_CUT)
            else:
                self._flush(operation.root, operation.position)
        super()._answer(process, completion)

    def _cut_power(self) -> None:
        rng, count = self._rng, len(self._roots)
        numbers = range(count) if rng.random() < 0.6 else [int(rng.random() * count)]
        keeps = rng.choice((0.0, 0.3, 0.7))
        for number in numbers:
            self.report.trace.append((self._now_ms, "power cut", number))
            for position in sorted(self._unflushed[number]):
                if rng.random() < keeps:
                    self._flush(number, position)
                else:
                    self._unflushed[number].discard(position)
                    del self._roots[number].records[position]
                    self.lost_count += 1
        if len(numbers) > 1 and rng.random() < 0.5:  # the same machine
            for process in self._living:
                if not process.is_dead:
                    self._crash(process)


def simulate_power_cuts(seed: int, scenario: Scenario, parts: PowerParts | None = None) -> tuple[Report, int]:
    """Run the schedule of a seed; return what it did, and how many records power cuts took.

    Raises:
        Violation: an invariant broke; its note names the seed.
    """
    simulation = PowerCutSimulation(seed, scenario, parts or PowerParts())
    try:
        return simulation.run(), simulation.lost_count
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {simulation.report.steps}")
        raise
