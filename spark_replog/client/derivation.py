"""Fills a typed topic from a topic of bytes, each record once: as a row, or as it was in an errors topic.

Each chunk is one append to one ledger: rows, bad records and the new position. So there is no moment between them, and
a process that dies, a lost answer or a second process lose and repeat nothing: the ledger refuses an append that does
not follow the one that its writer saw. To replay an errors topic is a derivation whose source is the errors topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.client.bad_records import CONNECTOR, bad_headers, header_values, plain_headers
from spark_replog.client.chunk_append import CHUNK_ROWS, ChunkAppender, in_chunks
from spark_replog.client.record_fetcher import ConsumerMetrics, FetchPartition, FetchState, RecordFetcher, look
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.consumer import ConsumerConfig
from spark_replog.config.registry import stored_topic_config
from spark_replog.errors import (
    DataLossError,
    ErrorCode,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    UnsupportedFormatError,
    command_line,
)
from spark_replog.ids import LedgerId, TopicId, TopicPartition, process_id
from spark_replog.log.codec.data_object import TYPED_HEADERS, TYPED_TIMESTAMP, array_of
from spark_replog.log.derived_position import DerivedPosition, derivation_identity
from spark_replog.log.fold.partition_state import UNDEFINED_EPOCH, PartitionState
from spark_replog.log.fold.topic_table import TopicState
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.value_decoder import ValueDecoder
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage.schema_registry import SchemaRegistry
from spark_replog.write.typed_columns import TYPED_PARTITION

Places = dict[int, tuple[int, int]]
"""Per source partition the next offset, and the leader epoch of the rows before it."""
_LOST_RACE = (ErrorCode.PRODUCER_FENCED, ErrorCode.REPLOG_DUPLICATE_TXN_MISMATCH)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a derivation does: the settings of its target topic, or those of a replay.

    Attributes:
        source: topic whose records are read.
        value_format, value_schema: of its values: see `ValueDecoder`.
        registry: see `SchemaRegistry`; "" without one.
        errors_topic: gets bad records whole; None: the first one stops the derivation.
        is_replay: the source is an errors topic. Records of other targets are left out; a bad one keeps where it is
            from, and goes to the end of the errors topic with its new reason.
    """

    source: str
    value_format: str = "json"
    value_schema: str = ""
    registry: str = ""
    errors_topic: str | None = None
    is_replay: bool = False

    @classmethod
    def of(cls, topic: TopicState, *, is_replay: bool = False) -> Self | None:
        """Return that of a topic's settings, or of a replay of its errors topic; None: it has none.

        Raises:
            UnsupportedFormatError: UNSUPPORTED_VERSION: a newer release set it, in a way that this one does not know.
        """
        config, unknown = stored_topic_config(tuple(topic.config.items()))
        source = config.errors_topic if is_replay else config.derive_source
        if source is None:
            return None
        newer = [name for name in unknown if name.startswith("derive.")]
        if newer:
            raise UnsupportedFormatError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"topic '{topic.name}' is derived with {newer[0]}={topic.config[newer[0]]}, which this release does not"
                " know. Upgrade spark-replog.",
                topic=topic.name,
            )
        value_schema, registry = config.derive_value_schema or "", config.derive_value_registry or ""
        return cls(source, config.derive_format, value_schema, registry, config.errors_topic, is_replay)

    def replay(self) -> Self:
        """Return that of a replay of the errors topic."""
        assert self.errors_topic is not None
        return replace(self, source=self.errors_topic, is_replay=True)

    def decoder(self, schema: RowSchema, storage_options: Mapping[str, str]) -> ValueDecoder:
        """Return what makes rows of values.

        Args:
            storage_options: of a registry that is a folder.

        Raises:
            ReplogError: REPLOG_MISSING_OPTION, REPLOG_INVALID_OPTION, REPLOG_INVALID_SCHEMA, REPLOG_ENVIRONMENT.
        """
        if self.value_format == "avro" and not self.value_schema and not self.registry:
            raise InvalidConfigError(
                ErrorCode.REPLOG_MISSING_OPTION,
                "values in Avro are read with the schema with which they were written. Give it as --value-schema, or"
                " name the registry that has it: --value-registry.",
            )
        registry = SchemaRegistry(self.registry, {}, storage_options).texts if self.registry else None
        return ValueDecoder(self.value_format, schema, avro=self.value_schema, registry=registry)


