"""Filters of a batch read: what they leave out can never match."""

from __future__ import annotations

import operator
import pickle
from concurrent.futures import Future
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
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
from spark_replog.errors import ErrorCode, RetriableError
from spark_replog.log.codec.section_statistics import MAGIC
from spark_replog.maintenance.compaction import Compactor
from spark_replog.maintenance.segment_writer import SegmentWriter, make_run
from spark_replog.read.fetcher import STATISTICS_READ_BYTES, Fetcher
from spark_replog.spark.options import parse_sink_options, parse_source_options
from spark_replog.spark.sink.sink import BatchWriter
from spark_replog.spark.source import reading
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


PAD_BYTES = 24
TYPED = "id BIGINT, amount DECIMAL(9,2), at TIMESTAMP, shop STRING, note STRING, pad BINARY"


class Typed:
    """A typed topic of one partition with five sections of 4,000 rows, each an object of some hundred KB."""

    rows = 4_000

    def __init__(self, path, ddl=TYPED, name="typed"):
        self.path, self.name = path, name
        self.cluster = init_cluster(path, 1, {}, fsync=False)
        self.controller = Controller(self.cluster)
        self.controller.create_topic(name, partitions=1, replicas=1, config={}, schema=ddl)
        for number in range(5):
            self.write(number)

    def write(self, number, **columns):
        ids = range(number * 10_000, number * 10_000 + self.rows)
        noise = np.random.default_rng(number).bytes(PAD_BYTES * self.rows)
        made = {
            "id": pa.array(ids, pa.int32()),
            "amount": pa.array([None] * self.rows, pa.decimal128(5, 2)) if number == 3 else
                      pa.array([Decimal(number) / 4] * self.rows, pa.decimal128(5, 2)),
            "at": pa.array([datetime(1960 + 10 * number, 1, 1, tzinfo=UTC)] * self.rows, pa.timestamp("us", tz="UTC")),
            "shop": ["shop-" + "x" * 40 + str(number)] * self.rows,
            "note": pa.nulls(self.rows, pa.string()),
            "pad": [noise[at : at + PAD_BYTES] for at in range(0, len(noise), PAD_BYTES)],
        } | columns  # fmt: skip
        writer = BatchWriter(parse_sink_options({"path": self.path, "topic": self.name}, streaming=False))
        writer.commit([writer.write(iter([pa.record_batch(made)]))])

    def read(self, *filters, **options):
        """Return the rows that a read with these filters yields, and what its fetcher counted."""
        given = {"path": self.path, "subscribe": self.name, "pushDownFilters": "true", **options}
        reader = FilteringBatchReader(parse_source_options(given, streaming=False))
        assert list(reader.pushFilters(list(filters))) == list(filters)
        rows, partitions = 0, reader.partitions()
        with pytest.MonkeyPatch.context() as patch:
            made = []
            patch.setattr(reading, "Fetcher", lambda *names, **more: made.append(Fetcher(*names, **more)) or made[-1])
            for partition in pickle.loads(pickle.dumps(partitions)):
                rows += sum(len(batch) for batch in reader.read(partition))
        return rows // self.rows, made[0].stats if made else None


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    return Typed(str(tmp_path_factory.mktemp("typed") / "store"))


DAY = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "sections"),
    [
        ([EqualTo(("id",), 500)], 1),
        ([GreaterThan(("id",), 23_999)], 2),
        ([GreaterThanOrEqual(("id",), 10**9)], 0),
        ([In(("id",), [1, 10_500])], 2),
        ([EqualTo(("amount",), Decimal("0.25"))], 1),
        ([LessThanOrEqual(("amount",), Decimal("0.30"))], 2),
        ([IsNull(("amount",))], 1),
        ([IsNotNull(("amount",))], 4),
        ([IsNotNull(("note",))], 0),
        ([IsNull(("note",)), LessThan(("at",), DAY)], 1),
        ([EqualTo(("at",), DAY)], 1),
        ([StringStartsWith(("shop",), "shop-x")], 5),
        ([StringStartsWith(("shop",), "shop-y")], 0),
        ([EqualNullSafe(("shop",), "a")], 0),
        ([Not(EqualTo(("id",), 500)), EqualTo(("id",), 500)], 1),
    ],
)
def test_sections_that_statistics_exclude_are_not_read(typed, filters, sections):
    read, stats = typed.read(*filters)
    assert (read, stats.skipped_sections) == (sections, 5 - sections)
    assert stats.reads == 5 + sections, "one small read an object, and the sections that may match"
    assert stats.read_bytes <= 5 * STATISTICS_READ_BYTES + sections * 200_000


