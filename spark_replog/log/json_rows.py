"""Typed rows as JSON text: one row, or batches by kernels of Arrow and numpy without a step per row. Pure.

Both give the same text: DECIMAL as text with all its digits, BINARY as base64, dates and times in ISO 8601, an interval
as seconds in text, and numbers that JSON lacks as ``NaN`` or ``Infinity`` in text. Keys of a map become text. A column
that is null is ``null``, never left out.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.codec.data_object import array_of

JSON_BYTES_TARGET = 64 * 1024 * 1024
"""About as much text is made at a time: Arrow's text columns hold 2 GiB."""
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'))
_CONTROLS = tuple((chr(code), json.dumps(chr(code))[1:-1]) for code in range(32))
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_NULL = "null"


def json_step(batch: pa.RecordBatch) -> int:
    """Return how many rows of N >= 1 typed rows to convert at a time."""
    row_bytes: int = 1 + sum(_names_bytes(field) for field in batch.schema) + 4 * batch.nbytes // len(batch)
    return max(1, JSON_BYTES_TARGET // row_bytes)


def _names_bytes(field: pa.Field) -> int:
    kind = field.type
    inner = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    return len(field.name) + 24 + sum(map(_names_bytes, inner))


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return one JSON object of each of N rows, in UTF-8, as a binary array without nulls.

    Args:
        batch: columns of canonical types (`log.ddl.canonical_field`); slices allowed.
    """
    return _object(batch.schema.names, batch.columns, len(batch)).cast(pa.binary())


def _object(names: Sequence[str], columns: Sequence[pa.Array], count: int) -> pa.Array:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        sign = "," if parts else "{"
        parts += [pa.scalar(f"{sign}{json.dumps(name, ensure_ascii=False)}:"), json_texts(column)]
    if not parts:
        return pa.repeat("{}", count)
    return _join(*parts, pa.scalar("}"))


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(""))


def json_texts(column: pa.Array) -> pa.Array:
    """Return the JSON of each value of a column, without nulls."""
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        fields = [column.field(number) for number in range(kind.num_fields)]
        text = _object([field.name for field in kind], fields, len(column))
    elif types.is_list(kind):
        text = _join(pa.scalar("["), _joined(column, json_texts(_items(column, column.values))), pa.scalar("]"))
    elif types.is_map(kind):
        keys, values = _items(column, column.keys), _items(column, column.items)
        pairs = _join(_name_text(keys), pa.scalar(":"), json_texts(values))
        text = _join(pa.scalar("{"), _joined(column, pairs), pa.scalar("}"))
    else:
        text = _flat_text(column)
    if text.null_count:
        text = text.fill_null(_NULL)
    return text if not column.null_count else pc.if_else(column.is_valid(), text, pa.scalar(_NULL))


def _flat_text(column: pa.Array) -> pa.Array:
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return pa.repeat(_NULL, len(column))
    if types.is_floating(kind):
        return _float_text(column)
    if types.is_boolean(kind) or types.is_integer(kind):
        return column.cast(pa.string())
    if types.is_string(kind):
        return _quoted(_escaped(column))
    if types.is_binary(kind):
        return _quoted(_base64(column))
    if types.is_duration(kind):
        seconds = pa.Array.from_buffers(
            pa.decimal128(19, 6), len(column), column.cast(pa.int64()).cast(pa.decimal128(19)).buffers()
        )
        return _quoted(seconds.cast(pa.string()))
    text = column.cast(pa.string())
    if types.is_timestamp(kind):
        text = pc.replace_substring(text, " ", "T")
        text = pc.replace_substring(text, ".000000", "")
        if kind.tz is not None:
            text = pc.replace_substring(text, "Z", "+00:00")
    return _quoted(text)


def _quoted(text: pa.Array) -> pa.Array:
    return _join(pa.scalar('"'), text, pa.scalar('"'))


def _escaped(text: pa.Array) -> pa.Array:
    for sign, escape in _ESCAPES:
        text = pc.replace_substring(text, sign, escape)
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x1f]")).as_py():
        for sign, escape in _CONTROLS:
            text = pc.replace_substring(text, sign, escape)
    return text


def _float_text(column: pa.Array) -> pa.Array:
    numbers = column.cast(pa.float64())
    text = pc.replace_substring_regex(numbers.cast(pa.string()), r"^(-?[0-9]+)$", r"\1.0")
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        infinite = pc.if_else(pc.greater(numbers, 0.0), pa.scalar('"Infinity"'), pa.scalar('"-Infinity"'))
        odd = pc.if_else(pc.is_nan(numbers), pa.scalar('"NaN"'), infinite)
        text = pc.if_else(pc.is_finite(numbers), text, odd)
    return text


def _name_text(keys: pa.Array) -> pa.Array:
    """Return the keys of maps as the names of an object: JSON that is not text is quoted."""
    text = json_texts(keys)
    if pa.types.is_nested(keys.type):
        return _quoted(_escaped(text))
    return pc.if_else(pc.starts_with(text, '"'), text, _quoted(text))


def _bounds(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the N + 1 offsets of lists, maps, or binary values, into their child or bytes."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _items(column: pa.Array, child: pa.Array) -> pa.Array:
    """Return the part of a child that the rows of lists or maps have."""
    bounds = _bounds(column)
    return child.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def _joined(column: pa.Array, items: pa.Array) -> pa.Array:
    """Return the items of each row with commas between them."""
    bounds = _bounds(column)
    return pc.binary_join(pa.ListArray.from_arrays(array_of(bounds - bounds[0]), items), ",")


def _base64(column: pa.Array) -> pa.Array:
    bounds = _bounds(column).astype(np.int64)
    lengths = np.diff(bounds)
    groups = (lengths + 2) // 3
    ends = np.cumsum(groups)
    padded = np.zeros(3 * int(groups.sum()), np.uint8)
    if len(padded):
        data = np.frombuffer(column.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
        padded[np.arange(len(data)) + np.repeat(3 * (ends - groups) - (bounds[:-1] - bounds[0]), lengths)] = data
    first, second, third = padded.reshape(-1, 3).T
    codes = [first >> 2, (first & 3) << 4 | second >> 4, (second & 15) << 2 | third >> 6, third & 63]
    text = _ALPHABET[np.stack(codes, axis=1)].reshape(-1)
    for rest, signs in ((1, (1, 2)), (2, (1,))):
        for sign in signs:
            text[4 * ends[lengths % 3 == rest] - sign] = ord("=")
    offsets = np.concatenate([[0], 4 * ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))


def row_json(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of JSON in UTF-8; see `json_value`."""
    return json.dumps(json_value(row), ensure_ascii=False, separators=(",", ":")).encode()


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, without loss."""
    if isinstance(value, Mapping):
        return {_key(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(Decimal(value // timedelta(microseconds=1)).scaleb(-6))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _key(name: Any) -> str:
    made = json_value(name)
    return made if isinstance(made, str) else json.dumps(made)
