"""Avro records to columns. The library fastavro reads a record at a time; its columns are made and cast whole. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.log.column_cast import cast_column, widens
from spark_replog.log.ddl import DEPTH_MAX, input_type_text, invalid_schema, type_text
from spark_replog.log.json_columns import with_required

CONFLUENT_BYTES = 5
"""Confluent's serializers begin a value with a zero byte and the number of its schema in a registry, big-endian."""
Registry = Callable[[int], Sequence[str] | None]
"""Returns the texts of a schema by its number: those that it refers to, and itself last; None: there is none."""
_FLAT: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


def is_avro_schema(text: str) -> bool:
    """Return whether the text of a schema is Avro's, and not DDL."""
    return text.lstrip().startswith(("{", "["))


def columns_of_avro(text: str) -> pa.Schema:
    """Return the columns of an Avro record, nullable.

    Raises:
        ReplogError: REPLOG_INVALID_SCHEMA: it is not a record, or a field has no type of columns; REPLOG_ENVIRONMENT.
    """
    return pa.schema(list(_Writer((text,)).kind))


class AvroColumns:
    """Reads Avro records as columns.

    A column gets the record's field of its name; one that the record lacks is null. Types must fit exactly, or widen as
    in typed topics.

    Args:
        schema: the columns, of canonical types (`log.ddl.canonical_field`).
        avro: the schema of all values; with a registry, the reader's, to which records of older schemas are resolved,
            with its defaults and aliases; "" without one.
        registry: finds the schema of a value by the number in Confluent's prefix; None: values have no prefix.

    Raises:
        ReplogError: as `columns_of_avro`; REPLOG_ENVIRONMENT: fastavro is not installed.
    """

    def __init__(self, schema: pa.Schema, *, avro: str = "", registry: Registry | None = None) -> None:
        self._columns = list(schema)
        self._registry = registry
        self.schema = pa.schema([column.with_nullable(True) for column in schema])
        self._reader = _Writer((avro,)) if avro else None
        self._writers: dict[int, _Writer] = {}
        _fastavro()

    def read(self, values: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the columns of N binary values, and why a row is bad: text, null where it is good.

        As `JsonColumns.read`. The errors of a registry that does not answer are raised.
        """
        rows: list[dict[str, Any] | None] = [None] * len(values)
        reasons: dict[int, str] = {}
        columns = [pa.nulls(len(values), column.type) for column in self._columns]
        for writer, numbers in self._by_writer(values, reasons):
            numbers = list(numbers)
            skipped = 0 if self._registry is None else CONFLUENT_BYTES
            for number in numbers:
                rows[number] = self._record(values[number].as_py()[skipped:], writer, number, reasons)
            made = self._made([rows[number] for number in numbers], numbers, writer, reasons)
            columns = [_placed(old, new, numbers) for old, new in zip(columns, made, strict=True)]
        texts = pa.array([reasons.get(number) for number in range(len(values))], pa.string())
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if reasons:
            places = pa.array([None if number in reasons else number for number in range(len(values))], pa.int64())
            batch = batch.take(places)
        return with_required(batch, texts, self._columns)

    def _by_writer(self, values: pa.Array, reasons: dict[int, str]) -> Iterable[tuple[_Writer, Iterable[int]]]:
        """Yield the schemas of values, with the places of those that have one."""
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        if self._registry is None:
            assert self._reader is not None
            yield self._reader, np.flatnonzero(is_valid).tolist()
            return
        by_id: dict[int, list[int]] = {}
        for number in np.flatnonzero(is_valid).tolist():
            prefix = values[number].as_py()[:CONFLUENT_BYTES]
            if len(prefix) < CONFLUENT_BYTES or prefix[0]:
                reasons[number] = "it does not begin with a zero byte and the number of a schema"
            else:
                by_id.setdefault(int.from_bytes(prefix[1:], "big"), []).append(number)
        for schema_id, numbers in by_id.items():
            try:
                writer = self._writer(schema_id)
            except InvalidConfigError as error:
                reasons |= dict.fromkeys(numbers, f"schema {schema_id} of the registry: {error.args[0]}")
                continue
            if writer is None:
                reasons |= dict.fromkeys(numbers, f"the registry has no schema {schema_id}")
            else:
                yield writer, numbers

    def _writer(self, schema_id: int) -> _Writer | None:
        writer = self._writers.get(schema_id)
        if writer is None:
            assert self._registry is not None
            texts = self._registry(schema_id)
            if texts is None:
                return None
            writer = _Writer(texts)
            if self._reader is not None:
                _check_units(writer.kind, self._reader.kind)
            self._writers[schema_id] = writer
        return writer

    def _record(self, value: bytes, writer: _Writer, number: int, reasons: dict[int, str]) -> dict[str, Any] | None:
        stream = io.BytesIO(value)
        reader = None if self._reader is None or self._reader is writer else self._reader.plain
        try:
            row: dict[str, Any] = _fastavro().schemaless_reader(stream, writer.plain, reader)
        except Exception as error:  # fastavro lets through what its steps raise: EOFError, IndexError, UnicodeError ...
            reasons[number] = f"it does not follow its Avro schema: {str(error) or 'it ends early'}"
            return None
        if stream.tell() != len(value):
            reasons[number] = f"{len(value) - stream.tell()} bytes follow the Avro record"
            return None
        return row

    def _made(
        self, rows: Sequence[dict[str, Any] | None], numbers: Sequence[int], writer: _Writer, reasons: dict[int, str]
    ) -> list[pa.Array]:
        """Return records of one schema as columns; of bad ones nulls, with the reason."""
        record = (self._reader or writer).kind
        fields = {field.name: field.type for field in record}
        made = []
        for column in self._columns:
            kind = fields.get(column.name)
            pruned = None if kind is None else _pruned(kind, column.type)
            if pruned is None or not widens(pruned, column.type):
                if kind is not None:
                    text = (
                        f"column '{column.name}' {type_text(column.type)} is {input_type_text(kind)} in the Avro schema"
                    )
                    for number in numbers:
                        reasons.setdefault(number, text)
                made.append(pa.nulls(len(rows), column.type))
                continue
            convert = _converter(pruned)
            values = [None if row is None else row[column.name] for row in rows]
            values = values if convert is None else [convert(value) for value in values]
            made.append(_array(values, pruned, column, numbers, reasons))
        return made


def _check_units(written: pa.DataType, wanted: pa.DataType, path: str = "") -> None:
    """Refuse times in two units: resolution of Avro schemas looks at their numbers only."""
    types = pa.types
    if types.is_struct(written) and types.is_struct(wanted):
        fields = {field.name: field.type for field in wanted}
        for field in written:
            if field.name in fields:
                _check_units(field.type, fields[field.name], f"{path}.{field.name}".lstrip("."))
    elif types.is_list(written) and types.is_list(wanted):
        _check_units(written.value_type, wanted.value_type, f"{path}.element")
    elif types.is_map(written) and types.is_map(wanted):
        _check_units(written.item_type, wanted.item_type, f"{path}.value")
    elif types.is_timestamp(written) and types.is_timestamp(wanted) and written != wanted:
        raise invalid_schema(f"column '{path}' is {written}, and {wanted} in valueSchema. Give valueSchema as DDL.")


_BAD_VALUE = (pa.ArrowException, ValueError, TypeError, OverflowError)


def _array(
    values: list[Any], kind: pa.DataType, column: pa.Field, numbers: Sequence[int], reasons: dict[int, str]
) -> pa.Array:
    try:
        return cast_column(pa.array(values, kind), column.type)
    except _BAD_VALUE:
        for place, value in enumerate(values):
            try:
                cast_column(pa.array([value], kind), column.type)
            except _BAD_VALUE as error:
                text = f"{_words(column)} cannot hold {value!r:.60} ({error})"
                reasons.setdefault(numbers[place], text.encode("utf-8", "backslashreplace").decode())
                values[place] = None
        return cast_column(pa.array(values, kind), column.type)


def _placed(old: pa.Array, new: pa.Array, numbers: Sequence[int]) -> pa.Array:
    """Return a column with new values at some places."""
    if len(new) == len(old):
        return new
    places = np.arange(len(old), dtype=np.int64)
    places[numbers] = len(old) + np.arange(len(new))
    return pa.concat_arrays([old, new]).take(pa.array(places))


def _pruned(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return a type without the fields of structs that the wanted one lacks."""
    types = pa.types
    if types.is_struct(kind) and types.is_struct(wanted):
        names = {field.name: field.type for field in wanted}
        return pa.struct(
            [field.with_type(_pruned(field.type, names[field.name])) for field in kind if field.name in names]
        )
    if types.is_list(kind) and types.is_list(wanted):
        return pa.list_(_pruned(kind.value_type, wanted.value_type))
    if types.is_map(kind) and types.is_map(wanted):
        return pa.map_(kind.key_type, _pruned(kind.item_type, wanted.item_type))
    return kind


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value of Arrow's form of one with maps in it; None: there is no map."""
    types = pa.types
    if types.is_map(kind):
        item = _converter(kind.item_type) or _same
        return lambda value: None if value is None else [(name, item(inner)) for name, inner in value.items()]
    if types.is_list(kind) and (inner := _converter(kind.value_type)):
        return lambda value: None if value is None else [inner(item) for item in value]
    if types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        if any(fields.values()):
            plain = {name: convert or _same for name, convert in fields.items()}
            return lambda value: value and {name: convert(value[name]) for name, convert in plain.items()}
    return None


def _same(value: Any) -> Any:
    return value


class _Writer:
    """An Avro schema: as fastavro reads it, and the type of its records.

    Args:
        texts: of the schemas that it refers to, and its own last.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        library = _fastavro()
        named: dict[str, Any] = {}
        try:
            for text in texts:
                # Times and dates stay numbers: Python has none before the year 1, and fastavro makes them one by one.
                parsed = library.parse_schema(_without_logical(json.loads(text)), named)
            self.plain = parsed
            named = {}
            for text in texts:
                parsed = library.parse_schema(json.loads(text), named)
        except RecursionError as error:
            raise _too_deep() from error
        except (ValueError, LookupError, TypeError, AttributeError, library.schema.SchemaParseException) as error:
            raise invalid_schema(f"the Avro schema cannot be read: {error}. Correct it.") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise invalid_schema("the Avro schema is not a record, so it has no columns. Give one of type record.")
        try:
            self.kind = _Types(named).of(parsed, "")
        except RecursionError as error:
            raise _too_deep() from error


def _too_deep() -> InvalidConfigError:
    return invalid_schema("the Avro schema is nested too deeply. Flatten it.")


class _Types:
    """Arrow's types of the parts of a parsed schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: list[str] = []
        """Names of the types around a part."""

    def of(self, part: Any, path: str) -> pa.DataType:
        """Return the type of a part.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: columns have no such type.
        """
        if isinstance(part, list):
            return self._union(part, path)
        if isinstance(part, str):
            if part in _FLAT:
                return _FLAT[part]
            return self.of(self._named[part], path)
        kind, logical = part["type"], part.get("logicalType")
        if kind == "record":
            return self._record(part, path)
        if kind == "array":
            item = self.of(part["items"], f"{path}.element")
            if _is_empty(item):  # a few bytes are any number of them
                raise invalid_schema(f"column '{path}' is an array of nothing, which columns do not have.", column=path)
            return pa.list_(item)
        if kind == "map":
            return pa.map_(pa.string(), self.of(part["values"], f"{path}.value"))
        if logical == "decimal" and kind in ("bytes", "fixed"):
            try:
                return pa.decimal128(part["precision"], part.get("scale", 0))
            except (pa.ArrowException, ValueError) as error:
                raise invalid_schema(
                    f"column '{path}' is a decimal of {part['precision']} digits, 38 are the most.", column=path
                ) from error
        if not isinstance(kind, str):
            return self.of(kind, path)
        if kind == "fixed" and not part["size"]:
            return pa.null()
        return _LOGICAL.get((kind, str(logical))) or _FLAT[kind]

    def _record(self, part: Mapping[str, Any], path: str) -> pa.DataType:
        name = part["name"]
        if name in self._open or len(self._open) > DEPTH_MAX:
            raise invalid_schema(
                f"the Avro record '{name}' holds itself, or is nested deeper than {DEPTH_MAX} levels. Columns cannot.",
                column=path,
            )
        self._open.append(name)
        fields = [
            pa.field(field["name"], self.of(field["type"], f"{path}.{field['name']}".lstrip(".")))
            for field in part["fields"]
        ]
        self._open.pop()
        return pa.struct(fields)

    def _union(self, parts: Sequence[Any], path: str) -> pa.DataType:
        kinds = [kind for kind in (self.of(part, path) for part in parts) if not pa.types.is_null(kind)]
        for kind in kinds:
            if all(widens(other, kind) for other in kinds):
                return kind
        if not kinds:
            return pa.null()
        raise invalid_schema(
            f"column '{path}' is a union of {', '.join(map(input_type_text, kinds))}, and a column has one type. "
            "Decode it in your program.",
            column=path,
        )


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether values take no byte."""
    if pa.types.is_struct(kind):
        return all(_is_empty(field.type) for field in kind)
    return bool(pa.types.is_null(kind))


def _without_logical(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_logical(item) for item in part]
    if isinstance(part, dict):
        is_kept = part.get("logicalType") == "decimal"
        return {name: _without_logical(item) for name, item in part.items() if name != "logicalType" or is_kept}
    return part


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT, "Avro needs fastavro. Run: pip install 'spark-replog[registry]'"
        ) from error
    return fastavro


def _words(column: pa.Field) -> str:
    return f"column '{column.name}' {type_text(column.type)}"
