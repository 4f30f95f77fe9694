"""Copies a range of a topic into another one, of this store or of another, each row once.

Each chunk of rows is one append to the target's ledger, whose identity names the source topic and partition, the offset
that it reaches and, as its incarnation, where the copied ranges begin. So the target's log shows the progress, and a
stopped copy continues in any process. Two copies at once copy no row twice: the ledger refuses an append that does not
follow the one that its writer saw.

Rows of a typed topic are read as the newest version of its schema and stored as the newest of the target's: older rows
read through both, and nothing in the target names an older version. Where the source's schema changes while a copy
runs, it stops, since its reader would leave out the new columns; the next run reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.admin.controller import Controller
from spark_replog.client.chunk_append import CHUNK_ROWS, ChunkAppender, in_chunks
from spark_replog.client.consumer import Consumer
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError, command_line
from spark_replog.ids import TopicPartition, process_id
from spark_replog.log.column_cast import widens
from spark_replog.log.ddl import invalid_schema
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import IdentityKind, ProducerIdentity
from spark_replog.log.row_schema import RowSchema, key_words
from spark_replog.log.schema_merge import column_text, merged_schema
from spark_replog.log.write_plan import WritePlan
from spark_replog.read.rows import log_column
from spark_replog.write.typed_columns import TYPED_PARTITION

_COLUMNS = ("key", "value", "timestamp", "headers")
_NOT_OF_THE_ROWS = ("min.insync.replicas", "derive.", "errors.topic")
"""How settings begin that are about a store's roots or its other topics: a new target does not get them."""


@dataclass(slots=True)
class CopiedPartition:
    """Progress of one source partition.

    Attributes:
        start, end: the requested range, half-open, in source offsets.
        position: next source offset to copy. Begins above `start` if an earlier run copied rows.
        last: source offset up to which the target's log has rows of this copy; -1 without any.
        ranges: the source offsets that are copied, as ``10-15,18-``: the last range ends at `last`.
        row_count, size_bytes: copied by this run.
    """

    key: TopicPartition
    start: int
    end: int
    position: int
    last: int
    ranges: str
    row_count: int = 0
    size_bytes: int = 0

    @property
    def is_done(self) -> bool:
        """Return whether the range is copied."""
        return self.position >= self.end


