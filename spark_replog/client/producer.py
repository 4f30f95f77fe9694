"""The plain Python producer: takes records from any thread; returns handles, which are resolved per batch.

Source: Kafka ``KafkaProducer``; ``send`` does the same steps in the same order. Imports no Spark.
"""

from __future__ import annotations

import itertools
import logging
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from spark_replog.client.arrow_sender import TableHandle
from spark_replog.client.metrics import ProducerMetrics
from spark_replog.client.producer_metadata import TopicEntry, invalid_topic
from spark_replog.client.producer_parts import connect_parts
from spark_replog.client.record_form import RecordError, RecordForm, checked_headers, checked_partition, checked_time
from spark_replog.client.settings import ProducerSettings
from spark_replog.client.transactions import TransactionCoordinator, TransactionState
from spark_replog.clock import SYSTEM_CLOCK, Clock
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.daemon_thread import run_before_exit
from spark_replog.errors import (
    ErrorCode,
    FencedError,
    InvalidConfigError,
    NotFoundError,
    ReplogError,
    stays_in_process,
)
from spark_replog.ids import TopicPartition
from spark_replog.log.row_schema import RowSchema
from spark_replog.process_state import in_each_child
from spark_replog.storage.call_counter import totals
from spark_replog.write.arrow_appender import check_times, too_large
from spark_replog.write.columns import ROW_OVERHEAD_BYTES
from spark_replog.write.interceptors import Interceptors, ProducerRecord
from spark_replog.write.partitioner import StickyPartitioner
from spark_replog.write.producer_batch import record_size
from spark_replog.write.record_handle import BatchResult, RecordHandle, RecordMetadata
from spark_replog.write.typed_columns import TypedColumns

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)
_producers: weakref.WeakSet[Producer] = weakref.WeakSet()

UPKEEP_WAIT_MS = 1_000
"""How long close() waits for background upkeep, such as retention; a later process continues it."""
EXIT_SECONDS = 30.0
"""How long a program that ends waits for the records of the producers that it did not close."""


