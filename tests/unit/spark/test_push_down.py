"""Filters of a batch read: what they leave out can never match."""

from __future__ import annotations

import operator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from spark_replog.admin.controller import Controller
from spark_replog.cluster.init_store import init_cluster
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.spark.sink.sink import BatchWriter
from spark_replog.spark.source.batch_reader import (
    BatchReader,
    FilteringBatchReader,
    filter_column,
    join_runs,
    may_hold,
    offset_bounds,
)

AT = ("offset",)
TESTS = {
    EqualTo: operator.eq, EqualNullSafe: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt, LessThanOrEqual: operator.le,
}  # fmt: skip
NUMBERS = st.one_of(st.integers(-3, 12), st.floats(-3, 12, allow_nan=False))


def is_true(item, row):
    if isinstance(item, Not):
        return not is_true(item.child, row)
    if isinstance(item, In):
        return row in item.value
    return TESTS[type(item)](row, item.value)


FILTERS = st.one_of(
    st.builds(lambda kind, value: kind(AT, value), st.sampled_from(list(TESTS)), NUMBERS),
    st.builds(lambda values: In(AT, values), st.lists(NUMBERS, min_size=1, max_size=4)),
)


@given(st.one_of(FILTERS, FILTERS.map(Not)), st.integers(0, 10), st.integers(0, 5))
def test_a_range_is_left_out_only_where_no_row_matches(item, low, more):
    rows = range(low, low + more + 1)
    if any(is_true(item, row) for row in rows):
        assert may_hold(item, rows[0], rows[-1])
    if len(rows) == 1:
        assert may_hold(item, low, low) == is_true(item, low)


@given(FILTERS, st.integers(0, 12))
def test_offset_bounds_hold_every_matching_offset(item, offset):
    start, end = offset_bounds(item)
    assert not is_true(item, offset) or start <= offset < end


def test_offset_bounds_are_tight():
    assert offset_bounds(GreaterThan(AT, 4)) == (5, 2**63 - 1)
    assert offset_bounds(LessThanOrEqual(AT, 4)) == (0, 5)
    assert offset_bounds(In(AT, [9, 3])) == (3, 10)
    assert offset_bounds(EqualTo(AT, 3)) == (3, 4)
    assert offset_bounds(Not(EqualTo(AT, 3))) == offset_bounds(IsNotNull(AT)) == (0, 2**63 - 1)


def test_times_are_compared_in_microseconds():
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    micros = int(noon.timestamp()) * 1_000_000
    assert may_hold(GreaterThanOrEqual(("timestamp",), noon), micros - 5, micros)
    assert not may_hold(GreaterThan(("timestamp",), noon), micros - 5, micros)
    assert may_hold(LessThan(("timestamp",), noon.replace(tzinfo=None)), micros, micros), "no zone: not known"


def test_names():
    topic = ("topic",)
    for item, yes, no in [
        (StringStartsWith(topic, "ord"), "orders", "order"[1:]),
        (StringEndsWith(topic, "ers"), "orders", "order"),
        (StringContains(topic, "rde"), "orders", "ore"),
        (In(topic, ["orders", "x"]), "orders", "order"),
        (Not(StringStartsWith(topic, "x")), "orders", "xorders"),
    ]:
        assert may_hold(item, yes, yes)
        assert not may_hold(item, no, no)
    assert not may_hold(IsNull(topic), "a", "a"), "the four columns are never null"
    assert may_hold(IsNotNull(topic), "a", "a")


@pytest.mark.parametrize(
    "item", [EqualTo(AT, None), EqualTo(AT, True), In(AT, [1, "a"]), Not(EqualTo(AT, None)), Not(Not(EqualTo(AT, 1)))]
)
def test_what_is_not_understood_leaves_nothing_out(item):
    assert may_hold(item, 7, 7)


def test_only_top_level_columns_count():
    assert filter_column(EqualTo(("offset",), 1)) == filter_column(Not(EqualTo(("offset",), 1))) == "offset"
    assert filter_column(EqualTo(("headers", "key"), 1)) == ""


