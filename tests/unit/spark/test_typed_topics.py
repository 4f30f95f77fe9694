"""Typed topics through the data source, without a JVM: a DataFrame's columns in by name, and out again."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

import spark_replog
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.ddl import parse_columns
from spark_replog.log.json_rows import row_json
from spark_replog.log.row_key import key_bytes
from spark_replog.log.row_schema import RowSchema
from spark_replog.logs import Once
from spark_replog.read.rows import HEADERS_TYPE
from spark_replog.spark import row_form
from spark_replog.spark.column_types import arrow_schema, spark_type
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.spark.sink import sink
from tests.unit.spark.sink_writes import Task

DDL = "id BIGINT NOT NULL, amount DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>"
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("amount", DecimalType(12, 2)),
        StructField("at", TimestampType()),
        StructField("tags", ArrayType(StringType())),
        StructField("place", StructType([StructField("x", IntegerType())])),
    ]
)
ROWS = [
    {"id": number, "amount": Decimal(number), "at": datetime(1960, 1, number, tzinfo=UTC), "tags": ["a", None],
     "place": {"x": number} if number % 2 else None}
    for number in range(1, 8)
]  # fmt: skip
KAFKA = "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"


class Typed:
    """A store with typed topics: what Spark would call is called here."""

    def __init__(self, source, monkeypatch):
        self.source = source
        self.task = None
        monkeypatch.setattr(sink.TaskContext, "get", lambda: self.task)

    def topic(self, name="orders", ddl=DDL, key=("id",), partitions=1):
        self.source.controller.create_topic(name, partitions, 3, start_index=0, schema=ddl, key=key)
        return name

    def at(self, **options):
        options = {"path": str(self.source.path), **options}
        return ReplogDataSource({name.lower(): value for name, value in options.items()})

    def write(self, rows, schema=SCHEMA, *, properties=None, topic="orders", **options):
        """Append as one batch write of one task."""
        writer = self.at(topic=topic, **options).writer(schema, False)
        arrow = arrow_schema(schema)
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow) if isinstance(rows, list) else rows
        self.task = Task(0, properties or {})
        try:
            message = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([batch]))))
        finally:
            self.task = None
        writer.commit([message])

    def table(self, topic="orders", schema=None, **options):
        """Read as a batch; with the schema that the source gives, or that a DataFrame has had since its load."""
        source = self.at(subscribe=topic, **options)
        schema = source.schema() if schema is None else schema
        reader = cloudpickle.loads(cloudpickle.dumps(source.reader(schema)))
        return table_of(reader, reader.partitions(), schema)

    def rows(self, **options):
        return self.table(**options).to_pylist()


def table_of(reader, partitions, schema):
    made = pa.schema([field.with_nullable(True) for field in arrow_schema(schema)])
    reader, partitions = cloudpickle.loads(cloudpickle.dumps((reader, partitions)))
    batches = [batch for part in partitions for batch in reader.read(part)]
    assert all(batch.schema.equals(made) for batch in batches)  # Spark 4.3 compares them
    return pa.Table.from_batches(batches, schema=made)


@pytest.fixture
def typed(source, monkeypatch):
    return Typed(source, monkeypatch)


@pytest.fixture
def orders(typed):
    typed.topic()
    return typed


def refused(code, call, *said):
    with pytest.raises(ReplogError) as raised:
        call()
    assert raised.value.code is code, raised.value
    for text in said:
        assert text in str(raised.value)


INVALID, OPTION, CONFLICT = (
    ErrorCode.REPLOG_INVALID_SCHEMA,
    ErrorCode.REPLOG_INVALID_OPTION,
    ErrorCode.REPLOG_CONFLICTING_OPTIONS,
)


def fields(*pairs):
    return StructType([StructField(name, kind) for name, kind in pairs])


# ------------------------------------------------------------------------------------------ types


def test_types_of_spark_and_of_a_topic_are_each_others():
    rows = RowSchema(
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(38,6), i STRING, j BINARY, k "
        "DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n INTERVAL DAY TO SECOND, o ARRAY<MAP<STRING, STRUCT<x: INT>>>, p STRUCT<>"
    )
    schema = StructType([StructField(field.name, spark_type(field.type)) for field in rows.arrow])
    assert arrow_schema(schema).equals(rows.arrow)


def test_a_type_that_a_topic_cannot_hold_is_named(orders):
    schema = fields(("id", LongType()), ("tags", ArrayType(YearMonthIntervalType())))
    refused(INVALID, lambda: orders.at(topic="orders").writer(schema, False), "tags.element", "interval year to month")


# ----------------------------------------------------------------------------------------- writes


def test_rows_go_in_and_out_with_the_topics_types(orders):
    orders.write(ROWS)
    assert orders.at(subscribe="orders").schema().simpleString() == (
        "struct<id:bigint,amount:decimal(12,2),at:timestamp,tags:array<string>,place:struct<x:double>>"
    )
    assert orders.rows() == ROWS


def test_columns_are_found_by_name_in_any_order_and_case_widened_and_null_where_they_are_missing(orders):
    schema = fields(("TAGS", NullType()), ("Amount", DecimalType(5, 1)), ("ID", IntegerType()))
    orders.write([{"TAGS": None, "Amount": Decimal("1.5"), "ID": 3}], schema)
    assert orders.rows() == [{"id": 3, "amount": Decimal("1.50"), "at": None, "tags": None, "place": None}]


def test_a_session_in_which_case_counts_refuses_names_in_another_case_in_its_tasks(orders):
    schema, rows = fields(("ID", LongType())), [{"ID": 1}]
    call = lambda: orders.write(rows, schema, properties={"spark.sql.caseSensitive": "true"})  # noqa: E731
    refused(INVALID, call, "'ID'", "Rename it to 'id'")
    assert orders.rows() == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (fields(("amount", DecimalType(12, 2))), ("'id' BIGINT", "NOT NULL", "Add it")),
        (fields(("id", LongType()), ("more", LongType())), ("'more'", "Drop it")),
        (fields(("id", StringType())), ("'id'", "STRING", "BIGINT", "CAST")),
        (fields(("id", LongType()), ("amount", DecimalType(12, 3))), ("DECIMAL(12,3)", "DECIMAL(12,2)", "CAST")),
        (fields(("id", LongType()), ("at", TimestampNTZType())), ("'at'", "TIMESTAMP_NTZ", "TIMESTAMP", "CAST")),
        (fields(("id", LongType()), ("ID", LongType())), ("two columns 'ID'",)),
        (fields(("key", BinaryType()), ("value", BinaryType())), ("'key'",)),
    ],
)
@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_columns_that_do_not_fit_are_refused_as_the_writer_is_made(orders, schema, said, mode):
    made = orders.at(topic="orders")
    refused(INVALID, lambda: (made.writer if mode == "batch" else made.streamWriter)(schema, False), *said)


def test_a_null_in_a_column_that_has_none_is_refused_and_nothing_is_stored(orders):
    refused(ErrorCode.INVALID_RECORD, lambda: orders.write([ROWS[0], {**ROWS[1], "id": None}]), "'id'", "NOT NULL")
    assert orders.rows() == []


def test_rows_have_the_time_and_headers_of_the_columns_that_the_options_name(orders):
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    schema = StructType([*SCHEMA.fields, StructField("sent", TimestampType()), StructField("about", headers)])
    when = datetime(2024, 5, 6, 7, 8, 9, 123, UTC)
    rows = [{**ROWS[0], "sent": when, "about": [{"key": "h", "value": b"1"}]}, {**ROWS[1], "sent": when, "about": None}]
    orders.write(rows, schema, timestampColumn="sent", headersColumn="about")
    first, second = orders.rows(includeMetadata="true", columns="tags")
    assert first["_metadata"]["timestamp"] == second["_metadata"]["timestamp"] == when
    assert first["_metadata"]["headers"] == [{"key": "h", "value": b"1"}] and second["_metadata"]["headers"] is None
    orders.write([{**ROWS[0], "at": when}], timestampColumn="AT")
    assert (orders.rows(includeMetadata="true")[2]["_metadata"]["timestamp"], orders.rows()[2]["at"]) == (when, when)
    refused(INVALID, lambda: orders.write(ROWS, timestampColumn="amount"), "'amount'", "TIMESTAMP")
    refused(INVALID, lambda: orders.write(ROWS, headersColumn="no"), "'no'")
    refused(CONFLICT, lambda: orders.write(ROWS, timestampColumn="at", headersColumn="at"), "'at'")


def test_options_of_the_other_kind_of_topic_are_refused(orders, source):
    source.topic("raw")
    schema = fields(("value", BinaryType()))
    for options in ({"timestampColumn": "t"}, {"headersColumn": "h"}):
        refused(CONFLICT, lambda options=options: orders.write([], schema, topic="raw", **options), "'raw'")
        refused(CONFLICT, lambda options=options: orders.at(**options).writer(fields(
            ("topic", StringType()), ("value", BinaryType())), False))  # fmt: skip
    refused(CONFLICT, lambda: orders.write(ROWS, **{"key.serializer": "my.Serializer"}), "'orders'", "serializer")
    refused(CONFLICT, lambda: orders.write([], schema, topic="raw", mergeSchema="true"), "mergeSchema", "'raw'")


def test_columns_that_a_topic_lacks_are_added_if_the_write_asks_for_it_and_all_else_fits(orders):
    orders.write(ROWS[:1])
    schema = StructType(
        [*SCHEMA.fields, StructField("note", StringType(), False), StructField("sent", TimestampType())]
    )
    row = {**ROWS[1], "note": "n", "sent": datetime(2024, 1, 1, tzinfo=UTC)}
    wrong = StructType([StructField("id", StringType()), StructField("note", StringType())])
    refused(INVALID, lambda: orders.write([], wrong, mergeSchema="true"), "'id'")
    assert orders.at(subscribe="orders").schema().names == SCHEMA.names
    orders.write([row], schema, mergeSchema="true", timestampColumn="sent")
    assert orders.rows(columns="id,note") == [{"id": 1, "note": None}, {"id": 2, "note": "n"}]
    assert "sent" not in orders.at(subscribe="orders").schema().names
    orders.write([row], schema, mergeSchema="true", timestampColumn="sent")
    assert len(orders.source.controller.describe_topic("orders").schema.names) == len(SCHEMA.names) + 1
    wider = StructType([StructField("id", LongType()), StructField("amount", DecimalType(14, 4))])
    orders.write([{"id": 9, "amount": Decimal("0.0001")}], wider, mergeSchema="true")
    assert orders.rows(columns="amount")[-1] == {"amount": Decimal("0.0001")}


def test_a_write_that_is_known_by_its_rows_is_known_by_all_columns(orders):
    name = {"txnAppId": "nightly", "txnVersion": "1"}
    orders.write(ROWS, **name)
    orders.write(ROWS[::-1], StructType(SCHEMA.fields[::-1]), **name)
    changed = [{**row, "tags": ["b"]} for row in ROWS]
    refused(ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH, lambda: orders.write(changed, **name))
    assert orders.rows() == ROWS


def test_a_repeated_micro_batch_of_a_typed_topic_is_stored_once(orders, source):
    def run(batch_id, run_id, rows):
        writer = orders.at(topic="orders").streamWriter(SCHEMA, False)
        orders.task = Task(0, {
            "sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch_id), "spark.jobGroup.id": run_id,
        })  # fmt: skip
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SCHEMA))
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([batch]))], batch_id)

    run(0, "first", ROWS[:3])
    run(0, "second", ROWS[:3])
    run(1, "second", ROWS[3:])
    assert orders.rows() == ROWS


# ------------------------------------------------------------------------------------------ reads


def test_only_the_columns_that_are_named_are_read_in_the_topics_order(orders):
    orders.write(ROWS)
    assert orders.rows(columns="Amount, id") == [{name: row[name] for name in ("id", "amount")} for row in ROWS]
    refused(OPTION, lambda: orders.table(columns="id,what"), "'what'", "place")


@pytest.mark.parametrize("columns", [{}, {"columns": "amount"}])
def test_metadata_are_one_struct_beside_the_columns(orders, columns):
    orders.write(ROWS)
    schema = orders.at(subscribe="orders", includeMetadata="true", **columns).schema()
    assert schema["_metadata"].dataType.simpleString() == (
        "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,key:binary,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = orders.rows(includeMetadata="true", **columns)
    assert [row["_metadata"]["key"] for row in rows] == [key_bytes([row["id"]], [pa.int64()]) for row in ROWS]
    assert [(row["_metadata"]["topic"], row["_metadata"]["offset"]) for row in rows] == [
        ("orders", n) for n in range(7)
    ]
    assert [row["amount"] for row in rows] == [row["amount"] for row in ROWS]
    assert list(rows[0]) == [*(["amount"] if columns else SCHEMA.names), "_metadata"]


def test_a_program_for_bytes_reads_a_typed_topic_as_json(orders):
    orders.write(ROWS)
    assert orders.at(subscribe="orders", rows="kafka").schema().simpleString() == KAFKA
    table = orders.table(rows="kafka", includeHeaders="true")
    assert json.loads(table["value"][0].as_py()) == {
        "id": 1, "amount": "1.00", "at": "1960-01-01T00:00:00+00:00", "tags": ["a", None], "place": {"x": 1.0},
    }  # fmt: skip
    assert table["key"][0].as_py() == (1).to_bytes(8, "big") and table["headers"].type == HEADERS_TYPE
    for columns in ("offset", "key,offset", "value"):
        assert orders.table(rows="kafka", columns=columns).equals(table.select(columns.split(",")))
    refused(OPTION, lambda: orders.table(rows="kafka", columns="amount"), "'amount'")
    refused(OPTION, lambda: orders.table(rows="both"), "'both'")
    refused(CONFLICT, lambda: orders.table(rows="kafka", includeMetadata="true"))


def test_topics_of_one_read_have_the_same_columns_or_are_refused(typed):
    typed.topic("a", "id BIGINT, x STRING")
    typed.topic("b", "id BIGINT, x STRING", key=())
    typed.topic("c", "id INT, x STRING")
    typed.source.topic("raw")
    for topic in "ab":
        typed.write([{"id": 1, "x": topic}], fields(("id", LongType()), ("x", StringType())), topic=topic)
    typed.source.write("raw", {0: 1})
    assert typed.rows(topic="b,a", includeMetadata="true", columns="x")[1]["_metadata"]["topic"] == "b"
    refused(INVALID, lambda: typed.table(topic="a,c"), "'a'", "'c'", "bigint", "columns")
    assert typed.rows(topic="a,c", columns="x") == [{"x": "a"}]
    refused(INVALID, lambda: typed.table(topic="a,raw"), "'a'", "'raw'", "rows=kafka")
    values = {row["topic"]: row["value"] for row in typed.rows(topic="a,b,c,raw", rows="kafka")}
    assert values == {"a": b'{"id":1,"x":"a"}', "b": b'{"id":1,"x":"b"}', "raw": b"x"}
    refused(CONFLICT, lambda: typed.table(topic="raw", includeMetadata="true"), "'raw'", "_metadata")
    refused(CONFLICT, lambda: typed.table(topic="a", includeHeaders="true"), "'a'", "includeMetadata")
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: typed.table(topic="absent", columns="x"), "'absent'")


def test_columns_named_as_the_logs_are_the_topics_own(typed):
    names = ("key", "value", "offset", "timestamp", "headers", "topic", "_metadata")
    schema = fields(*((name, StringType()) for name in names))
    typed.topic("odd", ", ".join(f"`{name}` STRING" for name in names), key=("topic",))
    rows = [{name: f"{name}-{number}" for name in names} for number in range(2)]
    typed.write(rows, schema, topic="odd")
    assert typed.rows(topic="odd") == rows
    assert typed.rows(topic="odd", columns="headers") == [{"headers": row["headers"]} for row in rows]
    assert typed.table(topic="odd", rows="kafka")["key"].to_pylist() == [b"topic-0", b"topic-1"]
    refused(CONFLICT, lambda: typed.table(topic="odd", includeMetadata="true"), "'_metadata'")


# -------------------------------------------------------------------------------------- evolution


def test_a_dataframe_keeps_the_columns_that_it_began_with_and_the_next_one_has_the_newer(orders, caplog, monkeypatch):
    monkeypatch.setattr(row_form, "NAMED_NEWER", Once())
    orders.write(ROWS[:1])
    declared = orders.at(subscribe="orders").schema()
    query = orders.at(subscribe="orders", startingOffsets="earliest").streamReader(declared)
    start = query.initialOffset()
    middle = query.latestOffset(start, query.getDefaultReadLimit())
    wider = DDL.replace("DECIMAL(12,2)", "DECIMAL(20,4)") + ", day DATE"
    orders.source.controller.evolve_schema("orders", wider)
    schema = StructType([
        *[field if field.name != "amount" else StructField("amount", DecimalType(20, 4)) for field in SCHEMA.fields],
        StructField("day", DateType()),
    ])  # fmt: skip
    orders.write([{**ROWS[1], "day": date(2024, 1, 1)}], schema)
    orders.write(ROWS[2:3])  # by a writer that does not know the newer columns
    end = query.latestOffset(middle, query.getDefaultReadLimit())
    assert table_of(query, query.partitions(middle, end), declared).to_pylist() == ROWS[1:3]
    assert orders.rows(schema=declared) == ROWS[:3]
    assert [record.levelname for record in caplog.records if "version 2" in record.getMessage()] == ["WARNING"]
    assert [row["day"] for row in orders.rows()] == [None, date(2024, 1, 1), None]
    orders.write([{**ROWS[3], "amount": Decimal("0.0001"), "day": None}], schema)
    refused(INVALID, lambda: orders.rows(schema=declared), "'amount'", "DECIMAL(20,4)", "DECIMAL(12,2)", "again")


def test_a_schema_that_no_version_has_is_refused(orders):
    for schema in (fields(("id", LongType())), fields(("key", BinaryType()), ("value", BinaryType()))):
        refused(INVALID, lambda schema=schema: orders.table(schema=schema), "'orders'", "load()")


def test_a_dataframe_from_before_not_null_was_dropped_reads_nulls(typed):
    typed.topic("t", "x INT NOT NULL", key=())
    declared = typed.at(subscribe="t").schema()
    typed.source.controller.evolve_schema("t", "x INT")
    typed.write([{"x": None}], fields(("x", IntegerType())), topic="t")
    assert typed.rows(topic="t", schema=declared) == [{"x": None}]


def test_a_narrower_reader_never_rounds_floats(typed):
    typed.topic("t", "x FLOAT, s STRUCT<y: FLOAT>, m MAP<STRING, FLOAT>", key=())
    declared = typed.at(subscribe="t").schema()
    typed.source.controller.evolve_schema("t", "x DOUBLE, s STRUCT<y: DOUBLE>, m MAP<STRING, DOUBLE>")
    typed.write([{"x": 0.1, "s": None, "m": None}], typed.at(subscribe="t").schema(), topic="t")
    refused(INVALID, lambda: typed.rows(topic="t", schema=declared), "'x'", "DOUBLE", "FLOAT", "again")


# ---------------------------------------------------------------------------------------- streams


def test_a_stream_reads_typed_rows_of_several_partitions_in_one_task(typed):
    typed.topic("many", partitions=3)
    typed.write(ROWS, topic="many")
    source = typed.at(subscribe="many", startingOffsets="earliest", maxPartitions="1")
    schema = source.schema()
    query = source.streamReader(schema)
    start = query.initialOffset()
    (part,) = query.partitions(start, query.latestOffset(start, query.getDefaultReadLimit()))
    assert sorted(table_of(query, [part], schema).to_pylist(), key=lambda row: row["id"]) == ROWS
    assert len(pickle.dumps(part)) < 20_000


def test_a_topic_that_is_made_after_the_load_is_read_as_bytes_or_refused(typed):
    source = typed.at(subscribe="later", startingOffsets="earliest")
    schema = source.schema()
    assert schema.simpleString() == KAFKA
    typed.topic("later")
    query = source.streamReader(schema)
    refused(
        INVALID, lambda: query.latestOffset(query.initialOffset(), query.getDefaultReadLimit()), "'later'", "load()"
    )


def test_every_type_passes_through_kinds_of_maps_and_intervals(typed):
    typed.topic(
        "kinds", "took INTERVAL DAY TO SECOND, m MAP<STRING, ARRAY<INT>>, local TIMESTAMP_NTZ, day DATE", key=()
    )
    schema = fields(
        ("took", DayTimeIntervalType()),
        ("m", MapType(StringType(), ArrayType(IntegerType()))),
        ("local", TimestampNTZType()),
        ("day", DateType()),
    )
    rows = [{"took": None, "m": [("a", [1, None])], "local": datetime(1950, 1, 1), "day": date(9999, 12, 31)}]
    typed.write(rows, schema, topic="kinds")
    assert typed.rows(topic="kinds") == rows


def test_filters_on_columns_of_the_topic_do_not_filter_the_log(typed):
    from pyspark.sql.datasource import EqualTo

    from spark_replog.spark.options import parse_source_options
    from spark_replog.spark.source.batch_reader import FilteringBatchReader

    typed.topic("f", "offset BIGINT, `_metadata` STRUCT<offset: BIGINT>", key=())
    schema = fields(("offset", LongType()), ("_metadata", StructType([StructField("offset", LongType())])))
    typed.write([{"offset": 7, "_metadata": {"offset": 7}}], schema, topic="f")
    typed.topic("g", "x BIGINT", key=())
    typed.write([{"x": 1}, {"x": 2}], fields(("x", LongType())), topic="g")

    def parts(topic, *path, **options):
        given = {"path": str(typed.source.path), "subscribe": topic, **options}
        reader = FilteringBatchReader(parse_source_options(given, streaming=False))
        assert list(reader.pushFilters([EqualTo(path, 7)]))
        return reader.partitions()

    assert parts("f", "offset") and parts("f", "_metadata", "offset")
    assert not parts("g", "_metadata", "offset", includemetadata="true")
    assert not parts("g", "offset", rows="kafka")


# ------------------------------------------------------------------------------ wide rows, odd names, bounds

BOUNDS = {
    "BOOLEAN": (False, True),
    "TINYINT": (-128, 127),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INT": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "FLOAT": (-math.inf, 2.0**-149),
    "DOUBLE": (5e-324, -0.0),
    "DECIMAL(38,0)": (Decimal(1 - 10**38), Decimal(10**38 - 1)),
    "DECIMAL(38,38)": (Decimal("-0." + "9" * 38), Decimal("0." + "0" * 37 + "1")),
    "DECIMAL(1,0)": (Decimal(-9), Decimal(9)),
    "DATE": (date.min, date.max),
    "TIMESTAMP": (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    "TIMESTAMP_NTZ": (datetime.min, datetime.max),
    "INTERVAL DAY TO SECOND": (timedelta(days=-106_751_990, microseconds=1), timedelta(days=106_751_990)),
    "STRING": ("", '\0\u00fc\u202e\U0001f600"\\'),
    "BINARY": (b"", b"\0\xff"),
    "ARRAY<STRUCT<>>": ([], [{}, None]),
    "STRUCT<`a.b`: ARRAY<INT>, key: STRUCT<>>": ({"a.b": None, "key": {}}, {"a.b": [1, None], "key": None}),
    "MAP<STRING, STRUCT<x: INT>>": ([], [("k", {"x": 1}), ("null", None)]),
}
ODD_NAMES = (
    "key",
    "value",
    "topic",
    "_metadata",
    "a b",
    "a.b",
    "a`b",
    '"',
    "\n",
    "1",
    "-",
    "SELECT",
    "\u043a",
    "x" * 500,
)


def test_wide_rows_with_odd_names_and_values_at_their_bounds_are_equal_from_every_writer_to_every_reader(typed):
    kinds = list(BOUNDS)
    names = ["id", *ODD_NAMES, *(f"c{number}" for number in range(500 - 1 - len(ODD_NAMES)))]
    columns = parse_columns(", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))).types
    used = ["BIGINT", *(kinds[number % len(kinds)] for number in range(len(names) - 1))]
    by_kind = dict(zip(kinds, columns, strict=True))
    schema = pa.schema([pa.field(name, by_kind[kind]) for name, kind in zip(names, used, strict=True)])
    rows = [{name: BOUNDS[kind][row] for name, kind in zip(names, used, strict=True)} for row in (0, 1)]
    rows = [{**row, "id": number} for number, row in enumerate([*rows, dict.fromkeys(names)])]
    table = pa.Table.from_pylist(rows, schema)

    def other_layout(column):
        if pa.types.is_string(column.type):
            return column.cast(pa.string_view())
        return column.dictionary_encode() if pa.types.is_integer(column.type) else column

    for topic in ("by-spark", "by-send", "by-arrow"):
        typed.topic(topic, schema)
    fields_of_spark = fields(*((field.name, spark_type(field.type)) for field in schema))
    typed.write(table.combine_chunks().to_batches()[0], fields_of_spark, topic="by-spark")
    store = spark_replog.open(str(typed.source.path))
    with store.producer() as producer:
        for row in rows:
            producer.send("by-send", row)
        producer.send_arrow("by-arrow", pa.table({name: other_layout(table[name]) for name in names}))
    with spark_replog.Consumer(store.path, group=None, auto_offset_reset="earliest") as reader:
        reader.assign([spark_replog.TopicPartition(topic, 0) for topic in ("by-spark", "by-send", "by-arrow")])
        consumed = {}
        while sum(map(len, consumed.values())) < 9:
            for record in reader.poll(timeout_ms=1_000):
                consumed.setdefault(record.topic, []).append(record.value)
    expected = table.to_pylist(maps_as_pydicts="strict")
    for topic in ("by-spark", "by-send", "by-arrow"):
        assert typed.table(topic=topic).equals(table)
        assert store.topic(topic).scan(columns=names).to_arrow().cast(schema).equals(table)
        assert consumed[topic] == expected
        assert typed.table(topic=topic, rows="kafka")["value"].to_pylist() == [row_json(row) for row in expected]


@pytest.mark.wide
def test_a_row_of_100_mb_goes_in_and_out(typed):
    typed.topic("large", "id BIGINT, raw BINARY, words ARRAY<STRING>, note STRING")
    typed.source.controller.alter_config("large", {"max.message.bytes": str(256 << 20)})
    row = {"id": 1, "raw": bytes(60 << 20), "words": ["w" * (20 << 20), None], "note": "n" * (20 << 20)}
    schema = fields(
        ("id", LongType()), ("raw", BinaryType()), ("words", ArrayType(StringType())), ("note", StringType())
    )
    sizes = {"max.request.size": str(256 << 20), "buffer.memory": str(1 << 30)}
    typed.write([row], schema, topic="large", **{f"kafka.{name}": value for name, value in sizes.items()})
    store = spark_replog.open(str(typed.source.path))
    with store.producer(max_request_size=256 << 20, buffer_memory=1 << 30) as producer:
        producer.send("large", {**row, "id": 2}).result(timeout=120)
    for rows in (typed.rows(topic="large"), store.topic("large").scan(columns=list(row)).to_arrow().to_pylist()):
        assert rows == [row, {**row, "id": 2}]
