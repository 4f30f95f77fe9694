"""Which DataFrames may be written, checked on the driver before any row moves.

Source of the checks for topics of bytes: Spark's Kafka connector, ``KafkaWriter``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from spark_replog.cluster.cluster import Cluster
from spark_replog.config.producer import TaskHooks
from spark_replog.errors import ErrorCode, InvalidConfigError, conflicting_options
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.schema_merge import merged_schema
from spark_replog.logs import Once
from spark_replog.spark.column_types import arrow_schema
from spark_replog.spark.options import SinkOptions, TypedInput
from spark_replog.write.typed_columns import TypedColumns

_LOG = logging.getLogger(__name__)

_WRITTEN: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "partition": ((IntegerType,), "int"),
}
"""The types of the columns that are written, in the order of Kafka's checks."""
WARNED_TYPES = Once()
_NO_SERIALIZERS = TaskHooks().key_serializer, TaskHooks().value_serializer


def check_input(schema: StructType, options: SinkOptions, rows: RowSchema | None) -> None:
    """Refuse a DataFrame that cannot be written, with the checks that tasks make of their Arrow batches.

    Args:
        rows: the columns of the topic that the option names; None: of bytes, or rows name their topics.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, REPLOG_MISSING_OPTION, REPLOG_CONFLICTING_OPTIONS: an option that
            only topics of the other kind have.
    """
    if rows is None:
        if options.typed != TypedInput():
            raise conflicting_options(
                f"timestampColumn, headersColumn and mergeSchema are for typed topics. {_target(options)} rows "
                "of bytes, with times and headers in the columns 'timestamp' and 'headers'. Leave the options out."
            )
        check_write_schema(schema, topic=options.topic)
        return
    if (options.hooks.key_serializer, options.hooks.value_serializer) != _NO_SERIALIZERS:
        raise conflicting_options(
            f"key.serializer and value.serializer make bytes of keys and values, and topic '{options.topic}' is typed. "
            "Leave them out."
        )
    if not options.hooks.interceptor_classes:  # these may change the columns: then only tasks know them
        check_typed_input(schema, options, rows)


def check_typed_input(schema: StructType, options: SinkOptions, rows: RowSchema) -> None:
    """Refuse a DataFrame whose columns do not fit a typed topic's.

    Names that differ in case only are equal here, where the session's ``spark.sql.caseSensitive`` is not known. Tasks
    know it, and refuse such names if it is true.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
    """
    timestamp_column, headers_column, _ = options.typed
    TypedColumns(
        arrow_schema(schema),
        rows,
        options.topic or "",
        is_case_sensitive=False,
        timestamp_column=timestamp_column,
        headers_column=headers_column,
    )


def add_columns(cluster: Cluster, schema: StructType, options: SinkOptions, rows: RowSchema) -> bool:
    """Let a typed topic hold the columns of a DataFrame (``commit.schema_changes``); return whether it had to change.

    Nothing changes if the DataFrame would be refused even so. Driver.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED: the principal may not alter the topic.
        RetriableError: INVALID_UPDATE_VERSION: other programs changed the columns meanwhile; repeat the write.
    """
    given, apart = arrow_schema(schema), [name for name in options.typed[:2] if name is not None]
    newer = merged_schema(rows, given, is_case_sensitive=False, leave_out=apart)
    if newer is rows:
        return False
    check_typed_input(schema, options, newer)
    from spark_replog.commit.schema_changes import merge_schema  # few writes need it

    topic, principal = options.topic or "", options.principal
    merge_schema(cluster, topic, given, principal=principal, is_case_sensitive=False, leave_out=apart)
    return True


def _target(options: SinkOptions) -> str:
    return "Without the option topic, topics have" if options.topic is None else f"Topic '{options.topic}' has"


def check_write_schema(schema: StructType, *, topic: str | None) -> None:
    """Refuse a DataFrame that cannot be written, before any row moves.

    Columns are found by exact name. Other columns are ignored, and a topic column too if the option names the topic.
    The order of the checks is Kafka's. Kafka's sink ignores every ``timestamp`` column; here it is ignored only if its
    type is not TIMESTAMP, and logged once per process.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA, or REPLOG_MISSING_OPTION if no topic is named.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name, (allowed, text) in _WRITTEN.items():
        data_type = types.get(name)
        if name == "topic" and topic is not None:
            continue
        if data_type is None and name == "topic":
            raise InvalidConfigError(
                ErrorCode.REPLOG_MISSING_OPTION,
                "topic option required when no 'topic' attribute is present. Use option('topic', ...).",
            )
        if data_type is None and name == "value":
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                "Required attribute 'value' not found. Select a string or binary column as value.",
                columns=",".join(types),
            )
        is_right = isinstance(data_type, allowed) and (not isinstance(data_type, ArrayType) or _are_headers(data_type))
        if data_type is not None and not is_right:
            raise InvalidConfigError(
                ErrorCode.REPLOG_INVALID_SCHEMA,
                f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) {text}. "
                f"Cast the column '{name}'.",
            )
    if not isinstance(types.get("timestamp", TimestampType()), TimestampType):
        given = types["timestamp"].simpleString()  # the same rule on Arrow types is ``write.columns.is_time``
        if WARNED_TYPES.is_first(given):
            _LOG.warning(
                "the column 'timestamp' has type %s and is ignored, as by Kafka's sink: the rows get the time of the "
                "write. Cast it to TIMESTAMP to keep its times, or drop it.",
                given,
            )


def _are_headers(given: ArrayType) -> bool:
    if not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
