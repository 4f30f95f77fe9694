"""The producer and the consumer for asyncio: no call blocks the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from spark_replog.client.consumer import Consumer
from spark_replog.client.consumer_record import ConsumerRecord, ConsumerRecords
from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.errors import ErrorCode, FencedError, InvalidConfigError, stays_in_process
from spark_replog.ids import TopicPartition
from spark_replog.write.record_handle import RecordHandle, RecordMetadata

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=Producer | Consumer)


class _OnOneThread(Generic[C]):
    """A client whose blocking calls run on its own thread, one after another; ``async with`` makes it there."""

    def __init__(self, make: Callable[[], C], thread_name: str) -> None:
        self._make = make
        self._made: C | None = None
        self._thread = ThreadPoolExecutor(1, thread_name)
        self._closing: Future[None] | None = None
        """The close, from its begin on."""

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            InvalidConfigError: as the client.
            ReplogError: REPLOG_STORE_NOT_INITIALISED.
        """
        job = self._thread.submit(self._make)
        try:
            self._made = await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            self._thread.submit(_close_unused, job)  # otherwise its threads would run for ever
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Close. Repeatable."""
        await self._close(lambda: self._client.close())

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled. Raises REPLOG_NOT_FORK_SAFE."""
        raise stays_in_process("client")

    @property
    def _client(self) -> C:
        if self._made is None:
            raise InvalidConfigError(ErrorCode.INVALID_REQUEST, "this client is not open. Use it in 'async with'.")
        return self._made

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._start(call))

    def _start(self, call: Callable[[], T]) -> Future[T]:
        """Start a call on the client's thread. From a close on it waits for its end, and the client refuses it."""
        if self._closing is None:
            return self._thread.submit(call)
        refused: Future[T] = Future()

        def refuse(_: Future[None]) -> None:
            if not refused.set_running_or_notify_cancel():
                return
            try:
                refused.set_result(call())
            except Exception as error:  # the caller's
                refused.set_exception(error)

        self._closing.add_done_callback(refuse)
        return refused

    async def _close(self, close: Callable[[], None]) -> None:
        """Close after the calls before; a cancelled wait does not take the close back, and another one waits too."""
        if self._closing is not None:
            await asyncio.gather(asyncio.shield(asyncio.wrap_future(self._closing)), return_exceptions=True)
        elif self._made is not None:
            self._closing = self._thread.submit(close)
            self._thread.shutdown(wait=False)
            await asyncio.shield(asyncio.wrap_future(self._closing))


def _on_thread(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[_OnOneThread[C], P], Coroutine[Any, Any, T]]:
    """Return the method of an asynchronous client that runs this one of its client, on its thread."""

    @functools.wraps(method)
    async def call(self: _OnOneThread[C], /, *args: P.args, **named: P.kwargs) -> T:
        return await self._call(lambda: getattr(self._client, method.__name__)(*args, **named))

    return call


def _close_unused(made: Future[Any]) -> None:
    """Close a client whose opener was cancelled. The client's thread."""
    if _has_succeeded(made):
        made.result().close()


