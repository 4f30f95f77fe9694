"""Which writes of one number are the same one: checkpoints that were copied, restored and edited, and txnVersions."""

from __future__ import annotations

import logging
import random
import shutil

import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.logs import Once
from spark_replog.spark.sink import evidence
from spark_replog.storage.posix_store import PosixStore
from tests.unit.spark.sink_writes import Query

pytestmark = pytest.mark.guarantee("G3")


def rows_of(first, end):
    return [f"{number:03d}".encode() for number in range(first, end)]


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    monkeypatch.setattr(evidence, "WARNED", Once())
    evidence.FAILURES.clear()


@pytest.fixture
def shared_ledger(writes):
    for name in ("sales", "payments"):
        writes.source.controller.create_topic(name, 1, 3, ledger_name="shared")


@pytest.fixture
def query(writes, tmp_path):
    return Query(writes, [], tmp_path / "first")


def copied(query, name, **options):
    """Return a query that runs from a copy of the checkpoint as it is now."""
    folder = query.checkpoint.with_name(name)
    shutil.copytree(query.checkpoint, folder)
    return Query(query.writes, query.rows, folder, **{**query.options, **options})


def runs(query, count):
    """Let a row come and be written, so many times."""
    for _ in range(count):
        query.rows += rows_of(len(query.rows), len(query.rows) + 1)
        query.start()


def refused(query, **how):
    with pytest.raises(ReplogError) as raised:
        query.start(**how)
    assert raised.value.code is ErrorCode.REPLOG_CHECKPOINT_RESET
    return str(raised.value)


@pytest.mark.parametrize("change", [lambda rows: rows, lambda rows: rows[1:], lambda rows: [b"x", *rows]])
def test_the_newest_batch_is_repeated_without_effect_whatever_its_rows_are(query, caplog, change):
    runs(query, 2)
    query.rows += rows_of(2, 6)
    query.start(dies=True)
    with caplog.at_level(logging.INFO):
        query.start(change=change)
    assert "batch 2 of query-1 was applied before" in caplog.text
    runs(query, 1)
    assert query.writes.values() == rows_of(0, 7)


@pytest.mark.parametrize("topic", ["sales", "payments"])
def test_of_two_queries_on_copies_of_a_checkpoint_the_one_behind_is_refused(query, shared_ledger, topic):
    """Into one topic, or two topics of one ledger."""
    query.options["topic"] = "sales"
    runs(query, 2)
    behind = copied(query, "behind", topic=topic)
    query.rows += rows_of(2, 3)
    query.start()
    assert "another `offsets` file" in refused(behind)  # as many rows, under the same number
    runs(query, 1)
    assert "at batch 3" in refused(behind)
    assert query.writes.values("sales") == rows_of(0, 4)
    assert query.writes.values("payments") == []


def test_a_batch_that_was_planned_before_the_copy_does_not_count_for_another_topic(query, shared_ledger):
    query.options["topic"] = "sales"
    query.rows += rows_of(0, 2)
    query.start(dies=True)
    other = copied(query, "other", topic="payments")
    query.start()
    assert "no rows of topic id" in refused(other)


def test_an_older_checkpoint_with_new_rows_is_refused(query):
    runs(query, 2)
    backup = copied(query, "backup")
    runs(query, 3)
    query.rows += rows_of(5, 205)
    assert "at batch 4" in refused(backup)
    query.start()
    assert query.writes.values() == rows_of(0, 205)


def test_the_first_version_of_a_job_is_refused_after_the_second_ran_from_a_copy(query):
    runs(query, 2)
    second = copied(query, "v2")
    runs(second, 2)
    query.rows += rows_of(4, 5)
    refused(query)
    second.start()
    assert query.writes.values() == rows_of(0, 5)


def test_redoing_a_batch_by_removing_its_files_is_refused(query):
    runs(query, 3)
    for log in ("offsets", "commits"):
        (query.checkpoint / log / "2").unlink()
    refused(query)  # the same rows, planned again
    assert query.writes.values() == rows_of(0, 3)
    query.options["onCheckpointReset"] = "append"
    query.start()
    del query.options["onCheckpointReset"]
    runs(query, 1)
    assert query.writes.values() == [*rows_of(0, 3), *rows_of(2, 4)]


