"""``replog produce``: write lines, JSON lines, CSV, Parquet and Arrow to a topic."""

from __future__ import annotations

import base64
import codecs
import io
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from csv import reader as csv_reader
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from spark_replog.cli.completion import complete_topics, config_flag
from spark_replog.cli.input_files import (
    FORMATS,
    LOG_PREFIX,
    POSITION_FIELDS,
    READ_BYTES,
    RECORD_FIELDS,
    Joined,
    bad_input,
    chunks,
    decoded,
    format_of,
    header_name,
    json_values,
    microseconds,
    no_json,
    opened,
    tables,
)
from spark_replog.cli.output import EXIT_INTERRUPTED, ProgressLine, emit, error_item, exit_code_of, note
from spark_replog.cli.settings import ReplogCommand, current_settings, key_values, named_values
from spark_replog.cli.tables import Table
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_replog.client.arrow_sender import TableHandle
    from spark_replog.client.producer import Producer
    from spark_replog.log.row_schema import RowSchema

HANDLES_OPEN_MAX = 64
"""Maximum number of batches that wait for their acknowledgement."""


@click.command(
    "produce", cls=ReplogCommand, examples=["produce orders -k : lines.txt", "produce orders --key id rows.parquet"]
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False))
@click.option("-i", "--input", "kind", type=click.Choice(FORMATS), help="Input format. [by file name, else lines]")
@click.option("-k", "--key", metavar="KEY", help="Lines: separator of key and value. Other formats: field of the key.")
@click.option("--value", metavar="FIELD", help="Field of the value. [the whole line or row]")
@click.option("--typed", is_flag=True, help="CSV: columns but the key become JSON numbers, times and booleans if they "
              "look so. [text, as it is written]")  # fmt: skip
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header to add to every record. Repeatable."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition for all records. [by key]")
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True, help="Copies to wait for."
)
@config_flag("Producer setting. Repeatable.", "producer", "client")
def produce(topic: str, files: tuple[str, ...], **given: Any) -> int:
    """Append lines or rows of FILES, or of standard input, to TOPIC.

    With -i jsonl, a line of 'replog consume -f jsonl' is appended as the record that it describes: key, value,
    headers, timestamp and partition. Any other line is a value. A .json file may also be one array of records.
    Files ending in .gz, .bz2, .zst and .lz4 are decompressed.

    A table with a column 'value' gives its columns key, value, headers, partition and timestamp as they
    are (a time without a zone is UTC); of any other table a row becomes a JSON object.

    The rows of a typed topic come by the names of its columns, from CSV, JSON lines, parquet or Arrow. A value that
    does not fit its column is refused with its line.
    """
    settings = current_settings()
    settings.required_store()
    from spark_replog.client.producer import Producer

    config: dict[str, object] = {
        "client.id": "replog-produce",
        "acks": given["acks"],
        **key_values("-c", given["configs"]),
    }
    if config.get("transactional.id"):
        raise click.UsageError("-c transactional.id: transactions need a program that begins and commits them")
    headers = named_values("-H", given["headers"], "NAME=VALUE")
    if any("\ud800" <= letter <= "\udfff" for name, _ in headers for letter in name):  # Python's form of other bytes
        raise click.UsageError("-H has a name that is not UTF-8")
    if given["key"] == "":
        raise click.UsageError("-k is empty: give the separator of key and value, or the field of the key")
    written = _Written(topic)
    failure: ReplogError | None = None
    try:
        with ProgressLine(quiet=settings.quiet) as progress, Producer(settings.open_cluster(), config) as producer:
            producer.partitions_for(topic, waits_for_new=False)  # a mistyped name: before the input is read
            schema = producer.schema_for(topic)
            for batch in _batches(files, given) if schema is None else _typed_batches(files, given, topic, schema):
                _check_partition(producer, topic, given["partition"])
                prefix = "" if schema is None else LOG_PREFIX
                written.send(producer, _with_constants(batch, headers, given["partition"], prefix))
                if written.row_count:
                    progress.update(f"{written.row_count:,} records acknowledged")
            written.settle(0)
    except ReplogError as error:
        failure = error
    except KeyboardInterrupt:  # the producer was closed, so the records sent to it are decided
        return _stopped(written)
    if failure is not None:
        written.settle_acknowledged()
        if settings.format == "text" and written.row_count:
            note(f"replog: {written.row_count:,} records were acknowledged, the others were not")
    item = written.item() if failure is None else error_item(failure, **written.item())
    # With acks=0 the first offset is unknown.
    lines = [(str(number), None if first < 0 else first, count) for number, first, count in written.rows()]
    shown = [Table(["partition", "first offset", "records"], lines)] if failure is None else []
    return emit([item], *shown, exit_code=None if failure is None else exit_code_of(failure))


