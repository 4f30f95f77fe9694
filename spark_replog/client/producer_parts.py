"""The parts of a plain producer, from the accumulator to the sender's thread, and how they are connected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spark_replog.client.arrow_sender import ArrowSender
from spark_replog.client.committer import Appender, Committer
from spark_replog.client.metrics import ProducerMetrics
from spark_replog.client.producer_metadata import ProducerMetadata
from spark_replog.client.record_form import RecordForm
from spark_replog.client.sender_thread import SenderThread
from spark_replog.client.settings import ProducerSettings
from spark_replog.client.transactions import TransactionCoordinator
from spark_replog.clock import Clock
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.producer import INLINE_BYTES_REMOTE
from spark_replog.errors import ReplogError
from spark_replog.ids import new_id
from spark_replog.maintenance.upkeep import Upkeep
from spark_replog.quorum import majority_of
from spark_replog.storage.call_counter import CallCounter
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.data_request import ObjectBuilder
from spark_replog.write.interceptors import Interceptors
from spark_replog.write.producer_batch import Destination
from spark_replog.write.sender import Sender
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.task_writer import pool_bytes_of
from spark_replog.write.transport import PutTransport


@dataclass(frozen=True, slots=True)
class ProducerParts:
    """What a producer is made of."""

    accumulator: RecordAccumulator
    metadata: ProducerMetadata
    upkeep: Upkeep
    appender: Appender
    sequences: ProducerSequences | None
    transactions: TransactionCoordinator | None
    sender: Sender
    thread: SenderThread
    arrow: ArrowSender
    calls: CallCounter


def connect_parts(
    cluster: Cluster,
    settings: ProducerSettings,
    form: RecordForm,
    interceptors: Interceptors,
    metrics: ProducerMetrics,
    clock: Clock,
    *,
    client_id: str,
    report: Callable[[ReplogError], None],
) -> ProducerParts:
    """Make the parts of a producer; its thread is not started yet."""
    random_source = random.Random()
    client, producer = settings.client, settings.producer
    transactional_id = client.transactional_id
    transport = PutTransport(cluster.brokers)
    sequences = None
    if settings.is_idempotent:
        sequences = ProducerSequences(transactional_id or new_id(), is_transactional=transactional_id is not None)
    accumulator = _make_accumulator(settings, clock, random_source, transport, sequences, metrics)
    plan = make_write_plan(cluster, [], client.principal)
    builder = ObjectBuilder(
        plan, accumulator.pool, query_id=new_id(), batch_id=0, task_id=0,
        folded=lambda ledger_id: cluster.topic_ledger(ledger_id).state.applied_index,
        inline_room=None if transactional_id else partial(inline_room, cluster, client.inline_max_bytes),
    )  # fmt: skip
    metadata = ProducerMetadata(cluster, accumulator, builder, settings, clock, random_source)
    upkeep = Upkeep(cluster, settings.coordinator)
    appender = Appender(
        ReplicaManager(cluster, settings.coordinator, upkeep.start),
        producer,
        clock,
        principal=plan.principal,
        client_id=client_id,
        random_source=random_source,
        on_throttle=partial(metrics.observe, "produce-throttle-time"),
    )
    committer = Committer(appender, producer, clock, metrics, transport.wake, report)
    transactions = None
    if transactional_id is not None:
        transactions = TransactionCoordinator(
            cluster, appender, committer.begin, clock, metrics, settings, transport.wake
        )
    delivery = transactions or committer
    sender = Sender(
        accumulator, transport, builder, producer,
        delivery=delivery, report=report, random_source=random_source, sequences=sequences,
    )  # fmt: skip
    thread = SenderThread(
        sender,
        accumulator,
        transport,
        metadata,
        lambda: delivery.is_idle,
        clock,
        availability_timeout_ms=client.availability_timeout_ms,
        name=f"replog-producer {client_id}",
    )
    arrow = ArrowSender(accumulator, settings, interceptors, clock, random_source, builder, form)
    return ProducerParts(
        accumulator, metadata, upkeep, appender, sequences, transactions, sender, thread, arrow, cluster.brokers.calls
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
        config,
        sends_awaited=settings.sends_awaited,
        wake_up=transport.wake,
        on_failed=partial(metrics.count, "record-error"),
        clock=clock,
        random_source=random_source,
        sequences=sequences,
    )


def inline_room(
    cluster: Cluster, limit_bytes: int | None, destination: Destination, required_count: int, in_flight_bytes: int
) -> int:
    """Return how many bytes a ledger's next entry may carry: `inline.max.bytes`, or 0 where copies would be missing.

    An entry is on a majority of the metadata roots when it is decided. So these must be as many as acks=all requires,
    and the rows' replicas must be among the metadata roots. Bytes in flight may all come with that entry.
    """
    brokers = cluster.brokers
    roots = brokers.metadata_broker_ids
    if limit_bytes is None:
        limit_bytes = INLINE_BYTES_REMOTE if brokers.near_ids.isdisjoint(roots) else 0
    is_enough = required_count <= majority_of(len(roots))
    if not limit_bytes or not is_enough or not {*destination.brokers, *destination.spares}.issubset(roots):
        return 0
    return min(limit_bytes, cluster.topic_ledger(destination.ledger_id).state.inline_room_bytes - in_flight_bytes)
