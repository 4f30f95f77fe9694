from __future__ import annotations

import pytest

from spark_replog.errors import ErrorCode, ReplogError, UnsupportedFormatError
from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.entry_fold import FEATURE_LEVEL_FIRST
from spark_replog.log.model import (
    BrokerRegister,
    FeatureSet,
    LedgerRegister,
    Outcome,
    TopicClose,
    TopicPublish,
    TopicUnpublish,
)

A, B, C = "a" * 32, "b" * 32, "c" * 32


def apply(state, *commands):
    payload = encode_entry([encode_command(command) for command in commands])
    return [result.outcome for result in state.apply(state.applied_index + 1, payload)]


def test_brokers_are_registered_and_updated():
    state = ClusterLedgerState()
    first = BrokerRegister(0, "file:///a", None, "{}")
    assert apply(state, first, first) == [Outcome.APPLIED, Outcome.EXISTS]
    assert apply(state, BrokerRegister(0, "file:///b", "r1", "{}")) == [Outcome.APPLIED]
    assert (state.brokers[0].url, state.brokers[0].rack) == ("file:///b", "r1")


def test_the_first_publisher_of_a_name_wins():
    state = ClusterLedgerState()
    assert apply(state, TopicPublish("t", A, B), TopicPublish("t", C, B)) == [Outcome.APPLIED, Outcome.EXISTS]
    assert state.topics == {"t": (A, B)}


def test_unpublish_frees_only_its_own_id():
    state = ClusterLedgerState()
    apply(state, TopicPublish("t", A, B))
    assert apply(state, TopicUnpublish("t", C)) == [Outcome.EXISTS]
    assert apply(state, TopicUnpublish("t", A), TopicPublish("t", C, B)) == [Outcome.APPLIED] * 2
    assert state.topics == {"t": (C, B)}


def test_ledger_names_are_given_once():
    state = ClusterLedgerState()
    assert apply(state, LedgerRegister("l", A), LedgerRegister("l", B)) == [Outcome.APPLIED, Outcome.EXISTS]
    assert state.ledgers == {"l": A}


def test_a_higher_feature_level_stops_this_release():
    state = ClusterLedgerState()
    assert apply(state, FeatureSet(1)) == [Outcome.EXISTS]
    with pytest.raises(UnsupportedFormatError) as caught:
        apply(state, TopicPublish("t", A, B), FeatureSet(ClusterLedgerState.newest_level + 1))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert (state.topics, state.applied_index) == ({}, 0), "nothing of the entry was folded"


def test_a_snapshot_at_a_higher_feature_level_stops_this_release():
    """It is all that a process which starts from it sees of the entry that raised the level."""
    state = ClusterLedgerState()
    apply(state, TopicPublish("t", A, B))
    again = ClusterLedgerState()
    again.restore(state.freeze().head, state.load_page)
    assert again.feature_level == FEATURE_LEVEL_FIRST
    state.feature_level = ClusterLedgerState.newest_level + 1
    with pytest.raises(UnsupportedFormatError) as caught:
        again.restore(state.freeze().head, state.load_page)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_misplaced_commands_and_entries():
    state = ClusterLedgerState()
    assert apply(state, TopicClose(A)) == [Outcome.INVALID]
    with pytest.raises(ReplogError, match="folded after"):
        state.apply(5, encode_entry([]))
