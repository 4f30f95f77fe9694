"""Schedules of ``whole_system``: drawn from a seed, run, and shrunk where they fail."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from spark_replog.errors import ReplogError
from tests.simulation.whole_checks import Row, Violation
from tests.simulation.whole_clients import INLINE_JOBS, JOBS, WEIGHTS
from tests.simulation.whole_system import BROKERS, COMPACTED, Lost, Rules, Step, World

STEPS = (40, 60, 120)
"""Most schedules are short, so that there are more of them."""
FOUND = (Violation, AssertionError, LookupError, ValueError)
"""What a schedule may end in; an assertion of the fold is a finding too."""


def schedule_of(seed: int) -> list[Step]:
    """Return the steps of a seed. Each schedule likes some jobs more than others, and some of them stall for long."""
    rng = Random(seed)
    weights = {job: weight * rng.choice((0.3, 1, 1, 3)) for job, weight in WEIGHTS.items()}
    if rng.random() < 0.25:  # leaders fall, and followers are late
        weights |= {"outage": 6, "fail_over": 8, "catch_up": 4, "write": 30, "elect": 6}
    elif rng.random() < 0.3:  # old plans meet compaction and its garbage
        weights |= {"write": 30, "read": 20, "compact": 16, "collect": 12, "floor": 5}
    count = rng.choice(STEPS)
    jobs = rng.choices(list(weights), list(weights.values()), k=count)
    processes = rng.choices(range(3), (3, 2, 1), k=count)
    stalls = {(rng.randrange(3), rng.choice(list(JOBS))): sorted(rng.sample(range(count), 2)) for _ in range(6)}
    steps = []
    for at, (process, job) in enumerate(zip(processes, jobs, strict=True)):
        begin, end = stalls.get((process, job), (count, count))
        if not begin <= at < end:
            steps.append(Step(process, job, rng.getrandbits(48)))
    return [_inline(rng, step) for step in steps] if has_inline(seed) else steps


def has_inline(seed: int) -> bool:
    """Return whether a seed's schedule has small sends: some do, so that others stay what they were."""
    return seed % 10 in (2, 4, 9)


def _inline(rng: Random, step: Step) -> Step:
    job = {"write": "send", "produce": "send", "compact": "move"}.get(step.job)
    return step if job is None or rng.random() < 0.4 else step._replace(job=job)


def run(steps: Sequence[Step], rules: Rules | None = None) -> World:
    """Run a schedule.

    Raises:
        Violation: something does not hold.
    """
    world = World(rules or Rules())
    for step in steps:
        world.step(step, {**JOBS, **INLINE_JOBS})
    world.outage = set()
    while world.lost is not None:
        try:
            for _ in JOBS["rebuild"](world, world.processes[0]):
                pass
        except Lost:
            pass  # once more
        except ReplogError as error:
            raise Violation(f"a lost root cannot be rebuilt: {error}") from error
    for process in world.processes:
        process.refresh()
        world.checker.agrees(process.name, process.state)
    for place, partition in world.checker.partitions():
        rows: dict[int, Row] = {}
        start, high = partition.log_start_offset, partition.high_watermark
        for section in world.checker.sections(place):
            if not section.object.inline and not any(world.holds(broker, section.object.id) for broker in BROKERS):
                raise Violation(f"{section.object.id} is gone, and rows are in it")
            offsets = world.checker.rows_of(section).items()
            rows.update({offset: row for offset, row in offsets if start <= offset < high})
        world.checker.read_all(place, rows, is_compacted=place[0] == COMPACTED)
    return world


def violation_of(steps: Sequence[Step], rules: Rules | None = None) -> Exception | None:
    """Return what a schedule ends in, None where all holds."""
    try:
        run(steps, rules)
    except FOUND as error:
        return error
    return None


def shrunk(steps: Sequence[Step], rules: Rules | None = None) -> list[Step]:
    """Return a short schedule that still fails: steps are left out while it does."""
    kept, size = list(steps), max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if violation_of(shorter, rules) is not None:
                kept = shorter
            else:
                at += size
        size //= 2
    return kept
