"""JSON objects to columns, whole batches at a time. Pure; the reverse of ``log.json_rows``.

``log.rows_of_text`` is the rule, a row at a time. Here Arrow's parser does the same for many rows, and where it may
differ (it takes ``NaN``, several objects in one value, bytes that are not UTF-8 ...) rows are left to the rule. So what
becomes of a row never depends on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from spark_replog.ids import new_id
from spark_replog.log.codec.data_object import array_of, join_batches
from spark_replog.log.ddl import type_text
from spark_replog.log.rows_of_text import RowFormatError, column_of_texts, columns_of_objects, parse_row

TEXT_BYTES_MAX = 16 << 20
"""As much text is parsed at a time, or one value."""
ROWS_BY_RULE = 64
"""So few rows of which one is bad are not halved again: a call of Arrow costs as much as some rows by the rule."""
_SECONDS = pa.decimal128(38, 6)
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?"
_FIRST_US, _END_US = -62_100_000_000_000_000, 253_370_764_800_000_000
"""Times in the years 2 to 9998. At the ends of Python's range the rule decides."""
_CONSTANT = r"[-:,\[][ \t\r\n]*(NaN|Inf)"
_BRACE = ord("{")


class _UnsureError(ValueError):
    """Arrow's parser may have read these rows otherwise than the rule does."""


