"""Objects are put, roots are lost and rebuilt, and only then the objects are committed: no repair knew of them."""

from __future__ import annotations

import pickle

import pytest

import spark_replog
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import IsrChange
from spark_replog.maintenance.compaction import Compactor
from spark_replog.maintenance.scrub import scrub
from tests.scenarios.repairing import fill, is_applied, lose, put_arrow, read_all, repair
from tests.scenarios.sink_query import Query

pytestmark = pytest.mark.usefixtures("short_tail_retry")


def replace_disks(store, *broker_ids):
    """Lose and rebuild roots one after the other, each time to the end."""
    for broker_id in broker_ids:
        lose(store, broker_id)
        report = repair(store)
        assert all(root.is_repaired for root in report.roots.values()), report.roots


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("acks", [-1, 1])
def test_an_object_that_no_disk_has_any_more_is_not_committed(store, acks):
    store.create("orders", 2)
    fill(store, 0, 2)
    item = store.put("orders", {0: 2, 1: 3}, {0, 1, 2})
    replace_disks(store, 0, 1, 2)
    refused = store.append("orders", {}, batch=2, objects=(item,), acks=acks, timeout_ms=3000)
    assert refused.error is not None and refused.error.code is ErrorCode.NOT_ENOUGH_REPLICAS, refused
    assert read_all(store) == 10
    fill(store, 2, 1)
    assert read_all(store) == 15
    assert not scrub(store.cluster, deep=True).findings


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("replaced", [(0,), (0, 2)])
def test_a_new_disk_gets_its_copy_before_the_commit_counts_it(store, replaced):
    store.create("orders", 2)
    fill(store, 0, 2)
    item = store.put("orders", {0: 2, 1: 3}, {0, 1, 2})
    replace_disks(store, *replaced)
    assert is_applied(store.append("orders", {}, batch=2, objects=(item,)))
    assert not scrub(store.cluster, deep=True).findings
    assert all(item.id.name in store.held_by("orders", broker_id) for broker_id in range(3))


@pytest.mark.parametrize("acks", [-1, 1])
def test_copies_on_brokers_that_left_and_kept_their_disk_are_read_and_count(store, acks):
    """One of many tasks began before all brokers had left in turn: nothing is written a second time, or lost."""
    store.create("orders", 2)
    fill(store, 0, 2)
    item = store.put("orders", {0: 2, 1: 3}, {0, 1, 2})
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    for broker_id in range(3):
        for in_sync in (False, True):
            command = encode_command(IsrChange(None, broker_id, in_sync, 1))
            ledger.append(lambda _, command=command: command, timeout_ms=5000)
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob(item.id.name)}
    assert is_applied(store.append("orders", {}, batch=2, objects=(item,), acks=acks))
    assert len(before) == 3 and before == {path: path.stat().st_mtime_ns for path in store.path.rglob(item.id.name)}
    assert read_all(store) == 15


def test_a_broker_that_was_out_of_sync_and_leaves_again_is_doubted(store):
    store.create("orders", 2)
    ledger = store.cluster.topic_ledger(store.cluster.lookup("orders").ledger_id)
    leave = encode_command(IsrChange(None, 2, False, 1))
    ledger.append(lambda _: leave, timeout_ms=5000)
    item = store.put("orders", {0: 2}, {0, 1, 2})
    assert ledger.ask(lambda state: state.doubtful(item)) == set()
    ledger.append(lambda _: leave, timeout_ms=5000)
    assert ledger.ask(lambda state: state.doubtful(item)) == {2}


def test_one_of_two_roots_that_is_replaced_is_doubted_too(tmp_path, store):
    path = tmp_path / "two"
    spark_replog.init(str(path), 2, fsync=False)
    two = type(store)(path, store.config)
    two.create("orders", 2, 2)
    fill(two, 0, 2, holders={0, 1})
    item = two.put("orders", {0: 2, 1: 3}, {0, 1})
    replace_disks(two, 0, 1)
    refused = two.append("orders", {}, batch=2, objects=(item,), timeout_ms=3000)
    assert refused.error is not None and refused.error.code is ErrorCode.NOT_ENOUGH_REPLICAS, refused
    fill(two, 2, 1, holders={0, 1})
    assert read_all(two) == 15


def test_a_copy_that_the_commit_made_before_the_loss_is_made_again(store, monkeypatch):
    """The append waits for its turn in the ledger, and meanwhile the disk that it copied to is replaced."""
    store.create("orders", 2)
    fill(store, 0, 2)
    item = store.put("orders", {0: 2, 1: 3}, {0, 2})
    from spark_replog.commit import replica_manager

    losses = [1]

    class LosesADisk(replica_manager.WaitingRound):
        def run(self, help_late):
            errors = super().run(help_late)
            while losses:
                replace_disks(store, losses.pop())
            return errors

    monkeypatch.setattr(replica_manager, "WaitingRound", LosesADisk)
    assert is_applied(store.append("orders", {}, batch=2, objects=(item,)))
    assert not losses and not scrub(store.cluster, deep=True).findings


def test_the_sink_fails_the_batch_and_its_repetition_writes_the_rows(store, monkeypatch):
    store.create("orders", 1)
    query = Query(store, monkeypatch, **{"kafka.acks": "all"})
    planned = query.plan()
    message = query.write(planned, b"a", b"b")
    replace_disks(store, 0, 1, 2)
    with pytest.raises(RetriableError) as raised:
        planned.commit([message], 0)
    assert raised.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    planned = query.plan()
    planned.commit([pickle.loads(pickle.dumps(query.write(planned, b"a", b"b")))], 0)
    assert [row["value"] for row in rows_of(store)] == [b"a", b"b"]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_producer_puts_rows_again_that_no_disk_has_any_more(store, monkeypatch, is_idempotent):
    store.create("orders", 1)
    append_records, losses = ReplicaManager.append_records, [0, 1, 2]

    def lose_and_append(manager, requests):
        while losses:
            replace_disks(store, losses.pop(0))
        return append_records(manager, requests)

    with spark_replog.open(str(store.path)).producer(enable_idempotence=is_idempotent) as producer:
        monkeypatch.setattr(ReplicaManager, "append_records", lose_and_append)
        assert producer.send("orders", b"a").result(60).offset == 0
        assert producer.send("orders", b"b").result(60).offset == 1
    assert not losses and [row["value"] for row in rows_of(store)] == [b"a", b"b"]


def test_a_segment_that_compaction_put_before_a_loss_replaces_nothing(store, monkeypatch):
    store.create("orders", 1)
    for batch in range(12):
        item = put_arrow(store, "orders", [2])
        assert is_applied(store.append("orders", {}, batch=batch, objects=(item,)))
    decide, losses = Compactor.decide, [0, 1, 2]

    def lose_and_decide(compactor, ledger_id, command):
        while losses:
            replace_disks(store, losses.pop(0))
        return decide(compactor, ledger_id, command)

    monkeypatch.setattr(Compactor, "decide", lose_and_decide)
    compactor = Compactor(store.cluster)
    assert compactor.compact(store.cluster.lookup("orders")).run_count == 0
    assert len(rows_of(store)) == 24
    assert compactor.compact(store.cluster.lookup("orders")).run_count == 1
    assert len(rows_of(store)) == 24 and not scrub(store.cluster, deep=True).findings


def rows_of(store):
    return spark_replog.open(str(store.path)).topic("orders").scan().to_arrow().to_pylist()