@pytest.mark.parametrize("named", [{}, {"transactional.id": "etl"}])
def test_skip_counts_the_rows_that_it_drops_until_the_query_is_past_the_last_batch(query, caplog, named):
    query.options |= named
    runs(query, 1)
    backup = copied(query, "backup", onCheckpointReset="skip")
    runs(query, 2)
    query.rows += rows_of(3, 43)
    backup.start()
    runs(backup, 2)
    dropped = [record.getMessage() for record in caplog.records if "DROPPED" in record.getMessage()]
    assert [message.split(" were ")[0].rpartition(" of ")[0] for message in dropped] == [
        "[REPLOG_CHECKPOINT_RESET] 42 rows of batch 1", "[REPLOG_CHECKPOINT_RESET] 1 rows of batch 2",
    ]  # fmt: skip
    assert query.writes.values() == [*rows_of(0, 3), b"044"]


def test_a_named_writer_is_refused_as_one_without_a_name_is(query):
    query.options["transactional.id"] = "etl"
    runs(query, 2)
    backup = copied(query, "backup")
    runs(query, 1)
    refused(backup)


def test_the_checkpoint_that_the_session_chooses_is_read_too(writes, tmp_path):
    session = {"spark.sql.streaming.checkpointLocation": f"{tmp_path}/"}
    options = {"topic": "orders", "queryName": "priced", "properties": session}
    (tmp_path / "priced/offsets").mkdir(parents=True)
    (tmp_path / "priced/offsets/0").write_text("one plan")
    writes.run(0, rows_of(0, 2), **options)
    writes.run(0, rows_of(0, 9), **options, run="run-2")
    (tmp_path / "priced/offsets/0").write_text("another")
    with pytest.raises(ReplogError) as raised:
        writes.run(0, rows_of(0, 2), **options, run="run-3")
    assert raised.value.code is ErrorCode.REPLOG_CHECKPOINT_RESET


@pytest.mark.parametrize("checkpoint", ["hdfs://name/ck", "{}/missing", "{}", "dbfs:/ck"])
def test_without_the_checkpoint_counts_decide_and_the_log_says_so_once(writes, tmp_path, caplog, checkpoint):
    options = {"topic": "orders", "checkpointLocation": checkpoint.format(tmp_path)}
    for number in range(5):
        writes.run(number, rows_of(0, 3), **options)
    writes.run(4, rows_of(7, 10), **options, run="run-2")
    with pytest.raises(ReplogError) as raised:
        writes.run(4, rows_of(0, 4), **options, run="run-2")
    assert raised.value.code is ErrorCode.REPLOG_CHECKPOINT_RESET
    assert [entry.levelname for entry in caplog.records if "cannot be read here" in entry.getMessage()] == ["WARNING"]
    assert len(writes.values()) == 15


def test_a_checkpoint_that_was_read_must_be_read_for_the_repeat(query):
    query.rows += rows_of(0, 3)
    query.start(dies=True)
    planned = query.checkpoint / "offsets/0"
    planned.rename(query.checkpoint / "away")
    with pytest.raises(ReplogError, match="now `offsets` of it cannot be") as raised:
        query.writes.run(0, query.rows, topic="orders", run="again", checkpointLocation=str(query.checkpoint))
    assert raised.value.code is ErrorCode.REPLOG_CHECKPOINT_RESET
    (query.checkpoint / "away").rename(planned)
    query.start()
    assert query.writes.values() == query.rows


def test_a_batch_costs_one_read_of_its_checkpoint_and_none_where_that_fails(query, monkeypatch):
    reads, get = [], PosixStore.get
    monkeypatch.setattr(PosixStore, "get", lambda *a, **k: (reads.append(a[1]), get(*a, **k))[1])

    def of_checkpoint():
        return [path for path in reads if path.startswith(("offsets/", "metadata", "commits/"))]

    runs(query, 2)
    assert of_checkpoint() == ["offsets/0", "offsets/1"]
    reads.clear()
    for number in range(2, 8):
        query.writes.run(number, [b"a"], topic="orders", checkpointLocation=str(query.checkpoint / "gone"))
    assert of_checkpoint() == ["offsets/2", "offsets/3", "offsets/4"]


