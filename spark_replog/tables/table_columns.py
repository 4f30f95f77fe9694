"""The columns of a table that a typed topic fills: its first ones, and what a newer version of the topic changes. Pure.

Only key columns are NOT NULL in a table: a topic may drop NOT NULL of the others, and few formats can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.log.codec.data_object import LOG_PREFIX
from spark_replog.log.column_cast import cast_column, widens
from spark_replog.log.ddl import LIST_ITEM, canonical_field, invalid_schema, type_text
from spark_replog.log.row_schema import RowSchema

PROVENANCE = {
    "_partition": pa.field(f"{LOG_PREFIX}partition", pa.int32()),
    "_offset": pa.field(f"{LOG_PREFIX}offset", pa.int64()),
    "_timestamp": pa.field(f"{LOG_PREFIX}timestamp", pa.timestamp("us", tz="UTC")),
}
"""Columns that say where a row comes from: their names in a table, and what a scan calls them."""


class FormatTypes(NamedTuple):
    """What columns a table format can hold.

    Attributes:
        name: of the format, for a person.
        stored: returns the type of the format that holds a plain type; None: there is none.
        widens: returns whether a column of a plain type may become one of another, in a table with rows.
        bad_characters: that no column's name may have.
    """

    name: str
    stored: Callable[[pa.DataType], pa.DataType | None]
    widens: Callable[[pa.DataType, pa.DataType], bool]
    bad_characters: str = ""


def table_columns(schema: RowSchema, has_provenance: bool, types: FormatTypes) -> pa.Schema:
    """Return the columns that a table needs to hold a topic's rows.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: the format has no such type or name, or a column has the name of one
            that says where a row comes from.
    """
    fields = []
    for column in schema.arrow:
        _check_name(column.name, types)
        stored = _stored_type(column.type, column.name, types)
        fields.append(pa.field(column.name, stored, column.name not in schema.key))
    if has_provenance:
        names = {column.name.lower() for column in schema.arrow}
        for name, column in PROVENANCE.items():
            if name in names:
                raise invalid_schema(
                    f"the topic has a column '{name}', as the table's column that says where a row comes from. Sync it"
                    " without these columns.",
                    column=name,
                )
            fields.append(column.with_name(name))
    return pa.schema(fields)


def _check_name(name: str, types: FormatTypes) -> None:
    bad = sorted(set(name) & set(types.bad_characters))
    if bad:
        raise invalid_schema(
            f"column '{name}' has {bad[0]!r} in its name, which not every reader of a {types.name} table can read. Make"
            " a topic in which it has another name.",
            column=name,
        )


def _stored_type(kind: pa.DataType, path: str, types: FormatTypes) -> pa.DataType:
    is_kind = pa.types
    if is_kind.is_list(kind):
        return pa.list_(pa.field(LIST_ITEM, _stored_type(kind.value_type, f"{path}.{LIST_ITEM}", types)))
    if is_kind.is_map(kind):
        key = _stored_type(kind.key_type, f"{path}.key", types)
        return pa.map_(key, _stored_type(kind.item_type, f"{path}.value", types))
    if is_kind.is_struct(kind) and kind.num_fields:
        for field in kind:
            _check_name(field.name, types)
        return pa.struct(
            [pa.field(field.name, _stored_type(field.type, f"{path}.{field.name}", types)) for field in kind]
        )
    stored = None if is_kind.is_struct(kind) else types.stored(kind)
    if stored is None:
        raise invalid_schema(
            f"column '{path}' is {type_text(kind)}, which a {types.name} table cannot hold. Make a topic in which it"
            " has another type, such as BIGINT or STRING.",
            column=path,
            type=type_text(kind),
        )
    return stored


def canonical_columns(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return a table's columns with the types of a topic; those that no topic has stay as they are."""
    made = []
    for field in fields:
        try:
            made.append(canonical_field(field))
        except InvalidConfigError:
            made.append(pa.field(field.name, field.type, field.nullable))
    return pa.schema(made)


def merged_columns(table: pa.Schema, wanted: pa.Schema, types: FormatTypes) -> pa.Schema:
    """Return the columns that the table must have to hold the wanted ones; the table's own if it does already.

    Raises:
        InvalidConfigError: REPLOG_TABLE_MISMATCH, naming the column, both types and the remedy.
    """
    columns = {field.name: field for field in table}
    spelling = {name.lower(): name for name in columns}
    for field in wanted:
        other = spelling.get(field.name.lower(), field.name)
        if other != field.name:
            raise _mismatch(f"the table has a column '{other}' and the topic '{field.name}'", field.name)
        old = columns.get(field.name)
        if old is None:
            columns[field.name] = field.with_nullable(True) if len(table) else field
            continue
        made = _merged_type(old.type, field.type, types)
        if made is None:
            kinds = f"{type_text(old.type)} in the table and {type_text(field.type)} in the topic"
            raise _mismatch(f"column '{field.name}' is {kinds}, and a {types.name} table cannot change it", field.name)
        columns[field.name] = old.with_type(made)
    for field in table:
        if not field.nullable and field.name not in wanted.names:
            raise _mismatch(
                f"column '{field.name}' of the table is NOT NULL, and the topic does not have it", field.name
            )
    return pa.schema(list(columns.values()))


def _mismatch(what: str, column: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_TABLE_MISMATCH,
        f"{what}. Change the column in the table, or sync into another table, which then begins with the oldest row.",
        column=column,
    )


def _merged_type(old: pa.DataType, new: pa.DataType, types: FormatTypes) -> pa.DataType | None:
    """Return the type that holds a table's old rows and the topic's rows; None: the format cannot change it so."""
    if old == new:
        return old
    is_kind = pa.types
    if is_kind.is_struct(old) and is_kind.is_struct(new):
        inner: dict[str, pa.DataType | None] = {field.name: field.type for field in old}
        for field in new:
            before = inner.get(field.name)
            inner[field.name] = field.type if before is None else _merged_type(before, field.type, types)
        if None in inner.values():
            return None
        return pa.struct([pa.field(name, kind) for name, kind in inner.items()])
    if is_kind.is_list(old) and is_kind.is_list(new):
        item = _merged_type(old.value_type, new.value_type, types)
        return None if item is None else pa.list_(pa.field(LIST_ITEM, item))
    if is_kind.is_map(old) and is_kind.is_map(new):
        item = _merged_type(old.item_type, new.item_type, types)
        return None if item is None or old.key_type != new.key_type else pa.map_(old.key_type, item)
    if widens(new, old):  # the table's is wider already: another process of a newer version did it
        return old
    return new if types.widens(old, new) else None


def fitted(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows in the table's columns; one that they do not have is null."""
    at = {name: number for number, name in enumerate(rows.schema.names)}
    arrays = [
        cast_column(rows.column(at[field.name]), field.type) if field.name in at else pa.nulls(len(rows), field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def newest_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of these rows."""
    columns = [rows.column(name) for name in key]
    names = [str(number) for number in range(len(key))]
    places = pa.table([*columns, pa.array(np.arange(len(rows)))], names=[*names, "at"])
    last = places.group_by(names).aggregate([("at", "max")])
    return rows.take(pa.array(np.sort(last.column("at_max").to_numpy())))
