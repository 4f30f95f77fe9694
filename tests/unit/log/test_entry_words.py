"""Entries in words: each kind of command is a sentence with its values, and what cannot be read says so."""

from __future__ import annotations

import typing

import pytest

from spark_replog import Consumer
from spark_replog.admin.admin import BrokerAdmin
from spark_replog.admin.controller import Controller
from spark_replog.log.codec.commands import Undecodable
from spark_replog.log.entry_words import command_words, entry_words
from spark_replog.log.model import ClusterConfigSet, Command, FeatureSet, LedgerRegister, Truncate
from tests.unit.client.consumer_setup import P0, Store, rows


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"), 3)
    made.create("orders", 2)
    made.write("orders", rows(10))
    with Consumer(made.cluster, group="billing", enable_auto_commit=False) as reader:
        reader.assign([P0])
        reader.commit({P0: 4})
    Controller(made.cluster).alter_config("orders", {"retention.ms": "1000"})
    BrokerAdmin(made.cluster).fence(2)
    return made


def words(store, topic):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup(topic))
    names = {topic_state.topic_id: topic_state.name for topic_state in ledger.state.topics.values()}
    recent = ledger.recent(100)
    assert [index for index, _ in recent] == list(range(ledger.state.applied_index, -1, -1))
    return [line for _, payload in reversed(recent) for line in entry_words(payload, names)]


def test_the_entries_of_a_topic_tell_its_story(store):
    story = "\n".join(words(store, "orders"))
    assert "creates topic orders with 2 partitions" in story
    assert "appends 10 rows to orders-0 (10) in 1 object of" in story
    assert "changes settings of topic orders: retention.ms = 1000" in story
    assert "broker 2 is fenced" in story
    assert "orders-0 read up to 4" in "\n".join(words(store, "__consumer_offsets"))


def test_recent_entries_are_bounded_by_count_and_by_what_a_snapshot_took(store):
    ledger, _ = store.cluster.topic_state(store.cluster.lookup("orders"))
    assert [index for index, _ in ledger.recent(2)] == [ledger.state.applied_index, ledger.state.applied_index - 1]
    assert ledger.recent(0) == []
    ledger.snapshot(timeout_ms=10_000)
    again, _ = store.another_process().cluster.topic_state(store.cluster.lookup("orders"))
    assert 1 <= len(again.recent(100)) < again.state.applied_index


def test_any_other_command_is_named_with_its_fields():
    assert command_words(FeatureSet(2), {}) == "feature set: level 2"
    assert command_words(Truncate(7), {}) == "cuts all appends after entry 7"
    assert command_words(LedgerRegister("a", "f" * 32), {}) == f"ledger register: name a, ledger_id {'f' * 32}"
    many = ClusterConfigSet(tuple((f"key.{number}", "1") for number in range(20)))
    assert command_words(many, {}).endswith("and 12 more")


def test_what_cannot_be_read_says_so():
    assert entry_words(b"\xff\xff\xff", {})[0].startswith("cannot be read: ")
    assert command_words(Undecodable("no such type"), {}) == "a command without effect: no such type"


def test_every_command_has_fields_that_a_sentence_can_name():
    kinds = {*typing.get_args(Command)}
    assert all(hasattr(kind, "__dataclass_fields__") for kind in kinds)