class _Written:
    """Counts of acknowledged records."""

    def __init__(self, topic: str) -> None:
        self.row_count = 0
        self._topic = topic
        self._open: deque[TableHandle] = deque()
        self._counts: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def send(self, producer: Producer, batch: pa.RecordBatch) -> None:
        """Send a batch; wait while too many are open."""
        from spark_replog.client.arrow_sender import TableHandle

        if batch.num_rows:
            handle = TableHandle()
            self._open.append(handle)  # before it is sent: what is appended of it counts even if the rest fails
            producer.send_arrow(self._topic, batch, handle)
            self.settle(HANDLES_OPEN_MAX)

    def settle(self, left_count: int) -> None:
        """Wait until at most ``left_count`` batches are open; raise the error of one that was refused."""
        while len(self._open) > left_count or (self._open and self._open[0].done()):
            handle = self._open.popleft()
            error = handle.exception()
            self._count(handle)
            if error is not None:
                raise error

    def settle_acknowledged(self) -> None:
        """Count what is acknowledged of all batches, without waiting."""
        while self._open:
            self._count(self._open.popleft())

    def _count(self, handle: TableHandle) -> None:
        """Count the slices of a batch that are acknowledged: one may fail alone, as where a disk becomes full."""
        for part, row_count in zip(handle.parts, handle.row_counts, strict=True):
            if part.done() and part.exception() is None:
                metadata = part.result()
                self.row_count += row_count
                self._counts[metadata.partition] = self._counts.get(metadata.partition, 0) + row_count
                self._firsts.setdefault(metadata.partition, metadata.offset)

    def item(self) -> dict[str, Any]:
        """Return the result for scripts."""
        partitions = [
            {"partition": number, "firstOffset": first, "records": count} for number, first, count in self.rows()
        ]
        return {"topic": self._topic, "records": self.row_count, "partitions": partitions, "ok": True}

    def rows(self) -> list[tuple[int, int, int]]:
        """Return partition, first offset and number of records."""
        return [(number, self._firsts[number], self._counts[number]) for number in sorted(self._counts)]


def _stopped(written: _Written) -> int:
    """Report the records that were acknowledged before Ctrl-C, so that the user can send the rest."""
    written.settle_acknowledged()
    note(f"replog: stopped; {written.row_count:,} records were acknowledged before")
    return emit([{**written.item(), "ok": False}], exit_code=EXIT_INTERRUPTED)


def _check_partition(producer: Producer, topic: str, number: int | None) -> None:
    count = None if number is None else producer.partitions_for(topic)
    if number is not None and count is not None and number >= count:
        raise InvalidConfigError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"-p is {number}, and topic '{topic}' has partitions 0 to {count - 1}. Give one of them, or leave -p out.",
        )


