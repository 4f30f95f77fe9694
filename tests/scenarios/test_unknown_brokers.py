"""Entries that name a broker which no root file lists, and strange files: another hand made them, and work goes on."""

from __future__ import annotations

import pytest

from spark_replog.admin.coordinator_loop import CoordinatorLoop
from spark_replog.cli.main import run
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import BrokerFence, BrokerRegister, IsrChange, PartitionChange
from spark_replog.storage.paths import journal_folder, marker_folder, snapshot_folder
from tests.scenarios.conftest import LocalStore
from tests.scenarios.repairing import lose, put_arrow, read_all, repair

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


def test_a_registered_broker_that_no_root_file_lists_gets_no_replica(store):
    ledger = store.cluster.cluster_ledger
    command = encode_command(BrokerRegister(99, "file:///elsewhere", None, "{}"))
    ledger.append(lambda _: command, timeout_ms=60_000)
    store.reopen()
    for number in range(6):
        store.controller.create_topic(f"t{number}", 3)
    described = [store.controller.describe_topic(f"t{number}") for number in range(6)]
    assert {broker for topic in described for row in topic.partitions for broker in row.replicas} == {0, 1, 2}
    with pytest.raises(InvalidConfigError) as caught:
        store.controller.create_topic("other", assignment=[[0, 1, 99]])
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert run(["-q", "-s", str(store.path), "broker", "list"]) == 0
    assert run(["-q", "-s", str(store.path), "status"]) in (0, 3)
    assert run(["-q", "-s", str(store.path), "store", "verify"]) == 0


def test_strange_files_in_a_ledgers_folders_on_all_roots_are_left_alone(store):
    store.create("orders", 2)
    assert store.append("orders", {}, batch=0, objects=(put_arrow(store, "orders", [2, 2]),)).error is None
    ledger_id = store.cluster.lookup("orders").ledger_id
    for root in range(3):
        for name in ("7", "99", "\u0667" * 20, "\u00b2" * 20, "notes.txt", f"{50:020d}.bak", "1" * 200):
            for folder in (journal_folder(ledger_id), marker_folder(ledger_id), snapshot_folder(ledger_id)):
                (store.path / f"broker-{root}" / folder).mkdir(exist_ok=True)
                (store.path / f"broker-{root}" / folder / name).write_bytes(b"?")
    store.reopen()
    assert store.append("orders", {}, batch=1, objects=(put_arrow(store, "orders", [2, 2]),)).error is None
    assert read_all(store) == 8
    assert run(["-q", "-s", str(store.path), "store", "snapshot"]) == 0
    assert run(["-q", "-s", str(store.path), "store", "verify", "--deep"]) == 0
    lose(store, 1)
    assert repair(store).roots[1].is_repaired
    store.reopen()
    assert read_all(store) == 8
