"""A data object on its way to roots, and its delivery: the interface between the sender and its owner.

Source: Kafka ``InFlightRequests`` and ``ProduceResponse``. A request is one data object that goes to several roots. A
write task reports its objects and the driver commits them; a plain producer commits its own. Both use the same sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import pyarrow as pa

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, LedgerId, ObjectId, TopicId, TopicPartition, new_id
from spark_replog.log.codec.data_object import (
    ROW_MEMORY,
    SMALL_SIZE_BYTES_MAX,
    decode_section,
    encode_data_object,
    has_headers,
    has_offsets,
    with_headers,
)
from spark_replog.log.model import DataObject, PartitionResponse
from spark_replog.log.row_schema import RowSchema
from spark_replog.log.write_plan import TopicPlan, WritePlan
from spark_replog.storage.direct_write import DIRECT_SIZE_BYTES_MIN, AlignedCopy
from spark_replog.storage.object_store import Buffer
from spark_replog.storage.paths import data_key, object_name
from spark_replog.write.buffer_pool import KEPT_PAGES, BufferPool, PinnedBytes, trim_row_memory
from spark_replog.write.producer_batch import Destination, ProducerBatch, Slice, join_slices


class PutState(Enum):
    """State of one root's copy."""

    OPEN = "open"
    """An attempt is under way or follows."""
    HELD = "held"
    """The root holds the object; final."""
    GIVEN_UP = "given up"
    """No attempt follows, unless the root was away and comes back. A late success still changes it to HELD."""


@dataclass(slots=True)
class Put:
    """One root's copy of a request."""

    broker_id: BrokerId
    attempt: int = 0
    """Number of the newest attempt; 0 before the first."""
    sent_ms: int | None = None
    """When the newest attempt was sent; None before the first, and once it is answered or timed out."""
    next_attempt_ms: int = 0
    state: PutState = PutState.OPEN
    error: ReplogError | None = None


class RequestState(Enum):
    """What a data object waits for. ``docs/architecture.md`` draws the transitions."""

    PUTTING = "putting"
    """More copies: too few roots hold it."""
    COPIED = "copied"
    """``replica.grace.ms`` for the other copies, or an earlier object with rows of the same partitions."""
    DELIVERED = "delivered"
    """The answer of the commit."""
    PARKED = "parked"
    """The end of its transaction. Its memory is released."""
    ANSWERED = "answered"
    """Nothing: every batch has its outcome, or is in its queue again for another attempt."""
    FAILED = "failed"
    """Nothing: it got too few copies."""
    DROPPED = "dropped"
    """Nothing: no root holds it, and acks=0 does not retry."""

    __hash__ = object.__hash__  # Enum's own is a Python function


TRANSITIONS: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.PUTTING: frozenset({RequestState.COPIED, RequestState.FAILED, RequestState.DROPPED}),
    RequestState.COPIED: frozenset({RequestState.DELIVERED, RequestState.FAILED}),
    RequestState.DELIVERED: frozenset({RequestState.ANSWERED, RequestState.PARKED}),
    RequestState.PARKED: frozenset({RequestState.ANSWERED}),
    RequestState.ANSWERED: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.DROPPED: frozenset(),
}
BEFORE_DELIVERY = frozenset({RequestState.PUTTING, RequestState.COPIED})
OPEN = BEFORE_DELIVERY | {RequestState.DELIVERED}
"""States in which the outcome is unknown. A parked request is not among them: its transaction decides."""


