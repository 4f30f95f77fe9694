"""I1 to I6 where power cuts take names that were visible and not flushed (G2, G5)."""

from __future__ import annotations

import pytest

from tests.simulation.ledger_simulation import Violation, scenario_of
from tests.simulation.power_cut_simulation import PowerParts, simulate_power_cuts
from tests.simulation.test_broken_variants import BUSY, ONE_ROOT

SHARE = 50
"""One schedule for so many of ``--seeds``."""
VARIANTS = {
    "a reader acts on a name that is not flushed": (BUSY, PowerParts(readers_flush=False)),
    "so does one of a single root": (ONE_ROOT, PowerParts(readers_flush=False)),
}
VARIANT_SEEDS_MAX = 500


@pytest.mark.guarantee("G2", "G5")
def test_power_cuts_take_nothing_that_a_process_acts_on(request: pytest.FixtureRequest) -> None:
    seeds = request.config.getoption("--seeds") // SHARE
    acknowledged = lost = 0
    for seed in range(seeds):
        report, lost_count = simulate_power_cuts(seed, scenario_of(seed))
        acknowledged, lost = acknowledged + report.acknowledged, lost + lost_count
    assert acknowledged >= seeds
    assert lost >= seeds // 8, "names are taken"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_rule_less_is_caught(name: str) -> None:
    scenario, parts = VARIANTS[name]
    for seed in range(VARIANT_SEEDS_MAX):
        try:
            simulate_power_cuts(seed, scenario, parts)
        except Violation:
            return
    pytest.fail(f"{name}: nothing breaks in {VARIANT_SEEDS_MAX} schedules")