class Producer:
    """Appends records to topics. Thread-safe; not usable in a forked child.

    Args:
        store: the store's path, as everywhere, or an opened cluster.
        config: settings under their dotted names (docs/configuration.md, Producer and Producer client).
        settings: the same as keywords, with ``_`` for ``.``.

    Raises:
        InvalidConfigError: a setting is unknown, refused, bad, or contradicts another.
        ReplogError: REPLOG_STORE_NOT_INITIALISED: there is no store.
    """

    def __init__(
        self,
        store: StorePath | Cluster,
        config: Mapping[str, object] | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **settings: object,
    ) -> None:
        self._settings = options = ProducerSettings.read(config, **settings)
        self._clock = clock
        client = options.client
        self._interceptors = Interceptors.of(client.interceptor_classes, options.objects.get("interceptor.classes"))
        self._form = RecordForm(options)
        self.client_id = client.client_id or f"producer-{next(_numbers)}"
        cluster = Cluster.of(store, options.storage)
        self._refusal: ReplogError | None = None
        self._metrics = ProducerMetrics(client.metrics_num_samples, client.metrics_sample_window_ms, clock)
        self._parts = connect_parts(
            cluster,
            options,
            self._form,
            self._interceptors,
            self._metrics,
            clock,
            client_id=self.client_id,
            report=self._report,
        )
        # Every send uses these: saves attribute look-ups.
        self._transactions = self._parts.transactions
        self._topics = self._parts.metadata.topics
        self._append = self._parts.accumulator.append_record
        self._now_ms = clock.now_ms
        self._max_block_ms = options.producer.max_block_ms
        _producers.add(self)
        self._parts.thread.start()

    def _report(self, error: ReplogError) -> None:
        _log.warning("%s", error)
        if error.code is ErrorCode.REPLOG_ACKS0_DROPPED:
            self._metrics.count("record-error", int(str(error.context["rows"])))

    # --------------------------------------------------------------------------------------- sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordHandle:
        """Append one record to a batch. Waits only for the topic's metadata and for memory.

        Args:
            value: for ``value.serializer``; None: a tombstone. For a typed topic a dict of its columns.
            key: for ``key.serializer``; None: any partition. Typed rows have their key in columns.
            partition: its number; None: chosen by the key, or the sticky one.
            headers: pairs of str and bytes or None.
            timestamp_ms: 0 or later; None: now.

        Returns:
            A future of (topic, partition, offset, timestamp_ms). It has already failed if the record is too large, the
            topic does not exist, the storage refuses to show it, or no memory became free (``max.block.ms``).

        Raises:
            InvalidConfigError: INVALID_RECORD, INVALID_PARTITIONS, INVALID_TIMESTAMP, INVALID_TXN_STATE: not appended.
            ReplogError: REPLOG_PRODUCER_CLOSED, REPLOG_NOT_FORK_SAFE.
        """
        if self._interceptors:
            record = self._interceptors.on_send(ProducerRecord(topic, value, key, partition, headers, timestamp_ms))
            topic, value, key, partition, headers, timestamp_ms = record
        if self._refusal is not None:
            raise self._refusal
        try:
            if self._transactions is not None:
                self._transactions.begin_send()
            form, entry, block_ms = self._form, self._topics.get(topic), self._max_block_ms
            if entry is None or (partition is not None and checked_partition(partition) >= len(entry.queues)):
                entry, block_ms = self._wait_for(topic, partition)
            entry.is_used = True
            if self._transactions is not None:
                self._transactions.add_ledger(topic, entry.plan.ledger_id)
            key_bytes, data, schema = key, value, entry.plan.schema
            if schema is not None:
                entry, schema, key_bytes, data = self._row(entry, key, value)
            elif not (value.__class__ is bytes and (key is None or key.__class__ is bytes) and form.takes_bytes):
                key_bytes, data = form.serialize(topic, key, value)
            sticky: StickyPartitioner | None = None
            if partition is None and form.partitioner is None and key_bytes is not None and not form.ignores_keys:
                queue = entry.key_queues.get(key_bytes) or entry.queue_of_key(key_bytes)
            else:
                queue, sticky = form.choose(entry, topic, partition, key, key_bytes, value, data)
            if headers is not None or data is None or timestamp_ms is not None or schema is not None:
                headers = checked_headers(headers)
                size_bytes = record_size(key_bytes, data, headers)
            else:
                size_bytes = ROW_OVERHEAD_BYTES + len(data) + (0 if key_bytes is None else len(key_bytes))
            timestamp_ms = self._now_ms() if timestamp_ms is None else self._own_time(entry, timestamp_ms)
            if size_bytes > entry.limit_bytes:
                raise RecordError(too_large(topic, size_bytes, entry.limit))
            typed = (None, "") if schema is None else (schema, entry.plan.topic_id)
            handle = self._append(queue, key_bytes, data, headers, timestamp_ms, size_bytes, block_ms, sticky, *typed)
            if self._transactions is not None:
                self._transactions.current.batch_results[handle.batch_result] = None
        except Exception as error:  # a user's partitioner may raise anything
            return self._on_send_error(topic, partition, error)
        finally:
            if self._transactions is not None:
                self._transactions.end_send()
        if self._interceptors:
            handle.add_done_callback(self._interceptors.acknowledge)
        return handle

    def would_block(self, topic: str, value: Any = None, key: Any = None, partition: int | None = None) -> bool:
        """Return whether a ``send`` may wait for the topic's metadata, for memory, or for the claim of a transaction's
        ledger. Reads no storage.
        """
        entry = self._topics.get(topic)
        if entry is None or (isinstance(partition, int) and partition >= len(entry.queues)):
            return True
        if self._transactions is not None and not self._transactions.has_claimed(entry.plan.ledger_id):
            return True
        size_bytes = sum(len(part) for part in (key, value) if isinstance(part, (bytes, bytearray, str)))
        batch_size_bytes = self._settings.producer.batch_size_bytes
        return (
            bool(self._parts.accumulator.pool.waiters)
            or self._parts.accumulator.pool.available_bytes < batch_size_bytes + 2 * size_bytes
        )

    def send_arrow(
        self,
        topic: str,
        data: pa.Table | pa.RecordBatch,
        handle: TableHandle | None = None,
        *,
        merge_schema: bool = False,
    ) -> TableHandle:
        """Append all rows of a table or batch; rows of one partition keep their order.

        Args:
            data: columns by exact name: value (required), key, partition (int32), headers (list of struct
                of key and value), timestamp; other columns are ignored. For a typed topic its columns and no others,
                see ``TypedColumns``: a nullable one may be missing, a narrower type is widened.
            handle: a new ``TableHandle``, to be returned. It gets each slice as it is appended: if this raises midway,
                it has what was appended.
            merge_schema: give a typed topic's schema the columns and wider types that it lacks, before any row is
                appended; needs ALTER_CONFIGS on the topic.

        Returns:
            A future of the metadata of each slice's first row.

        Raises:
            InvalidConfigError: REPLOG_INVALID_SCHEMA, or a row is refused: INVALID_RECORD,
                INVALID_PARTITIONS, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP. The table's record batches before
                that row's were appended; an open transaction can then only be aborted.
            RetriableError: REQUEST_TIMED_OUT: the topic does not exist; REPLOG_STORE_REFUSED: the storage does not
                show it; REPLOG_BUFFER_EXHAUSTED.
            ReplogError: as ``send``.
        """
        if self._refusal is not None:
            raise self._refusal
        table_handle = TableHandle() if handle is None else handle
        transactions = self._transactions
        try:
            if transactions is not None:
                transactions.begin_send()
            entry = self._fitting(self._wait_for(topic, None)[0], data, merge_schema)
            entry.is_used = True
            if transactions is None:
                self._parts.arrow.send(entry, data, table_handle)
            else:
                transactions.add_ledger(topic, entry.plan.ledger_id)
                self._send_arrow_in(transactions, entry, data, table_handle)
        finally:
            if transactions is not None:
                transactions.end_send()
        return table_handle

    def flush(self, timeout: float | None = None) -> None:
        """Send waiting records, and wait for the outcome of every earlier record (in a transaction: until stored).

        Args:
            timeout: seconds; None: until ``delivery.timeout.ms`` decides.

        Raises:
            TimeoutError: it took longer; sending continues.
            ReplogError: REPLOG_NOT_FORK_SAFE.
        """
        self._refuse_in_child()
        self._refuse_in_callback("flush()")
        if not self._parts.accumulator.flush(None if timeout is None else int(timeout * 1000)):
            raise TimeoutError(f"[REQUEST_TIMED_OUT] flush() took longer than {timeout} s. Call it again.")

    def metrics(self) -> dict[str, float]:
        """Return the metrics under Kafka's names; see docs/producer.md.

        Raises:
            ReplogError: REPLOG_NOT_FORK_SAFE.
        """
        self._refuse_in_child()
        calls = totals(self._parts.calls.read())
        return self._metrics.read() | self._parts.accumulator.pool.metrics() | {
            **{f"{name.replace('_', '-')}-total": number for name, number in calls.items()},
            "requests-in-flight": self._parts.sender.in_flight_count,
            "metadata-topics": len(self._topics),
        }  # fmt: skip

    def partitions_for(self, topic: str, *, waits_for_new: bool = True) -> int:
        """Return a topic's number of partitions, waiting for the topic as ``send`` does.

        Args:
            waits_for_new: False: do not wait for a topic that does not exist.

        Raises:
            NotFoundError: UNKNOWN_TOPIC_OR_PARTITION: it does not exist, and nothing waits for it.
            RetriableError: REQUEST_TIMED_OUT, REPLOG_STORE_REFUSED.
            ReplogError: as ``send``.
        """
        if self._refusal is not None:
            raise self._refusal
        return len(self._wait_for(topic, None, waits_for_new=waits_for_new)[0].queues)

    def schema_for(self, topic: str) -> RowSchema | None:
        """Return the version of a typed topic's schema that this producer writes; None: its rows are bytes.

        A producer keeps the version with which it first used the topic until a row needs a newer one. Waits and raises
        as ``partitions_for``.
        """
        if self._refusal is not None:
            raise self._refusal
        return self._wait_for(topic, None)[0].plan.schema

    # ------------------------------------------------------------------------------------ transactions

    def begin_transaction(self) -> None:
        """Open a transaction: its records become visible together, or never.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: no transactional.id, or one is open.
            FencedError: PRODUCER_FENCED.
        """
        self._coordinator().open()

    def commit_transaction(self) -> None:
        """Append all records of the transaction as one entry of their ledger.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: none is open, or one of its records failed: abort it.
            FencedError: PRODUCER_FENCED: a newer program has the transactional.id; nothing was appended.
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: call it again, or abort.
            ReplogError: the ledger refused it; nothing was appended: abort it.
        """
        coordinator = self._coordinator()
        self._refuse_in_callback("commit_transaction()")
        if coordinator.state is not TransactionState.IN_DOUBT:
            with coordinator.ending("commit_transaction()"):
                coordinator.check_commit()
                self.flush()
                coordinator.check_commit()
        results = list(coordinator.current.batch_results)
        try:
            coordinator.commit().result()
        except NotFoundError:
            self._parts.sender.wants_metadata = True  # only this thread is told that the topic was deleted
            raise
        finally:
            if coordinator.state in (TransactionState.READY, TransactionState.FATAL):  # else its records still wait
                for result in results:
                    result.wait(None)

    def abort_transaction(self) -> None:
        """Drop all records of the transaction; their handles fail with REPLOG_TRANSACTION_ABORTED.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: none is open, or a commit with a lost answer has succeeded.
            FencedError: PRODUCER_FENCED.
            ReplogError: the outcome of a commit with a lost answer could not be read: call again.
        """
        coordinator = self._coordinator()
        self._refuse_in_callback("abort_transaction()")
        results = list(coordinator.current.batch_results)
        if coordinator.state is not TransactionState.IN_DOUBT:
            with coordinator.ending("abort_transaction()"):
                results = list(coordinator.current.batch_results)
                self._abort_waiting()
                self.flush()
        try:
            coordinator.abort(_aborted())
        finally:
            if coordinator.state is not TransactionState.IN_DOUBT:
                coordinator.fail_rest(_aborted())
                for result in results:
                    result.wait(None)
                if self._parts.sequences is not None:
                    self._parts.thread.call(self._parts.sequences.restart)
                coordinator.end_abort()

    @property
    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return self._transactions is not None and self._transactions.state is TransactionState.OPEN

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Commit the records that the block sends, or abort if it raises."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except FencedError:
            raise
        except BaseException:
            if self.is_in_transaction:
                self.abort_transaction()
            raise

    # ----------------------------------------------------------------------------------------- closing

    def close(self, timeout: float | None = None) -> None:
        """Send waiting records and close; an open transaction is aborted. Repeatable.

        Args:
            timeout: seconds; after it, remaining records fail with REPLOG_PRODUCER_CLOSED. None: until
                ``delivery.timeout.ms`` decides. 0 in a callback.

        Raises:
            InvalidConfigError: INVALID_REQUEST: the timeout is negative; the producer stays open.
        """
        if timeout is not None and timeout < 0:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid timeout {timeout} of close(): give 0 or more seconds.",
            )
        if self._refusal is not None:
            return
        self._refusal = ReplogError(ErrorCode.REPLOG_PRODUCER_CLOSED, "The producer is closed. Open a new one.")
        self._parts.metadata.close()
        self._parts.accumulator.close()
        if self._transactions is not None:
            if self._transactions.state is TransactionState.OPEN:
                self._abort_waiting()
            self._transactions.drop(_aborted())
        if self._parts.thread.is_current:
            timeout = 0
        if not self._parts.thread.close(timeout):
            self._parts.appender.stop()
            self._parts.thread.force(
                ReplogError(
                    ErrorCode.REPLOG_PRODUCER_CLOSED,
                    f"The producer was closed: {timeout} s did not suffice. Give close() more time.",
                )
            )
        else:
            self._parts.appender.await_copies(None if timeout is None else int(timeout * 1000))
            self._parts.upkeep.wait(min(UPKEEP_WAIT_MS, UPKEEP_WAIT_MS if timeout is None else int(timeout * 1000)))
        self._interceptors.close()

    def _close_at_exit(self, timeout: float) -> None:
        """Close a producer that the program forgot, and report the records that could not be sent."""
        if self._refusal is not None:
            return
        before_count = self._metrics.total("record-error")
        self.close(timeout)
        unsent_count = self._metrics.total("record-error") - before_count
        outcome = f"{unsent_count:,} records were not sent" if unsent_count else "its waiting records were sent"
        message = f"The producer {self.client_id!r} was not closed: {outcome}. Call close(), or use a with block."
        warnings.warn(message, ResourceWarning, source=self, stacklevel=2)
        if unsent_count:
            _log.error("%s", message)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled. Raises REPLOG_NOT_FORK_SAFE."""
        raise stays_in_process("producer")

    def __enter__(self) -> Producer:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close it."""
        self.close()

    # ------------------------------------------------------------------------------------------ inside

    def _wait_for(self, topic: str, partition: int | None, *, waits_for_new: bool = True) -> tuple[TopicEntry, int]:
        """Return the topic, and the remaining ``max.block.ms``."""
        entry = self._topics.get(topic) if isinstance(topic, str) else None
        if entry is not None and (partition is None or partition < len(entry.queues)):
            return entry, self._max_block_ms
        if partition is not None:
            checked_partition(partition)
        began_ms = self._clock.monotonic_ms()
        entry = self._parts.metadata.wait_for(topic, partition, self._max_block_ms, waits_for_new=waits_for_new)
        return entry, max(0, self._max_block_ms - (self._clock.monotonic_ms() - began_ms))

    def _row(self, entry: TopicEntry, key: Any, value: Any) -> tuple[TopicEntry, RowSchema, bytes | None, pa.Array]:
        """Return a typed row, of a newer version of the schema if the one in use refuses it."""
        plan = entry.plan
        assert plan.schema is not None
        try:
            return entry, plan.schema, *self._form.row(plan.schema, plan.name, key, value)
        except InvalidConfigError:
            newer = self._parts.metadata.take_newest(plan.name)
            if newer is None or newer.plan.schema is None:
                raise
            return newer, newer.plan.schema, *self._form.row(newer.plan.schema, plan.name, key, value)

    def _fitting(self, entry: TopicEntry, data: pa.Table | pa.RecordBatch, merges: bool) -> TopicEntry:
        """Return a typed topic with a version of its schema that the columns fit, if there is one."""
        plan = entry.plan
        if plan.schema is None or not isinstance(data, pa.Table | pa.RecordBatch):
            return entry
        if merges:
            return self._parts.metadata.merge(plan.name, data.schema) or entry
        try:
            TypedColumns(data.schema, plan.schema, plan.name)
        except InvalidConfigError:
            return self._parts.metadata.take_newest(plan.name) or entry
        return entry

    def _own_time(self, entry: TopicEntry, timestamp_ms: object) -> int:
        time_ms = checked_time(timestamp_ms)
        check_times(entry.plan, time_ms, time_ms, self._now_ms())
        return time_ms

    def _send_arrow_in(
        self,
        transactions: TransactionCoordinator,
        entry: TopicEntry,
        data: pa.Table | pa.RecordBatch,
        handle: TableHandle,
    ) -> None:
        """Append a table in the open transaction; if only a part is appended, it can no longer be committed."""
        try:
            self._parts.arrow.send(entry, data, handle)
        except ReplogError as error:
            if handle.parts or not isinstance(error, InvalidConfigError) or error.code in _API_CODES:
                transactions.current.error = transactions.current.error or error
            raise
        except BaseException:
            if handle.parts:
                transactions.current.error = transactions.current.error or _aborted()
            raise
        finally:
            transactions.current.batch_results |= dict.fromkeys(part.batch_result for part in handle.parts)

    def _on_send_error(self, topic: str, partition: int | None, error: Exception) -> RecordHandle:
        """Return a failed handle for what Kafka calls an API error; raise other errors of the caller."""
        if not isinstance(topic, str):
            raise invalid_topic(topic)
        cause = error.error if isinstance(error, RecordError) else error
        if self._parts.thread.error is not None and getattr(cause, "code", None) is ErrorCode.REPLOG_PRODUCER_CLOSED:
            cause = self._parts.thread.error  # why it closed
        where = TopicPartition(topic, -1 if partition is None else partition)
        if self._interceptors:
            self._interceptors.on_acknowledgement(RecordMetadata(topic, where.partition, -1, -1), cause)
        if not isinstance(cause, ReplogError) or self._refusal is not None:
            raise cause
        if isinstance(error, InvalidConfigError) and cause.code not in _API_CODES:
            raise cause
        self._metrics.count("record-error", 1)
        if self._transactions is not None:
            self._transactions.current.error = self._transactions.current.error or cause
            if isinstance(cause, FencedError):
                raise cause
        result = BatchResult(where)
        result.decide(error=cause)
        return RecordHandle(result, 0)

    def _refuse_in_child(self) -> None:
        if self._refusal is not None and self._refusal.code is ErrorCode.REPLOG_NOT_FORK_SAFE:
            raise self._refusal

    def _abort_waiting(self) -> None:
        """Fail the records that wait to be sent, on the sender's thread: Ctrl-C leaves none without an outcome."""
        abort = partial(self._parts.accumulator.abort_waiting, _aborted())
        if self._parts.thread.is_current:
            abort()
        else:
            self._parts.thread.call(abort)

    def _refuse_in_callback(self, call: str) -> None:
        if self._parts.thread.is_current:
            raise InvalidConfigError(
                ErrorCode.INVALID_REQUEST, f"{call} in a callback would wait for itself. Call it from another thread."
            )

    def _coordinator(self) -> TransactionCoordinator:
        if self._refusal is not None:
            raise self._refusal
        if self._transactions is None:
            raise InvalidConfigError(
                ErrorCode.INVALID_TXN_STATE, "The producer has no transactional.id. Set one to use transactions."
            )
        return self._transactions

    def _forget_parent(self) -> None:
        """In a forked child: refuse every call, since the sender's thread runs in the parent."""
        self._refusal = ReplogError(
            ErrorCode.REPLOG_NOT_FORK_SAFE,
            "This producer was made before the process forked: its sender runs in the parent. Make one here.",
        )
        self._topics = {}
        self._parts.accumulator.abandon(self._refusal)


_API_CODES = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TOPIC_EXCEPTION})
"""Errors of the caller that Kafka reports through the future."""


def _aborted() -> ReplogError:
    return ReplogError(
        ErrorCode.REPLOG_TRANSACTION_ABORTED, "The record's transaction was aborted. Send it again in a new one."
    )


@in_each_child
def _after_fork() -> None:
    for producer in list(_producers):
        producer._forget_parent()


def _close_all_at_exit() -> None:
    deadline_ms = SYSTEM_CLOCK.monotonic_ms() + EXIT_SECONDS * 1000
    for producer in list(_producers):
        producer._close_at_exit(max(0.0, deadline_ms - SYSTEM_CLOCK.monotonic_ms()) / 1000)


run_before_exit(_close_all_at_exit)
