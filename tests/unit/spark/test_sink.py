"""The sink's exactly-once rules (docs/design/identity.md), called as Spark's workers call it, without a JVM."""

from __future__ import annotations

import logging
import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_replog.admin.access_admin import AclAdmin
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, RetriableError
from spark_replog.log.acl import AclBinding, AclOperation, PatternType, Permission, ResourceType
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.model import ConfigSet, IdentityKind, ProducerIdentity
from spark_replog.logs import Once
from spark_replog.spark.compat import COMMIT_WORKER
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.spark.sink import sink
from tests.at_rest import wait_at_rest
from tests.unit.spark.sink_writes import SCHEMA, Task


@pytest.mark.guarantee("G1")
def test_offsets_follow_the_tasks_whatever_order_spark_gives_the_messages_in(writes):
    writer, messages = writes.tasks(0, [b"a", b"b"], [b"c"], [b"d"], topic="orders")
    writer.commit(messages[::-1], 0)
    assert writes.values() == [b"a", b"b", b"c", b"d"]


def test_a_repeated_batch_is_success_without_effect(writes, caplog):
    writes.run(0, [b"a"], [b"b"], topic="orders")
    with caplog.at_level(logging.INFO):
        writes.run(0, [b"a"], [b"b"], topic="orders")
    assert "batch 0 of query-1 was applied before" in caplog.text
    writes.run(1, [b"c"], topic="orders")
    assert writes.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("acks", "waits"), [("all", 0), ("1", 1), ("0", 1)])
def test_a_commit_waits_for_the_copies_without_which_no_row_is_readable(writes, monkeypatch, acks, waits):
    calls = []
    monkeypatch.setattr(ReplicaManager, "await_copies", lambda *_: calls.append(1))
    writes.run(0, [b"a"], topic="orders", acks=acks)
    assert len(calls) == waits


@pytest.mark.parametrize(("code", "times"), [(ErrorCode.REPLOG_LEDGER_BUSY, 3), (ErrorCode.REPLOG_NO_QUORUM, 1)])
def test_a_plan_is_made_again_while_roots_are_slow_and_not_if_they_are_away(writes, monkeypatch, code, times):
    """Spark repeats no planning: a query would end."""
    made, plan = [], sink.make_write_plan

    def slow(*arguments):
        made.append(1)
        if len(made) < times + (code is ErrorCode.REPLOG_NO_QUORUM):
            raise RetriableError(code, "no answer")
        return plan(*arguments)

    monkeypatch.setattr(sink, "make_write_plan", slow)
    with nullcontext() if times > 1 else pytest.raises(RetriableError, match="REPLOG_NO_QUORUM"):
        writes.run(0, [b"a"], topic="orders")
        assert writes.values() == [b"a"]
    assert len(made) == times
    monkeypatch.setattr(sink, "make_write_plan", Mock(side_effect=RetriableError(ErrorCode.REPLOG_LEDGER_BUSY, "slow")))
    with pytest.raises(RetriableError, match="REPLOG_LEDGER_BUSY"):
        writes.run(1, [b"b"], topic="orders", **{"max.block.ms": "0"})


@pytest.mark.guarantee("G3")
def test_a_commit_called_twice_with_the_same_messages_appends_once(writes):
    writer, messages = writes.tasks(0, [b"a"], topic="orders")
    writer.commit(messages, 0)
    writer.commit(messages, 0)
    assert writes.values() == [b"a"]


@pytest.mark.guarantee("G3")
def test_the_run_before_is_fenced_by_the_next_one(writes):
    zombie, late = writes.tasks(1, [b"late"], topic="orders", run="run-1")
    writes.run(0, [b"a"], topic="orders", run="run-1")
    writes.run(1, [b"b"], topic="orders", run="run-2")
    zombie.commit(late, 1)  # its batch is there: success without effect
    late_again = writes.tasks(2, [b"c"], topic="orders", run="run-1")
    with pytest.raises(ReplogError) as raised:
        late_again[0].commit(late_again[1], 2)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED
    writes.run(2, [b"d"], topic="orders", run="run-2")
    assert writes.values() == [b"a", b"b", b"d"]


def test_two_queries_append_both(writes):
    writes.run(0, [b"a"], topic="orders", query="query-1")
    writes.run(0, [b"b"], topic="orders", query="query-2")
    assert writes.values() == [b"a", b"b"]


