"""Drains the accumulator into data objects and sees them onto their roots.

Source: Kafka ``Sender``. ``run_once(now_ms)`` reads no clock and waits for nothing: answers come
from the transport's queue, time as an argument. The write task runs it between Arrow batches, so
uploads go on while rows arrive.

What ends a request:

* acks=all: ``min.insync.replicas`` copies, then ``replica.grace.ms`` for the rest.
* acks=1: the leader's copy.
* acks=0: one answer per root, no retry; an object that no root holds is dropped and logged.

A put that failed or was not answered within ``request.timeout.ms`` is repeated under the same
name with the same bytes, which makes the repetition harmless, until ``delivery.timeout.ms`` after
the object was made. (Kafka counts from the append. Here ``linger.ms`` may be infinite, and rows
that wait for their object are not late.)
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import BrokerId
from spark_replog.producer.accumulator import RecordAccumulator
from spark_replog.producer.in_flight import DataRequest, InFlightRequests, Put
from spark_replog.producer.object_builder import ObjectBuilder
from spark_replog.producer.partition_queue import Destination
from spark_replog.producer.record_handle import UNKNOWN_OFFSET
from spark_replog.producer.sender_errors import copy_missed, dropped, expired, leader_away, too_few_copies
from spark_replog.producer.transport import PutResult, PutTransport

POLL_MS_MAX = 1_000
"""Longest time that ``run_once`` asks its owner to wait."""


class Report(Protocol):
    """Where a line for the log goes."""

    def __call__(self, error: ReplogError) -> None:
        """Log it."""
        ...


class Sender:
    """Owns the requests of one producer. One owner calls it; not thread-safe.

    Args:
        accumulator: what to drain.
        transport: puts objects on roots.
        builder: makes objects of batches.
        config: acks, timeouts, retries.
        report: told about rows that acks=0 drops, and once about a root that misses copies.
        random_source: spreads retries.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: PutTransport,
        builder: ObjectBuilder,
        config: ProducerConfig,
        *,
        report: Report,
        random_source: random.Random,
    ) -> None:
        self._accumulator = accumulator
        self._transport = transport
        self._builder = builder
        self._config = config
        self._report = report
        self._random = random_source
        self._in_flight = InFlightRequests(config.max_in_flight)
        self._requests: list[DataRequest] = []
        self._out: dict[BrokerId, ReplogError] = {}
        self._suspects: set[BrokerId] = set()
        self._laggards: set[BrokerId] = set()
        self._told: set[BrokerId] = set()
        self._last_run_ms: int | None = None
        self._paused_ms = 0
        self.dropped_row_count = 0
        self.failure: ReplogError | None = None
        """The first request that failed; nothing is drained any more."""

    @property
    def requests(self) -> tuple[DataRequest, ...]:
        """Return every request so far, in drain order."""
        return tuple(self._requests)

    @property
    def has_open_requests(self) -> bool:
        """Return whether the outcome of any request is not known yet."""
        return any(request.completed_ms is None for request in self._in_flight)

    def run_once(self, now_ms: int) -> int:
        """Collect answers, repeat what is due, judge requests, send what is ready.

        Returns:
            Milliseconds until something is due without an answer coming, at most 1,000.
        """
        run_ms = self._running_ms(now_ms)
        for result in self._transport.poll():
            self._on_answer(result, run_ms)
        for request in self._in_flight:
            self._advance(request, run_ms)
        next_check_ms = self._send_ready(now_ms, run_ms) if self.failure is None else None
        dues = [due for request in self._in_flight for due in self._dues(request)]
        if next_check_ms is not None:
            dues.append(run_ms + next_check_ms)
        return max(0, min([run_ms + POLL_MS_MAX, *dues]) - run_ms)

    def _running_ms(self, now_ms: int) -> int:
        """Return the time on which requests are judged: without the pauses between calls.

        The owner may wait for rows for minutes. A request must not expire in a time in which its
        next attempt was due but nobody ran the sender.
        """
        gap_ms = now_ms - (now_ms if self._last_run_ms is None else self._last_run_ms)
        self._last_run_ms = now_ms
        self._paused_ms += max(0, gap_ms - POLL_MS_MAX)
        return now_ms - self._paused_ms

    # ------------------------------------------------------------------------------------ sending

    def _send_ready(self, now_ms: int, run_ms: int) -> int | None:
        while True:
            check = self._accumulator.ready(now_ms, in_flight_count=len(self._in_flight))
            has_sent = False
            for destination in check.destinations:
                if self._in_flight.can_send(destination.brokers):
                    self._send(destination, run_ms)
                    has_sent = True
                if self.failure is not None:
                    return None
            if not has_sent:
                return check.next_check_ms
            self._accumulator.copy_wasteful()

    def _send(self, destination: Destination, now_ms: int) -> None:
        """Drain one object and start its puts."""
        batches = self._accumulator.drain(destination, now_ms)
        request = self._builder.build(destination, batches, sequence=len(self._requests), now_ms=now_ms)
        self._requests.append(request)
        for broker_id in self._targets(request):
            request.puts[broker_id] = Put(broker_id)
        self._in_flight.add(request)
        self._advance(request, now_ms)

    def _targets(self, request: DataRequest) -> list[BrokerId]:
        """Return the roots to put on: all in-sync ones but those known to be gone or hanging.

        A laggard still gets the object where there would be too few copies without it.
        """
        able = [broker_id for broker_id in request.destination.brokers if broker_id not in self._out]
        quick = [broker_id for broker_id in able if broker_id not in self._laggards]
        if self._config.acks == 1:
            leader = request.destination.leader
            return [broker_id for broker_id in able if broker_id in quick or broker_id == leader]
        needed_count = request.required_count if self._config.acks == -1 else 1
        return quick if len(quick) >= needed_count else able

    def _submit(self, request: DataRequest, put: Put, now_ms: int) -> None:
        put.attempt += 1
        put.sent_ms = now_ms
        self._transport.put(
            put.broker_id,
            request.key,
            request.buffers,
            sequence=request.sequence,
            attempt=put.attempt,
            check_root=put.broker_id in self._suspects,
        )

    # ------------------------------------------------------------------------------------ answers

    def _on_answer(self, result: PutResult, now_ms: int) -> None:
        request = self._requests[result.sequence]
        put = request.puts[result.broker_id]
        is_newest = result.attempt == put.attempt
        if is_newest:
            put.sent_ms = None
        if result.error is not None:
            self._suspects.add(result.broker_id)
            if is_newest and not put.is_settled:
                self._on_error(put, result.error, now_ms)
            return
        if result.is_checked:
            self._suspects.discard(result.broker_id)
        elif result.broker_id in self._suspects:
            # This root gave an error meanwhile: the put counts once the root is known to be the right one.
            if not put.is_settled and put.sent_ms is None:
                put.next_attempt_ms = now_ms
            return
        put.is_held = True
        self._laggards.discard(result.broker_id)

    def _on_error(self, put: Put, error: ReplogError, now_ms: int) -> None:
        put.error = error
        if error.code is ErrorCode.REPLOG_ROOT_STALE:
            self._out[put.broker_id] = error
        is_retriable = isinstance(error, (RetriableError, OutcomeUnknownError))
        if self._config.acks == 0 or not is_retriable or put.broker_id in self._out:
            put.is_given_up = True
            return
        put.next_attempt_ms = now_ms + self._backoff_ms(put.attempt - 1)

    def _backoff_ms(self, failed_count: int) -> int:
        """Return Kafka's ExponentialBackoff: doubled up to the cap, spread by 20 per cent."""
        config = self._config
        longest_ms = max(config.retry_backoff_ms, config.retry_backoff_max_ms)
        base_ms = min(longest_ms, config.retry_backoff_ms * 2 ** min(failed_count, 30))
        return int(base_ms * self._random.uniform(0.8, 1.2))

    # ------------------------------------------------------------------------------------ judging

    def _advance(self, request: DataRequest, now_ms: int) -> None:
        """Time out, repeat, judge and let go, in this order, so that an answer in time counts."""
        for put in request.puts.values():
            if put.broker_id in self._out and not put.is_settled:
                put.is_given_up = True
                put.error = self._out[put.broker_id]
            if put.sent_ms is not None and now_ms - put.sent_ms >= self._config.request_timeout_ms:
                self._on_silence(put, now_ms)
        if request.completed_ms is None:
            self._judge(request, now_ms)
        if request.completed_ms is None or not self._is_over(request, now_ms):
            for put in request.puts.values():
                if not put.is_settled and put.sent_ms is None and put.next_attempt_ms <= now_ms:
                    self._submit(request, put, now_ms)
            return
        self._let_go(request)

    def _on_silence(self, put: Put, now_ms: int) -> None:
        put.sent_ms = None
        self._suspects.add(put.broker_id)
        if not put.is_settled:
            error = RetriableError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"broker {put.broker_id} did not answer a put within request.timeout.ms "
                f"({self._config.request_timeout_ms}). Look at that root.",
            )
            self._on_error(put, error, now_ms)

    def _judge(self, request: DataRequest, now_ms: int) -> None:
        acks = self._config.acks
        if acks == 0:
            if request.is_settled:
                self._finish_unacknowledged(request, now_ms)
            return
        if acks == 1:
            self._judge_leader(request, now_ms)
        else:
            self._judge_copies(request, now_ms)
        if request.completed_ms is None and now_ms - request.created_ms >= self._config.delivery_timeout_ms:
            self._fail(request, expired(request, self._config), now_ms)

    def _judge_leader(self, request: DataRequest, now_ms: int) -> None:
        leader = request.destination.leader
        put = request.puts.get(leader) if leader is not None else None
        if put is None or put.is_given_up:
            self._fail(request, leader_away(request, self._out), now_ms)
        elif put.is_held:
            self._succeed(request, now_ms)

    def _judge_copies(self, request: DataRequest, now_ms: int) -> None:
        held_count = len(request.holders)
        if held_count >= request.required_count:
            if request.satisfied_ms is None:
                request.satisfied_ms = now_ms
            if request.is_settled or now_ms - request.satisfied_ms >= self._config.replica_grace_ms:
                self._succeed(request, now_ms)
            return
        hopeful_count = sum(not put.is_settled for put in request.puts.values())
        if held_count + hopeful_count < request.required_count:
            self._fail(request, too_few_copies(request, self._out), now_ms)

    def _succeed(self, request: DataRequest, now_ms: int) -> None:
        request.completed_ms = now_ms
        request.satisfied_ms = now_ms if request.satisfied_ms is None else request.satisfied_ms

    def _finish_unacknowledged(self, request: DataRequest, now_ms: int) -> None:
        self._succeed(request, now_ms)
        if not request.holders:
            request.is_dropped = True
            self.dropped_row_count += request.row_count
            self._report(dropped(request))

    def _fail(self, request: DataRequest, error: ReplogError, now_ms: int) -> None:
        request.completed_ms = now_ms
        request.error = error
        if self.failure is None:
            self.failure = error

    def _is_over(self, request: DataRequest, now_ms: int) -> bool:
        """Return whether a request's memory can go: nothing is out, or its copies had their time.

        A put that hangs for longer keeps its bytes alive uncounted, so its root gets no more.
        """
        if request.error is not None or request.is_settled:
            return True
        assert request.satisfied_ms is not None
        return now_ms - request.satisfied_ms >= self._config.replica_grace_ms

    def _let_go(self, request: DataRequest) -> None:
        self._note_laggards(request)
        self._in_flight.remove(request)
        for batch in request.batches:
            if request.error is None:
                self._accumulator.succeed(batch, UNKNOWN_OFFSET, None)
            else:
                self._accumulator.fail(batch, request.error)
        request.batches = []
        self._builder.free(request)

    def _note_laggards(self, request: DataRequest) -> None:
        """Remember the roots that did not take their copy, and say so once for each."""
        for put in request.puts.values():
            if put.is_held or put.broker_id in self._laggards:
                continue
            self._laggards.add(put.broker_id)
            if not request.is_dropped and request.error is None and put.broker_id not in self._told:
                self._told.add(put.broker_id)
                self._report(copy_missed(request, put, self._config))

    def _dues(self, request: DataRequest) -> Iterable[int]:
        if request.completed_ms is None:
            yield request.created_ms + self._config.delivery_timeout_ms
        if request.satisfied_ms is not None:
            yield request.satisfied_ms + self._config.replica_grace_ms
        for put in request.puts.values():
            if put.sent_ms is not None:
                yield put.sent_ms + self._config.request_timeout_ms
            elif not put.is_settled:
                yield put.next_attempt_ms


__all__ = ["Report", "Sender"]
