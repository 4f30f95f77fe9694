"""What happens to the batches of a request that was answered: done, tried again, split, or failed.

Source: Kafka ``Sender.completeBatch``, ``canRetry`` and ``failBatch``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, FencedError, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.delivery import DeliveryResult, PartitionResponse
from spark_replog.write.in_flight import DataRequest
from spark_replog.write.object_builder import ObjectBuilder
from spark_replog.write.producer_batch import BatchState, ProducerBatch
from spark_replog.write.record_handle import UNKNOWN_OFFSET
from spark_replog.write.sender_errors import batch_expired, invalid_record, other_record_invalid
from spark_replog.write.sequences import ProducerSequences

logger = logging.getLogger(__name__)

SILENT_RETRY_MS = 1_000
"""Retries of a batch older than this are told: a leader that moves is met with one quick retry, a lack is not."""


class BatchCompletion:
    """Judges batches, one by one. One owner calls it, except for what the accumulator guards.

    Args:
        accumulator: where batches go back to.
        builder: gives batches their records back from the object.
        config: retries, time-outs.
        sequences: of an idempotent producer; None: batches have none.
    """

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
        """A newer producer of this name exists: nothing may be sent any more."""
        self._is_wait_told = False

    def run_once(self, now_ms: int) -> None:
        """Decide what is unresolved and fail what waited for too long."""
        if self._sequences is not None:
            self._sequences.resolve()
        for batch in self._accumulator.expired_batches(now_ms):
            self._expire(batch)

    def expire_in_flight(self, request: DataRequest, now_ms: int) -> None:
        """Fail what is over its ``delivery.timeout.ms`` while the answer of its request is missing."""
        for batch in request.batches:
            if batch.state is BatchState.INCOMPLETE and batch.has_expired(now_ms, self._config.delivery_timeout_ms):
                self._accumulator.fail(batch, self._expired(batch, is_on_its_way=True))

    def is_doubtful(self, request: DataRequest, result: DeliveryResult) -> bool:
        """Return whether an object may have been appended or not.

        Then the very same object must be handed over again: its batches, in other company, would not
        be known again as the ones that may be in the log.
        """
        errors = [response.error for response in result.responses.values()]
        if any(isinstance(error, OutcomeUnknownError) for error in errors):
            return True
        return request.is_doubtful and any(isinstance(error, RetriableError) for error in errors)

    def give_up(self, request: DataRequest) -> None:
        """Fail what is over its ``delivery.timeout.ms`` while nobody knows whether it was appended."""
        for batch in request.batches:
            self._leave_unresolved(batch)
            self._accumulator.fail(batch, self._expired(batch, is_on_its_way=True))

    def park(self, request: DataRequest) -> None:
        """Let batches wait for the end of their transaction, and nothing behind them for them.

        One entry judges the whole transaction, so the log's window of five appends does not bound it.
        """
        for batch in request.batches:
            if self._sequences is not None:
                self._sequences.forget(batch)
            batch.result.park()

    def acknowledge(self, request: DataRequest) -> None:
        """All batches of the request are done, at unknown offsets."""
        for batch in request.batches:
            self._succeed(batch, PartitionResponse(), 0)

    def drop(self, request: DataRequest, error: ReplogError) -> None:
        """All batches of the request are lost, without another try (acks=0)."""
        for batch in request.batches:
            self._fail(batch, error, leaves_hole=True)

    def complete(self, request: DataRequest, result: DeliveryResult, now_ms: int) -> None:
        """Judge the batches of a delivered request by the answers for their partitions."""
        rows = dict.fromkeys(result.responses, 0)
        retried: list[ProducerBatch] = []
        split: list[ProducerBatch] = []
        for batch in request.batches:
            response = result.responses[batch.topic_partition]
            first_row = rows[batch.topic_partition]
            rows[batch.topic_partition] += batch.row_count
            if response.error is None or response.error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._succeed(batch, response, first_row)
            elif self._is_splittable(request, batch, response.error):
                split.append(batch)
            elif self._can_retry(request, batch, response, now_ms):
                retried.append(batch)
                batch.last_error = response.error
                self._tell_wait(batch, response.error, now_ms)
            elif request.is_doubtful:
                self._leave_unresolved(batch)
                self._accumulator.fail(batch, response.error)
            else:
                self._refuse(batch, response, first_row)
        self._put_back(request, retried, split, now_ms)

    def fail(self, request: DataRequest, error: ReplogError, now_ms: int) -> None:
        """Judge the batches of a request whose copies never came to be; nothing of it was appended."""
        response = PartitionResponse(error)
        retried = []
        for batch in request.batches:
            batch.last_error = error
            if self._can_retry(request, batch, response, now_ms):
                retried.append(batch)
                self._tell_wait(batch, error, now_ms)
            elif batch.has_expired(now_ms, self._config.delivery_timeout_ms):
                self._expire(batch)
            else:
                self._fail(batch, error, leaves_hole=True)
        self._put_back(request, retried, [], now_ms)

    def _can_retry(self, request: DataRequest, batch: ProducerBatch, response: PartitionResponse, now_ms: int) -> bool:
        """Return whether a batch gets another attempt; asks for a new epoch where that needs one."""
        assert response.error is not None
        if batch.state is not BatchState.INCOMPLETE or batch.attempts >= self._config.retries or not request.has_body:
            return False
        if request.is_doubtful and isinstance(response.error, (RetriableError, OutcomeUnknownError)):
            return False
        if batch.has_expired(now_ms, self._config.delivery_timeout_ms):
            return False
        if self._sequences is not None and batch.has_sequence:
            return self._sequences.can_retry(batch, response)
        return isinstance(response.error, RetriableError)

    def _tell_wait(self, batch: ProducerBatch, error: ReplogError, now_ms: int) -> None:
        """Log once, until a batch succeeds, that records wait and why."""
        if self._is_wait_told or now_ms - batch.created_ms < SILENT_RETRY_MS:
            return
        self._is_wait_told = True
        logger.warning(
            "records for %s-%d wait and are sent again for up to delivery.timeout.ms (%d): %s",
            batch.topic_partition.topic,
            batch.topic_partition.partition,
            self._config.delivery_timeout_ms,
            error,
        )

    def _is_splittable(self, request: DataRequest, batch: ProducerBatch, error: ReplogError) -> bool:
        return (
            error.code is ErrorCode.MESSAGE_TOO_LARGE
            and batch.row_count > 1
            and batch.state is BatchState.INCOMPLETE
            and request.has_body
        )

    def _put_back(
        self, request: DataRequest, retried: Sequence[ProducerBatch], split: Sequence[ProducerBatch], now_ms: int
    ) -> None:
        if not retried and not split:
            return
        self._builder.recover(request, {*retried, *split})
        # From the last to the first: each goes to the front of its queue.
        for batch in reversed(request.batches):
            if batch in retried:
                self._accumulator.reenqueue(batch, now_ms)
            elif batch in split:
                self._accumulator.split_and_reenqueue(batch)

    def _succeed(self, batch: ProducerBatch, response: PartitionResponse, first_row: int) -> None:
        self._is_wait_told = False
        known = response.error is None and response.base_offset != UNKNOWN_OFFSET
        base_offset = response.base_offset + first_row if known else UNKNOWN_OFFSET
        if self._sequences is not None and batch.has_sequence:
            self._sequences.on_success(batch, base_offset)
        self._accumulator.succeed(batch, base_offset, response.log_append_time_ms)

    def _refuse(self, batch: ProducerBatch, response: PartitionResponse, first_row: int) -> None:
        assert response.error is not None
        if isinstance(response.error, FencedError):
            self.fatal = response.error
        named = {
            row - first_row: text
            for row, text in response.record_errors.items()
            if first_row <= row < first_row + batch.row_count
        }
        leaves_hole = batch.attempts < self._config.retries
        if not response.record_errors or batch.row_count == 1:
            self._fail(batch, response.error, leaves_hole=leaves_hole)
            return
        errors = {row: invalid_record(response.error, text) for row, text in named.items()}
        self._fail(batch, other_record_invalid(response.error), leaves_hole=leaves_hole, record_errors=errors)

    def _expire(self, batch: ProducerBatch) -> None:
        """Fail a batch that waited for too long, for its first attempt or for another one."""
        if batch.attempts:
            self._leave_unresolved(batch)
        self._fail(batch, self._expired(batch, is_on_its_way=False), leaves_hole=True)

    def _expired(self, batch: ProducerBatch, *, is_on_its_way: bool) -> ReplogError:
        return batch_expired(batch, self._config.delivery_timeout_ms, is_on_its_way=is_on_its_way)

    def _leave_unresolved(self, batch: ProducerBatch) -> None:
        if self._sequences is not None and batch.has_sequence:
            self._sequences.mark_unresolved(batch)
            self._sequences.on_failure(batch, leaves_hole=False)

    def _fail(
        self,
        batch: ProducerBatch,
        error: ReplogError,
        *,
        leaves_hole: bool,
        record_errors: dict[int, ReplogError] | None = None,
    ) -> None:
        if self._sequences is not None and batch.has_sequence:
            self._sequences.on_failure(batch, leaves_hole=leaves_hole)
        self._accumulator.fail(batch, error, record_errors)


__all__ = ["BatchCompletion"]
