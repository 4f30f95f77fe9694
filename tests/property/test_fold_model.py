"""The fold against a slow, obvious model that keeps every row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.partition_state import NO_LEADER
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    BrokerFence,
    DataObject,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    ProducerIdentity,
    ResetPolicy,
    Section,
    TopicClose,
    TopicInit,
    Truncate,
)
from tests.examples import examples

TOPICS = ("a" * 32, "b" * 32)
PARTITIONS = 3
REPLICAS = ((0, 1, 2), (1, 2, 0), (2, 1))
ON_RESET = {
    ResetPolicy.FAIL: Outcome.CHECKPOINT_RESET,
    ResetPolicy.APPEND: Outcome.APPLIED,
    ResetPolicy.SKIP: Outcome.SKIPPED,
}
KEYS = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]


@dataclass
class Model:
    """Rows as (entry, object name, row number); watermarks by looking at everything again."""

    rows: dict = field(default_factory=lambda: {key: [] for key in KEYS})
    isr: dict = field(default_factory=lambda: {key: list(REPLICAS[key[1]]) for key in KEYS})
    marks: dict = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    closed: set = field(default_factory=set)
    seen: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)
    objects: dict = field(default_factory=dict)
    entries: list = field(default_factory=list)
    stable: int = -1
    applied: list = field(default_factory=list)
    fenced: set = field(default_factory=set)
    headless: set = field(default_factory=set)
    starts: dict = field(default_factory=lambda: dict.fromkeys(KEYS, 0))

    def outcome(self, append):
        touched = {s.topic_id for o in append.objects for s in o.sections}
        who = append.identity
        if touched & self.closed:
            return Outcome.TOPIC_CLOSED
        last = self.seen.get(who.producer_id)
        if last is not None and who.sequence == last.identity.sequence and self.repeats(last, append):
            return Outcome.DUPLICATE
        if who.run_id in self.runs.get(who.producer_id, [])[:-1]:
            return Outcome.FENCED
        if last is not None and who.sequence <= last.identity.sequence:
            return ON_RESET[who.on_reset]
        return Outcome.APPLIED

    @staticmethod
    def repeats(last, append):
        """By the evidence of both, or by rows per topic if the last one has none."""
        rows = [Counter({s.topic_id: 0 for o in command.objects for s in o.sections}) for command in (last, append)]
        for counts, appended in zip(rows, (last, append), strict=True):
            for section in (s for o in appended.objects for s in o.sections):
                counts[section.topic_id] += section.row_count
        if not last.identity.evidence:
            return rows[0] == rows[1]
        return last.identity.evidence == append.identity.evidence and rows[1].keys() <= rows[0].keys()

    def apply(self, index, commands):
        outcomes = []
        for number, command in enumerate(commands):
            outcomes.append(self.apply_one(index, number, command))
        self.entries.append(index)
        self.advance(index)
        return outcomes

    def apply_one(self, index, number, command):
        if isinstance(command, Append):
            outcome = self.outcome(command)
            if outcome is Outcome.APPLIED:
                self.applied.append((index, command))
                self.learn(command)
                for object_no, item in enumerate(command.objects):
                    ends = {}
                    for section in item.sections:
                        key = section.topic_id, section.partition
                        self.rows[key] += [(index, item.id.name, row) for row in range(section.row_count)]
                        ends[key] = len(self.rows[key])
                    self.objects[index, number, object_no] = [set(item.holders), ends]
            return outcome
        if isinstance(command, TopicClose):
            if command.topic_id in self.closed:
                return Outcome.EXISTS
            self.closed.add(command.topic_id)
            return Outcome.APPLIED
        if isinstance(command, HoldersAdd):
            object_state = self.objects.get((command.entry_index, command.command_no, command.object_no))
            if object_state is None:
                return Outcome.INVALID
            is_there = object_state[0] >= set(command.broker_ids)
            object_state[0] |= set(command.broker_ids)
            if not self.needed(object_state[1]):
                return None  # no row of it is left: it may be forgotten
            return Outcome.EXISTS if is_there else Outcome.APPLIED
        if isinstance(command, LogStartAdvance):
            return self.trim(command)
        if isinstance(command, Truncate):
            return self.truncate(index, command.after_index)
        if isinstance(command, BrokerFence):
            return self.fence(command)
        if command.in_sync and command.broker_id in self.fenced:
            return Outcome.REFUSED
        changed = False
        for key in KEYS:
            changed |= self.change_isr(key, command)
        return Outcome.APPLIED if changed else Outcome.SKIPPED

    def trim(self, command):
        if command.topic_id in self.closed:
            return Outcome.TOPIC_CLOSED
        moves = {(command.topic_id, partition): offset for partition, offset in command.offsets}
        if any(offset > self.marks[key] for key, offset in moves.items()):
            return Outcome.INVALID
        if all(offset <= self.starts[key] for key, offset in moves.items()):
            return Outcome.EXISTS
        self.starts.update({key: max(offset, self.starts[key]) for key, offset in moves.items()})
        return Outcome.APPLIED

    def needed(self, ends):
        """Return the partitions that have rows in an object: not trimmed, not of a closed topic."""
        return [key for key, end in ends.items() if end > self.starts[key] and key[0] not in self.closed]

    def learn(self, append):
        who = append.identity
        self.seen[who.producer_id] = append
        runs = self.runs.setdefault(who.producer_id, [])
        if who.run_id not in runs:
            runs.append(who.run_id)

    def truncate(self, index, after):
        """Forget all rows behind an entry, and learn the producers again from what is left."""
        stable = self.stable if any(at > self.stable for at, _ in self.applied) else index
        if after < stable or any(at == index for at, _ in self.applied):
            return Outcome.INVALID
        if all(row[0] <= after for rows in self.rows.values() for row in rows):
            return Outcome.EXISTS
        self.rows = {key: [row for row in rows if row[0] <= after] for key, rows in self.rows.items()}
        self.objects = {where: value for where, value in self.objects.items() if where[0] <= after}
        self.applied = [entry for entry in self.applied if entry[0] <= after]
        self.seen.clear()
        self.runs.clear()
        for _, append in self.applied:
            self.learn(append)
        return Outcome.APPLIED

    def fence(self, command):
        if (command.broker_id in self.fenced) == command.is_fenced:
            return Outcome.EXISTS
        self.fenced ^= {command.broker_id}
        for key in KEYS:
            live = [broker for broker in self.isr[key] if broker not in self.fenced]
            if command.is_fenced and command.broker_id in self.isr[key]:
                if live:
                    self.isr[key] = live
                else:
                    self.headless.add(key)
            elif not command.is_fenced and key in self.headless and live:
                self.isr[key] = live
                self.headless.discard(key)
        return Outcome.APPLIED

    def change_isr(self, key, command):
        isr, broker = self.isr[key], command.broker_id
        if not command.in_sync:
            if broker not in isr or len(isr) == 1:
                return False
            isr.remove(broker)
            return True
        complete = all(broker in holders for holders, ends in self.objects.values() if key in self.needed(ends))
        if broker in isr or broker not in REPLICAS[key[1]] or not complete:
            return False
        isr.append(broker)
        if key in self.headless:  # the broker is in service, so it leads
            self.isr[key] = [replica for replica in isr if replica not in self.fenced]
            self.headless.discard(key)
        return True

    def advance(self, index):
        while self.stable < index:
            candidate = self.stable + 1
            mine = [value for where, value in self.objects.items() if where[0] == candidate]
            for holders, ends in mine:
                for key in self.needed(ends):
                    if not set(self.isr[key]) <= holders or len(self.isr[key]) < len(REPLICAS[key[1]]) // 2 + 1:
                        return
            self.stable = candidate
            for key in KEYS:
                self.marks[key] = sum(1 for row in self.rows[key] if row[0] <= candidate)


holder_sets = st.frozensets(st.integers(0, 2), min_size=1) | st.just(frozenset((0, 1, 2)))


@st.composite
def data_objects(draw, name):
    rows = draw(st.dictionaries(st.sampled_from(KEYS), st.integers(1, 4), min_size=1, max_size=4))
    sections, start = [], 0
    for (topic, partition), count in rows.items():
        sections.append(Section(topic, partition, count, start, 8 * count, 0, 0, 0))
        start += 8 * count
    return DataObject(ObjectId(0, name), start, False, draw(holder_sets), tuple(sections))


@st.composite
def histories(draw):
    entries = []
    for index in range(1, draw(st.integers(2, 25))):
        commands = []
        for number in range(draw(st.integers(1, 2))):
            kind = draw(
                st.sampled_from(["append"] * 4 + ["isr", "isr", "holders", "holders", "close", "cut", "fence", "trim"])
            )
            if kind == "append":
                who = ProducerIdentity(
                    draw(st.sampled_from("xy")),
                    "q",
                    draw(st.integers(0, 12)),
                    draw(st.sampled_from("rst")),
                    IdentityKind.STREAM,
                    draw(st.sampled_from(ResetPolicy)),
                    draw(st.sampled_from((b"", b"one plan", b"two plan"))),
                )
                objects = [draw(data_objects(f"{index}-{number}-{k}")) for k in range(draw(st.integers(1, 2)))]
                commands.append(Append(who, "", "", 0, tuple(objects)))
            elif kind == "isr":
                commands.append(IsrChange(None, draw(st.integers(0, 2)), draw(st.booleans()), 0))
            elif kind == "trim":
                offsets = draw(st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 12), max_size=2))
                topic, reason = draw(st.sampled_from(TOPICS)), draw(st.sampled_from(LogStartReason))
                commands.append(LogStartAdvance(topic, reason, tuple(offsets.items())))
            elif kind == "cut":
                commands.append(Truncate(draw(st.integers(0, index))))
            elif kind == "fence":
                commands.append(BrokerFence(draw(st.integers(0, 2)), draw(st.booleans())))
            elif kind == "holders":
                commands.append(HoldersAdd(draw(st.integers(1, index)), 0, 0, tuple(draw(holder_sets))))
            elif draw(st.integers(0, 9)) == 0:
                commands.append(TopicClose(draw(st.sampled_from(TOPICS))))
        entries.append(commands)
    return entries


@pytest.mark.case("server-4-10-4-11-truncation-epochs")
@settings(max_examples=examples(40), deadline=None)
@given(histories())
def test_the_fold_is_the_slow_model(history):
    state, model = TopicLedgerState("L"), Model()
    start = [TopicInit(topic, topic[0], REPLICAS, ()) for topic in TOPICS]
    state.apply(0, encode_entry([encode_command(command) for command in start]))
    model.apply(0, [])
    for index, commands in enumerate(history, start=1):
        results = state.apply(index, encode_entry([encode_command(command) for command in commands]))
        for result, outcome in zip(results, model.apply(index, commands), strict=True):
            assert outcome in (None, result.outcome)
        assert state.stable_index == model.stable
        for key in KEYS:
            partition = state.topics[key[0]].partitions[key[1]]
            assert partition.log_end_offset == len(model.rows[key])
            assert set(partition.isr) == set(model.isr[key])
            assert partition.leader == NO_LEADER if key in model.headless else partition.leader in partition.isr
            epochs = partition.leader_epochs.entries
            assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(epochs))
            assert all(epoch.epoch <= partition.leader_epoch for epoch in epochs)
            assert partition.high_watermark == model.marks[key]
            assert partition.log_start_offset == model.starts[key] <= partition.high_watermark
    check_rows(state, model)


def check_rows(state, model):
    """Offsets are dense from the log start, and each leads to the row that the model has there."""
    for key, rows in model.rows.items():
        names = [name for _, name, _ in rows]
        names_by_offset = {}
        for section in state.sections(*key, 0, len(rows)):
            for offset in range(section.base_offset, section.end_offset):
                assert offset not in names_by_offset
                names_by_offset[offset] = section.object.id.name
        assert all(names[offset] == name for offset, name in names_by_offset.items())
        if key[0] not in model.closed:
            assert set(names_by_offset) >= set(range(model.starts[key], len(rows)))
    lacking = {(c.entry_index, c.command_no, c.object_no): set(c.missing) for c in state.under_replicated()}
    expected = {}
    for where, (holders, ends) in model.objects.items():
        missing = {b for key in model.needed(ends) for b in model.isr[key]} - holders
        if missing:
            expected[where] = missing
    assert lacking == expected


@settings(max_examples=examples(10), deadline=None)
@given(histories())
def test_two_folds_of_the_same_entries_agree(history):
    states = (TopicLedgerState("L"), TopicLedgerState("L"))
    start = [TopicInit(topic, topic[0], REPLICAS, ()) for topic in TOPICS]
    for index, commands in enumerate([start, *history]):
        payload = encode_entry([encode_command(command) for command in commands])
        assert states[0].apply(index, payload) == states[1].apply(index, payload)
    for key in KEYS:
        assert states[0].sections(*key, 0, 1000) == states[1].sections(*key, 0, 1000)
