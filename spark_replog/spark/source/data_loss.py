"""What ``failOnDataLoss`` decides: which offsets are gone, why, and what is said about it.

The conditions are Kafka's (``KafkaExceptions``, ``KAFKA_DATA_LOSS.*``), so that users find them; the causes
are told apart by what the ledgers know: topic ids, log start offsets, high watermarks.
"""

from __future__ import annotations

import logging
from enum import Enum

from spark_replog.errors import ErrorCode, ReplogError, RetriableError
from spark_replog.once import Once

_LOG = logging.getLogger(__name__)


class Loss(Enum):
    """Kafka's condition of a loss."""

    ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO = "a partition that is new to the query begins above 0"
    COULD_NOT_READ_OFFSET_RANGE = "offsets that are due are not in the log"
    INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS = "a new partition is gone before it was read"
    PARTITIONS_DELETED = "a partition that was read is gone"
    PARTITION_OFFSET_CHANGED = "the log ends before a position"


class LossPolicy:
    """Raises or says a loss. A loss that is only said is said once.

    Args:
        fail: ``failOnDataLoss``.
    """

    def __init__(self, *, fail: bool) -> None:
        self.fail = fail
        self._reported = Once()

    def report(self, loss: Loss, message: str) -> None:
        """Raise, or say it and return.

        Raises:
            ReplogError: REPLOG_DATA_LOSS; nothing was skipped.
        """
        if self.fail:
            raise ReplogError(
                ErrorCode.REPLOG_DATA_LOSS,
                f"{message} Some data may have been lost because they are not available in Kafka any more: set "
                "failOnDataLoss=false to go on with what still exists.",
                condition=f"KAFKA_DATA_LOSS.{loss.name}",
            )
        if self._reported.is_first(message):
            _LOG.warning("[%s] %s condition=`KAFKA_DATA_LOSS.%s`", ErrorCode.REPLOG_DATA_LOSS.name, message, loss.name)


def removed_offsets(log_start: int, *, is_trimmed: bool) -> str:
    """Return the cause of a loss before the log start; follows the offsets."""
    cause = "were trimmed (replog topic trim)" if is_trimmed else "aged out (retention)"
    return f"are no longer in the log, which begins at {log_start} now: they {cause} before they were read."


def offset_changed(topic: str, partition: int, position: int, end: int) -> str:
    """Return the text of a position past the end of the log."""
    return (
        f"partition {topic}-{partition}'s offset was changed from {position} to {end}: the position {position} is past "
        f"the end {end} of the log. Either it was set too high, or rows were lost with a replica that held them."
    )


def undecided_tail(topic: str) -> RetriableError:
    """Return the error for a log that ends before a known position while too few roots answer."""
    return RetriableError(
        ErrorCode.REPLOG_TAIL_UNDECIDED,
        f"topic '{topic}': too few metadata roots answer to tell where the log ends, so it is not known whether rows "
        "are lost. Bring the roots back, then start the query again.",
        topic=topic,
    )


__all__ = ["Loss", "LossPolicy", "offset_changed", "removed_offsets", "undecided_tail"]
