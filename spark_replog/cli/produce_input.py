"""Files and pipes as Arrow batches of key and value, for ``replog produce``."""

from __future__ import annotations

import base64
import codecs
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from spark_replog.errors import ErrorCode, InvalidConfigError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("lines", "jsonl", "csv", "parquet", "arrow")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_READ_BYTES = 1 << 20


def format_of(path: str) -> str:
    """Return the format that a file's name stands for; ``lines`` where it says nothing."""
    return _SUFFIXES.get(Path(path).suffix.lower(), "lines")


def read_batches(
    stream: IO[bytes], name: str, kind: str, key: str | None, value: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches with a value column, and key, headers, partition, timestamp where the input has them.

    Args:
        stream: of the file; only ``parquet`` and an Arrow file seek in it.
        name: for errors.
        kind: one of ``FORMATS``.
        key: separator of key and value in a line; else a field's name.
        value: a field's name; None: the whole line or row, as it is or as JSON.

    Raises:
        InvalidConfigError: REPLOG_INPUT: it is no such file, or lacks the field.
    """
    import pyarrow as pa

    try:
        if kind == "lines":
            yield from _lines(stream, key)
        elif kind == "jsonl":
            yield from _json_lines(stream, name, key, value)
        else:
            for batch in _tables(stream, kind, key, value):
                yield _columns(batch, name, key, value)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INPUT, f"{name} cannot be read as {kind}: {error}. Name its format with --input."
        ) from error


def _chunks(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as many as came together: a pipe's reader does not wait for more."""
    read = getattr(stream, "read1", stream.read)
    rest: list[bytes] = []  # of a line that goes on; joined once, however long it is
    while True:
        data = read(_READ_BYTES)
        if not data:
            break
        first, *others = data.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others]
            rest = [lines.pop()]
            yield [line.removesuffix(b"\r") for line in lines]
    last = b"".join(rest)
    if last:
        yield [last.removesuffix(b"\r")]


def _lines(stream: IO[bytes], separator: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for lines in _chunks(stream):
        if separator is None:
            yield pa.record_batch({"value": pa.array(lines, pa.binary())})
            continue
        parts = [line.partition(os.fsencode(separator)) for line in lines]
        keys = [head if found else None for head, found, _ in parts]
        values = [tail if found else head for head, found, tail in parts]
        yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _json_lines(stream: IO[bytes], name: str, key: str | None, value: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first = 1
    for lines in _chunks(stream):
        if first == 1:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)  # no JSON, so what reads the value would stumble over it
        rows = [line for line in lines if line.strip()]
        columns: dict[str, Any] = {}
        if key is None and value is None:
            columns["value"] = pa.array(rows, pa.binary())
        else:
            found = [_parsed(line, name, number) for number, line in enumerate(lines, first) if line.strip()]
            if key is not None:
                columns["key"] = pa.array([_bytes(row.get(key)) for row in found], pa.binary())
            whole = rows if value is None else [_bytes(row.get(value)) for row in found]
            columns["value"] = pa.array(whole, pa.binary())
        first += len(lines)
        if rows:
            yield pa.record_batch(columns)


def _parsed(line: bytes, name: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INPUT, f"line {number} of {name} is no JSON: {error}. Correct it, or use --input lines."
        ) from error
    if not isinstance(row, dict):
        raise InvalidConfigError(
            ErrorCode.REPLOG_INPUT, f"line {number} of {name} is no JSON object, so it has no fields. Leave -k out."
        )
    return row


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is no value of JSON")


def _tables(stream: IO[bytes], kind: str, key: str | None, value: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if kind == "csv":
        from pyarrow import csv

        # What becomes a key or a value as it is, is text: 007 is no 7. Of rows that become JSON, numbers are numbers.
        texts = ["value" if value is None else value]
        if value is not None or key is None:
            texts.append(key or "key")
        options = csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
        yield from csv.open_csv(stream, convert_options=options)
        return
    if kind == "parquet":
        from pyarrow import parquet

        yield from parquet.ParquetFile(stream).iter_batches()
        return
    if stream.seekable():
        try:
            reader = pa.ipc.open_file(stream)
        except pa.ArrowInvalid:  # a stream in a file
            stream.seek(0)
        else:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
            return
    yield from pa.ipc.open_stream(stream)


def _columns(batch: pa.RecordBatch, name: str, key: str | None, value: str | None) -> pa.RecordBatch:
    """Return the log's columns of a table's batch; without a value column a row is a JSON object."""
    import pyarrow as pa

    names = batch.schema.names
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:  # a row would keep one of them
        raise InvalidConfigError(
            ErrorCode.REPLOG_INPUT, f"{name} has more than one column '{twice[0]}'. Rename all but one."
        )
    for wanted in (key, value):
        if wanted is not None and wanted not in names:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INPUT, f"{name} has no column '{wanted}'. It has: {', '.join(names)}."
            )
    columns: dict[str, pa.Array] = {}
    is_log = value is None and "value" in names
    if is_log:
        columns = {each: batch.column(each) for each in ("headers", "partition", "timestamp") if each in names}
        if "timestamp" in columns:
            columns["timestamp"] = _as_moments(columns["timestamp"])
        if "partition" in columns and pa.types.is_integer(columns["partition"].type):
            columns["partition"] = columns["partition"].cast(pa.int32())  # a CSV file can hold no other than int64
    if key is not None or (is_log and "key" in names):
        columns["key"] = _as_bytes(batch.column(key or "key"))
    if value is not None or is_log:
        columns["value"] = _as_bytes(batch.column(value or "value"))
    else:
        columns["value"] = pa.array([_bytes(row) for row in batch.to_pylist()], pa.binary())
    return pa.record_batch(columns)


def _as_moments(column: pa.Array) -> pa.Array:
    """Take times without a zone for UTC: a CSV file can write no other, and most Parquet files hold no other."""
    import pyarrow as pa

    kind = column.type
    return column.cast(pa.timestamp(kind.unit, "UTC")) if pa.types.is_timestamp(kind) and kind.tz is None else column


def _as_bytes(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_bytes(column.dictionary_decode())
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)):
        return column
    return pa.array([_bytes(value) for value in column.to_pylist()], pa.binary())


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float) and not math.isfinite(value):
        return _json_number(value).encode()
    return _json(value).encode()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_json_text, allow_nan=False)
    except ValueError:  # rare, and Python names no way to write these otherwise
        return _json(_without_nan(value))


def _without_nan(value: Any) -> Any:
    """Return a row whose numbers that JSON cannot write are text, as in Spark's to_json."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return value if not isinstance(value, float) or math.isfinite(value) else _json_number(value)


def _json_number(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _json_text(value: Any) -> str:
    """Return what JSON has no type for: bytes in Base64, as Spark's to_json does."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


__all__ = ["FORMATS", "format_of", "read_batches"]