class JsonColumns:
    """Reads JSON objects as columns.

    Args:
        schema: the columns, of canonical types (`log.ddl.canonical_field`).
        takes_extra: whether fields that are not columns are left out, at any depth; else they make a row bad.
    """

    def __init__(self, schema: pa.Schema, *, takes_extra: bool = True) -> None:
        self._columns = list(schema)
        self._takes_extra = takes_extra
        self.schema = pa.schema([column.with_nullable(True) for column in schema])
        # A field that no value has, put into each object: it shows where Arrow saw an object begin.
        self._mark = f"_replog_{new_id()}"
        self._prefix = f'\n{{"{self._mark}":0,'.encode()
        parsed = [_parsed_type(column.type) for column in self._columns]
        self._parsed = None
        if None not in parsed:
            fields = [pa.field(column.name, kind) for column, kind in zip(self._columns, parsed, strict=True)]
            self._parsed = pa.schema([*fields, pa.field(self._mark, pa.int8())])

    def read(self, values: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the columns of N values, and why a row is bad: text, null where it is good.

        A null value is a row of nulls, which is bad if a column is NOT NULL. All columns of a bad row are null.

        Args:
            values: binary or large binary; slices allowed.
        """
        values = values.cast(pa.large_binary())
        is_plain = self._plain(values)
        if is_plain.all():
            parts = list(self._parts(values))
        else:
            mask = pa.array(is_plain)
            parts = [*self._parts(values.filter(mask)), *self._by_rule(values.filter(pc.invert(mask)))]
        batch, reasons = _joined(parts, self.schema)
        if not is_plain.all():
            order = array_of(np.argsort(np.concatenate([np.flatnonzero(is_plain), np.flatnonzero(~is_plain)])))
            batch, reasons = batch.take(order), reasons.take(order)
        return with_required(batch, reasons, self._columns)

    def read_good(self, values: pa.Array) -> pa.RecordBatch | None:
        """Return the columns of N values; None if `read` has to find out which are bad, or why."""
        values = values.cast(pa.large_binary())
        if not self._plain(values).all():
            return None
        try:
            batch = join_batches([self._parse(part) for part in _pieces(values)])
        except (pa.ArrowException, ValueError):
            return None
        is_whole = all(column.nullable or not batch.column(column.name).null_count for column in self._columns)
        return batch if is_whole else None

    def _plain(self, values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return of which values Arrow's parser may see the first sign of an object, and no constant beyond JSON."""
        if self._parsed is None:
            return np.zeros(len(values), np.bool_)
        bounds, data = _bounds(values), np.frombuffer(values.buffers()[2] or b"", np.uint8)
        is_plain = np.diff(bounds) > 0
        is_plain &= values.is_valid().to_numpy(zero_copy_only=False)
        is_plain[is_plain] = data[bounds[:-1][is_plain]] == _BRACE
        text = data[bounds[0] : bounds[-1]].tobytes()
        if b"NaN" in text or b"Inf" in text:
            odd = pc.match_substring_regex(values, _CONSTANT).fill_null(False)
            is_plain &= ~odd.to_numpy(zero_copy_only=False)
        return is_plain

    def _parts(self, values: pa.Array) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield columns and reasons of plain values, in order. Rows around a bad one are halved."""
        for piece in _pieces(values):
            try:
                yield self._parse(piece), pa.nulls(len(piece), pa.string())
            except (pa.ArrowException, ValueError):
                if len(piece) <= ROWS_BY_RULE:
                    yield from self._by_rule(piece)
                else:
                    middle = len(piece) // 2
                    yield from self._parts(piece[:middle])
                    yield from self._parts(piece[middle:])

    def _parse(self, values: pa.Array) -> pa.RecordBatch:
        """Return the columns of N >= 1 good plain values.

        Raises:
            pa.ArrowException, ValueError: the rule must look at them.
        """
        values.cast(pa.large_string())  # Arrow's parser does not check UTF-8
        texts = pc.binary_replace_slice(values, 0, 1, self._prefix)
        bounds = _bounds(texts)
        text = texts.buffers()[2].slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        table = arrow_json.read_json(
            pa.BufferReader(text),
            arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            arrow_json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore" if self._takes_extra else "error"
            ),
        )
        # As many objects as values, and one mark in each object: no value has none, two, or a part of one.
        if table.num_rows != len(values) or table.column(self._mark).null_count:
            raise _UnsureError
        (batch,) = table.combine_chunks().to_batches()
        columns = [_typed(batch.column(column.name), column.type) for column in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _by_rule(self, values: pa.Array) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield columns and reasons, a row at a time."""
        objects: list[dict[str, Any] | None] = []
        reasons: dict[int, str] = {}
        deep: dict[int, pa.RecordBatch] = {}
        for number, value in enumerate(values):
            line = value.as_py()
            try:
                objects.append(None if line is None else parse_row(line))
            except ValueError as error:
                objects.append(None)
                row = (
                    self._deep_row(values[number : number + 1]) if isinstance(error.__cause__, RecursionError) else None
                )
                if row is None:
                    reasons[number] = f"it is not a JSON object: {error}"
                else:
                    deep[number] = row
        columns, errors = columns_of_objects(objects, self._columns, takes_extra=self._takes_extra)
        reasons |= {number: reason_of(error) for number, error in errors.items()}
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        for number, row in deep.items():
            batch = join_batches([batch[:number], row, batch[number + 1 :]])
        yield batch, pa.array([reasons.get(number) for number in range(len(values))], pa.string())

    def _deep_row(self, values: pa.Array) -> pa.RecordBatch | None:
        """Return a row that is nested too deeply for Python's parser, as Arrow's reads it; None if it is bad."""
        try:
            return self._parse(values) if self._plain(values).all() else None
        except (pa.ArrowException, ValueError):
            return None


def with_required(
    batch: pa.RecordBatch, reasons: pa.Array, columns: Sequence[pa.Field]
) -> tuple[pa.RecordBatch, pa.Array]:
    """Make rows bad that have null in a NOT NULL column: nulls, with the reason."""
    is_bad = None
    for number, column in enumerate(columns):
        if column.nullable or not batch.column(number).null_count:
            continue
        lacks = pc.and_(batch.column(number).is_null(), reasons.is_null())
        if pc.any(lacks).as_py():
            text = f"column '{column.name}' {type_text(column.type)} is NOT NULL, and the value has none"
            reasons = pc.if_else(lacks, text, reasons)
            is_bad = lacks if is_bad is None else pc.or_(is_bad, lacks)
    if is_bad is not None:
        places = array_of(np.arange(len(batch), dtype=np.int64))
        batch = batch.take(pc.if_else(is_bad, pa.scalar(None, pa.int64()), places))
    return batch, reasons


def reason_of(error: RowFormatError) -> str:
    """Return what is wrong with a value, naming its column."""
    value = str(error.value) if isinstance(error.value, Decimal) else repr(error.value)
    if error.kind is None:
        text = f"the field {error.column!r:.60} is not a column"
    else:
        text = f"column '{error.column}' {type_text(error.kind)} cannot hold {value:.60} ({error})"
    return text.encode("utf-8", "backslashreplace").decode()


def _joined(parts: Sequence[tuple[pa.RecordBatch, pa.Array]], schema: pa.Schema) -> tuple[pa.RecordBatch, pa.Array]:
    if not parts:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema), _NO_REASONS
    reasons = pa.concat_arrays([reasons for _, reasons in parts])
    return join_batches([batch for batch, _ in parts]), reasons