def test_without_filters_on_its_columns_nothing_more_is_read(typed):
    rounded = Decimal(10**27 + 1)  # as Spark's own 10**27 + 1.1 comes
    other = (
        EqualTo(("pad", "x"), 1),
        GreaterThan(("amount",), rounded),
        EqualTo(("amount",), None),
        EqualTo(("at",), DAY.replace(tzinfo=None)),
    )
    for filters, options in [((), {}), ((EqualTo(("id",), 1),), {"rows": "kafka"}), (other, {})]:
        read, stats = typed.read(*filters, **options)
        assert (read, stats.skipped_sections, stats.reads) == (5, 0, 5)


def test_a_newer_version_reads_older_statistics_and_a_column_that_they_lack_is_null(tmp_path):
    typed = Typed(str(tmp_path / "store"), TYPED.replace("id BIGINT", "id INT").replace("9,2", "5,2"))
    typed.controller.evolve_schema("typed", TYPED + ", extra INT")
    typed.write(9, extra=pa.array([7] * Typed.rows, pa.int32()))
    assert typed.read(EqualTo(("id",), 500))[0] == 1
    assert typed.read(EqualTo(("amount",), Decimal("0.25")))[0] == 1
    read, stats = typed.read(GreaterThan(("extra",), 3))
    assert (read, stats.skipped_sections, stats.reads) == (1, 5, 2), "no read is needed to know that they are null"
    assert typed.read(IsNull(("extra",)))[0] == 5


def test_statistics_that_are_missing_or_damaged_leave_nothing_out(tmp_path, caplog):
    typed = Typed(str(tmp_path / "store"))
    assert typed.read(EqualTo(("id",), 10**6))[0] == 0
    for number, file in enumerate(sorted((tmp_path / "store").rglob("*.arrow"))):
        body = bytearray(file.read_bytes())
        at = body.index(MAGIC) - 9 * (number % 2)
        body[at] ^= 1
        file.write_bytes(body)
    read, stats = typed.read(EqualTo(("id",), 10**6))
    assert (read, stats.skipped_sections) == (5, 0)
    assert not caplog.records, "a hint that is gone is no fault of the rows"


@pytest.mark.parametrize("answer", [None, OSError("disk"), RetriableError(ErrorCode.KAFKA_STORAGE_ERROR, "away")])
def test_an_end_that_cannot_be_read_leaves_nothing_out(typed, monkeypatch, answer):
    future = Future()
    future.set_exception(answer) if answer else future.set_result(None)
    monkeypatch.setattr(Fetcher, "_ask_statistics", lambda *_: future)
    read, stats = typed.read(EqualTo(("id",), 10**6))
    assert (read, stats.skipped_sections, stats.reads) == (5, 0, 5)


def test_compacted_objects_have_statistics_of_their_own(tmp_path):
    typed = Typed(str(tmp_path / "store"))
    handle = typed.cluster.newest_topics(["typed"])["typed"]
    ledger = typed.cluster.topic_ledger(handle.ledger_id)
    run = ledger.ask(lambda state: make_run(state, handle.topic_id, 0, state.sections(handle.topic_id, 0, 0, 8_000)))
    command = SegmentWriter(typed.cluster.brokers).rewrite(run)
    assert Compactor(typed.cluster).commit([(run, command)]).run_count == 1
    for value, sections in [(500, 2), (10_500, 2), (20_500, 1), (5_000, 2), (50_000, 0)]:
        read, stats = typed.read(EqualTo(("id",), value))
        assert (read, stats.skipped_sections) == (sections, 4 - (sections > 0)), "of four, the first two in one"
