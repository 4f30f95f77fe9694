"""Topics of bytes read as columns through the data source, without a JVM."""

from __future__ import annotations

import base64
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import fastavro
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo, LessThan

from spark_replog.errors import ErrorCode
from spark_replog.spark.data_source import ReplogDataSource
from spark_replog.spark.options import parse_source_options
from spark_replog.spark.source.batch_reader import FilteringBatchReader
from tests.unit.spark.conftest import WRITE_SCHEMA
from tests.unit.spark.test_typed_topics import CONFLICT, INVALID, KAFKA, OPTION, refused, table_of

DDL = "id BIGINT NOT NULL, amount DECIMAL(12,2), tags ARRAY<STRING>"
CORRUPT = f"{DDL}, _corrupt_record STRING"
VALUES = [b'{"id":1,"amount":"2.50","tags":["a"],"more":0}', b'{"id":2}', b'{"id":"x"}', b"\xff", b'\0\0\0\0\7{"id":3}']


class Decoded:
    """A store with one topic of bytes."""

    def __init__(self, source):
        self.path = str(source.path)
        source.topic("raw", 2)

    def at(self, topic="raw", **options):
        given = {"path": self.path, "subscribe": topic, "valueFormat": "json", "valueSchema": DDL, **options}
        return ReplogDataSource({name.lower(): value for name, value in given.items() if value is not None})

    def write(self, values):
        columns = [
            pa.array([str(number).encode() for number in range(len(values))], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([0] * len(values), pa.int32()),
            pa.array([5_000_000] * len(values)).cast(pa.timestamp("us", tz="UTC")),
        ]
        writer = ReplogDataSource({"path": self.path, "topic": "raw"}).writer(WRITE_SCHEMA, False)
        writer.commit([writer.write(iter([pa.RecordBatch.from_arrays(columns, names=WRITE_SCHEMA.names)]))])

    def table(self, **options):
        source = self.at(**options)
        schema = source.schema()
        reader = cloudpickle.loads(cloudpickle.dumps(source.reader(schema)))
        return table_of(reader, reader.partitions(), schema)

    def rows(self, **options):
        return self.table(**options).to_pylist()


@pytest.fixture
def raw(source):
    made = Decoded(source)
    made.write(VALUES)
    return made


NULLS = {"id": None, "amount": None, "tags": None}


def test_a_permissive_read_shows_bad_records_as_nulls_and_in_their_column(raw, caplog):
    good = [{"id": 1, "amount": 2.5, "tags": ["a"]}, NULLS | {"id": 2}, NULLS, NULLS, NULLS | {"id": 3}]
    assert raw.rows() == good
    assert "2 bad records are rows of nulls; the first is offset 2 of raw-0: column 'id' BIGINT" in caplog.text
    shown = raw.rows(valueSchema=CORRUPT)
    assert [row.pop("_corrupt_record") for row in shown] == [None, None, '{"id":"x"}', '{"b64":"/w=="}', None]
    assert shown == good
    named = raw.rows(valueSchema="bad STRING, id BIGINT", columnNameOfCorruptRecord="bad", columns="bad")
    assert [row["bad"] for row in named] == [None, None, '{"id":"x"}', '{"b64":"/w=="}', None]


def test_malformed_records_are_dropped(raw, caplog):
    rows = raw.rows(mode="dropmalformed", includeMetadata="true")
    assert [(row["id"], row["_metadata"]["offset"], row["_metadata"]["key"]) for row in rows] == [
        (1, 0, b"0"), (2, 1, b"1"), (3, 4, b"4")
    ]  # fmt: skip
    assert "2 bad records are left out; the first is offset 2 of raw-0" in caplog.text


def test_a_read_that_fails_fast_names_the_record_and_its_column(raw):
    said = ("offset 2 of raw-0", "column 'id' BIGINT", "'x'", "PERMISSIVE")
    refused(ErrorCode.REPLOG_DESERIALIZATION, lambda: raw.rows(mode="FAILFAST"), *said)
    # Only columns that are read are decoded.
    raw.write([b'{"id":9}'])
    refused(ErrorCode.REPLOG_DESERIALIZATION, lambda: raw.rows(mode="FAILFAST", columns="tags"), "offset 3 of raw-0")
    assert raw.rows(mode="DROPMALFORMED", columns="tags", valueSchema=DDL) == [
        {"tags": tags} for tags in (["a"], None, None, None, None)
    ]


def test_a_value_that_is_null_is_a_row_of_nulls_or_a_bad_one(raw):
    raw.write([None])
    assert raw.rows(valueSchema="id BIGINT", mode="DROPMALFORMED")[-2:] == [{"id": 3}, {"id": None}]
    assert raw.rows(mode="DROPMALFORMED")[-1]["id"] == 3


def test_a_stream_decodes_too_and_headers_come_with_the_metadata(raw):
    source = raw.at(valueSchema=CORRUPT, includeMetadata="true", startingOffsets="earliest", maxOffsetsPerTrigger="3")
    schema = source.schema()
    assert schema.names == ["id", "amount", "tags", "_corrupt_record", "_metadata"]
    stream = cloudpickle.loads(cloudpickle.dumps(source.streamReader(schema)))
    at, ids = stream.initialOffset(), []
    for _ in range(2):
        end = json.loads(json.dumps(stream.latestOffset(at, stream.getDefaultReadLimit())))
        ids += table_of(stream, stream.partitions(at, end), schema)["id"].to_pylist()
        at = end
    assert ids == [1, 2, None, None, 3]


def test_a_filter_on_a_decoded_column_is_not_one_on_the_rows_own_offset(raw):
    raw.write([b'{"offset":900}'])
    given = {"valueSchema": "offset BIGINT", "includeMetadata": "true"}
    reader = FilteringBatchReader(parse_source_options(dict(raw.at(**given).options), streaming=False))
    reader.pushFilters([EqualTo(("offset",), 900), LessThan(("_metadata", "offset"), 6)])
    tables = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert pa.Table.from_batches(tables)["offset"].to_pylist() == [None] * 5 + [900]


def test_typed_topics_and_other_schemas_are_refused(raw, source):
    source.controller.create_topic("orders", 1, 3, schema=DDL)
    refused(CONFLICT, lambda: raw.rows(topic="orders"), "orders", "Leave valueFormat")
    refused(CONFLICT, lambda: raw.rows(topic="raw,orders"), "orders")
    other = ReplogDataSource({"path": raw.path, "subscribe": "raw"}).schema()
    refused(INVALID, lambda: raw.at().reader(other).partitions(), KAFKA, "id:bigint")


MISSING = ErrorCode.REPLOG_MISSING_OPTION


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        (MISSING, {"valueSchema": None}, "valueSchema"),
        (MISSING, {"valueFormat": None}, "valueFormat"),
        (OPTION, {"valueFormat": "xml"}, "json"),
        (OPTION, {"mode": "STRICT"}, "FAILFAST"),
        (INVALID, {"valueSchema": "id FROB"}, "FROB"),
        (CONFLICT, {"rows": "kafka"}, "includeMetadata=true"),
        (CONFLICT, {"includeHeaders": "true"}, "includeMetadata=true"),
        (CONFLICT, {"valueSchema": "_metadata STRING", "includeMetadata": "true"}, "_metadata"),
        (OPTION, {"columns": "id,total"}, "'total'"),
        (OPTION, {"valueSchema": "id INT, _corrupt_record BIGINT"}, "STRING"),
        (OPTION, {"valueSchema": "_corrupt_record STRING"}, "besides"),
    ],
)
def test_options_that_do_not_fit_are_refused(raw, code, options, said):
    refused(code, lambda: raw.at(**options).schema(), said)
    refused(code, lambda: raw.at(**options).reader(None), said)
    refused(code, lambda: raw.at(**options).streamReader(None), said)


