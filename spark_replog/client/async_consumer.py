"""The consumer for asyncio: a ``Consumer`` on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from spark_replog.client.consumer import Consumer
from spark_replog.client.consumer_record import ConsumerRecord, ConsumerRecords
from spark_replog.cluster.cluster import Cluster, StorePath
from spark_replog.ids import TopicPartition
from spark_replog.log.codec.group_records import OffsetAndMetadata

T = TypeVar("T")


class AsyncConsumer:
    """Reads topics from one event loop. A context manager, and an asynchronous iterator of records.

    Listeners and deserializers run on its thread. A poll whose task is cancelled loses nothing: its records come again
    with the next one.

    Args:
        store: path of the store, or an opened ``Cluster``.
        topics: to subscribe to; none: call ``subscribe`` or ``assign``.
        settings: as ``Consumer``: ``config``, ``group``, and keywords.
    """

    def __init__(self, store: StorePath | Cluster, *topics: str, **settings: Any) -> None:
        self._make = lambda: Consumer(store, *topics, **settings)
        self._made: Consumer | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "replog-async-consumer")

    async def __aenter__(self) -> AsyncConsumer:
        """Open the store.

        Raises:
            ReplogError: as ``Consumer``.
        """
        self._made = await self._call(self._make)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close."""
        await self.close()

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> ConsumerRecords:
        """Return the next records; see ``Consumer.poll``.

        Raises:
            ReplogError: as ``Consumer.poll``.
        """
        consumer = self._consumer
        job = self._thread.submit(consumer.poll, timeout_ms, max_records)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            consumer.wakeup()
            self._thread.submit(self._take_back, job)  # before any later call of this consumer
            raise

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records for ever, waiting for new ones. As with ``Consumer``, all records of a poll count as read."""
        while True:
            for record in await self.poll(timeout_ms=500):
                yield record

    async def subscribe(self, topics: Collection[str] = (), **more: Any) -> None:
        """See ``Consumer.subscribe``."""
        await self._call(lambda: self._consumer.subscribe(topics, **more))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See ``Consumer.assign``."""
        await self._call(lambda: self._consumer.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read now."""
        return self._consumer.assignment()

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """See ``Consumer.commit``."""
        await self._call(lambda: self._consumer.commit(offsets))

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See ``Consumer.committed``."""
        return await self._call(lambda: self._consumer.committed(partitions))

    async def position(self, key: TopicPartition) -> int:
        """See ``Consumer.position``."""
        return await self._call(lambda: self._consumer.position(key))

    async def seek(self, key: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """See ``Consumer.seek``."""
        await self._call(lambda: self._consumer.seek(key, offset))

    async def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """See ``Consumer.end_offsets``."""
        return await self._call(lambda: self._consumer.end_offsets(partitions))

    async def close(self) -> None:
        """Commit (with auto commit), leave the group; see ``Consumer.close``."""
        if self._made is not None and not self._is_closed:
            self._is_closed = True
            try:
                await self._call(self._made.close)
            finally:
                self._thread.shutdown(wait=False)

    @property
    def _consumer(self) -> Consumer:
        assert self._made is not None, "use 'async with'"
        return self._made

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _take_back(self, job: Future[ConsumerRecords]) -> None:
        """Go back to the first records that a cancelled poll returned to nobody. This consumer's thread."""
        self._consumer.forget_wakeup()
        if job.cancelled() or job.exception() is not None:
            return
        first: dict[TopicPartition, int] = {}
        for record in job.result():
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for key, offset in first.items():
            if key in self._consumer.assignment():
                self._consumer.seek(key, offset)
