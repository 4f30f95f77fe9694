"""A data object on its way to roots, and its delivery: the seam between the sender and its owner.

Source: Kafka ``InFlightRequests`` and ``ProduceResponse``. A request is one data object that goes to several roots. A
write task reports its objects, and the driver commits them; a plain producer commits them itself. The sender is the
same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from spark_replog.errors import ReplogError
from spark_replog.ids import BrokerId, ObjectId, TopicId, TopicPartition
from spark_replog.log.model import DataObject, PartitionResponse, Section
from spark_replog.storage.object_store import Buffer
from spark_replog.write.partition_queue import Destination
from spark_replog.write.producer_batch import ProducerBatch


class Releasable(Protocol):
    """A hold on memory."""

    def release(self) -> None:
        """Give it up."""
        ...

    def forbid_reuse(self) -> None:
        """Keep the memory from being written again."""
        ...


class PutState(Enum):
    """What is known of one root's copy."""

    OPEN = "open"
    """An attempt is under way or follows."""
    HELD = "held"
    """The root holds it; this is final."""
    GIVEN_UP = "given up"
    """No attempt follows, unless the root was away and comes back. A late success still makes the copy held."""


@dataclass(slots=True)
class Put:
    """One root's copy of a request."""

    broker_id: BrokerId
    attempt: int = 0
    """Number of the newest attempt; 0 before the first."""
    sent_ms: int | None = None
    """When the newest attempt was sent; None while it is answered or timed out."""
    next_attempt_ms: int = 0
    state: PutState = PutState.OPEN
    error: ReplogError | None = None


class RequestState(Enum):
    """What a data object waits for. ``docs/architecture.md`` draws the transitions."""

    PUTTING = "putting"
    """Copies: too few roots hold it."""
    COPIED = "copied"
    """``replica.grace.ms`` for the other copies, or an earlier object with rows of the same partitions."""
    DELIVERED = "delivered"
    """The answer of the commit."""
    IN_DOUBT = "in doubt"
    """A pause: the answer was lost, so the same object is delivered again."""
    REDELIVERED = "redelivered"
    """The answer to another delivery. Only the ledger's answer about this very object ends the doubt."""
    PARKED = "parked"
    """The end of its transaction. Its memory is released."""
    ANSWERED = "answered"
    """Nothing: every batch has its outcome, or is in its queue again for another attempt."""
    FAILED = "failed"
    """Nothing: it got too few copies, or its answer did not come within ``delivery.timeout.ms``."""
    DROPPED = "dropped"
    """Nothing: no root holds it, and acks=0 does not retry."""


TRANSITIONS: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.PUTTING: frozenset({RequestState.COPIED, RequestState.FAILED, RequestState.DROPPED}),
    RequestState.COPIED: frozenset({RequestState.DELIVERED, RequestState.FAILED}),
    RequestState.DELIVERED: frozenset({RequestState.ANSWERED, RequestState.IN_DOUBT, RequestState.PARKED}),
    RequestState.IN_DOUBT: frozenset({RequestState.REDELIVERED, RequestState.FAILED}),
    RequestState.REDELIVERED: frozenset({RequestState.ANSWERED, RequestState.IN_DOUBT}),
    RequestState.PARKED: frozenset({RequestState.ANSWERED}),
    RequestState.ANSWERED: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.DROPPED: frozenset(),
}
BEFORE_DELIVERY = frozenset({RequestState.PUTTING, RequestState.COPIED})
OPEN = BEFORE_DELIVERY | {RequestState.DELIVERED, RequestState.IN_DOUBT, RequestState.REDELIVERED}
"""The outcome is unknown; that of a parked request is its transaction's to know."""


@dataclass(slots=True)
class DataRequest:
    """One data object, its copies and its state.

    Invariants:
        ``state`` changes by ``move_to`` only, along ``TRANSITIONS``.
        ``copied_ms`` is set from COPIED on; ``error`` in FAILED and DROPPED only.
    """

    sequence: int
    """Drain order: rows of a partition are in order over the objects of a sender."""
    destination: Destination
    id: ObjectId
    key: str
    """Of the object on every root."""
    buffers: Sequence[Buffer]
    """The object's bytes; empty once they are released."""
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
    topic_ids: dict[str, TopicId]
    """Of the topics whose rows it holds, by name."""
    after_index: int = -1
    """See ``DataObject``."""
    puts: dict[BrokerId, Put] = field(default_factory=dict)
    state: RequestState = RequestState.PUTTING
    expires_ms: int = 0
    """When ``delivery.timeout.ms`` is over for the first of its batches."""
    copied_ms: int = 0
    """When enough roots held it."""
    delivery_count: int = 0
    redeliver_ms: int = 0
    """When it is delivered again, in IN_DOUBT."""
    unanswered_count: int = 0
    """Puts that may still read its bytes."""
    error: ReplogError | None = None

    def move_to(self, state: RequestState) -> None:
        """Change the state."""
        assert state in TRANSITIONS[self.state], f"a data request cannot go from {self.state} to {state}"
        self.state = state

    @property
    def holders(self) -> frozenset[BrokerId]:
        """Return the roots that hold the object."""
        return frozenset(broker_id for broker_id, put in self.puts.items() if put.state is PutState.HELD)

    @property
    def topic_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions whose rows it holds."""
        return frozenset(batch.topic_partition for batch in self.batches)

    @property
    def is_settled(self) -> bool:
        """Return whether no attempt to put it follows."""
        return all(put.state is not PutState.OPEN for put in self.puts.values())

    def to_data_object(self) -> DataObject:
        """Return what an append names."""
        return DataObject(
            id=self.id,
            size_bytes=self.size_bytes,
            has_headers=self.has_headers,
            holders=self.holders,
            sections=self.sections,
            after_index=self.after_index,
        )


class Delivered(Enum):
    """What a delivery did with an object."""

    DONE = "done"
    """Its records are acknowledged, at unknown offsets; no result follows."""
    PENDING = "pending"
    """A result follows; until then the request keeps its place and its memory, for a retry."""
    PARKED = "parked"
    """A result follows at the end of the transaction. Place and memory are released, so it is not retried."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The answer for one object."""

    sequence: int
    """Of the request."""
    responses: Mapping[TopicPartition, PartitionResponse]
    """One for each partition of the request."""


class Delivery(Protocol):
    """Takes objects from a sender, in drain order for each partition. Called by the sender's owner only."""

    fails_as_one: bool
    """Whether the first failed request ends all, as in a write task; otherwise each batch is judged alone."""

    def begin(self, request: DataRequest) -> None:
        """Note an object before its first put."""
        ...

    def deliver(self, request: DataRequest) -> Delivered:
        """Take an object that enough roots hold. Must not block."""
        ...

    def poll(self) -> Sequence[DeliveryResult]:
        """Return the results since the last call, each once, without waiting.

        For each partition in the order of the deliveries, as on one connection: a refusal that comes after the
        success of a later attempt would look like a gap in the log.
        """
        ...
