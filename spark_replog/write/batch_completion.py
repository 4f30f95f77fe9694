"""Decides the outcome of a request's batches: success, retry, or failure with an error.

Source: Kafka ``Sender.completeBatch``, ``canRetry`` and ``failBatch``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import BrokerId
from spark_replog.log.model import PartitionResponse
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.data_request import DataRequest, DeliveryResult, ObjectBuilder, Put
from spark_replog.write.producer_batch import BatchState, ProducerBatch
from spark_replog.write.record_handle import UNKNOWN_OFFSET
from spark_replog.write.sequences import ProducerSequences

logger = logging.getLogger(__name__)

SILENT_RETRY_MS = 1_000
"""Only retries of batches older than this are logged: one quick retry is normal when a leader moves."""


def may_be_in_log(error: ReplogError) -> bool:
    """Return whether an append that ended with this error may be in the log, or is there without enough replicas."""
    return isinstance(error, OutcomeUnknownError) or error.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class BatchCompletion:
    """Judges batches, one by one. One owner calls it; the accumulator guards the state that it shares."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        builder: ObjectBuilder,
        config: ProducerConfig,
        sequences: ProducerSequences | None,
    ) -> None:
        self._accumulator = accumulator
        self._builder = builder
        self._config = config
        self._sequences = sequences
        self.fatal: ReplogError | None = None
        """Set when a newer producer with this name exists: sending has ended."""
        self._has_reported_wait = False
        self.has_sequences = sequences is not None
        self.expiry_due_ms = math.inf
        """When the first waiting batch expires; newer batches expire later."""

    def run_once(self, now_ms: int) -> None:
        """Resolve what can be resolved, and fail expired batches."""
        if self._sequences is not None:
            self._sequences.resolve()
        for batch in self._accumulator.expired_batches(now_ms):
            self._expire(batch)

    def expire_in_flight(self, request: DataRequest, now_ms: int) -> None:
        """Fail batches past ``delivery.timeout.ms`` while their request is unanswered."""
        for batch in request.batches:
            if batch.state is BatchState.INCOMPLETE and batch.has_expired(now_ms, self._config.delivery_timeout_ms):
                error = batch_expired(batch, self._config.delivery_timeout_ms, is_on_its_way=True)
                self._accumulator.fail(batch, error)

    def park(self, request: DataRequest) -> None:
        """Let batches wait for the end of their transaction without holding up later ones.

        One entry commits the whole transaction, so the log's window of five appends does not limit it.
        """
        for batch in request.batches:
            if self._sequences is not None:
                self._sequences.forget(batch)
            batch.result.park()

    def acknowledge(self, request: DataRequest) -> None:
        """Acknowledge all batches of the request, which have no sequences, at unknown offsets."""
        for batch in request.batches:
            self._accumulator.succeed(batch, UNKNOWN_OFFSET, None)

    def drop(self, request: DataRequest, error: ReplogError) -> None:
        """Fail all batches of a write task's request, without another attempt."""
        for batch in request.batches:
            self._fail(batch, error, leaves_hole=True)

    def complete(self, request: DataRequest, result: DeliveryResult, now_ms: int) -> None:
        """Judge the batches of a delivered request by the responses of their partitions."""
        rows = dict.fromkeys(result.responses, 0)
        retried: list[ProducerBatch] = []
        for batch in request.batches:
            response = result.responses[batch.topic_partition]
            first_row = rows[batch.topic_partition]
            rows[batch.topic_partition] += batch.row_count
            if response.error is None:
                self._succeed(batch, response, first_row)
            elif self._can_retry(request, batch, response.error, now_ms):
                retried.append(batch)
                batch.last_error = response.error
                self._tell_wait(batch, response.error, now_ms)
            elif may_be_in_log(response.error):
                self._leave_unresolved(batch)
                self._accumulator.fail(batch, response.error)
            else:
                if isinstance(response.error, FencedError):
                    self.fatal = response.error
                self._fail(batch, response.error, leaves_hole=batch.attempts < self._config.retries)
        self._put_back(request, retried, now_ms)

    def fail(self, request: DataRequest, error: ReplogError, now_ms: int) -> None:
        """Judge the batches of a request that got too few copies; nothing was appended."""
        retried = []
        for batch in request.batches:
            if batch.last_error is None or error.code is not ErrorCode.REQUEST_TIMED_OUT:
                batch.last_error = error  # an earlier error says more than a timeout
            if self._can_retry(request, batch, error, now_ms):
                retried.append(batch)
                self._tell_wait(batch, error, now_ms)
            elif batch.has_expired(now_ms, self._config.delivery_timeout_ms):
                self._expire(batch)
            else:
                self._fail(batch, error, leaves_hole=True)
        self._put_back(request, retried, now_ms)

    def _can_retry(self, request: DataRequest, batch: ProducerBatch, error: ReplogError, now_ms: int) -> bool:
        """Return whether a batch goes into another object; request a new epoch if that needs one.

        In another object the log would not recognise a numbered batch that it may have. One without a number is never
        recognised, so it goes there all the same.
        """
        if batch.state is not BatchState.INCOMPLETE or batch.attempts >= self._config.retries or not request.buffers:
            return False
        if batch.has_expired(now_ms, self._config.delivery_timeout_ms):
            return False
        if error.code is ErrorCode.REPLOG_JOB_TOO_LONG:
            return True  # the log refuses that object for ever
        if self._sequences is not None and batch.has_sequence:
            return not may_be_in_log(error) and self._sequences.can_retry(batch, error)
        return isinstance(error, (RetriableError, OutcomeUnknownError))

    def _tell_wait(self, batch: ProducerBatch, error: ReplogError, now_ms: int) -> None:
        """Log that records wait, and why; not again until a batch succeeds."""
        if now_ms - batch.created_ms < SILENT_RETRY_MS or self._has_reported_wait:
            return
        self._has_reported_wait = True
        logger.warning(
            "records for %s-%d wait; they are sent again for up to delivery.timeout.ms (%d): %s",
            batch.topic_partition.topic,
            batch.topic_partition.partition,
            self._config.delivery_timeout_ms,
            error,
        )

    def _put_back(self, request: DataRequest, retried: Sequence[ProducerBatch], now_ms: int) -> None:
        if not retried:
            return
        self._builder.recover(request, set(retried))
        for batch in reversed(retried):  # each goes to the front of its queue
            self._accumulator.reenqueue(batch, now_ms)

    def _succeed(self, batch: ProducerBatch, response: PartitionResponse, first_row: int) -> None:
        self._has_reported_wait = False
        has_offset = response.error is None and response.base_offset != UNKNOWN_OFFSET
        base_offset = response.base_offset + first_row if has_offset else UNKNOWN_OFFSET
        if self._sequences is not None and batch.has_sequence:
            self._sequences.on_success(batch)
        self._accumulator.succeed(batch, base_offset, response.log_append_time_ms)

    def _expire(self, batch: ProducerBatch) -> None:
        """Fail a batch past its time, whether it was sent or not."""
        if batch.attempts:
            self._leave_unresolved(batch)
        error = batch_expired(batch, self._config.delivery_timeout_ms, is_on_its_way=False)
        self._fail(batch, error, leaves_hole=True)

    def _leave_unresolved(self, batch: ProducerBatch) -> None:
        if self._sequences is not None and batch.has_sequence:
            self._sequences.mark_unresolved(batch)
            self._sequences.on_failure(batch, leaves_hole=False)

    def _fail(self, batch: ProducerBatch, error: ReplogError, *, leaves_hole: bool) -> None:
        if self._sequences is not None and batch.has_sequence:
            self._sequences.on_failure(batch, leaves_hole=leaves_hole)
        self._accumulator.fail(batch, error)


