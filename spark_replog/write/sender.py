"""Drains the accumulator into data objects and puts them on their roots.

Source: Kafka ``Sender``. ``run_once(now_ms)`` reads no clock and never waits: answers come
from the transport's queue, time as an argument. The write task runs it between Arrow batches, so
uploads continue while rows arrive.

When an object is delivered:

* acks=all: when ``min.insync.replicas`` roots hold it, after up to ``replica.grace.ms`` for the others. If in-sync
  roots fail or are late, so that too few are left, replicas that are out of sync get a copy too.
* acks=1: when the leader holds it. While puts on the leader fail: when another in-sync replica, which the commit may
  elect, holds it, after up to ``replica.grace.ms`` for the others.
* acks=0: records are acknowledged before the first put. The object is delivered once the leader holds it or, if the
  put on the leader failed, any root. No put is retried; an object that no root holds is dropped and logged.

A slow follower delays neither acks=1 nor acks=0; its put goes on while the object is committed.

A put that failed, or had no answer within ``request.timeout.ms``, is repeated with the same name and bytes, which is
harmless, until ``delivery.timeout.ms`` after the object was built. (Kafka counts from the append, and so does the plain
``Producer``. In a write task ``linger.ms`` may be infinite, and rows that wait for their object are not late.)

Each request has one state, ``data_request.RequestState``; ``docs/architecture.md`` draws it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_replog.clock import ExponentialBackoff
from spark_replog.config.producer import ProducerConfig
from spark_replog.errors import ErrorCode, NotFoundError, OutcomeUnknownError, ReplogError, RetriableError, is_refusal
from spark_replog.ids import BrokerId
from spark_replog.write.accumulator import RecordAccumulator
from spark_replog.write.batch_completion import (
    BatchCompletion,
    copy_missed,
    dropped,
    expired,
    leader_away,
    refused,
    too_few_copies,
)
from spark_replog.write.data_request import (
    BEFORE_DELIVERY,
    OPEN,
    DataRequest,
    Delivered,
    Delivery,
    DeliveryResult,
    ObjectBuilder,
    Put,
    PutState,
    RequestState,
)
from spark_replog.write.producer_batch import Destination
from spark_replog.write.sequences import ProducerSequences
from spark_replog.write.transport import NEEDED_AWAY_MS, PutResult, PutTransport

POLL_MS_MAX = 1_000
"""Longest time that ``run_once`` asks its owner to wait."""
LATE_SHARE = 15
"""A put is late after ``request.timeout.ms`` divided by this: by default 2 s, as long as commits wait for a replica."""


def _is_of_old_metadata(error: ReplogError | None) -> bool:
    """Return whether old metadata may be the cause: a new leader, ISR or generation, a topic that is gone or new."""
    is_of_generation = error is not None and error.code is ErrorCode.REPLOG_JOB_TOO_LONG
    return is_of_generation or isinstance(error, (RetriableError, NotFoundError))


@dataclass(slots=True)
class _Requests:
    """The requests of one sender that are not over."""

    in_flight: dict[int, DataRequest] = field(default_factory=dict)
    """By sequence, in drain order: those that hold memory and count towards ``max.in.flight`` of their roots."""
    released: dict[int, DataRequest] = field(default_factory=dict)
    """Those without memory that still await an answer: parked, or with an unanswered put."""
    next_sequence: int = 0

    def filling(self, destination: Destination, max_in_flight: int) -> list[DataRequest]:
        """Return the requests on a destination's roots if any root has ``max.in.flight`` of them, else none."""
        requests = [write for write in self.in_flight.values() if not write.puts.keys().isdisjoint(destination.brokers)]
        if len(requests) < max_in_flight:
            return []
        counts = [sum(broker_id in request.puts for request in requests) for broker_id in destination.brokers]
        return requests if max(counts) >= max_in_flight else []

    def has_earlier(self, request: DataRequest) -> bool:
        """Return whether an earlier request with rows of the same partition is not delivered yet."""
        names = request.topic_partitions
        return any(
            other.sequence < request.sequence
            and other.state in BEFORE_DELIVERY
            and not names.isdisjoint(other.topic_partitions)
            for other in self.in_flight.values()
        )

    def forget_if_over(self, request: DataRequest) -> None:
        """Forget a released request that awaits no answer."""
        if request.state is not RequestState.PARKED and request.unanswered_count == 0:
            self.released.pop(request.sequence, None)


