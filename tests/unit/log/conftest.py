from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    Append,
    Command,
    CommandResult,
    DataObject,
    IdentityKind,
    ProducerIdentity,
    ResetPolicy,
    Section,
    TopicInit,
)

TOPIC = "ab" * 16
OTHER = "cd" * 16


def identity(
    sequence=0,
    *,
    producer="query-1",
    incarnation=None,
    run="run-1",
    kind=IdentityKind.STREAM,
    on_reset=ResetPolicy.FAIL,
    evidence=b"",
) -> ProducerIdentity:
    return ProducerIdentity(producer, incarnation or producer, sequence, run, kind, on_reset, evidence)


def data_object(rows, *, holders=(0, 1, 2), name="o.arrow", generation=0, topic=TOPIC, time_ms=1000):
    """rows: {partition: count} or {(topic, partition): count}."""
    sections, start = [], 8
    for where, count in rows.items():
        topic_id, partition = where if isinstance(where, tuple) else (topic, where)
        sections.append(Section(topic_id, partition, count, start, count * 8, 7, time_ms, time_ms + count))
        start += count * 8
    return DataObject(ObjectId(generation, name), start + 100, False, frozenset(holders), tuple(sections))


def append(rows, sequence=0, *, holders=(0, 1, 2), time_ms=1000, generation=0, **who) -> Append:
    objects = (data_object(rows, holders=holders, time_ms=time_ms, generation=generation),) if rows else ()
    return Append(identity(sequence, **who), "User:a", "c", time_ms, objects)


class Log:
    """A ledger state that is fed commands, one entry per call."""

    def __init__(self, partitions=2, replicas=(0, 1, 2), config=(), topics=((TOPIC, "orders"),)):
        self.state = TopicLedgerState("L")
        for topic_id, name in topics:
            self.entry(TopicInit(topic_id, name, (tuple(replicas),) * partitions, tuple(config)))

    def entry(self, *commands: Command) -> tuple[CommandResult, ...]:
        payload = encode_entry([encode_command(command) for command in commands])
        return self.state.apply(self.state.applied_index + 1, payload)

    def one(self, command: Command) -> CommandResult:
        (result,) = self.entry(command)
        return result

    def ends(self, topic=TOPIC):
        return [p.log_end_offset for p in self.state.topics[topic].partitions]

    def marks(self, topic=TOPIC):
        return [p.high_watermark for p in self.state.topics[topic].partitions]


@pytest.fixture
def kit():
    return SimpleNamespace(TOPIC=TOPIC, OTHER=OTHER, identity=identity, data_object=data_object, append=append, Log=Log)
