"""Copies a range of a topic into another one, of this store or of another, each row once.

Each chunk of rows is one append to the target's ledger, whose identity names the source topic and partition, the offset
that it reaches and, as its incarnation, where the copied ranges begin. So the target's log shows the progress, and a
stopped copy continues in any process. Two copies at once copy no row twice: the ledger refuses an append that does not
follow the one that its writer saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from spark_replog.client.consumer import Consumer
from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.fault_point import fault_point
from spark_replog.ids import TopicPartition, new_id, process_id
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, IdentityKind, ProducerIdentity
from spark_replog.log.row_schema import require_bytes
from spark_replog.log.write_plan import WritePlan
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.write.task_writer import TaskWriter

CHUNK_BYTES = 32 << 20
"""Approximate size of a chunk in memory."""
CHUNK_ROWS = 100_000
_COLUMNS = ("key", "value", "timestamp", "headers")


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
        for name, schema in ((source_topic, read_topic.schema), (target_topic, topic.schema)):
            require_bytes(name, schema, "topic copy is")
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
        self._manager = ReplicaManager(target, None, Upkeep(target, target.config).start)

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
        """Refuse rows that were read by the source's name since another topic has it: they are not counted as its."""
        if self._source.lookup(self._source_topic).topic_id != self._source_id:
            raise _made_again(self._source_topic)

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
        waiting: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        for batch in self.reader.to_batches():
            rows = batch.filter(pc.less(batch.column("offset"), part.end))
            step = max(1, min(self._chunk_rows, rows.num_rows * CHUNK_BYTES // max(1, rows.nbytes)))
            for at in range(0, rows.num_rows, step):
                piece = rows.slice(at, step)
                if waiting and (row_count + piece.num_rows > self._chunk_rows or size_bytes >= CHUNK_BYTES):
                    yield waiting
                    waiting, row_count, size_bytes = [], 0, 0
                waiting.append(piece)
                row_count += piece.num_rows
                size_bytes += piece.nbytes
            if rows.num_rows < batch.num_rows:
                break
        if waiting:
            yield waiting

    def _append(self, part: CopiedPartition, batches: list[pa.RecordBatch]) -> None:
        self._check_source()
        end = batches[-1].column("offset")[-1].as_py() + 1
        identity = self._identity(part.key, end, part.ranges)
        config = ProducerConfig()
        writer = TaskWriter(
            self._plan_append(),
            config,
            self._target.brokers,
            query_id=new_id(),
            batch_id=end,
            task_id=part.key.partition,
            default_topic=self._topic,
            clock=self._target.clock,
        )
        try:
            for batch in batches:
                rows = batch.select(_COLUMNS)
                writer.append(rows if self._by_key else rows.append_column("partition", batch.column("partition")))
            made = writer.close()
        except BaseException:
            writer.abort()
            raise
        (ledger_id,) = {ledger_id for ledger_id, _ in made.objects}
        objects = tuple(item for _, item in made.objects)
        append = Append(identity, default_principal(), "replog copy", self._target.clock.now_ms(), objects)
        request = AppendRequest(append, config.request_timeout_ms, after_sequence=part.last)
        fault_point("copy.written")
        (answer,) = self._manager.append_records({ledger_id: request}).values()
        if answer.error is not None:
            raise answer.error
        fault_point("copy.appended")
        part.position = part.last = end
        part.row_count += made.row_count
        part.size_bytes += made.size_bytes

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()

    def __enter__(self) -> TopicCopy:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


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
