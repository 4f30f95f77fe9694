"""Rows of files in the columns of a typed topic, and the columns that a file has.

Text is read as the topic's types and nothing is guessed: a value that does not fit is refused with its line and column.
Only `columns_of_file`, whose answer is shown before it counts, looks at the values of text.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from csv import reader as csv_reader
from typing import IO, TYPE_CHECKING, Any

from spark_replog.cli.input_files import (
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
    opened,
    tables,
)
from spark_replog.errors import InvalidConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_replog.log.row_schema import RowSchema
    from spark_replog.log.rows_of_text import RowFormatError

SAMPLE_BYTES = 16 << 20
"""How much of a text file `columns_of_file` looks at."""
_HEADERS, _PARTITION, _TIMESTAMP = (LOG_PREFIX + name for name in ("headers", "partition", "timestamp"))


def _bad_value(name: str, where: str, column: str, kind: pa.DataType, value: object, why: object) -> InvalidConfigError:
    from spark_replog.log.ddl import type_text

    return bad_input(
        f"{where} of {name}: column '{column}' {type_text(kind)} cannot hold {value!r:.60} ({why}). Correct it; nothing"
        " of its batch was stored.",
        column=column,
    )


# ------------------------------------------------------------------------------------------------- a file's columns


def file_columns(name: str) -> tuple[pa.Schema, bool]:
    """Return the columns of a file, and whether it is text, whose types are only as its values look.

    Raises:
        InvalidConfigError: REPLOG_INPUT.
    """
    kind = format_of(name)
    with opened(name, kind) as stream:
        return columns_of_file(stream, name, kind), kind not in ("parquet", "arrow")


def columns_of_file(stream: IO[bytes], name: str, kind: str) -> pa.Schema:
    """Return a file's columns; of text as the first `SAMPLE_BYTES` look, where a column without a value is text.

    Args:
        kind: ``parquet``, ``arrow``, ``csv`` or ``jsonl``.

    Raises:
        InvalidConfigError: REPLOG_INPUT: it cannot be read so, or has no columns.
    """
    import pyarrow as pa

    try:
        if kind == "parquet":
            from pyarrow import parquet

            return parquet.ParquetFile(stream).schema_arrow
        if kind == "arrow":
            return _arrow_columns(stream)
        if kind == "csv":
            return _csv_columns(stream)
        if kind == "jsonl":
            from pyarrow import json as arrow_json

            data = stream.read(SAMPLE_BYTES)
            whole = data[: data.rfind(b"\n") + 1] if len(data) == SAMPLE_BYTES else data
            made = arrow_json.read_json(io.BytesIO(whole), arrow_json.ReadOptions(block_size=SAMPLE_BYTES))
            return pa.schema([field.with_type(_known(field.type)) for field in made.schema])
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise bad_input(f"Cannot read the columns of {name} as {kind}: {error}. Correct it.") from error
    raise bad_input(f"{name} has no columns: it is {kind}. Give a parquet, Arrow, CSV or JSON lines file.")


def _arrow_columns(stream: IO[bytes]) -> pa.Schema:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(stream).schema
    except pa.ArrowInvalid:  # a stream in a file
        stream.seek(0)
        return pa.ipc.open_stream(stream).schema


def _csv_columns(stream: IO[bytes]) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    data = stream.read(SAMPLE_BYTES)
    reading = csv.ReadOptions(block_size=SAMPLE_BYTES)
    parsing = csv.ParseOptions(newlines_in_values=True)
    whole = data if len(data) < SAMPLE_BYTES else data[: data.rfind(b"\n") + 1]
    made = csv.read_csv(io.BytesIO(whole), reading, parsing)
    plain = csv.ConvertOptions(column_types=dict.fromkeys(made.schema.names, pa.string()))
    texts = csv.read_csv(io.BytesIO(whole), reading, parsing, plain)
    fields = []
    for number, field in enumerate(made.schema):
        kind = _known(field.type)
        if pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(texts.column(number), "^-?0[0-9]")).as_py():
            kind = pa.string()  # 007 is not 7
        fields.append(field.with_type(pa.string() if pa.types.is_time(kind) else kind))
    return pa.schema(fields)


def _known(kind: pa.DataType) -> pa.DataType:
    """Return a type with text where no value told one."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type)) for field in kind])
    return pa.list_(_known(kind.value_type)) if pa.types.is_list(kind) else kind


def missing_columns(rows: RowSchema, given: pa.Schema) -> list[str]:
    """Return the nullable columns that a file lacks.

    Raises:
        InvalidConfigError: REPLOG_INPUT: it lacks a NOT NULL column.
    """
    missing = [name for name in rows.names if name not in given.names]
    needed = [name for name in missing if name in rows.required]
    if needed:
        raise bad_input(f"The file has no column '{needed[0]}', which is NOT NULL. Add it.", column=needed[0])
    return missing