class TopicCopy:
    """One copy. Not thread-safe; a context manager.

    Args:
        by_key: the target's partitioner chooses partitions; otherwise each row keeps its partition's number.
        name: distinguishes copies between the same topics: under one name each row is copied once.
        chunk_rows: maximum rows of one append.

    Raises:
        InvalidConfigError: INVALID_REQUEST: into itself. INVALID_PARTITIONS: the target has too few partitions.
            REPLOG_INVALID_SCHEMA: the target cannot hold each row: bytes and columns, or other columns or keys.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED: without READ on the source or WRITE on the target.
    """

    def __init__(
        self,
        source: Cluster,
        source_topic: str,
        target: Cluster,
        target_topic: str,
        *,
        by_key: bool = False,
        name: str = "",
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self._source, self._target = source, target
        self._source_topic, self._topic = source_topic, target_topic
        self.reader = Consumer(source, enable_auto_commit=False, auto_offset_reset="none")
        self._by_key, self._name, self._chunk_rows = by_key, name, chunk_rows
        self.keys = self.reader.partitions_for(source_topic)
        self._source_id = source.lookup(source_topic).topic_id
        make_write_plan(target, [target_topic])  # raises its errors before a row is read
        self._ledger, topic = target.topic_state(target.lookup(target_topic))
        self._target_id = topic.topic_id
        _, read_topic = source.topic_state(source.lookup(source_topic))
        self._schema = read_topic.schema
        if topic.topic_id == self._source_id:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, "a topic cannot be copied into itself. Name another one."
            )
        if not by_key and len(topic.partitions) < len(self.keys):
            raise InvalidConfigError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic '{target_topic}' has {len(topic.partitions)} partitions and '{source_topic}' has "
                f"{len(self.keys)}. Give --by-key, so that keys choose partitions, or grow it: topic add-partitions.",
            )
        check_columns(source_topic, self._schema, target_topic, topic.schema, target.path)
        self._appender = ChunkAppender(target, "copy")

    def plan(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[CopiedPartition]:
        """Return the ranges, each starting where an earlier run under the same name ended.

        Raises:
            InvalidConfigError: INVALID_REQUEST: earlier runs left out rows of a range and copied later ones. The order
                of rows is kept, so these rows can only be copied under another name.
        """
        partitions = []
        for key, start in sorted(starts.items()):
            last, ranges = self._copied(key)
            left_out = _left_out(ranges, start, min(ends[key], last))
            if left_out:
                raise InvalidConfigError(
                    ErrorCode.INVALID_REQUEST,
                    f"earlier runs copied offsets {ranges}{last} of {key.topic}-{key.partition}, without {left_out} of "
                    "this range. Rows of one copy stay in order. Copy these under another name, as with --name rest, "
                    f"or begin at or after {last}.",
                )
            if start > last:
                ranges = f"{ranges}{last},{start}-" if last >= 0 else f"{start}-"
            partitions.append(CopiedPartition(key, start, ends[key], max(start, last), last, ranges))
        return partitions

    def run(self, parts: list[CopiedPartition], on_progress: Callable[[], object] = lambda: None) -> None:
        """Copy the ranges, one after another. `parts` always shows the decided progress.

        Raises:
            ReplogError: OFFSET_OUT_OF_RANGE: rows of the range were deleted. PRODUCER_FENCED: another process copies
        """
        for part in parts:
            if part.is_done:
                continue
            self.reader.assign([part.key])
            self.reader.seek(part.key, part.position)
            for batches in self._chunks(part):
                self._append(part, batches)
                on_progress()
            self._check_source()
            part.position = part.end  # compaction removed all rows of the remaining offsets
            on_progress()

    def _identity(self, key: TopicPartition, end: int, ranges: str) -> ProducerIdentity:
        words = f"{self._source.brokers.cluster_id}/{self._source_id}/{key.partition}/{self._target_id}/{self._name}"
        producer_id = f"copy-{blake2b(words.encode(), digest_size=16).hexdigest()}"
        return ProducerIdentity(producer_id, ranges, end, process_id(), IdentityKind.TXN_BATCH)

    def _check_source(self) -> None:
        """Refuse rows that were read by the source's name since another topic has it: they are not counted as its.

        Also rows that were read since its schema changed: the reader may have left out their new columns. The ledger is
        the reader's own, so it knows the version of each row that was read.
        """
        handle = self._source.lookup(self._source_topic)
        if handle.topic_id != self._source_id:
            raise _made_again(self._source_topic)
        newest = self._source.topic_ledger(handle.ledger_id).ask(lambda state: state.topics[self._source_id].schema)
        if newest is not None and newest != self._schema:
            raise ReplogError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"the schema of topic '{self._source_topic}' became version {newest.version} while the copy ran. No row"
                " was copied without its columns. Run the copy again: it goes on where it ended.",
                topic=self._source_topic,
                version=newest.version,
            )

    def _plan_append(self) -> WritePlan:
        """Return a write plan of the very topic that the progress is kept for; the fold refuses one deleted since."""
        plan = make_write_plan(self._target, [self._topic])
        if plan.topics[0].topic_id != self._target_id:
            raise _made_again(self._topic)
        return plan

    def _copied(self, key: TopicPartition) -> tuple[int, str]:
        """Return the source offset up to which the partition is copied, and the ranges; (-1, "") if nothing is."""
        identity = self._identity(key, 0, "")

        def look(state: TopicLedgerState) -> tuple[int, str]:
            writer = state.producers.get(identity)
            return (-1, "") if writer is None else (writer.last_sequences[writer.incarnation], writer.incarnation)

        return self._ledger.ask(look)

    def _chunks(self, part: CopiedPartition) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows from the position to the end, in chunks."""

        def read() -> Iterator[pa.RecordBatch]:
            for batch in self.reader.to_batches():
                rows = batch.filter(pc.less(log_column(batch, "offset"), part.end))
                yield rows
                if rows.num_rows < batch.num_rows:
                    break

        return in_chunks(read(), self._chunk_rows)

    def _append(self, part: CopiedPartition, batches: list[pa.RecordBatch]) -> None:
        self._check_source()
        end = log_column(batches[-1], "offset")[-1].as_py() + 1
        row_count, size_bytes = self._appender.append(
            self._plan_append(),
            {self._topic: [self._written(batch) for batch in batches]},
            self._identity(part.key, end, part.ranges),
            after_sequence=part.last,
            task_id=part.key.partition,
        )
        part.position = part.last = end
        part.row_count += row_count
        part.size_bytes += size_bytes

    def _written(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that were read as the columns that a task writes."""
        if self._schema is not None:  # what the writer does not store of the log's own columns it leaves out
            return batch.select([name for name in batch.schema.names if not (self._by_key and name == TYPED_PARTITION)])
        rows = batch.select(_COLUMNS)
        return rows if self._by_key else rows.append_column("partition", batch.column("partition"))

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()

    def __enter__(self) -> TopicCopy:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def create_target(source: Cluster, source_topic: str, target: Cluster, target_topic: str) -> None:
    """Create the target of a copy, unless it exists: with the source's partitions, settings, columns and key.

    Its schema begins with the newest version of the source's. `min.insync.replicas` and derivations are not taken over.

    Raises:
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: the source.
        AuthorizationError: without DESCRIBE on the source or CREATE on the target.
        ReplogError: as ``Controller.create_topic``.
    """
    topic = Controller(source).describe_topic(source_topic)
    config = {name: value for name, value in topic.config.items() if not name.startswith(_NOT_OF_THE_ROWS)}
    Controller(target).create_topic(
        target_topic, topic.partition_count, config=config, if_not_exists=True, schema=topic.schema
    )


