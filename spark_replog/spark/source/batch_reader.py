"""``spark.read``: a snapshot of the log, resolved once; and the filters that Spark passes to such a read.

Spark plans a batch read once per DataFrame and uses the plan for every action on it, so all actions see the same
offsets. (Kafka's connector resolves ``latest`` again in each task.)

Push-down needs Spark 4.1, its conf ``spark.sql.python.filterPushdown.enabled``, and the option ``pushDownFilters``:
Spark (up to 4.3) keeps ONE plan per ``load()``, so the plan of a filtered query also serves the next query on the same
DataFrame or view, and both sides of a union. With the option the user states that there is only one query. Spark
applies all filters to the rows as well; a section is skipped only if none of its rows can match. Filters on metadata
are judged here, by what the ledger has of a section; those on a typed topic's columns by the tasks, by the statistics
that its object has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_replog.cluster.cluster import Cluster
from spark_replog.read.column_filter import ColumnFilter, Comparison, bound_value
from spark_replog.read.rows import RowView
from spark_replog.spark.compat import freeze_garbage
from spark_replog.spark.messages import ReadPartition
from spark_replog.spark.options import SourceOptions
from spark_replog.spark.row_form import METADATA
from spark_replog.spark.source.discovery import LossPolicy, check_ranges
from spark_replog.spark.source.positions import check_resolved
from spark_replog.spark.source.sizing import OffsetRange
from spark_replog.spark.source.topics import LogView, offsets_for_times_of, plan_partitions, view_topics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

FILTERED_COLUMNS = frozenset({"topic", "partition", "offset", "timestamp"})
"""Columns whose values, or bounds, are known without reading rows. Never null."""
RUNS_MAX = 8
"""Maximum number of ranges that one partition is cut into; beyond it, the smallest gaps are read too."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL_DIGITS = 28
"""The precision of Python's default context."""
_TESTS = {
    "EqualTo": Comparison.IN,
    "EqualNullSafe": Comparison.IN,
    "In": Comparison.IN,
    "GreaterThan": Comparison.ABOVE,
    "GreaterThanOrEqual": Comparison.AT_LEAST,
    "LessThan": Comparison.BELOW,
    "LessThanOrEqual": Comparison.AT_MOST,
    "StringStartsWith": Comparison.STARTS_WITH,
    "StringEndsWith": Comparison.ENDS_WITH,
    "StringContains": Comparison.CONTAINS,
    "IsNull": Comparison.IS_NULL,
    "IsNotNull": Comparison.IS_NOT_NULL,
}


