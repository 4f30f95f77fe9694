"""Filters of a read on one column, and whether values within bounds, or rows with statistics, can satisfy them. Pure.

Every answer is True where that is not known: whoever reads applies the filter to the rows as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from spark_replog.log.codec.section_statistics import ColumnStatistics, Statistics, Value
from spark_replog.log.row_schema import RowSchema

_EPOCH = datetime(1970, 1, 1)
_ALL_NULL = ColumnStatistics(1, 1, None, None)
"""Of a column that a section's version does not have."""


class Comparison(StrEnum):
    """What a filter asks of a value."""

    IN = "in"
    """Equal to one of them; of one value: equality."""
    ABOVE = ">"
    AT_LEAST = ">="
    BELOW = "<"
    AT_MOST = "<="
    STARTS_WITH = "starts with"
    ENDS_WITH = "ends with"
    CONTAINS = "contains"
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"


class ColumnFilter(NamedTuple):
    """A condition on one column. Pickles; the values are of one type, that of the bounds."""

    column: str
    comparison: Comparison
    values: tuple[Any, ...] = ()
    is_negated: bool = False

    def may_hold(self, low: Any, high: Any) -> bool:
        """Return whether a value in [low, high] can satisfy it. Exact if ``low == high``."""
        if self.is_negated:
            return bool(low != high) or not self._holds(low, high)
        return self._holds(low, high)

    def _holds(self, low: Any, high: Any) -> bool:
        comparison = self.comparison
        if comparison is Comparison.IN:
            return any(low <= value <= high for value in self.values)
        if comparison in (Comparison.IS_NULL, Comparison.IS_NOT_NULL):
            return comparison is Comparison.IS_NOT_NULL
        (value,) = self.values
        if comparison in (Comparison.ENDS_WITH, Comparison.CONTAINS):
            return bool(low != high) or (low.endswith(value) if comparison is Comparison.ENDS_WITH else value in low)
        if comparison is Comparison.STARTS_WITH:
            return bool(high >= value and low[: len(value)] <= value)
        answers = {
            Comparison.ABOVE: high > value,
            Comparison.AT_LEAST: high >= value,
            Comparison.BELOW: low < value,
            Comparison.AT_MOST: low <= value,
        }
        return bool(answers[comparison])

    def may_match(self, column: ColumnStatistics) -> bool:
        """Return whether a row of a section with these statistics can satisfy it."""
        if self.is_negated:
            return True
        if self.comparison is Comparison.IS_NULL:
            return column.null_count > 0
        if column.is_all_null:
            return False
        if self.comparison is Comparison.IS_NOT_NULL or column.low is None:
            return True
        if column.high is None:  # only bytes have one bound alone
            return self.comparison not in (Comparison.BELOW, Comparison.AT_MOST) or self._holds(column.low, column.low)
        return self._holds(column.low, column.high)


def may_match(filters: Sequence[ColumnFilter], schema: RowSchema, statistics: Statistics | None) -> bool:
    """Return whether a row of a section can satisfy all of the filters.

    Args:
        schema: the version of the section's rows: columns that it lacks are null in all of them.
        statistics: None: unknown.
    """
    stored = set(schema.names)
    for item in filters:
        column = None if statistics is None else statistics.get(item.column)
        if item.column not in stored:
            column = _ALL_NULL
        if column is not None and not item.may_match(column):
            return False
    return True


def bound_value(value: Any, kind: pa.DataType) -> Value | None:
    """Return a literal as the bounds of a column have it; None: they are not compared with it."""
    types = pa.types
    if types.is_boolean(kind):
        return int(value) if isinstance(value, bool) else None
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return value if is_number and not math.isnan(value) else None
    if types.is_string(kind):
        return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
    if types.is_binary(kind):
        return bytes(value) if isinstance(value, bytes | bytearray) else None
    if types.is_timestamp(kind) and isinstance(value, datetime) and (value.tzinfo is None) == (kind.tz is None):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - _EPOCH) // timedelta(microseconds=1)
    if types.is_date32(kind) and isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH.date()).days
    return None
