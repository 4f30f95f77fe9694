"""Typed rows in pandas, Polars and DuckDB: by a scan, and Polars also by the stored files themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest

import spark_replog
from spark_replog.log.codec.section_statistics import MAGIC

DDL = "id BIGINT, amount DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>"
ROWS = [
    {
        "id": number,
        "amount": Decimal(number).scaleb(-2),
        "at": datetime(1969, 12, 31, 23, 59, number, tzinfo=UTC),
        "tags": ["a", None][: number % 3],
        "place": {"x": 0.5} if number % 2 else None,
    }
    for number in range(10)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = spark_replog.init(str(tmp_path_factory.mktemp("engines") / "store"), 1, fsync=False)
    schema = made.admin().create_topic("orders", partitions=1, schema=DDL, key="id").schema.arrow
    with made.producer(inline_max_bytes=0) as producer:
        producer.send_arrow("orders", pa.Table.from_pylist(ROWS, schema)).result()
    return made


def test_pandas_gets_typed_rows(store):
    frame = store.topic("orders").scan(columns=["id", "amount"]).to_pandas()
    assert frame.to_dict("records") == [{"id": row["id"], "amount": row["amount"]} for row in ROWS]


def test_polars_gets_typed_rows(store):
    frame = store.topic("orders").scan(columns=["id", "amount", "at", "tags", "place"]).to_polars()
    assert frame.schema["amount"] == polars.Decimal(12, 2) and frame.schema["at"] == polars.Datetime("us", "UTC")
    assert frame.to_dicts() == ROWS


def test_duckdb_asks_typed_rows(store):
    rows = store.topic("orders").scan().to_duckdb()
    assert rows.aggregate("sum(amount), count(place), max(len(tags))").fetchall() == [(Decimal("0.45"), 5, 2)]
    assert duckdb.sql("select count(*) from rows where place.x = 0.5 and id > 4").fetchall() == [(3,)]


def test_polars_opens_the_stored_file(store):
    (file,) = Path(store.path).rglob("data/*/*.arrow")
    assert polars.read_ipc(file).select("id", "amount", "at", "tags", "place").to_dicts() == ROWS


def test_polars_opens_a_stored_file_with_statistics(tmp_path):
    """Only a larger object has them, between its last section and its footer."""
    store = spark_replog.init(str(tmp_path / "store"), 1, fsync=False)
    store.admin().create_topic("texts", partitions=1, schema="text STRING", config={"compression.type": "none"})
    texts = [f"{number:09}" for number in range(5_000)]
    with store.producer(inline_max_bytes=0) as producer:
        producer.send_arrow("texts", pa.table({"text": texts})).result()
    (file,) = Path(store.path).rglob("data/*/*.arrow")
    assert MAGIC in file.read_bytes()
    assert polars.read_ipc(file)["text"].to_list() == texts
