"""Entries that name a broker which no root file lists: a defect or another hand wrote them, and work goes on."""

from __future__ import annotations

import pytest

from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import (
    BrokerFence,
    HoldersAdd,
    IsrChange,
    PartitionChange,
)
from tests.scenarios.conftest import LocalStore
from tests.scenarios.repairing import put_arrow, read_all, repair

OTHER = 77


def decide(store: LocalStore, topic: str, *commands: object) -> None:
    ledger = store.cluster.topic_ledger(store.cluster.lookup(topic).ledger_id)
    ledger.append(lambda _: tuple(map(encode_command, commands)), timeout_ms=60_000)


def commands(store: LocalStore, kind: str) -> list[object]:
    handle = store.cluster.lookup("orders")
    state = store.cluster.topic_state(handle)[1].partitions[0]
    at = handle.topic_id, 0, state.leader_epoch, state.partition_epoch
    if kind == "a partition's replica":
        return [PartitionChange(*at, 0, (0, 1, 2, OTHER), (0, 1, 2, OTHER))]
    if kind == "a partition's leader":
        return [PartitionChange(*at, OTHER, (OTHER, 0, 1, 2), (OTHER, 0, 1, 2))]
    if kind == "a partition's new replica":
        return [PartitionChange(*at, 0, (0, 1, 2), (0, 1, 2, OTHER), (OTHER,))]
    if kind == "an object's holder":
        return [HoldersAdd(store.sections("orders")[0].object.entry_index, 0, 0, (OTHER,))]
    if kind == "a broker that leaves":
        return [IsrChange(None, OTHER, False, 0), IsrChange(None, OTHER, True, 0)]
    return [BrokerFence(OTHER, True)]


@pytest.mark.parametrize(
    "kind",
    [
        "a partition's replica",
        "a partition's leader",
        "a partition's new replica",
        "a broker that leaves",
        "a fenced broker",
    ],
)
def test_an_entry_that_names_an_unknown_broker_ends_neither_writes_nor_tools(store, kind):
    store.create("orders", 2)
    first = put_arrow(store, "orders", [2, 2])
    assert store.append("orders", {}, batch=0, objects=(first,)).error is None
    decide(store, "orders", *commands(store, kind))
    store.reopen()
    response = store.append("orders", {}, batch=1, objects=(put_arrow(store, "orders", [2, 2]),))
    assert response.error is None, response.error
    assert CoordinatorLoop(Cluster.open(str(store.path), config=store.config)).run_once().failed_count == 0
    assert read_all(store) == 8
    assert run(["-q", "-s", str(store.path), "store", "verify", "--deep"]) in (0, 3)
    repair(store, deep=True)
    assert run(["-q", "-s", str(store.path), "status"]) in (0, 3, 4)
    assert read_all(store) == 8