PARTITIONS_NAMED_MAX = 3


def expired(request: DataRequest, config: ProducerConfig) -> RetriableError:
    """Return REQUEST_TIMED_OUT: ``delivery.timeout.ms`` passed first."""
    return RetriableError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"Expiring {request.row_count} records for {_partitions(request)}: delivery.timeout.ms "
        f"({config.delivery_timeout_ms}) passed with copies on brokers {_brokers(request.holders)}; "
        f"needed: {_needed(request, config.acks)}. {_reasons(request, {})}"
        "Nothing was committed. Repair the roots named here or raise delivery.timeout.ms.",
        records=request.row_count,
    )


def batch_expired(batch: ProducerBatch, delivery_timeout_ms: int, *, is_on_its_way: bool) -> RetriableError:
    """Return REQUEST_TIMED_OUT for one batch: ``delivery.timeout.ms`` passed since it was made.

    Args:
        is_on_its_way: whether an attempt is unanswered, so the batch may still be appended.
    """
    name = batch.topic_partition
    last = batch.last_error
    why = "" if last is None else f"An attempt failed: [{last.code.name}] {last.args[0]} "
    if is_on_its_way:
        why = "Its last attempt is not answered, so it may still be appended. "
    return RetriableError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"Expiring {batch.row_count} records for {name.topic}-{name.partition}: delivery.timeout.ms "
        f"({delivery_timeout_ms}) passed since the batch was made. {why}Find slow roots with `replog store "
        "info`, or raise delivery.timeout.ms.",
        records=batch.row_count,
    )


