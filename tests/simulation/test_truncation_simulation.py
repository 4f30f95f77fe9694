"""Lost leaders, cuts and elections under two coordinators that fight: what was read or acknowledged never changes.

Every rule of the truncation, taken away, is caught: the simulation can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_replog.commit.append_judge import AppendJudge, Verdict
from spark_replog.commit.state_changes import failover_commands
from spark_replog.log.fold.object_table import ObjectTable
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.producer_state import ProducerTable
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, IsrChange, Truncate
from tests.examples import chunks
from tests.simulation.replication import FIGHT, SCENARIO, Rules, Violation, live

SEEDS_MAX = 1_500


CHUNK_COUNT = 4
LIVES_MIN = 40
"""Of a chunk; one life takes as long as some sixty of the ledger's schedules."""


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("chunk", chunks(CHUNK_COUNT, 2))
def test_what_was_acknowledged_or_read_never_changes(request: pytest.FixtureRequest, chunk: int) -> None:
    scenario = (SCENARIO, FIGHT)[chunk % 2]
    lives = max(LIVES_MIN, request.config.getoption("--seeds") // 62 // CHUNK_COUNT)
    cuts = elections = acknowledged = readable = claims = 0
    for seed in range(chunk, lives * CHUNK_COUNT, CHUNK_COUNT):
        life = live(seed, Rules(), scenario)
        cuts += life.log.cut_count
        elections += sum(partition.leader_epoch for partition in life.log.partitions())
        acknowledged += len(life.log.acknowledged)
        readable += sum(map(len, life.log.seen.values()))
        claims += life.report.claims
    # Not vacuous: the schedules do what they are there for.
    assert cuts >= 3 and elections >= 30 and acknowledged >= 30 and readable >= 100 and claims >= 60


def state_with(
    objects: type[ObjectTable] = ObjectTable, producers: type[ProducerTable] = ProducerTable
) -> Callable[[str], TopicLedgerState]:
    """Return what makes a fold of which a part is replaced."""

    def make(ledger_id: str) -> TopicLedgerState:
        state = TopicLedgerState(ledger_id)
        state.objects.__class__, state.producers.__class__ = objects, producers
        return state

    return make


def cut_moved_by(distance: int) -> Callable[..., list[Truncate | IsrChange]]:
    """Return a failover that cuts elsewhere."""

    def fail_over(*arguments: Any, **more: Any) -> list[Truncate | IsrChange]:
        commands = failover_commands(*arguments, **more)
        return [
            Truncate(max(0, step.after_index + distance)) if isinstance(step, Truncate) else step for step in commands
        ]

    return fail_over


def no_cut(*arguments: Any, **more: Any) -> list[Truncate | IsrChange]:
    return [command for command in failover_commands(*arguments, **more) if isinstance(command, IsrChange)]


class CutsOneMore(ObjectTable):
    """Cuts a section more than it is told, which may be stable."""

    __slots__ = ()

    def truncate(self, after_index: int, undo: Any) -> int:
        cut = {partition for pending in self.unstable if pending.index > after_index for partition in pending.ends}
        cut_count = super().truncate(after_index, undo)
        left = [(partition, list(partition.live_sections())) for partition in cut]
        return cut_count + sum(partition.truncate(sections[-1].base_offset) for partition, sections in left if sections)


class RemembersCutBatches(ProducerTable):
    __slots__ = ()

    def undo(self, change: Any) -> None:
        pass


class SameLeaderEpoch(ObjectTable):
    __slots__ = ()

    def truncate(self, after_index: int, undo: Any) -> int:
        before = {state: state.leader_epoch for pending in self.unstable for state in pending.ends}
        cut_count = super().truncate(after_index, undo)
        for partition, epoch in before.items():
            partition.leader_epoch = epoch
            entries = partition.leader_epochs.entries
            partition.leader_epochs.entries = tuple(entry for entry in entries if entry.epoch <= epoch)
        return cut_count


class MovesHighWatermarkBack(ObjectTable):
    __slots__ = ()

    def truncate(self, after_index: int, undo: Any) -> int:
        cut = {state for pending in self.unstable if pending.index > after_index for state in pending.ends}
        cut_count = super().truncate(after_index, undo)
        for partition in cut:
            partition.high_watermark = max(0, partition.high_watermark - 1)
        return cut_count


class AdmitsWhoLacksRows(ObjectTable):
    __slots__ = ()

    def partitions_lacking(self, broker_id: int) -> set[PartitionState]:
        return set()


class StableWithoutLeader(ObjectTable):
    """Takes an entry for stable when the leader holds it."""

    __slots__ = ()

    def advance_stable(self) -> None:
        while self.unstable:
            head = self.unstable[0]
            if any(p.leader not in item.holders for item in head.objects.values() for p in item.partitions):
                return
            for partition, end in head.ends.items():
                partition.high_watermark = end
            self.unstable.popleft()


class OldLeadersAppend(AppendJudge):
    """What was judged once is sent again after a newer owner decided, as it is."""

    _first: Verdict | None = None

    def judge(self, state: TopicLedgerState) -> Verdict:
        if self._first is None or not self._first.commands:
            self._first = super().judge(state)
        return self._first


class AnyRootConfirms(AppendJudge):
    """acks=1 counts a copy of a root that was given up."""

    def _confirmed(self, state: TopicLedgerState, append: Append, *_: object) -> Append:
        return append


VARIANTS = {
    "cut one entry too few": Rules(fail_over=cut_moved_by(1)),
    "cut one entry too many, which the fold refuses": Rules(fail_over=cut_moved_by(-1)),
    "cut one section too many": Rules(state_with(objects=CutsOneMore)),
    "no cut": Rules(fail_over=no_cut),
    "producers are known by what was cut": Rules(state_with(producers=RemembersCutBatches)),
    "no new leader epoch where it is cut": Rules(state_with(objects=SameLeaderEpoch)),
    "a reader is shown rows above the high watermark": Rules(readable_end=lambda partition: partition.log_end_offset),
    "the high watermark goes back": Rules(state_with(objects=MovesHighWatermarkBack)),
    "the leader's copy makes rows readable": Rules(state_with(objects=StableWithoutLeader)),
    "a replica that lacks rows is taken for in sync": Rules(state_with(objects=AdmitsWhoLacksRows)),
    "an append of the old leader is taken after the cut": Rules(make_judge=OldLeadersAppend),
    "an append is confirmed by a root that was given up": Rules(make_judge=AnyRootConfirms),
    "acks=all is told once it is decided": Rules(is_acknowledged=lambda state, index: True),
}


CAUGHT_BY = {
    "an append is confirmed by a root that was given up": 48,
    "an append of the old leader is taken after the cut": 421,
}
"""The first schedule that caught a rare one: tried first, as those before it take long. All others follow."""


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_variant_is_caught(name: str) -> None:
    for seed in (CAUGHT_BY.get(name, 0), *range(SEEDS_MAX)):
        try:
            live(seed, VARIANTS[name], FIGHT if "old leader" in name else SCENARIO)
        except (Violation, AssertionError):  # the fold asserts some of the invariants itself
            return
    pytest.fail(f"{name}: not caught in {SEEDS_MAX} schedules")