@pytest.mark.parametrize(
    ("runs", "count", "expected"),
    [
        ([], 3, []),
        ([(0, 5), (5, 9)], 3, [(0, 9)]),
        ([(0, 1), (2, 3), (10, 11)], 2, [(0, 3), (10, 11)]),
        ([(0, 1), (2, 3), (10, 11)], 1, [(0, 11)]),
    ],
)
def test_runs_are_joined_over_the_smallest_gaps(runs, count, expected):
    assert join_runs(runs, count) == expected


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two topics of two partitions; in each partition five sections of ten rows, a day apart."""
    path = str(tmp_path_factory.mktemp("push-down") / "store")
    controller = Controller(init_cluster(path, 1, {}, fsync=False))
    for topic in ("orders", "clicks"):
        controller.create_topic(topic, partitions=2, replicas=1, config={})
    for topic in ("orders", "clicks"):
        for day in range(1, 6):
            time = datetime(2024, 1, day, 12, tzinfo=UTC)
            columns = {
                "value": [str(number) for number in range(20)],
                "partition": pa.array([number % 2 for number in range(20)], pa.int32()),
                "timestamp": pa.array([time] * 20, pa.timestamp("us", tz="UTC")),
            }
            writer = BatchWriter(parse_sink_options({"path": path, "topic": topic}, streaming=False))
            writer.commit([writer.write(iter([pa.record_batch(columns)]))])
    return path


def plan(store, *filters):
    """Return the sections that a read with these filters opens, and the rows that it yields."""
    options = parse_source_options({"path": store, "subscribe": "orders,clicks"}, streaming=False)
    reader = FilteringBatchReader(options)
    given_back = list(reader.pushFilters(list(filters)))
    assert given_back == list(filters), "Spark filters the rows as well"
    partitions = reader.partitions()
    opened = [
        (piece.topic, piece.partition, piece.base_offset) for item in partitions
        for piece in item.slices
    ]  # fmt: skip
    rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    return opened, rows


@pytest.mark.parametrize(
    ("filters", "sections", "rows"),
    [
        ([], 20, 200),
        ([EqualTo(("topic",), "orders")], 10, 100),
        ([EqualTo(("topic",), "orders"), In(("partition",), [1])], 5, 50),
        ([GreaterThanOrEqual(("offset",), 35), LessThan(("offset",), 41)], 8, 24),
        ([In(("offset",), [3, 47])], 8, 60),
        ([GreaterThan(("timestamp",), datetime(2024, 1, 4, 13, tzinfo=UTC))], 4, 40),
        ([EqualTo(("timestamp",), datetime(2024, 1, 3, 12, tzinfo=UTC)), EqualTo(("partition",), 0)], 2, 20),
        ([EqualTo(("timestamp",), datetime(2025, 1, 1, tzinfo=UTC))], 0, 0),
        ([EqualTo(("value",), b"7")], 20, 200),
    ],
)
def test_only_sections_that_can_match_are_opened(store, filters, sections, rows):
    opened, read_rows = plan(store, *filters)
    assert (len(opened), len(read_rows)) == (sections, rows)
    assert len(set(opened)) == len(opened)


def test_only_the_reader_of_the_push_down_worker_has_the_method():
    from pyspark.sql.datasource import DataSourceReader

    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    assert FilteringBatchReader.pushFilters is not DataSourceReader.pushFilters


def test_microseconds_of_a_row_are_not_lost_in_the_ledgers_milliseconds(store):
    from spark_replog.cluster.cluster import Cluster

    Controller(Cluster.open(store)).create_topic("micro", partitions=1, replicas=1, config={})
    time = datetime(2024, 1, 1, 12, 0, 0, 500, tzinfo=UTC)
    columns = {"value": ["x"], "timestamp": pa.array([time], pa.timestamp("us", tz="UTC"))}
    writer = BatchWriter(parse_sink_options({"path": store, "topic": "micro"}, streaming=False))
    writer.commit([writer.write(iter([pa.record_batch(columns)]))])
    reader = FilteringBatchReader(parse_source_options({"path": store, "subscribe": "micro"}, streaming=False))
    reader.pushFilters([GreaterThan(("timestamp",), time.replace(microsecond=400))])
    assert len(reader.partitions()) == 1
    reader = FilteringBatchReader(parse_source_options({"path": store, "subscribe": "micro"}, streaming=False))
    reader.pushFilters([GreaterThan(("timestamp",), time.replace(microsecond=1000))])
    assert reader.partitions() == []