class Sender:
    """Owns the requests of one producer. One owner calls it; not thread-safe.

    Args:
        delivery: takes objects that enough roots hold, and answers each. None, for a write task: its owner reports
            ``requests`` and the driver commits them; the first failed request ends the task.
        report: logs rows that acks=0 drops, and, once per root, a missed copy.
        sequences: of an idempotent producer; the accumulator uses the same object.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: PutTransport,
        builder: ObjectBuilder,
        config: ProducerConfig,
        *,
        delivery: Delivery | None,
        report: Callable[[ReplogError], None],
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
        self.requests: list[DataRequest] = []
        """Without a delivery: every object so far, in drain order."""
        self._table = _Requests()
        self._health = transport.health
        self._now_ms = -1
        """Of the last run; -1 before the first."""
        self._paused_ms = 0
        self.dropped_row_count = 0
        self.failure: ReplogError | None = None
        """Why draining has ended: a write task's first failed request, or a newer producer of this name."""
        self.wants_metadata = False
        """Whether old metadata may have caused a failure. Whoever refreshes the metadata resets this."""

    @property
    def in_flight_count(self) -> int:
        """Return how many requests hold memory."""
        return len(self._table.in_flight)

    @property
    def has_open_requests(self) -> bool:
        """Return whether the outcome of any request is unknown; parked requests do not count."""
        return any(request.state in OPEN for request in self._table.in_flight.values())

    @property
    def _late_after_ms(self) -> int:
        return self._config.request_timeout_ms // LATE_SHARE

    def run_once(self, now_ms: int) -> int:
        """Collect answers, repeat due puts, judge requests, send ready objects.

        Returns:
            Milliseconds until something is due even without an answer, at most 1,000.
        """
        if self._delivery is None and self._now_ms >= 0:
            # A write task may wait minutes for rows. A request must not expire while its next attempt was due but
            # nothing ran the sender, so pauses between calls do not count. A plain producer's thread never pauses.
            self._paused_ms += max(0, now_ms - self._now_ms - POLL_MS_MAX)
        self._now_ms = now_ms
        run_ms = now_ms - self._paused_ms  # the time by which requests are judged
        in_flight = self._table.in_flight
        for result, is_held in self._transport.poll(run_ms):
            self._on_answer(result, is_held, run_ms)
        if self._delivery is not None:
            for delivered in self._delivery.poll():
                self._on_delivered(delivered)
        for request in list(in_flight.values()):
            self._advance(request, run_ms)
        if self._completion.has_sequences or now_ms >= self._completion.expiry_due_ms:
            self._completion.run_once(now_ms)
        if self._completion.fatal is not None and self.failure is None:
            self.failure = self._completion.fatal
            self._accumulator.abort_waiting(self.failure)
        next_check_ms = self._send_ready(now_ms, run_ms) if self.failure is None else None
        dues = [due for request in in_flight.values() for due in self._dues(request, run_ms)]
        expiry_ms = None if self._delivery is None else self._accumulator.next_expiry_ms(now_ms)
        self._completion.expiry_due_ms = math.inf if expiry_ms is None else now_ms + expiry_ms
        dues += [run_ms + wait_ms for wait_ms in (next_check_ms, expiry_ms) if wait_ms is not None]
        return max(0, min([run_ms + POLL_MS_MAX, *dues]) - run_ms)

    # ------------------------------------------------------------------------------------ sending

    def _send_ready(self, now_ms: int, run_ms: int) -> int | None:
        in_flight, max_in_flight = self._table.in_flight, self._config.max_in_flight
        while self._accumulator.waiting_count:
            check = self._accumulator.ready(now_ms, in_flight_count=len(in_flight))
            has_sent = False
            kept: set[BrokerId] = set()
            for destination in check.destinations:
                if not kept.isdisjoint(destination.brokers):
                    continue
                busy = self._table.filling(destination, max_in_flight) if in_flight else []
                if not busy:
                    has_sent = self._send(destination, run_ms) or has_sent
                elif all(run_ms - request.created_ms < self._late_after_ms for request in busy):
                    # Keep its roots free: others must not take them one by one while it waits for all of them.
                    kept.update(destination.brokers)
                if self.failure is not None:
                    return None
            if not has_sent:
                return check.next_check_ms
            if self._accumulator.waiting_count:
                self._accumulator.copy_wasteful()
        return None

    def _send(self, destination: Destination, now_ms: int) -> bool:
        """Drain one object and start its puts; return False if no batch may be sent after all."""
        batches = self._accumulator.drain(destination, self._now_ms)
        if not batches:
            return False
        request = self._builder.build(destination, batches, sequence=self._table.next_sequence, now_ms=now_ms)
        request.expires_ms = now_ms + self._config.delivery_timeout_ms
        if self._delivery is not None:
            request.expires_ms -= self._now_ms - min(batch.created_ms for batch in batches)
            self._delivery.begin(request)
        else:
            self.requests.append(request)
        if self._config.acks == -1:
            request.quiet_answers = iter(range(request.required_count - 1))
        targets = () if request.data_object.inline else self._targets(request, now_ms)
        request.puts = {broker_id: Put(broker_id) for broker_id in targets}
        self._table.next_sequence += 1
        self._table.in_flight[request.sequence] = request
        if self._config.max_in_flight == 1:
            self._accumulator.mute(request.topic_partitions)
        if self._config.acks == 0:
            self._completion.acknowledge(request)
        self._advance(request, now_ms)
        return True

    def _targets(self, request: DataRequest, now_ms: int) -> list[BrokerId]:
        """Return the roots to put on: all in-sync ones except those known to be away or slow.

        With acks=1, a slow leader is included. Otherwise all slow roots are, if there would be too few copies without.
        """
        able = self._health.able(request.destination.brokers, now_ms)
        quick = self._health.quick(able, now_ms)
        if self._config.acks == 1:
            leader = request.destination.leader
            return [broker_id for broker_id in able if broker_id in quick or broker_id == leader]
        needed_count = request.required_count if self._config.acks == -1 else 1
        return quick if len(quick) >= needed_count else able

    # ------------------------------------------------------------------------------------ answers

    def _on_answer(self, result: PutResult, is_held: bool, now_ms: int) -> None:
        request = self._table.in_flight.get(result.sequence) or self._table.released[result.sequence]
        request.unanswered_count -= 1
        put = request.puts[result.broker_id]
        is_newest = result.attempt == put.attempt
        if is_newest:
            put.sent_ms = None
        if is_held:
            put.state = PutState.HELD
        elif result.error is None:
            # The root has given an error since: the put counts only once the root is checked.
            if put.state is PutState.OPEN and put.sent_ms is None:
                put.next_attempt_ms = now_ms
        elif is_newest and put.state is PutState.OPEN:
            self._on_error(put, result.error, now_ms)
        if request.sequence in self._table.released:
            self._table.forget_if_over(request)

    def _on_error(self, put: Put, error: ReplogError, now_ms: int) -> None:
        put.error = error
        is_retriable = isinstance(error, (RetriableError, OutcomeUnknownError))
        if self._config.acks == 0 or not is_retriable or put.broker_id in self._health.out:
            put.state = PutState.GIVEN_UP
        else:
            put.next_attempt_ms = now_ms + int(self._backoff.pause_ms(put.attempt - 1))

    def _on_delivered(self, result: DeliveryResult) -> None:
        request = self._table.in_flight.get(result.sequence) or self._table.released.get(result.sequence)
        if request is None or not (request.state in OPEN or request.state is RequestState.PARKED):
            return  # acks=0: acknowledged before
        is_parked = request.state is RequestState.PARKED
        if any(_is_of_old_metadata(response.error) for response in result.responses.values()):
            self.wants_metadata = True
        self._completion.complete(request, result, self._now_ms)
        self._end(request, RequestState.ANSWERED)
        if is_parked:
            request.batches = []
            self._table.forget_if_over(request)

    # ------------------------------------------------------------------------------------ judging

    def _advance(self, request: DataRequest, now_ms: int) -> None:
        """Time out, judge, release and repeat, in this order."""
        for put in request.puts.values():
            if put.broker_id in self._health.out and put.state is PutState.OPEN:
                put.state = PutState.GIVEN_UP
                put.error = self._health.out[put.broker_id]
            if put.sent_ms is not None and now_ms - put.sent_ms >= self._config.request_timeout_ms:
                self._on_silence(put, now_ms)
        if request.state in BEFORE_DELIVERY:
            self._judge_copies(request, now_ms)
        elif request.state in OPEN:
            self._completion.expire_in_flight(request, self._now_ms)
        if request.state not in OPEN and self._release_if_over(request, now_ms):
            return
        for put in request.puts.values():
            if put.state is PutState.OPEN and put.sent_ms is None and put.next_attempt_ms <= now_ms:
                put.attempt += 1
                put.sent_ms = now_ms
                request.unanswered_count += 1
                self._transport.put(
                    put.broker_id,
                    request.key,
                    request.buffers,
                    sequence=request.sequence,
                    attempt=put.attempt,
                    quiet=request.quiet_answers,
                )

    def _on_silence(self, put: Put, now_ms: int) -> None:
        put.sent_ms = None
        self._health.on_silence(put.broker_id)
        if put.state is PutState.OPEN:
            error = RetriableError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Broker {put.broker_id} did not answer a put within request.timeout.ms "
                f"({self._config.request_timeout_ms}). Check that root.",
            )
            self._on_error(put, error, now_ms)

    def _judge_copies(self, request: DataRequest, now_ms: int) -> None:
        """Deliver the object if the copies that ``acks`` requires exist or it is inline, or give it up."""
        if request.data_object.inline:
            self._deliver(request, now_ms)
        elif self._config.acks != -1:
            self._judge_leader(request, now_ms)
        else:
            if request.state is RequestState.PUTTING and request.destination.spares:
                self._put_on_spares(request, now_ms)
            states = [put.state for put in request.puts.values()]
            open_count, held_count = states.count(PutState.OPEN), states.count(PutState.HELD)
            if held_count >= request.required_count:
                self._deliver(request, now_ms, waits_for_others=open_count > 0)
            elif self._health.refused_ms and self._is_refused(request, request.required_count):
                self._fail(request, refused(request, self._health.out))
            elif held_count + open_count < request.required_count:
                self._fail(request, too_few_copies(request, self._health.out))
        if request.state in BEFORE_DELIVERY and self._config.acks != 0 and now_ms >= request.expires_ms:
            self._fail(request, expired(request, self._config))

    def _is_refused(self, request: DataRequest, copy_count: int) -> bool:
        """Return whether too few roots are left for the copies. A root counts out once it has refused for a while."""
        roots = {*request.destination.brokers, *request.destination.spares}
        refusing = [
            put.broker_id
            for put in request.puts.values()
            if put.error is not None and is_refusal(put.error) and self._health.is_refusing(put.broker_id)
        ]
        return bool(refusing) and len(roots) - len(refusing) < copy_count <= len(roots)

    def _judge_leader(self, request: DataRequest, now_ms: int) -> None:
        leader = request.destination.leader
        put = request.puts.get(leader) if leader is not None else None
        is_lost = put is None or put.state is PutState.GIVEN_UP
        if put is not None and put.state is PutState.HELD:
            self._deliver(request, now_ms)
        elif put is not None and put.error is None:
            return  # it may only be slow
        elif request.holders:
            self._deliver(request, now_ms, waits_for_others=self._config.acks != 0 and not request.is_settled)
        elif self._config.acks != 0 and self._is_refused(request, 1):
            self._fail(request, refused(request, self._health.out))
        elif is_lost and request.is_settled:
            if self._config.acks == 0:
                self._drop(request)
            else:
                self._fail(request, leader_away(request, self._health.out))

    def _put_on_spares(self, request: DataRequest, now_ms: int) -> None:
        """Put on replicas out of sync too, if too few in-sync ones take the object in time.

        A root that came back is out of sync until a commit adds it to the ISR; the commit of this object may do so and
        finds the copy there. Otherwise a second failed root would stop all writers until a repair.
        """
        prompt = [
            put
            for put in request.puts.values()
            if put.state is PutState.HELD or not (put.error or self._is_late(put, now_ms))
        ]
        if len(prompt) >= request.required_count:
            return
        for broker_id in self._health.able(request.destination.spares, now_ms, NEEDED_AWAY_MS):
            put = request.puts.setdefault(broker_id, Put(broker_id))
            was_away = put.error is not None and put.error.code is ErrorCode.REPLOG_ROOT_STALE
            if put.state is PutState.GIVEN_UP and was_away:
                put.state = PutState.OPEN  # it was away: it may be back

    def _is_late(self, put: Put, now_ms: int) -> bool:
        return put.sent_ms is not None and now_ms - put.sent_ms >= self._late_after_ms

    def _deliver(self, request: DataRequest, now_ms: int, *, waits_for_others: bool = False) -> None:
        """Deliver an object with its copies, unless an earlier one of the same partition is not delivered yet.

        Args:
            waits_for_others: other puts are open: wait up to ``replica.grace.ms`` for their copies.
        """
        if request.state is RequestState.PUTTING:
            request.copied_ms = now_ms
            request.move_to(RequestState.COPIED)
        if waits_for_others and now_ms - request.copied_ms < self._config.replica_grace_ms:
            return
        if self._delivery is not None and self._table.has_earlier(request):
            return
        request.move_to(RequestState.DELIVERED)
        outcome = Delivered.DONE if self._delivery is None else self._delivery.deliver(request)
        if outcome is Delivered.PARKED:
            self._completion.park(request)
            self._end(request, RequestState.PARKED)
        elif outcome is Delivered.DONE or self._config.acks == 0:
            self._completion.acknowledge(request)
            self._end(request, RequestState.ANSWERED)

    def _end(self, request: DataRequest, state: RequestState) -> None:
        """Set the final state; where order is kept, later records of the partitions may now be drained."""
        was_parked = request.state is RequestState.PARKED
        request.move_to(state)
        if self._config.max_in_flight == 1 and not was_parked:
            self._accumulator.unmute(request.topic_partitions)

    def _drop(self, request: DataRequest) -> None:
        request.error = dropped(request)
        self.dropped_row_count += request.row_count
        self._end(request, RequestState.DROPPED)
        self._report(request.error)

    def _fail(self, request: DataRequest, error: ReplogError) -> None:
        for put in request.puts.values():
            if put.error is not None and put.error.code is ErrorCode.REPLOG_CLUSTER_MISMATCH:
                error = put.error  # the store was made again: no retry helps
        request.error = error
        if self._delivery is None:
            self._completion.drop(request, error)
            self.failure = self.failure or error
        else:
            self.wants_metadata = True
            self._completion.fail(request, error, self._now_ms)
        self._end(request, RequestState.FAILED)

    def _release_if_over(self, request: DataRequest, now_ms: int) -> bool:
        """Release a request's memory once no put is open or ``replica.grace.ms`` is over; return whether it was.

        A put that hangs longer keeps its bytes alive uncounted, so its root gets no further objects. Each root that
        did not take its copy is reported once.
        """
        is_over = request.state in (RequestState.FAILED, RequestState.DROPPED) or request.is_settled
        if not is_over and now_ms - request.copied_ms < self._config.replica_grace_ms:
            return False
        for put in request.puts.values():
            is_new = put.state is not PutState.HELD and self._health.on_missed(put.broker_id, now_ms)
            if is_new and request.error is None and put.broker_id not in self._health.reported:
                self._health.reported.add(put.broker_id)
                self._report(copy_missed(request, put, self._config))
        del self._table.in_flight[request.sequence]
        if request.state is RequestState.PARKED or request.unanswered_count:
            self._table.released[request.sequence] = request
        if request.state is not RequestState.PARKED:
            request.batches = []
        self._builder.free(request)
        return True

    def _dues(self, request: DataRequest, now_ms: int) -> Iterable[int]:
        if request.state in OPEN and now_ms < request.expires_ms:
            yield request.expires_ms
        if request.state is not RequestState.PUTTING and now_ms < request.copied_ms + self._config.replica_grace_ms:
            yield request.copied_ms + self._config.replica_grace_ms
        for put in request.puts.values():
            if put.sent_ms is not None:
                yield put.sent_ms + self._config.request_timeout_ms
                if request.destination.spares and not self._is_late(put, now_ms):
                    yield put.sent_ms + self._late_after_ms
            elif put.state is PutState.OPEN:
                yield put.next_attempt_ms