@pytest.mark.guarantee("G6")
def test_an_abort_deletes_nothing_of_a_decided_batch(writes, caplog):
    writer, messages = writes.tasks(0, [b"a"], [b"b"], topic="orders")
    writer.commit(messages, 0)
    writer.abort(messages, 0)  # Spark calls it after a commit that raised
    assert "its 2 data objects stay" in caplog.text
    assert writes.values() == [b"a", b"b"]


def test_a_task_without_its_message_stops_the_commit(writes):
    writer, messages = writes.tasks(0, [b"a"], [b"b"], topic="orders")
    with pytest.raises(ReplogError) as raised:
        writer.commit([messages[0], None], 0)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert writes.values() == []


@pytest.mark.parametrize("missing", ["sql.streaming.queryId", "streaming.sql.batchId"])
def test_a_task_that_spark_tells_no_query_or_batch_writes_nothing(writes, missing):
    writer, _ = writes.tasks(0, topic="orders")
    properties = {"sql.streaming.queryId": "query-1", "streaming.sql.batchId": "0", missing: None}
    with pytest.raises(ReplogError, match="gave the task no query id") as raised:
        writes.write_task(writer, 0, [b"a"], properties)
    assert raised.value.code is ErrorCode.REPLOG_ENVIRONMENT
    assert list(writes.source.path.rglob("*.arrow")) == []


@pytest.mark.guarantee("G3")
def test_of_two_attempts_of_a_task_only_the_one_that_spark_reports_counts(writes):
    writer, first = writes.tasks(0, [b"a", b"b"], [b"c"], topic="orders")
    _, second = writes.tasks(0, [b"a", b"b"], [b"c"], topic="orders")  # a retry, or a speculative copy
    writer.commit([first[0], second[1]], 0)
    assert writes.values() == [b"a", b"b", b"c"]


def test_a_batch_without_rows_puts_nothing_and_decides_nothing(writes):
    wait_at_rest(writes.source.cluster.brokers)
    files = sorted(writes.source.path.rglob("*"))
    writer, messages = writes.tasks(0, [], [], topic="orders")
    assert [message.objects for message in messages] == [(), ()]
    writer.commit(messages, 0)
    writer.commit([], 0)  # a micro-batch without tasks
    writes.batch([], topic="orders")[0].commit([])
    assert sorted(writes.source.path.rglob("*")) == files


@pytest.mark.parametrize(
    ("policy", "expected"), [("fail", None), ("append", [b"a", b"b", b"c"]), ("skip", [b"a", b"b"])]
)
def test_a_deleted_checkpoint_meets_the_policy_of_its_transactional_id(writes, policy, expected):
    options = {"topic": "orders", "transactional.id": "etl", "onCheckpointReset": policy}
    writes.run(0, [b"a"], **options)
    writes.run(1, [b"b"], **options)
    if expected is None:
        with pytest.raises(ReplogError) as raised:
            writes.run(0, [b"c"], query="query-2", run="run-2", **options)
        assert raised.value.code is ErrorCode.REPLOG_CHECKPOINT_RESET
        expected = [b"a", b"b"]
    else:
        writes.run(0, [b"c"], query="query-2", run="run-2", **options)
    assert writes.values() == expected


def test_a_query_and_a_transactional_id_of_the_same_name_are_two_producers(writes):
    writes.run(3, [b"a"], topic="orders", query="etl")
    writes.run(0, [b"b"], topic="orders", **{"transactional.id": "etl"})
    writes.run(4, [b"c"], topic="orders", query="etl")
    handle = writes.source.cluster.lookup("orders")
    ledger, _ = writes.source.cluster.topic_state(handle)
    last = {
        kind: ledger.state.producers.get(ProducerIdentity("etl", "", 0, "", kind)).last_sequences
        for kind in (IdentityKind.STREAM, IdentityKind.TRANSACTIONAL)
    }
    assert last == {IdentityKind.STREAM: {"etl": 4}, IdentityKind.TRANSACTIONAL: {"query-1": 0}}
    assert writes.values() == [b"a", b"b", b"c"]


