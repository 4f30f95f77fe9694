"""Values in Avro and JSON as columns: what fits, and why the rest does not."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from spark_replog.errors import ErrorCode, InvalidConfigError, RetriableError
from spark_replog.log.avro_columns import columns_of_avro
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.value_decoder import ValueDecoder


def record(**fields):
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "int"}]}
ORDER = record(
    id="long",
    amount=["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
    at={"type": "long", "logicalType": "timestamp-millis"},
    local=["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
    day={"type": "int", "logicalType": "date"},
    code={"type": "string", "logicalType": "uuid"},
    kind={"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    tags={"type": "array", "items": "string"},
    places={"type": "map", "values": POINT},
    place=["null", "Point"],
    count=["null", "int", "long"],
)
ROW = {
    "id": 7, "amount": Decimal("12.50"), "at": datetime(1960, 1, 1, tzinfo=UTC), "local": datetime(2024, 1, 1),
    "day": date(2024, 2, 3), "code": UUID(int=5), "kind": "B", "tags": ["a"], "places": {"k": {"x": 1.5, "y": 2}},
    "place": None, "count": 2**40,
}  # fmt: skip
READ = ROW | {"code": str(UUID(int=5)), "places": [("k", {"x": 1.5, "y": 2})]}
DDL = "id BIGINT NOT NULL, amount DECIMAL(14,3), place STRUCT<x: DOUBLE>, kind STRING, more INT"


def avro(row, schema=ORDER):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def plain(schema=ORDER):
    text = json.dumps(schema)
    return ValueDecoder("avro", columns_of_avro(text), avro=text)


def decode(decoder, *values):
    batch, reasons = decoder.decode(pa.array([b"", *values], pa.binary())[1:])
    batch.validate(full=True)
    return batch.to_pylist(), reasons.to_pylist()


def test_avro_records_are_rows_with_all_their_logical_types():
    rows, reasons = decode(plain(), avro(ROW), avro(ROW | {"amount": None, "place": {"x": 2.5, "y": 1}}), None)
    assert reasons == [None, None, None]
    assert rows[0] == READ
    assert rows[1] == READ | {"amount": None, "place": {"x": 2.5, "y": 1}}
    assert rows[2] == dict.fromkeys(ROW)
    assert str(plain().schema.field("at").type) == "timestamp[us, tz=UTC]"


def test_bytes_that_are_no_record_are_bad_and_never_another_row():
    good = avro(ROW)
    _, reasons = decode(plain(), good + b"x", good[:-1], b"")
    assert "1 bytes follow" in reasons[0]
    assert ["does not follow its Avro schema" in reason for reason in reasons[1:]] == [True, True]
    made, decoder = random.Random(7), plain()
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(made.randint(1, 3)):
            bad[made.randrange(len(bad))] = made.randrange(256)
        rows, reasons = decode(decoder, good, bytes(bad[: made.randint(0, len(bad))]), good)
        assert rows[0] == rows[2] == READ
        assert reasons[0] is reasons[2] is None


def test_a_registry_gives_each_value_the_schema_that_wrote_it():
    older = record(id="int", kind="string")
    texts = {7: (json.dumps(ORDER),), 8: (json.dumps(older),), 9: (json.dumps(record(id="string")),)}
    decoder = ValueDecoder("avro", RowSchema(DDL), registry=texts.get)
    rows, reasons = decode(
        decoder,
        b"\0\0\0\0\7" + avro(ROW | {"place": {"x": 2.5, "y": 1}}),
        b"\0\0\0\0\x08" + avro({"id": 1, "kind": "old"}, older),
        b"\0\0\0\0\x09" + avro({"id": "1"}, record(id="string")),
        b"\0\0\0\0\x0a",
        b"\1\0\0\0\7" + avro(ROW),
        b"\0\0",
        None,
    )
    nulls = dict.fromkeys(["id", "amount", "place", "kind", "more"])
    assert rows[:2] == [nulls | {"id": 7, "amount": Decimal("12.500"), "place": {"x": 2.5}, "kind": "B"},
                        nulls | {"id": 1, "kind": "old"}]  # fmt: skip
    assert rows[2:] == [nulls] * 5
    assert reasons[:2] == [None, None]
    assert reasons[2:4] == ["column 'id' BIGINT is STRING in the Avro schema", "the registry has no schema 10"]
    assert ["zero byte" in reason for reason in reasons[4:6]] == [True, True]
    assert "column 'id' BIGINT is NOT NULL" in reasons[6]


def test_a_readers_avro_schema_gives_older_records_its_defaults_and_times_keep_their_unit():
    newer = record(id="long")
    newer["fields"].append({"name": "note", "type": "string", "default": "none"})
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    older = {4: (json.dumps(record(id="int")),), 5: (json.dumps(record(id="int", at=millis)),)}
    text = json.dumps(newer)
    decoder = ValueDecoder("avro", columns_of_avro(text), avro=text, registry=older.get)
    assert decode(decoder, b"\0\0\0\0\4" + avro({"id": 3}, record(id="int")))[0] == [{"id": 3, "note": "none"}]
    text = json.dumps(record(id="long", at=micros))
    decoder = ValueDecoder("avro", columns_of_avro(text), avro=text, registry=older.get)
    _, (reason,) = decode(decoder, b"\0\0\0\0\5" + avro({"id": 3, "at": 1}, record(id="int", at="long")))
    assert "column 'at' is timestamp[ms, tz=UTC]" in reason


def test_a_registry_that_does_not_answer_makes_no_row_bad():
    def away(schema_id):
        raise RetriableError(ErrorCode.REPLOG_STORE_UNAVAILABLE, "away")

    with pytest.raises(RetriableError):
        decode(ValueDecoder("avro", RowSchema(DDL), registry=away), b"\0\0\0\0\7")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("string", "not a record"),
        (record(next=["null", "Order"]), "holds itself"),
        (record(a={"type": "array", "items": "null"}), "array of nothing"),
        (record(a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "array of nothing"),
        (record(a=["int", "string"]), "union of INT, STRING"),
        (record(a="Unknown"), "Unknown"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 50}), "decimal"),
        ({"type": "record"}, "cannot be read"),
    ],
)
def test_avro_schemas_that_are_no_columns_are_refused_by_name(schema, said):
    with pytest.raises(InvalidConfigError, match=said) as raised:
        columns_of_avro(json.dumps(schema))
    assert raised.value.code is ErrorCode.REPLOG_INVALID_SCHEMA


def test_json_is_read_as_its_columns_and_a_reason_names_the_column():
    decoder = ValueDecoder("json", RowSchema("id BIGINT NOT NULL, amount DECIMAL(12,2), o STRUCT<x: FLOAT>"))
    rows, reasons = decode(
        decoder, b'{"id":1,"amount":2.5,"o":{"x":1,"y":[]},"z":{"id":2}}',
        b'\0\0\0\0\7{"id":2}', b'{"id":3,"o":{"x":1e39}}',
        b'{"amount":"1.005","id":4}', b"{}", b"[1]", b"\0{}", b'{"id":5}\n{"id":6}',
    )  # fmt: skip
    assert rows[0] == {"id": 1, "amount": Decimal("2.50"), "o": {"x": 1.0}}
    assert [row["id"] for row in rows] == [1, 2, *[None] * 6]
    assert "column 'o' STRUCT<x: FLOAT>" in reasons[2]
    assert "it is too large" in reasons[2]
    assert "column 'amount' DECIMAL(12,2) cannot hold '1.005'" in reasons[3]
    assert "column 'id' BIGINT is NOT NULL" in reasons[4]
    assert all("not a JSON object" in reason for reason in reasons[5:])
