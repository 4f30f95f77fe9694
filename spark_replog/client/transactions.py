"""Transactions of a plain producer: stored objects wait until the commit makes them one entry of one ledger.

Source: the states of Kafka's ``TransactionManager``. Before its commit a transaction is in no
ledger, so an abort writes no entry, and a crash leaves only objects that no entry names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from spark_replog.client.committer import Answer, Appender, StoredObject, results_of
from spark_replog.client.metrics import ProducerMetrics
from spark_replog.client.settings import ProducerSettings
from spark_replog.clock import Clock
from spark_replog.cluster.authorizer import Authorizer
from spark_replog.cluster.cluster import Cluster
from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, OutcomeUnknownError, ReplogError
from spark_replog.ids import LedgerId, new_id
from spark_replog.ledger.ledger import Ledger
from spark_replog.log.acl import AclOperation, ResourceType
from spark_replog.log.codec.commands import encode_command
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import Append, BatchSequence, IdentityKind, ProducerInit
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.write.batch_completion import may_be_in_log
from spark_replog.write.data_request import DataRequest, Delivered, DeliveryResult
from spark_replog.write.record_handle import BatchResult


class TransactionState(Enum):
    """State of a transactional producer."""

    READY = "ready"
    OPEN = "open"
    ENDING = "ending"
    """A commit or an abort is in progress: nothing can be sent."""
    IN_DOUBT = "in doubt"
    """A commit had no answer: commit again, or abort, which finds the outcome."""
    FATAL = "fatal"
    """A newer program has the transactional.id."""


TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.READY: frozenset({TransactionState.OPEN}),
    TransactionState.OPEN: frozenset({TransactionState.ENDING, TransactionState.FATAL}),
    TransactionState.ENDING: frozenset(
        {TransactionState.READY, TransactionState.OPEN, TransactionState.IN_DOUBT, TransactionState.FATAL}
    ),
    TransactionState.IN_DOUBT: frozenset({TransactionState.ENDING, TransactionState.FATAL}),
    TransactionState.FATAL: frozenset(),
}


@dataclass(slots=True)
class Transaction:
    """What belongs to one transaction: the open one, or one whose end is unknown."""

    began_ms: int = 0
    ledger_id: LedgerId | None = None
    """None before its first record."""
    append: Append | None = None
    """Its commit, which is repeated unchanged."""
    batch_results: dict[BatchResult, None] = field(default_factory=dict)
    """Of all batches with its records."""
    error: ReplogError | None = None
    """Why it cannot be committed."""


class LedgerClaims:
    """The ledgers that a transactional producer has claimed. Callers take turns."""

    def __init__(self, cluster: Cluster, principal: str, transactional_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self._authorizer = Authorizer(cluster, principal)
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._last: dict[LedgerId, tuple[str, int]] = {}
        """Instance id and epoch of the last claim of each."""
        self._claiming: dict[LedgerId, str] = {}
        """Instance ids of claims without an answer."""
        self.fresh: set[LedgerId] = set()
        """Ledgers claimed since the last abort; an abort restarts sequences at 0, so others need a new claim."""

    def claim(self, ledger_id: LedgerId) -> None:
        """Fence all other instances of the id in a ledger; see ``claim_producer``."""
        self._cluster.refresh_if_stale()
        self._authorizer.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, self.transactional_id)
        # A claim whose answer was lost is repeated unchanged: with another id it would fence itself.
        instance_id = self._claiming.setdefault(ledger_id, new_id())
        epoch = claim_producer(
            self._cluster.topic_ledger(ledger_id),
            self.transactional_id,
            instance_id,
            previous_instance_id=self._last.get(ledger_id, (None, -1))[0],
            timeout_ms=self._timeout_ms,
        )
        del self._claiming[ledger_id]
        self._last[ledger_id] = (instance_id, epoch)
        self.fresh.add(ledger_id)

    def epoch(self, ledger_id: LedgerId) -> int:
        """Return the epoch to append under."""
        return self._last[ledger_id][1]


class TransactionCoordinator:
    """The delivery of a transactional producer, and its transactions' states.

    The sender's thread calls ``begin``, ``deliver`` and ``poll``; the user's thread calls the rest.

    Args:
        counter: counts objects in flight.
        settings: ``delivery.timeout.ms`` limits how long a commit is repeated.
    """

    def __init__(
        self,
        cluster: Cluster,
        appender: Appender,
        counter: Callable[[DataRequest], None],
        clock: Clock,
        metrics: ProducerMetrics,
        settings: ProducerSettings,
        wake_up: Callable[[], None],
    ) -> None:
        assert settings.client.transactional_id is not None
        self.state = TransactionState.READY
        self.current = Transaction()
        self._cluster = cluster
        self._claims = LedgerClaims(
            cluster, appender.principal, settings.client.transactional_id, settings.producer.delivery_timeout_ms
        )
        self._appender = appender
        self.begin = counter
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._wake_up = wake_up
        self._lock = threading.Lock()
        self._sends_ended = threading.Condition()
        """Guards ``_senders`` and the claim of the first send; notified when a send ends."""
        self._senders: set[int] = set()
        """Threads in a send. Not a count: one that Ctrl-C interrupts on the way in or out would be wrong for ever."""
        self._drop_error: ReplogError | None = None
        """Error of everything parked from now on, because the producer closes."""
        self._parked: list[StoredObject] = []
        self._results: list[DeliveryResult] = []

    # ----------------------------------------------------------------------------- the user's thread

    def open(self) -> None:
        """Begin a transaction.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: one is open already.
            FencedError: PRODUCER_FENCED.
        """
        self._expect(TransactionState.READY, "begin_transaction()")
        self._move_to(TransactionState.OPEN)
        self.current = Transaction(self._clock.monotonic_ms())

    def add_ledger(self, topic: str, ledger_id: LedgerId) -> None:
        """Make a topic's ledger that of the open transaction, and claim it if that is not done yet.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: none is open, a part of it failed, or it belongs to another ledger.
            FencedError: PRODUCER_FENCED.
            RetriableError: REPLOG_NO_QUORUM.
        """
        current = self.current
        if self.state is TransactionState.OPEN and current.ledger_id == ledger_id and current.error is None:
            return
        self._expect(TransactionState.OPEN, "send()")
        self._check_error()
        with self._sends_ended:  # several threads may send the first record
            if current.ledger_id is None:
                if ledger_id not in self._claims.fresh:
                    self._claim(ledger_id)
                current.ledger_id = ledger_id
        if current.ledger_id != ledger_id:
            raise InvalidConfigError(
                ErrorCode.INVALID_TXN_STATE,
                f"Topic '{topic}' is in another ledger than the transaction's earlier records. A transaction is one "
                "entry of one ledger. Create topics that belong together with one --ledger NAME, or use a "
                "transaction for each.",
                topic=topic,
            )

    def has_claimed(self, ledger_id: LedgerId) -> bool:
        """Return whether ``add_ledger`` need not claim the ledger."""
        return ledger_id in self._claims.fresh

    def begin_send(self) -> None:
        """Note a running send of this thread: the end of the transaction waits for it."""
        with self._sends_ended:
            self._senders.add(threading.get_ident())

    def end_send(self) -> None:
        """End ``begin_send``; nothing happens if it was not reached."""
        with self._sends_ended:
            self._senders.discard(threading.get_ident())
            self._sends_ended.notify_all()

    @contextmanager
    def ending(self, call: str) -> Iterator[None]:
        """Refuse new sends and wait for those of other threads; if the block raises, the transaction is open again.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: none is open.
            FencedError: PRODUCER_FENCED.
        """
        with self._sends_ended:
            self._expect(TransactionState.OPEN, call)
            self._move_to(TransactionState.ENDING)
        try:
            with self._sends_ended:
                self._senders.discard(threading.get_ident())  # a send of this thread was interrupted
                self._sends_ended.wait_for(lambda: not self._senders)
            yield
        except BaseException:
            self._move_to(TransactionState.OPEN)
            if self._drop_error is not None:
                self.drop(self._drop_error)
            raise

    def check_commit(self) -> None:
        """Refuse a commit that cannot succeed.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: a part of it failed, or it was open for too long.
        """
        current, limit_ms = self.current, self._settings.client.transaction_timeout_ms
        open_ms = self._clock.monotonic_ms() - current.began_ms
        if current.error is None and open_ms > limit_ms:
            current.error = ReplogError(
                ErrorCode.INVALID_TXN_STATE,
                f"The transaction was open for {open_ms} ms, longer than transaction.timeout.ms ({limit_ms}). "
                "Raise it, or make transactions shorter.",
            )
        if current.error is None:
            current.error = next((result.error for result in current.batch_results if result.error is not None), None)
        self._check_error()

    def commit(self) -> Future[None]:
        """Append all parked objects as one entry; every object must be parked already."""
        done: Future[None] = Future()
        if not self._parked:
            self._move_to(TransactionState.READY)
            done.set_result(None)
            return done
        current, was_in_doubt = self.current, self.state is TransactionState.IN_DOUBT
        assert current.ledger_id is not None
        earlier_append, ledger_id = current.append, current.ledger_id
        if was_in_doubt:
            self._move_to(TransactionState.ENDING)
        append = current.append = earlier_append or self._make_append(self._parked, ledger_id)
        try:
            IO_POOL.post_to(f"commit {ledger_id} {id(self)}", self._work, append, ledger_id, done)
        except RuntimeError:  # no thread can be started: nothing was sent
            current.append = earlier_append
            self._move_to(TransactionState.IN_DOUBT if was_in_doubt else TransactionState.OPEN)
            if self._drop_error is not None:
                self.drop(self._drop_error)
            raise
        return done

    def abort(self, error: ReplogError) -> None:
        """Drop the open transaction; its records fail with ``error``. All of them must be parked or failed.

        Call ``end_abort`` once their handles have failed.

        First a new claim fences an append whose answer was lost; then the ledger shows whether it was decided.

        Raises:
            InvalidConfigError: INVALID_TXN_STATE: it was committed after all.
            FencedError: PRODUCER_FENCED; an append without an answer is decided by then, and so are its records.
            ReplogError: a claim had no majority: the transaction is in doubt as before. Call again.
        """
        fenced: FencedError | None = None
        was_committed = False
        append, ledger_id = self.current.append, self.current.ledger_id
        if self.state is TransactionState.IN_DOUBT and append is not None and ledger_id is not None:
            try:
                self._claim(ledger_id)
            except FencedError as found:
                fenced = found
            ledger = self._cluster.topic_ledger(ledger_id)
            with ledger.lock:  # the append can no longer be decided
                was_committed = bool(ledger.state.judge_decided(append).base_offsets)
        self._claims.fresh.clear()
        state = TransactionState.ENDING if self.state is TransactionState.IN_DOUBT else None
        self._tell_parked(Answer({}, None if was_committed else fenced or error), state)
        if fenced is not None:
            raise fenced
        if was_committed:
            raise InvalidConfigError(
                ErrorCode.INVALID_TXN_STATE,
                "The transaction was committed; the answer had been lost. Continue with the next one.",
            )

    def fail_rest(self, error: ReplogError) -> None:
        """Fail what is still parked, because ``abort`` was interrupted."""
        self._tell_parked(Answer({}, error))

    def end_abort(self) -> None:
        """Let the next transaction begin."""
        if self.state is TransactionState.ENDING:
            self._move_to(TransactionState.READY)

    def drop(self, error: ReplogError) -> None:
        """Fail all objects parked now or later, without waiting, because the producer closes.

        A commit in progress or without an answer may still succeed: its records fail with an unknown outcome.
        """
        self._drop_error = error
        if self.state is TransactionState.IN_DOUBT:
            error = OutcomeUnknownError(
                ErrorCode.REPLOG_COMMIT_OUTCOME_UNKNOWN,
                "The producer was closed before its commit was answered. Read the topic to see whether it succeeded.",
            )
        if self.state is not TransactionState.ENDING:
            self._tell_parked(Answer({}, error))

    # ----------------------------------------------------------------------------- the sender's thread

    def deliver(self, request: DataRequest) -> Delivered:
        """Park an object until the commit."""
        self._metrics.observe("request-latency", request.copied_ms - request.created_ms)
        with self._lock:
            self._parked.append(StoredObject.of(request, self._settings.producer.delivery_timeout_ms))
        if self._drop_error is not None and self.state is not TransactionState.ENDING:
            self._tell_parked(Answer({}, self._drop_error))
        return Delivered.PARKED

    def poll(self) -> Sequence[DeliveryResult]:
        """Return the answers since the last call."""
        with self._lock:
            results, self._results = self._results, []
        return results

    @property
    def is_idle(self) -> bool:
        """Return whether every answer was taken."""
        with self._lock:
            return not self._results

    # ----------------------------------------------------------------------------- inside

    def _move_to(self, state: TransactionState) -> None:
        assert state in TRANSITIONS[self.state], f"a transaction cannot go from {self.state} to {state}"
        self.state = state

    def _check_error(self) -> None:
        error = self.current.error
        if error is not None:
            raise InvalidConfigError(
                ErrorCode.INVALID_TXN_STATE,
                f"The transaction cannot be committed: {error} Call abort_transaction() and send it again.",
            ) from error

    def _expect(self, state: TransactionState, call: str) -> None:
        if self.state is state:
            return
        if self.state is TransactionState.FATAL:
            raise FencedError(
                ErrorCode.PRODUCER_FENCED,
                f"Another program uses the transactional.id '{self._claims.transactional_id}' now. Close this one.",
            )
        remedy = {
            TransactionState.READY: "Call begin_transaction() first.",
            TransactionState.OPEN: "Commit or abort the open one first.",
            TransactionState.ENDING: "Another thread commits or aborts it: wait for its end.",
            TransactionState.IN_DOUBT: "Its commit was not answered: call commit_transaction() or abort_transaction().",
        }[self.state]
        raise InvalidConfigError(ErrorCode.INVALID_TXN_STATE, f"{call} is not possible now. {remedy}")

    def _claim(self, ledger_id: LedgerId) -> None:
        try:
            self._claims.claim(ledger_id)
        except FencedError:
            self._move_to(TransactionState.FATAL)
            raise

    def _make_append(self, parked: Sequence[StoredObject], ledger_id: LedgerId) -> Append:
        epoch = self._claims.epoch(ledger_id)
        batches: list[BatchSequence] = [batch._replace(epoch=epoch) for item in parked for batch in item.batches]
        objects = [item.data_object for item in parked]
        return self._appender.make_append(objects, batches, self._claims.transactional_id, IdentityKind.TRANSACTIONAL)

    def _work(self, append: Append, ledger_id: LedgerId, done: Future[None]) -> None:
        """Commit on a thread of the I/O pool."""
        began_ms = self._clock.monotonic_ms()
        try:
            deadline_ms = began_ms + self._settings.producer.delivery_timeout_ms
            answer = self._appender.append(ledger_id, append, deadline_ms, is_atomic=True)
            error = answer.error or next((reply.error for reply in answer.responses.values() if reply.error), None)
        except Exception as unexpected:  # the user's thread must get an answer
            error = ReplogError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The commit ended with {unexpected!r}. Report it.")
        self._metrics.count("commit", 1)
        self._metrics.observe("commit-latency", self._clock.monotonic_ms() - began_ms)
        if error is None:
            self._tell_parked(answer, TransactionState.READY)
            done.set_result(None)
            return
        if isinstance(error, FencedError):
            self._tell_parked(Answer({}, error), TransactionState.FATAL)
        elif may_be_in_log(error):  # then it may become readable, so an abort must not deny it
            self._move_to(TransactionState.IN_DOUBT)
        else:
            self.current.error = error
            self._move_to(TransactionState.OPEN)
        if self._drop_error is not None:
            self.drop(error)
        done.set_exception(error)

    def _tell_parked(self, answer: Answer, state: TransactionState | None = None) -> None:
        """Answer all parked objects; callbacks of their handles see the new state, if one is given."""
        with self._lock:
            results = results_of(self._parked, answer)
            # Without a call between the two: Ctrl-C comes after calls, and no object may go without its answer.
            self._parked, self._results = [], [*self._results, *results]
            if state is not None:
                self._move_to(state)
        self._wake_up()


def claim_producer(
    ledger: Ledger[TopicLedgerState],
    producer_id: str,
    instance_id: str,
    *,
    previous_instance_id: str | None = None,
    timeout_ms: int,
) -> int:
    """Fence every other instance of the id in this ledger and return the epoch to append under.

    Safe to repeat with the same instance id: the fold shows a claim whose answer was lost. Any other call raises the
    epoch, which fences the instance's earlier appends.

    Args:
        producer_id: the ``transactional.id``.
        instance_id: new for every call that must raise the epoch.
        previous_instance_id: the instance that must hold the id, so that a fenced one cannot take it back; None: any.

    Raises:
        FencedError: PRODUCER_FENCED: another instance has taken the id.
        RetriableError: REPLOG_NO_QUORUM; nothing was decided.
        OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: repeat the call with the same instance id.
    """
    asked_epoch: int | None = None

    def propose(state: TopicLedgerState) -> tuple[bytes, ...] | None:
        nonlocal asked_epoch
        holder = state.producers.sequenced.producers.get(producer_id)
        epoch = -1 if holder is None else holder.epoch
        if holder is not None and holder.instance_id == instance_id:
            asked_epoch = epoch
            return None
        is_taken = holder is not None and previous_instance_id not in (None, holder.instance_id)
        if is_taken or (asked_epoch is not None and epoch >= asked_epoch):
            raise FencedError(
                ErrorCode.PRODUCER_FENCED,
                f"another program took the transactional.id '{producer_id}' (epoch {epoch}). Stop one of them, or give "
                "each an id of its own.",
                ledger=ledger.ledger_id,
            )
        asked_epoch = epoch + 1
        return (encode_command(ProducerInit(producer_id, instance_id, asked_epoch)),)

    ledger.append(propose, timeout_ms=timeout_ms)
    # The fold decides, not the answer: a lost race left the id with the other instance.
    with ledger.lock:
        producer = ledger.state.producers.sequenced.producers.get(producer_id)
    if producer is None or producer.instance_id != instance_id:
        raise FencedError(
            ErrorCode.PRODUCER_FENCED,
            f"another program took the transactional.id '{producer_id}' at the same time. Stop one of them, or give "
            "each an id of its own.",
            ledger=ledger.ledger_id,
        )
    return producer.epoch
