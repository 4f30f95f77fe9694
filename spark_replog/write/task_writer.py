"""One write task: turns Arrow batches into data objects on every in-sync root, and returns a message.

Runs in the executor. It reads no ledger: the driver's plan describes the topics.

While a reservation of memory waits, the sender runs on the same thread, so that it never waits for itself.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.config.producer import ProducerConfig, TaskHooks
from spark_replog.errors import ErrorCode, InvalidConfigError, ReplogError
from spark_replog.ids import LedgerId
from spark_replog.log.model import DataObject
from spark_replog.log.write_plan import WritePlan
from spark_replog.storage.brokers import BrokerSet
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.arrow_appender import ArrowAppender, RowRouter
from spark_replog.write.buffer_pool import BufferPool
from spark_replog.write.columns import InputColumns
from spark_replog.write.data_request import ObjectBuilder, RequestState
from spark_replog.write.interceptors import Interceptors
from spark_replog.write.partitioner import make_partitioner
from spark_replog.write.producer_batch import Destination
from spark_replog.write.sender import Sender
from spark_replog.write.serializers import check_arrow_form, make_serializer, serialize_columns
from spark_replog.write.transport import PutTransport
from spark_replog.write.typed_columns import TypedColumns

logger = logging.getLogger(__name__)

ABORT_WAIT_MS_MAX = 1_000
_SLACK_DIVISOR = 4
_LENT_BYTES_MAX = 4 * 1024 * 1024
NEAR_REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""On local folders no object is made larger, unless a record is: a task waits for its last one, and the disk for the
first. Over a network, where each request costs more, ``max.request.size`` alone limits it."""


