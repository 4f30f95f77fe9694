"""What a table must do to be filled from a topic exactly once, and what it keeps about the topic.

Rows and the offsets that they reach are one commit of the table, made on the version whose offsets were read. So the
position is in the table only: whoever was killed, repeated or late reads it there and goes on.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import NamedTuple

import pyarrow as pa

from spark_replog.errors import ErrorCode, InvalidConfigError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import TopicId
from spark_replog.tables.table_columns import FormatTypes

RECORD_PROPERTY = "replog.sync"
"""Of the table: the `SyncRecord`."""


@dataclass(frozen=True)
class SyncRecord:
    """Whose rows a table has, and how they get there. It never changes: another one would make doubles or gaps.

    Attributes:
        mode: ``append``: a row for each offset. ``upsert``: the newest row of each key.
        has_provenance: whether the table has the columns of ``PROVENANCE``.
    """

    cluster_id: str
    topic: str
    topic_id: TopicId
    mode: str
    has_provenance: bool

    @property
    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, text: str, table: str) -> SyncRecord:
        """Return the record of a table.

        Raises:
            InvalidConfigError: REPLOG_TABLE_MISMATCH: it is damaged, or of a newer release.
        """
        try:
            values = json.loads(text)
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise InvalidConfigError(
                ErrorCode.REPLOG_TABLE_MISMATCH,
                f"the property {RECORD_PROPERTY} of table {table} cannot be read. Use the release that wrote it, or"
                " another table.",
                value=text,
            ) from error


class LoadedTable(NamedTuple):
    """A version of a table, as it was loaded.

    Attributes:
        columns: with the types of a topic where there are such.
        record: None: no topic fills it.
    """

    columns: pa.Schema
    record: SyncRecord | None


class Commit(NamedTuple):
    """One commit of a table.

    Attributes:
        rows: in `columns`.
        columns: that the table has afterwards.
        topic_id: whose offsets they are.
        key: names of the key columns, for an upsert: the table's rows of these keys are replaced. () for an append.
        delete_column: of an upsert: a row with true there only deletes the table's row. None: no row does.
        moved: by partition: the next offset after these rows, where it moved.
        positions: the same of all partitions.
    """

    rows: pa.Table
    columns: pa.Schema
    topic_id: TopicId
    key: Sequence[str]
    delete_column: str | None
    moved: Mapping[int, int]
    positions: Mapping[int, int]


class TableCommitError(OutcomeUnknownError):
    """The commit failed, or no answer came. Load the table again: it tells what it has."""


class OvertakenError(TableCommitError):
    """Another writer was first: nothing was written."""


class SyncedTable(ABC):
    """A table of one format. Remembers the version that it loaded; a commit is made on it. Not thread-safe."""

    types: FormatTypes
    overtaken: type[Exception]
    """What the library raises if another writer was first."""

    def __init__(self, name: str) -> None:
        self.name = name
        """As the user named it, without the format."""

    def rows_max(self, key: Sequence[str]) -> int:
        """Return how many rows one commit may have at most, of an upsert by this key or of an append."""
        return 2**31 - 1

    @abstractmethod
    def load(self) -> LoadedTable | None:
        """Load the newest version; None if there is no table.

        Raises:
            RetriableError: REPLOG_TABLE_FAILED.
            InvalidConfigError: REPLOG_TABLE_MISMATCH: the table cannot keep positions.
        """

    @abstractmethod
    def positions(self, topic_id: TopicId, partition_count: int) -> dict[int, int]:
        """Return the next offset of each partition that the loaded version has one of.

        Raises:
            ReplogError: REPLOG_TABLE_MISMATCH: the table has lost them.
        """

    @abstractmethod
    def has_rows(self) -> bool:
        """Return whether the loaded version has files with rows."""

    @abstractmethod
    def create(self, columns: pa.Schema, record: SyncRecord) -> None:
        """Make the table; another process may have made it first.

        Raises:
            RetriableError: REPLOG_TABLE_FAILED.
        """

    @abstractmethod
    def adopt(self, record: SyncRecord) -> None:
        """Write the record into the loaded table, which has none. Load it again afterwards.

        Raises:
            TableCommitError: REPLOG_TABLE_FAILED.
        """

    @abstractmethod
    def commit(self, change: Commit) -> None:
        """Commit rows and positions together, on the loaded version; the result is then the loaded one.

        Raises:
            TableCommitError: REPLOG_TABLE_FAILED.
        """

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            yield
        except ReplogError:
            raise
        except Exception as error:  # the libraries have no common class: delta-rs raises bare exceptions too
            raise self._failure(RetriableError, error) from error

    @contextmanager
    def _committing(self) -> Iterator[None]:
        try:
            yield
        except self.overtaken as error:
            raise self._failure(OvertakenError, error) from error
        except Exception as error:
            raise self._failure(TableCommitError, error) from error

    def _failure(self, kind: type[ReplogError], error: Exception) -> ReplogError:
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        return kind(
            ErrorCode.REPLOG_TABLE_FAILED,
            f"table {self.name} did not take it: {text}. Run it again: the table says where to go on.",
            kind=type(error).__name__,
        )

    def _lost(self) -> ReplogError:
        return ReplogError(
            ErrorCode.REPLOG_TABLE_MISMATCH,
            f"table {self.name} has rows, but no longer the offsets that they reach. Keep the snapshots of"
            " the sync when you expire others. Sync into another table, which begins with the oldest row.",
            table=self.name,
        )


def missing_package(extra: str, error: ModuleNotFoundError) -> ReplogError:
    """Return the error for a format whose library is not installed."""
    return ReplogError(
        ErrorCode.REPLOG_ENVIRONMENT,
        f"this table needs a package that is not installed: {error}. Run: pip install 'spark-replog[{extra}]'",
    )
