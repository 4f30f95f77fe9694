"""Journals that are truncated under the processes that read and write them: I1 to I8.

The schedule, the faults and the processes are those of ``ledger_simulation``. Processes also store snapshots of their
folds, have them decided, put markers on roots and delete what is below them, at any time and beside each other; they
die between any two of these steps, and begin cold from a marker or from a head that they find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spark_replog.ledger.goal import Phase
from spark_replog.ledger.root import Completion, Create, Operation, PutMarker, Read
from spark_replog.ledger.snapshot_files import Marker, SnapshotHead
from spark_replog.snapshot import DecidedSnapshot
from tests.simulation.ledger_invariants import Truth, Violation, commands_of
from tests.simulation.ledger_simulation import Parts, Process, Report, Root, Scenario, Simulation

_COMMIT = b"S"[0]


@dataclass(slots=True)
class Rules(Parts):
    """What a broken variant replaces of the truncation.

    Attributes:
        looks_after_create, looks_after_read: for a new marker.
        deletes_first: before the marker is there.
        kept_count_min: 0 truncates the last record too.
        full: probability that what a snapshot holds is not kept for roots that lack it, as if memory were full.
        is_stale: a truncator takes any snapshot that it once knew, and the number of the next free marker.
    """

    looks_after_create: bool = True
    looks_after_read: bool = True
    deletes_first: bool = False
    kept_count_min: int = 1
    is_stale: bool = False
    full: float = 0.1


@dataclass(slots=True)
class Head:
    """A stored snapshot, on some roots."""

    head: SnapshotHead
    applied: frozenset[bytes]
    roots: set[int]


@dataclass(slots=True)
class TruncationReport(Report):
    """What the truncation did in a run, beside `Report`."""

    markers: int = 0
    deleted: int = 0
    ghosts: int = 0
    jumps: int = 0
    cold: int = 0
    lagging: int = 0


class TruncationTruth(Truth):
    """The ghost state where records below a root's marker are nothing, whether they lie there or not."""

    def __init__(self, root_count: int) -> None:
        super().__init__(root_count)
        self.markers: list[list[Marker]] = [[] for _ in range(root_count)]
        self._indexes: list[dict[int, int]] = [{} for _ in range(root_count)]

    def base(self, root: int) -> int:
        return self.markers[root][-1].position if self.markers[root] else 0

    def landed(self, root: int, position: int, data: bytes) -> None:
        if position < self.base(root):
            return
        before = len(self.decided)
        super().landed(root, position, data)
        del before

    def marker_landed(self, root: int, marker: Marker, positions: set[int]) -> None:
        before = self.markers[root][-1] if self.markers[root] else None
        if before is not None and (marker.position < before.position or marker.base.index < before.base.index):
            raise Violation(f"I7 the marker of root {root} goes back from {before.position} to {marker.position}")
        live = {position for position in positions if position >= self.base(root)}
        if marker.position > max(live, default=0):
            raise Violation(f"I7 the marker of root {root} covers its last record")
        index = marker.base.index
        if index >= len(self.decided) or self.decided[index] != marker.base.entry_hash:
            raise Violation(f"I7 the marker of root {root} names a snapshot of what is not decided")
        self.markers[root].append(marker)
        self._covered[root] = self._vouched[root] = max(self._vouched[root], index)
        self._covered[root] = index

    def deleted(self, root: int, position: int) -> None:
        if position >= self.base(root):
            raise Violation(f"I8 position {position} of root {root} is deleted above the marker")

    def restored(self, head: Head) -> None:
        """Check a snapshot that a process takes: exactly what is decided up to its index."""
        index = head.head.base.index
        if self.decided[index] != head.head.base.entry_hash:
            raise Violation(f"I5 a snapshot of index {index} is not of the decided log")
        if head.applied != {command for command, at in self.commands.items() if at <= index}:
            raise Violation(f"I5 the snapshot of index {index} does not hold what was decided")


class TruncatingRoot(Root):
    __slots__ = ("markers",)

    def __init__(self) -> None:
        super().__init__()
        self.markers: list[Marker] = []