def record(text, row):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(text)), row)
    return stream.getvalue()


POINT = '{"type":"record","name":"Point","fields":[{"name":"x","type":"int"}]}'
ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"at","type":"Point"}]}'
WHOLE = ORDER.replace('"Point"', POINT)
AVRO_VALUES = [record(WHOLE, {"id": 5, "at": {"x": 6}}), b"\xff"]
AVRO_ROWS = [{"id": 5, "at": {"x": 6}}, {"id": None, "at": None}]


def test_avro_without_a_registry_has_one_schema_as_text_or_in_a_file(source, tmp_path):
    raw = Decoded(source)
    raw.write(AVRO_VALUES)
    (tmp_path / "order.avsc").write_text(WHOLE)
    for schema in (WHOLE, str(tmp_path / "order.avsc")):
        assert raw.rows(valueFormat="avro", valueSchema=schema) == AVRO_ROWS
    shown = raw.rows(valueFormat="avro", valueSchema=WHOLE, columnNameOfCorruptRecord="bad", columns="id,bad")
    assert shown == [{"id": 5, "bad": None}, {"id": None, "bad": '{"b64":"/w=="}'}]
    refused(OPTION, lambda: raw.at(valueSchema=str(tmp_path / "other.avsc")).schema(), "no file")
    refused(MISSING, lambda: raw.at(valueFormat="avro").schema(), "valueRegistry")


class Registry(BaseHTTPRequestHandler):
    """Confluent's registry, as far as a reader needs it."""

    schema: ClassVar = {
        "schema": ORDER,
        "schemaType": "AVRO",
        "references": [{"name": "Point", "subject": "p", "version": 3}],
    }
    answers: ClassVar = {
        "/schemas/ids/7": schema,
        "/subjects/p/versions/3": {"schema": POINT, "subject": "p", "version": 3, "id": 2},
    }
    is_broken = False
    logins: ClassVar[set] = set()

    def do_GET(self):
        self.logins.add(self.headers.get("Authorization"))
        answer = self.answers.get(self.path.partition("?")[0])
        status = 403 if self.is_broken else 200 if answer else 404
        body = json.dumps(answer or {"error_code": 40403, "message": "no such schema"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def registry():
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
    Registry.is_broken = False
    Registry.logins.clear()


SECRET = "user:hunter2"


def test_a_registry_of_confluent_or_a_folder_names_the_schemas(source, registry, tmp_path):
    raw = Decoded(source)
    raw.write([b"\0\0\0\0\7" + AVRO_VALUES[0], b"\0\0\0\0\x08" + AVRO_VALUES[0]])
    (tmp_path / "7.avsc").write_text(WHOLE)
    read = {"valueFormat": "avro", "valueSchema": "id BIGINT, at STRUCT<x: BIGINT>"}
    login = {"registry.basic.auth.user.info": SECRET}
    assert raw.rows(valueRegistry=registry, **login, **read) == AVRO_ROWS
    assert Registry.logins == {"Basic " + base64.b64encode(SECRET.encode()).decode()}
    assert raw.rows(valueRegistry=str(tmp_path), **read) == AVRO_ROWS
    assert SECRET not in repr(raw.at(valueRegistry=registry, **login, **read).reader(None).__dict__)
    Registry.is_broken = True
    refused(ErrorCode.REPLOG_STORE_UNAVAILABLE, lambda: raw.rows(valueRegistry=registry, **login, **read), "403")
    with_login = registry.replace("://", f"://{SECRET}@")
    refused(OPTION, lambda: raw.at(valueRegistry=with_login, **read).schema(), "registry.basic.auth.user.info")
