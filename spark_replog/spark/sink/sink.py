"""``writeStream`` and ``write``: tasks put data objects, and the driver's commit makes one append per ledger.

Spark makes the stream's writer twice per micro-batch, in different processes: to plan the tasks and to commit. Tasks
get the plan; their messages carry everything that the commit needs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest, ProduceResponse
from spark_replog.commit.catch_up import check_task_age, copy_share
from spark_replog.commit.replica_fetcher import ReplicaFetcher
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config.coordinator import CoordinatorConfig
from spark_replog.errors import ErrorCode, NotFoundError, ReplogError, RetriableError, command_line
from spark_replog.ids import BrokerId, LedgerId, ObjectId, new_id, process_id
from spark_replog.log.model import Append, DataObject, IdentityKind, ProducerIdentity
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.write_plan import MadeCopy, WritePlan
from spark_replog.logs import Once, set_context
from spark_replog.spark import call_spool
from spark_replog.spark.compat import COMMIT_WORKER, StreamArrowWriter, freeze_garbage, is_worker, log_lost_time
from spark_replog.spark.messages import QueryTask, WriteMessage
from spark_replog.spark.options import SinkOptions, StoreOptions
from spark_replog.spark.sink.evidence import RowsDigest, evidence_of_batch, evidence_of_rows
from spark_replog.spark.sink.input_check import add_columns, check_input
from spark_replog.storage.brokers import BrokerSet, shared_brokers
from spark_replog.storage.call_counter import CallTable, summed, totals

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""A setting of the session. Spark gives tasks all of them as local properties."""
_CASE_SENSITIVE = "spark.sql.caseSensitive"
"""Another one; the processes of the driver see none."""

MANAGERS_MAX = 64
"""Queries with settings of their own that one process commits for at a time, before one has to start again."""
_warned_queries = Once()


