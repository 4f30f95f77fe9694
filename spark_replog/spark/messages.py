"""Messages between Spark's processes. Frozen, picklable, without open handles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition, WriterCommitMessage

from spark_replog.ids import LedgerId, TopicId
from spark_replog.log.model import DataObject
from spark_replog.log.quotas import FetchQuota
from spark_replog.log.write_plan import MadeCopy
from spark_replog.read.column_filter import ColumnFilter
from spark_replog.read.fetch_plan import FetchRange, FetchSlice
from spark_replog.read.rows import RowView
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.call_counter import CallTable


class QueryTask(NamedTuple):
    """The micro-batch that a task writes, and the session's folder of checkpoints; also names the task's objects."""

    query_id: str
    batch_id: int
    run_id: str | None
    checkpoints: str | None = None


@dataclass(frozen=True)
class WriteMessage(WriterCommitMessage):
    """One task's answer to the driver.

    Attributes:
        query: the committing process has no task context. None in a batch write outside a streaming query.
        task_id: orders the messages.
        dropped_rows: rows lost with acks=0.
        copies: objects of earlier batches that this task copied to replicas that lacked them.
        calls: storage calls of its process since the previous message; one task also reports the planning's.
        contents: `RowsDigest.sums` of the rows, in a batch write with ``txnAppId``; else ().
    """

    query: QueryTask | None
    task_id: int
    objects: tuple[tuple[LedgerId, DataObject], ...] = ()
    dropped_rows: int = 0
    copies: tuple[MadeCopy, ...] = ()
    calls: CallTable = field(default_factory=dict)
    contents: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadPartition(InputPartition):
    """What one task reads, with all that an executor needs for it.

    Attributes:
        ranges: one, or several if there are fewer tasks than partitions.
        slices: the sections that hold them, in log order; those of one object together.
        quota: how fast each process may read for this client.
        views: how the rows of each typed topic are read; empty for topics of bytes.
        filters: sections without a row that satisfies all of them may be left out.
    """

    ranges: tuple[FetchRange, ...]
    slices: tuple[FetchSlice, ...]
    brokers: BrokerSet
    quota: FetchQuota | None = None
    views: Mapping[TopicId, RowView] = field(default_factory=dict)
    filters: tuple[ColumnFilter, ...] = ()
