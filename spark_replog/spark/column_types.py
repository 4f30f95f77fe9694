"""Spark's types from and to Arrow's, for the types that a typed topic can hold. Needs neither a JVM nor a session.

Pyspark has such functions, but their parameters differ between Spark 4.0 and 4.3.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_replog.log.ddl import LIST_ITEM, SUPPORTED, invalid_schema

_PAIRS: tuple[tuple[type[DataType], pa.DataType], ...] = (
    (BooleanType, pa.bool_()),
    (ByteType, pa.int8()),
    (ShortType, pa.int16()),
    (IntegerType, pa.int32()),
    (LongType, pa.int64()),
    (FloatType, pa.float32()),
    (DoubleType, pa.float64()),
    (StringType, pa.string()),
    (BinaryType, pa.binary()),
    (DateType, pa.date32()),
    (TimestampType, pa.timestamp("us", tz="UTC")),
    (TimestampNTZType, pa.timestamp("us")),
    (DayTimeIntervalType, pa.duration("us")),
    (NullType, pa.null()),
)
_ARROW = dict(_PAIRS)
_SPARK = {arrow: spark for spark, arrow in _PAIRS}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a DataFrame's columns as a task gets them, apart from the time zone and large layouts.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: a typed topic has no such type, as INTERVAL MONTH and VARIANT.
    """
    return pa.schema([_arrow_field(field, field.name) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, path), field.nullable)


def _arrow_type(kind: DataType, path: str) -> pa.DataType:
    plain = _ARROW.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        element = _arrow_type(kind.elementType, f"{path}.{LIST_ITEM}")
        return pa.list_(pa.field(LIST_ITEM, element, kind.containsNull))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.keyType, f"{path}.key"), _arrow_type(kind.valueType, f"{path}.value"))
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field, f"{path}.{field.name}") for field in kind.fields])
    raise invalid_schema(
        f"column '{path}' is {kind.simpleString()}, which a typed topic cannot hold. Cast it to one of: {SUPPORTED}.",
        column=path,
        type=kind.simpleString(),
    )


def spark_type(kind: pa.DataType) -> DataType:
    """Return the Spark type of a canonical Arrow type (`log.ddl.canonical_field`); nested fields are nullable."""
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_struct(kind):
        return StructType([StructField(field.name, spark_type(field.type)) for field in kind])
    return _SPARK[kind]()
