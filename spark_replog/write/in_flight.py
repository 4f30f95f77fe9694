"""Data objects on their way to roots.

Source: Kafka ``InFlightRequests``. A request here is one data object that goes to several roots,
so it takes a place on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, TopicId, TopicPartition
from spark_replog.log.model import DataObject, Section
from spark_replog.storage.object_store import Buffer
from spark_replog.write.partition_queue import Destination
from spark_replog.write.producer_batch import ProducerBatch


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
            generation=self.destination.generation,
            name=self.name,
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


__all__ = ["DataRequest", "InFlightRequests", "Put"]
