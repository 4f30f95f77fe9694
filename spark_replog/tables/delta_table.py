"""A Delta table, written by delta-rs (package deltalake): offsets are application transactions, one a partition.

delta-rs does not refuse an application transaction that the table has already, but it refuses a commit on an old
version if a newer one has a transaction of the same application. So the version that was read must be the one committed
on: nothing here loads a newer one in between.
"""

from __future__ import annotations

from collections.abc import Mapping

import deltalake
import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.ids import TopicId
from spark_replog.tables.synced_table import RECORD_PROPERTY, Commit, LoadedTable, SyncedTable, SyncRecord
from spark_replog.tables.table_columns import FormatTypes, canonical_columns

EXPIRY_PROPERTY = "delta.setTransactionRetentionDuration"


def _stored(kind: pa.DataType) -> pa.DataType | None:
    return None if pa.types.is_duration(kind) else kind


DELTA = FormatTypes("Delta", _stored, lambda old, new: False, " ,;{}()\n\t=")
"""delta-rs cannot change a column's type. The characters are those that Spark refuses."""


class DeltaTable(SyncedTable):
    """A Delta table.

    Args:
        path: of the table's folder, or its URL.
        options: of the storage, as delta-rs names them.
        file_bytes: target size of a file; None: what the table says.
    """

    types = DELTA
    overtaken = deltalake.exceptions.CommitFailedError

    def __init__(self, path: str, options: Mapping[str, str], file_bytes: int | None) -> None:
        super().__init__(path)
        self._options, self._file_bytes = dict(options), file_bytes
        self._table: deltalake.DeltaTable

    def load(self) -> LoadedTable | None:
        """Load the newest version."""
        with self._loading():
            try:
                self._table = deltalake.DeltaTable(self.name, storage_options=self._options)
            except deltalake.exceptions.TableNotFoundError:
                return None
            columns = pa.schema(self._table.schema().to_arrow())
            properties = self._table.metadata().configuration
        if EXPIRY_PROPERTY in properties:
            raise InvalidConfigError(
                ErrorCode.REPLOG_TABLE_MISMATCH,
                f"table {self.name} has the property {EXPIRY_PROPERTY}, so it may forget the offsets of its rows. Unset"
                " it: alter table unset tblproperties.",
            )
        text = properties.get(RECORD_PROPERTY)
        return LoadedTable(canonical_columns(columns), SyncRecord.of(text, self.name) if text else None)

    def positions(self, topic_id: TopicId, partition_count: int) -> dict[int, int]:
        """Return the versions of the application transactions."""
        with self._loading():
            versions = {
                number: self._table.transaction_version(_application(topic_id, number))
                for number in range(partition_count)
            }
        positions = {number: version for number, version in versions.items() if version is not None}
        if not positions and self.has_rows():
            raise self._lost()
        return positions

    def has_rows(self) -> bool:
        """Return whether it has a file."""
        with self._loading():
            return bool(self._table.file_uris())

    def create(self, columns: pa.Schema, record: SyncRecord) -> None:
        """Make the table."""
        with self._loading():
            try:
                deltalake.DeltaTable.create(
                    self.name,
                    deltalake.Schema.from_arrow(columns),
                    mode="error",
                    configuration={RECORD_PROPERTY: record.text},
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
            except deltalake.exceptions.DeltaError:
                if not deltalake.DeltaTable.is_deltatable(self.name, self._options):
                    raise

    def adopt(self, record: SyncRecord) -> None:
        """Set the property."""
        with self._committing():
            self._table.alter.set_table_properties({RECORD_PROPERTY: record.text}, raise_if_not_exists=False)

    def commit(self, change: Commit) -> None:
        """Append, or merge by the key."""
        transactions = [
            deltalake.Transaction(_application(change.topic_id, number), offset)
            for number, offset in change.moved.items()
        ]
        properties = deltalake.CommitProperties(app_transactions=transactions)
        with self._committing():
            if not change.key:
                deltalake.write_deltalake(
                    self._table,
                    change.rows,
                    mode="append",
                    schema_mode="merge",
                    target_file_size=self._file_bytes,
                    commit_properties=properties,
                )
                return
            is_same = " AND ".join(f"old.{_quoted(name)} = new.{_quoted(name)}" for name in change.key)
            merge = self._table.merge(
                change.rows,
                is_same,
                source_alias="new",
                target_alias="old",
                merge_schema=True,
                commit_properties=properties,
            )
            is_kept = None
            if change.delete_column is not None:
                deletes = f"new.{_quoted(change.delete_column)}"
                merge, is_kept = merge.when_matched_delete(f"{deletes} IS TRUE"), f"{deletes} IS NOT TRUE"
            merge.when_matched_update_all().when_not_matched_insert_all(is_kept).execute()


def _application(topic_id: TopicId, partition: int) -> str:
    return f"replog/{topic_id}/{partition}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