def test_without_a_transactional_id_a_deleted_checkpoint_is_a_new_query(writes):
    writes.run(0, [b"a"], topic="orders", query="query-1")
    writes.run(0, [b"a"], topic="orders", query="query-2", run="run-2")
    assert writes.values() == [b"a", b"a"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_batch_of_which_acks_0_dropped_every_row_is_told(writes, caplog, is_stream):
    writer, messages = writes.tasks(3, [b"a"])
    if not is_stream:
        writer = ReplogDataSource({"path": str(writes.source.path)}).writer(SCHEMA, False)
    gone = [replace(message, objects=(), dropped_rows=1) for message in messages]
    writer.commit(gone, 3) if is_stream else writer.commit(gone)
    assert "[REPLOG_ACKS0_DROPPED] 1 rows" in caplog.text


def test_a_batch_write_with_a_version_is_applied_once(writes):
    named = {"topic": "orders", "txnAppId": "load", "txnVersion": "3"}
    writes.batch([b"a"], [b"b"], **named)
    writes.batch([b"a"], [b"b"], **named)
    with pytest.raises(ReplogError) as raised:
        writes.batch([b"a"], **named)
    assert raised.value.code is ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH
    writes.batch([b"c"], **{**named, "txnVersion": "4"})
    assert writes.values() == [b"a", b"b", b"c"]


def test_a_repeated_version_puts_rows_without_a_key_where_they_were(writes, caplog):
    writes.source.topic("wide", partitions=16)
    for version in range(4):
        for _ in range(2):
            writes.batch([b"a"], [b"b"], topic="wide", txnAppId="load", txnVersion=str(version))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    reader = writes.source.batch(subscribe="wide")
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 8


def test_a_plain_batch_write_appends_each_time_but_once_a_writer(writes):
    writer, messages = writes.batch([b"a"], topic="orders")
    writer.commit(messages)  # the answer was lost, and Spark asks again
    writes.batch([b"a"], topic="orders")
    assert writes.values() == [b"a", b"a"]


def batch_of(values):
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_every_batch_of_a_task_is_written_and_empty_ones_cost_nothing(writes):
    writer = ReplogDataSource({"path": str(writes.source.path), "topic": "orders"}).writer(SCHEMA, False)
    message = writer.write(iter([batch_of([]), batch_of([b"a"]), batch_of([]), batch_of([b"b", b"c"]), batch_of([])]))
    assert len(message.objects) == 1
    nothing = writer.write(iter([batch_of([])]))
    assert (nothing.dropped_rows, nothing.objects, nothing.copies) == (0, (), ())
    writer.commit([message, nothing])
    assert writes.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("old_at", [1, 2])
def test_a_task_that_grew_too_old_leaves_nothing_behind(writes, monkeypatch, old_at):
    looks = []

    def look(plan, config):
        looks.append(plan)
        if len(looks) == old_at:
            raise ReplogError(ErrorCode.REPLOG_JOB_TOO_LONG, "too old.")

    monkeypatch.setattr(sink, "check_task_age", look)
    writer = ReplogDataSource({"path": str(writes.source.path), "topic": "orders"}).writer(SCHEMA, False)
    with pytest.raises(ReplogError) as raised:  # looked at before each further batch, and before the end
        writer.write(iter([batch_of([b"a"]), batch_of([b"b"])]))
    assert raised.value.code is ErrorCode.REPLOG_JOB_TOO_LONG
    assert list(writes.source.path.rglob("*.arrow")) == []


def test_a_plain_batch_write_inside_a_query_warns_once(writes, caplog, monkeypatch):
    monkeypatch.setattr(sink, "_warned_queries", Once())
    inside = {"sql.streaming.queryId": "query-9", "streaming.sql.batchId": "0"}
    other = {**inside, "sql.streaming.queryId": "query-10"}

    def warned():
        return [record.args[0] for record in caplog.records if "txnAppId" in record.getMessage()]

    writes.batch([b"a"], topic="orders")
    writes.batch([b"b"], properties=other, topic="orders", txnAppId="query-10", txnVersion="0")
    assert warned() == []
    writes.batch([b"c"], properties=inside, topic="orders")
    writes.batch([b"d"], properties=inside, topic="orders")
    assert warned() == ["query-9"]
    assert writes.values() == [b"a", b"b", b"c", b"d"]


def test_a_batch_over_two_ledgers_names_what_is_decided_and_its_repetition_completes_it(writes):
    rows = {"orders": [b"a"], "payments": [b"p", b"q"]}
    writes.source.topic("payments")
    writer, messages = writes.tasks(0, rows)
    writes.source.controller.delete_topic("payments")
    with pytest.raises(ReplogError, match="spans several ledgers") as raised:
        writer.commit(messages, 0)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (raised.value.context["decided"], raised.value.context["undecided"]) == ("orders", "payments")
    writes.source.topic("payments")
    writes.run(0, rows)
    assert writes.values("orders") == [b"a"]
    assert writes.values("payments") == [b"p", b"q"]


def test_a_right_that_was_given_a_moment_ago_holds_for_the_commit_as_for_the_plan(writes):
    """They are made by two processes, which look at the ACLs at different times: here, by two spellings of the path."""
    admin, literal = AclAdmin(writes.source.cluster, "User:admin"), PatternType.LITERAL

    def grant(principal, operation=AclOperation.WRITE):
        admin.add([AclBinding(ResourceType.TOPIC, "orders", literal, principal, operation, Permission.ALLOW)])

    grant("User:*", AclOperation.READ)
    options = {"path": f"{writes.source.path}/", "principal": "User:writer"}
    committer = ReplogDataSource(options).streamWriter(SCHEMA, False)
    grant("User:writer")
    _, messages = writes.tasks(0, [b"a"], principal="User:writer")
    committer.commit(messages, 0)
    assert writes.values() == [b"a"]


def test_rows_of_a_task_without_a_plan_are_refused_and_not_dropped(writes, monkeypatch):
    monkeypatch.setattr(sink, "is_worker", lambda module: module == COMMIT_WORKER)
    with pytest.raises(ReplogError, match="has rows and no plan") as raised:
        writes.tasks(0, [b"a"], topic="orders")
    assert raised.value.code is ErrorCode.REPLOG_ENVIRONMENT
    _, messages = writes.tasks(0, [], topic="orders")
    assert [message.objects for message in messages] == [()]


def test_overwrite_is_refused(writes):
    with pytest.raises(InvalidConfigError, match="append"):
        ReplogDataSource({"path": str(writes.source.path), "topic": "orders"}).writer(SCHEMA, True)


def test_a_topic_setting_of_a_newer_release_does_not_stop_writers(source, caplog):
    source.topic("t")
    handle = source.cluster.lookup("t")
    newer = (("cleanup.policy", "archive"), ("remote.storage.enable", "true"))
    command = encode_command(ConfigSet(handle.topic_id, newer))
    source.cluster.topic_ledger(handle.ledger_id).append(lambda _: command, timeout_ms=5000)
    for _ in range(2):
        source.write("t", {0: 2})
    assert source.rows(source.batch(subscribe="t")) == {"t-0": [0, 1, 2, 3]}
    (warning,) = [record.getMessage() for record in caplog.records if "cleanup.policy=archive" in record.getMessage()]
    assert "'t'" in warning and "remote.storage.enable=true" in warning


def test_what_a_worker_imports_is_out_of_the_collection_from_its_next_call_on(writes, freezes, monkeypatch):
    """``pyspark.daemon`` collects after each call: of a worker that plans, of a task, of one that commits."""

    def freezes_again(call):
        name = f"replog_imported_late_{len(freezes)}"
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        before = len(freezes)
        result = call()
        assert len(freezes) > before
        return result

    source = ReplogDataSource({"path": str(writes.source.path), "topic": "orders"})
    writer = freezes_again(lambda: source.streamWriter(SCHEMA, False))
    properties = {"sql.streaming.queryId": "query-1", "streaming.sql.batchId": "0", "spark.jobGroup.id": "run"}
    message = freezes_again(lambda: writes.write_task(writer, 0, [b"a"], properties))
    monkeypatch.setattr(sink, "is_worker", lambda module: module == COMMIT_WORKER)
    freezes_again(lambda: source.streamWriter(SCHEMA, False)).commit([message], 0)
    reader = writes.source.batch(subscribe="orders")
    (task,) = freezes_again(reader.partitions)
    assert freezes_again(lambda: list(reader.read(task)))[0].num_rows == 1
    freezes_again(source.schema)
    batch_writer = freezes_again(lambda: source.writer(SCHEMA, False))
    message = freezes_again(lambda: writes.write_task(batch_writer, 0, [b"b"], properties))
    freezes_again(lambda: batch_writer.commit([message]))


def test_a_task_freezes_nothing_of_its_own_rows(writes, freezes, monkeypatch):
    """Frozen garbage stays for ever: a writer refers to itself, and to what it wrote."""
    during = []
    monkeypatch.setattr(sink, "freeze_garbage", lambda: during.append("freeze"))

    def batches():
        during.append("rows")
        yield pa.record_batch({"topic": ["orders"], "value": [b"b"]})

    writer, _ = writes.tasks(0, topic="orders")
    writes.task = Task(0, {"sql.streaming.queryId": "query-1", "streaming.sql.batchId": "0"})
    del during[:]
    writer.write(batches())
    assert during == ["freeze", "rows"]
