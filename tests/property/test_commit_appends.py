"""Random micro-batches while roots go and come back, against what was acknowledged.

At most one of three roots is away at a time, so every acks=all batch must succeed (min.insync is
2), be readable at once, stay where it was said to be, and lie on every in-sync replica.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_replog.cluster.init_store import init_cluster
from spark_replog.log.model import Outcome
from tests.examples import examples

_spec = importlib.util.spec_from_file_location(
    "replog_scenario_kit", Path(__file__).parents[1] / "scenarios" / "conftest.py"
)
assert _spec is not None and _spec.loader is not None
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)

BATCH = st.tuples(
    st.just("batch"),
    st.sampled_from([-1, -1, -1, 1, 0]),
    st.dictionaries(st.integers(0, 1), st.integers(1, 4), min_size=1),
    st.booleans(),
)
STEPS = st.lists(
    st.one_of(
        BATCH,
        BATCH,
        st.tuples(st.just("away"), st.integers(0, 2)),
        st.tuples(st.just("back")),
        st.tuples(st.just("replay")),
        st.tuples(st.just("reopen")),
    ),
    max_size=14,
)


class World:
    """One store, what is away, and what was acknowledged."""

    def __init__(self, path: Path) -> None:
        init_cluster(str(path), 3, fsync=False)
        self.store = kit.LocalStore(path, kit.FAST)
        self.store.create("orders", 2)
        self.gone: int | None = None
        self.batch = 0
        self.last_rows: dict[int, int] = {}
        self.ends = {0: 0, 1: 0}

    def writers_copies(self, in_all: bool) -> set[int]:
        """Where a task gets its copies to: the in-sync roots that answer, or only the leader of each."""
        partitions = self.store.controller.describe_topic("orders").partitions
        if not in_all:
            return {partition.leader for partition in partitions} - {self.gone}
        return {broker for partition in partitions for broker in partition.isr} - {self.gone}

    def append(self, acks: int, rows: dict[int, int], in_all: bool) -> None:
        holders = self.writers_copies(in_all or acks != -1)
        response = self.store.append(
            "orders", rows, batch=self.batch, holders=holders or {0, 1, 2} - {self.gone}, acks=acks
        )
        assert response.error is None, response.error
        assert response.result.outcome is Outcome.APPLIED
        for (_, partition), (base, end) in response.result.base_offsets.items():
            assert base == self.ends[partition]
            assert end - base == rows[partition]
            self.ends[partition] = end
        self.batch += 1
        self.last_rows = rows
        if acks == -1:
            assert self.store.high_watermarks("orders") == [self.ends[0], self.ends[1]]

    def replay(self) -> None:
        if self.batch:
            response = self.store.append(
                "orders", self.last_rows, batch=self.batch - 1, holders={0, 1, 2} - {self.gone}
            )
            assert response.error is None, response.error
            assert response.result.outcome is Outcome.DUPLICATE
            assert self.store.high_watermarks("orders") == [self.ends[0], self.ends[1]]

    def check(self) -> None:
        """What is readable is dense and lies on every in-sync replica that can be looked at."""
        files = {broker: self.store.held_by("orders", broker) for broker in range(3) if broker != self.gone}
        for number, partition in enumerate(self.store.controller.describe_topic("orders").partitions):
            assert len(partition.isr) >= 2
            assert partition.high_watermark <= partition.log_end_offset == self.ends[number]
            sections = self.store.sections("orders", number)
            bases = [section.base_offset for section in sections]
            assert bases == [sum(section.row_count for section in sections[:place]) for place in range(len(sections))]
            for section_ref in sections:
                assert section_ref.object.holders.issuperset(partition.isr)
                for broker in section_ref.object.holders & files.keys():
                    assert section_ref.object.id.name in files[broker]


@pytest.mark.guarantee("G4")
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_acknowledged_batches_stay(steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = World(Path(folder) / "store")
        for verb, *arguments in steps:
            if verb == "batch":
                acks, rows, in_all = arguments
                world.append(acks, rows, in_all)
            elif verb == "away" and world.gone is None:
                world.store.away(arguments[0])
                world.gone = arguments[0]
            elif verb == "back" and world.gone is not None:
                world.store.back(world.gone)
                world.gone = None
            elif verb == "replay":
                world.replay()
            elif verb == "reopen":
                world.store.reopen()
            world.check()
