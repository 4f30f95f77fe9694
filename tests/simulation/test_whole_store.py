"""Whole stores in seeded schedules: what was read or told stays, whatever roots, processes and power do (G2, G3, G4).

``--seeds`` sets how many schedules run (one for so many of it as `SHARE`), ``--seed N`` replays one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_replog.cluster.init_store import init_cluster
from tests.simulation.whole_store import FAULTS, POWER, ROOTS, schedule_of, shrunk, violation_of

SHARE = 1000
FAULT_SCHEDULES = 5
"""Of the kind with all faults, in which longer runs are to be looked through by hand: ``--seed N``."""
LEAST = {
    "power": (POWER, {"killed": 3, "power cuts": 1.5, "batches APPLIED": 2, "batches DUPLICATE": 0.2, "reads": 5}),
    "roots": (ROOTS, {"outages": 0.7, "lost roots": 0.1, "rebuilt roots": 0.1, "snapshots": 0.7, "reads": 4}),
    "faults": (FAULTS, {"lost roots": 0.5, "reads": 2}),
}
"""Of each kind of schedule: its jobs, and what happens in it at least, on average."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new store of three roots."""
    path = tmp_path_factory.mktemp("whole") / "template"
    init_cluster(str(path), 3)
    return path


def fail(seed: int, weights: Mapping[str, int], template: Path, folder: Path) -> None:
    """Fail with the shortest schedule that still shows what a seed found."""
    steps = shrunk(schedule_of(seed, weights), template, folder)
    violation = violation_of(steps, template, folder)
    pytest.fail(f"seed {seed}: {violation}\n" + "\n".join(map(str, steps)))


@pytest.mark.guarantee("G2", "G3", "G4")
@pytest.mark.parametrize("kind", LEAST)
def test_rows_stay_whatever_happens(request: pytest.FixtureRequest, tmp_path: Path, template: Path, kind: str) -> None:
    weights, least = LEAST[kind]
    only: int | None = request.config.getoption("--seed")
    count = min(request.config.getoption("--seeds") // SHARE, FAULT_SCHEDULES if kind == "faults" else SHARE)
    seeds = range(count) if only is None else [only]
    done: Counter[str] = Counter()
    for seed in seeds:
        folder = tmp_path / str(seed)
        if violation_of(schedule_of(seed, weights), template, folder, done) is not None:
            fail(seed, weights, template, folder)
    few = {what: done[what] for what, number in least.items() if done[what] < number * len(seeds)}
    assert only is not None or not few, f"too seldom in {len(seeds)} schedules to show anything: {few}"


def test_same_seed_gives_same_run(tmp_path: Path, template: Path) -> None:
    steps = schedule_of(11, POWER)
    first, second = Counter[str](), Counter[str]()
    for number, counts in enumerate((first, second)):
        assert violation_of(steps, template, tmp_path / str(number), counts) is None
    assert first == second
