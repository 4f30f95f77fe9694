"""The sender's connection to the roots: puts on I/O threads, answers in a queue, and the health of each root."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from spark_replog.errors import ErrorCode, ReplogError, RetriableError, is_refusal
from spark_replog.ids import BrokerId
from spark_replog.storage.brokers import BrokerSet
from spark_replog.storage.io_pool import IO_POOL
from spark_replog.storage.object_store import Buffer, CreateOutcome


def no_thread(what: str, error: RuntimeError) -> RetriableError:
    """Return REPLOG_ENVIRONMENT: this process can start no thread now."""
    return RetriableError(
        ErrorCode.REPLOG_ENVIRONMENT,
        f"{what} was not begun: this process cannot start a thread ({error}). Raise the limit of processes (`ulimit "
        "-u`, pids of the container) or run fewer threads.",
    )


@dataclass(frozen=True, slots=True)
class PutResult:
    """The answer to one attempt."""

    sequence: int
    """Of the request."""
    broker_id: BrokerId
    attempt: int
    is_checked: bool
    """Whether the put checked first that the root is the right one."""
    error: ReplogError | None = None
    """None: the root holds the object durably."""


class PutTransport:
    """Puts objects on roots in parallel. One owner submits and polls; only ``wait`` blocks."""

    def __init__(self, brokers: BrokerSet) -> None:
        self._brokers = brokers
        self.health = RootHealth()
        self._answers: deque[PutResult] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        """Each item ends a ``wait``. An answer is added before its item."""

    def put(
        self,
        broker_id: BrokerId,
        key: str,
        buffers: Sequence[Buffer],
        *,
        sequence: int,
        attempt: int,
        quiet: Iterator[object],
    ) -> None:
        """Start creating the object on one root. A root that gave an error before is checked first.

        Args:
            key: of the object; every attempt writes the same bytes to it.
            quiet: a success that can take an item from it ends no ``wait``. Shared by an object's puts.
        """
        answer = PutResult(sequence, broker_id, attempt, is_checked=self.health.on_sent(broker_id))
        try:
            future = IO_POOL.submit_to(self._brokers.url(broker_id), self._put, answer, key, buffers, quiet)
        except RuntimeError as error:
            self._answers.append(replace(answer, error=no_thread("a put", error)))
            self._wakes.put(None)
            return
        self._brokers.own_puts.begin(broker_id, key, future)

    def delete(self, broker_id: BrokerId, key: str) -> Future[None]:
        """Start deleting an object that no commit message names."""
        return IO_POOL.submit_to(self._brokers.url(broker_id), self._brokers.store(broker_id).delete, key)

    def poll(self, now_ms: int) -> Iterator[tuple[PutResult, bool]]:
        """Yield each answer since the last call, and whether the root holds the object; never wait."""
        while not self._wakes.empty():
            self._wakes.get_nowait()
        while self._answers:
            result = self._answers.popleft()
            yield result, self.health.on_answered(result, now_ms)

    def wake(self) -> None:
        """End a ``wait``; called by any thread."""
        self._wakes.put(None)

    def wait(self, timeout_ms: float) -> None:
        """Wait for an answer that is not polled yet and not quiet."""
        with suppress(Empty):
            self._wakes.get(timeout=max(0.0, timeout_ms / 1000))

    def _put(self, answer: PutResult, key: str, buffers: Sequence[Buffer], quiet: Iterator[object]) -> bool:
        """Put the object and add the answer; return for ``OwnPuts`` whether the root holds it."""
        error: ReplogError | None = None
        broker_id = answer.broker_id
        try:
            if answer.is_checked or broker_id in self._brokers.root_ids:  # a root that was replaced may be back
                self._brokers.check_root(broker_id)
            outcome = self._brokers.store(broker_id).create(key, buffers, make_parent=True)
            if outcome is CreateOutcome.EXISTS:
                raise ReplogError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"Broker {broker_id} holds other bytes under the name of a new data object. Run `replog store "
                    "verify`.",
                    key=key,
                )
        except ReplogError as raised:
            error = raised if raised.code is ErrorCode.REPLOG_ROOT_STALE else self._staleness(broker_id) or raised
        except BaseException as raised:
            error = ReplogError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the put on broker {broker_id} ended with {type(raised).__name__}: {raised}. Please report it.",
            )
            error.__cause__ = raised
        self._answers.append(answer if error is None else replace(answer, error=error))
        if error is not None or next(quiet, None) is None:
            self._wakes.put(None)
        return error is None

    def _staleness(self, broker_id: BrokerId) -> ReplogError | None:
        """Return REPLOG_ROOT_STALE if the root is away or replaced, REPLOG_CLUSTER_MISMATCH if the whole store was
        made again: such a root gets no retry.
        """
        try:
            self._brokers.check_root(broker_id)
        except ReplogError as error:
            if error.code in (ErrorCode.REPLOG_ROOT_STALE, ErrorCode.REPLOG_CLUSTER_MISMATCH):
                return error
        return None


AWAY_MS = 10_000
"""A root that was left out is tried again after this, once all puts on it are answered."""
NEEDED_AWAY_MS = 1_000
"""The same for a root without which there are too few."""
REFUSED_MS = 1_000
"""Two refusals so far apart, and no other answer between them: the root takes nothing until it is repaired."""


class RootHealth:
    """Health of a sender's roots. One owner; not thread-safe.

    A root is *out* when it is known to be away or replaced. It is a *suspect* after an error or a timeout: it must be
    checked before a put on it counts. It is *slow* when it missed a copy that others took in time. A slow root with an
    unanswered put gets no further puts, since each would keep its bytes alive, uncounted. A root is *refusing* when
    its last answers were refusals, for a while.
    """

    def __init__(self) -> None:
        self.out: dict[BrokerId, ReplogError] = {}
        """Roots that are out, with the error that showed it."""
        self._out_since_ms: dict[BrokerId, int] = {}
        self._suspects: set[BrokerId] = set()
        self.refused_ms: dict[BrokerId, tuple[int, int]] = {}
        """Times of the first and the last refusal since another answer."""
        self._slow_since_ms: dict[BrokerId, int] = {}
        self._unanswered: dict[BrokerId, int] = {}
        self.reported: set[BrokerId] = set()
        """Roots whose missed copy was told."""

    def able(self, brokers: Sequence[BrokerId], now_ms: int, away_ms: int = AWAY_MS) -> list[BrokerId]:
        """Return the roots that are not known to be away; after ``away_ms`` they are tried again."""
        for broker_id in self.out.keys() & set(brokers):
            if self._is_worth_a_try(broker_id, self._out_since_ms[broker_id], now_ms, away_ms):
                del self.out[broker_id]
        return [broker_id for broker_id in brokers if broker_id not in self.out]

    def quick(self, brokers: Sequence[BrokerId], now_ms: int) -> list[BrokerId]:
        """Return the roots that are not slow; after ``AWAY_MS`` slow ones are tried again."""
        slow = self._slow_since_ms
        return [root for root in brokers if root not in slow or self._is_worth_a_try(root, slow[root], now_ms)]

    def on_sent(self, broker_id: BrokerId) -> bool:
        """Record a put; return whether the root must be checked before the put counts."""
        self._unanswered[broker_id] = self._unanswered.get(broker_id, 0) + 1
        return broker_id in self._suspects

    def on_answered(self, result: PutResult, now_ms: int) -> bool:
        """Record an answer; return whether the root holds the object."""
        broker_id = result.broker_id
        self._unanswered[broker_id] -= 1
        refused = self.refused_ms.pop(broker_id, None)
        if result.error is not None:
            if is_refusal(result.error):
                self.refused_ms[broker_id] = now_ms if refused is None else refused[0], now_ms
            self._suspects.add(broker_id)
            if result.error.code is ErrorCode.REPLOG_ROOT_STALE:
                self.out[broker_id] = result.error
                self._out_since_ms[broker_id] = now_ms
            return False
        if result.is_checked:
            self._suspects.discard(broker_id)
        if broker_id in self._suspects:
            return False
        self._slow_since_ms.pop(broker_id, None)
        return True

    def is_refusing(self, broker_id: BrokerId) -> bool:
        """Return whether a root has only refused for a while."""
        first_ms, last_ms = self.refused_ms.get(broker_id, (0, 0))
        return last_ms - first_ms >= REFUSED_MS

    def on_silence(self, broker_id: BrokerId) -> None:
        """Record a put without an answer."""
        self._suspects.add(broker_id)

    def on_missed(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Record that a root did not take a copy in time; return whether that is new."""
        is_new = broker_id not in self._slow_since_ms
        if is_new:
            self._slow_since_ms[broker_id] = now_ms
        return is_new

    def _is_worth_a_try(self, broker_id: BrokerId, since_ms: int, now_ms: int, away_ms: int = AWAY_MS) -> bool:
        return now_ms - since_ms >= away_ms and not self._unanswered.get(broker_id)
