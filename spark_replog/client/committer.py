"""Appends stored objects to the log: the plain producer's delivery.

A ledger decides one entry of a producer at a time. Objects stored in the meantime go into the next entry together, so
the ledger's pace limits the number of entries.

Appends are repeated here and not by the sender, because only an identical append is recognised as a
duplicate. An append whose answer was lost is repeated unchanged until it is answered, or until its
last batch exceeds ``delivery.timeout.ms``. docs/architecture.md lists who repeats what.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_replog.client.metrics import ProducerMetrics
from spark_replog.clock import Clock, ExponentialBackoff
from spark_replog.commit.append_request import AppendRequest, ProduceResponse, without_partitions
from spark_replog.commit.replica_manager import ReplicaManager
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import LedgerId, TopicId, TopicPartition, new_id, process_id
from spark_replog.log.model import (
    Append,
    BatchSequence,
    DataObject,
    IdentityKind,
    PartitionResponse,
    ProducerIdentity,
    SequencedAppend,
)
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.write.batch_completion import may_be_in_log
from spark_replog.write.data_request import DataRequest, Delivered, DeliveryResult
from spark_replog.write.producer_batch import NO_SEQUENCE
from spark_replog.write.transport import no_thread

Place = tuple[TopicId, int]
_REBUILT = frozenset({"unreadable", "carried_by"})
"""In the context of an error that the same append gets again: the sender still has the rows, and makes a new object."""
_OF_THE_LOG = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)
"""Refusals by the fold, which looks for a repetition first: what gets one of them is not in the log."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object with its copies, and its batches' sequences at the time of delivery.

    Sequences are copied in the sender's thread. If a batch is renumbered later, the ledger refuses the
    outdated copy here, and the batch is sent again under its new sequence.
    """

    sequence: int
    data_object: DataObject
    places: Mapping[TopicPartition, Place]
    producer_id: str | None
    batches: tuple[BatchSequence, ...]
    row_counts: Mapping[Place, int]
    expires_ms: int
    """When the youngest of its batches expires, on the monotonic clock."""

    @classmethod
    def of(cls, request: DataRequest, delivery_timeout_ms: int) -> StoredObject:
        """Take what an append needs from a request."""
        places: dict[TopicPartition, Place] = {}
        counts: dict[Place, int] = {}
        batches = []
        item = request.to_data_object()
        producer_ids = {batch.producer.id for batch in request.batches}
        for batch in request.batches:
            name = batch.topic_partition
            place = places.setdefault(name, (request.topic_ids[name.topic], name.partition))
            counts[place] = counts.get(place, 0) + batch.row_count
            if batch.base_sequence != NO_SEQUENCE:
                batches.append(BatchSequence(*place, batch.producer.epoch, batch.base_sequence, batch.row_count))
        return cls(
            sequence=request.sequence,
            data_object=item,
            places=places,
            producer_id=producer_ids.pop() if len(producer_ids) == 1 else None,
            batches=tuple(batches),
            row_counts=counts,
            expires_ms=max(batch.created_ms for batch in request.batches) + delivery_timeout_ms,
        )


@dataclass(slots=True)
class _Lane:
    """One ledger: objects that wait for its next entry, and whether an entry is being decided."""

    waiting: deque[StoredObject] = field(default_factory=deque)
    is_busy: bool = False


@dataclass(slots=True)
class Answer:
    """The outcome of one append."""

    responses: dict[Place, PartitionResponse]
    error: ReplogError | None = None


class Appender:
    """Appends objects to a ledger, and repeats each append until it is answered. Any thread; blocks.

    Args:
        client_id: the producer's name in the log.
        on_throttle: called for each answer with the milliseconds that a quota delayed it.
        when_queued: called before each attempt to decide an append: see ``Ledger.append``.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        config: ProducerConfig,
        clock: Clock,
        *,
        principal: str,
        client_id: str,
        random_source: random.Random,
        on_throttle: Callable[[int], None] = lambda _: None,
        when_queued: Callable[[], object] | None = None,
    ) -> None:
        self._on_throttle = on_throttle
        self._when_queued = when_queued
        self._manager = manager
        self._config = config
        self._clock = clock
        self.principal = principal
        self._client_id = client_id
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random_source.random)
        self._stopped = threading.Event()
        self._count = 0

    def stop(self) -> None:
        """End the repetitions."""
        self._stopped.set()

    def prepare(self) -> None:
        """Start the reads that an append needs first; return at once."""
        self._manager.prepare()

    def await_copies(self, timeout_ms: int | None) -> None:
        """With acks 0 and 1, wait for the followers' copies: without them no row is readable."""
        if self._config.acks != -1:
            self._manager.await_copies(timeout_ms)

    def make_append(
        self, objects: Sequence[DataObject], batches: Sequence[BatchSequence], producer_id: str, kind: IdentityKind
    ) -> Append:
        """Return an append that is recognised by its batches' sequences or, without sequences, by a new id."""
        self._count += 1
        now_ms = self._clock.now_ms()
        if not batches:
            producer_id = new_id()
        identity = ProducerIdentity(producer_id, producer_id, self._count if batches else 0, process_id(), kind)
        if not batches:
            return Append(identity, self.principal, self._client_id, now_ms, tuple(objects))
        return SequencedAppend(identity, self.principal, self._client_id, now_ms, tuple(objects), tuple(batches))

    def append(self, ledger_id: LedgerId, append: Append, deadline_ms: int, *, is_atomic: bool) -> Answer:
        """Append until every partition has its answer, or until time or retries are over.

        At first a partition that is refused on its own has its answer, and the others go on without it. Once an attempt
        may be in the log, the append is repeated as a whole: a second append could name the same object, which garbage
        collection would then delete with the rows of the first one. If the whole is refused for good, the others go
        once more without the partition that is the reason.

        Args:
            append: the same in every attempt, except that partitions with their answer are removed.
            deadline_ms: on the monotonic clock; it also ends a running attempt.
            is_atomic: whether one refused partition refuses all.
        """
        responses: dict[Place, PartitionResponse] = {}
        doubt: ReplogError | None = None  # of the first attempt that may be in the log
        attempt_count = 0
        while True:
            response = self._ask(ledger_id, append, deadline_ms, is_atomic or doubt is not None)
            if doubt is not None and not is_atomic and response.error is not None and not _is_passing(response.error):
                response = self._ask(ledger_id, append, deadline_ms, is_atomic=False)
            error = response.error
            places = response.partitions.items()
            own_responses = {place: reply for place, reply in places if error is None or reply.error is not error}
            responses |= {place: _told(doubt, reply) for place, reply in own_responses.items()}
            if error is None:
                return Answer(responses)
            if own_responses:
                append = without_partitions(append, own_responses)
            if doubt is None and may_be_in_log(error):
                doubt = error
            attempt_count += 1
            is_rebuilt = doubt is None and not _REBUILT.isdisjoint(error.context)
            is_worth_it = _is_passing(error) and not is_rebuilt and bool(append.objects)
            if not is_worth_it or not self._pause(attempt_count, deadline_ms):
                told = _told(doubt, PartitionResponse(error))
                return Answer(dict.fromkeys(response.partitions, told) | responses, told.error)

    def _pause(self, attempt_count: int, deadline_ms: int) -> bool:
        """Wait before the next attempt; False: there is none."""
        pause_ms = self._backoff.pause_ms(attempt_count - 1)
        if attempt_count > self._config.retries or self._clock.monotonic_ms() + pause_ms >= deadline_ms:
            return False
        return not self._stopped.wait(pause_ms / 1000)

    def _ask(self, ledger_id: LedgerId, append: Append, deadline_ms: int, is_atomic: bool) -> ProduceResponse:
        config = self._config
        request = AppendRequest(
            append,
            config.request_timeout_ms,
            config.acks,
            is_atomic,
            deadline_ms=deadline_ms,
            when_queued=self._when_queued,
        )
        response = self._manager.append_records({ledger_id: request})[ledger_id]
        self._on_throttle(response.throttle_time_ms)
        return response


