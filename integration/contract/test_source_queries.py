"""Queries over several sources: each has its own offsets, limits and watermark."""

from __future__ import annotations

import pytest
from remote import run_in

pytestmark = pytest.mark.case("connector-unions-joins-several-sources-one")


def union_of_two(spark, path, topics, checkpoint):
    """Run a union of limited streams to its end; return rows per topic of each batch, and what Spark counted."""

    def stream(topic):
        reader = spark.readStream.format("replog").option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", 5).load(path).select("topic", "offset")

    batches = []

    def put(frame, batch_id):
        offsets = {topic: [] for topic in topics}
        for row in frame.collect():
            offsets[row.topic].append(row.offset)
        batches.append([sorted(offsets[topic]) for topic in topics])

    writer = stream(topics[0]).union(stream(topics[1])).writeStream.foreachBatch(put)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(600)
    return [batches, sum(progress.numInputRows for progress in query.recentProgress)]


def test_each_source_of_a_union_has_its_own_limit(spark, store):
    path = str(store.path)
    topics = [store.topic("union-small", 1, 1), store.topic("union-large", 1, 1)]
    spark.call("feed", path=path, topic=topics[0], rows={0: 8})
    spark.call("feed", path=path, topic=topics[1], rows={0: 18})
    arguments = {"path": path, "topics": topics, "checkpoint": store.checkpoint("union")}
    batches, input_rows = run_in(spark, union_of_two, **arguments)
    small, large = (list(column) for column in zip(*batches, strict=True))
    assert small[:2] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert [offset for batch in small for offset in batch] == list(range(8))
    assert large[:2] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [offset for batch in large for offset in batch] == list(range(18))
    assert input_rows == 26


def joined_and_started_twice(spark, path, topics, folder):
    """Join two streams on a window of time, and start the frame of one of them once more."""
    from pyspark.sql.functions import expr

    def stream(topic):
        reader = spark.readStream.format("replog").option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.load(path).withWatermark("timestamp", "10 seconds")

    left, right = stream(topics[0]), stream(topics[1])
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    right = right.selectExpr("offset as other", "timestamp as later")
    joined = left.join(right, expr("offset = other and timestamp <= later + interval 1 hour"))
    offsets = {}

    def start(name, frame):
        def put(batch, batch_id):
            offsets.setdefault(name, []).extend(sorted(row.offset for row in batch.collect()))

        writer = frame.writeStream.foreachBatch(put).option("checkpointLocation", f"{folder}-{name}")
        return writer.trigger(availableNow=True).start()

    for query in [start("joined", joined), start("again", left), start("twice", left.union(left))]:
        query.awaitTermination(600)
    spark.conf.unset("spark.sql.shuffle.partitions")
    return offsets


def test_streams_are_joined_and_a_frame_is_started_more_than_once(spark, store):
    path = str(store.path)
    topics = [store.topic("join-left", 1, 1), store.topic("join-right", 1, 1)]
    spark.call("feed", path=path, topic=topics[0], rows={0: 3})
    spark.call("feed", path=path, topic=topics[1], rows={0: 2})
    arguments = {"path": path, "topics": topics, "folder": store.checkpoint("joined")}
    offsets = run_in(spark, joined_and_started_twice, **arguments)
    assert offsets["joined"] == [0, 1]
    assert offsets["again"] == [0, 1, 2]
    assert offsets["twice"] == [0, 0, 1, 1, 2, 2]