TXN = {"topic": "orders", "txnAppId": "load", "txnVersion": "3"}


def mismatch(writes, *values, **options):
    with pytest.raises(ReplogError) as raised:
        writes.batch(*values, **{**TXN, **options})
    assert raised.value.code is ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH
    return str(raised.value)


def test_a_second_write_of_a_version_with_as_many_other_rows_is_refused(writes):
    writes.batch(rows_of(0, 50), **TXN)
    assert "other contents" in mismatch(writes, rows_of(100, 150))
    assert "50 rows where this one has 49" in mismatch(writes, rows_of(0, 49))
    writes.batch(rows_of(0, 50), **{**TXN, "txnVersion": "4"})
    assert "before version 4" in mismatch(writes, rows_of(100, 150))
    writes.batch(rows_of(0, 50), **TXN)
    assert writes.values() == rows_of(0, 50) * 2


def test_a_second_write_of_a_version_to_another_topic_of_the_ledger_is_refused_by_its_topics(writes, shared_ledger):
    writes.batch(rows_of(0, 5), **{**TXN, "topic": "sales"})
    assert "other topics" in mismatch(writes, rows_of(0, 5), topic="payments")


def test_a_repeated_version_may_have_its_rows_in_other_tasks_and_in_another_order(writes):
    rows = rows_of(0, 500)
    writes.batch(rows, **TXN)
    random.Random(7).shuffle(rows)
    writes.batch(rows[:100], [], rows[100:], **TXN)
    assert len(writes.values()) == 500


def table(**columns):
    kinds = {
        "key": pa.string(), "value": pa.binary(), "partition": pa.int32(), "other": pa.int64(),
        "timestamp": pa.timestamp("us", "Asia/Tokyo"),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }  # fmt: skip
    return pa.record_batch({name: pa.array(values, kinds[name]) for name, values in columns.items()})


BASE = {
    "key": ["a", None, "c"], "value": [b"1", b"2", None], "partition": [0, 0, None], "timestamp": [1, None, 3],
    "headers": [[("h", b"1")], None, []], "other": [1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"key": ["c", None, "a"]}, {"key": ["a", "", "c"]}, {"key": ["a1", None, "c"], "value": [b"", b"2", None]},
        {"value": [b"1", b"2", b""]}, {"partition": [0, None, None]}, {"timestamp": [1, None, 4]},
        {"headers": [[("h", b"2")], None, []]}, {"headers": [[("g", b"1")], None, []]}, {"headers": [[], None, []]},
    ],
    ids=repr,
)  # fmt: skip
def test_every_part_of_a_row_counts(writes, change):
    writes.batch(table(**BASE), **TXN)
    same = {"other": [7, 8, 9], "headers": [[("h", b"1")], [], None]}
    writes.batch(table(**{**BASE, **same}), **TXN)
    assert "other contents" in mismatch(writes, table(**{**BASE, **change}))


def test_the_topic_of_a_row_counts(writes, shared_ledger):
    named = {name: value for name, value in TXN.items() if name != "topic"}
    writes.batch({"sales": [b"a"], "payments": [b"b"]}, **named)
    with pytest.raises(ReplogError, match="other contents"):
        writes.batch({"sales": [b"b"], "payments": [b"a"]}, **named)


def test_skip_drops_another_write_of_a_version_and_counts_its_rows(writes, caplog):
    writes.batch(rows_of(0, 5), **TXN)
    writes.batch(rows_of(10, 17), **TXN, onCheckpointReset="skip")
    assert "[REPLOG_DUPLICATE_TXN_MISMATCH] 7 rows of batch 3 of load were DROPPED" in caplog.text
    assert writes.values() == rows_of(0, 5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId is empty"),
        ({"txnAppId": " ", "txnVersion": "1"}, "txnAppId is empty"),
        ({"onCheckpointReset": "skip"}, "needs txnAppId"),
        ({"txnAppId": "a", "txnVersion": "1", "onCheckpointReset": "append"}, "has no use"),
    ],
)
def test_what_names_no_writer_of_a_batch_is_refused(writes, options, word):
    with pytest.raises(InvalidConfigError, match=word):
        writes.batch([b"a"], topic="orders", **options)