def pool_bytes_of(config: ProducerConfig) -> int:
    """Return how much of ``buffer.memory`` the pool may lend.

    A quarter is kept for memory that the pool cannot count: pages that Arrow's allocator keeps, and the copy of an
    object being built. So the process stays within the limit of G8. Up to 4 MiB, all is lent, so that a row may be as
    large as a small buffer, as in Kafka.
    """
    total_bytes = config.buffer_memory_bytes
    return max(min(total_bytes, _LENT_BYTES_MAX), total_bytes - total_bytes // _SLACK_DIVISOR)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Content of the task's commit message. Picklable."""

    objects: tuple[tuple[LedgerId, DataObject], ...]
    """In drain order, so that rows of a partition keep their order."""
    row_count: int
    """Rows in these objects."""
    size_bytes: int
    dropped_rows: int
    """Rows that acks=0 lost."""


class TaskWriter:
    """Writes the rows of one task attempt. One thread; not picklable.

    Args:
        query_id: of the query or producer; its first 8 characters go into object names.
        batch_id: micro-batch, or sequence of the producer.
        task_id: Spark partition id of the task.
        default_topic: the topic option; None: rows name their topic.
        hooks: the user's interceptors and serializers, in their Arrow form.
        is_case_sensitive, timestamp_column, headers_column: of the input for a typed topic: see ``TypedColumns``.
        are_mirrored: whether the rows are those of another log; see ``InputColumns``.
        inline_room: see ``ObjectBuilder``; only of a writer in the process that appends.
    """

    def __init__(
        self,
        plan: WritePlan,
        config: ProducerConfig,
        brokers: BrokerSet,
        *,
        query_id: str,
        batch_id: int,
        task_id: int,
        default_topic: str | None,
        hooks: TaskHooks | None = None,
        is_case_sensitive: bool = True,
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        are_mirrored: bool = False,
        inline_room: Callable[[Destination, int, int], int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        # Seeded by the task, so that a retry chooses the same partitions.
        random_source = random.Random(f"{query_id}/{batch_id}/{task_id}")
        self._config = config
        self._clock = clock
        self._default_topic = default_topic
        self._hooks = None if hooks is None or hooks == TaskHooks() else _Hooks(hooks)
        self._are_mirrored = are_mirrored
        self._columns: InputColumns | TypedColumns | None = None
        self._schema = None if default_topic is None else plan.topic(default_topic).schema
        self._names = is_case_sensitive, timestamp_column, headers_column
        custom = make_partitioner(config.partitioner_class) if config.partitioner_class else None
        if custom is not None:
            custom.check_arrow_form()
        pool_bytes = pool_bytes_of(config)
        self._pool = BufferPool(pool_bytes, clock=clock)
        request_bytes = config.max_request_size_bytes
        if brokers.near_ids:
            request_bytes = min(request_bytes, NEAR_REQUEST_BYTES_MAX)
        limits = replace(config, max_request_size_bytes=request_bytes)
        self._accumulator = RecordAccumulator(self._pool, limits, fills_requests=True, clock=clock)
        self._appender = ArrowAppender(
            RowRouter(plan, config, default_topic, random_source, custom, row_bytes_max=pool_bytes),
            self._accumulator,
            config=config,
            clock=clock,
            make_progress=self._make_progress,
            after_range=self._run_sender,
        )
        self._transport = PutTransport(brokers)
        self._sender = Sender(
            self._accumulator,
            self._transport,
            ObjectBuilder(
                plan, self._pool, query_id=query_id, batch_id=batch_id, task_id=task_id, inline_room=inline_room
            ),
            config,
            delivery=None,
            report=_log,
            random_source=random_source,
        )
        self._is_closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch, and send ready objects.

        Args:
            batch: columns by exact name: value (string or binary) is required. Optional: key (string or
                binary), topic (string), partition (int32), headers (list of struct of key and
                value) and timestamp (with a zone; any other type is ignored). Other columns are ignored. If the
                topic option names a typed topic, its columns: see ``TypedColumns``.

        Raises:
            InvalidConfigError: the schema or a row is refused; the task must be aborted.
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION, a row names an unknown topic.
            RetriableError: a request failed, or memory stayed exhausted; nothing was committed.
        """
        if self._is_closed:
            raise _closed()
        if self._hooks is not None:
            batch = self._hooks.apply(self._default_topic, batch)
        if self._columns is None or not self._columns.schema.equals(batch.schema):
            if self._schema is None or self._default_topic is None:
                self._columns = InputColumns(
                    batch.schema, self._default_topic, ignore_other_times=True, are_mirrored=self._are_mirrored
                )
            else:
                is_case_sensitive, timestamp, headers = self._names
                self._columns = TypedColumns(
                    batch.schema,
                    self._schema,
                    self._default_topic,
                    is_case_sensitive=is_case_sensitive,
                    timestamp_column=timestamp,
                    headers_column=headers,
                )
        if batch.num_rows:
            rows = self._columns.normalise(batch, self._clock.now_ms())
            del batch
            for _ in self._appender.append(rows):  # runs the sender after each range
                pass

    def close(self) -> TaskResult:
        """Send waiting rows, wait for the copies that ``acks`` requires, and return the objects with their holders.

        Raises:
            RetriableError: NOT_ENOUGH_REPLICAS, LEADER_NOT_AVAILABLE or REQUEST_TIMED_OUT; nothing
                was committed.
        """
        if self._is_closed:
            raise _closed()
        self._accumulator.close()
        while True:
            wait_ms = self._run_sender()
            if not self._sender.has_open_requests and not self._accumulator.waiting_count:
                break
            self._transport.wait(wait_ms)
        self._is_closed = True
        if self._hooks is not None:
            self._hooks.close()
        kept = [request for request in self._sender.requests if request.state is not RequestState.DROPPED]
        return TaskResult(
            objects=tuple((request.destination.ledger_id, request.to_data_object()) for request in kept),
            row_count=sum(request.row_count for request in kept),
            size_bytes=sum(request.data_object.size_bytes for request in kept),
            dropped_rows=self._sender.dropped_row_count,
        )

    def abort(self) -> None:
        """Give up before a message is returned: delete own objects on roots that answer within a second.

        Does nothing after ``close``: an entry may name the objects by now. Garbage collection removes objects that
        could not be deleted.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._hooks is not None:
            self._hooks.close()
        self._accumulator.abort_incomplete(
            ReplogError(ErrorCode.INVALID_REQUEST, "The write task was aborted. Its retry writes the rows again.")
        )
        futures = [
            self._transport.delete(put.broker_id, request.key)
            for request in self._sender.requests
            for put in request.puts.values()
            if put.attempt
        ]
        deadline_ms = self._clock.monotonic_ms() + ABORT_WAIT_MS_MAX
        while not all(future.done() for future in futures) and self._clock.monotonic_ms() < deadline_ms:
            self._clock.sleep_ms(5)

    def _make_progress(self, left_ms: int) -> None:
        """Run the sender for a blocked allocation; if it still waits, wait for an answer."""
        wait_ms = self._run_sender()
        if self._pool.waiters:
            self._transport.wait(min(wait_ms, left_ms))

    def _run_sender(self) -> int:
        """Run the sender; return for how many milliseconds nothing is due. Raises the error of a failed request."""
        wait_ms = self._sender.run_once(self._clock.monotonic_ms())
        if self._sender.failure is not None:
            raise self._sender.failure
        return wait_ms


class _Hooks:
    """Interceptors and serializers of one task, in their Arrow form. The driver commits: none is acknowledged here."""

    def __init__(self, names: TaskHooks) -> None:
        self._interceptors = Interceptors.of(names.interceptor_classes)
        self._interceptors.check_arrow_forms(is_task=True)
        self._key_serializer = make_serializer("key.serializer", names.key_serializer)
        self._value_serializer = make_serializer("value.serializer", names.value_serializer)
        check_arrow_form(self._key_serializer, "key.serializer", "serialize_array(topic, array)")
        check_arrow_form(self._value_serializer, "value.serializer", "serialize_array(topic, array)")

    def apply(self, topic: str | None, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as changed by the interceptors, with keys and values serialized."""
        changed = self._interceptors.on_send_batch(topic, batch)
        return serialize_columns(changed, topic or "", self._key_serializer, self._value_serializer)

    def close(self) -> None:
        """Close the interceptors."""
        self._interceptors.close()


def _closed() -> InvalidConfigError:
    return InvalidConfigError(ErrorCode.INVALID_REQUEST, "This writer is closed. Open a new one.")


def _log(error: ReplogError) -> None:
    logger.warning("%s", error)
