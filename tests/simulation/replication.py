"""Coordinators that append, lose leaders, cut and elect over one simulated ledger: what must hold of the rows.

The journals, their faults and the schedule are those of ``ledger_simulation``. The processes decide with the
product's own code (``AppendJudge``, ``failover_commands``) on its own fold. A root is a metadata root and a
broker at once, so an outage takes both. A reference that knows which root really holds what folds every decided
entry once more, and checks all invariants after each entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.commit.append_judge import AppendJudge, Verdict
from spark_replog.commit.append_judge import Phase as AppendPhase
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.state_changes import failover_commands
from spark_replog.ids import ObjectId
from spark_replog.ledger.goal import Phase
from spark_replog.ledger.record import TAG_SIZE_BYTES, JournalRecord
from spark_replog.log.acl import AclSet
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.partition_state import PartitionState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    CommandResult,
    DataObject,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    Outcome,
    ProducerIdentity,
    Section,
    TopicInit,
    Truncate,
)
from tests.simulation.ledger_invariants import Truth, Violation
from tests.simulation.ledger_simulation import Parts, Process, Scenario, Simulation

TOPIC = "a" * 32
REPLICAS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
SCENARIO = Scenario(
    owner_count=2,
    reader_count=1,
    step_count=400,
    lost=0.05,
    failed=0.02,
    crash=0.01,
    stall=0.02,
    outages=1,
    emptied=False,
)
FIGHT = replace(SCENARIO, owner_count=3, lost=0.15, stall=0.08)
STEPS_OF_A_JOB_MAX = 8


@dataclass(frozen=True)
class Rules:
    """What a broken variant replaces."""

    make_state: Callable[[str], TopicLedgerState] = TopicLedgerState
    fail_over: Callable[..., list[Truncate | IsrChange]] = failover_commands
    make_judge: type[AppendJudge] = AppendJudge
    readable_end: Callable[[PartitionState], int] = lambda partition: partition.high_watermark
    is_acknowledged: Callable[[TopicLedgerState, int], bool] = lambda state, index: state.stable_index >= index


@dataclass
class Batch:
    """What a query wants in the log once; repeated until it is told so."""

    name: str
    acks: int
    append: Append


@dataclass
class Mind:
    """What one process incarnation knows and is about."""

    state: TopicLedgerState
    results: dict[int, tuple[CommandResult, ...]] = field(default_factory=dict)
    batch: Batch | None = None
    attempt: AppendJudge | None = None
    given_up: frozenset[int] = frozenset()
    chore: list[bytes] | None = None
    is_append_next: bool = False
    is_append_sent: bool = False
    failover_count: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    ledger_id: str = "L"


class Log:
    """The reference: decided entries, which root holds which object, what was read and what was acknowledged."""

    def __init__(self, rules: Rules, is_away: Callable[[int], bool]) -> None:
        self.is_away = is_away
        self.state = rules.make_state("L")
        self.on_root: dict[str, set[int]] = {}
        self.batch_of: dict[str, str] = {}
        self.seen: dict[int, list[str]] = {0: [], 1: [], 2: []}
        self.acknowledged: dict[str, None] = {}
        self.appends: dict[str, Append] = {}
        self.given: dict[tuple[int, int, int], str] = {}
        self.high_watermarks = [0, 0, 0]
        self.cut_count = self.late_cut_count = 0

    def partitions(self) -> list[PartitionState]:
        return self.state.topics[TOPIC].partitions if TOPIC in self.state.topics else []

    def rows(self, state: TopicLedgerState, number: int, end: int) -> list[str]:
        sections = state.sections(TOPIC, number, 0, end)
        return [section.object.id.name for section in sections for _ in range(section.row_count)][:end]

    def decided(self, payload: bytes) -> None:
        """Fold an entry and look at everything."""
        results = self.state.apply(self.state.applied_index + 1, payload[TAG_SIZE_BYTES:])
        for result in results:
            self.cut_count += "rows were cut" in result.detail
            self.late_cut_count += result.detail.startswith(("nothing lies behind", "entries up to"))
        there: set[str] = set()
        for number, partition in enumerate(self.partitions()):
            names = self.rows(self.state, number, partition.log_end_offset)
            there.update(self.batch_of[name] for name in names)
            self._check_partition(number, partition, names)
        for batch in self.acknowledged:
            if batch not in there:
                raise Violation(f"R1 batch {batch} was acknowledged and is not in the log")
        for batch, append in self.appends.items():
            if self.state.producers.judge_duplicate(append) is not None and batch not in there:
                raise Violation(f"R6 the producer table knows batch {batch}, of which no row is in the log")

    def _check_partition(self, number: int, partition: PartitionState, names: list[str]) -> None:
        if partition.high_watermark < self.high_watermarks[number]:
            raise Violation(f"R2 the high watermark of partition {number} falls to {partition.high_watermark}")
        self.high_watermarks[number] = partition.high_watermark
        for offset, name in enumerate(names):
            if offset < partition.high_watermark and not self.on_root[name].issuperset(partition.isr):
                raise Violation(f"R3 an in-sync replica lacks readable row {offset} of partition {number}")
            if all(broker not in partition.isr and self.is_away(broker) for broker in self.on_root[name]):
                raise Violation(f"R4 row {offset} of partition {number} is on roots only that were given up")
            epochs = [entry.epoch for entry in partition.leader_epochs.entries if entry.start_offset <= offset]
            if not epochs:
                raise Violation(f"R5 row {offset} of partition {number} has no leader epoch")
            epoch = max(epochs)
            if self.given.setdefault((number, offset, epoch), name) != name:
                raise Violation(f"R5 offset {offset} of partition {number} is given twice in leader epoch {epoch}")
        if len({self.batch_of[name] for name in names}) != len(set(names)):
            raise Violation(f"R7 a batch is in partition {number} twice")

    def read(self, state: TopicLedgerState, readable_end: Callable[[PartitionState], int]) -> None:
        """Take what a reader with this fold sees: it was so before, and stays so."""
        for number, partition in enumerate(state.topics[TOPIC].partitions if TOPIC in state.topics else ()):
            names, before = self.rows(state, number, readable_end(partition)), self.seen[number]
            shorter = min(len(names), len(before))
            if names[:shorter] != before[:shorter]:
                raise Violation(f"R8 readers of partition {number} have seen other rows")
            if len(names) > len(before):
                self.seen[number] = names


class LogTruth(Truth):
    """The journals' truth, with a log that is folded from what is decided."""

    log: Log

    def commands_of(self, payload: bytes) -> list[bytes]:
        return [payload[:TAG_SIZE_BYTES]]

    def _entry_landed(self, root: int, record: JournalRecord) -> None:
        before = len(self.decided)
        super()._entry_landed(root, record)
        if len(self.decided) > before:
            self.log.decided(record.payload)


