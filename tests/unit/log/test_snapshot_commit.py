"""Which snapshot counts is decided in the log: one per state that it was made from."""

from __future__ import annotations

import pytest

from spark_replog.log.codec.commands import encode_command, encode_entry
from spark_replog.log.fold.cluster_state import ClusterLedgerState
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Outcome, SnapshotCommit
from spark_replog.snapshot import DecidedSnapshot


def name(index: int) -> str:
    return f"{index:020d}-{index:032x}"


@pytest.mark.parametrize("state", [ClusterLedgerState(), TopicLedgerState("0" * 32)], ids=["cluster", "topic"])
def test_one_snapshot_follows_another(state):
    def one(base_no, index):
        entry = encode_entry([state.encode_snapshot_commit(base_no, index, name(index))])
        return state.apply(state.applied_index + 1, entry)[0].outcome

    state.apply(0, encode_entry([]))
    assert one(0, 0) is Outcome.APPLIED
    assert state.snapshot == DecidedSnapshot(1, 0, name(0), 1)
    assert one(0, 1) is Outcome.REFUSED, "made from a state without the first snapshot"
    assert one(1, 3) is Outcome.INVALID, "of the entry that holds it"
    assert state.snapshot.no == 1
    assert one(1, 3) is Outcome.APPLIED
    assert one(1, 3) is Outcome.REFUSED, "applied already"
    assert one(2, 1) is Outcome.INVALID, "older than the one that counts"
    assert state.snapshot == DecidedSnapshot(2, 3, name(3), 4)


@pytest.mark.parametrize("text", ["", "x", name(3) + "\n", "../" + name(3)])
def test_a_name_that_no_release_gives_has_no_effect(text):
    state = ClusterLedgerState()
    (result,) = state.apply(0, encode_entry([encode_command(SnapshotCommit(0, 0, text))]))
    assert result.outcome is Outcome.INVALID
    assert state.snapshot == DecidedSnapshot()
