"""Computes the schema that a typed topic needs to hold an input's columns: ``mergeSchema``. Pure.

The input decides types only: a column that it lacks stays, and whether a column is NOT NULL does not change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa

from spark_replog.errors import InvalidConfigError
from spark_replog.log.codec.data_object import LOG_PREFIX
from spark_replog.log.column_cast import INTEGER_DIGITS, widens
from spark_replog.log.ddl import (
    DECIMAL_DIGITS_MAX,
    canonical_field,
    columns_text,
    input_type_text,
    invalid_schema,
    struct_of,
    type_text,
)
from spark_replog.log.row_schema import RowSchema


def merged_schema(
    rows: RowSchema, given: pa.Schema, *, is_case_sensitive: bool = True, leave_out: Collection[str] = ()
) -> RowSchema:
    """Return the topic's schema if it holds the input; else its next version, which does.

    New columns come last, nullable, in the input's order; a column gets the narrowest type that holds its old type and
    the input's. Columns that begin with ``_replog_`` are the log's own and count for nothing.

    Args:
        rows: the topic's newest schema.
        given: the input's columns.
        is_case_sensitive: whether names must be equal; else case does not count, and the topic's spelling stays.
        leave_out: columns that are not stored, such as the one with the rows' times.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: no type holds a column of both, a key column would change, or the
            input has a column twice or of a type that no topic can hold.
    """
    fold = str if is_case_sensitive else str.lower
    columns = {fold(column.name): column for column in rows.arrow}
    taken: set[str] = set()
    skipped = {fold(name) for name in leave_out} - columns.keys()
    for column in given:
        name = fold(column.name)
        if column.name.lower().startswith(LOG_PREFIX) or name in skipped:
            continue
        if name in taken:
            raise invalid_schema(f"the input has two columns '{column.name}'. Rename or drop one.", column=column.name)
        taken.add(name)
        old = columns.get(name)
        if old is None:
            columns[name] = canonical_field(column.with_nullable(True))
        else:
            columns[name] = old.with_type(_common_column_type(old, column))
    newer = RowSchema(columns_text(columns.values()), rows.key)
    return rows if newer.ddl == rows.ddl else rows.evolve(newer)


def _common_column_type(old: pa.Field, given: pa.Field) -> pa.DataType:
    made = _common_type(old.type, given.type)
    if made is None:
        kinds = f"{type_text(old.type)} in the topic and {input_type_text(given.type)} in the input"
        raise invalid_schema(
            f"column '{old.name}' is {kinds}, and no type holds the values of both. Cast the input's, or give it"
            " another name.",
            column=old.name,
            schema=type_text(old.type),
            input=input_type_text(given.type),
        )
    return made


def _common_type(old: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds all values of a canonical type and of any other; None: there is none."""
    if widens(given, old):
        return old
    try:
        new = canonical_field(pa.field("input", given)).type
    except InvalidConfigError:
        new = None
    if new is not None and widens(old, new):
        return new
    types = pa.types
    if new is None:
        return None
    if types.is_struct(old) and types.is_struct(new):
        return _common_struct(old, new)
    if types.is_list(old) and types.is_list(new):
        inner = _common_type(old.value_type, new.value_type)
        return None if inner is None else canonical_field(pa.field("input", pa.list_(inner))).type
    if types.is_map(old) and types.is_map(new):
        key, item = _common_type(old.key_type, new.key_type), _common_type(old.item_type, new.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return _common_number(old, new)


def _common_struct(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    fields: dict[str, pa.DataType | None] = {field.name: field.type for field in old}
    for field in new:
        before = fields.get(field.name)
        fields[field.name] = field.type if before is None else _common_type(before, field.type)
    kinds = [kind for kind in fields.values() if kind is not None]
    return struct_of(list(fields), kinds, "") if len(kinds) == len(fields) else None


def _common_number(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    sizes = [_digits(kind) for kind in (old, new)]
    if None not in sizes and any(pa.types.is_decimal(kind) for kind in (old, new)):
        whole, scale = (max(size[place] for size in sizes if size is not None) for place in (0, 1))
        return pa.decimal128(whole + scale, scale) if whole + scale <= DECIMAL_DIGITS_MAX else None
    double = pa.float64()
    return double if widens(old, double) and widens(new, double) else None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return how many digits a number has before and after the point; None: it is not exact."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return (INTEGER_DIGITS[kind.bit_width], 0) if pa.types.is_integer(kind) else None


class ColumnChange(NamedTuple):
    """How a column differs between two versions: its type with NOT NULL, as DDL; ``before`` is "" for a new one."""

    column: str
    before: str
    after: str


def column_changes(older: RowSchema, newer: RowSchema) -> tuple[ColumnChange, ...]:
    """Return what a later version of a schema changes, in its order of columns."""
    before = {column.name: column_text(column) for column in older.arrow}
    after = {column.name: column_text(column) for column in newer.arrow}
    return tuple(
        ColumnChange(name, before.get(name, ""), text) for name, text in after.items() if before.get(name) != text
    )


def column_text(column: pa.Field) -> str:
    """Return the type of a column with NOT NULL, as DDL."""
    return type_text(column.type) + ("" if column.nullable else " NOT NULL")