def _is_passing(error: ReplogError) -> bool:
    """Return whether the same append may succeed later."""
    return isinstance(error, (RetriableError, OutcomeUnknownError))


def _told(doubt: ReplogError | None, answer: PartitionResponse) -> PartitionResponse:
    """Return a partition's last answer: most refusals say nothing of an earlier attempt that may be in the log."""
    if doubt is None or answer.error is None or answer.error.code in _OF_THE_LOG:
        return answer
    return PartitionResponse(doubt)


class Committer:
    """Commits objects as they arrive. The sender's thread calls it; entries are written on I/O threads.

    Args:
        wake_up: wakes the sender's thread when an answer arrives.
        report: logs rows that acks=0 drops.
    """

    def __init__(
        self,
        appender: Appender,
        config: ProducerConfig,
        clock: Clock,
        metrics: ProducerMetrics,
        wake_up: Callable[[], None],
        report: Callable[[ReplogError], None],
    ) -> None:
        self._appender = appender
        self._report = report
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._wake_up = wake_up
        self._lock = threading.Lock()
        self._lanes: dict[LedgerId, _Lane] = {}
        self._results: deque[DeliveryResult] = deque()

    def begin(self, request: DataRequest) -> None:
        """Count an object in flight; during its puts, read what its append needs."""
        self._appender.prepare()
        now_ms = self._clock.monotonic_ms()
        row_count, batches = request.row_count, request.batches
        events = {"request": 1, "record-send": row_count, "byte": request.data_object.size_bytes}
        retried = sum([batch.row_count for batch in batches if batch.attempts])
        if retried:
            events["record-retry"] = retried
        values: list[tuple[str, float, int, float]] = [("records-per-request", row_count, 1, row_count)]
        for batch in batches:
            waited_ms = max(0, now_ms - batch.created_ms)
            values.append(("batch-size", batch.size_bytes, 1, batch.size_bytes))
            values.append(("record-queue-time", waited_ms, 1, waited_ms))
        record_bytes = sum([batch.size_bytes for batch in batches])
        values.append(
            ("record-size", record_bytes, row_count, max([batch.contents.record_size_max for batch in batches]))
        )
        self._metrics.note(events, values, now_ms)

    def deliver(self, request: DataRequest) -> Delivered:
        """Queue the object for its ledger's next entry."""
        ledger_id = request.destination.ledger_id
        self._metrics.observe("request-latency", request.copied_ms - request.created_ms)
        with self._lock:
            lane = self._lanes.setdefault(ledger_id, _Lane())
            lane.waiting.append(StoredObject.of(request, self._config.delivery_timeout_ms))
            if lane.is_busy:
                return Delivered.PENDING
            lane.is_busy = True
        self._start(ledger_id)
        return Delivered.PENDING

    def poll(self) -> Sequence[DeliveryResult]:
        """Return the answers since the last call."""
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    @property
    def is_idle(self) -> bool:
        """Return whether no entry is being decided and all answers were polled."""
        with self._lock:
            return not self._results and not any(lane.is_busy for lane in self._lanes.values())

    def tell(self, results: Sequence[DeliveryResult]) -> None:
        """Pass answers to the sender."""
        self._results.extend(results)
        self._wake_up()

    def _start(self, ledger_id: LedgerId) -> None:
        try:
            IO_POOL.post_to(f"commit {ledger_id} {id(self)}", self._work, ledger_id)
        except RuntimeError as error:
            with self._lock:
                lane = self._lanes[ledger_id]
                lane.is_busy, group = False, list(lane.waiting)
                lane.waiting.clear()
            results = results_of(group, Answer({}, no_thread("a commit", error)))
            self._report_dropped(group, results)
            self.tell(results)

    def _work(self, ledger_id: LedgerId) -> None:
        """Write entries until no object waits."""
        results: list[DeliveryResult] = []
        while True:
            with self._lock:
                lane = self._lanes[ledger_id]
                self._results.extend(results)
                group = _next_group(lane.waiting)
                lane.is_busy = bool(group)
            if results:
                self._wake_up()
            if not group:
                return
            results = self._commit(ledger_id, group)

    def _commit(self, ledger_id: LedgerId, group: Sequence[StoredObject]) -> list[DeliveryResult]:
        began_ms = self._clock.monotonic_ms()
        try:
            if group[0].batches and group[0].producer_id is None:
                raise RetriableError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "The producer got a new id since. The batch is sent again."
                )
            append = self._appender.make_append(
                [item.data_object for item in group],
                [batch for item in group for batch in item.batches],
                group[0].producer_id or "",
                IdentityKind.ONE_SHOT,
            )
            deadline_ms = max(item.expires_ms for item in group)
            answer = self._appender.append(ledger_id, append, deadline_ms, is_atomic=False)
        except RetriableError as error:
            answer = Answer({}, error)
        except Exception as error:  # the sender must get an answer
            unexpected = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The append ended with {error!r}. Report it.",
                ledger=ledger_id,
            )
            unexpected.__cause__ = error
            answer = Answer({}, unexpected)
        now_ms, size = self._clock.monotonic_ms(), len(group)
        latency_ms = now_ms - began_ms
        values = ("commit-latency", latency_ms, 1, latency_ms), ("requests-per-commit", size, 1, size)
        self._metrics.note({"commit": 1}, values, now_ms)
        results = results_of(group, answer)
        self._report_dropped(group, results)
        return results

    def _report_dropped(self, group: Sequence[StoredObject], results: Sequence[DeliveryResult]) -> None:
        """Log rows that acks=0 lost: they were acknowledged before their first put."""
        if self._config.acks != 0:
            return
        failed = [
            (item.row_counts[item.places[name]], name, response.error)
            for item, result in zip(group, results, strict=True)
            for name, response in result.responses.items()
            if response.error is not None
        ]
        if failed:
            rows, (_, name, error) = sum(count for count, _, _ in failed), failed[0]
            self._report(
                ReplogError(
                    ErrorCode.REPLOG_ACKS0_DROPPED,
                    f"{rows} rows, the first for {name.topic}-{name.partition}, were dropped: their commit failed and "
                    f"acks=0 does not report it to the caller: {error} Use acks=all or acks=1 where rows matter.",
                    rows=rows,
                )
            )


def results_of(group: Sequence[StoredObject], answer: Answer) -> list[DeliveryResult]:
    """Return each object's answers; within a partition, offsets continue from object to object."""
    rows_before: dict[Place, int] = {}
    results = []
    for item in group:
        responses = {}
        for name, place in item.places.items():
            response = answer.responses.get(place) or PartitionResponse(answer.error)
            before = rows_before.get(place, 0)
            rows_before[place] = before + item.row_counts[place]
            responses[name] = PartitionResponse(
                error=response.error,
                base_offset=response.base_offset + before if response.base_offset >= 0 else response.base_offset,
                log_append_time_ms=response.log_append_time_ms,
            )
        results.append(DeliveryResult(item.sequence, responses))
    return results


def _next_group(waiting: deque[StoredObject]) -> list[StoredObject]:
    """Take the objects of the next entry, in order: as many as one append may name together."""
    group: list[StoredObject] = []
    writer: tuple[str | None, bool] | None = None
    while waiting and writer in (None, (waiting[0].producer_id, bool(waiting[0].batches))):
        group.append(waiting.popleft())
        writer = group[0].producer_id, bool(group[0].batches)
    return group
