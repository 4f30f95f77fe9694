"""Makes one data object of the batches of one drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

import pyarrow as pa

from spark_replog.ids import LedgerId, ObjectId, TopicPartition, new_id
from spark_replog.log.codec.data_object import (
    BATCH_SIZE_BYTES_TARGET,
    EncodedObject,
    decode_section,
    encode_data_object,
)
from spark_replog.log.write_plan import WritePlan
from spark_replog.storage.paths import data_key, object_name
from spark_replog.write.buffer_pool import ROW_MEMORY, BufferPool, PinnedBytes, trim_row_memory
from spark_replog.write.data_request import DataRequest, Releasable
from spark_replog.write.partition_queue import Destination
from spark_replog.write.producer_batch import ProducerBatch, Slice, join_slices, with_headers

QUERY_CHARS = 8


class ObjectBuilder:
    """Encodes batches; keeps the pool's account of the bytes true while they change form.

    Args:
        plan: topic ids and what each topic requires.
        query_id: who writes, for object names and the records' own account of their origin.
        batch_id: micro-batch.
        task_id: Spark partition id of the task.
        folded: returns the last entry of a ledger that this process knows; None: the plan says.
    """

    def __init__(
        self,
        plan: WritePlan,
        pool: BufferPool,
        *,
        query_id: str,
        batch_id: int,
        task_id: int,
        folded: Callable[[LedgerId], int] | None = None,
    ) -> None:
        self.plan = plan
        """Replaced by the sender's owner when it fetched newer metadata."""
        self._pool = pool
        self._query_id = query_id
        self._batch_id = batch_id
        self._task_id = task_id
        self._freed_bytes = 0
        self._keeps_pages = False
        # The driver of an older release does not say.
        planned = {topic.ledger_id: getattr(topic, "fold_index", -1) for topic in plan.topics}
        self._folded = folded or (lambda ledger_id: planned.get(ledger_id, -1))

    def build(
        self, destination: Destination, batches: list[ProducerBatch], *, sequence: int, now_ms: int
    ) -> DataRequest:
        """Return a request whose object holds the batches, one section per partition.

        The name is new and random: no other attempt of the task can have it.
        """
        assert batches, "an object has records"
        sections = self._sections(batches)
        has_headers = any(item.records.num_columns == 4 for items in sections.values() for item in items)
        encoded = self._encode(sections, destination.compression, has_headers)
        memory: list[Releasable] = [item for items in sections.values() for item in items]
        name = object_name(self._query_id[:QUERY_CHARS], self._batch_id, self._task_id, new_id())
        request = DataRequest(
            sequence=sequence,
            destination=destination,
            id=ObjectId(destination.generation, name),
            key=data_key(destination.ledger_id, destination.generation, name),
            buffers=encoded.buffers,
            sections=encoded.sections,
            has_headers=has_headers,
            row_count=sum(batch.row_count for batch in batches),
            size_bytes=encoded.size_bytes,
            batches=batches,
            memory=memory,
            required_count=max(self.plan.topic(name.topic).min_insync for name in sections),
            created_ms=now_ms,
            topic_ids={name.topic: self.plan.topic(name.topic).topic_id for name in sections},
            after_index=self._folded(destination.ledger_id),
        )
        if destination.compression != "none":
            self._exchange_memory(request)
        return request

    def recover(self, request: DataRequest, batches: Set[ProducerBatch]) -> None:
        """Give batches their records back for another attempt, from the object's own bytes.

        Records are not kept beside the object on its way: retries are rare and memory is not.
        """
        body = b"".join(bytes(piece) for piece in request.buffers)
        for name in sorted({batch.topic_partition for batch in batches}):
            rows = pa.Table.from_batches(self._decode(request, name, body))
            start = 0
            for batch in request.batches:
                if batch.topic_partition != name:
                    continue
                if batch in batches:
                    batch.give_back([self._own_slice(rows.slice(start, batch.row_count), batch.size_bytes)])
                start += batch.row_count

    def free(self, request: DataRequest) -> None:
        """Let the object's bytes go; a put that is still out keeps them alive on its own."""
        request.buffers = ()
        for item in request.memory:
            if request.unanswered_count:
                item.forbid_reuse()
            item.release()
        request.memory = []
        self._freed_bytes += request.size_bytes
        if self._freed_bytes >= self._pool.total_bytes // 4:
            # Arrow's allocators keep freed pages for later, and a bound on the process must not depend on
            # that. Not after small objects: pages that come back are zeroed by the kernel first.
            self._freed_bytes = 0
            self._keeps_pages = True
            pa.default_memory_pool().release_unused()
        if self._keeps_pages and self._pool.available_bytes == self._pool.total_bytes:
            self._keeps_pages = False
            trim_row_memory()  # not while rows come: they would need the pages again

    def _decode(self, request: DataRequest, name: TopicPartition, body: bytes) -> Iterator[pa.RecordBatch]:
        for item in request.sections:
            if (item.topic_id, item.partition) == (request.topic_ids[name.topic], name.partition):
                part = memoryview(body)[item.start_byte : item.start_byte + item.size_bytes]
                yield from decode_section(part, item.crc32c, item.row_count, request.has_headers)

    def _own_slice(self, rows: pa.Table, size_bytes: int) -> Slice:
        """Return the rows in memory of their own, counted."""
        self._pool.charge(size_bytes)
        columns = [pa.concat_arrays(column.chunks, ROW_MEMORY) for column in rows.columns]
        own = PinnedBytes(self._pool, size_bytes)
        own.retain(size_bytes)
        own.release()
        return Slice(pa.RecordBatch.from_arrays(columns, rows.schema.names), size_bytes, own)

    def _sections(self, batches: Sequence[ProducerBatch]) -> dict[TopicPartition, list[Slice]]:
        """Return each partition's slices, few and large, partitions in a fixed order."""
        found: dict[TopicPartition, list[Slice]] = {}
        for batch in batches:
            found.setdefault(batch.topic_partition, []).extend(batch.take_slices())
        return {name: list(self._joined(found[name])) for name in sorted(found)}

    def _joined(self, slices: Sequence[Slice]) -> Iterator[Slice]:
        """Join neighbours up to the size that the format cuts at; a lone slice is not copied."""
        waiting: list[Slice] = []
        waiting_bytes = 0
        for item in slices:
            size_bytes = item.records.nbytes
            if waiting and waiting_bytes + size_bytes > BATCH_SIZE_BYTES_TARGET:
                yield self._join(waiting)
                waiting, waiting_bytes = [], 0
            waiting.append(item)
            waiting_bytes += size_bytes
        if waiting:
            yield self._join(waiting)

    def _join(self, slices: Sequence[Slice]) -> Slice:
        if len(slices) == 1 and not slices[0].pinned.is_wasteful:
            return slices[0]
        return join_slices(slices, self._pool)

    def _encode(
        self, sections: dict[TopicPartition, list[Slice]], compression: str, has_headers: bool
    ) -> EncodedObject:
        producer = f"{self._query_id}/{self._batch_id}/{self._task_id}"
        inputs = []
        for name, items in sections.items():
            records = [with_headers(item.records) if has_headers else item.records for item in items]
            topic_id = self.plan.topic(name.topic).topic_id
            inputs.append((name.topic, topic_id, name.partition, records, producer))
        return encode_data_object(inputs, compression=compression, has_headers=has_headers)

    def _exchange_memory(self, request: DataRequest) -> None:
        """Count the compressed bytes in place of the records, which can go."""
        self._pool.charge(request.size_bytes)
        records, request.memory = request.memory, [PinnedBytes(self._pool, request.size_bytes)]
        for item in records:
            item.release()