class ReplicatedLog(Simulation):
    """One schedule."""

    def __init__(self, seed: int, rules: Rules, scenario: Scenario = SCENARIO) -> None:
        super().__init__(seed, scenario, Parts())
        self.rules = rules
        self._truth = LogTruth(scenario.root_count)
        self.log = self._truth.log = Log(rules, self.is_away)
        self._minds: dict[Process, Mind] = {}
        self._open: dict[str, Batch] = {}
        self._told: list[Batch] = []
        self._batch_count = 0
        no_acls = SimpleNamespace(acls=AclSet(), config={})
        cluster: Any = SimpleNamespace(cluster_ledger=SimpleNamespace(lock=threading.RLock(), state=no_acls))
        self._clock: Any = SimpleNamespace(now_ms=lambda: int(self._now_ms), monotonic_ms=lambda: int(self._now_ms))
        self._authorizer = Authorizer(cluster, "User:s")

    def _outage(self) -> None:
        """One root after the other goes and comes back, so that a majority is always there."""
        number = self._rng.randrange(len(self._roots))
        self._roots[number].is_gone = True
        self.report.trace.append((self._now_ms, "gone", number))
        self._later(40 + self._rng.random() * 120, self._return, number)

    def _return(self, number: int) -> None:
        super()._return(number)
        self._later(self._rng.random() * 40, self._outage)

    def is_away(self, broker_id: int) -> bool:
        return self._roots[broker_id].is_gone

    def does_not_answer(self, broker_id: int) -> bool:
        """Also a root that only hangs may be taken for one that is gone."""
        return self.is_away(broker_id) or self._rng.random() < 0.05

    # -- processes --------------------------------------------------------------------------------

    def _mind(self, process: Process) -> Mind:
        mind = self._minds.get(process)
        if mind is None:
            mind = self._minds[process] = Mind(self.rules.make_state("L"))
            process.todo = [] if process.is_reader else [b"always"]
        return mind

    def _begin(self, process: Process) -> None:
        self._mind(process)
        super()._begin(process)

    def _look(self, process: Process) -> None:
        core, mind = process.core, self._mind(process)
        length = core.prefix.length
        if length > process.folded:
            self._truth.reported(core, process.folded)
            for index in range(process.folded, length):
                mind.results[index] = mind.state.apply(index, core.prefix.payloads[index][TAG_SIZE_BYTES:])
            process.folded = length
            core.prefix.release(length)
            self.log.read(mind.state, self.rules.readable_end)
        if core.settled is not None:
            index, is_won = core.settled
            core.settled = None
            if is_won:
                self._truth.answered(index, process.sent)
                if mind.is_append_sent:
                    self._tell(process, mind, mind.results[index][-1])
            mind.is_append_sent = False
        is_leading = core.proposer.is_leading
        if is_leading and not process.was_leading:
            self._truth.recovered(core)
            self.report.claims += 1
        process.was_leading = is_leading

    def _tell(self, process: Process, mind: Mind, result: CommandResult) -> None:
        """Give a batch its answer, as ``LedgerAppend`` does: with acks=all once it is stable."""
        batch, mind.batch, mind.attempt = mind.batch, None, None
        if batch is None or result.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
            return
        index = mind.state.applied_index
        if batch.acks == -1:
            is_there = mind.state.judge(batch.append).outcome is Outcome.DUPLICATE
            if not is_there or not self.rules.is_acknowledged(mind.state, index):
                return  # asked again until it is stable
            self.log.acknowledged[batch.name] = None
        self._open.pop(process.name, None)
        self._told.append(batch)

    # -- decisions --------------------------------------------------------------------------------

    def _propose(self, process: Process) -> bool:
        mind = self._mind(process)
        mind.is_append_next = False
        commands = self._commands(process, mind)
        if not commands:
            return False
        tag = self._rng.randbytes(TAG_SIZE_BYTES)
        process.core.propose(tag + encode_entry(commands))
        if process.core.phase is Phase.LEAD:  # else a claim comes first, and what was sent before keeps its place
            process.sent, mind.is_append_sent = [tag], mind.is_append_next
        return True

    def _commands(self, process: Process, mind: Mind) -> list[bytes]:
        if TOPIC not in mind.state.topics:
            return [encode_command(TopicInit(TOPIC, "orders", REPLICAS, ()))]
        if mind.attempt is None and self._rng.random() < 0.4:
            chore = self._rng.choice((self._catch_up, self._join, self._watch))
            commands = chore(mind)
            if commands:
                return commands
        for _ in range(STEPS_OF_A_JOB_MAX):
            if mind.given_up:
                gone, mind.given_up = mind.given_up, frozenset()
                commands = [encode_command(step) for step in self.rules.fail_over(mind.state, gone, int(self._now_ms))]
                if commands:
                    return commands
            if mind.attempt is None and not self._take_batch(process, mind):
                return []
            commands = self._advance(process, mind)
            if commands is not None:
                return commands
        mind.attempt = mind.batch = None
        return []

    def _advance(self, process: Process, mind: Mind) -> list[bytes] | None:
        """Do what ``LedgerAppend.run`` does between two entries; None: go on."""
        attempt = mind.attempt
        assert attempt is not None
        verdict = attempt.judge(mind.state)
        if verdict.error is not None:
            mind.attempt = mind.batch = None  # tried again later
            return []
        if verdict.commands:
            mind.is_append_next = True
            return list(verdict.commands)
        match verdict.next:
            case AppendPhase.REPLICATING:
                self._replicate(mind, attempt, verdict)
            case AppendPhase.ELECTING:
                attempt.has_elected = True
                mind.given_up = frozenset(broker for broker in verdict.absent if self.does_not_answer(broker))
            case AppendPhase.SETTLING:
                assert verdict.result is not None
                self._tell(process, mind, verdict.result)
                return []
        return None

    def _replicate(self, mind: Mind, attempt: AppendJudge, verdict: Verdict) -> None:
        assert verdict.round is not None
        replication = attempt.replication
        for job, target in verdict.round.missing:
            if target in replication.departed:
                continue
            if self.is_away(target) or self._rng.random() < 0.05:
                replication.departed[target] = "away"
            elif all(self.is_away(source) for source in job.sources):
                replication.lost[job.id] = job.sources
            else:
                replication.copied.setdefault(job.id, set()).add(target)
                self.log.on_root[job.id.name].add(target)
        if replication.lost:
            suspects = {source for sources in replication.lost.values() for source in sources}
            replication.lost.clear(), replication.departed.clear()
            mind.given_up = frozenset(suspect for suspect in suspects if self.does_not_answer(suspect))

    def _take_batch(self, process: Process, mind: Mind) -> bool:
        """Go on with what this query was about before it crashed, repeat an old batch, or write a new one."""
        rng = self._rng
        batch = self._open.get(process.name)
        if batch is not None and rng.random() < 0.3:
            again = self._write(mind, batch.acks, batch.append.identity)  # tasks run again: other objects
            batch = again or batch
        elif batch is None and self._told and rng.random() < 0.2:
            batch = replace(rng.choice(self._told), acks=rng.choice((1, -1)))
        if batch is None:
            self._batch_count += 1
            name = f"b{self._batch_count}"
            batch = self._write(
                mind, rng.choice((1, 1, -1)), ProducerIdentity(name, name, 0, "run", IdentityKind.STREAM)
            )
        if batch is None:
            return False
        self._open[process.name] = batch
        mind.batch = batch
        request = AppendRequest(batch.append, 30_000, batch.acks)
        mind.attempt = self.rules.make_judge("L", request, self._authorizer, self._clock)
        return True

    def _write(self, mind: Mind, acks: int, identity: ProducerIdentity) -> Batch | None:
        """A task puts one object, as the fold of its planner says, on the roots that take it."""
        rng = self._rng
        numbers = sorted(rng.sample(range(3), rng.choice((1, 1, 2))))
        partitions = [mind.state.topics[TOPIC].partitions[number] for number in numbers]
        in_sync = set.intersection(*(set(partition.isr) for partition in partitions))
        leaders = {partition.leader for partition in partitions}
        took = {broker for broker in in_sync if not self.is_away(broker) and rng.random() < 0.3}
        took |= {leader for leader in leaders if not self.is_away(leader)}
        if len(took & in_sync) < (1 if acks == 1 else 2):
            return None
        name = f"{identity.producer_id}-{rng.randbytes(3).hex()}"
        sections = tuple(Section(TOPIC, p, rng.randint(1, 2), 8 * at, 8, 0, 0, 0) for at, p in enumerate(numbers))
        item = DataObject(
            ObjectId(0, name), 8 * len(numbers), False, frozenset(took), sections, after_index=mind.state.applied_index
        )
        self.log.on_root[name] = took
        self.log.batch_of[name] = identity.producer_id
        append = Append(identity, "User:s", "", 0, (item,))
        self.log.appends.setdefault(identity.producer_id, append)
        return Batch(identity.producer_id, acks, append)

    # -- what coordinators do between appends -------------------------------------------------------

    def _catch_up(self, mind: Mind) -> list[bytes]:
        commands = []
        for copy in mind.state.under_replicated(include_out_of_sync=True):
            to = tuple(broker for broker in copy.missing if not self.is_away(broker))
            if to and any(not self.is_away(source) for source in copy.object.holders) and self._rng.random() < 0.3:
                self.log.on_root[copy.object.id.name] |= set(to)
                commands.append(encode_command(HoldersAdd(copy.entry_index, copy.command_no, copy.object_no, to)))
        return commands

    def _join(self, mind: Mind) -> list[bytes]:
        back = [broker for broker in range(3) if not self.is_away(broker)]
        out = [broker for broker in back if any(broker not in p.isr for p in mind.state.topics[TOPIC].partitions)]
        return [encode_command(IsrChange(None, broker, True, int(self._now_ms))) for broker in out]

    def _watch(self, mind: Mind) -> list[bytes]:
        """A round of ``replog coordinator run``, with an admin's word now and then."""
        gone = frozenset(broker for broker in range(3) if self.does_not_answer(broker))
        is_forced = self._rng.random() < 0.2
        commands = self.rules.fail_over(mind.state, gone, int(self._now_ms), is_forced=is_forced)
        return [encode_command(command) for command in commands]


def live(seed: int, rules: Rules, scenario: Scenario = SCENARIO) -> ReplicatedLog:
    """Run one schedule to its end.

    Raises:
        Violation: something does not hold; its note names the seed.
    """
    simulation = ReplicatedLog(seed, rules, scenario)
    try:
        simulation.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {simulation.report.steps}")
        raise
    return simulation


__all__ = ["Log", "ReplicatedLog", "Rules", "Violation", "live"]