def _has_succeeded(call: Future[Any]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


class AsyncProducer(_OnOneThread[Producer]):
    """Appends records to topics from one event loop: ``async with AsyncProducer(store) as producer``.

    Calls that may wait (for a new topic's metadata, for memory, for a flush) run on the producer's own thread, in
    order, so records of one task keep their order.

    Args:
        store: the store's path, as everywhere, or an opened cluster.
        config: as ``Producer``.
        settings: the same as keywords, with ``_`` for ``.``.
    """

    def __init__(
        self, store: StorePath | Cluster, config: Mapping[str, object] | None = None, **settings: object
    ) -> None:
        super().__init__(lambda: Producer(store, config, **settings), "replog-async-producer")  # type: ignore[arg-type]
        self._turn = asyncio.Lock()
        self._sending: Future[RecordHandle] | None = None
        """The newest send on the producer's thread; if its task was cancelled, it may still run."""
        self._decided: deque[tuple[asyncio.Future[RecordMetadata], RecordHandle]] = deque()
        self._is_woken = False
        """Whether the loop will look for outcomes."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append one record to a batch; the future has its metadata, or the error if it failed.

        Cancelling the future does not take the record back.

        Raises:
            InvalidConfigError: as ``Producer.send``: nothing was appended.
            ReplogError: REPLOG_PRODUCER_CLOSED.
        """
        return (await self._append(topic, value, key, partition, headers, timestamp_ms))[0]

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Append one record and return where it is. In a transaction use ``send``: offsets come with the commit.

        Its batch does not wait for the default ``linger.ms`` while nothing is in flight.

        Raises:
            ReplogError: as ``send``, or the record's error.
        """
        future, handle = await self._append(topic, value, key, partition, headers, timestamp_ms)
        # Later, so that records that other tasks append in this round of the loop join the batch.
        asyncio.get_running_loop().call_soon(handle.batch_result.await_now)
        return await future

    flush = _on_thread(Producer.flush)
    """See ``Producer.flush``."""
    partitions_for = _on_thread(Producer.partitions_for)
    """See ``Producer.partitions_for``."""
    commit_transaction = _on_thread(Producer.commit_transaction)
    """Repeat a commit that had no answer; see ``Producer.commit_transaction``."""
    abort_transaction = _on_thread(Producer.abort_transaction)
    """Abort a transaction whose commit had no answer; see ``Producer.abort_transaction``."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Commit the records that the block sends, or abort if it raises; see ``Producer.transaction``.

        Raises:
            OutcomeUnknownError: REPLOG_COMMIT_OUTCOME_UNKNOWN: call ``commit_transaction`` or ``abort_transaction``.
        """
        begun = self._start(self._client.begin_transaction)
        committed: Future[None] | None = None
        try:
            await asyncio.wrap_future(begun)
            yield self
            committed = self._start(self._client.commit_transaction)
            await asyncio.wrap_future(committed)
        except FencedError:
            raise
        except BaseException:
            # If the wait was cancelled, the call goes on. The abort follows it, and finds how it ended.
            await asyncio.shield(self._call(lambda: self._abort_open(begun, committed)))
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Send waiting records and close. Repeatable; see ``Producer.close``."""
        await self._close(lambda: self._client.close(timeout))

    # ------------------------------------------------------------------------------------------ inside

    def _abort_open(self, begun: Future[None], committed: Future[None] | None) -> None:
        """Abort a transaction that was begun and is not committed. This producer's thread."""
        is_open = _has_succeeded(begun) and not (committed is not None and _has_succeeded(committed))
        if is_open and self._client.is_in_transaction:
            self._client.abort_transaction()

    async def _append(self, topic: str, *record: Any) -> tuple[asyncio.Future[RecordMetadata], RecordHandle]:
        loop = asyncio.get_running_loop()
        producer = self._client
        async with self._turn:  # a record that waits for memory is not overtaken
            is_behind = self._sending is not None and not self._sending.done()
            if self._closing is not None or is_behind or producer.would_block(topic, *record[:3]):
                self._sending = self._start(lambda: producer.send(topic, *record))
                handle = await asyncio.wrap_future(self._sending)
            else:
                handle = producer.send(topic, *record)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        handle.add_done_callback(lambda done: self._on_decided(loop, future, done))
        return future, handle

    def _on_decided(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[RecordMetadata], handle: RecordHandle
    ) -> None:
        """Pass an outcome to the loop; outcomes that arrive before it runs share one wake-up.

        Called on the sender's thread, and on the loop's if the record failed at once: both at the same time wake the
        loop once or twice.
        """
        self._decided.append((future, handle))
        if not self._is_woken and not loop.is_closed():
            self._is_woken = True
            loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._is_woken = False  # first: what comes from now on wakes the loop again
        while self._decided:
            future, handle = self._decided[0]
            if not future.done():
                error = handle.exception(0)
                if error is None:
                    future.set_result(handle.result(0))
                else:
                    future.set_exception(error)
            self._decided.popleft()


class AsyncConsumer(_OnOneThread[Consumer]):
    """Reads topics from one event loop. A context manager, and an asynchronous iterator of records.

    Listeners and deserializers run on its thread. A cancelled poll loses no records: the next poll returns them.

    Args:
        store: path of the store, or an opened ``Cluster``.
        topics: to subscribe to; none: call ``subscribe`` or ``assign``.
        settings: as ``Consumer``: ``config``, ``group``, and keywords.
    """

    def __init__(self, store: StorePath | Cluster, *topics: str, **settings: Any) -> None:
        super().__init__(lambda: Consumer(store, *topics, **settings), "replog-async-consumer")
        self._awaited: dict[Future[ConsumerRecords], None] = {}
        """Polls that somebody awaits, in their order."""

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> ConsumerRecords:
        """Return the next records; see ``Consumer.poll``.

        Raises:
            ReplogError: as ``Consumer.poll``.
        """
        consumer = self._client
        return await self._poll(lambda: consumer.poll(timeout_ms, max_records))

    async def _poll(self, call: Callable[[], ConsumerRecords]) -> ConsumerRecords:
        job = self._start(call)
        self._awaited[job] = None
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel():  # it has begun: no other call runs
                self._client.wakeup()
                if self._closing is None:
                    self._thread.submit(self._take_back, job)  # before any later call of this consumer
            raise
        finally:
            del self._awaited[job]

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records for ever, waiting for new ones; a position moves past a record when it is yielded."""
        consumer = self._client
        iterators: list[Iterator[ConsumerRecord]] = []

        def poll() -> ConsumerRecords:
            records = consumer.poll(timeout_ms=500)
            iterators[:] = [consumer.one_by_one(records)]  # here: a call after this one counts only what was yielded
            return records

        while True:
            await self._poll(poll)
            for record in iterators.pop():
                yield record

    subscribe = _on_thread(Consumer.subscribe)
    """See ``Consumer.subscribe``."""
    assign = _on_thread(Consumer.assign)
    """See ``Consumer.assign``."""
    commit = _on_thread(Consumer.commit)
    """See ``Consumer.commit``."""
    committed = _on_thread(Consumer.committed)
    """See ``Consumer.committed``."""
    position = _on_thread(Consumer.position)
    """See ``Consumer.position``."""
    seek = _on_thread(Consumer.seek)
    """See ``Consumer.seek``."""
    end_offsets = _on_thread(Consumer.end_offsets)
    """See ``Consumer.end_offsets``."""

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read now."""
        return self._client.assignment()

    async def close(self) -> None:
        """Commit (with auto commit), leave the group; see ``Consumer.close``."""
        awaited = list(self._awaited)  # who awaits one may be cancelled before it gets the records
        await self._close(lambda: self._close_after(awaited))

    def _close_after(self, polls: Sequence[Future[ConsumerRecords]]) -> None:
        """Close; the last auto commit does not count the records of these polls. This consumer's thread."""
        for job in reversed(polls):
            self._take_back(job)
        self._client.close()

    def _take_back(self, job: Future[ConsumerRecords]) -> None:
        """Seek back to the first records that a cancelled poll did not deliver. This consumer's thread."""
        self._client.forget_wakeup()
        if not _has_succeeded(job):
            return
        first: dict[TopicPartition, int] = {}
        for record in job.result():
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for key, offset in first.items():
            # Never forward: a poll before this one may have been taken back too, in any order.
            if key in self._client.assignment() and offset < self._client.position(key):
                self._client.seek(key, offset)