class StreamWriter(StreamArrowWriter):
    """The sink of one micro-batch."""

    def __init__(self, options: SinkOptions, schema: StructType | None = None) -> None:
        freeze_garbage()
        self._options = options
        self._plan = None if is_worker(COMMIT_WORKER) else _plan_tasks(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Put one task's rows. Executor."""
        query = _query_of_task()
        if query is None:
            raise ReplogError(ErrorCode.REPLOG_ENVIRONMENT, "Spark gave the task no query id. Use Spark 4.0 or newer.")
        return _write_task(iterator, self._options, self._plan, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide the micro-batch. Spark repeats this after a crash, with the same batch id.

        Raises:
            ReplogError: nothing is decided. REPLOG_COMMIT_OUTCOME_UNKNOWN: it is unknown; the restarted query
                repeats the batch, which settles it.
        """
        if messages and all(message is None for message in messages):
            # Spark (4.0 to 4.3) only logs this error, but does not commit the epoch either, so no row is lost.
            raise ReplogError(
                ErrorCode.REPLOG_ENVIRONMENT,
                "Spark does not pass the rows of a continuous trigger to a Python sink, so none is written. Stop the "
                "query and start it with trigger(processingTime=...) or trigger(availableNow=True).",
            )
        written = _in_task_order(messages)
        if not written:
            return
        _warn_of_dropped_rows(written, batchId)
        query = written[0].query
        assert query is not None, "write() refuses tasks outside of a query"
        set_context(query=query.query_id, batch=batchId)
        options, checkpoint, folder = self._options, self._options.checkpoint, query.checkpoints
        if checkpoint is None and folder is not None and options.query_name:
            checkpoint = f"{folder.rstrip('/')}/{options.query_name}"  # as Spark chooses it
        transactional_id = options.transactional_id
        identity = ProducerIdentity(
            producer_id=transactional_id or query.query_id,
            incarnation=query.query_id,
            sequence=batchId,
            run_id=query.run_id or "",
            kind=IdentityKind.STREAM if transactional_id is None else IdentityKind.TRANSACTIONAL,
            on_reset=options.on_reset,
            evidence=evidence_of_batch(checkpoint, batchId, options.store.storage),
        )
        cluster = options.store.cluster()
        try:
            _commit(cluster, options, identity, written)
        finally:
            _report_calls(cluster.brokers, query, written)
        log_lost_time(query.query_id, options.checkpoint, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete nothing: Spark also calls this after a commit that raised, and that commit may be decided."""
        _log_abort(messages)


class BatchWriter(DataSourceArrowWriter):
    """The sink of one ``df.write``. The object that the planner makes is also used by the tasks and the commit."""

    def __init__(self, options: SinkOptions, schema: StructType | None = None) -> None:
        freeze_garbage()
        self._options = options
        self._write_id = new_id()
        self._plan = _plan_tasks(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Put one task's rows. Executor."""
        name = QueryTask(self._write_id, 0, None)
        if self._options.txn is not None:
            # The same txnVersion gives the same names, so rows without a key go to the same partitions again.
            app_id, version = self._options.txn
            name = QueryTask(blake2b(app_id.encode(), digest_size=16).hexdigest(), version, None)
        topic, rows = self._options.topic, None
        if self._options.txn is not None:
            is_typed = topic is not None and self._plan[0].topic(topic).schema is not None
            rows = RowsDigest(topic, is_typed=is_typed)
        message = _write_task(iterator if rows is None else rows.watch(iterator), self._options, self._plan, name)
        return replace(message, query=_query_of_task(), contents=() if rows is None else rows.sums)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide the write. Raises REPLOG_DUPLICATE_TXN_MISMATCH, or any error of ``append_records``."""
        freeze_garbage()
        written = _in_task_order(messages)
        self._warn_of_foreach_batch(written)
        _warn_of_dropped_rows(written, 0 if self._options.txn is None else self._options.txn[1])
        identity = ProducerIdentity(self._write_id, self._write_id, 0, process_id(), IdentityKind.ONE_SHOT)
        if self._options.txn is not None:
            app_id, version = self._options.txn
            evidence = evidence_of_rows(message.contents for message in written)
            kind, policy = IdentityKind.TXN_BATCH, self._options.on_reset
            identity = ProducerIdentity(app_id, app_id, version, process_id(), kind, policy, evidence)
        if any(message.objects for message in written):  # a write without rows opens no store
            _commit(self._options.store.cluster(), self._options, identity, written)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: see ``StreamWriter.abort``."""
        _log_abort(messages)

    def _warn_of_foreach_batch(self, written: Sequence[WriteMessage]) -> None:
        query = written[0].query if written else None
        if self._options.txn is None and query is not None and _warned_queries.is_first(query.query_id):
            _LOG.warning(
                "a batch write inside streaming query %s appends again when its micro-batch is repeated. Set "
                "txnAppId to the query's id and txnVersion to the batch id to write each batch once.",
                query.query_id,
            )


def topic_columns(store: StoreOptions, topic: str, principal: str | None) -> RowSchema | None:
    """Return the newest columns of a topic to write to; None: its rows are bytes, or it may be made later.

    Raises:
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
        RetriableError: REPLOG_NO_QUORUM.
    """
    try:
        return make_write_plan(store.cluster(), [topic], principal).topic(topic).schema
    except NotFoundError:
        return None


def _plan_tasks(options: SinkOptions, schema: StructType | None) -> tuple[WritePlan, BrokerSet, CallTable]:
    """Fold the ledgers once, so that tasks read none; return the plan with the storage calls that it took.

    Args:
        schema: of the DataFrame, which is refused if it cannot be written; None: only tasks check their batches.
    """
    if options.topic is None and schema is not None:
        check_input(schema, options, None)
    cluster = options.store.cluster()
    topics = None if options.topic is None else [options.topic]
    plan = _patient_plan(cluster, topics, options)
    if options.topic is not None and schema is not None:
        rows = plan.topic(options.topic).schema
        if rows is not None and options.typed.merges_schema and add_columns(cluster, schema, options, rows):
            plan = _patient_plan(cluster, topics, options)
            rows = plan.topic(options.topic).schema
        check_input(schema, options, rows)
    return plan, cluster.brokers, cluster.brokers.calls.take()


def _patient_plan(cluster: Cluster, topics: Sequence[str] | None, options: SinkOptions) -> WritePlan:
    """Make the plan of a write. While the roots only answer slowly it asks again: Spark repeats no planning."""
    deadline_ms = cluster.clock.monotonic_ms() + options.producer.max_block_ms
    while True:
        try:
            return make_write_plan(cluster, topics, options.principal, options.coordinator)
        except RetriableError as error:
            if error.code is not ErrorCode.REPLOG_LEDGER_BUSY or cluster.clock.monotonic_ms() >= deadline_ms:
                raise
            _LOG.warning("the plan of a write is made again, up to max.block.ms: %s", error)


def _report_calls(brokers: BrokerSet, query: QueryTask, written: Sequence[WriteMessage]) -> None:
    """Report the storage calls of a micro-batch to the listener, if there is one, and to the log."""
    local_calls, folder = brokers.calls.take(), call_spool.heard_folder(query.query_id)
    if folder is None and not _LOG.isEnabledFor(logging.DEBUG):
        return
    calls = summed([local_calls, *(message.calls for message in written)])
    if folder is not None:
        call_spool.report(folder, brokers.name_calls(calls))
    _LOG.debug("batch %d of query %s: %s", query.batch_id, query.query_id, totals(calls))


def _query_of_task() -> QueryTask | None:
    """Return the streaming query that runs this task, None outside of one."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
    if context is None or query_id is None or batch_id is None:
        return None
    checkpoints = context.getLocalProperty(_CHECKPOINTS)
    return QueryTask(query_id, int(batch_id), context.getLocalProperty(_RUN_ID), checkpoints)


def _is_case_sensitive() -> bool:
    context = TaskContext.get()
    return context is not None and str(context.getLocalProperty(_CASE_SENSITIVE)).lower() == "true"


def _write_task(
    iterator: Iterator[pa.RecordBatch],
    options: SinkOptions,
    planned: tuple[WritePlan, BrokerSet, CallTable] | None,
    query: QueryTask,
) -> WriteMessage:
    """Write a task's batches; a task without rows puts and opens nothing."""
    freeze_garbage()
    set_context(query=query.query_id, batch=query.batch_id)
    context = TaskContext.get()
    task_id = 0 if context is None else context.partitionId()
    first = next((batch for batch in iterator if batch.num_rows > 0), None)
    planning = planned[2] if planned is not None and task_id == 0 else {}
    if first is None:
        return WriteMessage(query, task_id, calls=planning)
    if planned is None:  # otherwise rows would be acknowledged without being stored
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "the task has rows and no plan, because the writer was made in a process that Spark starts to commit. "
            "Nothing is written. Do not import pyspark.sql.worker in the job; if it does not, report this error.",
        )
    from spark_replog.write.task_writer import TaskWriter

    plan, brokers = planned[0], shared_brokers(planned[1])
    writer = TaskWriter(
        plan,
        options.producer,
        brokers,
        query_id=query.query_id,
        batch_id=query.batch_id,
        task_id=task_id,
        default_topic=options.topic,
        hooks=options.hooks,
        is_case_sensitive=_is_case_sensitive(),
        timestamp_column=options.typed.timestamp_column,
        headers_column=options.typed.headers_column,
    )
    try:
        writer.append(first)
        for batch in iterator:
            if batch.num_rows > 0:
                check_task_age(plan, options.coordinator)
                writer.append(batch)
        check_task_age(plan, options.coordinator)
        result = writer.close()
    except BaseException:
        writer.abort()
        raise
    copies: tuple[MadeCopy, ...] = ()
    if plan.missing_copies:
        fetcher = ReplicaFetcher(brokers, options.coordinator)
        copies = copy_share(fetcher, plan.missing_copies, query.batch_id, task_id)
    calls = summed([planning, brokers.calls.take()])
    return WriteMessage(query, task_id, result.objects, result.dropped_rows, copies, calls)


def _in_task_order(messages: Sequence[WriterCommitMessage | None]) -> list[WriteMessage]:
    """Return the messages in task order, in which offsets are assigned."""
    written = [message for message in messages if isinstance(message, WriteMessage)]
    if len(written) != len(messages):
        raise ReplogError(
            ErrorCode.INVALID_REQUEST,
            "a task finished without a commit message. Repeat the write.",
            tasks=len(messages),
        )
    return sorted(written, key=lambda message: message.task_id)


def _warn_of_dropped_rows(written: Sequence[WriteMessage], batch_id: int) -> None:
    dropped_rows = sum(message.dropped_rows for message in written)
    if dropped_rows:
        _LOG.warning("[REPLOG_ACKS0_DROPPED] %d rows of batch %d were dropped, as acks=0 allows.",
                     dropped_rows, batch_id)  # fmt: skip


def _commit(
    cluster: Cluster, options: SinkOptions, identity: ProducerIdentity, written: Sequence[WriteMessage]
) -> None:
    """Append to every ledger and raise unless all are decided; do nothing if no object was written."""
    objects: dict[LedgerId, list[DataObject]] = {}
    for ledger_id, data_object in (pair for message in written for pair in message.objects):
        objects.setdefault(ledger_id, []).append(data_object)
    if not objects:
        return
    principal = options.principal or default_principal()
    copied: defaultdict[LedgerId, defaultdict[ObjectId, set[BrokerId]]] = defaultdict(lambda: defaultdict(set))
    for copy in (made_copy for message in written for made_copy in message.copies):
        copied[copy.ledger_id][copy.id].add(copy.broker_id)
    now_ms = cluster.clock.now_ms()
    requests = {
        ledger_id: AppendRequest(
            Append(identity, principal, options.client_id, now_ms, tuple(items)),
            options.producer.request_timeout_ms,
            options.producer.acks,
            copied=copied[ledger_id],
        )
        for ledger_id, items in objects.items()
    }
    manager = shared_manager(cluster, options.coordinator)
    answers = manager.append_records(requests)
    if options.producer.acks != -1:  # this process may end with the commit; without copies its rows are not readable
        manager.await_copies()
    throttle_ms = max(answer.throttle_time_ms for answer in answers.values())
    if throttle_ms:  # a query has no metrics: only this line explains why it is slow
        _LOG.warning(
            "batch %d of %s is written and was held back for %d ms: %s with client id '%s' is above its "
            "producer_byte_rate. See: %s",
            identity.sequence, identity.producer_id, throttle_ms, principal, options.client_id,
            command_line(cluster.path, "quota", "describe"),
        )  # fmt: skip
    refused = {ledger_id: answer.error for ledger_id, answer in answers.items() if answer.error is not None}
    if refused:
        raise _refusal(cluster, answers, refused)


def _refusal(
    cluster: Cluster, answers: Mapping[LedgerId, ProduceResponse], refused: Mapping[LedgerId, ReplogError]
) -> ReplogError:
    error = next(iter(refused.values()))
    if len(answers) == 1:
        return error
    decided = [ledger_id for ledger_id in answers if ledger_id not in refused]
    several = type(error)(
        error.code,
        f"{error.args[0]} The micro-batch spans several ledgers and only some of them have it. Repeat it: this "
        "completes the others and does not change these.",
        **error.context
        | {"decided": _topics_of(cluster, answers, decided), "undecided": _topics_of(cluster, answers, refused)},
    )
    several.__cause__ = error
    return several


def _topics_of(cluster: Cluster, answers: Mapping[LedgerId, ProduceResponse], ledger_ids: Iterable[LedgerId]) -> str:
    """Return the names of the topics that the batch writes to in these ledgers, deleted ones included."""
    names: set[str] = set()
    for ledger_id in ledger_ids:
        ledger = cluster.topic_ledger(ledger_id)
        with ledger.lock:
            topics = ledger.state.topics
            names |= {topics[key[0]].name for key in answers[ledger_id].partitions if key[0] in topics}
    return ",".join(sorted(names)) or "none"


@lru_cache(maxsize=MANAGERS_MAX)
def shared_manager(cluster: Cluster, config: CoordinatorConfig) -> ReplicaManager:
    """Return this process's manager of the cluster. Its timers and fetchers serve more than one micro-batch.

    Those used last are kept: with tokens that change, each query that begins again has another cluster.
    """
    from spark_replog.maintenance.upkeep import Upkeep  # tasks, whose processes are many, need none of it

    return ReplicaManager(cluster, config, Upkeep(cluster, config).start)


def _log_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    count = sum(len(message.objects) for message in messages if isinstance(message, WriteMessage))
    _LOG.warning("a write was aborted; its %d data objects stay until garbage collection deletes them", count)