class Truncating(Simulation):
    """One schedule with truncation."""

    def __init__(self, seed: int, scenario: Scenario, rules: Rules) -> None:
        super().__init__(seed, scenario, rules)
        self.report: TruncationReport = TruncationReport(seed)
        self._rules = rules
        self._roots: list[TruncatingRoot] = [TruncatingRoot() for _ in range(scenario.root_count)]
        self._truth: TruncationTruth = TruncationTruth(scenario.root_count)
        self._heads: dict[str, Head] = {}
        self._commits: dict[bytes, tuple[int, str]] = {}
        self._decided: dict[Process, DecidedSnapshot] = {}
        self._known: dict[Process, list[str]] = {}

    # -- processes --------------------------------------------------------------------------------

    def _begin(self, process: Process) -> None:
        if process not in self._decided:
            self._decided[process], self._known[process] = DecidedSnapshot(), []
            self._begin_cold(process)
        super()._begin(process)

    def _begin_cold(self, process: Process) -> None:
        """Begin with a head that a listing shows, or with what the markers say."""
        names = [
            name for name, head in self._heads.items() if any(not self._roots[root].is_gone for root in head.roots)
        ]
        if names and self._rng.random() < 0.5:
            name = self._rng.choice(names)
            head = self._heads[name]
            process.core.start_at(head.head.base, name, head.head.points)
            self._restore(process, head)
            self.report.cold += 1

    def _restore(self, process: Process, head: Head) -> None:
        self._truth.restored(head)
        process.applied = set(head.applied)
        process.folded = head.head.base.index + 1
        self._decided[process] = head.head.decided

    def _look(self, process: Process) -> None:
        core = process.core
        if core.damaged_roots(1):
            raise Violation(f"a process takes a root for damaged: {core.roots[core.damaged_roots(1)[0]].error}")
        if core.prefix.base.index >= process.folded and process.folded not in core.prefix.payloads:
            self._truth.reported(core, core.prefix.base.index)
            self._restore(process, self._heads[core.prefix.snapshot_name])
            self.report.jumps += 1
        for index in range(process.folded, core.prefix.length):
            for command in commands_of(core.prefix.payloads[index]):
                base_no, name = self._commits.get(command, (-1, ""))
                if base_no == self._decided[process].no:
                    base = self._heads[name].head.base
                    self._decided[process] = DecidedSnapshot(base_no + 1, base.index, name, index)
                    core.snapshot = base, name
                    self._known[process].append(name)
        super()._look(process)

    def _release(self, process: Process) -> None:
        prefix, limit = process.core.prefix, self._decided[process].index
        prefix.release(prefix.length, limit)
        if self._rng.random() < self._rules.full:
            while prefix.base.index < min(limit, prefix.length - 2):
                index = prefix.base.index + 1
                del prefix.payloads[index]
                prefix.base = prefix.base_at(index)

    def _end(self, process: Process) -> None:
        super()._end(process)
        if process.is_reader or process.is_dead or not process.folded:
            return
        if self._rng.random() < 0.35:
            self._freeze(process)
        if self._rng.random() < 0.35:
            self._truncate(process)

    def _propose(self, process: Process) -> bool:
        if self._rng.random() < 0.2 and process.folded:
            self._freeze(process)
        return super()._propose(process)

    # -- snapshots and truncation -----------------------------------------------------------------

    def _freeze(self, process: Process) -> None:
        core, index = process.core, process.folded - 1
        if core.prefix.length != process.folded or core.prefix.base.index > index:
            return
        points = tuple(core.points_at(index))
        head = SnapshotHead(core.prefix.base_at(index), self._decided[process], points, b"")
        number = len(self._heads)
        name = f"{index:020d}-{number:032x}"
        self._heads[name] = Head(head, frozenset(process.applied), set())
        command = bytes((_COMMIT, *number.to_bytes(3, "big")))
        self._commits[command] = self._decided[process].no, name
        for root in range(len(self._roots)):
            self._later(self._delay_ms(), self._store, process, root, name, command)

    def _store(self, process: Process, root: int, name: str, command: bytes) -> None:
        if self._roots[root].is_gone or process.is_dead:
            return
        head = self._heads[name]
        head.roots.add(root)
        if len(head.roots) == self._truth.majority and command not in process.todo:
            process.todo.insert(0, command)

    def _truncate(self, process: Process) -> None:
        names, rng = self._known[process], self._rng
        if not names:
            return
        name = rng.choice(names) if self._rules.is_stale else self._decided[process].name
        head = self._heads[name].head
        for root, state in enumerate(process.core.roots):
            if self._rules.is_stale or not self._rules.kept_count_min:
                point = head.points[root]
                marker = Marker(point.position - self._rules.kept_count_min, head.base, name)
                if marker.position <= 0 or (not self._rules.is_stale and marker.position <= self._truth.base(root)):
                    continue
            else:
                next_marker = process.core.truncation(root, head, name, 1 + (rng.random() < 0.3))
                if next_marker is None:
                    continue
                marker = next_marker
            number = len(self._roots[root].markers) if self._rules.is_stale else state.floor.marker_no
            steps: list[Callable[[], bool]] = [lambda r=root, n=number, m=marker: self._put_marker(r, n, m)]
            positions = sorted((place for place in self._roots[root].records if place < marker.position), reverse=True)
            deletes = [lambda r=root, p=position: self._delete(r, p) for position in positions]
            self._step(process, deletes + steps if self._rules.deletes_first else steps + deletes)

    def _step(self, process: Process, steps: list[Callable[[], bool]]) -> None:
        """One after the other, with time between; the process may die, or a step fail, and the rest never happens."""
        if steps and not process.is_dead and steps[0]():
            self._later(self._delay_ms() / 2, self._step, process, steps[1:])

    def _put_marker(self, number: int, marker_no: int, marker: Marker) -> bool:
        root = self._roots[number]
        if root.is_gone or root.is_empty or marker_no != len(root.markers):
            return False
        self._truth.marker_landed(number, marker, set(root.records))
        root.markers.append(marker)
        self.report.markers += 1
        self.report.trace.append((self._now_ms, "marker", number, marker.position, marker.base.index))
        return True

    def _delete(self, number: int, position: int) -> bool:
        root = self._roots[number]
        if root.is_gone:
            return False
        self._truth.deleted(number, position)
        root.records.pop(position, None)
        self.report.deleted += 1
        return True

    # -- operations -------------------------------------------------------------------------------

    def _execute(self, operation: Operation) -> Completion:
        if isinstance(operation, PutMarker):
            if self._roots[operation.root].is_gone:
                return super()._execute(Read(operation.root, 0, 1, 0))
            if self._put_marker(operation.root, operation.marker_no, operation.marker):
                self.report.lagging += 1
            return Completion(operation)
        if isinstance(operation, Create) and operation.position < self._truth.base(operation.root):
            self.report.ghosts += 1
        return super()._execute(operation)

    def _answer(self, process: Process, completion: Completion) -> None:
        """The look for a marker comes at any time behind the create or the read."""
        operation = completion.operation
        is_create = isinstance(operation, Create) and completion.error is None and not completion.exists
        looks = is_create and self._rules.looks_after_create
        if isinstance(operation, Read) and completion.error is None and self._rules.looks_after_read:
            looks = bool(completion.records) or operation.checks_marker
        if looks and not process.is_dead:
            self._later(self._delay_ms() / 4, self._look_for_marker, process, completion)
        else:
            super()._answer(process, completion)

    def _look_for_marker(self, process: Process, completion: Completion) -> None:
        operation = completion.operation
        assert isinstance(operation, Create | Read)
        root = self._roots[operation.root]
        if root.is_gone:
            completion = Completion(operation, error=OSError("lost"))
        elif len(root.markers) > operation.marker_no:
            marker = root.markers[-1], len(root.markers)
            completion = replace(completion, marker=marker)
        super()._answer(process, completion)


def truncate(seed: int, scenario: Scenario, rules: Rules | None = None) -> TruncationReport:
    """Run the schedule of a seed.

    Raises:
        Violation: an invariant broke; its note names the seed.
    """
    simulation = Truncating(seed, scenario, rules or Rules())
    try:
        simulation.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {simulation.report.steps}")
        raise
    return simulation.report


__all__ = ["Phase", "Rules", "TruncationReport", "truncate"]