def check_columns(source: str, rows: RowSchema | None, target: str, held: RowSchema | None, path: str) -> None:
    """Refuse a target that cannot hold each row of the source as it is. Pure.

    Args:
        source, target: names of the topics.
        rows, held: their newest schemas; None: bytes.
        path: of the target's store, for remedies.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
    """
    if rows is None or held is None:
        if held is not None:
            remedy = f"Read '{source}' with Spark or a Consumer, and write columns to '{target}'"
            raise _other_kind(target, held, source, remedy)
        if rows is not None:
            remedy = f"Give a target with the same columns: {_creation('NAME', rows, path)}"
            raise _other_kind(source, rows, target, remedy)
        return
    if rows.key != held.key:
        raise invalid_schema(
            f"the key columns of topic '{source}' are {key_words(rows.key)}, and those of '{target}' are"
            f" {key_words(held.key)}: rows would be in partitions that their keys do not choose. Give a target with the"
            f" same key: {_creation('NAME', rows, path)}.",
            topic=target,
        )
    there = {column.name: column for column in held.arrow}
    for column in rows.arrow:
        other = there.pop(column.name, None)
        if other is None or not widens(column.type, other.type) or (column.nullable and not other.nullable):
            raise _other_column(column.name, source, rows, target, held, path)
    for name, column in there.items():
        if not column.nullable:
            raise _other_column(name, source, rows, target, held, path)


def _other_kind(typed: str, schema: RowSchema, other: str, remedy: str) -> InvalidConfigError:
    return invalid_schema(
        f"topic '{typed}' is typed ({schema.ddl}), and the rows of '{other}' are bytes: a copy does not change what"
        f" rows are. Nothing was copied. {remedy}.",
        topic=typed,
    )


def _other_column(
    name: str, source: str, rows: RowSchema, target: str, held: RowSchema, path: str
) -> InvalidConfigError:
    texts = [column_text(schema.arrow.field(name)) if name in schema.names else "missing" for schema in (rows, held)]
    try:
        nullable = {column.name for column in rows.arrow if column.nullable} | {*held.names} - {*rows.names}
        merged = merged_schema(held, rows.arrow).arrow
        newer = [field.with_nullable(field.nullable or field.name in nullable) for field in merged]
        ddl = held.evolve(RowSchema.of(pa.schema(newer), held.key)).ddl
        remedy = f"Change its schema first: {command_line(path, 'topic', 'schema', 'evolve', target, '--schema', ddl)}"
    except InvalidConfigError:
        remedy = f"Give another target: {_creation('NAME', rows, path)}"
    return invalid_schema(
        f"column '{name}' of topic '{source}' is {texts[0]}, and in '{target}' it is {texts[1]}, which may not hold"
        f" each row. Nothing was copied. {remedy}.",
        column=name,
        topic=target,
    )


def _creation(name: str, rows: RowSchema, path: str) -> str:
    key = ("--key", ",".join(rows.key)) if rows.key else ()
    return command_line(path, "topic", "create", name, "--schema", rows.ddl, *key)


def _left_out(ranges: str, start: int, end: int) -> str:
    """Return the offsets of [start, end) that are in none of the ranges, as ``0-10,15-18``; the last one is open."""
    gaps, at = [], start
    for span in filter(None, ranges.split(",")):
        begin, _, stop = span.partition("-")
        if at < min(int(begin), end):
            gaps.append(f"{at}-{min(int(begin), end)}")
        at = max(at, int(stop or end))
    return ",".join(gaps)


def _made_again(topic: str) -> ReplogError:
    return ReplogError(
        ErrorCode.UNKNOWN_TOPIC_ID,
        f"topic '{topic}' was deleted and created again while the copy ran. The one that has the name now was neither "
        "read nor written. Run the copy again: it starts from the beginning.",
        topic=topic,
    )
