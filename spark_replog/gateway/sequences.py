"""What the log knows of an idempotent producer's batches: which are there already, and which may follow.

The ledger's fold judges an append as a whole. Batches that clients send again come one by one, at any gateway, so each
is asked for before it is appended; what the fold says of the append counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_replog.errors import ErrorCode, FencedError, ReplogError, RetriableError
from spark_replog.ids import TopicId
from spark_replog.log.fold.producer_state import SEQUENCE_COUNT, PartitionSequences
from spark_replog.log.fold.topic_state import TopicLedgerState
from spark_replog.log.model import BatchSequence

REJUDGED = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_REQUEST}
)
"""Refusals of an append by the fold after which its batches are asked for one by one: another gateway was faster."""


class Judged(NamedTuple):
    """One batch: new if neither an error nor a base offset is given."""

    error: ReplogError | None = None
    base_offset: int | None = None
    """Of the batch in the log, if it is there."""
    log_start_offset: int = -1


_PREFIX = "kafka-"


def producer_name(producer_id: int) -> str:
    """Return the name in the log of a producer of Kafka's clients."""
    return f"{_PREFIX}{producer_id}"


def producer_number(name: str) -> int | None:
    """Return the id of a producer of Kafka's clients by its name in the log; None: it is another's."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None


def judge_batches(
    state: TopicLedgerState, topic_id: TopicId, producer_id: int, batches: Sequence[BatchSequence]
) -> list[Judged]:
    """Judge a producer's batches, in the order of their arrival, as the next ones of their partitions."""
    producer = state.producers.sequenced.producers.get(producer_name(producer_id))
    partitions = state.topics[topic_id].partitions
    following: dict[int, tuple[int, int]] = {}
    judged = []
    for batch in batches:
        sequences = None if producer is None else producer.partitions.get((topic_id, batch.partition))
        duplicate = None if sequences is None else sequences.find(batch)
        if duplicate is not None:
            partition = partitions[batch.partition]
            if duplicate.end_offset > partition.high_watermark:
                judged.append(Judged(_not_stable(batch)))
            else:
                judged.append(Judged(None, duplicate.base_offset, partition.log_start_offset))
            continue
        error = _refusal(batch, sequences, following.get(batch.partition))
        if error is None:
            following[batch.partition] = batch.epoch, (batch.last_sequence + 1) % SEQUENCE_COUNT
        judged.append(Judged(error))
    return judged


def _refusal(
    batch: BatchSequence, sequences: PartitionSequences | None, before: tuple[int, int] | None
) -> ReplogError | None:
    """Return why a batch does not follow: the batches in the log, or those before it that are appended with it."""
    if before is None and sequences is not None:
        before = sequences.epoch, sequences.next_sequence
    if before is None:
        if batch.first_sequence == 0:
            return None
        return ReplogError(
            ErrorCode.UNKNOWN_PRODUCER_ID,
            f"the log knows no batch of this producer in partition {batch.partition}, and its sequence is "
            f"{batch.first_sequence}. Nothing was appended. Begin with sequence 0 under a new epoch.",
        )
    epoch, expected = before
    if batch.epoch < epoch:
        return FencedError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"epoch {batch.epoch} is older than {epoch}. Close this producer and open a new one.",
        )
    expected = expected if batch.epoch == epoch else 0
    if batch.first_sequence != expected:
        return ReplogError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence {batch.first_sequence} of epoch {batch.epoch} comes for partition {batch.partition}, where "
            f"{expected} is next. Nothing was appended. Send the batches before it first.",
        )
    return None


def _not_stable(batch: BatchSequence) -> ReplogError:
    return RetriableError(
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        f"the batch is in the log of partition {batch.partition}, and not on enough replicas yet. Send it again.",
    )
