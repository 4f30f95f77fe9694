"""Puts the parts of a plain producer together."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import partial

from spark_replog.client.arrow_sender import ArrowSender
from spark_replog.client.committer import Appender, Committer
from spark_replog.client.metrics import ProducerMetrics
from spark_replog.client.producer_metadata import ProducerMetadata
from spark_replog.client.producer_settings import ProducerSettings
from spark_replog.client.sender_thread import SenderThread
from spark_replog.client.transactions import TransactionCoordinator
from spark_replog.clock import Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.errors import ReplogError
from spark_replog.ids import new_id
from spark_replog.log.write_plan import WritePlan
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.interceptors import Interceptors
from spark_replog.write.object_builder import ObjectBuilder
from spark_replog.write.partitioner import UserPartitioner
from spark_replog.write.sender import Sender
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.serializers import Serializer
from spark_replog.write.task_writer import pool_bytes_of
from spark_replog.write.transport import PutTransport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerParts:
    """One producer's parts; its thread is not started."""

    pool: BufferPool
    accumulator: RecordAccumulator
    metadata: ProducerMetadata
    sequences: ProducerSequences | None
    appender: Appender
    transactions: TransactionCoordinator | None
    sender: Sender
    thread: SenderThread
    arrow: ArrowSender


def build_parts(
    cluster: Cluster,
    settings: ProducerSettings,
    clock: Clock,
    metrics: ProducerMetrics,
    *,
    interceptors: Interceptors,
    serializers: tuple[Serializer, Serializer],
    partitioner: UserPartitioner | None,
    client_id: str,
) -> ProducerParts:
    """Return the parts of a producer; interceptors, serializers and partitioner are those of Arrow batches."""
    random_source = random.Random()
    producer_id = settings.client.transactional_id or new_id()
    is_transactional = settings.client.transactional_id is not None
    sequences = ProducerSequences(producer_id, is_transactional=is_transactional) if settings.is_idempotent else None
    transport = PutTransport(cluster.brokers)
    accumulator = _make_accumulator(settings, clock, random_source, transport, sequences, metrics)

    def on_plan(plan: WritePlan) -> None:
        builder.plan = plan

    metadata = ProducerMetadata(cluster, accumulator, settings, clock, random_source, on_plan=on_plan)
    builder = ObjectBuilder(metadata.plan, accumulator.pool, query_id=new_id(), batch_id=0, task_id=0)
    appender = Appender(
        ReplicaManager(cluster, settings.coordinator),
        settings.producer,
        clock,
        principal=metadata.plan.principal,
        client_id=client_id,
        random_source=random_source,
        on_throttle=partial(metrics.observe, "produce-throttle-time"),
    )
    committer = Committer(appender, settings.producer, clock, metrics, transport.wake)
    transactions = _make_transactions(cluster, settings, clock, metrics, appender, committer, transport)
    delivery = transactions or committer
    sender = Sender(
        accumulator,
        transport,
        builder,
        settings.producer,
        delivery=delivery,
        report=_log,
        random_source=random_source,
        sequences=sequences,
    )
    thread = SenderThread(
        sender,
        accumulator,
        transport,
        metadata,
        lambda: delivery.is_idle,
        clock,
        availability_timeout_ms=settings.client.availability_timeout_ms,
        name=f"replog-producer {client_id}",
    )
    arrow = ArrowSender(
        accumulator, settings, interceptors, clock, random_source, metadata,
        serializers=serializers, partitioner=partitioner,
    )  # fmt: skip
    return ProducerParts(
        accumulator.pool, accumulator, metadata, sequences, appender, transactions, sender, thread, arrow
    )


def _make_transactions(
    cluster: Cluster,
    settings: ProducerSettings,
    clock: Clock,
    metrics: ProducerMetrics,
    appender: Appender,
    committer: Committer,
    transport: PutTransport,
) -> TransactionCoordinator | None:
    transactional_id = settings.client.transactional_id
    if transactional_id is None:
        return None
    return TransactionCoordinator(
        transactional_id,
        cluster,
        appender,
        committer.begin,
        clock,
        metrics,
        delivery_timeout_ms=settings.producer.delivery_timeout_ms,
        transaction_timeout_ms=settings.client.transaction_timeout_ms,
        wake_up=transport.wake,
    )


def _make_accumulator(
    settings: ProducerSettings,
    clock: Clock,
    random_source: random.Random,
    transport: PutTransport,
    sequences: ProducerSequences | None,
    metrics: ProducerMetrics,
) -> RecordAccumulator:
    config = settings.producer
    return RecordAccumulator(
        BufferPool(
            pool_bytes_of(config),
            clock=clock,
            poolable_bytes=min(config.batch_size_bytes, config.max_request_size_bytes),
            on_wait=metrics.on_pool_wait,
        ),
        batch_size_bytes=config.batch_size_bytes,
        max_request_size_bytes=config.max_request_size_bytes,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        wake_up=transport.wake,
        on_failed=lambda count: metrics.count("record-error", count),
        clock=clock,
        random_source=random_source,
        sequences=sequences,
    )


def _log(error: ReplogError) -> None:
    logger.warning("%s", error)


__all__ = ["ProducerParts", "build_parts"]
