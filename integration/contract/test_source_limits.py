"""Sections 5.3 to 5.6 and 5.9 of the connector's contract: tasks, limits and triggers."""

from __future__ import annotations

import pytest

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(scope="module")
def path(store):
    return str(store.path)


def tasks_of(spark, path, topic, **options):
    return spark.call("batch_offsets", path=path, options={"subscribe": topic, **options})


@pytest.fixture(scope="module")
def split(spark, store, path):
    topic = store.topic("split", 3)
    spark.call("feed", path=path, topic=topic, rows={0: 10, 1: 10, 2: 1})
    return topic


@pytest.mark.case("connector-splitting-5-3-row")
@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 3),
        ({"minPartitions": "2"}, 3),
        ({"minPartitions": "6"}, 7),
        ({"maxRecordsPerPartition": "4"}, 7),
        ({"maxRecordsPerPartition": "100"}, 3),
        ({"maxPartitions": "2"}, 2),
        ({"maxPartitions": "1"}, 1),
        ({"maxPartitions": "9"}, 3),
    ],
)
def test_tasks_of_a_read(spark, path, split, options, tasks):
    answer = tasks_of(spark, path, split, **options)
    assert answer["tasks"] == tasks
    assert answer["rows"] == {"split-0": list(range(10)), "split-1": list(range(10)), "split-2": [0]}


def run(spark, store, path, name, options, **more):
    return spark.call(
        "stream_run", path=path, checkpoint=store.checkpoint(name), options={**EARLIEST, **options}, **more
    )


def counts_of(batches):
    return [sum(map(len, batch["rows"].values())) for batch in batches]


@pytest.mark.case("connector-splitting-5-3-row")
def test_streams_split_their_batches_too(spark, store, path, split):
    (batch,) = run(spark, store, path, "split", {"subscribe": split, "minPartitions": "6"})
    assert batch["tasks"] == 7
    (batch,) = run(spark, store, path, "joined", {"subscribe": split, "maxPartitions": "1"})
    assert batch["tasks"] == 1
    assert batch["rows"]["split-1"] == list(range(10))


@pytest.mark.case("connector-maxoffsetspertrigger")
def test_a_limit_is_shared_in_proportion_until_the_end(spark, store, path):
    topic = store.topic("limited", 3)
    spark.call("feed", path=path, topic=topic, rows={0: 51, 1: 11, 2: 1})
    batches = run(spark, store, path, "limited", {"subscribe": topic, "maxOffsetsPerTrigger": "20"})
    takes = [[len(batch["rows"].get(f"limited-{number}", ())) for number in range(3)] for batch in batches]
    assert takes[0] == [16, 3, 1]
    assert [sum(column) for column in zip(*takes, strict=True)] == [51, 11, 1]
    assert len(takes) >= 3
    assert all(sum(take) <= 20 for take in takes)


@pytest.mark.case("connector-availablenow-once")
def test_available_now_takes_what_a_minimum_would_leave(spark, store, path):
    topic = store.topic("minimum", 1)
    spark.call("feed", path=path, topic=topic, rows={0: 25})
    options = {"subscribe": topic, "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "8"}
    assert counts_of(run(spark, store, path, "minimum", options)) == [10, 10, 5]


@pytest.mark.case("connector-availablenow-once")
def test_once_takes_all_there_is(spark, store, path):
    topic = store.topic("once", 1)
    spark.call("feed", path=path, topic=topic, rows={0: 25})
    options = {"subscribe": topic, "maxOffsetsPerTrigger": "10"}
    assert counts_of(run(spark, store, path, "once", options, trigger="once")) == [25]


@pytest.mark.case("connector-minoffsetspertrigger")
def test_a_minimum_holds_small_batches_back(spark, store, path):
    topic = store.topic("waiting", 1)
    options = {**EARLIEST, "subscribe": topic, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    spark.call("feed", path=path, topic=topic, rows={0: 1})
    spark.call("stream_start", name="waiting", path=path, checkpoint=store.checkpoint("waiting"), options=options)
    assert counts_of(spark.call("stream_take", name="waiting")) == [1], "the first batch always runs"
    spark.call("feed", path=path, topic=topic, rows={0: 4})
    assert spark.call("stream_take", name="waiting") == []
    spark.call("feed", path=path, topic=topic, rows={0: 1})
    assert counts_of(spark.call("stream_take", name="waiting")) == [5]
    spark.call("stream_stop", name="waiting")


@pytest.mark.case("connector-maxbytespertrigger")
def test_bytes_limit_a_batch(spark, store, path):
    topic = store.topic("bytes", 1)
    for _ in range(3):
        spark.call("feed", path=path, topic=topic, rows={0: 10}, size=1000)
    counts = counts_of(run(spark, store, path, "bytes", {"subscribe": topic, "maxBytesPerTrigger": "12000"}))
    assert sum(counts) == 30
    assert all(8 <= count <= 12 for count in counts[:-1])


@pytest.mark.case("connector-latestoffset-progress")
def test_progress_shows_how_far_behind_a_query_is(spark, store, path):
    topic = store.topic("behind", 2)
    spark.call("feed", path=path, topic=topic, rows={0: 30, 1: 10})
    options = {**EARLIEST, "subscribe": topic, "maxOffsetsPerTrigger": "4"}
    spark.call("stream_start", name="behind", path=path, checkpoint=store.checkpoint("behind"), options=options)
    spark.call("stream_take", name="behind")
    progress = spark.call("stream_stop", name="behind")["progress"]
    source = progress["sources"][0]
    assert source["latestOffset"]["behind"] == {"0": 30, "1": 10}
    assert source["description"]


@pytest.mark.case("connector-stream-joined-itself")
def test_a_stream_joined_with_itself(spark, store, path):
    from remote import run_in

    topic = store.topic("self-join", 1)
    spark.call("feed", path=path, topic=topic, rows={0: 3})

    def self_join(spark, path, topic, checkpoint):
        frame = spark.readStream.format("replog").option("subscribe", topic).option("startingOffsets", "earliest")
        frame = frame.load(path)
        left, right = frame.select("offset"), frame.select("offset", "value")
        offsets = []

        def put(batch, batch_id):
            offsets.extend(row.offset for row in batch.collect())

        query = left.join(right, "offset").writeStream.foreachBatch(put).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination(600)
        return sorted(offsets)

    answer = run_in(spark, self_join, path=path, topic=topic, checkpoint=store.checkpoint("self-join"))
    assert answer == [0, 1, 2]
