"""Section 4 of the connector's contract: where a read begins and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def timed(spark, store):
    """Topic ``timed``: partition 0 at 1000, 3000, 2000 | 5000, 4000 ms, partition 1 at 2500 ms."""
    topic = store.topic("timed", 2)
    for rows in ([(0, 1), (0, 3), (0, 2), (1, 2.5)], [(0, 5), (0, 4)]):
        selects = " union all ".join(
            f"select {partition} partition, 'x' value, timestamp_millis({int(second * 1000)}) timestamp"
            for partition, second in rows
        )
        spark.call("write_sql", path=str(store.path), query=f"select /*+ COALESCE(1) */ * from ({selects})",
                   options={"topic": topic})  # fmt: skip
    return topic


@pytest.mark.case("connector-offsets-words-times-durations")
@pytest.mark.parametrize(
    ("options", "zero", "one"),
    [
        ({"startingOffsets": '{"timed":{"0":3,"1":-2}}'}, [3, 4], [0]),
        ({"startingOffsets": '{"timed":"EARLIEST"}', "endingOffsets": '{"timed":{"0":2,"1":-1}}'}, [0, 1], [0]),
        ({"startingTimestamp": "2500"}, [1, 2, 3, 4], [0]),
        ({"startingTimestamp": "1970-01-01T00:00:02.500Z"}, [1, 2, 3, 4], [0]),
        ({"startingOffsetsByTimestamp": '{"timed":{"0":3001,"1":0}}'}, [3, 4], [0]),
        ({"startingTimestamp": "3001", "startingOffsetsByTimestampStrategy": "latest"}, [3, 4], []),
        ({"endingTimestamp": "2500"}, [0], []),
        ({"endingTimestamp": "99999"}, [0, 1, 2, 3, 4], [0]),
        ({"endingOffsetsByTimestamp": '{"timed":{"0":5000,"1":2501}}'}, [0, 1, 2], [0]),
        ({"endingTimestamp": "-1 hour"}, [0, 1, 2, 3, 4], [0]),
        # One time wins over times, which win over offsets; the two ends may be given in different ways.
        ({"startingTimestamp": "5000", "startingOffsets": "no JSON", "startingOffsetsByTimestampStrategy": "latest"},
         [3, 4], []),
        ({"startingOffsetsByTimestamp": '{"timed":{"0":5000,"1":0}}', "startingOffsets": "?"},
         [3, 4], [0]),
        ({"startingOffsets": '{"timed":{"0":2,"1":1}}', "endingOffsets": '{"timed":{"0":2,"1":1}}'}, [], []),
    ],
)  # fmt: skip
def test_ends_of_a_batch_read(spark, store, timed, options, zero, one):
    answer = spark.call("batch_offsets", path=str(store.path), options={"subscribe": timed, **options})
    assert answer["rows"] == {key: rows for key, rows in (("timed-0", zero), ("timed-1", one)) if rows}


@pytest.mark.case("connector-offsets-words-times-durations")
def test_a_stream_starts_by_time(spark, store, timed):
    options = {"subscribe": timed, "startingTimestamp": "3001", "startingOffsetsByTimestampStrategy": "latest"}
    (batch,) = spark.call("stream_run", path=str(store.path), checkpoint=store.checkpoint("timed"), options=options)
    assert batch["rows"] == {"timed-0": [3, 4]}


@pytest.mark.case("connector-checkpoint-wins-over-start")
def test_a_start_counts_only_without_a_checkpoint(spark, store):
    topic = store.topic("started", 1)
    path, checkpoint = str(store.path), store.checkpoint("started")
    spark.call("feed", path=path, topic=topic, rows={0: 5})
    run = {"path": path, "checkpoint": checkpoint}
    (batch,) = spark.call("stream_run", **run, options={"subscribe": topic, "startingOffsets": '{"started":{"0":3}}'})
    assert batch["rows"] == {"started-0": [3, 4]}
    assert spark.call("stream_run", **run, options={"subscribe": topic, "startingOffsets": "earliest"}) == []


@pytest.mark.case("connector-canonical-offsets-idle-queries")
def test_offsets_are_canonical_and_idle_queries_write_no_new_ones(spark, store):
    topic = store.topic("canonical", 12, 1)
    path, checkpoint = str(store.path), store.checkpoint("canonical")
    spark.call("feed", path=path, topic=topic, rows={11: 2, 2: 1})
    spark.call(
        "stream_start", name="canonical", path=path, checkpoint=checkpoint,
        options={"subscribe": topic, "startingOffsets": "earliest"},
    )  # fmt: skip
    (batch,) = spark.call("stream_take", name="canonical")
    assert batch["rows"] == {"canonical-2": [0], "canonical-11": [0, 1]}
    for _ in range(20):
        assert spark.call("stream_take", name="canonical") == []
    progress = spark.call("stream_stop", name="canonical")["progress"]
    offsets = sorted(file.name for file in Path(checkpoint, "offsets").iterdir() if file.name.isdecimal())
    assert offsets == ["0"], "one batch, however often the log was looked at"
    text = Path(checkpoint, "offsets", "0").read_text().splitlines()[2]
    assert list(json.loads(text)) == ["canonical", "@"]
    assert list(json.loads(text)["canonical"]) == [str(number) for number in range(12)]
    latest, end = (progress["sources"][0][name]["canonical"] for name in ("latestOffset", "endOffset"))
    assert latest == end == {**dict.fromkeys(map(str, range(12)), 0), "2": 1, "11": 2}


@pytest.mark.case("connector-latest-when-batch-0-fails")
def test_latest_starts_where_the_query_was_first_started(spark, store):
    """Batch 0 fails; what came before the restart is not skipped."""
    topic = store.topic("latest", 1)
    path, checkpoint = str(store.path), store.checkpoint("latest")
    spark.call("feed", path=path, topic=topic, rows={0: 4})
    options = {"subscribe": topic}
    arguments = {"path": path, "checkpoint": checkpoint, "options": options}
    from spark_driver import JobFailed

    with pytest.raises(JobFailed, match="to fail"):
        spark.call("stream_run", **arguments, fail_batch=0)
    spark.call("feed", path=path, topic=topic, rows={0: 6})
    batches = spark.call("stream_run", **arguments)
    assert [offset for batch in batches for offset in batch["rows"]["latest-0"]] == [4, 5, 6, 7, 8, 9]


@pytest.mark.case("connector-snapshot-batch-reads-differs")
def test_every_action_on_one_frame_sees_the_same_rows(spark, store):
    topic = store.topic("snapshot", 2)
    assert spark.call("same_frame_twice", path=str(store.path), topic=topic) == [0, 0, 5]
