"""Values of topics of bytes, to columns: what is no row of them is bad, with the reason. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.log.json_columns import JsonColumns
from spark_replog.log.row_schema import RowSchema

FORMATS = ("json",)
CONFLUENT_BYTES = 5
"""Confluent's serializers begin a value with a zero byte and the number of its schema in a registry, big-endian."""


class ValueDecoder:
    """Decodes values into columns. Nothing is guessed, and no value is changed to fit.

    A null value is a row of nulls, or a bad one if a column is NOT NULL. Fields that are no column are left out. What
    becomes of a value depends on it alone.

    Args:
        value_format: ``json``.
        columns: the columns; a schema of Arrow becomes one of a typed topic (`RowSchema.of`).

    Attributes:
        schema: of the decoded rows: the columns, nullable.
    """

    def __init__(self, value_format: str, columns: RowSchema | pa.Schema) -> None:
        rows = columns if isinstance(columns, RowSchema) else RowSchema.of(columns)
        self._reader = JsonColumns(rows.arrow)
        self.schema = self._reader.schema

    def decode(self, values: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        """Return N values as columns, and why a row is bad: text that names the column, null where it is good.

        All columns of a bad row are null.

        Args:
            values: binary.
        """
        return self._reader.read(_without_prefix(values))


def _without_prefix(values: pa.Array) -> pa.Array:
    """Return JSON without Confluent's prefix: no JSON begins with a zero byte."""
    has_prefix = pc.starts_with(values, b"\x00")
    if not pc.any(has_prefix).as_py():
        return values
    return pc.if_else(has_prefix, pc.binary_slice(values, CONFLUENT_BYTES), values)