class Derivation:
    """One derivation, of one store. Not thread-safe.

    Args:
        chunk_rows: maximum records of one append.

    Attributes:
        position: after the last append, as the last `look_at_logs` or append saw it.
        starts, ends: per source partition, what is left to read.
        lost: in words, what `look_at_logs` passed over because the caller accepts the loss.
        row_count, bad_count: appended by this object.
    """

    def __init__(self, cluster: Cluster, target: str, recipe: Recipe, *, chunk_rows: int = CHUNK_ROWS) -> None:
        self.target, self.recipe = target, recipe
        self._cluster, self._chunk_rows = cluster, chunk_rows
        self._appender = ChunkAppender(cluster, "derive")
        self._fetcher = RecordFetcher(cluster, ConsumerConfig(), ConsumerMetrics())
        self._source: TopicHandle | None = None
        self._target_id: TopicId | None = None
        self._decoder: tuple[RowSchema, ValueDecoder] | None = None
        self.position = DerivedPosition()
        self.starts: Places = {}
        self.ends: dict[int, int] = {}
        self.lost: list[str] = []
        self._untold: Places = {}
        """Of partitions that lost records and have no later ones: where they were before that."""
        self.row_count = self.bad_count = 0

    @property
    def left_count(self) -> int:
        """Return how many source offsets are left."""
        return sum(max(0, end - self.starts[number][0]) for number, end in self.ends.items())

    def look_at_logs(self, *, accepts_loss: bool = False) -> None:
        """Read where the derivation is, and how far the source goes now.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION; UNKNOWN_TOPIC_ID: another topic has the source's name now.
            DataLossError: REPLOG_DATA_LOSS: records are gone that were not derived. With ``accepts_loss`` neither:
                it goes on with what there is.
            InvalidConfigError: REPLOG_INVALID_SCHEMA: the source is typed, or the target is not.
        """
        recipe = self.recipe
        handles = self._cluster.newest_topics([recipe.source, self.target])
        source, target = handles[recipe.source], handles[self.target]
        ledger, source_state = self._cluster.folded_topic(source)
        target_ledger, target_state = self._cluster.folded_topic(target)
        require_bytes(recipe.source, source_state.schema, "a derivation reads")
        require_typed(self.target, target_state.schema)
        identity = derivation_identity(
            self._cluster.brokers.cluster_id, recipe.source, target.topic_id, DerivedPosition()
        )
        producer = target_ledger.ask(lambda state: state.producers.get(identity))
        position = DerivedPosition()
        if producer is not None:
            position = DerivedPosition.parse(producer.incarnation, producer.last_sequences[producer.incarnation])
        self._source, self._target_id, self.position = source, target.topic_id, position
        self.lost, self.starts, self.ends, self._untold = [], {}, {}, {}
        is_other = position.has_begun and position.source_id != source.topic_id
        if is_other:
            if not accepts_loss:
                raise self._gone(f"topic '{recipe.source}' was deleted and created again", "--skip-lost")
            self.lost.append(f"what was not derived of the topic that had the name '{recipe.source}' before is gone")
        with ledger.lock:
            for number, partition in enumerate(source_state.partitions):
                at, epoch = 0, UNDEFINED_EPOCH  # of a partition that was added since
                if is_other or not position.has_begun:
                    at = partition.log_start_offset
                elif number < len(position.places):
                    at, epoch = position.places[number]
                place = FetchPartition(ledger, source.topic_id, number, at, 0, epoch)
                start = self._start(place, partition, look(place, one_section_min=False))
                self.starts[number], self.ends[number] = (start, partition.leader_epoch), partition.high_watermark
                if start != at and start == self.ends[number]:
                    self._untold[number] = at, epoch
        if self.lost and not accepts_loss:
            raise DataLossError(
                ErrorCode.REPLOG_DATA_LOSS,
                f"records of '{recipe.source}' are gone that topic '{self.target}' does not have: "
                f"{'; '.join(self.lost)}. Nothing was skipped. To go on with the records that there are: "
                f"{self._command('--skip-lost')}",
                source=recipe.source,
            )

    def _start(self, place: FetchPartition, partition: PartitionState, state: FetchState) -> int:
        """Return where to read a partition on; note the records that it lost, once there are others after them.

        Before that there is no append that could pass over them on request.
        """
        at, first, end = place.fetch_offset, partition.log_start_offset, partition.high_watermark
        if state.error is None:
            return at
        name = f"{self.recipe.source}-{place.partition}"
        if at < first:
            start, what = first, f"offsets {at} to {first - 1} of {name} were deleted before they were derived"
        else:
            start = min(end, at) if state.diverging_offset is None else state.diverging_offset
            what = f"{name} was cut back to offset {start} and was derived up to {at}: it has other records now"
        if start < end:
            self.lost.append(what)
        return start

    def run(
        self,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        accepts_loss: bool = False,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Derive up to the source's end as it is now. What is appended stays, whatever happens.

        Raises:
            ReplogError: as `look_at_logs`; REPLOG_DESERIALIZATION: a bad record, and there is no errors topic; the
                records before it were derived. As writes.
        """
        self.look_at_logs(accepts_loss=accepts_loss)
        last = dict(self.ends)
        while not is_stopped():
            try:
                for rows in self._chunks(last):
                    self._append(rows)
                    on_progress()
                    if is_stopped():
                        return
            except ReplogError as error:
                if error.code not in _LOST_RACE:
                    raise
                self.look_at_logs(accepts_loss=accepts_loss)  # another process derives too, and was first
                continue
            for number, end in last.items():  # compaction may have removed the last ones
                self.starts[number] = max(end, self.starts[number][0]), self.starts[number][1]
            return

    def _chunks(self, ends: dict[int, int]) -> Iterator[pa.RecordBatch]:
        """Yield the records from the position up to the ends."""
        assert self._source is not None
        name = self._source.name
        spans = {
            TopicPartition(name, number): (self.starts[number][0], end)
            for number, end in ends.items()
            if self.starts[number][0] < end
        }
        read = (batch for _, batch, _ in self._fetcher.scan(spans, {name: self._source}) if batch.num_rows)
        for batches in in_chunks(read, self._chunk_rows):
            yield pa.Table.from_batches(batches).combine_chunks().to_batches()[0]

    def _append(self, rows: pa.RecordBatch) -> None:
        """Append what becomes of N records, in the order of each partition's offsets."""
        assert self._source is not None
        recipe = self.recipe
        if recipe.is_replay:
            rows = self._own(rows)
            if not rows.num_rows:
                return
        errors = recipe.errors_topic
        plan = make_write_plan(self._cluster, [self.target, *([errors] if errors else [])])
        topic = plan.topic(self.target)
        if topic.topic_id != self._target_id:
            raise self._gone(f"topic '{self.target}' was deleted and created again")
        schema = require_typed(self.target, topic.schema)
        if self._decoder is None or self._decoder[0] != schema:
            self._decoder = schema, recipe.decoder(schema, self._cluster.storage_options)
        columns, reasons = self._decoder[1].decode(rows.column("value"))
        problem: ReplogError | None = None
        if errors is None and reasons.null_count < len(reasons):
            first = int(np.flatnonzero(np.asarray(reasons.is_valid()))[0])
            problem = self._bad(rows.slice(first, 1), reasons[first].as_py())
            rows, columns, reasons = rows.slice(0, first), columns.slice(0, first), reasons.slice(0, first)
        if rows.num_rows:
            is_good = reasons.is_null()
            parts = {self.target: self._good(rows.filter(is_good), columns.filter(is_good), schema, topic)}
            if errors is not None:
                is_bad, taker = pc.invert(is_good), plan.topic(errors)
                check_errors_topic(errors, taker.schema, taker.ledger_id, topic.ledger_id)
                parts[errors] = self._to_errors(rows.filter(is_bad), reasons.filter(is_bad), taker)
            bad_count = rows.num_rows - parts[self.target].num_rows
            self._decide(rows, plan, {name: part for name, part in parts.items() if part.num_rows}, bad_count)
        if problem is not None:
            raise problem

    def _own(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of an errors topic that no other target has."""
        targets = header_values(rows.column("headers"), CONNECTOR)
        return rows.filter(pc.equal(targets, self.target.encode()).fill_null(True))

    def _good(
        self, rows: pa.RecordBatch, columns: pa.RecordBatch, schema: RowSchema, topic: TopicPlan
    ) -> pa.RecordBatch:
        """Return decoded records as rows of the target: with their times and headers, and without a key their place."""
        made = {name: columns.column(name) for name in columns.schema.names}
        made[TYPED_TIMESTAMP] = rows.column("timestamp")
        made[TYPED_HEADERS] = plain_headers(rows.column("headers"))
        if not schema.key:
            made[TYPED_PARTITION] = _partitions(rows, topic)
        return pa.RecordBatch.from_arrays(list(made.values()), list(made))

    def _to_errors(self, rows: pa.RecordBatch, reasons: pa.Array, topic: TopicPlan) -> pa.RecordBatch:
        headers = bad_headers(rows, self.target, reasons, keeps_origin=self.recipe.is_replay)
        columns = [*(rows.column(name) for name in ("key", "value", "timestamp")), headers, _partitions(rows, topic)]
        return pa.RecordBatch.from_arrays(columns, ["key", "value", "timestamp", "headers", "partition"])

    def _decide(self, rows: pa.RecordBatch, plan: WritePlan, parts: dict[str, pa.RecordBatch], bad_count: int) -> None:
        """Append the rows, bad records and position that N records make."""
        assert self._source is not None and self._target_id is not None
        partitions, offsets = (np.asarray(rows.column(name)) for name in ("partition", "offset"))
        places = {**self.starts, **self._untold}
        for number in np.unique(partitions).tolist():
            places[number] = int(offsets[partitions == number][-1]) + 1, places[number][1]
        position = self.position.moved(
            self._source.topic_id, (places[number] for number in sorted(places)), rows.num_rows, bad_count
        )
        identity = derivation_identity(
            self._cluster.brokers.cluster_id, self.recipe.source, self._target_id, position, process_id()
        )
        after = self.position.sequence
        self._appender.append(plan, {name: [batch] for name, batch in parts.items()}, identity, after_sequence=after)
        self.position = position
        self.starts = {**places, **{number: self.starts[number] for number in self._untold}}
        self.row_count += rows.num_rows - bad_count
        self.bad_count += bad_count

    def _bad(self, row: pa.RecordBatch, reason: str) -> ReplogError:
        """Return the error of a bad record that has nowhere to go."""
        at = row.column("offset")[0].as_py()
        place = f"{self.recipe.source}-{row.column('partition')[0].as_py()}"
        return ReplogError(
            ErrorCode.REPLOG_DESERIALIZATION,
            f"the record at offset {at} of {place} does not fit topic '{self.target}': {reason}. The records before it "
            "were derived, and nothing was skipped. Let an errors topic take such records: "
            f"{self._command('--errors-topic', self.target + '-errors')}. Or change the columns of '{self.target}' with"
            " topic schema evolve.",
            source=self.recipe.source,
            offset=at,
        )

    def _gone(self, what: str, *words: str) -> NotFoundError:
        return NotFoundError(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"{what}. Nothing of the new one was read or written. To go on with the topics that have the names now: "
            f"{self._command(*words)}",
        )

    def _command(self, *words: str) -> str:
        """Return the command that goes on, for a message."""
        if self.recipe.is_replay:
            return command_line(self._cluster.path, "topic", "replay", self.recipe.source, "--to", self.target, *words)
        return command_line(self._cluster.path, "topic", "derive", self.recipe.source, self.target, *words)


def require_bytes(topic: str, schema: RowSchema | None, what: str) -> None:
    """Refuse a typed topic as source or errors topic.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA.
    """
    if schema is not None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            f"topic '{topic}' is typed ({schema.ddl}), and {what} a topic of bytes. Name another one.",
            topic=topic,
        )


def require_typed(topic: str, schema: RowSchema | None) -> RowSchema:
    """Return the schema of a topic that is filled.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: its rows are bytes.
    """
    if schema is None:
        raise InvalidConfigError(
            ErrorCode.REPLOG_INVALID_SCHEMA,
            f"the rows of topic '{topic}' are bytes, and a derivation fills columns. Name a typed topic, or a new one "
            "with --schema.",
            topic=topic,
        )
    return schema


def check_errors_topic(name: str, schema: RowSchema | None, ledger_id: LedgerId, target_ledger_id: LedgerId) -> None:
    """Refuse an errors topic that cannot take bad records in the entry of the rows.

    Raises:
        InvalidConfigError: REPLOG_INVALID_SCHEMA: it is typed. INVALID_REQUEST: it is in another ledger.
    """
    require_bytes(name, schema, "an errors topic is")
    if ledger_id != target_ledger_id:
        raise InvalidConfigError(
            ErrorCode.INVALID_REQUEST,
            f"the errors topic '{name}' is not in the ledger of the target, so bad records and rows would not be "
            "decided as one. Name one that does not exist yet: --errors-topic makes it in the right ledger.",
            topic=name,
        )


def _partitions(rows: pa.RecordBatch, topic: TopicPlan) -> pa.Array:
    """Return the partition of each record by its source partition, so that those of one stay in order."""
    return array_of(np.asarray(rows.column("partition")) % np.int32(len(topic.replica_sets)))
