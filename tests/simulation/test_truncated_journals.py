"""I1 to I8 while journals are truncated, and each rule of the truncation, taken away, is caught (G4, G5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.goal import GoalKind, Phase
from spark_replog.ledger.root import Completion, Create, Read
from spark_replog.ledger.snapshot_files import Marker
from tests.examples import chunks
from tests.simulation.ledger_simulation import Scenario, Violation
from tests.simulation.truncation import Rules, truncate

ONE = Scenario(root_count=1, owner_count=3, lost=0.1, outages=1, emptied=False, command_count=12, step_count=250)
THREE = Scenario(
    owner_count=3, reader_count=2, lost=0.1, stall=0.05, crash=0.02, emptied=False, command_count=12, step_count=300
)
LAGGING = replace(THREE, outages=12, lost=0.15, stall=0.1, reader_count=3, step_count=400)
FIVE = replace(THREE, root_count=5, outages=3, step_count=500)
CHUNK_COUNT, PLAIN_CHUNK_COUNT = 6, 3
SEEDS_MAX = 4000


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("chunk", chunks(CHUNK_COUNT, PLAIN_CHUNK_COUNT))
def test_invariants_hold_while_journals_are_truncated(request: pytest.FixtureRequest, chunk: int) -> None:
    scenario = (ONE, THREE, FIVE)[chunk % 3]
    runs = max(40, request.config.getoption("--seeds") // 20 // CHUNK_COUNT)
    markers = deleted = ghosts = jumps = cold = acknowledged = lagging = 0
    for seed in range(chunk, chunk + runs * CHUNK_COUNT, CHUNK_COUNT):
        report = truncate(seed, scenario)  # a violation carries its seed as a note
        markers += report.markers
        deleted += report.deleted
        ghosts += report.ghosts
        jumps += report.jumps
        cold += report.cold
        lagging += report.lagging
        acknowledged += report.acknowledged
    # Not vacuous: the schedules do what they are there for.
    assert min(markers, deleted, jumps, acknowledged) >= runs
    assert cold >= runs / 4 and ghosts >= 1
    assert scenario is ONE or lagging >= 1


def test_same_seed_gives_same_trace() -> None:
    for seed in range(20):
        assert truncate(seed, THREE) == truncate(seed, THREE)


class ReadsStale(LedgerCore):
    """Makes stale reads only, and says so: the schedule does not expect the newest entries of it."""

    def begin(self, kind: GoalKind, now_ms: float) -> None:
        super().begin(GoalKind.STALE_READ if kind is GoalKind.READ else kind, now_ms)

    def _enter(self, phase: Phase) -> None:
        super()._enter(phase)
        self.progress.is_tail_unclear |= phase is Phase.DONE


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("scenario", [ONE, THREE, FIVE])
def test_stale_reads_show_what_is_decided_and_nothing_else(request: pytest.FixtureRequest, scenario: Scenario) -> None:
    runs = max(20, request.config.getoption("--seeds") // 200)
    jumps = acknowledged = 0
    for seed in range(runs):
        report = truncate(seed, scenario, Rules(ReadsStale))
        jumps += report.jumps
        acknowledged += report.acknowledged
    assert min(jumps, acknowledged) >= runs


class Levels(LedgerCore):
    """Gives roots what they lack in place of each read, and says that it may not know the newest entries."""

    levels = 0

    def __init__(self, *parts: Any) -> None:
        self.may_level, self.is_leveling = not parts[3].read_only, False
        super().__init__(*parts)

    def begin(self, kind: GoalKind, now_ms: float) -> None:
        self.is_leveling = kind is GoalKind.READ and self.may_level
        super().begin(GoalKind.BACKFILL if self.is_leveling else kind, now_ms)

    def advance(self, now_ms: float) -> None:
        super().advance(now_ms)
        while self.is_leveling and self.phase is Phase.READY and self.prefix.length - 1 in self.prefix.payloads:
            Levels.levels += self.proposer.is_leading
            self.level()
            super().advance(now_ms)
        self.progress.is_tail_unclear |= self.is_leveling and self.phase is Phase.DONE


@pytest.mark.guarantee("G4", "G5")
@pytest.mark.parametrize("scenario", [THREE, LAGGING, FIVE])
def test_the_newest_value_may_be_proposed_again_at_any_time(request: pytest.FixtureRequest, scenario: Scenario) -> None:
    runs = max(20, request.config.getoption("--seeds") // 200)
    Levels.levels = acknowledged = 0
    for seed in range(runs):
        acknowledged += truncate(seed, scenario, Rules(Levels, full=0.5 * (seed % 2))).acknowledged
    assert acknowledged >= runs and Levels.levels >= runs / 4


class KeepsKnowledge(LedgerCore):
    """Drops the create that fell below the marker, and keeps all else that it knew of the root."""

    def _moved(self, root: int, marker: Marker, marker_no: int, now_ms: float) -> bool:
        view = self.prefix.views[root]
        is_moved = super()._moved(root, marker, marker_no, now_ms)
        if view.next_position >= marker.position:
            self.prefix.views[root] = view
        return is_moved


def without_marker(core: LedgerCore, completion: Completion) -> Completion:
    """The answer as if no marker had been found, which is not looked for again."""
    assert completion.marker is not None
    marker, marker_no = completion.marker
    core.roots[completion.operation.root].floor = marker.point(marker_no).floor
    return replace(completion, marker=None)


class NoRebase(LedgerCore):
    """Lets a create count that is above the new marker, without a look at what the marker says."""

    def complete(self, completion: Completion, now_ms: float) -> None:
        operation, marker = completion.operation, completion.marker
        if isinstance(operation, Create) and marker is not None and operation.position >= marker[0].position:
            completion = without_marker(self, completion)
        super().complete(completion, now_ms)


class ChecksLastRecordOnly(LedgerCore):
    """Keeps what it has read, and reads on, where the last record lies above the marker."""

    def complete(self, completion: Completion, now_ms: float) -> None:
        operation, marker = completion.operation, completion.marker
        if isinstance(operation, Read) and marker is not None and completion.records:
            last = operation.position + len(completion.records) - 1
            if last >= marker[0].position:
                completion = without_marker(self, completion)
        super().complete(completion, now_ms)


class TakesCoveredRecords(LedgerCore):
    """Counts a root's old entries that its marker's snapshot stands for."""

    def _moved(self, root: int, marker: Marker, marker_no: int, now_ms: float) -> bool:
        is_moved = super()._moved(root, marker, marker_no, now_ms)
        view = self.prefix.views[root]
        view.commit_index = view.matched = view.origin.matched
        view.origin = view.origin._replace(matched=-1)
        return is_moved


class KeepsOpenEntries(LedgerCore):
    """Keeps entries that it read below the marker, and that are not decided for all that it knows."""

    def _moved(self, root: int, marker: Marker, marker_no: int, now_ms: float) -> bool:
        view = self.prefix.views[root]
        kept, view.entries, view.matched = (view.entries, view.matched), {}, max(view.matched, marker.base.index)
        is_moved = super()._moved(root, marker, marker_no, now_ms)
        view.entries, view.matched = kept
        return is_moved


def broken(make_core: type[LedgerCore] = LedgerCore, **more: Any) -> Rules:
    return Rules(make_core, **more)


# Each with the scenario that shows it.
VARIANTS = {
    "no look for the marker after a create, one root": (ONE, broken(looks_after_create=False)),
    "no look for the marker after a create": (THREE, broken(looks_after_create=False)),
    "a reader without a look for the marker": (THREE, broken(looks_after_read=False)),
    "knowledge is kept after a look that failed": (THREE, broken(KeepsKnowledge)),
    "no rebase": (LAGGING, broken(NoRebase, full=0.7)),
    "only the last record read is held against the marker": (LAGGING, broken(ChecksLastRecordOnly, full=0.7)),
    "records below the snapshot count": (LAGGING, broken(TakesCoveredRecords, full=0.7)),
    "undecided records below the marker are kept": (LAGGING, broken(KeepsOpenEntries, full=0.7)),
    "deletes before the marker is there": (THREE, broken(deletes_first=True)),
    "truncates the last record": (THREE, broken(kept_count_min=0)),
    "a truncator with a stale snapshot": (THREE, broken(is_stale=True)),
}


CAUGHT_BY = {"no look for the marker after a create": 59, "no rebase": 227, "records below the snapshot count": 71}
"""The first schedule that caught a rare one: tried first, as those before it take long. All others follow."""


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("name", VARIANTS)
def test_broken_truncation_is_caught(name: str) -> None:
    scenario, rules = VARIANTS[name]
    for seed in (CAUGHT_BY.get(name, 0), *range(SEEDS_MAX)):
        try:
            truncate(seed, scenario, rules)
        except (Violation, AssertionError, KeyError):  # the core asserts some of it itself
            return
    pytest.fail(f"{name}: not caught in {SEEDS_MAX} schedules")
