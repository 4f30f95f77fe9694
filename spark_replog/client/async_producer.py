"""The producer for asyncio: the same core as ``Producer``, without a call that blocks the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from spark_replog.client.producer import Producer
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.errors import FencedError
from spark_replog.write.record_handle import RecordHandle, RecordMetadata

T = TypeVar("T")


class AsyncProducer:
    """Appends records to topics from one event loop: ``async with AsyncProducer(store) as producer``.

    Calls that have to wait (for a new topic's metadata, for memory, for a flush) run on a thread of its own, in their
    order, so records of one task keep their order.

    Args:
        store: the store's path, as everywhere, or an opened cluster.
        config: as ``Producer``.
        settings: the same as keywords, with ``_`` for ``.``.
    """

    def __init__(
        self, store: StorePath | Cluster, config: Mapping[str, object] | None = None, **settings: object
    ) -> None:
        self._make = lambda: Producer(store, config, **settings)  # type: ignore[arg-type]
        self._made: Producer | None = None
        self._thread = ThreadPoolExecutor(1, "replog-async-producer")
        self._is_closed = False
        self._turn = asyncio.Lock()
        self._decided: deque[tuple[asyncio.Future[RecordMetadata], RecordHandle]] = deque()

    async def __aenter__(self) -> AsyncProducer:
        """Open the store.

        Raises:
            InvalidConfigError: as ``Producer``.
            ReplogError: REPLOG_STORE_NOT_INITIALISED.
        """
        self._made = await self._call(self._make)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Send what waits and close."""
        await self.close()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append one record to a batch; the future has its offset, or raises why it failed.

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
            ReplogError: as ``send``, or why the record failed.
        """
        future, handle = await self._append(topic, value, key, partition, headers, timestamp_ms)
        # After what other tasks append in this round of the loop: their records go along.
        asyncio.get_running_loop().call_soon(handle.batch_result.await_now)
        return await future

    async def flush(self) -> None:
        """Send what waits, and wait for the outcome of every earlier record."""
        await self._call(self._producer.flush)

    async def partitions_for(self, topic: str) -> int:
        """Return a topic's number of partitions."""
        return await self._call(lambda: self._producer.partitions_for(topic))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Commit what the block sends, or abort it if the block raises; see ``Producer.transaction``."""
        await self._call(self._producer.begin_transaction)
        try:
            yield self
            await self._call(self._producer.commit_transaction)
        except FencedError:
            raise
        except BaseException:
            if self._producer.is_in_transaction:
                await self._call(self._producer.abort_transaction)
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Send what waits and close. Repeatable; see ``Producer.close``."""
        if self._made is not None and not self._is_closed:
            self._is_closed = True
            try:
                await self._call(lambda: self._producer.close(timeout))
            finally:
                self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------------------------------ inside

    @property
    def _producer(self) -> Producer:
        assert self._made is not None, "use 'async with'"
        return self._made

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _append(self, topic: str, *record: Any) -> tuple[asyncio.Future[RecordMetadata], RecordHandle]:
        loop = asyncio.get_running_loop()
        producer = self._producer
        async with self._turn:  # a record that waits for memory is not overtaken
            if not self._is_closed and producer.would_block(topic, *record[:3]):
                handle = await self._call(lambda: producer.send(topic, *record))
            else:
                handle = producer.send(topic, *record)
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        handle.add_done_callback(lambda done: self._on_decided(loop, future, done))
        return future, handle

    def _on_decided(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[RecordMetadata], handle: RecordHandle
    ) -> None:
        """Pass an outcome to the loop; one wake-up for all that come before it runs. The sender's thread."""
        self._decided.append((future, handle))
        if len(self._decided) == 1 and not loop.is_closed():
            loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        while self._decided:
            future, handle = self._decided[0]
            if not future.done():
                error = handle.exception(0)
                if error is None:
                    future.set_result(handle.result(0))
                else:
                    future.set_exception(error)
            self._decided.popleft()
