"""A data object on its way to roots, and its delivery: the seam between the sender and its owner.

Source: Kafka ``InFlightRequests`` and ``ProduceResponse``. A request is one data object that goes to several roots, so
it takes a place on each. A write task reports its objects, and the driver commits them; a plain producer commits them
itself. The sender is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, ObjectId, TopicId, TopicPartition
from spark_replog.log.model import DataObject, Section
from spark_replog.storage.object_store import Buffer
from spark_replog.write.partition_queue import Destination
from spark_replog.write.producer_batch import ProducerBatch
from spark_replog.write.record_handle import UNKNOWN_OFFSET


class Releasable(Protocol):
    """A hold on memory."""

    def release(self) -> None:
        """Give it up."""
        ...

    def forbid_reuse(self) -> None:
        """Let nobody write into that memory again."""
        ...


@dataclass(slots=True)
class Put:
    """One root's part of a request.

    Invariants:
        Settled once: held, or given up. A late success after being given up still makes it held.
    """

    broker_id: BrokerId
    attempt: int = 0
    """Number of the newest attempt; 0 before the first."""
    sent_ms: int | None = None
    """When the newest attempt was sent; None while none is out."""
    next_attempt_ms: int = 0
    is_held: bool = False
    is_given_up: bool = False
    error: ReplogError | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether nothing more is expected."""
        return self.is_held or self.is_given_up


@dataclass(slots=True)
class DataRequest:
    """One data object and how far its copies are."""

    sequence: int
    """Drain order: rows of a partition are in order over the objects of a task."""
    destination: Destination
    name: str
    key: str
    buffers: Sequence[Buffer]
    sections: tuple[Section, ...]
    has_headers: bool
    row_count: int
    size_bytes: int
    batches: list[ProducerBatch]
    memory: list[Releasable]
    """What the buffers keep alive, counted by the pool until released."""
    required_count: int
    """Copies that acks=all needs."""
    created_ms: int
    puts: dict[BrokerId, Put] = field(default_factory=dict)
    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    """Of the topics whose rows it holds, by name."""
    expires_ms: int = 0
    """When ``delivery.timeout.ms`` is over for the first of its batches."""
    delivered_ms: int | None = None
    """When it was handed over to be committed."""
    deliveries: int = 0
    """How often it was handed over."""
    is_doubtful: bool = False
    """An attempt ended without saying whether it was appended. A later attempt that did not reach the log
    says nothing about that one, so only the log's own word on the very same object ends the doubt."""
    redeliver_ms: int | None = None
    """When it is handed over again, since nobody knows whether it was appended."""
    is_parked: bool = False
    """Its result comes with the end of a transaction; its bytes are let go."""
    unanswered_count: int = 0
    """Puts that may still read its bytes."""
    satisfied_ms: int | None = None
    """When the copies that must be were there."""
    completed_ms: int | None = None
    """When the outcome was known; copies may still be on their way."""
    error: ReplogError | None = None
    is_dropped: bool = False
    """With acks=0: no root had taken it when its outcome was told."""

    @property
    def holders(self) -> frozenset[BrokerId]:
        """Return the roots that hold the object."""
        return frozenset(broker_id for broker_id, put in self.puts.items() if put.is_held)

    @property
    def has_body(self) -> bool:
        """Return whether its bytes are still there."""
        return bool(self.buffers)

    @property
    def topic_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions whose rows it holds."""
        return frozenset(batch.topic_partition for batch in self.batches)

    @property
    def is_settled(self) -> bool:
        """Return whether every put is."""
        return all(put.is_settled for put in self.puts.values())

    def to_data_object(self) -> DataObject:
        """Return what the commit message says of this object."""
        return DataObject(
            id=ObjectId(self.destination.generation, self.name),
            size_bytes=self.size_bytes,
            has_headers=self.has_headers,
            holders=self.holders,
            sections=self.sections,
        )


class InFlightRequests:
    """The requests whose memory is held, bounded per root.

    Args:
        max_in_flight: ``max.in.flight.requests.per.connection``.
    """

    def __init__(self, max_in_flight: int) -> None:
        assert max_in_flight > 0
        self._max_in_flight = max_in_flight
        self._requests: dict[int, DataRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[DataRequest]:
        return iter(list(self._requests.values()))

    def __contains__(self, request: DataRequest) -> bool:
        return request.sequence in self._requests

    def can_send(self, brokers: Sequence[BrokerId]) -> bool:
        """Return whether every one of the roots may get one more request."""
        counts = dict.fromkeys(brokers, 0)
        for request in self._requests.values():
            for broker_id in request.puts:
                if broker_id in counts:
                    counts[broker_id] += 1
        return all(count < self._max_in_flight for count in counts.values())

    def add(self, request: DataRequest) -> None:
        """Take a place on each of the request's roots."""
        self._requests[request.sequence] = request

    def remove(self, request: DataRequest) -> None:
        """Give the request's places back."""
        del self._requests[request.sequence]


class Delivered(Enum):
    """What a delivery did with an object."""

    DONE = "done"
    """Nothing more is to come: its records are acknowledged, at offsets that nobody here knows."""
    PENDING = "pending"
    """A result will come; until then the request keeps its place and its memory, for a retry."""
    PARKED = "parked"
    """A result will come with the end of the transaction. Place and memory are let go, so no retry."""


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    """The answer for one partition of an object (source: Kafka ``ProduceResponse.PartitionResponse``)."""

    error: ReplogError | None = None
    """None: appended, now or by an earlier attempt."""
    base_offset: int = UNKNOWN_OFFSET
    """Of the partition's first record in this object."""
    log_append_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The answer for one object."""

    sequence: int
    """Which request."""
    responses: Mapping[TopicPartition, PartitionResponse]
    """One for each partition of the request."""


class Delivery(Protocol):
    """Takes objects from a sender, in drain order for each partition. Called by the sender's owner only."""

    fails_as_one: bool
    """Whether the first failed request ends all, as in a write task; else each batch is judged alone."""

    def begin(self, request: DataRequest) -> None:
        """Note an object before its first put."""
        ...

    def deliver(self, request: DataRequest) -> Delivered:
        """Take an object whose copies are there. Must not block.

        ``request.batches`` are the records' batches with their sequences; ``request.to_data_object()``
        says what an append names.
        """
        ...

    def poll(self) -> Sequence[DeliveryResult]:
        """Return the results since the last call, each once, without waiting.

        For each partition in the order in which the objects were handed over, as on one connection:
        a refusal that comes behind the success of a later attempt would look like a gap in the log.
        """
        ...


__all__ = ["DataRequest", "Delivered", "Delivery", "DeliveryResult", "InFlightRequests", "PartitionResponse", "Put"]
