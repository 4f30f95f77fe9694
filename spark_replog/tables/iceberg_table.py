"""An Iceberg table, written by pyiceberg: the offsets of all partitions are in the summary of each snapshot.

pyiceberg repeats a commit that another writer overtook, and would then append the same rows twice. Its table property
``commit.retry.num-retries=0`` ends that, so the sync sees the other's snapshot first. Offsets go with the snapshot: a
table that is rolled back is filled again from there. Snapshots of other writers have none; the newest one before them
counts.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.upsert_util import create_match_filter

from spark_replog.errors import invalid_option
from spark_replog.ids import TopicId
from spark_replog.tables.synced_table import RECORD_PROPERTY, Commit, LoadedTable, SyncedTable, SyncRecord
from spark_replog.tables.table_columns import FormatTypes, canonical_columns

OFFSETS_PROPERTY = "replog.offsets"
"""Of a snapshot's summary: topic id, and the next offset of each partition, as JSON."""
RETRIES_PROPERTY = "commit.retry.num-retries"
FILE_BYTES_PROPERTY = "write.target-file-size-bytes"
UPSERT_ROWS_MAX, UPSERT_ROWS_MAX_SEVERAL = 20_000, 1_000
"""Rows of an upsert, by one key column or by several: their keys are one expression, which pyiceberg rewrites term by
term."""


def _stored(kind: pa.DataType) -> pa.DataType | None:
    if kind in (pa.int8(), pa.int16()):
        return pa.int32()
    return None if pa.types.is_duration(kind) else kind


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


ICEBERG = FormatTypes("Iceberg", _stored, _widens)
"""pyiceberg also lets a decimal's scale grow, and then reads older rows as other numbers."""


class IcebergTable(SyncedTable):
    """An Iceberg table.

    Args:
        name: ``CATALOG.NAMESPACE.TABLE``; a namespace may have several parts.
        options: of the catalog, over those of ``.pyiceberg.yaml`` and the environment.
        file_bytes: target size of a file, of a table that is made; None: what the table says.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION: the name has too few parts.
    """

    types = ICEBERG
    overtaken = CommitFailedException

    def __init__(self, name: str, options: Mapping[str, str], file_bytes: int | None) -> None:
        super().__init__(name)
        catalog, *identifier = name.split(".")
        if len(identifier) < 2 or not all(identifier) or not catalog:
            raise invalid_option(f"Invalid Iceberg table '{name}'. Give CATALOG.NAMESPACE.TABLE.")
        self._catalog_name, self._identifier = catalog, tuple(identifier)
        self._options, self._file_bytes = dict(options), file_bytes
        self._catalog: Catalog | None = None
        self._table: Table

    def rows_max(self, key: Sequence[str]) -> int:
        """Return how many rows pyiceberg can look for in reasonable time."""
        if not key:
            return super().rows_max(key)
        return UPSERT_ROWS_MAX if len(key) == 1 else UPSERT_ROWS_MAX_SEVERAL

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._options)
        return self._catalog

    def load(self) -> LoadedTable | None:
        """Load the newest version; it must not repeat commits."""
        with self._loading():
            try:
                self._table = self._opened().load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            columns = canonical_columns(self._table.schema().as_arrow())
            text = self._table.properties.get(RECORD_PROPERTY)
            if text and self._table.properties.get(RETRIES_PROPERTY) != "0":
                with self._table.transaction() as transaction:
                    transaction.set_properties({RETRIES_PROPERTY: "0"})
        return LoadedTable(columns, SyncRecord.of(text, self.name) if text else None)

    def positions(self, topic_id: TopicId, partition_count: int) -> dict[int, int]:
        """Return the offsets of the newest snapshot that has any."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            text = "" if snapshot.summary is None else snapshot.summary.get(OFFSETS_PROPERTY)
            values = json.loads(text) if text else {}
            if values.get("topic_id") == topic_id:
                return {int(number): offset for number, offset in values["offsets"].items()}
            parent_id = snapshot.parent_snapshot_id
            snapshot = None if parent_id is None else self._table.snapshot_by_id(parent_id)
            if snapshot is None and parent_id is not None:
                raise self._lost()  # it was expired
        if self.has_rows():
            raise self._lost()
        return {}

    def has_rows(self) -> bool:
        """Return whether it has a snapshot with a file."""
        snapshot = self._table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return snapshot is not None
        return bool(snapshot.summary.get("total-data-files") != "0")

    def create(self, columns: pa.Schema, record: SyncRecord) -> None:
        """Make the table, and its namespace."""
        properties = {RECORD_PROPERTY: record.text, RETRIES_PROPERTY: "0"}
        if self._file_bytes is not None:
            properties[FILE_BYTES_PROPERTY] = str(self._file_bytes)
        with self._loading():
            self._opened().create_namespace_if_not_exists(self._identifier[:-1])
            try:
                self._opened().create_table(self._identifier, columns, properties=properties)
            except TableAlreadyExistsError:
                return

    def adopt(self, record: SyncRecord) -> None:
        """Set the properties, with a snapshot without rows: of two that adopt it, the second one is refused."""
        with self._committing(), self._table.transaction() as transaction:
            transaction.set_properties({RECORD_PROPERTY: record.text, RETRIES_PROPERTY: "0"})
            none = self._table.schema().as_arrow().empty_table()
            transaction.append(none, snapshot_properties=_summary(record.topic_id, {}))

    def commit(self, change: Commit) -> None:
        """Append, or replace the rows of the keys, in one transaction with new columns."""
        summary = _summary(change.topic_id, change.positions)
        with self._committing(), self._table.transaction() as transaction:
            if change.columns != canonical_columns(self._table.schema().as_arrow()):
                with transaction.update_schema() as update:
                    update.union_by_name(change.columns)
            if not change.key:
                transaction.append(change.rows, snapshot_properties=summary)
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no row of these keys before: that is no news
                kept = change.rows
                if change.delete_column is not None:
                    kept = kept.filter(pc.invert(pc.fill_null(kept.column(change.delete_column), False)))
                transaction.overwrite(kept, self._filter(change), snapshot_properties=summary)

    def _filter(self, change: Commit) -> BooleanExpression:
        if not len(change.rows):
            return AlwaysFalse()
        made: BooleanExpression = create_match_filter(change.rows, list(change.key))
        return made


def _summary(topic_id: TopicId, positions: Mapping[int, int]) -> dict[str, str]:
    return {OFFSETS_PROPERTY: json.dumps({"topic_id": topic_id, "offsets": dict(sorted(positions.items()))})}
