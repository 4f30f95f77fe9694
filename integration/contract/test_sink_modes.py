"""Section 2.3 of the connector's contract: save modes, output modes, atomicity, failures."""

from __future__ import annotations

import pytest
from remote import run_in
from spark_driver import JobFailed

from tests.waiting import wait_until


@pytest.mark.case("connector-save-modes")
@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("error", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("errorifexists", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("ignore", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("overwrite", "[REPLOG_INVALID_OPTION] save mode Overwrite not allowed for Kafka"),
    ],
)
def test_a_batch_is_only_ever_appended(spark, store, mode, text):
    topic = store.topic(f"mode-{mode}", 1)
    spark.call("write", path=str(store.path), topic=topic, start=0, end=3)
    with pytest.raises(JobFailed) as caught:
        spark.call("write", path=str(store.path), topic=topic, start=3, end=5, mode=mode)
    assert text in str(caught.value)
    assert len(spark.call("read", path=str(store.path), topic=topic)) == 3


@pytest.mark.case("connector-output-modes")
def test_update_mode_is_refused_by_spark_itself(spark, store):
    topic = store.topic("mode-update", 1)
    with pytest.raises(JobFailed, match="does not support Update mode"):
        spark.call(
            "stream_word", path=str(store.path), sink=topic, checkpoint=store.checkpoint("update"), mode="update"
        )


@pytest.mark.case("connector-wrong-columns-missing-topics-end")
def test_a_stream_with_a_wrong_column_fails_with_the_sinks_words(spark, store):
    source, sink = store.topic("typed", 1), store.topic("typed-out", 1)
    spark.call("write", path=str(store.path), topic=source, start=0, end=3)
    with pytest.raises(JobFailed) as caught:
        spark.call(
            "copy_stream", path=str(store.path), source=source, sink=sink, checkpoint=store.checkpoint("typed"),
            select=["offset as value"],
        )  # fmt: skip
    assert "value must be a(n) string or binary" in str(caught.value)
    assert spark.call("read", path=str(store.path), topic=sink) == []


@pytest.mark.case("connector-wrong-columns-missing-topics-end")
def test_missing_topic_fails_a_stream_at_once(spark, store):
    source = store.topic("has-source", 1)
    spark.call("write", path=str(store.path), topic=source, start=0, end=3)
    with pytest.raises(JobFailed, match=r"\[UNKNOWN_TOPIC_OR_PARTITION\].*no-such-sink"):
        spark.call(
            "copy_stream", path=str(store.path), source=source, sink="no-such-sink",
            checkpoint=store.checkpoint("no-such-sink"),
        )  # fmt: skip


@pytest.mark.case("connector-failed-batch-leaves-nothing-kafka")
def test_a_failed_task_leaves_nothing_of_the_batch(spark, store):
    topic = store.topic("atomic", 2)
    with pytest.raises(JobFailed, match="boom"):
        spark.call(
            "write_sql", path=str(store.path), options={"topic": topic},
            query="select if(id = 999, raise_error('boom'), cast(id as string)) value from range(0, 1000, 1, 4)",
        )  # fmt: skip
    assert spark.call("read", path=str(store.path), topic=topic) == []


@pytest.mark.case("connector-numoutputrows-progress")
def test_progress_counts_the_rows_written(spark, store):
    source, sink = store.topic("counted", 1), store.topic("counted-out", 1)
    spark.call("write", path=str(store.path), topic=source, start=0, end=7)

    def rows_written(spark, path, source, sink, checkpoint):
        query = start_copy(spark, path, source, sink, checkpoint)  # noqa: F821
        query.awaitTermination(600)
        return sum(progress["sink"]["numOutputRows"] for progress in query.recentProgress)

    arguments = {"path": str(store.path), "source": source, "sink": sink, "checkpoint": store.checkpoint("counted")}
    assert run_in(spark, rows_written, **arguments) == 7


def start_continuous(spark, path, topic, checkpoint):
    ticks = spark.readStream.format("rate").option("numPartitions", 1).load().selectExpr("cast(value as string) value")
    writer = ticks.writeStream.format("replog").option("topic", topic).option("checkpointLocation", checkpoint)
    QUERIES["continuous"] = writer.trigger(continuous="200 milliseconds").start(path)  # noqa: F821


def stop_continuous(spark):
    query = QUERIES.pop("continuous")  # noqa: F821
    query.stop()
    return query.lastProgress


@pytest.mark.case("connector-continuous-trigger-spark-hands")
def test_a_continuous_trigger_writes_nothing_and_the_log_says_why(spark, store):
    """Spark runs the query without a word, and without the sink: only the commit of an epoch gets here."""
    topic, path = store.topic("continuous", 1), str(store.path)
    run_in(spark, start_continuous, path=path, topic=topic, checkpoint=store.checkpoint("continuous"))
    text = "[REPLOG_ENVIRONMENT] Spark does not pass the rows of a continuous trigger"
    wait_until(lambda: text in spark.log_text(), text, pause_seconds=0.1)
    assert run_in(spark, stop_continuous) is None
    assert spark.call("read", path=path, topic=topic) == []


def delete_during_the_batch(spark, path, source, doomed, spared, checkpoint):
    """Copy into two ledgers; the second one's topic is deleted after the tasks were planned."""
    from pyspark.sql.functions import udf

    def choose(value):
        from spark_replog.admin.controller import Controller
        from spark_replog.cluster.cluster import Cluster

        controller = Controller(Cluster.open(path))
        if doomed in {topic.name for topic in controller.list_topics()}:
            controller.delete_topic(doomed)
        return doomed if int(value) % 2 else spared

    frame = (
        spark.readStream.format("replog").option("subscribe", source).option("startingOffsets", "earliest").load(path)
    )
    frame = frame.selectExpr("cast(value as string) value").withColumn("topic", udf(choose)("value"))
    query = (
        frame.writeStream.format("replog").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        .start(path)
    )  # fmt: skip
    query.awaitTermination(600)
    if query.exception() is not None:
        raise query.exception()


@pytest.mark.case("connector-batch-over-two-ledgers-fails-one")
def test_a_batch_over_two_ledgers_that_fails_in_one_names_both(spark, store):
    source, spared, doomed = store.topic("pair-in", 1), store.topic("pair-spared", 1), store.topic("pair-doomed", 1)
    path = str(store.path)
    spark.call("write", path=path, topic=source, start=0, end=10, tasks=1)
    arguments = {
        "path": path, "source": source, "doomed": doomed, "spared": spared, "checkpoint": store.checkpoint("pair"),
    }  # fmt: skip
    with pytest.raises(JobFailed) as caught:
        run_in(spark, delete_during_the_batch, **arguments)
    text = str(caught.value)
    assert "decided=`pair-spared`" in text
    assert "undecided=`pair-doomed`" in text
    assert len(spark.call("read", path=path, topic=spared)) == 5
    # What it says holds: with the topic back, the repeated batch completes the one and leaves the other.
    store.topic(doomed, 1)
    run_in(spark, copy_by_parity, **arguments)
    assert [int(row[3]) for row in spark.call("read", path=path, topic=spared)] == [0, 2, 4, 6, 8]
    assert [int(row[3]) for row in spark.call("read", path=path, topic=doomed)] == [1, 3, 5, 7, 9]


def copy_by_parity(spark, path, source, doomed, spared, checkpoint):
    frame = spark.readStream.format("replog").option("subscribe", source).load(path)
    frame = frame.selectExpr(
        "cast(value as string) value", f"if(cast(cast(value as string) as int) % 2 = 1, '{doomed}', '{spared}') topic"
    )
    query = frame.writeStream.format("replog").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = query.start(path)
    query.awaitTermination(600)
    if query.exception() is not None:
        raise query.exception()