@dataclass(slots=True)
class DataRequest:
    """One data object, its copies and its state.

    Invariants:
        ``state`` changes only by ``move_to``, along ``TRANSITIONS``.
        ``copied_ms`` is set from COPIED on; ``error`` only in FAILED and DROPPED.
    """

    sequence: int
    """Drain order: across a sender's objects, the rows of a partition are in this order."""
    destination: Destination
    data_object: DataObject
    """Without its holders. If the ledger's entry carries it (``inline``), it is put on no root."""
    buffers: Sequence[Buffer]
    """The object's bytes; empty once released."""
    batches: list[ProducerBatch]
    memory: Sequence[Slice | PinnedBytes | AlignedCopy]
    """Memory that the buffers keep alive; the pool counts it until it is released."""
    required_count: int
    """Copies that acks=all needs."""
    created_ms: int
    topic_ids: dict[str, TopicId]
    """Ids of its rows' topics, by name."""
    schema: RowSchema | None = None
    """The columns of typed rows."""
    puts: dict[BrokerId, Put] = field(default_factory=dict)
    state: RequestState = RequestState.PUTTING
    expires_ms: int = 0
    """When ``delivery.timeout.ms`` ends for the oldest of its batches; in a write task, for the object."""
    copied_ms: int = 0
    """When enough roots held it."""
    quiet_answers: Iterator[object] = field(default_factory=lambda: iter(()))
    """One item for each copy that changes no state, since acks=all needs more: the sender need not run for it."""
    unanswered_count: int = 0
    """Puts that may still read its bytes."""
    error: ReplogError | None = None

    def move_to(self, state: RequestState) -> None:
        """Change the state."""
        assert state in TRANSITIONS[self.state], f"a data request cannot go from {self.state} to {state}"
        self.state = state

    @property
    def key(self) -> str:
        """Return the path of the object on every root."""
        return data_key(self.destination.ledger_id, *self.data_object.id)

    @property
    def row_count(self) -> int:
        """Return the number of its rows."""
        return sum([section.row_count for section in self.data_object.sections])

    @property
    def holders(self) -> frozenset[BrokerId]:
        """Return the roots that hold the object."""
        return frozenset([broker_id for broker_id, put in self.puts.items() if put.state is PutState.HELD])

    @property
    def topic_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions of its rows."""
        return frozenset(batch.topic_partition for batch in self.batches)

    @property
    def is_settled(self) -> bool:
        """Return whether no put is open."""
        return PutState.OPEN not in [put.state for put in self.puts.values()]

    def to_data_object(self) -> DataObject:
        """Return the object as an append names it."""
        return replace(self.data_object, holders=self.holders)


class Delivered(Enum):
    """The immediate outcome of ``Delivery.deliver``."""

    DONE = "done"
    """The records are acknowledged, at unknown offsets; no result follows."""
    PENDING = "pending"
    """A result follows; until then the request stays in flight and keeps its memory, for a retry."""
    PARKED = "parked"
    """A result follows at the end of the transaction. The request leaves flight, frees its memory and has no retry."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The last answer for one object: whoever takes it has repeated what may be repeated unchanged."""

    sequence: int
    """Of the request."""
    responses: Mapping[TopicPartition, PartitionResponse]
    """One for each partition of the request."""


class Delivery(Protocol):
    """Takes objects from a sender, in drain order within each partition. Only the sender's owner calls it."""

    def begin(self, request: DataRequest) -> None:
        """Note an object before its first put."""
        ...

    def deliver(self, request: DataRequest) -> Delivered:
        """Take an object that enough roots hold. Must not block."""
        ...

    def poll(self) -> Sequence[DeliveryResult]:
        """Return the results since the last call, each once, without waiting.

        Results of a partition come in delivery order, as on one connection: a refusal that arrives after the
        success of a later attempt would look like a gap in the log.
        """
        ...


QUERY_CHARS = 8


