"""Sections 5.1 and 5.2 of the connector's contract: what came, what went, and what failOnDataLoss makes of it."""

from __future__ import annotations

import pytest
from spark_driver import JobFailed

EARLIEST = {"startingOffsets": "earliest"}


class Stream:
    """A query over topics that change under it."""

    def __init__(self, spark, store, name, **options):
        self.spark, self.store, self.name = spark, store, name
        self.path = str(store.path)
        self.options = {**EARLIEST, **options}

    def start(self, **options):
        self.spark.call(
            "stream_start", name=self.name, path=self.path, checkpoint=self.store.checkpoint(self.name),
            options={**self.options, **options},
        )  # fmt: skip
        return self

    def rows(self):
        """Return what came since the last call, of all batches."""
        rows = {}
        for batch in self.spark.call("stream_take", name=self.name):
            for key, offsets in batch["rows"].items():
                rows.setdefault(key, []).extend(offsets)
        return rows

    def error(self):
        with pytest.raises(JobFailed) as caught:
            self.spark.call("stream_wait_for_error", name=self.name)
        return str(caught.value)

    def stop(self):
        self.spark.call("stream_stop", name=self.name)

    def feed(self, topic, rows):
        self.spark.call("feed", path=self.path, topic=topic, rows=rows)

    def admin(self, *steps):
        self.spark.call("admin", path=self.path, steps=[list(step) for step in steps])


@pytest.fixture
def stream(spark, store, request):
    name = request.node.name.replace("[", "-").replace("]", "")
    return lambda **options: Stream(spark, store, name, **options)


@pytest.mark.case("connector-new-partitions-topics")
def test_new_partitions_and_topics_are_read_from_their_beginning(stream, store):
    store.topic("grow-1", 1)
    query = stream(subscribePattern="grow-.*", startingOffsets="latest").start()
    assert query.rows() == {}
    store.cli("topic", "add-partitions", "grow-1", "3", "-y")
    query.feed("grow-1", {0: 1, 2: 2})
    assert query.rows() == {"grow-1-0": [0], "grow-1-2": [0, 1]}
    store.topic("grow-2", 1)
    query.feed("grow-2", {0: 2})
    assert query.rows() == {"grow-2-0": [0, 1]}
    query.stop()


@pytest.mark.case("connector-partitions-deleted")
def test_a_deleted_topic(stream, store):
    for name in ("gone-a", "gone-b"):
        store.topic(name, 1)
    query = stream(subscribe="gone-a,gone-b").start()
    query.feed("gone-a", {0: 3})
    assert query.rows() == {"gone-a-0": [0, 1, 2]}
    store.cli("topic", "delete", "gone-a", "-y")
    text = query.error()
    assert "[REPLOG_DATA_LOSS] Partitions gone-a-0 have been deleted" in text
    assert "KAFKA_DATA_LOSS.PARTITIONS_DELETED" in text
    assert "failOnDataLoss=false" in text
    query.start(failOnDataLoss="false")
    query.feed("gone-b", {0: 2})
    assert query.rows() == {"gone-b-0": [0, 1]}
    query.stop()


@pytest.mark.case("connector-partitions-deleted")
def test_a_deleted_topic_under_a_pattern_with_nothing_left(stream, store):
    store.topic("only-one", 1)
    query = stream(subscribePattern="only-.*").start()
    query.feed("only-one", {0: 1})
    query.rows()
    query.admin(("delete_topic", "only-one"))
    assert "Partitions only-one-0 have been deleted" in query.error()


@pytest.mark.case("connector-partitions-deleted")
def test_a_topic_created_again_with_more_rows_than_before(stream, store):
    store.topic("again", 1)
    query = stream(subscribe="again").start()
    query.feed("again", {0: 3})
    assert query.rows() == {"again-0": [0, 1, 2]}
    query.stop()
    query.admin(("delete_topic", "again"), ("create_topic", "again", 1, 3))
    query.feed("again", {0: 5})
    text = query.start().error()
    assert "deleted and created again" in text
    assert "offsets from 3 on of again-0" in text
    query.start(failOnDataLoss="false")
    assert query.rows() == {"again-0": [0, 1, 2, 3, 4]}
    query.stop()


@pytest.mark.case("connector-could-not-read-offset-range")
def test_trimmed_rows(stream, store):
    store.topic("trimmed", 1)
    query = stream(subscribe="trimmed").start()
    query.feed("trimmed", {0: 2})
    assert query.rows() == {"trimmed-0": [0, 1]}
    query.stop()
    query.feed("trimmed", {0: 6})
    (item,) = store.cli("topic", "trim", "trimmed", "--partition", "0", "--to", "5", "-y")
    assert item["logStartOffset"] == 5
    text = query.start().error()
    assert "[REPLOG_DATA_LOSS] Could not read records: offsets 2 to 5 (exclusive) of trimmed-0" in text
    assert "Some data may have been lost because they are not available in Kafka any more" in text
    assert "were trimmed" in text
    assert "COULD_NOT_READ_OFFSET_RANGE" in text
    query.start(failOnDataLoss="false")
    assert query.rows() == {"trimmed-0": [5, 6, 7]}
    query.admin(("delete_records", "trimmed", {"0": -1}))
    query.feed("trimmed", {0: 1})
    assert query.rows() == {"trimmed-0": [8]}, "a trim of what was read is no loss"
    query.stop()


@pytest.mark.case("connector-added-partition-does-not-start")
def test_a_new_partition_that_was_trimmed(stream, store):
    store.topic("added", 1)
    query = stream(subscribe="added").start()
    query.rows()
    query.stop()
    query.admin(("add_partitions", "added", 2))
    query.feed("added", {1: 4})
    query.admin(("delete_records", "added", {"1": 3}))
    text = query.start().error()
    assert "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO" in text
    assert "starts from 3 instead of 0" in text
    query.start(failOnDataLoss="false")
    assert query.rows() == {"added-1": [3]}
    query.stop()


@pytest.mark.case("connector-partition-offset-changed")
def test_a_start_past_the_end(stream, store):
    store.topic("high", 1)
    query = stream(subscribe="high", startingOffsets='{"high":{"0":100}}')
    query.feed("high", {0: 4})
    text = query.start().error()
    assert "changed from 100 to 4" in text
    assert "PARTITION_OFFSET_CHANGED" in text
    query.name += "-lenient"
    query.start(failOnDataLoss="false")
    assert query.rows() == {}
    query.feed("high", {0: 2})
    assert query.rows() == {"high-0": [4, 5]}
    query.stop()


@pytest.mark.case("connector-could-not-read-offset-range")
def test_offsets_of_a_batch_read_that_are_not_there(spark, store, stream):
    store.topic("short", 1)
    query = stream()
    query.feed("short", {0: 6})
    query.admin(("delete_records", "short", {"0": 2}))
    options = {"subscribe": "short", "startingOffsets": '{"short":{"0":0}}', "endingOffsets": '{"short":{"0":9}}'}
    (text,) = spark.call("batch_refusals", path=query.path, cases=[dict(options)])
    assert "offsets 0 to 2 (exclusive) of short-0" in text
    answer = spark.call("batch_offsets", path=query.path, options={**options, "failOnDataLoss": "false"})
    assert answer["rows"] == {"short-0": [2, 3, 4, 5]}
