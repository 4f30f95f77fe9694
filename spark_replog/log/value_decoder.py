"""Values of topics of bytes, to columns: one that does not fit them is bad, with the reason. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.avro_columns import CONFLUENT_BYTES, AvroColumns, Registry
from spark_replog.log.json_columns import JsonColumns
from spark_replog.log.row_schema import RowSchema


class ValueDecoder:
    """Decodes values into columns. Nothing is guessed, and no value is changed to fit.

    A null value is a row of nulls, or a bad one if a column is NOT NULL. Fields that are not columns are left out. What
    becomes of a value depends on it alone.

    Args:
        value_format: ``json``, whose values may begin with Confluent's prefix, or ``avro``.
        columns: the columns; a schema of Arrow becomes one of a typed topic (`RowSchema.of`).
        avro: of ``avro``, and as of `AvroColumns`: the schema of the values, or the reader's with a registry.
        registry: of ``avro``: finds the schema of each value by the number in Confluent's prefix.

    Attributes:
        schema: of the decoded rows: the columns, nullable.

    Raises:
        ReplogError: REPLOG_INVALID_SCHEMA: a schema does not parse; REPLOG_ENVIRONMENT: fastavro is not installed.
    """

    def __init__(
        self, value_format: str, columns: RowSchema | pa.Schema, *, avro: str = "", registry: Registry | None = None
    ) -> None:
        rows = columns if isinstance(columns, RowSchema) else RowSchema.of(columns)
        self._is_json = value_format == "json"
        self._reader = (
            JsonColumns(rows.arrow) if self._is_json else AvroColumns(rows.arrow, avro=avro, registry=registry)
        )
        self.schema = self._reader.schema

    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        """Return N values as columns, and why a row is bad: text that names the column, null where it is good.

        All columns of a bad row are null.

        Args:
            values: binary.

        Raises:
            ReplogError: the registry does not answer.
        """
        return self._reader.read(_without_prefix(values) if self._is_json else values)


def _without_prefix(values: pa.Array) -> pa.Array:
    """Return JSON without Confluent's prefix: no JSON begins with a zero byte."""
    has_prefix = pc.starts_with(values, b"\x00")
    if not pc.any(has_prefix).as_py():
        return values
    return pc.if_else(has_prefix, pc.binary_replace_slice(values, 0, CONFLUENT_BYTES, b""), values)