class ObjectBuilder:
    """Encodes batches, and keeps the pool's byte count correct while they change form.

    Args:
        query_id, batch_id, task_id: of the writer; they go into object names and the origin that objects record.
        folded: returns the index of a ledger's last entry that this process knows; None: taken from the plan.
        inline_room: returns how many bytes the ledger's entry may carry of an object with this destination and this
            number of required copies, beside so many bytes of earlier objects in flight; None: none.
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
        inline_room: Callable[[Destination, int, int], int] | None = None,
    ) -> None:
        self._inline_room = inline_room
        self._inline_bytes: Counter[LedgerId] = Counter()
        """Of the inline objects in flight, of which the fold does not know yet."""
        self.plan = plan
        """Replaced by the sender's owner when it fetches newer metadata."""
        self._pool = pool
        self._query_id = query_id
        self._batch_id = batch_id
        self._task_id = task_id
        self._freed_bytes = 0
        planned = {topic.ledger_id: topic.fold_index for topic in plan.topics}
        self._folded = folded or (lambda ledger_id: planned.get(ledger_id, -1))

    def build(
        self, destination: Destination, batches: list[ProducerBatch], *, sequence: int, now_ms: int
    ) -> DataRequest:
        """Return a request whose object holds the batches, one section per partition.

        The name is new and random: no other attempt of the task can use it.
        """
        is_small = sum(batch.size_bytes for batch in batches) <= SMALL_SIZE_BYTES_MAX
        names = sorted({batch.topic_partition for batch in batches})
        sections: dict[TopicPartition, list[Slice]] = {name: [] for name in names}
        for batch in batches:
            slices = batch.take_slices()
            if not is_small:  # otherwise the object is a copy
                slices = [join_slices([item], self._pool) for item in slices]
            sections[batch.topic_partition] += slices
        topics = {name.topic: self.plan.topic(name.topic) for name in sections}
        topic_ids = {name: destination.typed_topic or topic.topic_id for name, topic in topics.items()}
        schema = _schema_of(topics[names[0].topic], destination, batches)
        if schema is not None and any(batch.schema != schema for batch in batches):
            sections = {name: [_raised(item, schema) for item in items] for name, items in sections.items()}
        has_any_headers = any(has_headers(item.records) for items in sections.values() for item in items)
        producer = f"{self._query_id}/{self._batch_id}/{self._task_id}"
        inputs = []
        for place, items in sections.items():
            records = [with_headers(item.records) if has_any_headers else item.records for item in items]
            inputs.append((place.topic, topic_ids[place.topic], place.partition, records, producer))
        encoded = encode_data_object(
            inputs,
            compression=destination.compression,
            has_headers=has_any_headers,
            has_offsets=has_offsets(inputs[0][3][0]),
            is_small=is_small,
            rows=schema,
        )
        required_count = max(topics[name.topic].copies_needed(name.partition) for name in sections)
        made = DataObject(
            ObjectId(destination.generation, self._new_name()),
            encoded.size_bytes,
            has_any_headers,
            frozenset(),
            encoded.sections,
            has_offsets(inputs[0][3][0]),
            after_index=self._folded(destination.ledger_id),
            schema_version=0 if schema is None else schema.version,
        )
        buffers = encoded.buffers
        if is_small and self._inline_room is not None:
            room_bytes = self._inline_room(destination, required_count, self._inline_bytes[destination.ledger_id])
            made = _inlined(made, buffers, room_bytes)
            if made.inline:
                buffers = [made.inline]
                self._inline_bytes[destination.ledger_id] += len(made.inline)
        memory = [item for items in sections.values() for item in items]
        request = DataRequest(
            sequence, destination, made, buffers, batches, memory, required_count, now_ms, topic_ids, schema
        )
        aligned = None
        if encoded.size_bytes >= DIRECT_SIZE_BYTES_MIN and len(destination.brokers) > 1:
            aligned = AlignedCopy(encoded.buffers)
            request.buffers = aligned.buffers
        if aligned is not None or destination.compression != "none" or is_small:
            # The object has bytes of its own: count them in place of the records, and release those.
            pinned = self._pool.charge(made.size_bytes)
            request.memory = [pinned] if aligned is None else [pinned, aligned]
            for item in memory:
                item.release()
        if aligned is not None and self._pool.available_bytes < self._pool.total_bytes // 2:
            # Slow roots: copies pile up in memory of their own, beside the pages that their rows have left.
            trim_row_memory()
        return request

    def _new_name(self) -> str:
        return object_name(self._query_id[:QUERY_CHARS], self._batch_id, self._task_id, new_id())

    def recover(self, request: DataRequest, batches: Set[ProducerBatch]) -> None:
        """Restore batches' records from the object's bytes, for another attempt.

        Records are not kept beside the object in flight: that would cost memory, and retries are rare.
        """
        body = b"".join(bytes(piece) for piece in request.buffers)
        for name in sorted({batch.topic_partition for batch in batches}):
            rows = pa.Table.from_batches(self._decode(request, name, body))
            start = 0
            for batch in request.batches:
                if batch.topic_partition != name:
                    continue
                if batch in batches:
                    pinned = self._pool.charge(batch.size_bytes)  # a copy in memory of its own
                    part = rows.slice(start, batch.row_count)
                    columns = [pa.concat_arrays(column.chunks, ROW_MEMORY) for column in part.columns]
                    pinned.retain(batch.size_bytes)
                    pinned.release()
                    records = pa.RecordBatch.from_arrays(columns, schema=part.schema)
                    batch.schema = request.schema
                    batch.give_back([Slice(records, batch.size_bytes, pinned)])
                start += batch.row_count

    def free(self, request: DataRequest) -> None:
        """Release the object's bytes; an unanswered put keeps them alive on its own."""
        request.buffers = ()
        self._inline_bytes[request.destination.ledger_id] -= len(request.data_object.inline)
        for item in request.memory:
            if request.unanswered_count:
                item.forbid_reuse()
            item.release()
        request.memory = []
        self._freed_bytes += request.data_object.size_bytes
        if self._freed_bytes >= self._pool.total_bytes // 4:
            # Arrow's allocators keep freed pages, and the memory bound of the process must not depend on that.
            # Not after every small object: the kernel zeroes pages before it hands them out again.
            self._freed_bytes = 0
            pa.default_memory_pool().release_unused()
            KEPT_PAGES.keep()

    def _decode(self, request: DataRequest, name: TopicPartition, body: bytes) -> Iterator[pa.RecordBatch]:
        for item in request.data_object.sections:
            if (item.topic_id, item.partition) == (request.topic_ids[name.topic], name.partition):
                part = memoryview(body)[item.start_byte : item.start_byte + item.size_bytes]
                flags = request.data_object.has_headers, request.data_object.has_offsets
                yield from decode_section(part, item.crc32c, item.row_count, *flags, rows=request.schema)


def _schema_of(topic: TopicPlan, destination: Destination, batches: list[ProducerBatch]) -> RowSchema | None:
    """Return the columns of an object, which holds the rows of one typed topic alone; None: rows are bytes.

    Another topic may have the name since its rows were drained. The log refuses them then, so they stay as they are.
    """
    if not destination.typed_topic:
        return None
    if topic.topic_id == destination.typed_topic:
        return topic.schema
    return max((batch.schema for batch in batches if batch.schema is not None), key=lambda rows: rows.version)


def _raised(item: Slice, schema: RowSchema) -> Slice:
    """Return a slice with the columns of the topic's newest version, which came after its rows were sent."""
    return Slice(schema.raised(item.records), item.size_bytes, item.pinned)


def _inlined(made: DataObject, buffers: Sequence[Buffer], room_bytes: int) -> DataObject:
    """Return the object with the bytes of its sections, for the ledger's entry, if they have room there."""
    start, last = made.sections[0].start_byte, made.sections[-1]
    end = last.start_byte + last.size_bytes
    if end - start > room_bytes:
        return made
    sections = tuple(item._replace(start_byte=item.start_byte - start) for item in made.sections)
    return replace(made, size_bytes=end - start, sections=sections, inline=b"".join(buffers)[start:end])
