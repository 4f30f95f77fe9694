"""One mirrored topic of a store, as its mirror sees it: its ends are the mirror's position, and only it appends.

Nothing is kept beside the log. A mirror that was killed, or a second one, asks for the ends and goes on there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from spark_replog.client.chunk_append import ChunkAppender
from spark_replog.cluster.cluster import Cluster, TopicHandle
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.errors import ErrorCode, ReplogError
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import LogExtend, MirrorAdvance, Outcome
from spark_replog.maintenance.segment_writer import CompactionRun, SegmentWriter, make_run

Spans = Mapping[int, tuple[int, int]]
"""Partition -> a log end, and the one that follows it."""
TIMEOUT_MS = 60_000


class MirroredLog:
    """Not thread-safe.

    Args:
        source: what the topic is a mirror of.

    Raises:
        ReplogError: REPLOG_MIRROR_MISMATCH: the topic is no mirror, or one of something else.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
    """

    def __init__(self, cluster: Cluster, appender: ChunkAppender, topic: str, source: str) -> None:
        self._cluster, self._appender, self.topic = cluster, appender, topic
        cluster.refresh()
        self.handle: TopicHandle = cluster.lookup(topic)
        self._ledger, state = cluster.topic_state(self.handle)
        self._segments = SegmentWriter(cluster.brokers)
        if state.mirror != source:
            kind = f"a mirror of {state.mirror}" if state.mirror else "no mirror: it was promoted, or others made it"
            raise ReplogError(
                ErrorCode.REPLOG_MIRROR_MISMATCH,
                f"topic '{topic}' is {kind}. Nothing was mixed into it. Delete or rename one of them, or leave the"
                " topic out.",
                topic=topic,
                source=source,
            )

    def ends(self) -> list[int]:
        """Return the log end of each partition on the newest fold: where the mirror goes on."""
        self._ledger.refresh()
        topic_id = self.handle.topic_id
        return self._ledger.ask(lambda state: [part.log_end_offset for part in state.topics[topic_id].partitions])

    def append(self, batches: Sequence[pa.RecordBatch], spans: Spans, *, is_append_time: bool = False) -> int:
        """Append rows; see ``ChunkAppender.append_mirrored``."""
        plan = make_write_plan(self._cluster, [self.topic])
        if plan.topics[0].topic_id != self.handle.topic_id:
            raise ReplogError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"topic '{self.topic}' was deleted and made again meanwhile. Start the mirror again.",
                topic=self.topic,
            )
        return self._appender.append_mirrored(plan, self.topic, batches, spans, is_append_time=is_append_time)

    def extend(self, spans: Spans) -> bool:
        """Move ends over offsets that have no rows at the source; return whether all ends are there now.

        False while a replica is out of sync or another process changed the partition: try again later.
        """
        self._ledger.refresh()
        empty, runs = self._ledger.ask(lambda state: self._plan(state, spans))
        commands: list[MirrorAdvance | LogExtend] = [MirrorAdvance(self.handle.topic_id, tuple(empty))] if empty else []
        for run in runs:
            command = self._segments.rewrite(run)
            assert command is not None, "nothing is dropped"
            commands.append(LogExtend.of(command, spans[run.partition][1]))
        encoded = [encode_command(command) for command in commands]
        done = [self._ledger.append(partial(_given, data), timeout_ms=TIMEOUT_MS).result for data in encoded]
        fine = (Outcome.APPLIED, Outcome.EXISTS)
        is_whole = len(empty) + len(runs) == len(spans)
        return is_whole and all(result is not None and result.outcome in fine for result in done)

    def _plan(self, state: TopicLedgerState, spans: Spans) -> tuple[list[tuple[int, int, int]], list[CompactionRun]]:
        """Return the partitions without rows, whose ends just move, and the last sections of others."""
        topic_id = self.handle.topic_id
        empty: list[tuple[int, int, int]] = []
        runs: list[CompactionRun] = []
        for number, (follows, end) in spans.items():
            partition = state.topics[topic_id].partitions[number]
            if partition.log_start_offset == partition.log_end_offset:
                empty.append((number, follows, end))
                continue
            last = state.sections(topic_id, number, partition.log_end_offset - 1, partition.log_end_offset)
            replicas = partition.replicas
            is_stable = partition.log_end_offset == partition.high_watermark == follows
            holders = frozenset(partition.isr).intersection(*(section.object.holders for section in last))
            if is_stable and holders.issuperset(replicas):
                runs.append(make_run(state, topic_id, number, last))
        return empty, runs


def _given(data: bytes, _: TopicLedgerState) -> bytes:
    return data
