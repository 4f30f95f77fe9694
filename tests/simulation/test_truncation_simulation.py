"""Random lives of a ledger under leader losses: what was acknowledged by all or read never changes.

The decisions are the production's (`failover_commands`, the fold); roots come and go, coordinators decide on
folds of any age, entries are repeated. What readers saw is kept aside and compared after every step.
"""

from __future__ import annotations

import random

import pytest

from spark_replog.coordinator.failover import failover_commands
from spark_replog.log.commands import (
    Append,
    BrokerFence,
    DataObject,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    ProducerIdentity,
    Section,
    TopicInit,
    Truncate,
    encode_command,
)
from spark_replog.log.entry import encode_entry
from spark_replog.log.results import Outcome
from spark_replog.log.topic_state import TopicLedgerState

TOPIC = "a" * 32
REPLICAS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
BROKERS = frozenset({0, 1, 2})
SEEDS = 600
STEPS = 60


class Life:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = TopicLedgerState("L")
        self.entry(TopicInit(TOPIC, "orders", REPLICAS, ()))
        self.away: set[int] = set()
        self.on_root: dict[str, set[int]] = {}
        self.seen: dict[int, list[str]] = {0: [], 1: [], 2: []}
        self.acknowledged: set[str] = set()
        self.batch = 0
        self.cuts = 0
        self.again: list[tuple[Append, str]] = []

    def entry(self, *commands):
        payload = encode_entry([encode_command(each) for each in commands])
        return self.state.apply(self.state.applied_index + 1, payload)

    def partitions(self):
        return self.state.topics[TOPIC].partitions

    def rows(self, number: int, end: int) -> list[str]:
        return [s.object.name for s in self.state.sections(TOPIC, number, 0, end) for _ in range(s.row_count)]

    def append(self) -> None:
        rng, number = self.rng, self.rng.randrange(3)
        partition = self.partitions()[number]
        name = f"batch-{self.batch}"
        self.batch += 1
        if partition.leader in self.away or partition.leader < 0:
            return
        copies = {partition.leader} | {each for each in partition.isr if each not in self.away and rng.random() < 0.4}
        section = Section(TOPIC, number, rng.randint(1, 3), 0, 8, 0, 0, 0)
        item = DataObject(0, name, 8, False, frozenset(copies), (section,))
        identity = ProducerIdentity(name, name, 0, "run", IdentityKind.STREAM)
        append = Append(identity, "", "", 0, (item,))
        self.on_root[name] = set(copies)
        (result,) = self.entry(append)
        assert result.outcome is Outcome.APPLIED
        if self.state.stable_index == self.state.applied_index:
            self.acknowledged.add(name)
        self.again.append((append, name))

    def repeat(self) -> None:
        """A driver that never heard its answer sends the batch again: in the log once, or again after a cut."""
        if self.again:
            append, name = self.rng.choice(self.again)
            (result,) = self.entry(append)
            there = any(name in self.rows(number, 10**9) for number in range(3))
            assert there and result.outcome in (Outcome.APPLIED, Outcome.DUPLICATE)
            for number in range(3):
                names = self.rows(number, 10**9)
                assert names.count(name) <= append.objects[0].sections[0].row_count

    def catch_up(self) -> None:
        for missing in self.state.under_replicated(include_out_of_sync=True):
            to = [each for each in missing.missing if each not in self.away]
            sources = self.on_root[missing.object.name] - self.away
            if to and sources and self.rng.random() < 0.7:
                self.on_root[missing.object.name] |= set(to)
                self.entry(HoldersAdd(missing.entry_index, missing.command_no, missing.object_no, tuple(to)))

    def fail_over(self) -> None:
        """Decided on the newest fold; a second coordinator's repetition of it must change nothing more."""
        gone = frozenset(self.away)
        commands = failover_commands(self.state, gone, 0, is_forced=self.rng.random() < 0.2)
        if not commands:
            return
        self.cuts += any(isinstance(each, Truncate) for each in commands)
        for result in self.entry(*commands):
            assert result.outcome is Outcome.APPLIED
        ends = [each.log_end_offset for each in self.partitions()]
        for result in self.entry(*commands):
            assert result.outcome in (Outcome.SKIPPED, Outcome.INVALID, Outcome.EXISTS)
        assert ends == [each.log_end_offset for each in self.partitions()]

    def step(self) -> None:
        verb = self.rng.choice(["append"] * 5 + ["away", "back", "catch_up", "catch_up", "fail_over", "join", "repeat"])
        if verb == "away":
            if not self.away:
                self.away.add(self.rng.randrange(3))
        elif verb == "back":
            self.away.clear()
        elif verb == "join":
            for broker_id in sorted(BROKERS - self.away):
                self.entry(IsrChange(None, broker_id, True, 0))
        else:
            getattr(self, verb)()
        self.check()

    def check(self) -> None:
        for number, partition in enumerate(self.partitions()):
            readable = self.rows(number, partition.high_watermark)[: partition.high_watermark]
            before = self.seen[number]
            assert readable[: len(before)] == before, "a row that was readable changed or went"
            self.seen[number] = readable
            assert len(readable) == partition.high_watermark <= partition.log_end_offset
            for name in set(readable):
                assert set(partition.isr) <= self.on_root[name], "an in-sync replica lacks a readable row"
        found = {name for rows in self.seen.values() for name in rows}
        assert self.acknowledged <= found, "an acknowledged row is gone"


@pytest.mark.parametrize("first", range(0, SEEDS, 120))
def test_what_was_acknowledged_or_read_never_changes(first: int) -> None:
    cuts = 0
    for seed in range(first, first + 120):
        life = Life(seed)
        for _ in range(STEPS):
            life.step()
        cuts += life.cuts
    assert cuts > 5  # the schedules do lose leaders


def test_a_coordinator_that_cuts_one_entry_too_many_is_refused_by_the_fold() -> None:
    life = Life(1)
    refused = 0
    for _ in range(200):
        life.step()
        if life.state.stable_index > 0:
            (result,) = life.entry(Truncate(life.state.stable_index - 1))
            assert result.outcome is Outcome.INVALID
            refused += 1
            life.check()
    assert refused > 100


def test_a_fenced_leader_is_no_way_around() -> None:
    life = Life(2)
    for number in range(120):
        life.step()
        if number % 10 == 0:
            broker_id = life.rng.randrange(3)
            life.entry(BrokerFence(broker_id, True))
            life.check()
            life.entry(BrokerFence(broker_id, False))
        life.check()
