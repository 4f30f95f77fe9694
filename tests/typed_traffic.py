"""Every writer of plain Python puts the same typed rows into a topic, and every reader takes them out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow import parquet

from spark_replog.cli.main import run
from spark_replog.client.store import Store
from spark_replog.log.json_rows import json_rows


def holds(kind: pa.DataType, test: Any) -> bool:
    """Return whether a type, or one inside it, passes a test."""
    inner = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return bool(test(kind)) or any(holds(part, test) for part in inner)


def is_empty_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and not kind.num_fields


def files_of(batch: pa.RecordBatch, folder: Path) -> Iterator[Path]:
    """Yield files with the rows of a batch, of each kind that can hold them."""
    table = pa.Table.from_batches([batch])
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_table(table)
    yield folder / "rows.arrow"
    (folder / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in json_rows(batch).to_pylist()))
    yield folder / "rows.jsonl"
    if not any(holds(kind, is_empty_struct) for kind in batch.schema.types):  # parquet has none
        parquet.write_table(table, folder / "rows.parquet")
        yield folder / "rows.parquet"


def write_by_all(store: Store, topic: str, batch: pa.RecordBatch, folder: Path) -> int:
    """Write a batch by ``send``, ``send_arrow`` and ``produce`` of files; return how many times it is in the topic."""
    with store.producer() as producer:
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            producer.send(topic, row)
        producer.flush()
        producer.send_arrow(topic, pa.Table.from_batches([batch])).result()
    count = 2
    for path in files_of(batch, folder):
        with redirect_stdout(io.StringIO()):
            assert run(["-q", "-s", store.path, "produce", topic, str(path)]) == 0, path
        count += 1
    return count


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as ``to_pylist`` gives it, whichever engine gave it: maps as pairs, intervals as timedelta."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in pairs]
        return [(plain(key, kind.key_type), plain(item, kind.item_type)) for key, item in pairs]
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_duration(kind) and not isinstance(value, timedelta):  # DuckDB's: months, days, nanoseconds
        return timedelta(days=value.days, microseconds=value.nanoseconds // 1_000)
    return value


def plain_rows(rows: Any, schema: pa.Schema) -> list[tuple[Any, ...]]:
    """Return dicts of an engine as rows that can be compared."""
    return [tuple(plain(row[field.name], field.type) for field in schema) for row in rows]


def read_by_all(store: Store, topic: str, schema: pa.Schema) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Yield each reader of plain Python with the rows that it reads, in the log's order."""
    scan = store.topic(topic).scan()
    table = scan.to_arrow()
    assert table.schema == schema
    yield "scan", plain_rows(table.to_pylist(), schema)
    with store.consumer(topic, auto_offset_reset="earliest") as consumer:
        rows: list[Any] = []
        while len(rows) < table.num_rows:
            rows += [record.value for record in consumer.poll(timeout_ms=60_000, max_records=1_000)]
    yield "Consumer", plain_rows(rows, schema)
    frame = scan.to_polars()
    yield "Polars", plain_rows(frame.to_dicts(), schema)
    if not any(holds(kind, is_empty_struct) for kind in schema.types):  # DuckDB has none
        with duckdb.connect() as connection:
            connection.execute("set TimeZone = 'UTC'")
            asked = scan.to_duckdb(connection).to_arrow_table().to_pylist()
        yield "DuckDB", plain_rows(asked, schema)
