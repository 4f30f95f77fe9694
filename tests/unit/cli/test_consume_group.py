"""``replog consume --group``: what a member reads, commits and leaves behind."""

from __future__ import annotations

import pytest

from spark_replog import Consumer, TopicPartition
from spark_replog.groups.group_coordinator import GroupCoordinator
from tests.unit.client.consumer_setup import Store, rows
from tests.waiting import wait_until

PATIENCE_S = 60


@pytest.fixture
def store(tmp_path):
    made = Store.init(str(tmp_path / "store"))
    made.create("orders", 2)
    return made


def wait_for(groups, wanted):
    def current():
        state = groups.group("app")
        return None if state is None else (state.phase.name, len(state.metadata.members))

    wait_until(lambda: current() == wanted, lambda: f"{wanted}, found {current()}", pause_seconds=0.05)


def committed(groups):
    return {key.partition: value.offset for key, value in groups.fetch_offsets("app").items()}


def test_a_member_reads_its_share_to_the_end_of_now_and_leaves(store, replog):
    groups = GroupCoordinator(store.cluster)
    store.write("orders", rows(3), partition=0)
    store.write("orders", rows(2), partition=1)
    answer = replog("-s", store.path, "consume", "orders", "-g", "app", "-n", 4, "-f", "jsonl")
    assert len(answer.out.splitlines()) == 4
    assert groups.group("app").metadata.generation > 0
    assert committed(groups) == {0: 3, 1: 1}
    wait_for(groups, ("EMPTY", 0))
    assert len(replog("-s", store.path, "consume", "orders", "-g", "app", "-f", "jsonl").out.splitlines()) == 1
    assert replog("-s", store.path, "consume", "orders", "-g", "app").out == ""
    assert committed(groups) == {0: 3, 1: 2}


def test_a_group_without_an_offset_follows_from_the_end_and_from_beginning_holds_only_there(store, replog):
    store.write("orders", rows(2), partition=0)
    with Consumer(store.cluster, group="app", enable_auto_commit=False) as reader:
        reader.assign([TopicPartition("orders", 0)])
        reader.commit({TopicPartition("orders", 0): 1})
    follow = ["-s", store.path, "consume", "orders", "--follow", "--timeout-ms", 300]
    assert replog(*follow, "-g", "new").out == ""
    assert replog(*follow, "-g", "app", "--from-beginning").out == "v1\n"
    assert replog(*follow, "-g", "other", "--from-beginning").out == "v0\nv1\n"


def test_a_member_cannot_be_sent_to_an_offset_but_partitions_beside_the_group_can(store, replog):
    store.write("orders", rows(3), partition=0)
    consume = ["-s", store.path, "consume", "orders", "-g", "app", "-o", "1"]
    refused = replog(*consume)
    assert refused.exit_code == 2
    assert "reset-offsets" in refused.err
    assert replog(*consume, "-p", 0).out == "v1\nv2\n"
    assert committed(GroupCoordinator(store.cluster)) == {0: 3}
