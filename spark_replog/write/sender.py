"""Drains the accumulator into data objects and sees them onto their roots.

Source: Kafka ``Sender``. ``run_once(now_ms)`` reads no clock and waits for nothing: answers come
from the transport's queue, time as an argument. The write task runs it between Arrow batches, so
uploads go on while rows arrive.

What brings the copies of a request to an end:

* acks=all: ``min.insync.replicas`` copies, then ``replica.grace.ms`` for the rest. Where in-sync roots fail or are
  late, so that too few are left, replicas that are out of sync get one too.
* acks=1: the leader's copy. While a put on the leader fails: that of another in-sync replica, which
  the commit may elect, after ``replica.grace.ms`` for the rest.
* acks=0: one answer per root, no retry; an object that no root holds is dropped and logged.

A put that failed or was not answered within ``request.timeout.ms`` is repeated under the same
name with the same bytes, which makes the repetition harmless, until ``delivery.timeout.ms`` after
the object was made. (Kafka counts from the append, and so does the plain ``Producer``. In a write
task ``linger.ms`` may be infinite, and rows that wait for their object are not late.)

An object with its copies is handed to the ``Delivery``: a write task reports it, a plain producer
commits it. The answers complete its batches: done, tried again, split or failed, each once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from spark_replog.backoff import ExponentialBackoff
from spark_replog.config import ProducerConfig
from spark_replog.errors import ErrorCode, OutcomeUnknownError, ReplogError, RetriableError
from spark_replog.ids import BrokerId
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.batch_completion import (
    BatchCompletion,
    copy_missed,
    dropped,
    expired,
    leader_away,
    too_few_copies,
)
from spark_replog.write.data_request import DataRequest, Delivered, Delivery, DeliveryResult, InFlightRequests, Put
from spark_replog.write.object_builder import ObjectBuilder
from spark_replog.write.partition_queue import Destination
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.transport import NEEDED_AWAY_MS, PutResult, PutTransport, RootHealth

POLL_MS_MAX = 1_000
"""Longest time that ``run_once`` asks its owner to wait."""
LATE_SHARE = 15
"""A put is late after this share of ``request.timeout.ms``: 2 s by default, as long as a commit waits for a replica."""


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
        delivery: takes objects whose copies are there.
        report: told about rows that acks=0 drops, and once about a root that misses copies.
        random_source: spreads retries.
        sequences: of an idempotent producer; the accumulator numbers by the same.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: PutTransport,
        builder: ObjectBuilder,
        config: ProducerConfig,
        *,
        delivery: Delivery,
        report: Report,
        random_source: random.Random,
        sequences: ProducerSequences | None = None,
    ) -> None:
        self._accumulator = accumulator
        self._transport = transport
        self._builder = builder
        self._config = config
        self._delivery = delivery
        self._report = report
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random_source.random)
        self._completion = BatchCompletion(accumulator, builder, config, sequences)
        self._in_flight = InFlightRequests(config.max_in_flight)
        self._keeps_order = config.max_in_flight == 1
        self._requests: dict[int, DataRequest] = {}
        self._next_sequence = 0
        self._late_after_ms = config.request_timeout_ms // LATE_SHARE
        self._health = RootHealth()
        self._last_run_ms: int | None = None
        self._paused_ms = 0
        self._now_ms = 0
        self.dropped_row_count = 0
        self.failure: ReplogError | None = None
        """Why nothing is drained any more: a write task's first failed request, or a newer owner."""
        self.wants_metadata = False
        """Whether a failure may come from old metadata. Who fetches it anew says so by setting it back."""

    @property
    def in_flight_count(self) -> int:
        """Return how many requests hold memory."""
        return len(self._in_flight)

    @property
    def has_open_requests(self) -> bool:
        """Return whether the outcome of any request is not known yet; parked ones count as known."""
        return any(request.completed_ms is None for request in self._in_flight)

    def run_once(self, now_ms: int) -> int:
        """Collect answers, repeat what is due, judge requests, send what is ready.

        Returns:
            Milliseconds until something is due without an answer coming, at most 1,000.
        """
        run_ms = self._running_ms(now_ms)
        self._now_ms = now_ms
        for result in self._transport.poll():
            self._on_answer(result, run_ms)
        for delivered in self._delivery.poll():
            self._on_delivered(delivered, run_ms)
        for request in self._in_flight:
            self._advance(request, run_ms)
        self._completion.run_once(now_ms)
        if self._completion.fatal is not None and self.failure is None:
            self.failure = self._completion.fatal
            self._accumulator.abort_undrained(self.failure, numbered_too=True)
        next_check_ms = self._send_ready(now_ms, run_ms) if self.failure is None else None
        dues = [due for request in self._in_flight for due in self._dues(request, run_ms)]
        for wait_ms in (next_check_ms, self._accumulator.next_expiry_ms(now_ms)):
            if wait_ms is not None:
                dues.append(run_ms + wait_ms)
        return max(0, min([run_ms + POLL_MS_MAX, *dues]) - run_ms)

    def _running_ms(self, now_ms: int) -> int:
        """Return the time on which requests are judged: without the pauses between calls.

        A write task may wait for rows for minutes. A request must not expire in a time in which its
        next attempt was due but nobody ran the sender. A plain producer's thread never pauses.
        """
        if not self._delivery.fails_as_one:
            return now_ms
        gap_ms = now_ms - (now_ms if self._last_run_ms is None else self._last_run_ms)
        self._last_run_ms = now_ms
        self._paused_ms += max(0, gap_ms - POLL_MS_MAX)
        return now_ms - self._paused_ms

    # ------------------------------------------------------------------------------------ sending

    def _send_ready(self, now_ms: int, run_ms: int) -> int | None:
        while True:
            check = self._accumulator.ready(now_ms, in_flight_count=len(self._in_flight))
            has_sent = False
            kept: set[BrokerId] = set()
            for destination in check.destinations:
                if not kept.isdisjoint(destination.brokers):
                    continue
                if self._in_flight.can_send(destination.brokers):
                    has_sent = self._send(destination, run_ms) or has_sent
                elif not self._waits_for_late_request(destination, run_ms):
                    # Its turn: others must not take its roots one after the other while it waits for all of them.
                    kept.update(destination.brokers)
                if self.failure is not None:
                    return None
            if not has_sent:
                return check.next_check_ms
            self._accumulator.copy_wasteful()

    def _waits_for_late_request(self, destination: Destination, now_ms: int) -> bool:
        """Return whether a root of the destination is busy with a request that a put or a commit holds up."""
        return any(
            now_ms - request.created_ms >= self._late_after_ms
            and not request.puts.keys().isdisjoint(destination.brokers)
            for request in self._in_flight
        )

    def _send(self, destination: Destination, now_ms: int) -> bool:
        """Drain one object and start its puts; returns False where nothing may go after all."""
        batches = self._accumulator.drain(destination, self._now_ms)
        if not batches:
            return False
        request = self._builder.build(destination, batches, sequence=self._next_sequence, now_ms=now_ms)
        request.expires_ms = now_ms + self._config.delivery_timeout_ms
        if not self._delivery.fails_as_one:
            request.expires_ms -= self._now_ms - min(batch.created_ms for batch in batches)
        self._next_sequence += 1
        self._requests[request.sequence] = request
        for broker_id in self._targets(request, now_ms):
            request.puts[broker_id] = Put(broker_id)
        self._in_flight.add(request)
        if self._keeps_order:
            self._accumulator.mute(request.topic_partitions)
        self._delivery.begin(request)
        self._advance(request, now_ms)
        return True

    def _targets(self, request: DataRequest, now_ms: int) -> list[BrokerId]:
        """Return the roots to put on: all in-sync ones but those known to be gone or hanging.

        A laggard still gets the object where there would be too few copies without it.
        """
        able = self._health.able(request.destination.brokers, now_ms)
        quick = self._health.quick(able, now_ms)
        if self._config.acks == 1:
            leader = request.destination.leader
            return [broker_id for broker_id in able if broker_id in quick or broker_id == leader]
        needed_count = request.required_count if self._config.acks == -1 else 1
        return quick if len(quick) >= needed_count else able

    def _submit(self, request: DataRequest, put: Put, now_ms: int) -> None:
        put.attempt += 1
        put.sent_ms = now_ms
        request.unanswered_count += 1
        self._health.on_sent(put.broker_id)
        self._transport.put(
            put.broker_id,
            request.key,
            request.buffers,
            sequence=request.sequence,
            attempt=put.attempt,
            check_root=self._health.is_suspect(put.broker_id),
        )

    # ------------------------------------------------------------------------------------ answers

    def _on_answer(self, result: PutResult, now_ms: int) -> None:
        request = self._requests[result.sequence]
        request.unanswered_count -= 1
        self._health.on_answered(result.broker_id)
        put = request.puts[result.broker_id]
        is_newest = result.attempt == put.attempt
        if is_newest:
            put.sent_ms = None
        if result.error is not None:
            self._health.on_error(result.broker_id, result.error, now_ms)
            if is_newest and not put.is_settled:
                self._on_error(put, result.error, now_ms)
        else:
            self._on_created(put, result, now_ms)
        self._forget_if_over(request)

    def _on_created(self, put: Put, result: PutResult, now_ms: int) -> None:
        if result.is_checked:
            self._health.on_checked(result.broker_id)
        elif self._health.is_suspect(result.broker_id):
            # This root gave an error meanwhile: the put counts once the root is known to be the right one.
            if not put.is_settled and put.sent_ms is None:
                put.next_attempt_ms = now_ms
            return
        put.is_held = True
        self._health.on_held(result.broker_id)

    def _on_error(self, put: Put, error: ReplogError, now_ms: int) -> None:
        put.error = error
        is_retriable = isinstance(error, (RetriableError, OutcomeUnknownError))
        if self._config.acks == 0 or not is_retriable or put.broker_id in self._health.out:
            put.is_given_up = True
            return
        put.next_attempt_ms = now_ms + int(self._backoff.pause_ms(put.attempt - 1))

    def _on_delivered(self, result: DeliveryResult, now_ms: int) -> None:
        request = self._requests.get(result.sequence)
        if request is None or not (request.is_parked or request.completed_ms is None):
            return  # told already, as acks=0 does
        request.is_doubtful = self._completion.is_doubtful(request, result)
        is_in_time = request.deliveries <= self._config.retries and now_ms < request.expires_ms
        if request.is_doubtful and is_in_time and not request.is_parked:
            request.redeliver_ms = now_ms + int(self._backoff.pause_ms(request.deliveries - 1))
            return
        if any(isinstance(response.error, RetriableError) for response in result.responses.values()):
            self.wants_metadata = True
        self._completion.complete(request, result, self._now_ms)
        if request.is_parked:
            request.is_parked = False
            request.batches = []
            self._forget_if_over(request)
        else:
            self._complete(request, now_ms)

    # ------------------------------------------------------------------------------------ judging

    def _advance(self, request: DataRequest, now_ms: int) -> None:
        """Time out, repeat, judge and let go, in this order, so that an answer in time counts."""
        for put in request.puts.values():
            if put.broker_id in self._health.out and not put.is_settled:
                put.is_given_up = True
                put.error = self._health.out[put.broker_id]
            if put.sent_ms is not None and now_ms - put.sent_ms >= self._config.request_timeout_ms:
                self._on_silence(put, now_ms)
        if request.completed_ms is None:
            self._call_spares(request, now_ms)
            self._judge(request, now_ms)
        if request.completed_ms is None or not self._is_over(request, now_ms):
            for put in request.puts.values():
                if not put.is_settled and put.sent_ms is None and put.next_attempt_ms <= now_ms:
                    self._submit(request, put, now_ms)
            return
        self._let_go(request, now_ms)

    def _call_spares(self, request: DataRequest, now_ms: int) -> None:
        """Put on replicas that are out of sync too, where the in-sync ones that take it in time are too few.

        A root that came back is out of sync until a commit lets it in; the commit of this object may, and finds
        its copy there. Without it a second root that goes would stop all writers until somebody repairs.
        """
        if not request.destination.spares or request.satisfied_ms is not None:
            return
        prompt = [put for put in request.puts.values() if put.is_held or not (put.error or self._is_late(put, now_ms))]
        if len(prompt) >= request.required_count:
            return
        for broker_id in self._health.able(request.destination.spares, now_ms, NEEDED_AWAY_MS):
            put = request.puts.setdefault(broker_id, Put(broker_id))
            if put.is_given_up and put.error is not None and put.error.code is ErrorCode.REPLOG_ROOT_STALE:
                put.is_given_up = False  # it was not there: it may be now

    def _is_late(self, put: Put, now_ms: int) -> bool:
        return put.sent_ms is not None and now_ms - put.sent_ms >= self._late_after_ms

    def _on_silence(self, put: Put, now_ms: int) -> None:
        put.sent_ms = None
        self._health.on_silence(put.broker_id)
        if not put.is_settled:
            error = RetriableError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"broker {put.broker_id} did not answer a put within request.timeout.ms "
                f"({self._config.request_timeout_ms}). Look at that root.",
            )
            self._on_error(put, error, now_ms)

    def _judge(self, request: DataRequest, now_ms: int) -> None:
        acks = self._config.acks
        if request.delivered_ms is not None:
            self._judge_delivered(request, now_ms)
            return
        if acks == 0:
            if request.is_settled:
                self._finish_unacknowledged(request, now_ms)
            return
        if acks == 1:
            self._judge_leader(request, now_ms)
        else:
            self._judge_copies(request, now_ms)
        if request.completed_ms is None and request.delivered_ms is None and now_ms >= request.expires_ms:
            self._fail(request, expired(request, self._config), now_ms)

    def _judge_leader(self, request: DataRequest, now_ms: int) -> None:
        leader = request.destination.leader
        put = request.puts.get(leader) if leader is not None else None
        if put is not None and put.is_held:
            self._deliver(request, now_ms)
            return
        is_lost = put is None or put.is_given_up
        if put is not None and not is_lost and put.error is None:
            return
        if request.holders:
            self._deliver_after_grace(request, now_ms)
        elif is_lost and request.is_settled:
            self._fail(request, leader_away(request, self._health.out), now_ms)

    def _judge_copies(self, request: DataRequest, now_ms: int) -> None:
        held_count = len(request.holders)
        if held_count >= request.required_count:
            self._deliver_after_grace(request, now_ms)
            return
        hopeful_count = sum(not put.is_settled for put in request.puts.values())
        if held_count + hopeful_count < request.required_count:
            self._fail(request, too_few_copies(request, self._health.out), now_ms)

    def _deliver_after_grace(self, request: DataRequest, now_ms: int) -> None:
        if request.satisfied_ms is None:
            request.satisfied_ms = now_ms
        if request.is_settled or now_ms - request.satisfied_ms >= self._config.replica_grace_ms:
            self._deliver(request, now_ms)

    def _deliver(self, request: DataRequest, now_ms: int) -> None:
        """Hand the object over, unless one before it with rows of a same partition is not yet."""
        if request.satisfied_ms is None:
            request.satisfied_ms = now_ms
        if not self._delivery.fails_as_one and self._waits_for_earlier(request):
            return
        self._hand_over(request, now_ms)

    def _judge_delivered(self, request: DataRequest, now_ms: int) -> None:
        """Wait for the answer, or hand over again what may have been appended or not."""
        if request.redeliver_ms is None or now_ms < request.expires_ms:
            self._completion.expire_in_flight(request, self._now_ms)
            if request.redeliver_ms is not None and request.redeliver_ms <= now_ms:
                self._hand_over(request, now_ms)
            return
        self._completion.give_up(request)
        self._complete(request, now_ms)

    def _hand_over(self, request: DataRequest, now_ms: int) -> None:
        request.delivered_ms = now_ms
        request.redeliver_ms = None
        request.deliveries += 1
        outcome = self._delivery.deliver(request)
        if outcome is Delivered.PARKED:
            request.is_parked = True
            self._completion.park(request)
            self._complete(request, now_ms)
        elif outcome is Delivered.DONE or self._config.acks == 0:
            self._completion.acknowledge(request)
            self._complete(request, now_ms)

    def _waits_for_earlier(self, request: DataRequest) -> bool:
        names = request.topic_partitions
        return any(
            other.sequence < request.sequence
            and other.delivered_ms is None
            and other.completed_ms is None
            and not names.isdisjoint(other.topic_partitions)
            for other in self._in_flight
        )

    def _complete(self, request: DataRequest, now_ms: int) -> None:
        """Note that the outcome is known; only now may those behind it overtake nothing."""
        request.completed_ms = now_ms
        if self._keeps_order:
            self._accumulator.unmute(request.topic_partitions)

    def _finish_unacknowledged(self, request: DataRequest, now_ms: int) -> None:
        if request.holders:
            self._deliver(request, now_ms)
            return
        error = dropped(request)
        request.is_dropped = True
        request.satisfied_ms = now_ms
        self.dropped_row_count += request.row_count
        self._completion.drop(request, error)
        self._complete(request, now_ms)
        self._report(error)

    def _fail(self, request: DataRequest, error: ReplogError, now_ms: int) -> None:
        request.error = error
        if self._delivery.fails_as_one:
            self._completion.drop(request, error)
            self.failure = self.failure or error
        else:
            self.wants_metadata = True
            self._completion.fail(request, error, self._now_ms)
        self._complete(request, now_ms)

    def _is_over(self, request: DataRequest, now_ms: int) -> bool:
        """Return whether a request's memory can go: nothing is out, or its copies had their time.

        A put that hangs for longer keeps its bytes alive uncounted, so its root gets no more.
        """
        if request.error is not None or request.is_settled:
            return True
        assert request.satisfied_ms is not None
        return now_ms - request.satisfied_ms >= self._config.replica_grace_ms

    def _let_go(self, request: DataRequest, now_ms: int) -> None:
        self._note_laggards(request, now_ms)
        self._in_flight.remove(request)
        if not request.is_parked:
            request.batches = []
        self._builder.free(request)
        self._forget_if_over(request)

    def _forget_if_over(self, request: DataRequest) -> None:
        """Drop a request that nothing will be heard of any more."""
        if request not in self._in_flight and not request.is_parked and request.unanswered_count == 0:
            self._requests.pop(request.sequence, None)

    def _note_laggards(self, request: DataRequest, now_ms: int) -> None:
        """Remember the roots that did not take their copy, and say so once for each."""
        for put in request.puts.values():
            if put.is_held or self._health.is_laggard(put.broker_id):
                continue
            self._health.on_missed(put.broker_id, now_ms)
            is_known = request.is_dropped or request.error is not None
            if not is_known and self._health.is_first_report(put.broker_id):
                self._report(copy_missed(request, put, self._config))

    def _dues(self, request: DataRequest, now_ms: int) -> Iterable[int]:
        if request.completed_ms is None and now_ms < request.expires_ms:
            yield request.expires_ms
        if request.redeliver_ms is not None:
            yield request.redeliver_ms
        if request.satisfied_ms is not None and now_ms < request.satisfied_ms + self._config.replica_grace_ms:
            yield request.satisfied_ms + self._config.replica_grace_ms
        for put in request.puts.values():
            if put.sent_ms is not None:
                yield put.sent_ms + self._config.request_timeout_ms
                if request.destination.spares and not self._is_late(put, now_ms):
                    yield put.sent_ms + self._late_after_ms
            elif not put.is_settled:
                yield put.next_attempt_ms


__all__ = ["Report", "Sender"]
