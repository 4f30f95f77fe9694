"""Which sections retention takes: Kafka's rule over sections instead of segments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_replog.commit.retention import GENERATION_OBJECTS_MAX, retired_of, upkeep_commands
from spark_replog.config.store import TopicConfig
from spark_replog.ids import ObjectId
from spark_replog.log.codec.commands import Append, DataObject, Section, encode_command, encode_entry
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import (
    ConfigSet,
    GenerationAdvance,
    HoldersAdd,
    IdentityKind,
    IsrChange,
    LogStartAdvance,
    LogStartReason,
    Outcome,
    ProducerIdentity,
    TopicClose,
    TopicInit,
)
from tests.examples import examples

TOPIC = "a" * 32
LAG_MS = 1_000_000
KEEP = TopicConfig(retention_ms=-1)


class Life:
    """One partition on two brokers; each append is one object with one section."""

    def __init__(self, *config, partitions=1):
        self.state = TopicLedgerState("L")
        self.entry(TopicInit(TOPIC, "orders", ((0, 1),) * partitions, config))
        self.count = 0

    def entry(self, *commands):
        payload = encode_entry([encode_command(command) for command in commands])
        return self.state.apply(self.state.applied_index + 1, payload)

    def append(self, at_ms, rows=1, size=100, holders=(0, 1), partitions=(0,), clock_ms=None):
        self.count += 1
        sections = tuple(Section(TOPIC, p, rows, size * n, size, 0, at_ms, at_ms) for n, p in enumerate(partitions))
        name = ObjectId(self.state.generations.newest, f"{self.count}.arrow")
        item = DataObject(name, 9, False, frozenset(holders), sections)
        identity = ProducerIdentity(f"p{self.count}", f"p{self.count}", 0, "", IdentityKind.ONE_SHOT)
        (result,) = self.entry(Append(identity, "", "", at_ms if clock_ms is None else clock_ms, (item,)))
        assert result.outcome is Outcome.APPLIED, result
        return item.id

    def retired(self, now_ms, **config):
        topic = self.state.topics[TOPIC]
        return [removal[1:] for removal in retired_of(topic, TopicConfig(**{"retention_ms": -1, **config}), now_ms)]

    @property
    def partition(self):
        return self.state.topics[TOPIC].partitions[0]


@pytest.mark.case("kafka-79")
def test_rows_go_when_the_newest_of_their_section_is_too_old():
    life = Life()
    for at_ms in (10, 20, 30, 40):
        life.append(at_ms, rows=5)
    assert life.retired(110, retention_ms=100) == []
    assert life.retired(111, retention_ms=100) == [(5, 5, 100)]  # strictly older, as Kafka
    assert life.retired(131, retention_ms=100) == [(15, 15, 300)]
    assert life.retired(10**12, retention_ms=100) == [(15, 15, 300)]  # the newest section stays
    assert life.retired(10**12, retention_ms=-1) == []


DAY_MS = 86_400_000


def test_the_default_counts_from_the_append_and_a_setting_from_the_rows_own_time():
    life = Life()
    now_ms = 1000 * DAY_MS
    for _ in range(3):
        life.append(10, rows=5, clock_ms=now_ms)

    def moves(at_ms):
        commands = upkeep_commands(life.state, at_ms, at_ms, LAG_MS)
        return [command for command in commands if isinstance(command, LogStartAdvance)]

    assert moves(now_ms) == []
    assert moves(now_ms + 7 * DAY_MS) == []
    (moved,) = moves(now_ms + 7 * DAY_MS + 1)
    assert moved.offsets == ((0, 10),)
    life.entry(ConfigSet(TOPIC, (("retention.ms", "604800000"),)))
    (moved,) = moves(now_ms)
    assert moved.offsets == ((0, 10),)


@pytest.mark.case("kafka-80")
def test_the_oldest_section_that_stays_holds_younger_ones_of_an_older_time():
    life = Life()
    for at_ms in (900, 10, 20):  # a row from the future pins what comes behind it
        life.append(at_ms)
    assert life.retired(500, retention_ms=100) == []


@pytest.mark.case("kafka-78")
def test_a_partition_never_falls_below_its_size():
    life = Life()
    for _ in range(3):
        life.append(0, rows=5, size=100)
    assert life.retired(0, retention_bytes=200) == [(5, 5, 100)]
    assert life.retired(0, retention_bytes=201) == []  # else 200 bytes were left
    assert life.retired(0, retention_bytes=300) == []
    assert life.retired(0, retention_bytes=0) == [(10, 10, 200)]


def test_size_is_of_what_is_left():
    life = Life()
    for _ in range(4):
        life.append(0, rows=5, size=100)
    assert life.partition.live_bytes == 400
    life.entry(LogStartAdvance(TOPIC, LogStartReason.DELETE_RECORDS, ((0, 7),)))
    assert life.partition.live_bytes == 300  # the section of row 7 is there as a whole
    assert life.retired(0, retention_bytes=200) == [(10, 3, 100)]


@pytest.mark.case("kafka-81")
def test_rows_above_the_high_watermark_stay():
    life = Life()
    life.append(0)
    life.append(0, holders=(0,))  # unstable: broker 1 lacks it
    life.append(0)
    assert life.partition.high_watermark == 1
    assert life.retired(10**9, retention_ms=1) == [(1, 1, 100)]
    life.entry(HoldersAdd(2, 0, 0, (1,)))
    assert life.retired(10**9, retention_ms=1) == [(2, 2, 200)]


def test_one_entry_moves_generation_and_log_starts_and_is_due_once():
    life = Life(("retention.ms", "100"), partitions=2)
    for at_ms in (0, 10, LAG_MS):
        life.append(at_ms, partitions=(0, 1))
    commands = upkeep_commands(life.state, LAG_MS, LAG_MS, LAG_MS)
    assert [type(command) for command in commands] == [GenerationAdvance, LogStartAdvance]
    assert commands[1] == LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 2), (1, 2)))
    assert {result.outcome for result in life.entry(*commands)} == {Outcome.APPLIED}
    assert upkeep_commands(life.state, LAG_MS, LAG_MS, LAG_MS) == []
    assert life.partition.log_start_reason is LogStartReason.RETENTION


def test_settings_of_a_newer_release_and_closed_topics_are_left_alone():
    for config in (("retention.ms", "by phase of the moon"), ("cleanup.policy", "archive")):
        life = Life(config)
        life.append(0)
        life.append(0)
        assert upkeep_commands(life.state, 10**15, 0, LAG_MS) == []
    life = Life(("retention.ms", "1"))
    life.append(0)
    life.append(0)
    life.entry(TopicClose(TOPIC))
    assert upkeep_commands(life.state, 10**15, 0, LAG_MS) == []


def test_a_generation_is_full_after_so_many_objects(monkeypatch):
    monkeypatch.setattr("spark_replog.commit.retention.GENERATION_OBJECTS_MAX", 3)
    assert GENERATION_OBJECTS_MAX * 2 <= 100_000
    life = Life()
    for _ in range(3):
        assert upkeep_commands(life.state, 0, 0, LAG_MS) == []
        life.append(0)
    assert upkeep_commands(life.state, 0, 0, LAG_MS) == [GenerationAdvance(1, 0)]
    life.entry(GenerationAdvance(1, 0))
    assert life.state.generations.object_count == 0
    assert upkeep_commands(life.state, 0, 0, LAG_MS) == []


@pytest.mark.case("kafka-82")
def test_an_object_is_dropped_with_its_last_row():
    life = Life(partitions=2)
    both, one = life.append(5, rows=2, partitions=(0, 1)), life.append(6, rows=2)
    newest = life.append(7, rows=2, partitions=(0, 1))
    assert life.state.referenced_objects(0) == {both.name, one.name, newest.name}
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 3),)))  # inside of `one`
    assert life.state.dropped_objects() == {}
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 4),)))
    assert life.state.dropped_objects() == {one: 7}
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((1, 2),)))
    assert list(life.state.dropped_objects()) == [one, both]
    assert life.state.referenced_objects(0) == {newest.name}
    life.entry(TopicClose(TOPIC))
    life.state.forget_dropped([one])
    assert list(life.state.dropped_objects()) == [both, newest]
    assert life.state.referenced_objects(0) == set()


def test_a_replica_needs_no_copy_of_an_object_without_rows():
    life = Life()
    life.append(0, holders=(0, 1))
    lacking = life.append(0, holders=(0,))
    life.entry(TopicClose(TOPIC))
    assert lacking in life.state.dropped_objects()
    assert not any(life.state.objects.missing.values())


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_replica_joins_again_once_the_rows_that_it_lacks_are_trimmed(is_restored):
    life = Life(("min.insync.replicas", "1"))
    life.append(0)
    life.append(1, holders=(0,))
    life.entry(IsrChange(None, 1, False, 5))
    life.append(2, holders=(0, 1))
    (refused,) = life.entry(IsrChange(TOPIC, 1, True, 6))
    assert refused.outcome is Outcome.SKIPPED and life.partition.isr == (0,)
    life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((0, 2),)))
    assert not any(life.state.objects.missing.values())
    if is_restored:
        state = TopicLedgerState("L")
        state.restore(life.state.freeze().head, lambda name: b"")
        life.state = state
    (copied,) = life.entry(HoldersAdd(2, 0, 0, (1,)))
    (joined,) = life.entry(IsrChange(TOPIC, 1, True, 7))
    assert (copied.outcome, joined.outcome) == (Outcome.INVALID, Outcome.APPLIED)
    assert life.partition.isr == (0, 1)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_live_bytes_and_references_are_those_of_the_rows(data):
    """Whatever is appended, trimmed and aged: counters that are kept equal a count over the rows."""
    life = Life(partitions=3)
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            partitions = data.draw(st.sets(st.integers(0, 2), min_size=1))
            life.append(0, rows=data.draw(st.integers(1, 3)), size=data.draw(st.integers(1, 9)), partitions=partitions)
        else:
            number = data.draw(st.integers(0, 2))
            end = life.state.topics[TOPIC].partitions[number].high_watermark
            offset = data.draw(st.integers(0, end))
            life.entry(LogStartAdvance(TOPIC, LogStartReason.RETENTION, ((number, offset),)))
    named = set()
    for number, partition in enumerate(life.state.topics[TOPIC].partitions):
        rows = life.state.sections(TOPIC, number, partition.log_start_offset, partition.log_end_offset)
        assert partition.live_bytes == sum(row.size_bytes for row in rows)
        named |= {row.object.id.name for row in rows}
    assert life.state.referenced_objects(0) == named
    everything = {f"{number}.arrow" for number in range(1, life.count + 1)}
    assert {object_id.name for object_id in life.state.dropped_objects()} == everything - named


def test_what_is_only_compacted_never_ages_out():
    life = Life()
    for at_ms in (0, 1000, 2000):
        life.append(at_ms)
    assert life.retired(10_000, retention_ms=1, cleanup_policy="compact") == []
    assert life.retired(10_000, retention_ms=1, retention_bytes=0, cleanup_policy="compact") == []
    assert life.retired(10_000, retention_ms=1, cleanup_policy="compact,delete") == life.retired(10_000, retention_ms=1)
