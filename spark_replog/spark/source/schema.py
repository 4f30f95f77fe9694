"""The schema that is read, and the columns that may be written.

Source: Spark's Kafka connector, ``KafkaRecordToRowConverter`` and ``KafkaWriter``.
"""

from __future__ import annotations

import logging

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.once import Once

_LOG = logging.getLogger(__name__)
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_HEADERS_TEXT = "array<struct<key:string,value:binary>>"
_warned_types = Once()


def read_schema(*, include_headers: bool) -> StructType:
    """Return the fixed schema of a read; every field is nullable."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", _HEADERS))
    return StructType(fields)


def check_read_schema(schema: StructType, *, include_headers: bool) -> None:
    """Refuse a schema that the user gave and that is not the fixed one.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
    """
    expected = read_schema(include_headers=include_headers)
    if schema.simpleString() != expected.simpleString():
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            "replog has a fixed schema. Remove schema(...) and cast the columns in a select.",
            given=schema.simpleString(),
            expected=expected.simpleString(),
        )


def check_write_schema(schema: StructType, *, topic: str | None) -> None:
    """Refuse a DataFrame that cannot be written, before any row moves.

    Columns are found by exact name; those with other names are ignored, and so is a topic column where
    the option names the topic. Checked in Kafka's order, so that of several mistakes the same one is told.
    Kafka's sink ignores every ``timestamp`` column: one that is no TIMESTAMP is ignored here too, and named once
    a process in the log.

    Args:
        schema: of the DataFrame.
        topic: the ``topic`` option, which wins over a column.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, or REPLOG_MISSING_OPTION where no topic is named.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if topic is None:
        if "topic" not in types:
            raise InvalidConfigError(
                ErrorCode.REPLOG_MISSING_OPTION,
                "topic option required when no 'topic' attribute is present. Use option('topic', ...).",
            )
        _check(types, "topic", (StringType,), "string")
    _check(types, "key", (StringType, BinaryType), "string or binary")
    if "value" not in types:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            "Required attribute 'value' not found. Select a string or binary column as value.",
            columns=",".join(types),
        )
    _check(types, "value", (StringType, BinaryType), "string or binary")
    if "headers" in types and not _are_headers(types["headers"]):
        raise _wrong_type("headers", types["headers"], _HEADERS_TEXT)
    _check(types, "partition", (IntegerType,), "int")
    _warn_of_other_times(types.get("timestamp"))


def _check(types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], allowed_text: str) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise _wrong_type(name, types[name], allowed_text)


def _warn_of_other_times(given: DataType | None) -> None:
    """Say which ``timestamp`` column is ignored; in Arrow's terms the rule is ``producer.columns.is_time``."""
    if given is None or isinstance(given, TimestampType) or not _warned_types.is_first(given.simpleString()):
        return
    _LOG.warning(
        "the column 'timestamp' is %s and is ignored, as Kafka's sink does: the rows have the time of the write. "
        "Cast it to TIMESTAMP to write that time, or drop it.",
        given.simpleString(),
    )


def _are_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _wrong_type(name: str, given: DataType, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(
        ErrorCode.REPLOG_INVALID_SCHEMA,
        f"{name} attribute unsupported type {given.simpleString()}. {name} must be a(n) {allowed}. "
        f"Cast the column '{name}'.",
    )