def too_few_copies(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> RetriableError:
    """Return NOT_ENOUGH_REPLICAS: not enough roots are left to try."""
    return RetriableError(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"{request.row_count} records for {_partitions(request)} need {request.required_count} copies "
        f"(min.insync.replicas); in sync are brokers {_brokers(request.destination.brokers)}, holding them "
        f"{_brokers(request.holders)}. {_reasons(request, out)}Nothing was committed. Bring the missing roots "
        "back or lower min.insync.replicas of the topic.",
        records=request.row_count,
    )


def refused(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> ReplogError:
    """Return REPLOG_STORE_REFUSED. Too many roots refuse: the others are fewer than the required copies."""
    return ReplogError(
        ErrorCode.REPLOG_STORE_REFUSED,
        f"{request.row_count} records for {_partitions(request)} cannot get the copies that they need: too many roots "
        f"refuse them. {_reasons(request, out)}Nothing was committed. Remove the cause on these roots, then send the "
        "records again: waiting does not help.",
        records=request.row_count,
    )


def leader_away(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> RetriableError:
    """Return LEADER_NOT_AVAILABLE: with acks=1 only the copy of the leader, or of a replica that may lead, counts."""
    return RetriableError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"{request.row_count} records for {_partitions(request)} could not be put on their leader, broker "
        f"{request.destination.leader}, or on another in-sync replica that could lead. {_reasons(request, out)}"
        "Nothing was committed. Bring one of these roots back and repeat the batch.",
        records=request.row_count,
    )


def dropped(request: DataRequest) -> ReplogError:
    """Return REPLOG_ACKS0_DROPPED: acks=0 does not retry."""
    return ReplogError(
        ErrorCode.REPLOG_ACKS0_DROPPED,
        f"{request.row_count} rows for {_partitions(request)} were dropped: no root took them, and acks=0 does "
        f"not retry. {_reasons(request, {})}Use acks=all or acks=1 where rows matter.",
        rows=request.row_count,
    )


def copy_missed(request: DataRequest, put: Put, config: ProducerConfig) -> RetriableError:
    """Return REPLOG_STORE_UNAVAILABLE for a root that missed its copy while others took theirs."""
    reason = f"{put.error}" if put.error is not None else "no answer yet."
    return RetriableError(
        ErrorCode.REPLOG_STORE_UNAVAILABLE,
        f"broker {put.broker_id} did not take its copy within replica.grace.ms ({config.replica_grace_ms}), "
        f"brokers {_brokers(request.holders)} did. It is copied later, or the broker leaves the ISR. Check that root: "
        f"{reason}",
        broker=put.broker_id,
    )


def _partitions(request: DataRequest) -> str:
    names = sorted({batch.topic_partition for batch in request.batches})
    text = ", ".join(f"{name.topic}-{name.partition}" for name in names[:PARTITIONS_NAMED_MAX])
    rest_count = len(names) - PARTITIONS_NAMED_MAX
    return f"{text} and {rest_count} more partitions" if rest_count > 0 else text


def _brokers(broker_ids: frozenset[BrokerId] | tuple[BrokerId, ...]) -> str:
    return str(sorted(broker_ids))


def _needed(request: DataRequest, acks: int) -> str:
    return f"broker {request.destination.leader}" if acks == 1 else f"{request.required_count}"


def _reasons(request: DataRequest, out: Mapping[BrokerId, ReplogError]) -> str:
    errors = {broker_id: out[broker_id] for broker_id in request.destination.brokers if broker_id in out}
    errors |= {put.broker_id: put.error for put in request.puts.values() if put.error is not None}
    return "".join(f"Broker {broker_id}: {error} " for broker_id, error in sorted(errors.items()))
