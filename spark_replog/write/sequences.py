"""The producer's half of idempotence: numbers batches, and handles gaps.

Source: Kafka ``TransactionManager``, ``TxnPartitionMap`` and ``TxnPartitionEntry``. The ledger's fold does the other
half: it checks the window of five batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.ids import TopicPartition, new_id
from spark_replog.write.producer_batch import NO_SEQUENCE, ProducerBatch, ProducerIdAndEpoch, increment_sequence

EPOCH_MAX = 2**15 - 1
WINDOW_APPENDS = 5
"""How many of a partition's last appends the log recognises if repeated (``BATCHES_KEPT`` of the fold)."""


@dataclass(slots=True)
class _Partition:
    """State of one partition."""

    producer: ProducerIdAndEpoch
    next_sequence: int = 0
    last_acked_sequence: int = NO_SEQUENCE
    in_flight: list[ProducerBatch] = field(default_factory=list)
    """Numbered batches without an outcome, sent or waiting for a retry; in order of sequence."""
    unresolved: int | None = None
    """The sequence after a sent batch that expired without an answer and may be in the log."""
    renumbered: set[ProducerBatch] = field(default_factory=set)
    drain_count: int = 0
    last_drain: int = 0
    drained_sequence: int = 0
    """The sequence after the last drained batch."""
    first_drains: dict[ProducerBatch, int] = field(default_factory=dict)
    """Number of the partition's drain that first took each batch in flight."""


