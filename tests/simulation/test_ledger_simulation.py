"""I1 to I6 over seeded schedules of the real core (G4, G5)."""

from __future__ import annotations

import pytest

from tests.examples import chunks
from tests.simulation.ledger_simulation import Scenario, simulate

CHUNK_COUNT, PLAIN_CHUNK_COUNT = 20, 2


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("chunk", chunks(CHUNK_COUNT, PLAIN_CHUNK_COUNT))
def test_invariants_hold_in_every_schedule(request: pytest.FixtureRequest, chunk: int) -> None:
    seeds: int = request.config.getoption("--seeds")
    steps = decided = acknowledged = claims = 0
    for seed in range(chunk, seeds, CHUNK_COUNT):
        report = simulate(seed)  # a violation carries its seed as a note
        steps += report.steps
        decided += report.decided
        acknowledged += report.acknowledged
        claims += report.claims
    # Not vacuous: the schedules do what they are there for.
    runs = len(range(chunk, seeds, CHUNK_COUNT))
    assert steps >= 50 * runs
    assert decided >= 2 * runs
    assert acknowledged >= 2 * runs
    assert claims >= runs


def test_same_seed_gives_same_trace() -> None:
    for seed in range(30):
        first, second = simulate(seed), simulate(seed)
        assert first.trace == second.trace
        assert first == second


def test_without_faults_every_command_is_decided() -> None:
    quiet = Scenario(lost=0, failed=0, crash=0, stall=0, outages=0, step_count=2000)
    for seed in range(20):
        report = simulate(seed, quiet)
        # 2 owners, 3 shared commands and 3 own ones each; up to two commands share an ENTRY.
        assert 5 <= report.acknowledged <= 9
        assert report.acknowledged == report.decided
