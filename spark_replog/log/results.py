"""What a fold answers for one command: the same for every process that folds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_replog.errors import ErrorCode
from spark_replog.ids import BrokerId, TopicId

OffsetRanges = Mapping[tuple[TopicId, int], tuple[int, int]]
"""(topic id, partition) -> (first offset, end offset), ends exclusive."""


class Outcome(Enum):
    """How the fold judged a command. All but APPLIED left the state as it was."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """This append was applied before: success for its producer."""
    SKIPPED = "skipped"
    """Nothing to do: `onCheckpointReset=skip`, or an ISR change that changes nothing."""
    EXISTS = "exists"
    """The thing is there already (or gone already): a repeated step."""
    UNKNOWN_TOPIC = "unknown_topic"
    TOPIC_CLOSED = "topic_closed"
    FENCED = "fenced"
    """The run that appends was replaced by a newer one."""
    BELOW_FLOOR = "below_floor"
    """An object's generation may be collected already: the writer was too slow."""
    OUT_OF_SEQUENCE = "out_of_sequence"
    OLD_EPOCH = "old_epoch"
    """An idempotent producer's epoch was passed."""
    CHECKPOINT_RESET = "checkpoint_reset"
    TXN_MISMATCH = "txn_mismatch"
    """Same txnVersion, other row counts per topic."""
    REFUSED = "refused"
    """A change of a partition that its state does not allow; `error_code` says why, as Kafka would."""
    INVALID = "invalid"
    """The command contradicts the state (partition out of range, unknown object); see `detail`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The fold's answer to one command.

    Attributes:
        base_offsets: APPLIED appends: where each partition's rows went. DUPLICATE of the producer's LAST
            append: where they went then. Else empty.
        detail: why, for people; for a DUPLICATE non-empty when its row counts differ from what was applied.
        leader_changes: partitions whose leader moved, as (topic id, partition, new leader; -1 none).
        error_code: REFUSED: Kafka's code.
    """

    outcome: Outcome
    base_offsets: OffsetRanges = field(default_factory=dict)
    detail: str = ""
    leader_changes: tuple[tuple[TopicId, int, BrokerId], ...] = ()
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the fold would answer to an append if it were decided next.

    Attributes:
        ranges: APPLIED: the offsets it would get; DUPLICATE of the last append: those it got.
    """

    outcome: Outcome
    detail: str = ""
    ranges: OffsetRanges = field(default_factory=dict)


OK = CommandResult(Outcome.APPLIED)