class ProducerSequences:
    """Numbers batches when they are drained. The accumulator's lock guards draining; one owner calls the rest.

    Args:
        producer_id: this producer's name in the ledger.
        is_transactional: a gap fails the transaction instead of raising the epoch.
    """

    def __init__(self, producer_id: str, *, is_transactional: bool = False) -> None:
        self.producer = ProducerIdAndEpoch(producer_id, 0)
        """The epoch is raised when a gap cannot be closed otherwise."""
        self._is_transactional = is_transactional
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._to_renumber: dict[TopicPartition, ProducerBatch] = {}
        """The first batch of each partition that the log lacks, or refused: those after it need new numbers. Those
        before it may be in the log: under new numbers it would not know them again, so their answers come first."""
        self._outdated: dict[TopicPartition, None] = {}
        self._drain = 0

    # ------------------------------------------------------------------------------------ draining

    def begin_drain(self) -> None:
        """Begin another object: the batches that one drain takes from a partition are one append."""
        self._drain += 1

    def may_drain(self, batch: ProducerBatch) -> bool:
        """Return whether the first batch of a partition's queue may be drained now."""
        entry = self._partitions.get(batch.topic_partition)
        if entry is None:
            return True
        if batch.has_sequence:
            # Retries go one at a time, oldest first.
            return not entry.in_flight or entry.in_flight[0] is batch
        if entry.unresolved is not None or batch.topic_partition in self._to_renumber:
            return False
        if entry.last_drain == self._drain and entry.drained_sequence != entry.next_sequence:
            return False  # a retry was taken, and the sequences between it and this batch are in other requests
        return not entry.in_flight or not (entry.producer != self.producer or self._would_leave_window(entry))

    def assign(self, batch: ProducerBatch) -> None:
        """Number a drained batch, once; a retry keeps its number."""
        entry = self._entry(batch.topic_partition)
        if entry.last_drain != self._drain:
            entry.last_drain = self._drain
            entry.drain_count += 1
        entry.first_drains.setdefault(batch, entry.drain_count)
        if not batch.has_sequence:
            if entry.producer != self.producer and not entry.in_flight:
                self._restart(entry)
            batch.producer, batch.base_sequence = entry.producer, entry.next_sequence
            entry.next_sequence = increment_sequence(entry.next_sequence, batch.row_count)
            place = len(entry.in_flight)
            while place and batch.precedes(entry.in_flight[place - 1]):
                place -= 1
            entry.in_flight.insert(place, batch)
        entry.drained_sequence = increment_sequence(batch.base_sequence, batch.row_count)

    # ------------------------------------------------------------------------------------ outcomes

    def on_success(self, batch: ProducerBatch) -> None:
        """Note an acknowledged batch."""
        entry = self._entry(batch.topic_partition)
        last = increment_sequence(batch.base_sequence, batch.row_count - 1)
        if entry.producer == batch.producer and _is_later(last, entry.last_acked_sequence):
            entry.last_acked_sequence = last
        self.forget(batch)

    def on_failure(self, batch: ProducerBatch, *, leaves_hole: bool) -> None:
        """Forget a batch that failed for good.

        Args:
            leaves_hole: the batch is certainly not in the log, so the log refuses later batches.
        """
        entry = self._entry(batch.topic_partition)
        self.forget(batch)
        if not leaves_hole or not batch.has_sequence or entry.producer != batch.producer:
            return
        if self._is_transactional:
            self._close_gap(entry, batch)
        else:
            self._note_gap(batch)

    def can_retry(self, batch: ProducerBatch, error: ReplogError) -> bool:
        """Return whether to retry after this error; request a new epoch if the retry needs one."""
        entry = self._entry(batch.topic_partition)
        if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self._is_ahead_of_others(entry, batch):
                return True
            if not self._is_transactional:
                self._note_gap(batch)
            return not self._is_transactional
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The epoch was raised for another partition. Usually this one's batches may keep theirs: the log judges the
            # epochs of a plain producer partition by partition.
            if self._is_transactional or batch.producer.epoch == self.producer.epoch:
                return False
            self._outdated[batch.topic_partition] = None
            return True
        return isinstance(error, RetriableError)

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """Note that a sent batch expired without an answer: its partition drains no new batches for now."""
        entry = self._entry(batch.topic_partition)
        after = increment_sequence(batch.base_sequence, batch.row_count)
        if entry.unresolved is None or _is_later(after, entry.unresolved):
            entry.unresolved = after

    def resolve(self) -> None:
        """Resolve partitions that have no batch in flight, and raise the epoch if needed."""
        due = [name for name, gap in self._to_renumber.items() if not self._is_behind_others(gap)]
        for name, entry in self._partitions.items():
            if entry.unresolved is None or entry.in_flight:
                continue
            if entry.next_sequence == increment_sequence(entry.last_acked_sequence, 1):
                entry.unresolved = None  # later batches were acknowledged, so it is in the log
            elif self._is_transactional:
                entry.unresolved = None  # the failed handle keeps the transaction from committing
            elif name not in due:
                due.append(name)
        if due:
            self._raise_epoch(due)
        for name in self._outdated:
            entry = self._entry(name)
            if entry.producer != self.producer:
                self._restart(entry)
                self._renumber(entry)
                self._to_renumber.pop(name, None)
        self._outdated.clear()

    def forget(self, batch: ProducerBatch) -> None:
        """Remove a batch from those in flight."""
        entry = self._entry(batch.topic_partition)
        entry.renumbered.discard(batch)
        entry.first_drains.pop(batch, None)
        if batch in entry.in_flight:
            entry.in_flight.remove(batch)

    def restart(self) -> None:
        """Begin with sequence 0 in every partition: after an aborted transaction, under another epoch."""
        self._partitions.clear()
        self._to_renumber.clear()

    # ------------------------------------------------------------------------------------ rules

    def _is_ahead_of_others(self, entry: _Partition, batch: ProducerBatch) -> bool:
        """Return whether batches in flight may still fill the gap before this batch."""
        if entry.unresolved is not None:
            return self._is_behind_others(batch)
        return batch in entry.renumbered or batch.base_sequence != increment_sequence(entry.last_acked_sequence, 1)

    def _note_gap(self, batch: ProducerBatch) -> None:
        """Note that the batches after this one need new numbers."""
        earliest = self._to_renumber.get(batch.topic_partition)
        if earliest is None or batch.precedes(earliest):
            self._to_renumber[batch.topic_partition] = batch

    def _is_behind_others(self, batch: ProducerBatch) -> bool:
        return any(other.precedes(batch) for other in self._entry(batch.topic_partition).in_flight)

    def _would_leave_window(self, entry: _Partition) -> bool:
        """Return whether one more append could push the oldest one in flight out of the log's window.

        If the oldest is appended and its answer is lost, the log must still recognise its repetition.
        """
        if entry.last_drain == self._drain:
            return False
        return entry.drain_count - entry.first_drains[entry.in_flight[0]] + 1 >= WINDOW_APPENDS

    def _raise_epoch(self, names: Sequence[TopicPartition]) -> None:
        is_last = self.producer.epoch >= EPOCH_MAX
        self.producer = (
            ProducerIdAndEpoch(new_id(), 0) if is_last else self.producer._replace(epoch=self.producer.epoch + 1)
        )
        for name in names:
            entry = self._entry(name)
            self._restart(entry)
            self._renumber(entry)
            entry.unresolved = None
            self._to_renumber.pop(name, None)

    def _restart(self, entry: _Partition) -> None:
        entry.producer = self.producer
        entry.next_sequence = 0
        entry.last_acked_sequence = NO_SEQUENCE

    def _renumber(self, entry: _Partition) -> None:
        """Number the batches in flight from 0."""
        sequence = 0
        for batch in entry.in_flight:
            batch.producer, batch.base_sequence = entry.producer, sequence
            sequence = increment_sequence(sequence, batch.row_count)
            entry.renumbered.add(batch)
        entry.next_sequence = sequence
        entry.last_acked_sequence = NO_SEQUENCE

    def _close_gap(self, entry: _Partition, failed: ProducerBatch) -> None:
        """Lower the sequences after a refused batch of a transaction, as if it had never been numbered."""
        for batch in entry.in_flight:
            if failed.precedes(batch):
                lower = batch.base_sequence - failed.row_count
                batch.producer, batch.base_sequence = entry.producer, increment_sequence(lower, 0)
                entry.renumbered.add(batch)
        entry.next_sequence = increment_sequence(entry.next_sequence - failed.row_count, 0)

    def _entry(self, name: TopicPartition) -> _Partition:
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions[name] = _Partition(self.producer)
        return partition


def _is_later(sequence: int, other: int) -> bool:
    """Return whether a sequence comes after another, across the wrap to 0."""
    return other == NO_SEQUENCE or 0 < increment_sequence(sequence - other, 0) <= 2**30
