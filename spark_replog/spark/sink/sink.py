"""``writeStream`` and ``write``: tasks put data objects, the driver's commit decides one append per ledger.

Spark makes the stream's writer twice per micro-batch, in different processes: once to plan the
tasks and once to commit. So nothing made in ``__init__`` may be needed on both sides: the plan goes
to the tasks, what the commit must know comes back in their messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_replog.cluster.authorizer import default_principal
from spark_replog.cluster.cluster import Cluster
from spark_replog.commit.append_request import AppendRequest, ProduceResponse
from spark_replog.commit.catch_up import TaskCatchUp, check_task_age, holders_by_ledger
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.commit.write_plan import make_write_plan
from spark_replog.config import CoordinatorConfig
from spark_replog.errors import ErrorCode, ReplogError, command_line
from spark_replog.ids import LedgerId, new_id
from spark_replog.log.codec.commands import Append, DataObject, IdentityKind, ProducerIdentity, ResetPolicy
from spark_replog.log.model import Outcome
from spark_replog.log.write_plan import MadeCopy, WritePlan
from spark_replog.once import Once
from spark_replog.spark.compat import StreamArrowWriter, freeze_garbage_once, in_commit_worker
from spark_replog.spark.messages import WriteMessage
from spark_replog.spark.options import SinkOptions
from spark_replog.storage.brokers import BrokerSet, shared_brokers

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"

_managers: dict[tuple[int, CoordinatorConfig], ReplicaManager] = {}
_warned_queries = Once()


class StreamWriter(StreamArrowWriter):
    """The sink of one micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._tasks = None if in_commit_worker() else _plan_tasks(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Put one task's rows. Executor."""
        query_id, batch_id, run_id = _query_of_task()
        if query_id is None or batch_id is None:
            raise ReplogError(ErrorCode.REPLOG_ENVIRONMENT, "Spark gave the task no query id. Use Spark 4.0 or newer.")
        return _write_task(iterator, self._options, self._tasks, _QueryTask(query_id, batch_id, run_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide the micro-batch. Repeated by Spark after a crash, with the same batch id.

        Raises:
            ReplogError: nothing is decided, or (REPLOG_COMMIT_OUTCOME_UNKNOWN) it is not known; either way
                the restarted query repeats the batch and finds out.
        """
        _check_for_continuous(messages)
        written = _write_messages(messages)
        objects = _objects_by_ledger(written)
        if not objects:
            return
        query_id, run_id = written[0].query_id or "", written[0].run_id or ""
        transactional_id = self._options.transactional_id
        identity = ProducerIdentity(
            producer_id=transactional_id or query_id,
            incarnation=query_id,
            sequence=batchId,
            run_id=run_id,
            kind=IdentityKind.STREAM if transactional_id is None else IdentityKind.TRANSACTIONAL,
            on_reset=self._options.on_reset,
        )
        _commit(self._options, identity, objects, written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete nothing: Spark also calls this after a commit that raised, and that may be decided."""
        _log_abort(messages)


class BatchWriter(DataSourceArrowWriter):
    """The sink of one ``df.write``; the very object made by the planner goes to tasks and commit.

    Args:
        options: of the write.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = new_id()
        self._tasks = _plan_tasks(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteMessage:
        """Put one task's rows. Executor."""
        query_id, batch_id, _ = _query_of_task()
        message = _write_task(iterator, self._options, self._tasks, self._task_name())
        return WriteMessage(
            query_id,
            batch_id,
            None,
            message.task_id,
            message.objects,
            message.row_count,
            message.size_bytes,
            message.dropped_rows,
            message.copies,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide the write.

        Raises:
            ReplogError: REPLOG_DUPLICATE_TXN_MISMATCH and all that ``append_records`` answers.
        """
        written = _write_messages(messages)
        objects = _objects_by_ledger(written)
        self._warn_of_foreach_batch(written)
        if not objects:
            return
        if self._options.txn is None:
            producer_id, sequence, kind = self._write_id, 0, IdentityKind.ONE_SHOT
        else:
            producer_id, sequence = self._options.txn
            kind = IdentityKind.TXN_BATCH
        identity = ProducerIdentity(producer_id, producer_id, sequence, "", kind, ResetPolicy.FAIL)
        _commit(self._options, identity, objects, written)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: see ``StreamWriter.abort``."""
        _log_abort(messages)

    def _task_name(self) -> _QueryTask:
        """Name the tasks of a repeated txnVersion alike: rows without a key go where they went the first time."""
        if self._options.txn is None:
            return _QueryTask(self._write_id, 0, None)
        app_id, version = self._options.txn
        return _QueryTask(blake2b(app_id.encode(), digest_size=16).hexdigest(), version, None)

    def _warn_of_foreach_batch(self, written: Sequence[WriteMessage]) -> None:
        query_id = written[0].query_id if written else None
        if self._options.txn is None and query_id is not None and _warned_queries.is_first(query_id):
            _LOG.warning(
                "a batch write inside streaming query %s appends again when its micro-batch is repeated. Set "
                "txnAppId to the query's id and txnVersion to the batch id to write each batch once.",
                query_id,
            )


class _QueryTask:
    """Names for a task's objects."""

    __slots__ = ("batch_id", "query_id", "run_id")

    def __init__(self, query_id: str, batch_id: int, run_id: str | None) -> None:
        self.query_id = query_id
        self.batch_id = batch_id
        self.run_id = run_id


def _plan_tasks(options: SinkOptions) -> tuple[WritePlan, BrokerSet]:
    """Fold the ledgers once, so that tasks need not read any."""
    cluster = options.store.cluster()
    topics = None if options.topic is None else [options.topic]
    return make_write_plan(cluster, topics, options.principal, options.coordinator), cluster.brokers


def _query_of_task() -> tuple[str | None, int | None, str | None]:
    context = TaskContext.get()
    if context is None:
        return None, None, None
    batch_id = context.getLocalProperty(_BATCH_ID)
    return (
        context.getLocalProperty(_QUERY_ID),
        None if batch_id is None else int(batch_id),
        context.getLocalProperty(_RUN_ID),
    )


def _write_task(
    iterator: Iterator[pa.RecordBatch],
    options: SinkOptions,
    tasks: tuple[WritePlan, BrokerSet] | None,
    task: _QueryTask,
) -> WriteMessage:
    """Write a task's batches; a task without rows puts nothing and opens nothing."""
    freeze_garbage_once()
    context = TaskContext.get()
    task_id = 0 if context is None else context.partitionId()
    first = next((batch for batch in iterator if batch.num_rows > 0), None)
    if first is not None and tasks is None:  # its rows would be acknowledged and stored nowhere
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "the task has rows and no plan: the writer was made in a process that Spark starts to commit. Nothing is "
            "written. Import nothing of pyspark.sql.worker in the job, and report it if the job imports none.",
        )
    if first is None or tasks is None:
        return WriteMessage(task.query_id, task.batch_id, task.run_id, task_id, (), 0, 0, 0)
    from spark_replog.write.task_writer import TaskWriter

    plan, brokers = tasks
    writer = TaskWriter(
        plan,
        options.producer,
        shared_brokers(brokers),
        query_id=task.query_id,
        batch_id=task.batch_id,
        task_id=task_id,
        default_topic=options.topic,
        hooks=options.hooks,
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
        catch_up = TaskCatchUp(shared_brokers(brokers), options.coordinator)
        copies = catch_up.run(plan.missing_copies, task.batch_id, task_id)
    return WriteMessage(
        task.query_id,
        task.batch_id,
        task.run_id,
        task_id,
        result.objects,
        result.row_count,
        result.size_bytes,
        result.dropped_rows,
        copies,
    )


def _check_for_continuous(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Refuse what a continuous trigger asks for: Spark (4.0 to 4.3) never hands its rows to a Python sink.

    Spark only logs what is raised here; but it does not commit the epoch either, so that no row is lost.
    """
    if messages and all(message is None for message in messages):
        raise ReplogError(
            ErrorCode.REPLOG_ENVIRONMENT,
            "Spark does not hand the rows of a continuous trigger to a Python sink, so none is written. Stop the "
            "query and start it with trigger(processingTime=...) or trigger(availableNow=True).",
        )


def _write_messages(messages: Sequence[WriterCommitMessage | None]) -> list[WriteMessage]:
    """Return the messages in task order: offsets are given in that order."""
    written = [message for message in messages if isinstance(message, WriteMessage)]
    if len(written) != len(messages):
        raise ReplogError(
            ErrorCode.INVALID_REQUEST,
            "a task finished without its message. Repeat the write.",
            tasks=len(messages),
        )
    return sorted(written, key=lambda message: message.task_id)


def _objects_by_ledger(written: Sequence[WriteMessage]) -> dict[LedgerId, list[DataObject]]:
    objects: dict[LedgerId, list[DataObject]] = {}
    for message in written:
        for ledger_id, data_object in message.objects:
            objects.setdefault(ledger_id, []).append(data_object)
    return objects


def _commit(
    options: SinkOptions,
    identity: ProducerIdentity,
    objects: Mapping[LedgerId, Sequence[DataObject]],
    written: Sequence[WriteMessage],
) -> None:
    """Append to every ledger and raise unless all are decided."""
    dropped_rows = sum(message.dropped_rows for message in written)
    if dropped_rows:
        _LOG.warning("[REPLOG_ACKS0_DROPPED] %d rows of batch %d were dropped, as acks=0 allows.",
                     dropped_rows, identity.sequence)  # fmt: skip
    cluster = options.store.cluster()
    principal = options.principal or default_principal()
    copied = holders_by_ledger(copy for message in written for copy in message.copies)
    now_ms = cluster.clock.now_ms()
    requests = {
        ledger_id: AppendRequest(
            Append(identity, principal, options.client_id, now_ms, tuple(items)),
            options.producer.request_timeout_ms,
            options.producer.acks,
            copied=copied.get(ledger_id, {}),
        )
        for ledger_id, items in objects.items()
    }
    manager = _shared_manager(cluster, options.coordinator)
    answers = manager.append_records(requests)
    if options.producer.acks != -1:  # this process may end with the commit, and its rows are not readable before
        manager.await_copies()
    throttle_ms = max(answer.throttle_time_ms for answer in answers.values())
    if throttle_ms:  # a query has no metrics: this line is all that tells why it is slow
        _LOG.warning(
            "batch %d of %s is written and was held back for %d ms: %s with client id '%s' is above its "
            "producer_byte_rate. See: %s",
            identity.sequence, identity.producer_id, throttle_ms, principal, options.client_id,
            command_line(cluster.path, "quota", "describe"),
        )  # fmt: skip
    _raise_refusals(cluster, identity, answers)


def _raise_refusals(cluster: Cluster, identity: ProducerIdentity, answers: Mapping[LedgerId, ProduceResponse]) -> None:
    refused = {ledger_id: answer.error for ledger_id, answer in answers.items() if answer.error is not None}
    for ledger_id, answer in answers.items():
        if answer.error is None and answer.result is not None and answer.result.outcome is Outcome.DUPLICATE:
            _LOG.info("batch %d of %s was in ledger %s already", identity.sequence, identity.producer_id, ledger_id)
    if not refused:
        return
    error = next(iter(refused.values()))
    assert error is not None
    if len(answers) == 1:
        raise error
    decided = [ledger_id for ledger_id in answers if ledger_id not in refused]
    raise type(error)(
        error.code,
        f"{error.args[0]} The micro-batch spans several ledgers and is in some of them only; repeating it "
        "completes the others and leaves these as they are.",
        **{
            **error.context,
            "decided": _topics_of(cluster, answers, decided),
            "undecided": _topics_of(cluster, answers, refused),
        },
    ) from error


def _topics_of(cluster: Cluster, answers: Mapping[LedgerId, ProduceResponse], ledger_ids: Iterable[LedgerId]) -> str:
    """Return the names of the topics that the batch writes to in these ledgers, deleted ones as well."""
    names: set[str] = set()
    for ledger_id in ledger_ids:
        ledger = cluster.topic_ledger(ledger_id)
        with ledger.lock:
            topics = ledger.state.topics
            names |= {topics[key[0]].name for key in answers[ledger_id].partitions if key[0] in topics}
    return ",".join(sorted(names)) or "none"


def _shared_manager(cluster: Cluster, config: CoordinatorConfig) -> ReplicaManager:
    """Return this process's manager of the cluster: its timers and fetchers outlive a micro-batch."""
    key = (id(cluster), config)
    manager = _managers.get(key)
    if manager is None:
        manager = _managers.setdefault(key, ReplicaManager(cluster, config))
    return manager


def _log_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    count = sum(len(message.objects) for message in messages if isinstance(message, WriteMessage))
    _LOG.warning("a write was aborted; its %d data objects stay until garbage collection finds them unused", count)
