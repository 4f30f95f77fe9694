"""Batch reads: a snapshot between two ends, by offset and by time. On a real store, without a JVM."""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.read.fetcher import Fetcher
from spark_replog.spark.source import reading


def offsets(source, **options):
    return source.rows(source.batch(subscribe="t", **options))


@pytest.fixture
def timed(source):
    """t-0: times 100 ... 900 in two objects, not sorted; t-1: 500."""
    source.topic("t", 2)
    source.write("t", {0: 4}, times_ms=[100, 300, 200, 400])
    source.write("t", {0: 4, 1: 1}, times_ms=[900, 350, 800, 850, 500])
    return source


@pytest.mark.parametrize(
    ("time", "first"),
    [
        (0, 0),
        (100, 0),
        (101, 1),
        (200, 1),
        (300, 1),
        (301, 3),
        (400, 3),
        (401, 4),
        (900, 4),
        ("1970-01-01T00:00:00.301Z", 3),
    ],
)
def test_a_read_starts_at_the_first_row_that_is_late_enough(timed, time, first):
    offsets_read = offsets(timed, startingTimestamp=str(time), startingOffsetsByTimestampStrategy="latest")
    assert offsets_read["t-0"] == list(range(first, 8))


@pytest.mark.parametrize(("time", "end"), [(100, 0), (300, 1), (400, 3), (500, 4), (901, 8), (10**15, 8)])
def test_a_read_ends_before_the_first_row_that_is_too_late(timed, time, end):
    assert offsets(timed, endingTimestamp=str(time)).get("t-0", []) == list(range(end))


def test_times_per_partition(timed):
    starts = '{"t":{"0":400,"1":500}}'
    assert offsets(timed, startingOffsetsByTimestamp=starts) == {"t-0": [3, 4, 5, 6, 7], "t-1": [0]}
    assert offsets(timed, startingOffsetsByTimestamp=starts, endingOffsetsByTimestamp='{"t":{"0":800,"1":501}}') == {
        "t-0": [3], "t-1": [0],
    }  # fmt: skip


def test_no_row_late_enough(timed):
    with pytest.raises(InvalidConfigError, match=r"No offset matched .* topic-partition t-1 and timestamp 600"):
        offsets(timed, startingTimestamp="600")
    assert offsets(timed, startingTimestamp="600", startingOffsetsByTimestampStrategy="latest") == {"t-0": [4, 5, 6, 7]}


def test_trimmed_rows_are_not_found_by_time(timed):
    timed.controller.delete_records("t", {0: 5})
    offsets_read = offsets(timed, startingTimestamp="350", startingOffsetsByTimestampStrategy="latest")
    assert offsets_read["t-0"] == [5, 6, 7]
    offsets_read = offsets(timed, startingTimestamp="360", startingOffsetsByTimestampStrategy="latest")
    assert offsets_read["t-0"] == [6, 7]


def test_log_append_time_is_the_time_of_the_commit(source):
    source.topic("t", **{"message.timestamp.type": "LogAppendTime"})
    source.write("t", {0: 3}, times_ms=[1, 2, 3])
    assert offsets(source, startingTimestamp="4") == {"t-0": [0, 1, 2]}
    assert offsets(source, startingTimestamp="-1 hour") == {"t-0": [0, 1, 2]}
    assert offsets(source, endingTimestamp="-1 hour") == {}


@pytest.fixture
def fetched(monkeypatch):
    """What fetchers were asked for."""
    seen = []
    fetch = Fetcher.fetch

    def counted(self, slices, **more):
        seen.append(slices)
        return fetch(self, slices, **more)

    monkeypatch.setattr(Fetcher, "fetch", counted)
    return seen


def test_only_the_section_in_question_is_looked_at(source, fetched):
    source.topic("t")
    for at in range(6):
        source.write("t", {0: 2}, times_ms=[at * 100, at * 100 + 50])
    assert len(source.batch(subscribe="t", startingTimestamp="330").partitions()) == 1
    assert [[piece.base_offset for piece in slices] for slices in fetched] == [[6]]
    fetched.clear()
    source.batch(subscribe="t", startingTimestamp="300").partitions()
    assert fetched == [], "the table of the fold says that the first row is late enough"


def test_a_section_that_only_seems_late_enough_is_passed_over(source, fetched):
    source.topic("t")
    for time_ms in (999.5, 1, 2, 1000):
        source.write("t", {0: 1}, times_ms=[time_ms])
    assert offsets(source, startingTimestamp="1000") == {"t-0": [3]}
    looked_at = [[piece.base_offset for piece in slices] for slices in fetched]
    assert looked_at[0] == [0], "its last row is at 999.5, which the table rounds up"
    assert len(looked_at) == 2, "then the row itself is read"