class BatchReader(DataSourceReader):
    """Planned in Spark's planner process, pickled, then read in executors."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema
        """Of the DataFrame; None: what the topics have now."""

    def partitions(self) -> list[InputPartition]:
        """Resolve both ends and return the tasks.

        Raises:
            ReplogError: REPLOG_INVALID_OPTION, REPLOG_DATA_LOSS, UNKNOWN_TOPIC_OR_PARTITION.
        """
        freeze_garbage()
        options = self._options
        cluster = options.store.cluster()
        view = view_topics(cluster, options.subscription, principal=options.principal).require_all()
        views = options.form.views(self._schema, view.schemas)
        lookup, now_ms = offsets_for_times_of(cluster, view), cluster.clock.now_ms()
        starts = options.starting.resolve(view.bounds, lookup, now_ms)
        ends = options.ending.resolve(view.bounds, lookup, now_ms)
        check_resolved(starts, ends)
        ranges = [OffsetRange(key, starts[key], ends[key]) for key in sorted(starts)]
        ranges = check_ranges(ranges, view, LossPolicy(fail=options.fail_on_data_loss))
        ranges = self.narrow(cluster, view, ranges)
        filters = self.column_filters(views)
        return list(plan_partitions(cluster, view, ranges, options, views, range_count=len(starts), filters=filters))

    def narrow(self, cluster: Cluster, view: LogView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges to read: all, since no filter is pushed down."""
        return list(ranges)

    def column_filters(self, views: Mapping[str, RowView]) -> tuple[ColumnFilter, ...]:
        """Return the filters on columns of typed topics, by which tasks leave sections out."""
        return ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows. Executor."""
        if not isinstance(partition, ReadPartition):
            return iter(())  # Spark's placeholder for a read without partitions
        from spark_replog.spark.source.reading import read_partition

        return read_partition(partition, self._options)


class FilteringBatchReader(BatchReader):
    """A batch reader that skips sections which the query's filters exclude.

    A separate class, because Spark refuses a class that has ``pushFilters`` while its conf is off.
    """

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        super().__init__(options, schema)
        self._pushed: list[Any] = []
        self._filters: dict[str, list[Any]] = {column: [] for column in FILTERED_COLUMNS}
        self._metadata_filters: dict[str, list[Any]] = {column: [] for column in FILTERED_COLUMNS}
        """On fields of ``_metadata``, where rows have columns of their own."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters; return all of them, so that Spark applies them too. Planner process."""
        self._pushed += filters
        for item in filters:
            self._filters.get(filter_column(item), []).append(item)
            self._metadata_filters.get(filter_column(item, METADATA), []).append(item)
        return filters

    def narrow(self, cluster: Cluster, view: LogView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that may match."""
        form = self._options.form
        has_own_columns = any(view.schemas.values()) and not form.is_kafka  # a column 'offset' is one of them
        if has_own_columns or form.decoding is not None:
            no_filters: dict[str, list[Any]] = {name: [] for name in FILTERED_COLUMNS}
            self._filters = self._metadata_filters if form.include_metadata else no_filters
        result: list[OffsetRange] = []
        for item in ranges:
            result += self._narrow_one(cluster, view, item)
        return result

    def column_filters(self, views: Mapping[str, RowView]) -> tuple[ColumnFilter, ...]:
        """Return the filters that statistics can judge."""
        if not views or self._options.form.is_kafka:
            return ()
        kinds = {column.name: column.type for column in next(iter(views.values())).fields}  # the same of all topics
        made = []
        for item in self._pushed:
            name = filter_column(item)
            if name in kinds:
                values = [None if _is_rounded(value) else bound_value(value, kinds[name]) for value in _literals(item)]
                made.append(_filter_of(item, name, values))
        return tuple([item for item in made if item is not None])

    def _narrow_one(self, cluster: Cluster, view: LogView, item: OffsetRange) -> list[OffsetRange]:
        key = item.topic_partition
        if not self._may_hold("topic", key.topic, key.topic):
            return []
        if not self._may_hold("partition", key.partition, key.partition):
            return []
        start, end = item.start, item.end
        for offset_filter in self._filters["offset"]:
            low, high = offset_bounds(offset_filter)
            start, end = max(start, low), min(end, high)
        if start >= end:
            return []
        if not self._filters["offset"] and not self._filters["timestamp"]:
            return [item]
        handle = view.handles[key.topic]
        ledger = cluster.topic_ledger(handle.ledger_id)
        sections = ledger.ask(lambda state: state.sections(handle.topic_id, key.partition, start, end))
        runs: list[tuple[int, int]] = []
        for section in sections:
            # Rows keep microseconds, the ledger milliseconds rounded outwards (ADR 2).
            times_us = section.min_timestamp_ms * 1000, section.max_timestamp_ms * 1000
            offsets = section.base_offset, section.end_offset - 1
            if self._may_hold("offset", *offsets) and self._may_hold("timestamp", *times_us):
                runs.append((max(start, section.base_offset), min(end, section.end_offset)))
        return [OffsetRange(key, first, last) for first, last in join_runs(runs, RUNS_MAX)]

    def _may_hold(self, column: str, low: Any, high: Any) -> bool:
        return all(may_hold(item, low, high) for item in self._filters[column])


def filter_column(item: Any, *struct: str) -> str:
    """Return the column of a filter, at the top level or in a struct; "" if it has none there."""
    attribute: tuple[str, ...] = getattr(getattr(item, "child", item), "attribute", ())
    return attribute[-1] if tuple(attribute[:-1]) == struct and attribute else ""


def may_hold(item: Any, low: Any, high: Any) -> bool:
    """Return whether a value in [low, high] can satisfy the filter; True if unknown.

    Exact if ``low == high``, for every known filter.
    """
    made = _filter_of(item, filter_column(item), _values(getattr(item, "child", item)))
    return made is None or made.may_hold(low, high)


def _filter_of(item: Any, column: str, values: Sequence[Any] | None) -> ColumnFilter | None:
    """Return a filter of Spark's with its values in the types of the bounds; None: it is not understood."""
    inner = getattr(item, "child", item)
    test = _TESTS.get(type(inner).__name__)
    if test in (Comparison.IS_NULL, Comparison.IS_NOT_NULL):
        values = ()
    if test is None or values is None or None in values:
        return None
    return ColumnFilter(column, test, tuple(values), is_negated=inner is not item)


def _literals(item: Any) -> list[Any]:
    """Return the values of a filter as Spark gives them."""
    inner = getattr(item, "child", item)
    if not hasattr(inner, "value"):
        return []
    return list(inner.value) if type(inner).__name__ == "In" else [inner.value]


def _is_rounded(value: Any) -> bool:
    """Return whether a literal may not be the query's: Spark (4.3) rounds decimals to 28 digits on the way here."""
    return isinstance(value, Decimal) and len(value.as_tuple().digits) >= _DECIMAL_DIGITS


def offset_bounds(item: Any) -> tuple[int, int]:
    """Return [start, end) of the offsets that can satisfy a filter on ``offset``."""
    kind, values = type(item).__name__, _values(item)
    widest = (0, 2**63 - 1)
    if not values:
        return widest
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        return math.ceil(min(values)), math.floor(max(values)) + 1
    bounds = {
        "GreaterThan": (math.floor(values[0]) + 1, widest[1]),
        "GreaterThanOrEqual": (math.ceil(values[0]), widest[1]),
        "LessThan": (0, math.ceil(values[0])),
        "LessThanOrEqual": (0, math.floor(values[0]) + 1),
    }
    return bounds.get(kind, widest)


def join_runs(runs: Sequence[tuple[int, int]], count_max: int) -> list[tuple[int, int]]:
    """Return [start, end) runs with touching ones joined, and the smallest gaps closed down to ``count_max``."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    while len(joined) > count_max:
        at = min(range(1, len(joined)), key=lambda index: joined[index][0] - joined[index - 1][1])
        joined[at - 1 : at + 1] = [(joined[at - 1][0], joined[at][1])]
    return joined


def _values(item: Any) -> list[Any] | None:
    """Return the literals of a filter on metadata in the types of its bounds, None if that is impossible."""
    result = []
    for value in _literals(item):
        if isinstance(value, datetime):
            if value.tzinfo is None:
                return None
            value = (value - _EPOCH) // timedelta(microseconds=1)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        result.append(value)
    kinds = {isinstance(value, str) for value in result}
    return result if len(kinds) == 1 else None