_NO_REASONS = pa.nulls(0, pa.string())


def _bounds(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the N + 1 offsets of large binary values in their bytes."""
    if not len(values):
        return np.zeros(1, np.int64)
    return np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _pieces(values: pa.Array) -> Iterator[pa.Array]:
    """Yield values in slices of at most `TEXT_BYTES_MAX`, or of one value."""
    bounds = _bounds(values)
    start = 0
    while start < len(values):
        end = int(np.searchsorted(bounds, bounds[start] + TEXT_BYTES_MAX, "right")) - 1
        end = max(end, start + 1)
        yield values[start:end]
        start = end


def _parsed_type(kind: pa.DataType) -> pa.DataType | None:
    """Return as what Arrow's parser is to read a type; None if it cannot."""
    types = pa.types
    if types.is_struct(kind):
        inner = [_parsed_type(field.type) for field in kind]
        if None in inner:
            return None
        return pa.struct([field.with_type(parsed) for field, parsed in zip(kind, inner, strict=True)])
    if types.is_list(kind):
        item = _parsed_type(kind.value_type)
        return None if item is None else pa.list_(kind.value_field.with_type(item))
    if types.is_map(kind):
        return None
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_binary(kind):
        return pa.string()
    if types.is_duration(kind):
        return _SECONDS
    return pa.float64() if types.is_float32(kind) else kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a parsed column as its type.

    Raises:
        pa.ArrowException, ValueError: the rule must look at it.
    """
    types = pa.types
    if column.type == kind:
        return column
    if types.is_struct(kind):
        children = [_typed(column.field(number), field.type) for number, field in enumerate(kind)]
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:1], column.null_count, children=children)
    if types.is_list(kind):
        child = _typed(column.values, kind.value_type)
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], column.null_count, children=[child])
    if types.is_float32(kind):
        made = column.cast(kind)
        if pc.any(pc.is_inf(made)).as_py():
            raise _UnsureError
        return made
    if types.is_duration(kind):
        buffers = column.buffers()
        whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(column), buffers, column.null_count)
        return whole.cast(pa.int64()).cast(kind)
    if types.is_date(kind):
        _check(column, f"^{_DAY}$")
    elif types.is_timestamp(kind):
        _check(column, f"^{_DAY}({_TIME}{_ZONE if kind.tz is not None else ''})?$")
    made = column_of_texts(column, kind)
    if types.is_date(kind) or types.is_timestamp(kind):
        _check_range(made)
    return made


def _check(texts: pa.Array, pattern: str) -> None:
    if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        raise _UnsureError


def _check_range(times: pa.Array) -> None:
    ends = pc.min_max(times.cast(pa.timestamp("us")).view(pa.int64()))
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and not _FIRST_US <= first <= last < _END_US:
        raise _UnsureError
