"""Whole stores in seeded schedules: what was read or told stays, whatever roots, processes and power do (G2, G3, G4).

``--seeds`` sets how many schedules run (one for each `SHARE` seeds), ``--seed N`` replays one. `VARIANTS` are
faults that the product once had, or might have: each is a change of the code, and a seed whose schedule notices it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_replog.cluster.init_store import init_cluster
from spark_replog.gateway import produce_lane
from spark_replog.ids import new_id
from spark_replog.ledger import journal_rebuild
from spark_replog.ledger.core import LedgerCore
from spark_replog.ledger.root import RootState
from spark_replog.ledger.snapshot_io import SnapshotIo
from spark_replog.storage.posix_store import PosixStore
from tests.simulation.whole_store import (
    FAULTS,
    GATEWAYS,
    JOURNALS,
    POWER,
    RETURNS,
    ROOTS,
    schedule_of,
    shrunk,
    violation_of,
)

SHARE = 1000
FEW = {"faults": 5, "returns": 2, "journals": 2}
"""How many schedules at most of kinds in which longer runs are to be looked through by hand: ``--seed N``."""
LEAST = {
    "power": (POWER, {"killed": 3, "power cuts": 1.5, "batches APPLIED": 2, "batches DUPLICATE": 0.2, "reads": 5}),
    "roots": (ROOTS, {"outages": 0.7, "lost roots": 0.1, "rebuilt roots": 0.1, "snapshots": 0.7, "reads": 4}),
    "gateways": (GATEWAYS, {"killed": 3, "batches sent once": 1, "batches sent again": 0.4, "reads": 4}),
    "returns": (RETURNS, {"replaced outages": 1, "went on": 1}),
    "journals": (JOURNALS, {"lost journals": 2, "batches APPLIED": 3}),
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
    count = min(request.config.getoption("--seeds") // SHARE, FEW.get(kind, SHARE))
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


class Variant(NamedTuple):
    """A fault: what is changed, and the kind and seed of a schedule that then ends in an error with this text."""

    changes: tuple[tuple[Any, str, Any], ...]
    kind: str
    seed: int
    text: str


def always(answer: object) -> Callable[..., object]:
    """Return a function that returns this."""
    return lambda *_, **__: answer


VARIANTS = {
    # A root comes back and another one goes: the store can no longer be written.
    "a process does not fall back to what a majority can prove": Variant(
        (
            (LedgerCore, "_has_too_few_values", always(False)),
            (SnapshotIo, "is_on_majority", always(True)),  # else it begins without the head that one root alone has
        ),
        "returns",
        0,
        "it does not go on",
    ),
    # A snapshot comes from a process that began while the root was away; one that knew more puts `out` on the new root.
    "a rebuilt journal begins right after what is known of the lost one": Variant(
        ((journal_rebuild, "POSITIONS_PER_ROOT", 0),), "faults", 0, "it ends before position"
    ),
    "a journal that ends before what a snapshot names is taken for whole": Variant(
        ((RootState, "is_cut_short", always(False)),), "journals", 1, "a write succeeds while roots"
    ),
    "a gateway appends a producer's batches under a name of its own": Variant(
        ((produce_lane, "producer_name", lambda _: new_id()),), "gateways", 0, "is refused"
    ),
    "a reader acts on a name that is not durable": Variant(
        ((PosixStore, "_settle", always(None)),), "power", 36, "offset 6 of first was"
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_fault_put_into_the_code_is_noticed(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variant = VARIANTS[name]
    for owner, attribute, value in variant.changes:
        monkeypatch.setattr(owner, attribute, value)
    weights, _ = LEAST[variant.kind]
    violation = violation_of(schedule_of(variant.seed, weights), template, tmp_path / "store")
    assert violation is not None and variant.text in str(violation), violation
