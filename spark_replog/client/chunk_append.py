"""Appends a chunk of rows that were read elsewhere: one entry of one ledger, whose identity says how far they came.

Copies and derivations of topics work like this. The ledger refuses an append that does not follow the one that its
writer saw, so a process that was killed, or another one at the same time, appends no row twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.fault_point import fault_point
from spark_replog.ids import LedgerId, new_id, process_id
from spark_replog.log.model import Append, DataObject, IdentityKind, MirrorAppend, ProducerIdentity
from spark_replog.log.write_plan import WritePlan
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.write.task_writer import TaskResult, TaskWriter

CHUNK_BYTES = 32 << 20
"""Approximate size of a chunk in memory."""
CHUNK_ROWS = 100_000


def in_chunks(batches: Iterable[pa.RecordBatch], chunk_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows in chunks of at most ``chunk_rows`` rows and about ``CHUNK_BYTES``; never an empty one."""
    waiting: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for rows in batches:
        step = max(1, min(chunk_rows, rows.num_rows * CHUNK_BYTES // max(1, rows.nbytes)))
        for at in range(0, rows.num_rows, step):
            piece = rows.slice(at, step)
            if waiting and (row_count + piece.num_rows > chunk_rows or size_bytes >= CHUNK_BYTES):
                yield waiting
                waiting, row_count, size_bytes = [], 0, 0
            waiting.append(piece)
            row_count += piece.num_rows
            size_bytes += piece.nbytes
    if waiting:
        yield waiting


class ChunkAppender:
    """Appends chunks to topics of one store. Not thread-safe.

    Args:
        client_id: of the appends, and the first part of their fault points: ``copy``, ``derive``, ``mirror``.
        config: of the writes; None: the defaults.
    """

    def __init__(self, cluster: Cluster, client_id: str, config: ProducerConfig | None = None) -> None:
        self._cluster, self._client_id = cluster, client_id
        self._config = ProducerConfig() if config is None else config
        self._manager = ReplicaManager(cluster, None, Upkeep(cluster, cluster.config).start)

    def append(
        self,
        plan: WritePlan,
        rows: Mapping[str, Sequence[pa.RecordBatch]],
        identity: ProducerIdentity,
        *,
        after_sequence: int,
        task_id: int = 0,
    ) -> tuple[int, int]:
        """Append rows by topic, all in one entry; return how many rows and bytes.

        Args:
            plan: of these topics, which have one ledger.
            after_sequence: see ``AppendRequest``.

        Raises:
            InvalidConfigError: INVALID_REQUEST: the topics have several ledgers, and nothing is atomic there.
            FencedError: PRODUCER_FENCED: another process appended meanwhile; nothing of this one is in the log.
            ReplogError: as writes; REPLOG_COMMIT_OUTCOME_UNKNOWN: the newest fold tells later.
        """
        results = [self._write(plan, topic, batches, identity.sequence, task_id) for topic, batches in rows.items()]
        ledger_ids = {ledger_id for made in results for ledger_id, _ in made.objects}
        if len(ledger_ids) > 1:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST,
                f"the topics {', '.join(rows)} are in {len(ledger_ids)} ledgers. Create them with one --ledger.",
            )
        objects = tuple(item for made in results for _, item in made.objects)
        append = Append(*self._head(identity), objects)
        self._decide(
            ledger_ids.pop(), AppendRequest(append, self._config.request_timeout_ms, after_sequence=after_sequence)
        )
        return sum(made.row_count for made in results), sum(made.size_bytes for made in results)

    def append_mirrored(
        self,
        plan: WritePlan,
        topic: str,
        batches: Sequence[pa.RecordBatch],
        spans: Mapping[int, tuple[int, int]],
        *,
        is_append_time: bool = False,
    ) -> int:
        """Append rows of a mirrored topic at their offsets, all in one entry; return how many bytes.

        An append that is in the log already, from this process or another mirror, succeeds and changes nothing.

        Args:
            batches: key, value, timestamp, headers, ``partition`` and ``offset`` (int64, ascending in each partition).
            spans: partition -> the log end that its rows follow, and the one after them.
            is_append_time: whether the times are those of LogAppendTime.

        Raises:
            FencedError: PRODUCER_FENCED: a partition ends elsewhere.
            InvalidConfigError: REPLOG_MIRRORED_TOPIC: the topic is no mirror.
            ReplogError: as writes.
        """
        partitions = np.concatenate([batch.column("partition").to_numpy() for batch in batches])
        offsets = np.concatenate([batch.column("offset").to_numpy() for batch in batches])
        by_partition = {number: offsets[partitions == number] for number in np.unique(partitions).tolist()}
        if all(_is_dense(rows, spans[number][0]) for number, rows in by_partition.items()):
            batches = [batch.drop_columns(["offset"]) for batch in batches]
        made = self._write(plan, topic, batches, 0, 0, are_mirrored=True)
        objects = tuple(item for _, item in made.objects)
        head = self._head(ProducerIdentity("mirror", "mirror", 0, process_id(), IdentityKind.ONE_SHOT))
        counts = Append(*head, objects).row_counts
        follows = tuple(spans[number][0] for _, number in counts)
        ends = _section_ends(objects, by_partition, spans)
        append = MirrorAppend(*head, objects, follows, ends, is_append_time)
        self._decide(plan.topic(topic).ledger_id, AppendRequest(append, self._config.request_timeout_ms))
        return made.size_bytes

    def _head(self, identity: ProducerIdentity) -> tuple[ProducerIdentity, str, str, int]:
        return identity, default_principal(), f"replog {self._client_id}", self._cluster.clock.now_ms()

    def _decide(self, ledger_id: LedgerId, request: AppendRequest) -> None:
        fault_point(f"{self._client_id}.written")
        (answer,) = self._manager.append_records({ledger_id: request}).values()
        if answer.error is not None:
            raise answer.error
        fault_point(f"{self._client_id}.appended")

    def _write(
        self,
        plan: WritePlan,
        topic: str,
        batches: Sequence[pa.RecordBatch],
        sequence: int,
        task_id: int,
        *,
        are_mirrored: bool = False,
    ) -> TaskResult:
        writer = TaskWriter(
            plan,
            self._config,
            self._cluster.brokers,
            query_id=new_id(),
            batch_id=sequence,
            task_id=task_id,
            default_topic=topic,
            are_mirrored=are_mirrored,
            clock=self._cluster.clock,
        )
        try:
            for batch in batches:
                writer.append(batch)
            return writer.close()
        except BaseException:
            writer.abort()
            raise


def _is_dense(offsets: np.ndarray, first: int) -> bool:
    """Return whether ascending offsets are all of those from a first one on."""
    return bool(offsets[0] == first and offsets[-1] - first + 1 == len(offsets))


def _section_ends(
    objects: Sequence[DataObject], offsets: Mapping[int, np.ndarray], spans: Mapping[int, tuple[int, int]]
) -> tuple[int, ...]:
    """Return where each section of a mirrored topic ends: at the next row of its partition, the last at its span's."""
    done = dict.fromkeys(offsets, 0)
    ends = []
    for section in (section for item in objects for section in item.sections):
        number = section.partition
        done[number] += section.row_count
        rows, at = offsets[number], done[number]
        ends.append(int(rows[at]) if at < len(rows) else spans[number][1])
    return tuple(ends)
