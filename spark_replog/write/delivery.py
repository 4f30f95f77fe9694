"""What becomes of a data object once its copies are there: the seam between sender and owner.

A write task reports its objects, and the driver commits them. A plain producer commits them itself.
The sender is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from spark_replog.errors import ReplogError
from spark_replog.ids import TopicPartition
from spark_replog.write.in_flight import DataRequest
from spark_replog.write.record_handle import UNKNOWN_OFFSET


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
    """None: appended. DUPLICATE_SEQUENCE_NUMBER counts as appended, at an unknown offset."""
    base_offset: int = UNKNOWN_OFFSET
    """Of the partition's first record in this object."""
    log_append_time_ms: int | None = None
    log_start_offset: int = UNKNOWN_OFFSET
    record_errors: Mapping[int, str | None] = field(default_factory=dict)
    """Record number in the partition's part of the object -> what is wrong with it."""


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


__all__ = ["Delivered", "Delivery", "DeliveryResult", "PartitionResponse"]
