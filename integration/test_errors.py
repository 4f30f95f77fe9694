"""Bad input: every refusal reaches the user with its code in brackets."""

from __future__ import annotations

import json
import shutil

import pytest
from remote import run_in
from spark_driver import JobFailed


@pytest.fixture(scope="module")
def topic(store):
    return store.topic("good", 2)


def refused(spark, job, code, **arguments):
    with pytest.raises(JobFailed) as caught:
        spark.call(job, **arguments)
    assert f"[{code}]" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"maxOffsetPerTrigger": "5"}, "REPLOG_UNKNOWN_OPTION", "maxOffsetsPerTrigger"),
        ({"assign": '{"good":[0]}'}, "REPLOG_CONFLICTING_OPTIONS", "only one of"),
        ({"startingOffsets": "latest"}, "REPLOG_INVALID_OPTION", "can't be latest"),
        ({"startingOffsets": '{"good":{"0":0}}'}, "REPLOG_INVALID_OPTION", "missing good-1"),
        ({"startingOffsets": '{"good":{"0":9,"1":0}}'}, "REPLOG_INVALID_OPTION", "greater than"),
        ({"endingOffsets": '{"good":{"0":9,"1":9}}'}, "REPLOG_DATA_LOSS", "past the end"),
    ],
)
def test_batch_read_options(spark, store, topic, options, code, text):
    assert text in refused(spark, "read", code, path=str(store.path), topic=topic, options=options)


def test_unknown_topic(spark, store):
    path = str(store.path)
    assert "nowhere" in refused(spark, "read", "UNKNOWN_TOPIC_OR_PARTITION", path=path, topic="nowhere")
    assert "nowhere" in refused(
        spark, "write", "UNKNOWN_TOPIC_OR_PARTITION", path=path, topic="nowhere", start=0, end=1
    )


def test_unknown_topic_in_a_stream(spark, store, topic):
    refused(
        spark, "copy_stream", "UNKNOWN_TOPIC_OR_PARTITION", path=str(store.path), source="nowhere", sink=topic,
        checkpoint=store.checkpoint("nowhere"),
    )  # fmt: skip


def test_store_that_was_never_initialised(spark, store, topic):
    refused(spark, "read", "REPLOG_STORE_NOT_INITIALISED", path=str(store.folder / "nothing"), topic=topic)
    refused(
        spark, "write", "REPLOG_STORE_NOT_INITIALISED", path=str(store.folder / "nothing"), topic=topic, start=0, end=1
    )


def test_roots_of_different_clusters(spark, store, make_store):
    other = make_store(1)
    mixed = f"{store.path}/broker-0,{other.path}/broker-0"
    refused(spark, "read", "REPLOG_CLUSTER_MISMATCH", path=mixed, topic="good")


def test_no_majority_of_roots(spark, make_store):
    store = make_store(3)
    topic = store.topic("quorum", 1)
    for broker in (1, 2):
        (store.path / f"broker-{broker}").rename(store.path / f"broker-{broker}.away")
    refused(spark, "read", "REPLOG_NO_QUORUM", path=str(store.path), topic=topic)
    refused(spark, "write", "REPLOG_NO_QUORUM", path=str(store.path), topic=topic, start=0, end=1)


@pytest.mark.parametrize(
    ("query", "options", "code", "text"),
    [
        ("select 'a' other", {"topic": "good"}, "REPLOG_INVALID_SCHEMA", "'value' not found"),
        ("select 1 value", {"topic": "good"}, "REPLOG_INVALID_SCHEMA", "value must be a(n) string or binary"),
        ("select 'a' value, 1L partition", {"topic": "good"}, "REPLOG_INVALID_SCHEMA", "partition must be a(n) int"),
        ("select 'a' value", {}, "REPLOG_MISSING_OPTION", "topic option required"),
        ("select 'a' value, cast(null as string) topic", {}, "REPLOG_NULL_TOPIC", "topic"),
        ("select 'a' value, 7 partition", {"topic": "good"}, "INVALID_PARTITIONS|UNKNOWN_TOPIC_OR_PARTITION", "7"),
        ("select repeat('x', 2000) value", {"topic": "good", "max.request.size": "1000"}, "MESSAGE_TOO_LARGE", ""),
        ("select 'a' value", {"topic": "good", "acks": "3"}, "REPLOG_INVALID_OPTION", "acks"),
        ("select 'a' value", {"topic": "good", "ackz": "1"}, "REPLOG_UNKNOWN_OPTION", "acks"),
        ("select 'a' value", {"topic": "good", "txnAppId": "x"}, "REPLOG_MISSING_OPTION", "txnVersion"),
    ],
)
def test_writes(spark, store, topic, query, options, code, text):
    with pytest.raises(JobFailed) as caught:
        spark.call("write_sql", path=str(store.path), query=query, options=options)
    assert any(f"[{name}]" in str(caught.value) for name in code.split("|"))
    assert text in str(caught.value)


