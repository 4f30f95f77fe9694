"""Compaction of small objects by Spark's executors, for topics that are too large for one machine.

The driver plans and commits, and each task rewrites a run, with the classes of ``replog topic compact``. Nothing is
decided before the driver has a task's answer, so failed, repeated and speculative tasks only leave garbage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.commands import decode_command, encode_command
from spark_replog.log.model import Replace
from spark_replog.maintenance.compaction import CompactionReport, Compactor
from spark_replog.maintenance.segment_writer import SECTIONS_MIN, CompactionRun, SegmentWriter
from spark_replog.storage.brokers import BrokerSet, shared_brokers

_ANSWER = "id long, command binary"


def compact_on_spark(
    spark: SparkSession,
    path: str,
    topic: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    partitions: Sequence[int] | None = None,
    is_eager: bool = False,
) -> CompactionReport:
    """Join small objects of a topic into large ones; see ``spark_replog.compact``.

    Raises:
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
        NotFoundError: UNKNOWN_TOPIC_OR_PARTITION.
        ReplogError: the ledger does not answer; earlier decided parts remain.
    """
    cluster = Cluster.shared(path, storage_options)
    cluster.refresh()
    Authorizer(cluster).require(AclOperation.ALTER, ResourceType.TOPIC, topic)
    compactor = Compactor(cluster)
    runs = compactor.plan(cluster.lookup(topic), partitions, sections_min=2 if is_eager else SECTIONS_MIN)
    if not runs:
        return CompactionReport()
    rewrite = partial(_rewrite, cluster.brokers, runs)
    answers = spark.range(0, len(runs), 1, len(runs)).mapInArrow(rewrite, _ANSWER).collect()
    done = []
    for answer in sorted(answers):
        command = decode_command(bytes(answer["command"]))
        assert isinstance(command, Replace), command
        done.append((runs[answer["id"]], command))
    return compactor.commit(done)


def _rewrite(
    brokers: BrokerSet, runs: Sequence[CompactionRun], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rewrite the runs with these numbers; an error fails the task, and Spark repeats it."""
    writer = SegmentWriter(shared_brokers(brokers))
    for batch in batches:
        for number in batch.column(0).to_pylist():
            command = writer.rewrite(runs[number])
            assert command is not None  # no row was dropped
            yield pa.RecordBatch.from_pydict({"id": [number], "command": [encode_command(command)]})