# ------------------------------------------------------------------------------------------------------------ rows


def read_rows(stream: IO[bytes], name: str, kind: str, rows: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in columns that the topic takes; time, headers and partition are ``_replog_`` columns.

    A batch with a value that does not fit is not yielded at all. CSV in a file is read twice, so that none is.

    Args:
        stream: of the file.
        kind: ``csv``, ``jsonl``, ``json``, ``parquet`` or ``arrow``.
        rows: the topic's columns.

    Raises:
        InvalidConfigError: REPLOG_INPUT: the file has another format, an unknown column, or a value that does not fit.
    """
    import pyarrow as pa

    name = "standard input" if name == "-" else name
    try:
        if kind == "csv":
            yield from _csv_rows(stream, name, rows)
        elif kind in ("jsonl", "json"):
            yield from _json_rows(chunks(stream) if kind == "jsonl" else json_values(stream.read()), name, rows)
        else:
            yield from _table_rows(tables(stream, kind), name, rows)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        remedy = "Correct it, or give its format with --input."
        raise bad_input(f"Cannot read {name} as {kind}: {error}. {remedy}") from error


def _check_names(names: list[str], name: str, rows: RowSchema) -> None:
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise bad_input(f"{name} has more than one column '{twice[0]}'. Rename all but one.", column=twice[0])
    for column in names:
        if column not in rows.names and not column.startswith(LOG_PREFIX):
            raise _unknown_column(name, column, rows)
    for column in rows.required:
        if column not in names:
            raise bad_input(f"{name} has no column '{column}', which is NOT NULL. Add it.", column=column)


def _unknown_column(where: str, column: str, rows: RowSchema) -> InvalidConfigError:
    near = next((name for name in rows.names if name.lower() == column.lower()), "")
    remedy = f"Rename it to '{near}'" if near else "Leave it out, or add it to the topic: replog topic schema evolve"
    return bad_input(
        f"{where} has the column '{column}', which is not in the topic's schema: {rows.ddl}. {remedy}.", column=column
    )


def _type_of(column: str, rows: RowSchema) -> pa.DataType:
    """Return the type that a file's column becomes; of the log's own that of time or partition."""
    import pyarrow as pa

    if column in rows.names:
        return rows.arrow.field(column).type
    return {_TIMESTAMP: pa.timestamp("us", "UTC"), _PARTITION: pa.int32()}.get(column, pa.string())


def _require_values(column: pa.Array, field: str, rows: RowSchema, name: str, first: int, noun: str) -> None:
    """Refuse a null in a NOT NULL column; `first` is the number of the first row."""
    if field in rows.required and column.null_count:
        place = column.is_null().index(True).as_py()
        text = f"{noun} {first + place} of {name} has no value in the NOT NULL column '{field}'. Give it one."
        raise bad_input(text, column=field)


def _csv_rows(stream: IO[bytes], name: str, rows: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV: an empty field is null, "" in quotes is text without a letter."""
    import pyarrow as pa

    begin = stream.tell() if stream.seekable() else 0
    ahead = stream.read(READ_BYTES)
    first = ahead.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    names = next(csv_reader(io.StringIO(first, newline="")), [])
    names = [column for column in names if column not in _NOT_READ]
    _check_names(names, name, rows)
    for column in names:
        if pa.types.is_nested(_type_of(column, rows)):
            text = f"{name}: column '{column}' is nested in the topic, and CSV has plain text. Use JSON lines."
            raise bad_input(text, column=column)
    source: IO[bytes] | Joined = Joined(ahead, stream)
    if stream.seekable():
        stream.seek(begin)
        for _ in _csv_batches(stream, names, rows, name):
            pass
        stream.seek(begin)
        source = stream
    yield from _csv_batches(source, names, rows, name)


_NOT_READ = tuple(LOG_PREFIX + name for name in ("topic", "offset", "timestamp_type", "headers"))
"""Columns of a scan that a write does not take; headers are nested."""


def _csv_batches(stream: Any, names: list[str], rows: RowSchema, name: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv

    converting = csv.ConvertOptions(
        include_columns=names,
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    first = 1
    for batch in csv.open_csv(stream, convert_options=converting, parse_options=parsing):
        columns = []
        for number, column in enumerate(names):
            made = _from_texts(batch.column(number), _type_of(column, rows), column, name, first)
            _require_values(made, column, rows, name, first, "Row")
            columns.append(made)
        first += batch.num_rows
        yield pa.record_batch(columns, names)


def _from_texts(texts: pa.Array, kind: pa.DataType, column: str, name: str, first: int) -> pa.Array:
    """Return texts as a flat type. Whole columns are converted; only of a bad one the row is looked for."""
    import pyarrow as pa

    from spark_replog.log.rows_of_text import column_of_texts

    try:
        return column_of_texts(texts, kind)
    except (pa.ArrowException, ValueError) as error:
        for number in range(len(texts)):
            try:
                column_of_texts(texts.slice(number, 1), kind)
            except (pa.ArrowException, ValueError) as problem:
                value = texts[number].as_py()
                raise _bad_value(name, f"Row {first + number}", column, kind, value, problem) from problem
        raise bad_input(f"{name}: column '{column}' cannot be converted: {error}. Correct it.") from error


def _json_rows(lines_of: Iterator[list[bytes]], name: str, rows: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of JSON objects; a line of ``replog consume -f jsonl`` is the record that it describes."""
    import pyarrow as pa

    from spark_replog.log.json_columns import JsonColumns
    from spark_replog.log.rows_of_text import columns_of_objects, parse_row

    whole_lines = JsonColumns(rows.arrow, takes_extra=False)
    first = 1
    for lines in lines_of:
        numbers, objects = list[int](), list[dict[str, Any]]()
        log_columns: dict[str, list[Any]] = {_TIMESTAMP: [], _HEADERS: [], _PARTITION: []}
        if first == 1 and lines:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        filled = [line for line in lines if line.strip()]
        batch = whole_lines.read_good(pa.array(filled, pa.binary())) if filled else None
        if batch is not None:
            first += len(lines)
            yield batch
            continue
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                row, given = _described(parse_row(line), rows)
            except ValueError as error:
                text = f"Line {number} of {name} is not a JSON object: {error}. Correct it."
                raise bad_input(text) from error
            numbers.append(number)
            objects.append(row)
            for column, values in log_columns.items():
                values.append(given.get(column))
        first += len(lines)
        if not objects:
            continue
        arrays, errors = columns_of_objects(objects, rows.arrow)
        if errors:
            first_error = errors[min(errors)]
            raise _bad_line(f"Line {numbers[first_error.row]}", name, first_error, rows) from first_error
        columns = dict(zip(rows.names, arrays, strict=True))
        for field in rows.required:
            made = columns[field]
            if made.null_count:
                line_number = numbers[made.is_null().index(True).as_py()]
                text = f"Line {line_number} of {name} has no value in the NOT NULL column '{field}'. Give it one."
                raise bad_input(text, column=field)
        kinds = {_TIMESTAMP: pa.timestamp("us", "UTC"), _HEADERS: _header_type(), _PARTITION: pa.int32()}
        for column, values in log_columns.items():
            if any(value is not None for value in values):
                columns[column] = pa.array(values, kinds[column])
        yield pa.record_batch(columns)


def _bad_line(where: str, name: str, error: RowFormatError, rows: RowSchema) -> InvalidConfigError:
    if error.kind is None:
        return _unknown_column(f"{where} of {name}", error.column, rows)
    return _bad_value(name, where, error.column, error.kind, error.value, error)


def _header_type() -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _described(row: dict[str, Any], rows: RowSchema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a row and its log columns, if a line of ``replog consume -f jsonl`` has it under 'value'."""
    is_record = row.keys() >= RECORD_FIELDS and not row.keys() - RECORD_FIELDS - POSITION_FIELDS
    if not is_record or "value" in rows.names or not isinstance(row["value"], dict):
        return row, {}
    try:
        pairs = [{"key": header_name(key), "value": decoded(value)} for key, value in row["headers"] or ()]
        time = None if row["timestamp"] is None else microseconds(row["timestamp"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"its headers or its timestamp are malformed ({error})") from error
    partition = row.get("partition")
    if partition is not None and type(partition) is not int:
        raise ValueError("its partition is not a number")
    return row["value"], {_TIMESTAMP: time, _HEADERS: pairs or None, _PARTITION: partition}


def _table_rows(batches: Iterator[pa.RecordBatch], name: str, rows: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table; numbers of a wider type are taken where each value fits exactly."""
    import pyarrow as pa

    from spark_replog.log.column_cast import cast_column, is_number, widens

    first = 1
    for batch in batches:
        _check_names(batch.schema.names, name, rows)
        columns = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            made, kind = column, _type_of(field.name, rows)
            if field.name in rows.names and not widens(field.type, kind) and is_number(field.type) and is_number(kind):
                try:
                    made = cast_column(column, kind)
                except pa.ArrowInvalid as error:
                    number = _first_bad(column, kind)
                    value = column[number].as_py()
                    raise _bad_value(name, f"Row {first + number}", field.name, kind, value, error) from error
            _require_values(made, field.name, rows, name, first, "Row")
            columns.append(made)
        first += batch.num_rows
        yield pa.record_batch(columns, batch.schema.names)


def _first_bad(column: pa.Array, kind: pa.DataType) -> int:
    """Return the number of the first value that a type cannot hold, halving the rows."""
    import pyarrow as pa

    from spark_replog.log.column_cast import cast_column

    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            cast_column(column.slice(start, middle - start), kind)
        except pa.ArrowInvalid:
            end = middle
        else:
            start = middle
    return start
