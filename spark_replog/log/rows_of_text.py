"""Typed rows from text: JSON objects, and columns of text as in CSV. The reverse of ``log.json_rows``.

A type decides how its text is read, and nothing is guessed: what would lose a digit or an instant is an error.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.column_cast import cast_column
from spark_replog.log.row_key import key_bytes
from spark_replog.log.row_schema import RowSchema

_ZONE = r":[0-9.]*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_TOO_FINE = re.compile(r"[.,]\d{6}\d")
_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})
_SINGLE = struct.Struct("<f")
Converter = Callable[[Any], Any]


class RowFormatError(ValueError):
    """A value that does not fit its column.

    Args:
        row: its place among the objects, from 0.
        column: its column.
        kind: the column's type; None: the topic has no such column.
        value: as JSON has it.
    """

    def __init__(self, row: int, column: str, kind: pa.DataType | None, value: object, why: object) -> None:
        super().__init__(str(why))
        self.row, self.column, self.kind, self.value = row, column, kind, value


def parse_row(line: bytes) -> dict[str, Any]:
    """Return a JSON object in UTF-8; numbers with a fraction are decimals, so that no digit is lost.

    Raises:
        ValueError: it is none.
    """
    try:
        row = json.loads(line.decode(), parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"it is {type(row).__name__}")
    return row


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value")


def columns_of_objects(
    objects: Sequence[Mapping[str, Any] | None], columns: Iterable[pa.Field], *, takes_extra: bool = False
) -> tuple[list[pa.Array], dict[int, RowFormatError]]:
    """Return JSON objects as columns, in their order, and what is wrong with an object, by its place.

    What an object lacks is null; so is all of a bad object and of None. Dates and times are ISO 8601 text (without a
    zone UTC, where the column has one), DECIMAL a number or text, BINARY base64, an interval seconds, a map an object.

    Args:
        takes_extra: whether fields that are not columns, at any depth, are left out; else they are errors.
    """
    columns = tuple(columns)
    errors: dict[int, RowFormatError] = {}
    if not takes_extra:
        names = {column.name for column in columns}
        for number, row in enumerate(objects):
            if row is not None and not row.keys() <= names:
                extra = next(name for name in row if name not in names)
                errors[number] = RowFormatError(number, extra, None, row[extra], "no such column")
    made = []
    for column in columns:
        values = [None if row is None else row.get(column.name) for row in objects]
        made.append(_column(values, column.name, column.type, takes_extra, errors))
    if errors:  # the other columns of a bad object
        good = [None if number in errors else row for number, row in enumerate(objects)]
        made, _ = columns_of_objects(good, columns, takes_extra=takes_extra)
    return made, errors


def _column(
    values: Sequence[Any], name: str, kind: pa.DataType, takes_extra: bool, errors: dict[int, RowFormatError]
) -> pa.Array:
    """Return values as a type, with null where there is an error, which is added."""
    convert = _converter(kind, takes_extra)
    made = []
    for number, value in enumerate(values):
        try:
            made.append(convert(value))
        except _BAD_VALUE as error:
            errors.setdefault(number, RowFormatError(number, name, kind, value, error))
            made.append(None)
    try:
        return pa.array(made, kind)
    except _BAD_VALUE:
        for number, value in enumerate(made):
            try:
                pa.array([value], kind)
            except _BAD_VALUE as error:
                errors.setdefault(number, RowFormatError(number, name, kind, values[number], error))
                made[number] = None
        return pa.array(made, kind)


_BAD_VALUE = (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidOperation, RecursionError)


@lru_cache(maxsize=256)
def _converter(kind: pa.DataType, takes_extra: bool = False) -> Converter:
    """Return a function from a JSON value to what Arrow makes a value of this type of."""
    types = pa.types
    if types.is_map(kind):
        return _of_map(kind, takes_extra)
    if types.is_struct(kind):
        return _of_struct({field.name: _converter(field.type, takes_extra) for field in kind}, takes_extra)
    if types.is_list(kind):
        inner = _converter(kind.value_type, takes_extra)
        return _typed(list, "an array", lambda items: [inner(item) for item in items])
    if types.is_timestamp(kind):
        return _typed(str, "a time in ISO 8601", lambda text: _moment(text, kind.tz is not None))
    for is_alike, classes, what, convert in _FLAT:
        if is_alike(kind):
            return _typed(classes, what, convert)
    raise TypeError(f"a typed topic cannot hold {kind}")


def _typed(classes: Any, what: str, convert: Converter) -> Converter:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, classes) or (isinstance(value, bool) and classes is not bool):
            raise ValueError(f"it is not {what}")
        return convert(value)

    return checked


def _of_struct(fields: Mapping[str, Converter], takes_extra: bool) -> Converter:
    def convert(row: dict[str, Any]) -> dict[str, Any]:
        extra = row.keys() - fields.keys()
        if extra and not takes_extra:
            raise ValueError(f"it has no field '{min(extra)}'")
        return {name: inner(row.get(name)) for name, inner in fields.items()}

    return _typed(dict, "an object", convert)


def _of_map(kind: pa.DataType, takes_extra: bool) -> Converter:
    key, item = _converter(kind.key_type, takes_extra), _converter(kind.item_type, takes_extra)
    is_text = _is_written_as_text(kind.key_type)

    def convert(row: dict[str, Any]) -> list[tuple[Any, Any]]:
        return [
            (key(name if is_text else json.loads(name, parse_float=Decimal)), item(value))
            for name, value in row.items()
        ]

    return _typed(dict, "an object", convert)


def _is_written_as_text(kind: pa.DataType) -> bool:
    types = pa.types
    return not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_nested(kind))


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value not in _NUMBERS:
            raise ValueError("it is not a number")
        return float(value)
    return _finite(float(value))


def _single(value: Any) -> float:
    number = _float(value)
    if isinstance(value, str):
        return number
    try:
        return float(_SINGLE.unpack(_SINGLE.pack(number))[0])
    except OverflowError as error:
        raise ValueError("it is too large") from error


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("it is too large")
    return number


def _decimal(value: Any) -> Decimal:
    return Decimal(value)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _interval(value: Any) -> timedelta:
    micros = Decimal(value).scaleb(6)
    if micros != micros.to_integral_value():
        raise ValueError("it is not a whole number of microseconds")
    return timedelta(microseconds=int(micros))


def _moment(text: str, has_zone: bool) -> datetime:
    moment = datetime.fromisoformat(text)
    if _TOO_FINE.search(text):
        raise ValueError("it is finer than a microsecond")
    if not has_zone and moment.tzinfo is not None:
        raise ValueError("it has a zone, and the column has none")
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC) if has_zone else moment
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC it is outside the years 1 to 9999") from None


def _same(value: Any) -> Any:
    return value


_FLAT: tuple[tuple[Callable[[pa.DataType], bool], Any, str, Converter], ...] = (
    (pa.types.is_string, str, "text", _same),
    (pa.types.is_boolean, bool, "true or false", _same),
    (pa.types.is_integer, int, "a whole number", _same),
    (pa.types.is_float32, (int, Decimal, str), "a number", _single),
    (pa.types.is_floating, (int, Decimal, str), "a number", _float),
    (pa.types.is_decimal, (int, Decimal, str), "a number", _decimal),
    (pa.types.is_binary, str, "base64 text", _bytes),
    (pa.types.is_date, str, "a date such as 2024-12-31", date.fromisoformat),
    (pa.types.is_duration, (int, Decimal, str), "seconds", _interval),
)


def column_of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of text as a flat type, without a step per row but for BINARY (base64) and intervals (seconds).

    Raises:
        pa.ArrowInvalid, ValueError: a text is not one of the type's values.
    """
    types = pa.types
    if types.is_string(kind):
        return texts
    if types.is_binary(kind) or types.is_duration(kind):
        convert = _converter(kind)
        try:
            return pa.array([convert(text) for text in texts.to_pylist()], kind)
        except InvalidOperation as error:
            raise ValueError("it is not a number of seconds") from error
    if not types.is_timestamp(kind) or kind.tz is None:
        return texts.cast(kind)
    # A time without a zone is UTC.
    has_zone = pc.match_substring_regex(texts, _ZONE)
    zoned = pc.if_else(has_zone, texts, None).cast(kind)
    plain = cast_column(pc.if_else(has_zone, None, texts).cast(pa.timestamp("us")), kind)
    return pc.coalesce(zoned, plain)


def key_of_text(text: str, rows: RowSchema) -> bytes:
    """Return the key of rows whose key columns have these values: one as text, several as a line of CSV.

    Raises:
        ValueError: a value is not one of its column's type, or there are too few or too many.
    """
    texts = [text] if len(rows.key) == 1 else next(csv.reader([text]), [])
    if len(texts) != len(rows.key) or not rows.key:
        raise ValueError(f"its key columns are {', '.join(rows.key) or 'none'}")
    kinds = [rows.arrow.field(name).type for name in rows.key]
    values = [column_of_texts(pa.array([part]), kind)[0].as_py() for part, kind in zip(texts, kinds, strict=True)]
    return key_bytes(values, kinds)
