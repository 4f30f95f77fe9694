"""The schema of a typed topic's rows: columns, key columns, version. Pure.

A topic has the versions 1 to N of its schema. Each stored object names the version that its rows have, and rows of an
older version read as the newest one: a column that it lacks is null, a narrower number is widened. So a version may
only add nullable columns, widen numbers, and drop NOT NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import pyarrow as pa

from spark_replog.errors import InvalidConfigError
from spark_replog.log.codec.data_object import LOG_PREFIX
from spark_replog.log.column_cast import cast_column, widens
from spark_replog.log.ddl import canonical_field, check_names, columns_text, invalid_schema, parse_columns, type_text
from spark_replog.log.row_key import is_keyable
from spark_replog.wire import TEXT, Kind, Reader, Writer, list_of, optional

_KEY = list_of(TEXT)


@dataclass(frozen=True)
class RowSchema:
    """One version of the columns of a topic. A value: hashable, and small when pickled.

    Args:
        ddl: the columns as Spark's DDL; becomes the canonical text.
        key: names of the key columns, in the order in which their bytes are hashed; () without a key. They are NOT
            NULL, as in a primary key, and keep their types in all versions.
        version: from 1.

    Attributes:
        arrow: the columns as Arrow fields, without metadata: what rows are stored as.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, naming the column and the remedy.
    """

    ddl: str
    key: tuple[str, ...] = ()
    version: int = 1
    arrow: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = list(parse_columns(self.ddl))
        _check_columns(fields)
        fields = _with_key(fields, self.key)
        object.__setattr__(self, "key", tuple(self.key))
        object.__setattr__(self, "arrow", pa.schema(fields))
        object.__setattr__(self, "ddl", columns_text(fields))

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, ...], int]]:
        return type(self), (self.ddl, self.key, self.version)

    @classmethod
    def of(cls, schema: pa.Schema | str | RowSchema, key: Iterable[str] = ()) -> RowSchema:
        """Return version 1 of a topic's schema from Arrow columns, or from DDL text.

        Types become those that Spark has: large and view layouts, dictionaries and units of time other than the
        microsecond are left out, and nested fields become nullable. Metadata are dropped.
        """
        if isinstance(key, str):
            key = (key,)
        if isinstance(schema, RowSchema):
            return cls(schema.ddl, tuple(key) or schema.key)
        if isinstance(schema, str):
            return cls(schema, tuple(key))
        if not isinstance(schema, pa.Schema):
            raise invalid_schema(
                f"a schema is a pyarrow.Schema or DDL text such as 'id BIGINT NOT NULL', not {type(schema).__name__}."
                " Convert it."
            )
        _check_columns(list(schema))
        return cls(columns_text(canonical_field(column) for column in schema), tuple(key))

    @property
    def struct(self) -> pa.DataType:
        """Return the type of a whole row."""
        return _struct_of(self.arrow)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, in order."""
        return list(self.arrow.names)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the NOT NULL columns."""
        return tuple(column.name for column in self.arrow if not column.nullable)

    def raised(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return stored rows of this version or an older one as rows of this one, with the log's own columns."""
        names = rows.schema.names
        logs = [number for number, name in enumerate(names) if name.startswith(LOG_PREFIX)]
        columns = [
            cast_column(rows.column(names.index(column.name)), column.type)
            if column.name in names
            else pa.nulls(len(rows), column.type)
            for column in self.arrow
        ]
        columns += [rows.column(number) for number in logs]
        fields = [*self.arrow, *(rows.schema.field(number) for number in logs)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def evolve(self, newer: RowSchema) -> RowSchema:
        """Return the next version with the columns of another schema, which must be able to hold all older rows.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA: a column was dropped, renamed, narrowed or made NOT NULL, a new
                one is NOT NULL, or the key differs.
        """
        if newer.key != self.key:
            raise invalid_schema(
                f"the key columns are {key_words(self.key)}, and would become {key_words(newer.key)}: a key's rows"
                " would go to another partition. Keep them, or make another topic."
            )
        columns = {column.name: column for column in newer.arrow}
        for old in self.arrow:
            new = columns.pop(old.name, None)
            if new is None:
                raise invalid_schema(
                    f"column '{old.name}' {type_text(old.type)} is missing: older rows have it. Keep it, and leave it"
                    " null in new rows; to rename, add a column.",
                    column=old.name,
                )
            self._check_change(old, new)
        for new in columns.values():
            if not new.nullable:
                raise invalid_schema(
                    f"the new column '{new.name}' is NOT NULL, and older rows have no value for it. Leave NOT NULL"
                    " out.",
                    column=new.name,
                )
        return replace(newer, version=self.version + 1)

    def _check_change(self, old: pa.Field, new: pa.Field) -> None:
        if old.nullable and not new.nullable:
            raise invalid_schema(
                f"column '{old.name}' becomes NOT NULL, and older rows may be null. Leave NOT NULL out.",
                column=old.name,
            )
        is_key = old.name in self.key
        if new.type != old.type and (is_key or not widens(old.type, new.type)):
            why = "a key column keeps its type" if is_key else "older rows may not fit"
            raise invalid_schema(
                f"column '{old.name}' changes from {type_text(old.type)} to {type_text(new.type)}: {why}. Keep the"
                " type, widen it, or add another column.",
                column=old.name,
                old=type_text(old.type),
                new=type_text(new.type),
            )


@lru_cache(maxsize=256)
def _struct_of(schema: pa.Schema) -> pa.DataType:
    return pa.struct(list(schema))


def key_words(key: Sequence[str]) -> str:
    """Return the names of key columns for a message."""
    return ", ".join(f"'{name}'" for name in key) or "none"


def _check_columns(fields: Sequence[pa.Field]) -> None:
    check_names([column.name for column in fields], "the schema")
    if not fields:
        raise invalid_schema("the schema has no column. Name one.")
    for column in fields:
        if column.name.lower().startswith(LOG_PREFIX):
            raise invalid_schema(
                f"column '{column.name}' begins with {LOG_PREFIX}, as the log's own columns do. Rename it.",
                column=column.name,
            )


def _with_key(fields: list[pa.Field], key: Sequence[str]) -> list[pa.Field]:
    """Return the columns with NOT NULL key columns."""
    by_name = {column.name: column for column in fields}
    if len(set(key)) != len(key):
        raise invalid_schema(f"the key {key_words(key)} names a column twice. Name it once.")
    for name in key:
        if name not in by_name:
            near = next((other for other in by_name if other.lower() == str(name).lower()), "")
            hint = f"Did you mean '{near}'? " if near else ""
            raise invalid_schema(
                f"the key column '{name}' is not in the schema. {hint}Its columns are {', '.join(by_name)}. Name one.",
                column=name,
            )
        if not is_keyable(by_name[name].type):
            raise invalid_schema(
                f"the key column '{name}' is {type_text(by_name[name].type)}, which has no exact bytes to hash. Use"
                " columns of numbers without fraction, DECIMAL, STRING, BINARY, BOOLEAN, dates or times.",
                column=name,
            )
    return [column.with_nullable(column.nullable and column.name not in key) for column in fields]


def _write(writer: Writer, schema: RowSchema) -> None:
    writer.text(schema.ddl)
    _KEY.write(writer, schema.key)


def _read(reader: Reader) -> RowSchema:
    ddl, key = reader.text(), _KEY.read(reader)
    try:
        schema = RowSchema(ddl, key)
    except InvalidConfigError as error:
        raise reader.damaged(str(error.args[0])) from error
    if schema.ddl != ddl:
        raise reader.damaged("the text of a schema is not canonical")
    return schema


ROW_SCHEMA = Kind(_write, _read)
"""A schema in binary formats: its DDL as text, then the names of the key columns. Its version is its place in a list,
or 1."""
OPTIONAL_ROW_SCHEMA = optional(ROW_SCHEMA)


def _write_versions(writer: Writer, schemas: Sequence[RowSchema]) -> None:
    writer.uint(len(schemas))
    for schema in schemas:
        _write(writer, schema)


def _read_versions(reader: Reader) -> tuple[RowSchema, ...]:
    return tuple([replace(_read(reader), version=number + 1) for number in range(reader.count())])


ROW_SCHEMA_VERSIONS = Kind(_write_versions, _read_versions)
"""The versions 1 to N of a topic's schema, in order; none: its rows are bytes."""
