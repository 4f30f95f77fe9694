"""What the fold keeps of idempotent and transactional producers: epochs, sequences, a window of batches. Pure.

Source: Kafka ``ProducerStateManager`` and ``ProducerAppendInfo``. A producer's state is per partition
as there; its epoch is per ledger, since a ledger decides an append for all of its partitions at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from spark_replog.ids import TopicId
from spark_replog.log.model import IdentityKind, ProducerInit, SequencedAppend, row_counts
from spark_replog.log.results import CommandResult, OffsetRanges, Outcome

BATCHES_KEPT = 5
"""Per partition, for the duplicate check: as many as may be in flight."""
SEQUENCE_COUNT = 2**31
"""After the sequence 2**31 - 1 comes 0."""

Place = tuple[TopicId, int]


class SequencedBatch(NamedTuple):
    """The records that one append brought to one partition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int


class PartitionSequences(NamedTuple):
    """The newest batches of one producer in one partition, oldest first; never empty."""

    epoch: int
    batches: tuple[SequencedBatch, ...]

    @property
    def next_sequence(self) -> int:
        """Return the first sequence of the batch that may follow."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCE_COUNT


@dataclass(slots=True)
class SequencedProducer:
    """One producer.

    Attributes:
        epoch: the newest that claimed it or wrote; older ones are refused.
        instance_id: of the process that claimed it; '' where nobody did.
        partitions: what it wrote where. Values are replaced, never changed.
        last_generation: newest data generation it wrote to.
        is_forgettable: whether its id is random, so that nobody comes back with it.
    """

    epoch: int
    instance_id: str = ""
    partitions: dict[Place, PartitionSequences] = field(default_factory=dict)
    last_generation: int = 0
    is_forgettable: bool = False


class SequenceTable:
    """All sequenced producers of one topic ledger."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[str, SequencedProducer] = {}

    def get(self, producer_id: str) -> SequencedProducer | None:
        """Return what is known of the producer."""
        return self._producers.get(producer_id)

    def apply_init(self, command: ProducerInit) -> CommandResult:
        """Give the producer id to an instance, under the epoch behind the last one."""
        known = self._producers.get(command.producer_id)
        epoch = -1 if known is None else known.epoch
        if known is not None and known.instance_id == command.instance_id and command.epoch == epoch:
            return CommandResult(Outcome.EXISTS, {}, f"'{command.producer_id}' is at epoch {epoch} already")
        if command.epoch != epoch + 1:
            return CommandResult(Outcome.FENCED, {}, f"'{command.producer_id}' is at epoch {epoch} of another instance")
        if known is None:
            self._producers[command.producer_id] = SequencedProducer(command.epoch, command.instance_id)
        else:
            known.epoch = command.epoch
            known.instance_id = command.instance_id
        return CommandResult(Outcome.APPLIED)

    def judge_duplicate(self, append: SequencedAppend) -> tuple[Outcome, str, OffsetRanges] | None:
        """Return DUPLICATE with the old offsets where every batch is in the window, else None.

        An append that is a duplicate in some partitions only cannot come from a correct producer.
        """
        known = self._producers.get(append.identity.producer_id)
        if known is None:
            return None
        ranges: dict[Place, tuple[int, int]] = {}
        new_count = 0
        for place, first, last in append.batches():
            found = known.partitions.get(place)
            batch = None if found is None or found.epoch != append.epoch else _find(found, first, last)
            if batch is None:
                new_count += 1
            else:
                ranges[place] = (batch.base_offset, batch.end_offset)
        if not ranges:
            return None
        if new_count:
            return Outcome.OUT_OF_SEQUENCE, f"{len(ranges)} of its batches are in the log and {new_count} are not", {}
        return Outcome.DUPLICATE, "", ranges

    def judge_fenced(self, append: SequencedAppend) -> str | None:
        """Return why a transactional producer's append comes from a replaced instance, or None."""
        known = self._producers.get(append.identity.producer_id)
        if known is None or append.epoch >= known.epoch or append.identity.kind is not IdentityKind.TRANSACTIONAL:
            return None
        return (
            f"epoch {append.epoch} of '{append.identity.producer_id}' was replaced by epoch {known.epoch}"
            f" of instance {known.instance_id or 'unknown'}"
        )

    def judge_sequence(self, append: SequencedAppend) -> tuple[Outcome, str] | None:
        """Return the refusal of an append that is no duplicate, or None."""
        identity = append.identity
        known = self._producers.get(identity.producer_id)
        if append.epoch < 0 or len(append.base_sequences) != len(row_counts(append)):
            return Outcome.INVALID, "epoch or sequences do not fit the append's partitions"
        if known is None:
            return None
        if append.epoch < known.epoch:
            return Outcome.OLD_EPOCH, f"epoch {append.epoch} is older than {known.epoch}"
        for place, first, _ in append.batches():
            expected = self._expected(known, append.epoch, place)
            if expected is not None and first != expected:
                return (
                    Outcome.OUT_OF_SEQUENCE,
                    f"'{identity.producer_id}' comes with sequence {first} of epoch {append.epoch} for partition"
                    f" {place[1]} of topic {place[0]}, where {expected} is next",
                )
        return None

    def record(self, append: SequencedAppend, ranges: OffsetRanges) -> None:
        """Remember an applied append."""
        identity = append.identity
        known = self._producers.get(identity.producer_id)
        if known is None:
            known = self._producers[identity.producer_id] = SequencedProducer(append.epoch)
            known.is_forgettable = identity.kind is IdentityKind.ONE_SHOT
        known.epoch = append.epoch
        for place, first, last in append.batches():
            base, end = ranges[place]
            found = known.partitions.get(place)
            kept = found.batches if found is not None and found.epoch == append.epoch else ()
            batches = (*kept, SequencedBatch(first, last, base, end))[-BATCHES_KEPT:]
            known.partitions[place] = PartitionSequences(append.epoch, batches)
        known.last_generation = max((o.generation for o in append.objects), default=known.last_generation)

    def forget(self, floor: int) -> None:
        """Drop random ids whose objects lie below the GC floor: the floor refuses their retries."""
        gone = [
            producer_id
            for producer_id, known in self._producers.items()
            if known.is_forgettable and known.last_generation < floor
        ]
        for producer_id in gone:
            del self._producers[producer_id]

    def _expected(self, known: SequencedProducer, epoch: int, place: Place) -> int | None:
        """Return the sequence that must come next, None where any may."""
        found = known.partitions.get(place)
        if found is not None:
            return found.next_sequence if found.epoch == epoch else 0
        # Nothing is known of this partition: as with Kafka's marker, a claimed id begins with 0.
        return 0 if known.instance_id else None


def _find(found: PartitionSequences, first: int, last: int) -> SequencedBatch | None:
    for batch in found.batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return batch
    return None


__all__ = ["BATCHES_KEPT", "PartitionSequences", "SequenceTable", "SequencedBatch", "SequencedProducer"]
