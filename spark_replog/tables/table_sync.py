"""Fills a Delta or Iceberg table from a typed topic, each row exactly once.

A round reads the table's position, scans the topic from there to its end, and commits the rows piece by piece. The
position is nowhere else, so a process that was killed, a second one, and one whose answer was lost all go on from what
the table says. The position is also shown as that of a consumer group, which decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from spark_replog.client.record_fetcher import ConsumerMetrics, RecordFetcher
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import (
    DataLossError,
    ErrorCode,
    InvalidConfigError,
    OutcomeUnknownError,
    ReplogError,
    RetriableError,
    invalid_option,
)
from spark_replog.fault_point import fault_point
from spark_replog.groups.progress_publisher import PUBLISH_INTERVAL_MS, ProgressPublisher
from spark_replog.ids import TopicId, TopicPartition
from spark_replog.log.ddl import invalid_schema
from spark_replog.log.row_schema import RowSchema
from spark_replog.read.rows import RowView, log_column
from spark_replog.tables.synced_table import (
    Commit,
    LoadedTable,
    OvertakenError,
    SyncedTable,
    SyncRecord,
    TableCommitError,
    missing_package,
)
from spark_replog.tables.table_columns import PROVENANCE, fitted, merged_columns, newest_rows, table_columns

_LOG = logging.getLogger(__name__)
FORMATS = ("delta", "iceberg")
MODES = ("append", "upsert")
ROWS_MAX = 1_000_000
"""Rows of one commit."""
BYTES_MAX = 256 << 20
"""Bytes of one commit in memory, uncompressed: what a sync takes, and the writer about as much again."""
TRIES_MAX, FAILURES_MAX = 10, 3
"""Commits from one position that others overtook; calls of the library in a row that failed."""
PAUSE_MS = 200
"""Between two looks whether a sync that waits is to stop."""
NOTE = "position of a table sync, which the table holds"
_ERROR_LENGTH_MAX = 300


@dataclass(slots=True)
class SyncReport:
    """What a run did.

    Attributes:
        topic, table, mode: the table with its format.
        row_count, commit_count: written by this run; of an upsert the rows of the topic, not those of the table.
        positions: next offset of each partition, which the table holds.
        ends: high watermarks when the last round began.
        lost: by partition: offsets that were deleted before they were synced, [from, to), and were left out.
        schema_version: of the topic.
    """

    topic: str
    table: str
    mode: str = ""
    row_count: int = 0
    commit_count: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    schema_version: int = 0


def open_table(target: str, options: Mapping[str, str], file_bytes: int | None) -> SyncedTable:
    """Return the table that ``delta:PATH`` or ``iceberg:CATALOG.NAMESPACE.TABLE`` names; nothing is read yet.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
        ReplogError: REPLOG_ENVIRONMENT: the format's package is not installed.
    """
    kind, separator, name = target.partition(":")
    if kind not in FORMATS or not separator or not name:
        raise invalid_option(
            f"Invalid table '{target}'. Give delta:PATH or iceberg:CATALOG.NAMESPACE.TABLE.", table=target
        )
    try:
        if kind == "delta":
            from spark_replog.tables.delta_table import DeltaTable

            return DeltaTable(name, options, file_bytes)
        from spark_replog.tables.iceberg_table import IcebergTable

        return IcebergTable(name, options, file_bytes)
    except ModuleNotFoundError as error:
        raise missing_package(kind, error) from None


class TableSync:
    """One topic into one table. Not thread-safe.

    Args:
        target: ``delta:PATH`` or ``iceberg:CATALOG.NAMESPACE.TABLE``. Made if it is missing; one that exists must be
            of this topic, or empty with columns that fit.
        mode: ``append`` or ``upsert``; None: the table's, of a new one ``append``.
        provenance: whether rows have the columns ``_partition``, ``_offset`` and ``_timestamp``; None: the table's, of
            a new one False.
        rows_max: of one commit.
        file_bytes: target size of the table's files; None: the table's or the library's.
        fail_on_data_loss: False: go on after rows that were deleted before they were synced, with a warning.
        table_options: of the table's storage (Delta) or catalog (Iceberg).
        group: under which the position is shown; default ``table:`` and the target.

    Raises:
        InvalidConfigError: REPLOG_INVALID_OPTION.
        ReplogError: REPLOG_ENVIRONMENT: the format's package is not installed.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        target: str,
        *,
        mode: str | None = None,
        provenance: bool | None = None,
        rows_max: int = ROWS_MAX,
        file_bytes: int | None = None,
        fail_on_data_loss: bool = True,
        table_options: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise invalid_option(f"Invalid mode '{mode}'. Give append or upsert.")
        if rows_max < 1 or (file_bytes is not None and file_bytes < 1):
            raise invalid_option("rows_max and file_bytes are 1 or more. Give other numbers.")
        self._cluster, self._topic, self.target = cluster, topic, target
        self._table = open_table(target, table_options or {}, file_bytes)
        self._mode, self._provenance = mode, provenance
        self._rows_max, self._fail_on_data_loss = rows_max, fail_on_data_loss
        self._piece_rows = rows_max
        self._publisher = ProgressPublisher(cluster, group or f"table:{target}")
        self._shown_ms = cluster.clock.monotonic_ms()
        self._topic_id: TopicId = ""
        self._report = SyncReport(topic, target)

    def run_once(self, is_stopped: Callable[[], bool] = lambda: False) -> SyncReport:
        """Sync the rows that are there now; return what was done, by this call.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
            AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
            InvalidConfigError: REPLOG_INVALID_SCHEMA: the topic has bytes, or a type that the table cannot hold.
                REPLOG_TABLE_MISMATCH: the table is of others, or has other columns.
            ReplogError: UNKNOWN_TOPIC_ID: the topic was deleted and made again. REPLOG_DATA_LOSS: rows were deleted
                before they were synced; REPLOG_TABLE_FAILED: run it again.
        """
        before = self._report
        self._report = SyncReport(self._topic, self.target, before.mode, positions=before.positions)
        try:
            self._rounds(is_stopped)
        except ReplogError as error:
            self._show(str(error)[:_ERROR_LENGTH_MAX])
            raise
        finally:
            self._publisher.flush()
        return self._report

    def run(self, every_ms: int, is_stopped: Callable[[], bool], on_round: Callable[[SyncReport], object]) -> None:
        """Sync again and again until told to stop; an error that may pass is logged, and shown at the position.

        Args:
            every_ms: from the beginning of a round to that of the next.
            on_round: called after each round that did not fail.

        Raises:
            ReplogError: as `run_once`, for errors that do not pass.
        """
        clock = self._cluster.clock
        while not is_stopped():
            due_ms = clock.monotonic_ms() + every_ms
            try:
                on_round(self.run_once(is_stopped))
            except (RetriableError, OutcomeUnknownError) as error:
                _LOG.warning("table %s is tried again in %d ms: %s", self.target, every_ms, error)
            while not is_stopped() and (rest_ms := due_ms - clock.monotonic_ms()) > 0:
                clock.sleep_ms(min(rest_ms, PAUSE_MS))

    # ------------------------------------------------------------------------------------------ a round

    def _rounds(self, is_stopped: Callable[[], bool]) -> None:
        tries, at = 0, dict[int, int]()
        while True:
            try:
                self._round(is_stopped)
                return
            except TableCommitError as error:
                tries = tries + 1 if self._report.positions == at else 1  # a rival's progress is progress
                at = self._report.positions
                if tries >= (TRIES_MAX if isinstance(error, OvertakenError) else FAILURES_MAX):
                    raise
                _LOG.info("table %s is loaded again: %s", self.target, error)
            except DataLossError:
                if self._fail_on_data_loss or tries == TRIES_MAX:
                    raise
                tries += 1  # retention overtook the scan: the next round begins after it

    def _round(self, is_stopped: Callable[[], bool]) -> None:
        source = self._source()
        report = self._report
        report.ends = {number: end for number, (_, end) in source.bounds.items()}
        report.schema_version = source.schema.version
        if report.mode and report.positions == report.ends:
            return  # nothing is new: the table need not be loaded
        record, columns = self._opened(source)
        report.mode = record.mode
        held = self._table.positions(record.topic_id, len(source.bounds))
        report.positions = positions = self._positions(held, source)
        self._show(NOTE)
        before = {number: held.get(number, 0) for number in positions} if held else positions
        key = source.schema.key if record.mode == "upsert" else ()
        self._piece_rows = min(self._rows_max, self._table.rows_max(key))
        for batches, reached in self._pieces(source, positions, columns, record.has_provenance):
            if not batches and reached == before:
                return
            fault_point("table.read")
            rows = pa.Table.from_batches(batches, columns)
            moved = {number: at for number, at in reached.items() if not held or at != held.get(number)}
            written = newest_rows(rows, key) if key else rows
            deletes = source.delete_column if key else None
            self._table.commit(Commit(written, columns, record.topic_id, key, deletes, moved, reached))
            fault_point("table.committed")
            report.positions = held = before = reached
            report.row_count += len(rows)
            report.commit_count += 1
            self._show(NOTE)
            if is_stopped():
                return

    def _source(self) -> _Source:
        """Return the topic as it is now: its bounds, and the columns that its newest row may have."""
        handle = self._cluster.newest_topics([self._topic])[self._topic]
        ledger, _ = self._cluster.folded_topic(handle)
        with ledger.lock:
            state = ledger.state.topics[handle.topic_id]
            schema = state.schema
            config, _ = stored_topic_config(tuple(state.config.items()))
            bounds = {number: (log.log_start_offset, log.high_watermark) for number, log in enumerate(state.partitions)}
        if schema is None:
            raise invalid_schema(
                f"topic '{self._topic}' has bytes, and a table has columns. Use a typed topic, or decode with Spark.",
                topic=self._topic,
            )
        self._topic_id = self._topic_id or handle.topic_id
        if handle.topic_id != self._topic_id:
            raise self._made_again()
        return _Source(handle, schema, config.delete_column, bounds)

    def _opened(self, source: _Source) -> tuple[SyncRecord, pa.Schema]:
        """Return whose rows the table has, and the columns that it needs; make it if it is missing.

        The columns are refused before anything is made.
        """
        wanted, types = self._wanted(source), self._table.types
        columns = table_columns(source.schema, wanted.has_provenance, types)
        loaded = self._made(columns, wanted, source.schema)
        if loaded is not None and loaded.record is None:
            self._check_key(wanted, source.schema)
            self._adopt(loaded, columns, wanted)
            loaded = self._table.load()
        if loaded is None or loaded.record is None:
            raise TableCommitError(
                ErrorCode.REPLOG_TABLE_FAILED, f"table {self.target} was removed just now. Run it again."
            )
        record = loaded.record
        self._check_record(record, wanted)
        columns = table_columns(source.schema, record.has_provenance, types)
        return record, merged_columns(loaded.columns, columns, types)

    def _made(self, columns: pa.Schema, wanted: SyncRecord, schema: RowSchema) -> LoadedTable | None:
        """Load the table, and make it if it is missing. Of two that make it at once, one may be refused."""
        for left in reversed(range(FAILURES_MAX)):
            try:
                loaded = self._table.load()
                if loaded is not None:
                    return loaded
                self._check_key(wanted, schema)
                self._table.create(columns, wanted)
                fault_point("table.made")
            except RetriableError:
                if not left:
                    raise
        return self._table.load()

    def _wanted(self, source: _Source) -> SyncRecord:
        return SyncRecord(
            self._cluster.brokers.cluster_id,
            self._topic,
            source.handle.topic_id,
            self._mode or MODES[0],
            bool(self._provenance),
        )

    def _check_key(self, wanted: SyncRecord, schema: RowSchema) -> None:
        if wanted.mode == "upsert" and not schema.key:
            raise invalid_option(
                f"topic '{self._topic}' has no key, and an upsert keeps the newest row of each key. Append, or make a"
                " topic with a key."
            )

    def _adopt(self, loaded: LoadedTable, columns: pa.Schema, wanted: SyncRecord) -> None:
        """Take a table that somebody made for this topic, with partitions for example."""
        merged_columns(loaded.columns, columns, self._table.types)
        if self._table.has_rows():
            raise self._mismatch("has rows, and no topic that it is filled from")
        self._table.adopt(wanted)

    def _check_record(self, record: SyncRecord, wanted: SyncRecord) -> None:
        if (record.cluster_id, record.topic) != (wanted.cluster_id, wanted.topic):
            raise self._mismatch(f"is filled from topic '{record.topic}' of store {record.cluster_id}")
        if record.topic_id != wanted.topic_id:
            raise self._made_again()
        if self._mode not in (None, record.mode):
            raise self._mismatch(f"is filled with mode {record.mode}, not {self._mode}")
        if self._provenance not in (None, record.has_provenance):
            raise self._mismatch(f"was made {'with' if record.has_provenance else 'without'} {', '.join(PROVENANCE)}")

    def _mismatch(self, what: str) -> InvalidConfigError:
        return InvalidConfigError(
            ErrorCode.REPLOG_TABLE_MISMATCH, f"table {self.target} {what}. Name another table.", table=self.target
        )

    def _made_again(self) -> ReplogError:
        return ReplogError(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"topic '{self._topic}' was deleted and created again. Table {self.target} has the rows of the former one,"
            " and the new one's offsets begin at 0 again. Sync the new one into another table.",
            topic=self._topic,
            table=self.target,
        )

    def _positions(self, held: Mapping[int, int], source: _Source) -> dict[int, int]:
        """Return where to go on. A table without offsets begins with the oldest row; a partition that is new, at 0."""
        positions = {}
        for number, (start, end) in source.bounds.items():
            at = held.get(number, 0 if held else start)
            if at > end:
                raise ReplogError(
                    ErrorCode.REPLOG_DATA_LOSS,
                    f"{self._topic}-{number} ends at {end}, and the table has its rows up to {at}: the log lost rows,"
                    " or this process reads an older state of it. Look at: replog store verify.",
                    topic=self._topic,
                    partition=number,
                )
            if at < start:
                if self._fail_on_data_loss:
                    raise DataLossError(
                        ErrorCode.REPLOG_DATA_LOSS,
                        f"rows {at} to {start - 1} of {self._topic}-{number} were deleted before they were synced. To"
                        " go on after them: --no-fail-on-data-loss, or fail_on_data_loss=False.",
                        topic=self._topic,
                        partition=number,
                    )
                _LOG.warning("rows %d to %d of %s-%d are not in the table", at, start - 1, self._topic, number)
                self._report.lost[number] = (at, start)
            positions[number] = max(at, start)
        return positions

    def _pieces(
        self, source: _Source, positions: Mapping[int, int], columns: pa.Schema, has_provenance: bool
    ) -> Iterator[tuple[list[pa.RecordBatch], dict[int, int]]]:
        """Yield the rows after the positions, in pieces of bounded size, and the position after each piece.

        The last one may have no rows: compaction removed those of the last offsets, or the positions were moved on.
        """
        spans = {
            TopicPartition(self._topic, number): (at, end)
            for number, at in positions.items()
            if at < (end := source.bounds[number][1])
        }
        view = RowView(source.schema)
        fetcher = RecordFetcher(
            self._cluster, ConsumerConfig(), ConsumerMetrics(), views={source.handle.topic_id: view}
        )
        renamed = {column.name: name for name, column in PROVENANCE.items()} if has_provenance else {}
        waiting: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        reached = dict(positions)
        for key, batch, end in fetcher.scan(spans, {self._topic: source.handle}):
            offsets = log_column(batch, "offset") if len(batch) else ()
            rows = fitted(batch.rename_columns([renamed.get(name, name) for name in batch.schema.names]), columns)
            step = max(1, len(rows) * BYTES_MAX // max(1, rows.nbytes))
            at = 0
            while at < len(rows):
                piece = rows.slice(at, min(step, self._piece_rows - row_count))
                waiting.append(piece)
                at += len(piece)
                row_count += len(piece)
                size_bytes += piece.nbytes
                reached[key.partition] = offsets[at - 1].as_py() + 1
                if row_count == self._piece_rows or size_bytes >= BYTES_MAX:
                    yield waiting, dict(reached)
                    waiting, row_count, size_bytes = [], 0, 0
            reached[key.partition] = end
        yield waiting, reached

    def _show(self, note: str) -> None:
        """Show the position, and what the sync says of itself: now and then, and at the end of a round."""
        at = {TopicPartition(self._topic, number): offset for number, offset in self._report.positions.items()}
        self._publisher.remember(at, {self._topic: self._topic_id}, note)
        now_ms = self._cluster.clock.monotonic_ms()
        if now_ms >= self._shown_ms + PUBLISH_INTERVAL_MS:
            self._publisher.flush()
            self._shown_ms = now_ms


class _Source(NamedTuple):
    """A topic as a round reads it.

    Attributes:
        delete_column: a row with true there deletes its key.
        bounds: by partition: [log start offset, high watermark).
    """

    handle: TopicHandle
    schema: RowSchema
    delete_column: str | None
    bounds: dict[int, tuple[int, int]]