def test_overwrite_is_refused(spark, store, topic):
    refused(
        spark, "write", "REPLOG_INVALID_OPTION", path=str(store.path), topic=topic, start=0, end=1, mode="overwrite"
    )


@pytest.mark.guarantee("G10")
def test_stream_options(spark, store, topic):
    text = refused(
        spark, "copy_stream", "REPLOG_INVALID_OPTION", path=str(store.path), source=topic, sink=topic,
        checkpoint=store.checkpoint("ending"), source_options={"endingOffsets": "latest"},
    )  # fmt: skip
    assert "batch" in text


def test_table_without_its_options(spark, store):
    with pytest.raises(JobFailed, match=r"\[REPLOG_MISSING_OPTION\].*TEMPORARY VIEW"):
        spark.call(
            "sql",
            statements=[
                "drop table if exists lost",
                f"create table lost using replog options (path '{store.path}', subscribe 'good')",
                "select * from lost",
            ],
        )


def test_recreated_topic(spark, store):
    path, checkpoint = str(store.path), store.checkpoint("recreated")
    source, sink = store.topic("again", 1), store.topic("again-out", 1)
    spark.call("write", path=path, topic=source, start=0, end=5)
    spark.call("copy_stream", path=path, source=source, sink=sink, checkpoint=checkpoint)
    store.cli("topic", "delete", source, "-y")
    store.topic(source, 1)
    spark.call("write", path=path, topic=source, start=10, end=20)
    arguments = {"path": path, "source": source, "sink": sink, "checkpoint": checkpoint}
    text = refused(spark, "copy_stream", "REPLOG_DATA_LOSS", **arguments)
    assert "created again" in text
    spark.call("copy_stream", **arguments, source_options={"failOnDataLoss": "false"})
    rows = spark.call("read", path=path, topic=sink)
    assert sorted(int(row[3]) for row in rows) == [0, 1, 2, 3, 4, *range(10, 20)]


def test_every_copy_damaged(spark, make_store):
    store = make_store(2)
    path, topic = str(store.path), store.topic("rot", 1, 2)
    spark.call("write", path=path, topic=topic, start=0, end=50, tasks=1)
    for file in store.path.glob("broker-*/ledgers/*/data/*/*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 32] = bytes(32)
        file.write_bytes(data)
    refused(spark, "read", "CORRUPT_MESSAGE", path=path, topic=topic)
    assert spark.call("read", path=path, topic=topic, options={"failOnDataLoss": "false"}) == []


def test_format_version_from_the_future(spark, make_store):
    store = make_store(1)
    topic = store.topic("future", 1, 1)
    file = store.path / "broker-0" / "replog.json"
    kept = shutil.copy(file, store.folder / "kept.json")
    fields = json.loads(file.read_text())
    del fields["crc32c"]  # of a release that writes another checksum
    file.chmod(0o644)
    file.write_text(json.dumps({**fields, "version": 99}))
    refused(spark, "read", "UNSUPPORTED_VERSION", path=str(store.path), topic=topic)
    shutil.copy(kept, file)


def test_a_plain_thread_writes_after_use_session(spark, make_store):
    """Spark looks the format of a write up in the thread's active session, which a plain thread does not have."""
    store = make_store(1)
    topic = store.topic("threads", 1, 1)
    before, after = run_in(spark, write_in_threads, path=str(store.path), topic=topic)
    assert "DATA_SOURCE_NOT_FOUND" in before
    assert after == ""
    assert [row[3] for row in spark.call("read", path=str(store.path), topic=topic)] == ["0", "1", "2"]


def write_in_threads(spark, path, topic):
    """Write in two threads, without and with a session; return the text of each error."""
    import threading

    import spark_replog

    errors = []

    def write(prepare):
        try:
            prepare(spark)
            frame = spark.range(3).selectExpr("cast(id as string) value")
            frame.coalesce(1).write.format("replog").mode("append").option("topic", topic).save(path)
            errors.append("")
        except Exception as error:
            errors.append(str(error))

    for prepare in (bool, spark_replog.use_session):
        thread = threading.Thread(target=write, args=(prepare,))
        thread.start()
        thread.join()
    return errors