def _batches(files: tuple[str, ...], given: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for name in files or ("-",):
        kind = given["kind"] or format_of(name)
        if kind == "lines" and given["value"] is not None:
            raise click.UsageError("--value needs fields, and lines have none: add --input jsonl, csv or parquet")
        with opened(name, kind) as stream:
            yield from read_batches(stream, name, kind, given["key"], given["value"], is_typed=given["typed"])


def _typed_batches(
    files: tuple[str, ...], given: dict[str, Any], topic: str, rows: RowSchema
) -> Iterator[pa.RecordBatch]:
    from spark_replog.cli.row_files import read_rows

    for flag in ("key", "value", "typed"):
        if given[flag]:
            raise click.UsageError(f"--{flag} is for topics of bytes, and {topic} is typed: its columns are {rows.ddl}")
    for name in files or ("-",):
        kind = given["kind"] or format_of(name)
        if kind == "lines":
            raise click.UsageError(f"{topic} is typed, and lines have no columns: add --input csv, jsonl or arrow")
        with opened(name, kind) as stream:
            yield from read_rows(stream, name, kind, rows)


def _with_constants(
    batch: pa.RecordBatch, headers: list[tuple[str, str]], partition: int | None, prefix: str = ""
) -> pa.RecordBatch:
    import pyarrow as pa

    if headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        row = [{"key": name, "value": os.fsencode(value)} for name, value in headers]
        place = batch.schema.get_field_index(prefix + "headers")
        column = pa.nulls(batch.num_rows, kind) if place < 0 else batch.column(place)
        if pa.types.is_list(column.type) and pa.types.is_struct(
            column.type.value_type
        ):  # other types are refused when sent
            added = pa.array([[*(pairs or ()), *row] for pairs in column.to_pylist()], kind)
            batch = _with_column(batch, prefix + "headers", added)
    if partition is not None:
        batch = _with_column(batch, prefix + "partition", pa.array([partition] * batch.num_rows, pa.int32()))
    return batch


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.append_column(name, column) if place < 0 else batch.set_column(place, name, column)


def read_batches(
    stream: IO[bytes], name: str, kind: str, key: str | None, value: str | None, *, is_typed: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches with a value column, and key, headers, partition, timestamp if the input has them.

    Args:
        stream: of the file; only ``parquet`` and an Arrow file seek in it.
        key: separator of key and value in a line; else a field's name.
        value: a field's name; None: the whole line, or the row as JSON.
        is_typed: whether the columns of CSV that become JSON get types.

    Raises:
        InvalidConfigError: REPLOG_INPUT: the file has another format, or lacks the field.
    """
    import pyarrow as pa

    name = "standard input" if name == "-" else name
    try:
        if kind == "lines":
            yield from _lines(stream, key)
        elif kind == "jsonl":
            yield from _json_lines(chunks(stream), name, key, value)
        elif kind == "json":
            yield from _json_lines(json_values(stream.read()), name, key, value)
        else:
            batches = _csv(stream, key, value, is_typed=is_typed) if kind == "csv" else tables(stream, kind)
            for batch in batches:
                yield _columns(batch, name, key, value)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        remedy = "Correct it, or give its format with --input."
        if "invalid UTF8" in str(error):
            remedy = "Convert the file to UTF-8, as with iconv."
        elif "CSV conversion error" in str(error):
            remedy = "With --typed the first MiB of a CSV file gives the types of its columns. Leave --typed out."
        raise bad_input(f"Cannot read {name} as {kind}: {error}. {remedy}") from error


def _lines(stream: IO[bytes], separator: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for lines in chunks(stream):
        if separator is None:
            yield pa.record_batch({"value": pa.array(lines, pa.binary())})
            continue
        parts = [line.partition(os.fsencode(separator)) for line in lines]
        keys = [head if divider else None for head, divider, _ in parts]
        values = [tail if divider else head for head, divider, tail in parts]
        yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _json_lines(
    chunks: Iterator[list[bytes]], name: str, key: str | None, value: str | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first, row_count, lacking = 1, 0, {field for field in (key, value) if field is not None}
    for lines in chunks:
        if first == 1 and lines:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)  # with it the line is not JSON, and readers would fail
            if lines[0].strip() in (b"[", b"[{"):
                raise bad_input(f"{name} is not JSON lines: it seems to be one JSON array. Read it with --input json.")
        rows = [(number, line) for number, line in enumerate(lines, first) if line.strip()]
        columns: dict[str, Any] = {}
        if key is None and value is None:
            columns = _record_columns([_record(line, name, number) for number, line in rows])
        else:
            objects = [_parsed(line, name, number) for number, line in rows]
            lacking = {field for field in lacking if not any(field in row for row in objects)}
            if key is not None:
                columns["key"] = pa.array([_bytes(row.get(key)) for row in objects], pa.binary())
            whole = [line for _, line in rows] if value is None else [_bytes(row.get(value)) for row in objects]
            columns["value"] = pa.array(whole, pa.binary())
        first += len(lines)
        row_count += len(rows)
        if rows:
            yield pa.record_batch(columns)
    for field in sorted(lacking) if row_count else ():
        note(f"warning: no line of {name} has the field '{field}', so it is null in each record")


class _Record(NamedTuple):
    """One record; a plain line only has a value."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_us: int | None = None


def _record(line: bytes, name: str, number: int) -> _Record:
    """Return the record in a line of ``replog consume -f jsonl``; any other line becomes the value unchanged.

    A record with a malformed field is REPLOG_INPUT.
    """
    if not all(b'"%b"' % field.encode() in line for field in RECORD_FIELDS):
        return _Record(line)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return _Record(line)
    if not isinstance(row, dict) or not row.keys() >= RECORD_FIELDS or row.keys() - RECORD_FIELDS - POSITION_FIELDS:
        return _Record(line)
    field = "partition"
    try:
        partition = row.get("partition")
        if partition is not None and type(partition) is not int:
            raise ValueError("not a number")
        field = "timestamp"
        timestamp_us = None if row[field] is None else microseconds(row[field])
        field = "headers"
        headers = [(header_name(header_key), decoded(value)) for header_key, value in row[field] or ()]
        field = "key"
        key = decoded(row[field])
        field = "value"
        return _Record(decoded(row[field]), key, headers or None, partition, timestamp_us)
    except (ValueError, TypeError) as error:
        raise bad_input(
            f"Line {number} of {name} is a record of 'replog consume', and its field '{field}' is malformed: {error}. "
            "Correct it, or append the lines as they are with --input lines."
        ) from error


def _record_columns(records: list[_Record]) -> dict[str, pa.Array]:
    """Return the columns that any record has; a null partition or time is chosen at the send."""
    import pyarrow as pa

    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    types = {
        "key": pa.binary(),
        "headers": header_type,
        "partition": pa.int32(),
        "timestamp_us": pa.timestamp("us", "UTC"),
    }
    columns = {"value": pa.array([record.value for record in records], pa.binary())}
    for field, kind in types.items():
        values = [getattr(record, field) for record in records]
        if any(value is not None for value in values):
            if field == "headers":
                values = [pairs and [{"key": name, "value": value} for name, value in pairs] for pairs in values]
            columns[field.removesuffix("_us")] = pa.array(values, kind)
    return columns


def _parsed(line: bytes, name: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=no_json)
    except (ValueError, RecursionError) as error:
        raise bad_input(f"Line {number} of {name} is not JSON: {error}. Correct it, or use --input lines.") from error
    if not isinstance(row, dict):
        raise bad_input(f"Line {number} of {name} is not a JSON object, so it has no fields. Omit -k.")
    return row


def _csv(stream: IO[bytes], key: str | None, value: str | None, *, is_typed: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file: all columns are text, as they are written (007 is not 7).

    Only the columns partition and timestamp of a table with a column 'value' have types of their own.
    """
    import pyarrow as pa
    from pyarrow import csv

    begin = stream.tell() if stream.seekable() else 0
    ahead = stream.read(READ_BYTES)
    first = codecs.getincrementaldecoder("utf-8")("replace").decode(ahead.removeprefix(codecs.BOM_UTF8))
    names = next(csv_reader(io.StringIO(first, newline="")), [])
    texts = [key or "key", value or "value"] if is_typed else names
    if value is None and "value" in names:
        texts = [name for name in texts if name not in ("partition", "timestamp") or name == key]
    options = csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
    parsing = csv.ParseOptions(newlines_in_values=True)  # else blocks are cut at any line end, those in quotes too
    source: IO[bytes] | Joined = Joined(ahead, stream)
    if stream.seekable():  # read it twice, so that of a file with a value that does not fit nothing is appended
        source = stream
        stream.seek(begin)
        for _ in csv.open_csv(stream, convert_options=options, parse_options=parsing):
            pass
        stream.seek(begin)
    yield from csv.open_csv(source, convert_options=options, parse_options=parsing)


def _columns(batch: pa.RecordBatch, name: str, key: str | None, value: str | None) -> pa.RecordBatch:
    """Return the columns of the log; without a value column a row becomes a JSON object."""
    import pyarrow as pa

    names = batch.schema.names
    twice = sorted({field for field in names if names.count(field) > 1})
    if twice:
        raise bad_input(f"{name} has more than one column '{twice[0]}'. Rename all but one.")
    for wanted in (key, value):
        if wanted is not None and wanted not in names:
            raise bad_input(f"{name} has no column '{wanted}'. It has: {', '.join(names)}.")
    columns: dict[str, pa.Array] = {}
    is_log = value is None and "value" in names
    if is_log:
        columns = {field: batch.column(field) for field in ("headers", "partition", "timestamp") if field in names}
        if "timestamp" in columns:
            columns["timestamp"] = _as_moments(columns["timestamp"])
        if "partition" in columns and pa.types.is_integer(columns["partition"].type):
            columns["partition"] = columns["partition"].cast(pa.int32())  # CSV integers are int64
    if key is not None or (is_log and "key" in names):
        columns["key"] = _as_bytes(batch.column(key or "key"), name)
    if value is not None or is_log:
        columns["value"] = _as_bytes(batch.column(value or "value"), name)
    else:
        rows = pa.record_batch([_nanoseconds_as_text(column) for column in batch.columns], names)
        columns["value"] = pa.array([_bytes(row) for row in _python_values(rows, name)], pa.binary())
    return pa.record_batch(columns)


def _as_moments(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    return column.cast(pa.timestamp(kind.unit, "UTC")) if pa.types.is_timestamp(kind) and kind.tz is None else column


def _as_bytes(column: pa.Array, name: str) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_bytes(column.dictionary_decode(), name)
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)):
        return column
    exact = _nanoseconds_as_text(column)
    values = _python_values(exact, name)
    if exact is not column:  # in quotes, as any other time
        values = [None if value is None else _json(value) for value in values]
    return pa.array([_bytes(value) for value in values], pa.binary())


def _python_values(rows: pa.Array | pa.RecordBatch, name: str) -> list[Any]:
    try:
        values: list[Any] = rows.to_pylist()
    except (ValueError, OverflowError) as error:
        raise bad_input(
            f"{name} has a time that Python's types cannot hold: {error}. Convert its column to text or to a number."
        ) from error
    return values


def _nanoseconds_as_text(column: pa.Array) -> pa.Array:
    """Return times with nanoseconds as text: Python's own types end at microseconds, and pandas may be missing."""
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.unit != "ns":
        return column
    stamps: list[int | None] = column.cast(pa.int64()).to_pylist()
    cut = pa.array([None if stamp is None else stamp // 1000 for stamp in stamps], pa.timestamp("us", kind.tz))
    pairs = zip(cut.to_pylist(), stamps, strict=True)
    return pa.array([None if time is None else _time_text(moment, time % 1000) for moment, time in pairs], pa.string())


def _time_text(moment: datetime, nanoseconds: int) -> str:
    if not nanoseconds:
        return str(moment)
    text = moment.isoformat(" ", "microseconds")
    digits_end = text.index(".") + 7
    return f"{text[:digits_end]}{nanoseconds:03d}{text[digits_end:]}"


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
    except ValueError:  # NaN or infinity
        return _json(_without_nan(value))


def _without_nan(value: Any) -> Any:
    """Return a row with NaN and infinity as text, as in Spark's to_json."""
    if isinstance(value, dict):
        return {name: _without_nan(field) for name, field in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return value if not isinstance(value, float) or math.isfinite(value) else _json_number(value)


def _json_number(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _json_text(value: Any) -> str:
    """Return bytes as Base64, as in Spark's to_json, and other types as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