def test_backwards_ends_are_refused(source):
    source.topic("t")
    source.write("t", {0: 3})
    with pytest.raises(
        InvalidConfigError, match=r"resolved start offset 3 is greater than the resolved end offset 1 .*RESOLVED_START"
    ):
        offsets(
            source, startingTimestamp="2000", startingOffsetsByTimestampStrategy="latest", endingOffsets='{"t":{"0":1}}'
        )
    assert offsets(source, startingOffsets='{"t":{"0":2}}', endingOffsets='{"t":{"0":2}}') == {}


def test_offsets_that_are_not_there(source):
    source.topic("t")
    source.write("t", {0: 9})
    source.controller.delete_records("t", {0: 4})
    for given, said in [
        ({"startingOffsets": '{"t":{"0":2}}'}, "offsets 2 to 4 (exclusive) of t-0"),
        ({"endingOffsets": '{"t":{"0":12}}'}, "changed from 12 to 9"),
    ]:
        with pytest.raises(ReplogError) as caught:
            offsets(source, **given)
        assert caught.value.code is ErrorCode.REPLOG_DATA_LOSS
        assert said in str(caught.value)
        assert offsets(source, failOnDataLoss="false", **given) == {"t-0": [4, 5, 6, 7, 8]}


def test_every_action_on_one_reader_sees_the_same_rows(source):
    source.topic("t")
    source.write("t", {0: 3})
    reader = source.batch(subscribe="t")
    tasks = reader.partitions()
    source.write("t", {0: 3})
    assert source.rows(reader, tasks) == {"t-0": [0, 1, 2]}
    assert offsets(source) == {"t-0": [0, 1, 2, 3, 4, 5]}


def test_empty_partitions_count_for_a_batch_and_not_for_a_stream(source):
    source.topic("t", 2)
    source.write("t", {0: 8})
    assert len(source.batch(subscribe="t", minPartitions="2").partitions()) == 1
    assert len(source.batch(subscribe="t", minPartitions="3").partitions()) == 3
    reader = source.stream(subscribe="t", minPartitions="2", startingOffsets="earliest")
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start, None))) == 2


def test_tasks_are_cut_to_the_row(source):
    source.topic("t", 2)
    source.write("t", {0: 10, 1: 1})
    tasks = source.batch(subscribe="t", maxRecordsPerPartition="4").partitions()
    assert [[(item.start_offset, item.end_offset) for item in task.ranges] for task in tasks] == [
        [(0, 3)], [(3, 6)], [(6, 10)], [(0, 1)],
    ]  # fmt: skip
    assert offsets(source, minPartitions="5") == {"t-0": list(range(10)), "t-1": [0]}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"columns": "value"}, ["value"]),
        ({"columns": " offset, key ,value"}, ["key", "value", "offset"]),
        ({"columns": "headers,timestampType"}, ["timestampType", "headers"]),
        ({"columns": "topic", "includeHeaders": "true"}, ["topic", "headers"]),
    ],
)
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_only_the_columns_that_are_named_are_read(timed, asked, names, mode):
    """One task reads both partitions, in streams and batches; the whole read is the measure."""

    def read(**more):
        made = timed._source({"subscribe": "t", "startingOffsets": "earliest", "maxPartitions": "1", **more})
        schema = made.schema()
        if mode == "batch":
            reader = made.reader(schema)
            parts = reader.partitions()
        else:
            reader = made.streamReader(schema)
            start = reader.initialOffset()
            parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert len(parts) == 1
        table = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
        assert table.column_names == schema.names
        return table

    assert read(**asked).equals(read(includeHeaders="true").select(names))
    assert read().num_columns == 7


@pytest.mark.parametrize("text", ["", ",", "values", "value,Key"])
def test_columns_that_are_no_columns(timed, text):
    with pytest.raises(InvalidConfigError, match="timestampType, headers"):
        timed._source({"subscribe": "t", "columns": text}).schema()


def test_a_schema_that_is_not_the_columns(timed):
    with pytest.raises(InvalidConfigError, match="REPLOG_INVALID_SCHEMA"):
        timed.batch(subscribe="t", columns="value").partitions()


def test_small_batches_of_a_task_are_joined_within_the_reach_of_offsets():
    """Memory that is never touched: Arrow would join the first row and the second one, of 2 GiB, to two batches."""
    batches = []
    for size in 1000, 2**31 - 1000, 1000, 1000:
        ends = pa.py_buffer(np.array([0, size], dtype=np.int32))
        value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(mmap.mmap(-1, size))])
        batches.append(pa.RecordBatch.from_arrays([value], ["value"]))
    assert [batch.num_rows for batch in reading.join_small(iter(batches))] == [1, 1, 2]
